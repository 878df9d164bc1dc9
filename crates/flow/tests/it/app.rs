//! Applications against a broker: routes, retries, dead letters, outputs and stops, as users see them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support;
use crate::support::kafka::Kafka;
use crate::support::{World, eventually};
use mainstem_client::{CommittedOffset, ConsumerConfig, Isolation};
use mainstem_flow::letter;
use mainstem_flow::{
    Avro, Batch, Cx, Event, Fault, Handler, Json, Msg, Proto, Raw, Retry, Route, Running, State, Text,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Values that handlers have seen.
type Seen<T> = Arc<Mutex<Vec<T>>>;

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Order {
    id: u64,
}

/// A route that does nothing but note the lines of a topic, and what it has noted.
fn noting(topic: &str) -> (Seen<String>, Route) {
    let seen: Seen<String> = Arc::default();
    let own = seen.clone();
    let route = Route::topic(topic, move |line: Msg<Text>| {
        own.lock().push(line.clone());
        async {}
    });
    (seen, route)
}

/// Writes three lines to a topic and waits until they are handled; then deletes the topic and creates it again.
async fn recreate_behind_three(world: &World, topic: &str, seen: &Seen<String>) {
    for line in ["1", "2", "3"] {
        world.write(topic, None, line).await;
    }
    eventually("three are handled", || seen.lock().len() == 3).await;
    world.delete(topic).await;
    world.create(topic, 1).await;
}

/// Short waits between attempts.
fn quick() -> Retry {
    Retry::exponential(5, 50)
}

#[tokio::test]
async fn a_route_handles_the_messages_of_its_topic_and_continues_there() {
    let world = World::start();
    world.create("orders", 2).await;
    let seen: Seen<u64> = Arc::default();
    let app = || {
        let seen = seen.clone();
        world.app("billing").add(Route::topic("orders", move |order: Msg<Json<Order>>| {
            seen.lock().push(order.id);
            async {}
        }))
    };
    for id in 0..10 {
        world.write("orders", Some(&id.to_string()), &format!("{{\"id\":{id}}}")).await;
    }
    let running = app().start().unwrap();
    eventually("ten orders are handled", || seen.lock().len() == 10).await;
    assert_eq!((running.status().state(), running.status().ready()), (State::Running, Ok(())));
    running.stop().await.unwrap();
    world.write("orders", None, "{\"id\":10}").await;
    let running = app().start().unwrap();
    eventually("the eleventh is handled", || seen.lock().contains(&10)).await;
    running.stop().await.unwrap();
    let mut all = seen.lock().clone();
    all.sort_unstable();
    assert_eq!(all, (0..=10).collect::<Vec<_>>(), "what was handled before a stop is not handled again");
}

#[tokio::test]
async fn what_cannot_be_decoded_becomes_a_letter_that_says_why() {
    let world = World::start();
    world.create("orders", 3).await;
    let seen: Seen<u64> = Arc::default();
    let own = seen.clone();
    let route = Route::topic("orders", move |order: Msg<Json<Order>>| {
        own.lock().push(order.id);
        async {}
    });
    let running = world.app("billing").add(route).start().unwrap();
    world.write_record(world.record("orders", "{").key("a").header("trace", "4711").partition(2)).await;
    world.write_record(world.record("orders", "{\"id\":7}").key("a").partition(2)).await;
    let letters = world.read("dlq.billing.orders", 1).await;
    let test = "what_cannot_be_decoded_becomes_a_letter_that_says_why";
    if let Some(words) = Kafka::java_reads(test, world.address(), "dlq.billing.orders") {
        let expected = [
            "{",
            "a",
            "trace=4711",
            "__dlq.errors.topic=orders",
            "__dlq.errors.partition=2",
            "__dlq.errors.offset=0",
            "__dlq.errors.group=billing",
            "__dlq.errors.delivery.count=1",
        ];
        assert_eq!(words[..8], expected, "Java's consumer reads the same: {words:?}");
        let starts = |at: usize, with: &str| assert!(words[at].starts_with(with), "{words:?}");
        starts(8, "__dlq.errors.message=the value is not the expected JSON: ");
        starts(9, "__mainstem.errors.stage=decode");
        starts(11, "__mainstem.errors.cause=the value is not the expected JSON: ");
    }
    let one = &letters[0];
    assert_eq!(
        (one.partition.partition, one.key.as_deref(), one.value.as_deref()),
        (2, Some(&b"a"[..]), Some(&b"{"[..]))
    );
    let text = |name| letter::text(&one.headers, name).unwrap_or("none").to_owned();
    let names = [
        "trace",
        letter::TOPIC,
        letter::PARTITION,
        letter::OFFSET,
        letter::GROUP,
        letter::DELIVERY_COUNT,
        letter::STAGE,
        letter::CLASS,
    ];
    assert_eq!(names.map(text), ["4711", "orders", "2", "0", "billing", "1", "decode", "poison"]);
    assert!(
        text(letter::MESSAGE).starts_with("the value is not the expected JSON: "),
        "{}",
        text(letter::MESSAGE)
    );
    eventually("the next of its key is handled", || *seen.lock() == [7]).await;
    running.stop().await.unwrap();
    assert_eq!(world.committed("billing").await[&world.t("orders", 2)], 2);
}

#[tokio::test]
async fn a_message_that_fails_is_tried_again_and_only_its_key_waits() {
    let world = World::start();
    world.create("orders", 1).await;
    let seen: Seen<(String, u32)> = Arc::default();
    let (own, attempts) = (seen.clone(), Arc::new(AtomicU32::new(0)));
    let route = Route::topic("orders", move |line: Msg<Text>| {
        let (seen, attempt) = (own.clone(), attempts.clone());
        async move {
            let attempt = if *line == "bad 0" { attempt.fetch_add(1, Ordering::Relaxed) } else { 9 };
            seen.lock().push((line.clone(), attempt));
            match attempt {
                0 => Err(Fault::failed("not yet")),
                1 => panic!("on purpose"),
                2 => std::future::pending().await,
                3 => Err(Fault::transient("away")),
                _ => Ok(()),
            }
        }
    });
    let route = route.retry(quick()).time_limit(Duration::from_millis(100));
    let running = world.app("billing").add(route).start().unwrap();
    for number in 0..5 {
        world.write("orders", Some("bad"), &format!("bad {number}")).await;
        world.write("orders", Some("good"), &format!("good {number}")).await;
    }
    eventually("all are handled", || seen.lock().len() == 14).await;
    running.stop().await.unwrap();
    let of = |key: &str| -> Vec<String> {
        seen.lock().iter().filter(|(line, _)| line.starts_with(key)).map(|(line, _)| line.clone()).collect()
    };
    let expected = ["bad 0", "bad 0", "bad 0", "bad 0", "bad 0", "bad 1", "bad 2", "bad 3", "bad 4"];
    assert_eq!(of("bad"), expected);
    assert_eq!(of("good"), ["good 0", "good 1", "good 2", "good 3", "good 4"]);
    assert!(!world.exists("dlq.billing.orders").await);
}

/// A route whose messages that begin with `bad` are poison, for a long reason.
fn refusing(topic: &str) -> (Seen<String>, Route) {
    let seen: Seen<String> = Arc::default();
    let own = seen.clone();
    let route = Route::topic(topic, move |line: Msg<Text>| {
        let seen = own.clone();
        async move {
            if line.starts_with("bad") {
                return Err(Fault::poison(format!("it is {}", "bad ".repeat(1_000))));
            }
            seen.lock().push(line.clone());
            Ok(())
        }
    });
    (seen, route)
}

#[tokio::test]
async fn the_letter_of_the_largest_message_fits_the_topic_that_is_created_for_it() {
    let world = World::start();
    world.create("orders", 1).await;
    let (seen, route) = refusing("orders");
    let running = world.app("billing").add(route).start().unwrap();
    let large = format!("bad{}", "x".repeat(1_048_097));
    world.write("orders", Some("a"), &large).await;
    world.write("orders", Some("a"), "good").await;
    eventually("the slice continues", || *seen.lock() == ["good"]).await;
    let letters = world.read("dlq.billing.orders", 1).await;
    assert_eq!(letters[0].value.as_ref().map(|value| value.len()), Some(1_048_100));
    assert_eq!(letter::text(&letters[0].headers, letter::LEFT_OUT), None);
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_letter_that_is_too_large_for_its_topic_is_written_with_less() {
    let world = World::start();
    world.create("orders", 1).await;
    let small = mainstem_client::NewTopic::new("dlq.billing.orders").partitions(1);
    world.admin().create_topic(&small.config("max.message.bytes", "4000")).await.unwrap();
    let (seen, route) = refusing("orders");
    let running = world.app("billing").add(route).start().unwrap();
    let large = |bytes: usize| world.record("orders", &format!("bad{}", "x".repeat(bytes))).key("a");
    world.write_record(large(1_000).header("trace", "4711")).await;
    world.write_record(large(5_000).header("trace", "4711")).await;
    world.write_record(large(1_000).header("trace", "4".repeat(5_000))).await;
    world.write_record(large(1_000).key("a".repeat(5_000))).await;
    world.write("orders", Some("a"), "good").await;
    let letters = world.read("dlq.billing.orders", 4).await;
    eventually("the slice continues", || *seen.lock() == ["good"]).await;
    let said: Vec<_> = letters
        .iter()
        .map(|one| {
            let text = |name| letter::text(&one.headers, name);
            assert_eq!((text(letter::TOPIC), text(letter::PARTITION)), (Some("orders"), Some("0")));
            let bytes = |of: &Option<bytes::Bytes>| of.as_ref().map(|bytes| bytes.len());
            (text(letter::OFFSET), bytes(&one.key), bytes(&one.value), text("trace"), text(letter::LEFT_OUT))
        })
        .collect();
    let expected = [
        (Some("0"), Some(1), Some(1_003), Some("4711"), None),
        (Some("1"), Some(1), None, Some("4711"), Some("value")),
        (Some("2"), Some(1), None, None, Some("value,headers")),
        (Some("3"), None, None, None, Some("value,key")),
    ];
    assert_eq!(said.iter().collect::<std::collections::BTreeSet<_>>(), expected.iter().collect());
    let cause = letter::text(&letters[0].headers, letter::CAUSE).unwrap();
    assert!(cause.starts_with("it is bad bad") && cause.ends_with("...") && cause.len() < 300, "{cause}");
    let metrics = running.status().metrics();
    assert!(metrics.contains("mainstem_flow_dead_letters_cut_total{route=\"orders\"} 4"), "{metrics}");
    running.stop().await.unwrap();
}

/// Sends as many bytes as a message says.
struct Filling;

impl Handler<Msg<Text>> for Filling {
    async fn handle(&self, line: Msg<Text>, cx: &mut Cx) -> Result<(), Fault> {
        cx.send("copies", line.key(), &Text("x".repeat(line.parse().unwrap())))
    }
}

/// Outputs go with the trace of their message where they fit with it.
#[tokio::test]
async fn an_output_that_fits_without_the_trace_alone_is_written_without_it() {
    let world = World::start();
    world.create("orders", 1).await;
    let small = mainstem_client::NewTopic::new("copies").partitions(1);
    world.admin().create_topic(&small.config("max.message.bytes", "1100")).await.unwrap();
    let running = world.app("copier").add(Route::topic("orders", Filling).retry(quick())).start().unwrap();
    let trace = format!("00-{}-{}-01", "a".repeat(32), "b".repeat(16));
    for bytes in ["10", "1000"] {
        world.write_record(world.record("orders", bytes).key("a").header("traceparent", trace.clone())).await;
    }
    let copies = world.read("copies", 2).await;
    let traces: Vec<_> = copies.iter().map(|one| letter::text(&one.headers, "traceparent")).collect();
    assert_eq!(traces, [Some(&*trace), None]);
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_message_that_fails_alone_becomes_a_letter_after_its_attempts() {
    let world = World::start();
    world.create("orders", 1).await;
    let route = Route::topic("orders", |line: Msg<Text>| async move {
        match line.as_str() {
            "bad" => Err(Fault::failed("it is bad")),
            _ => Ok(()),
        }
    });
    // Ten others have to be handled between two attempts, so that it is known to fail alone.
    let retry = Retry::exponential(5, 500).attempts(3);
    let running = world.app("billing").add(route.retry(retry)).start().unwrap();
    world.write("orders", Some("bad"), "bad").await;
    let writing = async {
        for number in 0.. {
            world.write("orders", Some(&format!("good {number}")), "good").await;
        }
    };
    let letters = tokio::select! {
        letters = world.read("dlq.billing.orders", 1) => letters,
        () = writing => unreachable!("it has no end"),
    };
    let text = |name| letter::text(&letters[0].headers, name).unwrap_or("none").to_owned();
    assert_eq!([letter::MESSAGE, letter::CLASS, letter::STAGE].map(text), ["it is bad", "failed", "handle"]);
    assert!(text(letter::DELIVERY_COUNT).parse::<u32>().unwrap() >= 3);
    running.stop().await.unwrap();
}

struct Billing {
    attempts: AtomicU32,
}

impl Handler<Msg<Json<Order>>> for Billing {
    async fn handle(&self, order: Msg<Json<Order>>, cx: &mut Cx) -> Result<(), Fault> {
        cx.send("invoices", order.key(), &Json(Order { id: order.id + 100 }))?;
        match self.attempts.fetch_add(1, Ordering::Relaxed) {
            0 => Err(Fault::failed("after it has sent")),
            _ => Ok(()),
        }
    }
}

#[tokio::test]
async fn what_a_handler_sends_leaves_only_with_its_ok() {
    let world = World::start();
    world.create("orders", 1).await;
    world.create("invoices", 1).await;
    let route = Route::topic("orders", Billing { attempts: AtomicU32::new(0) }).retry(quick());
    let running = world.app("billing").add(route).start().unwrap();
    world.write("orders", Some("a"), "{\"id\":1}").await;
    world.write("orders", Some("a"), "{\"id\":2}").await;
    let invoices = world.read("invoices", 2).await;
    running.stop().await.unwrap();
    let values: Vec<_> = invoices.iter().map(|one| one.value.as_deref().unwrap().to_vec()).collect();
    assert_eq!(values, [b"{\"id\":101}".to_vec(), b"{\"id\":102}".to_vec()]);
    assert_eq!(world.read("invoices", 2).await.len(), 2, "the attempt that failed sent nothing");
    assert_eq!(world.committed("billing").await[&world.t("orders", 0)], 2);
}

#[derive(Debug, Event, PartialEq, Serialize, Deserialize)]
enum OrderEvent {
    Placed(Order),
    #[event("order.cancelled")]
    Cancelled(Order),
    Audited,
}

#[tokio::test]
async fn an_enum_of_events_goes_by_the_header_type_and_back() {
    let world = World::start();
    world.create("events", 1).await;
    world.create("copies", 1).await;
    let copy =
        Route::topic(
            "events",
            |event: Msg<OrderEvent>, cx: Cx| async move { cx.send("copies", None, &*event) },
        );
    let running = world.app("copier").add(copy).start().unwrap();
    for (event_type, value) in
        [("Placed", "{\"id\":1}"), ("order.cancelled", "{\"id\":2}"), ("Audited", "null")]
    {
        world.write_record(world.record("events", value).header("type", event_type)).await;
    }
    world.write_record(world.record("events", "{}").header("type", "Shipped")).await;
    world.write("events", None, "{}").await;
    let copies = world.read("copies", 3).await;
    let types: Vec<_> =
        copies.iter().map(|one| letter::text(&one.headers, "type").unwrap().to_owned()).collect();
    assert_eq!(types, ["Placed", "order.cancelled", "Audited"]);
    let letters = world.read("dlq.copier.events", 2).await;
    running.stop().await.unwrap();
    let mut causes: Vec<_> =
        letters.iter().map(|one| letter::text(&one.headers, letter::MESSAGE).unwrap().to_owned()).collect();
    causes.sort();
    assert_eq!(
        causes,
        [
            "events of type \"Shipped\" are not known; known are Placed, order.cancelled, Audited",
            "the record has no header `type`; known are Placed, order.cancelled, Audited"
        ]
    );
}

#[derive(Clone, PartialEq, prost::Message)]
struct Moved {
    #[prost(string, tag = "1")]
    sku: String,
    #[prost(int32, tag = "2")]
    n: i32,
}

#[derive(Debug, Serialize, Deserialize, apache_avro::AvroSchema)]
struct Counted {
    sku: String,
    n: i32,
}

#[tokio::test]
async fn messages_of_proto_and_avro_are_handled_and_sent() {
    let world = World::start();
    for topic in ["moves", "counts", "copies"] {
        world.create(topic, 1).await;
    }
    let moves = Route::topic("moves", |moved: Msg<Proto<Moved>>, cx: Cx| async move {
        cx.send("counts", moved.key(), &Avro(Counted { sku: moved.sku.clone(), n: moved.n * 2 }))
    });
    let counts = Route::topic("counts", |counted: Msg<Avro<Counted>>, cx: Cx| async move {
        cx.send("copies", counted.key(), &Proto(Moved { sku: counted.sku.clone(), n: counted.n + 1 }))
    });
    let running = world.app("stock").add(moves).add(counts).start().unwrap();
    let moved = Moved { sku: "tea".to_owned(), n: 3 };
    let record = mainstem_client::Record::new("moves", prost::Message::encode_to_vec(&moved));
    world.write_record(record.key("k")).await;
    world.write("moves", None, "no such message").await;
    let copies = world.read("copies", 1).await;
    let copy = <Moved as prost::Message>::decode(copies[0].value.as_deref().unwrap()).unwrap();
    assert_eq!((copy, copies[0].key.as_deref()), (Moved { sku: "tea".to_owned(), n: 7 }, Some(&b"k"[..])));
    let letters = world.read("dlq.stock.moves", 1).await;
    let why = letter::text(&letters[0].headers, letter::MESSAGE).unwrap();
    assert!(why.starts_with("the value is not such a message: "), "{why}");
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_tombstone_is_taken_by_an_option_and_set_aside_elsewhere() {
    let world = World::start();
    world.create("some", 1).await;
    world.create("all", 1).await;
    let seen: Seen<Option<String>> = Arc::default();
    let own = seen.clone();
    let all = Route::topic("all", move |line: Msg<Option<Text>>| {
        own.lock().push(line.as_ref().map(|text| text.0.clone()));
        async {}
    });
    let some = Route::topic("some", |_: Msg<Text>| async {});
    let running = world.app("a").add(all).add(some).start().unwrap();
    world.write_record(mainstem_client::Record::tombstone("some", "k")).await;
    world.write_record(mainstem_client::Record::tombstone("all", "k")).await;
    world.write("all", Some("k"), "x").await;
    eventually("both are handled", || *seen.lock() == [None, Some("x".to_owned())]).await;
    let letters = world.read("dlq.a.some", 1).await;
    running.stop().await.unwrap();
    let why = letter::text(&letters[0].headers, letter::MESSAGE).unwrap();
    assert!(why.contains("tombstone") && why.contains("take Option<Text>"), "{why}");
    assert_eq!(letters[0].value, None);
}

#[tokio::test]
async fn a_batch_that_fails_runs_again_one_by_one_but_for_what_is_marked() {
    let world = World::start();
    world.create("lines", 1).await;
    let seen: Seen<Vec<String>> = Arc::default();
    let own = seen.clone();
    let route = Route::batches("lines", 4, Duration::from_secs(600), move |lines: Batch<Text>| {
        let seen = own.clone();
        async move {
            let all: Vec<String> = lines.messages().iter().map(|line| (**line).clone()).collect();
            seen.lock().push(all.clone());
            if all.len() > 1 {
                lines.mark(1);
                return Err(Fault::failed("together they fail"));
            }
            Ok(())
        }
    });
    let running = world.app("audit").add(route.retry(quick())).start().unwrap();
    for line in ["a", "b", "c", "d"] {
        world.write("lines", None, line).await;
    }
    eventually("three run alone", || seen.lock().len() == 4).await;
    running.stop().await.unwrap();
    let seen = seen.lock().clone();
    assert_eq!(seen, [vec!["a", "b", "c", "d"], vec!["a"], vec!["c"], vec!["d"]]);
    assert_eq!(world.committed("audit").await[&world.t("lines", 0)], 4);
}

#[tokio::test]
async fn a_pattern_handles_topics_that_match_and_no_letters() {
    for protocol in support::protocols() {
        // Brokers look at patterns again after 10 s at the earliest.
        let world = World::with(&[("group.consumer.regex.refresh.interval.ms", "10000")]);
        world.create("eu.orders", 1).await;
        let seen: Seen<String> = Arc::default();
        let own = seen.clone();
        let route = Route::pattern(".*orders", move |line: Msg<Text>| {
            own.lock().push(line.partition().topic.to_string());
            async move { if *line == "bad" { Err(Fault::poison("bad")) } else { Ok(()) } }
        });
        let app = world.app("all").protocol(protocol.clone()).client(|client| {
            mainstem_client::ClientConfig { metadata_max_age: Duration::from_millis(100), ..client }
        });
        let running = app.add(route).start().unwrap();
        world.write("eu.orders", None, "bad").await;
        assert_eq!(world.read("dlq.all.eu.orders", 1).await.len(), 1);
        world.create("us.orders", 1).await;
        world.write("us.orders", None, "good").await;
        let letters = world.t("dlq.all.eu.orders", 0);
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        loop {
            let group = world.admin().describe_group("all").await.unwrap();
            let mut members = group.into_iter().flat_map(|group| group.members);
            // The group takes the letters for a topic as any.
            if members.any(|member| member.assignment.contains(&letters)) {
                break;
            }
            assert!(std::time::Instant::now() < deadline, "{protocol:?}: the letters match the pattern");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        eventually("one that came later is handled", || seen.lock().contains(&"us.orders".to_owned())).await;
        world.write("eu.orders", None, "bad").await;
        assert_eq!(world.read("dlq.all.eu.orders", 2).await.len(), 2);
        world.write("eu.orders", None, "good").await;
        eventually("all are handled", || seen.lock().len() >= 4).await;
        running.stop().await.unwrap();
        let mut topics = seen.lock().clone();
        topics.sort();
        assert_eq!(topics, ["eu.orders", "eu.orders", "eu.orders", "us.orders"], "{protocol:?}");
        assert!(!world.committed("all").await.contains_key(&letters));
    }
}

#[tokio::test]
async fn finished_messages_behind_a_failing_one_survive_a_stop() {
    let world = World::start();
    world.create("orders", 1).await;
    let seen: Seen<String> = Arc::default();
    let app = |waits: bool| {
        let seen = seen.clone();
        let route = Route::topic("orders", move |line: Msg<Text>| {
            let is_bad = waits && *line == "bad";
            if !is_bad {
                seen.lock().push(line.clone());
            }
            async move { if is_bad { Err(Fault::transient("away")) } else { Ok(()) } }
        });
        world.app("billing").add(route.retry(quick()))
    };
    let running = app(true).start().unwrap();
    for (key, line) in [("a", "bad"), ("b", "1"), ("c", "2"), ("d", "3")] {
        world.write("orders", Some(key), line).await;
    }
    eventually("the others are handled", || seen.lock().len() == 3).await;
    running.stop().await.unwrap();
    assert_eq!(world.committed("billing").await[&world.t("orders", 0)], 0);
    let running = app(false).start().unwrap();
    eventually("the bad one is handled", || seen.lock().contains(&"bad".to_owned())).await;
    running.stop().await.unwrap();
    assert_eq!(seen.lock().len(), 4, "no other is handled again: {:?}", seen.lock());
    assert_eq!(world.committed("billing").await[&world.t("orders", 0)], 4);
}

#[tokio::test]
async fn metadata_of_something_else_are_ignored() {
    let world = World::start();
    world.create("orders", 1).await;
    for line in ["1", "2", "3"] {
        world.write("orders", None, line).await;
    }
    for metadata in ["host-7", "mainstem-flow/1 ????"] {
        let group = format!("g-{}", metadata.len());
        let committed = CommittedOffset { metadata: metadata.into(), ..CommittedOffset::from(1) };
        world.commit(&group, "orders", BTreeMap::from([(world.t("orders", 0), committed)])).await;
        let (seen, route) = noting("orders");
        let running = world.app(&group).add(route).start().unwrap();
        eventually("two are handled", || seen.lock().len() == 2).await;
        running.stop().await.unwrap();
        assert_eq!(*seen.lock(), ["2", "3"]);
    }
}

#[tokio::test]
async fn filters_leave_out_what_they_should() {
    let world = World::start();
    world.create("lines", 1).await;
    let (seen, route) = noting("lines");
    let route = route.expire_after(Duration::from_secs(3_600)).filter(|record| record.key() != Some(b"no"));
    let running = world.app("a").add(route).start().unwrap();
    world.write_record(world.record("lines", "old").timestamp_ms(1_000)).await;
    world.write("lines", Some("no"), "no").await;
    world.write("lines", Some("yes"), "yes").await;
    eventually("one is handled", || !seen.lock().is_empty()).await;
    let metrics = running.status().metrics();
    running.stop().await.unwrap();
    assert_eq!(*seen.lock(), ["yes"]);
    assert!(
        metrics.contains("mainstem_flow_messages_total{route=\"lines\",outcome=\"filtered\"} 2"),
        "{metrics}"
    );
    assert_eq!(world.committed("a").await[&world.t("lines", 0)], 3);
}

#[tokio::test]
async fn a_handler_goes_back_and_pauses() {
    let world = World::start();
    world.create("lines", 1).await;
    let seen: Seen<String> = Arc::default();
    let (own, rounds) = (seen.clone(), Arc::new(AtomicU32::new(0)));
    let route = Route::topic("lines", move |line: Msg<Text>, cx: Cx| {
        let (seen, rounds) = (own.clone(), rounds.clone());
        async move {
            seen.lock().push(line.clone());
            if *line == "3" && rounds.fetch_add(1, Ordering::Relaxed) == 0 {
                cx.pause(Duration::from_millis(50))?;
                cx.seek(1)?;
            }
            Ok::<_, Fault>(())
        }
    });
    let running = world.app("a").add(route.concurrency(1)).start().unwrap();
    for line in ["1", "2", "3"] {
        world.write("lines", None, line).await;
    }
    eventually("two come again", || seen.lock().len() == 5).await;
    running.stop().await.unwrap();
    assert_eq!(*seen.lock(), ["1", "2", "3", "2", "3"]);
    assert_eq!(world.committed("a").await[&world.t("lines", 0)], 3);
}

#[tokio::test]
async fn a_handler_ends_the_application_and_its_message_stays() {
    let world = World::start();
    world.create("lines", 1).await;
    let route = Route::topic("lines", |line: Msg<Text>| async move {
        if *line == "stop" { Err(Fault::stop("no licence")) } else { Ok(()) }
    });
    let running = world.app("a").add(route).start().unwrap();
    world.write("lines", Some("k"), "go").await;
    world.write("lines", Some("k"), "stop").await;
    eventually("it has stopped", || running.status().state() == State::Stopped).await;
    assert_eq!(running.status().ready(), Err("the application has stopped".to_owned()));
    let ended = tokio::time::timeout(Duration::from_secs(60), running.wait()).await.unwrap().unwrap_err();
    assert_eq!(ended.to_string(), "lines-0 at offset 1: the handler stops the application: no licence");
    assert_eq!(world.committed("a").await[&world.t("lines", 0)], 1);
}

#[tokio::test]
async fn two_processes_share_partitions_and_repeat_nothing() {
    for protocol in support::protocols() {
        let world = World::start();
        world.create("orders", 4).await;
        let seen: Seen<String> = Arc::default();
        let app = || {
            let seen = seen.clone();
            let route = Route::topic("orders", move |line: Msg<Text>| {
                let seen = seen.clone();
                async move {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    seen.lock().push(line.clone());
                }
            });
            world.app("billing").protocol(protocol.clone()).add(route)
        };
        let first = app().start().unwrap();
        for number in 0..100 {
            world.write("orders", Some(&number.to_string()), &number.to_string()).await;
        }
        let second = app().start().unwrap();
        eventually("the second has partitions", || second.status().metrics().contains("partition=")).await;
        for number in 100..200 {
            world.write("orders", Some(&number.to_string()), &number.to_string()).await;
        }
        first.stop().await.unwrap();
        eventually("all are handled", || seen.lock().len() >= 200).await;
        second.stop().await.unwrap();
        let mut all: Vec<u32> = seen.lock().iter().map(|line| line.parse().unwrap()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..200).collect::<Vec<_>>(), "{protocol:?}");
    }
}

#[tokio::test]
async fn a_broker_that_restarts_is_waited_for() {
    let mut world = World::start();
    world.create("orders", 2).await;
    let (seen, route) = noting("orders");
    let running = world.app("billing").add(route).start().unwrap();
    world.write("orders", None, "before").await;
    eventually("one is handled", || seen.lock().len() == 1).await;
    world.restart();
    world.write("orders", None, "after").await;
    eventually("the next is handled", || seen.lock().contains(&"after".to_owned())).await;
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_topic_that_is_missing_is_waited_for() {
    let world = World::with(&[("auto.create.topics.enable", "false")]);
    let seen: Seen<String> = Arc::default();
    let own = seen.clone();
    let route = Route::topic("late", move |line: Msg<Raw>| {
        own.lock().push(String::from_utf8_lossy(&line).into_owned());
        async {}
    });
    let app = world.app("a").client(|client| mainstem_client::ClientConfig {
        metadata_max_age: Duration::from_millis(200),
        ..client
    });
    let running = app.add(route).start().unwrap();
    // It takes part in its group, and there is nothing yet that it could be given.
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while world.admin().describe_group("a").await.unwrap().is_none_or(|group| group.members.is_empty()) {
        assert!(std::time::Instant::now() < deadline, "it does not join its group");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    world.create("late", 1).await;
    world.write("late", None, "x").await;
    eventually("it is handled", || *seen.lock() == ["x"]).await;
    running.stop().await.unwrap();
}

#[tokio::test]
async fn the_address_says_how_it_is() {
    let world = World::start();
    world.create("orders", 1).await;
    let address = support::free_address();
    let route = Route::topic("orders", |_: Msg<Text>| async { std::future::pending::<()>().await });
    let app = world.app("a").http(&address).stuck_after(Duration::from_millis(50));
    let running = app.stop_within(Duration::from_millis(50)).add(route).start().unwrap();
    eventually("it is ready", || running.status().ready().is_ok()).await;
    assert!(support::get(&address, "/ready").await.starts_with("HTTP/1.1 200 OK"));
    assert!(support::get(&address, "/live").await.starts_with("HTTP/1.1 200 OK"));
    world.write("orders", None, "x").await;
    eventually("it is stuck", || running.status().live().is_err()).await;
    let live = support::get(&address, "/live").await;
    let is_stuck = live.contains("orders-0 makes no progress at offset 0");
    assert!(live.starts_with("HTTP/1.1 503") && is_stuck, "{live}");
    let metrics = support::get(&address, "/metrics").await;
    assert!(metrics.contains("mainstem_flow_unfinished{topic=\"orders\",partition=\"0\"} 1"), "{metrics}");
    assert!(support::get(&address, "/").await.starts_with("HTTP/1.1 404"));
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_topic_that_is_created_again_is_read_from_its_beginning() {
    for protocol in support::protocols() {
        let world = World::start();
        world.create("orders", 1).await;
        let (seen, route) = noting("orders");
        let app = world.app("a").protocol(protocol.clone()).client(|client| mainstem_client::ClientConfig {
            metadata_max_age: Duration::from_millis(200),
            ..client
        });
        let running = app.add(route).start().unwrap();
        recreate_behind_three(&world, "orders", &seen).await;
        world.write("orders", None, "new").await;
        eventually("the new one is handled", || seen.lock().contains(&"new".to_owned())).await;
        running.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_topic_that_is_created_again_is_read_whole_though_it_is_longer_than_the_old_one() {
    for protocol in support::protocols() {
        let world = World::start();
        world.create("orders", 1).await;
        let (seen, route) = noting("orders");
        let app = world.app("a").protocol(protocol.clone()).client(|client| mainstem_client::ClientConfig {
            // It does not look before the new topic is longer than where it was in the old one.
            retry_backoff: Duration::from_secs(2),
            retry_backoff_max: Duration::from_secs(2),
            ..client
        });
        let running = app.add(route).start().unwrap();
        recreate_behind_three(&world, "orders", &seen).await;
        for number in 0..10 {
            world.write("orders", None, &format!("new {number}")).await;
        }
        eventually("all new ones are handled", || seen.lock().iter().any(|line| line == "new 9")).await;
        running.stop().await.unwrap();
        let seen = seen.lock();
        let new: Vec<_> = seen.iter().filter(|line| line.starts_with("new")).cloned().collect();
        assert_eq!(new, (0..10).map(|number| format!("new {number}")).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_topic_that_is_deleted_holds_up_no_position_of_others() {
    for protocol in support::protocols() {
        let world = World::start();
        world.create("gone", 1).await;
        world.create("orders", 1).await;
        let (seen, is_deleted): (Seen<String>, _) = (Arc::default(), Arc::new(tokio::sync::Notify::new()));
        let (of_gone, of_orders, deleted) = (seen.clone(), seen.clone(), is_deleted.clone());
        let gone = Route::topic("gone", move |line: Msg<Text>| {
            let (seen, deleted) = (of_gone.clone(), deleted.clone());
            async move {
                seen.lock().push(format!("begins {}", *line));
                deleted.notified().await;
                seen.lock().push(format!("ends {}", *line));
            }
        });
        let orders = Route::topic("orders", move |line: Msg<Text>| {
            of_orders.lock().push(line.clone());
            async {}
        });
        // A commit that waits for the topic would take this long.
        let own =
            |client| mainstem_client::ClientConfig { operation_timeout: Duration::from_secs(600), ..client };
        let app =
            world.app("a").protocol(protocol.clone()).commit_every(Duration::from_millis(20)).client(own);
        let running = app.add(gone).add(orders).start().unwrap();
        world.write("gone", None, "x").await;
        eventually("it is being handled", || seen.lock().contains(&"begins x".to_owned())).await;
        world.delete("gone").await;
        is_deleted.notify_one();
        eventually("it was handled", || seen.lock().contains(&"ends x".to_owned())).await;
        // Two commits, one after the other: what was finished of the deleted topic is in one of them at the latest.
        for (line, offset) in [("1", 1), ("2", 2)] {
            world.write("orders", None, line).await;
            world.until_committed("a", "orders", offset).await;
        }
        tokio::time::timeout(Duration::from_secs(120), running.stop()).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn an_application_may_get_committed_records_alone() {
    let world = World::start();
    world.create("orders", 1).await;
    let client = mainstem_client::ClientConfig::new(world.address()).unwrap();
    let producer = mainstem_client::ProducerConfig::new(client).transactional_id("orders");
    let producer = mainstem_client::Producer::new(producer).unwrap();
    producer.init_transactions().await.unwrap();
    for (line, is_committed) in [("taken back", false), ("kept", true)] {
        producer.begin_transaction().unwrap();
        let delivery = producer.send(world.record("orders", line)).await.unwrap();
        delivery.await.unwrap();
        match is_committed {
            true => producer.commit_transaction().await.unwrap(),
            false => producer.abort_transaction().await.unwrap(),
        }
    }
    for (isolation, expected) in
        [(Isolation::ReadUncommitted, &["taken back", "kept"][..]), (Isolation::ReadCommitted, &["kept"][..])]
    {
        let (seen, route) = noting("orders");
        let app = world.app(&format!("{isolation:?}"));
        let app = app.consumer(move |config| ConsumerConfig { isolation, ..config });
        let running = app.add(route).start().unwrap();
        eventually("what was committed is handled", || seen.lock().contains(&"kept".to_owned())).await;
        running.stop().await.unwrap();
        assert_eq!(*seen.lock(), expected);
    }
}

#[tokio::test]
async fn a_member_without_partitions_is_ready() {
    for protocol in support::protocols() {
        let world = World::start();
        world.create("orders", 1).await;
        let app = || {
            let app = world.app("a").protocol(protocol.clone()).commit_every(Duration::from_millis(20));
            app.add(Route::topic("orders", |_: Msg<Text>| async {})).start().unwrap()
        };
        let (first, second) = (app(), app());
        let is_ready = |one: &Running| one.status().ready().is_ok() && one.status().state() == State::Running;
        eventually("both are ready", || is_ready(&first) && is_ready(&second)).await;
        let has = |one: &Running| one.status().metrics().contains("partition=\"0\"");
        eventually("one of them has the partition", || has(&first) != has(&second)).await;
        first.stop().await.unwrap();
        second.stop().await.unwrap();
    }
}

#[tokio::test]
async fn an_address_says_why_it_is_not_ready() {
    let (address, broker) = (support::free_address(), support::free_address());
    let app = mainstem_flow::App::new("a", &format!("kafka://{broker}")).unwrap().http(&address);
    let route = Route::topic("orders", |_: Msg<Text>| async {});
    let running = app.add(route).start().unwrap();
    support::until_listening(&address).await;
    let ready = support::get(&address, "/ready").await;
    assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("the group is being joined"), "{ready}");
    assert_eq!(running.status().state(), State::Starting);
    let metrics = support::get(&address, "/metrics").await;
    assert!(metrics.contains("mainstem_flow_state{state=\"starting\"} 1"), "{metrics}");
}

#[tokio::test]
async fn an_application_that_stops_says_so_until_what_runs_has_ended() {
    let world = World::start();
    world.create("orders", 1).await;
    let (address, may_end) = (support::free_address(), Arc::new(tokio::sync::Notify::new()));
    let waits = may_end.clone();
    let route = Route::topic("orders", move |_: Msg<Text>| {
        let may_end = waits.clone();
        async move { may_end.notified().await }
    });
    let running = world.app("a").http(&address).add(route).start().unwrap();
    world.write("orders", None, "slow").await;
    let runs = "mainstem_flow_unfinished{topic=\"orders\",partition=\"0\"} 1";
    eventually("it runs", || running.status().metrics().contains(runs)).await;
    let stopping = tokio::spawn(running.stop());
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while !support::get(&address, "/ready").await.contains("the application stops") {
        assert!(std::time::Instant::now() < deadline && !stopping.is_finished());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let metrics = support::get(&address, "/metrics").await;
    assert!(metrics.contains("mainstem_flow_state{state=\"stopping\"} 1"), "{metrics}");
    may_end.notify_one();
    stopping.await.unwrap().unwrap();
    assert_eq!(world.committed("a").await[&world.t("orders", 0)], 1);
}
