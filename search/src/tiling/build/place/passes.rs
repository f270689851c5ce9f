//! Which reductions share a loop, and in which order loops of one axis follow each other.

use super::Placer;
use crate::tiling::build::fuse::{self, Fused};
use crate::tiling::build::inner::{Arena, Inner, InnerId};
use ir::{AxisId, ReduceOp, Reject};
use std::collections::{BTreeMap, BTreeSet};

/// What is to be done at a level.
pub(in crate::tiling::build) struct Passes {
    /// The pending reductions, argument before user, each with its loop axis and its pass.
    pub(in crate::tiling::build) reductions: Vec<(InnerId, AxisId, usize)>,
    /// Those that share a loop with reductions that they use.
    pub(in crate::tiling::build) fused: BTreeMap<InnerId, Fused>,
    /// The pending reductions that each depends on.
    uses: BTreeMap<InnerId, BTreeSet<InnerId>>,
}

impl Passes {
    /// The sums that some reduction wants to be 1 while they are 0.
    pub(in crate::tiling::build) fn nonzero(&self) -> BTreeSet<InnerId> {
        self.fused
            .values()
            .flat_map(|f| f.nonzero.iter().copied())
            .collect()
    }

    /// Whether later reductions see a running value as it is, whatever it is.
    pub(in crate::tiling::build) fn exact(&self, r: InnerId) -> bool {
        let mut users = self.fused.values();
        users.any(|f| f.correction.exact && f.provisional.contains(&r))
    }

    /// Whether everything that sees the running values of a reduction can see them in the same way.
    fn agrees(&self, other: &Fused) -> bool {
        let shares = |f: &&Fused| f.provisional.iter().any(|r| other.provisional.contains(r));
        let mut users = self.fused.values().filter(shares);
        users.all(|f| f.correction.exact == other.correction.exact)
    }

    /// Of a running maximum that need not be raised at once (see [`super::late`]), the product that is corrected for it.
    pub(super) fn late(&self, r: InnerId, arena: &Arena) -> Option<&Fused> {
        let seen = |a: &InnerId| self.fused.values().any(|f| f.provisional.contains(a));
        let users: Vec<(&InnerId, &Fused)> = self
            .fused
            .iter()
            .filter(|(_, f)| f.provisional.contains(&r))
            .collect();
        let alone = users.iter().all(|(a, f)| {
            f.provisional == [r]
                && f.correction.op == ReduceOp::Sum
                && !f.correction.exact
                && !seen(a)
        });
        let product = users
            .iter()
            .find(|(a, _)| matches!(arena.get(**a), Inner::Dot { .. }));
        product
            .filter(|_| alone && !self.fused.contains_key(&r))
            .map(|(_, f)| *f)
    }
}

impl Placer<'_, '_> {
    /// The reductions that are to be done at this level for the roots, in passes.
    pub(in crate::tiling::build) fn passes(&mut self, roots: &[InnerId]) -> Result<Passes, Reject> {
        let open = self.opened();
        let mut seen = BTreeSet::new();
        let mut stack = roots.to_vec();
        let mut pending = BTreeSet::new();
        while let Some(id) = stack.pop() {
            if self.known(id).is_some() || !seen.insert(id) {
                continue;
            }
            if !self.unbound(id).is_empty() && self.loops_of(id).is_subset(&open) {
                pending.insert(id);
            }
            stack.extend(self.arena().get(id).args());
        }
        let mut passes = Passes {
            reductions: Vec::new(),
            fused: BTreeMap::new(),
            uses: BTreeMap::new(),
        };
        for id in pending.iter().copied() {
            let axis = self.unbound(id)[0];
            if open.contains(axis) {
                return Err(Reject::Assignment(format!(
                    "a loop over {} inside itself",
                    self.lowering.axes[axis.index()].name
                )));
            }
            let uses = self.pending_below(id, &pending);
            let pass_of = |r: InnerId| passes.reductions.iter().find(|x| x.0 == r).copied();
            let used: Vec<(InnerId, AxisId, usize)> =
                uses.iter().filter_map(|r| pass_of(*r)).collect();
            let latest = used.iter().map(|u| u.2).max();
            let pass = match latest {
                None => 0,
                Some(latest) => {
                    let together: Vec<InnerId> =
                        used.iter().filter(|u| u.2 == latest).map(|u| u.0).collect();
                    let single = |r: InnerId| self.unbound(r) == [axis];
                    let fused = if used.iter().all(|u| u.2 < latest || u.1 == axis)
                        && single(id)
                        && together.iter().all(|r| single(*r))
                    {
                        fuse::fuse(&mut self.lowering, id, &together, self.corrections)
                    } else {
                        None
                    };
                    match fused.filter(|fused| passes.agrees(fused)) {
                        Some(fused) => {
                            passes.fused.insert(id, fused);
                            latest
                        }
                        None => latest + 1,
                    }
                }
            };
            passes.reductions.push((id, axis, pass));
            passes.uses.insert(id, uses);
        }
        Ok(passes)
    }

    /// The pending reductions that a value depends on, itself excluded.
    pub(super) fn pending_below(
        &self,
        id: InnerId,
        pending: &BTreeSet<InnerId>,
    ) -> BTreeSet<InnerId> {
        let mut seen = BTreeSet::new();
        let mut stack = self.arena().get(id).args();
        let mut found = BTreeSet::new();
        while let Some(id) = stack.pop() {
            if self.known(id).is_some() || !seen.insert(id) {
                continue;
            }
            if pending.contains(&id) {
                found.insert(id);
            }
            stack.extend(self.arena().get(id).args());
        }
        found
    }
}
