//! Waits for a slow disk: nothing depends on a record before it is durable, and one transaction's wait holds up no
//! other.

use std::path::Path;
use std::time::{Duration, Instant};

use mainstem_log::sim::SimStorage;
use mainstem_log::storage::Storage;
use mainstem_tests::client::Client;
use mainstem_tests::kafka::{batch, produce_request};
use mainstem_tests::machine::{Death, SimulatedBroker};
use mainstem_tests::wait::TIMEOUT;
use mainstem_wire::messages::init_producer_id_request::InitProducerIdRequest;
use mainstem_wire::messages::produce_request::ProduceRequest;

use crate::transactions::eventually;
use crate::transactions::producer::Producer;
use crate::transactions::reader::{ends, read_committed};

const TOPIC: &str = "topic";
const TIMEOUT_MS: i32 = 60_000;
/// The size of a block of producer ids from the metadata.
const ID_BLOCK: usize = 1000;
/// The time for which nothing must follow.
const LOOK_FOR: Duration = Duration::from_millis(100);

/// One partition of each internal topic.
const SETTINGS: [(&str, &str); 3] = [
    ("transaction.state.log.num.partitions", "1"),
    ("offsets.topic.num.partitions", "1"),
    ("log.cleaner.enable", "false"),
];

fn settings<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    SETTINGS.iter().chain(more).copied().collect()
}

/// Bytes of a partition's first segment, in any log directory.
fn log_bytes(disk: &SimStorage, dir: &str, partition: &str) -> Option<u64> {
    let entries = disk.list(&Path::new(dir).join(partition)).ok()?;
    entries.into_iter().find(|entry| entry.name.ends_with(".log")).map(|entry| entry.len)
}

/// A coordinator finds a decision in its log that the page cache has kept over a kill. It does not act on it before
/// it is durable: a power cut could undo it, and the opposite could be decided after one partition has got its
/// marker.
#[test]
fn nothing_follows_from_a_replayed_record_that_is_not_durable() {
    let mut broker = SimulatedBroker::start(&settings(&[]));
    broker.connect().create_topic(TOPIC, 1, &[]).expect("a topic");
    let mut producer = Producer::init(broker.connect(), "id", TIMEOUT_MS).expect("a producer");
    producer.send(TOPIC, 0, &[b"a"]).expect("it is written");
    let disk = broker.disk().clone();
    let decided = || log_bytes(&disk, "/data", "__transaction_state-0");
    let written = || log_bytes(&disk, "/data", "topic-0");
    let (undecided, unmarked) = (decided(), written());
    disk.hold_syncs(Some("__transaction_state-0"));
    producer.leave_end(true).expect("it is sent");
    eventually("the decision is in the page cache", || (decided() > undecided).then_some(()));
    let random = &mut mainstem_log::sim::Random::new(1);
    broker.die(Death::Kill, random);
    let decision = decided();
    let starting = std::thread::spawn(move || {
        let started = broker.try_to_start();
        (broker, started)
    });
    eventually("the start waits for the disk", || {
        (disk.syncs_held() > 0 || starting.is_finished()).then_some(())
    });
    let until = Instant::now() + LOOK_FOR;
    while Instant::now() < until {
        assert!(!starting.is_finished(), "a start that has loaded the coordinator has made its log durable");
        assert_eq!((decided(), written()), (decision, unmarked), "nothing is decided, or marked, meanwhile");
    }
    disk.power_cut(random);
    let (mut broker, started) = starting.join().expect("no panic");
    if started.is_ok() {
        broker.die(Death::Kill, random);
    }
    assert_eq!(written(), unmarked, "no marker was written");
    disk.hold_syncs(None);
    broker.start_again();
    let mut successor = Producer::init(broker.connect(), "id", TIMEOUT_MS).expect("a successor");
    successor.send(TOPIC, 0, &[b"b"]).expect("it is written");
    successor.end(true).expect("it is committed");
    let mut client = broker.connect();
    eventually("it is seen", || {
        let seen = read_committed(&mut client, TOPIC, 0);
        (seen == ["b"] || seen == ["a", "b"]).then_some(())
    });
}

