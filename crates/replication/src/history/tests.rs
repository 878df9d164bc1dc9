use super::*;
use Operation::{
    AbortTransaction, Append, Assign, Begin, Commit, CommitTransaction, Committed, Delete, End, Final,
    LastStable, LogStart, Lost, Read, ReadCommitted, Reset, Uncounted,
};
use Outcome::{Fail, Info, Invoke, Ok};

/// Process, operation, outcome, partition, offset, value.
type Line = (i32, Operation, Outcome, i32, i64, u64);

fn violations(lines: &[Line]) -> Vec<Violation> {
    let event = |(at, &(process, operation, outcome, partition, offset, value)): (usize, &Line)| Event {
        at_ms: at as u64,
        process,
        operation,
        outcome,
        partition,
        offset,
        value,
    };
    let events: Vec<_> = lines.iter().enumerate().map(event).collect();
    let read: Vec<Event> =
        events.iter().map(|event| event.to_string().parse().expect("its own line")).collect();
    assert_eq!(read, events);
    check(&events)
}

fn faults(lines: &[Line]) -> Vec<Fault> {
    violations(lines).into_iter().map(|violation| violation.fault).collect()
}

const TWO: [Line; 4] = [
    (1, Append, Invoke, 0, -1, 7),
    (1, Append, Ok, 0, 0, 7),
    (1, Append, Invoke, 0, -1, 8),
    (1, Append, Ok, 0, 1, 8),
];

fn after_two(lines: &[Line]) -> Vec<Fault> {
    faults(&[&TWO[..], lines].concat())
}

#[test]
fn a_history_without_a_fault_has_no_violation() {
    let lines = [
        (2, Append, Invoke, 0, -1, 9),
        (2, Append, Info, 0, -1, 9),
        (5, Read, Ok, 0, 0, 7),
        (5, Read, Ok, 0, 1, 8),
        (5, Read, Ok, 0, 2, 9),
        (1, Final, Ok, 0, 0, 7),
        (1, Final, Ok, 0, 1, 8),
        (1, Final, Ok, 0, 2, 9),
    ];
    assert_eq!(after_two(&lines), []);
}

#[test]
fn what_a_replica_does_not_have_is_lost() {
    let lost = Fault::Lost { process: 3, offset: 1, value: 8 };
    assert_eq!(after_two(&[(3, Final, Ok, 0, 0, 7)]), [lost]);
    // Its place may not be known: a producer that has asked again gets the answer of a duplicate alone.
    let twice = [(2, Append, Invoke, 0, -1, 9), (2, Append, Ok, 0, -1, 9)];
    let has = [(3, Final, Ok, 0, 0, 7), (3, Final, Ok, 0, 1, 8), (3, Final, Ok, 0, 2, 9)];
    assert_eq!(after_two(&[&twice[..], &has].concat()), []);
    let lost = Fault::Lost { process: 3, offset: -1, value: 9 };
    assert_eq!(after_two(&[&twice[..], &has[..2]].concat()), [lost]);
    let hole = Fault::Skipped { process: 3, offset: 3, expected: 2 };
    let lines = [
        (2, Append, Invoke, 0, -1, 9),
        (3, Final, Ok, 0, 0, 7),
        (3, Final, Ok, 0, 1, 8),
        (3, Final, Ok, 0, 3, 9),
    ];
    assert_eq!(after_two(&lines), [hole]);
}

