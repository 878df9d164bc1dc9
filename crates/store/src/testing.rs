//! A store without partitions, and a leader whose followers are the test's: what they say is taken by hand, so that nothing depends on how
//! long anything takes.

use std::path::Path;
use std::sync::{Arc, mpsc};

use mainstem_config::{BrokerConfig, Sources};
use mainstem_links::testing::gate;
use mainstem_links::{
    AbsenceLimits, CATCH_UP_RATE, Group as _, LinkIdentity, Links, LinksOptions, SilenceLimits,
};
use mainstem_log::dir::{LogDir, NodeIdentity};
use mainstem_log::storage::{RealStorage, Storage};
use mainstem_log::{Log, LogConfig, Origin, PartitionIdentity};
use mainstem_records::{BatchBuilder, BatchOptions, LeaderEpoch, Scratch};
use mainstem_replication::eraftpb::{Message, MessageType};
use mainstem_replication::journal::{Journal, Start};
use mainstem_replication::{Configuration, GroupId, Replica, ReplicaId, ReplicaOptions, found};
use mainstem_runtime::clock::Clock;
use mainstem_wire::ErrorCode;
use parking_lot::Mutex;

use crate::log_dirs::{LogDirs, LogDirsOptions};
use crate::partition::{Durable, NoLog, Partition, ReplicaEvents};
use crate::settings::TopicSettings;
use crate::store::{Store, StoreParts};
use mainstem_runtime::current_config::CurrentConfig;

/// The end of a wait.
pub type Fate = mpsc::Receiver<Result<(), ErrorCode>>;

/// A wait, and the receiver of its result.
pub fn waiter() -> (Durable, Fate) {
    let (sender, fate) = mpsc::sync_channel(1);
    (Durable::Call(Box::new(move |result| _ = sender.send(result))), fate)
}

/// Appends a value where a replica leads. Returns its offset and epoch.
pub fn append(partition: &Partition, clock: &Clock, value: &[u8]) -> Result<(i64, LeaderEpoch), ErrorCode> {
    let mut batch = BatchBuilder::new(BatchOptions::default());
    let key = if partition.settings().log.compact { value } else { b"key" };
    batch.append(1, Some(key), Some(value), &[]).expect("a record");
    let bytes = batch.build().expect("a batch");
    let appended = partition.append(&bytes, Origin::Client, clock, &mut Scratch::new());
    appended.map(|outcome| (outcome.appended.base_offset, outcome.epoch)).map_err(|error| error.code())
}

const GROUP: GroupId = GroupId { topic_id: [7; 16], partition: 0 };
/// The term in which it leads.
pub const TERM: u64 = 1;

struct NoEvents;

impl ReplicaEvents for NoEvents {
    fn role_changed(&self, _: &Arc<Partition>, _: mainstem_replication::Role) {}
}

/// The first replica of a group, which leads. There are no links to the others.
pub struct Leader {
    /// The partition.
    pub partition: Arc<Partition>,
    /// Its links, without peers.
    pub links: Arc<Links>,
    /// The log directory.
    pub dir: Arc<LogDir>,
    /// The clock of partition and links.
    pub clock: Clock,
    _home: tempfile::TempDir,
}

impl Leader {
    /// It has the others' votes, and nothing else of them yet.
    pub fn of_voters(count: i32) -> Leader {
        Leader::with(count, 1, 30_000)
    }

    /// The same with `min.insync.replicas` and `replica.lag.time.max.ms`.
    pub fn with(count: i32, min_insync_replicas: i32, replica_lag_max_ms: u64) -> Leader {
        Leader::on(Arc::new(RealStorage), (count, min_insync_replicas, replica_lag_max_ms))
    }

    /// The same on a storage.
    pub fn on(
        storage: Arc<dyn Storage>,
        (count, min_insync_replicas, replica_lag_max_ms): (i32, i32, u64),
    ) -> Leader {
        let (clock, home) = (Clock::start(), tempfile::tempdir().expect("a directory"));
        let identity = NodeIdentity { cluster_id: Some("cluster".into()), node_id: 1 };
        let dir = LogDir::open(storage, home.path(), &identity, "boot").expect("it opens");
        let config = LogConfig { segment_bytes: 4_000, retention_bytes: Some(4_000), ..LogConfig::default() };
        let config = Arc::new(config);
        let replica = elected(&dir, config.clone(), count);
        let identity = LinkIdentity { node: 1, generation: 1, cluster_id: "cluster".into() };
        let options = LinksOptions {
            clock: clock.clone(),
            replica_lag_max_ms,
            catch_up_rate: CATCH_UP_RATE,
            absence: AbsenceLimits::default(),
            silence: SilenceLimits::default(),
            awaited: Arc::default(),
        };
        let links = Links::start(identity, Vec::new(), options, gate()).expect("threads can be made");
        let settings = Arc::new(TopicSettings::of_log(config, false, min_insync_replicas));
        let events = Arc::new(NoEvents);
        let partition =
            Partition::replicated("t".into(), 0, dir.clone(), settings, replica, events, links.clone());
        Leader { partition, links, dir, clock, _home: home }
    }

