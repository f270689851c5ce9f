//! How long a kernel takes: one multiprocessor with its share of L2 and device memory, event by event.
//!
//! Roles of its blocks are agents that go through the statements of the machine program. What a statement takes is counted from it: instructions
//! of each kind, bytes of shared memory, operations of matrix instructions, bytes that are copied. Units carry these out one after another;
//! what is not waited for is under way until a statement needs it. Loops run a few times and the rest is extrapolated.
//!
//! It ranks schedules of tile programs and decides nothing: [`Target`] has the rates.

mod events;
mod parts;
pub mod timeline;
mod work;

pub use self::parts::{Part, Parts};

use self::events::Role;
use self::timeline::{Labels, Notes, Timeline};
use self::work::{Step, Walker};
use crate::access::Access;
use crate::atoms::AtomRow;
use crate::machine::counts::Iterations;
use crate::machine::resources::read;
use crate::machine::{LoopId, Machine, Statement};
use ir::{AxisId, Bound, BufferId, Corner, Kernel, Target, TileProgram};
use std::collections::{BTreeMap, BTreeSet};

/// Iterations of a loop that are gone through, and again for how much one more takes.
const FEW: u64 = 4;
const MORE: u64 = 8;
/// The share of L2 that buffers may take together if they are to be there the next time.
const STAYS: f64 = 0.7;
/// What is left of a launch that begins while the kernel in front of it ends.
const OVERLAPPED: f64 = 0.8;
/// After how many latencies of a single read the last line of a stage comes from device memory, while others read there too: on an H200 a product of 16
/// rows that streams 50 MB takes 16.6, 15.0 and 13.9 microseconds with 4, 5 and 6 stages of 10 KB.
const LAST_LINE: f64 = 1.5;
/// Iterations of a loop, and tiles of a persistent block, that a timeline shows.
const SHOWN: u64 = 5;
/// Blocks whose loops are looked at.
const SAMPLES: u64 = 64;

/// What one multiprocessor can do in a clock.
pub(crate) struct Rates {
    l2: f64,
    memory: f64,
    grid_barrier: f64,
    target: Target,
    /// Buffers that are in L2.
    stays: BTreeSet<BufferId>,
    /// Tiles of the grid.
    tiles: f64,
}

impl Rates {
    fn of(target: &Target, machine: &Machine, active: f64, stays: &BTreeSet<BufferId>) -> Self {
        let clock = target.clock_ghz * 1e9;
        let each = |tera: f64, by: f64| tera * 1e12 / by / clock;
        let l2 = match machine.producers.iter().any(|p| p.boxed) {
            true => target.l2_ring_tb_s.max(target.l2_tb_s),
            false => target.l2_tb_s,
        };
        let barrier = match machine.cluster {
            1 => target.grid_barrier_us,
            _ => target.cluster_barrier_us,
        };
        Self {
            l2: each(l2, active).min(target.l2_bytes_per_clock),
            memory: each(target.memory_tb_s, active).min(target.l2_bytes_per_clock),
            grid_barrier: barrier * target.clock_ghz * 1e3,
            stays: stays.clone(),
            target: target.clone(),
            tiles: machine.grid.tiles as f64,
        }
    }

    /// Multiplications and additions of a matrix instruction.
    fn matrix(&self, row: &AtomRow) -> f64 {
        let (sms, clock) = (f64::from(self.target.sms), self.target.clock_ghz * 1e9);
        row.instruction.tflops(&self.target) * 1e12 / sms / clock
    }

    /// The share of bytes that come from device memory, of `bytes` of a buffer that each tile moves of `unique` ones.
    fn unique(&self, buffer: BufferId, unique: f64, bytes: f64) -> f64 {
        if self.stays.contains(&buffer) {
            return 0.0;
        }
        (unique / (bytes * self.tiles).max(1.0)).min(1.0)
    }

    /// The same of what an access touches.
    fn share(&self, access: &Access, bytes: f64, machine: &Machine) -> f64 {
        let extent = |axis: &AxisId| machine.axes.get(axis).map_or(1.0, |a| a.extent as f64);
        let all: f64 = access.coefficients.keys().map(extent).product();
        self.unique(access.buffer, all * access.dtype.bytes() as f64, bytes)
    }

