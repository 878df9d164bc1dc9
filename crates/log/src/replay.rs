//! State that is derived from the batches of a log at its start, and after a truncation. It is the producers' state as of
//! the log end, and the transaction indexes of the same batches. The producers' state comes from the newest sound snapshot
//! and the batches behind it.
//!
//! Batches before that snapshot count too if a transaction index is missing, or if transactions ended behind a high
//! watermark that is further back. A walk from an older snapshot then reads them into a second state, which is dropped
//! afterwards.

use crate::aborted::RecentAborted;
use crate::error::LogError;
use crate::files::{FileKind, PartitionFiles};
use crate::inventory::list_snapshots;
use crate::log::Log;
use crate::producer_snapshot::{self, SNAPSHOT_BYTES_MAX};
use crate::producer_state::{ProducerBatch, ProducerState};
use crate::read_mode::ReadMode;
use crate::scan::{BatchScan, RECOVERY_CHUNK_BYTES, Scanned};
use crate::segment::{Segment, blocking};
use crate::storage::{OpenMode, StorageFile, read_small_file, write_all_at};
use crate::transaction_index::{AbortedTransaction, count_sound_before, entries_in, position_of};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes of a transaction index that are written at once.
const INDEX_CHUNK_BYTES: usize = 64 << 10;

impl Log {
    /// Takes the producers' state from the newest snapshot and the log, and makes the transaction indexes agree with the
    /// batches behind it. Transaction indexes of segments from `rebuild_from` on are rebuilt.
    ///
    /// Removes snapshots behind the log end, before the first segment (the batches between are unknown), and damaged ones.
    /// Of the others it keeps the newest, and those at the base of a segment.
    pub(crate) fn reload_producers(&mut self, rebuild_from: i64, mono_ms: u64) -> Result<(), LogError> {
        let (snapshot, older) = self.take_newest_snapshot()?;
        let from = snapshot.as_ref().map_or(0, |snapshot| snapshot.offset);
        self.snapshot_offset = snapshot.as_ref().map(|snapshot| snapshot.offset);
        let mut state = snapshot.map_or_else(ProducerState::default, |snapshot| snapshot.state);
        let mut indexes = IndexRebuild::begin(self, from, rebuild_from)?;
        let unreplicated_from =
            if self.high_watermark < self.log_end { self.high_watermark } else { i64::MAX };
        let earliest = rebuild_from.min(unreplicated_from);
        if earliest < from {
            let (start, mut earlier) = self.snapshot_before(&older, earliest)?;
            self.replay(&mut earlier, start..from, mono_ms, &mut |number, aborted| {
                if aborted.last_offset < rebuild_from { Ok(()) } else { indexes.push(number, aborted) }
            })?;
            state.set_unreplicated(earlier);
        }
        let end = self.log_end;
        self.replay(&mut state, from..end, mono_ms, &mut |number, aborted| indexes.push(number, aborted))?;
        let rebuilt = indexes.finish()?;
        self.take_indexes(rebuilt);
        self.producers = state;
        self.producer_share.set(self.producers.len());
        Ok(())
    }

    /// Finds out which transactions ended behind the high watermark, after it was set back.
    pub(crate) fn reload_unreplicated(&mut self) -> Result<(), LogError> {
        let mut state = ProducerState::default();
        if self.high_watermark < self.log_end && !self.producers.is_empty() {
            let older = list_snapshots(&self.files)?;
            let (start, earlier) = self.snapshot_before(&older, self.high_watermark)?;
            state = earlier;
            self.replay(&mut state, start..self.log_end, 0, &mut |_, _| Ok(()))?;
        }
        self.producers.set_unreplicated(state);
        Ok(())
    }

    /// The newest sound snapshot; and the offsets of those before it that are of a segment's base.
    fn take_newest_snapshot(&self) -> Result<(Option<Snapshot>, Vec<i64>), LogError> {
        let mut offsets = list_snapshots(&self.files)?;
        let mut newest = None;
        while let Some(offset) = offsets.pop() {
            if (self.segments[0].base_offset..=self.log_end).contains(&offset)
                && let Some(state) = read_snapshot(&self.files, offset)?
            {
                newest = Some(Snapshot { offset, state });
                break;
            }
            self.files.remove(offset, FileKind::Snapshot)?;
        }
        let is_base = |offset: &i64| self.segments.binary_search_by_key(offset, |s| s.base_offset).is_ok();
        for offset in offsets.iter().filter(|offset| !is_base(offset)) {
            self.files.remove(*offset, FileKind::Snapshot)?;
        }
        offsets.retain(is_base);
        Ok((newest, offsets))
    }

