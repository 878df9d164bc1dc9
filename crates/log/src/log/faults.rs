//! Faults of files and disks, one test each.

use super::testing::{Bench, TestBatch, WALL_MS, flush, read_from, resolve, small_segments};
use crate::dir::LastStop;
use crate::partition_dir::SetAside;
use crate::sim::{Hooked, SimStorage};
use crate::storage::{OpenMode, Storage, write_all_at};
use crate::{AppendError, Log, LogConfig, LogError, ReadBound, ReadError, ReadPlan};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn filled(bench: &Bench) -> Log {
    let (mut log, _) = bench.open("a");
    bench.append_numbers(&mut log, 0..100);
    log
}

fn files(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.to_string_lossy().ends_with(suffix));
    files.sort();
    files
}

/// Damages the files of a log that was left in order, or not, and expects all records back.
fn check_mended(clean: bool, damage: impl Fn(&Path)) {
    let bench = Bench::real(small_segments());
    let log = filled(&bench);
    let dir = log.path().to_owned();
    if clean {
        bench.stop_clean(log);
    } else {
        drop(log);
    }
    damage(&dir);
    let (mut log, _) = bench.open("a");
    assert_eq!(bench.read_all(&log).len(), 100);
    for from in 0..100 {
        assert_eq!(read_from(&log, from).len() as i64, 100 - from, "from {from}");
    }
    assert_eq!(log.timestamp_search().unwrap().offset_for(WALL_MS).unwrap().unwrap().offset, 0);
    bench.append_numbers(&mut log, 100..103);
    assert_eq!(bench.read_all(&log).len(), 103);
}

#[test]
fn a_missing_index_is_rebuilt() {
    for suffix in [".index", ".timeindex"] {
        check_mended(true, |dir| std::fs::remove_file(&files(dir, suffix)[2]).unwrap());
        check_mended(false, |dir| std::fs::remove_file(files(dir, suffix).last().unwrap()).unwrap());
    }
}

#[test]
fn an_index_with_half_an_entry_is_rebuilt() {
    for suffix in [".index", ".timeindex"] {
        check_mended(true, |dir| {
            let file = std::fs::OpenOptions::new().write(true).open(&files(dir, suffix)[1]).unwrap();
            file.set_len(file.metadata().unwrap().len() + 5).unwrap();
        });
    }
}

/// Known fault: an index that was emptied or leads nowhere, so that readers skip records.
#[test]
fn an_index_that_is_wrong_costs_time_and_no_records() {
    check_mended(true, |dir| std::fs::write(&files(dir, ".index")[1], []).unwrap());
    for position in [u32::MAX, 77] {
        check_mended(true, |dir| {
            let mut entry = 3i32.to_be_bytes().to_vec();
            entry.extend_from_slice(&position.to_be_bytes());
            std::fs::write(&files(dir, ".index")[1], &entry).unwrap();
            std::fs::write(files(dir, ".index").last().unwrap(), &entry).unwrap();
        });
    }
}

#[test]
fn leftovers_of_interrupted_work_are_put_away() {
    for clean in [true, false] {
        check_mended(clean, |dir| {
            let leftovers = [
                "00000000000000000000.log.deleted",
                "00000000000000000007.index",
                "00000000000000000000.log.cleaned",
                "00000000000000000000.timeindex.swap",
                "leader-epoch-checkpoint.tmp",
            ];
            for name in leftovers {
                std::fs::write(dir.join(name), b"left").unwrap();
            }
        });
    }
}

#[test]
fn a_finished_compaction_takes_the_place_of_its_input() {
    check_mended(true, |dir| {
        // The output of a compaction that has merged the first two segments and dropped nothing.
        let logs = files(dir, ".log");
        let mut merged = std::fs::read(&logs[0]).unwrap();
        merged.extend(std::fs::read(&logs[1]).unwrap());
        std::fs::write(logs[0].with_extension("log.swap"), merged).unwrap();
    });
}

#[test]
fn damaged_snapshots_and_epochs_are_taken_from_the_log() {
    check_mended(true, |dir| {
        for snapshot in files(dir, ".snapshot") {
            std::fs::write(snapshot, b"nonsense").unwrap();
        }
        std::fs::write(dir.join("leader-epoch-checkpoint"), b"nonsense").unwrap();
    });
}

/// The log start was moved, which was noted with the epochs and not with the log before a power cut.
#[test]
fn epochs_that_begin_behind_the_log_are_taken_from_it() {
    let bench = Bench::real(small_segments());
    let log = filled(&bench);
    let whole = log.leader_epochs().clone();
    let path = log.path().join("leader-epoch-checkpoint");
    drop(log);
    std::fs::write(&path, format!("0\n1\n{} 120\n", whole.entries()[0].epoch)).unwrap();
    let (log, _) = bench.open("b");
    assert_eq!((bench.read_all(&log).len(), log.leader_epochs()), (100, &whole));
}

