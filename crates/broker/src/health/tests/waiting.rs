//! `/health` of a node that has to wait: nodes of a cluster in this process, some of which are missing, or refuse
//! each other.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mainstem_config::loggers::{LogLevel, LoggerLevels};
use mainstem_config::{BrokerConfig, Sources, Voter};
use mainstem_testkit::port;
use tempfile::TempDir;

use super::*;
use crate::{Loggers, RecoveryWatch, Server, StartError, StartOptions};

const SOON: Duration = Duration::from_secs(60);

/// Three configured nodes, each with a directory.
struct Nodes {
    homes: [TempDir; 3],
    controllers: [u16; 3],
}

/// A node that starts, and is interrupted or stopped at the end.
struct Node {
    http: u16,
    recovery: Arc<RecoveryWatch>,
    started: Option<JoinHandle<Result<Server, StartError>>>,
}

impl Nodes {
    fn new() -> Nodes {
        let home = |_| tempfile::tempdir().expect("a directory");
        Nodes { homes: [1, 2, 3].map(home), controllers: [1, 2, 3].map(|_| port()) }
    }

    /// `ID@HOST:PORT` of a node.
    fn voter(&self, node: usize) -> String {
        format!("{node}@127.0.0.1:{}", self.controllers[node - 1])
    }

    fn start(&self, node: usize, settings: &[(&str, &str)]) -> Node {
        let (http, controller) = (port(), self.controllers[node - 1]);
        let own = [
            ("process.roles", "broker,controller".to_owned()),
            ("node.id", node.to_string()),
            ("controller.quorum.voters", [1, 2, 3].map(|node| self.voter(node)).join(",")),
            ("controller.listener.names", "CONTROLLER".to_owned()),
            ("listeners", format!("PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{controller}")),
            ("log.dirs", self.homes[node - 1].path().display().to_string()),
            ("mainstem.http.listener", format!("127.0.0.1:{http}")),
        ];
        let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let overrides: Vec<_> =
            own.into_iter().map(|(key, value)| (key.to_owned(), value)).chain(settings).collect();
        let sources = Sources { file: None, environment: &[], overrides: &overrides };
        let config = BrokerConfig::from_sources(sources).expect("it is valid");
        let options = StartOptions::default();
        let recovery = options.recovery.clone();
        let started = std::thread::spawn(move || {
            let loggers = Loggers::new(LoggerLevels::new(LogLevel::Info, Default::default()), |_| {});
            Server::start(config, loggers, &options)
        });
        Node { http, recovery, started: Some(started) }
    }
}

