//! A follower's contact with its leader by coalesced heartbeats, which its node gets for all groups of another node at once.

use super::ticks::{QUIESCENT_TICKS, TICK_MS};
use crate::group::ReplicaId;

/// The coalesced heartbeats of a leader, at a follower.
#[derive(Debug, Default)]
pub(super) struct LeaderContact {
    /// The leader whose heartbeats are coalesced, and its term.
    leader: Option<(ReplicaId, u64)>,
    /// The time of the last one.
    last_contact_ms: u64,
    /// One came since the last tick.
    is_new: bool,
}

impl LeaderContact {
    /// Has the heartbeats of a leader coalesced from the one on that came now.
    pub(super) fn begin(&mut self, leader: ReplicaId, term: u64, now_ms: u64) {
        (self.leader, self.last_contact_ms) = (Some((leader, term)), now_ms);
    }

    /// The leader whose heartbeats are coalesced, and its term.
    pub(super) fn leader(&self) -> Option<(ReplicaId, u64)> {
        self.leader
    }

    /// Notes when the last heartbeat came.
    pub(super) fn note(&mut self, at_ms: u64) {
        if self.leader.is_some() && at_ms > self.last_contact_ms {
            (self.last_contact_ms, self.is_new) = (at_ms, true);
        }
    }

    /// Takes the time of the last heartbeat, if one came since this was asked last.
    pub(super) fn take_new(&mut self) -> Option<u64> {
        std::mem::take(&mut self.is_new).then_some(self.last_contact_ms)
    }

    /// Returns true if a heartbeat came so short a time ago that a quiescent follower need not look after its leader.
    pub(super) fn is_recent(&self, now_ms: u64) -> bool {
        self.leader.is_some() && now_ms < self.last_contact_ms + QUIESCENT_TICKS * TICK_MS
    }

    /// Takes heartbeats of no leader for coalesced any more.
    pub(super) fn end(&mut self) {
        (self.leader, self.is_new) = (None, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_counts_once_and_for_its_leader_alone() {
        let mut contact = LeaderContact::default();
        contact.note(500);
        assert_eq!((contact.take_new(), contact.is_recent(500)), (None, false), "no leader's are coalesced");
        contact.begin(ReplicaId::new(2, 1), 7, 1_000);
        assert_eq!(
            (contact.take_new(), contact.is_recent(1_499)),
            (None, true),
            "the first was taken in full"
        );
        contact.note(1_300);
        contact.note(1_200);
        assert_eq!((contact.take_new(), contact.take_new()), (Some(1_300), None));
        assert!(contact.is_recent(1_799) && !contact.is_recent(1_800));
        contact.note(1_900);
        contact.end();
        assert_eq!((contact.take_new(), contact.is_recent(1_900), contact.leader()), (None, false, None));
    }
}
