//! Transactions in one log: what is stable, what each reader gets, and what is left of it after every way to go down.

mod simulation;
mod world;

use super::kafka_tools;
use super::testing::{Bench, TestBatch, WALL_MS, flush, small_segments};
use crate::files::FileKind;
use crate::sim::SimStorage;
use crate::storage::Storage;
use crate::{
    AppendError, LATE_TRANSACTION_BUFFER_MS, Log, LogConfig, Origin, ReadBound, ReadPlan, TransactionMarker,
    VerificationGuard, VerificationRequest, prepare,
};
use mainstem_records::{
    CoordinatorEpoch, LeaderEpoch, NO_SEQUENCE, ProducerEpoch, ProducerId, Scratch, TimestampType,
    end_transaction_batch,
};
use std::path::PathBuf;
use std::sync::Arc;
use world::{Outcome, Sending, end, everything, fields, read_committed, send};

fn records(text: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    text.split(',').map(|value| (b"k".to_vec(), value.into())).collect()
}

/// Runs a script. `a,b` is a batch without a producer, `1:a,b` one of producer 1 within a transaction, `1+` and `1-` commit
/// and abort it; `1++` and `1--` do with a newer epoch, as since `transaction.version` 2. `|` closes the segment,
/// `<5` moves the high watermark, `x5` deletes what is before 5, `T5` cuts off what is behind 5.
fn run(bench: &Bench, log: &mut Log, script: &str) {
    for word in script.split_whitespace() {
        let (kind, rest) = word.split_at(1);
        let number = || rest.parse::<i64>().expect("an offset");
        match kind {
            "|" => log.roll(bench.mono_ms).expect("a new segment"),
            "<" => drop(log.set_high_watermark(number())),
            "x" => drop(log.delete_records_before(number()).expect("a deletion")),
            "T" => drop(log.truncate_suffix(number(), bench.mono_ms).expect("a truncation")),
            _ => produce(bench, log, word),
        }
    }
}

fn produce(bench: &Bench, log: &mut Log, word: &str) {
    let epoch =
        |log: &Log, id| log.producer_state().get(ProducerId::new(id)).map_or(0, |known| known.epoch.get());
    if let Some((id, values)) = word.split_once(':') {
        let id = id.parse().expect("a producer");
        let producer = Some((id, epoch(log, id)));
        let sending = Sending { producer, transactional: true, records: records(values) };
        send(bench, log, &sending).expect("an append");
    } else if let Some((id, how)) = word.split_at_checked(1).filter(|(id, _)| id.parse::<i64>().is_ok()) {
        let id = id.parse().expect("a producer");
        let (committed, bumped) = (how.starts_with('+'), how.len() == 2);
        let producer = (id, epoch(log, id) + i16::from(bumped));
        end(bench, log, producer, committed, if bumped { 2 } else { 1 }).expect("a marker");
    } else {
        let sending = Sending { records: records(word), ..Sending::default() };
        send(bench, log, &sending).expect("an append");
    }
}

/// Describes the visible state: the last stable offset, the records a consumer gets, aborted and open transactions.
fn look(log: &Log) -> String {
    let ends = log.ends();
    let seen = read_committed(log, ends.log_start).into_iter();
    let seen: Vec<_> =
        seen.map(|(offset, value)| format!("{offset}{}", String::from_utf8_lossy(&value))).collect();
    let aborted = fields(&log.aborted_transactions(ends.log_start, i64::MAX).expect("the indexes"));
    let aborted: Vec<_> =
        aborted.iter().map(|(id, first, marker)| format!("{id}@{first}..{marker}")).collect();
    let open = log.producer_state().open_transactions();
    let open: Vec<_> = open.map(|(first, id)| format!("{id}@{first}")).collect();
    format!("<{} {} | {} | {}", ends.last_stable, seen.join(" "), aborted.join(" "), open.join(" "))
}

/// Runs a script, and checks that every way to stop and start again leaves the same state.
fn check(script: &str, expect: &str) {
    let storage = SimStorage::new();
    let bench = Bench::with_storage(Arc::new(storage.clone()), LogConfig::default());
    let (mut log, _) = bench.open("a");
    run(&bench, &mut log, script);
    assert_eq!(look(&log), expect, "{script}");
    bench.stop_clean(log);
    let (log, _) = bench.open("a");
    assert_eq!(look(&log), expect, "{script}, after a stop in order");
    drop(log);
    storage.kill();
    let (mut log, _) = bench.open("a");
    assert_eq!(look(&log), expect, "{script}, after a kill");
    flush(&mut log);
    drop(log);
    storage.power_cut(&mut crate::sim::Random::new(1));
    let (log, _) = bench.open("b");
    assert_eq!(look(&log), expect, "{script}, after a power cut");
}

