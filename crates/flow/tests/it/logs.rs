//! Log lines about errors, and in the spans of messages.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::logs::Logs;
use crate::support::{World, eventually};
use mainstem_client::{ClientConfig, CommittedOffset, NewTopic, ProducerConfig};
use mainstem_flow::{App, Fault, Msg, Route, Text};

#[tokio::test]
async fn a_handler_that_blocks_its_thread_is_named() {
    let logs = Logs::capture();
    let world = World::start();
    world.create("lines", 1).await;
    let route = Route::topic("lines", |line: Msg<Text>| {
        if *line == "slow" {
            std::thread::sleep(Duration::from_millis(1_100));
        }
        async {}
    });
    let running = world.app("a").add(route).start().unwrap();
    for line in ["quick", "slow", "quick"] {
        world.write("lines", None, line).await;
    }
    let warned = "a handler of lines has blocked its thread for ";
    eventually("it is named", || !logs.lines(warned).is_empty()).await;
    running.stop().await.unwrap();
    let lines = logs.lines(warned);
    // A busy machine can hold another one up for as long.
    assert!(lines.iter().all(|line| line.contains(" ms in partition lines-0; let it await")), "{lines:?}");
}

#[tokio::test]
async fn metadata_that_are_no_ours_are_named() {
    let logs = Logs::capture();
    let world = World::start();
    world.create("lines", 1).await;
    let foreign = CommittedOffset { metadata: "host-7".into(), ..CommittedOffset::from(0) };
    world.commit("a", "lines", BTreeMap::from([(world.t("lines", 0), foreign)])).await;
    let running = world.app("a").add(Route::topic("lines", |_: Msg<Text>| async {})).start().unwrap();
    let warned = "lines-0: the metadata of the committed offset 0 is ignored, ";
    eventually("they are named", || !logs.lines(warned).is_empty()).await;
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_letter_that_is_too_large_names_the_setting() {
    let logs = Logs::capture();
    let world = World::start();
    world.create("lines", 1).await;
    let small = NewTopic::new("dlq.a.lines").partitions(1).config("max.message.bytes", "100");
    world.admin().create_topic(&small).await.unwrap();
    let route = Route::topic("lines", |_: Msg<Text>| async { Err::<(), _>(Fault::poison("too long")) });
    let app = world.app("a").stop_within(Duration::from_millis(10));
    let running = app.add(route).start().unwrap();
    world.write("lines", None, &"x".repeat(2_000)).await;
    let logged = "the dead letter of lines-0 at offset 0 cannot be written to dlq.a.lines: ";
    eventually("it is named", || !logs.lines(logged).is_empty()).await;
    running.stop().await.unwrap();
    let line = &logs.lines(logged)[0];
    assert!(line.contains("raise max.message.bytes of that topic above that of the source"), "{line}");
    assert!(line.contains("its position waits"), "{line}");
}

#[tokio::test]
async fn a_letter_without_its_value_says_where_the_message_is() {
    let logs = Logs::capture();
    let world = World::start();
    world.create("lines", 1).await;
    let small = NewTopic::new("dlq.a.lines").partitions(1).config("max.message.bytes", "1000");
    world.admin().create_topic(&small).await.unwrap();
    let route = Route::topic("lines", |_: Msg<Text>| async { Err::<(), _>(Fault::poison("too long")) });
    let running = world.app("a").add(route).start().unwrap();
    world.write("lines", None, &"x".repeat(2_000)).await;
    let logged = "the dead letter of lines-0 at offset 0 is too large for dlq.a.lines, and was written with no value: ";
    eventually("it is named", || !logs.lines(logged).is_empty()).await;
    running.stop().await.unwrap();
    let line = &logs.lines(logged)[0];
    assert!(line.contains("MESSAGE_TOO_LARGE"), "{line}");
    assert!(line.contains("raise max.message.bytes of that topic above that of the source"), "{line}");
    assert!(line.contains("the message is where it was for as long as lines keeps it"), "{line}");
}

#[tokio::test]
async fn a_topic_that_is_missing_and_one_that_was_created_again_are_named() {
    let logs = Logs::capture();
    let world = World::with(&[("auto.create.topics.enable", "false")]);
    let route = Route::topic("late", |_: Msg<Text>| async {});
    let own = |client: ClientConfig| ClientConfig { metadata_max_age: Duration::from_millis(100), ..client };
    let app = world.app("a").client(own).commit_every(Duration::from_millis(20));
    let running = app.add(route).start().unwrap();
    let missing = "topic late does not exist; its route waits until it is created";
    eventually("it is missing", || !logs.lines(missing).is_empty()).await;
    world.create("late", 1).await;
    for line in ["1", "2"] {
        world.write("late", None, line).await;
    }
    let handled = |count: u64| {
        let line = format!("mainstem_flow_messages_total{{route=\"late\",outcome=\"handled\"}} {count}");
        running.status().metrics().contains(&line)
    };
    eventually("two are handled", || handled(2)).await;
    world.delete("late").await;
    world.create("late", 1).await;
    world.write("late", None, "new").await;
    eventually("the new one is handled", || handled(3)).await;
    running.stop().await.unwrap();
    let recreated = "late-0: the log continues at offset 0, before what was read";
    assert_eq!(logs.lines(recreated).len(), 1);
}

#[tokio::test]
async fn what_a_handler_logs_is_in_the_span_of_its_message() {
    let logs = Logs::capture();
    let world = World::start();
    world.create("orders", 1).await;
    let route = Route::topic("orders", |order: Msg<Text>| async move {
        tracing::info!("begins {}", *order);
        tokio::time::sleep(Duration::from_millis(1)).await;
        tracing::info!("continues with {}", *order);
    });
    let running = world.app("a").add(route).start().unwrap();
    world.write_record(world.record("orders", "tea").header("traceparent", "00-4711-1-01")).await;
    world.write_record(world.record("orders", "milk")).await;
    eventually("both continue", || logs.lines("continues with").len() == 2).await;
    running.stop().await.unwrap();
    for what in ["begins tea", "continues with tea"] {
        let span = "message{topic=\"orders\" partition=0 offset=0 traceparent=\"00-4711-1-01\"}";
        assert!(logs.lines(what)[0].contains(span), "{:?}", logs.lines(what));
    }
    let without = &logs.lines("begins milk")[0];
    assert!(without.contains("message{topic=\"orders\" partition=0 offset=1}"), "{without}");
}

#[tokio::test]
async fn a_letter_that_is_too_large_for_the_producer_names_its_setting() {
    let logs = Logs::capture();
    let world = World::start();
    world.create("lines", 1).await;
    let route = Route::topic("lines", |_: Msg<Text>| async { Err::<(), _>(Fault::poison("too long")) });
    let app = world.app("a").stop_within(Duration::from_millis(10));
    let app = app.producer(|config| ProducerConfig { request_bytes_max: 100, ..config });
    let running = app.add(route).start().unwrap();
    world.write("lines", None, &"x".repeat(2_000)).await;
    let logged = "the dead letter of lines-0 at offset 0 cannot be written to dlq.a.lines: ";
    eventually("it is named", || !logs.lines(logged).is_empty()).await;
    running.stop().await.unwrap();
    let line = &logs.lines(logged)[0];
    assert!(line.contains("is larger than request_bytes_max, 100 (App::producer sets it)"), "{line}");
    assert!(!line.contains("max.message.bytes"), "{line}");
}

#[tokio::test]
async fn partitions_that_are_added_are_named_as_keys_move() {
    let logs = Logs::capture();
    let world = World::start();
    world.create("lines", 1).await;
    let own = |client: ClientConfig| ClientConfig { metadata_max_age: Duration::from_millis(50), ..client };
    let app = world.app("a").client(own).add(Route::topic("lines", |_: Msg<Text>| async {}));
    let running = app.start().unwrap();
    eventually("it is known", || !logs.lines("topic lines has 1 partitions").is_empty()).await;
    world.admin().create_partitions("lines", 3).await.unwrap();
    let named = "topic lines has 3 partitions instead of 1: messages of a key may go to another one";
    eventually("it is named", || !logs.lines(named).is_empty()).await;
    running.stop().await.unwrap();
}

#[tokio::test]
async fn brokers_that_go_away_and_come_back_are_named() {
    let logs = Logs::capture();
    let mut world = World::start();
    world.create("lines", 1).await;
    let (unready, address) = (Duration::from_millis(500), world.address().to_owned());
    let http = crate::support::free_address();
    let app = world.app("a").unready_after(unready).http(http.to_string());
    let running = app.add(Route::topic("lines", |_: Msg<Text>| async {})).start().unwrap();
    eventually("it is ready", || running.status().ready().is_ok()).await;
    world.stop();
    let away = format!("no broker has answered at {address} for ");
    eventually("it is said", || !logs.lines(&away).is_empty()).await;
    let line = &logs.lines(&away)[0];
    assert!(line.contains("cannot connect to ") && line.contains("tried again until one answers"), "{line}");
    let why = running.status().ready().unwrap_err();
    assert!(why.starts_with("no broker has answered for ") && why.contains(&address), "{why}");
    assert_eq!(running.status().live(), Ok(()), "a restart would not help");
    let ready = crate::support::get(&http.to_string(), "/ready").await;
    assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("no broker has answered"), "{ready}");
    world.restart();
    let again = format!("brokers answer again at {address}, after ");
    eventually("it is said", || !logs.lines(&again).is_empty()).await;
    eventually("it is ready again", || running.status().ready().is_ok()).await;
    running.stop().await.unwrap();
}

#[tokio::test]
async fn an_application_that_starts_without_brokers_says_so() {
    let logs = Logs::capture();
    let nowhere = crate::support::free_address();
    let app = App::new("a", &format!("kafka://{nowhere}")).unwrap().unready_after(Duration::from_millis(500));
    let app = app.stop_within(Duration::from_millis(10));
    let running = app.add(Route::topic("lines", |_: Msg<Text>| async {})).start().unwrap();
    let away = format!("no broker has answered at {nowhere} for ");
    eventually("it is said", || !logs.lines(&away).is_empty()).await;
    let why = running.status().ready().unwrap_err();
    assert!(why.starts_with("no broker has answered for "), "{why}");
    running.stop().await.unwrap();
}
