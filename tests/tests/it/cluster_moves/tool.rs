//! Kafka's own tool, kafka-reassign-partitions.sh, says what it says of Apache Kafka. `TEST_CLUSTER_SYSTEM=kafka` runs the same on that.

use std::fs;

use mainstem_client::{ConfigResource, ConfigSource, NewTopic, TopicPartition};
use mainstem_tests::cluster::System;
use mainstem_tests::kafka_node::kafka_says;
use serde_json::{Value, json};

use super::TOPIC;
use super::load::{Fill, Load};
use super::scene::{Scene, Targets, partitions, targets};

const TOOL: &str = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand";
const CURRENT: &str = "Current partition replica assignment";
const PROPOSED: &str = "Proposed partition reassignment configuration";
const SAVE: &str = "Save this to use as the --reassignment-json-file option during rollback";
const WARNING: &str = "Warning: You must run --verify periodically, until the reassignment completes, to ensure the throttle is removed.";
/// Keys that the tool sets for nodes and for the topic.
const THROTTLES: [&str; 4] = [
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
];

/// A step of the tool with a file of its own; `None` without Kafka's tools.
fn tool(scene: &Scene, (option, content): (&str, &str), action: &str) -> Option<Vec<String>> {
    let file = scene.cluster.home().join("moves.json");
    fs::write(&file, content).expect("a file can be written");
    let bootstrap = scene.cluster.bootstrap();
    let said = kafka_says(TOOL, &bootstrap, &format!("{option} {} {action}", file.display()))?;
    Some(said.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

fn reassign(scene: &Scene, targets: &Targets, action: &str) -> Vec<String> {
    let content = json_of(targets).to_string();
    tool(scene, ("--reassignment-json-file", &content), action).expect("Kafka's tools are there")
}

/// Moves as the tool reads them.
fn json_of(targets: &Targets) -> Value {
    let one = |(partition, replicas): (&TopicPartition, &Vec<i32>)| {
        let (topic, number) = (&*partition.topic, partition.partition);
        json!({ "topic": topic, "partition": number, "replicas": replicas })
    };
    json!({ "version": 1, "partitions": targets.iter().map(one).collect::<Vec<_>>() })
}

/// Moves as the tool writes them.
#[track_caller]
fn targets_of(line: &str) -> Targets {
    let value: Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(value["version"], 1);
    let one = |one: &Value| {
        let replicas: Vec<i32> = serde_json::from_value(one["replicas"].clone()).expect("replicas");
        assert_eq!(one["log_dirs"].as_array().map(Vec::len), Some(replicas.len()), "{line}");
        let partition = one["partition"].as_i64().expect("a number") as i32;
        (TopicPartition::new(one["topic"].as_str().expect("a name"), partition), replicas)
    };
    value["partitions"].as_array().expect("partitions").iter().map(one).collect()
}

/// Status lines for all these partitions.
fn status(targets: &Targets, of_each: &str) -> Vec<String> {
    let line = |partition: &TopicPartition| format!("Reassignment of partition {partition} is {of_each}.");
    std::iter::once("Status of partition reassignment:".to_owned()).chain(targets.keys().map(line)).collect()
}

/// The lines of the tool about throttles that it removes.
fn cleared() -> [String; 2] {
    let nodes = "Clearing broker-level throttles on brokers 1,2,3,4".to_owned();
    [nodes, format!("Clearing topic-level throttles on topic {TOPIC}")]
}

/// The lines of the tool about moves that it cancels. It looks for moves between log directories, too.
fn cancelled(of_nodes: String) -> Vec<String> {
    let [nodes, topic] = cleared();
    // The tool ends no line there.
    vec![of_nodes, format!("None of the specified partition moves are active.{nodes}"), topic]
}

fn names(targets: &Targets) -> String {
    targets.keys().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// The throttles of all nodes and of the topic, with where they are set.
fn throttles(scene: &Scene) -> Vec<String> {
    let nodes = scene.cluster.ids().into_iter().map(ConfigResource::Broker);
    let resources = nodes.chain([ConfigResource::Topic(TOPIC.into())]);
    let set = resources.flat_map(|resource| {
        let found = scene.runtime.block_on(scene.admin.configs(&resource)).expect("settings");
        let set = found
            .into_iter()
            .filter(|one| THROTTLES.contains(&&*one.name) && one.source != ConfigSource::Default);
        set.map(move |one| format!("{resource:?}: {}={}", one.name, one.value.unwrap_or_default()))
    });
    set.collect()
}

fn start(name: &str, before: &[&[i32]]) -> (Scene, Targets, Load) {
    let mut scene = Scene::start(name, System::from_environment());
    scene.create(&NewTopic::new(TOPIC).replicas(before.iter().map(|nodes| nodes.to_vec())));
    let load = Load::start(&scene, &partitions(TOPIC, before.len()), Fill { records: 400, ..Fill::LARGE });
    (scene, targets(TOPIC, before), load)
}

/// The tool's proposal for nodes 2 to 4.
fn generate(scene: &Scene, before: &Targets) -> Option<Targets> {
    let topics = json!({ "version": 1, "topics": [{ "topic": TOPIC }] }).to_string();
    let said = tool(scene, ("--topics-to-move-json-file", &topics), "--broker-list 2,3,4 --generate")?;
    let [current, were, proposed, are] = &said[..] else { panic!("{said:?}") };
    assert_eq!((&**current, &**proposed), (CURRENT, PROPOSED));
    assert_eq!(targets_of(were), *before);
    let found = targets_of(are);
    assert_eq!(found.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
    for replicas in found.values() {
        let mut sorted = replicas.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [2, 3, 4], "it proposes the nodes that were named");
    }
    Some(found)
}

/// Begins moves with a throttle by the tool.
fn execute(scene: &Scene, before: &Targets, after: &Targets, rate: u64) {
    let said = reassign(scene, after, &format!("--execute --throttle {rate}"));
    let [current, were, save, warning, limit, started] = &said[..] else { panic!("{said:?}") };
    assert_eq!((&**current, &**save, &**warning), (CURRENT, SAVE, WARNING));
    assert_eq!(targets_of(were), *before);
    assert_eq!(*limit, format!("The inter-broker throttle limit was set to {rate} B/s"));
    assert_eq!(
        *started,
        format!("Successfully started partition reassignment{} for {}", plural(after), names(after))
    );
}

fn plural(targets: &Targets) -> &'static str {
    if targets.len() == 1 { "" } else { "s" }
}

#[test]
fn kafkas_tool_moves_replicas_with_a_throttle() {
    let (scene, before, load) = start("cluster-moves-tool", &[&[1, 2, 3], &[2, 3, 1], &[3, 1, 2]]);
    let Some(after) = generate(&scene, &before) else { return };
    execute(&scene, &before, &after, 1_000);
    scene.await_begun(&after);
    assert_eq!(
        reassign(&scene, &after, "--verify --preserve-throttles"),
        status(&after, "still in progress")
    );
    assert_eq!(throttles(&scene).len(), 2 * 4 + 2, "{:?}", throttles(&scene));
    load.await_more();

    // The documented way to another rate.
    let said = reassign(&scene, &after, "--execute --additional --throttle 100000000");
    assert!(
        said.iter().any(|line| line == "The inter-broker throttle limit was set to 100000000 B/s"),
        "{said:?}"
    );
    scene.await_moved(&after);
    load.await_more();
    let completed: Vec<_> = status(&after, "completed").into_iter().chain(cleared()).collect();
    assert_eq!(reassign(&scene, &after, "--verify"), completed);
    assert_eq!(throttles(&scene), [""; 0]);
    scene.assert_settled(&load.end(), &after);
    scene.assert_led_by_the_first(&after);
    scene.stop_and_look_for_faults();
}

#[test]
fn kafkas_tool_cancels_a_move_and_changes_the_number_of_replicas() {
    let (scene, three, load) = start("cluster-moves-tool-cancel", &[&[1, 2, 3]]);
    let elsewhere = targets(TOPIC, &[&[2, 3, 4]]);
    if kafka_says(TOOL, &scene.cluster.bootstrap(), "--list").is_none() {
        return;
    }
    execute(&scene, &three, &elsewhere, 1_000);
    scene.await_begun(&elsewhere);
    load.await_more();
    let done = format!("Successfully cancelled partition reassignment for: {}", names(&three));
    assert_eq!(reassign(&scene, &elsewhere, "--cancel"), cancelled(done));
    assert_eq!(throttles(&scene), [""; 0]);
    scene.await_moved(&three);
    scene.await_only_on(&TopicPartition::new(TOPIC, 0), &[1, 2, 3]);
    load.await_more();
    let nothing = "None of the specified partition reassignments are active.".to_owned();
    assert_eq!(reassign(&scene, &elsewhere, "--cancel"), cancelled(nothing));

    for target in [&[4, 2][..], &[1, 2, 4]] {
        let target = targets(TOPIC, &[target]);
        let said = reassign(&scene, &target, "--execute");
        assert_eq!(
            said.last(),
            Some(&format!("Successfully started partition reassignment for {}", names(&target)))
        );
        scene.await_moved(&target);
        load.await_more();
    }
    scene.assert_settled(&load.end(), &targets(TOPIC, &[&[1, 2, 4]]));
}
