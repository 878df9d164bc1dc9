//! Opening the logs of topics, at start and when they are created or grow.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use mainstem_controller::{PartitionImage, TopicImage};
use mainstem_log::dir::{LastStop, LogDir};
use mainstem_log::partition_dir::SetAside;
use mainstem_log::{Log, LogError, PartitionIdentity, RecoveryWatch};
use mainstem_records::LeaderEpoch;
use mainstem_replication::{ReplicaId, WantedMembers};
use mainstem_wire::Uuid;
use parking_lot::Mutex;

use crate::error::StoreError;
use crate::members::{held_in, is_lost, set_aside, wanted};
use crate::partition::Partition;
use crate::placing::PartitionKey;
use crate::replicas::{Founding, OpenReplica, finish_copy, group_of};
use crate::settings::TopicSettings;
use crate::store::{Store, StorePeers};
use crate::topics::Topic;

/// The incarnation of the replicas that a partition is created with.
const FIRST_INCARNATION: u32 = 1;

/// Handling of a partition that cannot be opened.
#[derive(Clone, Copy)]
pub enum Unopened<'a> {
    /// It is offline until the next start: an operator has to repair it. These partitions are offline without an attempt. If descriptors
    /// are missing, its topic is refused instead, since no connection could be served either.
    Offline(&'a HashSet<PartitionKey>),
    /// Its topic is new and not served, or stays as it was: a later attempt may succeed.
    Refused,
}

impl Unopened<'_> {
    /// Returns true if the topic is refused. A failed directory does not work later either: a partition that is assigned to it is offline.
    fn refuses(self, error: &StoreError) -> bool {
        match self {
            Unopened::Refused => !matches!(error, StoreError::DirectoryOffline { .. }),
            Unopened::Offline(_) => error.is_short_of_handles() || matches!(error, StoreError::BrokenOff),
        }
    }
}

/// Progress of opening logs. A start that takes long says so.
#[derive(Default)]
pub struct OpeningProgress {
    logs: AtomicUsize,
    logs_open: AtomicUsize,
    recovery: Arc<RecoveryWatch>,
}

impl OpeningProgress {
    /// With the watch of the recovery, which may break it off.
    pub fn new(recovery: Arc<RecoveryWatch>) -> OpeningProgress {
        OpeningProgress { recovery, ..OpeningProgress::default() }
    }

    /// Returns true if the start is to be broken off.
    pub fn is_broken_off(&self) -> bool {
        self.recovery.is_broken_off()
    }

    /// Counts logs that are to be opened.
    pub fn logs_to_open(&self, count: usize) {
        self.logs.fetch_add(count, Ordering::Relaxed);
    }

    /// One of them is open, or never will be.
    pub fn log_opened(&self) {
        self.logs_open.fetch_add(1, Ordering::Relaxed);
    }

    /// Logs that are or were to be opened.
    pub fn logs(&self) -> usize {
        self.logs.load(Ordering::Relaxed)
    }

    /// Those of them that are open.
    pub fn logs_open(&self) -> usize {
        self.logs_open.load(Ordering::Relaxed)
    }

    /// Bytes of logs that were checked.
    pub fn bytes_checked(&self) -> u64 {
        self.recovery.bytes()
    }
}

/// Results of opening logs.
#[derive(Default)]
pub struct Opened {
    /// Topics that are not served, or not all of their partitions, and why.
    pub refused: Vec<(Uuid, StoreError)>,
    /// Partitions in directories left in order whose logs are not what they were, or new.
    pub shorter: Vec<(Uuid, i32)>,
}