    /// Appends a value.
    pub fn append(&self, value: &[u8]) {
        append(&self.partition, &self.clock, value).expect("it leads");
    }

    /// Appends a value, and waits for all that `min.insync.replicas` asks for.
    pub fn produce(&self, value: &[u8]) -> Fate {
        let (offset, epoch) = append(&self.partition, &self.clock, value).expect("it leads");
        let (wait, fate) = waiter();
        self.partition.when_committed(offset + 1, epoch, wait);
        fate
    }

    /// Another replica says that all entries up to one are on its disk.
    pub fn acknowledged_by(&self, node: i32, index: u64) {
        self.accept(Message { index, ..said(MessageType::MsgAppendResponse, node) });
    }

    /// Another replica says this.
    pub fn accept(&self, message: Message) {
        if let Some(step) = self.partition.step_unless_it_waits(message, 0, &[]).expect("it is taken") {
            self.partition.carry_out_disk_step(step, 0, &[]).expect("it is taken");
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.links.stop();
        drop(self.partition.take_log(NoLog::Gone));
        self.dir.unlock();
    }
}

/// A message of a node's replica to the first one, in the term of [`Leader`].
pub fn said(msg_type: MessageType, node: i32) -> Message {
    let (from, to) = (ReplicaId::new(node, 1).0, ReplicaId::new(1, 1).0);
    Message { msg_type, from, to, term: TERM, ..Message::default() }
}

fn elected(dir: &Arc<LogDir>, config: Arc<LogConfig>, voters: i32) -> Replica {
    let (mut journal, _) = Journal::open(dir.storage().clone(), dir.path()).expect("a journal");
    let own = ReplicaId::new(1, 1);
    let replicas: Vec<_> = (1..=voters).map(|node| ReplicaId::new(node, 1)).collect();
    let configuration = Configuration::of_voters(&replicas);
    found(&mut journal, GROUP, own, &configuration, Start::default()).expect("a founding");
    let identity = PartitionIdentity { topic: "t".into(), topic_id: GROUP.topic_id, partition: 0 };
    let (log, _) = Log::open(dir, &identity, config, 0).expect("a log");
    dir.recovered().expect("the recovery is noted");
    let options =
        ReplicaOptions { write_caching: false, seed: 1, high_watermark: 0, broadcast_commit: false };
    let journal = Arc::new(Mutex::new(journal));
    let mut replica = Replica::open(log, GROUP, journal, options, 0).expect("the replica opens");
    replica.campaign();
    for msg_type in [MessageType::MsgRequestPreVoteResponse, MessageType::MsgRequestVoteResponse] {
        for node in 2..=voters {
            replica.step(said(msg_type, node), 0, &[]).expect("it is taken");
        }
        // The others are asked for their votes when its own is durable.
        replica.journal().lock().sync().expect("the disk works");
        replica.persisted();
    }
    replica
}

/// A store without partitions, in a directory of its own.
pub fn store(home: &Path) -> Arc<Store> {
    let overrides = [("log.dirs".to_owned(), home.display().to_string())];
    let config = BrokerConfig::from_sources(Sources { overrides: &overrides, ..Sources::default() });
    let (config, clock) = (config.expect("it is valid"), Clock::start());
    let options = LogDirsOptions {
        descriptors: 10_000,
        mono_ms: clock.mono_ms(),
        on_offline: Arc::new(|_| {}),
        recovery: Arc::default(),
        expect_cluster: None,
        machine: None,
    };
    let dirs = LogDirs::open(&config, &options, None).expect("they open");
    Store::new(StoreParts {
        node: config.node_id,
        clock,
        config: Arc::new(CurrentConfig::new(config)),
        panics: Arc::default(),
        dirs,
        dir_alarm: Arc::default(),
        attached: Vec::new(),
        opening: Arc::default(),
        peers: None,
    })
}
