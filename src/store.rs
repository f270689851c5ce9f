//! The database of artifacts: what was found, by program and target, in one SQLite file that can be shared.
//!
//! An artifact is known by the seal of its manifest, which is a hash of everything in it. So a database is a set: adding is the same in any order, and two that
//! were merged into each other hold the same. Contents are stored once, by their hashes. This module does not judge artifacts: what it is given has to be as it
//! was written, and so has what it gives.

use crate::artifact::{Artifact, ArtifactError, Manifest, State, file};
pub use crate::database::contents::Files;
use crate::database::sql::{All, SqlError, values_of};
use crate::database::trials::{Stored, trial};
use crate::database::{self, DatabaseError, Kind, contents};
use crate::pipeline::{Trial, figure, program_hash};
use device::gpu::TimedOn;
use ir::{Program, Target};
use rusqlite::{Connection, params};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The letters TwDb tell it from other databases.
const KIND: Kind = Kind {
    name: "database",
    full: "a database of artifacts",
    application: 0x5477_4462,
    version: 3,
    schema,
    upgrades: &[
        || "ALTER TABLE artifact ADD COLUMN timed_on TEXT".to_owned(),
        || TRIAL.to_owned(),
    ],
};

fn schema() -> String {
    "CREATE TABLE artifact (
       id INTEGER PRIMARY KEY,
       seal TEXT NOT NULL UNIQUE,
       program TEXT NOT NULL,
       program_hash TEXT NOT NULL,
       target TEXT NOT NULL,
       us REAL NOT NULL,
       verified INTEGER NOT NULL,
       timed_on TEXT
     );
     CREATE INDEX artifact_by_key ON artifact (program_hash, target);"
        .to_owned()
        + contents::TABLES
        + TRIAL
}

/// The log: what was timed in searches for a program, each trial once, by the hash of all that it says.
const TRIAL: &str = "
    CREATE TABLE trial (
       id INTEGER PRIMARY KEY,
       hash TEXT NOT NULL UNIQUE,
       program_hash TEXT NOT NULL,
       tile INTEGER NOT NULL REFERENCES content (id),
       body TEXT NOT NULL
     );
     CREATE INDEX trial_by_program ON trial (program_hash);";

/// An opened database.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    database: Connection,
}

/// An artifact of it.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Entry {
    /// The seal of its manifest.
    pub seal: String,
    /// Its program's name.
    pub program: String,
    /// The hash of its program.
    pub program_hash: String,
    /// Its target's name.
    pub target: String,
    /// Its time in microseconds: measured, or the model's.
    pub us: f64,
    /// Whether it ran on a GPU.
    pub verified: bool,
    /// Where it was timed, as [`TimedOn`] prints it; none where it was not, or where nobody wrote it down.
    pub timed_on: Option<String>,
}

/// What a database has to say of a program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The fastest of the verified artifacts that are compared with what is timed here.
    pub entry: Option<Entry>,
    /// Verified artifacts whose times are not: they were timed on another GPU, under another driver or another power limit, or nobody knows where.
    pub stale: Vec<Entry>,
}

/// Which artifacts are meant.
#[derive(Clone, Debug, Default)]
pub struct Which {
    /// Of this program: its name, or the first digits of its hash, eight at least.
    pub program: Option<String>,
    /// For this target.
    pub target: Option<String>,
    /// With a seal that begins so.
    pub seal: Option<String>,
}

/// Why something cannot be stored or had.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be used.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// An artifact is not as it was written.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
    /// An artifact's program or target cannot be read.
    #[error("{}: {reason}", folder.display())]
    Unreadable {
        /// The artifact.
        folder: PathBuf,
        /// Why not.
        reason: String,
    },
    /// What is stored is not what was.
    #[error("{}: the artifact {seal} is damaged: {what}", path.display())]
    Damaged {
        /// The database.
        path: PathBuf,
        /// The artifact.
        seal: String,
        /// What is wrong.
        what: String,
    },
}

impl Store {
    /// Opens a database, and makes it where there is none: for this user alone.
    ///
    /// # Errors
    /// There is something else in its place, or it cannot be read and written.
    pub fn open(path: &Path) -> Result<Self, DatabaseError> {
        database::make(path)?;
        Self::existing(path)
    }

    /// Opens a database that is there.
    ///
    /// # Errors
    /// As [`Store::open`], and where there is none.
    pub fn existing(path: &Path) -> Result<Self, DatabaseError> {
        Self::by(path, database::connect)
    }

