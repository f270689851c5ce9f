//! The folder that a user receives: a Python package with the kernel, its sources and its evidence.
//!
//! | module | what it decides |
//! |---|---|
//! | `stored` | what is in an artifact's files, read once, and whether they are those that were written |
//! | `survey` | whether a folder holds an artifact and nothing else |
//! | `destination` | which folder gives way to an artifact, and how one takes the place of another |
//! | `staging` | where an artifact is written before it takes its place, and what becomes of it when the process is killed |
//!
//! An artifact appears at its place complete or not at all. Only an artifact that is wholly one is ever removed: a folder that
//! holds anything else stays as it is. This module does not decide what goes in: the emitter does.

mod destination;
#[cfg(test)]
pub(crate) mod samples;
mod staging;
mod stored;
mod survey;

pub use destination::{Destination, GivesWay};
pub use stored::{Artifact, read_manifest};

use crate::pipeline::history::History;
use crate::pipeline::{Derivation, Search};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// The version of an artifact: how `manifest.json` is laid out, and what its evidence is drawn from, which a replay draws again. Readers refuse another.
pub const FORMAT: u32 = 16;

/// The files of an artifact.
pub mod file {
    /// What PyTorch imports.
    pub const WRAPPER: &str = "__init__.py";
    /// The CUDA source.
    pub const CUDA: &str = "kernel.cu";
    /// The compiled kernels, if NVRTC was found: a cubin for each launch, one behind the other.
    pub const CUBIN: &str = "kernel.cubin";
    /// The user's program, sugar expanded.
    pub const PROGRAM: &str = "program.lax";
    /// The equal expression that was chosen.
    pub const EXPRESSION: &str = "expression.lax";
    /// The tile program.
    pub const TILE: &str = "tile.txt";
    /// How each kernel is mapped to the machine.
    pub const SCHEDULE: &str = "schedule.txt";
    /// Everything else.
    pub const MANIFEST: &str = "manifest.json";
    /// What every artifact has, next to its manifest.
    pub const ALWAYS: [&str; 6] = [WRAPPER, CUDA, PROGRAM, EXPRESSION, TILE, SCHEDULE];
    /// Every name that a file of an artifact can have.
    pub const ALL: [&str; 8] = [
        WRAPPER, CUDA, PROGRAM, EXPRESSION, TILE, SCHEDULE, CUBIN, MANIFEST,
    ];
    /// Files of other formats, beside what has taken their place: artifacts that have them can be replaced.
    pub const FORMER: [(&str, &str); 1] = [("schedule.json", SCHEDULE)];
    /// A longer file is none of an artifact's: the longest that were seen have a few megabytes.
    pub const MOST_BYTES: u64 = 64 << 20;
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
    /// Something that is no artifact, or more than one, is at the place.
    #[error(
        "{}: only an artifact and nothing else is replaced, and here is {}; choose another folder or move that away",
        path.display(), some(entries)
    )]
    InTheWay {
        /// Where.
        path: PathBuf,
        /// What is in the way, and why it is.
        entries: Vec<String>,
    },
    /// An artifact of another program or target is at the place.
    #[error("{}: here is an artifact of {found}, and the new one is of {wanted}", path.display())]
    OtherArtifact {
        /// Where.
        path: PathBuf,
        /// What it computes, and for which target.
        found: String,
        /// What was to take its place.
        wanted: String,
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

/// The first few of a list, and how many more there are.
fn some(entries: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut text = entries[..entries.len().min(SHOWN)].join(", ");
    if entries.len() > SHOWN {
        text += &format!(" and {} more", entries.len() - SHOWN);
    }
    text
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
    /// How many bytes of it each launch's cubin takes, one behind the other.
    pub bytes: Vec<u64>,
    /// The compiler's version.
    pub compiler: String,
    /// What the compiler said about each kernel's registers.
    pub registers: BTreeMap<String, u32>,
}

/// What may be said of kernels. Only what ran is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Their tile program was interpreted and is right; they never ran.
    Simulated,
    /// They ran on a GPU of the target's kind, and every element of their results was compared.
    Verified,
}

impl State {
    /// What evidence allows to say.
    pub fn of(evidence: &verify::Evidence) -> Self {
        match evidence.kernel {
            None => Self::Simulated,
            Some(_) => Self::Verified,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Simulated => "simulated",
            Self::Verified => "verified",
        })
    }
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
    /// Where that was; none if nothing was timed, or by a version that did not write it down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timed_on: Option<device::gpu::TimedOn>,
    /// What may be said of the kernels.
    pub state: State,
    /// What was checked, one claim a line.
    pub claims: Vec<String>,
    /// How many candidates were looked at.
    pub candidates: u64,
    /// How many points were rejected, by reason.
    pub rejected: BTreeMap<String, u64>,
    /// The seed of the search and of the drawn inputs.
    pub seed: u64,
    /// How far the search was that wrote this.
    pub search: Search,
    /// What it went through, for people.
    pub history: History,
    /// Why the expression is equal to the program.
    pub derivation: Derivation,
    /// What was checked, with all that it takes to check it again.
    pub evidence: verify::Evidence,
    /// What its machine programs did under the checker.
    pub machine: crate::machine::MachineEvidence,
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

