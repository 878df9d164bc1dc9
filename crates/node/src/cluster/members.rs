//! Heartbeats of nodes to the metadata leader: as the leader sees them, and when this node has to send one.

use std::collections::BTreeMap;

/// This node looks at the others every 100 ms. Time beyond this between two looks counts as a pause of the process.
const LOOKS_APART_MAX_MS: u64 = 1_000;

/// Time of the last heartbeat of a node that has said it leaves.
const LEFT: u64 = 0;

/// Time of the last heartbeat of each node, in monotonic milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Members {
    seen_ms: BTreeMap<i32, u64>,
    /// Time when this node began to lead; it got no heartbeats before.
    since_ms: u64,
    /// The last look.
    looked_ms: u64,
}

impl Members {
    /// The node leads from now on. Each node has the whole time-out from here.
    pub(crate) fn begin(&mut self, now_ms: u64) {
        self.seen_ms.clear();
        self.since_ms = now_ms;
        self.looked_ms = now_ms;
    }

    /// Prepares a check for silent nodes. Time in which this process was paused or got no CPU does not count: heartbeats may wait
    /// to be read since then.
    pub(crate) fn look(&mut self, now_ms: u64) {
        let missed_ms = now_ms.saturating_sub(self.looked_ms).saturating_sub(LOOKS_APART_MAX_MS);
        self.looked_ms = now_ms;
        let later = |ms: u64| ms.saturating_add(missed_ms).min(now_ms);
        self.since_ms = later(self.since_ms);
        self.seen_ms.values_mut().filter(|ms| **ms != LEFT).for_each(|ms| *ms = later(*ms));
    }

    /// Takes note of a heartbeat of a node.
    pub(crate) fn seen(&mut self, node: i32, now_ms: u64) {
        self.seen_ms.insert(node, now_ms);
    }

    /// Takes note that a node leaves: it counts as silent from now on.
    pub(crate) fn left(&mut self, node: i32) {
        self.seen_ms.insert(node, LEFT);
    }

    /// Returns true if a node has sent no heartbeat for longer than `timeout_ms`.
    pub(crate) fn is_silent(&self, node: i32, now_ms: u64, timeout_ms: u64) -> bool {
        let last_ms = self.seen_ms.get(&node).copied().unwrap_or(self.since_ms);
        now_ms.saturating_sub(last_ms) > timeout_ms
    }
}

/// Looks in a row at which no metadata leader was known, after which this node counts as cut off: 5 s, longer than elections take. Looks
/// are counted and not time, since a node that was paused could receive nothing meanwhile.
const LOOKS_ALONE: u32 = 50;

/// Detects that this node is cut off from the metadata leader: counts checks in a row at which none was known.
#[derive(Debug, Default)]
pub(crate) struct LeaderlessLooks(u32);

impl LeaderlessLooks {
    /// Takes one look, 100 ms after the last one or later. Returns whether the node counts as cut off.
    pub(crate) fn look(&mut self, knows_leader: bool) -> bool {
        self.0 = if knows_leader { 0 } else { (self.0 + 1).min(LOOKS_ALONE) };
        self.0 == LOOKS_ALONE
    }
}

/// Schedule of this node's heartbeats to the metadata leader.
#[derive(Debug, Default)]
pub(crate) struct HeartbeatSchedule {
    /// To whom the last one went, and when, in monotonic milliseconds.
    last: Option<(i32, u64)>,
}

impl HeartbeatSchedule {
    /// Returns true if a heartbeat to the metadata leader is due: an interval after the last one, and immediately to a new leader,
    /// since its predecessor may have fenced this node. A heartbeat that is due counts as sent.
    pub(crate) fn is_due(&mut self, leader: i32, now_ms: u64, interval_ms: u64) -> bool {
        let is_due =
            self.last.is_none_or(|(to, at_ms)| to != leader || now_ms.saturating_sub(at_ms) >= interval_ms);
        if is_due {
            self.last = Some((leader, now_ms));
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_due_at_intervals_and_at_once_to_another_leader() {
        let mut schedule = HeartbeatSchedule::default();
        assert!(schedule.is_due(1, 5_000, 2_000) && !schedule.is_due(1, 6_999, 2_000));
        assert!(schedule.is_due(1, 7_000, 2_000) && !schedule.is_due(1, 7_001, 2_000));
        assert!(schedule.is_due(2, 7_002, 2_000) && !schedule.is_due(2, 9_001, 2_000));
        assert!(schedule.is_due(2, 9_002, 2_000));
    }

    #[test]
    fn time_in_which_the_leader_stood_still_is_not_silence() {
        let mut members = Members::default();
        members.begin(0);
        members.look(100);
        members.seen(2, 100);
        members.look(200);
        members.left(3);
        members.look(60_200);
        assert!(
            !members.is_silent(1, 60_200, 3_000),
            "no heartbeat came since the beginning, 1.2 s ago for the leader"
        );
        assert!(!members.is_silent(2, 60_200, 3_000) && members.is_silent(3, 60_200, 3_000));
        for now_ms in (60_300..=62_100).step_by(100) {
            members.look(now_ms);
            assert!(!members.is_silent(2, now_ms, 3_000), "{now_ms}");
        }
        members.look(62_200);
        assert!(
            members.is_silent(2, 62_200, 3_000),
            "it has been silent for 3.1 s in which the leader could receive heartbeats"
        );
    }

    #[test]
    fn nodes_are_silent_after_the_time_out() {
        let mut members = Members::default();
        members.begin(1_000);
        assert!(!members.is_silent(2, 10_000, 9_000) && members.is_silent(2, 10_001, 9_000));
        members.seen(2, 10_001);
        assert!(!members.is_silent(2, 19_001, 9_000) && members.is_silent(2, 19_002, 9_000));
        members.begin(20_000);
        assert!(!members.is_silent(2, 29_000, 9_000), "a new leader has not listened before");
        members.left(2);
        assert!(members.is_silent(2, 20_000, 9_000));
    }

    #[test]
    fn who_knows_of_no_leader_for_long_is_cut_off() {
        let mut looks = LeaderlessLooks::default();
        assert!((1..LOOKS_ALONE).all(|_| !looks.look(false)), "an election takes its time");
        assert!(looks.look(false) && looks.look(false));
        assert!(!looks.look(true) && !looks.look(false), "the count restarts");
    }
}
