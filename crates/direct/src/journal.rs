//! The journal: an embedded queue with an identity, whose appends are on the disk when they return.
//!
//! One thread a journal syncs, reads and notifies:
//!
//! ```text
//! append (any thread, any process) ──▶ queue ──wakes──▶ sync ──▶ chunk for all streams ──▶ appends return
//! ```
//!
//! Appends during a sync are covered by the next one, so that many appends share each. After a sync that several appends shared, the next
//! one waits a moment for more. Readers see only what was synced, unless [`Visibility::Mapped`] is chosen.

mod appending;
mod blocks;
mod gathering;
mod identity;
mod older;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mainstem_lines::OneLine;
use mainstem_queue::{Appender, Options, Queue, QueueError, Start, Tailer, Wait};
use parking_lot::Mutex;
use tokio::sync::oneshot;

pub use appending::{NewEvent, ToEvent};
use blocks::Blocks;
use gathering::Gathering;
pub(crate) use identity::{Identity, ServingLock};
pub(crate) use older::OlderReader;

use crate::chunk::{CHUNK_BYTES, Chunk, Counters, Ring};
use crate::error::{DirectError, Result};
use crate::resume::{JournalId, JournalView};

/// The most bytes of a frame, and so of an event with its key and headers.
pub const FRAME_BYTES_MAX: usize = 4 << 20;
/// The most bytes of mapped segments that stay resident: one read. The newest events are in memory anyway.
const RESIDENT_BYTES: usize = CHUNK_BYTES;
/// The interval at which the journal's thread looks whether it has to end.
const LOOK: Duration = Duration::from_millis(100);

/// The moment at which consumers can see an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Visibility {
    /// When it is on disk: no power cut can erase what a consumer has seen.
    #[default]
    Synced,
    /// When it is appended. A power cut may erase what consumers have seen; they stop with `Diverged` then.
    Mapped,
}

/// How to open a journal.
#[derive(Debug, Clone, Default)]
pub struct JournalOptions {
    queue: Options,
    visibility: Visibility,
    name: Option<String>,
}

impl JournalOptions {
    /// The options of [`Journal::open`]: kept for ever, visible when synced, named as its directory.
    pub fn new() -> JournalOptions {
        let queue = Options::new().segment_bytes(16 << 20).resident_bytes(RESIDENT_BYTES);
        JournalOptions { queue, ..JournalOptions::default() }
    }

    /// Changes the queue's own options, such as retention. They count when the journal is made.
    #[must_use]
    pub fn queue(mut self, change: impl FnOnce(Options) -> Options) -> JournalOptions {
        self.queue = change(self.queue);
        self
    }

    /// Chooses when events become visible; by default [`Visibility::Synced`].
    #[must_use]
    pub fn visibility(mut self, visibility: Visibility) -> JournalOptions {
        self.visibility = visibility;
        self
    }

    /// Names the stream; by default as the directory.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> JournalOptions {
        self.name = Some(name.into());
        self
    }

    /// Opens the journal in a directory, or makes one.
    ///
    /// # Errors
    /// See [`DirectError`]; [`DirectError::Invalid`] if another process has it open as a journal.
    pub fn open(&self, directory: impl AsRef<Path>) -> Result<Journal> {
        Journal::open_with(directory.as_ref(), self)
    }
}

/// A log of events of one service. Clones share it; it is closed with the last of them.
///
/// ```
/// use mainstem_direct::Journal;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mainstem_direct::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let directory = directory.path().join("cart");
/// let cart = Journal::open(&directory)?;
/// let offset = cart.append("cart-7", "tea was added").await?;
/// assert_eq!((offset, cart.end()), (0, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Journal {
    inner: Arc<Inner>,
}

/// The state that the journal's thread shares with its users.
#[derive(Debug)]
struct Shared {
    ring: Ring,
    counters: Counters,
    waiting: Mutex<Waiting>,
    stops: AtomicBool,
}

