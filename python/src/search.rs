//! A search on a thread of its own, which Python asks from time to time: so signals are heard, and whatever Python does on the way is
//! done by the thread that called.

use crate::errors::{ArtifactError, BudgetError, GpuError, SearchError, TilewrightError};
use crate::program::Program;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tilewright::artifact::{ArtifactError as Refused, Destination, GivesWay, Manifest, State};
use tilewright::emit::{EmitError, describe, emit, summary};
use tilewright::ir::{self, Target};
use tilewright::log::Log;
use tilewright::pipeline::{Search as How, longest};
use tilewright::place::Place;
use tilewright::search::targets::target_for_device;
use tilewright::{Error, Event, MemoryHandle, Observer, Optimized, Options, budget};

/// The search's stack, as the command line has it: terms nest as deep as programs are long.
const STACK: usize = 64 << 20;
/// A search whose budget is spent and which holds something is waited for so much longer.
const LATE: Duration = Duration::from_millis(500);

/// What a search said last.
#[derive(Default)]
struct Said {
    stage: &'static str,
    candidates: u64,
    rejected: u64,
    best: Option<(String, f64, bool, usize)>,
    remarks: Vec<String>,
    held: Option<Box<Optimized>>,
}

struct Watcher(Arc<Mutex<Said>>);

impl Observer for Watcher {
    fn event(&mut self, event: &Event<'_>) {
        let mut said = locked(&self.0);
        match event {
            Event::Stage(stage) => said.stage = stage,
            Event::Candidates(n) => said.candidates = *n,
            Event::Rejected(_) => said.rejected += 1,
            Event::Best { candidate } => {
                let state = State::of(candidate.evidence()).to_string();
                let found = candidate.value();
                let measured = found.measured.as_ref().map(|m| m.warm.median_us);
                let us = measured.unwrap_or(found.predicted.us);
                said.best = Some((state, us, measured.is_some(), found.tile.kernels.len()));
            }
            Event::Held(found) => said.held = Some(Box::new((*found).clone())),
            Event::Remark(remark) => said.remarks.push((*remark).to_owned()),
            Event::Expressions(_) | Event::Timed(_) => {}
        }
    }
}

fn locked(said: &Mutex<Said>) -> MutexGuard<'_, Said> {
    said.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A search that runs.
#[pyclass(frozen, module = "tilewright._native")]
pub(crate) struct Search {
    program: ir::Program,
    options: Options,
    begun: Instant,
    said: Arc<Mutex<Said>>,
    running: Mutex<Running>,
}

struct Running {
    receiver: Receiver<Result<Optimized, Error>>,
    thread: Option<JoinHandle<()>>,
    result: Option<Result<Optimized, Error>>,
    /// Since when it is asked to end.
    asked: Option<Instant>,
    ended: bool,
    panicked: bool,
}

#[pymethods]
impl Search {
    /// Starts it. `variables` are what of the environment counts, `worker` is the command line.
    #[new]
    #[pyo3(signature = (program, *, target, budget, seed, gpus, log, worker, variables))]
    #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
    fn new(
        py: Python<'_>,
        program: &Program,
        target: &str,
        budget: &str,
        seed: u64,
        gpus: u32,
        log: (bool, Option<PathBuf>),
        worker: PathBuf,
        variables: std::collections::HashMap<OsString, OsString>,
    ) -> PyResult<Self> {
        let budget = budget::budget(budget).map_err(PyValueError::new_err)?;
        let target = py.detach(|| target_of(target, &worker))?;
        let place = Place {
            variable: &|name| variables.get(&OsString::from(name)).cloned(),
            program: Some(&worker),
        };
        // The one that was asked for, else the user's own. Nothing is timed without a GPU, so that one is not made without one.
        let (wanted, path) = log;
        let own = || place.log().filter(|_| gpus > 0);
        let log = if wanted { path.or_else(own) } else { None };
        let options = Options {
            budget,
            seed,
            nvrtc: place.nvrtc(),
            cache: place.cache(),
            locks: place.locks(),
            memory: memory(log)?,
            worker: Some(worker),
            use_gpu: gpus > 0,
            gpus,
            ..Options::new(target)
        };
        let (program, said) = (program.program.clone(), Arc::<Mutex<Said>>::default());
        let (sender, receiver) = channel();
        let thread = std::thread::Builder::new().stack_size(STACK).spawn({
            let (program, options) = (program.clone(), options.clone());
            let mut watcher = Watcher(said.clone());
            move || {
                // Nobody waits any more where it took too long.
                let _ = sender.send(tilewright::optimize(&program, &options, &mut watcher));
            }
        });
        let thread = thread
            .map_err(|e| TilewrightError::new_err(format!("no thread can be started: {e}")))?;
        Ok(Self {
            program,
            options,
            begun: Instant::now(),
            said,
            running: Mutex::new(Running {
                receiver,
                thread: Some(thread),
                result: None,
                asked: None,
                ended: false,
                panicked: false,
            }),
        })
    }

