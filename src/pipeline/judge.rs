//! Who judges candidates: a GPU in a worker, which times kernels, runs candidates and verifies them.
//!
//! It decides nothing about the search: it is asked, and says what it saw.

use super::history::Whole;
use super::kernels::Scheduled;
use super::report::Subject;
use super::{Candidate, Clock, Error, Options, Stage, Tally};
use crate::worker::{Care, GpuWorker, Job, Setting, is_of};
use device::gpu::GpuInfo;
use device::locks::GpuLocks;
use device::timing::Measurement;
use ir::{Program, Reject, Target};
use search::tune::{KernelId, ProgramId};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};
use verify::{Verified, check_time};

/// A GPU of the target's kind, in a worker.
pub(super) struct Judge {
    worker: GpuWorker,
    pub(super) gpu: GpuInfo,
    /// Whether it has answered anything about a candidate, and the last fault of the GPU or its worker.
    answered: bool,
    fault: Option<String>,
    /// The longest that a run on one kind of input took.
    screening: Duration,
    /// Other GPUs of the same kind, which time kernels alone: candidates are compared with each other, on one GPU.
    pub(super) others: Vec<Self>,
}

/// What a GPU is asked during the search by measurement.
pub(super) enum Asked {
    /// How long does a kernel take alone?
    Kernel(KernelId, Scheduled, Job),
    /// Is a candidate of this tile program among the fastest?
    Candidate(ProgramId, Trying),
    /// Does a candidate compute the program?
    Proof(Subject, Box<Whole>, Verified<Candidate>),
}

/// What it answers.
pub(super) enum Told {
    Kernel(KernelId, Scheduled, Result<Measurement, Reject>),
    Candidate(ProgramId, Tried),
    Proof(Proved),
}

/// A candidate that is to be timed and, where it is among the fastest, checked on one kind of input.
pub(super) struct Trying {
    pub(super) said: Subject,
    pub(super) seen: Box<Whole>,
    pub(super) candidate: Verified<Candidate>,
    /// How long it takes, where a kernel alone has its text and was timed.
    pub(super) known: Option<Measurement>,
    /// Microseconds of the slowest that is kept, where no more are.
    pub(super) slowest: f64,
    /// What would take longer is left to the verification.
    pub(super) last: Instant,
}

/// What came of one.
pub(super) struct Tried {
    pub(super) said: Subject,
    pub(super) seen: Box<Whole>,
    /// With its time.
    pub(super) candidate: Result<Verified<Candidate>, Reject>,
    /// It was timed now.
    pub(super) is_new: bool,
    /// It was faster than this, in microseconds, if it was checked.
    pub(super) slowest: f64,
}

/// What verifying a candidate gave.
pub(super) struct Proved {
    pub(super) said: Subject,
    pub(super) seen: Box<Whole>,
    /// Its texts.
    pub(super) units: Vec<String>,
    pub(super) candidate: Result<Verified<Candidate>, Reject>,
}

impl Judge {
    /// Asks for a GPU; remarks when there is none, or one of another kind: what is made for a target can be made anywhere.
    ///
    /// # Errors
    /// [`Error::Gpu`]: it is there, and cannot be asked or given kernels. `uncompiled` is why nothing can be compiled.
    pub(super) fn find(
        options: &Options,
        uncompiled: Option<&str>,
        clock: &Clock,
        tally: &mut Tally<'_>,
    ) -> Result<Option<Self>, Error> {
        let Some(command) = options.worker.as_ref().filter(|_| options.use_gpu) else {
            return Ok(None);
        };
        let worker = |device| GpuWorker::on(command, device).until(options.stop.clone());
        let mut first = worker(options.first_gpu);
        let info = match first.info() {
            Ok(info) => info,
            Err(e) if e.is_absence() => {
                tally.remark(format!("nothing ran: {e}"));
                return Ok(None);
            }
            Err(e) => return Err(Error::Gpu(e.to_string())),
        };
        let found = info.capability.0 * 10 + info.capability.1;
        if !is_of(&info, &options.target) {
            tally.remark(format!(
                "nothing ran: this machine has {} (compute capability {found}), the target is {} ({})",
                info.name, options.target.name, options.target.capability
            ));
            return Ok(None);
        }
        if let Some(why) = uncompiled {
            return Err(Error::Gpu(format!("{}: {why}", info.name)));
        }
        let end = options.first_gpu.saturating_add(options.gpus);
        let others = options.first_gpu.saturating_add(1)..info.devices.min(end);
        let locks = options.locks.as_ref().and_then(|folder| {
            GpuLocks::open(folder)
                .map_err(|e| {
                    tally.remark(format!(
                        "no GPU is locked while something is timed on it: {e}"
                    ));
                })
                .ok()
        });
        let end = Some(clock.end(Stage::Patience));
        let judge = |mut worker: GpuWorker| {
            worker.end_at(clock.end(Stage::Derivation));
            if let Some(locks) = locks.clone() {
                worker.lock_with(locks, end);
            }
            Self::new(worker, info.clone())
        };
        Ok(Some(Self {
            others: others.map(|n| judge(worker(n))).collect(),
            ..judge(first)
        }))
    }

