//! Appending: exclusively without a lock, or shared under the writer lock.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use mainstem_records::{Batch, BatchBuilder, BatchOptions, Header, SingleRecord};

use crate::byte_lock::{Kind, LockFile};
use crate::clock::wall_ms;
use crate::control::lock_bytes;
use crate::error::{QueueError, Result};
use crate::inner::Inner;
use crate::lock::{self, Acquired, Slot};
use crate::writer::{Place, Writer};

/// Appends messages. Each message, and each batch, is seen by readers whole or not at all.
#[derive(Debug)]
pub struct Appender {
    mode: Mode,
    builder: BatchBuilder,
    encoded: Vec<u8>,
    /// The place of a reservation and its bytes, until that is dropped. The next call clears one that was leaked.
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
        let acquired = slot.acquire(&inner.control, inner.options.lock_timeout)?;
        // Only this one finds what another appender leaves when it dies between two appends: an exclusive appender has no
        // word in the lock.
        let repaired = repaired(inner);
        debug_assert!(matches!(acquired, Acquired::InOrder | Acquired::FromDeadHolder));
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
        let acquired = self.slot.acquire(&self.inner.control, self.inner.options.lock_timeout)?;
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
            Acquired::FromDeadHolder => {
                self.writer.repair().inspect_err(|_| self.slot.abandon(&self.inner.control))
            }
            Acquired::InOrder => Ok(()),
        }
    }

    pub(crate) fn unlock(&self) {
        self.slot.release(&self.inner.control);
    }
}

/// Makes a writer, for the holder of the lock, after clearing what a dead one may have left.
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
        // A lock holder must be dead: no other process can have the queue open for appending.
        inner.control.lock().store(0, std::sync::atomic::Ordering::Relaxed);
        Ok(Appender::of(Mode::Exclusive(Exclusive { inner: Arc::clone(inner), lock, writer })))
    }

    fn of(mode: Mode) -> Appender {
        Appender { mode, builder: BatchBuilder::new(options()), encoded: Vec::new(), reserved: None }
    }

    /// Appends a message without key and headers, with the present time; returns its offset.
    ///
    /// # Errors
    /// See [`QueueError`]; then it is not in the queue. This holds for all methods below.
    pub fn append(&mut self, value: impl AsRef<[u8]>) -> Result<i64> {
        self.append_with(None, value.as_ref(), &[], None)
    }

    /// Appends a message. `timestamp` is in ms since 1970, by default the present time.
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

    /// Reserves the place of a message of `len` bytes, to be written directly into the segment. [`Reservation::commit`] publishes it;
    /// without that, readers never see it. In shared mode all other appenders wait meanwhile. If it is leaked ([`std::mem::forget`]),
    /// they wait until this appender is used again or dropped.
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

    /// Collects messages into one batch, which has one CRC and is published as a whole by [`Messages::commit`].
    pub fn batch(&mut self) -> Messages<'_> {
        self.builder.clear();
        Messages { appender: self }
    }

    /// Returns the shared appender, which takes the lock.
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

    /// Clears a reservation that was not committed, and releases the lock. In a child process it belongs to the parent, and stays.
    fn take_back(&mut self) {
        let reserved = self.reserved.take();
        if let Some((place, size)) = reserved.filter(|_| self.is_ours()) {
            self.writer().clear(place, size);
            self.unlock();
        }
    }

    /// Clears a leaked reservation. A child process takes a slot of its own; an exclusive appender stays with the parent.
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
    // The writer stamps the epoch when it places the batch.
    BatchOptions { partition_leader_epoch: 0, ..BatchOptions::default() }
}

/// The place of one message. At first it has zeros or any other bytes, so all of it has to be written.
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
    /// If this process serves queues ([`Queue::serve`](crate::Queue::serve)) and another process has cut the file of the place. Any
    /// other process ends by SIGBUS after such a cut.
    pub fn commit(self) -> i64 {
        let finished = self.appender.writer().finish(&self.layout, self.place, self.timestamp);
        assert!(finished.is_ok(), "{finished:?}");
        self.appender.reserved = None;
        self.appender.unlock();
        self.place.offset
    }

    /// Discards the message, as dropping it does.
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
    /// Adds a message without key and headers, with the present time.
    ///
    /// # Errors
    /// [`QueueError::Build`] if the batch cannot take it; the earlier messages stay.
    pub fn push(&mut self, value: impl AsRef<[u8]>) -> Result<()> {
        self.push_with(None, value.as_ref(), &[], None)
    }

    /// Adds a message. `timestamp` is in ms since 1970, by default the present time.
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

    /// The number of messages.
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
    /// [`QueueError::Build`] if there is none, or an error of [`Appender::append`]; then none of them is in the queue.
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
        assert_eq!(appenders[0].slot.acquire(&inner.control, None).unwrap(), Acquired::FromDeadHolder);
        appenders[0].slot.abandon(&inner.control);
        assert_eq!(appenders[1].append(None, b"2", &[], None).unwrap(), 1);
    }
}
