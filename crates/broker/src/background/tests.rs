//! One event loop, all of whose background threads are taken. Requests for the background wait for one of them, and
//! other connections are answered meanwhile.

use std::fmt::Debug;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use mainstem_wire::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnTopic,
};
use mainstem_wire::messages::api_versions_request::ApiVersionsRequest;
use mainstem_wire::messages::consumer_group_describe_request::ConsumerGroupDescribeRequest;
use mainstem_wire::messages::create_topics_request::{CreatableTopic, CreateTopicsRequest};
use mainstem_wire::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic,
};
use mainstem_wire::messages::describe_client_quotas_request::DescribeClientQuotasRequest;
use mainstem_wire::messages::describe_configs_request::{DescribeConfigsRequest, DescribeConfigsResource};
use mainstem_wire::messages::describe_groups_request::DescribeGroupsRequest;
use mainstem_wire::messages::describe_topic_partitions_request::DescribeTopicPartitionsRequest;
use mainstem_wire::messages::describe_transactions_request::DescribeTransactionsRequest;
use mainstem_wire::messages::describe_user_scram_credentials_request::DescribeUserScramCredentialsRequest;
use mainstem_wire::messages::find_coordinator_request::FindCoordinatorRequest;
use mainstem_wire::messages::leave_group_request::{LeaveGroupRequest, MemberIdentity};
use mainstem_wire::messages::list_config_resources_request::ListConfigResourcesRequest;
use mainstem_wire::messages::list_groups_request::ListGroupsRequest;
use mainstem_wire::messages::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};
use mainstem_wire::messages::list_transactions_request::ListTransactionsRequest;
use mainstem_wire::messages::metadata_request::{MetadataRequest, MetadataRequestTopic};
use mainstem_wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_wire::messages::offset_fetch_request::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use mainstem_wire::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use mainstem_wire::messages::sync_group_request::{SyncGroupRequest, SyncGroupRequestAssignment};
use mainstem_wire::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use mainstem_wire::messages::write_txn_markers_request::{
    WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest,
};
use mainstem_wire::{ErrorCode, Request};
use parking_lot::{Condvar, Mutex};

use super::*;
use crate::EmbeddedBroker;
use crate::authentication_tests::Peer;
use mainstem_net::answers::AnswerMemory;
use mainstem_net::event_loop::BACKGROUND_THREADS_MAX;
use mainstem_net::handled::Later;
use mainstem_requests::context::{ANONYMOUS, ConnectionContext};

/// A request of some client.
fn request(broker: &Broker) -> RequestContext {
    let connection = ConnectionContext {
        id: 0,
        listener: 0,
        peer: "127.0.0.1:1".parse().expect("an address"),
        principal: ANONYMOUS.into(),
        authorization: None,
        quotas: broker.quotas.clone(),
        software: Mutex::default(),
        asked: None,
    };
    RequestContext {
        connection: Arc::new(connection),
        api: mainstem_wire::ApiKey::Metadata,
        version: 0,
        correlation_id: 0,
        client_id: None,
        time: None,
    }
}

/// The longest wait of a test.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Partitions or names of a request that is not served on its loop.
const MANY: usize = 2000;

/// Answers to a neighbour after which a request that is served on the loop must have its own.
const MEANWHILE: usize = 20;

const TOPIC: &str = "topic";
const PARTITIONS: i32 = 3;

/// All threads of the only loop, taken until this is dropped.
struct Held(Arc<(Mutex<Holding>, Condvar)>);

#[derive(Default)]
struct Holding {
    taken: usize,
    is_over: bool,
}

