//! `__consumer_offsets` is compacted, so that a start does not read old commits.
//!
//! `TEST_OFFSET_COMMITS` is the number of commits (default 200,000). They are written to the log while the broker is
//! stopped, each as a batch of its own, as if as many clients had committed one after another.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstem_log::boot::boot_id;
use mainstem_log::dir::{LogDir, NodeIdentity};
use mainstem_log::partition_metadata::read_topic_id;
use mainstem_log::storage::RealStorage;
use mainstem_log::{Log, LogConfig, Origin, PartitionIdentity, prepare};
use mainstem_records::{BatchBuilder, BatchOptions, LeaderEpoch, Scratch};
use mainstem_tests::broker::Setup;
use mainstem_tests::kafka::wall_ms;
use mainstem_tests::wait::within;
use mainstem_wire::coordinator::{encode_key, encode_with_version};
use mainstem_wire::messages::offset_commit_key::OffsetCommitKey;
use mainstem_wire::messages::offset_commit_value::OffsetCommitValue;

const TOPIC: &str = "__consumer_offsets";
const COMMITS: u64 = 200_000;
/// Commits between two starts, which bound the reads of each start.
const COMMITS_PER_START: u64 = 1_000_000;
/// Keys: so many groups, each with so many partitions.
const GROUPS: u64 = 10;
const PARTITIONS: u64 = 100;
/// The most bytes that a start may read, in segments: the active one, the rest of all others, and as much again.
const READ_SEGMENTS_MAX: u64 = 3;
const TIMEOUT: Duration = Duration::from_secs(60);

/// The group and the partition of the commit with this number.
fn target(number: u64) -> (String, i32) {
    let key = number % (GROUPS * PARTITIONS);
    (format!("group-{}", key / PARTITIONS), (key % PARTITIONS) as i32)
}

fn commit(number: u64) -> (Vec<u8>, Vec<u8>) {
    let (group, partition) = target(number);
    let key = OffsetCommitKey { group: group.into(), topic: "read".into(), partition };
    let value = OffsetCommitValue {
        offset: number as i64,
        leader_epoch: -1,
        metadata: "".into(),
        commit_timestamp: wall_ms(),
        ..Default::default()
    };
    (encode_key(&key).expect("a key"), encode_with_version(&value, 3).expect("a value"))
}

/// Appends commits to the log of a stopped broker, and closes it in order.
fn append(data_dir: &Path, config: &LogConfig, commits: std::ops::Range<u64>) {
    let identity = NodeIdentity { cluster_id: None, node_id: 1 };
    let dir = LogDir::open(Arc::new(RealStorage), data_dir, &identity, &boot_id()).expect("a directory");
    let topic_id = read_topic_id(&RealStorage, &data_dir.join(format!("{TOPIC}-0")));
    let topic_id = topic_id.expect("readable").expect("a topic id");
    let partition = PartitionIdentity { topic: TOPIC.into(), topic_id, partition: 0 };
    let (mut log, _) = Log::open(&dir, &partition, Arc::new(config.clone()), 0).expect("a log");
    let (mut scratch, mut out, mut bytes) = (Scratch::new(), Vec::new(), Vec::new());
    let mut builder = BatchBuilder::new(BatchOptions::default());
    for number in commits {
        let (key, value) = commit(number);
        builder.append(wall_ms(), Some(&key), Some(&value), &[]).expect("a small record");
        bytes.clear();
        builder.finish(&mut bytes).expect("a small batch");
        let batch = prepare(&bytes, config, wall_ms(), Origin::Coordinator, &mut scratch, &mut out);
        log.append(&batch.expect("a valid batch"), LeaderEpoch::ZERO, 0).expect("an append");
    }
    dir.recovered().expect("the directory can be written to");
    log.close().expect("the log closes");
    assert!(dir.stop_clean().expect("the directory closes"));
}

/// The base offset of the active segment.
fn active_base_offset(dir: &Path) -> i64 {
    let entries = fs::read_dir(dir).expect("the partition's directory").flatten();
    let base = |entry: fs::DirEntry| {
        entry.file_name().to_string_lossy().strip_suffix(".log").and_then(|base| base.parse().ok())
    };
    entries.filter_map(base).max().expect("a segment")
}

/// Bytes that a process has read from files since its start, from memory or not.
fn bytes_read(process_id: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{process_id}/io")).expect("it runs");
    let read = io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok());
    read.expect("the kernel counts what is read")
}

/// The offset up to which the log is compacted.
fn clean_end(data_dir: &Path) -> Option<i64> {
    let noted = fs::read_to_string(data_dir.join("cleaner-offset-checkpoint")).ok()?;
    noted.lines().find_map(|line| line.strip_prefix(&format!("{TOPIC} 0 "))?.parse().ok())
}

#[test]
fn a_start_reads_little_of_a_long_history_of_commits() {
    let commits =
        std::env::var("TEST_OFFSET_COMMITS").ok().and_then(|text| text.parse().ok()).unwrap_or(COMMITS);
    // Kafka's default, or less if the log would otherwise have one segment only.
    let segment_bytes = if commits < COMMITS_PER_START { 4 << 20 } else { 100 << 20 };
    let config = LogConfig { segment_bytes, compact: true, retention_ms: None, ..LogConfig::default() };
    let mut broker = Setup::new("compaction-offsets")
        .set("offsets.topic.num.partitions", 1)
        .set("offsets.topic.segment.bytes", segment_bytes)
        .set("offsets.retention.minutes", 1_000_000)
        .set("log.cleaner.backoff.ms", 20)
        .start();
    broker.connect().create_topic("read", PARTITIONS as i32, &[]).unwrap();
    broker.connect().find_coordinator("first").unwrap();
    broker.connect().commit("first", "read", 0, 1).unwrap();
    let (data_dir, partition) = (broker.data_dir(), broker.data_dir().join(format!("{TOPIC}-0")));
    for first in (0..commits).step_by(COMMITS_PER_START as usize) {
        broker.stop();
        append(&data_dir, &config, first..commits.min(first + COMMITS_PER_START));
        broker.start_again();
        let closed = active_base_offset(&partition);
        let compacted = || clean_end(&data_dir).filter(|end| *end >= closed);
        within(TIMEOUT, "the log to be compacted", compacted);
    }
    broker.stop();
    let begin = Instant::now();
    broker.start_again();
    let took = begin.elapsed();
    println!("{commits} commits on {} keys: the start took {took:.0?}", GROUPS * PARTITIONS);
    let mut client = broker.connect();
    for number in commits - GROUPS * PARTITIONS..commits {
        let (group, partition) = target(number);
        if partition % 10 == 0 {
            assert_eq!(client.committed(&group, "read", partition).unwrap(), number as i64);
        }
    }
    // Offsets are answered once all partitions are loaded.
    let (read, most) = (bytes_read(broker.process_id()), READ_SEGMENTS_MAX * u64::from(segment_bytes));
    println!("{read} bytes were read");
    assert!(read <= most, "the start read {read} bytes of {commits} commits, and {most} are enough");
}
