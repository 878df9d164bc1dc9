//! One node as a process.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use mainstem_testkit::java::KafkaJars;
use rustix::process::{Pid, Signal, kill_process};

use crate::broker::binary;
use crate::wait::within;

/// The id of all clusters here.
const CLUSTER_ID: &str = "bWFpbnN0ZW0tY2x1c3RlcnM";
/// Lines of a node's log in a failure's message.
const TAIL_LINES: usize = 25;
/// Characters of such a line.
const LINE_CHARS: usize = 300;
/// The longest wait for a node to stop.
const STOP_MAX: std::time::Duration = std::time::Duration::from_secs(60);
/// The logging configuration of Kafka: errors alone.
const LOGGING: &str = "\
appender.console.type = Console
appender.console.name = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = ERROR
rootLogger.appenderRef.console.ref = CONSOLE
";

/// The ports of a node on 127.0.0.1.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ports {
    pub(super) plain: u16,
    pub(super) controller: u16,
}

/// A node; killed when it is dropped.
#[derive(Debug)]
pub(super) struct Node {
    id: i32,
    dir: PathBuf,
    /// Its `log.dirs`, if they are not in its own directory.
    disks: Vec<PathBuf>,
    environment: Vec<(&'static str, PathBuf)>,
    /// The binary of its next start; none: that of this workspace.
    program: Option<PathBuf>,
    /// Kafka's jars, if the node runs Kafka.
    jars: Option<KafkaJars>,
    process: Option<Child>,
    /// Bytes in its log from processes before the current one.
    log_bytes_before: usize,
}

impl Node {
    pub(super) fn new(id: i32, home: &Path, jars: Option<KafkaJars>) -> Node {
        let dir = home.join(format!("node-{id}"));
        fs::create_dir_all(&dir).unwrap();
        let (disks, environment) = (Vec::new(), Vec::new());
        Node { id, dir, disks, environment, program: None, jars, process: None, log_bytes_before: 0 }
    }

    /// Sets its log directories. Call it before its properties are written.
    pub(super) fn set_disks(&mut self, disks: Vec<PathBuf>) {
        self.disks = disks;
    }

    /// Sets variables in the environment of its process.
    pub(super) fn set_environment(&mut self, environment: Vec<(&'static str, PathBuf)>) {
        self.environment = environment;
    }

    /// Sets the binary of its next starts.
    pub(super) fn set_program(&mut self, program: PathBuf) {
        self.program = Some(program);
    }

    pub(super) fn id(&self) -> i32 {
        self.id
    }

    /// Writes the properties that Kafka and Mainstem both understand, of a node of a new cluster. `public` has the ports at which other
    /// nodes and clients connect to each node.
    pub(super) fn write_properties(&self, own: Ports, public: &[Ports], more: &BTreeMap<String, String>) {
        let voters =
            (1..).zip(public).map(|(id, ports): (i32, _)| format!("{id}@127.0.0.1:{}", ports.controller));
        let voters = voters.collect::<Vec<_>>().join(",");
        self.write_properties_with(&format!("controller.quorum.voters={voters}"), own, public, more);
    }

    /// Writes the properties of a node that joins the cluster of the other nodes.
    pub(super) fn write_properties_to_join(
        &self,
        own: Ports,
        public: &[Ports],
        more: &BTreeMap<String, String>,
    ) {
        let others = (1..).zip(public).filter(|(id, _): &(i32, _)| *id != self.id);
        let servers = others.map(|(_, ports)| format!("127.0.0.1:{}", ports.controller));
        let servers = servers.collect::<Vec<_>>().join(",");
        self.write_properties_with(
            &format!("controller.quorum.bootstrap.servers={servers}"),
            own,
            public,
            more,
        );
    }

    /// The same with a line that names the quorum.
    fn write_properties_with(
        &self,
        quorum: &str,
        own: Ports,
        public: &[Ports],
        more: &BTreeMap<String, String>,
    ) {
        let advertised = public[usize::try_from(self.id - 1).unwrap()].plain;
        let Ports { plain, controller } = own;
        let data: Vec<_> = self.log_dirs().iter().map(|dir| dir.display().to_string()).collect();
        let (id, data) = (self.id, data.join(","));
        let mut text = format!(
            "process.roles=broker,controller\n\
             node.id={id}\n\
             {quorum}\n\
             listeners=PLAINTEXT://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{controller}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{advertised}\n\
             inter.broker.listener.name=PLAINTEXT\n\
             controller.listener.names=CONTROLLER\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
             log.dirs={data}\n"
        );
        for (key, value) in more {
            writeln!(text, "{key}={value}").unwrap();
        }
        fs::write(self.properties(), text).unwrap();
        fs::write(self.dir.join("log4j2.properties"), LOGGING).unwrap();
    }

    fn properties(&self) -> PathBuf {
        self.dir.join("node.properties")
    }

    /// Its first log directory.
    pub(super) fn log_dir(&self) -> PathBuf {
        self.log_dirs().swap_remove(0)
    }

    /// All its log directories.
    pub(super) fn log_dirs(&self) -> Vec<PathBuf> {
        if self.disks.is_empty() { vec![self.dir.join("data")] } else { self.disks.clone() }
    }

    fn java(&self, jars: &KafkaJars) -> Command {
        let mut command = jars.java(320);
        let logging = self.dir.join("log4j2.properties").display().to_string();
        command.arg(format!("-Dlog4j2.configurationFile={logging}"));
        command
    }

    /// `kafka-storage format`, which Kafka needs.
    pub(super) fn format(&self) {
        let Some(jars) = &self.jars else { return };
        let mut command = self.java(jars);
        command.args(["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c"]).arg(self.properties());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stdout));
    }

