//! Compacted topics of a cluster: each node compacts its own log, before an offset that all replicas have. The last values of all keys stay,
//! whichever node is killed, and nothing is compacted that a node which is away lacks.

mod offsets;
pub(crate) mod writer;

use crate::cluster_snapshots::ready;
use std::collections::BTreeSet;

use mainstem_client::{Admin, Consumer, ConsumerConfig, NewTopic, Position, TopicPartition};
use mainstem_tests::cluster::compacted::values;
use mainstem_tests::cluster::replica::ReplicaLog;
use mainstem_tests::cluster::{Cluster, Setup, System};
use mainstem_tests::kafka_node::assert_kafka_finds_no_fault;
use mainstem_tests::wait::eventually;
use tokio::runtime::Runtime;

use writer::{Model, Writer};

pub(crate) const TOPIC: &str = "compacted";
/// A topic with replicas on the nodes that stay while another one is away.
const WITHOUT_ONE: &str = "compacted-without-one";
/// Changes of keys between two faults: each key changes several times, and some segments are filled.
pub(crate) const CHANGES: usize = 300;
/// Changes while a compaction is waited for. Segments are closed by what follows.
pub(crate) const MORE_CHANGES: usize = 30;
/// Bytes of a segment.
const SEGMENT_BYTES: &str = "20000";

/// Starts nodes that look for work all the time.
fn start(setup: Setup) -> (Cluster, Runtime) {
    ready(
        setup
            .set("log.cleaner.backoff.ms", 50)
            .set("log.retention.check.interval.ms", 100)
            .set("log.segment.delete.delay.ms", 100),
    )
}

/// A topic that is compacted as soon as a segment is closed, with replicas of its one partition on these nodes.
pub(crate) fn eager(name: &str, replicas: Vec<i32>) -> NewTopic {
    NewTopic::new(name)
        .replicas([replicas])
        .config("cleanup.policy", "compact")
        .config("internal.segment.bytes", SEGMENT_BYTES)
        .config("min.cleanable.dirty.ratio", "0.01")
        .config("delete.retention.ms", "0")
}

fn leader(cluster: &Cluster, runtime: &Runtime, topic: &str) -> i32 {
    let admin = Admin::new(cluster.client());
    eventually("a leader", || runtime.block_on(admin.topic(topic)).ok()?.partitions[0].leader)
}

/// Returns true if the log reaches this offset, and has each key once at most before it.
fn is_compacted_before(log: &ReplicaLog, end: i64) -> bool {
    let mut keys = BTreeSet::new();
    let records = log.batches.iter().flat_map(|batch| batch.keyed_records());
    log.end() >= end && records.take_while(|record| record.offset < end).all(|record| keys.insert(record.key))
}

/// Waits until all these nodes have compacted a topic before an offset; `go_on` writes, so that segments are closed.
pub(crate) fn await_compaction(
    cluster: &Cluster,
    topic: &str,
    (nodes, end): (&[i32], i64),
    mut go_on: impl FnMut(),
) {
    eventually("a compaction on all nodes", || {
        go_on();
        let is_done = |node: &i32| is_compacted_before(&cluster.replica_log(topic, 0, *node), end);
        nodes.iter().all(is_done).then_some(())
    });
}

/// Compacts the topic on all nodes up to the writer's end, and compares each node with what was acknowledged.
fn compact_and_check(cluster: &Cluster, writer: &mut Writer, runtime: &Runtime) {
    let end = writer.end();
    await_compaction(cluster, TOPIC, (&cluster.ids(), end), || writer.write(runtime, MORE_CHANGES));
    for node in cluster.ids() {
        let log = eventually("all records on each node", || {
            Some(cluster.replica_log(TOPIC, 0, node)).filter(|log| log.end() >= writer.end())
        });
        assert_eq!(log.end(), writer.end(), "node {node}");
        assert_values_of(&log, writer, node);
    }
}

/// Asserts that a replica has the last value of each key.
#[track_caller]
pub(crate) fn assert_values_of(log: &ReplicaLog, writer: &Writer, node: i32) {
    let found = values(&log.batches).into_iter().filter_map(|(key, (_, value))| Some((key, value?)));
    assert_same(&found.collect(), &writer.values(), &format!("node {node}"));
}

#[track_caller]
pub(crate) fn assert_same(found: &Model, wanted: &Model, place: &str) {
    let mut keys = std::iter::chain(wanted.keys(), found.keys());
    let differing = keys.find(|key| found.get(*key) != wanted.get(*key));
    let shown = differing.map(|key| (String::from_utf8_lossy(key), found.get(key), wanted.get(key)));
    assert!(shown.is_none(), "{place}: key, found, acknowledged: {shown:?}");
}

