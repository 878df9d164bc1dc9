//! A partition that this node has: its log, alone or as one replica of a group, behind one short critical section, and
//! those who wait for it.
//!
//! The broker reaches a log only through this interface and never keeps its ends: they may move by themselves.

use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use mainstem_log::dir::LogDir;
use mainstem_log::partition_dir::TopicPartition;
use mainstem_log::{
    AppendError, Appended, DeleteRecordsError, Ends, EpochEnd, Log, LogError, Maintained, Origin, Prepared,
    ReadBound, ReadPlan, TransactionMarker, VerificationGuard, VerificationRequest, prepare,
};
use mainstem_records::{LeaderEpoch, ProducerId, Scratch};
use mainstem_wire::ErrorCode;
use parking_lot::{Mutex, MutexGuard, RwLock};
use replicated::{Replication, ReplicationParts};
use stored::Stored;

use crate::attached::{Attached, QueueRefusal};
use crate::errors::{append_error_code, delete_records_error_code, read_error_code};
use crate::settings::TopicSettings;
use crate::signal::FetchWaiter;
use crate::traffic::Traffic;
use mainstem_runtime::clock::{Clock, Now};

mod flush;
mod queries;
mod replicated;
mod snapshots;
mod stored;
mod take_over;
mod waiters;

pub use flush::Durable;
use flush::{Flush, commit_log_start, done};
pub use queries::{Extent, TimeSearch};
pub use replicated::{ReplicaEvents, ReplicationHealth};
pub use snapshots::SnapshotStepError;
use take_over::Held;
pub use take_over::SHORTAGE_PAUSE;
pub use take_over::TakeOver;
use waiters::FetchWaiters;

/// About the bytes of a marker.
const MARKER_BYTES: usize = 78;

/// Time between two looks, of one that waits for the lock, whether it still wants it. Each look costs it its turn among those that
/// wait: they are so rare that others have all had theirs, and more frequent than elections.
const LOCK_LOOK: Duration = Duration::from_millis(200);

/// A partition of a topic, as this node has it.
pub struct Partition {
    /// Topic, shared with its other partitions.
    pub topic: Arc<str>,
    /// Index within the topic.
    pub index: i32,
    settings: RwLock<Arc<TopicSettings>>,
    state: Mutex<State>,
    /// Whether `state` has no log that can be used, so that no lock is needed to know.
    offline: AtomicBool,
    /// There was a panic while the state was locked, and nobody has dealt with it.
    poisoned: AtomicBool,
    /// None for a partition that was offline from the start.
    flush: RwLock<Option<Arc<Flush>>>,
    /// What went through it.
    pub traffic: Traffic,
    /// None where it has one replica, this one.
    replication: Option<Replication>,
    /// The queue that has the records in place of a log of this broker.
    attached: Option<Arc<Attached>>,
    own: Weak<Partition>,
}

/// What keeps the records beside, or in place of, a log of this broker alone.
struct Keeper {
    replication: Option<ReplicationParts>,
    attached: Option<Arc<Attached>>,
}

struct State {
    log: Result<Stored, NoLog>,
    /// How often it went into another log directory.
    moves: u32,
    /// Set while a copy takes over.
    held: Option<Held>,
    leader_epoch: LeaderEpoch,
    fetches: FetchWaiters,
    /// By the offset up to which they need the log to be durable.
    durable_waits: Vec<(i64, Durable)>,
}

/// Why a partition has no log: nothing is appended or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoLog {
    /// The topic was deleted, or the broker has closed the log because it stops.
    #[error("the topic was deleted")]
    Gone,
    /// Its files cannot be used until the broker is started again.
    #[error("the partition is offline: its files cannot be used")]
    Offline,
    /// Its replicas are on other nodes.
    #[error("the replicas of the partition are on other nodes")]
    Elsewhere,
    /// The records are in an attached queue.
    #[error("the partition is an attached queue, which has no log")]
    Attached,
}

impl NoLog {
    /// Kafka's code.
    pub fn code(self) -> ErrorCode {
        match self {
            NoLog::Gone => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
            NoLog::Offline => ErrorCode::KAFKA_STORAGE_ERROR,
            NoLog::Elsewhere => ErrorCode::NOT_LEADER_OR_FOLLOWER,
            NoLog::Attached => ErrorCode::INVALID_REQUEST,
        }
    }
}

