//! Open-file-description locks: locks on bytes of a file, which the kernel releases when their holder dies.
//!
//! They belong to the open file, not to a process id, so that two pid namespaces do not confuse them. A child process shares
//! the open files of its parent and with them the locks. [`generation`] differs in a child. The files of these locks are
//! closed in it at once; otherwise the death of the parent would not be noticed.

#![allow(unsafe_code, reason = "calls that rustix does not have")]

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// The kind of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Others may have a shared lock too.
    Shared,
    /// No other process has a lock.
    Exclusive,
}

/// Descriptors that a child closes. Beyond this many, a child's death is waited for too, which only costs time.
const FILES_MAX: usize = 1024;
static FILES: [AtomicI32; FILES_MAX] = [const { AtomicI32::new(-1) }; FILES_MAX];
/// The number of forks between the process that first used this module and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// A number that is another one in a child process than in its parent.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Runs in the child right after the fork, where only calls that are safe in a signal handler are allowed.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    for file in &FILES {
        let descriptor = file.swap(-1, Ordering::Relaxed);
        if descriptor >= 0 {
            // SAFETY: the descriptor is a `LockFile`'s, which in this process never uses it again: `Drop` and every lock
            // compare the generation first.
            unsafe { libc::close(descriptor) };
        }
    }
}

fn watch_forks() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handler has the right type and does nothing that is not allowed after a fork.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// An open file that holds locks, for the process that opened it alone.
#[derive(Debug)]
pub(crate) struct LockFile {
    file: ManuallyDrop<File>,
    generation: u32,
    registered: Option<usize>,
}

impl LockFile {
    /// Takes over a file that no other code uses.
    pub(crate) fn new(file: File) -> LockFile {
        watch_forks();
        let descriptor = file.as_raw_fd();
        let registered = FILES.iter().position(|place| {
            place.compare_exchange(-1, descriptor, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        });
        LockFile { file: ManuallyDrop::new(file), generation: generation(), registered }
    }

    /// Returns true in the process that opened it, and false in its children.
    pub(crate) fn is_ours(&self) -> bool {
        self.generation == generation()
    }

    /// Returns true if the path names this file, and not another one or none.
    pub(crate) fn is_at(&self, path: &Path) -> io::Result<bool> {
        let own = self.file.metadata()?;
        match std::fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            named => named.map(|named| (named.dev(), named.ino()) == (own.dev(), own.ino())),
        }
    }

    /// Waits until it has the lock.
    pub(crate) fn lock(&self, at: u64, kind: Kind) -> io::Result<()> {
        loop {
            match self.set(libc::F_OFD_SETLKW, at, kind) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    /// Takes the lock unless another open file has a conflicting one; returns true if it has it now.
    pub(crate) fn try_lock(&self, at: u64, kind: Kind) -> io::Result<bool> {
        match self.set(libc::F_OFD_SETLK, at, kind) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Releases the lock.
    pub(crate) fn unlock(&self, at: u64) -> io::Result<()> {
        self.control(libc::F_OFD_SETLK, &mut flock(libc::F_UNLCK, at))
    }

    /// Returns true if another open file has a lock on the byte.
    pub(crate) fn is_locked_elsewhere(&self, at: u64) -> io::Result<bool> {
        let mut lock = flock(libc::F_WRLCK, at);
        self.control(libc::F_OFD_GETLK, &mut lock)?;
        Ok(i32::from(lock.l_type) != libc::F_UNLCK)
    }

    fn set(&self, command: i32, at: u64, kind: Kind) -> io::Result<()> {
        let kind = match kind {
            Kind::Shared => libc::F_RDLCK,
            Kind::Exclusive => libc::F_WRLCK,
        };
        self.control(command, &mut flock(kind, at))
    }

    fn control(&self, command: i32, lock: &mut libc::flock) -> io::Result<()> {
        if !self.is_ours() {
            return Err(io::Error::other("the lock's file belongs to the parent process"));
        }
        let descriptor: RawFd = self.file.as_raw_fd();
        // SAFETY: the descriptor is open, and the structure has the kernel's layout and lives across the call.
        match unsafe { libc::fcntl(descriptor, command, &raw mut *lock) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        if let Some(at) = self.registered {
            FILES[at].store(-1, Ordering::Relaxed);
        }
        // Closing it is not enough: a child between its fork and its exec has the open file too.
        let _ = self.control(libc::F_OFD_SETLK, &mut libc::flock { l_len: 0, ..flock(libc::F_UNLCK, 0) });
        // SAFETY: it is dropped once, here, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.file) };
    }
}

fn flock(kind: i32, at: u64) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: at as libc::off_t,
        l_len: 1,
        // Has to be 0 for these locks.
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_keeps_others_out_until_its_file_is_closed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || LockFile::new(File::options().read(true).write(true).open(file.path()).unwrap());
        let (one, other) = (open(), open());
        assert!(one.try_lock(7, Kind::Exclusive).unwrap());
        assert!(!other.try_lock(7, Kind::Shared).unwrap());
        assert!(other.is_locked_elsewhere(7).unwrap() && !one.is_locked_elsewhere(7).unwrap());
        assert!(other.try_lock(8, Kind::Exclusive).unwrap());
        // As a child has it that was forked and does not run its own program yet.
        let of_child = one.file.try_clone().unwrap();
        drop(one);
        assert!(!other.is_locked_elsewhere(7).unwrap());
        drop(of_child);
        assert!(other.try_lock(7, Kind::Shared).unwrap() && open().try_lock(7, Kind::Shared).unwrap());
    }
}
