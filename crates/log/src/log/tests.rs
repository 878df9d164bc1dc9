//! One log over the real file system.

use super::testing::{Bench, TestBatch, WALL_MS, flush, read_from, resolve, small_segments};
use crate::dir::{LastStop, LogDirOptions, NodeIdentity};
use crate::{AppendError, LogConfig, LogError, ReadBound, ReadError, ReadPlan};
use crate::{Log, ProducerBudget};
use mainstem_records::{LeaderEpoch, ProducerId};
use std::sync::Arc;

fn assert_numbers(records: &[(i64, Vec<u8>)], numbers: std::ops::Range<i64>) {
    let expected: Vec<_> =
        numbers.map(|number| (number, format!("value {number:060}").into_bytes())).collect();
    assert_eq!(records, expected);
}

#[test]
fn what_was_appended_is_read_over_many_segments() {
    let bench = Bench::real(small_segments());
    let (mut log, _) = bench.open("a");
    bench.append_numbers(&mut log, 0..100);
    assert!(log.segment_count() > 5, "{}", log.segment_count());
    assert_numbers(&bench.read_all(&log), 0..100);
    assert_numbers(&read_from(&log, 57), 57..100);
    let ends = log.ends();
    assert_eq!((ends.log_start, ends.log_end, ends.high_watermark, ends.durable_end), (0, 100, 100, 0));
    flush(&mut log);
    assert_eq!(log.ends().durable_end, 100);
}

#[test]
fn nothing_becomes_durable_after_a_failed_sync() {
    let bench = Bench::real(LogConfig::default());
    let (mut log, _) = bench.open("a");
    bench.append_numbers(&mut log, 0..10);
    flush(&mut log);
    bench.append_numbers(&mut log, 10..20);
    log.flush_work();
    log.failed(&std::io::Error::other("the disk is gone"));
    // A sync that was asked for before the failure comes behind it and succeeds.
    let work = log.flush_work();
    assert!(work.files.is_empty() && work.directories.is_empty(), "{work:?}");
    log.flushed(work.upto);
    assert_eq!(log.ends().durable_end, 10);
}

#[test]
fn a_clean_stop_needs_no_walk() {
    let bench = Bench::real(small_segments());
    let (mut log, recovery) = bench.open("a");
    assert_eq!(recovery.last_stop, LastStop::New);
    bench.append_numbers(&mut log, 0..100);
    bench.stop_clean(log);
    let (mut log, recovery) = bench.open("a");
    assert_eq!((recovery.last_stop, recovery.segments_walked), (LastStop::Clean, 0));
    assert_eq!(log.ends().durable_end, 100);
    assert_numbers(&bench.read_all(&log), 0..100);
    bench.append_numbers(&mut log, 100..120);
    assert_numbers(&bench.read_all(&log), 0..120);
}

#[test]
fn a_kill_costs_a_walk_of_the_last_segment() {
    let bench = Bench::real(small_segments());
    let (mut log, _) = bench.open("a");
    bench.append_numbers(&mut log, 0..100);
    drop(log);
    let (mut log, recovery) = bench.open("a");
    assert_eq!((recovery.last_stop, recovery.segments_walked), (LastStop::UncleanSameBoot, 1));
    assert!(recovery.raise_leader_epoch);
    assert_eq!(log.ends().durable_end, 0);
    assert_numbers(&bench.read_all(&log), 0..100);
    bench.append_numbers(&mut log, 100..120);
    flush(&mut log);
    assert_eq!(log.ends().durable_end, 120);
}

#[test]
fn what_a_kill_may_have_left_unsynced_asks_for_its_sync() {
    let bench = Bench::real(small_segments());
    let (log, _) = bench.open("a");
    drop(log);
    let (mut log, _) = bench.open("a");
    assert!(log.flush_due(0));
    flush(&mut log);
    assert!(!log.flush_due(0));
    bench.stop_clean(log);
    let (log, _) = bench.open("a");
    assert!(!log.flush_due(0), "it was left in order");
}

#[test]
fn another_boot_costs_a_walk_from_the_recovery_point() {
    let bench = Bench::real(small_segments());
    let (mut log, _) = bench.open("a");
    bench.append_numbers(&mut log, 0..50);
    flush(&mut log);
    log.maintain(WALL_MS, bench.mono_ms).expect("maintenance");
    log.dir().checkpoints().recovery_point.commit().expect("a checkpoint");
    bench.append_numbers(&mut log, 50..100);
    let segments = log.segment_count();
    drop(log);
    let (log, recovery) = bench.open("b");
    assert_eq!(recovery.last_stop, LastStop::UncleanOtherBoot);
    assert!(recovery.segments_walked > 1 && recovery.segments_walked < segments, "{recovery:?}");
    assert_eq!((recovery.bytes_cut, log.ends().durable_end), (0, 50));
    assert_numbers(&bench.read_all(&log), 0..100);
}

