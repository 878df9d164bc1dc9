//! Three nodes, each with its directory, journal, links and one replica.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mainstem_config::ThrottledReplicas;
use mainstem_links::testing::{accept_for, gate};
use mainstem_links::ticker::Ticker;
use mainstem_links::{
    AbsenceLimits, CATCH_UP_RATE, Group as _, LinkIdentity, Links, LinksOptions, Peer, Rates, SilenceLimits,
};
use mainstem_log::dir::{LogDir, NodeIdentity};
use mainstem_log::storage::RealStorage;
use mainstem_log::{Log, LogConfig, PartitionIdentity};
use mainstem_records::{Batch, LeaderEpoch, Scratch};
use mainstem_replication::journal::{Journal, Start};
use mainstem_replication::{
    Configuration, GroupId, Replica, ReplicaId, ReplicaOptions, Role, RoleState, found,
};
use mainstem_wire::ErrorCode;
use parking_lot::Mutex;

use super::{SOON, wait_for};
use crate::partition::{NoLog, Partition, ReplicaEvents};
use crate::settings::TopicSettings;
use crate::testing::{Fate, append, waiter};
use mainstem_runtime::clock::Clock;

pub(super) const GROUP: GroupId = GroupId { topic_id: [7; 16], partition: 0 };

/// Carries what one node says to another, until it is cut.
struct Wire {
    port: u16,
    is_cut: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Wire {
    fn to(target: u16) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let wire = Wire { port, is_cut: Arc::default(), stop: Arc::default(), streams: Arc::default() };
        let (is_cut, stop, streams) = (wire.is_cut.clone(), wire.stop.clone(), wire.streams.clone());
        listener.set_nonblocking(true).expect("a socket of ours");
        std::thread::spawn(move || {
            while !stop.load(Ordering::Acquire) {
                let Ok((near, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                };
                let Ok(far) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                near.set_nonblocking(false).expect("a socket of ours");
                let mut streams = streams.lock();
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let clone = |stream: &TcpStream| stream.try_clone().expect("descriptors");
                    streams.push(clone(from));
                    copy(clone(from), clone(to));
                }
                drop(streams);
                if is_cut.load(Ordering::Acquire) {
                    [near, far].iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
                }
            }
        });
        wire
    }

    fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Release);
        for stream in self.streams.lock().drain(..) {
            // It may be gone already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.cut(true);
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        // Both sockets are shut down, whichever of them has ended.
        let _ = std::io::copy(&mut from, &mut to);
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    });
}

/// Counts changes of roles.
#[derive(Default)]
struct Roles(Mutex<Vec<Role>>);

impl ReplicaEvents for Roles {
    fn role_changed(&self, _: &Arc<Partition>, role: Role) {
        self.0.lock().push(role);
    }
}

struct Running {
    dir: Arc<LogDir>,
    partition: Arc<Partition>,
    links: Arc<Links>,
    ticker: Ticker,
    roles: Arc<Roles>,
}

struct Node {
    home: tempfile::TempDir,
    port: u16,
    running: Option<Running>,
    slot: Arc<Mutex<Option<Arc<Links>>>>,
    stop: Arc<AtomicBool>,
}

/// Three nodes; they are numbered from 0, and have the ids 1 to 3.
pub(super) struct Cluster {
    nodes: Vec<Node>,
    /// By who speaks and who listens; none: they speak without wires.
    wires: BTreeMap<(usize, usize), Wire>,
    clock: Clock,
    seed: u64,
    write_caching: bool,
    /// Has the topic `cleanup.policy=compact`.
    compacts: bool,
    replica_lag_max_ms: u64,
    catch_up_rate: u64,
    /// `leader.replication.throttled.rate`, for all replicas.
    leader_rate: Option<u64>,
    generation: u64,
    acknowledged: BTreeMap<i64, u64>,
}

impl Cluster {
    /// Nodes that reach each other without anything between.
    pub(super) fn start(seed: u64) -> Cluster {
        let mut cluster = Self::prepare(seed, false);
        (0..3).for_each(|node| cluster.restart(node));
        cluster
    }

