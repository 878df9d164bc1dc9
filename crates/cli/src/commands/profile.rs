//! `mainstem profile`: names for clusters, so that commands need no address each time.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use mainstem_client::ClientConfig;
use serde_json::{Value, json};

use crate::output::{print, print_json, print_line, table};
use crate::profiles::{self, Profile, Profiles};

/// Arguments of `profile`.
#[derive(Debug, Args)]
#[command(after_help = "\
Profiles are in $XDG_CONFIG_HOME/mainstem/profiles (~/.config without it). A command connects to the first of these that
is set: --bootstrap, the profile of --profile, MAINSTEM_BOOTSTRAP, the profile of MAINSTEM_PROFILE, the profile of `mainstem
profile use`. The default is 127.0.0.1:9092.")]
pub(crate) struct ProfileArguments {
    #[command(subcommand)]
    command: ProfileCommand,
}

#[derive(Debug, Subcommand)]
enum ProfileCommand {
    /// Add a profile, or change it.
    Add(Add),
    /// List the profiles.
    List(List),
    /// Use a profile from now on, where no other is named.
    Use(Named),
    /// Remove a profile.
    Remove(Named),
}

/// Arguments of `profile add`.
#[derive(Debug, Args)]
struct Add {
    /// Name of the profile.
    name: String,
    /// Brokers to connect to first, separated by commas.
    #[arg(long, value_name = "HOST:PORT")]
    bootstrap: String,
    /// A file of Kafka's properties of clients, which stays where it is.
    #[arg(long, value_name = "FILE")]
    command_config: Option<PathBuf>,
    /// Change the profile if there is one of this name.
    #[arg(long)]
    replace: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `profile list`.
#[derive(Debug, Args)]
struct List {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of commands about one profile.
#[derive(Debug, Args)]
struct Named {
    /// Name of the profile.
    name: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: &ProfileArguments) -> Result<()> {
    match &arguments.command {
        ProfileCommand::Add(add) => self::add(add),
        ProfileCommand::List(list) => self::list(list),
        ProfileCommand::Use(named) => self::choose(named),
        ProfileCommand::Remove(named) => self::remove(named),
    }
}

fn add(add: &Add) -> Result<()> {
    let path = profiles::path_or_error()?;
    profiles::check_name(&add.name)?;
    ensure!(
        ClientConfig::new(&add.bootstrap).is_ok(),
        "--bootstrap takes HOST:PORT, such as 127.0.0.1:9092, not {:?}",
        add.bootstrap
    );
    let absolute = |file: &PathBuf| {
        file.canonicalize().with_context(|| format!("--command-config {} cannot be found", file.display()))
    };
    let command_config = add.command_config.as_ref().map(absolute).transpose()?;
    let mut all = Profiles::read(&path)?;
    ensure!(
        add.replace || !all.profiles.contains_key(&add.name),
        "there is a profile {} already; --replace changes it, another name keeps it",
        add.name
    );
    let profile = Profile { bootstrap: add.bootstrap.clone(), command_config };
    all.profiles.insert(add.name.clone(), profile);
    all.write(&path)?;
    report(add.json, "added", &add.name, "`mainstem profile use` or --profile connects to it")
}

fn list(list: &List) -> Result<()> {
    let all = Profiles::load()?;
    let is_used = |name: &str| all.used.as_deref() == Some(name);
    if list.json {
        let one = |(name, profile): (&String, &Profile)| {
            json!({
                "profile": name,
                "bootstrap": profile.bootstrap,
                "command_config": profile.command_config,
                "used": is_used(name),
            })
        };
        return print_json(&all.profiles.iter().map(one).collect::<Value>());
    }
    if all.profiles.is_empty() {
        return print("there are no profiles; `mainstem profile add NAME --bootstrap HOST:PORT` makes one");
    }
    let row = |(name, profile): (&String, &Profile)| {
        let config =
            profile.command_config.as_ref().map_or("-".to_owned(), |file| file.display().to_string());
        let used = if is_used(name) { "yes" } else { "" };
        vec![name.clone(), profile.bootstrap.clone(), config, used.to_owned()]
    };
    print(&table(&["PROFILE", "BOOTSTRAP", "COMMAND CONFIG", "USED"], all.profiles.iter().map(row).collect()))
}

fn choose(named: &Named) -> Result<()> {
    let path = profiles::path_or_error()?;
    let mut all = Profiles::read(&path)?;
    let bootstrap = all.get(&named.name)?.bootstrap.clone();
    all.used = Some(named.name.clone());
    all.write(&path)?;
    report(named.json, "used", &named.name, &format!("commands connect to {bootstrap}"))
}

fn remove(named: &Named) -> Result<()> {
    let path = profiles::path_or_error()?;
    let mut all = Profiles::read(&path)?;
    all.get(&named.name)?;
    all.profiles.remove(&named.name);
    if all.used.as_ref() == Some(&named.name) {
        all.used = None;
    }
    all.write(&path)?;
    report(named.json, "removed", &named.name, "files that it named stay")
}

/// Reports a change of a profile.
fn report(is_json: bool, done: &str, name: &str, next: &str) -> Result<()> {
    match is_json {
        true => print_json(&json!({"profile": name, "done": done})),
        false => print_line(&format!("{done} profile {name}; {next}")),
    }
}
