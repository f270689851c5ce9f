//! What a test asks of a tile program: how many kernels, loops and bounds it has, and what it keeps in memory.

use ir::{BufferRole, Statement, TileProgram};

/// The structure, to tell candidates apart: for each kernel its loops, carried values, bounds and block group axes; then split axes.
pub(crate) fn of(tile: &TileProgram) -> (Vec<[usize; 4]>, bool) {
    let kernels = tile
        .kernels
        .iter()
        .map(|k| {
            let body = &k.body;
            [
                loops(body),
                carried(body),
                bounds(body),
                k.block_group().len(),
            ]
        })
        .collect();
    (kernels, is_split(tile))
}

fn sum(body: &[Statement], count: fn(&ir::Loop) -> usize) -> usize {
    body.iter()
        .map(|s| match s {
            Statement::Loop(l) => count(l) + sum(&l.body, count),
            Statement::Let(_) | Statement::Store { .. } => 0,
        })
        .sum()
}

/// How many loops there are, nested ones included.
pub(crate) fn loops(body: &[Statement]) -> usize {
    sum(body, |_| 1)
}

/// How many values the loops carry.
pub(crate) fn carried(body: &[Statement]) -> usize {
    sum(body, |l| l.carries.len())
}

/// How many bounds the loops have beside their extents.
pub(crate) fn bounds(body: &[Statement]) -> usize {
    sum(body, |l| l.low.len() + l.high.len())
}

/// Whether an axis is split into parts that other kernels combine.
pub(crate) fn is_split(tile: &TileProgram) -> bool {
    tile.kernels.len() > 1 && tile.axes.iter().any(|a| a.name.ends_with("_part"))
}

/// Elements of the largest buffer that is neither a parameter nor an output.
pub(crate) fn largest_workspace(tile: &TileProgram) -> u64 {
    tile.buffers
        .iter()
        .filter(|b| b.role == BufferRole::Workspace)
        .map(|b| b.axes().map(|a| tile.extent(a)).product())
        .max()
        .unwrap_or(0)
}
