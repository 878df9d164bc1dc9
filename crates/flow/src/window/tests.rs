//! Transcripts.

use std::fmt::Write as _;

use expect_test::{Expect, expect};

use super::*;

/// Runs a script: one line is one step, and what it says is the transcript.
///
/// `admit OFFSET SLICE [BYTES]`, `pass OFFSET`, `start`, `batch MAX`, `finish OFFSET`, `retry OFFSET AT`, `tick NOW`, `revoke`,
/// `abandon OFFSET`
fn check(mut window: Window, script: &str, expected: &Expect) {
    let (mut now, mut out) = (0, String::new());
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<_> = line.split(' ').collect();
        let number = |at: usize| words.get(at).map(|word| word.parse::<i64>().unwrap());
        let slot = |window: &Window| {
            let offset = number(1).unwrap();
            window.slots.iter().find(|(_, one)| one.offset == offset).map(|(slot, _)| slot).unwrap()
        };
        let mut said = String::new();
        match words[0] {
            "admit" => {
                let (offset, bytes) = (number(1).unwrap(), number(3).unwrap_or(1) as u32);
                said = match window.fits(offset, bytes) {
                    true => match window.admit(offset, number(2).unwrap() as u16, bytes) {
                        Admitted::Slot(_) => String::new(),
                        other => format!("{other:?}"),
                    },
                    false => "no room".into(),
                };
            }
            "pass" => window.pass(number(1).unwrap()),
            "start" => {
                said = window.start().map_or("nothing".into(), |slot| window.offset(slot).to_string());
            }
            "batch" => {
                let mut slots = Vec::new();
                window.start_batch(number(1).unwrap() as usize, &mut slots);
                said = format!("{:?}", slots.iter().map(|slot| window.offset(*slot)).collect::<Vec<_>>());
            }
            "finish" => window.finish(slot(&window), now),
            "retry" => window.retry(slot(&window), number(2).unwrap() as u64, now),
            "tick" => {
                now = number(1).unwrap() as u64;
                window.tick(now);
            }
            "revoke" => window.revoke(),
            "abandon" => window.abandon(slot(&window)),
            other => panic!("{other}"),
        }
        window.check();
        let finished: Vec<_> = window.finished().collect();
        write!(out, "{line:<14}{said:<17} at {}", window.frontier()).unwrap();
        writeln!(out, "{}", if finished.is_empty() { String::new() } else { format!(" {finished:?}") })
            .unwrap();
    }
    expected.assert_eq(&out);
}

fn window() -> Window {
    Window::new(0, [], Limits::default())
}

