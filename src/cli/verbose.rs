//! What `--verbose` prints: one line for each thing that becomes of a candidate.

use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::sync::{Mutex, PoisonError};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Prints events of [`tilewright::pipeline::report::TARGET`], each as one line. Candidates are numbered as they are first
/// mentioned.
pub(crate) struct Lines<P> {
    numbers: Mutex<HashMap<String, usize>>,
    print: P,
}

impl<P: Fn(&str)> Lines<P> {
    /// With what prints a line, its end included.
    pub(crate) fn new(print: P) -> Self {
        Self {
            numbers: Mutex::default(),
            print,
        }
    }
}

/// What an event of a candidate carries.
#[derive(Default)]
struct Said {
    same: String,
    plan: String,
    predicted_us: f64,
    outcome: String,
}

impl Visit for Said {
    fn record_f64(&mut self, field: &Field, value: f64) {
        if field.name() == "predicted_us" {
            self.predicted_us = value;
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "same" => self.same = value.to_owned(),
            "plan" => self.plan = value.to_owned(),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "outcome" {
            self.outcome = format!("{value:?}");
        }
    }
}

impl<S: Subscriber, P: Fn(&str) + 'static> Layer<S> for Lines<P> {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut said = Said::default();
        event.record(&mut said);
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let next = numbers.len() + 1;
        let number = *numbers.entry(said.same).or_insert(next);
        let one_line = |text: &str, between: &str| {
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            lines.join(between)
        };
        let mut line = String::new();
        // Writing to a string does not fail.
        let _ = writeln!(
            line,
            "candidate {number}: predicted {:.1} us; {}; plan: {}",
            said.predicted_us,
            one_line(&said.outcome, " "),
            one_line(&said.plan, " | "),
        );
        (self.print)(&line);
    }
}
