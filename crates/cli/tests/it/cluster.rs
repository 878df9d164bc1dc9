//! `mainstem cluster status`, `mainstem cluster elect` and `mainstem cluster reassign`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::broker::Broker;
use crate::support::cluster::Cluster;

/// The longest wait for anything.
const DEADLINE: Duration = Duration::from_secs(120);

/// Partition 0 of topic `t`.
fn partition(cluster: &Cluster) -> Value {
    cluster.run("topic describe t --json").json()[0]["partitions"][0].clone()
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn replicas_move_and_the_preferred_one_leads_when_that_is_asked_for() {
    let mut cluster = Cluster::start();
    cluster.run("topic create t -p 1 --replication-factor 3").ok();
    wait_for("the partition has a leader", || partition(&cluster)["leader"].is_u64());
    let leader = partition(&cluster)["leader"].as_u64().unwrap();
    let next = leader % 3 + 1;
    let last = next % 3 + 1;
    let file = cluster.file("reassignment.json");
    let reassign = |replicas: [u64; 3]| {
        let partition = json!({"topic": "t", "partition": 0, "replicas": replicas});
        std::fs::write(&file, json!({"version": 1, "partitions": [partition]}).to_string()).unwrap();
        format!("cluster reassign --from-file {}", file.display())
    };
    let order = reassign([next, leader, last]);
    let before = partition(&cluster);
    let planned = cluster.run(&format!("{order} --json")).json();
    assert_eq!(planned["partitions"][0]["new_replicas"], json!([next, leader, last]));
    assert_eq!(partition(&cluster), before, "it was only shown");
    cluster.run(&format!("{order} --execute")).ok();
    wait_for("the replicas are in another order", || {
        partition(&cluster)["replicas"] == json!([next, leader, last])
    });
    wait_for("all are in sync", || partition(&cluster)["isr"].as_array().is_some_and(|isr| isr.len() == 3));
    let elected = cluster.run("cluster elect --topic t --json").json();
    assert_eq!(elected[0]["error"], Value::Null, "{elected}");
    wait_for("the first of them leads", || partition(&cluster)["leader"] == json!(next));
    verify_and_propose(&cluster, &order);
    // A dead node cannot lead.
    cluster.run(&format!("{} --execute", reassign([last, next, leader]))).ok();
    wait_for("the replicas are in another order", || {
        partition(&cluster)["replicas"] == json!([last, next, leader])
    });
    cluster.kill(usize::try_from(last).unwrap());
    wait_for("the node is missed", || {
        partition(&cluster)["isr"].as_array().is_some_and(|isr| isr.len() == 2)
    });
    let refused = cluster.run("cluster elect --topic t");
    assert!(refused.stdout.contains("PREFERRED_LEADER_NOT_AVAILABLE"), "{refused:?}");
    let message = refused.failed();
    assert!(message.contains("1 of 1 partition did not get the leader that was asked for"), "{message}");
}

/// Verifies a reassignment that is done, by its file. Then two partitions lead on one node, and a proposal evens them
/// out. A move that the nodes refuse leaves no throttle behind.
fn verify_and_propose(cluster: &Cluster, order: &str) {
    let verified = |order: &str| cluster.run(&format!("{order} --verify --json"));
    wait_for("it is done", || verified(order).stdout.contains(r#""done":true"#));
    assert_eq!(verified(order).json()["partitions"][0]["state"], "done");
    cluster.run("topic create even -p 2 --replication-factor 3").ok();
    let uneven = cluster.file("uneven.json");
    let partitions: Vec<_> =
        (0..2).map(|index| json!({"topic": "even", "partition": index, "replicas": [1, 2, 3]})).collect();
    std::fs::write(&uneven, json!({"version": 1, "partitions": partitions}).to_string()).unwrap();
    let uneven = format!("cluster reassign --from-file {}", uneven.display());
    // No partition moves, so that none is throttled.
    cluster.run(&format!("{uneven} --throttle 1000000 --execute")).ok();
    wait_for("one node leads both", || verified(&uneven).stdout.contains(r#""done":true"#));
    assert_eq!(verified(&uneven).json()["throttle_left"], false);
    let plan = cluster.file("plan.json");
    let generate = format!("cluster reassign --generate --topic even --to-file {}", plan.display());
    let proposed = cluster.run(&format!("{generate} --json")).json();
    let replicas = |partition: &Value| partition["replicas"].as_array().map_or(0, Vec::len);
    let moved = proposed["proposed"]["partitions"].as_array().expect("one node leads both");
    assert!(moved.iter().all(|partition| replicas(partition) == 3), "{proposed}");
    assert!(cluster.run(&generate).failed().contains("name one that does not exist"));
    cluster.run(&format!("cluster reassign --from-file {} --execute", plan.display())).ok();
    wait_for("they are even", || {
        cluster.run("cluster reassign --generate --topic even").stdout.contains("there is nothing to propose")
    });
    wait_for("they are elsewhere", || {
        cluster.run(&format!("{uneven} --verify")).stderr.contains("not where the file has them")
    });
    let message = cluster.run("cluster reassign --generate --replication-factor 4").failed();
    assert!(message.contains("is to have 4 replicas, and there are 3 nodes for them"), "{message}");
    let message = cluster.run("cluster reassign --generate --nodes 1,9").failed();
    assert!(message.contains("--nodes names 9, which the cluster does not have; it has 1,2,3"), "{message}");
    cluster.run("topic create one -p 1 --replication-factor 1").ok();
    let replica = cluster.run("topic describe one --json").json()[0]["partitions"][0]["replicas"][0].as_u64();
    let another = replica.expect("it has one") % 3 + 1;
    let to_another = cluster.file("another.json");
    let partition = json!({"topic": "one", "partition": 0, "replicas": [another]});
    std::fs::write(&to_another, json!({"version": 1, "partitions": [partition]}).to_string()).unwrap();
    let to_another = format!("cluster reassign --from-file {}", to_another.display());
    cluster.run("config set broker/1 leader.replication.throttled.rate=77").ok();
    cluster.run(&format!("{to_another} --throttle 1000000 --execute")).failed();
    for resource in ["topic/one", "broker/1", "broker/2", "broker/3"] {
        let set = cluster.run(&format!("config get {resource}")).ok();
        assert!(!set.contains("1000000") && !set.contains("0:"), "{resource}: {set}");
    }
    let set = cluster.run("config get broker/1").ok();
    assert!(set.contains("leader.replication.throttled.rate") && set.contains("77"), "it stays: {set}");
}

#[test]
fn a_node_that_is_killed_is_fenced_and_silent_and_the_others_are_up() {
    let mut cluster = Cluster::start();
    let state = |cluster: &Cluster, node: u64| {
        let status = cluster.run("cluster status --json");
        let status: Value = serde_json::from_str(&status.stdout).unwrap_or_default();
        let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
        nodes.into_iter().find(|one| one["id"] == node).unwrap_or_default()
    };
    let is_up = |cluster: &Cluster, node: u64| {
        let node = state(cluster, node);
        node["state"] == "up" && node["silent_ms"].is_null() && node["fenced"] == false
    };
    wait_for("all nodes are up", || (1..=3).all(|node| is_up(&cluster, node)));
    let shown = cluster.run("cluster status").ok();
    assert!(shown.contains("STATE") && !shown.contains("fenced"), "{shown}");
    let leader = cluster.run("cluster status --json").json()["metadata_leader"].as_u64().unwrap();
    let killed = leader % 3 + 1;
    cluster.kill(usize::try_from(killed).unwrap());
    wait_for("the node is fenced, and silent", || {
        let node = state(&cluster, killed);
        node["state"] == "fenced" && node["silent_ms"].as_u64().is_some_and(|ms| ms > 3_000)
    });
    let shown = cluster.run("cluster status").ok();
    assert!(shown.contains("fenced, silent for "), "{shown}");
    wait_for("the others are up", || {
        (1..=3).filter(|node| *node != killed).all(|node| is_up(&cluster, node))
    });
}

#[test]
fn leaders_are_elected() {
    let broker = Broker::start();
    broker.run("topic create t -p 2").ok();
    let shown = broker.run("cluster elect --topic t").ok();
    let expected = "TOPIC  PARTITION  LEADER  RESULT\nt              0       1  it leads already\n\
                    t              1       1  it leads already\n";
    assert_eq!(shown, expected);
    let json = broker.run("cluster elect --topic t --partition 1 --json").json();
    let one = json!({"topic": "t", "partition": 1, "leader": 1, "elected": false, "error": null});
    assert_eq!(json, json!([one]));
    let all = broker.run("cluster elect --all").ok();
    assert_eq!(all, "the first replica of every partition leads it already\n");
    for nothing in ["--all --unclean", "--topic t --unclean --execute"] {
        let none = broker.run(&format!("cluster elect {nothing}")).ok();
        assert_eq!(none, "every partition has a leader; there is none to elect\n", "{nothing}");
    }
    assert!(broker.run("cluster elect --topic missing").failed().contains("there is no topic missing"));
    assert!(broker.run("cluster elect --topic t -p 2").failed().contains("topic t has no partition 2"));
    for wrong in ["", "--all --topic t", "--all --partition 0"] {
        assert_eq!(broker.run(&format!("cluster elect {wrong}")).code, Some(2), "{wrong}");
    }
}

#[test]
fn partitions_are_reassigned_from_a_file() {
    let broker = Broker::start();
    broker.run("topic create t -p 1").ok();
    assert_eq!(broker.run("cluster reassign").ok(), "no reassignment is running\n");
    let file = broker.data().join("reassignment.json");
    let write = |topic: &str, replicas: &str| {
        let partition =
            format!(r#"{{"topic":"{topic}","partition":0,"replicas":{replicas},"log_dirs":["any"]}}"#);
        std::fs::write(&file, format!(r#"{{"version":1,"partitions":[{partition}]}}"#)).unwrap();
    };
    let reassign =
        |more: &str| broker.run(&format!("cluster reassign --from-file {} {more}", file.display()));
    write("t", "[1]");
    let planned = reassign("").ok();
    let expected = "1 partition would be reassigned:\n\nTOPIC  PARTITION  REPLICAS  NEW REPLICAS\n\
                    t              0  1         1\n\nthis file takes it back:\n\
                    {\"partitions\":[{\"partition\":0,\"replicas\":[1],\"topic\":\"t\"}],\"version\":1}\n\n\
                    nothing was changed: --execute does it\n";
    assert_eq!(planned, expected);
    assert_eq!(reassign("--json").json()["current"]["partitions"][0]["replicas"], json!([1]));
    assert!(reassign("--execute").ok().starts_with("began to reassign 1 partition; "));
    assert_eq!(broker.run("cluster reassign --json").json(), json!([]));
    let message = reassign("--cancel --execute").failed();
    assert!(message.contains("no reassignment of t-0 is running; nothing was cancelled"), "{message}");
    let nothing = "no reassignment is running; there is nothing to cancel\n";
    assert_eq!(broker.run("cluster reassign --cancel --execute").ok(), nothing);
    write("t", "[1,9]");
    let message = reassign("--execute").failed();
    assert!(
        message.contains("t-0 cannot go to node 9, which the cluster does not have; it has 1"),
        "{message}"
    );
    write("missing", "[1]");
    assert!(reassign("").failed().contains("there is no topic missing"));
    write("t", "[]");
    let message = reassign("").failed();
    assert!(message.contains("t-0 is to have no replica"), "{message}");
    assert!(broker.run("cluster reassign --execute").failed().contains("goes with --from-file or --cancel"));
}
