//! A node has lost one of its two disks. Its replicas there are replaced by new ones, with all that was acknowledged; the old disk harms
//! nothing when it comes back. A disk that is not mounted is not taken for a lost one.

use std::fs;
use std::path::{Path, PathBuf};

use mainstem_client::{Admin, NewTopic, TopicPartition};
use mainstem_tests::cluster::{Cluster, Setup, System};
use mainstem_tests::kafka_node::assert_kafka_finds_no_fault;
use mainstem_tests::wait::eventually;
use tokio::runtime::Runtime;

use crate::cluster_copies::assert_equal_replicas;
use crate::cluster_copies::records::Writer;
use crate::cluster_snapshots::ready;

/// The node that loses a disk.
const NODE: i32 = 3;
const TOPIC: &str = "orders";
const PARTITIONS: i32 = 6;
const VALUE_BYTES: usize = 200;
/// Records of each partition that one step writes.
const RECORDS: usize = 60;

/// The two disks of the node, beside the cluster's own directories.
struct Disks {
    home: tempfile::TempDir,
}

impl Disks {
    fn new() -> Disks {
        Disks { home: tempfile::tempdir().expect("a directory") }
    }

    /// The one with the metadata, which stays.
    fn first(&self) -> PathBuf {
        self.home.path().join("first")
    }

    /// The one that is lost.
    fn second(&self) -> PathBuf {
        self.home.path().join("second")
    }

    /// Takes the second disk away, and keeps it under a name.
    fn take_away(&self, name: &str) {
        fs::rename(self.second(), self.home.path().join(name)).expect("it can be renamed");
    }

    /// Has a disk that was taken away take the place of the second one.
    fn bring_back(&self, name: &str) {
        fs::rename(self.home.path().join(name), self.second()).expect("it can be renamed");
    }
}

fn start(name: &str, disks: &Disks) -> (Cluster, Runtime) {
    ready(
        Setup::new(name, System::Mainstem)
            .disks(NODE, &[disks.first(), disks.second()])
            .set("mainstem.lost.replica.timeout.ms", 500),
    )
}

/// Names in a directory that end so.
fn names(dir: &Path, end: &str) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("it can be listed");
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(end)).collect()
}

/// The partitions of the topic in a directory.
fn partitions_in(dir: &Path) -> usize {
    (0..PARTITIONS).filter(|index| dir.join(format!("{TOPIC}-{index}")).exists()).count()
}

fn create(cluster: &mut Cluster, runtime: &Runtime) -> Vec<TopicPartition> {
    let replicas = (0..PARTITIONS).map(|_| vec![NODE, 1, 2]);
    let topic = NewTopic::new(TOPIC).replicas(replicas);
    runtime.block_on(Admin::new(cluster.client()).create_topic(&topic)).expect("a topic");
    runtime.block_on(cluster.wait_until_in_sync(TOPIC));
    (0..PARTITIONS).map(|index| TopicPartition::new(TOPIC, index)).collect()
}

#[test]
fn replicas_of_a_lost_disk_are_replaced_and_an_old_disk_harms_nothing() {
    let disks = Disks::new();
    let (mut cluster, runtime) = start("cluster-lost-disk", &disks);
    let all = create(&mut cluster, &runtime);
    let lost = partitions_in(&disks.second());
    assert!((1..PARTITIONS as usize).contains(&lost), "{lost} of them are on the second disk");
    let mut writer = Writer::new(&cluster, &runtime, VALUE_BYTES);

    writer.write_over(&all, RECORDS, || cluster.kill(NODE));
    disks.take_away("old");
    cluster.start_node(NODE);
    writer.write(&all, RECORDS);
    wait_for_new_replicas(&cluster, lost, 2);
    runtime.block_on(cluster.wait_until_in_sync(TOPIC));
    all.iter().for_each(|partition| assert_equal_replicas(&cluster, &runtime, partition, &writer));

    // The new replicas are enough without one of the others.
    cluster.kill(1);
    writer.write(&all, RECORDS);
    cluster.start_node(1);
    runtime.block_on(cluster.wait_until_in_sync(TOPIC));

    // The old disk comes back in the place of the new one.
    cluster.stop(NODE);
    writer.write(&all, RECORDS);
    disks.take_away("new");
    disks.bring_back("old");
    cluster.start_node(NODE);
    writer.write(&all, RECORDS);
    wait_for_new_replicas(&cluster, lost, 3);
    runtime.block_on(cluster.wait_until_in_sync(TOPIC));
    all.iter().for_each(|partition| assert_equal_replicas(&cluster, &runtime, partition, &writer));
    assert_eq!(names(&disks.second(), "-stray").len(), lost, "what the old disk had");
    cluster.ids().into_iter().for_each(|id| cluster.stop(id));
    assert_kafka_finds_no_fault(&cluster.log_dirs(NODE));
}

/// Waits until the logs of the leaders' nodes say that so many replicas of an incarnation vote.
fn wait_for_new_replicas(cluster: &Cluster, count: usize, incarnation: u32) {
    let said = format!("replicas [{NODE}.{incarnation}] vote, replicas [");
    eventually("new members of all groups", || {
        let voting = cluster.ids().into_iter().map(|id| cluster.log(id).matches(&said).count());
        (voting.sum::<usize>() >= count).then_some(())
    });
}

#[test]
fn a_node_whose_disk_is_not_mounted_does_not_start() {
    let disks = Disks::new();
    let (mut cluster, runtime) = start("cluster-unmounted", &disks);
    create(&mut cluster, &runtime);
    cluster.stop(NODE);
    // As if a disk had been mounted where both directories are when the node ran last.
    let (mounts, missing) = (disks.first().join("mainstem.mounts"), disks.home.path().canonicalize());
    let missing = missing.expect("it is there");
    let noted = fs::read_to_string(&mounts).unwrap_or_default();
    fs::write(&mounts, format!("{noted}{}\n", missing.display())).expect("it can be written");
    cluster.start_node(NODE);
    assert!(!cluster.wait_for_end(NODE).success());
    let log = cluster.log(NODE);
    assert!(
        log.contains("nothing is mounted there now") && log.contains(&*missing.to_string_lossy()),
        "{log}"
    );
    assert!(log.contains("mainstem.mounts"), "it names what to do: {log}");

    fs::write(&mounts, noted).expect("it can be written");
    cluster.start_node(NODE);
    runtime.block_on(cluster.wait_until_in_sync(TOPIC));
}
