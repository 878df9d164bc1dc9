//! Names that others choose, in all commands that print them: none controls a terminal, and none begins a line.

use serde_json::{Value, json};

use crate::support::broker::Broker;
use crate::support::{Run, run_words};

/// Names that would do something to a terminal or a table, each with the mark that follows it.
const NAMES: [&str; 8] = [
    "x\u{1b}[2J\u{1b}[1;1Hforged",
    "x\nforged  Stable  classic  1",
    "x\r\nforged",
    "x\u{9b}2Jforged",
    "x\u{202e}degrof",
    "x\u{2028}forged",
    "x\u{200b}\u{feff}forged",
    "x\u{7f}\u{8}forged",
];

/// Fails if an output has hidden characters, or a line that begins as a name would forge it.
fn check(words: &[&str], run: &Run) {
    for text in [&run.stdout, &run.stderr] {
        let hidden = |letter: char| {
            letter != '\n' && (letter.is_control() || "\u{200b}\u{feff}\u{202e}\u{2028}".contains(letter))
        };
        assert!(!text.contains(hidden), "{words:?}: {text:?}");
        let forged = text.lines().find(|line| line.starts_with("forged"));
        assert_eq!(forged, None, "{words:?}: {text}");
    }
}

/// A letter with a name in each place that can have one.
fn letter(name: &str) -> String {
    let headers: Vec<Value> = [
        ("__dlq.errors.topic", name),
        ("__dlq.errors.partition", "0"),
        ("__dlq.errors.offset", "7"),
        ("__dlq.errors.group", name),
        ("__dlq.errors.delivery.count", name),
        ("__dlq.errors.message", name),
        ("__mainstem.errors.stage", name),
        ("__mainstem.errors.class", name),
        (name, name),
    ]
    .map(|(key, value)| json!({"key": key, "value": value}))
    .to_vec();
    format!("{}\n", json!({"key": name, "value": name, "headers": headers}))
}

#[test]
fn no_name_controls_a_terminal_or_forges_a_line() {
    let broker = Broker::start_with(&[
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:ANONYMOUS",
    ]);
    broker.run("topic create orders -p 1").ok();
    broker.run("topic create dlq.x -p 1").ok();
    broker.produce("orders", "1\n2\n");
    for name in NAMES {
        broker.produce("dlq.x --json", &letter(name));
        let principal = format!("User:{name}");
        for words in [
            &["group", "reset", name, "--topic", "orders", "--to-latest", "-y"][..],
            &["quota", "set", "--user", name, "request_percentage=50"],
            &["quota", "set", "--client", name, "producer_byte_rate=50"],
            &["acl", "add", "--allow", &principal, "--group", name, "--operation", "read"],
        ] {
            // A broker may refuse a name, in words that have it.
            check(words, &run_words(&broker.address, words));
        }
    }
    for name in NAMES {
        for words in [
            &["group", "describe", name][..],
            &["group", "describe", "missing\u{1b}[2J\nforged"],
            &["group", "delete", name],
            &["group", "delete-offsets", name, "--topic", "orders"],
            &["group", "reset", name, "--topic", "orders", "--to-earliest"],
            &["topic", "describe", name],
            &["topic", "create", name],
            &["config", "get", "group", name],
            &["acl", "check", name, "read", "--topic", "orders"],
            &["user", "delete", name],
            &["dead-letters", "show", name],
            &["dead-letters", "replay", "dlq.x", "--to", name],
        ] {
            check(words, &run_words(&broker.address, words));
            let json = [words, &["--json"]].concat();
            check(&json, &run_words(&broker.address, &json));
        }
    }
    for words in [
        &["group", "list"][..],
        &["quota", "list"],
        &["acl", "list"],
        &["topic", "list"],
        &["dead-letters", "show", "dlq.x"],
        &["dead-letters", "replay", "dlq.x"],
    ] {
        check(words, &run_words(&broker.address, words));
        let json = [words, &["--json"]].concat();
        let run = run_words(&broker.address, &json);
        check(&json, &run);
        serde_json::from_str::<Value>(&run.ok()).expect("it is JSON");
    }
    for offset in 0..NAMES.len() {
        let at = offset.to_string();
        let words = ["dead-letters", "show", "dlq.x", "-p", "0", "--offset", &at];
        let run = run_words(&broker.address, &words);
        check(&words, &run);
        let whole = run.ok();
        let labels: Vec<_> =
            whole.lines().take(8).filter_map(|line| line.split_whitespace().next()).collect();
        let expected = ["source", "group", "stage", "class", "deliveries", "replayed", "key", "value"];
        assert_eq!(labels, expected, "{whole}");
    }
    let listed = broker.run("group list").ok();
    assert_eq!(listed.lines().count(), 1 + NAMES.len(), "{listed}");
    let groups = broker.run("group list --json").json();
    let names: Vec<_> = groups.as_array().unwrap().iter().filter_map(|one| one["group"].as_str()).collect();
    assert!(NAMES.iter().all(|name| names.contains(name)), "programs read the names as they are: {names:?}");
    check(&["consume"], &broker.run("consume dlq.x --json"));
}
