//! Files that a user names: read if they are regular files, and no further than was agreed.
//!
//! A pipe without a writer would block whoever opens it, a device may never end, and a file may be larger than memory.

use rustix::fs::OFlags;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Whether a path may end in a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// What it points to is read.
    Followed,
    /// It is no regular file.
    Refused,
}

/// Opens a regular file for reading. Never waits.
///
/// # Errors
/// The system's, and one that says what else is there.
pub fn open(path: &Path, links: Links) -> io::Result<File> {
    let (found, flags) = match links {
        Links::Followed => (std::fs::metadata(path), OFlags::NONBLOCK),
        Links::Refused => (
            std::fs::symlink_metadata(path),
            OFlags::NONBLOCK | OFlags::NOFOLLOW,
        ),
    };
    // Asked before it is opened, since opening a device may do something, and after, since it may have changed.
    regular(&found?)?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path)?;
    regular(&file.metadata()?)?;
    Ok(file)
}

/// The bytes of a regular file.
///
/// # Errors
/// As [`open`]; more than `most` bytes.
pub fn read(path: &Path, most: u64, links: Links) -> io::Result<Vec<u8>> {
    let file = open(path, links)?;
    let length = file.metadata()?.len();
    let mut bytes = Vec::new();
    if length <= most {
        // What grows while it is read is cut off too.
        file.take(most + 1).read_to_end(&mut bytes)?;
    }
    match length.max(bytes.len() as u64) {
        found if found > most => Err(io::Error::other(format!(
            "expected at most {most} bytes, found {found}"
        ))),
        _ => Ok(bytes),
    }
}

/// The text of a regular file.
///
/// # Errors
/// As [`read`]; bytes that are no UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read(path, most, Links::Followed)?)
        .map_err(|e| io::Error::other(format!("not UTF-8 text: {}", e.utf8_error())))
}

pub(crate) fn regular(found: &Metadata) -> io::Result<()> {
    if found.is_file() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "expected a regular file, found {}",
        kind(found)
    )))
}

/// What kind of thing an entry is.
pub fn kind(meta: &Metadata) -> &'static str {
    let kind = meta.file_type();
    if kind.is_file() {
        "a file"
    } else if kind.is_dir() {
        "a folder"
    } else if kind.is_symlink() {
        "a symbolic link"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_is_no_regular_file_is_named_and_not_waited_for() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str| folder.path().join(name);
        let fifo = at("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).expect("a FIFO");
        std::os::unix::fs::symlink(&fifo, at("link")).expect("a link");
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).expect("a socket");
        for (path, what) in [
            (fifo, "a FIFO"),
            (at("link"), "a FIFO"),
            (at("socket"), "a socket"),
            (at("."), "a folder"),
            ("/dev/zero".into(), "a device"),
            (at("absent"), "No such file"),
        ] {
            let message = open(&path, Links::Followed).expect_err(what).to_string();
            assert!(message.contains(what), "{message}");
            read(&path, 10, Links::Followed).expect_err(what);
        }
    }

    #[test]
    fn a_file_is_read_as_far_as_was_agreed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (path, link) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&path, "twelve bytes").expect("writable");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        assert_eq!(read_text(&link, 12).expect("a file"), "twelve bytes");
        let message = read(&link, 12, Links::Refused).expect_err("a link");
        assert!(message.to_string().contains("a symbolic link"), "{message}");
        let message = read(&path, 11, Links::Followed)
            .expect_err("too long")
            .to_string();
        assert_eq!(message, "expected at most 11 bytes, found 12");
        // A file that says that it is empty and is not.
        let message =
            read(Path::new("/proc/self/maps"), 20, Links::Followed).expect_err("too long");
        assert!(
            message.to_string().contains("at most 20 bytes"),
            "{message}"
        );
        fs::write(&path, [0xff]).expect("writable");
        let message = read_text(&path, 12).expect_err("no text").to_string();
        assert!(message.contains("not UTF-8"), "{message}");
    }
}