    /// The newest sound one of these snapshots that is not behind an offset; without any the state begins, empty,
    /// with the first segment.
    fn snapshot_before(&self, offsets: &[i64], offset: i64) -> Result<(i64, ProducerState), LogError> {
        let first = self.segments[0].base_offset;
        for candidate in offsets.iter().rev().filter(|candidate| (first..=offset).contains(*candidate)) {
            if let Some(state) = read_snapshot(&self.files, *candidate)? {
                return Ok((*candidate, state));
            }
        }
        Ok((first, ProducerState::default()))
    }

    /// Notes the batches of a range of offsets in a state. `each` is called with every transaction that is aborted, with
    /// the number of the segment that has the marker.
    fn replay(
        &self,
        state: &mut ProducerState,
        range: Range<i64>,
        mono_ms: u64,
        each: &mut dyn FnMut(usize, &AbortedTransaction) -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        if range.is_empty() {
            return Ok(());
        }
        for number in self.segment_of(range.start)..self.segments.len() {
            if self.segments[number].base_offset >= range.end {
                break;
            }
            self.replay_segment(number, state, &range, mono_ms, each)?;
        }
        Ok(())
    }

    fn replay_segment(
        &self,
        number: usize,
        state: &mut ProducerState,
        range: &Range<i64>,
        mono_ms: u64,
        each: &mut dyn FnMut(usize, &AbortedTransaction) -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        let segment = &self.segments[number];
        let path = self.files.path(segment.base_offset, FileKind::Log);
        let active = (number + 1 == self.segments.len()).then_some(&self.active.file);
        let files = segment.lookup_files(&self.files, active).map_err(LogError::io("open", &*path))?;
        let lookup = segment.lookup(range.start, files);
        let start =
            blocking(lookup.start(range.start, ReadMode::Blocking)).map_err(LogError::io("read", &*path))?;
        let positions = start..u64::from(segment.len);
        let file = &*lookup.files.log;
        let mut batches =
            BatchScan::new(file, ReadMode::Blocking, positions, segment.base_offset, RECOVERY_CHUNK_BYTES);
        loop {
            match blocking(batches.next(false)).map_err(LogError::io("read", &*path))? {
                Scanned::Batch(batch) if batch.base_offset >= range.end => return Ok(()),
                Scanned::Batch(batch) if batch.base_offset >= range.start => {
                    let marker = blocking(batches.marker(&batch)).map_err(LogError::io("read", &*path))?;
                    let noted = ProducerBatch::stored(&batch, marker);
                    if let Some(aborted) = state.aborted_by(&noted, batch.base_offset) {
                        each(number, &aborted)?;
                    }
                    state.record(&noted, batch.last_offset, mono_ms);
                    if marker.is_some() {
                        state.settle_before(self.high_watermark);
                    }
                }
                Scanned::Batch(_) => {}
                Scanned::End => return Ok(()),
                Scanned::Torn { position, reason } => {
                    return Err(LogError::Damaged { path, position, reason });
                }
            }
        }
    }

    /// Puts rebuilt transaction indexes in place.
    fn take_indexes(&mut self, rebuilt: Rebuilt) {
        let Rebuilt { first, counts, files, names, recent } = rebuilt;
        for (segment, count) in self.segments[first..].iter_mut().zip(counts) {
            segment.aborted = count;
        }
        files.into_iter().for_each(|file| self.flush.add_file(file));
        if names {
            self.flush.add_directory(&self.files.dir);
        }
        self.aborted = recent;
    }
}

/// The producers before an offset, as a file has them.
struct Snapshot {
    offset: i64,
    state: ProducerState,
}

/// The transaction indexes of the last segments, cut to what is known to be right, while the rest is added.
struct IndexRebuild {
    files: PartitionFiles,
    /// Number of the first of these segments,
    first: usize,
    /// and the base offset of each.
    base_offsets: Vec<i64>,
    /// Entries in the file of each.
    counts: Vec<u32>,
    /// The first of these segments whose file is replaced as a whole.
    first_replaced: usize,
    /// The files that were changed.
    changed: Vec<Arc<dyn StorageFile>>,
    /// The segment of the entries in the buffer, counted from the first of these.
    current: usize,
    buffer: Vec<u8>,
    recent: RecentAborted,
}

/// The result of a rebuild.
struct Rebuilt {
    first: usize,
    counts: Vec<u32>,
    files: Vec<Arc<dyn StorageFile>>,
    /// Files were replaced.
    names: bool,
    recent: RecentAborted,
}

