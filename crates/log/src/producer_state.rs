//! The state of a partition's producers. With it a batch that is sent twice, with the same sequence numbers, is stored
//! once (KIP-98). It also knows the open transactions.
//!
//! Pure: batches and the monotonic time go in, verdicts come out. Sequence numbers run to `i32::MAX` and wrap to 0.
//! An unknown producer may begin with any sequence number, as in Kafka: its state may have expired.

use crate::scan::ScannedBatch;
use crate::transaction_index::AbortedTransaction;
use crate::unstable::Unstable;
use crate::verification::Verification;
use mainstem_records::{
    CoordinatorEpoch, EndTransactionMarker, NO_SEQUENCE, ProducerEpoch, ProducerId, increment_sequence,
};
use std::collections::HashMap;
use thiserror::Error;

/// Batches remembered per producer: as many as a Java producer has in flight at most.
pub(crate) const BATCHES_PER_PRODUCER: usize = 5;

/// Transactions that may be open in one partition: consumers of committed records wait for the oldest of them.
pub(crate) const OPEN_TRANSACTIONS_MAX: usize = 10_000;

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
    pub(crate) fn first_sequence(&self) -> i32 {
        // Counted backwards over the wrap from i32::MAX to 0.
        self.last_sequence.wrapping_sub(self.offset_delta) & i32::MAX
    }

    /// Offset of its first record.
    pub fn first_offset(&self) -> i64 {
        self.last_offset - i64::from(self.offset_delta)
    }
}

/// The state of one producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerEntry {
    /// Its newest epoch.
    pub epoch: ProducerEpoch,
    /// Epoch of the transaction coordinator that wrote the last marker, or [`CoordinatorEpoch::NONE`].
    pub coordinator_epoch: CoordinatorEpoch,
    /// First offset of its open transaction.
    pub transaction_first_offset: Option<i64>,
    /// Largest timestamp of its last batch, in ms.
    pub last_timestamp: i64,
    /// Monotonic time of its last batch, in ms; `None`: that was before the log was opened.
    last_seen_ms: Option<u64>,
    count: u8,
    batches: [BatchMetadata; BATCHES_PER_PRODUCER],
}

impl ProducerEntry {
    pub(crate) fn new(epoch: ProducerEpoch) -> ProducerEntry {
        ProducerEntry {
            epoch,
            coordinator_epoch: CoordinatorEpoch::NONE,
            transaction_first_offset: None,
            last_timestamp: -1,
            last_seen_ms: None,
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

    fn set_epoch(&mut self, epoch: ProducerEpoch) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.count = 0;
        }
    }

    /// Returns true if its transaction is open in this epoch. In a later epoch it has ended, or will without this batch.
    pub(crate) fn is_open_in(&self, epoch: ProducerEpoch) -> bool {
        self.transaction_first_offset.is_some() && self.epoch == epoch
    }

    fn idle_ms(&self, mono_ms: u64, wall_ms: i64) -> u64 {
        match self.last_seen_ms {
            Some(last_seen_ms) => mono_ms.saturating_sub(last_seen_ms),
            None => u64::try_from(wall_ms.saturating_sub(self.last_timestamp)).unwrap_or(0),
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
    pub(crate) producer_id: ProducerId,
    pub(crate) producer_epoch: ProducerEpoch,
    pub(crate) base_sequence: i32,
    pub(crate) last_offset_delta: i32,
    pub(crate) max_timestamp: i64,
    pub(crate) is_transactional: bool,
    pub(crate) is_control: bool,
    /// The marker in a control batch; `None`: its record is gone, with the whole transaction, or is of another kind.
    pub(crate) marker: Option<EndTransactionMarker>,
}

impl ProducerBatch {
    fn last_sequence(&self) -> i32 {
        match self.base_sequence {
            NO_SEQUENCE => NO_SEQUENCE,
            first => increment_sequence(first, self.last_offset_delta),
        }
    }

    /// A batch of a segment, with the marker in it.
    pub(crate) fn stored(batch: &ScannedBatch, marker: Option<EndTransactionMarker>) -> ProducerBatch {
        ProducerBatch {
            producer_id: batch.producer_id,
            producer_epoch: batch.producer_epoch,
            base_sequence: batch.base_sequence,
            last_offset_delta: (batch.last_offset - batch.base_offset) as i32,
            max_timestamp: batch.max_timestamp,
            is_transactional: batch.attributes.is_transactional(),
            is_control: batch.attributes.is_control(),
            marker,
        }
    }
}

/// The conditions under which a producer's batch is appended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms<'a> {
    /// A client's batch: it has sequence numbers. Those of coordinators have none, so only their epoch counts.
    pub(crate) check_sequence: bool,
    /// Its producer may begin a transaction with it.
    pub(crate) may_begin: bool,
    /// The verification of its producer, if one has begun.
    pub(crate) verification: Option<&'a Verification>,
    /// One more producer may be remembered.
    pub(crate) has_capacity: bool,
    /// For a marker: the `transaction.version` of the transaction that it ends.
    pub(crate) transaction_version: i16,
}

/// The decision about a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The batch is new.
    Append,
    /// The batch is in the log already, here.
    Duplicate(BatchMetadata),
}

