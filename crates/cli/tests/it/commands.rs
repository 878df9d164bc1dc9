//! The commands against the broker of the same binary; those about users, rules and secrets are in `security.rs`.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::broker::{Broker, interrupt};
use crate::support::{Run, mainstem, run};

/// The longest wait for anything.
const DEADLINE: Duration = Duration::from_secs(30);

fn numbers(from: u32, to: u32) -> String {
    (from..=to).map(|number| format!("{number}\n")).collect()
}

fn lines(text: &str) -> BTreeSet<&str> {
    text.lines().collect()
}

#[test]
fn topics_come_change_and_go() {
    let broker = Broker::start();
    let created = broker
        .run("topic create orders -p 3 --config retention.ms=86400000 --config write.caching=true --json");
    let created = created.json();
    assert_eq!((&created["partitions"], &created["created"]), (&json!(3), &json!(true)));
    assert!(broker.run("topic create orders").failed().contains("TOPIC_ALREADY_EXISTS"));
    assert_eq!(broker.run("topic create orders --if-not-exists").ok(), "topic orders exists already\n");
    assert!(broker.run("topic create x --config no.such.key=1").failed().contains("INVALID_CONFIG"));
    let described = broker.run("topic describe orders --json").json();
    let configs: BTreeSet<_> = described[0]["configs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| (c["name"].as_str(), c["value"].as_str()))
        .collect();
    assert_eq!(
        configs,
        [(Some("retention.ms"), Some("86400000")), (Some("write.caching"), Some("true"))].into()
    );
    broker.run("topic alter orders -p 5 --set retention.ms=1000000 --delete-config write.caching").ok();
    let described = broker.run("topic describe orders").ok();
    assert!(
        described.contains("\n  retention.ms=1000000\n") && !described.contains("write.caching"),
        "{described}"
    );
    assert_eq!(broker.run("topic list --json").json()[0]["partitions"], 5);
    assert!(broker.run("topic alter orders -p 2").failed().contains("INVALID_PARTITIONS"));
    assert_eq!(broker.run("topic delete orders --yes").ok(), "deleted topic orders\n");
    assert_eq!(broker.run("topic delete orders --if-exists -y").ok(), "there is no topic orders\n");
    assert_eq!(broker.run("topic list --json").json(), json!([]));
}

#[test]
fn settings_are_read_and_changed() {
    let broker = Broker::start();
    broker.run("topic create orders").ok();
    let unset = broker.run("config get topic/orders").ok();
    assert!(unset.starts_with("nothing is set for topic/orders itself"), "{unset}");
    let changed = broker.run("config set topic/orders retention.ms=1000 cleanup.policy=compact,delete").ok();
    assert_eq!(changed, "changed topic/orders: retention.ms=1000; cleanup.policy=compact,delete\n");
    let configs = broker.run("config get topic/orders --json").json();
    assert_eq!(
        configs["configs"],
        json!([
            {"name": "cleanup.policy", "value": "compact,delete", "source": "DYNAMIC_TOPIC_CONFIG"},
            {"name": "retention.ms", "value": "1000", "source": "DYNAMIC_TOPIC_CONFIG"},
        ])
    );
    broker.run("config set topic/orders -d retention.ms -d cleanup.policy").ok();
    let back = broker.run("config get topic/orders retention.ms").ok();
    assert!(back.contains("604800000") && back.contains("DEFAULT_CONFIG"), "{back}");
    let unknown = broker.run("config get topic/orders no.such.key").failed();
    assert!(unknown.contains("has no setting no.such.key"), "{unknown}");
    assert!(broker.run("config set topic/orders retention.ms=x").failed().contains("INVALID_CONFIG"));
    let all = broker.run("config get broker/1 --all --json").json();
    assert!(all["configs"].as_array().unwrap().len() > 100, "{all}");
    assert_eq!(broker.run("config get orders").code, Some(2));
    broker.run("config set group/readers consumer.session.timeout.ms=50000").ok();
    let group = broker.run("config get group/readers --json").json();
    assert_eq!(group["configs"][0]["value"], json!("50000"));
    let beyond = broker.run("config set group/readers consumer.session.timeout.ms=1").failed();
    assert!(beyond.contains("greater than or equal to group.consumer.min.session.timeout.ms"), "{beyond}");
}

#[test]
fn unknown_settings_of_brokers_are_refused() {
    let broker = Broker::start();
    for resource in ["broker", "broker/1"] {
        let message = broker.run(&format!("config set {resource} log.retention.mss=1000")).failed();
        let said = "brokers have no setting log.retention.mss; did you mean log.retention.ms? Nothing was changed; --force";
        assert!(message.contains(said), "{message}");
        let message = broker.run(&format!("config set {resource} my.plugin.key=1")).failed();
        assert!(message.contains("brokers have no setting my.plugin.key; nothing was changed"), "{message}");
        broker.run(&format!("config set {resource} my.plugin.key=1 --force")).ok();
        broker.run(&format!("config set {resource} --delete my.plugin.key")).ok();
        broker.run(&format!("config set {resource} log.retention.ms=1000")).ok();
        broker.run(&format!("config set {resource} listener.name.x.max.connections=7")).ok();
    }
}

#[test]
fn the_cluster_is_described() {
    let broker = Broker::start();
    let cluster = broker.run("cluster --json").json();
    let port: Value = broker.address.rsplit_once(':').unwrap().1.parse::<u16>().unwrap().into();
    assert_eq!((&cluster["controller"], &cluster["nodes"][0]["port"]), (&json!(1), &port));
    assert!(cluster["features"]["metadata.version"].as_i64() > Some(0), "{cluster}");
    let text = broker.run("cluster").ok();
    assert!(text.contains(&broker.address), "{text}");
}

#[test]
fn shells_and_man_know_every_command() {
    let pages = tempfile::tempdir().unwrap();
    let shown = run("", &format!("man --dir {}", pages.path().display())).ok();
    let written = std::fs::read_dir(pages.path()).unwrap().count();
    assert!(shown.starts_with(&format!("{written} pages in ")), "{shown}");
    assert!(pages.path().join("mainstem-topic-create.1").exists());
    assert!(run("", "man").ok().contains(".TH mainstem 1"));
    for shell in ["bash", "zsh", "fish"] {
        let script = run("", &format!("completions {shell}")).ok();
        assert!(script.contains("verify") && script.contains("bootstrap"), "{shell}");
    }
}

#[test]
fn records_come_back_as_they_went() {
    let broker = Broker::start();
    broker.run("topic create t -p 3").ok();
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        for acks in ["all", "1"] {
            broker.run("topic create codecs").ok();
            broker.produce(&format!("codecs -z {codec} --acks {acks} --batch-bytes 5000"), &numbers(1, 5000));
            assert_eq!(broker.run("consume codecs").ok(), numbers(1, 5000), "{codec}");
            broker.run("topic delete codecs --execute").ok();
        }
    }
    let line = r#"{"headers":[{"key":"h","value":"1"},{"key":"h","value_base64":"/w=="}],"key":"k","partition":2,"timestamp":1700000000000,"value":null}"#;
    let report = broker.produce("t --json", &format!("{line}\n"));
    assert_eq!(serde_json::from_str::<Value>(&report).unwrap()["acknowledged"], 1);
    let consumed = broker.run("consume t --json").ok();
    let mut back: Value = serde_json::from_str(&consumed).unwrap();
    assert_eq!(back["offset"], 0);
    for broker_field in ["offset", "topic"] {
        back.as_object_mut().unwrap().remove(broker_field);
    }
    assert_eq!(back.to_string(), line);
}

