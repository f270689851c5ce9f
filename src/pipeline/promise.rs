//! Whether a budget suffices for what cannot be cut short: the reference on a GPU, and the verification of the result.

use super::Error;
use ir::{Program, Target};
use std::time::Duration;

/// Seconds that the reference and one verification of a program take on a GPU of the target's kind; none where nobody can say.
pub(super) fn verification_seconds(program: &Program, target: &Target) -> Option<f64> {
    // To be connected to the reference's own estimate.
    let _ = (program, target);
    None
}

/// Refuses a budget of which less than half would be left for candidates.
///
/// # Errors
/// [`Error::Budget`], with one that would do.
pub(super) fn fits(verification_seconds: Option<f64>, budget: Duration) -> Result<(), Error> {
    let seconds = verification_seconds.unwrap_or(0.0);
    let enough = Duration::try_from_secs_f64((2.0 * seconds).ceil()).unwrap_or(Duration::MAX);
    if enough <= budget {
        return Ok(());
    }
    Err(Error::Budget { seconds, enough })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_that_does_not_suffice_is_told_which_would() {
        let budget = Duration::from_secs(10);
        for (seconds, enough) in [
            (None, None),
            (Some(0.4), None),
            (Some(5.0), None),
            (Some(5.2), Some(11)),
            (Some(98.0), Some(196)),
        ] {
            match (fits(seconds, budget), enough) {
                (Ok(()), None) => {}
                (Err(Error::Budget { enough, .. }), Some(wanted)) => {
                    assert_eq!(enough, Duration::from_secs(wanted));
                }
                (found, _) => panic!("{seconds:?}: {found:?}"),
            }
        }
        let endless = fits(Some(f64::INFINITY), budget).expect_err("it never ends");
        assert!(
            endless.to_string().contains("take about inf s"),
            "{endless}"
        );
    }
}
