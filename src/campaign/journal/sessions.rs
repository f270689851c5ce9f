//! Who works on a campaign, and since when: how the lost are told from the living.
//!
//! The file of a journal has one session at a time, which a lock beside the file says. A server has many: each has a mark there, which goes with its connection.

use super::{Journal, LEASE, Place, lost, offers};
use crate::database::DatabaseError;
use crate::database::server::{Mark, is_free};
use crate::database::sql::{All, SqlError, values_of};

/// A time at which the campaign ran on a machine: from one `run`, `resume` or `join` to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session(pub i64);

/// A session at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionView {
    /// Its number.
    pub session: Session,
    /// The machine.
    pub host: String,
    /// Its workers, or the processes in which it compiles.
    pub workers: u32,
    /// The name and version of its compiler, where it only compiles for others.
    pub compiler: Option<String>,
}

/// How much later than its lease ran out the slice of another machine is taken away: its own watches first.
const LATE: f64 = 5.0;

impl Journal {
    /// Begins a session. What was leased before by whoever is no more is given back: that he ended is no fault of the slice's.
    ///
    /// # Errors
    /// The database's.
    pub fn begin(&mut self, workers: u32, now: f64) -> Result<Session, DatabaseError> {
        let session = self.write(|all| {
            all.execute("UPDATE campaign SET stopping = 0", &[])?;
            enter(all, workers, None, now)
        })?;
        self.keep(session)?;
        Ok(session)
    }

    /// Begins a session beside those that there are; none where somebody asked the campaign to end.
    ///
    /// # Errors
    /// The database's.
    pub fn join(&mut self, workers: u32, now: f64) -> Result<Option<Session>, DatabaseError> {
        self.join_as(workers, None, now)
    }

    /// The same of one that only compiles, with this compiler.
    pub(super) fn join_as(
        &mut self,
        workers: u32,
        compiler: Option<&str>,
        now: f64,
    ) -> Result<Option<Session>, DatabaseError> {
        let session = self.write(|all| {
            let stopping: bool = all.one("SELECT stopping FROM campaign", &[])?;
            match stopping {
                true => Ok(None),
                false => enter(all, workers, compiler, now).map(Some),
            }
        })?;
        session.map_or(Ok(()), |session| self.keep(session))?;
        Ok(session)
    }

    /// Others see that the session lives.
    fn keep(&mut self, session: Session) -> Result<(), DatabaseError> {
        match &mut self.0 {
            Place::File(..) => Ok(()),
            Place::Server(server) => server.keep(Mark(session.0)),
        }
    }

    /// The session goes on: so long it has taken.
    ///
    /// # Errors
    /// The database's.
    pub fn beat(&mut self, session: Session, now: f64) -> Result<(), DatabaseError> {
        self.keep(session)?;
        self.write(|all| {
            all.execute(
                "UPDATE session SET seen = CASE WHEN seen < ?2 THEN ?2 ELSE seen END, ended = 0 WHERE id = ?1",
                values_of![session.0, now],
            )
        })?;
        Ok(())
    }

    /// The session ended.
    ///
    /// # Errors
    /// The database's.
    pub fn finish(&mut self, session: Session, now: f64) -> Result<(), DatabaseError> {
        self.beat(session, now)?;
        self.write(|all| {
            let sql = "UPDATE session SET ended = 1 WHERE id = ?1";
            all.execute(sql, values_of![session.0])
        })?;
        Ok(())
    }

    /// What other machines had that are lost is given back. A file has no others.
    ///
    /// # Errors
    /// The database's.
    pub fn sweep(&mut self, own: Session, now: f64) -> Result<(), DatabaseError> {
        match self.is_shared() {
            true => self.write(|all| sweep(all, Some(own), now)),
            false => Ok(()),
        }
    }

    /// Asks whoever runs the campaign to end.
    ///
    /// # Errors
    /// The database's.
    pub fn stop(&mut self) -> Result<(), DatabaseError> {
        self.write(|all| all.execute("UPDATE campaign SET stopping = 1", &[]))?;
        Ok(())
    }

