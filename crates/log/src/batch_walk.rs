//! Walking over the headers of stored batches: what a replica does that counts them.

use crate::error::ReadError;
use crate::log::Log;
use crate::read_mode::ReadMode;
use crate::scan::Scanned;
use crate::segment::blocking;
use mainstem_records::LeaderEpoch;
use std::io;
use std::ops::ControlFlow;

/// Fields of a stored batch's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredBatch {
    /// Offset of its first record.
    pub base_offset: i64,
    /// Offset of its last record.
    pub last_offset: i64,
    /// The epoch under which it was appended.
    pub leader_epoch: LeaderEpoch,
    /// Its bytes in the segment.
    pub size: u32,
    /// Base offset of the segment that it is in.
    pub segment_base_offset: i64,
}

impl Log {
    /// Visits the batches from the one that holds `from` on, in order, until the log end or a break. Blocks on the disk;
    /// a read takes a few KiB, whatever the batches' size. Errors are those of [`Log::read`].
    pub fn walk_batches(
        &self,
        from: i64,
        mut visit: impl FnMut(&StoredBatch) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        if let Some(reason) = self.refusal() {
            return Err(ReadError::Stopped(reason.to_owned()));
        }
        for number in self.segment_of(from)..self.segments.len() {
            let visited = self.walk_segment(number, from, &mut visit).map_err(ReadError::Storage);
            if visited.inspect_err(|error| self.note_unreadable(error))?.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn note_unreadable(&self, error: &ReadError) {
        if let ReadError::Storage(error) = error {
            self.dir.note_error(error);
        }
    }

    fn walk_segment(
        &self,
        number: usize,
        from: i64,
        visit: &mut impl FnMut(&StoredBatch) -> ControlFlow<()>,
    ) -> io::Result<ControlFlow<()>> {
        let segment = &self.segments[number];
        let active = (number + 1 == self.segments.len()).then_some(&self.active.file);
        let lookup = segment.lookup(from, segment.lookup_files(&self.files, active)?);
        let start = blocking(lookup.start(from, ReadMode::Blocking))?;
        let mut batches = lookup.batches(start, ReadMode::Blocking);
        loop {
            match blocking(batches.next(false))? {
                Scanned::Batch(batch) if batch.last_offset < from => {}
                Scanned::Batch(batch) => {
                    let stored = StoredBatch {
                        base_offset: batch.base_offset,
                        last_offset: batch.last_offset,
                        leader_epoch: batch.leader_epoch,
                        size: u32::try_from(batch.size).unwrap_or(u32::MAX),
                        segment_base_offset: segment.base_offset,
                    };
                    if visit(&stored).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                Scanned::End => return Ok(ControlFlow::Continue(())),
                Scanned::Torn { reason, .. } => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
                }
            }
        }
    }

    /// Base offset of the segment that is appended to.
    pub fn active_base_offset(&self) -> i64 {
        self.active_segment().base_offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::testing::{Bench, small_segments};
    use crate::sim::SimStorage;
    use std::sync::Arc;

    #[test]
    fn batches_are_visited_from_any_offset_across_segments() {
        let bench = Bench::with_storage(Arc::new(SimStorage::new()), small_segments());
        let (mut log, _) = bench.open("a");
        bench.append_numbers(&mut log, 0..60);
        assert!(log.segment_count() > 2);
        for from in [0, 1, 14, 30, 59, 60] {
            let (mut next, mut bases) = (from, std::collections::BTreeSet::new());
            let visited = log.walk_batches(from, |batch| {
                assert_eq!((batch.base_offset, batch.last_offset), (next, next));
                assert!(batch.segment_base_offset <= batch.base_offset && batch.size > 60);
                bases.insert(batch.segment_base_offset);
                next += 1;
                ControlFlow::Continue(())
            });
            visited.unwrap();
            assert_eq!(next, 60, "from {from}");
            assert!(from == 60 || bases.contains(&log.active_base_offset()));
        }
        let mut count = 0;
        let visited = log.walk_batches(5, |_| {
            count += 1;
            if count == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        visited.unwrap();
        assert_eq!(count, 3);
    }
}
