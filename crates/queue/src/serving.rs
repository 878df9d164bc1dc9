//! A broker beside the processes of a queue: it serves the directory as a partition, one broker at a time.
//!
//! It appends under the writer lock as they do, and only tries the lock where it must not wait ([`Appender::try_lock`]). It
//! reads the files, not the mapping. This crate tells it where a batch is; the broker checks the bytes itself. It sleeps on a
//! word of its own, so that local readers that sleep and wake often do not wake it too.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::sync::atomic::fence;
use std::time::Duration;

use mainstem_records::{Batch, HEADER_BYTES};
use parking_lot::Mutex;
use rustix::thread::futex;

use crate::appender::{Appender, Shared};
use crate::byte_lock::{Kind, LockFile};
use crate::clock::wall_ms;
use crate::control::lock_bytes;
use crate::error::{QueueError, Result};
use crate::lock::{self, timespec};
use crate::queue::Queue;
use crate::tailer::Start;
use crate::words::sleeper;
use crate::{epochs, guard, segment};

/// The most queues that one call of [`wait_any`] can wait for.
pub const WAIT_ANY_MAX: usize = 128;

/// A queue that this process serves as a broker. Until this is dropped, no other process can.
#[derive(Debug)]
pub struct Serving {
    queue: Queue,
    /// Held while the bit of [`sleeper::BROKER`] is set.
    arming: Mutex<()>,
    _lock: LockFile,
}

/// The rules of a queue, fixed when it was made. `None` means never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServedRules {
    /// The size of a segment, in bytes.
    pub segment_bytes: u64,
    /// The age at which the open segment is closed, in ms.
    pub roll_ms: Option<u64>,
    /// The age of its newest message at which a closed segment is deleted, in ms.
    pub retention_ms: Option<u64>,
    /// The total size above which the oldest closed segments are deleted.
    pub retention_bytes: Option<u64>,
    /// True if messages that a named tailer has not read are kept.
    pub keep_for_tailers: bool,
}

/// The place of the batch with an offset, or of the first one after it. Other processes wrote all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// The base offset of its segment.
    pub base_offset: i64,
    /// The segment's file.
    pub path: PathBuf,
    /// The position of a batch at or before the offset.
    pub position: u64,
    /// The readable bytes of the segment.
    pub bytes: u64,
    /// The base offset of the next segment, if this one is closed.
    pub next_segment: Option<i64>,
}

impl Queue {
    /// Makes this process the broker that serves the queue. From then on it survives when another process cuts a mapped file of any queue
    /// ([`Serving::check_whole`]). It installs a handler of SIGBUS, which leaves other faults to the earlier handler.
    ///
    /// # Errors
    /// [`QueueError::Busy`] while another process serves it, [`QueueError::ReadOnly`] without write permission.
    pub fn serve(&self) -> Result<Serving> {
        self.inner.check_writable()?;
        let lock = lock::open_for_locks(self.directory(), true)?;
        let locked = lock.try_lock(lock_bytes::SERVING, Kind::Exclusive);
        if !locked.map_err(|error| QueueError::io("locking", &self.inner.control.path, error))? {
            let reason =
                "another broker serves it already; stop that one, or start this one without the queue";
            return Err(QueueError::Busy { path: self.directory().to_owned(), reason: reason.to_owned() });
        }
        guard::install();
        let serving = Serving { queue: self.clone(), arming: Mutex::default(), _lock: lock };
        // A broker that died may have left the bit set, and nothing else.
        serving.disarm();
        Ok(serving)
    }

    /// The rules that the processes of the queue follow.
    pub fn rules(&self) -> ServedRules {
        let rules = &self.inner.rules;
        let limit = |value: u64| (value != u64::MAX).then_some(value);
        ServedRules {
            segment_bytes: rules.segment_bytes,
            roll_ms: limit(rules.roll_ms),
            retention_ms: limit(rules.retention_ms),
            retention_bytes: limit(rules.retention_bytes),
            keep_for_tailers: rules.keep_for_tailers,
        }
    }

    /// Returns the offset and the timestamp of the newest message with the greatest timestamp; `None` if none has one.
    ///
    /// # Errors
    /// As for reads.
    pub fn newest_timestamp(&self) -> Result<Option<(i64, i64)>> {
        let control = &self.inner.control;
        let (open, _) = control.open_segment();
        let mut newest = control.max_timestamp().load(Acquire);
        for base in segment::list(self.directory())?.into_iter().filter(|base| *base < open) {
            newest = newest.max(segment::newest_timestamp(self.directory(), base)?.unwrap_or(-1));
        }
        self.first_at(newest.max(0))
    }

