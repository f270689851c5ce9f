//! Candidate schedules of a tile program, most promising first.
//!
//! The candidates come from what a kernel contracts and how large its tiles are; whether one of them really lowers, and
//! how fast it is, lowering, the compiler and measurements say. Nothing here is exact: estimates only order and prune.

#[cfg(test)]
mod tests;

use codegen::resources::{SWIZZLE_BYTES, producers_fit};
use ir::{
    Affine, Atom, AxisId, AxisSet, ContractSchedule, Dtype, Kernel, KernelSchedule, Overlap,
    Schedule, Statement, Target, TileOp, TileProgram, ValueId,
};
use std::collections::{BTreeMap, BTreeSet};

/// Candidates for one kernel, at most.
const KERNEL_CANDIDATES: usize = 24;

/// Candidate schedules, deterministic, most promising first: the best of every kernel, then the other candidates of one
/// kernel at a time.
pub fn schedules(tile: &TileProgram, target: &Target) -> Vec<Schedule> {
    let all: Vec<Vec<KernelSchedule>> = tile
        .kernels
        .iter()
        .map(|k| kernel_schedules(tile, k, target))
        .collect();
    let best = Schedule {
        kernels: all.iter().filter_map(|c| c.first().cloned()).collect(),
    };
    let mut found = vec![best.clone()];
    let most = all.iter().map(Vec::len).max().unwrap_or(0);
    for round in 1..most {
        for (k, candidates) in all.iter().enumerate() {
            if let Some(candidate) = candidates.get(round) {
                let mut schedule = best.clone();
                schedule.kernels[k] = candidate.clone();
                found.push(schedule);
            }
        }
    }
    found
}

/// One contraction as the choice of a schedule sees it.
struct Contraction {
    value: ValueId,
    atom: Atom,
    swap: bool,
    rows: u64,
    columns: u64,
    /// Its rows' operand is computed from another contraction: fragments pass in registers when no warps share rows.
    chained: bool,
    /// Coordinates of the larger operand, where the other one is broadcast along it: it is held in registers.
    spread: Option<u64>,
    /// Bytes of shared memory that its operands take once, and for each slot of a ring.
    fixed: u64,
    slot: u64,
    /// The outermost loop around it, by number.
    place: Option<usize>,
}

/// For each value the outermost loop around its statement, by number.
fn places(kernel: &Kernel) -> Vec<Option<usize>> {
    let outermost = kernel.outermost_loops();
    let inside = kernel.loops_of_values().into_iter();
    inside.map(|l| l.map(|number| outermost[number])).collect()
}

/// The coordinates that instructions go over: several axes are padded to powers of two each.
fn padded(kernel: &Kernel, axes: &AxisSet) -> u64 {
    let sizes: Vec<u64> = axes.iter().map(|a| kernel.tile(a)).collect();
    match sizes.as_slice() {
        [] => 1,
        [one] => *one,
        many => many
            .iter()
            .fold(1u64, |n, x| n.saturating_mul(x.next_power_of_two())),
    }
}

/// Elements of a value's tile, or of the part of the buffer that is loaded for it, whichever is less.
fn footprint(tile: &TileProgram, kernel: &Kernel, v: ValueId) -> u64 {
    let value = kernel.value(v);
    let whole = kernel.volume(&value.axes);
    match &value.op {
        TileOp::Load { buffer, index, .. } => tile
            .footprint(*buffer, index, |a| kernel.tile(a))
            .min(whole),
        TileOp::Constant(_)
        | TileOp::Iota(_)
        | TileOp::Map(..)
        | TileOp::Reduce { .. }
        | TileOp::Contract { .. }
        | TileOp::Phi { .. }
        | TileOp::Final { .. } => whole,
    }
}

fn loaded(tile: &TileProgram, kernel: &Kernel, v: ValueId) -> Option<Dtype> {
    Some(tile.buffer(kernel.value(v).op.loaded()?).dtype)
}

