//! A member with a scripted coordinator, for cases that a real one has too seldom.

use mainstem_wire::messages::consumer_group_heartbeat_request::ConsumerGroupHeartbeatRequest;
use mainstem_wire::messages::consumer_group_heartbeat_response::{
    Assignment, ConsumerGroupHeartbeatResponse, TopicPartitions,
};
use mainstem_wire::messages::fetch_response::{FetchResponse, FetchableTopicResponse, PartitionData};
use mainstem_wire::messages::heartbeat_response::HeartbeatResponse;
use mainstem_wire::messages::join_group_request::JoinGroupRequest;
use mainstem_wire::messages::join_group_response::JoinGroupResponse;
use mainstem_wire::messages::leave_group_request::LeaveGroupRequest;
use mainstem_wire::messages::leave_group_response::LeaveGroupResponse;
use mainstem_wire::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsResponse, ListOffsetsTopicResponse,
};
use mainstem_wire::messages::offset_commit_request::OffsetCommitRequest;
use mainstem_wire::messages::offset_commit_response::{
    OffsetCommitResponse, OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use mainstem_wire::messages::offset_fetch_request::OffsetFetchRequest;
use mainstem_wire::messages::offset_fetch_response::{
    OffsetFetchResponse, OffsetFetchResponsePartition, OffsetFetchResponseTopic,
};
use mainstem_wire::messages::sync_group_response::SyncGroupResponse;
use mainstem_wire::messages::txn_offset_commit_request::TxnOffsetCommitRequest;
use mainstem_wire::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponse, TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use mainstem_wire::{ApiKey, Uuid};
use tokio::sync::watch;

use super::super::handover::{Offer, hand_over};
use super::super::protocol::{decode_subscription, encode_assignment};
use super::*;
use crate::ClientConfig;
use crate::testing::{Answered, Asked, ScriptedBroker, WAIT_TIMEOUT, answer};

fn t(partition: i32) -> TopicPartition {
    TopicPartition::new("t", partition)
}

fn member(client: ClientConfig, hooks: impl RebalanceHooks + 'static) -> GroupConsumer {
    let config = GroupConfig {
        auto_commit: None,
        heartbeat_interval: Duration::from_millis(10),
        ..GroupConfig::new("g", ["t"], ConsumerConfig::new(client))
    };
    GroupConsumer::with_hooks(config, hooks).unwrap()
}

/// Reports the generation of each commit; the answer to all is to wait.
fn refuse_commits(asked: &mut Asked<'_>, generations: &mpsc::UnboundedSender<i32>) -> Answered {
    if asked.api_key != ApiKey::OffsetCommit {
        return None;
    }
    let request: OffsetCommitRequest<'_> = asked.decode().unwrap();
    generations.send(request.generation_id_or_member_epoch).unwrap();
    answer_commit(asked, ErrorCode::COORDINATOR_LOAD_IN_PROGRESS.code())
}

fn answer_commit(asked: &Asked<'_>, error_code: i16) -> Answered {
    let partitions = vec![OffsetCommitResponsePartition { error_code, ..Default::default() }];
    let topics = vec![OffsetCommitResponseTopic { name: "t".into(), partitions, ..Default::default() }];
    answer(asked, &OffsetCommitResponse { topics, ..Default::default() })
}

/// Takes a member into a generation that another one leads.
fn joined(generation_id: i32) -> JoinGroupResponse<'static> {
    JoinGroupResponse {
        generation_id,
        protocol_type: Some("consumer".into()),
        protocol_name: Some("cooperative-sticky".into()),
        leader: "other".into(),
        member_id: "m".into(),
        ..Default::default()
    }
}

fn answer_sync(asked: &Asked<'_>, partition: i32) -> Answered {
    let assignment = encode_assignment(&BTreeSet::from([t(partition)])).unwrap();
    answer(asked, &SyncGroupResponse { assignment: assignment.into(), ..Default::default() })
}

