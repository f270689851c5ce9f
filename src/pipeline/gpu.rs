//! The GPU's part of the walk: who judges candidates, and the walk that measures.

use super::report::Outcome;
use super::{
    BATCH, Candidate, Compilation, Error, Event, FINALISTS, Options, Stage, Tally, Walk,
    compile::Compiler,
    held::{Sound, VERIFICATION},
    report,
    trial::{Place, Trial},
};
use crate::worker::{Care, GpuWorker, Job, Setting};
use codegen::CudaProgram;
use device::gpu::GpuInfo;
use device::timing::Measurement;
use ir::{Program, Reject, Schedule, Target, TileProgram};
use search::tiling::enumerate::Candidates;
use verify::{Verified, check_time};

/// What a candidate must be faster by, times what is held, to be verified before the finals, and the share of the time that this may take.
const CLEARLY_BETTER: f64 = 0.95;
const PROVING_SHARE: f64 = 0.15;
/// Candidates that were timed and checked on one kind of input, fastest first.
pub(super) type Arms = Vec<Verified<Candidate>>;

/// A GPU of the target's kind, in a worker.
pub(super) struct Judge {
    worker: GpuWorker,
    /// Other GPUs of the same kind, which time kernels alone.
    pub(super) others: Vec<GpuWorker>,
    pub(super) gpu: GpuInfo,
    /// Whether it has answered anything about a candidate, and the last fault of the GPU or its worker.
    answered: bool,
    fault: Option<String>,
}

