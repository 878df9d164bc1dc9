//! A simulated node: a disk, and while it runs a journal, a replica of each partition, and perhaps what is added up from a log.

use crate::applier::{Applier, Asked, Range as SnapshotRange};
use crate::world::Stop;
use mainstem_log::dir::{LogDir, LogDirOptions, NodeIdentity};
use mainstem_log::flusher::FlushWork;
use mainstem_log::sim::{Random, SimStorage};
#[cfg(test)]
use mainstem_log::storage::{DirEntry, OpenMode, Storage, write_all_at};
use mainstem_log::{AppendError, Appended, Log, LogConfig, Origin, PartitionIdentity, ReadBound, prepare};
use mainstem_records::{Batch, LeaderEpoch, Scratch, TimestampType};
use mainstem_replication::eraftpb::Message;
use mainstem_replication::history::CONTROL;
use mainstem_replication::journal::{InternalEntry, Journal, JournalSync, Start};
use mainstem_replication::{
    Configuration, GroupId, LeaderAppendError, Lost, MessageError, Outgoing, Replica, ReplicaId,
    ReplicaOptions, RoleState, StepError, found,
};
use parking_lot::Mutex;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

const DIR: &str = "/data";
/// What a stop and a start have on a disk that is full.
const RESERVE_BYTES: u64 = 1 << 20;
/// How often it is looked whether there is room again.
const LOOK_FOR_ROOM_MS: u64 = 500;
/// Segments of data: there are many.
const SEGMENT_BYTES: u32 = 3_000;
/// Segments of internal topics, whose batches are larger.
const INTERNAL_SEGMENT_BYTES: u32 = 30_000;

/// Where wall clocks begin.
const WALL_MS: i64 = 1_000_000;

/// Internal entries that say where the log starts: this, and the offset, as the broker writes them.
const ENTRY_LOG_START: u8 = 1;
/// A log start that has moved is in the checkpoint after so long.
const CHECKPOINT_MS: u64 = 20;

/// Promises of replicas are synced at times that are multiples of this.
const PROMISES_SYNC_MS: u64 = 100;

/// Batches are read in ranges of so many bytes.
const READ_BYTES: usize = 16 << 10;

/// What a node is made of.
pub(crate) struct NodeOptions {
    pub(crate) id: ReplicaId,
    /// The partitions of which it has a replica each.
    pub(crate) partitions: Arc<[PartitionIdentity]>,
    pub(crate) write_caching: bool,
    /// Whether it writes snapshots of what the first partition has, and gives up the log before them.
    pub(crate) has_snapshots: bool,
    /// Whether its clock is in the records of data.
    pub(crate) log_append_time: bool,
    pub(crate) seed: u64,
}

pub(crate) struct Node {
    id: ReplicaId,
    partitions: Arc<[PartitionIdentity]>,
    storage: SimStorage,
    write_caching: bool,
    /// The setting at present, where it is altered.
    caches_now: bool,
    seed: u64,
    boot: u64,
    /// How often it was started.
    starts: u64,
    running: Option<Running>,
    back_at_ms: u64,
    /// A power cut may have taken what it has acknowledged (`write.caching`), and it has not caught up since.
    may_lack: bool,
    disk: DiskFaults,
    /// So long takes what comes and goes, at most; 0: no longer than elsewhere.
    delay_max_ms: u64,
    /// So much its wall clock is ahead of the time, or, below 0, behind.
    clock_ms: i64,
    has_snapshots: bool,
    timestamp_type: TimestampType,
    /// High watermarks by partition, as on disk, where a power cut may take what was committed. A broker notes them every 5 s; here
    /// it is done at once, so that of all that was acknowledged somebody can say that it is gone.
    checkpoint: Vec<i64>,
    /// Committed records that it has found to be gone, by partition.
    lost: Vec<(usize, Lost)>,
    /// Log starts that its groups have decided on and that it has moved, by partition.
    deleted: Vec<(usize, i64)>,
    /// When the checkpoint of log starts is written; what is noted is lost with the process before.
    checkpoint_at_ms: Option<u64>,
    /// What precedes these offsets, by partition, was committed and durable when it ran last: it stays.
    kept_ends: Vec<i64>,
    /// Files of it were lost: it may lack what it has promised. Nothing else makes it do so.
    has_lost_files: bool,
}

/// The part of a log that is lost.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileLoss {
    /// Half of the last segment.
    Tail,
    /// The last segment.
    Segment,
    /// Bytes of one of the last records.
    Record,
    /// All of it.
    Directory,
}

/// What is wrong with a disk.
#[derive(Debug, Default, Clone, Copy)]
struct DiskFaults {
    /// It is full until then.
    full_until_ms: Option<u64>,
    /// No sync is done before.
    hangs_until_ms: u64,
    /// One of the next syncs fails.
    fails: bool,
    /// So long takes a sync, at most; 0: no longer than elsewhere.
    sync_max_ms: u64,
    room_at_ms: u64,
}

