//! Databases of ours: how one is made and opened, and whether it is one.
//!
//! Each is one SQLite file, which many processes read and write at once; the journal of a campaign may be on a server instead. What they hold is known where
//! their `Kind` is.
//!
//! | module | what it decides |
//! |---|---|
//! | `sql` | what one text of SQL means to a file and to a server |
//! | [`server`] | how a database on a server is found, and found again |
//! | `contents` | how files are kept by their hashes |

pub(crate) mod contents;
pub mod server;
pub(crate) mod sql;
pub(crate) mod trials;

use crate::files;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};
use rustix::fs::{Access, access};
use sql::{All, SqlError};
use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// What a database holds.
pub(crate) struct Kind {
    /// What it is called, in one word.
    pub(crate) name: &'static str,
    /// What it is, with an article.
    pub(crate) full: &'static str,
    /// Tells the file from other databases.
    pub(crate) application: i64,
    /// Of the schema.
    pub(crate) version: i64,
    /// What makes its tables.
    pub(crate) schema: fn() -> String,
    /// What makes one of version 1 one of version 2, and so on.
    pub(crate) upgrades: &'static [fn() -> String],
}

/// Why a database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// Its file or a folder above it cannot be used.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// There is something else in its place, which stays as it is.
    #[error("{}: expected {expected}, found another file; it is left as it is", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What was expected.
        expected: &'static str,
    },
    /// It was written by a newer version of this program.
    #[error(
        "{}: expected a {name} of version {known} at most, found version {found}, of a newer tilewright; it is left as it is",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// What it is.
        name: &'static str,
        /// Its version.
        found: i64,
        /// The newest that is known.
        known: i64,
    },
    /// Its content is not what was written.
    #[error(
        "{}: the {name} is damaged ({reason}); move it away for a new one, `sqlite3 FILE .recover` reads what is left of it",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What it is.
        name: &'static str,
        /// SQLite's reason.
        reason: String,
    },
    /// A server, or what is between here and there, could not do something.
    #[error("{name}: {reason}")]
    Server {
        /// The server and the database, without a password.
        name: String,
        /// Its reason.
        reason: String,
    },
    /// SQLite could not do something.
    #[error("{}: {reason}", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// SQLite's reason.
        reason: String,
    },
}

/// How long another process may keep the log before whoever waits for it gives up. Writing a row takes less than a millisecond.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often whoever waits asks again where SQLite itself does not wait.
const AGAIN: Duration = Duration::from_millis(5);

/// Makes the file, empty, and the folders above it, where there is none: nobody else may read or write them.
pub(crate) fn make(path: &Path) -> Result<(), DatabaseError> {
    let named = |path: &Path, error| DatabaseError::Io {
        path: path.to_path_buf(),
        error,
    };
    // A file that is there is not opened: when it is closed, the system forgets all locks that this process has on it.
    if path.symlink_metadata().is_ok() {
        return Ok(());
    }
    if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
        let mut folders = DirBuilder::new();
        let made = folders.recursive(true).mode(0o700).create(folder);
        made.map_err(|e| named(folder, e))?;
    }
    let mut file = OpenOptions::new();
    match file.write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(named(path, e)),
    }
}

/// A way to open a database that is there.
pub(crate) type Connect = fn(&Path, &Kind) -> Result<Connection, DatabaseError>;

/// Refuses what is no file.
fn regular(path: &Path) -> Result<(), DatabaseError> {
    let regular = std::fs::metadata(path).and_then(|found| files::regular(&found));
    regular.map_err(|error| DatabaseError::Io {
        path: path.to_path_buf(),
        error,
    })
}

/// Opens the file, which is there, for somebody who only reads: what it holds stays as it is. One of an older version, or that this user may not
/// write to, is read into memory whole, as it is at this moment.
pub(crate) fn connect_to_read(path: &Path, kind: &Kind) -> Result<Connection, DatabaseError> {
    let may_write = |path: &Path| access(path, Access::WRITE_OK).is_ok();
    let folder = path.parent().filter(|f| !f.as_os_str().is_empty());
    let own = may_write(path) && may_write(folder.unwrap_or(Path::new(".")));
    connect_to_look(path, kind, own)
}

