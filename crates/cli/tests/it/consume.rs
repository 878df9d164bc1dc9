//! `mainstem consume`: isolation levels, several topics, patterns and format strings.

use std::collections::BTreeSet;

use crate::support::broker::Broker;
use crate::support::run_words;
use crate::support::transactions::{begun, wait_for};

/// A broker whose topic `t` has a committed record, an aborted one, and one of a transaction that is open.
fn with_transactions() -> Broker {
    let broker = Broker::start();
    broker.run("topic create t -p 1").ok();
    wait_for(async {
        begun(&broker.address, "a", "t", &["committed"]).await.commit_transaction().await.unwrap();
        begun(&broker.address, "b", "t", &["aborted"]).await.abort_transaction().await.unwrap();
        drop(begun(&broker.address, "c", "t", &["open"]).await);
    });
    broker
}

#[test]
fn what_was_not_committed_is_shown_only_when_that_is_asked_for() {
    let broker = with_transactions();
    for arguments in ["", " --isolation read_committed", " --group g"] {
        let run = broker.run(&format!("consume t{arguments}"));
        let said = "a transaction is open in t-0 at offset 4: nothing from there on is shown";
        assert!(run.stderr.contains(said), "{run:?}");
        assert_eq!(run.ok(), "committed\n", "{arguments}");
    }
    let all = broker.run("consume t --isolation read_uncommitted");
    assert!(all.stderr.is_empty(), "{all:?}");
    assert_eq!(all.ok(), "committed\naborted\nopen\n");
    assert_eq!(broker.run("consume t --from -1 --isolation read_uncommitted").ok(), "open\n");
    assert_eq!(broker.run("consume t --from end").ok(), "");
    assert_eq!(broker.run("consume t --isolation serializable").code, Some(2));
    assert!(broker.run("consume --help").ok().contains("[default: read_committed]"));
}

#[test]
fn several_topics_are_read_by_name_and_by_pattern() {
    let broker = Broker::start();
    for topic in ["orders-eu", "orders-us", "xorders-eu"] {
        broker.run(&format!("topic create {topic} -p 1")).ok();
        broker.produce(topic, &format!("of {topic}\n"));
    }
    for (arguments, expected) in [
        ("orders-eu xorders-eu orders-eu", vec!["of orders-eu", "of xorders-eu"]),
        ("--regex orders-.*", vec!["of orders-eu", "of orders-us"]),
        ("--regex orders-.* --group g", vec!["of orders-eu", "of orders-us"]),
        ("orders-us xorders-eu --group h", vec!["of orders-us", "of xorders-eu"]),
    ] {
        let shown = broker.run(&format!("consume {arguments}")).ok();
        assert_eq!(shown.lines().count(), expected.len(), "{arguments}: {shown}");
        assert_eq!(shown.lines().collect::<BTreeSet<_>>(), expected.into_iter().collect(), "{arguments}");
    }
    let message = broker.run("consume --regex orders").failed();
    assert!(
        message.contains("no topic matches --regex orders, which has to match a whole name"),
        "{message}"
    );
    assert!(broker.run("consume orders-eu missing").failed().contains("there is no topic missing"));
    let message = broker.run("consume orders-eu orders-us --partition 1").failed();
    assert!(message.contains("topic orders-eu has no partition 1"), "{message}");
    for wrong in ["consume", "consume orders-eu --regex o.*", "consume --regex ("] {
        assert_eq!(broker.run(wrong).code, Some(2), "{wrong}");
    }
}

#[test]
fn records_are_printed_by_a_format_string() {
    let broker = Broker::start();
    broker.run("topic create t -p 2").ok();
    let line = r#"{"key":"k","value":"one","partition":1,"timestamp":1700000000000,"headers":[{"key":"h","value":"x"}]}"#;
    broker.produce("t --json", &format!("{line}\n"));
    let format = r"%t %p %o %k %v %T %h %V%%\n";
    let shown = run_words(&broker.address, &["consume", "t", "--format", format]).ok();
    assert_eq!(shown, "t 1 0 k one 1700000000000 h=x 3%\n");
    let refused = run_words(&broker.address, &["consume", "t", "--format", "%t %q"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("%q is no placeholder; known are %t"), "{refused:?}");
    assert_eq!(run_words(&broker.address, &["consume", "t", "--format", "%v", "--json"]).code, Some(2));
}
