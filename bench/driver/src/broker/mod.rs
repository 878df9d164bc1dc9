//! The systems under test, started fresh for each run and stopped after it.

mod kafka;

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal};

pub(crate) use self::kafka::{KafkaInstall, VERSION as KAFKA_VERSION};
use crate::connection::Connection;
use crate::load::Target;
use crate::protocol::admin;

const READY_MAX: Duration = Duration::from_secs(60);
const STOP_MAX: Duration = Duration::from_secs(15);
/// Set for a developer's comfort, they would change what is measured.
const UNWANTED_VARIABLES: [&str; 6] = [
    "RUST_BACKTRACE",
    "RUST_LIB_BACKTRACE",
    "RUST_LOG",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
];
/// Lines of a broker's log that an error shows.
const LOG_TAIL_LINES: usize = 15;

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum System {
    /// Apache Kafka with its defaults.
    Kafka,
    /// Mainstem with `num.network.threads=1`: all connections on one thread.
    MainstemSame,
    /// Mainstem with `num.network.threads=2`: connections split over two threads.
    MainstemSplit,
    /// The minimal server of this program.
    Probe,
}

impl System {
    pub(crate) const ALL: [Self; 4] = [Self::Kafka, Self::MainstemSame, Self::MainstemSplit, Self::Probe];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::MainstemSame => "mainstem-same",
            Self::MainstemSplit => "mainstem-split",
            Self::Probe => "probe",
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|system| system.name() == name);
        found.with_context(|| {
            format!("no system {name}; there are kafka, mainstem-same, mainstem-split, probe")
        })
    }

    /// Whether it is a whole broker; the probe serves the two requests of a load alone.
    pub(crate) fn is_broker(self) -> bool {
        self != Self::Probe
    }

    pub(crate) fn is_mainstem(self) -> bool {
        matches!(self, Self::MainstemSame | Self::MainstemSplit)
    }
}

/// Where everything is that a run needs.
#[derive(Debug)]
pub(crate) struct Environment {
    /// The mainstem binary.
    pub(crate) mainstem: PathBuf,
    /// Further `KEY=VALUE` settings of mainstem.
    pub(crate) mainstem_settings: Vec<String>,
    /// Present if Kafka is among the systems.
    pub(crate) kafka: Option<KafkaInstall>,
    /// Where data directories are made; on the disk that is to be measured.
    pub(crate) data_root: PathBuf,
    /// The first port of all runs.
    pub(crate) first_port: u16,
    /// How many runs there were.
    pub(crate) runs: u16,
}

/// A broker that was started; dropped, it is killed and its data removed.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    system: System,
    directory: PathBuf,
    pub(crate) address: SocketAddr,
    /// Just before the process was started.
    pub(crate) started_at: Instant,
}

impl Running {
    /// Starts a system on an empty data directory, without waiting until it answers.
    pub(crate) fn start(environment: &Environment, system: System, fsync: bool) -> Result<Self> {
        let directory = environment.data_root.join(format!("{}-{}", system.name(), std::process::id()));
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        fs::create_dir_all(&directory).with_context(|| format!("creating {}", directory.display()))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, environment.port()));
        ensure_free(address)?;
        let mut command = command(environment, system, fsync, &directory, address)?;
        let log = File::create(directory.join("output.log"))?;
        for variable in UNWANTED_VARIABLES {
            command.env_remove(variable);
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let started_at = Instant::now();
        let child = command.spawn().with_context(|| format!("starting {:?}", command.get_program()))?;
        Ok(Self { child, system, directory, address, started_at })
    }

    /// Starts a system and waits until it answers.
    pub(crate) fn start_ready(environment: &Environment, system: System, fsync: bool) -> Result<Self> {
        let mut broker = Self::start(environment, system, fsync)?;
        broker.wait_until(|broker| {
            let mut connection = Connection::open(broker.address).ok()?;
            let answers = !broker.system.is_broker() || admin::api_versions(&mut connection).is_ok();
            answers.then_some(())
        })?;
        Ok(broker)
    }

    /// Tries every millisecond until there is an answer; fails with the log if the process ends before.
    pub(crate) fn wait_until<T>(&mut self, mut attempt: impl FnMut(&Self) -> Option<T>) -> Result<T> {
        loop {
            if let Some(answer) = attempt(self) {
                return Ok(answer);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "{} ended with {status} instead of answering:\n{}",
                    self.system.name(),
                    self.log_tail()
                );
            }
            if self.started_at.elapsed() > READY_MAX {
                bail!("{} does not answer within {READY_MAX:?}:\n{}", self.system.name(), self.log_tail());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn target(&self) -> Target {
        Target { address: self.address, has_topics_and_groups: self.system.is_broker() }
    }

    /// The last lines that the broker printed.
    pub(crate) fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.directory.join("output.log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    /// Stops it as an operator would (the probe just ends), and removes its data.
    pub(crate) fn stop(mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended with {status} during the run:\n{}", self.system.name(), self.log_tail());
        }
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, Signal::TERM)?;
        let deadline = Instant::now() + STOP_MAX;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                bail!("{} does not stop within {STOP_MAX:?}:\n{}", self.system.name(), self.log_tail());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Of a process that has ended already these fail, and there is nobody to tell of a directory left behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A stranger on the port would be measured instead of the broker.
fn ensure_free(address: SocketAddr) -> Result<()> {
    ensure!(Connection::open(address).is_err(), "{address} is in use; choose others by --port");
    Ok(())
}

fn command(
    environment: &Environment,
    system: System,
    fsync: bool,
    directory: &Path,
    address: SocketAddr,
) -> Result<Command> {
    match system {
        System::Kafka => {
            let kafka = environment.kafka.as_ref().context("Kafka was not set up")?;
            kafka.prepare(directory, address)?;
            Ok(kafka.command(directory))
        }
        System::MainstemSame => Ok(mainstem(environment, 1, fsync, directory, address)),
        System::MainstemSplit => Ok(mainstem(environment, 2, fsync, directory, address)),
        System::Probe => probe(fsync, directory, address),
    }
}

fn mainstem(
    environment: &Environment,
    threads: u32,
    fsync: bool,
    directory: &Path,
    address: SocketAddr,
) -> Command {
    let mut command = Command::new(&environment.mainstem);
    command.arg("start").arg("--data-dir").arg(directory.join("data"));
    command.arg("--listen").arg(address.to_string());
    command.arg("--set").arg(format!("num.network.threads={threads}"));
    if !fsync {
        // As Kafka does by default. The loads use acks=1, which does not wait for the disk in any case.
        command.arg("--set").arg("write.caching.default=true");
    }
    for setting in &environment.mainstem_settings {
        command.arg("--set").arg(setting);
    }
    command
}

fn probe(fsync: bool, directory: &Path, address: SocketAddr) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("probe-server").arg("--listen").arg(address.to_string()).arg("--directory").arg(directory);
    if fsync {
        command.arg("--fsync");
    }
    Ok(command)
}
