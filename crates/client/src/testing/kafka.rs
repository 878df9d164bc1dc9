//! Apache Kafka in a JVM beside the tests: its broker, and its own client as a member of groups and as a producer.
//!
//! Needs a JDK and Kafka's jars, which `cargo xtask test` puts into `target/interop/kafka-VERSION/lib`;
//! `MAINSTEM_KAFKA_JARS` names another folder with those of the newest release. Without them a test says that it is
//! skipped; under `CI=true` it fails.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mainstem_testkit::java::KafkaJars;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::releases::{NEWEST, Release, skipped};
use super::secured::SecuredListeners;
use super::{SETTINGS, World};
use crate::{Admin, ClientConfig, Compression};

/// The number of tests that may reach the broker through a proxy.
const PROXIED: usize = 4;
const START_LIMIT: Duration = Duration::from_secs(120);

/// The JVM. It ends with its input, which this process holds, however this process ends.
pub(crate) struct KafkaPeer {
    pub(crate) release: &'static Release,
    process: Mutex<Child>,
    commands: Mutex<ChildStdin>,
    members: Arc<Mutex<HashMap<String, mpsc::UnboundedSender<Vec<String>>>>>,
    directory: PathBuf,
    broker: OnceLock<KafkaBroker>,
    proxied: Mutex<Vec<(TcpListener, String)>>,
}

struct KafkaBroker {
    address: String,
    /// Listeners with TLS and SASL, of a release that is tested with them.
    secured: Option<Arc<SecuredListeners>>,
}

