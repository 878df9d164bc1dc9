//! One node with Kafka's own server.properties, which Apache Kafka and Mainstem run in turn, and the programs of
//! Java's clients beside it.
//!
//! It needs a JVM and Kafka's jars in `target/interop/kafka-VERSION/lib`, which `cargo xtask test` installs. Without
//! them a test prints that it is skipped; under `CI=true` it fails.
#![allow(clippy::unwrap_used, reason = "all of it is for tests")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::broker::binary;
use crate::dumps;
use mainstem_testkit::java::KafkaJars;
use mainstem_testkit::port;

/// The heap of a JVM.
const HEAP_MIB: u32 = 512;
const DATA: &str = "takeover/TakeoverData.java";
/// The source of a transactional producer that takes its steps from its input.
const TRANSACTIONS: &str = "takeover/Transactions.java";

/// The most files in one argument of a program.
const FILES_OF_A_DUMP: usize = 1000;
/// Words of Kafka's dump tool about a file with a fault.
const FAULTS: [&str; 5] = ["isvalid: false", "Exception", "Mismatch", "corrupt", "Found"];
/// The line that a program prints after each step.
const DONE: &str = "done";
/// The longest wait for a JVM on a busy machine.
const DEADLINE: Duration = Duration::from_secs(240);

/// The release that most tests compare with.
pub const NEWEST: Release = Release { version: "4.3.0", has_static_voters: false };
/// The last release before 4.0.
pub const BEFORE_4: Release = Release { version: "3.9.2", has_static_voters: true };

/// A release of Apache Kafka.
#[derive(Debug)]
pub struct Release {
    /// The version, as Maven names it.
    pub version: &'static str,
    /// True if voters are configured; otherwise they are in the metadata (KIP-853).
    pub has_static_voters: bool,
}

/// The node of a test, with its directories.
#[derive(Debug)]
pub struct Home {
    /// Unused where only Mainstem runs it.
    jars: KafkaJars,
    dir: TempDir,
    port: u16,
    controller: u16,
    has_static_voters: bool,
}

impl Home {
    /// A new node with two log directories; `None` where the release cannot run, which is printed.
    pub fn new(name: &str, release: &Release) -> Option<Home> {
        Some(Home::with(name, release, jars(release)?))
    }

    /// The same where only Mainstem runs it.
    pub fn without_kafka(name: &str) -> Home {
        Home::with(name, &NEWEST, KafkaJars::at(PathBuf::new()))
    }

    fn with(name: &str, release: &Release, jars: KafkaJars) -> Home {
        let dir = tempfile::Builder::new().prefix(&format!("{name}-")).tempdir().unwrap();
        let [port, controller] = [(), ()].map(|()| port());
        let has_static_voters = release.has_static_voters;
        let home = Home { jars, dir, port, controller, has_static_voters };
        fs::write(home.properties(), home.server_properties(controller)).unwrap();
        home
    }

    /// A text with PORT in place of the port of its controller.
    pub fn without_controller_port(&self, text: &str) -> String {
        text.replace(&format!(":{}", self.controller), ":PORT")
    }

    /// Changes to another release; `false` where that cannot run, which is printed.
    pub fn change_release(&mut self, release: &Release) -> bool {
        let found = jars(release);
        let is_found = found.is_some();
        if let Some(jars) = found {
            self.jars = jars;
        }
        is_found
    }