#[test]
fn reading_starts_and_ends_where_it_is_asked_to() {
    let broker = Broker::start();
    broker.run("topic create t -p 1").ok();
    let timed: String = (0..100)
        .map(|n| format!("{{\"value\":\"{n}\",\"timestamp\":{}}}\n", 1_700_000_000_000i64 + n))
        .collect();
    broker.produce("t --json", &timed);
    for (arguments, expected) in [
        ("--from 97", "97\n98\n99\n"),
        ("--from -2", "98\n99\n"),
        ("--from end", ""),
        ("--from @1700000000098", "98\n99\n"),
        ("--from 2023-11-14T22:13:20.099Z", "99\n"),
        ("--max 2", "0\n1\n"),
        ("--partition 0 --from 10 --max 1 --with-key", "null\t10\n"),
    ] {
        assert_eq!(broker.run(&format!("consume t {arguments}")).ok(), expected, "{arguments}");
    }
    let message = broker.run("consume t --from 101").failed();
    assert!(message.contains("it has 0 to 100"), "{message}");
    assert!(broker.run("consume t --partition 1").failed().contains("no partition 1"));
}

#[test]
fn keys_go_where_the_java_client_puts_them() {
    let broker = Broker::start();
    broker.run("topic create t -p 4").ok();
    broker.produce("t -s :", "21:a\nfoobar:b\n21:c\n");
    // (murmur2(key) & 0x7fffffff) % 4 of the values in Kafka's own tests.
    assert_eq!(broker.run("consume t -k -p 0").ok(), "21\ta\n21\tc\n");
    assert_eq!(broker.run("consume t -k -p 2").ok(), "foobar\tb\n");
}

#[test]
fn a_group_goes_on_where_it_stopped() {
    let broker = Broker::start();
    broker.run("topic create t -p 2").ok();
    broker.produce("t --batch-bytes 500", &numbers(1, 1000));
    let first = broker.run("consume t --group g --max 300").ok();
    let second = broker.run("consume t --group g").ok();
    assert_eq!((first.lines().count(), second.lines().count()), (300, 700));
    let both = first + &second;
    assert_eq!(lines(&both), lines(&numbers(1, 1000)));
    assert_eq!(broker.run("consume t --group g").ok(), "");
    let listed = broker.run("group list --json").json();
    assert_eq!((&listed[0]["group"], &listed[0]["state"]), (&json!("g"), &json!("Empty")));
    let described = broker.run("group describe g --json").json();
    let lags: Vec<_> = described["offsets"].as_array().unwrap().iter().map(|offset| &offset["lag"]).collect();
    assert_eq!(lags, [0, 0]);
    let message = broker.run("group describe missing").failed();
    assert!(message.contains("there is no group missing"), "{message}");
}

