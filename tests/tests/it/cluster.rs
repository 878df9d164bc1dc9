//! Three nodes with Kafka's own keys alone become a cluster. Acknowledged records of a producer survive `kill -9` of
//! each node in turn.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use mainstem_testkit::port;
use mainstem_tests::broker::binary;
use mainstem_tests::wait::eventually;
use serde_json::Value;
use tempfile::TempDir;

/// The longest wait for a node's start, also on a busy machine.
const READY_MAX: Duration = Duration::from_secs(60);
/// Lines that are written between two kills, and while a node is away.
const BETWEEN: usize = 300;
/// The time for which a killed node stays away: another one leads meanwhile.
const AWAY: Duration = Duration::from_millis(1_500);

/// The nodes 1, 2 and 3.
struct Nodes {
    home: TempDir,
    /// The ports for clients and for other nodes, by node.
    ports: BTreeMap<u16, (u16, u16)>,
    running: BTreeMap<u16, Child>,
}

impl Nodes {
    fn new() -> Nodes {
        let ports = (1..=3).map(|id| (id, (port(), port()))).collect();
        let home = tempfile::tempdir().expect("a directory can be made");
        Nodes { home, ports, running: BTreeMap::new() }
    }

    fn bootstrap(&self) -> String {
        let addresses: Vec<_> = self.ports.values().map(|(port, _)| format!("127.0.0.1:{port}")).collect();
        addresses.join(",")
    }

    /// Starts a node. The channel gets its ready line.
    fn start(&mut self, id: u16) -> mpsc::Receiver<Value> {
        let voters: Vec<_> =
            self.ports.iter().map(|(id, (_, port))| format!("{id}@127.0.0.1:{port}")).collect();
        let (clients, nodes) = self.ports[&id];
        let settings = [
            "process.roles=broker,controller".to_owned(),
            format!("node.id={id}"),
            format!("controller.quorum.voters={}", voters.join(",")),
            "controller.listener.names=CONTROLLER".to_owned(),
            format!("listeners=PLAINTEXT://127.0.0.1:{clients},CONTROLLER://127.0.0.1:{nodes}"),
            format!("log.dirs={}", self.home.path().join(id.to_string()).display()),
        ];
        let log = self.home.path().join(format!("{id}.log"));
        let log = File::options().create(true).append(true).open(log).expect("a log can be made");
        let mut command = Command::new(binary());
        command.args(["start", "--json"]).stdout(Stdio::piped()).stderr(log);
        settings.iter().for_each(|setting| _ = command.args(["--set", setting]));
        let mut child = command.spawn().expect("the binary runs");
        let stdout = child.stdout.take().expect("it is piped");
        let (sender, ready) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The test may be over.
                let _ = sender.send(serde_json::from_str(&line).expect("a line of JSON"));
            }
        });
        self.running.insert(id, child);
        ready
    }

    fn await_ready(&self, id: u16, ready: &mpsc::Receiver<Value>) -> Value {
        ready.recv_timeout(READY_MAX).unwrap_or_else(|_| panic!("node {id} is not ready:\n{}", self.log(id)))
    }

    fn log(&self, id: u16) -> String {
        std::fs::read_to_string(self.home.path().join(format!("{id}.log"))).unwrap_or_default()
    }

    fn kill(&mut self, id: u16) {
        let mut child = self.running.remove(&id).expect("it runs");
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
    }

    fn output(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(binary());
        command.args(arguments).args(["--bootstrap", &self.bootstrap()]).output().expect("the binary runs")
    }

    /// Runs a command of the program against the cluster. Returns its output.
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {stderr}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// The status of the cluster, once it and each partition have a leader.
    fn status(&self) -> Value {
        eventually("a status without a fault", || {
            let output = self.output(&["cluster", "status", "--json"]);
            let status: Value = serde_json::from_slice(&output.stdout).ok()?;
            let is_led = status["without_leader"] == Value::Array(Vec::new());
            (output.status.success() && is_led).then_some(status)
        })
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for (id, child) in &mut self.running {
            // The node may have ended.
            let _ = child.kill();
            let _ = child.wait();
            if std::thread::panicking() {
                let log = std::fs::read_to_string(Path::new(self.home.path()).join(format!("{id}.log")));
                eprintln!("--- node {id}\n{}", log.unwrap_or_default());
            }
        }
    }
}

/// A producer whose lines are numbers; it ends on request.
struct Load {
    child: Child,
    is_over: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    written: std::thread::JoinHandle<usize>,
}

