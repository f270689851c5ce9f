//! Running values: what a loop over an axis has reduced so far, where a program asks for it at each coordinate.
//!
//! ```text
//! before   y[b] = Σ_{b'} select(b − b' − 1 >= 0, x[b'], 0)
//! after    y[b] = what a loop over b has added of x[b] before it comes to b
//! ```
//!
//! Then `x` is read once, and whatever else is made of it in the same iteration reads it with it. What is looked at is the condition of the
//! [`Select`](ir::MapOp::Select) alone: the difference of two coordinates, whose own one is in or out, and the neutral value where it does not hold. The
//! blocks of a kernel do not share such an axis: it is one loop, from its first coordinate to its last.

use super::bounds;
use super::inner::{Arena, Inner, InnerId, Lowering};
use super::reach;
use super::split::rewrite;
use ir::{Affine, Axis, AxisId, AxisSet, BufferId, MapOp, ReduceOp};
use std::collections::BTreeMap;

/// A reduction up to a coordinate, or before it.
struct Triangle {
    op: ReduceOp,
    value: InnerId,
    /// What is reduced over, the axis `other` among them, of which `axis` is the bound.
    over: AxisSet,
    axis: AxisId,
    other: AxisId,
    inclusive: bool,
}

/// The same values with the running ones among them as such; none where there are none.
pub(super) fn along<'a>(
    lowering: &Lowering<'a>,
    stores: &[(BufferId, InnerId)],
) -> Option<(Lowering<'a>, Vec<(BufferId, InnerId)>)> {
    let roots: Vec<InnerId> = stores.iter().map(|s| s.1).collect();
    let all = reach::order(&lowering.arena, roots.iter().copied()).into_iter();
    let mut triangles: Vec<(InnerId, Triangle)> = all
        .filter_map(|id| Some((id, triangle(&lowering.arena, id, &lowering.axes)?)))
        .collect();
    // What reduces less, all below it counted, is within a block of what reduces more: a tile holds it whole, or all would be read once for each of
    // its coordinates.
    let reduced = |triangle: &Triangle| {
        let arena = &lowering.arena;
        let below = reach::order(arena, [triangle.value]).into_iter();
        let below = below.filter_map(|id| Some(arena.get(id).reduction()?.1));
        let mut all = below.fold(triangle.over.clone(), |all, axes| all.union(axes));
        // One coordinate more or less is no other length.
        all.remove(triangle.other);
        all.insert(triangle.axis);
        let extents = all.iter().map(|a| lowering.axes[a.index()].extent);
        extents.fold(1u64, u64::saturating_mul)
    };
    let most = triangles
        .iter()
        .map(|(_, triangle)| reduced(triangle))
        .max()?;
    triangles.retain(|(_, triangle)| reduced(triangle) == most);
    let mut lowering = lowering.clone();
    let mut found = BTreeMap::new();
    for (id, triangle) in triangles {
        let Some(running) = running(&mut lowering.arena, triangle) else {
            continue;
        };
        found.insert(id, running);
        if let Some(origin) = lowering.origins.get(&id).cloned() {
            lowering.origins.entry(running).or_insert(origin);
        }
    }
    if found.is_empty() {
        return None;
    }
    let made = rewrite(&mut lowering.arena, &roots, &found);
    let stores = stores.iter().map(|(buffer, value)| (*buffer, made[value]));
    Some((lowering, stores.collect()))
}

fn triangle(arena: &Arena, id: InnerId, axes: &[Axis]) -> Option<Triangle> {
    let Inner::Reduce {
        op,
        arg,
        axes: over,
        bound,
    } = arena.get(id)
    else {
        return None;
    };
    let Inner::Map(MapOp::Select, args) = arena.get(*arg) else {
        return None;
    };
    let [condition, value, otherwise] = args[..] else {
        return None;
    };
    let neutral = matches!(arena.get(otherwise), Inner::Constant(c) if c.value() == op.neutral());
    let condition = bounds::affine(arena, condition)?;
    let [(x, a), (y, b)] = *condition.terms() else {
        return None;
    };
    let (axis, other) = match (x, y) {
        (1, -1) => (a, b),
        (-1, 1) => (b, a),
        _ => return None,
    };
    let inclusive = match condition.offset {
        0 => true,
        -1 => false,
        _ => return None,
    };
    let extent = |a: AxisId| axes[a.index()].extent;
    let fits = neutral
        && bound.is_empty()
        && over.contains(other)
        && over.is_subset(arena.axes(value))
        && !over.contains(axis)
        && !arena.axes(value).contains(axis)
        // What is reduced is there for all coordinates that are in front of another one.
        && (extent(axis) == extent(other) || !inclusive && extent(axis) == extent(other) + 1);
    fits.then(|| Triangle {
        op: *op,
        value,
        over: over.clone(),
        axis,
        other,
        inclusive,
    })
}

fn running(arena: &mut Arena, triangle: Triangle) -> Option<InnerId> {
    let Triangle {
        op,
        value,
        over: mut axes,
        axis,
        other,
        inclusive,
    } = triangle;
    let arg = renamed(arena, value, other, axis)?;
    axes.remove(other);
    axes.insert(axis);
    Some(arena.add(Inner::Running {
        op,
        arg,
        axes,
        axis,
        inclusive,
    }))
}

/// A value at the coordinate along `to` that it has along `from`. None where it reduces over either, or where an index overflows.
fn renamed(arena: &mut Arena, value: InnerId, from: AxisId, to: AxisId) -> Option<InnerId> {
    let mut made: BTreeMap<InnerId, InnerId> = BTreeMap::new();
    for id in reach::order(arena, [value]) {
        let mut inner = arena.get(id).clone();
        let moved = |a: &mut InnerId| *a = made[a];
        match &mut inner {
            Inner::Load { index, .. } => {
                for at in index {
                    *at = at.substitute(|a| (a == from).then(|| Affine::axis(to)))?;
                }
            }
            Inner::Iota(axis) if *axis == from => *axis = to,
            Inner::Constant(_) | Inner::Iota(_) => {}
            Inner::Map(_, args) => args.iter_mut().for_each(moved),
            Inner::Reduce { arg, axes, .. } | Inner::Running { arg, axes, .. } => {
                if axes.contains(from) || axes.contains(to) {
                    return None;
                }
                moved(arg);
            }
            Inner::Dot { a, b, axes, .. } => {
                if axes.contains(from) || axes.contains(to) {
                    return None;
                }
                moved(a);
                moved(b);
            }
        }
        made.insert(id, arena.add(inner));
    }
    made.get(&value).copied()
}
