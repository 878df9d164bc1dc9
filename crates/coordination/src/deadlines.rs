//! Entries in the order of their times, on the monotonic clock. Each coordinator keeps all of its time-outs in one such set,
//! and says in its own `deadlines` when an entry moves.

use std::collections::BTreeSet;
use std::fmt::Debug;

/// Times in milliseconds, each with a key: `K` says enough to find the owner of the entry.
#[derive(Debug)]
pub(crate) struct Deadlines<K> {
    set: BTreeSet<(u64, K)>,
}

impl<K> Default for Deadlines<K> {
    fn default() -> Self {
        Deadlines { set: BTreeSet::new() }
    }
}

impl<K: Ord + Debug> Deadlines<K> {
    /// The time of the earliest entry; none is due before it.
    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.set.first().map(|(at, _)| *at)
    }

    /// Adds an entry.
    pub(crate) fn insert(&mut self, at_ms: u64, key: K) {
        self.set.insert((at_ms, key));
    }

    /// Removes an entry, if it is there.
    pub(crate) fn remove(&mut self, at_ms: u64, key: K) {
        self.set.remove(&(at_ms, key));
    }

    /// Takes the earliest entry that has come up by `now_ms`.
    pub(crate) fn pop(&mut self, now_ms: u64) -> Option<(u64, K)> {
        if self.next_ms()? > now_ms { None } else { self.set.pop_first() }
    }

    /// Asserts that each deadline that is set has its entry, and that there is no other entry. A deadline without an entry would never
    /// fire, and an entry without an owner would concern nothing.
    ///
    /// # Panics
    /// If one is missing or left over.
    pub(crate) fn check(&self, set: impl Iterator<Item = (u64, K)>) {
        assert_eq!(set.collect::<BTreeSet<_>>(), self.set, "deadlines that are set, and entries");
    }

    /// Number of entries, for tests of the bound.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.set.len()
    }
}
