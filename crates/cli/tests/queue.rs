//! `mainstem queue` as a person uses it.
#![allow(clippy::unwrap_used, reason = "a test that fails says so by a panic")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use support::{Run, mainstem, run, run_with_input};

/// No broker is there.
const NOWHERE: &str = "127.0.0.1:1";

fn queue(command: &str, dir: &Path, rest: &str) -> Run {
    run(NOWHERE, &format!("queue {command} {} {rest}", dir.display()))
}

fn append(dir: &Path, rest: &str, input: &str) -> Run {
    run_with_input(NOWHERE, &format!("queue append {} {rest}", dir.display()), input.as_bytes())
}

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn lines_go_in_and_come_out() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("trades");
    assert_eq!(append(&dir, "", "one\ntwo\n").ok(), "appended 2 messages, from offset 0 on\n");
    let keyed = append(&dir, "-s : --header source=test --sync", "k:three\nl:four").ok();
    assert_eq!(keyed, "appended 2 messages, from offset 2 on; on the disk up to offset 4\n");
    assert_eq!(queue("tail", &dir, "").ok(), "one\ntwo\nthree\nfour\n");
    assert_eq!(queue("tail", &dir, "--from 1 --max 2 --with-key").ok(), "null\ttwo\nk\tthree\n");
    assert_eq!(queue("tail", &dir, "--from -1").ok(), "four\n");
    assert_eq!(queue("tail", &dir, "--key k").ok(), "three\n");
    assert_eq!(queue("tail", &dir, "--contains o --header source=test").ok(), "four\n");
    let lines = queue("tail", &dir, "--json --from 2").ok();
    let [third, _] = &json_lines(&lines)[..] else { panic!("{lines}") };
    assert_eq!((&third["offset"], &third["key"], &third["value"]), (&json!(2), &json!("k"), &json!("three")));
    assert_eq!(third["headers"], json!([{"key": "source", "value": "test"}]));
    // What is printed can be appended again.
    let again = append(&dir, "--json", &lines).json();
    assert_eq!(again, json!({"messages": 2, "first_offset": 4, "next_offset": 6, "synced": null}));
    let error = append(&dir, "--json", "{\"key\":\"k\"}\n").failed();
    assert!(error.contains("line 1") && error.contains("has a value"), "{error}");
}

#[test]
fn a_named_tailer_goes_on_and_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    append(dir.path(), "", "1\n2\n3\n4\n").ok();
    assert_eq!(queue("tail", dir.path(), "--named me -n 3").ok(), "1\n2\n3\n");
    let listed = queue("list", dir.path(), "--json").json();
    assert_eq!((&listed["start"], &listed["next"]), (&json!(0), &json!(4)));
    let tailer = &listed["tailers"][0];
    assert_eq!((&tailer["name"], &tailer["position"], &tailer["lag"]), (&json!("me"), &json!(3), &json!(1)));
    assert_eq!(queue("tail", dir.path(), "--named me").ok(), "4\n");
    let text = queue("list", dir.path(), "").ok();
    assert!(text.contains("offsets 0 to 4") && text.contains("me") && text.contains("open"), "{text}");
}

#[test]
fn a_follower_sees_what_another_process_appends() {
    let dir = tempfile::tempdir().unwrap();
    append(dir.path(), "", "before\n").ok();
    let arguments = format!("queue tail {} --follow --from end -n 2", dir.path().display());
    let mut follower = mainstem(NOWHERE, &arguments).spawn().unwrap();
    let lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let (seen, tailed) = std::sync::mpsc::channel();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| seen.send(line)));
    let mut appender = mainstem(NOWHERE, &format!("queue append {}", dir.path().display()))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = appender.stdin.take().unwrap();
    // The follower may begin later than the first of them: they come until it has seen some, and the appender is ended.
    let sender = std::thread::spawn(move || {
        let mut number = 0;
        while writeln!(input, "{number}").is_ok() && number < 6_000 {
            number += 1;
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let next = || tailed.recv_timeout(Duration::from_secs(120)).expect("the follower sees a line");
    let first: u32 = next().parse().unwrap();
    assert_eq!(next(), (first + 1).to_string());
    assert!(follower.wait().unwrap().success());
    appender.kill().unwrap();
    appender.wait().unwrap();
    sender.join().unwrap();
    assert!(queue("verify", dir.path(), "").ok().contains("1 segment"));
}

#[test]
fn damage_is_found_and_repaired() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..20 {
        append(dir.path(), "--segment-bytes 65536", &format!("{number} {}\n", "x".repeat(200))).ok();
    }
    let dump = queue("dump", dir.path(), "--json").ok();
    let batches = json_lines(&dump);
    assert_eq!((batches.len(), &batches[7]["base_offset"]), (20, &json!(7)));
    let position = batches[7]["position"].as_u64().unwrap();
    assert!(queue("dump", dir.path(), "--records").ok().contains("segment 0 position 0: offsets 0 to 0"));
    let log = dir.path().join("00000000000000000000.log");
    fs::File::options().write(true).open(&log).unwrap().write_all_at(b"!", position + 100).unwrap();
    let found = queue("verify", dir.path(), "--json");
    let report: Value = serde_json::from_str(&found.stdout).unwrap();
    assert_eq!((&report["next"], report["faults"].as_array().map(Vec::len)), (&json!(7), Some(1)));
    assert!(found.failed().contains("1 fault found"));
    let error = queue("tail", dir.path(), "").failed();
    assert!(error.contains("mainstem queue repair"), "{error}");
    let repaired = queue("repair", dir.path(), "").ok();
    assert_eq!(repaired, "the queue goes on at offset 7; 13 messages lost\n");
    assert_eq!(queue("verify", dir.path(), "").ok(), "1 segment, 7 batches, up to offset 7\n");
    assert_eq!(append(dir.path(), "", "on\n").ok(), "appended 1 message, from offset 7 on\n");
}

#[test]
fn what_is_no_queue_is_said() {
    let dir = tempfile::tempdir().unwrap();
    for command in ["tail", "list", "dump", "verify", "repair"] {
        let error = queue(command, dir.path(), "").failed();
        assert!(error.contains("holds no queue"), "{command}: {error}");
    }
    let error = queue("tail", &dir.path().join("missing"), "--json").failed();
    let error: Value = serde_json::from_str(&error).unwrap();
    assert!(error["error"].as_str().unwrap().contains("holds no queue"), "{error}");
}
