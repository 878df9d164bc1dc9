//! What of a replica waits for the disk: the library's Readys in their order, and the messages that must not leave
//! before what they promise is durable.

use raft::eraftpb::{Message, MessageType};
use std::collections::VecDeque;

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
}

/// The writes of one Ready.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writes {
    pub(crate) number: u64,
    pub(crate) has_vote: bool,
    pub(crate) journal_upto: u64,
    pub(crate) log_upto: i64,
}

/// How far journal and log are durable.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Durable {
    pub(crate) journal: u64,
    /// Of a log whose writes count as persisted (`write.caching`): its end.
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

    /// How far the journal has to be durable for all that waits.
    pub(crate) fn journal_upto(&self) -> u64 {
        self.waiting.iter().map(|waiting| waiting.journal_upto).max().unwrap_or(0)
    }

    /// Queues a Ready with the messages that are to leave after its writes. Answers to heartbeats promise nothing of
    /// entries: they leave at once, unless the term that they are of is not durable.
    pub(crate) fn push(&mut self, writes: Writes, messages: Vec<Message>, out: &mut Vec<Message>) {
        let term_waits = writes.has_vote || self.waiting.iter().any(|waiting| waiting.has_vote);
        let is_free =
            |message: &Message| message.get_msg_type() == MessageType::MsgHeartbeatResponse && !term_waits;
        let (free, messages): (Vec<_>, Vec<_>) = messages.into_iter().partition(is_free);
        out.extend(free);
        let Writes { number, has_vote, journal_upto, log_upto } = writes;
        self.waiting.push_back(Waiting { number, has_vote, journal_upto, log_upto, messages });
    }

    /// The log was cut, durably: nothing waits for what is behind.
    pub(crate) fn cut(&mut self, log_end: i64) {
        self.waiting.iter_mut().for_each(|waiting| waiting.log_upto = waiting.log_upto.min(log_end));
    }

    /// The number of the last Ready, from the first on, whose writes are durable; its messages may leave.
    pub(crate) fn settle(&mut self, durable: Durable, out: &mut Vec<Message>) -> Option<u64> {
        let mut number = None;
        while let Some(first) = self.waiting.front()
            && first.journal_upto <= durable.journal
            && first.log_upto <= durable.log
            && let Some(first) = self.waiting.pop_front()
        {
            number = Some(first.number);
            out.extend(first.messages);
        }
        number
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
        assert_eq!(unsynced.settle(Durable { journal: 5, log: 9 }, &mut out), None);
        assert_eq!(unsynced.settle(Durable { journal: 5, log: 10 }, &mut out), Some(2));
        assert_eq!(out.len(), 2);
        let heartbeat = vec![message(MessageType::MsgHeartbeatResponse)];
        unsynced.push(writes(4, false, 0, 20), heartbeat, &mut out);
        assert_eq!(out.len(), 3, "no vote waits any more");
        unsynced.cut(15);
        assert_eq!(unsynced.settle(Durable { journal: 5, log: 15 }, &mut out), Some(4));
        assert!(out.len() == 4 && unsynced.is_empty());
    }
}
