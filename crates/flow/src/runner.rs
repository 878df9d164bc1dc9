//! Runs the handler over one partition. Its task admits messages to the window in the order of arrival, starts those that may run, and acts
//! on the judge's verdict about failures.
//!
//! ```text
//! driver ──inputs──▶ backlog ──filters──▶ window ──▶ running ──Ok──▶ writing (outputs) ──▶ finished
//!    ▲                  │                   ▲           │                                      │
//!    │                  │                   └── retry ──┴── writing (dead letter) ─────────────┤
//!    └── commands       └── done at once ──────────────────────────────────────────────────────┘
//!        (release, seek, fail)
//! ```
//!
//! It is one future that is polled by hand. Attempts that start or end are taken many at a time under one lock, and nothing is allocated
//! for a message that succeeds and sends nothing.

mod attempts;
mod backlog;
mod inline;
mod messages;
mod writing;

pub(crate) use backlog::QUEUE_MAX;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::FuturesUnordered;
use mainstem_client::{CommittedOffset, FetchedBatch, Record, TopicPartition, Uuid};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};

use crate::FaultClass;
use crate::app::AppState;
use crate::attempt::{Ended, Failure, Others};
use crate::cx::{Asked, Cx, PartitionCx};
use crate::error::Error;
use crate::fault::{Fault, in_line};
use crate::judge::{Mark, Verdict};
use crate::letter::Stage;
use crate::message::{Received, TRACE_PARENT};
use crate::metadata::{self, Finished};
use crate::route::RouteState;
use crate::transport::{BoxFuture, Sink};
use crate::window::{Limits, MESSAGES_MAX, Window};
use attempts::Attempts;
use backlog::Backlog;
use inline::GroupSize;
use messages::Messages;
use writing::{Outputs, Writes, Written, write_letter, write_outputs};

/// Steps of one kind that are done before others have their turn.
const STEPS_MAX: usize = 128;
/// Rounds of all steps before other tasks have their turn,
const ROUNDS_MAX: usize = 16;
/// and milliseconds, when handlers take long without an await.
const TURN_MS: u64 = 10;
/// A thread that is blocked for longer is worth a warning.
const BLOCKING_MS: u64 = 1_000;
/// A timer is not set further ahead.
const FAR: Duration = Duration::from_secs(3600);

/// An input of a partition's task.
#[derive(Debug)]
pub(crate) enum Input {
    /// Records. The number is that of the last seek before them.
    Batch(u64, FetchedBatch),
    /// Nothing more is started. Handlers that run have so much time, and are dropped then. Writes that are under way at that time are
    /// awaited, so that none arrives after those of the next owner. The task ends.
    Revoke(Duration),
    /// The same without waiting for writes: the sink is closed next.
    Stop(Duration),
    /// The application has become quiet, or is no longer quiet.
    Look,
}

/// A request of a partition's task to the driver.
#[derive(Debug)]
pub(crate) enum Command {
    /// The task can take more of this partition.
    Release(TopicPartition),
    /// Moves to an offset; batches from there on carry this number.
    Seek(TopicPartition, i64, u64),
    /// The application ends.
    Fail(Error),
}

/// The parts of a partition's task.
pub(crate) struct Partition {
    pub(crate) app: Arc<AppState>,
    pub(crate) route: Arc<RouteState>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) inputs: mpsc::UnboundedReceiver<Input>,
    pub(crate) commands: mpsc::UnboundedSender<Command>,
    pub(crate) sink: Arc<dyn Sink>,
}

/// The state that a partition's task shares with the driver.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) partition: TopicPartition,
    pub(crate) progress: Mutex<Progress>,
    /// Batches that were not taken yet.
    pub(crate) queued: AtomicUsize,
    /// The driver holds the partition.
    pub(crate) is_held: AtomicBool,
    /// The last time before which nothing is, or was, started: a handler has asked for a pause, a batch waits for more messages, or the
    /// application was quiet. In ms of the application's clock.
    pub(crate) rests_until_ms: AtomicU64,
    /// The log's end as far as the source knows it, or -1.
    pub(crate) end: AtomicI64,
    /// The time since which its thread polls the partition's task, in ms of the application's clock; 0 if it does not.
    polled_since_ms: AtomicU64,
    /// Messages that are being handled inline, before the window knows of them.
    inline: AtomicU32,
    pub(crate) cx: Arc<PartitionCx>,
}