impl Judge {
    /// Asks for a GPU; remarks when there is none, or one of another kind: what is made for a target can be made anywhere.
    ///
    /// # Errors
    /// [`Error::Gpu`]: it is there, and cannot be asked or given kernels. `uncompiled` is why nothing can be compiled.
    pub(super) fn find(
        options: &Options,
        uncompiled: Option<&str>,
        tally: &mut Tally<'_>,
    ) -> Result<Option<Self>, Error> {
        let Some(command) = options.worker.as_ref().filter(|_| options.use_gpu) else {
            return Ok(None);
        };
        let mut worker = GpuWorker::new(command).until(options.stop.clone());
        let info = match worker.info() {
            Ok(info) => info,
            Err(e) if e.is_absence() => {
                tally.remark(format!("nothing ran: {e}"));
                return Ok(None);
            }
            Err(e) => return Err(Error::Gpu(e.to_string())),
        };
        let found = info.capability.0 * 10 + info.capability.1;
        if found != options.target.capability || !info.name.contains(&options.target.device) {
            tally.remark(format!(
                "nothing ran: this machine has {} (compute capability {found}), the target is {} ({})",
                info.name, options.target.name, options.target.capability
            ));
            return Ok(None);
        }
        if let Some(why) = uncompiled {
            return Err(Error::Gpu(format!("{}: {why}", info.name)));
        }
        let others = 1..info.devices.min(options.gpus).max(1);
        let others = others.map(|n| GpuWorker::on(command, n).until(options.stop.clone()));
        Ok(Some(Self {
            others: others.collect(),
            worker,
            gpu: info,
            answered: false,
            fault: None,
        }))
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
        let is_alike = |worker: &mut GpuWorker| match worker.info() {
            Ok(info) => {
                (&info.name, info.memory_bytes) == (&self.gpu.name, self.gpu.memory_bytes)
                    && worker.load(setting.clone()).is_ok()
            }
            Err(_) => false,
        };
        let (loaded, others) = std::thread::scope(|scope| {
            let others = std::mem::take(&mut self.others).into_iter();
            let others: Vec<_> = others
                .map(|mut worker| scope.spawn(move || is_alike(&mut worker).then_some(worker)))
                .collect();
            let loaded = self.worker.load(setting.clone());
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

    fn time(&mut self, candidates: &[&Candidate], care: Care) -> Result<Vec<Measurement>, Reject> {
        let jobs = candidates.iter().filter_map(|c| c.job()).collect();
        let answer = self.worker.time(jobs, care);
        self.heard(answer)
    }

    /// Times one job, quickly.
    pub(super) fn time_one(&mut self, job: Job) -> Result<Measurement, Reject> {
        let answer = self.worker.time_one(job);
        self.heard(answer)
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

impl Walk<'_, '_> {
    /// With a GPU: kernels of tile programs are timed alone, under one schedule after another, and those tile programs whose kernels are fastest are
    /// timed as they are. What is fast is run on one kind of input before it is kept; the fastest are then timed against each other and
    /// verified on every kind of input, and the fastest that passes is the result.
    pub(super) fn measured(
        &mut self,
        first: Option<Verified<Candidate>>,
        points: &mut Option<Candidates>,
        compiler: &mut Compiler,
        judge: &mut Judge,
    ) -> Option<Sound> {
        self.stage("measuring");
        let mut arms = Arms::default();
        let held = first.is_some();
        // The plainest is the fall-back. While the GPU verifies it there is enough to do here.
        std::thread::scope(|scope| {
            scope.spawn(|| points.iter_mut().for_each(Candidates::prepare));
            if let Some(first) = first {
                self.try_out(&mut arms, first, judge);
            }
        });
        self.tell(compiler);
        self.clock.begin();
        let plain = arms.first().cloned();
        match self.options.given {
            Some(_) => self.given_measured(&mut arms, points, compiler, judge),
            None => self.tuned(&mut arms, held, points, compiler, judge),
        }
        let best = if self.clock.is_stopped() {
            None
        } else {
            self.finals(arms, plain, judge)
        };
        // What ran and was right may still be slower: it is the result where no finalist passes.
        let best = best.and_then(|best| Some((self.machine(&best)?, best)));
        let best = best.map(|(machine, best)| (best, machine));
        best.or_else(|| self.last(compiler))
    }

    /// Tile programs under the schedule that was given, as far as the budget reaches.
    fn given_measured(
        &mut self,
        arms: &mut Arms,
        points: &mut Option<Candidates>,
        compiler: &mut Compiler,
        judge: &mut Judge,
    ) {
        for n in 0.. {
            let share = if n == 0 { Stage::Walk } else { Stage::Breadth };
            let spent = self.spent(share) && !arms.is_empty() || self.spent(Stage::Patience);
            if spent || self.clock.is_stopped() {
                return;
            }
            let batch = self.next(points, false, BATCH);
            if batch.is_empty() {
                return;
            }
            for candidate in self.ready(&batch, points, compiler) {
                if self.spent(share) && !arms.is_empty() || self.clock.is_stopped() {
                    return;
                }
                self.try_out(arms, candidate, judge);
            }
            self.tell(compiler);
        }
    }

    /// Verifies the fastest, so that something verified is held from early on: where nothing is held yet, or where it is clearly faster
    /// and verifying takes a small share of the time.
    fn prove(&mut self, arms: &mut Arms, judge: &mut Judge) {
        while let Some(best) = arms.first() {
            let rank = best.value().rank();
            let held = self.held.best();
            let worth = held.is_none_or(|held| {
                rank < held.value().rank() * CLEARLY_BETTER
                    && self.stages.of(VERIFICATION) < self.clock.elapsed().mul_f64(PROVING_SHARE)
            });
            let late = self.clock.is_stopped() || !self.clock.has_time_for_proof(held.is_none());
            if !worth || late || best.evidence().kernel.is_some() {
                break;
            }
            let said = report::candidate(best.value());
            let verdict = self.proven(best.clone(), judge);
            match verdict {
                Ok(best) => {
                    said.becomes(Outcome::Verified(best.value().rank()));
                    self.hold(best.clone());
                    arms[0] = best;
                }
                Err(reject) => {
                    said.becomes(Outcome::Refused(&reject));
                    self.tally.reject(&reject);
                    arms.remove(0);
                }
            }
        }
    }

    /// Verifies on the GPU.
    fn proven(
        &mut self,
        candidate: Verified<Candidate>,
        judge: &mut Judge,
    ) -> Result<Verified<Candidate>, Reject> {
        let outer = self.stages.begin(VERIFICATION);
        let verdict = judge.verify(candidate);
        self.stages.begin(outer.unwrap_or_default());
        verdict
    }

    /// Times a candidate and, where it is among the fastest, checks it on one kind of input and keeps it. Gives its time.
    pub(super) fn try_out(
        &mut self,
        arms: &mut Arms,
        candidate: Verified<Candidate>,
        judge: &mut Judge,
    ) -> Option<f64> {
        let slowest = arms
            .get(2 * FINALISTS - 1)
            .map_or(f64::INFINITY, |arm| arm.value().rank());
        let said = report::candidate(candidate.value());
        // A kernel alone that has its text was timed already.
        let known = self.kernels.measured(&candidate.value().cuda.source);
        let is_new = known.is_none();
        match judged(judge, candidate, known, slowest, &self.options.target) {
            Ok(candidate) => {
                let us = candidate.value().rank();
                said.becomes(Outcome::Measured(us));
                if is_new {
                    self.timed(candidate.value(), judge);
                }
                if us < slowest {
                    self.keep(arms, candidate);
                    self.prove(arms, judge);
                }
                Some(us)
            }
            Err(reject) => {
                said.becomes(Outcome::Refused(&reject));
                self.tally.reject(&reject);
                None
            }
        }
    }

    /// The figure by which what was timed is compared, in microseconds.
    pub(super) fn figure(&self, time: &Measurement) -> f64 {
        figure(time, self.program.input_bytes(), &self.options.target)
    }

    /// Tells of the time of a candidate.
    fn timed(&mut self, candidate: &Candidate, judge: &Judge) {
        if let Some(time) = &candidate.measured {
            let subject = (&candidate.tile, &candidate.schedule, &candidate.cuda);
            let compilation = candidate.compilation.as_ref();
            self.tell_time(true, subject, compilation, time, &judge.gpu);
        }
    }

    /// Tells of a time: of a tile program that computes the program, if it is `whole`, or of a kernel of one.
    pub(super) fn tell_time(
        &mut self,
        whole: bool,
        subject: (&TileProgram, &Schedule, &CudaProgram),
        compilation: Option<&Compilation>,
        time: &Measurement,
        gpu: &GpuInfo,
    ) {
        let place = Place {
            program: self.original,
            target: &self.options.target,
            gpu,
            seed: self.options.seed,
        };
        let trial = Trial::new(place, whole, subject, compilation, time);
        self.tally.timed(&trial);
    }

    /// Keeps the fastest so far, fastest first.
    fn keep(&mut self, arms: &mut Arms, candidate: Verified<Candidate>) {
        let at = arms.partition_point(|a| a.value().rank() <= candidate.value().rank());
        if at == 0 {
            self.tally.observer.event(&Event::Best {
                candidate: &candidate,
            });
        }
        arms.insert(at, candidate);
        arms.truncate(2 * FINALISTS);
    }

    /// The fastest that passes. What was slower comes when no finalist does, and the `plain` one last: what was seen of them until
    /// now was a sample.
    fn finals(
        &mut self,
        mut arms: Arms,
        plain: Option<Verified<Candidate>>,
        judge: &mut Judge,
    ) -> Option<Verified<Candidate>> {
        self.stage("finals");
        // Two rounds: half of the field after the first, the order of the rest from the second.
        let mut others = Vec::new();
        for size in [FINALISTS, FINALISTS / 2] {
            others.splice(0..0, arms.drain(size.min(arms.len())..));
            let candidates: Vec<&Candidate> = arms.iter().map(Verified::value).collect();
            let care = match size < FINALISTS {
                true => Care::Thorough(self.clock.left_for_finals()),
                false => Care::Quick,
            };
            match judge.time(&candidates, care) {
                Ok(times) => {
                    let timed = arms.into_iter().zip(times);
                    arms = Vec::new();
                    for (arm, time) in timed {
                        match with_time(arm, time, &self.options.target) {
                            Ok(arm) => {
                                self.timed(arm.value(), judge);
                                arms.push(arm);
                            }
                            Err(reject) => self.tally.reject(&reject),
                        }
                    }
                    arms.sort_by(|x, y| x.value().rank().total_cmp(&y.value().rank()));
                }
                Err(reject) => self.tally.reject(&reject),
            }
        }
        for arm in arms.into_iter().chain(others).chain(plain) {
            if self.clock.is_stopped() {
                break;
            }
            let said = report::candidate(arm.value());
            // What ran at full size, on the way, passed more than what it is looked at in full for.
            let verdict = match arm.evidence().kernel.is_some() {
                true => Ok(arm),
                false => self.in_full(&arm).and_then(|arm| self.proven(arm, judge)),
            };
            match verdict {
                Ok(best) => {
                    said.becomes(Outcome::Verified(best.value().rank()));
                    self.tally.observer.event(&Event::Best { candidate: &best });
                    return Some(best);
                }
                Err(reject) => {
                    said.becomes(Outcome::Refused(&reject));
                    self.tally.reject(&reject);
                }
            }
        }
        None
    }
}

/// Times a candidate whose time is not `known`; one that is faster than `slowest` is also run on one kind of input.
fn judged(
    judge: &mut Judge,
    candidate: Verified<Candidate>,
    known: Option<Measurement>,
    slowest: f64,
    target: &Target,
) -> Result<Verified<Candidate>, Reject> {
    let time = match known {
        Some(known) => known,
        None => judge.time_one(candidate.value().job().ok_or_else(uncompiled)?)?,
    };
    let us = time.warm.median_us;
    let candidate = with_time(candidate, time, target)?;
    if us < slowest {
        judge.screen(candidate.value())?;
    }
    Ok(candidate)
}

/// The candidate with its time, unless nothing can be that fast.
fn with_time(
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
fn figure(time: &Measurement, input_bytes: u64, target: &Target) -> f64 {
    let (warm, cold) = (time.warm.median_us, time.cold.median_us);
    match input_bytes as f64 > STAYS * target.l2_bytes as f64 {
        true => (warm + cold) / 2.0,
        false => warm,
    }
}
