//! Family D: services that stream events to each other without a broker, a publisher and a consumer in a process each.
//!
//! Ours is the example `stream_lag` of `crates/flow`; its peer is `StreamPeers.java`, Akka Projection gRPC over PostgreSQL. Both read the
//! same commands and answer each with a line of JSON. Their consumers compare every event with the one before.

mod database;
mod ramp;
mod shares;
mod talk;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::broker::{Java, newest_java, resolve_pom};
use crate::disk;
use crate::environment::{self, free_port};
use crate::handlers::{said, table};
use crate::results::{ABOUT, Run, write_json};
use crate::{machine, process};
use database::Database;
use ramp::Ramp;
use talk::{Figures, Talking};

const POM: &str = include_str!("../direct/pom.xml");
const PEERS: &str = include_str!("../direct/StreamPeers.java");
const DIRECT: &str = "direct";
const AKKA: &str = "akka";
/// The newest Java that the peer's frameworks were made for.
const PEER_JAVA_MAX: u32 = 21;
const ENTITIES: f64 = 32.0;
/// 32 entities with 7 events each in a cycle of so long are 941 events a second.
const CYCLE_MS: u64 = 238;
const PAUSE_MS: u64 = 200;
/// Timeout for the arrival of appended events at the consumers.
const ARRIVE_WITHIN: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Kills in a run of the load that has them.
const KILLS: u32 = 10;

/// Options of `mainstem-bench direct`.
#[derive(Debug, Clone)]
pub struct StreamsOrder {
    /// Number of runs of each.
    pub rounds: usize,
    /// Length of a window.
    pub seconds: u64,
    /// Time of the same load before the window, in seconds.
    pub warmup: u64,
    /// Events of the load that catches up.
    pub events: u64,
    /// Length of a step of the load whose rate grows.
    pub step: u64,
    /// Events a second of its first step.
    pub rate_from: u64,
    /// The p99 of the lag at which it ends.
    pub lag_ms_max: f64,
    /// Length of a further window of ours in which the stages of events are watched; 0 for none.
    pub shares: u64,
    /// Names of loads; all if there are none.
    pub loads: Vec<String>,
    /// True if the peer is measured as well.
    pub peer: bool,
    /// An empty folder, which is made if it is not there.
    pub out: PathBuf,
    /// The program `stream_lag`.
    pub program: PathBuf,
    /// The folder of the peer's jars, fetched by Maven if they are not there.
    pub peers: PathBuf,
    /// The folder of PostgreSQL's programs.
    pub postgresql: PathBuf,
    /// The `java` that runs the peer; the newest that it is made for unless it is given.
    pub java: Option<PathBuf>,
    /// The folder for journals and databases: on the disk that is to be measured.
    pub data_root: PathBuf,
    /// Ports are looked for from this one on.
    pub first_port: u16,
    /// True to measure on a busy machine.
    pub force: bool,
}

/// The work of the publisher.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Cycles of all entities, about 940 events a second.
    Cycles,
    /// A number of events a second by a schedule.
    Rate(u64),
    /// More events a second step by step, until they are too many.
    Ramp,
    /// A consumer reads all existing events, beside one that is up to date.
    CatchUp,
    /// The publisher is killed.
    Kills,
}

#[derive(Debug, Clone, Copy)]
struct Load {
    name: &'static str,
    kind: Kind,
    consumers: u32,
    /// True if the peer has it too.
    with_peer: bool,
}

const LOADS: [Load; 7] = [
    Load { name: "streams-940", kind: Kind::Cycles, consumers: 1, with_peer: true },
    Load { name: "streams-16000", kind: Kind::Rate(16_000), consumers: 1, with_peer: true },
    Load { name: "streams-ramp", kind: Kind::Ramp, consumers: 1, with_peer: false },
    Load { name: "streams-940-to-10", kind: Kind::Cycles, consumers: 10, with_peer: false },
    Load { name: "streams-940-to-100", kind: Kind::Cycles, consumers: 100, with_peer: false },
    Load { name: "streams-catch-up", kind: Kind::CatchUp, consumers: 1, with_peer: false },
    Load { name: "streams-killed", kind: Kind::Kills, consumers: 1, with_peer: false },
];