    /// Opens a database that is there, for whoever only reads: the file stays as it is, and need not be writable.
    ///
    /// # Errors
    /// As [`Store::existing`], but for what cannot be written.
    pub fn to_read(path: &Path) -> Result<Self, DatabaseError> {
        Self::by(path, database::connect_to_read)
    }

    fn by(path: &Path, connect: database::Connect) -> Result<Self, DatabaseError> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let database = connect(&path, &KIND)?;
        Ok(Self { path, database })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds an artifact that is as it was written; whether it is new.
    ///
    /// # Errors
    /// It is not, or cannot be stored.
    pub fn add(&mut self, artifact: &Artifact) -> Result<bool, StoreError> {
        artifact.check()?;
        let unreadable = |reason: String| StoreError::Unreadable {
            folder: artifact.folder().to_path_buf(),
            reason,
        };
        let manifest = artifact.manifest();
        let text = artifact.text(file::PROGRAM)?;
        let program = ir::parse(text, file::PROGRAM).map_err(|e| unreadable(e.to_string()))?;
        let target = crate::target(&manifest.target.name);
        let target = target.map_err(|e| unreadable(e.to_string()))?;
        let entry = entry(manifest, &program, &target);
        let files = artifact
            .files()?
            .into_iter()
            .map(|(n, bytes)| (n.to_owned(), bytes));
        Ok(self.put(&entry, &files.collect())?)
    }

    /// Adds everything that another one has; how many artifacts are new. Each is checked.
    ///
    /// # Errors
    /// One of them cannot be read or written, or is damaged: then nothing was added behind it.
    pub fn merge(&mut self, other: &Self) -> Result<usize, StoreError> {
        let mut new = 0;
        for entry in other.list(&Which::default())? {
            let files = other.files(&entry.seal)?;
            new += usize::from(self.put(&entry, &files)?);
        }
        for program in other.programs()? {
            self.add_trials(&other.trials(&program)?)?;
        }
        Ok(new)
    }

    /// Adds what was timed.
    ///
    /// # Errors
    /// SQLite's.
    pub fn add_trials(&mut self, trials: &[Trial]) -> Result<(), DatabaseError> {
        if trials.is_empty() {
            return Ok(());
        }
        self.write(|all| {
            for (trial, stored) in trials.iter().zip(Stored::put(all, trials)?) {
                all.execute(
                    "INSERT INTO trial (hash, program_hash, tile, body) VALUES (?1, ?2, (SELECT id FROM content WHERE hash = ?3), ?4) ON CONFLICT DO NOTHING",
                    values_of![stored.hash(), &trial.program_hash, stored.tile, stored.body],
                )?;
            }
            Ok(())
        })
    }

    /// What was timed in searches for the program of this hash, by the hashes of trials. What another version wrote in a way that cannot be read is left out.
    ///
    /// # Errors
    /// SQLite's.
    pub fn trials(&self, program_hash: &str) -> Result<Vec<Trial>, DatabaseError> {
        database::read(&self.database, (&self.path, &KIND), |all| {
            let rows = all.query(
                "SELECT body, bytes FROM trial JOIN content ON content.id = trial.tile WHERE program_hash = ?1 ORDER BY trial.hash",
                values_of![program_hash],
            )?;
            let found = rows.iter().map(|row| trial(row, 0));
            Ok(found
                .collect::<Result<Vec<_>, _>>()?
                .into_iter()
                .flatten()
                .collect())
        })
    }

    /// The hashes of the programs of which something was timed.
    fn programs(&self) -> Result<Vec<String>, DatabaseError> {
        database::read(&self.database, (&self.path, &KIND), |all| {
            let rows = all.query(
                "SELECT DISTINCT program_hash FROM trial ORDER BY program_hash",
                &[],
            )?;
            rows.iter().map(|row| row.get(0)).collect()
        })
    }

