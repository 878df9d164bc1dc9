//! Copies that are offered: what a leader serves of its log.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use mainstem_log::{Export, ExportError};
use mainstem_replication::GroupId;
use mainstem_replication::copies::manifest::Manifest;
use mainstem_replication::copies::question::{Answer, Part, Question};
use mainstem_replication::snapshots::SnapshotContent;
use parking_lot::Mutex;

use super::{Copies, FREE_PART};
use crate::partition::{BegunCopy, Partition};
use crate::store::Store;

/// A copy of which no file was asked for so long is offered no more: the log may compact and remove its files again.
const IDLE_MS: u64 = 60_000;
/// Time in which no copy is offered after one of which no file was asked for: the replica cannot have it, for want of space perhaps.
const IN_VAIN_MS: u64 = 60_000;
/// Time in ms for which no copy is offered where the disk is short of space.
const SHORT_OF_SPACE_MS: u64 = 10_000;
/// A copy of which a range was asked within this time disturbs producers.
const IN_USE_MS: u64 = 2_000;
/// Bytes that a replica checks in a millisecond at least, of a copy that is whole: 16 MiB a second.
const CHECKED_BYTES_PER_MS: u64 = (16 << 20) / 1_000;
/// Attempts to find a place where a copy can end, while segments are committed or compacted.
const ATTEMPTS: usize = 20;
/// Time between two of them.
const AGAIN: Duration = Duration::from_millis(100);

/// A copy that is offered.
struct Source {
    group: GroupId,
    partition: Arc<Partition>,
    content: SnapshotContent,
    manifest: Vec<u8>,
    export: Export,
    /// Time of the last question for a file, or of the offer.
    asked_ms: AtomicU64,
    /// A file was asked for.
    is_fetched: AtomicBool,
    /// The end of the last file was asked for.
    is_whole: AtomicBool,
}

/// The copies that are offered, by group.
#[derive(Default)]
pub(super) struct Sources {
    offered: Mutex<HashMap<GroupId, Arc<Source>>>,
    /// Groups of which a copy was offered in vain, and the time until which none is offered: the log can be compacted meanwhile.
    in_vain: Mutex<HashMap<GroupId, u64>>,
}

impl Sources {
    fn get(&self, group: GroupId) -> Option<Arc<Source>> {
        self.offered.lock().get(&group).cloned()
    }

    pub(super) fn count(&self) -> usize {
        self.offered.lock().len()
    }

    /// Returns true if a node has asked for a range a moment ago.
    pub(super) fn are_in_use(&self, now_ms: u64) -> bool {
        let is_in_use =
            |source: &Arc<Source>| now_ms.saturating_sub(source.asked_ms.load(Ordering::Relaxed)) < IN_USE_MS;
        self.offered.lock().values().any(is_in_use)
    }

    /// Lets go of those that are not asked for any more, that have ended, or whose disk is nearly full.
    pub(super) fn release_idle(&self, now_ms: u64) {
        let is_idle = |source: &Source| {
            let idle_ms = now_ms.saturating_sub(source.asked_ms.load(Ordering::Relaxed));
            idle_ms >= source.idle_max_ms()
        };
        let is_over = |source: &Source| {
            is_idle(source) || source.export.has_ended() || is_short_of_space(&source.partition)
        };
        // Without the lock: a disk or a partition may keep them waiting.
        let all: Vec<_> = self.offered.lock().values().cloned().collect();
        let over: Vec<_> = all.into_iter().filter(|source| is_over(source)).collect();
        self.in_vain.lock().retain(|_, until_ms| *until_ms > now_ms);
        for source in over {
            if !self.remove_this(&source) {
                continue;
            }
            if is_idle(&source) && !source.is_fetched.load(Ordering::Relaxed) {
                self.in_vain.lock().insert(source.group, now_ms + IN_VAIN_MS);
            }
            source.release();
        }
    }

