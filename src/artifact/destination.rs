//! The place of an artifact: what gives way to it, and how it takes its place.

use super::staging::{Staging, sync_folder};
use super::survey::{Identity, Survey, restless, survey};
use super::{ArtifactError, hash};
use crate::npz::parent;
use ir::{Program, Target};
use rustix::fs::{CWD, RenameFlags};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// How often an artifact tries to take its place while others do.
const ATTEMPTS: usize = 100;

/// Which artifacts give way to a new one. Nothing else does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivesWay {
    /// Those of the same program, by its text, and of the same target.
    Same,
    /// All.
    Any,
}

/// A folder that will be an artifact: proven writable before the search starts.
#[derive(Clone, Debug)]
pub struct Destination {
    path: PathBuf,
    wanted: Identity,
    gives_way: GivesWay,
}

impl Destination {
    /// Checks that an artifact of a program for a target can be put at `path`: nothing is there, or an empty folder, or an artifact
    /// that gives way; and the folder above exists (or can be made) and is writable. What runs that were killed left beside the
    /// place is cleaned.
    ///
    /// # Errors
    /// What is in the way, and the system's.
    pub fn new(
        path: &Path,
        program: &Program,
        target: &Target,
        gives_way: GivesWay,
    ) -> Result<Self, ArtifactError> {
        let io_error = |at: &Path| {
            let at = at.to_path_buf();
            move |source| ArtifactError::Io { path: at, source }
        };
        let path = match path.file_name() {
            Some(_) => path.to_path_buf(),
            None => fs::canonicalize(path).map_err(io_error(path))?,
        };
        let destination = Self {
            wanted: Identity {
                name: program.name.clone(),
                program: hash(program.to_string().as_bytes()),
                target: target.name.clone(),
            },
            path,
            gives_way,
        };
        // Folders above the place are made when there is something to put there; that they can be made is seen where the first would be.
        let above = parent(&destination.path);
        let there = |folder: &&Path| !matches!(fs::metadata(folder), Err(e) if e.kind() == io::ErrorKind::NotFound);
        let here = Path::new(".");
        let nearest = above
            .ancestors()
            .map(|a| if a == Path::new("") { here } else { a });
        let mut nearest = nearest;
        let nearest = nearest.find(there).unwrap_or(here);
        let staging = Staging::new(nearest).map_err(io_error(nearest))?;
        if nearest != above {
            return Ok(destination);
        }
        // First: something that was at the place may come back.
        staging.clean_others();
        destination.look(&destination.path)?;
        Ok(destination)
    }

    /// Where the artifact will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts the files there, all or none, in the stead of an artifact that was there before. May be called again and again, and
    /// by several processes: at every moment the place holds one whole artifact, the last that was put there.
    ///
    /// Folders are exchanged in one step. Where the file system cannot do that, the old one steps aside first; a process that is killed
    /// just then leaves nothing at the place, and the next [`Destination`] there puts the old one back.
    ///
    /// # Errors
    /// What came into the way since, and the system's: then nothing has changed.
    pub fn write(&self, files: &[(&str, Vec<u8>)]) -> Result<(), ArtifactError> {
        self.write_by(files, exchange)
    }

