//! A member of a group, step by step.

use std::time::Duration;

use mainstem_broker::ManualClock;
use mainstem_tests::client::{Client, Reachable};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::describe_groups_request::DescribeGroupsRequest;
use mainstem_wire::messages::heartbeat_request::HeartbeatRequest;
use mainstem_wire::messages::join_group_request::{JoinGroupRequest, JoinGroupRequestProtocol};
use mainstem_wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_wire::messages::sync_group_request::{SyncGroupRequest, SyncGroupRequestAssignment};

use crate::groups::{GROUP, TOPIC};

const JOIN: i16 = 9;
const SYNC: i16 = 5;

/// Longer than any test takes.
pub(crate) const LONG_MS: i32 = 60_000;

/// A member with a connection of its own.
pub(crate) struct Member {
    pub(crate) client: Client,
    pub(crate) id: String,
    pub(crate) instance: Option<String>,
    pub(crate) generation: i32,
    pub(crate) session_timeout_ms: i32,
    pub(crate) rebalance_timeout_ms: i32,
    pub(crate) protocol: &'static str,
}

/// The answer to a join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Joined {
    pub(crate) error: ErrorCode,
    pub(crate) leader: String,
    /// The ids of all members; only the leader gets them.
    pub(crate) members: Vec<String>,
}

impl Member {
    pub(crate) fn new(broker: &impl Reachable) -> Member {
        Member {
            client: broker.connect(),
            id: String::new(),
            instance: None,
            generation: -1,
            session_timeout_ms: LONG_MS,
            rebalance_timeout_ms: LONG_MS,
            protocol: "range",
        }
    }

    pub(crate) fn with_instance(broker: &impl Reachable, instance: &str) -> Member {
        Member { instance: Some(instance.to_owned()), ..Member::new(broker) }
    }

    /// Asks for an id (KIP-394) if it has none. The next join then waits for the rebalance.
    pub(crate) fn ask_for_id(&mut self) {
        if self.id.is_empty() && self.instance.is_none() {
            self.send_join();
            assert_eq!(self.joined().error, ErrorCode::MEMBER_ID_REQUIRED);
        }
    }

    /// Sends a join without waiting.
    pub(crate) fn send_join(&mut self) {
        let protocol = JoinGroupRequestProtocol {
            name: self.protocol.into(),
            metadata: b"subscription"[..].into(),
            ..Default::default()
        };
        let request = JoinGroupRequest {
            group_id: GROUP.into(),
            session_timeout_ms: self.session_timeout_ms,
            rebalance_timeout_ms: self.rebalance_timeout_ms,
            member_id: self.id.clone().into(),
            group_instance_id: self.instance.clone().map(Into::into),
            protocol_type: "consumer".into(),
            protocols: vec![protocol],
            ..Default::default()
        };
        self.client.send(&request, JOIN).unwrap();
    }

    /// Waits for the answer to a join.
    pub(crate) fn joined(&mut self) -> Joined {
        let (_, response) = self.client.receive::<JoinGroupRequest<'_>>(JOIN).unwrap();
        let error = ErrorCode::from(response.error_code);
        if matches!(error, ErrorCode::NONE | ErrorCode::MEMBER_ID_REQUIRED) {
            self.id = response.member_id.to_string();
            self.generation = response.generation_id;
        }
        let members = response.members.iter().map(|member| member.member_id.to_string());
        Joined { error, leader: response.leader.to_string(), members: members.collect() }
    }

    /// Joins and waits.
    pub(crate) fn join(&mut self) -> Joined {
        self.ask_for_id();
        self.send_join();
        self.joined()
    }

    /// Joins an empty group, and advances the clock by the initial delay of the rebalance.
    pub(crate) fn join_at(&mut self, clock: &ManualClock) -> Joined {
        self.ask_for_id();
        self.send_join();
        clock.advance_until(Duration::from_millis(1), || self.client.has_answer());
        self.joined()
    }

