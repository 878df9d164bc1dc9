//! Messages that contradict what a replica has: by a leader or a follower that has lost something, or took it for committed too early.

use super::RaftGroup;
use crate::store::{is_noop, is_stub};
use raft::StateRole;
use raft::eraftpb::{Entry, Message, MessageType};
use std::cmp::Ordering;

/// Index and term of what an append says of its leader's log: of the entry that precedes its own ones, and of these.
fn places(message: &Message) -> impl Iterator<Item = (u64, u64)> {
    let entries = message.get_entries().iter().map(|entry| (entry.index, entry.term));
    std::iter::once((message.index, message.log_term)).chain(entries)
}

impl RaftGroup {
    /// Returns true if a message is of an earlier term.
    pub(in crate::replica) fn is_past(&self, message: &Message) -> bool {
        message.term < self.term()
    }

    /// Returns true if a message says to a leader that entries are on another disk which it has not itself: by a replica that took it for
    /// one that has all that is committed. It is not counted; what the replica has shows when the leader asks again.
    pub(in crate::replica) fn acknowledges_too_much(&self, message: &Message) -> bool {
        let raft = self.raft();
        message.get_msg_type() == MessageType::MsgAppendResponse
            && !message.reject
            && raft.state == StateRole::Leader
            && message.term == raft.term
            && message.index > raft.raft_log.last_index()
    }

    /// Returns true if a heartbeat is of a leader that counts on entries which are not here.
    pub(in crate::replica) fn is_counted_on(&self, message: &Message) -> bool {
        message.get_msg_type() == MessageType::MsgHeartbeat
            && !self.is_past(message)
            && message.commit > self.raft().raft_log.last_index()
    }

    /// Returns true if a leader denies committed entries: the library would end the process.
    pub(in crate::replica) fn is_denied(&self, message: &Message) -> bool {
        let (index, committed) = (self.index(), self.committed());
        match message.get_msg_type() {
            _ if self.is_past(message) => false,
            MessageType::MsgHeartbeat => message.commit > index.last(),
            MessageType::MsgAppend => {
                let differs = |entry: &Entry| {
                    let term = index.term(entry.index);
                    entry.index <= committed && term.is_some_and(|term| term != entry.term)
                };
                self.denies_start(message) || message.get_entries().iter().any(differs)
            }
            _ => false,
        }
    }

    /// Returns true if a leader cannot have the entry that precedes those of this log, which is committed: terms ascend.
    pub(in crate::replica) fn denies_start(&self, message: &Message) -> bool {
        let start = self.start();
        places(message).any(|(index, term)| match index.cmp(&start.index) {
            Ordering::Less => term > start.term,
            Ordering::Equal => term != start.term,
            Ordering::Greater => term < start.term,
        })
    }

    /// The first committed entry that a leader has not, or has another one for.
    pub(in crate::replica) fn first_denied(&self, message: &Message) -> Option<u64> {
        let (index, committed) = (self.index(), self.committed());
        let is_gone = |(at, term): &(u64, u64)| {
            let is_committed = *at > index.start().index && *at <= committed;
            is_committed && index.term(*at) != Some(*term)
        };
        places(message).find(is_gone).map(|(first, _)| first)
    }

    /// Returns true if an append has the log cut, since an entry of it is not the one that is here, or brings an entry with data, which is
    /// synced before anything else.
    pub(in crate::replica) fn waits_for_disk(&self, message: &Message) -> bool {
        let index = self.index();
        let waits = |entry: &Entry| match entry.index <= index.last() {
            true => index.term(entry.index) != Some(entry.term),
            false => !is_stub(entry) && !is_noop(entry),
        };
        message.get_entries().iter().any(waits)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{group, noop};
    use super::*;

    fn append(term: u64, (index, log_term): (u64, u64), entries: &[(u64, u64)]) -> Message {
        let msg_type = MessageType::MsgAppend;
        let mut message = Message { msg_type, term, index, log_term, ..Message::default() };
        let entry = |(index, term): &(u64, u64)| Entry { index: *index, term: *term, ..Entry::default() };
        message.set_entries(entries.iter().map(entry).collect());
        message
    }

    /// Entries 5 of term 2 and 6, 7 of term 3, behind one of term 2; those up to 6 are committed.
    #[test]
    fn a_leader_contradicts_what_is_committed_and_nothing_else() {
        let group = group((4, 2), &[noop(5, 2), noop(6, 3), noop(7, 3)], 6);
        // What precedes its entries, its entries, whether it denies the start, and the first entry that it denies.
        let cases = [
            ((5, 2), [(6, 3), (7, 3)].as_slice(), false, None),
            ((6, 3), &[(7, 4)], false, None),
            ((5, 2), &[(6, 4), (7, 4)], false, Some(6)),
            ((4, 2), &[(5, 3)], false, Some(5)),
            ((4, 1), &[], true, None),
            ((3, 3), &[], true, None),
            ((3, 1), &[(4, 2), (5, 2)], false, None),
        ];
        for (before, entries, denies_start, first_denied) in cases {
            let message = append(4, before, entries);
            let found = (group.denies_start(&message), group.first_denied(&message));
            assert_eq!(found, (denies_start, first_denied), "{before:?} {entries:?}");
            assert_eq!(group.is_denied(&message), denies_start || first_denied.is_some(), "{entries:?}");
            assert!(!group.is_denied(&append(2, before, entries)), "of an earlier term");
        }
        assert!(group.waits_for_disk(&append(4, (6, 3), &[(7, 4)])), "entry 7 is cut off");
        assert!(!group.waits_for_disk(&append(4, (6, 3), &[(7, 3), (8, 4)])));
    }
}
