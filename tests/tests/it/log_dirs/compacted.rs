//! A compacted partition that moves between log directories.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mainstem_records::{BatchBuilder, BatchOptions};
use mainstem_tests::broker::{Broker, Setup};
use mainstem_tests::client::Client;
use mainstem_tests::kafka::{EARLIEST, wall_ms};
use mainstem_tests::wait::eventually;

use super::moves::move_to;
use super::{TOPIC, place};

/// Keys of each producer.
const KEYS: usize = 50;
const VALUE_BYTES: usize = 4_000;
const SEGMENT_BYTES: u64 = 1 << 20;
const MOVES: usize = 6;
/// Records between two moves, and behind the last one: several segments.
const RECORDS_BETWEEN: usize = 800;
/// The pause between two records of a producer, so that a copy can overtake them.
const PAUSE: Duration = Duration::from_millis(1);

/// The number of the last record of each key, by `PRODUCER KEY`.
type Last = BTreeMap<String, usize>;

fn record(producer: usize, number: usize) -> Vec<u8> {
    let key = format!("{producer} {}", number % KEYS);
    let mut value = format!("{key} {number} ").into_bytes();
    value.resize(VALUE_BYTES, b'.');
    let mut builder = BatchBuilder::new(BatchOptions::default());
    builder.append(wall_ms(), Some(key.as_bytes()), Some(&value), &[]).unwrap();
    builder.build().unwrap()
}

/// Writes until `over`; each record is acknowledged at the first attempt.
fn write(client: &mut Client, producer: usize, written: &AtomicUsize, over: &AtomicBool) -> Last {
    let (mut last, mut before) = (Last::new(), -1);
    for number in 0.. {
        if over.load(Ordering::Acquire) {
            break;
        }
        let acks = if producer == 0 { -1 } else { 1 };
        let offset = client.produce(TOPIC, 0, acks, &record(producer, number)).unwrap();
        assert!(offset > before, "{offset} after {before}");
        before = offset;
        last.insert(format!("{producer} {}", number % KEYS), number);
        written.fetch_add(1, Ordering::Release);
        std::thread::sleep(PAUSE);
    }
    last
}

/// The number of the last existing record of each key, and the number of records.
fn read(client: &mut Client) -> (Last, usize) {
    let records = client.read_all(TOPIC, 0, 0).unwrap();
    assert!(records.is_sorted_by_key(|record| record.offset));
    let mut last = Last::new();
    for record in &records {
        let text = String::from_utf8(record.value.clone()).unwrap();
        let words: Vec<_> = text.split(' ').collect();
        last.insert(format!("{} {}", words[0], words[1]), words[2].parse().unwrap());
    }
    (last, records.len())
}

fn log_bytes(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).unwrap().flatten();
    let logs = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(".log"));
    // A file may disappear while they are counted.
    logs.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
}

/// Ends the producers, also when a move fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn wait_for_more(written: &AtomicUsize) {
    let until = written.load(Ordering::Acquire) + RECORDS_BETWEEN;
    eventually("more records", || (written.load(Ordering::Acquire) >= until).then_some(()));
}

/// Moves the partition back and forth under two producers. Returns the last record of each key, the number of records, and the directory
/// of the partition.
fn move_under_producers(broker: &Broker, client: &mut Client) -> (Last, usize, usize) {
    let (over, written) = (AtomicBool::new(false), AtomicUsize::new(0));
    let from = place(&client.log_dirs().unwrap(), 0);
    let last = std::thread::scope(|scope| {
        let producers: Vec<_> = (0..2)
            .map(|producer| {
                let (over, written) = (&over, &written);
                scope.spawn(move || write(&mut broker.connect(), producer, written, over))
            })
            .collect();
        let end = End(&over);
        for round in 1..=MOVES {
            wait_for_more(&written);
            move_to(client, broker, 0, (from + round) % 2);
        }
        wait_for_more(&written);
        drop(end);
        producers.into_iter().flat_map(|producer| producer.join().unwrap()).collect()
    });
    (last, written.into_inner(), (from + MOVES) % 2)
}

#[test]
fn a_compacted_partition_moves_under_producers_and_goes_on_being_compacted() {
    let mut broker = Setup::new("moves-compacted")
        .log_dirs(2)
        .set("log.cleaner.backoff.ms", 20)
        .set("log.retention.check.interval.ms", 50)
        .set("log.segment.delete.delay.ms", 0)
        .start();
    let mut client = broker.connect();
    let segment_bytes = SEGMENT_BYTES.to_string();
    let configs = [
        ("cleanup.policy", "compact"),
        ("segment.bytes", &*segment_bytes),
        ("min.cleanable.dirty.ratio", "0.01"),
    ];
    client.create_topic(TOPIC, 1, &configs).unwrap();
    let (last, written, rank) = move_under_producers(&broker, &mut client);
    // The records behind the last move alone are larger than the log now.
    let dir = broker.log_dir(rank).join(format!("{TOPIC}-0"));
    eventually("the log to shrink", || (log_bytes(&dir) < 3 * SEGMENT_BYTES).then_some(()));
    for restart in [false, true] {
        if restart {
            broker.stop();
            broker.start_again();
            client = broker.connect();
        }
        let (found, records) = read(&mut client);
        assert!(found == last, "{found:?} instead of {last:?}, after a restart: {restart}");
        assert!(records < written / 2, "{records} of {written} records are left");
        assert_eq!(client.offset_at(TOPIC, 0, EARLIEST).unwrap(), 0);
        assert_eq!(place(&client.log_dirs().unwrap(), 0), rank);
    }
    broker.assert_healthy();
}
