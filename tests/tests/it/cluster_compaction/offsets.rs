//! `__consumer_offsets` of a cluster is compacted, and a new coordinator knows what was committed last.

use std::collections::BTreeMap;

use mainstem_client::{Admin, ConfigChange, ConfigResource, NewTopic, TopicPartition};
use mainstem_tests::cluster::{Cluster, Setup, System, compacted};
use mainstem_tests::kafka_node::assert_kafka_finds_equal_replicas;
use mainstem_tests::wait::eventually;
use tokio::runtime::Runtime;

use crate::cluster_compaction::{SEGMENT_BYTES, await_compaction, leader, start};

const OFFSETS: &str = "__consumer_offsets";
const READ: &str = "read";
const GROUPS: [&str; 3] = ["group-1", "group-2", "group-3"];
/// Partitions that each commit is about.
const PARTITIONS: i32 = 20;
/// Commits of each group between two faults.
const COMMITS: i64 = 30;

/// The groups, and what they have committed.
struct Groups {
    admin: Admin,
    committed: BTreeMap<&'static str, BTreeMap<TopicPartition, i64>>,
    /// Number of commits of each group so far.
    count: i64,
}

impl Groups {
    fn new(cluster: &Cluster) -> Groups {
        Groups { admin: Admin::new(cluster.client()), committed: BTreeMap::new(), count: 0 }
    }

    /// Has each group commit so many times.
    fn commit(&mut self, runtime: &Runtime, times: i64) {
        for _ in 0..times {
            self.count += 1;
            for (group, number) in GROUPS.into_iter().zip(1..) {
                let offset = |partition: i32| self.count * 1_000 + i64::from(partition) * 10 + number;
                let offsets: BTreeMap<_, _> = (0..PARTITIONS)
                    .map(|partition| (TopicPartition::new(READ, partition), offset(partition)))
                    .collect();
                runtime.block_on(self.admin.set_group_offsets(group, &offsets)).expect("a commit");
                self.committed.insert(group, offsets);
            }
        }
    }

    fn assert_committed(&self, runtime: &Runtime) {
        for (group, committed) in &self.committed {
            let found = runtime.block_on(self.admin.group_offsets(group)).expect("the offsets of a group");
            assert_eq!(found, *committed, "{group}");
        }
    }
}

fn log_end(cluster: &Cluster, node: i32) -> i64 {
    cluster.replica_log(OFFSETS, 0, node).end()
}

/// Creates the topics. The coordinators' one gets small segments.
fn create_topics(cluster: &mut Cluster, runtime: &Runtime, groups: &mut Groups) {
    let read = NewTopic { replication_factor: Some(3), ..NewTopic::new(READ).partitions(PARTITIONS) };
    runtime.block_on(groups.admin.create_topic(&read)).expect("a topic");
    // The first commit creates it.
    groups.commit(runtime, 1);
    let changes = [
        ConfigChange::Set("internal.segment.bytes".into(), SEGMENT_BYTES.into()),
        ConfigChange::Set("min.cleanable.dirty.ratio".into(), "0.01".into()),
    ];
    let topic = ConfigResource::Topic(OFFSETS.into());
    runtime.block_on(groups.admin.alter_configs(&topic, &changes, false)).expect("other settings");
    runtime.block_on(cluster.wait_until_in_sync(OFFSETS));
}

/// Compacts the log on all nodes up to its present end, and waits until all agree. Returns the end.
fn compact_and_compare(cluster: &Cluster, runtime: &Runtime, groups: &mut Groups) -> i64 {
    let end = log_end(cluster, leader(cluster, runtime, OFFSETS));
    await_compaction(cluster, OFFSETS, (&cluster.ids(), end), || groups.commit(runtime, 2));
    let end = log_end(cluster, leader(cluster, runtime, OFFSETS));
    let logs = eventually("the whole log on all nodes", || {
        let log = |node: i32| (node, cluster.replica_log(OFFSETS, 0, node));
        let logs: Vec<_> = cluster.ids().into_iter().map(log).collect();
        logs.iter().all(|(_, log)| log.end() >= end).then_some(logs)
    });
    assert_eq!(compacted::difference(&logs), None);
    end
}

#[test]
fn committed_offsets_outlast_compactions_and_the_coordinators_node() {
    let setup =
        Setup::new("cluster-compaction-offsets", System::Mainstem).set("offsets.topic.num.partitions", 1);
    let (mut cluster, runtime) = start(setup);
    let mut groups = Groups::new(&cluster);
    create_topics(&mut cluster, &runtime, &mut groups);
    groups.commit(&runtime, COMMITS);
    compact_and_compare(&cluster, &runtime, &mut groups);

    let coordinator = leader(&cluster, &runtime, OFFSETS);
    cluster.kill(coordinator);
    groups.assert_committed(&runtime);
    groups.commit(&runtime, COMMITS);
    groups.assert_committed(&runtime);
    cluster.start_node(coordinator);
    runtime.block_on(cluster.wait_until_in_sync(OFFSETS));
    let end = compact_and_compare(&cluster, &runtime, &mut groups);
    groups.assert_committed(&runtime);

    let log_dirs: Vec<_> = cluster.ids().into_iter().map(|node| cluster.log_dirs(node)).collect();
    cluster.ids().into_iter().for_each(|node| cluster.stop(node));
    assert_kafka_finds_equal_replicas(&log_dirs, &BTreeMap::from([(format!("{OFFSETS}-0"), end)]));
}