/// The same where it is known whether this user may write to it.
pub(crate) fn connect_to_look(
    path: &Path,
    kind: &Kind,
    own: bool,
) -> Result<Connection, DatabaseError> {
    regular(path)?;
    let since = Instant::now();
    loop {
        let before = state(path);
        let found = peek(path).and_then(|original| {
            let identity = identity(&original, kind)?;
            let copy = match (&identity, own) {
                (Identity::Own, false) | (Identity::Older, _) => Some(copied(&original, kind)?),
                (Identity::Own, true) | (Identity::Foreign | Identity::Newer(_), _) => None,
            };
            Ok((identity, copy))
        });
        // Whoever writes to it meanwhile is not seen by whoever takes it for still.
        let again = before != state(path) || found.as_ref().is_err_and(is_busy);
        if again && since.elapsed() < PATIENCE {
            std::thread::sleep(AGAIN);
            continue;
        }
        return match found.map_err(|e| kind.error(path, e))? {
            (_, Some(copy)) => Ok(copy),
            (Identity::Foreign, None) => Err(kind.foreign(path)),
            (Identity::Newer(found), None) => Err(kind.newer(path, found)),
            (Identity::Own | Identity::Older, None) => connect(path, kind),
        };
    }
}

/// Whether somebody may be writing, and what the file looks like.
fn state(path: &Path) -> (bool, Option<(u64, SystemTime)>) {
    let found = std::fs::metadata(path).ok();
    let seen = found.and_then(|found| Some((found.len(), found.modified().ok()?)));
    (is_still(path), seen)
}

/// Whether all of a database is in its file: nothing is written ahead, and nothing is to be rolled back.
fn is_still(path: &Path) -> bool {
    ["-wal", "-journal"].iter().all(|end| {
        let mut name = path.as_os_str().to_os_string();
        name.push(end);
        !Path::new(&name).exists()
    })
}

/// A connection that writes nothing, and where nobody else has the database open makes no files beside it.
fn peek(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let database = match is_still(path) {
        true => {
            let uri = format!("file:{}?immutable=1", escaped(path));
            Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI)?
        }
        false => Connection::open_with_flags(path, flags)?,
    };
    database.busy_timeout(PATIENCE)?;
    Ok(database)
}

/// All of a database, in memory and of the newest version.
fn copied(original: &Connection, kind: &Kind) -> rusqlite::Result<Connection> {
    let mut copy = Connection::open_in_memory()?;
    // In one step: nobody writes between two.
    let done = Backup::new(original, &mut copy)?.step(-1)?;
    if done != StepResult::Done {
        let busy = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
        return Err(rusqlite::Error::SqliteFailure(busy, None));
    }
    prepare(&mut copy, kind)?;
    Ok(copy)
}

/// Opens the file, which is there and has its tables: an empty one is left as it is.
pub(crate) fn connect_to_made(path: &Path, kind: &Kind) -> Result<Connection, DatabaseError> {
    let length = std::fs::metadata(path).map(|found| found.len());
    match length {
        Ok(0) => Err(kind.foreign(path)),
        Ok(_) | Err(_) => connect(path, kind),
    }
}

/// A path in a URI. With two slashes it would begin with a host.
fn escaped(path: &Path) -> String {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let bytes = whole.as_os_str().as_bytes();
    let from = bytes.iter().take_while(|b| **b == b'/').count();
    let bytes = bytes[from.saturating_sub(1)..].iter();
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"/-_.".contains(b);
    bytes
        .map(|b| match plain(b) {
            true => char::from(*b).to_string(),
            false => format!("%{b:02X}"),
        })
        .collect()
}

/// Opens the file, which is there, and gives it its tables where it is empty.
pub(crate) fn connect(path: &Path, kind: &Kind) -> Result<Connection, DatabaseError> {
    regular(path)?;
    // The files beside it are made with its permissions.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags(path, flags);
    let mut database = opened.map_err(|e| kind.error(path, e))?;
    let since = Instant::now();
    let identity = loop {
        match prepare(&mut database, kind) {
            // Of two that make a new file a database at the same time SQLite refuses one at once, lest both wait for ever.
            Err(e) if is_busy(&e) && since.elapsed() < PATIENCE => std::thread::sleep(AGAIN),
            made => break made.map_err(|e| kind.error(path, e))?,
        }
    };
    match identity {
        Identity::Own | Identity::Older => Ok(database),
        Identity::Foreign => Err(kind.foreign(path)),
        Identity::Newer(found) => Err(kind.newer(path, found)),
    }
}

/// Does all of some work in a database, or nothing.
pub(crate) fn write<T>(
    database: &mut Connection,
    names: (&Path, &Kind),
    work: impl FnMut(&mut All<'_, '_>) -> Result<T, SqlError>,
) -> Result<T, DatabaseError> {
    let all = database.transaction_with_behavior(TransactionBehavior::Immediate);
    step(all, names, work)
}

/// Reads all of something at one moment.
pub(crate) fn read<T>(
    database: &Connection,
    names: (&Path, &Kind),
    work: impl FnMut(&mut All<'_, '_>) -> Result<T, SqlError>,
) -> Result<T, DatabaseError> {
    // Nobody here begins one within another.
    step(database.unchecked_transaction(), names, work)
}

