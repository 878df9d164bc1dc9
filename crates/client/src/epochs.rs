//! OffsetForLeaderEpoch (23): where the epochs of leaders end (KIP-320).

use std::borrow::Cow;
use std::collections::BTreeMap;

use mainstem_wire::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic,
};

use crate::cluster::Cluster;
use crate::consumer::{Doubt, Place};
use crate::error::Error;
use crate::topic_partition::TopicPartition;

/// Of each partition the newest epoch that is not newer than the one in question, and the offset behind its last record;
/// both -1 where there is none.
pub(crate) type EpochEnds = BTreeMap<TopicPartition, Place>;

/// Asks the leaders of partitions for the ends of epochs. Tried once: an error that is about one partition is the error
/// of all.
pub(crate) async fn epoch_ends(cluster: &Cluster, doubts: &[Doubt]) -> Result<EpochEnds, Error> {
    let mut by_leader: BTreeMap<i32, Vec<&Doubt>> = BTreeMap::new();
    for doubt in doubts {
        by_leader.entry(cluster.leader(&doubt.key).await?).or_default().push(doubt);
    }
    let mut ends = EpochEnds::new();
    for (leader, doubts) in by_leader {
        let reply = cluster.node(leader).await?.call(&request(&doubts)).await?;
        let response = reply.read()?;
        for topic in &response.topics {
            for one in &topic.partitions {
                let key = TopicPartition::new(&*topic.topic, one.partition);
                reply.check(one.error_code, None, || format!("cannot find the end of an epoch of {key}"))?;
                ends.insert(key, Place { offset: one.end_offset, epoch: one.leader_epoch });
            }
        }
    }
    Ok(ends)
}

fn request(doubts: &[&Doubt]) -> OffsetForLeaderEpochRequest<'static> {
    let mut topics: BTreeMap<&str, OffsetForLeaderTopic<'static>> = BTreeMap::new();
    for doubt in doubts {
        let topic = topics.entry(&doubt.key.topic).or_insert_with(|| OffsetForLeaderTopic {
            topic: Cow::Owned(doubt.key.topic.to_string()),
            ..Default::default()
        });
        topic.partitions.push(OffsetForLeaderPartition {
            partition: doubt.key.partition,
            current_leader_epoch: doubt.leader_epoch,
            leader_epoch: doubt.epoch,
            ..Default::default()
        });
    }
    OffsetForLeaderEpochRequest {
        replica_id: -1,
        topics: topics.into_values().collect(),
        ..Default::default()
    }
}
