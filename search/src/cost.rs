//! What a tile program should cost on a target: a roofline for each kernel, and under a schedule what the clock of its machine program says
//! ([`codegen::clock`]).
//!
//! It ranks candidates and prunes them; measurements decide. Every quantity is counted from the tile program: how often
//! each statement runs, how large its tiles are, what it reads. How kernels overlap their own phases is a guess, in one
//! constant. The other constants here are estimates too: round figures near what kernels of this kind take on an H200. Those of
//! reading were chosen after timings of one streaming product under many rings, the others neither fitted nor measured alone.

pub mod floor;
mod traffic;

use codegen::Access;
use codegen::atoms::{self, Instruction, Operands, Scope, tflops};
use codegen::layout;
use codegen::passes::{delayed, instruction, pipeline, warps};
use ir::{
    AxisId, AxisSet, Bound, BufferId, BufferRole, Corner, Dtype, Fact, Kernel, KernelSchedule,
    Loop, MapOp, Quotient, Reject, Schedule, Statement, Target, TileOp, TileProgram, ValueId,
};
use std::collections::{BTreeMap, BTreeSet};
use traffic::{hbm_bytes, unique_bytes};

/// How much of the phases that are not the longest shows in a kernel's time: 0 is perfect overlap, 1 is none.
const EXPOSED: f64 = 0.25;
/// The same where copies feed warpgroup instructions, both of which run by themselves: of what threads compute between them, and of
/// the shorter ones of both. Estimates from large products and attention on one GPU.
const THREADS_EXPOSED: f64 = 0.5;
const COPIES_EXPOSED: f64 = 0.05;
/// What one iteration of a loop takes at least, in µs: a load from L2 and a barrier, with the next one in flight.
const ITERATION_US: f64 = 0.35;
/// Operations that an element takes which the first-level cache has: its address, whether it exists, and the load, which a quarter of the rate has.
const READ_AGAIN: f64 = 4.0;
/// Operations for each element of a scan: within a thread, across lanes, and what is in front of it.
const SCANNED: f64 = 4.0;
/// What a block takes at least, in µs: launch, first loads from memory, last stores.
const BLOCK_US: f64 = 1.2;
/// What a block of a group waits for its ticket, and how soon the next one is given, in µs.
const TICKET_US: f64 = 0.5;
const TICKETS_US: f64 = 0.001;
/// What a grid barrier of a block group takes, in µs: a store, a counter and a read that go to L2 one after another; and what every doubling
/// of the group adds, because the last one counts.
const GRID_BARRIER_US: f64 = 1.5;
const DOUBLING_US: f64 = 0.25;
/// Bytes a second that one multiprocessor can read, in TB/s, however many are under way.
const SM_TB_S: f64 = 0.08;
/// How long a byte is under way from memory while others are, in µs.
const WAY_US: f64 = 1.0;
/// Stages of a ring that a good schedule has, where there is room.
const STAGES: u64 = 5;
/// Bytes that come from memory together.
const SECTOR: f64 = 32.0;
/// Elements of an operand that are read from shared memory, computed with, and written back for a matrix instruction, a clock and
/// multiprocessor: nothing else of the block goes on meanwhile.
const STAGED_PER_CLOCK: f64 = 4.5;
/// Elements of 32 bits that a block can hold in registers beside everything else.
const HELD_ELEMENTS: u64 = 48 * 1024;

/// The terms of one kernel, in microseconds where the name says so.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelCost {
    /// The whole kernel, launch included.
    pub us: f64,
    /// Matrix instructions.
    pub tensor_us: f64,
    /// CUDA cores.
    pub cuda_us: f64,
    /// Special functions.
    pub special_us: f64,
    /// Device memory.
    pub hbm_us: f64,
    /// L2.
    pub l2_us: f64,
    /// What one multiprocessor takes to read its share, as far as it can have that under way.
    pub reading_us: f64,
    /// Shared memory.
    pub shared_us: f64,
    /// The serial time of the longest block, times the number of waves.
    pub latency_us: f64,
    /// The launch.
    pub launch_us: f64,
    /// Blocks of the grid.
    pub blocks: u64,
    /// Blocks that one multiprocessor holds at a time.
    pub resident: u64,
    /// Arithmetic operations.
    pub flops: u64,
    /// Bytes to and from device memory.
    pub bytes: u64,
    /// Bytes of operand tiles that a block keeps in shared memory, one stage each.
    pub shared_bytes: u64,
    /// Elements that a block keeps in registers.
    pub held: u64,
    /// Blocks that wait for each other; 1 where none does.
    pub block_group: u64,
    /// Blocks that find room at the same time.
    pub together: u64,
    /// What the clock's time consists of, where there is a schedule.
    pub clock: Option<codegen::clock::Parts>,
}

