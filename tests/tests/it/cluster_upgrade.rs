//! A rolling upgrade from the previous release, and the way back, under real clients that see no error.
//!
//! The nodes begin with the binary that `TEST_PREVIOUS_BINARY` names: Mainstem 0.1, whose nodes work at level 1 of
//! `mainstem.version`. Each of them can go back to it until the level is raised, and none after that. The load and the check of its
//! history are those of `cluster_kills`.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;

use mainstem_client::{Admin, NewTopic, Producer, ProducerConfig};
use mainstem_replication::journal::JOURNAL;
use mainstem_tests::broker::binary;
use mainstem_tests::cluster::{Cluster, Setup, System};
use mainstem_tests::wait::eventually;
use mainstem_wire::sample::Rng;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::cluster_kills::clients::RealClient;
use crate::cluster_kills::load::{self, Others, start_actors};
use crate::cluster_kills::run::Run;
use crate::cluster_kills::{installed, outcome, random, runtime, start_again, stop_in_order};

/// The variable that names the previous release.
const PREVIOUS: &str = "TEST_PREVIOUS_BINARY";

/// Its answer to a directory that the new release has raised.
const REFUSAL: &str = "cannot be used, because of its meta.properties: mainstem.format=3 is newer than 2, the newest that this release \
                       knows; start the release that wrote it";

/// The line of Mainstem 0.1 for a fault of its own, with which a node ends: it takes a partition of a coordinators' topic over before it
/// knows how many partitions that has, at the creation of the topic.
const FAULT_AT_CREATION: &str = "partitions are served already";

/// Reasons for the end of a link that say nothing against what came through it.
const ENDS: [&str; 4] = ["the node has ended it", "(os error", "it ended within a frame", "nothing came for"];

/// The previous release. None where it is not built, which is printed.
fn previous() -> Option<PathBuf> {
    let named = std::env::var_os(PREVIOUS).map(PathBuf::from);
    let is_required = std::env::var("CI").as_deref() == Ok("true");
    assert!(named.is_some() || !is_required, "{PREVIOUS} has to name the previous release");
    if named.is_none() {
        eprintln!("skipped: {PREVIOUS} does not name the previous release, which cargo xtask test builds");
    }
    named
}

/// Returns true for an error in a node's log, and for a line about what another node sent and this one does not understand.
fn is_fault(line: &str) -> bool {
    let ended = line.split_once("the link ").and_then(|(_, rest)| rest.split_once(" ended: "));
    let is_unexpected = ended.is_some_and(|(_, why)| !ENDS.iter().any(|end| why.contains(end)));
    line.contains(" ERROR ") || line.contains("makes no sense") || is_unexpected
}

#[test]
fn what_a_node_does_not_understand_is_found_in_its_log() {
    let lines = [
        (" WARN mainstem_links::dial: the link to node 2 ended: the node has ended it node=2", false),
        (
            " WARN mainstem_links::gate::refusals: the link from node 3 ended: Broken pipe (os error 32) node=3",
            false,
        ),
        (
            " WARN mainstem_links::gate::refusals: the link from node 3 ended: t-0: a message of kind 12 node=3",
            true,
        ),
        (
            " WARN mainstem_node::answers: a question of another node makes no sense: unknown variant from=2",
            true,
        ),
        ("ERROR mainstem_links::dial: no link to h:1: it speaks version 2 of links node=2", true),
        (" INFO mainstem_links::dial: linked to node 2 node=2", false),
    ];
    for (line, expected) in lines {
        assert_eq!(is_fault(&format!("2026-11-30T15:33:28.037632Z {line}")), expected, "{line}");
    }
}

#[test]
fn a_cluster_is_upgraded_under_real_clients_and_each_node_can_go_back_until_the_level_is_raised() {
    let Some(previous) = previous() else { return };
    let clients = installed(&RealClient::OF_ALL_FAULTS);
    let others = Others { clients: clients.clone(), looping: clients };
    let setup = Setup::new("cluster-upgrade", System::Mainstem).program(previous.clone());
    let cluster = setup.set("mainstem.http.listener", "127.0.0.1:0").start().expect("our own binaries");
    runtime().block_on(async {
        let mut rng = random();
        let mut upgrade = Upgrade::begin(cluster, previous, &others, &mut rng).await;
        upgrade.all_nodes().await;
        upgrade.one_node_back_and_forth(1 + rng.below(3) as i32).await;
        upgrade.raise_the_level();
        upgrade.one_node_cannot_go_back(1 + rng.below(3) as i32).await;
        upgrade.restart(1 + rng.below(3) as i32, binary()).await;
        upgrade.finish(&others).await;
    });
}

