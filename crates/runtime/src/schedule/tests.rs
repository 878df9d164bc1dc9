//! Threads that take turns.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::clock::ManualClock;
use crate::supervised::{self, AbortOnPanic};
use crate::sync::{self, Condvar};

/// Picks by a number that a multiplication mixes.
fn picks(mut seed: u64) -> impl FnMut(usize) -> Option<usize> {
    move |count| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some((seed >> 33) as usize % count)
    }
}

fn group(schedule: &Schedule) -> (ManualClock, Group) {
    let manual = ManualClock::new();
    let clock = Clock::held_by(&manual);
    (manual, schedule.group(&clock, 1))
}

/// Waits on a thread of a schedule until so much time of its clock has passed.
fn pass(time: Duration) {
    let (never, lock) = (Condvar::new(), Mutex::new(()));
    while !never.wait_for(&mut lock.lock(), time) {}
}

/// The order in which three threads take their steps, each of which waits for some virtual milliseconds.
fn order(seed: u64) -> Vec<(usize, u64)> {
    let schedule = Schedule::new();
    let (manual, group) = group(&schedule);
    let noted = Arc::new(Mutex::new(Vec::new()));
    for number in 0..3 {
        let (noted, clock) = (noted.clone(), Clock::held_by(&manual));
        let run = move || {
            for step in 0..4 {
                noted.lock().push((number, clock.mono_ms()));
                pass(Duration::from_millis(step + number as u64 % 2));
            }
        };
        group.spawn("steps", run).expect("a thread can be made");
    }
    let mut pick = picks(seed);
    while group.has_threads() {
        schedule.run(&mut pick);
        manual.advance(Duration::from_millis(1));
    }
    Arc::into_inner(noted).expect("all have ended").into_inner()
}

#[test]
fn one_seed_is_one_schedule() {
    assert_eq!(order(1), order(1));
    assert!((2..20).any(|seed| order(seed) != order(1)), "another seed is another one");
}

#[test]
fn a_stalled_thread_has_no_turn_until_its_stall_ends() {
    let schedule = Schedule::new();
    let (manual, group) = group(&schedule);
    let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    for (number, name) in ["one", "other"].into_iter().enumerate() {
        let counts = counts.clone();
        let run = move || {
            loop {
                counts[number].fetch_add(1, Ordering::Relaxed);
                pass(Duration::from_millis(1));
            }
        };
        group.spawn(name, run).expect("a thread can be made");
    }
    let counted = || [0, 1].map(|number| counts[number].load(Ordering::Relaxed));
    let run_for = |times: usize| {
        for _ in 0..times {
            schedule.run(picks(1));
            manual.advance(Duration::from_millis(1));
        }
    };
    schedule.stall(Duration::from_millis(5), |threads| threads.iter().position(|(_, name)| *name == "other"));
    run_for(5);
    assert_eq!(counted(), [5, 0]);
    run_for(1);
    assert_eq!(counted(), [6, 1]);
    schedule.stall(Duration::from_secs(60), |_| Some(1));
    run_for(2);
    assert_eq!(counted(), [8, 1]);
    schedule.end_stalls();
    run_for(1);
    assert_eq!(counted(), [9, 2]);
    group.kill();
}

#[test]
fn a_thread_waits_in_the_time_of_its_clock() {
    let noted = order(3);
    let of_one: Vec<_> = noted.iter().filter(|(number, _)| *number == 1).map(|(_, at_ms)| *at_ms).collect();
    assert_eq!(of_one, [0, 1, 3, 6]);
}

#[test]
fn conditions_and_channels_hand_the_turn_over() {
    let schedule = Schedule::new();
    let (_manual, group) = group(&schedule);
    let shared = Arc::new((Mutex::new(0), Condvar::new()));
    let (sender, receiver) = sync::channel();
    let waiting = shared.clone();
    let wait = move || {
        let (number, changed) = &*waiting;
        let mut number = number.lock();
        while *number < 10 {
            changed.wait(&mut number);
        }
        sender.send(*number).expect("it is received");
    };
    group.spawn("waits", wait).expect("a thread can be made");
    let received = group.spawn("receives", move || receiver.sum::<i32>()).expect("a thread can be made");
    schedule.run(picks(1));
    assert!(!received.is_finished());
    for number in 1..=10 {
        // Outside of all threads: a notification may come from anywhere.
        *shared.0.lock() = number;
        shared.1.notify_all();
        schedule.run(picks(1));
    }
    assert_eq!(received.join(), Some(10));
}

#[test]
fn a_thread_starts_others_of_its_group_and_waits_for_them() {
    let schedule = Schedule::new();
    let (manual, group) = group(&schedule);
    let run = || {
        let inner = supervised::spawn_vital("inner", "the test waits for it", || {
            pass(Duration::from_secs(3));
            7
        });
        inner.expect("a thread can be made").join().expect("it does not panic")
    };
    let outer = group.spawn("outer", run).expect("a thread can be made");
    schedule.run(picks(1));
    assert_eq!(schedule.names().len(), 2);
    manual.advance(Duration::from_secs(3));
    schedule.run(picks(1));
    assert_eq!(outer.join(), Some(7));
}

/// As a process that dies: nothing of what its threads were at is done, and what they hold is dropped.
#[test]
fn threads_of_a_killed_group_end_where_they_are() {
    struct Counts(Arc<AtomicUsize>);
    impl Drop for Counts {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let schedule = Schedule::new();
    let (_manual, first) = group(&schedule);
    let (_other, second) = group(&schedule);
    let dropped = Arc::new(AtomicUsize::new(0));
    for group in [&first, &first, &second] {
        let held = Counts(dropped.clone());
        let run = move || {
            let _held = held;
            let _guard = AbortOnPanic("a process that was killed does not end that of the test");
            pass(Duration::from_secs(1));
            unreachable!("the time does not move");
        };
        group.spawn("sleeps", run).expect("a thread can be made");
    }
    // One of them has not begun yet.
    let mut turns = 0;
    schedule.run(|_| {
        turns += 1;
        (turns <= 2).then_some(0)
    });
    first.kill();
    assert_eq!((dropped.load(Ordering::SeqCst), first.has_threads(), second.has_threads()), (2, false, true));
    second.kill();
    assert_eq!(schedule.names(), []);
}

#[test]
#[should_panic(expected = "a mistake of the test")]
fn a_panic_of_a_thread_is_the_owners() {
    let schedule = Schedule::new();
    let (_manual, group) = group(&schedule);
    group.spawn("panics", || panic!("a mistake of the test")).expect("a thread can be made");
    schedule.run(picks(1));
}

#[test]
fn random_numbers_follow_from_the_seed_of_the_group() {
    let schedule = Schedule::new();
    let (_manual, group) = group(&schedule);
    let drawn = group.act(|| [crate::random::uuid(), crate::random::uuid()]);
    let again =
        Schedule::new().group(&Clock::start(), 1).act(|| [crate::random::uuid(), crate::random::uuid()]);
    assert_eq!(drawn, again);
    assert_ne!(drawn[0], drawn[1]);
}
