//! A storage that writes down what changes the medium, and can die at any of these steps.

use crate::storage::{Advice, DirEntry, OpenMode, Storage, StorageFile, StorageLock};
use parking_lot::Mutex;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The steps of a process, up to its death.
#[derive(Debug)]
struct Trace {
    root: PathBuf,
    steps: Mutex<Vec<String>>,
    /// Steps that are still carried out.
    steps_max: usize,
}

impl Trace {
    /// Notes a step, or refuses it because the process is dead.
    fn step(&self, what: &str, path: &Path) -> io::Result<()> {
        let mut steps = self.steps.lock();
        if steps.len() >= self.steps_max {
            return Err(io::Error::other("the process is dead"));
        }
        let name = path.strip_prefix(&self.root).unwrap_or(path).display().to_string();
        steps.push(format!("{what} {}", if name.is_empty() { "." } else { &name }));
        Ok(())
    }
}

/// Passes everything on to another storage, and writes down what changes it.
#[derive(Debug)]
pub(super) struct Traced {
    inner: Arc<dyn Storage>,
    trace: Arc<Trace>,
}

impl Traced {
    pub(super) fn new(inner: Arc<dyn Storage>, root: &Path, steps_max: usize) -> Arc<Traced> {
        let trace = Trace { root: root.to_owned(), steps: Mutex::default(), steps_max };
        Arc::new(Traced { inner, trace: Arc::new(trace) })
    }

    pub(super) fn steps(&self) -> Vec<String> {
        self.trace.steps.lock().clone()
    }
}

impl Storage for Traced {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>> {
        if mode == OpenMode::Create {
            self.trace.step("create", path)?;
        }
        let inner = self.inner.open(path, mode)?;
        Ok(Arc::new(TracedFile { inner, path: path.to_owned(), trace: self.trace.clone() }))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.inner.list(dir)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.inner.exists(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.trace.step("rename to", to)?;
        self.inner.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.trace.step("remove", path)?;
        self.inner.remove_file(path)
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.trace.step("create directory", path)?;
        self.inner.create_dir(path)
    }
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.trace.step("remove directory", path)?;
        self.inner.remove_dir_all(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.trace.step("SYNC directory", dir)?;
        self.inner.sync_dir(dir)
    }
    fn lock_exclusive(&self, path: &Path) -> io::Result<Box<dyn StorageLock>> {
        self.trace.step("lock", path)?;
        self.inner.lock_exclusive(path)
    }
    fn free_space(&self, path: &Path) -> io::Result<u64> {
        self.inner.free_space(path)
    }

    fn total_space(&self, path: &Path) -> io::Result<u64> {
        self.inner.total_space(path)
    }
    fn modified_ms(&self, path: &Path) -> io::Result<Option<i64>> {
        self.inner.modified_ms(path)
    }
}

#[derive(Debug)]
struct TracedFile {
    inner: Arc<dyn StorageFile>,
    path: PathBuf,
    trace: Arc<Trace>,
}

impl StorageFile for TracedFile {
    fn write_at(&self, bufs: &[IoSlice<'_>], position: u64) -> io::Result<usize> {
        self.trace.step("write", &self.path)?;
        self.inner.write_at(bufs, position)
    }
    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        self.inner.read_at(buf, position)
    }
    fn read_at_nowait(&self, buf: &mut [u8], position: u64) -> io::Result<Option<usize>> {
        self.inner.read_at_nowait(buf, position)
    }
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.trace.step("cut", &self.path)?;
        self.inner.set_len(len)
    }
    fn allocate(&self, position: u64, len: u64) -> io::Result<()> {
        self.inner.allocate(position, len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.trace.step("SYNC", &self.path)?;
        self.inner.sync_data()
    }
    fn sync_fs(&self) -> io::Result<()> {
        self.trace.step("SYNC file system of", &self.path)?;
        self.inner.sync_fs()
    }
    fn advise(&self, advice: Advice, position: u64, len: u64) {
        self.inner.advise(advice, position, len);
    }
    fn resident(&self, position: u64, len: u64) -> Option<bool> {
        self.inner.resident(position, len)
    }
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.as_fd()
    }
}
