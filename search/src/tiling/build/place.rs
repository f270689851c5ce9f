//! Places the values of a kernel in loops.
//!
//! A value lives in the outermost loop nest that has all the loop axes that it varies over. A reduction over a loop axis
//! becomes a carry of a loop at the level where its result lives. At each level the reductions still to be done are
//! given a *pass*,
//!
//! ```text
//! pass(A) = max over the reductions R that A uses of pass(R) + (0 if A can be corrected for R, else 1)
//! ```
//!
//! and those of one pass over one axis share a loop. Inside it, a later reduction sees the running value of an earlier
//! one, and its own running value is corrected before each tile's part is added.

mod finish;
mod late;
mod meetings;
mod passes;
mod running;
mod values;

pub(super) use passes::Passes;

use super::Corrections;
use super::bounds;
use super::inner::{Arena, Inner, InnerId, Lowering};
use finish::{finish, loop_order};
use ir::{
    AxisId, AxisSet, AxisTile, Bound, BufferId, Carry, Corner, Kernel, Loop, MapOp, Reject, Role,
    Statement, TileProgram, Value, ValueId,
};
use late::Running;
use std::collections::{BTreeMap, BTreeSet};

/// The reductions and the stores that share a loop.
type Shared = (Vec<InnerId>, Vec<(BufferId, InnerId)>);

/// One open loop, or the kernel's body.
#[derive(Default)]
struct Scope {
    axis: Option<AxisId>,
    body: Vec<Statement>,
    memo: BTreeMap<InnerId, ValueId>,
    /// What is made of values here: corrections of reductions that see the same values are one value.
    maps: BTreeMap<(MapOp, Vec<ValueId>), ValueId>,
    carries: Vec<Carry>,
}

/// A split axis while its first kernel is placed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) axis: AxisId,
    pub(super) part: AxisId,
    pub(super) chunk: i64,
}

/// The state of placing one kernel.
pub(super) struct Placer<'a, 'd> {
    pub(super) lowering: Lowering<'a>,
    tiles: &'d BTreeMap<AxisId, AxisTile>,
    corrections: &'d mut Corrections,
    /// The loop axes in the order in which nested loops open.
    rank: Vec<AxisId>,
    /// For each inner value, the loop axes that must be open where it is.
    loops: Vec<AxisSet>,
    values: Vec<Value>,
    depth: Vec<usize>,
    scopes: Vec<Scope>,
    names: BTreeMap<String, u32>,
    /// The axes of which a block has a part, at most one of each.
    pub(super) parts: Vec<Part>,
}

impl<'a, 'd> Placer<'a, 'd> {
    pub(super) fn new(
        lowering: Lowering<'a>,
        tiles: &'d BTreeMap<AxisId, AxisTile>,
        corrections: &'d mut Corrections,
    ) -> Self {
        Self {
            lowering,
            tiles,
            corrections,
            rank: Vec::new(),
            loops: Vec::new(),
            values: Vec::new(),
            depth: Vec::new(),
            scopes: vec![Scope::default()],
            names: BTreeMap::new(),
            parts: Vec::new(),
        }
    }

    /// The kernel that stores the values. [`Self::open`] comes first.
    pub(super) fn kernel(
        mut self,
        stores: &[(BufferId, InnerId)],
        tile: &TileProgram,
    ) -> Result<Kernel, Reject> {
        self.level(&[], stores, tile)?;
        let body = self.scopes.pop().map(|s| s.body).unwrap_or_default();
        Ok(finish(self.values, body, self.tiles, &self.parts, tile))
    }

    /// Decides the order of nested loops for these roots.
    pub(super) fn open(&mut self, roots: &[InnerId]) {
        let loop_axes: AxisSet = self
            .tiles
            .iter()
            .filter(|(_, t)| t.role == Role::Loop)
            .map(|(a, _)| *a)
            .collect();
        self.extend_loops(&loop_axes);
        self.rank = loop_order(&self.lowering.arena, roots, &loop_axes, &self.loops);
    }

