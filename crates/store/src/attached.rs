//! A partition with its records in an embedded queue: local processes append to it and read it beside the broker.
//!
//! It replaces a log. Its ends move by themselves, so none is kept here: fetches that wait are woken by the
//! [watcher](watcher::Watcher), which sleeps until any process has appended. An append only tries the writer lock; where a local
//! writer has it, it goes to the queue's own [thread](appends). What other processes wrote is [checked](checked) before a client
//! gets it. Producers' sequence numbers are known to the broker alone, and are found again in the queue at the next start.

mod appends;
mod checked;
#[cfg(test)]
mod tests;
mod watcher;

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use mainstem_controller::AttachedTopic;
use mainstem_log::storage::{OpenMode, RealStorage, Storage, StorageFile};
use mainstem_log::{
    Appended, Ends, EpochEnd, FileRange, PendingRead, Prepared, ProducerBudget, ProducerLedger, ReadError,
    ReadPlan,
};
use mainstem_queue::{Appender, Locked, Options, Queue, QueueError, Serving};
use mainstem_records::LeaderEpoch;
use mainstem_runtime::sync::Thread;
use mainstem_wire::{ErrorCode, Uuid};
use parking_lot::{Condvar, Mutex};

pub use appends::{PendingAppend, UNANSWERED_TIME_MAX};
pub use watcher::Watcher;

use crate::partition::{AppendOutcome, Durable, PartitionRead, Refused};
use crate::signal::FetchWaiter;
use appends::Appends;
use checked::{Checked, Part, Wanted};
use mainstem_runtime::clock::Clock;
use mainstem_runtime::supervised;

/// Timeout of one attempt to take the writer lock. The waiting append then checks its deadline and tries again.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// Bytes at the end of the queue that are checked by the thread of the connection; more by a helper.
const INLINE_BYTES_MAX: u64 = 64 << 10;

/// Places behind the last reads that are remembered: as many readers go on without a look at an index.
const PLACES_MAX: usize = 64;

/// Bytes that count as readable for waiting fetches when a new segment begins: more than any fetch asks for.
const SEGMENT_READABLE_BYTES: usize = 1 << 40;

/// Attempts to take the lock while no append waits for it.
const TRIES: usize = 64;
/// The time that a sync waits for which there were no descriptors or no memory.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// Why the queue takes no batch.
#[derive(Debug, thiserror::Error)]
pub enum QueueRefusal {
    /// The broker stops.
    #[error("the queue is not served any more")]
    Gone,
    /// Batches of transactions would need a broker that sees every append.
    #[error("an embedded queue takes no transactional batches; write to it without a transactional.id")]
    Transactional,
    /// It may be taken later.
    #[error("{0}")]
    Busy(String),
    /// It is larger than a segment of the queue.
    #[error("{0}")]
    TooLarge(String),
    /// The queue cannot be written.
    #[error("{0}")]
    Storage(String),
}

impl QueueRefusal {
    fn of(error: QueueError) -> QueueRefusal {
        match error {
            QueueError::TooLarge { .. } => QueueRefusal::TooLarge(error.to_string()),
            QueueError::WriterBlocked { .. } | QueueError::Busy { .. } => {
                QueueRefusal::Busy(error.to_string())
            }
            other => QueueRefusal::Storage(other.to_string()),
        }
    }

    /// Kafka's code.
    pub fn code(&self) -> ErrorCode {
        match self {
            QueueRefusal::Gone => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
            // What Kafka answered where the format of a topic's messages knew no transactions.
            QueueRefusal::Transactional => ErrorCode::UNSUPPORTED_FOR_MESSAGE_FORMAT,
            QueueRefusal::Busy(_) => ErrorCode::REQUEST_TIMED_OUT,
            QueueRefusal::TooLarge(_) => ErrorCode::RECORD_LIST_TOO_LARGE,
            QueueRefusal::Storage(_) => ErrorCode::KAFKA_STORAGE_ERROR,
        }
    }
}

/// Why a queue cannot be attached.
#[derive(Debug, thiserror::Error)]
#[error("the queue for topic {topic} cannot be attached: {source}")]
pub struct AttachError {
    /// The topic that it was to be.
    topic: String,
    source: QueueError,
}