    fn new(worker: GpuWorker, gpu: GpuInfo) -> Self {
        Self {
            worker,
            gpu,
            answered: false,
            screening: Duration::ZERO,
            fault: None,
            others: Vec::new(),
        }
    }

    /// Gives it the program: the reference is computed now, which takes a while.
    ///
    /// # Errors
    /// [`Error::Gpu`]: the reference cannot be made.
    pub(super) fn load(mut self, program: &Program, options: &Options) -> Result<Self, Error> {
        let setting = Setting {
            program: program.clone(),
            seed: options.seed,
            arch: options.target.arch.clone(),
            nvrtc: options.nvrtc.clone(),
        };
        // One that is of another kind, or cannot be used, is not: times are compared.
        let first = self.gpu.clone();
        let is_alike = |other: &mut Self| match other.worker.info() {
            Ok(info) => {
                other.gpu = info;
                let same = other.gpu.memory_bytes == first.memory_bytes;
                same && other.gpu.timed_on() == first.timed_on()
                    && other.worker.load(setting.clone(), false).is_ok()
            }
            Err(_) => false,
        };
        let is_alike = &is_alike;
        let (loaded, others) = std::thread::scope(|scope| {
            let others = std::mem::take(&mut self.others).into_iter();
            let others: Vec<_> = others
                .map(|mut other| scope.spawn(move || is_alike(&mut other).then_some(other)))
                .collect();
            let loaded = self.worker.load(setting.clone(), true);
            let others = others.into_iter();
            let others = others.filter_map(|other| other.join().ok().flatten());
            (loaded, others.collect())
        });
        self.others = others;
        match loaded {
            Ok(()) => Ok(self),
            Err(e) => Err(Error::Gpu(e.to_string())),
        }
    }

    /// The last fault, where the GPU gave no other answer about any candidate.
    pub(super) fn never_ran(self) -> Option<String> {
        self.fault.filter(|_| !self.answered)
    }

    /// Keeps account of what was answered.
    fn heard<T>(&mut self, answer: Result<T, Reject>) -> Result<T, Reject> {
        match &answer {
            Err(Reject::Fault(what)) => self.fault = Some(what.clone()),
            Ok(_) | Err(_) => self.answered = true,
        }
        answer
    }

    pub(super) fn time(
        &mut self,
        candidates: &[&Candidate],
        care: Care,
    ) -> Result<Vec<Measurement>, Reject> {
        let jobs = candidates.iter().filter_map(|c| c.job()).collect();
        let answer = self.worker.time(jobs, care);
        self.heard(answer)
    }

    /// Times one job, quickly.
    fn time_one(&mut self, job: Job) -> Result<Measurement, Reject> {
        let answer = self.worker.time_one(job);
        self.heard(answer)
    }

    /// Times a candidate whose time is not known; one that is among the fastest is also run on one kind of input.
    pub(super) fn try_out(&mut self, trying: Trying, target: &Target) -> Tried {
        let Trying {
            said,
            seen,
            candidate,
            known,
            slowest,
            last,
        } = trying;
        Tried {
            said,
            seen,
            is_new: known.is_none(),
            candidate: self.judged(candidate, known, slowest, last, target),
            slowest,
        }
    }

