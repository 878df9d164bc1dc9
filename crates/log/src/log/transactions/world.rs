//! Producers with transactions, a coordinator, and a consumer that leaves out what was aborted, around one log.

use crate::log::testing::{Bench, WALL_MS, resolve};
use crate::{
    AbortedTransaction, AppendError, Appended, FileRange, Log, Origin, ReadBound, TransactionMarker,
    VerificationRequest, prepare,
};
use mainstem_records::{
    Batch, BatchBuilder, BatchOptions, CoordinatorEpoch, EndTransactionMarker, LeaderEpoch, NO_PRODUCER_ID,
    ProducerEpoch, ProducerFields, ProducerId, Scratch,
};
use std::collections::HashSet;

/// The records of one batch, and its producer.
#[derive(Debug, Clone, Default)]
pub(super) struct Sending {
    /// Id and epoch; the sequence number is the next one.
    pub(super) producer: Option<(i64, i16)>,
    pub(super) transactional: bool,
    /// Keys and values.
    pub(super) records: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Sending {
    pub(super) fn bytes(&self, log: &Log) -> Vec<u8> {
        let mut options = BatchOptions { is_transactional: self.transactional, ..BatchOptions::default() };
        if let Some((producer_id, producer_epoch)) = self.producer {
            options.producer = ProducerFields {
                producer_id,
                producer_epoch,
                base_sequence: next_sequence(log, producer_id, producer_epoch),
            };
        }
        let mut builder = BatchBuilder::new(options);
        for (key, value) in &self.records {
            builder.append(WALL_MS, Some(key), Some(value), &[]).expect("a small record");
        }
        builder.build().expect("a small batch")
    }
}

/// The sequence number with which a producer continues.
fn next_sequence(log: &Log, producer_id: i64, producer_epoch: i16) -> i32 {
    let known = log.producer_state().get(ProducerId::new(producer_id));
    let known = known.filter(|known| known.epoch.get() == producer_epoch);
    known.map_or(0, |known| known.last_sequence() + 1)
}

/// Appends; the transaction of a producer is confirmed where it has to be.
pub(super) fn send(bench: &Bench, log: &mut Log, sending: &Sending) -> Result<Appended, AppendError> {
    let (bytes, mut out) = (sending.bytes(log), Vec::new());
    let config = log.config().clone();
    let prepared = prepare(&bytes, &config, WALL_MS, Origin::Client, &mut Scratch::new(), &mut out)?;
    let guard = match sending.producer.filter(|_| sending.transactional) {
        Some((producer_id, producer_epoch)) => log.begin_verification(
            &VerificationRequest {
                producer_id: ProducerId::new(producer_id),
                producer_epoch: ProducerEpoch::new(producer_epoch),
                base_sequence: next_sequence(log, producer_id, producer_epoch),
                supports_epoch_bump: true,
            },
            bench.mono_ms,
        )?,
        None => None,
    };
    let prepared = match guard {
        Some(guard) => prepared.verified_by(guard),
        None => prepared,
    };
    log.append(&prepared, LeaderEpoch::ZERO, bench.mono_ms)
}

/// Ends the transaction of a producer.
pub(super) fn end(
    bench: &Bench,
    log: &mut Log,
    (producer_id, producer_epoch): (i64, i16),
    committed: bool,
    transaction_version: i16,
) -> Result<Appended, AppendError> {
    let marker = TransactionMarker {
        producer_id: ProducerId::new(producer_id),
        producer_epoch: ProducerEpoch::new(producer_epoch),
        coordinator_epoch: CoordinatorEpoch::new(3),
        committed,
        transaction_version,
    };
    log.append_marker(&marker, LeaderEpoch::ZERO, WALL_MS, bench.mono_ms)
}

/// Reads as a consumer with `read_committed` does, from an offset on, in pieces. Each piece is filtered by the aborted
/// transactions of its own answer alone, as Kafka's consumers do.
pub(super) fn read_committed(log: &Log, from: i64) -> Vec<(i64, Vec<u8>)> {
    let (mut next, mut seen) = (from, Vec::new());
    while next < log.ends().last_stable {
        let plan = log.read(next, ReadBound::LastStable, 400, true).expect("a readable offset");
        let Some(range) = resolve(plan) else { break };
        let before = next;
        next = take_committed(&range, next, &mut seen);
        assert!(next > before, "no whole batch at {before}");
    }
    seen
}

fn take_committed(range: &FileRange, mut next: i64, seen: &mut Vec<(i64, Vec<u8>)>) -> i64 {
    let bytes = range.to_vec().expect("a read");
    let mut ahead = range.aborted.clone();
    ahead.sort_by_key(|aborted| std::cmp::Reverse(aborted.first_offset));
    let mut aborted = HashSet::new();
    let mut rest = &bytes[..];
    while let Ok((batch, behind)) = Batch::split_first(rest) {
        rest = behind;
        let producer_id = batch.producer_id();
        while let Some(begun) = ahead.pop_if(|next| next.first_offset <= batch.last_offset()) {
            aborted.insert(begun.producer_id.get());
        }
        let attributes = batch.attributes();
        if attributes.is_control() {
            if EndTransactionMarker::of_batch(&batch).is_some_and(|marker| !marker.committed) {
                aborted.remove(&producer_id);
            }
        } else if !(attributes.is_transactional() && aborted.contains(&producer_id)) {
            take_records(&batch, next, seen);
        }
        next = batch.next_offset();
    }
    next
}

fn take_records(batch: &Batch<'_>, from: i64, seen: &mut Vec<(i64, Vec<u8>)>) {
    let mut buffer = Vec::new();
    for record in batch.records(&mut buffer, 1 << 20, &mut Scratch::new()).expect("records") {
        let record = record.expect("a record");
        if record.offset >= from {
            seen.push((record.offset, record.value.unwrap_or_default().to_vec()));
        }
    }
}

/// A batch as a naive look at the whole log knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ModelBatch {
    pub(super) base_offset: i64,
    pub(super) last_offset: i64,
    /// The producer's id, if it has one.
    pub(super) producer_id: Option<i64>,
    pub(super) transactional: bool,
    /// For a marker: true if it commits.
    pub(super) marker: Option<bool>,
    /// Keys and values.
    pub(super) records: Vec<(Vec<u8>, Vec<u8>)>,
}

