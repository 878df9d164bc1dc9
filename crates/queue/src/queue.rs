//! An open queue: what its appenders and tailers in this process share.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;

use crate::ahead::Prepared;
use crate::appender::{Appender, Shared as SharedWriter};
use crate::bell::Bell;
use crate::byte_lock::{Kind, LockFile};
use crate::control::{self, BYTES, Control, FILE, lock_bytes};
use crate::directory::Directory;
use crate::error::{QueueError, Result, SYNCING};
use crate::options::{Options, Rules};
use crate::sync_every::SyncEvery;
use crate::tailer::{Start, Tailer};
use crate::tailers::{self, Bookmark, Position, TailerInfo};
use crate::{lock, recovery, segment};

/// The advice where a queue cannot be written because a broker has the directory.
const ELSEWHERE: &str =
    "choose another directory for the queue, or write to a topic of the broker by `mainstem produce`";

/// A queue that is open in this process. Clones share it; it is closed with the last of them and of what they made.
#[derive(Debug, Clone)]
pub struct Queue {
    pub(crate) inner: Arc<Inner>,
    /// The appender of [`Queue::append`], from its first call on. Not in [`Inner`], which it keeps alive.
    writer: Arc<Mutex<Option<SharedWriter>>>,
}

/// What appenders and tailers keep alive.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) directory: PathBuf,
    pub(crate) control: Arc<Control>,
    pub(crate) rules: Rules,
    pub(crate) options: Options,
    syncing: Mutex<()>,
    pub(crate) bell: Bell,
}

/// The first and the next offset of a queue, and what of it survives a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// The first offset that is there.
    pub start: i64,
    /// Messages before this offset are on the disk.
    pub synced: i64,
    /// The offset that the next message gets.
    pub next: i64,
}

/// One segment of a queue, see [`Queue::segments`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentInfo {
    /// The offset of its first message.
    pub base_offset: i64,
    /// Readable bytes.
    pub bytes: u64,
    /// Whether appends go to it.
    pub is_open: bool,
}

impl Queue {
    /// Opens the queue in a directory, and makes it if it is not there, with the rules of [`Options::new`].
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn open(directory: impl AsRef<Path>) -> Result<Queue> {
        Options::new().open(directory)
    }

    pub(crate) fn open_with(directory: &Path, options: &Options) -> Result<Queue> {
        let is_writable = !options.read_only;
        if is_writable {
            Directory::inspect(directory).check_not_of_broker(ELSEWHERE)?;
        }
        if options.create && is_writable {
            fs::create_dir_all(directory).map_err(|error| QueueError::io("making", directory, error))?;
        }
        let (file, lock) = open_control(directory, options)?;
        let mut control = match opened_before(&file, directory, is_writable)? {
            Some(control) => control,
            None => {
                let kind = if is_writable { Kind::Exclusive } else { Kind::Shared };
                let locked = lock.lock(lock_bytes::OPENING, kind);
                locked.map_err(|error| QueueError::io("locking", &directory.join(FILE), error))?;
                prepare(&file, directory, options)?
            }
        };
        control.ahead.keep_resident(options.resident_bytes);
        let rules = control.rules()?;
        let inner = Inner {
            directory: directory.to_owned(),
            control: Arc::new(control),
            rules,
            options: options.clone(),
            syncing: Mutex::new(()),
            bell: Bell::default(),
        };
        Ok(Queue { inner: Arc::new(inner), writer: Arc::default() })
    }

    /// Appends one message with the time of now, in shared mode: any thread of any process may do so at any time. Returns its
    /// offset.
    ///
    /// # Errors
    /// See [`QueueError`]; then it is not in the queue.
    pub fn append(&self, value: impl AsRef<[u8]>) -> Result<i64> {
        self.shared_writer(|writer| writer.append(None, value.as_ref(), &[], None))
    }

    fn shared_writer<T>(&self, append: impl FnOnce(&mut SharedWriter) -> Result<T>) -> Result<T> {
        let mut place = self.writer.lock();
        // A child process takes a slot of its own.
        if place.as_ref().is_none_or(|writer| !writer.is_ours()) {
            *place = Some(SharedWriter::new(&self.inner)?);
        }
        append(place.as_mut().expect("it was just made"))
    }

    /// An appender that shares the queue with appenders of other threads and processes.
    ///
    /// # Errors
    /// [`QueueError::Busy`] while an exclusive appender is at work.
    pub fn appender(&self) -> Result<Appender> {
        Ok(Appender::shared(SharedWriter::new(&self.inner)?))
    }