struct Running {
    dir: Arc<LogDir>,
    journal: Arc<Mutex<Journal>>,
    /// By partition.
    replicas: Vec<Replica>,
    sync: Option<Sync>,
    /// Of the first partition.
    applier: Option<Applier>,
    /// Questions that were answered, by partition ([`Replica::confirm`]).
    confirmed: Vec<(usize, u64)>,
}

/// A sync that the disk is busy with.
struct Sync {
    done_at_ms: u64,
    /// By partition.
    works: Vec<FlushWork>,
    journal: Option<JournalSync>,
}

/// What came of an append.
pub(crate) enum Produced {
    /// It is in the leader's log.
    Appended(Appended),
    /// It is not, for certain.
    NotLeader,
    /// It is not known.
    Failed,
}

impl Node {
    /// A node whose replicas are in their groups, and run.
    pub(crate) fn found(options: NodeOptions, voters: &[ReplicaId]) -> Node {
        let NodeOptions { id, partitions, write_caching, has_snapshots, log_append_time, seed } = options;
        let timestamp_type =
            if log_append_time { TimestampType::LogAppendTime } else { TimestampType::CreateTime };
        let storage = SimStorage::new();
        let mut node = Node {
            id,
            partitions,
            storage,
            write_caching,
            caches_now: write_caching,
            seed,
            boot: 1,
            starts: 0,
            running: None,
            back_at_ms: 0,
            may_lack: false,
            disk: DiskFaults::default(),
            delay_max_ms: 0,
            clock_ms: 0,
            has_snapshots,
            timestamp_type,
            checkpoint: Vec::new(),
            lost: Vec::new(),
            deleted: Vec::new(),
            checkpoint_at_ms: None,
            kept_ends: Vec::new(),
            has_lost_files: false,
        };
        let dir = node.open_dir();
        let (mut journal, _) = Journal::open(Arc::new(node.storage.clone()), dir.path()).expect("a journal");
        let configuration = Configuration::of_voters(voters);
        for partition in node.partitions.iter() {
            let group = group_of(partition);
            found(&mut journal, group, id, &configuration, Start::default()).expect("a founding");
        }
        node.checkpoint = vec![0; node.partitions.len()];
        node.kept_ends = vec![0; node.partitions.len()];
        node.start(dir, journal, 0);
        node
    }

    fn open_dir(&self) -> Arc<LogDir> {
        let identity = NodeIdentity { cluster_id: Some("cluster".into()), node_id: self.id.node() };
        let storage = Arc::new(self.storage.clone());
        let options = LogDirOptions { keep_reserve: true, ..LogDirOptions::default() };
        let dir = options.open(storage, Path::new(DIR), &identity, &format!("boot-{}", self.boot));
        dir.expect("a directory")
    }

    fn start(&mut self, dir: Arc<LogDir>, journal: Journal, now_ms: u64) {
        self.starts += 1;
        let open = |identity: &PartitionIdentity| {
            let is_internal = identity.topic.starts_with("__");
            let config = LogConfig {
                segment_bytes: if is_internal { INTERNAL_SEGMENT_BYTES } else { SEGMENT_BYTES },
                index_interval_bytes: 300,
                retention_ms: None,
                timestamp_type: if is_internal { TimestampType::CreateTime } else { self.timestamp_type },
                ..LogConfig::default()
            };
            // As a broker opens partitions, and what snapshots are made of.
            let open = if self.has_snapshots { Log::open } else { Log::open_replica };
            open(&dir, identity, Arc::new(config), now_ms).expect("the log opens").0
        };
        let logs: Vec<_> = self.partitions.iter().map(open).collect();
        dir.recovered().expect("the recovery is noted");
        let journal = Arc::new(Mutex::new(journal));
        let mut replicas = Vec::new();
        for (partition, (log, identity)) in logs.into_iter().zip(self.partitions.iter()).enumerate() {
            self.seed = self.seed.wrapping_add(1);
            let options = ReplicaOptions {
                write_caching: self.caches_now,
                seed: self.seed,
                high_watermark: self.checkpoint.get(partition).copied().unwrap_or(0),
                broadcast_commit: self.seed.is_multiple_of(2),
            };
            let replica = Replica::open(log, group_of(identity), journal.clone(), options, now_ms);
            let replica = replica.expect("the replica opens");
            assert!(
                !replica.lacks_promised() || self.has_lost_files,
                "{}: a power cut takes no promise",
                self.id
            );
            replicas.push(replica);
        }
        let applier = self.has_snapshots.then(|| Applier::open(&self.storage, &mut replicas[0]));
        replicas.iter().for_each(Replica::check);
        let confirmed = Vec::new();
        self.running = Some(Running { dir, journal, replicas, sync: None, applier, confirmed });
    }

    /// How often it was started; what it had in memory before is gone. `None`: it does not run.
    pub(crate) fn started(&self) -> Option<u64> {
        self.running.as_ref().map(|_| self.starts)
    }

    pub(crate) fn id(&self) -> ReplicaId {
        self.id
    }

    pub(crate) fn write_caching(&self) -> bool {
        self.write_caching
    }