/// The predicted cost of a tile program.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// Microseconds.
    pub us: f64,
    /// Arithmetic operations.
    pub flops: u64,
    /// Bytes to and from device memory, were every kernel to read each element once.
    pub bytes: u64,
    /// Each kernel.
    pub kernels: Vec<KernelCost>,
}

/// The cost of a tile program under a schedule, or under a good one that is still to be found.
pub fn cost(tile: &TileProgram, schedule: Option<&Schedule>, target: &Target) -> Cost {
    let mut kernels: Vec<KernelCost> = tile
        .kernels
        .iter()
        .enumerate()
        .map(|(i, k)| kernel_cost(tile, k, schedule.and_then(|s| s.kernels.get(i)), target))
        .collect();
    if let Some(Ok(machines)) = schedule.map(|s| codegen::machines(tile, s, target)) {
        let clocked = codegen::clock::parts(tile, &machines, target);
        for (kernel, parts) in kernels.iter_mut().zip(clocked) {
            let us = parts[codegen::clock::Part::All];
            if us.is_finite() {
                kernel.us = us;
                kernel.clock = Some(parts);
            }
        }
    }
    Cost {
        us: kernels.iter().map(|k| k.us).sum(),
        flops: kernels.iter().map(|k| k.flops).fold(0, u64::saturating_add),
        bytes: kernels.iter().map(|k| k.bytes).fold(0, u64::saturating_add),
        kernels,
    }
}

/// Whether every kernel's tiles can fit a block of the target at all.
///
/// # Errors
/// The first kernel whose tiles cannot, with the numbers.
pub fn fits(cost: &Cost, target: &Target) -> Result<(), Reject> {
    for k in &cost.kernels {
        if k.block_group > k.together {
            return Err(Reject::Grid(format!(
                "block groups of {} blocks, and room for {}",
                k.block_group, k.together
            )));
        }
        if k.held > HELD_ELEMENTS {
            return Err(Reject::Registers {
                need: k.held,
                have: HELD_ELEMENTS,
            });
        }
        if k.shared_bytes > target.shared_per_block {
            return Err(Reject::SharedMemory {
                need: k.shared_bytes,
                have: target.shared_per_block,
            });
        }
    }
    Ok(())
}

/// Sums over one block while walking its statements.
#[derive(Default)]
struct Work {
    tensor_flops: f64,
    warpgroup_flops: f64,
    cuda_ops: f64,
    special: f64,
    load_bytes: f64,
    shared_bytes: f64,
    /// Elements of operands that are computed from what was loaded, and then read by a matrix instruction.
    staged: f64,
    flops: f64,
    /// What a block reads, by load.
    loads: Vec<Reading>,
    /// Operands of warpgroup instructions.
    ringed: BTreeSet<ValueId>,
    store_bytes: f64,
    trips: f64,
    held: u64,
}

impl Work {
    /// Bytes that a block reads to feed warpgroup instructions.
    fn ring_bytes(&self) -> f64 {
        let fed = self.loads.iter().filter(|l| self.ringed.contains(&l.value));
        fed.map(|l| l.bytes).sum()
    }
}

/// A load of a block.
#[derive(Clone)]
struct Reading {
    value: ValueId,
    /// Over all its executions.
    bytes: f64,
    around: Vec<Around>,
}

/// A loop around a value.
#[derive(Clone)]
struct Around {
    axis: AxisId,
    /// Axes that bound it from both sides: where they differ, other elements are visited.
    apart: AxisSet,
    /// What blocks visit together, times what one visits: where bounds are on one side, some blocks visit more than others and
    /// nothing else.
    together: f64,
    /// Mean iterations.
    trips: f64,
}

struct Walk<'a> {
    tile: &'a TileProgram,
    kernel: &'a Kernel,
    schedule: Option<&'a KernelSchedule>,
    target: &'a Target,
    /// Mean iterations of each loop of an axis, for repeats of a value.
    work: Work,
    operands: BTreeMap<ValueId, u64>,
    /// What exponentials do themselves, in one multiply-add.
    folded: BTreeSet<ValueId>,
    /// Sums that accumulate a contraction.
    accumulations: BTreeMap<ValueId, (ValueId, ValueId)>,
    /// The loop that each value is made in.
    loop_of: Vec<Option<usize>>,
    /// Operands of contractions.
    contracted: BTreeSet<ValueId>,
    /// What is read of each buffer in each loop, but for these.
    read: BTreeMap<(BufferId, Option<usize>), Vec<Access>>,
}

