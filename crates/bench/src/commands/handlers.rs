//! `mainstem-bench handlers`: frameworks of handlers beside each other.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use mainstem_bench::HandlersOrder;

use super::settings::SystemArguments;

/// Arguments of `mainstem-bench handlers`.
#[derive(Debug, Args)]
pub(crate) struct Handlers {
    #[command(flatten)]
    systems: SystemArguments,
    /// Number of measurements of each framework.
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Records of each of five topics with empty handlers.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    records: u64,
    /// Seconds of each load by a schedule.
    #[arg(long, value_name = "N", default_value_t = 10)]
    seconds: u64,
    /// The folder for the results; it has to be empty.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The program `handler_load`. [default: the example beside this program]
    #[arg(long, value_name = "PATH")]
    load: Option<PathBuf>,
    /// The folder of the peers' jars; Maven fetches them if they are not there.
    #[arg(long, value_name = "DIR", default_value = "target/peers/handlers")]
    peers: PathBuf,
    /// Only loads that have this in their names.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Measure on a busy machine as well.
    #[arg(long)]
    force: bool,
    /// Print errors as JSON; the results are JSON in any case.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measures.
pub(crate) fn run(arguments: &Handlers) -> Result<()> {
    let load = match &arguments.load {
        Some(path) => path.clone(),
        None => std::env::current_exe()
            .context("the path of this program is not known: name handler_load by --load")?
            .with_file_name("examples")
            .join("handler_load"),
    };
    let order = HandlersOrder {
        rounds: arguments.rounds,
        records: arguments.records,
        seconds: arguments.seconds,
        out: arguments.out.clone(),
        load,
        peers: arguments.peers.clone(),
        only: arguments.only.clone(),
        force: arguments.force,
    };
    mainstem_bench::run_handlers(&order, &arguments.systems.settings()?)
}
