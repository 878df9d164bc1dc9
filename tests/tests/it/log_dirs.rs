//! Several log directories: placement of partitions, moves between them, and directories that fail for real.

mod compacted;
mod cordoned;
mod failures;
mod moves;
mod placement;

use std::fs;
use std::path::Path;

use mainstem_tests::broker::{Broker, Setup};
use mainstem_tests::client::Client;
use mainstem_tests::kafka::batch;
use mainstem_tests::log_dirs::LogDir;

/// The topic of most tests.
const TOPIC: &str = "topic";

/// A broker with two log directories and [`TOPIC`], and a connection to it.
fn broker_with_topic(name: &str, partitions: i32) -> (Broker, Client) {
    let broker = Setup::new(name).log_dirs(2).set("log.segment.delete.delay.ms", 0).start();
    let mut client = broker.connect();
    client.create_topic(TOPIC, partitions, &[]).unwrap();
    (broker, client)
}

/// Produces one record of so many bytes, durably.
fn produce(client: &mut Client, partition: i32, bytes: usize) {
    client.produce(TOPIC, partition, -1, &batch(&[&vec![b'x'; bytes]])).unwrap();
}

/// The directory of a partition of [`TOPIC`], by rank.
fn place(dirs: &[LogDir], partition: i32) -> usize {
    let places: Vec<_> = (0..dirs.len()).filter(|rank| dirs[*rank].has(TOPIC, partition)).collect();
    assert_eq!(places.len(), 1, "partition {partition} is in {places:?} of {dirs:?}");
    places[0]
}

/// The partitions of [`TOPIC`] in a directory.
fn partitions_in(dir: &LogDir) -> Vec<i32> {
    let own = dir.replicas.iter().filter(|replica| replica.topic == TOPIC && !replica.is_future);
    own.map(|replica| replica.partition).collect()
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Returns true if the broker's log has a line with all of these words.
fn logged(broker: &Broker, wanted: &[&str]) -> bool {
    broker.log().lines().any(|line| wanted.iter().all(|text| line.contains(text)))
}
