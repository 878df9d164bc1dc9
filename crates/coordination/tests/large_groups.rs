//! Requests about a large group hold the coordinator, and so all other groups, no longer than those about a small one. Measured is what is
//! allocated while the coordinator serves the request, which is to show members and offsets.
#![allow(unsafe_code, reason = "an allocator that counts is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use mainstem_coordination::groups::{
    Effect, GroupConfig, GroupCoordinator, LISTED_AT_ONCE, ListFilter, Reply, Request, RequestContext, Token,
    VisibleTopics, offset_fetch,
};
use mainstem_coordination::time::Now;
use mainstem_wire::Uuid;
use mainstem_wire::messages::consumer_group_describe_request::ConsumerGroupDescribeRequest;
use mainstem_wire::messages::consumer_group_heartbeat_request::ConsumerGroupHeartbeatRequest;
use mainstem_wire::messages::describe_groups_request::DescribeGroupsRequest;
use mainstem_wire::messages::join_group_request::{JoinGroupRequest, JoinGroupRequestProtocol};
use mainstem_wire::messages::list_groups_request::ListGroupsRequest;
use mainstem_wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};

/// Bytes that a request may take while it is served, whatever the size of its group.
const SERVED_BYTES_MAX: usize = 4096;
const PARTITION: i32 = 0;
const NOW: Now = Now { mono_ms: 1_000, wall_ms: 1_000_000 };

struct Counting;

thread_local! {
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: all requests go to the system's allocator unchanged; the counter is thread-local and does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // After the end of the thread's storage nothing is measured any more.
        let _ = BYTES.try_with(|bytes| bytes.set(bytes.get() + layout.size()));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A coordinator of one partition whose appends are durable at once.
struct Node {
    coordinator: GroupCoordinator,
    replies: Vec<Reply>,
    now: Now,
}

impl Node {
    fn new() -> Self {
        let config = GroupConfig { offsets_topic_num_partitions: 1, ..GroupConfig::default() };
        let mut coordinator = GroupCoordinator::new(config);
        let loader = coordinator.begin_load(PARTITION);
        coordinator.finish_load(NOW, PARTITION, loader);
        Self { coordinator, replies: Vec::new(), now: NOW }
    }

    /// Serves a request; the answers so far are in `replies`.
    fn serve(&mut self, api_version: i16, request: Request<'_>) {
        let context = RequestContext {
            api_version,
            client_id: "client",
            client_host: "/127.0.0.1",
            visible: VisibleTopics::ALL,
        };
        self.coordinator.step(self.now, Token(1), context, request);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        loop {
            let effects: Vec<Effect> = self.coordinator.effects().collect();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                match effect {
                    Effect::Append { ticket, .. } => self.coordinator.appended(self.now, ticket, Ok(())),
                    Effect::Reply { reply, .. } => self.replies.push(reply),
                }
            }
        }
    }

    /// Lets time pass until the coordinator's next deadline.
    fn wait(&mut self) {
        self.now.mono_ms =
            self.coordinator.next_deadline_ms().expect("it waits for something").max(self.now.mono_ms);
        self.coordinator.tick(self.now);
        self.carry_out();
    }

    /// The answer to a request, and the number of bytes that the coordinator allocated while it served it.
    fn measure(&mut self, api_version: i16, request: Request<'_>) -> (Reply, usize) {
        self.replies.clear();
        let before = BYTES.get();
        self.serve(api_version, request);
        let bytes = BYTES.get() - before;
        (self.replies.pop().expect("it is answered at once"), bytes)
    }

    fn commit(&mut self, group: &str, topic: &str, partitions: std::ops::Range<i32>, offset: i64) {
        let partition = |partition_index| OffsetCommitRequestPartition {
            partition_index,
            committed_offset: offset,
            committed_metadata: Some("m".into()),
            ..Default::default()
        };
        let topic = OffsetCommitRequestTopic {
            name: topic.into(),
            partitions: partitions.map(partition).collect(),
            ..Default::default()
        };
        let request = OffsetCommitRequest {
            group_id: group.into(),
            generation_id_or_member_epoch: -1,
            topics: vec![topic],
            ..Default::default()
        };
        self.serve(9, Request::OffsetCommit(request));
    }
}

fn fetch(group: &str) -> Request<'static> {
    let group = offset_fetch::Fetch {
        group_id: group.to_owned().into(),
        topics: None,
        member_epoch: -1,
        ..Default::default()
    };
    Request::OffsetFetch { group, require_stable: true }
}

