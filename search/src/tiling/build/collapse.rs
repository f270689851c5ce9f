//! Collapsed axes: axes that lie side by side in all that a kernel reads and stores, and that it treats alike, are one.
//!
//! ```text
//! before   y[b, t, n] = Σ_k x[b, t, k] · w[n, k]
//! after    y[b_t, n]  = Σ_k x[b_t, k] · w[n, k]          b_t = (b t)
//! ```
//!
//! Tiles then go over the end of the faster one: 32 · 197 rows are 50 tiles of 128, and not 32 · 2. What other kernels do with the same buffers does not
//! matter, since they lie in memory as before. Looked at are sides and sums of contractions, whose tiles are long; where the fastest of the axes is a
//! whole number of the longest tiles there is nothing to win.

use super::inner::{Arena, Inner, InnerId, Lowering};
use super::reach;
use ir::{Affine, Axis, AxisId, AxisSet, Buffer, BufferId, Quotient};
use std::collections::{BTreeMap, BTreeSet};

/// Tiles of contractions are no longer than this.
const LONGEST: u64 = 256;
/// Collapsed axes are no longer than this: coordinates have 32 bits.
const MOST: u64 = 1 << 31;

/// The collapsed axes of all kernels: which stand for what.
#[derive(Clone, Debug, Default)]
pub(super) struct Collapsed {
    pub(super) axes: BTreeMap<AxisId, Vec<AxisId>>,
}

impl Collapsed {
    /// The axis that stands for these; a new one where there is none yet.
    fn of(&mut self, members: &[AxisId], axes: &mut Vec<Axis>) -> AxisId {
        let mut known = self.axes.iter();
        if let Some((axis, _)) = known.find(|(_, m)| m.as_slice() == members) {
            return *axis;
        }
        let names: Vec<&str> = (members.iter().map(|m| axes[m.index()].name.as_str())).collect();
        let name = super::unused_axis(axes, &names.join("_"));
        let extents = members.iter().map(|m| axes[m.index()].extent);
        let extent = extents.product();
        let axis = AxisId(axes.len() as u32);
        axes.push(Axis { name, extent });
        self.axes.insert(axis, members.to_vec());
        axis
    }
}

/// The same kernel with collapsed axes wherever it has contractions that want longer ones.
pub(super) fn collapse(
    lowering: &mut Lowering<'_>,
    stores: &mut [(BufferId, InnerId)],
    buffers: &[Buffer],
    axes: &mut Vec<Axis>,
    collapsed: &mut Collapsed,
) {
    let all = reach::order(&lowering.arena, stores.iter().map(|s| s.1));
    let kernel = Kernel {
        arena: &lowering.arena,
        all: &all,
        stores,
        buffers,
        axes,
        whole: &lowering.whole,
    };
    let chains = kernel.chains();
    if chains.is_empty() {
        return;
    }
    let chains: Vec<(AxisId, Vec<AxisId>)> = chains
        .into_iter()
        .map(|members| (collapsed.of(&members, axes), members))
        .collect();
    lowering.axes.clone_from(axes);
    let made = rewritten(lowering, &all, &chains);
    for (_, value) in stores {
        *value = made[value];
    }
}

/// Of some axes those, slowest first, of which each lies beside the next one, and that are worth to be one.
pub(super) fn chains(
    axes: &AxisSet,
    lie_together: impl Fn(AxisId, AxisId) -> bool,
    extent: impl Fn(AxisId) -> u64,
) -> Vec<Vec<AxisId>> {
    let mut next: BTreeMap<AxisId, AxisId> = BTreeMap::new();
    for a in axes.iter() {
        let mut followers = axes.iter().filter(|b| a != *b && lie_together(a, *b));
        next.extend(followers.next().map(|b| (a, b)));
    }
    let later: BTreeSet<AxisId> = next.values().copied().collect();
    let firsts = next.keys().filter(|a| !later.contains(a));
    let chains = firsts.map(|first| {
        let chain = std::iter::successors(Some(*first), |a| next.get(a).copied());
        chain.collect::<Vec<AxisId>>()
    });
    let is_worth = |chain: &Vec<AxisId>| {
        let mut extents = chain.iter().map(|a| extent(*a));
        let fastest = chain.last().map_or(1, |a| extent(*a));
        let most = extents.try_fold(1u64, |n, e| n.checked_mul(e));
        !fastest.is_multiple_of(LONGEST) && most.is_some_and(|n| n < MOST)
    };
    chains.filter(is_worth).collect()
}

/// A kernel's inside, and what it reads and stores.
struct Kernel<'a> {
    arena: &'a Arena,
    /// Its values, arguments before users.
    all: &'a [InnerId],
    stores: &'a [(BufferId, InnerId)],
    buffers: &'a [Buffer],
    axes: &'a [Axis],
    /// The buffers that bounds may read, along their own axes.
    whole: &'a BTreeSet<BufferId>,
}

