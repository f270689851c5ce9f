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

use super::fuse::{self, Fused};
use super::inner::{Arena, Inner, InnerId, Lowering};
use super::{Corrections, reach};
use crate::bounds;
use crate::correction::{Correction, Term};
use ir::{
    AxisId, AxisSet, AxisTile, Bound, BufferId, Carry, Corner, Kernel, Loop, MapOp, Reject, Role,
    Statement, TileOp, TileProgram, Value, ValueId,
};
use std::collections::{BTreeMap, BTreeSet};

/// The reductions and the stores that share a loop.
type Shared = (Vec<InnerId>, Vec<(BufferId, InnerId)>);

/// One open loop, or the kernel's body.
#[derive(Default)]
struct Scope {
    axis: Option<AxisId>,
    body: Vec<Statement>,
    memo: BTreeMap<InnerId, ValueId>,
    carries: Vec<Carry>,
}

/// A split axis while its first kernel is placed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) axis: AxisId,
    pub(super) part: AxisId,
    pub(super) chunk: i64,
}

/// What is to be done at a level.
pub(super) struct Passes {
    /// The pending reductions, argument before user, each with its loop axis and its pass.
    pub(super) reductions: Vec<(InnerId, AxisId, usize)>,
    /// Those that share a loop with reductions that they use.
    pub(super) fused: BTreeMap<InnerId, Fused>,
    /// The pending reductions that each depends on.
    uses: BTreeMap<InnerId, BTreeSet<InnerId>>,
}

impl Passes {
    /// The sums that some reduction wants to be 1 while they are 0.
    pub(super) fn nonzero(&self) -> BTreeSet<InnerId> {
        self.fused
            .values()
            .flat_map(|f| f.nonzero.iter().copied())
            .collect()
    }
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
    pub(super) part: Option<Part>,
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
            part: None,
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
        Ok(finish(self.values, body, self.tiles, self.part, tile))
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
                None => from_args.union(&self.lowering.arena.axes(id).intersection(loop_axes)),
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

