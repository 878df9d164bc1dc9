//! A member of a consumer group by the classic protocol: joins, syncs, sends heartbeats, commits, leaves.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mainstem_wire::coordinator::{decode_with_version_or_newer, encode_with_version};
use mainstem_wire::messages::consumer_protocol_assignment::{self, ConsumerProtocolAssignment};
use mainstem_wire::messages::consumer_protocol_subscription::ConsumerProtocolSubscription;
use mainstem_wire::messages::heartbeat_request::HeartbeatRequest;
use mainstem_wire::messages::join_group_request::{JoinGroupRequest, JoinGroupRequestProtocol};
use mainstem_wire::messages::join_group_response::JoinGroupResponse;
use mainstem_wire::messages::leave_group_request::{LeaveGroupRequest, MemberIdentity};
use mainstem_wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_wire::messages::sync_group_request::{SyncGroupRequest, SyncGroupRequestAssignment};
use mainstem_wire::{ErrorCode, Request, Uuid};

use crate::assignor::{self, Assignment, RANGE};
use crate::client::{CallOptions, check, code_of, is_retriable};
use crate::cluster::Cluster;
use crate::committed::fetch_committed;
use crate::interrupt::Interrupt;

const PROTOCOL_TYPE: &str = "consumer";
/// Kafka's defaults for consumers.
const SESSION_TIMEOUT_MS: i32 = 45_000;
const REBALANCE_TIMEOUT_MS: i32 = 60_000;
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3);
/// A join or a sync waits for the slowest member.
const JOIN_TIMEOUT: Duration = Duration::from_millis(REBALANCE_TIMEOUT_MS as u64 + 5_000);
/// Between two attempts to join a group that was on the move.
const REJOIN_PAUSE: Duration = Duration::from_millis(50);
/// Version of the subscription and the assignment: no newer one says more here.
const PROTOCOL_VERSION: i16 = 1;

/// Whether the member may go on with its partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Standing {
    /// It may.
    Stable,
    /// The group rebalances: commit, then join again.
    Rebalancing,
    /// The group went on without this member: what was read since the last commit is read again by another.
    Lost,
}

/// The member, of a group that reads one topic.
#[derive(Debug)]
pub(crate) struct Member {
    group: String,
    topic: String,
    topic_id: Uuid,
    member_id: String,
    generation: i32,
    coordinator: Option<i32>,
    next_heartbeat: Instant,
}

impl Member {
    /// A member that has not joined yet.
    pub(crate) fn new(group: &str, topic: &str, topic_id: Uuid) -> Self {
        Member {
            group: group.to_owned(),
            topic: topic.to_owned(),
            topic_id,
            member_id: String::new(),
            generation: -1,
            coordinator: None,
            next_heartbeat: Instant::now(),
        }
    }

    /// Joins or joins again, until the group is stable; gives the partitions.
    pub(crate) fn join(&mut self, cluster: &mut Cluster, interrupt: &Interrupt) -> Result<Vec<i32>> {
        loop {
            let joined = self.join_once(cluster, interrupt);
            match joined.map_err(|error| (standing_of(&error), error)) {
                Ok(partitions) => {
                    self.next_heartbeat = Instant::now() + HEARTBEAT_INTERVAL;
                    return Ok(partitions);
                }
                Err((Some(Standing::Lost), _)) => self.forget(),
                Err((Some(_), _)) => {}
                Err((None, error)) => return Err(error),
            }
            if interrupt.is_raised() {
                bail!("interrupted while joining group {}", self.group);
            }
            thread::sleep(REJOIN_PAUSE);
        }
    }

    fn join_once(&mut self, cluster: &mut Cluster, interrupt: &Interrupt) -> Result<Vec<i32>> {
        let subscription =
            ConsumerProtocolSubscription { topics: vec![self.topic.clone().into()], ..Default::default() };
        let request = JoinGroupRequest {
            group_id: self.group.clone().into(),
            session_timeout_ms: SESSION_TIMEOUT_MS,
            rebalance_timeout_ms: REBALANCE_TIMEOUT_MS,
            member_id: self.member_id.clone().into(),
            protocol_type: PROTOCOL_TYPE.into(),
            protocols: vec![JoinGroupRequestProtocol {
                name: RANGE.into(),
                metadata: encode_with_version(&subscription, PROTOCOL_VERSION)?.into(),
                ..Default::default()
            }],
            ..Default::default()
        };
        let joined = self.call(cluster, &request, Some(interrupt), |group, member_id, response| {
            if response.error_code == ErrorCode::MEMBER_ID_REQUIRED.code() && member_id.is_empty() {
                // KIP-394: the id comes first, so that a join whose answer is lost leaves no member behind.
                *member_id = response.member_id.to_string();
                return Ok(None);
            }
            check(response.error_code, || format!("joining group {group}"))?;
            Joined::from_response(&response).map(Some)
        })?;
        let Some(joined) = joined else { return self.join_once(cluster, interrupt) };
        self.member_id = joined.member_id.clone();
        self.generation = joined.generation;
        self.sync(cluster, interrupt, &joined)
    }

