//! ApiVersions (18) version 4, Metadata (3) version 13, CreateTopics (19) version 7, InitProducerId (22) version 5,
//! ListOffsets (2) version 9.

use anyhow::{Result, bail, ensure};

use super::{API_VERSIONS, CREATE_TOPICS, INIT_PRODUCER_ID, LIST_OFFSETS, METADATA, TopicId, check, error};
use crate::bytes::{Reader, Writer};
use crate::connection::Connection;

const TIMEOUT_MS: i32 = 60_000;
/// The timestamp that asks for the end of a partition.
const LATEST: i64 = -1;

/// What a client asks first on each connection; tells that the broker answers.
pub(crate) fn api_versions(connection: &mut Connection) -> Result<()> {
    let mut reader = connection.call(API_VERSIONS, |writer| {
        writer.compact_string("mainstem-bench");
        writer.compact_string(env!("CARGO_PKG_VERSION"));
        writer.no_tags();
    })?;
    check(API_VERSIONS, reader.i16()?)
}

/// Creates a topic with topic-level configuration and returns its id.
pub(crate) fn create_topic(
    connection: &mut Connection,
    name: &str,
    partitions: i32,
    configs: &[(&str, &str)],
) -> Result<TopicId> {
    let mut reader = connection.call(CREATE_TOPICS, |writer: &mut Writer| {
        writer.compact_len(1);
        writer.compact_string(name);
        writer.i32(partitions);
        writer.i16(1); // replication factor
        writer.compact_len(0); // assignments
        writer.compact_len(configs.len());
        for (key, value) in configs {
            writer.compact_string(key);
            writer.compact_string(value);
            writer.no_tags();
        }
        writer.no_tags();
        writer.i32(TIMEOUT_MS);
        writer.bool(false); // validate only
        writer.no_tags();
    })?;
    reader.i32()?; // throttle time
    ensure!(reader.compact_len()? == 1, "CreateTopics was answered for other topics");
    ensure!(reader.compact_string()? == name, "CreateTopics was answered for another topic");
    let id = reader.uuid()?;
    let code = reader.i16()?;
    let message = reader.compact_string()?;
    ensure!(code == error::NONE, "CreateTopics was answered with Kafka's error code {code}: {message}");
    Ok(id)
}

/// Asks for an id with which a producer is idempotent: (id, epoch), or the error code.
pub(crate) fn init_producer_id(connection: &mut Connection) -> Result<Result<(i64, i16), i16>> {
    let mut reader = connection.call(INIT_PRODUCER_ID, |writer| {
        writer.compact_null(); // transactional id
        writer.i32(TIMEOUT_MS);
        writer.i64(-1); // producer id: a new one
        writer.i16(-1);
        writer.no_tags();
    })?;
    reader.i32()?; // throttle time
    match reader.i16()? {
        error::NONE => Ok(Ok((reader.i64()?, reader.i16()?))),
        code => Ok(Err(code)),
    }
}

/// The sum of the ends of a topic's partitions: the records in it, if none was ever deleted.
pub(crate) fn count_records(connection: &mut Connection, name: &str, partitions: i32) -> Result<u64> {
    let mut reader = connection.call(LIST_OFFSETS, |writer| {
        writer.i32(-1); // replica id: a consumer
        writer.i8(0); // read uncommitted
        writer.compact_len(1);
        writer.compact_string(name);
        writer.compact_len(partitions as usize);
        for partition in 0..partitions {
            writer.i32(partition);
            writer.i32(-1); // leader epoch: not checked
            writer.i64(LATEST);
            writer.no_tags();
        }
        writer.no_tags();
        writer.no_tags();
    })?;
    reader.i32()?; // throttle time
    ensure!(reader.compact_len()? == 1, "ListOffsets was answered for other topics");
    reader.compact_string()?;
    let mut records = 0;
    for _ in 0..reader.compact_len()? {
        reader.i32()?; // partition
        check(LIST_OFFSETS, reader.i16()?)?;
        reader.i64()?; // timestamp
        records += u64::try_from(reader.i64()?)?;
        reader.i32()?; // leader epoch
        reader.skip_tags()?;
    }
    Ok(records)
}

/// What Metadata tells of one topic.
#[derive(Debug, PartialEq)]
pub(crate) struct TopicState {
    pub(crate) id: TopicId,
    /// The number of partitions that have a leader and no error.
    pub(crate) led_partitions: i32,
}

/// Asks for one topic, which a broker creates at that if it may. `None` while it is not there yet.
pub(crate) fn topic_state(connection: &mut Connection, name: &str) -> Result<Option<TopicState>> {
    let reader = connection.call(METADATA, |writer: &mut Writer| {
        writer.compact_len(1);
        writer.raw(&[0; 16]); // topic id: by name
        writer.compact_string(name);
        writer.no_tags();
        writer.bool(true); // allow auto-creation
        writer.bool(false); // authorised operations
        writer.no_tags();
    })?;
    read_topic_state(reader)
}

fn read_topic_state(mut reader: Reader<'_>) -> Result<Option<TopicState>> {
    reader.i32()?; // throttle time
    for _ in 0..reader.compact_len()? {
        reader.i32()?;
        reader.compact_string()?;
        reader.i32()?;
        reader.compact_string()?;
        reader.skip_tags()?;
    }
    reader.compact_string()?; // cluster id
    reader.i32()?; // controller id
    ensure!(reader.compact_len()? == 1, "Metadata was answered for other topics");
    let code = reader.i16()?;
    reader.compact_string()?;
    let id = reader.uuid()?;
    reader.i8()?; // is internal
    let mut led_partitions = 0;
    for _ in 0..reader.compact_len()? {
        led_partitions += i32::from(read_partition_is_led(&mut reader)?);
    }
    match code {
        error::NONE => Ok(Some(TopicState { id, led_partitions })),
        error::UNKNOWN_TOPIC_OR_PARTITION | error::LEADER_NOT_AVAILABLE => Ok(None),
        code => bail!("Metadata was answered with Kafka's error code {code}"),
    }
}

fn read_partition_is_led(reader: &mut Reader<'_>) -> Result<bool> {
    let code = reader.i16()?;
    reader.i32()?; // index
    let leader = reader.i32()?;
    reader.i32()?; // leader epoch
    for _ in 0..3 {
        let nodes = reader.compact_len()?;
        reader.raw(nodes * 4)?; // replicas, in sync, offline
    }
    reader.skip_tags()?;
    Ok(code == error::NONE && leader >= 0)
}