    /// The artifacts that are meant: by program and target, verified ones before others, by where they were timed, the fastest first.
    ///
    /// # Errors
    /// SQLite's.
    pub fn list(&self, which: &Which) -> Result<Vec<Entry>, DatabaseError> {
        let rows = || {
            let mut rows = self.database.prepare(
                "SELECT seal, program, program_hash, target, us, verified, timed_on FROM artifact
                 WHERE (?1 IS NULL OR program = ?1 OR length(?1) >= 8 AND substr(program_hash, 1, length(?1)) = ?1)
                 AND (?2 IS NULL OR target = ?2) AND (?3 IS NULL OR substr(seal, 1, length(?3)) = ?3)
                 ORDER BY program, program_hash, target, verified DESC, timed_on, us, seal",
            )?;
            let rows = rows.query_map(params![which.program, which.target, which.seal], |row| {
                Ok(Entry {
                    seal: row.get(0)?,
                    program: row.get(1)?,
                    program_hash: row.get(2)?,
                    target: row.get(3)?,
                    us: row.get(4)?,
                    verified: row.get(5)?,
                    timed_on: row.get(6)?,
                })
            })?;
            rows.collect::<rusqlite::Result<Vec<Entry>>>()
        };
        rows().map_err(|e| KIND.error(&self.path, e))
    }

    /// The fastest verified artifact of a program for a target that was timed where this search times, and of equal ones that with the first seal.
    /// Where nothing is timed here there is an answer if all were timed alike.
    ///
    /// # Errors
    /// SQLite's.
    pub fn answer(
        &self,
        program: &Program,
        target: &str,
        here: Option<&TimedOn>,
    ) -> Result<Answer, DatabaseError> {
        let which = Which {
            program: Some(program_hash(program)),
            target: Some(target.to_owned()),
            seal: None,
        };
        let mut verified = self.list(&which)?;
        verified.retain(|entry| entry.verified);
        let here = match here {
            Some(here) => Some(here.to_string()),
            None => {
                let places: BTreeSet<_> = verified.iter().map(|e| e.timed_on.clone()).collect();
                match places.len() {
                    1 => places.into_iter().next().flatten(),
                    _ => None,
                }
            }
        };
        let (own, stale): (Vec<Entry>, Vec<Entry>) =
            (verified.into_iter()).partition(|entry| here.is_some() && entry.timed_on == here);
        let entry = own.into_iter().next();
        Ok(Answer { entry, stale })
    }

    /// The files of an artifact.
    ///
    /// # Errors
    /// They are not those that were stored, or SQLite's.
    pub fn files(&self, seal: &str) -> Result<Files, StoreError> {
        let files = database::read(&self.database, (&self.path, &KIND), |all| {
            contents::get(all, seal)
        })?;
        contents::checked(files, seal).map_err(|what| StoreError::Damaged {
            path: self.path.clone(),
            seal: seal.to_owned(),
            what,
        })
    }

    /// Leaves so many of the best of those that are compared: of each program and target, timed in one place; how many went.
    ///
    /// # Errors
    /// SQLite's.
    pub fn prune(&mut self, keep: usize) -> Result<usize, DatabaseError> {
        let keep = i64::try_from(keep).unwrap_or(i64::MAX);
        let gone = self.write(|all| {
            let others = "SELECT id FROM (SELECT id, row_number() OVER (
                            PARTITION BY program_hash, target, verified, timed_on ORDER BY us, seal
                          ) AS place FROM artifact) WHERE place > ?1";
            let keep = values_of![keep];
            all.execute(
                &format!("DELETE FROM file WHERE artifact IN ({others})"),
                keep,
            )?;
            let gone = all.execute(
                &format!("DELETE FROM artifact WHERE id IN ({others})"),
                keep,
            )?;
            // The log goes with the last artifact of its program.
            let alone = "DELETE FROM trial WHERE program_hash NOT IN (SELECT program_hash FROM artifact)";
            all.execute(alone, &[])?;
            let unused = "DELETE FROM content WHERE id NOT IN (SELECT content FROM file) AND id NOT IN (SELECT tile FROM trial)";
            all.execute(unused, &[])?;
            Ok(usize::try_from(gone).unwrap_or(usize::MAX))
        })?;
        let vacuum = self.database.execute_batch("VACUUM");
        vacuum.map_err(|e| KIND.error(&self.path, e))?;
        Ok(gone)
    }

    fn put(&mut self, entry: &Entry, files: &Files) -> Result<bool, DatabaseError> {
        self.write(|all| {
            let there = all.first("SELECT id FROM artifact WHERE seal = ?1", values_of![&entry.seal])?;
            if there.is_some() {
                return Ok(false);
            }
            let id = all.one(
                "INSERT INTO artifact (seal, program, program_hash, target, us, verified, timed_on) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) RETURNING id",
                values_of![
                    &entry.seal,
                    &entry.program,
                    &entry.program_hash,
                    &entry.target,
                    entry.us,
                    entry.verified,
                    entry.timed_on.clone(),
                ],
            )?;
            contents::put(all, id, files)?;
            Ok(true)
        })
    }

    fn write<T>(
        &mut self,
        work: impl FnMut(&mut All<'_, '_>) -> Result<T, SqlError>,
    ) -> Result<T, DatabaseError> {
        database::write(&mut self.database, (&self.path, &KIND), work)
    }
}

