//! `cargo xtask interop`: unmodified third-party clients and Kafka's own tools against a broker.
//!
//! All clients write, read, form groups and administer at once. Then the broker is stopped, and its files are read by Kafka's dump tool.
//! Then it is killed twice under idempotent producers, and its files are read again.

mod archive;
pub(crate) mod broker;
mod checks;
mod client;
mod conversation;
mod feeder;
pub(crate) mod install;
mod kcat;
mod member;
pub(crate) mod protocol;
mod proxy;
pub(crate) mod report;
mod runner;
mod text;
mod world;

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use mainstem_testkit::port;

use self::broker::{Broker, Kind};
pub(crate) use self::checks::security::{REFUSALS, RENEWALS};
use self::client::Client;
use self::install::Toolchain;
use self::report::{Counts, Report};
use self::runner::Runner;
use self::text::{TEXT_LINES, Text};
use self::world::World;
use crate::workspace;

const USAGE: &str = "\
usage: cargo xtask interop [--broker mainstem|kafka] [--port PORT] [--client NAME,..] [--update-docs]

  --broker       the broker under test: the built `mainstem` (default), or Apache Kafka
  --port         the port that it listens on (default: a free one)
  --client       only these of java, python, go, kcat, kafka-python, aiokafka, sarama, kafka-go,
                 kafkajs, tools, errors, security, attached, cluster; security/NAME is security of that client alone
  --update-docs  afterwards write docs/interop.md from the latest results

Clients are installed into target/interop by their package managers. A client whose toolchain is missing is skipped,
and is an error under CI=true.";

/// Options of a run.
pub(crate) struct Options {
    kind: Kind,
    port: Option<u16>,
    only: Option<Vec<String>>,
    depth: Depth,
    update_docs: bool,
}

impl Options {
    /// All checks of our broker.
    pub(crate) fn everything(depth: Depth) -> Options {
        Options { kind: Kind::Mainstem, port: None, only: None, depth, update_docs: false }
    }

    fn parse(arguments: &[String]) -> Result<Options> {
        let mut options = Options::everything(Depth::new(|_| Ok(None))?);
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().with_context(|| format!("{argument} wants a value\n{USAGE}"));
            match argument.as_str() {
                "--broker" => options.kind = Kind::parse(value()?)?,
                "--port" => options.port = Some(value()?.parse().context("--port")?),
                "--client" => options.only = Some(value()?.split(',').map(str::to_string).collect()),
                "--update-docs" => options.update_docs = true,
                _ => bail!("{USAGE}"),
            }
        }
        Ok(options)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|wanted| wanted == name))
    }

    fn wants_security(&self, client: Client) -> bool {
        self.wants("security") || self.wants(&format!("security/{}", client.key()))
    }
}

/// Repetitions and amounts: in a short run those that show the same kinds of faults as more would.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Depth {
    /// Times that each client is refused in each way.
    pub(crate) refusals: u64,
    /// Times that each session is renewed.
    pub(crate) renewals: u64,
    /// Lines of text that each client writes and reads.
    pub(crate) text_lines: u64,
}

impl Depth {
    /// The values of variables of the environment, else those that are given for them, else those of a short run.
    pub(crate) fn new(given: impl Fn(&str) -> Result<Option<u64>>) -> Result<Depth> {
        let of = |variable: &str, short| match std::env::var(variable) {
            Ok(number) => number.parse().with_context(|| format!("{variable} is no number: {number}")),
            Err(_) => Ok(given(variable)?.unwrap_or(short)),
        };
        Ok(Depth {
            refusals: of(REFUSALS, 5)?,
            renewals: of(RENEWALS, 5)?,
            text_lines: of(TEXT_LINES, 20_000)?,
        })
    }
}

/// The subcommand.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    if arguments.iter().any(|argument| argument == "--help") {
        println!("{USAGE}");
        return Ok(());
    }
    let options = Options::parse(arguments)?;
    let counts = run_checks(&options)?;
    println!("{counts}");
    ensure!(counts.failed == 0, "clients failed against {}", options.kind.name());
    Ok(())
}

