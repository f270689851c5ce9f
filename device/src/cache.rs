//! Compiled programs on disk, by content.
//!
//! An entry's name is a hash of all that its compilation depends on: the source, the options with the architecture, and NVRTC's
//! version. An entry begins with a hash of its content; one that does not match it is as good as absent.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::nvrtc::Compiled;

/// A folder of compiled programs. Several processes may share it.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
    limit_bytes: u64,
}

/// What [`Cache::key`] makes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(String);

/// Changes when the format of the entries or what [`Compiled`] holds changes.
const FORMAT: &str = "tilewright cubin 1";
const EXTENSION: &str = "cubin.json";

impl Cache {
    /// A cache in `folder`, which is made at the first entry. When the entries take more than `limit_bytes`, the oldest go.
    pub fn new(folder: impl Into<PathBuf>, limit_bytes: u64) -> Self {
        Self {
            folder: folder.into(),
            limit_bytes,
        }
    }

    /// The name of a compilation: BLAKE3 over its parts, each preceded by its length.
    pub fn key(source: &str, arguments: &[String], version: (i32, i32)) -> Key {
        let version = format!("{}.{}", version.0, version.1);
        let mut hasher = blake3::Hasher::new();
        for part in [FORMAT, &version, source]
            .into_iter()
            .chain(arguments.iter().map(String::as_str))
        {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        Key(hasher.finalize().to_hex().to_string())
    }

    /// The entry, if there is one and it is whole.
    pub fn get(&self, key: &Key) -> Option<Compiled> {
        let text = std::fs::read_to_string(self.path(key)).ok()?;
        let (hash, body) = text.split_once('\n')?;
        if blake3::hash(body.as_bytes()).to_hex().as_str() != hash {
            tracing::warn!(key = key.0, "a damaged cache entry is passed over");
            return None;
        }
        serde_json::from_str(body).ok()
    }

    /// Writes an entry: whole or not at all.
    pub fn put(&self, key: &Key, compiled: &Compiled) -> std::io::Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let body = serde_json::to_string(compiled)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        writeln!(file, "{}", blake3::hash(body.as_bytes()).to_hex())?;
        file.write_all(body.as_bytes())?;
        file.persist(self.path(key)).map_err(|error| error.error)?;
        self.shrink()
    }

    /// Removes the oldest entries until the rest fits the limit. An entry that another process removed meanwhile is no error.
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
        Ok(())
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.folder.join(format!("{}.{EXTENSION}", key.0))
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(size: usize) -> Compiled {
        Compiled::new(
            vec![7; size],
            "ptxas info    : Compiling entry function 'k' for 'sm_90a'".into(),
        )
    }

    #[test]
    fn an_entry_comes_back() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = Cache::new(folder.path().join("deep"), 1 << 20);
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
        let cache = Cache::new(folder.path(), 1 << 20);
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

    #[test]
    fn the_oldest_entries_go_first() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = Cache::new(folder.path(), 5000);
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
