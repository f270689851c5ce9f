//! Questions about the inside of a kernel that are answered by walking it.

use super::AxisUse;
use super::buffer_axes;
use super::inner::{Arena, Inner, InnerId};
use ir::{AxisId, AxisSet, Buffer, BufferId, Dtype, MapOp};
use std::collections::{BTreeMap, BTreeSet};

/// Every value that the roots need, arguments before users.
pub(crate) fn order(arena: &Arena, roots: impl IntoIterator<Item = InnerId>) -> Vec<InnerId> {
    // Arguments are made before users, so ascending indices are a topological order.
    let mut seen = BTreeSet::new();
    let mut stack: Vec<InnerId> = roots.into_iter().collect();
    while let Some(id) = stack.pop() {
        if seen.insert(id) {
            stack.extend(arena.get(id).args());
        }
    }
    seen.into_iter().collect()
}

/// The value, made to vary over all of a buffer's axes: `x + 0·iota(a)` for the axes that it lacks.
pub(crate) fn spread(arena: &mut Arena, value: InnerId, buffer: &Buffer) -> InnerId {
    let missing = buffer_axes(buffer).minus(arena.axes(value));
    missing.iter().fold(value, |value, axis| {
        let zero = arena.constant(0.0);
        let iota = arena.add(Inner::Iota(axis));
        let zero = arena.map(MapOp::Mul, [zero, iota]);
        arena.map(MapOp::Add, [value, zero])
    })
}

/// What an assignment of axes wants to know about a kernel.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// The axes of every reduction, slowest first, and whether it is a contraction; users before arguments.
    pub(super) reduced: Vec<(Vec<AxisId>, bool)>,
    /// Rows, then columns, of every contraction; users before arguments.
    pub(super) sides: Vec<Vec<AxisId>>,
    /// Stored axes over which some contraction does not vary.
    pub(super) constant: BTreeSet<AxisId>,
    /// The rank in memory: 0 is fastest.
    pub(super) speed: BTreeMap<AxisId, usize>,
    /// Stored axes over which something does not vary that is loaded along the fastest axis.
    pub(super) shared: BTreeSet<AxisId>,
}

/// Looks at every reduction and every buffer of a kernel.
pub(super) fn facts(
    arena: &Arena,
    stores: &[(BufferId, InnerId)],
    buffers: &[Buffer],
    collapsed: &BTreeMap<AxisId, Vec<AxisId>>,
) -> Facts {
    let all = order(arena, stores.iter().map(|s| s.1));
    // The mean distance from the fastest dimension over the buffers that mention an axis.
    let mut votes: BTreeMap<AxisId, (f64, f64)> = BTreeMap::new();
    let mut vote = |order: &[AxisSet]| {
        for (i, axes) in order.iter().rev().enumerate() {
            for a in axes.iter() {
                let v = votes.entry(a).or_default();
                v.0 += i as f64;
                v.1 += 1.0;
            }
        }
    };
    for id in &all {
        if let Inner::Load { index, .. } = arena.get(*id) {
            vote(&index.iter().map(ir::Quotient::axes).collect::<Vec<_>>());
        }
    }
    for (buffer, value) in stores {
        let axes = buffers[buffer.index()].axes_stored(arena.axes(*value), collapsed);
        let axes = axes.into_iter();
        vote(&axes.map(|a| [a].into_iter().collect()).collect::<Vec<_>>());
    }
    let mut ranked: Vec<(AxisId, f64)> = votes.iter().map(|(a, v)| (*a, v.0 / v.1)).collect();
    ranked.sort_by(|x, y| x.1.total_cmp(&y.1).then(y.0.cmp(&x.0)));
    let speed: BTreeMap<AxisId, usize> = ranked
        .iter()
        .enumerate()
        .map(|(i, (a, _))| (*a, i))
        .collect();
    let slowest_first = |axes: &AxisSet| {
        let mut axes: Vec<AxisId> = axes.iter().collect();
        axes.sort_by_key(|a| std::cmp::Reverse(speed.get(a).copied().unwrap_or(usize::MAX)));
        axes
    };
    let stored = stores
        .iter()
        .fold(AxisSet::new(), |s, x| s.union(arena.axes(x.1)));
    let mut facts = Facts {
        reduced: Vec::new(),
        sides: Vec::new(),
        constant: BTreeSet::new(),
        speed: BTreeMap::new(),
        shared: BTreeSet::new(),
    };
    let fastest = ranked.first().map(|(a, _)| *a);
    for id in all.into_iter().rev() {
        match arena.get(id) {
            Inner::Reduce { axes, .. } => facts.reduced.push((slowest_first(axes), false)),
            Inner::Dot { a, b, axes, .. } => {
                facts.reduced.push((slowest_first(axes), true));
                let (x, y) = (arena.axes(*a), arena.axes(*b));
                facts.sides.push(slowest_first(&x.minus(y)));
                facts.sides.push(slowest_first(&y.minus(x)));
                facts.constant.extend(stored.minus(arena.axes(id)).iter());
            }
            Inner::Load { .. } => {
                let axes = arena.axes(id);
                if fastest.is_some_and(|a| axes.contains(a)) {
                    facts.shared.extend(stored.minus(axes).iter());
                }
            }
            Inner::Running { axes, axis, .. } => {
                let mut rest = axes.clone();
                rest.remove(*axis);
                if !rest.is_empty() {
                    facts.reduced.push((slowest_first(&rest), false));
                }
            }
            Inner::Constant(_) | Inner::Iota(_) | Inner::Map(..) => {}
        }
    }
    facts.speed = speed;
    facts
}

