//! ListOffsets (2): the offsets of partitions by time.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_wire::messages::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};

use crate::cluster::{Cluster, Topic};
use crate::consumer::Isolation;
use crate::error::Error;
use crate::topic_partition::TopicPartition;

/// Stands for the offset behind the last record.
pub(crate) const LATEST: i64 = -1;
/// Stands for the offset of the first record that is there.
pub(crate) const EARLIEST: i64 = -2;

/// Offsets of partitions; none for a time behind all records.
pub(crate) type FoundOffsets = BTreeMap<TopicPartition, Option<i64>>;

/// A partition, and the timestamp to look for.
type Sought<'a> = (&'a TopicPartition, i64);

/// The offset of each partition at a timestamp in ms, [`LATEST`] or [`EARLIEST`]; none where all records are older.
/// Tried once: an error that is about one partition is the error of all.
pub(crate) async fn list_offsets(
    cluster: &Cluster,
    isolation: Isolation,
    sought: &[(TopicPartition, i64)],
) -> Result<FoundOffsets, Error> {
    let mut by_leader: BTreeMap<i32, Vec<(Sought<'_>, Arc<Topic>)>> = BTreeMap::new();
    for (key, timestamp) in sought {
        let topic = cluster.topic(&key.topic, false).await?;
        match topic.partition(key.partition)?.leader {
            Some(leader) => by_leader.entry(leader).or_default().push(((key, *timestamp), topic)),
            None => {
                cluster.doubt_topic(&key.topic);
                return Err(Error::NoLeader { partition: key.to_string() });
            }
        }
    }
    let mut found = BTreeMap::new();
    for (leader, sought) in by_leader {
        ask_leader(cluster, leader, isolation, &sought, &mut found).await.inspect_err(|_| {
            sought.iter().for_each(|((key, _), _)| cluster.doubt_topic(&key.topic));
        })?;
    }
    Ok(found)
}

async fn ask_leader(
    cluster: &Cluster,
    leader: i32,
    isolation: Isolation,
    sought: &[(Sought<'_>, Arc<Topic>)],
    found: &mut FoundOffsets,
) -> Result<(), Error> {
    let reply = cluster.node(leader).await?.call(&request(isolation, sought)).await?;
    let response = reply.read()?;
    for topic in &response.topics {
        for partition in &topic.partitions {
            let key = TopicPartition::new(&*topic.name, partition.partition_index);
            reply.check(partition.error_code, None, || format!("cannot find offsets of {key}"))?;
            found.insert(key, (partition.offset >= 0).then_some(partition.offset));
        }
    }
    Ok(())
}

fn request(isolation: Isolation, sought: &[(Sought<'_>, Arc<Topic>)]) -> ListOffsetsRequest<'static> {
    let mut topics: BTreeMap<&str, ListOffsetsTopic<'static>> = BTreeMap::new();
    for ((key, timestamp), known) in sought {
        let topic = topics.entry(&key.topic).or_insert_with(|| ListOffsetsTopic {
            name: Cow::Owned(key.topic.to_string()),
            ..Default::default()
        });
        topic.partitions.push(ListOffsetsPartition {
            partition_index: key.partition,
            current_leader_epoch: known.partition(key.partition).map_or(-1, |one| one.leader_epoch),
            timestamp: *timestamp,
            ..Default::default()
        });
    }
    ListOffsetsRequest {
        replica_id: -1,
        isolation_level: isolation.code(),
        topics: topics.into_values().collect(),
        ..Default::default()
    }
}
