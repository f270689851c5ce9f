//! What is counted on the way through statements: iterations, stages, and groups of what is under way.

use super::{At, Condition, Counter, LoopId, Stage, Statement};
use std::collections::{BTreeMap, VecDeque};

/// Where loops are, each of which has a given number of iterations.
#[derive(Clone, Debug)]
pub(crate) struct Iterations<'a> {
    counts: &'a BTreeMap<LoopId, u64>,
    now: BTreeMap<LoopId, u64>,
}

impl<'a> Iterations<'a> {
    pub(crate) fn new(counts: &'a BTreeMap<LoopId, u64>) -> Self {
        Self {
            counts,
            now: BTreeMap::new(),
        }
    }

    /// How many iterations a loop has.
    pub(crate) fn count(&self, number: LoopId) -> u64 {
        self.counts.get(&number).copied().unwrap_or_default()
    }

    /// An iteration begins.
    pub(crate) fn begin(&mut self, number: LoopId, iteration: u64) {
        self.now.insert(number, iteration);
    }

    fn at(&self, at: At) -> u64 {
        let now = |n: LoopId| self.now.get(&n).copied().unwrap_or_default();
        match at {
            At::First(_) => 0,
            At::FirstAnd(_, more) => more,
            At::Now(n) => now(n),
            At::NowAnd(n, more) => now(n) + more,
        }
    }

    /// Whether a condition holds; none where it is none about iterations.
    pub(crate) fn holds(&self, condition: Condition) -> Option<bool> {
        match condition {
            Condition::Exists(at) => Some(self.at(at) < self.count(at.number())),
            Condition::NotFirst(n) => Some(self.at(At::Now(n)) > 0),
            Condition::NotEmpty(n) => Some(self.count(n) > 0),
            Condition::Group(_) | Condition::Flag(_) | Condition::Lane0 | Condition::FirstBlock => {
                None
            }
        }
    }
}

/// The stages that counters name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stages {
    current: BTreeMap<Counter, u64>,
    next: BTreeMap<Counter, u64>,
    previous: BTreeMap<LoopId, u64>,
}

impl Stages {
    /// Which stage it is; none where nothing counts it.
    pub(crate) fn number(&self, stage: Stage) -> Option<u64> {
        match stage {
            Stage::At(n) => Some(n),
            Stage::Current(counter) => self.current.get(&counter).copied(),
            Stage::Next(counter) => self.next.get(&counter).copied(),
            Stage::Previous(number) => self.previous.get(&number).copied(),
        }
    }

    /// Sets what a counter stands at.
    pub(crate) fn set(&mut self, counter: Counter, stage: u64) {
        self.current.insert(counter, stage);
    }

    /// Counts, where a statement is about stages; whether it names a counter that is not open.
    pub(crate) fn count(&mut self, statement: &Statement) -> Result<(), Counter> {
        let now = |counter: Counter| self.current.get(&counter).copied().ok_or(counter);
        if let Statement::OpenStages(counter) = statement {
            self.set(*counter, 0);
        } else if let Statement::NextStage {
            counter,
            stages,
            ahead,
        } = statement
        {
            let stage = (now(*counter)? + ahead) % stages;
            self.next.insert(*counter, stage);
        } else if let Statement::PreviousStage { number, stages } = statement {
            let delayed = Counter::copied(*number, true);
            let stage = (now(delayed)? + stages - 1) % stages;
            self.previous.insert(*number, stage);
        } else if let Statement::AdvanceStage { counter, stages } = statement {
            let stage = (now(*counter)? + 1) % stages;
            self.set(*counter, stage);
        }
        Ok(())
    }
}

/// Groups of what is under way: those that are closed, the oldest first, and the one that is not.
#[derive(Clone, Debug)]
pub(crate) struct Groups<T> {
    closed: VecDeque<Vec<T>>,
    open: Vec<T>,
}

impl<T> Default for Groups<T> {
    fn default() -> Self {
        Self {
            closed: VecDeque::new(),
            open: Vec::new(),
        }
    }
}

impl<T> Groups<T> {
    /// Something begins.
    pub(crate) fn begin(&mut self, one: T) {
        self.open.push(one);
    }

    /// What began since the last group is a group.
    pub(crate) fn close(&mut self) {
        let group = std::mem::take(&mut self.open);
        self.closed.push_back(group);
    }

    /// What ends where at most so many closed groups stay under way.
    pub(crate) fn landed(&mut self, stay: u64) -> Vec<T> {
        let count = self.closed.len().saturating_sub(stay as usize);
        self.closed.drain(..count).flatten().collect()
    }

    /// Everything under way.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.closed.iter().flatten().chain(&self.open)
    }
}