impl Load {
    fn start(nodes: &Nodes, topic: &str) -> Load {
        let mut child = Command::new(binary())
            .args(["produce", topic, "--bootstrap", &nodes.bootstrap()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut stdin = child.stdin.take().expect("it is piped");
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, count) = (is_over.clone(), Arc::<AtomicUsize>::default());
        let counted = count.clone();
        let written = std::thread::spawn(move || {
            let mut count = 0;
            while !over.load(Ordering::Acquire) && writeln!(stdin, "{count}").is_ok() {
                count += 1;
                counted.store(count, Ordering::Release);
                // The pace of the load.
                std::thread::sleep(Duration::from_millis(1));
            }
            count
        });
        Load { child, is_over, count, written }
    }

    /// Waits until so many more lines are written.
    fn wait_for(&self, lines: usize) {
        let target = self.count.load(Ordering::Acquire) + lines;
        eventually("more lines", || (self.count.load(Ordering::Acquire) >= target).then_some(()));
    }

    /// Ends it. Returns the number of acknowledged lines, which are all.
    fn end(self) -> usize {
        self.is_over.store(true, Ordering::Release);
        let count = self.written.join().expect("it does not panic");
        let output = self.child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        count
    }
}

#[test]
fn what_was_acknowledged_survives_a_kill_of_each_node() {
    let mut nodes = Nodes::new();
    let started: Vec<_> = [3, 1, 2].map(|id| (id, nodes.start(id))).into();
    let lines: Vec<_> = started.iter().map(|(id, ready)| nodes.await_ready(*id, ready)).collect();
    let cluster = &lines[0]["cluster_id"];
    assert_eq!(cluster.as_str().map(str::len), Some(22), "16 bytes in base64: {}", lines[0]);
    for (line, (id, _)) in lines.iter().zip(&started) {
        assert_eq!(
            (line["node_id"].as_u64(), line["voters"].as_array().map(Vec::len)),
            (Some(u64::from(*id)), Some(3))
        );
        assert_eq!(line["acks_all_waits_for"], "disks of a majority of a partition's replicas");
        assert_eq!(line["cluster_id"], *cluster, "node {id} is in another cluster");
    }
    nodes.run(&["topic", "create", "t", "--partitions", "3", "--replication-factor", "3"]);
    let load = Load::start(&nodes, "t");
    for id in [1, 2, 3] {
        load.wait_for(BETWEEN);
        nodes.kill(id);
        std::thread::sleep(AWAY);
        load.wait_for(BETWEEN);
        let ready = nodes.start(id);
        assert_eq!(nodes.await_ready(id, &ready)["cluster_id"], *cluster);
    }
    let count = load.end();
    let read = nodes.run(&["consume", "t"]);
    let mut numbers: Vec<usize> = read.lines().map(|line| line.parse().expect("a number")).collect();
    numbers.sort_unstable();
    assert!(numbers.iter().copied().eq(0..count), "{} records of {count}, or other ones", numbers.len());

    let to = 2;
    nodes.run(&["cluster", "transfer", "t", "0", &to.to_string()]);
    // The node that is asked may learn of it a moment later.
    eventually("the node leads that leadership was given to", || {
        let described = nodes.run(&["topic", "describe", "t", "--json"]);
        let described: Value = serde_json::from_str(&described).expect("JSON");
        (described[0]["partitions"][0]["leader"] == to).then_some(())
    });
    assert_eq!(nodes.status()["id"], *cluster);
    a_node_that_is_away_votes_and_lags(&mut nodes);
}

/// Checks `cluster status` while a node is away and when it is back: the node has a vote, and lacks the records of the metadata log since
/// then.
fn a_node_that_is_away_votes_and_lags(nodes: &mut Nodes) {
    let is_even = |status: &Value| lags(status).iter().all(|(_, lag)| *lag == Some(0));
    eventually("no node lags", || is_even(&nodes.status()).then_some(()));
    nodes.kill(3);
    nodes.status();
    nodes.run(&["topic", "create", "without-3", "--partitions", "1", "--replication-factor", "3"]);
    eventually("the node that is away lags, and no other", || {
        let lags = lags(&nodes.status());
        let away = lags.iter().find(|(id, _)| *id == 3)?.1?;
        let is_other_even = lags.iter().all(|(id, lag)| *id == 3 || *lag == Some(0));
        (lags.len() == 3 && away > 0 && is_other_even).then_some(())
    });
    let ready = nodes.start(3);
    nodes.await_ready(3, &ready);
    eventually("no node lags any more", || is_even(&nodes.status()).then_some(()));
}

/// The lag behind the end of the metadata log of each node with a vote, by the status.
///
/// # Panics
/// When not all three have a vote.
fn lags(status: &Value) -> Vec<(u64, Option<i64>)> {
    let nodes = status["nodes"].as_array().expect("a list of nodes");
    let voters = nodes.iter().filter(|node| node["votes"] == true);
    let lags: Vec<_> =
        voters.map(|node| (node["id"].as_u64().expect("an id"), node["metadata_lag"].as_i64())).collect();
    assert_eq!(lags.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2, 3], "{status}");
    lags
}