    /// Alters the setting, while it runs or not.
    #[cfg(test)]
    pub(crate) fn alter_write_caching(&mut self, write_caching: bool) {
        self.caches_now = write_caching;
        let replicas = self.running.iter_mut().flat_map(|running| &mut running.replicas);
        replicas.for_each(|replica| replica.set_write_caching(write_caching));
    }

    pub(crate) fn stop(&mut self, stop: Stop, until_ms: u64, random: &mut Random) {
        self.back_at_ms = until_ms;
        self.checkpoint_at_ms = None;
        let Some(running) = self.running.take() else { return };
        self.end_failing_syncs();
        if stop == Stop::Clean {
            self.take_reserve();
            running.close();
        } else {
            drop(running);
        }
        match stop {
            Stop::PowerCut => {
                self.storage.power_cut(random);
                self.boot += 1;
                self.may_lack |= self.write_caching;
            }
            Stop::Kill | Stop::Clean => self.storage.kill(),
        }
    }

    pub(crate) fn come_back(&mut self, now_ms: u64) {
        if self.running.is_none() {
            self.take_reserve();
            let dir = self.open_dir();
            let (journal, _) = Journal::open(Arc::new(self.storage.clone()), dir.path()).expect("a journal");
            self.start(dir, journal, now_ms);
        }
    }

    /// Something of the log of the first partition is gone, while it does not run.
    #[cfg(test)]
    pub(crate) fn lose_files(&mut self, loss: FileLoss) {
        assert!(self.running.is_none());
        self.has_lost_files = true;
        let dir = Path::new(DIR).join(self.partitions[0].topic_partition().to_string());
        let is_written = |entry: &DirEntry| entry.name.ends_with(".log") && entry.len > 0;
        let mut segments = self.storage.list(&dir).expect("its directory");
        segments.retain(is_written);
        segments.sort_by(|one, other| one.name.cmp(&other.name));
        let Some(last) = segments.last().filter(|_| loss != FileLoss::Directory) else {
            return self.storage.remove_dir_all(&dir).expect("it is there");
        };
        let path = dir.join(&last.name);
        match loss {
            FileLoss::Directory => {}
            FileLoss::Segment => self.storage.remove_file(&path).expect("it is there"),
            FileLoss::Tail => {
                let file = self.storage.open(&path, OpenMode::ReadWrite).expect("a segment");
                file.set_len(last.len / 2).expect("a cut");
            }
            FileLoss::Record => {
                let file = self.storage.open(&path, OpenMode::ReadWrite).expect("a segment");
                write_all_at(&*file, &[0xFF; 16], last.len.saturating_sub(40)).expect("a write");
            }
        }
    }

    /// Returns true if it runs and lacks what it has promised.
    #[cfg(test)]
    pub(crate) fn lacks_promised(&self) -> bool {
        self.running.iter().flat_map(|running| &running.replicas).any(Replica::lacks_promised)
    }

    /// Its disk has room for so many bytes, until then.
    pub(crate) fn fill_disk(&mut self, room: u64, until_ms: u64) {
        self.storage.set_room(Some(room));
        self.disk.full_until_ms = Some(until_ms);
    }

    /// A stop and a start on a full disk live on what was kept in reserve.
    fn take_reserve(&self) {
        if self.disk.full_until_ms.is_some() {
            self.storage.set_room(Some(RESERVE_BYTES));
        }
    }

    /// No sync is done before.
    pub(crate) fn hang_disk(&mut self, until_ms: u64) {
        self.disk.hangs_until_ms = until_ms;
        if let Some(sync) = self.running.as_mut().and_then(|running| running.sync.as_mut()) {
            sync.done_at_ms = sync.done_at_ms.max(until_ms);
        }
    }

    /// The next sync fails, and what it should have written is not on the disk.
    pub(crate) fn fail_sync(&mut self) {
        if self.running.is_some() {
            self.disk.fails = true;
            self.storage.fail_syncs(1);
        }
    }

    fn end_failing_syncs(&mut self) {
        self.disk.fails = false;
        self.storage.fail_syncs(0);
    }

    /// A sync takes so long, at most.
    pub(crate) fn slow_disk(&mut self, sync_max_ms: u64) {
        self.disk.sync_max_ms = sync_max_ms;
    }

    /// What comes and goes takes so long, at most.
    pub(crate) fn delay_links(&mut self, delay_max_ms: u64) {
        self.delay_max_ms = delay_max_ms;
    }

    pub(crate) fn delay_max_ms(&self) -> u64 {
        self.delay_max_ms
    }

    /// Its wall clock is so much ahead of the time from now on, or, below 0, behind.
    pub(crate) fn set_clock(&mut self, ahead_ms: i64) {
        self.clock_ms = ahead_ms;
    }

    /// What its wall clock says.
    pub(crate) fn wall_ms(&self, now_ms: u64) -> i64 {
        WALL_MS + now_ms as i64 + self.clock_ms
    }