#[tokio::test]
async fn a_commit_ends_with_the_loss_of_its_partition() {
    let (sender, mut generations) = mpsc::unbounded_channel();
    let broker = ScriptedBroker::start(1, move |asked| refuse_commits(asked, &sender));
    let mut member = member(broker.client(), NoHooks);
    let is_in = |generation| Identity { member_id: "m".to_owned(), generation };
    *member.shared.identity.lock() = is_in(3);
    member.assign(BTreeMap::from([(t(0), Position::Offset(5).into())])).await;
    let commit = member.offsets.start(&BTreeMap::from([(t(0), 5)]), Absent::Awaited);
    assert_eq!(generations.recv().await, Some(3));
    member.change = Some(Change::notice(What::Lost));
    member.take_over().await.unwrap();
    *member.shared.identity.lock() = is_in(5);
    member.assign(BTreeMap::from([(t(0), Position::Offset(9).into())])).await;
    let ended = tokio::time::timeout(WAIT_TIMEOUT, commit).await.expect("it is stopped");
    assert_eq!(ended, Err(Error::CommitFailed { group: "g".into(), partition: t(0) }));
    while let Ok(generation) = generations.try_recv() {
        assert_eq!(generation, 3, "others may have committed more by then");
    }
}

/// The partition comes back before the commit's task has run at all.
#[tokio::test]
async fn a_commit_is_of_what_was_held_when_it_was_asked_for() {
    let (sender, mut generations) = mpsc::unbounded_channel();
    let broker = ScriptedBroker::start(1, move |asked| refuse_commits(asked, &sender));
    let mut member = member(broker.client(), NoHooks);
    *member.shared.identity.lock() = Identity { member_id: "m".to_owned(), generation: 3 };
    member.assign(BTreeMap::from([(t(0), Position::Offset(5).into())])).await;
    let commit = member.offsets.start(&BTreeMap::from([(t(0), 5)]), Absent::Awaited);
    member.keep_only(|_| false);
    member.shared.held.lock().take([t(0)]);
    let ended = tokio::time::timeout(WAIT_TIMEOUT, commit).await.expect("it is stopped");
    assert_eq!(ended, Err(Error::CommitFailed { group: "g".into(), partition: t(0) }));
    assert!(generations.try_recv().is_err(), "nothing is asked of the coordinator");
}

/// The member has its new generation before the coordinator takes a commit again.
#[tokio::test]
async fn a_commit_outlasts_a_rebalance_in_which_its_partition_is_kept() {
    let (sender, mut generations) = mpsc::unbounded_channel();
    let broker = ScriptedBroker::start(1, move |asked| {
        if asked.api_key != ApiKey::OffsetCommit {
            return None;
        }
        let request: OffsetCommitRequest<'_> = asked.decode().unwrap();
        let generation = request.generation_id_or_member_epoch;
        sender.send(generation).unwrap();
        let error_code = match generation {
            3 => ErrorCode::REBALANCE_IN_PROGRESS.code(),
            4 => ErrorCode::STALE_MEMBER_EPOCH.code(),
            _ => 0,
        };
        answer_commit(asked, error_code)
    });
    let mut member = member(broker.client(), NoHooks);
    let is_in = |generation| Identity { member_id: "m".to_owned(), generation };
    *member.shared.identity.lock() = is_in(3);
    member.assign(BTreeMap::from([(t(0), Position::Offset(5).into())])).await;
    let commit = member.offsets.start(&BTreeMap::from([(t(0), 5)]), Absent::Awaited);
    for generation in 3..5 {
        while generations.recv().await != Some(generation) {}
        *member.shared.identity.lock() = is_in(generation + 1);
    }
    let done = tokio::time::timeout(WAIT_TIMEOUT, commit).await;
    assert_eq!(done.expect("it is done"), Ok(()));
    assert_eq!(std::iter::from_fn(|| generations.try_recv().ok()).last(), Some(5));
}

/// A coordinator that assigns partition 0 in generation 1 and takes commits in generation 2. That one begins by the member's own
/// join, but the member knows of it only when a commit of generation 1 has been refused.
struct Ahead {
    rebalances: bool,
    has_refused: bool,
    is_joining: watch::Sender<bool>,
}

