//! A service's own command line, and its exit codes.

use crate::support::World;
use mainstem_client::NewTopic;
use mainstem_flow::{App, Msg, Route, Text, main_from};

/// Runs a command of a service that declares `orders` with so many partitions; returns its exit code.
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

/// Prints what a command of a service prints, run as a process of its own: this test, run again.
#[test]
fn service() {
    let (Ok(words), Ok(url)) = (std::env::var("FLOW_COMMAND"), std::env::var("FLOW_URL")) else { return };
    let words = ["service", "--url", &url].into_iter().chain(words.split(' ')).map(str::to_owned);
    let ended = main_from(words, |env| {
        let orders = Route::topic("orders", |_: Msg<Text>| async {}).concurrency(7);
        let others = Route::pattern("eu\\..*", |_: Msg<Text>| async {});
        let named = Route::topic("named", |_: Msg<Text>| async {}).dead_letters("away");
        let declared = NewTopic::new("missing").partitions(2);
        Ok(App::new("billing", &env.url)?.declare(declared).add(orders).add(others).add(named))
    });
    std::process::exit(i32::from(ended));
}

/// The lines that a command prints.
fn printed(world: &World, words: &str) -> Vec<String> {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "command::service", "--nocapture", "--test-threads=1", "--quiet"])
        .env("FLOW_COMMAND", words)
        .env("FLOW_URL", format!("kafka://{}", world.address()))
        .output()
        .unwrap();
    // What the harness of tests prints comes before.
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with("running "));
    lines.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_print_for_people_and_for_programs() {
    let world = World::start();
    world.create("orders", 2).await;
    for line in ["1", "2", "3"] {
        world.write_record(world.record("orders", line).partition(0)).await;
    }
    let committed = mainstem_client::CommittedOffset::from(1);
    let offsets = std::collections::BTreeMap::from([(world.t("orders", 0), committed)]);
    world.commit("billing", "orders", offsets).await;
    assert_eq!(
        printed(&world, "routes"),
        [
            "orders: 7 at a time, dead letters to dlq.billing.orders",
            "eu\\..*: 32 at a time, dead letters to dlq.billing.TOPIC",
            "named: 32 at a time, dead letters to away",
        ]
    );
    let json = |words: &str| -> Vec<serde_json::Value> {
        printed(&world, words).iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let routes = json("routes --json");
    let expected =
        serde_json::json!({"route": "orders", "concurrency": 7, "dead_letters": "dlq.billing.orders"});
    assert_eq!((routes.len(), &routes[0]), (3, &expected));
    assert_eq!(
        printed(&world, "lag"),
        ["orders-0: committed 1, end 3, lag 2", "orders-1: committed -, end 0, lag 0"]
    );
    let lag = json("lag --json");
    let expected = serde_json::json!({"topic": "orders", "partition": 0, "committed": 1, "end": 3, "lag": 2});
    assert_eq!(lag[0], expected);
    assert_eq!(lag[1]["committed"], serde_json::Value::Null);
    assert_eq!(printed(&world, "topics plan"), ["+ missing with 2 partitions"]);
    assert_eq!(json("topics plan --json"), [serde_json::json!(["+ missing with 2 partitions"])]);
    assert_eq!(json("topics apply --json"), [serde_json::json!(["done: + missing with 2 partitions"])]);
    assert_eq!(printed(&world, "topics plan"), ["the brokers have what is declared"]);
}