impl Held {
    fn all(broker: &EmbeddedBroker) -> Held {
        let shared = Arc::<(Mutex<Holding>, Condvar)>::default();
        let own = shared.clone();
        broker.broker().net.event_loops.first().spawn(async move {
            for _ in 0..BACKGROUND_THREADS_MAX {
                let own = own.clone();
                tokio::task::spawn_blocking(move || {
                    let mut holding = own.0.lock();
                    holding.taken += 1;
                    own.1.notify_all();
                    own.1.wait_while(&mut holding, |holding| !holding.is_over);
                });
            }
        });
        let mut holding = shared.0.lock();
        let timed_out =
            shared.1.wait_while_for(&mut holding, |holding| holding.taken < BACKGROUND_THREADS_MAX, TIMEOUT);
        assert!(!timed_out.timed_out(), "threads are there");
        drop(holding);
        Held(shared)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.0.lock().is_over = true;
        self.0.1.notify_all();
    }
}

/// A broker of one loop with a topic and the coordinators' topics.
fn start() -> EmbeddedBroker {
    let broker = EmbeddedBroker::start(&[
        ("num.network.threads", "1"),
        ("auto.create.topics.enable", "false"),
        ("offsets.topic.num.partitions", "1"),
        ("transaction.state.log.num.partitions", "1"),
        ("mainstem.http.listener", "127.0.0.1:0"),
    ]);
    let mut peer = Peer::connect(&broker);
    let topic = CreatableTopic {
        name: TOPIC.into(),
        num_partitions: PARTITIONS,
        replication_factor: 1,
        ..Default::default()
    };
    let create = CreateTopicsRequest { topics: vec![topic], timeout_ms: 10_000, ..Default::default() };
    assert_eq!(peer.call(&create, 7).expect("an answer").topics[0].error_code, 0);
    for key_type in [0, 1] {
        find(&mut peer, key_type, &["first"]);
    }
    broker
}

fn find(peer: &mut Peer, key_type: i8, keys: &[&str]) {
    let coordinator_keys = keys.iter().map(|key| (*key).into()).collect();
    let request = FindCoordinatorRequest { key_type, coordinator_keys, ..Default::default() };
    let response = peer.call(&request, 4).expect("an answer");
    assert!(response.coordinators.iter().all(|coordinator| coordinator.error_code == 0));
}

fn neighbour_is_answered(neighbour: &mut Peer) {
    for _ in 0..MEANWHILE {
        assert_eq!(neighbour.call(&ApiVersionsRequest::default(), 0).expect("an answer").error_code, 0);
    }
}

/// Asserts that a request is served in the background. Returns the result of `look` for its answer.
fn in_background<'q, R: Request<'q>, T>(
    broker: &EmbeddedBroker,
    (request, version): (&R, i16),
    look: impl FnOnce(R::Response<'_>) -> T,
) -> T {
    let (mut peer, mut neighbour) = (Peer::connect(broker), Peer::connect(broker));
    {
        let _held = Held::all(broker);
        peer.send(request, version).expect("the broker reads");
        neighbour_is_answered(&mut neighbour);
        assert!(!peer.has_answer(), "{} v{version} was served on the event loop", R::KEY.name());
    }
    look(peer.answer::<R>(version).expect("an answer"))
}

/// Asserts that a request is served on the loop, though no thread is free.
fn on_loop<'q, R: Request<'q>>(broker: &EmbeddedBroker, request: &R, version: i16) {
    let mut peer = Peer::connect(broker);
    let _held = Held::all(broker);
    let answered = peer.call(request, version);
    assert!(answered.is_ok(), "{} v{version} waits for a thread", R::KEY.name());
}

/// Numbers of partitions, of which the topic has the first three.
fn partitions(count: usize) -> impl Iterator<Item = i32> {
    (0..).take(count)
}

fn names(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|number| format!("name-{number}"))
}

/// Asserts that existing partitions have no error, and all others have one.
fn assert_outcomes<E: PartialEq + Debug>(
    count: usize,
    outcomes: impl Iterator<Item = (i32, i16, E)>,
    of_good: E,
) {
    let mut outcomes: Vec<_> = outcomes.collect();
    outcomes.sort_unstable_by_key(|(partition, ..)| *partition);
    assert_eq!(outcomes.len(), count);
    for (partition, error, value) in outcomes {
        let is_there = partition < PARTITIONS;
        assert_eq!(error == 0, is_there, "partition {partition}: {}", ErrorCode(error));
        assert!(!is_there || value == of_good, "partition {partition}: {value:?}");
    }
}