#[test]
fn an_open_transaction_holds_consumers_back() {
    check("a 1:b c", "<1 0a |  | 1@1");
    check("a 1:b c 1+", "<4 0a 1b 2c |  | ");
    check("a 1:b c 1-", "<4 0a 2c | 1@1..3 | ");
    check("1:a 2:b 1+ c", "<1 0a |  | 2@1");
    check("1:a 2:b 2+ c", "<0  |  | 1@0");
    check("1:a 2:b 2- 1+ c", "<5 0a 4c | 2@1..2 | ");
    check("1:a 2:b 2- 1-", "<4  | 2@1..2 1@0..3 | ");
}

#[test]
fn a_marker_that_ends_nothing_is_not_reported() {
    check("a 1- 1+ 1:b 1- 1-", "<6 0a | 1@3..4 | ");
}

#[test]
fn a_producers_next_transaction_is_another_one() {
    check("1:a 1- 1:b 1+ 1:c,d 1--", "<7 2b | 1@0..1 1@4..6 | ");
    check("1:a 1++ 1:b 1-- 1:c", "<4 0a | 1@2..3 | 1@4");
}

#[test]
fn transactions_go_over_segments() {
    check("1:a | b | 1:c | 1-", "<4 1b | 1@0..3 | ");
    check("1:a | 2:b | 1- | 2- | c", "<5 4c | 1@0..2 2@1..3 | ");
    check("1:a | 2:b | 1- | c", "<1  | 1@0..2 | 2@1");
}

#[test]
fn what_is_cut_off_opens_the_transaction_again() {
    check("a 1:b 1- 1:c T4 ", "<3 0a | 1@1..2 | 1@3");
    check("a 1:b 1- 1:c T3", "<3 0a | 1@1..2 | ");
    check("a 1:b 1- 1:c T2", "<1 0a |  | 1@1");
    check("a 1:b 1- 1:c T1", "<1 0a |  | ");
    check("a 1:b | 1- | 1:c | 1- T4", "<3 0a | 1@1..2 | 1@3");
    check("a 1:b | 1- | 1:c | 1- T2 c", "<1 0a |  | 1@1");
    check("a 1:b | 1- | 1:c | 1- T2 c 1+", "<4 0a 1b 2c |  | ");
    check("a 1:b 1- T0 c", "<1 0c |  | ");
}

#[test]
fn what_is_deleted_is_no_longer_unstable() {
    check("1:a b 1:c x1", "<1  |  | 1@0");
    check("1:a b 1:c x1 1-", "<4 1b | 1@0..3 | ");
    check("1:a 1- b x2", "<3 2b |  | ");
}

#[test]
fn consumers_are_reported_what_matters_to_them() {
    let bench = Bench::real(small_segments());
    let (mut log, _) = bench.open("a");
    let value = "v".repeat(100);
    for number in 0..300 {
        let producer = 1 + number % 3;
        run(&bench, &mut log, &format!("{producer}:{value} p"));
        run(&bench, &mut log, &format!("{producer}{}", if number % 5 == 0 { "+" } else { "-" }));
    }
    assert!(log.segment_count() > 10);
    let (outcome, end) = (Outcome::of(&everything(&log)), log.ends().log_end);
    for from in 0..end {
        for upper in [from + 1, from + 10, end] {
            let found = fields(&log.aborted_transactions(from, upper).unwrap());
            assert_eq!(found, outcome.aborted(from, upper), "{from}..{upper}");
        }
        let ReadPlan::Range(range) = log.read(from, ReadBound::LastStable, 1000, true).unwrap() else {
            panic!("nothing at {from}");
        };
        assert!(range.aborted.len() < 10, "{} transactions are named at {from}", range.aborted.len());
        let plain = log.read(from, ReadBound::HighWatermark, 1000, true).unwrap();
        assert!(matches!(plain, ReadPlan::Range(range) if range.aborted.is_empty()));
    }
}

