//! A copy that is interrupted, by kills of the node that gets it and of the one that it comes from.

use mainstem_client::{Admin, ConfigChange, ConfigResource, NewTopic, TopicPartition};
use mainstem_tests::cluster::Cluster;
use mainstem_tests::wait::eventually;
use tokio::runtime::Runtime;

use super::records::Writer;
use super::{
    AWAY, RECEIVED_BYTES, assert_equal_replicas, await_metric, create, end_on, is_removed_to, metric,
    other_dirs, set, start,
};

const LARGE: &str = "large";
const SEGMENT_BYTES: &str = "4194304";
/// Segments that are copied.
const RETENTION_BYTES: &str = "29360128";
const VALUE_BYTES: usize = 500_000;
/// Records that one step writes: most of a segment.
const RECORDS: usize = 8;
/// Bytes that a copy has when it is interrupted for the second time: some files are whole, and on disk for good.
const SOME_BYTES: u64 = 9 << 20;

const FETCHING: &str = "mainstem_snapshot_active{direction=\"received\"}";
const RESTARTS: &str = "mainstem_snapshot_restarts_total";
const RATE: &str = "follower.replication.throttled.rate";

/// Changes the rate at which nodes may catch up, in bytes per second.
fn set_rate(cluster: &Cluster, runtime: &Runtime, rate: Option<u64>) {
    let change = match rate {
        Some(rate) => ConfigChange::Set(RATE.into(), rate.to_string()),
        None => ConfigChange::Delete(RATE.into()),
    };
    set(cluster, runtime, &ConfigResource::AllBrokers, change);
}

fn leader(cluster: &Cluster, runtime: &Runtime) -> i32 {
    let admin = Admin::new(cluster.client());
    eventually("a leader", || runtime.block_on(admin.topic(LARGE)).ok()?.partitions[0].leader)
}

/// Kills the node while it has a part of the copy: at this rate the next part would come in a quarter of an hour.
fn kill_with_a_part(cluster: &mut Cluster) {
    await_metric(cluster, AWAY, RECEIVED_BYTES, 1);
    assert_eq!(metric(cluster, AWAY, FETCHING), 1);
    cluster.kill(AWAY);
    let dirs = other_dirs(cluster, AWAY);
    let is_begun = |name: &String| cluster.log_dir(AWAY).join(name).join("mainstem.incoming").exists();
    assert!(dirs.len() == 1 && dirs.iter().all(is_begun), "{dirs:?}");
}

#[test]
fn a_copy_that_is_interrupted_resumes() {
    let (mut cluster, runtime) = start("cluster-copies-interrupted");
    let topic = NewTopic::new(LARGE)
        .replicas([vec![1, 2, 3]])
        .config("segment.bytes", SEGMENT_BYTES)
        .config("retention.bytes", RETENTION_BYTES)
        .config("follower.replication.throttled.replicas", format!("0:{AWAY}"));
    create(&mut cluster, &runtime, &topic);
    let partition = TopicPartition::new(LARGE, 0);
    let partitions = [partition.clone()];
    let mut writer = Writer::new(&cluster, &runtime, VALUE_BYTES);
    writer.write(&partitions, RECORDS);
    cluster.kill(AWAY);
    let end = end_on(&cluster, &partition, AWAY);
    eventually("retention beyond the end of the node that is away", || {
        writer.write(&partitions, RECORDS);
        is_removed_to(&cluster, &partition, end).then_some(())
    });

    set_rate(&cluster, &runtime, Some(1_000));
    cluster.start_node(AWAY);
    kill_with_a_part(&mut cluster);
    // After a change the leader sends the next part without a pause.
    set_rate(&cluster, &runtime, Some(1_001));
    cluster.start_node(AWAY);
    await_metric(&cluster, AWAY, RESTARTS, 1);
    await_metric(&cluster, AWAY, RECEIVED_BYTES, 1);

    // A higher rate counts during a pause that is long because of the lower one.
    set_rate(&cluster, &runtime, Some(4 << 20));
    await_metric(&cluster, AWAY, RECEIVED_BYTES, SOME_BYTES);
    let from = leader(&cluster, &runtime);
    cluster.kill(AWAY);
    cluster.start_node(AWAY);
    cluster.kill(from);
    cluster.start_node(from);
    set_rate(&cluster, &runtime, None);
    runtime.block_on(cluster.wait_until_in_sync(LARGE));
    assert_equal_replicas(&cluster, &runtime, &partition, &writer);
    writer.write(&partitions, RECORDS);
    assert_equal_replicas(&cluster, &runtime, &partition, &writer);
}