impl KafkaPeer {
    /// The JVM with a release, if one can run. `test`: the name of the test that needs it.
    fn get(release: &'static Release, test: &str) -> Option<&'static KafkaPeer> {
        match release.peer() {
            Ok(peer) => Some(peer),
            Err(why) => {
                assert!(std::env::var("CI").as_deref() != Ok("true"), "{test} cannot run: {why}");
                skipped(test, why);
                None
            }
        }
    }

    /// The same with a broker that answers.
    pub(crate) fn broker(release: &'static Release, test: &str) -> Option<&'static KafkaPeer> {
        let peer = KafkaPeer::get(release, test)?;
        peer.broker.get_or_init(|| peer.start_broker());
        Some(peer)
    }

    /// The address at which clients find its broker.
    pub(crate) fn address(&self) -> &str {
        &self.broker.get().expect("it was started").address
    }

    /// Its listeners with TLS and SASL.
    pub(crate) fn secured(&self) -> &Arc<SecuredListeners> {
        let broker = self.broker.get().expect("it was started");
        broker.secured.as_ref().expect("the newest release has them")
    }

    /// A socket at an address that the broker advertises, and the address to pass on to.
    pub(crate) fn take_proxied(&self) -> (TcpListener, String) {
        self.proxied.lock().pop().expect("PROXIED is the number of tests that want one")
    }

    /// Starts the JVM; the error is the reason if it cannot run.
    pub(super) fn start(release: &'static Release) -> Result<KafkaPeer, String> {
        let jars = KafkaJars::find(release.version)?;
        let (classes, main) = jars.compiled(&workspace().join("tests/native-client/KafkaPeer.java"));
        let name = format!("mainstem-client-kafka-{}-{}", release.version, std::process::id());
        let directory = std::env::temp_dir().join(name);
        // Files that a killed process with the same id has left are not in use.
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let log = std::fs::File::create(directory.join("stderr.log")).unwrap();
        let mut child = jars
            .java_with(512, &[&classes])
            .arg(&main)
            .arg(&directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(|error| format!("no JDK: java: {error}"))?;
        let members = Arc::<Mutex<HashMap<_, _>>>::default();
        let (commands, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let shared = members.clone();
        std::thread::spawn(move || pass_on(output, &shared));
        Ok(KafkaPeer {
            release,
            process: Mutex::new(child),
            commands: Mutex::new(commands),
            members,
            directory,
            broker: OnceLock::new(),
            proxied: Mutex::default(),
        })
    }

    fn tell(&self, words: &[&str]) {
        let mut commands = self.commands.lock();
        let sent = writeln!(commands, "{}", words.join("\t")).and_then(|()| commands.flush());
        sent.unwrap_or_else(|error| panic!("the JVM is gone ({error}):\n{}", self.log()));
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("stderr.log")).unwrap_or_default()
    }

    fn start_broker(&self) -> KafkaBroker {
        let port = mainstem_testkit::port();
        let properties = self.directory.join("server.properties");
        let is_newest = std::ptr::eq(self.release, &NEWEST);
        let secured = is_newest.then(|| Arc::new(SecuredListeners::new(&self.directory)));
        std::fs::write(&properties, self.properties(port, secured.as_deref())).unwrap();
        self.tell(&["broker", properties.to_str().unwrap()]);
        let address = format!("127.0.0.1:{port}");
        let deadline = Instant::now() + START_LIMIT;
        while !has_nodes(&address) {
            let is_gone = self.process.lock().try_wait().is_ok_and(|status| status.is_some());
            let is_late = Instant::now() > deadline;
            assert!(!is_gone && !is_late, "Kafka's broker does not start:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        if let Some(secured) = &secured {
            secured.create_user(&address);
        }
        KafkaBroker { address, secured }
    }

    fn properties(&self, port: u16, secured: Option<&SecuredListeners>) -> String {
        let mut listeners = format!("PLAINTEXT://127.0.0.1:{port}");
        let mut advertised = listeners.clone();
        let mut protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned();
        let controller = mainstem_testkit::port();
        for number in 0..PROXIED {
            let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
            let to = format!("127.0.0.1:{}", mainstem_testkit::port());
            listeners += &format!(",PROXIED{number}://{to}");
            advertised += &format!(",PROXIED{number}://{}", proxy.local_addr().unwrap());
            protocols += &format!(",PROXIED{number}:PLAINTEXT");
            self.proxied.lock().push((proxy, to));
        }
        let mut of_secured = String::new();
        if let Some(secured) = secured {
            listeners += &secured.listeners();
            advertised += &secured.advertised();
            protocols += &SecuredListeners::protocols();
            of_secured = secured.settings().iter().map(|(key, value)| format!("{key}={value}\n")).collect();
        }
        let data = self.directory.join("data");
        let settings: String = SETTINGS.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
        listeners += &format!(",CONTROLLER://127.0.0.1:{controller}");
        format!(
            "process.roles=broker,controller\n\
             node.id=1\n\
             controller.listener.names=CONTROLLER\n\
             controller.quorum.bootstrap.servers=127.0.0.1:{controller}\n\
             group.coordinator.rebalance.protocols=classic,consumer\n\
             listeners={listeners}\n\
             advertised.listeners={advertised}\n\
             listener.security.protocol.map={protocols}\n\
             inter.broker.listener.name=PLAINTEXT\n\
             log.dirs={}\n\
             offsets.topic.replication.factor=1\n\
             transaction.state.log.replication.factor=1\n\
             transaction.state.log.min.isr=1\n\
             transaction.state.log.num.partitions=1\n\
             log.initial.task.delay.ms=100\n\
             {settings}\
             {of_secured}",
            data.display()
        )
    }
}

/// A member of a group by Kafka's own consumer, which commits its position when a partition is revoked.
pub(crate) struct JavaMember {
    peer: &'static KafkaPeer,
    name: String,
    reports: mpsc::UnboundedReceiver<Vec<String>>,
    /// The number of its partitions.
    pub(crate) assigned: usize,
    /// Records that it has read and no test has taken yet.
    read: Vec<Vec<String>>,
    is_closed: bool,
}

impl JavaMember {
    /// Lets a member join the group of `world`, to read its topic; none if no JVM can run. `protocol`: classic or consumer.
    pub(crate) fn join(world: &World, protocol: &str) -> Option<JavaMember> {
        let peer = KafkaPeer::get(world.kafka_release().unwrap_or(&NEWEST), "a member of Java's client")?;
        let name = format!("java-{}", world.group);
        let (sender, reports) = mpsc::unbounded_channel();
        peer.members.lock().insert(name.clone(), sender);
        peer.tell(&["member", &name, world.address(), &world.group, protocol, &world.topic]);
        Some(JavaMember { peer, name, reports, assigned: 0, read: Vec::new(), is_closed: false })
    }

    /// Takes its reports. Returns the records that it has read: value and key of each, and its headers as NAME=VALUE.
    pub(crate) fn take_read(&mut self) -> Vec<Vec<String>> {
        while let Ok(words) = self.reports.try_recv() {
            match (words[0].as_str(), words.get(2)) {
                ("read", Some(_)) => self.read.push(words[2..].to_vec()),
                ("assigned", Some(count)) => self.assigned = count.parse().unwrap(),
                ("closed", _) => self.is_closed = true,
                _ => panic!("the JVM says {words:?}"),
            }
        }
        std::mem::take(&mut self.read)
    }

    /// Tells it to commit and leave.
    pub(crate) fn close(&self) {
        self.peer.tell(&["close", &self.name]);
    }

    /// Returns true if it has left.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }
}

/// Lets Java's producer write a record of each key to the topic of `world`, as `value of KEY` with the codec's name in a
/// header, if the broker takes the key. Returns false if no JVM can run.
pub(crate) async fn java_writes(world: &World, codec: Compression, keys: &[String]) -> bool {
    let release = world.kafka_release().unwrap_or(&NEWEST);
    let Some(peer) = KafkaPeer::get(release, "records of Java's client") else { return false };
    let name = format!("writer-{}-{}", world.topic, codec.name());
    let (sender, mut reports) = mpsc::unbounded_channel();
    peer.members.lock().insert(name.clone(), sender);
    let mut words = vec!["write", &name, world.address(), &world.topic, codec.name()];
    words.extend(keys.iter().map(String::as_str));
    peer.tell(&words);
    let report = tokio::time::timeout(START_LIMIT, reports.recv()).await.expect("Java's producer writes");
    assert_eq!(report.expect("the JVM runs")[0], "written");
    true
}

/// Passes the reports of the JVM on to its members.
fn pass_on(output: ChildStdout, members: &Mutex<HashMap<String, mpsc::UnboundedSender<Vec<String>>>>) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        let words: Vec<String> = line.split('\t').map(str::to_owned).collect();
        if let Some(member) = words.get(1).and_then(|name| members.lock().get(name).cloned()) {
            // A test that has ended does not listen any more.
            let _ = member.send(words);
        }
    }
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns true if a broker answers there, and knows of a cluster.
fn has_nodes(address: &str) -> bool {
    let client =
        ClientConfig { operation_timeout: Duration::from_secs(1), ..ClientConfig::new(address).unwrap() };
    // A runtime of its own: the test's one waits for this.
    let ask = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { Admin::new(client).nodes().await })
    };
    let nodes = std::thread::scope(|scope| scope.spawn(ask).join().unwrap());
    nodes.is_ok_and(|nodes| !nodes.is_empty())
}