/// What an append gives back beyond its offsets.
pub struct AppendOutcome {
    /// Offsets, time stamp, whether it was a duplicate.
    pub appended: Appended,
    /// Even acks=1 waits for the sync: so many messages are unsynced as `flush.messages` allows.
    pub must_sync: bool,
    /// The leader epoch in which it was appended.
    pub epoch: LeaderEpoch,
    /// A sync is due, whoever waits for it.
    sync_due: bool,
}

/// Why nothing was appended.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// There is no log.
    #[error(transparent)]
    NoLog(#[from] NoLog),
    /// Another node's replica leads, or none does.
    #[error("this node does not lead the partition")]
    NotLeader,
    /// Validation or the log refused.
    #[error(transparent)]
    Log(#[from] AppendError),
    /// An attached queue refused.
    #[error(transparent)]
    Queue(#[from] QueueRefusal),
    /// A local writer has the lock of an attached queue: [`Attached::append_later`] waits for it.
    #[error("a local writer holds the lock of the queue")]
    Blocked,
}

impl Refused {
    /// Kafka's code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Refused::NoLog(no_log) => no_log.code(),
            Refused::NotLeader => ErrorCode::NOT_LEADER_OR_FOLLOWER,
            Refused::Log(error) => append_error_code(error),
            Refused::Queue(refusal) => refusal.code(),
            Refused::Blocked => ErrorCode::REQUEST_TIMED_OUT,
        }
    }
}

impl Partition {
    /// A partition over an open log.
    pub fn new(
        topic: Arc<str>,
        index: i32,
        dir: Arc<LogDir>,
        settings: Arc<TopicSettings>,
        log: Log,
        leader_epoch: LeaderEpoch,
    ) -> Arc<Self> {
        Self::with_log_or_not(topic, index, settings, Ok((dir, Stored::Alone(log))), leader_epoch, None)
    }

    /// A partition whose log cannot be opened: it is known and refuses whatever is asked of it.
    pub fn offline(
        topic: Arc<str>,
        index: i32,
        settings: Arc<TopicSettings>,
        leader_epoch: LeaderEpoch,
    ) -> Arc<Self> {
        Self::with_log_or_not(topic, index, settings, Err(NoLog::Offline), leader_epoch, None)
    }

    /// A partition whose replicas are on other nodes: its clients are sent there.
    pub fn elsewhere(
        topic: Arc<str>,
        index: i32,
        settings: Arc<TopicSettings>,
        leader_epoch: LeaderEpoch,
    ) -> Arc<Self> {
        Self::with_log_or_not(topic, index, settings, Err(NoLog::Elsewhere), leader_epoch, None)
    }

    /// A partition whose records are in an attached queue.
    pub fn attached(settings: Arc<TopicSettings>, attached: Arc<Attached>) -> Arc<Self> {
        let (topic, epoch) = (attached.topic().clone(), attached.leader_epoch());
        let keeper = Keeper { replication: None, attached: Some(attached) };
        Self::of((topic, 0), settings, Err(NoLog::Attached), epoch, keeper)
    }

    fn with_log_or_not(
        topic: Arc<str>,
        index: i32,
        settings: Arc<TopicSettings>,
        log: Result<(Arc<LogDir>, Stored), NoLog>,
        leader_epoch: LeaderEpoch,
        replication: Option<ReplicationParts>,
    ) -> Arc<Self> {
        Self::of((topic, index), settings, log, leader_epoch, Keeper { replication, attached: None })
    }

    fn of(
        (topic, index): (Arc<str>, i32),
        settings: Arc<TopicSettings>,
        log: Result<(Arc<LogDir>, Stored), NoLog>,
        leader_epoch: LeaderEpoch,
        Keeper { replication, attached }: Keeper,
    ) -> Arc<Self> {
        let (dir, log) = match log {
            Ok((dir, log)) => (Some(dir), Ok(log)),
            Err(no_log) => (None, Err(no_log)),
        };
        let state = State {
            log,
            moves: 0,
            held: None,
            leader_epoch,
            fetches: FetchWaiters::default(),
            durable_waits: Vec::new(),
        };
        Arc::new_cyclic(|own| Partition {
            topic,
            index,
            settings: RwLock::new(settings),
            offline: AtomicBool::new(matches!(state.log, Err(NoLog::Offline))),
            poisoned: AtomicBool::new(false),
            state: Mutex::new(state),
            flush: RwLock::new(dir.map(|dir| Flush::new(own, dir, 0))),
            traffic: Traffic::default(),
            replication: replication.map(|parts| Replication::new(parts, own)),
            attached,
            own: own.clone(),
        })
    }

