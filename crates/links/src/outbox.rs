//! Queue of a link: messages that wait to be written, by their urgency and within bounds, and requests that wait for answers.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use indexmap::IndexMap;
use mainstem_replication::{GroupId, MESSAGE_BYTES_MAX, Outgoing, RepeatAnswer, ReplicaId};

use super::calls::{CALL_BYTES_MAX, CALL_TIME_MAX_MS, CallError, CallKind, IN_FLIGHT_MAX, OnAnswer};
use super::group::{GroupHandle, is_append};
use super::is_plain_heartbeat;
use super::throttle::Throttled;

/// Limit of the bytes of messages that wait, without their batches, which are in the log. Requests have their own limit.
const BYTES_MAX: usize = 8 << 20;
/// Estimated memory of a message beside its entries, in bytes.
const MESSAGE_BYTES: usize = 256;
/// Estimated memory of an entry beside its data, in bytes.
const ENTRY_BYTES: usize = 96;
/// Limit of the bytes of all requests that wait to be written. A single larger one is taken alone.
const CALLS_BYTES_MAX: usize = 128 << 20;

/// A message of a replica on its way.
pub(super) struct Item {
    /// The replica that sends it, in whose log the batches are.
    pub(super) handle: Arc<GroupHandle>,
    pub(super) outgoing: Outgoing,
    /// The rates of an append to a replica that catches up, which may take its time. They may be others when it is sent.
    pub(super) catches_up: Option<Throttled>,
}

impl Item {
    fn memory(&self) -> usize {
        let entries = self.outgoing.message.get_entries();
        let data: usize = entries.iter().map(|entry| entry.data.len() + ENTRY_BYTES).sum();
        MESSAGE_BYTES + data + self.outgoing.message.context.len()
    }

    /// Returns true if the entries of `next` follow those of this append in the same term, so that both go as one.
    fn joins(&self, next: &Item) -> bool {
        let (one, other) = (&self.outgoing, &next.outgoing);
        let last = one.message.get_entries().last();
        is_append(&one.message)
            && is_append(&other.message)
            && (self.handle.id, one.to, one.message.term) == (next.handle.id, other.to, other.message.term)
            && last
                .is_some_and(|last| (last.index, last.term) == (other.message.index, other.message.log_term))
            && one.offsets.end == other.offset
            && one.bytes + other.bytes <= MESSAGE_BYTES_MAX
    }

    fn join(&mut self, next: Item) {
        let (one, mut other) = (&mut self.outgoing, next.outgoing);
        one.message.mut_entries().extend(other.message.take_entries());
        one.message.commit = other.message.commit;
        one.offsets.end = other.offsets.end;
        one.bytes += other.bytes;
    }
}

/// Callback that waits for an answer, and its deadline in monotonic milliseconds.
struct Waiting {
    until_ms: u64,
    on_answer: OnAnswer,
}

/// A request on its way.
pub(super) struct Call {
    pub(super) id: u64,
    pub(super) kind: CallKind,
    pub(super) body: Vec<u8>,
}

/// Everything that the writer takes at one time, in the order in which it is written.
#[derive(Default)]
pub(super) struct Batch {
    /// By group and receiver: a node may have two replicas of a group, one in the place of the other.
    pub(super) heartbeats: IndexMap<(GroupId, ReplicaId), Item>,
    /// All heartbeats that stand are due, since then.
    pub(super) repeat: Option<u64>,
    /// The answer to the peer's.
    pub(super) answer: Option<RepeatAnswer>,
    pub(super) control: VecDeque<Item>,
    pub(super) calls: VecDeque<Call>,
    /// One append.
    pub(super) append: Option<Item>,
    /// The append was taken from those that may be throttled.
    pub(super) is_throttled: bool,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.heartbeats.is_empty()
            && self.repeat.is_none()
            && self.answer.is_none()
            && self.control.is_empty()
            && self.calls.is_empty()
            && self.append.is_none()
    }
}