    /// Sends a sync. The leader assigns each member its id.
    pub(crate) fn send_sync(&mut self, members: &[String]) {
        let assignments = members.iter().map(|id| SyncGroupRequestAssignment {
            member_id: id.clone().into(),
            assignment: id.clone().into_bytes().into(),
            ..Default::default()
        });
        let request = SyncGroupRequest {
            group_id: GROUP.into(),
            generation_id: self.generation,
            member_id: self.id.clone().into(),
            group_instance_id: self.instance.clone().map(Into::into),
            protocol_type: Some("consumer".into()),
            protocol_name: Some(self.protocol.into()),
            assignments: assignments.collect(),
            ..Default::default()
        };
        self.client.send(&request, SYNC).unwrap();
    }

    /// The answer to a sync.
    pub(crate) fn synced(&mut self) -> Result<String, ErrorCode> {
        let (_, response) = self.client.receive::<SyncGroupRequest<'_>>(SYNC).unwrap();
        match response.error_code {
            0 => Ok(String::from_utf8(response.assignment.to_vec()).unwrap()),
            code => Err(ErrorCode::from(code)),
        }
    }

    /// Sends a sync and waits.
    pub(crate) fn sync(&mut self, members: &[String]) -> Result<String, ErrorCode> {
        self.send_sync(members);
        self.synced()
    }

    pub(crate) fn heartbeat(&mut self) -> ErrorCode {
        let request = HeartbeatRequest {
            group_id: GROUP.into(),
            generation_id: self.generation,
            member_id: self.id.clone().into(),
            group_instance_id: self.instance.clone().map(Into::into),
            ..Default::default()
        };
        ErrorCode::from(self.client.call(&request, 4).error_code)
    }

    /// Commits an offset of partition 0 as this member.
    pub(crate) fn commit(&mut self, offset: i64) -> ErrorCode {
        let partition = OffsetCommitRequestPartition {
            partition_index: 0,
            committed_offset: offset,
            ..Default::default()
        };
        let topic = OffsetCommitRequestTopic {
            name: TOPIC.into(),
            partitions: vec![partition],
            ..Default::default()
        };
        let request = OffsetCommitRequest {
            group_id: GROUP.into(),
            generation_id_or_member_epoch: self.generation,
            member_id: self.id.clone().into(),
            group_instance_id: self.instance.clone().map(Into::into),
            topics: vec![topic],
            ..Default::default()
        };
        ErrorCode::from(self.client.call(&request, 9).topics[0].partitions[0].error_code)
    }
}

/// Makes a stable group of these members, with the first as leader.
pub(crate) fn assemble(members: &mut [Member]) {
    members[0].join();
    share_out(members);
}

/// The same with a clock that the test advances: without that the first join into an empty group gets no answer.
pub(crate) fn assemble_at(clock: &ManualClock, members: &mut [Member]) {
    members[0].join_at(clock);
    share_out(members);
}

fn share_out(members: &mut [Member]) {
    let (leader, followers) = members.split_first_mut().unwrap();
    for count in 0..followers.len() {
        // Each new member makes all others join again.
        let (known, new) = followers.split_at_mut(count);
        new[0].ask_for_id();
        new[0].send_join();
        wait_until_known(leader, count + 2);
        for member in known.iter_mut() {
            member.send_join();
        }
        let joined = leader.join();
        assert_eq!((joined.error, joined.members.len()), (ErrorCode::NONE, count + 2));
        for member in known.iter_mut().chain([&mut new[0]]) {
            assert_eq!(member.joined().error, ErrorCode::NONE);
        }
    }
    let ids: Vec<String> =
        [&leader.id].into_iter().chain(followers.iter().map(|member| &member.id)).cloned().collect();
    assert_eq!(leader.sync(&ids), Ok(leader.id.clone()));
    for member in followers {
        assert_eq!(member.sync(&[]), Ok(member.id.clone()));
    }
}

/// Waits until the group has so many members, including those that wait for their join.
pub(crate) fn wait_until_known(member: &mut Member, count: usize) {
    mainstem_tests::wait::eventually("members to be known", || {
        (describe(&mut member.client).1.len() == count).then_some(())
    });
}

/// The group's state and the ids of its members.
pub(crate) fn describe(client: &mut Client) -> (String, Vec<String>) {
    let request = DescribeGroupsRequest { groups: vec![GROUP.into()], ..Default::default() };
    let response = client.call(&request, 6);
    let group = &response.groups[0];
    let members = group.members.iter().map(|member| member.member_id.to_string());
    (group.group_state.to_string(), members.collect())
}