#[test]
fn a_read_knows_its_bounds() {
    let bench = Bench::real(LogConfig::default());
    let (mut log, _) = bench.open("a");
    bench.append_numbers(&mut log, 0..10);
    log.hold_high_watermark(6).expect("it can be read");
    let read = |from, bound, bytes, one| log.read(from, bound, bytes, one);
    for outside in [-1, 11] {
        let error = read(outside, ReadBound::LogEnd, 100, true).unwrap_err();
        assert!(matches!(error, ReadError::OffsetOutOfRange { .. }), "{error}");
    }
    for (from, bound) in
        [(10, ReadBound::LogEnd), (6, ReadBound::HighWatermark), (9, ReadBound::HighWatermark)]
    {
        assert!(matches!(read(from, bound, 100, true), Ok(ReadPlan::Empty)), "{from}");
    }
    let whole = resolve(read(0, ReadBound::LogEnd, 1 << 20, false).unwrap()).unwrap();
    assert_eq!(whole.len as u64, log.size());
    let committed = resolve(read(2, ReadBound::HighWatermark, 1 << 20, false).unwrap()).unwrap();
    assert_eq!(committed.len as u64, log.size() / 10 * 4);
    assert!(matches!(read(0, ReadBound::LogEnd, 20, false), Ok(ReadPlan::Empty)));
    let first = resolve(read(0, ReadBound::LogEnd, 20, true).unwrap()).unwrap();
    assert_eq!(first.len as u64, log.size() / 10);
}

#[test]
fn a_producers_retry_is_answered_with_the_first_offset_also_after_restarts() {
    let bench = Bench::real(small_segments());
    let (mut log, _) = bench.open("a");
    for sequence in 0..5 {
        let batch = TestBatch::of(&["x"]).by(9, 0, sequence);
        assert_eq!(bench.append(&mut log, &batch).unwrap().base_offset, i64::from(sequence));
    }
    let check = |log: &mut crate::Log| {
        for sequence in 0..5 {
            let again = bench.append(log, &TestBatch::of(&["x"]).by(9, 0, sequence)).unwrap();
            assert_eq!((again.base_offset, again.duplicate), (i64::from(sequence), true));
        }
        let gap = bench.append(log, &TestBatch::of(&["x"]).by(9, 0, 6)).unwrap_err();
        assert!(matches!(gap, AppendError::OutOfOrderSequence { last_sequence: 4, .. }), "{gap}");
    };
    check(&mut log);
    bench.stop_clean(log);
    let (mut log, _) = bench.open("a");
    check(&mut log);
    drop(log);
    let (mut log, _) = bench.open("a");
    check(&mut log);
    drop(log);
    let (mut log, _) = bench.open("b");
    check(&mut log);
}

#[test]
fn offsets_are_found_by_time() {
    let bench = Bench::real(small_segments());
    let (mut log, _) = bench.open("a");
    for number in 0..100 {
        let batch = TestBatch::of(&["some value that takes a little space in its segment"]);
        bench.append(&mut log, &batch.at(WALL_MS + number * 10)).unwrap();
    }
    let check = |timestamp: i64, offset: Option<i64>| {
        let found = log.timestamp_search().unwrap().offset_for(WALL_MS + timestamp).unwrap();
        assert_eq!(found.map(|found| found.offset), offset, "{timestamp}");
    };
    check(-1000, Some(0));
    check(0, Some(0));
    check(1, Some(1));
    check(500, Some(50));
    check(985, Some(99));
    check(991, None);
    let youngest = log.timestamp_search().unwrap().offset_of_max().unwrap().unwrap();
    assert_eq!((youngest.offset, youngest.timestamp), (99, WALL_MS + 990));
}

/// Known fault: the search held the log, so that appends waited for its reads.
#[test]
fn a_search_by_time_continues_beside_appends_and_deletions() {
    let bench = Bench::real(small_segments());
    let (mut log, _) = bench.open("a");
    let append = |log: &mut crate::Log, numbers: std::ops::Range<i64>| {
        for number in numbers {
            let batch = TestBatch::of(&["some value that takes a little space in its segment"]);
            bench.append(log, &batch.at(WALL_MS + number * 10)).unwrap();
        }
    };
    append(&mut log, 0..100);
    bench.stop_clean(log);
    let (mut log, _) = bench.open("a");
    let search = log.timestamp_search().unwrap();
    append(&mut log, 100..150);
    log.delete_records_before(50).unwrap();
    assert!(log.maintain(WALL_MS, bench.mono_ms).unwrap().segments_deleted > 0);
    let first = log.segments[0].base_offset;
    // What is gone by now is passed over, and what came later is not seen.
    assert_eq!(search.offset_for(WALL_MS).unwrap().unwrap().offset, first);
    assert_eq!(search.offset_for(WALL_MS + 985).unwrap().unwrap().offset, 99);
    assert_eq!(search.offset_for(WALL_MS + 1000).unwrap(), None);
    assert_eq!(search.offset_of_max().unwrap().unwrap().offset, 99);
    assert_eq!(log.timestamp_search().unwrap().offset_of_max().unwrap().unwrap().offset, 149);
}

