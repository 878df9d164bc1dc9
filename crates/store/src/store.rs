//! The log directories and partitions of this node, with the threads that look after them.
//!
//! Architecture invariant: nothing here knows connections, the controller or coordinators. [`StoreEvents`] notifies them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mainstem_config::BrokerConfig;
use mainstem_controller::DirectoryAssignment;
use mainstem_wire::Uuid;

use crate::attached::Attached;
use crate::cleaner::Cleaning;
use crate::copies::Copies;
use crate::dir_failures::Fatal;
use crate::journals::Journals;
use crate::log_dirs::LogDirs;
use crate::members::Members;
use crate::moves::Moves;
use crate::opening::OpeningProgress;
use crate::partition::{Durable, NoLog, Partition, ReplicaEvents};
use crate::topics::Topics;
use mainstem_links::Links;
use mainstem_runtime::alarm::Alarm;
use mainstem_runtime::clock::Clock;
use mainstem_runtime::current_config::CurrentConfig;
use mainstem_runtime::supervised::Panics;
use mainstem_runtime::sync::{self, RecvTimeoutError};

/// Interval between two looks of a stop whether it is to hurry.
const HURRY_CHECK: Duration = Duration::from_millis(50);

/// Partitions and log directories of this node.
pub struct Store {
    /// `node.id`.
    pub node: i32,
    /// The time.
    pub clock: Clock,
    config: Arc<CurrentConfig>,
    /// Panics of this node.
    pub panics: Arc<Panics>,
    /// Topics that are served.
    pub topics: Arc<Topics>,
    /// The log directories.
    pub dirs: LogDirs,
    /// Wakes the thread that looks after the log directories.
    pub dir_alarm: Arc<Alarm>,
    /// Partitions on their way between log directories.
    pub moves: Moves,
    /// Copies of partitions from and to other nodes.
    pub copies: Copies,
    /// Members of groups, which change as the metadata say.
    pub members: Members,
    /// Compaction.
    pub cleaning: Cleaning,
    /// Queues that are topics.
    pub attached: Vec<Arc<Attached>>,
    /// Why the broker cannot go on.
    pub fatal: Fatal,
    /// Progress of opening logs.
    pub opening: Arc<OpeningProgress>,
    /// None without other nodes.
    pub peers: Option<StorePeers>,
    events: OnceLock<Arc<dyn StoreEvents>>,
}

/// Links, journals and the receiver of events of the replicas of this node.
pub struct StorePeers {
    /// Links to the other nodes.
    pub links: Arc<Links>,
    /// The journals of the log directories.
    pub journals: Arc<Journals>,
    /// Receives what befalls the replicas.
    pub events: Arc<dyn ReplicaEvents>,
}

/// Parts of a store that are there before it.
pub struct StoreParts {
    /// `node.id`.
    pub node: i32,
    /// The time.
    pub clock: Clock,
    /// The configuration in force.
    pub config: Arc<CurrentConfig>,
    /// Panics of this node.
    pub panics: Arc<Panics>,
    /// The log directories.
    pub dirs: LogDirs,
    /// Wakes the thread that looks after the log directories.
    pub dir_alarm: Arc<Alarm>,
    /// Queues that are topics.
    pub attached: Vec<Arc<Attached>>,
    /// Progress of opening logs.
    pub opening: Arc<OpeningProgress>,
    /// None without other nodes.
    pub peers: Option<StorePeers>,
}

/// Events of the store for the rest of the node. Called on threads of the store, without any of its locks.
pub trait StoreEvents: Send + Sync {
    /// Partitions have gone offline, and their logs are closed.
    fn went_offline(&self, partitions: &[Arc<Partition>]);

    /// Log directories are offline, and others are left. Called again at each look for as long as any is.
    fn online_directories_changed(&self);

    /// Log directories may be cordoned, or not any more.
    fn cordoned_directories_changed(&self);

    /// A partition is in another log directory now.
    fn directory_changed(&self, assignment: DirectoryAssignment);
}

impl Store {
    /// A store without partitions and without threads.
    pub fn new(parts: StoreParts) -> Arc<Store> {
        let StoreParts { node, clock, config, panics, dirs, dir_alarm, attached, opening, peers } = parts;
        Arc::new(Store {
            node,
            config,
            panics,
            topics: Arc::default(),
            dirs,
            dir_alarm,
            moves: Moves::default(),
            copies: Copies::new(clock.instant()),
            members: Members::default(),
            cleaning: Cleaning::default(),
            attached,
            fatal: Fatal::default(),
            opening,
            peers,
            clock,
            events: OnceLock::new(),
        })
    }

    /// Has files get the formats of a level of `mainstem.version`, beside other work. Levels only rise.
    pub fn raise_to_level(&self, level: i16) {
        if let Some(peers) = &self.peers {
            peers.journals.raise_to_level(level);
        }
    }

