//! Tile programs: structured, typed, SSA, plain data.
//!
//! A tile program is a list of kernels over buffers. A kernel runs once for every point of its grid; its values are
//! *tiles*: they have axes, and each axis of a kernel has one tile size. Loops carry accumulators. The three readers
//! (the interpreters, the cost model, the CUDA lowering) give it the same meaning, which is this:
//!
//! * A grid point gives each [`Role::Grid`] axis the coordinates `t·tile .. min((t+1)·tile, extent)`; a loop iteration
//!   does the same for its axis; a [`Role::Whole`] axis has all its coordinates. Coordinates past the extent do not
//!   exist: no value has an element there. Lowering is free to compute such elements as long as nothing sees them.
//! * A value's axes say over which axes it varies. Grid axes are ordinary axes of values (a tile of size 1 is a tile).
//! * A reduction over a grid axis is over all its coordinates: the grid points that differ in such axes alone are a *block group*
//!   ([`Kernel::block_group`]), run at the same time and hand each other their parts. Such reductions stand outside every loop.
//!   A value that lacks a block group's axes is the same in all of the group, and a store of it happens once; but in a loop whose bounds
//!   mention such an axis, each point has the values of its own iterations, and stores them.
//! * Statements run in order. A value is computed once in its block and may be used in that block and in loops nested
//!   in it. A carry's `phi` is visible inside its loop, its `result` after it.
//!
//! Element homes (registers, shared memory) and layouts are no part of this type: they are a matter of schedules.

use crate::affine::Quotient;
use crate::axes::{Axis, AxisId, AxisSet};
use crate::program::{Dim, Dtype, MapOp, ReduceOp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// An index into [`TileProgram::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BufferId(pub u32);

/// An index into [`Kernel::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ValueId(pub u32);

impl BufferId {
    /// The position in the buffer table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl ValueId {
    /// The position in the value table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a buffer is to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BufferRole {
    /// The n-th parameter, in declaration order. Read only.
    Parameter(u32),
    /// The n-th output. Written once, everywhere.
    Output(u32),
    /// Scratch between kernels.
    Workspace,
}

/// A tensor in device memory, contiguous, slowest dimension first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// Unique; a parameter keeps its name.
    pub name: String,
    /// How its elements are stored.
    pub dtype: Dtype,
    /// Memory order.
    pub dims: Vec<Dim>,
    /// What it is to the caller.
    pub role: BufferRole,
}

impl Buffer {
    /// The axes in memory order, slowest first, groups flattened: the order of [`TileOp::Load`]'s `index`.
    pub fn axes(&self) -> impl Iterator<Item = AxisId> + '_ {
        self.dims.iter().flat_map(|d| d.0.iter().copied())
    }

    /// The axes that a store of a value with these axes goes along: its own, and a collapsed one among the value's in place of those that it stands for.
    pub fn axes_stored(
        &self,
        axes: &AxisSet,
        collapsed: &BTreeMap<AxisId, Vec<AxisId>>,
    ) -> Vec<AxisId> {
        let own: Vec<AxisId> = self.axes().collect();
        let (mut along, mut left) = (Vec::with_capacity(own.len()), own.as_slice());
        while let [first, rest @ ..] = left {
            let mut found = axes.iter().filter_map(|a| {
                let members = collapsed.get(&a).filter(|members| !members.is_empty())?;
                Some((a, left.strip_prefix(members.as_slice())?))
            });
            let (axis, rest) = found.next().unwrap_or((*first, rest));
            along.push(axis);
            left = rest;
        }
        along
    }
}

/// How a kernel runs over an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// In parallel: a tile a grid point.
    Grid,
    /// In sequence: a tile an iteration of one or several loops.
    Loop,
    /// Entirely inside a tile: the tile size is the extent.
    Whole,
}

/// What one kernel decided about one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AxisTile {
    /// How the kernel runs over it.
    pub role: Role,
    /// Coordinates a tile; 1 ≤ tile ≤ extent.
    pub tile: u64,
}

/// Which coordinate of an axis's current tile a bound speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Corner {
    /// The smallest coordinate in the tile.
    First,
    /// The largest coordinate in the tile (inside the extent).
    Last,
}

/// An element of a parameter of integers, or of a buffer of f32, rounded towards zero: where the current tile is along the buffer's axes, each with one
/// coordinate a tile.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// What is read.
    pub buffer: BufferId,
    /// Its axes, as [`Buffer::axes`] has them: grid axes and axes of enclosing loops.
    pub axes: Vec<AxisId>,
}

impl Entry {
    /// The largest magnitude that counts: what lies beyond is taken to be there.
    pub const MOST: i64 = 1 << 30;

    /// The number that an element counts as; of NaN 0.
    pub fn taken(value: f64) -> i64 {
        let most = Self::MOST as f64;
        value.clamp(-most, most) as i64
    }
}

/// `⌊(Σ coefficient · corner(axis) + Σ coefficient · entry + offset) / divisor⌋`, over grid axes and enclosing loops' axes. `divisor ≥ 1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bound {
    /// The terms of the sum.
    pub terms: Vec<(i64, AxisId, Corner)>,
    /// Those that are read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<(i64, Entry)>,
    /// The constant term.
    pub offset: i64,
    /// What the sum is divided by, rounding down.
    pub divisor: i64,
}

