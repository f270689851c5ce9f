//! Where an artifact is written before it takes its place.
//!
//! A staging folder lies beside the place, so that one rename leads there. It belongs to the process that holds its lock, which
//! the system lets go of however the process ends: what no process holds was left by one that was killed, and is cleaned.
//!
//! | within it | holds |
//! |---|---|
//! | `new/` | files that are being written, or removed: nothing but an artifact's |
//! | `whole/` | an artifact: the new one, and after the exchange the one that was at the place |
//! | `old/NAME/` | where folders cannot be exchanged: what was at the place `NAME`; it goes back if nothing came in its stead |
//!
//! Where the file system has no locks nothing is cleaned, for nobody can tell who is alive.

use super::file;
use super::survey::{self, Survey};
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How the names of staging folders begin.
const PREFIX: &str = ".tilewright-";
/// How often a folder is made that is cleaned before it is locked.
const ATTEMPTS: usize = 100;
/// Permissions of others to write.
const WRITABLE: u32 = 0o022;

/// A staging folder of this process. What is left in it goes where it belongs when this is dropped.
#[derive(Debug)]
pub(super) struct Staging {
    path: PathBuf,
    /// Locked, where the file system has locks.
    folder: File,
}

impl Staging {
    /// Makes one.
    ///
    /// # Errors
    /// The system's: `above` is not writable.
    pub(super) fn new(above: &Path) -> io::Result<Self> {
        for _ in 0..ATTEMPTS {
            let mut builder = tempfile::Builder::new();
            let path = builder.prefix(PREFIX).tempdir_in(above)?.keep();
            // Whoever cleans may find it before it is locked: then it is locked by them, or gone.
            let Ok(folder) = open(&path) else { continue };
            match folder.try_lock() {
                Err(TryLockError::WouldBlock) => continue,
                Ok(()) | Err(TryLockError::Error(_)) => {}
            }
            let locked = folder.metadata()?;
            if fs::symlink_metadata(&path).is_ok_and(|there| there.ino() == locked.ino()) {
                return Ok(Self { path, folder });
            }
        }
        Err(io::Error::other("staging folders vanish as they are made"))
    }

    /// Writes an artifact's files, all of them onto the disk, and gives the folder that holds them.
    ///
    /// # Errors
    /// The system's, and a name that is none of an artifact's files: it would not be removed again.
    pub(super) fn fill(&self, files: &[(&str, Vec<u8>)]) -> io::Result<PathBuf> {
        let (new, whole) = (self.path.join("new"), self.path.join("whole"));
        fs::create_dir(&new)?;
        let mut written = Vec::new();
        for (name, bytes) in files {
            if !file::ALL.contains(name) {
                let what = format!("`{name}` is no file of an artifact");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
            let mut to = File::create_new(new.join(name))?;
            io::Write::write_all(&mut to, bytes)?;
            written.push(to);
        }
        // All at once: a journal takes them together, in a fraction of the time.
        std::thread::scope(|scope| {
            let waits: Vec<_> = (written.iter())
                .map(|file| scope.spawn(|| file.sync_all()))
                .collect();
            waits.into_iter().try_for_each(|wait| {
                wait.join()
                    .unwrap_or_else(|_| Err(io::Error::other("a thread was lost")))
            })
        })?;
        sync_folder(&new)?;
        fs::rename(&new, &whole)?;
        Ok(whole)
    }

    /// Where what is at a place steps aside to.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn aside(&self, name: &std::ffi::OsStr) -> io::Result<PathBuf> {
        let old = self.path.join("old");
        fs::create_dir_all(&old)?;
        Ok(old.join(name))
    }

    /// Removes what stepped aside, if it is an artifact.
    pub(super) fn remove(&self, aside: &Path) {
        remove_artifact(&self.path, aside);
    }

    /// Cleans what processes that were killed left beside this folder. What is no artifact's stays, and a warning says so.
    pub(super) fn clean_others(&self) {
        let (Some(above), Ok(own)) = (self.path.parent(), self.folder.metadata()) else {
            return;
        };
        let Ok(entries) = fs::read_dir(above) else {
            return;
        };
        for entry in entries.flatten() {
            let staging = entry.file_name().to_string_lossy().starts_with(PREFIX);
            // Others could lead us astray by what they put into theirs.
            let trusted = |meta: Metadata| {
                meta.is_dir() && meta.uid() == own.uid() && meta.mode() & WRITABLE == 0
            };
            if !staging || entry.path() == self.path || !entry.metadata().is_ok_and(trusted) {
                continue;
            }
            // Held until it is gone.
            let Ok(folder) = open(&entry.path()) else {
                continue;
            };
            if folder.try_lock().is_ok() {
                discard(&entry.path(), above);
            }
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Some(above) = self.path.parent() {
            discard(&self.path, above);
        }
    }
}

/// Waits until a folder's entries are on the disk, where the file system knows how.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    match File::open(path)?.sync_all() {
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(()),
        other => other,
    }
}

