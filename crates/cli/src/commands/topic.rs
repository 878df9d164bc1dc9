//! `mainstem topic`: creates, lists, describes, alters and deletes topics.

mod alter;
mod create;
mod delete;
mod describe;
mod list;

use anyhow::Result;
use clap::{Args, Subcommand};

/// What `topic` takes.
#[derive(Debug, Args)]
pub(crate) struct TopicArguments {
    #[command(subcommand)]
    command: TopicCommand,
}

#[derive(Debug, Subcommand)]
enum TopicCommand {
    /// Create a topic.
    Create(create::Create),
    /// List topics.
    List(list::List),
    /// Show partitions, offsets and settings of topics.
    Describe(describe::Describe),
    /// Change a topic's settings, or add partitions.
    Alter(alter::Alter),
    /// Delete topics and their records.
    Delete(delete::Delete),
}

/// Runs the command.
pub(crate) async fn run(arguments: &TopicArguments) -> Result<()> {
    match &arguments.command {
        TopicCommand::Create(create) => create::run(create).await,
        TopicCommand::List(list) => list::run(list).await,
        TopicCommand::Describe(describe) => describe::run(describe).await,
        TopicCommand::Alter(alter) => alter::run(alter).await,
        TopicCommand::Delete(delete) => delete::run(delete).await,
    }
}