/// Records that a replica has said to be lost may be, and others may be in their place; nothing else.
#[test]
fn what_was_said_to_be_lost_may_be() {
    let others = [(2, Append, Invoke, 0, -1, 9), (2, Append, Ok, 0, 1, 9)];
    let continues = [(5, Read, Ok, 0, 2, 10), (2, Append, Invoke, 0, -1, 10)];
    let has = [(3, Final, Ok, 0, 0, 7), (3, Final, Ok, 0, 1, 9), (3, Final, Ok, 0, 2, 10)];
    let reads = [(5, Read, Ok, 0, 0, 7), (5, Read, Ok, 0, 1, 8)];
    let with = |report: Line| after_two(&[&reads[..], &[report], &others, &continues, &has].concat());
    assert_eq!(with((3, Lost, Ok, 0, 1, 1)), []);
    assert_eq!(with((0, Uncounted, Ok, 0, 1, 1)), [], "nor what could not be said");
    let inconsistent = Fault::Inconsistent { offset: 1, value: 8, other: 9 };
    let lost = Fault::Lost { process: 3, offset: 1, value: 8 };
    // Of another partition, before it, behind it, of nothing.
    for report in
        [(3, Lost, Ok, 1, 1, 1), (3, Lost, Ok, 0, 0, 1), (3, Lost, Ok, 0, 2, 5), (3, Lost, Ok, 0, 1, 0)]
    {
        assert_eq!(with(report), [lost.clone(), inconsistent.clone()], "{report:?}");
    }
    // What is acknowledged after that is not excused, nor what is read.
    assert_eq!(faults(&[&[(3, Lost, Ok, 0, 0, 2)], &TWO[..], &has[..1]].concat()), [lost]);
    let read = [(1, Append, Invoke, 0, -1, 8), (3, Lost, Ok, 0, 0, 2), (5, Read, Ok, 0, 1, 8)];
    assert_eq!(faults(&[&read[..], &others, &has[1..2]].concat()), [inconsistent]);
    // What is still there has to be everywhere.
    let lost = Fault::Lost { process: 4, offset: 1, value: 8 };
    let lines =
        [(3, Lost, Ok, 0, 1, 1), (3, Final, Ok, 0, 0, 7), (3, Final, Ok, 0, 1, 8), (4, Final, Ok, 0, 0, 7)];
    assert_eq!(after_two(&lines), [lost]);
}

#[test]
fn a_value_has_one_place_and_a_place_one_value() {
    let duplicate = Fault::Duplicate { value: 8, offset: 1, other: 2 };
    assert_eq!(after_two(&[(5, Read, Ok, 0, 2, 8)]), [duplicate]);
    let inconsistent = Fault::Inconsistent { offset: 0, value: 7, other: 9 };
    assert_eq!(after_two(&[(2, Append, Invoke, 0, -1, 9), (5, Read, Ok, 0, 0, 9)]), [inconsistent]);
}

#[test]
fn a_value_was_appended_and_not_refused() {
    assert_eq!(after_two(&[(5, Read, Ok, 0, 2, 99)]), [Fault::Invented { offset: 2, value: 99 }]);
    let failed = [(2, Append, Invoke, 0, -1, 9), (2, Append, Fail, 0, -1, 9), (5, Read, Ok, 0, 2, 9)];
    assert_eq!(after_two(&failed), [Fault::Failed { offset: 2, value: 9 }]);
    // In another partition it is not the same.
    let elsewhere = violations(&[(1, Append, Invoke, 0, -1, 7), (5, Read, Ok, 3, 0, 7)]);
    let invented = Violation { partition: 3, fault: Fault::Invented { offset: 0, value: 7 } };
    assert_eq!(elsewhere, [invented]);
}

#[test]
fn consumers_read_on() {
    let skipped = [(2, Append, Invoke, 0, -1, 9), (5, Read, Ok, 0, 0, 7), (5, Read, Ok, 0, 2, 9)];
    assert_eq!(after_two(&skipped), [Fault::Skipped { process: 5, offset: 2, expected: 1 }]);
    // A hole that no process knows anything of is one, too.
    let hole = [(2, Append, Invoke, 0, -1, 9), (5, Read, Ok, 0, 1, 8), (5, Read, Ok, 0, 3, 9)];
    assert_eq!(after_two(&hole), [Fault::Skipped { process: 5, offset: 3, expected: 2 }]);
    let back = [(5, Read, Ok, 0, 1, 8), (5, Read, Ok, 0, 0, 7)];
    assert_eq!(after_two(&back), [Fault::WentBack { process: 5, offset: 0, expected: 2 }]);
    let again = [(5, Read, Ok, 0, 1, 8), (5, Assign, Ok, 0, 0, 0), (5, Read, Ok, 0, 0, 7)];
    assert_eq!(after_two(&again), []);
    let behind = [(5, Assign, Ok, 0, 0, 0), (5, Read, Ok, 0, 1, 8)];
    assert_eq!(after_two(&behind), [Fault::Skipped { process: 5, offset: 1, expected: 0 }]);
}

