//! Maintenance in its parts, with power cuts and other work in between.

use super::testing::{Bench, TestBatch, WALL_MS, flush, read_from, resolve, small_segments};
use crate::sim::{Random, SimStorage};
use crate::storage::{OpenMode, Storage, write_all_at};
use crate::{AppendError, Log, LogConfig, ReadBound, ReadError};
use mainstem_records::ProducerId;
use std::sync::Arc;

const VALUE: &str = "a value that takes some space in its segment";

fn simulated(config: LogConfig) -> (SimStorage, Bench) {
    let storage = SimStorage::new();
    (storage.clone(), Bench::with_storage(Arc::new(storage), config))
}

fn append_under(bench: &Bench, log: &mut Log, epoch: i32) {
    bench.append_under(log, &TestBatch::of(&[VALUE]), epoch).unwrap();
}

/// Known fault: they waited for syncs, and all appends waited with them.
#[test]
fn the_parts_of_maintenance_that_have_the_log_do_not_sync() {
    let (storage, mut bench) = simulated(small_segments());
    (bench.config.retention_bytes, bench.config.file_delete_delay_ms) = (Some(5000), 0);
    let (mut log, _) = bench.open("a");
    append_under(&bench, &mut log, 1);
    log.epochs_to_write().unwrap().write().unwrap();
    let before = storage.syncs();
    for _ in 0..100 {
        append_under(&bench, &mut log, 1);
    }
    assert!(log.segment_count() > 3);
    append_under(&bench, &mut log, 2);
    let mut work = log.begin_maintenance(WALL_MS, 0).unwrap();
    assert_eq!(storage.syncs(), before, "rolls, once the epoch is written, and the decision");
    work.run();
    let after = storage.syncs();
    assert!(after > before && log.epochs_to_write().is_none());
    assert!(log.end_maintenance(work).unwrap().segments_deleted > 0);
    let mut work = log.begin_maintenance(WALL_MS, 1).unwrap();
    assert_eq!(storage.syncs(), after, "the renames");
    work.run();
    assert!(log.end_maintenance(work).unwrap().files_removed > 0);
}

#[test]
fn segments_are_read_until_the_log_start_is_durable() {
    let mut bench = Bench::real(small_segments());
    bench.config.retention_bytes = Some(5000);
    let (mut log, _) = bench.open("a");
    bench.append_numbers(&mut log, 0..100);
    let mut work = log.begin_maintenance(WALL_MS, 0).unwrap();
    let (start, segments) = (log.ends().log_start, log.segment_count());
    assert!(start > 0, "readers see it at once");
    work.run();
    bench.append_numbers(&mut log, 100..120);
    assert!(log.segment_count() >= segments);
    assert!(log.end_maintenance(work).unwrap().segments_deleted > 0);
    assert_eq!(bench.read_all(&log).len() as i64, 120 - start);
}

#[test]
fn a_truncation_in_between_makes_maintenance_void() {
    let mut bench = Bench::real(small_segments());
    bench.config.retention_bytes = Some(2500);
    let (mut log, _) = bench.open("a");
    bench.append_numbers(&mut log, 0..100);
    flush(&mut log);
    let mut work = log.begin_maintenance(WALL_MS, 0).unwrap();
    assert!(log.ends().log_start > 20);
    log.truncate_suffix(20, 0).unwrap();
    bench.append_numbers(&mut log, 20..30);
    work.run();
    assert_eq!(log.end_maintenance(work).unwrap().segments_deleted, 0);
    assert_eq!((log.ends().log_start, log.ends().log_end), (20, 30));
    let noted = log.dir().checkpoints().recovery_point.get(log.partition());
    assert!(noted.is_none_or(|noted| noted <= 20), "{noted:?}");
    assert_eq!(bench.read_all(&log).len(), 10);
}

#[test]
fn epochs_survive_a_power_cut_at_any_time() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let (storage, bench) = simulated(small_segments());
        let (mut log, _) = bench.open("a");
        for number in 0..60 {
            append_under(&bench, &mut log, number / 3);
            match random.below(10) {
                0 | 1 => flush(&mut log),
                2 => {
                    let mut work = log.begin_maintenance(WALL_MS, 0).unwrap();
                    append_under(&bench, &mut log, number / 3);
                    flush(&mut log);
                    work.run();
                    log.end_maintenance(work).unwrap();
                }
                3 => log.dir().checkpoints().recovery_point.commit().unwrap(),
                4 if number > 20 => break,
                _ => {}
            }
        }
        let (durable, epochs) = (log.ends().durable_end, log.leader_epochs().clone());
        drop(log);
        let boot = if random.chance(70) { "b" } else { "a" };
        match boot {
            "a" => storage.kill(),
            _ => storage.power_cut(&mut random),
        }
        let (log, _) = bench.open(boot);
        let end = log.ends().log_end;
        assert!(end >= durable);
        for offset in 0..end {
            assert_eq!(log.leader_epochs().epoch_of(offset), epochs.epoch_of(offset), "seed {seed}");
        }
    }
}

