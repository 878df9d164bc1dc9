//! Family F: frameworks of handlers beside each other, each a process of its own against one running broker.
//!
//! Ours is the example `handler_load` of `crates/flow`, its peers are `HandlerPeers.java`; both print one line of JSON. A bare loop over
//! our client shows what handlers cost at all.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::broker::{Java, Launch, Running, System, newest_java, resolve_pom, without_developers_variables};
use crate::environment::{self, Environment, Needs, Settings};
use crate::machine;
use crate::results::{ABOUT, Run, write_json};
use crate::secure::CertificateKey;
use crate::stats::Spread;
use crate::workload::Durability;

const POM: &str = include_str!("../handlers/pom.xml");
const PEERS: &str = include_str!("../handlers/HandlerPeers.java");
/// A line of the peers' own names: what is listed in `docs/benchmarks.md`.
const FLOW: &str = "flow";
const BARE: &str = "bare";
const PARALLEL: &str = "parallel";
/// Ours with a key that fails always,
const FAILING: &str = "flow-failing";
/// and in groups of the consumer protocol.
const CONSUMER: &str = "flow-consumer";
/// Topics of the load with empty handlers.
const EMPTY_TOPICS: u64 = 5;
/// Topic of the load with a wait in each handler.
const WORK_TOPIC: &str = "work";
/// The time that a handler of that load waits.
const WAIT_US: u64 = 1_000;
/// Seconds that such a load is to take at the limit of its concurrency.
const WORK_SECONDS: u64 = 2;
const CONCURRENCIES: [u64; 4] = [1, 5, 15, 256];

/// The runs to make, and the programs for them.
#[derive(Debug, Clone)]
pub struct HandlersOrder {
    /// Number of runs of each.
    pub rounds: usize,
    /// Records of each of the five topics with empty handlers.
    pub records: u64,
    /// Seconds of each load by a schedule.
    pub seconds: u64,
    /// An empty folder, which is made if it is not there.
    pub out: PathBuf,
    /// The program `handler_load`.
    pub load: PathBuf,
    /// The folder of the peers' jars, fetched by Maven if they are not there.
    pub peers: PathBuf,
    /// Loads that have this in their names.
    pub only: String,
    /// True to measure on a busy machine.
    pub force: bool,
}

/// One load: the arguments of the programs, and what the numbers of its records sum up to.
#[derive(Debug, Clone)]
struct Load {
    name: String,
    systems: &'static [&'static str],
    topics: String,
    records: u64,
    sums: RangeInclusive<u64>,
    concurrency: u64,
    wait_us: u64,
    /// Words for a load that our program alone knows.
    own: Option<&'static [&'static str]>,
}

/// Returns the sum of `n` records numbered from 0.
fn sum_of(n: u64) -> u64 {
    n * n.saturating_sub(1) / 2
}

/// Returns the possible sums of `n` or more records of the existing ones, none of them twice.
fn sums_of_some(n: u64, there: u64) -> RangeInclusive<u64> {
    sum_of(n)..=sum_of(there)
}

/// Records in the topic of the load with waits, for so many that are wanted: more than any system handles before it is stopped.
fn work_records(wanted: u64) -> u64 {
    wanted * 5 / 4
}

/// Records of the load with waits.
fn wait_records(concurrency: u64) -> u64 {
    concurrency * WORK_SECONDS * 1_000_000 / WAIT_US
}

