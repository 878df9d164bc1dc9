//! Transcripts of what producers send.

use super::*;

fn batch(epoch: i16, base_sequence: i32, count: i32) -> ProducerBatch {
    ProducerBatch {
        producer_id: ProducerId::new(7),
        producer_epoch: ProducerEpoch::new(epoch),
        base_sequence,
        last_offset_delta: count - 1,
        max_timestamp: 1000,
        is_transactional: false,
        is_control: false,
        marker: None,
    }
}

/// A client's batch that may begin a transaction.
const TERMS: Terms<'static> = Terms {
    check_sequence: true,
    may_begin: true,
    verification: None,
    has_capacity: true,
    transaction_version: 0,
};

fn fault(fault: ProducerFault) -> String {
    match fault {
        ProducerFault::OutOfOrderSequence { last_sequence } => format!("gap>{last_sequence}"),
        ProducerFault::InvalidEpoch { current } => format!("stale<{current}"),
        ProducerFault::InvalidTransactionState => "txn".into(),
        ProducerFault::NotVerified => "unverified".into(),
        ProducerFault::TooManyProducers => "full".into(),
        ProducerFault::TooManyTransactions => "many".into(),
        ProducerFault::CoordinatorFenced { current } => format!("fenced<{current}"),
    }
}

/// A transcript: `epoch:first+count` appends or is judged; the answer is the offset, a duplicate's or a fault.
fn check(script: &str, expect: &str) {
    let mut state = ProducerState::default();
    let (mut end, mut answers) = (0, Vec::new());
    for word in script.split_whitespace() {
        let (epoch, rest) = word.split_once(':').expect("epoch:first+count");
        let (first, count) = rest.split_once('+').expect("epoch:first+count");
        let batch = batch(epoch.parse().unwrap(), first.parse().unwrap(), count.parse().unwrap());
        answers.push(match state.check(&batch, TERMS) {
            Ok(Verdict::Append) => {
                end += i64::from(batch.last_offset_delta) + 1;
                state.record(&batch, end - 1, 0);
                format!("{}", end - i64::from(batch.last_offset_delta) - 1)
            }
            Ok(Verdict::Duplicate(known)) => format!("dup@{}", known.first_offset()),
            Err(refused) => fault(refused),
        });
    }
    assert_eq!(answers.join(" "), expect, "{script}");
}

#[test]
fn the_last_five_batches_are_recognised() {
    check("0:0+1 0:1+2 0:3+1 0:4+1 0:5+1 0:6+1 0:1+2 0:6+1 0:0+1", "0 1 3 4 5 6 dup@1 dup@6 gap>6");
}

#[test]
fn gaps_and_overlaps_are_refused() {
    check("0:0+2 0:3+1 0:1+1 0:2+1", "0 gap>1 gap>1 2");
    check("0:0+2 0:0+1", "0 gap>1");
}

#[test]
fn an_unknown_producer_begins_anywhere() {
    check("3:17+1 3:18+1", "0 1");
}

#[test]
fn epochs_fence_and_restart_the_sequence() {
    check("1:0+1 0:1+1 2:1+1 2:0+1 2:0+1 1:1+1", "0 stale<1 gap>0 1 dup@1 stale<2");
}

#[test]
fn sequences_wrap_to_zero() {
    check("0:2147483646+2 0:0+1 0:1+1 0:2147483646+2", "0 2 3 dup@0");
    check("0:2147483646+4 0:2+1 0:2147483646+4 0:2+1", "0 4 dup@0 dup@4");
}

#[test]
fn idle_producers_expire_by_the_monotonic_clock() {
    let mut state = ProducerState::default();
    state.record(&ProducerBatch { producer_id: ProducerId::new(1), ..batch(0, 0, 1) }, 0, 100);
    state.record(&ProducerBatch { producer_id: ProducerId::new(2), ..batch(0, 0, 1) }, 1, 900);
    let open = ProducerBatch { producer_id: ProducerId::new(3), is_transactional: true, ..batch(0, 0, 1) };
    state.record(&open, 2, 100);
    assert_eq!(state.expire(1099, 0, 1000), 0);
    assert_eq!(state.expire(1100, 0, 1000), 1);
    assert!(
        state.get(ProducerId::new(1)).is_none()
            && state.get(ProducerId::new(2)).is_some()
            && state.get(ProducerId::new(3)).is_some()
    );
}