    fn sync(&mut self, cluster: &mut Cluster, interrupt: &Interrupt, joined: &Joined) -> Result<Vec<i32>> {
        let assignments = match &joined.subscriptions {
            Some(subscriptions) => encode_assignments(&assign(cluster, subscriptions)?)?,
            None => Vec::new(),
        };
        let request = SyncGroupRequest {
            group_id: self.group.clone().into(),
            generation_id: self.generation,
            member_id: self.member_id.clone().into(),
            protocol_type: Some(PROTOCOL_TYPE.into()),
            protocol_name: Some(RANGE.into()),
            assignments,
            ..Default::default()
        };
        let topic = self.topic.clone();
        self.call(cluster, &request, Some(interrupt), |group, _, response| {
            check(response.error_code, || format!("the assignment of group {group}"))?;
            if response.assignment.is_empty() {
                return Ok(Vec::new());
            }
            let (assignment, _) =
                decode_with_version_or_newer::<ConsumerProtocolAssignment<'_>>(&response.assignment)?;
            let ours = assignment.assigned_partitions.into_iter().filter(|assigned| assigned.topic == topic);
            Ok(ours.flat_map(|assigned| assigned.partitions).collect())
        })
    }

    /// Where the group is in these partitions, as far as it has committed.
    pub(crate) fn committed(
        &mut self,
        cluster: &mut Cluster,
        partitions: &[i32],
    ) -> Result<BTreeMap<i32, i64>> {
        let committed = cluster.retrying(|cluster| {
            let coordinator = self.find_coordinator(cluster)?;
            let topic = Some((self.topic.as_str(), partitions));
            let committed = fetch_committed(cluster, coordinator, &self.group, topic);
            if committed.as_ref().is_err_and(is_retriable) {
                self.coordinator = None;
            }
            committed
        })?;
        Ok(committed.into_iter().map(|((_, partition), offset)| (partition, offset)).collect())
    }

    /// Tells the coordinator that the member lives, if it is time for that.
    pub(crate) fn heartbeat_if_due(&mut self, cluster: &mut Cluster) -> Result<Standing> {
        if Instant::now() < self.next_heartbeat {
            return Ok(Standing::Stable);
        }
        let request = HeartbeatRequest {
            group_id: self.group.clone().into(),
            generation_id: self.generation,
            member_id: self.member_id.clone().into(),
            ..Default::default()
        };
        let answer = self.call(cluster, &request, None, |group, _, response| {
            check(response.error_code, || format!("the heartbeat to group {group}"))
        });
        self.next_heartbeat = Instant::now() + HEARTBEAT_INTERVAL;
        self.standing(answer)
    }

    /// Commits the offsets of the next records to read.
    pub(crate) fn commit(
        &mut self,
        cluster: &mut Cluster,
        positions: &BTreeMap<i32, i64>,
    ) -> Result<Standing> {
        let partition = |(index, offset): (&i32, &i64)| OffsetCommitRequestPartition {
            partition_index: *index,
            committed_offset: *offset,
            committed_metadata: Some("".into()),
            ..Default::default()
        };
        let request = OffsetCommitRequest {
            group_id: self.group.clone().into(),
            generation_id_or_member_epoch: self.generation,
            member_id: self.member_id.clone().into(),
            topics: vec![OffsetCommitRequestTopic {
                name: self.topic.clone().into(),
                topic_id: self.topic_id,
                partitions: positions.iter().map(partition).collect(),
                ..Default::default()
            }],
            ..Default::default()
        };
        let answer = self.call(cluster, &request, None, |group, _, response| {
            let mut partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
            partitions.try_for_each(|partition| {
                let index = partition.partition_index;
                check(partition.error_code, || format!("the commit of group {group} for partition {index}"))
            })
        });
        self.standing(answer)
    }

    /// Leaves, so that the others need not wait for the session's end.
    pub(crate) fn leave(&mut self, cluster: &mut Cluster) -> Result<()> {
        if self.member_id.is_empty() {
            return Ok(());
        }
        let request = LeaveGroupRequest {
            group_id: self.group.clone().into(),
            members: vec![MemberIdentity { member_id: self.member_id.clone().into(), ..Default::default() }],
            ..Default::default()
        };
        self.call(cluster, &request, None, |group, _, response| {
            let code = response.members.first().map_or(0, |member| member.error_code);
            let code = if response.error_code == 0 { code } else { response.error_code };
            match ErrorCode::from(code) {
                ErrorCode::UNKNOWN_MEMBER_ID => Ok(()),
                _ => check(code, || format!("leaving group {group}")),
            }
        })
    }