    /// Returns the offset and the timestamp of the first message with this timestamp or a later one, in ms since 1970.
    ///
    /// # Errors
    /// As for reads.
    pub fn first_at(&self, timestamp: i64) -> Result<Option<(i64, i64)>> {
        let mut reader = self.reader(Start::Time(timestamp))?;
        Ok(reader.read()?.map(|record| (record.offset, record.timestamp)))
    }
}

impl Serving {
    /// The queue.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Checks that the control file is whole. If it was cut, earlier answers of this queue about its ends, its segments and its
    /// syncs may be wrong.
    ///
    /// # Errors
    /// [`QueueError::Cut`].
    pub fn check_whole(&self) -> Result<()> {
        self.queue.inner.control.check_whole()
    }

    /// The topic id of the queue, from `partition.metadata`.
    ///
    /// # Errors
    /// If the file is missing or damaged.
    pub fn topic_id(&self) -> Result<[u8; 16]> {
        let path = self.queue.directory().join("partition.metadata");
        let text = fs::read_to_string(&path).map_err(|error| QueueError::io("reading", &path, error))?;
        let id = text.lines().find_map(|line| line.strip_prefix("topic_id: ")).and_then(decoded_id);
        id.filter(|id| *id != [0; 16]).ok_or_else(|| {
            let why =
                io::Error::other("it names no topic id; restore it, or copy the messages to a new queue");
            QueueError::io("reading", &path, why)
        })
    }

    /// The leader epoch of new batches.
    pub fn leader_epoch(&self) -> i32 {
        self.queue.inner.control.leader_epoch().load(Acquire) as i32
    }

    /// All leader epochs with their first offsets, ascending.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn leader_epochs(&self) -> Result<Vec<(i32, i64)>> {
        epochs::read(self.queue.directory())
    }

    /// Finds the batch that holds an offset.
    ///
    /// # Errors
    /// [`QueueError::OutOfRange`] for an offset that the queue does not have (yet), and errors of reading the
    /// directory.
    pub fn locate(&self, offset: i64) -> Result<Located> {
        let control = &self.queue.inner.control;
        let directory = self.queue.directory();
        loop {
            let (open, published) = control.open_segment();
            let (start, end) = (control.log_start().load(Acquire), control.next_offset());
            if !(start..end).contains(&offset) {
                return Err(QueueError::OutOfRange { offset, start, end });
            }
            if offset >= open {
                let entries = Some(control.index_entries().load(Acquire));
                let position = segment::position_before(directory, open, entries, offset)?;
                if control.end().roll != published.roll {
                    continue;
                }
                return Ok(Located {
                    base_offset: open,
                    path: segment::path(directory, open, "log"),
                    position,
                    bytes: u64::from(published.bytes),
                    next_segment: None,
                });
            }
            let bases = segment::list(directory)?;
            let at = bases.partition_point(|base| *base <= offset);
            let (Some(&base), Some(&next)) =
                (at.checked_sub(1).and_then(|at| bases.get(at)), bases.get(at).filter(|next| **next <= open))
            else {
                return Err(QueueError::OutOfRange {
                    offset,
                    start: bases.first().copied().unwrap_or(end),
                    end,
                });
            };
            let path = segment::path(directory, base, "log");
            let position = segment::position_before(directory, base, None, offset)?;
            match fs::metadata(&path) {
                // Retention has deleted it meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                file => {
                    let bytes = file.map_err(|error| QueueError::io("reading", &path, error))?.len();
                    return Ok(Located {
                        base_offset: base,
                        path,
                        position,
                        bytes,
                        next_segment: Some(next),
                    });
                }
            }
        }
    }

    /// Makes the next append or sync, of any process, change [`Serving::sequence`]. What was published before this call is
    /// seen by a look at [`Queue::ends`] after it.
    pub fn arm(&self) {
        let control = &self.queue.inner.control;
        // Held until appenders are sure to see the bit, so that a thread that finds it set can rely on that.
        let _armed = self.arming.lock();
        if control.sleepers().load(Acquire) & sleeper::BROKER == 0 {
            control.sleepers().fetch_or(sleeper::BROKER, SeqCst);
            fence(SeqCst);
            control.order_sleep();
        } else {
            fence(SeqCst);
        }
    }

    /// Ends what [`Serving::arm`] has begun: this process looks at the ends by itself. An append that has seen the bit still
    /// wakes it.
    pub fn disarm(&self) {
        let control = &self.queue.inner.control;
        if control.sleepers().load(Acquire) & sleeper::BROKER != 0 {
            control.sleepers().fetch_and(!sleeper::BROKER, SeqCst);
        }
    }

    /// The base offset of the open segment, and its readable bytes.
    pub fn published(&self) -> (i64, u64) {
        let (base, end) = self.queue.inner.control.open_segment();
        (base, u64::from(end.bytes))
    }

    /// Changes when an append or a sync has found the broker asleep.
    pub fn sequence(&self) -> u32 {
        self.queue.inner.control.broker_wake_sequence().load(Acquire)
    }

    /// Wakes this process's own waiting thread.
    pub fn notify(&self) {
        let word = self.queue.inner.control.broker_wake_sequence();
        word.fetch_add(1, SeqCst);
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }
}

