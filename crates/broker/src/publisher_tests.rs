//! A node whose directory is slow, or refuses a part of a metadata change.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mainstem_controller::Decision;
use mainstem_log::sim::{Call, Hooked};
use mainstem_log::storage::RealStorage;
use mainstem_records::{BatchBuilder, BatchOptions};
use mainstem_wire::messages::create_topics_request::{CreatableTopic, CreateTopicsRequest};
use mainstem_wire::messages::delete_topics_request::DeleteTopicsRequest;
use mainstem_wire::messages::describe_quorum_request::DescribeQuorumRequest;
use mainstem_wire::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
use mainstem_wire::messages::find_coordinator_request::FindCoordinatorRequest;
use mainstem_wire::messages::init_producer_id_request::InitProducerIdRequest;
use mainstem_wire::messages::list_groups_request::ListGroupsRequest;
use mainstem_wire::messages::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};
use mainstem_wire::messages::metadata_request::{MetadataRequest, MetadataRequestTopic};
use mainstem_wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_wire::messages::produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};
use mainstem_wire::{ErrorCode, Records};

use parking_lot::{Condvar, Mutex};

use crate::EmbeddedBroker;
use crate::authentication_tests::Peer;
use crate::turns::CHANGE_THREADS_MAX;
use mainstem_coordinators::groups::OFFSETS_TOPIC;
use mainstem_net::event_loop::BACKGROUND_THREADS_MAX;
use mainstem_store::machine::Machine;

const TIMEOUT: Duration = Duration::from_secs(60);

/// The fate of an operation.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum Gate {
    #[default]
    Passes,
    Hangs,
    Fails,
}

/// A kind of operation.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// The directory of a partition is created or renamed, of a topic whose name begins with `slow`.
    Directory,
    /// The metadata log is written.
    Write,
    /// The metadata log is synced.
    Sync,
    /// The directory of a groups' partition is created.
    Groups,
}

#[derive(Debug, Default)]
struct Gates {
    gates: Mutex<[Gate; 4]>,
    changed: Condvar,
    /// The number of operations of each kind that did not pass immediately.
    held_up: Mutex<[usize; 4]>,
}

impl Gates {
    fn set(&self, kind: Kind, gate: Gate) {
        self.gates.lock()[kind as usize] = gate;
        self.changed.notify_all();
    }

    fn held_up(&self, kind: Kind) -> usize {
        self.held_up.lock()[kind as usize]
    }

    fn pass(&self, kind: Kind) -> io::Result<()> {
        let mut gates = self.gates.lock();
        if gates[kind as usize] == Gate::Passes {
            return Ok(());
        }
        self.held_up.lock()[kind as usize] += 1;
        while gates[kind as usize] == Gate::Hangs {
            self.changed.wait(&mut gates);
        }
        match gates[kind as usize] {
            // A full disk is noted, and refuses records for a while. Missing descriptors fail only the operation that needs them.
            Gate::Fails if matches!(kind, Kind::Directory | Kind::Groups) => {
                Err(io::Error::from_raw_os_error(libc::EMFILE))
            }
            Gate::Fails => Err(io::ErrorKind::StorageFull.into()),
            Gate::Passes | Gate::Hangs => Ok(()),
        }
    }
}

/// The kind of a call; `None` for calls that always pass.
fn kind_of(call: Call, path: &Path) -> Option<Kind> {
    let is_metadata = path.to_str().is_some_and(|path| path.contains("__cluster_metadata"))
        && path.extension().is_some_and(|extension| extension == "log");
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match call {
        Call::Write if is_metadata => Some(Kind::Write),
        Call::Sync | Call::SyncFs if is_metadata => Some(Kind::Sync),
        Call::CreateDir | Call::Rename if name.starts_with("slow") => Some(Kind::Directory),
        Call::CreateDir | Call::Rename if name.starts_with(OFFSETS_TOPIC) => Some(Kind::Groups),
        _ => None,
    }
}