    fn forget(&mut self) {
        self.member_id.clear();
        self.generation = -1;
    }

    fn standing(&mut self, answer: Result<()>) -> Result<Standing> {
        match answer {
            Ok(()) => Ok(Standing::Stable),
            Err(error) => standing_of(&error).ok_or(error),
        }
    }

    fn find_coordinator(&mut self, cluster: &mut Cluster) -> Result<i32> {
        let coordinator = match self.coordinator {
            Some(coordinator) => coordinator,
            None => cluster.find_coordinator(&self.group)?,
        };
        self.coordinator = Some(coordinator);
        Ok(coordinator)
    }

    /// Calls the coordinator, which is looked up again before another attempt. `read` gets the group's name and the
    /// member id, which it may set.
    fn call<'q, R: Request<'q>, T>(
        &mut self,
        cluster: &mut Cluster,
        request: &R,
        interrupt: Option<&Interrupt>,
        mut read: impl FnMut(&str, &mut String, R::Response<'_>) -> Result<T>,
    ) -> Result<T> {
        let options = CallOptions { timeout: JOIN_TIMEOUT, interrupt, ..Default::default() };
        cluster.retrying(|cluster| {
            let coordinator = self.find_coordinator(cluster)?;
            let (group, member_id) = (&self.group, &mut self.member_id);
            let client = cluster.node(coordinator);
            let answer = client
                .and_then(|client| client.call_with(request, options))
                .and_then(|response| read(group, member_id, response));
            if answer.as_ref().is_err_and(is_retriable) {
                self.coordinator = None;
            }
            answer
        })
    }
}

/// What an error of the coordinator says about the member; none if it is another kind of error.
fn standing_of(error: &anyhow::Error) -> Option<Standing> {
    match code_of(error)? {
        ErrorCode::REBALANCE_IN_PROGRESS => Some(Standing::Rebalancing),
        ErrorCode::UNKNOWN_MEMBER_ID | ErrorCode::ILLEGAL_GENERATION => Some(Standing::Lost),
        _ => None,
    }
}

/// What a join says.
struct Joined {
    member_id: String,
    generation: i32,
    /// Topics by member, if this member is to assign them.
    subscriptions: Option<BTreeMap<String, Vec<String>>>,
}

impl Joined {
    fn from_response(response: &JoinGroupResponse<'_>) -> Result<Joined> {
        let leads = response.leader == response.member_id && !response.skip_assignment;
        let mut subscriptions = BTreeMap::new();
        for member in &response.members {
            let (subscription, _) =
                decode_with_version_or_newer::<ConsumerProtocolSubscription<'_>>(&member.metadata)
                    .with_context(|| format!("the subscription of member {}", member.member_id))?;
            let topics = subscription.topics.iter().map(|topic| topic.to_string()).collect();
            subscriptions.insert(member.member_id.to_string(), topics);
        }
        Ok(Joined {
            member_id: response.member_id.to_string(),
            generation: response.generation_id,
            subscriptions: leads.then_some(subscriptions),
        })
    }
}

fn assign(
    cluster: &mut Cluster,
    subscriptions: &BTreeMap<String, Vec<String>>,
) -> Result<BTreeMap<String, Assignment>> {
    let mut partitions = BTreeMap::new();
    for topic in subscriptions.values().flatten() {
        if !partitions.contains_key(topic)
            && let Some(found) = cluster.find_topic(topic)?
        {
            partitions.insert(topic.clone(), found.partitions.len() as i32);
        }
    }
    Ok(assignor::assign_ranges(subscriptions, &partitions))
}

fn encode_assignments(
    assignments: &BTreeMap<String, Assignment>,
) -> Result<Vec<SyncGroupRequestAssignment<'static>>> {
    let encode = |(member, topics): (&String, &Assignment)| {
        let topic =
            |(topic, partitions): (&String, &Vec<i32>)| consumer_protocol_assignment::TopicPartition {
                topic: topic.clone().into(),
                partitions: partitions.clone(),
            };
        let assignment = ConsumerProtocolAssignment {
            assigned_partitions: topics.iter().map(topic).collect(),
            ..Default::default()
        };
        Ok(SyncGroupRequestAssignment {
            member_id: member.clone().into(),
            assignment: encode_with_version(&assignment, PROTOCOL_VERSION)?.into(),
            ..Default::default()
        })
    };
    assignments.iter().map(encode).collect()
}