/// The contractions that a value is computed from by element-wise operations and reductions.
fn origins(
    kernel: &Kernel,
    v: ValueId,
    seen: &mut BTreeSet<ValueId>,
    found: &mut BTreeSet<ValueId>,
) {
    if !seen.insert(v) {
        return;
    }
    match &kernel.value(v).op {
        TileOp::Contract { .. } => {
            found.insert(v);
        }
        op @ (TileOp::Map(..) | TileOp::Reduce { .. }) => {
            let operands = op.operands();
            operands
                .iter()
                .for_each(|a| origins(kernel, *a, seen, found));
        }
        TileOp::Load { .. }
        | TileOp::Constant(_)
        | TileOp::Iota(_)
        | TileOp::Phi { .. }
        | TileOp::Final { .. } => {}
    }
}

/// Whether a value follows from loads by element-wise operations and reductions alone.
fn element_wise(kernel: &Kernel, v: ValueId) -> bool {
    match &kernel.value(v).op {
        TileOp::Load { .. } | TileOp::Constant(_) | TileOp::Iota(_) => true,
        op @ (TileOp::Map(..) | TileOp::Reduce { .. }) => {
            op.operands().iter().all(|a| element_wise(kernel, *a))
        }
        TileOp::Contract { .. } | TileOp::Phi { .. } | TileOp::Final { .. } => false,
    }
}

fn contractions(
    tile: &TileProgram,
    kernel: &Kernel,
    tensor: bool,
    split: bool,
) -> Vec<Contraction> {
    let wide =
        |axes: &AxisSet| -> AxisSet { axes.iter().filter(|a| kernel.tile(*a) > 1).collect() };
    let place = places(kernel);
    let mut found = Vec::new();
    // Rows wanted by later contractions whose computed operand comes from an earlier one.
    let mut wanted: BTreeMap<ValueId, AxisSet> = BTreeMap::new();
    for (i, value) in kernel.values.iter().enumerate().rev() {
        let TileOp::Contract { a, b, axes } = &value.op else {
            continue;
        };
        let id = ValueId(i as u32);
        let k = wide(axes);
        let (of_a, of_b) = (wide(&kernel.value(*a).axes), wide(&kernel.value(*b).axes));
        let batch = of_a.intersection(&of_b).minus(&k);
        let wide_kept = |of: &AxisSet| of.minus(&k).minus(&batch);
        let (kept_a, kept_b) = (wide_kept(&of_a), wide_kept(&of_b));
        let computed = |v: ValueId| !element_wise(kernel, v);
        let (computed_a, computed_b) = (computed(*a), computed(*b));
        let (size_a, size_b) = (kernel.volume(&kept_a), kernel.volume(&kept_b));
        let swap = match wanted.get(&id) {
            Some(rows) if *rows == kept_a && !kept_a.is_empty() => false,
            Some(rows) if *rows == kept_b && !kept_b.is_empty() => true,
            Some(_) | None if computed_a != computed_b => computed_b,
            Some(_) | None => size_b > size_a && size_a < 64,
        };
        let (rows_set, rows_value, chained) = if swap {
            (kept_b, *b, computed_b)
        } else {
            (kept_a, *a, computed_a)
        };
        if chained {
            let mut sources = BTreeSet::new();
            origins(kernel, rows_value, &mut BTreeSet::new(), &mut sources);
            for s in sources {
                wanted.entry(s).or_insert_with(|| rows_set.clone());
            }
        }
        let half = batch.is_empty() && !k.is_empty() && crate::cost::matrix(tile, kernel, id);
        let product = of_a.is_subset(&of_b) || of_b.is_subset(&of_a);
        let atom = if tensor && half && (!product || size_a.max(size_b) >= 16) {
            Atom::MmaM16N8K16
        } else if split && batch.is_empty() && !k.is_empty() && !product {
            Atom::MmaM16N8K8Tf32x3
        } else {
            Atom::Fma
        };
        let (kept_a, kept_b) = (wide_kept(&of_a), wide_kept(&of_b));
        let (all_a, all_b) = (padded(kernel, &kept_a), padded(kernel, &kept_b));
        let (rows, columns) = if swap { (all_b, all_a) } else { (all_a, all_b) };
        let (mut fixed, mut slot) = (0, 0);
        let spread =
            (atom == Atom::Fma && product).then(|| kernel.volume(&of_a).max(kernel.volume(&of_b)));
        for v in [*a, *b] {
            let memory = loaded(tile, kernel, v);
            let bytes = match atom {
                Atom::MmaM16N8K16 | Atom::WgmmaM64K16 => 2,
                Atom::Fma => memory.map_or(4, Dtype::bytes),
                Atom::MmaM16N8K8Tf32 | Atom::MmaM16N8K8Tf32x3 => 4,
            };
            let elements = match atom {
                Atom::Fma => footprint(tile, kernel, v),
                Atom::MmaM16N8K16
                | Atom::WgmmaM64K16
                | Atom::MmaM16N8K8Tf32
                | Atom::MmaM16N8K8Tf32x3 => kernel.volume(&kernel.value(v).axes),
            };
            let size = elements.saturating_mul(bytes);
            let held =
                spread.is_some() || (chained && v == rows_value && atom == Atom::MmaM16N8K16);
            if held {
                continue;
            }
            if memory.is_some() && place[v.index()].is_some() {
                slot += size;
            } else {
                fixed += size;
            }
        }
        found.push(Contraction {
            value: id,
            atom,
            swap,
            rows: rows.saturating_mul(kernel.volume(&batch)),
            columns,
            chained,
            spread,
            fixed,
            slot,
            place: place[i],
        });
    }
    found
}