/// InitProducerId may have to wait for the metadata log, from which producer ids come. No other request waits for it.
#[test]
fn who_waits_for_a_producer_id_holds_up_no_transaction() {
    let broker = SimulatedBroker::start(&settings(&[("metadata.log.dir", "/metadata")]));
    let mut client = broker.connect();
    client.create_topic(TOPIC, 1, &[]).expect("a topic");
    let mut working = Producer::init(broker.connect(), "working", TIMEOUT_MS).expect("a producer");
    broker.disk().hold_syncs(Some("__cluster_metadata"));
    let mut waiting: Vec<_> = ["one", "other"].map(|id| (id, broker.connect())).into();
    let init = |id: Option<&'static str>| InitProducerIdRequest {
        transactional_id: id.map(Into::into),
        transaction_timeout_ms: TIMEOUT_MS,
        producer_id: -1,
        producer_epoch: -1,
        ..Default::default()
    };
    // The rest of the last block is used first: more requests than it has ids, without waiting for any.
    let mut idempotent = broker.connect();
    for _ in 0..ID_BLOCK {
        idempotent.send(&init(None), 5).expect("it is sent");
    }
    eventually("ids are waited for", || (broker.disk().syncs_held() > 0).then_some(()));
    for (id, client) in &mut waiting {
        client.send(&init(Some(id)), 5).expect("it is sent");
    }
    for value in ["a", "b", "c"] {
        working.send(TOPIC, 0, &[value.as_bytes()]).expect("it is written");
        working.end(true).expect("it is committed");
    }
    eventually("it is seen", || (read_committed(&mut client, TOPIC, 0) == ["a", "b", "c"]).then_some(()));
    assert!(broker.disk().syncs_held() > 0, "the metadata wait all the time");
    broker.disk().hold_syncs(None);
    for (id, client) in &mut waiting {
        let (_, response) = client.receive::<InitProducerIdRequest<'_>>(5).expect("an answer");
        assert_eq!((response.error_code, response.producer_epoch), (0, 0), "{id}");
    }
}

/// A marker that a slow partition syncs holds up its own transaction, and neither the thread that writes markers nor
/// the coordinator.
#[test]
fn who_waits_for_markers_holds_up_no_other_transaction() {
    let broker =
        SimulatedBroker::start(&settings(&[("log.dirs", "/one,/other"), ("metadata.log.dir", "/metadata")]));
    let mut client = broker.connect();
    client.create_topic(TOPIC, 2, &[]).expect("a topic");
    let mut slow = Producer::init(broker.connect(), "slow", TIMEOUT_MS).expect("a producer");
    let mut working = Producer::init(broker.connect(), "working", TIMEOUT_MS).expect("a producer");
    // Each directory has its own flusher: the slow partition is in another one than the coordinator's log.
    let dir_of = |partition: &str| {
        let is_there = |dir: &&str| broker.disk().exists(&Path::new(dir).join(partition)).expect("a disk");
        ["/one", "/other"].into_iter().find(is_there).expect("it is somewhere")
    };
    let coordinator = dir_of("__transaction_state-0");
    let slow_partition = if dir_of("topic-0") == coordinator { 1 } else { 0 };
    assert_ne!(dir_of(&format!("topic-{slow_partition}")), coordinator, "the topic is in both");
    slow.send(TOPIC, slow_partition, &[b"slow"]).expect("it is written");
    broker.disk().hold_syncs(Some(&format!("topic-{slow_partition}")));
    slow.end(true).expect("it is decided");
    eventually("its marker is waited for", || (broker.disk().syncs_held() > 0).then_some(()));
    let other = 1 - slow_partition;
    for value in ["a", "b", "c"] {
        working.send(TOPIC, other, &[value.as_bytes()]).expect("it is written");
        working.end(true).expect("it is committed");
    }
    eventually("it is seen", || (read_committed(&mut client, TOPIC, other) == ["a", "b", "c"]).then_some(()));
    assert!(broker.disk().syncs_held() > 0, "the marker waits all the time");
    broker.disk().hold_syncs(None);
    slow.send(TOPIC, other, &[b"d"]).expect("its next transaction begins when the last one has ended");
    slow.end(true).expect("it is committed");
    for partition in 0..2 {
        eventually("nothing is open", || {
            let (stable, end) = ends(&mut client, TOPIC, partition);
            (stable == end).then_some(())
        });
    }
}