fn list_offsets(count: usize) -> ListOffsetsRequest<'static> {
    let partitions = partitions(count).map(|partition_index| ListOffsetsPartition {
        partition_index,
        current_leader_epoch: -1,
        timestamp: -1,
        ..Default::default()
    });
    let topic =
        ListOffsetsTopic { name: TOPIC.into(), partitions: partitions.collect(), ..Default::default() };
    ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() }
}

fn offset_commit(count: usize) -> OffsetCommitRequest<'static> {
    let partitions = partitions(count).map(|partition_index| OffsetCommitRequestPartition {
        partition_index,
        committed_offset: 7,
        ..Default::default()
    });
    let topic = OffsetCommitRequestTopic {
        name: TOPIC.into(),
        partitions: partitions.collect(),
        ..Default::default()
    };
    OffsetCommitRequest {
        group_id: "group".into(),
        generation_id_or_member_epoch: -1,
        topics: vec![topic],
        ..Default::default()
    }
}

fn offset_fetch(count: Option<usize>) -> OffsetFetchRequest<'static> {
    let topic = |count| OffsetFetchRequestTopics {
        name: TOPIC.into(),
        partition_indexes: partitions(count).collect(),
        ..Default::default()
    };
    let topics = count.map(|count| vec![topic(count)]);
    let group = OffsetFetchRequestGroup { group_id: "group".into(), topics, ..Default::default() };
    OffsetFetchRequest { groups: vec![group], ..Default::default() }
}

fn metadata(count: usize) -> MetadataRequest<'static> {
    let topics = names(count)
        .map(|name| MetadataRequestTopic { name: Some(name.into()), ..Default::default() })
        .collect();
    MetadataRequest { topics: Some(topics), ..Default::default() }
}

fn delete_records(count: usize) -> DeleteRecordsRequest<'static> {
    let partitions = partitions(count).map(|partition_index| DeleteRecordsPartition {
        partition_index,
        offset: 0,
        ..Default::default()
    });
    let topic =
        DeleteRecordsTopic { name: TOPIC.into(), partitions: partitions.collect(), ..Default::default() };
    DeleteRecordsRequest { topics: vec![topic], timeout_ms: 60_000, ..Default::default() }
}

fn epochs(count: usize) -> OffsetForLeaderEpochRequest<'static> {
    let partitions = partitions(count).map(|partition| OffsetForLeaderPartition {
        partition,
        current_leader_epoch: -1,
        leader_epoch: 0,
        ..Default::default()
    });
    let topic =
        OffsetForLeaderTopic { topic: TOPIC.into(), partitions: partitions.collect(), ..Default::default() };
    OffsetForLeaderEpochRequest { replica_id: -1, topics: vec![topic], ..Default::default() }
}

fn add_partitions(count: usize) -> AddPartitionsToTxnRequest<'static> {
    let topic = AddPartitionsToTxnTopic {
        name: TOPIC.into(),
        partitions: partitions(count).collect(),
        ..Default::default()
    };
    AddPartitionsToTxnRequest {
        v3_and_below_transactional_id: "id".into(),
        v3_and_below_topics: vec![topic],
        ..Default::default()
    }
}

