//! Nodes of a cluster as processes: started with Kafka's own server.properties, killed, paused, cut off from each other.
//!
//! The same harness runs Mainstem and Apache Kafka 4.3.0 in combined mode, which separates faults of a test from
//! faults of the nodes. Kafka needs a JVM and its jars in `target/interop/kafka-4.3.0/lib`.
#![allow(clippy::unwrap_used, reason = "all of it is for tests")]

pub mod compacted;
pub mod last_values;
mod network;
mod node;
pub mod replica;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use mainstem_client::{Admin, ClientConfig, ClusterDescription, Topic};
use serde_json::Value;
use tempfile::TempDir;

use self::network::Network;
use self::node::{Node, Ports};
use self::replica::{ReplicaBatch, ReplicaLog};
use crate::broker::{get, target_dir};
use crate::kafka_node::{NEWEST, jars};
use crate::wait::eventually;
use mainstem_testkit::port;

/// The longest wait for a cluster of JVMs on a busy machine.
const READY_MAX: Duration = Duration::from_secs(120);
/// Settings of all clusters here: groups need few partitions, and no group waits longer than its test.
const SETTINGS: [(&str, &str); 12] = [
    ("offsets.topic.num.partitions", "4"),
    ("offsets.topic.replication.factor", "3"),
    ("transaction.state.log.num.partitions", "4"),
    ("transaction.state.log.replication.factor", "3"),
    ("transaction.state.log.min.isr", "2"),
    ("default.replication.factor", "3"),
    ("min.insync.replicas", "2"),
    ("group.initial.rebalance.delay.ms", "0"),
    ("group.min.session.timeout.ms", "100"),
    ("broker.session.timeout.ms", "3000"),
    ("broker.heartbeat.interval.ms", "500"),
    ("auto.create.topics.enable", "false"),
];

/// The program of the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// Apache Kafka, in combined mode.
    Kafka,
    /// The binary of this workspace.
    Mainstem,
}

impl System {
    /// The system that `TEST_CLUSTER_SYSTEM` names; ours by default.
    ///
    /// # Panics
    /// When it names neither.
    pub fn from_environment() -> System {
        match std::env::var("TEST_CLUSTER_SYSTEM").as_deref() {
            Ok("kafka") => System::Kafka,
            Ok("mainstem") | Err(_) => System::Mainstem,
            Ok(other) => panic!("TEST_CLUSTER_SYSTEM is kafka or mainstem, not {other}"),
        }
    }
}

/// A cluster to start.
#[derive(Debug, Clone)]
pub struct Setup {
    name: String,
    system: System,
    program: Option<PathBuf>,
    nodes: i32,
    settings: BTreeMap<String, String>,
    /// Settings of single nodes.
    own: BTreeMap<i32, BTreeMap<String, String>>,
    is_proxied: bool,
    disks: BTreeMap<i32, Vec<PathBuf>>,
    environments: BTreeMap<i32, Vec<(&'static str, PathBuf)>>,
}

impl Setup {
    /// A setup of three nodes for the test `name`.
    pub fn new(name: &str, system: System) -> Setup {
        let settings = SETTINGS.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let (settings, own) = (settings.collect(), BTreeMap::new());
        let (disks, environments) = (BTreeMap::new(), BTreeMap::new());
        Setup {
            name: name.to_owned(),
            system,
            program: None,
            nodes: 3,
            settings,
            own,
            is_proxied: false,
            disks,
            environments,
        }
    }

    /// Sets the binary of all nodes, in the place of that of this workspace.
    pub fn program(mut self, program: PathBuf) -> Setup {
        self.program = Some(program);
        self
    }

