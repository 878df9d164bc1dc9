//! `mainstem topic delete-records` and `mainstem topic offsets`.

use serde_json::{Value, json};

use crate::support::broker::Broker;

/// A broker whose topic `t` has ten records in partition 0, one each second from 2023-11-14T22:13:20Z on, and none in
/// partition 1.
fn with_records() -> Broker {
    let broker = Broker::start();
    broker.run("topic create t -p 2").ok();
    let time = |n: i64| 1_700_000_000_000 + n * 1000;
    let line = |n| format!("{{\"value\":\"{n}\",\"partition\":0,\"timestamp\":{}}}\n", time(n));
    broker.produce("t --json", &(0..10).map(line).collect::<String>());
    broker
}

/// The first offset of each partition.
fn beginnings(broker: &Broker) -> Value {
    broker.run("topic offsets t --at beginning --json").json()
}

fn at(first: i64) -> Value {
    json!([{"partition": 0, "offset": first}, {"partition": 1, "offset": 0}])
}

#[test]
fn records_are_shown_before_they_are_deleted() {
    let broker = with_records();
    let planned = broker.run("topic delete-records t --before 3 -p 0").ok();
    let expected = "3 records of t would be deleted:\n\nPARTITION  RECORDS  FROM  BEFORE\n        0        3     0       3\n\n\
                    nothing was changed: --execute does it\n";
    assert_eq!(planned, expected);
    assert_eq!(beginnings(&broker), at(0));
    for (place, first) in [
        ("3 --partition 0", 3),
        ("2 --partition 0", 3),
        ("2023-11-14T22:13:24.500Z", 5),
        ("@1700000006000 --partition 0", 6),
        ("-2", 8),
        ("end", 10),
    ] {
        let deleted = broker.run(&format!("topic delete-records t --before {place} --execute --json")).json();
        assert_eq!(deleted["executed"], json!(true), "{place}");
        assert_eq!(beginnings(&broker), at(first), "{place}");
    }
    let none = broker.run("topic delete-records t --before end").ok();
    assert_eq!(none, "t has no records to delete\n\nnothing was changed: --execute does it\n");
}

#[test]
fn what_cannot_be_deleted_is_said_in_words() {
    let broker = with_records();
    let message = broker.run("topic delete-records t --before 11 --execute").failed();
    assert!(message.contains("t-0 ends at offset 10, before 11; nothing was deleted"), "{message}");
    let message = broker.run("topic delete-records t --before end -p 2 --execute").failed();
    assert!(message.contains("topic t has no partition 2"), "{message}");
    assert!(broker.run("topic delete-records missing --before end").failed().contains("no topic missing"));
    broker.run("topic alter t --set cleanup.policy=compact").ok();
    let message = broker.run("topic delete-records t --before 3 -p 0 --execute").failed();
    assert!(
        message.contains("cleanup.policy is compact alone") && message.contains("POLICY_VIOLATION"),
        "{message}"
    );
    assert_eq!(beginnings(&broker), at(0));
    assert_eq!(broker.run("topic delete-records t --before beginning").code, Some(2));
    assert_eq!(broker.run("topic delete-records t").code, Some(2));
}

#[test]
fn offsets_are_found_by_time() {
    let broker = with_records();
    assert_eq!(
        broker.run("topic offsets t").ok(),
        "PARTITION  OFFSET\n        0      10\n        1       0\n"
    );
    let found = broker.run("topic offsets t --at 2023-11-14T22:13:24.500Z --json").json();
    assert_eq!(found, json!([{"partition": 0, "offset": 5}, {"partition": 1, "offset": null}]));
    assert!(broker.run("topic offsets t --at @1700000010000").ok().contains("        0       -\n"));
    assert!(broker.run("topic offsets missing").failed().contains("there is no topic missing"));
    assert_eq!(broker.run("topic offsets t --at 5").code, Some(2));
}
