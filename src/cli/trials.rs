//! `predict`: what the models say now of trials in files, a line of JSON each.

use crate::cli::Failure;
use rayon::prelude::*;
use std::path::PathBuf;
use tilewright::search::tune::learned::{self, Row};
use tilewright::{Trial, files};

/// Bytes of a file that is read.
const MOST_BYTES: u64 = 1 << 30;

/// What is held back from the fit of a correction that then predicts it.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum HeldBack {
    /// Each program.
    Program,
    /// Programs whose names begin with the same word.
    Family,
}

impl HeldBack {
    fn key(self, program: &str) -> String {
        let end = match self {
            Self::Program => None,
            Self::Family => program.find('_'),
        };
        program[..end.unwrap_or(program.len())].to_owned()
    }
}

/// A trial with what a correction says of it that did not see it.
#[derive(serde::Serialize)]
struct Corrected {
    #[serde(flatten)]
    trial: Trial,
    corrected_us: f64,
}

/// The lines of files of trials, with what is predicted now, and where something is held back with what is learned from the others. What cannot be
/// predicted any more is told and left out.
pub(crate) fn predict(paths: &[PathBuf], held_back: Option<HeldBack>) -> Result<String, Failure> {
    let mut found = Vec::new();
    for path in paths {
        let named =
            |e: &dyn std::fmt::Display| Failure::refused(format!("{}: {e}", path.display()));
        let content = files::read_text(path, MOST_BYTES).map_err(|e| named(&e))?;
        let lines: Vec<&str> = content.lines().collect();
        let again: Vec<Result<Trial, String>> = lines
            .par_iter()
            .map(|line| {
                let trial: Trial = serde_json::from_str(line).map_err(|e| e.to_string())?;
                trial.again()
            })
            .collect();
        for (number, again) in again.into_iter().enumerate() {
            match again {
                Ok(trial) => found.push(trial),
                Err(why) => tracing::warn!("{}:{}: {why}", path.display(), number + 1),
            }
        }
    }
    let lines: Result<Vec<String>, serde_json::Error> = match held_back {
        None => found.iter().map(serde_json::to_string).collect(),
        Some(by) => {
            let corrected = corrected(found, by).map_err(Failure::refused)?;
            corrected.iter().map(serde_json::to_string).collect()
        }
    };
    let lines = lines.map_err(|e| Failure::refused(e.to_string()))?;
    Ok(lines.into_iter().map(|line| line + "\n").collect())
}

fn corrected(trials: Vec<Trial>, by: HeldBack) -> Result<Vec<Corrected>, String> {
    let row = |trial: &Trial| Ok((by.key(&trial.program), trial.row()?));
    let rows: Result<Vec<(String, Row)>, String> = trials.par_iter().map(row).collect();
    let both = trials.into_iter().zip(learned::held_back(&rows?));
    let both = both.map(|(trial, corrected_us)| Corrected {
        trial,
        corrected_us,
    });
    Ok(both.collect())
}
