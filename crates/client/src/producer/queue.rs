//! The batches of one partition: their order, their sequence numbers, and the effect of a failure on later ones.
//!
//! Pure: the time is given, and batches to send are handed out.
//!
//! With idempotence a batch keeps its sequence numbers until its outcome is known, and is sent again before any later batch.
//! When numbers may be left out for good (their batch failed or ran out of time), nothing more is sent until all batches
//! under way have come back. Then the partition continues with the next epoch of the producer id, from zero, which the broker
//! takes for a new start (KIP-360). In a transaction, whose epochs the coordinator assigns, the failure is reported to it
//! instead.
//!
//! The first batch of a producer id is sent alone: a broker that does not know the id takes any number for the first. So a
//! second batch could be written before the first. A batch that the broker may have already is never renumbered. It is sent
//! again as it is, until the broker says that it has it, or that something before it is missing. Then neither it nor anything
//! after it was written.
//!
//! A broker recognises the last five batches of a producer, and none before those. No more than that are sent from the
//! oldest batch on whose outcome is not known, also if a new leader of the partition answers the younger ones at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mainstem_records::{BatchOptions, BuildError, ProducerEpoch, ProducerFields, ProducerId};
use mainstem_wire::ErrorCode;

use super::batch::{Batch, Unbuilt, record_bytes};
use super::delivery::{Delivery, Outcome, Promise};
use super::record::Record;
use super::transaction::{self, Name, name_of};
use crate::error::Error;
use crate::topic_partition::TopicPartition;

/// Settings that the queues of a producer share.
#[derive(Debug, Clone)]
pub(crate) struct QueueConfig {
    /// A batch takes records up to about this size.
    pub(crate) batch_bytes: usize,
    /// The time that a batch waits for more records.
    pub(crate) linger_ms: u64,
    /// The longest time until the outcome of a record is known.
    pub(crate) delivery_timeout_ms: u64,
    /// The wait before a batch is sent again; it doubles up to `retry_backoff_max_ms`.
    pub(crate) retry_backoff_ms: u64,
    pub(crate) retry_backoff_max_ms: u64,
    /// The most batches under way; with idempotence, counted from the oldest batch on whose outcome is not known.
    pub(crate) in_flight_max: usize,
    pub(crate) idempotent: bool,
    /// True with transactions: their coordinator assigns the epochs, not the queue.
    pub(crate) is_transactional: bool,
    /// Compression and the like.
    pub(crate) options: BatchOptions,
}

/// The bytes of a batch beside its records.
const BATCH_OVERHEAD: usize = 61;

/// The place at which a broker wrote a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) base_offset: Option<i64>,
    pub(crate) append_time_ms: Option<i64>,
}

/// A batch to send, once it is built.
#[derive(Debug)]
pub(crate) struct Unsent {
    pub(crate) id: u64,
    pub(crate) contents: Unbuilt,
}

/// A batch to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sendable {
    pub(crate) id: u64,
    pub(crate) bytes: Bytes,
}

/// Numbers batches of all queues of a producer.
#[derive(Debug, Default)]
pub(crate) struct BatchIds(u64);

impl BatchIds {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// The queue of a partition.
#[derive(Debug)]
pub(crate) struct PartitionQueue {
    topic: Arc<str>,
    partition: i32,
    /// Oldest first; those that have a sequence number come before those that have none.
    waiting: VecDeque<Batch>,
    /// Sent and not answered, in the order of sending.
    in_flight: Vec<Batch>,
    /// Batches that ever got a sequence number.
    numbered: u64,
    /// The producer's id and epoch here and the next number; none until the first batch is sent.
    sequence: Option<ProducerFields>,
    /// True if a number may be left out for good: the next epoch is needed.
    broken: bool,
    /// The error of a failed batch, for its transaction.
    failure: Option<Error>,
    /// True if a broker has written a batch under the producer id, and so knows the next number.
    is_known: bool,
    /// True if a record was appended since the last look.
    is_used: bool,
    /// Producer ids, with their newest epochs, under which numbers may have been used here before, in a queue that was forgotten.
    used_before: Vec<Name>,
}

impl PartitionQueue {
    pub(crate) fn new(topic: Arc<str>, partition: i32) -> PartitionQueue {
        PartitionQueue {
            topic,
            partition,
            waiting: VecDeque::new(),
            in_flight: Vec::new(),
            numbered: 0,
            sequence: None,
            broken: false,
            failure: None,
            is_known: false,
            is_used: false,
            used_before: Vec::new(),
        }
    }

