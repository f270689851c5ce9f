//! What lowering decides about a kernel before any text is made: which instruction carries out each contraction, how each
//! value is spread over the threads, and which operands lie in shared memory.
//!
//! Contractions anchor the layouts: their accumulators have the layout of their instruction. Element-wise values take the layout of an
//! operand with the same axes, values with fewer axes a slice of it. Loads, constants and coordinates have no layout of their
//! own: they are made wherever and however they are needed. What no contraction reaches gets a blocked layout.

mod layouts;
mod running;
mod tiles;

pub(crate) use self::layouts::WASTED;
pub(crate) use self::running::Running;
use crate::access::Access;
use crate::atoms::{self, AtomRow, Instruction, Operands, Scope};
use crate::layout::{Layout, OuterShape, Space};
use crate::machine::{Axes, Axis, PatchSide, Swizzle};
use crate::passes::{instruction, registers, warps};
use crate::resources::{MOST_WARPS, threads_fit};
use ir::{
    AxisId, AxisSet, AxisTile, Carry, Dtype, Kernel, KernelSchedule, MapOp, Product, ReduceOp,
    Reject, Role, Target, TileOp, TileProgram, ValueId, stores,
};
use std::collections::BTreeMap;

/// What fills a tile in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// Copies from memory.
    Loaded,
    /// Registers.
    Published,
    /// The halves of another tile's elements.
    Split,
}

/// A tile in shared memory: element `Σ coordinate · stride`, all coordinates below `size` present.
#[derive(Clone, Debug)]
pub(crate) struct SharedTile {
    /// What it holds.
    pub(crate) value: ValueId,
    pub(crate) filled: Filled,
    /// How elements are held.
    pub(crate) dtype: Dtype,
    /// (axis, size, stride); the first has stride 1.
    pub(crate) axes: Vec<(AxisId, u64, u64)>,
    /// Elements a stage.
    pub(crate) elements: u64,
    /// The loop whose iterations fill it, by number.
    pub(crate) in_loop: Option<usize>,
    /// How rows of 16-byte chunks are permuted, where warpgroup instructions read the tile. Strides of the first
    /// [`Swizzle::along`] axes then count along its lines and those of the others count lines.
    pub(crate) swizzle: Option<Swizzle>,
    /// What of the buffer it holds, where it holds a part of it as it stands; empty where it holds the value itself.
    pub(crate) patch: Vec<PatchSide>,
}

impl SharedTile {
    /// Whether copies fill it in each iteration of a loop.
    pub(crate) fn is_loaded_in(&self, number: usize) -> bool {
        self.filled == Filled::Loaded && self.in_loop == Some(number)
    }
}

/// Where an operand of a contraction is when the instruction needs it.
#[derive(Clone, Debug)]
pub(crate) enum Operand {
    /// In shared memory: an index into [`Plan::tiles`].
    Tile(usize),
    /// In registers, in this layout.
    Registers(Layout),
}

/// How a contraction is carried out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Method {
    /// A matrix instruction.
    Matrix(&'static AtomRow),
    /// Register tiles, operands from shared memory.
    Outer,
    /// One operand times the broadcast other one, summed.
    Product,
}

/// The plan of one contraction.
#[derive(Clone, Debug)]
pub(crate) struct Contraction {
    /// Rows' operand, columns' operand.
    pub(crate) values: [ValueId; 2],
    /// How.
    pub(crate) method: Method,
    /// Where its operands are. For [`Method::Product`] both are in registers.
    pub(crate) operands: Vec<Operand>,
    /// The tiles of the larger and of the lesser halves of the columns' operand, where the instruction reads such ones.
    pub(crate) halves: Option<[usize; 2]>,
    /// Rows, columns, depth.
    pub(crate) spaces: [Space; 3],
    /// The layout of the result (before normalisation: all registers of the accumulators).
    pub(crate) accumulator: Layout,
    /// What is summed over.
    pub(crate) axes: AxisSet,
}

/// A reduction that a loop folds up.
#[derive(Clone, Debug)]
pub(crate) struct Folded {
    /// The value of one iteration.
    pub(crate) reduction: ValueId,
    pub(crate) op: ReduceOp,
    /// How the reduced elements are spread.
    pub(crate) from: Layout,
    /// What is reduced over.
    pub(crate) axes: AxisSet,
}

