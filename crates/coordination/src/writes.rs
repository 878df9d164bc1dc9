//! The writes of a coordinator, as its driver makes them: the batch, and the driver's action by its outcome.
//!
//! A driver appends the writes of a partition one at a time, in the order in which they were decided. It appends a write only in the leader
//! epoch in which the partition was loaded when the write was decided. Between two epochs other nodes may have led, and changed the state
//! behind the decision. It reports the outcomes in the order of the log.

use mainstem_records::{BatchBuilder, BatchOptions, BuildError, ProducerFields};
use mainstem_wire::ErrorCode;

use crate::groups::{CoordinatorRecord, Producer};

/// The header of a batch of a producer's transaction, or of none. A coordinator's sequence numbers are 0, and are not checked.
pub fn options_of(producer: Option<Producer>) -> BatchOptions {
    let Some(Producer { id, epoch }) = producer else { return BatchOptions::default() };
    let (producer_id, producer_epoch) = (id.get(), epoch.get());
    let producer = ProducerFields { producer_id, producer_epoch, base_sequence: 0 };
    BatchOptions { producer, is_transactional: true, ..BatchOptions::default() }
}

/// The batch of records that a coordinator wants appended; `timestamp_ms` is that of all of them, wall clock.
///
/// # Errors
/// When they are too large for a batch.
pub fn batch_of(
    options: BatchOptions,
    timestamp_ms: i64,
    records: &[CoordinatorRecord],
) -> Result<Vec<u8>, BuildError> {
    let mut builder = BatchBuilder::new(options);
    for record in records {
        builder.append(timestamp_ms, Some(&record.key), record.value.as_deref(), &[])?;
    }
    builder.build()
}

/// Returns the outcome of a wait for commit, as coordinators understand it: a committed record stays, on however many replicas it is.
/// `min.insync.replicas` applies to answers to producers of data only.
///
/// # Errors
/// That of the log, if it is not known to be committed.
pub fn without_min_insync(committed: Result<(), ErrorCode>) -> Result<(), ErrorCode> {
    match committed {
        Err(ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND) => Ok(()),
        other => other,
    }
}

/// The driver's action when the fate of an append is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consequence {
    /// It is committed: the coordinator is notified.
    Report,
    /// It is not known whether the record will be in the log after a restart: the partition is unloaded, and rebuilt from its log.
    Unload,
    /// Nothing: the partition was loaded again since, from what the log has.
    Nothing,
}

impl Consequence {
    /// Decides on the outcome of an append. `made_in` is the epoch in which the partition was loaded when the append was made, `taken_over`
    /// that of today.
    pub fn of<E: PartialEq>(
        committed: Result<(), ErrorCode>,
        made_in: Option<E>,
        taken_over: Option<E>,
    ) -> Consequence {
        match committed {
            Ok(()) => Consequence::Report,
            Err(_) if taken_over == made_in => Consequence::Unload,
            Err(_) => Consequence::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use mainstem_records::{Batch, Scratch};

    use super::*;

    #[test]
    fn a_partition_is_unloaded_for_a_write_of_its_own_epoch_alone() {
        let lost = Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        for (committed, made_in, taken_over, expected) in [
            (Ok(()), Some(1), Some(1), Consequence::Report),
            (Ok(()), Some(1), Some(2), Consequence::Report),
            (lost, Some(1), Some(1), Consequence::Unload),
            (lost, None, None, Consequence::Unload),
            (lost, Some(1), Some(2), Consequence::Nothing),
            (lost, Some(1), None, Consequence::Nothing),
        ] {
            let found = Consequence::of(committed, made_in, taken_over);
            assert_eq!(found, expected, "{committed:?} of {made_in:?}, now {taken_over:?}");
        }
    }

    #[test]
    fn what_is_committed_on_few_replicas_is_committed() {
        let few = Err(ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND);
        let lost = Err(ErrorCode::KAFKA_STORAGE_ERROR);
        assert_eq!([few, lost, Ok(())].map(without_min_insync), [Ok(()), lost, Ok(())]);
    }

    #[test]
    fn a_batch_has_the_records_in_their_order_and_a_tombstone_no_value() {
        let records = [
            CoordinatorRecord { key: b"a".to_vec(), value: Some(b"1".to_vec()) },
            CoordinatorRecord { key: b"b".to_vec(), value: None },
        ];
        let bytes = batch_of(BatchOptions::default(), 7, &records).expect("a small batch");
        let (batch, rest) = Batch::split_first(&bytes).expect("a batch");
        assert!(rest.is_empty());
        let (mut buffer, mut scratch) = (Vec::new(), Scratch::new());
        let found = batch.records(&mut buffer, 1 << 20, &mut scratch).expect("records");
        let found: Vec<_> = found
            .map(|record| {
                let record = record.expect("a record");
                CoordinatorRecord {
                    key: record.key.expect("a key").to_vec(),
                    value: record.value.map(<[u8]>::to_vec),
                }
            })
            .collect();
        assert_eq!(found, records);
        assert_eq!(batch.max_timestamp(), 7);
    }
}
