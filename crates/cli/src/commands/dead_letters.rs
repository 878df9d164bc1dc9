//! `mainstem dead-letters`: messages that handlers and share groups have set aside. They are records of a topic,
//! whose headers say where each comes from and why it was set aside (KIP-1191).

mod filter;
mod letters;
mod list;
mod purge;
mod replay;
mod show;
mod targets;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Arguments of `dead-letters`.
#[derive(Debug, Args)]
pub(crate) struct DeadLettersArguments {
    #[command(subcommand)]
    command: DeadLettersCommand,
}

#[derive(Debug, Subcommand)]
enum DeadLettersCommand {
    /// List topics of dead letters, and how many there are.
    List(list::List),
    /// Show the letters of a topic: where each comes from, and why it was set aside.
    Show(show::Show),
    /// Write letters back to where they come from. Without --execute only shows them.
    Replay(replay::Replay),
    /// Delete the letters of a topic.
    Purge(purge::Purge),
}

/// Runs the command.
pub(crate) async fn run(arguments: &DeadLettersArguments) -> Result<()> {
    match &arguments.command {
        DeadLettersCommand::List(list) => list::run(list).await,
        DeadLettersCommand::Show(show) => show::run(show).await,
        DeadLettersCommand::Replay(replay) => replay::run(replay).await,
        DeadLettersCommand::Purge(purge) => purge::run(purge).await,
    }
}
