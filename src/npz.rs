//! Named arrays in NumPy's `.npz` files, read and written as f64.
//!
//! Reading accepts every float dtype that NumPy has (`f2`, `f4`, `f8`, either byte order) in either memory order, and
//! takes the numbers as they are: nothing is rounded to a parameter's dtype. Writing goes to a temporary file beside the
//! target, renamed when complete. This module does not know programs: which arrays are wanted is [`Wanted`].

use half::f16;
use ndarray::{ArrayD, IxDyn};
use ndarray_npy::{NpzReader, NpzWriter, ReadDataError, ReadableElement};
use py_literal::Value as PyValue;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// An array that a file should hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<u64>,
}

/// An array in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Its elements, the last dimension fastest.
    pub data: Vec<f64>,
}

/// Why arrays could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum NpzError {
    /// The file cannot be opened or created.
    #[error("{}: {source}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is no archive of arrays, or is cut short.
    #[error("{}: not a complete .npz file: {reason}", path.display())]
    Archive {
        /// Which file.
        path: PathBuf,
        /// What the reader said.
        reason: String,
    },
    /// The arrays are not the wanted ones; every fault, one a line.
    #[error("{}: {}", path.display(), faults.join("\n  "))]
    Arrays {
        /// Which file.
        path: PathBuf,
        /// What was expected and what was found.
        faults: Vec<String>,
    },
}

/// Reads the wanted arrays, in the wanted order. All faults are reported at once: missing and superfluous names, other
/// shapes, dtypes that are no floats, arrays cut short.
pub fn read(path: &Path, wanted: &[Wanted]) -> Result<Vec<Array>, NpzError> {
    let archive = |e: &dyn std::fmt::Display| NpzError::Archive {
        path: path.to_path_buf(),
        reason: e.to_string(),
    };
    let file = File::open(path).map_err(|source| NpzError::File {
        path: path.to_path_buf(),
        source,
    })?;
    let mut reader = NpzReader::new(BufReader::new(file)).map_err(|e| archive(&e))?;
    let names = reader.names().map_err(|e| archive(&e))?;
    let mut faults = Vec::new();
    for name in &names {
        if !wanted.iter().any(|w| &w.name == name) {
            faults.push(format!("unexpected array `{name}`; {}", expected(wanted)));
        }
    }
    let mut arrays = Vec::new();
    for want in wanted {
        let Some(index) = names.iter().position(|n| n == &want.name) else {
            faults.push(format!(
                "missing array `{}` of shape {}; found {}",
                want.name,
                shape_text(&want.shape),
                names_text(&names)
            ));
            continue;
        };
        let array: ArrayD<Element> = match reader.by_index(index) {
            Ok(array) => array,
            Err(e) => {
                faults.push(format!("array `{}`: {e}", want.name));
                continue;
            }
        };
        let shape: Vec<u64> = array.shape().iter().map(|n| *n as u64).collect();
        if shape != want.shape {
            faults.push(format!(
                "array `{}`: expected shape {}, found {}",
                want.name,
                shape_text(&want.shape),
                shape_text(&shape)
            ));
            continue;
        }
        arrays.push(Array {
            name: want.name.clone(),
            shape,
            data: array.iter().map(|e| e.0).collect(),
        });
    }
    if faults.is_empty() {
        Ok(arrays)
    } else {
        Err(NpzError::Arrays {
            path: path.to_path_buf(),
            faults,
        })
    }
}

/// Checks, before any work is done, that a file can be put at `path`.
pub fn writable(path: &Path) -> Result<(), NpzError> {
    let fail = |source: std::io::Error| NpzError::File {
        path: path.to_path_buf(),
        source,
    };
    if path.file_name().is_none() {
        return Err(fail(std::io::Error::other("is no file")));
    }
    tempfile::tempfile_in(parent(&place(path).map_err(fail)?)).map_err(fail)?;
    Ok(())
}

/// Where a file at `path` is put: where a link points, and only in the place of a file.
fn place(path: &Path) -> std::io::Result<PathBuf> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(path.to_path_buf()),
        Err(e) => Err(e),
        Ok(found) if found.is_symlink() => {
            let target = std::fs::canonicalize(path)?;
            match target.is_file() {
                true => Ok(target),
                false => Err(std::io::Error::other("is no file")),
            }
        }
        Ok(found) if found.is_file() => Ok(path.to_path_buf()),
        Ok(_) => Err(std::io::Error::other("is no file")),
    }
}

/// Writes arrays as f64, completely or not at all.
pub fn write(path: &Path, arrays: &[Array]) -> Result<(), NpzError> {
    let fail = |source: std::io::Error| NpzError::File {
        path: path.to_path_buf(),
        source,
    };
    let other = |e: &dyn std::fmt::Display| fail(std::io::Error::other(e.to_string()));
    let place = place(path).map_err(fail)?;
    // What the user's mask leaves of that, as for any file.
    let mut file = tempfile::Builder::new()
        .prefix(".tilewright-")
        .permissions(std::fs::Permissions::from_mode(0o666))
        .tempfile_in(parent(&place))
        .map_err(fail)?;
    {
        let mut writer = NpzWriter::new(BufWriter::new(file.as_file_mut()));
        for array in arrays {
            let shape: Vec<usize> = array.shape.iter().map(|n| *n as usize).collect();
            let view = ndarray::ArrayView::from_shape(IxDyn(&shape), &array.data)
                .map_err(|e| other(&e))?;
            writer
                .add_array(array.name.as_str(), &view)
                .map_err(|e| other(&e))?;
        }
        let mut inner = writer.finish().map_err(|e| other(&e))?;
        inner.flush().map_err(fail)?;
    }
    file.persist(&place).map_err(|e| fail(e.error))?;
    Ok(())
}

