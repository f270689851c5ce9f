//! What a search has left: one object that every stage asks, so that all that the clock decides stands in one table.

use super::promise::{FOR_CANDIDATES, MARGIN, longest};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// What is kept beside a quarter of the budget for the end of a search: the last artifact is written, processes end.
const RESERVE: Duration = Duration::from_secs(1);

/// Of the budget: what a verification before that of the result may take. Where it takes more, candidates are worth more than something
/// to hold on the way.
const PROOF_SHARE: f64 = 0.15;

/// Of the budget: what is kept for one at most because another one took so long.
const MOST_KEPT: f64 = 0.4;
/// How much longer one verification may take than another one of the same program.
const VARIES: f64 = 1.25;

/// Of the budget: what compiling the last picks may take.
const PICKING: f64 = 0.05;

/// What timing the finalists takes at least and at most.
const LEAST_FINALS: Duration = Duration::from_millis(500);
const MOST_FINALS: Duration = Duration::from_secs(20);

/// What takes a share of the budget at most, from when it begins: however late that is, a space that was looked at and put in order is worth more
/// than the few candidates that could be looked at meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The search for cuts, with a GPU to measure on and without one.
    MeasuredCuts,
    Cuts,
    /// Asking the clock of machine programs for an order.
    Order,
}

impl Part {
    fn share(self) -> f64 {
        match self {
            Self::MeasuredCuts => 0.25,
            Self::Cuts => 0.5,
            Self::Order => 0.1,
        }
    }
}

/// What ends at a share of the budget at the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// New forms of the program.
    Forms,
    /// The first pass over tile programs.
    Breadth,
    /// Kernels are timed.
    Deepening,
    /// The fastest that are made of them are compiled: everything but trying them, and the finals.
    Picks,
    /// The same as long as none of them has been tried: the plainest alone is no answer.
    FirstPick,
    /// The walk over tile programs.
    Walk,
    /// The same while nothing that was searched for has passed: the plainest alone is no answer.
    Patience,
    /// What is said of the winner, and its verification before that.
    Derivation,
}

impl Stage {
    /// Of the budget, or, of what the search is made of, of what was left of it when that began.
    fn share(self) -> f64 {
        match self {
            Self::Forms => 0.2,
            Self::Breadth => 0.5,
            Self::Deepening => 0.85,
            Self::Picks => 0.85 + PICKING,
            // The check of the result comes behind it.
            Self::Walk => 0.9,
            Self::FirstPick | Self::Patience => 1.1,
            Self::Derivation => 1.0 + MARGIN.0,
        }
    }
}