    /// The only appender, of all threads and processes: it takes no lock to append.
    ///
    /// # Errors
    /// [`QueueError::Busy`] while anybody else has the queue open for appending.
    pub fn exclusive_appender(&self) -> Result<Appender> {
        // A slot that this process has for its shared appends would keep it out.
        *self.writer.lock() = None;
        Appender::exclusive(&self.inner)
    }

    /// A named tailer, which goes on where the last one of this name ended. A new one begins with the first message that is
    /// there.
    ///
    /// # Errors
    /// [`QueueError::TailerInUse`] if the name has a living tailer.
    pub fn tailer(&self, name: &str) -> Result<Tailer> {
        Tailer::named(&self.inner, name)
    }

    /// The position of a named tailer without the tailer: retention may wait for it, and it is moved by hand. One that is new begins
    /// with the first message that is there.
    ///
    /// # Errors
    /// [`QueueError::TailerInUse`] while the name has a living tailer.
    pub fn bookmark(&self, name: &str) -> Result<Bookmark> {
        self.inner.check_writable()?;
        Bookmark::open(&self.inner.directory, name, self.ends().start)
    }

    /// A tailer without a name, whose position is not kept.
    ///
    /// # Errors
    /// [`QueueError::OutOfRange`] for an offset that is not in the queue.
    pub fn reader(&self, start: Start) -> Result<Tailer> {
        Tailer::unnamed(&self.inner, start)
    }

    /// All named tailers, live or not, by name.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn tailers(&self) -> Result<Vec<TailerInfo>> {
        tailers::list(&self.inner.directory, self.inner.control.next_offset())
    }

    /// What is known of one named tailer; `None` if there is none.
    ///
    /// # Errors
    /// [`QueueError::TailerName`], or if it cannot be read.
    pub fn find_tailer(&self, name: &str) -> Result<Option<TailerInfo>> {
        tailers::find(&self.inner.directory, name, self.inner.control.next_offset())
    }

    /// Has the next tailer of a name begin with an offset, which becomes the nearest one that the queue has.
    ///
    /// # Errors
    /// [`QueueError::TailerInUse`] while the name has a living tailer.
    pub fn move_tailer(&self, name: &str, offset: i64) -> Result<()> {
        self.inner.check_writable()?;
        let ends = self.ends();
        self.inner.control.check_whole()?;
        let position = Position::open(&self.inner.directory, name, ends.start)?;
        position.store(offset.clamp(ends.start, ends.next));
        Ok(())
    }

    /// Forgets a named tailer; returns whether there was one.
    ///
    /// # Errors
    /// [`QueueError::TailerInUse`] while the name has a living tailer.
    pub fn remove_tailer(&self, name: &str) -> Result<bool> {
        self.inner.check_writable()?;
        tailers::remove(&self.inner.directory, name)
    }

    /// The segments that are there, ascending.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn segments(&self) -> Result<Vec<SegmentInfo>> {
        let (open, end) = self.inner.control.open_segment();
        let info = |base_offset: i64| {
            let path = segment::path(&self.inner.directory, base_offset, "log");
            let is_open = base_offset == open;
            // Retention may have been faster.
            let bytes =
                if is_open { u64::from(end.bytes) } else { fs::metadata(path).map_or(0, |file| file.len()) };
            SegmentInfo { base_offset, bytes, is_open }
        };
        Ok(segment::list(&self.inner.directory)?.into_iter().filter(|base| *base <= open).map(info).collect())
    }

    /// Where the queue begins and ends now.
    pub fn ends(&self) -> Ends {
        let control = &self.inner.control;
        // In this order: the end never goes back, so that it is not before what is synced.
        let start = control.log_start().load(Ordering::Acquire);
        let synced = control.synced_end().load(Ordering::Acquire);
        Ends { start, synced, next: control.next_offset() }
    }

    /// Has the words of the control file on the disk, such as where the queue begins.
    ///
    /// # Errors
    /// As [`Queue::sync`]: after a sync that failed none of either is tried.
    pub fn sync_control(&self) -> Result<()> {
        let inner = &*self.inner;
        let _turn = inner.syncing.lock();
        inner.check_syncs()?;
        recovery::sync_control(&inner.directory).inspect_err(|error| {
            // A process that only reads cannot say so to the others.
            if error.is_failed_sync() && inner.control.is_writable {
                inner.control.sync_failed().store(1, Ordering::Release);
            }
        })
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.inner.directory
    }

    /// Has everything that is published now on the disk, and publishes how far that is ([`Ends::synced`]). Concurrent callers
    /// share one sync where they can. Returns that offset.
    ///
    /// # Errors
    /// If the disk fails; then nothing is known of what was not synced before, and no further sync is tried
    /// ([`QueueError::SyncFailed`]). Where nothing was asked of the disk, as for want of descriptors
    /// ([`QueueError::is_shortage`]), the next call tries again.
    pub fn sync(&self) -> Result<i64> {
        let inner = &*self.inner;
        inner.check_writable()?;
        let wanted = inner.control.next_offset();
        let _turn = inner.syncing.lock();
        let synced = inner.control.synced_end().load(Ordering::Acquire);
        if synced >= wanted {
            return Ok(synced);
        }
        inner.check_syncs()?;
        let next = inner.control.next_offset();
        inner.sync_segments(synced).map_err(|unsynced| {
            if let Unsynced::Refused(_) = unsynced {
                inner.control.sync_failed().store(1, Ordering::Release);
            }
            unsynced.into_error()
        })?;
        // The words were zeros meanwhile, if the file was cut.
        inner.control.check_whole()?;
        inner.control.publish_synced(next);
        inner.control.wake();
        Ok(next)
    }
}