/// The plan of one kernel.
pub(crate) struct Plan<'a> {
    pub(crate) tile: &'a TileProgram,
    pub(crate) kernel: &'a Kernel,
    pub(crate) schedule: &'a KernelSchedule,
    /// How the kernel cuts its axes.
    pub(crate) cut: Axes,
    /// Axes, fastest in memory first, by how much data says so.
    pub(crate) rank: Vec<AxisId>,
    /// The layout of each value that has one.
    pub(crate) layouts: Vec<Option<Layout>>,
    pub(crate) contractions: BTreeMap<ValueId, Contraction>,
    /// Sums that are accumulated in place: sum -> (contraction, other addend).
    pub(crate) fused: BTreeMap<ValueId, (ValueId, ValueId)>,
    /// Sums that may go on from those of the loop around, by their phis.
    pub(crate) running: BTreeMap<ValueId, Running>,
    pub(crate) tiles: Vec<SharedTile>,
    /// The loop that directly contains each value's statement, by number in program order.
    loop_of: Vec<Option<usize>>,
    uses: Vec<u32>,
    canonical: Vec<Layout>,
}

/// A limit on the registers of one operand that is held in full by [`Method::Product`].
const PRODUCT_REGISTERS: u64 = 96;

impl<'a> Plan<'a> {
    /// Decides everything, or says what cannot be done.
    pub(crate) fn new(
        tile: &'a TileProgram,
        kernel: &'a Kernel,
        schedule: &'a KernelSchedule,
        target: &Target,
    ) -> Result<Self, Reject> {
        let [rows, columns] = warps::of(schedule);
        let warps = u64::from(rows) * u64::from(columns);
        // Only groups of four warps may be as many as they like along the rows: the numbers of others are taken apart by their bits.
        let powers = columns.is_power_of_two()
            && match columns {
                1 => rows.is_multiple_of(4) || rows.is_power_of_two(),
                _ => rows.is_power_of_two(),
            };
        if !powers || warps > MOST_WARPS {
            return Err(Reject::Schedule(format!(
                "{rows} × {columns} warps: powers of two, or whole groups of four along the rows alone, and at most {MOST_WARPS} together are possible"
            )));
        }
        threads_fit(target, 32 * warps, registers::of(schedule))?;
        let count = kernel.values.len();
        let cut = cut(tile, kernel);
        let mut plan = Self {
            tile,
            kernel,
            schedule,
            rank: rank(tile, kernel, &cut)?,
            cut,
            layouts: vec![None; count],
            contractions: BTreeMap::new(),
            fused: kernel.accumulations(),
            running: running::running(kernel),
            tiles: Vec::new(),
            loop_of: kernel.loops_of_values(),
            uses: kernel.uses(),
            canonical: Vec::new(),
        };
        for v in (0..count as u32).map(ValueId) {
            if let Some(product) = kernel.product(v) {
                plan.contraction(v, product, target)?;
            }
        }
        plan.resolve(&kernel.body)?;
        plan.finish(target)?;
        Ok(plan)
    }

    /// Threads of a block.
    pub(crate) fn threads(&self) -> u64 {
        let [rows, columns] = self.warps();
        32 * rows * columns
    }

    /// Warps along rows, and along columns.
    pub(crate) fn warps(&self) -> [u64; 2] {
        warps::of(self.schedule).map(u64::from)
    }

    /// Blocks on a multiprocessor that registers are meant for.
    pub(crate) fn blocks_per_sm(&self) -> u32 {
        registers::of(self.schedule)
    }