    /// Adds variables to the environment of one node.
    pub fn environment(mut self, node: i32, environment: Vec<(&'static str, PathBuf)>) -> Setup {
        self.environments.insert(node, environment);
        self
    }

    /// Sets the log directories of one node.
    pub fn disks(mut self, node: i32, dirs: &[PathBuf]) -> Setup {
        self.disks.insert(node, dirs.to_vec());
        self
    }

    /// Sets the number of nodes.
    pub fn nodes(mut self, nodes: i32) -> Setup {
        self.nodes = nodes;
        self
    }

    /// Sets a setting of all nodes, by Kafka's name.
    pub fn set(mut self, key: &str, value: impl ToString) -> Setup {
        self.settings.insert(key.to_owned(), value.to_string());
        self
    }

    /// Sets a setting of one node.
    pub fn set_on(mut self, node: i32, key: &str, value: impl ToString) -> Setup {
        self.own.entry(node).or_default().insert(key.to_owned(), value.to_string());
        self
    }

    /// Puts a proxy before each listener, so that nodes can be cut off from each other.
    pub fn proxied(mut self) -> Setup {
        self.is_proxied = true;
        self
    }

    /// Starts all nodes over empty directories, and waits until each knows all of them. `None` where Kafka cannot
    /// run; a message says so.
    pub fn start(self) -> Option<Cluster> {
        let jars = match self.system {
            System::Kafka => Some(jars(&NEWEST)?),
            System::Mainstem => None,
        };
        let home = target_dir().join("test-runs");
        fs::create_dir_all(&home).unwrap();
        let home = tempfile::Builder::new().prefix(&format!("{}-", self.name)).tempdir_in(home).unwrap();
        let ports: Vec<Ports> =
            (0..self.nodes).map(|_| Ports { plain: port(), controller: port() }).collect();
        let network = self.is_proxied.then(|| Network::start(&ports));
        let public = network.as_ref().map_or_else(|| ports.clone(), |network| network.ports().to_vec());
        let nodes = (1..=self.nodes).zip(&ports).map(|(id, own)| {
            let mut node = Node::new(id, home.path(), jars.clone());
            node.set_disks(self.disks.get(&id).cloned().unwrap_or_default());
            node.set_environment(self.environments.get(&id).cloned().unwrap_or_default());
            self.program.iter().for_each(|program| node.set_program(program.clone()));
            let mut settings = self.settings.clone();
            settings.extend(self.own.get(&id).cloned().unwrap_or_default());
            node.write_properties(*own, &public, &settings);
            node
        });
        let nodes: Vec<Node> = nodes.collect();
        std::thread::scope(|scope| nodes.iter().for_each(|node| drop(scope.spawn(|| node.format()))));
        let settings = self.settings;
        let mut cluster = Cluster { system: self.system, home: Some(home), nodes, public, network, settings };
        (1..=self.nodes).for_each(|id| cluster.start_node(id));
        Some(cluster)
    }
}

/// Running nodes and their directories, which are kept when the test fails.
#[derive(Debug)]
pub struct Cluster {
    system: System,
    home: Option<TempDir>,
    nodes: Vec<Node>,
    /// The ports at which nodes and clients connect to each node.
    public: Vec<Ports>,
    network: Option<Network>,
    /// The settings of all nodes.
    settings: BTreeMap<String, String>,
}

impl Cluster {
    /// The program of its nodes.
    pub fn system(&self) -> System {
        self.system
    }

    /// Returns true if nodes can be cut off from each other.
    pub fn has_proxies(&self) -> bool {
        self.network.is_some()
    }

    /// The ids of all nodes.
    pub fn ids(&self) -> Vec<i32> {
        self.nodes.iter().map(Node::id).collect()
    }

    fn node(&self, id: i32) -> &Node {
        &self.nodes[usize::try_from(id - 1).unwrap()]
    }

    fn node_mut(&mut self, id: i32) -> &mut Node {
        &mut self.nodes[usize::try_from(id - 1).unwrap()]
    }

    /// HOST:PORT of the listener of each node, with commas between them.
    pub fn bootstrap(&self) -> String {
        let address = |ports: &Ports| format!("127.0.0.1:{}", ports.plain);
        self.public.iter().map(address).collect::<Vec<_>>().join(",")
    }