impl Ahead {
    fn serve(&mut self, asked: &mut Asked<'_>) -> Answered {
        match asked.api_key {
            ApiKey::JoinGroup => {
                let request: JoinGroupRequest<'_> = asked.decode().unwrap();
                let is_first = request.member_id.is_empty();
                self.is_joining.send_replace(!is_first);
                if is_first || self.has_refused {
                    return answer(asked, &joined(if is_first { 1 } else { 2 }));
                }
                let error_code = ErrorCode::COORDINATOR_LOAD_IN_PROGRESS.code();
                answer(asked, &JoinGroupResponse { error_code, ..Default::default() })
            }
            ApiKey::SyncGroup => answer_sync(asked, 0),
            ApiKey::Heartbeat => {
                let ends = self.rebalances && !self.has_refused;
                let error_code = if ends { ErrorCode::REBALANCE_IN_PROGRESS.code() } else { 0 };
                answer(asked, &HeartbeatResponse { error_code, ..Default::default() })
            }
            ApiKey::OffsetFetch => answer(asked, &OffsetFetchResponse::default()),
            ApiKey::OffsetCommit => {
                let request: OffsetCommitRequest<'_> = asked.decode().unwrap();
                let error_code = self.check(request.generation_id_or_member_epoch);
                answer_commit(asked, error_code)
            }
            ApiKey::TxnOffsetCommit => {
                let request: TxnOffsetCommitRequest<'_> = asked.decode().unwrap();
                let error_code = self.check(request.generation_id);
                let partitions = vec![TxnOffsetCommitResponsePartition { error_code, ..Default::default() }];
                let topics =
                    vec![TxnOffsetCommitResponseTopic { name: "t".into(), partitions, ..Default::default() }];
                answer(asked, &TxnOffsetCommitResponse { topics, ..Default::default() })
            }
            _ => None,
        }
    }

    fn check(&mut self, generation: i32) -> i16 {
        self.has_refused |= generation < 2;
        if generation < 2 { ErrorCode::ILLEGAL_GENERATION.code() } else { 0 }
    }
}

/// A member that has partition 0 in generation 1 of such a group.
async fn behind(rebalances: bool) -> (GroupConsumer, ScriptedBroker, watch::Receiver<bool>) {
    let (is_joining, joins) = watch::channel(false);
    let mut coordinator = Ahead { rebalances, has_refused: false, is_joining };
    let broker = ScriptedBroker::start(1, move |asked| coordinator.serve(asked));
    let mut member = member(broker.client(), NoHooks);
    let GroupEvent::Assigned(assigned) = member.next_event().await.unwrap() else { panic!("it has joined") };
    assert_eq!(assigned, BTreeMap::from([(t(0), None)]));
    (member, broker, joins)
}

/// Commits as a member, or in the transaction of a producer.
async fn commit(offsets: &GroupOffsets, is_in_transaction: bool) -> Result<(), Error> {
    let done = BTreeMap::from([(t(0), 5)]);
    let (producer_id, producer_epoch) = (ProducerId::new(1), ProducerEpoch::ZERO);
    let transaction = Transaction { id: "t", producer_id, producer_epoch, is_v2: true };
    match is_in_transaction {
        true => offsets.commit_in_transaction(&done, &transaction).await,
        false => offsets.commit(&done).await,
    }
}

#[tokio::test]
async fn a_commit_outlasts_a_generation_that_ends_before_the_member_knows() {
    for is_in_transaction in [false, true] {
        let (member, _broker, mut joins) = behind(true).await;
        joins.wait_for(|is_joining| *is_joining).await.unwrap();
        assert_eq!(commit(member.offsets(), is_in_transaction).await, Ok(()));
        assert_eq!(member.shared.identity.lock().generation, 2);
    }
}

#[tokio::test]
async fn a_commit_in_a_generation_that_is_not_the_groups_is_refused_at_once() {
    for is_in_transaction in [false, true] {
        let (member, _broker, _joins) = behind(false).await;
        let refused = commit(member.offsets(), is_in_transaction).await.unwrap_err();
        assert_eq!(refused.code(), Some(ErrorCode::ILLEGAL_GENERATION), "{refused}");
    }
}