/// Installs the clients, runs all checks and saves their outcomes.
pub(crate) fn run_checks(options: &Options) -> Result<Counts> {
    let report = Report::default();
    let installed = install_all(&report);
    let is_installed = |toolchain| installed.contains(&toolchain);
    ensure!(options.kind == Kind::Mainstem || is_installed(Toolchain::Java), "Apache Kafka needs Java");
    let clients = Client::ALL.into_iter().filter(|client| options.wants(client.key()));
    let clients: Vec<Client> = clients.filter(|client| is_installed(client.facts().toolchain)).collect();
    let with_tools = options.wants("tools") && is_installed(Toolchain::Java);
    let with_cluster = options.wants("cluster") && is_installed(Toolchain::Java);
    let of_errors = checks::errors::CLIENTS.into_iter().filter(|_| options.wants("errors"));
    let of_errors = of_errors.filter(|client| is_installed(client.facts().toolchain)).collect();
    let of_security = Client::ALL.into_iter().filter(|client| options.wants_security(*client));
    let of_security = of_security.filter(|client| is_installed(client.facts().toolchain)).collect();
    let of_queues = checks::attached::CLIENTS.into_iter().filter(|_| options.wants("attached"));
    let of_queues = of_queues.filter(|client| is_installed(client.facts().toolchain)).collect();
    let wanted = Wanted {
        kind: options.kind,
        clients,
        with_tools,
        with_cluster,
        of_errors,
        of_security,
        depth: options.depth,
        of_queues,
    };
    let begin = Instant::now();
    let broken = run_against_broker(options, &wanted, &report);
    println!("interop: {:.1} s with the broker running", begin.elapsed().as_secs_f64());
    if options.only.is_none() {
        report.save(options.kind)?;
    }
    broken?;
    if options.update_docs {
        report::update_docs()?;
    }
    Ok(report.counts())
}

/// Installs the clients ahead of their use; errors and missing toolchains come up again when they are used.
pub(crate) fn prefetch() {
    thread::scope(|scope| {
        for toolchain in Toolchain::ALL.into_iter().filter(|toolchain| toolchain.missing_program().is_none())
        {
            scope.spawn(move || {
                drop(toolchain.install());
                if toolchain == Toolchain::Java {
                    drop(install::install_oldest_kafka());
                }
            });
        }
    });
}

/// Installs what there are toolchains for, all at once, and returns these.
fn install_all(report: &Report) -> Vec<Toolchain> {
    let installed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for toolchain in Toolchain::ALL {
            let installed = &installed;
            scope.spawn(move || {
                if install_one(toolchain, report) {
                    installed.lock().expect("no thread panics with it").push(toolchain);
                }
            });
        }
    });
    installed.into_inner().expect("no thread panicked with it")
}

fn install_one(toolchain: Toolchain, report: &Report) -> bool {
    let name = format!("{toolchain:?}").to_lowercase();
    match toolchain.missing_program() {
        Some(program) if workspace::is_ci() => {
            report.check(&name, "installed", || bail!("{program} is not on PATH"));
            false
        }
        Some(program) => {
            report.skip(&name, &format!("{program} is not on PATH"));
            false
        }
        None => match toolchain.install() {
            Ok(()) => true,
            Err(error) => report.check(&name, "installed", || Err(error)),
        },
    }
}

/// The clients and tools to run, as far as they are installed.
struct Wanted {
    kind: Kind,
    clients: Vec<Client>,
    with_tools: bool,
    /// The tools against several nodes.
    with_cluster: bool,
    /// Clients whose errors are looked at.
    of_errors: Vec<Client>,
    /// Clients whose users log in.
    of_security: Vec<Client>,
    depth: Depth,
    /// Clients of attached queues.
    of_queues: Vec<Client>,
}

fn run_against_broker(options: &Options, wanted: &Wanted, report: &Report) -> Result<()> {
    let dir = workspace::interop_dir().join(format!("run-{}", options.kind.name()));
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    let (run, logs) = (dir.join("files"), dir.join("logs"));
    fs::create_dir_all(&run)?;
    fs::create_dir_all(&logs)?;
    let port = match options.port {
        Some(port) => port,
        None => port(),
    };
    let text = Text::collect(wanted.depth.text_lines as usize)?;
    let world = World { run, port, text, runner: Mutex::new(Runner::new(&logs)), logs };
    let mut broker = Broker::start(options.kind, &dir, port, Vec::new())?;
    run_clients(&world, wanted, report);
    thread::scope(|scope| {
        scope.spawn(|| cross_read(&world, &wanted.clients, report));
        if wanted.kind == Kind::Mainstem {
            scope.spawn(|| run_brokers_of_their_own(&world, wanted, report, &dir));
        }
    });
    if report.counts().failed > 0 {
        println!("the broker's first and last lines:\n{}", broker.log_ends());
    }
    restarts(&world, wanted, report, &mut broker)
}

