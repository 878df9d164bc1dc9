//! Writes of a replica that wait for the disk: the library's Readys in their order, and the messages that must not leave
//! before what they promise is durable.

use raft::eraftpb::{Message, MessageType};
use std::collections::VecDeque;

/// Readys that wait each for itself; what comes then joins the last one, so that a leader whose disk hangs does not gather
/// them without end.
const WAITING_MAX: usize = 1_024;

/// A Ready whose writes are not known to be durable.
#[derive(Debug)]
struct Waiting {
    number: u64,
    /// It has a term or a vote.
    has_vote: bool,
    /// The journal has to be durable up to here.
    journal_upto: u64,
    /// The log has to be durable up to here.
    log_upto: i64,
    messages: Vec<Message>,
    /// Index and term of the last entry that is persisted then, where no Ready of the library says so.
    entry: Option<(u64, u64)>,
}

/// The news of what is durable, for the library.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    /// The number of the last Ready, from the first on, whose writes are durable.
    pub(crate) number: Option<u64>,
    /// Index and term of an entry up to which all is, where no Ready says so.
    pub(crate) entry: Option<(u64, u64)>,
}

/// The writes of one Ready.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writes {
    pub(crate) number: u64,
    pub(crate) has_vote: bool,
    pub(crate) journal_upto: u64,
    pub(crate) log_upto: i64,
}

/// The positions up to which journal and log are durable.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Durable {
    pub(crate) journal: u64,
    /// The end of a log whose writes count as persisted (`write.caching`).
    pub(crate) log: i64,
}

/// Readys that wait for the disk.
#[derive(Debug, Default)]
pub(crate) struct Unsynced {
    waiting: VecDeque<Waiting>,
}

impl Unsynced {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns true if a term or a vote waits, and with it what is said in that term.
    pub(crate) fn has_vote(&self) -> bool {
        self.waiting.iter().any(|waiting| waiting.has_vote)
    }

    /// The position up to which the journal has to be durable for all that waits.
    pub(crate) fn journal_upto(&self) -> u64 {
        self.waiting.iter().map(|waiting| waiting.journal_upto).max().unwrap_or(0)
    }

    /// Queues a Ready with the messages that are to leave after its writes. Answers to heartbeats promise nothing of
    /// entries: they leave at once, unless the term that they are of is not durable.
    pub(crate) fn push(&mut self, writes: Writes, messages: Vec<Message>, out: &mut Vec<Message>) {
        let term_waits = writes.has_vote || self.has_vote();
        let is_free =
            |message: &Message| message.get_msg_type() == MessageType::MsgHeartbeatResponse && !term_waits;
        let (free, messages): (Vec<_>, Vec<_>) = messages.into_iter().partition(is_free);
        out.extend(free);
        let Writes { number, has_vote, journal_upto, log_upto } = writes;
        if self.waiting.len() >= WAITING_MAX
            && let Some(last) = self.waiting.back_mut()
        {
            last.messages.extend(messages);
            let journal_upto = journal_upto.max(last.journal_upto);
            let log_upto = log_upto.max(last.log_upto);
            (last.number, last.journal_upto, last.log_upto) = (number, journal_upto, log_upto);
            last.has_vote |= has_vote;
            return;
        }
        self.waiting.push_back(Waiting { number, has_vote, journal_upto, log_upto, messages, entry: None });
    }

    /// Begins again with entries that are not all durable: nothing leaves before they are. `entry` is the last one's index
    /// and term.
    pub(crate) fn restart(&mut self, durable: Durable, entry: (u64, u64)) {
        let Durable { journal: journal_upto, log: log_upto } = durable;
        let entry = Some(entry);
        self.waiting.clear();
        let first =
            Waiting { number: 0, has_vote: true, journal_upto, log_upto, messages: Vec::new(), entry };
        self.waiting.push_back(first);
    }

    /// The log was cut, durably: nothing waits for what is behind.
    pub(crate) fn cut(&mut self, log_end: i64) {
        self.waiting.iter_mut().for_each(|waiting| waiting.log_upto = waiting.log_upto.min(log_end));
    }