    /// The reductions that are to be done at this level for the roots, in passes.
    pub(super) fn passes(&mut self, roots: &[InnerId]) -> Result<Passes, Reject> {
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
                    match fused {
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
    fn pending_below(&self, id: InnerId, pending: &BTreeSet<InnerId>) -> BTreeSet<InnerId> {
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
        self.level(&plain, stores, tile)?;
        let seen: BTreeSet<InnerId> = passes
            .fused
            .values()
            .flat_map(|f| f.provisional.iter().copied())
            .collect();
        let nonzero = passes.nonzero();
        let mut old = BTreeMap::new();
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
            if let Some(p) = self.part.filter(|p| p.axis == axis) {
                axes.insert(p.part);
            }
            let depth = self.scopes.len() - 1;
            let init = op.neutral();
            let name = self.name_of(*r);
            let phi = self.push_value(
                TileOp::Phi {
                    init,
                    axes: axes.clone(),
                },
                axes.clone(),
                &name,
                depth,
            );
            let carried = match fused {
                None => phi,
                Some(f) => {
                    let c = self.correction(f, &old)?;
                    self.let_map(correct_with(op), vec![phi, c], "scaled")
                }
            };
            let next = self.let_map(op.combine(), vec![carried, part], &format!("{name}_next"));
            if seen.contains(r) {
                let (before, now) = match op {
                    ir::ReduceOp::Sum if nonzero.contains(r) => {
                        (self.nonzero(phi), self.nonzero(next))
                    }
                    ir::ReduceOp::Sum => (phi, next),
                    ir::ReduceOp::Max => {
                        let zero = self.let_constant(0.0);
                        let now = self.finite(next, zero);
                        (self.finite(phi, now), now)
                    }
                };
                old.insert(*r, before);
                self.scope().memo.insert(*r, now);
            }
            let result = self.push_value(
                TileOp::Final { phi },
                axes,
                &format!("{name}_all"),
                depth - 1,
            );
            self.scope().carries.push(Carry { phi, next, result });
        }
        let Some(scope) = self.scopes.pop() else {
            return Ok(());
        };
        for (r, carry) in reductions.iter().zip(&scope.carries) {
            let result = carry.result;
            self.scope().memo.insert(*r, result);
        }
        self.scope().body.push(Statement::Loop(Loop {
            axis,
            low,
            high,
            carries: scope.carries,
            body: scope.body,
        }));
        Ok(())
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
        if let Some(p) = self.part.filter(|p| p.axis == axis) {
            let bound = |offset| Bound {
                terms: vec![(p.chunk, p.part, Corner::First)],
                offset,
                divisor: 1,
            };
            low.push(bound(0));
            high.push(bound(p.chunk));
        }
        if stores.is_empty() {
            let open = self.opened();
            let provisional: BTreeSet<InnerId> = passes
                .fused
                .values()
                .flat_map(|f| f.provisional.iter().copied())
                .collect();
            let interval = bounds::interval(
                self.arena(),
                reductions,
                &provisional,
                &passes.nonzero(),
                axis,
                |a| {
                    let extent = tile.axes.get(a.index()).map_or(1, |x| x.extent) as i64;
                    let cornered = open.contains(a)
                        || self.tiles.get(&a).is_some_and(|t| t.role == Role::Grid);
                    bounds::Range { extent, cornered }
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
            Inner::Load { .. } | Inner::Constant(_) | Inner::Iota(_) | Inner::Map(..) => {}
        }
        self.lowering.arena.add(inner)
    }

    /// `x` where it is finite, else `other`: `select(0·x, x, other)`, because `0·∞` is not a number and hence not ≥ 0.
    fn finite(&mut self, x: ValueId, other: ValueId) -> ValueId {
        let zero = self.let_constant(0.0);
        let test = self.let_map(MapOp::Mul, vec![zero, x], "test");
        self.let_map(MapOp::Select, vec![test, x, other], "finite")
    }

    /// `x` where it is not zero, else 1: `select(−max(x, −x), 1, x)`.
    fn nonzero(&mut self, x: ValueId) -> ValueId {
        let (one, minus) = (self.let_constant(1.0), self.let_constant(-1.0));
        let negative = self.let_map(MapOp::Mul, vec![minus, x], "minus");
        let size = self.let_map(MapOp::Max, vec![x, negative], "size");
        let test = self.let_map(MapOp::Mul, vec![minus, size], "test");
        self.let_map(MapOp::Select, vec![test, one, x], "nonzero")
    }

    /// `c(old, new)` for the running values of this loop.
    fn correction(
        &mut self,
        fused: &Fused,
        old: &BTreeMap<InnerId, ValueId>,
    ) -> Result<ValueId, Reject> {
        let Correction { terms, root, .. } = &fused.correction;
        let unsound =
            || Reject::Assignment("a correction speaks of values that it lacks".to_owned());
        let mut made: Vec<ValueId> = Vec::with_capacity(terms.len());
        for term in terms {
            let value = match term {
                Term::Old(k) => *fused
                    .provisional
                    .get(*k)
                    .and_then(|r| old.get(r))
                    .ok_or_else(unsound)?,
                Term::New(k) => {
                    let r = fused.provisional.get(*k).ok_or_else(unsound)?;
                    self.known(*r).ok_or_else(unsound)?
                }
                Term::Leaf(node) => {
                    let leaf = self.lowering.lower(*node, &fused.by)?;
                    self.loops_of(leaf);
                    self.emit(leaf)?
                }
                Term::Constant(c) => self.let_constant(*c),
                Term::Map(op, args) => {
                    let args = args
                        .iter()
                        .map(|t| made.get(t.0 as usize).copied().ok_or_else(unsound))
                        .collect::<Result<Vec<_>, _>>()?;
                    self.let_map(*op, args, "c")
                }
            };
            made.push(value);
        }
        made.get(root.0 as usize).copied().ok_or_else(unsound)
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

    fn compute(&mut self, id: InnerId) -> Result<(), Reject> {
        let inner = self.arena().get(id).clone();
        let args: Vec<ValueId> = inner.args().iter().filter_map(|a| self.known(*a)).collect();
        let mut depth = args
            .iter()
            .map(|v| self.depth[v.index()])
            .max()
            .unwrap_or(0);
        let mut axes: AxisSet = args.iter().fold(AxisSet::new(), |all, v| {
            all.union(&self.values[v.index()].axes)
        });
        let name = self.name_of(id);
        let op = match inner {
            Inner::Load {
                buffer,
                index,
                fill,
            } => {
                axes = self.arena().axes(id).clone();
                TileOp::Load {
                    buffer,
                    index,
                    fill: fill.value(),
                }
            }
            Inner::Constant(c) => TileOp::Constant(c.value()),
            Inner::Iota(axis) => {
                axes.insert(axis);
                TileOp::Iota(axis)
            }
            Inner::Map(op, _) => TileOp::Map(op, args),
            Inner::Reduce { op, axes: over, .. } => {
                axes = axes.minus(&over);
                TileOp::Reduce {
                    op,
                    value: args[0],
                    axes: over,
                }
            }
            Inner::Dot { axes: over, .. } => {
                axes = axes.minus(&over);
                TileOp::Contract {
                    a: args[0],
                    b: args[1],
                    axes: over,
                }
            }
        };
        for a in self.loops_of(id).iter() {
            let at = self
                .scopes
                .iter()
                .position(|s| s.axis == Some(a))
                .ok_or_else(|| {
                    Reject::Assignment(format!(
                        "a value varies over {} outside its loop",
                        self.lowering.axes[a.index()].name
                    ))
                })?;
            depth = depth.max(at);
        }
        let value = self.push_value(op, axes, &name, depth);
        self.scopes[depth].body.push(Statement::Let(value));
        self.scopes[depth].memo.insert(id, value);
        Ok(())
    }

    fn push_value(&mut self, op: TileOp, axes: AxisSet, name: &str, depth: usize) -> ValueId {
        let id = ValueId(self.values.len() as u32);
        let count = self.names.entry(name.to_owned()).or_insert(0);
        *count += 1;
        // A digit at the end of a base name would let two names meet: `x1` and the second `x`.
        let name = match (*count, name.ends_with(|c: char| c.is_ascii_digit())) {
            (1, _) => name.to_owned(),
            (n, true) => format!("{name}_{n}"),
            (n, false) => format!("{name}{n}"),
        };
        self.values.push(Value { op, axes, name });
        self.depth.push(depth);
        id
    }

    fn let_map(&mut self, op: MapOp, args: Vec<ValueId>, name: &str) -> ValueId {
        let axes = args.iter().fold(AxisSet::new(), |all, v| {
            all.union(&self.values[v.index()].axes)
        });
        let depth = args
            .iter()
            .map(|v| self.depth[v.index()])
            .max()
            .unwrap_or(0);
        let id = self.push_value(TileOp::Map(op, args), axes, name, depth);
        self.scopes[depth].body.push(Statement::Let(id));
        id
    }

    fn let_constant(&mut self, c: f64) -> ValueId {
        let id = self.lowering.arena.constant(c);
        if let Some(known) = self.known(id) {
            return known;
        }
        let value = self.push_value(TileOp::Constant(c), AxisSet::new(), "k", 0);
        self.scopes[0].body.push(Statement::Let(value));
        self.scopes[0].memo.insert(id, value);
        value
    }

    /// A readable name: what the user called the value, else what it does.
    pub(super) fn name_of(&self, id: InnerId) -> String {
        let user = self
            .lowering
            .origins
            .get(&id)
            .and_then(|(node, _)| self.lowering.program().node(*node).name.clone());
        if let Some(name) = user {
            return name;
        }
        let base = match self.arena().get(id) {
            Inner::Load { .. } => "in",
            Inner::Constant(_) => "k",
            Inner::Iota(_) => "at",
            Inner::Map(op, _) => match op {
                MapOp::Add => "add",
                MapOp::Mul => "mul",
                MapOp::Div => "div",
                MapOp::Max => "larger",
                MapOp::Exp => "exp",
                MapOp::Log => "log",
                MapOp::Sqrt => "root",
                MapOp::Select => "sel",
            },
            Inner::Reduce { op, .. } => match op {
                ir::ReduceOp::Sum => "sum",
                ir::ReduceOp::Max => "max",
            },
            Inner::Dot { .. } => "dot",
        };
        base.to_owned()
    }
}

/// What applies a correction: `A·c` for a sum, `A + c` for a maximum.
pub(super) fn correct_with(op: ir::ReduceOp) -> MapOp {
    match op {
        ir::ReduceOp::Sum => MapOp::Mul,
        ir::ReduceOp::Max => MapOp::Add,
    }
}

/// The order in which nested loops open: an axis over which a reduction varies comes before the axis that it reduces.
fn loop_order(
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
fn finish(
    values: Vec<Value>,
    body: Vec<Statement>,
    tiles: &BTreeMap<AxisId, AxisTile>,
    part: Option<Part>,
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
            | TileOp::Phi { .. }
            | TileOp::Final { .. } => {}
        }
    }
    let mut order = Vec::new();
    let mut stored = Vec::new();
    stores(&body, &mut stored);
    for buffer in stored {
        for axis in tile.buffer(buffer).axes() {
            if !order.contains(&axis) {
                order.push(axis);
            }
        }
    }
    let mut axes: BTreeMap<AxisId, AxisTile> = mentioned
        .iter()
        .filter_map(|a| tiles.get(&a).map(|t| (a, *t)))
        .collect();
    if let Some(p) = part {
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
    Kernel {
        axes,
        grid: order,
        values,
        body,
    }
}

fn stores(body: &[Statement], found: &mut Vec<BufferId>) {
    for statement in body {
        match statement {
            Statement::Store { buffer, .. } => found.push(*buffer),
            Statement::Loop(l) => stores(&l.body, found),
            Statement::Let(_) => {}
        }
    }
}