/// A value that passes from one iteration to the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Carry {
    /// The value at the start of an iteration; its op is [`TileOp::Phi`], which also holds the initial value.
    pub phi: ValueId,
    /// The value at the end of the iteration: a value of the loop's body, or the phi of another carry never.
    pub next: ValueId,
    /// The value after the last iteration; its op is [`TileOp::Final`].
    pub result: ValueId,
}

/// A sequential loop over the tiles of one axis.
///
/// Tiles are aligned to the tile size: the loop runs over the tile numbers `⌊low/tile⌋ .. ⌈high/tile⌉`, where
/// `low = max(0, low bounds)` and `high = min(extent, high bounds)`; none when that range is empty.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loop {
    /// The axis, of role [`Role::Loop`].
    pub axis: AxisId,
    /// Lower bounds in coordinates; the largest counts.
    pub low: Vec<Bound>,
    /// Upper bounds in coordinates, exclusive; the smallest counts.
    pub high: Vec<Bound>,
    /// What passes from one iteration to the next.
    pub carries: Vec<Carry>,
    /// One iteration.
    pub body: Vec<Statement>,
}

/// What statements store, and where.
pub fn stores(body: &[Statement]) -> Vec<(BufferId, ValueId)> {
    body.iter()
        .flat_map(|s| match s {
            Statement::Let(_) => Vec::new(),
            Statement::Store { buffer, value } => vec![(*buffer, *value)],
            Statement::Loop(l) => stores(&l.body),
        })
        .collect()
}

impl TileOp {
    /// The values of its kernel that it reads; the result of a carry reads the carry's phi.
    pub fn operands(&self) -> Vec<ValueId> {
        match self {
            Self::Load { .. } | Self::Constant(_) | Self::Iota(_) | Self::Phi { .. } => Vec::new(),
            Self::Map(_, args) => args.clone(),
            Self::Reduce { value, .. } | Self::Scan { value, .. } => vec![*value],
            Self::Contract { a, b, .. } => vec![*a, *b],
            Self::Final { phi } => vec![*phi],
        }
    }

    /// The axes that it reduces; none for what is neither a reduction nor a contraction.
    pub fn reduced(&self) -> Option<&AxisSet> {
        match self {
            Self::Reduce { axes, .. } | Self::Contract { axes, .. } => Some(axes),
            Self::Load { .. }
            | Self::Constant(_)
            | Self::Iota(_)
            | Self::Map(..)
            | Self::Scan { .. }
            | Self::Phi { .. }
            | Self::Final { .. } => None,
        }
    }

    /// The axis along which it is a scan; none for what is none.
    pub fn scan_axis(&self) -> Option<AxisId> {
        match self {
            Self::Scan { axis, .. } => Some(*axis),
            Self::Load { .. }
            | Self::Constant(_)
            | Self::Iota(_)
            | Self::Map(..)
            | Self::Reduce { .. }
            | Self::Contract { .. }
            | Self::Phi { .. }
            | Self::Final { .. } => None,
        }
    }

    /// The buffer that it reads, if it reads one.
    pub fn loaded(&self) -> Option<BufferId> {
        match self {
            Self::Load { buffer, .. } => Some(*buffer),
            Self::Constant(_)
            | Self::Iota(_)
            | Self::Map(..)
            | Self::Reduce { .. }
            | Self::Scan { .. }
            | Self::Contract { .. }
            | Self::Phi { .. }
            | Self::Final { .. } => None,
        }
    }
}

impl Bound {
    /// What the elements that it reads add, for who cannot know them: each is taken for the `middle` of the loop's axis. Where nothing else is said they are
    /// one of its coordinates, negated or not.
    pub fn expected(&self, middle: i64) -> i64 {
        let sum = self.entries.iter().map(|(c, _)| c.saturating_mul(middle));
        let sum = sum.fold(0, i64::saturating_add);
        match self.terms.is_empty() && self.offset.abs() <= 1 {
            true => sum.saturating_abs(),
            false => sum,
        }
    }

    /// The axes on whose coordinates it depends.
    pub fn axes(&self) -> impl Iterator<Item = AxisId> + '_ {
        let read = self.entries.iter().flat_map(|e| e.1.axes.iter().copied());
        self.terms.iter().map(|t| t.1).chain(read)
    }
}

impl Loop {
    /// The axes on whose coordinates it depends over which coordinates of its own axis it runs.
    pub fn bounding(&self) -> AxisSet {
        let bounds = self.low.iter().chain(&self.high);
        bounds.flat_map(Bound::axes).collect()
    }

    /// Whether it runs over different coordinates where some of these axes differ.
    pub fn is_bounded_by(&self, axes: &AxisSet) -> bool {
        self.bounding().intersects(axes)
    }
}

/// One step of a kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Statement {
    /// Computes a value.
    Let(ValueId),
    /// Runs a loop.
    Loop(Loop),
    /// Writes a value to the coordinates of the current tile, rounded to the buffer's dtype. The value's axes are exactly
    /// the buffer's axes, some of them [collapsed](TileProgram::collapsed); loop axes among them must be those of enclosing loops.
    Store {
        /// Where to.
        buffer: BufferId,
        /// What.
        value: ValueId,
    },
}

