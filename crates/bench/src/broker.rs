//! The systems under test, started fresh for each run and stopped after it.

mod kafka;
pub(crate) mod nodes;

use std::error::Error;
use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal};

pub(crate) use self::kafka::{
    DEFAULT_HEAP_MIB, Java, KafkaInstall, VERSION as KAFKA_VERSION, newest_java, resolve_pom,
};
use crate::connection::Connection;
use crate::disk;
use crate::environment::Environment;
use crate::load::Target;
use crate::protocol::admin;
use crate::secure::{self, CertificateKey, Endpoint};
use crate::workload::Durability;

/// A broker that was killed with many records may check all of them before it answers.
const READY_MAX: Duration = Duration::from_secs(180);
/// Settings of Mainstem beyond its defaults.
const PROPERTIES: &str = "server.properties";
const STOP_MAX: Duration = Duration::from_secs(60);
/// Prefixes of variables that would change what is measured. Every setting of Mainstem can be a variable, and so can options of JVMs, of
/// Kafka's logging and of memory allocators; a developer may have set some.
const UNWANTED_PREFIXES: [&str; 6] = ["MAINSTEM_", "KAFKA_", "LOG4J_", "RUST_", "JAVA_", "MALLOC_"];
/// Such variables without one of these prefixes.
const UNWANTED_VARIABLES: [&str; 3] = ["JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "GLIBC_TUNABLES"];
/// Lines of a broker's log that an error shows.
pub(crate) const LOG_TAIL_LINES: usize = 15;
/// Messages of a JVM whose heap is too small to start, or for its work.
const OUT_OF_MEMORY: [&str; 2] = ["java.lang.OutOfMemoryError", "Error occurred during initialization of VM"];

/// A system that is measured beside others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum System {
    /// Apache Kafka with its defaults.
    Kafka,
    /// Mainstem with its defaults.
    Mainstem,
    /// Mainstem with `num.network.threads=1`: all connections on one thread.
    MainstemSame,
    /// Mainstem with `num.network.threads=2`: connections split over two threads.
    MainstemSplit,
    /// The minimal server of this crate: what the machine allows.
    Probe,
    /// Kafka whose clients come by TLS and log in.
    KafkaSecured,
    /// Mainstem whose clients come by TLS and log in.
    MainstemSecured,
    /// Chronicle Queue, the open source edition.
    Chronicle,
    /// The embedded queue of Mainstem.
    Queue,
}

impl System {
    /// All systems, in the order of reports.
    pub const ALL: [Self; 9] = [
        Self::Kafka,
        Self::Mainstem,
        Self::MainstemSame,
        Self::MainstemSplit,
        Self::Probe,
        Self::KafkaSecured,
        Self::MainstemSecured,
        Self::Chronicle,
        Self::Queue,
    ];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::Mainstem => "mainstem",
            Self::MainstemSame => "mainstem-same",
            Self::MainstemSplit => "mainstem-split",
            Self::Probe => "probe",
            Self::KafkaSecured => "kafka-sasl-ssl",
            Self::MainstemSecured => "mainstem-sasl-ssl",
            Self::Chronicle => "chronicle",
            Self::Queue => "mainstem-queue",
        }
    }

    /// The system of that name; an error names all of them.
    pub fn parse(name: &str) -> Result<Self> {
        let names = Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|system| system.name() == name);
        found.with_context(|| format!("there is no system {name}: take some of {names}"))
    }

    /// Returns true for a whole broker; the probe serves only the two requests of a load.
    pub fn is_broker(self) -> bool {
        self.is_kafka() || self.is_mainstem_broker()
    }

    /// Returns true for our broker.
    pub fn is_mainstem_broker(self) -> bool {
        matches!(self, Self::Mainstem | Self::MainstemSame | Self::MainstemSplit | Self::MainstemSecured)
    }

    /// Returns true for Apache Kafka.
    pub fn is_kafka(self) -> bool {
        matches!(self, Self::Kafka | Self::KafkaSecured)
    }

    /// Returns true if its clients connect by TLS and log in.
    pub(crate) fn is_secured(self) -> bool {
        matches!(self, Self::KafkaSecured | Self::MainstemSecured)
    }

    /// Returns true for a system of ours.
    pub fn is_mainstem(self) -> bool {
        self == Self::Queue || self.is_mainstem_broker()
    }

    /// Returns true for a queue within processes, without a broker.
    pub fn is_embedded(self) -> bool {
        matches!(self, Self::Chronicle | Self::Queue)
    }

    /// Returns true for a peer: ours are compared with it.
    pub(crate) fn is_peer(self) -> bool {
        self.is_kafka() || self == Self::Chronicle
    }

    /// Returns its settings beyond the defaults.
    fn settings(self) -> &'static [&'static str] {
        match self {
            Self::MainstemSame => &["num.network.threads=1"],
            Self::MainstemSplit => &["num.network.threads=2"],
            _ => &[],
        }
    }
}

