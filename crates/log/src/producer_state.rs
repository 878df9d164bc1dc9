//! What a partition remembers of the producers that write to it with sequence numbers (KIP-98), so that a batch
//! sent twice is stored once.
//!
//! Pure: batches and the monotonic time go in, verdicts come out. Sequence numbers run to `i32::MAX` and wrap to 0.
//! An unknown producer may begin with any sequence number, as in Kafka: its state may have expired.

use crate::scan::ScannedBatch;
use mainstem_records::{NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, increment_sequence};
use std::collections::HashMap;
use thiserror::Error;

/// Batches remembered per producer: as many as a Java producer has in flight at most.
pub const BATCHES_PER_PRODUCER: usize = 5;

/// One appended batch of a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchMetadata {
    /// Sequence number of its last record.
    pub last_sequence: i32,
    /// Offset of its last record.
    pub last_offset: i64,
    /// Last offset less first offset.
    pub offset_delta: i32,
    /// Its largest timestamp, in ms.
    pub timestamp: i64,
}

impl BatchMetadata {
    /// Sequence number of its first record.
    pub fn first_sequence(&self) -> i32 {
        // Counted backwards over the wrap from i32::MAX to 0.
        self.last_sequence.wrapping_sub(self.offset_delta) & i32::MAX
    }

    /// Offset of its first record.
    pub fn first_offset(&self) -> i64 {
        self.last_offset - i64::from(self.offset_delta)
    }
}

/// What is remembered of one producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerEntry {
    /// Its newest epoch.
    pub epoch: i16,
    /// Epoch of the transaction coordinator that wrote the last marker; -1: none.
    pub coordinator_epoch: i32,
    /// First offset of its open transaction.
    pub transaction_first_offset: Option<i64>,
    /// Largest timestamp of its last batch, in ms.
    pub last_timestamp: i64,
    /// Monotonic time of its last batch, in ms; that of the start for state from before it.
    last_seen_ms: u64,
    count: u8,
    batches: [BatchMetadata; BATCHES_PER_PRODUCER],
}

impl ProducerEntry {
    pub(crate) fn new(epoch: i16) -> ProducerEntry {
        ProducerEntry {
            epoch,
            coordinator_epoch: -1,
            transaction_first_offset: None,
            last_timestamp: -1,
            last_seen_ms: 0,
            count: 0,
            batches: Default::default(),
        }
    }

    /// The last batches under the current epoch, oldest first.
    pub fn batches(&self) -> &[BatchMetadata] {
        &self.batches[..usize::from(self.count)]
    }

    /// Sequence number of the last record under the current epoch, or [`NO_SEQUENCE`].
    pub fn last_sequence(&self) -> i32 {
        self.batches().last().map_or(NO_SEQUENCE, |batch| batch.last_sequence)
    }

    pub(crate) fn push(&mut self, batch: BatchMetadata) {
        if usize::from(self.count) == BATCHES_PER_PRODUCER {
            self.batches.rotate_left(1);
            self.count -= 1;
        }
        self.batches[usize::from(self.count)] = batch;
        self.count += 1;
        self.last_timestamp = batch.timestamp;
    }

    fn set_epoch(&mut self, epoch: i16) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.count = 0;
        }
    }

    fn find(&self, batch: &ProducerBatch) -> Option<BatchMetadata> {
        let same = |known: &&BatchMetadata| {
            known.first_sequence() == batch.base_sequence && known.last_sequence == batch.last_sequence()
        };
        self.batches().iter().find(same).copied()
    }
}

/// The fields of a batch that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProducerBatch {
    pub(crate) producer_id: i64,
    pub(crate) producer_epoch: i16,
    pub(crate) base_sequence: i32,
    pub(crate) last_offset_delta: i32,
    pub(crate) max_timestamp: i64,
    pub(crate) is_transactional: bool,
    pub(crate) is_control: bool,
}

impl ProducerBatch {
    fn last_sequence(&self) -> i32 {
        increment_sequence(self.base_sequence, self.last_offset_delta)
    }
}

impl From<&ScannedBatch> for ProducerBatch {
    fn from(batch: &ScannedBatch) -> ProducerBatch {
        ProducerBatch {
            producer_id: batch.producer_id,
            producer_epoch: batch.producer_epoch,
            base_sequence: batch.base_sequence,
            last_offset_delta: (batch.last_offset - batch.base_offset) as i32,
            max_timestamp: batch.max_timestamp,
            is_transactional: batch.attributes.is_transactional(),
            is_control: batch.attributes.is_control(),
        }
    }
}

/// What is to become of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is new.
    Append,
    /// It is in the log already, here.
    Duplicate(BatchMetadata),
}

/// Why a batch is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum ProducerFault {
    #[error("out of order sequence number, the last one is {last_sequence}")]
    OutOfOrderSequence { last_sequence: i32 },
    #[error("epoch older than {current}")]
    InvalidEpoch { current: i16 },
    #[error("a plain batch within a transaction")]
    InvalidTransactionState,
}

