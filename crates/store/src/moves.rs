//! Partitions on their way from one log directory to another (AlterReplicaLogDirs, KIP-113).
//!
//! One thread moves them, one at a time, in the order of the requests. A copy grows in the other directory while the partition is
//! served. When little is left to copy, it replaces the original. Appends do not wait for the syncs of that; waits for durability do.
//! The copy's directory exists from the request on, so that a restart finds the move and starts it again.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use mainstem_controller::DirectoryAssignment;
use mainstem_log::dir::LogDir;
use mainstem_log::partition_dir::TopicPartition;
use mainstem_log::{CopyError, FutureLog, Log, ReadError, TakeOverError};
use mainstem_runtime::sync::{Condvar, Thread};
use mainstem_wire::{ErrorCode, Uuid};
use parking_lot::Mutex;

use crate::partition::{Partition, SHORTAGE_PAUSE, TakeOver};
use crate::placing::InterruptedMoves;
use crate::store::Store;
use mainstem_runtime::clock::{Clock, machine_now};
use mainstem_runtime::supervised::{self, Role};

/// Copied bytes after which they are put on disk, so that the page cache does not fill with what is not read.
const SYNC_BYTES: u64 = 64 << 20;

/// Bytes that may be left to be copied while the copy takes over.
const REST_BYTES_MAX: u64 = 1 << 20;

/// Rounds in which the rest may not become small before the copy takes over all the same: the partition is written to
/// faster than it can be copied.
const ROUNDS_MAX: usize = 20;

/// All moves.
#[derive(Default)]
pub struct Moves {
    state: Mutex<State>,
    changed: Condvar,
    thread: Mutex<Option<Thread>>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Arc<Move>>,
    current: Option<Arc<Move>>,
    stopped: bool,
}

/// One partition on its way.
pub struct Move {
    topic_id: Uuid,
    partition: Arc<Partition>,
    to: Arc<LogDir>,
    path: PathBuf,
    size: AtomicU64,
    log_end: AtomicI64,
    cancelled: AtomicBool,
}

/// A copy as DescribeLogDirs shows it.
pub struct Progress {
    /// The partition that is moved.
    pub partition: Arc<Partition>,
    /// The log directory in which it grows.
    pub to: Arc<LogDir>,
    /// Bytes copied.
    pub size: u64,
    /// Offsets that the original has and the copy has not.
    pub lag: i64,
}

/// Why a partition was not moved.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("another directory was asked for")]
    Cancelled,
    #[error("the broker stops; the next start copies from the beginning")]
    Stopped,
    #[error("the partition is gone or offline")]
    NoLog,
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error(transparent)]
    TakeOver(#[from] TakeOver),
}

impl Moves {
    /// Requests the move of a partition. Does nothing if it is in that directory, or on its way there. Cancels a move to another
    /// directory.
    ///
    /// # Errors
    /// `KAFKA_STORAGE_ERROR` when the copy cannot be created.
    pub fn request(
        &self,
        store: &Arc<Store>,
        topic_id: Uuid,
        partition: &Arc<Partition>,
        to: &Arc<LogDir>,
    ) -> Result<(), ErrorCode> {
        let mut state = self.state.lock();
        if state.stopped {
            return Err(ErrorCode::KAFKA_STORAGE_ERROR);
        }
        if let Some(known) = state.find(partition) {
            if Arc::ptr_eq(&known.to, to) {
                return Ok(());
            }
            state.cancel(&known);
        }
        if partition.is_in(to) {
            return Ok(());
        }
        let name = partition_name(partition);
        let path = to.create_future(&name, &topic_id.0).map_err(|error| {
            tracing::error!(partition = %name, "no copy can be made in {}: {error}", to.path().display());
            to.note_error(&error);
            ErrorCode::KAFKA_STORAGE_ERROR
        })?;
        state.waiting.push_back(Arc::new(Move {
            topic_id,
            partition: partition.clone(),
            to: to.clone(),
            path,
            size: AtomicU64::new(0),
            log_end: AtomicI64::new(partition.ends().map_or(0, |ends| ends.log_start)),
            cancelled: AtomicBool::new(false),
        }));
        drop(state);
        self.changed.notify_all();
        self.ensure_thread(store);
        Ok(())
    }

