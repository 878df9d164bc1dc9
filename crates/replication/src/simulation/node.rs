//! A simulated node: a disk, and while it runs a journal, a replica, and perhaps what is added up from its log.

use super::Stop;
use super::applier::{Applier, Asked, Range as SnapshotRange};
use crate::group::{Configuration, GroupId, ReplicaId};
use crate::journal::{Journal, JournalSync, Start};
use crate::replica::{Outgoing, Replica, ReplicaOptions, RoleState, StepError, found};
use mainstem_log::dir::{LogDir, LogDirOptions, NodeIdentity};
use mainstem_log::flusher::FlushWork;
use mainstem_log::sim::{Random, SimStorage};
use mainstem_log::{Appended, Log, LogConfig, Origin, PartitionIdentity, ReadBound, prepare};
use mainstem_records::{Batch, Scratch};
use parking_lot::Mutex;
use raft::eraftpb::Message;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

const DIR: &str = "/data";
/// What a stop and a start have on a disk that is full.
const RESERVE_BYTES: u64 = 1 << 20;
/// How often it is looked whether there is room again.
const LOOK_FOR_ROOM_MS: u64 = 500;
pub(super) const GROUP: GroupId = GroupId { topic_id: [7; 16], partition: 0 };

pub(super) struct Node {
    id: ReplicaId,
    storage: SimStorage,
    write_caching: bool,
    seed: u64,
    boot: u64,
    running: Option<Running>,
    back_at_ms: u64,
    disk: DiskFaults,
    has_snapshots: bool,
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
    room_at_ms: u64,
}

struct Running {
    dir: Arc<LogDir>,
    journal: Arc<Mutex<Journal>>,
    replica: Replica,
    sync: Option<Sync>,
    applier: Option<Applier>,
}

/// A sync that the disk is busy with.
struct Sync {
    done_at_ms: u64,
    work: FlushWork,
    journal: Option<JournalSync>,
}

/// What came of an append.
pub(super) enum Produced {
    /// It is in the leader's log.
    Appended(Appended),
    /// It is not, for certain.
    NotLeader,
    /// It is not known.
    Failed,
}

impl Node {
    /// A node whose replica is in the group, and runs.
    pub(super) fn found(
        id: ReplicaId,
        voters: &[ReplicaId],
        write_caching: bool,
        has_snapshots: bool,
        seed: u64,
    ) -> Node {
        let storage = SimStorage::new();
        let mut node = Node {
            id,
            storage,
            write_caching,
            seed,
            boot: 1,
            running: None,
            back_at_ms: 0,
            disk: DiskFaults::default(),
            has_snapshots,
        };
        let dir = node.open_dir();
        let (mut journal, _) = Journal::open(Arc::new(node.storage.clone()), dir.path()).expect("a journal");
        let configuration = Configuration::of_voters(voters);
        found(&mut journal, GROUP, id, &configuration, Start::default()).expect("a founding");
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
        let identity = PartitionIdentity { topic: "t".into(), topic_id: GROUP.topic_id, partition: 0 };
        let config = LogConfig {
            segment_bytes: 3000,
            index_interval_bytes: 300,
            retention_ms: None,
            ..LogConfig::default()
        };
        let (log, _) = Log::open(&dir, &identity, Arc::new(config), now_ms).expect("the log opens");
        dir.recovered().expect("the recovery is noted");
        let journal = Arc::new(Mutex::new(journal));
        self.seed = self.seed.wrapping_add(1);
        let options = ReplicaOptions {
            write_caching: self.write_caching,
            seed: self.seed,
            high_watermark: 0,
            broadcast_commit: self.seed.is_multiple_of(2),
        };
        let mut replica =
            Replica::open(log, GROUP, journal.clone(), options, now_ms).expect("the replica opens");
        let applier = self.has_snapshots.then(|| Applier::open(&self.storage, &mut replica));
        replica.check();
        self.running = Some(Running { dir, journal, replica, sync: None, applier });
    }

    pub(super) fn id(&self) -> ReplicaId {
        self.id
    }

    pub(super) fn write_caching(&self) -> bool {
        self.write_caching
    }