/// A queue that is served as a topic of one partition.
pub struct Attached {
    topic: Arc<str>,
    topic_id: Uuid,
    serving: Serving,
    /// It does not change while the queue is open.
    leader_epoch: LeaderEpoch,
    leader_epochs: Vec<(LeaderEpoch, i64)>,
    clock: Clock,
    writing: Mutex<Writing>,
    waits: Mutex<Waits>,
    tail: Mutex<Tail>,
    appends: Appends,
    syncs: Syncs,
    stopped: AtomicBool,
    /// That a file was cut has been said.
    is_cut: AtomicBool,
    own: Weak<Attached>,
}

/// The appender, and the state of its producers.
struct Writing {
    /// None while another process appends exclusively, or the lock could not be had at the start: the queue's thread appends then.
    appender: Option<Appender>,
    producers: ProducerLedger,
}

/// Waiting fetches and waits for durability.
#[derive(Default)]
struct Waits {
    fetches: Vec<Arc<FetchWaiter>>,
    /// By the offset up to which they need the queue to be synced.
    durable: Vec<(i64, Durable)>,
    /// The open segment and its bytes of which the fetches know.
    seen: (i64, u64),
}

/// The open segment, and positions at which reads may begin.
#[derive(Default)]
struct Tail {
    base: i64,
    file: Option<Arc<dyn StorageFile>>,
    /// Offsets and positions of batches.
    places: VecDeque<(i64, u64)>,
}

/// Requests to the thread that syncs.
#[derive(Default)]
struct Syncs {
    state: Mutex<SyncState>,
    changed: Condvar,
}

#[derive(Default)]
struct SyncState {
    wanted: bool,
    /// Waits for a sync of the control file's values.
    control: Vec<Durable>,
    stopped: bool,
    thread: Option<Thread>,
}

/// Settings with which a queue is attached.
pub struct AttachOptions {
    /// The limit over the producers of all partitions.
    pub budget: Arc<ProducerBudget>,
    /// Producers that wrote within this time are found again (`producer.id.expiration.ms`).
    pub producer_expiration_ms: u64,
    /// The broker's clock.
    pub clock: Clock,
}

