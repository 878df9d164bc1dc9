//! One segment: a run of batches in a file, and the two indexes into it.

use crate::compaction::{path_in, renamed};
use crate::descriptors::CachedFile;
use crate::error::LogError;
use crate::files::{FileKind, FileState, PartitionFiles};
use crate::index::Index;
use crate::offset_index::{OffsetEntry, OffsetIndex};
use crate::read_mode::{ReadMode, ReadStop};
use crate::scan::{BatchScan, LOOKUP_CHUNK_BYTES, Scanned, ScannedBatch};
use crate::storage::{OpenMode, StorageFile};
use crate::time_index::{TimeEntry, TimeIndex, TimestampOffset};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// A segment, active or closed. A copy is what the segment was at that moment, for a search on another thread; what the
/// copy learns of a closed segment's largest timestamp the original knows too.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    /// No record has a smaller offset. Also the name of its files.
    pub(crate) base_offset: i64,
    /// Bytes of whole batches in the file.
    pub(crate) len: u32,
    pub(crate) offsets: OffsetIndex,
    pub(crate) times: TimeIndex,
    /// The largest timestamp; not looked up yet for a closed segment from before the start.
    pub(crate) largest: Option<TimestampOffset>,
    /// Entries in the transaction index; 0: there need not be a file.
    pub(crate) aborted: u32,
    shared: Arc<Shared>,
}

/// State that all copies of a segment share.
#[derive(Debug, Default)]
struct Shared {
    cached: OnceLock<Box<CachedFiles>>,
    /// The files have the names that the output of a compaction has until it is in the place of its input.
    in_swap: AtomicBool,
    /// The largest timestamp of a closed segment as its time index has it, once it was looked up.
    largest: OnceLock<TimestampOffset>,
}

/// The files of a segment as they are read.
#[derive(Debug)]
struct CachedFiles {
    log: CachedFile,
    index: CachedFile,
    time_index: CachedFile,
    transaction_index: CachedFile,
}

/// The files that a lookup in a segment may need, kept open by it.
#[derive(Debug, Clone)]
pub(crate) struct LookupFiles {
    pub(crate) log: Arc<dyn StorageFile>,
    index: Option<Arc<dyn StorageFile>>,
}

impl Segment {
    /// An empty segment.
    pub(crate) fn empty(base_offset: i64) -> Segment {
        Segment {
            base_offset,
            len: 0,
            offsets: Index::new(0),
            times: Index::new(0),
            largest: Some(TimestampOffset::none(base_offset)),
            aborted: 0,
            shared: Arc::default(),
        }
    }

    /// A segment with `len` bytes and with this many entries in its index files.
    pub(crate) fn on_disk(base_offset: i64, len: u32, offset_entries: u32, time_entries: u32) -> Segment {
        Segment {
            len,
            offsets: Index::new(offset_entries),
            times: Index::new(time_entries),
            largest: None,
            ..Segment::empty(base_offset)
        }
    }

    /// The output of a compaction, under the names that it has before it is in the place of its input.
    pub(crate) fn in_swap(base_offset: i64, len: u32, offset_entries: u32, time_entries: u32) -> Segment {
        let segment = Segment::on_disk(base_offset, len, offset_entries, time_entries);
        segment.shared.in_swap.store(true, Ordering::Release);
        segment
    }

    /// Returns true if the files have the names of a swap.
    pub(crate) fn is_in_swap(&self) -> bool {
        self.shared.in_swap.load(Ordering::Acquire)
    }

    /// The files have their own names now.
    pub(crate) fn set_swapped(&self) {
        self.shared.in_swap.store(false, Ordering::Release);
    }

    /// Returns true if both are copies of one segment.
    pub(crate) fn is_same(&self, other: &Segment) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    fn cached(&self, files: &PartitionFiles) -> &CachedFiles {
        let cached = |kind| files.descriptors.file(self.path(files, kind), OpenMode::Read);
        self.shared.cached.get_or_init(|| {
            Box::new(CachedFiles {
                log: cached(FileKind::Log),
                index: cached(FileKind::Index),
                time_index: cached(FileKind::TimeIndex),
                transaction_index: cached(FileKind::TransactionIndex),
            })
        })
    }

    /// The path of a file of the segment.
    fn path(&self, files: &PartitionFiles, kind: FileKind) -> PathBuf {
        let state = if self.is_in_swap() { FileState::Swap } else { FileState::Live };
        path_in(files, self.base_offset, kind, state)
    }

