//! Shortages of free space, descriptors and memory: times at which a replica tries again, and at which a leader looks for another one.

/// A leader that cannot append offers its leadership so often, at most.
const HAND_OFF_MS: u64 = 2_000;

/// After an append that found no descriptor a leader offers its leadership for so long.
const SHORT_MS: u64 = 1_000;

/// A replica that waits for space, descriptors or memory tries again so often.
const RETRY_MS: u64 = 500;

/// The shortages of one replica.
#[derive(Debug, Default)]
pub(super) struct FreeSpace {
    /// The replica could not write what it has to promise, and takes part in nothing.
    is_awaited: bool,
    /// It does not try again before.
    retry_ms: u64,
    /// Until then an append has found no descriptor a moment ago; another leader may have some.
    short_until_ms: u64,
    /// Leadership is not offered again before.
    hand_off_ms: u64,
    /// The replica that leadership was offered to last; 0: none.
    offered_to: u64,
}

impl FreeSpace {
    /// Returns true if the replica takes part in nothing until there is space.
    pub(super) fn is_awaited(&self) -> bool {
        self.is_awaited
    }

    /// Begins to wait.
    pub(super) fn wait(&mut self, now_ms: u64) {
        (self.is_awaited, self.retry_ms) = (true, now_ms + RETRY_MS);
    }

    /// Ends the wait, if it is time to try again and the disk has space. Returns true if it does.
    pub(super) fn try_again(&mut self, is_full: bool, now_ms: u64) -> bool {
        let is_due = self.is_awaited && !is_full && now_ms >= self.retry_ms;
        self.is_awaited &= !is_due;
        is_due
    }

    /// Notes that an append has found no descriptor or memory.
    pub(super) fn note_short(&mut self, now_ms: u64) {
        self.short_until_ms = now_ms + SHORT_MS;
    }

    /// Returns true if a leader is to offer its leadership now: it cannot append, and has not offered it a moment ago.
    pub(super) fn is_hand_off_due(&self, is_full: bool, now_ms: u64) -> bool {
        now_ms >= self.hand_off_ms && (is_full || now_ms < self.short_until_ms)
    }

    /// The replica that leadership was offered to last, and is offered to again when no other one will do; 0: none.
    pub(super) fn offered_to(&self) -> u64 {
        self.offered_to
    }

    /// Notes that leadership is offered to a replica.
    pub(super) fn note_hand_off(&mut self, to: u64, now_ms: u64) {
        (self.hand_off_ms, self.offered_to) = (now_ms + HAND_OFF_MS, to);
    }

    /// Asserts what holds between any two calls.
    pub(super) fn check(&self) {
        assert!(!self.is_awaited || self.retry_ms >= RETRY_MS, "it waits and never tries again: {self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_tried_again_at_intervals_and_not_while_it_is_known_to_be_full() {
        let mut space = FreeSpace::default();
        assert!(!space.try_again(false, 10_000), "nothing waits");
        space.wait(10_000);
        let tried: Vec<u64> = (10_000..12_000)
            .step_by(50)
            .filter(|now_ms| {
                let is_full = *now_ms < 10_700;
                let is_tried = space.try_again(is_full, *now_ms);
                if is_tried && *now_ms < 11_500 {
                    // There was none after all.
                    space.wait(*now_ms);
                }
                space.check();
                is_tried
            })
            .collect();
        assert_eq!(tried, [10_700, 11_200, 11_700]);
        assert!(!space.is_awaited());
    }

    #[test]
    fn a_leader_that_cannot_append_offers_its_leadership_at_intervals() {
        let mut space = FreeSpace::default();
        assert!(!space.is_hand_off_due(false, 0), "nothing is short");
        space.note_short(5_000);
        assert!(space.is_hand_off_due(false, 5_999) && !space.is_hand_off_due(false, 6_000));
        assert!(space.is_hand_off_due(true, 6_000), "a full disk stays full");
        space.note_hand_off(7, 6_000);
        assert_eq!(space.offered_to(), 7);
        assert!(!space.is_hand_off_due(true, 7_999) && space.is_hand_off_due(true, 8_000));
    }
}
