//! A node comes back without files of acknowledged records, while another one was cut off. Nothing is lost: the node
//! neither leads, nor votes for a node that lacks those records.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mainstem_client::{Admin, NewTopic, Producer, ProducerConfig, Record};
use mainstem_tests::cluster::replica::ReplicaBatch;
use mainstem_tests::cluster::{Cluster, Setup, System};
use mainstem_tests::wait::{eventually, within};
use tokio::runtime::Runtime;

const TOPIC: &str = "t";
/// A topic whose leaders the remaining two nodes elect, as they would those of the other topic.
const OTHER: &str = "other";
const OTHER_PARTITIONS: i32 = 4;
const RECORDS: i64 = 200;
/// The longest wait for an election, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Damage to the files.
#[derive(Debug, Clone, Copy)]
enum Harm {
    SegmentRemoved,
    SegmentCut,
    DirectoryRemoved,
}

impl Harm {
    fn befall(self, partition: &Path) {
        let segment = partition.join("00000000000000000000.log");
        match self {
            Harm::SegmentRemoved => fs::remove_file(segment).unwrap(),
            Harm::SegmentCut => {
                let file = OpenOptions::new().write(true).open(segment).unwrap();
                file.set_len(file.metadata().unwrap().len() / 2).unwrap();
            }
            Harm::DirectoryRemoved => fs::remove_dir_all(partition).unwrap(),
        }
    }
}

fn partition_dir(cluster: &Cluster, node: i32) -> PathBuf {
    let mut dirs = cluster.log_dirs(node).into_iter().map(|dir| dir.join(format!("{TOPIC}-0")));
    dirs.find(|dir| dir.exists()).expect("it has a replica")
}

fn leader(cluster: &Cluster, runtime: &Runtime) -> Option<i32> {
    let topic = runtime.block_on(Admin::new(cluster.client()).topic(TOPIC)).ok()?;
    topic.partitions[0].leader
}

/// Writes records to a partition, each after the acknowledgement of the last one.
fn write(cluster: &Cluster, runtime: &Runtime, topic: &str, partition: i32, count: i64) {
    let producer = {
        let _context = runtime.enter();
        Producer::new(ProducerConfig::new(cluster.client())).unwrap()
    };
    for number in 0..count {
        let record = Record::new(topic, number.to_string().into_bytes()).partition(partition);
        let sent = runtime.block_on(async { producer.send(record).await?.outcome().await });
        sent.expect("it is acknowledged");
    }
    runtime.block_on(producer.close());
}

fn records(cluster: &Cluster, node: i32) -> usize {
    cluster.replica(TOPIC, 0, node).iter().flat_map(ReplicaBatch::records).count()
}

fn check(harm: Harm) {
    let setup = Setup::new("cluster-lost-files", System::Mainstem)
        .proxied()
        .set("mainstem.http.listener", "127.0.0.1:0");
    let mut cluster = setup.start().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        cluster.wait_until_ready().await;
        for (topic, partitions) in [(TOPIC, 1), (OTHER, OTHER_PARTITIONS)] {
            let topic =
                NewTopic { replication_factor: Some(3), ..NewTopic::new(topic).partitions(partitions) };
            Admin::new(cluster.client()).create_topic(&topic).await.unwrap();
            cluster.wait_until_in_sync(&topic.name).await;
        }
    });
    let leads = eventually("a leader", || leader(&cluster, &runtime));
    let left: Vec<i32> = cluster.ids().into_iter().filter(|node| *node != leads).collect();
    let (behind, harmed) = (left[0], left[1]);
    for other in [leads, harmed] {
        cluster.cut(behind, other);
        cluster.cut(other, behind);
    }
    write(&cluster, &runtime, TOPIC, 0, RECORDS);
    assert_eq!(records(&cluster, behind), 0);
    cluster.kill(leads);
    cluster.kill(harmed);
    harm.befall(&partition_dir(&cluster, harmed));
    cluster.heal();
    cluster.start_node(harmed);
    // These two are a majority. They elect leaders of partitions of which neither lacks records.
    (0..OTHER_PARTITIONS).for_each(|partition| write(&cluster, &runtime, OTHER, partition, 10));
    cluster.start_node(leads);
    runtime.block_on(cluster.wait_until_in_sync(TOPIC));
    for node in cluster.ids() {
        within(TIMEOUT, "all records on each node", || {
            (records(&cluster, node) == RECORDS as usize).then_some(())
        });
        let metrics = cluster.http(node, "/metrics");
        assert!(metrics.contains("mainstem_replica_records_lost_total 0"), "{harm:?}, node {node}");
    }
    let log = cluster.log(harmed);
    assert!(log.contains("this replica has lost what it had acknowledged"), "{log}");
    write(&cluster, &runtime, TOPIC, 0, 1);
}

#[test]
fn nothing_is_lost_when_a_segment_is_removed() {
    check(Harm::SegmentRemoved);
}

#[test]
fn nothing_is_lost_when_a_segment_is_cut() {
    check(Harm::SegmentCut);
}

#[test]
fn nothing_is_lost_when_a_partition_directory_is_removed() {
    check(Harm::DirectoryRemoved);
}
