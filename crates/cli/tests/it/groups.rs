//! `mainstem group lag`.

use serde_json::json;

use crate::support::broker::Broker;

#[test]
fn the_lag_of_all_groups_is_shown_the_largest_first() {
    let broker = Broker::start();
    assert_eq!(broker.run("group lag").ok(), "no group has committed an offset\n");
    for (topic, partitions) in [("a", 2), ("b", 1), ("gone", 1)] {
        broker.run(&format!("topic create {topic} -p {partitions}")).ok();
    }
    broker.produce("a -p 0", "1\n2\n3\n");
    broker.produce("a -p 1", "1\n2\n");
    broker.produce("b", "1\n");
    for reset in [
        "near --topic b --to-earliest",
        "far --topic a --topic b --to-earliest",
        "done --topic a --to-latest",
    ] {
        broker.run(&format!("group reset {reset} --execute")).ok();
    }
    let shown = broker.run("group lag").ok();
    let expected = "GROUP  STATE  PARTITIONS  UNKNOWN  LAG\nfar    Empty           3        0    6\n\
                    near   Empty           1        0    1\ndone   Empty           2        0    0\n";
    assert_eq!(shown, expected);
    broker.run("group reset far --topic gone --to-latest --execute").ok();
    broker.run("topic delete gone --execute").ok();
    let rows = broker.run("group lag far --by-topic --json").json();
    let row = |topic: &str, partitions: i32, lag: i64| json!({"group": "far", "state": "Empty", "topic": topic, "partitions": partitions, "unknown": 0, "lag": lag});
    assert_eq!(rows[0], row("a", 2, 5));
    assert_eq!(rows[1], row("b", 1, 1));
    assert!(broker.run("group lag missing").failed().contains("there is no group missing"));
}