/// A read that would wait for the disk does so elsewhere, and gets the same.
#[test]
fn a_cold_read_is_reported_what_was_aborted() {
    let storage = SimStorage::new();
    let bench = Bench::with_storage(Arc::new(storage.clone()), small_segments());
    let (mut log, _) = bench.open("a");
    for _ in 0..150 {
        run(&bench, &mut log, "1:some-value-of-a-record,another 2:value p 1- 2+");
    }
    let warm = read_committed(&log, 0);
    storage.set_cold(true);
    assert!(matches!(log.read(0, ReadBound::LastStable, 400, true), Ok(ReadPlan::Later(_))));
    assert_eq!(read_committed(&log, 0), warm);
}

#[test]
fn where_nothing_is_aborted_there_is_no_file() {
    let bench = Bench::real(LogConfig::default());
    let (mut log, _) = bench.open("a");
    run(&bench, &mut log, "a 1:b 1+ 2- | 2:c 2+");
    let dir = log.path().to_owned();
    let indexes = || -> Vec<PathBuf> {
        let files = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|file| file.to_string_lossy().ends_with(".txnindex")).collect()
    };
    assert_eq!(indexes(), Vec::<PathBuf>::new());
    run(&bench, &mut log, "1:b 1-");
    assert_eq!(indexes(), [dir.join("00000000000000000004.txnindex")]);
}

#[test]
fn markers_behind_the_high_watermark_decide_nothing_yet() {
    let bench = Bench::real(LogConfig::default());
    let (mut log, _) = bench.open("a");
    log.hold_high_watermark(0).expect("it can be read");
    let mut check = |script: &str, expect: &str| {
        run(&bench, &mut log, script);
        assert_eq!(look(&log), expect, "{script}");
    };
    check("a 1:b c", "<0  |  | 1@1");
    check("<1", "<1 0a |  | 1@1");
    check("<3", "<1 0a |  | 1@1");
    check("1-", "<1 0a | 1@1..3 | ");
    check("<4", "<4 0a 2c | 1@1..3 | ");
    check("1:d 1+ 2:e <6", "<6 0a 2c 4d | 1@1..3 | 2@6");
    check("2+ 1:f <7", "<6 0a 2c 4d | 1@1..3 | 1@8");
    check("<9", "<8 0a 2c 4d 6e | 1@1..3 | 1@8");
}

/// A replica that comes back, or is cut, looks for the markers behind its high watermark.
#[test]
fn a_high_watermark_that_is_set_back_makes_transactions_undecided() {
    let bench = Bench::real(LogConfig::default());
    let (mut log, _) = bench.open("a");
    run(&bench, &mut log, "a 1:b | 1- 2:c | 2+ 3:d 3+");
    assert_eq!(look(&log), "<7 0a 3c 5d | 1@1..2 | ");
    for (high_watermark, stable) in [(7, 7), (6, 5), (5, 5), (4, 3), (3, 3), (2, 1), (1, 1), (0, 0)] {
        log.hold_high_watermark(high_watermark).expect("it can be read");
        assert_eq!(log.ends().last_stable, stable, "{high_watermark}");
    }
    log.hold_high_watermark(4).expect("it can be read");
    run(&bench, &mut log, "T5");
    assert_eq!(log.ends().last_stable, 3, "the marker at 4 is not seen");
    run(&bench, &mut log, "<5");
    assert_eq!(log.ends().last_stable, 5);
}

/// The epochs in an [`AppendError::InvalidProducerEpoch`]: the batch's, and the newest known one.
fn epochs(error: &AppendError) -> Option<(i16, i16)> {
    match error {
        AppendError::InvalidProducerEpoch { epoch, current, .. } => Some((epoch.get(), current.get())),
        _ => None,
    }
}

