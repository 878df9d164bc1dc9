//! AlterPartitionReassignments (45), v0-1 (KIP-455, KIP-860). In a cluster the replicas of a partition move between nodes: the metadata say
//! which ones are wanted, the leader of the group makes it so, and its report ends the move ([`note_settled`]). Another order of the same
//! replicas, which sets the preferred leader, is there at once. On one node a partition has one possible assignment.
//!
//! [`note_settled`]: MetadataStateMachine::note_settled

use std::borrow::Cow;
use std::collections::HashSet;

use mainstem_wire::messages::alter_partition_reassignments_request::{
    AlterPartitionReassignmentsRequest, ReassignablePartition,
};
use mainstem_wire::messages::alter_partition_reassignments_response::{
    AlterPartitionReassignmentsResponse, ReassignablePartitionResponse, ReassignableTopicResponse,
};
use mainstem_wire::metadata_frame::MetadataRecord;
use mainstem_wire::{ErrorCode, Uuid};

use super::create_topics::DirectorySizes;
use super::error::ApiError;
use super::image::{GroupImage, PartitionImage, TopicImage};
use super::node_view::NodeView;
use super::state_machine::{Decision, MetadataStateMachine};

/// The level of `mainstem.version` from which on members of groups change.
pub(super) const MOVES_FROM_LEVEL: i16 = 2;

