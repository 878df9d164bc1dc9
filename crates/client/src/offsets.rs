//! ListOffsets (2): the offsets of partitions by time.

use std::borrow::Cow;
use std::collections::BTreeMap;

use mainstem_wire::messages::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};

use crate::cluster::Cluster;
use crate::consumer::Isolation;
use crate::error::Error;
use crate::topic_partition::TopicPartition;

/// The timestamp that asks for the offset after the last record.
pub(crate) const LATEST: i64 = -1;
/// The timestamp that asks for the offset of the first existing record.
pub(crate) const EARLIEST: i64 = -2;

/// Offsets of partitions; none for a time after all records.
pub(crate) type FoundOffsets = BTreeMap<TopicPartition, Option<i64>>;

/// An offset to be found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sought {
    pub(crate) key: TopicPartition,
    /// In ms, [`LATEST`] or [`EARLIEST`].
    pub(crate) timestamp: i64,
    /// The epoch of the leader that is asked.
    pub(crate) leader_epoch: i32,
}

impl Sought {
    /// The same for the offset after the last record.
    pub(crate) fn at_end(self) -> Sought {
        Sought { timestamp: LATEST, ..self }
    }
}

/// The offset of each partition at a timestamp in ms, [`LATEST`] or [`EARLIEST`]; none if all records are older. Tried
/// once: an error of one partition is the error of all.
pub(crate) async fn list_offsets(
    cluster: &Cluster,
    isolation: Isolation,
    sought: &[(TopicPartition, i64)],
) -> Result<FoundOffsets, Error> {
    let mut by_leader: BTreeMap<i32, Vec<Sought>> = BTreeMap::new();
    for (key, timestamp) in sought {
        let lead = cluster.find_lead(key).await?;
        let sought = Sought { key: key.clone(), timestamp: *timestamp, leader_epoch: lead.leader_epoch };
        by_leader.entry(lead.node).or_default().push(sought);
    }
    let mut found = BTreeMap::new();
    for (leader, sought) in by_leader {
        for (key, offset) in leader_offsets(cluster, leader, isolation, &sought).await {
            found.insert(key, offset?);
        }
    }
    Ok(found)
}

/// The same for partitions of one leader, where each has its own outcome. Tried once. If an error may pass, its partition's
/// metadata is marked as out of date.
pub(crate) async fn leader_offsets(
    cluster: &Cluster,
    leader: i32,
    isolation: Isolation,
    sought: &[Sought],
) -> BTreeMap<TopicPartition, Result<Option<i64>, Error>> {
    let mut found = match ask_leader(cluster, leader, isolation, sought).await {
        Ok(found) => found,
        Err(error) => sought.iter().map(|one| (one.key.clone(), Err(error.clone()))).collect(),
    };
    for one in sought {
        let outcome = found.entry(one.key.clone()).or_insert_with(|| Err(left_out(&one.key)));
        if outcome.as_ref().is_err_and(Error::is_retriable) {
            cluster.invalidate_partition(&one.key);
        }
    }
    found
}

async fn ask_leader(
    cluster: &Cluster,
    leader: i32,
    isolation: Isolation,
    sought: &[Sought],
) -> Result<BTreeMap<TopicPartition, Result<Option<i64>, Error>>, Error> {
    let reply = cluster.node(leader).await?.call(&request(isolation, sought)).await?;
    let response = reply.read()?;
    let mut found = BTreeMap::new();
    for topic in &response.topics {
        for one in &topic.partitions {
            let key = TopicPartition::new(&*topic.name, one.partition_index);
            let checked = reply.check(one.error_code, None, || format!("cannot find offsets of {key}"));
            found.insert(key, checked.map(|()| (one.offset >= 0).then_some(one.offset)));
        }
    }
    Ok(found)
}

/// The error of a partition that its leader has left out of the answer.
pub(crate) fn left_out(key: &TopicPartition) -> Error {
    Error::Unknown(format!("the broker says nothing of the offsets of {key}"))
}

fn request(isolation: Isolation, sought: &[Sought]) -> ListOffsetsRequest<'static> {
    let mut topics: BTreeMap<&str, ListOffsetsTopic<'static>> = BTreeMap::new();
    for one in sought {
        let topic = topics.entry(&one.key.topic).or_insert_with(|| ListOffsetsTopic {
            name: Cow::Owned(one.key.topic.to_string()),
            ..Default::default()
        });
        topic.partitions.push(ListOffsetsPartition {
            partition_index: one.key.partition,
            current_leader_epoch: one.leader_epoch,
            timestamp: one.timestamp,
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
