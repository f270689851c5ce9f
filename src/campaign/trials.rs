//! What a machine's log and a campaign's journal know of what was timed: before a slice the log is told what other sessions timed of its job. What a search
//! times or has from the log the journal is told meanwhile.

use super::CampaignError;
use super::journal::{Journal, Lease};
use crate::pipeline::{Notes, Trial, TrialKey};
use crate::{MemoryHandle, store};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

/// Trials that are read from the journal, or told to it, at once.
const MANY: u32 = 50;
/// How often a lease is renewed meanwhile.
const RENEWED: Duration = Duration::from_secs(2);
/// Numbers of trials are given before they can be seen: so far back it is looked for some that were late.
const LATE: i64 = 200;

/// What of a job a worker's log was told by the journal, or the journal by the worker.
#[derive(Debug, Default)]
struct Known {
    /// The number of the last trial that was read.
    last: i64,
    keys: HashSet<TrialKey>,
}

/// The same of each job.
#[derive(Debug, Default)]
pub(super) struct Seen(BTreeMap<i64, Known>);

impl Seen {
    /// Tells the log what other sessions timed of the lease's job, unless the campaign should end; false where the lease is somebody else's by now.
    pub(super) fn take_over(
        &mut self,
        journal: &mut Journal,
        lease: &Lease,
        log: &MemoryHandle,
    ) -> Result<bool, CampaignError> {
        let known = self.0.entry(lease.job).or_default();
        let mut renewed = Instant::now();
        let mut behind = known.last.saturating_sub(LATE);
        while !journal.is_stopping(lease.session)? {
            let found = journal.trials_of_others(lease, behind, MANY)?;
            let Some((last, _)) = found.last() else {
                break;
            };
            behind = *last;
            let found = found.iter().filter_map(|(_, trial)| trial.as_ref());
            log.take_over(found.filter(|trial| known.keys.insert(trial.key.clone())));
            known.last = known.last.max(behind);
            if renewed.elapsed() > RENEWED {
                renewed = Instant::now();
                let now = journal.now();
                if !journal.renew(lease, now)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// What a slice timed or knew.
#[derive(Default)]
pub(super) struct Told {
    pub(super) notes: Notes,
    trials: Vec<Trial>,
}

impl Told {
    /// Tells the journal what was noted since and it does not know, a few at a time: false where the lease is somebody else's by now.
    pub(super) fn tell(
        &mut self,
        journal: &mut Journal,
        lease: &Lease,
        seen: &mut Seen,
    ) -> Result<bool, CampaignError> {
        let known = seen.0.entry(lease.job).or_default();
        let noted = self.notes.take();
        let new = noted.iter().filter(|t| known.keys.insert(t.key.clone()));
        let new: Vec<Trial> = new.cloned().collect();
        self.trials.extend(noted);
        let mut is_held = true;
        for some in new.chunks(MANY as usize) {
            journal.add_trials(lease, some)?;
            let now = journal.now();
            is_held = journal.renew(lease, now)?;
        }
        Ok(is_held)
    }

    /// All of it.
    pub(super) fn trials(&self) -> &[Trial] {
        &self.trials
    }
}

/// Tells the log what a database of artifacts knows of the program of this hash.
pub(super) fn take_over_from(
    path: &Path,
    program_hash: &str,
    log: &MemoryHandle,
) -> Result<(), store::StoreError> {
    log.take_over(&store::Store::open(path)?.trials(program_hash)?);
    Ok(())
}