fn loads(order: &HandlersOrder) -> Vec<Load> {
    let topics: Vec<_> = (0..EMPTY_TOPICS).map(|topic| format!("empty-{topic}")).collect();
    let mut loads = vec![Load {
        name: "handlers-empty".to_owned(),
        systems: &[FLOW, BARE, "spring-record", "spring-batch", "streams"],
        topics: topics.join(","),
        records: EMPTY_TOPICS * order.records,
        sums: {
            let sum = EMPTY_TOPICS * sum_of(order.records);
            sum..=sum
        },
        concurrency: 32,
        wait_us: 0,
        own: None,
    }];
    loads.extend(CONCURRENCIES.map(|concurrency| {
        let records = wait_records(concurrency);
        let there = work_records(CONCURRENCIES.map(wait_records).into_iter().max().unwrap_or(records));
        Load {
            name: format!("handlers-wait-{concurrency}"),
            systems: &[FLOW, PARALLEL],
            topics: WORK_TOPIC.to_owned(),
            records,
            // The order of records depends on their keys. There are more of them than are wanted.
            sums: sums_of_some(records, there),
            concurrency,
            wait_us: WAIT_US,
            own: None,
        }
    }));
    let ours = |name: &str, systems: &'static [&'static str], words: &'static [&'static str]| Load {
        name: name.to_owned(),
        systems,
        topics: String::new(),
        records: 0,
        sums: 0..=0,
        concurrency: 0,
        wait_us: 0,
        own: Some(words),
    };
    loads.push(ours("handlers-rate-2000", &[FLOW, BARE], &["latency", "--rate", "2000"]));
    loads.push(ours("handlers-failing-key", &[FLOW, FAILING], &["latency", "--rate", "10000"]));
    loads.push(ours("handlers-rebalance", &[FLOW, CONSUMER], &["rebalance"]));
    loads.push(ours("handlers-boot", &[FLOW, CONSUMER], &["boot"]));
    loads.retain(|load| load.name.contains(&order.only));
    loads
}

/// Makes all runs, writes each as a line of JSON, and writes a table of medians.
///
/// # Errors
/// If a program is missing, a broker does not start, or the records that were read are not those that were written.
pub fn run_handlers(order: &HandlersOrder, settings: &Settings) -> Result<()> {
    ensure!(
        order.load.is_file(),
        "there is no {}: build it by `cargo build --release -p mainstem-flow --example handler_load`, or name it by --load",
        order.load.display()
    );
    fs::create_dir_all(&order.out)?;
    ensure!(!loads(order).is_empty(), "no load has {:?} in its name", order.only);
    ensure!(
        fs::read_dir(&order.out)?.next().is_none(),
        "{} is not empty: name another folder by --out",
        order.out.display()
    );
    let peers = match loads(order).iter().all(|load| load.systems.iter().all(|system| is_ours(system))) {
        true => None,
        false => Some(Peers::compile(order, settings)?),
    };
    let environment = Environment::prepare(settings, &[System::Mainstem], Needs::default())?;
    if !order.force {
        machine::require_quiet()?;
    }
    write_json(&order.out.join(ABOUT), &about(order, &environment))?;
    let (system, durability) = (System::Mainstem, Durability::PageCache);
    let launch = Launch {
        system,
        durability,
        heap_mib: 0,
        partitions: 0,
        // The first member of a group does not wait for others, as with the file that Kafka comes with.
        settings: &["log.flush.interval.messages=9223372036854775807", "group.initial.rebalance.delay.ms=0"],
        key: CertificateKey::P256,
    };
    let broker = Running::start_ready(&environment, launch)?;
    fill(order, broker.address)?;
    let mut runs = Vec::new();
    for load in loads(order) {
        for round in 1..=order.rounds {
            for system in load.systems {
                let mut command = match peers.as_ref().filter(|_| !is_ours(system)) {
                    Some(peers) => peers.command(broker.address, &load, system),
                    None => own(order, broker.address, &load, system),
                };
                let run = made(&load, system, round, &mut command);
                eprintln!("{}: {}", run.name(), said(&run));
                run.write(&order.out)?;
                runs.push(run);
            }
        }
    }
    broker.stop()?;
    fs::write(order.out.join("SUMMARY.md"), table(&runs, FLOW))?;
    ensure!(
        runs.iter().all(|run| run.error.is_none()),
        "a run has failed; {} says which",
        order.out.display()
    );
    Ok(())
}

fn about(order: &HandlersOrder, environment: &Environment) -> serde_json::Value {
    json!({
        "commit": environment::commit(),
        "machine": machine::describe(),
        "mainstem": environment.mainstem.file_name().map(|name| name.to_string_lossy()),
        "rounds": order.rounds,
        "records": order.records,
        "seconds": order.seconds,
    })
}

/// Returns true for a system that our program runs.
fn is_ours(system: &str) -> bool {
    [FLOW, BARE, FAILING, CONSUMER].contains(&system)
}

/// The program that runs the peers: a virtual machine, and its class path.
struct Peers {
    java: PathBuf,
    classes: String,
}

