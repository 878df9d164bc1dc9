//! Compaction in the running broker: the last value of each key stays, and the log shrinks.

mod offsets;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use mainstem_records::{Batch, BatchBuilder, BatchOptions, Compression, Scratch};
use mainstem_tests::broker::{Broker, Setup};
use mainstem_tests::client::Client;
use mainstem_tests::kafka::{
    BY_NAME, EARLIEST, LATEST, batch, bytes_of, fetch_request, fetch_topic, refusal, wall_ms,
};
use mainstem_tests::wait::eventually;
use mainstem_wire::ErrorCode;
use mainstem_wire::sample::Rng;

const TOPIC: &str = "compacted";
const KEYS: usize = 50;
const VALUE_BYTES: usize = 10_000;

/// A broker that looks for work all the time.
fn broker(name: &str) -> Broker {
    Setup::new(name)
        .set("log.cleaner.backoff.ms", 20)
        .set("log.retention.check.interval.ms", 50)
        .set("log.segment.delete.delay.ms", 100)
        .start()
}

/// Topic settings that compact every closed segment without a delay.
const EAGER: [(&str, &str); 3] =
    [("cleanup.policy", "compact"), ("segment.bytes", "1048576"), ("min.cleanable.dirty.ratio", "0.01")];

fn keyed(codec: Compression, timestamp: i64, key: &str, value: Option<&[u8]>) -> Vec<u8> {
    let mut builder = BatchBuilder::new(BatchOptions { compression: codec, ..BatchOptions::default() });
    builder.append(timestamp, Some(key.as_bytes()), value, &[]).expect("the batch is small");
    builder.build().expect("the batch is whole")
}

fn log_bytes(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).expect("the partition's directory");
    let log = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().ends_with(".log");
    // A file may disappear while they are counted.
    entries.flatten().filter(log).filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
}

/// Key, value and offset of all records from the log start on, as a consumer gets them.
fn read_all(client: &mut Client, topic: &str) -> Vec<(String, Option<Vec<u8>>, i64)> {
    let end = client.offset_at(topic, 0, LATEST).expect("an end");
    let mut next = client.offset_at(topic, 0, EARLIEST).expect("a start");
    let (mut all, mut buffer, mut scratch) = (Vec::new(), Vec::new(), Scratch::new());
    while next < end {
        let request = fetch_request(vec![fetch_topic(topic, 0, next)]);
        let response = client.try_call(&request, BY_NAME).expect("a fetch");
        let partition = &response.responses[0].partitions[0];
        if partition.error_code == ErrorCode::OFFSET_OUT_OF_RANGE.code() {
            // Retention has moved the log start in between.
            all.clear();
            next = client.offset_at(topic, 0, EARLIEST).expect("a start");
            continue;
        }
        assert_eq!(partition.error_code, 0);
        let bytes = bytes_of(&partition.records);
        let (before, mut rest) = (next, bytes);
        while let Ok((batch, behind)) = Batch::split_first(rest) {
            assert!(batch.verify_crc(), "the batch at {} is damaged", batch.base_offset());
            let records = batch.records(&mut buffer, 1 << 20, &mut scratch).expect("it decompresses");
            for record in records.map(|record| record.expect("a record")) {
                let key = String::from_utf8(record.key.unwrap_or_default().to_vec()).expect("keys are text");
                if record.offset >= before {
                    all.push((key, record.value.map(<[u8]>::to_vec), record.offset));
                }
            }
            next = batch.next_offset();
            rest = behind;
        }
        assert!(next > before, "nothing at {before} of {end}");
    }
    all
}

/// Writes each key in turn, in all codecs; returns the last value of each.
fn write(client: &mut Client, batches: usize) -> BTreeMap<String, Vec<u8>> {
    let mut last = BTreeMap::new();
    for number in 0..batches {
        let key = format!("key-{}", number % KEYS);
        let mut random = Rng(number as u64);
        // Values that no codec can compress.
        let value: Vec<u8> = (0..VALUE_BYTES).map(|_| random.next_u64() as u8).collect();
        let codec = Compression::ALL[number % 5];
        client.produce(TOPIC, 0, 1, &keyed(codec, wall_ms(), &key, Some(&value))).expect("produced");
        last.insert(key, value);
    }
    last
}

