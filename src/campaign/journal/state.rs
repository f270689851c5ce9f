//! What a journal says: jobs with their curves, and how much of the budget is left.

use super::{Known, Session};
use crate::campaign::share::{self, Point};
use crate::database::sql::{All, Row, SqlError, values_of};
use std::collections::BTreeMap;
use std::time::Duration;

/// A campaign at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// How long all sessions together may take.
    pub budget: Duration,
    /// How long they took.
    pub spent: Duration,
    /// The seed of all searches.
    pub seed: u64,
    /// Whether somebody asked it to end.
    pub stopping: bool,
    /// The jobs, in the order of the plan.
    pub jobs: Vec<JobView>,
}

/// A job at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct JobView {
    /// Its number.
    pub id: i64,
    /// Its name, which is that of its folder.
    pub name: String,
    /// The hash of its program.
    pub program_hash: String,
    /// Its target's name.
    pub target: String,
    /// How often its program runs.
    pub weight: f64,
    /// In how many microseconds it might run at best ([`share::floor_us`]); 0 where that is not known.
    pub floor_us: f64,
    /// Whether more time would help.
    pub state: JobState,
    /// Why it was given up, or why nothing came of its last slice.
    pub reason: Option<String>,
    /// The least budget of a slice that suffices.
    pub least: Duration,
    /// Whether somebody works on it.
    pub is_leased: bool,
    /// Its slices, in turn.
    pub slices: Vec<SliceView>,
    /// Its best time behind each slice that ended, as far back as the times are of one kind.
    pub curve: Vec<Point>,
    /// The artifact that stands at its place.
    pub best: Option<Known>,
    /// That was timed elsewhere than what is timed now: it is compared with nothing, and gives way.
    pub is_stale: bool,
}

/// A slice at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceView {
    /// How long it may take.
    pub budget: Duration,
    /// What became of it.
    pub state: SliceState,
    /// How often it was tried.
    pub attempts: i64,
    /// The process that has it, or had it last.
    pub pid: u32,
    /// How long it took, in seconds, if it ended.
    pub seconds: f64,
    /// Kernels that were timed alone.
    pub trials: i64,
    /// The same of those whose times were known from before.
    pub recalled: i64,
    /// Why it was lost, or had no result.
    pub reason: Option<String>,
}

/// Whether more time would help a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// Perhaps.
    Open,
    /// No: nothing is left to try.
    Done,
    /// No: it was given up.
    Failed,
}

/// What became of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceState {
    /// It is to be repeated.
    Waiting,
    /// Somebody works on it.
    Leased,
    /// It came to its end.
    Ended,
    /// Nobody could end it.
    Lost,
}

/// Something that was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// The job's name.
    pub job: String,
    /// The artifact.
    pub artifact: Known,
    /// The best time of the same job before, of the same kind.
    pub before: Option<f64>,
}

pub(super) fn duration(milliseconds: i64) -> Duration {
    Duration::from_millis(u64::try_from(milliseconds).unwrap_or_default())
}

/// How long the campaign worked: while several sessions worked at once, that counts once, and those that only compile work on nothing of their own.
fn spent(all: &mut All<'_, '_>, until: Option<(Session, f64)>) -> Result<Duration, SqlError> {
    let rows = all.query(
        "SELECT id, begun, seen FROM session WHERE compiler IS NULL ORDER BY begun",
        &[],
    )?;
    let (mut spent, mut end) = (0.0, f64::NEG_INFINITY);
    for row in &rows {
        let (begun, mut seen): (f64, f64) = (row.get(1)?, row.get(2)?);
        if let Some((_, now)) = until.filter(|(session, _)| row.get(0).ok() == Some(session.0)) {
            seen = seen.max(now);
        }
        spent += (seen - begun.max(end)).max(0.0);
        end = end.max(seen);
    }
    Ok(Duration::try_from_secs_f64(spent).unwrap_or(Duration::MAX))
}

/// What is left of the budget: but for how long all sessions took.
pub(super) fn left(
    all: &mut All<'_, '_>,
    session: Session,
    now: f64,
) -> Result<Duration, SqlError> {
    let budget = all.one("SELECT budget_ms FROM campaign", &[])?;
    Ok(duration(budget).saturating_sub(spent(all, Some((session, now)))?))
}

/// What slices may be given of what is left: as slices of this campaign were longer than their budgets (a process and a GPU have to start, and what was
/// found is written), the next one will be. At most a quarter of what is left is kept back for that.
pub(super) fn to_give(all: &mut All<'_, '_>, left: Duration) -> Result<Duration, SqlError> {
    let late: Option<f64> = all.one(
        "SELECT max(seconds - budget_ms / 1000.0) FROM slice WHERE state = 'ended'",
        &[],
    )?;
    let late = Duration::try_from_secs_f64(late.unwrap_or_default()).unwrap_or_default();
    Ok(left - late.min(left / 4))
}

/// How long first slices are.
pub(super) fn first(all: &mut All<'_, '_>) -> Result<Duration, SqlError> {
    let row = all.first(
        "SELECT budget_ms, first_ms, (SELECT CAST(sum(workers) AS BIGINT) FROM session WHERE ended = 0 AND compiler IS NULL), (SELECT count(*) FROM job) FROM campaign",
        &[],
    )?;
    let row = row.unwrap_or_default();
    if let Some(said) = row.get(1)? {
        return Ok(duration(said));
    }
    let workers: Option<u32> = row.get(2)?;
    let budget = duration(row.get(0)?);
    Ok(share::first(
        budget,
        workers.unwrap_or(1).max(1),
        row.get(3)?,
    ))
}