    /// Its disk, its links and its clock work.
    pub(crate) fn repair(&mut self, now_ms: u64) {
        (self.delay_max_ms, self.clock_ms, self.disk.sync_max_ms) = (0, 0, 0);
        self.end_failing_syncs();
        self.storage.set_room(None);
        self.disk.full_until_ms = None;
        self.disk.hangs_until_ms = 0;
        if let Some(sync) = self.running.as_mut().and_then(|running| running.sync.as_mut()) {
            sync.done_at_ms = sync.done_at_ms.min(now_ms);
        }
    }

    /// Whether a sync has failed: a broker that has lost its log directory ends.
    pub(crate) fn has_failed(&self) -> bool {
        self.running.as_ref().is_some_and(Running::has_failed)
    }

    /// Whether it runs, votes, and has all that it has acknowledged. Links are of no account.
    pub(crate) fn is_sound(&self, now_ms: u64) -> bool {
        let has_room = |running: &Running| self.disk.full_until_ms.is_none() && !running.dir.is_full();
        let runs = self.running.as_ref().is_some_and(|running| has_room(running) && !running.has_failed());
        runs && self.disk.hangs_until_ms <= now_ms && !self.may_lack
    }

    /// Whether a power cut may have taken what it has acknowledged, and it has not caught up since.
    pub(crate) fn may_lack(&self) -> bool {
        self.may_lack
    }

    /// What precedes this offset of a partition it knows to be committed: it has noted that, or seen it since it runs.
    pub(crate) fn known_end(&self, partition: usize) -> i64 {
        let noted = self.checkpoint[partition];
        self.replica(partition).map_or(noted, |replica| replica.log().ends().high_watermark.max(noted))
    }

    /// The term that a replica is in.
    pub(crate) fn term(&self, partition: usize) -> Option<u64> {
        Some(self.replica(partition)?.role().term)
    }

    fn look_after_disk(&mut self, now_ms: u64) {
        if self.disk.full_until_ms.is_some_and(|until_ms| until_ms <= now_ms) {
            self.storage.set_room(None);
            self.disk.full_until_ms = None;
        }
        if now_ms >= self.disk.room_at_ms {
            self.disk.room_at_ms = now_ms + LOOK_FOR_ROOM_MS;
            self.running.iter().for_each(|running| running.dir.look_for_room(now_ms));
        }
    }

    pub(crate) fn pass_time(&mut self, now_ms: u64) {
        self.look_after_disk(now_ms);
        if self.running.is_none() && now_ms >= self.back_at_ms {
            self.come_back(now_ms);
        }
        let Some(running) = &mut self.running else { return };
        for replica in running.replicas.iter_mut().filter(|replica| now_ms >= replica.next_tick_ms()) {
            replica.tick(now_ms);
        }
        let is_synced = running.sync.as_ref().is_some_and(|sync| sync.done_at_ms <= now_ms);
        if is_synced && running.end_sync() {
            self.checkpoint_at_ms.get_or_insert(now_ms + CHECKPOINT_MS);
        }
        // Now and then, and not by the disk's queue: what it has had before counts as well.
        if is_synced
            && now_ms.is_multiple_of(PROMISES_SYNC_MS)
            && !self.disk.fails
            && self.disk.hangs_until_ms <= now_ms
            && let Some(file) = running.journal.lock().promises_to_sync()
        {
            file.sync_data().expect("a disk that works");
        }
        if self.checkpoint_at_ms.take_if(|at_ms| *at_ms <= now_ms).is_some()
            && let Err(error) = running.dir.checkpoints().log_start.commit()
        {
            tracing::debug!(%error, "no log start is noted");
        }
        let Running { replicas, applier: Some(applier), .. } = running else { return };
        let replica = &mut replicas[0];
        if replica.failed().is_none() {
            applier.pass_time(replica, now_ms);
            replica.check();
        }
    }

    /// The range of a snapshot that it asks for now, and the node that has it.
    pub(crate) fn ask(&mut self, now_ms: u64) -> Option<(i32, Asked)> {
        let Running { replicas, applier, .. } = self.running.as_mut()?;
        let leader = match replicas[0].role().state {
            RoleState::Follower { leader: Some(leader) } => leader.node(),
            _ => return None,
        };
        Some((leader, applier.as_mut()?.ask(now_ms)?))
    }

    /// Reads a range of a snapshot for another node; `None`: it does not run.
    pub(crate) fn answer(&mut self, asked: Asked, from: ReplicaId) -> Option<SnapshotRange> {
        let Running { replicas, applier, .. } = self.running.as_mut()?;
        Some(applier.as_ref()?.answer(asked, from.node(), &mut replicas[0]))
    }

    /// Takes a range that it has asked for.
    pub(crate) fn take(&mut self, range: SnapshotRange, now_ms: u64) {
        let Some(Running { replicas, applier: Some(applier), .. }) = &mut self.running else { return };
        let replica = &mut replicas[0];
        if replica.failed().is_none() {
            applier.take(range, replica, now_ms);
            replica.check();
        }
    }

