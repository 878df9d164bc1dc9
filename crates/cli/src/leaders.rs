//! Offsets of partitions, asked of their leaders: the ends, and by time.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use mainstem_wire::messages::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};

use crate::client::check;
use crate::cluster::{Cluster, Topic};

/// The time that asks for the offset after the last record.
pub(crate) const LATEST: i64 = -1;
/// The time that asks for the first offset.
pub(crate) const EARLIEST: i64 = -2;

/// `replica_id` of a consumer.
const CONSUMER: i32 = -1;

/// The offset of the first record at or after a time in ms, by partition, or one of the special times; -1 where there
/// is no such record.
pub(crate) fn list_offsets(
    cluster: &mut Cluster,
    topic: &str,
    partitions: &[i32],
    time: i64,
) -> Result<BTreeMap<i32, i64>> {
    cluster.retrying(|cluster| {
        let topic = cluster.topic(topic)?;
        let mut offsets = BTreeMap::new();
        for (leader, partitions) in by_leader(&topic, partitions)? {
            ask_leader(cluster, leader, &topic.name, &partitions, time, &mut offsets)?;
        }
        Ok(offsets)
    })
}

/// Groups partitions by the node that leads them.
///
/// # Errors
/// LEADER_NOT_AVAILABLE where nobody does, which is worth another attempt.
pub(crate) fn by_leader(topic: &Topic, partitions: &[i32]) -> Result<BTreeMap<i32, Vec<i32>>> {
    let mut grouped: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for index in partitions {
        let Some(leader) = topic.partition(*index)?.leader else {
            let code = mainstem_wire::ErrorCode::LEADER_NOT_AVAILABLE.code();
            check(code, || format!("partition {}-{index}", topic.name))?;
            continue;
        };
        grouped.entry(leader).or_default().push(*index);
    }
    Ok(grouped)
}

fn ask_leader(
    cluster: &mut Cluster,
    leader: i32,
    topic: &str,
    partitions: &[i32],
    time: i64,
    offsets: &mut BTreeMap<i32, i64>,
) -> Result<()> {
    let partition =
        |index: &i32| ListOffsetsPartition { partition_index: *index, timestamp: time, ..Default::default() };
    let request = ListOffsetsRequest {
        replica_id: CONSUMER,
        topics: vec![ListOffsetsTopic {
            name: topic.into(),
            partitions: partitions.iter().map(partition).collect(),
            ..Default::default()
        }],
        timeout_ms: 10_000,
        ..Default::default()
    };
    let response = cluster.node(leader)?.call(&request)?;
    let answered = response.topics.into_iter().next().context("the broker left out the topic's offsets")?;
    for partition in answered.partitions {
        check(partition.error_code, || format!("offsets of {topic}-{}", partition.partition_index))?;
        offsets.insert(partition.partition_index, partition.offset);
    }
    Ok(())
}