impl Attached {
    /// Opens the queue in a directory, or makes it, to be served as a topic.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn open(topic: &str, directory: &Path, options: AttachOptions) -> Result<Arc<Attached>, AttachError> {
        let AttachOptions { budget, producer_expiration_ms, clock } = options;
        let failed = |source| AttachError { topic: topic.to_owned(), source };
        let queue = Options::new().lock_timeout(Some(LOCK_TIMEOUT)).open(directory).map_err(failed)?;
        let serving = queue.serve().map_err(failed)?;
        let topic_id = Uuid(serving.topic_id().map_err(failed)?);
        let appender = match queue.appender() {
            Ok(appender) => Some(appender),
            Err(QueueError::Busy { .. } | QueueError::WriterBlocked { .. }) => None,
            Err(error) => return Err(failed(error)),
        };
        let leader_epoch = LeaderEpoch::new(serving.leader_epoch());
        let leader_epochs = serving.leader_epochs().map_err(failed)?.into_iter();
        let leader_epochs = leader_epochs.map(|(epoch, start)| (LeaderEpoch::new(epoch), start)).collect();
        let attached = Arc::new_cyclic(|own| Attached {
            topic: topic.into(),
            topic_id,
            serving,
            leader_epoch,
            leader_epochs,
            clock,
            writing: Mutex::new(Writing { appender, producers: ProducerLedger::new(budget) }),
            waits: Mutex::default(),
            tail: Mutex::default(),
            appends: Appends::default(),
            syncs: Syncs::default(),
            stopped: AtomicBool::new(false),
            is_cut: AtomicBool::new(false),
            own: own.clone(),
        });
        attached.find_producers(producer_expiration_ms);
        Ok(attached)
    }

    /// Metadata of the topic.
    pub fn metadata(&self) -> AttachedTopic {
        let rules = self.serving.queue().rules();
        let limit = |value: Option<u64>| {
            value
                .and_then(|value| i64::try_from(value).ok())
                .map_or("-1".to_owned(), |value| value.to_string())
        };
        // Kafka's key has a bound below which queues may be.
        let segment_bytes = match rules.segment_bytes < 1 << 20 {
            true => "internal.segment.bytes",
            false => "segment.bytes",
        };
        let never = i64::MAX as u64;
        let configs: BTreeMap<_, _> = [
            (segment_bytes, rules.segment_bytes.to_string()),
            ("segment.ms", rules.roll_ms.unwrap_or(never).clamp(1, never).to_string()),
            ("retention.ms", limit(rules.retention_ms)),
            ("retention.bytes", limit(rules.retention_bytes)),
            ("cleanup.policy", "delete".to_owned()),
        ]
        .into();
        AttachedTopic {
            name: self.topic.to_string(),
            id: self.topic_id,
            leader_epoch: self.leader_epoch.get(),
            configs: configs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        }
    }

    /// The name of the topic that it is.
    pub fn topic(&self) -> &Arc<str> {
        &self.topic
    }

    /// The id of the topic.
    pub fn topic_id(&self) -> Uuid {
        self.topic_id
    }

    /// The queue with its readers and writers.
    pub fn serving(&self) -> &Serving {
        &self.serving
    }

    /// The queue.
    pub fn queue(&self) -> &Queue {
        self.serving.queue()
    }

    /// The epoch in which this node leads it.
    pub fn leader_epoch(&self) -> LeaderEpoch {
        self.leader_epoch
    }

    fn mono_ms(&self) -> u64 {
        self.clock.mono_ms()
    }

    /// Fails once the broker stops, or another process has cut the control file: then what the queue has said before this call of its
    /// ends is not true.
    ///
    /// # Errors
    /// UNKNOWN_TOPIC_OR_PARTITION or KAFKA_STORAGE_ERROR.
    pub fn check_served(&self) -> Result<(), ErrorCode> {
        if self.stopped.load(Ordering::Acquire) {
            return Err(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
        }
        self.serving.check_whole().map_err(|error| {
            self.note_cut(&error);
            ErrorCode::KAFKA_STORAGE_ERROR
        })
    }

    /// Says once that a file of the queue was cut.
    fn note_cut(&self, error: &QueueError) {
        if !self.is_cut.swap(true, Ordering::Relaxed) {
            tracing::error!(
                topic = %self.topic,
                "{error}; until this broker starts again, clients of this topic are refused, and those of others are served"
            );
        }
    }

    /// Log start and ends now. Published records are readable, since there is one replica.
    ///
    /// # Errors
    /// As [`Attached::check_served`].
    pub fn ends(&self) -> Result<Ends, ErrorCode> {
        let ends = self.queue().ends();
        self.check_served()?;
        Ok(Ends {
            log_start: ends.start,
            local_log_start: ends.start,
            log_end: ends.next,
            durable_end: ends.synced.min(ends.next),
            high_watermark: ends.next,
            last_stable: ends.next,
        })
    }

    /// The leader epoch of the message at an offset.
    pub fn epoch_of(&self, offset: i64) -> Option<LeaderEpoch> {
        let known = self.leader_epochs.iter().rfind(|(_, start)| *start <= offset);
        known.map(|(epoch, _)| *epoch)
    }

    /// The largest epoch up to the given one, and where it ends.
    ///
    /// # Errors
    /// As [`Attached::check_served`].
    pub fn end_of_epoch(&self, epoch: LeaderEpoch) -> Result<EpochEnd, ErrorCode> {
        let at = self.leader_epochs.partition_point(|(known, _)| *known <= epoch);
        if epoch > self.leader_epoch {
            return Ok(EpochEnd::UNKNOWN);
        }
        let known = at.checked_sub(1).and_then(|at| self.leader_epochs.get(at));
        let end_offset = match self.leader_epochs.get(at) {
            Some((_, start)) => *start,
            None => self.ends()?.log_end,
        };
        Ok(known.map_or(EpochEnd::UNKNOWN, |(epoch, _)| EpochEnd { epoch: *epoch, end_offset }))
    }

    /// Bytes of all segments, and how many they are.
    pub fn size(&self) -> (u64, usize) {
        let segments = self.queue().segments().unwrap_or_default();
        (segments.iter().map(|segment| segment.bytes).sum(), segments.len())
    }

    /// Runs a function on what is known of producers.
    pub fn with_producers<T>(&self, look: impl FnOnce(&ProducerLedger) -> T) -> T {
        look(&self.writing.lock().producers)
    }

    /// The first message with this timestamp or a later one, or for `None` the one with the greatest: offset and timestamp.
    ///
    /// # Errors
    /// When the segments cannot be read.
    pub fn search(&self, timestamp: Option<i64>) -> Result<Option<(i64, i64)>, ErrorCode> {
        let found = match timestamp {
            Some(timestamp) => self.queue().first_at(timestamp),
            None => self.queue().newest_timestamp(),
        };
        self.check_served()?;
        found.map_err(|error| {
            tracing::error!(topic = %self.topic, "a search by time failed: {error}");
            ErrorCode::KAFKA_STORAGE_ERROR
        })
    }
}

