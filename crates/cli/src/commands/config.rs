//! `mainstem config`: reads and changes the settings of topics, brokers, groups, loggers and client metrics.

mod get;
mod set;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Arguments of `config`.
#[derive(Debug, Args)]
pub(crate) struct ConfigArguments {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Show settings and where they come from.
    Get(get::Get),
    /// Change settings, or let them go back to their defaults.
    Set(set::Set),
}

/// Runs the command.
pub(crate) async fn run(arguments: &ConfigArguments) -> Result<()> {
    match &arguments.command {
        ConfigCommand::Get(get) => get::run(get).await,
        ConfigCommand::Set(set) => set::run(set).await,
    }
}