/// The reason for which a batch is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum ProducerFault {
    #[error("out of order sequence number, the last one is {last_sequence}")]
    OutOfOrderSequence { last_sequence: i32 },
    #[error("epoch older than {current}")]
    InvalidEpoch { current: ProducerEpoch },
    #[error("a plain batch within a transaction")]
    InvalidTransactionState,
    #[error("a transaction that the coordinator has not confirmed")]
    NotVerified,
    #[error("there is no room for one more producer")]
    TooManyProducers,
    #[error("there is no room for one more open transaction")]
    TooManyTransactions,
    #[error("coordinator epoch older than {current}")]
    CoordinatorFenced { current: CoordinatorEpoch },
}

/// The producers of one partition.
#[derive(Debug, Default, Clone)]
pub struct ProducerState {
    producers: HashMap<ProducerId, ProducerEntry>,
    unstable: Unstable,
}

impl ProducerState {
    /// The number of producers that are remembered.
    pub fn len(&self) -> usize {
        self.producers.len()
    }

    /// Returns true if none is remembered.
    pub fn is_empty(&self) -> bool {
        self.producers.is_empty()
    }

    /// The state of a producer.
    pub fn get(&self, producer_id: ProducerId) -> Option<&ProducerEntry> {
        self.producers.get(&producer_id)
    }

