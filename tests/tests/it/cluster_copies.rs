//! A node was away while the others removed records that its replicas lack. It gets copies of the leaders' logs, with all that was
//! acknowledged, and leads after that.

mod interrupted;
pub(crate) mod records;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use mainstem_client::{
    Admin, ConfigChange, ConfigResource, Election, Isolation, NewTopic, Position, TopicPartition,
};
use mainstem_tests::cluster::replica::ReplicaBatch;
use mainstem_tests::cluster::{Cluster, Setup, System};
use mainstem_tests::kafka_node::assert_kafka_finds_no_fault;
use mainstem_tests::wait::eventually;
use tokio::runtime::Runtime;

use crate::cluster_snapshots::ready;
use records::{Writer, read_from_the_beginning};

/// The node that is away.
const AWAY: i32 = 3;
/// The nodes that stay.
const OTHERS: [i32; 2] = [1, 2];
/// A topic whose old segments are removed by its size.
const AGED: &str = "aged";
/// The replicas of its partitions: the node that will be away leads at first.
const AGED_REPLICAS: [[i32; 3]; 3] = [[3, 1, 2], [3, 2, 1], [3, 1, 2]];
/// A topic of one partition whose records are deleted by request.
const DELETED: &str = "deleted";
const SEGMENT_BYTES: &str = "20000";
/// A few segments.
const RETENTION_BYTES: &str = "60000";
const VALUE_BYTES: usize = 200;
/// Records of each partition that one step writes: more than a segment.
const RECORDS: usize = 120;

pub(crate) const INSTALLED: &str = "mainstem_snapshot_installed_total";
const RECEIVED_BYTES: &str = "mainstem_snapshot_bytes_total{direction=\"received\"}";

/// Starts nodes that look often for what they may remove.
fn start(name: &str) -> (Cluster, Runtime) {
    ready(
        Setup::new(name, System::Mainstem)
            .set("log.retention.check.interval.ms", 100)
            .set("log.segment.delete.delay.ms", 100)
            .set("mainstem.http.listener", "127.0.0.1:0"),
    )
}

/// The value of a sample in a node's metrics.
#[track_caller]
pub(crate) fn metric(cluster: &Cluster, node: i32, sample: &str) -> u64 {
    let metrics = cluster.http(node, "/metrics");
    let value = metrics.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' ')?.parse().ok());
    let value: f64 = value.unwrap_or_else(|| panic!("node {node} has no {sample}:\n{metrics}"));
    value as u64
}

fn await_metric(cluster: &Cluster, node: i32, sample: &str, least: u64) {
    eventually(&format!("{sample} of node {node} at {least}"), || {
        (metric(cluster, node, sample) >= least).then_some(())
    });
}

fn create(cluster: &mut Cluster, runtime: &Runtime, topic: &NewTopic) {
    runtime.block_on(Admin::new(cluster.client()).create_topic(topic)).expect("a topic");
    runtime.block_on(cluster.wait_until_in_sync(&topic.name));
}

fn set(cluster: &Cluster, runtime: &Runtime, resource: &ConfigResource, change: ConfigChange) {
    let changed = Admin::new(cluster.client());
    runtime.block_on(changed.alter_configs(resource, &[change], false)).expect("another setting");
}

fn end_on(cluster: &Cluster, partition: &TopicPartition, node: i32) -> i64 {
    cluster.replica_log(&partition.topic, partition.partition, node).end()
}

/// The base offset of a replica's first segment.
fn first_base(cluster: &Cluster, partition: &TopicPartition, node: i32) -> Option<i64> {
    let entries = fs::read_dir(cluster.log_dir(node).join(partition.to_string())).expect("it has a replica");
    let names = entries.map(|entry| entry.expect("it can be listed").file_name());
    names.filter_map(|name| name.to_str()?.strip_suffix(".log")?.parse().ok()).min()
}

/// Returns true if the nodes that stay have no segment with records up to this offset any more.
fn is_removed_to(cluster: &Cluster, partition: &TopicPartition, offset: i64) -> bool {
    OTHERS.iter().all(|node| first_base(cluster, partition, *node).is_some_and(|base| base > offset))
}

/// The directories of copies that a node fetches, and of logs that they have replaced.
fn other_dirs(cluster: &Cluster, node: i32) -> Vec<String> {
    let entries = fs::read_dir(cluster.log_dir(node)).expect("it is there");
    let names =
        entries.map(|entry| entry.expect("it can be listed").file_name().to_string_lossy().into_owned());
    names.filter(|name| name.ends_with("-future") || name.ends_with("-delete")).collect()
}

/// The first offset that the leader of a partition serves.
fn log_start(cluster: &Cluster, runtime: &Runtime, partition: &TopicPartition) -> Option<i64> {
    let admin = Admin::new(cluster.client());
    let asked = [(partition.clone(), Position::Beginning)];
    runtime.block_on(admin.offsets(asked, Isolation::ReadUncommitted)).ok()?.into_values().next()?
}

/// Waits until all replicas have the same batches from the start of the log on, and asserts that they are what was acknowledged.
pub(crate) fn assert_equal_replicas(
    cluster: &Cluster,
    runtime: &Runtime,
    partition: &TopicPartition,
    writer: &Writer<'_>,
) {
    let batches = eventually("replicas with equal batches to the end", || {
        let start = log_start(cluster, runtime, partition)?;
        let of_node = |node: i32| -> Vec<ReplicaBatch> {
            let batches = cluster.replica(&partition.topic, partition.partition, node).into_iter();
            batches.filter(|batch| batch.last_offset >= start).collect()
        };
        let mut replicas = cluster.ids().into_iter().map(of_node);
        let first = replicas.next()?;
        let is_whole = first.last()?.last_offset + 1 == writer.end(partition);
        (is_whole && replicas.all(|other| other == first)).then_some(first)
    });
    let records: Vec<_> = batches.iter().flat_map(ReplicaBatch::records).collect();
    writer.assert_acknowledged(partition, &records);
}

