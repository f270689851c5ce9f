//! What becomes of each candidate, said through `tracing`: events of one target that carry plan, prediction and outcome.
//!
//! Nothing here decides anything. Nobody pays for it who does not listen.

use super::{Candidate, Point};
use ir::{Reject, Schedule, TileProgram};
use std::fmt;

/// The target of the events.
pub const TARGET: &str = "tilewright::candidate";

/// What became of a candidate.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome<'a> {
    /// Its tile program was interpreted and is right.
    Simulated,
    /// It ran, and took so many microseconds.
    Measured(f64),
    /// All of its results were compared on the GPU. Its time.
    Verified(f64),
    /// It is none.
    Refused(&'a Reject),
    /// It was not looked at.
    PassedOver(&'static str),
}

impl fmt::Display for Outcome<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simulated => f.write_str("simulated"),
            Self::Measured(us) => write!(f, "measured {us:.1} us"),
            Self::Verified(us) => write!(f, "verified, {us:.1} us"),
            Self::Refused(reject) => write!(f, "refused: {reject}"),
            Self::PassedOver(why) => write!(f, "passed over: {why}"),
        }
    }
}

/// A candidate, as events speak of it; nothing where nobody listens.
#[derive(Debug)]
pub(super) struct Subject(Option<Said>);

#[derive(Debug)]
struct Said {
    /// Equal for what is said of one candidate.
    same: String,
    plan: String,
    predicted_us: f64,
}

impl Subject {
    fn new(said: impl FnOnce() -> Said) -> Self {
        let heard = tracing::enabled!(target: TARGET, tracing::Level::DEBUG);
        Self(heard.then(said))
    }

    /// Says what became of it.
    pub(super) fn becomes(&self, outcome: Outcome<'_>) {
        if let Some(said) = &self.0 {
            let (same, plan) = (said.same.as_str(), said.plan.as_str());
            tracing::debug!(target: TARGET, same, plan, predicted_us = said.predicted_us, %outcome);
        }
    }
}

/// A tile program, under a schedule if it came that far.
pub(super) fn point(point: &Point, schedule: Option<&Schedule>) -> Subject {
    Subject::new(|| Said {
        same: name(&point.tile, schedule),
        plan: point.plan_text.clone(),
        predicted_us: point.predicted.us,
    })
}

/// A candidate.
pub(super) fn candidate(candidate: &Candidate) -> Subject {
    Subject::new(|| Said {
        same: name(&candidate.tile, Some(&candidate.schedule)),
        plan: candidate.plan.clone(),
        predicted_us: candidate.predicted.us,
    })
}

fn name(tile: &TileProgram, schedule: Option<&Schedule>) -> String {
    format!("{tile}{schedule:?}")
}
