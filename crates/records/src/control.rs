//! Control records: records that brokers write into a partition, which consumers never see.
//!
//! Key: version (i16, 0), type (i16). Value of an end-transaction marker: version (i16, 0), coordinator epoch
//! (i32). Later versions may only append fields, so more bytes are ignored (Kafka's EndTxnMarker schema).

use crate::batch::{Batch, NO_SEQUENCE, NO_TIMESTAMP};
use crate::builder::{BatchBuilder, BatchOptions, ProducerFields};
use crate::ids::{CoordinatorEpoch, ProducerEpoch, ProducerId};
use crate::scratch::Scratch;
use thiserror::Error;

const KEY_VERSION: i16 = 0;
const VALUE_VERSION: i16 = 0;

/// A control record that decompresses to more is no marker.
const MARKER_BYTES_MAX: usize = 1 << 16;

/// A transactional producer, as the header of its batches names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Producer {
    /// The producer id, not negative.
    pub id: ProducerId,
    /// Its epoch, not negative.
    pub epoch: ProducerEpoch,
}

/// The end of a transaction, as its marker in a partition says it (KIP-98).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionEnd {
    /// The producer that the marker names. Its epoch is that of the transaction, or the one after it (KIP-890).
    pub producer: Producer,
    /// Commit, or abort.
    pub committed: bool,
}

/// The type of a control record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlRecordType {
    /// The producer's open transaction is aborted.
    Abort,
    /// The producer's open transaction is committed.
    Commit,
    /// A Raft leader announces itself.
    LeaderChange,
    /// First record of a metadata snapshot.
    SnapshotHeader,
    /// Last record of a metadata snapshot.
    SnapshotFooter,
    /// The version of the Raft protocol in use (KIP-853).
    KraftVersion,
    /// The voters of a Raft quorum (KIP-853).
    KraftVoters,
    /// A type of a later Kafka, with its number.
    Unknown(i16),
}

impl ControlRecordType {
    /// The type that a control record's key names.
    ///
    /// # Errors
    /// When the key is shorter than four bytes or its version negative.
    pub fn parse(key: Option<&[u8]>) -> Result<ControlRecordType, MarkerError> {
        let key = key.ok_or(MarkerError::KeyTooShort(0))?;
        let [version, kind] = two_shorts(key).ok_or(MarkerError::KeyTooShort(key.len()))?;
        if version < 0 {
            return Err(MarkerError::Version(version));
        }
        Ok(match kind {
            0 => ControlRecordType::Abort,
            1 => ControlRecordType::Commit,
            2 => ControlRecordType::LeaderChange,
            3 => ControlRecordType::SnapshotHeader,
            4 => ControlRecordType::SnapshotFooter,
            5 => ControlRecordType::KraftVersion,
            6 => ControlRecordType::KraftVoters,
            other => ControlRecordType::Unknown(other),
        })
    }

    /// The number in the key.
    pub fn id(self) -> i16 {
        match self {
            ControlRecordType::Abort => 0,
            ControlRecordType::Commit => 1,
            ControlRecordType::LeaderChange => 2,
            ControlRecordType::SnapshotHeader => 3,
            ControlRecordType::SnapshotFooter => 4,
            ControlRecordType::KraftVersion => 5,
            ControlRecordType::KraftVoters => 6,
            ControlRecordType::Unknown(id) => id,
        }
    }

    /// The key of a control record of this type.
    pub fn key(self) -> [u8; 4] {
        let [v0, v1] = KEY_VERSION.to_be_bytes();
        let [t0, t1] = self.id().to_be_bytes();
        [v0, v1, t0, t1]
    }
}

/// The end of a producer's transaction in one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndTransactionMarker {
    /// Commit, or abort.
    pub committed: bool,
    /// The epoch of the transaction coordinator that decided it; older ones are fenced.
    pub coordinator_epoch: CoordinatorEpoch,
}

impl EndTransactionMarker {
    /// The marker in a control record, or `None` if it is another kind of control record.
    ///
    /// # Errors
    /// When key or value are too short or of a negative version.
    pub fn parse(key: Option<&[u8]>, value: Option<&[u8]>) -> Result<Option<Self>, MarkerError> {
        let committed = match ControlRecordType::parse(key)? {
            ControlRecordType::Commit => true,
            ControlRecordType::Abort => false,
            _ => return Ok(None),
        };
        let value = value.unwrap_or_default();
        let Some(&[v0, v1, e0, e1, e2, e3]) = value.first_chunk() else {
            return Err(MarkerError::ValueTooShort(value.len()));
        };
        let version = i16::from_be_bytes([v0, v1]);
        if version < 0 {
            return Err(MarkerError::Version(version));
        }
        let coordinator_epoch = CoordinatorEpoch::new(i32::from_be_bytes([e0, e1, e2, e3]));
        Ok(Some(EndTransactionMarker { committed, coordinator_epoch }))
    }