    /// The path of a file or folder beside its log directories.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn properties(&self) -> PathBuf {
        self.path("server.properties")
    }

    /// HOST:PORT of its listener, whichever broker serves it.
    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn server_properties(&self, controller: u16) -> String {
        let quorum = match self.has_static_voters {
            true => format!("controller.quorum.voters=1@127.0.0.1:{controller}"),
            false => format!("controller.quorum.bootstrap.servers=127.0.0.1:{controller}"),
        };
        let (one, other, plain) = (self.path("one"), self.path("other"), self.bootstrap());
        format!(
            "process.roles=broker,controller\n\
             node.id=1\n\
             {quorum}\n\
             listeners=PLAINTEXT://{plain},CONTROLLER://127.0.0.1:{controller}\n\
             advertised.listeners=PLAINTEXT://{plain}\n\
             inter.broker.listener.name=PLAINTEXT\n\
             controller.listener.names=CONTROLLER\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
             log.dirs={},{}\n\
             offsets.topic.replication.factor=1\n\
             offsets.topic.num.partitions=4\n\
             transaction.state.log.replication.factor=1\n\
             transaction.state.log.min.isr=1\n\
             transaction.state.log.num.partitions=4\n\
             group.initial.rebalance.delay.ms=0\n\
             log.cleaner.backoff.ms=500\n",
            one.display(),
            other.display()
        )
    }

    /// Appends to its server.properties; the last value of a key counts.
    pub fn set(&self, settings: &[(&str, String)]) {
        let mut file = File::options().append(true).open(self.properties()).unwrap();
        settings.iter().for_each(|(key, value)| writeln!(file, "{key}={value}").unwrap());
    }

    /// `kafka-storage format`.
    pub fn format(&self, more: &[&str]) {
        let mut command = self.jars.java(HEAP_MIB);
        command.args(["kafka.tools.StorageTool", "format", "-t", "bWFpbnN0ZW0tY2xpZW50cw", "-c"]);
        command.arg(self.properties()).args(more);
        if !self.has_static_voters {
            command.arg("--standalone");
        }
        succeeded(&command.output().unwrap());
    }

    /// Starts Kafka's broker and waits until it serves.
    pub fn start_kafka(&self) -> Running<'_> {
        let mut command = self.jars.java(HEAP_MIB);
        command.arg("kafka.Kafka").arg(self.properties());
        self.start("kafka", command)
    }

    /// Starts Mainstem with Kafka's own file, and waits until it serves.
    pub fn start_mainstem(&self, more: &[&str]) -> Running<'_> {
        self.start("mainstem", self.mainstem(more))
    }

    fn mainstem(&self, more: &[&str]) -> Command {
        let mut command = Command::new(binary());
        // This variable is for tests and no setting of the broker.
        command.env_remove("MAINSTEM_BINARY");
        command.arg("start").arg("--config").arg(self.properties()).args(more);
        command
    }

    /// The error of Mainstem when it does not start.
    pub fn mainstem_refuses(&self) -> String {
        let output = self.mainstem(&[]).output().unwrap();
        assert!(!output.status.success(), "it starts");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn start(&self, name: &'static str, mut command: Command) -> Running<'_> {
        let log = self.path(&format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log).unwrap();
        command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        let mut running = Running { name, process: command.spawn().unwrap(), log, home: self };
        let deadline = Instant::now() + DEADLINE;
        while TcpStream::connect(self.bootstrap()).is_err() {
            let ended = running.process.try_wait().unwrap();
            assert!(ended.is_none(), "{name} ended: {ended:?}\n{}", running.said());
            assert!(Instant::now() < deadline, "{name} does not start\n{}", running.said());
            std::thread::sleep(Duration::from_millis(50));
        }
        running
    }

    /// The command that runs a program of one source file, named from this crate's folder: the first of `arguments`,
    /// the address of the node, then the others.
    pub fn program(&self, source: &str, arguments: &[&str]) -> Command {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
        let mut command = self.jars.program(&source, HEAP_MIB);
        command.arg(arguments[0]).arg(self.bootstrap()).args(&arguments[1..]);
        command
    }

    /// Starts a program whose output goes to a file of its name.
    pub fn spawn(&self, name: &'static str, mut command: Command) -> Beside {
        let log = self.path(&format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log).unwrap();
        command.stdin(Stdio::piped()).stdout(output.try_clone().unwrap()).stderr(output);
        Beside { name, process: command.spawn().unwrap(), log }
    }

    /// Writes the data of a phase, or checks those of so many phases.
    pub fn data(&self, what: &str, number: u32) {
        let folder = self.dir.path().display().to_string();
        let output = self.program(DATA, &[what, &folder, &number.to_string()]).output().unwrap();
        if !output.status.success() {
            let logs = ["kafka.log", "mainstem.log"].map(|name| fs::read_to_string(self.path(name)));
            let logs = logs.map(Result::unwrap_or_default).join("\n");
            panic!("{what} {number}: {}\n{logs}", String::from_utf8_lossy(&output.stderr));
        }
    }

    /// Starts a producer that runs over all changes of the broker.
    pub fn feed(&self) -> Beside {
        self.spawn("feed", self.program(DATA, &["feed"]))
    }

    /// Starts a transactional producer that takes its steps on request, with whichever broker serves it.
    pub fn transactions(&self) -> Beside {
        self.spawn("transactions", self.program(TRANSACTIONS, &["run"]))
    }

    /// Waits until Mainstem has written a snapshot and removed Kafka's.
    pub fn wait_for_a_snapshot(&self) {
        let deadline = Instant::now() + DEADLINE;
        let kafkas = "00000000000000000000-0000000000.checkpoint";
        let is_written = || {
            let names = fs::read_dir(self.path("one/__cluster_metadata-0")).unwrap();
            let names = names.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
            let snapshots: Vec<_> = names.filter(|name| name.ends_with(".checkpoint")).collect();
            !snapshots.is_empty() && !snapshots.iter().any(|name| name == kafkas)
        };
        while !is_written() {
            assert!(Instant::now() < deadline, "no snapshot is written");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Asserts that Kafka's own dump tool finds no fault in any file.
    pub fn assert_no_fault_in_the_files(&self) {
        assert_no_fault(&self.jars, &["one", "other"].map(|name| self.path(name)));
    }
}

/// The same for these log directories, where Kafka is installed.
pub fn assert_kafka_finds_no_fault(log_dirs: &[PathBuf]) {
    if let Some(jars) = jars(&NEWEST) {
        assert_no_fault(&jars, log_dirs);
    }
}

/// The same for the log directories of each node of a cluster. Also the outputs for all replicas of these partitions
/// must be equal up to their ends, which are by the name of a directory.
///
/// # Panics
/// When it finds a fault, or a difference.
pub fn assert_kafka_finds_equal_replicas(nodes: &[Vec<PathBuf>], ends: &BTreeMap<String, i64>) {
    if let Some(jars) = jars(&NEWEST) {
        dumps::assert_equal(&assert_no_fault(&jars, &nodes.concat()), nodes, ends);
    }
}

/// The output of one of Kafka's tools about a broker, by its main class; `None` without Kafka, which is printed.
///
/// # Panics
/// When the tool ends with an error.
pub fn kafka_says(main: &str, address: &str, arguments: &str) -> Option<String> {
    let mut command = jars(&NEWEST)?.java(HEAP_MIB);
    command.arg(main).args(["--bootstrap-server", address]).args(arguments.split(' '));
    let output = command.output().unwrap();
    succeeded(&output);
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the output of the tool for all files, each with the decoder of its topic. Directories of deleted
/// partitions are left out: a broker removes them file by file, and may have ended in between.
fn assert_no_fault(jars: &KafkaJars, log_dirs: &[PathBuf]) -> Vec<String> {
    let mut decoders = Vec::new();
    for dir in log_dirs {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            if let Some(topic) = topic_of(&entry.file_name().to_string_lossy()) {
                decoders.push((entry.path(), decoder(topic)));
            }
        }
    }
    decoders.sort_by_key(|(_, decoder)| *decoder);
    let mut dumps = Vec::new();
    for group in decoders.chunk_by(|one, other| one.1 == other.1) {
        let files: Vec<_> = group.iter().flat_map(|(dir, _)| data_files(dir)).collect();
        let of_group = files.chunks(FILES_OF_A_DUMP).map(|files| dump(jars, group[0].1, &files.join(",")));
        dumps.extend(of_group);
    }
    dumps
}

/// The topic of a directory in a log directory; `None` if it is no partition, or one that is deleted, set aside or being moved.
fn topic_of(name: &str) -> Option<&str> {
    let (topic, partition) = name.rsplit_once('-')?;
    partition.parse::<u32>().is_ok().then_some(topic)
}

fn decoder(topic: &str) -> &'static str {
    match topic {
        "__transaction_state" => "--transaction-log-decoder",
        "__consumer_offsets" => "--offsets-decoder",
        "__cluster_metadata" => "--cluster-metadata-decoder",
        _ => "--deep-iteration",
    }
}

fn dump(jars: &KafkaJars, decoder: &str, files: &str) -> String {
    let mut command = jars.java(HEAP_MIB);
    command.args(["org.apache.kafka.tools.DumpLogSegments", decoder, "--files", files]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if let Some(at) = said.lines().position(|line| FAULTS.iter().any(|fault| line.contains(fault))) {
        panic!("{decoder}, {}:\n{}", output.status, lines_around(&said, at));
    }
    assert!(output.status.success(), "{decoder}, {}:\n{}", output.status, lines_around(&said, usize::MAX));
    said.into_owned()
}

/// Some lines around a position of a text; the last ones if the position is behind the end.
fn lines_around(text: &str, at: usize) -> String {
    let lines: Vec<_> = text.lines().collect();
    let at = at.min(lines.len());
    lines[at.saturating_sub(5)..lines.len().min(at + 10)].join("\n")
}

/// Segments, indexes, and snapshots of producers and of metadata.
fn data_files(dir: &Path) -> Vec<String> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path().display().to_string());
    let is_data =
        |name: &String| [".log", "index", ".snapshot", ".checkpoint"].iter().any(|end| name.ends_with(end));
    files.filter(is_data).collect()
}

/// A broker; killed when it is dropped.
#[derive(Debug)]
pub struct Running<'a> {
    name: &'static str,
    process: Child,
    log: PathBuf,
    home: &'a Home,
}

