//! Kafka's own tools against three nodes: questions and requests of an operator to any one of them, with all nodes running, with one away,
//! and after it has come back.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mainstem_testkit::port;

use super::super::protocol;
use super::super::report::Report;
use super::super::world::World;
use super::admin::{end_transactions, open_since};
use super::tools::{GROUPS, PROCESS_DEADLINE, TOPICS, Tools, expect, words};
use crate::process::{Process, wait_until};
use crate::workspace;

const CONFIGS: &str = "kafka-configs";
const CLUSTER: &str = "kafka-cluster";
const QUORUM: &str = "kafka-metadata-quorum";
const ELECTION: &str = "kafka-leader-election";
const LOG_DIRS: &str = "kafka-log-dirs";
const OFFSETS: &str = "kafka-get-offsets";
const TRANSACTIONS: &str = "kafka-transactions";
const ACLS: &str = "kafka-acls";

const NODES: usize = 3;
/// The node that is stopped.
const STOPPED: usize = 3;
const START_DEADLINE: Duration = Duration::from_secs(150);
/// Timeout until a node that is away is out of sync, or one that is back is in sync.
const IN_SYNC_DEADLINE: Duration = Duration::from_secs(150);
/// Interval between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// The topic of all checks: six partitions of factor three.
const TOPIC: &str = "three";

/// Settings of all nodes.
const SETTINGS: [&str; 12] = [
    "process.roles=broker,controller",
    "controller.listener.names=CONTROLLER",
    "min.insync.replicas=2",
    "default.replication.factor=3",
    "offsets.topic.num.partitions=3",
    "transaction.state.log.num.partitions=3",
    "group.initial.rebalance.delay.ms=0",
    "broker.session.timeout.ms=10000",
    "replica.lag.time.max.ms=10000",
    // Leaders move only when a check moves them.
    "auto.leader.rebalance.enable=false",
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users=User:ANONYMOUS",
];

type Check = fn(&Nodes<'_>) -> Result<()>;

/// Each check by its tool, in this order; the names of all begin with "three nodes: ".
const CHECKS: &[(&str, &str, Check)] = &[
    (TOPICS, "a leader on each node, all in sync", topics),
    (CLUSTER, "id and endpoints of all", identity),
    (QUORUM, "status and replication of all voters", quorum),
    (CONFIGS, "what one node sets, another one describes", configs),
    (CONFIGS, "SCRAM users and quotas", users),
    (ACLS, "what one node adds, another one lists", rules),
    (OFFSETS, "of partitions on all nodes", offsets),
    (LOG_DIRS, "of all nodes", log_dirs),
    (GROUPS, "list, describe, reset through any node", groups),
    (TRANSACTIONS, "list, describe, find-hanging, abort", transactions),
    (TOPICS, "under-replicated and at-min-isr, a node away", one_away),
    (QUORUM, "lag of a voter that is away", quorum_without_one),
    (TOPICS, "in sync again, the node back", one_back),
    (ELECTION, "preferred replicas lead again", election),
];

/// Three nodes of a cluster, and the tools against them.
struct Nodes<'a> {
    world: &'a World,
    dir: PathBuf,
    ports: [(u16, u16); NODES],
    processes: std::cell::RefCell<[Option<Process>; NODES]>,
}

/// Starts the nodes, and runs all checks.
pub(crate) fn run(world: &World, report: &Report) {
    let mut nodes = None;
    let has_started = report.check("cluster", "three nodes start", || {
        nodes = Some(Nodes::start(world)?);
        Ok(())
    });
    let Some(nodes) = nodes.filter(|_| has_started) else { return };
    for (tool, check, body) in CHECKS {
        if !report.check(tool, &format!("three nodes: {check}"), || body(&nodes)) {
            nodes.print_logs();
        }
    }
}