/// When a search began, how long it may take, and whether somebody ended it.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    start: Instant,
    budget: Duration,
    /// How much of the budget was spent on what the search began with.
    before: Duration,
    /// What the verification of the result takes, behind everything else.
    proof: Duration,
    /// What the reference takes, before anything can be verified, and a verification by itself.
    load: Duration,
    check: Duration,
    /// What the first verification of a process takes beside that, where it was not made before.
    shared: Duration,
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
            load: Duration::ZERO,
            check: Duration::ZERO,
            shared: Duration::ZERO,
            stop,
        }
    }

    /// Something is held, or was verified: from now on there is what is left.
    pub(crate) fn begin(&mut self) {
        self.before = self.elapsed().min(self.budget);
    }

    /// The reference takes so long, what all verifications share, and a verification, which the result needs with what comes `behind` the search: what is
    /// before it ends in time for it.
    pub(crate) fn keep(&mut self, [load, shared, check, behind]: [Duration; 4]) {
        (self.load, self.shared, self.check) = (load.saturating_add(shared), shared, check);
        self.proof = check.saturating_add(behind);
    }

    /// A process that verifies was lost: the next verification makes once more what all of them share.
    pub(crate) fn lost(&mut self) {
        let shared = std::mem::take(&mut self.shared);
        self.check = self.check.saturating_add(shared);
        self.proof = self.proof.saturating_add(shared);
    }

    /// Whether there is time to verify something before the result. The `first` to be held may take what half of the budget for candidates
    /// leaves; what is better than something held, a small part of it.
    pub(crate) fn has_time_for_proof(&self, first: bool) -> bool {
        let most = match first {
            true => (longest(self.budget).saturating_sub(self.budget.mul_f64(FOR_CANDIDATES)))
                .saturating_sub(self.load + self.proof),
            false => self.budget.mul_f64(PROOF_SHARE),
        };
        let end = Instant::now().checked_add(self.check);
        self.check <= most && end.is_some_and(|end| end <= self.last())
    }

    /// What timing the last few candidates may take.
    pub(crate) fn left_for_finals(&self) -> Duration {
        let left = self.last().saturating_duration_since(Instant::now());
        left.clamp(LEAST_FINALS, MOST_FINALS)
    }

    /// What looking at the result in full may take, once nothing else is looked at.
    pub(crate) fn left_for_result(&self) -> Duration {
        (self.end(Stage::Derivation) + RESERVE).saturating_duration_since(Instant::now())
    }

    /// A verification took so long: another one may take as long, and somewhat more.
    pub(crate) fn verified_in(&mut self, took: Duration) {
        tracing::debug!(?took, kept = ?self.check, "a verification");
        let took = took.mul_f64(VARIES).min(self.budget.mul_f64(MOST_KEPT));
        self.proof += took.saturating_sub(self.check);
        self.check = self.check.max(took);
    }

    /// What a verification takes by itself.
    pub(crate) fn check(&self) -> Duration {
        self.check
    }

    /// When what comes behind the search has to begin, the verification of the result with it.
    pub(crate) fn last(&self) -> Instant {
        self.last_but(Duration::ZERO)
    }

    /// Whether there is time for nothing but the verification of the result.
    pub(crate) fn is_time_for_proof(&self) -> bool {
        let kept = 2 * RESERVE + self.check;
        Instant::now() >= self.start + longest(self.budget).saturating_sub(kept)
    }

    /// Whether nothing may begin any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_stopped()
            || Instant::now() >= self.start + longest(self.budget).saturating_sub(RESERVE)
    }

    /// So long before that.
    fn last_but(&self, before: Duration) -> Instant {
        self.start + longest(self.budget).saturating_sub(RESERVE + self.proof + before)
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

    /// Whether a part of the search, which begins when this is first asked, has to end.
    pub(crate) fn ends(&self, part: Part) -> impl Fn() -> bool + Send + Sync + 'static {
        let (clock, begun) = (self.clone(), OnceLock::new());
        move || {
            let own = *begun.get_or_init(Instant::now) + clock.budget.mul_f64(part.share());
            clock.is_stopped() || Instant::now() >= own.min(clock.last())
        }
    }

    /// When a stage has to end, if nobody ends the search before.
    pub(crate) fn end(&self, stage: Stage) -> Instant {
        let all = self.start + self.budget.mul_f64(stage.share());
        match stage {
            // The longest that a search takes, but for what comes then.
            Stage::Derivation => all + MARGIN.1 - 2 * RESERVE,
            Stage::FirstPick => all.min(self.last()),
            Stage::Walk | Stage::Patience => all,
            Stage::Forms | Stage::Breadth | Stage::Deepening | Stage::Picks => {
                let left = self.budget - self.before;
                let own = self.start + self.before + left.mul_f64(stage.share());
                let behind = match stage == Stage::Picks {
                    true => Duration::ZERO,
                    false => self.budget.mul_f64(PICKING),
                };
                own.min(self.last_but(behind))
            }
        }
    }
}

