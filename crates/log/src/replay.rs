//! The producers' state as of the log end, from the newest snapshot that is sound and the batches behind it.

use crate::error::LogError;
use crate::files::{FileKind, PartitionFiles};
use crate::inventory::list_snapshots;
use crate::log::Log;
use crate::patience::Patience;
use crate::producer_snapshot::{self, SNAPSHOT_BYTES_MAX};
use crate::producer_state::{ProducerBatch, ProducerState};
use crate::scan::{BatchScan, RECOVERY_CHUNK_BYTES, Scanned};
use crate::segment::patient;
use crate::storage::read_small_file;

impl Log {
    /// Takes the producers' state from the newest snapshot and the log. Snapshots are removed that are behind the log end,
    /// or before the first segment (what came between is unknown), or damaged, or neither the newest nor of a segment's
    /// base.
    pub(crate) fn reload_producers(&mut self, mono_ms: u64) -> Result<(), LogError> {
        let mut offsets = list_snapshots(&self.files)?;
        self.producers = ProducerState::default();
        self.snapshot_offset = None;
        while let Some(offset) = offsets.pop() {
            if (self.segments[0].base_offset..=self.log_end).contains(&offset)
                && let Some(state) = read_snapshot(&self.files, offset, mono_ms)?
            {
                self.producers = state;
                self.snapshot_offset = Some(offset);
                break;
            }
            self.files.remove(offset, FileKind::Snapshot)?;
        }
        for offset in offsets {
            if self.segments.binary_search_by_key(&offset, |segment| segment.base_offset).is_err() {
                self.files.remove(offset, FileKind::Snapshot)?;
            }
        }
        self.replay(self.snapshot_offset.unwrap_or(0), mono_ms)?;
        self.producers.bound(self.config.producer_ids_max);
        Ok(())
    }

    /// Notes the producers of all batches from an offset on.
    fn replay(&mut self, from: i64, mono_ms: u64) -> Result<(), LogError> {
        if from >= self.log_end {
            return Ok(());
        }
        for number in self.segment_of(from)..self.segments.len() {
            let segment = &self.segments[number];
            let path = self.files.path(segment.base_offset, FileKind::Log);
            let active = (number + 1 == self.segments.len()).then_some(&self.active.file);
            let files = segment.lookup_files(&self.files, active).map_err(LogError::io("open", &*path))?;
            let lookup = segment.lookup(from, files);
            let start = patient(lookup.start(from, Patience::Wait)).map_err(LogError::io("read", &*path))?;
            let range = start..u64::from(segment.len);
            let file = &*lookup.files.log;
            let mut batches =
                BatchScan::new(file, Patience::Wait, range, segment.base_offset, RECOVERY_CHUNK_BYTES);
            loop {
                match patient(batches.next(false)).map_err(LogError::io("read", &*path))? {
                    Scanned::Batch(batch) if batch.base_offset >= from => {
                        self.producers.record(&ProducerBatch::from(&batch), batch.last_offset, mono_ms);
                    }
                    Scanned::Batch(_) => {}
                    Scanned::End => break,
                    Scanned::Torn { position, reason } => {
                        return Err(LogError::Damaged { path, position, reason });
                    }
                }
            }
        }
        Ok(())
    }
}

/// Reads a snapshot; `None` when it is damaged.
fn read_snapshot(
    files: &PartitionFiles,
    offset: i64,
    mono_ms: u64,
) -> Result<Option<ProducerState>, LogError> {
    let path = files.path(offset, FileKind::Snapshot);
    let bytes =
        read_small_file(&*files.storage, &path, SNAPSHOT_BYTES_MAX).map_err(LogError::io("read", &*path))?;
    match producer_snapshot::decode(&bytes, mono_ms) {
        Ok(state) => Ok(Some(state)),
        Err(fault) => {
            tracing::warn!(path = %path.display(), %fault, "a producer snapshot is ignored");
            Ok(None)
        }
    }
}
