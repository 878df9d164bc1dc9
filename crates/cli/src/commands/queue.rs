//! `mainstem queue`: the embedded queue of a directory, without a broker.

mod append;
mod dump;
mod list;
mod repair;
mod tail;
mod verify;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Arguments of `queue`.
#[derive(Debug, Args)]
pub(crate) struct QueueArguments {
    #[command(subcommand)]
    command: QueueCommand,
}

#[derive(Debug, Subcommand)]
enum QueueCommand {
    /// Write lines of standard input to a queue; it is made if it is not there.
    Append(append::Append),
    /// Read messages of a queue.
    Tail(tail::Tail),
    /// Show where a queue begins and ends, its segments, and its named tailers with their lag.
    List(list::List),
    /// Print the batches of a queue.
    Dump(dump::Dump),
    /// Check every batch and index entry of a queue; exit code 1 if there is a fault.
    Verify(verify::Verify),
    /// Cut a damaged queue at the first damage, and rebuild its control file and indexes.
    Repair(repair::Repair),
}

/// Runs the command.
pub(crate) async fn run(arguments: &QueueArguments) -> Result<()> {
    match &arguments.command {
        QueueCommand::Append(append) => append::run(append),
        QueueCommand::Tail(tail) => tail::run(tail),
        QueueCommand::List(list) => list::run(list),
        QueueCommand::Dump(dump) => dump::run(dump),
        QueueCommand::Verify(verify) => verify::run(verify),
        QueueCommand::Repair(repair) => repair::run(repair).await,
    }
}