/// A partition moves into another log directory. No thread that serves clients waits for its syncs, and records that
/// are appended meanwhile count as durable afterwards.
#[test]
fn no_event_loop_waits_for_the_syncs_of_a_move() {
    let more = [("log.dirs", "/one,/other"), ("metadata.log.dir", "/metadata"), ("num.network.threads", "1")];
    let mut broker = SimulatedBroker::start(&settings(&more));
    let disk = broker.disk().clone();
    let mut client = broker.connect();
    client.set_read_timeout(TIMEOUT).expect("it can be set");
    client.create_topic(TOPIC, 1, &[]).expect("a topic");
    let mut all = Vec::new();
    write_next(&mut client, &mut all, -1);
    let is_in = |dir: &&str| disk.exists(&Path::new(dir).join("topic-0")).expect("a disk");
    let from = ["/one", "/other"].into_iter().find(is_in).expect("it is somewhere");
    let to = if from == "/one" { "/other" } else { "/one" };
    // The copy's own files there. On the way back it is the directory under the partition's final name.
    for (held, from, to) in [("-future", from, to), (to, to, from)] {
        let waits = held != "-future";
        disk.hold_syncs(Some(held));
        let mut mover = broker.connect();
        mover.move_partition(TOPIC, 0, Path::new(to)).expect("it is asked for");
        eventually("the move waits for the disk", || {
            let is_out = !disk.exists(&Path::new(from).join("topic-0")).expect("a disk");
            (disk.syncs_held() > 0 && is_out == waits).then_some(())
        });
        for _ in 0..5 {
            write_next(&mut client, &mut all, 1);
            let last = i64::try_from(all.len()).expect("few") - 1;
            assert_eq!(client.offset_at(TOPIC, 0, -1).expect("it is answered"), last + 1);
            assert_eq!(client.fetch(TOPIC, 0, last).expect("it is read").len(), 1);
        }
        let mut waiting = broker.connect();
        if waits {
            let value = format!("{}", all.len());
            let batch = batch(&[value.as_bytes()]);
            waiting.send(&produce_request(TOPIC, 0, -1, &batch), 9).expect("it is sent");
            all.push(value.into_bytes());
            let end = i64::try_from(all.len()).expect("few");
            eventually("it is appended", || (client.offset_at(TOPIC, 0, -1).ok() == Some(end)).then_some(()));
        }
        assert!(disk.syncs_held() > 0, "the disk is waited for all the time");
        disk.hold_syncs(None);
        if waits {
            let (_, answer) = waiting.receive::<ProduceRequest<'_>>(9).expect("an answer");
            assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
        }
        eventually("it has moved", || {
            let there = disk.exists(&Path::new(to).join("topic-0")).expect("a disk");
            (there && !disk.exists(&Path::new(from).join("topic-0")).expect("a disk")).then_some(())
        });
        write_next(&mut client, &mut all, -1);
    }
    broker.die(Death::PowerCut, &mut mainstem_log::sim::Random::new(7));
    broker.start_again();
    let mut client = broker.connect();
    let read = client.read_all(TOPIC, 0, 0).expect("it is read");
    assert_eq!(read.into_iter().map(|record| record.value).collect::<Vec<_>>(), all);
}

/// Appends the count of the values appended before.
fn write_next(client: &mut Client, all: &mut Vec<Vec<u8>>, acks: i16) {
    let value = format!("{}", all.len()).into_bytes();
    client.produce(TOPIC, 0, acks, &batch(&[&value])).expect("it is written");
    all.push(value);
}