#[test]
fn a_transaction_begins_only_with_the_guard_that_was_given_out_for_it() {
    let bench = Bench::real(LogConfig::default());
    let (mut log, _) = bench.open("a");
    let request = VerificationRequest {
        producer_id: ProducerId::new(1),
        producer_epoch: ProducerEpoch::ZERO,
        base_sequence: 0,
        supports_epoch_bump: false,
    };
    let sending = Sending { producer: Some((1, 0)), transactional: true, records: records("a") };
    let append = |log: &mut Log, guard: VerificationGuard| {
        let (bytes, mut out) = (sending.bytes(log), Vec::new());
        let config = log.config().clone();
        let prepared = prepare(&bytes, &config, WALL_MS, Origin::Client, &mut Scratch::new(), &mut out);
        log.append(&prepared.unwrap().verified_by(guard), LeaderEpoch::ZERO, 0)
            .map(|appended| appended.base_offset)
    };
    let refused = |result| matches!(result, Err(AppendError::TransactionNotVerified { .. }));
    assert!(refused(append(&mut log, VerificationGuard::NONE)));
    let first = log.begin_verification(&request, 0).unwrap().expect("a guard");
    assert!(refused(append(&mut log, VerificationGuard::NONE)));
    // An abort overtakes the coordinator's answer: the answer is of no use any more.
    end(&bench, &mut log, (1, 0), false, 1).unwrap();
    assert!(refused(append(&mut log, first)));
    let second = log.begin_verification(&request, 0).unwrap().expect("a guard");
    assert_ne!(first, second);
    assert!(refused(append(&mut log, first)));
    assert_eq!(append(&mut log, second).unwrap(), 1);
    // The transaction is open: nothing is asked, and no guard needed.
    assert_eq!(log.begin_verification(&request, 0).unwrap(), None);
    assert_eq!(append(&mut log, VerificationGuard::NONE).unwrap(), 2);
    end(&bench, &mut log, (1, 1), true, 2).unwrap();
    let stale = log.begin_verification(&request, 0).unwrap_err();
    assert_eq!(epochs(&stale), Some((0, 1)), "{stale}");
    // The verification is removed after a while.
    let request = VerificationRequest { producer_epoch: ProducerEpoch::new(1), ..request };
    let third = log.begin_verification(&request, 0).unwrap();
    assert_eq!(log.begin_verification(&request, 5).unwrap(), third);
    log.expire_producers(log.config().producer_id_expiration_ms, WALL_MS);
    assert_ne!(log.begin_verification(&request, 5).unwrap(), third);
}

#[test]
fn verification_can_be_turned_off() {
    let bench = Bench::real(LogConfig { transaction_verification: false, ..LogConfig::default() });
    let (mut log, _) = bench.open("a");
    let sending = Sending { producer: Some((1, 0)), transactional: true, records: records("a") };
    let (bytes, mut out) = (sending.bytes(&log), Vec::new());
    let config = log.config().clone();
    let prepared = prepare(&bytes, &config, WALL_MS, Origin::Client, &mut Scratch::new(), &mut out).unwrap();
    assert_eq!(log.append(&prepared, LeaderEpoch::ZERO, 0).unwrap().base_offset, 0);
    assert_eq!(log.ends().last_stable, 0);
}

#[test]
fn a_coordinators_batches_are_verified_too() {
    let bench = Bench::real(LogConfig::default());
    let (mut log, _) = bench.open("a");
    let mut builder = mainstem_records::BatchBuilder::new(mainstem_records::BatchOptions {
        is_transactional: true,
        producer: mainstem_records::ProducerFields {
            producer_id: 5,
            producer_epoch: 2,
            base_sequence: NO_SEQUENCE,
        },
        ..Default::default()
    });
    builder.append(WALL_MS, Some(b"group"), Some(b"offset"), &[]).unwrap();
    let (bytes, mut out) = (builder.build().unwrap(), Vec::new());
    let config = log.config().clone();
    let prepared =
        prepare(&bytes, &config, WALL_MS, Origin::Coordinator, &mut Scratch::new(), &mut out).unwrap();
    assert!(matches!(
        log.append(&prepared, LeaderEpoch::ZERO, 0),
        Err(AppendError::TransactionNotVerified { .. })
    ));
    let request = VerificationRequest {
        producer_id: ProducerId::new(5),
        producer_epoch: ProducerEpoch::new(2),
        base_sequence: NO_SEQUENCE,
        supports_epoch_bump: true,
    };
    let guard = log.begin_verification(&request, 0).unwrap().expect("a guard");
    log.append(&prepared.verified_by(guard), LeaderEpoch::ZERO, 0).expect("an append");
    assert_eq!(log.producer_state().open_transactions().collect::<Vec<_>>(), [(0, ProducerId::new(5))]);
}

