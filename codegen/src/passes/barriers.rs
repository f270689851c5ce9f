//! Places the barriers of the threads that compute, from who reads and who writes shared memory.
//!
//! ```text
//! before                       after
//!   CopyWait(1)                  CopyWait(1)
//!   If(…) Copy(s0, next)         Barrier
//!   CopyCommit                   If(…) Copy(s0, next)
//!   Multiply(s0, current)        CopyCommit
//!                                Multiply(s0, current)
//! ```
//!
//! Two accesses to the same bytes, of which one writes, need a barrier between where the first one ends and where the second one begins. What
//! other warps fill has barriers of its own (see [`super::rings`]).
//!
//! Where a barrier is missing it is put in front of the second access, or in front of the outermost loop or branch around it that is not around
//! the first, and all is gone through again; then those go that others made needless. It is always legal: it only adds barriers.
//!
//! Where a group of warps waits for its instructions between what all of them wrote and the instructions that read it, the barrier is put in
//! front of that wait: behind it, each group would wait for the instructions of all.

use super::trace::{self, Around, Event, Memory, Place, What};
use super::{Insertions, insert};
use crate::machine::{Among, Machine, Statement, Sync};
use std::collections::{BTreeMap, BTreeSet};

/// The machine program with all barriers that it needs.
pub(crate) fn barriers(mut machine: Machine) -> Machine {
    let traces = trace::all(&machine);
    let mut needed = BTreeSet::new();
    for events in &traces {
        // Each time one place more, of as many as there are statements.
        while let Some(place) = missing(events, &needed) {
            needed.insert(place);
        }
    }
    // One that was found first may be no longer needed beside one that was found later.
    for place in needed.clone().into_iter().rev() {
        needed.remove(&place);
        if traces.iter().any(|t| missing(t, &needed).is_some()) {
            needed.insert(place);
        }
    }
    let among = match machine.producers.is_empty() {
        true => Among::Block,
        false => Among::Computing,
    };
    let mut insertions = Insertions::default();
    for place in needed {
        insertions.before(place, [Statement::Sync(Sync::Barrier(among))]);
    }
    insert(&mut machine.body, insertions);
    machine
}

/// An access that no barrier follows yet.
struct Access {
    from: u64,
    to: u64,
    writes: bool,
    /// The loops and branches that it ended in; none while it is under way.
    ended: Option<Around>,
    /// Where instructions were first waited for since then, in the same loops and branches.
    wait: Option<Place>,
}

/// Where the first barrier is missing beside those in front of some statements, if one is.
fn missing(events: &[Event], barriers: &BTreeSet<Place>) -> Option<Place> {
    let mut accesses: BTreeMap<usize, Access> = BTreeMap::new();
    for event in events {
        match &event.what {
            What::Statement if !barriers.contains(&event.place) => {}
            // What has ended is seen by all.
            What::Statement | What::Barrier => accesses.retain(|_, a| a.ended.is_none()),
            What::Wait => {
                for access in accesses.values_mut() {
                    if access.ended.as_ref() == Some(&event.around) {
                        access.wait.get_or_insert(event.place);
                    }
                }
            }
            What::End(numbers) => {
                for number in numbers {
                    if let Some(access) = accesses.get_mut(number) {
                        access.ended = Some(event.around.clone());
                    }
                }
            }
            What::Access {
                memory: Memory::Filled { .. },
                ..
            }
            | What::Leave(_) => {}
            What::Access {
                number,
                memory: Memory::Bytes { from, to },
                writes,
                ends,
            } => {
                for old in accesses.values() {
                    let overlap = old.from < *to && *from < old.to;
                    if let (Some(around), true) = (&old.ended, overlap && (old.writes || *writes)) {
                        let outside = event.around.iter().find(|c| !around.contains(c));
                        let wait = old.wait.filter(|_| old.writes && *around == event.around);
                        return Some(wait.or(outside.copied()).unwrap_or(event.place));
                    }
                }
                let access = Access {
                    from: *from,
                    to: *to,
                    writes: *writes,
                    ended: ends.then(|| event.around.clone()),
                    wait: None,
                };
                accesses.insert(*number, access);
            }
        }
    }
    None
}