    /// The queue of a partition that may have been forgotten before, with numbers up to these epochs of producer ids.
    pub(crate) fn reopened(topic: Arc<str>, partition: i32, used_before: Vec<Name>) -> PartitionQueue {
        PartitionQueue { used_before, ..PartitionQueue::new(topic, partition) }
    }

    /// Returns true if no record was appended since the last call, and nothing is lost with this queue. `current`: the producer id
    /// and epoch of transactions, whose numbers continue here.
    pub(crate) fn is_idle(&mut self, current: Option<Name>) -> bool {
        let is_used = std::mem::take(&mut self.is_used);
        let name = self.epoch();
        // The next queue needs an epoch that follows.
        let can_follow = name.is_none_or(|(_, epoch)| epoch.checked_next().is_some());
        !is_used && self.is_empty() && can_follow && (current.is_none() || name != current)
    }

    /// The producer id and epoch of the last number, if there is one.
    pub(crate) fn epoch(&self) -> Option<Name> {
        self.sequence.map(|place| name_of(place.producer_id, place.producer_epoch))
    }

    /// Name of the topic, and the partition.
    pub(crate) fn place(&self) -> (&Arc<str>, i32) {
        (&self.topic, self.partition)
    }

    /// The partition.
    pub(crate) fn key(&self) -> TopicPartition {
        TopicPartition { topic: self.topic.clone(), partition: self.partition }
    }

    /// Appends a record. Also returns true if a new batch was begun for it.
    pub(crate) fn append(
        &mut self,
        record: &Record,
        wall_ms: i64,
        now_ms: u64,
        config: &QueueConfig,
        ids: &mut BatchIds,
    ) -> Result<(Delivery, bool), BuildError> {
        let begins = self.begins_with(record, config);
        if begins {
            let promise = Promise::new(self.topic.clone(), self.partition);
            let deadline_ms = now_ms + config.delivery_timeout_ms;
            self.waiting.push_back(Batch::open(
                ids.next(),
                promise,
                now_ms,
                deadline_ms,
                config.options.clone(),
            ));
        }
        let batch = self.waiting.back_mut().expect("there is one now");
        self.is_used = true;
        match batch.append(record, record.timestamp_ms.unwrap_or(wall_ms)) {
            Ok(index) => Ok((Delivery::new(batch.promise.clone(), index), begins)),
            Err(error) => {
                if begins {
                    self.waiting.pop_back();
                }
                Err(error)
            }
        }
    }

    /// Returns true if a record would begin a new batch. Only then the present time is needed, unless it becomes the record's.
    pub(crate) fn begins_with(&self, record: &Record, config: &QueueConfig) -> bool {
        let bytes = record_bytes(record);
        !self.waiting.back().is_some_and(|last| last.fits(bytes, config.batch_bytes))
    }

    /// The number of batches that wait to be sent.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The time at which the first batch may be sent; none if no batch waits, or batches under way hold it back. With `flush` it
    /// need not wait for more records.
    pub(crate) fn ready_at(&self, flush: bool, config: &QueueConfig) -> Option<u64> {
        let first = self.waiting.front()?;
        if self.is_held(first, config) {
            return None;
        }
        let is_full = self.waiting.len() > 1 || !first.fits(1, config.batch_bytes);
        match first.attempts {
            0 if flush || is_full => Some(0),
            0 => Some(first.created_ms + config.linger_ms),
            _ => Some(first.retry_at_ms),
        }
    }

    fn is_held(&self, first: &Batch, config: &QueueConfig) -> bool {
        let is_again = first.sequence.is_some();
        let waits_for_first = config.idempotent && !self.is_known;
        self.undecided(config) >= if waits_for_first { 1 } else { config.in_flight_max }
            || (self.broken && !self.in_flight.is_empty())
            // Batches under way were sent before it: their outcome comes first, or the broker sees a gap.
            || (is_again && !self.in_flight.is_empty())
    }

    /// The number of batches under way. With idempotence it includes later batches that another broker has answered before the
    /// oldest of them.
    fn undecided(&self, config: &QueueConfig) -> usize {
        let oldest = self.in_flight.iter().map(|batch| batch.turn).min();
        match oldest {
            Some(oldest) if config.idempotent => (self.numbered - oldest) as usize,
            _ => self.in_flight.len(),
        }
    }

