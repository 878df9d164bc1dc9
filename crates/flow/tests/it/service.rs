//! Running a service: its topics, its figures, quiet hours, and changes that others make around it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support;
use crate::support::{World, eventually};
use mainstem_client::{ClientConfig, NewTopic, Record};
use mainstem_flow::{Cx, Error, Fault, Json, Msg, Reader, Retry, Route, State, Text};
use parking_lot::Mutex;

type Seen<T> = Arc<Mutex<Vec<T>>>;

/// A route that writes down what it handles.
fn noting(topic: &str) -> (Route, Seen<String>) {
    let seen: Seen<String> = Arc::default();
    let own = seen.clone();
    let route = Route::topic(topic, move |line: Msg<Text>| {
        own.lock().push(line.clone());
        async {}
    });
    (route, seen)
}

#[tokio::test]
async fn a_quiet_application_starts_nothing_and_keeps_its_partitions() {
    let world = World::start();
    world.create("lines", 1).await;
    let (route, seen) = noting("lines");
    let running = world.app("a").add(route).start().unwrap();
    world.write("lines", None, "1").await;
    eventually("one is handled", || seen.lock().len() == 1).await;
    running.quiet();
    eventually("it is quiet", || running.status().state() == State::Quiet).await;
    world.write("lines", None, "2").await;
    eventually("it has arrived", || {
        running.status().metrics().contains("mainstem_flow_unfinished{topic=\"lines\",partition=\"0\"} 1")
    })
    .await;
    assert_eq!((running.status().ready(), running.status().live()), (Ok(()), Ok(())));
    assert_eq!(*seen.lock(), ["1"], "nothing is started");
    running.resume();
    eventually("the next is handled", || seen.lock().len() == 2).await;
    assert_eq!(running.status().state(), State::Running);
    running.stop().await.unwrap();
}