    /// Nodes that count as out of sync after so long, and catch up at so many bytes a second.
    pub(super) fn that_catch_up(
        seed: u64,
        replica_lag_max_ms: u64,
        (catch_up_rate, leader_rate): (u64, Option<u64>),
    ) -> Cluster {
        let mut cluster = Self::prepare(seed, false);
        (cluster.replica_lag_max_ms, cluster.catch_up_rate) = (replica_lag_max_ms, catch_up_rate);
        cluster.leader_rate = leader_rate;
        (0..3).for_each(|node| cluster.restart(node));
        cluster
    }

    /// Nodes whose topic is compacted.
    pub(super) fn that_compacts(seed: u64) -> Cluster {
        let mut cluster = Self::prepare(seed, false);
        cluster.compacts = true;
        (0..3).for_each(|node| cluster.restart(node));
        cluster
    }

    /// Nodes that can be cut off.
    pub(super) fn with_wires(seed: u64, write_caching: bool) -> Cluster {
        let mut cluster = Self::prepare(seed, write_caching);
        let pairs = (0..3).flat_map(|from| (0..3).map(move |to| (from, to))).filter(|(from, to)| from != to);
        cluster.wires = pairs.map(|(from, to)| ((from, to), Wire::to(cluster.nodes[to].port))).collect();
        (0..3).for_each(|node| cluster.restart(node));
        cluster
    }

    fn prepare(seed: u64, write_caching: bool) -> Cluster {
        let nodes = (0..3).map(|_| Node {
            home: tempfile::tempdir().expect("a directory"),
            port: mainstem_testkit::port(),
            running: None,
            slot: Arc::default(),
            stop: Arc::default(),
        });
        Cluster {
            nodes: nodes.collect(),
            wires: BTreeMap::new(),
            clock: Clock::start(),
            seed,
            write_caching,
            compacts: false,
            replica_lag_max_ms: 30_000,
            catch_up_rate: CATCH_UP_RATE,
            leader_rate: None,
            generation: 0,
            acknowledged: BTreeMap::new(),
        }
    }

    fn listen(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        let listener = wait_for("the port", || TcpListener::bind(("127.0.0.1", node.port)).ok());
        node.stop = Arc::default();
        accept_for(listener, node.stop.clone(), node.slot.clone());
    }

    fn new_links(&mut self, node: usize) -> Arc<Links> {
        self.generation += 1;
        let peer = |(to, other): (usize, &Node)| Peer {
            node: to as i32 + 1,
            host: "127.0.0.1".into(),
            port: self.wires.get(&(node, to)).map_or(other.port, |wire| wire.port),
        };
        let peers = self.nodes.iter().enumerate().map(peer).collect();
        let identity =
            LinkIdentity { node: node as i32 + 1, generation: self.generation, cluster_id: "cluster".into() };
        let Cluster { replica_lag_max_ms, catch_up_rate, .. } = *self;
        let options = LinksOptions {
            clock: self.clock.clone(),
            replica_lag_max_ms,
            catch_up_rate,
            absence: AbsenceLimits::default(),
            silence: SilenceLimits::default(),
            awaited: Arc::default(),
        };
        let links = Links::start(identity, peers, options, gate()).expect("threads can be made");
        links.set_rates(Rates { leader: self.leader_rate, ..Rates::default() });
        links
    }

    pub(super) fn restart(&mut self, at: usize) {
        self.listen(at);
        let links = self.new_links(at);
        let node = &mut self.nodes[at];
        let id = at as i32 + 1;
        let identity = NodeIdentity { cluster_id: Some("cluster".into()), node_id: id };
        let dir = LogDir::open(Arc::new(RealStorage), node.home.path(), &identity, "boot");
        let dir = dir.expect("the directory opens");
        let (mut journal, _) = Journal::open(dir.storage().clone(), dir.path()).expect("a journal");
        if journal.group(GROUP).is_none() {
            let voters: Vec<_> = (1..4).map(|node| ReplicaId::new(node, 1)).collect();
            let configuration = Configuration::of_voters(&voters);
            found(&mut journal, GROUP, ReplicaId::new(id, 1), &configuration, Start::default())
                .expect("a founding");
        }
        let identity = PartitionIdentity { topic: "t".into(), topic_id: GROUP.topic_id, partition: 0 };
        let config = LogConfig {
            segment_bytes: 4_000,
            retention_ms: None,
            compact: self.compacts,
            ..LogConfig::default()
        };
        let config = Arc::new(config);
        let (log, _) = Log::open(&dir, &identity, config.clone(), self.clock.mono_ms()).expect("a log");
        dir.recovered().expect("the recovery is noted");
        let high_watermark = dir.checkpoints().replication.get(&identity.topic_partition()).unwrap_or(0);
        self.seed += 1;
        let options = ReplicaOptions {
            write_caching: self.write_caching,
            seed: self.seed,
            high_watermark,
            broadcast_commit: false,
        };
        let journal = Arc::new(Mutex::new(journal));
        let now_ms = self.clock.mono_ms();
        let replica = Replica::open(log, GROUP, journal, options, now_ms).expect("the replica opens");
        let mut settings = TopicSettings::of_log(config, self.write_caching, 2);
        if self.leader_rate.is_some() {
            settings.leader_throttled = ThrottledReplicas::All;
        }
        let roles = Arc::new(Roles::default());
        let partition = Partition::replicated(
            "t".into(),
            0,
            dir.clone(),
            Arc::new(settings),
            replica,
            roles.clone(),
            links.clone(),
        );
        partition.join_group();
        *node.slot.lock() = Some(links.clone());
        let ticker = Ticker::start(links.clone()).expect("a thread");
        node.running = Some(Running { dir, partition, links, ticker, roles });
    }

