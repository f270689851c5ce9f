//! The journal of a campaign: its jobs, who works on what, what came of it, in one SQLite database.
//!
//! A *slice* is one search of a job. Who has one holds a *lease* on it, which runs out unless it is renewed. A slice whose worker is lost is repeated once, then
//! it counts as lost, with the reason. What somebody says who has no lease any more is not taken: so each slice ends once.
//!
//! Nothing here starts a process, or knows what a search is.

mod claim;
mod schema;
mod state;

pub use claim::{Claim, Lease};
pub use state::{JobState, JobView, Progress, SliceState, SliceView, View};

use crate::campaign::plan::Plan;
use crate::database::{self, DatabaseError};
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use schema::KIND;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a lease lasts that is not renewed.
pub const LEASE: Duration = Duration::from_secs(20);
/// How often a slice is tried whose worker is lost.
const ATTEMPTS: i64 = 2;
/// A job is given up when so many slices behind each other were lost, and nothing came of any.
const MOST_LOST: i64 = 3;

/// An opened journal.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    database: Connection,
}

/// A time at which the campaign ran: from one `run` or `resume` to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session(pub i64);

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

/// Seconds since the beginning of 1970.
pub fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

impl Journal {
    /// Makes the journal of a plan, all or nothing; targets are names, none of them `auto`.
    ///
    /// # Errors
    /// There is a journal, or something else, in its place, or it cannot be written.
    pub fn make(path: &Path, plan: &Plan, seed: u64) -> Result<Self, DatabaseError> {
        database::make(path)?;
        let mut journal = Self::open(path)?;
        journal.write(|all| {
            let milliseconds = |d: Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
            all.execute(
                "INSERT INTO campaign (id, made, budget_ms, first_ms, seed) VALUES (1, ?1, ?2, ?3, ?4)",
                params![now(), milliseconds(plan.budget), plan.first.map(milliseconds), seed as i64],
            )?;
            for job in &plan.jobs {
                let hash = crate::program_hash(&job.program);
                all.execute(
                    "INSERT INTO job (name, program, program_hash, target, weight) VALUES (?1, ?2, ?3, ?4, ?5)",
                    params![job.name, job.program.to_string(), hash, job.target, job.weight],
                )?;
            }
            Ok(())
        })?;
        Ok(journal)
    }

