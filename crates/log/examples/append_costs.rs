//! Measures an append and a read of the tail without a network: the share of the log in a produce and a fetch.
//!
//! `cargo run --release -p mainstem-log --example append_costs -- DIR`

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "its output is its purpose")]

use mainstem_log::dir::{LogDir, NodeIdentity};
use mainstem_log::storage::RealStorage;
use mainstem_log::{Log, LogConfig, Origin, PartitionIdentity, ReadBound, ReadPlan, prepare};
use mainstem_records::{BatchBuilder, BatchOptions, LeaderEpoch, ProducerFields, Scratch};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const APPENDS: u32 = 200_000;
const PARTITIONS: i32 = 1_000;

fn main() {
    let base = std::env::args().nth(1).expect("the directory to measure in");
    let path = Path::new(&base).join("append-costs");
    let identity = NodeIdentity { cluster_id: None, node_id: 1 };
    let dir = LogDir::open(Arc::new(RealStorage), &path, &identity, "boot").unwrap();
    for (value_bytes, idempotent) in [(100, false), (100, true), (1024, false)] {
        let mut log = open(&dir, &format!("t{value_bytes}-{idempotent}"), 0);
        measure(&mut log, value_bytes, idempotent);
    }
    measure_partitions(&dir);
    std::fs::remove_dir_all(&path).unwrap();
}

fn open(dir: &Arc<LogDir>, topic: &str, partition: i32) -> Log {
    let identity = PartitionIdentity { topic: topic.into(), topic_id: [1; 16], partition };
    Log::open(dir, &identity, Arc::new(LogConfig::default()), 0).unwrap().0
}

fn batch(value_bytes: usize, idempotent: bool, sequence: i32) -> Vec<u8> {
    let mut options = BatchOptions::default();
    if idempotent {
        options.producer = ProducerFields { producer_id: 1, producer_epoch: 0, base_sequence: sequence };
    }
    let mut builder = BatchBuilder::new(options);
    builder.append(1_700_000_000_000, None, Some(&vec![b'x'; value_bytes]), &[]).unwrap();
    builder.build().unwrap()
}

fn measure(log: &mut Log, value_bytes: usize, idempotent: bool) {
    let (mut scratch, mut out, config) = (Scratch::new(), Vec::new(), log.config().clone());
    let (mut preparing, mut appending, mut reading) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for sequence in 0..APPENDS {
        let bytes = batch(value_bytes, idempotent, sequence as i32);
        let start = Instant::now();
        let prepared = prepare(&bytes, &config, 0, Origin::Coordinator, &mut scratch, &mut out).unwrap();
        let prepared_at = Instant::now();
        let appended = log.append(&prepared, LeaderEpoch::ZERO, 0).unwrap();
        let appended_at = Instant::now();
        let plan = log.read(appended.base_offset, ReadBound::HighWatermark, 1 << 20, true).unwrap();
        assert!(matches!(plan, ReadPlan::Range(range) if range.recent));
        preparing += prepared_at - start;
        appending += appended_at - prepared_at;
        reading += appended_at.elapsed();
    }
    let each = |total: Duration| total.as_nanos() / u128::from(APPENDS);
    println!(
        "{value_bytes} B, idempotent {idempotent}: prepare {} ns, append {} ns, plan a read {} ns",
        each(preparing),
        each(appending),
        each(reading)
    );
}

fn measure_partitions(dir: &Arc<LogDir>) {
    let (before, start) = (resident_kib(), Instant::now());
    let mut logs: Vec<_> = (0..PARTITIONS).map(|partition| open(dir, "many", partition)).collect();
    let (opened, opened_in) = (resident_kib(), start.elapsed());
    let (bytes, mut out, mut scratch) = (batch(100, false, 0), Vec::new(), Scratch::new());
    let config = logs[0].config().clone();
    for log in &mut logs {
        for _ in 0..100 {
            let prepared = prepare(&bytes, &config, 0, Origin::Coordinator, &mut scratch, &mut out).unwrap();
            log.append(&prepared, LeaderEpoch::ZERO, 0).unwrap();
        }
    }
    println!(
        "{PARTITIONS} partitions created in {opened_in:?}: {} KiB, after 100 appends to each {} KiB",
        opened - before,
        resident_kib() - before
    );
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or_default()
}
