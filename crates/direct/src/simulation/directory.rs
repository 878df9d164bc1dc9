//! A publisher's directory on a disk that keeps what was synced, and may lose the rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use super::random::Random;
use super::truth::{EventId, Sieve};
use crate::error::Result;
use crate::resume::{Epoch, JournalId};
use crate::slot_file::Syncing;
use crate::subscription::SubscriptionStore;

/// A batch of events.
#[derive(Debug, Clone)]
pub(super) struct AppendedBatch {
    pub(super) from: i64,
    pub(super) next: i64,
    pub(super) bytes: Bytes,
}

/// The contents of the consumer's file.
#[derive(Debug, Clone, Default)]
struct Contents {
    /// Writes, the newest last; the first is on disk.
    written: Vec<Vec<u8>>,
}

/// The file of the consumer: `SlotFile`, without a disk.
#[derive(Debug, Default)]
pub(super) struct SubscriptionFile(Arc<Mutex<Contents>>);

impl Clone for SubscriptionFile {
    /// A copy, as of a directory, is another file.
    fn clone(&self) -> SubscriptionFile {
        SubscriptionFile(Arc::new(Mutex::new(self.0.lock().clone())))
    }
}

impl SubscriptionFile {
    pub(super) fn read(&self) -> Option<Vec<u8>> {
        self.0.lock().written.last().cloned()
    }

    /// Makes the last write durable.
    pub(super) fn sync(&self) {
        let mut contents = self.0.lock();
        let newest = contents.written.pop();
        contents.written = newest.into_iter().collect();
    }

    /// After a power cut any whole copy may be the newest: the last write, the one before, or the synced one.
    fn cut_power(&self, random: &mut Random) {
        let mut contents = self.0.lock();
        if !contents.written.is_empty() {
            let kept = random.below(contents.written.len());
            contents.written.truncate(kept + 1);
            contents.written.drain(..kept);
        }
    }

    pub(super) fn store(&self, is_dead: Arc<AtomicBool>, forgets: bool) -> Box<dyn SubscriptionStore> {
        Box::new(FileStore { file: self.0.clone(), is_dead, forgets })
    }
}

/// The store of a process, which writes to the file.
#[derive(Debug)]
struct FileStore {
    file: Arc<Mutex<Contents>>,
    /// The process was killed.
    is_dead: Arc<AtomicBool>,
    /// A defect that the simulation has to find: syncs do nothing.
    forgets: bool,
}

impl SubscriptionStore for FileStore {
    fn write(&mut self, bytes: &[u8], is_synced: bool) -> Result<()> {
        if self.is_dead.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut contents = self.file.lock();
        if is_synced && !self.forgets {
            contents.written.clear();
        }
        contents.written.push(bytes.to_vec());
        // Three slots keep three copies.
        if contents.written.len() > 3 {
            contents.written.remove(1);
        }
        Ok(())
    }

    fn seek(&mut self, _: i64) {}

    fn to_sync(&self) -> Option<Syncing> {
        None
    }

    fn synced(&mut self, _: u64) {}

    fn sync_failed(&mut self, _: u64) -> bool {
        false
    }

    fn delete(&mut self) -> Result<()> {
        self.file.lock().written.clear();
        Ok(())
    }
}

/// A directory. A clone is a copy at this moment.
#[derive(Debug, Clone)]
pub(super) struct Directory {
    pub(super) id: JournalId,
    pub(super) history: Vec<EventId>,
    batches: Vec<AppendedBatch>,
    pub(super) synced: i64,
    /// The first offset that retention has left.
    pub(super) start: i64,
    pub(super) runs: Vec<Epoch>,
    pub(super) closed_at: Option<i64>,
    pub(super) subscription: SubscriptionFile,
    /// Truth: the filters of the consumer, by the offset from which each holds.
    pub(super) filters: Vec<(i64, Sieve)>,
    /// Truth: the ledger of the consumer's positions.
    pub(super) ledger: usize,
    /// Truth: the offset behind the last event that was ever visible.
    pub(super) shown: i64,
    /// Truth: the offsets at which power cuts have erased visible events.
    pub(super) cut_at: Vec<i64>,
}

impl Directory {
    pub(super) fn new(number: u8, ledger: usize) -> Directory {
        Directory {
            id: JournalId([number; 16]),
            history: Vec::new(),
            batches: Vec::new(),
            synced: 0,
            start: 0,
            runs: Vec::new(),
            closed_at: Some(0),
            subscription: SubscriptionFile::default(),
            filters: vec![(0, Sieve::Everything)],
            ledger,
            shown: 0,
            cut_at: Vec::new(),
        }
    }

    pub(super) fn end(&self) -> i64 {
        self.history.len() as i64
    }

    /// Adds the batch of events that are in the history already.
    pub(super) fn append(&mut self, bytes: Bytes) {
        let from = self.batches.last().map_or(0, |last| last.next);
        self.batches.push(AppendedBatch { from, next: self.end(), bytes });
    }

    pub(super) fn sync(&mut self) {
        self.synced = self.end();
    }

    /// Returns whole batches, from the one with `offset` on and before `end`, at most `count`.
    pub(super) fn read(&self, offset: i64, end: i64, count: usize) -> &[AppendedBatch] {
        let from = self.batches.partition_point(|batch| batch.next <= offset);
        let to = self.batches.partition_point(|batch| batch.next <= end);
        &self.batches[from..to.min(from + count)]
    }

    /// Returns the start of the first batch at or behind an offset: retention removes whole batches.
    pub(super) fn boundary(&self, offset: i64) -> i64 {
        self.batches.iter().map(|batch| batch.from).find(|from| *from >= offset).unwrap_or(self.end())
    }

    /// Cuts the power: any part of what was not synced may be gone.
    pub(super) fn cut_power(&mut self, random: &mut Random) {
        let kept = random.within(self.synced, self.end());
        let whole = self.batches.partition_point(|batch| batch.next <= kept);
        self.batches.truncate(whole);
        let end = self.batches.last().map_or(0, |last| last.next);
        self.history.truncate(end as usize);
        if self.shown > end {
            self.cut_at.push(end);
            self.shown = end;
        }
        self.subscription.cut_power(random);
    }

    /// Returns the filter of an event.
    pub(super) fn sieve(&self, offset: i64) -> Sieve {
        self.filters.iter().rev().find(|(from, _)| *from <= offset).expect("the first is from 0 on").1
    }
}