    /// The most bytes that the first batch can have, before compression.
    pub(crate) fn next_bytes(&self) -> usize {
        self.waiting.front().map_or(0, |first| BATCH_OVERHEAD + first.bytes)
    }

    /// Takes the first batch for sending; the caller has seen that it is ready. `producer`, an id with its first epoch, is needed
    /// with idempotence. The batch is under way from now on; [`PartitionQueue::built`] or [`PartitionQueue::unbuildable`] is due.
    pub(crate) fn take(&mut self, producer: Option<Name>, config: &QueueConfig) -> Unsent {
        self.begin_epoch(producer, config);
        let mut batch = self.waiting.pop_front().expect("the caller has seen that it is ready");
        if config.idempotent && batch.sequence.is_none() {
            batch.sequence = self.sequence;
            self.advance(&batch);
            batch.turn = self.numbered;
            self.numbered += 1;
        }
        let unsent = Unsent { id: batch.id, contents: batch.unbuilt() };
        self.in_flight.push(batch);
        unsent
    }

    /// Takes the bytes of a batch. Returns the batch to send, unless it has failed meanwhile.
    pub(crate) fn built(&mut self, id: u64, bytes: Bytes) -> Option<Sendable> {
        let batch = self.in_flight.iter_mut().find(|batch| batch.id == id)?;
        batch.set_built(bytes.clone());
        Some(Sendable { id, bytes })
    }

    /// Fails a batch that cannot be built. Returns the bytes of memory that are free now.
    pub(crate) fn unbuildable(&mut self, id: u64, error: &BuildError, config: &QueueConfig) -> usize {
        let Some(batch) = self.land(id) else { return 0 };
        self.give_up(&batch, Error::Invalid(error.to_string()), config)
    }

    /// Moves the next number behind a batch.
    fn advance(&mut self, batch: &Batch) {
        if let (Some(next), Some(place)) = (batch.next_sequence(), &mut self.sequence) {
            place.base_sequence = next;
        }
    }

    /// Begins the sequence, or after a break the next epoch.
    fn begin_epoch(&mut self, producer: Option<Name>, config: &QueueConfig) {
        let Some((id, first_epoch)) = producer else { return };
        let (producer_id, producer_epoch) = (id.get(), first_epoch.get());
        let first = ProducerFields { producer_id, producer_epoch, base_sequence: 0 };
        let may_renumber =
            self.in_flight.is_empty() && !self.waiting.front().is_some_and(|batch| batch.maybe_written);
        let mut next = match self.sequence {
            None => {
                // After forgotten numbers only another epoch begins from zero (KIP-360).
                let before =
                    self.used_before.iter().find(|(used, _)| *used == id && !config.is_transactional);
                let epoch = before.map_or(first_epoch, |(_, used)| first_epoch.max(used.saturating_next()));
                ProducerFields { producer_epoch: epoch.get(), ..first }
            }
            Some(place) if config.is_transactional => {
                // Between two transactions no batch waits or is under way.
                if self.epoch() == producer {
                    return;
                }
                self.is_known &= place.producer_id == producer_id;
                first
            }
            Some(place) if self.broken && may_renumber && place.producer_id == producer_id => {
                let Some(epoch) = ProducerEpoch::new(place.producer_epoch).checked_next() else { return };
                ProducerFields { producer_epoch: epoch.get(), ..first }
            }
            Some(place) if place.producer_id != producer_id && may_renumber => {
                self.is_known = false;
                first
            }
            Some(_) => return,
        };
        self.broken = false;
        for batch in self.waiting.iter_mut().take_while(|batch| batch.sequence.is_some()) {
            batch.sequence = Some(next);
            next.base_sequence = batch.next_sequence().expect("it has a place now");
        }
        self.sequence = Some(next);
    }

    /// Returns true if the epochs of a producer id are used up here: another id is needed before the next epoch can begin. The whole
    /// producer gets another id, as in Java's; batches that may be written already are still sent under the old one first.
    pub(crate) fn has_used_up(&self, producer_id: ProducerId) -> bool {
        let is_last = |(id, epoch): Name| id == producer_id && epoch.checked_next().is_none();
        self.broken && self.epoch().is_some_and(is_last)
    }