    /// Ends a node as a kill does: nothing is written that was not yet.
    pub(super) fn kill(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.stop.store(true, Ordering::Release);
        node.slot.lock().take();
        let Some(Running { dir, partition, links, ticker, roles }) = node.running.take() else { return };
        links.stop();
        ticker.stop();
        let terms: Vec<_> = roles.0.lock().iter().map(|role| role.term).collect();
        assert!(terms.is_sorted(), "roles in another order than they were taken: {terms:?}");
        drop(partition.take_log(NoLog::Gone));
        dir.unlock();
    }

    /// No link goes to it or from it; it does not know why.
    pub(super) fn cut_off(&mut self, at: usize) {
        self.cut(at, true);
    }

    /// After [`Cluster::cut_off`].
    pub(super) fn join(&mut self, at: usize) {
        self.cut(at, false);
    }

    fn cut(&mut self, at: usize, is_cut: bool) {
        let of_it = self.wires.iter().filter(|((from, to), _)| *from == at || *to == at);
        of_it.for_each(|(_, wire)| wire.cut(is_cut));
    }

    /// Takes over what others have appended, and was acknowledged: offsets and values.
    pub(super) fn add_acknowledged(&mut self, acknowledged: Vec<(i64, u64)>) {
        for (offset, value) in acknowledged {
            assert_eq!(self.acknowledged.insert(offset, value), None, "two at one offset");
        }
    }

    /// The terms in which a node has led since it runs.
    pub(super) fn has_led(&self, node: usize) -> BTreeSet<u64> {
        let running = self.nodes[node].running.as_ref().expect("it runs");
        let roles = running.roles.0.lock();
        roles.iter().filter(|role| role.state == RoleState::Leader).map(|role| role.term).collect()
    }

    /// Port at which a node takes links.
    pub(super) fn port(&self, node: usize) -> u16 {
        self.nodes[node].port
    }

    /// Number of links that a node has refused or ended because of their content.
    pub(super) fn refused(&self, node: usize) -> u64 {
        self.nodes[node].running.as_ref().expect("it runs").links.counts().1
    }

    pub(super) fn links(&self, node: usize) -> &Arc<Links> {
        &self.nodes[node].running.as_ref().expect("it runs").links
    }

    pub(super) fn partition(&self, node: usize) -> &Arc<Partition> {
        &self.nodes[node].running.as_ref().expect("it runs").partition
    }

    /// The node that leads, among those that run.
    #[track_caller]
    pub(super) fn leader(&self) -> usize {
        wait_for("a leader", || self.leader_of_others(usize::MAX))
    }

    /// As [`Cluster::leader`], not this one.
    pub(super) fn leader_of_others(&self, not: usize) -> Option<usize> {
        let leads = |node: &usize| {
            let running = self.nodes[*node].running.as_ref();
            running.is_some_and(|running| running.partition.leadership().is_settled)
        };
        let leaders = (0..3).filter(|node| *node != not).filter(leads);
        // One that was cut off does not know yet that it is no leader.
        leaders.max_by_key(|node| self.partition(*node).leadership().epoch)
    }

