//! Locks of GPUs: whoever times on one holds its lock meanwhile, since a figure is worth nothing where somebody else times at the same moment.
//!
//! The locks are those of `flock(2)` on files of one folder, so they hold between threads as between processes, and whoever ends, however it ends, has none
//! any more. They are advisory: they keep apart those who have one folder for them, and nobody else.
//!
//! Each GPU has two files. Who wants the *lock* takes the *gate* first, then the lock, then leaves the gate: so who has just had the lock cannot have
//! it again while somebody waits for it.

use crate::folder::{self, FolderError};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often whoever waits asks again. What is timed takes longer than that.
const AGAIN: Duration = Duration::from_millis(2);

/// The folder of the locks.
#[derive(Clone, Debug)]
pub struct GpuLocks {
    folder: PathBuf,
}

/// A locked GPU, until it is dropped.
#[derive(Debug)]
pub struct GpuLock {
    lock: File,
}

impl GpuLocks {
    /// In a folder, which is made if it is not there.
    ///
    /// # Errors
    /// As [`folder::own`].
    pub fn open(folder: &Path) -> Result<Self, FolderError> {
        let folder = folder::own(folder)?;
        Ok(Self { folder })
    }

    /// Waits for a GPU, by its identifier ([`GpuInfo::uuid`](crate::gpu::GpuInfo)); none where `is_over` says so before it comes.
    ///
    /// # Errors
    /// The system's: a file cannot be made or locked. Then nobody is waited for.
    pub fn lock(&self, gpu: &str, is_over: impl Fn() -> bool) -> io::Result<Option<GpuLock>> {
        let Some(_gate) = self.file(gpu, "gate", &is_over)? else {
            return Ok(None);
        };
        self.file(gpu, "lock", &is_over)
    }

    fn file(
        &self,
        gpu: &str,
        which: &str,
        is_over: &dyn Fn() -> bool,
    ) -> io::Result<Option<GpuLock>> {
        // A driver's word is no path.
        let gpu: String = gpu.chars().filter(char::is_ascii_alphanumeric).collect();
        let mut file = OpenOptions::new();
        let file = file.create(true).truncate(false).write(true).mode(0o600);
        let lock = file.open(self.folder.join(format!("{gpu}.{which}")))?;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Some(GpuLock { lock })),
                Err(TryLockError::WouldBlock) if is_over() => return Ok(None),
                Err(TryLockError::WouldBlock) => std::thread::sleep(AGAIN),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }
}

impl Drop for GpuLock {
    fn drop(&mut self) {
        // A process that is just being started may have the file too: closing it here would not end the lock.
        let _ = self.lock.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Barrier, Mutex};
    use std::time::Instant;

    fn never() -> bool {
        false
    }

    /// As in two processes: each has the files opened for itself.
    #[test]
    fn a_gpu_is_locked_once_at_a_time() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [one, two] = [(); 2].map(|()| GpuLocks::open(folder.path()).expect("our own"));
        let held = one.lock("GPU-1", never).expect("it can be locked");
        assert!(held.is_some());
        let begun = Instant::now();
        let late = || begun.elapsed() > Duration::from_millis(50);
        assert!(two.lock("GPU-1", late).expect("it can be locked").is_none());
        assert!(late(), "it did not wait");
        assert!(two.lock("GPU-2", never).expect("another one").is_some());
        // Whoever gave up is in nobody's way.
        drop(held);
        assert!(
            one.lock("GPU-1", || true)
                .expect("it can be locked")
                .is_some()
        );
    }

    /// Of two that want it again and again each has it every second time, but for what a busy machine makes of it.
    #[test]
    fn nobody_is_always_first() {
        const TIMES: usize = 8;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let locks = GpuLocks::open(folder.path()).expect("our own");
        let (order, start) = (Mutex::new(Vec::new()), Barrier::new(2));
        let take = &|name: usize| {
            start.wait();
            for _ in 0..TIMES {
                let held = locks.lock("GPU", never).expect("it can be locked");
                order.lock().expect("no panic").push(name);
                std::thread::sleep(10 * AGAIN);
                drop(held);
            }
        };
        std::thread::scope(|scope| (0..2).for_each(|name| drop(scope.spawn(move || take(name)))));
        let order = order.into_inner().expect("no panic");
        let again = order.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(again <= TIMES / 2, "{order:?}");
    }

    #[test]
    fn without_a_folder_there_are_none() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("file");
        std::fs::write(&file, "").expect("writable");
        GpuLocks::open(&file).expect_err("no folder");
        let locks = GpuLocks::open(folder.path()).expect("our own");
        drop(folder);
        locks.lock("GPU", never).expect_err("it is gone");
    }
}