/// Creates the topics of coordinators, before there is a load. A node that ends with [`FAULT_AT_CREATION`] starts again.
async fn create_coordinators(cluster: &mut Cluster) {
    cluster.wait_until_ready().await;
    let admin = Admin::new(cluster.client());
    let config = ProducerConfig::new(cluster.client()).transactional_id("first");
    Producer::new(config).expect("the settings agree").init_transactions().await.expect("a coordinator");
    admin.group_offsets("first").await.expect("a coordinator");
    for topic in load::INTERNAL {
        cluster.wait_until_in_sync_beside(topic, start_what_has_ended).await;
    }
    // A node creates topics one after the other: one that has this one has passed the place of the fault.
    let last = NewTopic { replication_factor: Some(3), ..NewTopic::new("created-last").partitions(1) };
    admin.create_topic(&last).await.expect("a topic");
    cluster.wait_until_in_sync_beside(&last.name, start_what_has_ended).await;
}

fn start_what_has_ended(cluster: &mut Cluster) {
    for node in cluster.ids() {
        if cluster.has_ended(node) {
            cluster.wait_for_end(node);
            assert!(cluster.log(node).contains(FAULT_AT_CREATION), "{}", cluster.tails());
            eprintln!("node {node} has ended with a fault of the previous release: {FAULT_AT_CREATION}");
            // Its log is judged from now on.
            fs::remove_file(cluster.home().join(format!("node-{node}/node.log"))).expect("its log");
            cluster.start_node(node);
        }
    }
}

/// A cluster under load whose nodes run two releases.
struct Upgrade {
    cluster: Cluster,
    previous: PathBuf,
    run: Arc<Run>,
    actors: JoinSet<()>,
}

impl Upgrade {
    /// Starts the load, with all nodes at the previous release.
    async fn begin(mut cluster: Cluster, previous: PathBuf, others: &Others, rng: &mut Rng) -> Upgrade {
        create_coordinators(&mut cluster).await;
        load::create_topics(&mut cluster).await;
        let run = Arc::new(Run::new());
        let actors = start_actors(&run, &cluster, others, rng);
        run.wait_for_begun_clients(&cluster).await;
        Upgrade { cluster, previous, run, actors }
    }

    /// Restarts one node after the other with the new release. The first of them knows the levels of all.
    async fn all_nodes(&mut self) {
        for node in self.cluster.ids() {
            self.restart(node, binary()).await;
            match node {
                1 => self.assert_not_raised(&[2, 1, 1], "2,3"),
                2 => self.assert_not_raised(&[2, 2, 1], "3"),
                _ => self.wait_for_levels(1, &[2, 2, 2]),
            }
        }
    }

    /// Restarts a node with the previous release, and then with the new one again.
    async fn one_node_back_and_forth(&mut self, node: i32) {
        eprintln!("node {node} goes back");
        self.restart(node, self.previous.clone()).await;
        let mut levels = [2, 2, 2];
        levels[node as usize - 1] = 1;
        self.assert_not_raised(&levels, &node.to_string());
        self.restart(node, binary()).await;
        self.wait_for_levels(1, &[2, 2, 2]);
    }

    /// Raises the level, and waits until all nodes have raised the format of their files.
    fn raise_the_level(&self) {
        assert_eq!(self.finalized(&["--json"]), json!({ "from": 1, "to": 2, "executed": false }));
        self.wait_for_levels(1, &[2, 2, 2]);
        self.cluster.ids().into_iter().for_each(|node| assert_eq!(self.formats(node), (1, 2), "node {node}"));
        assert_eq!(self.finalized(&["--execute", "--json"]), json!({ "from": 1, "to": 2, "executed": true }));
        self.wait_for_levels(2, &[2, 2, 2]);
        for node in self.cluster.ids() {
            eventually("the formats of level 2", || (self.formats(node) == (2, 3)).then_some(()));
            let release = self.meta_property(node, "mainstem.release");
            assert_eq!(release.as_deref(), Some(env!("CARGO_PKG_VERSION")), "node {node}");
        }
    }

