//! What was timed, beside what was predicted: enough to predict it again with another model.

use super::Compilation;
use codegen::CudaProgram;
use device::gpu::{GpuInfo, TimedOn};
use device::timing::{METHOD, Measurement};
use ir::{KernelSchedule, Program, Schedule, Target, TileProgram};
use search::cost::cost;
use search::tune::learned::{Features, Row};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Names what was timed, and where: equal for equal texts, launches and buffers, compiled by the same compiler for the same
/// architecture and timed on a GPU of the same name under the same driver and power limit. It is known before anything is compiled.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TrialKey(String);

/// What a time depends on beside the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions<'a> {
    /// The architecture that is compiled for.
    pub arch: &'a str,
    /// The compiler and its version.
    pub compiler: &'a str,
    /// The GPU, its driver and its power limit.
    pub timed_on: &'a TimedOn,
}

impl TrialKey {
    /// For the kernels of a tile program.
    pub fn new(tile: &TileProgram, cuda: &CudaProgram, conditions: Conditions<'_>) -> Self {
        let Conditions {
            arch,
            compiler,
            timed_on,
        } = conditions;
        let buffers = tile.buffers.iter();
        let buffers = buffers.map(|b| (b.role, b.dtype, tile.buffer_bytes(b)));
        let buffers: Vec<_> = buffers.collect();
        let around = serde_json::to_string(&(&cuda.launches, buffers)).unwrap_or_default();
        let TimedOn { gpu, driver, .. } = timed_on;
        let limit = timed_on.power_limit_mw.map(|mw| mw.to_string());
        let limit = limit.unwrap_or_default();
        let units = cuda.units.concat();
        let parts = [
            units.as_str(),
            &around,
            arch,
            compiler,
            gpu,
            driver,
            &limit,
            METHOD,
        ];
        Self(hash(&parts))
    }

    /// In hexadecimal.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One that was written down.
impl From<String> for TrialKey {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// Names a kernel by its [`TileProgram::kernel_name`], in BLAKE3.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KernelName(String);

impl KernelName {
    /// Of a tile program with one kernel; none where it has several.
    pub fn new(tile: &TileProgram) -> Option<Self> {
        (tile.kernels.len() == 1).then(|| Self(hash(&[&tile.kernel_name(0)])))
    }

