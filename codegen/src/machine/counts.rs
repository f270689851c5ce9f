//! What is counted on the way through statements: slots, and groups of what is under way.

use super::{Counter, LoopId, Slot, Statement};
use std::collections::{BTreeMap, VecDeque};

/// The slots that counters name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    current: BTreeMap<Counter, u64>,
    next: BTreeMap<Counter, u64>,
    previous: BTreeMap<LoopId, u64>,
}

impl Slots {
    /// Which slot it is; none where nothing counts it.
    pub(crate) fn number(&self, slot: Slot) -> Option<u64> {
        match slot {
            Slot::At(n) => Some(n),
            Slot::Current(counter) => self.current.get(&counter).copied(),
            Slot::Next(counter) => self.next.get(&counter).copied(),
            Slot::Previous(number) => self.previous.get(&number).copied(),
        }
    }

    /// Sets what a counter stands at.
    pub(crate) fn set(&mut self, counter: Counter, slot: u64) {
        self.current.insert(counter, slot);
    }

    /// Counts, where a statement is about slots; whether it names a counter that is not open.
    pub(crate) fn count(&mut self, statement: &Statement) -> Result<(), Counter> {
        let now = |counter: Counter| self.current.get(&counter).copied().ok_or(counter);
        if let Statement::OpenSlots(counter) = statement {
            self.set(*counter, 0);
        } else if let Statement::NextSlot {
            counter,
            slots,
            ahead,
        } = statement
        {
            let slot = (now(*counter)? + ahead) % slots;
            self.next.insert(*counter, slot);
        } else if let Statement::PreviousSlot { number, slots } = statement {
            let late = Counter {
                number: *number,
                late: true,
            };
            let slot = (now(late)? + slots - 1) % slots;
            self.previous.insert(*number, slot);
        } else if let Statement::AdvanceSlot { counter, slots } = statement {
            let slot = (now(*counter)? + 1) % slots;
            self.set(*counter, slot);
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
