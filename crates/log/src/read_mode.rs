//! Reads that may or may not wait for the disk: the same lookup runs on a loop, where it must not block, and on a
//! helper thread, where it may.

use crate::storage::{StorageFile, read_full_at};
use std::io;

/// Permission of a read to wait for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadMode {
    /// The read may wait.
    Blocking,
    /// Only bytes in the page cache are read.
    NonBlocking,
}

/// The reason for which a lookup has no answer.
#[derive(Debug)]
pub(crate) enum ReadStop {
    /// The read would have to wait for the disk.
    WouldBlock,
    /// The disk refused.
    Failed(io::Error),
}

impl From<io::Error> for ReadStop {
    fn from(error: io::Error) -> ReadStop {
        ReadStop::Failed(error)
    }
}

impl ReadMode {
    /// Reads until the buffer is full or the file ends; returns the count.
    pub(crate) fn read_full(
        self,
        file: &dyn StorageFile,
        buf: &mut [u8],
        position: u64,
    ) -> Result<usize, ReadStop> {
        if self == ReadMode::Blocking {
            return Ok(read_full_at(file, buf, position)?);
        }
        let mut filled = 0;
        while filled < buf.len() {
            match file.read_at_nowait(&mut buf[filled..], position + filled as u64)? {
                None => return Err(ReadStop::WouldBlock),
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
    ) -> Result<(), ReadStop> {
        if self.read_full(file, buf, position)? < buf.len() {
            return Err(ReadStop::Failed(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(())
    }
}
