//! A running node: its partitions, and the work for which a broker has threads.

use super::disk::DiskFaults;
use super::group_of;
use super::looks::records_of;
use super::whole::Whole;
use mainstem_controller::features::MAINSTEM_VERSION;
use mainstem_links::ticker::Beat;
use mainstem_links::{AbsenceLimits, CATCH_UP_RATE, LinkIdentity, Links, LinksOptions, Peer, SilenceLimits};
use mainstem_log::dir::LogDir;
use mainstem_log::flusher::SyncedRound;
use mainstem_log::sim::Random;
use mainstem_log::{Log, LogConfig, PartitionIdentity, ReadBound};
use mainstem_records::{Batch, TimestampType};
use mainstem_replication::journal::Journal;
use mainstem_replication::snapshots::SnapshotOffer;
use mainstem_replication::{Lost, Replica, ReplicaId, ReplicaOptions, Role, TICK_MS};
use mainstem_runtime::clock::Clock;
use mainstem_store::partition::{Durable, NoLog, Partition, ReplicaEvents};
use mainstem_store::settings::TopicSettings;
use mainstem_store::topics::{Topic, Topics};
use mainstem_wire::Uuid;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// Size of segments of data, small so that there are many.
const SEGMENT_BYTES: u32 = 3_000;
/// Size of segments of internal topics, whose batches are larger.
const INTERNAL_SEGMENT_BYTES: u32 = 30_000;
/// Bytes of one read of batches.
const READ_BYTES: usize = 16 << 10;
/// The id of the cluster.
pub(super) const CLUSTER: &str = "cluster";
/// `replica.lag.time.max.ms`.
pub(super) const LAG_MAX_MS: u64 = 1_500;
/// Limits up to which groups wait for a replica that is away: few enough for copies of compacted logs.
const ABSENCE: AbsenceLimits = AbsenceLimits { time_ms: 2_500, bytes: 20_000 };
/// Promises of replicas are synced at multiples of this time, in ms.
const PROMISES_SYNC_MS: u64 = 100;
/// Longest time until a failed replica notifies its waiters, in ms.
const SILENT_MAX_MS: u64 = 1_000;
/// The reason of a failure that a full disk explains.
const NO_SPACE: &str = "no storage space";
/// Percent of the turns in which the flusher's helpers do their jobs.
const JOBS_PERCENT: u64 = 30;

/// Parameters of a node's start.
pub(super) struct Opening<'a> {
    pub(super) id: ReplicaId,
    pub(super) voters: &'a [ReplicaId],
    pub(super) partitions: &'a [PartitionIdentity],
    pub(super) clock: &'a Clock,
    pub(super) write_caching: bool,
    pub(super) min_insync: usize,
    pub(super) generation: u64,
    pub(super) log_append_time: bool,
    /// Checkpointed high watermarks, by partition.
    pub(super) high_watermarks: &'a [i64],
    pub(super) may_lack_promised: bool,
    pub(super) seed: &'a mut u64,
}

pub(super) struct Running {
    pub(super) dir: Arc<LogDir>,
    /// The journal of the directory; `None`: the whole node owns it.
    journal: Option<Arc<Mutex<Journal>>>,
    pub(super) links: Arc<Links>,
    beat: Beat,
    next_beat_ms: u64,
    /// Partitions that the world has opened.
    partitions: Vec<Arc<Partition>>,
    pub(super) topics: Arc<Topics>,
    pub(super) events: Arc<Events>,
    pub(super) round: Option<Round>,
    /// Number of checks of its partitions.
    looks: usize,
    /// Time at which a failed replica was first seen whose waiters were not notified yet.
    silent_since_ms: Option<u64>,
    /// A sync has failed since the start, or the next one will.
    pub(super) has_failing_disk: bool,
    /// Its disk was full since the start.
    pub(super) had_full_disk: bool,
    /// The whole node, if it has metadata.
    pub(super) whole: Option<Whole>,
}

/// A round of syncs that the disk is busy with.
pub(super) struct Round {
    pub(super) done_at_ms: u64,
    synced: SyncedRound,
}

