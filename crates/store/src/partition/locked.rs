//! The lock of a partition. If its holder panics, the log is closed.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::time::Duration;

use mainstem_log::partition_dir::TopicPartition;
use parking_lot::MutexGuard;

use super::{NoLog, Partition, State};

/// Time between two looks, of one that waits for the lock, whether it still wants it. Each look costs it its turn among those that
/// wait: they are so rare that others have all had theirs, and more frequent than elections.
const LOCK_LOOK: Duration = Duration::from_millis(200);

/// The state of a partition while it is locked.
pub(super) struct Locked<'a> {
    partition: &'a Partition,
    /// The thread was unwinding already when it took the lock. A panic that came before the lock has not interrupted a change under it.
    was_panicking: bool,
    state: MutexGuard<'a, State>,
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() && !self.was_panicking {
            self.give_up();
        }
    }
}

impl Locked<'_> {
    /// Closes the log when the holder of the lock panics.
    #[cold]
    fn give_up(&mut self) {
        if let Ok(log) = std::mem::replace(&mut self.state.log, Err(NoLog::Offline)) {
            let partition = TopicPartition::new(self.partition.topic.clone(), self.partition.index);
            log.dir().distrust(&partition);
            // It may be half changed: not even what its drop does is to be trusted. Its files stay open.
            std::mem::forget(log);
        }
        self.partition.offline.store(true, Ordering::Release);
        // Another thread ends the waits, since their callbacks may need a lock that is held here.
        self.partition.poisoned.store(true, Ordering::Release);
    }
}

impl Partition {
    /// Locks the state. Where the holder panics the log is closed: half a change must not be built upon.
    pub(super) fn lock(&self) -> Locked<'_> {
        Locked { partition: self, was_panicking: std::thread::panicking(), state: self.state.lock() }
    }

    /// As [`lock`](Self::lock), unless another thread has it.
    pub(super) fn try_lock(&self) -> Option<Locked<'_>> {
        let state = self.state.try_lock()?;
        Some(Locked { partition: self, was_panicking: std::thread::panicking(), state })
    }

    /// As [`lock`](Self::lock), unless it is to be waited for too long: `gives_up` says so, which is asked again and again.
    pub(super) fn lock_unless(&self, gives_up: impl Fn() -> bool) -> Option<Locked<'_>> {
        while !gives_up() {
            if let Some(state) = self.state.try_lock_for(LOCK_LOOK) {
                let locked = Locked { partition: self, was_panicking: std::thread::panicking(), state };
                return (!gives_up()).then_some(locked);
            }
        }
        None
    }

    /// Returns true if there was a panic while the log was in use that was not dealt with yet.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    /// Returns true if there was a panic while the log was in use, of which this is the first to know.
    pub fn take_poisoned(&self) -> bool {
        self.poisoned.swap(false, Ordering::AcqRel)
    }
}
