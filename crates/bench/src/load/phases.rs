//! State that the threads of one load share: the measured window, and the signal to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use anyhow::Result;

use crate::clock;

/// A count or an instant that is not known yet.
const UNKNOWN: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Phases {
    window_begin_ns: AtomicU64,
    window_end_ns: AtomicU64,
    stopped: AtomicBool,
    abandoned: AtomicBool,
    /// Records acknowledged to all producers together, so far.
    acked: Arc<AtomicU64>,
    /// Records consumed by all consumers together.
    consumed: AtomicU64,
    /// Records produced by all producers together, once they have stopped.
    expected: AtomicU64,
}

impl Phases {
    /// Makes the phases of a load. Acknowledgements are counted in `acked`, which others may observe.
    pub(crate) fn new(acked: Arc<AtomicU64>) -> Self {
        Self {
            window_begin_ns: AtomicU64::new(UNKNOWN),
            window_end_ns: AtomicU64::new(UNKNOWN),
            stopped: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            acked,
            consumed: AtomicU64::new(0),
            expected: AtomicU64::new(UNKNOWN),
        }
    }

    pub(crate) fn begin_window(&self) -> u64 {
        let now = clock::now_ns();
        self.window_begin_ns.store(now, SeqCst);
        now
    }

    pub(crate) fn end_window(&self) -> u64 {
        let now = clock::now_ns();
        self.window_end_ns.store(now, SeqCst);
        now
    }

    /// Returns true if a past instant is in the window, as far as it has begun and ended.
    pub(crate) fn window_contains(&self, ns: u64) -> bool {
        self.window_begin_ns.load(SeqCst) <= ns && ns < self.window_end_ns.load(SeqCst)
    }

    /// Ends the producing.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, SeqCst);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(SeqCst)
    }

    /// Ends the consuming too, whatever is missing: a part of the load has failed.
    pub(crate) fn abandon(&self) {
        self.stop();
        self.abandoned.store(true, SeqCst);
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(SeqCst)
    }

    /// Tells the consumers how many records there are in all.
    pub(crate) fn expect(&self, records: u64) {
        self.expected.store(records, SeqCst);
    }

    pub(crate) fn add_acked(&self, records: u64) {
        self.acked.fetch_add(records, SeqCst);
    }

    pub(crate) fn add_consumed(&self, records: u64) {
        self.consumed.fetch_add(records, SeqCst);
    }

    /// Returns true if the producers have stopped and all that they sent was consumed.
    pub(crate) fn is_drained(&self) -> bool {
        self.consumed.load(SeqCst) >= self.expected.load(SeqCst)
    }

    /// Passes a thread's result on, and ends the load if it failed.
    pub(crate) fn guard<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|_| self.abandon())
    }
}
