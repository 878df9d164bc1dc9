//! Descriptors as a budget: files that are used now and then (closed segments, indexes) share a bounded number of
//! open handles; the least recently used ones are closed.

use crate::storage::{OpenMode, Storage, StorageFile};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Most handles that a cache keeps.
const BUDGET_MAX: u64 = 16_384;

/// The highest soft limit that some systems (macOS) accept if the hard limit is unlimited.
const LIMIT_PORTABLE_MAX: u64 = 10_240;

/// Raises the soft limit of open descriptors to the hard one, and returns the soft limit that then holds
/// (`u64::MAX` when there is none). To be called once, at the start of the process.
pub fn raise_descriptor_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let portable = limit.maximum.unwrap_or(u64::MAX).min(LIMIT_PORTABLE_MAX);
        for current in [limit.maximum, Some(portable).filter(|raised| Some(*raised) > limit.current)] {
            if current != limit.current && setrlimit(Resource::Nofile, Rlimit { current, ..limit }).is_ok() {
                break;
            }
        }
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Handles that a cache may keep under a limit. `reserved` descriptors are left for connections, listeners and active
/// segments. The cache gets at least a sixteenth of the limit, and at most 16,384.
pub fn descriptor_budget(limit: u64, reserved: u64) -> usize {
    let least = (limit / 16).max(1);
    limit.saturating_sub(reserved).max(least).min(BUDGET_MAX) as usize
}

/// Descriptors for a partition: its log, a second one until the first sync of what is new, and one for a connection.
const DESCRIPTORS_PER_PARTITION: u64 = 3;

/// Descriptors that a partition has at a start after a kill, and at a stop, until its next sync. They are the log, both
/// indexes, the snapshot of its producers, and one in use.
const DESCRIPTORS_UNTIL_SYNCED: u64 = 5;

/// The number of partitions that a process may have under a limit. A start can open that many after any kind of stop. It
/// leaves [`descriptor_budget`] of a quarter of the limit to the cache, and 64 to listeners and the like.
pub fn partitions_within(limit: u64) -> usize {
    share_of(limit, DESCRIPTORS_PER_PARTITION)
}

/// The number of partitions that may all wait for their next sync together, after a start or at a stop. With more than
/// that, each is synced before others follow: see [`synced_together`].
pub fn unsynced_within(limit: u64) -> usize {
    share_of(limit, DESCRIPTORS_UNTIL_SYNCED)
}

/// The number of partitions that may wait for their sync together if not all of them can; at least one.
pub fn synced_together(limit: u64) -> usize {
    usize::try_from(limit / 16).unwrap_or(usize::MAX).max(1)
}

fn share_of(limit: u64, each: u64) -> usize {
    let others = (limit / 4).min(BUDGET_MAX) + 64;
    usize::try_from(limit.saturating_sub(others) / each).unwrap_or(usize::MAX)
}

/// Open handles of files that can be opened again at any time, at most a budget of them.
///
/// A handle in use is pinned by its `Arc` and not closed; when all are in use the budget is exceeded for as long
/// as that lasts. A file with unsynced bytes has to stay in use until it is synced, or a failed write-back would be
/// not reported (see [`crate::flusher::FlushWork`]).
pub struct DescriptorCache {
    storage: Arc<dyn Storage>,
    budget: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    open: HashMap<u64, OpenFile>,
    next_id: u64,
    /// Counts uses; the lowest `used` is the least recent.
    clock: u64,
}

struct OpenFile {
    file: Arc<dyn StorageFile>,
    used: u64,
}

impl DescriptorCache {
    /// A cache that keeps at most `budget` unused handles open.
    pub fn new(storage: Arc<dyn Storage>, budget: usize) -> Arc<DescriptorCache> {
        assert!(budget > 0, "a cache that may keep nothing open");
        Arc::new(DescriptorCache { storage, budget, inner: Mutex::default() })
    }