fn kernel_cost(
    tile: &TileProgram,
    kernel: &Kernel,
    schedule: Option<&KernelSchedule>,
    target: &Target,
) -> KernelCost {
    let mut walk = Walk {
        tile,
        kernel,
        schedule,
        target,
        work: Work::default(),
        loop_of: kernel.loops_of_values(),
        contracted: (0..kernel.values.len() as u32)
            .filter_map(|v| kernel.product(ValueId(v)))
            .flat_map(|product| [product.a, product.b])
            .collect(),
        read: BTreeMap::new(),
        operands: BTreeMap::new(),
        folded: codegen::exponents(tile, kernel),
        accumulations: kernel.accumulations(),
    };
    walk.body(&kernel.body, 1.0, 0, &[]);
    let operands: u64 = walk.operands.values().sum();
    let work = walk.work;
    let counts: Vec<(AxisId, u64)> = kernel
        .grid
        .iter()
        .map(|a| (*a, tile.extent(*a).div_ceil(kernel.tile(*a))))
        .collect();
    let blocks = counts.iter().fold(1_u64, |n, c| n.saturating_mul(c.1));
    let reduced = kernel.block_group();
    let rows = operands == 0 && !reduced.is_empty();
    let threads = schedule.map_or_else(
        || {
            let each = if rows { 32 } else { 64 };
            (work.held / each).next_power_of_two().clamp(64, 512)
        },
        |s| u64::from(warps::of(s).iter().product::<u32>()) * 32,
    );
    let stages = schedule.map_or(2, |s| u64::from(pipeline::of(s)));
    // A row's elements stay where they are while they are worked on.
    let most = u64::from(target.registers_per_thread);
    let registers = if rows {
        (work.held / threads + 32).clamp(32, most)
    } else {
        (work.held / threads * 2 + 40).clamp(64, most)
    };
    let by_registers = u64::from(target.registers_per_sm) / (registers * threads);
    let by_shared = target.shared_per_sm / target.taken_shared(operands * stages);
    let by_threads = u64::from(target.threads_per_sm) / threads;
    let resident = by_registers
        .min(by_shared)
        .min(by_threads)
        .min(u64::from(target.blocks_per_sm))
        .max(1);
    let sms = u64::from(target.sms);
    // Multiprocessors that have work, on average over the rounds.
    let rounds = blocks.div_ceil(sms).max(1);
    let busy = blocks as f64 / rounds as f64;
    let share = busy / sms as f64;
    let total = blocks as f64;
    let tera = |work: f64, rate: f64| work * total / (rate * share * 1e6);
    let per_clock = target.clock_ghz * 1e3 * busy; // SM clocks a µs
    let half = |scope| tflops(scope, Operands::Half, target).max(1.0);
    let tensor_us = tera(work.tensor_flops, half(Scope::Warp))
        + tera(work.warpgroup_flops, half(Scope::Warpgroup));
    let cuda_us = tera(work.cuda_ops, target.f32_tflops / 2.0);
    let special_us = work.special * total / (per_clock * target.special_per_clock);
    let shared_us = work.shared_bytes * total / (per_clock * 128.0);
    let (fed, ring_rate) = (work.ring_bytes(), target.l2_ring_tb_s.max(target.l2_tb_s));
    let others = work.load_bytes + work.store_bytes - fed;
    let l2_us = (others / target.l2_tb_s + fed / ring_rate) * total / (share * 1e6);
    let waves = blocks.div_ceil(sms * resident).max(1);
    let unique = unique_bytes(tile, kernel);
    let hbm = hbm_bytes(tile, kernel, &work, &counts, sms * resident, waves, target);
    let memory_rate = target.memory_tb_s.min(busy * SM_TB_S);
    let reading_us = reading_us(&work, operands, resident, rounds, schedule, target);
    // What fits in L2 is taken to be there already: timings are warm.
    let cold = hbm - (unique.min(target.l2_bytes / 2)) as f64;
    let hbm_us = cold.max(0.0) / (memory_rate * 1e6);
    let together = sms * resident;
    let block_group = tile.points(kernel, &reduced);
    let grid_barriers = kernel.grid_barriers().len();
    // Blocks wait at every grid barrier but the last one, if only one of them goes on behind it.
    let lasts = usize::from(grid_barriers > 0 && !kernel.all_go_on());
    let waits = grid_barriers > lasts;
    // Blocks that can be a cluster are one: its barrier is the hardware's, nobody takes a ticket, and all share out what one would do.
    let clustered = block_group <= u64::from(target.cluster_blocks);
    let (grid_barrier, ticket_us, tickets_us, sharing) = match clustered {
        true => (target.cluster_barrier_us, 0.0, 0.0, block_group as f64),
        false => {
            let grid_barrier = GRID_BARRIER_US + DOUBLING_US * (block_group as f64).log2();
            (grid_barrier, TICKET_US, TICKETS_US, 1.0)
        }
    };
    // Parts are combined when all else is done.
    let combined = partial_bytes(kernel, &reduced, block_group) / sharing;
    let last_us = lasts as f64 * (grid_barrier + combined / (SM_TB_S * 1e6));
    let each_us = match waits {
        false => 0.0,
        true => {
            // What a block reads at once and writes while others of its multiprocessor wait.
            let held = if work.trips == 0.0 {
                work.load_bytes + work.store_bytes
            } else {
                0.0
            };
            ticket_us + (grid_barriers - lasts) as f64 * grid_barrier + held / (SM_TB_S * 1e6)
        }
    };
    let latency_us = waves as f64
        * (BLOCK_US + each_us + work.trips * ITERATION_US * 2.0 / stages.max(1) as f64);
    // What comes from memory passes L2 on its way: they are one phase.
    let memory_us = hbm_us.max(l2_us).max(reading_us);
    let (threads_us, copies_us) = (cuda_us + special_us, memory_us + shared_us);
    let phases = [tensor_us, cuda_us, special_us, memory_us, shared_us];
    let all_us = tensor_us + threads_us + copies_us;
    let hidden_behind = |longest: f64| longest + EXPOSED * (all_us - longest);
    let throughput = if fed > 0.0 {
        // Products and the copies that feed them run beside each other.
        let base = tensor_us.max(memory_us).max(shared_us);
        let beside = tensor_us + copies_us - base;
        (base + THREADS_EXPOSED * threads_us + COPIES_EXPOSED * beside)
            .max(hidden_behind(cuda_us.max(special_us)))
    } else {
        hidden_behind(phases.iter().copied().fold(0.0, f64::max))
    };
    let us = match waits {
        false => throughput.max(latency_us),
        true => {
            // While a block group waits only others can use the machine: where all wait alike, because there is room for one or
            // because all start together, nothing overlaps, and elsewhere by chance: the norm is between sum and maximum.
            let slow = latency_us.max(total * tickets_us);
            let alike = (block_group as f64 / together as f64).max(1.0 / waves as f64);
            let waiting = throughput.min(waves as f64 * each_us);
            (throughput.powi(4) + slow.powi(4)).powf(0.25) + alike.min(1.0) * waiting
        }
    };
    // Only other blocks of the multiprocessor go on.
    let staging_us = work.staged * total / (per_clock * STAGED_PER_CLOCK * resident as f64);
    KernelCost {
        us: us + staging_us + last_us + target.launch_us,
        tensor_us,
        cuda_us,
        special_us,
        hbm_us,
        l2_us,
        reading_us,
        shared_us,
        latency_us,
        launch_us: target.launch_us,
        blocks,
        resident,
        flops: (work.flops * total) as u64,
        bytes: unique,
        shared_bytes: operands,
        held: work.held,
        block_group: if waits { block_group } else { 1 },
        together,
        clock: None,
    }
}