    /// Opens a journal that is there.
    ///
    /// # Errors
    /// There is none, or it cannot be read and written.
    pub fn open(path: &Path) -> Result<Self, DatabaseError> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let database = database::connect(&path, &KIND)?;
        Ok(Self { path, database })
    }

    /// Begins a session. What was leased before is given back: that whoever had it ended is no fault of the slice's.
    ///
    /// # Errors
    /// SQLite's.
    pub fn begin(&mut self, workers: u32, now: f64) -> Result<Session, DatabaseError> {
        self.write(|all| {
            all.execute("UPDATE campaign SET stopping = 0", [])?;
            all.execute(
                "UPDATE slice SET state = 'waiting', attempts = attempts - 1 WHERE state = 'leased'",
                [],
            )?;
            all.execute(
                "INSERT INTO session (pid, begun, seen, workers) VALUES (?1, ?2, ?2, ?3)",
                params![std::process::id(), now, workers],
            )?;
            Ok(Session(all.last_insert_rowid()))
        })
    }

    /// Gives jobs that were given up another chance.
    ///
    /// # Errors
    /// SQLite's.
    pub fn reopen(&mut self) -> Result<(), DatabaseError> {
        self.write(|all| {
            all.execute(
                "UPDATE job SET state = 'open', forgiven = (SELECT count(*) FROM slice WHERE job = job.id) WHERE state = 'failed'",
                [],
            )
        })?;
        Ok(())
    }

    /// Jobs whose artifacts are gone have none, and are open again.
    ///
    /// # Errors
    /// SQLite's.
    pub fn miss(&mut self, jobs: &[i64]) -> Result<(), DatabaseError> {
        self.write(|all| {
            let sql = "UPDATE job SET seal = NULL, state = 'open' WHERE id = ?1";
            (jobs.iter()).try_for_each(|job| all.execute(sql, [job]).map(drop))
        })
    }

    /// Says where what is timed for these targets is timed from now on. Jobs whose artifacts were timed elsewhere are open again.
    ///
    /// # Errors
    /// SQLite's.
    pub fn set_places(&mut self, places: &[(String, String)]) -> Result<(), DatabaseError> {
        self.write(|all| {
            for (target, timed_on) in places {
                all.execute(
                    "INSERT INTO place (target, timed_on) VALUES (?1, ?2) ON CONFLICT (target) DO UPDATE SET timed_on = excluded.timed_on",
                    [target, timed_on],
                )?;
                all.execute(
                    "UPDATE job SET state = 'open' WHERE target = ?1 AND state = 'done' AND seal IN (
                       SELECT seal FROM artifact WHERE verified = 1 AND timed_on IS DISTINCT FROM ?2
                     )",
                    [target, timed_on],
                )?;
            }
            Ok(())
        })
    }

    /// Sets how long all sessions together may take.
    ///
    /// # Errors
    /// SQLite's.
    pub fn set_budget(&mut self, budget: Duration) -> Result<(), DatabaseError> {
        let budget = i64::try_from(budget.as_millis()).unwrap_or(i64::MAX);
        self.write(|all| all.execute("UPDATE campaign SET budget_ms = ?1", [budget]))?;
        Ok(())
    }

    /// The session goes on: so long it has taken.
    ///
    /// # Errors
    /// SQLite's.
    pub fn beat(&mut self, session: Session, now: f64) -> Result<(), DatabaseError> {
        self.write(|all| {
            all.execute(
                "UPDATE session SET seen = max(seen, ?2) WHERE id = ?1",
                params![session.0, now],
            )
        })?;
        Ok(())
    }

    /// The session ended.
    ///
    /// # Errors
    /// SQLite's.
    pub fn finish(&mut self, session: Session, now: f64) -> Result<(), DatabaseError> {
        self.beat(session, now)?;
        self.write(|all| all.execute("UPDATE session SET ended = 1 WHERE id = ?1", [session.0]))?;
        Ok(())
    }

    /// Asks whoever runs the campaign to end.
    ///
    /// # Errors
    /// SQLite's.
    pub fn stop(&mut self) -> Result<(), DatabaseError> {
        self.write(|all| all.execute("UPDATE campaign SET stopping = 1", []))?;
        Ok(())
    }

    /// Whether somebody asked for that.
    ///
    /// # Errors
    /// SQLite's.
    pub fn is_stopping(&self) -> Result<bool, DatabaseError> {
        self.read(|all| all.query_row("SELECT stopping FROM campaign", [], |row| row.get(0)))
    }

    /// Makes a lease last from now on; false where it is somebody else's by now.
    ///
    /// # Errors
    /// SQLite's.
    pub fn renew(&mut self, lease: &Lease, now: f64) -> Result<bool, DatabaseError> {
        let until = now + LEASE.as_secs_f64();
        let held = self.write(|all| {
            all.execute(
                "UPDATE slice SET lease = ?1 WHERE id = ?2 AND state = 'leased' AND session = ?3 AND token = ?4",
                params![until, lease.slice, lease.session.0, lease.token],
            )
        })?;
        Ok(held == 1)
    }

    /// What stands at the job's place now, or that nothing does; nothing where the lease is somebody else's.
    ///
    /// # Errors
    /// SQLite's.
    pub fn hold(&mut self, lease: &Lease, artifact: Option<&Known>) -> Result<(), DatabaseError> {
        self.write(|all| {
            if !lease.is_held(all)? {
                return Ok(());
            }
            if let Some(known) = artifact {
                all.execute(
                    "INSERT INTO artifact (seal, job, slice, unix_time, us, verified, timed_on) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING",
                    params![known.seal, lease.job, lease.slice, now(), known.us, known.verified, known.timed_on],
                )?;
            }
            let seal = artifact.map(|known| known.seal.as_str());
            all.execute("UPDATE job SET seal = ?1 WHERE id = ?2", params![seal, lease.job])?;
            Ok(())
        })
    }

    /// The artifact that stands at the job's place.
    ///
    /// # Errors
    /// SQLite's.
    pub fn held(&self, lease: &Lease) -> Result<Option<Known>, DatabaseError> {
        self.read(|all| {
            let known = all.query_row(
                "SELECT artifact.seal, us, verified, timed_on FROM job JOIN artifact ON artifact.seal = job.seal WHERE job.id = ?1",
                [lease.job],
                |row| {
                    Ok(Known {
                        seal: row.get(0)?,
                        us: row.get(1)?,
                        verified: row.get(2)?,
                        timed_on: row.get(3)?,
                    })
                },
            );
            known.optional()
        })
    }

    /// The slice came to its end; false where the lease is somebody else's by now: then it did not.
    ///
    /// # Errors
    /// SQLite's.
    pub fn end(&mut self, lease: &Lease, outcome: &Outcome) -> Result<bool, DatabaseError> {
        self.write(|all| {
            if !lease.is_held(all)? {
                return Ok(false);
            }
            let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
            all.execute(
                "UPDATE slice SET state = 'ended', seconds = ?2, trials = ?3, recalled = ?4, reason = ?5,
                   (us, verified, timed_on) = (SELECT us, verified, timed_on FROM artifact JOIN job ON artifact.seal = job.seal WHERE job.id = slice.job)
                 WHERE id = ?1",
                params![
                    lease.slice,
                    outcome.seconds,
                    number(outcome.trials),
                    number(outcome.recalled),
                    outcome.reason
                ],
            )?;
            if let Some(least) = outcome.least {
                let least = i64::try_from(least.as_millis()).unwrap_or(i64::MAX);
                all.execute("UPDATE job SET least_ms = ?1 WHERE id = ?2", params![least, lease.job])?;
            }
            let state = match (outcome.hopeless, outcome.exhausted) {
                (true, _) => "failed",
                (false, true) => "done",
                (false, false) => return Ok(true),
            };
            all.execute(
                "UPDATE job SET state = ?1, reason = ?2 WHERE id = ?3",
                params![state, outcome.reason, lease.job],
            )?;
            Ok(true)
        })
    }

    /// The slice was interrupted, and is taken up again: that counts as no attempt.
    ///
    /// # Errors
    /// SQLite's.
    pub fn give_back(&mut self, lease: &Lease) -> Result<(), DatabaseError> {
        self.write(|all| {
            if lease.is_held(all)? {
                all.execute(
                    "UPDATE slice SET state = 'waiting', attempts = attempts - 1 WHERE id = ?1",
                    [lease.slice],
                )?;
            }
            Ok(())
        })
    }

    /// Whoever had the slice could not end it: it waits for another one, or is lost.
    ///
    /// # Errors
    /// SQLite's.
    pub fn lose(&mut self, lease: &Lease, reason: &str) -> Result<(), DatabaseError> {
        self.write(|all| match lease.is_held(all)? {
            true => lost(all, lease.slice, reason),
            false => Ok(()),
        })
    }

    /// A worker's process ended, for this reason, and has no slice any more; whether it had one.
    ///
    /// # Errors
    /// SQLite's.
    pub fn lose_of(
        &mut self,
        session: Session,
        worker: u32,
        reason: &str,
    ) -> Result<bool, DatabaseError> {
        self.write(|all| {
            let slices = numbers(
                all,
                "SELECT id FROM slice WHERE state = 'leased' AND session = ?1 AND worker = ?2",
                [session.0, worker.into()],
            )?;
            for slice in &slices {
                lost(all, *slice, reason)?;
            }
            Ok(!slices.is_empty())
        })
    }

    /// The workers whose leases ran out.
    ///
    /// # Errors
    /// SQLite's.
    pub fn overdue(&self, session: Session, now: f64) -> Result<Vec<u32>, DatabaseError> {
        self.read(|all| {
            let mut found = all.prepare(
                "SELECT worker FROM slice WHERE state = 'leased' AND session = ?1 AND lease < ?2",
            )?;
            let found = found.query_map(params![session.0, now], |row| row.get(0))?;
            found.collect()
        })
    }

    /// Everything in it, at one moment.
    ///
    /// # Errors
    /// SQLite's.
    pub fn view(&mut self) -> Result<View, DatabaseError> {
        let (path, all) = (&self.path, self.database.transaction());
        let view = all.and_then(|all| state::view(&all));
        view.map_err(|e| KIND.error(path, e))
    }

    /// What was written behind this number, with the numbers: the newest last.
    ///
    /// # Errors
    /// SQLite's.
    pub fn written_since(&self, number: i64) -> Result<Vec<(i64, Progress)>, DatabaseError> {
        self.read(|all| state::written_since(all, number))
    }

    fn read<T>(
        &self,
        ask: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, DatabaseError> {
        ask(&self.database).map_err(|e| KIND.error(&self.path, e))
    }

    /// All of it, or nothing.
    fn write<T>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, DatabaseError> {
        database::write(&mut self.database, (&self.path, &KIND), work)
    }
}