/// The progress of a partition.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// None until the first offset is known.
    pub(crate) window: Option<Window>,
    /// First offset and epoch of each run of batches of one leader epoch, ascending; those behind the frontier and one before.
    epochs: Vec<(i64, i32)>,
    /// The leader epoch of what was finished before this process read it; none where it is not known.
    restored_epoch: Option<i32>,
    /// The id of the topic whose offsets these are; none until a batch of it has come.
    topic_id: Option<Uuid>,
    /// The time when the frontier moved last, or when something came behind it, in ms of the application's clock.
    pub(crate) moved_ms: u64,
    /// The frontier at that time.
    frontier: Option<i64>,
}

impl Shared {
    /// A partition that begins behind what was committed, if something was.
    pub(crate) fn new(
        app: &AppState,
        partition: TopicPartition,
        committed: Option<&CommittedOffset>,
    ) -> Shared {
        let cx = PartitionCx {
            app: app.name.clone(),
            partition: partition.clone(),
            is_revoked: AtomicBool::new(false),
        };
        let finished = committed.map(|committed| finished_behind(&partition, committed));
        let restored_epoch = finished.as_ref().and_then(|finished| finished.leader_epoch);
        let window = committed
            .zip(finished)
            .map(|(committed, finished)| Window::new(committed.offset, finished.ranges, Limits::default()));
        let progress = Progress {
            window,
            restored_epoch,
            epochs: committed.and_then(|one| Some((one.offset - 1, one.leader_epoch?))).into_iter().collect(),
            topic_id: None,
            moved_ms: app.now_ms(),
            frontier: committed.map(|committed| committed.offset),
        };
        Shared {
            partition,
            progress: Mutex::new(progress),
            queued: AtomicUsize::new(0),
            is_held: AtomicBool::new(false),
            rests_until_ms: AtomicU64::new(0),
            end: AtomicI64::new(-1),
            polled_since_ms: AtomicU64::new(0),
            inline: AtomicU32::new(0),
            cx: Arc::new(cx),
        }
    }

    /// Returns the time when a handler began that blocks its thread for too long, if one does.
    pub(crate) fn blocked_since_ms(&self, now_ms: u64) -> Option<u64> {
        let since_ms = self.polled_since_ms.load(Ordering::Relaxed);
        (since_ms > 0 && now_ms.saturating_sub(since_ms) > BLOCKING_MS).then_some(since_ms)
    }

    /// Returns the number of messages that are being handled inline, without a place in the window.
    pub(crate) fn inline(&self) -> usize {
        self.inline.load(Ordering::Relaxed) as usize
    }

    /// Returns the offset at which the partition resumes after a crash; none until that is known.
    pub(crate) fn position(&self) -> Option<CommittedOffset> {
        let mut progress = self.progress.lock();
        let window = progress.window.as_ref()?;
        let offset = window.frontier();
        let metadata = metadata::encode(offset, progress.finished_epoch(window), window.finished());
        let before = progress.epochs.partition_point(|(first, _)| *first < offset);
        progress.epochs.drain(..before.saturating_sub(1));
        let leader_epoch =
            progress.epochs.first().filter(|(first, _)| *first < offset).map(|(_, epoch)| *epoch);
        Some(CommittedOffset { offset, leader_epoch, metadata, topic_id: progress.topic_id })
    }
}

/// Returns the finished messages behind a committed offset. Metadata that cannot be used are logged and ignored.
fn finished_behind(partition: &TopicPartition, committed: &CommittedOffset) -> Finished {
    metadata::decode(committed.offset, &committed.metadata).unwrap_or_else(|ignored| {
        tracing::warn!(
            "{partition}: the metadata of the committed offset {} is ignored, {ignored}; messages behind the offset that \
             were finished run again",
            committed.offset
        );
        Finished::default()
    })
}

impl Progress {
    /// Notes the time if the frontier has moved, after a message was finished.
    pub(crate) fn note_frontier(&mut self, now_ms: u64) {
        let frontier = self.window.as_ref().map(Window::frontier);
        if frontier != self.frontier {
            (self.frontier, self.moved_ms) = (frontier, now_ms);
        }
    }

    /// Notes the topic id of a batch, unless its offset is before what has arrived. In that case the log starts again with it, and the
    /// window is still that of the topic before.
    fn note_topic(&mut self, offset: i64, batch: &FetchedBatch) {
        if self.window.as_ref().is_none_or(|window| window.arrived() <= offset) {
            self.topic_id = batch.topic_id();
        }
    }

