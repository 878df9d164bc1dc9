//! A condition that threads wait for.

use std::time::Duration;
#[cfg(feature = "sim")]
use std::time::Instant;

use parking_lot::MutexGuard;

#[cfg(feature = "sim")]
use crate::schedule::{self, Waiter};

/// A condition that threads wait for with a lock, as [`parking_lot::Condvar`].
#[derive(Default)]
pub struct Condvar {
    system: parking_lot::Condvar,
    /// Threads of schedules that wait, the first one in front.
    #[cfg(feature = "sim")]
    waiters: parking_lot::Mutex<std::collections::VecDeque<Waiter>>,
}

impl std::fmt::Debug for Condvar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Condvar").finish_non_exhaustive()
    }
}

impl Condvar {
    /// A condition that no thread waits for.
    pub fn new() -> Condvar {
        Condvar::default()
    }

    /// Gives the lock back while it waits for a notification. It may return without one.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        #[cfg(feature = "sim")]
        if self.wait_for_turn(guard, |_| None).is_some() {
            return;
        }
        self.system.wait(guard);
    }

    /// The same with a timeout. Returns true if it is over.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) -> bool {
        #[cfg(feature = "sim")]
        if let Some(has_timed_out) = self.wait_for_turn(guard, |now| Some(now + time)) {
            return has_timed_out;
        }
        self.system.wait_for(guard, time).timed_out()
    }

    /// Notifies one thread that waits.
    pub fn notify_one(&self) {
        #[cfg(feature = "sim")]
        loop {
            let Some(waiter) = self.waiters.lock().pop_front() else { break };
            if waiter.wake() {
                return;
            }
        }
        self.system.notify_one();
    }

    /// Notifies all threads that wait.
    pub fn notify_all(&self) {
        #[cfg(feature = "sim")]
        std::mem::take(&mut *self.waiters.lock()).into_iter().for_each(|waiter| _ = waiter.wake());
        self.system.notify_all();
    }

    /// Waits on a thread of a schedule. Returns true if the time is over; `None` on another thread, where nothing was waited for.
    #[cfg(feature = "sim")]
    fn wait_for_turn<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        until: impl FnOnce(Instant) -> Option<Instant>,
    ) -> Option<bool> {
        let turn = schedule::current()?;
        let until = until(turn.clock().instant());
        let wait = || turn.wait(until, |waiter| self.waiters.lock().push_back(waiter));
        Some(MutexGuard::unlocked(guard, wait))
    }
}
