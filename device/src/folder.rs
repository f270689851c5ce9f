//! Folders of the user's own, for what nobody else may write.

use std::fs::{DirBuilder, Metadata};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Why a folder is not used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
    /// The folder is somebody else's.
    #[error("{}: it belongs to user {owner}, expected user {expected}", path.display())]
    Owner {
        /// Which folder.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who runs this.
        expected: u32,
    },
    /// Others may write to it.
    #[error("{}: others may write to it (mode {mode:03o}), expected mode 700", path.display())]
    Open {
        /// Which folder: it, or one above it.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
}

/// Who may write, by a folder's mode: the group, all others; and whether only owners remove what is in it.
const GROUP: u32 = 0o020;
const OTHERS: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// A folder, made for its owner alone if it is not there; without links.
///
/// # Errors
/// The system's; a folder that is another user's, or that others may write to or put another in the place of.
pub fn own(folder: &Path) -> Result<PathBuf, FolderError> {
    let io = |source| FolderError::Io {
        path: folder.to_path_buf(),
        source,
    };
    let mut maker = DirBuilder::new();
    maker
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(io)?;
    // Where links lead, once and for all.
    let folder = folder.canonicalize().map_err(io)?;
    let user = rustix::process::geteuid().as_raw();
    trusted(&folder, &folder.metadata().map_err(io)?, user)?;
    for above in folder.ancestors().skip(1) {
        let mode = above.metadata().map_err(io)?.mode();
        if mode & OTHERS != 0 && mode & STICKY == 0 {
            return Err(open(above, mode));
        }
    }
    Ok(folder)
}

/// Whether a folder is one's own, and nobody else may write to it.
fn trusted(path: &Path, found: &Metadata, user: u32) -> Result<(), FolderError> {
    if found.uid() != user {
        return Err(FolderError::Owner {
            path: path.to_path_buf(),
            owner: found.uid(),
            expected: user,
        });
    }
    match found.mode() & (GROUP | OTHERS) {
        0 => Ok(()),
        _ => Err(open(path, found.mode())),
    }
}

fn open(path: &Path, mode: u32) -> FolderError {
    FolderError::Open {
        path: path.to_path_buf(),
        mode: mode & 0o777,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn the_folder_is_its_owners_alone() {
        let above = tempfile::tempdir().expect("a temporary folder");
        let mode = |path: &Path, mode: u32| {
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("our own");
        };
        let folder = above.path().join("deep/own");
        own(&folder).expect("a folder of our own");
        for made in [&folder, &above.path().join("deep")] {
            assert_eq!(made.metadata().expect("a folder").mode() & 0o777, 0o700);
        }
        let link = above.path().join("link");
        symlink(&folder, &link).expect("a link");
        for (bits, fits) in [
            (0o700, true),
            (0o755, true),
            (0o770, false),
            (0o702, false),
            (0o1777, false),
        ] {
            mode(&folder, bits);
            for path in [&folder, &link] {
                let found = own(path);
                assert_eq!(found.is_ok(), fits, "{bits:o}: {found:?}");
                let Err(error) = found else { continue };
                let expected = format!("others may write to it (mode {:03o})", bits & 0o777);
                assert!(error.to_string().contains(&expected), "{error}");
            }
        }
        mode(&folder, 0o700);
        // Who may rename it may put another in its place.
        mode(&above.path().join("deep"), 0o777);
        let error = own(&folder).expect_err("an open folder above");
        assert!(
            error.to_string().contains("deep: others may write"),
            "{error}"
        );
        mode(&above.path().join("deep"), 0o1777);
        own(&link).expect("a folder of our own");
        let found = folder.metadata().expect("a folder");
        let error = trusted(&folder, &found, found.uid() + 1).expect_err("somebody else's");
        assert!(matches!(error, FolderError::Owner { .. }), "{error}");
        fs::write(above.path().join("file"), "").expect("writable");
        let error = own(&above.path().join("file")).expect_err("no folder");
        assert!(matches!(error, FolderError::Io { .. }), "{error}");
    }
}