    /// Returns true if a copy was offered in vain a moment ago.
    fn was_in_vain(&self, group: GroupId, now_ms: u64) -> bool {
        self.in_vain.lock().get(&group).is_some_and(|until_ms| now_ms < *until_ms)
    }

    /// Offers no copy before a time.
    fn put_off(&self, group: GroupId, until_ms: u64) {
        self.in_vain.lock().insert(group, until_ms);
    }

    pub(super) fn release_all(&self) {
        // The partitions are closed next.
        self.offered.lock().clear();
    }

    fn remove(&self, group: GroupId) -> Option<Arc<Source>> {
        self.offered.lock().remove(&group)
    }

    /// Removes a copy, if it is the one that is offered.
    fn remove_this(&self, source: &Arc<Source>) -> bool {
        let mut offered = self.offered.lock();
        let is_it = offered.get(&source.group).is_some_and(|known| Arc::ptr_eq(known, source));
        is_it && offered.remove(&source.group).is_some()
    }
}

impl Source {
    /// Time without a question after which it is offered no more. A replica that has all of it reads and checks it before it asks for
    /// what follows.
    fn idle_max_ms(&self) -> u64 {
        match self.is_whole.load(Ordering::Relaxed) {
            true => IDLE_MS + self.export.bytes() / CHECKED_BYTES_PER_MS,
            false => IDLE_MS,
        }
    }

    /// Returns true if a question asks for the end of the last file.
    fn is_end(&self, question: &Question) -> bool {
        let last = self.export.files().len().checked_sub(1);
        let end = self.export.files().last().map(|file| file.len);
        question.part == Part::File(last.map_or(0, |last| last as u32))
            && end == question.position.checked_add(u64::from(question.len))
    }

    /// Offers it no more. Its files are let go when no question is being answered from it.
    fn release(self: Arc<Self>) {
        let partition = self.partition.clone();
        tracing::info!(topic = %partition.topic, partition = partition.index, "its copy is offered no more");
        drop(self);
        let _ = partition.offer_copy(None);
    }
}

/// Returns true if copies would take the last of a disk that the log of a partition is on.
fn is_short_of_space(partition: &Partition) -> bool {
    partition.with_log(|log| log.dir().clone()).is_ok_and(|dir| {
        let (storage, path) = (dir.storage(), dir.path());
        let spaces = storage.free_space(path).and_then(|free| Ok((free, storage.total_space(path)?)));
        // A disk that cannot be measured is no reason.
        spaces.is_ok_and(|(free, total)| free < total / FREE_PART)
    })
}

impl Copies {
    /// Offers a copy of a partition that this node leads.
    pub(super) fn carry_out_offer(&self, store: &Store, partition: &Arc<Partition>) {
        let Some(group) = partition.group_id() else { return };
        if let Some(source) = self.sources.get(group) {
            let is_of_this = Arc::ptr_eq(&source.partition, partition) && !source.export.has_ended();
            if is_of_this && partition.offer_copy(Some(source.content)) {
                return;
            }
            self.sources.remove(group);
        }
        if self.sources.was_in_vain(group, store.clock.mono_ms()) {
            return;
        }
        if is_short_of_space(partition) {
            let (topic, index) = (&partition.topic, partition.index);
            tracing::warn!(
                %topic,
                partition = index,
                "no copy is offered to a replica that is too far behind: less than 5 % of the disk is free, and a copy keeps files that \
                 would go; free some space"
            );
            self.sources.put_off(group, store.clock.mono_ms() + SHORT_OF_SPACE_MS);
            return;
        }
        for attempt in 0..ATTEMPTS {
            match partition.begin_copy(&store.clock, attempt == 0 || attempt == ATTEMPTS / 2) {
                Ok(BegunCopy::Begun(manifest, export)) => {
                    return self.serve(store, group, partition, &manifest, export);
                }
                Ok(BegunCopy::NotYet) if self.pause(store, AGAIN) => {}
                // It is reported again for as long as it leads.
                Ok(BegunCopy::NotYet | BegunCopy::NotWanted) => return,
                Err(error) => {
                    let (topic, index) = (&partition.topic, partition.index);
                    tracing::error!(%topic, partition = index, "no copy can be offered, to be tried again: {error}");
                    return;
                }
            }
        }
    }