    /// The marker in a batch; `None`: it is no control batch, its record has gone by compaction, or it is of another
    /// kind or does not decode.
    pub fn of_batch(batch: &Batch<'_>) -> Option<Self> {
        if !batch.attributes().is_control() || batch.record_count() < 1 {
            return None;
        }
        let mut buffer = Vec::new();
        let mut records = batch.records(&mut buffer, MARKER_BYTES_MAX, &mut Scratch::new()).ok()?;
        let record = records.next()?.ok()?;
        EndTransactionMarker::parse(record.key, record.value).ok().flatten()
    }

    /// The value of the control record.
    pub fn value(&self) -> [u8; 6] {
        let mut value = [0; 6];
        value[..2].copy_from_slice(&VALUE_VERSION.to_be_bytes());
        value[2..].copy_from_slice(&self.coordinator_epoch.get().to_be_bytes());
        value
    }

    /// The type that goes into the key.
    pub fn control_type(&self) -> ControlRecordType {
        if self.committed { ControlRecordType::Commit } else { ControlRecordType::Abort }
    }
}

/// The reason why a control record cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MarkerError {
    /// The key has fewer than four bytes.
    #[error("the key of a control record has {0} bytes, expected at least 4")]
    KeyTooShort(usize),
    /// The value of an end-transaction marker has fewer than six bytes.
    #[error("the value of an end-transaction marker has {0} bytes, expected at least 6")]
    ValueTooShort(usize),
    /// The version is negative.
    #[error("invalid version {0} in a control record")]
    Version(i16),
}

/// A batch that holds one end-transaction marker, as WriteTxnMarkers appends it. The base offset and the leader
/// epoch are stamped at the append.
///
/// # Panics
/// If `timestamp` is below [`NO_TIMESTAMP`]: it is this broker's own clock.
pub fn end_transaction_batch(
    producer_id: i64,
    producer_epoch: i16,
    marker: EndTransactionMarker,
    timestamp: i64,
) -> Vec<u8> {
    assert!(timestamp >= NO_TIMESTAMP, "timestamp {timestamp}");
    let mut builder = BatchBuilder::new(BatchOptions {
        producer: ProducerFields { producer_id, producer_epoch, base_sequence: NO_SEQUENCE },
        is_transactional: true,
        is_control: true,
        ..BatchOptions::default()
    });
    builder
        .append(timestamp, Some(&marker.control_type().key()), Some(&marker.value()), &[])
        .expect("a record of ten bytes fits an empty batch");
    builder.build().expect("a batch without compression of one small record can be built")
}

fn two_shorts(bytes: &[u8]) -> Option<[i16; 2]> {
    let &[a, b, c, d] = bytes.first_chunk()?;
    Some([i16::from_be_bytes([a, b]), i16::from_be_bytes([c, d])])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::empty_batch;

    #[test]
    fn a_marker_is_found_in_its_batch_and_nowhere_else() {
        let of = |bytes: &[u8]| EndTransactionMarker::of_batch(&Batch::split_first(bytes).unwrap().0);
        for committed in [true, false] {
            let marker = EndTransactionMarker { committed, coordinator_epoch: CoordinatorEpoch::new(9) };
            let bytes = end_transaction_batch(7, 3, marker, 1000);
            assert_eq!(of(&bytes), Some(marker));
            assert_eq!(of(&empty_batch(&Batch::split_first(&bytes).unwrap().0)), None);
        }
        let with = |is_control, key: &[u8], value: &[u8]| {
            let mut builder = BatchBuilder::new(BatchOptions { is_control, ..BatchOptions::default() });
            builder.append(5, Some(key), Some(value), &[]).unwrap();
            of(&builder.build().unwrap())
        };
        let value =
            EndTransactionMarker { committed: true, coordinator_epoch: CoordinatorEpoch::new(1) }.value();
        assert!(with(true, &ControlRecordType::Commit.key(), &value).is_some());
        assert_eq!(with(false, &ControlRecordType::Commit.key(), &value), None);
        assert_eq!(with(true, &ControlRecordType::LeaderChange.key(), &value), None);
        assert_eq!(with(true, &ControlRecordType::Abort.key(), &value[..5]), None);
    }
}
