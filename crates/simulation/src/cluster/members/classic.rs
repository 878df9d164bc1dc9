//! Membership in a classic group: members join, assign the partitions among themselves, release all of them in a rebalance, and are
//! removed by the coordinator.

use super::{Group, Member, Position, Protocol, What};
use crate::cluster::{DATA_PARTITIONS, TOPIC};
use crate::node::{HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS};
use mainstem_coordination::groups::{self, Reply};
use mainstem_wire::ErrorCode;
use mainstem_wire::coordinator::{decode_with_version_or_newer, encode_with_version};
use mainstem_wire::messages::consumer_protocol_assignment::{ConsumerProtocolAssignment, TopicPartition};
use mainstem_wire::messages::consumer_protocol_subscription::ConsumerProtocolSubscription;
use mainstem_wire::messages::heartbeat_request::HeartbeatRequest;
use mainstem_wire::messages::join_group_request::{JoinGroupRequest, JoinGroupRequestProtocol};
use mainstem_wire::messages::join_group_response::JoinGroupResponse;
use mainstem_wire::messages::leave_group_request::{LeaveGroupRequest, MemberIdentity};
use mainstem_wire::messages::sync_group_request::{SyncGroupRequest, SyncGroupRequestAssignment};
use mainstem_wire::messages::sync_group_response::SyncGroupResponse;
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Time for members to rejoin, equal to the session timeout: no member has its partitions for longer than its session.
pub(super) const REBALANCE_TIMEOUT_MS: i32 = SESSION_TIMEOUT_MS;
/// The embedded consumer protocol: its type, assignor and version.
const PROTOCOL_TYPE: &str = "consumer";
const PROTOCOL: &str = "range";
const PROTOCOL_VERSION: i16 = 3;

const JOIN_VERSION: i16 = 9;
/// A version before KIP-394 and KIP-345: a member joins in one request, without an id.
const OLD_JOIN_VERSION: i16 = 3;
const SYNC_VERSION: i16 = 5;
const HEARTBEAT_VERSION: i16 = 4;
const LEAVE_VERSION: i16 = 5;

/// Step of a member between two generations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It has to join, once it has released its partitions.
    Joins,
    /// It is in a generation, and waits for its assignment.
    Syncs,
    /// It has its assignment.
    Assigned,
}

/// State of a member of a classic group. Its generation is [`Member::epoch`].
#[derive(Debug)]
pub(super) struct Membership {
    /// Empty until the coordinator has given it one.
    pub(super) id: String,
    /// `group.instance.id` of a static member (KIP-345).
    pub(super) instance: Option<String>,
    join_version: i16,
    stage: Stage,
    /// All member ids, if this member is the leader that assigns the partitions.
    assigns_to: Vec<String>,
}

impl Membership {
    /// Creates a member. Number 0 of each group is static, number 1 an old client.
    pub(super) fn new(group: &Group, number: usize) -> Membership {
        Membership {
            id: String::new(),
            instance: (number == 0).then(|| format!("{}-{number}", group.name)),
            join_version: if number == 1 { OLD_JOIN_VERSION } else { JOIN_VERSION },
            stage: Stage::Joins,
            assigns_to: Vec::new(),
        }
    }

    /// Lets it join again, with the id that it has.
    pub(super) fn begin(&mut self) {
        (self.stage, self.assigns_to) = (Stage::Joins, Vec::new());
    }

    /// Lets it join as a new member, without an id.
    pub(super) fn begin_as_new(&mut self) {
        self.begin();
        self.id.clear();
    }

    /// The request that brings it to its assignment; `None`: it has one.
    pub(super) fn next_question(&self) -> Option<What> {
        match self.stage {
            Stage::Joins => Some(What::Join),
            Stage::Syncs => Some(What::Sync),
            Stage::Assigned => None,
        }
    }