/// Queue of one link.
#[derive(Default)]
pub(super) struct Outbox {
    is_open: bool,
    /// The connection, so that others can end it.
    stream: Option<TcpStream>,
    heartbeats: IndexMap<(GroupId, ReplicaId), Item>,
    repeat: Option<u64>,
    answer: Option<RepeatAnswer>,
    control: VecDeque<Item>,
    /// Each with its number in the order in which they came.
    appends: VecDeque<(u64, Item)>,
    /// Appends that may be throttled, and all that follow them in their groups, so that the order in a group stays.
    behind: VecDeque<(u64, Item)>,
    /// Number of these by group.
    behind_of: HashMap<GroupId, usize>,
    next_append: u64,
    bytes: usize,
    calls: VecDeque<Call>,
    calls_bytes: usize,
    /// By the numbers of the calls: the oldest first.
    waiting: BTreeMap<u64, Waiting>,
    next_call: u64,
    /// The writer sleeps, and has not been woken yet.
    is_idle: bool,
}

impl Outbox {
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// A link has begun.
    pub(super) fn open(&mut self, stream: Option<TcpStream>) {
        self.is_open = true;
        self.stream = stream;
    }

    /// Ends the link: messages that wait are dropped. Returns the callbacks that waited for answers.
    pub(super) fn close(&mut self) -> Vec<OnAnswer> {
        self.end();
        self.stream = None;
        self.heartbeats.clear();
        (self.repeat, self.answer) = (None, None);
        self.control.clear();
        self.appends.clear();
        self.behind.clear();
        self.behind_of.clear();
        self.calls.clear();
        (self.bytes, self.calls_bytes) = (0, 0);
        std::mem::take(&mut self.waiting).into_values().map(|waiting| waiting.on_answer).collect()
    }

