//! Kafka's own DumpLogSegments reads what is written here and finds no fault.
//!
//! The jars of Kafka 4.3.0 are looked for in `MAINSTEM_KAFKA_JARS`, else in `target/interop/kafka-4.3.0/lib` of the
//! workspace. Without them, or without a JVM, the test says that it is skipped; under `CI=true` it fails.

use super::testing::{Bench, TestBatch, WALL_MS, small_segments};
use crate::Log;
use mainstem_records::ProducerId;
use mainstem_testkit::java::KafkaJars;
use std::path::{Path, PathBuf};
use std::process::Output;

/// Kafka's jars; `None`: the test is skipped, and that was said.
pub(crate) fn jars() -> Option<KafkaJars> {
    KafkaJars::or_skip(KafkaJars::NEWEST, "Kafka's DumpLogSegments")
}

/// Runs the tool over the files of a partition.
pub(crate) fn dump(jars: &KafkaJars, files: &[PathBuf], options: &[&str]) -> Output {
    let names: Vec<_> = files.iter().map(|file| file.to_string_lossy().into_owned()).collect();
    jars.java(512)
        .args(["org.apache.kafka.tools.DumpLogSegments", "--files", &names.join(",")])
        .args(options)
        .output()
        .expect("java runs")
}

pub(crate) fn files(dir: &Path, suffixes: &[&str]) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("the partition's directory");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|file| suffixes.iter().any(|suffix| file.to_string_lossy().ends_with(suffix)));
    files.sort();
    assert!(!files.is_empty(), "{suffixes:?}");
    files
}

/// Every record once, every index entry right, every snapshot whole, and nothing said on standard error.
pub(crate) fn assert_no_fault(jars: &KafkaJars, dir: &Path, records: usize) {
    let deep = dump(jars, &files(dir, &[".log"]), &["--deep-iteration", "--print-data-log"]);
    let text = String::from_utf8_lossy(&deep.stdout).into_owned();
    assert_eq!(text.matches("payload: value ").count(), records, "{text}");
    assert_eq!(text.matches("isvalid: true").count(), text.matches("isvalid: ").count(), "{text}");
    let all = files(dir, &[".index", ".timeindex", ".snapshot"]);
    let indexes = dump(jars, &all, &[]);
    let sanity = dump(jars, &files(dir, &["index"]), &["--index-sanity-check"]);
    for output in [&deep, &indexes, &sanity] {
        let said = String::from_utf8_lossy(&output.stderr);
        let faults: Vec<_> = said.lines().filter(|line| !is_noise(line)).collect();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && faults.is_empty(), "{faults:?}\n{text}");
    }
    let text = String::from_utf8_lossy(&indexes.stdout).into_owned();
    assert!(text.contains("offset: ") && text.contains("timestamp: "), "{text}");
    assert!(text.contains("producerId: 5 producerEpoch: 1"), "{text}");
}

/// Returns true for lines that report no fault. The tool counts from -1 in each file, so that any segment but the first
/// "does not follow", and neither do records behind a gap of compaction. The count of records shows that none is missing. Its
/// logging library writes lines, too.
fn is_noise(line: &str) -> bool {
    let gap = line.starts_with("Non-consecutive offsets in") || line.contains(" is followed by ");
    gap || line.contains("log4j") || line.contains("SLF4J")
}

fn fill(bench: &Bench, log: &mut Log, numbers: std::ops::Range<i64>) {
    for number in numbers {
        let value = format!("value {number:060}");
        // Timestamps that go back now and then, batches of one and of three, with and without a producer.
        let values: Vec<_> = (0..1 + number % 3).map(|_| value.as_str()).collect();
        let mut batch = TestBatch::of(&values).at(WALL_MS + number * 7 % 400);
        if number % 2 == 0 {
            let sequence = log
                .producer_state()
                .get(ProducerId::new(5))
                .map_or(0, |producer| producer.last_sequence() + 1);
            batch = batch.by(5, 1, sequence);
        }
        bench.append_under(log, &batch, (number / 70) as i32).expect("an append");
    }
}

#[test]
fn dump_log_segments_finds_no_fault() {
    let Some(jars) = jars() else { return };
    let bench = Bench::real(small_segments());
    let (mut log, _) = bench.open("a");
    fill(&bench, &mut log, 0..120);
    let (dir, records) = (log.path().to_owned(), log.ends().log_end as usize);
    bench.stop_clean(log);
    assert_no_fault(&jars, &dir, records);

    let (mut log, _) = bench.open("a");
    fill(&bench, &mut log, 120..200);
    drop(log);
    let (log, recovery) = bench.open("a");
    assert_eq!(recovery.segments_walked, 1);
    let records = log.ends().log_end as usize;
    assert_no_fault(&jars, &dir, records);
    drop(log);

    let (mut log, _) = bench.open("b");
    log.truncate_suffix(301, bench.mono_ms).expect("a truncation");
    fill(&bench, &mut log, 200..230);
    let records = log.ends().log_end as usize;
    bench.stop_clean(log);
    assert_no_fault(&jars, &dir, records);
}