/// What a value is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TileOp {
    /// Reads a buffer. `index` has one function an axis of the buffer, in the order of [`Buffer::axes`], or one that is a
    /// [collapsed](TileProgram::collapsed) axis for several; where one lies outside that axis's extent, or is no integer, the element is `fill`. Axes: those that `index` mentions.
    Load {
        /// Where from.
        buffer: BufferId,
        /// The coordinate along each of the axes that the load goes along ([`TileProgram::axes_loaded`]).
        index: Vec<Quotient>,
        /// The element outside the buffer.
        fill: f64,
    },
    /// A scalar.
    Constant(f64),
    /// The (global) coordinate along an axis, as a real.
    Iota(AxisId),
    /// An element-wise operation; axes: the union.
    Map(MapOp, Vec<ValueId>),
    /// A reduction inside the tile over `axes`, which the value has; over the coordinates that exist.
    Reduce {
        /// Sum, maximum or product.
        op: ReduceOp,
        /// What is reduced.
        value: ValueId,
        /// What disappears: loop and whole axes of the tile, and grid axes across the block group.
        axes: AxisSet,
    },
    /// What a value has reduced along one axis inside the tile, from its first coordinate to each one: a prefix sum where the operation is one.
    Scan {
        /// Sum, maximum or product.
        op: ReduceOp,
        /// What is reduced.
        value: ValueId,
        /// Along which axis of the value, a loop or a whole axis. It stays.
        axis: AxisId,
        /// Whether a coordinate has its own element too. If not, the result at the first coordinate is the neutral element.
        inclusive: bool,
    },
    /// `Σ over axes of a · b` inside the tile; both operands have all of `axes`.
    Contract {
        /// Left operand.
        a: ValueId,
        /// Right operand.
        b: ValueId,
        /// What is contracted.
        axes: AxisSet,
    },
    /// A carry at the start of an iteration; `init` before the first.
    Phi {
        /// The initial value of every element.
        init: f64,
        /// The carry's axes.
        axes: AxisSet,
    },
    /// A carry after its loop; the same axes as its phi.
    Final {
        /// The carry's phi.
        phi: ValueId,
    },
}

/// One value of a kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// What it is.
    pub op: TileOp,
    /// Over which axes it varies.
    pub axes: AxisSet,
    /// The name in the text form; unique in its kernel.
    pub name: String,
}

impl Value {
    /// The axes of its index space: its own and those that it reduces.
    pub fn iterated(&self) -> AxisSet {
        match self.op.reduced() {
            Some(axes) => self.axes.union(axes),
            None => self.axes.clone(),
        }
    }
}

/// A value that is a reduction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reduction<'a> {
    /// It.
    pub result: ValueId,
    /// How it combines.
    pub op: ReduceOp,
    /// What it combines.
    pub value: ValueId,
    /// Over which axes.
    pub axes: &'a AxisSet,
}

/// One launch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// Every axis that the kernel mentions.
    pub axes: BTreeMap<AxisId, AxisTile>,
    /// The axes of role [`Role::Grid`], slowest first: the last one's tiles are neighbours in launch order.
    pub grid: Vec<AxisId>,
    /// The values, in any order; [`Statement`]s say when each is computed.
    pub values: Vec<Value>,
    /// The steps.
    pub body: Vec<Statement>,
}

/// A contraction as a product of matrices, in one tile: its axes by the part that they have. Those with one coordinate a tile have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Product {
    /// The first operand.
    pub a: ValueId,
    /// The second operand.
    pub b: ValueId,
    /// Rows: what the first operand alone varies over.
    pub m: AxisSet,
    /// Columns: what the second alone varies over.
    pub n: AxisSet,
    /// What is summed over.
    pub k: AxisSet,
    /// What both vary over, and is kept.
    pub batch: AxisSet,
}

impl Kernel {
    /// The value behind an index.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// The tile size of an axis of this kernel.
    pub fn tile(&self, axis: AxisId) -> u64 {
        self.axes[&axis].tile
    }

    /// Elements of a tile over these axes; the largest number where there are more.
    pub fn volume(&self, axes: &AxisSet) -> u64 {
        let tiles = axes.iter().map(|a| self.tile(a));
        tiles.fold(1, u64::saturating_mul)
    }