    /// The queue that has the records, if one is attached in place of a log.
    pub fn queue(&self) -> Option<&Arc<Attached>> {
        self.attached.as_ref()
    }

    /// Locks the state. Where the holder panics the log is given up: half a change must not be built upon.
    fn lock(&self) -> Locked<'_> {
        Locked { partition: self, was_panicking: std::thread::panicking(), state: self.state.lock() }
    }

    /// As [`lock`](Self::lock), unless another thread has it.
    fn try_lock(&self) -> Option<Locked<'_>> {
        let state = self.state.try_lock()?;
        Some(Locked { partition: self, was_panicking: std::thread::panicking(), state })
    }

    /// As [`lock`](Self::lock), unless it is to be waited for too long: `gives_up` says so, which is asked again and again.
    fn lock_unless(&self, gives_up: impl Fn() -> bool) -> Option<Locked<'_>> {
        while !gives_up() {
            if let Some(state) = self.state.try_lock_for(LOCK_LOOK) {
                let locked = Locked { partition: self, was_panicking: std::thread::panicking(), state };
                return (!gives_up()).then_some(locked);
            }
        }
        None
    }

    /// Whether there was a panic while the log was in use, and nobody has dealt with it.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    /// Whether there was a panic while the log was in use, of which this is the first to know.
    pub fn take_poisoned(&self) -> bool {
        self.poisoned.swap(false, Ordering::AcqRel)
    }

    /// Whether it is served from this partition directory.
    pub fn is_at(&self, path: &Path) -> bool {
        self.lock().log.as_ref().is_ok_and(|log| log.path() == path)
    }

    /// Whether it is served from a log directory.
    pub fn is_in(&self, dir: &Arc<LogDir>) -> bool {
        self.lock().log.as_ref().is_ok_and(|log| Arc::ptr_eq(log.dir(), dir))
    }

    /// Whether its files cannot be used, while the topic is there: clients are told that nobody leads it.
    pub fn is_offline(&self) -> bool {
        self.offline.load(Ordering::Acquire)
    }

    /// The topic's settings now.
    pub fn settings(&self) -> Arc<TopicSettings> {
        self.settings.read().clone()
    }

    /// Puts changed settings into force. What has counted as persisted in the page cache is synced where it does no more.
    pub fn set_settings(&self, settings: Arc<TopicSettings>) {
        let before = std::mem::replace(&mut *self.settings.write(), settings.clone());
        let mut state = self.lock();
        if let Ok(log) = &mut state.log {
            log.set_config(settings.log.clone());
        }
        if before.write_caching == settings.write_caching {
            return;
        }
        if let Ok(Stored::Replicated(member)) = &mut state.log {
            member.replica.set_write_caching(settings.write_caching);
            return self.drive(state);
        }
        drop(state);
        self.request_flush();
    }

    /// This node leads in another epoch from now on.
    pub fn set_leader_epoch(&self, epoch: LeaderEpoch) {
        self.lock().leader_epoch = epoch;
    }

    /// The epoch in which this node leads, if it is the one that the client knows of (or the client knows none).
    ///
    /// # Errors
    /// `FENCED_LEADER_EPOCH` where the client's is older, `UNKNOWN_LEADER_EPOCH` where it is newer (KIP-320); that of
    /// [`NoLog`].
    pub fn lead(&self, current_leader_epoch: LeaderEpoch) -> Result<LeaderEpoch, ErrorCode> {
        let state = self.lock();
        state.lead(current_leader_epoch)
    }

    /// Where an epoch ends (KIP-320): the largest one known up to `epoch`, and the offset at which the next began.
    ///
    /// # Errors
    /// As [`Self::lead`].
    pub fn end_of_epoch(
        &self,
        current_leader_epoch: LeaderEpoch,
        epoch: LeaderEpoch,
    ) -> Result<EpochEnd, ErrorCode> {
        if let Some(queue) = &self.attached {
            self.lead(current_leader_epoch)?;
            return queue.end_of_epoch(epoch);
        }
        let mut state = self.lock();
        let leader_epoch = state.lead(current_leader_epoch)?;
        Ok(end_of_epoch(state.log()?, leader_epoch, epoch))
    }

    /// Appends the record batch of a client or a coordinator, and wakes the fetches that can now read it.
    ///
    /// # Errors
    /// What validation or the log says; nothing is appended then.
    pub fn append(
        &self,
        raw: &[u8],
        origin: Origin,
        clock: &Clock,
        scratch: &mut Scratch,
    ) -> Result<AppendOutcome, Refused> {
        self.append_verified(raw, origin, VerificationGuard::NONE, clock, scratch)
    }

    /// As [`append`](Self::append), unless this node leads in another epoch.
    ///
    /// # Errors
    /// As [`append`](Self::append), and [`Refused::NotLeader`].
    pub fn append_in_epoch(
        &self,
        raw: &[u8],
        origin: Origin,
        epoch: LeaderEpoch,
        clock: &Clock,
        scratch: &mut Scratch,
    ) -> Result<AppendOutcome, Refused> {
        self.append_batch(raw, origin, (VerificationGuard::NONE, Some(epoch)), clock, scratch)
    }

    /// As [`append`](Self::append); the batch may begin its producer's transaction here if `guard` is the one that
    /// [`begin_verification`](Self::begin_verification) gave out (KIP-890).
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn append_verified(
        &self,
        raw: &[u8],
        origin: Origin,
        guard: VerificationGuard,
        clock: &Clock,
        scratch: &mut Scratch,
    ) -> Result<AppendOutcome, Refused> {
        self.append_batch(raw, origin, (guard, None), clock, scratch)
    }

    /// As [`append_verified`](Self::append_verified), of what a coordinator has decided while this node led in an epoch: in another
    /// one, before which others may have decided something else, nothing is appended. Without an epoch in any.
    ///
    /// # Errors
    /// As [`append`](Self::append), and [`Refused::NotLeader`].
    pub fn append_decided(
        &self,
        raw: &[u8],
        (guard, epoch): (VerificationGuard, Option<LeaderEpoch>),
        clock: &Clock,
        scratch: &mut Scratch,
    ) -> Result<AppendOutcome, Refused> {
        self.append_batch(raw, Origin::Coordinator, (guard, epoch), clock, scratch)
    }

    /// Appends a batch, which `guard` may have verified. Where an epoch is given, it is appended in that leader epoch alone.
    fn append_batch(
        &self,
        raw: &[u8],
        origin: Origin,
        (guard, epoch): (VerificationGuard, Option<LeaderEpoch>),
        clock: &Clock,
        scratch: &mut Scratch,
    ) -> Result<AppendOutcome, Refused> {
        let settings = self.settings();
        let mut rewritten = Vec::new();
        let now = clock.now();
        let batch =
            prepare(raw, &settings.log, now.wall_ms, origin, scratch, &mut rewritten)?.verified_by(guard);
        if let Some(queue) = &self.attached {
            return queue.append(&batch);
        }
        let mut state = self.lock();
        state.check_epoch(epoch)?;
        let appended = state.append(&batch, now);
        self.appended(state, appended)
    }

    /// Appends the marker that ends a producer's transaction, and wakes the fetches that can now read more.
    ///
    /// # Errors
    /// What the log says; nothing is appended then.
    pub fn append_marker(&self, marker: &TransactionMarker, clock: &Clock) -> Result<AppendOutcome, Refused> {
        self.append_marker_decided(marker, None, clock)
    }

    /// As [`append_marker`](Self::append_marker), in the epoch in which this node led when the coordinator of groups took it for
    /// its own, if there is one.
    ///
    /// # Errors
    /// As [`append_marker`](Self::append_marker), and [`Refused::NotLeader`].
    pub fn append_marker_decided(
        &self,
        marker: &TransactionMarker,
        epoch: Option<LeaderEpoch>,
        clock: &Clock,
    ) -> Result<AppendOutcome, Refused> {
        let now = clock.now();
        let mut state = self.lock();
        state.check_epoch(epoch)?;
        let appended = state.write(now, MARKER_BYTES, |log, leader_epoch| {
            log.append_marker(marker, leader_epoch, now.wall_ms, now.mono_ms)
        });
        self.appended(state, appended)
    }

    /// Gives the lock back after an append, and has done what follows from it. A disk that takes nothing may have had the
    /// replica give leadership away, or fail.
    fn appended(
        &self,
        state: Locked<'_>,
        appended: Result<AppendOutcome, Refused>,
    ) -> Result<AppendOutcome, Refused> {
        match (&self.replication, &appended) {
            (Some(_), Ok(_) | Err(Refused::Log(_) | Refused::NoLog(NoLog::Offline))) => self.drive(state),
            _ => drop(state),
        }
        if appended.as_ref().is_ok_and(|outcome| outcome.sync_due) {
            self.request_flush();
        }
        appended
    }

    /// Begins to verify that a producer's transaction may begin in this partition (KIP-890). `None`: it is open here.
    ///
    /// # Errors
    /// `INVALID_PRODUCER_EPOCH` where a newer epoch of the producer was seen; why there is no log.
    pub fn begin_verification(
        &self,
        request: &VerificationRequest,
        clock: &Clock,
    ) -> Result<Option<VerificationGuard>, Refused> {
        if self.attached.is_some() {
            return Err(QueueRefusal::Transactional.into());
        }
        let mut state = self.lock();
        let log = match state.log.as_mut().map_err(|no_log| *no_log)? {
            Stored::Replicated(member) if !member.leads() => return Err(Refused::NotLeader),
            stored => &mut **stored,
        };
        if !log.config().transaction_verification && !request.supports_epoch_bump {
            return Ok(None);
        }
        Ok(log.begin_verification(request, clock.mono_ms())?)
    }

    /// Returns true if a guard still allows its producer to begin a transaction here: no marker has come since it was
    /// given out. Asked after the coordinator has confirmed the transaction, when all markers of the one before are
    /// there, the answer holds for as long as the transaction does.
    pub fn is_verification(&self, producer_id: ProducerId, guard: VerificationGuard) -> bool {
        self.lock().log.as_ref().is_ok_and(|log| log.is_verification(producer_id, guard))
    }

    /// Finds readable bytes. A waiter is registered at the same instant when there is nothing to read, so that no
    /// append can slip between.
    ///
    /// # Errors
    /// `OffsetOutOfRange`, or why the partition cannot be read.
    pub fn read(
        &self,
        request: &PartitionRead,
        waiter: Option<&Arc<FetchWaiter>>,
    ) -> Result<PartitionData, ErrorCode> {
        if let Some(queue) = &self.attached {
            return self.read_queue(queue, request, waiter);
        }
        let mut state = self.lock();
        let leader_epoch = state.lead(request.current_leader_epoch)?;
        let log = state.log()?;
        let ends = log.ends();
        if let Some(diverging) = diverging(log, leader_epoch, request)? {
            return Ok(PartitionData {
                ends,
                leader_epoch,
                plan: ReadPlan::Empty,
                diverging: Some(diverging),
            });
        }
        let plan = log.read(request.offset, request.bound, request.bytes_max, request.at_least_one);
        let plan = plan.map_err(|error| read_error_code(&error))?;
        if let Some(waiter) = waiter {
            state.fetches.add(waiter, &ends);
        }
        Ok(PartitionData { ends, leader_epoch, plan, diverging: None })
    }

    /// Registers a waiter if a read would find what `seen` has: nothing has been appended, removed or committed since, and this
    /// node leads in the same epoch. Returns false where that is not so, or not known: then nothing is registered, and the
    /// partition is to be read again.
    pub fn watch(
        &self,
        seen: &PartitionData,
        current_leader_epoch: LeaderEpoch,
        waiter: &Arc<FetchWaiter>,
    ) -> bool {
        if self.attached.is_some() {
            return false;
        }
        let mut state = self.lock();
        let is_same = state.lead(current_leader_epoch) == Ok(seen.leader_epoch)
            && state.log.as_ref().is_ok_and(|log| reads_alike(&log.ends(), &seen.ends));
        if is_same {
            state.fetches.add(waiter, &seen.ends);
        }
        is_same
    }

    /// Takes a waiter's registrations back.
    pub fn forget(&self, waiter: &Arc<FetchWaiter>) {
        if let Some(queue) = &self.attached {
            return queue.forget(waiter);
        }
        self.lock().fetches.remove(waiter);
    }

    /// The ends of the log now.
    ///
    /// # Errors
    /// That of [`NoLog`].
    pub fn ends(&self) -> Result<Ends, ErrorCode> {
        if let Some(queue) = &self.attached {
            return queue.ends();
        }
        Ok(self.lock().log()?.ends())
    }

    /// Runs a function on the log: for the work on log directories, and for what others ask by name (`queries.rs`).
    ///
    /// # Errors
    /// That of [`NoLog`].
    pub(super) fn with_log<T>(&self, act: impl FnOnce(&mut Log) -> T) -> Result<T, ErrorCode> {
        self.lock().log().map(act)
    }

    /// Moves the log start, and has `on_durable` told when a restart will remember it. Returns the log start.
    ///
    /// # Errors
    /// `OFFSET_OUT_OF_RANGE` beyond the high watermark, or why the log refused.
    pub fn delete_records_before(&self, offset: i64, on_durable: Durable) -> Result<i64, ErrorCode> {
        if self.replication.is_some() {
            return self.propose_log_start(offset, on_durable);
        }
        if let Some(queue) = &self.attached {
            return queue.delete_before(offset, on_durable);
        }
        let mut state = self.lock();
        let log = state.log()?;
        let (dir, log_start) = (log.dir().clone(), log.delete_records_before(offset));
        let log_start = log_start.map_err(|error: DeleteRecordsError| delete_records_error_code(&error))?;
        if let Some(held) = &mut state.held {
            held.deletions.push(on_durable);
            return Ok(log_start);
        }
        drop(state);
        commit_log_start(&dir, on_durable);
        Ok(log_start)
    }

    /// Forgets idle producers. How many there were.
    pub fn expire_producers(&self, clock: &Clock) -> usize {
        let now = clock.now();
        if let Some(queue) = &self.attached {
            let expiration_ms = self.settings().log.producer_id_expiration_ms;
            return queue.expire_producers(now.wall_ms, expiration_ms);
        }
        self.lock().log.as_mut().map_or(0, |log| log.expire_producers(now.mono_ms, now.wall_ms))
    }

    /// Rolling and retention that are due. What waits for the disk is done without the log: nobody who appends
    /// waits with it.
    ///
    /// # Errors
    /// The log's, which stay with this partition.
    pub fn maintain(&self, clock: &Clock) -> Result<Maintained, LogError> {
        if let Some(queue) = &self.attached {
            if let Err(error) = queue.maintain() {
                tracing::error!(topic = %self.topic, "the queue could not be maintained: {error}");
            }
            return Ok(Maintained::default());
        }
        let now = clock.now();
        // Whatever comes of it when the topic is deleted meanwhile is of no interest.
        let nothing = || Ok(Maintained::default());
        let Ok(survey) = self.with_log(|log| log.retention_survey(now.wall_ms)) else { return nothing() };
        survey.run();
        self.propose_retention(now.wall_ms);
        let begun = self.with_log(|log| log.begin_maintenance(now.wall_ms, now.mono_ms));
        let Ok(begun) = begun else { return nothing() };
        let mut work = begun?;
        if !self.follow_roll() {
            return nothing();
        }
        work.run();
        let ended = self.with_log(|log| log.end_maintenance(work));
        self.follow_log_start();
        self.tell_if_stopped();
        ended.unwrap_or_else(|_| nothing())
    }

    /// Writes the leader epochs soon after they changed, so that no append has to that closes a segment.
    ///
    /// # Errors
    /// When the file cannot be replaced; it is tried again.
    pub fn write_epochs(&self) -> Result<(), (Arc<LogDir>, LogError)> {
        let epochs = self.with_log(|log| log.epochs_to_write().map(|epochs| (log.dir().clone(), epochs)));
        match epochs {
            Ok(Some((dir, epochs))) => epochs.write().map_err(|error| (dir, error)),
            _ => Ok(()),
        }
    }

    /// Where the log was stopped by something else than the flusher, nothing more becomes durable.
    fn tell_if_stopped(&self) {
        let mut state = self.lock();
        if state.log.as_ref().is_ok_and(|log| log.stopped().is_some()) {
            let waits = std::mem::take(&mut state.durable_waits);
            drop(state);
            for (_, durable) in waits {
                durable.done(Err(ErrorCode::KAFKA_STORAGE_ERROR));
            }
        }
    }

    /// Ends service and gives the log away, to be closed or deleted: waiting fetches look again and are told why there
    /// is none, waiting produces fail so.
    pub fn take_log(&self, why: NoLog) -> Option<Log> {
        if let Some(queue) = &self.attached {
            queue.stop();
            return None;
        }
        let mut state = self.lock();
        self.offline.store(why == NoLog::Offline, Ordering::Release);
        let mut stored = std::mem::replace(&mut state.log, Err(why)).ok();
        let mut fetches = std::mem::take(&mut state.fetches);
        let waits = std::mem::take(&mut state.durable_waits);
        let commit_waits = match &mut stored {
            Some(Stored::Replicated(member)) => member.end_waits(why.code()),
            _ => Vec::new(),
        };
        drop(state);
        let log = stored.map(Stored::into_log);
        commit_waits.into_iter().for_each(|(wait, result)| wait.done(result));
        self.leave_group();
        fetches.look_again();
        for (_, durable) in waits {
            durable.done(Err(why.code()));
        }
        log
    }
}