/// Events of replicas.
#[derive(Default)]
pub(super) struct Events {
    lost: Mutex<Vec<(usize, Lost)>>,
}

/// The events of one replica.
struct EventsOf {
    partition: usize,
    events: Arc<Events>,
}

impl ReplicaEvents for EventsOf {
    fn role_changed(&self, _: &Arc<Partition>, _: Role) {}

    fn lost(&self, _: &Arc<Partition>, lost: Lost) {
        self.events.lost.lock().push((self.partition, lost));
    }

    fn offered(&self, _: &Arc<Partition>, _: SnapshotOffer) {}
}

impl Events {
    pub(super) fn take_lost(&self) -> Vec<(usize, Lost)> {
        std::mem::take(&mut *self.lost.lock())
    }
}

/// The settings of a topic.
pub(super) fn settings(log: Arc<LogConfig>, write_caching: bool, min_insync: usize) -> Arc<TopicSettings> {
    let min_insync = i32::try_from(min_insync).expect("a few nodes");
    Arc::new(TopicSettings::of_log(log, write_caching, min_insync))
}

/// Links of a node to the others, for the start with this number.
pub(super) fn links((id, start): (ReplicaId, u64), voters: &[ReplicaId], clock: &Clock) -> Arc<Links> {
    let node = id.node();
    let peer = |id: &ReplicaId| Peer { node: id.node(), host: "127.0.0.1".into(), port: 1 };
    let peers = voters.iter().filter(|other| **other != id).map(peer).collect();
    let identity = LinkIdentity { node, generation: start, cluster_id: CLUSTER.into() };
    let options = LinksOptions {
        clock: clock.clone(),
        replica_lag_max_ms: LAG_MAX_MS,
        catch_up_rate: CATCH_UP_RATE,
        absence: ABSENCE,
        silence: SilenceLimits::default(),
        awaited: Arc::default(),
    };
    Links::by_hand(identity, peers, options)
}

/// The partitions by topic; those of one topic are adjacent.
fn topics_of(identities: &[PartitionIdentity], partitions: &[Arc<Partition>]) -> Arc<Topics> {
    let topics = Arc::<Topics>::default();
    let mut from = 0;
    for same in identities.chunk_by(|one, next| one.topic_id == next.topic_id) {
        let partitions = partitions[from..from + same.len()].to_vec();
        from += same.len();
        topics.put(Arc::new(Topic { name: same[0].topic.clone(), id: Uuid(same[0].topic_id), partitions }));
    }
    topics
}

impl Opening<'_> {
    pub(super) fn run(mut self, dir: Arc<LogDir>, journal: Journal) -> Running {
        let now_ms = self.clock.mono_ms();
        let logs: Vec<_> = self.partitions.iter().map(|identity| self.open(&dir, identity, now_ms)).collect();
        dir.recovered().expect("the recovery is noted");
        let journal = Arc::new(Mutex::new(journal));
        let (links, events) = (self.links(), Arc::<Events>::default());
        let mut partitions = Vec::new();
        for (number, (log, config)) in logs.into_iter().enumerate() {
            let identity = &self.partitions[number];
            let replica = self.replica(number, log, journal.clone(), now_ms);
            replica.check();
            let of_one = EventsOf { partition: number, events: events.clone() };
            let partition = Partition::replicated(
                identity.topic.clone(),
                identity.partition,
                dir.clone(),
                settings(config, self.write_caching, self.min_insync),
                replica,
                Arc::new(of_one),
                links.clone(),
            );
            partitions.push(partition);
        }
        partitions.iter().for_each(|partition| partition.join_group());
        let topics = topics_of(self.partitions, &partitions);
        let mut running = Running::new(dir, links, topics, now_ms);
        (running.journal, running.partitions) = (Some(journal), partitions);
        running.events = events;
        running
    }

    fn open(&self, dir: &Arc<LogDir>, identity: &PartitionIdentity, now_ms: u64) -> (Log, Arc<LogConfig>) {
        let is_internal = identity.topic.starts_with("__");
        let of_data =
            if self.log_append_time { TimestampType::LogAppendTime } else { TimestampType::CreateTime };
        let config = Arc::new(LogConfig {
            segment_bytes: if is_internal { INTERNAL_SEGMENT_BYTES } else { SEGMENT_BYTES },
            index_interval_bytes: 300,
            retention_ms: None,
            timestamp_type: if is_internal { TimestampType::CreateTime } else { of_data },
            ..LogConfig::default()
        });
        (Log::open_replica(dir, identity, config.clone(), now_ms).expect("the log opens").0, config)
    }

    fn links(&self) -> Arc<Links> {
        links((self.id, self.generation), self.voters, self.clock)
    }

    fn replica(&mut self, number: usize, log: Log, journal: Arc<Mutex<Journal>>, now_ms: u64) -> Replica {
        *self.seed = self.seed.wrapping_add(1);
        let options = ReplicaOptions {
            write_caching: self.write_caching,
            seed: *self.seed,
            high_watermark: self.high_watermarks[number],
            broadcast_commit: self.seed.is_multiple_of(2),
        };
        let replica = Replica::open(log, group_of(&self.partitions[number]), journal, options, now_ms);
        let replica = replica.expect("the replica opens");
        assert!(
            !replica.lacks_promised() || self.may_lack_promised,
            "{}: a power cut takes no promise",
            self.id
        );
        replica
    }
}