    /// Snapshots that took the place of its log since the last question.
    pub(crate) fn take_restored(&mut self) -> usize {
        let applier = self.running.as_mut().and_then(|running| running.applier.as_mut());
        applier.map_or(0, Applier::take_restored)
    }

    /// Removes all that retention may: it begins a segment, and takes the one before it once that is durable.
    #[cfg(test)]
    pub(crate) fn retain_nothing(&mut self, now_ms: u64) {
        let Some(running) = &mut self.running else { return };
        let replica = &mut running.replicas[0];
        let before = replica.log().config().clone();
        let log = replica.log_mut();
        log.set_config(Arc::new(LogConfig { retention_ms: Some(-1), ..(*before).clone() }));
        // As if the leader had proposed it.
        if let Some(offset) = log.unwanted_before(1 << 50).expect("the ages of segments") {
            log.delete_records_before(offset).expect("a start below the high watermark");
        }
        let mut work = log.begin_maintenance(1 << 50, now_ms).expect("maintenance");
        replica.follow_roll().expect("a mark");
        work.run();
        let log = replica.log_mut();
        log.end_maintenance(work).expect("maintenance");
        log.set_config(before);
        if running.sync.is_none() {
            running.begin_sync(now_ms);
        }
    }

    /// Has the log of the first partition begin at the high watermark, as if all before had been deleted, with all on disk. Returns
    /// where.
    #[cfg(test)]
    pub(crate) fn begin_at_high_watermark(&mut self, now_ms: u64) -> i64 {
        let running = self.running.as_mut().expect("it runs");
        running.end_sync();
        running.begin_sync(now_ms);
        running.end_sync();
        let replica = &mut running.replicas[0];
        let offset = replica.log().ends().high_watermark;
        let at = replica.entry_before(offset).expect("it is one of the last");
        replica.remember(at).expect("a mark");
        replica.log_mut().delete_records_before(offset).expect("they are committed");
        replica.follow_log_start().expect("it is noted");
        assert_eq!(replica.start().offset, offset);
        offset
    }

    /// Committed records that it has found to be gone since the last question, by partition.
    pub(crate) fn take_lost(&mut self) -> Vec<(usize, Lost)> {
        std::mem::take(&mut self.lost)
    }

    /// Log starts that were moved since the last question, by partition.
    pub(crate) fn take_deleted(&mut self) -> Vec<(usize, i64)> {
        std::mem::take(&mut self.deleted)
    }

    /// Has the group of a partition decide that its log starts at an offset. Returns false where that is certain not to be done, or
    /// no one will say so.
    pub(crate) fn delete_records(&mut self, partition: usize, offset: i64) -> bool {
        let data = [&[ENTRY_LOG_START][..], &offset.to_be_bytes()].concat();
        self.replica_mut(partition).is_some_and(|replica| replica.propose(data).is_ok())
    }

    /// What precedes this offset of a partition is here for good, whether it runs or not.
    pub(crate) fn kept_end(&self, partition: usize) -> i64 {
        self.kept_ends[partition]
    }

    /// Begins a sync that no one waits for, as `flush.ms` has it: with caching there may be none otherwise.
    pub(crate) fn flush(&mut self, now_ms: u64) {
        let done_at_ms = (now_ms + 1).max(self.disk.hangs_until_ms);
        if let Some(running) = self.running.as_mut().filter(|running| !running.has_failed())
            && running.sync.is_none()
        {
            running.begin_sync(done_at_ms);
        }
    }

    /// Removes the segments of a partition that precede its log start.
    pub(crate) fn maintain(&mut self, partition: usize, now_ms: u64) {
        let wall_ms = self.wall_ms(now_ms);
        let Some(replica) = self.replica_mut(partition).filter(|replica| replica.failed().is_none()) else {
            return;
        };
        if let Err(error) = maintain(replica, wall_ms, now_ms) {
            tracing::debug!(%error, "no maintenance");
        }
        // A broker ends with its log directory.
        if let Some(reason) = replica.log().stopped().map(str::to_owned) {
            replica.stop(reason);
        }
        replica.check();
    }

    /// Log start, log end and index of the last entry, while it runs.
    #[cfg(test)]
    pub(crate) fn extent(&self) -> Option<(i64, i64, u64)> {
        let replica = &self.running.as_ref()?.replicas[0];
        let ends = replica.log().ends();
        Some((ends.log_start, ends.log_end, replica.last_and_committed().0))
    }

    /// # Errors
    /// The batches are not those of the message's entries, as [`Replica::step`] says.
    pub(crate) fn step(
        &mut self,
        partition: usize,
        message: Message,
        offset: i64,
        batches: &[u8],
    ) -> Result<(), MessageError> {
        let Some(running) = &mut self.running else { return Ok(()) };
        let replica = &mut running.replicas[partition];
        match replica.step(message, offset, batches) {
            Ok(()) => replica.check(),
            Err(StepError::Message(error @ MessageError::Batches(_))) => return Err(error),
            Err(StepError::Message(error)) => panic!("{}: {error}", self.id),
            Err(StepError::Replica(error)) => assert!(self.disk.fails, "{}: {error}", self.id),
        }
        Ok(())
    }