    fn arena(&self) -> &Arena {
        &self.lowering.arena
    }

    /// Fills [`Self::loops`] for values that were added since.
    fn extend_loops(&mut self, loop_axes: &AxisSet) {
        for i in self.loops.len()..self.lowering.arena.len() {
            let id = InnerId(i as u32);
            let inner = self.lowering.arena.get(id);
            let from_args = inner
                .args()
                .iter()
                .fold(AxisSet::new(), |all, a| all.union(&self.loops[a.index()]));
            let loops = match inner.reduction() {
                Some((_, axes, bound)) => {
                    let done = axes.minus(bound);
                    from_args.minus(&done).union(bound)
                }
                None => match inner {
                    // It is there where its axis is, and what else it reduces over is done then.
                    Inner::Running { axes, axis, .. } => {
                        let along = [*axis].into_iter().collect();
                        from_args.minus(&axes.minus(&along)).union(&along)
                    }
                    Inner::Load { .. }
                    | Inner::Constant(_)
                    | Inner::Iota(_)
                    | Inner::Map(..)
                    | Inner::Reduce { .. }
                    | Inner::Dot { .. } => {
                        from_args.union(&self.lowering.arena.axes(id).intersection(loop_axes))
                    }
                },
            };
            self.loops.push(loops);
        }
    }

    fn loops_of(&mut self, id: InnerId) -> AxisSet {
        if self.loops.len() < self.lowering.arena.len() {
            let loop_axes = self.rank.iter().copied().collect();
            self.extend_loops(&loop_axes);
        }
        self.loops[id.index()].clone()
    }

    fn part_of(&self, axis: AxisId) -> Option<Part> {
        self.parts.iter().copied().find(|p| p.axis == axis)
    }

    fn opened(&self) -> AxisSet {
        self.scopes.iter().filter_map(|s| s.axis).collect()
    }

    fn known(&self, id: InnerId) -> Option<ValueId> {
        self.scopes
            .iter()
            .rev()
            .find_map(|s| s.memo.get(&id).copied())
    }

    /// The loop axes of a reduction that are neither bound nor done in the tile, in opening order.
    pub(super) fn unbound(&self, id: InnerId) -> Vec<AxisId> {
        match self.arena().get(id).reduction() {
            Some((_, axes, bound)) => self
                .rank
                .iter()
                .copied()
                .filter(|a| axes.contains(*a) && !bound.contains(*a))
                .collect(),
            None => Vec::new(),
        }
    }

    /// Makes everything available that the values in `wants` need at this level, and runs the stores.
    pub(super) fn level(
        &mut self,
        wants: &[InnerId],
        stores: &[(BufferId, InnerId)],
        tile: &TileProgram,
    ) -> Result<(), Reject> {
        let roots: Vec<InnerId> = wants
            .iter()
            .copied()
            .chain(stores.iter().map(|s| s.1))
            .collect();
        let passes = self.passes(&roots)?;
        let open = self.opened();
        for store in stores {
            self.loops_of(store.1);
        }
        // (pass, opening order) -> reductions and stores
        let mut loops: BTreeMap<(usize, usize), Shared> = BTreeMap::new();
        let rank = |axis: AxisId| self.rank.iter().position(|a| *a == axis).unwrap_or(0);
        for (id, axis, pass) in &passes.reductions {
            loops.entry((*pass, rank(*axis))).or_default().0.push(*id);
        }
        let all: BTreeSet<InnerId> = passes.reductions.iter().map(|r| r.0).collect();
        let mut here = Vec::new();
        for store in stores {
            let varies = self.loops[store.1.index()].minus(&open);
            let Some(axis) = self.rank.iter().copied().find(|a| varies.contains(*a)) else {
                here.push(*store);
                continue;
            };
            let mut uses = self.pending_below(store.1, &all);
            if all.contains(&store.1) {
                uses.insert(store.1);
            }
            let pass = passes
                .reductions
                .iter()
                .filter(|r| uses.contains(&r.0))
                .map(|r| r.2 + 1)
                .max()
                .unwrap_or(0);
            loops.entry((pass, rank(axis))).or_default().1.push(*store);
        }
        for ((_, rank), (reductions, inner)) in loops {
            self.run(self.rank[rank], &reductions, &passes, &inner, tile)?;
        }
        for (buffer, value) in here {
            let value = self.emit(value)?;
            self.scope().body.push(Statement::Store { buffer, value });
        }
        Ok(())
    }

