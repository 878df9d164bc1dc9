//! Appends in flight, and the changes that follow from their outcomes.
//!
//! Outcomes take effect in the order of the log, one partition of `__consumer_offsets` at a time, in whichever order
//! the driver reports them. So commits to one partition keep their order, and a read that waits for the commits
//! before it is an entry of the same queue.

use std::collections::VecDeque;
use std::sync::Arc;

use mainstem_records::{ProducerId, TransactionEnd};
use mainstem_wire::ErrorCode;

use super::committed_offset::{PendingOffset, TopicPartition};
use super::consumer::write::Write;
use super::deadlines::Timer;
use super::member::{MemberId, Protocol};
use super::offset_fetch::Fetch;
use super::rebalance::Held;
use super::token::Token;

/// A static member that got a new id while the group is stable, with the state to undo that.
#[derive(Debug)]
pub(crate) struct Replacement {
    pub(crate) old: MemberId,
    pub(crate) new: MemberId,
    pub(crate) old_protocols: Vec<Protocol>,
    pub(crate) old_rebalance_timeout_ms: i32,
    pub(crate) old_session_timeout_ms: i32,
    pub(crate) old_leader: Option<MemberId>,
}

/// The purpose of an append. A change that needs a record takes effect when the outcome of its append is known.
#[derive(Debug)]
pub(crate) enum Completion {
    /// Offsets become readable, or, with a producer id, those of its open transaction; their commit is answered.
    Commit { group: Arc<str>, producer_id: Option<ProducerId>, offsets: Vec<PendingOffset>, held: Held },
    /// A transaction ends. The driver writes the marker, and answers for it.
    Ended(TransactionEnd),
    /// A group that a JoinGroup made; `waiting` is that request, until a time-out has answered it.
    Created { group: Arc<str>, waiting: Option<Token> },
    /// The leader's assignment of a generation; not `awaited` when a time-out has ended the generation.
    Assignment { group: Arc<str>, generation: i32, assignments: Vec<(MemberId, Arc<[u8]>)>, awaited: bool },
    /// A static member that rejoined under a new id, unless a time-out has undone that.
    Replaced { group: Arc<str>, replacement: Option<Replacement> },
    /// A generation without members.
    Emptied { group: Arc<str>, held: Held },
    /// Offsets that expired or were deleted, and the group with them if `group_too`.
    Removed { group: Arc<str>, offsets: Vec<TopicPartition>, group_too: bool, held: Held },
    /// A turn of a consumer group, or a request that waits for one.
    Consumer(Box<Write>),
    /// Not an append: a read that waits for the appends before it.
    Fetch { waiting: Option<(Token, Fetch)> },
}

impl Completion {
    /// The group whose own record, not an offset of it, is being appended. The group handles the outcome.
    pub(crate) fn written_group(&self) -> Option<&Arc<str>> {
        match self {
            Completion::Created { group, .. }
            | Completion::Assignment { group, .. }
            | Completion::Replaced { group, .. }
            | Completion::Emptied { group, .. } => Some(group),
            Completion::Consumer(write) => write.is_append().then_some(&write.group),
            Completion::Commit { .. }
            | Completion::Removed { .. }
            | Completion::Ended(_)
            | Completion::Fetch { .. } => None,
        }
    }

    /// The request that waits here. Those of members of classic groups wait with their member.
    pub(crate) fn waiting(&self) -> Option<Token> {
        match self {
            Completion::Commit { held, .. }
            | Completion::Emptied { held, .. }
            | Completion::Removed { held, .. } => held.as_ref().map(|(token, _)| *token),
            Completion::Consumer(write) => write.answer.as_ref().map(|(token, _)| *token),
            Completion::Fetch { waiting } => waiting.as_ref().map(|(token, _)| *token),
            Completion::Created { .. }
            | Completion::Assignment { .. }
            | Completion::Replaced { .. }
            | Completion::Ended(_) => None,
        }
    }

    /// Returns true if a request waits for this append and may still be answered by a time-out.
    fn is_awaited(&self) -> bool {
        match self {
            Completion::Commit { held, .. }
            | Completion::Emptied { held, .. }
            | Completion::Removed { held, .. } => held.is_some(),
            Completion::Ended(_) => false,
            Completion::Fetch { waiting } => waiting.is_some(),
            Completion::Consumer(write) => write.answer.is_some(),
            Completion::Created { waiting, .. } => waiting.is_some(),
            Completion::Assignment { awaited, .. } => *awaited,
            Completion::Replaced { replacement, .. } => replacement.is_some(),
        }
    }
}

#[derive(Debug)]
struct Entry {
    number: u64,
    /// The end of a request's wait, monotonic milliseconds. Never earlier than that of the entry before.
    due_ms: u64,
    outcome: Option<Result<(), ErrorCode>>,
    completion: Completion,
}

/// The queue of one partition.
#[derive(Debug, Default)]
pub(crate) struct Appends {
    queue: VecDeque<Entry>,
    /// The time-out of the first waiting request, or an earlier time; set while a request waits.
    pub(crate) timer: Option<Timer>,
}

