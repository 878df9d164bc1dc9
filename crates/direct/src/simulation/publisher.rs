//! The process that serves the directory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::directory::Directory;
use crate::chunk::{Chunk, Counters, Found, Ring};
use crate::error::Refused;
use crate::pipeline_cache::PipelineCache;
use crate::proto;
use crate::resume::{Epoch, JournalId, JournalView, reopen};
use crate::subscription::{Restored, Subscription, Surroundings};

/// The most batches of a chunk.
const CHUNK_BATCHES: usize = 3;

/// A running publisher.
#[derive(Debug)]
pub(super) struct Publisher {
    id: JournalId,
    epochs: Arc<[Epoch]>,
    pub(super) ring: Ring,
    pub(super) counters: Counters,
    pub(super) pipelines: Arc<PipelineCache>,
    pub(super) subscription: Option<Arc<Subscription>>,
    clock: Arc<AtomicU64>,
    is_dead: Arc<AtomicBool>,
    /// A defect of the disk: see `FileStore`.
    forgets: bool,
}

impl Publisher {
    /// Opens a directory, in the run of this number.
    pub(super) fn start(
        directory: &mut Directory,
        run: u64,
        clock: &Arc<AtomicU64>,
        forgets: bool,
    ) -> Publisher {
        let end = directory.end();
        reopen(&mut directory.runs, directory.closed_at.take(), end, run);
        directory.sync();
        directory.shown = end;
        let mut publisher = Publisher {
            id: directory.id,
            epochs: directory.runs.clone().into(),
            ring: Ring::new(end),
            counters: Counters::default(),
            pipelines: Arc::default(),
            subscription: None,
            clock: clock.clone(),
            is_dead: Arc::default(),
            forgets,
        };
        if let Some(kept) = directory.subscription.read() {
            let view = publisher.view(directory);
            let restored = Restored::of(&kept, &view).expect("it was written by this program");
            publisher.subscription = Some(publisher.subscribe(directory, restored));
        }
        publisher
    }

    fn subscribe(&self, directory: &Directory, restored: Restored) -> Arc<Subscription> {
        let clock = self.clock.clone();
        let surroundings = Surroundings {
            store: directory.subscription.store(self.is_dead.clone(), self.forgets),
            clock: Box::new(move || clock.load(Ordering::Relaxed)),
        };
        Arc::new(Subscription::new("consumer", restored, surroundings).expect("the disk takes it"))
    }

    pub(super) fn view(&self, directory: &Directory) -> JournalView {
        let end = self.ring.end();
        JournalView { id: self.id, epochs: self.epochs.clone(), start: directory.start.min(end), end }
    }

    /// Returns the consumer, made if need be, and the offset at which a new one begins.
    pub(super) fn subscription(
        &mut self,
        directory: &Directory,
        start: proto::Start,
    ) -> (Arc<Subscription>, Option<i64>) {
        if let Some(known) = &self.subscription {
            return (known.clone(), None);
        }
        let view = self.view(directory);
        let from = match start {
            proto::Start::Earliest => view.start,
            proto::Start::Latest => view.end,
        };
        // A random number that is the same for a seed.
        let random = view.epochs.last().map_or(0, |run| run.run);
        let subscription = self.subscribe(directory, Restored::new(&view, from, random));
        self.subscription = Some(subscription.clone());
        (subscription, Some(from))
    }

    /// Shows events before an offset, in chunks.
    pub(super) fn show(&self, directory: &mut Directory, end: i64) {
        while self.ring.end() < end {
            self.ring.push(self.chunk(directory, self.ring.end(), end));
        }
        directory.shown = directory.shown.max(end);
    }

    fn chunk(&self, directory: &Directory, offset: i64, end: i64) -> Chunk {
        let batches = directory.read(offset, end, CHUNK_BATCHES);
        let (first, last) = (batches.first().expect("it has the offset"), batches.last().expect("so it has"));
        let bytes: Vec<u8> = batches.iter().flat_map(|batch| batch.bytes.iter().copied()).collect();
        Chunk::new(first.from, last.next, bytes.into(), &self.counters)
    }

    /// Reads as a session does: from the ring, or else from the disk.
    pub(super) fn find(&self, directory: &Directory, offset: i64) -> Result<Arc<Chunk>, Refused> {
        let end = self.ring.end();
        match self.ring.find(offset) {
            Found::Chunk(chunk) => Ok(chunk),
            _ if offset < directory.start => Err(Refused::OutOfRange { offset, start: directory.start, end }),
            _ => Ok(Arc::new(self.chunk(directory, offset, end))),
        }
    }

    /// Kills the process: from now on it changes nothing.
    pub(super) fn kill(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
    }
}