#[tokio::test]
async fn a_commit_of_what_another_member_has_is_refused_at_once() {
    let (sender, mut generations) = mpsc::unbounded_channel();
    let broker = ScriptedBroker::start(2, move |asked| refuse_commits(asked, &sender));
    let mut member = member(broker.client(), NoHooks);
    *member.shared.identity.lock() = Identity { member_id: "m".to_owned(), generation: 3 };
    member.assign(BTreeMap::from([t(0), t(1)].map(|key| (key, Position::Offset(5).into())))).await;
    member.revoke(&BTreeSet::from([t(0)])).await;
    // A worker is done with what it was given before.
    let done = BTreeMap::from([(t(0), 7), (t(1), 7)]);
    let expected = Error::CommitFailed { group: "g".into(), partition: t(0) };
    let (producer_id, producer_epoch) = (ProducerId::new(1), ProducerEpoch::ZERO);
    let in_transaction = Transaction { id: "t", producer_id, producer_epoch, is_v2: true };
    let offsets = member.offsets();
    assert_eq!(offsets.commit(&done).await, Err(expected.clone()));
    assert_eq!(offsets.commit_in_transaction(&done, &in_transaction).await, Err(expected));
    assert_eq!(generations.try_recv().ok(), None, "no broker was asked");
}

#[tokio::test]
async fn no_hook_is_called_for_no_partition() {
    let broker = ScriptedBroker::start(1, |_| None);
    let (sender, mut reports) = mpsc::unbounded_channel();
    let mut member = member(broker.client(), ReportingHooks(sender));
    for what in [What::Revoked(BTreeSet::from([t(0)])), What::Assigned(BTreeMap::new()), What::Lost] {
        member.change = Some(Change::notice(what));
        member.take_over().await.unwrap();
    }
    let (sender, mut changes) = mpsc::unbounded_channel();
    let offer = Offer::default();
    let begin = BTreeMap::from([(t(0), handover::Begin { start: Position::End.into(), committed: None })]);
    let done = hand_over(&sender, What::Assigned(begin.clone()), offer.clone());
    assert!(offer.withdraw());
    member.change = changes.recv().await;
    member.take_over().await.unwrap();
    done.await.unwrap();
    assert_eq!((reports.try_recv().ok(), member.assignment()), (None, vec![]));
    let offer = Offer::default();
    let done = hand_over(&sender, What::Assigned(begin), offer.clone());
    member.change = changes.recv().await;
    member.take_over().await.unwrap();
    assert!(!offer.withdraw(), "it is read already");
    done.await.unwrap();
    assert_eq!((reports.try_recv().unwrap(), member.assignment()), ("assigned 1".to_owned(), vec![t(0)]));
}

#[tokio::test]
async fn a_revocation_that_was_overtaken_gives_up_nothing_that_comes_back() {
    let broker = ScriptedBroker::start(1, |_| None);
    let mut member = member(broker.client(), NoHooks);
    let begin = BTreeMap::from([(t(0), handover::Begin { start: Position::End.into(), committed: None })]);
    let (sender, mut changes) = mpsc::unbounded_channel();
    let mut event = async |what: What| {
        let waits = hand_over(&sender, what, Offer::default());
        let event = member.begin_change(changes.recv().await.unwrap()).unwrap().unwrap();
        (event, waits)
    };
    assert!(matches!(event(What::Assigned(begin.clone())).await.0, GroupEvent::Assigned(_)));
    let (GroupEvent::Revoking(revoking), waits) = event(What::Revoked(BTreeSet::from([t(0)]))).await else {
        panic!("it is to be revoked")
    };
    assert_eq!(*revoking.partitions(), BTreeSet::from([t(0)]));
    // The member is thrown out, and joins again.
    drop(waits);
    assert!(matches!(event(What::Lost).await.0, GroupEvent::Lost(lost) if lost == BTreeSet::from([t(0)])));
    assert!(matches!(event(What::Assigned(begin)).await.0, GroupEvent::Assigned(_)));
    member.finish_revocation(revoking);
    assert_eq!(member.assignment(), [t(0)]);
}

