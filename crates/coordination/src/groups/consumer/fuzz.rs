//! A body for fuzzing: any requests to consumer groups, by members of both protocols, with transactions among them.

use mainstem_records::{ProducerEpoch, ProducerId};
use mainstem_wire::Uuid;
use mainstem_wire::messages::consumer_group_heartbeat_request::{
    ConsumerGroupHeartbeatRequest, TopicPartitions,
};
use mainstem_wire::messages::join_group_request::{JoinGroupRequest, JoinGroupRequestProtocol};
use mainstem_wire::messages::leave_group_request::{LeaveGroupRequest, MemberIdentity};
use mainstem_wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_wire::messages::offset_fetch_request::OffsetFetchRequestGroup;
use mainstem_wire::messages::sync_group_request::SyncGroupRequest;
use mainstem_wire::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};

use super::super::{
    Effect, GroupConfig, GroupCoordinator, Producer, Request, RequestContext, Token, TransactionEnd,
};
use crate::time::Now;

/// The only partition of `__consumer_offsets`.
const PARTITION: i32 = 0;
/// Bytes of one step.
const STEP: usize = 6;

/// Makes requests from the data and lets appends succeed or fail. No partition is ever held twice, all totals are right, and at the end
/// nothing is left.
pub(crate) fn requests(data: &[u8]) {
    let config = GroupConfig { offsets_topic_num_partitions: 1, ..GroupConfig::default() };
    let mut coordinator = GroupCoordinator::new(config);
    let mut now = Now { mono_ms: 1, wall_ms: 1 };
    let loader = coordinator.begin_load(PARTITION);
    coordinator.finish_load(now, PARTITION, loader);
    for (token, step) in (0..).zip(data.chunks_exact(STEP)) {
        let step: &[u8; STEP] = step.try_into().expect("chunks are exact");
        now.mono_ms += u64::from(step[5]) * 97;
        take(&mut coordinator, now, Token(token), step);
        settle(&mut coordinator, now, step[4] % 8 == 7);
        coordinator.tick(now);
        settle(&mut coordinator, now, false);
        coordinator.check();
    }
    coordinator.unload(now, PARTITION);
    assert_eq!((coordinator.next_deadline_ms(), coordinator.stats()), (None, Default::default()));
}

/// Takes one step: its bytes choose the request, the member, its epoch, its subscription and its partitions.
///
/// Transactions take the steps of heartbeats whose highest bit is set.
fn take(coordinator: &mut GroupCoordinator, now: Now, token: Token, step: &[u8; STEP]) {
    let [what, who, epoch, topics, ..] = *step;
    let member_id = format!("m{}", who % 5);
    let instance = (who & 0x40 != 0).then(|| format!("i{}", who % 3));
    let context = RequestContext {
        api_version: 4,
        client_id: "c",
        client_host: "/h",
        visible: crate::groups::VisibleTopics::ALL,
    };
    let request = match what % 8 {
        0 => return coordinator.topic_changed(topic(topics), id(topics), i32::from(epoch % 5) + 1),
        1 => return coordinator.topic_deleted(now, topic(topics)),
        2 => Request::JoinGroup { request: join(&member_id, instance, topics), random: [who; 16] },
        3 => Request::SyncGroup(SyncGroupRequest {
            group_id: "g".into(),
            member_id: member_id.into(),
            generation_id: i32::from(epoch),
            ..Default::default()
        }),
        4 => Request::LeaveGroup(LeaveGroupRequest {
            group_id: "g".into(),
            members: vec![MemberIdentity { member_id: member_id.into(), ..Default::default() }],
            ..Default::default()
        }),
        5 if what & 0x80 != 0 => transactional_commit(&member_id, step),
        6 if what & 0x80 != 0 => return end_transaction(coordinator, now, step),
        7 if what & 0x80 != 0 => offsets(&member_id, step),
        _ => Request::ConsumerGroupHeartbeat {
            request: beat(&member_id, instance, step),
            random: [who; 16],
            patterns: None,
        },
    };
    coordinator.step(now, token, context, request);
}

/// The epoch of a step; 253 to 255 are -3 to -1.
fn epoch_of(step: &[u8; STEP]) -> i32 {
    let epoch = step[2];
    if epoch > 252 { i32::from(epoch.cast_signed()) } else { i32::from(epoch) }
}

/// A commit by one of four producers, with or without a member.
fn transactional_commit(member_id: &str, step: &[u8; STEP]) -> Request<'static> {
    let [what, _, epoch, topics, owned, _] = *step;
    let partition = TxnOffsetCommitRequestPartition {
        partition_index: i32::from(owned & 3),
        committed_offset: i64::from(epoch),
        ..Default::default()
    };
    let topic = TxnOffsetCommitRequestTopic {
        name: topic(topics).into(),
        partitions: vec![partition],
        ..Default::default()
    };
    let says_nothing = what & 0x10 != 0;
    Request::TxnOffsetCommit(TxnOffsetCommitRequest {
        group_id: "g".into(),
        producer_id: i64::from(owned >> 6),
        member_id: if says_nothing { "".into() } else { member_id.to_owned().into() },
        generation_id: if says_nothing { -1 } else { epoch_of(step) },
        topics: vec![topic],
        ..Default::default()
    })
}