#[test]
fn late_markers_are_refused_and_leave_nothing() {
    let bench = Bench::real(LogConfig::default());
    let (mut log, _) = bench.open("a");
    run(&bench, &mut log, "1:a");
    let mut append = |producer_epoch, coordinator_epoch, transaction_version| {
        let marker = TransactionMarker {
            producer_id: ProducerId::new(1),
            producer_epoch: ProducerEpoch::new(producer_epoch),
            coordinator_epoch: CoordinatorEpoch::new(coordinator_epoch),
            committed: true,
            transaction_version,
        };
        let before = log.ends();
        let result =
            log.append_marker(&marker, LeaderEpoch::ZERO, WALL_MS, 0).map(|appended| appended.last_offset);
        assert!(result.is_ok() || log.ends() == before);
        result
    };
    assert!(matches!(append(0, 7, 2), Err(AppendError::InvalidProducerEpoch { .. })));
    assert_eq!(append(1, 7, 2).unwrap(), 1);
    assert_eq!(append(1, 7, 2).unwrap(), 2, "a retry");
    assert_eq!(epochs(&append(0, 7, 1).unwrap_err()), Some((0, 1)));
    let fenced = append(1, 6, 1).unwrap_err();
    let AppendError::CoordinatorFenced { coordinator_epoch, current, .. } = fenced else {
        panic!("{fenced}");
    };
    assert_eq!((coordinator_epoch.get(), current.get()), (6, 7));
}

#[test]
fn clients_write_no_markers() {
    let bytes = end_transaction_batch(
        1,
        0,
        mainstem_records::EndTransactionMarker { committed: true, coordinator_epoch: CoordinatorEpoch::ZERO },
        WALL_MS,
    );
    let (config, mut out) = (LogConfig::default(), Vec::new());
    let refused = prepare(&bytes, &config, WALL_MS, Origin::Client, &mut Scratch::new(), &mut out);
    let code = match refused {
        Err(AppendError::Invalid(invalid)) => invalid.kafka_error().code(),
        other => panic!("{other:?}"),
    };
    assert_eq!(code, 87, "INVALID_RECORD");
}

#[test]
fn a_marker_has_the_append_time_where_the_topic_says_so() {
    let bench =
        Bench::real(LogConfig { timestamp_type: TimestampType::LogAppendTime, ..LogConfig::default() });
    let (mut log, _) = bench.open("a");
    run(&bench, &mut log, "1:a");
    let appended = end(&bench, &mut log, (1, 0), false, 1).unwrap();
    assert_eq!((appended.log_append_time, log.ends().last_stable), (Some(WALL_MS), 2));
    assert_eq!(look(&log), "<2  | 1@0..1 | ");
}

#[test]
fn what_describes_a_transaction_is_known() {
    let bench = Bench::real(LogConfig::default());
    let (mut log, _) = bench.open("a");
    run(&bench, &mut log, "p 1:a 2:b");
    let limit = 1000 + LATE_TRANSACTION_BUFFER_MS;
    let late = |log: &Log, after| log.has_late_transaction(WALL_MS + after, 1000);
    assert!(!late(&log, limit) && late(&log, limit + 1));
    run(&bench, &mut log, "1+ 2+");
    assert!(!late(&log, 10 * limit));
    let entry = log.producer_state().get(ProducerId::new(1)).unwrap();
    assert_eq!((entry.transaction_first_offset, entry.coordinator_epoch.get()), (None, 3));
    assert_eq!(entry.last_timestamp, WALL_MS);
}

/// The files of a transaction index, damaged in each way, with the log left in order.
#[test]
fn a_damaged_transaction_index_is_rebuilt() {
    let damages: [fn(&mut Vec<u8>); 6] = [
        |bytes| bytes.truncate(bytes.len() - 5),
        |bytes| bytes.extend([0; 7]),
        |bytes| bytes.fill(0),
        |bytes| bytes[1] = 9,
        |bytes| bytes.extend([0; 34]),
        |bytes| {
            let last = bytes.len() - 16;
            bytes[last] = 0x7F;
        },
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        for name in ["00000000000000000000.txnindex", "00000000000000000006.txnindex"] {
            let bench = Bench::real(LogConfig::default());
            let (mut log, _) = bench.open("a");
            run(&bench, &mut log, "1:a 1- 2:b 2- 1:c d | 1- 3:e 3- | f");
            let (path, before) = (log.path().join(name), look(&log));
            bench.stop_clean(log);
            let mut bytes = std::fs::read(&path).unwrap();
            let intact = bytes.clone();
            damage(&mut bytes);
            std::fs::write(&path, &bytes).unwrap();
            let (log, _) = bench.open("a");
            assert_eq!(look(&log), before, "damage {number} of {name}");
            assert_eq!(std::fs::read(&path).unwrap(), intact, "damage {number} of {name}");
        }
    }
}

