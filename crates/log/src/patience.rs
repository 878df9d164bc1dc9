//! Reads that may or may not wait for the disk: the same lookup runs on a loop, where it must not block, and on a
//! helper thread, where it may.

use crate::storage::{StorageFile, read_full_at};
use std::io;

/// Whether a read may wait for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// It may.
    Wait,
    /// Only what is in the page cache is read.
    NoWait,
}

/// Why a lookup has no answer.
#[derive(Debug)]
pub(crate) enum Blocked {
    /// It would have to wait for the disk.
    WouldBlock,
    /// The disk refused.
    Failed(io::Error),
}

impl From<io::Error> for Blocked {
    fn from(error: io::Error) -> Blocked {
        Blocked::Failed(error)
    }
}

impl Patience {
    /// Reads until the buffer is full or the file ends; returns the count.
    pub(crate) fn read_full(
        self,
        file: &dyn StorageFile,
        buf: &mut [u8],
        position: u64,
    ) -> Result<usize, Blocked> {
        if self == Patience::Wait {
            return Ok(read_full_at(file, buf, position)?);
        }
        let mut filled = 0;
        while filled < buf.len() {
            match file.read_at_nowait(&mut buf[filled..], position + filled as u64)? {
                None => return Err(Blocked::WouldBlock),
                Some(0) => break,
                Some(count) => filled += count,
            }
        }
        Ok(filled)
    }

    /// Fills the buffer; a file that ends before is [`io::ErrorKind::UnexpectedEof`].
    pub(crate) fn read_exact(
        self,
        file: &dyn StorageFile,
        buf: &mut [u8],
        position: u64,
    ) -> Result<(), Blocked> {
        if self.read_full(file, buf, position)? < buf.len() {
            return Err(Blocked::Failed(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(())
    }
}