/// Appending.
impl Attached {
    /// Appends a client's batch. [`Refused::Blocked`]: a local writer has the lock, or others wait for it; the append is to go to
    /// [`Attached::append_later`].
    ///
    /// # Errors
    /// Why the queue does not take it.
    pub fn append(&self, prepared: &Prepared<'_>) -> Result<AppendOutcome, Refused> {
        if self.stopped.load(Ordering::Acquire) {
            return Err(QueueRefusal::Gone.into());
        }
        if self.appends.any() {
            return Err(Refused::Blocked);
        }
        let mut writing = self.writing.lock();
        let Writing { appender, producers } = &mut *writing;
        let Some(appender) = appender else { return Err(Refused::Blocked) };
        let Some(mut locked) = appender.try_lock().map_err(QueueRefusal::of)? else {
            return Err(Refused::Blocked);
        };
        // This thread looks for those who wait by itself.
        self.serving.disarm();
        let appended = self.append_and_note(&mut locked, producers, prepared);
        drop(locked);
        drop(writing);
        self.look();
        appended
    }

    /// Appends with a lock that was waited for.
    fn append_locked(
        &self,
        locked: &mut Locked<'_>,
        prepared: &Prepared<'_>,
    ) -> Result<AppendOutcome, Refused> {
        let mut writing = self.writing.lock();
        self.append_and_note(locked, &mut writing.producers, prepared)
    }

    fn append_and_note(
        &self,
        locked: &mut Locked<'_>,
        producers: &mut ProducerLedger,
        prepared: &Prepared<'_>,
    ) -> Result<AppendOutcome, Refused> {
        let batch = prepared.batch();
        if batch.attributes().is_transactional() || batch.attributes().is_control() {
            return Err(QueueRefusal::Transactional.into());
        }
        let log_start_offset = self.queue().ends().start;
        if let Some(duplicate) = producers.judge(prepared, log_start_offset)? {
            return Ok(AppendOutcome::of(duplicate, self.leader_epoch));
        }
        let base_offset = locked.append(prepared.header(), batch).map_err(|error| {
            if let QueueError::Cut { .. } = &error {
                self.note_cut(&error);
            }
            QueueRefusal::of(error)
        })?;
        let last_offset = base_offset + prepared.offsets() - 1;
        producers.record(prepared, last_offset, self.mono_ms());
        let appended = Appended {
            base_offset,
            last_offset,
            log_append_time: prepared.log_append_time(),
            log_start_offset,
            duplicate: false,
        };
        Ok(AppendOutcome::of(appended, self.leader_epoch))
    }