#[test]
fn producers_from_before_the_log_was_opened_expire_by_their_timestamps() {
    let mut state = ProducerState::default();
    let mut entry = ProducerEntry::new(ProducerEpoch::ZERO);
    entry.push(BatchMetadata { timestamp: 5_000, ..Default::default() });
    state.insert(ProducerId::new(1), entry.clone());
    state.insert(ProducerId::new(2), ProducerEntry { transaction_first_offset: Some(3), ..entry });
    assert_eq!(state.expire(u64::MAX, 5_999, 1000), 0);
    assert_eq!(state.expire(0, 6_000, 1000), 1);
    assert!(state.get(ProducerId::new(1)).is_none() && state.get(ProducerId::new(2)).is_some());
}

#[test]
fn at_the_limit_known_producers_and_markers_are_accepted() {
    let mut state = ProducerState::default();
    state.record(&ProducerBatch { producer_id: ProducerId::new(1), ..batch(0, 0, 1) }, 0, 0);
    let full = Terms { has_capacity: false, ..TERMS };
    let known = ProducerBatch { producer_id: ProducerId::new(1), ..batch(0, 1, 1) };
    assert_eq!(state.check(&known, full), Ok(Verdict::Append));
    let (first, _) = transactional("p", "2/0:0+1");
    assert_eq!(state.check(&first, full), Err(ProducerFault::TooManyProducers));
    assert_eq!(state.check(&first, TERMS), Ok(Verdict::Append));
    let (marker, terms) = transactional("C", "2/0");
    assert_eq!(state.check(&marker, Terms { has_capacity: false, ..terms }), Ok(Verdict::Append));
}

#[test]
fn the_number_of_open_transactions_is_bounded() {
    let mut state = ProducerState::default();
    let max = OPEN_TRANSACTIONS_MAX as i64;
    for id in 0..max {
        let (first, terms) = transactional("t", &format!("{id}/0:0+1"));
        assert_eq!(state.check(&first, terms), Ok(Verdict::Append));
        state.record(&first, id, 0);
    }
    let (next, terms) = transactional("t", "999999/0:0+1");
    assert_eq!(state.check(&next, terms), Err(ProducerFault::TooManyTransactions));
    let (within, terms) = transactional("t", "5/0:1+1");
    assert_eq!(state.check(&within, terms), Ok(Verdict::Append), "its transaction is open already");
    let (marker, terms) = transactional("C", "5/0");
    assert_eq!(state.check(&marker, terms), Ok(Verdict::Append));
    state.record(&marker, max, 0);
    assert_eq!(state.check(&next, TERMS), Ok(Verdict::Append));
}

/// A transcript of transactions. `t1/0:5+2` are two records of producer 1 in epoch 0 from sequence number 5 on,
/// within a transaction; `p` in the place of `t` is outside of one, `u` within one that the coordinator has not
/// confirmed, and `c` what a coordinator writes, without sequence numbers. `C1/0@3` is a commit marker for producer 1
/// in epoch 0 by a coordinator of epoch 3, `A` an abort marker; `C1/0@3v2` is of `transaction.version` 2. `E1/0` is a
/// marker whose record has gone. `<5` has the high watermark come to 5. The answer is the first unstable offset, `.`
/// for none, or a fault; for an abort with what goes into the index: `[first..marker,stable]`.
fn check_transactions(script: &str, expect: &str) {
    let mut state = ProducerState::default();
    let (mut end, mut answers) = (0, Vec::new());
    for word in script.split_whitespace() {
        let (kind, rest) = word.split_at(1);
        if kind == "<" {
            state.settle_before(rest.parse().unwrap());
        } else {
            let (batch, terms) = transactional(kind, rest);
            if let Err(refused) = state.check(&batch, terms) {
                answers.push(fault(refused));
                continue;
            }
            let aborted = state.aborted_by(&batch, end);
            end += i64::from(batch.last_offset_delta) + 1;
            state.record(&batch, end - 1, 0);
            if let Some(aborted) = aborted {
                let AbortedTransaction { first_offset, last_offset, last_stable_offset, .. } = aborted;
                answers.push(format!("[{first_offset}..{last_offset},{last_stable_offset}]"));
            }
        }
        answers.push(match state.first_unstable() {
            crate::unstable::ALL_STABLE => ".".into(),
            first => first.to_string(),
        });
    }
    assert_eq!(answers.join(" "), expect, "{script}");
    assert_consistent(&state);
}

