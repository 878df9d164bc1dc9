//! The seam between a log and its medium. Every file operation of this crate goes through [`Storage`] and [`StorageFile`].
//! So a test can replace the disk (module `sim`), and drop, tear or refuse unsynced writes. [`RealStorage`] is the operating
//! system's own.
//!
//! Assumptions about the medium: a completed [`StorageFile::sync_data`] makes the file's bytes and length durable;
//! a completed [`Storage::sync_dir`] makes the names in that directory durable; nothing else is. A write that was
//! not synced may survive a power cut whole, in part or not at all, in any order.

#[cfg(target_os = "linux")]
mod cachestat;
mod linux;
mod real;

pub use mainstem_faults::StorageFault;
pub use real::RealStorage;

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

/// The access with which a file is opened. None of them truncates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// For reading; it must exist.
    Read,
    /// For reading and writing; it must exist.
    ReadWrite,
    /// For reading and writing; it is created when it does not exist.
    Create,
}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name without its directory. A name that is not UTF-8 is left out of a listing: none of ours is.
    pub name: String,
    /// True for a directory.
    pub is_dir: bool,
    /// Bytes, for a file; 0 for a directory.
    pub len: u64,
}

/// A hint to the kernel about a range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// It is read soon: read it ahead.
    WillNeed,
    /// It is not read soon: its pages may go.
    DontNeed,
    /// The reader asks for ranges itself: the kernel reads nothing ahead. Applies to the whole file.
    Random,
}

/// A held exclusive lock on a file; dropping it releases the lock.
pub trait StorageLock: Send + Sync + fmt::Debug {}

/// A file system, real or simulated. All methods may block.
pub trait Storage: Send + Sync + fmt::Debug + 'static {
    /// Opens a file.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>>;

    /// The names in a directory, in no particular order.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>>;

    /// Returns true if a file or a directory of this name exists.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Renames a file or a directory; replaces a file that has the new name. Durable after [`Storage::sync_dir`]
    /// of the directory (of both, when they differ).
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes the name of a file. Open handles keep the bytes.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Creates a directory and its missing parents. An existing directory is fine.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Creates a directory that holds secrets: a new one is for the process's own user alone. An existing directory keeps its mode.
    fn create_private_dir(&self, path: &Path) -> io::Result<()> {
        self.create_dir(path)
    }

    /// Removes a directory and all that is in it.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable. An error that is [`StorageFault::NoHandles`] comes from
    /// opening the directory: nothing was synced and nothing is lost, and a later call may succeed.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Takes an exclusive lock on a file, which is created when it does not exist. Never waits: a lock held by
    /// another process is [`io::ErrorKind::WouldBlock`].
    fn lock_exclusive(&self, path: &Path) -> io::Result<Box<dyn StorageLock>>;

    /// Bytes that an ordinary user may still write to the file system of `path`.
    fn free_space(&self, path: &Path) -> io::Result<u64>;

    /// Bytes of the whole file system of `path`, used or not.
    fn total_space(&self, path: &Path) -> io::Result<u64>;

    /// Seconds since the epoch times 1,000 at which the file was last written, or `None` where this is not known.
    fn modified_ms(&self, path: &Path) -> io::Result<Option<i64>>;
}

/// An open file. Every operation names its position; there is no cursor. Shared between threads.
pub trait StorageFile: Send + Sync + fmt::Debug {
    /// Writes the buffers, one after another, in one system call. May write less than all of them.
    fn write_at(&self, bufs: &[IoSlice<'_>], position: u64) -> io::Result<usize>;

    /// Reads up to `buf.len()` bytes; 0 at or behind the end.
    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize>;

    /// Reads only what is in the page cache. `None`: it would block, or this is not known here.
    fn read_at_nowait(&self, buf: &mut [u8], position: u64) -> io::Result<Option<usize>>;

    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Returns true if the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Cuts the file, or extends it by zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Reserves blocks for a range, without changing the length. Unsupported file systems do nothing.
    fn allocate(&self, position: u64, len: u64) -> io::Result<()>;

    /// Makes all that was written durable, with the length that is needed to read it (`fdatasync`). After an
    /// error the state of the unsynced bytes is unknown, and a second call proves nothing.
    fn sync_data(&self) -> io::Result<()>;

    /// Makes the whole file system of this file durable (`syncfs`), with errors as of [`Self::sync_data`].
    fn sync_fs(&self) -> io::Result<()>;

    /// A hint; failures are of no consequence and not reported.
    fn advise(&self, advice: Advice, position: u64, len: u64);

    /// Returns true if the whole range is in the page cache; `None`: this is not known.
    fn resident(&self, position: u64, len: u64) -> Option<bool>;

    /// The descriptor, for `sendfile`. `None` for a simulated file.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;
}

/// Writes all bytes at a position, by as many calls as it takes.
pub fn write_all_at(file: &dyn StorageFile, mut bytes: &[u8], mut position: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = file.write_at(&[IoSlice::new(bytes)], position)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[written..];
        position += written as u64;
    }
    Ok(())
}

/// Fills the buffer from a position; returns how many bytes there were before the end of the file.
pub fn read_full_at(file: &dyn StorageFile, buf: &mut [u8], position: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buf.len() {
        match file.read_at(&mut buf[filled..], position + filled as u64)? {
            0 => break,
            n => filled += n,
        }
    }
    Ok(filled)
}

/// Fills the whole buffer; a file that ends before is [`io::ErrorKind::UnexpectedEof`].
pub fn read_exact_at(file: &dyn StorageFile, buf: &mut [u8], position: u64) -> io::Result<()> {
    if read_full_at(file, buf, position)? < buf.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

/// Reads all bytes of a small file, at most `len_max`. A longer file is [`io::ErrorKind::InvalidData`].
pub fn read_small_file(storage: &dyn Storage, path: &Path, len_max: usize) -> io::Result<Vec<u8>> {
    let file = storage.open(path, OpenMode::Read)?;
    let len = file.len()?;
    if len > len_max as u64 {
        let what = format!("{} has {len} bytes, more than {len_max}", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let mut bytes = vec![0; len as usize];
    let filled = read_full_at(&*file, &mut bytes, 0)?;
    bytes.truncate(filled);
    Ok(bytes)
}

/// Replaces a file so that after a power cut there is either the old or the new content: written beside it under
/// `<name>.tmp`, synced, renamed, and the directory synced.
pub fn replace_file(storage: &dyn Storage, path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_file_unsynced(storage, path, bytes)?;
    storage.sync_dir(parent_of(path))
}

/// As [`replace_file`], except that the new name is durable only after the caller synced the directory.
pub fn replace_file_unsynced(storage: &dyn Storage, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = Path::new(&temporary);
    let file = storage.open(temporary, OpenMode::Create)?;
    file.set_len(0)?;
    write_all_at(&*file, bytes, 0)?;
    file.sync_data()?;
    storage.rename(temporary, path)
}

/// The directory of a name; of a relative name without one, the present directory.
pub(crate) fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