/// The marker of a producer's transaction is in the log, and durable.
fn end_transaction(coordinator: &mut GroupCoordinator, now: Now, step: &[u8; STEP]) {
    let producer = Producer { id: ProducerId::new(i64::from(step[4] >> 6)), epoch: ProducerEpoch::ZERO };
    let end = TransactionEnd { producer, committed: step[3] & 1 == 0 };
    assert_eq!(coordinator.may_end_transaction(PARTITION), Ok(()), "nothing is in flight between steps");
    let ticket = coordinator.transaction_ended(now, PARTITION, end).expect("the partition is served");
    coordinator.appended(now, ticket, Ok(()));
}

/// Makes a request about offsets, or one that deletes the group.
fn offsets(member_id: &str, step: &[u8; STEP]) -> Request<'static> {
    let [what, _, epoch, topics, owned, _] = *step;
    match (what >> 4) & 3 {
        0 => Request::DeleteGroup("g"),
        1 => Request::OffsetFetch {
            group: OffsetFetchRequestGroup { group_id: "g".into(), topics: None, ..Default::default() },
            require_stable: true,
        },
        _ => {
            let partition = OffsetCommitRequestPartition {
                partition_index: i32::from(owned & 3),
                committed_offset: i64::from(epoch),
                ..Default::default()
            };
            let topic = OffsetCommitRequestTopic {
                name: topic(topics).into(),
                partitions: vec![partition],
                ..Default::default()
            };
            Request::OffsetCommit(OffsetCommitRequest {
                group_id: "g".into(),
                member_id: member_id.to_owned().into(),
                generation_id_or_member_epoch: epoch_of(step),
                topics: vec![topic],
                ..Default::default()
            })
        }
    }
}

fn join(member_id: &str, instance: Option<String>, topics: u8) -> JoinGroupRequest<'static> {
    let name = topic(topics).as_bytes();
    let metadata = [&[0, 1, 0, 0, 0, 1, 0, 1], name, &[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]].concat();
    JoinGroupRequest {
        group_id: "g".into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 5_000,
        member_id: if topics & 0x80 == 0 { member_id.to_owned().into() } else { "".into() },
        group_instance_id: instance.map(Into::into),
        protocol_type: "consumer".into(),
        protocols: vec![JoinGroupRequestProtocol {
            name: "range".into(),
            metadata: metadata.into(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn beat(
    member_id: &str,
    instance: Option<String>,
    step: &[u8; STEP],
) -> ConsumerGroupHeartbeatRequest<'static> {
    let [what, _, _, topics, owned, _] = *step;
    let member_epoch = epoch_of(step);
    let joining = member_epoch == 0;
    let says = joining || what & 0x20 != 0;
    let regex = (topics & 0x40 != 0).then(|| ["a|b", ".*", "(", ""][usize::from(topics) % 4].into());
    let names =
        says.then(|| (0..3).filter(|bit| topics & (1 << bit) != 0).map(|bit| topic(bit).into()).collect());
    let partitions = (0..4).filter(|bit| owned & (1 << bit) != 0).collect();
    let has = TopicPartitions { topic_id: id(owned >> 6), partitions, ..Default::default() };
    let topic_partitions =
        (joining || what & 0x40 != 0).then(|| if joining { Vec::new() } else { vec![has] });
    ConsumerGroupHeartbeatRequest {
        group_id: "g".into(),
        member_id: member_id.to_owned().into(),
        member_epoch,
        instance_id: instance.map(Into::into),
        rebalance_timeout_ms: if says { 5_000 } else { -1 },
        subscribed_topic_names: names,
        subscribed_topic_regex: regex,
        server_assignor: (what & 0x10 != 0).then(|| if topics & 1 == 0 { "range" } else { "uniform" }.into()),
        topic_partitions,
        ..Default::default()
    }
}

fn topic(choice: u8) -> &'static str {
    ["a", "b", "c"][usize::from(choice) % 3]
}

fn id(choice: u8) -> Uuid {
    Uuid([choice % 3 + 1; 16])
}

/// Gives every append its outcome; only the last one can fail.
fn settle(coordinator: &mut GroupCoordinator, now: Now, fails: bool) {
    loop {
        let effects: Vec<Effect> = coordinator.effects().collect();
        let tickets = effects.iter().filter_map(|effect| match effect {
            Effect::Append { ticket, .. } => Some(*ticket),
            Effect::Reply { .. } => None,
        });
        let tickets: Vec<_> = tickets.collect();
        let Some((last, others)) = tickets.split_last() else { return };
        others.iter().for_each(|ticket| coordinator.appended(now, *ticket, Ok(())));
        let outcome = if fails { Err(mainstem_wire::ErrorCode::NOT_ENOUGH_REPLICAS) } else { Ok(()) };
        coordinator.appended(now, *last, outcome);
    }
}
