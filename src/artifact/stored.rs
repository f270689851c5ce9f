//! An artifact that is there, read once: what was checked is what is used.

use super::survey;
use super::{ArtifactError, FORMAT, Manifest, file, hash};
use crate::files::{self, Links};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The files of an artifact, as they are: [`check`](Self::check) tells whether they are those that were written.
#[derive(Clone, Debug)]
pub struct Artifact {
    folder: PathBuf,
    manifest: Manifest,
    files: BTreeMap<&'static str, Vec<u8>>,
}

impl Artifact {
    /// Reads all files that an artifact has, and no others: what the manifest may say of further ones is not followed.
    ///
    /// # Errors
    /// The first file that is missing, is no regular file, or is longer than [`file::MOST_BYTES`]; a manifest of another format.
    pub fn read(folder: &Path) -> Result<Self, ArtifactError> {
        survey::settled(folder, || Self::read_once(folder)).map_err(|source| ArtifactError::Io {
            path: folder.to_path_buf(),
            source,
        })?
    }

    fn read_once(folder: &Path) -> Result<Self, ArtifactError> {
        let text = read(folder, file::MANIFEST)?;
        let manifest = parsed(folder, &text)?;
        let mut files = BTreeMap::from([(file::MANIFEST, text)]);
        for name in names(&manifest) {
            files.insert(name, read(folder, name)?);
        }
        Ok(Self {
            folder: folder.to_path_buf(),
            manifest,
            files,
        })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What it says about itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The bytes of a file of [`mod@file`].
    ///
    /// # Errors
    /// An artifact that does not have it.
    pub fn bytes(&self, name: &str) -> Result<&[u8], ArtifactError> {
        let bytes = self.files.get(name).map(Vec::as_slice);
        bytes.ok_or_else(|| no_artifact(&self.folder, name, &"it has no such file"))
    }

    /// The compiled kernels: a cubin for each launch.
    ///
    /// # Errors
    /// An artifact that has none, and one whose manifest says of their sizes what does not fit.
    pub fn cubins(&self) -> Result<Vec<&[u8]>, ArtifactError> {
        let mut rest = self.bytes(file::CUBIN)?;
        let sizes = self.manifest.cubin.iter().flat_map(|entry| &entry.bytes);
        let mut cubins = Vec::new();
        for size in sizes {
            let Some((cubin, behind)) = rest.split_at_checked(*size as usize) else {
                break;
            };
            cubins.push(cubin);
            rest = behind;
        }
        let wanted = self.manifest.launches.len();
        let listed = self
            .manifest
            .cubin
            .as_ref()
            .map_or(0, |entry| entry.bytes.len());
        match rest.is_empty() && cubins.len() == wanted && listed == wanted {
            true => Ok(cubins),
            false => Err(self.tampered(format!(
                "{} is not the cubins of {wanted} launches, of the sizes that {} says",
                file::CUBIN,
                file::MANIFEST
            ))),
        }
    }

    /// The text of a file of [`mod@file`].
    ///
    /// # Errors
    /// An artifact that does not have it, and bytes that are no text.
    pub fn text(&self, name: &str) -> Result<&str, ArtifactError> {
        let text = std::str::from_utf8(self.bytes(name)?);
        text.map_err(|e| no_artifact(&self.folder, name, &format!("not UTF-8 text: {e}")))
    }

    /// All files, by their names, as they are written.
    ///
    /// # Errors
    /// One that the manifest names is none of an artifact's.
    pub fn files(&self) -> Result<Vec<(&'static str, Vec<u8>)>, ArtifactError> {
        let is_ours =
            |name: &&str| *name == file::MANIFEST || self.manifest.files.contains_key(*name);
        let named = file::ALL.into_iter().filter(is_ours);
        named
            .map(|name| Ok((name, self.bytes(name)?.to_vec())))
            .collect()
    }

    /// Whether the files are those that were written, by their hashes in the manifest. The hashes have no key: whoever means to
    /// change an artifact changes them too, and only a replay tells.
    ///
    /// # Errors
    /// The first file that isn't.
    pub fn check(&self) -> Result<(), ArtifactError> {
        let manifest = &self.manifest;
        let fits = manifest.seal == manifest.sealed();
        // The text too: what a reader passes over is not under the seal.
        if !fits || self.bytes(file::MANIFEST)? != manifest.text().as_bytes() {
            return Err(self.tampered(format!("{} does not fit its seal", file::MANIFEST)));
        }
        for name in names(manifest) {
            match manifest.files.get(name) {
                Some(recorded) if *recorded == hash(self.bytes(name)?) => {}
                Some(_) => return Err(self.tampered(format!("{name} does not fit its hash"))),
                None => {
                    let what = format!("{} has no hash of {name}", file::MANIFEST);
                    return Err(self.tampered(what));
                }
            }
        }
        let known: Vec<&str> = names(manifest).collect();
        match manifest.files.keys().find(|n| !known.contains(&n.as_str())) {
            None => Ok(()),
            Some(name) => Err(self.tampered(format!(
                "{} has a hash of `{name}`, which is no file of this artifact",
                file::MANIFEST
            ))),
        }
    }

    /// Whether the folder holds nothing else. Python takes some names for the package before it looks at `__init__.py`, so a file
    /// that an artifact does not have may be what is imported. The exception is what Python itself leaves in `__pycache__`.
    ///
    /// # Errors
    /// What else there is.
    pub fn check_alone(&self) -> Result<(), ArtifactError> {
        let found = survey::entries(&self.folder).map_err(|source| ArtifactError::Io {
            path: self.folder.clone(),
            source,
        })?;
        let known: Vec<&str> = names(&self.manifest).chain([file::MANIFEST]).collect();
        let ours = |name: &&str| !known.contains(name);
        let mut others = found.others;
        others.extend(
            found
                .ours
                .into_iter()
                .filter(ours)
                .map(|n| format!("`{n}`")),
        );
        if others.is_empty() {
            return Ok(());
        }
        Err(self.tampered(format!(
            "besides its files there is {}",
            super::some(&others)
        )))
    }

    fn tampered(&self, what: String) -> ArtifactError {
        ArtifactError::Tampered {
            path: self.folder.clone(),
            what,
        }
    }
}

/// The manifest of an artifact folder.
///
/// # Errors
/// A folder without one, and one of another format.
pub fn read_manifest(folder: &Path) -> Result<Manifest, ArtifactError> {
    parsed(folder, &read(folder, file::MANIFEST)?)
}

/// The files next to a manifest.
pub(super) fn names(manifest: &Manifest) -> impl Iterator<Item = &'static str> + use<> {
    let cubin = manifest.cubin.as_ref().map(|_| file::CUBIN);
    file::ALWAYS.into_iter().chain(cubin)
}

/// The bytes of a regular file of an artifact.
pub(super) fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    files::read(path, file::MOST_BYTES, Links::Refused)
}

fn read(folder: &Path, name: &str) -> Result<Vec<u8>, ArtifactError> {
    read_regular(&folder.join(name)).map_err(|e| no_artifact(folder, name, &e))
}

fn parsed(folder: &Path, text: &[u8]) -> Result<Manifest, ArtifactError> {
    let refuse = |e: &dyn std::fmt::Display| no_artifact(folder, file::MANIFEST, e);
    let value: serde_json::Value = serde_json::from_slice(text).map_err(|e| refuse(&e))?;
    match value.get("format").and_then(serde_json::Value::as_u64) {
        Some(found) if found == u64::from(FORMAT) => {}
        Some(found) => {
            return Err(ArtifactError::OtherFormat {
                path: folder.to_path_buf(),
                found,
            });
        }
        None => return Err(refuse(&"no `format`")),
    }
    serde_json::from_value(value).map_err(|e| refuse(&e))
}

fn no_artifact(folder: &Path, name: &str, reason: &dyn std::fmt::Display) -> ArtifactError {
    ArtifactError::NoArtifact {
        path: folder.to_path_buf(),
        reason: format!("{name}: {reason}"),
    }
}