impl Running<'_> {
    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends SIGTERM, and waits for the end.
    pub fn stop(mut self) {
        let id = Pid::from_raw(i32::try_from(self.process.id()).unwrap()).unwrap();
        kill_process(id, Signal::TERM).unwrap();
        let status = waited_for(&mut self.process, self.name);
        // A JVM that a signal ended has this exit code.
        assert!(
            status.success() || status.code() == Some(143),
            "{} ended with {status}\n{}",
            self.name,
            self.said()
        );
        for dir in ["one", "other"] {
            let marker = self.home.path(dir).join(".kafka_cleanshutdown");
            assert!(marker.exists(), "{} left {dir} in order\n{}", self.name, self.said());
        }
    }

    /// Sends SIGKILL.
    pub fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A program beside the broker; killed when it is dropped.
#[derive(Debug)]
pub struct Beside {
    name: &'static str,
    process: Child,
    log: PathBuf,
}

impl Beside {
    /// The output of this and its earlier runs.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Asks for a step by a line of input, and waits until the program says that it is done.
    pub fn ask(&mut self, step: &str) {
        let count = |said: String| said.lines().filter(|line| *line == DONE).count();
        let before = count(self.said());
        writeln!(self.process.stdin.as_mut().unwrap(), "{step}").unwrap();
        let deadline = Instant::now() + DEADLINE;
        while count(self.said()) == before {
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none(), "{} ended at {step}: {ended:?}\n{}", self.name, self.said());
            assert!(Instant::now() < deadline, "{} does not {step}\n{}", self.name, self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends its input, and waits until it has ended successfully.
    pub fn end(mut self) {
        // The program may not read it.
        let _ = self.process.stdin.take().unwrap().write_all(b"\n");
        let status = waited_for(&mut self.process, self.name);
        assert!(status.success(), "{}:\n{}", self.name, self.said());
    }

    /// Returns true while it runs.
    pub fn is_running(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn waited_for(process: &mut Child, name: &str) -> ExitStatus {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(status) = process.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < deadline, "{name} does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn succeeded(output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stdout));
}

/// Kafka's jars, where they and a JVM are installed; otherwise it is printed that the test is skipped.
pub(crate) fn jars(release: &Release) -> Option<KafkaJars> {
    KafkaJars::or_skip(release.version, "a test with Apache Kafka's node or tools")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_partitions_are_looked_at() {
        assert_eq!(topic_of("a-b-3"), Some("a-b"));
        assert_eq!(topic_of("__cluster_metadata-0"), Some("__cluster_metadata"));
        for name in
            ["t-0.5d41402abc4b2a76b9719d911017c592-delete", "t-0.5d41-stray", "t-0.5d41-future", "lost+found"]
        {
            assert_eq!(topic_of(name), None, "{name}");
        }
    }

    #[test]
    fn what_is_around_a_line_ends_with_the_text() {
        let text = (0..30).map(|line| line.to_string()).collect::<Vec<_>>().join("\n");
        assert_eq!(lines_around(&text, 1).lines().next(), Some("0"));
        assert_eq!(lines_around(&text, 28).lines().last(), Some("29"));
        assert_eq!(
            lines_around(&text, usize::MAX).lines().collect::<Vec<_>>(),
            ["25", "26", "27", "28", "29"]
        );
        assert_eq!(lines_around("", usize::MAX), "");
    }
}
