//! `mainstem log`: log files on disk.

mod accept_loss;
mod dump;
mod strays;
mod verify;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Arguments of `log`.
#[derive(Debug, Args)]
pub(crate) struct LogArguments {
    #[command(subcommand)]
    command: LogCommand,
}

#[derive(Debug, Subcommand)]
enum LogCommand {
    /// Print the batches of segment files.
    Dump(dump::Dump),
    /// Check every file of a partition or of a data directory; exit code 1 if there is a fault.
    Verify(verify::Verify),
    /// Let the next start serve a partition of which segments are missing.
    AcceptLoss(accept_loss::AcceptLoss),
    /// Show the partitions that no topic owns, which a start has set aside; with --execute delete them.
    Strays(strays::Strays),
}

/// Runs the command.
pub(crate) async fn run(arguments: &LogArguments) -> Result<()> {
    match &arguments.command {
        LogCommand::Dump(dump) => dump::run(dump),
        LogCommand::Verify(verify) => verify::run(verify),
        LogCommand::AcceptLoss(accept) => accept_loss::run(accept),
        LogCommand::Strays(strays) => strays::run(strays).await,
    }
}