#[test]
fn offsets_of_a_large_group_are_fetched_as_they_were_at_one_moment_and_in_no_more_bytes() {
    for count in [10, 100_000] {
        let mut node = Node::new();
        node.commit("g", "t", 0..count, 5);
        let (reply, bytes) = node.measure(9, fetch("g"));
        assert!(bytes <= SERVED_BYTES_MAX, "{bytes} bytes for {count} offsets");
        let before = BYTES.get();
        node.commit("g", "t", 0..1, 6);
        let changed = BYTES.get() - before;
        assert!(
            changed <= 16 * SERVED_BYTES_MAX,
            "{changed} bytes for a commit while {count} offsets are read"
        );
        let Reply::OffsetFetch(fetched) = reply else { panic!("{reply:?}") };
        let response = fetched.response();
        let partitions = &response.topics[0].partitions;
        assert_eq!(i32::try_from(partitions.len()), Ok(count));
        assert!(
            partitions.iter().all(|partition| partition.committed_offset == 5),
            "it is not of one moment"
        );
        node.coordinator.check();
    }
}

/// Makes a classic group of `count` members, all of which know their generation.
fn join_classic(node: &mut Node, count: usize) {
    for _ in 0..count {
        let protocol = JoinGroupRequestProtocol {
            name: "range".into(),
            metadata: b"metadata".as_slice().into(),
            ..Default::default()
        };
        let request = JoinGroupRequest {
            group_id: "g".into(),
            session_timeout_ms: 60_000,
            rebalance_timeout_ms: 60_000,
            protocol_type: "test".into(),
            protocols: vec![protocol],
            ..Default::default()
        };
        let random = u128::try_from(node.replies.len()).expect("small").to_be_bytes();
        node.serve(3, Request::JoinGroup { request, random });
        node.replies.push(Reply::DeleteGroup(mainstem_wire::ErrorCode::NONE));
    }
    while !node.replies.iter().any(|reply| matches!(reply, Reply::JoinGroup(_))) {
        node.wait();
    }
    // The leader does not assign anything here: a time-out ends the generation's first phase, and others are asked to rejoin.
    node.commit("g", "t", 0..1, 5);
}

#[test]
fn a_large_classic_group_is_described_in_no_more_bytes() {
    for count in [10, 2_000] {
        let mut node = Node::new();
        join_classic(&mut node, count);
        let request = DescribeGroupsRequest { groups: vec!["g".into()], ..Default::default() };
        let (reply, bytes) = node.measure(5, Request::DescribeGroups(request));
        assert!(bytes <= SERVED_BYTES_MAX, "{bytes} bytes for {count} members");
        let Reply::DescribeGroups(groups) = reply else { panic!("{reply:?}") };
        assert_eq!(groups[0].response().members.len(), count);
        node.coordinator.check();
    }
}

#[test]
fn a_large_consumer_group_is_described_in_no_more_bytes() {
    for count in [10, 1_000] {
        let mut node = Node::new();
        node.coordinator.topic_changed("t", Uuid::from_u128(1), count);
        for number in 0..count {
            let request = ConsumerGroupHeartbeatRequest {
                group_id: "g".into(),
                member_id: format!("m{number}").into(),
                member_epoch: 0,
                rebalance_timeout_ms: 60_000,
                subscribed_topic_names: Some(vec!["t".into()]),
                topic_partitions: Some(Vec::new()),
                ..Default::default()
            };
            node.serve(1, Request::ConsumerGroupHeartbeat { request, random: [0; 16], patterns: None });
        }
        let request = ConsumerGroupDescribeRequest { group_ids: vec!["g".into()], ..Default::default() };
        let (reply, bytes) = node.measure(1, Request::ConsumerGroupDescribe(request));
        assert!(bytes <= SERVED_BYTES_MAX, "{bytes} bytes for {count} members");
        let Reply::ConsumerGroupDescribe(groups) = reply else { panic!("{reply:?}") };
        assert_eq!(i32::try_from(groups[0].response().members.len()), Ok(count));
        node.coordinator.check();
    }
}

#[test]
fn groups_are_listed_in_parts_of_which_each_looks_at_a_bounded_number() {
    let mut node = Node::new();
    let count = 3 * LISTED_AT_ONCE + 7;
    for number in 0..count {
        node.commit(&format!("group-{number:05}"), "t", 0..1, 5);
    }
    let filter =
        ListFilter::of(&ListGroupsRequest { states_filter: vec!["EMPTY".into()], ..Default::default() });
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        node.replies.clear();
        node.serve(5, Request::ListGroups { filter: filter.clone(), after });
        let Some(Reply::ListGroups(part)) = node.replies.pop() else { panic!("{:?}", node.replies) };
        assert_eq!(part.response.error_code, 0);
        assert!(part.looked_at <= LISTED_AT_ONCE, "it looked at {} groups", part.looked_at);
        listed.extend(part.response.groups.into_iter().map(|group| group.group_id.into_owned()));
        // Groups come and go meanwhile.
        node.commit(&format!("group-{:05}-between", listed.len()), "t", 0..1, 5);
        after = part.next;
        if after.is_none() {
            break;
        }
    }
    assert!(listed.is_sorted_by(|one, next| one < next), "a group is listed twice");
    let old = listed.iter().filter(|group| !group.ends_with("-between")).count();
    assert_eq!(old, count, "each group that was there all the time is listed");
}
