//! Transcripts of single cases, and whole routes with databases that go away.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Write as _;

use expect_test::{Expect, expect};

use super::*;

/// Runs a script over one message, m, whose verdicts are the transcript. One line is one step:
///
/// - `fail|transient|poison|stop`: m runs for 1 ms.
/// - `others N ok M failed`: attempts of others end.
/// - `wait MS`: time passes.
/// - `until N`: m fails until it is a letter, at most N times, with 20 others succeeding before each.
fn check(script: &str, expected: &Expect) {
    let mut judge = Judge::new(Retry::exponential(100, 10_000));
    let (mut tries, mut now, mut out) = (Tries::default(), 0, String::new());
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<_> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let class = match words[0] {
            "others" => {
                (0..number(1)).for_each(|_| judge.succeeded());
                let mut others = Tries::default();
                (0..number(3)).for_each(|_| {
                    let started = judge.started();
                    judge.failed(&mut others, started, FaultClass::Failed, 7, now);
                });
                continue;
            }
            "wait" => {
                now += number(1);
                continue;
            }
            "transient" => FaultClass::Transient,
            "poison" => FaultClass::Poison,
            "stop" => FaultClass::Stop,
            _ => FaultClass::Failed,
        };
        let started = judge.started();
        now += 1;
        let verdict = judge.failed(&mut tries, started, class, 0, now);
        let verdict_text = match verdict {
            Verdict::Retry { at_ms } => format!("again in {} ms", at_ms - now),
            other => format!("{other:?}"),
        };
        let outage = judge.outage_since_ms().map(|at| format!(", outage since {at}")).unwrap_or_default();
        writeln!(out, "{line} at {now}: {verdict_text}{outage}").unwrap();
        if let Verdict::Retry { at_ms } = verdict {
            now = at_ms;
        }
    }
    expected.assert_eq(&out);
}