    /// Has events go to this receiver. Called once, before any thread of the store starts.
    pub fn set_events(&self, events: Arc<dyn StoreEvents>) {
        let is_first = self.events.set(events).is_ok();
        debug_assert!(is_first, "events have one receiver");
    }

    /// Has the rest of the node notified.
    pub(super) fn notify(&self, event: impl FnOnce(&dyn StoreEvents)) {
        if let Some(events) = self.events.get() {
            event(&**events);
        }
    }

    /// The configuration now.
    pub fn config(&self) -> Arc<BrokerConfig> {
        self.config.get()
    }

    /// Every partition that is served.
    pub fn partitions(&self) -> Vec<Arc<Partition>> {
        self.topics.all().iter().flat_map(|topic| topic.partitions.clone()).collect()
    }

    /// The attached queue that is the topic of an id.
    pub fn attached(&self, topic_id: Uuid) -> Option<&Arc<Attached>> {
        self.attached.iter().find(|queue| queue.topic_id() == topic_id)
    }

    /// The disk that is full, so that appends are refused, in a sentence.
    pub fn full_disk(&self) -> Option<String> {
        let dir = self.dirs.all().find(|dir| dir.is_full())?.path().display();
        Some(format!("the disk of log directory {dir} is full: appends are refused, reads go on"))
    }

    /// Looks whether every log directory serves, with all its partitions.
    ///
    /// # Errors
    /// Which does not, and why.
    pub fn health(&self) -> Result<(), String> {
        if let Some(failure) = self.dirs.failures().next() {
            return Err(failure.to_string());
        }
        if let Some(dir) = self.dirs.all().find(|dir| dir.has_failed_sync()) {
            let dir = dir.path().display();
            return Err(format!("log directory {dir}: a sync failed, its partitions are stopped"));
        }
        let partitions = self.partitions();
        let replica = partitions.iter().find_map(|partition| Some((partition, partition.replica_failure()?)));
        if let Some((partition, reason)) = replica {
            let (topic, index) = (&partition.topic, partition.index);
            return Err(format!(
                "the replica of {topic}-{index} is out of service until the next start: {reason}"
            ));
        }
        match partitions.iter().find(|partition| partition.is_offline()) {
            None => Ok(()),
            Some(partition) => Err(format!(
                "partition {}-{} is offline; the log of this start says why",
                partition.topic, partition.index
            )),
        }
    }

    /// Syncs and closes all logs, that of the metadata with them, then marks the directories as left in order, each by itself. Returns true
    /// if all were.
    pub fn close(
        &self,
        metadata_log: &Arc<Partition>,
        hurry: &AtomicBool,
        progress: &mut dyn FnMut(usize, usize),
    ) -> bool {
        let mut partitions = self.partitions();
        partitions.push(metadata_log.clone());
        self.dirs.all().for_each(|dir| dir.prepare_stop());
        let together = self.dirs.synced_together(partitions.len());
        if !sync_logs(&partitions, together, hurry, progress) {
            return false;
        }
        let mut spoiled = Vec::new();
        for partition in &partitions {
            let Some(log) = partition.take_log(NoLog::Gone) else { continue };
            let dir = log.dir().clone();
            if let Err(error) = log.close() {
                tracing::error!(topic = %partition.topic, partition = partition.index, "not closed in order: {error}");
                spoiled.push(dir);
            }
        }
        let mut in_order = self.dirs.unopened().is_empty();
        for dir in self.dirs.all() {
            let is_spoiled = spoiled.iter().any(|other| Arc::ptr_eq(other, dir));
            match (!is_spoiled).then(|| dir.stop_clean()) {
                Some(Ok(true)) => {}
                Some(Err(error)) => {
                    in_order = false;
                    tracing::error!(dir = %dir.path().display(), "the directory was not left in order: {error}");
                }
                Some(Ok(false)) | None => in_order = false,
            }
        }
        in_order
    }
}

/// Syncs all logs, as many `together` as may be, unless hurried; `false`: it was. Those that cannot be synced say so when
/// they are closed.
fn sync_logs(
    partitions: &[Arc<Partition>],
    together: usize,
    hurry: &AtomicBool,
    progress: &mut dyn FnMut(usize, usize),
) -> bool {
    let (sender, synced) = sync::channel();
    let begin = |partition: &Arc<Partition>| {
        let sender = sender.clone();
        partition.prepare_close(Durable::Call(Box::new(move |_| {
            // The receiver is gone when the stop was hurried.
            let _ = sender.send(());
        })));
    };
    let mut waiting = partitions.iter();
    waiting.by_ref().take(together).for_each(begin);
    let mut done = 0;
    while done < partitions.len() {
        progress(done, partitions.len());
        if hurry.load(Ordering::Acquire) {
            return false;
        }
        match synced.recv_timeout(HURRY_CHECK) {
            Ok(()) => {
                done += 1;
                waiting.next().into_iter().for_each(begin);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
    }
    progress(done, partitions.len());
    true
}