    /// Appends a value, and returns where it is seen what becomes of it.
    pub(super) fn begin(&mut self, node: usize, value: u64) -> Fate {
        self.begin_bytes(node, &value.to_be_bytes())
    }

    /// The same with any value.
    pub(super) fn begin_bytes(&mut self, node: usize, value: &[u8]) -> Fate {
        let (wait, fate) = waiter();
        match self.append(node, value) {
            Ok((offset, epoch)) => self.partition(node).when_committed(offset + 1, epoch, wait),
            Err(error) => wait.done(Err(error)),
        }
        fate
    }

    fn append(&mut self, node: usize, value: &[u8]) -> Result<(i64, LeaderEpoch), ErrorCode> {
        append(self.partition(node), &self.clock, value)
    }

    /// Appends a value and waits for it.
    pub(super) fn produce(&mut self, node: usize, value: u64) -> Result<(), ErrorCode> {
        let (offset, epoch) = self.append(node, &value.to_be_bytes())?;
        let (wait, fate) = waiter();
        self.partition(node).when_committed(offset + 1, epoch, wait);
        let result = fate.recv_timeout(SOON).expect("an answer in time");
        if result.is_ok() {
            assert_eq!(self.acknowledged.insert(offset, value), None, "two at one offset");
        }
        result
    }

    /// Appends a value until it is acknowledged.
    #[track_caller]
    pub(super) fn acknowledge(&mut self, node: usize, value: u64) {
        let deadline = Instant::now() + SOON;
        let mut leader = node;
        while let Err(error) = self.produce(leader, value) {
            assert_eq!(error, ErrorCode::NOT_LEADER_OR_FOLLOWER);
            assert!(Instant::now() < deadline, "no acknowledgement");
            leader = self.leader();
        }
    }

    #[track_caller]
    pub(super) fn acknowledge_anywhere(&mut self, value: u64) {
        let leader = self.leader();
        self.acknowledge(leader, value);
    }

    /// All replicas have what was acknowledged, `count` records, and nothing else.
    #[track_caller]
    pub(super) fn check(&mut self, count: usize) {
        self.check_acknowledged();
        assert_eq!(self.acknowledged.len(), count);
        let all: Vec<_> = self.acknowledged.iter().map(|(offset, value)| (*offset, *value)).collect();
        assert_eq!(self.records(0), all);
    }

    /// All replicas have what was acknowledged, where it was, and the same log.
    #[track_caller]
    pub(super) fn check_acknowledged(&mut self) {
        let ends = |cluster: &Cluster| -> Vec<_> {
            (0..3)
                .map(|node| cluster.partition(node).ends().map(|ends| (ends.high_watermark, ends.log_end)))
                .collect()
        };
        wait_for("replicas agree", || {
            let ends = ends(self);
            let first = ends[0].expect("it runs");
            (first.0 == first.1 && ends.iter().all(|other| *other == Ok(first))).then_some(())
        });
        let logs: Vec<_> = (0..3).map(|node| self.records(node)).collect();
        assert!(logs.iter().all(|log| *log == logs[0]), "{logs:?}");
        let found: BTreeMap<_, _> = logs[0].iter().copied().collect();
        for (offset, value) in &self.acknowledged {
            assert_eq!(found.get(offset), Some(value), "at {offset}");
        }
    }

    pub(super) fn records(&self, node: usize) -> Vec<(i64, u64)> {
        let partition = self.partition(node);
        let ends = partition.ends().expect("it runs");
        records(partition, ends.log_start..ends.log_end)
    }
}

/// Records of a replica in a range of offsets.
pub(super) fn records(partition: &Partition, offsets: Range<i64>) -> Vec<(i64, u64)> {
    let mut bytes = Vec::new();
    partition.read_batches(&offsets, &mut bytes).expect("all is there");
    let (mut rest, mut records) = (&bytes[..], Vec::new());
    while let Ok((batch, behind)) = Batch::split_first(rest) {
        let mut buffer = Vec::new();
        for record in batch.records(&mut buffer, 1 << 20, &mut Scratch::new()).expect("records") {
            let record = record.expect("a record");
            let value = record.value.and_then(|value| value.try_into().ok()).expect("a value of ours");
            records.push((record.offset, u64::from_be_bytes(value)));
        }
        rest = behind;
    }
    records
}

impl Drop for Cluster {
    fn drop(&mut self) {
        (0..3).for_each(|node| self.kill(node));
    }
}
