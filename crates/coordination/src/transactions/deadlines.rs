//! Every deadline of every transactional id in one ordered set ([`crate::deadlines`]).
//!
//! The owner of a deadline keeps its time in a slot, and moving or cancelling the deadline removes the entry from the set: the set has no
//! stale entries. The handler of an entry that has come up empties the slot.

use std::sync::Arc;

/// The event at a deadline.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// The next search for transactions that have timed out.
    TimeOuts { partition: i32 },
    /// The next search for transactional ids that have expired.
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

/// The deadlines of all transactional ids.
pub(crate) type Deadlines = crate::deadlines::Deadlines<Due>;

impl Deadlines {
    /// Sets or moves the deadline of `slot`.
    pub(crate) fn set(&mut self, slot: &mut Option<u64>, due_ms: u64, due: Due) {
        if let Some(before) = slot.replace(due_ms) {
            self.remove(before, due.clone());
        }
        self.insert(due_ms, due);
    }

    /// Cancels the deadline of `slot`, if it has one.
    pub(crate) fn cancel(&mut self, slot: &mut Option<u64>, due: Due) {
        if let Some(before) = slot.take() {
            self.remove(before, due);
        }
    }
}