/// The options of a start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Launch {
    pub(crate) system: System,
    pub(crate) durability: Durability,
    /// The size of the JVM's heap, for Kafka.
    pub(crate) heap_mib: u32,
    /// The partitions of the probe's one topic.
    pub(crate) partitions: i32,
    /// Further settings of a broker, `KEY=VALUE` each, which Kafka and Mainstem both know.
    pub(crate) settings: &'static [&'static str],
    /// The key of the certificate, for a broker whose clients connect by TLS.
    pub(crate) key: CertificateKey,
}

/// A data directory, which is removed with its last user.
#[derive(Debug)]
pub(crate) struct DataDir(PathBuf);

impl DataDir {
    /// An empty one, for one run of a system.
    pub(crate) fn make(environment: &Environment, system: System) -> Result<Self> {
        let name = format!("{}-{}", system.name(), std::process::id());
        let directory = environment.data_root.join(name);
        if directory.exists() {
            fs::remove_dir_all(&directory)
                .with_context(|| format!("{} has to be removed", directory.display()))?;
        }
        fs::create_dir_all(&directory).with_context(|| format!("creating {}", directory.display()))?;
        disk::settle(&directory)?;
        Ok(Self(directory))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        // A directory left behind cannot be reported from here.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A broker that failed for lack of memory: it said so, or it did not become ready, as a JVM that does nothing but collect garbage. For a
/// search of the memory that it needs, this is an answer; every other failure is none.
#[derive(Debug)]
pub(crate) struct Starved(pub(crate) String);

impl Display for Starved {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str(&self.0)
    }
}

impl Error for Starved {}

/// A broker that was started; dropped, it is killed and its data removed.
#[derive(Debug)]
pub(crate) struct Running {
    // Declared before the directory: it is dropped first, so the process has ended when its data is removed.
    process: Process,
    system: System,
    directory: DataDir,
    pub(crate) address: SocketAddr,
    /// The time just before the process was started.
    pub(crate) started_at: Instant,
}

impl Running {
    /// Makes an empty data directory, and finds a free address, both for [`Self::start_on`].
    pub(crate) fn prepare(environment: &Environment, launch: Launch) -> Result<(DataDir, SocketAddr)> {
        let directory = DataDir::make(environment, launch.system)?;
        let address = environment.next_address()?;
        let mut settings: Vec<_> = launch.settings.iter().map(|setting| (*setting).to_owned()).collect();
        if launch.system.is_secured() {
            settings.extend(secure::prepare(&directory.0, launch.key)?);
        }
        match &environment.kafka {
            Some(kafka) if launch.system.is_kafka() => {
                kafka.prepare(&directory.0, address, launch.system.is_secured(), &settings)?;
            }
            _ => fs::write(directory.0.join(PROPERTIES), settings.join("\n"))?,
        }
        Ok((directory, address))
    }

    /// Starts a system on the files in its directory, at the same address. Does not wait until it answers.
    pub(crate) fn start_on(
        environment: &Environment,
        launch: Launch,
        (directory, address): (DataDir, SocketAddr),
    ) -> Result<Self> {
        ensure_free(address)?;
        let mut command = command(environment, launch, &directory.0, address)?;
        let log = File::create(directory.0.join("output.log"))?;
        without_developers_variables(&mut command);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let started_at = Instant::now();
        let child = command.spawn().with_context(|| format!("starting {:?}", command.get_program()))?;
        Ok(Self { process: Process(child), system: launch.system, directory, address, started_at })
    }

    /// Starts a system on an empty data directory, and waits until it answers.
    pub(crate) fn start_ready(environment: &Environment, launch: Launch) -> Result<Self> {
        let mut broker = Self::start_on(environment, launch, Self::prepare(environment, launch)?)?;
        broker.wait_until(|broker| {
            if broker.system.is_secured() {
                secure::create_user(broker.address).ok()?;
            }
            let mut connection = Connection::open(broker.endpoint()).ok()?;
            let answers = !broker.system.is_broker() || admin::api_versions(&mut connection).is_ok();
            answers.then_some(())
        })?;
        Ok(broker)
    }

