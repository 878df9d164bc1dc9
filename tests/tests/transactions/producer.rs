//! A transactional producer that speaks the newest versions (KIP-890): every transaction has an epoch of its own.

use std::collections::BTreeMap;

use mainstem_records::{BatchOptions, ProducerFields};
use mainstem_tests::client::Client;
use mainstem_tests::kafka::{Failure, batch_with, produce_request};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::end_txn_request::EndTxnRequest;
use mainstem_wire::messages::find_coordinator_request::FindCoordinatorRequest;
use mainstem_wire::messages::init_producer_id_request::InitProducerIdRequest;
use mainstem_wire::messages::produce_request::ProduceRequest;
use mainstem_wire::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};

/// `key_type` of transactional ids in FindCoordinator.
const TRANSACTION: i8 = 1;
/// The last version of Produce that names topics: its transactions have version 2.
pub(crate) const PRODUCE_VERSION: i16 = 12;

pub(crate) struct Producer {
    pub(crate) client: Client,
    pub(crate) id: String,
    pub(crate) producer_id: i64,
    pub(crate) epoch: i16,
    /// By topic and partition.
    sequences: BTreeMap<(String, i32), i32>,
}

/// Errors on which a client tries again.
fn is_transient(error: ErrorCode) -> bool {
    [
        ErrorCode::CONCURRENT_TRANSACTIONS,
        ErrorCode::NOT_ENOUGH_REPLICAS,
        ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode::COORDINATOR_NOT_AVAILABLE,
    ]
    .contains(&error)
}

/// Calls until the answer is no transient error.
fn until_served(mut call: impl FnMut() -> Result<i16, Failure>) -> Result<(), Failure> {
    loop {
        match ErrorCode::from(call()?) {
            ErrorCode::NONE => return Ok(()),
            error if is_transient(error) => std::thread::sleep(std::time::Duration::from_millis(1)),
            error => return Err(Failure::Refused(error)),
        }
    }
}

impl Producer {
    /// Fences and aborts what the last producer of this name has left.
    pub(crate) fn init(mut client: Client, id: &str, timeout_ms: i32) -> Result<Producer, Failure> {
        until_served(|| {
            let keys = vec![id.to_owned().into()];
            let request = FindCoordinatorRequest {
                key_type: TRANSACTION,
                coordinator_keys: keys,
                ..Default::default()
            };
            Ok(client.try_call(&request, 6)?.coordinators[0].error_code)
        })?;
        let mut identity = (-1, -1);
        until_served(|| {
            let request = InitProducerIdRequest {
                transactional_id: Some(id.into()),
                transaction_timeout_ms: timeout_ms,
                producer_id: -1,
                producer_epoch: -1,
                ..Default::default()
            };
            let response = client.try_call(&request, 5)?;
            identity = (response.producer_id, response.producer_epoch);
            Ok(response.error_code)
        })?;
        let (producer_id, epoch) = identity;
        Ok(Producer { client, id: id.to_owned(), producer_id, epoch, sequences: BTreeMap::new() })
    }

    /// Writes values to a partition within the transaction, waiting for the disk.
    pub(crate) fn send(&mut self, topic: &str, partition: i32, values: &[&[u8]]) -> Result<(), Failure> {
        let place = (topic.to_owned(), partition);
        let base_sequence = *self.sequences.entry(place.clone()).or_default();
        let batch = self.batch(base_sequence, values);
        let (client, id) = (&mut self.client, &self.id);
        until_served(|| {
            let request = ProduceRequest {
                transactional_id: Some(id.as_str().into()),
                ..produce_request(topic, partition, -1, &batch)
            };
            Ok(client.try_call(&request, PRODUCE_VERSION)?.responses[0].partition_responses[0].error_code)
        })?;
        *self.sequences.get_mut(&place).expect("it was just set") += values.len() as i32;
        Ok(())
    }

    /// A batch of this producer.
    pub(crate) fn batch(&self, base_sequence: i32, values: &[&[u8]]) -> Vec<u8> {
        let producer =
            ProducerFields { producer_id: self.producer_id, producer_epoch: self.epoch, base_sequence };
        batch_with(BatchOptions { producer, is_transactional: true, ..BatchOptions::default() }, values)
    }

    /// Commits an offset of a group within the transaction.
    pub(crate) fn send_offset(&mut self, group: &str, topic: &str, offset: i64) -> Result<(), Failure> {
        let (client, id, identity) = (&mut self.client, &self.id, (self.producer_id, self.epoch));
        until_served(|| {
            let partition =
                TxnOffsetCommitRequestPartition { committed_offset: offset, ..Default::default() };
            let topic = TxnOffsetCommitRequestTopic {
                name: topic.into(),
                partitions: vec![partition],
                ..Default::default()
            };
            let request = TxnOffsetCommitRequest {
                transactional_id: id.as_str().into(),
                group_id: group.into(),
                producer_id: identity.0,
                producer_epoch: identity.1,
                topics: vec![topic],
                ..Default::default()
            };
            Ok(client.try_call(&request, 5)?.topics[0].partitions[0].error_code)
        })
    }

    /// Commits or aborts.
    pub(crate) fn end(&mut self, committed: bool) -> Result<(), Failure> {
        let (client, id, identity) = (&mut self.client, &self.id, (self.producer_id, self.epoch));
        let mut next = identity;
        until_served(|| {
            let request = EndTxnRequest {
                transactional_id: id.as_str().into(),
                producer_id: identity.0,
                producer_epoch: identity.1,
                committed,
                ..Default::default()
            };
            let response = client.try_call(&request, 5)?;
            next = (response.producer_id, response.producer_epoch);
            Ok(response.error_code)
        })?;
        (self.producer_id, self.epoch) = next;
        self.sequences.clear();
        Ok(())
    }
}