/// Appends that wait for the disk, by offset.
#[derive(Debug, Default)]
struct Waiting {
    appends: VecDeque<(i64, oneshot::Sender<()>)>,
    /// Events before this offset are on disk.
    synced: i64,
    /// The error after which no sync is tried any more.
    failed: Option<String>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    directory: PathBuf,
    queue: Queue,
    appender: Mutex<Appender>,
    identity: Mutex<Identity>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    _lock: ServingLock,
}

impl Journal {
    /// Opens the journal in a directory, or makes one. One process has it open as a journal; other processes may append to it as
    /// a queue.
    ///
    /// # Errors
    /// As [`JournalOptions::open`].
    pub fn open(directory: impl AsRef<Path>) -> Result<Journal> {
        JournalOptions::new().open(directory)
    }

    fn open_with(directory: &Path, options: &JournalOptions) -> Result<Journal> {
        let name = options.name.clone().or_else(|| {
            let absolute = std::path::absolute(directory).ok()?;
            absolute.file_name()?.to_str().map(str::to_owned)
        });
        let name = name.filter(|name| !name.is_empty()).ok_or_else(|| {
            DirectError::Invalid(format!("{} gives the stream no name; set one", directory.display()))
        })?;
        let queue = options.queue.open(directory)?;
        let lock = ServingLock::take(directory)?;
        let identity = Identity::open(directory, &queue)?;
        // Events that an earlier process appended and did not sync are synced now, and visible from the beginning.
        let end = queue.sync()?;
        let shared = Arc::new(Shared {
            ring: Ring::new(end),
            counters: Counters::default(),
            waiting: Mutex::default(),
            stops: AtomicBool::new(false),
        });
        let worker = Worker {
            tailer: queue.reader(Start::Offset(end))?,
            queue: queue.clone(),
            shared: shared.clone(),
            visibility: options.visibility,
            gathering: Gathering::new(end),
            blocks: Blocks::default(),
            is_short: false,
        };
        // Before the thread is started, which an error would not end.
        let appender = queue.appender()?;
        let thread = thread::Builder::new().name(format!("direct-{name}")).spawn(move || worker.run());
        let thread = thread.map_err(|error| DirectError::io("starting a thread for", directory, error))?;
        Ok(Journal {
            inner: Arc::new(Inner {
                name,
                directory: directory.to_owned(),
                appender: Mutex::new(appender),
                queue,
                identity: Mutex::new(identity),
                shared,
                thread: Some(thread),
                _lock: lock,
            }),
        })
    }

    /// The name of its stream.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The directory of the journal.
    pub fn directory(&self) -> &Path {
        &self.inner.directory
    }

    /// An id that no other journal has.
    pub fn id(&self) -> JournalId {
        self.inner.identity.lock().id
    }

    /// The present epoch, which each unclean start raises.
    pub fn epoch(&self) -> i32 {
        self.inner.identity.lock().epochs.last().map_or(0, |epoch| epoch.epoch)
    }

    /// The offset behind the last visible event.
    pub fn end(&self) -> i64 {
        self.inner.shared.ring.end()
    }

    /// The journal's queue, for reading it in this process.
    pub fn queue(&self) -> &Queue {
        &self.inner.queue
    }

    pub(crate) fn view(&self) -> JournalView {
        let identity = self.inner.identity.lock();
        // The end first: the journal's start may pass it meanwhile.
        let end = self.end();
        JournalView {
            id: identity.id,
            epochs: identity.epochs.clone(),
            start: self.inner.queue.ends().start.min(end),
            end,
        }
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.inner.shared.ring
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.inner.shared.counters
    }

    /// Appends, and waits until the event is on disk.
    async fn append_by(&self, append: impl FnOnce(&mut Appender) -> Result<i64>) -> Result<i64> {
        let (first, on_disk) = {
            let mut appender = self.inner.appender.lock();
            let shared = &self.inner.shared;
            if let Some(reason) = &shared.waiting.lock().failed {
                return Err(self.sync_failed(reason));
            }
            let first = append(&mut appender)?;
            // Under the appender's lock, so that appends wait in the order of their offsets.
            let mut waiting = shared.waiting.lock();
            if let Some(reason) = &waiting.failed {
                return Err(self.sync_failed(reason));
            }
            if first < waiting.synced {
                return Ok(first);
            }
            let (done, on_disk) = oneshot::channel();
            waiting.appends.push_back((first, done));
            (first, on_disk)
        };
        match on_disk.await {
            Ok(()) => Ok(first),
            Err(_) => match &self.inner.shared.waiting.lock().failed {
                Some(reason) => Err(self.sync_failed(reason)),
                None => Err(DirectError::Closed),
            },
        }
    }

