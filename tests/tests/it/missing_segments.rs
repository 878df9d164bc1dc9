//! Segments that are removed or cut while the broker is stopped: the next start names them and serves the rest.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;

use mainstem_tests::broker::{Broker, Setup, binary};
use mainstem_tests::kafka::{batch, refusal};
use mainstem_wire::ErrorCode;

/// The size of a batch that fills a segment of 1 MiB, the smallest possible.
const VALUE_BYTES: usize = 700_000;

/// A broker with a topic of five segments, and another one, after a stop in order.
fn stopped() -> (Broker, PathBuf) {
    let mut broker = Setup::new("missing-segments").start();
    let mut client = broker.connect();
    client.create_topic("orders", 1, &[("segment.bytes", "1048576")]).unwrap();
    client.create_topic("other", 1, &[]).unwrap();
    for number in 0..5 {
        client.produce("orders", 0, -1, &batch(&[&[number; VALUE_BYTES]])).unwrap();
    }
    client.produce("other", 0, -1, &batch(&[b"a"])).unwrap();
    broker.stop();
    let path = broker.data_dir().join("orders-0");
    (broker, path)
}

fn segment(dir: &Path, base_offset: i64) -> PathBuf {
    dir.join(format!("{base_offset:020}.log"))
}

/// Runs a command. Returns whether it succeeded, and both outputs.
fn mainstem(arguments: &[&str], dir: &Path) -> (bool, String) {
    let output = Command::new(binary()).args(arguments).arg(dir).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

#[test]
fn what_is_missing_is_named_and_the_operator_decides() {
    let (mut broker, path) = stopped();
    assert!(mainstem(&["log", "verify"], &broker.data_dir()).0, "all is well");
    assert!(mainstem(&["log", "accept-loss"], &path).1.contains("nothing is missing"));
    fs::remove_file(segment(&path, 2)).unwrap();
    let (sound, said) = mainstem(&["log", "verify"], &broker.data_dir());
    assert!(!sound && said.contains("00000000000000000002.log with"), "{said}");
    for kill in [false, true, false] {
        broker.start_again();
        let mut client = broker.connect();
        assert_eq!(refusal(client.fetch("orders", 0, 0)), ErrorCode::KAFKA_STORAGE_ERROR);
        assert_eq!(client.fetch("other", 0, 0).unwrap().len(), 1);
        assert!(broker.log().contains("00000000000000000002.log with"), "{}", broker.log());
        if kill { broker.kill() } else { broker.stop() }
    }
    let (accepted, said) = mainstem(&["log", "accept-loss"], &path);
    assert!(accepted && said.contains("00000000000000000002.log with"), "{said}");
    broker.start_again();
    let read = broker.connect().read_all("orders", 0, 0).unwrap();
    assert_eq!(read.iter().map(|record| record.offset).collect::<Vec<_>>(), [0, 1, 3, 4]);
    broker.stop();
    broker.start_again();
    assert_eq!(broker.connect().read_all("orders", 0, 0).unwrap().len(), 4);
}

#[test]
fn files_that_are_put_back_are_served() {
    let (mut broker, path) = stopped();
    let (last, kept) = (segment(&path, 4), fs::read(segment(&path, 4)).unwrap());
    OpenOptions::new().write(true).open(&last).unwrap().set_len(100).unwrap();
    broker.start_again();
    assert_eq!(refusal(broker.connect().fetch("orders", 0, 0)), ErrorCode::KAFKA_STORAGE_ERROR);
    broker.stop();
    assert_eq!(fs::metadata(&last).unwrap().len(), 100, "nothing is changed");
    fs::write(&last, kept).unwrap();
    broker.start_again();
    assert_eq!(broker.connect().read_all("orders", 0, 0).unwrap().len(), 5);
}