    /// The leader epoch of the last record that is finished behind the frontier; none where it is not known.
    fn finished_epoch(&self, window: &Window) -> Option<i32> {
        if window.has_restored() {
            // Nothing that has arrived is of a later epoch, or the restored ranges would be void.
            return self.restored_epoch;
        }
        let last = window.finished().last()?.end - 1;
        let runs = self.epochs.partition_point(|(first, _)| *first <= last);
        self.epochs.get(runs.checked_sub(1)?).map(|(_, epoch)| *epoch)
    }

    /// Notes the leader epoch of a batch and its offset. If it is later than the epoch of what was finished behind the committed offset,
    /// the log was cut before that: epochs only grow with offsets. None of those records exists any more.
    fn note_epoch(&mut self, partition: &TopicPartition, offset: i64, epoch: i32) {
        if self.restored_epoch.is_some_and(|restored| epoch > restored) {
            self.restored_epoch = None;
            if let Some(window) = self.window.as_mut().filter(|window| window.has_restored()) {
                tracing::warn!(
                    "{partition}: what was finished from offset {offset} on are other messages now, of leader epoch {epoch}: the log was \
                     cut there, and all from there on is handled"
                );
                window.void_restored();
            }
        }
        if epoch >= 0 && self.epochs.last().is_none_or(|(_, last)| *last != epoch) {
            self.epochs.push((offset, epoch));
        }
    }
}

/// The way in which messages are started.
pub(crate) struct Dispatch<S> {
    start: S,
    /// The most messages that are started together, and the ms that the first one waits for others.
    together: Option<(usize, u64)>,
}

impl<S, F> Dispatch<S>
where
    S: Fn(Received, Others, Cx, u16) -> F,
    F: Future<Output = Ended>,
{
    /// Starts each message alone.
    pub(crate) fn alone(start: S) -> Dispatch<S> {
        Dispatch { start, together: None }
    }

    /// Starts many messages together, in one slice.
    pub(crate) fn together(max: usize, linger: Duration, start: S) -> Dispatch<S> {
        Dispatch { start, together: Some((max, u64::try_from(linger.as_millis()).unwrap_or(u64::MAX))) }
    }
}

/// The task of a partition.
struct Runner<S, F> {
    partition: Partition,
    dispatch: Dispatch<S>,
    running: Attempts<F>,
    writing: FuturesUnordered<BoxFuture<'static, Written>>,
    writes: Arc<Writes>,
    messages: Messages,
    backlog: Backlog,
    ended: Vec<Ended>,
    /// Those of `ended` that have failed or ask for something.
    remarkable: Vec<Ended>,
    starting: Vec<u16>,
    group_size: GroupSize,
    /// The context of messages that are done at once.
    spare: Option<Cx>,
    /// No message is started before this time.
    paused_until_ms: u64,
    /// The time when the application last became quiet, or stopped being so.
    looked_ms: u64,
    /// The offset to move to when nothing runs any more.
    seek: Option<i64>,
    /// The time at which handlers that still run are dropped; set by a revocation.
    drop_at: Option<Instant>,
    /// True if writes that are under way at that time are awaited.
    awaits_writes: bool,
    /// The last time until which a batch has waited, or waits, for more messages.
    lingered_until_ms: u64,
    timer: Pin<Box<Sleep>>,
}

/// Runs a partition until it is revoked.
pub(crate) async fn run<S, F>(partition: Partition, dispatch: Dispatch<S>)
where
    S: Fn(Received, Others, Cx, u16) -> F + Send,
    F: Future<Output = Ended> + Send,
{
    let concurrency = if dispatch.together.is_some() { 1 } else { partition.route.settings.concurrency };
    let settings = &partition.route.settings;
    let is_plain = dispatch.together.is_none() && settings.filters.is_empty();
    let mut runner = Runner {
        group_size: GroupSize::new(is_plain && partition.route.throttle.is_none()),
        spare: None,
        backlog: Backlog::default(),
        running: Attempts::new(concurrency),
        writing: FuturesUnordered::new(),
        writes: Arc::default(),
        messages: Messages::default(),
        ended: Vec::with_capacity(STEPS_MAX),
        remarkable: Vec::new(),
        starting: Vec::with_capacity(MESSAGES_MAX),
        paused_until_ms: 0,
        looked_ms: 0,
        seek: None,
        drop_at: None,
        awaits_writes: false,
        lingered_until_ms: 0,
        timer: Box::pin(tokio::time::sleep(FAR)),
        partition,
        dispatch,
    };
    std::future::poll_fn(|cx| runner.poll(cx)).await;
}

