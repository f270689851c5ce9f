//! Compiled programs on disk, by content.
//!
//! An entry's name is a hash of all that its compilation depends on: the source, the options with the architecture, and NVRTC's
//! version. The entry says the same in words, and one that says otherwise is as good as absent, as is one whose content does not match
//! the checksum that it begins with.
//!
//! *Trust.* Machine code is run, so nobody but its user may write into the folder: it is made for its owner alone, and a folder of
//! somebody else, or one that others may write to, is refused. The checksum has no key and finds damage, not forgery: whoever can write
//! here could read a key that lay here too. Who hands machine code on compiles it anew first
//! ([`CompilePool::confirm`](crate::pool::CompilePool::confirm)), and so depends on no entry.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::folder::{self, FolderError};
use crate::nvrtc::Compiled;

/// A folder of compiled programs. Several processes of one user may share it.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
    limit_bytes: u64,
    /// What entries take, as far as it is known: what other processes add shows when they are next counted.
    bytes: Arc<AtomicU64>,
}

/// What a compilation depends on; [`Cache::key`] makes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    format: String,
    nvrtc: (i32, i32),
    arguments: Vec<String>,
    /// BLAKE3 of the text, in hexadecimal.
    source: String,
}

/// What a file holds, behind its checksum.
#[derive(Serialize, Deserialize)]
struct Entry<K, C> {
    key: K,
    compiled: C,
}

/// Changes when the format of the entries or what [`Compiled`] holds changes.
const FORMAT: &str = "tilewright cubin 2";
const EXTENSION: &str = "cubin.json";
/// What entries take before they were counted: more than any do.
const UNKNOWN: u64 = u64::MAX / 2;

impl Cache {
    /// The cache in `folder`, which is made for its owner alone if it is not there. When the entries take more than `limit_bytes`, the
    /// oldest go.
    ///
    /// # Errors
    /// The system's; a folder that is another user's, or that others may write to or put another in the place of.
    pub fn open(folder: &Path, limit_bytes: u64) -> Result<Self, FolderError> {
        Ok(Self {
            folder: folder::own(folder)?,
            limit_bytes,
            bytes: Arc::new(AtomicU64::new(UNKNOWN)),
        })
    }

    /// What a compilation is known by.
    pub fn key(source: &str, arguments: &[String], version: (i32, i32)) -> Key {
        Key {
            format: FORMAT.to_owned(),
            nvrtc: version,
            arguments: arguments.to_vec(),
            source: blake3::hash(source.as_bytes()).to_hex().to_string(),
        }
    }

    /// Whether there is an entry, whole or not.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.path(key).exists()
    }

    /// The entry, if there is one, it is whole, and it was made of this.
    pub fn get(&self, key: &Key) -> Option<Compiled> {
        let path = self.path(key);
        let there = path.symlink_metadata().ok()?;
        if !there.is_file() || there.len() > self.limit_bytes {
            return None;
        }
        let text = std::fs::read_to_string(&path).ok()?;
        let (hash, body) = text.split_once('\n')?;
        if blake3::hash(body.as_bytes()).to_hex().as_str() != hash {
            tracing::warn!(path = %path.display(), "a damaged cache entry is passed over");
            return None;
        }
        let entry: Entry<Key, Compiled> = serde_json::from_str(body).ok()?;
        if entry.key != *key {
            tracing::warn!(path = %path.display(), "a cache entry that was made of something else is passed over");
            return None;
        }
        Some(entry.compiled)
    }

    /// Writes an entry: whole or not at all.
    pub fn put(&self, key: &Key, compiled: &Compiled) -> std::io::Result<()> {
        let body = serde_json::to_string(&Entry { key, compiled })?;
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        writeln!(file, "{}", blake3::hash(body.as_bytes()).to_hex())?;
        file.write_all(body.as_bytes())?;
        let own = file.as_file().metadata()?.len();
        file.persist(self.path(key)).map_err(|error| error.error)?;
        let before = self.bytes.fetch_add(own, Ordering::Relaxed);
        match before >= UNKNOWN || before + own > self.limit_bytes {
            true => self.shrink(),
            false => Ok(()),
        }
    }

    /// Counts what entries take, and removes the oldest until the rest fits the limit. An entry that another process removed meanwhile is no error.
    fn shrink(&self) -> std::io::Result<()> {
        let mut entries: Vec<(SystemTime, PathBuf, u64)> = Vec::new();
        for entry in std::fs::read_dir(&self.folder)?.flatten() {
            if entry.file_name().to_string_lossy().ends_with(EXTENSION)
                && let Ok(data) = entry.metadata()
            {
                entries.push((
                    data.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                    entry.path(),
                    data.len(),
                ));
            }
        }
        entries.sort();
        let mut total: u64 = entries.iter().map(|entry| entry.2).sum();
        for (_, path, bytes) in entries {
            if total <= self.limit_bytes {
                break;
            }
            let _ = std::fs::remove_file(path);
            total -= bytes;
        }
        self.bytes.store(total, Ordering::Relaxed);
        Ok(())
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.folder.join(format!("{}.{EXTENSION}", key.hash()))
    }
}

