//! What statements of a machine program take: instructions, bytes, and what has to be waited for.

use super::Rates;
use super::timeline::Labels;
use crate::access::{self, Access, SECTOR};
use crate::functions;
use crate::layout::{Layout, ScanOver};
use crate::machine::counts::Iterations;
use crate::machine::resources::ordered;
use crate::machine::{
    Across, Among, Condition, Copy, FragmentId, Function, Input, LoopId, Machine, Multiply, Outer,
    Parts, Region, RingId, Rows, Source, Split, Statement, Sync, Turn,
};
use crate::print::run;
use ir::AxisId;
use std::collections::{BTreeMap, BTreeSet};

/// Instructions of each of a role's warps, and bytes of all of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// Instructions that are issued.
    pub(super) issue: f64,
    /// Those that half of the lanes carry out: comparisons, conversions.
    pub(super) half: f64,
    /// Those of the special-function unit.
    pub(super) special: f64,
    /// Bytes of shared memory.
    pub(super) shared: f64,
    /// Clocks of tensor cores, which are waited for.
    pub(super) tensor: f64,
    /// Clocks that go by beside them.
    pub(super) latency: f64,
}

/// Bytes that are read or written, and those of them that are in device memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic {
    /// What passes the first-level cache, which is shared memory: a line of it a clock, however little of that is wanted.
    pub(super) first: f64,
    pub(super) l2: f64,
    pub(super) memory: f64,
}

/// Instructions that run in the background.
#[derive(Clone, Copy, Debug)]
pub(super) struct Issued {
    /// Clocks of tensor cores.
    pub(super) tensor: f64,
    /// Bytes of shared memory.
    pub(super) shared: f64,
    /// Clocks until they begin.
    pub(super) latency: f64,
}

/// A step of a role.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Work(Work),
    /// Reads into registers.
    Load(FragmentId, Traffic),
    /// Registers have to be there.
    Need(FragmentId),
    Store(Traffic),
    /// Copies that are not waited for.
    Copy(Traffic),
    CopyCommit,
    CopyWait(usize),
    /// A stage is filled with boxes, or once the copies of the role have landed.
    Fill(RingId, Traffic),
    FillByCopies(RingId),
    Filled(RingId),
    /// Instructions that are not waited for.
    Issue(Issued),
    Commit,
    Wait(usize),
    Full(RingId),
    Empty(RingId),
    Release(RingId),
    Barrier(Among),
    TurnWait(u64),
    TurnPass(u64),
    /// A grid barrier.
    GridBarrier,
}

/// Clocks from an arithmetic instruction to its result, and of the last ones of a thread's reduction, each of which waits for the one before.
const RESULT: f64 = 6.0;
const CHAIN: f64 = 20.0;
/// Bytes of a line of the first-level cache.
const LINE: f64 = access::LINE as f64;

/// Wavefronts of shared memory for what the lanes of a warp read at once, `width` elements each: a bank gives one word each time, to all lanes that
/// want it.
fn wavefronts(region: &Region, part: &Layout, width: u64) -> u64 {
    const BANKS: usize = 32;
    let first = |lane: u64| -> u64 {
        let terms = region.axes.iter();
        terms
            .map(|(axis, _, stride)| part.coordinate(*axis, 0, lane, 0) * stride)
            .sum()
    };
    let bytes = region.dtype.bytes();
    let words = (0..32)
        .map(first)
        .flat_map(|at| (at..at + width).map(|n| n * bytes / 4));
    let mut words: Vec<u64> = words.collect();
    words.sort_unstable();
    words.dedup();
    let mut banks = [0; BANKS];
    for word in words {
        banks[word as usize % BANKS] += 1;
    }
    banks.into_iter().fold(1, u64::max)
}

