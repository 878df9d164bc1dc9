//! A simulated node: a disk, and while it runs a broker's partitions, links and flusher, which the world drives.

mod disk;
#[cfg(test)]
mod harm;
mod looks;
mod running;
mod whole;

use crate::world::Stop;
use disk::DiskFaults;
#[cfg(test)]
pub(crate) use harm::FileLoss;
pub(crate) use looks::records_of;
use mainstem_links::Links;
use mainstem_log::dir::{LogDir, LogDirOptions, NodeIdentity};
use mainstem_log::flusher::FlushOptions;
use mainstem_log::meta_properties::MetaProperties;
use mainstem_log::sim::{Random, SimStorage};
use mainstem_log::{
    Appended, Origin, PartitionIdentity, TransactionMarker, VerificationGuard, VerificationRequest,
};
use mainstem_node::controller::{Controller, ControllerError};
use mainstem_node::node::Node as BrokerNode;
use mainstem_records::{LeaderEpoch, Scratch};
use mainstem_replication::journal::{Journal, Start};
use mainstem_replication::{Configuration, GroupId, Lost, Replica, ReplicaId, found};
use mainstem_runtime::clock::{Clock, ManualClock};
use mainstem_runtime::schedule::{Group, Schedule};
use mainstem_store::copies::CopyCounts;
use mainstem_store::partition::{AppendOutcome, Durable, Partition, Refused};
use mainstem_wire::{ErrorCode, Uuid};
use parking_lot::Mutex;
use running::{Opening, Running};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
pub(crate) use whole::formats_of;
pub(crate) use whole::{HEARTBEAT_INTERVAL_MS, Release, SESSION_TIMEOUT_MS};
use whole::{Starting, Whole};

const DIR: &str = "/data";

/// Acts for the threads of a node, if it has some: threads that start meanwhile are among them.
pub(crate) fn act_for<T>(group: Option<&Group>, act: impl FnOnce() -> T) -> T {
    match group {
        Some(group) => group.act(act),
        None => act(),
    }
}

/// Boot id of a machine, by the number of its start.
fn boot_id(number: u64) -> String {
    format!("boot-{number}")
}

/// First time of wall clocks, in ms.
const WALL_MS: i64 = 1_000_000;

/// Options of a node.
pub(crate) struct NodeOptions {
    pub(crate) id: ReplicaId,
    /// Partitions of which it has a replica.
    pub(crate) partitions: Arc<[PartitionIdentity]>,
    pub(crate) write_caching: bool,
    /// True for `message.timestamp.type=LogAppendTime` in partitions of data.
    pub(crate) log_append_time: bool,
    pub(crate) seed: u64,
    /// The schedule of the threads of a node with metadata; `None`: a node of partitions alone, without threads.
    pub(crate) schedule: Option<Schedule>,
}

pub(crate) struct Node {
    id: ReplicaId,
    partitions: Arc<[PartitionIdentity]>,
    voters: Vec<ReplicaId>,
    storage: SimStorage,
    manual: ManualClock,
    clock: Clock,
    skew_ms: i64,
    write_caching: bool,
    /// Current value of `write.caching`, which tests may alter.
    caches_now: bool,
    /// `min.insync.replicas`.
    min_insync: usize,
    seed: u64,
    boot: u64,
    /// Number of its starts.
    starts: u64,
    running: Option<Running>,
    back_at_ms: u64,
    /// Its process is down and its machine is not: connections to it are refused.
    refuses: bool,
    /// A power cut may have destroyed records that it has acknowledged (`write.caching`), and it has not caught up since.
    may_lack: bool,
    disk: DiskFaults,
    /// Longest delay of its messages in ms; 0: the default.
    delay_max_ms: u64,
    log_append_time: bool,
    /// Checkpointed high watermarks by partition, for runs in which a power cut may destroy committed records. A broker writes them every
    /// 5 s. A simulated node does so immediately, so that some node can report each lost record.
    checkpoint: Vec<i64>,
    /// Offsets by partition. Everything before them was committed and durable when the node ran last, and survives.
    kept_ends: Vec<CommittedEnd>,
    /// Files of it were lost, which is the only reason why it may lack promised records.
    has_lost_files: bool,
    schedule: Option<Schedule>,
    /// The directories of the metadata logs, by node.
    directories: BTreeMap<i32, Uuid>,
    /// The release that its next start runs.
    release: Release,
    /// The last start was refused for what is on the disk: its release does not know the level of the cluster.
    was_refused: bool,
}