    /// Ends the link; its writer closes.
    pub(super) fn end(&mut self) {
        self.is_open = false;
        if let Some(stream) = &self.stream {
            // It may be gone already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Adds a message. Returns false where it is dropped.
    pub(super) fn push(&mut self, item: Item) -> bool {
        if !self.is_open {
            return false;
        }
        if is_plain_heartbeat(&item.outgoing) {
            self.heartbeats.insert((item.handle.id, item.outgoing.to), item);
            return true;
        }
        let memory = item.memory();
        if self.bytes + memory > BYTES_MAX {
            return false;
        }
        self.bytes += memory;
        if !is_append(&item.outgoing.message) {
            self.control.push_back(item);
            return true;
        }
        let is_behind = item.catches_up.is_some() || self.behind_of.contains_key(&item.handle.id);
        let lane = if is_behind { &mut self.behind } else { &mut self.appends };
        match lane.back_mut().map(|(_, last)| last).filter(|last| last.joins(&item)) {
            Some(last) => {
                last.join(item);
                self.bytes -= MESSAGE_BYTES;
            }
            None => {
                if is_behind {
                    *self.behind_of.entry(item.handle.id).or_insert(0) += 1;
                }
                lane.push_back((self.next_append, item));
                self.next_append += 1;
            }
        }
        true
    }

    /// Returns true if there are appends that may be throttled.
    pub(super) fn has_behind(&self) -> bool {
        !self.behind.is_empty()
    }

    /// Takes the next append. It is one of those that may be throttled if `may_throttled` and no older append waits; then the
    /// returned flag is true.
    fn take_append(&mut self, may_throttled: bool) -> Option<(Item, bool)> {
        let behind = self.behind.front().filter(|_| may_throttled).map(|(number, _)| *number);
        let next = self.appends.front().map(|(number, _)| *number);
        if behind.is_some_and(|behind| next.is_none_or(|next| behind < next)) {
            let (_, item) = self.behind.pop_front()?;
            if let Some(count) = self.behind_of.get_mut(&item.handle.id) {
                *count -= 1;
                if *count == 0 {
                    self.behind_of.remove(&item.handle.id);
                }
            }
            return Some((item, true));
        }
        self.appends.pop_front().map(|(_, item)| (item, false))
    }

    /// Has all heartbeats that stand repeated.
    pub(super) fn push_repeat(&mut self, now_ms: u64) {
        if self.is_open {
            self.repeat = Some(now_ms);
        }
    }

    /// Adds the answer to the peer's heartbeats that stand; one that waits is joined.
    pub(super) fn push_answer(&mut self, mut answer: RepeatAnswer) {
        if self.is_open {
            answer.refused.extend(self.answer.take().into_iter().flat_map(|before| before.refused));
            self.answer = Some(answer);
        }
    }

    /// Adds a request. Returns the callback with the error if it cannot be sent.
    pub(super) fn push_call(
        &mut self,
        kind: CallKind,
        body: Vec<u8>,
        on_answer: OnAnswer,
        now_ms: u64,
    ) -> Option<(OnAnswer, CallError)> {
        if !self.is_open {
            return Some((on_answer, CallError::NotConnected));
        }
        let is_full = self.calls_bytes > 0 && self.calls_bytes + body.len() > CALLS_BYTES_MAX;
        if body.len() > CALL_BYTES_MAX || self.waiting.len() >= IN_FLIGHT_MAX || is_full {
            return Some((on_answer, CallError::TooMany));
        }
        let id = self.next_call;
        self.next_call += 1;
        self.calls_bytes += body.len();
        self.waiting.insert(id, Waiting { until_ms: now_ms.saturating_add(CALL_TIME_MAX_MS), on_answer });
        self.calls.push_back(Call { id, kind, body });
        None
    }

    /// Removes and returns the callback that waits for an answer.
    pub(super) fn take_waiting(&mut self, id: u64) -> Option<OnAnswer> {
        self.waiting.remove(&id).map(|waiting| waiting.on_answer)
    }

    /// Removes and returns the callbacks whose deadline has passed. An answer that comes later is dropped.
    pub(super) fn take_overdue(&mut self, now_ms: u64) -> Vec<OnAnswer> {
        let mut overdue = Vec::new();
        while let Some(oldest) = self.waiting.first_entry().filter(|oldest| oldest.get().until_ms <= now_ms) {
            overdue.push(oldest.remove().on_answer);
        }
        overdue
    }

    /// Returns true if the writer has to be woken. To be called once after something was added.
    pub(super) fn wants_wake(&mut self) -> bool {
        std::mem::take(&mut self.is_idle)
    }

    /// Takes what is written next: everything urgent, and one append. With `may_throttled` that may be one that is throttled.
    pub(super) fn take(&mut self, may_throttled: bool) -> Batch {
        let (append, is_throttled) = self.take_append(may_throttled).unzip();
        let batch = Batch {
            heartbeats: std::mem::take(&mut self.heartbeats),
            repeat: self.repeat.take(),
            answer: self.answer.take(),
            control: std::mem::take(&mut self.control),
            calls: std::mem::take(&mut self.calls),
            append,
            is_throttled: is_throttled.unwrap_or(false),
        };
        self.calls_bytes = 0;
        self.bytes -= batch.control.iter().chain(&batch.append).map(Item::memory).sum::<usize>();
        self.is_idle = batch.is_empty();
        batch
    }
}

#[cfg(test)]
mod tests {
    use mainstem_replication::eraftpb::{Message, MessageType};

    use super::*;
    use crate::testing::handle;

    /// A node whose replica is replaced has two of a group for a while.
    #[test]
    fn each_replica_of_a_node_gets_the_heartbeats_of_a_group() {
        let (mut outbox, handle) = (Outbox::default(), handle(Arc::default()));
        outbox.open(None);
        let heartbeat = |incarnation, commit| {
            let to = ReplicaId::new(3, incarnation);
            let message = Message { msg_type: MessageType::MsgHeartbeat, commit, ..Message::default() };
            let outgoing =
                Outgoing { to, offset: 0, offsets: 0..0, bytes: 0, message, begins_coalescing: false };
            Item { handle: handle.clone(), outgoing, catches_up: None }
        };
        for (incarnation, commit) in [(1, 5), (2, 5), (1, 6)] {
            assert!(outbox.push(heartbeat(incarnation, commit)));
        }
        let waiting = outbox.heartbeats.values().map(|item| (item.outgoing.to, item.outgoing.message.commit));
        let expected = [(ReplicaId::new(3, 1), 6), (ReplicaId::new(3, 2), 5)];
        assert!(waiting.eq(expected), "the last one to each");
    }
}
