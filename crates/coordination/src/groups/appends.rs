//! Appends in flight, and the changes that follow from their outcomes.
//!
//! Outcomes take effect in the order of the log, one partition of `__consumer_offsets` at a time, in whichever order
//! the driver reports them. So commits to one partition keep their order, and a read that waits for the commits
//! before it is an entry of the same queue.

use std::collections::VecDeque;
use std::sync::Arc;

use mainstem_wire::ErrorCode;

use super::committed_offset::TopicPartition;
use super::completion::Completion;
use super::consumer::write::Write;
use super::deadlines::Timer;

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
