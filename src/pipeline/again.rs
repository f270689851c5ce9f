//! An artifact again: its kernels verified or timed on this machine's GPU. [`replay`](crate::replay::replay) does again what its
//! evidence records.

use super::as_read;
use crate::worker::{Care, GpuWorker, Job, Setting};
use codegen::Launch;
use device::locks::GpuLocks;
use device::nvrtc::SearchPath;
use device::timing::Measurement;
use ir::{Program, Reject, TileProgram};
use std::path::{Path, PathBuf};
use std::time::Duration;
use verify::tiling::Known;
use verify::{KernelEvidence, Realisation, TilingOptions, Verified};

/// What timing one kernel may take.
const LONG: Duration = Duration::from_secs(60);

/// What is looked at again.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The program.
    pub program: Program,
    /// The expression that the tile program was built from.
    pub expression: Program,
    /// The tile program.
    pub tile: TileProgram,
    /// The launches.
    pub launches: Vec<Launch>,
    /// The machine code, a cubin for each.
    pub cubins: Vec<Vec<u8>>,
    /// The architecture it was compiled for.
    pub arch: String,
    /// The program whose subcommand `gpu-worker` is the worker.
    pub worker: PathBuf,
    /// Where NVRTC may be.
    pub nvrtc: SearchPath,
    /// The seed of the drawn inputs.
    pub seed: u64,
}

/// A tile program and what runs of it.
struct Rerun {
    tile: TileProgram,
    job: Job,
}

impl Realisation for Rerun {
    fn tile(&self) -> &TileProgram {
        &self.tile
    }

    fn subject(&self) -> Option<String> {
        Some(self.job.subject())
    }
}

/// A worker that knows the subject's program.
pub struct Recheck {
    worker: GpuWorker,
    /// With its axes as the expression has them.
    program: Program,
    expression: Program,
    seed: u64,
    tile: TileProgram,
    job: Job,
}

impl Recheck {
    /// Starts the worker and computes the reference.
    pub fn open(subject: Subject) -> Result<Self, crate::worker::WorkerFailure> {
        let mut worker = GpuWorker::new(&subject.worker);
        let setting = Setting {
            program: subject.program.clone(),
            seed: subject.seed,
            arch: subject.arch,
            nvrtc: subject.nvrtc,
        };
        worker.load(setting, false)?;
        Ok(Self {
            worker,
            program: as_read(&search::forms::axes::as_in(
                &subject.program,
                &subject.expression,
            )),
            expression: subject.expression,
            seed: subject.seed,
            job: Job::new(&subject.tile, &subject.launches, subject.cubins),
            tile: subject.tile,
        })
    }

    /// Interprets the tile program and runs the kernels on every kind of input; gives what was checked, one claim a line.
    pub fn verify(&mut self) -> Result<Vec<String>, Reject> {
        let options = TilingOptions {
            seed: self.seed,
            ..TilingOptions::default()
        };
        let own = self.tile.clone();
        let tile = Verified::tiling(
            &self.program,
            &self.expression,
            own,
            &options,
            &Known::default(),
        )?;
        let job = self.job.clone();
        let verified = tile.realised(|tile| Rerun { tile, job })?;
        let verified = verified.ran(self.run()?)?;
        Ok(verified
            .evidence()
            .to_string()
            .lines()
            .map(str::to_owned)
            .collect())
    }

    /// Runs the kernels on every kind of input.
    pub fn run(&mut self) -> Result<KernelEvidence, Reject> {
        self.worker.verify(self.job.clone())
    }

    /// Times the kernels, with the GPU locked in a folder meanwhile, if there is one.
    pub fn time(&mut self, locks: Option<&Path>) -> Result<Measurement, Reject> {
        lock(&mut self.worker, locks);
        self.worker
            .time(vec![self.job.clone()], Care::Thorough(LONG))?
            .pop()
            .ok_or_else(|| Reject::Fault("the worker gave no time".to_owned()))
    }
}

/// From now on the worker's GPU is locked while something is timed on it, in a folder, if there is one.
pub(crate) fn lock(worker: &mut GpuWorker, folder: Option<&Path>) {
    match folder.map(GpuLocks::open) {
        Some(Ok(locks)) => worker.lock_with(locks, None),
        Some(Err(error)) => {
            tracing::warn!(%error, "no GPU is locked while something is timed on it");
        }
        None => {}
    }
}
