//! What was timed before, by this search or another one.
//!
//! A search asks it and adds to it, and knows nothing of how it is stored.

use super::{KernelName, Trial, TrialKey};
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Trials that are kept. What cannot be kept or found is not: that is for its maker to tell, and no reason for a search to end.
pub trait Memory: Send {
    /// The newest trial of this key.
    fn recall(&mut self, key: &TrialKey) -> Option<Trial>;

    /// The fastest trials of a kernel on GPUs of this name, by their warm times, at most so many, one of each key.
    fn best_of(&mut self, kernel: &KernelName, gpu: &str, most: usize) -> Vec<Trial>;

    /// The newest trials on GPUs of this name, at most so many.
    fn newest(&mut self, gpu: &str, most: usize) -> Vec<Trial>;

    /// Keeps a trial.
    fn keep(&mut self, trial: &Trial);

    /// Keeps several, at once where that is faster.
    fn keep_all(&mut self, trials: &[&Trial]) {
        trials.iter().for_each(|trial| self.keep(trial));
    }
}

/// A memory that a search shares with whoever gave it.
#[derive(Clone)]
pub struct MemoryHandle(Arc<Mutex<dyn Memory>>);

impl MemoryHandle {
    /// Takes a memory.
    pub fn new(memory: impl Memory + 'static) -> Self {
        Self(Arc::new(Mutex::new(memory)))
    }

    /// As [`Memory::recall`].
    pub fn recall(&self, key: &TrialKey) -> Option<Trial> {
        self.with(|memory| memory.recall(key))
    }

    /// As [`Memory::best_of`].
    pub fn best_of(&self, kernel: &KernelName, gpu: &str, most: usize) -> Vec<Trial> {
        self.with(|memory| memory.best_of(kernel, gpu, most))
    }

    /// As [`Memory::newest`].
    pub fn newest(&self, gpu: &str, most: usize) -> Vec<Trial> {
        self.with(|memory| memory.newest(gpu, most))
    }

    /// As [`Memory::keep`].
    pub fn keep(&self, trial: &Trial) {
        self.with(|memory| memory.keep(trial));
    }

    /// Keeps those of which it knows no time.
    pub fn take_over<'a>(&self, trials: impl IntoIterator<Item = &'a Trial>) {
        let mut keys = HashSet::new();
        let trials = trials.into_iter();
        let new = trials.filter(|t| keys.insert(&t.key) && self.recall(&t.key).is_none());
        let new: Vec<&Trial> = new.collect();
        self.with(|memory| memory.keep_all(&new));
    }

    fn with<T>(&self, work: impl FnOnce(&mut dyn Memory) -> T) -> T {
        work(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for MemoryHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryHandle")
    }
}

/// What a search times and has from a memory, as a note of it.
#[derive(Clone, Default)]
pub struct Notes(Arc<Mutex<Noted>>);

#[derive(Default)]
struct Noted {
    keys: HashSet<TrialKey>,
    trials: Vec<Trial>,
}

impl Notes {
    /// The memory, where what is recalled from it and kept in it is noted, each key once.
    pub fn beside(&self, memory: MemoryHandle) -> MemoryHandle {
        let notes = self.clone();
        MemoryHandle::new(NotedMemory { memory, notes })
    }

    /// What was noted since this was asked last.
    pub fn take(&self) -> Vec<Trial> {
        std::mem::take(&mut self.noted().trials)
    }

    fn note(&self, trial: &Trial) {
        let mut noted = self.noted();
        if noted.keys.insert(trial.key.clone()) {
            noted.trials.push(trial.clone());
        }
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct NotedMemory {
    memory: MemoryHandle,
    notes: Notes,
}

impl Memory for NotedMemory {
    fn recall(&mut self, key: &TrialKey) -> Option<Trial> {
        let trial = self.memory.recall(key)?;
        self.notes.note(&trial);
        Some(trial)
    }

    fn best_of(&mut self, kernel: &KernelName, gpu: &str, most: usize) -> Vec<Trial> {
        self.memory.best_of(kernel, gpu, most)
    }

    fn newest(&mut self, gpu: &str, most: usize) -> Vec<Trial> {
        self.memory.newest(gpu, most)
    }

    fn keep(&mut self, trial: &Trial) {
        self.memory.keep(trial);
        self.notes.note(trial);
    }
}