/// Who goes through the statements.
pub(super) struct Walker<'a> {
    pub(super) machine: &'a Machine,
    pub(super) rates: &'a Rates,
    /// Where loops are that few iterations of are gone through.
    pub(super) iterations: Iterations<'a>,
    /// How many iterations each loop has.
    pub(super) real: &'a BTreeMap<LoopId, f64>,
    /// How often a statement comes in a tile.
    pub(super) times: f64,
    /// Tiles of a persistent block.
    pub(super) work_tiles: u64,
    /// Which of the roles that compute this is, and how many there are.
    pub(super) group: u64,
    pub(super) groups: u64,
    /// Fragments that are read.
    pub(super) read: BTreeSet<FragmentId>,
    pub(super) steps: Vec<Step>,
    /// What was loaded in this iteration of the innermost loop.
    pub(super) loaded: Vec<Access>,
    /// The statements of the steps, where somebody wants to see them.
    pub(super) labels: Option<Labels>,
    /// Warps of the role.
    pub(super) warps: u64,
}

impl Walker<'_> {
    pub(super) fn list(&mut self, body: &[Statement]) {
        for statement in ordered(body) {
            match &mut self.labels {
                None => self.statement(statement),
                Some(labels) => {
                    let before = labels.enter(self.steps.len(), statement, self.machine);
                    self.statement(statement);
                    let count = self.steps.len();
                    self.labels.iter_mut().for_each(|l| l.leave(count, before));
                }
            }
        }
    }

    fn work(&mut self, work: Work) {
        self.steps.push(Step::Work(work));
    }

    fn need(&mut self, x: &Source) {
        if let Source::Fragment(id) = x {
            self.steps.push(Step::Need(*id));
        }
    }

    fn registers(&self, id: FragmentId) -> f64 {
        self.machine.fragment(id).registers() as f64
    }

    /// Elements of a tile along an axis.
    fn tile(&self, axis: AxisId) -> Option<u64> {
        let own = self.machine.axes.get(&axis)?;
        Some(own.tile.min(own.extent))
    }

    /// Registers in which any thread has something of the tile: the compiler leaves out what is behind its end in all of them.
    fn registers_within(&self, layout: &Layout) -> f64 {
        let axes = layout.axes();
        let is_within = |register: &u64| {
            let first = |axis| layout.coordinate(axis, *register, 0, 0);
            axes.iter()
                .all(|axis| self.tile(axis).is_none_or(|end| first(axis) < end))
        };
        (0..layout.register_count()).filter(is_within).count() as f64
    }

    fn of(&self, x: &Source) -> f64 {
        match x {
            Source::Fragment(id) => self.registers(*id),
            Source::Constant(_) | Source::Coordinate(_) => 0.0,
        }
    }

    fn threads(&self) -> f64 {
        32.0 * self.warps as f64
    }

    fn is_taken(&self, condition: Condition) -> bool {
        let own = !matches!(condition, Condition::Group(n) if n != self.group);
        self.iterations.holds(condition).unwrap_or(own)
    }

    /// Bytes that move with so many elements of a tile: sectors are moved whole, and those that several threads read once.
    fn traffic(&self, access: &Access, elements: f64) -> Traffic {
        let each = access.dtype.bytes();
        let mut steps: Vec<(u64, u64)> = (access.coefficients.iter())
            .filter_map(|(axis, c)| Some((c.unsigned_abs(), self.tile(*axis)?)))
            .filter(|(step, _)| *step > 0)
            .collect();
        steps.sort_unstable();
        // Elements of a tile, and those of them that differ: `run` ones lie `apart` from each other, and that again `others` times.
        let all: u64 = steps.iter().map(|(_, count)| count).product();
        let (mut apart, mut run, mut others, mut neighbours) = (1, 1, 1, None);
        for (step, count) in steps {
            if step % apart == 0 && step / apart <= run {
                run += (count - 1) * step / apart;
            } else if count > 1 {
                neighbours = neighbours.or(Some((apart, run)));
                others *= run;
                (apart, run) = (step, count);
            }
        }
        let distinct = (others * run).min(all);
        // Elements that lie one behind the other.
        let row = match neighbours.unwrap_or((apart, run)) {
            (1, run) => run,
            _ => 1,
        };
        let bytes = row * each;
        let sectors = bytes.next_multiple_of(SECTOR) as f64 / bytes as f64;
        let wanted = elements * each as f64;
        let l2 = wanted * distinct as f64 / all as f64 * sectors;
        Traffic {
            first: wanted * (LINE / bytes as f64).max(1.0),
            l2,
            memory: l2 * self.rates.share(access, l2 * self.often(), self.machine),
        }
    }

    /// The share of a load's elements that no load of the same iteration has brought.
    fn not_yet_loaded(&mut self, access: &Access) -> f64 {
        let size = |axis| self.tile(axis).unwrap_or(1);
        let new = access.new_beside_all(self.loaded.iter(), size);
        self.loaded.push(access.clone());
        new
    }

    /// How often a statement comes in a tile, all roles that do the same together.
    fn often(&self) -> f64 {
        let roles = if self.group < self.groups {
            self.groups
        } else {
            1
        };
        self.times * roles as f64
    }

    fn map(&mut self, to: FragmentId, function: Function, args: &[Source]) {
        if !self.read.contains(&to) {
            return;
        }
        args.iter().for_each(|a| self.need(a));
        let n = self.registers(to);
        let precise = if self.machine.precise { 1.0 } else { 0.0 };
        let (issue, half, special) = match function {
            Function::Copy => (0.0, 0.0, 0.0),
            Function::ExpOfSum => (1.0, 0.0, 1.0),
            Function::Tf32 => (0.0, 2.0, 0.0),
            Function::Rest => (1.0, 0.0, 0.0),
            Function::Op(op) => {
                let row = functions::row(op);
                let issue = row.issue + row.precise_issue * precise;
                (issue, row.half, row.special)
            }
            Function::Bounded(bounded) => {
                let row = functions::row(bounded.op());
                let issue = row.issue + functions::shorter(bounded).precise_issue * precise;
                (issue, row.half, row.special)
            }
        };
        self.work(Work {
            issue: n * issue,
            half: n * half,
            special: n * special,
            latency: RESULT,
            ..Work::default()
        });
    }

    fn statement(&mut self, statement: &Statement) {
        match statement {
            Statement::Map { to, function, args } => self.map(*to, *function, args),
            Statement::Select { to, x, y, .. } => {
                self.need(x);
                self.need(y);
                let half = self.registers(*to);
                self.work(Work {
                    half,
                    latency: RESULT,
                    ..Work::default()
                });
            }
            Statement::ExpScale { scale, of, by, .. } => {
                self.need(of);
                self.need(by);
                let issue = 3.0 * self.registers(*scale);
                self.work(Work {
                    issue,
                    latency: RESULT,
                    ..Work::default()
                });
            }
            Statement::Mask { to, axes, .. } => {
                // Where the last tile alone has what does not exist, the others are not looked at.
                let layout = self.machine.fragment(*to).layout();
                let share = self.machine.only_last(&layout, axes).map_or(1.0, |last| {
                    let whole = last.iter().map(|a| {
                        let own = &self.machine.axes[a];
                        1.0 - 1.0 / own.extent.div_ceil(own.tile) as f64
                    });
                    1.0 - whole.product::<f64>()
                });
                let half = 2.0 * self.registers(*to) * share;
                self.work(Work {
                    half,
                    ..Work::default()
                });
            }
            Statement::IsNotOne { of, layout, .. } => {
                self.need(of);
                let half = layout.register_count() as f64;
                self.work(Work {
                    half,
                    ..Work::default()
                });
            }
            Statement::Reduce(r) => {
                r.factors.iter().for_each(|f| self.need(f));
                let n = r.from.distinct().register_count() as f64;
                let (sum, max) = match r.op {
                    ir::ReduceOp::Sum | ir::ReduceOp::Product => (n, 0.0),
                    ir::ReduceOp::Max => (0.0, n),
                };
                let products = n * r.factors.len().saturating_sub(2) as f64;
                self.work(Work {
                    issue: sum + products,
                    half: max,
                    latency: CHAIN,
                    ..Work::default()
                });
            }
            Statement::Scan(scan) => {
                self.need(&scan.of);
                let layout = self.machine.fragment(scan.to).layout();
                let results = if scan.inclusive { 1.0 } else { 2.0 };
                let others = layout.axes().minus(&[scan.axis].into_iter().collect());
                let lines = layout.slice(&others).register_count() as f64;
                let (mut issue, mut shuffles) = (self.registers(scan.to), 0.0);
                // Of the shuffles that wait for each other: all along registers, one run's of each digit along lanes.
                let (mut waited, mut digits) = (0.0, BTreeMap::new());
                for step in layout.scan(scan.axis).unwrap_or_default() {
                    let own = f64::from(u32::from(step.lanes != 0));
                    let across = match step.over {
                        ScanOver::Register => own,
                        ScanOver::Lanes { bits, .. } => own + f64::from(bits + 1),
                    };
                    issue += 2.0 * across + results * step.to.len() as f64;
                    shuffles += across;
                    match step.over {
                        ScanOver::Register => waited += own / lines,
                        ScanOver::Lanes { first, .. } => {
                            digits.insert(first, across);
                        }
                    }
                }
                waited += digits.values().sum::<f64>();
                self.work(Work {
                    issue,
                    shared: 128.0 * shuffles * self.warps as f64,
                    latency: CHAIN + self.rates.target.shuffle_latency_clocks * waited,
                    ..Work::default()
                });
            }
            Statement::AcrossLanes(a) => {
                self.need(&Source::Fragment(a.fragment));
                let n = self.registers(a.fragment) * a.masks.len() as f64;
                self.work(Work {
                    issue: 2.0 * n,
                    shared: 128.0 * n * self.warps as f64,
                    latency: self.rates.target.shuffle_latency_clocks * a.masks.len() as f64,
                    ..Work::default()
                });
            }
            Statement::PutParts(a) => self.parts(a, 1.0),
            Statement::TakeParts(a) => self.parts(a, self.machine.computing() as f64 / 32.0),
            Statement::Spill { from, .. } | Statement::Unspill { to: from, .. } => {
                let n = self.registers(*from);
                self.work(Work {
                    issue: 2.0 * n,
                    shared: 4.0 * n * self.threads(),
                    latency: self.rates.target.shared_latency_clocks,
                    ..Work::default()
                });
            }
            Statement::Publish {
                region,
                from,
                layout,
                ..
            } => {
                self.need(from);
                let n = layout.distinct().register_count() as f64;
                let each = self.machine.region(*region).dtype.bytes() as f64;
                let narrow = each < 4.0;
                self.work(Work {
                    issue: 3.0 * n,
                    half: if narrow { n } else { 0.0 },
                    shared: n * each * self.threads(),
                    latency: self.rates.target.shared_latency_clocks,
                    ..Work::default()
                });
            }
            Statement::Pack { from, .. } => {
                let n = self.registers(*from);
                self.work(Work {
                    half: n / 2.0,
                    latency: RESULT,
                    ..Work::default()
                });
            }
            Statement::Clear(region) => {
                let region = self.machine.region(*region);
                let bytes = (region.elements * region.dtype.bytes()) as f64 / self.groups as f64;
                self.work(Work {
                    issue: bytes / 16.0 / self.threads(),
                    shared: bytes,
                    ..Work::default()
                });
            }
            Statement::Load {
                to, access, width, ..
            } => {
                let layout = self.machine.fragment(*to).layout();
                let n = self.registers(*to);
                let mut traffic = self.traffic(access, n * self.distinct(&layout));
                // A line of the first-level cache a clock, of which what was loaded before is still there.
                let pieces = n / *width as f64;
                let lines = access.lines(&layout, *width) as f64;
                traffic.first = LINE * pieces * lines * self.warps as f64;
                let new = self.not_yet_loaded(access);
                traffic.l2 *= new;
                traffic.memory *= new;
                let half = if access.dtype.bytes() < 4 { n } else { 0.0 };
                let checks = access.checks.len() as f64;
                self.work(Work {
                    issue: pieces * (2.0 + 2.0 * checks),
                    half,
                    ..Work::default()
                });
                self.steps.push(Step::Load(*to, traffic));
            }
            Statement::Store(store) => {
                self.need(&store.from);
                let n = self.of(&store.from).max(1.0);
                let elements = n * self.distinct(&store.held);
                let mut traffic = self.traffic(&store.access, elements);
                // No cache in front of L2 keeps what is written until sectors are whole.
                let layout = store.gathered.as_ref().map_or(&store.held, |g| &g.layout);
                let least = elements * store.access.dtype.bytes() as f64;
                traffic.l2 = traffic
                    .l2
                    .max(least * store.access.waste(layout, store.width));
                let exchanged = if store.gathered.is_some() { n } else { 0.0 };
                self.work(Work {
                    issue: 2.0 * n / store.width as f64 + exchanged,
                    half: n / 2.0,
                    shared: 128.0 * exchanged * self.warps as f64 / 2.0,
                    ..Work::default()
                });
                self.steps.push(Step::Store(traffic));
            }
            // What it brings into L2 shows where the kernel waits for others: that is not looked at here.
            Statement::PrefetchBoxes(_) => {}
            Statement::Prefetch { layout, width, .. } => self.work(Work {
                issue: 2.0 * layout.register_count() as f64 / *width as f64,
                ..Work::default()
            }),
            Statement::Copy(copy) => self.copy(copy),
            Statement::CopyBoxes(ring) => {
                let mut all = Traffic::default();
                for id in &self.machine.ring(*ring).regions {
                    if let Some(boxes) = &self.machine.region(*id).boxes {
                        // What the blocks of a cluster share comes from L2 once.
                        let of = boxes.share.map_or(1, |_| self.machine.cluster);
                        let bytes = boxes.bytes(self.machine.cluster) as f64 / of as f64;
                        let buffer = boxes.map.buffer;
                        let unique: f64 = boxes.map.extents.iter().map(|e| *e as f64).product();
                        let share = self
                            .rates
                            .unique(buffer, 2.0 * unique, bytes * self.often());
                        all.l2 += bytes;
                        all.memory += bytes * share;
                    }
                }
                self.steps.push(Step::Fill(*ring, all));
            }
            Statement::Multiply(multiply) => self.multiply(multiply),
            Statement::Outer(outer) => self.outer(outer),
            Statement::Fetch { to, region, .. } => {
                let n = self.registers(*to);
                let each = self.machine.region(*region).dtype.bytes() as f64;
                self.work(Work {
                    issue: n,
                    shared: n * each * self.threads(),
                    latency: self.rates.target.shared_latency_clocks,
                    ..Work::default()
                });
            }
            Statement::Split(split) => self.split(split),
            Statement::Issue(issue) => {
                if let Rows::Fragment(id) = issue.a {
                    self.steps.push(Step::Need(id));
                }
                let [m, n, k] = issue.counts.map(|c| c as f64);
                let [rows, _, depth] = issue.row.shape().map(|s| s as f64);
                let columns = issue.columns as f64;
                let each = issue.row.operand.bytes() as f64;
                let operations = 2.0 * rows * columns * depth * m * n * k;
                let a = match issue.a {
                    Rows::SwizzleAtoms(_) => rows * depth * each,
                    Rows::Fragment(_) => 0.0,
                };
                let shared = (a + columns * depth * each) * m * n * k;
                self.work(Work {
                    issue: 6.0 * m * n * k,
                    ..Work::default()
                });
                self.steps.push(Step::Issue(Issued {
                    tensor: operations / self.rates.matrix(issue.row),
                    shared,
                    latency: issue.row.instruction.latency_clocks(&self.rates.target),
                }));
            }
            Statement::StorePartial(partial) => {
                let bytes = 4.0 * self.registers(partial.fragment) * self.threads();
                match partial.home {
                    Parts::Workspace(_) => self.steps.push(Step::Store(Traffic {
                        l2: bytes,
                        ..Traffic::default()
                    })),
                    Parts::Region(_) => self.work(Work {
                        issue: self.registers(partial.fragment),
                        shared: bytes,
                        ..Work::default()
                    }),
                }
            }
            Statement::ReducePartials(partial) => {
                let parts = self.machine.block_group.map_or(1, |t| t.size) as f64;
                let bytes = 4.0 * self.registers(partial.fragment) * self.threads() * parts;
                let id = partial.fragment;
                self.work(Work {
                    issue: 2.0 * parts * self.registers(id),
                    ..Work::default()
                });
                let traffic = Traffic {
                    l2: bytes,
                    ..Traffic::default()
                };
                self.steps.push(Step::Load(id, traffic));
                self.steps.push(Step::Need(id));
            }
            Statement::GridBarrier(_) | Statement::LastGoesOn => {
                self.steps.push(Step::Barrier(Among::Computing));
                self.steps.push(Step::GridBarrier);
            }
            Statement::Loop { number, body } => {
                let real = self.real.get(number).copied().unwrap_or(1.0).max(1.0);
                self.times *= real;
                let around = std::mem::take(&mut self.loaded);
                for iteration in 0..self.iterations.count(*number) {
                    self.iterations.begin(*number, iteration);
                    self.loaded.clear();
                    self.work(Work {
                        issue: 6.0,
                        latency: RESULT,
                        ..Work::default()
                    });
                    self.list(body);
                }
                self.loaded = around;
                self.times /= real;
            }
            Statement::Tiles(body) => {
                for _ in 0..self.work_tiles {
                    self.loaded.clear();
                    self.list(body);
                }
            }
            Statement::Scope(body) => self.list(body),
            Statement::If {
                condition,
                then,
                otherwise,
            } => match self.is_taken(*condition) {
                true => self.list(then),
                false => self.list(otherwise),
            },
            Statement::Sync(sync) => self.sync(*sync),
            Statement::Declare(_)
            | Statement::Range { .. }
            | Statement::Tile { .. }
            | Statement::OpenStages(_)
            | Statement::NextStage { .. }
            | Statement::PreviousStage { .. }
            | Statement::AdvanceStage { .. }
            | Statement::OpenRing(..)
            | Statement::AdvanceRing(_) => {}
        }
    }

    /// Threads of the role that hold different elements.
    fn distinct(&self, layout: &Layout) -> f64 {
        let digits = layout.lanes.iter().chain(&layout.warps);
        let alike = digits.filter(|f| f.axis.is_none()).map(|f| f.size);
        (self.threads() / alike.product::<u64>() as f64).max(1.0)
    }

    /// What each warp writes to scratch memory once, and reads so many times.
    fn parts(&mut self, across: &Across, times: f64) {
        let n = self.registers(across.fragment) * times;
        self.work(Work {
            issue: 2.0 * n,
            shared: 4.0 * n * across.columns() as f64 * self.warps as f64,
            latency: self.rates.target.shared_latency_clocks,
            ..Work::default()
        });
    }

    fn copy(&mut self, copy: &Copy) {
        let registers = copy.layout.register_count() as f64;
        let elements = registers * self.distinct(&copy.layout);
        let mut traffic = self.traffic(&copy.access, elements);
        let pieces = registers / copy.width as f64;
        // Four lanes a clock, however little each has.
        traffic.first = traffic.first.max(16.0 * pieces * self.threads());
        let checks = copy.access.checks.len() as f64;
        self.work(Work {
            issue: pieces * (4.0 + 3.0 * checks),
            ..Work::default()
        });
        self.steps.push(Step::Copy(traffic));
        if !copy.background {
            self.steps.push(Step::CopyCommit);
            self.steps.push(Step::CopyWait(0));
        }
    }

    fn split(&mut self, split: &Split) {
        let depth: u64 = split.depth.iter().map(|d| d.count).product();
        // Groups of those that compute share them out; warps that do nothing else have them all.
        let groups = if self.group < self.groups {
            self.groups
        } else {
            1
        };
        let chunks = (split.kept.count * depth) as f64 / 4.0 / groups as f64;
        // A chunk is read and both halves of it are written; each element takes three operations, of which two are of integers.
        let together = split.depth.first().is_some_and(|d| d.stride == 1);
        let reads = if together { 1.0 } else { 4.0 };
        let each = chunks / self.threads();
        self.work(Work {
            issue: each * (reads + 2.0 + 4.0),
            half: each * 8.0,
            shared: chunks * 3.0 * 16.0,
            latency: self.rates.target.shared_latency_clocks,
            ..Work::default()
        });
    }

    fn outer(&mut self, outer: &Outer) {
        // Its loops end with the tile.
        let steps = |(axis, padded): &(AxisId, u64)| {
            self.tile(*axis).map_or(*padded, |n| n.min(*padded)) as f64
        };
        let depth: f64 = outer.depth.iter().map(steps).product();
        let sums = self.registers_within(&self.machine.fragment(outer.into).layout());
        let (mut issue, mut shared) = (sums, 0.0);
        for ((region, _), part) in outer.inputs.iter().zip(&outer.parts) {
            let region = self.machine.region(*region);
            let registers = self.registers_within(part);
            let width = run(region, part);
            let reads = registers / width as f64;
            let bytes = LINE * (reads * wavefronts(region, part, width) as f64);
            let widened = if region.dtype.bytes() < 4 {
                registers
            } else {
                0.0
            };
            issue += reads + widened;
            shared += bytes * self.warps as f64;
        }
        self.work(Work {
            issue: issue * depth,
            shared: shared * depth,
            latency: self.rates.target.shared_latency_clocks,
            ..Work::default()
        });
    }

    fn multiply(&mut self, multiply: &Multiply) {
        let [m, n, k] = multiply.spaces.each_ref().map(|s| s.total as f64);
        let products = multiply.row.instruction.products() as f64;
        let share = 1.0 / self.groups as f64;
        let each = multiply.row.operand.bytes() as f64;
        let [across, along] = self.machine.warps.map(|w| w as f64);
        let mut shared = 0.0;
        for (input, bytes) in multiply.inputs.iter().zip([m * along, n * across]) {
            if let Input::Region(..) = input {
                shared += bytes * k * each * share;
            }
        }
        let [rows, columns, depth] = multiply.row.shape().map(|s| s as f64);
        let all = (m / rows) * (n / columns) * (k / depth) * share / self.warps as f64;
        let loads = shared / 512.0 / self.warps as f64;
        let converts = if multiply.row.splits() {
            6.0 * loads * 4.0
        } else {
            0.0
        };
        self.work(Work {
            issue: all * products + 2.0 * loads + converts,
            shared,
            tensor: 2.0 * m * n * k * share * products / self.rates.matrix(multiply.row),
            latency: self.rates.target.shared_latency_clocks
                + multiply.row.instruction.latency_clocks(&self.rates.target)
                    * (k / depth).min(2.0),
            ..Work::default()
        });
    }

    fn sync(&mut self, sync: Sync) {
        let step = match sync {
            Sync::Barrier(among) => Step::Barrier(among),
            Sync::CopyCommit => Step::CopyCommit,
            Sync::CopyWait(n) => Step::CopyWait(n as usize),
            Sync::Commit => Step::Commit,
            Sync::Wait(n) => Step::Wait(n as usize),
            Sync::Full(ring) => Step::Full(ring),
            Sync::Empty(ring) => Step::Empty(ring),
            Sync::Release(ring) | Sync::ReleasePrevious(ring) => Step::Release(ring),
            Sync::CopyArrive(ring) => Step::FillByCopies(ring),
            Sync::Filled(ring) => Step::Filled(ring),
            Sync::CopiesEnd => Step::CopyWait(0),
            Sync::TurnWait(turn) => Step::TurnWait(self.turn(turn)),
            Sync::TurnPass(turn) => Step::TurnPass(self.turn(turn)),
            Sync::Vote(_) => Step::Work(Work {
                issue: 4.0,
                latency: self.rates.target.barrier_clocks,
                ..Work::default()
            }),
            Sync::Warp | Sync::ReleasePeers(_) | Sync::ReleasePreviousPeers(_) => {
                Step::Work(Work {
                    issue: 1.0,
                    ..Work::default()
                })
            }
            Sync::ClusterBegins | Sync::ClusterEnds => Step::Work(Work {
                issue: 2.0,
                latency: self.rates.target.barrier_clocks,
                ..Work::default()
            }),
            Sync::ProxyFence | Sync::Keep(_) | Sync::StartNext | Sync::WaitBefore => return,
        };
        self.steps.push(step);
    }

    fn turn(&self, turn: Turn) -> u64 {
        match turn {
            Turn::Own => self.group,
            Turn::First => 0,
            Turn::Next => (self.group + 1) % self.groups.max(1),
        }
    }
}
