//! Checks the batches of one segment, and its indexes beside them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use mainstem_records::{Batch, Origin, Scratch, ValidationRules, validate};

use super::findings::Findings;
use super::index::IndexCheck;
use crate::disk::{EpochEntry, FileKind, IndexKind, SegmentFile, Step, Walk, ZeroTail, index_entries};

/// The most bytes to which one batch may decompress.
const DECOMPRESSED_BYTES_MAX: usize = 1 << 30;

/// State that one segment of a partition hands to the next.
#[derive(Debug)]
pub(crate) struct Cursor {
    /// The lowest offset that may come next.
    pub(crate) next_offset: i64,
    /// Compaction may have removed offsets.
    pub(crate) has_gaps: bool,
    /// The leader epoch of the last batch.
    pub(crate) leader_epoch: i32,
    /// The entries of the partition's leader-epoch checkpoint, oldest first.
    pub(crate) epochs: Vec<EpochEntry>,
}

/// Checks one segment.
pub(crate) struct SegmentCheck<'c> {
    pub(crate) file: &'c SegmentFile,
    /// True for the last segment of its partition. A crash may have left that one incomplete.
    pub(crate) is_last: bool,
    pub(crate) cursor: &'c mut Cursor,
    pub(crate) findings: &'c mut Findings,
    pub(crate) scratch: &'c mut Scratch,
}

impl SegmentCheck<'_> {
    /// Checks the segment; `progress` gets the count of bytes checked.
    pub(crate) fn run(&mut self, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let path = &self.file.path;
        let unreadable = || format!("cannot read {}", path.display());
        if self.file.base_offset < self.cursor.next_offset {
            let what = format!("the segment before it reaches to offset {}", self.cursor.next_offset - 1);
            self.findings.fault(path, None, what);
        }
        if self.file.base_offset > self.cursor.next_offset && !self.cursor.has_gaps {
            let (first, last) = (self.cursor.next_offset, self.file.base_offset - 1);
            self.findings.fault(path, None, format!("no segment before it has offsets {first} to {last}"));
            self.cursor.next_offset = self.file.base_offset;
        }
        let mut indexes = self.open_indexes()?;
        let mut walk = Walk::open(path).with_context(unreadable)?;
        self.findings.segments += 1;
        self.findings.bytes += walk.length();
        loop {
            let before = walk.position();
            match walk.step().with_context(unreadable)? {
                Step::Batch { position, bytes } => {
                    self.check_batch(&bytes, position, &mut indexes);
                    progress(walk.position() - before);
                }
                Step::Broken { position, rest, error, zeros } => {
                    self.broken(position, rest, &error.to_string(), zeros);
                    progress(rest);
                    break;
                }
                Step::End => break,
            }
        }
        for (file, check) in indexes {
            if let Err((_, what)) = check.finish() {
                self.findings.fault(&file, None, what);
            }
        }
        Ok(())
    }

    fn open_indexes(&mut self) -> Result<Vec<(PathBuf, IndexCheck)>> {
        let mut checks = Vec::new();
        for (kind, file) in [(IndexKind::Offset, FileKind::Index), (IndexKind::Time, FileKind::TimeIndex)] {
            let path = self.file.sibling(file);
            let bytes = match fs::read(&path) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.findings.note(&path, None, "missing: the broker rebuilds it at its next start");
                    continue;
                }
                Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
            };
            let (entries, odd) = index_entries(kind, &bytes, self.file.base_offset);
            if odd > 0 {
                self.findings.fault(&path, None, format!("its last {odd} bytes make no entry"));
            }
            match IndexCheck::new(kind, entries) {
                Ok(check) => checks.push((path, check)),
                Err((_, what)) => self.findings.fault(&path, None, what),
            }
        }
        Ok(checks)
    }

    fn check_batch(&mut self, bytes: &[u8], position: u64, indexes: &mut [(PathBuf, IndexCheck)]) {
        let (batch, _) = Batch::split_first(bytes).expect("the walk gives whole batches");
        self.findings.batches += 1;
        self.findings.records += u64::from(batch.record_count().max(0).unsigned_abs());
        let (path, at) = (&self.file.path, Some(position));
        if let Err(error) = validate(batch, &rules(&batch), self.scratch) {
            self.findings.fault(path, at, format!("offset {}: {error}", batch.base_offset()));
            if !batch.verify_crc() {
                // No field can be trusted. The base offset is kept, as the CRC does not cover it.
                self.cursor.next_offset = self.cursor.next_offset.max(batch.base_offset());
                indexes.iter_mut().for_each(|(_, check)| check.pass_damaged(batch.base_offset()));
                return;
            }
        }
        self.check_order(&batch, position);
        for (file, check) in indexes {
            if let Err((_, what)) = check.take(&batch.header(), position) {
                self.findings.fault(file, None, what);
            }
        }
    }

    fn check_order(&mut self, batch: &Batch<'_>, position: u64) {
        let (path, at) = (&self.file.path, Some(position));
        let (offset, epoch) = (batch.base_offset(), batch.partition_leader_epoch());
        if offset < self.file.base_offset {
            self.findings.fault(path, at, format!("offset {offset} is below the segment's first"));
        } else if offset < self.cursor.next_offset {
            let what = format!("offset {offset} comes after offset {}", self.cursor.next_offset - 1);
            self.findings.fault(path, at, what);
        }
        if epoch < self.cursor.leader_epoch {
            let what = format!("leader epoch {epoch} comes after {}", self.cursor.leader_epoch);
            self.findings.fault(path, at, what);
        }
        if let Some(expected) = epoch_at(&self.cursor.epochs, offset).filter(|expected| *expected != epoch) {
            let what =
                format!("leader epoch {epoch}, where the checkpoint has {expected} for offset {offset}");
            self.findings.fault(path, at, what);
        }
        self.cursor.next_offset = self.cursor.next_offset.max(batch.next_offset());
        self.cursor.leader_epoch = self.cursor.leader_epoch.max(epoch);
    }

    fn broken(&mut self, position: u64, rest: u64, error: &str, zeros: ZeroTail) {
        let (path, at) = (&self.file.path, Some(position));
        match (self.is_last, zeros) {
            (true, ZeroTail::All) => {
                self.findings.note(
                    path,
                    at,
                    format!("the last {rest} bytes are zeros: space for what comes"),
                );
            }
            (true, ZeroTail::No) => self.findings.fault(
                path,
                at,
                format!(
                    "the last {rest} bytes are no batch ({error}); the broker cuts them off at its next start"
                ),
            ),
            (false, _) => {
                self.findings.fault(path, at, format!("no batch ({error}); {rest} bytes cannot be read"));
            }
        }
    }
}

/// The epoch of an offset by the checkpoint; none if it does not say.
fn epoch_at(epochs: &[EpochEntry], offset: i64) -> Option<i32> {
    let after = epochs.partition_point(|entry| entry.start_offset <= offset);
    Some(epochs.get(after.checked_sub(1)?)?.epoch)
}

/// Rules for batches on disk, from any producer.
fn rules(batch: &Batch<'_>) -> ValidationRules {
    ValidationRules {
        origin: Origin::Replication,
        key_required: false,
        timestamp_type: batch.attributes().timestamp_type(),
        timestamp_before_max_ms: i64::MAX,
        timestamp_after_max_ms: i64::MAX,
        now_ms: 0,
        decompressed_bytes_max: DECOMPRESSED_BYTES_MAX,
    }
}

/// Reads a small text file; none if it does not exist. Bytes that are not UTF-8 become replacement characters, which no number or name
/// has.
pub(crate) fn read_text(path: &Path) -> Result<Option<String>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}