    /// A file by name; nothing is opened yet.
    pub fn file(self: &Arc<Self>, path: PathBuf, mode: OpenMode) -> CachedFile {
        let mut inner = self.inner.lock();
        inner.next_id += 1;
        CachedFile { id: inner.next_id, path: RwLock::new(path), mode, cache: self.clone() }
    }

    /// Handles that are open now.
    pub fn open_count(&self) -> usize {
        self.inner.lock().open.len()
    }
}

impl fmt::Debug for DescriptorCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DescriptorCache").field("budget", &self.budget).finish_non_exhaustive()
    }
}

impl Inner {
    fn use_open(&mut self, id: u64) -> Option<Arc<dyn StorageFile>> {
        self.clock += 1;
        let open = self.open.get_mut(&id)?;
        open.used = self.clock;
        Some(open.file.clone())
    }

    /// Removes the least recently used handles that are not in use, a sixteenth of the budget per call. So the cost of the
    /// search is spread over as many opens.
    fn evict(&mut self, budget: usize) -> Vec<OpenFile> {
        let mut unused: Vec<_> = self
            .open
            .iter()
            .filter(|(_, open)| Arc::strong_count(&open.file) == 1)
            .map(|(id, open)| (open.used, *id))
            .collect();
        let excess = self.open.len().saturating_sub(budget) + budget / 16;
        unused.sort_unstable();
        unused.iter().take(excess).filter_map(|(_, id)| self.open.remove(id)).collect()
    }
}

/// A file that is open when it is used, and may be closed in between.
pub struct CachedFile {
    id: u64,
    /// Held while the file is opened or renamed, so that what has taken its name is not opened.
    path: RwLock<PathBuf>,
    mode: OpenMode,
    cache: Arc<DescriptorCache>,
}

impl CachedFile {
    /// The file's handle; it stays open for as long as the `Arc` is held.
    pub fn open(&self) -> io::Result<Arc<dyn StorageFile>> {
        if let Some(file) = self.cache.inner.lock().use_open(self.id) {
            return Ok(file);
        }
        // Without the lock: opening may block. Two threads may open the file at the same time; one handle stays.
        let path = self.path.read();
        let file = self.cache.storage.open(&path, self.mode)?;
        drop(path);
        let mut inner = self.cache.inner.lock();
        if let Some(other) = inner.use_open(self.id) {
            return Ok(other);
        }
        let used = inner.clock;
        inner.open.insert(self.id, OpenFile { file: file.clone(), used });
        let full = inner.open.len() > self.cache.budget;
        let evicted = if full { inner.evict(self.cache.budget) } else { Vec::new() };
        drop(inner);
        // Closed here, not under the lock: closing may block.
        drop(evicted);
        Ok(file)
    }

    /// Renames the file. An open handle stays valid, and later opens find the file under the new name.
    pub fn rename(&self, to: PathBuf) -> io::Result<()> {
        let mut path = self.path.write();
        self.cache.storage.rename(&path, &to)?;
        *path = to;
        Ok(())
    }

    /// Closes the handle, once it is not in use; the next use opens it again.
    pub fn close(&self) {
        let closed = self.cache.inner.lock().open.remove(&self.id);
        drop(closed);
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for CachedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedFile").field("path", &*self.path.read()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{RealStorage, read_full_at, write_all_at};

    struct Fixture {
        _dir: tempfile::TempDir,
        cache: Arc<DescriptorCache>,
        files: Vec<CachedFile>,
    }

    fn fixture(files: usize, budget: usize) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let cache = DescriptorCache::new(Arc::new(RealStorage), budget);
        let files = (0..files)
            .map(|index| {
                let path = dir.path().join(index.to_string());
                let file = RealStorage.open(&path, OpenMode::Create).unwrap();
                write_all_at(&*file, index.to_string().as_bytes(), 0).unwrap();
                cache.file(path, OpenMode::Read)
            })
            .collect();
        Fixture { _dir: dir, cache, files }
    }

    fn is_open(file: &CachedFile) -> bool {
        file.cache.inner.lock().open.contains_key(&file.id)
    }

