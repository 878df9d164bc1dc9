//! `mainstem-bench direct`: services that stream events without a broker, beside their peer.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use mainstem_bench::StreamsOrder;

/// Arguments of `mainstem-bench direct`.
#[derive(Debug, Args)]
pub(crate) struct Direct {
    /// The loads; all unless some are named.
    loads: Vec<String>,
    /// Number of measurements of each system.
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Length of a window.
    #[arg(long, value_name = "SECONDS", default_value_t = 180)]
    window: u64,
    /// Length of the load before its window.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    warmup: u64,
    /// Events that are there when a consumer begins to catch up.
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    events: u64,
    /// Length of a step of streams-ramp.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    step: u64,
    /// Events a second of its first step.
    #[arg(long, value_name = "N", default_value_t = 16_000)]
    rate_from: u64,
    /// It ends when the p99 of the lag is above that, or the rate is not reached, twice in a row.
    #[arg(long, value_name = "MS", default_value_t = 50.0)]
    lag_ms_max: f64,
    /// Watch the stages of events in a further window of so long: sync, wake, HTTP/2, handler. [default: do not]
    #[arg(long, value_name = "SECONDS", default_value_t = 0, hide_default_value = true)]
    shares: u64,
    /// Measure without the peer, which needs Maven, a JDK and PostgreSQL.
    #[arg(long)]
    no_peer: bool,
    /// The folder for the results; it has to be empty.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The program `stream_lag`. [default: the example beside this program]
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// The folder of the peer's jars; Maven fetches them if they are not there.
    #[arg(long, value_name = "DIR", default_value = "target/peers/streams")]
    peers: PathBuf,
    /// The folder of PostgreSQL's programs.
    #[arg(long, value_name = "DIR", default_value = "/usr/lib/postgresql/15/bin")]
    postgresql: PathBuf,
    /// The java that runs the peer. [default: the newest JDK up to 21 that is found]
    #[arg(long, value_name = "PATH")]
    java: Option<PathBuf>,
    /// Folder for journals and databases: on the disk to be measured.
    #[arg(long, value_name = "DIR", default_value = "target/bench-data")]
    data_root: PathBuf,
    /// Ports are looked for from this one on.
    #[arg(long, value_name = "N", default_value_t = 22_000)]
    port: u16,
    /// Measure on a busy machine as well.
    #[arg(long)]
    force: bool,
    /// Print errors as JSON; the results are JSON in any case.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measures.
pub(crate) fn run(arguments: &Direct) -> Result<()> {
    let program = match &arguments.program {
        Some(path) => path.clone(),
        None => std::env::current_exe()
            .context("the path of this program is not known: name stream_lag by --program")?
            .with_file_name("examples")
            .join("stream_lag"),
    };
    let order = StreamsOrder {
        rounds: arguments.rounds,
        seconds: arguments.window,
        warmup: arguments.warmup,
        events: arguments.events,
        step: arguments.step,
        rate_from: arguments.rate_from,
        lag_ms_max: arguments.lag_ms_max,
        shares: arguments.shares,
        loads: arguments.loads.clone(),
        peer: !arguments.no_peer,
        out: arguments.out.clone(),
        program,
        peers: arguments.peers.clone(),
        postgresql: arguments.postgresql.clone(),
        java: arguments.java.clone(),
        data_root: arguments.data_root.clone(),
        first_port: arguments.port,
        force: arguments.force,
    };
    mainstem_bench::run_streams(&order)
}
