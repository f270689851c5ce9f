//! Schedules in which warpgroup instructions contract.

use super::KERNEL_CANDIDATES;
use super::contractions::{Contraction, by_place, streams};
use super::grid::unevenness;
use codegen::atoms::{Instruction, Operands};
use codegen::resources::{SWIZZLE_BYTES, producers_fit};
use ir::{ContractSchedule, KernelSchedule, Overlap, Target};

/// Rows below which most of a warpgroup instruction would be padding.
const WARPGROUP_ROWS: u64 = 48;

/// A warpgroup instruction, as the choice of a schedule sees it.
struct Takes {
    /// Whether operands are split, and sums added to others.
    splits: bool,
}

impl Takes {
    /// Bytes of shared memory for the halves of a contraction's columns.
    fn halves(&self, c: &Contraction) -> u64 {
        const BOTH: u64 = 2 * 4;
        match self.splits {
            true => BOTH * c.columns.next_multiple_of(16) * c.depth.next_multiple_of(16),
            false => 0,
        }
    }

    /// Registers of a thread that a contraction takes where a group of warps has so many rows and columns of it.
    fn registers(&self, c: &Contraction, rows: u64, columns: u64) -> u64 {
        let sums = rows * columns / 128;
        match (self.splits, c.back_to_back) {
            // Sums of a tile; its rows, and both halves of them.
            (true, _) => 2 * sums + 3 * rows * c.depth.next_multiple_of(16) / 128,
            (false, true) => sums + rows * columns / 256,
            (false, false) => sums,
        }
    }
}

/// Schedules in which a warpgroup instruction carries out what an instruction of single warps can.
pub(super) fn warpgroup_schedules(
    tensor: &[Contraction],
    instruction: &Instruction,
    grid: u64,
    target: &Target,
) -> Vec<KernelSchedule> {
    let splits = instruction.operands == Operands::Split;
    let takes = Takes { splits };
    // Addresses and what is under way: two operands are read where one is multiplied as it is.
    let beside = if splits { 48 } else { 32 };
    // What an instruction of single warps can do, this one can too.
    let matrix = |c: &&Contraction| c.instruction.operands == instruction.operands;
    let suits = |c: &Contraction| {
        let most = instruction.most_terms().unwrap_or(u64::MAX);
        c.rows >= WARPGROUP_ROWS && c.columns >= 8 && c.depth <= most
    };
    if !tensor.iter().any(|c| matrix(&c)) || !tensor.iter().filter(matrix).all(suits) {
        return Vec::new();
    }
    let back_to_back = tensor.iter().any(|c| c.back_to_back);
    let halves = by_place(tensor, &|c| takes.halves(c));
    let fixed = by_place(tensor, &|c| c.fixed) + halves;
    // What is split is copied to padded lines.
    let per_stage = match by_place(tensor, &|c| c.per_stage) {
        per_stage if splits => per_stage.saturating_mul(9) / 8,
        per_stage => per_stage,
    };
    // One more stage for what a loop accumulates: halves, or the columns of back-to-back contractions, both operands of others.
    let is_delayed = |c: &Contraction| !splits && c.back_to_back == back_to_back;
    let delayed = halves + by_place(tensor, &|c| if is_delayed(c) { c.per_stage } else { 0 });
    let rows = tensor.iter().filter(matrix).map(|c| c.rows).max();
    let streams = streams(tensor);
    let most_groups = rows.unwrap_or(1).div_ceil(64);
    let mut found: Vec<(u64, KernelSchedule)> = Vec::new();
    for (groups, wn) in [(1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (2, 2)] {
        // Three groups have a third of the rows each.
        let uneven = groups == 3 && rows.is_none_or(|rows| !rows.is_multiple_of(3 * 64));
        if uneven || groups > most_groups || (back_to_back && wn > 1) {
            continue;
        }
        let threads = 128 * groups * wn;
        let side = |all: u64, parts: u64, unit: u64| all.div_ceil(parts).next_multiple_of(unit);
        let registers = by_place(tensor, &|c| {
            takes.registers(c, side(c.rows, groups, 64), side(c.columns, wn, 16))
        });
        let order: &[u64] = if back_to_back {
            &[2, 3, 4, 1]
        } else {
            &[4, 3, 5, 2, 1]
        };
        let all = order.iter().enumerate();
        let kinds = [Overlap::Turns, Overlap::Delayed, Overlap::None];
        for ((position, stages), overlap) in all.flat_map(|x| kinds.map(|k| (x, k))) {
            let more = match overlap {
                Overlap::None => 0,
                Overlap::Delayed | Overlap::Turns if *stages > 1 => delayed,
                Overlap::Delayed | Overlap::Turns => continue,
            };
            // Beside those that compute.
            let copying = overlap == Overlap::Turns;
            // Barriers, and what is lost where regions begin.
            let shared = fixed + per_stage.saturating_mul(*stages) + more + SWIZZLE_BYTES;
            if shared > target.shared_per_block {
                continue;
            }
            for blocks in [1, 2, 3, 4] {
                let room = target.whole_registers(threads * blocks);
                if copying && !producers_fit(target, blocks, threads, registers + beside) {
                    continue;
                }
                if registers + beside > room
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
                    40 * together.abs_diff(together.clamp(2, 3)).min(4)
                        + 100 * u64::from(together == 1)
                };
                let cost = crowd
                    + 2 * unevenness(grid, blocks, target)
                    + 10 * position as u64
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
                        contracts: tensor
                            .iter()
                            .map(|c| {
                                let own = if matrix(&c) {
                                    instruction
                                } else {
                                    c.instruction
                                };
                                let atom = own.atom;
                                let swap = c.swap;
                                (c.value, ContractSchedule { atom, swap })
                            })
                            .collect(),
                        ..KernelSchedule::default()
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
