//! What a machine's log and a campaign's journal know of what was timed: before a slice the log is told what other sessions timed of its job. What a search
//! times or has from the log the journal is told meanwhile.

use super::journal::{Journal, Lease};
use crate::database::DatabaseError;
use crate::pipeline::MemoryHandle;
use std::collections::BTreeMap;

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
            log.take_over(found.iter().filter_map(|(_, trial)| trial.as_ref()));
            let now = journal.now();
            if !journal.renew(lease, now)? {
                return Ok(false);
            }
        }
    }
}
