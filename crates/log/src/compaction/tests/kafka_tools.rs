//! Kafka's own DumpLogSegments reads what a compaction leaves and finds no fault.

use super::world::{Keyed, KeyedBatch, Watched, append, compact, compacted, read_all};
use crate::compaction::LogAccess;
use crate::log::kafka_tools::{assert_no_fault, jars};
use crate::log::testing::{Bench, WALL_MS, flush};
use crate::{Log, LogConfig};
use mainstem_records::{Compression, ProducerFields, ProducerId};
use parking_lot::Mutex;

/// Batches of one to three records under twelve keys, a fifth of them tombstones, every second batch compressed and
/// every third by a producer.
fn fill(bench: &Bench, log: &mut Log) {
    for number in 0..300i64 {
        let record = |at: i64| Keyed {
            key: format!("key {}", (number * 7 + at * 5) % 12).into_bytes(),
            value: (number % 5 != 4).then(|| format!("value {number:030} {at}").into_bytes()),
            timestamp: WALL_MS + (number * 37) % 400,
        };
        let sequence =
            log.producer_state().get(ProducerId::new(5)).map_or(0, |producer| producer.last_sequence() + 1);
        let batch = KeyedBatch {
            records: (0..1 + number % 3).map(record).collect(),
            compression: (number % 2 == 0).then(|| Compression::ALL[(number / 2 % 5) as usize]),
            producer: (number % 3 == 0).then_some(ProducerFields {
                producer_id: 5,
                producer_epoch: 1,
                base_sequence: sequence,
            }),
        };
        append(bench, log, &batch).expect("an append");
    }
    flush(log);
}

#[test]
fn dump_log_segments_finds_no_fault_in_what_was_compacted() {
    let Some(jars) = jars() else { return };
    let config = LogConfig { segment_bytes: 3000, index_interval_bytes: 200, ..compacted() };
    let bench = Bench::real(config);
    let (mut log, _) = bench.open("a");
    fill(&bench, &mut log);
    let (dir, before) = (log.path().to_owned(), log.segment_count());
    let access = Watched { log: Mutex::new(Some(log)), watch: |_: &mut Log| {} };
    // With the second one tombstones are past their time, and segments are merged.
    for (keys_max, wall_ms) in [(5, WALL_MS), (100, WALL_MS + 5000)] {
        access.with_log(|log| log.reset_clean_end(0));
        compact(&access, keys_max, wall_ms, bench.mono_ms).expect("a compaction");
    }
    let log = access.log.lock().take().expect("open");
    assert!(log.segment_count() < before, "{before}");
    let values =
        |(_, record): &super::world::Seen| record.as_ref().is_some_and(|record| record.value.is_some());
    let records = read_all(&log, 0).iter().filter(|seen| values(seen)).count();
    bench.stop_clean(log);
    assert_no_fault(&jars, &dir, records);

    // Rebuilt indexes are right, too.
    for entry in std::fs::read_dir(&dir).expect("the partition's directory") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "index" || extension == "timeindex") {
            std::fs::remove_file(path).expect("an own file");
        }
    }
    bench.stop_clean(bench.open("a").0);
    assert_no_fault(&jars, &dir, records);
}
