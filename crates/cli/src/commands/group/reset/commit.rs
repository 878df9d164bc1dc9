//! Commits for a group that has no members.

use anyhow::Result;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};

use super::plan::Planned;
use crate::client::{CallOptions, check_message};
use crate::cluster::Cluster;

/// The newest version that names topics; those after it give ids.
const VERSION_WITH_NAMES: i16 = 9;

/// Who is no member has neither of them.
const NO_GENERATION: i32 = -1;
const NO_EPOCH: i32 = -1;

/// Sets the offsets.
///
/// # Errors
/// When the coordinator refuses one of them; others may have been set.
pub(super) fn commit(cluster: &mut Cluster, group: &str, planned: &[Planned]) -> Result<()> {
    let request = OffsetCommitRequest {
        group_id: group.into(),
        generation_id_or_member_epoch: NO_GENERATION,
        topics: topics(planned),
        ..Default::default()
    };
    let options = CallOptions { version_max: VERSION_WITH_NAMES, ..Default::default() };
    cluster.retrying(|cluster| {
        let coordinator = cluster.find_coordinator(group)?;
        let response = cluster.node(coordinator)?.call_with(&request, options)?;
        for topic in &response.topics {
            for partition in &topic.partitions {
                check_message(partition.error_code, advice(partition.error_code), || {
                    format!(
                        "cannot set the offset of group {group} in {}-{}",
                        topic.name, partition.partition_index
                    )
                })?;
            }
        }
        Ok(())
    })
}

/// What a person can do about a refusal.
fn advice(code: i16) -> Option<&'static str> {
    match ErrorCode::from(code) {
        ErrorCode::UNKNOWN_MEMBER_ID | ErrorCode::STALE_MEMBER_EPOCH => {
            Some("the group has got members meanwhile; stop them, then try again")
        }
        _ => None,
    }
}

/// The offsets by topic; `planned` is in the order of the topics.
fn topics(planned: &[Planned]) -> Vec<OffsetCommitRequestTopic<'_>> {
    let topics = planned.chunk_by(|a, b| a.topic == b.topic).map(|planned| {
        let partitions = planned.iter().map(|planned| OffsetCommitRequestPartition {
            partition_index: planned.partition,
            committed_offset: planned.new,
            committed_leader_epoch: NO_EPOCH,
            committed_metadata: Some("".into()),
            ..Default::default()
        });
        let partitions = partitions.collect();
        OffsetCommitRequestTopic { name: planned[0].topic.as_str().into(), partitions, ..Default::default() }
    });
    topics.collect()
}