    pub(crate) fn op(&self, v: ValueId) -> &'a TileOp {
        &self.kernel.value(v).op
    }

    pub(crate) fn axes(&self, v: ValueId) -> &'a AxisSet {
        &self.kernel.value(v).axes
    }

    /// `axes` with their tiles, fastest first.
    pub(crate) fn ordered(&self, axes: &AxisSet) -> Vec<(AxisId, u64)> {
        self.rank
            .iter()
            .filter(|a| axes.contains(**a))
            .map(|a| (*a, self.kernel.tile(*a)))
            .collect()
    }

    /// Whether matrix instructions carry out a contraction.
    pub(crate) fn multiplies(&self) -> bool {
        let matrix = |c: &Contraction| matches!(c.method, Method::Matrix(_));
        self.contractions.values().any(matrix)
    }

    /// Whether a value is a contraction whose work happens where it is added to something.
    pub(crate) fn deferred(&self, v: ValueId) -> bool {
        self.fused.values().any(|(c, _)| *c == v)
    }

    fn load_dtype(&self, v: ValueId) -> Option<Dtype> {
        self.tile.buffer(self.op(v).loaded()?).dtype.held()
    }

    fn contraction(&mut self, v: ValueId, product: Product, target: &Target) -> Result<(), Reject> {
        let Some(how) = instruction::of(self.schedule, v) else {
            return Err(Reject::Schedule(format!(
                "no entry for contraction {}",
                self.kernel.value(v).name
            )));
        };
        let Product { k, batch, .. } = product;
        let axes = self.op(v).reduced().cloned().unwrap_or_default();
        let [(a, m), (b, n)] = match how.swap {
            true => [(product.b, product.n), (product.a, product.m)],
            false => [(product.a, product.m), (product.b, product.n)],
        };
        let [wm, wn] = self.warps();
        let undivided = || {
            Reject::Schedule(format!(
                "{wm} × {wn} warps do not divide the rows and columns, which are several axes"
            ))
        };
        let order = |set: &AxisSet| self.ordered(set);
        let Some(instruction) = atoms::instruction(how.atom) else {
            return Err(Reject::Schedule(format!(
                "there is no instruction {}",
                how.atom.name()
            )));
        };
        let contraction = match instruction.scope {
            Scope::Warp | Scope::Warpgroup => {
                if !batch.is_empty() {
                    return Err(Reject::Schedule(
                        "a matrix instruction has no batch axis: its tile must be 1".into(),
                    ));
                }
                if k.is_empty() {
                    return Err(Reject::Schedule("nothing to contract in a tile".into()));
                }
                let dtype = self.matrix_dtype(instruction, a, b)?;
                let Some(row) = instruction.form(dtype) else {
                    return Err(Reject::Schedule(format!(
                        "{} takes no {} operands",
                        how.atom.name(),
                        dtype.name()
                    )));
                };
                if !instruction.exists_on(target) {
                    return Err(Reject::Target(format!(
                        "{} does not exist on {}, of capability {}",
                        how.atom.name(),
                        target.name,
                        target.capability
                    )));
                }
                if row.is_grouped() && (m.is_empty() || n.is_empty()) {
                    return Err(Reject::Schedule(
                        "a warpgroup instruction has rows and columns".into(),
                    ));
                }
                if !wm.is_multiple_of(row.warps()) {
                    return Err(Reject::Schedule(format!(
                        "{} is issued by {} warps along the rows together",
                        how.atom.name(),
                        row.warps()
                    )));
                }
                let m = Space::new(&order(&m), 16 * wm);
                let n = Space::new(&order(&n), 16 * wn);
                let group = row.warps();
                let divides = m.splits(16 * group, m.total / (16 * wm))
                    && m.splits(m.total / wm * group, wm / group)
                    && n.splits(8, n.total / (8 * wn))
                    && n.splits(n.total / wn, wn);
                if !divides {
                    return Err(undivided());
                }
                let k = match row.has_halves() {
                    true => Space::woven(&order(&k)),
                    false => Space::new(&order(&k), 16),
                };
                if let Some(most) = instruction.most_terms().filter(|most| k.total > *most) {
                    return Err(Reject::Schedule(format!(
                        "{} terms in sums that the instruction truncates: {most} at most",
                        k.total
                    )));
                }
                Contraction {
                    values: [a, b],
                    method: Method::Matrix(row),
                    operands: Vec::new(),
                    halves: None,
                    accumulator: Layout::accumulator(&m, &n, (wm, wn), row.warps(), false),
                    spaces: [m, n, k],
                    axes: axes.clone(),
                }
            }
            Scope::Thread => {
                let m = m.union(&batch);
                let tiles =
                    |set: &AxisSet| -> u64 { set.iter().map(|x| self.kernel.tile(x)).product() };
                // Threads own neighbours where those are neighbours in shared memory too.
                let run = |v: ValueId, computed: u64, set: &AxisSet| -> u64 {
                    let longest = match self.load_dtype(v) {
                        _ if self.patch(v, |x| self.kernel.tile(x)).is_some() => 1,
                        Some(Dtype::F32) => 4,
                        Some(_) | None => computed,
                    };
                    longest.min(tiles(set).next_power_of_two())
                };
                let (vector_m, vector_n) = (run(a, 1, &m), run(b, 4, &n));
                // What a warp has: threads' neighbours are shared out first, lanes get the rest.
                let share = |set: &AxisSet, warps: u64, vector: u64| {
                    let own = tiles(set).div_ceil(warps).next_power_of_two();
                    (own / vector).max(1)
                };
                let (most_m, most_n) = (share(&m, wm, vector_m), share(&n, wn, vector_n));
                let mut lanes_n = most_n.min(8);
                let mut lanes_m = 32 / lanes_n;
                if most_m < lanes_m {
                    lanes_m = most_m;
                    lanes_n = 32 / lanes_m;
                }
                let shape = OuterShape {
                    vector_m,
                    vector_n,
                    lanes_m,
                    lanes_n,
                };
                let m = Space::new(&order(&m), vector_m * lanes_m * wm);
                let n = Space::new(&order(&n), vector_n * lanes_n * wn);
                let odd =
                    |space: &Space, warps: u64| space.axes.len() > 1 && !warps.is_power_of_two();
                if odd(&m, wm) || odd(&n, wn) {
                    return Err(undivided());
                }
                let k = Space::new(&order(&k), 1);
                Contraction {
                    values: [a, b],
                    method: Method::Outer,
                    operands: Vec::new(),
                    halves: None,
                    accumulator: Layout::outer_product(&m, &n, shape, wm, wn),
                    spaces: [m, n, k],
                    axes: axes.clone(),
                }
            }
        };
        let mut contraction = contraction;
        if let Method::Outer = contraction.method {
            let [of_a, of_b] = [a, b].map(|x| self.kernel.several(self.axes(x)));
            let (all, own) = if of_b.is_subset(&of_a) {
                (a, b)
            } else {
                (b, a)
            };
            let [of_own, of_all] = [own, all].map(|x| self.kernel.several(self.axes(x)));
            if of_own.is_subset(&of_all) {
                let layout = self.fresh(self.axes(all));
                // Half of a thread's registers, less what addresses take.
                let room = target.registers(self.threads()) / 2;
                if layout.register_count() <= PRODUCT_REGISTERS.min(room) {
                    contraction.values = [all, own];
                    contraction.method = Method::Product;
                }
            }
        }
        match contraction.method {
            Method::Matrix(_) | Method::Outer => {
                self.layouts[v.index()] = Some(contraction.accumulator.clone());
                self.canonical.push(contraction.accumulator.distinct());
            }
            Method::Product => {
                self.fused.retain(|_, (c, _)| *c != v);
            }
        }
        self.contractions.insert(v, contraction);
        Ok(())
    }

    /// The element type in which a matrix instruction reads two operands.
    fn matrix_dtype(
        &self,
        instruction: &Instruction,
        a: ValueId,
        b: ValueId,
    ) -> Result<Dtype, Reject> {
        match instruction.operands {
            Operands::Single | Operands::Rounded | Operands::Split => return Ok(Dtype::F32),
            Operands::Half => {}
        }
        let loaded: Vec<Dtype> = [a, b].iter().filter_map(|v| self.load_dtype(*v)).collect();
        let half = match loaded.as_slice() {
            [] => self
                .tile
                .buffers
                .iter()
                .filter_map(|x| x.dtype.held())
                .find(|d| *d != Dtype::F32),
            [one] => Some(*one),
            [x, y, ..] => (x == y).then_some(*x),
        };
        match half {
            Some(d) if d != Dtype::F32 => Ok(d),
            Some(_) | None => Err(Reject::Schedule(
                "the operands are not of one 16-bit dtype".into(),
            )),
        }
    }

    /// The reduction that one carry of a loop folds up, `next = phi ∘ reduction` from the neutral element on with all of it used
    /// for nothing else: threads may then carry their own parts and combine them once, after the loop.
    pub(crate) fn folded(&self, number: usize, carry: &Carry) -> Option<Folded> {
        let TileOp::Map(map, args) = self.op(carry.next) else {
            return None;
        };
        let TileOp::Phi { init, .. } = self.op(carry.phi) else {
            return None;
        };
        // A sum may be multiplied on the way: what does that is the same in all threads that share an element, and parts are scaled as their sum is.
        let scaled = |x: ValueId| {
            matches!(self.op(x), TileOp::Map(MapOp::Mul, factors) if factors.contains(&carry.phi))
                && *map == MapOp::Add
                && self.uses[x.index()] == 1
                && self.loop_of[x.index()] == Some(number)
        };
        let carried = |x: ValueId| x == carry.phi || scaled(x);
        let other = match args.as_slice() {
            [x, y] if carried(*x) => *y,
            [x, y] if carried(*y) => *x,
            _ => return None,
        };
        let (op, from, axes) = match self.op(other) {
            TileOp::Reduce { op, value, axes } => {
                let from = self.layouts[value.index()].clone()?.distinct();
                (*op, from, axes.clone())
            }
            TileOp::Contract { axes, .. } => {
                let c = self.contractions.get(&other)?;
                let (Method::Product, Some(Operand::Registers(from))) =
                    (c.method, c.operands.first())
                else {
                    return None;
                };
                (ReduceOp::Sum, from.distinct(), axes.clone())
            }
            TileOp::Load { .. }
            | TileOp::Constant(_)
            | TileOp::Iota(_)
            | TileOp::Map(..)
            | TileOp::Scan { .. }
            | TileOp::Phi { .. }
            | TileOp::Final { .. } => return None,
        };
        let same = matches!(
            (op, map),
            (ReduceOp::Sum, MapOp::Add)
                | (ReduceOp::Max, MapOp::Max)
                | (ReduceOp::Product, MapOp::Mul)
        );
        let result = from.slice(&from.axes().minus(&axes));
        let lies = |v: ValueId| {
            self.layouts[v.index()]
                .as_ref()
                .is_some_and(|l| l.distinct() == result.distinct())
        };
        let alone = [carry.phi, carry.next, other]
            .iter()
            .all(|v| self.uses[v.index()] == 1);
        let here = self.loop_of[other.index()] == Some(number)
            && self.loop_of[carry.next.index()] == Some(number);
        let addend = args.iter().all(|x| *x == other || lies(*x));
        (same
            && alone
            && here
            && *init == op.neutral()
            && lies(carry.phi)
            && addend
            && lies(carry.next))
        .then_some(Folded {
            reduction: other,
            op,
            from,
            axes,
        })
    }

    /// Whether a value is a load that contractions read and nothing else does.
    pub(crate) fn only_contracted(&self, v: ValueId) -> bool {
        let reads: usize = self
            .contractions
            .values()
            .filter(|c| !matches!(c.method, Method::Product))
            .map(|c| c.values.iter().filter(|x| **x == v).count())
            .sum();
        self.load_dtype(v).is_some() && reads > 0 && reads as u32 == self.uses[v.index()]
    }
}

