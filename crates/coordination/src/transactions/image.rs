//! The state of a transactional id, as a record of `__transaction_state` has it, and the changes from one record to the next.
//!
//! Changes are plain functions: they return the next image and leave the old one as it is, since the old one is valid until the next one's
//! record is durable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainstem_records::{ProducerEpoch, ProducerId};

use super::state::State;

/// "No time" in records.
const NO_TIMESTAMP: i64 = -1;
/// From this version of transactions on each of them ends with a risen epoch (KIP-890).
pub(crate) const EPOCH_BUMP_VERSION: i16 = 2;
/// A producer whose time-out is this one takes part in a two phase commit of its own (KIP-939) and never times out.
const NO_TIMEOUT_MS: i32 = i32::MAX;

/// Partitions of user topics and of `__consumer_offsets`, by topic.
pub(crate) type Partitions = BTreeMap<Arc<str>, BTreeSet<i32>>;

/// A transactional id as in its last durable record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Image {
    /// The id of the producer.
    pub(crate) producer_id: ProducerId,
    /// The producer id before the last change, most often the same; for retries across a change of the id.
    pub(crate) previous_producer_id: ProducerId,
    /// While a transaction ends: the next id of the producer, if its epochs are used up.
    pub(crate) next_producer_id: ProducerId,
    /// The producer's epoch.
    pub(crate) producer_epoch: ProducerEpoch,
    /// The epoch before, if its producer may try again with it (KIP-360). No record of Kafka 4.3 has it.
    pub(crate) last_producer_epoch: ProducerEpoch,
    /// The time-out of a transaction in milliseconds.
    pub(crate) timeout_ms: i32,
    pub(crate) state: State,
    /// The partitions of the transaction. While it ends, those that have no marker yet.
    pub(crate) partitions: Partitions,
    /// The time at which the transaction began, wall clock milliseconds.
    pub(crate) started_ms: i64,
    /// The time of the last change's decision, wall clock milliseconds.
    pub(crate) updated_ms: i64,
    /// The version of transactions that the client of the last transaction spoke.
    pub(crate) client_version: i16,
}

impl Image {
    /// The state of a transactional id before its first record.
    pub(crate) fn unwritten() -> Self {
        Self {
            producer_id: ProducerId::NONE,
            previous_producer_id: ProducerId::NONE,
            next_producer_id: ProducerId::NONE,
            producer_epoch: ProducerEpoch::NONE,
            last_producer_epoch: ProducerEpoch::NONE,
            timeout_ms: 0,
            state: State::Empty,
            partitions: Partitions::new(),
            started_ms: NO_TIMESTAMP,
            updated_ms: NO_TIMESTAMP,
            client_version: 0,
        }
    }

    /// The same in another state. Every change keeps the present producer id as the previous one.
    fn to(&self, state: State) -> Self {
        assert!(self.state.may_become(state), "{:?} does not become {state:?}", self.state);
        Self { previous_producer_id: self.producer_id, state, ..self.clone() }
    }

    /// A producer with this epoch, without a transaction.
    pub(crate) fn initialised(
        &self,
        epoch: ProducerEpoch,
        last_epoch: ProducerEpoch,
        timeout_ms: i32,
        wall_ms: i64,
    ) -> Self {
        Self {
            producer_epoch: epoch,
            last_producer_epoch: last_epoch,
            timeout_ms,
            partitions: Partitions::new(),
            started_ms: NO_TIMESTAMP,
            updated_ms: wall_ms,
            ..self.to(State::Empty)
        }
    }

    /// The first producer of a transactional id.
    pub(crate) fn created(&self, producer_id: ProducerId, timeout_ms: i32, wall_ms: i64) -> Self {
        Self {
            producer_id,
            previous_producer_id: producer_id,
            ..self.initialised(ProducerEpoch::ZERO, ProducerEpoch::NONE, timeout_ms, wall_ms)
        }
    }

    /// Gives the producer another id. `keeps_epoch`: the producer has named its epoch and may ask again (KIP-360).
    pub(crate) fn rotated(
        &self,
        producer_id: ProducerId,
        keeps_epoch: bool,
        timeout_ms: i32,
        wall_ms: i64,
    ) -> Self {
        let last_epoch = if keeps_epoch { self.producer_epoch } else { ProducerEpoch::NONE };
        Self { producer_id, ..self.initialised(ProducerEpoch::ZERO, last_epoch, timeout_ms, wall_ms) }
    }

