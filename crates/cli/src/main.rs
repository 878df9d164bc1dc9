//! The `mainstem` binary: the server and the operator's tools.

mod client;
mod commands;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// One durable log: a Kafka-compatible broker and its tools.
#[derive(Debug, Parser)]
#[command(name = "mainstem", version, about, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a broker.
    Start(commands::start::Start),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.command {
        Command::Start(start) => commands::start::run(&start),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mainstem: {error:#}");
            ExitCode::FAILURE
        }
    }
}