    fn sync_failed(&self, reason: &str) -> DirectError {
        let source = std::io::Error::other(reason.to_owned());
        DirectError::io("syncing", &self.inner.directory, source)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.stops.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its panics were reported when they happened.
            let _ = thread.join();
        }
        let closed = match self.queue.sync() {
            Ok(_) => self.identity.lock().close(self.queue.ends().next),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = closed {
            tracing::warn!(
                "journal {} is not closed in order: {error}; its next start is an unclean one",
                OneLine(&self.name)
            );
        }
    }
}

/// The thread of a journal.
struct Worker {
    queue: Queue,
    /// Reads what is not visible yet.
    tailer: Tailer,
    shared: Arc<Shared>,
    visibility: Visibility,
    gathering: Gathering,
    /// The memory of the ring's chunks.
    blocks: Blocks,
    /// The last turn failed for want of descriptors or memory.
    is_short: bool,
}

impl Worker {
    fn run(mut self) {
        while !self.shared.stops.load(Ordering::Relaxed) {
            match self.is_short {
                // The tailer may have read what is to be synced, and would wait for more.
                true => thread::sleep(LOOK),
                false if !self.tailer.wait(Wait::Sleep, Some(LOOK)) => continue,
                false => {}
            }
            match self.turn() {
                Ok(()) => self.is_short = false,
                Err(DirectError::Queue(error)) if error.is_shortage() => self.wait_out(&error),
                Err(error) => {
                    self.fail(&error);
                    // Streams continue with what is visible; nothing more becomes so.
                    return;
                }
            }
        }
        // Waiting appends end with an error when their senders are dropped.
        self.shared.waiting.lock().appends.clear();
    }

    fn turn(&mut self) -> Result<()> {
        if self.visibility == Visibility::Mapped {
            self.show(self.queue.ends().next)?;
        }
        self.gather();
        let synced = self.queue.sync()?;
        self.gathering.synced(synced);
        crate::stages::synced(synced);
        self.show(synced)?;
        self.complete(synced);
        Ok(())
    }

    /// Lets appends that come now share the sync.
    fn gather(&self) {
        let Some(mut arrivals) = self.gathering.begin(self.queue.ends().next) else { return };
        let begun = Instant::now();
        while self.gathering.keeps_gathering(&mut arrivals, begun.elapsed(), self.queue.ends().next) {
            // An appending thread may need this core.
            std::thread::yield_now();
        }
    }

    /// Makes events before `end` visible.
    fn show(&mut self, end: i64) -> Result<()> {
        while self.tailer.position() < end {
            let read = self.tailer.read_batches(end, CHUNK_BYTES, self.blocks.buffer())?;
            let bytes = self.blocks.keep();
            self.shared.ring.push(Chunk::new(read.start, read.end, bytes, &self.shared.counters));
        }
        Ok(())
    }

    fn complete(&self, synced: i64) {
        let mut waiting = self.shared.waiting.lock();
        waiting.synced = synced;
        while waiting.appends.front().is_some_and(|(offset, _)| *offset < synced) {
            let (_, done) = waiting.appends.pop_front().expect("there is a first");
            // A caller that has dropped its future does not receive it.
            let _ = done.send(());
        }
    }

    /// Notes that no sync was possible, and nothing is lost: appends wait until there are descriptors and memory again.
    fn wait_out(&mut self, error: &QueueError) {
        if !self.is_short {
            tracing::warn!("{error}; appends to this journal wait until it is possible");
        }
        self.is_short = true;
    }

    fn fail(&self, error: &DirectError) {
        tracing::error!("{error}; nothing more is appended to this journal or becomes visible");
        let mut waiting = self.shared.waiting.lock();
        waiting.failed = Some(error.to_string());
        waiting.appends.clear();
    }
}

#[cfg(test)]
mod tests;