/// The peer, compiled.
struct Peer {
    java: Java,
    class_path: String,
}

/// Makes all runs, keeps each as a line of JSON, and writes a table of medians.
///
/// # Errors
/// If a program is missing, a process fails, or the events that arrived are not those that were appended.
pub fn run_streams(order: &StreamsOrder) -> Result<()> {
    ensure!(
        order.program.is_file(),
        "there is no {}: build it by `cargo build --release -p mainstem-flow --features direct --example stream_lag`, or name it \
         by --program",
        order.program.display()
    );
    for name in &order.loads {
        ensure!(
            LOADS.iter().any(|load| load.name == name),
            "there is no load {name}: choose from {}",
            LOADS.map(|load| load.name).join(", ")
        );
    }
    fs::create_dir_all(&order.out)?;
    ensure!(
        fs::read_dir(&order.out)?.next().is_none(),
        "{} is not empty: name another folder by --out",
        order.out.display()
    );
    let peer = order.peer.then(|| compile(order)).transpose()?;
    fs::create_dir_all(&order.data_root)?;
    let data = order.data_root.canonicalize()?;
    if !order.force {
        machine::require_quiet()?;
    }
    write_json(&order.out.join(ABOUT), &about(order, peer.as_ref()))?;
    let mut runs = Vec::new();
    for load in
        LOADS.iter().filter(|load| order.loads.is_empty() || order.loads.iter().any(|name| name == load.name))
    {
        for round in 1..=order.rounds {
            for system in
                [Some(DIRECT), peer.as_ref().filter(|_| load.with_peer).map(|_| AKKA)].into_iter().flatten()
            {
                let stage =
                    Stage { order, data: &data, peer: peer.as_ref().filter(|_| system == AKKA), load: *load };
                let run = stage.run(system, round);
                eprintln!("{}: {}", run.name(), said(&run));
                run.write(&order.out)?;
                runs.push(run);
            }
        }
    }
    fs::write(order.out.join("SUMMARY.md"), table(&runs, DIRECT))?;
    ensure!(
        runs.iter().all(|run| run.error.is_none()),
        "a run has failed; {} says which",
        order.out.display()
    );
    Ok(())
}

fn about(order: &StreamsOrder, peer: Option<&Peer>) -> serde_json::Value {
    json!({
        "commit": environment::commit(),
        "machine": machine::describe(),
        "rounds": order.rounds,
        "seconds": order.seconds,
        "warmup": order.warmup,
        "events_to_catch_up": order.events,
        "ramp": { "step_s": order.step, "from_per_s": order.rate_from, "lag_p99_ms_max": order.lag_ms_max },
        "shares_s": order.shares,
        "peer": peer.map(|peer| json!({ "akka-projection-grpc": "1.4.0", "java": peer.java.version })),
    })
}

/// Fetches the peer's jars and compiles the program over them.
fn compile(order: &StreamsOrder) -> Result<Peer> {
    let java = match order.java.clone() {
        Some(java) => Java::named(java)?,
        None => newest_java(Some(PEER_JAVA_MAX))?,
    };
    if !order.peers.join("akka-projection-grpc_2.13-1.4.0.jar").exists() {
        resolve_pom(&order.peers, POM, "Akka Projection")?;
    }
    let peers = order.peers.canonicalize()?;
    let (source, classes) = (peers.join("StreamPeers.java"), peers.join("classes"));
    fs::write(&source, PEERS)?;
    let jars = peers.join("*").display().to_string();
    let compiler = java.program.with_file_name("javac");
    let status = Command::new(&compiler).args(["-cp", &jars, "-d"]).arg(&classes).arg(&source).status();
    let status = status.with_context(|| format!("{} does not run: a JDK is needed", compiler.display()))?;
    ensure!(status.success(), "{} could not be compiled", source.display());
    Ok(Peer { java, class_path: format!("{jars}:{}", classes.display()) })
}