    /// Resolves a batch that a broker has written. Returns the bytes of memory that are free now.
    pub(crate) fn succeeded(&mut self, id: u64, written: Written) -> usize {
        let Some(batch) = self.land(id) else { return 0 };
        self.is_known = true;
        let Written { base_offset, append_time_ms } = written;
        batch.promise.resolve(Outcome::Done { base_offset, append_time_ms });
        batch.bytes
    }

    /// Handles a batch that was not written, or may not have been. Returns the bytes of memory that are free now.
    pub(crate) fn failed(
        &mut self,
        id: u64,
        error: Error,
        now_ms: u64,
        config: &QueueConfig,
        ids: &mut BatchIds,
    ) -> usize {
        let Some(mut batch) = self.land(id) else { return 0 };
        let is_sequenced_before = |other: &Batch| other.sequence.is_some() && other.rank < batch.rank;
        let is_first = !self.waiting.iter().chain(&self.in_flight).any(is_sequenced_before);
        batch.maybe_written = may_be_written(&error, batch.maybe_written);
        // The broker takes any number for the first again.
        self.is_known &= error.code() != Some(ErrorCode::UNKNOWN_PRODUCER_ID);
        match judge(&error, config, is_first) {
            Verdict::Written => {
                self.is_known = true;
                batch.promise.resolve(Outcome::Done { base_offset: None, append_time_ms: None });
                batch.bytes
            }
            Verdict::Again { breaks } if !batch.promise.is_resolved() => {
                self.broken |= breaks;
                batch.last_error = Some(error);
                self.again(batch, now_ms, config);
                0
            }
            // A batch that may be written already would be written again in halves: a broker recognises only the whole.
            Verdict::Split if config.idempotent && batch.maybe_written => self.give_up(&batch, error, config),
            Verdict::Split if !batch.promise.is_resolved() => self.split(batch, error, config, ids),
            _ => self.give_up(&batch, error, config),
        }
    }

    /// Takes a batch out of those under way.
    fn land(&mut self, id: u64) -> Option<Batch> {
        let at = self.in_flight.iter().position(|batch| batch.id == id)?;
        Some(self.in_flight.remove(at))
    }

    fn again(&mut self, mut batch: Batch, now_ms: u64, config: &QueueConfig) {
        let doubled = config.retry_backoff_ms.saturating_mul(1 << batch.attempts.min(16));
        batch.attempts += 1;
        batch.retry_at_ms = now_ms + doubled.min(config.retry_backoff_max_ms);
        self.put_back(batch);
    }

    /// Puts a batch back in its order: before those that were begun after it.
    fn put_back(&mut self, batch: Batch) {
        let at = self.waiting.partition_point(|other| other.rank < batch.rank);
        self.waiting.insert(at, batch);
    }

    fn split(&mut self, mut batch: Batch, error: Error, config: &QueueConfig, ids: &mut BatchIds) -> usize {
        match batch.split(&config.options, [ids.next(), ids.next()]) {
            Ok(Some(parts)) => {
                parts.into_iter().for_each(|part| self.put_back(part));
                0
            }
            _ => self.give_up(&batch, error, config),
        }
    }

    /// Fails a batch; later batches cannot keep their numbers.
    fn give_up(&mut self, batch: &Batch, error: Error, config: &QueueConfig) -> usize {
        self.broken |= batch.sequence.is_some();
        batch.fail(delivery_error(&error, config));
        self.failure.get_or_insert(error);
        batch.bytes
    }

    /// Fails batches whose time is over. `trouble` returns the reason why nothing can be sent here at present, which becomes the
    /// error of batches that were never sent. Batches under way are ignored when they come back. Returns the bytes of memory
    /// that are free now.
    pub(crate) fn expire(
        &mut self,
        now_ms: u64,
        config: &QueueConfig,
        trouble: impl Fn(&TopicPartition) -> Option<Error>,
    ) -> usize {
        let key = self.key();
        let late = |batch: &Batch| Error::TimedOut {
            what: format!("the delivery of a batch to {key}"),
            after: Duration::from_millis(config.delivery_timeout_ms),
            last: batch.last_error.clone().or_else(|| trouble(&key)).map(Box::new),
        };
        for batch in self.in_flight.iter().filter(|batch| batch.deadline_ms <= now_ms) {
            let late = late(batch);
            batch.fail(delivery_error(&late, config));
            self.failure.get_or_insert(late);
        }
        let mut freed = 0;
        while let Some(first) = self.waiting.front()
            && first.deadline_ms <= now_ms
        {
            let batch = self.waiting.pop_front().expect("there is a first");
            freed += self.give_up(&batch, late(&batch), config);
        }
        freed
    }

