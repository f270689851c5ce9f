//! Trials in a database: the tile program once, by its hash, and the rest as JSON.

use super::contents::put_content;
use super::sql::{All, Row, SqlError};
use crate::artifact::hash;
use crate::pipeline::Trial;

/// A trial as it is stored.
pub(crate) struct Stored {
    /// The hash of the tile program, which is among the contents.
    pub(crate) tile: String,
    /// Everything else.
    pub(crate) body: String,
}

impl Stored {
    /// Adds the tile programs of trials, of those behind each other once, and gives what is for the row of each.
    pub(crate) fn put(all: &mut All<'_, '_>, trials: &[Trial]) -> Result<Vec<Self>, SqlError> {
        let mut stored = Vec::with_capacity(trials.len());
        for alike in trials.chunk_by(|a, b| a.tile == b.tile) {
            let tile = put_content(all, alike[0].tile.as_bytes())?;
            stored.extend(alike.iter().map(|trial| {
                let rest = Trial {
                    tile: String::new(),
                    ..trial.clone()
                };
                Self {
                    tile: tile.clone(),
                    body: serde_json::json!(rest).to_string(),
                }
            }));
        }
        Ok(stored)
    }

    /// Tells the trial from all others.
    pub(crate) fn hash(&self) -> String {
        hash(format!("{} {}", self.tile, self.body).as_bytes())
    }
}

/// The trial of a row whose columns behind the first `at` are its body and its tile program; none where another version wrote it in a way that cannot be
/// read.
pub(crate) fn trial(row: &Row, at: usize) -> Result<Option<Trial>, SqlError> {
    let (body, tile): (String, Vec<u8>) = (row.get(at)?, row.get(at + 1)?);
    let rest: Option<Trial> = serde_json::from_str(&body).ok();
    let both = rest.zip(String::from_utf8(tile).ok());
    Ok(both.map(|(rest, tile)| Trial { tile, ..rest }))
}
