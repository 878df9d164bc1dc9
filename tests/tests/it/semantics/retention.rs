//! Retention in the running broker: the log start moves and files are removed.

use std::fs;
use std::path::Path;

use mainstem_records::BatchOptions;
use mainstem_tests::broker::{Broker, Setup};
use mainstem_tests::client::Client;
use mainstem_tests::kafka::{EARLIEST, LATEST, batch, batch_at, wall_ms};
use mainstem_tests::wait::eventually;

use crate::semantics::TOPIC;

const SEGMENT_BYTES: &str = "1048576";
const BATCHES: i64 = 40;
const BATCH_BYTES: usize = 100_000;

/// A topic with about four segments of records of this age, in a broker that checks retention all the time.
fn filled(name: &str, configs: &[(&str, &str)], age_ms: i64) -> (Broker, Client) {
    let broker = Setup::new(name).set("log.retention.check.interval.ms", 50).start();
    let mut client = broker.connect();
    let mut configs = configs.to_vec();
    configs.extend([("segment.bytes", SEGMENT_BYTES), ("file.delete.delay.ms", "100")]);
    client.create_topic(TOPIC, 1, &configs).unwrap();
    let one = batch_at(BatchOptions::default(), wall_ms() - age_ms, &[&[b'x'; BATCH_BYTES]]);
    for _ in 0..BATCHES {
        client.produce(TOPIC, 0, 1, &one).unwrap();
    }
    (broker, client)
}

fn files_with(dir: &Path, ending: &str) -> usize {
    let entries = fs::read_dir(dir).unwrap();
    entries.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().ends_with(ending)).count()
}

#[test]
fn records_go_when_their_time_is_over() {
    let (broker, mut client) = filled("retention-ms", &[("retention.ms", "60000")], 3_600_000);
    let dir = broker.data_dir().join(format!("{TOPIC}-0"));
    eventually("the log start to reach the end", || {
        let ends = [EARLIEST, LATEST].map(|end| client.offset_at(TOPIC, 0, end).unwrap());
        (ends == [BATCHES, BATCHES]).then_some(())
    });
    eventually("the files to go", || (files_with(&dir, ".log") == 1).then_some(()));
    eventually("the deleted files to go", || (files_with(&dir, ".deleted") == 0).then_some(()));
    assert_eq!(client.produce(TOPIC, 0, 1, &batch(&[b"young"])).unwrap(), BATCHES, "offsets continue");
    assert_eq!(client.fetch(TOPIC, 0, BATCHES).unwrap().len(), 1);
}

#[test]
fn records_go_when_there_are_too_many_bytes() {
    let (mut broker, mut client) = filled("retention-bytes", &[("retention.bytes", "1500000")], 0);
    let dir = broker.data_dir().join(format!("{TOPIC}-0"));
    let log_start = eventually("the log start to move", || {
        let log_start = client.offset_at(TOPIC, 0, EARLIEST).unwrap();
        (BATCHES - log_start < 30).then_some(log_start)
    });
    let kept = (BATCHES - log_start) * BATCH_BYTES as i64;
    assert!(kept >= 1_500_000, "only {kept} bytes are kept");
    eventually("the files to go", || (files_with(&dir, ".log") <= 3).then_some(()));
    broker.kill();
    broker.start_again();
    let again = broker.connect().offset_at(TOPIC, 0, EARLIEST).unwrap();
    assert!(again >= log_start, "the log start went back from {log_start} to {again}");
}

#[test]
fn the_directory_of_a_deleted_topic_goes() {
    let (broker, mut client) = filled("deleted-files", &[], 0);
    let dir = broker.data_dir();
    client.delete_topic(TOPIC).unwrap();
    assert!(!dir.join(format!("{TOPIC}-0")).exists(), "set aside before the answer");
    eventually("the files to go", || (files_with(&dir, "-delete") == 0).then_some(()));
}
