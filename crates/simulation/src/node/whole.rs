//! A whole node of a broker, with its metadata and links. The seed decides in which order its threads run.

use super::running::{CLUSTER, LAG_MAX_MS, Running, links};
use mainstem_config::{BrokerConfig, Properties, Sources, Voter};
use mainstem_controller::FirstController;
use mainstem_controller::features::MAINSTEM_VERSION;
use mainstem_log::sim::SimStorage;
use mainstem_node::answers::Answers;
use mainstem_node::assembly::{NodeParts, NodePeers};
use mainstem_node::controller::ControllerError;
use mainstem_node::node::Node;
use mainstem_replication::ReplicaId;
use mainstem_replication::journal::JournalFormat;
use mainstem_runtime::clock::Clock;
use mainstem_runtime::schedule::{Group, Handle, Schedule};
use mainstem_runtime::sync;
use mainstem_store::cleaner::Cleaners;
use mainstem_store::log_dirs::{LogDirs, LogDirsOptions};
use mainstem_store::machine::Machine;
use mainstem_store::partition::Partition;
use mainstem_store::upkeep::Upkeep;
use mainstem_wire::Uuid;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Open files that a node may have.
const DESCRIPTORS: u64 = 10_000;
/// Interval between two rounds of upkeep.
const UPKEEP_EVERY: Duration = Duration::from_millis(500);
/// `broker.heartbeat.interval.ms`.
const HEARTBEAT_MS: u64 = 300;
/// `broker.session.timeout.ms`.
pub(crate) const SESSION_MS: u64 = 1_500;
/// Bytes of metadata after which a snapshot is due.
const SNAPSHOT_BYTES: u64 = 3_000;

/// Session timeout of a member of a group, in ms.
pub(crate) const SESSION_TIMEOUT_MS: i32 = 1_500;
/// `heartbeat.interval.ms` of members.
pub(crate) const HEARTBEAT_INTERVAL_MS: i32 = 200;
/// Settings of the coordinators: their topics, the time that an empty classic group waits for more members, and the interval of the
/// check for transactions that have timed out.
const COORDINATORS: &str = "offsets.topic.num.partitions=1\n\
    transaction.state.log.num.partitions=1\nlog.cleaner.backoff.ms=500\n\
    group.initial.rebalance.delay.ms=100\ngroup.consumer.assignment.interval.ms=0\n\
    transaction.abort.timed.out.transaction.cleanup.interval.ms=500\n";

/// The release that a node runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Release {
    /// The highest level of `mainstem.version` at which it can work.
    pub(crate) mainstem_version: i16,
    /// The level at which the cluster has begun.
    pub(crate) first_mainstem_version: i16,
}

impl Release {
    /// This release, in a cluster that began with it.
    pub(crate) const NEW: Release =
        Release { mainstem_version: MAINSTEM_VERSION.max, first_mainstem_version: MAINSTEM_VERSION.max };
    /// The release before.
    pub(crate) const OLD: Release =
        Release { mainstem_version: MAINSTEM_VERSION.min, first_mainstem_version: MAINSTEM_VERSION.min };

    /// This release, in a cluster that began with the one before.
    pub(crate) const UPGRADED: Release =
        Release { mainstem_version: MAINSTEM_VERSION.max, first_mainstem_version: MAINSTEM_VERSION.min };
}

/// Parameters of a whole node's start.
pub(super) struct Starting<'a> {
    pub(super) id: ReplicaId,
    pub(super) voters: &'a [ReplicaId],
    pub(super) storage: &'a SimStorage,
    pub(super) boot_id: String,
    pub(super) clock: &'a Clock,
    pub(super) min_insync: usize,
    pub(super) write_caching: bool,
    /// Number of this start.
    pub(super) start: u64,
    /// Directory ids of the metadata logs, by node.
    pub(super) directories: &'a BTreeMap<i32, Uuid>,
    pub(super) release: Release,
    pub(super) schedule: &'a Schedule,
    pub(super) seed: u64,
}

/// A node that runs, with its threads.
pub(super) struct Whole {
    pub(super) node: Arc<Node>,
    pub(super) group: Group,
    has_started: Arc<AtomicBool>,
    /// The reason why it has not started.
    failure: Arc<Mutex<Option<String>>>,
    /// The thread that has started it, and does its upkeep.
    upkeep: Option<Handle<()>>,
    /// The thread that stops it in order.
    stopping: Option<Handle<()>>,
}

