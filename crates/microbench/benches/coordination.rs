//! The group coordinator's most frequent requests: heartbeats of both protocols, and commits of offsets.

#![allow(clippy::unwrap_used, reason = "a bench may panic")]

use mainstem_coordination::groups::{
    Effect, GroupConfig, GroupCoordinator, Reply, Request, RequestContext, Token, VisibleTopics,
};
use mainstem_coordination::time::Now;
use mainstem_microbench::{Case, Suite};
use mainstem_wire::Uuid;
use mainstem_wire::messages::consumer_group_heartbeat_request::ConsumerGroupHeartbeatRequest;
use mainstem_wire::messages::heartbeat_request::HeartbeatRequest;
use mainstem_wire::messages::join_group_request::{JoinGroupRequest, JoinGroupRequestProtocol};
use mainstem_wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_wire::messages::sync_group_request::{SyncGroupRequest, SyncGroupRequestAssignment};

const NOW: Now = Now { mono_ms: 1_000, wall_ms: 1_700_000_000_000 };
const PARTITIONS: i32 = 6;

fn main() {
    let mut suite = Suite::from_args("coordination");
    let classic = || Group::joined(classic_member);
    suite.measure(Case { name: "heartbeat", calls: 1_000 }, classic, Group::heartbeat);
    let consumer = || Group::joined(consumer_member);
    suite.measure(Case { name: "consumer_heartbeat", calls: 1_000 }, consumer, Group::consumer_heartbeat);
    suite.measure(Case { name: "offset_commit_6", calls: 200 }, classic, Group::commit);
}

/// A coordinator with one group of one member, which has all partitions of a topic.
struct Group {
    coordinator: GroupCoordinator,
    member_id: String,
    epoch: i32,
    offset: i64,
}

impl Group {
    /// Makes a group with one member. `join` makes it a member and returns its id and its generation or epoch.
    fn joined(join: fn(&mut GroupCoordinator) -> (String, i32)) -> Group {
        let config = GroupConfig {
            offsets_topic_num_partitions: 1,
            group_initial_rebalance_delay_ms: 0,
            ..GroupConfig::default()
        };
        let mut coordinator = GroupCoordinator::new(config);
        coordinator.topic_changed("topic", Uuid([1; 16]), PARTITIONS);
        let loader = coordinator.begin_load(0);
        coordinator.finish_load(NOW, 0, loader);
        let (member_id, epoch) = join(&mut coordinator);
        Group { coordinator, member_id, epoch, offset: 0 }
    }

    fn heartbeat(&mut self) -> i16 {
        let request = HeartbeatRequest {
            group_id: "group".into(),
            generation_id: self.epoch,
            member_id: self.member_id.as_str().into(),
            ..Default::default()
        };
        match serve(&mut self.coordinator, 4, Request::Heartbeat(request)) {
            Reply::Heartbeat(response) if response.error_code == 0 => response.error_code,
            other => panic!("{other:?}"),
        }
    }

    fn consumer_heartbeat(&mut self) -> i32 {
        let request = ConsumerGroupHeartbeatRequest {
            group_id: "group".into(),
            member_id: self.member_id.as_str().into(),
            member_epoch: self.epoch,
            rebalance_timeout_ms: -1,
            ..Default::default()
        };
        consumer_beat(&mut self.coordinator, request).1
    }

    /// Commits the next offset of each partition.
    fn commit(&mut self) -> usize {
        self.offset += 1;
        let partition = |partition_index| OffsetCommitRequestPartition {
            partition_index,
            committed_offset: self.offset,
            ..Default::default()
        };
        let partitions = (0..PARTITIONS).map(partition).collect();
        let topic = OffsetCommitRequestTopic { name: "topic".into(), partitions, ..Default::default() };
        let request = OffsetCommitRequest {
            group_id: "group".into(),
            generation_id_or_member_epoch: self.epoch,
            member_id: self.member_id.as_str().into(),
            topics: vec![topic],
            ..Default::default()
        };
        match serve(&mut self.coordinator, 9, Request::OffsetCommit(request)) {
            Reply::OffsetCommit(response) => {
                assert!(response.topics[0].partitions.iter().all(|partition| partition.error_code == 0));
                response.topics.len()
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Serves a request until it is answered. Appends that the coordinator asks for complete at once.
fn serve(coordinator: &mut GroupCoordinator, api_version: i16, request: Request<'_>) -> Reply {
    let context = RequestContext {
        api_version,
        client_id: "consumer",
        client_host: "/127.0.0.1",
        visible: VisibleTopics::ALL,
    };
    coordinator.step(NOW, Token(1), context, request);
    let mut answer = None;
    loop {
        let mut tickets = Vec::new();
        for effect in coordinator.effects() {
            match effect {
                Effect::Append { ticket, .. } => tickets.push(ticket),
                Effect::Reply { reply, .. } => answer = Some(reply),
            }
        }
        if tickets.is_empty() {
            if let Some(answer) = answer {
                return answer;
            }
            let due_ms = coordinator.next_deadline_ms().expect("an answer waits for something");
            coordinator.tick(Now { mono_ms: due_ms.max(NOW.mono_ms), ..NOW });
        }
        tickets.into_iter().for_each(|ticket| coordinator.appended(NOW, ticket, Ok(())));
    }
}

fn classic_member(coordinator: &mut GroupCoordinator) -> (String, i32) {
    let protocol =
        JoinGroupRequestProtocol { name: "range".into(), metadata: b"m".into(), ..Default::default() };
    let join = JoinGroupRequest {
        group_id: "group".into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 60_000,
        protocol_type: "consumer".into(),
        protocols: vec![protocol],
        ..Default::default()
    };
    // Before version 4 a new member is accepted without an id: it need not send JoinGroup a second time.
    let Reply::JoinGroup(joined) =
        serve(coordinator, 3, Request::JoinGroup { request: join, random: [1; 16] })
    else {
        panic!("no answer to JoinGroup");
    };
    let member_id = joined.member_id.into_owned();
    let assignment = SyncGroupRequestAssignment {
        member_id: member_id.as_str().into(),
        assignment: b"a".into(),
        ..Default::default()
    };
    let sync = SyncGroupRequest {
        group_id: "group".into(),
        generation_id: joined.generation_id,
        member_id: member_id.as_str().into(),
        assignments: vec![assignment],
        ..Default::default()
    };
    serve(coordinator, 3, Request::SyncGroup(sync));
    (member_id, joined.generation_id)
}

fn consumer_member(coordinator: &mut GroupCoordinator) -> (String, i32) {
    let join = ConsumerGroupHeartbeatRequest {
        group_id: "group".into(),
        member_id: "member".into(),
        member_epoch: 0,
        rebalance_timeout_ms: 60_000,
        subscribed_topic_names: Some(vec!["topic".into()]),
        topic_partitions: Some(Vec::new()),
        ..Default::default()
    };
    consumer_beat(coordinator, join)
}

/// Sends a heartbeat of the new protocol (KIP-848). Returns the member's id and epoch from then on.
fn consumer_beat(
    coordinator: &mut GroupCoordinator,
    request: ConsumerGroupHeartbeatRequest<'_>,
) -> (String, i32) {
    match serve(coordinator, 1, Request::ConsumerGroupHeartbeat { request, random: [1; 16], patterns: None })
    {
        Reply::ConsumerGroupHeartbeat(response) if response.error_code == 0 => {
            (response.member_id.unwrap().into_owned(), response.member_epoch)
        }
        other => panic!("{other:?}"),
    }
}
