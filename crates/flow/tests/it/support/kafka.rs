//! Apache Kafka 4.3.0 in a JVM beside the tests: its broker, and its own consumer. It needs a JDK and Kafka's jars, which `cargo xtask
//! test` puts into `target/interop`; `MAINSTEM_KAFKA_JARS` names another folder with them. Without them a test is skipped, with a line that
//! says so; under `CI=true` it fails.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use mainstem_testkit::java::KafkaJars;

use super::{Directory, SETTINGS, free_address};

const START_LIMIT: Duration = Duration::from_secs(120);

/// The JVM. It ends with this.
pub(crate) struct Kafka {
    process: Child,
    commands: ChildStdin,
    lines: mpsc::Receiver<Vec<String>>,
    jars: KafkaJars,
    directory: Directory,
    pub(crate) address: String,
}

impl Kafka {
    /// Starts the JVM. If it cannot run, this returns none, and a line says so.
    fn jvm(test: &str) -> Option<Kafka> {
        let jars = KafkaJars::or_skip(KafkaJars::NEWEST, test)?;
        let directory = Directory::new("flow-kafka");
        let (process, commands, lines) = spawn(&jars, &directory);
        Some(Kafka { process, commands, lines, jars, directory, address: String::new() })
    }

    /// Starts a broker and waits until it answers.
    pub(crate) fn broker(test: &str) -> Option<Kafka> {
        let mut kafka = Kafka::jvm(test)?;
        let (address, controller) = (free_address(), free_address());
        let settings: String = SETTINGS.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
        let data = kafka.directory.path().join("data");
        let properties = format!(
            "process.roles=broker,controller\nnode.id=1\ncontroller.listener.names=CONTROLLER\n\
             controller.quorum.bootstrap.servers={controller}\ngroup.coordinator.rebalance.protocols=classic,consumer\n\
             listeners=PLAINTEXT://{address},CONTROLLER://{controller}\nadvertised.listeners=PLAINTEXT://{address}\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\nlog.dirs={}\n\
             offsets.topic.replication.factor=1\ngroup.consumer.min.session.timeout.ms=500\n\
             group.consumer.session.timeout.ms=1000\n{settings}",
            data.display()
        );
        std::fs::write(kafka.properties(), properties).unwrap();
        kafka.address = address;
        kafka.start_broker();
        Some(kafka)
    }

    fn properties(&self) -> PathBuf {
        self.directory.path().join("server.properties")
    }

    fn start_broker(&mut self) {
        let file = self.properties();
        self.tell(&["broker", file.to_str().unwrap()]);
        let deadline = Instant::now() + START_LIMIT;
        while TcpStream::connect(&self.address).is_err() {
            assert!(Instant::now() < deadline, "Kafka's broker does not start:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills the broker, and starts it on its files.
    pub(crate) fn kill_and_start(&mut self) {
        self.kill();
        (self.process, self.commands, self.lines) = spawn(&self.jars, &self.directory);
        self.start_broker();
    }

    fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn tell(&mut self, words: &[&str]) {
        writeln!(self.commands, "{}", words.join("\t")).and_then(|()| self.commands.flush()).unwrap();
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("stderr.log")).unwrap_or_default()
    }

    /// Returns what Java's consumer reads of the first record of a topic: value, key, and headers as NAME=VALUE.
    pub(crate) fn java_reads(test: &str, address: &str, topic: &str) -> Option<Vec<String>> {
        let mut kafka = Kafka::jvm(test)?;
        kafka.tell(&["member", "reader", address, "java-reads", "classic", topic]);
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let words = kafka
                .lines
                .recv_timeout(left)
                .unwrap_or_else(|_| panic!("Java reads nothing:\n{}", kafka.log()));
            if words[0] == "read" {
                return Some(words[2..].to_vec());
            }
        }
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts the JVM. Returns it, its input, and the lines of its output, split at tabs.
fn spawn(jars: &KafkaJars, directory: &Directory) -> (Child, ChildStdin, mpsc::Receiver<Vec<String>>) {
    let peer = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join("tests/native-client/KafkaPeer.java");
    let mut process = jars
        .program(&peer, 512)
        .arg(directory.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(directory.path().join("stderr.log")).unwrap())
        .spawn()
        .unwrap();
    let (commands, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // A test that has ended does not listen any more.
            let _ = sender.send(line.split('\t').map(str::to_owned).collect());
        }
    });
    (process, commands, lines)
}