/// The place and the programs of one run.
struct Stage<'a> {
    order: &'a StreamsOrder,
    data: &'a Path,
    /// The peer, for its runs.
    peer: Option<&'a Peer>,
    load: Load,
}

/// The processes of a run.
struct Processes {
    publisher: Talking,
    consumer: Talking,
    database: Option<Database>,
}

/// CPU times of a run's processes, one after another, and of the machine.
struct Used {
    at: Instant,
    publisher: Duration,
    consumer: Duration,
    database: Duration,
    machine: Duration,
}

impl Used {
    fn look(processes: &Processes) -> Result<Used> {
        Ok(Used {
            publisher: process::cpu_time(processes.publisher.pid())?,
            consumer: process::cpu_time(processes.consumer.pid())?,
            database: processes.database.as_ref().map_or(Ok(Duration::ZERO), Database::cpu_time)?,
            machine: process::machine_cpu_time()?,
            at: Instant::now(),
        })
    }

    /// Adds the CPU that was used since, in CPUs.
    fn add_since(&self, processes: &Processes, figures: &mut Figures) -> Result<()> {
        let now = Used::look(processes)?;
        let seconds = (now.at - self.at).as_secs_f64();
        let mut cpus = |name: &str, before: Duration, after: Duration| {
            let cpus = after.saturating_sub(before).as_secs_f64() / seconds;
            figures.insert(format!("cpus_{name}"), cpus);
            cpus
        };
        let all = cpus("publisher", self.publisher, now.publisher)
            + cpus("consumer", self.consumer, now.consumer)
            + cpus("database", self.database, now.database);
        let machine = cpus("machine", self.machine, now.machine);
        figures.insert("cpus".to_owned(), all);
        figures.insert("cpus_others".to_owned(), (machine - all).max(0.0));
        figures.remove("cpus_machine");
        Ok(())
    }
}