impl Partition {
    fn read_queue(
        &self,
        queue: &Attached,
        request: &PartitionRead,
        waiter: Option<&Arc<FetchWaiter>>,
    ) -> Result<PartitionData, ErrorCode> {
        let leader_epoch = self.lead(request.current_leader_epoch)?;
        queue.check_served()?;
        if let Some(waiter) = waiter {
            queue.register(waiter);
        }
        let ends = queue.ends()?;
        let epoch = request.last_fetched_epoch;
        if epoch.is_known() {
            let end = queue.end_of_epoch(epoch)?;
            if !end.epoch.is_known() {
                return Err(ErrorCode::OFFSET_OUT_OF_RANGE);
            }
            if end.epoch < epoch || end.end_offset < request.offset {
                let (plan, diverging) = (ReadPlan::Empty, Some(end));
                return Ok(PartitionData { ends, leader_epoch, plan, diverging });
            }
        }
        Ok(PartitionData { ends, leader_epoch, plan: queue.read(request)?, diverging: None })
    }
}

impl AppendOutcome {
    /// How many messages were appended.
    pub fn messages(&self) -> u64 {
        u64::try_from(self.appended.last_offset + 1 - self.appended.base_offset).unwrap_or(0)
    }

    /// Of an append to a queue, which is synced when that is waited for.
    pub fn of(appended: Appended, epoch: LeaderEpoch) -> Self {
        AppendOutcome { appended, must_sync: false, epoch, sync_due: false }
    }
}