    /// The configuration of clients in these tests, with short timeouts and retries.
    pub fn client(&self) -> ClientConfig {
        ClientConfig {
            connect_timeout: Duration::from_secs(2),
            request_timeout: Duration::from_secs(10),
            retry_backoff: Duration::from_millis(20),
            retry_backoff_max: Duration::from_millis(300),
            ..ClientConfig::new(&self.bootstrap()).unwrap()
        }
    }

    /// Sets the binary of a node's next starts.
    pub fn set_program(&mut self, id: i32, program: PathBuf) {
        self.node_mut(id).set_program(program);
    }

    /// Makes one more node over an empty directory, which joins the cluster when it is started. Returns its id. Not for clusters with
    /// proxies.
    pub fn add_node(&mut self) -> i32 {
        self.add_node_with(&[])
    }

    /// The same with settings of its own.
    pub fn add_node_with(&mut self, own_settings: &[(&str, &str)]) -> i32 {
        assert!(self.network.is_none(), "a node that joins has no proxies");
        let id = i32::try_from(self.nodes.len() + 1).expect("a few nodes");
        let own = Ports { plain: port(), controller: port() };
        self.public.push(own);
        let node = Node::new(id, self.home(), None);
        let mut settings = self.settings.clone();
        settings.extend(own_settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        node.write_properties_to_join(own, &self.public, &settings);
        self.nodes.push(node);
        id
    }

    /// Empties the log directory of a node that does not run, as another disk in its place is empty.
    pub fn wipe(&mut self, id: i32) {
        assert!(!self.is_running(id), "node {id} runs");
        fs::remove_dir_all(self.log_dir(id)).expect("it was there");
    }

    /// Starts a node over its directory, without waiting.
    pub fn start_node(&mut self, id: i32) {
        let Cluster { nodes, network, .. } = self;
        let node = &mut nodes[usize::try_from(id - 1).unwrap()];
        match network {
            Some(network) => network.start_process(id, || node.start()),
            None => _ = node.start(),
        }
    }

    /// Sends SIGKILL, and waits for the end.
    pub fn kill(&mut self, id: i32) {
        self.node_mut(id).kill();
    }

    /// Sends SIGSTOP.
    pub fn pause(&self, id: i32) {
        self.node(id).pause();
    }

    /// Sends SIGCONT.
    pub fn resume(&self, id: i32) {
        self.node(id).resume();
    }

    /// Sends SIGTERM, and waits for the end, which has to be in order.
    pub fn stop(&mut self, id: i32) {
        self.node_mut(id).stop();
    }

    /// Waits until a node has ended by itself.
    pub fn wait_for_end(&mut self, id: i32) -> ExitStatus {
        self.node_mut(id).wait_for_end()
    }

    /// Returns true if a node that was started has ended by itself.
    pub fn has_ended(&mut self, id: i32) -> bool {
        self.node_mut(id).ended().is_some()
    }

    /// Returns true while its process runs.
    pub fn is_running(&self, id: i32) -> bool {
        self.node(id).is_running()
    }

    /// Asserts that no node has ended by itself.
    pub fn assert_running(&mut self) {
        self.nodes.iter_mut().for_each(Node::assert_running);
    }

    /// The output of a node since its first start.
    pub fn log(&self, id: i32) -> String {
        self.node(id).log()
    }

    /// The answer of a node's HTTP listener (`mainstem.http.listener`) to GET, without the head. Waits until the
    /// node's log names the address: other nodes know a node before it is ready. A node that was started again has
    /// another address.
    ///
    /// # Panics
    /// When the log does not name it, or the listener does not answer.
    pub fn http(&self, id: i32, path: &str) -> String {
        const SAID: &str = "metrics on http://";
        let log = eventually("a node's operator's listener", || {
            Some(self.node(id).log_of_last_start()).filter(|log| log.contains(SAID))
        });
        let (_, said) = log.rsplit_once(SAID).expect("it is there");
        let (address, _) = said.split_once('/').expect("a path follows");
        let answer = get(address, path);
        answer.split_once("\r\n\r\n").expect("a head").1.to_owned()
    }

    /// The directory of the nodes' directories and logs. Tests may put theirs there, too.
    pub fn home(&self) -> &Path {
        self.home.as_ref().expect("it is there until the end").path()
    }

    /// Waits until `/health` of a node says that it may be stopped.
    ///
    /// # Panics
    /// When it does not say so in time, or the node has no HTTP listener.
    pub fn wait_until_may_stop(&self, id: i32) {
        let deadline = Instant::now() + READY_MAX;
        loop {
            let health: Value = serde_json::from_str(&self.http(id, "/health")).expect("JSON");
            if health["may_stop"] == true {
                return;
            }
            assert!(Instant::now() < deadline, "node {id}: {health}, not within {READY_MAX:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The first log directory of a node.
    pub fn log_dir(&self, id: i32) -> PathBuf {
        self.node(id).log_dir()
    }

    /// All log directories of a node.
    pub fn log_dirs(&self, id: i32) -> Vec<PathBuf> {
        self.node(id).log_dirs()
    }

    /// Drops all bytes from one node to another, as on a network that drops all packets. Clients reach both.
    ///
    /// # Panics
    /// When the cluster has no proxies.
    pub fn cut(&self, from: i32, to: i32) {
        self.network.as_ref().expect("a cluster with proxies").cut(from, to);
    }

    /// Undoes all calls of [`Cluster::cut`].
    pub fn heal(&self) {
        self.network.as_ref().expect("a cluster with proxies").heal();
    }

    /// The batches of a partition on a node, from its files.
    pub fn replica(&self, topic: &str, partition: i32, node: i32) -> Vec<ReplicaBatch> {
        self.replica_log(topic, partition, node).batches
    }

    /// The log of a partition on a node, from its files.
    pub fn replica_log(&self, topic: &str, partition: i32, node: i32) -> ReplicaLog {
        let name = format!("{topic}-{partition}");
        let dirs = self.node(node).log_dirs().into_iter().map(|dir| dir.join(&name));
        // A partition without a directory has no batches yet.
        dirs.rev().find(|dir| dir.exists()).map_or_else(ReplicaLog::default, |dir| replica::read(&dir))
    }

    /// Waits until the cluster lists all nodes.
    pub async fn wait_until_ready(&mut self) -> ClusterDescription {
        let count = self.nodes.len();
        let deadline = Instant::now() + READY_MAX;
        let admin = Admin::new(self.client());
        loop {
            self.assert_running();
            let found = admin.cluster().await;
            if let Ok(found) = &found
                && found.brokers.len() == count
            {
                return found.clone();
            }
            assert!(Instant::now() < deadline, "the cluster does not get ready: {found:?}\n{}", self.tails());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until every partition of a topic has a leader and all its replicas in sync.
    pub async fn wait_until_in_sync(&mut self, topic: &str) -> std::sync::Arc<Topic> {
        self.wait_until_in_sync_beside(topic, Cluster::assert_running).await
    }

    /// The same, with a call before each look in the place of the assertion that all nodes run.
    pub async fn wait_until_in_sync_beside(
        &mut self,
        topic: &str,
        mut beside: impl FnMut(&mut Cluster),
    ) -> std::sync::Arc<Topic> {
        let deadline = Instant::now() + READY_MAX;
        let admin = Admin::new(self.client());
        loop {
            beside(self);
            let found = admin.topic(topic).await;
            let is_in_sync = |topic: &Topic| {
                let whole = |one: &mainstem_client::Partition| one.isr.len() == one.replicas.len();
                topic.partitions.iter().all(|one| one.leader.is_some() && whole(one))
            };
            if let Ok(found) = &found
                && is_in_sync(found)
            {
                return found.clone();
            }
            assert!(Instant::now() < deadline, "{topic} does not get in sync: {found:?}\n{}", self.tails());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The last lines of the logs of all nodes.
    pub fn tails(&self) -> String {
        self.nodes.iter().map(Node::tail).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes.iter_mut().for_each(Node::end);
        if std::thread::panicking() {
            let kept = self.home.take().map(TempDir::keep).unwrap_or_default();
            eprintln!("data and logs are kept in {}", kept.display());
        }
    }
}