#[test]
fn requests_of_many_partitions_are_served_off_the_loop() {
    let broker = start();
    in_background(&broker, (&list_offsets(MANY), 7), |response| {
        let partitions = response.topics[0].partitions.iter();
        assert_outcomes(MANY, partitions.map(|one| (one.partition_index, one.error_code, one.offset)), 0);
    });
    in_background(&broker, (&offset_commit(MANY), 8), |response| {
        let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
        assert_outcomes(MANY, partitions.map(|one| (one.partition_index, one.error_code, ())), ());
    });
    in_background(&broker, (&offset_fetch(Some(MANY)), 8), |response| {
        let partitions = response.groups[0].topics.iter().flat_map(|topic| &topic.partitions);
        let committed = partitions.clone().filter(|one| one.committed_offset == 7).count();
        assert_eq!((partitions.count(), committed), (MANY, PARTITIONS as usize));
    });
    in_background(&broker, (&offset_fetch(None), 8), |response| {
        let partitions = response.groups[0].topics.iter().flat_map(|topic| &topic.partitions);
        assert_eq!(partitions.count(), PARTITIONS as usize);
    });
    in_background(&broker, (&delete_records(MANY), 2), |response| {
        let partitions = response.topics[0].partitions.iter();
        assert_outcomes(
            MANY,
            partitions.map(|one| (one.partition_index, one.error_code, one.low_watermark)),
            0,
        );
    });
    in_background(&broker, (&epochs(MANY), 4), |response| {
        let partitions = response.topics[0].partitions.iter();
        assert_outcomes(MANY, partitions.map(|one| (one.partition, one.error_code, one.end_offset)), 0);
    });
    in_background(&broker, (&add_partitions(MANY), 3), |response| {
        assert_eq!(response.results_by_topic_v3_and_below[0].results_by_partition.len(), MANY);
    });
}

#[test]
fn transactions_of_many_partitions_are_served_off_the_loop() {
    let broker = start();
    let partitions_of = |count| {
        let partition =
            |partition_index| TxnOffsetCommitRequestPartition { partition_index, ..Default::default() };
        partitions(count).map(partition).collect()
    };
    let topic = TxnOffsetCommitRequestTopic {
        name: TOPIC.into(),
        partitions: partitions_of(MANY),
        ..Default::default()
    };
    let commit = TxnOffsetCommitRequest {
        transactional_id: "id".into(),
        group_id: "group".into(),
        producer_id: 1,
        generation_id: -1,
        topics: vec![topic],
        ..Default::default()
    };
    in_background(&broker, (&commit, 3), |response| {
        let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
        assert_eq!(partitions.count(), MANY);
    });
    let topic = WritableTxnMarkerTopic {
        name: TOPIC.into(),
        partition_indexes: partitions(MANY).collect(),
        ..Default::default()
    };
    let marker = WritableTxnMarker { producer_id: 1, topics: vec![topic], ..Default::default() };
    let markers = WriteTxnMarkersRequest { markers: vec![marker], ..Default::default() };
    in_background(&broker, (&markers, 1), |response| {
        assert_eq!(response.markers[0].topics[0].partitions.len(), MANY);
    });
}

#[test]
fn requests_of_many_names_are_served_off_the_loop() {
    let broker = start();
    in_background(&broker, (&metadata(MANY), 12), |response| assert_eq!(response.topics.len(), MANY));
    let coordinator_keys = names(MANY).map(Into::into).collect();
    let find = FindCoordinatorRequest { coordinator_keys, ..Default::default() };
    in_background(&broker, (&find, 4), |response| {
        assert_eq!(response.coordinators.len(), MANY);
        assert!(response.coordinators.iter().all(|coordinator| coordinator.error_code == 0));
    });
    let members = names(MANY).map(|name| MemberIdentity { member_id: name.into(), ..Default::default() });
    let leave =
        LeaveGroupRequest { group_id: "group".into(), members: members.collect(), ..Default::default() };
    in_background(&broker, (&leave, 5), |_| ());
    let assignments =
        names(MANY).map(|name| SyncGroupRequestAssignment { member_id: name.into(), ..Default::default() });
    let sync = SyncGroupRequest {
        group_id: "group".into(),
        member_id: "member".into(),
        assignments: assignments.collect(),
        ..Default::default()
    };
    in_background(&broker, (&sync, 3), |response| {
        assert_eq!(ErrorCode(response.error_code), ErrorCode::UNKNOWN_MEMBER_ID);
    });
}