/// The state of a partition while it is locked.
struct Locked<'a> {
    partition: &'a Partition,
    /// Whoever locks it while it unwinds has not begun its change by then.
    was_panicking: bool,
    state: MutexGuard<'a, State>,
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() && !self.was_panicking {
            self.give_up();
        }
    }
}

impl Locked<'_> {
    /// Its holder panics.
    #[cold]
    fn give_up(&mut self) {
        if let Ok(log) = std::mem::replace(&mut self.state.log, Err(NoLog::Offline)) {
            let partition = TopicPartition::new(self.partition.topic.clone(), self.partition.index);
            log.dir().distrust(&partition);
            // It may be half changed: not even what its drop does is to be trusted. Its files stay open.
            std::mem::forget(log);
        }
        self.partition.offline.store(true, Ordering::Release);
        // Those who wait are told by another thread: they may need a lock that is held here.
        self.partition.poisoned.store(true, Ordering::Release);
    }
}

/// What a fetch asks of one partition.
#[derive(Debug, Clone)]
pub struct PartitionRead {
    /// First offset wanted.
    pub offset: i64,
    /// How far this reader may see.
    pub bound: ReadBound,
    /// At most so many bytes.
    pub bytes_max: usize,
    /// Unless the first batch alone is larger.
    pub at_least_one: bool,
    /// The leader epoch that the client knows of, if any.
    pub current_leader_epoch: LeaderEpoch,
    /// The epoch of the record before `offset` at the client, if it says so (KIP-595).
    pub last_fetched_epoch: LeaderEpoch,
}

