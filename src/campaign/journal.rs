//! The journal of a campaign: its jobs, who works on what, what came of it, in one database: an SQLite file, or on a PostgreSQL server.
//!
//! A *slice* is one search of a job. Who has one holds a *lease* on it, which runs out unless it is renewed. A slice whose worker is lost is repeated once, then
//! it counts as lost, with the reason. What somebody says who has no lease any more is not taken: so each slice ends once.
//!
//! Whoever writes to a file has all of it for himself meanwhile. On a server many write at once: who depends on a row locks it, the slice before its job.
//!
//! Nothing here starts a process, or knows what a search is.

mod claim;
mod offers;
mod schema;
mod sessions;
mod state;
mod trials;

pub use claim::{Claim, Lease};
pub use offers::{Fate, Helpers, Offer, Taken};
pub use sessions::{Session, SessionView};
pub use state::{JobState, JobView, Progress, SliceState, SliceView, View};

use crate::campaign::plan::Plan;
use crate::campaign::share;
use crate::database::contents::{self, Files};
use crate::database::server::{Server, Url};
use crate::database::sql::{All, SqlError, values_of};
use crate::database::{self, DatabaseError};
use rusqlite::Connection;
use schema::KIND;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a lease lasts that is not renewed.
pub const LEASE: Duration = Duration::from_secs(20);
/// Why other machines cannot work on a campaign whose journal is a file.
pub const ALONE: &str = "its journal is a file, which the processes of one machine write to; `tilewright campaign run --journal URL` makes a campaign for many";
/// How often a slice is tried whose worker is lost.
const ATTEMPTS: i64 = 2;
/// A job is given up when so many slices behind each other were lost, and nothing came of any.
const MOST_LOST: i64 = 3;

/// An opened journal.
#[derive(Debug)]
pub struct Journal(Place);

/// Where it is.
#[derive(Debug)]
enum Place {
    File(PathBuf, Connection),
    Server(Box<Server>),
}

/// Where a journal is.
#[derive(Clone, Debug)]
pub enum Site {
    /// In a file.
    File(PathBuf),
    /// On a server.
    Server(Url),
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Server(url) => url.fmt(f),
        }
    }
}

/// What a slice came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Kernels that were timed alone, and kernels whose times were known.
    pub trials: u64,
    /// The same of those whose times were known from before.
    pub recalled: u64,
    /// Nothing is left to try.
    pub exhausted: bool,
    /// Why there is no result, where there is none.
    pub reason: Option<String>,
    /// The least budget that suffices, where this one did not.
    pub least: Option<Duration>,
    /// No other slice would end otherwise.
    pub hopeless: bool,
}

/// An artifact, as the journal knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// The seal of its manifest, which is a hash of all that it has.
    pub seal: String,
    /// Its time in microseconds: measured, or the model's.
    pub us: f64,
    /// Whether it ran on a GPU.
    pub verified: bool,
    /// Where it was timed, as [`TimedOn`](device::gpu::TimedOn) prints it.
    pub timed_on: Option<String>,
}

impl Known {
    /// Whether what was just found is better than what was there: what ran is better than what did not, then what is faster. What was timed elsewhere
    /// is stale: it is not compared, and gives way.
    pub fn is_better_than(&self, other: &Self) -> bool {
        match (self.verified, other.verified) {
            (true, false) => true,
            (false, true) => false,
            (true, true) if self.timed_on != other.timed_on => true,
            (true, true) | (false, false) => self.us < other.us,
        }
    }
}

