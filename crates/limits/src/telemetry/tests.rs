//! Decisions of the telemetry, by example.

use std::collections::BTreeMap;

use mainstem_wire::{ErrorCode, Uuid};

use mainstem_config::client_match::check_match;

use super::*;

const ID: Uuid = Uuid::from_u128(0xabc);

fn java() -> ClientFacts<'static> {
    ClientFacts {
        client_id: "orders-1",
        software_name: "apache-kafka-java",
        software_version: "4.3.0",
        source_address: "10.0.0.1",
        source_port: 4711,
    }
}

fn values(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

fn subscribe(telemetry: &mut Telemetry, name: &str, pairs: &[(&str, &str)]) {
    telemetry.set_subscription(name, &values(pairs));
}

fn push(subscription_id: i32) -> Push {
    Push { id: ID, subscription_id, terminating: false, compression_type: 4, bytes: 10 }
}

#[test]
fn a_client_is_subscribed_to_what_matches_it() {
    let mut telemetry = Telemetry::new(100);
    let metrics = |telemetry: &mut Telemetry, at| {
        let subscribed = telemetry.get(ID, &java(), at).expect("it is due");
        (subscribed.metrics.join(" "), subscribed.interval_ms)
    };
    assert_eq!(metrics(&mut telemetry, 0), (String::new(), 300_000));
    subscribe(&mut telemetry, "a", &[("metrics", "b.,a."), ("interval.ms", "2000")]);
    assert_eq!(metrics(&mut telemetry, 1), ("a. b.".to_owned(), 2000), "a change is visible at once");
    subscribe(&mut telemetry, "b", &[("metrics", "c."), ("match", "client_id=orders, client_source_port=1")]);
    assert_eq!(metrics(&mut telemetry, 2), ("a. b.".to_owned(), 2000), "a pattern matches the whole value");
    let all = "client_software_name=apache.*,client_software_version=4\\..*,client_id=orders-[0-9]+,\
               client_source_address=10.0.0.1,client_source_port=4711,client_instance_id=.*";
    subscribe(&mut telemetry, "b", &[("metrics", "c."), ("match", all), ("interval.ms", "1000")]);
    assert_eq!(metrics(&mut telemetry, 3), ("a. b. c.".to_owned(), 1000));
    subscribe(&mut telemetry, "c", &[("metrics", "*")]);
    assert_eq!(metrics(&mut telemetry, 4), ("*".to_owned(), 1000));
    for name in ["a", "b", "c"] {
        subscribe(&mut telemetry, name, &[]);
    }
    assert_eq!(metrics(&mut telemetry, 5), (String::new(), 300_000));
}

#[test]
fn requests_come_in_their_turn() {
    let mut telemetry = Telemetry::new(100);
    subscribe(&mut telemetry, "a", &[("metrics", "*"), ("interval.ms", "1000")]);
    let throttled = Err(ErrorCode::THROTTLING_QUOTA_EXCEEDED);
    let id = telemetry.get(ID, &java(), 0).expect("the first").subscription_id;
    assert_eq!(telemetry.get(ID, &java(), 999), throttled.map(|()| unreachable!()));
    assert_eq!(telemetry.push(&push(id), &java(), 500), Ok(()), "the first push comes early");
    assert_eq!(telemetry.push(&push(id), &java(), 1499), throttled);
    assert_eq!(telemetry.push(&push(id), &java(), 1500), Ok(()));
    assert_eq!(telemetry.push(&push(id + 1), &java(), 2500), Err(ErrorCode::UNKNOWN_SUBSCRIPTION_ID));
    assert!(telemetry.get(ID, &java(), 2501).is_ok(), "it was sent to ask again");
    let strange = Push { compression_type: 9, ..push(id) };
    assert_eq!(telemetry.push(&strange, &java(), 3500), Err(ErrorCode::UNSUPPORTED_COMPRESSION_TYPE));
    let large = Push { bytes: 101, ..push(id) };
    assert_eq!(telemetry.push(&large, &java(), 4500), Err(ErrorCode::TELEMETRY_TOO_LARGE));
    let last = Push { terminating: true, ..push(id) };
    assert_eq!(telemetry.push(&last, &java(), 4501), Ok(()), "the last push comes early");
    assert_eq!(telemetry.push(&push(id), &java(), 9000), Err(ErrorCode::INVALID_REQUEST));
    subscribe(&mut telemetry, "a", &[("metrics", "*"), ("interval.ms", "2000")]);
    assert_eq!(telemetry.push(&push(id), &java(), 9001), Err(ErrorCode::UNKNOWN_SUBSCRIPTION_ID));
}

#[test]
fn instances_are_bounded_and_expire() {
    let mut telemetry = Telemetry::new(100);
    for number in 0..INSTANCES_MAX as u128 + 5 {
        let at = u64::try_from(number).expect("small") / 1000;
        telemetry.get(Uuid::from_u128(number + 1), &java(), at).expect("each is new");
    }
    assert_eq!(telemetry.len(), INSTANCES_MAX);
    telemetry.get(ID, &java(), 900_000 + 10_000).expect("it is new or due");
    assert_eq!(telemetry.len(), 1, "the others were silent for three intervals");
}

#[test]
fn match_patterns_are_checked() {
    for good in ["", "client_id=a.*", " client_id = a , client_source_port=1 "] {
        assert_eq!(check_match(good), Ok(()), "{good}");
    }
    for bad in ["client_id", "client_id=a=b", "color=red", "client_id=(", "client_id=(a{999}){999}"] {
        assert_eq!(check_match(bad), Err(format!("Illegal client matching pattern: {bad}")));
    }
}

fn point(name: &str, value: f64, temporality: Temporality) -> Point {
    Point { name: name.to_owned(), labels: vec![("l".to_owned(), "v".to_owned())], value, temporality }
}

#[test]
fn sums_add_up_and_gauges_replace() {
    let mut series = ClientSeries::default();
    for value in [1.0, 2.0] {
        let points = [
            point("delta", value, Temporality::Delta),
            point("cumulative", value, Temporality::Cumulative),
            point("gauge", value, Temporality::Gauge),
        ];
        series.push(pusher(ID, "c", "10.0.0.1"), 100, points.to_vec());
    }
    let shown: Vec<_> = series
        .by_metric()
        .into_iter()
        .map(|(name, samples)| (name, samples[0].value, samples[0].is_gauge))
        .collect();
    assert_eq!(shown, [("cumulative", 2.0, false), ("delta", 3.0, false), ("gauge", 2.0, true)]);
    series.expire(99);
    assert_eq!(series.len(), 3);
    series.expire(100);
    assert_eq!((series.len(), series.bytes_held()), (0, 0));
}

#[test]
fn values_are_bounded() {
    let mut series = ClientSeries::default();
    let many = |from: usize| {
        let names = from..from + POINTS_PER_CLIENT_MAX + 10;
        names.map(|number| point(&number.to_string(), 1.0, Temporality::Gauge)).collect::<Vec<_>>()
    };
    let of_address = |client: u128| format!("10.0.0.{}", client % 4);
    for client in 0..60u128 {
        series.push(pusher(Uuid::from_u128(client), "c", &of_address(client)), 100, many(0));
    }
    assert_eq!(series.len(), SERIES_MAX);
    assert_eq!(series.refused(), 60 * (POINTS_PER_CLIENT_MAX as u64 + 10) - SERIES_MAX as u64);
    series.expire(100);
    let long = Point { name: "n".repeat(1 << 20), ..point("", 1.0, Temporality::Gauge) };
    for client in 0..40u128 {
        let address = format!("10.0.0.{client}");
        series.push(pusher(Uuid::from_u128(client), "", &address), 100, vec![long.clone()]);
    }
    assert_eq!(series.len(), 15, "16 MiB hold fifteen of a MiB and a little");
}

#[test]
fn clients_of_one_address_keep_no_other_out() {
    let mut series = ClientSeries::default();
    let values = |count: usize| (0..count).map(|n| point(&n.to_string(), 1.0, Temporality::Gauge)).collect();
    for client in 0..20u128 {
        series.push(pusher(Uuid::from_u128(client), "c", "10.0.0.1"), 100, values(POINTS_PER_CLIENT_MAX));
    }
    assert_eq!(series.len(), SERIES_MAX / 4);
    series.push(pusher(Uuid::from_u128(99), "c", "10.0.0.2"), 200, values(10));
    assert_eq!(series.len(), SERIES_MAX / 4 + 10);
    series.expire(100);
    assert_eq!(series.len(), 10);
    // The id of a client is shown with each of its values.
    let long = "i".repeat(32 << 10);
    series.push(pusher(ID, &long, "10.0.0.3"), 200, values(POINTS_PER_CLIENT_MAX));
    assert!(
        series.bytes_held() < SERIES_BYTES_MAX / 4 + 10_000 && series.len() < 10 + 128,
        "{}",
        series.len()
    );
}

fn pusher<'a>(id: Uuid, client_id: &'a str, address: &'a str) -> Pusher<'a> {
    Pusher { id, client_id, address }
}