    /// Waits so many seconds at most; whether it has ended.
    fn wait(&self, py: Python<'_>, seconds: f64) -> bool {
        let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        py.detach(|| self.wait_for(time))
    }

    /// Asks it to end.
    fn stop(&self) {
        self.options.stop.store(true, Ordering::Relaxed);
    }

    /// Stage, candidates, rejected points, and of the best state, microseconds, whether these were measured, and kernels.
    #[expect(clippy::type_complexity, reason = "a tuple for Python")]
    fn progress(&self) -> (&'static str, u64, u64, Option<(String, f64, bool, usize)>) {
        let said = locked(&self.said);
        (
            said.stage,
            said.candidates,
            said.rejected,
            said.best.clone(),
        )
    }

    /// What a user should know and was not told yet.
    fn remarks(&self) -> Vec<String> {
        std::mem::take(&mut locked(&self.said).remarks)
    }

    /// What was found. Where the search has not ended, what it holds; nothing where it holds nothing.
    fn result(&self, py: Python<'_>) -> PyResult<Option<Found>> {
        let found = py.detach(|| self.take())?;
        let Some(optimized) = found else {
            return Ok(None);
        };
        let Options { target, seed, .. } = &self.options;
        let manifest = py.detach(|| describe(&self.program, target, *seed, &optimized));
        Ok(Some(Found {
            manifest: manifest.map_err(|e| SearchError::new_err(e.to_string()))?,
            program: self.program.clone(),
            target: target.clone(),
            seed: *seed,
            optimized,
        }))
    }
}