impl ModelBatch {
    pub(super) fn sent(appended: &Appended, sending: &Sending) -> ModelBatch {
        ModelBatch {
            base_offset: appended.base_offset,
            last_offset: appended.last_offset,
            producer_id: sending.producer.map(|(id, _)| id),
            transactional: sending.transactional,
            marker: None,
            records: sending.records.clone(),
        }
    }

    pub(super) fn marker(offset: i64, producer_id: i64, committed: bool) -> ModelBatch {
        ModelBatch {
            base_offset: offset,
            last_offset: offset,
            producer_id: Some(producer_id),
            transactional: true,
            marker: Some(committed),
            records: Vec::new(),
        }
    }

    /// The offsets and values of its records.
    pub(super) fn values(&self) -> impl Iterator<Item = (i64, &Vec<u8>)> {
        (self.base_offset..).zip(self.records.iter().map(|(_, value)| value))
    }
}

/// Everything that is in a log, from its first segment on.
pub(super) fn everything(log: &Log) -> Vec<ModelBatch> {
    let (mut next, mut all) = (log.ends().log_start, Vec::new());
    while next < log.ends().log_end {
        let plan = log.read(next, ReadBound::LogEnd, 1000, true).expect("a readable offset");
        let Some(range) = resolve(plan) else { break };
        assert!(range.aborted.is_empty(), "a reader of everything gets no list");
        let bytes = range.to_vec().expect("a read");
        let mut rest = &bytes[..];
        while let Ok((batch, behind)) = Batch::split_first(rest) {
            rest = behind;
            next = batch.next_offset();
            all.push(kept(&batch));
        }
    }
    all
}

fn kept(batch: &Batch<'_>) -> ModelBatch {
    let mut buffer = Vec::new();
    let records = batch.records(&mut buffer, 1 << 20, &mut Scratch::new()).expect("records");
    let records = records.map(|record| {
        let record = record.expect("a record");
        (record.key.unwrap_or_default().to_vec(), record.value.unwrap_or_default().to_vec())
    });
    let marker = EndTransactionMarker::of_batch(batch).map(|marker| marker.committed);
    ModelBatch {
        base_offset: batch.base_offset(),
        last_offset: batch.last_offset(),
        producer_id: Some(batch.producer_id()).filter(|id| *id != NO_PRODUCER_ID),
        transactional: batch.attributes().is_transactional(),
        records: if marker.is_some() { Vec::new() } else { records.collect() },
        marker,
    }
}

/// A transaction that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) producer_id: i64,
    pub(super) first_offset: i64,
    pub(super) marker_offset: i64,
    pub(super) committed: bool,
}

/// The transactions in a log, found by going through all of it.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) ended: Vec<Ended>,
    /// First offset and producer, in the order of the offsets.
    pub(super) open: Vec<(i64, i64)>,
}

impl Outcome {
    pub(super) fn of(all: &[ModelBatch]) -> Outcome {
        let mut outcome = Outcome::default();
        for batch in all.iter().filter(|batch| batch.transactional) {
            let producer_id = batch.producer_id.expect("who has transactions has an id");
            let open = outcome.open.iter().position(|(_, id)| *id == producer_id);
            match (batch.marker, open) {
                (None, None) => outcome.open.push((batch.base_offset, producer_id)),
                (Some(committed), Some(at)) => {
                    let (first_offset, _) = outcome.open.remove(at);
                    let marker_offset = batch.base_offset;
                    outcome.ended.push(Ended { producer_id, first_offset, marker_offset, committed });
                }
                _ => {}
            }
        }
        outcome
    }

    /// The last stable offset that follows from all of this.
    pub(super) fn last_stable(&self, log_start: i64, high_watermark: i64) -> i64 {
        let unseen = self.ended.iter().filter(|ended| ended.marker_offset >= high_watermark);
        let firsts = self.open.iter().map(|(first, _)| *first).chain(unseen.map(|ended| ended.first_offset));
        firsts.min().unwrap_or(i64::MAX).max(log_start).min(high_watermark)
    }

    /// Returns true if the batch belongs to a committed transaction, or to none.
    pub(super) fn is_committed(&self, batch: &ModelBatch) -> bool {
        let within = |ended: &&Ended| {
            Some(ended.producer_id) == batch.producer_id
                && (ended.first_offset..ended.marker_offset).contains(&batch.base_offset)
        };
        !batch.transactional || self.ended.iter().find(within).is_some_and(|ended| ended.committed)
    }

    /// The aborted transactions that an answer for a range of offsets must name, in the order of the markers.
    pub(super) fn aborted(&self, from: i64, upper: i64) -> Vec<(i64, i64, i64)> {
        let aborted = self
            .ended
            .iter()
            .filter(|ended| !ended.committed && ended.marker_offset >= from && ended.first_offset < upper);
        aborted.map(|ended| (ended.producer_id, ended.first_offset, ended.marker_offset)).collect()
    }
}

pub(super) fn fields(aborted: &[AbortedTransaction]) -> Vec<(i64, i64, i64)> {
    aborted.iter().map(|entry| (entry.producer_id.get(), entry.first_offset, entry.last_offset)).collect()
}