/// What a multiprocessor takes to read all that its blocks read one after another, as far as it can have that under way: what its
/// blocks' rings hold, and where there are none what one iteration reads.
fn reading_us(
    work: &Work,
    operands: u64,
    resident: u64,
    rounds: u64,
    schedule: Option<&KernelSchedule>,
    target: &Target,
) -> f64 {
    let each = work.load_bytes / work.trips.max(1.0);
    let stages = match (operands, schedule) {
        (0, _) => 1,
        (_, Some(s)) => u64::from(pipeline::of(s)) + u64::from(delayed::of(s)),
        (_, None) => (target.shared_per_block / operands).clamp(1, STAGES),
    };
    let most = target.shared_per_sm as f64;
    let under_way = (resident.min(rounds) as f64 * stages as f64 * each).min(most);
    let rate = SM_TB_S.min(under_way / (WAY_US * 1e6));
    rounds as f64 * work.load_bytes / (rate.max(1e-6) * 1e6)
}

/// Bytes of partial results that a block reads, of all blocks of its group.
fn partial_bytes(kernel: &Kernel, block_group: &AxisSet, ranks: u64) -> f64 {
    let across = kernel
        .reductions()
        .filter(|r| r.axes.intersects(block_group));
    let elements = |axes: &AxisSet| -> f64 { axes.iter().map(|a| kernel.tile(a) as f64).product() };
    let stored: f64 = across.map(|r| elements(&kernel.value(r.result).axes)).sum();
    4.0 * ranks as f64 * stored
}