    fn instance(&self) -> Option<Cow<'static, str>> {
        self.instance.clone().map(Into::into)
    }

    /// A request of its membership, and the version of the request.
    pub(super) fn request(
        &self,
        group: &Group,
        generation: i32,
        what: What,
    ) -> (i16, groups::Request<'static>) {
        match what {
            What::Join => (self.join_version, self.join(group)),
            What::Sync => (SYNC_VERSION, groups::Request::SyncGroup(self.sync(group, generation))),
            What::Leave => {
                let member = MemberIdentity {
                    member_id: self.id.clone().into(),
                    group_instance_id: self.instance(),
                    ..Default::default()
                };
                let request = LeaveGroupRequest {
                    group_id: group.name.into(),
                    members: vec![member],
                    ..Default::default()
                };
                (LEAVE_VERSION, groups::Request::LeaveGroup(request))
            }
            What::Heartbeat | What::Fetch { .. } | What::Commit { .. } => {
                let request = HeartbeatRequest {
                    group_id: group.name.into(),
                    generation_id: generation,
                    member_id: self.id.clone().into(),
                    group_instance_id: self.instance(),
                    ..Default::default()
                };
                (HEARTBEAT_VERSION, groups::Request::Heartbeat(request))
            }
        }
    }

    fn join(&self, group: &Group) -> groups::Request<'static> {
        let subscription = ConsumerProtocolSubscription { topics: vec![TOPIC.into()], ..Default::default() };
        let metadata = encode_with_version(&subscription, PROTOCOL_VERSION).expect("a short name");
        let protocol = JoinGroupRequestProtocol {
            name: PROTOCOL.into(),
            metadata: metadata.into(),
            ..Default::default()
        };
        let request = JoinGroupRequest {
            group_id: group.name.into(),
            session_timeout_ms: SESSION_TIMEOUT_MS,
            rebalance_timeout_ms: REBALANCE_TIMEOUT_MS,
            member_id: self.id.clone().into(),
            group_instance_id: self.instance(),
            protocol_type: PROTOCOL_TYPE.into(),
            protocols: vec![protocol],
            ..Default::default()
        };
        // The driver draws the random part.
        groups::Request::JoinGroup { request, random: [0; 16] }
    }

    fn sync(&self, group: &Group, generation: i32) -> SyncGroupRequest<'static> {
        let members = self.assigns_to.len();
        let assignments = self.assigns_to.iter().enumerate().map(|(rank, member)| {
            let partitions = (0..DATA_PARTITIONS).filter(|partition| partition % members == rank);
            SyncGroupRequestAssignment {
                member_id: member.clone().into(),
                assignment: assignment_of(partitions).into(),
                ..Default::default()
            }
        });
        SyncGroupRequest {
            group_id: group.name.into(),
            generation_id: generation,
            member_id: self.id.clone().into(),
            group_instance_id: self.instance(),
            protocol_type: Some(PROTOCOL_TYPE.into()),
            protocol_name: Some(PROTOCOL.into()),
            assignments: assignments.collect(),
            ..Default::default()
        }
    }
}

fn assignment_of(partitions: impl Iterator<Item = usize>) -> Vec<u8> {
    let partitions = partitions.map(|partition| partition as i32).collect();
    let assigned_partitions = vec![TopicPartition { topic: TOPIC.into(), partitions }];
    let assignment = ConsumerProtocolAssignment { assigned_partitions, ..Default::default() };
    encode_with_version(&assignment, PROTOCOL_VERSION).expect("a short name")
}

