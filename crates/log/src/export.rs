//! The beginning of a log as files that another replica gets.
//!
//! An [`Export`] names the closed segments before an offset, with their lengths, and the snapshot of the producers there. For as long
//! as it lives the log neither compacts nor removes them. A truncation or another log in the place of this one ends it: what is
//! read from then on is refused.

use crate::error::LogError;
use crate::files::{FileKind, PartitionFiles};
use crate::inventory::list_snapshots;
use crate::leader_epochs::EpochEntry;
use crate::log::Log;
use crate::storage::{OpenMode, read_exact_at};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// A file of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportedFile {
    /// Offset in the file's name.
    pub base_offset: i64,
    /// True for a snapshot of the producers, false for record batches.
    pub is_snapshot: bool,
    /// Its bytes.
    pub len: u64,
}

impl ExportedFile {
    pub(crate) fn kind(&self) -> FileKind {
        if self.is_snapshot { FileKind::Snapshot } else { FileKind::Log }
    }
}

/// The part of a log that precedes a segment, with a hold on its files.
#[derive(Debug)]
pub struct Export {
    paths: PartitionFiles,
    files: Vec<ExportedFile>,
    log_start: i64,
    compacted_to: Option<i64>,
    epochs: Vec<EpochEntry>,
    hold: Arc<Hold>,
}

/// The reason for which a range of an export is not read.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The log was cut, or another one is in its place.
    #[error("the log was cut, or replaced, since it was exported")]
    Ended,
    /// There is no such file, or it has no such range.
    #[error("there is no such range in what was exported")]
    NoSuchRange,
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

#[derive(Debug)]
struct Hold {
    /// The offset before which all stays as it is.
    upto: i64,
    has_ended: AtomicBool,
}

/// The hold that an export has on a log.
#[derive(Debug, Default)]
pub(crate) struct Held(Weak<Hold>);

impl Held {
    /// Returns true if an export needs the files.
    pub(crate) fn is_held(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Ends the export if the log is cut before its end.
    pub(crate) fn end_if_cut(&self, log_end: i64) {
        if let Some(hold) = self.0.upgrade()
            && log_end < hold.upto
        {
            hold.has_ended.store(true, Ordering::Release);
        }
    }
}

impl Drop for Held {
    /// The files may soon be those of another log.
    fn drop(&mut self) {
        self.end_if_cut(i64::MIN);
    }
}

impl Log {
    /// Offsets at which segments begin, in ascending order. The last one is that of the active segment.
    pub fn segment_bases(&self) -> impl DoubleEndedIterator<Item = i64> {
        self.segments.iter().map(|segment| segment.base_offset)
    }

    /// Returns true if an export holds files of this log.
    pub fn is_exported(&self) -> bool {
        self.exported.is_held()
    }

    /// Bytes of the closed segments that begin at an offset or behind it.
    pub fn closed_bytes_from(&self, offset: i64) -> u64 {
        let (_, closed) = self.segments.split_last().expect("a log has a segment at all times");
        let behind = closed.iter().filter(|segment| segment.base_offset >= offset);
        behind.map(|segment| u64::from(segment.len)).sum()
    }

    /// Exports what precedes a segment that begins at `base`. `None`: no segment begins there, the producers' state there is not
    /// on disk, a compaction is in the midst of its work, or there is an export already. Nothing of the part that is exported is
    /// compacted or removed for as long as the export lives. Reads the directory.
    ///
    /// # Errors
    /// When the files cannot be looked for, or the log is stopped.
    pub fn export(&mut self, base: i64) -> Result<Option<Export>, LogError> {
        self.check_running()?;
        let is_base = self.segments.binary_search_by_key(&base, |segment| segment.base_offset).is_ok();
        let is_compacting = self.swapping().is_some() || self.committed_output.is_some();
        let is_durable = base <= self.durable_end;
        if !is_base || is_compacting || !is_durable || self.is_exported() {
            return Ok(None);
        }
        let Some(snapshot) = self.exported_snapshot(base)? else { return Ok(None) };
        // A log that starts at the base has nothing before it but the producers.
        let wanted = if self.log_start < base { self.segment_of(self.log_start) } else { usize::MAX };
        let closed = self.segments.iter().skip(wanted).take_while(|segment| segment.base_offset < base);
        let files = closed.filter(|segment| segment.len > 0).map(|segment| ExportedFile {
            base_offset: segment.base_offset,
            is_snapshot: false,
            len: u64::from(segment.len),
        });
        let files = files.chain([snapshot]).collect();
        let epochs = self.epochs.entries().iter().filter(|entry| entry.start_offset < base);
        let hold = Arc::new(Hold { upto: base, has_ended: AtomicBool::new(false) });
        self.exported = Held(Arc::downgrade(&hold));
        Ok(Some(Export {
            paths: self.files.clone(),
            files,
            log_start: self.log_start.min(base),
            compacted_to: self.dir.checkpoints().cleaner.get(&self.partition).map(|end| end.min(base)),
            epochs: epochs.copied().collect(),
            hold,
        }))
    }

    /// The snapshot of the producers at an offset; `None`: there is none.
    fn exported_snapshot(&self, base: i64) -> Result<Option<ExportedFile>, LogError> {
        if !list_snapshots(&self.files)?.contains(&base) {
            return Ok(None);
        }
        let path = self.files.path(base, FileKind::Snapshot);
        let opened = self.files.storage.open(&path, OpenMode::Read);
        let len = opened.and_then(|file| file.len()).map_err(LogError::io("open", path))?;
        Ok((len > 0).then_some(ExportedFile { base_offset: base, is_snapshot: true, len }))
    }
}

impl Export {
    /// The files: segments in ascending order, then the snapshot of the producers at the end.
    pub fn files(&self) -> &[ExportedFile] {
        &self.files
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.len).sum()
    }

    /// The log start. Where it is the end of the export there are no segments.
    pub fn log_start(&self) -> i64 {
        self.log_start
    }

    /// The offset up to which the log is compacted, at most the end of the export; `None`: it never was.
    pub fn compacted_to(&self) -> Option<i64> {
        self.compacted_to
    }

    /// The leader epochs that begin before the end of the export.
    pub fn epochs(&self) -> &[EpochEntry] {
        &self.epochs
    }

    /// Reads a range of a file, by its place in [`files`](Self::files). Blocks on the disk.
    ///
    /// # Errors
    /// See [`ExportError`].
    pub fn read(&self, file: usize, position: u64, len: usize) -> Result<Vec<u8>, ExportError> {
        let named = self.files.get(file).ok_or(ExportError::NoSuchRange)?;
        if position.checked_add(len as u64).is_none_or(|end| end > named.len) {
            return Err(ExportError::NoSuchRange);
        }
        let path = self.paths.path(named.base_offset, named.kind());
        let mut bytes = vec![0; len];
        let opened = self.paths.storage.open(&path, OpenMode::Read);
        let read = opened.and_then(|file| read_exact_at(&*file, &mut bytes, position));
        // Looked at behind the read: the file may be another log's of the same name.
        if self.has_ended() {
            return Err(ExportError::Ended);
        }
        read.map(|()| bytes).map_err(|source| ExportError::Io { path, source })
    }

    /// Returns true if the log was cut, or replaced, since it was exported.
    pub fn has_ended(&self) -> bool {
        self.hold.has_ended.load(Ordering::Acquire)
    }
}
