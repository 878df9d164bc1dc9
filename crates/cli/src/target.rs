//! The cluster that a command talks to, as the command line names it.

use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::cluster::Cluster;

/// What every command takes that talks to a broker.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// Brokers to connect to first, separated by commas; the others are found through them.
    #[arg(long, env = "MAINSTEM_BOOTSTRAP", default_value = "127.0.0.1:9092", value_name = "HOST:PORT")]
    bootstrap: String,
    /// How long to retry what may succeed later, such as a leader that is being elected.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    timeout: u64,
}

impl Target {
    /// Connects to the first of the brokers that answers.
    pub(crate) fn connect(&self) -> Result<Cluster> {
        Cluster::connect(&self.bootstrap, Duration::from_secs(self.timeout))
    }
}