#[test]
fn deleted_records_stay_deleted() {
    let bench = Bench::real(small_segments());
    let (mut log, _) = bench.open("a");
    bench.append_numbers(&mut log, 0..100);
    assert!(log.delete_records_before(101).is_err());
    assert_eq!(log.delete_records_before(55).unwrap(), 55);
    assert_numbers(&bench.read_all(&log), 55..100);
    log.dir().checkpoints().log_start.commit().expect("a checkpoint");
    let before = log.segment_count();
    drop(log);
    let (mut log, _) = bench.open("a");
    assert_eq!(log.ends().log_start, 55);
    assert!(log.segment_count() < before, "whole segments before the start are gone");
    assert_numbers(&bench.read_all(&log), 55..100);
    assert_eq!(log.delete_records_before(80).unwrap(), 80);
    assert!(log.maintain(WALL_MS, bench.mono_ms).unwrap().segments_deleted > 0);
    assert_numbers(&bench.read_all(&log), 80..100);
    assert_eq!(log.delete_records_before(-1).unwrap(), 100);
}

#[test]
fn retention_deletes_by_size_and_by_time_and_files_go_later() {
    let mut bench = Bench::real(small_segments());
    bench.config.retention_ms = Some(1000);
    bench.config.retention_bytes = Some(5000);
    let (mut log, _) = bench.open("a");
    bench.append_numbers(&mut log, 0..100);
    let by_size = log.maintain(WALL_MS, 0).unwrap();
    assert!(by_size.segments_deleted > 0 && log.size() >= 5000 && log.size() < 8000, "{by_size:?}");
    let start = log.ends().log_start;
    assert_numbers(&bench.read_all(&log), start..100);
    let by_time = log.maintain(WALL_MS + 1001, 0).unwrap();
    assert!(by_time.segments_deleted > 0 && by_time.rolled, "{by_time:?}");
    assert!(log.size() > 0, "the last one waits for what knows of its producers");
    flush(&mut log);
    assert_eq!(log.maintain(WALL_MS + 1001, 0).unwrap().segments_deleted, 1);
    assert_eq!((log.ends().log_start, log.size(), log.segment_count()), (100, 0, 1));
    let leftover = || {
        std::fs::read_dir(log.path())
            .unwrap()
            .flatten()
            .filter(|e| e.file_name().to_string_lossy().ends_with(".deleted"))
            .count()
    };
    let waiting = leftover();
    assert!(waiting > 0);
    assert_eq!(log.maintain(WALL_MS + 1001, 59_999).unwrap().files_removed, 0);
    assert_eq!(log.maintain(WALL_MS + 1001, 60_000).unwrap().files_removed, waiting);
    bench.append_numbers(&mut log, 100..110);
    assert_numbers(&bench.read_all(&log), 100..110);
}

/// Another replica's clock may differ: what goes by this one is asked for, and goes where the log start says so.
#[test]
fn retention_of_a_replica_is_proposed_and_goes_with_the_log_start() {
    let mut bench = Bench::real(small_segments());
    bench.config.retention_ms = Some(1000);
    let (mut log, _) = bench.open("a");
    bench.append_numbers(&mut log, 0..100);
    flush(&mut log);
    log.follow_log_end(false);
    assert_eq!(log.unwanted_before(WALL_MS).unwrap(), None, "nothing is too old");
    let late = WALL_MS + 1001;
    assert_eq!(log.unwanted_before(late).unwrap(), Some(100));
    let segments = log.segment_count();
    assert_eq!(log.maintain(late, 0).unwrap().segments_deleted, 0, "it may be this clock that is wrong");
    assert_numbers(&bench.read_all(&log), 0..100);
    log.delete_records_before(50).unwrap();
    // A clock that says otherwise keeps nothing.
    assert!((1..segments).contains(&log.maintain(WALL_MS - 1_000_000, 0).unwrap().segments_deleted));
    assert_numbers(&bench.read_all(&log), 50..100);
    log.delete_records_before(100).unwrap();
    assert_eq!(log.unwanted_before(late).unwrap(), None, "it is moved already");
    assert!(log.maintain(WALL_MS, 0).unwrap().rolled);
    flush(&mut log);
    assert_eq!(log.maintain(WALL_MS, 0).unwrap().segments_deleted, 1);
    assert_eq!((log.ends().log_start, log.size(), log.segment_count()), (100, 0, 1));
}