#[test]
fn of_each_key_the_last_value_stays() {
    let mut broker = broker("compaction");
    let mut client = broker.connect();
    client.create_topic(TOPIC, 1, &EAGER).unwrap();
    assert_eq!(refusal(client.produce(TOPIC, 0, 1, &batch(&[b"no key"]))), ErrorCode::INVALID_RECORD);
    let last = write(&mut client, 1000);
    let dir = broker.data_dir().join(format!("{TOPIC}-0"));
    // Each key is once in the compacted segments, and once more in up to two others.
    eventually("the log to shrink", || (log_bytes(&dir) < 3 << 20).then_some(()));
    for restart in [false, true] {
        if restart {
            broker.kill();
            broker.start_again();
            client = broker.connect();
        }
        let mut found = BTreeMap::new();
        let mut offsets = Vec::new();
        for (key, value, offset) in read_all(&mut client, TOPIC) {
            found.insert(key, value.expect("no tombstone was written"));
            offsets.push(offset);
        }
        assert!(found == last, "after a restart: {restart}");
        assert!(offsets.is_sorted() && offsets.len() < 1000, "{} records are left", offsets.len());
    }
    // The kill may have come before the checkpoint of the cleaner: then the log is cleaned again.
    let noted = eventually("a note of how far it is clean", || {
        let noted = fs::read_to_string(broker.data_dir().join("cleaner-offset-checkpoint")).ok()?;
        noted.contains(&format!("{TOPIC} 0 ")).then_some(noted)
    });
    assert!(noted.starts_with("0\n"), "{noted}");
    assert!(broker.http("/metrics").contains("kafka_log_logcleanermanager_max_dirty_percent"));
    assert!(broker.http("/metrics").contains("kafka_log_logcleanermanager_uncleanable_partitions_count{"));
}

#[test]
fn tombstones_delete_and_go() {
    let broker = broker("compaction-tombstones");
    let mut client = broker.connect();
    let mut configs = EAGER.to_vec();
    configs.push(("delete.retention.ms", "0"));
    client.create_topic(TOPIC, 1, &configs).unwrap();
    client.produce(TOPIC, 0, 1, &keyed(Compression::None, wall_ms(), "gone", Some(b"x"))).unwrap();
    client.produce(TOPIC, 0, 1, &keyed(Compression::None, wall_ms(), "gone", None)).unwrap();
    // A tombstone is removed by the second compaction of its segment. Each compaction needs dirty segments.
    let gone = || read_all(&mut broker.connect(), TOPIC).iter().all(|(key, ..)| key != "gone");
    eventually("the tombstone to go", || {
        write(&mut client, 150);
        gone().then_some(())
    });
}

#[test]
fn compacted_topics_can_lose_what_is_old_too() {
    let broker = broker("compaction-delete");
    let mut client = broker.connect();
    let mut configs = EAGER.to_vec();
    configs.retain(|(key, _)| *key != "cleanup.policy");
    configs.extend([("cleanup.policy", "compact,delete"), ("retention.ms", "60000")]);
    client.create_topic(TOPIC, 1, &configs).unwrap();
    let old = wall_ms() - 3_600_000;
    for number in 0..300usize {
        let value = vec![b'o'; VALUE_BYTES];
        let key = format!("old-{number}");
        client.produce(TOPIC, 0, 1, &keyed(Compression::None, old, &key, Some(&value))).unwrap();
    }
    let last = write(&mut client, 600);
    eventually("old records to go and others to be compacted", || {
        let left = read_all(&mut client, TOPIC);
        let old = left.iter().any(|(key, ..)| key.starts_with("old"));
        (!old && left.len() < 400).then_some(())
    });
    let found: BTreeMap<_, _> =
        read_all(&mut client, TOPIC).into_iter().map(|(key, value, _)| (key, value.unwrap())).collect();
    assert!(found == last);
}