/// Removes a staging folder of this process or of one that is no more, with what is an artifact in it.
fn discard(staging: &Path, above: &Path) {
    let new = staging.join("new");
    if is_folder(&new) {
        // Perhaps not written, or removed, to the end; a link or the like is not followed.
        let _ = survey::remove(&new);
    }
    remove_artifact(staging, &staging.join("whole"));
    let old = staging.join("old");
    if is_folder(&old) {
        for entry in fs::read_dir(&old).into_iter().flatten().flatten() {
            let (aside, place) = (entry.path(), above.join(entry.file_name()));
            // A folder never replaces one that is not empty.
            if !is_folder(&aside) || fs::rename(&aside, &place).is_err() {
                remove_artifact(staging, &aside);
            }
        }
        let _ = fs::remove_dir(&old);
    }
    match fs::remove_dir(staging) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => tracing::warn!(
            "{}: left by a run that ended early, and not removed, for it holds more than an artifact: {e}",
            staging.display()
        ),
        Ok(()) | Err(_) => {}
    }
}

/// Removes a folder if it is an artifact or empty. Once that is known it becomes `new/`, for who is killed meanwhile leaves one that is
/// neither.
fn remove_artifact(staging: &Path, folder: &Path) {
    if let Ok(Survey::Artifact(_) | Survey::Empty) = survey::survey(folder) {
        let new = staging.join("new");
        let _ = fs::rename(folder, &new).and_then(|()| survey::remove(&new));
    }
}

fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir())
}

fn open(folder: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    Ok(rustix::fs::open(folder, flags, Mode::empty())?.into())
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    /// A staging folder whose process was killed: nobody holds its lock.
    fn left(above: &Path) -> PathBuf {
        let mut builder = tempfile::Builder::new();
        let made = builder.prefix(PREFIX).tempdir_in(above);
        made.expect("a temporary folder").keep()
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("a folder");
        let name = |e: io::Result<fs::DirEntry>| e.expect("an entry").file_name();
        let mut names: Vec<String> = entries
            .map(|e| name(e).into_string().expect("UTF-8"))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_was_left_is_cleaned_and_what_is_alive_is_not() {
        let above = tempfile::tempdir().expect("a temporary folder");
        let above = above.path();
        let files = samples::files("rows", "h200", 0);
        // Killed while it was made, while files were written, before and after the exchange.
        left(above);
        samples::put(&left(above).join("new"), &files[..3]);
        samples::put(&left(above).join("whole"), &files);
        let alive = Staging::new(above).expect("writable");
        alive.fill(&files).expect("writable");
        let newest = Staging::new(above).expect("writable");
        newest.clean_others();
        let mut kept = [&alive.path, &newest.path].map(|p| {
            let name = p.file_name().expect("a name");
            name.to_str().expect("UTF-8").to_owned()
        });
        kept.sort();
        assert_eq!(names(above), kept);
        assert_eq!(names(&alive.path.join("whole")).len(), files.len());
        drop((alive, newest));
        assert!(names(above).is_empty(), "{:?}", names(above));
    }

    #[test]
    fn what_stepped_aside_comes_back_if_nothing_took_its_place() {
        for taken in [false, true] {
            let above = tempfile::tempdir().expect("a temporary folder");
            let above = above.path();
            samples::put(
                &left(above).join("old/k"),
                &samples::files("rows", "h200", 1),
            );
            if taken {
                samples::put(&above.join("k"), &samples::files("rows", "h200", 2));
            }
            Staging::new(above).expect("writable").clean_others();
            assert_eq!(names(above), ["k"]);
            let seed = super::super::read_manifest(&above.join("k"))
                .expect("an artifact")
                .seed;
            assert_eq!(seed, if taken { 2 } else { 1 });
        }
    }

    #[test]
    fn what_is_no_artifact_stays() {
        let above = tempfile::tempdir().expect("a temporary folder");
        let above = above.path();
        let files = samples::files("rows", "h200", 0);
        let [new, whole, old] = ["new", "whole", "old/k"].map(|name| left(above).join(name));
        for folder in [&new, &whole, &old] {
            samples::put(folder, &files);
            fs::write(folder.join("thesis.tex"), "years of work").expect("writable");
        }
        samples::put(&above.join("k"), &files);
        // A folder that a link leads to is not ours to clean.
        let elsewhere = tempfile::tempdir().expect("a temporary folder");
        samples::put(elsewhere.path(), &files);
        std::os::unix::fs::symlink(elsewhere.path(), left(above).join("new")).expect("a link");
        std::os::unix::fs::symlink(elsewhere.path(), above.join(".tilewright-link"))
            .expect("a link");
        Staging::new(above).expect("writable").clean_others();
        for folder in [&new, &whole, &old] {
            assert!(folder.join("thesis.tex").exists(), "{}", folder.display());
        }
        assert_eq!(names(elsewhere.path()).len(), files.len());
    }

    #[test]
    fn only_files_of_an_artifact_are_written() {
        let above = tempfile::tempdir().expect("a temporary folder");
        let staging = Staging::new(above.path()).expect("writable");
        let error = staging.fill(&[("../k", Vec::new())]).expect_err("a path");
        assert!(
            error.to_string().contains("no file of an artifact"),
            "{error}"
        );
    }
}