    /// Tries every millisecond until there is an answer; fails with the log if the process ends before.
    pub(crate) fn wait_until<T>(&mut self, mut attempt: impl FnMut(&Self) -> Option<T>) -> Result<T> {
        loop {
            if let Some(answer) = attempt(self) {
                return Ok(answer);
            }
            if let Some(status) = self.process.0.try_wait()? {
                let what = format!("{} ended with {status} instead of answering", self.system.name());
                return Err(self.fault(what));
            }
            if self.started_at.elapsed() > READY_MAX {
                let what = format!("{} does not answer within {READY_MAX:?}", self.system.name());
                return Err(Starved(self.with_log_tail(what)).into());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.0.id()
    }

    pub(crate) fn target(&self) -> Target {
        Target { address: self.endpoint(), has_topics_and_groups: self.system.is_broker() }
    }

    /// Returns the endpoint for clients.
    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint { address: self.address, is_secured: self.system.is_secured() }
    }

    /// The properties of Kafka's tools, where they need some.
    pub(crate) fn client_properties(&self) -> Option<PathBuf> {
        self.system.is_secured().then(|| self.directory.0.join("client.properties"))
    }

    /// Writes a topic's segments to the disk and has the kernel forget their pages.
    pub(crate) fn make_cold(&self, topic: &str) -> Result<()> {
        let data = self.directory.0.join("data");
        for entry in fs::read_dir(&data).with_context(|| format!("reading {}", data.display()))? {
            let partition = entry?;
            if partition.file_name().to_string_lossy().starts_with(&format!("{topic}-")) {
                disk::make_cold(&partition.path())?;
            }
        }
        Ok(())
    }

    /// Returns an error with the broker's last lines; [`Starved`] if these say that it lacked memory.
    pub(crate) fn fault(&self, what: impl Display) -> anyhow::Error {
        let is_starved = OUT_OF_MEMORY.iter().any(|words| self.log().contains(words));
        let message = self.with_log_tail(what);
        if is_starved { Starved(message).into() } else { anyhow!(message) }
    }

    fn with_log_tail(&self, what: impl Display) -> String {
        format!("{what}:\n{}", self.log_tail())
    }

    /// The last lines that the broker printed.
    pub(crate) fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    /// All that the broker printed since it was started.
    fn log(&self) -> String {
        let log = fs::read(self.directory.0.join("output.log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Stops it as an operator would (the probe just ends), and removes its data.
    pub(crate) fn stop(self) -> Result<()> {
        self.stop_and_keep().map(drop)
    }

    /// Stops it as an operator would; returns what [`Self::start_on`] takes.
    pub(crate) fn stop_and_keep(mut self) -> Result<(DataDir, SocketAddr)> {
        if let Some(status) = self.process.0.try_wait()? {
            return Err(self.fault(format!("{} ended with {status} during the run", self.system.name())));
        }
        let pid = Pid::from_child(&self.process.0);
        rustix::process::kill_process(pid, Signal::TERM)?;
        let deadline = Instant::now() + STOP_MAX;
        while self.process.0.try_wait()?.is_none() {
            if Instant::now() > deadline {
                return Err(self.fault(format!("{} does not stop within {STOP_MAX:?}", self.system.name())));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok((self.directory, self.address))
    }

    /// Kills it as `kill -9` does; returns what [`Self::start_on`] takes.
    pub(crate) fn kill_and_keep(self) -> (DataDir, SocketAddr) {
        drop(self.process);
        (self.directory, self.address)
    }
}

/// A child process that is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Removes variables from a child's environment that would change what is measured.
pub(crate) fn without_developers_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_unwanted(name)) {
        command.env_remove(name);
    }
}

fn is_unwanted(variable: &OsStr) -> bool {
    let name = variable.as_encoded_bytes();
    UNWANTED_VARIABLES.iter().any(|unwanted| name == unwanted.as_bytes())
        || UNWANTED_PREFIXES.iter().any(|prefix| name.starts_with(prefix.as_bytes()))
}

/// Fails if the port is in use: that server would be measured instead of the broker.
fn ensure_free(address: SocketAddr) -> Result<()> {
    ensure!(Connection::open(address).is_err(), "{address} is in use: choose other ports by --port");
    Ok(())
}

fn command(
    environment: &Environment,
    launch: Launch,
    directory: &Path,
    address: SocketAddr,
) -> Result<Command> {
    match launch.system {
        System::Kafka | System::KafkaSecured => {
            let kafka = environment.kafka.as_ref().context("Kafka was not set up")?;
            Ok(kafka.command(directory, launch.heap_mib))
        }
        System::Probe => Ok(probe(environment, launch, directory, address)),
        _ => Ok(mainstem(environment, launch, directory, address)),
    }
}

fn mainstem(environment: &Environment, launch: Launch, directory: &Path, address: SocketAddr) -> Command {
    let mut command = Command::new(&environment.mainstem);
    command.arg("start").arg("--data-dir").arg(directory.join("data"));
    match launch.system.is_secured() {
        true => command.arg("--set").arg(format!("listeners=SASL_SSL://{address}")),
        false => command.arg("--listen").arg(address.to_string()),
    };
    command.arg("--config").arg(directory.join(PROPERTIES));
    // As Kafka does by default.
    let caching = (launch.durability == Durability::PageCache).then_some("write.caching.default=true");
    let settings = launch.system.settings().iter().copied().chain(caching);
    for setting in settings.chain(environment.mainstem_settings.iter().map(String::as_str)) {
        command.arg("--set").arg(setting);
    }
    command
}

fn probe(environment: &Environment, launch: Launch, directory: &Path, address: SocketAddr) -> Command {
    let mut command = Command::new(&environment.tool);
    command.arg("probe").arg("--listen").arg(address.to_string()).arg("--directory").arg(directory);
    command.args(["--partitions", &launch.partitions.to_string()]);
    command.args(["--durability", launch.durability.name()]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::{Needs, Settings};

    /// The error about a program that prints its arguments, such as this one, and ends instead of serving.
    fn fault_of_one_that_prints(words: &str) -> anyhow::Error {
        let root = tempfile::tempdir().unwrap();
        let settings = Settings {
            mainstem: "/bin/echo".into(),
            mainstem_settings: vec![words.to_owned()],
            kafka_jars: PathBuf::new(),
            chronicle_jars: PathBuf::new(),
            java: None,
            data_root: root.path().to_owned(),
            first_port: 0,
        };
        let environment = Environment::prepare(&settings, &[System::Mainstem], Needs::default()).unwrap();
        let (system, durability) = (System::Mainstem, Durability::PageCache);
        let launch = Launch {
            system,
            durability,
            heap_mib: 0,
            partitions: 0,
            settings: &[],
            key: CertificateKey::P256,
        };
        Running::start_ready(&environment, launch).unwrap_err()
    }

    #[test]
    fn a_broker_without_memory_is_distinguished_from_one_that_failed() {
        for words in OUT_OF_MEMORY {
            let fault = fault_of_one_that_prints(words);
            let message = fault.to_string();
            assert!(message.starts_with("mainstem ended with") && message.contains(words), "{message}");
            assert!(fault.is::<Starved>(), "{message}");
            assert!(fault.context("with a small heap").is::<Starved>());
        }
        let fault = fault_of_one_that_prints("no space left on the device");
        assert!(!fault.is::<Starved>() && fault.to_string().contains("no space left"), "{fault}");
    }

    #[test]
    fn what_a_developer_has_set_does_not_reach_a_broker() {
        let is_unwanted = |name: &str| is_unwanted(OsStr::new(name));
        let unwanted = [
            "MAINSTEM_NUM_NETWORK_THREADS",
            "MAINSTEM_LOG_DIRS",
            "KAFKA_HEAP_OPTS",
            "LOG4J_ROOT_LEVEL",
            "RUST_LOG",
            "RUST_BACKTRACE",
            "JAVA_TOOL_OPTIONS",
            "JDK_JAVA_OPTIONS",
            "_JAVA_OPTIONS",
            "MALLOC_ARENA_MAX",
            "GLIBC_TUNABLES",
        ];
        assert_eq!(unwanted.into_iter().find(|name| !is_unwanted(name)), None);
        let others = ["PATH", "HOME", "LANG", "MAINSTEM", "TRUST_ME", "MY_JAVA_OPTIONS", ""];
        assert_eq!(others.into_iter().find(|name| is_unwanted(name)), None);
    }
}
