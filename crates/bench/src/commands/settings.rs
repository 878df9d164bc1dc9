//! Arguments of `mainstem-bench run` and `mainstem-bench profile` about the systems and the length of a load.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use mainstem_bench::{Extent, Settings};

/// The places of programs, jars, data and ports.
#[derive(Debug, Args)]
pub(crate) struct SystemArguments {
    /// The mainstem program to measure. [default: the one beside this program]
    #[arg(long, value_name = "PATH", env = "MAINSTEM_BINARY")]
    mainstem: Option<PathBuf>,
    /// A further setting of mainstem; may be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The folder of Kafka's jars; Maven fetches them if they are not there.
    #[arg(long, value_name = "DIR", env = "MAINSTEM_KAFKA_JARS", default_value = "target/peers/kafka-4.3.0")]
    kafka_jars: PathBuf,
    /// The same for Chronicle Queue.
    #[arg(long, value_name = "DIR", default_value = "target/peers/chronicle-5.27ea11")]
    chronicle_jars: PathBuf,
    /// The java that runs the peers. [default: the newest JDK that is found and that they are made for]
    #[arg(long, value_name = "PATH")]
    java: Option<PathBuf>,
    /// Folder for data directories: on the disk to be measured.
    #[arg(long, value_name = "DIR", default_value = "target/bench-data")]
    data_root: PathBuf,
    /// The first of 200 ports; 0 takes any that are free.
    #[arg(long, value_name = "N", default_value_t = 22_000)]
    port: u16,
}

/// The length of a load.
#[derive(Debug, Args)]
pub(crate) struct LengthArguments {
    /// Load before the window, in seconds; a JVM needs 15.
    #[arg(long, value_name = "SECONDS", default_value = "15", value_parser = seconds)]
    warmup: Duration,
    /// Measured time of a load, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    window: Duration,
}

impl SystemArguments {
    /// Returns these as the benchmark's settings.
    pub(crate) fn settings(&self) -> Result<Settings> {
        let mainstem = match &self.mainstem {
            Some(path) => path.clone(),
            None => std::env::current_exe()
                .context("the path of this program is not known: name that of mainstem by --mainstem")?
                .with_file_name("mainstem"),
        };
        Ok(Settings {
            mainstem,
            mainstem_settings: self.set.clone(),
            kafka_jars: self.kafka_jars.clone(),
            chronicle_jars: self.chronicle_jars.clone(),
            java: self.java.clone(),
            data_root: self.data_root.clone(),
            first_port: self.port,
        })
    }
}

impl LengthArguments {
    /// Returns these as an extent, with the defaults for everything else.
    pub(crate) fn extent(&self) -> Extent {
        Extent { warmup: self.warmup, window: self.window, ..Extent::default() }
    }
}

/// Seconds, with a fraction if wanted.
pub(crate) fn seconds(text: &str) -> Result<Duration> {
    let seconds: f64 = text.parse().context("take seconds, such as 15 or 0.5")?;
    Duration::try_from_secs_f64(seconds).context("take seconds, such as 15 or 0.5")
}