    /// Its loops, outer before inner.
    fn loops(&self) -> Vec<&Loop> {
        fn go<'a>(body: &'a [Statement], found: &mut Vec<&'a Loop>) {
            for s in body {
                if let Statement::Loop(l) = s {
                    found.push(l);
                    go(&l.body, found);
                }
            }
        }
        let mut found = Vec::new();
        go(&self.body, &mut found);
        found
    }

    /// What the bounds of its loops read.
    pub fn entries(&self) -> BTreeSet<&Entry> {
        let loops = self.loops().into_iter();
        let bounds = loops.flat_map(|l| l.low.iter().chain(&l.high));
        bounds
            .flat_map(|b| b.entries.iter().map(|e| &e.1))
            .collect()
    }

    /// The buffers that it reads, in bounds too.
    pub fn reads(&self) -> BTreeSet<BufferId> {
        let loaded = self.values.iter().filter_map(|v| v.op.loaded());
        let in_bounds = self.entries().into_iter().map(|e| e.buffer);
        loaded.chain(in_bounds).collect()
    }

    /// The buffers that it reads and those that it stores.
    pub fn buffers(&self) -> BTreeSet<BufferId> {
        let stored = stores(&self.body).into_iter().map(|s| s.0);
        self.reads().into_iter().chain(stored).collect()
    }

    /// Axes of loops that go from one coordinate to the next, and of which something that varies over the axis sees what the loop carries: it may hold
    /// for tiles of one coordinate alone.
    pub fn stepped(&self) -> AxisSet {
        let sees = |l: &Loop| {
            let carried = |v: &ValueId| l.carries.iter().any(|c| c.phi == *v || c.next == *v);
            let mut along = self.values.iter().filter(|v| v.axes.contains(l.axis));
            along.any(|v| v.op.operands().iter().any(carried))
        };
        let single = |l: &&Loop| self.tile(l.axis) == 1 && sees(l);
        let loops = self.loops().into_iter();
        loops.filter(single).map(|l| l.axis).collect()
    }

    /// For each loop, in program order, the number of the outermost loop around it: its own where there is none.
    pub fn outermost_loops(&self) -> Vec<usize> {
        fn go(body: &[Statement], outer: Option<usize>, found: &mut Vec<usize>) {
            for s in body {
                if let Statement::Loop(l) = s {
                    let own = outer.unwrap_or(found.len());
                    found.push(own);
                    go(&l.body, Some(own), found);
                }
            }
        }
        let mut found = Vec::new();
        go(&self.body, None, &mut found);
        found
    }

    /// For each value the innermost loop around what computes it, by number in program order: a carry's phi is inside its loop, the
    /// result outside; none outside all loops.
    pub fn loops_of_values(&self) -> Vec<Option<usize>> {
        fn go(
            body: &[Statement],
            inside: Option<usize>,
            loops: &mut usize,
            found: &mut [Option<usize>],
        ) {
            for s in body {
                match s {
                    Statement::Let(v) => found[v.index()] = inside,
                    Statement::Store { .. } => {}
                    Statement::Loop(l) => {
                        let number = *loops;
                        *loops += 1;
                        for c in &l.carries {
                            found[c.phi.index()] = Some(number);
                            found[c.result.index()] = inside;
                        }
                        go(&l.body, Some(number), loops, found);
                    }
                }
            }
        }
        let mut found = vec![None; self.values.len()];
        go(&self.body, None, &mut 0, &mut found);
        found
    }

    /// How often each value is read: by operations, as a carry's next value, and by stores.
    pub fn uses(&self) -> Vec<u32> {
        fn go(kernel: &Kernel, body: &[Statement], found: &mut [u32]) {
            for s in body {
                match s {
                    Statement::Let(v) => {
                        for operand in kernel.value(*v).op.operands() {
                            found[operand.index()] += 1;
                        }
                    }
                    Statement::Store { value, .. } => found[value.index()] += 1,
                    Statement::Loop(l) => {
                        for c in &l.carries {
                            found[c.next.index()] += 1;
                        }
                        go(kernel, &l.body, found);
                    }
                }
            }
        }
        let mut found = vec![0; self.values.len()];
        go(self, &self.body, &mut found);
        found
    }

    /// A value as a reduction; none where it is anything else, or is no value.
    pub fn reduction(&self, result: ValueId) -> Option<Reduction<'_>> {
        match &self.values.get(result.index())?.op {
            TileOp::Reduce { op, value, axes } => Some(Reduction {
                result,
                op: *op,
                value: *value,
                axes,
            }),
            TileOp::Load { .. }
            | TileOp::Constant(_)
            | TileOp::Iota(_)
            | TileOp::Map(..)
            | TileOp::Scan { .. }
            | TileOp::Contract { .. }
            | TileOp::Phi { .. }
            | TileOp::Final { .. } => None,
        }
    }

    /// Those of some axes that have more than one coordinate a tile.
    pub fn several(&self, axes: &AxisSet) -> AxisSet {
        axes.iter().filter(|x| self.tile(*x) > 1).collect()
    }

    /// A value as a product of matrices; none where it is no contraction.
    pub fn product(&self, result: ValueId) -> Option<Product> {
        let TileOp::Contract { a, b, axes } = &self.values.get(result.index())?.op else {
            return None;
        };
        let [of_a, of_b] = [a, b].map(|v| self.several(&self.value(*v).axes));
        let k = self.several(axes);
        let batch = of_a.intersection(&of_b).minus(&k);
        Some(Product {
            a: *a,
            b: *b,
            m: of_a.minus(&k).minus(&batch),
            n: of_b.minus(&k).minus(&batch),
            k,
            batch,
        })
    }

    /// Sums that accumulate a contraction: for each the contraction, which nothing else reads, and the other addend.
    pub fn accumulations(&self) -> BTreeMap<ValueId, (ValueId, ValueId)> {
        fn go(
            kernel: &Kernel,
            body: &[Statement],
            uses: &[u32],
            found: &mut BTreeMap<ValueId, (ValueId, ValueId)>,
        ) {
            let mut here: BTreeSet<ValueId> = BTreeSet::new();
            for statement in body {
                match statement {
                    Statement::Let(v) => {
                        here.insert(*v);
                        let own = kernel.value(*v);
                        let TileOp::Map(MapOp::Add, args) = &own.op else {
                            continue;
                        };
                        let [x, y] = args.as_slice() else { continue };
                        // The part of a split is an axis of the sum alone.
                        let several = kernel.several(&own.axes);
                        let mut both = [(*x, *y), (*y, *x)].into_iter();
                        let accumulated = both.find(|(c, other)| {
                            matches!(kernel.value(*c).op, TileOp::Contract { .. })
                                && c != other
                                && here.contains(c)
                                && uses[c.index()] == 1
                                && kernel.several(&kernel.value(*c).axes) == several
                        });
                        found.extend(accumulated.map(|parts| (*v, parts)));
                    }
                    Statement::Loop(l) => go(kernel, &l.body, uses, found),
                    Statement::Store { .. } => {}
                }
            }
        }
        let mut found = BTreeMap::new();
        go(self, &self.body, &self.uses(), &mut found);
        found
    }

    /// What a loop carries and the factor, where a value is their product and the factor varies over fewer axes and is no constant: it
    /// corrects what was accumulated, and is mostly 1.
    pub fn rescales(&self, v: ValueId) -> Option<(ValueId, ValueId)> {
        let TileOp::Map(MapOp::Mul, args) = &self.values.get(v.index())?.op else {
            return None;
        };
        let [x, y] = args.as_slice() else { return None };
        let mut both = [(*x, *y), (*y, *x)].into_iter();
        both.find(|(phi, factor)| {
            let (phi, factor) = (self.value(*phi), self.value(*factor));
            matches!(phi.op, TileOp::Phi { .. })
                && factor.axes != phi.axes
                && factor.axes.is_subset(&phi.axes)
                && !matches!(factor.op, TileOp::Constant(_) | TileOp::Iota(_))
        })
    }

    /// Its reductions, in the order of values.
    pub fn reductions(&self) -> impl Iterator<Item = Reduction<'_>> {
        (0..self.values.len() as u32).filter_map(|v| self.reduction(ValueId(v)))
    }

    /// The grid axes that some reduction runs over; empty where no grid point waits for another.
    pub fn block_group(&self) -> AxisSet {
        let on_grid = |a: &AxisId| self.axes.get(a).is_some_and(|t| t.role == Role::Grid);
        let reduced = self.reductions().flat_map(|r| r.axes.iter());
        reduced.filter(on_grid).collect()
    }

    /// The reductions over a block group's axes, in parts of which each needs the results of those before: there is a grid barrier for each.
    pub fn grid_barriers(&self) -> Vec<Vec<ValueId>> {
        let block_group = self.block_group();
        let mut waiting: Vec<(ValueId, ValueId)> = Vec::new();
        for statement in &self.body {
            if let Statement::Let(v) = statement
                && let Some(r) = self.reduction(*v)
                && r.axes.intersects(&block_group)
            {
                waiting.push((r.result, r.value));
            }
        }
        let mut groups = Vec::new();
        let mut before = BTreeSet::new();
        let mut statements = self.body.iter();
        while let Some((first, _)) = waiting.first().copied() {
            for statement in statements.by_ref() {
                match statement {
                    Statement::Let(v) if *v == first => break,
                    Statement::Let(v) => {
                        before.insert(*v);
                    }
                    Statement::Loop(l) => before.extend(l.carries.iter().map(|c| c.result)),
                    Statement::Store { .. } => {}
                }
            }
            let group: Vec<ValueId> = waiting
                .iter()
                .filter(|w| w.0 == first || before.contains(&w.1))
                .map(|w| w.0)
                .collect();
            before.extend(&group);
            waiting.retain(|w| !group.contains(&w.0));
            groups.push(group);
        }
        groups
    }

    /// Whether all of a block group go on behind their last grid barrier, because each has something of its own to store; else one does.
    pub fn all_go_on(&self) -> bool {
        fn stores(body: &[Statement], kernel: &Kernel, block_group: &AxisSet) -> bool {
            body.iter().any(|s| match s {
                Statement::Let(_) => false,
                Statement::Store { value, .. } => kernel.value(*value).axes.intersects(block_group),
                Statement::Loop(l) => {
                    let stores_any = stores(&l.body, kernel, block_group);
                    stores_any || (l.is_bounded_by(block_group) && has_store(&l.body))
                }
            })
        }
        fn has_store(body: &[Statement]) -> bool {
            body.iter().any(|s| match s {
                Statement::Let(_) => false,
                Statement::Store { .. } => true,
                Statement::Loop(l) => has_store(&l.body),
            })
        }
        stores(&self.body, self, &self.block_group())
    }
}

