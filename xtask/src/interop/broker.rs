//! The broker under test: Mainstem, or Apache Kafka itself, which shows that the checks are right.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use mainstem_testkit::port;

use super::{install, protocol};
use crate::process::{Process, ended_by_request, wait_until};
use crate::workspace;

/// Partitions of all topics, also of those that are created when a client uses them.
pub(crate) const PARTITIONS: i32 = 6;

const START_DEADLINE: Duration = Duration::from_secs(150);
const STOP_DEADLINE: Duration = Duration::from_secs(150);

/// Settings of every run, which both brokers understand.
fn common_settings() -> Vec<(&'static str, String)> {
    vec![
        ("group.initial.rebalance.delay.ms", "0".into()),
        // Members of the consumer protocol have the broker's times. They are longer than a busy machine delays a process, and not much
        // longer, as the other members wait for the end of one that is killed.
        ("group.consumer.min.session.timeout.ms", "6000".into()),
        ("group.consumer.session.timeout.ms", "15000".into()),
        ("group.consumer.min.heartbeat.interval.ms", "500".into()),
        ("group.consumer.heartbeat.interval.ms", "500".into()),
        ("num.partitions", PARTITIONS.to_string()),
        ("offsets.topic.num.partitions", "4".into()),
        // Clients with a quota reach its rate soon.
        ("quota.window.num", "2".into()),
    ]
}

/// The kind of broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Mainstem,
    Kafka,
}

impl Kind {
    pub(crate) fn parse(name: &str) -> Result<Kind> {
        match name {
            "mainstem" => Ok(Kind::Mainstem),
            "kafka" => Ok(Kind::Kafka),
            _ => bail!("--broker is mainstem or kafka, not {name}"),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Mainstem => "mainstem",
            Kind::Kafka => "kafka",
        }
    }
}

/// One broker process on a directory and a port that stay the same through kills and restarts.
pub(crate) struct Broker {
    kind: Kind,
    dir: PathBuf,
    port: u16,
    /// Settings beside those of every run.
    settings: Vec<(&'static str, String)>,
    process: Option<Process>,
}

impl Broker {
    /// A broker on an empty directory below `dir`, started and answering, with settings beside those of every run.
    pub(crate) fn start(
        kind: Kind,
        dir: &Path,
        port: u16,
        settings: Vec<(&'static str, String)>,
    ) -> Result<Broker> {
        let mut broker = Broker { kind, dir: dir.to_path_buf(), port, settings, process: None };
        broker.data_dirs().iter().try_for_each(fs::create_dir_all)?;
        if kind == Kind::Kafka {
            broker.format_kafka()?;
        }
        broker.restart()?;
        Ok(broker)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// The directories that hold the partitions' directories.
    pub(crate) fn data_dirs(&self) -> [PathBuf; 2] {
        ["data", "data-2"].map(|name| self.dir.join(name))
    }

    /// The value of log.dirs.
    fn log_dirs(&self) -> String {
        self.data_dirs().map(|dir| dir.display().to_string()).join(",")
    }

    /// Starts it on the files in its directory, and waits until it answers.
    pub(crate) fn restart(&mut self) -> Result<()> {
        ensure!(self.process.is_none(), "the broker runs already");
        let mut command = match self.kind {
            Kind::Mainstem => self.mainstem_command()?,
            Kind::Kafka => self.kafka_command(),
        };
        let process = self.process.insert(Process::start("broker", &mut command, &self.dir)?);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        wait_until(
            || format!("the broker answers on port {}", self.port),
            START_DEADLINE,
            || {
                process.check_alive()?;
                Ok(protocol::is_ready(address))
            },
        )
    }

    /// Ends it without warning (SIGKILL).
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// Ends it cleanly (SIGTERM).
    pub(crate) fn stop(&mut self) -> Result<()> {
        let mut process = self.process.take().context("the broker runs")?;
        process.terminate()?;
        let status = process.wait_for_status(STOP_DEADLINE)?;
        ensure!(ended_by_request(status), "the broker ended with {status}\n{}", process.log_ends());
        Ok(())
    }

    /// Returns the ends of its log.
    pub(crate) fn log_ends(&self) -> String {
        self.process.as_ref().map(Process::log_ends).unwrap_or_default()
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        [common_settings(), self.settings.clone()].concat()
    }

    fn mainstem_command(&self) -> Result<Command> {
        let binary = workspace::product();
        ensure!(binary.is_file(), "{} is missing; build it: cargo build --release", binary.display());
        let mut command = Command::new(binary);
        command.arg("start").arg("--set").arg(format!("log.dirs={}", self.log_dirs()));
        command.args(["--listen", &self.address().to_string()]);
        for (key, value) in self.settings() {
            command.arg("--set").arg(format!("{key}={value}"));
        }
        Ok(command)
    }

    fn kafka_command(&self) -> Command {
        let mut command = install::java(512);
        command.arg("kafka.Kafka").arg(self.kafka_properties());
        command
    }

    fn kafka_properties(&self) -> PathBuf {
        self.dir.join("server.properties")
    }

    fn format_kafka(&self) -> Result<()> {
        let (port, controller_port) = (self.port, port());
        let mut text = format!(
            "process.roles=broker,controller\n\
             node.id=1\n\
             listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}\n\
             controller.listener.names=CONTROLLER\n\
             controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}\n\
             log.dirs={}\n\
             broker.heartbeat.interval.ms=500\n\
             broker.session.timeout.ms=3000\n\
             offsets.topic.replication.factor=1\n\
             transaction.state.log.replication.factor=1\n\
             transaction.state.log.min.isr=1\n\
             share.coordinator.state.topic.replication.factor=1\n",
            self.log_dirs(),
        );
        for (key, value) in self.settings() {
            text += &format!("{key}={value}\n");
        }
        fs::write(self.kafka_properties(), text)?;
        let mut command = install::java(256);
        command.args([install::tool_class("kafka-storage"), "format", "--standalone"]);
        command.args(["--cluster-id", "bWFpbnN0ZW0taW50ZXJvcA", "--config"]).arg(self.kafka_properties());
        Process::start("format", &mut command, &self.dir)?.wait(START_DEADLINE)
    }
}