    /// All producers, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (ProducerId, &ProducerEntry)> {
        self.producers.iter().map(|(id, entry)| (*id, entry))
    }

    /// First offset and producer id of each open transaction, in the order of the offsets.
    pub fn open_transactions(&self) -> impl Iterator<Item = (i64, ProducerId)> + '_ {
        self.unstable.ongoing()
    }

    /// The first offset that belongs to an open transaction, or to one whose marker is behind the high watermark;
    /// [`ALL_STABLE`](crate::unstable::ALL_STABLE) when there is none.
    pub(crate) fn first_unstable(&self) -> i64 {
        self.unstable.first()
    }

    /// Markers before an offset, the high watermark or the log start, need not be waited for any more.
    pub(crate) fn settle_before(&mut self, offset: i64) {
        self.unstable.settle_before(offset);
    }

    /// Takes over which transactions ended behind the high watermark from a state that began further back.
    pub(crate) fn set_unreplicated(&mut self, other: ProducerState) {
        self.unstable.set_unreplicated(other.unstable);
    }

    /// Judges the batch of a client or a coordinator; the batch has a producer id.
    pub(crate) fn check(&self, batch: &ProducerBatch, terms: Terms<'_>) -> Result<Verdict, ProducerFault> {
        let Some(entry) = self.producers.get(&batch.producer_id) else {
            check_unknown(batch, terms)?;
            return self.check_open_transactions(batch);
        };
        if terms.check_sequence
            && batch.producer_epoch == entry.epoch
            && let Some(known) = entry.find(batch)
        {
            return Ok(Verdict::Duplicate(known));
        }
        if batch.producer_epoch < entry.epoch {
            return Err(ProducerFault::InvalidEpoch { current: entry.epoch });
        }
        if batch.is_control {
            return check_marker(entry, batch, terms.transaction_version);
        }
        if batch.is_transactional && !terms.may_begin && !entry.is_open_in(batch.producer_epoch) {
            return Err(ProducerFault::NotVerified);
        }
        if terms.check_sequence {
            check_verified_sequence(entry.batches().is_empty(), batch, terms.verification)?;
            check_sequence_follows(entry, batch)?;
        }
        if entry.transaction_first_offset.is_some() && !batch.is_transactional {
            return Err(ProducerFault::InvalidTransactionState);
        }
        match entry.transaction_first_offset {
            Some(_) => Ok(Verdict::Append),
            None => self.check_open_transactions(batch),
        }
    }

    /// Judges a batch of a producer without an open transaction: it may begin one.
    fn check_open_transactions(&self, batch: &ProducerBatch) -> Result<Verdict, ProducerFault> {
        let begins = batch.is_transactional && !batch.is_control;
        match begins && self.unstable.ongoing_count() >= OPEN_TRANSACTIONS_MAX {
            true => Err(ProducerFault::TooManyTransactions),
            false => Ok(Verdict::Append),
        }
    }

    /// The transaction that a batch at an offset aborts; `None`: it is no marker, commits, or ends nothing. To be asked
    /// before the batch is noted.
    pub(crate) fn aborted_by(&self, batch: &ProducerBatch, offset: i64) -> Option<AbortedTransaction> {
        let marker = batch.marker.filter(|marker| !marker.committed);
        let first_offset = self.producers.get(&batch.producer_id).and_then(|p| p.transaction_first_offset);
        let (Some(_), Some(first_offset)) = (marker, first_offset) else { return None };
        let producer_id = batch.producer_id;
        let next = self.unstable.ongoing().find(|(_, other)| *other != producer_id);
        let last_stable_offset = next.map_or(offset.saturating_add(1), |(first, _)| first);
        Some(AbortedTransaction { producer_id, first_offset, last_offset: offset, last_stable_offset })
    }

    /// Notes an appended batch; one without a producer id changes nothing.
    pub(crate) fn record(&mut self, batch: &ProducerBatch, last_offset: i64, mono_ms: u64) {
        if batch.producer_id == ProducerId::NONE {
            return;
        }
        if batch.is_control {
            return self.record_marker(batch, last_offset, mono_ms);
        }
        let entry = seen(&mut self.producers, batch, mono_ms);
        entry.push(BatchMetadata {
            last_sequence: batch.last_sequence(),
            last_offset,
            offset_delta: batch.last_offset_delta,
            timestamp: batch.max_timestamp,
        });
        if batch.is_transactional && entry.transaction_first_offset.is_none() {
            let first_offset = last_offset - i64::from(batch.last_offset_delta);
            entry.transaction_first_offset = Some(first_offset);
            self.unstable.begin(first_offset, batch.producer_id);
        }
    }

    /// A marker has no sequence number. Without its record it says nothing: all of its transaction has gone.
    fn record_marker(&mut self, batch: &ProducerBatch, last_offset: i64, mono_ms: u64) {
        let Some(marker) = batch.marker else { return };
        let entry = seen(&mut self.producers, batch, mono_ms);
        entry.coordinator_epoch = marker.coordinator_epoch;
        entry.last_timestamp = batch.max_timestamp;
        if let Some(first_offset) = entry.transaction_first_offset.take() {
            let offset = last_offset - i64::from(batch.last_offset_delta);
            self.unstable.end(first_offset, batch.producer_id, offset);
        }
    }

    /// Takes an entry from a snapshot.
    pub(crate) fn insert(&mut self, producer_id: ProducerId, entry: ProducerEntry) {
        let begun = entry.transaction_first_offset;
        let before = self.producers.insert(producer_id, entry);
        if let Some(first_offset) = before.and_then(|before| before.transaction_first_offset) {
            self.unstable.forget(first_offset, producer_id);
        }
        if let Some(first_offset) = begun {
            self.unstable.begin(first_offset, producer_id);
        }
    }

    /// Forgets producers that were idle for `expiration_ms`, except those with an open transaction. The time is
    /// monotonic: a jump of the wall clock must not make a producer's retries unknown. Of those that have not written
    /// since the log was opened it is known by the timestamp of their last batch, as Kafka does of all.
    pub(crate) fn expire(&mut self, mono_ms: u64, wall_ms: i64, expiration_ms: u64) -> usize {
        let before = self.producers.len();
        self.producers.retain(|_, entry| {
            entry.transaction_first_offset.is_some() || entry.idle_ms(mono_ms, wall_ms) < expiration_ms
        });
        if self.producers.len() * 4 < self.producers.capacity() {
            self.producers.shrink_to_fit();
        }
        before - self.producers.len()
    }
}