impl Stage<'_> {
    fn run(&self, system: &str, round: usize) -> Run {
        let (figures, error) = match self.figures() {
            Ok(figures) => (figures, None),
            Err(error) => (BTreeMap::new(), Some(format!("{error:#}"))),
        };
        Run {
            system: system.to_owned(),
            workload: self.load.name.to_owned(),
            durability: "fsync".to_owned(),
            round,
            error,
            figures,
            ..Run::default()
        }
    }

    fn figures(&self) -> Result<Figures> {
        let directory = self.data.join(format!("streams-{}", std::process::id()));
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        fs::create_dir_all(&directory)?;
        disk::settle(&directory)?;
        let figures = self.measured_in(&directory);
        fs::remove_dir_all(&directory)?;
        figures
    }

    fn measured_in(&self, directory: &Path) -> Result<Figures> {
        let database = match self.peer {
            Some(_) => {
                Some(Database::start(&self.order.postgresql, directory, free_port(self.order.first_port)?)?)
            }
            None => None,
        };
        let address = format!("127.0.0.1:{}", free_port(self.order.first_port)?);
        let publisher = self.publisher(directory, &address, database.as_ref())?;
        let consumer = self.consumer(&address, database.as_ref())?;
        let mut processes = Processes { publisher, consumer, database };
        let figures = match self.load.kind {
            Kind::Cycles | Kind::Rate(_) => self.window(&mut processes, directory),
            Kind::Ramp => self.ramp(&mut processes, directory),
            Kind::CatchUp => self.catch_up(&mut processes, directory, &address),
            Kind::Kills => self.kills(&mut processes, directory, &address),
        };
        processes.consumer.end()?;
        processes.publisher.end()?;
        if let Some(database) = processes.database {
            database.stop()?;
        }
        figures
    }

    fn publisher(&self, directory: &Path, address: &str, database: Option<&Database>) -> Result<Talking> {
        let mut command = self.program("publish", database);
        match database {
            Some(_) => command.arg(address.rsplit_once(':').map_or(address, |(_, port)| port)),
            None => command.arg(directory.join("events")).arg(address),
        };
        Talking::start(command)
    }

    fn consumer(&self, address: &str, database: Option<&Database>) -> Result<Talking> {
        let mut command = self.program("consume", database);
        let at = database.and_then(|_| address.rsplit_once(':')).map_or(address, |(_, port)| port);
        command.arg(at).arg(self.load.consumers.to_string());
        Talking::start(command)
    }

    /// Returns the command of the program, with its first arguments.
    fn program(&self, role: &str, database: Option<&Database>) -> Command {
        let (Some(peer), Some(database)) = (self.peer, database) else {
            let mut command = Command::new(&self.order.program);
            command.arg(role);
            return command;
        };
        let mut command = Command::new(&peer.java.program);
        command.args(["-Xmx1g", "-cp", &peer.class_path, "StreamPeers", role, &database.port.to_string()]);
        command
    }

    fn command(&self, seconds: u64) -> String {
        match self.load.kind {
            Kind::Rate(events) => rate(events, seconds),
            Kind::Ramp => rate(self.order.rate_from, seconds),
            Kind::Cycles | Kind::CatchUp | Kind::Kills => format!("cycles {seconds} {CYCLE_MS} {PAUSE_MS}"),
        }
    }

    /// Runs a load. Returns its figures.
    fn window(&self, processes: &mut Processes, directory: &Path) -> Result<Figures> {
        self.warm_up(processes)?;
        let mut figures = self.measured(processes, &self.command(self.order.seconds))?;
        for (name, pid) in [("publisher", processes.publisher.pid()), ("consumer", processes.consumer.pid())]
        {
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            figures.insert(format!("{name}_peak_mib"), mib(process::memory(pid)?.peak));
            figures.insert(format!("{name}_anonymous_mib"), mib(process::resident(pid)?.anonymous));
        }
        figures.extend(self.shares(processes, directory, &self.command(self.order.shares))?);
        Ok(figures)
    }

    /// Runs the same load for a while, and waits until all of its events have arrived.
    fn warm_up(&self, processes: &mut Processes) -> Result<()> {
        let warmed = processes.publisher.ask(&self.command(self.order.warmup))?.of("events")?;
        arrived(&mut processes.consumer, warmed * f64::from(self.load.consumers))?;
        Ok(())
    }

    /// Runs more and more events a second until they are too many.
    fn ramp(&self, processes: &mut Processes, directory: &Path) -> Result<Figures> {
        self.warm_up(processes)?;
        let mut ramp = Ramp::new(self.order.rate_from, self.order.lag_ms_max);
        while let Some(events) = ramp.next() {
            let step = self.measured(processes, &rate(events, self.order.step))?;
            eprintln!(
                "  {events}/s: {:.0}/s, lag p99 {:.2} ms",
                step.of("events_per_s")?,
                step.of("lag_p99_ms")?
            );
            ramp.take(step);
        }
        let mut figures = ramp.figures();
        if let Some(kept) = ramp.kept() {
            figures.extend(self.shares(processes, directory, &rate(kept, self.order.shares))?);
        }
        Ok(figures)
    }

    /// Runs the same load once more, and records the stages that events pass. Returns nothing if that is not wanted, or for a peer.
    fn shares(&self, processes: &mut Processes, directory: &Path, command: &str) -> Result<Figures> {
        if !self.watches_stages() {
            return Ok(Figures::new());
        }
        watch(processes)?;
        let appended = processes.publisher.ask(command)?.of("events")?;
        arrived(&mut processes.consumer, appended * f64::from(self.load.consumers))?;
        watched(processes, directory)
    }

    fn watches_stages(&self) -> bool {
        self.order.shares > 0 && self.peer.is_none()
    }

    /// Runs a command of the publisher, and waits until all of its events have arrived. Returns the figures.
    fn measured(&self, processes: &mut Processes, command: &str) -> Result<Figures> {
        processes.consumer.ask("reset")?;
        let before = Used::look(processes)?;
        let appended = processes.publisher.ask(command)?;
        let mut figures = Figures::new();
        before.add_since(processes, &mut figures)?;
        let consumers = f64::from(self.load.consumers);
        let came = arrived(&mut processes.consumer, appended.of("events")? * consumers)?;
        add_lags(&came, "", &mut figures)?;
        for name in ["append_p50_ms", "append_p99_ms", "append_p999_ms"] {
            figures.insert(name.to_owned(), appended.of(name)?);
        }
        figures.insert("events_per_s".to_owned(), appended.of("events")? / appended.of("seconds")?);
        Ok(figures)
    }

    /// Measures a consumer that reads all, alone and then beside one that is up to date.
    fn catch_up(&self, processes: &mut Processes, directory: &Path, address: &str) -> Result<Figures> {
        let mut figures = Figures::new();
        let filled = processes.publisher.ask(&format!("fill {}", self.order.events))?;
        let mut total = filled.of("events")?;
        figures.insert("fill_events_per_s".to_owned(), total / filled.of("seconds")?);
        arrived(&mut processes.consumer, total)?;
        let mut alone = self.consumer(address, None)?;
        figures.insert("catch_up_alone_per_s".to_owned(), caught_up(&mut alone, total)?);
        alone.end()?;
        processes.consumer.ask("reset")?;
        let appended = processes.publisher.ask(&self.command(self.order.warmup.max(5)))?.of("events")?;
        total += appended;
        add_lags(&arrived(&mut processes.consumer, appended)?, "live_alone_", &mut figures)?;
        processes.consumer.ask("reset")?;
        processes.publisher.say(&self.command(self.order.seconds))?;
        let mut behind = self.consumer(address, None)?;
        figures.insert("catch_up_per_s".to_owned(), caught_up(&mut behind, total)?);
        add_lags(&processes.consumer.ask("figures")?, "live_", &mut figures)?;
        let appended = processes.publisher.answer()?.of("events")?;
        total += appended;
        arrived(&mut behind, total)?;
        behind.end()?;
        if self.watches_stages() {
            figures.extend(self.live_shares(processes, directory, address, total)?);
        }
        Ok(figures)
    }

    /// Measures the stages of new events while another consumer reads all existing ones.
    fn live_shares(
        &self,
        processes: &mut Processes,
        directory: &Path,
        address: &str,
        total: f64,
    ) -> Result<Figures> {
        watch(processes)?;
        processes.publisher.say(&self.command(self.order.shares))?;
        let mut behind = self.consumer(address, None)?;
        caught_up(&mut behind, total)?;
        some_arrived(&mut processes.consumer)?;
        let of_consumer = stages_of(&mut processes.consumer, &directory.join("consumer.stages"))?;
        let appended = processes.publisher.answer()?.of("events")?;
        arrived(&mut behind, total + appended)?;
        behind.end()?;
        let of_publisher = stages_of(&mut processes.publisher, &directory.join("publisher.stages"))?;
        shares::shares(&of_publisher, &of_consumer)
    }

    /// Measures the time from the start of a process, after the one before was killed, to the first event that comes from it.
    fn kills(&self, processes: &mut Processes, directory: &Path, address: &str) -> Result<Figures> {
        let (mut total, mut times) = (0.0, Vec::new());
        for _ in 0..=KILLS {
            processes.consumer.ask("reset")?;
            let began_ms = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64() * 1e3;
            if total > 0.0 {
                processes.publisher = self.publisher(directory, address, None)?;
                processes.publisher.ask(&format!("from {}", total / ENTITIES))?;
            }
            let appended = processes.publisher.ask(&self.command(1))?.of("events")?;
            let came = arrived(&mut processes.consumer, appended)?;
            if total > 0.0 {
                times.push(came.of("first_ms")? - began_ms);
            }
            total += appended;
            processes.publisher.kill()?;
        }
        processes.publisher = self.publisher(directory, address, None)?;
        times.sort_unstable_by(f64::total_cmp);
        let at = |place: usize| times.get(place).copied().unwrap_or_default();
        Ok(Figures::from([
            ("first_event_p50_ms".to_owned(), at(times.len() / 2)),
            ("first_event_max_ms".to_owned(), at(times.len().saturating_sub(1))),
        ]))
    }
}