/// The producers of one partition.
#[derive(Debug, Default, Clone)]
pub struct ProducerState {
    producers: HashMap<i64, ProducerEntry>,
}

impl ProducerState {
    /// How many producers are remembered.
    pub fn len(&self) -> usize {
        self.producers.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.producers.is_empty()
    }

    /// What is remembered of a producer.
    pub fn get(&self, producer_id: i64) -> Option<&ProducerEntry> {
        self.producers.get(&producer_id)
    }

    /// All producers, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (i64, &ProducerEntry)> {
        self.producers.iter().map(|(id, entry)| (*id, entry))
    }

    /// Judges a client's batch; the batch has a producer id. Coordinators' batches carry no sequence numbers, so only
    /// their epoch counts (`check_sequence` false).
    pub(crate) fn check(
        &self,
        batch: &ProducerBatch,
        check_sequence: bool,
    ) -> Result<Verdict, ProducerFault> {
        let Some(entry) = self.producers.get(&batch.producer_id) else { return Ok(Verdict::Append) };
        if check_sequence
            && batch.producer_epoch == entry.epoch
            && let Some(known) = entry.find(batch)
        {
            return Ok(Verdict::Duplicate(known));
        }
        if batch.producer_epoch < entry.epoch {
            return Err(ProducerFault::InvalidEpoch { current: entry.epoch });
        }
        if check_sequence {
            check_sequence_follows(entry, batch)?;
        }
        if entry.transaction_first_offset.is_some() && !batch.is_transactional && !batch.is_control {
            return Err(ProducerFault::InvalidTransactionState);
        }
        Ok(Verdict::Append)
    }

    /// Notes an appended batch; one without a producer id changes nothing.
    pub(crate) fn record(&mut self, batch: &ProducerBatch, last_offset: i64, mono_ms: u64) {
        if batch.producer_id == NO_PRODUCER_ID {
            return;
        }
        let entry = self
            .producers
            .entry(batch.producer_id)
            .or_insert_with(|| ProducerEntry::new(batch.producer_epoch));
        entry.set_epoch(batch.producer_epoch);
        entry.last_seen_ms = mono_ms;
        if batch.is_control {
            // The marker ends the transaction; it has no sequence number.
            entry.transaction_first_offset = None;
            entry.last_timestamp = batch.max_timestamp;
            return;
        }
        entry.push(BatchMetadata {
            last_sequence: batch.last_sequence(),
            last_offset,
            offset_delta: batch.last_offset_delta,
            timestamp: batch.max_timestamp,
        });
        if batch.is_transactional && entry.transaction_first_offset.is_none() {
            entry.transaction_first_offset = Some(last_offset - i64::from(batch.last_offset_delta));
        }
    }

    /// Takes an entry from a snapshot. How long the producer was idle before is not known; to count it as seen now
    /// errs on the safe side.
    pub(crate) fn insert(&mut self, producer_id: i64, mut entry: ProducerEntry, mono_ms: u64) {
        entry.last_seen_ms = mono_ms;
        self.producers.insert(producer_id, entry);
    }

    /// Forgets producers that were idle for `expiration_ms`, except those with an open transaction. The time is
    /// monotonic: a jump of the wall clock must not make a producer's retries unknown.
    pub(crate) fn expire(&mut self, mono_ms: u64, expiration_ms: u64) -> usize {
        let before = self.producers.len();
        self.producers.retain(|_, entry| {
            entry.transaction_first_offset.is_some()
                || mono_ms.saturating_sub(entry.last_seen_ms) < expiration_ms
        });
        if self.producers.len() * 4 < self.producers.capacity() {
            self.producers.shrink_to_fit();
        }
        before - self.producers.len()
    }

    /// Keeps at most `max` producers: when there are more, the sixteenth that was idle longest goes, so that a stream
    /// of new producers costs one pass per many of them.
    pub(crate) fn bound(&mut self, max: usize) {
        if self.producers.len() <= max {
            return;
        }
        let excess = self.producers.len() - max + max / 16;
        let idle = self.producers.iter().filter(|(_, entry)| entry.transaction_first_offset.is_none());
        let mut ages: Vec<(u64, i64)> = idle.map(|(id, entry)| (entry.last_seen_ms, *id)).collect();
        let excess = excess.min(ages.len());
        if excess > 0 && excess < ages.len() {
            ages.select_nth_unstable(excess - 1);
        }
        for (_, id) in &ages[..excess] {
            self.producers.remove(id);
        }
    }
}