    /// The error of a batch that has failed since the last call.
    pub(crate) fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    /// Fails batches that wait; those under way come back. Returns the bytes of memory that are free now.
    pub(crate) fn discard(&mut self, error: &Error) -> usize {
        let mut freed = 0;
        while let Some(batch) = self.waiting.pop_front() {
            // A batch with a number leaves a gap.
            self.broken |= batch.sequence.is_some();
            if batch.sequence.is_some() {
                self.failure.get_or_insert_with(|| error.clone());
            }
            batch.fail(error.clone());
            freed += batch.bytes;
        }
        freed
    }

    /// Fails all batches for good.
    pub(crate) fn abandon(&mut self, error: &Error) {
        self.waiting.drain(..).chain(self.in_flight.drain(..)).for_each(|batch| batch.fail(error.clone()));
    }

    /// The time of the first deadline.
    pub(crate) fn next_deadline_ms(&self) -> Option<u64> {
        let unresolved = self.in_flight.iter().filter(|batch| !batch.promise.is_resolved());
        self.waiting.iter().chain(unresolved).map(|batch| batch.deadline_ms).min()
    }

    /// Returns true if no batch waits and none is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.in_flight.is_empty()
    }

    /// The promises of all batches without an outcome, for a flush that ends with them.
    pub(crate) fn promises(&self) -> impl Iterator<Item = Arc<Promise>> {
        self.waiting.iter().chain(&self.in_flight).map(|batch| batch.promise.clone())
    }
}

/// The reaction to a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The broker has the batch already.
    Written,
    /// It is sent again; with `breaks`, under the next epoch.
    Again { breaks: bool },
    /// It is sent again in smaller pieces.
    Split,
    /// It has failed for good.
    Failed,
}

/// The error that the delivery of a record returns.
fn delivery_error(error: &Error, config: &QueueConfig) -> Error {
    if config.is_transactional { transaction::of_record(error) } else { error.clone() }
}

/// Returns true if a broker may have written a batch, after this error. `before`: it may have been written before that.
fn may_be_written(error: &Error, before: bool) -> bool {
    match error {
        // The broker looked the sequence number up, and does not have it.
        Error::Broker { code, .. } if is_of_sequence(*code) => false,
        Error::Broker { code, .. } => before || may_follow_an_append(*code),
        Error::Connect { .. } => before,
        _ => true,
    }
}

/// Codes of batches that may have been appended and then not replicated in time. A leader that steps down while it waits for
/// its followers answers that it is not the leader.
fn may_follow_an_append(code: ErrorCode) -> bool {
    [
        ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode::REQUEST_TIMED_OUT,
        ErrorCode::KAFKA_STORAGE_ERROR,
        ErrorCode::NOT_LEADER_OR_FOLLOWER,
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
    ]
    .contains(&code)
}

fn is_of_sequence(code: ErrorCode) -> bool {
    [
        ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode::UNKNOWN_PRODUCER_ID,
        ErrorCode::INVALID_PRODUCER_EPOCH,
    ]
    .contains(&code)
}

fn judge(error: &Error, config: &QueueConfig, is_first: bool) -> Verdict {
    let (idempotent, is_transactional) = (config.idempotent, config.is_transactional);
    match error.code() {
        Some(ErrorCode::DUPLICATE_SEQUENCE_NUMBER) => Verdict::Written,
        Some(ErrorCode::MESSAGE_TOO_LARGE) => Verdict::Split,
        // The next epoch begins with the next transaction.
        Some(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER) if is_transactional && is_first => Verdict::Failed,
        Some(ErrorCode::UNKNOWN_PRODUCER_ID | ErrorCode::INVALID_PRODUCER_EPOCH) if is_transactional => {
            Verdict::Failed
        }
        // An earlier batch failed, and will be sent again before it; if none did, the broker has lost its state of the producer.
        Some(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER) if idempotent => Verdict::Again { breaks: is_first },
        Some(code) if idempotent && is_of_sequence(code) => Verdict::Again { breaks: true },
        _ if error.is_retriable() => Verdict::Again { breaks: false },
        _ => Verdict::Failed,
    }
}

#[cfg(test)]
#[path = "queue/tests.rs"]
mod tests;