impl<'a> Nodes<'a> {
    fn start(world: &'a World) -> Result<Nodes<'a>> {
        let dir = world.run.join("cluster");
        fs::create_dir_all(&dir)?;
        let mut ports = [(0, 0); NODES];
        for pair in &mut ports {
            *pair = (port(), port());
        }
        let nodes = Nodes { world, dir, ports, processes: Default::default() };
        (1..=NODES).try_for_each(|id| nodes.start_one(id))?;
        (1..=NODES).try_for_each(|id| nodes.await_one(id))?;
        Ok(nodes)
    }

    fn start_one(&self, id: usize) -> Result<()> {
        let voter = |(id, (_, port)): (usize, &(u16, u16))| format!("{id}@127.0.0.1:{port}");
        let voters: Vec<_> = (1..).zip(&self.ports).map(voter).collect();
        let (clients, nodes) = self.ports[id - 1];
        let own = [
            format!("node.id={id}"),
            format!("controller.quorum.voters={}", voters.join(",")),
            format!("listeners=PLAINTEXT://127.0.0.1:{clients},CONTROLLER://127.0.0.1:{nodes}"),
            format!("log.dirs={}", self.data_dir(id).display()),
        ];
        let mut command = Command::new(workspace::product());
        command.arg("start");
        let settings = SETTINGS.iter().copied().chain(own.iter().map(String::as_str));
        settings.for_each(|setting| _ = command.args(["--set", setting]));
        let process = Process::start(&format!("node-{id}"), &mut command, &self.world.logs)?;
        self.processes.borrow_mut()[id - 1] = Some(process);
        Ok(())
    }

    fn await_one(&self, id: usize) -> Result<()> {
        let address = ([127, 0, 0, 1], self.ports[id - 1].0).into();
        let is_ready = || {
            if let Some(process) = &mut self.processes.borrow_mut()[id - 1] {
                process.check_alive()?;
            }
            Ok(protocol::is_ready(address))
        };
        wait_until(|| format!("node {id} answers"), START_DEADLINE, is_ready)
    }

    fn data_dir(&self, id: usize) -> PathBuf {
        self.dir.join(id.to_string())
    }

    /// The tools with one node alone to begin with.
    fn at(&self, id: usize) -> Tools<'a> {
        Tools::at(self.world, format!("127.0.0.1:{}", self.ports[id - 1].0))
    }

    /// Returns partition, leader, replicas and in-sync replicas of the topic, as `kafka-topics` describes them.
    fn described(&self, id: usize, options: &str) -> Result<Vec<Partition>> {
        let output = self.at(id).output(TOPICS, &format!("--describe --topic {TOPIC} {options}"))?;
        let rows = output.lines().filter(|line| line.contains("\tPartition: "));
        rows.map(|row| Partition::parse(row).with_context(|| format!("read {row:?}"))).collect()
    }

    /// Waits until the tool counts so many partitions of a kind, by asking a node.
    fn await_described(&self, id: usize, option: &str, count: usize) -> Result<()> {
        soon(|| {
            let listed = self.described(id, option)?;
            ensure!(listed.len() == count, "{option} through node {id}: {listed:?}");
            Ok(())
        })
    }

    /// Makes the first replicas of all partitions their leaders.
    fn elect_preferred(&self, asked: usize) -> Result<()> {
        self.at(asked).output(ELECTION, "--election-type preferred --all-topic-partitions").map(drop)
    }

    fn print_logs(&self) {
        for process in self.processes.borrow().iter().flatten() {
            println!("{}", process.log_ends());
        }
    }

    /// The leader of the metadata.
    fn metadata_leader(&self, asked: usize) -> Result<usize> {
        let status = self.at(asked).output(QUORUM, "describe --status")?;
        let leader = status.lines().find_map(|line| line.strip_prefix("LeaderId:"));
        Ok(leader.with_context(|| format!("a leader in:\n{status}"))?.trim().parse()?)
    }
}

/// Repeats an action that changes nothing until it succeeds. Nodes learn of a change one after the other, and if one of them got no CPU for
/// a second, another one leads.
fn soon(mut look: impl FnMut() -> Result<()>) -> Result<()> {
    let deadline = Instant::now() + IN_SYNC_DEADLINE;
    loop {
        match look() {
            Err(_) if Instant::now() < deadline => thread::sleep(LOOK_AGAIN),
            outcome => return outcome,
        }
    }
}

/// A row of `kafka-topics --describe`.
#[derive(Debug)]
struct Partition {
    /// None while there is no leader.
    leader: Option<usize>,
    replicas: Vec<usize>,
    isr: Vec<usize>,
}