/// The last record goes when the snapshot is durable that has its producer.
#[test]
fn a_producer_is_known_when_all_of_its_records_are_deleted() {
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let (storage, mut bench) = simulated(small_segments());
        bench.config.retention_ms = Some(1000);
        let (mut log, _) = bench.open("a");
        for sequence in 0..10 {
            bench.append(&mut log, &TestBatch::of(&[VALUE]).by(7, 0, sequence)).unwrap();
        }
        flush(&mut log);
        let maintain = |log: &mut Log| log.maintain(WALL_MS + 2000, 0).unwrap().segments_deleted;
        assert_eq!(maintain(&mut log), 0);
        assert!(log.flush_due(0), "what it waits for is asked for");
        if random.chance(80) {
            flush(&mut log);
            assert_eq!(maintain(&mut log), 1);
        }
        drop(log);
        storage.power_cut(&mut random);
        let (log, _) = bench.open("b");
        let known = log.producer_state().get(ProducerId::new(7)).expect("it was acknowledged");
        assert_eq!((known.last_sequence(), log.ends().log_end), (9, 10), "seed {seed}");
    }
}

/// Known fault: a truncation removed the whole batch that held its offset, and the recovery point stayed at the offset. Bytes
/// appended there were then trusted after a power cut.
#[test]
fn an_interrupted_truncation_leaves_no_recovery_point_behind_the_log_end() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let (storage, bench) = simulated(small_segments());
        let (mut log, _) = bench.open("a");
        for _ in 0..3 {
            bench.append(&mut log, &TestBatch::of(&[VALUE, VALUE, VALUE])).unwrap();
        }
        flush(&mut log);
        log.maintain(WALL_MS, 0).unwrap();
        log.dir().checkpoints().recovery_point.commit().unwrap();
        storage.stop_after(Some(random.below(20)));
        // However far it gets.
        let _ = log.truncate_suffix(5, 0);
        drop(log);
        storage.kill();
        storage.stop_after(None);
        let (mut log, _) = bench.open("a");
        let end = log.ends().log_end;
        let noted = log.dir().checkpoints().recovery_point.get(log.partition());
        assert!(noted.is_none_or(|noted| noted <= end), "{noted:?} in a log that ends at {end}");
        bench.append(&mut log, &TestBatch::of(&[VALUE])).unwrap();
        drop(log);
        storage.power_cut(&mut random);
        let (log, _) = bench.open("b");
        assert!(log.ends().log_end <= end.max(9) + 1, "seed {seed}");
        bench.read_all(&log);
    }
}

/// A write that a full disk has cut short, a cut, and a write in its place: a power cut may keep the first alone. The last
/// byte of a batch without headers is zero, as is what a file has where nothing was written.
#[test]
fn a_power_cut_may_bring_back_a_batch_that_was_refused_by_a_full_disk_and_nothing_else() {
    let mut came_back = 0;
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let (storage, bench) = simulated(LogConfig::default());
        let (mut log, _) = bench.open("a");
        bench.append(&mut log, &TestBatch::of(&["durable"])).unwrap();
        flush(&mut log);
        let refused = TestBatch::of(&["refused"]);
        storage.set_free_space(Some(refused.bytes().len() as u64 - 1));
        let result = bench.append(&mut log, &refused);
        assert!(matches!(result, Err(AppendError::OutOfSpace(_))), "{result:?}");
        storage.set_free_space(None);
        bench.append(&mut log, &TestBatch::of(&["unsynced, and longer than the refused one"])).unwrap();
        bench.append(&mut log, &TestBatch::of(&["what makes the file longer than both"])).unwrap();
        drop(log);
        storage.power_cut(&mut random);

        let (mut log, _) = bench.open("b");
        let values: Vec<_> = read_from(&log, 0).into_iter().map(|(_, value)| value).collect();
        assert_eq!(values[0], b"durable");
        let refused_is_there = values.get(1).is_some_and(|value| value == b"refused");
        assert!(!refused_is_there || values.len() == 2, "{values:?}");
        came_back += usize::from(refused_is_there);
        bench.append(&mut log, &TestBatch::of(&["acknowledged"])).unwrap();
        flush(&mut log);
        drop(log);
        storage.power_cut(&mut random);
        let (log, _) = bench.open("c");
        assert_eq!(read_from(&log, 0).last().unwrap().1, b"acknowledged", "seed {seed}");
    }
    assert!(came_back > 0, "the documentation says that it can");
}