    fn ensure_thread(&self, store: &Arc<Store>) {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let own = store.clone();
            let role = Role::Tidies("partitions are not moved between log directories any more");
            let started = supervised::spawn(&store.panics, "moves", role, move || own.moves.run(&own));
            match started {
                Ok(started) => *thread = Some(started),
                Err(error) => {
                    tracing::error!("no thread can be made that moves partitions: {error}; ask again")
                }
            }
        }
    }

    /// Ends the thread. The next start begins unfinished moves again.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }

    /// Every copy that grows or waits for its turn.
    pub fn progress(&self) -> Vec<Progress> {
        let state = self.state.lock();
        let moves = state.current.iter().chain(&state.waiting);
        let progress = |one: &Arc<Move>| Progress {
            partition: one.partition.clone(),
            to: one.to.clone(),
            size: one.size.load(Ordering::Relaxed),
            lag: one.partition.ends().map_or(0, |ends| ends.log_end - one.log_end.load(Ordering::Relaxed)),
        };
        moves.filter(|one| !one.is_cancelled()).map(progress).collect()
    }

    fn run(&self, store: &Arc<Store>) {
        while let Some(one) = self.next() {
            one.carry_out(self, store);
            self.state.lock().current = None;
        }
    }

    fn next(&self) -> Option<Arc<Move>> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(one) = state.waiting.pop_front() {
                state.current = Some(one.clone());
                return Some(one);
            }
            self.changed.wait(&mut state);
        }
    }

    /// Waits for this time, or until the broker stops.
    fn pause(&self, clock: &Clock, time: Duration) {
        let mut state = self.state.lock();
        let until = clock.instant() + time;
        while !state.stopped && !clock.wait_until(&self.changed, &mut state, until) {}
    }

    fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }
}

impl State {
    fn find(&self, partition: &Arc<Partition>) -> Option<Arc<Move>> {
        let mut all = self.current.iter().chain(&self.waiting);
        all.find(|one| Arc::ptr_eq(&one.partition, partition) && !one.is_cancelled()).cloned()
    }

    /// The thread removes the copy that it works at; one that waits is removed here.
    fn cancel(&mut self, known: &Arc<Move>) {
        known.cancelled.store(true, Ordering::Release);
        let before = self.waiting.len();
        self.waiting.retain(|one| !Arc::ptr_eq(one, known));
        if self.waiting.len() < before {
            known.remove_copy();
        }
    }
}

impl Move {
    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    fn carry_out(&self, moves: &Moves, store: &Arc<Store>) {
        let begin = machine_now();
        let (name, to) = (partition_name(&self.partition), self.to.path().display());
        match self.copy_and_take_over(moves, store) {
            Ok(old) => {
                let took = machine_now().duration_since(begin);
                let bytes = self.size.load(Ordering::Relaxed);
                tracing::info!(partition = %name, bytes, ?took, "moved from {} to {to}", old.dir().path().display());
                self.settle(store, &name, old);
            }
            Err(Failed::Stopped) => {}
            Err(
                error @ Failed::TakeOver(TakeOver::Refused(TakeOverError::Broken(_)) | TakeOver::Unfinished),
            ) => {
                tracing::error!(partition = %name, "offline, on its way to {to}: {error}");
            }
            Err(error) => {
                self.note_unreadable(&error);
                match error {
                    Failed::Cancelled => tracing::info!(partition = %name, "not moved to {to}: {error}"),
                    _ => {
                        tracing::error!(partition = %name, "not moved to {to}: {error}; it stays where it was")
                    }
                }
                self.remove_copy();
            }
        }
    }

    /// A disk that cannot be read takes the directory offline that the partition is in.
    fn note_unreadable(&self, error: &Failed) {
        if let Failed::Copy(CopyError::Read(ReadError::Storage(error)))
        | Failed::TakeOver(TakeOver::Refused(TakeOverError::Aborted(CopyError::Read(
            ReadError::Storage(error),
        )))) = error
        {
            // Where it has no log there is nothing to note.
            let _ = self.partition.with_log(|log| log.dir().note_error(error));
        }
    }

