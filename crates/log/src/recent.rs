//! Positions of the last few batches of the active segment, so that a reader at the tail needs no lookup.

use std::collections::VecDeque;

/// Batches remembered. At 16 bytes each this is half a KiB per partition that is written to.
const RECENT_MAX: usize = 32;

/// A batch in the active segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecentBatch {
    pub(crate) base_offset: i64,
    pub(crate) position: u32,
    pub(crate) size: u32,
}

/// The last batches of the active segment, oldest first, without a gap up to its end.
#[derive(Debug, Default)]
pub(crate) struct RecentBatches {
    batches: VecDeque<RecentBatch>,
}

impl RecentBatches {
    pub(crate) fn push(&mut self, batch: RecentBatch) {
        if self.batches.len() == RECENT_MAX {
            self.batches.pop_front();
        }
        self.batches.push_back(batch);
    }

    /// The batch that holds `offset`. `None`: not among the last ones. The caller has made sure that the offset is
    /// before the log end.
    pub(crate) fn find(&self, offset: i64) -> Option<RecentBatch> {
        let count = self.batches.partition_point(|batch| batch.base_offset <= offset);
        count.checked_sub(1).map(|last| self.batches[last])
    }

    /// Forgets everything: another segment is the active one.
    pub(crate) fn clear(&mut self) {
        self.batches.clear();
    }

    /// Forgets what starts at or behind a position.
    pub(crate) fn truncate(&mut self, position: u32) {
        let keep = self.batches.partition_point(|batch| batch.position < position);
        self.batches.truncate(keep);
    }

    /// Asserts that the batches follow each other without a gap, lie between the active segment's first offset and the
    /// log end, and end where its bytes do.
    ///
    /// # Panics
    /// If something does not hold.
    pub(crate) fn check(&self, log_end: i64, segment_base: i64, segment_len: u32) {
        let follows = |one: &RecentBatch, next: &RecentBatch| {
            one.base_offset < next.base_offset && one.position + one.size == next.position
        };
        let batches = &self.batches;
        assert!(
            batches.iter().is_sorted_by(|one, next| follows(one, next)),
            "batches with a gap: {batches:?}"
        );
        let (Some(first), Some(last)) = (batches.front(), batches.back()) else { return };
        assert!(
            segment_base <= first.base_offset && last.base_offset < log_end,
            "the last batches are not between {segment_base} and {log_end}: {batches:?}"
        );
        let end = last.position + last.size;
        assert!(end == segment_len, "the last batches end at byte {end}, the segment at {segment_len}");
    }
}
