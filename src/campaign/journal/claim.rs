//! Who works on what: a slice for whoever asks.

use super::{Journal, LEASE, Session, offers, sessions, state};
use crate::campaign::share;
use crate::database::DatabaseError;
use crate::database::sql::{All, SqlError, values_of};
use std::time::Duration;

/// A slice that is somebody's, for as long as it is renewed.
#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    /// The slice.
    pub slice: i64,
    /// The job.
    pub job: i64,
    /// Its name, which is that of its folder.
    pub name: String,
    /// Its program, as text.
    pub program: String,
    /// Its target's name.
    pub target: String,
    /// How long the search may take.
    pub budget: Duration,
    /// The search's seed.
    pub seed: u64,
    /// When it was taken.
    pub session: Session,
    /// Tells it from earlier leases of the same slice.
    pub token: i64,
}

impl Lease {
    /// Whether it is still this one that counts, and will be until the end.
    pub(super) fn is_held(&self, all: &mut All<'_, '_>) -> Result<bool, SqlError> {
        let found = all.query_locked(
            "SELECT id FROM slice WHERE id = ?1 AND state = 'leased' AND session = ?2 AND token = ?3",
            values_of![self.slice, self.session.0, self.token],
        )?;
        Ok(!found.is_empty())
    }
}

/// What there is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Claim {
    /// This slice.
    Slice(Box<Lease>),
    /// Nothing now; there may be something once others have ended what they do.
    Wait,
    /// Nothing any more.
    Nothing,
}

/// A job that may have a slice, and how long that would be.
struct Chosen {
    job: i64,
    budget: Duration,
    /// More of the first number comes first, then of the second.
    rank: (u8, f64),
}

impl Journal {
    /// Takes a slice for a worker: one that waits to be repeated, else one of the job that promises most. `targets` are the names of those that the worker
    /// serves.
    ///
    /// # Errors
    /// SQLite's.
    pub fn claim(
        &mut self,
        session: Session,
        worker: u32,
        targets: &[String],
        now: f64,
    ) -> Result<Claim, DatabaseError> {
        self.write(|all| {
            let left = state::left(all, session, now)?;
            if sessions::is_stopping(all, session)? || left.is_zero() {
                return Ok(Claim::Nothing);
            }
            let left = state::to_give(all, left)?;
            // Who asks has none. Where the answer to an earlier claim was lost with the connection, that is this one.
            all.execute(
                "UPDATE slice SET state = 'waiting', attempts = attempts - 1 WHERE state = 'leased' AND session = ?1 AND worker = ?2",
                values_of![session.0, worker],
            )?;
            offers::clear_all(all)?;
            let served = |target: &String| targets.contains(target);
            if let Some(slice) = waiting(all, &served)? {
                all.execute(
                    "UPDATE slice SET budget_ms = CASE WHEN budget_ms > ?2 THEN ?2 ELSE budget_ms END WHERE id = ?1",
                    values_of![slice, milliseconds(left)],
                )?;
                return lease(all, slice, session, worker, now).map(Claim::Slice);
            }
            let first = state::first(all)?;
            let mut others = false;
            let mut best: Vec<Chosen> = Vec::new();
            for job in state::jobs(all)? {
                if !served(&job.target) {
                    continue;
                }
                others |= job.is_leased;
                best.extend(chosen(&job, first, left));
            }
            // What promises most first, and of what promises as much the first of the plan.
            best.sort_by(|a, b| {
                let promised = b.rank.0.cmp(&a.rank.0);
                promised.then(b.rank.1.total_cmp(&a.rank.1))
            });
            for chosen in best {
                if !is_ours(all, chosen.job)? {
                    others = true;
                    continue;
                }
                let slice = all.one(
                    "INSERT INTO slice (job, number, budget_ms, state, attempts, token, session, worker, pid, lease)
                     VALUES (?1, (SELECT count(*) FROM slice WHERE slice.job = ?1), ?2, 'waiting', 0, 0, ?3, ?4, 0, 0) RETURNING id",
                    values_of![chosen.job, milliseconds(chosen.budget), session.0, worker],
                )?;
                return lease(all, slice, session, worker, now).map(Claim::Slice);
            }
            Ok(if others { Claim::Wait } else { Claim::Nothing })
        })
    }
}

impl Journal {
    /// Whether there is nothing to do any more, for nobody: who asks searches nothing himself.
    ///
    /// # Errors
    /// The database's.
    pub fn is_over(&mut self, session: Session, now: f64) -> Result<bool, DatabaseError> {
        self.read(|all| {
            let left = state::left(all, session, now)?;
            if sessions::is_stopping(all, session)? || left.is_zero() {
                return Ok(true);
            }
            let left = state::to_give(all, left)?;
            let first = state::first(all)?;
            let waits = |job: &state::JobView| {
                let slices = &mut job.slices.iter();
                job.state == state::JobState::Open
                    && slices.any(|slice| slice.state == state::SliceState::Waiting)
            };
            let has_work = |job: &state::JobView| {
                job.is_leased || waits(job) || chosen(job, first, left).is_some()
            };
            Ok(!state::jobs(all)?.iter().any(has_work))
        })
    }
}

