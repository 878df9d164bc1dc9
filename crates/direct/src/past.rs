//! Reads of older events while other instances are sent new ones, paced by the clock: see `pace.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::pace::Pace;

/// The most segments that stay open between two reads of older events, for all readers. Each takes a descriptor. Further readers
/// open their segment for each read.
pub(crate) const OPEN_MAX: usize = 256;

/// A segment that may stay open, which counts among [`OPEN_MAX`].
#[derive(Debug)]
pub(crate) struct OpenSegment(Arc<Past>);

impl Drop for OpenSegment {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The pace that all sessions and replays of a publisher share, across their streams.
#[derive(Debug)]
pub(crate) struct Past {
    began: Instant,
    /// The time when new events were sent last, in ns since `began`; 0 if never.
    sent_live: AtomicU64,
    pace: Mutex<Pace>,
    /// The number of segments that are kept open.
    open: AtomicUsize,
}

impl Default for Past {
    fn default() -> Past {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let (sent_live, pace) = (AtomicU64::new(0), Mutex::new(Pace::new(processors)));
        Past { began: Instant::now(), sent_live, pace, open: AtomicUsize::new(0) }
    }
}

impl Past {
    /// Notes that an instance is sent new events, which were in memory.
    pub(crate) fn sends_live(&self) {
        let ns = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.sent_live.store(ns, Ordering::Relaxed);
    }

    /// Takes a turn to read, if other instances are sent new events; returns when it begins. [`Past::end_turn`] ends
    /// it.
    pub(crate) fn take_turn(&self) -> Option<Instant> {
        let sent_live = match self.sent_live.load(Ordering::Relaxed) {
            0 => None,
            ns => Some(Duration::from_nanos(ns)),
        };
        let begins = self.pace.lock().take_turn(self.began.elapsed(), sent_live)?;
        Some(self.began + begins)
    }

    /// Counts a segment that stays open until the next read; `None` if [`OPEN_MAX`] are.
    pub(crate) fn keep_open(self: &Arc<Past>) -> Option<OpenSegment> {
        let take = |open: usize| (open < OPEN_MAX).then_some(open + 1);
        let kept = self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        kept.ok().map(|_| OpenSegment(self.clone()))
    }

    /// Ends a turn: the time to read and to evaluate, and the bytes that were sent of it.
    pub(crate) fn end_turn(&self, work: Duration, sent: usize) {
        self.pace.lock().end_turn(work, sent);
    }
}