    fn scope(&mut self) -> &mut Scope {
        let last = self.scopes.len() - 1;
        &mut self.scopes[last]
    }

    /// One loop over an axis, with everything of one pass.
    fn run(
        &mut self,
        axis: AxisId,
        reductions: &[InnerId],
        passes: &Passes,
        stores: &[(BufferId, InnerId)],
        tile: &TileProgram,
    ) -> Result<(), Reject> {
        let (low, high) = self.loop_bounds(axis, reductions, passes, stores, tile);
        self.scopes.push(Scope {
            axis: Some(axis),
            ..Scope::default()
        });
        let bodies: Vec<InnerId> = reductions.iter().map(|r| self.inside(*r, axis)).collect();
        // Nested loops for everything that sees no provisional value come first and share their passes.
        let plain: Vec<InnerId> = reductions
            .iter()
            .zip(&bodies)
            .filter(|(r, _)| !passes.fused.contains_key(r))
            .map(|(_, b)| *b)
            .collect();
        let roots = reductions.iter().chain(stores.iter().map(|s| &s.1));
        let kept = self.keep_running(axis, &roots.copied().collect::<Vec<_>>(), tile)?;
        self.level(&plain, stores, tile)?;
        let seen: BTreeSet<InnerId> = passes
            .fused
            .values()
            .flat_map(|f| f.provisional.iter().copied())
            .collect();
        let nonzero = passes.nonzero();
        let mut running = Running::default();
        for (r, body) in reductions.iter().zip(&bodies) {
            let fused = passes.fused.get(r);
            if fused.is_some() {
                self.level(&[*body], &[], tile)?;
            }
            let part = self.emit(*body)?;
            let (op, _, _) = self
                .arena()
                .get(*r)
                .reduction()
                .ok_or_else(|| Reject::Assignment("a carry that reduces nothing".to_owned()))?;
            let mut axes = self.arena().axes(*r).union(&self.values[part.index()].axes);
            if let Some(p) = self.part_of(axis) {
                axes.insert(p.part);
            }
            let name = self.name_of(*r);
            let phi = self.phi(op.neutral(), &axes, &name);
            let carried = match fused {
                None => phi,
                Some(f) => {
                    let c = self.running_correction(f, &running)?;
                    self.let_map(correct_with(op), vec![phi, c], "scaled")
                }
            };
            let next = self.let_map(op.combine(), vec![carried, part], &format!("{name}_next"));
            let result = self.carry(phi, next, &name);
            running.results.insert(*r, result);
            if seen.contains(r) {
                let values = match op {
                    ir::ReduceOp::Sum if nonzero.contains(r) => {
                        [self.nonzero(phi), self.nonzero(next)]
                    }
                    ir::ReduceOp::Sum | ir::ReduceOp::Product => [phi, next],
                    ir::ReduceOp::Max if passes.exact(*r) => [phi, next],
                    ir::ReduceOp::Max => match passes.late(*r, self.arena()) {
                        Some(f) => self.reference(*r, next, f, &mut running)?,
                        None => self.finites([phi, next]),
                    },
                };
                running.values.insert(*r, values);
                self.scope().memo.insert(*r, values[1]);
            }
        }
        // Everything that sees what was carried to this iteration is there.
        self.go_on(kept, tile)?;
        let Some(scope) = self.scopes.pop() else {
            return Ok(());
        };
        for (r, result) in &running.results {
            self.scope().memo.insert(*r, *result);
        }
        self.scope().body.push(Statement::Loop(Loop {
            axis,
            low,
            high,
            carries: scope.carries,
            body: scope.body,
        }));
        self.settle(passes, &running)
    }