    /// Takes the Readys that are durable, from the first one on: their messages may leave.
    pub(crate) fn settle(&mut self, durable: Durable, out: &mut Vec<Message>) -> Settled {
        let mut settled = Settled::default();
        while let Some(first) = self.waiting.front()
            && first.journal_upto <= durable.journal
            && first.log_upto <= durable.log
            && let Some(first) = self.waiting.pop_front()
        {
            settled.number = Some(first.number);
            settled.entry = settled.entry.or(first.entry);
            out.extend(first.messages);
        }
        settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: MessageType) -> Message {
        Message { msg_type: kind, ..Message::default() }
    }

    #[test]
    fn messages_leave_in_order_when_their_writes_are_durable() {
        let (mut unsynced, mut out) = (Unsynced::default(), Vec::new());
        let writes =
            |number, has_vote, journal_upto, log_upto| Writes { number, has_vote, journal_upto, log_upto };
        let append = || vec![message(MessageType::MsgAppendResponse)];
        unsynced.push(writes(1, false, 0, 10), append(), &mut out);
        unsynced.push(writes(2, true, 5, 0), vec![message(MessageType::MsgHeartbeatResponse)], &mut out);
        unsynced.push(writes(3, false, 0, 20), append(), &mut out);
        assert!(out.is_empty());
        let mut settle = |unsynced: &mut Unsynced, journal, log| {
            let settled = unsynced.settle(Durable { journal, log }, &mut out);
            (settled.number, out.len())
        };
        assert_eq!(settle(&mut unsynced, 5, 9), (None, 0));
        assert_eq!(settle(&mut unsynced, 5, 10), (Some(2), 2));
        let heartbeat = vec![message(MessageType::MsgHeartbeatResponse)];
        unsynced.push(writes(4, false, 0, 20), heartbeat, &mut out);
        assert_eq!(out.len(), 3, "no vote waits any more");
        unsynced.cut(15);
        assert_eq!(unsynced.settle(Durable { journal: 5, log: 15 }, &mut out).number, Some(4));
        assert!(out.len() == 4 && unsynced.is_empty());
    }

    #[test]
    fn while_the_disk_hangs_no_more_than_a_bound_wait_each_for_itself() {
        let (mut unsynced, mut out) = (Unsynced::default(), Vec::new());
        let last = 3 * WAITING_MAX as u64;
        for number in 1..=last {
            let (journal_upto, log_upto) = (if number == last - 9 { 5 } else { 0 }, number as i64);
            let writes = Writes { number, has_vote: number == last - 9, journal_upto, log_upto };
            unsynced.push(writes, Vec::new(), &mut out);
        }
        assert_eq!(unsynced.waiting.len(), WAITING_MAX);
        let end = last as i64;
        let settled = unsynced.settle(Durable { journal: 4, log: end }, &mut out);
        assert_eq!(settled.number, Some(WAITING_MAX as u64 - 1));
        assert_eq!(unsynced.settle(Durable { journal: 5, log: end - 1 }, &mut out), Settled::default());
        assert_eq!(unsynced.settle(Durable { journal: 5, log: end }, &mut out).number, Some(last));
    }

    #[test]
    fn nothing_leaves_after_a_restart_before_its_entries_are_durable() {
        let (mut unsynced, mut out) = (Unsynced::default(), Vec::new());
        unsynced.restart(Durable { journal: 8, log: 20 }, (9, 2));
        let writes = Writes { number: 1, has_vote: false, journal_upto: 0, log_upto: 0 };
        let answers =
            vec![message(MessageType::MsgAppendResponse), message(MessageType::MsgHeartbeatResponse)];
        unsynced.push(writes, answers, &mut out);
        assert!(out.is_empty());
        assert_eq!(unsynced.settle(Durable { journal: 7, log: 20 }, &mut out), Settled::default());
        let settled = unsynced.settle(Durable { journal: 8, log: 20 }, &mut out);
        assert_eq!(settled, Settled { number: Some(1), entry: Some((9, 2)) });
        assert_eq!(out.len(), 2);
    }
}