impl Key {
    /// BLAKE3 over its parts, each preceded by its length, in hexadecimal.
    pub fn hash(&self) -> String {
        let (major, minor) = self.nvrtc;
        let version = format!("{major}.{minor}");
        let mut hasher = blake3::Hasher::new();
        let parts = [&self.format, &version, &self.source];
        for part in parts.into_iter().chain(&self.arguments) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn cache(folder: &Path) -> Cache {
        Cache::open(folder, 1 << 20).expect("a folder of our own")
    }

    fn compiled(size: usize) -> Compiled {
        Compiled::new(
            vec![7; size],
            "ptxas info    : Compiling entry function 'k' for 'sm_90a'".into(),
        )
    }

    #[test]
    fn an_entry_comes_back() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = cache(&folder.path().join("very/deep"));
        let key = Cache::key("text", &["-a".into()], (13, 0));
        assert_eq!(cache.get(&key), None);
        cache
            .put(&key, &compiled(100))
            .expect("an entry should be written");
        assert_eq!(cache.get(&key), Some(compiled(100)));
    }

    #[test]
    fn each_part_changes_the_key() {
        let key = Cache::key("ab", &["c".into()], (13, 0));
        assert_eq!(key, Cache::key("ab", &["c".into()], (13, 0)));
        for other in [
            Cache::key("a", &["bc".into()], (13, 0)),
            Cache::key("ab", &["c".into(), String::new()], (13, 0)),
            Cache::key("ab", &["d".into()], (13, 0)),
            Cache::key("ab", &["c".into()], (12, 0)),
        ] {
            assert_ne!(key, other);
        }
    }

    #[test]
    fn a_damaged_entry_is_absent() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = cache(folder.path());
        let key = Cache::key("text", &[], (13, 0));
        cache
            .put(&key, &compiled(100))
            .expect("an entry should be written");
        let text = std::fs::read_to_string(cache.path(&key)).expect("the entry");
        // Cut short, a digit of the cubin changed (still valid JSON), emptied.
        for damaged in [
            text[..text.len() - 3].to_owned(),
            text.replacen("0707", "0708", 1),
            String::new(),
        ] {
            assert_ne!(damaged, text);
            std::fs::write(cache.path(&key), damaged).expect("writing");
            assert_eq!(cache.get(&key), None);
        }
        cache
            .put(&key, &compiled(100))
            .expect("an entry should be written again");
        assert_eq!(cache.get(&key), Some(compiled(100)));
    }

    /// With a checksum that fits: what somebody writes who knows the format.
    #[test]
    fn an_entry_of_something_else_is_absent() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = cache(folder.path());
        let key = Cache::key("text", &["-a".into()], (13, 0));
        let others = [
            Cache::key("another text", &["-a".into()], (13, 0)),
            Cache::key("text", &["-b".into()], (13, 0)),
            Cache::key("text", &["-a".into()], (13, 1)),
        ];
        for other in &others {
            cache
                .put(other, &compiled(100))
                .expect("an entry should be written");
            fs::copy(cache.path(other), cache.path(&key)).expect("writable");
            assert_eq!(cache.get(&key), None, "{other:?}");
            assert_eq!(cache.get(other), Some(compiled(100)));
        }
        fs::remove_file(cache.path(&key)).expect("there");
        symlink(cache.path(&others[0]), cache.path(&key)).expect("a link");
        assert_eq!(cache.get(&key), None);
    }

    #[test]
    fn the_oldest_entries_go_first() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = Cache::open(folder.path(), 5000).expect("a folder of our own");
        let keys: Vec<Key> = (0..4)
            .map(|index| Cache::key(&index.to_string(), &[], (13, 0)))
            .collect();
        for key in &keys {
            cache
                .put(key, &compiled(900))
                .expect("an entry should be written");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let kept: Vec<bool> = keys.iter().map(|key| cache.get(key).is_some()).collect();
        assert_eq!(kept, [false, false, true, true]);
    }
}