#[test]
fn a_group_sees_everything_before_its_end() {
    let unseen = Fault::Unseen { group: 4, offset: 1, value: 8 };
    let lines = [(5, Assign, Ok, 0, 0, 4), (5, Read, Ok, 0, 0, 7), (5, End, Ok, 0, 2, 4)];
    assert_eq!(after_two(&lines), [unseen]);
    let all =
        [(5, Assign, Ok, 0, 0, 4), (5, Read, Ok, 0, 0, 7), (5, Read, Ok, 0, 1, 8), (5, End, Ok, 0, 2, 4)];
    assert_eq!(after_two(&all), []);
}

#[test]
fn a_producer_keeps_its_order() {
    let lines = [
        (1, Append, Invoke, 0, -1, 7),
        (1, Append, Invoke, 0, -1, 8),
        (1, Append, Ok, 0, 0, 8),
        (1, Append, Ok, 0, 1, 7),
    ];
    assert_eq!(faults(&lines), [Fault::Reordered { process: 1, offset: 0, before: 1 }]);
    // The order of acknowledgements does not matter.
    let lines = [lines[0], lines[1], (1, Append, Ok, 0, 1, 8), (1, Append, Ok, 0, 0, 7)];
    assert_eq!(faults(&lines), []);
}

/// A transaction of process 1 with value 7 at offset 0 and its marker behind it.
fn transaction(end: Operation, outcome: Outcome) -> Vec<Line> {
    vec![
        (1, Begin, Ok, -1, -1, 100),
        (1, Append, Invoke, 0, -1, 7),
        (1, Append, Ok, 0, 0, 7),
        (1, end, Invoke, -1, -1, 100),
        (1, end, outcome, -1, -1, 100),
        (1, Append, Invoke, 0, -1, 8),
        (1, Append, Ok, 0, 2, 8),
    ]
}

fn after_transaction(end: Operation, outcome: Outcome, lines: &[Line]) -> Vec<Fault> {
    faults(&[&transaction(end, outcome), lines].concat())
}

#[test]
fn what_was_aborted_is_not_read() {
    let read = [(5, ReadCommitted, Ok, 0, 0, 7)];
    let aborted = Fault::AbortedRead { process: 5, offset: 0, value: 7, transaction: 100 };
    assert_eq!(after_transaction(AbortTransaction, Ok, &read), std::slice::from_ref(&aborted));
    assert_eq!(after_transaction(CommitTransaction, Fail, &read), [aborted]);
    assert_eq!(after_transaction(CommitTransaction, Ok, &read), []);
    assert_eq!(after_transaction(CommitTransaction, Info, &read), []);
    assert_eq!(after_transaction(AbortTransaction, Ok, &[(5, Read, Ok, 0, 0, 7)]), []);
}

#[test]
fn what_was_committed_is_not_skipped() {
    let lines = [(5, Assign, Ok, 0, 0, 4), (5, ReadCommitted, Ok, 0, 2, 8), (5, End, Ok, 0, 3, 4)];
    let skipped = Fault::Skipped { process: 5, offset: 2, expected: 0 };
    let unseen = Fault::Unseen { group: 4, offset: 0, value: 7 };
    assert_eq!(after_transaction(CommitTransaction, Ok, &lines), [unseen, skipped]);
    assert_eq!(after_transaction(AbortTransaction, Ok, &lines), []);
    assert_eq!(after_transaction(CommitTransaction, Info, &lines), []);
    // A part that was seen settles it.
    let settled = [&lines[..], &[(6, ReadCommitted, Ok, 0, 0, 7)]].concat();
    assert_eq!(after_transaction(CommitTransaction, Info, &settled).len(), 2);
    let marker = [(3, Final, Ok, 0, 0, 7), (3, Final, Ok, 0, 1, CONTROL), (3, Final, Ok, 0, 2, 8)];
    assert_eq!(after_transaction(CommitTransaction, Ok, &marker), []);
}

/// Two transactions that read from each other, or not.
fn two_transactions(second_reads_first: bool) -> Vec<Line> {
    let mut lines = vec![
        (1, Begin, Ok, -1, -1, 100),
        (2, Begin, Ok, -1, -1, 101),
        (1, Append, Invoke, 0, -1, 7),
        (1, Append, Ok, 0, 0, 7),
        (2, Append, Invoke, 1, -1, 8),
        (2, Append, Ok, 1, 0, 8),
        (1, Read, Ok, 1, 0, 8),
    ];
    if second_reads_first {
        lines.push((2, Read, Ok, 0, 0, 7));
    }
    lines
}

