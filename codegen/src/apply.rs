//! What a schedule makes of a tile program: for each kernel a machine program, to which one pass after another is applied, and CUDA of these.

use crate::machine::Machine;
use crate::passes::barriers::barriers;
use crate::passes::copies::copies;
use crate::passes::dependent_launch::dependent_launch;
use crate::passes::fences::fences;
use crate::passes::instructions::instructions;
use crate::passes::memory::memory;
use crate::passes::prefetch::prefetch;
use crate::passes::read_ahead::read_ahead;
use crate::passes::rings::rings;
use crate::passes::{Apply, named};
use crate::plain::{link, plain};
use crate::print::{self, Text, describe};
use crate::{CudaProgram, Launch};
use ir::{KernelSchedule, Reject, Schedule, Target, TileProgram};

/// Lowers every kernel of a tile program.
///
/// The text needs no header. Kernels take one pointer a buffer; buffers must be aligned to 16 bytes. A kernel never
/// writes a buffer that it also reads.
///
/// # Errors
/// What the schedule, or the target, makes impossible.
pub fn lower(
    tile: &TileProgram,
    schedule: &Schedule,
    target: &Target,
) -> Result<CudaProgram, Reject> {
    let machines = machines(tile, schedule, target)?;
    let origin = [tile.name.clone(), describe(tile, schedule)];
    let launches = machines.iter().map(|m| launch(m, target));
    let texts: Vec<Text> = machines.iter().map(Text::of).collect();
    let units = texts.iter().map(|t| print::unit(&[], [t]));
    Ok(CudaProgram {
        launches: launches.collect(),
        source: print::unit(&origin, &texts),
        units: units.collect(),
    })
}

/// The machine program of every kernel of a tile program.
///
/// # Errors
/// As [`lower`].
pub fn machines(
    tile: &TileProgram,
    schedule: &Schedule,
    target: &Target,
) -> Result<Vec<Machine>, Reject> {
    if schedule.kernels.len() != tile.kernels.len() {
        return Err(Reject::Schedule(format!(
            "{} kernels, {} kernel schedules",
            tile.kernels.len(),
            schedule.kernels.len()
        )));
    }
    let mut machines = Vec::new();
    for (number, s) in schedule.kernels.iter().enumerate() {
        let machine = kernel_machine(tile, number, s, target)?;
        // It takes a sixth of what lowering does: others ask before they run what they were given.
        debug_assert_eq!(machine.malformed(), Vec::new());
        machines.push(machine);
    }
    Ok(machines)
}

/// The machine program of the kernel with this number: the plainest one for its instructions, and what the schedule makes of that. The
/// schedules of the other kernels change nothing in it.
///
/// # Errors
/// As [`machines`].
pub fn kernel_machine(
    tile: &TileProgram,
    number: usize,
    schedule: &KernelSchedule,
    target: &Target,
) -> Result<Machine, Reject> {
    let kernel = &tile.kernels[number];
    let steps = named(schedule)?;
    let launched = link(tile, kernel, target);
    let mut machine = plain(tile, kernel, number, schedule, launched, target)?;
    for (step, pass) in &steps {
        if let Apply::Statements(apply) = pass.apply {
            machine = apply(machine, step, schedule, target)?;
        }
    }
    machine = read_ahead(machine);
    machine = prefetch(dependent_launch(machine, launched), target);
    machine = memory(machine, target)?;
    machine.finds_room(target)?;
    machine = instructions(machine);
    machine = copies(machine);
    machine = fences(machine);
    machine = barriers(rings(machine)?);
    for (step, pass) in &steps {
        if let Apply::Synchronised(apply) = pass.apply {
            machine = apply(machine, step, schedule, target)?;
        }
    }
    Ok(machine)
}

/// How a kernel is launched.
fn launch(machine: &Machine, target: &Target) -> Launch {
    let tiles = machine.grid.tiles as u32;
    let cluster = machine.cluster as u32;
    let blocks = match machine.grid.persistent {
        // Whole clusters.
        true => tiles.min((machine.blocks_per_sm * target.sms / cluster).max(1) * cluster),
        false => tiles,
    };
    let boxes = machine.regions.iter().filter_map(|r| r.boxes.as_ref());
    Launch {
        entry: machine.name.clone(),
        grid: [blocks, 1, 1],
        threads: machine.threads() as u32,
        shared_bytes: machine.shared_bytes() as u32,
        arguments: machine.buffers.keys().copied().collect(),
        maps: boxes.map(|b| b.map.clone()).collect(),
        split_workspace: machine.split_workspace,
        overlaps: machine.overlaps,
    }
}