/// The time by which artifacts of a program are compared, in microseconds: as searches compare what they timed; the model's where nothing was.
pub fn us(manifest: &Manifest, program: &Program, target: &Target) -> f64 {
    let measured = manifest.measured_us.as_ref();
    let figure = measured.map(|m| figure(m, program.input_bytes(), target));
    figure.unwrap_or(manifest.predicted_us)
}

fn entry(manifest: &Manifest, program: &Program, target: &Target) -> Entry {
    Entry {
        seal: manifest.seal.clone(),
        program: manifest.program.clone(),
        program_hash: program_hash(program),
        target: manifest.target.name.clone(),
        us: us(manifest, program, target),
        verified: manifest.state == State::Verified,
        timed_on: manifest.timed_on.as_ref().map(TimedOn::to_string),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::samples;

    struct Place(tempfile::TempDir);

    impl Place {
        fn store(&self, name: &str) -> Store {
            Store::open(&self.0.path().join(name)).expect("a database")
        }

        fn artifact(&self, program: &str, n: u64) -> Artifact {
            let path = self.0.path().join(format!("{program}{n}"));
            samples::put(&path, &samples::files(program, "h200", n));
            Artifact::read(&path).expect("an artifact")
        }
    }

    fn place() -> Place {
        Place(tempfile::tempdir().expect("a temporary folder"))
    }

    /// Everything in it, but for when it came.
    fn held(store: &Store) -> Vec<(Entry, Files)> {
        let all = store.list(&Which::default()).expect("readable").into_iter();
        all.map(|entry| {
            let files = store.files(&entry.seal).expect("whole");
            (entry, files)
        })
        .collect()
    }

    #[test]
    fn what_is_stored_comes_back_once() {
        let place = place();
        let (artifact, mut store) = (place.artifact("rows", 1), place.store("db"));
        assert!(store.add(&artifact).expect("writable"));
        assert!(!store.add(&artifact).expect("writable"));
        let [(entry, files)] = held(&store).try_into().expect("one");
        assert_eq!(entry.seal, artifact.manifest().seal);
        for (name, bytes) in files {
            assert_eq!(artifact.bytes(&name).expect("a file"), bytes);
        }
        // It never ran: it is no answer.
        let program = ir::parse(artifact.text(file::PROGRAM).expect("a text"), "p");
        let answer = store.answer(&program.expect("a program"), "h200", None);
        assert_eq!(answer.expect("readable"), Answer::default());
    }

    /// Entries that are told from each other by their times.
    fn timed(us: f64, verified: bool, timed_on: Option<&str>) -> Entry {
        let program: Program = ("program p\naxis i = 4\nx = parameter f32 [i]\nreturn f32 [i] x\n")
            .parse()
            .expect("a program");
        Entry {
            seal: format!("seal {us}"),
            program: program.name.clone(),
            program_hash: program_hash(&program),
            target: "h200".to_owned(),
            us,
            verified,
            timed_on: timed_on.map(str::to_owned),
        }
    }

    #[test]
    fn only_what_was_timed_alike_is_compared() {
        let place = place();
        let mut store = place.store("db");
        let on = |driver: &str, watts: u32| TimedOn {
            gpu: "NVIDIA H200".to_owned(),
            driver: driver.to_owned(),
            power_limit_mw: Some(watts * 1000),
        };
        let [here, newer, capped] = [on("580.1", 700), on("590.2", 700), on("580.1", 500)];
        let [a, b, c] = [&here, &newer, &capped].map(TimedOn::to_string);
        let program = "program p\naxis i = 4\nx = parameter f32 [i]\nreturn f32 [i] x\n";
        let program: Program = program.parse().expect("a program");
        let answer = |store: &Store, here: Option<&TimedOn>| {
            let answer = store.answer(&program, "h200", here).expect("readable");
            let stale = answer
                .stale
                .iter()
                .map(|entry| entry.us)
                .collect::<Vec<_>>();
            (answer.entry.map(|entry| entry.us), stale)
        };
        store
            .put(&timed(1.0, true, None), &Files::new())
            .expect("writable");
        // Nobody knows where.
        assert_eq!(answer(&store, Some(&here)), (None, vec![1.0]));
        assert_eq!(answer(&store, None), (None, vec![1.0]));
        store.prune(0).expect("writable");
        store
            .put(&timed(9.0, true, Some(&a)), &Files::new())
            .expect("writable");
        store
            .put(&timed(8.0, true, Some(&a)), &Files::new())
            .expect("writable");
        store
            .put(&timed(0.5, false, None), &Files::new())
            .expect("writable");
        assert_eq!(answer(&store, Some(&here)), (Some(8.0), vec![]));
        assert_eq!(answer(&store, Some(&newer)), (None, vec![8.0, 9.0]));
        // Nothing is timed here, and all were timed alike.
        assert_eq!(answer(&store, None), (Some(8.0), vec![]));
        store
            .put(&timed(2.0, true, Some(&b)), &Files::new())
            .expect("writable");
        store
            .put(&timed(3.0, true, Some(&c)), &Files::new())
            .expect("writable");
        assert_eq!(answer(&store, Some(&here)), (Some(8.0), vec![3.0, 2.0]));
        assert_eq!(
            answer(&store, Some(&newer)),
            (Some(2.0), vec![3.0, 8.0, 9.0])
        );
        assert_eq!(answer(&store, None), (None, vec![3.0, 8.0, 9.0, 2.0]));
        // The best of each place stay.
        assert_eq!(store.prune(1).expect("writable"), 1);
        assert_eq!(answer(&store, None), (None, vec![3.0, 8.0, 2.0]));
    }

    #[test]
    fn older_databases_are_read() {
        let place = place();
        drop(place.store("db"));
        let path = place.0.path().join("db");
        let older = Connection::open(&path).expect("a database");
        let older_schema =
            "DROP TABLE trial; ALTER TABLE artifact DROP COLUMN timed_on; PRAGMA user_version = 1;
            INSERT INTO artifact VALUES (1, 's', 'p', 'h', 'h200', 4.0, 1)";
        older.execute_batch(older_schema).expect("writable");
        drop(older);
        // Who only reads leaves it as it is.
        let before = std::fs::read(&path).expect("a file");
        let reader = Store::to_read(&path).expect("a database");
        assert_eq!(reader.list(&Which::default()).expect("readable").len(), 1);
        drop(reader);
        assert!(std::fs::read(&path).expect("a file") == before);
        let mut store = place.store("db");
        let [entry] = store
            .list(&Which::default())
            .expect("readable")
            .try_into()
            .expect("one");
        assert_eq!((entry.us, entry.timed_on), (4.0, None));
        store
            .put(&timed(1.0, true, Some("here")), &Files::new())
            .expect("writable");
    }

    #[test]
    fn what_is_empty_is_no_database_to_read() {
        let place = place();
        let path = place.0.path().join("empty");
        std::fs::write(&path, "").expect("writable");
        let refused = Store::to_read(&path).map(drop).expect_err("an empty file");
        assert!(
            matches!(refused, DatabaseError::Foreign { .. }),
            "{refused}"
        );
        assert!(std::fs::read(&path).expect("a file").is_empty());
    }

    /// Whoever may not write to it reads a copy, and makes no files beside it; who may write everything is told here that they may not.
    #[test]
    fn what_cannot_be_written_can_be_read() {
        use std::os::unix::fs::PermissionsExt;
        let place = place();
        let mut store = place.store("db");
        store.add(&place.artifact("rows", 1)).expect("writable");
        let all = held(&store);
        drop(store);
        let (folder, path) = (place.0.path(), place.0.path().join("db"));
        let allow = |path: &Path, mode: u32| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(path, mode).expect("our own");
        };
        let beside = || std::fs::read_dir(folder).expect("readable").count();
        let (before, count) = (std::fs::read(&path).expect("a file"), beside());
        allow(&path, 0o400);
        allow(folder, 0o500);
        let read = Store::to_read(&path).map(|store| held(&store));
        let copy = Store::by(&path, |path, kind| {
            database::connect_to_look(path, kind, false)
        });
        let pruned = copy.and_then(|mut copy| Ok((held(&copy), copy.prune(0)?, beside())));
        allow(folder, 0o700);
        assert_eq!(read.expect("readable"), all);
        assert_eq!(pruned.expect("a copy"), (all, 1, count));
        assert!(std::fs::read(&path).expect("a file") == before);
    }

    /// Trials of the programs of these hashes.
    fn trials(programs: &[&String]) -> Vec<Trial> {
        let lines =
            include_str!("../bench/results/trials-h200-2026-11-24-2/linear_attention.jsonl");
        let trial = |(line, program): (&str, &&String)| {
            let trial: Trial = serde_json::from_str(line).expect("a trial");
            Trial {
                program_hash: (*program).clone(),
                ..trial
            }
        };
        lines.lines().zip(programs).map(trial).collect()
    }

    #[test]
    fn databases_that_were_merged_hold_the_same() {
        let place = place();
        let (mut one, mut other) = (place.store("one"), place.store("other"));
        for (program, n) in [("rows", 1), ("rows", 2), ("columns", 1)] {
            assert!(one.add(&place.artifact(program, n)).expect("writable"));
        }
        for (program, n) in [("rows", 3), ("planes", 1)] {
            assert!(other.add(&place.artifact(program, n)).expect("writable"));
        }
        let shared = Artifact::read(&place.0.path().join("rows2")).expect("an artifact");
        assert!(other.add(&shared).expect("writable"));
        assert_eq!(one.merge(&other).expect("readable"), 2);
        assert_eq!(other.merge(&one).expect("readable"), 2);
        assert_eq!(held(&one), held(&other));
        assert_eq!(held(&one).len(), 5);
        assert_eq!(one.merge(&other).expect("readable"), 0);
        // So are their logs. What was timed twice is two trials.
        let hash = |n: usize| held(&one)[n].0.program_hash.clone();
        let (kept, gone) = (hash(0), "of no artifact".to_owned());
        let trials = trials(&[&kept, &kept, &gone]);
        let slower = Trial {
            clock_us: 1.0,
            ..trials[0].clone()
        };
        one.add_trials(&trials[..2]).expect("writable");
        other.add_trials(&trials).expect("writable");
        other.add_trials(&[slower]).expect("writable");
        one.merge(&other).expect("readable");
        other.merge(&one).expect("readable");
        for program in [&kept, &gone] {
            let both = [&one, &other].map(|store| store.trials(program).expect("readable"));
            let [of_one, of_other] = both;
            assert_eq!(of_one, of_other);
            assert_eq!(of_one.len(), if *program == kept { 3 } else { 1 });
            assert!(of_one.iter().any(|t| trials.contains(t)));
        }
        // The best of each program stays, the same in both.
        assert_eq!(one.prune(1).expect("writable"), 2);
        assert_eq!(other.prune(1).expect("writable"), 2);
        assert_eq!(held(&one), held(&other));
        assert_eq!(one.trials(&kept).expect("readable").len(), 3);
        assert_eq!(one.trials(&gone).expect("readable"), []);
        let contents = "SELECT count(*) FROM content WHERE id NOT IN (SELECT content FROM file) AND id NOT IN (SELECT tile FROM trial)";
        let orphans: i64 =
            (one.database.query_row(contents, [], |row| row.get(0))).expect("a number");
        assert_eq!(orphans, 0);
    }

    #[test]
    fn what_is_damaged_is_neither_given_nor_merged() {
        let place = place();
        let (mut one, mut other) = (place.store("one"), place.store("other"));
        one.add(&place.artifact("rows", 1)).expect("writable");
        let damage = "UPDATE content SET bytes = x'6d' WHERE id = (SELECT content FROM file WHERE name = 'kernel.cu')";
        one.database.execute(damage, []).expect("writable");
        let message = other.merge(&one).expect_err("damaged").to_string();
        assert!(
            message.contains("kernel.cu does not fit its hash"),
            "{message}"
        );
        assert_eq!(held(&other), []);
        let changed = place.artifact("rows", 2);
        std::fs::write(changed.folder().join(file::TILE), "mine").expect("writable");
        let changed = Artifact::read(changed.folder()).expect("readable");
        let message = other.add(&changed).expect_err("changed").to_string();
        assert!(
            message.contains("tile.txt does not fit its hash"),
            "{message}"
        );
    }
}
