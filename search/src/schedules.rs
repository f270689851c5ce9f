//! Candidate schedules of a tile program, most promising first.
//!
//! The candidates come from what a kernel contracts and how large its tiles are; whether one of them really lowers, and
//! how fast it is, lowering, the compiler and measurements say. Nothing here is exact: estimates only order and prune.

mod contractions;
mod grid;
mod rows;
#[cfg(test)]
mod tests;
mod warpgroups;
mod warps;

use codegen::atoms::{self, Instruction, Operands, Scope};
use codegen::passes::{instruction, multicast, persistent, raster, registers, roles};
use contractions::{Contraction, contractions};
use ir::{Kernel, KernelSchedule, Schedule, Target, TileProgram};
use rows::row_schedules;
use warpgroups::warpgroup_schedules;
use warps::contraction_schedules;

/// Candidates for one kernel, at most: each of the first few with producer warps is offered in clusters besides.
const KERNEL_CANDIDATES: usize = 24;
const CLUSTERED: usize = 4;

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

/// Rows and columns below which three products of halves on tensor cores are no faster than one on CUDA cores.
const SPLIT_SIDE: u64 = 16;

/// Candidate schedules of one kernel, deterministic, most promising first.
pub fn kernel_schedules(
    tile: &TileProgram,
    kernel: &Kernel,
    target: &Target,
) -> Vec<KernelSchedule> {
    let plain = contractions(tile, kernel, false, false, target);
    if plain.is_empty() {
        return row_schedules(tile, kernel, target);
    }
    let tensor = contractions(tile, kernel, true, false, target);
    let blocks = tile.blocks(kernel);
    let may_persist = kernel.block_group().is_empty();
    let by_warpgroups = |contractions: &[Contraction], operands: Operands| -> Vec<KernelSchedule> {
        let all = atoms::of(Scope::Warpgroup, operands, target)
            .flat_map(|i| warpgroup_schedules(contractions, i, blocks, target));
        match may_persist {
            true => all.flat_map(|s| both_ways(s, blocks, target)).collect(),
            false => all.collect(),
        }
    };
    let mut all = by_warpgroups(&tensor, Operands::Half);
    if tensor.iter().any(|c| c.instruction.is_matrix()) {
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
    let split = contractions(tile, kernel, true, true, target);
    let splits = |c: &Contraction| c.instruction.operands == Operands::Split;
    let share = if all.is_empty() { 2 } else { 4 };
    let others = contraction_schedules(&plain, blocks, target, KERNEL_CANDIDATES / share);
    let mut divided = by_warpgroups(&split, Operands::Split);
    if split.iter().any(splits) {
        let most = KERNEL_CANDIDATES / share;
        divided.extend(contraction_schedules(&split, blocks, target, most));
    }
    // CUDA cores are the first choice where tensor cores would mostly multiply padding.
    let padding = |c: &Contraction| splits(c) && c.rows.min(c.columns) < SPLIT_SIDE;
    if split.iter().any(padding) {
        all.extend(others);
        all.extend(divided);
    } else {
        all.extend(divided);
        all.extend(others);
    }
    let raster = grid::raster(tile, kernel, target);
    all.iter_mut().for_each(|s| s.set(raster::step(raster)));
    match may_persist {
        true => in_clusters(all),
        false => all,
    }
}

/// How many times as many registers as there are a kernel seems to need that spills: the assembler makes do with somewhat fewer.
const SPILLS: f64 = 1.25;

/// Whether a kernel alone seems to spill under a schedule, and the microseconds that the clock says; none where it cannot be lowered or waits for ever.
pub fn clocked(
    tile: &TileProgram,
    schedule: &KernelSchedule,
    target: &Target,
) -> Option<(bool, f64)> {
    let one = Schedule {
        kernels: vec![schedule.clone()],
    };
    let machines = codegen::machines(tile, &one, target).ok()?;
    let us = *codegen::clock::us(tile, &machines, target).first()?;
    // What needs many more registers than there are spills: it is refused once it is compiled.
    let machine = machines.first()?;
    let moved = machine.producer.as_ref().and_then(|p| p.registers);
    let even = target.whole_registers(machine.threads() * u64::from(machine.blocks_per_sm));
    let room = moved.map_or(even, |(_, computing)| computing);
    let spills = machine.resources().registers as f64 > SPILLS * room as f64;
    us.is_finite().then_some((spills, us))
}

/// Behind the first schedules whose tiles the hardware may copy in boxes the same in clusters of two blocks. Whether these read anything alike is
/// lowering's to say.
fn in_clusters(all: Vec<KernelSchedule>) -> Vec<KernelSchedule> {
    const BLOCKS: u32 = 2;
    let boxed = |s: &KernelSchedule| {
        // Boxes are copied as they are, in elements of 16 bits.
        let takes_boxes =
            |i: &Instruction| i.scope == Scope::Warpgroup && i.operands == Operands::Half;
        let mut all = instruction::all(s);
        roles::of(s) && all.all(|(_, c)| atoms::instruction(c.atom).is_some_and(takes_boxes))
    };
    let mut left = CLUSTERED;
    let both = |s: KernelSchedule| {
        let offered = left > 0 && boxed(&s);
        left -= usize::from(offered);
        // The blocks of a cluster stand in one column of the raster.
        let clustered = offered.then(|| {
            let whole = raster::of(&s) / BLOCKS * BLOCKS;
            let paired = s.clone().with(raster::step(whole));
            paired.with(multicast::step(BLOCKS))
        });
        [Some(s), clustered].into_iter().flatten()
    };
    all.into_iter().flat_map(both).collect()
}

/// A schedule, and the same with persistent blocks, where warps only fill rings and there are more tiles than find room.
fn both_ways(schedule: KernelSchedule, blocks: u64, target: &Target) -> Vec<KernelSchedule> {
    let room = u64::from(target.sms) * u64::from(registers::of(&schedule));
    let mut both = vec![schedule];
    if roles::of(&both[0]) && blocks > room {
        both.push(both[0].clone().with(persistent::step()));
    }
    both
}