impl Partition {
    fn parse(row: &str) -> Option<Partition> {
        let field = |name: &str| row.split('\t').find_map(|field| field.strip_prefix(name));
        let list = |text: &str| text.split(',').map(|id| id.trim().parse().ok()).collect::<Option<Vec<_>>>();
        let mut isr = list(field("Isr: ")?)?;
        isr.sort_unstable();
        Some(Partition {
            leader: field("Leader: ")?.trim().parse().ok(),
            replicas: list(field("Replicas: ")?)?,
            isr,
        })
    }
}

/// The id of a directory, from its meta.properties.
fn directory_id(dir: &Path) -> Result<String> {
    let path = dir.join("meta.properties");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let id = text.lines().find_map(|line| line.strip_prefix("directory.id="));
    Ok(id.with_context(|| format!("directory.id in {}", path.display()))?.to_owned())
}

fn topics(nodes: &Nodes<'_>) -> Result<()> {
    let create = format!("--create --topic {TOPIC} --partitions 6 --replication-factor 3");
    expect(&nodes.at(2).output(TOPICS, &create)?, &["Created topic three."])?;
    nodes.at(1).refused(
        TOPICS,
        "--create --topic four --partitions 1 --replication-factor 4",
        "replication factor",
    )?;
    soon(|| {
        let partitions = nodes.described(3, "")?;
        let all_in_sync = partitions.iter().all(|partition| partition.isr == [1, 2, 3]);
        let all_preferred =
            partitions.iter().all(|partition| partition.leader == Some(partition.replicas[0]));
        if !all_preferred {
            // The preferred leader may have been too slow, and lost its leadership.
            nodes.elect_preferred(3)?;
        }
        ensure!(partitions.len() == 6 && all_in_sync && all_preferred, "not whole: {partitions:?}");
        Ok(())
    })?;
    soon(|| {
        let partitions = nodes.described(1, "")?;
        for id in 1..=NODES {
            let led = partitions.iter().filter(|partition| partition.leader == Some(id)).count();
            ensure!(led == 2, "node {id} leads {led} of {partitions:?}");
        }
        Ok(())
    })?;
    let none = ["--under-replicated-partitions", "--at-min-isr-partitions", "--unavailable-partitions"];
    none.into_iter().try_for_each(|option| nodes.await_described(1, option, 0))
}

fn identity(nodes: &Nodes<'_>) -> Result<()> {
    let ids = (1..=NODES).map(|id| nodes.at(id).subcommand(CLUSTER, "cluster-id", "")?.success());
    let ids = ids.collect::<Result<Vec<_>>>()?;
    expect(&ids[0], &["Cluster ID: "])?;
    ensure!(ids.iter().all(|id| *id == ids[0]), "nodes of several clusters: {ids:?}");
    let endpoints = nodes.at(1).subcommand(CLUSTER, "list-endpoints", "")?.success()?;
    for (id, (port, _)) in (1..).zip(nodes.ports) {
        let is_it = |line: &str| {
            let fields = words(line);
            fields.first() == Some(&id.to_string().as_str()) && fields.contains(&port.to_string().as_str())
        };
        ensure!(endpoints.lines().any(is_it), "no node {id} at {port} in:\n{endpoints}");
    }
    Ok(())
}

fn quorum(nodes: &Nodes<'_>) -> Result<()> {
    soon(|| quorum_now(nodes))
}

fn quorum_now(nodes: &Nodes<'_>) -> Result<()> {
    let leaders = (1..=NODES).map(|id| nodes.metadata_leader(id)).collect::<Result<Vec<_>>>()?;
    ensure!(
        leaders.iter().all(|leader| *leader == leaders[0]),
        "leaders as each node knows them: {leaders:?}"
    );
    let status = nodes.at(1).output(QUORUM, "describe --status")?;
    let replication = nodes.at(2).output(QUORUM, "describe --replication")?;
    for id in 1..=NODES {
        let directory = directory_id(&nodes.data_dir(id))?;
        let controller = format!("127.0.0.1:{}", nodes.ports[id - 1].1);
        let voter = format!(
            r#"{{"id": {id}, "directoryId": "{directory}", "endpoints": ["CONTROLLER://{controller}"]}}"#
        );
        expect(&status, &[&voter])?;
        let row = replication.lines().map(words).find(|row| row.first() == Some(&id.to_string().as_str()));
        let row = row.with_context(|| format!("a row of node {id} in:\n{replication}"))?;
        let role = if id == leaders[0] { "Leader" } else { "Follower" };
        ensure!(row[1] == directory && row.last() == Some(&role), "{row:?}, not {role} with {directory}");
    }
    Ok(())
}

