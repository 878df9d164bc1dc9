//! What has arrived for a partition and is not in its window yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mainstem_client::{FetchedBatch, RecordRange};

use super::{Command, Partition, Slot};
use crate::error::Error;
use crate::filter::Passage;
use crate::judge::Tries;
use crate::message::Received;
use crate::window::{Admitted, Limits, Window};
use mainstem_records::slice_of;

/// So many batches wait for a partition before it is held.
pub(crate) const QUEUE_MAX: usize = 4;

/// Batches by offset, and the place in the first.
#[derive(Default)]
pub(super) struct Backlog {
    batches: VecDeque<Arc<FetchedBatch>>,
    /// Those of the first batch; the room is kept.
    records: Vec<RecordRange>,
    next: usize,
    is_open: bool,
    waits_until_ms: Option<u64>,
    /// How often the partition has gone elsewhere; batches from before do not count.
    seeks: u64,
}

/// What [`Backlog::admit`] has done.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) count: usize,
    pub(super) is_busy: bool,
    /// The log goes on at this offset, which is before what was read.
    pub(super) begins_anew: Option<i64>,
}

impl Backlog {
    pub(super) fn push(&mut self, seeks: u64, batch: FetchedBatch) {
        if seeks == self.seeks {
            self.batches.push_back(Arc::new(batch));
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.batches.clear();
        self.records.clear();
        (self.next, self.is_open, self.waits_until_ms) = (0, false, None);
    }

    /// The number of the next seek: only batches that carry it count from now on.
    pub(super) fn next_seek(&mut self) -> u64 {
        self.seeks += 1;
        self.seeks
    }

    /// When a filter lets the next message pass.
    pub(super) fn waits_until_ms(&self) -> Option<u64> {
        self.waits_until_ms
    }

    /// Admits messages to the window, `max` at most, as far as there is room. `slice`: of all, or each by its key.
    pub(super) fn admit(
        &mut self,
        partition: &Partition,
        slots: &mut Vec<Slot>,
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
        while done.count < max {
            if !self.open(partition) {
                break;
            }
            let Some((record, batch)) =
                self.records.get(self.next).copied().zip(self.batches.front().cloned())
            else {
                // What is behind the last record of a batch, a compacted topic has left out.
                let next = self.batches.front().map_or(0, |batch| batch.next_offset());
                if let Some(window) = progress.window.as_mut().filter(|window| window.arrived() <= next) {
                    window.pass(next);
                }
                self.finish_batch(partition);
                done.is_busy = true;
                continue;
            };
            progress.note_epoch(record.offset, batch.leader_epoch());
            let window =
                progress.window.get_or_insert_with(|| Window::new(record.offset, [], Limits::default()));
            if record.offset < window.arrived() {
                done.begins_anew = Some(record.offset);
                break;
            }
            let message = Received::new(batch, record);
            if !window.has_room(record.offset, message.size()) {
                break;
            }
            match passage(partition, &message, now_ms) {
                Passage::WaitMs(ms) => {
                    self.waits_until_ms = Some(now_ms.saturating_add(ms.max(1)));
                    break;
                }
                Passage::Drop => {
                    partition.route.metrics.filtered.add(1);
                    window.pass(record.offset + 1);
                }
                Passage::Pass => {
                    let slice = slice.unwrap_or_else(|| slice_of(message.key(), record.offset));
                    if let Admitted::Slot(slot) = window.admit(record.offset, slice, message.size()) {
                        keep(slots, slot, message);
                    }
                }
            }
            self.next += 1;
            done.count += 1;
            done.is_busy = true;
        }
        done
    }

    /// Reads where the records of the first batch are; false if there is none, or it cannot be read.
    fn open(&mut self, partition: &Partition) -> bool {
        let Some(batch) = self.batches.front() else { return false };
        if self.is_open {
            return true;
        }
        for record in batch.ranges() {
            match record {
                Ok(record) => self.records.push(record),
                Err(error) => {
                    self.records.clear();
                    // A driver that is gone has nothing to end.
                    let _ = partition.commands.send(Command::Fail(Error::Client(error)));
                    self.batches.clear();
                    return false;
                }
            }
        }
        self.is_open = true;
        true
    }

    fn finish_batch(&mut self, partition: &Partition) {
        self.batches.pop_front();
        self.records.clear();
        (self.next, self.is_open) = (0, false);
        let shared = &partition.shared;
        let before = shared.queued.fetch_sub(1, Ordering::SeqCst);
        if before <= QUEUE_MAX / 2 + 1 && shared.is_held.swap(false, Ordering::SeqCst) {
            // A driver that is gone holds nothing.
            let _ = partition.commands.send(Command::Release(shared.partition.clone()));
        }
    }
}

fn keep(slots: &mut Vec<Slot>, slot: u16, message: Received) {
    let slot = usize::from(slot);
    if slots.len() <= slot {
        slots.resize_with(slot + 1, Slot::default);
    }
    slots[slot].received = Some(message);
    slots[slot].tries = Tries::default();
}

fn passage(partition: &Partition, message: &Received, now_ms: u64) -> Passage {
    let route = &partition.route;
    if !route.settings.filters.is_empty() {
        let wall_ms = partition.app.wall_ms();
        let decided = route.settings.filters.iter().map(|filter| filter.passage(message, wall_ms));
        if let Some(other) = decided.into_iter().find(|passage| *passage != Passage::Pass) {
            return other;
        }
    }
    match route.throttle.as_ref().map(|throttle| throttle.lock().take(now_ms.saturating_mul(1_000))) {
        Some(Err(wait_ms)) => Passage::WaitMs(wait_ms),
        _ => Passage::Pass,
    }
}
