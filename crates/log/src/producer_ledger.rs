//! Producers of a partition whose batches are not in a [`Log`](crate::Log), but in an embedded queue that a broker serves.
//! Their batches are checked as those of a log, except that none has transactions.

use std::sync::Arc;

use mainstem_records::{BatchHeader, ProducerEpoch, ProducerId};

use crate::append::{Appended, Prepared};
use crate::error::AppendError;
use crate::producer_budget::{ProducerBudget, ProducerShare};
use crate::producer_snapshot;
use crate::producer_state::{ProducerBatch, ProducerFault, ProducerState, Terms, Verdict};

/// The producers of one such partition.
#[derive(Debug)]
pub struct ProducerLedger {
    producers: ProducerState,
    share: ProducerShare,
}

impl ProducerLedger {
    /// An empty one, which takes its part of a budget.
    pub fn new(budget: Arc<ProducerBudget>) -> ProducerLedger {
        ProducerLedger { producers: ProducerState::default(), share: ProducerShare::new(budget) }
    }

    /// The number of producers that are remembered.
    pub fn len(&self) -> usize {
        self.producers.len()
    }

    /// Returns true if none is.
    pub fn is_empty(&self) -> bool {
        self.producers.is_empty()
    }

    /// The producers.
    pub fn state(&self) -> &ProducerState {
        &self.producers
    }

    /// Judges the batch of a client. `Some`: it is there already, and where.
    ///
    /// # Errors
    /// As of [`Log::append`](crate::Log::append), for a batch that its producer may not write now.
    pub fn judge(&self, prepared: &Prepared<'_>, log_start: i64) -> Result<Option<Appended>, AppendError> {
        let batch = prepared.producer();
        if batch.producer_id == ProducerId::NONE {
            return Ok(None);
        }
        let terms = Terms {
            check_sequence: true,
            may_begin: false,
            verification: None,
            has_capacity: self.share.has_capacity(),
            transaction_version: 0,
        };
        let producer_id = batch.producer_id;
        match self.producers.check(batch, terms) {
            Ok(Verdict::Append) => Ok(None),
            Ok(Verdict::Duplicate(known)) => Ok(Some(Appended {
                base_offset: known.first_offset(),
                last_offset: known.last_offset,
                log_append_time: None,
                log_start_offset: log_start,
                duplicate: true,
            })),
            Err(ProducerFault::OutOfOrderSequence { last_sequence }) => {
                Err(AppendError::OutOfOrderSequence {
                    producer_id,
                    sequence: batch.base_sequence,
                    last_sequence,
                })
            }
            Err(ProducerFault::InvalidEpoch { current }) => {
                let epoch = batch.producer_epoch;
                Err(AppendError::InvalidProducerEpoch { producer_id, epoch, current })
            }
            Err(ProducerFault::TooManyProducers) => {
                Err(AppendError::TooManyProducers { producer_id, max: self.share.partition_max() })
            }
            Err(
                ProducerFault::InvalidTransactionState
                | ProducerFault::NotVerified
                | ProducerFault::TooManyTransactions
                | ProducerFault::CoordinatorFenced { .. },
            ) => Err(AppendError::TransactionNotVerified { producer_id }),
        }
    }

    /// Notes a batch that was appended.
    pub fn record(&mut self, prepared: &Prepared<'_>, last_offset: i64, mono_ms: u64) {
        self.note(prepared.producer(), last_offset, mono_ms);
    }

    /// Notes an existing batch, in the order of offsets. Batches of transactions are passed over.
    pub fn replay(&mut self, header: &BatchHeader, mono_ms: u64) {
        if header.attributes.is_control() || header.attributes.is_transactional() {
            return;
        }
        let batch = ProducerBatch {
            producer_id: ProducerId::new(header.producer_id),
            producer_epoch: ProducerEpoch::new(header.producer_epoch),
            base_sequence: header.base_sequence,
            last_offset_delta: header.last_offset_delta,
            max_timestamp: header.max_timestamp,
            is_transactional: false,
            is_control: false,
            marker: None,
        };
        self.note(&batch, header.last_offset(), mono_ms);
    }

    fn note(&mut self, batch: &ProducerBatch, last_offset: i64, mono_ms: u64) {
        self.producers.record(batch, last_offset, mono_ms);
        self.share.set(self.producers.len());
    }

    /// Forgets producers that were idle for `expiration_ms`; how many.
    pub fn expire(&mut self, mono_ms: u64, wall_ms: i64, expiration_ms: u64) -> usize {
        let expired = self.producers.expire(mono_ms, wall_ms, expiration_ms);
        self.share.set(self.producers.len());
        expired
    }

    /// The bytes of Kafka's file of producers.
    pub fn snapshot(&self) -> Vec<u8> {
        producer_snapshot::encode(&self.producers)
    }

    /// Replaces the known producers by those of such a file. Returns false, and changes nothing, if its bytes are damaged.
    pub fn load(&mut self, bytes: &[u8]) -> bool {
        let Ok(producers) = producer_snapshot::decode(bytes) else { return false };
        self.producers = producers;
        self.share.set(self.producers.len());
        true
    }
}

#[cfg(test)]
mod tests {
    use mainstem_records::{Batch, BatchBuilder, BatchOptions, Origin, ProducerFields, Scratch};

    use super::*;
    use crate::append::prepare;
    use crate::config::LogConfig;

    fn batch(base_sequence: i32) -> Vec<u8> {
        let producer = ProducerFields { producer_id: 7, producer_epoch: 0, base_sequence };
        let mut builder = BatchBuilder::new(BatchOptions { producer, ..BatchOptions::default() });
        for value in [b"a", b"b"] {
            builder.append(5, None, Some(value), &[]).expect("it fits");
        }
        builder.build().expect("it has records")
    }

    #[test]
    fn what_was_appended_is_known_also_after_a_replay_or_from_a_snapshot() {
        let config = LogConfig::default();
        let mut scratch = Scratch::default();
        let judge = |ledger: &ProducerLedger, sequence, scratch: &mut Scratch| {
            let (raw, mut out) = (batch(sequence), Vec::new());
            let prepared = prepare(&raw, &config, 5, Origin::Client, scratch, &mut out).expect("it is valid");
            ledger.judge(&prepared, 0).map(|known| known.map(|known| known.base_offset))
        };
        let mut ledger = ProducerLedger::new(Arc::default());
        assert!(matches!(judge(&ledger, 0, &mut scratch), Ok(None)));
        for (sequence, offset) in [(0, 10), (2, 15)] {
            let mut raw = batch(sequence);
            raw[..8].copy_from_slice(&i64::to_be_bytes(offset));
            let (stored, _) = Batch::split_first(&raw).expect("it is one");
            ledger.replay(&stored.header(), 0);
        }
        let mut copy = ProducerLedger::new(Arc::default());
        assert!(copy.load(&ledger.snapshot()) && !copy.load(b"nonsense"));
        for ledger in [&ledger, &copy] {
            assert_eq!(judge(ledger, 0, &mut scratch).expect("known"), Some(10));
            assert_eq!(judge(ledger, 2, &mut scratch).expect("known"), Some(15));
            assert_eq!(judge(ledger, 4, &mut scratch).expect("it follows"), None);
            let gap = judge(ledger, 6, &mut scratch);
            assert!(matches!(gap, Err(AppendError::OutOfOrderSequence { last_sequence: 3, .. })), "{gap:?}");
        }
        assert_eq!(ledger.expire(1000, 1000, 10_000), 0);
        assert_eq!((ledger.expire(20_000, 20_000, 10_000), ledger.len()), (1, 0));
    }
}