/// The open transactions are those of the producers.
fn assert_consistent(state: &ProducerState) {
    let open = state.iter().filter_map(|(id, entry)| Some((entry.transaction_first_offset?, id)));
    let mut open: Vec<_> = open.collect();
    open.sort_unstable();
    assert_eq!(state.open_transactions().collect::<Vec<_>>(), open);
}

fn transactional(kind: &str, rest: &str) -> (ProducerBatch, Terms<'static>) {
    let (producer, rest) = rest.split_once('/').expect("a producer");
    let producer_id = ProducerId::new(producer.parse().unwrap());
    if "CAE".contains(kind) {
        let (rest, version) = rest.split_once('v').unwrap_or((rest, "0"));
        let (epoch, coordinator) = rest.split_once('@').unwrap_or((rest, "0"));
        let coordinator_epoch = CoordinatorEpoch::new(coordinator.parse().unwrap());
        let marker = EndTransactionMarker { committed: kind == "C", coordinator_epoch };
        let batch = ProducerBatch {
            producer_id,
            is_transactional: true,
            is_control: true,
            marker: (kind != "E").then_some(marker),
            ..batch(epoch.parse().unwrap(), NO_SEQUENCE, 1)
        };
        let transaction_version = version.parse().unwrap();
        return (batch, Terms { check_sequence: false, may_begin: false, transaction_version, ..TERMS });
    }
    let (epoch, rest) = rest.split_once(':').expect("an epoch");
    let (first, count) = rest.split_once('+').expect("a sequence number and a count");
    let batch = ProducerBatch {
        producer_id,
        is_transactional: kind != "p",
        ..batch(epoch.parse().unwrap(), first.parse().unwrap(), count.parse().unwrap())
    };
    (batch, Terms { check_sequence: kind != "c", may_begin: kind != "u", ..TERMS })
}

#[test]
fn a_transaction_is_open_until_its_marker_is_below_the_high_watermark() {
    check_transactions("t1/0:0+2 t1/0:2+1 C1/0 <3 <4", "0 0 0 0 .");
    check_transactions("p1/0:0+2 t1/0:2+1 A1/0 <4", ". 2 [2..3,4] 2 .");
    check_transactions("t1/0:0+1 C1/0 <2 p1/0:1+1", "0 0 . .");
}

#[test]
fn the_index_tells_how_far_everything_is_decided() {
    check_transactions(
        "t1/0:0+1 t2/0:0+1 t3/0:0+1 A2/0 A1/0 A3/0 <9",
        "0 0 0 [1..3,0] 0 [0..4,2] 0 [2..5,6] 0 .",
    );
}

#[test]
fn a_marker_that_ends_nothing_changes_nothing() {
    check_transactions("A1/0 C1/0 A1/3 t1/3:0+1 A1/3 A1/3", ". . . 3 [3..4,5] 3 3");
    check_transactions("t1/0:0+1 E1/0 C1/0 <9", "0 0 0 .");
}

#[test]
fn plain_batches_do_not_mix_with_a_transaction() {
    check_transactions("t1/0:0+1 p1/0:1+1 p2/0:0+1 C1/0 <4 p1/0:1+1", "0 txn 0 0 . .");
}

