//! A full disk: it is logged once, and health is degraded. Reads work over stops, kills and starts, and so do appends
//! as soon as there is free space. It needs root, for a file system of its own; otherwise it prints that it is
//! skipped.

use std::fs::File;
use std::os::unix::fs::FileExt;

use mainstem_queue::Options;
use mainstem_tests::broker::{Broker, Setup};
use mainstem_tests::kafka::{batch, refusal};
use mainstem_tests::small_disk::SmallDisk;
use mainstem_tests::wait::eventually;
use mainstem_wire::ErrorCode;

const FULL: &str = "is full: appends are refused";

/// Asserts that older records can be read, no record can be appended, and health says why.
fn assert_degraded(broker: &Broker, lines: usize) {
    let mut client = broker.connect();
    assert_eq!(client.read_all("orders", 0, 0).unwrap().len(), 3);
    let produced = client.produce("orders", 0, -1, &batch(&[&[7; 9_000]]));
    assert_eq!(refusal(produced), ErrorCode::KAFKA_STORAGE_ERROR);
    let health = broker.http("/health");
    assert!(
        health.contains("503") && health.contains("\"degraded\"") && health.contains("is full"),
        "{health}"
    );
    assert!(broker.http("/metrics").contains("mainstem_full_log_directories 1"));
    assert_eq!(broker.log().matches(FULL).count(), lines, "{}", broker.log());
}

#[test]
fn a_full_disk_serves_reads_over_starts_and_takes_appends_when_it_has_free_space() {
    let Some(disk) = SmallDisk::mount(12) else { return };
    let mut broker = Setup::new("full-disk").data_dir(disk.path().join("data")).start();
    let mut client = broker.connect();
    client.create_topic("orders", 1, &[]).unwrap();
    for value in [b"a", b"b", b"c"] {
        client.produce("orders", 0, -1, &batch(&[value])).unwrap();
    }
    disk.fill();
    let refused =
        eventually("the disk is full", || client.produce("orders", 0, -1, &batch(&[&[7; 9_000]])).err());
    assert_eq!(refusal::<()>(Err(refused)), ErrorCode::KAFKA_STORAGE_ERROR);
    assert_degraded(&broker, 1);
    broker.stop();
    broker.start_again();
    assert_degraded(&broker, 2);
    broker.kill();
    broker.start_again();
    assert_degraded(&broker, 3);
    disk.free();
    let mut client = broker.connect();
    eventually("appends work again", || client.produce("orders", 0, -1, &batch(&[b"d"])).ok());
    broker.assert_healthy();
    broker.stop();
    broker.start_again();
    broker.assert_healthy();
    assert_eq!(broker.log().matches(FULL).count(), 3, "{}", broker.log());
}

/// The position of the boot id in the control file (docs/format.md).
const BOOT: u64 = 512;

/// A start after another boot writes the queue's epochs.
#[test]
fn an_attached_queue_on_a_full_disk_keeps_no_broker_from_starting_after_a_boot() {
    let Some(disk) = SmallDisk::mount(12) else { return };
    let path = disk.path().join("queue");
    let queue = Options::new().segment_bytes(1 << 20).open(&path).unwrap();
    queue.appender().unwrap().append(b"a message").unwrap();
    queue.sync().unwrap();
    drop(queue);
    let control = File::options().write(true).open(path.join("queue.control")).unwrap();
    control.write_all_at(&[7; 16], BOOT).unwrap();
    disk.fill();
    let broker =
        Setup::new("full-disk-attached").set("mainstem.attach", format!("trades={}", path.display())).start();
    assert_eq!(broker.connect().read_all("trades", 0, 0).unwrap().len(), 1);
}
