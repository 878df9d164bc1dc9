//! ApiVersions (18) version 4, Metadata (3) version 13, CreateTopics (19) version 7, InitProducerId (22) version 5,
//! ListOffsets (2) version 9.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};

use super::{
    API_VERSIONS, CREATE_ACLS, CREATE_TOPICS, INIT_PRODUCER_ID, LIST_OFFSETS, METADATA, TopicId, check, error,
};
use crate::bytes::{Reader, Writer};
use crate::connection::Connection;

const TIMEOUT_MS: i32 = 60_000;
/// More than any workload has.
const PARTITIONS_MAX: usize = 100_000;
/// The timestamp that asks for the end of a partition.
const LATEST: i64 = -1;

/// Sends the first request of a client on each connection. An answer shows that the broker serves.
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
    create_replicated_topic(connection, name, (partitions, 1), configs)
}

/// Creates a topic with numbers of partitions and of replicas of each.
pub(crate) fn create_replicated_topic(
    connection: &mut Connection,
    name: &str,
    (partitions, replicas): (i32, i16),
    configs: &[(&str, &str)],
) -> Result<TopicId> {
    let mut reader = connection.call(CREATE_TOPICS, |writer: &mut Writer| {
        writer.compact_len(1);
        writer.compact_string(name);
        writer.i32(partitions);
        writer.i16(replicas);
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

/// Allows or denies a user all operations on topics or groups.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Acl<'a> {
    /// 2: topic, 3: group.
    pub(crate) resource: i8,
    pub(crate) name: &'a str,
    pub(crate) principal: &'a str,
}

/// Creates rules.
pub(crate) fn create_acls(connection: &mut Connection, acls: &[Acl<'_>]) -> Result<()> {
    let mut reader = connection.call(CREATE_ACLS, |writer: &mut Writer| {
        writer.compact_len(acls.len());
        for acl in acls {
            writer.i8(acl.resource);
            writer.compact_string(acl.name);
            writer.i8(3); // literal
            writer.compact_string(acl.principal);
            writer.compact_string("*");
            writer.i8(2); // all operations
            writer.i8(3); // allow
            writer.no_tags();
        }
        writer.no_tags();
    })?;
    reader.i32()?; // throttle time
    ensure!(reader.compact_len()? == acls.len(), "CreateAcls was answered for other rules");
    for _ in acls {
        let (code, message) = (reader.i16()?, reader.compact_string()?);
        ensure!(code == error::NONE, "CreateAcls was answered with Kafka's error code {code}: {message}");
        reader.skip_tags()?;
    }
    Ok(())
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

/// The state of a topic as Metadata describes it.
#[derive(Debug, PartialEq)]
pub(crate) struct TopicState {
    pub(crate) id: TopicId,
    /// The number of partitions that have a leader and no error.
    pub(crate) led_partitions: i32,
}

/// Asks for one topic. A broker that may create topics creates it. `None` while it does not exist.
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

fn read_topic_state(reader: Reader<'_>) -> Result<Option<TopicState>> {
    let state = read_leaders(reader)?.topic;
    Ok(state.map(|Leaders { id, leaders, .. }| {
        let led_partitions = leaders.iter().flatten().count() as i32;
        TopicState { id, led_partitions }
    }))
}

/// The state of a cluster and of one topic as Metadata describes them.
#[derive(Debug, PartialEq)]
pub(crate) struct ClusterState {
    /// The ports of its live nodes on this machine, by id.
    pub(crate) ports: BTreeMap<i32, u16>,
    /// None while the topic does not exist.
    pub(crate) topic: Option<Leaders>,
}

/// The leaders of a topic's partitions.
#[derive(Debug, PartialEq)]
pub(crate) struct Leaders {
    pub(crate) id: TopicId,
    /// Node and epoch of each partition's leader, if there is one.
    pub(crate) leaders: Vec<Option<(i32, i32)>>,
    /// True if all replicas of all partitions are in sync.
    pub(crate) all_in_sync: bool,
}

/// Asks for all nodes and one topic.
pub(crate) fn cluster_state(connection: &mut Connection, name: &str) -> Result<ClusterState> {
    read_leaders(connection.call(METADATA, |writer: &mut Writer| {
        writer.compact_len(1);
        writer.raw(&[0; 16]); // topic id: by name
        writer.compact_string(name);
        writer.no_tags();
        writer.bool(false); // allow auto-creation
        writer.bool(false); // authorised operations
        writer.no_tags();
    })?)
}

fn read_leaders(mut reader: Reader<'_>) -> Result<ClusterState> {
    reader.i32()?; // throttle time
    let mut ports = BTreeMap::new();
    for _ in 0..reader.compact_len()? {
        let node = reader.i32()?;
        reader.compact_string()?; // host
        ports.insert(node, u16::try_from(reader.i32()?)?);
        reader.compact_string()?; // rack
        reader.skip_tags()?;
    }
    reader.compact_string()?; // cluster id
    reader.i32()?; // controller id
    ensure!(reader.compact_len()? == 1, "Metadata was answered for other topics");
    let code = reader.i16()?;
    reader.compact_string()?;
    let id = reader.uuid()?;
    reader.i8()?; // is internal
    let (mut leaders, mut all_in_sync) = (Vec::new(), true);
    for _ in 0..reader.compact_len()? {
        let partition = read_partition(&mut reader)?;
        let index = usize::try_from(partition.index)?;
        if leaders.len() <= index {
            ensure!(index < PARTITIONS_MAX, "Metadata was answered with partition {index}");
            leaders.resize(index + 1, None);
        }
        leaders[index] = partition.leader;
        all_in_sync &= partition.is_in_sync;
    }
    match code {
        error::NONE => Ok(ClusterState { ports, topic: Some(Leaders { id, leaders, all_in_sync }) }),
        error::UNKNOWN_TOPIC_OR_PARTITION | error::LEADER_NOT_AVAILABLE => {
            Ok(ClusterState { ports, topic: None })
        }
        code => bail!("Metadata was answered with Kafka's error code {code}"),
    }
}

struct PartitionState {
    index: i32,
    leader: Option<(i32, i32)>,
    is_in_sync: bool,
}

fn read_partition(reader: &mut Reader<'_>) -> Result<PartitionState> {
    let code = reader.i16()?;
    let index = reader.i32()?;
    let (leader, epoch) = (reader.i32()?, reader.i32()?);
    let mut counts = [0; 3];
    for count in &mut counts {
        *count = reader.compact_len()?;
        reader.raw(*count * 4)?; // replicas, in sync, offline
    }
    reader.skip_tags()?;
    let leader = (code == error::NONE && leader >= 0).then_some((leader, epoch));
    Ok(PartitionState { index, leader, is_in_sync: counts[0] == counts[1] })
}
