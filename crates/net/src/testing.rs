//! Files that are not in memory.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mainstem_log::storage::{Advice, StorageFile};
use parking_lot::{Condvar, Mutex};

/// A file that is not in memory. Reads end only when `pieces` of them run at the same time.
#[derive(Debug)]
pub(crate) struct Together {
    pieces: AtomicUsize,
    /// Pieces whose reading has begun.
    pub(crate) begun: Mutex<usize>,
    changed: Condvar,
}

/// Creates such a file of any length.
pub(crate) fn cold_file(pieces: usize) -> Arc<dyn StorageFile> {
    together(pieces)
}

/// Creates such a file that the test can inspect.
pub(crate) fn together(pieces: usize) -> Arc<Together> {
    let pieces = AtomicUsize::new(pieces);
    Arc::new(Together { pieces, begun: Mutex::default(), changed: Condvar::new() })
}

impl Together {
    /// Lets every read that has begun end.
    pub(crate) fn release(&self) {
        let _begun = self.begun.lock();
        self.pieces.store(1, Ordering::Relaxed);
        self.changed.notify_all();
    }
}

impl StorageFile for Together {
    fn read_at(&self, buf: &mut [u8], _position: u64) -> io::Result<usize> {
        let mut begun = self.begun.lock();
        *begun += 1;
        self.changed.notify_all();
        let own = *begun;
        let is_short = |begun: &mut usize| *begun < own.next_multiple_of(self.pieces.load(Ordering::Relaxed));
        let late = self.changed.wait_while_for(&mut begun, is_short, Duration::from_secs(60));
        if late.timed_out() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(buf.len()) }
    }

    fn write_at(&self, _bufs: &[IoSlice<'_>], _position: u64) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn read_at_nowait(&self, _buf: &mut [u8], _position: u64) -> io::Result<Option<usize>> {
        Ok(None)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn allocate(&self, _position: u64, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync_fs(&self) -> io::Result<()> {
        Ok(())
    }

    fn advise(&self, _advice: Advice, _position: u64, _len: u64) {}

    fn resident(&self, _position: u64, _len: u64) -> Option<bool> {
        Some(false)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