    pub(super) fn stop(&mut self, stop: Stop, until_ms: u64, random: &mut Random) {
        self.back_at_ms = until_ms;
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
            }
            Stop::Kill | Stop::Clean => self.storage.kill(),
        }
    }

    pub(super) fn come_back(&mut self, now_ms: u64) {
        if self.running.is_none() {
            self.take_reserve();
            let dir = self.open_dir();
            let (journal, _) = Journal::open(Arc::new(self.storage.clone()), dir.path()).expect("a journal");
            self.start(dir, journal, now_ms);
        }
    }

    /// Its disk has room for so many bytes, until then.
    pub(super) fn fill_disk(&mut self, room: u64, until_ms: u64) {
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
    pub(super) fn hang_disk(&mut self, until_ms: u64) {
        self.disk.hangs_until_ms = until_ms;
        if let Some(sync) = self.running.as_mut().and_then(|running| running.sync.as_mut()) {
            sync.done_at_ms = sync.done_at_ms.max(until_ms);
        }
    }

    /// The next sync fails, and what it should have written is not on the disk.
    pub(super) fn fail_sync(&mut self) {
        if self.running.is_some() {
            self.disk.fails = true;
            self.storage.fail_syncs(1);
        }
    }

    fn end_failing_syncs(&mut self) {
        self.disk.fails = false;
        self.storage.fail_syncs(0);
    }

    /// Its disk works.
    pub(super) fn repair_disk(&mut self, now_ms: u64) {
        self.end_failing_syncs();
        self.storage.set_room(None);
        self.disk.full_until_ms = None;
        self.disk.hangs_until_ms = 0;
        if let Some(sync) = self.running.as_mut().and_then(|running| running.sync.as_mut()) {
            sync.done_at_ms = sync.done_at_ms.min(now_ms);
        }
    }

    /// Whether a sync has failed: a broker that has lost its log directory ends.
    pub(super) fn has_failed(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.replica.failed().is_some())
    }

    fn look_after_disk(&mut self, now_ms: u64) {
        if self.disk.full_until_ms.is_some_and(|until_ms| until_ms <= now_ms) {
            self.storage.set_room(None);
            self.disk.full_until_ms = None;
        }
        if now_ms >= self.disk.room_at_ms {
            self.disk.room_at_ms = now_ms + LOOK_FOR_ROOM_MS;
            self.running.iter().for_each(|running| running.dir.look_for_room());
        }
    }

    pub(super) fn pass_time(&mut self, now_ms: u64) {
        self.look_after_disk(now_ms);
        if self.running.is_none() && now_ms >= self.back_at_ms {
            self.come_back(now_ms);
        }
        let Some(running) = &mut self.running else { return };
        if now_ms >= running.replica.next_tick_ms() {
            running.replica.tick(now_ms);
        }
        if running.sync.as_ref().is_some_and(|sync| sync.done_at_ms <= now_ms) {
            running.end_sync();
        }
        let Running { replica, applier: Some(applier), .. } = running else { return };
        if replica.failed().is_none() {
            applier.pass_time(replica, now_ms);
            replica.check();
        }
    }

    /// The range of a snapshot that it asks for now, and the node that has it.
    pub(super) fn ask(&mut self, now_ms: u64) -> Option<(i32, Asked)> {
        let Running { replica, applier, .. } = self.running.as_mut()?;
        let leader = match replica.role().state {
            RoleState::Follower { leader: Some(leader) } => leader.node(),
            _ => return None,
        };
        Some((leader, applier.as_mut()?.ask(now_ms)?))
    }

    /// Reads a range of a snapshot for another node; `None`: it does not run.
    pub(super) fn answer(&mut self, asked: Asked, from: ReplicaId) -> Option<SnapshotRange> {
        let Running { replica, applier, .. } = self.running.as_mut()?;
        Some(applier.as_ref()?.answer(asked, from.node(), replica))
    }

    /// Takes a range that it has asked for.
    pub(super) fn take(&mut self, range: SnapshotRange, now_ms: u64) {
        let Some(Running { replica, applier: Some(applier), .. }) = &mut self.running else { return };
        if replica.failed().is_none() {
            applier.take(range, replica, now_ms);
            replica.check();
        }
    }

    /// Snapshots that took the place of its log since the last question.
    pub(super) fn take_restored(&mut self) -> usize {
        let applier = self.running.as_mut().and_then(|running| running.applier.as_mut());
        applier.map_or(0, Applier::take_restored)
    }

    /// Removes all that retention may: it begins a segment, and takes the one before it once that is durable.
    #[cfg(test)]
    pub(super) fn retain_nothing(&mut self, now_ms: u64) {
        let Some(running) = &mut self.running else { return };
        let before = running.replica.log().config().clone();
        let log = running.replica.log_mut();
        log.set_config(Arc::new(LogConfig { retention_ms: Some(-1), ..(*before).clone() }));
        let mut work = log.begin_maintenance(1 << 50, now_ms).expect("maintenance");
        running.replica.follow_roll().expect("a mark");
        work.run();
        let log = running.replica.log_mut();
        log.end_maintenance(work).expect("maintenance");
        log.set_config(before);
        if running.sync.is_none() {
            running.begin_sync(now_ms);
        }
    }

    /// Log start, log end and index of the last entry, while it runs.
    #[cfg(test)]
    pub(super) fn extent(&self) -> Option<(i64, i64, u64)> {
        let replica = &self.running.as_ref()?.replica;
        let ends = replica.log().ends();
        Some((ends.log_start, ends.log_end, replica.last_and_committed().0))
    }

    pub(super) fn step(&mut self, message: Message, offset: i64, batches: &[u8]) {
        let Some(running) = &mut self.running else { return };
        match running.replica.step(message, offset, batches) {
            Ok(()) => running.replica.check(),
            Err(StepError::Message(error)) => panic!("{}: {error}", self.id),
            Err(StepError::Replica(error)) => assert!(self.disk.fails, "{}: {error}", self.id),
        }
    }

    pub(super) fn report_unreachable(&mut self, id: ReplicaId) {
        if let Some(running) = &mut self.running
            && id != self.id
        {
            running.replica.report_unreachable(id);
        }
    }

    /// A heartbeat that was just taken stands from now on.
    pub(super) fn let_stand(&mut self, from: ReplicaId, term: u64) {
        if let Some(running) = &mut self.running {
            running.replica.let_stand(from, term);
        }
    }

    /// All heartbeats that stand here were repeated. Returns false where it follows no such leader.
    pub(super) fn hear(&mut self, term: u64, now_ms: u64) -> bool {
        let Some(running) = &mut self.running else { return false };
        let stands = running.replica.stands_in() == Some(term);
        if stands {
            running.replica.hear(now_ms);
        }
        stands
    }

    pub(super) fn note_answer(&mut self, from: ReplicaId) {
        if let Some(running) = &mut self.running {
            running.replica.note_answer(from);
        }
    }

    pub(super) fn note_refusal(&mut self, from: ReplicaId) {
        if let Some(running) = &mut self.running {
            running.replica.note_refusal(from);
        }
    }

    /// The leader is known to be gone, and this replica takes its place, or another one does.
    #[cfg(test)]
    pub(super) fn note_leader_gone(&mut self, succeeds: bool) {
        let Some(running) = &mut self.running else { return };
        running.replica.expect_no_leader();
        if succeeds {
            running.replica.succeed();
        }
    }

    pub(super) fn transfer(&mut self, to: ReplicaId) {
        if let Some(running) = &mut self.running {
            running.replica.transfer(to);
        }
    }

    /// Drives the replica, begins a sync where one is due, and returns what is to be sent.
    pub(super) fn drive(&mut self, now_ms: u64, sync_max_ms: u64, random: &mut Random) -> Vec<Outgoing> {
        let Some(running) = &mut self.running else { return Vec::new() };
        let mut effects = match running.replica.drive() {
            Ok(effects) => effects,
            Err(error) => {
                assert!(self.disk.fails, "{}: {error}", self.id);
                return Vec::new();
            }
        };
        running.replica.check();
        if let Some(applier) = &mut running.applier {
            applier.note(&mut effects, &mut running.replica);
        }
        if effects.flush && running.sync.is_none() {
            let done_at_ms = (now_ms + 1 + random.below(sync_max_ms)).max(self.disk.hangs_until_ms);
            running.begin_sync(done_at_ms);
            // What it would say needs a log that can be read.
            if running.replica.failed().is_some() {
                return Vec::new();
            }
        }
        std::mem::take(&mut effects.messages)
    }

    /// The bytes of batches, as a link sends them.
    pub(super) fn read(&self, offsets: Range<i64>) -> Vec<u8> {
        let Some(running) = &self.running else { return Vec::new() };
        read_batches(running.replica.log(), offsets)
    }

    /// The term in which the replica leads.
    pub(super) fn leads(&self) -> Option<u64> {
        let role = self.running.as_ref()?.replica.role();
        (role.state == RoleState::Leader).then_some(role.term)
    }

    /// The replicas that are in sync as this one sees it, the leader.
    #[cfg(test)]
    pub(super) fn in_sync(&self, now_ms: u64, lag_max_ms: u64) -> Vec<ReplicaId> {
        self.running.as_ref().map_or_else(Vec::new, |running| running.replica.in_sync(now_ms, lag_max_ms))
    }

    pub(super) fn produce(&mut self, batch: &[u8], now_ms: u64) -> Produced {
        let Some(running) = &mut self.running else { return Produced::NotLeader };
        let config = running.replica.log().config().clone();
        let mut out = Vec::new();
        let prepared = prepare(batch, &config, 0, Origin::Client, &mut Scratch::new(), &mut out);
        match running.replica.append(&prepared.expect("a batch of ours"), now_ms) {
            Ok(appended) => Produced::Appended(appended),
            Err(crate::LeaderAppendError::NotLeader { .. }) => Produced::NotLeader,
            Err(error) => {
                // A retry reaches a leader that has not yet got what it follows: as unknown as before.
                tracing::debug!(%error, "not appended");
                Produced::Failed
            }
        }
    }

    pub(super) fn acknowledged_offset(&self, min_insync: usize) -> Option<i64> {
        Some(self.running.as_ref()?.replica.acknowledged_offset(min_insync))
    }

    /// End and term of all that it has, if all of it is committed.
    pub(super) fn content_end(&self) -> Option<(u64, u64, i64)> {
        let replica = &self.running.as_ref()?.replica;
        let (last, term, committed) = replica.last_and_committed();
        (last == committed).then(|| (last, term, replica.log().ends().log_end))
    }

    /// The values from an offset on: all, or those that consumers may read.
    pub(super) fn records(&self, from: i64, all: bool) -> Vec<(i64, u64)> {
        let Some(running) = self.running.as_ref().filter(|running| running.replica.failed().is_none()) else {
            return Vec::new();
        };
        let ends = running.replica.log().ends();
        let end = if all { ends.log_end } else { ends.high_watermark };
        // What the log has not any more has been added up.
        let added_up =
            running.applier.iter().flat_map(|applier| applier.values(from..ends.log_start.min(end)));
        let mut records: Vec<_> = added_up.collect();
        let from = from.max(ends.log_start);
        if from < end {
            records.extend(read_records(running.replica.log(), from..end));
        }
        records
    }
}

