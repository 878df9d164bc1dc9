//! A broker's answer for one partition, batch by batch.

use std::collections::{HashSet, VecDeque};

use bytes::Bytes;
use mainstem_records::{Batch, BatchError, EndTransactionMarker};
use mainstem_wire::Uuid;

use super::assignment::FetchPosition;
use super::config::Isolation;
use super::session::Wanted;
use crate::topic_partition::TopicPartition;

/// A partition's part of an answer without an error.
#[derive(Debug)]
pub(crate) struct Arrived {
    /// Batches; the last one may be cut off.
    pub(crate) bytes: Bytes,
    /// First offset and producer of each aborted transaction.
    pub(crate) aborted: Vec<(i64, i64)>,
    /// The offset after the last record that may be read.
    pub(crate) end_offset: i64,
}

/// Complete batches that were not taken yet.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) key: TopicPartition,
    /// The generation of the partition when it was asked for.
    pub(crate) generation: u64,
    /// The id of the topic that was asked for; zero if brokers are too old to know it.
    pub(crate) topic_id: Uuid,
    /// The number of its bytes when it came.
    pub(crate) size: usize,
    /// The offset after its last batch, and that batch's epoch.
    pub(crate) next: FetchPosition,
    bytes: Bytes,
    isolation: Isolation,
    /// Transactions that were aborted and whose first offset was not reached yet: offset and producer, by offset.
    aborted: VecDeque<(i64, i64)>,
    /// Producers in the midst of a transaction that was aborted.
    aborting: HashSet<i64>,
}

impl Chunk {
    /// Takes what arrived for what was asked; none if there is no record in it.
    ///
    /// # Errors
    /// When it does not begin with a complete batch.
    pub(crate) fn open(
        key: TopicPartition,
        asked: &Wanted,
        isolation: Isolation,
        arrived: Arrived,
    ) -> Result<Option<Chunk>, BatchError> {
        let Some((size, next)) = complete(&arrived.bytes)? else { return Ok(None) };
        let mut aborted = arrived.aborted;
        aborted.sort_unstable();
        Ok(Some(Chunk {
            key,
            generation: asked.generation,
            topic_id: asked.topic_id,
            size,
            next,
            bytes: arrived.bytes.slice(..size),
            isolation,
            aborted: aborted.into(),
            aborting: HashSet::new(),
        }))
    }

    /// The next visible batch, or none if there is no more.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        while !self.bytes.is_empty() {
            let bytes = self.bytes.clone();
            let (batch, _) = Batch::split_first(&bytes).expect("only complete batches are kept");
            let whole = self.bytes.split_to(batch.size());
            if self.is_visible(&batch) {
                return Some(whole);
            }
        }
        None
    }

    /// The base offset of the batch after the last one that was taken, if it came too.
    pub(crate) fn following(&self) -> Option<i64> {
        Batch::split_first(&self.bytes).ok().map(|(batch, _)| batch.base_offset())
    }

    fn is_visible(&mut self, batch: &Batch<'_>) -> bool {
        if self.isolation == Isolation::ReadUncommitted {
            return !batch.attributes().is_control();
        }
        while let Some((first_offset, producer)) = self.aborted.front()
            && *first_offset <= batch.last_offset()
        {
            self.aborting.insert(*producer);
            self.aborted.pop_front();
        }
        if batch.attributes().is_control() {
            if is_abort(batch) {
                self.aborting.remove(&batch.producer_id());
            }
            return false;
        }
        !(batch.attributes().is_transactional() && self.aborting.contains(&batch.producer_id()))
    }
}

/// Returns true if a batch of control records aborts a transaction.
fn is_abort(batch: &Batch<'_>) -> bool {
    let Ok(mut records) = batch.records_in(batch.payload()) else { return false };
    let Some(Ok(record)) = records.next() else { return false };
    matches!(EndTransactionMarker::parse(record.key, record.value), Ok(Some(marker)) if !marker.committed)
}

