//! `mainstem user`: users that log in by SCRAM, and their passwords.

use std::collections::BTreeMap;
use std::io::BufRead;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use mainstem_client::{Admin, ErrorCode, ScramCredential, ScramMechanism};
use serde_json::{Value, json};

use crate::commands::security::random_password;
use crate::output::{print, print_json, print_line, shown, table};
use crate::target::Target;

/// The default iterations of SCRAM.
const ITERATIONS: u32 = 8192;

/// Arguments of `user`.
#[derive(Debug, Args)]
pub(crate) struct UserArguments {
    #[command(subcommand)]
    command: UserCommand,
}

#[derive(Debug, Subcommand)]
enum UserCommand {
    /// Create a user. The password is the first line of standard input.
    Create(Password),
    /// List users with mechanisms and iterations of their passwords.
    List(List),
    /// Give a user another password: the first line of standard input.
    Passwd(Password),
    /// Delete a user.
    Delete(Delete),
}

/// Arguments of `user create` and `user passwd`.
#[derive(Debug, Args)]
struct Password {
    /// The user's name.
    name: String,
    /// SCRAM-SHA-256 or SCRAM-SHA-512. [default: SCRAM-SHA-512 for `create`, all mechanisms of the user for `passwd`]
    #[arg(long, value_parser = mechanism)]
    mechanism: Option<ScramMechanism>,
    /// Iterations of the hash, 4096 to 16384. [default: 8192, or as many as before if that was more]
    #[arg(long)]
    iterations: Option<u32>,
    /// Make a random password and print it, instead of reading one.
    #[arg(long)]
    generate: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `user list`.
#[derive(Debug, Args)]
struct List {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `user delete`.
#[derive(Debug, Args)]
struct Delete {
    /// The user's name.
    name: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

fn mechanism(text: &str) -> Result<ScramMechanism, String> {
    ScramMechanism::from_name(text).ok_or_else(|| "use SCRAM-SHA-256 or SCRAM-SHA-512".to_owned())
}

/// Runs the command.
pub(crate) async fn run(arguments: &UserArguments) -> Result<()> {
    match &arguments.command {
        UserCommand::Create(password) => set(password, true).await,
        UserCommand::Passwd(password) => set(password, false).await,
        UserCommand::List(list) => list_users(list).await,
        UserCommand::Delete(delete) => delete_user(delete).await,
    }
}

async fn credentials(admin: &Admin, name: &str) -> Result<Vec<ScramCredential>> {
    let found = admin.scram_credentials(Some(&[name])).await?;
    match found.into_values().next() {
        Some(Err(error)) if error.code() == Some(ErrorCode::RESOURCE_NOT_FOUND) => Ok(Vec::new()),
        Some(credentials) => Ok(credentials?),
        None => Ok(Vec::new()),
    }
}

async fn set(password: &Password, is_new: bool) -> Result<()> {
    let Password { name, .. } = password;
    ensure!(
        ScramMechanism::carries_name(name),
        "no client could log in as {}: a user name in a SCRAM message is ASCII, and not empty; choose another name",
        shown(name)
    );
    let admin = password.target.connect().await?;
    let known = credentials(&admin, name).await?;
    match (is_new, !known.is_empty()) {
        (true, true) => {
            bail!("user {name} is there already; `mainstem user passwd {name}` changes the password")
        }
        (false, false) => bail!("there is no user {name}; `mainstem user create {name}` makes one"),
        _ => {}
    }
    let secret = match password.generate {
        true => random_password()?,
        false => read_password()?,
    };
    let changes = changes(password, &known);
    for (mechanism, iterations) in &changes {
        admin.set_scram_credential(name, *mechanism, &secret, *iterations).await?;
    }
    let names: Vec<&str> = changes.iter().map(|(mechanism, _)| mechanism.name()).collect();
    let kept = known.iter().filter_map(|one| one.mechanism.map(ScramMechanism::name));
    let kept: Vec<&str> = kept.filter(|name| !names.contains(name)).collect();
    if password.json {
        let shown = password.generate.then_some(&secret);
        return print_json(&json!({ "user": name, "mechanisms": names, "kept": kept, "password": shown }));
    }
    let done = if is_new { "created user" } else { "changed the password of user" };
    let made = if password.generate { format!(", with the password {secret}") } else { String::new() };
    let stays = match kept.is_empty() {
        true => String::new(),
        false => format!("; by {} the password from before still logs in", kept.join(", ")),
    };
    print_line(&format!("{done} {name} ({}){made}{stays}", names.join(", ")))
}

/// The mechanisms to set, each with its iterations: the one asked for, or all that the user has. A mechanism that was
/// left out would keep the old password.
fn changes(password: &Password, known: &[ScramCredential]) -> Vec<(ScramMechanism, u32)> {
    let iterations =
        |before: i32| password.iterations.unwrap_or(u32::try_from(before).unwrap_or(0).max(ITERATIONS));
    let before = |mechanism| known.iter().find(|one| one.mechanism == Some(mechanism));
    match password.mechanism {
        Some(mechanism) => {
            vec![(mechanism, iterations(before(mechanism).map_or(0, |one| one.iterations)))]
        }
        None if known.is_empty() => vec![(ScramMechanism::Sha512, iterations(0))],
        None => {
            let all = known.iter().filter_map(|one| Some((one.mechanism?, iterations(one.iterations))));
            all.collect()
        }
    }
}

fn read_password() -> Result<String> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).context("the password is read from standard input")?;
    let password = line.trim_end_matches(['\r', '\n']);
    ensure!(
        !password.is_empty(),
        "the password is read from standard input, and its first line is empty; --generate makes one"
    );
    Ok(password.to_owned())
}

async fn list_users(list: &List) -> Result<()> {
    let found = list.target.connect().await?.scram_credentials(None).await?;
    let mut users = BTreeMap::new();
    for (user, credentials) in found {
        users.insert(user, credentials?);
    }
    if list.json {
        let each = users.iter().map(|(user, credentials)| {
            let credentials: Vec<Value> = credentials.iter().map(to_json).collect();
            json!({ "user": user, "credentials": credentials })
        });
        return print_json(&each.collect());
    }
    let rows = users.iter().flat_map(|(user, credentials)| {
        credentials.iter().map(|one| {
            let mechanism = one.mechanism.map_or("unknown", ScramMechanism::name);
            vec![user.clone(), mechanism.to_owned(), one.iterations.to_string()]
        })
    });
    match users.is_empty() {
        true => print("there are no users with a SCRAM password"),
        false => print(&table(&["USER", "MECHANISM", ">ITERATIONS"], rows.collect())),
    }
}

fn to_json(credential: &ScramCredential) -> Value {
    json!({
        "mechanism": credential.mechanism.map(ScramMechanism::name),
        "iterations": credential.iterations,
    })
}

async fn delete_user(delete: &Delete) -> Result<()> {
    let Delete { name, .. } = delete;
    let admin = delete.target.connect().await?;
    let credentials = credentials(&admin, name).await?;
    ensure!(!credentials.is_empty(), "there is no user {name}");
    for mechanism in credentials.iter().filter_map(|one| one.mechanism) {
        admin.remove_scram_credential(name, mechanism).await?;
    }
    match delete.json {
        true => print_json(&json!({ "deleted": name })),
        false => print_line(&format!(
            "deleted user {name}; its rules, if it has any, stay: see `mainstem acl list --user {name}`"
        )),
    }
}
