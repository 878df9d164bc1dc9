//! The records of `__transaction_state`, in Kafka's schemas.
//!
//! A key is the record's type and the transactional id; a value is the version of its schema and its fields. The written version follows
//! the feature `transaction.version`: TransactionLogValue v0 for 0, v1 (flexible) for later levels. Both are read.

use std::collections::BTreeSet;
use std::sync::Arc;

use mainstem_records::{ProducerEpoch, ProducerId};
use mainstem_wire::coordinator::{
    CoordinatorKey, decode_key, decode_with_version, encode_key, encode_with_version, record_type,
};
use mainstem_wire::messages::transaction_log_key::TransactionLogKey;
use mainstem_wire::messages::transaction_log_value::{PartitionsSchema, TransactionLogValue};
use mainstem_wire::{DecodeError, EncodeError};

use super::CoordinatorRecord;
use super::image::{Image, Partitions};
use super::state::State;

/// A record of `__transaction_state`, decoded.
#[derive(Debug, PartialEq)]
pub(crate) enum Record {
    /// A transactional id; None is its tombstone.
    Transaction { id: String, image: Option<Image> },
    /// A record of a type that this version does not know.
    Other,
    /// A record without a valid meaning.
    Malformed,
}

/// Decodes a record.
pub(crate) fn decode(key: &[u8], value: Option<&[u8]>) -> Record {
    try_decode(key, value).unwrap_or(Record::Malformed)
}

fn try_decode(key: &[u8], value: Option<&[u8]>) -> Result<Record, DecodeError> {
    if record_type(key)? != TransactionLogKey::RECORD_TYPE {
        return Ok(Record::Other);
    }
    let key: TransactionLogKey<'_> = decode_key(key)?;
    let id = key.transactional_id.into_owned();
    let Some(value) = value else { return Ok(Record::Transaction { id, image: None }) };
    let (value, _): (TransactionLogValue<'_>, _) = decode_with_version(value)?;
    let image = read(&value);
    Ok(image.map_or(Record::Malformed, |image| Record::Transaction { id, image: Some(image) }))
}

/// Reads a value. None if it makes no sense: it must have a producer with an epoch, and a state that is written.
fn read(value: &TransactionLogValue<'_>) -> Option<Image> {
    let state = State::from_code(value.transaction_status)
        .filter(|state| !matches!(state, State::Dead | State::PrepareEpochFence))?;
    if value.producer_id < 0 || value.producer_epoch < 0 {
        return None;
    }
    let mut partitions = Partitions::new();
    if state != State::Empty {
        let topics = value.transaction_partitions.iter().flatten();
        for topic in topics.filter(|topic| !topic.partition_ids.is_empty()) {
            let name: Arc<str> = (&*topic.topic).into();
            partitions.entry(name).or_default().extend(&topic.partition_ids);
        }
    }
    Some(Image {
        producer_id: ProducerId::new(value.producer_id),
        previous_producer_id: ProducerId::new(value.previous_producer_id).max(ProducerId::NONE),
        next_producer_id: ProducerId::new(value.next_producer_id).max(ProducerId::NONE),
        producer_epoch: ProducerEpoch::new(value.producer_epoch),
        last_producer_epoch: ProducerEpoch::NONE,
        timeout_ms: value.transaction_timeout_ms,
        state,
        partitions,
        started_ms: value.transaction_start_timestamp_ms,
        updated_ms: value.transaction_last_update_timestamp_ms,
        client_version: value.client_transaction_version,
    })
}

/// The record of a transactional id, for a cluster with this `transaction.version`.
pub(crate) fn image(id: &str, image: &Image, transaction_version: i16) -> CoordinatorRecord {
    let topic = |(topic, indexes): (&Arc<str>, &BTreeSet<i32>)| PartitionsSchema {
        topic: topic.to_string().into(),
        partition_ids: indexes.iter().copied().collect(),
        ..Default::default()
    };
    let partitions = || image.partitions.iter().map(topic).collect();
    let mut value = TransactionLogValue {
        producer_id: image.producer_id.get(),
        producer_epoch: image.producer_epoch.get(),
        transaction_timeout_ms: image.timeout_ms,
        transaction_status: image.state.code(),
        // Kafka writes no list in this state, and an empty one in others.
        transaction_partitions: (image.state != State::Empty).then(partitions),
        transaction_last_update_timestamp_ms: image.updated_ms,
        transaction_start_timestamp_ms: image.started_ms,
        ..Default::default()
    };
    let version = transaction_version.clamp(0, 1);
    if version > 0 {
        value.previous_producer_id = image.previous_producer_id.get();
        value.next_producer_id = image.next_producer_id.get();
        value.client_transaction_version = image.client_version;
    }
    CoordinatorRecord { key: key(id), value: Some(encode(encode_with_version(&value, version))) }
}

/// The tombstone of a transactional id.
pub(crate) fn tombstone(id: &str) -> CoordinatorRecord {
    CoordinatorRecord { key: key(id), value: None }
}

fn key(id: &str) -> Vec<u8> {
    encode(encode_key(&TransactionLogKey { transactional_id: id.into() }))
}

fn encode(bytes: Result<Vec<u8>, EncodeError>) -> Vec<u8> {
    bytes.expect("no request or replay brings names that are longer than `fits` says")
}

/// Returns true if a name can be written: Kafka has no longer ones in any version.
pub(crate) fn fits(name: &str) -> bool {
    name.len() <= i16::MAX as usize
}