impl Walk<'_> {
    fn elements(&self, axes: &AxisSet) -> f64 {
        axes.iter().map(|a| self.kernel.tile(a) as f64).product()
    }

    fn body(&mut self, body: &[Statement], times: f64, carried: u64, around: &[Around]) {
        for statement in body {
            match statement {
                Statement::Let(v) => self.value(*v, times, carried, around),
                Statement::Store { buffer, value } => {
                    let bytes = self.tile.buffer(*buffer).dtype.bytes() as f64;
                    self.work.store_bytes +=
                        self.elements(&self.kernel.value(*value).axes) * bytes * times;
                }
                Statement::Loop(l) => {
                    let trips = self.trips(l);
                    self.work.trips += trips * times;
                    let held = l
                        .carries
                        .iter()
                        .map(|c| self.elements(&self.kernel.value(c.phi).axes) as u64)
                        .sum::<u64>();
                    let by = |bounds: &[ir::Bound]| -> AxisSet {
                        bounds.iter().flat_map(ir::Bound::axes).collect()
                    };
                    let apart = by(&l.low).intersection(&by(&l.high));
                    let full = self.tile.extent(l.axis).div_ceil(self.kernel.tile(l.axis)) as f64;
                    let together = if apart.is_empty() {
                        full / trips.max(1.0)
                    } else {
                        1.0
                    };
                    let own = Around {
                        axis: l.axis,
                        apart,
                        together,
                        trips,
                    };
                    let around = [around, &[own]].concat();
                    self.body(&l.body, times * trips, carried + held, &around);
                }
            }
        }
    }

    fn value(&mut self, v: ValueId, times: f64, carried: u64, around: &[Around]) {
        let value = self.kernel.value(v);
        let elements = self.elements(&value.axes);
        match &value.op {
            TileOp::Load {
                buffer,
                index,
                fill,
            } => {
                let all = self.footprint(*buffer, index) * self.sectors(*buffer, index) * times;
                let access = Access::load(self.tile, *buffer, index, *fill).ok();
                let new = access.map_or(1.0, |access| self.not_yet_read(v, access));
                let bytes = all * new;
                self.work.cuda_ops += READ_AGAIN * elements * times * (1.0 - new);
                self.work.load_bytes += bytes;
                self.work.loads.push(Reading {
                    value: v,
                    bytes,
                    around: around.to_vec(),
                });
            }
            TileOp::Constant(_) | TileOp::Iota(_) | TileOp::Phi { .. } | TileOp::Final { .. } => {}
            TileOp::Map(op, _) => {
                self.work.flops += elements * times;
                // A sum that only accumulates a contraction is done by the contraction.
                let accumulates = self.accumulations.contains_key(&v);
                // A correction of what a loop carries is mostly by 1, and then left out.
                let corrects = self.kernel.rescales(v).is_some();
                let scales = *op == MapOp::Mul && self.folded.contains(&v);
                if !accumulates && !scales {
                    self.work.cuda_ops += elements * times * if corrects { 0.25 } else { 1.0 };
                }
                let fresh = if accumulates && carried > 0 {
                    0
                } else {
                    elements as u64
                };
                self.work.special += f64::from(op.row().work.special) * elements * times;
                self.hold(carried + fresh);
            }
            TileOp::Reduce { value: arg, .. } => {
                let all = self.elements(&self.kernel.value(*arg).axes);
                self.work.flops += all * times;
                self.work.cuda_ops += all * times;
                self.hold(carried + elements as u64);
            }
            TileOp::Scan { inclusive, .. } => {
                self.work.flops += elements * times;
                self.work.cuda_ops += SCANNED * elements * times;
                // Elements that are not in their own results are kept with them too.
                let arrays = if *inclusive { 1 } else { 2 };
                self.hold(carried + arrays * elements as u64);
            }
            TileOp::Contract { a, b, .. } => {
                let Some(product) = self.kernel.product(v) else {
                    return;
                };
                let k = self.elements(&product.k);
                let batch = self.elements(&product.batch);
                let (m, n) = (self.elements(&product.m), self.elements(&product.n));
                self.work.flops += 2.0 * batch * m * n * k * times;
                let given = self.schedule.and_then(|s| instruction::of(s, v));
                let given = given.and_then(|c| atoms::instruction(c.atom));
                let half = match given {
                    Some(given) => given.operands == Operands::Half,
                    None => matrix(self.tile, self.kernel, v),
                };
                let matrix = given.map_or(batch == 1.0, Instruction::is_matrix);
                let operands = match half {
                    true => Operands::Half,
                    false => Operands::Split,
                };
                let best = |scope| atoms::of(scope, operands, self.target).next();
                // A group of warps has the columns of one instruction; what reads longer rows needs all of them.
                let grouped = (64.0..=256.0).contains(&m.max(n));
                // Sides and depth as instructions go over them.
                let tiles = |axes: &AxisSet| -> Vec<u64> {
                    axes.iter().map(|a| self.kernel.tile(a)).collect()
                };
                let side = |axes: &AxisSet, to: u64| {
                    layout::padded(&tiles(axes), 1).next_multiple_of(to) as f64
                };
                let depth = |i: &Instruction| {
                    let by_threads = i.scope == Scope::Warpgroup && i.operands == Operands::Split;
                    match by_threads {
                        true => layout::woven(&tiles(&product.k)),
                        false => layout::padded(&tiles(&product.k), 16),
                    }
                };
                let suits = |i: &&Instruction| {
                    grouped && i.most_terms().is_none_or(|most| depth(i) <= most)
                };
                let instruction = match given {
                    Some(given) => Some(given).filter(|i| i.is_matrix()),
                    None => best(Scope::Warpgroup)
                        .filter(suits)
                        .or_else(|| best(Scope::Warp)),
                };
                let warpgroup = instruction.is_some_and(|i| i.scope == Scope::Warpgroup);
                // What a multiplication takes, where one in 16 bits takes 1.
                let each = instruction.map_or(1.0, |i| {
                    let half = tflops(i.scope, Operands::Half, self.target);
                    i.products() as f64 * half / i.tflops(self.target)
                });
                let (of_m, of_n) = (&product.m, &product.n);
                let padded = (side(of_m, 16) * side(of_n, 8)).min(side(of_n, 16) * side(of_m, 8));
                let deep = instruction.map_or(0, depth) as f64;
                let multiplied = 2.0 * batch * padded * deep * times * each;
                let added = batch * m * n * k * times;
                let half_of_warps = tflops(Scope::Warp, Operands::Half, self.target);
                let slower = half_of_warps / self.target.f32_tflops;
                let bytes = if matrix && multiplied < 2.0 * added * slower {
                    for (operand, side) in [(*a, m), (*b, n)] {
                        if self.is_staged(operand) {
                            self.work.staged += batch * k * side * times;
                        }
                    }
                    if warpgroup {
                        self.work.warpgroup_flops += multiplied;
                        if half {
                            self.work.ringed.extend([*a, *b]);
                        }
                    } else {
                        self.work.tensor_flops += multiplied;
                    }
                    if half { 2.0 } else { 4.0 }
                } else {
                    self.work.cuda_ops += added;
                    4.0
                };
                // Each operand is written once and read by every warp tile of 64 rows or columns.
                // Warpgroup instructions read their rows once for up to 256 columns.
                let wide = if matrix && warpgroup { 256.0 } else { 64.0 };
                self.work.shared_bytes += bytes
                    * batch
                    * k
                    * times
                    * (m * (1.0 + (n / wide).ceil()) + n * (1.0 + (m / 64.0).ceil()));
                for (operand, side) in [(*a, m), (*b, n)] {
                    if m > 1.0 && n > 1.0 {
                        let size = (batch * k * side * bytes) as u64;
                        self.operands.insert(operand, size);
                    }
                }
                // What is added to a carry is accumulated where the carry is.
                let added = |x: &ir::Value| matches!(&x.op, TileOp::Map(MapOp::Add, args) if args.contains(&v));
                let in_place = carried > 0 && self.kernel.values.iter().any(added);
                self.hold(carried + if in_place { 0 } else { elements as u64 });
            }
        }
    }

    /// Whether a value is computed element by element from what was loaded: another product's result stays in registers instead.
    fn is_staged(&self, v: ValueId) -> bool {
        let TileOp::Map(_, args) = &self.kernel.value(v).op else {
            return false;
        };
        let axes = &self.kernel.value(v).axes;
        let full = |a: &&ValueId| self.kernel.value(**a).axes == *axes;
        let mut loads = false;
        let mut stack: Vec<ValueId> = args.iter().filter(full).copied().collect();
        while let Some(arg) = stack.pop() {
            match &self.kernel.value(arg).op {
                TileOp::Load { .. } => loads = true,
                TileOp::Map(_, args) => stack.extend(args.iter().filter(full)),
                TileOp::Contract { .. } | TileOp::Phi { .. } | TileOp::Final { .. } => {
                    return false;
                }
                TileOp::Constant(_)
                | TileOp::Iota(_)
                | TileOp::Reduce { .. }
                | TileOp::Scan { .. } => {}
            }
        }
        loads
    }

    fn hold(&mut self, elements: u64) {
        self.work.held = self.work.held.max(elements);
    }

    /// The bytes that one execution of a load touches: per dimension the span of its index over the tiles.
    fn footprint(&self, buffer: ir::BufferId, index: &[Quotient]) -> f64 {
        let spans = (self.tile).footprint(buffer, index, |a| self.kernel.tile(a)) as f64;
        let axes: AxisSet = index
            .iter()
            .flat_map(|f| f.axes().as_slice().to_vec())
            .collect();
        let elements = self.elements(&axes);
        // A strided index touches fewer elements than its span.
        spans.min(elements) * self.tile.buffer(buffer).dtype.bytes() as f64
    }

    /// The share of what a load reads that no load before it in the same loop has read: views of one buffer mostly show the same elements, moved. What
    /// products read passes the first-level cache by.
    fn not_yet_read(&mut self, v: ValueId, access: Access) -> f64 {
        if self.contracted.contains(&v) {
            return 1.0;
        }
        let (kernel, tile) = (self.kernel, self.tile);
        let size = |a| kernel.tile(a).min(tile.extent(a));
        let around = self.loop_of[v.index()];
        let beside = self.read.entry((access.buffer, around)).or_default();
        let new = access.new_beside_all(beside.iter(), size);
        beside.push(access);
        new
    }

    /// The bytes of the sectors that a load touches, for each of the bytes that it wants: neighbours along the last axis
    /// share a sector, and those along others only where what is between them is wanted too, or is less than a sector.
    fn sectors(&self, buffer: ir::BufferId, index: &[Quotient]) -> f64 {
        let axes = self.tile.axes_loaded(buffer, index);
        let mut wanted = self.tile.buffer(buffer).dtype.bytes() as f64;
        // From the first wanted byte to behind the last, and from a row to the next.
        let (mut stretch, mut pitch) = (wanted, wanted);
        for (axis, f) in axes.into_iter().zip(index).rev() {
            let extent = self.tile.extent(axis) as f64;
            let span = f
                .range(|x| (0, self.kernel.tile(x) as i64 - 1))
                .map_or(1.0, |(low, high)| ((high - low + 1) as f64).min(extent));
            if stretch < pitch && pitch > SECTOR {
                break;
            }
            wanted *= span;
            stretch += pitch * (span - 1.0);
            pitch *= extent;
        }
        (stretch / SECTOR).ceil() * SECTOR / wanted
    }

    /// The mean number of iterations of a loop over the positions of the axes that its bounds mention.
    fn trips(&self, l: &Loop) -> f64 {
        let extent = self.tile.extent(l.axis) as f64;
        let tile = self.kernel.tile(l.axis) as f64;
        let full = (extent / tile).ceil();
        if l.low.is_empty() && l.high.is_empty() {
            return full;
        }
        const SAMPLES: u64 = 5;
        let axes: Vec<(AxisId, u64)> = l
            .bounding()
            .iter()
            .take(4)
            .map(|a| (a, self.tile.extent(a).div_ceil(self.kernel.tile(a))))
            .collect();
        let points = axes
            .iter()
            .map(|a| a.1.min(SAMPLES))
            .product::<u64>()
            .max(1);
        let mut sum = 0.0;
        for point in 0..points {
            let mut rest = point;
            let mut at = BTreeMap::new();
            for (a, count) in &axes {
                let samples = (*count).min(SAMPLES);
                let i = rest % samples;
                rest /= samples;
                // The middles of equal parts of the positions.
                at.insert(*a, (2 * i + 1) * count / (2 * samples));
            }
            let corner = |a: AxisId, c: Corner| {
                let size = self.kernel.tile(a);
                let first = at.get(&a).copied().unwrap_or(0) * size;
                match c {
                    Corner::First => first as f64,
                    Corner::Last => (first + size).min(self.tile.extent(a)) as f64 - 1.0,
                }
            };
            let eval = |b: &Bound| {
                let sum: f64 = b
                    .terms
                    .iter()
                    .map(|(c, a, at)| *c as f64 * corner(*a, *at))
                    .sum();
                let read = b.expected(extent as i64 / 2) as f64;
                ((sum + read + b.offset as f64) / b.divisor as f64).floor()
            };
            let low = l.low.iter().map(eval).fold(0.0, f64::max);
            let high = l.high.iter().map(eval).fold(extent, f64::min);
            sum += ((high / tile).ceil() - (low / tile).floor()).max(0.0);
        }
        sum / points as f64
    }
}