    /// Starts the previous release over the directory of a node, which it refuses. The node loses nothing by that.
    async fn one_node_cannot_go_back(&mut self, node: i32) {
        eprintln!("node {node} cannot go back");
        stop_in_order(&mut self.cluster, &self.run, node).await;
        self.cluster.set_program(node, self.previous.clone());
        self.cluster.start_node(node);
        let status = self.cluster.wait_for_end(node);
        let log = self.cluster.log(node);
        assert!(!status.success() && log.contains(REFUSAL), "node {node} ended with {status}\n{log}");
        self.cluster.set_program(node, binary());
        start_again(&mut self.cluster, &self.run, node, &mut self.actors).await;
    }

    /// Restarts a node with a binary. No client sees an error, and all make progress meanwhile and after that.
    async fn restart(&mut self, node: i32, program: PathBuf) {
        stop_in_order(&mut self.cluster, &self.run, node).await;
        self.cluster.set_program(node, program);
        start_again(&mut self.cluster, &self.run, node, &mut self.actors).await;
    }

    /// Ends the load and judges it. No client has seen an error, and no node something that it does not understand.
    async fn finish(mut self, others: &Others) {
        outcome::judge(&self.run, &mut self.cluster, self.actors, others).await;
        self.cluster.ids().into_iter().for_each(|node| self.cluster.stop(node));
        assert_eq!(self.run.errors(), [""; 0], "see the clients' logs in {}", self.cluster.home().display());
        for node in self.cluster.ids() {
            let log = self.cluster.log(node);
            let faults: Vec<_> = log.lines().filter(|line| is_fault(line)).collect();
            assert_eq!(faults, [""; 0], "node {node}");
        }
    }

    /// Asserts that the level stays 1, with these nodes named as the reason.
    fn assert_not_raised(&self, highest: &[i64], behind: &str) {
        self.wait_for_levels(1, highest);
        let output = self.finalize(&["--execute"]);
        let said = String::from_utf8_lossy(&output.stderr);
        let reason = format!("these nodes run an older release: {behind}; upgrade them first");
        assert!(!output.status.success() && said.contains(&reason), "{}, {said}", output.status);
        self.wait_for_levels(1, highest);
    }

    /// Waits until the cluster has this level, and the nodes know these as the highest ones.
    fn wait_for_levels(&self, level: i64, highest: &[i64]) {
        let mut last = Value::Null;
        let is_so = || {
            let output = self.mainstem(&["status", "--json"]);
            let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let nodes = status["nodes"].as_array().into_iter().flatten();
            let levels =
                json!([status["level"], nodes.map(|node| node["highest_level"].clone()).collect::<Value>()]);
            if levels != last {
                eprintln!("levels of the cluster, and of its nodes: {levels}");
                last = levels;
            }
            (last == json!([level, highest])).then_some(())
        };
        eventually(&format!("level {level}, at nodes that know {highest:?}"), is_so);
    }

    /// The JSON of `mainstem cluster finalize`.
    fn finalized(&self, arguments: &[&str]) -> Value {
        let output = self.finalize(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {}, {said}", output.status);
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Runs `mainstem cluster finalize`. On a busy machine a node may not answer in time what levels it knows.
    fn finalize(&self, arguments: &[&str]) -> Output {
        eventually("the answers of all nodes", || {
            let output = self.mainstem(&[&["finalize"], arguments].concat());
            let is_answered = !String::from_utf8_lossy(&output.stderr).contains("without an answer");
            is_answered.then_some(output)
        })
    }

    /// Runs a command of the new release for clusters.
    fn mainstem(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(binary());
        command.arg("cluster").args(arguments).args(["--bootstrap", &self.cluster.bootstrap()]);
        command.output().expect("the binary runs")
    }

    /// The formats of a node's journal of groups, and of its directory.
    fn formats(&self, node: i32) -> (u32, u32) {
        let journal = fs::read(self.cluster.log_dir(node).join(JOURNAL)).expect("a journal of groups");
        let journal = match journal.get(..8) {
            Some(b"msgroup1") => 1,
            Some(b"msgroup2") => 2,
            other => panic!("the journal of node {node} begins with {other:?}"),
        };
        let of_directory = self.meta_property(node, "mainstem.format").expect("a format");
        (journal, of_directory.parse().expect("a number"))
    }

    fn meta_property(&self, node: i32, key: &str) -> Option<String> {
        let text = fs::read_to_string(self.cluster.log_dir(node).join("meta.properties")).expect("its file");
        let values = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        values.map(str::to_owned).next()
    }
}