#[test]
fn a_message_that_fails_alone_is_a_letter_after_five_attempts() {
    let beside = "fail\nothers 10 ok 0 failed\n".repeat(4);
    check(
        &format!("{beside}fail"),
        &expect![[r#"
        fail at 1: again in 103 ms
        fail at 105: again in 214 ms
        fail at 320: again in 431 ms
        fail at 752: again in 812 ms
        fail at 1565: Letter
    "#]],
    );
}

#[test]
fn a_message_that_fails_with_others_waits_and_starts_over() {
    let away = "fail\nothers 0 ok 12 failed\n".repeat(7);
    let back = "fail\nothers 30 ok 1 failed\n".repeat(4);
    check(
        &format!("{away}{back}fail"),
        &expect![[r#"
        fail at 1: again in 103 ms
        fail at 105: again in 214 ms, outage since 104
        fail at 320: again in 431 ms, outage since 104
        fail at 752: again in 812 ms, outage since 104
        fail at 1565: again in 1899 ms, outage since 104
        fail at 3465: again in 2784 ms, outage since 104
        fail at 6250: again in 5779 ms, outage since 104
        fail at 12030: again in 8410 ms, outage since 104
        fail at 20441: again in 9720 ms, outage since 20441
        fail at 30162: again in 8840 ms, outage since 30162
        fail at 39003: again in 9910 ms, outage since 39003
        fail at 48914: Letter
    "#]],
    );
}

#[test]
fn without_others_a_message_has_its_time() {
    check(
        "fail\nfail\nfail\nfail\nfail\nothers 3 ok 0 failed\nwait 800000\nfail\nwait 100000\nfail",
        &expect![[r#"
            fail at 1: again in 103 ms
            fail at 105: again in 214 ms
            fail at 320: again in 431 ms
            fail at 752: again in 812 ms
            fail at 1565: again in 1899 ms, outage since 1565
            fail at 803465: again in 2784 ms, outage since 803465
            fail at 906250: Letter, outage since 803465
        "#]],
    );
}

#[test]
fn what_is_transient_is_never_a_letter() {
    let away = "transient\nothers 10 ok 0 failed\nwait 600000\n".repeat(4);
    check(
        &format!("{away}fail\nstop\npoison"),
        &expect![[r#"
        transient at 1: again in 103 ms, outage since 1
        transient at 600105: again in 214 ms, outage since 600105
        transient at 1200320: again in 431 ms, outage since 1200320
        transient at 1800752: again in 812 ms, outage since 1800752
        fail at 2401565: again in 1899 ms
        stop at 2403465: Stop
        poison at 2403466: Letter
    "#]],
    );
}

#[test]
fn waits_double_and_are_spread() {
    let retry = Retry::exponential(200, 30_000);
    for failures in 1..200 {
        let full = (200u64 << (failures - 1).min(20)).min(30_000);
        let waits: Vec<_> = (0..50).map(|seed| retry.wait_ms(failures, seed)).collect();
        assert!(waits.iter().all(|wait| (full * 8 / 10..=full * 12 / 10).contains(wait)), "{waits:?}");
        assert!(waits.iter().any(|wait| *wait != waits[0]), "{waits:?}");
    }
}

/// A route in which messages arrive, up to `concurrency` run, and each attempt fails that starts or ends while the database
/// is away. `poison`: one message in so many always fails.
struct Load {
    concurrency: usize,
    per_ms: u64,
    ok_ms: u64,
    fail_ms: u64,
    is_away: fn(u64) -> bool,
    poison: Option<u64>,
    until_ms: u64,
}

/// Letters by their number, and how many succeeded.
fn run(load: &Load, seed: u64) -> (Vec<u64>, u64) {
    let mut judge = Judge::new(Retry::default());
    let mut events = BinaryHeap::<Reverse<(u64, bool, u64)>>::new();
    let mut tries: Vec<Tries> = Vec::new();
    let mut marks = Vec::new();
    let (mut waiting, mut running) = (std::collections::VecDeque::new(), 0);
    let (mut letters, mut succeeded) = (Vec::new(), 0);
    let is_poison = |id: u64| load.poison.is_some_and(|one_in| id % one_in == 1);
    for now in 0..load.until_ms {
        // Unfinished messages are bounded, as in a window.
        for _ in 0..load.per_ms {
            if waiting.len() + running + events.len() < 1_024 {
                waiting.push_back(tries.len() as u64);
                tries.push(Tries::default());
                marks.push(Mark::default());
            }
        }
        while let Some(Reverse((at, is_end, id))) = events.peek().copied()
            && at <= now
        {
            events.pop();
            if !is_end {
                waiting.push_front(id);
                continue;
            }
            running -= 1;
            let is_failed = is_poison(id) || (load.is_away)(now);
            if !is_failed {
                judge.succeeded();
                succeeded += 1;
                continue;
            }
            let one = &mut tries[id as usize];
            match judge.failed(one, marks[id as usize], FaultClass::Failed, seed ^ id, now) {
                Verdict::Retry { at_ms } => events.push(Reverse((at_ms, false, id))),
                _ => letters.push(id),
            }
        }
        while running < load.concurrency
            && let Some(id) = waiting.pop_front()
        {
            marks[id as usize] = judge.started();
            running += 1;
            let takes = if (load.is_away)(now) { load.fail_ms } else { load.ok_ms };
            events.push(Reverse((now + takes.max(1), true, id)));
        }
    }
    (letters, succeeded)
}

#[test]
fn nothing_that_is_accepted_is_a_letter_while_a_database_is_away_or_flaps() {
    let away: [fn(u64) -> bool; 6] = [
        |now| (30_000..150_000).contains(&now),
        |now| (30_000..150_000).contains(&now) && now % 10_000 < 5_000,
        |now| (30_000..150_000).contains(&now) && now % 2_000 < 400,
        |now| (30_000..150_000).contains(&now) && now % 200 < 100,
        |now| (30_000..150_000).contains(&now) && now % 1_000 < 30,
        |now| (30_000..150_000).contains(&now) && (now / 1_000).count_ones() % 2 == 0,
    ];
    for (case, is_away) in away.into_iter().enumerate() {
        for (concurrency, fail_ms) in [(16, 1), (16, 1_000), (256, 20)] {
            for seed in 0..2 {
                let load = Load {
                    concurrency,
                    per_ms: 2,
                    ok_ms: 2,
                    fail_ms,
                    is_away,
                    poison: None,
                    until_ms: 240_000,
                };
                let (letters, succeeded) = run(&load, seed);
                assert!(letters.is_empty(), "case {case}, {concurrency} at once, {fail_ms} ms, seed {seed}");
                assert!(succeeded > 10_000, "case {case}: {succeeded}");
            }
        }
    }
}

#[test]
fn what_is_never_accepted_is_a_letter_before_and_after() {
    for seed in 0..3 {
        let load = Load {
            concurrency: 16,
            per_ms: 2,
            ok_ms: 2,
            fail_ms: 10,
            is_away: |now| (30_000..150_000).contains(&now),
            poison: Some(1_000),
            until_ms: 300_000,
        };
        let (letters, _) = run(&load, seed);
        assert!(letters.len() > 200, "{}", letters.len());
        assert!(letters.iter().all(|id| id % 1_000 == 1), "{letters:?}");
    }
}
