//! Three nodes of one system on this machine, started with the same keys of server.properties.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal};

use super::{
    DataDir, LOG_TAIL_LINES, Process, READY_MAX, STOP_MAX, System, ensure_free, without_developers_variables,
};
use crate::environment::Environment;
use crate::workload::Durability;

/// The number of nodes in every workload of a cluster.
pub(crate) const NODES: usize = 3;

/// Three nodes; dropped, they are killed and their data removed.
#[derive(Debug)]
pub(crate) struct Nodes {
    // Declared before the directory: they are dropped first, so they have ended when their data is removed.
    processes: Vec<Option<Process>>,
    commands: Vec<PathBuf>,
    system: System,
    durability: Durability,
    /// Topics that loads have made on them.
    topics: usize,
    directory: DataDir,
    /// The addresses of the listeners for clients, in the order of the ids.
    pub(crate) addresses: Vec<SocketAddr>,
    /// The time just before the first process was started.
    pub(crate) started_at: Instant,
}

impl Nodes {
    /// Starts all nodes on empty directories, and does not wait.
    pub(crate) fn start(
        environment: &Environment,
        system: System,
        durability: Durability,
        heap_mib: u32,
    ) -> Result<Self> {
        ensure!(system == System::Kafka || system.is_mainstem(), "{} has no clusters", system.name());
        let directory = DataDir::make(environment, system)?;
        let addresses = (0..NODES).map(|_| environment.next_address()).collect::<Result<Vec<_>>>()?;
        let mut nodes = Self {
            processes: Vec::new(),
            commands: Vec::new(),
            system,
            durability,
            topics: 0,
            directory,
            addresses,
            started_at: Instant::now(),
        };
        let mut commands = Vec::new();
        for number in 0..NODES {
            let folder = nodes.directory.path().join(format!("node-{}", number + 1));
            fs::create_dir_all(&folder)?;
            let text = properties(&folder, number, &nodes.addresses);
            commands.push(command(environment, (system, durability, heap_mib), (number, &folder), &text)?);
            ensure_free(nodes.addresses[number])?;
            nodes.commands.push(folder);
        }
        nodes.started_at = Instant::now();
        for (command, folder) in commands.iter_mut().zip(&nodes.commands) {
            let log = File::create(folder.join("output.log"))?;
            without_developers_variables(command);
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
            let child = command.spawn().with_context(|| format!("starting {:?}", command.get_program()))?;
            nodes.processes.push(Some(Process(child)));
        }
        Ok(nodes)
    }

    /// Returns the name of a topic that does not exist yet.
    pub(crate) fn next_topic(&mut self) -> String {
        self.topics += 1;
        format!("bench-{}", self.topics)
    }

    /// The folders of the nodes, each with its data in `data`.
    pub(crate) fn folders(&self) -> impl Iterator<Item = &Path> {
        self.commands.iter().map(PathBuf::as_path)
    }

    /// Returns true if a load was run on them.
    pub(crate) fn are_warm(&self) -> bool {
        self.topics > 0
    }

    /// Returns true if they are of a system, and serve with a durability: Kafka's is a setting of topics.
    pub(crate) fn serve(&self, system: System, durability: Durability) -> bool {
        self.system == system && (system == System::Kafka || self.durability == durability)
    }