/// Clients that write and read at a time, which takes all of two CPUs.
const TRANSFERS_AT_ONCE: usize = 3;

/// Writes and reads with each codec, then much text, transactions and administration.
fn transfer(world: &World, report: &Report, client: Client) {
    checks::transfer::codecs(world, report, client);
    checks::transfer::much_text(world, report, client);
    if client.facts().has_transactions {
        checks::transactions::run(world, report, client);
    }
    if client != Client::Kcat {
        let topic = format!("admin-{}", client.key());
        report.check(client.key(), "admin", || client.admin(world, &topic));
    }
}

/// All clients and the tools.
fn run_clients(world: &World, wanted: &Wanted, report: &Report) {
    let clients = wanted.clients.as_slice();
    if wanted.with_tools || clients.contains(&Client::Java) {
        // The JVM of all tools starts before others want the CPUs. An error comes up again at its next call.
        drop(world.tool("kafka-topics", &["--bootstrap-server", &world.bootstrap(), "--list"], ""));
    }
    let waiting = Mutex::new(clients.iter());
    let transfers = || {
        let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some(client) = next() {
            transfer(world, report, *client);
        }
    };
    thread::scope(|scope| {
        (0..TRANSFERS_AT_ONCE).for_each(|_| drop(scope.spawn(transfers)));
        for &client in clients {
            for &rebalance in client.facts().rebalances {
                scope.spawn(move || checks::group::run(world, report, client, rebalance));
            }
            if client == Client::Java {
                scope.spawn(move || checks::consumer_protocol::run(world, report, client));
            }
        }
        for &client in &wanted.of_errors {
            scope.spawn(move || checks::errors::run(world, report, wanted.kind, client));
        }
        if !wanted.of_security.is_empty() {
            let asked = checks::security::Asked {
                kind: wanted.kind,
                clients: &wanted.of_security,
                depth: wanted.depth,
            };
            scope.spawn(move || checks::security::run(world, report, &asked));
        }
        if wanted.with_tools {
            scope.spawn(move || {
                checks::tools::run(world, report);
                checks::admin::run(world, report);
            });
            scope.spawn(move || checks::quotas::run(world, report));
        }
    });
}

/// The Java client and kcat read what all have written.
fn cross_read(world: &World, clients: &[Client], report: &Report) {
    thread::scope(|scope| {
        for reader in [Client::Java, Client::Kcat].into_iter().filter(|reader| clients.contains(reader)) {
            for &writer in clients {
                scope.spawn(move || checks::transfer::cross_read(world, report, reader, writer));
            }
        }
    });
}

/// Checks with brokers of their own: attached queues, and the tools against several nodes.
fn run_brokers_of_their_own(world: &World, wanted: &Wanted, report: &Report, dir: &Path) {
    thread::scope(|scope| {
        if !wanted.of_queues.is_empty() {
            let with_tools = wanted.of_queues.contains(&Client::Java);
            scope.spawn(move || checks::attached::run(dir, world, report, &wanted.of_queues, with_tools));
        }
        if wanted.with_cluster {
            scope.spawn(move || checks::cluster::run(world, report));
        }
    });
}

/// A clean stop, two kills under load, and what the dump tool finds after each.
fn restarts(world: &World, wanted: &Wanted, report: &Report, broker: &mut Broker) -> Result<()> {
    broker.stop()?;
    if wanted.with_tools {
        checks::dump::run(world, report, &broker.data_dirs(), "after a clean stop");
    }
    broker.restart()?;
    checks::restart::run(world, report, &wanted.clients, broker);
    // A running broker may preallocate its indexes, which the dump tool takes for faults.
    broker.stop()?;
    if wanted.with_tools {
        checks::dump::run(world, report, &broker.data_dirs(), "after kills and restarts");
    }
    Ok(())
}
