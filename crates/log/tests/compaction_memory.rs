//! A large log is compacted in little memory, and keeps the last record of each key.
//!
//! `TEST_COMPACT_MIB` is the size of the log (default 256). One test, since the peak is that of the process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod keyed_log;

use keyed_log::{Content, OPTIONS, Shared, fill, open, task};
use mainstem_log::compaction::Cleaner;
use mainstem_log::{Log, ReadBound, ReadPlan};
use mainstem_records::{Batch, Scratch};
use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::time::Instant;

/// The rate of a log of 10 GiB with more keys than the map holds at once.
const KEYS_PER_MIB: u64 = 250;
const ABOVE_BASE_MAX: u64 = 32 << 20;

/// A line of /proc/self/status in bytes.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_ascii_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

/// Every record is as it was written, and the last one of each key is there.
fn check_last_records(log: &Log, content: Content) {
    let keys = content.keys;
    let mut last = vec![u64::MAX; keys as usize];
    (0..content.records).for_each(|record| last[content.key_of(record) as usize] = record);
    let (mut next, mut scratch, mut buffer) = (0, Scratch::new(), Vec::new());
    let mut found = vec![false; keys as usize];
    while next < log.ends().log_end {
        let plan = match log.read(next, ReadBound::LogEnd, 1 << 20, true).unwrap() {
            ReadPlan::Later(pending) => pending.resolve().unwrap(),
            plan => plan,
        };
        let ReadPlan::Range(range) = plan else { break };
        let bytes = range.to_vec().unwrap();
        let mut rest = &bytes[..];
        while let Ok((batch, behind)) = Batch::split_first(rest) {
            for record in batch.records(&mut buffer, 1 << 20, &mut scratch).unwrap() {
                let record = record.unwrap();
                let key = u64::from_be_bytes(record.key.unwrap().try_into().unwrap());
                let number = u64::from_be_bytes(record.value.unwrap()[..8].try_into().unwrap());
                assert_eq!((record.offset, key), (number as i64, content.key_of(number)));
                found[key as usize] |= last[key as usize] == number;
            }
            next = batch.next_offset();
            rest = behind;
        }
    }
    let lost = (0..keys as usize).filter(|key| last[*key] != u64::MAX && !found[*key]).count();
    assert_eq!(lost, 0, "keys without their last record");
}

#[test]
fn a_large_log_is_compacted_in_little_memory() {
    let mib = std::env::var("TEST_COMPACT_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(256u64);
    let content = Content { records: mib * 1024, keys: mib * KEYS_PER_MIB, record_bytes: 1000 };
    let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut log = open(home.path(), (mib << 20).min(1 << 30) as u32 / 8);
    fill(&mut log, content);
    let task = task(&log);
    let shared = Shared(Mutex::new(log));
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let (base, begin) = (status("VmRSS:"), Instant::now());
    let cleaned = Cleaner::new(OPTIONS).clean(&shared, &task, &mut |_| ControlFlow::Continue(())).unwrap();
    let (peak, took) = (status("VmHWM:"), begin.elapsed());
    println!(
        "{mib} MiB, {} keys: {} rounds in {took:.1?}, {} MiB above the base",
        content.keys,
        cleaned.rounds,
        peak.saturating_sub(base) >> 20
    );
    assert!(peak.saturating_sub(base) <= ABOVE_BASE_MAX, "from {base} to {peak} bytes: {cleaned:?}");
    assert!(cleaned.bytes_after < cleaned.bytes_before && cleaned.end == task.first_uncleanable);
    check_last_records(&shared.0.lock(), content);
}
