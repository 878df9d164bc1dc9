//! `mainstem group`: lists and describes consumer groups.

mod describe;
mod list;

use anyhow::Result;
use clap::{Args, Subcommand};

/// What `group` takes.
#[derive(Debug, Args)]
pub(crate) struct GroupArguments {
    #[command(subcommand)]
    command: GroupCommand,
}

#[derive(Debug, Subcommand)]
enum GroupCommand {
    /// List groups.
    List(list::List),
    /// Show a group's members, their partitions, offsets and lag.
    Describe(describe::Describe),
}

/// Runs the command.
pub(crate) fn run(arguments: &GroupArguments) -> Result<()> {
    match &arguments.command {
        GroupCommand::List(list) => list::run(list),
        GroupCommand::Describe(describe) => describe::run(describe),
    }
}