#[test]
fn a_connection_is_answered_in_order_wherever_its_requests_are_served() {
    let broker = start();
    let (mut peer, mut neighbour) = (Peer::connect(&broker), Peer::connect(&broker));
    let coordinator_keys = names(MANY).map(Into::into).collect();
    let long = FindCoordinatorRequest { coordinator_keys, ..Default::default() };
    {
        let _held = Held::all(&broker);
        peer.send(&long, 4).expect("the broker reads");
        peer.send(&list_offsets(3), 7).expect("the broker reads");
        neighbour_is_answered(&mut neighbour);
        assert!(!peer.has_answer(), "the second request has passed the first one");
    }
    let found = peer.answer::<FindCoordinatorRequest<'_>>(4).expect("an answer");
    assert_eq!(found.coordinators.len(), MANY);
    let listed = peer.answer::<ListOffsetsRequest<'_>>(7).expect("an answer");
    assert_eq!(listed.topics[0].partitions.len(), 3);
}

#[test]
fn configurations_are_described_off_the_loop_by_resources_and_by_keys() {
    let broker = start();
    let resource = |keys: Vec<String>| DescribeConfigsResource {
        resource_type: 2,
        resource_name: TOPIC.into(),
        configuration_keys: Some(keys.into_iter().map(Into::into).collect()),
        ..Default::default()
    };
    let keys = names(MANY).chain(["segment.bytes".to_owned(), "retention.ms".to_owned()]).collect();
    let by_keys = DescribeConfigsRequest { resources: vec![resource(keys)], ..Default::default() };
    in_background(&broker, (&by_keys, 4), |response| {
        let mut described: Vec<_> = response.results[0].configs.iter().map(|config| &*config.name).collect();
        described.sort_unstable();
        assert_eq!(described, ["retention.ms", "segment.bytes"]);
    });
    let group = |name: String| DescribeConfigsResource {
        resource_type: 32,
        resource_name: name.into(),
        ..Default::default()
    };
    let by_resources =
        DescribeConfigsRequest { resources: names(100).map(group).collect(), ..Default::default() };
    in_background(&broker, (&by_resources, 4), |response| assert_eq!(response.results.len(), 100));
    let few = DescribeConfigsRequest {
        resources: vec![resource(vec!["segment.bytes".to_owned()])],
        ..Default::default()
    };
    on_loop(&broker, &few, 4);
}

#[test]
fn answers_about_all_there_is_are_made_off_the_loop() {
    let broker = start();
    let groups = DescribeGroupsRequest { groups: vec!["group".into()], ..Default::default() };
    in_background(&broker, (&groups, 5), |response| assert_eq!(response.groups.len(), 1));
    let groups = ConsumerGroupDescribeRequest { group_ids: vec!["group".into()], ..Default::default() };
    in_background(&broker, (&groups, 1), |response| assert_eq!(response.groups.len(), 1));
    in_background(&broker, (&ListGroupsRequest::default(), 4), |response| assert_eq!(response.error_code, 0));
    let ids = DescribeTransactionsRequest { transactional_ids: vec!["id".into()], ..Default::default() };
    in_background(&broker, (&ids, 0), |response| assert_eq!(response.transaction_states.len(), 1));
    let all = ListTransactionsRequest { duration_filter: -1, ..Default::default() };
    in_background(&broker, (&all, 1), |response| assert_eq!(response.error_code, 0));
    in_background(&broker, (&DescribeClientQuotasRequest::default(), 1), |response| {
        assert_eq!(response.error_code, 0);
    });
    in_background(&broker, (&DescribeUserScramCredentialsRequest::default(), 0), |response| {
        assert_eq!(response.error_code, 0);
    });
    in_background(&broker, (&ListConfigResourcesRequest::default(), 1), |response| {
        assert_eq!(response.error_code, 0);
    });
    let topics = DescribeTopicPartitionsRequest { response_partition_limit: 100, ..Default::default() };
    in_background(&broker, (&topics, 0), |response| assert_eq!(response.topics.len(), 3));
}

/// Sends a request to the HTTP listener, which has a thread of its own.
fn get(broker: &EmbeddedBroker, path: &str) -> TcpStream {
    let mut socket = TcpStream::connect(broker.http().expect("it was configured")).expect("it listens");
    socket.set_read_timeout(Some(TIMEOUT)).expect("it is a socket");
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).expect("it reads");
    socket
}