/// What a partition has for a fetch.
pub struct PartitionData {
    /// The ends of the log at that instant.
    pub ends: Ends,
    /// The epoch in which this node led.
    pub leader_epoch: LeaderEpoch,
    /// Where the readable bytes are, if any.
    pub plan: ReadPlan,
    /// The largest epoch up to the client's and its end, where the client's log has gone another way.
    pub diverging: Option<EpochEnd>,
}

impl State {
    fn log(&mut self) -> Result<&mut Log, ErrorCode> {
        match &mut self.log {
            Ok(stored) => Ok(&mut **stored),
            Err(no_log) => Err(no_log.code()),
        }
    }

    fn lead(&self, current_leader_epoch: LeaderEpoch) -> Result<LeaderEpoch, ErrorCode> {
        let stored = match &self.log {
            Ok(stored) => Some(stored),
            Err(NoLog::Attached) => None,
            Err(no_log) => return Err(no_log.code()),
        };
        match current_leader_epoch {
            LeaderEpoch::NONE => {}
            older if older < self.leader_epoch => return Err(ErrorCode::FENCED_LEADER_EPOCH),
            newer if newer > self.leader_epoch => return Err(ErrorCode::UNKNOWN_LEADER_EPOCH),
            _ => {}
        }
        match stored {
            Some(Stored::Replicated(member)) if !member.leads() => Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
            _ => Ok(self.leader_epoch),
        }
    }