/// A list of kernels that together compute a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TileProgram {
    /// The program's name.
    pub name: String,
    /// The program's axes first, at the same indices, then axes that the tiling made (parts of a split axis, collapsed axes).
    pub axes: Vec<Axis>,
    /// The axes that stand for several others, slowest first, of which a kernel treats all coordinates alike: the coordinate of one is that of an
    /// element in a tensor with these axes. Where such axes lie side by side in a buffer, a load or store may go along the one in their place.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub collapsed: BTreeMap<AxisId, Vec<AxisId>>,
    /// Parameters, outputs and workspaces.
    pub buffers: Vec<Buffer>,
    /// In launch order; each sees everything that the ones before it wrote.
    pub kernels: Vec<Kernel>,
}

impl TileProgram {
    /// The buffer behind an index.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.index()]
    }

    /// Grid points of a kernel that differ along some of its grid axes alone; the largest number where there are more.
    pub fn points(&self, kernel: &Kernel, along: &AxisSet) -> u64 {
        along.iter().fold(1, |n, a| {
            n.saturating_mul(self.extent(a).div_ceil(kernel.tile(a)))
        })
    }

    /// Grid points of a kernel; the largest number where there are more.
    pub fn blocks(&self, kernel: &Kernel) -> u64 {
        self.points(kernel, &kernel.grid.iter().copied().collect())
    }

    /// Elements of a tensor with these axes, tiled or not; the largest number where there are more.
    pub fn volume(&self, axes: impl IntoIterator<Item = AxisId>) -> u64 {
        let extents = axes.into_iter().map(|a| self.extent(a));
        extents.fold(1, u64::saturating_mul)
    }

    /// The axes that a load with this index goes along, an axis a function: the buffer's, and a collapsed one in place of those that it stands for, or of as
    /// many as long as those. The number of functions is no other where the load is well formed.
    pub fn axes_loaded(&self, buffer: BufferId, index: &[Quotient]) -> Vec<AxisId> {
        let own: Vec<AxisId> = self.buffer(buffer).axes().collect();
        let (mut along, mut left) = (Vec::with_capacity(own.len()), own.as_slice());
        let mut functions = index.iter();
        while let [first, rest @ ..] = left {
            let place = functions.next().and_then(Quotient::as_axis);
            let collapsed = place.filter(|p| p != first).and_then(|p| {
                let members = self.collapsed.get(&p)?;
                let (beside, rest) = left.split_at_checked(members.len())?;
                let alike = |(a, b): (&AxisId, &AxisId)| self.extent(*a) == self.extent(*b);
                (members.iter().zip(beside).all(alike)).then_some((p, rest))
            });
            let (axis, rest) = collapsed.unwrap_or((*first, rest));
            along.push(axis);
            left = rest;
        }
        along
    }

    /// The axes that a store of a value with these axes goes along ([`Buffer::axes_stored`]).
    pub fn axes_stored(&self, buffer: BufferId, axes: &AxisSet) -> Vec<AxisId> {
        self.buffer(buffer).axes_stored(axes, &self.collapsed)
    }

    /// The collapsed axes that stand for an axis among others, each with how many of its coordinates one coordinate of this axis has: what faster ones make.
    pub fn standing_for(&self, axis: AxisId) -> impl Iterator<Item = (AxisId, u64)> + '_ {
        self.collapsed
            .iter()
            .filter_map(move |(collapsed, members)| {
                let at = members.iter().position(|m| *m == axis)?;
                let faster = members[at + 1..].iter().copied();
                Some((*collapsed, self.volume(faster)))
            })
    }

    /// The axes of a buffer that an axis stands for along which a load or a store goes: itself, or those that it has collapsed.
    pub fn members(&self, buffer: BufferId, along: AxisId) -> Vec<AxisId> {
        let is_own = self.buffer(buffer).axes().any(|a| a == along);
        let members = self.collapsed.get(&along).filter(|_| !is_own);
        members.map_or_else(|| vec![along], Clone::clone)
    }

    /// Elements of a buffer that a load with this index reads, where an axis of the kernel runs over `reach` coordinates, at most: along
    /// each of the buffer's axes the span of the index, as far as the buffer goes. Strided indices leave some of them out.
    pub fn footprint(
        &self,
        buffer: BufferId,
        index: &[Quotient],
        reach: impl Fn(AxisId) -> u64,
    ) -> u64 {
        let axes = self.axes_loaded(buffer, index).into_iter().zip(index);
        let spans = axes.map(|(a, f)| {
            let terms = f.function().terms().iter();
            let last = terms.map(|(c, x)| c.unsigned_abs().saturating_mul(reach(*x) - 1));
            let last = last.fold(0, u64::saturating_add) / f.divisor().unsigned_abs();
            last.saturating_add(1).min(self.extent(a))
        });
        spans.fold(1, u64::saturating_mul)
    }

    /// One kernel by itself, with all parameters and outputs and the workspaces that it uses. Workspaces are called by
    /// their places: the names that others give them say nothing here. To be lowered, priced and timed; what another kernel should have stored is undefined.
    pub fn alone(&self, kernel: usize) -> Self {
        let (mut own, _) = self.part(&[kernel], |buffer| buffer.role != BufferRole::Workspace);
        for number in 0..own.buffers.len() {
            if own.buffers[number].role == BufferRole::Workspace {
                // No parameter or output is called so: names are unique.
                let mut name = format!("w{number}");
                while own.buffers.iter().any(|b| b.name == name) {
                    name.push('_');
                }
                own.buffers[number].name = name;
            }
        }
        own
    }

    /// One kernel as a program: what it reads are its parameters and what it stores its outputs, whoever stores and reads them elsewhere.
    pub fn by_itself(&self, kernel: usize) -> Self {
        self.by_themselves(&[kernel], |_| false)
    }

    /// Some kernels, in launch order, as a program: what they read are its parameters and what they store its outputs, but for what stays `inside`. Buffers
    /// keep their names.
    pub fn by_themselves(&self, kernels: &[usize], inside: impl Fn(BufferId) -> bool) -> Self {
        let (mut own, originals) = self.part(kernels, |_| false);
        let all = own.kernels.iter().flat_map(|k| stores(&k.body));
        let stored: BTreeSet<BufferId> = all.map(|s| s.0).collect();
        let (mut parameters, mut outputs) = (0, 0);
        for (id, buffer) in (0..).map(BufferId).zip(&mut own.buffers) {
            let (role, next) = match (stored.contains(&id), inside(originals[id.index()])) {
                (true, true) => {
                    buffer.role = BufferRole::Workspace;
                    continue;
                }
                (true, false) => (BufferRole::Output(outputs), &mut outputs),
                (false, _) => (BufferRole::Parameter(parameters), &mut parameters),
            };
            buffer.role = role;
            *next += 1;
        }
        own
    }

    /// Some kernels with the buffers that they use, and those that are `kept`; and which buffers these are.
    pub(crate) fn part(
        &self,
        kernels: &[usize],
        kept: impl Fn(&Buffer) -> bool,
    ) -> (Self, Vec<BufferId>) {
        fn renamed(body: &mut [Statement], new: &BTreeMap<BufferId, BufferId>) {
            for s in body {
                match s {
                    Statement::Let(_) => {}
                    Statement::Store { buffer, .. } => *buffer = new[buffer],
                    Statement::Loop(l) => {
                        for bound in l.low.iter_mut().chain(&mut l.high) {
                            for (_, entry) in &mut bound.entries {
                                entry.buffer = new[&entry.buffer];
                            }
                        }
                        renamed(&mut l.body, new);
                    }
                }
            }
        }
        let mut kernels: Vec<Kernel> = kernels.iter().map(|k| self.kernels[*k].clone()).collect();
        let used: BTreeSet<BufferId> = kernels.iter().flat_map(Kernel::buffers).collect();
        let all = (0..).map(BufferId).zip(&self.buffers);
        let originals: Vec<BufferId> = all
            .filter(|(id, buffer)| kept(buffer) || used.contains(id))
            .map(|(id, _)| id)
            .collect();
        let places = originals.iter().copied().zip((0..).map(BufferId));
        let new: BTreeMap<BufferId, BufferId> = places.collect();
        for kernel in &mut kernels {
            renamed(&mut kernel.body, &new);
            for v in &mut kernel.values {
                if let TileOp::Load { buffer, .. } = &mut v.op {
                    *buffer = new[buffer];
                }
            }
        }
        let own = Self {
            name: self.name.clone(),
            axes: self.axes.clone(),
            collapsed: self.collapsed.clone(),
            buffers: originals
                .iter()
                .map(|id| self.buffer(*id).clone())
                .collect(),
            kernels,
        };
        (own, originals)
    }

    /// The extent of an axis.
    pub fn extent(&self, axis: AxisId) -> u64 {
        self.axes[axis.index()].extent
    }

    /// The size of a buffer.
    pub fn buffer_bytes(&self, buffer: &Buffer) -> u64 {
        let elements: u64 = buffer.axes().map(|a| self.extent(a)).product();
        elements * buffer.dtype.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums over windows of 3 at a stride of 2, 4 to a tile.
    const WINDOWS: &str = "tile windows
axis o = 30, w = 62, k = 3
buffer x = parameter 0 f32 [w]
buffer y = output 0 f32 [o]
kernel grid(o: 4) loop(k: 1) {
  loop k {
    carry s = 0 over [o]
    part = load x[2*o + k]
    folded = reduce_sum(part; k)
    s' = add(s, folded)
    yield all = final(s, s')
  }
  store y = all
}
";

    /// Two products, the second accumulated while what was accumulated before is rescaled.
    const PRODUCTS: &str = "tile products
axis h = 4, i = 64, j = 64, d = 16, e = 16
buffer q = parameter 0 f16 [h, i, d]
buffer k = parameter 1 f16 [h, j, d]
buffer v = parameter 2 f16 [h, j, e]
buffer y = output 0 f32 [h, i, e]
kernel grid(h: 1, i: 32) loop(j: 32) whole(d: 16, e: 16) {
  a = load q[h, i, d]
  half = 0.5
  loop j {
    carry o = 0 over [h, i, e]
    b = load k[h, j, d]
    s = contract(a, b; d)
    row = reduce_max(s; j)
    c = load v[h, j, e]
    p = contract(s, c; j)
    scaled = mul(row, o)
    halved = mul(half, o)
    o' = add(p, scaled)
    yield all = final(o, o')
  }
  store y = all
}
";

    /// Sums of rows up to each block, and a tile to a block.
    const RUNNING: &str = "tile running
axis i = 30, b = 7
buffer x = parameter 0 f32 [i, b]
buffer y = output 0 f32 [i, b]
kernel grid(i: 4) loop(b: 1) {
  loop b {
    carry s = 0 over [i]
    t = load x[i, b]
    r = reduce_sum(t; b)
    s' = add(s, r)
    before = add(s, t)
    store y = before
    yield all = final(s, s')
  }
}
";

    #[test]
    fn loops_that_are_seen_on_the_way_go_step_by_step() {
        let stepped = |text: &str| {
            let tile: TileProgram = text.parse().expect("a tile program");
            tile.kernels[0].stepped()
        };
        assert_eq!(stepped(RUNNING), AxisSet::from_iter([AxisId(1)]));
        // With longer tiles what is seen holds for these; and what is seen behind the loop holds for all.
        assert!(stepped(&RUNNING.replace("loop(b: 1)", "loop(b: 2)")).is_empty());
        assert!(stepped(WINDOWS).is_empty());
    }

    #[test]
    fn products_have_rows_and_columns() {
        let tile: TileProgram = PRODUCTS.parse().expect("a tile program");
        let kernel = &tile.kernels[0];
        let id = |name: &str| {
            let at = kernel.values.iter().position(|v| v.name == name);
            ValueId(at.expect("a value") as u32)
        };
        let [i, j, d, e] = [1, 2, 3, 4].map(AxisId);
        let one = |a: AxisId| AxisSet::from_iter([a]);
        let product = |a: &str, b: &str, [m, n, k]: [AxisId; 3]| Product {
            a: id(a),
            b: id(b),
            m: one(m),
            n: one(n),
            k: one(k),
            // A tile of one head has no batch.
            batch: AxisSet::default(),
        };
        assert_eq!(kernel.product(id("s")), Some(product("a", "b", [i, j, d])));
        assert_eq!(kernel.product(id("p")), Some(product("s", "c", [i, e, j])));
        assert_eq!(kernel.product(id("row")), None);
        let accumulated = BTreeMap::from([(id("o'"), (id("p"), id("scaled")))]);
        assert_eq!(kernel.accumulations(), accumulated);
        assert_eq!(kernel.rescales(id("scaled")), Some((id("o"), id("row"))));
        assert_eq!(kernel.rescales(id("halved")), None, "a constant");
        let split = PRODUCTS
            .replace("e = 16\n", "e = 16, part = 2\n")
            .replace("[h, i, e]\n    b", "[h, i, e, part]\n    b")
            .replace(
                "y = output 0 f32 [h, i, e]",
                "y = output 0 f32 [part, h, i, e]",
            )
            .replace("grid(h: 1", "grid(part: 1, h: 1")
            .replace("scaled = mul(row, o)", "scaled = mul(o, row)");
        let tile: TileProgram = split.parse().expect("a tile program");
        assert_eq!(
            tile.kernels[0].accumulations().len(),
            1,
            "a part of a split"
        );
        // Where another value reads it, it is a value of its own.
        let read = PRODUCTS.replace("add(p, scaled)", "add(p, scaled)\n    more = add(p, o')");
        let tile: TileProgram = read.parse().expect("a tile program");
        assert_eq!(tile.kernels[0].accumulations(), BTreeMap::new());
        let several = PRODUCTS.replace("h: 1", "h: 2");
        let tile: TileProgram = several.parse().expect("a tile program");
        let found = tile.kernels[0].product(id("s")).expect("a product");
        assert_eq!(found.batch, one(AxisId(0)));
    }

    #[test]
    fn what_operations_read_reduce_and_touch() {
        let tile: TileProgram = WINDOWS.parse().expect("a tile program");
        let kernel = &tile.kernels[0];
        let id = |name: &str| {
            let at = kernel.values.iter().position(|v| v.name == name);
            ValueId(at.expect("a value") as u32)
        };
        let named = |name: &str| kernel.value(id(name));
        assert_eq!(named("s'").op.operands(), [id("s"), id("folded")]);
        assert_eq!(named("folded").op.operands(), [id("part")]);
        assert_eq!(named("all").op.operands(), [id("s")]);
        assert_eq!(named("part").op.operands(), []);
        assert_eq!(named("part").op.reduced(), None);
        let [o, w, k] = [0, 1, 2].map(AxisId);
        assert_eq!(named("folded").op.reduced(), Some(&AxisSet::from_iter([k])));
        assert_eq!(named("folded").iterated(), AxisSet::from_iter([o, k]));
        assert_eq!(kernel.volume(&named("folded").axes), 4);
        assert_eq!(tile.volume([o, k]), 90);
        assert_eq!(tile.blocks(kernel), 8);
        let TileOp::Load { buffer, index, .. } = &named("part").op else {
            panic!("a load");
        };
        assert_eq!(kernel.outermost_loops(), [0]);
        let loops = kernel.loops_of_values();
        assert_eq!(
            [loops[id("s").index()], loops[id("part").index()]],
            [Some(0); 2]
        );
        assert_eq!(loops[id("all").index()], None);
        let uses = kernel.uses();
        assert_eq!(
            ["s", "part", "s'", "all"].map(|n| uses[id(n).index()]),
            [1; 4]
        );
        // 2 · 3 + 0 + 1 columns of a tile; 2 · 29 + 2 + 1 of all; never more than there are.
        assert_eq!(tile.footprint(*buffer, index, |a| kernel.tile(a)), 7);
        assert_eq!(tile.footprint(*buffer, index, |a| tile.extent(a)), 61);
        assert_eq!(tile.footprint(*buffer, index, |_| 40), tile.extent(w));
    }

    #[test]
    fn what_a_kernel_reads_and_stores_are_its_parameters_and_outputs() {
        let text = "tile two
axis i = 8, j = 4
buffer x = parameter 0 f32 [i, j]
buffer z = parameter 1 f32 [i]
buffer y = output 0 f32 [i]
buffer h = workspace f32 [i]
kernel grid(i: 4) whole(j: 4) {
  a = load x[i, j]
  s = reduce_sum(a; j)
  store h = s
}
kernel grid(i: 4) {
  b = load h[i]
  c = load z[i]
  d = add(b, c)
  store y = d
}
";
        let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
        let roles = |kernel: usize| -> Vec<BufferRole> {
            let own = tile.by_itself(kernel);
            own.buffers.iter().map(|b| b.role).collect()
        };
        let (parameter, output) = (BufferRole::Parameter, BufferRole::Output);
        assert_eq!(roles(0), [parameter(0), output(0)]);
        assert_eq!(roles(1), [parameter(0), output(0), parameter(1)]);
    }
}
