//! Every deadline of every transactional id in one ordered set, on the monotonic clock.
//!
//! The owner of a deadline keeps its time in a slot, and moving or cancelling it takes the entry out of the set: the set
//! holds nothing that is over.

use std::collections::BTreeSet;
use std::sync::Arc;

/// What happens at a deadline.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// The next look for transactions that have timed out.
    TimeOuts { partition: i32 },
    /// The next look for transactional ids that have expired.
    Expiry { partition: i32 },
    /// The end of a request's wait for the end of a transaction.
    Wait { partition: i32, id: Arc<str> },
    /// Another attempt at markers, or at the record of the end.
    Retry { partition: i32, id: Arc<str> },
}

impl Due {
    /// The partition of `__transaction_state` that the owner belongs to.
    pub(crate) fn partition(&self) -> i32 {
        match *self {
            Due::TimeOuts { partition }
            | Due::Expiry { partition }
            | Due::Wait { partition, .. }
            | Due::Retry { partition, .. } => partition,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    set: BTreeSet<(u64, Due)>,
}

impl Deadlines {
    /// The time of the earliest one.
    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.set.first().map(|(at, _)| *at)
    }

    /// Sets or moves the deadline of `slot`.
    pub(crate) fn set(&mut self, slot: &mut Option<u64>, due_ms: u64, due: Due) {
        if let Some(before) = slot.replace(due_ms) {
            self.set.remove(&(before, due.clone()));
        }
        self.set.insert((due_ms, due));
    }

    /// Cancels the deadline of `slot`, if it has one.
    pub(crate) fn cancel(&mut self, slot: &mut Option<u64>, due: Due) {
        if let Some(before) = slot.take() {
            self.set.remove(&(before, due));
        }
    }

    /// Takes the earliest one that has come up by `now_ms`. Its owner empties the slot.
    pub(crate) fn pop(&mut self, now_ms: u64) -> Option<Due> {
        if self.next_ms()? > now_ms { None } else { self.set.pop_first().map(|(_, due)| due) }
    }

    /// Asserts that each deadline that is set has its entry, and that there is no other entry: one without an entry would
    /// never come, and one without an owner has no one to come to.
    ///
    /// # Panics
    /// If one is missing or left over.
    pub(crate) fn check(&self, set: impl Iterator<Item = (u64, Due)>) {
        assert_eq!(set.collect::<BTreeSet<_>>(), self.set, "deadlines that are set, and entries");
    }

    /// Number of entries, for tests of the bound.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.set.len()
    }
}