/// An offset of a replica.
#[derive(Debug, Clone, Copy)]
struct CommittedEnd {
    of: ReplicaId,
    end: i64,
}

/// The outcome of a wait, once it has ended. It never ends if the node goes down before.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fate(Arc<Mutex<Option<Result<(), ErrorCode>>>>);

impl Fate {
    /// Returns the callback that ends the wait.
    fn wait(&self) -> Durable {
        let fate = self.0.clone();
        Durable::Call(Box::new(move |result| *fate.lock() = Some(result)))
    }

    /// The result of the wait; `None`: not ended yet.
    pub(crate) fn outcome(&self) -> Option<Result<(), ErrorCode>> {
        *self.0.lock()
    }

    /// Returns true if the wait has ended without an error.
    pub(crate) fn is_good(&self) -> bool {
        self.outcome() == Some(Ok(()))
    }
}

/// An append that is in the leader's log.
pub(crate) struct Accepted {
    pub(crate) appended: Appended,
    /// The term in which it was appended.
    pub(crate) term: u64,
    /// Its acknowledgement with acks=all.
    pub(crate) fate: Fate,
}

impl Node {
    /// Creates a node whose replicas are members of their groups, and starts it if it has no threads of its own.
    pub(crate) fn found(options: NodeOptions, voters: &[ReplicaId]) -> Node {
        let NodeOptions { id, partitions, write_caching, log_append_time, seed, schedule } = options;
        let manual = ManualClock::new();
        manual.set_wall_ms(WALL_MS);
        let mut node = Node {
            id,
            voters: voters.to_vec(),
            storage: SimStorage::new(),
            clock: Clock::held_by(&manual),
            manual,
            skew_ms: 0,
            write_caching,
            caches_now: write_caching,
            min_insync: 1,
            seed,
            boot: 1,
            starts: 0,
            running: None,
            back_at_ms: 0,
            refuses: false,
            may_lack: false,
            disk: DiskFaults::default(),
            delay_max_ms: 0,
            log_append_time,
            checkpoint: vec![0; partitions.len()],
            kept_ends: vec![CommittedEnd { of: id, end: 0 }; partitions.len()],
            has_lost_files: false,
            schedule,
            directories: BTreeMap::new(),
            release: Release::NEW,
            was_refused: false,
            partitions,
        };
        if node.schedule.is_some() {
            return node;
        }
        let dir = node.open_dir();
        let (mut journal, _) = Journal::open(Arc::new(node.storage.clone()), dir.path()).expect("a journal");
        let configuration = Configuration::of_voters(voters);
        for partition in node.partitions.iter() {
            let group = group_of(partition);
            found(&mut journal, group, id, &configuration, Start::default()).expect("a founding");
        }
        node.open(dir, journal);
        node
    }

    /// Formats the directory of a node with metadata. Returns the directory id.
    pub(crate) fn format(&mut self) -> Uuid {
        let id = self.starting().expect("it has its metadata").format();
        self.storage.kill();
        id
    }

    /// Sets the release that its next start runs.
    pub(crate) fn set_release(&mut self, release: Release) {
        (self.release, self.was_refused) = (release, false);
    }

    /// The release that its next start runs.
    pub(crate) fn release(&self) -> Release {
        self.release
    }

    /// Returns true if its start was refused because its release does not know the level of the cluster.
    pub(crate) fn is_refused(&self) -> bool {
        self.was_refused || self.running.as_ref().is_some_and(Running::is_refused)
    }

    /// `mainstem.format` of its directory.
    pub(crate) fn format_version(&self) -> u32 {
        let meta = MetaProperties::read(&self.storage, Path::new(DIR)).expect("it can be read");
        meta.expect("it is there").expect("it is whole").format_version.expect("it is ours")
    }