/// What the stages of a search took; verifying counts for itself, whichever stage it interrupts.
#[derive(Debug, Default)]
pub(crate) struct Stages {
    ended: BTreeMap<&'static str, Duration>,
    now: Option<(&'static str, Instant)>,
}

impl Stages {
    /// A stage begins, and the one before it ends, which this gives.
    pub(crate) fn begin(&mut self, stage: &'static str) -> Option<&'static str> {
        let before = self.now.replace((stage, Instant::now()));
        let (name, since) = before?;
        *self.ended.entry(name).or_default() += since.elapsed();
        Some(name)
    }

    /// What a stage took until now.
    pub(crate) fn of(&self, stage: &str) -> Duration {
        let now = self.now.filter(|(name, _)| *name == stage);
        let ended = self.ended.get(stage).copied().unwrap_or_default();
        ended + now.map_or(Duration::ZERO, |(_, since)| since.elapsed())
    }

    /// All of them, in seconds.
    pub(crate) fn seconds(&self) -> BTreeMap<String, f64> {
        let names = (self.ended.keys().copied()).chain(self.now.map(|(name, _)| name));
        names
            .map(|name| (name.to_owned(), self.of(name).as_secs_f64()))
            .collect()
    }
}

/// What the search by measurement did, and what that took. Some of it ran beside other things, on other cores or on the GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Kernels that were timed alone.
    pub trials: u64,
    /// Kernels whose times were known from before.
    pub recalled: u64,
    /// How long it was searched by measurement, in seconds.
    pub seconds: f64,
    /// Proposing tile programs and putting their schedules in order.
    pub enumerating: f64,
    /// Making texts of schedules.
    pub lowering: f64,
    /// Compiling, all processes together.
    pub compiling: f64,
    /// Timing kernels alone, and waiting for other processes that time on the same GPU.
    pub timing: f64,
    /// Interpreting, timing and checking candidates, and verifying them: on several threads, each by itself.
    pub checking: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_have_a_twentieth_before_the_verification() {
        let budget = Duration::from_secs(40);
        let mut clock = Clock::new(budget, Arc::default());
        let ends = |clock: &Clock| {
            [Stage::Deepening, Stage::Picks, Stage::FirstPick].map(|s| clock.end(s) - clock.start)
        };
        let near = |x: Duration, seconds: f64| (x.as_secs_f64() - seconds).abs() < 1e-6;
        let [trials, picks, first] = ends(&clock);
        assert!(
            near(trials, 34.0) && near(picks, 36.0) && near(first, 44.0),
            "{trials:?} {picks:?} {first:?}"
        );
        // Of 55 s one is kept, and 24 for the verification and what comes behind.
        let kept = [0, 2, 17, 7].map(Duration::from_secs);
        clock.keep(kept);
        let [trials, picks, first] = ends(&clock);
        assert!(
            near(trials, 28.0) && near(picks, 30.0) && near(first, 30.0),
            "{trials:?} {picks:?} {first:?}"
        );
        // What was shared has to be made once more where it was lost, however often.
        clock.lost();
        clock.lost();
        assert!(near(ends(&clock)[1], 28.0), "{:?}", ends(&clock));
    }

    /// What is verified at the end may take all but what writing it takes.
    #[test]
    fn the_result_has_until_the_end() {
        for seconds in [1, 40, 3600] {
            let budget = Duration::from_secs(seconds);
            let clock = Clock::new(budget, Arc::default());
            let end = clock.end(Stage::Derivation) - clock.start;
            assert_eq!(end + 2 * RESERVE, longest(budget));
        }
        // Where one verification takes long, as much time and a quarter of it is kept for the next one.
        let mut clock = Clock::new(Duration::from_secs(40), Arc::default());
        clock.verified_in(Duration::from_secs(12));
        assert_eq!(clock.check(), Duration::from_secs(15));
        let begins = clock.last() - clock.start;
        let end = clock.end(Stage::Derivation) - clock.start;
        assert!(begins + Duration::from_secs(12) < end, "{begins:?}");
    }

    #[test]
    fn a_part_has_its_share_from_when_it_begins() {
        let mut clock = Clock::new(Duration::from_secs(4), Arc::default());
        let share = Duration::from_secs(4).mul_f64(Part::Order.share());
        let over = clock.ends(Part::Order);
        std::thread::sleep(share + share / 4);
        clock.begin();
        assert!(!over(), "what came before it counts");
        std::thread::sleep(share + share / 4);
        assert!(over());
    }
}