/// The command of a schedule.
fn rate(events: u64, seconds: u64) -> String {
    format!("rate {events} {seconds}")
}

/// Begins to record the stages of events.
fn watch(processes: &mut Processes) -> Result<()> {
    processes.publisher.ask("watch")?;
    processes.consumer.ask("watch")?;
    processes.consumer.ask("reset")?;
    Ok(())
}

/// Ends the recording. Returns the figures of the stages.
fn watched(processes: &mut Processes, directory: &Path) -> Result<Figures> {
    let of_publisher = stages_of(&mut processes.publisher, &directory.join("publisher.stages"))?;
    let of_consumer = stages_of(&mut processes.consumer, &directory.join("consumer.stages"))?;
    shares::shares(&of_publisher, &of_consumer)
}

fn stages_of(process: &mut Talking, file: &Path) -> Result<String> {
    process.ask(&format!("watched {}", file.display()))?;
    Ok(fs::read_to_string(file)?)
}

/// Waits until so many events have arrived since the last reset, and checks them.
fn arrived(consumer: &mut Talking, events: f64) -> Result<Figures> {
    let deadline = Instant::now() + ARRIVE_WITHIN;
    loop {
        let figures = consumer.ask("figures")?;
        let (came, faults) = (figures.of("events")?, figures.of("faults")?);
        ensure!(faults == 0.0, "{faults} events were not those that were due");
        ensure!(came <= events, "{came} events came, and {events} were appended");
        if came == events {
            return Ok(figures);
        }
        ensure!(Instant::now() < deadline, "{came} of {events} events have come after {ARRIVE_WITHIN:?}");
        thread::sleep(LOOK_EVERY);
    }
}

