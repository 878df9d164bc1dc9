//! What all subcommands that start brokers take from the command line.

use std::process::Command;

use anyhow::{Context, Result};

use crate::broker::{Environment, KafkaInstall, System};
use crate::options::Options;

/// Ports go round in this many pairs, so that a run does not meet the closing connections of the one before.
const PORT_PAIRS: u16 = 100;

/// Finds what the systems need; Kafka is fetched if it is among them and not there.
pub(crate) fn environment(options: &mut Options, systems: &[System]) -> Result<Environment> {
    let jars = options.path("--kafka-jars", "target/peers/kafka-4.3.0")?;
    let java = options.text("--java")?.map(Into::into);
    let mainstem = options.path("--mainstem", "target/release/mainstem")?;
    if systems.iter().any(|system| system.is_mainstem()) {
        std::fs::metadata(&mainstem).with_context(|| {
            format!("no broker at {}; build it by `cargo build --release`", mainstem.display())
        })?;
    }
    let kafka = systems.contains(&System::Kafka).then(|| KafkaInstall::find(&jars, java)).transpose()?;
    if let Some(kafka) = &kafka {
        eprintln!("Apache Kafka runs on {}", kafka.java_version);
    }
    let data_root = options.path("--data-root", "target/bench-data")?;
    std::fs::create_dir_all(&data_root)?;
    Ok(Environment {
        mainstem,
        mainstem_settings: options.texts("--set")?,
        kafka,
        data_root: data_root.canonicalize()?,
        first_port: options.number("--port", 22_000)?,
        runs: 0,
    })
}

impl Environment {
    /// The first of the two ports of the current run.
    pub(crate) fn port(&self) -> u16 {
        self.first_port + 2 * (self.runs % PORT_PAIRS)
    }

    /// To be called after each run.
    pub(crate) fn next_ports(&mut self) {
        self.runs = self.runs.wrapping_add(1);
    }
}

/// The commit of the working directory, with a mark if it has uncommitted changes.
pub(crate) fn commit() -> String {
    let output = Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12"]).output();
    match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => "unknown".to_owned(),
    }
}