/// Rows and columns below which three products of halves on tensor cores are no faster than one on CUDA cores.
const SPLIT_SIDE: u64 = 16;

/// Candidate schedules of one kernel, deterministic, most promising first.
pub fn kernel_schedules(
    tile: &TileProgram,
    kernel: &Kernel,
    target: &Target,
) -> Vec<KernelSchedule> {
    let plain = contractions(tile, kernel, false, false);
    if plain.is_empty() {
        return row_schedules(tile, kernel, target);
    }
    let tensor = contractions(tile, kernel, true, false);
    let blocks = tile.blocks(kernel);
    let mut all = warpgroup_schedules(&tensor, blocks, target);
    if kernel.team().is_empty() && even(&kernel.body) {
        all = all
            .into_iter()
            .flat_map(|s| stay(s, blocks, target))
            .collect();
    }
    if tensor.iter().any(|c| c.atom != Atom::Fma) {
        all.extend(contraction_schedules(
            &tensor,
            blocks,
            target,
            if all.is_empty() {
                KERNEL_CANDIDATES / 2
            } else {
                KERNEL_CANDIDATES / 4
            },
        ));
    }
    let split = contractions(tile, kernel, true, true);
    let splits = |c: &Contraction| c.atom == Atom::MmaM16N8K8Tf32x3;
    let share = if all.is_empty() { 2 } else { 4 };
    let others = contraction_schedules(&plain, blocks, target, KERNEL_CANDIDATES / share);
    let divided = if split.iter().any(splits) {
        contraction_schedules(&split, blocks, target, KERNEL_CANDIDATES / share)
    } else {
        Vec::new()
    };
    // CUDA cores are the first choice where tensor cores would mostly multiply padding.
    let padding = |c: &Contraction| splits(c) && c.rows.min(c.columns) < SPLIT_SIDE;
    if split.iter().any(padding) {
        all.extend(others);
        all.extend(divided);
    } else {
        all.extend(divided);
        all.extend(others);
    }
    let band = band(tile, kernel, target);
    all.iter_mut().for_each(|s| s.band = band);
    all
}

/// Whether every tile takes the same iterations: blocks that stay take their tiles in turn, however long each is.
fn even(body: &[Statement]) -> bool {
    body.iter().all(|s| match s {
        Statement::Let(_) | Statement::Store { .. } => true,
        Statement::Loop(l) => l.low.is_empty() && l.high.is_empty() && even(&l.body),
    })
}

/// A schedule, and the same with blocks that stay, where warps only fill rings and there are more tiles than find room.
fn stay(schedule: KernelSchedule, blocks: u64, target: &Target) -> Vec<KernelSchedule> {
    let room = u64::from(target.sms) * u64::from(schedule.blocks_per_sm);
    let mut both = vec![schedule];
    if both[0].overlap == Overlap::Turns && blocks > room {
        both.push(KernelSchedule {
            persistent: true,
            ..both[0].clone()
        });
    }
    both
}

