//! Reads whole batches from a segment file, front to back, in large pieces.

use super::cleaner::CleanError;
use crate::error::LogError;
use crate::storage::{StorageFile, read_exact_at};
use mainstem_records::{Batch, HEADER_BYTES};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// A walk over the batches of a file.
pub(crate) struct BatchReader<'b> {
    file: Arc<dyn StorageFile>,
    path: PathBuf,
    /// The start of the next batch and the end of the last one.
    left: Range<u64>,
    buffer: &'b mut Vec<u8>,
    /// The part of the buffer that was read and not yet returned. It begins with the next batch.
    ready: Range<usize>,
    chunk_bytes: usize,
    /// Bytes read since they were asked for last.
    unpaid: u64,
}

impl<'b> BatchReader<'b> {
    /// A walk over a range that begins and ends with a batch, `chunk_bytes` at once and more for a larger batch.
    pub(crate) fn new(
        file: Arc<dyn StorageFile>,
        path: PathBuf,
        range: Range<u64>,
        chunk_bytes: usize,
        buffer: &'b mut Vec<u8>,
    ) -> BatchReader<'b> {
        let chunk_bytes = chunk_bytes.max(HEADER_BYTES);
        BatchReader { file, path, left: range, buffer, ready: 0..0, chunk_bytes, unpaid: 0 }
    }

    /// The next batch, its checksum verified, and its position; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, Batch<'_>)>, CleanError> {
        if self.left.is_empty() {
            return Ok(None);
        }
        let header = HEADER_BYTES.min(self.left_bytes());
        self.fill(header)?;
        let size = Batch::size_of_first(&self.buffer[self.ready.start..self.ready.end])
            .map_err(|error| self.damaged(error.into()))?;
        if size > self.left_bytes() {
            return Err(CleanError::Log(LogError::Damaged {
                path: self.path.clone(),
                position: self.left.start,
                reason: "a batch that is cut off",
            }));
        }
        self.fill(size)?;
        let (position, start) = (self.left.start, self.ready.start);
        self.left.start += size as u64;
        self.ready.start += size;
        let (batch, _) = Batch::split_first(&self.buffer[start..start + size]).expect("its size was read");
        if !batch.verify_crc() {
            let (path, reason) = (self.path.clone(), "a checksum that does not match");
            return Err(CleanError::Log(LogError::Damaged { path, position, reason }));
        }
        Ok(Some((position, batch)))
    }

    /// Bytes that were read since this was asked last.
    pub(crate) fn take_unpaid(&mut self) -> u64 {
        std::mem::take(&mut self.unpaid)
    }

    fn damaged(&self, error: mainstem_records::InvalidBatch) -> CleanError {
        CleanError::Batch { path: self.path.clone(), position: self.left.start, error }
    }

    fn left_bytes(&self) -> usize {
        usize::try_from(self.left.end - self.left.start).unwrap_or(usize::MAX)
    }

    /// Reads until this many bytes of the next batch are in the buffer. The file has as many.
    fn fill(&mut self, needed: usize) -> Result<(), CleanError> {
        if self.ready.len() >= needed {
            return Ok(());
        }
        self.buffer.copy_within(self.ready.clone(), 0);
        self.ready = 0..self.ready.len();
        let want = self.chunk_bytes.max(needed).min(self.left_bytes());
        self.buffer.resize(want.max(self.ready.end), 0);
        if want <= self.chunk_bytes {
            self.buffer.shrink_to(self.chunk_bytes);
        }
        let at = self.left.start + self.ready.end as u64;
        read_exact_at(&*self.file, &mut self.buffer[self.ready.end..want], at)
            .map_err(LogError::io("read", &*self.path))?;
        self.unpaid += (want - self.ready.end) as u64;
        self.ready.end = want;
        Ok(())
    }
}