/// The real file system behind gates.
fn gated(gates: &Arc<Gates>) -> Arc<Hooked> {
    let (storage, gates) = (Hooked::new(Arc::new(RealStorage)), gates.clone());
    storage.set_hook(move |call, path| kind_of(call, path).map_or(Ok(()), |kind| gates.pass(kind)));
    Arc::new(storage)
}

fn start() -> (EmbeddedBroker, Arc<Gates>) {
    start_with(&[])
}

fn start_with(settings: &[(&str, &str)]) -> (EmbeddedBroker, Arc<Gates>) {
    let gates = Arc::<Gates>::default();
    let machine = Machine { storage: gated(&gates), ..Machine::default() };
    let settings = [&[("auto.create.topics.enable", "false")][..], settings].concat();
    (EmbeddedBroker::start_on(machine, &settings), gates)
}

fn create_request(topic: &str) -> CreateTopicsRequest<'_> {
    let topics = vec![CreatableTopic {
        name: topic.into(),
        num_partitions: 2,
        replication_factor: 1,
        ..Default::default()
    }];
    // A hanging operation is observed for longer than a busy machine takes for it.
    CreateTopicsRequest { topics, timeout_ms: 60_000, ..Default::default() }
}

fn create(peer: &mut Peer, topic: &str) -> ErrorCode {
    ErrorCode(peer.call(&create_request(topic), 5).expect("an answer").topics[0].error_code)
}

/// Creates a topic on a connection of its own, whose thread waits for the answer.
fn create_later(broker: &EmbeddedBroker, topic: &'static str) -> JoinHandle<ErrorCode> {
    let mut peer = Peer::connect(broker);
    std::thread::spawn(move || create(&mut peer, topic))
}

fn delete(peer: &mut Peer, topic: &str) -> ErrorCode {
    let request =
        DeleteTopicsRequest { topic_names: vec![topic.into()], timeout_ms: 10_000, ..Default::default() };
    ErrorCode(peer.call(&request, 5).expect("an answer").responses[0].error_code)
}

/// Returns true if the metadata have a topic.
fn is_known(peer: &mut Peer, topic: &str) -> bool {
    let named = MetadataRequestTopic { name: Some(topic.to_owned().into()), ..Default::default() };
    let request = MetadataRequest { topics: Some(vec![named]), ..Default::default() };
    let response = peer.call(&request, 12).expect("an answer");
    ErrorCode(response.topics[0].error_code) != ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
}

/// Produces a record. Returns its offset, or the error.
fn produce(peer: &mut Peer, topic: &str) -> Result<i64, ErrorCode> {
    let mut batch = BatchBuilder::new(BatchOptions::default());
    batch.append(1_000, None, Some(b"value"), &[]).expect("it fits");
    let records = Records::Bytes(batch.build().expect("a batch").into());
    let data = PartitionProduceData { records: Some(records), index: 1, ..Default::default() };
    let topic =
        TopicProduceData { name: topic.to_owned().into(), partition_data: vec![data], ..Default::default() };
    let request =
        ProduceRequest { acks: -1, timeout_ms: 10_000, topic_data: vec![topic], ..Default::default() };
    let response = peer.call(&request, 9).expect("an answer");
    let partition = &response.responses[0].partition_responses[0];
    match ErrorCode(partition.error_code) {
        ErrorCode::NONE => Ok(partition.base_offset),
        error => Err(error),
    }
}