#[tokio::test]
async fn figures_tell_the_lag_and_how_long_handlers_take() {
    let world = World::start();
    world.create("lines", 1).await;
    let is_released = Arc::new(AtomicBool::new(false));
    let may_end = is_released.clone();
    let route = Route::topic("lines", move |_: Msg<Text>| {
        let is_released = may_end.clone();
        async move {
            while !is_released.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    });
    let app = world.app("a").commit_every(Duration::from_millis(20));
    let running = app.add(route.concurrency(1)).start().unwrap();
    for line in ["1", "2", "3"] {
        world.write("lines", None, line).await;
    }
    let says = |what: &str| running.status().metrics().lines().any(|line| line == what);
    let lag = |lag: u32| says(&format!("mainstem_flow_lag{{topic=\"lines\",partition=\"0\"}} {lag}"));
    eventually("all three are behind", || lag(3)).await;
    is_released.store(true, Ordering::Relaxed);
    eventually("none is behind", || lag(0)).await;
    assert!(says("mainstem_flow_handler_seconds_count{route=\"lines\"} 3"), "{}", running.status().metrics());
    assert!(says("mainstem_flow_handler_seconds_bucket{route=\"lines\",le=\"+Inf\"} 3"));
    running.stop().await.unwrap();
}

#[tokio::test]
async fn what_a_message_sends_belongs_to_its_trace() {
    let world = World::start();
    world.create("orders", 1).await;
    world.create("invoices", 1).await;
    let route = Route::topic("orders", |order: Msg<Text>, cx: Cx| async move {
        match order.as_str() {
            "own" => cx.send_record(Record::new("invoices", "own").header("traceparent", "00-own")),
            _ => cx.send("invoices", None, &Text("kept".to_owned())),
        }
    });
    let running = world.app("a").add(route.concurrency(1)).start().unwrap();
    for order in ["kept", "own"] {
        world.write_record(world.record("orders", order).key("k").header("traceparent", "00-in")).await;
    }
    let invoices = world.read("invoices", 2).await;
    running.stop().await.unwrap();
    let parents = invoices.iter().map(|one| {
        let value = String::from_utf8(one.value.as_ref().unwrap().to_vec()).unwrap();
        (value, mainstem_flow::letter::text(&one.headers, "traceparent").unwrap().to_owned())
    });
    let parents: Vec<_> = parents.collect();
    assert_eq!(parents, [("kept", "00-in"), ("own", "00-own")].map(|(a, b)| (a.to_owned(), b.to_owned())));
}

#[tokio::test]
async fn declared_topics_are_compared_created_and_never_cut() {
    let world = World::start();
    world.create("moves", 2).await;
    let declared = |orders: i32, moves: i32| {
        let orders = NewTopic::new("orders").partitions(orders).config("retention.ms", "3600000");
        world.app("a").declare(orders).declare(NewTopic::new("moves").partitions(moves))
    };
    let says =
        |changes: &[mainstem_flow::TopicChange]| changes.iter().map(ToString::to_string).collect::<Vec<_>>();
    let plan = declared(3, 4).plan().await.unwrap();
    let moves = "~ moves: 2 -> 4 partitions (keys go to other partitions then)";
    assert_eq!(says(plan.changes()), ["+ orders with 3 partitions, retention.ms=3600000", moves]);
    assert_eq!(says(&plan.apply(false).await.unwrap()), [moves], "keys keep their partitions unasked");
    assert_eq!(says(declared(3, 4).plan().await.unwrap().changes()), [moves]);
    assert!(declared(3, 4).plan().await.unwrap().apply(true).await.unwrap().is_empty());
    let plan = declared(1, 4).plan().await.unwrap();
    assert_eq!(plan.changes().len(), 1);
    assert_eq!(plan.apply(true).await.unwrap().len(), 1, "partitions are not taken away");
    assert_eq!(world.admin().topic("orders").await.unwrap().partitions.len(), 3);
    let twice = declared(1, 1).declare(NewTopic::new("orders")).plan().await.unwrap_err();
    assert_eq!(twice.to_string(), "topic orders is declared twice");
}

#[tokio::test]
async fn a_reader_reads_what_is_there_and_says_what_is_not_readable() {
    let world = World::start();
    world.create("orders", 2).await;
    for (key, order) in [("a", "{\"id\":1}"), ("b", "no order"), ("c", "{\"id\":3}")] {
        world.write("orders", Some(key), order).await;
    }
    let mut reader = Reader::open(&format!("kafka://{}", world.address()), "orders").await.unwrap();
    world.write("orders", Some("d"), "{\"id\":4}").await;
    let (mut ids, mut wrong) = (Vec::new(), Vec::new());
    loop {
        match reader.next_known::<Json<BTreeMap<String, u64>>>().await {
            Ok(Some(order)) => ids.push(order["id"]),
            Ok(None) => break,
            Err(error @ Error::Undecodable { .. }) => wrong.push(error.to_string()),
            Err(error) => panic!("{error}"),
        }
    }
    ids.sort_unstable();
    assert!(ids.starts_with(&[1, 3]), "{ids:?}");
    assert_eq!(wrong.len(), 1);
    assert!(wrong[0].contains("cannot be decoded: the value is not the expected JSON"), "{wrong:?}");
    assert!(Reader::open("grpc://a:1", "orders").await.is_err());
}

#[tokio::test]
async fn what_is_too_large_for_the_letters_holds_its_partition_until_it_fits() {
    let world = World::start();
    world.create("lines", 1).await;
    let small = NewTopic::new("dlq.a.lines").partitions(1).config("max.message.bytes", "100");
    world.admin().create_topic(&small).await.unwrap();
    let route = Route::topic("lines", |line: Msg<Text>| async move {
        if line.len() > 10 { Err(Fault::poison("too long")) } else { Ok(()) }
    });
    let app = world.app("a").commit_every(Duration::from_millis(20)).stuck_after(Duration::from_millis(20));
    let running = app.add(route).start().unwrap();
    world.write("lines", Some("k"), &"x".repeat(4_000)).await;
    world.write("lines", Some("other"), "short").await;
    eventually("the other key is handled, and the long one is held", || {
        let metrics = running.status().metrics();
        metrics.contains("outcome=\"handled\"} 1")
            && metrics.contains("mainstem_flow_unfinished{topic=\"lines\",partition=\"0\"} 1")
    })
    .await;
    // What is finished behind it may be committed already.
    let position = world.committed("a").await.get(&world.t("lines", 0)).copied();
    assert_eq!(position.unwrap_or(0), 0, "the position waits for the letter");
    // It has to be held for longer than what makes it stuck.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(running.status().live(), Ok(()), "a restart would not help");
    let larger = mainstem_client::ConfigChange::Set("max.message.bytes".into(), "100000".into());
    let letters = mainstem_client::ConfigResource::Topic("dlq.a.lines".into());
    world.admin().alter_configs(&letters, &[larger], false).await.unwrap();
    assert_eq!(world.read("dlq.a.lines", 1).await[0].value.as_ref().unwrap().len(), 4_000);
    eventually("nothing is held", || {
        running.status().metrics().contains("mainstem_flow_unfinished{topic=\"lines\",partition=\"0\"} 0")
    })
    .await;
    running.stop().await.unwrap();
    assert_eq!(world.committed("a").await[&world.t("lines", 0)], 2);
}

#[tokio::test]
async fn a_handler_that_never_returns_has_failed_after_its_limit() {
    let world = World::start();
    world.create("lines", 1).await;
    let route = Route::topic("lines", |line: Msg<Text>| async move {
        if *line == "stuck" {
            std::future::pending::<()>().await;
        }
    });
    let route = route.time_limit(Duration::from_millis(20));
    let route = route.retry(Retry::exponential(1, 2).attempts(2).give_up_after_ms(1));
    let running = world.app("a").add(route).start().unwrap();
    for line in ["good", "stuck", "good"] {
        world.write("lines", Some(line), line).await;
    }
    let letters = world.read("dlq.a.lines", 1).await;
    let cause = mainstem_flow::letter::text(&letters[0].headers, mainstem_flow::letter::MESSAGE).unwrap();
    assert!(cause.contains("longer than its time limit of 20ms"), "{cause}");
    running.stop().await.unwrap();
    assert_eq!(world.committed("a").await[&world.t("lines", 0)], 3);
}

#[tokio::test]
async fn offsets_that_are_reset_while_it_runs_are_refused_or_overwritten() {
    let world = World::start();
    world.create("lines", 1).await;
    let (route, seen) = noting("lines");
    let app = world.app("a").commit_every(Duration::from_millis(20));
    let running = app.add(route).start().unwrap();
    for line in ["1", "2"] {
        world.write("lines", None, line).await;
    }
    eventually("two are handled", || seen.lock().len() == 2).await;
    let back = BTreeMap::from([(world.t("lines", 0), 0)]);
    let refused = world.admin().set_group_offsets("a", &back).await;
    assert!(refused.is_err(), "a group with members keeps its offsets");
    world.write("lines", None, "3").await;
    eventually("it continues", || seen.lock().len() == 3).await;
    running.stop().await.unwrap();
    assert_eq!(*seen.lock(), ["1", "2", "3"]);
    assert_eq!(world.committed("a").await[&world.t("lines", 0)], 3);
}

#[tokio::test]
async fn partitions_that_are_added_are_handled_as_well() {
    let world = World::start();
    world.create("lines", 1).await;
    let (route, seen) = noting("lines");
    let app = world
        .app("a")
        .client(|client| ClientConfig { metadata_max_age: Duration::from_millis(100), ..client });
    let running = app.add(route).start().unwrap();
    world.write_record(world.record("lines", "1").partition(0)).await;
    eventually("one is handled", || seen.lock().len() == 1).await;
    world.admin().create_partitions("lines", 3).await.unwrap();
    // A producer of its own does not wait for its metadata to grow old.
    let producer = mainstem_client::Producer::new(mainstem_client::ProducerConfig::new(
        ClientConfig::new(world.address()).unwrap(),
    ))
    .unwrap();
    producer.send(Record::new("lines", "2").partition(2)).await.unwrap().await.unwrap();
    eventually("what is in a new one is handled", || seen.lock().len() == 2).await;
    running.stop().await.unwrap();
}

/// A route whose handlers of "long" last until they may end, and note a revocation. It notes events as PROCESS: EVENT.
fn long_and_short(process: &'static str, events: &Seen<String>, may_end: &Arc<AtomicBool>) -> Route {
    let (events, may_end) = (events.clone(), may_end.clone());
    Route::topic("lines", move |line: Msg<Text>, cx: Cx| {
        let (events, may_end) = (events.clone(), may_end.clone());
        async move {
            let note = |what: &str| {
                events.lock().push(format!("{process}: {} {what} in {}", *line, line.partition().partition));
            };
            note("begins");
            let mut is_notified = false;
            while *line == "long" && !may_end.load(Ordering::Relaxed) {
                if cx.revoked() && !std::mem::replace(&mut is_notified, true) {
                    note("is notified");
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            note("ends");
        }
    })
}

#[tokio::test]
async fn a_partition_that_is_revoked_waits_for_its_handlers_and_the_others_continue() {
    for protocol in support::protocols() {
        let world = World::start();
        world.create("lines", 2).await;
        let (events, may_end): (Seen<String>, _) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let app = |process| {
            let app = world.app("a").protocol(protocol.clone()).revoke_grace(Duration::from_secs(600));
            app.add(long_and_short(process, &events, &may_end)).start().unwrap()
        };
        let write = async |line: &'static str, partition: i32| {
            world.write_record(world.record("lines", line).key(line).partition(partition)).await;
        };
        let has = |what: &str| events.lock().iter().any(|event| event.starts_with(what));
        let first = app("first");
        for partition in [0, 1] {
            write("long", partition).await;
        }
        eventually("both run", || events.lock().len() == 2).await;
        let second = app("second");
        eventually("one is notified", || has("first: long is notified")).await;
        let revoked = i32::from(has("first: long is notified in 1"));
        write("short", 1 - revoked).await;
        eventually("the other partition continues", || has("first: short ends")).await;
        assert!(!has("second") && !has("first: long ends"), "{:?}", events.lock());
        may_end.store(true, Ordering::Relaxed);
        let has_partition = || second.status().metrics().contains("partition=");
        eventually("the second one has its partition", has_partition).await;
        write("short", revoked).await;
        eventually("it continues there", || has("second: short ends")).await;
        let begun = events.lock().iter().filter(|event| event.contains("long begins")).count();
        assert_eq!(begun, 2, "what had its time does not run again: {:?}", events.lock());
        first.stop().await.unwrap();
        second.stop().await.unwrap();
    }
}

/// Says when it is dropped.
struct Noted(Seen<String>, String);

impl Drop for Noted {
    fn drop(&mut self) {
        self.0.lock().push(self.1.clone());
    }
}

#[tokio::test]
async fn a_handler_that_outlasts_its_time_is_dropped_before_another_process_begins() {
    for protocol in support::protocols() {
        let world = World::start();
        world.create("lines", 2).await;
        let events: Seen<String> = Arc::default();
        let app = |process: &'static str| {
            let events = events.clone();
            let route = Route::topic("lines", move |line: Msg<Text>| {
                let events = events.clone();
                async move {
                    let partition = line.partition().partition;
                    events.lock().push(format!("{process} begins {partition}"));
                    let _noted = Noted(events.clone(), format!("{process} is over in {partition}"));
                    std::future::pending::<()>().await;
                }
            });
            let app = world.app("a").protocol(protocol.clone()).revoke_grace(Duration::from_millis(50));
            app.stop_within(Duration::from_millis(50)).add(route).start().unwrap()
        };
        let first = app("first");
        for partition in [0, 1] {
            world.write_record(world.record("lines", "x").partition(partition)).await;
        }
        eventually("both run", || events.lock().len() == 2).await;
        let second = app("second");
        eventually("the second one has one of them", || events.lock().len() == 4).await;
        let order = events.lock().clone();
        let partition = order[3].strip_prefix("second begins ").unwrap();
        assert_eq!(order[2], format!("first is over in {partition}"), "{protocol:?}: {order:?}");
        first.stop().await.unwrap();
        second.stop().await.unwrap();
        assert!(world.committed("a").await.values().all(|offset| *offset == 0), "nothing was finished");
    }
}

#[tokio::test]
async fn a_letter_may_be_as_large_as_its_message() {
    let world = World::with(&[("message.max.bytes", "10000000")]);
    world.create("lines", 1).await;
    let route = Route::topic("lines", |_: Msg<Text>| async { Err::<(), _>(Fault::poison("no")) });
    let running = world.app("a").add(route).start().unwrap();
    let config = mainstem_client::ProducerConfig::new(ClientConfig::new(world.address()).unwrap());
    let config = mainstem_client::ProducerConfig { request_bytes_max: 8 << 20, ..config };
    let producer = mainstem_client::Producer::new(config).unwrap();
    producer.send(Record::new("lines", "x".repeat(4 << 20))).await.unwrap().await.unwrap();
    assert_eq!(world.read("dlq.a.lines", 1).await[0].value.as_ref().unwrap().len(), 4 << 20);
    running.stop().await.unwrap();
}

#[tokio::test]
async fn letters_whose_topic_is_deleted_get_another() {
    let world = World::with(&[("auto.create.topics.enable", "false")]);
    world.create("lines", 3).await;
    let route = Route::topic("lines", |_: Msg<Text>| async { Err::<(), _>(Fault::poison("no")) });
    let app = world.app("a").producer(|config| {
        // A write that cannot succeed fails soon.
        let (max_block, delivery_timeout) = (Duration::from_millis(300), Duration::from_millis(300));
        mainstem_client::ProducerConfig { max_block, delivery_timeout, ..config }
    });
    let running = app.add(route).start().unwrap();
    world.write("lines", None, "1").await;
    world.read("dlq.a.lines", 1).await;
    let unfinished = |metrics: &str| {
        let all = metrics.lines().filter(|line| line.starts_with("mainstem_flow_unfinished{"));
        all.filter_map(|line| line.split(' ').nth(1)?.parse::<u32>().ok()).sum::<u32>()
    };
    eventually("its message is finished", || unfinished(&running.status().metrics()) == 0).await;
    world.delete("dlq.a.lines").await;
    world.write("lines", None, "2").await;
    let letters = world.read("dlq.a.lines", 1).await;
    assert_eq!(letters[0].value.as_deref(), Some(&b"2"[..]));
    assert_eq!(world.admin().topic("dlq.a.lines").await.unwrap().partitions.len(), 3);
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_broker_that_keeps_little_beside_offsets_gets_offsets_alone() {
    let world = World::with(&[("offset.metadata.max.bytes", "10")]);
    world.create("lines", 1).await;
    let route = Route::topic("lines", |line: Msg<Text>| async move {
        if *line == "bad" { Err(Fault::transient("away")) } else { Ok(()) }
    });
    let app = world.app("a").commit_every(Duration::from_millis(20));
    let running = app.add(route).start().unwrap();
    for line in ["1", "bad", "2"] {
        world.write("lines", Some(line), line).await;
    }
    let handled = "mainstem_flow_messages_total{route=\"lines\",outcome=\"handled\"} 2";
    eventually("two are handled", || running.status().metrics().contains(handled)).await;
    running.stop().await.unwrap();
    assert_eq!(world.committed("a").await[&world.t("lines", 0)], 1);
}

#[tokio::test]
async fn figures_tell_retries_letters_and_rebalances() {
    let world = World::start();
    world.create("lines", 1).await;
    let is_away = Arc::new(AtomicBool::new(true));
    let away = is_away.clone();
    let route = Route::topic("lines", move |line: Msg<Text>| {
        let fault = match line.as_str() {
            "poison" => Some(Fault::poison("no")),
            "away" if away.swap(false, Ordering::Relaxed) => Some(Fault::transient("away")),
            _ => None,
        };
        async move { fault.map_or(Ok(()), Err) }
    });
    let running = world.app("a").add(route.retry(Retry::exponential(1, 2))).start().unwrap();
    for line in ["poison", "away", "good"] {
        world.write("lines", Some(line), line).await;
    }
    let says = |what: &str| running.status().metrics().lines().any(|line| line == what);
    let of_route = |name: &str, count: u32| says(&format!("mainstem_flow_{name}{{route=\"lines\"}} {count}"));
    eventually("one is set aside, and one tried again", || {
        of_route("dead_letters_total", 1)
            && of_route("retries_total", 1)
            && says("mainstem_flow_messages_total{route=\"lines\",outcome=\"handled\"} 2")
            && says("mainstem_flow_messages_total{route=\"lines\",outcome=\"failed\"} 2")
    })
    .await;
    assert!(says("mainstem_flow_rebalances_total 1"), "{}", running.status().metrics());
    assert!(says("mainstem_flow_state{state=\"running\"} 1"));
    running.stop().await.unwrap();
}
