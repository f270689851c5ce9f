//! The folder that a user receives: a Python package with the kernel, its sources and its evidence.
//!
//! An artifact appears at its place complete or not at all: it is written to a temporary folder beside the target and
//! renamed. A folder that is no artifact is never overwritten. This module does not decide what goes in: the emitter does.

use crate::npz::parent;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The layout version of `manifest.json`; readers refuse another.
pub const FORMAT: u32 = 5;

/// The files of an artifact.
pub mod file {
    /// What PyTorch imports.
    pub const WRAPPER: &str = "__init__.py";
    /// The CUDA source.
    pub const CUDA: &str = "kernel.cu";
    /// The compiled kernels, if NVRTC was found.
    pub const CUBIN: &str = "kernel.cubin";
    /// The user's program, sugar expanded.
    pub const PROGRAM: &str = "program.lax";
    /// The equal expression that was chosen.
    pub const EXPRESSION: &str = "expression.lax";
    /// The tile program.
    pub const TILE: &str = "tile.txt";
    /// How each kernel is mapped to the machine.
    pub const SCHEDULE: &str = "schedule.json";
    /// What every artifact has, next to its manifest.
    pub const ALWAYS: [&str; 6] = [WRAPPER, CUDA, PROGRAM, EXPRESSION, TILE, SCHEDULE];
    /// Everything else.
    pub const MANIFEST: &str = "manifest.json";
}

/// Why an artifact could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// Something else is in the way.
    #[error("{}: exists and is no artifact, so it is not overwritten; choose another folder", path.display())]
    Occupied {
        /// Where.
        path: PathBuf,
    },
    /// Files that are not what was written.
    #[error("{}: this artifact was changed after it was made: {what}", path.display())]
    Tampered {
        /// Where.
        path: PathBuf,
        /// Which file, and what is wrong with it.
        what: String,
    },
    /// An artifact of another version.
    #[error(
        "{}: an artifact of format {found}, but this version of tilewright reads format {FORMAT}: make it again",
        path.display()
    )]
    OtherFormat {
        /// Where.
        path: PathBuf,
        /// Its format.
        found: u64,
    },
    /// A folder without a readable manifest.
    #[error("{}: no artifact: {reason}", path.display())]
    NoArtifact {
        /// Where.
        path: PathBuf,
        /// What was expected and what was found.
        reason: String,
    },
}

/// A tensor of the caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// A parameter's name; `out0`, `out1`, … for outputs.
    pub name: String,
    /// How it is stored.
    pub dtype: String,
    /// Its shape in memory, contiguous.
    pub shape: Vec<u64>,
}

/// What a buffer is to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BufferKind {
    /// The `index`-th parameter.
    Parameter,
    /// The `index`-th output.
    Output,
    /// Scratch.
    Workspace,
}

/// A buffer, in the order in which launches number them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferEntry {
    /// Its name in the tile program.
    pub name: String,
    /// How it is stored.
    pub dtype: String,
    /// What it is to the caller.
    pub role: BufferKind,
    /// Which parameter or output; 0 for a workspace.
    pub index: u32,
    /// Its size.
    pub bytes: u64,
}

/// The GPU that an artifact is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetEntry {
    /// Its name on the command line.
    pub name: String,
    /// The architecture that was compiled for.
    pub arch: String,
    /// Compute capability as major · 10 + minor.
    pub capability: u32,
    /// What the driver calls it.
    pub device: String,
}

/// The compiled kernels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CubinEntry {
    /// The file beside the manifest.
    pub file: String,
    /// BLAKE3 of its bytes, in hexadecimal.
    pub blake3: String,
    /// The compiler's version.
    pub compiler: String,
    /// What the compiler said about each kernel's registers.
    pub registers: BTreeMap<String, u32>,
}

/// `manifest.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// The version of Tilewright that wrote it.
    pub tilewright: String,
    /// The program's name.
    pub program: String,
    /// The namespace of the PyTorch operator: unique for these files.
    pub namespace: String,
    /// The GPU that it is for.
    pub target: TargetEntry,
    /// The parameters in declaration order.
    pub parameters: Vec<TensorEntry>,
    /// The outputs in order.
    pub outputs: Vec<TensorEntry>,
    /// The buffers that launches number.
    pub buffers: Vec<BufferEntry>,
    /// The launches in order.
    pub launches: Vec<codegen::Launch>,
    /// The compiled kernels; none if NVRTC was not found.
    pub cubin: Option<CubinEntry>,
    /// Floating-point operations, by the model.
    pub flops: u64,
    /// Bytes of device memory moved, by the model.
    pub bytes: u64,
    /// Time by the model, in microseconds.
    pub predicted_us: f64,
    /// Measured time; none if nothing was timed.
    pub measured_us: Option<device::timing::Measurement>,
    /// What was checked, one claim a line.
    pub verified: Vec<String>,
    /// How many candidates were looked at.
    pub candidates: u64,
    /// How many points were rejected, by reason.
    pub rejected: BTreeMap<String, u64>,
    /// The seed of the search and of the drawn inputs.
    pub seed: u64,
    /// Why the expression is equal to the program; none if no derivation was found.
    pub derivation: Option<search::explain::Explanation>,
    /// What was checked, with all that it takes to check it again.
    pub evidence: verify::Evidence,
    /// BLAKE3 of every other file, in hexadecimal.
    pub files: BTreeMap<String, String>,
    /// BLAKE3 of this manifest with an empty seal.
    pub seal: String,
}

