//! What the machine programs of candidates do under the checker, found on threads of their own while the candidates are verified on a GPU.

use super::{Candidate, give_way};
use crate::machine::{self, MachineEvidence};
use ir::{Reject, Target};
use std::collections::HashMap;
use std::thread::JoinHandle;

/// What the checker found, or why a candidate is none.
type Found = Result<MachineEvidence, Reject>;

/// Names a tile program under a schedule.
pub(super) type Key = blake3::Hash;

/// The key of a candidate.
pub(super) fn key(candidate: &Candidate) -> Key {
    let mut hasher = blake3::Hasher::new();
    for text in [
        candidate.tile.to_string(),
        candidate.schedule.text(&candidate.tile),
    ] {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    hasher.finalize()
}

/// What is known of machine programs, and what is being found.
#[derive(Debug, Default)]
pub(super) struct Machines {
    found: HashMap<Key, Found>,
    looking: HashMap<Key, JoinHandle<Found>>,
}

impl Machines {
    /// Begins to look, unless that was done before. Whoever wants to know waits then; of what nobody asks for the thread runs to its end alone.
    pub(super) fn begin(&mut self, candidate: &Candidate, target: &Target) {
        let key = key(candidate);
        if self.found.contains_key(&key) || self.looking.contains_key(&key) {
            return;
        }
        let (tile, schedule) = (candidate.tile.clone(), candidate.schedule.clone());
        let target = target.clone();
        let thread = std::thread::Builder::new().spawn(move || {
            give_way();
            machine::evidence(&tile, &schedule, &target)
        });
        // Where there is no thread it is found once it is asked for.
        self.looking.extend(thread.ok().map(|thread| (key, thread)));
    }

    /// Whether it would be waited for.
    pub(super) fn is_looking(&self, key: &Key) -> bool {
        let thread = self.looking.get(key);
        thread.is_some_and(|thread| !thread.is_finished())
    }

    /// What the machine programs of a candidate do.
    ///
    /// # Errors
    /// Where one may go wrong.
    pub(super) fn of(&mut self, candidate: &Candidate, target: &Target) -> Found {
        let key = key(candidate);
        if let Some(found) = self.found.get(&key) {
            return found.clone();
        }
        let looked = self.looking.remove(&key).and_then(|t| t.join().ok());
        let found = looked
            .unwrap_or_else(|| machine::evidence(&candidate.tile, &candidate.schedule, target));
        self.found.insert(key, found.clone());
        found
    }
}