impl Node {
    /// The status and the answer of `/health`, once it answers.
    fn health(&self) -> Option<(String, Value)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.http)).ok()?;
        let request = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.to_owned(), serde_json::from_str(body).ok()?))
    }

    /// Waits until the node reports this stage, with all of these words in the reason.
    #[track_caller]
    fn await_reason(&self, stage: &str, parts: &[&str]) -> Value {
        let deadline = Instant::now() + SOON;
        loop {
            let health = self.health();
            if let Some((status, report)) = &health
                && report["stage"] == stage
                && parts.iter().all(|part| report["reason"].as_str().is_some_and(|why| why.contains(part)))
            {
                assert_eq!(status, "503", "{report}");
                return report.clone();
            }
            assert!(Instant::now() < deadline, "{health:?}: not within {SOON:?}: {stage}, {parts:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The result of its start.
    fn wait(&mut self) -> Server {
        let started = self.started.take().expect("it is waited for once").join().expect("no panic");
        started.unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.recovery.break_off();
        if let Some(Ok(Ok(server))) = self.started.take().map(JoinHandle::join) {
            stop(server);
        }
    }
}

fn stop(server: Server) {
    server.stop(&AtomicBool::new(true), &mut |_, _| {});
}

#[test]
fn a_node_without_the_others_says_for_whom_it_waits_and_why() {
    let nodes = Nodes::new();
    let alone = nodes.start(1, &[]);
    let (second, third) = (nodes.voter(2), nodes.voter(3));
    let both = [second.as_str(), &third, "Connection refused", "controller.quorum.voters"];
    let report = alone.await_reason("waiting for the nodes of a new cluster", &both);
    assert_eq!(report["status"], "starting", "{report}");
    let unreached = report["unreached"].as_array().expect("nodes");
    assert_eq!(unreached.iter().map(|one| &one["node"]).collect::<Vec<_>>(), [2, 3], "{report}");
    assert!(unreached[0]["seconds"].is_u64() && unreached[0]["voter"] == second.as_str(), "{report}");
}

#[test]
fn a_node_of_a_founded_cluster_names_the_majority_that_it_misses() {
    let nodes = Nodes::new();
    let mut started = [1, 2, 3].map(|node| nodes.start(node, &[]));
    for server in started.each_mut().map(Node::wait) {
        stop(server);
    }
    let alone = nodes.start(1, &[]);
    let (second, third) = (nodes.voter(2), nodes.voter(3));
    let both = [second.as_str(), &third, "Connection refused", "a majority of the 3 nodes is needed"];
    let report = alone.await_reason("waiting for the metadata quorum", &both);
    assert_eq!(
        (&report["status"], report["unreached"].as_array().map(Vec::len)),
        (&json!("recovering"), Some(2))
    );
}

#[test]
fn a_node_that_is_refused_by_another_says_so_in_its_words() {
    let login = |password: &str| {
        format!(
            "org.apache.kafka.common.security.plain.PlainLoginModule required username=\"node\" password=\"{password}\" \
             user_node=\"{password}\";"
        )
    };
    let start = |nodes: &Nodes, node, password: &str| {
        nodes.start(
            node,
            &[
                ("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT"),
                ("sasl.mechanism.controller.protocol", "PLAIN"),
                ("listener.name.controller.sasl.enabled.mechanisms", "PLAIN"),
                ("listener.name.controller.plain.sasl.jaas.config", &login(password)),
            ],
        )
    };
    let nodes = Nodes::new();
    let _other = start(&nodes, 2, "another");
    let refused = start(&nodes, 1, "secret");
    let second = nodes.voter(2);
    let report =
        refused.await_reason("waiting for the nodes of a new cluster", &[&second, "Authentication failed"]);
    let why = report["unreached"][0]["why"].as_str().expect("a sentence");
    assert!(why.contains("Authentication failed"), "{report}");
}

#[test]
fn the_reason_is_one_line_and_is_gone_when_the_wait_ends() {
    let awaited = Awaited::default();
    let voter = |id| Voter { id, host: "h".into(), port: 9 };
    let report = |now_ms| {
        let mut report = json!({ "status": "starting" });
        awaited.add_to(&mut report, now_ms);
        report
    };
    awaited.not_reached(&voter(2), "no\nlink", 1_000);
    awaited.not_reached(&voter(2), "refused", 5_000);
    assert_eq!(report(9_000), json!({ "status": "starting" }), "nothing waits for it");
    assert_eq!(awaited.describe(&voter(2), 9_000), "2@h:9 (for 8 s: refused)");
    assert_eq!(awaited.describe(&voter(3), 9_000), "3@h:9");
    awaited.not_reached(&voter(3), "no\nlink", 5_000);
    awaited.waits("a stage", "a reason".into(), 6_000);
    awaited.waits("a stage", "another reason".into(), 8_000);
    let unreached = [
        json!({ "node": 2, "voter": "2@h:9", "seconds": 8, "why": "refused" }),
        json!({ "node": 3, "voter": "3@h:9", "seconds": 4, "why": "no\\nlink" }),
    ];
    let waits = json!({
        "status": "starting", "stage": "a stage", "reason": "another reason", "seconds": 3, "unreached": unreached,
    });
    assert_eq!(report(9_000), waits);
    awaited.reached(2);
    assert_eq!(awaited.describe(&voter(2), 9_000), "2@h:9");
    awaited.waits("the next stage", String::new(), 9_000);
    assert_eq!(report(9_000)["seconds"], 0);
    awaited.clear();
    assert_eq!(report(9_000), json!({ "status": "starting" }));
}