/// Waits until this node, the first of their replicas, leads all these partitions.
fn move_leaders(cluster: &Cluster, runtime: &Runtime, partitions: &[TopicPartition], node: i32) {
    let admin = Admin::new(cluster.client());
    let all: BTreeSet<_> = partitions.iter().cloned().collect();
    eventually("another leader of all partitions", || {
        let elected = runtime.block_on(admin.elect_leaders(Election::Preferred, Some(&all))).ok()?;
        assert_eq!(elected.len(), all.len(), "each partition has an outcome");
        let leads = |partition: &TopicPartition| {
            let topic = runtime.block_on(admin.topic(&partition.topic)).ok()?;
            topic.partitions[partition.partition as usize].leader
        };
        partitions.iter().all(|partition| leads(partition) == Some(node)).then_some(())
    });
}

/// Creates the topics. Returns the partitions of the one whose old segments are removed, and that of the other one.
fn create_topics(cluster: &mut Cluster, runtime: &Runtime) -> (Vec<TopicPartition>, TopicPartition) {
    let aged = NewTopic::new(AGED)
        .replicas(AGED_REPLICAS.map(Vec::from))
        .config("internal.segment.bytes", SEGMENT_BYTES)
        .config("retention.bytes", RETENTION_BYTES);
    create(cluster, runtime, &aged);
    let deleted = NewTopic::new(DELETED)
        .replicas([AGED_REPLICAS[0].to_vec()])
        .config("internal.segment.bytes", SEGMENT_BYTES);
    create(cluster, runtime, &deleted);
    let aged = (0..).zip(AGED_REPLICAS).map(|(index, _)| TopicPartition::new(AGED, index)).collect();
    (aged, TopicPartition::new(DELETED, 0))
}

/// Writes until the nodes that stay have removed all segments with records that the replicas of the other node have, and some more.
fn outlast(
    cluster: &Cluster,
    runtime: &Runtime,
    writer: &mut Writer<'_>,
    (aged, deleted): (&[TopicPartition], &TopicPartition),
) {
    let ends: Vec<_> = aged.iter().map(|partition| end_on(cluster, partition, AWAY)).collect();
    eventually("retention beyond the end of the node that is away", || {
        writer.write(aged, RECORDS);
        let mut all = aged.iter().zip(&ends);
        all.all(|(partition, end)| is_removed_to(cluster, partition, *end)).then_some(())
    });
    let end = end_on(cluster, deleted, AWAY);
    (0..3).for_each(|_| writer.write(std::slice::from_ref(deleted), RECORDS));
    // What can be read is deleted; the segment that is written to stays.
    let before = BTreeMap::from([(deleted.clone(), writer.end(deleted) - 1)]);
    runtime.block_on(Admin::new(cluster.client()).delete_records(&before)).expect("records are deleted");
    eventually("the removal of segments with deleted records", || {
        is_removed_to(cluster, deleted, end).then_some(())
    });
}

#[test]
fn a_node_that_was_away_for_longer_than_retention_gets_copies() {
    let (mut cluster, runtime) = start("cluster-copies");
    let (aged, deleted) = create_topics(&mut cluster, &runtime);
    let all: Vec<_> = aged.iter().chain([&deleted]).cloned().collect();
    let mut writer = Writer::new(&cluster, &runtime, VALUE_BYTES);
    move_leaders(&cluster, &runtime, &all, AWAY);
    writer.write_over(&all, RECORDS, || cluster.kill(AWAY));
    outlast(&cluster, &runtime, &mut writer, (&aged, &deleted));

    cluster.start_node(AWAY);
    await_metric(&cluster, AWAY, INSTALLED, all.len() as u64);
    for topic in [AGED, DELETED] {
        runtime.block_on(cluster.wait_until_in_sync(topic));
    }
    assert!(metric(&cluster, AWAY, RECEIVED_BYTES) > 0);
    // What is there now is to stay.
    let topic = ConfigResource::Topic(AGED.into());
    set(&cluster, &runtime, &topic, ConfigChange::Set("retention.bytes".into(), "-1".into()));
    all.iter().for_each(|partition| assert_equal_replicas(&cluster, &runtime, partition, &writer));

    // The producer's next sequence numbers are known to the new leader, from the copy.
    move_leaders(&cluster, &runtime, &all, AWAY);
    writer.write(&all, RECORDS);
    all.iter().for_each(|partition| assert_equal_replicas(&cluster, &runtime, partition, &writer));
    let ends = all.iter().map(|partition| (partition.clone(), writer.end(partition))).collect();
    for (partition, records) in runtime.block_on(read_from_the_beginning(&cluster, &ends)) {
        writer.assert_acknowledged(&partition, &records);
    }
    eventually("the removal of the logs that were replaced", || {
        other_dirs(&cluster, AWAY).is_empty().then_some(())
    });
    cluster.ids().iter().for_each(|node| cluster.stop(*node));
    assert_kafka_finds_no_fault(&cluster.ids().iter().map(|node| cluster.log_dir(*node)).collect::<Vec<_>>());
}