#[test]
fn transactions_do_not_read_in_circles() {
    assert_eq!(faults(&two_transactions(false)), []);
    assert_eq!(faults(&two_transactions(true)), [Fault::Cycle { transactions: vec![100, 101] }]);
    // Writes of two in any order are none.
    let crossed = [
        (1, Begin, Ok, -1, -1, 100),
        (2, Begin, Ok, -1, -1, 101),
        (1, Append, Invoke, 0, -1, 7),
        (1, Append, Ok, 0, 0, 7),
        (2, Append, Invoke, 0, -1, 8),
        (2, Append, Ok, 0, 1, 8),
        (2, Append, Invoke, 1, -1, 9),
        (2, Append, Ok, 1, 0, 9),
        (1, Append, Invoke, 1, -1, 10),
        (1, Append, Ok, 1, 1, 10),
    ];
    assert_eq!(faults(&crossed), []);
}

/// A transaction that reads the second of two records for a group, writes value 9 to partition 1, and commits the group's offset.
fn processing(process: i32, transaction: u64, group: u64, end: Operation, outcome: Outcome) -> Vec<Line> {
    vec![
        (process, Begin, Ok, -1, -1, transaction),
        (process, ReadCommitted, Ok, 0, 1, 8),
        (process, Append, Invoke, 1, -1, transaction + 1_000),
        (process, Commit, Invoke, 0, 2, group),
        (process, Commit, Ok, 0, 2, group),
        (process, end, Invoke, -1, -1, transaction),
        (process, end, outcome, -1, -1, transaction),
    ]
}

#[test]
fn a_record_is_processed_once() {
    let with = |first, group| {
        let first = processing(5, 100, 4, CommitTransaction, first);
        after_two(&[first, processing(6, 101, group, CommitTransaction, Ok)].concat())
    };
    let twice = Fault::ProcessedTwice { offset: 1, transaction: 100, other: 101 };
    assert_eq!(with(Ok, 4), [twice]);
    assert_eq!(with(Fail, 4), []);
    // Each group processes it.
    assert_eq!(with(Ok, 3), []);
    // Of which group a transaction is need not be known.
    let without = |process, transaction| {
        processing(process, transaction, 4, CommitTransaction, Ok).into_iter().filter(|line| line.1 != Commit)
    };
    let twice = Fault::ProcessedTwice { offset: 1, transaction: 100, other: 101 };
    assert_eq!(after_two(&without(5, 100).chain(without(6, 101)).collect::<Vec<_>>()), [twice]);
}

/// A group begins at the second record and comes to its end by the offsets of a transaction, whose value is nowhere, or at offset 0 of
/// partition 1, where it is seen, or not.
#[test]
fn what_a_group_has_passed_was_processed() {
    let until_there = [(4, Commit, Invoke, 0, 1, 4), (4, Commit, Ok, 0, 1, 4), (4, Commit, Invoke, 0, 1, 3)];
    let (begins, end) = (|process, group| (process, Assign, Ok, 0, 1, group), (-1, End, Ok, 0, 2, 4));
    let with = |ends, outcome, seen: &[Line]| {
        let lines =
            [&until_there[..], &[begins(5, 4)], &processing(5, 100, 4, ends, outcome)[..], &[end], seen];
        after_two(&lines.concat())
    };
    let unprocessed = [Fault::Unprocessed { group: 4, offset: 1, value: 8 }];
    assert_eq!(with(CommitTransaction, Ok, &[]), []);
    assert_eq!(with(AbortTransaction, Ok, &[]), unprocessed);
    assert_eq!(with(CommitTransaction, Fail, &[]), unprocessed);
    // Of one whose end is not known, what it has written tells: it is seen, or nobody looks, or who looks does not see it.
    let other = [(8, Append, Invoke, 1, -1, 9), (3, Final, Ok, 1, 0, 1_100), (3, Final, Ok, 1, 1, 9)];
    let looks = [(7, Assign, Ok, 1, 0, 10), (7, ReadCommitted, Ok, 1, 1, 9), (-1, End, Ok, 1, 2, 10)];
    let sees = (7, ReadCommitted, Ok, 1, 0, 1_100);
    assert_eq!(with(CommitTransaction, Info, &[]), []);
    assert_eq!(with(CommitTransaction, Info, &other), []);
    let seen = [&other[..], &[looks[0], sees, looks[1], looks[2]]].concat();
    assert_eq!(with(CommitTransaction, Info, &seen), []);
    assert_eq!(with(CommitTransaction, Info, &[&other[..], &looks].concat()), unprocessed);
    // It is on no replica.
    let nowhere = [other[0], (3, Final, Ok, 1, 0, 9)];
    assert_eq!(with(CommitTransaction, Info, &nowhere), unprocessed);
    // Who has read it again has processed it, for the group of that one.
    let again = |group| {
        let aborted = processing(5, 100, 4, AbortTransaction, Ok);
        let again = processing(6, 101, group, CommitTransaction, Ok);
        let lines = [&until_there[..], &[begins(5, 4)], &aborted[..], &[begins(6, group)], &again, &[end]];
        after_two(&lines.concat())
    };
    assert_eq!(again(4), []);
    assert_eq!(again(3), unprocessed);
}