/// Tiles of the second fastest axis of the grid that should be walked together, where blocks along one axis share one operand and
/// those along the other another one: those that run at a time then read the least.
fn band(tile: &TileProgram, kernel: &Kernel, target: &Target) -> u32 {
    let count = |a: AxisId| tile.extent(a).div_ceil(kernel.tile(a));
    let axes = kernel.grid.iter().rev().copied();
    let moving: Vec<AxisId> = axes.filter(|a| count(*a) > 1).take(2).collect();
    let &[fast, slow] = moving.as_slice() else {
        return 0;
    };
    // What a tile reads along one of the two axes and not along the other.
    let reads = |own: AxisId, other: AxisId| {
        let loads = kernel.values.iter().filter_map(|v| match &v.op {
            TileOp::Load { index, .. } => Some(index),
            TileOp::Constant(_)
            | TileOp::Iota(_)
            | TileOp::Map(..)
            | TileOp::Reduce { .. }
            | TileOp::Contract { .. }
            | TileOp::Phi { .. }
            | TileOp::Final { .. } => None,
        });
        let mentions = |index: &[Affine], a: AxisId| index.iter().any(|f| f.axes().contains(a));
        loads
            .filter(|index| mentions(index, own) && !mentions(index, other))
            .map(|_| kernel.tile(own) as f64)
            .sum::<f64>()
    };
    let (along_fast, along_slow) = (reads(fast, slow), reads(slow, fast));
    if along_fast == 0.0 || along_slow == 0.0 {
        return 0;
    }
    // g tiles of one axis and together / g of the other read g * slow + together / g * fast.
    let together = f64::from(target.sms);
    let best = (together * along_fast / along_slow).sqrt().max(1.0);
    if count(fast) as f64 <= together / best {
        return 0;
    }
    (best.round() as u64).min(count(slow)) as u32
}

/// What contractions take together in the loop that takes most, beside what stands outside loops: loops run one after
/// another.
fn by_place(contractions: &[Contraction], of: &dyn Fn(&Contraction) -> u64) -> u64 {
    let mut totals: BTreeMap<Option<usize>, u64> = BTreeMap::new();
    for c in contractions {
        *totals.entry(c.place).or_default() += of(c);
    }
    let outside = totals.remove(&None).unwrap_or(0);
    outside + totals.values().max().copied().unwrap_or(0)
}

/// Where the shorter side of a product is no longer, the time goes into streaming the other operand.
const STREAMED: u64 = 16;

/// Whether the time goes into reading the longer sides of all products, chained ones too.
fn streams(contractions: &[Contraction]) -> bool {
    (contractions.iter()).all(|c| c.rows.min(c.columns) <= STREAMED)
}

/// How much longer a grid takes than if its blocks were spread evenly, in per cent, where a multiprocessor holds so many at a time.
/// Where all find room at once they share it evenly; else the last of several waves takes as long as a whole one.
fn unevenness(blocks: u64, each: u64, target: &Target) -> u64 {
    let sms = u64::from(target.sms);
    let rounds = match blocks <= sms * each {
        true => blocks.div_ceil(sms),
        false => blocks.div_ceil(sms * each) * each,
    };
    (100 * rounds * sms / blocks.max(1)).saturating_sub(100)
}

/// Rows below which most of a warpgroup instruction would be padding.
const WARPGROUP_ROWS: u64 = 48;

