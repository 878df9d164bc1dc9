//! A partition that this node has: its log, alone or as one replica of a group, behind one short critical section, and
//! those who wait for it.
//!
//! The broker reaches a log only through this interface and never keeps its ends: they may move by themselves.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use mainstem_log::dir::LogDir;
use mainstem_log::{DeleteRecordsError, Ends, EpochEnd, Log, LogError, Maintained};
use mainstem_records::LeaderEpoch;
use mainstem_wire::ErrorCode;
use parking_lot::{Mutex, RwLock};
use replicated::{Replication, ReplicationParts};
use stored::Stored;

use crate::attached::Attached;
use crate::errors::delete_records_error_code;
use crate::settings::TopicSettings;
use crate::traffic::Traffic;
use mainstem_runtime::clock::Clock;

mod appends;
mod flush;
mod locked;
mod queries;
mod reads;
mod replaying;
mod replicated;
mod snapshots;
mod stored;
mod take_over;
mod waiters;

pub use appends::{AppendOutcome, Refused};
pub use flush::Durable;
use flush::{Flush, commit_log_start, done};
use locked::Locked;
pub use queries::{Extent, TimeSearch};
pub use reads::{PartitionData, PartitionRead};
pub use replaying::LogReplay;
pub(crate) use replicated::{BegunCopy, CopyTarget, OwnReplica, Progress};
pub use replicated::{Leadership, ReplicaEvents, ReplicationHealth, RoleChange};
pub use snapshots::SnapshotStepError;
use take_over::Held;
pub use take_over::SHORTAGE_PAUSE;
pub use take_over::TakeOver;
use waiters::FetchWaiters;

/// A partition of a topic, as this node has it.
pub struct Partition {
    /// Topic, shared with its other partitions.
    pub topic: Arc<str>,
    /// Index within the topic.
    pub index: i32,
    settings: RwLock<Arc<TopicSettings>>,
    state: Mutex<State>,
    /// True if `state` has no usable log. Readable without the lock.
    offline: AtomicBool,
    /// There was a panic while the state was locked, which is not handled yet.
    poisoned: AtomicBool,
    /// None for a partition that was offline from the start.
    flush: RwLock<Option<Arc<Flush>>>,
    /// Counts of its produced and fetched bytes.
    pub traffic: Traffic,
    /// None where it has one replica, this one.
    replication: Option<Replication>,
    /// The queue that has the records in place of a log of this broker.
    attached: Option<Arc<Attached>>,
    /// Readers of the whole log, under which no compaction begins.
    replays: AtomicUsize,
    own: Weak<Partition>,
}

/// The replication of a log, or the queue that replaces it; both `None` for a log of this broker alone.
struct Backing {
    replication: Option<ReplicationParts>,
    attached: Option<Arc<Attached>>,
}

struct State {
    log: Result<Stored, NoLog>,
    /// Number of its moves to another log directory.
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

    /// A partition whose log cannot be opened: it is known and refuses all requests.
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
        let backing = Backing { replication: None, attached: Some(attached) };
        Self::of((topic, 0), settings, Err(NoLog::Attached), epoch, backing)
    }

    fn with_log_or_not(
        topic: Arc<str>,
        index: i32,
        settings: Arc<TopicSettings>,
        log: Result<(Arc<LogDir>, Stored), NoLog>,
        leader_epoch: LeaderEpoch,
        replication: Option<ReplicationParts>,
    ) -> Arc<Self> {
        Self::of((topic, index), settings, log, leader_epoch, Backing { replication, attached: None })
    }

    fn of(
        (topic, index): (Arc<str>, i32),
        settings: Arc<TopicSettings>,
        log: Result<(Arc<LogDir>, Stored), NoLog>,
        leader_epoch: LeaderEpoch,
        Backing { replication, attached }: Backing,
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
            replays: AtomicUsize::new(0),
            own: own.clone(),
        })
    }

    /// The queue that has the records, if one is attached in place of a log.
    pub fn queue(&self) -> Option<&Arc<Attached>> {
        self.attached.as_ref()
    }

    /// Returns true if it is served from this partition directory.
    pub fn is_at(&self, path: &Path) -> bool {
        self.lock().log.as_ref().is_ok_and(|log| log.path() == path)
    }

    /// Returns true if it is served from this log directory.
    pub fn is_in(&self, dir: &Arc<LogDir>) -> bool {
        self.lock().log.as_ref().is_ok_and(|log| Arc::ptr_eq(log.dir(), dir))
    }

    /// Returns true if its files cannot be used although the topic exists. Clients see a partition without a leader.
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

    /// End of an epoch (KIP-320): the largest known epoch up to `epoch`, and the offset at which the next one began.
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

    /// Moves the log start, and ends `on_durable` when it is durable. Returns the log start.
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

    /// Does rolling and retention that are due. Work that waits for the disk is done without the lock, so that appends do not wait.
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

    /// Fails the waits for durability if the log was stopped by something other than the flusher.
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

    /// Ends service and returns the log, to be closed or deleted. Waiting fetches look again and get the reason, and waiting produces fail
    /// with it.
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
}

/// End of an epoch. The log knows the epochs that have records. The current epoch of this leader begins at the log end while it has
/// none (Kafka notes it when a leader is elected). A client gets that epoch from Metadata and ListOffsets, and would take "unknown"
/// for a truncation.
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

#[cfg(test)]
mod tests;