/// The process dies between a marker and its entry in the index; or the entry is torn.
#[test]
fn a_kill_between_a_marker_and_its_entry_costs_nothing() {
    for left in [0, 34, 34 + 20] {
        let bench = Bench::real(LogConfig::default());
        let (mut log, _) = bench.open("a");
        run(&bench, &mut log, "1:a 1- 1:b 1-");
        let (path, before) = (log.path().join("00000000000000000000.txnindex"), look(&log));
        drop(log);
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(left).unwrap();
        let (log, _) = bench.open("a");
        assert_eq!(look(&log), before, "{left} bytes");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 68);
    }
}

/// Compaction has put a segment in the place of others, and the process dies before its files have their names: their
/// indexes are gone.
#[test]
fn indexes_that_went_with_a_swap_are_rebuilt() {
    let bench = Bench::real(LogConfig::default());
    let (mut log, _) = bench.open("a");
    run(&bench, &mut log, "1:a 2:b | 1- 3:c | 2- 3- 1:d | 1- e");
    let (dir, before) = (log.path().to_owned(), look(&log));
    bench.stop_clean(log);
    let name = |base: i64| dir.join(crate::files::file_name(base, FileKind::Log));
    let mut merged = std::fs::read(name(2)).unwrap();
    merged.extend(std::fs::read(name(4)).unwrap());
    std::fs::write(name(2).with_extension("log.swap"), merged).unwrap();
    let (log, recovery) = bench.open("a");
    assert_eq!((look(&log), recovery.segments_walked), (before, 1));
}

/// If the disk has no space for the entry, there is no marker either, and the transaction stays open.
#[test]
fn a_full_disk_refuses_the_marker_with_its_entry() {
    let storage = SimStorage::new();
    let bench = Bench::with_storage(Arc::new(storage.clone()), LogConfig::default());
    let (mut log, _) = bench.open("a");
    run(&bench, &mut log, "1:a");
    for free in [0, 50, 78, 90] {
        storage.set_free_space(Some(free));
        let refused = end(&bench, &mut log, (1, 0), false, 1).unwrap_err();
        assert!(matches!(refused, AppendError::OutOfSpace(_)), "{refused}");
        assert_eq!(look(&log), "<0  |  | 1@0", "{free}");
    }
    storage.set_free_space(None);
    end(&bench, &mut log, (1, 0), false, 1).expect("there is free space again");
    assert_eq!(look(&log), "<2  | 1@0..1 | ");
    bench.stop_clean(log);
    assert_eq!(look(&bench.open("a").0), "<2  | 1@0..1 | ");
}

/// With the sync that covers a marker its entry is on disk, and its name.
#[test]
fn an_entry_is_as_durable_as_its_marker() {
    for seed in 0..50 {
        let storage = SimStorage::new();
        let bench = Bench::with_storage(Arc::new(storage.clone()), LogConfig::default());
        let (mut log, _) = bench.open("a");
        run(&bench, &mut log, "1:a 1-");
        flush(&mut log);
        run(&bench, &mut log, "2:b 2-");
        flush(&mut log);
        log.maintain(WALL_MS, 0).unwrap();
        log.dir().checkpoints().recovery_point.commit().unwrap();
        let path = log.path().join("00000000000000000000.txnindex");
        drop(log);
        storage.power_cut(&mut crate::sim::Random::new(seed));
        let file = storage.open(&path, crate::storage::OpenMode::Read).expect("the name is durable");
        assert_eq!(file.len().unwrap(), 68);
        assert_eq!(look(&bench.open("b").0), "<4  | 1@0..1 2@2..3 | ");
    }
}