/// A log with "durable" in a closed segment, behind which a batch was refused, and its recovery point at the end of that.
fn refused_at_the_end_of_a_segment(storage: &SimStorage, bench: &Bench) -> Log {
    let (mut log, _) = bench.open("a");
    bench.append(&mut log, &TestBatch::of(&["durable"])).unwrap();
    flush(&mut log);
    storage.set_free_space(Some(20));
    bench.append(&mut log, &TestBatch::of(&["refused"])).unwrap_err();
    storage.set_free_space(None);
    assert!(log.maintain(WALL_MS, bench.mono_ms + 1001).unwrap().rolled);
    log.dir().checkpoints().recovery_point.commit().unwrap();
    log
}

/// Known fault: a segment that ends at the recovery point was trusted as a whole, and the cut of a refused batch behind its
/// end was not durable. The log did not open.
#[test]
fn a_refused_batch_at_the_end_of_a_closed_segment_is_no_damage() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let (storage, bench) = simulated(LogConfig { segment_ms: 1000, ..LogConfig::default() });
        drop(refused_at_the_end_of_a_segment(&storage, &bench));
        storage.power_cut(&mut random);
        let (mut log, _) = bench.open("b");
        bench.append(&mut log, &TestBatch::of(&["next"])).unwrap();
        let values: Vec<_> = read_from(&log, 0).into_iter().map(|(_, value)| value).collect();
        assert_eq!(values, [b"durable".to_vec(), b"next".to_vec()], "seed {seed}");
    }
}

/// Known fault: a start after a kill did not sync the cut of a refused batch with its next sync. A start after a power cut
/// then dropped the records that followed it.
#[test]
fn what_is_acknowledged_after_a_kill_survives_a_refused_batch_in_the_segment_before() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let (storage, bench) = simulated(LogConfig { segment_ms: 1000, ..LogConfig::default() });
        let mut log = refused_at_the_end_of_a_segment(&storage, &bench);
        bench.append(&mut log, &TestBatch::of(&["next"])).unwrap();
        drop(log);
        storage.kill();
        let (mut log, _) = bench.open("a");
        flush(&mut log);
        drop(log);
        storage.power_cut(&mut random);
        let (log, _) = bench.open("b");
        let values: Vec<_> = read_from(&log, 0).into_iter().map(|(_, value)| value).collect();
        assert_eq!(values, [b"durable".to_vec(), b"next".to_vec()], "seed {seed}");
    }
}

/// The group of a replica decides on a log start even if the records before it are not durable here. A log that ended before
/// its start would begin again without the records that were not deleted, at an offset for which the group has no entry.
#[test]
fn the_start_of_a_replicas_log_is_noted_when_the_log_is_durable_up_to_it() {
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let (storage, bench) = simulated(small_segments());
        let (mut log, _) = bench.open("a");
        log.hold_high_watermark(0).expect("it can be read");
        bench.append_numbers(&mut log, 0..60);
        flush(&mut log);
        bench.append_numbers(&mut log, 60..120);
        log.set_high_watermark(120);
        assert_eq!(log.delete_records_before(90).unwrap(), 90);
        assert_eq!((log.ends().log_start, log.lasting_log_start()), (90, 60));
        assert!(log.flush_due(0), "it is asked for what it waits for");
        let is_synced = random.chance(50);
        if is_synced {
            flush(&mut log);
        }
        log.dir().checkpoints().log_start.commit().unwrap();
        drop(log);
        storage.power_cut(&mut random);
        let (log, _) = bench.open("b");
        let ends = log.ends();
        let expected = if is_synced { (90, 120) } else { (60, 60.max(ends.log_end)) };
        assert_eq!((ends.log_start, ends.log_end), expected, "seed {seed}");
    }
}

/// Another replica may lack them, and get the deletion with what follows.
#[test]
fn replicas_read_deleted_records_whose_segment_is_there() {
    let bench = Bench::real(small_segments());
    let (mut log, _) = bench.open("a");
    log.hold_high_watermark(0).expect("it can be read");
    bench.append_numbers(&mut log, 0..100);
    log.set_high_watermark(100);
    flush(&mut log);
    let first = log.segments[log.segments.len() - 2].base_offset;
    log.delete_records_before(first + 1).unwrap();
    assert!(log.maintain(WALL_MS, 0).unwrap().segments_deleted > 0);
    let read = |from, bound| log.read(from, bound, 100, true);
    let range = resolve(read(first, ReadBound::LogEnd).unwrap()).unwrap();
    assert_eq!(
        mainstem_records::Batch::split_first(&range.to_vec().unwrap()).unwrap().0.base_offset(),
        first
    );
    for (from, bound) in [(first, ReadBound::HighWatermark), (first - 1, ReadBound::LogEnd)] {
        assert!(matches!(read(from, bound), Err(ReadError::OffsetOutOfRange { .. })), "{from}");
    }
}

