//! The unfinished messages of a partition, by their slot in the window, and the batches that they are in.

use std::sync::Arc;

use mainstem_client::{Error, FetchedBatch, RecordRange};

use crate::attempt::Failure;
use crate::cx::Cx;
use crate::judge::{Mark, Tries};
use crate::message::{OpenBatch, Received};

/// Vectors of emptied batches that are kept for other batches.
const SPARE_MAX: usize = 4;

/// A batch that has unfinished messages, or may have.
pub(super) type BatchNumber = u32;

/// The unfinished messages, and the batches that they are in.
#[derive(Default)]
pub(super) struct Messages {
    slots: Vec<Slot>,
    batches: Vec<InUse>,
    free: Vec<BatchNumber>,
    spare: Vec<Vec<RecordRange>>,
}

/// A batch, and how many messages and others need it. A message has no `Arc` of its own: that would have to be counted by all threads.
#[derive(Default)]
struct InUse {
    batch: Option<Arc<OpenBatch>>,
    uses: u32,
    /// It is a copy of one message that waits.
    is_copy: bool,
}

/// A message that is not finished.
#[derive(Default)]
pub(super) struct Slot {
    /// Its batch, and its place there.
    record: Option<(BatchNumber, u32)>,
    pub(super) tries: Tries,
    pub(super) mark: Mark,
    pub(super) first_failed_wall_ms: i64,
    /// When it was admitted to the window, by the application's clock.
    pub(super) admitted_ms: u64,
    /// When its attempt was started, by the application's clock.
    pub(super) started_ms: u64,
    /// The context of its attempt; none while that runs.
    pub(super) cx: Option<Cx>,
    /// The address of the context that its attempt was started with.
    pub(super) cx_address: usize,
    /// The failure of a message that no handler gets.
    pub(super) refusal: Option<Box<Failure>>,
    /// The others of its batch.
    pub(super) others: Vec<u16>,
}

impl Messages {
    /// Takes a batch, for which the caller says [`Messages::close`] later.
    pub(super) fn open(&mut self, batch: FetchedBatch) -> Result<BatchNumber, Error> {
        let batch = OpenBatch::open(batch, self.spare.pop().unwrap_or_default())?;
        Ok(self.add(batch, false))
    }

    fn add(&mut self, batch: OpenBatch, is_copy: bool) -> BatchNumber {
        let number = self.free.pop().unwrap_or_else(|| {
            self.batches.push(InUse::default());
            BatchNumber::try_from(self.batches.len() - 1).expect("a window has at most 1,024 messages")
        });
        self.batches[number as usize] = InUse { batch: Some(Arc::new(batch)), uses: 1, is_copy };
        number
    }

    /// Copies a message that may wait for long. Its batch is a part of an answer of many megabytes, all of which would stay in memory for
    /// it.
    pub(super) fn copy(&mut self, slot: u16) {
        let Some((number, index)) = self.get(slot).record else { return };
        if self.batches[number as usize].is_copy {
            return;
        }
        if let Some(copy) = self.batch(number).alone(index) {
            let own = self.add(copy, true);
            self.get_mut(slot).record = Some((own, 0));
            self.close(number);
        }
    }

    /// A batch that is open.
    #[inline]
    pub(super) fn batch(&self, number: BatchNumber) -> &OpenBatch {
        self.shared(number)
    }

    #[inline]
    pub(super) fn shared(&self, number: BatchNumber) -> &Arc<OpenBatch> {
        self.batches[number as usize].batch.as_ref().expect("a batch is there as long as it is used")
    }

    /// Nothing more of a batch is admitted.
    #[inline]
    pub(super) fn close(&mut self, number: BatchNumber) {
        let one = &mut self.batches[number as usize];
        one.uses -= 1;
        if one.uses > 0 {
            return;
        }
        self.free.push(number);
        let is_copy = one.is_copy;
        // A handler may keep a message for longer.
        if let Some(batch) = one.batch.take().and_then(Arc::into_inner)
            && self.spare.len() < SPARE_MAX
            && !is_copy
        {
            self.spare.push(batch.into_ranges());
        }
    }

    /// A message was admitted: a record of a batch that is open.
    #[inline]
    pub(super) fn keep(&mut self, slot: u16, number: BatchNumber, index: u32) {
        let slot = usize::from(slot);
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, Slot::default);
        }
        let one = &mut self.slots[slot];
        one.record = Some((number, index));
        one.tries = Tries::default();
        self.batches[number as usize].uses += 1;
    }

    #[inline]
    pub(super) fn get(&self, slot: u16) -> &Slot {
        &self.slots[usize::from(slot)]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: u16) -> &mut Slot {
        &mut self.slots[usize::from(slot)]
    }

    /// The record of a message that is unfinished.
    #[inline]
    pub(super) fn received(&self, slot: u16) -> Option<Received> {
        let (number, index) = self.get(slot).record?;
        Some(self.record(number, index))
    }

    /// A record of a batch.
    #[inline]
    pub(super) fn record(&self, number: BatchNumber, index: u32) -> Received {
        Received::new(self.shared(number).clone(), index)
    }

    /// A message is finished.
    #[inline]
    pub(super) fn finish(&mut self, slot: u16) {
        if let Some((number, _)) = self.get_mut(slot).record.take() {
            self.close(number);
        }
    }

    /// No message is unfinished any more.
    pub(super) fn clear(&mut self) {
        for slot in 0..self.slots.len() {
            self.slots[slot].refusal = None;
            self.finish(u16::try_from(slot).expect("a window has at most 1,024 slots"));
        }
    }
}
