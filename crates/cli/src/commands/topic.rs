//! `mainstem topic`: creates, lists, describes, alters and deletes topics, and their records.

mod alter;
mod create;
mod delete;
mod delete_records;
mod describe;
mod list;
mod offsets;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Arguments of `topic`.
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
    /// Delete records from the beginning of partitions. Without --execute only shows them.
    DeleteRecords(delete_records::DeleteRecords),
    /// Show the first or last offset of each partition, or the one at a time.
    Offsets(offsets::Offsets),
}

/// Runs the command.
pub(crate) async fn run(arguments: &TopicArguments) -> Result<()> {
    match &arguments.command {
        TopicCommand::Create(create) => create::run(create).await,
        TopicCommand::List(list) => list::run(list).await,
        TopicCommand::Describe(describe) => describe::run(describe).await,
        TopicCommand::Alter(alter) => alter::run(alter).await,
        TopicCommand::Delete(delete) => delete::run(delete).await,
        TopicCommand::DeleteRecords(delete) => delete_records::run(delete).await,
        TopicCommand::Offsets(offsets) => offsets::run(offsets).await,
    }
}
