//! The writer lock of processes that append together: a word in the control file that no death leaves locked for ever.
//!
//! The word names the slot of its holder and the number of times that the slot was taken. A process holds a kernel lock on its
//! slot's byte for as long as it lives. Taking and releasing the free lock is one atomic operation each, without a system
//! call. A process that waits longer than [`PROBE`] checks that the holder's byte is still locked. If not, the holder is dead.
//! The waiter replaces the word by its own, and first repairs what the dead one left.

use std::fs::File;
use std::path::Path;
use std::process;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::byte_lock::{Kind, LockFile};
use crate::control::{Control, FILE, SLOTS, lock_bytes};
use crate::error::{QueueError, Result};
use crate::protocol::{self, CONTENDED, Shared};
pub(crate) use crate::protocol::{Acquired, timespec};

/// The wait after which a waiter checks that the holder lives.
const PROBE: Duration = Duration::from_millis(5);
const SLOT_BITS: u32 = 10;
/// The word of a holder that is dead, by the number of a slot that does not exist.
const ABANDONED: u32 = (1 << SLOT_BITS) - 1;
const GENERATION_MASK: u32 = (1 << (31 - SLOT_BITS)) - 1;

/// The identity under which a process takes the lock.
#[derive(Debug)]
pub(crate) struct Slot {
    file: LockFile,
    index: usize,
    word: u32,
}

/// Opens the control file once more, since the locks need an open file of their own.
pub(crate) fn open_for_locks(directory: &Path, is_writable: bool) -> Result<LockFile> {
    let path = directory.join(FILE);
    let file = File::options().read(true).write(is_writable).open(&path);
    Ok(LockFile::new(file.map_err(|error| QueueError::io("opening", &path, error))?))
}

impl Slot {
    /// Takes a slot that no living process has.
    ///
    /// # Errors
    /// [`QueueError::Busy`] if an exclusive appender or too many processes have the queue open for appending.
    pub(crate) fn claim(directory: &Path, control: &Control) -> Result<Slot> {
        let file = open_for_locks(directory, true)?;
        let failed = |error| QueueError::io("locking", &control.path, error);
        let busy = |reason: &str| QueueError::Busy { path: directory.to_owned(), reason: reason.to_owned() };
        if !file.try_lock(lock_bytes::APPENDING, Kind::Shared).map_err(failed)? {
            return Err(busy(
                "another process appends exclusively; end it, or have it append in shared mode",
            ));
        }
        for index in 0..SLOTS {
            if file.try_lock(lock_bytes::SLOTS + index as u64, Kind::Exclusive).map_err(failed)? {
                let generation =
                    control.slot_generation(index).fetch_add(1, Ordering::AcqRel).wrapping_add(1);
                control.slot_pid(index).store(process::id(), Ordering::Relaxed);
                let word = (index as u32 + 1) | (generation & GENERATION_MASK) << SLOT_BITS;
                return Ok(Slot { file, index, word });
            }
        }
        Err(busy("256 processes have it open for appending; end one of them"))
    }

    /// Returns false in a child of the process that claimed the slot.
    pub(crate) fn is_ours(&self) -> bool {
        self.file.is_ours()
    }

    /// Takes the lock; waits for a living holder.
    ///
    /// # Errors
    /// [`QueueError::WriterBlocked`] after `timeout`; without one it waits for ever.
    pub(crate) fn acquire(&self, control: &Control, timeout: Option<Duration>) -> Result<Acquired> {
        if self.try_acquire(control) {
            return Ok(Acquired::InOrder);
        }
        let begin = Instant::now();
        protocol::wait_for_lock::<Shared, QueueError>(control.lock(), self.word, PROBE, |word| {
            if self.is_dead(control, word)? {
                return Ok(true);
            }
            match timeout.is_some_and(|timeout| begin.elapsed() >= timeout) {
                true => Err(blocked(control, word)),
                false => Ok(false),
            }
        })
    }

    /// Takes the lock if it is free within about the time of an append; returns true if it has it now.
    pub(crate) fn try_acquire(&self, control: &Control) -> bool {
        protocol::try_acquire::<Shared>(control.lock(), self.word)
    }

    /// Returns true if the process that took the lock with this word is dead.
    fn is_dead(&self, control: &Control, word: u32) -> Result<bool> {
        let slot = (word & ((1 << SLOT_BITS) - 1)) as usize;
        let Some(slot) = slot.checked_sub(1).filter(|slot| *slot < SLOTS) else { return Ok(true) };
        let generation = (word & !CONTENDED) >> SLOT_BITS;
        let now = control.slot_generation(slot).load(Ordering::Acquire) & GENERATION_MASK;
        if now != generation {
            // Another process has the slot, so the byte was free in between.
            return Ok(true);
        }
        if slot == self.index {
            return Ok(false);
        }
        let locked = self.file.is_locked_elsewhere(lock_bytes::SLOTS + slot as u64);
        Ok(!locked.map_err(|error| QueueError::io("locking", &control.path, error))?)
    }

    /// Leaves the lock as a process that dies with it: the next holder repairs what this one could not.
    pub(crate) fn abandon(&self, control: &Control) {
        control.lock().store(ABANDONED, Ordering::Release);
    }

    /// Releases the lock.
    pub(crate) fn release(&self, control: &Control) {
        protocol::release::<Shared>(control.lock());
    }
}

fn blocked(control: &Control, word: u32) -> QueueError {
    let path = control.path.parent().unwrap_or(&control.path).to_owned();
    let slot = (word & ((1 << SLOT_BITS) - 1)) as usize;
    let pid = control.slot_pid(slot.clamp(1, SLOTS) - 1).load(Ordering::Relaxed);
    QueueError::WriterBlocked { path, pid }
}
