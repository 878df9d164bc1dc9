//! Reading all of a partition's log, as the coordinators do when they take it over.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mainstem_log::ReadBound;
use mainstem_wire::ErrorCode;

use super::Partition;
use crate::replay::{CHUNK_BYTES, Checksums, Decoder, Entry, ReplayError};

/// Reads a partition's log piece by piece. The partition is locked while a piece is looked up, and not while it is read.
///
/// No compaction of the log begins meanwhile. Otherwise a key could come back: its value was read, and the record of its deletion is removed
/// before it is read. One compaction that is under way already does not remove both: it keeps the record of a deletion whose value it
/// removes.
pub struct LogReplay {
    partition: Arc<Partition>,
    decoder: Decoder,
    next: i64,
}

impl LogReplay {
    /// Begins at the start of a partition's log.
    pub fn begin(partition: &Arc<Partition>, checksums: Checksums) -> LogReplay {
        partition.replays.fetch_add(1, Ordering::AcqRel);
        LogReplay { partition: partition.clone(), decoder: Decoder::new(checksums), next: 0 }
    }

    /// Calls `each` with every record and every end of a transaction of the next piece, about 1 MiB, in order. Returns false if there is
    /// none: all of the log is read.
    ///
    /// # Errors
    /// That of [`NoLog`](super::NoLog); within, why the log cannot be read.
    pub fn next_piece(
        &mut self,
        each: impl FnMut(Entry<'_>),
    ) -> Result<Result<bool, ReplayError>, ErrorCode> {
        let next = self.next;
        let range = self.partition.with_log(|log| {
            let next = next.max(log.ends().log_start);
            let range = log.read_waiting(next, ReadBound::LogEnd, CHUNK_BYTES, true)?;
            Ok(range.map(|range| (next, range)))
        })?;
        Ok(range.and_then(|range| {
            let Some((next, range)) = range else { return Ok(false) };
            let chunk = range.to_vec()?;
            self.next = self.decoder.decode(&chunk, next..i64::MAX, each)?;
            Ok(true)
        }))
    }
}

impl Drop for LogReplay {
    fn drop(&mut self) {
        self.partition.replays.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Partition {
    /// Returns true while its log is replayed.
    pub(crate) fn is_replayed(&self) -> bool {
        self.replays.load(Ordering::Acquire) > 0
    }
}