impl Manifest {
    /// What [`seal`](Self::seal) must be.
    pub fn sealed(&self) -> String {
        let open = Self {
            seal: String::new(),
            ..self.clone()
        };
        let text = serde_json::to_string(&open)
            .expect("our own plain values should serialise: they hold no maps with odd keys");
        hash(text.as_bytes())
    }

    /// The text of `manifest.json`: there is one for each manifest.
    pub fn text(&self) -> String {
        json(self)
    }
}

/// How an artifact's files hold values.
pub(crate) fn json(value: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(value)
        .expect("our own plain values should serialise: they hold no maps with odd keys");
    text + "\n"
}

/// Hashes the files of an artifact into its manifest, seals that, and adds it as the last file.
pub fn seal(manifest: &mut Manifest, files: &mut Vec<(&'static str, Vec<u8>)>) {
    manifest.files = files
        .iter()
        .map(|(name, bytes)| ((*name).to_owned(), hash(bytes)))
        .collect();
    manifest.seal = manifest.sealed();
    files.push((file::MANIFEST, manifest.text().into_bytes()));
}

/// A folder that will be an artifact: proven writable before the search starts.
#[derive(Clone, Debug)]
pub struct Destination {
    path: PathBuf,
}

impl Destination {
    /// Checks that an artifact can be put at `path`: nothing is there, or an empty folder, or an artifact; and the folder
    /// above exists (or can be made) and is writable.
    pub fn new(path: &Path) -> Result<Self, ArtifactError> {
        let io_error = |at: &Path| {
            let at = at.to_path_buf();
            move |source| ArtifactError::Io { path: at, source }
        };
        let path = match path.file_name() {
            Some(_) => path.to_path_buf(),
            None => fs::canonicalize(path).map_err(io_error(path))?,
        };
        match fs::symlink_metadata(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(io_error(&path)(e)),
            Ok(meta) => {
                let replaceable = meta.is_dir()
                    && (is_artifact(&path)
                        || fs::read_dir(&path)
                            .map_err(io_error(&path))?
                            .next()
                            .is_none());
                if !replaceable {
                    return Err(ArtifactError::Occupied { path });
                }
            }
        }
        let above = parent(&path);
        fs::create_dir_all(above).map_err(io_error(above))?;
        staging(above).map_err(io_error(above))?;
        Ok(Self { path })
    }

    /// Where the artifact will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts the files there, all or none. An artifact that was there before is replaced.
    pub fn write(&self, files: &[(&str, Vec<u8>)]) -> Result<(), ArtifactError> {
        let io_error = |source| ArtifactError::Io {
            path: self.path.clone(),
            source,
        };
        let above = parent(&self.path);
        let folder = staging(above).map_err(io_error)?;
        for (name, bytes) in files {
            fs::write(folder.path().join(name), bytes).map_err(io_error)?;
        }
        // A folder cannot replace a filled one in one step: the old one steps aside first.
        let aside = staging(above).map_err(io_error)?;
        if fs::symlink_metadata(&self.path).is_ok() {
            fs::rename(&self.path, aside.path().join("old")).map_err(io_error)?;
        }
        fs::rename(folder.path(), &self.path).map_err(|e| {
            // What was there before comes back; if even that fails, the first error is the one to tell.
            let _ = fs::rename(aside.path().join("old"), &self.path);
            io_error(e)
        })?;
        // Renamed away: there is nothing left to remove.
        let _ = folder.keep();
        Ok(())
    }
}

/// A temporary folder that can be renamed to its neighbour, readable like any other folder.
fn staging(above: &Path) -> io::Result<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".tilewright-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o755));
    }
    builder.tempdir_in(above)
}

/// Whether a folder holds an artifact of any format.
fn is_artifact(folder: &Path) -> bool {
    matches!(
        read_manifest(folder),
        Ok(_) | Err(ArtifactError::OtherFormat { .. })
    )
}

/// The manifest of an artifact folder.
pub fn read_manifest(folder: &Path) -> Result<Manifest, ArtifactError> {
    let refuse = |reason: String| ArtifactError::NoArtifact {
        path: folder.to_path_buf(),
        reason,
    };
    let text = read_text(folder, file::MANIFEST)?;
    let value: serde_json::Value =
        serde_json::from_str(&text).map_err(|e| refuse(format!("{}: {e}", file::MANIFEST)))?;
    match value.get("format").and_then(serde_json::Value::as_u64) {
        Some(found) if found == u64::from(FORMAT) => {}
        Some(found) => {
            return Err(ArtifactError::OtherFormat {
                path: folder.to_path_buf(),
                found,
            });
        }
        None => return Err(refuse(format!("{}: no `format`", file::MANIFEST))),
    }
    serde_json::from_value(value).map_err(|e| refuse(format!("{}: {e}", file::MANIFEST)))
}

