//! Appending: exclusively without a lock, or shared under the writer lock.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use mainstem_records::{Batch, BatchBuilder, BatchOptions, Header, SingleRecord};

use crate::byte_lock::{Kind, LockFile};
use crate::control::lock_bytes;
use crate::error::{QueueError, Result};
use crate::lock::{self, Acquired, Slot};
use crate::queue::Inner;
use crate::writer::{Place, Writer, wall_ms};

/// Appends messages. Each message, and each batch, is seen by readers whole or not at all.
#[derive(Debug)]
pub struct Appender {
    mode: Mode,
    builder: BatchBuilder,
    encoded: Vec<u8>,
    /// The place of a reservation, and its bytes, until that is dropped. One that is leaked is taken back by the next call.
    reserved: Option<(Place, usize)>,
}

#[derive(Debug)]
enum Mode {
    Exclusive(Exclusive),
    Shared(Shared),
}

/// The only appender of a queue.
#[derive(Debug)]
struct Exclusive {
    inner: Arc<Inner>,
    lock: LockFile,
    writer: Writer,
}

/// One of several appenders.
#[derive(Debug)]
pub(crate) struct Shared {
    inner: Arc<Inner>,
    slot: Slot,
    writer: Writer,
}

impl Shared {
    pub(crate) fn new(inner: &Arc<Inner>) -> Result<Shared> {
        inner.check_writable()?;
        let slot = Slot::claim(&inner.directory, &inner.control)?;
        let acquired = slot.acquire(&inner.control, inner.options.writer_patience)?;
        // What another one leaves when it dies between two appends is found by no other: an exclusive appender has no word
        // in the lock.
        let repaired = repaired(inner);
        debug_assert!(matches!(acquired, Acquired::InOrder | Acquired::FromTheDead));
        let writer = repaired.inspect_err(|_| slot.abandon(&inner.control))?;
        slot.release(&inner.control);
        Ok(Shared { inner: Arc::clone(inner), slot, writer })
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.slot.is_ours()
    }

    /// Appends one message under the lock.
    pub(crate) fn append(
        &mut self,
        key: Option<&[u8]>,
        value: &[u8],
        headers: &[Header<'_>],
        timestamp: Option<i64>,
    ) -> Result<i64> {
        self.lock()?;
        // Under the lock, so that timestamps rise with offsets as far as the clock does.
        let now = wall_ms();
        let appended = self.writer.append(key, value, headers, timestamp.unwrap_or(now), now);
        self.unlock();
        appended
    }

    pub(crate) fn lock(&mut self) -> Result<()> {
        let acquired = self.slot.acquire(&self.inner.control, self.inner.options.writer_patience)?;
        self.locked(acquired)
    }

    /// Takes the lock if it is free; returns whether it has it now.
    pub(crate) fn try_lock(&mut self) -> Result<bool> {
        match self.slot.try_acquire(&self.inner.control) {
            true => self.locked(Acquired::InOrder).map(|()| true),
            false => Ok(false),
        }
    }

    pub(crate) fn writer(&mut self) -> &mut Writer {
        &mut self.writer
    }

    fn locked(&mut self, acquired: Acquired) -> Result<()> {
        match acquired {
            Acquired::FromTheDead => {
                self.writer.repair().inspect_err(|_| self.slot.abandon(&self.inner.control))
            }
            Acquired::InOrder => Ok(()),
        }
    }

    pub(crate) fn unlock(&self) {
        self.slot.release(&self.inner.control);
    }
}

/// A writer over what a dead one may have left, for the holder of the lock.
fn repaired(inner: &Arc<Inner>) -> Result<Writer> {
    Writer::repaired(inner.directory.clone(), Arc::clone(&inner.control), inner.rules)
}

impl Appender {
    pub(crate) fn shared(shared: Shared) -> Appender {
        Appender::of(Mode::Shared(shared))
    }

    pub(crate) fn exclusive(inner: &Arc<Inner>) -> Result<Appender> {
        inner.check_writable()?;
        let lock = lock::open_for_locks(&inner.directory, true)?;
        let locked = lock.try_lock(lock_bytes::APPENDING, Kind::Exclusive);
        if !locked.map_err(|error| QueueError::io("locking", &inner.control.path, error))? {
            let reason = "others have it open for appending, and an exclusive appender has to be alone; end them, or append \
                          in shared mode";
            return Err(QueueError::Busy { path: inner.directory.clone(), reason: reason.to_owned() });
        }
        let writer = repaired(inner)?.alone();
        // A holder that died with it is no more: no other process can have it.
        inner.control.lock().store(0, std::sync::atomic::Ordering::Relaxed);
        Ok(Appender::of(Mode::Exclusive(Exclusive { inner: Arc::clone(inner), lock, writer })))
    }

    fn of(mode: Mode) -> Appender {
        Appender { mode, builder: BatchBuilder::new(options()), encoded: Vec::new(), reserved: None }
    }

