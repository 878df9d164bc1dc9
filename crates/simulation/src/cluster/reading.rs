//! Reads of consumers: up to the high watermark, or the committed transactions before the last stable offset.

use crate::node::records_of;
use mainstem_log::{AbortedTransaction, Log, ReadBound};
use mainstem_records::{Batch, EndTransactionMarker, Scratch};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Bytes of one read.
const READ_BYTES: usize = 1_000;
/// The same of a read of a whole log.
const LONG_READ_BYTES: usize = 100_000;
/// The most bytes of a decompressed batch.
const BATCH_BYTES_MAX: usize = 1 << 20;

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
    let mut fetched = nothing;
    let next = visible(&bytes, range.aborted, |batch| {
        fetched.records.extend(records_of(batch).into_iter().filter(|(offset, _)| *offset >= from));
    });
    fetched.next = next.unwrap_or(from);
    fetched
}

/// The last record of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Last {
    pub(crate) offset: i64,
    /// `None`: a tombstone.
    pub(crate) value: Option<Vec<u8>>,
}

/// The last record of each key before the last stable offset.
pub(crate) fn last_values(log: &Log) -> BTreeMap<Vec<u8>, Last> {
    let (mut last, mut from, mut buffer) = (BTreeMap::new(), log.ends().log_start, Vec::new());
    loop {
        let range = log.read_waiting(from, ReadBound::LastStable, LONG_READ_BYTES, true);
        let Some(range) = range.expect("an existing offset") else { return last };
        let bytes = range.to_vec().expect("a read");
        let next = visible(&bytes, range.aborted, |batch| {
            let records = batch.records(&mut buffer, BATCH_BYTES_MAX, &mut Scratch::new()).expect("records");
            for record in records.map(|record| record.expect("a record")) {
                let key = record.key.expect("compacted records have keys").to_vec();
                let value = record.value.map(<[u8]>::to_vec);
                last.insert(key, Last { offset: record.offset, value });
            }
        });
        let Some(next) = next.filter(|next| *next > from) else { return last };
        from = next;
    }
}

/// Passes on the batches of clients in these bytes, without those of aborted transactions. As in Java's consumer, a transaction is aborted
/// from its first offset until its producer's next marker. Returns the offset behind the bytes; `None`: there are no batches.
fn visible(
    bytes: &[u8],
    mut aborted: Vec<AbortedTransaction>,
    mut pass: impl FnMut(&Batch<'_>),
) -> Option<i64> {
    aborted.sort_by_key(|aborted| aborted.first_offset);
    let (mut aborted, mut open) = (VecDeque::from(aborted), BTreeSet::new());
    let (mut rest, mut next) = (bytes, None);
    while let Ok((batch, behind)) = Batch::split_first(rest) {
        rest = behind;
        while let Some(first) = aborted.front()
            && first.first_offset <= batch.last_offset()
        {
            open.insert(first.producer_id.get());
            aborted.pop_front();
        }
        next = Some(batch.next_offset());
        if batch.attributes().is_control() {
            if EndTransactionMarker::of_batch(&batch).is_some_and(|marker| !marker.committed) {
                open.remove(&batch.producer_id());
            }
            continue;
        }
        let is_aborted = batch.attributes().is_transactional() && open.contains(&batch.producer_id());
        if !is_aborted {
            pass(&batch);
        }
    }
    next
}
