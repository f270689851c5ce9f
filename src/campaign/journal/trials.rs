//! What the slices of a job timed, for whoever has its next one.

use super::{Journal, Lease};
use crate::database::DatabaseError;
use crate::database::sql::values_of;
use crate::database::trials::{Stored, trial};
use crate::pipeline::Trial;

impl Journal {
    /// Adds what a slice timed. What the job has of the same key stays: a trial counts once. That the lease may be somebody else's by now is no matter:
    /// it was timed.
    ///
    /// # Errors
    /// The database's.
    pub fn add_trials(&mut self, lease: &Lease, trials: &[Trial]) -> Result<(), DatabaseError> {
        if trials.is_empty() {
            return Ok(());
        }
        self.write(|all| {
            for (trial, stored) in trials.iter().zip(Stored::put(all, trials)?) {
                all.execute(
                    "INSERT INTO trial (job, slice, session, key, tile, body) VALUES (?1, ?2, ?3, ?4, (SELECT id FROM content WHERE hash = ?5), ?6)
                     ON CONFLICT DO NOTHING",
                    values_of![
                        lease.job,
                        lease.slice,
                        lease.session.0,
                        trial.key.as_str(),
                        stored.tile,
                        stored.body
                    ],
                )?;
            }
            Ok(())
        })
    }

    /// What other sessions timed of a lease's job, behind the trial with this number, with their numbers; at most so many, the oldest first. What another
    /// version wrote in a way that cannot be read is none.
    ///
    /// # Errors
    /// The database's.
    pub fn trials_of_others(
        &mut self,
        lease: &Lease,
        behind: i64,
        most: u32,
    ) -> Result<Vec<(i64, Option<Trial>)>, DatabaseError> {
        self.read(|all| {
            let rows = all.query(
                "SELECT trial.id, body, bytes FROM trial JOIN content ON content.id = trial.tile
                 WHERE job = ?1 AND session <> ?2 AND trial.id > ?3 ORDER BY trial.id LIMIT ?4",
                values_of![lease.job, lease.session.0, behind, most],
            )?;
            let rows = rows.iter();
            rows.map(|row| Ok((row.get(0)?, trial(row, 1)?))).collect()
        })
    }
}