    pub(crate) fn report_unreachable(&mut self, id: ReplicaId) {
        if let Some(running) = &mut self.running
            && id != self.id
        {
            running.replicas.iter_mut().for_each(|replica| replica.report_unreachable(id));
        }
    }

    /// A heartbeat that was just taken stands from now on.
    pub(crate) fn let_stand(&mut self, partition: usize, from: ReplicaId, term: u64) {
        if let Some(replica) = self.replica_mut(partition) {
            replica.let_stand(from, term);
        }
    }

    /// A heartbeat that stands here was repeated. Returns false where it follows no such leader.
    pub(crate) fn hear(&mut self, partition: usize, term: u64, now_ms: u64) -> bool {
        let Some(replica) = self.replica_mut(partition) else { return false };
        let stands = replica.stands_in() == Some(term);
        if stands {
            replica.hear(now_ms);
        }
        stands
    }

    pub(crate) fn note_answer(&mut self, partition: usize, from: ReplicaId) {
        if let Some(replica) = self.replica_mut(partition) {
            replica.note_answer(from);
        }
    }

    pub(crate) fn note_refusal(&mut self, partition: usize, from: ReplicaId) {
        if let Some(replica) = self.replica_mut(partition) {
            replica.note_refusal(from);
        }
    }

    fn replica_mut(&mut self, partition: usize) -> Option<&mut Replica> {
        self.running.as_mut()?.replicas.get_mut(partition)
    }

    fn replica(&self, partition: usize) -> Option<&Replica> {
        self.running.as_ref()?.replicas.get(partition)
    }

    /// The leader is known to be gone, and this replica takes its place, or another one does.
    #[cfg(test)]
    pub(crate) fn note_leader_gone(&mut self, succeeds: bool) {
        let Some(replica) = self.replica_mut(0) else { return };
        replica.expect_no_leader();
        if succeeds {
            replica.succeed();
        }
    }

    pub(crate) fn transfer(&mut self, partition: usize, to: ReplicaId) {
        if let Some(replica) = self.replica_mut(partition) {
            replica.transfer(to);
        }
    }

    /// Drives the replicas, begins a sync where one is due, and returns what is to be sent, by partition.
    pub(crate) fn drive(
        &mut self,
        now_ms: u64,
        sync_max_ms: u64,
        random: &mut Random,
    ) -> Vec<(usize, Outgoing)> {
        let sync_max_ms = sync_max_ms.max(self.disk.sync_max_ms);
        let Some(running) = &mut self.running else { return Vec::new() };
        let (mut messages, mut flush) = (Vec::new(), false);
        for (partition, replica) in running.replicas.iter_mut().enumerate() {
            let mut effects = match replica.drive() {
                Ok(effects) => effects,
                Err(error) => {
                    assert!(self.disk.fails, "{}: {error}", self.id);
                    return Vec::new();
                }
            };
            replica.check();
            for offset in effects.applied.iter().filter_map(log_start_of) {
                raise_log_start(replica, offset);
                self.deleted.push((partition, offset));
                self.checkpoint_at_ms.get_or_insert(now_ms + CHECKPOINT_MS);
            }
            if let Some(applier) = running.applier.as_mut().filter(|_| partition == 0) {
                applier.note(&mut effects, replica);
            }
            let ends = replica.log().ends();
            let kept_end = &mut self.kept_ends[partition];
            *kept_end = ends.durable_end.min(ends.high_watermark).max(*kept_end);
            // A log start that is not durable waits for a sync.
            let start_waits = running.applier.is_none() && replica.log().lasting_log_start() < ends.log_start;
            flush |= effects.flush || start_waits;
            self.lost.extend(effects.lost.drain(..).map(|lost| (partition, lost)));
            if self.write_caching {
                let noted = replica.high_watermark_to_note();
                let journal = running.journal.lock();
                let is_certain = replica.leads_settled() && journal.durable() == journal.appended();
                assert!(
                    !is_certain || noted == Some(ends.high_watermark),
                    "{}: {noted:?} of {ends:?}",
                    self.id
                );
                self.checkpoint[partition] = noted.unwrap_or(self.checkpoint[partition]);
            }
            running.confirmed.extend(effects.confirmed.iter().map(|number| (partition, *number)));
            messages.extend(effects.messages.into_iter().map(|message| (partition, message)));
        }
        self.may_lack &= running.replicas.iter().any(Replica::may_lack_acknowledged);
        if flush && running.sync.is_none() {
            let done_at_ms = (now_ms + 1 + random.below(sync_max_ms)).max(self.disk.hangs_until_ms);
            running.begin_sync(done_at_ms);
            // What it would say needs a log that can be read.
            if running.has_failed() {
                return Vec::new();
            }
        }
        messages
    }

    /// The bytes of batches, as a link sends them.
    pub(crate) fn read(&self, partition: usize, offsets: Range<i64>) -> Vec<u8> {
        self.replica(partition).map_or_else(Vec::new, |replica| read_batches(replica.log(), offsets))
    }