    /// Tries every millisecond until there is an answer; fails with the logs if a process ends before.
    pub(crate) fn wait_until<T>(&mut self, mut attempt: impl FnMut(&Self) -> Option<T>) -> Result<T> {
        loop {
            if let Some(answer) = attempt(self) {
                return Ok(answer);
            }
            self.ensure_running()?;
            if self.started_at.elapsed() > READY_MAX {
                let what =
                    format!("three nodes of {} do not answer within {READY_MAX:?}", self.system.name());
                return Err(self.fault(&what));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn ensure_running(&mut self) -> Result<()> {
        for number in 0..self.processes.len() {
            let Some(process) = &mut self.processes[number] else { continue };
            if let Some(status) = process.0.try_wait()? {
                let what = format!("node {} of {} ended with {status}", number + 1, self.system.name());
                return Err(self.fault(&what));
            }
        }
        Ok(())
    }

    /// The ids of the processes that run.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.processes.iter().flatten().map(|process| process.0.id()).collect()
    }

    /// The id of a node's process.
    pub(crate) fn pid(&self, number: usize) -> Result<u32> {
        let process = self.processes[number].as_ref();
        Ok(process.with_context(|| format!("node {} does not run", number + 1))?.0.id())
    }

    /// `kill -9`, and waits for the end.
    pub(crate) fn kill(&mut self, number: usize) {
        self.processes[number] = None;
    }

    /// Sends a signal to a node.
    pub(crate) fn signal(&self, number: usize, signal: Signal) -> Result<()> {
        let process = self.processes[number].as_ref();
        let process = process.with_context(|| format!("node {} does not run", number + 1))?;
        Ok(rustix::process::kill_process(Pid::from_child(&process.0), signal)?)
    }

    /// Stops all that run as an operator would, and removes their data.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.ensure_running()?;
        for number in 0..NODES {
            if self.processes[number].is_some() {
                self.signal(number, Signal::TERM)?;
            }
        }
        let deadline = Instant::now() + STOP_MAX;
        for number in 0..NODES {
            while let Some(process) = &mut self.processes[number]
                && process.0.try_wait()?.is_none()
            {
                if Instant::now() > deadline {
                    return Err(self.fault(&format!("node {} does not stop within {STOP_MAX:?}", number + 1)));
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }

    /// Returns an error with the last lines of all nodes.
    pub(crate) fn fault(&self, what: &str) -> anyhow::Error {
        let mut text = what.to_owned();
        for (number, folder) in self.commands.iter().enumerate() {
            let log = fs::read(folder.join("output.log")).unwrap_or_default();
            let log = String::from_utf8_lossy(&log).into_owned();
            let lines: Vec<_> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n");
            text.push_str(&format!("\nnode {}:\n{tail}", number + 1));
        }
        anyhow!(text)
    }
}

/// Kafka's keys, with a copy of everything on each node.
fn properties(folder: &Path, number: usize, addresses: &[SocketAddr]) -> String {
    let controller = |address: &SocketAddr| format!("{}:{}", address.ip(), address.port() + 1);
    let voters = (1..).zip(addresses).map(|(id, address): (i32, _)| format!("{id}@{}", controller(address)));
    let voters = voters.collect::<Vec<_>>().join(",");
    let (plain, own) = (addresses[number], controller(&addresses[number]));
    let (id, data) = (number + 1, folder.join("data").display().to_string());
    format!(
        "process.roles=broker,controller
node.id={id}
controller.quorum.voters={voters}
listeners=PLAINTEXT://{plain},CONTROLLER://{own}
advertised.listeners=PLAINTEXT://{plain}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
"
    )
}

/// Settings that Kafka's shipped server.properties has, and its built-in defaults do not.
const KAFKA_SETTINGS: &str = "\
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
num.recovery.threads.per.data.dir=2
share.coordinator.state.topic.replication.factor=3
share.coordinator.state.topic.min.isr=2
";

fn command(
    environment: &Environment,
    (system, durability, heap_mib): (System, Durability, u32),
    (number, folder): (usize, &Path),
    properties: &str,
) -> Result<Command> {
    if system == System::Kafka {
        let kafka = environment.kafka.as_ref().context("Kafka was not set up")?;
        kafka.prepare_node(folder, number, &format!("{properties}{KAFKA_SETTINGS}"))?;
        return Ok(kafka.command(folder, heap_mib));
    }
    let file = folder.join("server.properties");
    fs::write(&file, properties)?;
    let mut command = Command::new(&environment.mainstem);
    command.arg("start").arg("--config").arg(file);
    // As Kafka does by default.
    let caching = (durability == Durability::PageCache).then_some("write.caching.default=true");
    let settings = system.settings().iter().copied().chain(caching);
    for setting in settings.chain(environment.mainstem_settings.iter().map(String::as_str)) {
        command.arg("--set").arg(setting);
    }
    Ok(command)
}