/// Schedules in which warpgroup instructions carry out what matrix instructions can.
fn warpgroup_schedules(tensor: &[Contraction], grid: u64, target: &Target) -> Vec<KernelSchedule> {
    let matrix = |c: &&Contraction| c.atom == Atom::MmaM16N8K16;
    let suits = |c: &Contraction| c.rows >= WARPGROUP_ROWS && c.columns >= 8;
    if target.wgmma_16bit_tflops == 0.0
        || !tensor.iter().any(|c| matrix(&c))
        || !tensor.iter().filter(matrix).all(suits)
    {
        return Vec::new();
    }
    let chained = tensor.iter().any(|c| c.chained);
    let (fixed, slot) = (
        by_place(tensor, &|c| c.fixed),
        by_place(tensor, &|c| c.slot),
    );
    // One more slot for what a loop accumulates: the columns of chained contractions, both operands of others.
    let delayed = by_place(tensor, &|c| if c.chained == chained { c.slot } else { 0 });
    let rows = tensor.iter().filter(matrix).map(|c| c.rows).max();
    let streams = streams(tensor);
    let most_groups = rows.unwrap_or(1).div_ceil(64);
    let mut found: Vec<(u64, KernelSchedule)> = Vec::new();
    for (groups, wn) in [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2)] {
        if groups > most_groups || (chained && wn > 1) {
            continue;
        }
        let threads = 128 * groups * wn;
        let side = |all: u64, parts: u64, unit: u64| all.div_ceil(parts).next_multiple_of(unit);
        let registers = by_place(tensor, &|c| {
            let own = side(c.rows, groups, 64) * side(c.columns, wn, 16);
            own / 128 + if c.chained { own / 256 } else { 0 }
        });
        let order: &[u64] = if chained {
            &[2, 3, 4, 1]
        } else {
            &[4, 3, 5, 2, 1]
        };
        let all = order.iter().enumerate();
        let kinds = [Overlap::Turns, Overlap::Delayed, Overlap::None];
        for ((late, stages), overlap) in all.flat_map(|x| kinds.map(|k| (x, k))) {
            let more = match overlap {
                Overlap::None => 0,
                Overlap::Delayed | Overlap::Turns if *stages > 1 => delayed,
                Overlap::Delayed | Overlap::Turns => continue,
            };
            // Beside those that compute.
            let copying = overlap == Overlap::Turns;
            // Barriers, and what is lost where regions begin.
            let shared = fixed + slot.saturating_mul(*stages) + more + SWIZZLE_BYTES;
            if shared > target.shared_per_block {
                continue;
            }
            for blocks in [1, 2, 3, 4] {
                let room = target.whole_registers(threads * blocks);
                if copying && !producers_fit(target, blocks, threads, registers + 32) {
                    continue;
                }
                if registers + 32 > room
                    || blocks * target.taken_shared(shared) > target.shared_per_sm
                {
                    continue;
                }
                // Two or three groups a multiprocessor take turns at the tensor cores; large accumulators read least. What streams
                // wants all blocks to be under way at the same time.
                let together = blocks * groups * wn;
                let crowd = if streams {
                    let all = grid.div_ceil(u64::from(target.sms)).clamp(1, 4);
                    40 * blocks.abs_diff(all) + 20 * u64::from(together == 1)
                } else {
                    40 * together.abs_diff(2).min(4) + 100 * u64::from(together == 1)
                };
                let cost = crowd
                    + 2 * unevenness(grid, blocks, target)
                    + 10 * late as u64
                    + match overlap {
                        Overlap::Turns => 25,
                        Overlap::Delayed => 25,
                        Overlap::None => 45,
                    }
                    + 15 * (wn - 1)
                    + 128u64.saturating_sub(registers) / 4;
                found.push((
                    cost,
                    KernelSchedule {
                        warps_m: 4 * groups as u32,
                        warps_n: wn as u32,
                        stages: *stages as u32,
                        blocks_per_sm: blocks as u32,
                        overlap,
                        band: 0,
                        persistent: false,
                        contracts: tensor
                            .iter()
                            .map(|c| {
                                let atom = if matrix(&c) {
                                    Atom::WgmmaM64K16
                                } else {
                                    c.atom
                                };
                                let swap = c.swap;
                                (c.value, ContractSchedule { atom, swap })
                            })
                            .collect(),
                    },
                ));
            }
        }
    }
    found.sort_by_key(|f| f.0);
    let mut found: Vec<KernelSchedule> = found.into_iter().map(|f| f.1).collect();
    found.truncate(KERNEL_CANDIDATES / 2);
    found
}

