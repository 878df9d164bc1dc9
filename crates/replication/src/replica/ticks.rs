//! Ticks of the library's clock: how many of them pass, and when the next one is due.

/// The library's clock: milliseconds between two ticks.
pub const TICK_MS: u64 = 50;
/// Ticks between two heartbeats: 150 ms.
const HEARTBEAT_TICKS: u64 = 3;
/// Ticks without a leader before a replica may campaign: 1 s, and up to as many more by chance.
pub(super) const ELECTION_TICKS: usize = 20;
/// A quiescent replica gets its ticks in lots of so many: 500 ms.
pub(super) const QUIESCENT_TICKS: u64 = 10;

/// The ticks of one replica.
#[derive(Debug)]
pub(super) struct Ticks {
    /// Time has passed up to here for the library.
    passed_ms: u64,
    /// Nothing was due when it had: the next ticks may come late, and all of them count.
    is_quiescent: bool,
    since_heartbeat: u64,
}

impl Ticks {
    pub(super) fn new(now_ms: u64) -> Ticks {
        Ticks { passed_ms: now_ms, is_quiescent: false, since_heartbeat: 0 }
    }

    /// Returns true if a tick is due.
    pub(super) fn is_due(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.passed_ms) >= TICK_MS
    }

    /// The time of the next tick of a replica that is quiescent or not, and may miss so many then.
    pub(super) fn next_ms(&self, is_quiescent: bool, quiescent_ticks: u64) -> u64 {
        let ticks = if self.is_quiescent && is_quiescent { quiescent_ticks } else { 1 };
        self.passed_ms + ticks * TICK_MS
    }

    /// Takes the ticks that are due. Of those that were missed, one is made up for, or `quiescent_ticks` of a quiescent replica: a process
    /// that was stopped asks before it campaigns.
    pub(super) fn take(&mut self, now_ms: u64, quiescent_ticks: u64) -> u64 {
        let late_ms = now_ms.saturating_sub(self.passed_ms);
        let ticks = if self.is_quiescent { (late_ms / TICK_MS).min(quiescent_ticks) } else { 1 };
        let given_ms = ticks * TICK_MS;
        self.passed_ms = if late_ms < given_ms + TICK_MS { self.passed_ms + given_ms } else { now_ms };
        ticks
    }

    /// Lets all time pass without a tick.
    pub(super) fn skip_to(&mut self, now_ms: u64) {
        (self.passed_ms, self.is_quiescent) = (now_ms, false);
    }

    /// Notes whether the replica is quiescent after its ticks.
    pub(super) fn set_quiescent(&mut self, is_quiescent: bool) {
        self.is_quiescent = is_quiescent;
    }

    /// Counts ticks towards the next heartbeat. Returns true if it is due.
    pub(super) fn is_heartbeat_due(&mut self, ticks: u64) -> bool {
        self.since_heartbeat += ticks;
        let is_due = self.since_heartbeat >= HEARTBEAT_TICKS;
        if is_due {
            self.since_heartbeat = 0;
        }
        is_due
    }

    /// Counts to the next heartbeat from the beginning.
    pub(super) fn restart(&mut self) {
        (self.is_quiescent, self.since_heartbeat) = (false, 0);
    }

    /// Asserts what holds between any two calls.
    pub(super) fn check(&self) {
        assert!(self.since_heartbeat < HEARTBEAT_TICKS, "a heartbeat was missed: {self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_missed_tick_is_made_up_for_or_a_lot_of_a_quiescent_replica() {
        let mut ticks = Ticks::new(1_000);
        assert!(!ticks.is_due(1_049) && ticks.is_due(1_050));
        assert_eq!((ticks.take(1_060, 10), ticks.next_ms(false, 10)), (1, 1_100), "late by less than one");
        assert_eq!((ticks.take(1_500, 10), ticks.next_ms(true, 10)), (1, 1_550), "it was not quiescent");
        ticks.set_quiescent(true);
        assert_eq!((ticks.next_ms(true, 10), ticks.next_ms(false, 10)), (2_000, 1_550));
        assert_eq!((ticks.take(2_010, 10), ticks.next_ms(true, 10)), (10, 2_500));
        assert_eq!((ticks.take(9_000, 10), ticks.next_ms(true, 10)), (10, 9_500), "no more than a lot");
        ticks.skip_to(9_990);
        assert_eq!(ticks.next_ms(true, 10), 10_040);
    }

    #[test]
    fn a_heartbeat_is_due_with_every_third_tick() {
        let mut ticks = Ticks::new(0);
        let due: Vec<bool> = (0..6).map(|_| ticks.is_heartbeat_due(1)).collect();
        assert_eq!(due, [false, false, true, false, false, true]);
        assert!(ticks.is_heartbeat_due(10), "a lot has several");
        assert!(!ticks.is_heartbeat_due(2));
        ticks.restart();
        assert!(!ticks.is_heartbeat_due(2));
        ticks.check();
    }
}
