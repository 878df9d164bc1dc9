//! The messages of a partition that have arrived and are not in its window yet.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use mainstem_client::{FetchedBatch, RecordRange};

use super::messages::{BatchNumber, Messages};
use super::{Command, Partition, Progress, Shared};
use crate::error::Error;
use crate::filter::Passage;
use crate::window::{Admitted, Limits, Window};
use mainstem_records::slice_of;

/// Batches that may wait for a partition before it is held.
pub(crate) const QUEUE_MAX: usize = 4;

/// Batches by offset, and the place in the first.
#[derive(Default)]
pub(super) struct Backlog {
    /// The first one, which has left the others, and the place in it.
    open: Option<(BatchNumber, u32)>,
    batches: VecDeque<FetchedBatch>,
    waits_until_ms: Option<u64>,
    /// Number of seeks so far; batches from before the last one do not count.
    seeks: u64,
}

/// The result of [`Backlog::admit`].
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) count: usize,
    pub(super) is_busy: bool,
    /// The offset of a record that comes after later ones: the log starts again there.
    pub(super) begins_again_at: Option<i64>,
}

/// Messages of one batch that may run where they are, one after another.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) batch: BatchNumber,
    /// The place of the first one.
    pub(super) first: u32,
    /// The number of messages, 1 or more.
    pub(super) count: u32,
    /// The slot of the first one that is not done at once.
    pub(super) slot: u16,
}