impl<S, F> Runner<S, F>
where
    S: Fn(Received, Others, Cx, u16) -> F,
    F: Future<Output = Ended>,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let began_ms = self.partition.app.now_ms();
        // 0 would mean that nothing is being polled.
        self.partition.shared.polled_since_ms.store(began_ms.max(1), Ordering::Relaxed);
        let polled = self.poll_a_turn(cx, began_ms);
        self.partition.shared.polled_since_ms.store(0, Ordering::Relaxed);
        polled
    }

    fn poll_a_turn(&mut self, cx: &mut Context<'_>, began_ms: u64) -> Poll<()> {
        let mut now_ms = began_ms;
        for _ in 0..ROUNDS_MAX {
            let mut is_busy = self.take_inputs(cx);
            is_busy |= self.take_ended(cx, now_ms);
            is_busy |= self.take_written(cx, now_ms);
            is_busy |= self.go_elsewhere();
            is_busy |= self.start(now_ms);
            is_busy |= self.take_in(&mut now_ms);
            is_busy |= self.start(now_ms);
            if self.is_done() {
                return Poll::Ready(());
            }
            if !is_busy && self.wait(cx, now_ms).is_pending() {
                return Poll::Pending;
            }
            now_ms = self.partition.app.now_ms();
            if now_ms > began_ms + TURN_MS {
                break;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn take_inputs(&mut self, cx: &mut Context<'_>) -> bool {
        let mut is_busy = false;
        // A revocation takes effect at once, even with batches in the backlog.
        while let Poll::Ready(input) = self.partition.inputs.poll_recv(cx) {
            is_busy = true;
            match input {
                Some(Input::Batch(seeks, batch)) => {
                    self.backlog.push(&self.partition.shared, seeks, batch);
                }
                Some(Input::Revoke(grace)) => self.revoke(grace, true),
                Some(Input::Stop(grace)) => self.revoke(grace, false),
                Some(Input::Look) => self.looked_ms = self.partition.app.now_ms(),
                // The driver is gone.
                None => {
                    self.revoke(Duration::ZERO, false);
                    break;
                }
            }
        }
        is_busy
    }

    fn revoke(&mut self, grace: Duration, awaits_writes: bool) {
        let drop_at = Instant::now() + grace;
        self.drop_at = Some(self.drop_at.map_or(drop_at, |before| before.min(drop_at)));
        self.awaits_writes = awaits_writes;
        self.partition.shared.cx.is_revoked.store(true, Ordering::Relaxed);
        if let Some(window) = &mut self.partition.shared.progress.lock().window {
            window.revoke();
        }
    }

    /// Returns true if the partition was revoked and nothing of it runs.
    fn is_done(&mut self) -> bool {
        let Some(drop_at) = self.drop_at else { return false };
        if self.running.is_empty() && self.writing.is_empty() {
            return true;
        }
        if Instant::now() < drop_at {
            return false;
        }
        self.drop_what_runs();
        !(self.awaits_writes && self.writes.are_under_way())
    }

    /// Drops the handlers, whose time is over, and gives nothing more to the sink.
    fn drop_what_runs(&mut self) {
        if self.writes.end() {
            tracing::warn!(
                "{}: {} handlers and {} writes are dropped, as the partition is revoked and their time is over",
                self.partition.shared.partition,
                self.running.len(),
                self.writing.len()
            );
            self.running = Attempts::new(self.running.len().max(1));
        }
    }

    fn take_ended(&mut self, cx: &mut Context<'_>, now_ms: u64) -> bool {
        while self.ended.len() < STEPS_MAX
            && let Poll::Ready(ended) = self.running.poll_ended(cx)
        {
            self.ended.push(ended);
        }
        self.handle_ended(now_ms)
    }

    /// Does what those that have ended ask for, which were polled from `now_ms` on.
    fn handle_ended(&mut self, now_ms: u64) -> bool {
        let polled_ms = self.warn_of_blocking(now_ms);
        if self.ended.is_empty() {
            return false;
        }
        self.note_times(polled_ms);
        self.finish_plain(now_ms);
        let mut remarkable = std::mem::take(&mut self.remarkable);
        for one in remarkable.drain(..) {
            let (slot, asked) = (one.slot, one.cx.close());
            let is_own = one.cx.address() == self.messages.get(slot).cx_address;
            match one.outcome {
                Ok(()) if is_own => self.succeeded(slot, asked, now_ms),
                Ok(()) => self.failed(slot, exchanged(), now_ms),
                Err(failure) => self.failed(slot, *failure, now_ms),
            }
        }
        self.remarkable = remarkable;
        true
    }

    /// Counts how long attempts have taken.
    fn note_times(&self, now_ms: u64) {
        let took = |one: &Ended| now_ms.saturating_sub(self.messages.get(one.slot).started_ms);
        self.partition.route.metrics.attempts.add(self.ended.iter().map(took));
    }

    /// A handler that computes, or waits, without an await holds up all that its thread has to do. Returns the time now.
    fn warn_of_blocking(&self, since_ms: u64) -> u64 {
        let now_ms = self.partition.app.now_ms();
        let blocked_ms = now_ms.saturating_sub(since_ms);
        if blocked_ms > BLOCKING_MS {
            tracing::warn!(
                "a handler of {} has blocked its thread for {blocked_ms} ms in partition {}; let it await, or give such work to \
                 tokio::task::spawn_blocking",
                self.partition.route.name,
                self.partition.shared.partition
            );
        }
        now_ms
    }

    /// Finishes those that have succeeded and ask for nothing more, under one lock; the others go to `remarkable`.
    fn finish_plain(&mut self, now_ms: u64) {
        let (shared, route) = (&self.partition.shared, &self.partition.route);
        let mut progress = shared.progress.lock();
        let Some(window) = &mut progress.window else { return self.ended.clear() };
        let mut done = 0;
        for one in self.ended.drain(..) {
            let slot = self.messages.get_mut(one.slot);
            if slot.others.is_empty() && one.is_plain(slot.cx_address) {
                slot.cx = Some(one.cx);
                self.messages.finish(one.slot);
                window.finish(one.slot, now_ms);
                done += 1;
            } else {
                self.remarkable.push(one);
            }
        }
        if done > 0 {
            progress.note_frontier(now_ms);
            drop(progress);
            route.judge.lock().succeeded_times(done);
            route.metrics.handled.add(done);
        }
    }

    /// Handles the success of an attempt that is a batch, or asks for something.
    fn succeeded(&mut self, slot: u16, asked: Asked, now_ms: u64) {
        self.partition.route.judge.lock().succeeded();
        if let Some(pause) = asked.pause {
            let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
            self.paused_until_ms = now_ms.saturating_add(pause_ms);
        }
        self.seek = asked.seek.or(self.seek);
        let outputs = self.traced(slot, asked.records);
        if outputs.records.is_empty() {
            return self.finish(slot, now_ms);
        }
        self.await_write(slot);
        let (sink, writes) = (self.partition.sink.clone(), self.writes.clone());
        self.writing.push(write_outputs(sink, writes, slot, outputs));
    }

    /// Notes that the handler of a message has ended, and its records are being written.
    fn await_write(&self, slot: u16) {
        if let Some(window) = &mut self.partition.shared.progress.lock().window {
            window.await_write(slot);
        }
    }

    /// Adds the trace of a message to the records that it sends, unless the handler has set another.
    fn traced(&self, slot: u16, mut records: Vec<Record>) -> Outputs {
        let mut traced = Vec::new();
        // A batch is of many traces.
        let is_one = !records.is_empty() && self.messages.get(slot).others.is_empty();
        let received = self.messages.received(slot).filter(|_| is_one);
        if let Some(parent) = received.as_ref().and_then(|received| received.header(TRACE_PARENT)) {
            for (index, record) in records.iter_mut().enumerate() {
                if record.headers.iter().all(|(name, _)| name != TRACE_PARENT) {
                    record.headers.push((TRACE_PARENT.to_owned(), Some(Bytes::copy_from_slice(parent))));
                    traced.push(index);
                }
            }
        }
        Outputs { records, traced }
    }

    /// A message, or a batch, is finished.
    fn finish(&mut self, slot: u16, now_ms: u64) {
        let mut done = std::mem::take(&mut self.messages.get_mut(slot).others);
        done.push(slot);
        self.partition.route.metrics.handled.add(done.len() as u64);
        self.finish_slots(&done, now_ms);
    }

    fn finish_slots(&mut self, done: &[u16], now_ms: u64) {
        let mut progress = self.partition.shared.progress.lock();
        let Some(window) = &mut progress.window else { return };
        for slot in done {
            self.messages.finish(*slot);
            window.finish(*slot, now_ms);
        }
        progress.note_frontier(now_ms);
    }

    fn failed(&mut self, slot: u16, failure: Failure, now_ms: u64) {
        self.partition.route.metrics.failed.add(1);
        if !self.messages.get(slot).others.is_empty() {
            return self.batch_failed(slot, &failure, now_ms);
        }
        let offset = self.offset(slot);
        let one = self.messages.get_mut(slot);
        if one.tries.failures == 0 {
            one.first_failed_wall_ms = self.partition.app.wall_ms();
        }
        let seed = offset.unsigned_abs();
        let verdict =
            self.partition.route.judge.lock().failed(&mut one.tries, one.mark, failure.class, seed, now_ms);
        tracing::debug!(partition = %self.partition.shared.partition, offset, ?verdict, "{}", in_line(&failure.cause));
        match verdict {
            Verdict::Retry { at_ms } => self.retry(&[slot], at_ms, now_ms),
            Verdict::Letter => self.set_aside(slot, &failure),
            Verdict::Stop => self.stop(slot, &failure),
        }
    }

    /// Runs the messages of a failed batch again that were not marked, each alone.
    fn batch_failed(&mut self, slot: u16, failure: &Failure, now_ms: u64) {
        if failure.class == FaultClass::Stop {
            return self.stop(slot, failure);
        }
        let others = std::mem::take(&mut self.messages.get_mut(slot).others);
        let all = std::iter::once(slot).chain(others);
        let is_done = |index: usize| failure.marks.get(index).copied().unwrap_or(false);
        let (done, again): (Vec<_>, Vec<_>) = all.enumerate().partition(|(index, _)| is_done(*index));
        let slots = |these: Vec<(usize, u16)>| these.into_iter().map(|(_, slot)| slot).collect::<Vec<_>>();
        tracing::debug!(
            partition = %self.partition.shared.partition,
            "a batch failed, and its {} messages run again one by one: {}",
            again.len(),
            in_line(&failure.cause)
        );
        self.finish_slots(&slots(done), now_ms);
        self.retry(&slots(again), now_ms, now_ms);
    }

    fn retry(&mut self, again: &[u16], at_ms: u64, now_ms: u64) {
        self.partition.route.metrics.retries.add(again.len() as u64);
        if let Some(first) = again.first() {
            self.copy_waiting(*first);
        }
        let mut progress = self.partition.shared.progress.lock();
        let Some(window) = &mut progress.window else { return };
        again.iter().for_each(|slot| window.retry(*slot, at_ms, now_ms));
    }

    /// Copies a message that has to wait, and those of its slice behind it.
    fn copy_waiting(&mut self, slot: u16) {
        self.messages.copy(slot);
        if let Some(window) = &self.partition.shared.progress.lock().window {
            window.behind(slot).for_each(|other| self.messages.copy(other));
        }
    }

    fn set_aside(&mut self, slot: u16, failure: &Failure) {
        let Some(received) = self.messages.received(slot) else { return };
        let one = self.messages.get(slot);
        self.partition.route.metrics.letters.add(1);
        let first_failed_ms = one.first_failed_wall_ms;
        // The judge does not count a failure that no other attempt would change.
        let deliveries = one.tries.failures + u32::from(failure.class == FaultClass::Poison);
        let letter = writing::letter_of(&self.partition, &received, failure, deliveries, first_failed_ms);
        self.copy_waiting(slot);
        self.await_write(slot);
        let (sink, writes) = (self.partition.sink.clone(), self.writes.clone());
        let route = self.partition.route.clone();
        self.writing.push(write_letter(sink, writes, route, slot, letter));
    }

    fn stop(&mut self, slot: u16, failure: &Failure) {
        let (partition, offset) = (self.partition.shared.partition.clone(), self.offset(slot));
        let error = Error::Stopped { partition, offset, cause: failure.cause.clone() };
        // A driver that is gone has nothing to end.
        let _ = self.partition.commands.send(Command::Fail(error));
        self.revoke(Duration::ZERO, false);
    }

    fn offset(&self, slot: u16) -> i64 {
        self.messages.received(slot).map_or(-1, |received| received.offset())
    }

    fn take_written(&mut self, cx: &mut Context<'_>, now_ms: u64) -> bool {
        let mut is_busy = false;
        while let Poll::Ready(Some(written)) = Pin::new(&mut self.writing).poll_next(cx) {
            is_busy = true;
            match written {
                Written::Outputs(slot, Ok(())) => self.finish(slot, now_ms),
                Written::Outputs(slot, Err(fault)) => {
                    self.failed(slot, Failure::new(Stage::Send, &fault), now_ms);
                }
                Written::Letter(slot, Ok(())) => self.finish_slots(&[slot], now_ms),
                Written::Letter(slot, Err(fault)) => self.stop(slot, &Failure::new(Stage::Send, &fault)),
            }
        }
        is_busy
    }

    /// Starts the window over at another offset, after a seek or where the log starts again, once nothing runs any more.
    fn go_elsewhere(&mut self) -> bool {
        let Some(offset) = self.seek.filter(|_| self.running.is_empty() && self.writing.is_empty()) else {
            return false;
        };
        self.seek = None;
        let shared = &self.partition.shared;
        self.backlog.clear(shared, &mut self.messages);
        let mut progress = shared.progress.lock();
        progress.window = Some(Window::new(offset, [], Limits::default()));
        progress.epochs.clear();
        (progress.restored_epoch, progress.topic_id) = (None, None);
        drop(progress);
        self.messages.clear();
        let seeks = self.backlog.next_seek();
        let _ = self.partition.commands.send(Command::Seek(shared.partition.clone(), offset, seeks));
        true
    }

    /// Takes messages out of the backlog: those that may run right now do so where they are, others get a place in the window.
    fn take_in(&mut self, now_ms: &mut u64) -> bool {
        let (began_ms, mut taken, mut is_busy) = (*now_ms, 0, false);
        while taken < STEPS_MAX && *now_ms <= began_ms + TURN_MS {
            let mut count = self.run_inline(now_ms);
            is_busy |= count > 0;
            if count == 0 {
                let max = if self.group_size.is_some() { 1 } else { STEPS_MAX - taken };
                let admitted = self.admit(*now_ms, max);
                is_busy |= admitted.is_busy;
                count = admitted.count;
            }
            if count == 0 {
                break;
            }
            taken += count;
        }
        is_busy
    }

    fn admit(&mut self, now_ms: u64, max: usize) -> backlog::Done {
        if self.drop_at.is_some() || self.seek.is_some() {
            return backlog::Done::default();
        }
        let slice = self.dispatch.together.map(|_| 0);
        let admitted = self.backlog.admit(&self.partition, &mut self.messages, slice, now_ms, max);
        if let Some(begins) = admitted.begins_again_at {
            tracing::warn!(
                "{}: the log continues at offset {begins}, before what was read; the topic may have been deleted and created, or its \
                 log was cut. All from there on is handled",
                self.partition.shared.partition
            );
            self.seek = Some(begins);
        }
        admitted
    }

    /// Starts attempts that may run. Attempts that are done inline leave their capacity to others of the same round.
    fn start(&mut self, now_ms: u64) -> bool {
        let mut started = 0;
        while started < STEPS_MAX && self.may_start(now_ms) && self.take_ready(now_ms, STEPS_MAX - started) {
            started += self.starting.len();
            self.start_attempts(now_ms);
            self.handle_ended(now_ms);
        }
        started > 0
    }

    fn may_start(&mut self, now_ms: u64) -> bool {
        let is_quiet = self.partition.app.is_quiet.load(Ordering::Relaxed);
        let is_over = self.seek.is_some() || self.drop_at.is_some();
        !(is_quiet || is_over || now_ms < self.paused_until_ms || self.lingers(now_ms))
    }

    /// Takes those that may run out of the window, as many as `running` has capacity for. Returns false if there are none.
    fn take_ready(&mut self, now_ms: u64, max: usize) -> bool {
        self.starting.clear();
        let capacity = self.running.free_capacity();
        let mut progress = self.partition.shared.progress.lock();
        let Some(window) = &mut progress.window else { return false };
        window.tick(now_ms);
        match self.dispatch.together {
            None => self.starting.extend(std::iter::from_fn(|| window.start()).take(capacity.min(max))),
            Some((max, _)) if capacity > 0 => drop(window.start_batch(max, &mut self.starting)),
            Some(_) => {}
        }
        !self.starting.is_empty()
    }

    fn start_attempts(&mut self, now_ms: u64) {
        let mark = self.partition.route.judge.lock().started();
        let (starting, before) = (std::mem::take(&mut self.starting), self.ended.len());
        match self.dispatch.together {
            None => starting.iter().for_each(|slot| self.start_attempt(*slot, &[], mark, now_ms)),
            Some(_) => self.start_attempt(starting[0], &starting[1..], mark, now_ms),
        }
        if self.ended.len() - before == starting.len() {
            self.group_size.may_grow();
        }
        self.starting = starting;
    }

    fn start_attempt(&mut self, slot: u16, others: &[u16], mark: Mark, now_ms: u64) {
        let Some(first) = self.messages.received(slot) else { return };
        let mut rest = None;
        if !others.is_empty() {
            rest = Some(others.iter().filter_map(|other| self.messages.received(*other)).collect());
            self.messages.get_mut(slot).others.extend_from_slice(others);
        }
        let one = self.messages.get_mut(slot);
        (one.mark, one.started_ms) = (mark, now_ms);
        let cx = one.cx.take().unwrap_or_else(|| Cx::new(self.partition.shared.cx.clone()));
        one.cx_address = cx.address();
        if let Some(refusal) = one.refusal.take() {
            return self.ended.push(Ended { slot, outcome: Err(refusal), cx });
        }
        self.ended.extend(self.running.begin(|| (self.dispatch.start)(first, rest, cx, slot)));
    }

    /// Returns true if a batch waits for more messages.
    fn lingers(&mut self, now_ms: u64) -> bool {
        let until_ms = self.lingers_until_ms();
        self.lingered_until_ms = until_ms.unwrap_or(self.lingered_until_ms);
        until_ms.is_some_and(|until_ms| now_ms < until_ms)
    }

    /// The time up to which the next batch waits for more messages, since the first of them came; none if there is no next batch, or it
    /// cannot become larger.
    fn lingers_until_ms(&self) -> Option<u64> {
        let (max, linger_ms) = self.dispatch.together?;
        let progress = self.partition.shared.progress.lock();
        let next = progress.window.as_ref()?.next_batch(max)?;
        let since_ms = self.messages.get(next.first).admitted_ms;
        next.may_grow.then(|| since_ms.saturating_add(linger_ms))
    }

    /// Sets the timer; ready if its time has come already.
    fn wait(&mut self, cx: &mut Context<'_>, now_ms: u64) -> Poll<()> {
        // While the application is quiet no due time counts; an input tells this task when that ends.
        let is_quiet = self.partition.app.is_quiet.load(Ordering::Relaxed);
        let due_ms = self.partition.shared.progress.lock().window.as_ref().and_then(Window::next_due_ms);
        let due_ms = due_ms.filter(|_| !is_quiet);
        let lingers_ms = self.lingers_until_ms().filter(|at| *at > now_ms);
        let paused_ms = Some(self.paused_until_ms).filter(|until| *until > now_ms);
        let nearest = [due_ms, lingers_ms, self.backlog.waits_until_ms(), paused_ms];
        let nearest = nearest.into_iter().flatten().min();
        let in_ms = nearest.map_or(FAR, |at| Duration::from_millis(at.saturating_sub(now_ms)).min(FAR));
        let rests_until_ms = self.paused_until_ms.max(self.lingered_until_ms).max(self.looked_ms);
        self.partition.shared.rests_until_ms.store(rests_until_ms, Ordering::Relaxed);
        // A write that is still under way wakes this task by itself.
        let drop_at = self.drop_at.filter(|_| !self.writes.have_ended());
        let at = drop_at.map_or(Instant::now() + in_ms, |drop_at| drop_at.min(Instant::now() + in_ms));
        self.timer.as_mut().reset(at);
        self.timer.as_mut().poll(cx)
    }
}

/// The failure of a handler that has put another attempt's context in place of its own: its requests are unknown.
fn exchanged() -> Failure {
    let fault = Fault::failed("the handler has exchanged its context for that of another attempt");
    Failure::new(Stage::Handle, &fault)
}