    fn serve(
        &self,
        store: &Store,
        group: GroupId,
        partition: &Arc<Partition>,
        manifest: &Manifest,
        export: Export,
    ) {
        let (topic, index, end) = (&partition.topic, partition.index, manifest.start.offset);
        let (bytes, files) = (manifest.len(), manifest.files.len());
        tracing::info!(%topic, partition = index, end, bytes, files, "a copy is offered to replicas that are too far behind");
        let source = Source {
            group,
            partition: partition.clone(),
            content: manifest.content(),
            manifest: manifest.encode(),
            export,
            asked_ms: AtomicU64::new(store.clock.mono_ms()),
            is_fetched: AtomicBool::new(false),
            is_whole: AtomicBool::new(false),
        };
        let content = source.content;
        self.sources.offered.lock().insert(group, Arc::new(source));
        // Otherwise it is reported again that a replica needs one.
        let _ = partition.offer_copy(Some(content));
    }

    /// Answers a question for a range of a copy; `None`: it is refused. Blocks on the disk.
    pub fn answer(&self, store: &Store, from: i32, body: &[u8]) -> Option<Vec<u8>> {
        let question = Question::decode(body)?;
        let Some(source) = self.sources.get(question.group) else { return Some(Answer::Gone.encode()) };
        if !source.partition.has_replica_at(from) {
            return None;
        }
        let is_offered = source.content.crc == question.manifest && !source.export.has_ended();
        source.partition.note_snapshot_fetch(from, is_offered);
        if !is_offered {
            return Some(Answer::Gone.encode());
        }
        if question.part != Part::Manifest {
            source.asked_ms.store(store.clock.mono_ms(), Ordering::Relaxed);
            source.is_fetched.store(true, Ordering::Relaxed);
            if source.is_end(&question) {
                source.is_whole.store(true, Ordering::Relaxed);
            }
        }
        let position = usize::try_from(question.position).ok()?;
        let bytes = match question.part {
            Part::Manifest => {
                let range = position..position.checked_add(question.len as usize)?;
                source.manifest.get(range)?.to_vec()
            }
            Part::File(_) if !self.may_send(store, &source.partition, from, question.len) => {
                return Some(Answer::Later.encode());
            }
            Part::File(file) => {
                match source.export.read(file as usize, question.position, question.len as usize) {
                    Ok(bytes) => bytes,
                    Err(ExportError::NoSuchRange) => return None,
                    Err(error) => return Some(self.end_unreadable(&source, &error)),
                }
            }
        };
        let sent = if question.is_comparison { 0 } else { bytes.len() as u64 };
        self.counters.sent_bytes.fetch_add(sent, Ordering::Relaxed);
        Some(Answer::of_range(&bytes, question.is_comparison).encode())
    }

    fn may_send(&self, store: &Store, partition: &Partition, to: i32, len: u32) -> bool {
        let throttled = partition.throttled_rate(store.node, to);
        self.pace.may_send(store.clock.instant(), u64::from(len), throttled)
    }

    fn end_unreadable(&self, source: &Arc<Source>, error: &ExportError) -> Vec<u8> {
        let partition = &source.partition;
        if let ExportError::Io { source: io, .. } = error {
            tracing::error!(topic = %partition.topic, partition = partition.index, "its copy is offered no more: {error}");
            // Where it has no log there is nothing to note.
            let _ = partition.with_log(|log| log.dir().note_error(io));
        }
        if self.sources.remove_this(source) {
            source.clone().release();
        }
        Answer::Gone.encode()
    }
}
