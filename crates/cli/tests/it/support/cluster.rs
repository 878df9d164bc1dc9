//! Three nodes of the same binary, for commands to connect to.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::{Run, run};

/// The nodes 1, 2 and 3.
pub(crate) struct Cluster {
    dir: TempDir,
    nodes: Vec<Child>,
    ports: Vec<u16>,
}

impl Cluster {
    /// Starts the nodes, and waits until each is ready.
    pub(crate) fn start() -> Cluster {
        let ports: Vec<u16> = (0..6).map(|_| mainstem_testkit::port()).collect();
        let voters: Vec<String> = (1..=3).map(|id| format!("{id}@127.0.0.1:{}", ports[id + 2])).collect();
        let mut cluster = Cluster { dir: tempfile::tempdir().unwrap(), nodes: Vec::new(), ports };
        for id in 1..=3 {
            let node = cluster.spawn(id, &voters.join(","));
            cluster.nodes.push(node);
        }
        for node in &mut cluster.nodes {
            let mut line = String::new();
            BufReader::new(node.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert!(line.contains("listeners"), "a node did not start: {line}");
        }
        cluster
    }

    fn spawn(&self, id: usize, voters: &str) -> Child {
        let (clients, nodes) = (self.ports[id - 1], self.ports[id + 2]);
        let settings = [
            "process.roles=broker,controller".to_owned(),
            format!("node.id={id}"),
            format!("controller.quorum.voters={voters}"),
            "controller.listener.names=CONTROLLER".to_owned(),
            format!("listeners=PLAINTEXT://127.0.0.1:{clients},CONTROLLER://127.0.0.1:{nodes}"),
            format!("log.dirs={}", self.dir.path().join(id.to_string()).display()),
            // Leaders change only when a test says so.
            "auto.leader.rebalance.enable=false".to_owned(),
        ];
        Command::new(super::binary::mainstem())
            .args(["start", "--json"])
            .args(settings.iter().flat_map(|setting| ["--set", setting]))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Runs a command against the nodes.
    pub(crate) fn run(&self, arguments: &str) -> Run {
        let addresses: Vec<String> = self.ports[..3].iter().map(|port| format!("127.0.0.1:{port}")).collect();
        run(&addresses.join(","), arguments)
    }

    /// Ends a node without notice.
    pub(crate) fn kill(&mut self, id: usize) {
        let node = &mut self.nodes[id - 1];
        node.kill().unwrap();
        node.wait().unwrap();
    }

    /// A path for a file of the test.
    pub(crate) fn file(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            // The node may have ended.
            let _ = node.kill();
            let _ = node.wait();
        }
    }
}
