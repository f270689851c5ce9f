//! The log: every trial of every search, in one SQLite database.
//!
//! Many processes read and write it at once. A trial is written in one transaction, so whoever is killed loses at most the one
//! under way. Nothing that is in it is ever changed or removed here.
//!
//! Tile programs have many schedules, so their texts stand in a table of their own; the view `trials` has a row for each trial with
//! everything in it, and its columns are what [`Log::csv`] prints. This module knows nothing of what trials are good for.

mod row;

use crate::database::{self, DatabaseError, Kind};
use crate::pipeline::{KernelName, Memory, Trial, TrialKey};
use row::{COLUMNS, TILE, column_names, schema, trial, upgrade, values};
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, OptionalExtension, Params, TransactionBehavior, params_from_iter};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The letters TwLg tell it from other databases.
const KIND: Kind = Kind {
    name: "log",
    full: "a log of trials",
    application: 0x5477_4c67,
    version: 2,
    schema,
    upgrades: &[upgrade],
};

/// What could not be written before nothing is written any more: each may wait for as long as another process holds the log.
const MOST_FAILURES: u32 = 3;

/// Trials that are added at once: others wait meanwhile.
const AT_ONCE: usize = 200;

/// An opened log.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    database: Connection,
    /// Trials that could not be kept.
    failures: u32,
}

/// Which trials are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this program: its name, or the first digits of its hash, eight at least.
    pub program: Option<String>,
    /// On GPUs in whose name this stands, in large or small letters.
    pub gpu: Option<String>,
    /// Of this kernel: the first digits of its name.
    pub kernel: Option<String>,
    /// Timed at this second since the beginning of 1970 or later.
    pub since: Option<u64>,
    /// Of whole programs alone, and not of kernels alone.
    pub whole: bool,
    /// The fastest few of each program and of each kernel on each GPU, by their warm times, one of each key: fastest first.
    pub fastest: Option<usize>,
}

impl Log {
    /// Opens a log, and makes it where there is none, with the folders above it: for this user alone.
    ///
    /// # Errors
    /// There is something else in its place, or it cannot be read and written.
    pub fn open(path: &Path) -> Result<Self, DatabaseError> {
        database::make(path)?;
        Self::existing(path)
    }