fn assert_ok(mut socket: TcpStream) {
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn health_is_answered_while_metrics_are_gathered() {
    let broker = start();
    let metrics = broker.broker().groups.look(|_| {
        // Metrics of groups wait for their coordinator.
        let metrics = get(&broker, "/metrics");
        for _ in 0..MEANWHILE {
            assert_ok(get(&broker, "/health"));
        }
        metrics.set_nonblocking(true).expect("it is a socket");
        assert!(metrics.peek(&mut [0]).is_err(), "they were gathered without the coordinator");
        metrics.set_nonblocking(false).expect("it is a socket");
        metrics
    });
    assert_ok(metrics);
}

#[test]
fn small_requests_need_no_thread() {
    let broker = start();
    on_loop(&broker, &list_offsets(100), 7);
    on_loop(&broker, &offset_commit(3), 8);
    on_loop(&broker, &offset_fetch(Some(100)), 8);
    on_loop(&broker, &metadata(10), 12);
    on_loop(&broker, &delete_records(100), 2);
    on_loop(&broker, &epochs(100), 4);
    on_loop(&broker, &add_partitions(3), 3);
    let find = FindCoordinatorRequest { coordinator_keys: vec!["group".into()], ..Default::default() };
    on_loop(&broker, &find, 4);
    // A long request with few elements.
    let sync = SyncGroupRequest {
        group_id: "group".into(),
        member_id: "member".into(),
        assignments: vec![SyncGroupRequestAssignment {
            member_id: "member".into(),
            assignment: vec![1; 50_000].into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    on_loop(&broker, &sync, 3);
}

#[test]
fn what_is_malformed_ends_its_connection_alone_wherever_that_is_found() {
    let broker = start();
    let mut neighbour = Peer::connect(&broker);
    // More elements than any request may have: the background refuses the request, after the loop has stopped decoding.
    let keys = FindCoordinatorRequest { coordinator_keys: vec!["".into(); 800_000], ..Default::default() };
    let mut peer = Peer::connect(&broker);
    peer.send(&keys, 4).expect("the broker reads");
    assert!(peer.answer::<FindCoordinatorRequest<'_>>(4).is_err(), "its connection ends");
    neighbour_is_answered(&mut neighbour);
}

/// An answer of so many bytes from the background.
fn answer_of(broker: &EmbeddedBroker, bytes: usize) -> Later {
    let (broker, decoder) = (broker.broker(), Decoder::new(&[]));
    let handled = in_turn(broker, request(broker), &decoder, Class::Data, move |_, _, _, out| {
        out.bytes.resize(bytes, 7);
        Ok(Handled::Answered)
    });
    let Handled::Later { response, .. } = handled else { panic!("it is answered later") };
    response
}

/// Waits until answers hold so many bytes.
fn held(memory: &AnswerMemory, bytes: u64) {
    let began = Instant::now();
    while memory.used() != bytes {
        assert!(began.elapsed() < TIMEOUT, "{} bytes are held", memory.used());
        std::thread::yield_now();
    }
}

#[test]
fn an_answer_counts_when_it_is_made_and_not_only_when_its_connection_takes_it() {
    const BYTES: usize = 40 << 20;
    let broker = start();
    let memory = &broker.broker().net.answers;
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let _entered = runtime.enter();
    let poll = |response: &mut Later| response.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let (mut first, mut second) = (answer_of(&broker, BYTES), answer_of(&broker, BYTES));
    let begun = poll(&mut first);
    held(memory, BYTES as u64);
    let error = runtime.block_on(second.as_mut()).err();
    assert!(error.is_some_and(|error| error.contains("does not fit")), "it ends its connection");
    drop((begun, first));
    held(memory, 0);
    let whole = runtime.block_on(answer_of(&broker, BYTES)).expect("there is room again");
    assert_eq!((whole.backlog(), memory.used()), (BYTES, BYTES as u64));
}