#[tokio::test]
async fn who_waits_for_a_member_that_panics_is_reported() {
    let (changes, mut heard) = mpsc::unbounded_channel();
    let alarm = Alarm { group_id: "g".into(), changes };
    let panics = tokio::spawn(async move {
        let _alarm = alarm;
        panic!("on purpose");
    });
    let change = heard.recv().await.expect("the consumer is notified");
    let what = "the member of group g".to_owned();
    assert!(matches!(&change.what, What::Failed(error) if *error == Error::Panicked { what }));
    assert!(panics.await.unwrap_err().is_panic());
}

/// The leader of both partitions: nothing can be read of the first one, and the other's offsets are not found.
fn lead_badly(asked: &mut Asked<'_>) -> Answered {
    match asked.api_key {
        ApiKey::Fetch => {
            let error_code = ErrorCode::OFFSET_OUT_OF_RANGE.code();
            let partition = PartitionData { partition_index: 0, error_code, ..Default::default() };
            let topic = FetchableTopicResponse {
                topic_id: Uuid::from_u128(7),
                partitions: vec![partition],
                ..Default::default()
            };
            answer(asked, &FetchResponse { responses: vec![topic], ..Default::default() })
        }
        ApiKey::ListOffsets => {
            let error_code = ErrorCode::NOT_LEADER_OR_FOLLOWER.code();
            let partition =
                ListOffsetsPartitionResponse { partition_index: 1, error_code, ..Default::default() };
            let partitions = vec![partition];
            let topic = ListOffsetsTopicResponse { name: "t".into(), partitions, ..Default::default() };
            answer(asked, &ListOffsetsResponse { topics: vec![topic], ..Default::default() })
        }
        _ => None,
    }
}

#[tokio::test]
async fn what_was_read_of_a_partition_that_has_failed_is_committed_when_it_is_revoked() {
    let (sender, mut commits) = mpsc::unbounded_channel();
    let broker = ScriptedBroker::start(2, move |asked| {
        if asked.api_key != ApiKey::OffsetCommit {
            return lead_badly(asked);
        }
        let request: OffsetCommitRequest<'_> = asked.decode().unwrap();
        let offsets = request.topics[0].partitions.iter();
        let offsets: Vec<_> = offsets.map(|one| (one.partition_index, one.committed_offset)).collect();
        sender.send(offsets).unwrap();
        answer(asked, &OffsetCommitResponse::default())
    });
    let (sender, mut reports) = mpsc::unbounded_channel();
    let mut member = member(broker.client(), ReportingHooks(sender));
    *member.shared.identity.lock() = Identity { member_id: "m".to_owned(), generation: 3 };
    let begin = [(t(0), Position::Offset(5).into()), (t(1), Position::End.into())];
    member.assign(BTreeMap::from(begin)).await;
    let failed = tokio::time::timeout(WAIT_TIMEOUT, member.consumer.next()).await;
    let failed = failed.expect("it is reported").unwrap_err();
    assert_eq!(failed.code(), Some(ErrorCode::OFFSET_OUT_OF_RANGE));
    member.commit().await.unwrap();
    assert_eq!(commits.try_recv().ok(), Some(vec![(0, 5)]));
    member.revoke(&BTreeSet::from([t(0), t(1)])).await;
    assert_eq!(reports.try_recv().ok().as_deref(), Some("assigned 2"));
    assert_eq!(
        reports.try_recv().ok().as_deref(),
        Some("revoked 2"),
        "all, whatever is known of their positions"
    );
    assert_eq!(commits.try_recv().ok(), Some(vec![(0, 5)]));
    assert_eq!(member.assignment(), vec![]);
}

/// A coordinator that assigns partition 0 in the first generation and partition 1 in all others, whose offset a
/// transaction holds back; each heartbeat asks for the next generation.
#[derive(Default)]
struct Coordinator {
    generation: i32,
    /// The partitions that the member claims when it joins.
    joins: Vec<BTreeSet<TopicPartition>>,
}

