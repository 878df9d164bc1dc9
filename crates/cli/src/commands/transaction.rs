//! `mainstem transaction`: lists, describes and aborts transactions, and finds those that hang.

mod abort;
mod describe;
mod find_hanging;
mod list;
mod open;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Arguments of `transaction`.
#[derive(Debug, Args)]
pub(crate) struct TransactionArguments {
    #[command(subcommand)]
    command: TransactionCommand,
}

#[derive(Debug, Subcommand)]
enum TransactionCommand {
    /// List transactional ids and the states of their transactions.
    List(list::List),
    /// Show the state of a transactional id, its producer and the partitions of its transaction.
    Describe(describe::Describe),
    /// Abort a hanging transaction in a partition. Without --execute only shows it.
    Abort(abort::Abort),
    /// Find transactions that are open in partitions and unknown to all coordinators.
    FindHanging(find_hanging::FindHanging),
}

/// Runs the command.
pub(crate) async fn run(arguments: &TransactionArguments) -> Result<()> {
    match &arguments.command {
        TransactionCommand::List(list) => list::run(list).await,
        TransactionCommand::Describe(describe) => describe::run(describe).await,
        TransactionCommand::Abort(abort) => abort::run(abort).await,
        TransactionCommand::FindHanging(find) => find_hanging::run(find).await,
    }
}