/// Waits until an event has come since the last reset.
fn some_arrived(consumer: &mut Talking) -> Result<()> {
    let deadline = Instant::now() + ARRIVE_WITHIN;
    while consumer.ask("figures")?.of("events")? == 0.0 {
        ensure!(Instant::now() < deadline, "no event has come after {ARRIVE_WITHIN:?}");
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// Waits for a number of events. Returns events a second, from the first to the last of them.
fn caught_up(consumer: &mut Talking, events: f64) -> Result<f64> {
    let deadline = Instant::now() + ARRIVE_WITHIN;
    loop {
        let figures = consumer.ask("figures")?;
        let (came, faults) = (figures.of("events")?, figures.of("faults")?);
        ensure!(faults == 0.0, "{faults} events were not those that were due");
        if came >= events {
            return Ok(came * 1e3 / (figures.of("last_ms")? - figures.of("first_ms")?));
        }
        ensure!(Instant::now() < deadline, "{came} of {events} events have come after {ARRIVE_WITHIN:?}");
        thread::sleep(LOOK_EVERY);
    }
}

fn add_lags(came: &Figures, prefix: &str, figures: &mut Figures) -> Result<()> {
    for name in ["lag_p50_ms", "lag_p99_ms", "lag_p999_ms", "lag_max_ms"] {
        figures.insert(format!("{prefix}{name}"), came.of(name)?);
    }
    Ok(())
}

/// A figure that has to exist.
trait Of {
    fn of(&self, key: &str) -> Result<f64>;
}

impl Of for Figures {
    fn of(&self, key: &str) -> Result<f64> {
        self.get(key).copied().with_context(|| format!("the process says nothing of {key}"))
    }
}
