//! The environment of runs: programs, jars, directories, ports.

use std::cell::{Cell, RefCell};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::broker::nodes::Nodes;
use crate::broker::{KafkaInstall, System};
use crate::embedded::chronicle::ChronicleInstall;

/// Ports go round in this many pairs, so that a run does not meet the closing connections of the one before.
const PORT_PAIRS: u16 = 100;

/// Settings of a person for the systems; the defaults serve a checkout of the repository.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The `mainstem` program that is measured.
    pub mainstem: PathBuf,
    /// Its further settings, `KEY=VALUE` each.
    pub mainstem_settings: Vec<String>,
    /// The folder of Kafka's jars; they are fetched by Maven if they are not there.
    pub kafka_jars: PathBuf,
    /// The same for Chronicle Queue.
    pub chronicle_jars: PathBuf,
    /// The `java` that runs the peers; the newest of the machine that they are made for unless it is given.
    pub java: Option<PathBuf>,
    /// The folder for data directories: on the disk that is to be measured.
    pub data_root: PathBuf,
    /// The first of 200 ports; 0 takes any that are free.
    pub first_port: u16,
}

/// The settings, with all programs found and checked.
#[derive(Debug)]
pub(crate) struct Environment {
    /// The mainstem binary that is measured.
    pub(crate) mainstem: PathBuf,
    /// Further `KEY=VALUE` settings of mainstem.
    pub(crate) mainstem_settings: Vec<String>,
    /// The program that runs, whose `bench probe` is the probe.
    pub(crate) tool: PathBuf,
    /// Present if Kafka or its tools are needed.
    pub(crate) kafka: Option<KafkaInstall>,
    /// Present if Chronicle Queue is measured.
    pub(crate) chronicle: Option<ChronicleInstall>,
    pub(crate) data_root: PathBuf,
    /// Three nodes that a load has left for the next one.
    pub(crate) nodes: RefCell<Option<Nodes>>,
    first_port: u16,
    starts: Cell<u16>,
}

/// The peers that a run needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Kafka or its tools.
    pub(crate) kafka: bool,
    pub(crate) chronicle: bool,
}

impl Environment {
    /// Finds what the systems need, and fetches peers that are needed and missing.
    pub(crate) fn prepare(settings: &Settings, systems: &[System], needs: Needs) -> Result<Self> {
        ensure!(
            u32::from(settings.first_port) + u32::from(2 * PORT_PAIRS) <= 1 << 16,
            "port {} leaves too few above it for the {} ports of a benchmark: choose a lower one by --port",
            settings.first_port,
            2 * PORT_PAIRS
        );
        if systems.iter().any(|system| system.is_mainstem_broker()) {
            require_program(&settings.mainstem)?;
        }
        let java = || settings.java.clone();
        let kafka = needs.kafka.then(|| KafkaInstall::find(&settings.kafka_jars, java())).transpose()?;
        let chronicle =
            needs.chronicle.then(|| ChronicleInstall::find(&settings.chronicle_jars, java())).transpose()?;
        std::fs::create_dir_all(&settings.data_root).with_context(|| {
            format!("{} cannot be made: choose another by --data-root", settings.data_root.display())
        })?;
        Ok(Self {
            mainstem: settings.mainstem.clone(),
            mainstem_settings: settings.mainstem_settings.clone(),
            tool: std::env::current_exe().context("the path of this program is not known")?,
            kafka,
            chronicle,
            data_root: settings.data_root.canonicalize()?,
            nodes: RefCell::new(None),
            first_port: settings.first_port,
            starts: Cell::new(0),
        })
    }

    /// Returns the address of the next broker; the port above it is its too.
    pub(crate) fn next_address(&self) -> Result<SocketAddr> {
        if self.first_port == 0 {
            return free_pair();
        }
        for _ in 0..PORT_PAIRS {
            let start = self.starts.get();
            self.starts.set((start + 1) % PORT_PAIRS);
            let port = self.first_port + 2 * start;
            if is_free(port) && is_free(port + 1) {
                return Ok(at(port));
            }
        }
        bail!("none of the ports from {} on is free: choose others by --port", self.first_port)
    }
}

/// Returns the first free port from one on. Clients connect from ports above those that are given by hand, so a port stays free while its
/// server is away. From 0 on: a free port that this process holds.
pub(crate) fn free_port(first: u16) -> Result<u16> {
    if first == 0 {
        return Ok(free_pair()?.port());
    }
    let mut ports = first..=first.saturating_add(2 * PORT_PAIRS);
    ports.find(|port| is_free(*port)).with_context(|| {
        format!("none of the {} ports from {first} on is free: choose others by --port", 2 * PORT_PAIRS)
    })
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(at(port)).is_ok()
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Returns a port with the one above it. Both stay reserved for this process until it ends: no other process that takes ports in the same
/// way gets them.
fn free_pair() -> Result<SocketAddr> {
    let mut port = mainstem_testkit::port();
    for _ in 0..PORT_PAIRS {
        let next = mainstem_testkit::port();
        if next == port + 1 {
            return Ok(at(port));
        }
        port = next;
    }
    bail!("no two ports beside each other are free: choose some by --port")
}

fn require_program(path: &Path) -> Result<()> {
    let metadata = std::fs::metadata(path);
    ensure!(
        metadata.is_ok_and(|metadata| metadata.is_file()),
        "there is no broker at {}: build it by `cargo build --release`, or name one by --mainstem",
        path.display()
    );
    Ok(())
}

/// The commit of the working directory, with a mark if it has uncommitted changes.
pub(crate) fn commit() -> String {
    let output = Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12"]).output();
    match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => "unknown".to_owned(),
    }
}