/// A log of 100 records, of which those before 80 are deleted, durably. Returns where its segments begin.
fn deleted_up_to_80(bench: &Bench, storage: &SimStorage) -> Vec<i64> {
    let (mut log, _) = bench.open("a");
    bench.append_numbers(&mut log, 0..100);
    flush(&mut log);
    log.delete_records_before(80).unwrap();
    log.dir().checkpoints().log_start.commit().unwrap();
    let bases: Vec<_> = log.segments.iter().map(|segment| segment.base_offset).collect();
    assert!(bases.len() > 4 && bases[4] < 80, "{bases:?}");
    drop(log);
    storage.kill();
    bases
}

/// Known fault: a start removed what other replicas lacked, which stayed out of their group.
#[test]
fn a_start_keeps_what_is_deleted_for_other_replicas_until_maintenance_removes_it() {
    for (is_replica, boot) in [(false, "a"), (true, "a"), (true, "b")] {
        let (storage, mut bench) = simulated(small_segments());
        (bench.is_replica, bench.config.file_delete_delay_ms) = (is_replica, 0);
        let bases = deleted_up_to_80(&bench, &storage);
        let at = bases.partition_point(|base| *base <= 80) - 1;
        let (log, _) = bench.open(boot);
        let first = if is_replica { 0 } else { bases[at] };
        assert_eq!((log.ends().log_start, log.first_base_offset()), (80, first));
        bench.stop_clean(log);
        // Also at the next one, after a stop in order.
        let (mut log, _) = bench.open(boot);
        assert_eq!((log.ends().log_start, log.first_base_offset()), (80, first));
        log.check();
        let read = |log: &Log, from, bound| log.read(from, bound, 100, true).map(resolve);
        assert_eq!(read(&log, 0, ReadBound::LogEnd).is_ok(), is_replica);
        assert!(matches!(read(&log, 79, ReadBound::HighWatermark), Err(ReadError::OffsetOutOfRange { .. })));
        assert_eq!(bench.read_all(&log).len(), 20);
        let done = log.maintain(WALL_MS, 0).unwrap();
        assert_eq!(done.segments_deleted, if is_replica { at } else { 0 });
        assert_eq!(log.maintain(WALL_MS, 1).unwrap().files_removed > 0, is_replica);
        assert_eq!((log.ends().log_start, log.first_base_offset()), (80, bases[at]));
        drop(log);
        storage.kill();
        let (log, _) = bench.open(boot);
        assert_eq!((log.ends().log_start, log.first_base_offset()), (80, bases[at]), "it is gone for good");
        assert_eq!(bench.read_all(&log).len(), 20);
    }
}

/// A power cut brings some names back and others not. Replicas get the deleted segments that join the log without a gap, and
/// no deleted segment prevents the log from being opened.
#[test]
fn what_is_deleted_and_not_whole_goes_with_all_that_precedes_it() {
    for boot in ["a", "b"] {
        for damage in ["gone", "shorter", "empty", "other bytes", "without an index"] {
            let (storage, mut bench) = simulated(small_segments());
            bench.is_replica = true;
            let bases = deleted_up_to_80(&bench, &storage);
            let file = |suffix: &str| bench.path.join("t-0").join(format!("{:020}.{suffix}", bases[1]));
            let open = |suffix: &str| storage.open(&file(suffix), OpenMode::ReadWrite).unwrap();
            let log_len = open("log").len().unwrap();
            match damage {
                "gone" => storage.remove_file(&file("log")).unwrap(),
                "shorter" => open("log").set_len(log_len - 10).unwrap(),
                "empty" => open("log").set_len(0).unwrap(),
                "other bytes" => write_all_at(&*open("log"), b"other", log_len - 10).unwrap(),
                _ => storage.remove_file(&file("index")).unwrap(),
            }
            let (mut log, _) = bench.open(boot);
            // Under the same boot bytes are as they were written.
            let is_unseen = damage == "other bytes" && boot == "a";
            let is_whole = damage == "without an index" || is_unseen;
            let first = if is_whole { 0 } else { bases[2] };
            assert_eq!((log.ends().log_start, log.first_base_offset()), (80, first), "{damage}, boot {boot}");
            log.check();
            assert_eq!(bench.read_all(&log).len(), 20);
            bench.append_numbers(&mut log, 100..120);
            assert!(log.maintain(WALL_MS, 0).unwrap().segments_deleted > 0);
            assert_eq!(bench.read_all(&log).len(), 40);
        }
    }
}