/// Warps, stages and occupancy for given instructions.
fn contraction_schedules(
    contractions: &[Contraction],
    grid: u64,
    target: &Target,
    most: usize,
) -> Vec<KernelSchedule> {
    let chained = contractions.iter().any(|c| c.chained);
    let rows = contractions.iter().map(|c| c.rows).max().unwrap_or(1);
    let columns = contractions.iter().map(|c| c.columns).max().unwrap_or(1);
    let by_place = |of: &dyn Fn(&Contraction) -> u64| by_place(contractions, of);
    let (fixed, slot) = (by_place(&|c| c.fixed), by_place(&|c| c.slot));
    let shared = |stages: u64| (fixed + slot.saturating_mul(stages)).saturating_mul(9) / 8;
    let matrix = contractions.iter().all(|c| c.atom != Atom::Fma);
    let unit = if matrix { 16 } else { 4 };
    // What one warp has of a side, padded to what its lanes cover.
    let side = |all: u64, warps: u64, most: u64| -> u64 {
        let own = all.div_ceil(warps);
        let step = if matrix {
            16
        } else {
            own.next_power_of_two().min(most)
        };
        own.next_multiple_of(step)
    };
    let accumulators = |warps_m: u64, warps_n: u64| -> u64 {
        by_place(&|c| match c.spread {
            Some(coordinates) => coordinates / (32 * warps_m * warps_n),
            None => {
                // Splitting instructions sum a few steps apart.
                let sums = if c.atom == Atom::MmaM16N8K8Tf32x3 {
                    2
                } else {
                    1
                };
                sums * side(c.rows, warps_m, 16) * side(c.columns, warps_n, 32) / 32
            }
        })
    };
    let streams = streams(contractions);
    // Nothing but streaming: many small blocks and deep rings.
    let stream = streams && !chained;
    let mut choices: Vec<(u64, u32, u32)> = Vec::new();
    for warps in [1u64, 2, 4, 8, 16] {
        for shift in 0..=warps.trailing_zeros() {
            let (wn, wm) = (1u64 << shift, warps >> shift);
            // Tiles are padded to what all warps cover.
            let idle = |of: &dyn Fn(&Contraction) -> u64, warps: u64| -> u64 {
                let all = contractions.iter();
                all.map(|c| (unit * warps).saturating_sub(of(c).next_multiple_of(unit)))
                    .sum()
            };
            let idle = idle(&|c| c.rows, wm) + idle(&|c| c.columns, wn);
            let registers = accumulators(wm, wn);
            let limit = if warps == 16 { 80 } else { 160 };
            if registers > limit && warps < 16 {
                continue;
            }
            // Fragments read from shared memory a depth step: by all warps where that is what instructions wait for, else
            // by one, against accumulators. Larger and squarer warp tiles read less.
            let traffic = if matrix && !chained && !stream {
                (rows * wn + columns * wm) / 4
            } else {
                rows.div_ceil(wm) + columns.div_ceil(wn)
            };
            let size = match (warps, stream) {
                (8, false) | (2 | 4, true) => 0,
                (4, false) | (8, true) => 8,
                (1, true) => 24,
                (16, _) => 40,
                (2, false) => 80,
                _ => 160,
            };
            // Fragments of few rows are soon handed over; and the rest of the warps would have nothing to do.
            let torn = if chained && wn > 1 && rows > unit {
                400
            } else {
                0
            };
            let few = 64u64.saturating_sub(registers);
            let cost =
                traffic + size + torn + few / 2 + 4 * idle + 4 * registers.saturating_sub(128);
            choices.push((cost, wm as u32, wn as u32));
        }
    }
    choices.sort_unstable();
    let mut found = Vec::new();
    let fits = |stages: u64| shared(stages) <= target.shared_per_block;
    let order: &[u32] = match (chained, streams) {
        (true, true) | (false, false) => &[3, 4, 2, 1],
        (true, false) => &[2, 3, 1],
        (false, true) => &[4, 5, 3, 2, 1],
    };
    let mut stages: Vec<u32> = order
        .iter()
        .copied()
        .filter(|s| fits(u64::from(*s)))
        .collect();
    if stages.is_empty() {
        stages.push(1);
    }
    // While one block starts or ends another one streams: slots that leave room for two come first.
    if stream {
        stages
            .sort_by_key(|s| 2 * target.taken_shared(shared(u64::from(*s))) > target.shared_per_sm);
    }
    // More blocks an SM hide what one waits for; matrix instructions want the registers more.
    let mut occupancies: Vec<u64> = match (matrix, stream) {
        (_, true) => vec![4, 2, 1],
        (true, false) if streams => vec![2, 1, 3, 4],
        (true, false) => vec![1, 2, 4],
        (false, false) => vec![2, 1, 4],
    };
    if streams && chained {
        occupancies.sort_by_key(|each| unevenness(grid, *each, target) / 10);
    }
    // (round, choice, stages): the first choices with the first stages, then the others.
    let mut tries: Vec<(usize, usize, usize)> = Vec::new();
    for i in 0..stages.len() {
        for at in 0..choices.len().min(6) {
            tries.push((i + at / 2, at, i));
        }
    }
    tries.sort_unstable();
    for (_, at, i) in tries {
        let (Some((_, wm, wn)), Some(s)) = (choices.get(at), stages.get(i)) else {
            continue;
        };
        let mut tried = Vec::new();
        for &blocks in &occupancies {
            let threads = u64::from(32 * wm * wn);
            let room = target.registers(threads * blocks);
            let needed = accumulators(u64::from(*wm), u64::from(*wn)) + 48;
            let shared = shared(u64::from(*s));
            let small = streams || blocks < 4;
            if blocks > 1
                && (!small
                    || needed > room
                    || blocks * shared > target.shared_per_sm
                    || (i > 0 && !streams))
            {
                continue;
            }
            // The same registers make the same kernel.
            if tried.contains(&room) {
                continue;
            }
            tried.push(room);
            found.push(KernelSchedule {
                warps_m: *wm,
                warps_n: *wn,
                stages: *s,
                blocks_per_sm: blocks as u32,
                overlap: Overlap::None,
                band: 0,
                persistent: false,
                contracts: contractions
                    .iter()
                    .map(|c| {
                        let schedule = ContractSchedule {
                            atom: c.atom,
                            swap: c.swap,
                        };
                        (c.value, schedule)
                    })
                    .collect(),
            });
            if stream {
                break;
            }
        }
    }
    found.truncate(most);
    found
}

