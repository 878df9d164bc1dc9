//! A service's own command line: run it, and look after its topics.

// A command prints what it is asked for.
#![allow(clippy::print_stdout)]

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::app::App;
use crate::error::{Error, Result};

/// Exit code of a command that has succeeded,
const DONE: u8 = 0;
/// of one that failed, also because of wrong arguments,
const FAILED: u8 = 1;
/// and of a plan of topics that would change something.
const DIFFERS: u8 = 2;

/// Settings of a service from its command line and its environment.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Env {
    /// The URL to give to [`App::new`]: `--url`, or the variable `MAINSTEM_URL`, or `kafka://127.0.0.1:9092`.
    pub url: String,
}

#[derive(Debug, Parser)]
struct Arguments {
    /// Address to read messages from.
    #[arg(long, global = true, env = "MAINSTEM_URL", default_value = "kafka://127.0.0.1:9092")]
    url: String,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Handle messages until SIGTERM (what happens without a command).
    Run,
    /// The declared topics.
    #[command(subcommand)]
    Topics(Topics),
    /// Show the routes: topics, and how their messages are handled.
    Routes,
    /// Show the lag of the group, by partition.
    Lag,
}

#[derive(Debug, Subcommand)]
enum Topics {
    /// Print how the brokers differ from what is declared; ends with 2 if they do.
    Plan,
    /// Create what is missing and change settings; deletes nothing. Ends with 2 if something is left that differs.
    Apply {
        /// Also add partitions: keys go to other partitions then.
        #[arg(long)]
        add_partitions: bool,
    },
}

/// Is the `main` of a service: `run` (also without a word), `topics plan|apply`, `routes`, `lag`, with `--url` and `--json`.
///
/// It ends with 0 if all went well and with 1 if not. `topics plan` ends with 2 if brokers differ from what is declared, `topics apply` if
/// they still do. A second SIGTERM ends `run` at once, with 2.
///
/// ```no_run
/// use mainstem_flow::{App, Msg, Route, Text};
///
/// fn app(url: &str) -> mainstem_flow::Result<App> {
///     Ok(App::new("billing", url)?.add(Route::topic("orders", |line: Msg<Text>| async move { println!("{}", *line) })))
/// }
///
/// fn main() -> std::process::ExitCode {
///     mainstem_flow::main(|env| app(&env.url))
/// }
/// ```
pub fn main(make: impl FnOnce(&Env) -> Result<App>) -> ExitCode {
    main_from(std::env::args_os(), make).into()
}

/// The same with words from elsewhere, of which the first is the program's name: for a service that has a command line of its
/// own. Returns the code to end with.
pub fn main_from<W>(words: impl IntoIterator<Item = W>, make: impl FnOnce(&Env) -> Result<App>) -> u8
where
    W: Into<OsString> + Clone,
{
    let arguments = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) => {
            // If nothing can be printed, the exit code alone says it.
            let _ = error.print();
            // Its own code for wrong words would say that a plan differs.
            return if error.use_stderr() { FAILED } else { DONE };
        }
    };
    run(&arguments, make).unwrap_or_else(|error| {
        eprintln!("{error}");
        FAILED
    })
}

fn run(arguments: &Arguments, make: impl FnOnce(&Env) -> Result<App>) -> Result<u8> {
    let app = make(&Env { url: arguments.url.clone() })?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime
        .map_err(|error| Error::Invalid(format!("the system refuses threads for the service: {error}")))?;
    runtime.block_on(async {
        match arguments.command.as_ref().unwrap_or(&Command::Run) {
            Command::Run => app.run().await.map(|()| DONE),
            Command::Topics(Topics::Plan) => plan(&app, arguments.json).await,
            Command::Topics(Topics::Apply { add_partitions }) => {
                apply(&app, *add_partitions, arguments.json).await
            }
            Command::Routes => {
                routes(&app, arguments.json);
                Ok(DONE)
            }
            Command::Lag => lag(&app, arguments.json).await,
        }
    })
}

async fn plan(app: &App, json: bool) -> Result<u8> {
    let plan = app.plan().await?;
    print_lines(plan.changes().iter().map(ToString::to_string), "the brokers have what is declared", json);
    Ok(if plan.changes().is_empty() { DONE } else { DIFFERS })
}

async fn apply(app: &App, add_partitions: bool, json: bool) -> Result<u8> {
    let plan = app.plan().await?;
    let all = plan.changes().to_vec();
    let left = plan.apply(add_partitions).await?;
    let done = all.iter().filter(|change| !left.contains(change));
    let done = done.map(|change| format!("done: {change}"));
    let left_lines = left.iter().map(|change| format!("left: {change}"));
    print_lines(done.chain(left_lines), "the brokers have what is declared", json);
    Ok(if left.is_empty() { DONE } else { DIFFERS })
}

/// Prints lines, or words where there are none.
fn print_lines(lines: impl Iterator<Item = String>, none: &str, json: bool) {
    let lines: Vec<_> = lines.collect();
    match (json, lines.is_empty()) {
        (true, _) => println!("{}", serde_json::Value::from(lines)),
        (false, true) => println!("{none}"),
        (false, false) => lines.iter().for_each(|line| println!("{line}")),
    }
}

fn routes(app: &App, json: bool) {
    for route in &app.routes {
        let (name, settings) = (route.name(), &route.settings);
        let letters = route.letters(&app.name);
        match json {
            true => println!(
                "{}",
                serde_json::json!({"route": name, "concurrency": settings.concurrency, "dead_letters": letters})
            ),
            false => println!("{name}: {} at a time, dead letters to {letters}", settings.concurrency),
        }
    }
}

async fn lag(app: &App, json: bool) -> Result<u8> {
    for one in app.lag().await? {
        match json {
            true => println!(
                "{}",
                serde_json::json!({
                    "topic": &*one.partition.topic, "partition": one.partition.partition,
                    "committed": one.committed, "end": one.end, "lag": one.lag()
                })
            ),
            false => {
                let committed = one.committed.map_or_else(|| "-".to_owned(), |offset| offset.to_string());
                println!("{}: committed {committed}, end {}, lag {}", one.partition, one.end, one.lag());
            }
        }
    }
    Ok(DONE)
}