/// Whether a value is one of 16 bits that was read from memory, or computed from such alone.
pub(crate) fn is_narrow(arena: &Arena, value: InnerId, buffers: &[Buffer]) -> bool {
    let mut any = false;
    for id in order(arena, [value]) {
        match arena.get(id) {
            Inner::Load { buffer, index, .. } if !index.is_empty() => {
                match buffers[buffer.index()].dtype.held() {
                    Some(Dtype::F16 | Dtype::Bf16) => any = true,
                    Some(_) => return false,
                    None => {}
                }
            }
            Inner::Load { .. }
            | Inner::Constant(_)
            | Inner::Iota(_)
            | Inner::Map(..)
            | Inner::Reduce { .. }
            | Inner::Dot { .. }
            | Inner::Running { .. } => {}
        }
    }
    any
}

/// What the stores do with each axis.
pub(crate) fn uses(
    arena: &Arena,
    stores: &[(BufferId, InnerId)],
    buffers: &[Buffer],
) -> BTreeMap<AxisId, AxisUse> {
    let mut uses: BTreeMap<AxisId, AxisUse> = BTreeMap::new();
    let none = AxisUse {
        stored: false,
        stored_by_all: false,
        reduced: false,
        contracted: false,
        batch: false,
        free: false,
        narrow: false,
        along: false,
    };
    let mark = |uses: &mut BTreeMap<AxisId, AxisUse>, axes: &AxisSet, f: fn(&mut AxisUse)| {
        for a in axes.iter() {
            f(uses.entry(a).or_insert(none));
        }
    };
    for id in order(arena, stores.iter().map(|s| s.1)) {
        mark(&mut uses, arena.axes(id), |_| {});
        match arena.get(id) {
            Inner::Reduce { axes, .. } => mark(&mut uses, axes, |u| u.reduced = true),
            Inner::Dot { a, b, axes, .. } => {
                mark(&mut uses, axes, |u| {
                    u.reduced = true;
                    u.contracted = true;
                });
                let (x, y) = (arena.axes(*a), arena.axes(*b));
                let both = x.intersection(y);
                mark(&mut uses, &both.minus(axes), |u| u.batch = true);
                mark(&mut uses, &x.union(y).minus(&both), |u| u.free = true);
                if is_narrow(arena, *a, buffers) && is_narrow(arena, *b, buffers) {
                    mark(&mut uses, &x.union(y), |u| u.narrow = true);
                }
            }
            Inner::Running { axes, axis, .. } => {
                let along: AxisSet = [*axis].into_iter().collect();
                mark(&mut uses, &axes.minus(&along), |u| u.reduced = true);
                mark(&mut uses, &along, |u| u.along = true);
            }
            Inner::Load { .. } | Inner::Constant(_) | Inner::Iota(_) | Inner::Map(..) => {}
        }
    }
    for (_, value) in stores {
        mark(&mut uses, arena.axes(*value), |u| u.stored = true);
    }
    for (axis, used) in &mut uses {
        used.stored_by_all = stores.iter().all(|s| arena.axes(s.1).contains(*axis));
    }
    uses
}