    /// Starts a node with metadata. `directories`: the directory ids of all nodes.
    pub(crate) fn begin(&mut self, directories: &BTreeMap<i32, Uuid>) {
        self.directories = directories.clone();
        self.start();
    }

    /// Parameters of a start; `None`: a node without metadata.
    fn starting(&mut self) -> Option<Starting<'_>> {
        let schedule = self.schedule.as_ref()?;
        self.seed = self.seed.wrapping_add(1);
        Some(Starting {
            id: self.id,
            voters: &self.voters,
            storage: &self.storage,
            boot_id: boot_id(self.boot),
            clock: &self.clock,
            min_insync: self.min_insync,
            write_caching: self.caches_now,
            start: self.starts,
            directories: &self.directories,
            release: self.release,
            schedule,
            seed: self.seed,
        })
    }

    fn start(&mut self) {
        if self.schedule.is_some() {
            self.starts += 1;
            let started = self.starting().expect("it has its metadata").run();
            self.was_refused = matches!(&started, Err(ControllerError::Feature { .. }));
            if self.was_refused {
                self.storage.kill();
                return;
            }
            self.running = Some(started.expect("a node of what is on its disk"));
            let is_full = self.disk.full_until_ms.is_some();
            self.running.iter_mut().for_each(|running| running.had_full_disk = is_full);
            return;
        }
        let dir = self.open_dir();
        let (journal, _) = Journal::open(Arc::new(self.storage.clone()), dir.path()).expect("a journal");
        self.open(dir, journal);
    }

    fn open_dir(&self) -> Arc<LogDir> {
        let identity = NodeIdentity { cluster_id: Some("cluster".into()), node_id: self.id.node() };
        let storage = Arc::new(self.storage.clone());
        let flush = FlushOptions { by_hand: true, ..FlushOptions::default() };
        let options = LogDirOptions { keep_reserve: true, flush, ..LogDirOptions::default() };
        let dir = options.open(storage, Path::new(DIR), &identity, &boot_id(self.boot));
        dir.expect("a directory")
    }

    fn open(&mut self, dir: Arc<LogDir>, journal: Journal) {
        self.starts += 1;
        let opening = Opening {
            id: self.id,
            voters: &self.voters,
            partitions: &self.partitions,
            clock: &self.clock,
            write_caching: self.caches_now,
            min_insync: self.min_insync,
            generation: self.starts,
            log_append_time: self.log_append_time,
            high_watermarks: &self.checkpoint,
            may_lack_promised: self.has_lost_files,
            seed: &mut self.seed,
        };
        self.running = Some(opening.run(dir, journal));
    }

    /// Number of its starts; each start begins with empty memory. `None`: it does not run.
    pub(crate) fn started(&self) -> Option<u64> {
        self.running.as_ref().map(|_| self.starts)
    }

    pub(crate) fn id(&self) -> ReplicaId {
        self.id
    }

    /// Returns true if it does not run, and those that dial it learn so.
    pub(crate) fn refuses(&self) -> bool {
        self.running.is_none() && self.refuses
    }

    /// Its links, while it runs.
    pub(crate) fn links(&self) -> Option<&Arc<Links>> {
        self.running.as_ref().map(|running| &running.links)
    }

    pub(crate) fn write_caching(&self) -> bool {
        self.write_caching
    }

    /// Sets `min.insync.replicas` of all partitions.
    pub(crate) fn set_min_insync(&mut self, min_insync: usize) {
        self.min_insync = min_insync;
        self.put_settings_into_force();
    }

    fn put_settings_into_force(&self) {
        for partition in self.running.iter().flat_map(Running::partitions) {
            let before = partition.settings();
            let settings = running::settings(before.log.clone(), self.caches_now, self.min_insync);
            partition.set_settings(settings);
        }
    }

    pub(crate) fn stop(&mut self, stop: Stop, until_ms: u64, random: &mut Random) {
        self.back_at_ms = until_ms;
        let Some(running) = self.running.take() else { return };
        if let Some(whole) = &running.whole {
            // After a stop in order, the threads that are left only wait for others.
            whole.kill();
        }
        self.end_failing_syncs();
        if stop == Stop::Clean && running.whole.is_none() {
            self.take_reserve();
            running.close();
        } else {
            drop(running);
        }
        self.refuses = stop != Stop::PowerCut;
        match stop {
            Stop::PowerCut => {
                self.storage.power_cut(random);
                self.boot += 1;
                self.may_lack |= self.write_caching;
            }
            Stop::Kill | Stop::Clean => self.storage.kill(),
        }
    }

    pub(crate) fn come_back(&mut self) {
        if self.running.is_none() {
            self.take_reserve();
            self.start();
        } else if self.is_stopping() {
            self.back_at_ms = 0;
        }
    }

    /// Begins to stop a node with metadata in order. Returns false if there is nothing to wait for.
    pub(crate) fn begin_stop(&mut self, until_ms: u64) -> bool {
        let whole = self.running.as_mut().and_then(|running| running.whole.as_mut());
        if !whole.is_some_and(Whole::begin_stop) {
            return false;
        }
        self.take_reserve();
        self.back_at_ms = until_ms;
        true
    }

    /// Its threads, while it runs, if it has its metadata.
    pub(crate) fn group(&self) -> Option<Group> {
        self.whole().map(|whole| whole.group.clone())
    }

    fn whole(&self) -> Option<&Whole> {
        self.running.as_ref()?.whole.as_ref()
    }

    /// Returns true if it is being stopped in order.
    pub(crate) fn is_stopping(&self) -> bool {
        self.whole().is_some_and(Whole::is_stopping)
    }

    /// Time of the next start, of a node that has stopped in order and was not taken down yet.
    pub(crate) fn stopped_until(&self) -> Option<u64> {
        self.whole().filter(|whole| whole.has_stopped()).map(|_| self.back_at_ms)
    }

    /// The broker's node and its threads, while it runs.
    pub(crate) fn whole_node(&self) -> Option<(&Arc<BrokerNode>, &Group)> {
        self.whole().map(|whole| (&whole.node, &whole.group))
    }

    /// The same while it serves.
    pub(crate) fn in_service(&self) -> Option<(&Arc<BrokerNode>, &Group)> {
        let whole = self.whole().filter(|whole| whole.is_in_service())?;
        Some((&whole.node, &whole.group))
    }

    /// The copies of partitions since its start.
    pub(crate) fn copy_counts(&self) -> CopyCounts {
        self.whole().map_or(CopyCounts::default(), |whole| whole.node.local.store.copies.counts())
    }

    /// Returns true if a partition could not be opened.
    pub(crate) fn has_offline_partitions(&self) -> bool {
        self.running.iter().flat_map(Running::partitions).any(|partition| partition.is_offline())
    }

    /// The controller, while it runs.
    pub(crate) fn controller(&self) -> Option<&Arc<Controller>> {
        Some(&self.whole()?.node.controller)
    }

    /// Sets whether the flusher runs its jobs inline, as it has to while the node's threads run.
    pub(crate) fn set_jobs_inline(&self, is_inline: bool) {
        let Some(running) = &self.running else { return };
        running.dir.flusher().run_jobs();
        running.dir.flusher().set_jobs_inline(is_inline);
    }

    /// Delays messages from and to it by at most `delay_max_ms`.
    pub(crate) fn delay_links(&mut self, delay_max_ms: u64) {
        self.delay_max_ms = delay_max_ms;
    }

    pub(crate) fn delay_max_ms(&self) -> u64 {
        self.delay_max_ms
    }

    /// Sets its wall clock ahead of the virtual time, or behind it if negative.
    pub(crate) fn set_clock(&mut self, ahead_ms: i64) {
        self.manual.set_wall_ms(WALL_MS + self.skew_ms + self.clock.mono_ms() as i64 + ahead_ms);
    }

    /// Sets the offset of its wall clock without faults.
    pub(crate) fn set_skew(&mut self, skew_ms: i64) {
        self.skew_ms = skew_ms;
        self.set_clock(0);
    }

    /// Repairs its disk, its links and its clock.
    pub(crate) fn repair(&mut self) {
        self.delay_max_ms = 0;
        self.set_clock(0);
        self.repair_disk();
    }

    /// Advances its clocks.
    pub(crate) fn advance(&mut self, ms: u64) {
        self.manual.advance(Duration::from_millis(ms));
    }

    /// Does what is due.
    pub(crate) fn pass_time(&mut self, random: &mut Random) {
        let now_ms = self.clock.mono_ms();
        self.look_after_disk(now_ms);
        if self.running.is_none() && now_ms >= self.back_at_ms {
            self.come_back();
        }
        let (disk, clock) = (self.disk, self.clock.clone());
        if let Some(running) = &mut self.running {
            running.pass_time(&clock, disk, random);
        }
    }

    /// Begins a round of syncs if one is due.
    pub(crate) fn settle(&mut self, sync_max_ms: u64, random: &mut Random) {
        let Some(running) = &mut self.running else { return };
        let sync_max_ms = sync_max_ms.max(self.disk.sync_max_ms);
        let done_at_ms = (self.clock.mono_ms() + 1 + random.below(sync_max_ms)).max(self.disk.hangs_until_ms);
        running.begin_round_if_due(done_at_ms);
        if self.write_caching && running.whole.is_none() {
            self.write_checkpoint();
        }
    }

    fn write_checkpoint(&mut self) {
        for number in 0..self.partitions.len() {
            let Some(partition) = self.partition(number) else { continue };
            let noted = partition.with_replica_by_hand(|replica| self.id.noted(replica)).flatten();
            self.checkpoint[number] = noted.unwrap_or(self.checkpoint[number]);
        }
    }

    /// Checks the node's invariants, and takes note of what is durable.
    pub(crate) fn check(&mut self) {
        let Some(running) = &mut self.running else { return };
        let partitions = running.partitions();
        running.check_failures(&partitions, self.clock.mono_ms());
        // Until a whole node serves, it has not opened all of its partitions.
        let opens = running.whole.as_ref().is_some_and(|whole| !whole.is_in_service());
        for number in 0..self.partitions.len() {
            let (own, Some(ends)) = (self.own_replica(number), self.ends(number)) else { continue };
            let kept = &mut self.kept_ends[number];
            // Another replica begins with nothing.
            if let Some(own) = own.filter(|own| *own != kept.of) {
                *kept = CommittedEnd { of: own, end: 0 };
            }
            kept.end = ends.durable_end.min(ends.high_watermark).max(kept.end);
        }
        let may_lack = |partition: &Arc<Partition>| {
            partition.with_replica_by_hand(|replica| replica.may_lack_acknowledged()).unwrap_or(false)
        };
        self.may_lack = self.may_lack && (opens || partitions.iter().any(may_lack));
    }

    /// Losses of committed records that it has found since the last call, by partition.
    pub(crate) fn take_lost(&mut self) -> Vec<(usize, Lost)> {
        self.running.as_ref().map(|running| running.events.take_lost()).unwrap_or_default()
    }

    /// Returns true if its log directory has failed: a broker without any ends.
    pub(crate) fn has_failed(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.has_failed(self.id))
    }

    /// Terms in which it leads, by partition, with those that clients do not write to.
    pub(crate) fn led(&self) -> Vec<Option<u64>> {
        let partitions = self.running.as_ref().map(Running::partitions).unwrap_or_default();
        let led = partitions.iter().map(|partition| partition.leadership());
        led.map(|led| led.is_leader.then(|| term_of(led.epoch))).collect()
    }

    /// Transfers leadership to another replica, if it leads.
    pub(crate) fn transfer(&mut self, partition: usize, to: ReplicaId) {
        if let Some(partition) = self.partition(partition) {
            act_for(self.group().as_ref(), || partition.transfer(to.node()));
        }
    }

    /// Has the group of a partition move the log start to an offset. The wait ends when this replica has applied it. `None`: it is
    /// certainly not done, or there will be no answer.
    pub(crate) fn delete_records(&mut self, partition: usize, offset: i64) -> Option<Fate> {
        let fate = Fate::default();
        let partition = self.partition(partition)?;
        act_for(self.group().as_ref(), || partition.delete_records_before(offset, fate.wait())).ok()?;
        Some(fate)
    }

    /// Syncs appended records without a waiter, as `flush.ms` does: with `write.caching` there may be no other sync.
    pub(crate) fn flush(&mut self) {
        let partitions: Vec<_> = self.running.iter().flat_map(Running::partitions).collect();
        act_for(self.group().as_ref(), || partitions.iter().for_each(|one| one.request_flush()));
    }

    /// Removes the segments of a partition that precede its log start.
    pub(crate) fn maintain(&mut self, partition: usize) {
        let Some(partition) = self.partition(partition) else { return };
        if let Err(error) = act_for(self.group().as_ref(), || partition.maintain(&self.clock)) {
            tracing::debug!(%error, "no maintenance");
        }
    }

    /// Appends a batch where this node leads.
    ///
    /// # Errors
    /// As [`Partition::append`]; a node that does not run leads nothing.
    pub(crate) fn append(
        &self,
        partition: usize,
        bytes: &[u8],
        origin: Origin,
        guard: VerificationGuard,
    ) -> Result<Accepted, Refused> {
        let partition = self.partition(partition).ok_or(Refused::NotLeader)?;
        act_for(self.group().as_ref(), || {
            let outcome = partition.append_verified(bytes, origin, guard, &self.clock, &mut Scratch::new());
            outcome.map(|outcome| accepted(&partition, outcome))
        })
    }

    /// Appends the end of a transaction.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub(crate) fn append_marker(
        &self,
        partition: usize,
        marker: &TransactionMarker,
    ) -> Result<Accepted, Refused> {
        let partition = self.partition(partition).ok_or(Refused::NotLeader)?;
        act_for(self.group().as_ref(), || {
            let outcome = partition.append_marker(marker, &self.clock);
            outcome.map(|outcome| accepted(&partition, outcome))
        })
    }

    /// As [`Partition::begin_verification`]; `None`: the node does not run.
    pub(crate) fn begin_verification(
        &self,
        partition: usize,
        request: &VerificationRequest,
    ) -> Option<Result<Option<VerificationGuard>, Refused>> {
        let partition = self.partition(partition)?;
        Some(act_for(self.group().as_ref(), || partition.begin_verification(request, &self.clock)))
    }

    /// The partition, if its replica is in service.
    pub(crate) fn partition(&self, partition: usize) -> Option<Arc<Partition>> {
        let (running, identity) = (self.running.as_ref()?, self.partitions.get(partition)?);
        let partition = running.partition(partition, identity)?;
        partition.replica_failure().is_none().then_some(partition)
    }
}