    /// Opens a log that is there.
    ///
    /// # Errors
    /// As [`Log::open`], and where there is none.
    pub fn existing(path: &Path) -> Result<Self, DatabaseError> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let database = database::connect(&path, &KIND)?;
        Ok(Self {
            path,
            database,
            failures: 0,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a trial.
    ///
    /// # Errors
    /// SQLite's: another process keeps the log for too long, or the disk is full.
    pub fn add(&mut self, trial: &Trial) -> Result<(), DatabaseError> {
        self.add_all(&[trial])
    }

    /// Adds trials, all or none.
    ///
    /// # Errors
    /// As [`Log::add`].
    pub fn add_all(&mut self, trials: &[&Trial]) -> Result<(), DatabaseError> {
        let path = &self.path;
        let named = |e| KIND.error(path, e);
        let transaction = (self.database).transaction_with_behavior(TransactionBehavior::Immediate);
        let transaction = transaction.map_err(named)?;
        let marks = vec!["?"; COLUMNS.len()].join(", ");
        let row = format!(
            "INSERT INTO trial ({}, {TILE}) VALUES ({marks}, (SELECT id FROM tile_program WHERE hash = ?))",
            column_names()
        );
        for trial in trials {
            let hash = blake3::hash(trial.tile.as_bytes()).to_hex().to_string();
            let tile =
                "INSERT INTO tile_program (hash, text) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
            let added = transaction.execute(tile, [&hash, &trial.tile]);
            added.map_err(named)?;
            let values = values(trial).into_iter().chain([Value::Text(hash)]);
            let added = transaction.execute(&row, params_from_iter(values));
            added.map_err(named)?;
        }
        transaction.commit().map_err(named)
    }

    /// The newest trial of this key.
    ///
    /// # Errors
    /// SQLite's, and a row that is no trial.
    pub fn recall(&self, key: &TrialKey) -> Result<Option<Trial>, DatabaseError> {
        let sql = select("WHERE key = ?1 ORDER BY id DESC LIMIT 1");
        let found = self.database.query_row(&sql, [key.as_str()], trial);
        found.optional().map_err(|e| KIND.error(&self.path, e))
    }

    /// The fastest trials of a kernel on GPUs of this name, by their warm times, one of each key, at most so many.
    ///
    /// # Errors
    /// As [`Log::recall`].
    pub fn best_of(
        &self,
        kernel: &KernelName,
        gpu: &str,
        most: usize,
    ) -> Result<Vec<Trial>, DatabaseError> {
        let sql = select(
            "WHERE id IN (SELECT id FROM (SELECT id, min(warm_median_us) FROM trial WHERE kernel = ?1 AND gpu = ?2 GROUP BY key))
             ORDER BY warm_median_us, id LIMIT ?3",
        );
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        self.query(&sql, (kernel.as_str(), gpu, most))
    }

    /// The newest trials on GPUs of this name, at most so many.
    ///
    /// # Errors
    /// As [`Log::recall`].
    pub fn newest(&self, gpu: &str, most: usize) -> Result<Vec<Trial>, DatabaseError> {
        let sql = select("WHERE gpu = ?1 ORDER BY id DESC LIMIT ?2");
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        self.query(&sql, (gpu, most))
    }

    /// The trials that are meant, oldest first unless the fastest are.
    ///
    /// # Errors
    /// As [`Log::recall`].
    pub fn list(&self, filter: &Filter) -> Result<Vec<Trial>, DatabaseError> {
        let (sql, values) = filter.sql();
        self.query(&sql, params_from_iter(values))
    }

    /// The same as a table of comma-separated values (RFC 4180, lines end in a line feed), with the view's columns.
    ///
    /// # Errors
    /// As [`Log::recall`].
    pub fn csv(&self, filter: &Filter) -> Result<String, DatabaseError> {
        let (sql, values) = filter.sql();
        let rows = || {
            let mut text = format!("{}, {TILE}\n", column_names()).replace(", ", ",");
            let mut statement = self.database.prepare(&sql)?;
            let mut rows = statement.query(params_from_iter(values))?;
            while let Some(row) = rows.next()? {
                for column in 0..=COLUMNS.len() {
                    text += if column == 0 { "" } else { "," };
                    push_cell(&mut text, row.get_ref(column)?);
                }
                text.push('\n');
            }
            Ok(text)
        };
        rows().map_err(|e| KIND.error(&self.path, e))
    }

    fn query(&self, sql: &str, parameters: impl Params) -> Result<Vec<Trial>, DatabaseError> {
        let rows = || {
            let mut statement = self.database.prepare(sql)?;
            let found = statement.query_map(parameters, trial)?;
            found.collect::<rusqlite::Result<Vec<Trial>>>()
        };
        rows().map_err(|e| KIND.error(&self.path, e))
    }

    /// What was read, or nothing where it cannot be.
    fn told<T: Default>(&self, read: Result<T, DatabaseError>) -> T {
        read.unwrap_or_else(|error| {
            tracing::warn!("what was timed before cannot be read: {error}");
            T::default()
        })
    }
}

impl Memory for Log {
    fn recall(&mut self, key: &TrialKey) -> Option<Trial> {
        self.told(Self::recall(self, key))
    }

    fn best_of(&mut self, kernel: &KernelName, gpu: &str, most: usize) -> Vec<Trial> {
        self.told(Self::best_of(self, kernel, gpu, most))
    }

    fn newest(&mut self, gpu: &str, most: usize) -> Vec<Trial> {
        self.told(Self::newest(self, gpu, most))
    }

    fn keep(&mut self, trial: &Trial) {
        self.keep_all(&[trial]);
    }

    fn keep_all(&mut self, trials: &[&Trial]) {
        for some in trials.chunks(AT_ONCE) {
            if self.failures >= MOST_FAILURES {
                return;
            }
            if let Err(error) = self.add_all(some) {
                self.failures += 1;
                let rest = if self.failures == MOST_FAILURES {
                    ", and no further ones are"
                } else {
                    ""
                };
                tracing::warn!("a trial is not in the log{rest}: {error}");
            }
        }
    }
}

/// A query for whole trials.
fn select(which: &str) -> String {
    format!("SELECT {}, {TILE} FROM trials {which}", column_names())
}

impl Filter {
    /// The query, and the values of its parameters.
    fn sql(&self) -> (String, Vec<Value>) {
        let chosen = "WHERE (?1 IS NULL OR program = ?1 OR length(?1) >= 8 AND substr(program_hash, 1, length(?1)) = ?1)
             AND (?2 IS NULL OR instr(lower(gpu), lower(?2)) > 0)
             AND (?3 IS NULL OR substr(kernel, 1, length(?3)) = ?3)
             AND unix_time >= ?4 AND whole >= ?5";
        let text = |text: &Option<String>| text.clone().map_or(Value::Null, Value::Text);
        let number = |n: u64| Value::Integer(i64::try_from(n).unwrap_or(i64::MAX));
        let mut values = vec![
            text(&self.program),
            text(&self.gpu),
            text(&self.kernel),
            number(self.since.unwrap_or_default()),
            number(self.whole.into()),
        ];
        let Some(fastest) = self.fastest else {
            return (select(&format!("{chosen} ORDER BY id")), values);
        };
        values.push(number(fastest as u64));
        let sql = format!(
            "WITH once AS (
               SELECT *, row_number() OVER (PARTITION BY key ORDER BY warm_median_us, id) AS time FROM trials {chosen}
             ), ranked AS (
               SELECT *, CASE whole WHEN 1 THEN program_hash ELSE kernel END AS subject,
                 row_number() OVER (
                   PARTITION BY whole, gpu, CASE whole WHEN 1 THEN program_hash ELSE kernel END ORDER BY warm_median_us, id
                 ) AS place
               FROM once WHERE time = 1
             )
             SELECT {}, {TILE} FROM ranked WHERE place <= ?6 ORDER BY whole DESC, program, gpu, subject, place",
            column_names()
        );
        (sql, values)
    }
}

/// Adds a value; in quotes where it would not be one cell without.
fn push_cell(text: &mut String, value: ValueRef<'_>) {
    // Writing to a string does not fail.
    let _ = match value {
        ValueRef::Null => Ok(()),
        ValueRef::Integer(n) => write!(text, "{n}"),
        ValueRef::Real(x) => write!(text, "{x}"),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            let cell = String::from_utf8_lossy(bytes);
            if cell.contains(['"', ',', '\n', '\r']) {
                write!(text, "\"{}\"", cell.replace('"', "\"\""))
            } else {
                write!(text, "{cell}")
            }
        }
    };
}

#[cfg(test)]
mod tests;