    /// Asks the workers of one session to end.
    ///
    /// # Errors
    /// The database's.
    pub fn leave(&mut self, session: Session) -> Result<(), DatabaseError> {
        self.write(|all| {
            let sql = "UPDATE session SET stopping = 1 WHERE id = ?1";
            all.execute(sql, values_of![session.0])
        })?;
        Ok(())
    }

    /// Whether somebody asked for that.
    ///
    /// # Errors
    /// The database's.
    pub fn is_stopping(&mut self, session: Session) -> Result<bool, DatabaseError> {
        self.read(|all| is_stopping(all, session))
    }

    /// The sessions that live. Of a file nobody knows here: the lock beside it says.
    ///
    /// # Errors
    /// The database's.
    pub fn running(&mut self) -> Result<Vec<SessionView>, DatabaseError> {
        if !self.is_shared() {
            return Ok(Vec::new());
        }
        self.write(|all| {
            let mut running = Vec::new();
            for session in open(all)? {
                if !is_free(all, Mark(session.session.0))? {
                    running.push(session);
                }
            }
            Ok(running)
        })
    }
}

pub(super) fn is_stopping(all: &mut All<'_, '_>, session: Session) -> Result<bool, SqlError> {
    let stopping: i64 = all.one(
        "SELECT (SELECT stopping FROM campaign) + coalesce((SELECT stopping FROM session WHERE id = ?1), 0)",
        values_of![session.0],
    )?;
    Ok(stopping > 0)
}

/// A session that begins.
fn enter(
    all: &mut All<'_, '_>,
    workers: u32,
    compiler: Option<&str>,
    now: f64,
) -> Result<Session, SqlError> {
    if all.is_shared() {
        sweep(all, None, now)?;
    } else {
        give_back(all, "1 = 1")?;
        all.execute("UPDATE session SET ended = 1", &[])?;
    }
    let session = all.one(
        "INSERT INTO session (pid, begun, seen, workers, host, compiler) VALUES (?1, ?2, ?2, ?3, ?4, ?5) RETURNING id",
        values_of![std::process::id(), now, workers, host(), compiler.map(str::to_owned)],
    )?;
    Ok(Session(session))
}

/// What those had is given back that are no more: at once where the server says so, and where a machine is silent when its leases ran out. A session
/// that begins has no mark for a moment, and nothing to lose either: it says again that it is there.
fn sweep(all: &mut All<'_, '_>, own: Option<Session>, now: f64) -> Result<(), SqlError> {
    for other in open(all)? {
        let session = other.session;
        if Some(session) == own {
            continue;
        }
        if is_free(all, Mark(session.0))? {
            give_back(all, &format!("session = {}", session.0))?;
            offers::free(all, session)?;
            let sql = "UPDATE session SET ended = 1 WHERE id = ?1";
            all.execute(sql, values_of![session.0])?;
            continue;
        }
        let silent = all.query_free(
            "SELECT id FROM slice WHERE state = 'leased' AND session = ?1 AND lease < ?2",
            "slice",
            values_of![session.0, now - LATE],
        )?;
        let reason = format!("{}: no word for {:?}", other.host, LEASE);
        for slice in &silent {
            lost(all, slice.get(0)?, &reason)?;
        }
    }
    Ok(())
}

fn give_back(all: &mut All<'_, '_>, which: &str) -> Result<(), SqlError> {
    let sql = "UPDATE slice SET state = 'waiting', attempts = attempts - 1 WHERE state = 'leased'";
    all.execute(&format!("{sql} AND {which}"), &[])?;
    offers::clear_all(all)
}

/// The sessions that did not say that they ended.
fn open(all: &mut All<'_, '_>) -> Result<Vec<SessionView>, SqlError> {
    let rows = all.query(
        "SELECT id, host, workers, compiler FROM session WHERE ended = 0 ORDER BY id",
        &[],
    )?;
    let view = |row: &crate::database::sql::Row| {
        Ok(SessionView {
            session: Session(row.get(0)?),
            host: row.get(1)?,
            workers: row.get(2)?,
            compiler: row.get(3)?,
        })
    };
    rows.iter().map(view).collect()
}

/// This machine's name.
fn host() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}
