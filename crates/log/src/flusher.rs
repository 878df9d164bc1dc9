//! Group commit: one flusher per log directory makes the bytes of many partitions durable together.
//!
//! A [`FlushTarget`] (a partition, mostly) is queued by [`Flusher::request`], at most once. The flusher's thread
//! takes everything that waits, asks each target what has to be synced ([`FlushWork`]) and syncs it; what is
//! requested meanwhile is the next round. How a round is synced depends on how much it is: see [`Method`].
//!
//! A failed sync is reported to every target that it affects and is never tried again. The kernel may have dropped the
//! pages that it could not write, so that a second call would wrongly report a success. A directory that cannot be opened
//! because no handle is left was not synced at all: its targets wait, and it is tried again.
//! [`docs/format.md`](../../../docs/format.md) has the measurements behind the thresholds.

#[cfg(any(test, feature = "sim"))]
mod by_hand;
mod method;
mod round;

#[cfg(any(test, feature = "sim"))]
pub use by_hand::SyncedRound;

pub use method::{DirtyProbe, FlushOptions, Method};

use crate::pool::{AbortOnPanic, Job, Pool, join};
use crate::storage::{Storage, StorageFile};
use parking_lot::{Condvar, Mutex};
pub(crate) use round::copy_result;
use round::{Round, SyncContext, Unfinished};
use std::fmt;
use std::io;
use std::mem;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The time before a directory is tried again for which there was no handle.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// The number of such retries after [`FlusherStop::Drain`].
const DRAIN_RETRIES: usize = 50;

/// The files and directories whose sync makes a target durable up to an offset.
///
/// A file must be open since before its unsynced bytes were written, and this must be the same handle. The kernel reports
/// a failed write-back once to each handle that was open when it happened, and to no handle that is opened later.
#[derive(Debug, Default)]
pub struct FlushWork {
    /// Files whose bytes are to become durable.
    pub files: Vec<Arc<dyn StorageFile>>,
    /// Directories whose names are to become durable (new segments; a new partition: its parent). The same
    /// directory named by many targets of a round is synced once.
    pub directories: Vec<Arc<Path>>,
    /// A file that the target has in common with others: synced once in a round, on behalf of all that name it.
    pub shared: Option<Arc<dyn StorageFile>>,
    /// The offset up to which the target is durable when all of this is synced; handed back unchanged.
    pub upto: i64,
}

/// Something that the flusher makes durable.
pub trait FlushTarget: Send + Sync {
    /// The target's place in the flusher's queue. One per target, and only for the flusher.
    fn ticket(&self) -> &FlushTicket;

    /// Called on the flusher's thread when the target's turn comes: what is to be synced now. Everything that was
    /// appended before the [`Flusher::request`] that led here must be in it. The target may lock itself.
    fn begin_flush(&self) -> FlushWork;

    /// Called on one of the flusher's threads when the work is done, once per [`Self::begin_flush`] and before the next one.
    /// So a target has at most one piece of work in progress. After an error nothing is known about the bytes since the last
    /// success, and the target has to stop.
    fn end_flush(&self, upto: i64, result: io::Result<()>);
}

/// The place of a target in the flusher's queue, so that it waits there once.
#[derive(Debug, Default)]
pub struct FlushTicket {
    queued: AtomicBool,
}

impl FlushTicket {
    /// Takes the place; `false` when the target has it already. Both sides swap, so that an append before a request
    /// that found the place taken is seen by the round that gives the place back.
    fn take(&self) -> bool {
        !self.queued.swap(true, Ordering::AcqRel)
    }

    fn give_back(&self) {
        self.queued.swap(false, Ordering::AcqRel);
    }
}

/// The work of a flusher since it started, for the metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlushStats {
    /// Rounds done.
    pub rounds: u64,
    /// Targets served; divided by the rounds this is the mean size of a group commit.
    pub targets: u64,
    /// Rounds done by `syncfs`.
    pub rounds_sync_fs: u64,
    /// Targets that were notified of an error.
    pub failures: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    rounds: AtomicU64,
    targets: AtomicU64,
    rounds_sync_fs: AtomicU64,
    failures: AtomicU64,
}

/// The treatment of waiting targets by [`Flusher::stop`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlusherStop {
    /// Waiting targets are synced.
    Drain,
    /// They are answered with [`io::ErrorKind::Interrupted`], at the latest after the round in progress.
    Abandon,
}

/// The parts of a flusher.
pub struct FlusherParts {
    /// The file system of the targets.
    pub storage: Arc<dyn Storage>,
    /// Any file of that file system, opened before the first write that is flushed here: `syncfs` reports errors
    /// since its handle was opened.
    pub anchor: Arc<dyn StorageFile>,
    /// Part of the names of the threads.
    pub name: String,
    /// Thresholds.
    pub options: FlushOptions,
    /// Called with the error of every failed sync, before the targets are notified.
    pub on_failure: OnFailure,
}

/// Called when a sync failed, or when a directory to be synced does not exist (any more).
pub type OnFailure = Arc<dyn Fn(&io::Error) + Send + Sync>;

/// The flusher of one log directory. It owns a thread, and up to [`FlushOptions::helpers`] more from the first
/// round that needs them.
pub struct Flusher {
    shared: Arc<Shared>,
    pool: Arc<Pool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    #[cfg(any(test, feature = "sim"))]
    by_hand: Option<by_hand::ByHand>,
}

struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Arc<dyn FlushTarget>>,
    sleeping: bool,
    stop: Option<FlusherStop>,
}

