//! Schedules in which single warps contract, on tensor cores or on CUDA cores.

use super::contractions::{Contraction, by_place, streams};
use super::grid::unevenness;
use codegen::atoms::Sums;
use codegen::passes::{pipeline, registers, warps};
use ir::{KernelSchedule, Target};

/// Warps, stages and occupancy for given instructions.
pub(super) fn contraction_schedules(
    contractions: &[Contraction],
    grid: u64,
    target: &Target,
    most: usize,
) -> Vec<KernelSchedule> {
    let back_to_back = contractions.iter().any(|c| c.back_to_back);
    let rows = contractions.iter().map(|c| c.rows).max().unwrap_or(1);
    let columns = contractions.iter().map(|c| c.columns).max().unwrap_or(1);
    let by_place = |of: &dyn Fn(&Contraction) -> u64| by_place(contractions, of);
    let (fixed, per_stage) = (by_place(&|c| c.fixed), by_place(&|c| c.per_stage));
    let shared = |stages: u64| (fixed + per_stage.saturating_mul(stages)).saturating_mul(9) / 8;
    let matrix = contractions.iter().all(|c| c.instruction.is_matrix());
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
                let sums = match c.instruction.sums {
                    Sums::InPlace => 1,
                    Sums::Apart { .. } => 2,
                };
                sums * side(c.rows, warps_m, 16) * side(c.columns, warps_n, 32) / 32
            }
        })
    };
    let streams = streams(contractions);
    // Nothing but streaming: many small blocks and deep rings.
    let stream = streams && !back_to_back;
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
            let traffic = if matrix && !back_to_back && !stream {
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
            let torn = if back_to_back && wn > 1 && rows > unit {
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
    let order: &[u32] = match (back_to_back, streams) {
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
    // While one block starts or ends another one streams: stages that leave room for two come first.
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
    if streams && back_to_back {
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
            let how = [
                warps::step([*wm, *wn]),
                registers::step(blocks as u32),
                pipeline::step(*s),
            ];
            let by = contractions.iter().map(|c| c.by(c.instruction));
            found.push(by.chain(how).collect::<KernelSchedule>());
            if stream {
                break;
            }
        }
    }
    found.truncate(most);
    found
}