impl Peers {
    fn compile(order: &HandlersOrder, settings: &Settings) -> Result<Peers> {
        let java = match settings.java.clone() {
            Some(java) => Java::named(java)?,
            None => newest_java(None)?,
        };
        let classes = compile(&order.peers, &java.program)?;
        Ok(Peers { java: java.program, classes })
    }

    fn command(&self, broker: SocketAddr, load: &Load, peer: &str) -> Command {
        let mut command = Command::new(&self.java);
        command.args([
            "-Xmx1g",
            "-cp",
            &self.classes,
            "HandlerPeers",
            peer,
            &broker.to_string(),
            &load.topics,
        ]);
        command.args([load.records, load.concurrency, load.wait_us].map(|number| number.to_string()));
        command
    }
}

/// Fetches the peers' jars and compiles the program over them; returns its class path.
fn compile(peers: &Path, java: &Path) -> Result<String> {
    if !peers.join("spring-kafka-4.1.2.jar").exists() {
        resolve_pom(peers, POM, "the frameworks")?;
    }
    let peers = peers.canonicalize()?;
    let (source, classes) = (peers.join("HandlerPeers.java"), peers.join("classes"));
    fs::write(&source, PEERS)?;
    let jars = peers.join("*").display().to_string();
    let compiler = java.with_file_name("javac");
    let status = Command::new(&compiler).args(["-cp", &jars, "-d"]).arg(&classes).arg(&source).status();
    let status = status.with_context(|| format!("{} does not run: a JDK is needed", compiler.display()))?;
    ensure!(status.success(), "{} could not be compiled", source.display());
    Ok(format!("{jars}:{}", classes.display()))
}

fn fill(order: &HandlersOrder, broker: SocketAddr) -> Result<()> {
    let loads = loads(order);
    let topics = |load: &Load| load.topics.split(',').map(str::to_owned).collect::<BTreeSet<_>>();
    let wanted: BTreeSet<String> = loads.iter().flat_map(topics).filter(|topic| !topic.is_empty()).collect();
    let most = loads.iter().filter(|load| load.wait_us > 0).map(|load| load.records).max().unwrap_or(0);
    for topic in wanted {
        let records = if topic == WORK_TOPIC { work_records(most) } else { order.records };
        eprintln!("{records} records into {topic}");
        let mut command = Command::new(&order.load);
        command.args(["fill", "--url", &format!("kafka://{broker}"), "--topic", &topic]);
        command.args(["--records", &records.to_string()]);
        let output = command.stderr(Stdio::inherit()).output()?;
        ensure!(output.status.success(), "{topic} could not be filled");
    }
    Ok(())
}

/// Our program.
fn own(order: &HandlersOrder, broker: SocketAddr, load: &Load, system: &str) -> Command {
    let mut command = Command::new(&order.load);
    let url = format!("kafka://{broker}");
    if let Some(words) = load.own {
        command.args(words).args(["--url", &url, "--seconds", &order.seconds.to_string()]);
        match system {
            BARE => drop(command.arg("--bare")),
            FAILING => drop(command.arg("--failing-key")),
            CONSUMER => drop(command.arg("--consumer-protocol")),
            _ => {}
        }
        return command;
    }
    command.args([system, "--url", &url, "--topics", &load.topics]);
    command.args(["--records", &load.records.to_string(), "--concurrency", &load.concurrency.to_string()]);
    command.args(["--wait-us", &load.wait_us.to_string()]);
    command
}

/// Runs a program and reads its line.
fn made(load: &Load, system: &str, round: usize, command: &mut Command) -> Run {
    without_developers_variables(command);
    let figures = figures(load, command);
    let (figures, error) = match figures {
        Ok(figures) => (figures, None),
        Err(error) => (BTreeMap::new(), Some(format!("{error:#}"))),
    };
    Run {
        system: system.to_owned(),
        workload: load.name.clone(),
        durability: Durability::PageCache.name().to_owned(),
        round,
        error,
        figures,
        ..Run::default()
    }
}