#[test]
fn a_torn_tail_is_cut() {
    let bench = Bench::real(small_segments());
    for torn in [1, 17, 60, 61, 100] {
        let (mut log, _) = bench.open("a");
        let end = log.ends().log_end;
        bench.append_numbers(&mut log, end..end + 3);
        let path = files(log.path(), ".log").pop().unwrap();
        drop(log);
        let bytes =
            TestBatch::of(&["a batch of which not all bytes are there, or not the right ones"]).bytes();
        let mut file = std::fs::read(&path).unwrap();
        let whole = file.len();
        file.extend_from_slice(&bytes[..torn]);
        std::fs::write(&path, &file).unwrap();
        let (log, recovery) = bench.open("a");
        assert_eq!((recovery.bytes_cut, log.ends().log_end), (torn as u64, end + 3));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), whole as u64);
    }
}

#[test]
fn damage_below_the_recovery_point_is_not_cut_away() {
    let bench = Bench::real(small_segments());
    let log = filled(&bench);
    let path = files(log.path(), ".log").pop().unwrap();
    bench.stop_clean(log);
    let mut bytes = std::fs::read(&path).unwrap();
    let length = bytes.len();
    bytes[16] = 9;
    std::fs::write(&path, &bytes).unwrap();
    let error = bench.try_open(&bench.dir("a")).unwrap_err();
    assert!(matches!(error, LogError::Damaged { .. }), "{error}");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), length as u64);
}

#[test]
fn a_full_disk_refuses_appends_and_serves_reads_until_there_is_free_space() {
    let storage = SimStorage::new();
    let bench = Bench::with_storage(Arc::new(storage.clone()), small_segments());
    let mut log = filled(&bench);
    for free in 0..200 {
        storage.set_free_space(Some(free));
        let before = (log.ends(), log.size());
        let value = format!("value {:060}", log.ends().log_end);
        match bench.append(&mut log, &TestBatch::of(&[&value])) {
            Err(AppendError::OutOfSpace(_)) => assert_eq!((log.ends(), log.size()), before),
            Ok(_) => assert!(free > 100),
            Err(error) => panic!("{error}"),
        }
        assert_eq!(bench.read_all(&log).len() as i64, log.ends().log_end);
    }
    storage.set_free_space(None);
    let end = log.ends().log_end;
    bench.append_numbers(&mut log, end..end + 50);
    drop(log);
    storage.kill();
    let (log, recovery) = bench.open("a");
    assert_eq!((recovery.bytes_cut, bench.read_all(&log).len() as i64), (0, end + 50));
}

#[test]
fn a_failed_sync_stops_the_partition_for_good() {
    let storage = SimStorage::new();
    let bench = Bench::with_storage(Arc::new(storage.clone()), small_segments());
    let mut log = filled(&bench);
    storage.fail_syncs(1);
    let work = log.flush_work();
    let error = work.files.iter().find_map(|file| file.sync_data().err()).expect("the sync fails");
    log.failed(&error);
    let refused = bench.append(&mut log, &TestBatch::of(&["x"])).unwrap_err();
    assert!(matches!(refused, AppendError::Stopped(_)), "{refused}");
    let refused = log.read(0, ReadBound::LogEnd, 100, true).unwrap_err();
    assert!(matches!(refused, ReadError::Stopped(_)), "{refused}");
    assert_eq!(log.ends().durable_end, 0);
    assert!(log.close().is_err());
}

#[test]
fn a_read_that_needs_the_disk_is_put_off_and_locks_nothing() {
    let storage = SimStorage::new();
    let bench = Bench::with_storage(Arc::new(storage.clone()), small_segments());
    let mut log = filled(&bench);
    storage.set_cold(true);
    let tail = log.read(99, ReadBound::HighWatermark, 1000, true).unwrap();
    assert!(matches!(&tail, ReadPlan::Range(range) if range.recent), "{tail:?}");
    let ReadPlan::Later(pending) = log.read(50, ReadBound::HighWatermark, 1000, true).unwrap() else {
        panic!("a cold read must not be planned without the disk");
    };
    bench.append_numbers(&mut log, 100..110);
    let range = resolve(pending.resolve().unwrap()).unwrap();
    let bytes = range.to_vec().unwrap();
    let (batch, _) = mainstem_records::Batch::split_first(&bytes).unwrap();
    assert_eq!(batch.base_offset(), 50);
}