/// Locks a job that may have a slice; false where somebody else was faster.
fn is_ours(all: &mut All<'_, '_>, job: i64) -> Result<bool, SqlError> {
    if !all.is_shared() {
        return Ok(true);
    }
    let sql = "SELECT id FROM job WHERE id = ?1 AND state = 'open'";
    if all.query_free(sql, "job", values_of![job])?.is_empty() {
        return Ok(false);
    }
    // Since it was looked at somebody may have begun a slice, and let the job go.
    let busy = "SELECT count(*) FROM slice WHERE job = ?1 AND state IN ('leased', 'waiting')";
    let busy: i64 = all.one(busy, values_of![job])?;
    Ok(busy == 0)
}

/// So many slices of a job without a result, or with nothing but the first one, come before what others may gain; of one without a result further ones
/// come last.
const EARLY: usize = 4;

/// What a job would have next.
fn chosen(job: &state::JobView, first: Duration, left: Duration) -> Option<Chosen> {
    if job.is_leased || job.state != state::JobState::Open || job.least > left {
        return None;
    }
    let made = |budget: Duration, rank| {
        let budget = budget.max(job.least).min(left);
        let job = job.id;
        Some(Chosen { job, budget, rank })
    };
    let Some(last) = job.slices.last() else {
        // What runs most often first: something of each is held early.
        return made(first, (2, job.weight));
    };
    if job.is_stale {
        return made(last.budget, (2, job.weight));
    }
    let again = match last.state {
        // What was lost is tried once more as it was; so is what had too little time for the least that has to be done.
        state::SliceState::Lost => last.budget.min(left),
        state::SliceState::Ended if job.least > last.budget => job.least,
        state::SliceState::Ended | state::SliceState::Waiting | state::SliceState::Leased => {
            share::next(last.budget, left)?
        }
    };
    if !job.curve.is_empty() {
        let promised = share::promise(job.weight, &job.curve, job.floor_us, again.as_secs_f64());
        // Where a search verified something, and had no time to try anything else, its curve has not begun.
        let is_verified = job.best.as_ref().is_some_and(|best| best.verified);
        let is_begun = !is_verified || job.slices.iter().any(|s| s.trials > 0);
        return match is_begun || job.slices.len() >= EARLY {
            true => made(again, (0, promised)),
            false => made(again, (1, job.weight)),
        };
    }
    match job.slices.len() < EARLY {
        true => made(again, (1, job.weight)),
        false => made(again, (0, 0.0)),
    }
}

/// A slice that waits to be repeated, of a job that is served: the oldest that nobody else takes just now.
fn waiting(
    all: &mut All<'_, '_>,
    served: &dyn Fn(&String) -> bool,
) -> Result<Option<i64>, SqlError> {
    let found = all.query(
        "SELECT slice.id, target FROM slice JOIN job ON job.id = slice.job
         WHERE slice.state = 'waiting' AND job.state = 'open' ORDER BY slice.id",
        &[],
    )?;
    for row in &found {
        let (slice, target): (i64, String) = (row.get(0)?, row.get(1)?);
        if !served(&target) {
            continue;
        }
        let sql = "SELECT id FROM slice WHERE id = ?1 AND state = 'waiting'";
        if !all.query_free(sql, "slice", values_of![slice])?.is_empty() {
            return Ok(Some(slice));
        }
    }
    Ok(None)
}

/// Gives a slice to a worker.
fn lease(
    all: &mut All<'_, '_>,
    slice: i64,
    session: Session,
    worker: u32,
    now: f64,
) -> Result<Box<Lease>, SqlError> {
    all.execute(
        "UPDATE slice SET state = 'leased', attempts = attempts + 1, token = token + 1, session = ?2, worker = ?3, pid = ?4, lease = ?5 WHERE id = ?1",
        values_of![slice, session.0, worker, std::process::id(), now + LEASE.as_secs_f64()],
    )?;
    let seed: i64 = all.one("SELECT seed FROM campaign", &[])?;
    let row = all.first(
        "SELECT slice.job, name, program, target, budget_ms, token FROM slice JOIN job ON job.id = slice.job WHERE slice.id = ?1",
        values_of![slice],
    )?;
    let row = row.unwrap_or_default();
    Ok(Box::new(Lease {
        slice,
        job: row.get(0)?,
        name: row.get(1)?,
        program: row.get(2)?,
        target: row.get(3)?,
        budget: state::duration(row.get(4)?),
        seed: seed as u64,
        session,
        token: row.get(5)?,
    }))
}

fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX).max(1)
}