    /// The term in which a replica leads.
    pub(crate) fn leads(&self, partition: usize) -> Option<u64> {
        let role = self.replica(partition)?.role();
        (role.state == RoleState::Leader).then_some(role.term)
    }

    /// The same, where what leaders before it have committed is known to be committed.
    pub(crate) fn leads_settled(&self, partition: usize) -> Option<u64> {
        let is_settled = self.replica(partition)?.leads_settled();
        self.leads(partition).filter(|_| is_settled)
    }

    /// The log of a replica that is in service.
    pub(crate) fn log(&self, partition: usize) -> Option<&Log> {
        self.replica(partition).filter(|replica| replica.failed().is_none()).map(Replica::log)
    }

    /// The same, for what the group does not decide.
    pub(crate) fn log_mut(&mut self, partition: usize) -> Option<&mut Log> {
        self.replica_mut(partition).filter(|replica| replica.failed().is_none()).map(Replica::log_mut)
    }

    /// Asks whether a replica leads ([`Replica::confirm`]).
    pub(crate) fn confirm(&mut self, partition: usize, number: u64) -> bool {
        self.replica_mut(partition).is_some_and(|replica| replica.confirm(number))
    }

    /// Questions of a partition that were answered since the last call.
    pub(crate) fn take_confirmed(&mut self, partition: usize) -> Vec<u64> {
        let Some(running) = &mut self.running else { return Vec::new() };
        let of_partition = running.confirmed.extract_if(.., |(of, _)| *of == partition);
        of_partition.map(|(_, number)| number).collect()
    }

    /// Appends what `write` makes, where this node leads the partition.
    ///
    /// # Errors
    /// As [`Replica::append_with`]; the replica does not lead where the node does not run.
    pub(crate) fn append_with(
        &mut self,
        partition: usize,
        size: usize,
        write: impl FnOnce(&mut Log, LeaderEpoch) -> Result<Appended, AppendError>,
    ) -> Result<Appended, LeaderAppendError> {
        let Some(replica) = self.replica_mut(partition) else {
            return Err(LeaderAppendError::NotLeader { leader: None });
        };
        replica.append_with(u32::try_from(size).unwrap_or(u32::MAX), write)
    }

    /// The replicas that are in sync as this one sees it, the leader.
    pub(crate) fn in_sync(&self, partition: usize, now_ms: u64, lag_max_ms: u64) -> Vec<ReplicaId> {
        self.replica(partition).map_or_else(Vec::new, |replica| replica.in_sync(now_ms, lag_max_ms))
    }

    pub(crate) fn produce(&mut self, partition: usize, batch: &[u8], now_ms: u64) -> Produced {
        let wall_ms = self.wall_ms(now_ms);
        let Some(replica) = self.replica_mut(partition) else { return Produced::NotLeader };
        let config = replica.log().config().clone();
        let mut out = Vec::new();
        let prepared = prepare(batch, &config, wall_ms, Origin::Client, &mut Scratch::new(), &mut out);
        match replica.append(&prepared.expect("a batch of ours"), now_ms) {
            Ok(appended) => Produced::Appended(appended),
            Err(LeaderAppendError::NotLeader { .. }) => Produced::NotLeader,
            Err(error) => {
                // A retry reaches a leader that has not yet got what it follows: as unknown as before.
                tracing::debug!(%error, "not appended");
                Produced::Failed
            }
        }
    }

    pub(crate) fn acknowledged_offset(&self, partition: usize, min_insync: usize) -> Option<i64> {
        Some(self.replica(partition)?.acknowledged_offset(min_insync))
    }

    /// End and term of all that it has, if all of it is committed.
    pub(crate) fn content_end(&self, partition: usize) -> Option<(u64, u64, i64)> {
        let replica = self.replica(partition)?;
        let (last, term, committed) = replica.last_and_committed();
        (last == committed).then(|| (last, term, replica.log().ends().log_end))
    }

    /// The values from an offset on: all, or those that consumers may read.
    pub(crate) fn records(&self, partition: usize, from: i64, all: bool) -> Vec<(i64, u64)> {
        let Some(log) = self.log(partition) else { return Vec::new() };
        let ends = log.ends();
        let end = if all { ends.log_end } else { ends.high_watermark };
        // What the log has not any more has been added up.
        let applier = self.running.iter().filter_map(|running| running.applier.as_ref());
        let added_up = applier.flat_map(|applier| applier.values(from..ends.log_start.min(end)));
        let mut records: Vec<_> = added_up.collect();
        let from = from.max(ends.log_start);
        if from < end {
            records.extend(read_records(log, from..end));
        }
        records
    }
}

fn group_of(partition: &PartitionIdentity) -> GroupId {
    GroupId { topic_id: partition.topic_id, partition: partition.partition }
}

/// Where an internal entry says that the log starts.
fn log_start_of(entry: &InternalEntry) -> Option<i64> {
    let [ENTRY_LOG_START, offset @ ..] = &entry.data[..] else { return None };
    offset.try_into().ok().map(i64::from_be_bytes)
}

