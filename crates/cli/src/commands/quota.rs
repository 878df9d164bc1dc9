//! `mainstem quota`: limits of users, clients and addresses at the brokers.

mod entity;
mod list;
mod set;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Arguments of `quota`.
#[derive(Debug, Args)]
pub(crate) struct QuotaArguments {
    #[command(subcommand)]
    command: QuotaCommand,
}

#[derive(Debug, Subcommand)]
enum QuotaCommand {
    /// List quotas and their users, clients and addresses.
    List(list::List),
    /// Set or remove quotas of a user, a client or an address.
    Set(set::Set),
}

/// Runs the command.
pub(crate) async fn run(arguments: &QuotaArguments) -> Result<()> {
    match &arguments.command {
        QuotaCommand::List(list) => list::run(list).await,
        QuotaCommand::Set(set) => set::run(set).await,
    }
}
