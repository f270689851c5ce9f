//! Files of trials: what was timed, a line of JSON each.

use crate::cli::Failure;
use rayon::prelude::*;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use tilewright::{Trial, files};

/// Bytes of a file that is read.
const MOST_BYTES: u64 = 1 << 30;

/// A file that trials are added to.
pub(crate) struct Trials {
    file: File,
}

impl Trials {
    /// Opens it, and makes it where there is none.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|e| Failure::refused(format!("{}: {e}", path.display())))?;
        Ok(Self { file })
    }

    /// Adds a line.
    pub(crate) fn add(&mut self, trial: &Trial) {
        let line = serde_json::to_string(trial).map(|line| line + "\n");
        let written = line.map(|line| self.file.write_all(line.as_bytes()));
        match written {
            Ok(Ok(())) => {}
            Ok(Err(e)) => tracing::warn!("a trial could not be written: {e}"),
            Err(e) => tracing::warn!("a trial could not be written: {e}"),
        }
    }
}

/// The lines of files of trials, with what is predicted now. What cannot be predicted any more is told and left out.
pub(crate) fn predict(paths: &[PathBuf]) -> Result<String, Failure> {
    let mut text = String::new();
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
                Ok(trial) => {
                    text += &(serde_json::to_string(&trial).map_err(|e| named(&e))? + "\n")
                }
                Err(why) => tracing::warn!("{}:{}: {why}", path.display(), number + 1),
            }
        }
    }
    Ok(text)
}
