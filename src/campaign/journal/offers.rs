//! Programs that a search has no process for, and machines that only compile: who has which program, and what came of it.
//!
//! An offer belongs to a slice, and goes with it. Whoever takes one says from time to time that he still has it: who is silent is not waited for.

use super::{ALONE, Journal, LEASE, Lease, Place, Session, sessions};
use crate::database::DatabaseError;
use crate::database::sql::{All, SqlError, values_of};

/// A program that is offered.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// The hash of all that its compilation depends on.
    pub key: String,
    /// The compiler's name and version.
    pub compiler: String,
    /// What it is compiled for.
    pub arch: String,
    /// The text.
    pub source: String,
}

/// A program that somebody took.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// The number of its offer.
    pub offer: i64,
    /// As [`Offer::key`].
    pub key: String,
    /// As [`Offer::arch`].
    pub arch: String,
    /// As [`Offer::source`].
    pub source: String,
}

/// What became of an offer.
#[derive(Clone, Debug, PartialEq)]
pub enum Fate {
    /// Nobody has taken it.
    Open,
    /// Somebody has it.
    Taken,
    /// This was answered, and the offer is gone.
    Answered(Vec<u8>),
    /// Who had it could not compile it, or is silent, and the offer is gone.
    Failed,
}

/// Who compiles for others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Helpers {
    /// Processes with the same compiler, over all machines.
    pub processes: u32,
    /// Workers that search.
    pub searching: u32,
    /// Machines with another compiler, and that.
    pub others: Vec<(String, String)>,
}

impl Journal {
    /// Who could compile for those that search, with this compiler. A session that began on this very connection is not among them.
    ///
    /// # Errors
    /// The database's.
    pub fn helpers(&mut self, compiler: &str) -> Result<Helpers, DatabaseError> {
        let mut helpers = Helpers::default();
        for session in self.running()? {
            match session.compiler {
                None => helpers.searching += session.workers,
                Some(own) if own == compiler => helpers.processes += session.workers,
                Some(other) => helpers.others.push((session.host, other)),
            }
        }
        Ok(helpers)
    }

    /// Offers programs; their numbers, or nothing where the lease is somebody else's by now.
    ///
    /// # Errors
    /// The database's.
    pub fn offer(
        &mut self,
        lease: &Lease,
        offers: &[Offer],
    ) -> Result<Option<Vec<i64>>, DatabaseError> {
        self.write(|all| {
            if !lease.is_held(all)? {
                return Ok(None);
            }
            let mut numbers = Vec::with_capacity(offers.len());
            for offer in offers {
                all.execute(
                    "INSERT INTO offer (slice, key, compiler, arch, source) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING",
                    values_of![
                        lease.slice,
                        &offer.key,
                        &offer.compiler,
                        &offer.arch,
                        &offer.source
                    ],
                )?;
                let own = "SELECT id FROM offer WHERE slice = ?1 AND key = ?2";
                numbers.push(all.one(own, values_of![lease.slice, &offer.key])?);
            }
            Ok(Some(numbers))
        })
    }

    /// Removes those of these offers that nobody has taken; gives them.
    ///
    /// # Errors
    /// The database's.
    pub fn take_back(&mut self, offers: &[i64]) -> Result<Vec<i64>, DatabaseError> {
        self.write(|all| {
            let mut back = Vec::new();
            for offer in offers {
                let sql = "DELETE FROM offer WHERE id = ?1 AND state = 'open'";
                if all.execute(sql, values_of![*offer])? > 0 {
                    back.push(*offer);
                }
            }
            Ok(back)
        })
    }

    /// Removes offers, whoever has them.
    ///
    /// # Errors
    /// The database's.
    pub fn withdraw(&mut self, offers: &[i64]) -> Result<(), DatabaseError> {
        self.write(|all| {
            let sql = "DELETE FROM offer WHERE id = ?1";
            (offers.iter()).try_for_each(|offer| all.execute(sql, values_of![*offer]).map(drop))
        })
    }

    /// What became of a slice's offers. One that is not among them is gone.
    ///
    /// # Errors
    /// The database's.
    pub fn fates(&mut self, lease: &Lease, now: f64) -> Result<Vec<(i64, Fate)>, DatabaseError> {
        self.write(|all| {
            let rows = all.query_locked(
                "SELECT id, state, lease, answer FROM offer WHERE slice = ?1",
                values_of![lease.slice],
            )?;
            let mut fates = Vec::with_capacity(rows.len());
            for row in &rows {
                let (id, state, until): (i64, String, f64) =
                    (row.get(0)?, row.get(1)?, row.get(2)?);
                let fate = match state.as_str() {
                    "open" => Fate::Open,
                    "taken" if until >= now => Fate::Taken,
                    "done" => Fate::Answered(row.get(3)?),
                    _ => Fate::Failed,
                };
                if matches!(fate, Fate::Answered(_) | Fate::Failed) {
                    all.execute("DELETE FROM offer WHERE id = ?1", values_of![id])?;
                }
                fates.push((id, fate));
            }
            Ok(fates)
        })
    }