/// The axes of a kernel, and how it cuts them.
fn cut(tile: &TileProgram, kernel: &Kernel) -> Axes {
    let of = |(id, how): (&AxisId, &AxisTile)| {
        let own = &tile.axes[id.index()];
        let axis = Axis {
            name: own.name.clone(),
            extent: own.extent,
            tile: how.tile,
            whole: how.role == Role::Whole,
        };
        (*id, axis)
    };
    kernel.axes.iter().map(of).collect()
}

/// Axes in the order in which tiles should lie: those first along which memory is contiguous, by elements moved.
fn rank(tile: &TileProgram, kernel: &Kernel, cut: &Axes) -> Result<Vec<AxisId>, Reject> {
    let mut score: BTreeMap<AxisId, u64> = kernel.axes.keys().map(|a| (*a, 0)).collect();
    let mut count = |access: Access, axes: &AxisSet| {
        if let Some(unit) = access.unit_axis(cut) {
            let entry = score.entry(unit).or_default();
            *entry = entry.saturating_add(kernel.volume(axes));
        }
    };
    for value in &kernel.values {
        if let TileOp::Load {
            buffer,
            index,
            fill,
        } = &value.op
        {
            count(Access::load(tile, *buffer, index, *fill)?, &value.axes);
        }
    }
    for (buffer, value) in stores(&kernel.body) {
        let axes = &kernel.value(value).axes;
        count(Access::store(tile, buffer, axes)?, axes);
    }
    let mut order: Vec<AxisId> = score.keys().copied().collect();
    order.sort_by_key(|a| (std::cmp::Reverse(score[a]), std::cmp::Reverse(*a)));
    Ok(order)
}
