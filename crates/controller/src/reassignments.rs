//! AlterPartitionReassignments (45), v0-1, and ListPartitionReassignments (46), v0 (KIP-455). On one node a partition has one possible
//! assignment, so a reassignment is done immediately, or refused. In a cluster the replicas of a partition can be given another order,
//! which sets the preferred leader; they do not move between nodes yet.

use std::borrow::Cow;

use mainstem_wire::messages::alter_partition_reassignments_request::{
    AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic,
};
use mainstem_wire::messages::alter_partition_reassignments_response::{
    AlterPartitionReassignmentsResponse, ReassignablePartitionResponse, ReassignableTopicResponse,
};
use mainstem_wire::messages::partition_change_record::PartitionChangeRecord;
use mainstem_wire::metadata_frame::MetadataRecord;
use mainstem_wire::{ErrorCode, Uuid};

use super::error::ApiError;
use super::image::PartitionImage;
use super::node_view::NodeView;
use super::state_machine::{Decision, MetadataStateMachine};

impl MetadataStateMachine {
    /// Decides on each partition by itself.
    pub fn alter_partition_reassignments(
        &mut self,
        view: &NodeView,
        request: &AlterPartitionReassignmentsRequest<'_>,
    ) -> Decision<AlterPartitionReassignmentsResponse<'static>> {
        let may_resize = request.allow_replication_factor_change;
        let mut records = Vec::new();
        let topics = request.topics.iter().map(|topic| {
            let judge = |partition: &ReassignablePartition| {
                let judged = self.reassign(view, topic, partition, may_resize);
                let error = judged.map(|record| records.extend(record)).err();
                ReassignablePartitionResponse {
                    partition_index: partition.partition_index,
                    error_code: error.as_ref().map_or(ErrorCode::NONE, |error| error.code).0,
                    error_message: error.map(|error| Cow::Owned(error.message)),
                    ..ReassignablePartitionResponse::default()
                }
            };
            ReassignableTopicResponse {
                name: Cow::Owned(topic.name.to_string()),
                partitions: topic.partitions.iter().map(judge).collect(),
                ..ReassignableTopicResponse::default()
            }
        });
        let response = AlterPartitionReassignmentsResponse {
            allow_replication_factor_change: may_resize,
            // As Kafka answers an empty request.
            error_message: request.topics.is_empty().then_some(Cow::Borrowed("")),
            responses: topics.collect(),
            ..AlterPartitionReassignmentsResponse::default()
        };
        self.decide(records, response)
    }

    fn reassign(
        &self,
        view: &NodeView,
        topic: &ReassignableTopic<'_>,
        wanted: &ReassignablePartition,
        may_resize: bool,
    ) -> Result<Option<MetadataRecord<'static>>, ApiError> {
        let unknown = |what: &str| {
            let message = format!("Unable to find {what}.");
            ApiError::new(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, message)
        };
        let image = self.ahead().topic(&topic.name).ok_or_else(|| unknown("a topic of this name"))?;
        let partition = usize::try_from(wanted.partition_index).ok();
        let partition = partition.and_then(|number| image.partitions.get(number));
        let partition = partition.ok_or_else(|| unknown("this partition of the topic"))?;
        let Some(replicas) = &wanted.replicas else {
            let message = "No partition reassignment is in progress.";
            return Err(ApiError::new(ErrorCode::NO_REASSIGNMENT_IN_PROGRESS, message));
        };
        self.check_assignment(replicas, None)?;
        let (now, then) = (partition.replicas.len(), replicas.len());
        if now != then && !may_resize {
            // KIP-860: a tool that moves replicas can forbid a change of their number.
            let message = format!("The replication factor is changed from {now} to {then}.");
            return Err(ApiError::new(ErrorCode::INVALID_REPLICATION_FACTOR, message));
        }
        if *replicas == partition.replicas {
            return Ok(None);
        }
        let is_same_set = now == then && replicas.iter().all(|node| partition.replicas.contains(node));
        if !view.replicas_elect(partition) || !is_same_set {
            let message = format!(
                "Replicas do not move between nodes yet: the partition stays on {:?}.",
                partition.replicas
            );
            return Err(ApiError::new(ErrorCode::INVALID_REPLICA_ASSIGNMENT, message));
        }
        Ok(Some(reordered(image.id, wanted.partition_index, partition, replicas)))
    }
}

/// The same replicas in another order, each with its directory.
fn reordered(
    topic_id: Uuid,
    partition_id: i32,
    partition: &PartitionImage,
    replicas: &[i32],
) -> MetadataRecord<'static> {
    let directory = |node: &i32| {
        let at = partition.replicas.iter().position(|known| known == node);
        at.and_then(|at| partition.directories.get(at)).copied().unwrap_or_default()
    };
    MetadataRecord::PartitionChangeRecord(Box::new(PartitionChangeRecord {
        partition_id,
        topic_id,
        replicas: Some(replicas.to_vec()),
        directories: Some(replicas.iter().map(directory).collect()),
        ..PartitionChangeRecord::default()
    }))
}