    fn latency(&self, traffic: work::Traffic) -> f64 {
        match traffic.memory > 0.0 {
            true => self.target.memory_latency_clocks,
            false => self.target.l2_latency_clocks,
        }
    }

    /// The same until all of a stage is there.
    fn stage_latency(&self, traffic: work::Traffic) -> f64 {
        let last = if traffic.memory > 0.0 { LAST_LINE } else { 1.0 };
        self.latency(traffic) * last
    }
}

/// Microseconds of each kernel of a tile program, where it runs again and again: what finds room in L2 is there. No finite number where the
/// warps of a block wait for what never happens.
pub fn us(tile: &TileProgram, machines: &[Machine], target: &Target) -> Vec<f64> {
    let all = parts(tile, machines, target).into_iter();
    all.map(|kernel| kernel[Part::All]).collect()
}

/// The same with what the time consists of, in microseconds.
pub fn parts(tile: &TileProgram, machines: &[Machine], target: &Target) -> Vec<Parts> {
    let all = machines.iter().enumerate();
    all.map(|(number, machine)| kernel(machine, &in_l2(tile, number, target), target))
        .collect()
}

/// Buffers that a kernel finds in L2: since one was last touched, by a kernel in front of it or in the run before, no more was touched than finds
/// room. What a kernel stores it stores at its end.
pub fn in_l2(tile: &TileProgram, kernel: usize, target: &Target) -> BTreeSet<BufferId> {
    let stored = |k: &Kernel| ir::stores(&k.body).into_iter().map(|s| s.0).collect();
    let loaded: Vec<BTreeSet<BufferId>> = tile.kernels.iter().map(Kernel::reads).collect();
    let stored: Vec<BTreeSet<BufferId>> = tile.kernels.iter().map(stored).collect();
    let bytes = |b: &BufferId| {
        let buffer = tile.buffer(*b);
        let elements: u64 = buffer.axes().map(|a| tile.extent(a)).product();
        elements * buffer.dtype.bytes()
    };
    let count = tile.kernels.len();
    let own: BTreeSet<BufferId> = loaded[kernel].union(&stored[kernel]).copied().collect();
    let stays = |b: &BufferId| {
        let mut since = own.clone();
        for before in 1..=count {
            let other = (kernel + count - before) % count;
            since.extend(&stored[other]);
            if stored[other].contains(b) {
                break;
            }
            since.extend(&loaded[other]);
            if loaded[other].contains(b) {
                break;
            }
        }
        (since.iter().map(bytes).sum::<u64>() as f64) < STAYS * target.l2_bytes as f64
    };
    own.iter().copied().filter(stays).collect()
}

/// What the clock sees of a multiprocessor that runs a kernel: its first blocks, side by side, from their first clock on.
///
/// Of each loop a few iterations are shown, so that it takes as long as they do.
pub fn timeline(tile: &TileProgram, number: usize, machine: &Machine, target: &Target) -> Timeline {
    let resident = resident(machine, target);
    let (blocks, work_tiles) = blocks(machine, resident, target);
    let sms = u64::from(target.sms);
    let stays = in_l2(tile, number, target);
    let rates = Rates::of(target, machine, sms.min(blocks) as f64, &stays);
    let (mean, most) = iterations(machine);
    let counts = match machine.grid.persistent || blocks > resident * sms {
        true => mean,
        false => most,
    };
    let few = |n: f64| (n.ceil() as u64).min(SHOWN);
    let shown = counts.iter().map(|(id, n)| (*id, few(*n))).collect();
    let side_by_side = blocks.div_ceil(sms).min(resident);
    let mut timeline = Timeline {
        blocks: side_by_side as usize,
        is_cut: work_tiles > SHOWN || counts.values().any(|n| *n > SHOWN as f64),
        ..Timeline::default()
    };
    let all = simulate(
        machine,
        &rates,
        [side_by_side, 1],
        (&shown, &counts),
        work_tiles.min(SHOWN),
        Some(&mut timeline),
    );
    timeline.clocks = all[Part::All];
    timeline
}