/// Sleeps until the sequence of one of several queues is not the given one, or for no reason. At most [`WAIT_ANY_MAX`]
/// queues.
///
/// # Errors
/// `Unsupported` if the kernel can wait for one only (Linux before 5.16), and there are more.
pub fn wait_any(queues: &[(&Serving, u32)], timeout: Option<Duration>) -> io::Result<()> {
    use rustix::io::Errno;
    let done = match queues {
        [] => return Ok(()),
        [(queue, seen)] => {
            let word = queue.queue.inner.control.broker_wake_sequence();
            let timeout = timeout.map(timespec);
            futex::wait(word, futex::Flags::empty(), *seen, timeout.as_ref())
        }
        many => wait_many(many, timeout),
    };
    match done {
        // A cut file has no word to sleep on. The next look at it reports that.
        Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT | Errno::FAULT) => Ok(()),
        Err(Errno::NOSYS | Errno::PERM) => Err(io::ErrorKind::Unsupported.into()),
        Err(error) => Err(error.into()),
    }
}

fn wait_many(queues: &[(&Serving, u32)], timeout: Option<Duration>) -> rustix::io::Result<()> {
    use rustix::thread::ClockId;
    let waits: Vec<_> = queues
        .iter()
        .map(|(queue, seen)| {
            let mut wait = futex::Wait::new();
            wait.val = u64::from(*seen);
            wait.uaddr =
                futex::WaitPtr::new(queue.queue.inner.control.broker_wake_sequence().as_ptr().cast());
            wait.flags = futex::WaitFlags::SIZE_U32;
            wait
        })
        .collect();
    // This call takes a point in time, not a duration.
    let until = timeout.map(|timeout| {
        let now = rustix::time::clock_gettime(ClockId::Monotonic);
        let now = Duration::new(now.tv_sec as u64, now.tv_nsec as u32);
        timespec(now + timeout)
    });
    futex::waitv(&waits, futex::WaitvFlags::empty(), until.as_ref(), ClockId::Monotonic).map(drop)
}

/// The writer lock, held.
#[derive(Debug)]
pub struct Locked<'a> {
    shared: &'a mut Shared,
}

impl Appender {
    /// Takes the writer lock if it is free within about the time of an append.
    ///
    /// # Errors
    /// As [`Appender::append`]; [`QueueError::Busy`] for an exclusive appender, which has no lock.
    pub fn try_lock(&mut self) -> Result<Option<Locked<'_>>> {
        let shared = self.as_shared()?;
        // Not `then_some`, which would make and drop a `Locked`, and release a lock that is not held.
        Ok(shared.try_lock()?.then(|| Locked { shared }))
    }

    /// Takes the writer lock; waits as the queue's options say.
    ///
    /// # Errors
    /// As [`Appender::try_lock`].
    pub fn lock(&mut self) -> Result<Locked<'_>> {
        let shared = self.as_shared()?;
        shared.lock()?;
        Ok(Locked { shared })
    }
}

impl Locked<'_> {
    /// Appends the payload of a batch behind the given header, with offset and leader epoch stamped. Returns its first offset.
    ///
    /// # Errors
    /// As [`Appender::append`].
    pub fn append(&mut self, header: &[u8; HEADER_BYTES], batch: &Batch<'_>) -> Result<i64> {
        self.shared.writer().append_parts(header, batch, wall_ms())
    }

    /// Closes the open segment if it is too old, and deletes what the rules of the queue do not keep.
    ///
    /// # Errors
    /// If the next segment cannot be made.
    pub fn maintain(&mut self) -> Result<()> {
        self.shared.writer().maintain(wall_ms())
    }

    /// Moves the start of the queue to `offset`, which has to be an offset of the queue, or its next one.
    pub fn delete_before(&mut self, offset: i64) {
        self.shared.writer().delete_before(offset);
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.shared.unlock();
    }
}

/// 16 bytes in URL-safe base64 without padding, as Kafka writes ids.
fn decoded_id(text: &str) -> Option<[u8; 16]> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'-' => Some(62),
        b'_' => Some(63),
        _ => None,
    };
    let text = text.trim_end();
    if text.len() != 22 {
        return None;
    }
    let mut bits = 0u128;
    for (at, byte) in text.bytes().enumerate() {
        let digit = u128::from(digit(byte)?);
        // The last digit has 2 bits and 4 zeros.
        bits = if at < 21 { bits << 6 | digit } else { bits << 2 | digit >> 4 };
    }
    Some(bits.to_be_bytes())
}