/// Kernels without contraction: warps along rows where something is reduced, as many as leave each thread some work.
fn row_schedules(tile: &TileProgram, kernel: &Kernel, target: &Target) -> Vec<KernelSchedule> {
    let elements = kernel
        .values
        .iter()
        .map(|v| kernel.volume(&v.axes))
        .max()
        .unwrap_or(1);
    let reduced = kernel
        .values
        .iter()
        .filter_map(|v| match &v.op {
            TileOp::Reduce { axes, .. } => Some(kernel.volume(axes)),
            TileOp::Load { .. }
            | TileOp::Constant(_)
            | TileOp::Iota(_)
            | TileOp::Map(..)
            | TileOp::Contract { .. }
            | TileOp::Phi { .. }
            | TileOp::Final { .. } => None,
        })
        .max();
    let mut found = Vec::new();
    // (elements of a thread, registers beside them). Teams keep their elements while they wait, and want others to work then.
    let plain = [16u64, 8, 32, 64].map(|each| (each, None));
    // Elements that may not exist take registers for their conditions.
    let partial = |a: &ir::AxisId| !tile.extent(*a).is_multiple_of(kernel.tile(*a));
    let beside = if kernel.axes.keys().any(partial) {
        48
    } else {
        32
    };
    let waiting = [
        (32u64, beside),
        (64, beside),
        (16, beside),
        (32, 64),
        (128, 72),
        (16, 16),
        (64, 64),
        (64, 190),
    ];
    let choices: Vec<(u64, Option<u64>)> = if kernel.team().is_empty() {
        plain.to_vec()
    } else {
        waiting.map(|(each, rest)| (each, Some(rest))).to_vec()
    };
    for (each, rest) in choices {
        let warps = (elements / (32 * each)).clamp(1, 32).next_power_of_two();
        let threads = 32 * warps;
        let blocks = rest.map_or(1, |rest| {
            let fit = u64::from(target.registers_per_sm) / (threads * (each + rest));
            let most = u64::from(target.threads_per_sm) / threads;
            fit.clamp(1, most.min(u64::from(target.blocks_per_sm)))
        });
        let along = match reduced {
            Some(length) => (length / (32 * 8))
                .clamp(1, warps)
                .next_power_of_two()
                .min(warps),
            None => warps,
        };
        let schedule = KernelSchedule {
            warps_m: (warps / along) as u32,
            warps_n: along as u32,
            stages: 1,
            blocks_per_sm: blocks as u32,
            overlap: Overlap::None,
            band: 0,
            persistent: false,
            contracts: BTreeMap::new(),
        };
        if !found.contains(&schedule) {
            found.push(schedule);
        }
    }
    found
}