impl Appends {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Queues an append. Returns true if a request waits for it.
    pub(crate) fn push(&mut self, number: u64, due_ms: u64, completion: Completion) -> bool {
        assert!(
            self.queue.back().is_none_or(|last| last.number < number && last.due_ms <= due_ms),
            "append {number} is out of order"
        );
        let is_awaited = completion.is_awaited();
        self.queue.push_back(Entry { number, due_ms, outcome: None, completion });
        is_awaited
    }

    /// Queues an entry without records behind the appends that are in flight.
    pub(crate) fn wait(&mut self, number: u64, due_ms: u64, completion: Completion) {
        self.push(number, due_ms, completion);
        if let Some(entry) = self.queue.back_mut() {
            entry.outcome = Some(Ok(()));
        }
    }

    /// The entries for which a request has waited until `now_ms`.
    pub(crate) fn overdue(&mut self, now_ms: u64) -> impl Iterator<Item = &mut Completion> {
        let due = self.queue.iter_mut().take_while(move |entry| entry.due_ms <= now_ms);
        due.map(|entry| &mut entry.completion).filter(|completion| completion.is_awaited())
    }

    /// The time-out of the first request that still waits, in monotonic milliseconds.
    pub(crate) fn next_due_ms(&self) -> Option<u64> {
        self.queue.iter().find(|entry| entry.completion.is_awaited()).map(|entry| entry.due_ms)
    }

    /// Records an outcome. An unknown number, of a partition that was unloaded since, is ignored. If the outcome is NOT_COORDINATOR, reads
    /// behind it get that error too: they do not see what the other coordinator has acknowledged.
    pub(crate) fn note(&mut self, number: u64, outcome: Result<(), ErrorCode>) {
        let Ok(at) = self.queue.binary_search_by_key(&number, |entry| entry.number) else { return };
        self.queue[at].outcome.get_or_insert(outcome);
        if outcome == Err(ErrorCode::NOT_COORDINATOR) {
            let behind = self.queue.iter_mut().skip(at + 1);
            let reads = behind.filter(|entry| matches!(entry.completion, Completion::Fetch { .. }));
            reads.for_each(|entry| entry.outcome = Some(outcome));
        }
    }

    /// Removes the oldest completion if its outcome is known.
    pub(crate) fn next(&mut self) -> Option<(Completion, Result<(), ErrorCode>)> {
        let outcome = self.queue.front()?.outcome?;
        let entry = self.queue.pop_front()?;
        Some((entry.completion, outcome))
    }

    /// Removes everything in flight, oldest first, when the partition is unloaded.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Completion> {
        self.queue.drain(..).map(|entry| entry.completion)
    }

    /// Everything in flight, oldest first.
    pub(crate) fn completions(&self) -> impl Iterator<Item = &Completion> {
        self.queue.iter().map(|entry| &entry.completion)
    }

    /// Asserts what holds between any two calls. `last` is the last number that was given out.
    ///
    /// # Panics
    /// If something does not hold.
    pub(crate) fn check(&self, last: u64) {
        let numbers = || self.queue.iter().map(|entry| entry.number);
        // Outcomes are found by a binary search.
        assert!(
            numbers().is_sorted_by(|one, next| one < next),
            "the appends are out of order: {:?}",
            self.queue
        );
        assert!(numbers().all(|number| number <= last), "an append has a number above {last}");
        // Entries behind it would wait for ever.
        let first = self.queue.front();
        assert!(first.is_none_or(|first| first.outcome.is_none()), "an outcome has no effect: {first:?}");
        // The client would wait for as long as the log takes.
        let is_timed = self.timer.is_some() || self.next_due_ms().is_none();
        assert!(is_timed, "a request waits without a time-out: {:?}", self.queue);
    }

    /// The turn of a consumer group that an append is for.
    pub(crate) fn consumer_write(&mut self, number: u64) -> Option<&mut Write> {
        let at = self.queue.binary_search_by_key(&number, |entry| entry.number).ok()?;
        match &mut self.queue[at].completion {
            Completion::Consumer(write) => Some(write),
            _ => None,
        }
    }

    /// The turns of a consumer group that came after an append, oldest first.
    pub(crate) fn consumer_writes_after<'a>(
        &'a mut self,
        number: u64,
        group: &'a str,
    ) -> impl DoubleEndedIterator<Item = &'a mut Write> {
        let later = self.queue.iter_mut().filter(move |entry| entry.number > number);
        later.filter_map(move |entry| match &mut entry.completion {
            Completion::Consumer(write) if *write.group == *group => Some(&mut **write),
            _ => None,
        })
    }

    /// Groups with an offset in flight.
    pub(crate) fn committing_groups(&self) -> impl Iterator<Item = &Arc<str>> {
        self.queue.iter().filter_map(|entry| match &entry.completion {
            Completion::Commit { group, .. } => Some(group),
            _ => None,
        })
    }

    /// Partitions of a group with an offset in flight.
    pub(crate) fn pending_offsets<'a>(&'a self, group: &'a str) -> impl Iterator<Item = &'a TopicPartition> {
        self.queue
            .iter()
            .filter_map(move |entry| match &entry.completion {
                Completion::Commit { group: of, offsets, .. } if **of == *group => Some(offsets),
                _ => None,
            })
            .flatten()
            .map(|pending| &pending.at)
    }
}