    fn judged(
        &mut self,
        candidate: Verified<Candidate>,
        known: Option<Measurement>,
        slowest: f64,
        last: Instant,
        target: &Target,
    ) -> Result<Verified<Candidate>, Reject> {
        let time = match known {
            Some(known) => known,
            None => self.time_one(candidate.value().job().ok_or_else(uncompiled)?)?,
        };
        let candidate = with_time(candidate, time, target)?;
        let has_time = Instant::now() + self.screening <= last;
        if candidate.value().rank() < slowest && has_time {
            let begun = Instant::now();
            self.screen(candidate.value())?;
            self.screening = self.screening.max(begun.elapsed());
        }
        Ok(candidate)
    }

    /// Verifies a candidate.
    pub(super) fn prove(
        &mut self,
        said: Subject,
        seen: Box<Whole>,
        candidate: Verified<Candidate>,
    ) -> Proved {
        Proved {
            said,
            seen,
            units: candidate.value().cuda.units.clone(),
            candidate: self.verify(candidate),
        }
    }

    /// Answers until nobody asks any more, or until nobody hears. Gives how long it was busy.
    pub(super) fn serve(
        &mut self,
        asked: &Receiver<Asked>,
        answers: &Sender<(Told, Duration)>,
        target: &Target,
        left: &AtomicBool,
    ) -> Duration {
        let mut busy = Duration::ZERO;
        for question in asked {
            if left.load(Ordering::Relaxed) {
                break;
            }
            let begun = Instant::now();
            let told = match question {
                Asked::Kernel(kernel, scheduled, job) => {
                    Told::Kernel(kernel, scheduled, self.time_one(job))
                }
                Asked::Candidate(program, trying) => {
                    Told::Candidate(program, self.try_out(trying, target))
                }
                Asked::Proof(said, seen, candidate) => {
                    Told::Proof(self.prove(said, seen, candidate))
                }
            };
            let took = begun.elapsed();
            busy += took;
            // Who asked may have gone.
            let _ = answers.send((told, took));
        }
        busy
    }

    /// Runs the candidate on one kind of input: what is wrong mostly shows at once.
    fn screen(&mut self, candidate: &Candidate) -> Result<(), Reject> {
        let answer = self.worker.screen(candidate.job().ok_or_else(uncompiled)?);
        self.heard(answer)
    }

    /// Verifies on the GPU and adds what was seen to the evidence.
    fn verify(&mut self, candidate: Verified<Candidate>) -> Result<Verified<Candidate>, Reject> {
        let job = candidate.value().job().ok_or_else(uncompiled)?;
        let answer = self.worker.verify(job);
        let evidence = self.heard(answer)?;
        candidate.ran(evidence)
    }
}

fn uncompiled() -> Reject {
    Reject::Fault("the candidate was not compiled".to_owned())
}

/// The candidate with its time, unless nothing can be that fast.
pub(super) fn with_time(
    candidate: Verified<Candidate>,
    time: Measurement,
    target: &Target,
) -> Result<Verified<Candidate>, Reject> {
    let floor = search::cost::floor::floor_us(&candidate.value().tile, target);
    for timing in [&time.warm, &time.cold] {
        check_time(timing.median_us, floor)?;
    }
    candidate.realised(|c| Candidate {
        figure: Some(figure(&time, c.expression.input_bytes(), target)),
        measured: Some(time),
        ..c
    })
}

/// The share of L2 that parameters may take if they are to be there the next time.
const STAYS: f64 = 0.7;

/// The figure by which what was timed is compared, in microseconds. Where parameters of so many bytes hardly find room in L2 some of them are there when
/// a program runs among others, and some are not: then the mean of both figures.
pub fn figure(time: &Measurement, input_bytes: u64, target: &Target) -> f64 {
    let (warm, cold) = (time.warm.median_us, time.cold.median_us);
    match input_bytes as f64 > STAYS * target.l2_bytes as f64 {
        true => (warm + cold) / 2.0,
        false => warm,
    }
}
