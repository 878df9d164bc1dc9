//! Every time-out of every group in one ordered set ([`crate::deadlines`]).
//!
//! A heartbeat only moves a time-out into the future, so it rewrites two words in the member and leaves the set alone. The set keeps the
//! earlier time, and then the time-out is queued again at its real one. Cancelling removes the entry, so the set never holds more than one
//! entry per live time-out.

use std::sync::Arc;

/// One time-out's slot in its owner (a member, a group, a partition).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timer {
    /// When it fires, monotonic milliseconds.
    due_ms: u64,
    /// The time of its entry in the set; never later than `due_ms`.
    queued_ms: u64,
}

/// The subject of a time-out: the keys by which its slot is found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// A member's session, or the time by which a pending join must end.
    Session { partition: i32, group: Arc<str>, member: Arc<str> },
    /// The end of the phase in which members (re)join.
    Join { partition: i32, group: Arc<str> },
    /// The end of the phase in which members sync.
    Sync { partition: i32, group: Arc<str> },
    /// The time by which a member of a consumer group must have revoked partitions, or (one of the classic protocol) rejoined.
    Rebalance { partition: i32, group: Arc<str>, member: Arc<str> },
    /// The time by which a member of the classic protocol in a consumer group must sync.
    MemberSync { partition: i32, group: Arc<str>, member: Arc<str> },
    /// The next look for expired offsets.
    Expiry { partition: i32 },
    /// The end of a request's wait for its records.
    Append { partition: i32 },
}

impl Key {
    /// The partition of `__consumer_offsets` that the owner belongs to.
    pub(crate) fn partition(&self) -> i32 {
        match *self {
            Key::Session { partition, .. }
            | Key::Join { partition, .. }
            | Key::Sync { partition, .. }
            | Key::Rebalance { partition, .. }
            | Key::MemberSync { partition, .. }
            | Key::Expiry { partition }
            | Key::Append { partition } => partition,
        }
    }
}

/// The state of a slot whose entry has come up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fired {
    /// The time-out is over; the slot is empty now.
    Now,
    /// It was cancelled or moved since.
    NotYet,
}

/// The time-outs of all groups.
pub(crate) type Deadlines = crate::deadlines::Deadlines<Key>;

impl Deadlines {
    /// Sets or moves the time-out of `slot`.
    pub(crate) fn set(&mut self, slot: &mut Option<Timer>, due_ms: u64, key: impl FnOnce() -> Key) {
        match slot {
            Some(timer) if timer.queued_ms <= due_ms => timer.due_ms = due_ms,
            _ => {
                let key = key();
                if let Some(timer) = slot.take() {
                    self.remove(timer.queued_ms, key.clone());
                }
                self.insert(due_ms, key);
                *slot = Some(Timer { due_ms, queued_ms: due_ms });
            }
        }
    }

    /// Cancels the time-out of `slot`, if it has one.
    pub(crate) fn cancel(&mut self, slot: &mut Option<Timer>, key: impl FnOnce() -> Key) {
        if let Some(timer) = slot.take() {
            self.remove(timer.queued_ms, key());
        }
    }

    /// Decides whether the popped entry fires its slot; if the time-out was moved, its entry is queued again.
    pub(crate) fn fire(&mut self, slot: &mut Option<Timer>, popped: (u64, &Key), now_ms: u64) -> Fired {
        match slot {
            Some(timer) if timer.queued_ms == popped.0 => {
                if timer.due_ms <= now_ms {
                    *slot = None;
                    return Fired::Now;
                }
                timer.queued_ms = timer.due_ms;
                self.insert(timer.due_ms, popped.1.clone());
                Fired::NotYet
            }
            _ => Fired::NotYet,
        }
    }

    /// Asserts that each time-out that is set has its entry, and that there is no other entry.
    ///
    /// # Panics
    /// If one is missing, or left over, or would come up late.
    pub(crate) fn check_timers(&self, set: impl Iterator<Item = (Timer, Key)>) {
        self.check(set.map(|(timer, key)| {
            assert!(timer.queued_ms <= timer.due_ms, "{key:?} comes up late: {timer:?}");
            (timer.queued_ms, key)
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::Expiry { partition: 0 }
    }

    #[test]
    fn a_time_out_moved_later_fires_once_at_its_last_time() {
        let (mut deadlines, mut slot) = (Deadlines::default(), None);
        deadlines.set(&mut slot, 10, key);
        for due in 11..=30 {
            deadlines.set(&mut slot, due, key);
        }
        assert_eq!((deadlines.len(), deadlines.next_ms()), (1, Some(10)));
        let (at, popped) = deadlines.pop(29).expect("the entry at 10 is up");
        assert_eq!(deadlines.fire(&mut slot, (at, &popped), 29), Fired::NotYet);
        assert_eq!(deadlines.pop(29), None);
        let (at, popped) = deadlines.pop(30).expect("queued again at 30");
        assert_eq!(deadlines.fire(&mut slot, (at, &popped), 30), Fired::Now);
        assert_eq!((slot, deadlines.len()), (None, 0));
    }

    #[test]
    fn a_time_out_moved_earlier_or_cancelled_leaves_nothing_behind() {
        let (mut deadlines, mut slot) = (Deadlines::default(), None);
        deadlines.set(&mut slot, 30, key);
        deadlines.set(&mut slot, 10, key);
        assert_eq!((deadlines.len(), deadlines.next_ms()), (1, Some(10)));
        deadlines.cancel(&mut slot, key);
        deadlines.cancel(&mut slot, key);
        assert_eq!((slot, deadlines.len(), deadlines.pop(u64::MAX)), (None, 0, None));
    }
}
