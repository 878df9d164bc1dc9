//! A hold on votes: a replica that may have lost what it has acknowledged leaves elections to the others for a while.
//!
//! | time | votes | asks for votes | who is elected |
//! |---|---|---|---|
//! | [`VOTE_HOLD_MS`] from the first tick on | no | no | one that has lost nothing, where those are a majority |
//! | [`VOTE_HOLD_MS`] more | yes | no | one that has lost nothing, if its log is no shorter than those that vote for it |
//! | then | yes | yes | a log that is no shorter than those of a majority |

use super::ticks::{ELECTION_TICKS, TICK_MS};
use raft::eraftpb::{Message, MessageType};

/// Each of the two parts of the hold lasts so long: twice the longest time-out, 4 s.
pub(super) const VOTE_HOLD_MS: u64 = 4 * ELECTION_TICKS as u64 * TICK_MS;

/// No time of the hold has passed: it does from the first tick on, when the replica takes part. Its node may open others for long before.
const NOT_BEGUN: u64 = u64::MAX;

/// The hold on a replica's votes.
#[derive(Debug)]
pub(super) struct VoteHold {
    /// It votes from then on; [`NOT_BEGUN`]: the time begins with the first tick.
    votes_from_ms: u64,
    /// It asks for votes from then on; [`NOT_BEGUN`] as above.
    campaigns_from_ms: u64,
}

impl VoteHold {
    /// A hold that begins with the first tick, or none.
    pub(super) fn new(is_held: bool) -> VoteHold {
        let from_ms = if is_held { NOT_BEGUN } else { 0 };
        VoteHold { votes_from_ms: from_ms, campaigns_from_ms: from_ms }
    }

    /// Lets its time begin, if it has not.
    pub(super) fn begin(&mut self, now_ms: u64) {
        if self.votes_from_ms == NOT_BEGUN {
            self.votes_from_ms = now_ms + VOTE_HOLD_MS;
            self.campaigns_from_ms = now_ms + 2 * VOTE_HOLD_MS;
        }
    }

    /// Returns true if the replica gives no vote.
    pub(super) fn holds_votes(&self, now_ms: u64) -> bool {
        now_ms < self.votes_from_ms
    }

    /// Returns true if the replica asks for no votes; it may give its own.
    pub(super) fn holds_campaign(&self, now_ms: u64) -> bool {
        now_ms < self.campaigns_from_ms
    }

    /// Returns true if a message asks for what the replica does not do meanwhile: to vote, or to campaign.
    pub(super) fn refuses(&self, message: &Message, now_ms: u64) -> bool {
        match message.get_msg_type() {
            MessageType::MsgRequestPreVote | MessageType::MsgRequestVote => self.holds_votes(now_ms),
            MessageType::MsgTimeoutNow => self.holds_campaign(now_ms),
            _ => false,
        }
    }

    /// Ends it before its time.
    pub(super) fn end(&mut self) {
        (self.votes_from_ms, self.campaigns_from_ms) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_lasts_from_the_first_tick_on_and_ends_with_votes_first() {
        let mut hold = VoteHold::new(true);
        assert!(hold.holds_votes(1_000_000) && hold.holds_campaign(1_000_000));
        hold.begin(1_000_000);
        hold.begin(1_001_000);
        let votes_ms = 1_000_000 + VOTE_HOLD_MS;
        let campaigns_ms = votes_ms + VOTE_HOLD_MS;
        assert!(hold.holds_votes(votes_ms - 1) && !hold.holds_votes(votes_ms), "{hold:?}");
        assert!(hold.holds_campaign(campaigns_ms - 1) && !hold.holds_campaign(campaigns_ms), "{hold:?}");
        let message = |msg_type| Message { msg_type, ..Message::default() };
        for (kind, until_ms) in [
            (MessageType::MsgRequestPreVote, votes_ms),
            (MessageType::MsgRequestVote, votes_ms),
            (MessageType::MsgTimeoutNow, campaigns_ms),
        ] {
            let message = message(kind);
            assert!(hold.refuses(&message, until_ms - 1) && !hold.refuses(&message, until_ms), "{kind:?}");
        }
        assert!(!hold.refuses(&message(MessageType::MsgAppend), votes_ms - 1));
        hold.end();
        assert!(!hold.holds_votes(0) && !hold.holds_campaign(0));
    }

    #[test]
    fn a_replica_without_a_hold_has_none_with_the_first_tick() {
        let mut hold = VoteHold::new(false);
        hold.begin(1_000);
        assert!(!hold.holds_votes(0) && !hold.holds_campaign(0));
    }
}