fn step<T>(
    all: rusqlite::Result<Transaction<'_>>,
    (path, kind): (&Path, &Kind),
    mut work: impl FnMut(&mut All<'_, '_>) -> Result<T, SqlError>,
) -> Result<T, DatabaseError> {
    let both = || {
        let all = all?;
        let done = work(&mut All::File(&all))?;
        all.commit()?;
        Ok(done)
    };
    both().map_err(|e| match e {
        SqlError::File(e) => kind.error(path, e),
        e @ (SqlError::Server(_) | SqlError::Value { .. }) => DatabaseError::Database {
            path: path.to_path_buf(),
            reason: e.to_string(),
        },
    })
}

fn is_busy(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    code.is_some_and(|c| [ErrorCode::DatabaseBusy, ErrorCode::DatabaseLocked].contains(&c))
}

/// What a database is.
enum Identity {
    Own,
    Older,
    Foreign,
    Newer(i64),
}

/// What a database is, as it is: an empty one is none of ours yet.
fn identity(database: &Connection, kind: &Kind) -> rusqlite::Result<Identity> {
    if number(database, "application_id")? != kind.application {
        return Ok(Identity::Foreign);
    }
    Ok(match number(database, "user_version")? {
        found if found > kind.version => Identity::Newer(found),
        found if found == kind.version => Identity::Own,
        found if found < 1 => Identity::Foreign,
        _ => Identity::Older,
    })
}

/// Makes an empty database one of a kind, and sets what each connection needs. Nothing is written to what is none of it.
fn prepare(database: &mut Connection, kind: &Kind) -> rusqlite::Result<Identity> {
    database.busy_timeout(PATIENCE)?;
    if is_empty(database)? {
        mode(database)?;
        let making = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Somebody else may have been first.
        if is_empty(&making)? {
            making.execute_batch(&(kind.schema)())?;
            making.pragma_update(None, "application_id", kind.application)?;
            making.pragma_update(None, "user_version", kind.version)?;
        }
        making.commit()?;
    }
    match identity(database, kind)? {
        Identity::Own => {}
        Identity::Older => upgrade(database, kind)?,
        other @ (Identity::Foreign | Identity::Newer(_)) => return Ok(other),
    }
    mode(database)?;
    // In this mode a process that is killed loses nothing that it has committed, and a machine that loses its power the last rows.
    database.pragma_update(None, "synchronous", "NORMAL")?;
    Ok(Identity::Own)
}

/// Makes an older version of a kind the newest, in one step. What older programs wrote stays; they refuse it from then on.
fn upgrade(database: &mut Connection, kind: &Kind) -> rusqlite::Result<()> {
    let all = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Somebody else may have been first.
    let found = usize::try_from(number(&all, "user_version")?).unwrap_or_default();
    for upgrade in kind.upgrades.iter().skip(found.saturating_sub(1)) {
        all.execute_batch(&upgrade())?;
    }
    all.pragma_update(None, "user_version", kind.version)?;
    all.commit()
}

/// Readers and one writer do not wait for each other: what changes is written ahead.
fn mode(database: &Connection) -> rusqlite::Result<()> {
    database.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))
}

fn number(database: &Connection, pragma: &str) -> rusqlite::Result<i64> {
    database.pragma_query_value(None, pragma, |row| row.get(0))
}

fn is_empty(database: &Connection) -> rusqlite::Result<bool> {
    let tables = database.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0));
    let tables: i64 = tables?;
    Ok(tables == 0
        && number(database, "application_id")? == 0
        && number(database, "user_version")? == 0)
}

impl Kind {
    /// That something else is there.
    fn foreign(&self, path: &Path) -> DatabaseError {
        DatabaseError::Foreign {
            path: path.to_path_buf(),
            expected: self.full,
        }
    }

    /// That a newer version wrote it.
    fn newer(&self, path: &Path, found: i64) -> DatabaseError {
        DatabaseError::Newer {
            path: path.to_path_buf(),
            name: self.name,
            found,
            known: self.version,
        }
    }

    /// What SQLite's reason means here.
    pub(crate) fn error(&self, path: &Path, error: rusqlite::Error) -> DatabaseError {
        let path = path.to_path_buf();
        let reason = error.to_string();
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => DatabaseError::Foreign {
                path,
                expected: self.full,
            },
            Some(ErrorCode::DatabaseCorrupt) => DatabaseError::Damaged {
                path,
                name: self.name,
                reason,
            },
            Some(_) | None => DatabaseError::Database { path, reason },
        }
    }
}