/// Blocks of a kernel, and how many tiles each of them makes at most.
fn blocks(machine: &Machine, resident: u64, target: &Target) -> (u64, u64) {
    let tiles = machine.grid.tiles;
    match machine.grid.persistent {
        true => {
            let blocks = tiles.min(resident * u64::from(target.sms));
            (blocks, tiles.div_ceil(blocks))
        }
        false => (tiles, 1),
    }
}

fn kernel(machine: &Machine, stays: &BTreeSet<BufferId>, target: &Target) -> Parts {
    let resident = resident(machine, target);
    let sms = u64::from(target.sms);
    let (blocks, work_tiles) = blocks(machine, resident, target);
    let (mean, most) = iterations(machine);
    let rates = Rates::of(target, machine, sms.min(blocks) as f64, stays);
    let at_a_time = resident * sms;
    let one = |resident: u64, after: u64, counts: &BTreeMap<LoopId, f64>| {
        block_clocks(
            machine,
            &rates,
            [resident, after],
            counts,
            work_tiles as f64,
        )
    };
    let clocks = if blocks <= at_a_time {
        // Persistent blocks have longer and shorter tiles in turn.
        let counts = match machine.grid.persistent {
            true => &mean,
            false => &most,
        };
        one(blocks.div_ceil(sms), 1, counts)
    } else {
        // One more block in each place, where others are there before and behind.
        let (whole, rest) = (blocks / at_a_time, blocks % at_a_time);
        let first = one(resident, 1, &mean);
        let more = match whole > 1 {
            true => (one(resident, 3, &mean) - first) / 2.0,
            false => Parts::default(),
        };
        let last = match rest {
            0 => Parts::default(),
            _ => {
                let mut last = one(rest.div_ceil(sms), 1, &mean);
                last[Part::All] += target.block_clocks;
                last
            }
        };
        first + more * (whole - 1) as f64 + last
    };
    let launch = match machine.overlaps {
        true => OVERLAPPED * target.launch_us,
        false => target.launch_us,
    };
    let mut us = clocks / (target.clock_ghz * 1e3);
    us[Part::Launch] = launch;
    us[Part::All] += launch;
    // What is waited for is not quite linear in iterations.
    for wait in Part::WAITS {
        us[wait] = us[wait].clamp(0.0, us[Part::All].max(0.0));
    }
    us
}

/// Blocks that a multiprocessor has room for.
fn resident(machine: &Machine, target: &Target) -> u64 {
    let threads = u64::from(target.threads_per_sm) / machine.threads();
    let shared = target.shared_per_sm / target.taken_shared(machine.shared_bytes());
    let room = threads.min(shared).min(u64::from(target.blocks_per_sm));
    room.min(registers(machine, target)).max(1)
}

/// The same by registers.
fn registers(machine: &Machine, target: &Target) -> u64 {
    let need = machine.resources().registers;
    let room = target.whole_registers(machine.threads() * u64::from(machine.blocks_per_sm));
    u64::from(target.registers_per_sm) / (need.min(room).max(16) * machine.threads())
}

/// Clocks of so many blocks together, extrapolated in loops that are long.
fn block_clocks(
    machine: &Machine,
    rates: &Rates,
    blocks: [u64; 2],
    counts: &BTreeMap<LoopId, f64>,
    work_tiles: f64,
) -> Parts {
    extrapolated(&nests(machine, counts, work_tiles), &mut |few| {
        let loops = few
            .iter()
            .filter_map(|(repeated, n)| Some(((*repeated)?, *n)));
        let loops = loops.collect();
        simulate(machine, rates, blocks, (&loops, counts), few[&None], None)
    })
}

/// What is repeated: a loop, or where none is named the work of a persistent block.
type Repeated = Option<LoopId>;

/// Something that is repeated, and what of that is inside it.
struct Nest {
    repeated: Repeated,
    count: f64,
    inside: Vec<Nest>,
}

impl Nest {
    /// Two numbers of iterations that are gone through; as many as there are, where these are few.
    fn few(&self) -> (u64, u64) {
        match self.count {
            n if n > MORE as f64 => (FEW, MORE),
            n => (n.floor() as u64, n.ceil() as u64),
        }
    }
}

