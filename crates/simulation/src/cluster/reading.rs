//! Reads of consumers: up to the high watermark, or the committed transactions before the last stable offset.

use crate::node::records_of;
use mainstem_log::{AbortedTransaction, Log, ReadBound};
use mainstem_records::{Batch, EndTransactionMarker};
use std::collections::{BTreeSet, VecDeque};

/// Bytes of one read.
const READ_BYTES: usize = 1_000;

/// Result of a fetch.
#[derive(Debug, Default)]
pub(crate) struct Fetched {
    /// Offsets and values.
    pub(crate) records: Vec<(i64, u64)>,
    /// Offset of the next fetch.
    pub(crate) next: i64,
}

/// Reads from an offset on, with `committed_only` like `isolation.level=read_committed`. Returns no records if the offset does not
/// exist yet.
pub(crate) fn fetch(log: &Log, from: i64, committed_only: bool) -> Fetched {
    let nothing = Fetched { records: Vec::new(), next: from };
    if from > log.ends().log_end {
        return nothing;
    }
    let bound = if committed_only { ReadBound::LastStable } else { ReadBound::HighWatermark };
    let range = log.read_waiting(from, bound, READ_BYTES, true).expect("an existing offset");
    let Some(range) = range else { return nothing };
    let bytes = range.to_vec().expect("a read");
    visible(&bytes, from, range.aborted)
}

/// The records of clients in these bytes, without those of aborted transactions. As in Java's consumer, a transaction is aborted from
/// its first offset until its producer's next marker.
fn visible(bytes: &[u8], from: i64, mut aborted: Vec<AbortedTransaction>) -> Fetched {
    aborted.sort_by_key(|aborted| aborted.first_offset);
    let (mut aborted, mut open) = (VecDeque::from(aborted), BTreeSet::new());
    let mut fetched = Fetched { records: Vec::new(), next: from };
    let mut rest = bytes;
    while let Ok((batch, behind)) = Batch::split_first(rest) {
        rest = behind;
        while let Some(first) = aborted.front()
            && first.first_offset <= batch.last_offset()
        {
            open.insert(first.producer_id.get());
            aborted.pop_front();
        }
        fetched.next = batch.next_offset();
        if batch.attributes().is_control() {
            if EndTransactionMarker::of_batch(&batch).is_some_and(|marker| !marker.committed) {
                open.remove(&batch.producer_id());
            }
            continue;
        }
        let is_aborted = batch.attributes().is_transactional() && open.contains(&batch.producer_id());
        if !is_aborted {
            fetched.records.extend(records_of(&batch).into_iter().filter(|(offset, _)| *offset >= from));
        }
    }
    fetched
}
