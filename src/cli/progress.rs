//! Progress on standard error.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use tilewright::artifact::State;
use tilewright::verify::Verified;
use tilewright::{Candidate, Event, Observer};

/// On a terminal a line that says what the search is doing; elsewhere a line for each improvement.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Since when, where improvements are lines.
    lines: Option<Instant>,
    candidates: u64,
    rejected: u64,
    best: Option<String>,
    stage: &'static str,
}

impl Progress {
    /// Starts the line, unless nothing should be `shown`. Where standard error is no terminal there are `lines`, if they are wanted.
    pub(crate) fn new(shown: bool, lines: bool) -> Self {
        let lines = shown && lines && !std::io::stderr().is_terminal();
        let bar = if shown {
            ProgressBar::new_spinner()
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        Self {
            bar,
            lines: lines.then(Instant::now),
            candidates: 0,
            rejected: 0,
            best: None,
            stage: "starting",
        }
    }

    /// The line, for whoever ends it.
    pub(crate) fn line(&self) -> ProgressBar {
        self.bar.clone()
    }
}

impl Observer for Progress {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Stage(stage) => self.stage = stage,
            Event::Expressions(_) => {}
            Event::Candidates(n) => self.candidates = *n,
            Event::Rejected(_) => self.rejected += 1,
            Event::Best { candidate } => {
                let best = said(candidate);
                if let Some(begun) = self.lines {
                    let seconds = begun.elapsed().as_secs_f64();
                    // Who does not read on misses nothing else.
                    let _ = writeln!(std::io::stderr(), "after {seconds:.1} s: {best}");
                }
                self.best = Some(best);
            }
            Event::Held(_) | Event::Timed(_) => {}
            Event::Remark(remark) => self.bar.println(format!("note: {remark}")),
        }
        self.bar.set_message(format!(
            "{}: {} candidates, {} rejected, {}",
            self.stage,
            self.candidates,
            self.rejected,
            self.best.as_deref().unwrap_or("nothing found yet"),
        ));
    }
}

/// A candidate, in some words.
fn said(candidate: &Verified<Candidate>) -> String {
    let state = State::of(candidate.evidence());
    let candidate = candidate.value();
    let kernels = candidate.tile.kernels.len();
    let s = if kernels == 1 { "" } else { "s" };
    match &candidate.measured {
        Some(measured) => {
            let us = measured.warm.median_us;
            format!("{state}, {us:.1} us, {kernels} kernel{s}")
        }
        None => {
            let us = candidate.predicted.us;
            format!("{state}, {us:.1} us by the model, {kernels} kernel{s}")
        }
    }
}
