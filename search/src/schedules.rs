//! Candidate schedules of a tile program.
//!
//! What may be chosen of a kernel is a space of points (`space.rs`). Lowering says which of them are possible, and the clock of machine programs
//! which of these are fast (`ranked.rs`). What is usual says where a walk begins, and no more.

mod contractions;
mod grid;
mod ranked;
mod space;
#[cfg(test)]
mod tests;

pub use ranked::{Ranked, Starts, estimate, ranked, ranked_as};

use crate::tune::learned::{Correction, Features};
use ir::{KernelSchedule, Schedule, Target, TileProgram, Wishes};
use space::Space;

/// Schedules of one kernel that are offered without the clock, at most.
const KERNEL_CANDIDATES: usize = 24;

/// Candidate schedules, deterministic, the most usual first: that of every kernel, then the other candidates of one kernel at a time. Nothing is
/// said of how fast they are. Empty where a kernel has none.
pub fn schedules(tile: &TileProgram, target: &Target) -> Vec<Schedule> {
    let all: Vec<Vec<KernelSchedule>> = (0..tile.kernels.len())
        .map(|k| {
            let alone = tile.alone(k);
            let possible = kernel_schedules(&alone, target);
            possible.take(KERNEL_CANDIDATES).collect()
        })
        .collect();
    let first = all.iter().map(|c| c.first().cloned());
    let Some(kernels) = first.collect::<Option<Vec<KernelSchedule>>>() else {
        return Vec::new();
    };
    let usual = Schedule { kernels };
    let mut found = vec![usual.clone()];
    let most = all.iter().map(Vec::len).max().unwrap_or(0);
    for round in 1..most {
        for (k, candidates) in all.iter().enumerate() {
            if let Some(candidate) = candidates.get(round) {
                let mut schedule = usual.clone();
                schedule.kernels[k] = candidate.clone();
                found.push(schedule);
            }
        }
    }
    found
}

/// Schedules of a kernel that stands alone in a tile program, one at a time: all that can be lowered, the most usual first.
pub fn kernel_schedules(
    tile: &TileProgram,
    target: &Target,
) -> impl Iterator<Item = KernelSchedule> {
    let space = Space::of(tile, &tile.kernels[0], target);
    let points = space.points().into_iter();
    let schedules = points.filter_map(move |p| space.schedule(&p));
    schedules.filter(|s| codegen::machines(tile, &alone(s), target).is_ok())
}

fn alone(schedule: &KernelSchedule) -> Schedule {
    Schedule {
        kernels: vec![schedule.clone()],
    }
}

/// How many times as many registers as there are a kernel seems to need that spills: the assembler makes do with somewhat fewer.
const SPILLS: f64 = 1.25;

/// What the clock says of a schedule.
#[derive(Clone, Copy, Debug)]
struct Clocked {
    /// Registers that a thread seems to need, for each that it can have.
    pressure: f64,
    /// Microseconds.
    us: f64,
}

impl Clocked {
    /// Whether the kernel seems to need more registers than it can have: it is refused once it is compiled.
    fn spills(&self) -> bool {
        self.pressure > SPILLS
    }
}

/// Who says how fast the schedules of a kernel are: the clock, with what was learned of it.
#[derive(Clone, Copy, Debug)]
pub struct Judge<'a> {
    /// The GPU.
    pub target: &'a Target,
    /// By how much more kernels take than the clock says.
    pub correction: &'a Correction,
    /// What schedules have to say, and must not.
    pub wishes: &'a Wishes,
}

/// What is said of a kernel alone under a schedule; none where it cannot be lowered or waits for ever. The roofline says that it takes so many
/// microseconds, whatever its schedule.
fn clocked(
    tile: &TileProgram,
    schedule: &KernelSchedule,
    judge: Judge<'_>,
    roofline_us: f64,
) -> Option<Clocked> {
    let Judge {
        target, correction, ..
    } = judge;
    let machines = codegen::machines(tile, &alone(schedule), target).ok()?;
    let parts = codegen::clock::parts(tile, &machines, target);
    let us = correction.us(&Features::new(parts.first()?, roofline_us));
    let machine = machines.first()?;
    let even = target.whole_registers(machine.threads() * u64::from(machine.blocks_per_sm));
    let room = machine.registers.unwrap_or(even);
    let pressure = machine.resources().registers as f64 / room as f64;
    us.is_finite().then_some(Clocked { pressure, us })
}