/// The end of the metadata log.
fn log_end(broker: &EmbeddedBroker) -> i64 {
    broker.broker().controller.log().ends().expect("it is open").log_end
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn others_are_served_while_a_change_is_carried_out() {
    let (broker, gates) = start();
    let mut peer = Peer::connect(&broker);
    assert_eq!(create(&mut peer, "there"), ErrorCode::NONE);
    gates.set(Kind::Directory, Gate::Hangs);
    let slow = create_later(&broker, "slow");
    wait_until("it is being opened", || gates.held_up(Kind::Directory) > 0);
    // The topic is committed, and cannot be used yet.
    assert!(is_known(&mut peer, "slow"));
    assert_eq!(produce(&mut peer, "slow"), Err(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
    assert_eq!(produce(&mut peer, "there"), Ok(0));
    // A change without work for the directory is decided and answered: here a block of producer ids.
    let producer =
        InitProducerIdRequest { transactional_id: None, transaction_timeout_ms: 1_000, ..Default::default() };
    assert_eq!(peer.call(&producer, 4).expect("an answer").error_code, 0);
    // The next change is decided too; its answer waits for its turn.
    let next = create_later(&broker, "next");
    wait_until("it is decided", || is_known(&mut peer, "next"));
    assert!(!slow.is_finished() && !next.is_finished());
    gates.set(Kind::Directory, Gate::Passes);
    assert_eq!(slow.join().expect("no panic"), ErrorCode::NONE);
    assert_eq!(produce(&mut peer, "slow"), Ok(0), "a client with an answer can use it immediately");
    assert_eq!(next.join().expect("no panic"), ErrorCode::NONE);
    assert_eq!(produce(&mut peer, "next"), Ok(0));
}

#[test]
fn what_cannot_be_opened_is_tried_again() {
    let (broker, gates) = start();
    let mut peer = Peer::connect(&broker);
    gates.set(Kind::Directory, Gate::Fails);
    assert_eq!(create(&mut peer, "slow"), ErrorCode::KAFKA_STORAGE_ERROR);
    assert!(is_known(&mut peer, "slow"));
    // Later changes do not wait.
    assert_eq!(create(&mut peer, "other"), ErrorCode::NONE);
    assert_eq!(produce(&mut peer, "other"), Ok(0));
    let tried = gates.held_up(Kind::Directory);
    wait_until("it is tried again", || gates.held_up(Kind::Directory) > tried);
    // A topic that is deleted meanwhile is not opened when it could be.
    assert_eq!(create(&mut peer, "slow-and-gone"), ErrorCode::KAFKA_STORAGE_ERROR);
    assert_eq!(delete(&mut peer, "slow-and-gone"), ErrorCode::NONE);
    gates.set(Kind::Directory, Gate::Passes);
    wait_until("it is opened", || produce(&mut peer, "slow").is_ok());
    assert!(!is_known(&mut peer, "slow-and-gone"));
    assert_eq!(create(&mut peer, "slow-and-gone"), ErrorCode::NONE);
}

/// Commits the offset 1 of a topic for a group without members.
fn commit(peer: &mut Peer, group: &str, topic: &str) -> ErrorCode {
    let partitions = vec![OffsetCommitRequestPartition { committed_offset: 1, ..Default::default() }];
    let topics =
        vec![OffsetCommitRequestTopic { name: topic.to_owned().into(), partitions, ..Default::default() }];
    let request = OffsetCommitRequest {
        group_id: group.to_owned().into(),
        generation_id_or_member_epoch: -1,
        topics,
        ..Default::default()
    };
    let response = peer.call(&request, 8).expect("an answer");
    ErrorCode(response.topics[0].partitions[0].error_code)
}

#[test]
fn groups_are_served_when_their_topic_could_be_opened() {
    let (broker, gates) = start();
    let mut peer = Peer::connect(&broker);
    assert_eq!(create(&mut peer, "read"), ErrorCode::NONE);
    gates.set(Kind::Groups, Gate::Fails);
    let find = FindCoordinatorRequest { key: "readers".into(), ..Default::default() };
    peer.call(&find, 3).expect("an answer");
    assert!(is_known(&mut peer, OFFSETS_TOPIC), "it was created, and cannot be used yet");
    let tried = gates.held_up(Kind::Groups);
    wait_until("it is tried again", || gates.held_up(Kind::Groups) > tried);
    assert_ne!(commit(&mut peer, "readers", "read"), ErrorCode::NONE, "there is no coordinator yet");
    gates.set(Kind::Groups, Gate::Passes);
    // No request asks for the topic again: it is opened, and the groups are loaded, without one.
    wait_until("groups are loaded", || commit(&mut peer, "readers", "read") == ErrorCode::NONE);
}

#[test]
fn files_that_cannot_be_set_aside_are_tried_again() {
    let (mut broker, gates) = start();
    let mut peer = Peer::connect(&broker);
    assert_eq!(create(&mut peer, "slow"), ErrorCode::NONE);
    assert_eq!((produce(&mut peer, "slow"), produce(&mut peer, "slow")), (Ok(0), Ok(1)));
    gates.set(Kind::Directory, Gate::Fails);
    assert_eq!(delete(&mut peer, "slow"), ErrorCode::NONE);
    assert!(!is_known(&mut peer, "slow"));
    // Its files are where those of another topic with the name would be.
    assert_eq!(create(&mut peer, "slow"), ErrorCode::KAFKA_STORAGE_ERROR);
    gates.set(Kind::Directory, Gate::Passes);
    wait_until("the new one is opened", || produce(&mut peer, "slow").is_ok());
    assert_eq!(produce(&mut peer, "slow"), Ok(1), "it began empty");
    broker.start_again();
    assert_eq!(produce(&mut Peer::connect(&broker), "slow"), Ok(2), "nothing of it was set aside");
}

#[test]
fn a_change_that_fails_takes_none_with_it_that_is_on_its_way() {
    let (broker, gates) = start();
    let mut peer = Peer::connect(&broker);
    assert_eq!(create(&mut peer, "there"), ErrorCode::NONE);
    gates.set(Kind::Sync, Gate::Hangs);
    let first = create_later(&broker, "first");
    wait_until("it is being synced", || gates.held_up(Kind::Sync) > 0);
    assert!(!is_known(&mut peer, "first"), "what is not durable is not shown");
    let first_end = log_end(&broker);
    // One more change that is appended, one that cannot be, and one with a mistake.
    let second = create_later(&broker, "second");
    wait_until("it is appended, too", || log_end(&broker) > first_end);
    gates.set(Kind::Write, Gate::Fails);
    let refused = create_later(&broker, "refused");
    wait_until("it is refused", || gates.held_up(Kind::Write) > 0);
    let controller = broker.broker().clone();
    let mistaken = std::thread::spawn(move || {
        controller.controller.commit(|machine| -> Decision<()> {
            let _ = machine.allocate_producer_ids(controller.controller.view().node_id());
            panic!("a mistake of the test");
        })
    });
    assert!(!first.is_finished() && !second.is_finished());
    gates.set(Kind::Write, Gate::Passes);
    gates.set(Kind::Sync, Gate::Passes);
    assert_eq!(first.join().expect("no panic"), ErrorCode::NONE);
    assert_eq!(second.join().expect("no panic"), ErrorCode::NONE);
    assert_eq!(refused.join().expect("no panic"), ErrorCode::KAFKA_STORAGE_ERROR);
    assert!(mistaken.join().is_err());
    assert_eq!(create(&mut peer, "refused"), ErrorCode::NONE);
    for topic in ["first", "second", "refused"] {
        // The broker has noticed that the disk has free space again.
        wait_until(topic, || produce(&mut peer, topic) == Ok(0));
    }
}

#[test]
fn a_stop_does_not_wait_for_a_change_for_ever() {
    let (mut broker, gates) = start();
    gates.set(Kind::Directory, Gate::Hangs);
    let slow = create_later(&broker, "slow");
    wait_until("it is being opened", || gates.held_up(Kind::Directory) > 0);
    let begun = Instant::now();
    broker.stop();
    assert!(begun.elapsed() < TIMEOUT, "it took {:?}", begun.elapsed());
    gates.set(Kind::Directory, Gate::Passes);
    // Its connection was closed, or the answer says that the time is up.
    let answer = slow.join();
    assert!(answer.is_err() || answer.is_ok_and(|error| error != ErrorCode::NONE));
}

/// The number of these topics that the metadata have.
fn known(peer: &mut Peer, topics: &[String]) -> usize {
    topics.iter().filter(|topic| is_known(peer, topic)).count()
}

#[test]
fn changes_that_hang_leave_threads_to_what_reads_and_writes_elsewhere() {
    let (broker, gates) = start_with(&[("num.network.threads", "1")]);
    let mut peer = Peer::connect(&broker);
    assert_eq!(create(&mut peer, "there"), ErrorCode::NONE);
    let find = FindCoordinatorRequest { coordinator_keys: vec!["group".into()], ..Default::default() };
    assert_eq!(peer.call(&find, 4).expect("an answer").coordinators[0].error_code, 0);
    assert_eq!(produce(&mut peer, "there"), Ok(0));
    gates.set(Kind::Directory, Gate::Hangs);
    // One more topic than there are threads.
    let topics: Vec<String> = (0..=BACKGROUND_THREADS_MAX).map(|number| format!("slow-{number}")).collect();
    let mut asking: Vec<Peer> = topics.iter().map(|_| Peer::connect(&broker)).collect();
    for (peer, topic) in asking.iter_mut().zip(&topics) {
        peer.send(&create_request(topic), 5).expect("the broker reads");
    }
    wait_until("they are decided", || known(&mut peer, &topics) >= CHANGE_THREADS_MAX);
    // A timestamp, which is looked up in an index, and a fetch of more partitions than the loop reads.
    let by_time = ListOffsetsPartition {
        partition_index: 1,
        current_leader_epoch: -1,
        timestamp: 1_000,
        ..Default::default()
    };
    let topic = ListOffsetsTopic { name: "there".into(), partitions: vec![by_time], ..Default::default() };
    let by_time = ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() };
    let found = peer.call(&by_time, 7).expect("an answer").topics[0].partitions[0].offset;
    assert_eq!(found, 0);
    let fetched = peer.call(&large_fetch(), 11).expect("an answer");
    let read = fetched.responses[0].partitions.iter().filter(|one| one.error_code == 0).count();
    assert_eq!(read, 1);
    // Requests that wait for the metadata log alone, or that coordinators and the metadata leader answer.
    let producer =
        InitProducerIdRequest { transactional_id: None, transaction_timeout_ms: 1_000, ..Default::default() };
    assert_eq!(peer.call(&producer, 4).expect("an answer").error_code, 0);
    assert_eq!(peer.call(&find, 4).expect("an answer").coordinators[0].error_code, 0);
    assert_eq!(peer.call(&ListGroupsRequest::default(), 4).expect("an answer").error_code, 0);
    assert_eq!(peer.call(&DescribeQuorumRequest::default(), 2).expect("an answer").error_code, 0);
    // A request that waits for its turn ends with its client.
    let waits = topics.iter().position(|topic| !is_known(&mut peer, topic)).expect("it has no thread");
    let connections = || broker.broker().net.event_loops.connections()[0];
    let before = connections();
    drop(asking.swap_remove(waits));
    wait_until("its connection ends", || connections() < before);
    assert!(asking.iter().all(|peer| !peer.has_answer()));
    gates.set(Kind::Directory, Gate::Passes);
    for mut peer in asking {
        let answer = peer.answer::<CreateTopicsRequest<'_>>(5).expect("an answer");
        assert_eq!(ErrorCode(answer.topics[0].error_code), ErrorCode::NONE);
    }
    assert_eq!(known(&mut peer, &topics), BACKGROUND_THREADS_MAX);
    assert!(!is_known(&mut peer, &topics[waits]));
}

/// A fetch of one existing partition and of many missing ones.
fn large_fetch() -> FetchRequest<'static> {
    let partition = |partition| FetchPartition {
        partition,
        current_leader_epoch: -1,
        partition_max_bytes: 1 << 20,
        ..Default::default()
    };
    let topic = FetchTopic {
        topic: "there".into(),
        partitions: (1..6_002).map(partition).collect(),
        ..Default::default()
    };
    FetchRequest {
        replica_id: -1,
        min_bytes: 1,
        max_bytes: 1 << 20,
        session_epoch: -1,
        topics: vec![topic],
        ..Default::default()
    }
}