impl Search {
    /// Whether something is held that would be the result.
    fn holds(&self) -> bool {
        locked(&self.said).held.is_some()
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for(&self, time: Duration) -> bool {
        let mut running = self.running();
        if running.ended {
            return true;
        }
        match running.receiver.recv_timeout(time) {
            Ok(result) => {
                running.result = Some(result);
                running.ended = true;
            }
            Err(RecvTimeoutError::Disconnected) => {
                let thread = running.thread.take();
                running.panicked = thread.is_none_or(|thread| thread.join().is_err());
                running.ended = true;
            }
            Err(RecvTimeoutError::Timeout) => {
                // The library keeps the budget; this is for what it does in one piece.
                let promised = longest(self.options.budget).saturating_sub(2 * LATE);
                if self.begun.elapsed() > promised && self.holds() {
                    self.stop();
                    let asked = *running.asked.get_or_insert_with(Instant::now);
                    running.ended = asked.elapsed() > LATE;
                }
            }
        }
        running.ended
    }

    fn take(&self) -> PyResult<Option<Optimized>> {
        let mut running = self.running();
        if running.panicked {
            let message = "the search failed by a fault of its own; standard error has its message";
            return Err(TilewrightError::new_err(message));
        }
        match running.result.take() {
            Some(Ok(found)) => Ok(Some(found)),
            Some(Err(Error::Stopped)) | None => Ok(self.interrupted()),
            Some(Err(error)) => Err(refusal(&self.program.name, &error)),
        }
    }

    /// The last that it held, as the result of a search that was ended.
    fn interrupted(&self) -> Option<Optimized> {
        let held = locked(&self.said).held.take()?;
        Some(Optimized {
            search: How::Interrupted,
            seconds: self.begun.elapsed().as_secs_f64(),
            ..*held
        })
    }
}

/// A search that nobody waits for any more ends soon.
impl Drop for Search {
    fn drop(&mut self) {
        self.options.stop.store(true, Ordering::Relaxed);
    }
}

/// The log at a place.
fn memory(path: Option<PathBuf>) -> PyResult<Option<MemoryHandle>> {
    let log = path.map(|path| Log::open(&path)).transpose();
    let log =
        log.map_err(|e| SearchError::new_err(format!("{e}; log=False adds nothing to a log")))?;
    Ok(log.map(MemoryHandle::new))
}

/// What is said of a search without a result.
fn refusal(program: &str, error: &Error) -> PyErr {
    match error {
        Error::Gpu(_) => GpuError::new_err(format!("{error}; gpu=False goes on without it")),
        Error::Budget { .. } => BudgetError::new_err(format!(
            "{program}: {error}, and gpu=False goes on without the GPU"
        )),
        Error::NothingVerified { examples, .. } => {
            let examples: String = examples.iter().map(|e| format!("\n  {e}")).collect();
            SearchError::new_err(format!("{program}: {error}{examples}"))
        }
        Error::Memory { .. } | Error::Values { .. } | Error::Stopped | Error::NotTaken { .. } => {
            SearchError::new_err(format!("{program}: {error}"))
        }
    }
}

/// The target of a name; `auto` is the one whose device is in this machine.
fn target_of(name: &str, worker: &std::path::Path) -> PyResult<Target> {
    if !name.eq_ignore_ascii_case("auto") {
        return tilewright::target(name).map_err(|e| SearchError::new_err(e.to_string()));
    }
    let info = tilewright::worker::gpu_info(worker).map_err(|e| {
        let known: Vec<String> = tilewright::targets().into_iter().map(|t| t.name).collect();
        GpuError::new_err(if e.is_absence() {
            format!(
                "target=\"auto\": {e}; to search without a GPU, name one of {}",
                known.join(", ")
            )
        } else {
            format!("target=\"auto\": {e}")
        })
    })?;
    target_for_device(&info.name).map_err(|e| SearchError::new_err(e.to_string()))
}

/// What a search found.
#[pyclass(frozen, module = "tilewright._native")]
pub(crate) struct Found {
    program: ir::Program,
    target: Target,
    seed: u64,
    optimized: Optimized,
    manifest: Manifest,
}

#[pymethods]
impl Found {
    /// The report of `optimize --json`.
    fn report(&self) -> String {
        summary(&self.manifest, &self.optimized, &self.target).to_string()
    }

    /// The text of the kernels.
    #[getter]
    fn cuda(&self) -> &str {
        &self.optimized.best.value().cuda.source
    }

    /// Writes the artifact.
    fn save(&self, py: Python<'_>, folder: PathBuf, force: bool) -> PyResult<()> {
        let gives_way = if force { GivesWay::Any } else { GivesWay::Same };
        let saved = py.detach(|| {
            let place = Destination::new(&folder, &self.program, &self.target, gives_way)?;
            emit(
                &self.program,
                &self.target,
                self.seed,
                &self.optimized,
                &place,
            )
        });
        match saved {
            Ok(_) => Ok(()),
            Err(EmitError::Artifact(error @ Refused::OtherArtifact { .. })) => Err(
                ArtifactError::new_err(format!("{error}; force=True replaces it")),
            ),
            Err(error) => Err(ArtifactError::new_err(error.to_string())),
        }
    }
}
