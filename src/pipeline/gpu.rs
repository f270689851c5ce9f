//! The GPU's part of the walk: who judges candidates, and the walk that measures.

use super::kernels::{self, Key};
use super::report::Outcome;
use super::{
    BATCH, Candidate, DEEPENED, Error, Event, FINALISTS, Options, Point, Stage, Tally, Walk,
    compile::Compiler,
    held::{Sound, VERIFICATION},
    report,
    trial::{Place, Trial},
};
use crate::worker::{Care, GpuWorker, Job, Setting};
use device::timing::Measurement;
use ir::{AxisId, Program, Reject, Schedule, Target, TileProgram};
use search::tiling::enumerate::Candidates;
use std::collections::BTreeSet;
use std::time::Instant;
use verify::{Verified, check_time};

/// Plans that share the time for deepening; further ones get what these leave.
const SHARING: usize = 3;
/// Other tilings of a cut that are timed.
const TILINGS: usize = 12;
/// What a candidate must be faster by, times what is held, to be verified before the finals, and the share of the time that this may take.
const CLEARLY_BETTER: f64 = 0.95;
const PROVING_SHARE: f64 = 0.15;
/// What a kernel must be faster by, times what it was: times of kernels alone are quick ones.
const CLEARLY: f64 = 0.98;