/// The jobs, in the order of the plan.
pub(super) fn jobs(all: &mut All<'_, '_>) -> Result<Vec<JobView>, SqlError> {
    let rows = all.query(
        "SELECT job.id, name, program_hash, target, weight, state, reason, least_ms, artifact.seal, us, verified, artifact.timed_on, place.timed_on, floor_us
         FROM job LEFT JOIN artifact ON artifact.seal = job.seal LEFT JOIN place USING (target) ORDER BY job.id",
        &[],
    )?;
    let job = |row: &Row| -> Result<JobView, SqlError> {
        let seal: Option<String> = row.get(8)?;
        let best = seal.map(|seal| {
            Ok::<_, SqlError>(Known {
                seal,
                us: row.get(9)?,
                verified: row.get(10)?,
                timed_on: row.get(11)?,
            })
        });
        let best = best.transpose()?;
        let place: Option<String> = row.get(12)?;
        let elsewhere = |best: &Known| best.verified && best.timed_on != place;
        let state: String = row.get(5)?;
        Ok(JobView {
            id: row.get(0)?,
            name: row.get(1)?,
            program_hash: row.get(2)?,
            target: row.get(3)?,
            weight: row.get(4)?,
            floor_us: row.get(13)?,
            state: match state.as_str() {
                "done" => JobState::Done,
                "failed" => JobState::Failed,
                _ => JobState::Open,
            },
            reason: row.get(6)?,
            least: duration(row.get(7)?),
            is_leased: false,
            slices: Vec::new(),
            curve: Vec::new(),
            is_stale: place.is_some() && best.as_ref().is_some_and(elsewhere),
            best,
        })
    };
    let mut jobs = rows.iter().map(job).collect::<Result<Vec<JobView>, _>>()?;
    let places: BTreeMap<i64, usize> = (jobs.iter().enumerate()).map(|(n, j)| (j.id, n)).collect();
    let rows = all.query(
        "SELECT job, budget_ms, state, attempts, coalesce(seconds, 0.0), coalesce(trials, 0), coalesce(recalled, 0), reason, us, verified, pid, timed_on
         FROM slice ORDER BY job, number",
        &[],
    )?;
    // The kind of time of each job's curve.
    let mut kinds: BTreeMap<i64, (bool, Option<String>)> = BTreeMap::new();
    for row in &rows {
        let id: i64 = row.get(0)?;
        let Some(job) = places.get(&id).and_then(|n| jobs.get_mut(*n)) else {
            continue;
        };
        let state: String = row.get(2)?;
        let slice = SliceView {
            budget: duration(row.get(1)?),
            state: match state.as_str() {
                "leased" => SliceState::Leased,
                "ended" => SliceState::Ended,
                "lost" => SliceState::Lost,
                _ => SliceState::Waiting,
            },
            attempts: row.get(3)?,
            pid: row.get(10)?,
            seconds: row.get(4)?,
            trials: row.get(5)?,
            recalled: row.get(6)?,
            reason: row.get(7)?,
        };
        job.is_leased |= slice.state == SliceState::Leased;
        if job.reason.is_none() || slice.reason.is_some() {
            job.reason.clone_from(&slice.reason);
        }
        let (us, verified): (Option<f64>, Option<bool>) = (row.get(8)?, row.get(9)?);
        job.slices.push(slice);
        if let (Some(us), Some(verified)) = (us, verified) {
            let kind = (verified, row.get(11)?);
            if kinds.insert(id, kind.clone()) != Some(kind) {
                job.curve.clear();
            }
            let seconds = job.slices.iter().map(|s| s.seconds).sum();
            job.curve.push(Point { seconds, us });
        }
    }
    for job in &mut jobs {
        if job.is_stale {
            job.curve.clear();
        }
    }
    Ok(jobs)
}

/// Everything.
pub(super) fn view(all: &mut All<'_, '_>) -> Result<View, SqlError> {
    let (spent, jobs) = (spent(all, None)?, jobs(all)?);
    let row = all.first("SELECT budget_ms, seed, stopping FROM campaign", &[])?;
    let row = row.unwrap_or_default();
    let seed: i64 = row.get(1)?;
    Ok(View {
        budget: duration(row.get(0)?),
        spent,
        seed: seed as u64,
        stopping: row.get(2)?,
        jobs,
    })
}

/// What was written behind this number.
pub(super) fn written_since(
    all: &mut All<'_, '_>,
    number: i64,
) -> Result<Vec<(i64, Progress)>, SqlError> {
    let rows = all.query(
        "SELECT artifact.id, name, artifact.seal, us, verified,
           (SELECT min(us) FROM artifact AS earlier WHERE earlier.job = job.id AND earlier.id < artifact.id
              AND earlier.verified = artifact.verified AND earlier.timed_on IS NOT DISTINCT FROM artifact.timed_on),
           timed_on
         FROM artifact JOIN job ON job.id = artifact.job WHERE artifact.id > ?1 ORDER BY artifact.id",
        values_of![number],
    )?;
    let written = |row: &Row| {
        let artifact = Known {
            seal: row.get(2)?,
            us: row.get(3)?,
            verified: row.get(4)?,
            timed_on: row.get(6)?,
        };
        let progress = Progress {
            job: row.get(1)?,
            artifact,
            before: row.get(5)?,
        };
        Ok((row.get(0)?, progress))
    };
    rows.iter().map(written).collect()
}