#[test]
fn truncation_undoes_everything() {
    let bench = Bench::real(small_segments());
    let (mut log, _) = bench.open("a");
    for number in 0..100 {
        let value = format!("value {number:060}");
        let batch = TestBatch::of(&[&value]).by(3, 0, number);
        bench.append_under(&mut log, &batch, number / 30).unwrap();
    }
    for to in [95, 61, 60, 33, 1, 0] {
        assert_eq!(log.truncate_suffix(to, bench.mono_ms).unwrap(), to);
        assert_eq!(log.ends().log_end, to);
        assert_numbers(&bench.read_all(&log), 0..to);
        let last = log.producer_state().get(ProducerId::new(3)).map(|producer| producer.last_sequence());
        assert_eq!(last, (to > 0).then_some(to as i32 - 1));
        let latest = (to > 0).then(|| LeaderEpoch::new((to as i32 - 1) / 30));
        assert_eq!(log.leader_epochs().latest(), latest);
        let value = format!("value {to:060}");
        bench.append_under(&mut log, &TestBatch::of(&[&value]).by(3, 0, to as i32), 7).unwrap();
        assert_numbers(&bench.read_all(&log), 0..to + 1);
    }
}

#[test]
fn a_topic_of_the_same_name_is_not_served_from_the_old_ones_files() {
    let bench = Bench::real(LogConfig::default());
    let dir = bench.dir("a");
    drop(bench.try_open(&dir).unwrap());
    let other = crate::PartitionIdentity { topic: "t".into(), topic_id: [8; 16], partition: 0 };
    let error = crate::Log::open(&dir, &other, std::sync::Arc::new(bench.config.clone()), 0).unwrap_err();
    assert!(matches!(error, LogError::OtherTopic { .. }), "{error}");
}

/// Exactly once does not end with the number of producers: the first of very many is recognised.
#[test]
fn a_retry_is_recognised_however_many_producers_came_after_it() {
    let bench = Bench::real(LogConfig::default());
    let (mut log, _) = bench.open("a");
    let batch = |id: i64| TestBatch::of(&["x"]).by(id, 0, 0);
    for id in 0..12_000 {
        assert!(!bench.append(&mut log, &batch(id)).unwrap().duplicate);
    }
    let check = |log: &mut Log| {
        let retry = bench.append(log, &batch(0)).unwrap();
        assert_eq!((retry.duplicate, retry.base_offset), (true, 0));
    };
    check(&mut log);
    bench.stop_clean(log);
    let (mut log, _) = bench.open("a");
    check(&mut log);
    // Time alone ends it.
    assert_eq!(
        log.expire_producers(bench.mono_ms, WALL_MS + log.config().producer_id_expiration_ms as i64),
        12_000
    );
    assert!(!bench.append(&mut log, &batch(0)).unwrap().duplicate);
}

#[test]
fn at_the_limit_a_new_producer_is_refused_and_known_ones_are_not() {
    let bench = Bench::real(LogConfig::default());
    let budget = Arc::new(ProducerBudget::new(40));
    let options = LogDirOptions { producer_budget: budget.clone(), ..Default::default() };
    let identity = NodeIdentity { cluster_id: None, node_id: 1 };
    let dir = options.open(bench.storage.clone(), &bench.path, &identity, "a").unwrap();
    let (mut log, _) = bench.try_open(&dir).unwrap();
    let batch = |id: i64, sequence| TestBatch::of(&["x"]).by(id, 0, sequence);
    for id in 0..10 {
        bench.append(&mut log, &batch(id, 0)).unwrap();
    }
    let refused = bench.append(&mut log, &batch(10, 0)).unwrap_err();
    assert!(matches!(refused, AppendError::TooManyProducers { max: 10, .. }), "{refused}");
    assert_eq!((log.ends().log_end, budget.held()), (10, 10));
    bench.append(&mut log, &batch(3, 1)).unwrap();
    assert!(bench.append(&mut log, &batch(0, 0)).unwrap().duplicate);
    bench.append(&mut log, &TestBatch::of(&["without a producer"])).unwrap();
    log.expire_producers(bench.mono_ms + log.config().producer_id_expiration_ms, WALL_MS);
    assert_eq!(budget.held(), 0);
    bench.append(&mut log, &batch(10, 0)).unwrap();
}