#[test]
fn epochs_and_coordinators_fence() {
    check_transactions(
        "t1/1:0+1 A1/0 t1/0:1+1 C1/1@5 C1/1@4 A1/2@5 t1/1:1+1",
        "0 stale<1 stale<1 0 fenced<5 0 stale<2",
    );
    // A bumped epoch continues a transaction that is still open; its marker ends all of it.
    check_transactions("t1/1:0+1 t1/2:0+1 A1/2 <9", "0 0 [0..2,3] 0 .");
    check_transactions("t1/1:0+1 u1/2:0+1", "0 unverified");
}

/// KIP-890: the marker of version 2 has an epoch of its own, except when it comes twice.
#[test]
fn a_marker_of_version_2_bumps_the_epoch() {
    check_transactions("t1/0:0+1 C1/0v1 <2 t1/0:1+1 C1/0v2 C1/1v2 <9", "0 0 . 2 stale<0 2 .");
    check_transactions(
        "t1/0:0+1 A1/1v2 <2 A1/1v2 u1/1:0+1 t1/1:0+1 A1/1v2",
        "0 [0..1,2] 0 . . unverified 3 stale<1",
    );
    check_transactions("t1/0:0+1 C1/1v2 <2 t1/1:1+1 t1/1:0+1", "0 0 . gap>-1 2");
}

#[test]
fn a_transaction_begins_only_when_it_may() {
    check_transactions(
        "u1/0:0+1 t1/0:0+1 u1/0:1+1 C1/0 <3 u1/0:2+1 c2/0:-1+1",
        "unverified 0 0 0 . unverified 3",
    );
    // What is sent twice is recognised all the same.
    let mut state = ProducerState::default();
    let (first, _) = transactional("t", "1/0:0+1");
    state.record(&first, 0, 0);
    let (marker, _) = transactional("C", "1/0");
    state.record(&marker, 1, 0);
    let refused = Terms { may_begin: false, ..TERMS };
    assert!(matches!(state.check(&first, refused), Ok(Verdict::Duplicate(known)) if known.last_offset == 0));
}

#[test]
fn while_the_coordinator_is_asked_the_lowest_sequence_number_comes_first() {
    let check = |known: bool, supports_epoch_bump, asked: i32, sequence, expected: Result<(), i32>| {
        let mut verifications = crate::verification::Verifications::default();
        let request = crate::VerificationRequest {
            producer_id: ProducerId::new(7),
            producer_epoch: ProducerEpoch::ZERO,
            base_sequence: asked,
            supports_epoch_bump,
        };
        verifications.begin(&request, 0, 10);
        let mut state = ProducerState::default();
        if known {
            state.record(&batch(0, 0, 3), 2, 0);
        }
        let within = ProducerBatch { is_transactional: true, ..batch(0, sequence, 1) };
        let verdict =
            state.check(&within, Terms { verification: verifications.of(ProducerId::new(7)), ..TERMS });
        let found = verdict.map(|_| ()).map_err(|fault| match fault {
            ProducerFault::OutOfOrderSequence { last_sequence } => last_sequence,
            other => panic!("{other}"),
        });
        assert_eq!(found, expected, "{known} {supports_epoch_bump} {asked} {sequence}");
    };
    check(false, false, 5, 5, Ok(()));
    check(false, false, 5, 6, Err(-1));
    check(false, true, 5, 5, Err(-1));
    check(false, true, 0, 0, Ok(()));
    check(true, true, 3, 3, Ok(()));
    check(true, false, 3, 4, Err(-1));
}

#[test]
fn producers_with_open_transactions_stay() {
    let mut state = ProducerState::default();
    for id in 0..100 {
        let (batch, _) = transactional(if id % 2 == 0 { "t" } else { "p" }, &format!("{id}/0:0+1"));
        state.record(&batch, id, id as u64);
    }
    state.expire(1000, 0, 10);
    assert_eq!((state.len(), state.open_transactions().count()), (50, 50));
    assert_consistent(&state);
    // Taken again, as from a snapshot with several lines for one producer, it is still one.
    let entry = state.get(ProducerId::new(4)).unwrap().clone();
    state.insert(ProducerId::new(4), entry.clone());
    state.insert(ProducerId::new(4), ProducerEntry { transaction_first_offset: Some(500), ..entry });
    assert_consistent(&state);
    assert_eq!(state.first_unstable(), 0);
}
