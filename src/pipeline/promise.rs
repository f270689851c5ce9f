//! Whether a budget suffices for what cannot be cut short: the reference on a GPU, and the verification of the result.

use super::Error;
use crate::worker::estimate::{self, Estimate};
use ir::{Program, Target};
use std::time::Duration;

/// What the whole search takes at most beside the budget: a part of it, and a time that starting and ending take.
pub(super) const MARGIN: (f64, Duration) = (0.25, Duration::from_secs(5));

/// The most that a search with a budget takes: the budget, a quarter of it and five seconds.
pub fn longest(budget: Duration) -> Duration {
    let (share, time) = MARGIN;
    budget.mul_f64(1.0 + share).saturating_add(time)
}

/// How far off an estimate may be, and what else comes behind the search: the finalists' times, the check of the result in full, writing it.
const DOUBT: f64 = 1.4;
const BEHIND: Duration = Duration::from_millis(3500);
/// Of the budget: what is left for candidates at least.
pub(super) const FOR_CANDIDATES: f64 = 0.5;

/// What the reference and one verification of a program take on a GPU of the target's kind in this host.
///
/// # Errors
/// When there is no reference, or the GPU cannot hold one.
pub(super) fn verification(program: &Program, target: &Target) -> Result<Estimate, Error> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    estimate::verification_seconds(program, target, cores)
        .map_err(|reject| Error::Gpu(format!("there is no reference: {reject}")))
}

/// The part of a budget that the runs of the plainest may take for it to be verified first.
const FIRST: f64 = 0.05;

/// Whether the plainest, of so many microseconds, waits until nothing else passes: work that one block does may take minutes.
pub(super) fn waits(estimate: Estimate, us: f64, budget: Duration) -> bool {
    estimate.runs * us * 1e-6 > FIRST * budget.as_secs_f64()
}

/// With the runs of a candidate of so many microseconds, the plainest, where that is verified first.
pub(super) fn with_runs(estimate: Estimate, us: f64) -> Estimate {
    Estimate {
        verify_s: estimate.verify_s + estimate.runs * us * 1e-6,
        ..estimate
    }
}

/// What the reference takes, what all verifications share, what one takes, and what comes behind the search beside one.
pub(super) fn kept(estimate: Estimate) -> [Duration; 4] {
    let longest = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    [
        longest(estimate.load_s),
        longest(estimate.shared_s),
        longest(estimate.verify_s * DOUBT),
        BEHIND,
    ]
}

/// Refuses a budget of which less than half would be left for candidates.
///
/// # Errors
/// [`Error::Budget`], with one that would do.
pub(super) fn fits(estimate: Estimate, budget: Duration) -> Result<(), Error> {
    let seconds = estimate.load_s + estimate.shared_s + estimate.verify_s;
    let (share, time) = MARGIN;
    let all = kept(estimate).into_iter();
    let beside = all
        .fold(Duration::ZERO, Duration::saturating_add)
        .as_secs_f64()
        - time.as_secs_f64();
    let needed = (beside / (1.0 + share - FOR_CANDIDATES)).max(0.0);
    if needed <= budget.as_secs_f64() {
        return Ok(());
    }
    let enough = Duration::try_from_secs_f64(needed.ceil()).unwrap_or(Duration::MAX);
    Err(Error::Budget { seconds, enough })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_waits() {
        let estimate = Estimate {
            runs: 20.0,
            ..Estimate::default()
        };
        let budget = Duration::from_secs(40);
        assert!(!waits(estimate, 99_000.0, budget));
        assert!(waits(estimate, 101_000.0, budget));
        assert!(waits(estimate, f64::INFINITY, budget));
    }

    #[test]
    fn a_slow_candidate_takes_its_runs() {
        let quick = Estimate {
            load_s: 1.0,
            verify_s: 2.0,
            runs: 10.0,
            ..Estimate::default()
        };
        let budget = Duration::from_secs(30);
        fits(with_runs(quick, 500.0), budget).expect("milliseconds are nothing");
        let refused = fits(with_runs(quick, 2.3e6), budget).expect_err("seconds are not");
        assert!(matches!(refused, Error::Budget { enough, .. } if enough > budget));
    }

    #[test]
    fn a_budget_that_does_not_suffice_is_told_which_would() {
        let budget = Duration::from_secs(10);
        let of = |seconds: f64| Estimate {
            load_s: seconds / 8.0,
            shared_s: seconds / 8.0,
            verify_s: seconds * 0.75,
            runs: 10.0,
        };
        // Of ten seconds and the margin, seventeen and a half, five are for candidates and three and a half for what comes behind.
        for (seconds, enough) in [(0.4, None), (6.9, None), (7.0, Some(11)), (80.0, Some(137))] {
            match (fits(of(seconds), budget), enough) {
                (Ok(()), None) => {}
                (Err(Error::Budget { enough, .. }), Some(wanted)) => {
                    assert_eq!(enough, Duration::from_secs(wanted));
                    fits(of(seconds), enough).expect("it is enough");
                }
                (found, _) => panic!("{seconds:?}: {found:?}"),
            }
        }
        // What is told is whole seconds, what suffices need not be: 1.5 s here.
        fits(of(2.0), Duration::from_millis(1500)).expect("it is enough");
        fits(of(2.0), Duration::from_millis(1400)).expect_err("it is not");
        let endless = fits(of(f64::INFINITY), budget).expect_err("it never ends");
        assert!(
            endless.to_string().contains("take about inf s"),
            "{endless}"
        );
    }
}