impl Kernel<'_> {
    fn extent(&self, axis: AxisId) -> u64 {
        self.axes[axis.index()].extent
    }

    /// The axes that can be one and that want to be, slowest first.
    fn chains(&self) -> Vec<Vec<AxisId>> {
        let lie_together = |a, b| self.lie_together(a, b);
        chains(&self.wanted(), lie_together, |a| self.extent(a))
    }

    /// The axes of which there are rows, columns or sums of contractions, and which nothing else tells apart; none where what is reduced is corrected, or
    /// reduced again, over the same axes: that is done by the axes of the expression.
    fn wanted(&self) -> AxisSet {
        let mut wanted = AxisSet::new();
        let mut unwanted = AxisSet::new();
        let mut below: BTreeMap<InnerId, AxisSet> = BTreeMap::new();
        for id in self.all {
            let inner = self.arena.get(*id);
            let args = inner.args();
            let reduced = args.iter().filter_map(|a| below.get(a));
            let mut reduced = reduced.fold(AxisSet::new(), |all, r| all.union(r));
            if let Some((_, axes, _)) = inner.reduction() {
                if axes.intersects(&reduced) {
                    return AxisSet::new();
                }
                reduced = reduced.union(axes);
            }
            below.insert(*id, reduced);
            match inner {
                Inner::Dot { a, b, axes, .. } => {
                    let (x, y) = (self.arena.axes(*a), self.arena.axes(*b));
                    wanted = wanted.union(x).union(y);
                    unwanted = unwanted.union(&x.intersection(y).minus(axes));
                }
                Inner::Iota(axis) => {
                    unwanted.insert(*axis);
                }
                Inner::Load { buffer, .. } if self.whole.contains(buffer) => {
                    unwanted = unwanted.union(self.arena.axes(*id));
                }
                Inner::Running { .. } => return AxisSet::new(),
                Inner::Load { .. } | Inner::Constant(_) | Inner::Map(..) | Inner::Reduce { .. } => {
                }
            }
        }
        let several = wanted.iter().filter(|a| self.extent(*a) > 1);
        several.filter(|a| !unwanted.contains(*a)).collect()
    }

    /// Whether all that varies over one of two axes, or is reduced over it, does so over the other, and all that is loaded or stored has the second one
    /// next to the first.
    fn lie_together(&self, a: AxisId, b: AxisId) -> bool {
        let alike = |axes: &AxisSet| axes.contains(a) == axes.contains(b);
        let own = |axis: AxisId, at: &Quotient, place: Option<AxisId>| {
            at.as_axis() == Some(axis) && place.is_some_and(|p| self.extent(p) == self.extent(axis))
        };
        self.all.iter().all(|id| {
            let inner = self.arena.get(*id);
            let reduced = inner.reduction().map(|r| r.1);
            let loaded = match inner {
                Inner::Load { buffer, index, .. } if self.arena.axes(*id).contains(a) => {
                    let mut places = self.buffers[buffer.index()].axes();
                    let mut functions = index.iter();
                    let mut met = false;
                    // Nothing else of the index may mention either.
                    let mut left = true;
                    while let Some(at) = functions.next() {
                        let place = places.next();
                        if !met && own(a, at, place) {
                            let (at, place) = (functions.next(), places.next());
                            met = at.is_some_and(|at| own(b, at, place));
                            left &= met;
                        } else {
                            left &= !at.axes().contains(a) && !at.axes().contains(b);
                        }
                    }
                    met && left
                }
                Inner::Load { .. }
                | Inner::Constant(_)
                | Inner::Iota(_)
                | Inner::Map(..)
                | Inner::Reduce { .. }
                | Inner::Dot { .. }
                | Inner::Running { .. } => true,
            };
            alike(self.arena.axes(*id)) && reduced.is_none_or(alike) && loaded
        }) && self.stores.iter().all(|(buffer, _)| {
            let order: Vec<AxisId> = self.buffers[buffer.index()].axes().collect();
            let at = |axis: AxisId| order.iter().position(|o| *o == axis);
            match (at(a), at(b)) {
                (Some(a), Some(b)) => b == a + 1,
                (None, None) => true,
                (_, _) => false,
            }
        })
    }
}

/// The values with collapsed axes, by what they are of.
fn rewritten(
    lowering: &mut Lowering<'_>,
    all: &[InnerId],
    chains: &[(AxisId, Vec<AxisId>)],
) -> BTreeMap<InnerId, InnerId> {
    let moved = |axes: &AxisSet| -> AxisSet {
        let mut axes = axes.clone();
        for (collapsed, members) in chains {
            if members.iter().any(|m| axes.contains(*m)) {
                axes = axes.iter().filter(|a| !members.contains(a)).collect();
                axes.insert(*collapsed);
            }
        }
        axes
    };
    let mut made: BTreeMap<InnerId, InnerId> = BTreeMap::new();
    for id in all {
        let mut inner = lowering.arena.get(*id).clone();
        let to = |a: &mut InnerId| *a = made[a];
        match &mut inner {
            Inner::Load { index, .. } => {
                let mut along: Vec<Quotient> = Vec::with_capacity(index.len());
                for at in index.drain(..) {
                    let chain = at.as_axis().and_then(|a| {
                        let of = |m: &&(AxisId, Vec<AxisId>)| m.1.contains(&a);
                        Some((a, chains.iter().find(of)?))
                    });
                    match chain {
                        Some((a, (collapsed, members))) if members.first() == Some(&a) => {
                            along.push(Affine::axis(*collapsed).into());
                        }
                        Some(_) => {}
                        None => along.push(at),
                    }
                }
                *index = along;
            }
            Inner::Constant(_) | Inner::Iota(_) => {}
            Inner::Map(_, args) => args.iter_mut().for_each(to),
            Inner::Reduce {
                arg, axes, bound, ..
            } => {
                to(arg);
                (*axes, *bound) = (moved(axes), moved(bound));
            }
            Inner::Dot { a, b, axes, bound } => {
                to(a);
                to(b);
                (*axes, *bound) = (moved(axes), moved(bound));
            }
            Inner::Running { arg, axes, .. } => {
                to(arg);
                *axes = moved(axes);
            }
        }
        let new = lowering.arena.add(inner);
        if let Some(origin) = lowering.origins.get(id).cloned() {
            lowering.origins.entry(new).or_insert(origin);
        }
        made.insert(*id, new);
    }
    made
}
