//! The GPU's part of the walk: who judges candidates, and the walk that measures.

use super::{
    BATCH, BREADTH_SHARE, Candidate, DEEPENED, Event, FINAL_SHARE, FINALISTS, Options, Point,
    Tally, Walk, compile::Compiler,
};
use crate::worker::{GpuWorker, Job, Setting};
use device::timing::Measurement;
use ir::{Program, Reject, Target};
use verify::{Verified, check_time};

/// A GPU of the target's kind, in a worker.
pub(super) struct Judge {
    worker: GpuWorker,
}

impl Judge {
    /// Asks for a GPU; remarks when there is none to use.
    pub(super) fn find(options: &Options, compiles: bool, tally: &mut Tally<'_>) -> Option<Self> {
        let command = options
            .worker
            .as_ref()
            .filter(|_| options.use_gpu && compiles)?;
        let mut worker = GpuWorker::new(command);
        let info = match worker.info() {
            Ok(info) => info,
            Err(e) => {
                tally.remark(format!("no GPU was used: {e}"));
                return None;
            }
        };
        let found = info.capability.0 * 10 + info.capability.1;
        if found != options.target.capability || !info.name.contains(&options.target.device) {
            tally.remark(format!(
                "no GPU was used: this machine has {} (compute capability {found}), the target is {} ({})",
                info.name, options.target.name, options.target.capability
            ));
            return None;
        }
        Some(Self { worker })
    }

    /// Gives it the program: the reference is computed now, which takes a while. Remarks when it cannot be.
    pub(super) fn load(
        mut self,
        program: &Program,
        options: &Options,
        tally: &mut Tally<'_>,
    ) -> Option<Self> {
        let setting = Setting {
            program: program.clone(),
            seed: options.seed,
            arch: options.target.arch.clone(),
            nvrtc: options.nvrtc.clone(),
        };
        match self.worker.load(setting) {
            Ok(()) => Some(self),
            Err(e) => {
                tally.remark(format!("no GPU was used: {e}"));
                None
            }
        }
    }

    fn time(
        &mut self,
        candidates: &[&Candidate],
        thorough: bool,
    ) -> Result<Vec<Measurement>, Reject> {
        let jobs = candidates.iter().filter_map(|c| job(c)).collect();
        self.worker.time(jobs, thorough)
    }

    /// Runs the candidate on one kind of input: what is wrong mostly shows at once.
    fn screen(&mut self, candidate: &Candidate) -> Result<(), Reject> {
        self.worker.screen(job(candidate).ok_or_else(uncompiled)?)
    }

    /// Verifies on the GPU and adds what was seen to the evidence.
    fn verify(&mut self, candidate: Verified<Candidate>) -> Result<Verified<Candidate>, Reject> {
        let job = job(candidate.value()).ok_or_else(uncompiled)?;
        let evidence = self.worker.verify(job)?;
        Ok(candidate.with_kernel(evidence))
    }
}

fn uncompiled() -> Reject {
    Reject::Fault("the candidate was not compiled".to_owned())
}

fn job(candidate: &Candidate) -> Option<Job> {
    let compilation = candidate.compilation.as_ref()?;
    Some(Job {
        tile: candidate.tile.clone(),
        launches: candidate.cuda.launches.clone(),
        cubin: compilation.compiled.cubin.clone(),
    })
}

impl Walk<'_, '_> {
    /// With a GPU, in two passes: each tile program that the budget reaches under its first schedule, then the fastest ones under their other
    /// schedules. What is fast is run on one kind of input before it is kept; the fastest are then timed against each other and
    /// verified on every kind of input, and the fastest that passes is the result.
    pub(super) fn measured(
        &mut self,
        first: Option<Verified<Candidate>>,
        points: &[Point],
        compiler: &mut Compiler,
        judge: &mut Judge,
    ) -> Option<Verified<Candidate>> {
        self.stage("measuring");
        let mut arms: Vec<Verified<Candidate>> = Vec::new();
        let mut fast: Vec<(f64, usize)> = Vec::new();
        // The plainest is the fall-back. The model's first choices are looked at while there is any time, the rest while there
        // is enough for what follows.
        if let Some(first) = first {
            self.try_out(&mut arms, first, judge);
        }
        let batches = (0..points.len())
            .step_by(BATCH)
            .map(|at| at..points.len().min(at + BATCH));
        for (n, batch) in batches.enumerate() {
            let share = if n == 0 { 1.0 } else { BREADTH_SHARE };
            if self.spent(share) && !arms.is_empty() {
                break;
            }
            for candidate in self.ready(&points[batch.clone()], compiler, 0..1) {
                if self.spent(share) && !arms.is_empty() {
                    break;
                }
                let made_from = |at: &usize| points[*at].tile == candidate.value().tile;
                let at = batch.clone().find(made_from);
                let us = self.try_out(&mut arms, candidate, judge);
                fast.extend(us.zip(at));
            }
        }
        fast.sort_by(|x, y| x.0.total_cmp(&y.0).then(x.1.cmp(&y.1)));
        for (n, (_, at)) in fast.into_iter().take(DEEPENED).enumerate() {
            if n > 0 && self.spent(1.0 - FINAL_SHARE) {
                break;
            }
            for candidate in
                self.ready(&points[at..=at], compiler, 1..self.options.effort.schedules)
            {
                self.try_out(&mut arms, candidate, judge);
            }
        }
        self.finals(arms, judge)
    }