impl Queue {
    /// Starts a thread that makes pages present and segments ready ahead of the appenders of this process, for as long as the
    /// result is kept: an append then does not wait for the kernel to find a page, nor for a segment to be made. It takes a core's
    /// time when appenders are fast, and one spare segment of disk.
    ///
    /// # Errors
    /// If the queue was opened for reading, or no thread can be started.
    pub fn prepare_ahead(&self) -> Result<Prepared> {
        self.inner.check_writable()?;
        Prepared::start(&self.inner)
    }

    /// Syncs whenever `interval` has passed, on a thread of its own, for as long as the result is kept: a power cut takes at most
    /// what was appended since, by any process.
    ///
    /// # Errors
    /// If the queue was opened for reading, or no thread can be started.
    pub fn sync_every(&self, interval: Duration) -> Result<SyncEvery> {
        self.inner.check_writable()?;
        SyncEvery::start(self.clone(), interval)
    }
}

impl Inner {
    pub(crate) fn check_writable(&self) -> Result<()> {
        match self.control.is_writable {
            true => Ok(()),
            false => Err(QueueError::ReadOnly { path: self.directory.clone() }),
        }
    }

    /// Refuses a sync after one that failed.
    fn check_syncs(&self) -> Result<()> {
        if self.control.sync_failed().load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let synced = self.control.synced_end().load(Ordering::Acquire);
        Err(QueueError::SyncFailed { path: self.directory.clone(), synced })
    }

    /// Syncs the segments from the one that holds `synced` on.
    fn sync_segments(&self, synced: i64) -> Result<(), Unsynced> {
        let (open, end) = self.control.open_segment();
        let bases = segment::list(&self.directory).map_err(Unsynced::NotAsked)?;
        // Not the one that begins there: that it was made, and that the one before it was closed, is not synced yet.
        let from = bases.iter().rposition(|base| *base < synced).unwrap_or(0);
        for &base in bases[from..].iter().filter(|base| **base <= open) {
            let path = segment::path(&self.directory, base, "log");
            match File::open(&path) {
                // Retention has taken it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                opened => {
                    let least = if base == open { u64::from(end.bytes) } else { 0 };
                    sync_opened(&path, opened, |file| sync_whole(&path, file, least))?;
                }
            }
        }
        if bases.len() > from + 1 || synced == 0 {
            sync_opened(&self.directory, File::open(&self.directory), |directory| {
                directory.sync_all().map_err(|error| refused(&self.directory, error))
            })?;
        }
        Ok(())
    }
}

/// Why something is not synced.
enum Unsynced {
    /// The disk was not asked: a file could not be found or opened.
    NotAsked(QueueError),
    /// The disk was asked, and the kernel may take for written what is not.
    Refused(QueueError),
}

impl Unsynced {
    fn into_error(self) -> QueueError {
        match self {
            Unsynced::NotAsked(error) | Unsynced::Refused(error) => error,
        }
    }
}

/// Syncs a file, or a directory, that was to be opened for it.
fn sync_opened(
    path: &Path,
    opened: io::Result<File>,
    sync: impl FnOnce(&File) -> Result<(), Unsynced>,
) -> Result<(), Unsynced> {
    let file =
        opened.map_err(|error| Unsynced::NotAsked(QueueError::io("opening for a sync", path, error)))?;
    sync(&file)
}