    /// Appends a message without key and headers, with the time of now; returns its offset.
    ///
    /// # Errors
    /// See [`QueueError`]; then it is not in the queue. So for all that follow.
    pub fn append(&mut self, value: impl AsRef<[u8]>) -> Result<i64> {
        self.append_with(None, value.as_ref(), &[], None)
    }

    /// Appends a message. `timestamp` is in ms since 1970; without one it is now.
    ///
    /// # Errors
    /// As [`Appender::append`].
    pub fn append_with(
        &mut self,
        key: Option<&[u8]>,
        value: &[u8],
        headers: &[Header<'_>],
        timestamp: Option<i64>,
    ) -> Result<i64> {
        self.check_process()?;
        match &mut self.mode {
            Mode::Shared(shared) => shared.append(key, value, headers, timestamp),
            Mode::Exclusive(exclusive) => {
                let now = wall_ms();
                exclusive.writer.append(key, value, headers, timestamp.unwrap_or(now), now)
            }
        }
    }

    /// Reserves the place of a message of `len` bytes, to be written where readers will find it.
    /// [`Reservation::commit`] publishes it; without that, it never was. In shared mode all other appenders wait meanwhile: for one that
    /// is leaked ([`std::mem::forget`]), until this appender is used again or dropped.
    ///
    /// # Errors
    /// As [`Appender::append`].
    pub fn reserve(&mut self, len: usize) -> Result<Reservation<'_>> {
        self.check_process()?;
        let layout = SingleRecord::new(None, len, &[])?;
        let size = layout.size();
        if let Mode::Shared(shared) = &mut self.mode {
            shared.lock()?;
        }
        let now = wall_ms();
        let placed = self.writer().place(size, 1, now);
        match placed {
            Ok(place) if self.writer().check_whole().is_ok() => {
                layout.begin(None, &[], self.writer().bytes(place, size));
                self.reserved = Some((place, size));
                Ok(Reservation { appender: self, layout, place, timestamp: now })
            }
            placed => {
                self.unlock();
                let error = placed.err().map_or_else(|| self.writer().check_whole(), Err);
                Err(error.expect_err("a file was cut, and stays so"))
            }
        }
    }

    /// Collects messages into one batch, which has one CRC and is published at once by [`Messages::commit`].
    pub fn batch(&mut self) -> Messages<'_> {
        self.builder.clear();
        Messages { appender: self }
    }

    /// What appends under the lock, in this process.
    pub(crate) fn as_shared(&mut self) -> Result<&mut Shared> {
        self.check_process()?;
        match &mut self.mode {
            Mode::Shared(shared) => Ok(shared),
            Mode::Exclusive(exclusive) => {
                let reason = "an exclusive appender has no lock to take".to_owned();
                Err(QueueError::Busy { path: exclusive.inner.directory.clone(), reason })
            }
        }
    }

    fn writer(&mut self) -> &mut Writer {
        match &mut self.mode {
            Mode::Exclusive(exclusive) => &mut exclusive.writer,
            Mode::Shared(shared) => &mut shared.writer,
        }
    }

    fn unlock(&mut self) {
        if let Mode::Shared(shared) = &self.mode {
            shared.unlock();
        }
    }

    fn is_ours(&self) -> bool {
        match &self.mode {
            Mode::Shared(shared) => shared.is_ours(),
            Mode::Exclusive(exclusive) => exclusive.lock.is_ours(),
        }
    }

    /// Takes back what was reserved, if it is there still, and gives the lock back. In a child process it is the parent's, and stays.
    fn take_back(&mut self) {
        let reserved = self.reserved.take();
        if let Some((place, size)) = reserved.filter(|_| self.is_ours()) {
            self.writer().clear(place, size);
            self.unlock();
        }
    }

    /// Takes back a reservation that was leaked. A child process takes a slot of its own; an exclusive appender stays with the parent.
    fn check_process(&mut self) -> Result<()> {
        self.take_back();
        match &mut self.mode {
            Mode::Shared(shared) if !shared.is_ours() => {
                *shared = Shared::new(&Arc::clone(&shared.inner))?;
                Ok(())
            }
            Mode::Exclusive(exclusive) if !exclusive.lock.is_ours() => {
                let reason =
                    "the exclusive appender is the parent process's; make one here when that has ended";
                Err(QueueError::Busy { path: exclusive.inner.directory.clone(), reason: reason.to_owned() })
            }
            _ => Ok(()),
        }
    }

    fn append_encoded(&mut self) -> Result<i64> {
        self.encoded.clear();
        self.builder.finish(&mut self.encoded)?;
        self.check_process()?;
        let encoded = std::mem::take(&mut self.encoded);
        let appended = match Batch::split_first(&encoded) {
            Ok((batch, _)) => self.append_whole(&batch),
            Err(error) => unreachable!("a batch that was just built is none: {error}"),
        };
        self.encoded = encoded;
        appended
    }