/// Opens the logs of topics' partitions that are not open yet, several at once, and serves the topics. `settings_of` gives their
/// settings.
pub fn open_all(
    store: &Store,
    topics: &[TopicImage],
    settings_of: &dyn Fn(&TopicImage) -> Arc<TopicSettings>,
    unopened: Unopened<'_>,
) -> Opened {
    let plans: Vec<_> = topics.iter().map(|image| TopicPlan::new(store, image, settings_of(image))).collect();
    let jobs: Vec<_> = plans
        .iter()
        .flat_map(|plan| (plan.known.len()..plan.image.partitions.len()).map(move |index| (plan, index)))
        .collect();
    store.opening.logs_to_open(jobs.len());
    let syncs_each = store.dirs.synced_together(jobs.len()) < jobs.len();
    let open = |(plan, index): &(&TopicPlan<'_>, usize)| {
        let opened = plan.open(store, *index, unopened, syncs_each);
        store.opening.log_opened();
        opened
    };
    let mut results = in_parallel(openers(store), &jobs, open).into_iter();
    let mut opened = Opened::default();
    for plan in plans {
        let count = plan.image.partitions.len().saturating_sub(plan.known.len());
        let partitions: Vec<_> = results.by_ref().take(count).flatten().collect();
        match plan.refusal.into_inner() {
            Some(error) => opened.refused.push((plan.image.id, error)),
            None => {
                let shorter = partitions.iter().filter(|opened| opened.is_shorter);
                opened.shorter.extend(shorter.map(|opened| (plan.image.id, opened.index)));
                let partitions =
                    plan.known.into_iter().chain(partitions.into_iter().map(|one| one.partition));
                let topic = Topic { name: plan.name, id: plan.image.id, partitions: partitions.collect() };
                store.topics.put(Arc::new(topic));
            }
        }
    }
    opened
}

/// Threads that open logs. They take them as they come, whatever directories these are in.
fn openers(store: &Store) -> usize {
    if mainstem_runtime::sync::is_simulated() {
        // Those of a scope are none of a schedule.
        return 1;
    }
    store.config().logs.recovery_threads_per_dir.saturating_mul(store.dirs.online().count())
}

/// The results of all jobs, in their order; they are done by up to `threads` threads, the calling one included.
fn in_parallel<J: Sync, R: Send>(threads: usize, jobs: &[J], work: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(jobs.len()));
    let run = || {
        while let number = next.fetch_add(1, Ordering::Relaxed)
            && let Some(job) = jobs.get(number)
        {
            let result = work(job);
            done.lock().push((number, result));
        }
    };
    std::thread::scope(|scope| {
        let helpers = threads.min(jobs.len()).saturating_sub(1);
        (0..helpers).for_each(|_| drop(scope.spawn(run)));
        run();
    });
    let mut done = done.into_inner();
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

/// A topic that is being opened.
struct TopicPlan<'a> {
    image: &'a TopicImage,
    name: Arc<str>,
    settings: Arc<TopicSettings>,
    /// Partitions that are open already: the first ones.
    known: Vec<Arc<Partition>>,
    /// Why the topic is refused; nothing more of it is opened then.
    refusal: OnceLock<StoreError>,
}

/// A partition that was not known before, open or offline.
struct OpenedPartition {
    index: i32,
    partition: Arc<Partition>,
    /// Its directory was left in order, and its log is not what it was, or new.
    is_shorter: bool,
}

impl<'a> TopicPlan<'a> {
    fn new(store: &Store, image: &'a TopicImage, settings: Arc<TopicSettings>) -> Self {
        let (name, known) = match store.topics.by_id(&image.id) {
            Some(topic) => (topic.name.clone(), topic.partitions.clone()),
            None => (Arc::from(image.name.as_str()), Vec::new()),
        };
        TopicPlan { image, name, settings, known, refusal: OnceLock::new() }
    }