/// Asserts that no record from this offset on is compacted.
#[track_caller]
fn assert_whole_from(log: &ReplicaLog, from: i64, node: i32) {
    let offsets = log.batches.iter().flat_map(|batch| batch.keyed_records()).map(|record| record.offset);
    let offsets = offsets.skip_while(|offset| *offset < from);
    let first_missing = (from..log.end()).zip(offsets).find(|(wanted, found)| wanted != found);
    assert_eq!(first_missing, None, "node {node} lacks a record that the node which is away lacks, too");
}

/// Kills a node that leads neither the topic nor the metadata, and writes until a topic of the others is compacted twice.
fn nothing_is_compacted_that_a_node_lacks(cluster: &mut Cluster, writer: &mut Writer, runtime: &Runtime) {
    let admin = Admin::new(cluster.client());
    let leads = [
        leader(cluster, runtime, TOPIC),
        runtime.block_on(admin.quorum()).expect("the metadata have a leader").leader,
    ];
    let away = cluster.ids().into_iter().find(|node| !leads.contains(node)).expect("two of three lead");
    let left: Vec<i32> = cluster.ids().into_iter().filter(|node| *node != away).collect();
    let created = runtime.block_on(admin.create_topic(&eager(WITHOUT_ONE, left.clone())));
    created.expect("a topic of two replicas");
    runtime.block_on(cluster.wait_until_in_sync(WITHOUT_ONE));
    let mut beside = Writer::new(cluster, runtime, WITHOUT_ONE);
    cluster.kill(away);
    let its_end = cluster.replica_log(TOPIC, 0, away).end();
    for _ in 0..2 {
        writer.write(runtime, CHANGES);
        beside.write(runtime, CHANGES);
        let end = beside.end();
        await_compaction(cluster, WITHOUT_ONE, (&left, end), || beside.write(runtime, MORE_CHANGES));
    }
    for node in left {
        let log = cluster.replica_log(TOPIC, 0, node);
        assert!(log.active_base > its_end, "node {node} has closed a segment meanwhile");
        assert_whole_from(&log, its_end, node);
    }
    cluster.start_node(away);
    runtime.block_on(cluster.wait_until_in_sync(TOPIC));
}

/// Reads the topic from its beginning, from its leader.
pub(crate) async fn read_from_the_beginning(cluster: &Cluster, end: i64) -> Model {
    let mut consumer = Consumer::new(ConsumerConfig::new(cluster.client())).expect("the settings agree");
    consumer.assign([(TopicPartition::new(TOPIC, 0), Position::Beginning)]);
    let mut found = Model::new();
    loop {
        let batch = consumer.next().await.expect("a batch");
        for record in batch.owned_records().map(|record| record.expect("a record")) {
            let key = record.key.expect("a key").to_vec();
            match record.value {
                Some(value) => _ = found.insert(key, value.to_vec()),
                None => _ = found.remove(&key),
            }
        }
        if batch.next_offset() >= end {
            consumer.close().await;
            return found;
        }
    }
}

#[test]
fn the_last_value_of_each_key_stays_on_all_replicas_whichever_node_is_killed() {
    let (mut cluster, runtime) = start(Setup::new("cluster-compaction", System::Mainstem));
    let topic = eager(TOPIC, cluster.ids());
    runtime.block_on(Admin::new(cluster.client()).create_topic(&topic)).expect("a topic of three replicas");
    runtime.block_on(cluster.wait_until_in_sync(TOPIC));
    let mut writer = Writer::new(&cluster, &runtime, TOPIC);
    writer.write(&runtime, CHANGES);
    compact_and_check(&cluster, &mut writer, &runtime);

    nothing_is_compacted_that_a_node_lacks(&mut cluster, &mut writer, &runtime);
    compact_and_check(&cluster, &mut writer, &runtime);

    let leads = leader(&cluster, &runtime, TOPIC);
    writer.write_over(&runtime, CHANGES, || cluster.kill(leads));
    cluster.start_node(leads);
    runtime.block_on(cluster.wait_until_in_sync(TOPIC));
    compact_and_check(&cluster, &mut writer, &runtime);

    let found = runtime.block_on(read_from_the_beginning(&cluster, writer.end()));
    assert_same(&found, &writer.values(), "a consumer");
    let log_dirs: Vec<_> = cluster.ids().into_iter().flat_map(|node| cluster.log_dirs(node)).collect();
    cluster.ids().into_iter().for_each(|node| cluster.stop(node));
    assert_kafka_finds_no_fault(&log_dirs);
}