/// The length of all complete batches, and the place after them. The last one may be cut off: a broker sends no more bytes
/// than it was asked for.
fn complete(bytes: &Bytes) -> Result<Option<(usize, FetchPosition)>, BatchError> {
    let mut rest = &**bytes;
    let mut next = None;
    while !rest.is_empty() {
        match Batch::split_first(rest) {
            Ok((batch, behind)) => {
                next = Some(FetchPosition {
                    offset: batch.next_offset(),
                    epoch: batch.partition_leader_epoch(),
                });
                rest = behind;
            }
            Err(error) if next.is_none() => return Err(error),
            Err(_) => break,
        }
    }
    Ok(next.map(|next| (bytes.len() - rest.len(), next)))
}

#[cfg(test)]
mod tests {
    use mainstem_records::{BatchBuilder, BatchOptions, CoordinatorEpoch, ProducerFields};

    use super::*;

    const ASKED: Wanted = Wanted { topic_id: Uuid::ZERO, offset: 0, leader_epoch: 0, generation: 1 };

    /// A batch of one record by a producer; in a transaction if it has an id.
    fn batch(offset: i64, producer: i64) -> Vec<u8> {
        let options = BatchOptions {
            base_offset: offset,
            producer: ProducerFields { producer_id: producer, producer_epoch: 0, base_sequence: 0 },
            is_transactional: producer >= 0,
            ..BatchOptions::default()
        };
        let mut builder = BatchBuilder::new(options);
        builder.append(0, None, Some(b"x"), &[]).unwrap();
        let mut out = Vec::new();
        builder.finish(&mut out).unwrap();
        out
    }

    fn marker(offset: i64, producer: i64, committed: bool) -> Vec<u8> {
        let value = EndTransactionMarker { committed, coordinator_epoch: CoordinatorEpoch::ZERO };
        let options = BatchOptions {
            base_offset: offset,
            producer: ProducerFields { producer_id: producer, producer_epoch: 0, base_sequence: -1 },
            is_transactional: true,
            is_control: true,
            ..BatchOptions::default()
        };
        let mut builder = BatchBuilder::new(options);
        builder.append(0, Some(&value.control_type().key()), Some(&value.value()), &[]).unwrap();
        let mut out = Vec::new();
        builder.finish(&mut out).unwrap();
        out
    }

    fn seen(batches: &[Vec<u8>], isolation: Isolation, aborted: &[(i64, i64)]) -> Vec<i64> {
        let arrived = Arrived { bytes: batches.concat().into(), aborted: aborted.to_vec(), end_offset: 0 };
        let chunk = Chunk::open(TopicPartition::new("t", 0), &ASKED, isolation, arrived).unwrap();
        let Some(mut chunk) = chunk else { return vec![] };
        let mut offsets = Vec::new();
        while let Some(bytes) = chunk.next() {
            offsets.push(Batch::split_first(&bytes).unwrap().0.base_offset());
        }
        offsets
    }

    #[test]
    fn aborted_transactions_are_seen_only_by_those_who_want_to() {
        let batches = [
            batch(0, 7),
            batch(1, 8),
            batch(2, -1),
            marker(3, 7, false),
            batch(4, 7),
            marker(5, 8, true),
            marker(6, 7, true),
        ];
        assert_eq!(seen(&batches, Isolation::ReadCommitted, &[(0, 7)]), [1, 2, 4]);
        assert_eq!(seen(&batches, Isolation::ReadUncommitted, &[]), [0, 1, 2, 4]);
    }

    #[test]
    fn a_transaction_that_began_before_what_was_asked_for_is_known_too() {
        assert_eq!(seen(&[batch(10, 7), batch(11, 8)], Isolation::ReadCommitted, &[(3, 7)]), [11]);
    }

    #[test]
    fn a_batch_that_is_cut_off_waits_for_the_next_answer() {
        let whole = [batch(0, -1), batch(1, -1)].concat();
        let open = |len: usize| {
            let bytes = Bytes::copy_from_slice(&whole[..len]);
            let arrived = Arrived { bytes, aborted: vec![], end_offset: 0 };
            Chunk::open(TopicPartition::new("t", 0), &ASKED, Isolation::ReadUncommitted, arrived)
        };
        assert!(open(0).unwrap().is_none());
        assert!(matches!(open(whole.len() / 2 - 1), Err(BatchError::Truncated { .. })));
        for (len, next_offset) in [(whole.len() / 2, 1), (whole.len() - 1, 1), (whole.len(), 2)] {
            assert_eq!(open(len).unwrap().unwrap().next.offset, next_offset);
        }
    }
}