impl IndexRebuild {
    /// Cuts off what the indexes have from an offset on. Those of segments from `rebuild_from` on stay until others take
    /// their places: a start that breaks off must not leave one that looks as if it were whole.
    fn begin(log: &Log, from: i64, rebuild_from: i64) -> Result<IndexRebuild, LogError> {
        let from = from.min(rebuild_from);
        let first = log.segment_of(from);
        let segments = &log.segments[first..];
        let mut this = IndexRebuild {
            files: log.files.clone(),
            first,
            base_offsets: segments.iter().map(|segment| segment.base_offset).collect(),
            counts: Vec::with_capacity(segments.len()),
            first_replaced: segments.partition_point(|segment| segment.base_offset < rebuild_from),
            changed: Vec::new(),
            current: 0,
            buffer: Vec::new(),
            recent: RecentAborted::default(),
        };
        for (number, segment) in segments.iter().enumerate() {
            let is_cut = number < this.first_replaced && segment.aborted > 0;
            let count = if is_cut { this.cut(segment, from)? } else { 0 };
            this.counts.push(count);
        }
        let has_earlier = log.segments[..first].iter().any(|segment| segment.aborted > 0);
        if has_earlier || this.counts.iter().any(|count| *count > 0) {
            this.recent = RecentAborted::known_from(from);
        }
        Ok(this)
    }

    /// Cuts one index; returns how many entries are left.
    fn cut(&mut self, segment: &Segment, from: i64) -> Result<u32, LogError> {
        let (base_offset, kind) = (segment.base_offset, FileKind::TransactionIndex);
        let failed = || self.files.path(base_offset, kind);
        let file = self.files.open(base_offset, kind)?;
        let count = count_sound_before(&*file, segment.aborted, base_offset, from)
            .map_err(LogError::io("read", failed()))?;
        let len = file.len().map_err(LogError::io("inspect", failed()))?;
        if len != position_of(count) {
            file.set_len(position_of(count)).map_err(LogError::io("cut", failed()))?;
            self.changed.push(file);
        }
        Ok(count)
    }

    /// Adds an entry to the index of segment `number`; they come in the order of their markers.
    fn push(&mut self, number: usize, aborted: &AbortedTransaction) -> Result<(), LogError> {
        let current = number - self.first;
        if current != self.current || self.buffer.len() >= INDEX_CHUNK_BYTES {
            self.write()?;
            self.current = current;
        }
        aborted.encode(&mut self.buffer);
        self.recent.push(*aborted);
        Ok(())
    }

    fn write(&mut self) -> Result<(), LogError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let path = self.path_of(self.current);
        let count = &mut self.counts[self.current];
        let opened = self.files.storage.open(&path, OpenMode::Create);
        let file = opened.map_err(LogError::io("open", &*path))?;
        let written = file
            .set_len(position_of(*count))
            .and_then(|()| write_all_at(&*file, &self.buffer, position_of(*count)));
        written.map_err(LogError::io("write", path))?;
        *count += entries_in(self.buffer.len() as u64);
        self.buffer.clear();
        self.changed.push(file);
        Ok(())
    }

    /// The path to which the entries of one of these segments are written.
    fn path_of(&self, number: usize) -> PathBuf {
        let path = self.files.path(self.base_offsets[number], FileKind::TransactionIndex);
        if number < self.first_replaced { path } else { path.with_extension("txnindex.tmp") }
    }

    /// Puts a rewritten file in its place.
    fn replace(&self, number: usize) -> Result<(), LogError> {
        let (base_offset, kind) = (self.base_offsets[number], FileKind::TransactionIndex);
        if self.counts[number] == 0 {
            return self.files.remove(base_offset, kind);
        }
        let (path, storage) = (self.path_of(number), &self.files.storage);
        let synced = storage.open(&path, OpenMode::ReadWrite).and_then(|file| file.sync_data());
        synced
            .and_then(|()| storage.rename(&path, &self.files.path(base_offset, kind)))
            .map_err(LogError::io("replace", path))
    }

    fn finish(mut self) -> Result<Rebuilt, LogError> {
        self.write()?;
        (self.first_replaced..self.counts.len()).try_for_each(|number| self.replace(number))?;
        let IndexRebuild { first, counts, changed: files, recent, first_replaced, .. } = self;
        let names = first_replaced < counts.len();
        Ok(Rebuilt { first, counts, files, names, recent })
    }
}

/// Reads a snapshot; `None` when it is damaged.
fn read_snapshot(files: &PartitionFiles, offset: i64) -> Result<Option<ProducerState>, LogError> {
    let path = files.path(offset, FileKind::Snapshot);
    let bytes =
        read_small_file(&*files.storage, &path, SNAPSHOT_BYTES_MAX).map_err(LogError::io("read", &*path))?;
    match producer_snapshot::decode(&bytes) {
        Ok(state) => Ok(Some(state)),
        Err(fault) => {
            tracing::warn!(path = %path.display(), %fault, "a producer snapshot is ignored");
            Ok(None)
        }
    }
}