impl Starting<'_> {
    fn config(&self) -> BrokerConfig {
        let own = self.id.node();
        let voter = |id: &ReplicaId| format!("{}@127.0.0.1:{}", id.node(), 20_000 + id.node());
        let voters = self.voters.iter().map(voter).collect::<Vec<_>>().join(",");
        let lines = format!(
            "node.id={own}\nprocess.roles=broker,controller\ncontroller.quorum.voters={voters}\n\
             listeners=PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}\n\
             controller.listener.names=CONTROLLER\nlog.dirs={dir}\nnum.partitions=1\n\
             default.replication.factor={replicas}\nmin.insync.replicas={min_insync}\n\
             log.index.interval.bytes=300\nlog.retention.ms=-1\n\
             replica.lag.time.max.ms={LAG_MAX_MS}\nbroker.heartbeat.interval.ms={HEARTBEAT_MS}\n\
             broker.session.timeout.ms={SESSION_MS}\n\
             metadata.log.max.record.bytes.between.snapshots={SNAPSHOT_BYTES}\n\
             write.caching.default={caching}\n{COORDINATORS}\
             group.min.session.timeout.ms={SESSION_TIMEOUT_MS}\n\
             group.consumer.min.session.timeout.ms={SESSION_TIMEOUT_MS}\n\
             group.consumer.session.timeout.ms={SESSION_TIMEOUT_MS}\n\
             group.consumer.min.heartbeat.interval.ms={HEARTBEAT_INTERVAL_MS}\n\
             group.consumer.heartbeat.interval.ms={HEARTBEAT_INTERVAL_MS}\n\
             offsets.topic.replication.factor={replicas}\n\
             transaction.state.log.replication.factor={replicas}\n\
             transaction.state.log.min.isr={min_insync}\n",
            caching = self.write_caching,
            client = 10_000 + own,
            controller = 20_000 + own,
            dir = super::DIR,
            replicas = self.voters.len(),
            min_insync = self.min_insync,
        );
        let file = Properties::parse(lines.as_bytes()).expect("lines of properties");
        let sources = Sources { file: Some(&file), ..Sources::default() };
        BrokerConfig::from_sources(sources).expect("a configuration that is valid")
    }

    fn open(&self, config: &BrokerConfig) -> LogDirs {
        let machine = Machine { storage: Arc::new(self.storage.clone()), boot_id: self.boot_id.clone() };
        let options = LogDirsOptions {
            descriptors: DESCRIPTORS,
            mono_ms: self.clock.mono_ms(),
            on_offline: Arc::new(|_| {}),
            recovery: Arc::default(),
            expect_cluster: None,
            machine: Some(machine),
        };
        LogDirs::open(config, &options, Some(CLUSTER)).expect("the directory opens")
    }

    fn group(&self) -> Group {
        self.schedule.group(self.clock, self.seed)
    }

    /// Formats the directory as for a new cluster. Returns the directory id.
    pub(super) fn format(&self) -> Uuid {
        self.group().act(|| Uuid(self.open(&self.config()).metadata().directory_id()))
    }

    /// Starts the node.
    ///
    /// # Errors
    /// The reason for which it does not begin with what is on its disk.
    pub(super) fn run(self) -> Result<Running, ControllerError> {
        let group = self.group();
        group.clone().act(|| self.run_in(group))
    }

    fn run_in(self, group: Group) -> Result<Running, ControllerError> {
        let config = self.config();
        let quorum = config.quorum.clone().expect("it has other nodes");
        let dirs = self.open(&config);
        let dir = dirs.metadata().clone();
        let links = links((self.id, self.start), self.voters, self.clock);
        let first = |voter: &Voter| FirstController {
            node: voter.id,
            host: voter.host.clone(),
            port: voter.port,
            security_protocol: 0,
            directory: self.directories.get(&voter.id).copied().unwrap_or_default(),
        };
        let peers = NodePeers {
            links: links.clone(),
            first: quorum.voters.iter().map(first).collect(),
            known: quorum.voters,
            incarnation: 1,
            joined_at_level: 0,
            mainstem_version: self.release.mainstem_version,
            first_mainstem_version: self.release.first_mainstem_version,
        };
        let advertised = config.listeners.advertised.clone();
        let parts = NodeParts {
            config,
            advertised,
            clock: self.clock.clone(),
            dirs,
            attached: Vec::new(),
            dir_alarm: Arc::default(),
            panics: Arc::default(),
            opening: Arc::default(),
            authorization: None,
            accept_unprotected: false,
            peers: Some(peers),
        };
        let node = Node::assemble(parts)?;
        node.local.groups.hold_writes();
        node.local.transactions.hold_writes();
        links.start_callers().expect("a thread");
        let cluster = node.cluster.as_ref().expect("it has other nodes");
        cluster.start().expect("a thread");
        links.serve_calls(Answers::new(&node, Box::new(|_, _| None)));
        let (has_started, failure) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Option<String>>>::default());
        let (own, started, failed) = (node.clone(), has_started.clone(), failure.clone());
        let upkeep = group.spawn("start-and-upkeep", move || match start(&own, &started) {
            Ok(()) => {}
            Err(why) => *failed.lock() = Some(why),
        });
        let upkeep = Some(upkeep.expect("a thread"));
        let topics = node.local.store.topics.clone();
        let mut running = Running::new(dir, links, topics, self.clock.mono_ms());
        running.whole = Some(Whole { node, group, has_started, failure, upkeep, stopping: None });
        Ok(running)
    }
}

