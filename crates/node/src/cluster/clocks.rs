//! The clocks of the other nodes. What a partition's leader decides by time, such as which records are too old, it decides by its own
//! clock: where clocks differ, what happens depends on who leads. So that is said, on both nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

/// Clocks that differ by more are a fault of the machines.
const DIFFERENCE_MAX_MS: i64 = 10_000;
/// The time between two questions to the other nodes for theirs.
pub(crate) const ASKED_EVERY: Duration = Duration::from_secs(30);

/// The differences between the clocks of other nodes and this one's.
#[derive(Debug, Default)]
pub struct Clocks(Mutex<BTreeMap<i32, i64>>);

/// The time when a node was asked and when it answered, by this node's clock, and the time that it answered: milliseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) asked_ms: i64,
    pub(crate) shown_ms: i64,
    pub(crate) answered_ms: i64,
}

impl Reading {
    /// Milliseconds that the other clock is ahead, at least; negative where it is behind. The question and the answer may have
    /// taken their time.
    fn ahead_ms(self) -> i64 {
        let least = self.shown_ms.saturating_sub(self.answered_ms);
        let most = self.shown_ms.saturating_sub(self.asked_ms);
        0_i64.clamp(least.min(most), most.max(least))
    }
}

impl Clocks {
    /// Notes what a node's clock shows, and says when it begins to differ too much, or no longer does.
    pub(crate) fn note(&self, node: i32, reading: Reading) {
        let ahead_ms = reading.ahead_ms();
        let before_ms = self.0.lock().insert(node, ahead_ms).unwrap_or(0);
        let differs = |ms: i64| ms.unsigned_abs() > DIFFERENCE_MAX_MS.unsigned_abs();
        match (differs(before_ms), differs(ahead_ms)) {
            (false, true) => {
                let side = if ahead_ms > 0 { "ahead of" } else { "behind" };
                let seconds = ahead_ms.unsigned_abs() / 1_000;
                tracing::warn!(
                    node,
                    "the clock of node {node} is {seconds} s {side} this node's: retention and the timestamps of records go by the \
                     clock of the node that leads a partition. Have both machines set their clocks (NTP)"
                );
            }
            (true, false) => tracing::info!(node, "the clock of node {node} agrees with this node's again"),
            _ => {}
        }
    }

    /// Milliseconds that clocks of other nodes are ahead of this one's, by node: those that have answered.
    pub fn ahead_ms(&self) -> BTreeMap<i32, i64> {
        self.0.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ahead_ms(asked_ms: i64, shown_ms: i64, answered_ms: i64) -> i64 {
        Reading { asked_ms, shown_ms, answered_ms }.ahead_ms()
    }

    #[test]
    fn a_difference_is_what_slow_answers_do_not_explain() {
        assert_eq!(ahead_ms(100, 150, 200), 0);
        assert_eq!(ahead_ms(100, 100, 20_100), 0, "it was held up on its way back");
        assert_eq!(ahead_ms(100, 700, 200), 500);
        assert_eq!(ahead_ms(1_000, 700, 1_200), -300);
        // This node's clock was set back meanwhile.
        assert_eq!(ahead_ms(5_000, 4_000, 1_000), 0);
        assert_eq!(ahead_ms(0, i64::MAX, -1), i64::MAX);
    }

    #[test]
    fn the_last_reading_counts() {
        let clocks = Clocks::default();
        let note = |shown_ms| clocks.note(2, Reading { asked_ms: 0, shown_ms, answered_ms: 0 });
        note(20_000);
        note(-30_000);
        clocks.note(3, Reading { asked_ms: 0, shown_ms: 1, answered_ms: 2 });
        assert_eq!(clocks.ahead_ms(), BTreeMap::from([(2, -30_000), (3, 0)]));
    }
}