/// How the manifest names the content of a file: BLAKE3, in hexadecimal.
pub fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A folder with an artifact `k`.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let above = tempfile::tempdir().expect("a temporary folder");
        let path = above.path().join("k");
        samples::put(&path, &samples::files("rows", "h200", 0));
        (above, path)
    }

    #[test]
    fn an_artifact_of_another_format_is_named() {
        let above = tempfile::tempdir().expect("a temporary folder");
        fs::write(above.path().join(file::MANIFEST), r#"{"format": 1}"#).expect("a file");
        let message = read_manifest(above.path())
            .expect_err("an old format")
            .to_string();
        assert!(
            message.contains("format 1") && message.contains("make it again"),
            "{message}"
        );
    }

    #[test]
    fn what_was_written_is_read_and_checked() {
        let (_above, path) = place();
        let artifact = Artifact::read(&path).expect("an artifact");
        artifact.check().expect("as it was written");
        artifact.check_alone().expect("nothing else");
        assert_eq!(artifact.manifest().seed, 0);
        assert!(
            artifact
                .text(file::PROGRAM)
                .expect("a text")
                .contains("rows")
        );
        artifact
            .bytes(file::CUBIN)
            .expect_err("nothing was compiled");
    }

    #[test]
    fn a_manifest_says_nothing_that_is_not_under_its_seal() {
        let (_above, path) = place();
        let at = path.join(file::MANIFEST);
        let text = fs::read_to_string(&at).expect("a file");
        for (what, changed) in [
            (
                "another value",
                text.replacen("\"seed\": 0", "\"seed\": 1", 1),
            ),
            (
                "a field more",
                text.replacen('{', "{\"note\": \"mine\",", 1),
            ),
            (
                "the last of two fields",
                text.replacen("\"seed\": 0", "\"seed\": 7, \"seed\": 0", 1),
            ),
            ("another layout", text.replace("  ", " ")),
        ] {
            assert_ne!(text, changed, "{what}");
            fs::write(&at, changed).expect("writable");
            let error = Artifact::read(&path).expect("readable").check();
            let message = error.expect_err(what).to_string();
            assert!(
                message.contains("does not fit its seal"),
                "{what}: {message}"
            );
        }
    }

    #[test]
    fn files_that_are_not_listed_are_found() {
        let (_above, path) = place();
        // Python takes the first of them for the package.
        for name in ["__init__.abi3.so", "kernel.cubin", ".git", "__pycache__"] {
            fs::write(path.join(name), "").expect("writable");
            let error = Artifact::read(&path).expect("readable").check_alone();
            let message = error.expect_err(name).to_string();
            assert!(message.contains(name), "{message}");
            fs::remove_file(path.join(name)).expect("writable");
        }
        fs::create_dir(path.join("__pycache__")).expect("writable");
        fs::write(path.join("__pycache__/__init__.cpython-311.pyc"), "").expect("writable");
        let artifact = Artifact::read(&path).expect("readable");
        artifact.check_alone().expect("what Python leaves");
    }

    #[test]
    fn only_regular_files_of_some_size_are_read() {
        let (_above, path) = place();
        let at = path.join(file::TILE);
        let refused = |what: &str| {
            let read = Artifact::read(&path).map(|_| "it is read");
            let message = read.expect_err(what).to_string();
            assert!(
                message.contains("tile.txt") && message.contains(what),
                "{message}"
            );
            assert!(
                matches!(survey::survey(&path), Ok(survey::Survey::Other(_))),
                "{what}"
            );
        };
        fs::remove_file(&at).expect("writable");
        // Opened like a file it would wait for a writer.
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &at, rustix::fs::FileType::Fifo, mode, 0)
            .expect("a FIFO");
        refused("a FIFO");
        fs::remove_file(&at).expect("writable");
        std::os::unix::fs::symlink(path.join(file::CUDA), &at).expect("a link");
        refused("a symbolic link");
        fs::remove_file(&at).expect("writable");
        fs::create_dir(&at).expect("writable");
        refused("a folder");
        fs::remove_dir(&at).expect("writable");
        let long = fs::File::create(&at).expect("writable");
        long.set_len(file::MOST_BYTES + 1).expect("a sparse file");
        let read = Artifact::read(&path).map(|_| "it is read");
        let message = read.expect_err("too long").to_string();
        assert!(
            message.contains("expected at most 67108864 bytes, found 67108865"),
            "{message}"
        );
        let Ok(survey::Survey::Other(others)) = survey::survey(&path) else {
            panic!("it is no artifact's file")
        };
        assert!(
            others[0].contains("`tile.txt`: expected at most"),
            "{others:?}"
        );
    }
}
