//! Preferred leaders (KIP-460): the leader of a partition hands over to the first of its replicas.

use std::time::{Duration, Instant};

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::elect_leaders_request::ElectLeadersRequest;
use mainstem_wire::messages::elect_leaders_response::{
    ElectLeadersResponse, PartitionResult, ReplicaElectionResult,
};

use super::calls::{Answered, Ask, Who};
use super::leaders::{Leader, PartitionKey};
use super::{ANSWER_TIME, Cluster, LEADER_TIMEOUT};
use mainstem_requests::context::RequestContext;

/// The protocol's codes.
const PREFERRED: i8 = 0;
const UNCLEAN: i8 = 1;

/// Time in which a leader must answer that its partition gets its preferred leader, if no client waits.
const PREFERRED_TIME: Duration = Duration::from_secs(1);

/// Interval of the checks whether a transfer is done.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A partition that is to have another leader.
struct Election {
    topic: String,
    partition: i32,
    key: PartitionKey,
    /// The replica that is to lead.
    wanted: i32,
}

impl Cluster {
    /// Elects leaders, and waits until they lead.
    pub fn elect(
        &self,
        context: &RequestContext,
        request: &ElectLeadersRequest<'_>,
    ) -> ElectLeadersResponse<'static> {
        if !matches!(request.election_type, PREFERRED | UNCLEAN) {
            return ElectLeadersResponse {
                error_code: ErrorCode::INVALID_REQUEST.code(),
                ..Default::default()
            };
        }
        let asked: Vec<(String, i32)> = match &request.topic_partitions {
            Some(topics) => topics
                .iter()
                .flat_map(|topic| topic.partitions.iter().map(|index| (topic.topic.to_string(), *index)))
                .collect(),
            None => {
                let image = self.controller.image();
                let partitions = |topic: &mainstem_controller::TopicImage| (0..).take(topic.partitions.len());
                let all = image
                    .topics()
                    .flat_map(|topic| partitions(topic).map(|index| (topic.name.clone(), index)));
                all.collect()
            }
        };
        let who = Who::of(&self.local, context);
        let is_named = request.topic_partitions.is_some();
        let is_unclean = request.election_type == UNCLEAN;
        let mut results: Vec<(String, i32, ErrorCode)> = Vec::new();
        let mut elections = Vec::new();
        for (topic, partition) in asked {
            match self.begin_election((&topic, partition), is_unclean, Some(&who), ANSWER_TIME) {
                Ok(election) => elections.push(election),
                // A request that names no partitions gets no answer for those that need no election.
                Err(ErrorCode::ELECTION_NOT_NEEDED) if !is_named => {}
                Err(error) => results.push((topic, partition, error)),
            }
        }
        let deadline = self.local.clock.instant() + LEADER_TIMEOUT;
        for election in elections {
            let outcome = self.await_election(&election, deadline);
            results.push((election.topic, election.partition, outcome));
        }
        response(results)
    }

    /// Has preferred replicas lead that can and do not, and waits for none of them.
    pub(crate) fn prefer_replicas(&self) {
        let mut begun = 0;
        for topic in self.local.store.topics.all() {
            for partition in &topic.partitions {
                let of = (&*topic.name, partition.index);
                let election = self.begin_election(of, false, None, PREFERRED_TIME);
                begun += usize::from(election.is_ok());
            }
        }
        if begun > 0 {
            tracing::info!(partitions = begun, "preferred replicas lead again");
        }
    }

    /// Asks the leader of a partition to hand over to its preferred leader: for a client, or of this node's own accord. It has so much
    /// time to answer.
    fn begin_election(
        &self,
        (topic, index): (&str, i32),
        is_unclean: bool,
        who: Option<&Who>,
        time: Duration,
    ) -> Result<Election, ErrorCode> {
        let unknown = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
        let served = self.local.store.topics.by_name(topic).ok_or(unknown)?;
        let partition = served.partition(index).ok_or(unknown)?;
        let key = (served.id, index);
        let preferred = {
            let image = self.controller.image();
            let known = image.topic_by_id(served.id).zip(usize::try_from(index).ok());
            let known = known.and_then(|(topic, index)| topic.partitions.get(index)).ok_or(unknown)?;
            // While a move replaces all of them, none is.
            known.preferred_leader().ok_or(ErrorCode::PREFERRED_LEADER_NOT_AVAILABLE)?
        };
        let leader = self.leader_of_partition(served.id, index, partition);
        let leader = leader.filter(|leader| self.is_reachable(leader.node));
        let Some(Leader { node, isr, .. }) = leader else {
            return Err(match is_unclean {
                true => ErrorCode::ELIGIBLE_LEADERS_NOT_AVAILABLE,
                false => ErrorCode::PREFERRED_LEADER_NOT_AVAILABLE,
            });
        };
        if is_unclean || node == preferred {
            return Err(ErrorCode::ELECTION_NOT_NEEDED);
        }
        if !isr.contains(&preferred) || !self.is_reachable(preferred) {
            return Err(ErrorCode::PREFERRED_LEADER_NOT_AVAILABLE);
        }
        let ask = Ask::Transfer { topic: served.id.0, partition: index, to: preferred, who: who.cloned() };
        let deadline = self.local.clock.instant() + time;
        let answered = match node == self.own {
            true => self.ask(node, &ask),
            false => self.ask_while(node, &ask, || self.local.clock.instant() < deadline),
        };
        match answered {
            Answered::Is { .. } => {
                Ok(Election { topic: topic.to_owned(), partition: index, key, wanted: preferred })
            }
            Answered::Refused(code) if ErrorCode(code) == ErrorCode::CLUSTER_AUTHORIZATION_FAILED => {
                Err(ErrorCode::CLUSTER_AUTHORIZATION_FAILED)
            }
            _ => Err(ErrorCode::PREFERRED_LEADER_NOT_AVAILABLE),
        }
    }

    fn await_election(&self, election: &Election, deadline: Instant) -> ErrorCode {
        loop {
            let partition = self.local.store.topics.partition(&election.topic, election.partition);
            let leader = self.leader_of(election.key, partition.as_deref());
            if leader.is_some_and(|leader| leader.node == election.wanted) {
                return ErrorCode::NONE;
            }
            if self.local.clock.instant() >= deadline {
                return ErrorCode::REQUEST_TIMED_OUT;
            }
            mainstem_runtime::sync::sleep(LOOK_EVERY);
        }
    }
}

fn response(results: Vec<(String, i32, ErrorCode)>) -> ElectLeadersResponse<'static> {
    let mut topics: Vec<ReplicaElectionResult<'static>> = Vec::new();
    for (topic, partition_id, error) in results {
        let message = match error {
            ErrorCode::NONE => None,
            ErrorCode::ELECTION_NOT_NEEDED => Some("Leader election not needed for topic partition.".into()),
            error => Some(error.message().into()),
        };
        let result = PartitionResult {
            partition_id,
            error_code: error.code(),
            error_message: message,
            ..Default::default()
        };
        match topics.iter_mut().find(|known| known.topic == topic) {
            Some(known) => known.partition_result.push(result),
            None => topics.push(ReplicaElectionResult {
                topic: topic.into(),
                partition_result: vec![result],
                ..Default::default()
            }),
        }
    }
    ElectLeadersResponse { replica_election_results: topics, ..Default::default() }
}