    fn write_by(
        &self,
        files: &[(&str, Vec<u8>)],
        exchange: fn(&Path, &Path) -> io::Result<()>,
    ) -> Result<(), ArtifactError> {
        let above = parent(&self.path);
        fs::create_dir_all(above).map_err(|e| self.io_error(e))?;
        let staging = Staging::new(above).map_err(|e| self.io_error(e))?;
        let whole = staging.fill(files).map_err(|e| self.io_error(e))?;
        let mut moved = Err(restless());
        for _ in 0..ATTEMPTS {
            moved = match self.look(&self.path)? {
                // A folder replaces an empty one and nothing else.
                Survey::Nothing | Survey::Empty => fs::rename(&whole, &self.path),
                Survey::Artifact(_) | Survey::Other(_) => match exchange(&whole, &self.path) {
                    Ok(()) => {
                        // Something may have come to it since it was looked at.
                        if let Err(e) = self.look(&whole) {
                            exchange(&whole, &self.path).map_err(|e| self.io_error(e))?;
                            return Err(e);
                        }
                        Ok(())
                    }
                    Err(e) if e.kind() == io::ErrorKind::NotFound => Err(e),
                    // If that is not why, the two steps will say it.
                    Err(_) => self.replace_in_two_steps(&staging, &whole)?,
                },
            };
            let came_between = |e: &io::Error| {
                use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotADirectory, NotFound};
                [AlreadyExists, DirectoryNotEmpty, NotADirectory, NotFound].contains(&e.kind())
            };
            if !moved.as_ref().is_err_and(came_between) {
                break;
            }
        }
        moved.map_err(|e| self.io_error(e))?;
        sync_folder(above).map_err(|e| self.io_error(e))
    }

    /// Removes the artifact at the place, where it is one that gives way.
    ///
    /// # Errors
    /// What is in the way, and the system's: then nothing has changed.
    pub fn withdraw(&self) -> Result<(), ArtifactError> {
        let staging = Staging::new(parent(&self.path)).map_err(|e| self.io_error(e))?;
        if let Survey::Artifact(_) = self.look(&self.path)? {
            let name = self.path.file_name().unwrap_or_default();
            let aside = staging.aside(name).map_err(|e| self.io_error(e))?;
            fs::rename(&self.path, &aside).map_err(|e| self.io_error(e))?;
            staging.remove(&aside);
        }
        Ok(())
    }

    /// Puts a folder at the place of another where they cannot be exchanged. What stepped aside goes back with the staging folder if
    /// nothing comes in its stead.
    fn replace_in_two_steps(
        &self,
        staging: &Staging,
        whole: &Path,
    ) -> Result<io::Result<()>, ArtifactError> {
        let name = self.path.file_name().unwrap_or_default();
        let aside = staging.aside(name).map_err(|e| self.io_error(e))?;
        if let Err(e) = fs::rename(&self.path, &aside) {
            return Ok(Err(e));
        }
        self.look(&aside)?;
        let moved = fs::rename(whole, &self.path);
        if moved.is_ok() || fs::symlink_metadata(&self.path).is_ok() {
            staging.remove(&aside);
        }
        Ok(moved)
    }

    /// What is at a path, if it gives way.
    fn look(&self, path: &Path) -> Result<Survey, ArtifactError> {
        let found = survey(path).map_err(|e| self.io_error(e))?;
        match &found {
            Survey::Nothing | Survey::Empty => Ok(found),
            Survey::Other(entries) => Err(ArtifactError::InTheWay {
                path: self.path.clone(),
                entries: entries.clone(),
            }),
            Survey::Artifact(there) => {
                if self.gives_way == GivesWay::Any || there.is(&self.wanted) {
                    return Ok(found);
                }
                Err(ArtifactError::OtherArtifact {
                    path: self.path.clone(),
                    found: there.beside(&self.wanted),
                    wanted: format!("`{}` for {}", self.wanted.name, self.wanted.target),
                })
            }
        }
    }

    fn io_error(&self, source: io::Error) -> ArtifactError {
        ArtifactError::Io {
            path: self.path.clone(),
            source,
        }
    }
}

/// Exchanges two folders in one step.
fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    Ok(rustix::fs::renameat_with(
        CWD,
        one,
        CWD,
        other,
        RenameFlags::EXCHANGE,
    )?)
}

#[cfg(test)]
mod tests {
    use super::super::{Artifact, file, samples};
    use super::*;
    use samples::files;

    struct Above(tempfile::TempDir);