/// A slice whose worker could not end it waits to be repeated, or is lost; its job is given up where that happened too often.
fn lost(all: &Transaction<'_>, slice: i64, reason: &str) -> rusqlite::Result<()> {
    all.execute(
        "UPDATE slice SET reason = ?2, state = CASE WHEN attempts >= ?3 THEN 'lost' ELSE 'waiting' END WHERE id = ?1",
        params![slice, reason, ATTEMPTS],
    )?;
    // Behind each other, since the last one that ended; where something was held there is hope.
    all.execute(
        "UPDATE job SET state = 'failed', reason = ?2 WHERE id = (SELECT job FROM slice WHERE id = ?1) AND ?3 <= (
           SELECT count(*) FROM slice WHERE slice.job = job.id AND state = 'lost' AND number >= job.forgiven AND number >
             (SELECT coalesce(max(number), -1) FROM slice WHERE slice.job = job.id AND state = 'ended')
         )",
        params![slice, reason, MOST_LOST],
    )?;
    Ok(())
}

fn numbers(
    all: &Connection,
    sql: &str,
    parameters: impl rusqlite::Params,
) -> rusqlite::Result<Vec<i64>> {
    let mut found = all.prepare(sql)?;
    let found = found.query_map(parameters, |row| row.get(0))?;
    found.collect()
}

#[cfg(test)]
mod tests;
