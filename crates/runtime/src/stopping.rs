//! The broker's way to an end, which every task can see.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Raised once.
#[derive(Default)]
pub struct Stopping {
    raised: AtomicBool,
    notify: Notify,
}

impl Stopping {
    /// Begins the stop, and notifies all that wait for it.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        self.notify.notify_waiters();
    }

    /// Returns true if the stop has begun.
    pub fn is_stopping(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    /// Resolves when it comes. A task makes this first and looks at [`Self::is_stopping`] then, so that it cannot
    /// miss it.
    pub fn notified(&self) -> Notified<'_> {
        self.notify.notified()
    }
}
