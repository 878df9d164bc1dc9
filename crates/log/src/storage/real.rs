//! The operating system's file system.

use super::{Advice, DirEntry, OpenMode, Storage, StorageFault, StorageFile, StorageLock, linux};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

/// Attempts to lock a file that another process has locked, and the time between them.
const LOCK_ATTEMPTS: u32 = 3;
const LOCK_RETRY: Duration = Duration::from_millis(10);

/// The operating system's file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealStorage;

impl Storage for RealStorage {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(mode != OpenMode::Read).create(mode == OpenMode::Create);
        // To open a pipe would wait for its writer, and a device has no end.
        let is_strange = |data: fs::Metadata| !data.is_file() && !data.is_dir();
        if fs::metadata(path).is_ok_and(is_strange) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file; move it away"));
        }
        Ok(Arc::new(RealFile { file: options.open(path)? }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            // A name that went away between the listing and this call is as good as never seen.
            match entry.metadata() {
                Ok(data) => {
                    let len = if data.is_dir() { 0 } else { data.len() };
                    entries.push(DirEntry { name, is_dir: data.is_dir(), len });
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(entries)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        fs::exists(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn create_private_dir(&self, path: &Path) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        // What the sync itself says is never taken for a shortage, whatever its code.
        File::open(dir)?.sync_all().map_err(|error| match StorageFault::of(&error).is_temporary() {
            true => io::Error::other(error.to_string()),
            false => error,
        })
    }

    fn lock_exclusive(&self, path: &Path) -> io::Result<Box<dyn StorageLock>> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        // A command that looks whether a process holds the directory has a shared lock for an instant.
        for _ in 0..LOCK_ATTEMPTS {
            match file.try_lock() {
                Ok(()) => return Ok(Box::new(RealLock { file })),
                Err(TryLockError::WouldBlock) => thread::sleep(LOCK_RETRY),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn free_space(&self, path: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(path)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn total_space(&self, path: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(path)?;
        Ok(stat.f_blocks.saturating_mul(stat.f_frsize))
    }

    fn modified_ms(&self, path: &Path) -> io::Result<Option<i64>> {
        let modified = fs::metadata(path)?.modified()?;
        let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Some(i64::try_from(since.as_millis()).unwrap_or(i64::MAX)))
    }
}

#[derive(Debug)]
struct RealLock {
    file: File,
}

impl Drop for RealLock {
    fn drop(&mut self) {
        // A child that this process is just starting has the descriptor too, and would hold the lock until it runs.
        let _ = self.file.unlock();
    }
}

impl StorageLock for RealLock {}

#[derive(Debug)]
struct RealFile {
    file: File,
}

impl StorageFile for RealFile {
    fn write_at(&self, bufs: &[IoSlice<'_>], position: u64) -> io::Result<usize> {
        retry(|| linux::write_vectored_at(&self.file, bufs, position))
    }

    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        retry(|| self.file.read_at(buf, position))
    }

    fn read_at_nowait(&self, buf: &mut [u8], position: u64) -> io::Result<Option<usize>> {
        linux::read_at_nowait(&self.file, buf, position)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, position: u64, len: u64) -> io::Result<()> {
        linux::allocate(&self.file, position, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn sync_fs(&self) -> io::Result<()> {
        linux::sync_fs(&self.file)
    }

    fn advise(&self, advice: Advice, position: u64, len: u64) {
        linux::advise(&self.file, advice, position, len);
    }

    fn resident(&self, position: u64, len: u64) -> Option<bool> {
        linux::resident(&self.file, position, len)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}

fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