    /// Times a candidate and, where it is among the fastest, checks it on one kind of input and keeps it. Gives its time.
    fn try_out(
        &mut self,
        arms: &mut Vec<Verified<Candidate>>,
        candidate: Verified<Candidate>,
        judge: &mut Judge,
    ) -> Option<f64> {
        let slowest = arms
            .get(2 * FINALISTS - 1)
            .map_or(f64::INFINITY, |arm| arm.value().rank());
        let schedule = candidate.value().schedule.to_string();
        let plan = candidate.value().plan.clone();
        match judged(judge, candidate, slowest, &self.options.target) {
            Ok(candidate) => {
                let us = candidate.value().rank();
                tracing::debug!(us, plan, schedule, "measured");
                if us < slowest {
                    self.keep(arms, candidate);
                }
                Some(us)
            }
            Err(reject) => {
                tracing::debug!(%reject, plan, schedule, "refused");
                self.tally.reject(&reject);
                None
            }
        }
    }

    /// Keeps the fastest so far, fastest first.
    fn keep(&mut self, arms: &mut Vec<Verified<Candidate>>, candidate: Verified<Candidate>) {
        let at = arms.partition_point(|a| a.value().rank() <= candidate.value().rank());
        if at == 0 {
            self.tally.observer.event(&Event::Best {
                candidate: candidate.value(),
            });
        }
        arms.insert(at, candidate);
        arms.truncate(2 * FINALISTS);
    }

    fn finals(
        &mut self,
        mut arms: Vec<Verified<Candidate>>,
        judge: &mut Judge,
    ) -> Option<Verified<Candidate>> {
        self.stage("finals");
        // Two rounds: half of the field after the first, the order of the rest from the second.
        for size in [FINALISTS, FINALISTS / 2] {
            arms.truncate(size);
            let candidates: Vec<&Candidate> = arms.iter().map(Verified::value).collect();
            match judge.time(&candidates, size < FINALISTS) {
                Ok(times) => {
                    let timed = arms.into_iter().zip(times);
                    arms = Vec::new();
                    for (arm, time) in timed {
                        match with_time(arm, time, &self.options.target) {
                            Ok(arm) => arms.push(arm),
                            Err(reject) => self.tally.reject(&reject),
                        }
                    }
                    arms.sort_by(|x, y| x.value().rank().total_cmp(&y.value().rank()));
                }
                Err(reject) => self.tally.reject(&reject),
            }
        }
        for arm in arms {
            match judge.verify(arm) {
                Ok(best) => {
                    self.tally.observer.event(&Event::Best {
                        candidate: best.value(),
                    });
                    return Some(best);
                }
                Err(reject) => self.tally.reject(&reject),
            }
        }
        None
    }
}

/// Times a candidate; one that is faster than `slowest` is also run on one kind of input.
fn judged(
    judge: &mut Judge,
    candidate: Verified<Candidate>,
    slowest: f64,
    target: &Target,
) -> Result<Verified<Candidate>, Reject> {
    let mut times = judge.time(&[candidate.value()], false)?;
    let time = times
        .pop()
        .ok_or_else(|| Reject::Fault("the worker gave no time".to_owned()))?;
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
    let floor = search::floor::floor_us(&candidate.value().tile, target);
    for timing in [&time.warm, &time.cold] {
        check_time(timing.median_us, floor)?;
    }
    Ok(candidate.map(|c| Candidate {
        measured: Some(time),
        ..c
    }))
}