    /// Begins a session that only compiles, in so many processes; none where somebody asked the campaign to end.
    ///
    /// # Errors
    /// The database's, and that the journal is a file: what is in one is one machine's.
    pub fn assist(
        &mut self,
        compiler: &str,
        processes: u32,
        now: f64,
    ) -> Result<Option<Session>, DatabaseError> {
        match &self.0 {
            Place::File(..) => Err(self.told(ALONE.to_owned())),
            Place::Server(_) => self.join_as(processes, Some(compiler), now),
        }
    }

    /// Takes at most so many programs that wait for this compiler, those first that wait longest.
    ///
    /// # Errors
    /// The database's.
    pub fn take(
        &mut self,
        session: Session,
        compiler: &str,
        most: usize,
        now: f64,
    ) -> Result<Vec<Taken>, DatabaseError> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        self.write(|all| {
            // Who leaves takes nothing more.
            if most == 0 || sessions::is_stopping(all, session)? {
                return Ok(Vec::new());
            }
            let rows = all.query_free(
                "SELECT id, key, arch, source FROM offer WHERE state = 'open' AND compiler = ?1 ORDER BY id LIMIT ?2",
                "offer",
                values_of![compiler, most],
            )?;
            let mut taken = Vec::with_capacity(rows.len());
            for row in &rows {
                let own = Taken {
                    offer: row.get(0)?,
                    key: row.get(1)?,
                    arch: row.get(2)?,
                    source: row.get(3)?,
                };
                all.execute(
                    "UPDATE offer SET state = 'taken', taker = ?2, lease = ?3 WHERE id = ?1",
                    values_of![own.offer, session.0, now + LEASE.as_secs_f64()],
                )?;
                taken.push(own);
            }
            Ok(taken)
        })
    }

    /// A session still has these.
    ///
    /// # Errors
    /// The database's.
    pub fn renew_taken(
        &mut self,
        session: Session,
        offers: &[i64],
        now: f64,
    ) -> Result<(), DatabaseError> {
        self.set_taken(
            session,
            offers,
            &format!("lease = {}", now + LEASE.as_secs_f64()),
        )
    }

    /// A session gives these back, for others.
    ///
    /// # Errors
    /// The database's.
    pub fn release(&mut self, session: Session, offers: &[i64]) -> Result<(), DatabaseError> {
        self.set_taken(session, offers, "state = 'open', taker = NULL")
    }

    /// A session could not compile this, for a reason that is not the text's.
    ///
    /// # Errors
    /// The database's.
    pub fn fail(&mut self, session: Session, offer: i64) -> Result<(), DatabaseError> {
        self.set_taken(session, &[offer], "state = 'failed'")
    }

    fn set_taken(
        &mut self,
        session: Session,
        offers: &[i64],
        what: &str,
    ) -> Result<(), DatabaseError> {
        let sql =
            format!("UPDATE offer SET {what} WHERE id = ?1 AND taker = ?2 AND state = 'taken'");
        self.write(|all| {
            (offers.iter())
                .try_for_each(|offer| all.execute(&sql, values_of![*offer, session.0]).map(drop))
        })
    }

    /// What a session made of a program that it took. It is not taken from who does not have the program any more.
    ///
    /// # Errors
    /// The database's.
    pub fn answer(
        &mut self,
        session: Session,
        offer: i64,
        answer: Vec<u8>,
    ) -> Result<(), DatabaseError> {
        self.write(|all| {
            all.execute(
                "UPDATE offer SET state = 'done', answer = ?3 WHERE id = ?1 AND taker = ?2 AND state = 'taken'",
                values_of![offer, session.0, answer.clone()],
            )
        })?;
        Ok(())
    }
}

/// Offers of a slice that is nobody's any more are none.
pub(super) fn clear(all: &mut All<'_, '_>, slice: i64) -> Result<(), SqlError> {
    all.execute("DELETE FROM offer WHERE slice = ?1", values_of![slice])?;
    Ok(())
}

/// The same of all such slices.
pub(super) fn clear_all(all: &mut All<'_, '_>) -> Result<(), SqlError> {
    let leased = "SELECT id FROM slice WHERE state = 'leased'";
    all.execute(
        &format!("DELETE FROM offer WHERE slice NOT IN ({leased})"),
        &[],
    )?;
    Ok(())
}

/// What a session had that is no more is there for others.
pub(super) fn free(all: &mut All<'_, '_>, session: Session) -> Result<(), SqlError> {
    all.execute(
        "UPDATE offer SET state = 'open', taker = NULL WHERE state = 'taken' AND taker = ?1",
        values_of![session.0],
    )?;
    Ok(())
}
