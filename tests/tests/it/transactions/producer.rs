//! A transactional producer with the newest versions (KIP-890): every transaction has an epoch of its own.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use mainstem_records::{BatchBuilder, BatchOptions, ProducerFields};
use mainstem_tests::client::Client;
use mainstem_tests::kafka::{Failure, produce_request, wall_ms};
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
/// The longest time in which a retried request is served: no transactional id is stuck.
const SERVED_WITHIN: Duration = Duration::from_secs(30);

/// A record to write.
pub(crate) struct Keyed<'a> {
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: &'a [u8],
}

pub(crate) struct Producer {
    pub(crate) client: Client,
    pub(crate) id: String,
    pub(crate) producer_id: i64,
    pub(crate) epoch: i16,
    /// The next sequence number by topic and partition.
    sequences: BTreeMap<(String, i32), i32>,
}

/// Returns true for errors after which a client retries.
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
    let deadline = Instant::now() + SERVED_WITHIN;
    loop {
        match ErrorCode::from(call()?) {
            ErrorCode::NONE => return Ok(()),
            error if is_transient(error) => {
                assert!(Instant::now() < deadline, "{} for {SERVED_WITHIN:?}", error.name());
                std::thread::sleep(Duration::from_millis(1));
            }
            error => return Err(Failure::Refused(error)),
        }
    }
}

impl Producer {
    /// Fences the last producer of this name and aborts its transaction.
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

    /// Writes values to a partition within the transaction, and waits for the disk.
    pub(crate) fn send(&mut self, topic: &str, partition: i32, values: &[&[u8]]) -> Result<(), Failure> {
        let records: Vec<_> = values.iter().map(|value| Keyed { key: None, value }).collect();
        self.send_records(topic, partition, &records)
    }

    /// The same with keys.
    pub(crate) fn send_records(
        &mut self,
        topic: &str,
        partition: i32,
        records: &[Keyed<'_>],
    ) -> Result<(), Failure> {
        let place = (topic.to_owned(), partition);
        let base_sequence = *self.sequences.entry(place.clone()).or_default();
        let batch = self.batch_of(base_sequence, records);
        let (client, id) = (&mut self.client, &self.id);
        until_served(|| {
            let request = produce(id, topic, partition, &batch);
            Ok(client.try_call(&request, PRODUCE_VERSION)?.responses[0].partition_responses[0].error_code)
        })?;
        *self.sequences.get_mut(&place).expect("it was just set") += records.len() as i32;
        Ok(())
    }

    /// Sends records without waiting for the answer. A repeated send has the same sequence numbers.
    pub(crate) fn leave_records(
        &mut self,
        topic: &str,
        partition: i32,
        records: &[Keyed<'_>],
    ) -> io::Result<()> {
        let place = (topic.to_owned(), partition);
        let base_sequence = self.sequences.get(&place).copied().unwrap_or(0);
        let batch = self.batch_of(base_sequence, records);
        self.client.send(&produce(&self.id, topic, partition, &batch), PRODUCE_VERSION).map(drop)
    }

    /// A batch of this producer.
    pub(crate) fn batch(&self, base_sequence: i32, values: &[&[u8]]) -> Vec<u8> {
        let records: Vec<_> = values.iter().map(|value| Keyed { key: None, value }).collect();
        self.batch_of(base_sequence, &records)
    }

    fn batch_of(&self, base_sequence: i32, records: &[Keyed<'_>]) -> Vec<u8> {
        let producer =
            ProducerFields { producer_id: self.producer_id, producer_epoch: self.epoch, base_sequence };
        let mut builder =
            BatchBuilder::new(BatchOptions { producer, is_transactional: true, ..BatchOptions::default() });
        for Keyed { key, value } in records {
            builder.append(wall_ms(), *key, Some(value), &[]).expect("the batch is small");
        }
        builder.build().expect("the batch is not empty")
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
            let response = client.try_call(&end(id, identity, committed), 5)?;
            next = (response.producer_id, response.producer_epoch);
            Ok(response.error_code)
        })?;
        (self.producer_id, self.epoch) = next;
        self.sequences.clear();
        Ok(())
    }

    /// Asks for the end, and does not wait for the answer.
    pub(crate) fn leave_end(&mut self, committed: bool) -> io::Result<()> {
        self.client.send(&end(&self.id, (self.producer_id, self.epoch), committed), 5).map(drop)
    }
}

fn produce<'a>(id: &'a str, topic: &'a str, partition: i32, batch: &'a [u8]) -> ProduceRequest<'a> {
    ProduceRequest { transactional_id: Some(id.into()), ..produce_request(topic, partition, -1, batch) }
}

fn end(id: &str, (producer_id, producer_epoch): (i64, i16), committed: bool) -> EndTxnRequest<'_> {
    let transactional_id = id.into();
    EndTxnRequest { transactional_id, producer_id, producer_epoch, committed, ..Default::default() }
}
