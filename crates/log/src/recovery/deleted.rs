//! Treatment at a start of segments whose records are all before the log start.
//!
//! They were deleted, and still exist for one of two reasons: maintenance has not removed them yet, or a power cut has
//! brought back some of their names. A log without replicas has no use for them, so they are removed here. A replica keeps
//! them until maintenance removes them, as in a process that runs, because another replica may lack their records. It keeps
//! them only as far as they join the rest of the log without a gap. A segment that is not whole is removed with all before
//! it. So no deleted segment prevents a log from being opened, or costs it later records.

use super::Opening;
use crate::dir::LastStop;
use crate::error::LogError;
use crate::files::FileKind;
use crate::inventory::{FoundSegment, SEGMENT_BYTES_MAX};
use crate::read_mode::ReadMode;
use crate::scan::{BatchScan, RECOVERY_CHUNK_BYTES, Scanned};
use crate::segment::blocking;
use crate::storage::{Advice, OpenMode};
use crate::truncate::{remove_segment_files, tail_end};
use std::io;

impl Opening<'_> {
    /// Removes deleted segments that do not stay, and returns the others.
    pub(super) fn drop_deleted<'f>(&self, found: &'f [FoundSegment]) -> Result<&'f [FoundSegment], LogError> {
        let ends = found.iter().skip(1).map(|next| next.base_offset);
        let count = ends.take_while(|end| *end <= self.noted_start).count();
        let count = if self.keeps_deleted { self.count_cut_off(found, count)? } else { count };
        let (deleted, kept) = found.split_at(count);
        deleted.iter().try_for_each(|segment| remove_segment_files(self.files, segment.base_offset))?;
        Ok(kept)
    }

    /// Counts the first segments, of which `deleted` are deleted, that are not joined to those that follow.
    fn count_cut_off(&self, found: &[FoundSegment], deleted: usize) -> Result<usize, LogError> {
        for (number, pair) in found.windows(2).enumerate().take(deleted).rev() {
            if !self.is_joined(&pair[0], pair[1].base_offset)? {
                let (dir, base_offset) = (self.files.dir.display(), pair[0].base_offset);
                tracing::info!(%dir, base_offset, "a deleted segment is not whole: it goes, with what precedes it");
                return Ok(number + 1);
            }
        }
        Ok(0)
    }

    /// Returns true if a segment is whole, and ends where the next one begins.
    fn is_joined(&self, found: &FoundSegment, next: i64) -> Result<bool, LogError> {
        let is_suspect = self.last_stop == LastStop::UncleanOtherBoot && next >= self.recovery_point;
        let end = match is_suspect || !found.indexes_fit() {
            true => self.whole_end(found),
            false => tail_end(self.files, &found.trusted()).map(Some),
        };
        match end {
            Ok(end) => Ok(end == Some(next)),
            // An earlier attempt has removed the segment, or it is not one.
            Err(LogError::Damaged { .. }) => Ok(false),
            Err(LogError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads and checks a whole segment, and returns its end offset; `None`: not all of it is whole.
    fn whole_end(&self, found: &FoundSegment) -> Result<Option<i64>, LogError> {
        if found.log_bytes > SEGMENT_BYTES_MAX {
            return Ok(None);
        }
        let path = self.files.path(found.base_offset, FileKind::Log);
        let failed = |action| LogError::io(action, &*path);
        let file = self.files.storage.open(&path, OpenMode::Read).map_err(failed("open"))?;
        // The check has to read from the disk, not from the page cache.
        file.advise(Advice::DontNeed, 0, 0);
        let range = 0..found.log_bytes;
        let mut batches =
            BatchScan::new(&*file, ReadMode::Blocking, range, found.base_offset, RECOVERY_CHUNK_BYTES);
        loop {
            match blocking(batches.next(true)).map_err(failed("read"))? {
                Scanned::Batch(batch) => self.watch.walked(batch.size)?,
                Scanned::End => return Ok(Some(batches.next_offset())),
                Scanned::Torn { .. } => return Ok(None),
            }
        }
    }
}