    /// Adds partitions to the transaction; the first ones begin it.
    pub(crate) fn added(&self, added: &Partitions, client_version: i16, wall_ms: i64) -> Self {
        let started_ms = if self.state.is_idle() { wall_ms } else { self.started_ms };
        let mut next = Self { started_ms, updated_ms: wall_ms, client_version, ..self.to(State::Ongoing) };
        for (topic, indexes) in added {
            next.partitions.entry(topic.clone()).or_default().extend(indexes);
        }
        next
    }

    /// Returns true if all of these partitions are in the transaction already.
    pub(crate) fn has(&self, partitions: &Partitions) -> bool {
        let has = |(topic, indexes): (&Arc<str>, &BTreeSet<i32>)| {
            self.partitions.get(topic).is_some_and(|known| known.is_superset(indexes))
        };
        partitions.iter().all(has)
    }

    /// Decides the transaction.
    pub(crate) fn ended(&self, end: End, next_producer_id: ProducerId, wall_ms: i64) -> Self {
        let bumps = end.client_version >= EPOCH_BUMP_VERSION;
        let (producer_epoch, last_producer_epoch) = if bumps {
            // The very last epoch has been used for fencing: it stays, and the id changes.
            (self.producer_epoch.saturating_next(), self.producer_epoch)
        } else {
            (self.producer_epoch, self.last_producer_epoch)
        };
        let state = if end.committed { State::PrepareCommit } else { State::PrepareAbort };
        Self {
            producer_epoch,
            last_producer_epoch,
            next_producer_id,
            // A transaction without partitions has not begun; then the end is its beginning.
            started_ms: if self.state.is_idle() { wall_ms } else { self.started_ms },
            updated_ms: wall_ms,
            client_version: end.client_version,
            ..self.to(state)
        }
    }

    /// Aborts the transaction with a risen epoch, so that its producer is fenced.
    pub(crate) fn fenced(&self, client_version: i16, next_producer_id: ProducerId, wall_ms: i64) -> Self {
        assert!(self.state.may_become(State::PrepareEpochFence), "{:?} is not fenced", self.state);
        let abort = End { committed: false, client_version };
        if client_version >= EPOCH_BUMP_VERSION {
            // Ending it raises the epoch already.
            return self.ended(abort, next_producer_id, wall_ms);
        }
        let producer_epoch = self.producer_epoch.saturating_next();
        let risen = Self { producer_epoch, last_producer_epoch: ProducerEpoch::NONE, ..self.clone() };
        risen.ended(abort, next_producer_id, wall_ms)
    }

    /// Completes the transaction, whose markers are all written.
    pub(crate) fn completed(&self, wall_ms: i64) -> Self {
        let committed = self.state == State::PrepareCommit;
        let (producer_id, producer_epoch) = self.identity_afterwards();
        Self {
            producer_id,
            producer_epoch,
            next_producer_id: ProducerId::NONE,
            partitions: Partitions::new(),
            updated_ms: wall_ms,
            ..self.to(if committed { State::CompleteCommit } else { State::CompleteAbort })
        }
    }

    /// The id and epoch that the producer has when the transaction that is ending has ended.
    pub(crate) fn identity_afterwards(&self) -> (ProducerId, ProducerEpoch) {
        if self.client_version >= EPOCH_BUMP_VERSION && self.next_producer_id != ProducerId::NONE {
            (self.next_producer_id, ProducerEpoch::ZERO)
        } else {
            (self.producer_id, self.producer_epoch)
        }
    }

    /// Returns the time that a transaction may take, in milliseconds. None if it has no time-out.
    pub(crate) fn time_ms(&self) -> Option<u64> {
        if self.timeout_ms == NO_TIMEOUT_MS { None } else { u64::try_from(self.timeout_ms.max(0)).ok() }
    }

    /// Returns the milliseconds that a running transaction has left at this wall clock. They never exceed its time-out, however the clock
    /// was set since.
    pub(crate) fn time_left_ms(&self, wall_ms: i64) -> Option<u64> {
        let passed_ms = u64::try_from(wall_ms.saturating_sub(self.started_ms)).unwrap_or(0);
        self.time_ms().map(|time_ms| time_ms.saturating_sub(passed_ms))
    }
}

/// The end of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) committed: bool,
    /// The version of transactions that the client speaks which ends it.
    pub(crate) client_version: i16,
}