impl Backlog {
    pub(super) fn push(&mut self, shared: &Shared, seeks: u64, batch: FetchedBatch) {
        match seeks == self.seeks {
            true => self.batches.push_back(batch),
            false => drop(shared.queued.fetch_sub(1, Ordering::SeqCst)),
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self, shared: &Shared, messages: &mut Messages) {
        let mut count = self.batches.len();
        if let Some((open, _)) = self.open.take() {
            messages.close(open);
            count += 1;
        }
        self.batches.clear();
        // Others may be on their way. They are counted until they arrive and are dropped.
        shared.queued.fetch_sub(count, Ordering::SeqCst);
        self.waits_until_ms = None;
    }

    /// The number of the next seek: only batches that carry it count from now on.
    pub(super) fn next_seek(&mut self) -> u64 {
        self.seeks += 1;
        self.seeks
    }

    /// The time when a filter lets the next message pass.
    pub(super) fn waits_until_ms(&self) -> Option<u64> {
        self.waits_until_ms
    }

    /// Admits messages to the window, `max` at most, until it is full. `slice`: one for all; none takes each message's own, by its key.
    pub(super) fn admit(
        &mut self,
        partition: &Partition,
        messages: &mut Messages,
        slice: Option<u16>,
        now_ms: u64,
        max: usize,
    ) -> Done {
        let mut done = Done::default();
        if self.waits_until_ms.is_some_and(|until| now_ms < until) {
            return done;
        }
        self.waits_until_ms = None;
        let mut progress = partition.shared.progress.lock();
        let progress = &mut *progress;
        while done.count < max {
            let Some((number, index, record)) = self.next_record(partition, messages, progress, &mut done)
            else {
                break;
            };
            let batch = messages.batch(number);
            let window =
                progress.window.get_or_insert_with(|| Window::new(record.offset, [], Limits::default()));
            if record.offset < window.arrived() {
                done.begins_again_at = Some(record.offset);
                break;
            }
            if !window.fits(record.offset, record.size()) {
                break;
            }
            match passage(partition, messages, (number, index), now_ms) {
                Passage::WaitMs(ms) => {
                    self.waits_until_ms = Some(now_ms.saturating_add(ms.max(1)));
                    break;
                }
                Passage::Drop => {
                    partition.route.metrics.filtered.add(1);
                    window.pass(record.offset + 1);
                }
                passed @ (Passage::Pass | Passage::Refuse(_)) => {
                    let slice = slice.unwrap_or_else(|| slice_of(batch.key(&record), record.offset));
                    if window.unfinished() == 0 {
                        // An empty window has made no progress because it had nothing to do.
                        progress.moved_ms = now_ms;
                    }
                    if let Admitted::Slot(slot) = window.admit(record.offset, slice, record.size()) {
                        messages.keep(slot, number, index);
                        messages.get_mut(slot).admitted_ms = now_ms;
                        if let Passage::Refuse(failure) = passed {
                            // It fails in its turn, after the messages before it of the same key.
                            window.run_alone(slot);
                            messages.get_mut(slot).refusal = Some(failure);
                        }
                    }
                }
            }
            self.open = Some((number, index + 1));
            done.count += 1;
            done.is_busy = true;
        }
        done
    }

    /// The next messages that may run before they have a place in the window, `max` at most; none if the next one may not.
    pub(super) fn group(
        &mut self,
        partition: &Partition,
        messages: &mut Messages,
        max: usize,
        now_ms: u64,
    ) -> Option<Group> {
        let mut progress = partition.shared.progress.lock();
        let progress = &mut *progress;
        let (batch, first, record) = self.next_record(partition, messages, progress, &mut Done::default())?;
        let window = progress.window.get_or_insert_with(|| Window::new(record.offset, [], Limits::default()));
        let of_batch = messages.batch(batch);
        let may_run = |record: &RecordRange| {
            let slice = || slice_of(of_batch.key(record), record.offset);
            window.may_run_inline(record.offset, record.size(), slice)
        };
        if !may_run(&record) {
            return None;
        }
        let others = of_batch.records_behind(first).iter().take(max.saturating_sub(1));
        let count = match window.unfinished() {
            0 => others.len(),
            _ => others.take_while(|record| may_run(record)).count(),
        };
        if window.unfinished() == 0 {
            progress.moved_ms = now_ms;
        }
        let slot = window.next_slot();
        let count = 1 + u32::try_from(count).expect("it is less than a batch has");
        partition.shared.inline.store(count, Ordering::Relaxed);
        Some(Group { batch, first, count, slot })
    }

    /// Moves the place behind `count` messages of a group.
    pub(super) fn skip(&mut self, group: &Group, count: u32) {
        self.open = Some((group.batch, group.first + count));
    }

    /// The next record and its place; batches that are through are closed.
    fn next_record(
        &mut self,
        partition: &Partition,
        messages: &mut Messages,
        progress: &mut Progress,
        done: &mut Done,
    ) -> Option<(BatchNumber, u32, RecordRange)> {
        loop {
            let (number, index) = self.open(partition, messages)?;
            let batch = messages.batch(number);
            if let Some(record) = batch.record(index).copied() {
                if index == 0 {
                    progress.note_epoch(
                        &partition.shared.partition,
                        record.offset,
                        batch.batch().leader_epoch(),
                    );
                    progress.note_topic(record.offset, batch.batch());
                }
                return Some((number, index, record));
            }
            // A compacted topic has no records behind the last one of this batch.
            let next = batch.batch().next_offset();
            progress.note_topic(next, batch.batch());
            if let Some(window) = progress.window.as_mut().filter(|window| window.arrived() <= next) {
                window.pass(next);
            }
            copy_stranded(messages, progress.window.as_ref(), number);
            messages.close(number);
            self.finish_batch(partition);
            done.is_busy = true;
        }
    }

    /// The first batch and the place in it; none if there is none, or it cannot be read.
    fn open(&mut self, partition: &Partition, messages: &mut Messages) -> Option<(BatchNumber, u32)> {
        if self.open.is_none() {
            let batch = self.batches.pop_front()?;
            match messages.open(batch) {
                Ok(number) => self.open = Some((number, 0)),
                Err(error) => {
                    // If the driver is gone, there is nothing to end.
                    let _ = partition.commands.send(Command::Fail(Error::Client(error)));
                    self.batches.clear();
                }
            }
        }
        self.open
    }

    fn finish_batch(&mut self, partition: &Partition) {
        self.open = None;
        let shared = &partition.shared;
        let before = shared.queued.fetch_sub(1, Ordering::SeqCst);
        if before <= QUEUE_MAX / 2 + 1 && shared.is_held.swap(false, Ordering::SeqCst) {
            // If the driver is gone, nothing is held.
            let _ = partition.commands.send(Command::Release(shared.partition.clone()));
        }
    }
}

/// Copies those messages of a batch, all admitted by now, that may wait for long.
fn copy_stranded(messages: &mut Messages, window: Option<&Window>, number: BatchNumber) {
    let Some(window) = window.filter(|window| window.may_strand()) else { return };
    if let Some(first) = messages.batch(number).record(0).map(|record| record.offset) {
        window.stranded_from(first).for_each(|slot| messages.copy(slot));
    }
}

fn passage(
    partition: &Partition,
    messages: &Messages,
    (number, index): (BatchNumber, u32),
    now_ms: u64,
) -> Passage {
    let route = &partition.route;
    if !route.settings.filters.is_empty() {
        let (message, wall_ms) = (messages.record(number, index), partition.app.wall_ms());
        let decided = route.settings.filters.iter().map(|filter| filter.passage(&message, wall_ms));
        if let Some(other) = decided.into_iter().find(|passage| !matches!(passage, Passage::Pass)) {
            return other;
        }
    }
    match route.throttle.as_ref().map(|throttle| throttle.lock().take(now_ms)) {
        Some(Err(wait_ms)) => Passage::WaitMs(wait_ms),
        _ => Passage::Pass,
    }
}