impl Flusher {
    /// Starts a flusher.
    pub fn start(parts: FlusherParts) -> io::Result<Flusher> {
        let FlusherParts { storage, anchor, name, options, on_failure } = parts;
        let counters = Arc::new(Counters::default());
        let shared =
            Arc::new(Shared { queue: Mutex::default(), wake: Condvar::new(), counters: counters.clone() });
        let pool = Arc::new(Pool::new(format!("sync-{name}"), options.helpers));
        let context = SyncContext {
            storage,
            anchor,
            options,
            on_failure,
            counters,
            pool: pool.clone(),
            unfinished: Arc::default(),
        };
        #[cfg(any(test, feature = "sim"))]
        if context.options.by_hand {
            let by_hand = Some(by_hand::ByHand::new(context));
            return Ok(Flusher { shared, pool, thread: Mutex::new(None), by_hand });
        }
        let worker = shared.clone();
        let thread =
            thread::Builder::new().name(format!("flush-{name}")).spawn(move || run(&worker, context))?;
        Ok(Flusher {
            shared,
            pool,
            thread: Mutex::new(Some(thread)),
            #[cfg(any(test, feature = "sim"))]
            by_hand: None,
        })
    }

    /// Asks that everything appended to the target until now becomes durable; [`FlushTarget::end_flush`] tells when.
    /// Cheap: one atomic swap when the target waits already. May be called while the target is locked.
    ///
    /// `false` after [`Flusher::stop`]: nothing will be synced and `end_flush` is not called.
    pub fn request(&self, target: &Arc<dyn FlushTarget>) -> bool {
        if !target.ticket().take() {
            return true;
        }
        let mut queue = self.shared.queue.lock();
        if queue.stop.is_some() {
            target.ticket().give_back();
            return false;
        }
        queue.waiting.push(target.clone());
        let sleeping = mem::take(&mut queue.sleeping);
        drop(queue);
        if sleeping {
            self.shared.wake.notify_one();
        }
        true
    }

    /// Runs a job that may block on one of the helper threads, in no particular order. Not run after
    /// [`Flusher::stop`]: the job comes back.
    pub(crate) fn run(&self, job: Job) -> Result<(), Job> {
        #[cfg(any(test, feature = "sim"))]
        if let Some(by_hand) = &self.by_hand {
            return by_hand.run(job);
        }
        self.pool.run(job)
    }

    /// Counts since the start.
    pub fn stats(&self) -> FlushStats {
        let counters = &self.shared.counters;
        FlushStats {
            rounds: counters.rounds.load(Ordering::Relaxed),
            targets: counters.targets.load(Ordering::Relaxed),
            rounds_sync_fs: counters.rounds_sync_fs.load(Ordering::Relaxed),
            failures: counters.failures.load(Ordering::Relaxed),
        }
    }

    /// Answers everything that waits, then ends and joins the threads. A second call with
    /// [`FlusherStop::Abandon`] cuts a draining one short. Not to be called by a target.
    pub fn stop(&self, how: FlusherStop) {
        {
            let mut queue = self.shared.queue.lock();
            if queue.stop != Some(FlusherStop::Abandon) {
                queue.stop = Some(how);
            }
            queue.sleeping = false;
        }
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.lock().take() {
            join(thread);
        }
        self.pool.stop();
        #[cfg(any(test, feature = "sim"))]
        self.stop_by_hand(how);
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        // As a process that dies.
        #[cfg(any(test, feature = "sim"))]
        if self.by_hand.is_some() {
            return;
        }
        self.stop(FlusherStop::Drain);
    }
}

impl fmt::Debug for Flusher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flusher").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

fn run(shared: &Shared, mut context: SyncContext) {
    // A dead flusher would leave every producer that waits for durability without an answer, for ever.
    let _guard = AbortOnPanic("nothing can become durable any more");
    let (mut targets, mut retries) = (Vec::new(), 0);
    while let Some(stop) = next_round(shared, &mut targets, context.has_unfinished()) {
        let unfinished = context.take_unfinished();
        retries = if unfinished.is_empty() { 0 } else { retries + 1 };
        if retries == 1 {
            tracing::warn!("no handle is left to sync a directory by; it is tried again until there is one");
        }
        if stop == Some(FlusherStop::Abandon) || (stop.is_some() && retries > DRAIN_RETRIES) {
            abandon(unfinished, &mut targets);
        } else {
            let round = Round::begin(unfinished, &mut targets);
            context.sync(round);
        }
    }
}

/// Waits for targets and takes all of them, beside those that it is given; `None` when the flusher is stopped and
/// nothing waits. What is unfinished waits for a while only.
fn next_round(
    shared: &Shared,
    targets: &mut Vec<Arc<dyn FlushTarget>>,
    unfinished: bool,
) -> Option<Option<FlusherStop>> {
    let mut queue = shared.queue.lock();
    while queue.waiting.is_empty() {
        // What stayed behind something unfinished need not wait any more when that is done.
        let ready = !unfinished && !targets.is_empty();
        if ready || (unfinished && queue.stop == Some(FlusherStop::Abandon)) {
            break;
        }
        if queue.stop.is_some() && !unfinished {
            return None;
        }
        queue.sleeping = true;
        if !unfinished {
            shared.wake.wait(&mut queue);
        } else if shared.wake.wait_for(&mut queue, RETRY_AFTER).timed_out() {
            break;
        }
    }
    queue.sleeping = false;
    targets.append(&mut queue.waiting);
    Some(queue.stop)
}

fn abandon(unfinished: Vec<Unfinished>, targets: &mut Vec<Arc<dyn FlushTarget>>) {
    let error = || io::Error::new(io::ErrorKind::Interrupted, "the flusher was stopped before it synced");
    for left in unfinished {
        left.give_up(error());
    }
    for target in targets.drain(..) {
        target.ticket().give_back();
        let upto = target.begin_flush().upto;
        target.end_flush(upto, Err(error()));
    }
}

#[cfg(test)]
mod tests;