    fn append_whole(&mut self, batch: &Batch<'_>) -> Result<i64> {
        if let Mode::Shared(shared) = &mut self.mode {
            shared.lock()?;
        }
        let appended = self.writer().append_batch(batch, wall_ms());
        self.unlock();
        appended
    }
}

fn options() -> BatchOptions {
    // The epoch is stamped when the batch has its place.
    BatchOptions { partition_leader_epoch: 0, ..BatchOptions::default() }
}

/// The place of one message, at first filled with zeros or anything else: all of it has to be written.
#[derive(Debug)]
pub struct Reservation<'a> {
    appender: &'a mut Appender,
    layout: SingleRecord,
    place: Place,
    timestamp: i64,
}

impl Reservation<'_> {
    /// Publishes the message; returns its offset.
    ///
    /// # Panics
    /// In a process that serves queues ([`Queue::serve`](crate::Queue::serve)), if another process has cut the file that it was written
    /// to; any other process such a cut ends by SIGBUS.
    pub fn commit(self) -> i64 {
        let finished = self.appender.writer().finish(&self.layout, self.place, self.timestamp);
        assert!(finished.is_ok(), "{finished:?}");
        self.appender.reserved = None;
        self.appender.unlock();
        self.place.offset
    }

    /// Takes the message back, as dropping it does.
    pub fn roll_back(self) {}

    /// The bytes that the reservation takes in its segment.
    fn whole(&self) -> (Place, usize) {
        (self.place, self.layout.size())
    }
}

impl Deref for Reservation<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let (place, _) = self.whole();
        let value = self.layout.value();
        let writer = match &self.appender.mode {
            Mode::Exclusive(exclusive) => &exclusive.writer,
            Mode::Shared(shared) => &shared.writer,
        };
        writer.written(place, value)
    }
}

impl DerefMut for Reservation<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let (place, size) = self.whole();
        let value = self.layout.value();
        &mut self.appender.writer().bytes(place, size)[value]
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.appender.take_back();
    }
}

impl Drop for Appender {
    fn drop(&mut self) {
        self.take_back();
    }
}

/// Messages that become one batch.
#[derive(Debug)]
pub struct Messages<'a> {
    appender: &'a mut Appender,
}

impl Messages<'_> {
    /// Adds a message without key and headers, with the time of now.
    ///
    /// # Errors
    /// [`QueueError::Build`] if the batch cannot take it; those before it stay.
    pub fn push(&mut self, value: impl AsRef<[u8]>) -> Result<()> {
        self.push_with(None, value.as_ref(), &[], None)
    }

    /// Adds a message. `timestamp` is in ms since 1970; without one it is now.
    ///
    /// # Errors
    /// As [`Messages::push`].
    pub fn push_with(
        &mut self,
        key: Option<&[u8]>,
        value: &[u8],
        headers: &[Header<'_>],
        timestamp: Option<i64>,
    ) -> Result<()> {
        let timestamp = timestamp.unwrap_or_else(wall_ms);
        Ok(self.appender.builder.append(timestamp, key, Some(value), headers)?)
    }

    /// How many messages there are.
    pub fn len(&self) -> usize {
        self.appender.builder.record_count() as usize
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Publishes all of them; returns the first one's offset.
    ///
    /// # Errors
    /// [`QueueError::Build`] if there is none, and what [`Appender::append`] has; then none of them is in the queue.
    pub fn commit(self) -> Result<i64> {
        self.appender.append_encoded()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, segment};

    /// Messages would be published behind what is not repaired, at offsets that others have.
    #[test]
    fn what_a_dead_writer_has_left_is_repaired_by_the_next_one_where_this_one_cannot() {
        let dir = tempfile::tempdir().unwrap();
        let queue = Options::new().open(dir.path()).unwrap();
        let inner = &queue.inner;
        let mut appenders = [(); 2].map(|()| Shared::new(inner).unwrap());
        assert_eq!(appenders[0].append(None, b"1", &[], None).unwrap(), 0);
        // It dies under the lock.
        assert!(appenders[0].slot.try_acquire(&inner.control));
        appenders[0].slot.abandon(&inner.control);
        let (log, away) = (segment::path(dir.path(), 0, "log"), dir.path().join("away"));
        std::fs::rename(&log, &away).unwrap();
        appenders[1].append(None, b"2", &[], None).unwrap_err();
        Shared::new(inner).unwrap_err();
        std::fs::rename(&away, &log).unwrap();
        assert_eq!(appenders[0].slot.acquire(&inner.control, None).unwrap(), Acquired::FromTheDead);
        appenders[0].slot.abandon(&inner.control);
        assert_eq!(appenders[1].append(None, b"2", &[], None).unwrap(), 1);
    }
}
