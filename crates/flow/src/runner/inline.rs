//! Messages whose handlers are done at their first poll, as most are. They need no place in the window.
//!
//! A group of them is polled one after another where they lie in their batch. If they succeed and ask for nothing, their offsets are
//! passed, all under one lock. The first one that waits, fails or asks for something is admitted as one that runs, and ends the group.
//! Until then the window knows of none of them, so the position stays before the group.

use std::sync::atomic::Ordering;

use super::backlog::Group;
use super::{Runner, STEPS_MAX};
use crate::attempt::{Ended, Others};
use crate::cx::Cx;
use crate::message::Received;
use crate::window::Admitted;
use mainstem_records::slice_of;

/// A group that takes longer is followed by a shorter one: its thread has other work, too.
const GROUP_MS: u64 = 5;
/// Messages of a group that are handled between two readings of the clock.
const LOOK_EVERY: u32 = 32;

/// The number of messages of a partition that are tried together.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupSize {
    /// 0 if each message has to be looked at alone, or many are handled together.
    limit: usize,
    now: usize,
}

impl GroupSize {
    pub(super) fn new(is_possible: bool) -> GroupSize {
        // The time that a handler takes is not known before the first message.
        if is_possible { GroupSize { limit: STEPS_MAX, now: 1 } } else { GroupSize { limit: 0, now: 0 } }
    }

    /// Returns true if messages are tried before they are admitted.
    pub(super) fn is_some(self) -> bool {
        self.now > 0
    }

    /// A group was done at once.
    fn was_done(&mut self, took_ms: u64) {
        self.now = if took_ms > GROUP_MS { 1 } else { (self.now * 2).min(self.limit) };
    }

    /// Handlers wait for something: no group is tried any more.
    fn has_waited(&mut self) {
        self.now = 0;
    }

    /// Handlers that were admitted have been done at once.
    pub(super) fn may_grow(&mut self) {
        self.now = self.now.max(1.min(self.limit));
    }
}

/// The end of a group.
enum GroupEnd {
    /// All were done at once. The context can be used again.
    Done(Cx),
    /// One waits for something.
    Waits,
    /// One has failed, or asks for something.
    Ended(Ended),
}

impl<S, F> Runner<S, F>
where
    S: Fn(Received, Others, Cx, u16) -> F,
    F: Future<Output = Ended>,
{
    /// Handles the next messages where they lie, beginning at `now_ms`, which is brought up to date. Returns how many were taken
    /// out of the backlog.
    pub(super) fn run_inline(&mut self, now_ms: &mut u64) -> usize {
        if !self.group_size.is_some() || self.running.free_capacity() == 0 || !self.may_start(*now_ms) {
            return 0;
        }
        let max = self.group_size.now;
        let Some(group) = self.backlog.group(&self.partition, &mut self.messages, max, *now_ms) else {
            return 0;
        };
        let began_ms = *now_ms;
        let (address, done, passed, end) = self.poll_group(&group, began_ms);
        *now_ms = self.warn_of_blocking(began_ms);
        let polled = done + u32::from(!matches!(end, GroupEnd::Done(_)));
        let each_ms = (*now_ms - began_ms) / u64::from(polled.max(1));
        self.backlog.skip(&group, polled);
        self.finish_group(done, passed, *now_ms, each_ms);
        match end {
            GroupEnd::Done(context) => {
                self.spare = Some(context);
                self.group_size.was_done(*now_ms - began_ms);
            }
            GroupEnd::Waits => {
                self.group_size.has_waited();
                self.admit_started(&group, done, address, *now_ms);
            }
            GroupEnd::Ended(ended) => {
                self.admit_started(&group, done, address, now_ms.saturating_sub(each_ms));
                self.ended.push(ended);
                self.handle_ended(*now_ms);
            }
        }
        polled as usize
    }

    /// Polls one after another. Returns the address of their context, how many were just done, and the offset behind those.
    fn poll_group(&mut self, group: &Group, began_ms: u64) -> (usize, u32, i64, GroupEnd) {
        let mut context = self.spare.take().unwrap_or_else(|| Cx::new(self.partition.shared.cx.clone()));
        let address = context.address();
        let batch = self.messages.shared(group.batch).clone();
        let (mut done, mut passed) = (0, i64::MIN);
        let end = loop {
            if done == group.count {
                break GroupEnd::Done(context);
            }
            let received = Received::new(batch.clone(), group.first + done);
            let offset = received.offset();
            if offset < passed {
                // Offsets go back within the batch. The next message is looked at by `Backlog::admit`, which handles that.
                break GroupEnd::Done(context);
            }
            match self.running.begin(|| (self.dispatch.start)(received, None, context, group.slot)) {
                Some(ended) if ended.is_plain(address) => context = ended.cx,
                Some(ended) => break GroupEnd::Ended(ended),
                None => break GroupEnd::Waits,
            }
            (done, passed) = (done + 1, offset + 1);
            if done.is_multiple_of(LOOK_EVERY) && self.partition.app.now_ms() > began_ms + GROUP_MS {
                break GroupEnd::Done(context);
            }
        };
        (address, done, passed, end)
    }

    /// The first ones of a group were just done.
    fn finish_group(&mut self, done: u32, passed: i64, now_ms: u64, each_ms: u64) {
        let (shared, route) = (&self.partition.shared, &self.partition.route);
        if done > 0 {
            let mut progress = shared.progress.lock();
            if let Some(window) = &mut progress.window {
                window.pass(passed);
            }
            progress.note_frontier(now_ms);
        }
        shared.inline.store(0, Ordering::Relaxed);
        route.judge.lock().succeeded_times(u64::from(done));
        route.metrics.handled.add(u64::from(done));
        route.metrics.attempts.add_many(u64::from(done), each_ms);
    }

    /// The message behind those was started, and gets its place.
    fn admit_started(&mut self, group: &Group, done: u32, address: usize, started_ms: u64) {
        let index = group.first + done;
        let batch = self.messages.batch(group.batch);
        let record = *batch.record(index).expect("the message was polled");
        let slice = slice_of(batch.key(&record), record.offset);
        let mut progress = self.partition.shared.progress.lock();
        let Some(window) = &mut progress.window else { return };
        let admitted = window.admit(record.offset, slice, record.size());
        assert_eq!(admitted, Admitted::Slot(group.slot), "nothing was admitted since the slot was asked for");
        let started = window.start();
        assert_eq!(started, Some(group.slot), "nothing was ready before it");
        drop(progress);
        let mark = self.partition.route.judge.lock().started();
        self.messages.keep(group.slot, group.batch, index);
        let one = self.messages.get_mut(group.slot);
        (one.mark, one.started_ms, one.cx_address) = (mark, started_ms, address);
    }
}
