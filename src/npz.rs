//! Named arrays in NumPy's `.npz` files, read as f64, and written as f64, as integers or as booleans.
//!
//! Reading accepts every dtype of real numbers that NumPy has (floats, integers, booleans; either byte order) in either memory order, and
//! takes the numbers as they are: nothing is rounded to a parameter's dtype. What a file claims is compared with what is wanted
//! before any of it is inflated, and no more is inflated than is wanted. Writing goes to a temporary file beside the
//! target, renamed when complete. This module does not know programs: which arrays are wanted is [`Wanted`].

mod header;

use crate::files;
use header::{Element, Header};
use ir::Dtype;
use ir::limits::MAX_RANK;
use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use zip::result::ZipError;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// Most members of a file.
const MAX_MEMBERS: usize = 4096;
/// Most bytes that are read to find out what the members are.
const MAX_DIRECTORY: u64 = 1 << 20;
/// Bytes that a file may have beside its arrays.
const SLACK: u64 = 1 << 26;
/// Most names that a message lists, and characters of each.
const NAMED: usize = 10;
const NAME_SHOWN: usize = 60;
/// Bytes that are decoded at a time; elements of every dtype fit a whole number of times.
const PIECE: usize = 1 << 16;

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
    /// As what they are written; a float is written as f64, whichever it is. Of what was read, f32.
    pub dtype: Dtype,
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
/// shapes, dtypes that are no real numbers, arrays cut short.
pub fn read(path: &Path, wanted: &[Wanted]) -> Result<Vec<Array>, NpzError> {
    let archive = |reason: String| NpzError::Archive {
        path: path.to_path_buf(),
        reason,
    };
    let file = files::open(path, files::Links::Followed).map_err(|source| NpzError::File {
        path: path.to_path_buf(),
        source,
    })?;
    size(&file, wanted).map_err(archive)?;
    let (mut members, names) = directory(file).map_err(archive)?;
    let mut faults = Vec::new();
    let unexpected: Vec<&String> = (names.iter())
        .filter(|name| !wanted.iter().any(|w| w.name == **name))
        .collect();
    for name in unexpected.iter().take(NAMED) {
        faults.push(format!(
            "unexpected array {}; {}",
            quoted(name),
            expected(wanted)
        ));
    }
    if unexpected.len() > NAMED {
        faults.push(format!("and {} more", unexpected.len() - NAMED));
    }
    let mut arrays = Vec::new();
    for want in wanted {
        let Some(index) = names.iter().position(|n| n == &want.name) else {
            faults.push(format!(
                "missing array `{}` of shape {}; found {}",
                want.name,
                shape_text(&want.shape),
                names_text(names.iter().map(String::as_str))
            ));
            continue;
        };
        let member = members.by_index(index).map_err(words);
        match member.and_then(|mut member| array(&mut member, &want.shape)) {
            Ok(data) => arrays.push(Array {
                name: want.name.clone(),
                shape: want.shape.clone(),
                data,
                dtype: Dtype::F32,
            }),
            Err(why) => faults.push(format!("array `{}`: {why}", want.name)),
        }
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

/// Refuses a file far longer than the wanted arrays: opening an archive may take memory in proportion to its length.
fn size(file: &File, wanted: &[Wanted]) -> Result<(), String> {
    let of_array = |w: &Wanted| w.shape.iter().fold(8, |n: u64, e| n.saturating_mul(*e));
    let needed = wanted.iter().map(of_array).fold(0, u64::saturating_add);
    let most = needed.saturating_mul(2).saturating_add(SLACK);
    match file.metadata().map_err(|e| e.to_string())?.len() {
        found if found > most => Err(format!(
            "it has {found} bytes, and {} take {needed}",
            names_text(wanted.iter().map(|w| w.name.as_str()))
        )),
        _ => Ok(()),
    }
}

/// A file that may be read so far, and no further.
struct Bounded {
    file: BufReader<File>,
    left: Rc<Cell<u64>>,
}

impl Read for Bounded {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.left.get() == 0 {
            return Err(io::Error::other(format!(
                "no list of members in {MAX_DIRECTORY} bytes"
            )));
        }
        let read = self.file.read(to)?;
        self.left.set(self.left.get().saturating_sub(read as u64));
        Ok(read)
    }
}

impl Seek for Bounded {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

/// The members of an archive, and the names of the arrays that they are.
fn directory(file: File) -> Result<(ZipArchive<Bounded>, Vec<String>), String> {
    let left = Rc::new(Cell::new(MAX_DIRECTORY));
    let bounded = Bounded {
        file: BufReader::new(file),
        left: left.clone(),
    };
    let members = ZipArchive::new(bounded).map_err(words)?;
    if members.len() > MAX_MEMBERS {
        return Err(format!(
            "expected at most {MAX_MEMBERS} arrays, found {}",
            members.len()
        ));
    }
    let names = (0..members.len())
        .map(|n| {
            let name = members.name_for_index(n).unwrap_or_default();
            name.strip_suffix(".npy").unwrap_or(name).to_owned()
        })
        .collect();
    // The members are as long as the wanted arrays are.
    left.set(u64::MAX);
    Ok((members, names))
}

/// What is wrong with an archive; of what the system refused, the system's words.
fn words(error: ZipError) -> String {
    if let ZipError::Io(error) = error {
        error.to_string()
    } else {
        error.to_string()
    }
}

/// The elements of an array that has the wanted shape, in row-major order.
fn array(reader: &mut impl Read, wanted: &[u64]) -> Result<Vec<f64>, String> {
    let header = Header::read(reader)?;
    if header.shape != wanted {
        return Err(format!(
            "expected shape {}, found {}",
            shape_text(wanted),
            shape_text(&header.shape)
        ));
    }
    let cut = |e: io::Error| format!("cut short or damaged: {e}");
    let size = header.element.bytes() as u64;
    let count = wanted.iter().try_fold(size, |n, e| n.checked_mul(*e));
    let mut left = count.ok_or("the shape is too large")?;
    // Grows with what is there: a header may claim any length.
    let mut data = Vec::new();
    let mut piece = vec![0; PIECE];
    while left > 0 {
        let next = &mut piece[..left.min(PIECE as u64) as usize];
        reader.read_exact(next).map_err(cut)?;
        let elements = next.chunks_exact(header.element.bytes());
        data.extend(elements.map(|b| header.element.decode(b)));
        left -= next.len() as u64;
    }
    // At the end, where there is one, the checksum is compared.
    match reader.read(&mut [0]).map_err(cut)? {
        0 if header.fortran_order => Ok(row_major(&data, wanted)),
        0 => Ok(data),
        _ => Err(format!("more bytes than shape {} has", shape_text(wanted))),
    }
}

/// What is stored with the first dimension fastest, with the last one fastest.
fn row_major(data: &[f64], shape: &[u64]) -> Vec<f64> {
    let mut strides = Vec::new();
    let mut stride = 1;
    for extent in shape {
        strides.push(stride);
        stride *= *extent as usize;
    }
    let mut at = vec![0u64; shape.len()];
    let mut from = 0;
    let mut out = Vec::with_capacity(data.len());
    for _ in data {
        out.push(data[from]);
        for d in (0..shape.len()).rev() {
            at[d] += 1;
            from += strides[d];
            if at[d] < shape[d] {
                break;
            }
            at[d] = 0;
            from -= strides[d] * shape[d] as usize;
        }
    }
    out
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

/// Writes arrays, completely or not at all.
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
        let mut archive = ZipWriter::new(BufWriter::new(file.as_file_mut()));
        for array in arrays {
            if array.shape.len() > MAX_RANK {
                return Err(other(&format!(
                    "array `{}` has {} dimensions, expected at most {MAX_RANK}",
                    array.name,
                    array.shape.len()
                )));
            }
            let element = Element::of(array.dtype);
            let bytes = element.bytes() as u64 * array.data.len() as u64;
            let options = SimpleFileOptions::default()
                .compression_method(CompressionMethod::Stored)
                .large_file(bytes >= u64::from(u32::MAX) - PIECE as u64);
            archive
                .start_file(format!("{}.npy", array.name), options)
                .map_err(|e| other(&e))?;
            archive
                .write_all(&Header::of(element, &array.shape))
                .map_err(fail)?;
            for piece in array.data.chunks(PIECE / 8) {
                let bytes = match array.dtype.is_float() {
                    true => piece.iter().flat_map(|x| x.to_le_bytes()).collect(),
                    false => array.dtype.encode(piece),
                };
                archive.write_all(&bytes).map_err(fail)?;
            }
        }
        let mut inner = archive.finish().map_err(|e| other(&e))?;
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
    let names = wanted.iter().map(|w| w.name.as_str());
    format!("expected {}", names_text(names))
}

fn names_text<'n>(names: impl ExactSizeIterator<Item = &'n str>) -> String {
    let more = names.len().saturating_sub(NAMED);
    let mut listed: Vec<String> = names.take(NAMED).map(quoted).collect();
    if more > 0 {
        listed.push(format!("and {more} more"));
    }
    match listed.is_empty() {
        true => "no arrays".to_owned(),
        false => listed.join(", "),
    }
}

/// A name that anybody may have written.
fn quoted(name: &str) -> String {
    let mut shown = name.escape_debug().take(NAME_SHOWN + 1).collect::<String>();
    if shown.chars().count() > NAME_SHOWN {
        shown.pop();
        shown.push('…');
    }
    format!("`{shown}`")
}

fn shape_text(shape: &[u64]) -> String {
    let extents: Vec<String> = shape.iter().map(u64::to_string).collect();
    format!("[{}]", extents.join(", "))
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
            dtype: Dtype::F32,
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
    fn integers_and_booleans_are_written_as_such() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.npz");
        let stored: [(Dtype, &str, &[f64]); 3] = [
            (Dtype::I32, "<i4", &[-2147483648.0, 7.0]),
            (Dtype::I64, "<i8", &[-9007199254740991.0, 2.0]),
            (Dtype::Bool, "|b1", &[1.0, 0.0]),
        ];
        for (dtype, name, data) in stored {
            let array = Array {
                shape: vec![2],
                data: data.to_vec(),
                dtype,
                ..sample()
            };
            write(&path, std::slice::from_ref(&array)).expect("writable");
            let bytes = std::fs::read(&path).expect("a file");
            let found = String::from_utf8_lossy(&bytes).contains(&format!("'descr': '{name}'"));
            assert!(found, "{name}");
            let found = read(&path, &[want("x", &[2])]).expect("readable");
            assert_eq!(found[0].data, array.data, "{name}");
        }
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

    /// An archive of members that are given byte for byte.
    fn archive(path: &Path, method: CompressionMethod, members: &[(&str, Vec<u8>)]) {
        let mut archive = ZipWriter::new(File::create(path).expect("writable"));
        let options = SimpleFileOptions::default().compression_method(method);
        for (name, bytes) in members {
            archive.start_file(*name, options).expect("writable");
            archive.write_all(bytes).expect("writable");
        }
        archive.finish().expect("writable");
    }

    fn npy(header: &str, elements: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(elements);
        bytes
    }

    #[test]
    fn either_order_and_compression_is_read() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.npz");
        let bytes =
            |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
        let rows = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
        let columns = "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }";
        for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
            archive(
                &path,
                method,
                &[
                    ("c.npy", npy(rows, &bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))),
                    ("f", npy(columns, &bytes(&[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]))),
                ],
            );
            let found = read(&path, &[want("f", &[2, 3]), want("c", &[2, 3])]).expect("readable");
            for array in found {
                assert_eq!(array.data, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "{}", array.name);
            }
        }
    }

    /// Within seconds, and in a few lines.
    fn refused(path: &Path, wanted: &[Wanted], part: &str) {
        let begun = std::time::Instant::now();
        let message = read(path, wanted).expect_err(part).to_string();
        assert!(message.contains(part), "{message}\nexpected: {part}");
        assert!(message.len() < 4000, "{} characters", message.len());
        assert!(begun.elapsed().as_secs() < 5, "{part}");
    }

    #[test]
    fn what_is_claimed_is_compared_before_it_is_inflated() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.npz");
        let header = "{'descr': '<f8', 'fortran_order': False, 'shape': (4000000,), }";
        let large = npy(header, &vec![0; 32_000_000]);
        archive(&path, CompressionMethod::Deflated, &[("x.npy", large)]);
        refused(
            &path,
            &[want("x", &[2])],
            "expected shape [2], found [4000000]",
        );
        // No more than its shape is inflated, whatever follows.
        let small = "{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }";
        let long = npy(small, &vec![0; 32_000_000]);
        archive(&path, CompressionMethod::Deflated, &[("x.npy", long)]);
        refused(&path, &[want("x", &[2])], "more bytes than shape [2] has");
        let short = npy(header, &[0; 64]);
        archive(&path, CompressionMethod::Stored, &[("x.npy", short)]);
        refused(&path, &[want("x", &[4_000_000])], "cut short");
        // A bit of an element.
        archive(
            &path,
            CompressionMethod::Stored,
            &[("x.npy", npy(small, &[7; 16]))],
        );
        let mut bytes = std::fs::read(&path).expect("readable");
        let at = bytes
            .windows(16)
            .position(|w| w == [7; 16])
            .expect("the elements");
        bytes[at] = 6;
        std::fs::write(&path, bytes).expect("writable");
        refused(&path, &[want("x", &[2])], "damaged");
    }

    #[test]
    fn headers_and_lists_of_members_are_bounded() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.npz");
        let x = [want("x", &[1])];
        // 24 brackets: a parser that tries each alternative twice takes months.
        let nested = format!(
            "{{'descr': {}'<f8'{}, 'shape': (1,)}}",
            "[".repeat(24),
            "]".repeat(24)
        );
        archive(
            &path,
            CompressionMethod::Stored,
            &[("x.npy", npy(&nested, &[0; 8]))],
        );
        refused(&path, &x, "expected a dtype of numbers");
        let names: Vec<String> = (0..9000).map(|n| format!("n{n}.npy")).collect();
        let members: Vec<(&str, Vec<u8>)> =
            names.iter().map(|n| (n.as_str(), Vec::new())).collect();
        archive(&path, CompressionMethod::Stored, &members);
        refused(&path, &x, "expected at most 4096 arrays, found 9000");
        archive(&path, CompressionMethod::Stored, &members[..4000]);
        refused(&path, &x, "and 3990 more");
        let long = ["a", "b", "c"].map(|letter| letter.repeat(60_000));
        let members = long.each_ref().map(|n| (n.as_str(), Vec::new()));
        archive(&path, CompressionMethod::Stored, &members);
        refused(&path, &x, "aaaa…`");
        let control = [("\u{1b}[2J.npy", Vec::new())];
        archive(&path, CompressionMethod::Stored, &control);
        refused(&path, &x, "\\u{1b}[2J");
        // No archive, and as long as no array that is wanted.
        let file = File::create(&path).expect("writable");
        file.set_len(1 << 42).expect("a sparse file");
        refused(&path, &x, "it has 4398046511104 bytes, and `x` take 8");
        file.set_len(1 << 26).expect("a sparse file");
        refused(&path, &x, "no list of members in 1048576 bytes");
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
