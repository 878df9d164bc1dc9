//! The operator's view of nodes: metrics under Kafka's names, whether a node may be restarted, and how many nodes may be away.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mainstem_client::{
    Admin, ConsumerConfig, GroupConfig, GroupConsumer, NewTopic, Position, Producer, ProducerConfig, Record,
};
use mainstem_testkit::figure;
use mainstem_tests::broker::binary;
use mainstem_tests::client::Client;
use mainstem_tests::cluster::replica::ReplicaBatch;
use mainstem_tests::cluster::{Cluster, Setup, System};
use mainstem_tests::kafka::{Failure, batch, refusal};
use mainstem_tests::wait::eventually;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::metadata_request::{MetadataRequest, MetadataRequestTopic};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

const TOPIC: &str = "t";
const PARTITIONS: i32 = 6;
/// A topic with one replica of each partition.
const ALONE: &str = "alone";
/// A topic all of whose replicas have to be in sync.
const STRICT: &str = "strict";
/// A topic created while nodes are away.
const CREATED_WITHOUT: &str = "created-without";
/// A topic with fewer replicas than nodes.
const SPREAD: &str = "spread";
/// The longest wait for an election and the end of a session, on a slow machine.
const SEEN_MAX: Duration = Duration::from_secs(60);
/// The interval at which an idle group checks whether it has read all.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The longest time from the last record until a group has read all.
const READ_MAX: Duration = Duration::from_secs(120);
/// `replica.lag.time.max.ms`. A node that sleeps counts as alive for as long.
const LAG_MAX: Duration = Duration::from_secs(10);
/// Records that a sleeping node misses.
const MISSED: i64 = 25;

const ACTIVE: &str = "kafka_controller_kafkacontroller_activecontrollercount";
const OFFLINE: &str = "kafka_controller_kafkacontroller_offlinepartitionscount";
const IMBALANCE: &str = "kafka_controller_kafkacontroller_preferredreplicaimbalancecount";
const FENCED: &str = "kafka_controller_kafkacontroller_fencedbrokercount";
const ELECTIONS: &str = "kafka_controller_controllerstats_leaderelectionrateandtimems_count";
const UNCLEAN: &str = "kafka_controller_controllerstats_uncleanleaderelections_total";
const LED: &str = "kafka_server_replicamanager_leadercount";
const HOSTED: &str = "kafka_server_replicamanager_partitioncount";
const UNDER_REPLICATED: &str = "kafka_server_replicamanager_underreplicatedpartitions";
const UNDER_MIN: &str = "kafka_server_replicamanager_underminisrpartitioncount";
const AT_MIN: &str = "kafka_server_replicamanager_atminisrpartitioncount";
const SHRINKS: &str = "kafka_server_replicamanager_isrshrinks_total";
const EXPANDS: &str = "kafka_server_replicamanager_isrexpands_total";
const MAX_LAG: &str = "kafka_server_replicafetchermanager_maxlag{clientid=\"Replica\"}";

fn start(setup: Setup, topics: &[NewTopic]) -> (Cluster, Runtime) {
    let mut cluster = setup.set("mainstem.http.listener", "127.0.0.1:0").start().expect("our own binary");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        cluster.wait_until_ready().await;
        for topic in topics {
            Admin::new(cluster.client()).create_topic(topic).await.expect("a topic");
            cluster.wait_until_in_sync(&topic.name).await;
        }
    });
    (cluster, runtime)
}

fn replicated(partitions: i32, replicas: i16) -> NewTopic {
    NewTopic { replication_factor: Some(replicas), ..NewTopic::new(TOPIC).partitions(partitions) }
}

fn connect(cluster: &Cluster, node: i32) -> Client {
    let addresses = cluster.bootstrap();
    let address = addresses.split(',').nth(node as usize - 1).expect("there is such a node");
    Client::connect(address).expect("it listens")
}

/// The metrics of a node.
struct Scrape(String);

impl Scrape {
    fn of(cluster: &Cluster, node: i32) -> Scrape {
        Scrape(cluster.http(node, "/metrics"))
    }

    #[track_caller]
    fn get(&self, sample: &str) -> i64 {
        let line = self.0.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        let value: f64 =
            line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no sample {sample}"));
        value as i64
    }
}