    /// In hexadecimal.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One that was written down.
impl From<String> for KernelName {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// How a program is named in records: by its text without sugar, in BLAKE3.
pub fn program_hash(program: &Program) -> String {
    hash(&[&program.to_string()])
}

/// BLAKE3 of texts, each with its length, in hexadecimal.
fn hash(parts: &[&str]) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// A tile program under a schedule, how long it was predicted to take and how long it took. What older records lack is empty, or zero.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// What was timed, and where.
    #[serde(default)]
    pub key: TrialKey,
    /// The program's name.
    pub program: String,
    /// What [`program_hash`] says of the program.
    #[serde(default)]
    pub program_hash: String,
    /// The kernel, where it is one.
    #[serde(default)]
    pub kernel: Option<KernelName>,
    /// The target's name.
    pub target: String,
    /// The GPU's name.
    pub gpu: String,
    /// The driver's version.
    #[serde(default)]
    pub driver: String,
    /// What the GPU's board may draw, in milliwatts.
    #[serde(default)]
    pub power_limit_mw: Option<u32>,
    /// The compiler and its version.
    #[serde(default)]
    pub compiler: String,
    /// The seed of the search that it was part of.
    #[serde(default)]
    pub seed: u64,
    /// When it was timed, in seconds since the beginning of 1970.
    #[serde(default)]
    pub when: u64,
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
    /// What was measured; clock and power of the GPU are part of it.
    pub measured: Measurement,
    /// Registers of a thread, for each kernel.
    pub registers: Vec<u32>,
    /// Bytes of stores and loads that spill, for each kernel.
    pub spilled: Vec<u32>,
}

/// Where trials are made.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) program: &'a Program,
    pub(super) target: &'a Target,
    pub(super) gpu: &'a GpuInfo,
    pub(super) seed: u64,
}

/// A tile program that was timed, and all that its trial needs.
pub(super) struct Timed {
    /// It computes the program.
    pub(super) whole: bool,
    pub(super) tile: TileProgram,
    pub(super) schedule: Schedule,
    pub(super) cuda: CudaProgram,
    pub(super) compilation: Option<Compilation>,
    pub(super) measured: Measurement,
}

/// Makes trials of what was timed, in order, until nobody asks any more. Gives how long it was busy.
pub(super) fn write(place: Place<'_>, asked: &Receiver<Timed>, trials: &Sender<Trial>) -> Duration {
    let mut busy = Duration::ZERO;
    for timed in asked {
        let begun = Instant::now();
        let subject = (&timed.tile, &timed.schedule, &timed.cuda);
        let compilation = timed.compilation.as_ref();
        let trial = Trial::new(place, timed.whole, subject, compilation, &timed.measured);
        // Who asked may have gone.
        let _ = trials.send(trial);
        busy += begun.elapsed();
    }
    busy
}

impl Trial {
    pub(super) fn new(
        place: Place<'_>,
        whole: bool,
        (tile, schedule, cuda): (&TileProgram, &Schedule, &CudaProgram),
        compilation: Option<&Compilation>,
        measured: &Measurement,
    ) -> Self {
        let kernels = compilation.iter().flat_map(|c| c.kernels());
        let compiler = compilation.map_or("", |c| &c.compiler);
        let timed_on = place.gpu.timed_on();
        let conditions = Conditions {
            arch: &place.target.arch,
            compiler,
            timed_on: &timed_on,
        };
        let [clock_us, roofline_us] = predicted(tile, schedule, place.target);
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            key: TrialKey::new(tile, cuda, conditions),
            program: place.program.name.clone(),
            program_hash: program_hash(place.program),
            kernel: KernelName::new(tile),
            target: place.target.name.clone(),
            gpu: timed_on.gpu,
            compiler: compiler.to_owned(),
            driver: timed_on.driver,
            power_limit_mw: timed_on.power_limit_mw,
            seed: place.seed,
            when: since.unwrap_or_default().as_secs(),
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

    /// Where it was timed.
    pub fn timed_on(&self) -> TimedOn {
        TimedOn {
            gpu: self.gpu.clone(),
            driver: self.driver.clone(),
            power_limit_mw: self.power_limit_mw,
        }
    }

    /// The only kernel, and its schedule; none where there are several, or where they cannot be read any more.
    pub(super) fn alone(&self) -> Option<(TileProgram, KernelSchedule)> {
        let tile = TileProgram::unchecked(&self.tile).ok()?;
        let schedule = Schedule::parse(&self.schedule, "log", &codegen::language(), &tile).ok()?;
        let [schedule] = schedule.kernels.try_into().ok()?;
        Some((tile, schedule))
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

impl fmt::Display for TrialKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for KernelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: [&str; 2] = [
        include_str!("../../bench/results/trials-h200-2026-11-24/conv2d.jsonl"),
        include_str!("../../bench/results/trials-h200-2026-11-24-2/mm16.jsonl"),
    ];

    #[test]
    fn what_older_versions_wrote_is_read() {
        let mut count = 0;
        for line in LINES.iter().flat_map(|lines| lines.lines()) {
            let trial: Trial = serde_json::from_str(line).expect("a trial");
            assert_eq!(
                (trial.key.as_str(), trial.kernel, trial.when),
                ("", None, 0)
            );
            assert!(trial.measured.telemetry.is_none() && trial.measured.warm.median_us > 0.0);
            count += 1;
        }
        assert!(count > 20, "{count}");
    }

    const TILE: &str = "tile two\naxis i = 8\nbuffer x = parameter 0 f16 [i]\nbuffer out0 = output 0 f16 [i]\n\
        kernel grid(i: 8) values(v) {\n  v = load x[i]\n  store out0 = v\n}\n";

    fn tile(text: &str) -> TileProgram {
        text.parse().expect("a tile program")
    }

    #[test]
    fn a_key_depends_on_what_a_time_depends_on() {
        let launch = |threads: u32| -> codegen::Launch {
            let launch = serde_json::json!({ "entry": "k", "grid": [1, 1, 1], "threads": threads, "shared_bytes": 0,
                "arguments": [0, 1], "split_workspace": codegen::SplitWorkspace::default(), "overlaps": false });
            serde_json::from_value(launch).expect("a launch")
        };
        let cuda = |unit: &str, threads| CudaProgram {
            source: String::new(),
            units: vec![unit.to_owned()],
            launches: vec![launch(threads)],
        };
        let on = |gpu: &str, driver: &str, watts: Option<u32>| TimedOn {
            gpu: gpu.to_owned(),
            driver: driver.to_owned(),
            power_limit_mw: watts.map(|w| w * 1000),
        };
        let usual = on("NVIDIA H200", "580.95.05", Some(700));
        let same = Conditions {
            arch: "sm_90a",
            compiler: "NVRTC 13.0",
            timed_on: &usual,
        };
        let key = |text: &str, cuda: &CudaProgram, conditions| {
            TrialKey::new(&tile(text), cuda, conditions)
        };
        let first = key(TILE, &cuda("void k() {}\n", 32), same);
        // What the text for people says does not count.
        let mut told = cuda("void k() {}\n", 32);
        told.source = "// of b\nvoid k() {}\n".to_owned();
        assert_eq!(first, key(TILE, &told, same));
        let wide = TILE.replace("i = 8", "i = 16");
        let others = [
            key(TILE, &cuda("void k() { }\n", 32), same),
            key(TILE, &cuda("void k() {}\n", 64), same),
            key(&wide, &cuda("void k() {}\n", 32), same),
            key(
                &TILE.replace("f16", "bf16"),
                &cuda("void k() {}\n", 32),
                same,
            ),
            key(
                TILE,
                &cuda("void k() {}\n", 32),
                Conditions {
                    arch: "sm_90",
                    ..same
                },
            ),
            key(
                TILE,
                &cuda("void k() {}\n", 32),
                Conditions {
                    compiler: "NVRTC 12.9",
                    ..same
                },
            ),
        ];
        let elsewhere = [
            on("NVIDIA H100", "580.95.05", Some(700)),
            on("NVIDIA H200", "570.1", Some(700)),
            on("NVIDIA H20", "0580.95.05", Some(700)),
            on("NVIDIA H200", "580.95.05", Some(500)),
            on("NVIDIA H200", "580.95.05", None),
        ];
        let elsewhere = elsewhere.iter().map(|timed_on| {
            let conditions = Conditions { timed_on, ..same };
            key(TILE, &cuda("void k() {}\n", 32), conditions)
        });
        let others = others.into_iter().chain(elsewhere).chain([first]);
        let all: std::collections::BTreeSet<_> = others.collect();
        assert_eq!(all.len(), 12);
    }

    #[test]
    fn a_kernel_has_one_name_wherever_it_stands() {
        let name = |text: &str| KernelName::new(&tile(text));
        let first = name(TILE).expect("one kernel");
        let renamed = (TILE.replace("tile two", "tile three"))
            .replace("values(v)", "values(w)")
            .replace("v = load", "w = load")
            .replace("= v\n", "= w\n");
        assert_eq!(name(&renamed), Some(first.clone()));
        assert_ne!(name(&TILE.replace("grid(i: 8)", "grid(i: 4)")), Some(first));
        let both = "tile two\naxis i = 8\nbuffer x = parameter 0 f16 [i]\nbuffer out0 = output 0 f16 [i]\nbuffer w2 = workspace f32 [i]\n\
            kernel grid(i: 8) values(v) {\n  v = load x[i]\n  store w2 = v\n}\n\
            kernel grid(i: 8) values(v) {\n  v = load w2[i]\n  store out0 = v\n}\n";
        assert_eq!(name(both), None);
    }
}