#[test]
fn who_waits_for_the_disk_reads_a_cold_log_from_end_to_end() {
    let storage = SimStorage::new();
    let bench = Bench::with_storage(Arc::new(storage.clone()), small_segments());
    let log = filled(&bench);
    let expected = bench.read_all(&log);
    storage.set_cold(true);
    let (mut next, mut found) = (0, 0);
    while let Some(range) = log.read_waiting(next, ReadBound::LogEnd, 300, true).unwrap() {
        let bytes = range.to_vec().unwrap();
        let mut rest = &bytes[..];
        while let Ok((batch, behind)) = mainstem_records::Batch::split_first(rest) {
            (rest, next, found) = (behind, batch.next_offset(), found + batch.record_count());
        }
    }
    assert_eq!((next, found as usize), (log.ends().log_end, expected.len()));
    storage.set_unreadable(true);
    assert!(matches!(log.read_waiting(0, ReadBound::LogEnd, 300, true), Err(ReadError::Storage(_))));
    assert!(log.dir().failure().is_some());
}

#[test]
fn a_medium_that_cannot_be_read_takes_its_directory_offline() {
    let storage = SimStorage::new();
    let bench = Bench::with_storage(Arc::new(storage.clone()), small_segments());
    let log = filled(&bench);
    storage.set_cold(true);
    storage.set_unreadable(true);
    let ReadPlan::Later(pending) = log.read(50, ReadBound::HighWatermark, 1000, true).unwrap() else {
        panic!("a cold read must not be planned without the disk");
    };
    assert!(log.dir().failure().is_none());
    assert!(matches!(pending.resolve(), Err(ReadError::Storage(_))));
    assert!(log.dir().failure().is_some());
}

#[test]
fn truncation_while_a_sync_runs_is_not_taken_for_durable() {
    let bench = Bench::real(small_segments());
    let mut log = filled(&bench);
    let work = log.flush_work();
    log.truncate_suffix(60, bench.mono_ms).unwrap();
    bench.append_numbers(&mut log, 60..100);
    log.flushed(work.upto);
    assert_eq!(log.ends().durable_end, 60);
    flush(&mut log);
    assert_eq!(log.ends().durable_end, 100);
}

#[test]
fn flush_settings_ask_for_syncs() {
    let mut bench = Bench::real(LogConfig { flush_messages: 3, flush_ms: 100, ..LogConfig::default() });
    bench.mono_ms = 5000;
    let (mut log, _) = bench.open("a");
    bench.append_numbers(&mut log, 0..2);
    assert!(!log.flush_due(5099) && log.flush_due(5100) && !log.flush_messages_due());
    bench.append_numbers(&mut log, 2..3);
    assert!(log.flush_due(5000) && log.flush_messages_due());
    let work = log.flush_work();
    assert!(!log.flush_due(6000), "what is being synced is not asked for again");
    log.flushed(work.upto);
    assert!(!log.flush_due(6000) && log.unflushed() == 0);
}

#[test]
fn segments_roll_by_age_and_by_full_indexes() {
    let bench = Bench::real(LogConfig { segment_ms: 1000, ..LogConfig::default() });
    let (mut log, _) = bench.open("a");
    for (timestamp, segments) in [(0, 1), (1000, 1), (1001, 2), (500, 2), (2001, 2), (2002, 3)] {
        bench.append(&mut log, &TestBatch::of(&["x"]).at(WALL_MS + timestamp)).unwrap();
        assert_eq!(log.segment_count(), segments, "{timestamp}");
    }
    assert!(!log.maintain(WALL_MS, bench.mono_ms + 1000).unwrap().rolled);
    assert!(log.maintain(WALL_MS, bench.mono_ms + 1001).unwrap().rolled);

    let full = LogConfig { index_interval_bytes: 0, segment_index_bytes: 80, ..LogConfig::default() };
    let bench = Bench::real(full);
    let (mut log, _) = bench.open("a");
    bench.append_numbers(&mut log, 0..40);
    assert_eq!(log.segment_count(), 4);
    assert_eq!(bench.read_all(&log).len(), 40);
}