    fn copy_and_take_over(&self, moves: &Moves, store: &Arc<Store>) -> Result<Log, Failed> {
        let start = self.partition.with_log(|log| log.copy_start()).map_err(|_| Failed::NoLog)?;
        let copy = FutureLog::open(&self.to, self.path.clone(), start, store.clock.now().mono_ms);
        let mut copy = copy.map_err(CopyError::Log)?;
        for _ in 0..ROUNDS_MAX {
            let copied = self.catch_up(moves, store, &mut copy)?;
            copy.sync().map_err(CopyError::Log)?;
            if copied <= REST_BYTES_MAX {
                break;
            }
        }
        let pause = || {
            moves.pause(&store.clock, SHORTAGE_PAUSE);
            !moves.is_stopped()
        };
        Ok(self.partition.take_over(copy, &store.clock, &pause)?)
    }

    /// Copies until the copy has caught up with the original once. Returns the number of copied bytes.
    fn catch_up(&self, moves: &Moves, store: &Store, copy: &mut FutureLog) -> Result<u64, Failed> {
        let (mut copied, mut unsynced) = (0, 0);
        loop {
            if self.is_cancelled() {
                return Err(Failed::Cancelled);
            }
            if moves.is_stopped() {
                return Err(Failed::Stopped);
            }
            let plan = self.partition.with_log(|log| copy.next(log)).map_err(|_| Failed::NoLog)?;
            let Some(plan) = plan.map_err(CopyError::Read)? else { return Ok(copied) };
            let begin = store.clock.instant();
            let bytes = copy.copy(plan, store.clock.now().mono_ms)? as u64;
            (copied, unsynced) = (copied + bytes, unsynced + bytes);
            self.size.store(copy.size(), Ordering::Relaxed);
            self.log_end.store(copy.log_end(), Ordering::Relaxed);
            if unsynced >= SYNC_BYTES {
                copy.sync().map_err(CopyError::Log)?;
                unsynced = 0;
            }
            let time = time_for(bytes, store.config().logs.move_bytes_per_second);
            moves.pause(&store.clock, time.saturating_sub(store.clock.elapsed(begin)));
        }
    }

    /// Announces the new directory of the partition.
    fn settle(&self, store: &Arc<Store>, name: &TopicPartition, old: Log) {
        let from = old.dir().clone();
        drop(old);
        if let Err(error) = from.forget(std::slice::from_ref(name)) {
            tracing::warn!(partition = %name, "the checkpoints of {} still have it: {error}", from.path().display());
        }
        if let Err(error) = self.to.checkpoints().recovery_point.write() {
            tracing::warn!(dir = %self.to.path().display(), "a checkpoint could not be written: {error}");
        }
        let assignment = DirectoryAssignment {
            topic_id: self.topic_id,
            partition: self.partition.index,
            directory: Uuid(self.to.directory_id()),
        };
        store.notify(|events| events.directory_changed(assignment));
        if self.to.failure().is_some() {
            // It failed in between, when the partition was not in it yet.
            store.dir_alarm.ring();
        }
    }

    fn remove_copy(&self) {
        if let Err(error) = self.to.remove_future(&self.path) {
            tracing::warn!(path = %self.path.display(), "the copy could not be removed: {error}; the next start does");
        }
    }
}

/// Time for these bytes at this rate.
fn time_for(bytes: u64, bytes_per_second: u64) -> Duration {
    let micros = u128::from(bytes) * 1_000_000 / u128::from(bytes_per_second.max(1));
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

fn partition_name(partition: &Partition) -> TopicPartition {
    TopicPartition { topic: partition.topic.clone(), partition: partition.index }
}

/// Takes up the moves that the last stop cut short.
pub fn resume(store: &Arc<Store>, moves: InterruptedMoves) {
    for ((topic_id, index), to) in moves {
        let topic = store.topics.by_id(&topic_id);
        let partition = topic.as_ref().and_then(|topic| topic.partition(index));
        if let Some(partition) = partition.filter(|partition| !partition.is_offline())
            && let Err(error) = store.moves.request(store, topic_id, partition, &to)
        {
            let (name, to) = (partition_name(partition), to.path().display());
            tracing::error!(partition = %name, "its move to {to} is not taken up again: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_gives_the_time() {
        let check = |bytes, rate, millis| assert_eq!(time_for(bytes, rate), Duration::from_millis(millis));
        check(1 << 20, 1 << 20, 1000);
        check(500, 1000, 500);
        check(1 << 30, i64::MAX as u64, 0);
        check(0, 0, 0);
        check(3, 0, 3000);
    }
}
