//! Compacts the same log with this crate and with Kafka's own cleaner, one after the other, several times.
//!
//! `cargo run --release -p mainstem-log --example compaction -- DIR [MIB] [RECORD_BYTES]`; `MAINSTEM_KAFKA_JARS` is the
//! folder with Kafka's jars. Both get the same buffer for keys, the same buffers for reading and writing, and a log of
//! which the page cache has all that fits.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../tests/keyed_log/mod.rs"]
mod keyed_log;

use keyed_log::{Content, OPTIONS, Shared, fill, open, task};
use mainstem_log::compaction::Cleaner;
use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const RUNS: usize = 5;
const SEGMENT_BYTES: u32 = 128 << 20;
/// Each key is written four times, on average.
const RECORDS_PER_KEY: u64 = 4;

/// Seconds, and bytes of the log afterwards.
type Outcome = (f64, u64);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let dir = PathBuf::from(arguments.first().expect("a directory to work in"));
    let number = |at: usize, otherwise| arguments.get(at).map_or(otherwise, |text| text.parse().unwrap());
    let (mib, record_bytes) = (number(1, 1024), number(2, 1000));
    let records = (mib << 20) / (record_bytes + 24) / 16 * 16;
    let content = Content { records, keys: records / RECORDS_PER_KEY, record_bytes: record_bytes as usize };
    let original = dir.join("original");
    let mut log = open(&original, SEGMENT_BYTES);
    fill(&mut log, content);
    let (log_dir, bytes) = (log.dir().clone(), log.size());
    log.close().unwrap();
    log_dir.stop_clean().unwrap();
    drop(log_dir);
    println!("{records} records of {record_bytes} bytes, {} keys, {} MiB", content.keys, bytes >> 20);
    let jars = std::env::var_os("MAINSTEM_KAFKA_JARS").map(PathBuf::from);
    for run in 0..RUNS {
        show(run, "mainstem", bytes, with_copy(&original, &dir.join("copy"), here));
        if let Some(jars) = &jars {
            show(run, "kafka", bytes, with_copy(&original, &dir.join("copy"), |copy| kafka(jars, copy)));
        }
    }
    std::fs::remove_dir_all(original).unwrap();
}

fn show(run: usize, who: &str, bytes: u64, (seconds, after): Outcome) {
    let mib = bytes as f64 / f64::from(1 << 20);
    println!("run {run}: {who:<8} {seconds:6.2} s {:6.0} MiB/s, {} MiB left", mib / seconds, after >> 20);
}

/// Runs something on a copy of a directory, which goes afterwards.
fn with_copy(original: &Path, copy: &Path, run: impl FnOnce(&Path) -> Outcome) -> Outcome {
    let copied = Command::new("cp").arg("-r").args([original, copy]).status().unwrap();
    let synced = Command::new("sync").arg("-f").arg(copy).status().unwrap();
    assert!(copied.success() && synced.success());
    let outcome = run(copy);
    std::fs::remove_dir_all(copy).unwrap();
    outcome
}

fn here(copy: &Path) -> Outcome {
    let log = open(copy, SEGMENT_BYTES);
    let task = task(&log);
    let shared = Shared(Mutex::new(log));
    let begin = Instant::now();
    Cleaner::new(OPTIONS).clean(&shared, &task, &mut |_| ControlFlow::Continue(())).unwrap();
    let seconds = begin.elapsed().as_secs_f64();
    (seconds, shared.0.lock().size())
}

/// Kafka's Cleaner in a process of its own, which prints seconds and bytes.
fn kafka(jars: &Path, copy: &Path) -> Outcome {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/CleanerPeer.java");
    let output = Command::new("java")
        .args(["-Xmx1g", "-Xms1g", "-cp", &format!("{}/*", jars.display())])
        .arg(source)
        .arg(copy.join("t-0"))
        .args([OPTIONS.dedupe_bytes.to_string(), OPTIONS.io_bytes.to_string(), SEGMENT_BYTES.to_string()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let line = said.lines().find_map(|line| line.strip_prefix("cleaned "));
    let line = line.unwrap_or_else(|| panic!("{said}\n{}", String::from_utf8_lossy(&output.stderr)));
    let (seconds, bytes) = line.split_once(' ').unwrap();
    (seconds.parse().unwrap(), bytes.parse().unwrap())
}