#[track_caller]
fn sum(cluster: &Cluster, nodes: &[i32], sample: &str) -> i64 {
    nodes.iter().map(|node| Scrape::of(cluster, *node).get(sample)).sum()
}

/// Waits until metrics have these sums over all running nodes.
#[track_caller]
fn await_sums(cluster: &Cluster, nodes: &[i32], expected: &[(&str, i64)]) {
    let deadline = Instant::now() + SEEN_MAX;
    loop {
        let found: Vec<_> = expected.iter().map(|(name, _)| (*name, sum(cluster, nodes, name))).collect();
        if found == expected {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "not {expected:?} within {SEEN_MAX:?}, but {found:?}\n{}",
            cluster.tails()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until `/health` of a node says that it may be stopped.
#[track_caller]
fn await_may_stop(cluster: &Cluster, node: i32) {
    await_health(cluster, node, |health| health["may_stop"] == true);
}

/// Waits until `/health` of a node says that it may not be stopped, for one of these reasons.
#[track_caller]
fn await_reason(cluster: &Cluster, node: i32, reasons: &[&str]) {
    await_health(cluster, node, |health| {
        let reason = health["reason"].as_str().unwrap_or_default();
        health["may_stop"] == false && reasons.iter().any(|part| reason.contains(part))
    });
}

#[track_caller]
fn await_health(cluster: &Cluster, node: i32, is_so: impl Fn(&Value) -> bool) {
    let deadline = Instant::now() + SEEN_MAX;
    loop {
        let health: Value = serde_json::from_str(&cluster.http(node, "/health")).expect("JSON");
        if is_so(&health) {
            return;
        }
        assert!(Instant::now() < deadline, "node {node}: {health}, not within {SEEN_MAX:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Leader and first replica of each partition, by the cluster.
fn leaders(cluster: &Cluster, runtime: &Runtime) -> Vec<(Option<i32>, i32)> {
    let topic = runtime.block_on(Admin::new(cluster.client()).topic(TOPIC)).expect("it is there");
    topic.partitions.iter().map(|one| (one.leader, one.replicas[0])).collect()
}

/// Waits until one of these nodes leads a partition.
#[track_caller]
fn await_leader(cluster: &Cluster, runtime: &Runtime, partition: usize, nodes: &[i32]) -> i32 {
    eventually("a leader that lives", || {
        leaders(cluster, runtime)[partition].0.filter(|leader| nodes.contains(leader))
    })
}

/// Waits until this node, and it alone, reports that it is the controller.
#[track_caller]
fn controller(cluster: &Cluster, nodes: &[i32]) -> i32 {
    eventually("one controller", || {
        let is_it = |node: &&i32| Scrape::of(cluster, **node).get(ACTIVE) == 1;
        let those: Vec<_> = nodes.iter().filter(is_it).collect();
        if let [one] = those[..] { Some(*one) } else { None }
    })
}

/// Waits until exactly these nodes are in sync in a partition.
#[track_caller]
fn await_isr(cluster: &Cluster, runtime: &Runtime, partition: usize, nodes: &[i32]) {
    let admin = Admin::new(cluster.client());
    let deadline = Instant::now() + SEEN_MAX;
    loop {
        let found = runtime.block_on(admin.topic(TOPIC)).expect("it is there");
        let isr: BTreeSet<i32> = found.partitions[partition].isr.iter().copied().collect();
        if isr == nodes.iter().copied().collect() {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "partition {partition}: {isr:?}, not {nodes:?}\n{}",
            cluster.tails()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A replica may lag for ten minutes. Replicas of a fenced node, and one that its own node cannot use, leave the ISR before.
#[test]
fn replicas_that_are_known_to_be_gone_are_out_of_sync_at_once() {
    let setup = Setup::new("cluster-isr", System::Mainstem)
        .set("replica.lag.time.max.ms", 600_000)
        .set("broker.heartbeat.interval.ms", 200)
        .set("broker.session.timeout.ms", 1_000);
    let (mut cluster, runtime) = start(setup, &[replicated(2, 3)]);
    let (all, left, gone) = ([1, 2, 3], [1, 2], 3);
    for partition in 0..2 {
        let leader = await_leader(&cluster, &runtime, partition, &all);
        let sent = connect(&cluster, leader).produce(TOPIC, partition as i32, -1, &batch(&[b"record"]));
        sent.expect("all are there");
    }
    cluster.kill(gone);
    (0..2).for_each(|partition| await_isr(&cluster, &runtime, partition, &left));
    left.iter().for_each(|node| await_reason(&cluster, *node, &["only 1 other"]));
    cluster.start_node(gone);
    (0..2).for_each(|partition| await_isr(&cluster, &runtime, partition, &all));
    all.iter().for_each(|node| await_may_stop(&cluster, *node));

    // One of its logs is damaged: that partition alone is offline there.
    cluster.stop(gone);
    let mut dirs = cluster.log_dirs(gone).into_iter().map(|dir| dir.join(format!("{TOPIC}-0")));
    let dir = dirs.find(|dir| dir.exists()).expect("it has a replica");
    std::fs::remove_file(dir.join("00000000000000000000.log")).expect("it has a segment");
    cluster.start_node(gone);
    await_isr(&cluster, &runtime, 1, &all);
    await_isr(&cluster, &runtime, 0, &left);
    left.iter().for_each(|node| await_reason(&cluster, *node, &["partition t-0 has only 1 other"]));
}

#[test]
fn metrics_and_health_follow_a_node_that_leaves_and_comes_back() {
    let setup = Setup::new("cluster-metrics", System::Mainstem)
        .set("replica.lag.time.max.ms", LAG_MAX.as_millis())
        .set("broker.session.timeout.ms", LAG_MAX.as_millis())
        .set("leader.imbalance.check.interval.seconds", 5);
    let alone = NewTopic { replication_factor: Some(1), ..NewTopic::new(ALONE).partitions(3) };
    let strict = NewTopic { replication_factor: Some(3), ..NewTopic::new(STRICT) };
    let strict = strict.config("min.insync.replicas", "3");
    let begun = Instant::now();
    let (mut cluster, runtime) = start(setup, &[replicated(PARTITIONS, 3), alone, strict]);
    let all = cluster.ids();
    let count = i64::from(PARTITIONS);
    await_sums(
        &cluster,
        &all,
        &[(LED, count + 4), (HOSTED, 3 * count + 6), (UNDER_REPLICATED, 0), (OFFLINE, 0), (FENCED, 0)],
    );
    assert_eq!(sum(&cluster, &all, UNCLEAN), 0);
    let shrinks = sum(&cluster, &all, SHRINKS);
    // On a slower machine a node may have lagged for that long.
    assert!(shrinks == 0 || begun.elapsed() >= LAG_MAX, "{shrinks} shrinks after {:?}", begun.elapsed());
    let elections = sum(&cluster, &all, ELECTIONS);
    assert!(elections >= count, "{elections} elections of {count} leaders");
    all.iter().for_each(|node| await_reason(&cluster, *node, &["strict-0 has only 2 other"]));

    // The controller sleeps. Records that it misses are a lag, until it counts as dead.
    let gone = controller(&cluster, &all);
    let lost = leaders(&cluster, &runtime).iter().filter(|(leader, _)| *leader == Some(gone)).count() as i64;
    let (index, (leader, _)) = (0..)
        .zip(leaders(&cluster, &runtime))
        .find(|(_, (leader, _))| leader.is_some_and(|leader| leader != gone))
        .expect("others lead, too");
    let leader = leader.expect("it was found");
    let mut client = connect(&cluster, leader);
    client.produce(TOPIC, index, -1, &batch(&[b"known"])).expect("all are there");
    await_sums(&cluster, &all, &[(MAX_LAG, 0), (UNDER_REPLICATED, 0)]);
    let left: Vec<_> = all.iter().copied().filter(|node| *node != gone).collect();
    let shrinks = sum(&cluster, &left, SHRINKS);
    cluster.pause(gone);
    let missed = batch(&[&b"missed"[..]; MISSED as usize]);
    client.produce(TOPIC, index, -1, &missed).expect("two of three are enough");
    let of_node = format!("mainstem_replica_lag_records_max{{node=\"{gone}\"}}");
    eventually("the lag of the node that sleeps", || {
        let scrape = Scrape::of(&cluster, leader);
        ((scrape.get(MAX_LAG), scrape.get(&of_node)) == (MISSED, MISSED)).then_some(())
    });

    cluster.kill(gone);
    let new = controller(&cluster, &left);
    assert_ne!(new, gone);
    await_sums(
        &cluster,
        &left,
        &[
            (LED, count + 3),
            (UNDER_REPLICATED, count + 1),
            // Partitions with one replica need it.
            (AT_MIN, count + 2),
            (UNDER_MIN, 1),
            // The one partition that has no other replica.
            (OFFLINE, 1),
            // Both nodes know of it.
            (FENCED, 2),
        ],
    );
    // Where all three replicas are required, acks=all is refused, and nothing else.
    let strict = || {
        let found = runtime.block_on(Admin::new(cluster.client()).topic(STRICT)).expect("it is there");
        (found.partitions[0].leader.filter(|leader| left.contains(leader)), found.partitions[0].replicas[0])
    };
    eventually("acks=all is refused", || {
        let mut client = connect(&cluster, strict().0?);
        match refusal(client.produce(STRICT, 0, -1, &batch(&[b"refused"]))) {
            ErrorCode::NOT_LEADER_OR_FOLLOWER => return None,
            refused => assert_eq!(refused, ErrorCode::NOT_ENOUGH_REPLICAS),
        }
        match client.produce(STRICT, 0, 1, &batch(&[b"taken"])) {
            Err(Failure::Refused(ErrorCode::NOT_LEADER_OR_FOLLOWER)) => None,
            taken => {
                assert!(matches!(taken, Ok(0)), "{taken:?}");
                Some(())
            }
        }
    });
    // Leaders count them at their next look at their followers.
    eventually("a shrink of each partition", || {
        (sum(&cluster, &left, SHRINKS) - shrinks >= count).then_some(())
    });
    assert!(sum(&cluster, &left, ELECTIONS) >= lost, "{lost} leaders were lost");
    left.iter().for_each(|node| await_reason(&cluster, *node, &["only 1 other", "strict-0 has only"]));
    eventually("the controller alone counts them", || {
        let new = controller(&cluster, &left);
        let counted = |node: &i32| Scrape::of(&cluster, *node).get(OFFLINE);
        left.iter().all(|node| counted(node) == i64::from(*node == new)).then_some(())
    });
    let not_preferred = |cluster: &Cluster| {
        let leaders = leaders(cluster, &runtime);
        leaders.iter().filter(|(leader, preferred)| *leader != Some(*preferred)).count() as i64
    };
    // Two of six cannot be led by their first replicas, and the one with a single replica cannot be led at all.
    eventually("partitions that are not led by the first of their replicas", || {
        let (leader, preferred) = strict();
        let found = (not_preferred(&cluster), sum(&cluster, &left, IMBALANCE));
        (found == (2, 3 + i64::from(leader != Some(preferred)))).then_some(())
    });

    let expands = sum(&cluster, &left, EXPANDS);
    cluster.start_node(gone);
    runtime.block_on(cluster.wait_until_in_sync(TOPIC));
    await_sums(
        &cluster,
        &all,
        &[(UNDER_REPLICATED, 0), (AT_MIN, 4), (OFFLINE, 0), (FENCED, 0), (MAX_LAG, 0), (LED, count + 4)],
    );
    let expanded = sum(&cluster, &left, EXPANDS) - expands;
    assert!(expanded >= count, "{expanded} expands of {count} partitions");
    // Preferred replicas lead again by themselves.
    eventually("preferred replicas lead", || {
        (not_preferred(&cluster) == 0 && sum(&cluster, &all, IMBALANCE) == 0).then_some(())
    });
    runtime.block_on(Admin::new(cluster.client()).delete_topic(STRICT)).expect("it is deleted");
    all.iter().for_each(|node| await_may_stop(&cluster, *node));

    // A leader that is chosen by a transfer becomes the preferred leader of its partition.
    let (leader, _) = leaders(&cluster, &runtime)[0];
    let to = all.iter().copied().find(|node| Some(*node) != leader).expect("three nodes");
    let output = Command::new(binary())
        .args(["cluster", "transfer", TOPIC, "0", &to.to_string(), "--json"])
        .args(["--bootstrap", &cluster.bootstrap()])
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let expected = json!({ "topic": TOPIC, "partition": 0, "leader": to, "was_transferred": true });
    assert_eq!(said, expected);
    eventually("it leads, and all know", || (leaders(&cluster, &runtime)[0] == (Some(to), to)).then_some(()));
}

#[test]
fn five_replicas_on_five_nodes_go_on_without_two() {
    let mut setup = Setup::new("cluster-five", System::Mainstem).nodes(5).set("min.insync.replicas", 3);
    setup = setup.set("replica.lag.time.max.ms", LAG_MAX.as_millis());
    let rack_of = |node: i32| ["a", "a", "b", "b", "c"][node as usize - 1];
    for node in 1..=5 {
        setup = setup.set_on(node, "broker.rack", rack_of(node));
    }
    let spread = NewTopic { replication_factor: Some(3), ..NewTopic::new(SPREAD).partitions(10) };
    let (mut cluster, runtime) = start(setup, &[replicated(3, 5), spread]);
    let spread = runtime.block_on(Admin::new(cluster.client()).topic(SPREAD)).expect("it is there");
    for partition in &spread.partitions {
        let racks: BTreeSet<_> = partition.replicas.iter().map(|node| rack_of(*node)).collect();
        assert_eq!(racks.len(), 3, "a rack has two of the replicas {:?}", partition.replicas);
    }
    let producer = {
        let _context = runtime.enter();
        Producer::new(ProducerConfig::new(cluster.client())).expect("the settings agree")
    };
    let mut acknowledged: i64 = 0;
    // One record after the other, so that the order of values is known.
    let mut send = |count: i64| {
        for _ in 0..count {
            let record = Record::new(TOPIC, acknowledged.to_string()).partition(0);
            let outcome = runtime.block_on(async { producer.send(record).await?.outcome().await });
            assert_eq!(outcome.expect("three of five are enough").offset, Some(acknowledged));
            acknowledged += 1;
        }
    };
    send(100);
    // The leader, and the one after it.
    let mut gone = BTreeSet::new();
    for _ in 0..2 {
        let living: Vec<_> = cluster.ids().into_iter().filter(|node| !gone.contains(node)).collect();
        let leader = await_leader(&cluster, &runtime, 0, &living);
        cluster.kill(leader);
        gone.insert(leader);
        send(100);
    }
    let left: Vec<_> = cluster.ids().into_iter().filter(|node| !gone.contains(node)).collect();
    assert_eq!((left.len(), gone.len()), (3, 2));
    left.iter().for_each(|node| await_reason(&cluster, *node, &["only 2 other"]));
    let values = create_and_write_with_fenced_nodes(&cluster, &runtime, &left);
    gone.iter().for_each(|node| cluster.start_node(*node));
    runtime.block_on(cluster.wait_until_in_sync(TOPIC));
    send(10);
    runtime.block_on(producer.close());
    let expected: Vec<_> = (0..acknowledged).map(|offset| offset.to_string().into_bytes()).collect();
    await_records(&cluster, TOPIC, &expected);
    runtime.block_on(cluster.wait_until_in_sync(CREATED_WITHOUT));
    await_records(&cluster, CREATED_WITHOUT, &values);
}

/// Creates a topic with replicas on fenced nodes, and writes to it. Returns the values.
fn create_and_write_with_fenced_nodes(cluster: &Cluster, runtime: &Runtime, left: &[i32]) -> Vec<Vec<u8>> {
    await_sums(cluster, left, &[(FENCED, 2 * left.len() as i64)]);
    let admin = Admin::new(cluster.client());
    let topic = NewTopic { replication_factor: Some(5), ..NewTopic::new(CREATED_WITHOUT) };
    runtime.block_on(admin.create_topic(&topic)).expect("Kafka creates it, too");
    let values: Vec<Vec<u8>> = (0..10).map(|number| format!("without-{number}").into_bytes()).collect();
    let producer = {
        let _context = runtime.enter();
        Producer::new(ProducerConfig::new(cluster.client())).expect("the settings agree")
    };
    for (offset, value) in (0..).zip(&values) {
        let record = Record::new(CREATED_WITHOUT, value.clone());
        let outcome = runtime.block_on(async { producer.send(record).await?.outcome().await });
        assert_eq!(outcome.expect("three of five are enough").offset, Some(offset));
    }
    runtime.block_on(producer.close());
    // A new leader may still have all replicas in its ISR.
    eventually("who is away is not in sync", || {
        let found = runtime.block_on(admin.topic(CREATED_WITHOUT)).expect("it is there");
        let partition = &found.partitions[0];
        assert_eq!(partition.replicas.len(), 5);
        let in_sync: BTreeSet<i32> = partition.isr.iter().copied().collect();
        (in_sync == left.iter().copied().collect()).then_some(())
    });
    values
}

/// Waits until the files of all nodes have these records of partition 0, in order and from offset 0. The ISR is no
/// proof: it keeps a node for as long as it may lag.
#[track_caller]
fn await_records(cluster: &Cluster, topic: &str, values: &[Vec<u8>]) {
    let expected: Vec<_> = (0..).zip(values.iter().cloned()).collect();
    let deadline = Instant::now() + SEEN_MAX;
    for node in cluster.ids() {
        loop {
            let batches = cluster.replica(topic, 0, node);
            let records: Vec<_> = batches.iter().flat_map(ReplicaBatch::records).collect();
            if records == expected {
                break;
            }
            let (found, wanted) = (records.len(), expected.len());
            assert!(Instant::now() < deadline, "node {node} has {found} records of {wanted}, or other ones");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The nodes that a node reports to clients.
fn named_by(cluster: &Cluster, node: i32) -> BTreeSet<i32> {
    let request = MetadataRequest { topics: Some(Vec::new()), ..MetadataRequest::default() };
    connect(cluster, node).call(&request, 12).brokers.iter().map(|broker| broker.node_id).collect()
}

/// Waits until a node reports these nodes to clients.
#[track_caller]
fn await_named(cluster: &Cluster, node: i32, expected: &[i32]) {
    let expected: BTreeSet<_> = expected.iter().copied().collect();
    let deadline = Instant::now() + SEEN_MAX;
    while named_by(cluster, node) != expected {
        assert!(Instant::now() < deadline, "node {node} does not name {expected:?}\n{}", cluster.tails());
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn cut_off(cluster: &Cluster, node: i32) {
    for other in cluster.ids().into_iter().filter(|other| *other != node) {
        cluster.cut(node, other);
        cluster.cut(other, node);
    }
}

/// A silent metadata leader does not end its links: no answer comes, and no error either, until the others close them
/// after 10 s. No node waits for that.
#[test]
fn nodes_go_on_without_an_answer_of_a_metadata_leader_that_is_cut_off() {
    let setup = Setup::new("cluster-cut-off", System::Mainstem)
        .proxied()
        .set("broker.heartbeat.interval.ms", 200)
        .set("broker.session.timeout.ms", 1_000);
    let (mut cluster, _runtime) = start(setup, &[]);
    let all = cluster.ids();
    let leader = controller(&cluster, &all);
    let left: Vec<_> = all.iter().copied().filter(|node| *node != leader).collect();
    let said_before: Vec<_> = left.iter().map(|node| cluster.log(*node).len()).collect();
    cut_off(&cluster, leader);
    // An election of up to 3 s, and a session of 1 s after it.
    left.iter().for_each(|node| await_named(&cluster, *node, &left));
    let said = left.iter().zip(&said_before).map(|(node, begin)| cluster.log(*node).split_off(*begin));
    // A node that has closed a link by then may have waited for that, unless it got no processor time.
    let waited = said.into_iter().filter(|log| log.contains("nothing came for")).count();
    figure("one_and_nodes_that_waited", 1.0 + waited as f64);
    cluster.heal();
    all.iter().for_each(|node| await_named(&cluster, *node, &all));

    // A node that is cut off cannot know which nodes are back. Clients to which it reports only itself would never find another one.
    let leader = controller(&cluster, &all);
    let gone = all.iter().copied().find(|node| *node != leader).expect("three nodes");
    let left: Vec<_> = all.iter().copied().filter(|node| *node != gone).collect();
    cluster.kill(gone);
    await_named(&cluster, leader, &left);
    cut_off(&cluster, leader);
    await_named(&cluster, leader, &all);
}

/// One node after the other stops in order and starts again, when `/health` says that it may. A producer and a group
/// see no error.
#[test]
fn a_rolling_restart_is_no_error_to_clients() {
    let setup = Setup::new("cluster-rolling", System::Mainstem).set("auto.create.topics.enable", true);
    let (mut cluster, runtime) = start(setup, &[replicated(3, 3)]);
    // A topic is created when any node is asked for it, with the default number of replicas.
    for node in cluster.ids() {
        let name = format!("automatic-{node}");
        let topics = vec![MetadataRequestTopic { name: Some(name.as_str().into()), ..Default::default() }];
        let request = MetadataRequest {
            topics: Some(topics),
            allow_auto_topic_creation: true,
            ..MetadataRequest::default()
        };
        connect(&cluster, node).call(&request, 9);
        let created = runtime.block_on(cluster.wait_until_in_sync(&name));
        assert_eq!(created.partitions[0].replicas.len(), 3, "{created:?}");
    }
    let is_over = Arc::new(AtomicBool::new(false));
    // The number of records, once it is known.
    let total = Arc::new(AtomicU64::new(u64::MAX));
    let sent = {
        let (config, is_over) = (ProducerConfig::new(cluster.client()), is_over.clone());
        let total = total.clone();
        runtime.spawn(async move {
            let producer = Producer::new(config).expect("the settings agree");
            let (mut sent, mut slowest) = (0_u64, Duration::ZERO);
            while !is_over.load(Ordering::Acquire) {
                let begun = Instant::now();
                let delivery =
                    producer.send(Record::new(TOPIC, sent.to_string())).await.expect("it is taken");
                delivery.outcome().await.expect("it is acknowledged");
                slowest = slowest.max(begun.elapsed());
                sent += 1;
            }
            producer.close().await;
            total.store(sent, Ordering::Release);
            (sent, slowest)
        })
    };
    let read = {
        let config = GroupConfig {
            start: Position::Beginning,
            ..GroupConfig::new("rolling", [TOPIC], ConsumerConfig::new(cluster.client()))
        };
        runtime.spawn(async move {
            let mut consumer = GroupConsumer::new(config).expect("the settings agree");
            let mut values = BTreeSet::new();
            let mut deadline = None;
            while (values.len() as u64) < total.load(Ordering::Acquire) {
                let Ok(batch) = tokio::time::timeout(LOOK_EVERY, consumer.next()).await else {
                    let is_known = total.load(Ordering::Acquire) != u64::MAX;
                    match deadline {
                        None if is_known => deadline = Some(Instant::now() + READ_MAX),
                        Some(deadline) if Instant::now() >= deadline => break,
                        _ => {}
                    }
                    continue;
                };
                for record in batch.expect("no error").owned_records() {
                    let value = record.expect("it is whole").value.expect("a value");
                    let value = std::str::from_utf8(&value).expect("text");
                    values.insert(value.parse::<u64>().expect("a number"));
                }
            }
            consumer.close().await.expect("its offsets are committed");
            values
        })
    };
    let mut longest = Duration::ZERO;
    for node in cluster.ids() {
        await_may_stop(&cluster, node);
        let begun = Instant::now();
        cluster.stop(node);
        cluster.start_node(node);
        runtime.block_on(cluster.wait_until_in_sync(TOPIC));
        longest = longest.max(begun.elapsed());
    }
    is_over.store(true, Ordering::Release);
    let (sent, slowest) = runtime.block_on(sent).expect("the producer");
    let values = runtime.block_on(read).expect("the group");
    assert!(values.iter().copied().eq(0..sent), "{} of {sent} records were read", values.len());
    // Leadership is handed over: no acknowledgement waits for a restart or an election.
    figure("slowest_acknowledgement_by_restart", slowest.div_duration_f64(longest));
}
