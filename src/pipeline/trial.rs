//! What was timed, beside what was predicted: enough to predict it again with another model.

use super::Compilation;
use device::timing::Measurement;
use ir::{Schedule, Target, TileProgram};
use search::cost::cost;
use search::tune::learned::{Features, Row};
use serde::{Deserialize, Serialize};

/// A tile program under a schedule, how long it was predicted to take and how long it took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The program's name.
    pub program: String,
    /// The target's name.
    pub target: String,
    /// The GPU's name.
    pub gpu: String,
    /// Whether it computes the program; else it is one kernel alone of a tile program that does.
    pub whole: bool,
    /// The tile program, as a text.
    pub tile: String,
    /// The schedule, as a text.
    pub schedule: String,
    /// What the clock says, in microseconds.
    pub clock_us: f64,
    /// What the roofline says of the tile program, whatever its schedule.
    pub roofline_us: f64,
    /// What was measured.
    pub measured: Measurement,
    /// Registers of a thread, for each kernel.
    pub registers: Vec<u32>,
    /// Bytes of stores and loads that spill, for each kernel.
    pub spilled: Vec<u32>,
}

/// Where trials are made.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) program: &'a str,
    pub(super) target: &'a Target,
    pub(super) gpu: &'a str,
}

impl Trial {
    pub(super) fn new(
        place: Place<'_>,
        whole: bool,
        (tile, schedule): (&TileProgram, &Schedule),
        compilation: Option<&Compilation>,
        measured: &Measurement,
    ) -> Self {
        let kernels = compilation.map_or(&[][..], |c| &c.compiled.kernels);
        let kernels = kernels.iter().filter(|k| k.entry);
        let [clock_us, roofline_us] = predicted(tile, schedule, place.target);
        Self {
            program: place.program.to_owned(),
            target: place.target.name.clone(),
            gpu: place.gpu.to_owned(),
            whole,
            tile: tile.to_string(),
            schedule: schedule.text(tile),
            clock_us,
            roofline_us,
            measured: measured.clone(),
            registers: kernels.clone().map(|k| k.registers).collect(),
            spilled: kernels.map(|k| k.spill_stores + k.spill_loads).collect(),
        }
    }

    /// The trial with what the models say now.
    ///
    /// # Errors
    /// What cannot be read any more, as a message.
    pub fn again(&self) -> Result<Self, String> {
        let (tile, schedule, target) = self.read()?;
        codegen::machines(&tile, &schedule, &target).map_err(|e| e.to_string())?;
        let [clock_us, roofline_us] = predicted(&tile, &schedule, &target);
        Ok(Self {
            clock_us,
            roofline_us,
            ..self.clone()
        })
    }

    /// What a correction of the clock learns from it. Kernels alone are compared with those that have the same buffers.
    ///
    /// # Errors
    /// What cannot be read any more, as a message.
    pub fn row(&self) -> Result<Row, String> {
        let (tile, schedule, target) = self.read()?;
        let kernels = Features::all(&tile, &schedule, &target).map_err(|e| e.to_string())?;
        let buffers = self.tile.lines().filter(|l| l.starts_with("buffer"));
        let mut buffers: Vec<&str> = buffers
            .filter_map(|l| Some(l.split_once(" = ")?.1))
            .collect();
        buffers.sort_unstable();
        let group = match self.whole {
            true => self.program.clone(),
            false => format!("{}: {}", self.program, buffers.join(", ")),
        };
        Ok(Row {
            group,
            kernels,
            measured_us: self.measured.warm.median_us,
        })
    }

    fn read(&self) -> Result<(TileProgram, Schedule, Target), String> {
        let target = search::targets::target(&self.target).map_err(|e| e.to_string())?;
        let tile = TileProgram::unchecked(&self.tile).map_err(|e| e.to_string())?;
        let schedule = Schedule::parse(&self.schedule, "schedule", &codegen::language(), &tile);
        let schedule = schedule.map_err(|e| e.to_string())?;
        Ok((tile, schedule, target))
    }
}

/// What the clock says of a tile program under a schedule, and what the roofline says of it under any.
fn predicted(tile: &TileProgram, schedule: &Schedule, target: &Target) -> [f64; 2] {
    [Some(schedule), None].map(|schedule| cost(tile, schedule, target).us)
}
