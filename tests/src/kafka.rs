//! Common calls of a broker in tests: topics, records and offsets of one partition, by name.

use std::io;

use mainstem_records::{Batch, BatchBuilder, BatchOptions, ProducerFields, Scratch};
use mainstem_wire::messages::create_topics_request::{
    CreatableTopic, CreatableTopicConfig, CreateTopicsRequest,
};
use mainstem_wire::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic,
};
use mainstem_wire::messages::delete_topics_request::{DeleteTopicState, DeleteTopicsRequest};
use mainstem_wire::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
use mainstem_wire::messages::find_coordinator_request::FindCoordinatorRequest;
use mainstem_wire::messages::init_producer_id_request::InitProducerIdRequest;
use mainstem_wire::messages::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};
use mainstem_wire::messages::metadata_request::{MetadataRequest, MetadataRequestTopic};
use mainstem_wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_wire::messages::offset_fetch_request::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use mainstem_wire::messages::produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};
use mainstem_wire::{ErrorCode, Records, Uuid};

use crate::client::Client;

/// `timestamp` of ListOffsets for the log end that readers see.
pub const LATEST: i64 = -1;
/// The same for the log start.
pub const EARLIEST: i64 = -2;

/// The last version of Produce and Fetch in which topics have names.
pub const BY_NAME: i16 = 12;
/// The newest versions, in which topics have ids.
pub const PRODUCE_BY_ID: i16 = 13;
/// See [`PRODUCE_BY_ID`].
pub const FETCH_BY_ID: i16 = 18;

const TIMEOUT_MS: i32 = 15_000;
/// The most bytes that a fetch of these helpers takes of a partition.
const FETCH_BYTES: i32 = 8 << 20;
/// Decompressed bytes of one batch.
const BATCH_BYTES_MAX: usize = 64 << 20;

/// The reason why a call of this module failed.
#[derive(Debug)]
pub enum Failure {
    /// The connection broke: the broker may have done the work or not.
    Connection(io::Error),
    /// The broker refused.
    Refused(ErrorCode),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        assert_ne!(error.kind(), io::ErrorKind::InvalidData, "a malformed response: {error}");
        Failure::Connection(error)
    }
}

fn accepted<T>(error_code: i16, value: T) -> Result<T, Failure> {
    if error_code == 0 { Ok(value) } else { Err(Failure::Refused(ErrorCode::from(error_code))) }
}

/// The broker's error of a call that it must refuse.
///
/// # Panics
/// When it succeeded, or the connection broke.
pub fn refusal<T: std::fmt::Debug>(result: Result<T, Failure>) -> ErrorCode {
    match result {
        Err(Failure::Refused(error)) => error,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// A batch of records with these values, without keys.
pub fn batch(values: &[&[u8]]) -> Vec<u8> {
    batch_with(BatchOptions::default(), values)
}

/// The batch of an idempotent producer.
pub fn idempotent(producer_id: i64, producer_epoch: i16, base_sequence: i32, values: &[&[u8]]) -> Vec<u8> {
    let producer = ProducerFields { producer_id, producer_epoch, base_sequence };
    batch_with(BatchOptions { producer, ..BatchOptions::default() }, values)
}

/// A batch with options of its own; its records have the current time.
pub fn batch_with(options: BatchOptions, values: &[&[u8]]) -> Vec<u8> {
    batch_at(options, wall_ms(), values)
}

/// The same at another time.
pub fn batch_at(options: BatchOptions, timestamp: i64, values: &[&[u8]]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(options);
    for value in values {
        builder.append(timestamp, None, Some(value), &[]).expect("the batch is small");
    }
    builder.build().expect("the batch is not empty")
}

/// Milliseconds since 1970.
pub fn wall_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(since.expect("it is later than 1970").as_millis()).expect("it is not that late")
}

/// A record that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadRecord {
    /// Its offset.
    pub offset: i64,
    /// Its time stamp in ms.
    pub timestamp: i64,
    /// Its value; empty where it is null.
    pub value: Vec<u8>,
    /// The leader epoch of its batch.
    pub leader_epoch: i32,
}