fn configs(nodes: &Nodes<'_>) -> Result<()> {
    let topic = format!("--entity-type topics --entity-name {TOPIC}");
    nodes.at(1).output(CONFIGS, &format!("--alter {topic} --add-config retention.ms=7200000"))?;
    nodes.at(3).await_output(CONFIGS, &format!("--describe {topic}"), &["retention.ms=7200000"])?;
    let broker = "--entity-type brokers --entity-name 2";
    nodes.at(1).output(CONFIGS, &format!("--alter {broker} --add-config max.connections=4000"))?;
    nodes.at(3).await_output(CONFIGS, &format!("--describe {broker}"), &["max.connections=4000"])?;
    let other = nodes.at(3).output(CONFIGS, "--describe --entity-type brokers --entity-name 1")?;
    ensure!(!other.contains("max.connections=4000"), "it is node 2's alone:\n{other}");
    let all = "--entity-type brokers --entity-default";
    nodes.at(3).output(CONFIGS, &format!("--alter {all} --add-config log.cleaner.backoff.ms=16000"))?;
    let set = ["DYNAMIC_DEFAULT_BROKER_CONFIG:log.cleaner.backoff.ms=16000"];
    nodes.at(1).await_output(CONFIGS, &format!("--describe {broker} --all"), &set)
}

fn users(nodes: &Nodes<'_>) -> Result<()> {
    let user = "--entity-type users --entity-name alice";
    // Kafka's tool changes one of both at a time.
    for add in ["SCRAM-SHA-256=[iterations=4096,password=a-secret]", "consumer_byte_rate=1048576"] {
        nodes.at(2).output(CONFIGS, &format!("--alter {user} --add-config {add}"))?;
    }
    for id in 1..=NODES {
        let described = ["SCRAM-SHA-256=iterations=4096", "consumer_byte_rate=1048576"];
        nodes.at(id).await_output(CONFIGS, &format!("--describe {user}"), &described)?;
    }
    for delete in ["SCRAM-SHA-256", "consumer_byte_rate"] {
        nodes.at(3).output(CONFIGS, &format!("--alter {user} --delete-config {delete}"))?;
    }
    nodes.at(1).await_gone(CONFIGS, &format!("--describe {user}"), "SCRAM-SHA-256=iterations=4096")
}

fn rules(nodes: &Nodes<'_>) -> Result<()> {
    let rule = format!("--allow-principal User:alice --operation Read --topic {TOPIC}");
    nodes.at(1).output(ACLS, &format!("--add {rule}"))?;
    for id in 1..=NODES {
        let listed = ["principal=User:alice", "operation=READ", "permissionType=ALLOW"];
        nodes.at(id).await_output(ACLS, &format!("--list --topic {TOPIC}"), &listed)?;
    }
    nodes.at(3).output(ACLS, &format!("--remove --force {rule}"))?;
    nodes.at(2).await_gone(ACLS, &format!("--list --topic {TOPIC}"), "principal=User:alice")
}

fn offsets(nodes: &Nodes<'_>) -> Result<()> {
    let lines: String = (0..60).map(|line| format!("key {line}\tvalue {line}\n")).collect();
    let options = format!("--topic {TOPIC} --reader-property parse.key=true --command-property acks=all");
    nodes.at(1).call("kafka-console-producer", &options, &lines)?.success()?;
    let are_counted = |id: usize| {
        let output = nodes.at(id).output(OFFSETS, &format!("--topic {TOPIC} --time latest"))?;
        let ends =
            output.lines().map(|line| Ok(line.rsplit(':').next().context("an offset")?.parse::<i64>()?));
        let ends = ends.collect::<Result<Vec<_>>>()?;
        ensure!(ends.len() == 6 && ends.iter().sum::<i64>() == 60, "through node {id}:\n{output}");
        Ok(())
    };
    (1..=NODES).try_for_each(|id| soon(|| are_counted(id)))
}

