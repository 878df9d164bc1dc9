//! `mainstem queue` as a person uses it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::broker::Broker;
use crate::support::{Run, mainstem, run, run_with_input};

/// An address without a broker.
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
    // The output of --json can be appended again.
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
    // The follower may begin behind the first messages. So lines are sent until it has seen some, and the appender is ended.
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
    let planned = queue("repair", dir.path(), "").ok();
    let expected =
        "the queue would continue at offset 7; 13 messages lost\n\nnothing was changed: --execute does it\n";
    assert!(planned.ends_with(expected), "{planned}");
    let planned = queue("repair", dir.path(), "--json").json();
    assert_eq!(planned, json!({"next": 7, "lost": 13, "control_rebuilt": false, "executed": false}));
    assert!(queue("verify", dir.path(), "").failed().contains("1 fault found"), "a plan changes nothing");
    let repaired = queue("repair", dir.path(), "--execute").ok();
    assert_eq!(repaired, "the queue continues at offset 7; 13 messages lost\n");
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

/// Every command that writes to a directory: on the log directory of a broker, on its partition `t-0`, and on a new
/// directory in it.
fn writing_commands(data: &str) -> Vec<String> {
    let mut commands = Vec::new();
    for dir in [data.to_owned(), format!("{data}/t-0"), format!("{data}/new")] {
        commands.extend([
            format!("queue append {dir}"),
            format!("queue repair {dir}"),
            format!("queue repair {dir} --execute"),
            format!("direct serve a={dir} --address 127.0.0.1:0"),
            format!("direct reset {dir} t c --to-earliest --execute"),
            format!("direct forget {dir} t c --execute"),
        ]);
    }
    commands
}

#[test]
fn a_brokers_directory_is_written_by_that_broker_alone() {
    let mut broker = Broker::start();
    broker.run("topic create t").ok();
    let data = broker.data().display().to_string();
    let other = tempfile::tempdir().unwrap();
    let attach = |dir: &str| {
        let other = other.path().display();
        format!("start --listen 127.0.0.1:0 --data-dir {other} --attach q={dir}")
    };
    let mut commands = writing_commands(&data);
    commands.extend([attach(&data), attach(&format!("{data}/t-0")), attach(&format!("{data}/new"))]);
    let refuse_all = |is_running: bool, mut between: Box<dyn FnMut(usize) + '_>| {
        for (number, command) in commands.iter().enumerate() {
            let error = run_with_input(NOWHERE, command, b"of a queue\n").failed();
            let place = error.contains("is the log directory of a broker")
                || error.contains(&format!("is within the log directory {data} of a broker"));
            assert!(place && error.contains("nothing was written; "), "{command}: {error}");
            assert_eq!(error.contains(" of a broker, which runs"), is_running, "{command}: {error}");
            assert!(!error.contains("mainstem queue repair"), "{command}: {error}");
            between(number);
        }
    };
    let acknowledged = |number: usize| {
        let lines: String = (0..5).map(|line| format!("{number} {line}\n")).collect();
        broker.produce("t --acks all", &lines);
    };
    refuse_all(true, Box::new(acknowledged));
    let all: String =
        (0..commands.len()).flat_map(|number| (0..5).map(move |line| format!("{number} {line}\n"))).collect();
    assert_eq!(broker.run("consume t").ok(), all);
    broker.stop();
    refuse_all(false, Box::new(|_| ()));
    assert!(!broker.data().join("new").exists() && !broker.data().join("queue.control").exists());
    assert!(!broker.data().join("t-0/queue.control").exists());
    broker.start_again();
    assert_eq!(broker.run("consume t").ok(), all);
}

#[test]
fn a_broker_takes_no_directory_of_another_kind_for_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let trades = dir.path().join("trades");
    append(&trades, "", "one\n").ok();
    let start = |log_directory: &Path| {
        run(NOWHERE, &format!("start --listen 127.0.0.1:0 --data-dir {}", log_directory.display())).failed()
    };
    let error = start(&trades);
    assert!(error.contains("is an embedded queue, and not a log directory"), "{error}");
    assert!(error.contains("--attach NAME="), "{error}");
    fs::write(trades.join("direct.journal"), "").unwrap();
    let error = start(&trades);
    assert!(error.contains("is the journal of a stream, and not a log directory"), "{error}");
    assert_eq!(queue("tail", &trades, "").ok(), "one\n");
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::rename(&trades, data.join("t-0")).unwrap();
    fs::remove_file(data.join("t-0/queue.control")).unwrap();
    fs::write(data.join("meta.properties"), "version=1\ncluster.id=c\nnode.id=1\n").unwrap();
    let error = start(&data.join("t-0"));
    assert!(error.contains("is a partition of a log directory"), "{error}");
}

#[test]
fn what_an_earlier_version_wrote_within_a_log_directory_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let inside = dir.path().join("q");
    append(&inside, "", "one\ntwo\n").ok();
    fs::write(dir.path().join("meta.properties"), "version=1\ncluster.id=c\nnode.id=1\n").unwrap();
    assert_eq!(queue("tail", &inside, "").ok(), "one\ntwo\n");
    assert_eq!(queue("list", &inside, "--json").json()["next"], json!(2));
    let error = append(&inside, "", "three\n").failed();
    assert!(error.contains("is within the log directory"), "{error}");
    let log = inside.join("00000000000000000000.log");
    fs::File::options().write(true).open(&log).unwrap().write_all_at(b"!", 70).unwrap();
    let error = queue("verify", &inside, "").failed();
    assert!(error.contains("copy it elsewhere") && !error.contains("queue repair"), "{error}");
}
