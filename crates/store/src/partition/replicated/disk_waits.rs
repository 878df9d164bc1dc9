//! Waits for the disk with the partition locked. A link hears for all groups that their leaders live, so that it must not wait for a disk
//! that hangs: it drops messages for the partition then, as a network does, and they are sent again.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

/// The waits for the disk of one partition. They are begun and ended under its lock.
#[derive(Debug, Default)]
pub(super) struct DiskWaits {
    /// A message whose taking waits for the disk is with another thread, or on its way there.
    has_step: AtomicBool,
    /// The leader proposes an entry, which the journal must have on disk before another one follows. Mostly this takes less than the time
    /// until a dropped answer is sent again.
    is_proposing: AtomicBool,
    /// A link has waited for that in vain.
    is_slow: AtomicBool,
}

impl DiskWaits {
    /// A message is given to a thread that may wait for the disk.
    pub(super) fn begin_step(&self) {
        self.has_step.store(true, Ordering::Release);
    }

    /// That message was taken.
    pub(super) fn end_step(&self) {
        self.has_step.store(false, Ordering::Release);
    }

    /// The leader proposes an entry until the returned value is dropped.
    pub(super) fn begin_proposal(&self) -> Proposal<'_> {
        self.is_slow.store(false, Ordering::Release);
        self.is_proposing.store(true, Ordering::Release);
        Proposal(self)
    }

    /// A condition for one that wants the lock, asked before each part of its wait and when it has the lock: true if it is to do without.
    pub(super) fn gives_up(&self) -> impl Fn() -> bool {
        let has_waited = Cell::new(false);
        move || {
            if has_waited.replace(true) && self.is_proposing.load(Ordering::Acquire) {
                self.is_slow.store(true, Ordering::Release);
            }
            // A link that had the processor taken away may call a proposal slow that has ended.
            let is_slow = self.is_proposing.load(Ordering::Acquire) && self.is_slow.load(Ordering::Acquire);
            is_slow || self.has_step.load(Ordering::Acquire)
        }
    }
}

/// A proposal that is under way.
pub(super) struct Proposal<'a>(&'a DiskWaits);

impl Drop for Proposal<'_> {
    fn drop(&mut self) {
        self.0.is_proposing.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_waits_for_a_proposal_once_and_for_a_step_never() {
        let waits = DiskWaits::default();
        let looks = |of: &DiskWaits| {
            let gives_up = of.gives_up();
            [gives_up(), gives_up()]
        };
        assert_eq!(looks(&waits), [false, false]);
        waits.begin_step();
        assert_eq!(looks(&waits), [true, true]);
        waits.end_step();
        let proposal = waits.begin_proposal();
        assert_eq!(looks(&waits), [false, true], "it looks again when it has waited");
        assert_eq!(looks(&waits), [true, true], "the next one does not wait");
        drop(proposal);
        assert_eq!(looks(&waits), [false, false]);
        // By a link that saw the proposal before it ended.
        waits.is_slow.store(true, Ordering::Release);
        assert_eq!(looks(&waits), [false, false]);
        let _next = waits.begin_proposal();
        assert_eq!(looks(&waits), [false, true]);
    }
}