    /// The bounds of a loop: those of a split part, then those outside which every tile is neutral.
    fn loop_bounds(
        &self,
        axis: AxisId,
        reductions: &[InnerId],
        passes: &Passes,
        stores: &[(BufferId, InnerId)],
        tile: &TileProgram,
    ) -> (Vec<Bound>, Vec<Bound>) {
        let (mut low, mut high) = (Vec::new(), Vec::new());
        if let Some(p) = self.part_of(axis) {
            let bound = |offset| Bound {
                terms: vec![(p.chunk, p.part, Corner::First)],
                entries: Vec::new(),
                offset,
                divisor: 1,
            };
            low.push(bound(0));
            high.push(bound(p.chunk));
        }
        let runs = |r: &InnerId| self.running_below(axis, &[*r]).is_empty();
        if stores.is_empty() && reductions.iter().all(runs) {
            let open = self.opened();
            let provisional: BTreeSet<InnerId> = passes
                .fused
                .values()
                .flat_map(|f| f.provisional.iter().copied())
                .collect();
            let interval = bounds::interval(
                (self.arena(), &tile.buffers, &self.lowering.whole),
                reductions,
                &provisional,
                &passes.nonzero(),
                axis,
                |a| {
                    let extent = tile.axes.get(a.index()).map_or(1, |x| x.extent) as i64;
                    let cornered = open.contains(a)
                        || self.tiles.get(&a).is_some_and(|t| t.role == Role::Grid);
                    let single = cornered && self.tiles.get(&a).is_some_and(|t| t.tile == 1);
                    bounds::Range {
                        extent,
                        cornered,
                        single,
                    }
                },
            );
            low.extend(interval.low);
            high.extend(interval.high);
        }
        (low, high)
    }

    /// The reduction as it is inside a loop over `axis`.
    fn inside(&mut self, r: InnerId, axis: AxisId) -> InnerId {
        let mut inner = self.arena().get(r).clone();
        match &mut inner {
            Inner::Reduce { bound, .. } | Inner::Dot { bound, .. } => {
                bound.insert(axis);
            }
            Inner::Load { .. }
            | Inner::Constant(_)
            | Inner::Iota(_)
            | Inner::Map(..)
            | Inner::Running { .. } => {}
        }
        self.lowering.arena.add(inner)
    }

    /// The value, computed where it belongs.
    pub(super) fn emit(&mut self, id: InnerId) -> Result<ValueId, Reject> {
        // Post-order without recursion: an expression may be deep.
        let mut stack = vec![id];
        while let Some(top) = stack.last().copied() {
            if self.known(top).is_some() {
                stack.pop();
                continue;
            }
            if !self.unbound(top).is_empty() {
                return Err(Reject::Assignment(
                    "a reduction is needed where its loop cannot run".to_owned(),
                ));
            }
            let missing: Vec<InnerId> = self
                .arena()
                .get(top)
                .args()
                .into_iter()
                .filter(|a| self.known(*a).is_none())
                .collect();
            if missing.is_empty() {
                self.compute(top)?;
                stack.pop();
            } else {
                stack.extend(missing);
            }
        }
        self.known(id)
            .ok_or_else(|| Reject::Assignment("a value was not placed".to_owned()))
    }
}

/// What applies a correction: `A·c` for a sum or a product, `A + c` for a maximum.
pub(super) fn correct_with(op: ir::ReduceOp) -> MapOp {
    match op {
        ir::ReduceOp::Sum | ir::ReduceOp::Product => MapOp::Mul,
        ir::ReduceOp::Max => MapOp::Add,
    }
}
