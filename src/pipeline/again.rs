//! An artifact again: its evidence replayed, its kernels verified or timed on this machine's GPU.

use crate::worker::{GpuWorker, Job, Setting};
use codegen::Launch;
use device::nvrtc::SearchPath;
use device::timing::Measurement;
use ir::{Program, Reject, Schedule, Target, TileProgram};
use search::explain::Explanation;
use std::path::PathBuf;
use verify::{Evidence, TilingOptions, Verified};

/// What an artifact says about itself, and what it is made of.
#[derive(Clone, Copy, Debug)]
pub struct Claims<'a> {
    /// The program.
    pub program: &'a Program,
    /// The expression.
    pub expression: &'a Program,
    /// The tile program.
    pub tile: &'a TileProgram,
    /// How its kernels are mapped to the machine.
    pub schedule: &'a Schedule,
    /// The GPU that it is for.
    pub target: &'a Target,
    /// The text of its kernels.
    pub source: &'a str,
    /// Its launches.
    pub launches: &'a [Launch],
    /// The derivation that was recorded.
    pub derivation: Option<&'a Explanation>,
    /// The evidence that was recorded.
    pub evidence: &'a Evidence,
}

/// Does again what needs no GPU: derives the expression, tests the rules, interprets the tile program on the recorded draws, and
/// lowers it. Gives what was replayed, one claim a line.
///
/// # Errors
/// The first outcome that isn't the recorded one.
pub fn replay(claims: &Claims<'_>) -> Result<Vec<String>, Reject> {
    let wrong = |what: String| Reject::Wrong(what);
    let derived = super::derive(claims.program, claims.expression);
    if derived.as_ref() != claims.derivation {
        return Err(wrong(
            "rules: the recorded derivation of the expression is not what the rules give".into(),
        ));
    }
    let mut lines =
        crate::emit::rule_claims(claims.derivation).map_err(|e| wrong(format!("rules: {e}")))?;
    let recorded = &claims.evidence.tiling;
    let found = verify::check_tiling(
        &super::as_read(&search::divide::as_in(claims.program, claims.expression)),
        claims.expression,
        claims.tile,
        &recorded.options(),
    )?;
    if let Some(difference) = recorded.differs(&found) {
        return Err(wrong(format!("tiling: {difference}")));
    }
    lines.push(format!(
        "tiling: the same outcome on the same {} shapes, drawn from seed {}, in the fields modulo {} and in f64",
        found.shapes,
        found.seed,
        found.primes.iter().map(u64::to_string).collect::<Vec<_>>().join(" and ")
    ));
    let cuda = codegen::lower(claims.tile, claims.schedule, claims.target)?;
    if cuda.source != claims.source || cuda.launches != claims.launches {
        return Err(wrong(
            "text: the tile program and the schedule lower to another text or other launches"
                .into(),
        ));
    }
    lines.push("text: the tile program and the schedule lower to this text, byte by byte".into());
    Ok(lines)
}

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
    /// The machine code.
    pub cubin: Vec<u8>,
    /// The architecture it was compiled for.
    pub arch: String,
    /// The program whose subcommand `gpu-worker` is the worker.
    pub worker: PathBuf,
    /// Where NVRTC may be.
    pub nvrtc: SearchPath,
    /// The seed of the drawn inputs.
    pub seed: u64,
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
        worker.load(Setting {
            program: subject.program.clone(),
            seed: subject.seed,
            arch: subject.arch,
            nvrtc: subject.nvrtc,
        })?;
        Ok(Self {
            worker,
            program: search::divide::as_in(&subject.program, &subject.expression),
            expression: subject.expression,
            seed: subject.seed,
            job: Job::new(&subject.tile, &subject.launches, &subject.cubin),
            tile: subject.tile,
        })
    }

    /// Interprets the tile program and runs the kernels on every kind of input; gives what was checked, one claim a line.
    pub fn verify(&mut self) -> Result<Vec<String>, Reject> {
        let options = TilingOptions {
            seed: self.seed,
            ..TilingOptions::default()
        };
        let tile = Verified::tiling(&self.program, &self.expression, self.tile.clone(), &options)?;
        let verified = tile.with_kernel(self.worker.verify(self.job.clone())?);
        Ok(verified
            .evidence()
            .to_string()
            .lines()
            .map(str::to_owned)
            .collect())
    }

    /// Times the kernels.
    pub fn time(&mut self) -> Result<Measurement, Reject> {
        self.worker
            .time(vec![self.job.clone()], true)?
            .pop()
            .ok_or_else(|| Reject::Fault("the worker gave no time".to_owned()))
    }
}
