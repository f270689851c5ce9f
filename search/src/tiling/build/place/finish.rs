//! The order of nested loops before values are placed, and the kernel after that.

use super::Part;
use super::meetings::meet_once;
use crate::tiling::build::inner::{Arena, InnerId};
use crate::tiling::build::reach;
use ir::{AxisId, AxisSet, AxisTile, Kernel, Role, Statement, TileOp, TileProgram, Value, stores};
use std::collections::{BTreeMap, BTreeSet};

/// The order in which nested loops open: an axis over which a reduction varies comes before the axis that it reduces.
pub(super) fn loop_order(
    arena: &Arena,
    roots: &[InnerId],
    loop_axes: &AxisSet,
    loops: &[AxisSet],
) -> Vec<AxisId> {
    let mut before: BTreeSet<(AxisId, AxisId)> = BTreeSet::new();
    for id in reach::order(arena, roots.iter().copied()) {
        if let Some((_, axes, _)) = arena.get(id).reduction() {
            for outer in loops[id.index()].iter() {
                for inner in axes.intersection(loop_axes).iter() {
                    before.insert((outer, inner));
                }
            }
        }
    }
    let mut left: Vec<AxisId> = loop_axes.iter().collect();
    let mut order = Vec::new();
    while !left.is_empty() {
        // The first axis that no other remaining one must precede; in a cycle, simply the first.
        let at = left
            .iter()
            .position(|a| left.iter().all(|b| b == a || !before.contains(&(*b, *a))))
            .unwrap_or(0);
        order.push(left.remove(at));
    }
    order
}

/// The kernel with exactly the axes that it mentions.
pub(super) fn finish(
    values: Vec<Value>,
    body: Vec<Statement>,
    tiles: &BTreeMap<AxisId, AxisTile>,
    parts: &[Part],
    tile: &TileProgram,
) -> Kernel {
    let mut mentioned = AxisSet::new();
    let mut add = |axes: &AxisSet| mentioned = mentioned.union(axes);
    for value in &values {
        add(&value.axes);
        match &value.op {
            TileOp::Reduce { axes, .. } | TileOp::Contract { axes, .. } => add(axes),
            TileOp::Load { .. }
            | TileOp::Constant(_)
            | TileOp::Iota(_)
            | TileOp::Map(..)
            | TileOp::Scan { .. }
            | TileOp::Phi { .. }
            | TileOp::Final { .. } => {}
        }
    }
    let mut order = Vec::new();
    for (buffer, value) in stores(&body) {
        for axis in tile.axes_stored(buffer, &values[value.index()].axes) {
            if !order.contains(&axis) {
                order.push(axis);
            }
        }
    }
    let mut axes: BTreeMap<AxisId, AxisTile> = mentioned
        .iter()
        .filter_map(|a| tiles.get(&a).map(|t| (a, *t)))
        .collect();
    for p in parts {
        let one = AxisTile {
            role: Role::Grid,
            tile: 1,
        };
        axes.insert(p.part, one);
        if !order.contains(&p.part) {
            order.push(p.part);
        }
    }
    order.retain(|a| axes.get(a).is_some_and(|t| t.role == Role::Grid));
    let mut kernel = Kernel {
        axes,
        grid: order,
        values,
        body,
    };
    meet_once(&mut kernel);
    kernel
}