    /// Starts it without waiting. Returns its process id.
    pub(super) fn start(&mut self) -> u32 {
        assert!(self.process.is_none(), "node {} runs already", self.id);
        self.log_bytes_before = self.log_bytes().len();
        let mut command = match &self.jars {
            Some(jars) => {
                let mut command = self.java(jars);
                command.arg("kafka.Kafka").arg(self.properties());
                command
            }
            None => {
                let mut command = Command::new(self.program.clone().unwrap_or_else(binary));
                command.args(["start", "--config"]).arg(self.properties());
                command
            }
        };
        let output = File::options().create(true).append(true).open(self.dir.join("node.log")).unwrap();
        command.envs(self.environment.iter().map(|(key, value)| (key, value)));
        command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        let process = command.spawn().unwrap();
        let id = process.id();
        self.process = Some(process);
        id
    }

    pub(super) fn kill(&mut self) {
        assert!(self.process.is_some(), "node {} does not run", self.id);
        self.assert_running();
        self.end();
    }

    /// Kills it, whatever its state.
    pub(super) fn end(&mut self) {
        if let Some(mut process) = self.process.take() {
            // The process may have ended by itself. It still has to be waited for.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().expect("the node runs");
        kill_process(Pid::from_raw(i32::try_from(process.id()).unwrap()).unwrap(), signal).unwrap();
    }

    /// Stops all its threads and returns when they have stopped. The node sees later requests only after it is resumed.
    pub(super) fn pause(&self) {
        self.signal(Signal::STOP);
        let process = self.process.as_ref().expect("the node runs").id();
        within(STOP_MAX, "the threads of a node to stop", || has_stopped(process).then_some(()));
    }

    pub(super) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    pub(super) fn stop(&mut self) {
        self.signal(Signal::TERM);
        let mut process = self.process.take().expect("the node runs");
        let status = within(STOP_MAX, "a node's end", || process.try_wait().unwrap());
        // A JVM that a signal ended has this exit code.
        let is_in_order = status.success() || status.code() == Some(143);
        assert!(is_in_order, "node {} ended with {status}\n{}", self.id, self.tail());
    }

    /// Waits until it has ended by itself.
    pub(super) fn wait_for_end(&mut self) -> ExitStatus {
        let mut process = self.process.take().expect("the node runs");
        within(STOP_MAX, "a node's end", || process.try_wait().unwrap())
    }

    pub(super) fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// Its exit status, if it has ended by itself.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.process.as_mut().and_then(|process| process.try_wait().unwrap())
    }

    pub(super) fn assert_running(&mut self) {
        let ended = self.ended();
        assert!(ended.is_none(), "node {} ended by itself with {ended:?}\n{}", self.id, self.tail());
    }

    pub(super) fn log(&self) -> String {
        String::from_utf8_lossy(&self.log_bytes()).into_owned()
    }

    fn log_bytes(&self) -> Vec<u8> {
        fs::read(self.dir.join("node.log")).unwrap_or_default()
    }

    /// The output of the last process that was started.
    pub(super) fn log_of_last_start(&self) -> String {
        let bytes = self.log_bytes();
        String::from_utf8_lossy(bytes.get(self.log_bytes_before..).unwrap_or_default()).into_owned()
    }

    pub(super) fn tail(&self) -> String {
        let log = self.log();
        let is_of_a_stack = |line: &&str| line.starts_with("\tat ");
        let lines: Vec<_> = log.lines().filter(|line| !is_of_a_stack(line)).collect();
        let tail = &lines[lines.len().saturating_sub(TAIL_LINES)..];
        let short = |line: &&str| line.chars().take(LINE_CHARS).collect::<String>();
        let tail = tail.iter().map(short).collect::<Vec<_>>().join("\n");
        format!("-- node {}\n{tail}", self.id)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns true if every thread of a process is stopped. Threads that end meanwhile are left out.
fn has_stopped(process: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok()).all(|stat| {
        // The state follows the name, which may have any characters.
        stat.rsplit_once(')').is_some_and(|(_, fields)| fields.trim_start().starts_with('T'))
    })
}
