//! `mainstem bench`: measures brokers side by side.

mod list;
mod probe;
mod profile;
mod report;
mod run;
mod settings;

use anyhow::Result;
use clap::{Args, Subcommand};

/// What `bench` takes.
#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// List the workloads.
    List(list::List),
    /// Run workloads on Mainstem and its peers, and report.
    Run(run::Run),
    /// Make the summary and the plots of a folder of runs anew.
    Report(report::Report),
    /// Run one load under strace or perf, and count per message.
    Profile(profile::ProfileArguments),
    /// Serve as the probe (`run` starts it).
    #[command(hide = true)]
    Probe(probe::Probe),
}

/// Runs the command.
pub(crate) fn run(arguments: &BenchArguments) -> Result<()> {
    match &arguments.command {
        BenchCommand::List(list) => list::run(list),
        BenchCommand::Run(run) => run::run(run),
        BenchCommand::Report(report) => report::run(report),
        BenchCommand::Profile(profile) => profile::run(profile),
        BenchCommand::Probe(probe) => probe::run(probe),
    }
}
