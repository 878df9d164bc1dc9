//! ListPartitionReassignments (46), v0 (KIP-455).

use std::borrow::Cow;

use mainstem_wire::messages::list_partition_reassignments_request::ListPartitionReassignmentsRequest;
use mainstem_wire::messages::list_partition_reassignments_response::{
    ListPartitionReassignmentsResponse, OngoingPartitionReassignment, OngoingTopicReassignment,
};

use super::image::{MetadataImage, PartitionImage, TopicImage};

impl MetadataImage {
    /// The partitions whose replicas move: all, or of those that are named. What is named and does not exist is left out, as by Kafka.
    pub fn list_reassignments(
        &self,
        request: &ListPartitionReassignmentsRequest<'_>,
    ) -> ListPartitionReassignmentsResponse<'static> {
        let topics = match &request.topics {
            None => {
                self.topics().filter_map(|topic| moving(topic, (0..).take(topic.partitions.len()))).collect()
            }
            Some(named) => named
                .iter()
                .filter_map(|named| moving(self.topic(&named.name)?, named.partition_indexes.iter().copied()))
                .collect(),
        };
        ListPartitionReassignmentsResponse {
            error_message: None,
            topics,
            ..ListPartitionReassignmentsResponse::default()
        }
    }
}

/// Those of these partitions of a topic that move, if any does.
fn moving(
    topic: &TopicImage,
    numbers: impl Iterator<Item = i32>,
) -> Option<OngoingTopicReassignment<'static>> {
    let of = |number: i32| {
        let partition = usize::try_from(number).ok().and_then(|number| topic.partitions.get(number));
        partition.and_then(|partition| ongoing(number, partition))
    };
    let partitions: Vec<_> = numbers.filter_map(of).collect();
    (!partitions.is_empty()).then(|| OngoingTopicReassignment {
        name: Cow::Owned(topic.name.clone()),
        partitions,
        ..OngoingTopicReassignment::default()
    })
}

fn ongoing(number: i32, partition: &PartitionImage) -> Option<OngoingPartitionReassignment<'static>> {
    let moves = !partition.adding.is_empty() || !partition.removing.is_empty();
    moves.then(|| OngoingPartitionReassignment {
        partition_index: number,
        replicas: partition.replicas.clone(),
        adding_replicas: partition.adding.clone(),
        removing_replicas: partition.removing.clone(),
        ..OngoingPartitionReassignment::default()
    })
}