/// Partitions of an assignment. It is empty for a member that the leader did not know when it assigned.
fn partitions_of(assignment: &[u8]) -> BTreeSet<usize> {
    if assignment.is_empty() {
        return BTreeSet::new();
    }
    let (assignment, _): (ConsumerProtocolAssignment<'_>, _) =
        decode_with_version_or_newer(assignment).expect("an assignment of ours");
    let topics = assignment.assigned_partitions.iter();
    topics.flat_map(|topic| &topic.partitions).map(|partition| *partition as usize).collect()
}

/// Reaction of a member to the error code of a membership response.
enum Remedy {
    /// None: there was no error.
    Nothing,
    /// Commit, release the partitions, and join again.
    JoinAgain,
    /// Drop the partitions, which others may own by now, and join again with its id.
    DropPartitions,
    /// Join as a new member.
    JoinAsNew,
    /// Retry soon.
    Wait,
}

fn remedy_of(error: ErrorCode) -> Remedy {
    match error {
        ErrorCode::NONE => Remedy::Nothing,
        ErrorCode::REBALANCE_IN_PROGRESS => Remedy::JoinAgain,
        ErrorCode::ILLEGAL_GENERATION => Remedy::DropPartitions,
        ErrorCode::UNKNOWN_MEMBER_ID | ErrorCode::FENCED_INSTANCE_ID | ErrorCode::GROUP_ID_NOT_FOUND => {
            Remedy::JoinAsNew
        }
        _ => Remedy::Wait,
    }
}

impl Member {
    fn classic(&mut self) -> &mut Membership {
        match &mut self.protocol {
            Protocol::Classic(membership) => membership,
            Protocol::Consumer { .. } => unreachable!("a member of a group of the consumer protocol"),
        }
    }

    /// Takes the answer to a JoinGroup, SyncGroup or Heartbeat that was sent at `sent_ms`. Returns the name of a counted event.
    pub(super) fn take_classic(&mut self, reply: &Reply, sent_ms: u64, now_ms: u64) -> Option<&'static str> {
        match reply {
            Reply::JoinGroup(response) => self.take_join(response, now_ms),
            Reply::SyncGroup(response) => self.take_sync(response, sent_ms, now_ms),
            Reply::Heartbeat(response) => {
                let error = ErrorCode(response.error_code);
                if error == ErrorCode::NONE {
                    self.note_answered(sent_ms, now_ms);
                }
                self.apply(error, now_ms)
            }
            // A leaving member does not care about the answer.
            _ => None,
        }
    }

    fn take_join(&mut self, response: &JoinGroupResponse<'_>, now_ms: u64) -> Option<&'static str> {
        let error = ErrorCode(response.error_code);
        if error == ErrorCode::MEMBER_ID_REQUIRED {
            self.classic().id = response.member_id.to_string();
            return None;
        }
        if error != ErrorCode::NONE {
            return self.apply(error, now_ms);
        }
        self.epoch = response.generation_id;
        let assigns = response.leader == response.member_id && !response.skip_assignment;
        let membership = self.classic();
        membership.id = response.member_id.to_string();
        membership.stage = Stage::Syncs;
        let members = response.members.iter().filter(|_| assigns);
        membership.assigns_to = members.map(|member| member.member_id.to_string()).collect();
        None
    }

    fn take_sync(
        &mut self,
        response: &SyncGroupResponse<'_>,
        sent_ms: u64,
        now_ms: u64,
    ) -> Option<&'static str> {
        let error = ErrorCode(response.error_code);
        if error != ErrorCode::NONE {
            // It gets no assignment in this generation.
            self.classic().begin();
            return self.apply(error, now_ms);
        }
        self.classic().stage = Stage::Assigned;
        self.note_answered(sent_ms, now_ms);
        self.assigned = partitions_of(&response.assignment);
        self.positions = self.assigned.iter().map(|partition| (*partition, Position::default())).collect();
        Some("generation joined")
    }

    /// Notes that the coordinator knew it as a member when it got the request.
    fn note_answered(&mut self, sent_ms: u64, now_ms: u64) {
        self.heard_ms = sent_ms;
        self.heartbeat_at_ms = now_ms + HEARTBEAT_INTERVAL_MS as u64;
    }

    /// Applies the remedy of an error code. Returns the name of a counted event.
    fn apply(&mut self, error: ErrorCode, now_ms: u64) -> Option<&'static str> {
        match remedy_of(error) {
            Remedy::Nothing => None,
            Remedy::JoinAgain => {
                self.assigned.clear();
                self.classic().begin();
                None
            }
            Remedy::DropPartitions => {
                self.assigned.clear();
                self.positions.clear();
                self.classic().begin();
                Some("generation missed")
            }
            Remedy::JoinAsNew => {
                let had_id = !self.classic().id.is_empty();
                self.rejoin();
                had_id.then_some("member thrown out")
            }
            Remedy::Wait => {
                self.back_off(now_ms);
                None
            }
        }
    }

    /// Handles a request that got no answer.
    pub(super) fn miss(&mut self, what: What, now_ms: u64) {
        if matches!(what, What::Sync) {
            // Its generation may have been assigned, and have ended since.
            self.classic().begin();
        }
        self.back_off(now_ms);
    }

    /// Handles a commit that was certainly refused. Returns the name of a counted event.
    pub(super) fn take_refused_commit(&mut self, error: ErrorCode, now_ms: u64) -> Option<&'static str> {
        match error {
            // The others have rebalanced without it: another member owns its partitions.
            ErrorCode::REBALANCE_IN_PROGRESS => self.apply(ErrorCode::ILLEGAL_GENERATION, now_ms),
            _ => self.apply(error, now_ms),
        }
    }
}

/// Returns true if this error code of a commit means that nothing was written.
pub(super) fn refuses_commit(error: ErrorCode) -> bool {
    !matches!(remedy_of(error), Remedy::Nothing | Remedy::Wait)
}
