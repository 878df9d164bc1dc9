//! One budget for the bytes of answers that all connections hold until they are read.
//!
//! Small answers, up to what a connection may have waiting anyway, do not count. A large one takes its part while it is put
//! together and until it is sent. What does not fit is refused, item by item where the API has codes for items; otherwise
//! its connection ends. While something was refused, a peer that does not read loses its connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mainstem_runtime::clock::Clock;

/// Bytes of large answers that may be held at the same time.
pub const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Answers above this size count against the memory for those of all connections.
pub const LARGE_ANSWER_BYTES: usize = 512 << 10;

/// The time after a refusal during which connections that do not read are closed.
const CONTENDED: Duration = Duration::from_secs(5);

/// The budget.
pub struct AnswerMemory {
    limit: u64,
    used: AtomicU64,
    clock: Clock,
    /// Milliseconds of the clock at which something was refused last, plus one; 0: never.
    refused_ms: AtomicU64,
}

impl AnswerMemory {
    /// Creates a budget of this many bytes.
    pub fn new(limit: u64, clock: Clock) -> Arc<Self> {
        let (used, refused_ms) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(AnswerMemory { limit, used, clock, refused_ms })
    }

    /// A part of nothing yet.
    pub fn begin(self: &Arc<Self>) -> AnswerShare {
        AnswerShare { memory: self.clone(), bytes: 0 }
    }

    /// Bytes that are held.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns true if answers were refused lately.
    pub fn is_contended(&self) -> bool {
        let refused_ms = self.refused_ms.load(Ordering::Relaxed);
        refused_ms > 0 && self.clock.mono_ms() < refused_ms + CONTENDED.as_millis() as u64
    }

    fn try_add(&self, more: u64) -> bool {
        self.try_add_some(more, more).is_some()
    }

    /// Adds up to `wanted` bytes, as far as the limit allows, or none if that is less than `least`.
    fn try_add_some(&self, least: u64, wanted: u64) -> Option<u64> {
        let granted =
            |used: u64| Some(wanted.min(self.limit.saturating_sub(used))).filter(|granted| *granted >= least);
        let add = |used: u64| granted(used).map(|granted| used + granted);
        let before = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        if before.is_err() {
            self.refused_ms.store(self.clock.mono_ms() + 1, Ordering::Relaxed);
        }
        before.ok().and_then(granted)
    }
}

/// A part of the budget, given back when dropped.
pub struct AnswerShare {
    memory: Arc<AnswerMemory>,
    bytes: u64,
}

impl AnswerShare {
    /// Takes `more` bytes; returns false, and takes none, if they do not fit.
    pub fn take(&mut self, more: usize) -> bool {
        let taken = self.memory.try_add(more as u64);
        self.bytes += if taken { more as u64 } else { 0 };
        taken
    }

    /// Grows to at least `least` bytes, and up to `wanted` if they fit. Returns the number of bytes that are held; `None`: `least`
    /// does not fit, and nothing is taken.
    pub fn grow(&mut self, least: usize, wanted: usize) -> Option<usize> {
        let more = |bytes: usize| (bytes as u64).saturating_sub(self.bytes);
        if more(least) > 0 {
            self.bytes += self.memory.try_add_some(more(least), more(wanted))?;
        }
        Some(self.bytes as usize)
    }

    /// Takes over the bytes of another share, if there is one.
    pub fn absorb(&mut self, other: Option<AnswerShare>) {
        self.bytes += other.map_or(0, |mut other| std::mem::take(&mut other.bytes));
    }

    /// Holds this many bytes from now on. An answer may be of any size while no other share holds bytes.
    /// Returns false, and changes nothing, if it does not fit.
    pub fn set(&mut self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        if bytes > self.bytes && !self.memory.try_add(bytes - self.bytes) {
            if self.memory.used() > self.bytes {
                return false;
            }
            self.memory.used.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else if bytes < self.bytes {
            self.memory.used.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
        true
    }

    /// Bytes that are held now.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for AnswerShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_and_what_is_read_frees_memory() {
        let memory = AnswerMemory::new(100, Clock::start());
        let (mut one, mut other) = (memory.begin(), memory.begin());
        assert!(one.take(60) && !memory.is_contended());
        assert!(!one.take(41) && one.bytes() == 60 && memory.is_contended());
        assert!(!other.set(50));
        assert!(other.set(40) && memory.used() == 100);
        drop(one);
        assert!(other.set(100) && other.set(10) && memory.used() == 10);
        assert!(other.set(500), "one that is alone may be of any size");
        drop(other);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn a_share_grows_by_the_free_memory() {
        let memory = AnswerMemory::new(100, Clock::start());
        let (mut one, mut other) = (memory.begin(), memory.begin());
        assert_eq!(one.grow(30, 60), Some(60));
        assert_eq!((one.grow(50, 80), memory.used()), (Some(60), 60), "there is enough already");
        assert_eq!(other.grow(10, 60), Some(40), "less than wanted, enough for what is needed");
        assert_eq!((other.grow(41, 60), memory.used(), memory.is_contended()), (None, 100, true));
        one.absorb(Some(other));
        assert_eq!((one.bytes(), memory.used()), (100, 100));
        drop(one);
        assert_eq!(memory.used(), 0);
    }
}