impl Coordinator {
    fn serve(&mut self, asked: &mut Asked<'_>) -> Answered {
        match asked.api_key {
            ApiKey::JoinGroup => {
                let request: JoinGroupRequest<'_> = asked.decode().unwrap();
                self.joins.push(decode_subscription(&request.protocols[0].metadata).unwrap().owned);
                self.generation += 1;
                answer(asked, &joined(self.generation))
            }
            ApiKey::SyncGroup => answer_sync(asked, i32::from(self.generation > 1)),
            ApiKey::Heartbeat => {
                let error_code = ErrorCode::REBALANCE_IN_PROGRESS.code();
                answer(asked, &HeartbeatResponse { error_code, ..Default::default() })
            }
            ApiKey::OffsetCommit => answer(asked, &OffsetCommitResponse::default()),
            ApiKey::OffsetFetch => {
                let request: OffsetFetchRequest<'_> = asked.decode().unwrap();
                let partition_index = request.topics.unwrap()[0].partition_indexes[0];
                let error_code =
                    if partition_index == 0 { 0 } else { ErrorCode::UNSTABLE_OFFSET_COMMIT.code() };
                let one = OffsetFetchResponsePartition {
                    partition_index,
                    error_code,
                    committed_offset: 5,
                    ..Default::default()
                };
                let topic = OffsetFetchResponseTopic {
                    name: "t".into(),
                    partitions: vec![one],
                    ..Default::default()
                };
                answer(asked, &OffsetFetchResponse { topics: vec![topic], ..Default::default() })
            }
            _ => None,
        }
    }
}

#[tokio::test]
async fn no_reader_waits_for_offsets_but_the_partitions_they_are_of() {
    let coordinator = Arc::new(parking_lot::Mutex::new(Coordinator::default()));
    let served = coordinator.clone();
    let broker = ScriptedBroker::start(2, move |asked| served.lock().serve(asked));
    let (sender, mut reports) = mpsc::unbounded_channel();
    let mut member = member(broker.client(), ReportingHooks(sender));
    let reading = tokio::spawn(async move { member.next().await });
    // The third join lets others have what was revoked in the second generation, the fourth is one for which others wait.
    eventually("it joins again", async || coordinator.lock().joins.len() >= 4).await;
    let owned: Vec<BTreeSet<_>> = coordinator.lock().joins[..4].to_vec();
    let expected = [vec![], vec![t(0)], vec![t(1)], vec![t(1)]];
    assert_eq!(owned, expected.map(BTreeSet::from_iter));
    assert_eq!(reports.recv().await.unwrap(), "assigned 1");
    assert_eq!(reports.recv().await.unwrap(), "revoked 1");
    assert_eq!(reports.try_recv().ok(), None, "the offset is not known yet");
    reading.abort();
}

#[tokio::test]
async fn who_stops_while_it_joins_leaves_under_the_name_that_it_was_given() {
    let (sender, mut asked_for) = mpsc::unbounded_channel();
    let broker = ScriptedBroker::start(1, move |asked| match asked.api_key {
        ApiKey::JoinGroup => {
            let request: JoinGroupRequest<'_> = asked.decode().unwrap();
            let (error_code, member_id) = (ErrorCode::MEMBER_ID_REQUIRED.code(), "m".into());
            sender.send(format!("join {}", request.member_id)).unwrap();
            let named = JoinGroupResponse { error_code, member_id, ..Default::default() };
            // With a name it waits for others.
            if request.member_id.is_empty() { answer(asked, &named) } else { None }
        }
        ApiKey::LeaveGroup => {
            let request: LeaveGroupRequest<'_> = asked.decode().unwrap();
            sender.send(format!("leave {}", request.members[0].member_id)).unwrap();
            answer(asked, &LeaveGroupResponse::default())
        }
        _ => None,
    });
    let member = member(broker.client(), NoHooks);
    assert_eq!(asked_for.recv().await.unwrap(), "join ");
    assert_eq!(asked_for.recv().await.unwrap(), "join m");
    member.close().await.unwrap();
    assert_eq!(asked_for.try_recv().ok().as_deref(), Some("leave m"));
}