fn refused(path: &Path, error: io::Error) -> Unsynced {
    Unsynced::Refused(QueueError::io(SYNCING, path, error))
}

/// Syncs a log that has so many bytes at least, unless another process has cut it: what was cut is not durable.
fn sync_whole(path: &Path, file: &File, least: u64) -> Result<(), Unsynced> {
    file.sync_data().map_err(|error| refused(path, error))?;
    // It is synced, and the next sync looks again.
    let looked = file.metadata().map_err(|error| Unsynced::NotAsked(QueueError::io("reading", path, error)));
    match looked?.len() >= least {
        true => Ok(()),
        false => Err(Unsynced::NotAsked(QueueError::Cut { path: path.to_owned() })),
    }
}

/// Opens the control file, made if need be, and what locks it.
fn open_control(directory: &Path, options: &Options) -> Result<(File, LockFile)> {
    let path = directory.join(FILE);
    let is_writable = !options.read_only;
    let mut open = File::options();
    open.read(true).write(is_writable);
    if options.create && is_writable {
        let is_there = path.try_exists().map_err(|error| QueueError::io("reading", &path, error))?;
        let is_foreign = !is_there && !segment::list(directory)?.is_empty();
        if is_foreign {
            let reason = format!(
                "it has segments and no {FILE}: it is a copy of a broker's partition, or a queue that lost that file; choose \
                 another directory, or make a queue of it by `mainstem queue repair`"
            );
            return Err(QueueError::NoQueue { path: directory.to_owned(), reason });
        }
        open.create(true).truncate(false);
    }
    let file = open.open(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => QueueError::NoQueue {
            path: directory.to_owned(),
            reason: format!("it has no {FILE}; append to it first, or name another directory"),
        },
        _ => QueueError::io("opening", &path, error),
    })?;
    Ok((file, lock::open_for_locks(directory, is_writable)?))
}

/// The control file of a queue that was opened since the machine was started, so that nothing is to be made or recovered. Without a
/// lock: one that was stopped while it opened the queue holds up none that come later.
fn opened_before(file: &File, directory: &Path, is_writable: bool) -> Result<Option<Control>> {
    let path = directory.join(FILE);
    let failed = |what, error| QueueError::io(what, &path, error);
    if file.metadata().map_err(|error| failed("reading", error))?.len() < BYTES as u64 {
        return Ok(None);
    }
    let control = Control::map(file, directory, is_writable)?;
    let boot = control::boot_id().map_err(|error| failed("reading the boot id for", error))?;
    // What is wrong with the rules is an error under the lock, when no other process is about to write them.
    Ok((control.is_of_boot(boot) && control.rules().is_ok()).then_some(control))
}

/// Maps the control file, and makes or recovers the queue if that is due. The caller holds the opening lock.
fn prepare(file: &File, directory: &Path, options: &Options) -> Result<Control> {
    let path = directory.join(FILE);
    let failed = |what, error| QueueError::io(what, &path, error);
    let is_writable = !options.read_only;
    let len = file.metadata().map_err(|error| failed("reading", error))?.len();
    if len < BYTES as u64 {
        if !is_writable || len > 0 && !options.create {
            let reason = format!("{FILE} is cut short; open it once with write permission");
            return Err(QueueError::NoQueue { path: directory.to_owned(), reason });
        }
        segment::allocate(file, BYTES as u64).map_err(|error| failed("allocating", error))?;
    }
    let mut control = Control::map(file, directory, is_writable)?;
    let boot = control::boot_id().map_err(|error| failed("reading the boot id for", error))?;
    if !control.is_initialized() {
        if !is_writable {
            return Err(QueueError::NeedsRecovery { path: directory.to_owned() });
        }
        // A power cut may have taken the control file of a queue that has messages.
        let make = match recovery::has_messages(directory)? {
            true => recovery::rebuild,
            false => recovery::create,
        };
        recovery::end_doubt(&mut control, directory, |control| make(control, directory, &options.rules))?;
        control.set_boot(boot);
        return Ok(control);
    }
    let rules = control.rules()?;
    if !control.is_of_boot(boot) {
        if !is_writable {
            return Err(QueueError::NeedsRecovery { path: directory.to_owned() });
        }
        recovery::end_doubt(&mut control, directory, |control| {
            recovery::recover(control, directory, &rules)
        })?;
        control.set_boot(boot);
    }
    Ok(control)
}
