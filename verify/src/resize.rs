//! The same program or tile program at other extents.

use ir::{AxisId, Bound, Loop, Program, Role, Statement, TileProgram};
use std::collections::BTreeMap;

/// The program with other extents; axes that `extents` lacks keep theirs.
pub(crate) fn program_at(program: &Program, extents: &BTreeMap<AxisId, u64>) -> Program {
    let mut changed = program.clone();
    for (i, axis) in changed.axes.iter_mut().enumerate() {
        if let Some(extent) = extents.get(&AxisId(i as u32)) {
            axis.extent = *extent;
        }
    }
    changed
}

/// The tile program with other extents and tile sizes. Chunks of split axes follow: a loop whose bounds are
/// `C·part .. C·part + C` gets `C' = tile' · ⌈⌈extent' / tile'⌉ / parts'⌉`.
pub(crate) fn tile_program_at(
    tile: &TileProgram,
    extents: &BTreeMap<AxisId, u64>,
    tiles: impl Fn(usize, AxisId) -> Option<u64>,
) -> TileProgram {
    let mut changed = tile.clone();
    for (i, axis) in changed.axes.iter_mut().enumerate() {
        if let Some(extent) = extents.get(&AxisId(i as u32)) {
            axis.extent = *extent;
        }
    }
    let table: Vec<u64> = changed.axes.iter().map(|a| a.extent).collect();
    let extent = |a: AxisId| table.get(a.index()).copied().unwrap_or(1);
    for (number, kernel) in changed.kernels.iter_mut().enumerate() {
        for (axis, how) in &mut kernel.axes {
            how.tile = match how.role {
                Role::Whole => extent(*axis),
                Role::Grid | Role::Loop => tiles(number, *axis)
                    .unwrap_or(how.tile)
                    .clamp(1, extent(*axis).max(1)),
            };
        }
        let sizes = kernel.axes.clone();
        let chunk = |axis: AxisId, part: AxisId| {
            let size = sizes.get(&axis).map_or(1, |a| a.tile).max(1);
            size * extent(axis).div_ceil(size).div_ceil(extent(part).max(1))
        };
        rechunk(&mut kernel.body, &chunk);
    }
    changed
}

/// The axis and the size of the parts, when a loop runs over one part of its axis.
pub(crate) fn split_of(inner: &Loop) -> Option<(AxisId, i64)> {
    inner.low.iter().find_map(|low| {
        let (chunk, part) = single_term(low)?;
        let beside = |high: &Bound| {
            single_term(high) == Some((chunk, part)) && high.offset == low.offset + chunk
        };
        inner.high.iter().any(beside).then_some((part, chunk))
    })
}

fn single_term(bound: &Bound) -> Option<(i64, AxisId)> {
    match bound.terms.as_slice() {
        [(chunk, part, ir::Corner::First)] if bound.divisor == 1 => Some((*chunk, *part)),
        _ => None,
    }
}

fn rechunk(body: &mut [Statement], chunk: &impl Fn(AxisId, AxisId) -> u64) {
    for statement in body {
        match statement {
            Statement::Let(_) | Statement::Store { .. } => {}
            Statement::Loop(inner) => {
                if let Some((part, old)) = split_of(inner) {
                    let new = chunk(inner.axis, part) as i64;
                    for bound in inner.low.iter_mut().chain(&mut inner.high) {
                        if single_term(bound) == Some((old, part)) {
                            let parts = bound.offset / old;
                            bound.terms[0].0 = new;
                            bound.offset = parts * new;
                        }
                    }
                }
                rechunk(&mut inner.body, chunk);
            }
        }
    }
}