    /// Refuses an append that was meant for another leader epoch than this one, if for any.
    fn check_epoch(&self, epoch: Option<LeaderEpoch>) -> Result<(), Refused> {
        match epoch.is_none_or(|epoch| epoch == self.leader_epoch) {
            true => Ok(()),
            false => Err(Refused::NotLeader),
        }
    }

    fn append(&mut self, batch: &Prepared<'_>, now: Now) -> Result<AppendOutcome, Refused> {
        self.write(now, batch.size(), |log, leader_epoch| log.append(batch, leader_epoch, now.mono_ms))
    }

    /// Writes `size` bytes, or about so many, to the log; `write` gets the leader epoch.
    fn write(
        &mut self,
        now: Now,
        size: usize,
        write: impl FnOnce(&mut Log, LeaderEpoch) -> Result<Appended, AppendError>,
    ) -> Result<AppendOutcome, Refused> {
        let epoch = self.leader_epoch;
        let log = match self.log.as_mut().map_err(|no_log| *no_log)? {
            Stored::Alone(log) => log,
            Stored::Replicated(member) => {
                let appended = member.write(size, write)?;
                let log = member.replica.log();
                let (must_sync, sync_due) = (log.flush_messages_due(), log.flush_due(now.mono_ms));
                return Ok(AppendOutcome { appended, must_sync, epoch, sync_due });
            }
        };
        let before = log.ends().high_watermark;
        let appended = write(log, epoch)?;
        if log.ends().high_watermark > before && !self.fetches.is_empty() {
            self.fetches.moved_on(size, || log.ends());
        }
        let (must_sync, sync_due) = (log.flush_messages_due(), log.flush_due(now.mono_ms));
        Ok(AppendOutcome { appended, must_sync, epoch, sync_due })
    }
}

