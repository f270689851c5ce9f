//! What a search has left: one object that every stage asks, so that all that the clock decides stands in one table.

use super::promise::MARGIN;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What is kept beside a quarter of the budget for the end of a search: the last artifact is written, processes end.
const RESERVE: Duration = Duration::from_secs(1);

/// Of the budget: what a verification before that of the result may take. Where it takes more, candidates are worth more than something
/// to hold on the way.
const PROOF_SHARE: f64 = 0.15;

/// What ends at a share of the budget at the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// New forms of the program.
    Forms,
    /// The search for cuts, with a GPU to measure on and without one.
    MeasuredCuts,
    Cuts,
    /// The first pass over tile programs.
    Breadth,
    /// Everything but the finals.
    Deepening,
    /// The walk over tile programs.
    Walk,
    /// The same while nothing that was searched for has passed: the plainest alone is no answer.
    Patience,
    /// What is said of the winner.
    Derivation,
}

impl Stage {
    /// Of the budget, or, of what the search is made of, of what was left of it when that began.
    fn share(self) -> f64 {
        match self {
            Self::Forms => 0.2,
            Self::MeasuredCuts => 0.25,
            Self::Cuts => 0.5,
            Self::Breadth => 0.5,
            Self::Deepening => 0.85,
            // The check of the result comes behind it.
            Self::Walk => 0.9,
            Self::Patience => 1.1,
            Self::Derivation => 1.25,
        }
    }
}

/// When a search began, how long it may take, and whether somebody ended it.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    start: Instant,
    budget: Duration,
    /// How much of the budget was spent when something was held and the search began.
    before: Duration,
    /// What the verification of the result takes, behind everything else.
    proof: Duration,
    stop: Arc<AtomicBool>,
}

impl Clock {
    /// Starts now.
    pub(crate) fn new(budget: Duration, stop: Arc<AtomicBool>) -> Self {
        Self {
            start: Instant::now(),
            budget,
            before: Duration::ZERO,
            proof: Duration::ZERO,
            stop,
        }
    }

    /// From now on something is held, and there is what is left.
    pub(crate) fn begin(&mut self) {
        self.before = self.elapsed().min(self.budget);
    }

    /// The verification of the result takes so long: what is before it ends in time for it.
    pub(crate) fn keep(&mut self, proof: Duration) {
        self.proof = proof;
    }

    /// Whether verifying something before the result takes a small part of the budget.
    pub(crate) fn has_time_for_proof(&self) -> bool {
        self.proof <= self.budget.mul_f64(PROOF_SHARE) && Instant::now() + self.proof <= self.last()
    }

    /// When the verification of the result has to begin.
    fn last(&self) -> Instant {
        let (share, time) = MARGIN;
        let all = self.budget.mul_f64(1.0 + share) + time;
        self.start + all.saturating_sub(RESERVE + self.proof)
    }

    /// Since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Whether somebody ended the search.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// What ends the search.
    pub(crate) fn stop(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }

    /// Whether a stage has to end.
    pub(crate) fn is_over(&self, stage: Stage) -> bool {
        self.is_stopped() || Instant::now() >= self.end(stage)
    }

    /// When a stage has to end, if nobody ends the search before.
    pub(crate) fn end(&self, stage: Stage) -> Instant {
        let all = self.start + self.budget.mul_f64(stage.share());
        match stage {
            Stage::Derivation => all + RESERVE,
            Stage::Walk | Stage::Patience => all,
            Stage::Forms
            | Stage::MeasuredCuts
            | Stage::Cuts
            | Stage::Breadth
            | Stage::Deepening => {
                let left = self.budget - self.before;
                let own = self.start + self.before + left.mul_f64(stage.share());
                own.min(self.last())
            }
        }
    }
}