/// A GPU of the target's kind, in a worker.
pub(super) struct Judge {
    worker: GpuWorker,
    /// The GPU's name.
    gpu: String,
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
        Ok(Some(Self {
            worker,
            gpu: info.name,
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
        match self.worker.load(setting) {
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

/// Which kernels there are, and over which axes each runs.
fn structure(tile: &TileProgram) -> Vec<Vec<AxisId>> {
    let axes = |k: &ir::Kernel| k.axes.keys().copied().collect();
    tile.kernels.iter().map(axes).collect()
}

/// The kernels that compute one cut, each alone.
fn of_cut(point: &Point, cut: usize) -> Vec<(Key, TileProgram)> {
    let here = point.origins.iter().map(|origin| *origin == cut);
    let all = kernels::alone(&point.tile).into_iter().zip(here);
    all.filter(|(_, here)| *here).map(|(k, _)| k).collect()
}

fn uncompiled() -> Reject {
    Reject::Fault("the candidate was not compiled".to_owned())
}

impl Walk<'_, '_> {
    /// With a GPU, in two passes: each tile program that the budget reaches under its first schedule, then the kernels of the fastest
    /// ones under their other schedules and in their other tilings. What is fast is run on one kind of input before it is kept; the fastest are then timed against each other and
    /// verified on every kind of input, and the fastest that passes is the result.
    pub(super) fn measured(
        &mut self,
        first: Option<Verified<Candidate>>,
        points: &mut Option<Candidates>,
        compiler: &mut Compiler,
        judge: &mut Judge,
    ) -> Option<Sound> {
        self.stage("measuring");
        let mut arms: Vec<Verified<Candidate>> = Vec::new();
        let mut fast: Vec<(f64, Point)> = Vec::new();
        let held = first.is_some();
        // The plainest is the fall-back. The model's first choices are looked at while there is any time, the rest while there
        // is enough for what follows.
        // While the GPU verifies it there is enough to do here.
        std::thread::scope(|scope| {
            scope.spawn(|| points.iter_mut().for_each(Candidates::prepare));
            if let Some(first) = first {
                self.try_out(&mut arms, first, judge, compiler);
            }
        });
        self.clock.begin();
        let plain = arms.first().cloned();
        for n in 0.. {
            let share = if n == 0 { Stage::Walk } else { Stage::Breadth };
            let given = self.options.given.is_some();
            let spent =
                self.spent(share) && !arms.is_empty() || given && self.spent(Stage::Patience);
            if spent || self.clock.is_stopped() {
                break;
            }
            let mut batch = self.next(points, held, BATCH);
            if batch.is_empty() {
                break;
            }
            for candidate in self.ready(&batch, points, compiler) {
                if self.spent(share) && !arms.is_empty() || self.clock.is_stopped() {
                    break;
                }
                let made_from = |p: &Point| p.tile == candidate.value().tile;
                let at = batch.iter().position(made_from);
                let us = self.try_out(&mut arms, candidate, judge, compiler);
                if let (Some(us), Some(at)) = (us, at) {
                    fast.push((us, batch.swap_remove(at)));
                }
            }
        }
        // Stable: equal times keep the model's order.
        fast.sort_by(|x, y| x.0.total_cmp(&y.0));
        // The fastest of each structure first: its tilings and schedules are looked at together.
        let mut known = BTreeSet::new();
        let (first, others): (Vec<_>, Vec<_>) = (fast.into_iter())
            .map(|(_, point)| point)
            .partition(|point| known.insert(structure(&point.tile)));
        let together = (first.len() + others.len()).clamp(1, SHARING);
        // A schedule that is given has no others beside it.
        let deepened = match self.options.given {
            Some(_) => 0,
            None => DEEPENED,
        };
        let points_to_deepen = first.into_iter().chain(others).take(deepened);
        for (n, point) in points_to_deepen.enumerate() {
            let (now, most) = (Instant::now(), self.clock.end(Stage::Deepening));
            if now > most || self.clock.is_stopped() {
                break;
            }
            let sharing = together.saturating_sub(n).max(1) as u32;
            let until = now + most.saturating_duration_since(now) / sharing;
            for candidate in self.deeper(&point, until, points, compiler, judge) {
                self.try_out(&mut arms, candidate, judge, compiler);
            }
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

    /// Verifies the fastest, so that something verified is held from early on: where nothing is held yet, or where it is clearly faster
    /// and verifying takes a small share of the time.
    fn prove(
        &mut self,
        arms: &mut Vec<Verified<Candidate>>,
        judge: &mut Judge,
        compiler: &mut Compiler,
    ) {
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
                    self.hold(best.clone(), compiler);
                    arms[0] = best;
                }
                Err(reject) => {
                    said.becomes(Outcome::Refused(&reject));
                    self.tally.reject(&reject);
                    arms.remove(0);
                }
            }
        }
        self.tell(compiler);
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

    /// What else can be made of a point: the fastest that was found of each kernel, timed alone, among its schedules and the other
    /// tilings of its cut, as far as there is time `until` then; and where it is one kernel, that under all its schedules.
    fn deeper(
        &mut self,
        point: &Point,
        until: Instant,
        points: &mut Option<Candidates>,
        compiler: &mut Compiler,
        judge: &mut Judge,
    ) -> Vec<Verified<Candidate>> {
        let schedules = self.options.effort.schedules;
        let kernels = kernels::alone(&point.tile);
        let mut found = Vec::new();
        if let [(key, _)] = kernels.as_slice() {
            let target = &self.options.target;
            self.kernels
                .settle(&kernels, schedules, target, compiler, &mut self.tally);
            let known = self.kernels.get(key);
            let others = known.iter().flat_map(|k| k.good.iter().skip(1));
            let others = others
                .map(|s| Schedule {
                    kernels: vec![s.schedule.clone()],
                })
                .collect();
            found = self.made(&[(point, others)], compiler);
        }
        let Some(source) = points else {
            return found;
        };
        let cuts = point.origins.last().map_or(0, |last| last + 1);
        let mut best: Vec<Point> = vec![point.clone(); cuts];
        // The kernels that take longest first.
        self.time_alone(&kernels, until, judge);
        let mut order: Vec<(f64, usize)> = (0..cuts)
            .map(|cut| (self.time_of(&of_cut(point, cut)), cut))
            .collect();
        order.sort_by(|x, y| y.0.total_cmp(&x.0).then(x.1.cmp(&y.1)));
        for (now, cut) in order {
            if Instant::now() > until || self.clock.is_stopped() {
                break;
            }
            let own = of_cut(point, cut);
            self.tune(&own, schedules, until, compiler, judge);
            let mut fastest = now.min(self.time_of(&own));
            let mut others = source.alternatives(point, cut);
            others.truncate(TILINGS);
            // Compiled together, as many as there are processors.
            for some in others.chunks(rayon::current_num_threads().max(1)) {
                if Instant::now() > until || self.clock.is_stopped() {
                    break;
                }
                let theirs: Vec<_> = some.iter().map(|p| of_cut(p, cut)).collect();
                let target = &self.options.target;
                (self.kernels).settle(&theirs.concat(), 1, target, compiler, &mut self.tally);
                for (other, theirs) in some.iter().zip(theirs) {
                    if Instant::now() > until || self.clock.is_stopped() {
                        break;
                    }
                    self.time_alone(&theirs, until, judge);
                    let us = self.time_of(&theirs);
                    if us < fastest * CLEARLY {
                        self.tune(&theirs, schedules, until, compiler, judge);
                        fastest = self.time_of(&theirs);
                        best[cut] = other.clone();
                    }
                }
            }
        }
        let parts: Vec<&Point> = best.iter().collect();
        match source.joined(&parts) {
            Ok(joined) => found.extend(self.ready(&[joined], points, compiler)),
            Err(reject) => self.tally.reject(&reject),
        }
        found
    }

    /// Finds schedules of kernels and times those that were not, as far as there is time `until` then.
    fn tune(
        &mut self,
        kernels: &[(Key, TileProgram)],
        schedules: usize,
        until: Instant,
        compiler: &mut Compiler,
        judge: &mut Judge,
    ) {
        let target = &self.options.target;
        self.kernels
            .settle(kernels, schedules, target, compiler, &mut self.tally);
        self.time_alone(kernels, until, judge);
    }

    /// Times kernels alone, under each schedule that compiles and was not timed, as far as there is time `until` then.
    fn time_alone(&mut self, kernels: &[(Key, TileProgram)], until: Instant, judge: &mut Judge) {
        // Where not all parameters find room in L2 no kernel finds its own there.
        let cold = self.program.input_bytes() > self.options.target.l2_bytes;
        for (key, _) in kernels {
            let Some(known) = self.kernels.get_mut(key) else {
                continue;
            };
            let mut kept = Vec::new();
            for mut scheduled in std::mem::take(&mut known.good) {
                let job = scheduled
                    .compilation
                    .as_ref()
                    .map(|c| Job::new(&known.tile, &scheduled.cuda.launches, &c.compiled.cubin));
                match job.filter(|_| scheduled.us.is_none() && Instant::now() < until) {
                    None => kept.push(scheduled),
                    Some(job) => match judge.worker.time(vec![job], Care::Quick) {
                        Ok(times) => {
                            let time = times.first();
                            let us =
                                |t: &Measurement| if cold { &t.cold } else { &t.warm }.median_us;
                            scheduled.us = time.map(us);
                            if let Some(time) = time {
                                let schedule = Schedule {
                                    kernels: vec![scheduled.schedule.clone()],
                                };
                                let place = Place {
                                    program: &self.original.name,
                                    target: &self.options.target,
                                    gpu: &judge.gpu,
                                };
                                let subject = (&known.tile, &schedule);
                                let compilation = scheduled.compilation.as_ref();
                                let trial = Trial::new(place, false, subject, compilation, time);
                                self.tally.observer.event(&Event::Timed(&trial));
                            }
                            let (us, kernel) = (
                                scheduled.us,
                                search::tiling::enumerate::describe(&known.tile),
                            );
                            tracing::debug!(
                                us,
                                kernel,
                                schedule = ?scheduled.schedule,
                                "timed alone"
                            );
                            kept.push(scheduled);
                        }
                        Err(reject) => {
                            tracing::debug!(%reject, kernel = search::tiling::enumerate::describe(&known.tile), "refused");
                            self.tally.reject(&reject);
                        }
                    },
                }
            }
            known.good = kept;
        }
    }

    /// What kernels take one after another, each alone; infinite where one cannot be had.
    fn time_of(&self, kernels: &[(Key, TileProgram)]) -> f64 {
        let us = |key: &Key| self.kernels.get(key).and_then(|k| k.best()?.us);
        kernels
            .iter()
            .map(|(key, _)| us(key).unwrap_or(f64::INFINITY))
            .sum()
    }

    /// Times a candidate and, where it is among the fastest, checks it on one kind of input and keeps it. Gives its time.
    fn try_out(
        &mut self,
        arms: &mut Vec<Verified<Candidate>>,
        candidate: Verified<Candidate>,
        judge: &mut Judge,
        compiler: &mut Compiler,
    ) -> Option<f64> {
        let slowest = arms
            .get(2 * FINALISTS - 1)
            .map_or(f64::INFINITY, |arm| arm.value().rank());
        let said = report::candidate(candidate.value());
        match judged(judge, candidate, slowest, &self.options.target) {
            Ok(candidate) => {
                let us = candidate.value().rank();
                said.becomes(Outcome::Measured(us));
                self.timed(candidate.value(), judge);
                if us < slowest {
                    self.keep(arms, candidate);
                    self.prove(arms, judge, compiler);
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

    /// Tells of the time of a candidate.
    fn timed(&mut self, candidate: &Candidate, judge: &Judge) {
        let Some(time) = &candidate.measured else {
            return;
        };
        let place = Place {
            program: &self.original.name,
            target: &self.options.target,
            gpu: &judge.gpu,
        };
        let subject = (&candidate.tile, &candidate.schedule);
        let compilation = candidate.compilation.as_ref();
        let trial = Trial::new(place, true, subject, compilation, time);
        self.tally.observer.event(&Event::Timed(&trial));
    }

    /// Keeps the fastest so far, fastest first.
    fn keep(&mut self, arms: &mut Vec<Verified<Candidate>>, candidate: Verified<Candidate>) {
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
        mut arms: Vec<Verified<Candidate>>,
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
            let full = self.in_full(&arm);
            match full.and_then(|arm| self.proven(arm, judge)) {
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

/// Times a candidate; one that is faster than `slowest` is also run on one kind of input.
fn judged(
    judge: &mut Judge,
    candidate: Verified<Candidate>,
    slowest: f64,
    target: &Target,
) -> Result<Verified<Candidate>, Reject> {
    let mut times = judge.time(&[candidate.value()], Care::Quick)?;
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
    let floor = search::cost::floor::floor_us(&candidate.value().tile, target);
    for timing in [&time.warm, &time.cold] {
        check_time(timing.median_us, floor)?;
    }
    candidate.realised(|c| Candidate {
        measured: Some(time),
        ..c
    })
}
