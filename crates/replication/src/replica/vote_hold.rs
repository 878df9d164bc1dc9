//! A hold on votes: a replica that may have lost what it has acknowledged leaves elections to the others for a while.

use super::ticks::{ELECTION_TICKS, TICK_MS};
use raft::eraftpb::{Message, MessageType};

/// The hold lasts so long: twice the longest time-out, 4 s.
pub(super) const VOTE_HOLD_MS: u64 = 4 * ELECTION_TICKS as u64 * TICK_MS;

/// No time of the hold has passed: it does from the first tick on, when the replica takes part. Its node may open others for long before.
const NOT_BEGUN: u64 = u64::MAX;

/// The hold on a replica's votes.
#[derive(Debug)]
pub(super) struct VoteHold {
    /// Until then; [`NOT_BEGUN`]: its time begins with the first tick.
    until_ms: u64,
}

impl VoteHold {
    /// A hold that begins with the first tick, or none.
    pub(super) fn new(is_held: bool) -> VoteHold {
        VoteHold { until_ms: if is_held { NOT_BEGUN } else { 0 } }
    }

    /// Lets its time begin, if it has not.
    pub(super) fn begin(&mut self, now_ms: u64) {
        if self.until_ms == NOT_BEGUN {
            self.until_ms = now_ms + VOTE_HOLD_MS;
        }
    }

    /// Returns true if the replica takes no part in elections.
    pub(super) fn is_held(&self, now_ms: u64) -> bool {
        now_ms < self.until_ms
    }

    /// Returns true if a message asks for what the replica does not do meanwhile: to vote, or to campaign.
    pub(super) fn refuses(&self, message: &Message, now_ms: u64) -> bool {
        let is_of_election = matches!(
            message.get_msg_type(),
            MessageType::MsgRequestPreVote | MessageType::MsgRequestVote | MessageType::MsgTimeoutNow
        );
        is_of_election && self.is_held(now_ms)
    }

    /// Ends it before its time.
    pub(super) fn end(&mut self) {
        self.until_ms = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_lasts_from_the_first_tick_on() {
        let mut hold = VoteHold::new(true);
        assert!(hold.is_held(1_000_000));
        hold.begin(1_000_000);
        hold.begin(1_001_000);
        let end_ms = 1_000_000 + VOTE_HOLD_MS;
        assert!(hold.is_held(end_ms - 1) && !hold.is_held(end_ms), "{hold:?}");
        let message = |msg_type| Message { msg_type, ..Message::default() };
        for kind in [MessageType::MsgRequestPreVote, MessageType::MsgRequestVote, MessageType::MsgTimeoutNow]
        {
            let message = message(kind);
            assert!(hold.refuses(&message, end_ms - 1) && !hold.refuses(&message, end_ms), "{kind:?}");
        }
        assert!(!hold.refuses(&message(MessageType::MsgAppend), end_ms - 1));
        hold.end();
        assert!(!hold.is_held(0));
    }

    #[test]
    fn a_replica_without_a_hold_has_none_with_the_first_tick() {
        let mut hold = VoteHold::new(false);
        hold.begin(1_000);
        assert!(!hold.is_held(0));
    }
}
