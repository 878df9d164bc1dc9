//! A disk for tests that asks before each step of a rewrite.

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use mainstem_log::sim::SimStorage;
use mainstem_log::storage::{Advice, DirEntry, OpenMode, Storage, StorageFile, StorageLock};
use parking_lot::Mutex;

/// A question before a step; its error is that of the step. Steps that it makes itself are not asked for.
type Hook = Box<dyn FnMut(&'static str) -> io::Result<()> + Send>;

/// A simulated disk with a hook: `open`, `sync`, `rename`, `sync_dir`.
#[derive(Clone)]
pub(super) struct Watched {
    disk: SimStorage,
    hook: Arc<Mutex<Option<Hook>>>,
}

impl Watched {
    pub(super) fn new(disk: &SimStorage) -> Watched {
        Watched { disk: disk.clone(), hook: Arc::default() }
    }

    pub(super) fn ask(&self, hook: impl FnMut(&'static str) -> io::Result<()> + Send + 'static) {
        *self.hook.lock() = Some(Box::new(hook));
    }

    pub(super) fn ask_no_more(&self) {
        *self.hook.lock() = None;
    }

    fn step(&self, step: &'static str) -> io::Result<()> {
        let hook = self.hook.lock().take();
        let Some(mut hook) = hook else { return Ok(()) };
        let answer = hook(step);
        *self.hook.lock() = Some(hook);
        answer
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watched")
    }
}

impl Storage for Watched {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>> {
        self.step("open")?;
        Ok(Arc::new(WatchedFile { file: self.disk.open(path, mode)?, disk: self.clone() }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.disk.list(dir)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.disk.exists(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step("rename")?;
        self.disk.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_file(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_dir_all(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.step("sync_dir")?;
        self.disk.sync_dir(dir)
    }

    fn lock_exclusive(&self, path: &Path) -> io::Result<Box<dyn StorageLock>> {
        self.disk.lock_exclusive(path)
    }

    fn free_space(&self, path: &Path) -> io::Result<u64> {
        self.disk.free_space(path)
    }

    fn total_space(&self, path: &Path) -> io::Result<u64> {
        self.disk.total_space(path)
    }

    fn modified_ms(&self, path: &Path) -> io::Result<Option<i64>> {
        self.disk.modified_ms(path)
    }
}

#[derive(Debug)]
struct WatchedFile {
    file: Arc<dyn StorageFile>,
    disk: Watched,
}

impl StorageFile for WatchedFile {
    fn write_at(&self, bufs: &[IoSlice<'_>], position: u64) -> io::Result<usize> {
        self.file.write_at(bufs, position)
    }

    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        self.file.read_at(buf, position)
    }

    fn read_at_nowait(&self, buf: &mut [u8], position: u64) -> io::Result<Option<usize>> {
        self.file.read_at_nowait(buf, position)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, position: u64, len: u64) -> io::Result<()> {
        self.file.allocate(position, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.step("sync")?;
        self.file.sync_data()
    }

    fn sync_fs(&self) -> io::Result<()> {
        self.file.sync_fs()
    }

    fn advise(&self, advice: Advice, position: u64, len: u64) {
        self.file.advise(advice, position, len);
    }

    fn resident(&self, position: u64, len: u64) -> Option<bool> {
        self.file.resident(position, len)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_fd()
    }
}