/// How the manifest names the content of a file: BLAKE3, in hexadecimal.
pub fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// Whether an artifact's files are those that were written, by their hashes in the manifest. The hashes have no key: whoever means
/// to change an artifact changes them too.
///
/// # Errors
/// The first file that isn't, or that is missing.
pub fn check_files(folder: &Path, manifest: &Manifest) -> Result<(), ArtifactError> {
    let tampered = |what: String| ArtifactError::Tampered {
        path: folder.to_path_buf(),
        what,
    };
    if manifest.seal != manifest.sealed() {
        return Err(tampered(format!(
            "{} does not fit its seal",
            file::MANIFEST
        )));
    }
    let cubin = manifest.cubin.as_ref().map(|_| file::CUBIN);
    for name in file::ALWAYS.into_iter().chain(cubin) {
        if !manifest.files.contains_key(name) {
            return Err(tampered(format!(
                "{} has no hash of {name}",
                file::MANIFEST
            )));
        }
    }
    for (name, hash) in &manifest.files {
        let bytes = read_bytes(folder, name)?;
        if self::hash(&bytes) != *hash {
            return Err(tampered(format!("{name} does not fit its hash")));
        }
    }
    Ok(())
}

/// A file of an artifact folder.
pub fn read_bytes(folder: &Path, name: &str) -> Result<Vec<u8>, ArtifactError> {
    fs::read(folder.join(name)).map_err(|e| ArtifactError::NoArtifact {
        path: folder.to_path_buf(),
        reason: format!("{name}: {e}"),
    })
}

/// A text file of an artifact folder.
pub fn read_text(folder: &Path, name: &str) -> Result<String, ArtifactError> {
    fs::read_to_string(folder.join(name)).map_err(|e| ArtifactError::NoArtifact {
        path: folder.to_path_buf(),
        reason: format!("{name}: {e}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_no_artifact_is_left_alone() {
        let above = tempfile::tempdir().expect("a temporary folder");
        let path = above.path().join("mine");
        fs::create_dir(&path).expect("a folder");
        fs::write(path.join("thesis.tex"), "years of work").expect("a file");
        let error = Destination::new(&path).expect_err("occupied");
        assert!(matches!(error, ArtifactError::Occupied { .. }), "{error}");
        assert!(path.join("thesis.tex").exists());
    }

    #[test]
    fn files_appear_together_and_nothing_else() {
        let above = tempfile::tempdir().expect("a temporary folder");
        let path = above.path().join("deep/er/k");
        let there = Destination::new(&path).expect("writable");
        assert!(!path.exists());
        there
            .write(&[("a", b"1".to_vec()), ("b", b"2".to_vec())])
            .expect("writable");
        there.write(&[("a", b"3".to_vec())]).expect("writable");
        assert_eq!(fs::read(path.join("a")).expect("a file"), b"3");
        assert!(!path.join("b").exists());
        let around = fs::read_dir(parent(&path)).expect("a folder").count();
        assert_eq!(around, 1, "temporary folders were left behind");
    }

    #[test]
    fn a_write_that_fails_changes_nothing() {
        let above = tempfile::tempdir().expect("a temporary folder");
        let path = above.path().join("k");
        let there = Destination::new(&path).expect("writable");
        let broken: [(&str, Vec<u8>); 2] = [("a", b"2".to_vec()), ("no/such/folder", Vec::new())];
        there.write(&broken).expect_err("the second file");
        assert!(!path.exists(), "half an artifact");
        there.write(&[("a", b"1".to_vec())]).expect("writable");
        there.write(&broken).expect_err("the second file");
        assert_eq!(fs::read(path.join("a")).expect("a file"), b"1");
        let around = fs::read_dir(above.path()).expect("a folder").count();
        assert_eq!(around, 1, "temporary folders were left behind");
    }

    #[test]
    fn an_artifact_of_another_format_is_named_and_can_be_replaced() {
        let above = tempfile::tempdir().expect("a temporary folder");
        fs::write(above.path().join(file::MANIFEST), r#"{"format": 1}"#).expect("a file");
        let error = read_manifest(above.path()).expect_err("an old format");
        let message = error.to_string();
        assert!(
            message.contains("format 1") && message.contains("make it again"),
            "{message}"
        );
        Destination::new(above.path()).expect("an artifact gives way to an artifact");
        fs::write(above.path().join(file::MANIFEST), r#"{"format": "mine"}"#).expect("a file");
        let error = Destination::new(above.path()).expect_err("no artifact");
        assert!(matches!(error, ArtifactError::Occupied { .. }), "{error}");
    }

    #[test]
    fn a_file_above_the_folder_is_an_error() {
        let above = tempfile::tempdir().expect("a temporary folder");
        fs::write(above.path().join("f"), "").expect("a file");
        Destination::new(&above.path().join("f/k")).expect_err("not a folder");
    }
}