/// A coordinator that assigns a partition whose offset it withholds. It reports its requests, with the member of each.
fn withhold_offsets(asked: &mut Asked<'_>, heard: &mpsc::UnboundedSender<String>) -> Answered {
    match asked.api_key {
        ApiKey::JoinGroup => answer(asked, &joined(1)),
        ApiKey::SyncGroup => answer_sync(asked, 0),
        ApiKey::Heartbeat => answer(asked, &HeartbeatResponse::default()),
        ApiKey::ConsumerGroupHeartbeat => {
            let request: ConsumerGroupHeartbeatRequest<'_> = asked.decode().unwrap();
            heard.send(format!("epoch {}", request.member_epoch)).unwrap();
            let partitions = vec![TopicPartitions {
                topic_id: Uuid::from_u128(7),
                partitions: vec![0],
                ..Default::default()
            }];
            let assigned = ConsumerGroupHeartbeatResponse {
                member_epoch: 1,
                heartbeat_interval_ms: 3_600_000,
                assignment: Some(Box::new(Assignment { topic_partitions: partitions, ..Default::default() })),
                ..Default::default()
            };
            answer(asked, &assigned)
        }
        ApiKey::OffsetFetch => {
            let error_code = ErrorCode::GROUP_AUTHORIZATION_FAILED.code();
            answer(asked, &OffsetFetchResponse { error_code, ..Default::default() })
        }
        ApiKey::LeaveGroup => {
            let request: LeaveGroupRequest<'_> = asked.decode().unwrap();
            heard.send(format!("leave {}", request.members[0].member_id)).unwrap();
            answer(asked, &LeaveGroupResponse::default())
        }
        _ => None,
    }
}

#[tokio::test]
async fn who_cannot_go_on_leaves() {
    let protocols = [
        (GroupProtocol::Classic, vec!["leave m"]),
        (GroupProtocol::Consumer { assignor: None }, vec!["epoch 0", "epoch -1"]),
    ];
    for (protocol, expected) in protocols {
        let (sender, mut reports) = mpsc::unbounded_channel();
        let broker = ScriptedBroker::start(1, move |asked| withhold_offsets(asked, &sender));
        let config = GroupConfig::new("g", ["t"], ConsumerConfig::new(broker.client())).protocol(protocol);
        let mut member = GroupConsumer::new(config).unwrap();
        let failed = tokio::time::timeout(WAIT_TIMEOUT, member.next()).await;
        let failed = failed.expect("it is reported").unwrap_err();
        assert_eq!(failed.code(), Some(ErrorCode::GROUP_AUTHORIZATION_FAILED));
        for expected in expected {
            let heard = tokio::time::timeout(WAIT_TIMEOUT, reports.recv()).await;
            assert_eq!(heard.expect("others are not kept waiting").as_deref(), Some(expected));
        }
        assert_eq!(reports.try_recv().ok(), None);
        assert_eq!(member.shared.identity.lock().generation, -1, "it commits nothing any more");
    }
}

/// A hook that never ends.
struct Endless;

impl RebalanceHooks for Endless {
    fn revoked<'a>(
        &'a mut self,
        _partitions: &'a BTreeSet<TopicPartition>,
        _positions: &'a BTreeMap<TopicPartition, i64>,
        _offsets: &'a GroupOffsets,
    ) -> HookFuture<'a> {
        Box::pin(std::future::pending())
    }
}

/// A hook that reports revoked partitions.
struct Telling(mpsc::UnboundedSender<BTreeSet<TopicPartition>>);

impl RebalanceHooks for Telling {
    fn revoked<'a>(
        &'a mut self,
        partitions: &'a BTreeSet<TopicPartition>,
        _positions: &'a BTreeMap<TopicPartition, i64>,
        _offsets: &'a GroupOffsets,
    ) -> HookFuture<'a> {
        let _ = self.0.send(partitions.clone());
        Box::pin(std::future::ready(()))
    }
}

