//! What a machine's log and a campaign's journal know of what was timed: before a slice the log is told what other sessions timed of its job, and
//! while it is searched the journal what the search timed or had from the log.

use super::journal::{Journal, Lease};
use crate::database::DatabaseError;
use crate::pipeline::{KernelName, Memory, MemoryHandle, Trial, TrialKey};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

/// Trials that are read at once: a lease is renewed in between.
const MANY: u32 = 500;

/// Up to which trial of each job a worker's log has been told.
#[derive(Debug, Default)]
pub(super) struct Seen(BTreeMap<i64, i64>);

impl Seen {
    /// Tells the log what other sessions timed of the lease's job; false where the lease is somebody else's by now.
    pub(super) fn take_over(
        &mut self,
        journal: &mut Journal,
        lease: &Lease,
        log: &MemoryHandle,
    ) -> Result<bool, DatabaseError> {
        let behind = self.0.entry(lease.job).or_default();
        loop {
            let found = journal.trials_of_others(lease, *behind, MANY)?;
            let Some((last, _)) = found.last() else {
                return Ok(true);
            };
            *behind = *last;
            for trial in found.iter().filter_map(|(_, trial)| trial.as_ref()) {
                if log.recall(&trial.key).is_none() {
                    log.keep(trial);
                }
            }
            let now = journal.now();
            if !journal.renew(lease, now)? {
                return Ok(false);
            }
        }
    }
}

/// What the search of one slice timed or knew.
#[derive(Clone, Default)]
pub(super) struct Notes(Arc<Mutex<Noted>>);

#[derive(Default)]
struct Noted {
    keys: HashSet<TrialKey>,
    untold: Vec<Trial>,
}

impl Notes {
    /// The log, where what is asked of it and added to it is noted.
    pub(super) fn beside(&self, log: MemoryHandle) -> MemoryHandle {
        let notes = self.clone();
        MemoryHandle::new(NotedLog { log, notes })
    }

    fn note(&self, trial: &Trial) {
        let noted = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.keys.insert(trial.key.clone()) {
            noted.untold.push(trial.clone());
        }
    }

    /// Tells the journal what it has not been told yet.
    pub(super) fn tell(&self, journal: &mut Journal, lease: &Lease) -> Result<(), DatabaseError> {
        let untold = {
            let noted = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut noted.untold)
        };
        journal.add_trials(lease, &untold)
    }
}

struct NotedLog {
    log: MemoryHandle,
    notes: Notes,
}

impl Memory for NotedLog {
    fn recall(&mut self, key: &TrialKey) -> Option<Trial> {
        let trial = self.log.recall(key)?;
        self.notes.note(&trial);
        Some(trial)
    }

    fn best_of(&mut self, kernel: &KernelName, gpu: &str, most: usize) -> Vec<Trial> {
        self.log.best_of(kernel, gpu, most)
    }

    fn newest(&mut self, gpu: &str, most: usize) -> Vec<Trial> {
        self.log.newest(gpu, most)
    }

    fn keep(&mut self, trial: &Trial) {
        self.log.keep(trial);
        self.notes.note(trial);
    }
}