fn check_sequence_follows(entry: &ProducerEntry, batch: &ProducerBatch) -> Result<(), ProducerFault> {
    let fault = ProducerFault::OutOfOrderSequence { last_sequence: entry.last_sequence() };
    if batch.producer_epoch != entry.epoch {
        // KIP-360: a bumped epoch starts its sequence anew.
        let fits = batch.base_sequence == 0 || entry.epoch == NO_PRODUCER_EPOCH;
        return if fits { Ok(()) } else { Err(fault) };
    }
    let last = entry.last_sequence();
    let follows = match last {
        NO_SEQUENCE => batch.base_sequence == 0,
        last => batch.base_sequence == increment_sequence(last, 1),
    };
    if follows || entry.epoch == NO_PRODUCER_EPOCH { Ok(()) } else { Err(fault) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(epoch: i16, base_sequence: i32, count: i32) -> ProducerBatch {
        ProducerBatch {
            producer_id: 7,
            producer_epoch: epoch,
            base_sequence,
            last_offset_delta: count - 1,
            max_timestamp: 1000,
            is_transactional: false,
            is_control: false,
        }
    }

    /// A transcript: `epoch:first+count` appends or is judged; the answer is the offset, a duplicate's or a fault.
    fn check(script: &str, expect: &str) {
        let mut state = ProducerState::default();
        let (mut end, mut answers) = (0, Vec::new());
        for word in script.split_whitespace() {
            let (epoch, rest) = word.split_once(':').expect("epoch:first+count");
            let (first, count) = rest.split_once('+').expect("epoch:first+count");
            let batch = batch(epoch.parse().unwrap(), first.parse().unwrap(), count.parse().unwrap());
            answers.push(match state.check(&batch, true) {
                Ok(Verdict::Append) => {
                    end += i64::from(batch.last_offset_delta) + 1;
                    state.record(&batch, end - 1, 0);
                    format!("{}", end - i64::from(batch.last_offset_delta) - 1)
                }
                Ok(Verdict::Duplicate(known)) => format!("dup@{}", known.first_offset()),
                Err(ProducerFault::OutOfOrderSequence { last_sequence }) => format!("gap>{last_sequence}"),
                Err(ProducerFault::InvalidEpoch { current }) => format!("stale<{current}"),
                Err(ProducerFault::InvalidTransactionState) => "txn".into(),
            });
        }
        assert_eq!(answers.join(" "), expect, "{script}");
    }

    #[test]
    fn the_last_five_batches_are_recognised() {
        check("0:0+1 0:1+2 0:3+1 0:4+1 0:5+1 0:6+1 0:1+2 0:6+1 0:0+1", "0 1 3 4 5 6 dup@1 dup@6 gap>6");
    }

    #[test]
    fn gaps_and_overlaps_are_refused() {
        check("0:0+2 0:3+1 0:1+1 0:2+1", "0 gap>1 gap>1 2");
        check("0:0+2 0:0+1", "0 gap>1");
    }

    #[test]
    fn an_unknown_producer_begins_anywhere() {
        check("3:17+1 3:18+1", "0 1");
    }

    #[test]
    fn epochs_fence_and_restart_the_sequence() {
        check("1:0+1 0:1+1 2:1+1 2:0+1 2:0+1 1:1+1", "0 stale<1 gap>0 1 dup@1 stale<2");
    }

    #[test]
    fn sequences_wrap_to_zero() {
        check("0:2147483646+2 0:0+1 0:1+1 0:2147483646+2", "0 2 3 dup@0");
        check("0:2147483646+4 0:2+1 0:2147483646+4 0:2+1", "0 4 dup@0 dup@4");
    }

    #[test]
    fn idle_producers_expire_by_the_monotonic_clock() {
        let mut state = ProducerState::default();
        state.record(&ProducerBatch { producer_id: 1, ..batch(0, 0, 1) }, 0, 100);
        state.record(&ProducerBatch { producer_id: 2, ..batch(0, 0, 1) }, 1, 900);
        let open = ProducerBatch { producer_id: 3, is_transactional: true, ..batch(0, 0, 1) };
        state.record(&open, 2, 100);
        assert_eq!(state.expire(1099, 1000), 0);
        assert_eq!(state.expire(1100, 1000), 1);
        assert!(state.get(1).is_none() && state.get(2).is_some() && state.get(3).is_some());
    }

    #[test]
    fn the_number_of_producers_is_bounded() {
        let mut state = ProducerState::default();
        for id in 0..1000 {
            state.record(&ProducerBatch { producer_id: id, ..batch(0, 0, 1) }, id, id as u64);
            state.bound(100);
            assert!(state.len() <= 100);
        }
        assert!(state.get(999).is_some() && state.get(0).is_none());
    }

    #[test]
    fn a_transaction_is_open_until_its_marker() {
        let mut state = ProducerState::default();
        let within = ProducerBatch { is_transactional: true, ..batch(0, 0, 2) };
        state.record(&within, 11, 0);
        assert_eq!(state.get(7).unwrap().transaction_first_offset, Some(10));
        assert_eq!(state.check(&batch(0, 2, 1), true), Err(ProducerFault::InvalidTransactionState));
        let marker = ProducerBatch { is_control: true, is_transactional: true, ..batch(0, -1, 1) };
        state.record(&marker, 12, 0);
        assert_eq!(state.get(7).unwrap().transaction_first_offset, None);
        assert_eq!(state.check(&batch(0, 2, 1), true), Ok(Verdict::Append));
    }
}
