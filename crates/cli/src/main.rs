//! The `mainstem` binary: the server and the operator's tools.

mod background;
mod commands;
mod configs;
mod deletion;
mod disk;
#[cfg(test)]
mod documented;
mod duration;
mod execution;
mod failure;
mod interrupt;
mod logging;
mod offsets;
mod profiles;
mod record_json;
mod secrets;
mod target;
mod timestamp;
mod tls_hint;
mod topic;

use std::future::Future;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use mainstem_terminal as output;

/// One durable log: a Kafka-compatible broker and its tools.
#[derive(Debug, Parser)]
#[command(name = "mainstem", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a broker.
    Start(commands::start::Start),
    /// Create, list, describe, alter and delete topics.
    Topic(commands::topic::TopicArguments),
    /// Write records from standard input to a topic.
    Produce(commands::produce::Produce),
    /// Read records of topics.
    Consume(commands::consume::Consume),
    /// List, describe, reset and delete consumer groups.
    Group(commands::group::GroupArguments),
    /// List, describe and abort transactions, and find those that hang.
    Transaction(commands::transaction::TransactionArguments),
    /// List, show, replay and delete what handlers and share groups have set aside.
    DeadLetters(commands::dead_letters::DeadLettersArguments),
    /// Show and change settings of topics, brokers, groups and more.
    Config(commands::config::ConfigArguments),
    /// List and set what users, clients and addresses may use.
    Quota(commands::quota::QuotaArguments),
    /// List, add, remove and check rules about who may do what (ACLs).
    Acl(commands::acl::AclArguments),
    /// Create, list, change and delete users that log in by SCRAM.
    User(commands::user::UserArguments),
    /// Make and check certificates, and settings of a broker that authenticates its clients.
    Security(commands::security::SecurityArguments),
    /// Describe the cluster: nodes, directories, features.
    Cluster(commands::cluster::ClusterArguments),
    /// Name clusters, so that commands need no address.
    Profile(commands::profile::ProfileArguments),
    /// Look at log files on disk, and delete those of partitions that no topic owns.
    Log(commands::log::LogArguments),
    /// Run a replicated partition with faults, in virtual time, by seed.
    Simulate(commands::simulate::Simulate),
    /// Show, manage and serve streams from service to service without a broker.
    Direct(commands::direct::DirectArguments),
    /// Append to an embedded queue, read it, check it, repair it; no broker is needed.
    Queue(commands::queue::QueueArguments),
    /// Print a script that lets a shell complete the commands.
    Completions(commands::completions::Completions),
    /// Print the manual, or write its pages.
    Man(commands::man::Manual),
}

fn main() -> ExitCode {
    let (arguments, json) = parse();
    let outcome = match arguments.command {
        Command::Start(start) => commands::start::run(&start),
        Command::Topic(topic) => wait_for(commands::topic::run(&topic)),
        Command::Produce(produce) => wait_for(commands::produce::run(&produce)),
        Command::Consume(consume) => wait_for(commands::consume::run(&consume)),
        Command::Group(group) => wait_for(commands::group::run(&group)),
        Command::Transaction(transaction) => wait_for(commands::transaction::run(&transaction)),
        Command::DeadLetters(letters) => wait_for(commands::dead_letters::run(&letters)),
        Command::Config(config) => wait_for(commands::config::run(&config)),
        Command::Quota(quota) => wait_for(commands::quota::run(&quota)),
        Command::Acl(acl) => wait_for(commands::acl::run(&acl)),
        Command::User(user) => wait_for(commands::user::run(&user)),
        Command::Security(security) => commands::security::run(&security),
        Command::Cluster(cluster) => wait_for(commands::cluster::run(&cluster)),
        Command::Profile(profile) => commands::profile::run(&profile),
        Command::Log(log) => wait_for(commands::log::run(&log)),
        Command::Simulate(simulate) => commands::simulate::run(&simulate),
        Command::Direct(direct) => wait_for(commands::direct::run(&direct)),
        Command::Queue(queue) => wait_for(commands::queue::run(&queue)),
        Command::Completions(completions) => commands::completions::run(&completions, Arguments::command()),
        Command::Man(manual) => commands::man::run(&manual, Arguments::command()),
    };
    match outcome {
        Ok(()) => ended(ExitCode::SUCCESS),
        Err(error) if error.is::<output::ReaderGone>() => ended(ExitCode::SUCCESS),
        Err(error) => {
            match json {
                true => logging::last_words(&output::json_line(&failure::json(&error))),
                // Much of it may be text of a broker, or a name that it sent.
                false => logging::last_words(&format!("mainstem: {}", failure::shown(&error))),
            }
            ended(ExitCode::FAILURE)
        }
    }
}

fn ended(code: ExitCode) -> ExitCode {
    logging::finish();
    code
}

/// The command line, and true if it asks for JSON. One that cannot be parsed ends the process, as does one that asks
/// for help.
fn parse() -> (Arguments, bool) {
    let parsed = Arguments::command()
        .try_get_matches()
        .and_then(|matches| Ok((Arguments::from_arg_matches(&matches)?, wants_json(&matches))));
    parsed.unwrap_or_else(|error| {
        if error.use_stderr() && std::env::args_os().any(|argument| argument == "--json") {
            let text = error.render().to_string();
            logging::last_words(&output::json_line(&serde_json::json!({ "error": text.trim_end() })));
            std::process::exit(error.exit_code());
        }
        let plain = error.render().to_string();
        if let std::borrow::Cow::Owned(shown) = output::shown_lines(&plain) {
            // An argument may have control characters of a terminal.
            logging::last_words(shown.trim_end());
            std::process::exit(error.exit_code());
        }
        error.exit()
    })
}

/// Returns true if the chosen command has `--json`, and it is set.
fn wants_json(matches: &ArgMatches) -> bool {
    match matches.subcommand() {
        Some((_, matches)) => wants_json(matches),
        None => matches.try_get_one::<bool>("json").ok().flatten().copied().unwrap_or(false),
    }
}

/// Runs a command that talks to brokers, on this thread.
fn wait_for(command: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("nothing can be waited for here")?;
    let outcome = runtime.block_on(command);
    // A name lookup that is still running is not waited for.
    runtime.shutdown_background();
    outcome
}
