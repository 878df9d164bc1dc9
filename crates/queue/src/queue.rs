//! An open queue: its appenders, tailers, offsets and segments.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use crate::ahead::Prepared;
use crate::appender::{Appender, Shared as SharedWriter};
use crate::bell::Bell;
use crate::byte_lock::{Kind, LockFile};
use crate::control::{self, BYTES, Control, FILE, lock_bytes};
use crate::directory::Directory;
use crate::error::{QueueError, Result};
use crate::inner::Inner;
use crate::options::Options;
use crate::tailer::{Start, Tailer};
use crate::tailers::{self, Bookmark, Position, TailerInfo};
use crate::{lock, recovery, segment};

/// The advice for a directory that belongs to a broker.
const ELSEWHERE: &str =
    "choose another directory for the queue, or write to a topic of the broker by `mainstem produce`";

/// A queue that is open in this process. Clones share it. It is closed with the last of them and of their appenders and
/// tailers.
#[derive(Debug, Clone)]
pub struct Queue {
    pub(crate) inner: Arc<Inner>,
    /// The appender of [`Queue::append`], from its first call on. It is not in [`Inner`], which it keeps alive.
    writer: Arc<Mutex<Option<SharedWriter>>>,
}

/// The offsets of a queue: the first, the next, and the end of what survives a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// The first offset of the queue.
    pub start: i64,
    /// Messages before this offset are on disk.
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
    /// True for the segment that is appended to.
    pub is_open: bool,
}

impl Queue {
    /// Opens the queue in a directory, or makes one with the rules of [`Options::new`].
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

    /// Appends one message with the present time; returns its offset. It is in shared mode: any thread of any process may
    /// append at any time.
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

    /// Returns an appender that shares the queue with appenders of other threads and processes.
    ///
    /// # Errors
    /// [`QueueError::Busy`] while an exclusive appender has the queue open.
    pub fn appender(&self) -> Result<Appender> {
        Ok(Appender::shared(SharedWriter::new(&self.inner)?))
    }

    /// Returns the only appender, among all threads and processes. It takes no lock to append.
    ///
    /// # Errors
    /// [`QueueError::Busy`] while any other appender has the queue open.
    pub fn exclusive_appender(&self) -> Result<Appender> {
        // The slot of this process's own shared appends would block it.
        *self.writer.lock() = None;
        Appender::exclusive(&self.inner)
    }

    /// Returns a named tailer, which resumes where the last one of this name ended. A new one begins with the first message
    /// of the queue.
    ///
    /// # Errors
    /// [`QueueError::TailerInUse`] if the name has a living tailer.
    pub fn tailer(&self, name: &str) -> Result<Tailer> {
        Tailer::named(&self.inner, name)
    }

    /// Returns the position of a named tailer without the tailer, which its owner moves. Retention may wait for it. A new one begins
    /// with the first message of the queue.
    ///
    /// # Errors
    /// [`QueueError::TailerInUse`] while the name has a living tailer.
    pub fn bookmark(&self, name: &str) -> Result<Bookmark> {
        self.inner.check_writable()?;
        Bookmark::open(&self.inner.directory, name, self.ends().start)
    }

    /// Returns a tailer without a name, whose position is not stored.
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

    /// Finds a named tailer; `None` if there is none.
    ///
    /// # Errors
    /// [`QueueError::TailerName`], or if it cannot be read.
    pub fn find_tailer(&self, name: &str) -> Result<Option<TailerInfo>> {
        tailers::find(&self.inner.directory, name, self.inner.control.next_offset())
    }

    /// Moves a named tailer to an offset, clamped to those of the queue.
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

    /// Deletes a named tailer; returns true if there was one.
    ///
    /// # Errors
    /// [`QueueError::TailerInUse`] while the name has a living tailer.
    pub fn remove_tailer(&self, name: &str) -> Result<bool> {
        self.inner.check_writable()?;
        tailers::remove(&self.inner.directory, name)
    }

    /// The segments of the queue, ascending.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn segments(&self) -> Result<Vec<SegmentInfo>> {
        let (open, end) = self.inner.control.open_segment();
        let info = |base_offset: i64| {
            let path = segment::path(&self.inner.directory, base_offset, "log");
            let is_open = base_offset == open;
            // Retention may have deleted it meanwhile.
            let bytes =
                if is_open { u64::from(end.bytes) } else { fs::metadata(path).map_or(0, |file| file.len()) };
            SegmentInfo { base_offset, bytes, is_open }
        };
        Ok(segment::list(&self.inner.directory)?.into_iter().filter(|base| *base <= open).map(info).collect())
    }

    /// The present start and ends of the queue.
    pub fn ends(&self) -> Ends {
        let control = &self.inner.control;
        // In this order: the end never moves back, so it is not below the synced offset.
        let start = control.log_start().load(Ordering::Acquire);
        let synced = control.synced_end().load(Ordering::Acquire);
        Ends { start, synced, next: control.next_offset() }
    }

    /// The directory of the queue.
    pub fn directory(&self) -> &Path {
        &self.inner.directory
    }

    /// Starts a thread that makes pages present and segments ready ahead of the appenders of this process, until the result is
    /// dropped. An append then does not wait for the kernel to find a page, nor for a segment to be made. It takes a core's time
    /// when appenders are fast, and the disk space of one segment.
    ///
    /// # Errors
    /// If the queue was opened for reading, or no thread can be started.
    pub fn prepare_ahead(&self) -> Result<Prepared> {
        self.inner.check_writable()?;
        Prepared::start(&self.inner)
    }
}

impl Options {
    /// Opens the queue in a directory.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn open(&self, directory: impl AsRef<Path>) -> Result<Queue> {
        Queue::open_with(directory.as_ref(), self)
    }
}

/// Opens the control file, or makes it, and opens it once more for locks.
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

/// Maps the control file of a queue that was opened since the machine started, so that nothing has to be made or recovered. It
/// takes no lock: a process that was stopped while it opened the queue does not block later ones.
fn opened_before(file: &File, directory: &Path, is_writable: bool) -> Result<Option<Control>> {
    let path = directory.join(FILE);
    let failed = |what, error| QueueError::io(what, &path, error);
    if file.metadata().map_err(|error| failed("reading", error))?.len() < BYTES as u64 {
        return Ok(None);
    }
    let control = Control::map(file, directory, is_writable)?;
    let boot = control::boot_id().map_err(|error| failed("reading the boot id for", error))?;
    // Errors in the rules are reported under the lock, when no other process is writing them.
    Ok((control.is_of_boot(boot) && control.rules().is_ok()).then_some(control))
}

/// Maps the control file, and makes or recovers the queue if needed. The caller holds the opening lock.
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
        // A power cut may have erased the control file of a queue that has messages.
        let make = match recovery::has_messages(directory)? {
            true => recovery::rebuild,
            false => recovery::create,
        };
        recovery::make_durable(&mut control, directory, |control| make(control, directory, &options.rules))?;
        control.set_boot(boot);
        return Ok(control);
    }
    let rules = control.rules()?;
    if !control.is_of_boot(boot) {
        if !is_writable {
            return Err(QueueError::NeedsRecovery { path: directory.to_owned() });
        }
        recovery::make_durable(&mut control, directory, |control| {
            recovery::recover(control, directory, &rules)
        })?;
        control.set_boot(boot);
    }
    Ok(control)
}