/// The records of the whole batches in `bytes`, whose CRCs are checked. An incomplete batch at the end is ignored.
///
/// # Panics
/// When a batch is damaged.
pub fn records_in(mut bytes: &[u8]) -> Vec<ReadRecord> {
    let mut records = Vec::new();
    let (mut buffer, mut scratch) = (Vec::new(), Scratch::new());
    while let Ok((batch, rest)) = Batch::split_first(bytes) {
        assert!(batch.verify_crc(), "the batch at {} is damaged", batch.base_offset());
        let leader_epoch = batch.partition_leader_epoch();
        let in_batch = batch.records(&mut buffer, BATCH_BYTES_MAX, &mut scratch).expect("it decompresses");
        records.extend(in_batch.map(|record| {
            let record = record.expect("records of a whole batch are whole");
            let value = record.value.unwrap_or_default().to_vec();
            ReadRecord { offset: record.offset, timestamp: record.timestamp, value, leader_epoch }
        }));
        bytes = rest;
    }
    records
}

/// The offset behind the last whole batch; none where there is none.
fn end_of(mut bytes: &[u8]) -> Option<i64> {
    let mut end = None;
    while let Ok((batch, rest)) = Batch::split_first(bytes) {
        end = Some(batch.next_offset());
        bytes = rest;
    }
    end
}

/// The bytes of records in a response.
pub fn bytes_of<'a>(records: &'a Option<Records<'_>>) -> &'a [u8] {
    match records {
        Some(Records::Bytes(bytes)) => bytes,
        _ => &[],
    }
}

/// A produce of one batch to one partition.
pub fn produce_request<'a>(topic: &'a str, partition: i32, acks: i16, batch: &'a [u8]) -> ProduceRequest<'a> {
    let records = Some(Records::Bytes(batch.into()));
    let partition = PartitionProduceData { index: partition, records, ..Default::default() };
    let topic =
        TopicProduceData { name: topic.into(), partition_data: vec![partition], ..Default::default() };
    ProduceRequest { acks, timeout_ms: TIMEOUT_MS, topic_data: vec![topic], ..Default::default() }
}

/// The part of a fetch request for one partition of the topic `name`.
pub fn fetch_topic(name: &str, partition: i32, fetch_offset: i64) -> FetchTopic<'_> {
    let partition = FetchPartition {
        partition,
        fetch_offset,
        partition_max_bytes: FETCH_BYTES,
        current_leader_epoch: -1,
        ..Default::default()
    };
    FetchTopic { topic: name.into(), partitions: vec![partition], ..Default::default() }
}