#[test]
fn a_copy_in_another_directory_has_the_transactions_too() {
    let storage: Arc<dyn Storage> = Arc::new(SimStorage::new());
    let bench = Bench::with_storage(storage.clone(), LogConfig::default());
    let (mut log, _) = bench.open("a");
    run(&bench, &mut log, "1:a 2:b | 1- 3:c | 2- 1:d");
    let before = look(&log);
    let identity = crate::dir::NodeIdentity { cluster_id: Some("cluster".into()), node_id: 1 };
    let other = crate::dir::LogDir::open(storage, "/other".as_ref(), &identity, "a").unwrap();
    let path = other.create_future(log.partition(), &super::testing::TOPIC_ID).unwrap();
    let mut copy = crate::FutureLog::open(&other, path, log.copy_start(), 0).unwrap();
    while let Some(plan) = copy.next(&log).unwrap() {
        copy.copy(plan, 0).unwrap();
    }
    let request = VerificationRequest {
        producer_id: ProducerId::new(9),
        producer_epoch: ProducerEpoch::ZERO,
        base_sequence: 0,
        supports_epoch_bump: false,
    };
    let guard = log.begin_verification(&request, 0).unwrap();
    drop(copy.take_over_at_once(&mut log, 0).unwrap());
    assert_eq!(look(&log), before);
    assert_eq!(log.begin_verification(&request, 0).unwrap(), guard, "the waiting one continues here");
    run(&bench, &mut log, "1- 3+");
    assert_eq!(look(&log), "<8 3c | 1@0..2 2@1..4 1@5..6 | ");
}

/// Retention takes the indexes with the segments.
#[test]
fn indexes_go_with_their_segments() {
    let bench = Bench::real(LogConfig { file_delete_delay_ms: 0, ..LogConfig::default() });
    let (mut log, _) = bench.open("a");
    run(&bench, &mut log, "1:a 1- | 2:b 3:c 2- | 3- d x5");
    log.maintain(WALL_MS, 10).unwrap();
    log.maintain(WALL_MS, 20).unwrap();
    let exists = |base| log.path().join(crate::files::file_name(base, FileKind::TransactionIndex)).exists();
    assert_eq!((exists(0), exists(2), exists(5)), (false, false, true));
    assert_eq!(look(&log), "<7 6d | 3@3..5 | ");
    bench.append(&mut log, &TestBatch::of(&["e"])).unwrap();
}

/// Kafka's own tool reads what is written of transactions.
#[test]
fn dump_log_segments_reads_indexes_and_open_transactions() {
    let Some(jars) = kafka_tools::jars() else { return };
    let bench = Bench::real(LogConfig::default());
    let (mut log, _) = bench.open("a");
    run(&bench, &mut log, "1:a 2:b | 1- 3:c 2-- | 3-");
    let dir = log.path().to_owned();
    bench.stop_clean(log);
    let dump = |suffix: &str| {
        let output = kafka_tools::dump(&jars, &kafka_tools::files(&dir, &[suffix]), &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let aborted = dump(".txnindex");
    for (producer, first, last, stable) in [(1, 0, 2, 1), (2, 1, 4, 3), (3, 3, 5, 6)] {
        let entry = format!(
            "version: 0 producerId: {producer} firstOffset: {first} lastOffset: {last} lastStableOffset: {stable}"
        );
        assert!(aborted.contains(&entry), "{entry}: {aborted}");
    }
    let snapshots = dump(".snapshot");
    for entry in ["producerId: 1 producerEpoch: 0", "producerId: 2 producerEpoch: 1"] {
        assert!(snapshots.contains(entry), "{entry}: {snapshots}");
    }
    let open = snapshots.lines().filter(|line| line.contains("currentTxnFirstOffset: 3"));
    assert!(open.count() > 0 || snapshots.contains("OptionalLong[3]"), "{snapshots}");
}

/// The index of aborted transactions is derived again at the target of a copy.
#[test]
fn a_copy_reports_what_was_aborted() {
    let source = Bench::with_storage(Arc::new(SimStorage::new()), LogConfig::default());
    let (mut leader, _) = source.open("a");
    run(&source, &mut leader, "a 1:b 2:c 1- | 2:d 2+ 1:e 3:f | 3- g 1- |");
    flush(&mut leader);
    let end = leader.ends().log_end;
    let export = leader.export(end).expect("a listing").expect("an export");
    let target = Bench::with_storage(Arc::new(SimStorage::new()), LogConfig::default());
    let (mut follower, _) = target.open("a");
    let dir = follower.dir().clone();
    let copy = crate::import::tests::copied(&export, end, &target, &dir);
    copy.take_place(&mut follower, 0).expect("its place");
    assert_eq!(look(&follower), look(&leader));
    assert_eq!(follower.dir().checkpoints().recovery_point.get(follower.partition()), Some(end));
}
