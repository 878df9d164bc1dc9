//! A service's own command line, and what it ends with.

mod support;

use mainstem_client::NewTopic;
use mainstem_flow::{App, Msg, Route, Text, main_from};
use support::World;

/// Runs a command of a service that declares `orders` with so many partitions; returns what it ends with.
async fn ends_with(world: &World, partitions: i32, words: &str) -> u8 {
    let url = format!("kafka://{}", world.address());
    let words: Vec<_> =
        ["service", "--url", &url].into_iter().chain(words.split(' ')).map(str::to_owned).collect();
    let service = move || {
        main_from(words, |env| {
            let orders = NewTopic::new("orders").partitions(partitions).config("retention.ms", "3600000");
            let route = Route::topic("orders", |_: Msg<Text>| async {});
            Ok(App::new("billing", &env.url)?.declare(orders).add(route))
        })
    };
    // It makes its own runtime.
    tokio::task::spawn_blocking(service).await.expect("a command does not panic")
}

#[tokio::test]
async fn a_plan_ends_with_2_as_long_as_the_brokers_differ() {
    let world = World::start();
    assert_eq!(ends_with(&world, 2, "topics plan").await, 2, "the topic is missing");
    assert_eq!(ends_with(&world, 2, "topics plan --json").await, 2, "a plan changes nothing");
    assert_eq!(ends_with(&world, 2, "topics apply").await, 0);
    assert_eq!(ends_with(&world, 2, "topics plan").await, 0);
    assert_eq!(ends_with(&world, 4, "topics apply").await, 2, "partitions are not added unasked");
    assert_eq!(ends_with(&world, 4, "topics plan").await, 2);
    assert_eq!(ends_with(&world, 4, "topics apply --add-partitions").await, 0);
    assert_eq!(ends_with(&world, 4, "topics plan").await, 0);
}

#[tokio::test]
async fn what_fails_ends_with_1_and_looks_like_no_plan() {
    let world = World::start();
    assert_eq!(ends_with(&world, 1, "routes").await, 0);
    assert_eq!(ends_with(&world, 1, "topics --help").await, 0);
    assert_eq!(ends_with(&world, 1, "topics plam").await, 1, "there is no such command");
    assert_eq!(
        main_from(["service", "routes"], |_| App::new("", "kafka://127.0.0.1:1")),
        1,
        "it cannot be made"
    );
}