    /// Opens one partition, unless its topic is refused. `syncs`: it is synced before it is given out.
    fn open(
        &self,
        store: &Store,
        index: usize,
        unopened: Unopened<'_>,
        syncs: bool,
    ) -> Option<OpenedPartition> {
        if store.opening.is_broken_off() {
            // Another thread may have found the same.
            let _ = self.refusal.set(StoreError::BrokenOff);
        }
        if self.refusal.get().is_some() {
            return None;
        }
        let (image, settings) = (&self.image.partitions[index], &self.settings);
        let identity = PartitionIdentity {
            topic: self.name.clone(),
            topic_id: self.image.id.0,
            partition: index as i32,
        };
        let index = identity.partition;
        if let Some(queue) = store.attached(self.image.id) {
            let partition = Partition::attached(settings.clone(), queue.clone());
            return Some(OpenedPartition { index, partition, is_shorter: false });
        }
        let opened = match unopened {
            // Why was reported when it was looked for.
            Unopened::Offline(refused) if refused.contains(&(self.image.id, index)) => None,
            _ => match open_partition(store, &identity, image, settings, syncs) {
                Ok(opened) => Some(opened),
                Err(error) if unopened.refuses(&error) => {
                    // Another thread may have found the same.
                    let _ = self.refusal.set(error);
                    return None;
                }
                Err(error) => {
                    if let Some(incarnation) = image.incarnation(store.node).filter(|_| image.has_group()) {
                        let now = store.clock.instant();
                        let is_lost = is_lost(&error);
                        store.members.note_unopened((self.image.id, index), incarnation, is_lost, now);
                    }
                    tracing::error!("{error}; until then it is offline, the others are served");
                    None
                }
            },
        };
        let (partition, is_shorter) = opened.unwrap_or_else(|| {
            (
                Partition::offline(
                    identity.topic,
                    index,
                    settings.clone(),
                    LeaderEpoch::new(image.leader_epoch),
                ),
                false,
            )
        });
        Some(OpenedPartition { index, partition, is_shorter })
    }
}

/// Opens a partition that comes to this node. Blocks on the disk.
///
/// # Errors
/// When its files cannot be used.
pub(crate) fn open_one(
    store: &Store,
    topic: &TopicImage,
    index: i32,
    settings: &Arc<TopicSettings>,
) -> Result<Arc<Partition>, StoreError> {
    let identity =
        PartitionIdentity { topic: Arc::from(topic.name.as_str()), topic_id: topic.id.0, partition: index };
    let image = usize::try_from(index).ok().and_then(|index| topic.partitions.get(index));
    let image = image.expect("the caller has it from the topic");
    open_partition(store, &identity, image, settings, true).map(|(partition, _)| partition)
}

/// Opens a partition's log; with it comes whether the log is another than was left in order, or new.
fn open_partition(
    store: &Store,
    identity: &PartitionIdentity,
    image: &PartitionImage,
    settings: &Arc<TopicSettings>,
    syncs: bool,
) -> Result<(Arc<Partition>, bool), StoreError> {
    let mut dir = None;
    if store.peers.is_some() && !image.replicas.contains(&store.node) {
        dir = held_in(store, group_of(identity));
        if dir.is_none() {
            let (topic, index) = (identity.topic.clone(), identity.partition);
            let epoch = LeaderEpoch::new(image.leader_epoch);
            return Ok((Partition::elsewhere(topic, index, settings.clone(), epoch), false));
        }
    }
    let dir = dir.map_or_else(|| dir_of(store, image, identity), Ok)?;
    let peers = store.peers.as_ref().filter(|_| image.has_group());
    let mono_ms = store.clock.now().mono_ms;
    if let Some(peers) = peers {
        set_earlier_aside(store, peers, (identity, image), dir)?;
        finish_copy(&peers.journals, dir, identity, mono_ms)?;
    }
    // What is deleted other replicas may lack.
    let open = if peers.is_some() { Log::open_replica } else { Log::open };
    let opened = open(dir, identity, settings.log.clone(), mono_ms);
    let failed = |source| match source {
        LogError::BrokenOff => StoreError::BrokenOff,
        source => StoreError::Open { partition: identity.topic_partition(), source },
    };
    let (mut log, recovery) = opened.map_err(failed)?;
    if let Some(peers) = peers {
        let opening = OpenReplica {
            dir,
            journals: &peers.journals,
            identity,
            founding: founding_of(image, store.node),
            events: peers.events.clone(),
            links: &peers.links,
            broadcast_commit: false,
        };
        let partition = opening.open(log, settings.clone())?;
        if image.group.is_some() {
            partition.want_members(WantedMembers::of_voters(&wanted(image)), image.wanted_version());
        }
        opening.register(&partition);
        return Ok((partition, false));
    }
    if syncs {
        // What it wrote has its files open until then, and there are not descriptors for all partitions to wait so.
        log.sync_now().map_err(failed)?;
    }
    let (topic, index) = (identity.topic.clone(), identity.partition);
    if recovery.bytes_cut > 0 {
        tracing::warn!(%topic, partition = index, bytes = recovery.bytes_cut, "a torn tail was cut off");
    }
    // The epochs of a directory that was not left in order were raised when the node registered.
    let is_shorter = matches!(dir.last_stop(), LastStop::New | LastStop::Clean)
        && (recovery.raise_leader_epoch || recovery.created);
    let partition = Partition::new(
        topic,
        index,
        dir.clone(),
        settings.clone(),
        log,
        LeaderEpoch::new(image.leader_epoch),
    );
    Ok((partition, is_shorter))
}