    /// Runs a function with the writer lock if it can be had within a few looks; `None`: a local writer has it.
    fn try_locked<T>(&self, act: impl FnOnce(&mut Locked<'_>) -> T) -> Result<Option<T>, QueueError> {
        let mut writing = self.writing.lock();
        if writing.appender.is_none() {
            writing.appender = Some(self.queue().appender()?);
        }
        let appender = writing.appender.as_mut().expect("it is there by now");
        for _ in 0..TRIES {
            if let Some(mut locked) = appender.try_lock()? {
                return Ok(Some(act(&mut locked)));
            }
            std::thread::yield_now();
        }
        Ok(None)
    }

    /// Closes the open segment when it is due, and deletes what the rules of the queue do not keep, unless a local writer has
    /// the lock, which does that itself.
    ///
    /// # Errors
    /// When the next segment cannot be made.
    pub fn maintain(&self) -> Result<(), QueueError> {
        match self.try_locked(|locked| locked.maintain()) {
            Ok(maintained) => maintained.unwrap_or(Ok(())),
            Err(QueueError::Busy { .. } | QueueError::WriterBlocked { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Moves the beginning of the queue, and has `on_durable` called when that is on the disk. Returns where it begins.
    ///
    /// # Errors
    /// OFFSET_OUT_OF_RANGE beyond the end, POLICY_VIOLATION before what a named tailer has not read where the queue keeps that,
    /// REQUEST_TIMED_OUT while a local writer has the lock.
    pub fn delete_before(&self, offset: i64, on_durable: Durable) -> Result<i64, ErrorCode> {
        let ends = self.queue().ends();
        self.check_served()?;
        let offset = if offset == -1 { ends.next } else { offset };
        if !(0..=ends.next).contains(&offset) {
            return Err(ErrorCode::OFFSET_OUT_OF_RANGE);
        }
        if self.queue().rules().keep_for_tailers {
            let tailers = self.queue().tailers().map_err(|_| ErrorCode::KAFKA_STORAGE_ERROR)?;
            if tailers.iter().any(|tailer| tailer.position < offset) {
                return Err(ErrorCode::POLICY_VIOLATION);
            }
        }
        match self.try_locked(|locked| locked.delete_before(offset)) {
            Ok(Some(())) => {}
            Ok(None) | Err(QueueError::Busy { .. } | QueueError::WriterBlocked { .. }) => {
                return Err(ErrorCode::REQUEST_TIMED_OUT);
            }
            Err(error) => {
                tracing::error!(topic = %self.topic, "the beginning of the queue could not be moved: {error}");
                return Err(ErrorCode::KAFKA_STORAGE_ERROR);
            }
        }
        self.ask_for_sync(|state| state.control.push(on_durable));
        Ok(self.queue().ends().start)
    }

    /// Forgets idle producers; how many.
    pub fn expire_producers(&self, wall_ms: i64, expiration_ms: u64) -> usize {
        self.writing.lock().producers.expire(self.mono_ms(), wall_ms, expiration_ms)
    }
}

/// Reading.
impl Attached {
    /// Plans a read. A range at the end of the queue is checked here, others where waiting is allowed.
    pub fn read(&self, request: &PartitionRead) -> Result<ReadPlan, ErrorCode> {
        let ends = self.queue().ends();
        self.check_served()?;
        if !(ends.start..=ends.next).contains(&request.offset) {
            return Err(ErrorCode::OFFSET_OUT_OF_RANGE);
        }
        if request.offset == ends.next {
            return Ok(ReadPlan::Empty);
        }
        let wanted = Wanted {
            offset: request.offset,
            bytes_max: request.bytes_max,
            at_least_one: request.at_least_one,
        };
        if let Some(plan) = self.read_tail(&wanted) {
            return Ok(plan);
        }
        let own = self.own.upgrade().ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
        Ok(ReadPlan::Later(PendingRead::elsewhere(move || own.read_anywhere(&wanted))))
    }

    /// Reads recently appended records from the page cache and checks them inline. `None`: the offset is elsewhere, or there was an error.
    fn read_tail(&self, wanted: &Wanted) -> Option<ReadPlan> {
        let mut tail = self.tail.lock();
        let (base, end) = self.serving.published();
        if tail.file.is_none() || tail.base != base {
            let path = self.queue().directory().join(format!("{base:020}.log"));
            tail.file = RealStorage.open(&path, OpenMode::Read).ok();
            tail.base = base;
            tail.places.clear();
            tail.places.push_back((base, 0));
        }
        let file = tail.file.clone()?;
        let (_, position) = *tail.places.iter().rfind(|(offset, _)| *offset == wanted.offset)?;
        if end.checked_sub(position).is_none_or(|bytes| bytes == 0 || bytes > INLINE_BYTES_MAX) {
            return None;
        }
        let part = Part { position, first_offset: Some(wanted.offset), end, next_segment: None };
        let found = checked::find(&*file, &part, wanted).ok()?;
        let Some(found) = found else { return Some(ReadPlan::Empty) };
        tail.remember(&found);
        Some(ReadPlan::Range(range(file, &found, true)))
    }

    /// Reads from the disk if need be.
    fn read_anywhere(&self, wanted: &Wanted) -> Result<ReadPlan, ReadError> {
        loop {
            let located = match self.serving.locate(wanted.offset) {
                Ok(located) => located,
                Err(QueueError::OutOfRange { offset, start, end }) => {
                    self.serving.check_whole().map_err(|error| self.unreadable(io::Error::other(error)))?;
                    return Err(ReadError::OffsetOutOfRange { offset, log_start: start, log_end: end });
                }
                Err(error) => return Err(self.unreadable(io::Error::other(error))),
            };
            let file = match RealStorage.open(&located.path, OpenMode::Read) {
                // Retention was faster.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened.map_err(|error| self.unreadable(error))?,
            };
            let part = Part {
                position: located.position,
                first_offset: (located.position == 0).then_some(located.base_offset),
                end: located.bytes,
                next_segment: located.next_segment,
            };
            let found = checked::find(&*file, &part, wanted);
            let found = found.map_err(|error| {
                let file = located.path.display();
                self.unreadable(io::Error::new(error.kind(), format!("{file}: {error}")))
            })?;
            let Some(found) = found else { return Ok(ReadPlan::Empty) };
            let mut tail = self.tail.lock();
            if tail.file.is_some() && tail.base == located.base_offset {
                tail.remember(&found);
            }
            return Ok(ReadPlan::Range(range(file, &found, false)));
        }
    }

    fn unreadable(&self, error: io::Error) -> ReadError {
        let directory = self.queue().directory().display();
        tracing::error!(
            topic = %self.topic,
            "the queue cannot be read: {error}; `mainstem queue verify {directory}` shows how much of it is damaged"
        );
        ReadError::Storage(error)
    }
}

impl Tail {
    fn remember(&mut self, found: &Checked) {
        let place = (found.next_offset, found.position + found.len as u64);
        if self.places.contains(&place) {
            return;
        }
        if self.places.len() >= PLACES_MAX {
            self.places.pop_front();
        }
        self.places.push_back(place);
    }
}

fn range(file: Arc<dyn StorageFile>, found: &Checked, recent: bool) -> FileRange {
    FileRange { file, position: found.position, len: found.len, directory: None, recent, aborted: Vec::new() }
}

/// Waiting.
impl Attached {
    /// Registers a fetch that may have to wait, before it reads: what is appended behind this wakes it.
    pub fn register(&self, waiter: &Arc<FetchWaiter>) {
        let mut waits = self.waits.lock();
        if waits.fetches.is_empty() {
            waits.seen = self.serving.published();
        }
        waits.fetches.push(waiter.clone());
        self.serving.arm();
    }

    /// Takes a waiter's registrations back.
    pub fn forget(&self, waiter: &Arc<FetchWaiter>) {
        self.waits.lock().fetches.retain(|other| !Arc::ptr_eq(other, waiter));
    }

    /// Wakes those for whom there is news, and has the next append of any process wake this broker if others are left.
    pub fn look(&self) {
        let mut synced = Vec::new();
        let mut waits = self.waits.lock();
        loop {
            let published = self.serving.published();
            if published != waits.seen && !waits.fetches.is_empty() {
                let bytes = match published.0 == waits.seen.0 {
                    true => usize::try_from(published.1.saturating_sub(waits.seen.1)).unwrap_or(usize::MAX),
                    false => SEGMENT_READABLE_BYTES,
                };
                waits.fetches.retain(|waiter| !waiter.readable(bytes));
            }
            waits.seen = published;
            let durable_end = self.queue().ends().synced;
            // Asked behind the look: what was read is zeros, or of zeros, where a file was cut before it.
            let durable_end = self.serving.check_whole().map_or(i64::MIN, |()| durable_end);
            synced.extend(waits.durable.extract_if(.., |(needed, _)| *needed <= durable_end));
            if waits.fetches.is_empty() {
                break;
            }
            self.serving.arm();
            if self.serving.published() == waits.seen {
                break;
            }
        }
        drop(waits);
        synced.into_iter().for_each(|(_, durable)| durable.done(Ok(())));
        if let Err(error) = self.serving.check_whole() {
            self.note_cut(&error);
            self.fail_waits();
        }
    }

    /// Calls back when the queue is synced up to `upto`.
    pub fn when_durable(&self, upto: i64, durable: Durable) {
        let mut waits = self.waits.lock();
        match self.durability(upto) {
            Some(result) => {
                drop(waits);
                durable.done(result);
            }
            None => {
                waits.durable.push((upto, durable));
                drop(waits);
                self.ask_for_sync(|state| state.wanted = true);
            }
        }
    }

    /// Returns whether the queue is synced up to `upto`, or never will be; `None`: not yet.
    pub fn durability(&self, upto: i64) -> Option<Result<(), ErrorCode>> {
        if self.queue().ends().synced >= upto && self.serving.check_whole().is_ok() {
            return Some(Ok(()));
        }
        self.check_served().err().map(Err)
    }

    fn ask_for_sync(&self, ask: impl FnOnce(&mut SyncState)) {
        let mut state = self.syncs.state.lock();
        ask(&mut state);
        if state.thread.is_none()
            && !state.stopped
            && let Some(own) = self.own.upgrade()
        {
            let why = "who waits for a sync of an attached queue would wait for ever";
            match supervised::spawn_vital("attached-sync", why, move || own.run_syncs()) {
                Ok(thread) => state.thread = Some(thread),
                Err(error) => {
                    drop(state);
                    tracing::error!(topic = %self.topic, "the queue cannot be synced: {error}");
                    self.fail_waits();
                    return;
                }
            }
        }
        drop(state);
        self.syncs.changed.notify_one();
    }

    fn run_syncs(&self) {
        loop {
            let mut state = self.syncs.state.lock();
            while !state.wanted && state.control.is_empty() && !state.stopped {
                self.syncs.changed.wait(&mut state);
            }
            let wanted = std::mem::take(&mut state.wanted);
            let control = std::mem::take(&mut state.control);
            let stopped = state.stopped;
            drop(state);
            match wanted.then(|| self.queue().sync()) {
                None | Some(Ok(_)) => {}
                // The disk was not asked, and nothing is lost: the waits stay.
                Some(Err(error)) if error.is_shortage() && !stopped => self.wait_out(&error),
                Some(Err(error)) => {
                    tracing::error!(topic = %self.topic, "the queue could not be synced: {error}");
                    self.fail_waits();
                }
            }
            self.look();
            if !control.is_empty() {
                let synced = self.queue().sync_control().and_then(|()| self.serving.check_whole());
                if let Err(error) = &synced {
                    tracing::error!(topic = %self.topic, "the queue's control file could not be synced: {error}");
                }
                let result = synced.map_err(|_| ErrorCode::KAFKA_STORAGE_ERROR);
                control.into_iter().for_each(|durable| durable.done(result));
            }
            if stopped {
                return;
            }
        }
    }

    /// Has the sync asked for again after a while in which there may be descriptors and memory again.
    fn wait_out(&self, error: &QueueError) {
        tracing::warn!(topic = %self.topic, "{error}; who waits for a sync of the queue waits until it is possible");
        let mut state = self.syncs.state.lock();
        state.wanted = true;
        self.syncs.changed.wait_for(&mut state, SHORTAGE_PAUSE);
    }

    fn fail_waits(&self) {
        let waits = std::mem::take(&mut self.waits.lock().durable);
        waits.into_iter().for_each(|(_, durable)| durable.done(Err(ErrorCode::KAFKA_STORAGE_ERROR)));
    }

    /// Ends service: those who wait look again, or fail. Writes down what is known of producers.
    pub fn stop(&self) {
        if self.stopped.swap(true, Ordering::AcqRel) {
            return;
        }
        self.stop_appends();
        let thread = {
            let mut state = self.syncs.state.lock();
            state.stopped = true;
            state.thread.take()
        };
        self.syncs.changed.notify_all();
        thread.into_iter().for_each(|thread| drop(thread.join()));
        let mut waits = self.waits.lock();
        let (fetches, durable) = (std::mem::take(&mut waits.fetches), std::mem::take(&mut waits.durable));
        drop(waits);
        fetches.iter().for_each(|waiter| waiter.look_again());
        durable.into_iter().for_each(|(_, durable)| durable.done(Err(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)));
        if let Err(error) = self.write_producers() {
            tracing::warn!(topic = %self.topic, "its producers could not be written down: {error}; the next start looks for them");
        }
        self.writing.lock().appender = None;
    }
}

/// Producers that were known to an earlier broker.
impl Attached {
    /// Files of producers, by the offset before which they know all batches.
    fn producer_files(&self) -> Vec<(i64, PathBuf)> {
        let Ok(entries) = fs::read_dir(self.queue().directory()) else { return Vec::new() };
        let offset = |path: PathBuf| {
            let name = path.file_name()?.to_str()?.strip_suffix(".snapshot")?;
            Some((name.parse::<i64>().ok()?, path))
        };
        let mut files: Vec<_> = entries.filter_map(|entry| offset(entry.ok()?.path())).collect();
        files.sort_unstable();
        files
    }

    /// Writes the producers as of a synced end, so that no power cut makes the file one of messages that are gone.
    fn write_producers(&self) -> io::Result<()> {
        let (bytes, end) = {
            let writing = self.writing.lock();
            (writing.producers.snapshot(), self.queue().ends().next)
        };
        if self.queue().ends().synced < end || self.serving.check_whole().is_err() {
            return Ok(());
        }
        let path = self.queue().directory().join(format!("{end:020}.snapshot"));
        let new = path.with_extension("snapshot.tmp");
        fs::write(&new, bytes)?;
        fs::File::open(&new)?.sync_all()?;
        fs::rename(&new, &path)?;
        self.producer_files().into_iter().filter(|(offset, _)| *offset != end).for_each(|(_, old)| {
            // One that stays is older, and passed over.
            let _ = fs::remove_file(old);
        });
        Ok(())
    }

    /// Takes the producers of the newest file, and of all batches behind it that may be remembered.
    fn find_producers(&self, expiration_ms: u64) {
        let ends = self.queue().ends();
        let mut writing = self.writing.lock();
        let producers = &mut writing.producers;
        let mut files = self.producer_files();
        files.retain(|(offset, _)| (ends.start..=ends.next).contains(offset));
        let known = files.iter().rev().find_map(|(offset, path)| {
            fs::read(path).is_ok_and(|bytes| producers.load(&bytes)).then_some(*offset)
        });
        let from = known.unwrap_or(ends.start);
        let oldest = self.clock.system_time().checked_sub(Duration::from_millis(expiration_ms));
        let is_old = |path: &Path| {
            let changed = fs::metadata(path).and_then(|file| file.modified());
            matches!((changed, oldest), (Ok(changed), Some(oldest)) if changed < oldest)
        };
        let mut offset = from;
        while offset < ends.next {
            let Ok(located) = self.serving.locate(offset) else { return };
            let next = located.next_segment;
            if next.is_none() || !is_old(&located.path) {
                let part = Part {
                    position: located.position,
                    first_offset: None,
                    end: located.bytes,
                    next_segment: next,
                };
                let file = RealStorage.open(&located.path, OpenMode::Read);
                let walked = file.and_then(|file| {
                    checked::headers(&*file, &part, |header| {
                        if header.base_offset >= from {
                            producers.replay(header, self.mono_ms());
                        }
                    })
                });
                if let Err(error) = walked {
                    let path = located.path.display();
                    tracing::error!(topic = %self.topic, "{path}: {error}; its producers are not known");
                }
            }
            match next {
                Some(next) => offset = next,
                None => return,
            }
        }
    }
}