fn log_dirs(nodes: &Nodes<'_>) -> Result<()> {
    let output =
        nodes.at(1).output(LOG_DIRS, &format!("--describe --topic-list {TOPIC} --broker-list 1,2,3"))?;
    let json =
        output.lines().find(|line| line.starts_with('{')).with_context(|| format!("JSON in:\n{output}"))?;
    let found: serde_json::Value = serde_json::from_str(json)?;
    for id in 1..=NODES {
        let brokers = found["brokers"].as_array().context("brokers")?;
        let broker =
            brokers.iter().find(|broker| broker["broker"] == id).with_context(|| format!("node {id}"))?;
        let dir = &broker["logDirs"][0];
        ensure!(dir["logDir"] == nodes.data_dir(id).display().to_string().as_str(), "{dir}");
        let partitions = dir["partitions"].as_array().context("partitions")?;
        let has_bytes = partitions.iter().any(|one| one["size"].as_i64() > Some(0));
        ensure!(dir["error"].is_null() && partitions.len() == 6 && has_bytes, "node {id}: {dir}");
    }
    Ok(())
}

fn groups(nodes: &Nodes<'_>) -> Result<()> {
    let read = "--group readers --from-beginning --max-messages 60 --timeout-ms 30000";
    nodes.at(1).output("kafka-console-consumer", &format!("--topic {TOPIC} {read}"))?;
    for id in 1..=NODES {
        let tools = nodes.at(id);
        tools.await_output(GROUPS, "--list", &["readers"])?;
        let output = tools.output(GROUPS, "--describe --group readers")?;
        let rows: Vec<_> = output.lines().map(words).filter(|row| row.first() == Some(&"readers")).collect();
        let read: i64 = rows.iter().filter_map(|row| row[3].parse::<i64>().ok()).sum();
        ensure!(rows.len() == 6 && read == 60, "through node {id}:\n{output}");
    }
    let reset = format!("--reset-offsets --group readers --topic {TOPIC} --to-earliest --execute");
    expect(&nodes.at(2).output(GROUPS, &reset)?, &["readers"])?;
    let output = nodes.at(3).output(GROUPS, "--describe --group readers")?;
    let rows: Vec<_> = output.lines().map(words).filter(|row| row.first() == Some(&"readers")).collect();
    ensure!(rows.len() == 6 && rows.iter().all(|row| row[3] == "0"), "not at the beginning:\n{output}");
    nodes.at(1).output(GROUPS, "--delete --group readers")?;
    nodes.at(3).await_gone(GROUPS, "--list", "readers")
}

/// A producer that is killed within a transaction; the coordinator, the leader and the asked node are any of the three.
fn transactions(nodes: &Nodes<'_>) -> Result<()> {
    nodes.at(1).output(TOPICS, "--create --topic within --partitions 1 --replication-factor 3")?;
    let perf = "--topic within --num-records 1000000 --record-size 20 --throughput 200 --transactional-id three-abort \
                --transaction-duration-ms 600000 --command-property transaction.timeout.ms=800000";
    let producer = nodes.at(2).start_process("kafka-producer-perf-test", perf)?;
    let is_open = || Ok(open_since(&nodes.at(3), "within")?.is_some());
    wait_until(|| "a transaction is open".to_owned(), PROCESS_DEADLINE, is_open)?;
    drop(producer);
    let is_ongoing = |id: usize| {
        let tools = nodes.at(id);
        let listed = tools.output(TRANSACTIONS, "list")?;
        let is_it = |line: &str| words(line).first() == Some(&"three-abort") && line.contains("Ongoing");
        ensure!(listed.lines().any(is_it), "through node {id}:\n{listed}");
        let described = tools.output(TRANSACTIONS, "describe --transactional-id three-abort")?;
        expect(&described, &["three-abort", "Ongoing", "within-0"])
    };
    (1..=NODES).try_for_each(|id| soon(|| is_ongoing(id)))?;
    // It is open, and its coordinator knows it: it does not count as hanging.
    let hanging =
        nodes.at(1).output(TRANSACTIONS, "find-hanging --topic within --max-transaction-timeout 0")?;
    ensure!(!hanging.lines().any(|line| words(line).first() == Some(&"within")), "{hanging}");
    end_transactions((&nodes.at(3), &nodes.at(1)), "within")
}