/// A member of generation 3 that has read a partition, of a coordinator that lets commits wait; what that reports.
async fn waiting(
    auto_commit: Option<Duration>,
    hooks: impl RebalanceHooks + 'static,
) -> (GroupConsumer, ScriptedBroker, mpsc::UnboundedReceiver<i32>) {
    let (sender, reports) = mpsc::unbounded_channel();
    let broker = ScriptedBroker::start(1, move |asked| match asked.api_key {
        ApiKey::LeaveGroup => {
            sender.send(LEFT).unwrap();
            answer(asked, &LeaveGroupResponse::default())
        }
        _ => refuse_commits(asked, &sender),
    });
    let config = GroupConfig::new("g", ["t"], ConsumerConfig::new(broker.client()));
    let mut member = GroupConsumer::with_hooks(GroupConfig { auto_commit, ..config }, hooks).unwrap();
    *member.shared.identity.lock() = Identity { member_id: "m".to_owned(), generation: 3 };
    member.assign(BTreeMap::from([(t(0), Position::Offset(5).into())])).await;
    (member, broker, reports)
}

/// The report of leaving among the generations of commits.
const LEFT: i32 = -1;

#[tokio::test]
async fn closing_has_a_limit_and_leaves_the_group_all_the_same() {
    let often = Some(Duration::ZERO);
    let mut is_asked = false;
    // A machine that stands still may take a short time before the commit is asked for.
    for limit_ms in [50, 500, 5_000] {
        let (sender, mut revoked) = mpsc::unbounded_channel();
        let (member, _broker, mut reports) = waiting(often, Telling(sender)).await;
        closed_within(limit_ms, member, LAST_COMMIT, limit_ms / 2).await;
        let heard: Vec<i32> = std::iter::from_fn(|| reports.try_recv().ok()).collect();
        assert_eq!(heard.last(), Some(&LEFT));
        assert_eq!(
            revoked.try_recv().ok(),
            Some(BTreeSet::from([t(0)])),
            "a commit leaves time for the hook"
        );
        is_asked = heard.first() == Some(&3);
        if is_asked {
            break;
        }
    }
    assert!(is_asked, "the commit is tried");

    let (mut member, _broker, mut reports) = waiting(often, NoHooks).await;
    member.start_commit_if_due().await;
    assert_eq!(reports.recv().await, Some(3));
    closed_within(50, member, LAST_COMMIT, 25).await;
    let heard: Vec<i32> = std::iter::from_fn(|| reports.try_recv().ok()).collect();
    assert_eq!(heard.last(), Some(&LEFT), "a commit under way is stopped");

    let (member, _broker, mut reports) = waiting(None, Endless).await;
    closed_within(50, member, "releasing the partitions of group g", 50).await;
    assert_eq!(reports.try_recv().ok(), Some(LEFT), "a hook is waited for no longer");
}

/// The operation in the error of a commit that is cut short. It has half of the time.
const LAST_COMMIT: &str = "the last commit of group g";

/// Closes a member within a time that is not enough, and of which `what` has the part `after_ms`.
async fn closed_within(limit_ms: u64, member: GroupConsumer, what: &str, after_ms: u64) {
    let closing = member.close_within(Duration::from_millis(limit_ms));
    let closed = tokio::time::timeout(WAIT_TIMEOUT, closing).await;
    let (what, after) = (what.to_owned(), Duration::from_millis(after_ms));
    assert_eq!(closed.expect("there is a limit"), Err(Error::TimedOut { what, after, last: None }));
}

#[tokio::test]
async fn a_topic_that_was_deleted_holds_up_no_handing_over() {
    let broker = ScriptedBroker::start(1, |asked| {
        if asked.api_key != ApiKey::OffsetCommit {
            return None;
        }
        answer_commit(asked, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.code())
    });
    let config = GroupConfig::new("g", ["t"], ConsumerConfig::new(broker.client()));
    let mut member = GroupConsumer::new(config).unwrap();
    *member.shared.identity.lock() = Identity { member_id: "m".to_owned(), generation: 3 };
    member.assign(BTreeMap::from([(t(0), Position::Offset(5).into())])).await;
    let revoked = BTreeSet::from([t(0)]);
    let revoked_all = tokio::time::timeout(WAIT_TIMEOUT, member.revoke(&revoked)).await;
    revoked_all.expect("nothing is waited for that may never come");
    assert_eq!(member.assignment(), vec![]);
}
