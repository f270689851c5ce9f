//! Compiling candidates: the pool, and what of the compiler's words is a reject.

use super::{Candidate, Clock, Options, Tally};
use device::cache::Cache;
use device::compiler::compiler;
use device::folder::FolderError;
use device::nvrtc::{self, CompileError, Compiled, Defect, SearchPath};
use device::pool::{CompilePool, PoolSettings, Programs};
use device::worker::{WorkerCommand, WorkerError};
use ir::Reject;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// For one kernel; the slowest that were seen take a few seconds.
const DEADLINE: Duration = Duration::from_secs(60);
/// Bytes of compiled kernels that are kept on disk.
const CACHE_BYTES: u64 = 1 << 30;
/// Characters of a compiler's log that a reject keeps.
const LOG_KEPT: usize = 600;

/// NVRTC, if there is one.
pub(super) struct Compiler {
    /// With NVRTC's version; else why there is none.
    pool: Result<(CompilePool, String), String>,
    arch: String,
}

impl Compiler {
    /// Looks for NVRTC; remarks on its absence.
    pub(super) fn new(options: &Options, clock: &Clock, tally: &mut Tally<'_>) -> Self {
        let arch = options.target.arch.clone();
        let Some(program) = &options.worker else {
            let why = "no worker program was given, so nothing was compiled";
            return Self::none(why.to_owned(), arch, tally);
        };
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        let kept = options.cache.as_ref().and_then(|folder| {
            cache(folder)
                .map_err(|e| tally.remark(format!("no compiled kernels are kept: {e}")))
                .ok()
        });
        let mut pool = pool(program, &options.nvrtc, workers, kept, clock.stop());
        match pool.version(&arch) {
            Ok(version) => {
                let name = name(&arch, version);
                if let Some(remote) = &options.remote {
                    remote.0.compiler(&name);
                    pool.share_with(remote.clone());
                }
                let pool = Ok((pool, name));
                Self { pool, arch }
            }
            Err(CompileError::NotFound(_)) => Self::none(
                "NVRTC was not found, so nothing is compiled and kernels are CUDA source alone; \
                 `pip install nvidia-cuda-nvrtc` provides it"
                    .to_owned(),
                arch,
                tally,
            ),
            Err(e) => Self::none(format!("nothing was compiled: {e}"), arch, tally),
        }
    }

    fn none(why: String, arch: String, tally: &mut Tally<'_>) -> Self {
        tally.remark(why.clone());
        Self {
            pool: Err(why),
            arch,
        }
    }

    /// Why there is no compiler, if there is none.
    pub(super) fn absence(&self) -> Option<&str> {
        self.pool.as_ref().err().map(String::as_str)
    }

    /// What is not compiled by then is dropped: nobody waits for one that takes longer than all others.
    pub(super) fn end_at(&mut self, end: Instant) {
        if let Ok((pool, _)) = &mut self.pool {
            pool.end_at(Some(end));
        }
    }

    /// Whether a candidate's machine code is what NVRTC makes of its text, whatever the cache holds.
    pub(super) fn confirms(&mut self, candidate: &Candidate) -> bool {
        let (Ok((pool, _)), Some(compilation)) = (&mut self.pool, &candidate.compilation) else {
            return true;
        };
        let units = candidate.cuda.units.iter().map(String::as_str);
        let all: Vec<_> = units.zip(&compilation.compiled).collect();
        let confirmed = pool.confirm(&all, &self.arch);
        confirmed.unwrap_or_else(|error| {
            tracing::warn!(%error, "a kernel from the cache could not be compiled again");
            false
        })
    }

    /// Compiles units; `None` for each where there is no compiler. Kernels that spill, keep a stack or serialise are rejects.
    pub(super) fn compile(&mut self, units: &[&str]) -> Vec<Result<Option<Compiled>, Reject>> {
        let Ok((pool, _)) = &mut self.pool else {
            return units.iter().map(|_| Ok(None)).collect();
        };
        let programs: Vec<(String, String)> = units
            .iter()
            .map(|unit| ((*unit).to_owned(), self.arch.clone()))
            .collect();
        let start = std::time::Instant::now();
        let compiled = pool.compile_many(&programs);
        tracing::debug!(
            units = units.len(),
            seconds = start.elapsed().as_secs_f64(),
            "compiled"
        );
        let sound = |result| judged(result).map(Some);
        compiled.into_iter().map(sound).collect()
    }

    /// Compiles texts as they come; see [`CompilePool::stream`]. Nothing where there is no compiler.
    pub(super) fn stream(&mut self, texts: &mut impl Programs) {
        if let Ok((pool, _)) = &mut self.pool
            && let Err(error) = pool.stream(&self.arch, texts)
        {
            tracing::warn!(%error, "nothing was compiled");
        }
    }

    /// The compiler's name and version.
    pub(super) fn version(&self) -> &str {
        self.pool.as_ref().map_or("", |(_, version)| version)
    }

    /// What compiling took until now, all processes together.
    pub(super) fn busy(&self) -> Duration {
        self.pool
            .as_ref()
            .map_or(Duration::ZERO, |(pool, _)| pool.busy())
    }
}

/// A unit that compiled, unless it spills, keeps a stack or serialises.
pub(crate) fn judged(result: Result<Compiled, CompileError>) -> Result<Compiled, Reject> {
    let compiled = result.map_err(|e| refused(&e))?;
    match compiled.defects().into_iter().next() {
        None => Ok(compiled),
        Some(defect) => Err(defective(&compiled, &defect)),
    }
}

/// Compiled kernels on disk.
pub(crate) fn cache(folder: &Path) -> Result<Cache, FolderError> {
    Cache::open(folder, CACHE_BYTES)
}

/// Processes that compile as kernels are compiled.
pub(crate) fn pool(
    worker: &Path,
    nvrtc: &SearchPath,
    workers: usize,
    cache: Option<Cache>,
    stop: Arc<AtomicBool>,
) -> CompilePool {
    let settings = PoolSettings {
        command: WorkerCommand {
            program: worker.to_path_buf(),
            arguments: vec!["compile-worker".into()],
        },
        workers,
        search: nvrtc.clone(),
        options: nvrtc::Options::default(),
        deadline: DEADLINE,
        stop,
    };
    CompilePool::new(settings, cache)
}

/// How a manifest names a compiler.
pub(crate) fn name(arch: &str, (major, minor): (i32, i32)) -> String {
    let name = compiler(arch).map_or("no compiler", |row| row.name);
    format!("{name} {major}.{minor}")
}

fn refused(error: &CompileError) -> Reject {
    let text = error.to_string();
    match error {
        CompileError::Worker(WorkerError::Timeout(_)) => Reject::Compiler(text),
        CompileError::Worker(
            WorkerError::Start { .. }
            | WorkerError::Stopped
            | WorkerError::Lost { .. }
            | WorkerError::Protocol { .. },
        ) => Reject::Fault(text),
        CompileError::NotFound(_)
        | CompileError::Refused { .. }
        | CompileError::Architecture { .. }
        | CompileError::ZeroCharacter
        | CompileError::Library { .. } => Reject::Compiler(text.chars().take(LOG_KEPT).collect()),
    }
}

fn defective(compiled: &Compiled, defect: &Defect) -> Reject {
    match defect {
        Defect::Spill { .. } | Defect::Stack { .. } => Reject::Spills {
            bytes: compiled
                .kernels
                .iter()
                .map(|k| u64::from(k.spill_stores.max(k.stack_bytes)))
                .sum(),
        },
        Defect::Performance { message } => Reject::Compiler(message.clone()),
    }
}