const COMMITTED: [Line; 2] = [(5, Commit, Invoke, 0, 2, 4), (5, Commit, Ok, 0, 2, 4)];

#[test]
fn commits_do_not_go_back() {
    let after = |lines: &[Line]| after_two(&[&COMMITTED[..], lines].concat());
    let back = Fault::CommitWentBack { group: 4, offset: 1, acknowledged: 2 };
    assert_eq!(
        after(&[(9, Committed, Invoke, 0, -1, 4), (9, Committed, Ok, 0, 1, 4)]),
        std::slice::from_ref(&back)
    );
    assert_eq!(after(&[(6, Assign, Ok, 0, 1, 4)]), [back]);
    assert_eq!(after(&[(6, Assign, Ok, 0, 2, 4)]), []);
    let lost = Fault::CommitWentBack { group: 4, offset: -1, acknowledged: 2 };
    assert_eq!(after(&[(9, Committed, Invoke, 0, -1, 4), (9, Committed, Ok, 0, -1, 4)]), [lost]);
    let invented = Fault::CommitInvented { group: 4, offset: 3 };
    assert_eq!(after(&[(9, Committed, Invoke, 0, -1, 4), (9, Committed, Ok, 0, 3, 4)]), [invented]);
    // One that was asked for before is allowed to be older.
    let meanwhile = [&[(9, Committed, Invoke, 0, -1, 4)], &COMMITTED[..], &[(9, Committed, Ok, 0, -1, 4)]];
    assert_eq!(after_two(&meanwhile.concat()), []);
}

#[test]
fn a_commit_of_a_transaction_counts_with_it() {
    let with = |outcome| {
        let lines = [
            &[(5, Begin, Ok, -1, -1, 100)],
            &COMMITTED[..],
            &[(5, CommitTransaction, outcome, -1, -1, 100)],
            &[(9, Committed, Invoke, 0, -1, 4), (9, Committed, Ok, 0, -1, 4)],
        ];
        after_two(&lines.concat())
    };
    assert_eq!(with(Ok), [Fault::CommitWentBack { group: 4, offset: -1, acknowledged: 2 }]);
    assert_eq!(with(Fail), []);
    assert_eq!(with(Info), []);
}

#[test]
fn a_last_stable_offset_that_stands_still_is_found() {
    let still = Fault::StandsStill { process: 3, offset: 1, high_watermark: 2 };
    assert_eq!(after_two(&[(3, LastStable, Ok, 0, 1, 2)]), [still]);
    assert_eq!(after_two(&[(3, LastStable, Ok, 0, 2, 2)]), []);
}