impl MetadataStateMachine {
    /// Decides on each partition by itself.
    pub fn alter_partition_reassignments(
        &mut self,
        view: &NodeView,
        request: &AlterPartitionReassignmentsRequest<'_>,
    ) -> Decision<AlterPartitionReassignmentsResponse<'static>> {
        let may_resize = request.allow_replication_factor_change;
        let mut reassignment = Reassignment {
            machine: self,
            view,
            may_resize,
            directories: self.directory_sizes(),
            changed: HashSet::new(),
        };
        let mut records = Vec::new();
        let topics = request.topics.iter().map(|topic| {
            let judge = |partition: &ReassignablePartition<'_>| {
                let judged = reassignment.judge(&topic.name, partition);
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
}

/// A request that is decided on.
struct Reassignment<'m> {
    machine: &'m MetadataStateMachine,
    view: &'m NodeView,
    /// The number of replicas may change (KIP-860).
    may_resize: bool,
    directories: DirectorySizes,
    /// Partitions that the request has changed so far.
    changed: HashSet<(Uuid, i32)>,
}

impl Reassignment<'_> {
    /// The record of what is asked for a partition, if that is a change.
    fn judge(
        &mut self,
        topic: &str,
        wanted: &ReassignablePartition<'_>,
    ) -> Result<Option<MetadataRecord<'static>>, ApiError> {
        let number = wanted.partition_index;
        let unknown = |what: &str| {
            let message = format!("Unable to find {what}.");
            ApiError::new(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, message)
        };
        let machine = self.machine;
        let topic = machine.ahead().topic(topic).ok_or_else(|| unknown("a topic of this name"))?;
        let partition = usize::try_from(number).ok().and_then(|number| topic.partitions.get(number));
        let partition = partition.ok_or_else(|| unknown("this partition of the topic"))?;
        if self.changed.contains(&(topic.id, number)) {
            let message = format!("The request names partition {}-{number} twice: name it once.", topic.name);
            return Err(ApiError::new(ErrorCode::INVALID_REQUEST, message));
        }
        let after = match &wanted.replicas {
            None => Some(self.cancelled(partition)?),
            Some(target) => self.reassigned((topic, number), partition, target)?,
        };
        let record = after.map(|after| partition.change_to(&after, topic.id, number));
        self.changed.extend(record.is_some().then_some((topic.id, number)));
        Ok(record)
    }

    /// The partition whose replicas move back to where they were. Those that were added are removed by the leader, as in any move.
    fn cancelled(&mut self, partition: &PartitionImage) -> Result<PartitionImage, ApiError> {
        let original = partition.original().to_vec();
        if !partition.is_moving() || is_same_set(&partition.target(), &original) {
            let message = "No partition reassignment is in progress.";
            return Err(ApiError::new(ErrorCode::NO_REASSIGNMENT_IN_PROGRESS, message));
        }
        self.moved(partition, &original)
    }

    /// The partition whose replicas are to be these; `None` if that is so.
    fn reassigned(
        &mut self,
        of: (&TopicImage, i32),
        partition: &PartitionImage,
        target: &[i32],
    ) -> Result<Option<PartitionImage>, ApiError> {
        self.machine.check_assignment(target, None)?;
        let known = partition.target();
        let (now, then) = (known.len(), target.len());
        if now != then && !self.may_resize {
            // KIP-860: a tool that moves replicas can forbid a change of their number.
            let message = format!("The replication factor is changed from {now} to {then}.");
            return Err(ApiError::new(ErrorCode::INVALID_REPLICATION_FACTOR, message));
        }
        if target == known {
            return Ok(None);
        }
        let is_order = !partition.is_moving() && is_same_set(target, &partition.replicas);
        if is_order && self.view.replicas_elect(partition) {
            return Ok(Some(partition.with_replicas(target.to_vec())));
        }
        self.check_moves(of, partition)?;
        self.moved(partition, target).map(Some)
    }

    /// Checks that the replicas of a partition can move between nodes.
    fn check_moves(
        &self,
        (topic, number): (&TopicImage, i32),
        partition: &PartitionImage,
    ) -> Result<(), ApiError> {
        self.machine.check_not_attached(topic, "its partition stays where its directory is.")?;
        let invalid = |message| Err(ApiError::new(ErrorCode::INVALID_REPLICA_ASSIGNMENT, message));
        let (name, replicas) = (&topic.name, &partition.replicas);
        if !self.view.has_several_nodes() {
            return invalid(format!(
                "This broker is no cluster: partition {name}-{number} stays on {replicas:?}. Replicas move between the nodes of \
                 a cluster."
            ));
        }
        if self.machine.ahead().mainstem_version() < MOVES_FROM_LEVEL {
            let message = format!(
                "Replicas move between nodes from level {MOVES_FROM_LEVEL} of mainstem.version on: upgrade all nodes, then run \
                 `mainstem cluster finalize --execute`."
            );
            return Err(ApiError::new(ErrorCode::UNSUPPORTED_VERSION, message));
        }
        if !partition.has_group() {
            return invalid(format!(
                "Partition {name}-{number} has one replica and no group yet, which could copy it: it stays on {replicas:?}. \
                 Create a topic with several replicas, and copy the records."
            ));
        }
        Ok(())
    }

    /// The partition that moves to these replicas, whatever moves now.
    fn moved(&mut self, partition: &PartitionImage, target: &[i32]) -> Result<PartitionImage, ApiError> {
        let used_up = || {
            let message = "The partition has had so many replicas that there is no number for another one: create a topic in its \
                           place, and copy the records.";
            ApiError::new(ErrorCode::INVALID_REPLICA_ASSIGNMENT, message)
        };
        let mut group =
            partition.group.clone().unwrap_or_else(|| GroupImage::first(partition.replicas.len()));
        group.raise_version().ok_or_else(used_up)?;
        if group.original.is_empty() {
            group.original.clone_from(&partition.replicas);
        }
        let is_gone = |node: &i32| !target.contains(node);
        let removing: Vec<i32> = partition.replicas.iter().copied().filter(is_gone).collect();
        let adding = target.iter().copied().filter(|node| !group.original.contains(node)).collect();
        let (mut directories, mut incarnations) = (Vec::new(), Vec::new());
        let replicas: Vec<i32> = target.iter().chain(&removing).copied().collect();
        for node in &replicas {
            let (directory, incarnation) = match partition.incarnation(*node) {
                Some(incarnation) => (partition.directory(*node), incarnation),
                None => {
                    let next = group.next_incarnation().ok_or_else(used_up)?;
                    (self.directories.take_emptiest(*node), next)
                }
            };
            directories.push(directory);
            incarnations.push(incarnation);
        }
        let group = Some(GroupImage { incarnations, ..group });
        Ok(PartitionImage { replicas, adding, removing, directories, group, ..partition.clone() })
    }
}

fn is_same_set(some: &[i32], others: &[i32]) -> bool {
    some.len() == others.len() && some.iter().all(|node| others.contains(node))
}