/// Whether a contraction may go through 16-bit matrix instructions: what is read directly is of one 16-bit dtype, and
/// nothing of 32 bits that a caller gave as a tensor goes into what is computed, unless the result is
/// [rounded](is_rounded) to 16 bits anyway.
pub(crate) fn matrix(tile: &TileProgram, kernel: &Kernel, contraction: ValueId) -> bool {
    let TileOp::Contract { a, b, .. } = kernel.value(contraction).op else {
        return false;
    };
    let direct: Vec<Dtype> = [a, b]
        .iter()
        .filter_map(|v| tile.buffer(kernel.value(*v).op.loaded()?).dtype.held())
        .collect();
    let one = direct.windows(2).all(|w| w[0] == w[1]);
    // Where both are computed, the coarsest that they may be rounded to.
    let mut halves = tile.buffers.iter().filter_map(|b| b.dtype.held());
    let coarsest = || match halves.clone().any(|d| d == Dtype::Bf16) {
        true => Some(Dtype::Bf16),
        false => halves.find(|d| *d != Dtype::F32),
    };
    let Some(half) = direct.first().copied().or_else(coarsest) else {
        return false;
    };
    one && half != Dtype::F32
        && ((narrow(tile, kernel, a) && narrow(tile, kernel, b))
            || is_rounded(tile, kernel, contraction, half))
}

