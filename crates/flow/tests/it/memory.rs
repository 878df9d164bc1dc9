//! The test kit: topics in memory, and time that passes when a test says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mainstem_client::Record;
use mainstem_flow::{App, Batch, Cx, Fault, Json, Msg, Received, Retry, Route, TestApp, Text, letter};
use parking_lot::Mutex;

#[path = "../../examples/service.rs"]
#[allow(dead_code, reason = "its main is no test's")]
mod service;

type Seen = Arc<Mutex<Vec<String>>>;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn retries_take_their_time_and_hold_up_one_key() {
    let seen = Seen::default();
    let own = seen.clone();
    let route = Route::topic("lines", move |line: Msg<Text>| {
        own.lock().push(line.clone());
        async move { if line.starts_with("bad") { Err(Fault::transient("away")) } else { Ok(()) } }
    });
    let app = App::new("a", "mem:").unwrap().add(route.retry(Retry::exponential(1_000, 8_000)));
    let mut test = TestApp::new(app).unwrap();
    for (key, line) in [("a", "bad 0"), ("a", "1"), ("b", "2")] {
        test.send("lines", Some(key), &Text(line.to_owned()));
    }
    test.settle().await;
    assert_eq!(*seen.lock(), ["bad 0", "2"]);
    test.advance(SECOND * 2).await;
    assert_eq!(*seen.lock(), ["bad 0", "2", "bad 0"], "a second, and a fifth more at most");
    test.advance(SECOND * 300).await;
    assert!(!seen.lock().contains(&"1".to_owned()), "an outage is no reason to give up");
    assert!(test.letters("lines").is_empty());
    assert_eq!(test.position("lines"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_crash_repeats_what_was_not_committed_and_no_more() {
    let (seen, is_away) = (Seen::default(), Arc::new(AtomicBool::new(true)));
    let (own, away) = (seen.clone(), is_away.clone());
    let make = move || {
        let (seen, away) = (own.clone(), away.clone());
        let route = Route::topic("lines", move |line: Msg<Text>| {
            let fails = *line == "bad" && away.load(Ordering::Relaxed);
            if !fails {
                seen.lock().push(line.clone());
            }
            async move { if fails { Err(Fault::transient("away")) } else { Ok(()) } }
        });
        Ok(App::new("a", "mem:")?.add(route))
    };
    let mut test = TestApp::made_by(make).unwrap();
    for (key, line) in [("a", "bad"), ("b", "1"), ("c", "2")] {
        test.send("lines", Some(key), &Text(line.to_owned()));
    }
    test.advance(SECOND * 2).await;
    test.send("lines", Some("d"), &Text("3".to_owned()));
    test.settle().await;
    test.crash().await;
    test.advance(SECOND * 60).await;
    assert_eq!(
        *seen.lock(),
        ["1", "2", "3", "3"],
        "what was committed behind the bad one does not run again"
    );
    is_away.store(false, Ordering::Relaxed);
    test.rebalance().await;
    test.advance(SECOND * 60).await;
    assert_eq!(*seen.lock(), ["1", "2", "3", "3", "bad"]);
    assert_eq!(test.position("lines"), 4);
    test.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pause_lasts_and_what_is_sent_is_there() {
    let route = Route::topic("lines", |line: Msg<Text>, cx: Cx| async move {
        cx.send("copies", line.key(), &Text(line.to_uppercase()))?;
        cx.pause(SECOND * 30)
    });
    let app = App::new("a", "mem:").unwrap().add(route.concurrency(1));
    let mut test = TestApp::new(app).unwrap();
    test.send("lines", None, &Text("a".to_owned()));
    test.send("lines", None, &Text("b".to_owned()));
    test.advance(SECOND * 29).await;
    assert_eq!(test.sent("copies").len(), 1);
    test.advance(SECOND * 2).await;
    assert_eq!(test.sent("copies")[1].value.as_deref(), Some(&b"B"[..]));
}

#[tokio::test(start_paused = true)]
async fn a_message_alone_is_a_letter_after_its_time() {
    let route = Route::topic("lines", |_: Msg<Text>| async { Err::<(), _>(Fault::failed("no")) });
    let retry = Retry::exponential(1_000, 30_000).give_up_after_ms(600_000);
    let mut test = TestApp::new(App::new("a", "mem:").unwrap().add(route.retry(retry))).unwrap();
    test.send("lines", Some("a"), &Text("x".to_owned()));
    test.advance(SECOND * 590).await;
    assert!(test.letters("lines").is_empty());
    test.advance(SECOND * 60).await;
    let letters = test.letters("lines");
    assert_eq!(letter::text(&letters[0].headers, letter::MESSAGE), Some("no"));
    assert_eq!(test.position("lines"), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_replayed_has_not_expired() {
    let is_repaired = Arc::new(AtomicBool::new(false));
    let repaired = is_repaired.clone();
    let route = Route::topic("lines", move |_: Msg<Text>| {
        let repaired = repaired.load(Ordering::Relaxed);
        async move { if repaired { Ok(()) } else { Err(Fault::poison("no")) } }
    });
    let day = SECOND * 24 * 3600;
    let app = App::new("a", "mem:").unwrap().add(route.expire_after(day));
    let mut test = TestApp::new(app).unwrap();
    test.send("lines", None, &Text("x".to_owned()));
    test.settle().await;
    let first_ms = test.sent("lines")[0].timestamp_ms;
    let replay = |letter: &Record| Record {
        value: letter.value.clone(),
        headers: letter::replayed(&letter.headers),
        ..Record::new("lines", "")
    };
    // In one leap: nothing is due meanwhile.
    tokio::time::advance(day * 2).await;
    test.send_record(replay(&test.letters("lines")[0]));
    test.settle().await;
    let letters = test.letters("lines");
    assert_eq!(letters.len(), 2, "it was handled again");
    assert_eq!(letter::first_timestamp_ms(&letters[1].headers), first_ms);
    assert_eq!(letter::rounds(&letters[1].headers), 1);
    is_repaired.store(true, Ordering::Relaxed);
    let expired = Record { timestamp_ms: first_ms, ..replay(&letters[1]) };
    test.send_record(expired);
    test.send_record(replay(&letters[1]));
    test.settle().await;
    let metrics = test.status().unwrap().metrics();
    let counted = |outcome: &str, count: u64| {
        metrics.contains(&format!("messages_total{{route=\"lines\",outcome=\"{outcome}\"}} {count}\n"))
    };
    assert!(counted("filtered", 1) && counted("handled", 1), "{metrics}");
}

/// Batches of four at most that wait 50 ms for more: their lines, and when they came, in ms.
fn batches_of_four(seen: Arc<Mutex<Vec<(u128, String)>>>) -> Route {
    let began = tokio::time::Instant::now();
    Route::batches("rows", 4, Duration::from_millis(50), move |rows: Batch<Text>| {
        let rows: String = rows.messages().iter().map(|row| row.as_str()).collect();
        seen.lock().push((began.elapsed().as_millis(), rows));
        async {}
    })
}

#[tokio::test(start_paused = true)]
async fn what_a_full_batch_leaves_waits_for_more_as_long_as_any_batch() {
    let seen: Arc<Mutex<Vec<(u128, String)>>> = Arc::default();
    let app = App::new("a", "mem:").unwrap().add(batches_of_four(seen.clone()));
    let mut test = TestApp::new(app).unwrap();
    let send = |test: &TestApp, rows: &str| {
        rows.chars().for_each(|row| test.send("rows", None, &Text(row.to_string())));
    };
    let ms = Duration::from_millis;
    send(&test, "123456");
    test.advance(ms(20)).await;
    assert_eq!(*seen.lock(), [(0, "1234".to_owned())], "two wait for more");
    test.advance(ms(20)).await;
    send(&test, "7");
    test.advance(ms(100)).await;
    assert_eq!(seen.lock()[1..], [(50, "567".to_owned())], "since the first of them came");
    // One that becomes full does not wait.
    send(&test, "12");
    test.advance(ms(10)).await;
    send(&test, "34567");
    test.advance(ms(100)).await;
    let expected = [(150, "1234".to_owned()), (200, "567".to_owned())];
    assert_eq!(seen.lock()[2..], expected);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_fails_in_batches_holds_up_its_partition_until_it_is_a_letter() {
    let seen = Seen::default();
    let own = seen.clone();
    let route = Route::batches("rows", 10, Duration::from_millis(5), move |rows: Batch<Text>| {
        let is_refused = rows.messages().iter().any(|row| **row == "bad");
        if !is_refused {
            own.lock().extend(rows.messages().iter().map(|row| (**row).clone()));
        }
        async move { if is_refused { Err(Fault::failed("a constraint refuses it")) } else { Ok(()) } }
    });
    let mut test = TestApp::new(App::new("a", "mem:").unwrap().add(route)).unwrap();
    for (key, row) in [("a", "1"), ("b", "bad"), ("c", "2")] {
        test.send("rows", Some(key), &Text(row.to_owned()));
    }
    test.advance(SECOND * 14 * 60).await;
    assert_eq!((&*seen.lock(), test.letters("rows").len()), (&vec!["1".to_owned()], 0));
    test.advance(SECOND * 2 * 60).await;
    assert_eq!((&*seen.lock(), test.letters("rows").len()), (&vec!["1".to_owned(), "2".to_owned()], 1));
    assert_eq!(test.position("rows"), 3);
}

#[tokio::test(start_paused = true)]
async fn what_is_written_where_the_log_was_cut_behind_the_position_is_handled() {
    let (seen, is_away) = (Seen::default(), Arc::new(AtomicBool::new(true)));
    let (own, away) = (seen.clone(), is_away.clone());
    let make = move || {
        let (seen, away) = (own.clone(), away.clone());
        let route = Route::topic("lines", move |line: Msg<Text>| {
            let fails = *line == "bad" && away.load(Ordering::Relaxed);
            if !fails {
                seen.lock().push(line.clone());
            }
            async move { if fails { Err(Fault::transient("away")) } else { Ok(()) } }
        });
        Ok(App::new("a", "mem:")?.add(route))
    };
    let mut test = TestApp::made_by(make).unwrap();
    let send = |test: &TestApp, lines: [&str; 3]| {
        lines.iter().for_each(|line| test.send("lines", Some(line), &Text((*line).to_owned())));
    };
    send(&test, ["bad", "1", "2"]);
    test.advance(SECOND * 2).await;
    // Without an election nothing is repeated.
    test.crash().await;
    assert_eq!((test.position("lines"), &*seen.lock()), (0, &vec!["1".to_owned(), "2".to_owned()]));
    test.truncate("lines", 1);
    send(&test, ["3", "4", "5"]);
    test.crash().await;
    assert_eq!(*seen.lock(), ["1", "2", "3", "4", "5"]);
    test.advance(SECOND * 2).await;
    // What is finished now is so in the new epoch.
    test.crash().await;
    is_away.store(false, Ordering::Relaxed);
    test.advance(SECOND * 60).await;
    assert_eq!(*seen.lock(), ["1", "2", "3", "4", "5", "bad"]);
    assert_eq!(test.position("lines"), 4);
}

#[tokio::test(start_paused = true)]
async fn a_minimum_age_and_a_throttle_hold_messages_back() {
    let seen = Seen::default();
    let (old, slow) = (seen.clone(), seen.clone());
    let old = Route::topic("old", move |line: Msg<Text>| {
        old.lock().push(line.clone());
        async {}
    });
    let slow = Route::topic("slow", move |line: Msg<Text>| {
        slow.lock().push(line.clone());
        async {}
    });
    let app = App::new("a", "mem:").unwrap().add(old.minimum_age(SECOND * 10)).add(slow.throttle(1));
    let mut test = TestApp::new(app).unwrap();
    test.send("old", None, &Text("old".to_owned()));
    for _ in 0..5 {
        test.send("slow", None, &Text("slow".to_owned()));
    }
    test.advance(SECOND * 3).await;
    let so_far = seen.lock().len();
    assert!((3..=4).contains(&so_far), "{so_far} in 3 s");
    assert!(!seen.lock().contains(&"old".to_owned()));
    test.advance(SECOND * 8).await;
    assert_eq!(seen.lock().len(), 6);
}

/// A database that is away for two minutes, and comes and goes for two more.
#[tokio::test(start_paused = true)]
async fn what_is_accepted_in_the_end_is_no_letter_however_long_a_database_is_away() {
    let (began, handled) = (tokio::time::Instant::now(), Arc::new(Mutex::new(0)));
    let own = handled.clone();
    let is_away = move || {
        let ms = began.elapsed().as_millis();
        (10_000..130_000).contains(&ms) || ((130_000..250_000).contains(&ms) && ms % 2_500 < 700)
    };
    let route = Route::topic("lines", move |_: Msg<Text>| {
        let handled = own.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(3)).await;
            if is_away() {
                return Err(Fault::failed("the database is away"));
            }
            *handled.lock() += 1;
            Ok(())
        }
    });
    let mut test = TestApp::new(App::new("a", "mem:").unwrap().add(route)).unwrap();
    let mut written = 0;
    while began.elapsed() < SECOND * 260 {
        test.send("lines", Some(&(written % 50).to_string()), &Text(written.to_string()));
        written += 1;
        test.advance(Duration::from_millis(200)).await;
    }
    test.advance(SECOND * 120).await;
    assert_eq!((*handled.lock(), test.position("lines")), (written, written));
    assert!(test.letters("lines").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_handler_ends_a_pause_that_another_has_begun() {
    let seen = Seen::default();
    let own = seen.clone();
    let route = Route::topic("lines", move |line: Msg<Text>, cx: Cx| {
        let seen = own.clone();
        async move {
            seen.lock().push(line.clone());
            match line.as_str() {
                "pause" => cx.pause(SECOND * 3_600),
                "resume" => {
                    tokio::time::sleep(SECOND * 10).await;
                    cx.pause(Duration::ZERO)
                }
                _ => Ok(()),
            }
        }
    });
    let mut test = TestApp::new(App::new("a", "mem:").unwrap().add(route)).unwrap();
    for line in ["resume", "pause", "later"] {
        test.send("lines", Some(line), &Text(line.to_owned()));
        test.settle().await;
    }
    test.advance(SECOND * 9).await;
    assert_eq!(*seen.lock(), ["resume", "pause"]);
    test.advance(SECOND * 2).await;
    assert_eq!(*seen.lock(), ["resume", "pause", "later"]);
}

#[tokio::test(start_paused = true)]
async fn what_had_nothing_to_do_for_long_is_alive_when_something_comes() {
    let route = Route::topic("lines", |line: Msg<Text>| async move {
        if *line == "stuck" {
            std::future::pending::<()>().await;
        }
    });
    let app = App::new("a", "mem:").unwrap().stuck_after(SECOND * 5);
    let mut test = TestApp::new(app.add(route)).unwrap();
    test.send("lines", None, &Text("one".to_owned()));
    test.advance(SECOND * 20).await;
    test.send("lines", None, &Text("stuck".to_owned()));
    test.advance(SECOND * 4).await;
    assert_eq!(test.status().unwrap().live(), Ok(()));
    test.advance(SECOND * 2).await;
    let stuck = test.status().unwrap().live().unwrap_err();
    assert!(stuck.contains("lines-0 makes no progress at offset 1 for "), "{stuck}");
}

/// Some are done at once, some wait, some fail first, some send: whatever their neighbours do, a key's messages run in order.
#[tokio::test(start_paused = true)]
async fn handlers_that_wait_and_that_do_not_keep_the_order_of_their_keys() {
    for seed in 0..20u64 {
        let ended = Seen::default();
        let own = ended.clone();
        let tried: Arc<Mutex<std::collections::HashSet<String>>> = Arc::default();
        let route = Route::topic("lines", move |line: Msg<Text>, cx: Cx| {
            let (ended, tried) = (own.clone(), tried.clone());
            async move {
                let number: u64 = line.split('-').nth(1).unwrap().parse().unwrap();
                // A stretch of them does the same, so that groups are long and short.
                let dice = (number / (1 + seed % 7)).wrapping_mul(6_364_136_223_846_793_005 + 2 * seed) >> 40;
                match dice % 5 {
                    0 => tokio::time::sleep(Duration::from_millis(1 + dice % 7)).await,
                    1 if tried.lock().insert(line.clone()) => return Err(Fault::failed("the first time")),
                    2 => cx.send("copies", line.key(), &Text(line.clone()))?,
                    3 => tokio::task::yield_now().await,
                    _ => {}
                }
                ended.lock().push(line.clone());
                Ok(())
            }
        });
        let route = route.concurrency(1 + (seed % 4) as usize * 5).retry(Retry::exponential(1, 4));
        let mut test = TestApp::new(App::new("a", "mem:").unwrap().add(route)).unwrap();
        for number in 0..600 {
            let key = (number * 7 + seed) % 9;
            test.send("lines", Some(&key.to_string()), &Text(format!("{key}-{number}")));
            if number % 97 == 0 {
                test.advance(Duration::from_millis(number % 13)).await;
            }
        }
        test.advance(SECOND * 30).await;
        let ended = ended.lock();
        assert_eq!((ended.len(), test.position("lines")), (600, 600), "seed {seed}");
        for key in 0..9 {
            let of_key: Vec<u64> =
                ended.iter().filter_map(|line| line.strip_prefix(&format!("{key}-"))?.parse().ok()).collect();
            assert!(of_key.is_sorted(), "seed {seed}, key {key}: {of_key:?}");
        }
    }
}

/// A route whose lines are stuck, fail for ever, pause, or are done, by their text.
fn line_of_kinds() -> Route {
    Route::topic("lines", |line: Msg<Text>, cx: Cx| async move {
        match line.as_str() {
            "stuck" => std::future::pending().await,
            "away" => Err(Fault::transient("away")),
            "pause" => cx.pause(SECOND * 60),
            _ => Ok(()),
        }
    })
}

fn age_of_frontier(test: &TestApp) -> u64 {
    let name = "mainstem_flow_frontier_age_seconds{topic=\"lines\",partition=\"0\"} ";
    let metrics = test.status().unwrap().metrics();
    metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_never_returns_is_noticed_beside_others_that_go_on() {
    let app = App::new("a", "mem:").unwrap().stuck_after(SECOND * 5);
    let mut test = TestApp::new(app.add(line_of_kinds())).unwrap();
    for line in ["one", "stuck"] {
        test.send("lines", Some(line), &Text(line.to_owned()));
    }
    for _ in 0..4 {
        test.advance(SECOND).await;
        test.send("lines", Some("other"), &Text("other".to_owned()));
    }
    test.settle().await;
    assert_eq!((test.status().unwrap().live(), age_of_frontier(&test)), (Ok(()), 4));
    for _ in 0..2 {
        test.advance(SECOND).await;
        test.send("lines", Some("other"), &Text("other".to_owned()));
    }
    test.settle().await;
    let stuck = test.status().unwrap().live().unwrap_err();
    assert!(stuck.contains("lines-0 makes no progress at offset 1 for 6 s"), "{stuck}");
    assert_eq!(age_of_frontier(&test), 6);
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_its_next_attempt_or_a_pause_is_not_stuck() {
    let app = || App::new("a", "mem:").unwrap().stuck_after(SECOND * 5);
    let waits = Retry::exponential(20_000, 20_000);
    let mut test = TestApp::new(app().add(line_of_kinds().retry(waits))).unwrap();
    test.send("lines", Some("a"), &Text("away".to_owned()));
    for second in 0..60 {
        // What succeeds ends the outage.
        test.send("lines", Some("other"), &Text("other".to_owned()));
        test.advance(SECOND).await;
        assert_eq!(test.status().unwrap().live(), Ok(()), "after {second} s");
    }
    assert!(age_of_frontier(&test) >= 59, "{}", age_of_frontier(&test));
    let mut test = TestApp::new(app().add(line_of_kinds().concurrency(1))).unwrap();
    for line in ["pause", "stuck"] {
        test.send("lines", None, &Text(line.to_owned()));
    }
    test.advance(SECOND * 59).await;
    assert_eq!(test.status().unwrap().live(), Ok(()));
    test.advance(SECOND * 5).await;
    assert_eq!(test.status().unwrap().live(), Ok(()), "it has just been started");
    test.advance(SECOND * 3).await;
    assert!(test.status().unwrap().live().is_err(), "its pause is over");
}

#[tokio::test(start_paused = true)]
async fn a_filter_that_panics_makes_a_letter_in_its_turn() {
    let seen = Seen::default();
    let own = seen.clone();
    let one = Route::topic("lines", move |line: Msg<Text>| {
        own.lock().push(line.clone());
        async {}
    });
    let batches = seen.clone();
    let many = Route::batches("many", 10, SECOND, move |lines: Batch<Text>| {
        batches.lock().extend(lines.messages().iter().map(|line| (**line).clone()));
        async {}
    });
    let filter = |record: &Received| match record.value() {
        Some(b"bad") => panic!("no filter for that"),
        value => value != Some(&b"no"[..]),
    };
    let app = App::new("a", "mem:").unwrap().add(one.filter(filter)).add(many.filter(filter));
    let mut test = TestApp::new(app).unwrap();
    for topic in ["lines", "many"] {
        for line in ["1", "bad", "no", "2"] {
            test.send(topic, Some("k"), &Text(line.to_owned()));
        }
        test.advance(SECOND * 3).await;
        let letters = test.letters(topic);
        let text = |name| letter::text(&letters[0].headers, name);
        assert_eq!((letters.len(), text(letter::STAGE)), (1, Some("filter")), "{topic}");
        assert_eq!(text(letter::MESSAGE), Some("a filter panicked: no filter for that"));
        assert_eq!(test.position(topic), 4);
    }
    assert_eq!(*seen.lock(), ["1", "2", "1", "2"]);
    test.stop().await.unwrap();
}

/// Panics where nothing of a handler is polled: when its future is dropped.
struct PanicsAtItsEnd;

impl Drop for PanicsAtItsEnd {
    fn drop(&mut self) {
        panic!("at its end");
    }
}

#[tokio::test(start_paused = true)]
async fn an_application_ends_whose_partition_panics() {
    let route = Route::topic("lines", |line: Msg<Text>| async move {
        if *line == "bad" {
            let _guard = PanicsAtItsEnd;
            std::future::pending::<()>().await;
        }
    });
    let app = App::new("a", "mem:").unwrap().add(route.time_limit(SECOND));
    let mut test = TestApp::new(app).unwrap();
    for line in ["good", "bad"] {
        test.send("lines", Some(line), &Text(line.to_owned()));
    }
    test.advance(SECOND * 2).await;
    assert_eq!(test.position("lines"), 1, "what was finished is committed");
    let ended = test.stop().await.unwrap_err();
    assert_eq!(ended.to_string(), "the task of lines-0 panicked: at its end");
}

#[tokio::test(start_paused = true)]
async fn a_handler_has_its_time_when_its_partition_is_revoked_and_is_dropped_then() {
    let seen = Seen::default();
    let own = seen.clone();
    let route = Route::topic("lines", move |line: Msg<Text>, cx: Cx| {
        let seen = own.clone();
        async move {
            let _dropped = Noted(seen.clone(), format!("{} is over", *line));
            seen.lock().push(format!("{} begins", *line));
            if *line == "heeds" {
                while !cx.revoked() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                seen.lock().push("heeds was revoked".to_owned());
                return Ok::<(), Fault>(());
            }
            std::future::pending().await
        }
    });
    let app = App::new("a", "mem:").unwrap().revoke_grace(SECOND * 10).stop_within(SECOND * 5);
    let mut test = TestApp::new(app.add(route)).unwrap();
    for line in ["heeds", "never"] {
        test.send("lines", Some(line), &Text(line.to_owned()));
    }
    test.advance(SECOND).await;
    assert_eq!(*seen.lock(), ["heeds begins", "never begins"]);
    test.rebalance().await;
    test.advance(SECOND * 9).await;
    assert_eq!(seen.lock()[2..], ["heeds was revoked", "heeds is over"], "the other one has its time");
    test.advance(SECOND * 2).await;
    assert_eq!(test.position("lines"), 1, "what has ended is committed");
    assert_eq!(
        seen.lock()[4..],
        ["never is over", "never begins"],
        "it is dropped, and runs again after that"
    );
    let began = tokio::time::Instant::now();
    test.stop().await.unwrap();
    assert_eq!(seen.lock()[6..], ["never is over"]);
    assert!((SECOND * 5..SECOND * 6).contains(&began.elapsed()), "{:?}", began.elapsed());
}

/// Says when it is dropped.
struct Noted(Seen, String);

impl Drop for Noted {
    fn drop(&mut self) {
        self.0.lock().push(self.1.clone());
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_being_written_when_a_partition_is_revoked_comes_before_all_that_follows() {
    let seen = Seen::default();
    let own = seen.clone();
    let route = Route::topic("lines", move |line: Msg<Text>, cx: Cx| {
        own.lock().push(line.clone());
        async move { cx.send("copies", None, &Text(line.clone())) }
    });
    let app = App::new("a", "mem:").unwrap().revoke_grace(SECOND).stop_within(SECOND * 2);
    let mut test = TestApp::new(app.add(route)).unwrap();
    test.hold_writes(true);
    test.send("lines", None, &Text("one".to_owned()));
    test.advance(SECOND).await;
    test.rebalance().await;
    test.advance(SECOND * 20).await;
    assert_eq!(*seen.lock(), ["one"], "no other gets the partition before");
    test.hold_writes(false);
    test.advance(SECOND).await;
    assert_eq!((test.sent("copies").len(), test.position("lines")), (1, 1));
    assert_eq!(*seen.lock(), ["one"], "it is done, and does not run again");
    // A stop waits no longer than it may.
    test.hold_writes(true);
    test.send("lines", None, &Text("two".to_owned()));
    test.advance(SECOND).await;
    test.rebalance().await;
    let began = tokio::time::Instant::now();
    test.stop().await.unwrap();
    assert!(began.elapsed() < SECOND * 4, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_service_of_the_examples_makes_invoices() {
    let mut test = TestApp::new(service::app("mem:").unwrap()).unwrap();
    for (currency, cents) in [("USD", 21), ("EUR", 5), ("USD", u64::MAX)] {
        let order = service::Order { currency: currency.to_owned(), cents };
        test.send("orders", Some(currency), &Json(order));
    }
    test.send("audit", None, &Text("a line".to_owned()));
    test.advance(SECOND * 2).await;
    let invoices: Vec<_> = test.sent("invoices").into_iter().map(|one| one.value.unwrap()).collect();
    assert_eq!(invoices, ["{\"total\":42}", "{\"total\":5}"]);
    assert_eq!((test.letters("orders").len(), test.position("orders"), test.position("audit")), (1, 3, 1));
}