fn figures(load: &Load, command: &mut Command) -> Result<BTreeMap<String, f64>> {
    let output = command.stdin(Stdio::null()).output()?;
    let line = String::from_utf8_lossy(&output.stdout);
    let said: BTreeMap<String, f64> = serde_json::from_str(line.trim()).with_context(|| {
        format!(
            "it ended with {} and said {line:?}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )
    })?;
    let of = |key: &str| said.get(key).copied().with_context(|| format!("it says nothing of {key}"));
    if load.own.is_some() {
        return Ok(said);
    }
    let records = of("records")?;
    ensure!(records >= load.records as f64, "{records} records were handled, {} are there", load.records);
    if load.sums.start() == load.sums.end() {
        ensure!(records == load.records as f64, "{records} records were handled instead of {}", load.records);
    }
    let (sum, sums) = (of("sum")?, &load.sums);
    let has_all = (*sums.start() as f64..=*sums.end() as f64).contains(&sum);
    ensure!(has_all, "the numbers of the records sum up to {sum}, which is not in {sums:?}");
    let (seconds, cpu_s) = (of("seconds")?, of("cpu_s")?);
    let mut figures = BTreeMap::from([
        ("messages_per_s".to_owned(), load.records as f64 / seconds),
        ("messages_per_cpu_s".to_owned(), load.records as f64 / cpu_s),
    ]);
    if load.wait_us > 0 {
        // The part of the throughput that the concurrency allows with the wait as it is on this machine.
        let bare_us = said.get("bare_wait_us").copied().unwrap_or(load.wait_us as f64);
        let limit = load.concurrency as f64 * 1e6 / bare_us;
        figures.insert("part_of_limit".to_owned(), load.records as f64 / seconds / limit);
        figures.insert("bare_wait_us".to_owned(), bare_us);
    }
    figures.extend(said.get("stop_s").map(|stop| ("stop_s".to_owned(), *stop)));
    Ok(figures)
}

/// A run in a line.
pub(crate) fn said(run: &Run) -> String {
    match &run.error {
        Some(error) => format!("failed: {error}"),
        None => {
            run.figures.iter().map(|(key, value)| format!("{key} {value:.2}")).collect::<Vec<_>>().join(", ")
        }
    }
}

/// A table of medians and ranges, a row for each load, system and figure; the ratio is ours to that system, of medians.
pub(crate) fn table(runs: &[Run], our_name: &str) -> String {
    let mut cells: BTreeMap<(&str, &str, &str), Vec<f64>> = BTreeMap::new();
    for run in runs {
        for (key, value) in &run.figures {
            cells.entry((&run.workload, key, &run.system)).or_default().push(*value);
        }
    }
    let mut text =
        "| load | figure | system | median | range | ours to it |\n|---|---|---|---|---|---|\n".to_owned();
    for ((load, figure, system), values) in &cells {
        let Some(spread) = Spread::of(values.iter().copied()) else { continue };
        let ours = cells.get(&(*load, *figure, our_name));
        let ratio = ours.and_then(|ours| Spread::ratio(ours, values)).filter(|_| *system != our_name);
        let ratio = ratio.map_or_else(String::new, |ratio| format!("{:.2}x", ratio.median));
        let Spread { median, min, max } = spread;
        // Writing to a String cannot fail.
        let _ =
            writeln!(text, "| {load} | {figure} | {system} | {median:.2} | {min:.2} to {max:.2} | {ratio} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_compares_each_system_with_ours() {
        let run = |system: &str, round, rate: f64| Run {
            system: system.to_owned(),
            workload: "handlers-empty".to_owned(),
            round,
            figures: BTreeMap::from([("messages_per_s".to_owned(), rate)]),
            ..Run::default()
        };
        let runs = [run(FLOW, 1, 90.0), run(FLOW, 2, 100.0), run(FLOW, 3, 110.0), run("streams", 1, 50.0)];
        let text = table(&runs, FLOW);
        assert!(
            text.contains("| handlers-empty | messages_per_s | flow | 100.00 | 90.00 to 110.00 |  |"),
            "{text}"
        );
        assert!(text.contains("| streams | 50.00 | 50.00 to 50.00 | 2.00x |"), "{text}");
    }

    #[test]
    fn the_loads_know_what_they_sum_up_to() {
        assert_eq!(sum_of(0), 0);
        assert_eq!(sum_of(4), 6);
        assert_eq!(sums_of_some(2, 4), 1..=6, "0 and 1 at least, and all four at most");
        // A record that is handled twice in place of another shows where there are few records.
        assert!(!sums_of_some(3, 4).contains(&2), "0, 1, 1");
    }
}
