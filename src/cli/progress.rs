//! Progress on standard error.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;
use tilewright::{Event, Observer};

/// A line that says what the search is doing, drawn only on a terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
    candidates: u64,
    rejected: u64,
    best: Option<String>,
    stage: &'static str,
}

impl Progress {
    /// Starts the line, unless it should not be `shown`.
    pub(crate) fn new(shown: bool) -> Self {
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
            candidates: 0,
            rejected: 0,
            best: None,
            stage: "starting",
        }
    }

    /// Removes the line.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for Progress {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Stage(stage) => self.stage = stage,
            Event::Expressions(_) => {}
            Event::Candidates(n) => self.candidates = *n,
            Event::Rejected(_) => self.rejected += 1,
            Event::Best { candidate, .. } => {
                self.best = Some(match &candidate.measured {
                    Some(measured) => format!("best {:.1} us", measured.warm.median_us),
                    None => format!("best {:.1} us by the model", candidate.predicted.us),
                });
            }
            Event::Remark(remark) => self.bar.println(format!("note: {remark}")),
        }
        self.bar.set_message(format!(
            "{}: {} candidates, {} rejected, {}",
            self.stage,
            self.candidates,
            self.rejected,
            self.best.as_deref().unwrap_or("nothing verified yet"),
        ));
    }
}