/// Acts like a process that dies: pending work is not done.
impl Drop for Running {
    fn drop(&mut self) {
        if let Some(whole) = self.whole.as_ref().filter(|_| !std::thread::panicking()) {
            whole.kill();
        }
        self.dir.flusher().forget_waiting();
        self.links.forget_waiting();
    }
}

impl Running {
    /// A node without partitions.
    pub(super) fn new(dir: Arc<LogDir>, links: Arc<Links>, topics: Arc<Topics>, now_ms: u64) -> Running {
        Running {
            dir,
            journal: None,
            links,
            beat: Beat::default(),
            next_beat_ms: now_ms + TICK_MS,
            partitions: Vec::new(),
            topics,
            events: Arc::default(),
            round: None,
            looks: 0,
            silent_since_ms: None,
            has_failing_disk: false,
            had_full_disk: false,
            whole: None,
        }
    }

    /// The partition of a number, which has this identity.
    pub(super) fn partition(&self, number: usize, identity: &PartitionIdentity) -> Option<Arc<Partition>> {
        match &self.whole {
            None => self.partitions.get(number).cloned(),
            Some(_) => self.topics.partition(&identity.topic, identity.partition),
        }
    }

    /// All partitions that it has now.
    pub(super) fn partitions(&self) -> Vec<Arc<Partition>> {
        match &self.whole {
            None => self.partitions.clone(),
            Some(whole) => whole.partitions(),
        }
    }

    /// Does the work that a broker's threads would have done by now.
    pub(super) fn pass_time(&mut self, clock: &Clock, disk: DiskFaults, random: &mut Random) {
        let now_ms = clock.mono_ms();
        if now_ms >= self.next_beat_ms {
            self.next_beat_ms = now_ms + TICK_MS;
            self.beat.pass(&self.links);
        }
        let synced = self.round.take_if(|round| round.done_at_ms <= now_ms);
        let is_synced = synced.is_some();
        if let Some(round) = synced {
            self.end_round(round);
        }
        if disk.hangs_until_ms > now_ms {
            return;
        }
        self.links.run_disk_steps();
        if random.chance(JOBS_PERCENT) {
            self.dir.flusher().run_jobs();
        }
        // At intervals, and not through the disk's queue: entries that it had before count as well.
        if is_synced
            && now_ms.is_multiple_of(PROMISES_SYNC_MS)
            && !disk.fails
            && let Some(journal) = &self.journal
            && let Some(file) = journal.lock().promises_to_sync()
        {
            file.sync_data().expect("a disk that works");
        }
    }