    /// Gives a file of the segment another name; copies of the segment find it there. `false`: there is no such file.
    pub(crate) fn rename(&self, files: &PartitionFiles, kind: FileKind, to: &Path) -> Result<bool, LogError> {
        let from = self.path(files, kind);
        let cached = self.cached(files);
        let result = match kind {
            FileKind::Log => cached.log.rename(to.to_owned()),
            FileKind::Index => cached.index.rename(to.to_owned()),
            FileKind::TimeIndex => cached.time_index.rename(to.to_owned()),
            FileKind::TransactionIndex if self.aborted > 0 => cached.transaction_index.rename(to.to_owned()),
            // There need not be a file, and a name that was not changed must not be known for another one's.
            FileKind::TransactionIndex | FileKind::Snapshot => files.storage.rename(&from, to),
        };
        renamed(&from, result)
    }

    /// Gives back memory that only an append needs.
    pub(crate) fn shrink(&mut self) {
        self.offsets.shrink();
        self.times.shrink();
    }

    /// Closes what is open of it: its files are renamed or their content is replaced.
    pub(crate) fn close_cached(&mut self) {
        self.shared = Arc::default();
    }

    /// The files for a lookup; `active` is the handle of the active segment's file.
    pub(crate) fn lookup_files(
        &self,
        files: &PartitionFiles,
        active: Option<&Arc<dyn StorageFile>>,
    ) -> io::Result<LookupFiles> {
        let log = match active {
            Some(file) => file.clone(),
            None => self.cached(files).log.open()?,
        };
        let index = (self.offsets.on_disk() > 0).then(|| self.cached(files).index.open()).transpose()?;
        Ok(LookupFiles { log, index })
    }

    /// The transaction index, for reading; there is one when [`Self::aborted`] is not 0.
    pub(crate) fn transaction_index(&self, files: &PartitionFiles) -> io::Result<Arc<dyn StorageFile>> {
        self.cached(files).transaction_index.open()
    }

    /// An offset that no record before a position has or exceeds; `None`: the offset index knows none.
    pub(crate) fn offset_bound(
        &self,
        files: &PartitionFiles,
        position: u64,
        read_mode: ReadMode,
    ) -> Result<Option<i64>, ReadStop> {
        let open = || self.cached(files).index.open();
        let entry = self.offsets.ceiling(open, read_mode, |entry| u64::from(entry.position) < position)?;
        Ok(entry.map(|entry| self.base_offset.saturating_add(i64::from(entry.relative_offset))))
    }

    /// Returns a search for an offset. It works without access to the segment.
    pub(crate) fn lookup(&self, offset: i64, files: LookupFiles) -> Lookup {
        let holds = offset_holds(self.base_offset, offset);
        let count = self.offsets.pending().partition_point(holds);
        Lookup {
            files,
            base_offset: self.base_offset,
            len: self.len,
            on_disk: self.offsets.on_disk(),
            pending: count.checked_sub(1).map(|last| self.offsets.pending()[last]),
        }
    }

    /// The largest timestamp, if it was looked up already.
    pub(crate) fn known_largest(&self) -> Option<TimestampOffset> {
        self.largest.or(self.shared.largest.get().copied())
    }

    /// The largest timestamp of a segment, read from the end of its time index when it is not known yet.
    pub(crate) fn largest(&self, files: &PartitionFiles) -> Result<TimestampOffset, LogError> {
        if let Some(largest) = self.known_largest() {
            return Ok(largest);
        }
        let entry = self.time_floor(files, |_| true)?;
        let largest = self.timestamp_offset(entry);
        Ok(*self.shared.largest.get_or_init(|| largest))
    }

    /// The last entry of the time index before a timestamp.
    pub(crate) fn time_before(
        &self,
        files: &PartitionFiles,
        timestamp: i64,
    ) -> Result<TimestampOffset, LogError> {
        let entry = self.time_floor(files, |entry: &TimeEntry| entry.timestamp < timestamp)?;
        Ok(self.timestamp_offset(entry))
    }

    fn timestamp_offset(&self, entry: Option<TimeEntry>) -> TimestampOffset {
        entry.map_or(TimestampOffset::none(self.base_offset), |entry| TimestampOffset {
            timestamp: entry.timestamp,
            offset: self.base_offset.saturating_add(i64::from(entry.relative_offset)),
        })
    }

