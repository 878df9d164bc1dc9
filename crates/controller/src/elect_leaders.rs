//! ElectLeaders (43), v0-2 (KIP-460). No election is needed while the preferred replica leads, which it always does on one node.

use std::borrow::Cow;

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::elect_leaders_request::{ElectLeadersRequest, TopicPartitions};
use mainstem_wire::messages::elect_leaders_response::{
    ElectLeadersResponse, PartitionResult, ReplicaElectionResult,
};

use super::image::{MetadataImage, PartitionImage};

/// The replica that is to lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ElectionType {
    /// The preferred leader: the first that stays.
    Preferred,
    /// Any that is online, even if it is not in sync.
    Unclean,
}

impl MetadataImage {
    /// The answer to an election: nothing changes, since there is no other replica to choose.
    pub fn elect_leaders(&self, request: &ElectLeadersRequest<'_>) -> ElectLeadersResponse<'static> {
        let kind = match request.election_type {
            0 => Ok(ElectionType::Preferred),
            1 => Ok(ElectionType::Unclean),
            other => Err((ErrorCode::INVALID_REQUEST, format!("Unknown election type {other}"))),
        };
        let results = match &request.topic_partitions {
            Some(topics) => topics.iter().map(|topic| self.elect_in(topic, &kind)).collect(),
            None if kind.is_err() => Vec::new(),
            None => self.elect_everywhere(),
        };
        ElectLeadersResponse {
            error_code: kind.err().map_or(0, |(code, _)| code.0),
            replica_election_results: results,
            ..ElectLeadersResponse::default()
        }
    }

    fn elect_in(
        &self,
        topic: &TopicPartitions<'_>,
        kind: &Result<ElectionType, (ErrorCode, String)>,
    ) -> ReplicaElectionResult<'static> {
        let results = topic.partitions.iter().map(|number| {
            let elected = kind.clone().and_then(|kind| elect(self.to_elect(&topic.topic, *number)?, kind));
            let (code, message) = elected.err().unwrap_or((ErrorCode::NONE, String::new()));
            PartitionResult {
                partition_id: *number,
                error_code: code.0,
                error_message: (code != ErrorCode::NONE).then_some(Cow::Owned(message)),
                ..PartitionResult::default()
            }
        });
        ReplicaElectionResult {
            topic: Cow::Owned(topic.topic.to_string()),
            partition_result: results.collect(),
            ..ReplicaElectionResult::default()
        }
    }

    /// Returns all topics without partitions: a request that names none gets no answer about those that need no election.
    fn elect_everywhere(&self) -> Vec<ReplicaElectionResult<'static>> {
        let topics = self.topics().map(|topic| ReplicaElectionResult {
            topic: Cow::Owned(topic.name.clone()),
            ..ReplicaElectionResult::default()
        });
        topics.collect()
    }

    fn to_elect(&self, topic: &str, number: i32) -> Result<&PartitionImage, (ErrorCode, String)> {
        let unknown = |what: &str| (ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, format!("No such {what}"));
        let topic = self.topic(topic).ok_or_else(|| unknown("topic"))?;
        let found = usize::try_from(number).ok().and_then(|number| topic.partitions.get(number));
        found.ok_or_else(|| unknown("partition"))
    }
}

fn elect(partition: &PartitionImage, kind: ElectionType) -> Result<(), (ErrorCode, String)> {
    let is_led = partition.leader >= 0;
    let code = match kind {
        ElectionType::Preferred if partition.preferred_leader() != Some(partition.leader) => {
            ErrorCode::PREFERRED_LEADER_NOT_AVAILABLE
        }
        ElectionType::Unclean if !is_led => ErrorCode::ELIGIBLE_LEADERS_NOT_AVAILABLE,
        _ => ErrorCode::ELECTION_NOT_NEEDED,
    };
    let message = match code {
        ErrorCode::ELECTION_NOT_NEEDED => "Leader election not needed for topic partition.",
        _ => "No other replica can lead the partition.",
    };
    Err((code, message.to_string()))
}