    /// Checks that the waiters of a failed replica are notified soon.
    pub(super) fn check_failures(&mut self, partitions: &[Arc<Partition>], now_ms: u64) {
        // One partition in each turn: a violated invariant mostly stays violated.
        self.looks += 1;
        if let Some(partition) = partitions.get(self.looks % partitions.len().max(1)) {
            partition.check();
        }
        if !partitions.iter().any(|partition| partition.has_failed_silently()) {
            self.silent_since_ms = None;
            return;
        }
        let since_ms = *self.silent_since_ms.get_or_insert(now_ms);
        assert!(now_ms <= since_ms + SILENT_MAX_MS, "a replica has failed, and nothing is said of it");
    }

    /// Begins a round of syncs, if there is a request for one and no round is under way.
    pub(super) fn begin_round_if_due(&mut self, done_at_ms: u64) {
        let flusher = self.dir.flusher();
        if self.round.is_some() || !flusher.has_waiting() {
            return;
        }
        let round = Round { done_at_ms, synced: flusher.begin_round() };
        // A failed write is reported immediately: a second sync of the same files would succeed without the data.
        match round.synced.has_failed() {
            true => self.end_round(round),
            false => self.round = Some(round),
        }
    }

    fn end_round(&self, round: Round) {
        self.dir.flusher().end_round(round.synced);
        let Some(journal) = &self.journal else { return };
        let mut journal = journal.lock();
        if journal.rewrite_due()
            && let Err(error) = journal.rewrite()
        {
            tracing::debug!(%error, "the journal is not written again");
        }
        journal.check();
    }

    /// Syncs everything.
    #[cfg(test)]
    pub(super) fn sync_all(&mut self) {
        if let Some(round) = self.round.take() {
            self.end_round(round);
        }
        self.partitions.iter().for_each(|partition| partition.request_flush());
        self.begin_round_if_due(0);
        let round = self.round.take().expect("something was asked for");
        self.end_round(round);
    }

    /// Returns true if the process has ended, or the log directory or a replica in it has failed.
    ///
    /// # Panics
    /// If its disk is no reason for that.
    pub(super) fn has_failed(&self, id: ReplicaId) -> bool {
        let of_replica = || {
            let partitions = self.partitions();
            partitions.iter().find_map(|partition| partition.replica_failure().map(str::to_owned))
        };
        let of_dir = || self.dir.failure().map(ToString::to_string);
        let failure = self.whole.as_ref().and_then(Whole::ended).or_else(of_dir).or_else(of_replica);
        if let Some(why) = &failure
            && !self.is_refused()
        {
            let lacked_space = self.had_full_disk && why.contains(NO_SPACE);
            assert!(self.has_failing_disk || lacked_space, "{id}: {why}");
        }
        failure.is_some()
    }

    /// Returns true if its start was refused because the cluster works at a level that its release does not know.
    pub(super) fn is_refused(&self) -> bool {
        let why = self.whole.as_ref().and_then(Whole::ended);
        why.is_some_and(|why| why.contains(MAINSTEM_VERSION.name))
    }

    /// Stops in order, as the stop of a broker does.
    pub(super) fn close(mut self) {
        if let Some(round) = self.round.take() {
            self.end_round(round);
        }
        for partition in &self.partitions {
            partition.prepare_close(Durable::Call(Box::new(|result| result.expect("the log is synced"))));
        }
        while self.dir.flusher().has_waiting() {
            let synced = self.dir.flusher().begin_round();
            self.dir.flusher().end_round(synced);
        }
        for partition in &self.partitions {
            let log = partition.take_log(NoLog::Gone).expect("a log");
            log.close().expect("the log closes");
        }
        self.links.run_disk_steps();
        self.dir.stop_clean().expect("the directory closes");
    }
}

/// The bytes of batches.
pub(super) fn read_batches(log: &Log, offsets: Range<i64>) -> Vec<u8> {
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

/// Offsets and values of records; control records have the value [`CONTROL`](mainstem_replication::history::CONTROL).
pub(crate) fn read_records(log: &Log, offsets: Range<i64>) -> Vec<(i64, u64)> {
    let bytes = read_batches(log, offsets.clone());
    let (mut rest, mut records) = (&bytes[..], Vec::new());
    while let Ok((batch, behind)) = Batch::split_first(rest) {
        records.extend(records_of(&batch).into_iter().filter(|(offset, _)| offsets.contains(offset)));
        rest = behind;
    }
    records
}