/// Whether everything that a kernel stores of what a value goes into has 16 bits, no more of them digits than a dtype has, and is neither an
/// exponential nor a logarithm of it nor decided by it: an error of the size of that dtype's rounding stays one.
fn is_rounded(tile: &TileProgram, kernel: &Kernel, value: ValueId, dtype: Dtype) -> bool {
    let mut carries = Vec::new();
    let mut stores = Vec::new();
    let mut stack: Vec<&Statement> = kernel.body.iter().collect();
    while let Some(statement) = stack.pop() {
        match statement {
            Statement::Let(_) => {}
            Statement::Store { buffer, value } => stores.push((*buffer, *value)),
            Statement::Loop(l) => {
                carries.extend(l.carries.iter().map(|c| (c.next, c.phi)));
                stack.extend(&l.body);
            }
        }
    }
    let mut users: BTreeMap<ValueId, Vec<ValueId>> = BTreeMap::new();
    for (i, user) in kernel.values.iter().enumerate() {
        for v in user.op.operands() {
            users.entry(v).or_default().push(ValueId(i as u32));
        }
    }
    for (next, phi) in carries {
        users.entry(next).or_default().push(phi);
    }
    let mut seen = vec![false; kernel.values.len()];
    let mut stack = vec![value];
    while let Some(v) = stack.pop() {
        if std::mem::replace(&mut seen[v.index()], true) {
            continue;
        }
        for user in users.get(&v).into_iter().flatten() {
            let grows = match &kernel.value(*user).op {
                TileOp::Map(MapOp::Function(function), _) => !function.has(Fact::KeepsDigits),
                TileOp::Map(MapOp::Select, args) => args.first() == Some(&v),
                TileOp::Map(MapOp::Add | MapOp::Mul | MapOp::Div | MapOp::Max, _)
                | TileOp::Load { .. }
                | TileOp::Constant(_)
                | TileOp::Iota(_)
                | TileOp::Reduce { .. }
                | TileOp::Scan { .. }
                | TileOp::Contract { .. }
                | TileOp::Phi { .. }
                | TileOp::Final { .. } => false,
            };
            if grows {
                return false;
            }
            stack.push(*user);
        }
    }
    let coarse = |stored: Dtype| match (stored, dtype) {
        (Dtype::Bf16, _) => true,
        (Dtype::F16, rounded) => rounded != Dtype::Bf16,
        (Dtype::F32 | Dtype::I32 | Dtype::I64 | Dtype::Bool, _) => false,
    };
    (stores.iter()).all(|(b, v)| !seen[v.index()] || coarse(tile.buffer(*b).dtype))
}
/// Whether what a value is computed from has no 32 bits that a caller gave as a tensor: the dtype of [`ir::Program::dtypes`], where what
/// another kernel stored is of the dtype in which it is stored, and f32 between kernels of any.
fn narrow(tile: &TileProgram, kernel: &Kernel, v: ValueId) -> bool {
    let mut dtypes: Vec<Option<Dtype>> = Vec::with_capacity(kernel.values.len());
    for value in kernel.values.iter().take(v.index() + 1) {
        let of = |v: &ValueId| dtypes.get(v.index()).copied().flatten();
        let dtype = match &value.op {
            TileOp::Load { buffer, .. } => {
                let buffer = tile.buffer(*buffer);
                match (buffer.dtype, buffer.role) {
                    (Dtype::F32, BufferRole::Workspace | BufferRole::Output(_)) => None,
                    (dtype, _) => dtype.held(),
                }
            }
            TileOp::Map(op, args) => {
                let operands = args.iter().map(|a| (of(a), &kernel.value(*a).axes));
                Dtype::of_map(*op, &value.axes, operands)
            }
            TileOp::Reduce { value, .. } | TileOp::Scan { value, .. } => of(value),
            TileOp::Contract { a, b, .. } => Dtype::joined(of(a), of(b)),
            TileOp::Constant(_) | TileOp::Iota(_) | TileOp::Phi { .. } | TileOp::Final { .. } => {
                None
            }
        };
        dtypes.push(dtype);
    }
    dtypes.get(v.index()).copied().flatten() != Some(Dtype::F32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of two neighbours, one alone is in every sector that both are in; of eight, and of more, it has sectors for itself.
    #[test]
    fn rows_within_a_sector_share_it() {
        let target = crate::targets::target("h200").expect("a known target");
        let l2_us = |extent: u64, tile: u64| {
            let text = format!(
                "tile strided\naxis i = 8388608, j = {extent}\nbuffer x = parameter 0 f32 [i, j]\nbuffer y = output 0 f32 [i, j]\n\
                 kernel grid(i: 1024, j: {tile}) {{\n  a = load x[i, j]\n  store y = a\n}}\n"
            );
            let tile: TileProgram = text.parse().expect("a tile program");
            cost(&tile, None, &target).kernels[0].l2_us / extent as f64
        };
        let close = |x: f64, y: f64| assert!((x / y - 1.0).abs() < 0.02, "{x} {y}");
        // What is stored counts once in any case.
        close(l2_us(2, 1) / l2_us(2, 2), (2.0 + 1.0) / 2.0);
        close(l2_us(8, 1) / l2_us(8, 8), (8.0 + 1.0) / 2.0);
        close(l2_us(32, 1) / l2_us(32, 32), (8.0 + 1.0) / 2.0);
    }
}