/// The folder that a path lies in.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    }
}

fn expected(wanted: &[Wanted]) -> String {
    let names: Vec<String> = wanted.iter().map(|w| w.name.clone()).collect();
    format!("expected {}", names_text(&names))
}

fn names_text(names: &[String]) -> String {
    if names.is_empty() {
        return "no arrays".to_owned();
    }
    let quoted: Vec<String> = names.iter().map(|n| format!("`{n}`")).collect();
    quoted.join(", ")
}

fn shape_text(shape: &[u64]) -> String {
    let extents: Vec<String> = shape.iter().map(u64::to_string).collect();
    format!("[{}]", extents.join(", "))
}

/// Any float of NumPy, widened to f64.
struct Element(f64);

impl ReadableElement for Element {
    fn read_to_end_exact_vec<R: Read>(
        mut reader: R,
        descriptor: &PyValue,
        len: usize,
    ) -> Result<Vec<Self>, ReadDataError> {
        let wrong = || {
            ReadDataError::ParseData(
                format!("expected a float dtype (f2, f4 or f8), found {descriptor}").into(),
            )
        };
        let text = descriptor.as_string().ok_or_else(wrong)?;
        let (size, decode): (usize, fn(&[u8]) -> f64) = match text.as_str() {
            "<f2" => (2, |b| f16::from_le_bytes(array(b)).to_f64()),
            ">f2" => (2, |b| f16::from_be_bytes(array(b)).to_f64()),
            "<f4" => (4, |b| f64::from(f32::from_le_bytes(array(b)))),
            ">f4" => (4, |b| f64::from(f32::from_be_bytes(array(b)))),
            "<f8" => (8, |b| f64::from_le_bytes(array(b))),
            ">f8" => (8, |b| f64::from_be_bytes(array(b))),
            _ => return Err(wrong()),
        };
        // The header may claim any length: nothing is allocated that the file does not hold.
        let bytes = len.checked_mul(size).ok_or(ReadDataError::MissingData)?;
        let mut data = Vec::new();
        reader.by_ref().take(bytes as u64).read_to_end(&mut data)?;
        if data.len() < bytes {
            return Err(ReadDataError::MissingData);
        }
        let extra = std::io::copy(&mut reader, &mut std::io::sink())?;
        if extra > 0 {
            return Err(ReadDataError::ExtraBytes(extra as usize));
        }
        Ok(data.chunks_exact(size).map(|b| Self(decode(b))).collect())
    }
}

/// The first `N` bytes of a slice that has them.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[..N]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn want(name: &str, shape: &[u64]) -> Wanted {
        Wanted {
            name: name.to_owned(),
            shape: shape.to_vec(),
        }
    }

    fn sample() -> Array {
        Array {
            name: "x".to_owned(),
            shape: vec![2, 3],
            data: vec![0.0, -1.5, f64::INFINITY, 3.0, 1e300, -0.0],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.npz");
        write(&path, &[sample()]).expect("writable");
        assert_eq!(
            read(&path, &[want("x", &[2, 3])]).expect("readable"),
            [sample()]
        );
        assert_eq!(
            std::fs::read_dir(folder.path()).expect("a folder").count(),
            1
        );
    }

    #[test]
    fn only_files_are_replaced() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        std::fs::write(&target, "old").expect("writable");
        std::os::unix::fs::symlink(&target, &link).expect("a link");
        writable(&link).expect("a link to a file");
        write(&link, &[sample()]).expect("writable");
        assert!(link.is_symlink());
        read(&target, &[want("x", &[2, 3])]).expect("readable");
        let dangling = folder.path().join("dangling");
        std::os::unix::fs::symlink(folder.path().join("nowhere"), &dangling).expect("a link");
        for path in [Path::new("/dev/null"), folder.path(), &dangling] {
            writable(path).expect_err("no file");
            write(path, &[sample()]).expect_err("no file");
        }
        assert!(!Path::new("/dev/null").is_file());
    }

    #[test]
    fn all_faults_are_named_at_once() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.npz");
        let mut other = sample();
        other.name = "y".to_owned();
        write(&path, &[sample(), other]).expect("writable");
        let message = read(&path, &[want("x", &[3, 2]), want("z", &[1])])
            .expect_err("three faults")
            .to_string();
        for part in [
            "unexpected array `y`; expected `x`, `z`",
            "array `x`: expected shape [3, 2], found [2, 3]",
            "missing array `z` of shape [1]; found `x`, `y`",
        ] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn a_truncated_file_is_an_error_at_every_length() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.npz");
        write(&path, &[sample()]).expect("writable");
        let whole = std::fs::read(&path).expect("readable");
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).expect("writable");
            read(&path, &[want("x", &[2, 3])]).expect_err("cut short");
        }
    }
}
