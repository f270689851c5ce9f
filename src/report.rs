//! Reports: what an artifact or a campaign says of itself, as one HTML file that opens offline.
//!
//! | module | what it decides |
//! |---|---|
//! | `facts` | what is known of each kernel: its time by the clock, its floor, what limits it |
//! | `words` | in which words that is said, and what differs between two candidates |
//! | `charts` | the charts, as Vega-Lite specifications with their data |
//! | `tiling` | how the tiling of a kernel is drawn |
//! | `one` | the page of an artifact |
//! | `record` | its sections that say what the search wrote down |
//! | `many` | the page of a campaign |
//! | `html` | how text becomes HTML, and what surrounds it |
//!
//! Every number is the manifest's, the journal's, or what this version's models say of the tile program and its schedule: the page tells which. Nothing
//! is measured here, and nothing is fetched by the page, whose own policy forbids it.

mod charts;
mod facts;
mod html;
mod many;
mod one;
mod record;
mod tiling;
pub mod words;

pub use facts::{KernelFacts, Limit};
pub use many::{Campaign, Job, campaign};
pub use one::{Subject, artifact};

use crate::files::{self, Links};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// How every report begins: only a file that begins so is replaced.
pub const MARK: &str = "<!doctype html>\n<!-- tilewright report -->\n";

/// Why a report was not written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// Something that is no report is at its place.
    #[error(
        "{}: expected nothing or a report that may be replaced, found {found}; choose another file with -o{}",
        path.display(), match forced { true => "", false => ", or say --force" }
    )]
    Occupied {
        /// Where.
        path: PathBuf,
        /// What is there.
        found: String,
        /// Whether `--force` was said, or would not help.
        forced: bool,
    },
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

/// Says whether a report may be put at a place, before anything is done for it.
///
/// # Errors
/// What is in the way. Only a report gives way, and with `force` any regular file.
pub fn may_be_at(path: &Path, force: bool) -> Result<(), ReportError> {
    let io = |source| ReportError::Io {
        path: path.to_path_buf(),
        source,
    };
    let occupied = |found: &str, forced| {
        Err(ReportError::Occupied {
            path: path.to_path_buf(),
            found: found.to_owned(),
            forced,
        })
    };
    let found = match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(io(e)),
        Ok(found) => found,
    };
    if !found.is_file() {
        return occupied(files::kind(&found), true);
    }
    if force {
        return Ok(());
    }
    let mut beginning = Vec::new();
    let file = files::open(path, Links::Refused).map_err(io)?;
    let most = MARK.len() as u64;
    file.take(most).read_to_end(&mut beginning).map_err(io)?;
    match beginning == MARK.as_bytes() {
        true => Ok(()),
        false => occupied("a file that is none", false),
    }
}

/// Writes a report, whole or not at all.
///
/// # Errors
/// As [`may_be_at`], and the system's; then nothing has changed.
pub fn write(path: &Path, page: &str, force: bool) -> Result<(), ReportError> {
    let io = |source| ReportError::Io {
        path: path.to_path_buf(),
        source,
    };
    let above = match path.parent() {
        Some(above) if above != Path::new("") => above,
        Some(_) | None => Path::new("."),
    };
    let mut file = tempfile::Builder::new()
        .prefix(".tilewright-")
        .permissions(std::fs::Permissions::from_mode(0o666))
        .tempfile_in(above)
        .map_err(io)?;
    file.write_all(page.as_bytes()).map_err(io)?;
    file.as_file().sync_all().map_err(io)?;
    // Again: it took a while.
    may_be_at(path, force)?;
    file.persist(path).map_err(|e| io(e.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reports_give_way() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = folder.path().join("r.html");
        let page = format!("{MARK}one");
        write(&at, &page, false).expect("nothing is there");
        write(&at, &format!("{MARK}two"), false).expect("a report is there");
        assert_eq!(
            std::fs::read_to_string(&at).expect("a file"),
            format!("{MARK}two")
        );
        std::fs::write(&at, "<!doctype html>\nmine").expect("writable");
        let message = write(&at, &page, false)
            .expect_err("it is none")
            .to_string();
        assert!(
            message.contains("found a file that is none") && message.contains("--force"),
            "{message}"
        );
        assert_eq!(
            std::fs::read_to_string(&at).expect("a file"),
            "<!doctype html>\nmine"
        );
        write(&at, &page, true).expect("it was told to");
        let message = write(folder.path(), &page, true)
            .expect_err("a folder")
            .to_string();
        assert!(
            message.contains("found a folder") && !message.contains("--force"),
            "{message}"
        );
        std::os::unix::fs::symlink(&at, folder.path().join("link")).expect("a link");
        for force in [false, true] {
            write(&folder.path().join("link"), &page, force).expect_err("a link");
        }
        let names = std::fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(names, 2, "nothing else was left");
    }
}