/// The group has decided that the log starts at an offset.
fn raise_log_start(replica: &mut Replica, offset: i64) {
    let log = replica.log_mut();
    if offset > log.ends().log_start
        && let Err(error) = log.delete_records_before(offset)
    {
        tracing::debug!(%error, "the log start stays");
    }
}

/// What the broker's housekeeping does with a partition.
fn maintain(replica: &mut Replica, wall_ms: i64, now_ms: u64) -> Result<(), Box<dyn std::error::Error>> {
    let mut work = replica.log_mut().begin_maintenance(wall_ms, now_ms)?;
    if replica.follow_roll()? {
        Journal::sync_beside_others(replica.journal())?;
    }
    work.run();
    replica.log_mut().end_maintenance(work)?;
    replica.follow_log_start()?;
    Ok(())
}

/// The bytes of batches.
pub(crate) fn read_batches(log: &Log, offsets: Range<i64>) -> Vec<u8> {
    let (mut bytes, mut next) = (Vec::new(), offsets.start);
    while next < offsets.end {
        let range = log.read_waiting(next, ReadBound::LogEnd, READ_BYTES, true).expect("a read");
        let Some(range) = range else { break };
        let (some, before) = (range.to_vec().expect("a read"), next);
        let mut rest = &some[..];
        while next < offsets.end
            && let Ok((batch, behind)) = Batch::split_first(rest)
        {
            next = batch.next_offset();
            bytes.extend_from_slice(batch.bytes());
            rest = behind;
        }
        assert!(next > before, "no batch at {next}");
    }
    bytes
}

/// Offsets and values of records; control records have the value [`CONTROL`].
pub(crate) fn read_records(log: &Log, offsets: Range<i64>) -> Vec<(i64, u64)> {
    let bytes = read_batches(log, offsets.clone());
    let (mut rest, mut records) = (&bytes[..], Vec::new());
    while let Ok((batch, behind)) = Batch::split_first(rest) {
        records.extend(records_of(&batch).into_iter().filter(|(offset, _)| offsets.contains(offset)));
        rest = behind;
    }
    records
}

/// The same of one batch.
pub(crate) fn records_of(batch: &Batch<'_>) -> Vec<(i64, u64)> {
    let mut buffer = Vec::new();
    let records = batch.records(&mut buffer, 1 << 20, &mut Scratch::new()).expect("records");
    let is_control = batch.attributes().is_control();
    let value_of = |value: Option<&[u8]>| {
        let value = value.and_then(|value| value.get(..8)?.try_into().ok());
        u64::from_be_bytes(value.expect("a value of ours"))
    };
    let pairs = records.map(|record| {
        let record = record.expect("a record");
        (record.offset, if is_control { CONTROL } else { value_of(record.value) })
    });
    pairs.collect()
}

impl Running {
    fn has_failed(&self) -> bool {
        self.replicas.iter().any(|replica| replica.failed().is_some())
    }

    fn begin_sync(&mut self, done_at_ms: u64) {
        let works: Vec<_> = self.replicas.iter_mut().map(|replica| replica.log_mut().flush_work()).collect();
        let journal = self.journal.lock().sync_work();
        // What is written from here on is not covered.
        if let Err(error) = self.sync(&works, journal.as_ref()) {
            self.journal.lock().fail(&error);
            for replica in &mut self.replicas {
                replica.log_mut().failed(&error);
                replica.stop(format!("a sync failed: {error}"));
            }
            return;
        }
        self.sync = Some(Sync { done_at_ms, works, journal });
    }

    fn sync(&self, works: &[FlushWork], journal: Option<&JournalSync>) -> io::Result<()> {
        let storage = self.dir.storage();
        for work in works {
            work.files.iter().try_for_each(|file| file.sync_data())?;
            work.directories.iter().try_for_each(|dir| storage.sync_dir(dir))?;
        }
        journal.map_or(Ok(()), |journal| journal.file.sync_data())
    }

    /// Returns true if a log start was noted that has waited for it.
    fn end_sync(&mut self) -> bool {
        let Some(sync) = self.sync.take() else { return false };
        let mut is_noted = false;
        for (replica, work) in self.replicas.iter_mut().zip(&sync.works) {
            is_noted |= replica.log_mut().flushed(work.upto);
        }
        let mut journal = self.journal.lock();
        if let Some(synced) = sync.journal {
            journal.synced(synced.upto);
        }
        if journal.rewrite_due()
            && let Err(error) = journal.rewrite()
        {
            tracing::debug!(%error, "the journal is not written anew");
        }
        journal.check();
        drop(journal);
        self.replicas.iter_mut().for_each(Replica::persisted);
        is_noted
    }

    fn close(mut self) {
        for replica in &mut self.replicas {
            replica.prepare_close().expect("the replica closes");
        }
        self.journal.lock().sync().expect("the journal is synced");
        for replica in self.replicas {
            replica.into_log().close().expect("the log closes");
        }
        self.dir.stop_clean().expect("the directory closes");
    }
}
