//! The stray partitions in a log directory, counted. They stay there until an operator deletes them.

use super::LogDir;
use crate::storage::Storage;
use crate::strays;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of stray partitions, and the bytes that they hold.
#[derive(Debug, Default)]
pub(super) struct StrayCount {
    directories: AtomicU64,
    bytes: AtomicU64,
}

impl StrayCount {
    /// Counts directories that were found. A directory that cannot be listed counts as empty.
    pub(super) fn of(storage: &dyn Storage, paths: &[PathBuf]) -> StrayCount {
        let count = StrayCount::default();
        paths.iter().for_each(|path| count.add(bytes_in(storage, path)));
        count
    }

    /// One more.
    pub(super) fn add(&self, bytes: u64) {
        self.directories.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Bytes in a directory, as far as that can be seen.
pub(super) fn bytes_in(storage: &dyn Storage, path: &Path) -> u64 {
    strays::extent(storage, path).unwrap_or_default().bytes
}

impl LogDir {
    /// The number of stray partitions, and the bytes that they hold: as of the start, of what was set aside since, and of
    /// [`Self::recount_strays`].
    pub fn strays(&self) -> (u64, u64) {
        let count = &self.strays;
        (count.directories.load(Ordering::Relaxed), count.bytes.load(Ordering::Relaxed))
    }

    /// Says in the log, in one line, that there are some.
    pub fn report_strays(&self) {
        let (strays, bytes) = self.strays();
        if strays > 0 {
            let dir = self.path.display();
            tracing::warn!(
                strays,
                bytes,
                "partitions that no topic owns are set aside in the log directory {dir} and stay there; \
                 `mainstem log strays {dir}` lists them"
            );
        }
    }

    /// Sees which of them were deleted; to be called now and then. Looks at nothing while there are none, and blocks on the disk
    /// otherwise.
    pub fn recount_strays(&self) {
        if self.strays().0 == 0 {
            return;
        }
        if let Ok(found) = strays::find(&*self.storage, &self.path) {
            let bytes = found.iter().map(|stray| stray.extent.bytes).sum();
            self.strays.directories.store(found.len() as u64, Ordering::Relaxed);
            self.strays.bytes.store(bytes, Ordering::Relaxed);
        }
    }
}
