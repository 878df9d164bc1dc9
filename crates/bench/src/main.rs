//! `mainstem-bench`: measures brokers side by side.

mod commands;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use commands::{bounds, direct, handlers, list, probe, profile, report, run, side};

/// Measures Mainstem and its peers side by side.
#[derive(Debug, Parser)]
#[command(name = "mainstem-bench", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the workloads.
    List(list::List),
    /// Run workloads on Mainstem and its peers, and report.
    Run(run::Run),
    /// Run frameworks of handlers beside each other.
    Handlers(handlers::Handlers),
    /// Stream events between services without a broker, and beside Akka Projection gRPC.
    Direct(direct::Direct),
    /// Measure latency and CPU time by tests that print them, and compare with the record.
    Bounds(bounds::Bounds),
    /// Make the summary and the plots of a folder of runs again.
    Report(report::Report),
    /// Run one load under strace or perf, and count per message.
    Profile(profile::ProfileArguments),
    /// Serve as the probe (`run` starts it).
    #[command(hide = true)]
    Probe(probe::Probe),
    /// Put a load on an embedded queue (`run` starts it).
    #[command(hide = true)]
    Side(side::Side),
}

impl Command {
    /// Returns true if errors are to be JSON.
    fn wants_json(&self) -> bool {
        match self {
            Command::List(list) => list.json,
            Command::Run(run) => run.json,
            Command::Handlers(handlers) => handlers.json,
            Command::Direct(direct) => direct.json,
            Command::Bounds(bounds) => bounds.json,
            Command::Report(report) => report.json,
            Command::Profile(profile) => profile.json,
            Command::Probe(_) | Command::Side(_) => false,
        }
    }
}

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    let outcome = match &command {
        Command::List(list) => list::run(list),
        Command::Run(run) => run::run(run),
        Command::Handlers(handlers) => handlers::run(handlers),
        Command::Direct(direct) => direct::run(direct),
        Command::Bounds(bounds) => bounds::run(bounds),
        Command::Report(report) => report::run(report),
        Command::Profile(profile) => profile::run(profile),
        Command::Probe(probe) => probe::run(probe),
        Command::Side(side) => side::run(side),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<mainstem_terminal::ReaderGone>() => ExitCode::SUCCESS,
        Err(error) => {
            let text = match command.wants_json() {
                true => serde_json::json!({ "error": format!("{error:#}") }).to_string(),
                false => format!("mainstem-bench: {error:#}"),
            };
            mainstem_terminal::print_error(&text);
            ExitCode::FAILURE
        }
    }
}