/// Committed offsets of group `g` in topic `t`, by partition.
fn committed(broker: &Broker) -> Vec<Option<i64>> {
    let described = broker.run("group describe g --json").json();
    described["offsets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|offset| offset["committed_offset"].as_i64())
        .collect()
}

#[test]
fn a_group_is_reset_to_where_it_is_asked_to() {
    let broker = Broker::start();
    broker.run("topic create t -p 2").ok();
    let timed = |partition: i32| -> String {
        let time = |n: i64| 1_700_000_000_000 + n * 1000;
        let line = |n| format!("{{\"value\":\"{n}\",\"partition\":{partition},\"timestamp\":{}}}\n", time(n));
        (0..100).map(line).collect()
    };
    broker.produce("t --json", &(timed(0) + &timed(1)));
    let shown = broker.run("group reset g --topic t --to-offset 40").ok();
    assert!(shown.contains("nothing was changed: --execute sets these offsets"), "{shown}");
    assert!(broker.run("group describe g").failed().contains("there is no group g"));
    for (arguments, expected) in [
        ("--topic t --to-offset 40", [40, 40]),
        ("--topic t:1 --shift-by -15", [40, 25]),
        ("--all-topics --shift-by 70", [100, 95]),
        ("--all-topics --to-current", [100, 95]),
        ("--topic t --to-earliest", [0, 0]),
        ("--topic t:0 --topic t:1 --to-latest", [100, 100]),
        ("--topic t --to-datetime 2023-11-14T22:13:50Z", [30, 30]),
        ("--topic t:0 --by-duration PT1H", [100, 30]),
        ("--topic t:0 --by-duration P10000D", [0, 30]),
        ("--topic t --to-offset 101", [100, 100]),
    ] {
        let reset = broker.run(&format!("group reset g {arguments} --execute --json")).json();
        assert_eq!(reset["executed"], json!(true), "{arguments}");
        assert_eq!(committed(&broker), expected.map(Some), "{arguments}");
    }
    let reset = broker.run("group reset g --all-topics --to-offset 101 --json").json();
    assert_eq!(reset["offsets"][0]["note"], json!("the partition ends here"));
    let file = broker.data().join("offsets.csv");
    let exported = broker.run("group reset g --topic t --to-offset 7 --export").ok();
    assert_eq!(exported, "t,0,7\nt,1,7\n");
    std::fs::write(&file, exported.replace("t,1,7", "t,1,8")).unwrap();
    let reset = broker.run(&format!("group reset g --from-file {} --execute", file.display())).ok();
    assert!(reset.ends_with("reset group g in 2 partitions\n"), "{reset}");
    assert_eq!(committed(&broker), [Some(7), Some(8)]);
    assert_eq!(broker.run("consume t --group g").ok().lines().count(), 93 + 92);
}

#[test]
fn groups_and_their_offsets_are_deleted() {
    let broker = Broker::start();
    broker.run("topic create t -p 2").ok();
    broker.run("group reset g --topic t --to-earliest --execute").ok();
    broker.run("group reset h --topic t --to-earliest --execute").ok();
    let deleted = broker.run("group delete-offsets g --topic t:1 --json --execute").json();
    assert_eq!(deleted, json!({"group": "g", "deleted": [{"topic": "t", "partition": 1}]}));
    assert_eq!(committed(&broker), [Some(0)]);
    let deleted = broker.run("group delete-offsets h -t t --execute").ok();
    assert!(deleted.starts_with("group h has no offset any more in 2 partitions\n"), "{deleted}");
    let message = broker.run("group delete-offsets missing --topic t --execute").failed();
    assert!(message.contains("there is no such group"), "{message}");
    let message = broker.run("group delete-offsets g --topic t:2").failed();
    assert!(message.contains("no partition 2"), "{message}");
    let message = broker.run("group reset missing --topic t --shift-by 1").failed();
    assert!(message.contains("no offset in t-0 that could be shifted"), "{message}");
    let message = broker.run("group reset missing --all-topics --to-latest").failed();
    assert!(message.contains("name the topics that it is to read with --topic"), "{message}");
    let message = broker.run("group delete g missing --execute").failed();
    assert!(message.contains("there is no group missing; nothing was deleted"), "{message}");
    assert_eq!(broker.run("group delete g --execute").ok(), "deleted group g\n");
    assert_eq!(
        broker.run("group delete g --if-exists --json --execute").json(),
        json!([{"group": "g", "deleted": false}])
    );
    assert!(broker.run("group describe g").failed().contains("there is no group g"));
}

#[test]
fn a_group_in_use_is_left_alone() {
    let broker = Broker::start();
    broker.run("topic create t -p 2").ok();
    let mut member = mainstem(&broker.address, "consume t --group g --follow").spawn().unwrap();
    wait_for(|| lag(&broker));
    let message = broker.run("group reset g --topic t --to-earliest --execute").failed();
    assert!(
        message.contains("group g is in use (state Stable, 1 member); stop its members first"),
        "{message}"
    );
    let message = broker.run("group delete g --execute").failed();
    assert!(message.contains("cannot delete group g: it has members; stop them first"), "{message}");
    assert!(message.contains("NON_EMPTY_GROUP"), "{message}");
    let message = broker.run("group delete-offsets g --topic t --execute").failed();
    assert!(message.contains("members of the group read the topic; stop them first"), "{message}");
    interrupt(&member);
    assert!(member.wait().unwrap().success());
    assert_eq!(broker.run("group delete g --execute").ok(), "deleted group g\n");
}

#[test]
fn members_share_a_topic_and_leave_in_order() {
    let broker = Broker::start();
    broker.run("topic create t -p 2").ok();
    let member = || {
        let mut command = mainstem(&broker.address, "consume t --group g --follow");
        command.spawn().unwrap()
    };
    let members = [member(), member()];
    let described = wait_for(|| {
        let group = broker.run("group describe g --json");
        let group: Value = serde_json::from_str(&group.stdout).ok()?;
        let shared =
            group["offsets"].as_array()?.iter().map(|o| o["member"].as_str()).collect::<BTreeSet<_>>();
        (group["state"] == "Stable" && shared.len() == 2).then_some(group)
    });
    assert_eq!(described["members"].as_array().unwrap().len(), 2);
    broker.produce("t --batch-bytes 20", &numbers(1, 100));
    wait_for(|| lag(&broker).is_some_and(|lag| lag < 100).then_some(()));
    let mut all = String::new();
    for mut member in members {
        // Each member hands its partitions on; no record is lost and none is read twice.
        wait_for(|| lag(&broker).map(|_| ()));
        interrupt(&member);
        assert!(member.wait().unwrap().success());
        member.stdout.take().unwrap().read_to_string(&mut all).unwrap();
    }
    all.push_str(&broker.run("consume t --group g").ok());
    assert_eq!(all.lines().count(), 100);
    assert_eq!(lines(&all), lines(&numbers(1, 100)));
    assert_eq!(broker.run("group describe g --json").json()["state"], "Empty");
}

/// Records that the group has not committed; none while it rebalances.
fn lag(broker: &Broker) -> Option<i64> {
    let group: Value = serde_json::from_str(&broker.run("group describe g --json").stdout).ok()?;
    let stable = group["state"] == "Stable";
    let offsets = group["offsets"].as_array()?;
    let lag = |offset: &Value| {
        Some(offset["latest_offset"].as_i64()? - offset["committed_offset"].as_i64().unwrap_or(0))
    };
    stable.then(|| offsets.iter().map(lag).sum())?
}

fn wait_for<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "the condition did not come true in {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let broker = Broker::start();
    broker.run("topic create t").ok();
    broker.produce("t", &numbers(1, 200_000));
    let mut consumer = mainstem(&broker.address, "consume t").spawn().unwrap();
    let mut line = String::new();
    BufReader::new(consumer.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "1\n");
    let run: Run = consumer.wait_with_output().unwrap().into();
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
}

