//! The test kit: topics in memory, and time that passes when a test says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mainstem_flow::{App, Cx, Fault, Msg, Retry, Route, TestApp, Text, letter};
use parking_lot::Mutex;

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
async fn a_message_alone_is_given_up_after_its_time() {
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
    assert!(stuck.contains("lines-0 stands still at offset 1 for "), "{stuck}");
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
