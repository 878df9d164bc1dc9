//! Pages of the open segment that are present in this process, ahead of its appenders and behind them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Thread;

use parking_lot::Mutex;

use crate::map::{PIECE_BYTES, Pages};

/// The default of [`Options::resident_bytes`](crate::Options::resident_bytes).
pub(crate) const RESIDENT_BYTES: usize = 4 << 20;

/// Pages are made present this far behind the published end. At half of it the appender asks for more.
pub(crate) const AHEAD_BYTES: usize = 2 << 20;
/// Pages are given back when those beyond the resident ones have become this part of them.
const FORGET_PART: usize = 4;

/// The state that the appenders of one process and the thread that works ahead of them share.
#[derive(Debug)]
pub(crate) struct Ahead {
    /// Appenders keep so many bytes of what they wrote last resident.
    resident_bytes: usize,
    segments: Mutex<Vec<Present>>,
    pub(crate) worker: Mutex<Option<Thread>>,
    pub(crate) is_working: AtomicBool,
}

/// The pages of a mapping of the open segment that are present in this process.
#[derive(Debug, Clone)]
pub(crate) struct Present {
    pub(crate) roll: u32,
    pub(crate) pages: Pages,
    pub(crate) to: Arc<AtomicUsize>,
    pub(crate) forgotten_to: Arc<AtomicUsize>,
}

impl Default for Ahead {
    fn default() -> Ahead {
        Ahead {
            resident_bytes: RESIDENT_BYTES,
            segments: Mutex::default(),
            worker: Mutex::default(),
            is_working: AtomicBool::default(),
        }
    }
}

impl Ahead {
    /// Sets how many bytes of what was written last appenders keep resident.
    pub(crate) fn keep_resident(&mut self, bytes: usize) {
        self.resident_bytes = bytes;
    }

    /// Gives back pages of a mapping that lie far behind `position`.
    pub(crate) fn forget(&self, pages: &Pages, forgotten_to: &AtomicUsize, position: usize) {
        let from = forgotten_to.load(Ordering::Relaxed);
        // Whole pieces: a page that one call ends in would be left by the next one.
        let to = position.saturating_sub(self.resident_bytes) / PIECE_BYTES * PIECE_BYTES;
        let is_much = to > from && to - from >= self.resident_bytes / FORGET_PART;
        if is_much && pages.forget(from..to) {
            forgotten_to.fetch_max(to, Ordering::Relaxed);
        }
    }

    /// Adds a mapping to which this process appends, for as long as it lives.
    pub(crate) fn watch(&self, present: Present) {
        if !present.pages.is_mapped() {
            return;
        }
        let mut segments = self.segments.lock();
        segments.retain(|segment| segment.pages.is_mapped());
        segments.push(present);
    }

    /// Wakes the thread, if there is one.
    pub(crate) fn ask(&self) {
        if self.is_working.load(Ordering::Relaxed)
            && let Some(worker) = &*self.worker.lock()
        {
            worker.unpark();
        }
    }

    /// Makes a piece of pages behind the published end present. Returns the number of present bytes behind it, the smallest of all
    /// mappings; `None` if there was nothing to do.
    pub(crate) fn populate(&self, roll: u32, published: usize) -> Option<usize> {
        let segments: Vec<Present> =
            self.segments.lock().iter().filter(|segment| segment.roll == roll).cloned().collect();
        let mut least = None;
        for segment in segments {
            // Also for an appender that waits for its turn while others append.
            self.forget(&segment.pages, &segment.forgotten_to, published);
            let from = segment.to.load(Ordering::Relaxed).max(published);
            if from >= published + AHEAD_BYTES {
                continue;
            }
            let end = (from + PIECE_BYTES).next_multiple_of(PIECE_BYTES);
            if segment.pages.populate(from..end) {
                segment.to.fetch_max(end, Ordering::Relaxed);
                let ahead = end - published;
                least = Some(least.map_or(ahead, |least: usize| least.min(ahead)));
            }
        }
        least
    }
}