/// The bytes of batches.
fn read_batches(log: &Log, offsets: Range<i64>) -> Vec<u8> {
    let (mut bytes, mut next) = (Vec::new(), offsets.start);
    while next < offsets.end {
        let range = log.read_waiting(next, ReadBound::LogEnd, 1, true).expect("a read");
        let Some(range) = range else { break };
        let one = range.to_vec().expect("a read");
        let (batch, _) = Batch::split_first(&one).expect("a batch");
        next = batch.next_offset();
        bytes.extend_from_slice(batch.bytes());
    }
    bytes
}

/// Offsets and values of records.
pub(super) fn read_records(log: &Log, offsets: Range<i64>) -> Vec<(i64, u64)> {
    let bytes = read_batches(log, offsets.clone());
    let (mut rest, mut records) = (&bytes[..], Vec::new());
    while let Ok((batch, behind)) = Batch::split_first(rest) {
        let mut buffer = Vec::new();
        for record in batch.records(&mut buffer, 1 << 20, &mut Scratch::new()).expect("records") {
            let record = record.expect("a record");
            let value = record.value.and_then(|value| value.get(..8)?.try_into().ok());
            let value = u64::from_be_bytes(value.expect("a value of ours"));
            if offsets.contains(&record.offset) {
                records.push((record.offset, value));
            }
        }
        rest = behind;
    }
    records
}