impl Journal {
    /// Makes the journal of a plan, all or nothing; targets are names, none of them `auto`.
    ///
    /// # Errors
    /// There is a journal, or something else, in its place, or it cannot be written.
    pub fn make(site: &Site, plan: &Plan, seed: u64) -> Result<Self, DatabaseError> {
        let milliseconds = |d: Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
        let fill = |all: &mut All<'_, '_>| {
            all.execute(
                "INSERT INTO campaign (id, made, budget_ms, first_ms, seed) VALUES (1, ?1, ?2, ?3, ?4)",
                values_of![
                    here(),
                    milliseconds(plan.budget),
                    plan.first.map(milliseconds),
                    seed as i64
                ],
            )?;
            for job in &plan.jobs {
                let target = search::targets::target(&job.target);
                let floor_us = target.map_or(0.0, |t| share::floor_us(&job.program, &t));
                all.execute(
                    "INSERT INTO job (name, program, program_hash, target, weight, floor_us) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                    values_of![
                        &job.name,
                        job.program.to_string(),
                        crate::program_hash(&job.program),
                        &job.target,
                        job.weight,
                        floor_us
                    ],
                )?;
            }
            Ok(())
        };
        match site {
            Site::File(path) => {
                database::make(path)?;
                let mut journal = Self::by(site, database::connect)?;
                journal.write(fill)?;
                Ok(journal)
            }
            Site::Server(url) => {
                let mut server = Server::open(url)?;
                server.make(&KIND, fill)?;
                Ok(Self(Place::Server(Box::new(server))))
            }
        }
    }

    /// Whether a server is there, with or without a journal.
    ///
    /// # Errors
    /// Why it cannot be asked.
    pub fn reach(server: &Url) -> Result<(), DatabaseError> {
        Server::open(server).map(drop)
    }

    /// Opens a journal that is there.
    ///
    /// # Errors
    /// There is none, or it cannot be read and written.
    pub fn open(site: &Site) -> Result<Self, DatabaseError> {
        Self::by(site, database::connect_to_made)
    }

    /// Opens a journal that is there, for whoever only reads: a file stays as it is, and need not be writable.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn to_read(site: &Site) -> Result<Self, DatabaseError> {
        Self::by(site, database::connect_to_read)
    }

    fn by(site: &Site, connect: database::Connect) -> Result<Self, DatabaseError> {
        match site {
            Site::File(path) => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                let database = connect(&path, &KIND)?;
                Ok(Self(Place::File(path, database)))
            }
            Site::Server(url) => Self::on(Server::open(url)?),
        }
    }

    /// Opens a journal that was there not long ago: a server that is away is waited for, as where a connection is lost.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open_again(site: &Site) -> Result<Self, DatabaseError> {
        match site {
            Site::File(_) => Self::open(site),
            Site::Server(url) => Self::on(Server::await_open(url)?),
        }
    }

    fn on(mut server: Server) -> Result<Self, DatabaseError> {
        server.check(&KIND)?;
        Ok(Self(Place::Server(Box::new(server))))
    }

    /// Whether it is on a server, so that several machines may work on it, and artifacts are in it whole.
    pub fn is_shared(&self) -> bool {
        matches!(self.0, Place::Server(_))
    }

    /// Seconds since the beginning of 1970, by the clock of whatever has the journal.
    pub fn now(&self) -> f64 {
        match &self.0 {
            Place::File(..) => here(),
            Place::Server(server) => server.now(),
        }
    }

    /// How long ago a connection that was lost was made again.
    pub fn restored(&self) -> Option<Duration> {
        match &self.0 {
            Place::File(..) => None,
            Place::Server(server) => server.restored(),
        }
    }

    /// Gives jobs that were given up another chance.
    ///
    /// # Errors
    /// The database's.
    pub fn reopen(&mut self) -> Result<(), DatabaseError> {
        self.write(|all| {
            all.execute(
                "UPDATE job SET state = 'open', forgiven = (SELECT count(*) FROM slice WHERE slice.job = job.id) WHERE state = 'failed'",
                &[],
            )
        })?;
        Ok(())
    }

    /// Jobs whose artifacts are gone have none, and are open again.
    ///
    /// # Errors
    /// The database's.
    pub fn miss(&mut self, jobs: &[i64]) -> Result<(), DatabaseError> {
        self.write(|all| {
            let sql = "UPDATE job SET seal = NULL, state = 'open' WHERE id = ?1";
            (jobs.iter()).try_for_each(|job| all.execute(sql, values_of![*job]).map(drop))
        })
    }

    /// Says where what is timed for these targets is timed from now on. Jobs whose artifacts were timed elsewhere are open again.
    ///
    /// # Errors
    /// The database's.
    pub fn set_places(&mut self, places: &[(String, String)]) -> Result<(), DatabaseError> {
        self.write(|all| {
            for (target, timed_on) in places {
                all.execute(
                    "INSERT INTO place (target, timed_on) VALUES (?1, ?2) ON CONFLICT (target) DO UPDATE SET timed_on = excluded.timed_on",
                    values_of![target, timed_on],
                )?;
                all.execute(
                    "UPDATE job SET state = 'open' WHERE target = ?1 AND state = 'done' AND seal IN (
                       SELECT seal FROM artifact WHERE verified = 1 AND timed_on IS DISTINCT FROM ?2
                     )",
                    values_of![target, timed_on],
                )?;
            }
            Ok(())
        })
    }

    /// Says where what is timed for these targets is timed, where nobody has said that yet. Gives those of which somebody said something else, with that.
    ///
    /// # Errors
    /// The database's.
    pub fn agree_on_places(
        &mut self,
        places: &[(String, String)],
    ) -> Result<Vec<(String, String)>, DatabaseError> {
        self.write(|all| {
            let mut others = Vec::new();
            for (target, timed_on) in places {
                all.execute(
                    "INSERT INTO place (target, timed_on) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
                    values_of![target, timed_on],
                )?;
                let said = "SELECT timed_on FROM place WHERE target = ?1";
                let said: String = all.one(said, values_of![target])?;
                if said != *timed_on {
                    others.push((target.clone(), said));
                }
            }
            Ok(others)
        })
    }

    /// Sets how long the campaign may work.
    ///
    /// # Errors
    /// The database's.
    pub fn set_budget(&mut self, budget: Duration) -> Result<(), DatabaseError> {
        let budget = i64::try_from(budget.as_millis()).unwrap_or(i64::MAX);
        self.write(|all| all.execute("UPDATE campaign SET budget_ms = ?1", values_of![budget]))?;
        Ok(())
    }

    /// Makes a lease last from now on; false where it is somebody else's by now.
    ///
    /// # Errors
    /// The database's.
    pub fn renew(&mut self, lease: &Lease, now: f64) -> Result<bool, DatabaseError> {
        let until = now + LEASE.as_secs_f64();
        let held = self.write(|all| {
            all.execute(
                "UPDATE slice SET lease = ?1 WHERE id = ?2 AND state = 'leased' AND session = ?3 AND token = ?4",
                values_of![until, lease.slice, lease.session.0, lease.token],
            )
        })?;
        Ok(held == 1)
    }

    /// What stands at the job's place now, or that nothing does; nothing where the lease is somebody else's. With the files, where the journal is to have them.
    ///
    /// # Errors
    /// The database's.
    pub fn hold(
        &mut self,
        lease: &Lease,
        artifact: Option<&Known>,
        files: Option<&Files>,
    ) -> Result<(), DatabaseError> {
        self.write(|all| {
            if !lease.is_held(all)? {
                return Ok(());
            }
            if let Some(known) = artifact {
                all.execute(
                    "INSERT INTO artifact (seal, job, slice, unix_time, us, verified, timed_on) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING",
                    values_of![
                        &known.seal,
                        lease.job,
                        lease.slice,
                        here(),
                        known.us,
                        known.verified,
                        known.timed_on.clone()
                    ],
                )?;
                if let Some(files) = files {
                    let id = "SELECT id FROM artifact WHERE seal = ?1";
                    let id = all.one(id, values_of![&known.seal])?;
                    contents::put(all, id, files)?;
                }
            }
            let seal = artifact.map(|known| known.seal.clone());
            let sql = "UPDATE job SET seal = ?1 WHERE id = ?2";
            all.execute(sql, values_of![seal, lease.job])?;
            Ok(())
        })
    }

    /// The artifact that stands at the job's place.
    ///
    /// # Errors
    /// The database's.
    pub fn held(&mut self, lease: &Lease) -> Result<Option<Known>, DatabaseError> {
        self.read(|all| {
            let row = all.first(
                "SELECT artifact.seal, us, verified, timed_on FROM job JOIN artifact ON artifact.seal = job.seal WHERE job.id = ?1",
                values_of![lease.job],
            )?;
            let known = row.map(|row| {
                Ok(Known {
                    seal: row.get(0)?,
                    us: row.get(1)?,
                    verified: row.get(2)?,
                    timed_on: row.get(3)?,
                })
            });
            known.transpose()
        })
    }

    /// The files of an artifact, checked against its seal; none where the journal does not have them.
    ///
    /// # Errors
    /// The database's, and what is wrong with them.
    pub fn files(&mut self, seal: &str) -> Result<Option<Files>, DatabaseError> {
        let files = self.read(|all| contents::get(all, seal))?;
        if files.is_empty() {
            return Ok(None);
        }
        let checked = contents::checked(files, seal);
        let damaged = |what| self.told(format!("the artifact {seal} is damaged: {what}"));
        checked.map(Some).map_err(damaged)
    }

    /// The slice came to its end; false where the lease is somebody else's by now: then it did not.
    ///
    /// # Errors
    /// The database's.
    pub fn end(&mut self, lease: &Lease, outcome: &Outcome) -> Result<bool, DatabaseError> {
        self.write(|all| {
            if !lease.is_held(all)? {
                return Ok(false);
            }
            offers::clear(all, lease.slice)?;
            let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
            all.execute(
                "UPDATE slice SET state = 'ended', seconds = ?2, trials = ?3, recalled = ?4, reason = ?5,
                   (us, verified, timed_on) = (
                     SELECT artifact.us, artifact.verified, artifact.timed_on FROM artifact JOIN job ON artifact.seal = job.seal WHERE job.id = slice.job
                   )
                 WHERE id = ?1",
                values_of![
                    lease.slice,
                    outcome.seconds,
                    number(outcome.trials),
                    number(outcome.recalled),
                    outcome.reason.clone()
                ],
            )?;
            if let Some(least) = outcome.least {
                let least = i64::try_from(least.as_millis()).unwrap_or(i64::MAX);
                let sql = "UPDATE job SET least_ms = ?1 WHERE id = ?2";
                all.execute(sql, values_of![least, lease.job])?;
            }
            let state = match (outcome.hopeless, outcome.exhausted) {
                (true, _) => "failed",
                (false, true) => "done",
                (false, false) => return Ok(true),
            };
            all.execute(
                "UPDATE job SET state = ?1, reason = ?2 WHERE id = ?3",
                values_of![state, outcome.reason.clone(), lease.job],
            )?;
            Ok(true)
        })
    }

    /// The slice was interrupted, and is taken up again: that counts as no attempt.
    ///
    /// # Errors
    /// The database's.
    pub fn give_back(&mut self, lease: &Lease) -> Result<(), DatabaseError> {
        self.write(|all| {
            if lease.is_held(all)? {
                offers::clear(all, lease.slice)?;
                all.execute(
                    "UPDATE slice SET state = 'waiting', attempts = attempts - 1 WHERE id = ?1",
                    values_of![lease.slice],
                )?;
            }
            Ok(())
        })
    }

    /// Whoever had the slice could not end it: it waits for another one, or is lost.
    ///
    /// # Errors
    /// The database's.
    pub fn lose(&mut self, lease: &Lease, reason: &str) -> Result<(), DatabaseError> {
        self.write(|all| match lease.is_held(all)? {
            true => lost(all, lease.slice, reason),
            false => Ok(()),
        })
    }

    /// A worker's process ended, for this reason, and has no slice any more; whether it had one.
    ///
    /// # Errors
    /// The database's.
    pub fn lose_of(
        &mut self,
        session: Session,
        worker: u32,
        reason: &str,
    ) -> Result<bool, DatabaseError> {
        self.write(|all| {
            let slices = all.query_locked(
                "SELECT id FROM slice WHERE state = 'leased' AND session = ?1 AND worker = ?2",
                values_of![session.0, worker],
            )?;
            for slice in &slices {
                lost(all, slice.get(0)?, reason)?;
            }
            Ok(!slices.is_empty())
        })
    }

    /// The workers whose leases ran out.
    ///
    /// # Errors
    /// The database's.
    pub fn overdue(&mut self, session: Session, now: f64) -> Result<Vec<u32>, DatabaseError> {
        self.read(|all| {
            let found = all.query(
                "SELECT worker FROM slice WHERE state = 'leased' AND session = ?1 AND lease < ?2",
                values_of![session.0, now],
            )?;
            found.iter().map(|row| row.get(0)).collect()
        })
    }

    /// Everything in it, at one moment.
    ///
    /// # Errors
    /// The database's.
    pub fn view(&mut self) -> Result<View, DatabaseError> {
        self.read(state::view)
    }

    /// What was written behind this number, with the numbers: the newest last.
    ///
    /// # Errors
    /// The database's.
    pub fn written_since(&mut self, number: i64) -> Result<Vec<(i64, Progress)>, DatabaseError> {
        self.read(|all| state::written_since(all, number))
    }

    /// Reads all of something at one moment.
    fn read<T>(
        &mut self,
        ask: impl FnMut(&mut All<'_, '_>) -> Result<T, SqlError>,
    ) -> Result<T, DatabaseError> {
        match &mut self.0 {
            Place::File(path, database) => database::read(database, (path, &KIND), ask),
            Place::Server(server) => server.read(ask),
        }
    }

    /// All of it, or nothing.
    fn write<T>(
        &mut self,
        work: impl FnMut(&mut All<'_, '_>) -> Result<T, SqlError>,
    ) -> Result<T, DatabaseError> {
        match &mut self.0 {
            Place::File(path, database) => database::write(database, (path, &KIND), work),
            Place::Server(server) => server.write(work),
        }
    }

    /// Something that is wrong with it.
    fn told(&self, reason: String) -> DatabaseError {
        match &self.0 {
            Place::File(path, _) => DatabaseError::Database {
                path: path.clone(),
                reason,
            },
            Place::Server(server) => server.told(reason),
        }
    }
}

/// Seconds since the beginning of 1970, by this machine's clock.
fn here() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// A slice whose worker could not end it waits to be repeated, or is lost; its job is given up where that happened too often.
fn lost(all: &mut All<'_, '_>, slice: i64, reason: &str) -> Result<(), SqlError> {
    offers::clear(all, slice)?;
    all.execute(
        "UPDATE slice SET reason = ?2, state = CASE WHEN attempts >= ?3 THEN 'lost' ELSE 'waiting' END WHERE id = ?1",
        values_of![slice, reason, ATTEMPTS],
    )?;
    // Behind each other, since the last one that ended; where something was held there is hope.
    all.execute(
        "UPDATE job SET state = 'failed', reason = ?2 WHERE id = (SELECT slice.job FROM slice WHERE slice.id = ?1) AND ?3 <= (
           SELECT count(*) FROM slice WHERE slice.job = job.id AND slice.state = 'lost' AND number >= job.forgiven AND number >
             (SELECT coalesce(max(number), -1) FROM slice WHERE slice.job = job.id AND slice.state = 'ended')
         )",
        values_of![slice, reason, MOST_LOST],
    )?;
    Ok(())
}

#[cfg(test)]
mod tests;