#[test]
fn blocks_are_reserved_for_the_segment_that_is_written_and_for_no_other() {
    use std::os::unix::fs::MetadataExt;
    let config = LogConfig { preallocate: true, segment_bytes: 1 << 20, ..LogConfig::default() };
    let bench = Bench::real(config);
    let (mut log, _) = bench.open("a");
    let value = "x".repeat(10_000);
    while log.segment_count() < 3 {
        bench.append(&mut log, &TestBatch::of(&[&value])).unwrap();
    }
    let sizes = |log: &Log| {
        let mut found: Vec<_> =
            std::fs::read_dir(log.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        found.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
        found.sort();
        let sizes = found.iter().map(|path| std::fs::metadata(path).unwrap());
        sizes.map(|found| (found.len(), found.blocks() * 512)).collect::<Vec<_>>()
    };
    let found = sizes(&log);
    let (len, reserved) = found[2];
    assert!(len < 20_000 && reserved >= 1 << 20, "the active one: {found:?}");
    assert!(found[..2].iter().all(|(len, reserved)| *reserved < len + 16_384), "closed ones: {found:?}");
    let records = bench.read_all(&log);
    drop(log);
    let (log, recovery) = bench.open("a");
    assert_eq!((recovery.bytes_cut, bench.read_all(&log)), (0, records), "what is reserved is no tail");
}

#[test]
fn other_files_are_left_alone() {
    let storage = SimStorage::new();
    let bench = Bench::with_storage(Arc::new(storage.clone()), small_segments());
    let log = filled(&bench);
    let path = log.path().join("notes.txt");
    write_all_at(&*storage.open(&path, OpenMode::Create).unwrap(), b"hello", 0).unwrap();
    drop(log);
    storage.kill();
    let (log, _) = bench.open("a");
    assert_eq!(bench.read_all(&log).len(), 100);
    assert!(storage.exists(&path).unwrap(), "what is not ours is left alone");
}

/// Known fault: what a start could not open it could not check either, and the next one believed it.
#[test]
fn a_log_that_cannot_be_opened_keeps_its_directory_from_counting_as_checked() {
    let bench = Bench::real(small_segments());
    drop(filled(&bench));
    let other = crate::PartitionIdentity { topic: "t".into(), topic_id: [8; 16], partition: 0 };
    let dir = bench.dir("b");
    Log::open(&dir, &other, Arc::new(bench.config.clone()), 0).unwrap_err();
    dir.recovered().unwrap();
    drop(dir);
    let dir = bench.dir("b");
    assert_eq!(dir.last_stop(), LastStop::UncleanOtherBoot, "the boot is not the one that recovered");
    Log::open(&dir, &other, Arc::new(bench.config.clone()), 0).unwrap_err();
    assert!(!dir.stop_clean().unwrap());
    drop(dir);

    let (log, recovery) = bench.open("b");
    assert_eq!(recovery.last_stop, LastStop::UncleanOtherBoot);
    let partition = log.partition().clone();
    drop(log);
    let dir = bench.dir("b");
    assert_eq!(dir.last_stop(), LastStop::UncleanSameBoot);
    Log::open(&dir, &other, Arc::new(bench.config.clone()), 0).unwrap_err();
    dir.set_aside(&[partition], SetAside::Delete, 0).unwrap();
    assert!(dir.stop_clean().unwrap(), "nothing is left to check");
}

#[test]
fn a_log_that_is_shorter_than_it_was_left_has_its_leader_epoch_raised() {
    let check = |raised: bool, change: &dyn Fn(&Path)| {
        let bench = Bench::real(LogConfig::default());
        let log = filled(&bench);
        let path = log.path().to_owned();
        let two_thirds = (log.size() / 100) * 66;
        bench.stop_clean(log);
        let segment = files(&path, ".log").remove(0);
        change(&segment);
        std::fs::write(path.join(crate::segment_record::ACCEPT_LOSS), b"").unwrap();
        let (log, recovery) = bench.open("a");
        assert_eq!((recovery.raise_leader_epoch, recovery.created), (raised, false), "{recovery:?}");
        let len = std::fs::metadata(&segment).unwrap().len();
        assert!(len == log.size() && (len == two_thirds || log.ends().log_end == 100), "{log:?}");
    };
    let size = |segment: &Path| std::fs::metadata(segment).unwrap().len();
    let open = |segment: &Path| std::fs::OpenOptions::new().write(true).open(segment).unwrap();
    check(false, &|_| {});
    check(true, &|segment| open(segment).set_len(size(segment) / 100 * 66).unwrap());
    check(true, &|segment| open(segment).set_len(size(segment) + 100).unwrap());
}

/// Cuts or removes a segment of a log that was left in order; the next starts refuse the log and name the segment.
fn check_refused(damage: impl Fn(&[PathBuf]), expected: &str) -> (Bench, PathBuf, Vec<(PathBuf, Vec<u8>)>) {
    let bench = Bench::real(small_segments());
    let log = filled(&bench);
    let path = log.path().to_owned();
    bench.stop_clean(log);
    let kept =
        files(&path, "").into_iter().map(|file| (file.clone(), std::fs::read(file).unwrap())).collect();
    damage(&files(&path, ".log"));
    let refused = |boot: &str| {
        let dir = bench.dir(boot);
        let error = bench.try_open(&dir).expect_err("records are missing");
        assert!(error.to_string().contains(expected), "{error}");
        // Neither a stop in order nor a kill makes it forgotten.
        assert!(!dir.stop_clean().unwrap());
    };
    ["a", "a", "b"].into_iter().for_each(refused);
    (bench, path, kept)
}

#[test]
fn a_segment_that_is_missing_or_shorter_after_a_stop_in_order_is_named() {
    check_refused(|logs| std::fs::remove_file(&logs[2]).unwrap(), "is gone");
    check_refused(|logs| std::fs::remove_file(logs.last().unwrap()).unwrap(), "is gone");
    check_refused(|logs| std::fs::write(&logs[1], b"").unwrap(), "00000000000000000014.log has 0 of ");
    let cut = |logs: &[PathBuf]| {
        let file = std::fs::OpenOptions::new().write(true).open(&logs[0]).unwrap();
        file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    };
    check_refused(cut, "00000000000000000000.log has ");
    check_refused(|logs| std::fs::remove_dir_all(logs[0].parent().unwrap()).unwrap(), "is gone");
}

#[test]
fn a_log_whose_files_are_put_back_is_served_again() {
    let (bench, _, kept) = check_refused(|logs| std::fs::remove_file(&logs[2]).unwrap(), "is gone");
    kept.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
    let (log, _) = bench.open("b");
    assert_eq!(bench.read_all(&log).len(), 100);
    bench.stop_clean(log);
    bench.stop_clean(bench.open("c").0);
}

#[test]
fn the_loss_of_a_segment_is_accepted_once() {
    let (bench, path, _) = check_refused(|logs| std::fs::remove_file(&logs[2]).unwrap(), "is gone");
    std::fs::write(path.join(crate::segment_record::ACCEPT_LOSS), b"").unwrap();
    let (log, _) = bench.open("b");
    assert_eq!(log.ends().log_end, 100);
    bench.stop_clean(log);
    bench.stop_clean(bench.open("b").0);
    std::fs::remove_file(&files(&path, ".log")[2]).unwrap();
    assert!(matches!(bench.try_open(&bench.dir("b")), Err(LogError::Missing { .. })), "another loss");
}

#[test]
fn a_partition_that_was_refused_and_deleted_leaves_nothing_to_its_successor() {
    let (bench, _, _) = check_refused(|logs| std::fs::remove_file(&logs[2]).unwrap(), "is gone");
    let dir = bench.dir("b");
    bench.try_open(&dir).unwrap_err();
    dir.set_aside(&[crate::partition_dir::TopicPartition::new("t", 0)], SetAside::Delete, 0).unwrap();
    let (log, recovery) = bench.try_open(&dir).unwrap();
    assert!(recovery.created && log.ends().log_end == 0);
}

/// A batch that holds the offset goes as a whole, also where that takes two attempts.
#[test]
fn a_truncation_within_a_batch_may_be_interrupted_anywhere() {
    let mut interrupted = 0;
    for nth in 0..200 {
        let disk = SimStorage::new();
        let hooked = Hooked::over(&disk);
        let mut bench = Bench::with_storage(Arc::new(hooked.clone()), small_segments());
        bench.is_replica = true;
        let (mut log, _) = bench.open("a");
        bench.append_numbers(&mut log, 0..10);
        let values = vec!["one of many in a batch"; 10];
        bench.append(&mut log, &TestBatch::of(&values)).unwrap();
        let asked = AtomicUsize::new(0);
        hooked.set_hook(move |_, _| match asked.fetch_add(1, Ordering::Relaxed) == nth {
            true => Err(std::io::Error::from_raw_os_error(libc::EMFILE)),
            false => Ok(()),
        });
        let cut = log.truncate_suffix(15, bench.mono_ms);
        hooked.clear_hook();
        if cut.is_err() && log.stopped().is_none() {
            interrupted += usize::from(log.is_cut_short());
            assert_eq!(log.truncate_suffix(15, bench.mono_ms).unwrap(), 10, "call {nth}");
        }
        if log.stopped().is_none() {
            assert_eq!(log.ends().log_end, 10, "call {nth}");
            log.check();
            log.set_high_watermark(10);
            bench.append_numbers(&mut log, 10..12);
            assert_eq!(bench.read_all(&log).len() as i64, log.ends().high_watermark, "call {nth}");
        }
    }
    assert!(interrupted > 10, "{interrupted} interrupted truncations");
}