    impl Above {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("a temporary folder"))
        }

        fn place(&self) -> PathBuf {
            self.0.path().join("k")
        }

        /// Where artifacts of `rows` for the H200 may be put.
        fn destination(&self) -> Destination {
            samples::destination(&self.place(), "rows", "h200", GivesWay::Same)
                .expect("nothing is in the way")
        }

        /// Which artifact is at the place; nothing else is there or beside it.
        fn holds(&self) -> u64 {
            let beside = fs::read_dir(self.0.path()).expect("a folder").count();
            assert_eq!(beside, 1, "staging folders were left behind");
            let artifact = Artifact::read(&self.place()).expect("an artifact");
            artifact.check().expect("as it was written");
            artifact.check_alone().expect("nothing else");
            artifact.manifest().seed
        }
    }

    /// What a file system says that exchanges nothing.
    fn cannot(_: &Path, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::InvalidInput.into())
    }

    #[test]
    fn artifacts_replace_each_other_whether_or_not_folders_can_be_exchanged() {
        for exchange in [exchange, cannot] {
            let above = Above::new();
            let there = above.destination();
            assert!(!above.place().exists());
            for n in 0..3 {
                there
                    .write_by(&files("rows", "h200", n), exchange)
                    .expect("writable");
                assert_eq!(above.holds(), n);
            }
            // Python imported it.
            fs::create_dir(above.place().join("__pycache__")).expect("writable");
            fs::write(
                above.place().join("__pycache__/__init__.cpython-311.pyc"),
                "",
            )
            .expect("writable");
            there
                .write_by(&files("rows", "h200", 3), exchange)
                .expect("writable");
            assert_eq!(above.holds(), 3);
            assert!(!above.place().join("__pycache__").exists());
        }
    }

    #[test]
    fn folders_above_are_made_and_an_empty_one_is_filled() {
        let above = Above::new();
        let path = above.place().join("deep/er");
        let there = samples::destination(&path, "rows", "h200", GivesWay::Same).expect("writable");
        fs::create_dir_all(&path).expect("writable");
        there.write(&files("rows", "h200", 1)).expect("writable");
        assert!(path.join(file::WRAPPER).exists());
        fs::write(above.0.path().join("f"), "").expect("writable");
        let under = above.0.path().join("f/k");
        samples::destination(&under, "rows", "h200", GivesWay::Any).expect_err("not a folder");
    }

    #[test]
    fn a_folder_that_holds_anything_else_is_left_alone_then_and_later() {
        for gives_way in [GivesWay::Same, GivesWay::Any] {
            let above = Above::new();
            let there =
                samples::destination(&above.place(), "rows", "h200", gives_way).expect("free");
            there.write(&files("rows", "h200", 0)).expect("writable");
            let notes = above.place().join("notes.md");
            fs::write(&notes, "mine").expect("writable");
            let then = samples::destination(&above.place(), "rows", "h200", gives_way);
            let later = there.write(&files("rows", "h200", 1));
            for error in [then.map(|_| ()), later] {
                let error = error.expect_err("something is in the way");
                assert!(matches!(error, ArtifactError::InTheWay { .. }), "{error}");
                assert!(error.to_string().contains("`notes.md` (a file)"), "{error}");
            }
            fs::remove_file(&notes).expect("it is still there");
            assert_eq!(above.holds(), 0);
        }
    }

    #[test]
    fn what_comes_at_the_last_moment_is_not_lost() {
        /// Somebody writes into the folder just before it is exchanged.
        fn late(one: &Path, other: &Path) -> io::Result<()> {
            if !one.join("notes.md").exists() {
                fs::write(other.join("notes.md"), "mine")?;
            }
            exchange(one, other)
        }
        fn late_and_cannot(_: &Path, other: &Path) -> io::Result<()> {
            fs::write(other.join("notes.md"), "mine")?;
            Err(io::ErrorKind::InvalidInput.into())
        }
        for exchange in [late, late_and_cannot] {
            let above = Above::new();
            let there = above.destination();
            there.write(&files("rows", "h200", 0)).expect("writable");
            let error = there
                .write_by(&files("rows", "h200", 1), exchange)
                .expect_err("in the way");
            assert!(error.to_string().contains("notes.md"), "{error}");
            fs::remove_file(above.place().join("notes.md")).expect("it is still there");
            assert_eq!(above.holds(), 0);
        }
    }

    #[test]
    fn an_artifact_of_another_program_or_target_gives_way_where_it_is_told_to() {
        let above = Above::new();
        above
            .destination()
            .write(&files("rows", "h200", 0))
            .expect("writable");
        for (name, target, part) in [
            (
                "columns",
                "h200",
                "here is an artifact of `rows` for h200, and the new one is of `columns` for h200",
            ),
            (
                "rows",
                "a100",
                "here is an artifact of `rows` for h200, and the new one is of `rows` for a100",
            ),
        ] {
            let refused = samples::destination(&above.place(), name, target, GivesWay::Same);
            let error = refused.expect_err("another artifact");
            assert!(error.to_string().contains(part), "{error}");
            assert_eq!(above.holds(), 0);
        }
        let other = samples::destination(&above.place(), "rows", "a100", GivesWay::Any)
            .expect("any gives way");
        other.write(&files("rows", "a100", 1)).expect("writable");
        assert_eq!(above.holds(), 1);
        // It came while the other search went on.
        let later = Above::new();
        let there = later.destination();
        samples::put(&later.place(), &files("columns", "h200", 2));
        let error = there
            .write(&files("rows", "h200", 3))
            .expect_err("another artifact");
        assert!(
            matches!(error, ArtifactError::OtherArtifact { .. }),
            "{error}"
        );
        assert_eq!(later.holds(), 2);
    }

    #[test]
    fn a_write_that_fails_changes_nothing() {
        let above = Above::new();
        let there = above.destination();
        let mut broken = files("rows", "h200", 1);
        broken.push(("notes.md", Vec::new()));
        there.write(&broken).expect_err("the last file");
        assert!(!above.place().exists(), "half an artifact");
        there.write(&files("rows", "h200", 0)).expect("writable");
        there.write(&broken).expect_err("the last file");
        assert_eq!(above.holds(), 0);
    }

    #[test]
    fn many_may_write_at_once() {
        for exchange in [exchange, cannot] {
            let above = Above::new();
            let there = above.destination();
            std::thread::scope(|scope| {
                for n in 0..4 {
                    let there = there.clone();
                    scope.spawn(move || {
                        for _ in 0..8 {
                            there
                                .write_by(&files("rows", "h200", n), exchange)
                                .expect("writable");
                        }
                    });
                }
            });
            assert!(above.holds() < 4);
        }
    }
}