/// The largest epoch up to the client's and its end, if the client has read beyond that end (KIP-595).
///
/// # Errors
/// `OFFSET_OUT_OF_RANGE` for an epoch whose end this log cannot tell, for example one that is ahead of it.
fn diverging(
    log: &Log,
    leader_epoch: LeaderEpoch,
    request: &PartitionRead,
) -> Result<Option<EpochEnd>, ErrorCode> {
    if !request.last_fetched_epoch.is_known() {
        return Ok(None);
    }
    let end = end_of_epoch(log, leader_epoch, request.last_fetched_epoch);
    if !end.epoch.is_known() || end.end_offset < 0 {
        return Err(ErrorCode::OFFSET_OUT_OF_RANGE);
    }
    let diverges = end.epoch < request.last_fetched_epoch || end.end_offset < request.offset;
    Ok(diverges.then_some(end))
}

/// Where an epoch ends. The log knows the epochs that have records; the one in which this node leads begins at the log
/// end as long as it has none (Kafka notes it when a leader is elected). A client gets that epoch from Metadata and
/// ListOffsets, and would take "unknown" for a truncation.
fn end_of_epoch(log: &Log, leader_epoch: LeaderEpoch, epoch: LeaderEpoch) -> EpochEnd {
    let latest = log.leader_epochs().latest();
    let has_no_records = latest.is_none_or(|latest| latest < leader_epoch);
    let may_be = epoch.is_known() && epoch <= leader_epoch;
    if has_no_records && may_be && latest.is_none_or(|latest| latest < epoch) {
        let known = if epoch == leader_epoch { epoch } else { latest.unwrap_or(epoch) };
        return EpochEnd { epoch: known, end_offset: log.ends().log_end };
    }
    log.end_offset_for_epoch(epoch)
}

/// Whether a reader finds the same between such ends: only how far the log is durable does not matter.
fn reads_alike(ends: &Ends, others: &Ends) -> bool {
    *others == Ends { durable_end: others.durable_end, ..*ends }
}

#[cfg(any(test, feature = "testing"))]
impl Partition {
    /// Returns true if a fetch waits for more of it.
    pub fn has_waiting_fetch(&self) -> bool {
        !self.lock().fetches.is_empty()
    }
}

#[cfg(test)]
mod tests;
