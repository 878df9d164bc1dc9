//! Transcripts: what is appended, and what a compaction leaves of it.

use super::world::{Keyed, KeyedBatch, Seen, Watched, append, assess, cleaner, compact, compacted, read_all};
use crate::compaction::{CleanError, Cleaned, LogAccess, Task};
use crate::log::testing::{Bench, WALL_MS, flush, resolve};
use crate::sim::SimStorage;
use crate::storage::Storage;
use crate::{Log, LogConfig, ReadBound, ReadPlan};
use mainstem_records::{Compression, ProducerFields};
use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::sync::Arc;

fn bench(config: LogConfig) -> (Bench, SimStorage) {
    let storage = SimStorage::new();
    (Bench::with_storage(Arc::new(storage.clone()), config), storage)
}

/// `a1` writes 1 under key a, `a-` deletes it; records joined by commas are one batch; `|` closes the segment. `name:`
/// before a batch is its codec; `@7` behind one its producer, whose sequence numbers are its offsets.
fn run(bench: &Bench, log: &mut Log, script: &str) {
    for word in script.split_whitespace() {
        if word == "|" {
            log.roll(bench.mono_ms).expect("a new segment");
            continue;
        }
        let (word, producer) = word.split_once('@').map_or((word, None), |(word, id)| (word, Some(id)));
        let (codec, records) = word.split_once(':').map_or((None, word), |(codec, rest)| (Some(codec), rest));
        let record = |text: &str| Keyed {
            key: text[..1].into(),
            value: (&text[1..] != "-").then(|| text[1..].into()),
            timestamp: WALL_MS + log.ends().log_end,
        };
        let batch = KeyedBatch {
            records: records.split(',').map(record).collect(),
            compression: codec.map(|name| {
                Compression::ALL.into_iter().find(|codec| codec.name() == name).expect("a codec")
            }),
            producer: producer.map(|id| ProducerFields {
                producer_id: id.parse().expect("a producer's id"),
                producer_epoch: 0,
                base_sequence: log.ends().log_end as i32,
            }),
        };
        append(bench, log, &batch).expect("an append");
    }
    flush(log);
}