/// The loops that have a count, each with those inside it. Around all of them is the work of a block, of so many tiles.
fn nests(machine: &Machine, counts: &BTreeMap<LoopId, f64>, work_tiles: f64) -> Vec<Nest> {
    fn within(body: &[Statement], left: &mut BTreeMap<LoopId, f64>) -> Vec<Nest> {
        let mut all = Vec::new();
        for statement in body {
            let mut own = None;
            if let Statement::Loop { number, .. } = statement {
                own = left.remove(number).map(|count| (*number, count));
            }
            let inside = statement
                .lists()
                .into_iter()
                .flat_map(|l| within(l, left))
                .collect();
            match own {
                Some((number, count)) => all.push(Nest {
                    repeated: Some(number),
                    count,
                    inside,
                }),
                None => all.extend(inside),
            }
        }
        all
    }
    let mut left = counts.clone();
    let mut inside = within(&machine.body, &mut left);
    // Loops of those alone that fill rings.
    for producer in &machine.producers {
        inside.extend(within(&producer.body, &mut left));
    }
    vec![Nest {
        repeated: None,
        count: work_tiles,
        inside,
    }]
}

/// A function of numbers of iterations at those of the nests: where one is more than a few, linear in it. What stands behind each other adds up, and what
/// is inside of something counts as often as that.
fn extrapolated(nests: &[Nest], at: &mut dyn FnMut(&BTreeMap<Repeated, u64>) -> Parts) -> Parts {
    fn begin(nests: &[Nest], few: &mut BTreeMap<Repeated, u64>) {
        for nest in nests {
            few.insert(nest.repeated, nest.few().0);
            begin(&nest.inside, few);
        }
    }
    fn together(
        nests: &[Nest],
        few: &mut BTreeMap<Repeated, u64>,
        at: &mut dyn FnMut(&BTreeMap<Repeated, u64>) -> Parts,
    ) -> Parts {
        let first = at(few);
        let beyond = nests.iter().map(|nest| {
            let (low, high) = nest.few();
            let mut with = |n| {
                few.insert(nest.repeated, n);
                let found = together(&nest.inside, few, at);
                few.insert(nest.repeated, low);
                found
            };
            let own = with(low);
            if low == high {
                return own - first;
            }
            let mut each = (with(high) - own) / (high - low) as f64;
            // No iteration takes less than none.
            each[Part::All] = each[Part::All].max(0.0);
            own - first + each * (nest.count - low as f64)
        });
        beyond.fold(first, |sum, more| sum + more)
    }
    let mut few = BTreeMap::new();
    begin(nests, &mut few);
    let mut seen = BTreeMap::new();
    together(nests, &mut few, &mut |few| {
        *seen.entry(few.clone()).or_insert_with(|| at(few))
    })
}

fn simulate(
    machine: &Machine,
    rates: &Rates,
    [resident, after]: [u64; 2],
    (counts, real): (&BTreeMap<LoopId, u64>, &BTreeMap<LoopId, f64>),
    work_tiles: u64,
    mut seen: Option<&mut Timeline>,
) -> Parts {
    let read = read(machine, &machine.body);
    let warps = machine.computing() / 32;
    let groups = warps.div_ceil(4);
    let is_seen = seen.is_some();
    let walk = |body: &[&[Statement]], group: u64, warps: u64| -> (Vec<Step>, Option<Labels>) {
        let mut walker = Walker {
            machine,
            rates,
            iterations: Iterations::new(counts),
            real,
            times: 1.0,
            work_tiles,
            group,
            groups,
            read: read.clone(),
            steps: Vec::new(),
            loaded: Vec::new(),
            labels: is_seen.then(Labels::default),
            warps,
        };
        for list in body {
            walker.list(list);
        }
        (walker.steps, walker.labels)
    };
    let computing = (0..groups).map(|g| {
        let warps = warps.min(4 * (g + 1)) - 4 * g;
        let body: [&[Statement]; 3] = [&machine.prologue, &machine.body, &machine.epilogue];
        (walk(&body, g, warps), warps, true)
    });
    let producing = machine.producers.iter().map(|producer| {
        let warps = producer.threads / 32;
        (walk(&[&producer.body], u64::MAX, warps), warps, false)
    });
    let roles: Vec<Role> = (computing.chain(producing))
        .map(|((steps, labels), warps, computes)| Role {
            steps,
            labels: match (labels, &mut seen) {
                (Some(labels), Some(seen)) => labels.into_steps(&mut seen.statements),
                (None | Some(_), None) | (None, Some(_)) => Vec::new(),
            },
            warps,
            computes,
        })
        .collect();
    let (resident, after) = (resident as usize, after as usize);
    let mut notes = is_seen.then(Notes::default);
    let rings = |ring| {
        let ring = machine.ring(ring);
        let readers = if ring.read_by.is_some() { 1 } else { groups };
        events::Ring {
            stages: ring.stages,
            readers: readers as usize,
        }
    };
    let spent = events::clocks(&roles, resident, after, rates, &rings, &mut notes);
    if let (Some(seen), Some(notes)) = (seen, notes) {
        seen.roles = roles.iter().map(|r| (r.computes, r.warps)).collect();
        (seen.bars, seen.busy) = (notes.bars, notes.busy);
    }
    spent
}