#[test]
fn logs_are_dumped_and_verified() {
    let mut broker = Broker::start();
    broker.run("topic create t -p 1 --config segment.bytes=1048576").ok();
    broker.produce("t --batch-bytes 20000", &numbers(1, 200_000));
    broker.produce("t -z zstd --batch-bytes 2000", &numbers(1, 5000));
    broker.stop();
    let data = broker.data().display().to_string();
    let verified = broker.run(&format!("log verify {data} --json")).json();
    assert_eq!(verified["faults"], json!([]), "{verified}");
    assert!(verified["segments"].as_u64() >= Some(3), "{verified}");
    let dump = broker.run(&format!("log dump {data}/t-0 --records --indexes --json")).ok();
    let records = dump.lines().filter(|line| line.contains(r#""kind":"record""#)).count();
    assert_eq!(records, 205_000);
    assert!(dump.contains(r#""kind":"index_entry""#));
    assert!(!dump.contains(r#""crc_valid":false"#));
    let log = broker.data().join("t-0/00000000000000000000.log");
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&log, bytes).unwrap();
    let faulty = broker.run(&format!("log verify {data}"));
    assert!(faulty.stdout.contains("00000000000000000000.log at byte 0"), "{faulty:?}");
    assert!(faulty.code == Some(1) && faulty.stderr.contains("1 fault found"), "{faulty:?}");
}

/// Gives the group billing committed offsets in a topic, as its application does.
fn reads_orders(broker: &Broker) {
    broker.run("group reset billing --topic orders --to-earliest -y").ok();
}

/// A letter in the form that `produce --json` reads.
fn letter(key: &str, offset: u32, rounds: u32) -> String {
    letter_from("orders", key, offset, rounds)
}

/// A letter whose headers name a topic.
fn letter_from(topic: &str, key: &str, offset: u32, rounds: u32) -> String {
    let headers = [
        ("trace", "4711".to_owned()),
        ("__dlq.errors.topic", topic.to_owned()),
        ("__dlq.errors.partition", "2".to_owned()),
        ("__dlq.errors.offset", offset.to_string()),
        ("__dlq.errors.group", "billing".to_owned()),
        ("__dlq.errors.delivery.count", "5".to_owned()),
        ("__dlq.errors.message", "the total overflows".to_owned()),
        ("__mainstem.errors.stage", "handle".to_owned()),
        ("__mainstem.errors.class", "poison".to_owned()),
        ("__mainstem.errors.cause", "the total overflows\ncaused by: 2^64".to_owned()),
        ("__mainstem.errors.timestamp", "1700000000000".to_owned()),
        ("__mainstem.errors.rounds", rounds.to_string()),
    ];
    let headers: Vec<Value> =
        headers.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
    format!("{}\n", json!({"partition": 1, "key": key, "value": format!("v{offset}"), "headers": headers}))
}

#[test]
fn dead_letters_are_listed_shown_replayed_and_purged() {
    let broker = Broker::start();
    assert_eq!(broker.run("dead-letters list").ok(), "there are no topics of dead letters\n");
    assert!(
        broker
            .run("dead-letters show dlq.billing.orders")
            .failed()
            .contains("there is no topic dlq.billing.orders")
    );
    broker.run("topic create orders -p 3").ok();
    reads_orders(&broker);
    broker.run("topic create dlq.billing.orders -p 2").ok();
    assert_eq!(
        broker.run("dead-letters show dlq.billing.orders").ok(),
        "dlq.billing.orders has no letters\n"
    );
    let letters = [letter("a", 40, 0), letter("b", 41, 1), letter("c", 42, 3)].concat();
    broker.produce("dlq.billing.orders --json", &letters);
    let listed = broker.run("dead-letters list --json").json();
    assert_eq!(listed, json!([{"topic": "dlq.billing.orders", "partitions": 2, "letters": 3}]));
    let shown = broker.run("dead-letters show dlq.billing.orders").ok();
    assert!(shown.contains("orders-2@40") && shown.contains("the total overflows"), "{shown}");
    let whole = broker.run("dead-letters show dlq.billing.orders -p 1 --offset 1").ok();
    assert!(whole.contains("source      orders-2@41\n") && whole.contains("caused by: 2^64"), "{whole}");
    assert!(
        broker
            .run("dead-letters show dlq.billing.orders -p 1 --offset 9")
            .failed()
            .contains("has no letter at offset 9")
    );
    assert!(broker.run("dead-letters show dlq.billing.orders -p 7").failed().contains("has no partition 7"));
    let shown = broker.run("dead-letters show dlq.billing.orders --json -n 1").json();
    let one = &shown[0];
    assert_eq!(
        (&one["source_topic"], &one["source_offset"], &one["deliveries"], &one["key"]),
        (&json!("orders"), &json!(40), &json!(5), &json!("a"))
    );
    assert_eq!(one["headers"], json!([{"key": "trace", "value": "4711"}]));
    let would = broker.run("dead-letters replay dlq.billing.orders").ok();
    assert!(
        would.starts_with("2 letters of dlq.billing.orders would be replayed:\n\nTO      PARTITION  LETTERS\norders          2        2\n\n1 letter"),
        "{would}"
    );
    assert_eq!(broker.run("consume orders").ok(), "");
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let began_ms = u64::try_from(since_1970.as_millis()).unwrap();
    let done = broker.run("dead-letters replay dlq.billing.orders --execute --json").json();
    assert_eq!(
        (&done["replayed"], &done["deleted"], &done["replayed_too_often"]),
        (&json!(2), &json!(0), &json!(1))
    );
    let back = broker.run("consume orders --json").ok();
    let back: Vec<Value> = back.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rounds = |round: &str| {
        let header = |key: &str, value: &str| json!({"key": key, "value": value});
        let first = header("__mainstem.errors.timestamp", "1700000000000");
        json!([header("trace", "4711"), first, header("__mainstem.errors.rounds", round)])
    };
    assert_eq!((&back[0]["partition"], &back[0]["value"]), (&json!(2), &json!("v40")));
    let written_ms = back[0]["timestamp"].as_u64().unwrap();
    assert!(written_ms >= began_ms, "{written_ms} is the time of the replay, which began at {began_ms}");
    assert_eq!((&back[0]["headers"], &back[1]["headers"]), (&rounds("1"), &rounds("2")));
    let again = "dead-letters replay dlq.billing.orders --execute --max-rounds 9 --keep-time";
    let done = broker.run(again).ok();
    assert_eq!(
        done,
        "TO      PARTITION  LETTERS\norders          2        1\n\n\
         replayed 1 letter of dlq.billing.orders, and deleted them there\n\
         2 letters written by an earlier replay: left out (--offset names one)\n"
    );
    let back = broker.run("consume orders --json").ok();
    let back: Vec<Value> = back.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let old = back.iter().filter(|record| record["timestamp"] == json!(1_700_000_000_000_u64));
    assert_eq!((old.count(), back.len()), (1, 3), "{back:?}");
    assert_eq!(broker.run("dead-letters list --json").json()[0]["letters"], 0);
    broker.produce("dlq.billing.orders --json", &letters);
    assert_eq!(
        broker.run("dead-letters purge dlq.billing.orders -p 1 --before 5 --execute").ok(),
        "deleted 1 letter of dlq.billing.orders\n"
    );
    let deleted = broker.run("dead-letters purge dlq.billing.orders --execute --json").json();
    assert_eq!(deleted, json!({"topic": "dlq.billing.orders", "deleted": 2}));
    broker.produce("dlq.billing.orders", "no letter\n");
    let odd = broker.run("dead-letters replay dlq.billing.orders").ok();
    assert!(odd.contains("does not say where it comes from"), "{odd}");
    let loops =
        broker.run("dead-letters replay dlq.billing.orders --to dlq.billing.orders --execute").failed();
    assert!(loops.contains("would go back to dlq.billing.orders"), "{loops}");
}

#[test]
fn only_letters_are_purged_and_only_when_that_is_asked_for() {
    let broker = Broker::start();
    broker.run("topic create orders -p 2").ok();
    broker.produce("orders", &numbers(1, 1_000));
    let ordinary = broker.run("consume orders --json").ok();
    for command in ["dead-letters purge orders", "dead-letters purge orders --execute"] {
        let refused = broker.run(command).failed();
        assert!(refused.contains("orders is not a topic of dead letters alone"), "{command}: {refused}");
        assert!(refused.contains("nothing was deleted"), "{command}: {refused}");
    }
    assert_eq!(lines(&broker.run("consume orders --json").ok()), lines(&ordinary));
    // The topic is recognised by its records, not by its name.
    for topic in ["dlq.billing.orders", "set-aside"] {
        broker.run(&format!("topic create {topic} -p 2")).ok();
        broker.produce(&format!("{topic} --json"), &[letter("a", 40, 0), letter("b", 41, 1)].concat());
        let planned = broker.run(&format!("dead-letters purge {topic}")).ok();
        let expected = format!(
            "2 letters of {topic} would be deleted:\n\nPARTITION  LETTERS  FROM  BEFORE\n        1        2     0       2\n\n\
             nothing was changed: --execute does it\n"
        );
        assert_eq!(planned, expected);
        let planned = broker.run(&format!("dead-letters purge {topic} --json")).json();
        let partition = json!({"partition": 1, "letters": 2, "from": 0, "before": 2});
        let expected = json!({"topic": topic, "letters": 2, "partitions": [partition], "executed": false});
        assert_eq!(planned, expected);
        let beyond = broker.run(&format!("dead-letters purge {topic} -p 1 --before 3")).failed();
        assert!(beyond.contains("ends at offset 2"), "{beyond}");
        broker.produce(&format!("{topic} -p 1"), "no letter\n");
        let refused = broker.run(&format!("dead-letters purge {topic} --execute")).failed();
        assert!(refused.contains(&format!("the record at offset 2 of {topic}-1")), "{refused}");
        let deleted = broker.run(&format!("dead-letters purge {topic} -p 1 --before 2 --execute")).ok();
        assert_eq!(deleted, format!("deleted 2 letters of {topic}\n"));
    }
    assert_eq!(
        broker.run("dead-letters purge orders -p 0 --before 0").ok(),
        "orders has no letters to delete\n\nnothing was changed: --execute does it\n"
    );
}

#[test]
fn what_destroys_shows_first_what_it_would_do() {
    let broker = Broker::start();
    broker.run("topic create orders -p 2").ok();
    broker.produce("orders -p 0", &numbers(1, 3));
    broker.run("group reset g --topic orders --to-latest -y").ok();
    let planned = broker.run("topic delete orders").ok();
    let expected = "1 topic would be deleted with all records:\n\nTOPIC   PARTITIONS  RECORDS\norders           2        3\n\n\
                    nothing was changed: --execute does it\n";
    assert_eq!(planned, expected);
    let planned = broker.run("topic delete orders missing --if-exists --json").json();
    let topics = json!([{"topic": "orders", "partitions": 2, "records": 3}]);
    assert_eq!(planned, json!({"topics": topics, "executed": false}));
    let planned = broker.run("group delete g").ok();
    assert!(
        planned.contains("1 group would be deleted with all offsets:\n\nGROUP  MEMBERS  OFFSETS"),
        "{planned}"
    );
    let planned = broker.run("group delete-offsets g --topic orders:0 --json").json();
    let offsets = json!([{"topic": "orders", "partition": 0, "offset": 3}]);
    assert_eq!(planned, json!({"group": "g", "offsets": offsets, "executed": false}));
    assert_eq!(broker.run("consume orders").ok(), numbers(1, 3));
    assert_eq!(committed(&broker), [Some(3), Some(0)]);
}

/// Copies the files of a partition.
fn copy_partition(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn stray_partitions_are_shown_and_deleted_beside_a_broker() {
    let mut broker = Broker::start();
    broker.run("topic create orders -p 1").ok();
    broker.produce("orders", &numbers(1, 100));
    broker.stop();
    let data = broker.data().to_owned();
    for (lost, id) in [("lost-0", "7"), ("lost-1", "8"), ("other.topic-12", "9")] {
        copy_partition(&data.join("orders-0"), &data.join(lost));
        // The id is of no topic, as after a start with other metadata.
        let metadata = format!("version: 0\ntopic_id: {}\n", id.repeat(21) + "A");
        std::fs::write(data.join(lost).join("partition.metadata"), metadata).unwrap();
    }
    broker.start_again();
    let dir = data.display();
    let strays = |json: &Value| -> Vec<String> {
        let strays = json["strays"].as_array().unwrap().iter();
        strays.map(|stray| format!("{}-{}", stray["topic"].as_str().unwrap(), stray["partition"])).collect()
    };

    let planned = broker.run(&format!("log strays {dir}")).ok();
    assert!(planned.starts_with("PARTITION       SEGMENTS"), "{planned}");
    for part in ["\nlost-0 ", "\nlost-1 ", "\nother.topic-12 ", "-stray\n", "3 stray partitions of "] {
        assert!(planned.contains(part), "{part:?} in {planned}");
    }
    assert!(planned.ends_with("would be deleted\n\nnothing was changed: --execute does it\n"), "{planned}");
    // The same directory by another name counts once.
    let listed = broker.run(&format!("log strays {dir} {dir}/. --json")).json();
    assert_eq!(strays(&listed), ["lost-0", "lost-1", "other.topic-12"]);
    let first = &listed["strays"][0];
    assert_eq!((&listed["executed"], &first["segments"]), (&json!(false), &json!(1)));
    assert!(first["bytes"].as_u64() > Some(100), "{first}");
    let now_ms =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64;
    let since_ms = first["set_aside"].as_i64().unwrap();
    assert!((now_ms - 3_600_000..=now_ms + 1_000).contains(&since_ms), "{first}");
    let old = broker.run(&format!("log strays {dir} --older-than P1D --execute")).ok();
    assert_eq!(old, "no stray partition\n");

    let refused = |arguments: &str, why: &str| {
        let run = broker.run(&format!("log strays {arguments} --execute"));
        assert!(run.code != Some(0) && run.stderr.contains(why), "{run:?}");
    };
    refused(&format!("{dir} --partition orders-0"), "no stray partition was orders-0");
    refused(&format!("{dir}/orders-0"), "is within the log directory");
    let elsewhere = tempfile::tempdir().unwrap();
    refused(&elsewhere.path().display().to_string(), "no log directory of a broker");
    refused(&format!("{dir} --older-than 3"), "ISO 8601");

    let one = broker.run(&format!("log strays {dir} --partition lost-1 --execute")).ok();
    assert!(one.contains("\nlost-1 ") && one.contains("\ndeleted 1 stray partition of "), "{one}");
    assert_eq!(strays(&broker.run(&format!("log strays {dir} --json")).json()), ["lost-0", "other.topic-12"]);
    let rest = broker.run(&format!("log strays {dir} --execute --json")).json();
    assert_eq!((strays(&rest).len(), &rest["executed"]), (2, &json!(true)));
    let left =
        std::fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(left.into_iter().all(|name| !name.contains("-stray") && !name.contains("-delete")));
    assert_eq!(broker.run("consume orders").ok(), numbers(1, 100));
    broker.stop();
}

#[test]
fn a_letter_that_was_replayed_alone_is_not_written_again_with_its_partition() {
    let broker = Broker::start();
    broker.run("topic create orders -p 3").ok();
    reads_orders(&broker);
    broker.run("topic create dlq.billing.orders -p 2").ok();
    let letters = [letter("a", 40, 0), letter("b", 41, 0), letter("c", 42, 0)].concat();
    broker.produce("dlq.billing.orders --json", &letters);
    let one = "dead-letters replay dlq.billing.orders -p 1 --offset 1 --execute";
    let targets = "TO      PARTITION  LETTERS\norders          2        1\n";
    let said = format!("{targets}\nreplayed 1 letter of dlq.billing.orders; they stay there\n");
    assert_eq!(broker.run(one).ok(), said);
    assert_eq!(broker.run("consume orders").ok(), "v41\n");
    let shown = broker.run("dead-letters show dlq.billing.orders --json").json();
    assert_eq!(shown.as_array().unwrap().len(), 3, "a note is no letter: {shown}");
    let planned = broker.run("dead-letters purge dlq.billing.orders --json").json();
    assert_eq!(planned["letters"], 3);
    let would = broker.run("dead-letters replay dlq.billing.orders -p 1 --json").json();
    assert_eq!((&would["replayed"], &would["replayed_before"]), (&json!(2), &json!(1)));
    let all = broker.run("dead-letters replay dlq.billing.orders -p 1 --execute --json").json();
    assert_eq!((&all["replayed"], &all["deleted"]), (&json!(2), &json!(3)));
    assert_eq!(broker.run("consume orders").ok(), "v41\nv40\nv42\n");
    assert_eq!(broker.run("dead-letters list --json").json()[0]["letters"], 0);
    // A letter named by its offset is written again, and noted again.
    broker.produce("dlq.billing.orders --json", &letters);
    let first = broker.run("dead-letters show dlq.billing.orders --json -n 1").json()[0]["offset"].clone();
    for _ in 0..2 {
        broker.run(&format!("dead-letters replay dlq.billing.orders -p 1 --offset {first} --execute")).ok();
    }
    let lines = broker.run("consume orders").ok();
    assert_eq!(lines, "v41\nv40\nv42\nv40\nv40\n");
    let rest = broker.run("dead-letters replay dlq.billing.orders --execute --json").json();
    assert_eq!(
        (&rest["replayed"], &rest["replayed_before"], &rest["deleted"]),
        (&json!(2), &json!(1), &json!(3))
    );
}

#[test]
fn letters_go_only_where_their_group_reads_and_a_bad_one_ends_no_replay() {
    let broker = Broker::start();
    for topic in ["orders", "payments", "dlq.billing.orders", "rescue"] {
        broker.run(&format!("topic create {topic} -p 3")).ok();
    }
    reads_orders(&broker);
    broker.run("group reset other --topic payments --to-earliest -y").ok();
    let forged = [
        letter_from("payments", "a", 40, 0),
        letter_from("missing", "b", 41, 0),
        letter_from("orders", "c", 42, 0),
        // This letter names another group than its topic of dead letters does.
        letter_from("payments", "d", 43, 0).replace("\"billing\"", "\"other\""),
        letter_from("dlq.billing.orders", "e", 44, 0),
        letter_from("orders", "f", 45, 0),
    ];
    broker.produce("dlq.billing.orders --json", &forged.concat());
    let would = broker.run("dead-letters replay dlq.billing.orders").ok();
    assert!(would.starts_with("2 letters of dlq.billing.orders would be replayed:\n\nTO      PARTITION  LETTERS\norders          2        2\n"), "{would}");
    assert!(would.contains("dlq.billing.orders-1@0: group billing does not read topic payments"), "{would}");
    assert!(would.ends_with("nothing was changed: --execute does it\n"), "{would}");
    let run = broker.run("dead-letters replay dlq.billing.orders --execute --json");
    assert_eq!(run.code, Some(1), "{run:?}");
    let said: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((&said["replayed"], &said["failed"], &said["deleted"]), (&json!(2), &json!(4), &json!(0)));
    let offsets: Vec<_> =
        said["failures"].as_array().unwrap().iter().map(|one| one["offset"].clone()).collect();
    assert_eq!(offsets, [0, 1, 3, 4].map(|offset| json!(offset)));
    assert_eq!(said["targets"], json!([{"topic": "orders", "partition": 2, "letters": 2}]));
    assert!(run.stderr.contains("4 letters of dlq.billing.orders were not replayed"), "{run:?}");
    assert_eq!(broker.run("consume orders").ok(), "v42\nv45\n");
    assert_eq!(broker.run("consume payments").ok(), "");
    // The failed letters are still there; --to gives them a topic.
    let rest = broker.run("dead-letters replay dlq.billing.orders --to rescue --execute --json").json();
    assert_eq!((&rest["replayed"], &rest["replayed_before"]), (&json!(4), &json!(2)));
    assert_eq!(lines(&broker.run("consume rescue").ok()), lines("v40\nv41\nv43\nv44\n"));
}

#[test]
fn a_letter_that_its_topic_does_not_take_is_named_and_the_others_are_replayed() {
    let broker = Broker::start();
    broker.run("topic create orders -p 3 --config max.message.bytes=2000").ok();
    reads_orders(&broker);
    broker.run("topic create dlq.billing.orders -p 2").ok();
    let large = letter("b", 41, 0).replace("v41", &"x".repeat(3_000));
    broker.produce("dlq.billing.orders --json", &[letter("a", 40, 0), large, letter("c", 42, 0)].concat());
    let run = broker.run("dead-letters replay dlq.billing.orders --execute");
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stdout.contains("replayed 2 letters of dlq.billing.orders; they stay there"), "{run:?}");
    assert!(
        run.stdout.contains("dlq.billing.orders-1@1: ") && run.stdout.contains("MESSAGE_TOO_LARGE"),
        "{run:?}"
    );
    assert_eq!(broker.run("consume orders").ok(), "v40\nv42\n");
    let again = broker.run("dead-letters replay dlq.billing.orders --json").json();
    assert_eq!((&again["replayed"], &again["replayed_before"]), (&json!(1), &json!(2)));
}

#[test]
fn letters_are_chosen_by_class_cause_key_and_time() {
    let broker = Broker::start();
    broker.run("topic create orders -p 3").ok();
    reads_orders(&broker);
    broker.run("topic create dlq.billing.orders -p 2").ok();
    let at = |line: String, ms: u64| {
        let mut line: Value = serde_json::from_str(&line).unwrap();
        line["timestamp"] = json!(ms);
        format!("{line}\n")
    };
    let day = 1_700_000_000_000;
    let letters = [
        at(letter("a", 40, 0), day),
        at(letter("b", 41, 0).replace("\"poison\"", "\"failed\""), day + 1_000),
        at(letter("c", 42, 0).replace("2^64", "2^32"), day + 2_000),
    ];
    broker.produce("dlq.billing.orders --json", &letters.concat());
    let chosen = |filter: &str| -> Vec<i64> {
        let shown = broker.run(&format!("dead-letters show dlq.billing.orders --json {filter}")).json();
        let would = broker.run(&format!("dead-letters replay dlq.billing.orders --json {filter}")).json();
        let offsets: Vec<i64> =
            shown.as_array().unwrap().iter().filter_map(|one| one["offset"].as_i64()).collect();
        assert_eq!(would["replayed"].as_u64(), Some(offsets.len() as u64), "{filter}");
        assert_eq!(would["left_out"].as_u64(), Some(3 - offsets.len() as u64), "{filter}");
        offsets
    };
    assert_eq!(chosen("--class poison"), [0, 2]);
    assert_eq!(chosen("--class failed"), [1]);
    assert_eq!(chosen("--cause 2^32"), [2]);
    assert_eq!(chosen("--key b"), [1]);
    assert_eq!(chosen("--since 2023-11-14T22:13:21Z"), [1, 2]);
    assert_eq!(chosen("--until 2023-11-14T22:13:21Z"), [0]);
    assert_eq!(chosen("--class poison --since 2023-11-14T22:13:21Z"), [2]);
    let done = broker.run("dead-letters replay dlq.billing.orders --key b --execute").ok();
    assert!(done.contains("replayed 1 letter of dlq.billing.orders; they stay there"), "{done}");
    assert_eq!(broker.run("consume orders").ok(), "v41\n");
    let rest = broker.run("dead-letters replay dlq.billing.orders --execute --json").json();
    assert_eq!(
        (&rest["replayed"], &rest["replayed_before"], &rest["deleted"]),
        (&json!(2), &json!(1), &json!(3))
    );
}

#[test]
fn a_letter_without_its_value_is_not_replayed_and_one_that_just_fits_is() {
    let broker = Broker::start();
    // A batch of one record has some 70 bytes of overhead; the headers of a replay do not fit into the rest.
    broker.run("topic create orders -p 3 --config max.message.bytes=400").ok();
    reads_orders(&broker);
    broker.run("topic create dlq.billing.orders -p 2").ok();
    let lacking = letter("a", 40, 0).replace(
        "{\"key\":\"trace\"",
        "{\"key\":\"__mainstem.errors.left.out\",\"value\":\"value\"},{\"key\":\"trace\"",
    );
    let tight = letter("b", 41, 0).replace("v41", &"x".repeat(280));
    broker.produce("dlq.billing.orders --json", &[lacking, tight].concat());
    let shown = broker.run("dead-letters show dlq.billing.orders -p 1 --offset 0").ok();
    assert!(shown.contains("left out    value\n"), "{shown}");
    let run = broker.run("dead-letters replay dlq.billing.orders --execute");
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stdout.contains("the message is orders-2@40, if its topic still has it"), "{run:?}");
    let back = broker.run("consume orders --json").ok();
    let back: Vec<Value> = back.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(back.len(), 1, "{back:?}");
    assert_eq!(
        back[0]["headers"],
        json!([{"key": "trace", "value": "4711"}, {"key": "__mainstem.errors.rounds", "value": "1"}])
    );
}

#[test]
fn a_whole_file_is_one_record() {
    let broker = Broker::start();
    broker.run("topic create t -p 1").ok();
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text");
    std::fs::write(&text, "two lines\nand an end without one").unwrap();
    let text = text.display();
    broker.run(&format!("produce t --file {text} -k key -H h=1")).ok();
    broker.produce("t --file -", "of standard input\n");
    let shown = broker.run("consume t --json").ok();
    let records: Vec<_> =
        shown.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()).collect();
    assert_eq!(records.len(), 2, "{shown}");
    assert_eq!(
        (&records[0]["value"], &records[0]["key"]),
        (&"two lines\nand an end without one".into(), &"key".into())
    );
    assert_eq!(records[1]["value"], "of standard input\n");
    for (file, reason) in
        [("/dev/zero", "/dev/zero is no regular file"), ("/no/such", "/no/such cannot be read")]
    {
        let message = broker.run(&format!("produce t --file {file}")).failed();
        assert!(message.contains(reason), "{message}");
    }
    assert_eq!(broker.run("produce t --file a --key-separator :").code, Some(2));
}