    fn time_floor(
        &self,
        files: &PartitionFiles,
        holds: impl Fn(&TimeEntry) -> bool,
    ) -> Result<Option<TimeEntry>, LogError> {
        let open = || self.cached(files).time_index.open();
        blocking(self.times.floor(open, ReadMode::Blocking, holds))
            .map_err(LogError::io("read", files.path(self.base_offset, FileKind::TimeIndex)))
    }

    /// Adds a time index entry, if the largest timestamp has grown since the last one.
    pub(crate) fn push_time(&mut self, last_entry: &mut i64) {
        let Some(largest) = self.largest else { return };
        if largest.timestamp > *last_entry {
            self.times.push(TimeEntry {
                timestamp: largest.timestamp,
                relative_offset: (largest.offset - self.base_offset) as i32,
            });
            *last_entry = largest.timestamp;
        }
    }
}

fn offset_holds(base_offset: i64, offset: i64) -> impl Fn(&OffsetEntry) -> bool {
    move |entry| base_offset.saturating_add(i64::from(entry.relative_offset)) <= offset
}

/// The result of a lookup that was allowed to wait.
pub(crate) fn blocking<T>(result: Result<T, ReadStop>) -> io::Result<T> {
    result.map_err(|blocked| match blocked {
        ReadStop::Failed(error) => error,
        ReadStop::WouldBlock => unreachable!("a blocking read does not stop"),
    })
}

/// Finds a batch in a segment, on any thread: it holds what it needs.
#[derive(Debug, Clone)]
pub(crate) struct Lookup {
    pub(crate) files: LookupFiles,
    pub(crate) base_offset: i64,
    /// Bytes of the segment that may be looked at.
    pub(crate) len: u32,
    on_disk: u32,
    pending: Option<OffsetEntry>,
}

impl Lookup {
    /// The first batch whose last offset is at or behind `offset`; `None`: the segment ends before.
    pub(crate) fn find(&self, offset: i64, read_mode: ReadMode) -> Result<Option<ScannedBatch>, ReadStop> {
        let start = self.start(offset, read_mode)?;
        match self.find_from(start, offset, read_mode)? {
            Found::Batch(batch) => Ok(Some(batch)),
            Found::End => Ok(None),
            // An index that leads astray was damaged; the log itself is the truth.
            Found::Astray if start > 0 => match self.find_from(0, offset, read_mode)? {
                Found::Batch(batch) => Ok(Some(batch)),
                Found::End => Ok(None),
                Found::Astray => Err(self.damaged()),
            },
            Found::Astray => Err(self.damaged()),
        }
    }

    fn damaged(&self) -> ReadStop {
        let what = format!("segment {} has bytes that are not a batch", self.base_offset);
        ReadStop::Failed(io::Error::new(io::ErrorKind::InvalidData, what))
    }

    /// The position from which a batch with this offset is searched.
    pub(crate) fn start(&self, offset: i64, read_mode: ReadMode) -> Result<u64, ReadStop> {
        if let Some(entry) = self.pending {
            return Ok(u64::from(entry.position));
        }
        let Some(index) = &self.files.index else { return Ok(0) };
        let holds = offset_holds(self.base_offset, offset);
        let entry = crate::index::floor_in_file(&**index, self.on_disk, read_mode, holds)?;
        Ok(entry.map_or(0, |entry: OffsetEntry| u64::from(entry.position)))
    }

    /// The batches from a position on.
    pub(crate) fn batches(&self, start: u64, read_mode: ReadMode) -> BatchScan<'_> {
        let range = start..u64::from(self.len);
        BatchScan::new(&*self.files.log, read_mode, range, self.base_offset, LOOKUP_CHUNK_BYTES)
    }

    fn find_from(&self, start: u64, offset: i64, read_mode: ReadMode) -> Result<Found, ReadStop> {
        let mut batches = self.batches(start, read_mode);
        // An entry of the index names the last offset of its batch.
        let mut plausible = start == 0;
        loop {
            match batches.next(false)? {
                Scanned::Batch(batch) if !plausible && batch.last_offset > offset => {
                    return Ok(Found::Astray);
                }
                Scanned::Batch(batch) if batch.last_offset >= offset => return Ok(Found::Batch(batch)),
                Scanned::Batch(_) => plausible = true,
                Scanned::End if plausible => return Ok(Found::End),
                _ => return Ok(Found::Astray),
            }
        }
    }
}

enum Found {
    Batch(ScannedBatch),
    End,
    /// Other bytes than were looked for: the position or the file is wrong.
    Astray,
}