/// How far samples of so many tiles are apart: about the golden section of them, and prime to their number, so that a few samples are all
/// over every axis, and as many as there are tiles are each tile once.
fn apart(tiles: u64) -> u64 {
    const SECTION: f64 = 0.618_033_988_75;
    let near = (tiles as f64 * SECTION) as u64;
    let is_prime_to = |n: &u64| {
        let (mut x, mut y) = (*n, tiles);
        while y > 0 {
            (x, y) = (y, x % y);
        }
        x == 1
    };
    (near.max(1)..).find(is_prime_to).unwrap_or(1)
}

/// Iterations of each loop, in the mean and at most, over blocks all over the grid.
fn iterations(machine: &Machine) -> (BTreeMap<LoopId, f64>, BTreeMap<LoopId, f64>) {
    let mut mean = BTreeMap::new();
    let mut most = BTreeMap::new();
    let tiles = machine.grid.tiles;
    let samples = SAMPLES.min(tiles).max(1);
    let step = apart(tiles);
    for sample in 0..samples {
        let mut left = (sample * step) % tiles;
        let mut origins = BTreeMap::new();
        for axis in &machine.grid.coordinates {
            let own = machine.axes.get(&axis.axis).map_or(1, |a| a.tile);
            origins.insert(axis.axis, (left % axis.count * own) as i64);
            left /= axis.count;
        }
        let mut counts = BTreeMap::new();
        ranges(machine, &machine.body, &mut origins, &mut counts);
        for (number, count) in counts {
            *mean.entry(number).or_default() += count / samples as f64;
            let most: &mut f64 = most.entry(number).or_default();
            *most = most.max(count);
        }
    }
    (mean, most)
}

fn ranges(
    machine: &Machine,
    body: &[Statement],
    origins: &mut BTreeMap<AxisId, i64>,
    counts: &mut BTreeMap<LoopId, f64>,
) {
    for statement in body {
        if let Statement::Range {
            number,
            axis,
            low,
            high,
        } = statement
            && let Some(own) = machine.axes.get(axis)
        {
            let bound = |b: &Bound| {
                let term = |(c, a, corner): &(i64, AxisId, Corner)| {
                    let first = origins.get(a).copied().unwrap_or_default();
                    let axis = machine.axes.get(a);
                    let last =
                        axis.map_or(first, |x| (first + x.tile as i64).min(x.extent as i64) - 1);
                    c * match corner {
                        Corner::First => first,
                        Corner::Last => last,
                    }
                };
                let sum: i64 = b.terms.iter().map(term).sum();
                let read = b.expected(own.extent as i64 / 2);
                (sum + read + b.offset).div_euclid(b.divisor)
            };
            let from = low.iter().map(bound).fold(0, i64::max);
            let to = high.iter().map(bound).fold(own.extent as i64, i64::min);
            let tile = own.tile as i64;
            let count = (to.max(0) + tile - 1) / tile - from / tile;
            counts.insert(*number, count.max(0) as f64);
            // Where a loop is inside, this one is in its middle.
            origins.insert(*axis, (from + to) / 2 / tile * tile);
        }
        for inside in statement.lists() {
            ranges(machine, inside, origins, counts);
        }
    }
}