/// A fetch that does not wait, outside of a session.
pub fn fetch_request(topics: Vec<FetchTopic<'_>>) -> FetchRequest<'_> {
    FetchRequest { max_wait_ms: 0, min_bytes: 1, session_epoch: -1, topics, ..Default::default() }
}

impl Client {
    /// Creates a topic with settings. Returns its id.
    ///
    /// # Errors
    /// The connection's or the broker's.
    pub fn create_topic(
        &mut self,
        name: &str,
        partitions: i32,
        configs: &[(&str, &str)],
    ) -> Result<Uuid, Failure> {
        let configs = configs.iter().map(|(name, value)| CreatableTopicConfig {
            name: (*name).into(),
            value: Some((*value).into()),
            ..Default::default()
        });
        let topic = CreatableTopic {
            name: name.into(),
            num_partitions: partitions,
            replication_factor: 1,
            configs: configs.collect(),
            ..Default::default()
        };
        let request =
            CreateTopicsRequest { topics: vec![topic], timeout_ms: TIMEOUT_MS, ..Default::default() };
        let response = self.try_call(&request, 7)?;
        accepted(response.topics[0].error_code, response.topics[0].topic_id)
    }

    /// Deletes a topic.
    ///
    /// # Errors
    /// The connection's or the broker's.
    pub fn delete_topic(&mut self, name: &str) -> Result<(), Failure> {
        let topics = vec![DeleteTopicState { name: Some(name.into()), ..Default::default() }];
        let request = DeleteTopicsRequest { topics, timeout_ms: TIMEOUT_MS, ..Default::default() };
        let response = self.try_call(&request, 6)?;
        accepted(response.responses[0].error_code, ())
    }

    /// The names of all topics.
    ///
    /// # Errors
    /// The connection's.
    pub fn topics(&mut self) -> Result<Vec<String>, Failure> {
        let request = MetadataRequest { topics: None, ..Default::default() };
        let response = self.try_call(&request, 12)?;
        Ok(response.topics.iter().filter_map(|topic| Some(topic.name.as_ref()?.to_string())).collect())
    }

    /// The leader epoch of a partition.
    ///
    /// # Errors
    /// The connection's or the broker's.
    pub fn leader_epoch(&mut self, topic: &str, partition: i32) -> Result<i32, Failure> {
        let topics = vec![MetadataRequestTopic { name: Some(topic.into()), ..Default::default() }];
        let request = MetadataRequest { topics: Some(topics), ..Default::default() };
        let response = self.try_call(&request, 12)?;
        let topic = &response.topics[0];
        accepted(topic.error_code, ())?;
        let found = topic.partitions.iter().find(|found| found.partition_index == partition);
        Ok(found.expect("the partition is known").leader_epoch)
    }

    /// Appends a batch with acks. Returns its offset.
    ///
    /// # Errors
    /// The connection's or the broker's.
    pub fn produce(&mut self, topic: &str, partition: i32, acks: i16, batch: &[u8]) -> Result<i64, Failure> {
        let response = self.try_call(&produce_request(topic, partition, acks, batch), BY_NAME)?;
        let answer = &response.responses[0].partition_responses[0];
        accepted(answer.error_code, answer.base_offset)
    }

    /// The records of one fetch from an offset on. They begin with the first record of that offset's batch.
    ///
    /// # Errors
    /// The connection's or the broker's.
    pub fn fetch(&mut self, topic: &str, partition: i32, offset: i64) -> Result<Vec<ReadRecord>, Failure> {
        Ok(self.fetch_batches(topic, partition, offset)?.0)
    }

    /// The same, with the offset behind the last whole batch: compaction may have left it without records.
    fn fetch_batches(
        &mut self,
        topic: &str,
        partition: i32,
        offset: i64,
    ) -> Result<(Vec<ReadRecord>, Option<i64>), Failure> {
        let request = fetch_request(vec![fetch_topic(topic, partition, offset)]);
        let response = self.try_call(&request, BY_NAME)?;
        accepted(response.error_code, ())?;
        let data = &response.responses[0].partitions[0];
        accepted(data.error_code, ())?;
        let bytes = bytes_of(&data.records);
        Ok((records_in(bytes), end_of(bytes)))
    }

    /// All records from an offset to the log end.
    ///
    /// # Errors
    /// The connection's or the broker's.
    pub fn read_all(&mut self, topic: &str, partition: i32, from: i64) -> Result<Vec<ReadRecord>, Failure> {
        let end = self.offset_at(topic, partition, LATEST)?;
        let mut all: Vec<ReadRecord> = Vec::new();
        let mut next = from;
        while next < end {
            let (more, behind) = self.fetch_batches(topic, partition, next)?;
            let behind = behind.filter(|behind| *behind > next);
            let behind =
                behind.unwrap_or_else(|| panic!("{topic}-{partition} has nothing at {next} of {end}"));
            all.extend(more.into_iter().filter(|record| record.offset >= next));
            next = behind;
        }
        Ok(all)
    }

    /// The offset for a timestamp, or for [`LATEST`] or [`EARLIEST`].
    ///
    /// # Errors
    /// The connection's or the broker's.
    pub fn offset_at(&mut self, topic: &str, partition: i32, timestamp: i64) -> Result<i64, Failure> {
        let partition = ListOffsetsPartition {
            partition_index: partition,
            current_leader_epoch: -1,
            timestamp,
            ..Default::default()
        };
        let topic =
            ListOffsetsTopic { name: topic.into(), partitions: vec![partition], ..Default::default() };
        let request = ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() };
        let response = self.try_call(&request, 9)?;
        let found = &response.topics[0].partitions[0];
        accepted(found.error_code, found.offset)
    }

    /// Deletes the records before an offset. Returns the new log start.
    ///
    /// # Errors
    /// The connection's or the broker's.
    pub fn delete_records(&mut self, topic: &str, partition: i32, offset: i64) -> Result<i64, Failure> {
        let partition = DeleteRecordsPartition { partition_index: partition, offset, ..Default::default() };
        let topic =
            DeleteRecordsTopic { name: topic.into(), partitions: vec![partition], ..Default::default() };
        let request =
            DeleteRecordsRequest { topics: vec![topic], timeout_ms: TIMEOUT_MS, ..Default::default() };
        let response = self.try_call(&request, 2)?;
        let answer = &response.topics[0].partitions[0];
        accepted(answer.error_code, answer.low_watermark)
    }

    /// A new producer id, with epoch 0.
    ///
    /// # Errors
    /// The connection's or the broker's.
    pub fn init_producer_id(&mut self) -> Result<i64, Failure> {
        let request = InitProducerIdRequest {
            transactional_id: None,
            transaction_timeout_ms: 60_000,
            ..Default::default()
        };
        let response = self.try_call(&request, 4)?;
        accepted(response.error_code, response.producer_id)
    }

    /// Asks for a group's coordinator, which creates the internal topic.
    ///
    /// # Errors
    /// The connection's or the broker's.
    pub fn find_coordinator(&mut self, group: &str) -> Result<i32, Failure> {
        let request = FindCoordinatorRequest { coordinator_keys: vec![group.into()], ..Default::default() };
        let response = self.try_call(&request, 6)?;
        let found = &response.coordinators[0];
        accepted(found.error_code, found.node_id)
    }

    /// Commits an offset for a group without members.
    ///
    /// # Errors
    /// The connection's or the broker's.
    pub fn commit(&mut self, group: &str, topic: &str, partition: i32, offset: i64) -> Result<(), Failure> {
        let partition = OffsetCommitRequestPartition {
            partition_index: partition,
            committed_offset: offset,
            committed_metadata: Some("".into()),
            ..Default::default()
        };
        let topic = OffsetCommitRequestTopic {
            name: topic.into(),
            partitions: vec![partition],
            ..Default::default()
        };
        let request =
            OffsetCommitRequest { group_id: group.into(), topics: vec![topic], ..Default::default() };
        let response = self.try_call(&request, 9)?;
        accepted(response.topics[0].partitions[0].error_code, ())
    }

    /// The committed offset, or -1.
    ///
    /// # Errors
    /// The connection's or the broker's.
    pub fn committed(&mut self, group: &str, topic: &str, partition: i32) -> Result<i64, Failure> {
        let topic = OffsetFetchRequestTopics {
            name: topic.into(),
            partition_indexes: vec![partition],
            ..Default::default()
        };
        let groups = vec![OffsetFetchRequestGroup {
            group_id: group.into(),
            topics: Some(vec![topic]),
            ..Default::default()
        }];
        let request = OffsetFetchRequest { groups, ..Default::default() };
        let response = self.try_call(&request, 9)?;
        let group = &response.groups[0];
        accepted(group.error_code, ())?;
        let found = &group.topics[0].partitions[0];
        accepted(found.error_code, found.committed_offset)
    }
}
