//! The walk with a GPU that judges: candidates are timed, the fastest are kept and verified.

use super::history::Whole;
use super::judge::{Judge, Proved, Tried, Trying, figure, with_time};
use super::report::Outcome;
use super::{
    BATCH, Candidate, FINALISTS, Stage, Walk,
    compile::Compiler,
    held::{Sound, VERIFICATION},
    report,
    trial::{Place, Trial},
};
use crate::worker::Care;
use device::gpu::GpuInfo;
use device::timing::Measurement;
use ir::Reject;
use search::tiling::enumerate::Candidates;
use std::time::Instant;
use verify::Verified;

/// What a candidate must be faster by, times what is held, to be verified before the finals, and the share of the time that this may take.
const CLEARLY_BETTER: f64 = 0.95;
const PROVING_SHARE: f64 = 0.15;
/// Candidates that were timed and checked on one kind of input, fastest first.
pub(super) type Arms = Vec<Verified<Candidate>>;

impl<'a> Walk<'a, '_> {
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
        let mut waiting = None;
        // The plainest is the fall-back, which comes last where it is slow. While the GPU verifies it there is enough to do here.
        std::thread::scope(|scope| {
            scope.spawn(|| points.iter_mut().for_each(Candidates::prepare));
            match first {
                Some(first) if self.plain_waits => waiting = Some(first),
                Some(first) => {
                    self.machines.begin(first.value(), &self.options.target);
                    self.try_out(&mut arms, first, judge);
                }
                None => {}
            }
        });
        self.tell(compiler);
        self.clock.begin();
        let plain = arms.first().cloned().or(waiting);
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

    /// The fastest, where verifying it is worth the time, so that something verified is held from early on: where nothing is held yet, or where it is
    /// clearly faster and verifying takes a small share of the time.
    pub(super) fn worth_proving(&self, arms: &Arms) -> Option<Verified<Candidate>> {
        let best = arms.first()?;
        let rank = best.value().rank();
        let held = self.held.best();
        let proving = self.stages.of(VERIFICATION) + self.proving;
        let worth = held.is_none_or(|held| {
            rank < held.value().rank() * CLEARLY_BETTER
                && proving < self.clock.elapsed().mul_f64(PROVING_SHARE)
        });
        let late = self.clock.is_stopped() || !self.clock.has_time_for_proof(held.is_none());
        (worth && !late && best.evidence().kernel.is_none()).then(|| best.clone())
    }

    /// A candidate was verified: it is held, or it is none.
    pub(super) fn proved(&mut self, arms: &mut Arms, proved: Proved) {
        let Proved {
            said,
            seen,
            units,
            candidate,
        } = proved;
        let own = |arm: &Verified<Candidate>| arm.value().cuda.units == units;
        let at = arms.iter().position(own);
        match candidate {
            Ok(best) => {
                said.becomes(Outcome::Verified(best.value().rank()));
                self.hold(best.clone());
                at.into_iter().for_each(|at| arms[at] = best.clone());
            }
            Err(reject) => {
                self.faulted(&reject);
                said.becomes(Outcome::Refused(&reject));
                self.notebook.saw(seen.refused(&reject));
                self.tally.reject(&reject);
                at.into_iter().for_each(|at| drop(arms.remove(at)));
            }
        }
    }

    /// Something was refused: a fault ends the process that verifies.
    pub(super) fn faulted(&mut self, reject: &Reject) {
        if let Reject::Fault(_) = reject {
            self.clock.lost();
        }
    }

    /// What a GPU is asked about a candidate.
    pub(super) fn trying(&self, arms: &Arms, candidate: Verified<Candidate>) -> Trying {
        Trying {
            said: report::candidate(candidate.value()),
            seen: Box::new(Whole::of(candidate.value())),
            // A kernel alone that has its unit was timed already.
            known: self.kernels.measured(&candidate.value().cuda.units),
            slowest: arms
                .get(2 * FINALISTS - 1)
                .map_or(f64::INFINITY, |arm| arm.value().rank()),
            last: self.clock.last(),
            candidate,
        }
    }

    /// A candidate was tried: it is kept where it is among the fastest. Gives its time.
    pub(super) fn tried(&mut self, arms: &mut Arms, tried: Tried, gpu: &GpuInfo) -> Option<f64> {
        match tried.candidate {
            Ok(candidate) => {
                let us = candidate.value().rank();
                tried.said.becomes(Outcome::Measured(us));
                self.notebook.saw(Whole::of(candidate.value()));
                if tried.is_new {
                    self.timed(candidate.value(), gpu);
                }
                if us < tried.slowest {
                    self.keep(arms, candidate);
                }
                Some(us)
            }
            Err(reject) => {
                self.faulted(&reject);
                tried.said.becomes(Outcome::Refused(&reject));
                self.notebook.saw(tried.seen.refused(&reject));
                self.tally.reject(&reject);
                None
            }
        }
    }

    /// Times a candidate, keeps it where it is among the fastest, and verifies it where that is worth the time.
    fn try_out(&mut self, arms: &mut Arms, candidate: Verified<Candidate>, judge: &mut Judge) {
        let tried = judge.try_out(self.trying(arms, candidate), &self.options.target);
        self.tried(arms, tried, &judge.gpu);
        while let Some(best) = self.worth_proving(arms) {
            let proved = self.prove(best, judge);
            self.proved(arms, proved);
        }
    }

    /// Verifies on the GPU.
    fn prove(&mut self, candidate: Verified<Candidate>, judge: &mut Judge) -> Proved {
        let outer = self.stages.begin(VERIFICATION);
        let said = report::candidate(candidate.value());
        let seen = Box::new(Whole::of(candidate.value()));
        let begun = Instant::now();
        let proved = judge.prove(said, seen, candidate);
        self.clock.verified_in(begun.elapsed());
        self.stages.begin(outer.unwrap_or_default());
        proved
    }

    /// The figure by which what was timed is compared, in microseconds.
    pub(super) fn figure(&self, time: &Measurement) -> f64 {
        figure(time, self.original.input_bytes(), &self.options.target)
    }

    /// Tells of the time of a candidate.
    fn timed(&mut self, candidate: &Candidate, gpu: &GpuInfo) {
        if let Some(time) = &candidate.measured {
            let subject = (&candidate.tile, &candidate.schedule, &candidate.cuda);
            let compilation = candidate.compilation.as_ref();
            let trial = Trial::new(self.place(gpu), true, subject, compilation, time);
            self.tally.timed(&trial);
        }
    }

    /// Where what is timed on a GPU is timed.
    pub(super) fn place<'g>(&self, gpu: &'g GpuInfo) -> Place<'g>
    where
        'a: 'g,
    {
        Place {
            program: self.original,
            target: &self.options.target,
            gpu,
            seed: self.options.seed,
        }
    }

    /// Keeps the fastest so far, fastest first.
    fn keep(&mut self, arms: &mut Arms, candidate: Verified<Candidate>) {
        let at = arms.partition_point(|a| a.value().rank() <= candidate.value().rank());
        if at == 0 {
            self.improved(&candidate);
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
            // What was timed before has its order from that.
            if self.clock.is_time_for_proof() {
                break;
            }
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
                                self.timed(arm.value(), &judge.gpu);
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
            if self.clock.has_ended() {
                break;
            }
            self.machines.begin(arm.value(), &self.options.target);
            let said = report::candidate(arm.value());
            let seen = Whole::of(arm.value());
            // What ran at full size, on the way, passed more than what it is looked at in full for.
            let verdict = match arm.evidence().kernel.is_some() {
                true => Ok(arm),
                false => (self.in_full(&arm, self.clock.check()))
                    .and_then(|arm| self.prove(arm, judge).candidate),
            };
            match verdict {
                Ok(best) => {
                    said.becomes(Outcome::Verified(best.value().rank()));
                    self.improved(&best);
                    return Some(best);
                }
                Err(reject) => {
                    said.becomes(Outcome::Refused(&reject));
                    self.notebook.saw(seen.refused(&reject));
                    self.tally.reject(&reject);
                }
            }
        }
        None
    }
}