/// The replica of this node, and the members with which its group begins where the journal does not know it. The members of a group that
/// has changed come from its leader; while its first move is under way it may have none yet, and begins as it was created.
fn founding_of(image: &PartitionImage, node: i32) -> Founding {
    let own = ReplicaId::new(node, image.incarnation(node).unwrap_or_default());
    let first = |node: &i32| ReplicaId::new(*node, FIRST_INCARNATION);
    let voters = match &image.group {
        None => wanted(image),
        Some(group) if own == first(&node) && group.original.contains(&node) => {
            group.original.iter().map(first).collect()
        }
        Some(_) => Vec::new(),
    };
    Founding { own, voters }
}

/// Sets the files of an earlier replica of this node aside: another one takes its place. Blocks on the disk.
fn set_earlier_aside(
    store: &Store,
    peers: &StorePeers,
    (identity, image): (&PartitionIdentity, &PartitionImage),
    dir: &Arc<LogDir>,
) -> Result<(), StoreError> {
    let group = group_of(identity);
    let own = peers.journals.of(dir)?.lock().group(group).and_then(|state| state.own);
    let (Some(own), Some(wanted)) = (own, image.incarnation(store.node)) else { return Ok(()) };
    if own.incarnation() >= wanted {
        return Ok(());
    }
    let name = identity.topic_partition();
    tracing::warn!(
        "{name}: replica {own} was replaced; its files in {} are set aside as stray",
        dir.path().display()
    );
    set_aside(store, dir, (&name, group), (SetAside::Stray, 0))
}

fn dir_of<'a>(
    store: &'a Store,
    partition: &PartitionImage,
    identity: &PartitionIdentity,
) -> Result<&'a Arc<LogDir>, StoreError> {
    let own = partition.replicas.iter().position(|replica| *replica == store.node);
    let directory = own.and_then(|at| partition.directories.get(at)).copied().unwrap_or_default();
    match store.dirs.by_id(directory.0) {
        Some(dir) if dir.failure().is_none() => Ok(dir),
        Some(_) => Err(StoreError::DirectoryOffline { partition: identity.topic_partition() }),
        None => Err(StoreError::DirectoryMissing { partition: identity.topic_partition(), directory }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn jobs_are_shared_by_as_many_threads_as_are_allowed() {
        let jobs: Vec<usize> = (0..12).collect();
        for threads in [1, 3, 4] {
            // Passes only while as many jobs as threads are under way.
            let together = Barrier::new(threads);
            let results = in_parallel(threads, &jobs, |job| {
                together.wait();
                (job * 10, std::thread::current().id())
            });
            assert!(
                results.iter().map(|(result, _)| *result).eq((0..12).map(|job| job * 10)),
                "in their order"
            );
            let used: HashSet<_> = results.iter().map(|(_, thread)| thread).collect();
            assert_eq!(used.len(), threads);
        }
        assert_eq!(in_parallel(0, &jobs, |job| *job), jobs, "the calling thread is always there");
        assert!(in_parallel(4, &[], |job: &usize| *job).is_empty());
    }
}