fn text(seen: &[Seen]) -> String {
    let word = |(offset, record): &Seen| match record {
        None => format!("{offset}:()"),
        Some(Keyed { key, value, .. }) => {
            let value = value.as_ref().map_or("-".into(), |value| String::from_utf8_lossy(value));
            format!("{offset}:{}{value}", String::from_utf8_lossy(key))
        }
    };
    seen.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// Runs a script on an empty log, and compacts it with a map for so many keys.
fn compact_script(script: &str, keys_max: usize) -> (Bench, Watched<impl Fn(&mut Log)>, Cleaned) {
    let (bench, _) = bench(LogConfig { segment_bytes: 1 << 20, ..compacted() });
    let (mut log, _) = bench.open("a");
    run(&bench, &mut log, script);
    let before = read_all(&log, 0);
    // A reader at any step finds records as they were, and the last of each key.
    let watch = move |log: &mut Log| {
        let now = read_all(log, 0);
        for seen in now.iter().filter(|(_, record)| record.is_some()) {
            assert!(before.contains(seen), "{seen:?}");
        }
        for seen in before.iter().filter(|(_, record)| record.as_ref().is_some_and(|r| r.value.is_some())) {
            let same_key =
                |other: &&Seen| other.1.as_ref().map(|r| &r.key) == seen.1.as_ref().map(|r| &r.key);
            let last = before.iter().rfind(same_key);
            assert!(last != Some(seen) || now.contains(seen), "{seen:?} is lost: {}", text(&now));
        }
    };
    let access = Watched { log: Mutex::new(Some(log)), watch };
    let cleaned = compact(&access, keys_max, WALL_MS, bench.mono_ms).expect("a compaction");
    (bench, access, cleaned)
}

fn check(script: &str, expect: &str) {
    for keys_max in [100, 2, 1] {
        let (bench, access, _) = compact_script(script, keys_max);
        let log = access.log.lock().take().expect("open");
        assert_eq!(text(&read_all(&log, 0)), expect, "{script}, {keys_max} keys at once");
        bench.stop_clean(log);
        let (log, recovery) = bench.open("a");
        assert_eq!(text(&read_all(&log, 0)), expect, "{script}, after a restart");
        assert_eq!((recovery.segments_walked, recovery.indexes_rebuilt), (0, 0));
    }
}

#[test]
fn of_each_key_the_last_record_stays_with_its_offset() {
    check("a1 b2 a3 | c4", "1:b2 2:a3 3:c4");
    check("a1 b2 | a3 c4 | b5 | d6 a7", "2:a3 3:c4 4:b5 5:d6 6:a7");
    check("a1,b2,a3 c4,b5 | a6", "2:a3 3:c4 4:b5 5:a6");
}

#[test]
fn what_is_written_to_is_left_alone() {
    check("a1 a2", "0:a1 1:a2");
    check("a1 a2 | a3 a4 a5", "1:a2 2:a3 3:a4 4:a5");
}

#[test]
fn compressed_batches_are_compressed_again() {
    for codec in Compression::ALL {
        let name = codec.name();
        check(&format!("{name}:a1,b2,c3 {name}:b4,a5 | d6"), "2:c3 3:b4 4:a5 5:d6");
    }
}

#[test]
fn the_last_batch_of_a_segment_and_of_a_producer_stays_if_only_as_a_header() {
    check("a1 b2 a3 b4 c5 | a6 b7 c8 | d9", "5:a6 6:b7 7:c8 8:d9");
    check("c1 a2 | a3 a4 | d5", "0:c1 3:a4 4:d5");
    check("a1@7 b2 b3@8 a4 b5 | c6", "0:() 2:() 3:a4 4:b5 5:c6");
    check("a1,a2@7 a3@7 b4 a5 | c6", "2:() 3:b4 4:a5 5:c6");
}

#[test]
fn a_tombstone_stays_for_a_while_after_it_was_first_met() {
    let (bench, access, _) = compact_script("a1 b2 | a- | c3 |", 100);
    let at = |wall_ms| {
        access.with_log(|log| {
            log.dir().checkpoints().cleaner.set(log.partition(), 0);
        });
        compact(&access, 100, wall_ms, bench.mono_ms).expect("a compaction");
        access.with_log(|log| text(&read_all(log, 0))).expect("open")
    };
    assert_eq!(access.with_log(|log| text(&read_all(log, 0))).expect("open"), "1:b2 2:a- 3:c3");
    assert_eq!(at(WALL_MS + 999), "1:b2 2:a- 3:c3");
    assert_eq!(at(WALL_MS + 1000), "1:b2 3:c3");
}

#[test]
fn rounds_are_as_many_as_the_keys_need() {
    let script = "a1 b2 c3 d4 | a5 b6 c7 d8 | e9";
    for (keys_max, rounds) in [(4, 1), (3, 3), (2, 4), (1, 8)] {
        let (_, access, cleaned) = compact_script(script, keys_max);
        assert_eq!((cleaned.rounds, cleaned.end), (rounds, 8), "{keys_max}");
        assert_eq!(access.with_log(|log| assess(log, WALL_MS).cleanable_bytes), Some(0));
    }
}

#[test]
fn small_segments_are_merged_and_indexed() {
    let (bench, _) = bench(LogConfig { segment_bytes: 700, ..compacted() });
    let (mut log, _) = bench.open("a");
    let script: String =
        (0..60).map(|number| format!("{}{number} ", char::from(b'a' + number % 20))).collect();
    run(&bench, &mut log, &script);
    let segments = log.segment_count();
    // Twenty keys, and what they have in the active segment is not looked at.
    let first = log.active_segment().base_offset - 20;
    let expected: Vec<_> = read_all(&log, 0).into_iter().filter(|(offset, _)| *offset >= first).collect();
    let access = Watched { log: Mutex::new(Some(log)), watch: |_: &mut Log| {} };
    // The sizes before count: what the first time has made small the second one merges.
    for _ in 0..2 {
        access.with_log(|log| log.dir().checkpoints().cleaner.set(log.partition(), 0));
        compact(&access, 100, WALL_MS, bench.mono_ms).expect("a compaction");
    }
    let log = access.log.lock().take().expect("open");
    assert!(log.segment_count() <= segments - 3, "{} of {segments}", log.segment_count());
    for from in 0..60 {
        let behind: Vec<_> = expected.iter().filter(|(offset, _)| *offset >= from).cloned().collect();
        assert_eq!(read_all(&log, from), behind, "from {from}");
        let search = log.timestamp_search().expect("a search");
        let found = search.offset_for(WALL_MS + from).expect("readable").expect("a record").offset;
        assert_eq!(found, from.max(first));
    }
    bench.stop_clean(log);
    assert_eq!(read_all(&bench.open("a").0, 0), expected);
}

#[test]
fn a_reader_that_has_begun_keeps_the_old_segments() {
    let (bench, storage) = bench(LogConfig { segment_bytes: 1 << 20, ..compacted() });
    let (mut log, _) = bench.open("a");
    run(&bench, &mut log, "a1 b2 a3 b4 | a5 b6 |");
    let old = "0:a1 1:b2 2:a3 3:b4";
    let Ok(ReadPlan::Range(range)) = log.read(0, ReadBound::LogEnd, 10_000, true) else { panic!("a range") };
    storage.set_cold(true);
    let Ok(ReadPlan::Later(pending)) = log.read(1, ReadBound::LogEnd, 10_000, true) else { panic!("cold") };
    storage.set_cold(false);
    let search = log.timestamp_search().expect("a search");
    let access = Watched { log: Mutex::new(Some(log)), watch: |_: &mut Log| {} };
    compact(&access, 100, WALL_MS, bench.mono_ms).expect("a compaction");
    assert_eq!(access.with_log(|log| text(&read_all(log, 0))).expect("open"), "4:a5 5:b6");

    let mut seen = Vec::new();
    super::world::decode(&range.to_vec().expect("still there"), 0, &mut seen);
    assert_eq!(text(&seen), old);
    let range = resolve(pending.resolve().expect("still there")).expect("a range");
    seen.clear();
    super::world::decode(&range.to_vec().expect("still there"), 1, &mut seen);
    assert_eq!(text(&seen), "1:b2 2:a3 3:b4");
    // A search opens its files only now: those of before have another name.
    assert_eq!(search.offset_for(WALL_MS + 2).expect("readable").expect("a record").offset, 2);
}

#[test]
fn a_compaction_gives_way_to_what_changes_the_log() {
    type Change = fn(&Bench, &mut Log);
    // The change, the records that may be left, and those that have to be.
    let changes: [(Change, &str, &str); 4] = [
        (
            |bench, log| assert!(log.truncate_suffix(3, bench.mono_ms).expect("a truncation") <= 3),
            "0:a1 1:b2 2:a3",
            "",
        ),
        (|bench, log| log.truncate_fully_and_start_at(9, bench.mono_ms).expect("a truncation"), "", ""),
        // The end of a replica that was not committed: the input stays.
        (
            |bench, log| assert_eq!(log.truncate_suffix(6, bench.mono_ms).expect("a truncation"), 6),
            "0:a1 1:b2 2:a3 3:b4 4:a5 5:b6",
            "4:a5 5:b6",
        ),
        (
            |bench, log| {
                log.delete_records_before(4).expect("below the high watermark");
                log.maintain(WALL_MS, bench.mono_ms).expect("maintained");
            },
            "4:a5 5:b6 6:c7",
            "4:a5 5:b6 6:c7",
        ),
    ];
    for (change, expect, last) in changes {
        for step in 0..12 {
            let (bench, _) = bench(LogConfig { segment_bytes: 1 << 20, ..compacted() });
            let (mut log, _) = bench.open("a");
            run(&bench, &mut log, "a1 b2 a3 b4 | a5 b6 | c7");
            let left = Mutex::new(Some(step));
            let watch = |log: &mut Log| {
                let mut left = left.lock();
                match *left {
                    Some(0) => {
                        *left = None;
                        change(&bench, log);
                    }
                    Some(steps) => *left = Some(steps - 1),
                    None => {}
                }
            };
            let access = Watched { log: Mutex::new(Some(log)), watch };
            let result = compact(&access, 100, WALL_MS, bench.mono_ms);
            assert!(matches!(result, Ok(_) | Err(CleanError::Changed)), "{step}: {result:?}");
            let log = access.log.lock().take().expect("open");
            if left.lock().is_some() {
                continue;
            }
            // What was changed may have been compacted before.
            let from = log.ends().log_start;
            let now = text(&read_all(&log, from));
            let kept = now.split_whitespace().all(|word| expect.contains(word) || word.ends_with("()"));
            assert!(kept && now.contains(last), "{step}: {now:?}, not {expect:?}");
            let dir = log.dir().clone();
            drop((log, dir));
            let (log, _) = bench.open("a");
            assert_eq!(text(&read_all(&log, log.ends().log_start.max(from))), now, "{step}, after a restart");
        }
    }
}

#[test]
fn a_compaction_that_is_broken_off_leaves_the_log_as_it_was() {
    let (bench, storage) = bench(LogConfig { segment_bytes: 1 << 20, ..compacted() });
    let (mut log, _) = bench.open("a");
    run(&bench, &mut log, "a1 b2 a3 | a4 |");
    let before = read_all(&log, 0);
    let (path, dir) = (log.path().to_owned(), log.dir().clone());
    let access = Watched { log: Mutex::new(Some(log)), watch: |_: &mut Log| {} };
    let task = Task { first_dirty: 0, first_uncleanable: 4, wall_ms: WALL_MS, mono_ms: 0 };
    for read_mode in 0..3 {
        let mut left = read_mode;
        let pace = &mut |_| {
            left -= 1;
            if left < 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let result = cleaner(100).clean(&access, &task, pace);
        assert!(matches!(result, Err(CleanError::BrokenOff)), "{result:?}");
        assert_eq!(access.with_log(|log| read_all(log, 0)).expect("open"), before);
    }
    let names = storage.list(&path).expect("a directory");
    assert!(names.iter().all(|entry| !entry.name.contains(".cleaned")), "{names:?}");
    assert_eq!(dir.checkpoints().cleaner.get(&crate::partition_dir::TopicPartition::new("t", 0)), None);
}

#[test]
fn damage_is_not_copied() {
    let (bench, storage) = bench(LogConfig { segment_bytes: 1 << 20, ..compacted() });
    let (mut log, _) = bench.open("a");
    run(&bench, &mut log, "a1 b2 a3 | c4 |");
    let path = log.path().join("00000000000000000000.log");
    let file = storage.open(&path, crate::storage::OpenMode::ReadWrite).expect("a segment");
    crate::storage::write_all_at(&*file, b"x", 65).expect("a write");
    let access = Watched { log: Mutex::new(Some(log)), watch: |_: &mut Log| {} };
    let error = compact(&access, 100, WALL_MS, 0).expect_err("a wrong checksum");
    assert!(error.is_lasting() && error.to_string().contains("checksum"), "{error}");
}

#[test]
fn the_checkpoint_is_kafkas_and_survives() {
    let (bench, access, cleaned) = compact_script("a1 b2 a3 | c4 |", 100);
    assert_eq!(cleaned.end, 4);
    let log = access.log.lock().take().expect("open");
    let path = log.dir().path().join("cleaner-offset-checkpoint");
    let bytes = crate::storage::read_small_file(&*bench.storage, &path, 1000).expect("a checkpoint");
    assert_eq!(String::from_utf8_lossy(&bytes), "0\n1\nt 0 4\n");
    bench.stop_clean(log);
    let (mut log, _) = bench.open("a");
    let dirty = assess(&log, WALL_MS);
    assert_eq!((dirty.first_dirty, dirty.cleanable_bytes), (4, 0));
    // What is appended behind a cut was never compacted.
    log.truncate_suffix(3, bench.mono_ms).expect("a truncation");
    assert_eq!(assess(&log, WALL_MS).first_dirty, log.ends().log_end);
}

#[test]
fn what_is_not_on_disk_is_not_compacted() {
    let (bench, _) = bench(LogConfig { segment_bytes: 1 << 20, ..compacted() });
    let (mut log, _) = bench.open("a");
    run(&bench, &mut log, "a1 | a2 |");
    let batch = KeyedBatch {
        records: vec![Keyed { key: b"a".into(), value: None, timestamp: WALL_MS }],
        ..KeyedBatch::default()
    };
    append(&bench, &mut log, &batch).expect("an append");
    log.roll(bench.mono_ms).expect("a new segment");
    assert_eq!(assess(&log, WALL_MS).first_uncleanable, 2);
    flush(&mut log);
    assert_eq!(assess(&log, WALL_MS).first_uncleanable, 3);
}