/// The first of two records is to be deleted, and perhaps is; what a replica has, and where its log starts.
#[test]
fn what_was_deleted_may_be_missing_and_nothing_else() {
    let asked = (9, Delete, Invoke, 0, 1, 0);
    let with =
        |outcome, lines: &[Line]| after_two(&[&[asked, (9, Delete, outcome, 0, 1, 2)][..], lines].concat());
    let starts_at = |offset| (3, LogStart, Ok, 0, offset, 0);
    let second = (3, Final, Ok, 0, 1, 8);
    for outcome in [Ok, Info] {
        assert_eq!(with(outcome, &[starts_at(1), second]), [], "{outcome:?}");
    }
    // What was not acknowledged may not have been done.
    let both = [starts_at(0), (3, Final, Ok, 0, 0, 7), second];
    assert_eq!(with(Info, &both), []);
    assert_eq!(with(Ok, &both), [Fault::DeletionUndone { process: 3, offset: 0, deleted: 1 }]);
    // More is gone than was to be; nothing was; what is behind the start is gone.
    let too_much = Fault::NotDeleted { process: 3, offset: 2, asked: 1 };
    assert_eq!(with(Ok, &[starts_at(2)]), [too_much]);
    assert_eq!(after_two(&[starts_at(1), second]), [Fault::NotDeleted { process: 3, offset: 1, asked: 0 }]);
    assert_eq!(with(Ok, &[starts_at(1)]), [Fault::Lost { process: 3, offset: 1, value: 8 }]);
    let early = [starts_at(1), (3, Final, Ok, 0, 0, 7), second];
    assert_eq!(with(Ok, &early), [Fault::WentBack { process: 3, offset: 0, expected: 1 }]);
    // It is lost with records that it followed, where those are said to be.
    let lost = |offset| with(Ok, &[(4, Lost, Ok, 0, offset, 1), both[0], both[1], both[2]]);
    assert_eq!(lost(1), []);
    assert_eq!(lost(2), [Fault::DeletionUndone { process: 3, offset: 0, deleted: 1 }]);
}

#[test]
fn a_consumer_continues_behind_deleted_records() {
    let asked = (9, Delete, Invoke, 0, 1, 0);
    let begins = (5, Assign, Ok, 0, 0, 4);
    let (reset, read) = ((5, Reset, Ok, 0, 1, 0), (5, Read, Ok, 0, 1, 8));
    let end = (-1, End, Ok, 0, 2, 4);
    assert_eq!(after_two(&[asked, begins, reset, read, end]), []);
    let skipped = Fault::Skipped { process: 5, offset: 1, expected: 0 };
    let unseen = Fault::Unseen { group: 4, offset: 0, value: 7 };
    assert_eq!(after_two(&[asked, begins, read, end]), [unseen, skipped]);
    let not_deleted = Fault::NotDeleted { process: 5, offset: 1, asked: 0 };
    assert_eq!(after_two(&[begins, reset, asked, read, end]), [not_deleted]);
    // Nothing is known of an offset that was deleted everywhere.
    let third = [(2, Append, Invoke, 0, -1, 9), (2, Append, Ok, 0, 3, 9), (9, Delete, Invoke, 0, 3, 0)];
    let reads = [(5, Read, Ok, 0, 1, 8), (5, Read, Ok, 0, 3, 9)];
    let of_replica = |start| [(3, LogStart, Ok, 0, start, 0), (3, Final, Ok, 0, 3, 9)];
    assert_eq!(after_two(&[&third[..], &reads, &of_replica(3)].concat()), []);
    let hole = Fault::Skipped { process: 3, offset: 3, expected: 2 };
    let skipped = Fault::Skipped { process: 5, offset: 3, expected: 2 };
    assert_eq!(after_two(&[&third[..], &reads, &of_replica(2)].concat()), [hole, skipped]);
}

#[test]
fn a_line_that_is_no_event_is_refused_by_its_text() {
    for line in ["", "1 2 read ok 0 0", "1 2 read ok 0 0 7 8", "1 2 look ok 0 0 7", "1 2 read ok 0 x 7"] {
        let error = line.parse::<Event>().expect_err("it is none");
        assert!(error.to_string().contains(&format!("\"{line}\"")), "{error}");
    }
}

#[test]
fn assertions_in_logs_are_found() {
    let log = "ready\nthread 'loop-0' panicked at crates/x.rs:1:2:\nWARN a follower is behind\n";
    assert_eq!(assertions(log), ["thread 'loop-0' panicked at crates/x.rs:1:2:"]);
    assert_eq!(assertions("ready\n"), Vec::<&str>::new());
}