impl Running {
    fn begin_sync(&mut self, done_at_ms: u64) {
        let work = self.replica.log_mut().flush_work();
        let journal = self.journal.lock().sync_work();
        // What is written from here on is not covered.
        if let Err(error) = self.sync(&work, journal.as_ref()) {
            self.replica.log_mut().failed(&error);
            self.journal.lock().failed();
            self.replica.stop(format!("a sync failed: {error}"));
            return;
        }
        self.sync = Some(Sync { done_at_ms, work, journal });
    }

    fn sync(&self, work: &FlushWork, journal: Option<&JournalSync>) -> io::Result<()> {
        work.files.iter().try_for_each(|file| file.sync_data())?;
        let storage = self.dir.storage();
        work.directories.iter().try_for_each(|dir| storage.sync_dir(dir))?;
        journal.map_or(Ok(()), |journal| journal.file.sync_data())
    }

    fn end_sync(&mut self) {
        let Some(sync) = self.sync.take() else { return };
        self.replica.log_mut().flushed(sync.work.upto);
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
        self.replica.persisted();
    }

    fn close(mut self) {
        self.replica.prepare_close().expect("the replica closes");
        self.journal.lock().sync().expect("the journal is synced");
        self.replica.into_log().close().expect("the log closes");
        self.dir.stop_clean().expect("the directory closes");
    }
}