/// Starts a node, and does its upkeep until it stops.
///
/// # Errors
/// The reason why it does not start.
fn start(node: &Node, has_started: &AtomicBool) -> Result<(), String> {
    let (local, store) = (&node.local, &node.local.store);
    match node.start() {
        Ok(_) => {}
        Err(error) if local.stopping.is_stopping() => {
            tracing::debug!(%error, "broken off");
            return Ok(());
        }
        Err(error) => return Err(error.to_string()),
    }
    for dir in store.dirs.all().filter(|dir| dir.failure().is_none()) {
        if let Err(error) = dir.recovered() {
            dir.fail(&error);
        }
    }
    let cleaners = Cleaners::start(store).expect("a thread");
    has_started.store(true, Ordering::Release);
    let mut upkeep = Upkeep::new(store);
    while !local.stopping.is_stopping() {
        sync::sleep(UPKEEP_EVERY);
        upkeep.run(store, node.controller.log());
    }
    cleaners.stop(store);
    store.members.stop();
    store.copies.stop();
    Ok(())
}

/// The formats of the journals of a node.
pub(crate) fn formats_of(node: &Node) -> Vec<JournalFormat> {
    node.local.store.peers.iter().flat_map(|peers| peers.journals.formats()).collect()
}

/// Stops a node in order, as a broker does after its clients have disconnected.
fn stop(node: &Node, upkeep: Option<Handle<()>>) {
    let (local, hurry) = (&node.local, AtomicBool::new(false));
    let cluster = node.cluster.as_ref().expect("it has other nodes");
    cluster.hand_over();
    local.stopping.raise();
    node.unload_coordinators();
    assert!(node.controller.end_publishing(&hurry), "what is published is carried out");
    upkeep.into_iter().for_each(|upkeep| _ = upkeep.join());
    cluster.stop();
    node.controller.end_applying();
    cluster.links.stop();
    local.store.close(node.controller.log(), &hurry, &mut |_, _| {});
    local.store.dirs.all().for_each(|dir| dir.unlock());
}

impl Whole {
    /// All partitions of the node now, with the metadata partition.
    pub(super) fn partitions(&self) -> Vec<Arc<Partition>> {
        let mut partitions = self.node.local.store.partitions();
        partitions.push(self.node.controller.log().clone());
        partitions
    }

    /// Acts like a process that dies: its threads end where they are, and what waits is not done.
    pub(super) fn kill(&self) {
        self.group.kill();
        self.node.cluster.iter().for_each(|cluster| cluster.forget_waiting());
        self.node.local.groups.forget_waiting();
        self.node.local.transactions.forget_waiting();
        self.partitions().iter().for_each(|partition| partition.forget_waits());
    }

    /// Begins to stop it in order. Returns false if it has not finished its start: then there is nothing to wait for.
    pub(super) fn begin_stop(&mut self) -> bool {
        if self.stopping.is_none() && self.has_started.load(Ordering::Acquire) {
            let (node, upkeep) = (self.node.clone(), self.upkeep.take());
            self.stopping = Some(self.group.spawn("stop", move || stop(&node, upkeep)).expect("a thread"));
        }
        self.stopping.is_some()
    }

    /// The reason why its process has ended, if it has.
    pub(super) fn ended(&self) -> Option<String> {
        self.failure.lock().clone().or_else(|| self.group.ended())
    }

    /// Returns true if it is being stopped.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    /// Returns true if it has stopped in order.
    pub(super) fn has_stopped(&self) -> bool {
        self.stopping.as_ref().is_some_and(Handle::is_finished)
    }

    /// Returns true if it has started, and is not being stopped.
    pub(super) fn is_in_service(&self) -> bool {
        self.has_started.load(Ordering::Acquire) && self.stopping.is_none()
    }
}