    fn content(file: &CachedFile) -> String {
        let mut buf = [0; 8];
        let len = read_full_at(&*file.open().unwrap(), &mut buf, 0).unwrap();
        String::from_utf8(buf[..len].to_vec()).unwrap()
    }

    #[test]
    fn the_least_recently_used_is_closed() {
        let Fixture { cache, files, _dir } = fixture(4, 3);
        for index in [0, 1, 2, 0] {
            assert_eq!(content(&files[index]), index.to_string());
        }
        assert_eq!(content(&files[3]), "3");
        let open: Vec<_> = files.iter().map(is_open).collect();
        assert_eq!(open, [true, false, true, true]);
        assert_eq!(content(&files[1]), "1");
        assert_eq!(cache.open_count(), 3);
    }

    #[test]
    fn a_file_in_use_stays_open() {
        let Fixture { cache, files, _dir } = fixture(4, 2);
        let pins = [files[0].open().unwrap(), files[1].open().unwrap()];
        let third = files[2].open().unwrap();
        assert_eq!(cache.open_count(), 3, "all are in use: the budget gives way");
        drop((pins, third));
        assert_eq!(content(&files[3]), "3");
        assert_eq!(cache.open_count(), 2);
        assert!(is_open(&files[2]) && is_open(&files[3]));
    }

    #[test]
    fn many_files_share_the_budget() {
        let Fixture { cache, files, _dir } = fixture(200, 32);
        for round in 0..5 {
            for index in 0..files.len() {
                let index = index * 7 % files.len();
                assert_eq!(content(&files[index]), index.to_string(), "round {round}");
                assert!(cache.open_count() <= 32);
            }
        }
    }

    #[test]
    fn a_dropped_file_is_closed() {
        let Fixture { cache, mut files, _dir } = fixture(2, 8);
        let handle = files[0].open().unwrap();
        files.clear();
        assert_eq!(cache.open_count(), 0);
        let mut buf = [0; 1];
        assert_eq!(handle.read_at(&mut buf, 0).unwrap(), 1, "its users can go on");
    }

    #[test]
    fn a_missing_file_is_an_error_each_time() {
        let Fixture { cache, _dir, .. } = fixture(0, 1);
        let missing = cache.file(_dir.path().join("missing"), OpenMode::Read);
        for _ in 0..2 {
            assert_eq!(missing.open().unwrap_err().kind(), io::ErrorKind::NotFound);
        }
        assert_eq!(cache.open_count(), 0);
    }

    #[test]
    fn the_budget_is_what_remains() {
        let check = |limit, reserved, expected| assert_eq!(descriptor_budget(limit, reserved), expected);
        check(4096, 1100, 2996);
        check(1024, 1000, 64);
        check(1024, 5000, 64);
        check(8, 100, 1);
        check(u64::MAX, 1000, 16_384);
    }

    #[test]
    fn partitions_fit_at_each_of_their_times() {
        for limit in [256, 1024, 4096, 65_536, 1 << 20] {
            let partitions = partitions_within(limit) as u64;
            let cached = (limit / 4).min(BUDGET_MAX);
            assert!(partitions * DESCRIPTORS_PER_PARTITION + cached + 64 <= limit, "running, {limit}");
            let waiting = match partitions <= unsynced_within(limit) as u64 {
                true => partitions,
                false => partitions.min(synced_together(limit) as u64),
            };
            let held = partitions + waiting * (DESCRIPTORS_UNTIL_SYNCED - 1);
            assert!(held + cached + 64 <= limit, "at a stop, {limit}");
        }
        assert!(partitions_within(4096) >= 1000, "beside as many connections");
    }

    #[test]
    fn the_limit_is_raised_to_the_hard_one() {
        use rustix::process::{Resource, getrlimit};
        let raised = raise_descriptor_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(Some(raised), limit.current.or(Some(u64::MAX)));
        assert!(limit.current == limit.maximum || raised >= LIMIT_PORTABLE_MAX);
    }
}