/// The producer of a batch that was appended, in the batch's epoch.
fn seen<'p>(
    producers: &'p mut HashMap<ProducerId, ProducerEntry>,
    batch: &ProducerBatch,
    mono_ms: u64,
) -> &'p mut ProducerEntry {
    let new = || ProducerEntry::new(batch.producer_epoch);
    let entry = producers.entry(batch.producer_id).or_insert_with(new);
    entry.set_epoch(batch.producer_epoch);
    entry.last_seen_ms = Some(mono_ms);
    entry
}

/// Checks a batch of an unknown producer. Its state may have expired, so it may begin with any sequence number. A producer
/// whose epoch grows with every transaction has to begin with 0. A marker is accepted even if no further producer may be
/// remembered: otherwise its transaction would stay open in other partitions.
fn check_unknown(batch: &ProducerBatch, terms: Terms<'_>) -> Result<(), ProducerFault> {
    if !terms.has_capacity && !batch.is_control {
        return Err(ProducerFault::TooManyProducers);
    }
    if batch.is_transactional && !batch.is_control && !terms.may_begin {
        return Err(ProducerFault::NotVerified);
    }
    if terms.check_sequence {
        check_verified_sequence(true, batch, terms.verification)?;
    }
    Ok(())
}

/// Checks a marker. In a transaction of version 2 it has an epoch that no batch of the transaction has had. A marker with an
/// equal epoch is late or a duplicate, which does no harm once the transaction has ended (KIP-890).
fn check_marker(
    entry: &ProducerEntry,
    batch: &ProducerBatch,
    transaction_version: i16,
) -> Result<Verdict, ProducerFault> {
    let is_open = entry.transaction_first_offset.is_some();
    if transaction_version >= 2 && batch.producer_epoch == entry.epoch && is_open {
        return Err(ProducerFault::InvalidEpoch { current: entry.epoch });
    }
    match batch.marker {
        Some(marker) if marker.coordinator_epoch < entry.coordinator_epoch => {
            Err(ProducerFault::CoordinatorFenced { current: entry.coordinator_epoch })
        }
        _ => Ok(Verdict::Append),
    }
}

/// While the coordinator is asked, a batch must not overtake one with a lower sequence number.
fn check_verified_sequence(
    is_new: bool,
    batch: &ProducerBatch,
    verification: Option<&Verification>,
) -> Result<(), ProducerFault> {
    let Some(verification) = verification else { return Ok(()) };
    let skips_the_first = is_new && verification.supports_epoch_bump && batch.base_sequence != 0;
    if skips_the_first || batch.base_sequence > verification.lowest_sequence {
        return Err(ProducerFault::OutOfOrderSequence { last_sequence: NO_SEQUENCE });
    }
    Ok(())
}

fn check_sequence_follows(entry: &ProducerEntry, batch: &ProducerBatch) -> Result<(), ProducerFault> {
    let fault = ProducerFault::OutOfOrderSequence { last_sequence: entry.last_sequence() };
    if batch.producer_epoch != entry.epoch {
        // KIP-360: a bumped epoch restarts the sequence at 0.
        let fits = batch.base_sequence == 0 || entry.epoch == ProducerEpoch::NONE;
        return if fits { Ok(()) } else { Err(fault) };
    }
    let last = entry.last_sequence();
    let follows = match last {
        NO_SEQUENCE => batch.base_sequence == 0,
        last => batch.base_sequence == increment_sequence(last, 1),
    };
    if follows || entry.epoch == ProducerEpoch::NONE { Ok(()) } else { Err(fault) }
}

#[cfg(test)]
mod tests;
