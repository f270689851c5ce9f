//! The file of a log: how it is made and opened, and whether it is one.

use super::LogError;
use super::row::schema;
use crate::files;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// Tells the file from other databases: the letters TwLg.
const APPLICATION: i64 = 0x5477_4c67;
/// Of the schema.
const VERSION: i64 = 1;
/// How long another process may keep the log before whoever waits for it gives up. Writing a trial takes less than a millisecond.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often whoever waits asks again where SQLite itself does not wait.
const AGAIN: Duration = Duration::from_millis(5);

/// Makes the file, empty, and the folders above it, where there is none: nobody else may read or write them.
pub(super) fn make(path: &Path) -> Result<(), LogError> {
    let named = |path: &Path, error| LogError::Io {
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

/// Opens the file, which is there, and gives it its tables where it is empty.
pub(super) fn connect(path: &Path) -> Result<Connection, LogError> {
    let regular = std::fs::metadata(path).and_then(|found| files::regular(&found));
    regular.map_err(|error| LogError::Io {
        path: path.to_path_buf(),
        error,
    })?;
    // The files beside it are made with its permissions.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags(path, flags);
    let mut database = opened.map_err(|e| error(path, e))?;
    let since = Instant::now();
    let identity = loop {
        match prepare(&mut database) {
            // Of two that make a new file a log at the same time SQLite refuses one at once, lest both wait for ever.
            Err(e) if is_busy(&e) && since.elapsed() < PATIENCE => std::thread::sleep(AGAIN),
            made => break made.map_err(|e| error(path, e))?,
        }
    };
    let path = path.to_path_buf();
    match identity {
        Identity::Log => Ok(database),
        Identity::Foreign => Err(LogError::Foreign { path }),
        Identity::Newer(found) => Err(LogError::Newer {
            path,
            found,
            known: VERSION,
        }),
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    code.is_some_and(|c| [ErrorCode::DatabaseBusy, ErrorCode::DatabaseLocked].contains(&c))
}

/// What a database is.
enum Identity {
    Log,
    Foreign,
    Newer(i64),
}

/// Makes an empty database a log, and sets what each connection needs. Nothing is written to what is no log.
fn prepare(database: &mut Connection) -> rusqlite::Result<Identity> {
    database.busy_timeout(PATIENCE)?;
    if is_empty(database)? {
        mode(database)?;
        let making = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Somebody else may have been first.
        if is_empty(&making)? {
            making.execute_batch(&schema())?;
            making.pragma_update(None, "application_id", APPLICATION)?;
            making.pragma_update(None, "user_version", VERSION)?;
        }
        making.commit()?;
    }
    if number(database, "application_id")? != APPLICATION {
        return Ok(Identity::Foreign);
    }
    match number(database, "user_version")? {
        found if found > VERSION => return Ok(Identity::Newer(found)),
        VERSION => {}
        _ => return Ok(Identity::Foreign),
    }
    mode(database)?;
    // In this mode a process that is killed loses nothing that it has committed, and a machine that loses its power the last trials.
    database.pragma_update(None, "synchronous", "NORMAL")?;
    Ok(Identity::Log)
}

/// Readers and one writer do not wait for each other: the log is written ahead.
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

/// What SQLite's reason means here.
pub(super) fn error(path: &Path, error: rusqlite::Error) -> LogError {
    let path = path.to_path_buf();
    let reason = error.to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => LogError::Foreign { path },
        Some(ErrorCode::DatabaseCorrupt) => LogError::Damaged { path, reason },
        Some(_) | None => LogError::Database { path, reason },
    }
}
