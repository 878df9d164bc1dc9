//! OffsetForLeaderEpoch (23): the end offsets of leader epochs (KIP-320).

use std::borrow::Cow;
use std::collections::BTreeMap;

use mainstem_wire::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic,
};

use crate::cluster::Cluster;
use crate::consumer::{EpochValidation, FetchPosition};
use crate::error::Error;
use crate::offsets::left_out;
use crate::topic_partition::TopicPartition;

/// A leader's answer for partitions, each with its own outcome.
type EpochEnds = BTreeMap<TopicPartition, Result<FetchPosition, Error>>;

/// For each partition, the newest epoch that is not newer than the one in question, and the offset after its last record; both
/// -1 if there is none. Asks one leader, once. If an error may pass, its partition's metadata is marked as out of date.
pub(crate) async fn epoch_ends(
    cluster: &Cluster,
    leader: i32,
    validations: Vec<EpochValidation>,
) -> Vec<(EpochValidation, Result<FetchPosition, Error>)> {
    let mut ends = ask_leader(cluster, leader, &validations).await;
    let end = |validation: EpochValidation| {
        let end = match &mut ends {
            Ok(ends) => ends.remove(&validation.key).unwrap_or_else(|| Err(left_out(&validation.key))),
            Err(error) => Err(error.clone()),
        };
        if end.as_ref().is_err_and(Error::is_retriable) {
            cluster.invalidate_partition(&validation.key);
        }
        (validation, end)
    };
    validations.into_iter().map(end).collect()
}

async fn ask_leader(
    cluster: &Cluster,
    leader: i32,
    validations: &[EpochValidation],
) -> Result<EpochEnds, Error> {
    let reply = cluster.node(leader).await?.call(&request(validations)).await?;
    let response = reply.read()?;
    let mut ends = EpochEnds::new();
    for topic in &response.topics {
        for one in &topic.partitions {
            let key = TopicPartition::new(&*topic.topic, one.partition);
            let what = || format!("cannot find the end of an epoch of {key}");
            let checked = reply.check(one.error_code, None, what);
            ends.insert(
                key,
                checked.map(|()| FetchPosition { offset: one.end_offset, epoch: one.leader_epoch }),
            );
        }
    }
    Ok(ends)
}

fn request(validations: &[EpochValidation]) -> OffsetForLeaderEpochRequest<'static> {
    let mut topics: BTreeMap<&str, OffsetForLeaderTopic<'static>> = BTreeMap::new();
    for validation in validations {
        let topic = topics.entry(&validation.key.topic).or_insert_with(|| OffsetForLeaderTopic {
            topic: Cow::Owned(validation.key.topic.to_string()),
            ..Default::default()
        });
        topic.partitions.push(OffsetForLeaderPartition {
            partition: validation.key.partition,
            current_leader_epoch: validation.leader_epoch,
            leader_epoch: validation.epoch,
            ..Default::default()
        });
    }
    OffsetForLeaderEpochRequest {
        replica_id: -1,
        topics: topics.into_values().collect(),
        ..Default::default()
    }
}
