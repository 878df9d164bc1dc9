//! `mainstem group`: lists, describes, resets and deletes consumer groups.

mod delete;
mod delete_offsets;
mod describe;
mod lag;
mod latest;
mod list;
mod reset;
mod topic_partitions;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Arguments of `group`.
#[derive(Debug, Args)]
pub(crate) struct GroupArguments {
    #[command(subcommand)]
    command: GroupCommand,
}

#[derive(Debug, Subcommand)]
enum GroupCommand {
    /// List groups.
    List(list::List),
    /// Show the lag of all groups, the largest first.
    Lag(lag::Lag),
    /// Show a group's members, their partitions, offsets and lag.
    Describe(describe::Describe),
    /// Set the offsets from which a group without members continues. Without --execute only shows them.
    Reset(reset::Reset),
    /// Delete groups without members, and their offsets.
    Delete(delete::Delete),
    /// Delete offsets of topics that no member of the group reads.
    DeleteOffsets(delete_offsets::DeleteOffsets),
}

/// Runs the command.
pub(crate) async fn run(arguments: &GroupArguments) -> Result<()> {
    match &arguments.command {
        GroupCommand::List(list) => list::run(list).await,
        GroupCommand::Lag(lag) => lag::run(lag).await,
        GroupCommand::Describe(describe) => describe::run(describe).await,
        GroupCommand::Reset(reset) => reset::run(reset).await,
        GroupCommand::Delete(delete) => delete::run(delete).await,
        GroupCommand::DeleteOffsets(delete) => delete_offsets::run(delete).await,
    }
}