/// The high watermark of a replica for the checkpoint of a node with `write.caching`.
trait Noted {
    /// The high watermark with which a restart would begin. While no write to the journal is pending, it covers all committed records.
    fn noted(self, replica: &Replica) -> Option<i64>;
}

impl Noted for ReplicaId {
    fn noted(self, replica: &Replica) -> Option<i64> {
        let (noted, ends) = (replica.high_watermark_to_note(), replica.log().ends());
        let journal = replica.journal().lock();
        let is_certain = replica.leads_settled() && journal.durable() == journal.appended();
        assert!(!is_certain || noted == Some(ends.high_watermark), "{self}: {noted:?} of {ends:?}");
        noted
    }
}

fn accepted(partition: &Partition, outcome: AppendOutcome) -> Accepted {
    let (appended, epoch) = (outcome.appended, outcome.epoch);
    let fate = Fate::default();
    partition.when_committed(appended.last_offset + 1, epoch, fate.wait());
    Accepted { appended, term: term_of(epoch), fate }
}

fn term_of(epoch: LeaderEpoch) -> u64 {
    u64::try_from(epoch.get()).expect("an epoch in which a replica leads")
}

fn group_of(partition: &PartitionIdentity) -> GroupId {
    GroupId { topic_id: partition.topic_id, partition: partition.partition }
}