fn one_away(nodes: &Nodes<'_>) -> Result<()> {
    let process = nodes.processes.borrow_mut()[STOPPED - 1].take();
    let mut process = process.context("it runs")?;
    process.terminate()?;
    process.wait_for_status(START_DEADLINE)?;
    let asked = 1;
    let are_led = || {
        let partitions = nodes.described(asked, "")?;
        Ok(partitions.iter().all(|partition| {
            partition.leader.is_some_and(|leader| leader != STOPPED) && partition.isr == [1, 2]
        }))
    };
    wait_until(|| "the two others lead, and are in sync".to_owned(), IN_SYNC_DEADLINE, are_led)?;
    for id in [1, 2] {
        for option in ["--under-replicated-partitions", "--at-min-isr-partitions"] {
            nodes.await_described(id, option, 6)?;
        }
        for option in ["--under-min-isr-partitions", "--unavailable-partitions"] {
            nodes.await_described(id, option, 0)?;
        }
    }
    soon(|| {
        let offsets = nodes.at(2).output(OFFSETS, &format!("--topic {TOPIC} --time latest"))?;
        ensure!(offsets.lines().count() == 6, "{offsets}");
        Ok(())
    })?;
    let port = nodes.ports[STOPPED - 1].0.to_string();
    soon(|| {
        let endpoints = nodes.at(1).subcommand(CLUSTER, "list-endpoints", "")?.success()?;
        let is_named = endpoints.lines().any(|line| words(line).contains(&port.as_str()));
        ensure!(!is_named, "it is away:\n{endpoints}");
        Ok(())
    })
}

fn quorum_without_one(nodes: &Nodes<'_>) -> Result<()> {
    // A change of metadata that the stopped voter does not have.
    nodes.at(1).output(TOPICS, "--create --topic while-away --partitions 2 --replication-factor 2")?;
    soon(|| lag_is_reported(nodes))
}

fn lag_is_reported(nodes: &Nodes<'_>) -> Result<()> {
    let replication = nodes.at(2).output(QUORUM, "describe --replication")?;
    let lag = |id: usize| {
        let row = replication.lines().map(words).find(|row| row.first() == Some(&id.to_string().as_str()));
        row.and_then(|row| row.get(3)?.parse::<i64>().ok())
            .with_context(|| format!("node {id} in:\n{replication}"))
    };
    ensure!(lag(STOPPED)? > 0, "it lags:\n{replication}");
    let status = nodes.at(1).output(QUORUM, "describe --status")?;
    let most = status.lines().find_map(|line| line.strip_prefix("MaxFollowerLag:"));
    let most: i64 = most.with_context(|| status.clone())?.trim().parse()?;
    ensure!(most > 0, "{status}");
    Ok(())
}

fn one_back(nodes: &Nodes<'_>) -> Result<()> {
    nodes.start_one(STOPPED)?;
    nodes.await_one(STOPPED)?;
    let are_in_sync = || Ok(nodes.described(STOPPED, "")?.iter().all(|partition| partition.isr == [1, 2, 3]));
    wait_until(|| "all are in sync again".to_owned(), IN_SYNC_DEADLINE, are_in_sync)?;
    let none = ["--under-replicated-partitions", "--at-min-isr-partitions"];
    none.into_iter().try_for_each(|option| nodes.await_described(2, option, 0))
}

fn election(nodes: &Nodes<'_>) -> Result<()> {
    let before = nodes.described(1, "")?;
    ensure!(
        before.iter().any(|partition| partition.leader != Some(partition.replicas[0])),
        "all do already: {before:?}"
    );
    soon(|| nodes.elect_preferred(2))?;
    for id in 1..=NODES {
        let lead = || {
            Ok(nodes
                .described(id, "")?
                .iter()
                .all(|partition| partition.leader == Some(partition.replicas[0])))
        };
        wait_until(|| format!("the first replicas lead, as node {id} says"), IN_SYNC_DEADLINE, lead)?;
    }
    let again = format!("--election-type preferred --topic {TOPIC} --partition 0");
    expect(&nodes.at(1).output(ELECTION, &again)?, &["Valid replica already elected for partitions three-0"])
}