#[test]
fn slices_run_side_by_side_and_the_position_follows_the_first_unfinished() {
    let script = "admit 0 7\nadmit 1 8\nadmit 2 7\nadmit 5 9\nstart\nstart\nstart\nstart\nfinish 5\nfinish 1
        finish 0\nstart\nfinish 2";
    check(
        window(),
        script,
        &expect![[r#"
        admit 0 7                       at 0
        admit 1 8                       at 0
        admit 2 7                       at 0
        admit 5 9                       at 0 [3..5]
        start         0                 at 0 [3..5]
        start         1                 at 0 [3..5]
        start         5                 at 0 [3..5]
        start         nothing           at 0 [3..5]
        finish 5                        at 0 [3..6]
        finish 1                        at 0 [1..2, 3..6]
        finish 0                        at 2 [3..6]
        start         2                 at 2 [3..6]
        finish 2                        at 6
    "#]],
    );
}

#[test]
fn a_message_that_waits_for_its_next_attempt_holds_up_its_slice_alone() {
    let script = "admit 0 7\nadmit 1 7\nadmit 2 8\nstart\nstart\nretry 0 50\nfinish 2\nstart\nadmit 3 8\nstart\ntick 49
        start\ntick 50\nstart\nfinish 0\nstart";
    check(
        window(),
        script,
        &expect![[r#"
        admit 0 7                       at 0
        admit 1 7                       at 0
        admit 2 8                       at 0
        start         0                 at 0
        start         2                 at 0
        retry 0 50                      at 0
        finish 2                        at 0 [2..3]
        start         nothing           at 0 [2..3]
        admit 3 8                       at 0 [2..3]
        start         3                 at 0 [2..3]
        tick 49                         at 0 [2..3]
        start         nothing           at 0 [2..3]
        tick 50                         at 0 [2..3]
        start         0                 at 0 [2..3]
        finish 0                        at 1 [2..3]
        start         1                 at 1 [2..3]
    "#]],
    );
}

#[test]
fn a_batch_takes_what_follows_and_a_failed_one_goes_message_by_message() {
    let script = "admit 0 0\nadmit 1 0\nadmit 2 0\nadmit 3 0\nbatch 3\nbatch 3\nretry 1 5\nfinish 0\nretry 2 5\nbatch 3
        tick 5\nbatch 3\nfinish 1\nbatch 3\nfinish 2\nbatch 3\nfinish 3";
    check(
        window(),
        script,
        &expect![[r#"
        admit 0 0                       at 0
        admit 1 0                       at 0
        admit 2 0                       at 0
        admit 3 0                       at 0
        batch 3       [0, 1, 2]         at 0
        batch 3       []                at 0
        retry 1 5                       at 0
        finish 0                        at 1
        retry 2 5                       at 1
        batch 3       []                at 1
        tick 5                          at 1
        batch 3       [1]               at 1
        finish 1                        at 2
        batch 3       [2]               at 2
        finish 2                        at 3
        batch 3       [3]               at 3
        finish 3                        at 4
    "#]],
    );
}

#[test]
fn what_was_finished_before_is_not_run_again() {
    let window = Window::new(10, [12..14, 20..30], Limits::default());
    let script = "admit 10 1\nadmit 11 2\nadmit 12 3\nadmit 13 3\nadmit 14 3\nstart\nfinish 10\nadmit 25 1\nadmit 40 1";
    check(
        window,
        script,
        &expect![[r#"
        admit 10 1                      at 10 [12..14, 20..30]
        admit 11 2                      at 10 [12..14, 20..30]
        admit 12 3    AlreadyFinished   at 10 [12..14, 20..30]
        admit 13 3    AlreadyFinished   at 10 [12..14, 20..30]
        admit 14 3                      at 10 [12..14, 20..30]
        start         10                at 10 [12..14, 20..30]
        finish 10                       at 11 [12..14, 20..30]
        admit 25 1    AlreadyFinished   at 11 [12..14, 15..30]
        admit 40 1                      at 11 [12..14, 15..40]
    "#]],
    );
}

#[test]
fn restored_ranges_at_the_position_itself_are_passed() {
    check(
        Window::new(10, std::iter::once(10..14), Limits::default()),
        "admit 13 1\nadmit 14 1",
        &expect![[r#"
        admit 13 1    AlreadyFinished   at 14
        admit 14 1                      at 14
    "#]],
    );
}

#[test]
fn bounds_hold_a_partition_and_one_large_message_is_alone() {
    let limits = Limits { messages: 3, bytes: 100, ahead: 10 };
    let script =
        "admit 0 0 500\nadmit 1 1 1\nstart\nfinish 0\nadmit 1 1 60\nadmit 2 2 41\nadmit 2 2 40\nadmit 3 3 0
        admit 4 4 0\nstart\nstart\nstart\nfinish 2\nadmit 11 4 0\nadmit 10 4 0\nfinish 1\nadmit 11 5 0";
    check(
        Window::new(0, [], limits),
        script,
        &expect![[r#"
        admit 0 0 500                   at 0
        admit 1 1 1   no room           at 0
        start         0                 at 0
        finish 0                        at 1
        admit 1 1 60                    at 1
        admit 2 2 41  no room           at 1
        admit 2 2 40                    at 1
        admit 3 3 0                     at 1
        admit 4 4 0   no room           at 1
        start         1                 at 1
        start         2                 at 1
        start         3                 at 1
        finish 2                        at 1 [2..3]
        admit 11 4 0  no room           at 1 [2..3]
        admit 10 4 0                    at 1 [2..3, 4..10]
        finish 1                        at 3 [4..10]
        admit 11 5 0                    at 3 [4..10]
    "#]],
    );
}

#[test]
fn what_readers_do_not_see_is_passed() {
    check(
        window(),
        "pass 3\nadmit 5 1\npass 9\nstart\nfinish 5",
        &expect![[r#"
        pass 3                          at 3
        admit 5 1                       at 5
        pass 9                          at 5 [6..9]
        start         5                 at 5 [6..9]
        finish 5                        at 9
    "#]],
    );
}

#[test]
fn after_a_revocation_nothing_starts_and_what_was_stopped_is_unfinished() {
    let script =
        "admit 0 1\nadmit 1 2\nadmit 2 3\nstart\nstart\nrevoke\nstart\nfinish 1\nabandon 0\ntick 9\nstart";
    check(
        window(),
        script,
        &expect![[r#"
        admit 0 1                       at 0
        admit 1 2                       at 0
        admit 2 3                       at 0
        start         0                 at 0
        start         1                 at 0
        revoke                          at 0
        start         nothing           at 0
        finish 1                        at 0 [1..2]
        abandon 0                       at 0 [1..2]
        tick 9                          at 0 [1..2]
        start         nothing           at 0 [1..2]
    "#]],
    );
}

#[test]
#[should_panic(expected = "offset 3 arrives behind 5")]
fn offsets_that_go_back_are_a_mistake_of_the_caller() {
    let mut window = window();
    window.admit(4, 0, 1);
    window.admit(3, 0, 1);
}

#[test]
fn what_is_expected_of_the_first_unfinished_message_is_when_its_attempt_was_due() {
    let mut window = Window::new(0, [], Limits::default());
    assert_eq!(window.frontier_due_ms(), None);
    for offset in 0..2 {
        window.admit(offset, offset as u16, 1);
    }
    let (first, second) = (window.start().unwrap(), window.start().unwrap());
    assert_eq!(window.frontier_due_ms(), Some(0));
    window.retry(first, 500, 100);
    assert_eq!(window.frontier_due_ms(), Some(500));
    window.tick(500);
    assert_eq!(window.start(), Some(first));
    assert_eq!(window.frontier_due_ms(), Some(500), "its present attempt was due then");
    window.await_write(first);
    assert_eq!(window.frontier_due_ms(), Some(u64::MAX), "it is not its attempt that is waited for");
    window.finish(first, 600);
    assert_eq!(window.frontier_due_ms(), Some(0), "the next one");
    window.await_write(second);
    window.retry(second, 700, 600);
    assert_eq!(window.frontier_due_ms(), Some(700), "what could not be written runs again");
    window.check();
}

#[test]
fn a_message_that_runs_alone_is_in_no_batch() {
    let mut window = Window::new(0, [], Limits::default());
    let slots: Vec<_> = (0..4).map(|offset| window.admit(offset, 0, 1)).collect();
    let Admitted::Slot(alone) = slots[1] else { panic!("{slots:?}") };
    window.run_alone(alone);
    for expected in [&[0][..], &[1], &[2, 3]] {
        let mut batch = Vec::new();
        window.start_batch(10, &mut batch);
        assert_eq!(batch.iter().map(|slot| window.offset(*slot)).collect::<Vec<_>>(), expected);
        batch.iter().for_each(|slot| window.finish(*slot, 0));
        window.check();
    }
}

#[test]
fn what_is_restored_is_void_once_other_messages_are_there() {
    // 10 is unfinished, 11 to 14 and 20 to 29 are finished.
    let mut window = Window::new(10, [11..15, 20..30], Limits::default());
    let Admitted::Slot(first) = window.admit(10, 0, 1) else { panic!("it is unfinished") };
    assert!(window.has_restored());
    window.void_restored();
    window.check();
    assert!(!window.has_restored());
    assert_eq!((window.frontier(), window.finished().next()), (10, None));
    let Admitted::Slot(second) = window.admit(11, 1, 1) else { panic!("it is another one") };
    for slot in [first, second] {
        assert!(window.start().is_some());
        window.finish(slot, 0);
    }
    window.check();
    assert_eq!(window.frontier(), 12);
    // What had adjoined the first ones is passed already, and comes back.
    let mut window = Window::new(10, std::iter::once(10..15), Limits::default());
    assert_eq!((window.frontier(), window.has_restored()), (15, true));
    window.void_restored();
    window.check();
    assert_eq!(window.frontier(), 10);
}
