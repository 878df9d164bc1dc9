//! The files of a partition's directory, after leftovers of interrupted work were removed.

use crate::error::LogError;
use crate::files::{FileKind, FileState, PartitionFiles, SegmentFileName};
use crate::index::Entry;
use crate::offset_index::OffsetEntry;
use crate::read_mode::ReadMode;
use crate::scan::{BatchScan, RECOVERY_CHUNK_BYTES, Scanned};
use crate::segment::{Segment, blocking};
use crate::storage::{OpenMode, write_all_at};
use crate::time_index::TimeEntry;
use crate::transaction_index;
use std::collections::{BTreeMap, BTreeSet};

/// A longer segment has positions that its index cannot hold.
pub(crate) const SEGMENT_BYTES_MAX: u64 = i32::MAX as u64;

/// A segment by its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FoundSegment {
    pub(crate) base_offset: i64,
    pub(crate) log_bytes: u64,
    /// `None`: the file does not exist.
    pub(crate) index_bytes: Option<u64>,
    pub(crate) time_index_bytes: Option<u64>,
    /// 0 also where there is no file.
    pub(crate) transaction_index_bytes: u64,
}

impl FoundSegment {
    /// Returns true if both indexes exist, with whole entries.
    pub(crate) fn indexes_fit(&self) -> bool {
        let fits = |bytes: Option<u64>, entry: usize| bytes.is_some_and(|bytes| bytes % entry as u64 == 0);
        fits(self.index_bytes, OffsetEntry::BYTES)
            && fits(self.time_index_bytes, TimeEntry::BYTES)
            && self.log_bytes <= SEGMENT_BYTES_MAX
    }

    /// The segment, as its files say.
    pub(crate) fn trusted(&self) -> Segment {
        let entries = |bytes: Option<u64>, entry: usize| (bytes.unwrap_or_default() / entry as u64) as u32;
        let mut segment = Segment::on_disk(
            self.base_offset,
            self.log_bytes as u32,
            entries(self.index_bytes, OffsetEntry::BYTES),
            entries(self.time_index_bytes, TimeEntry::BYTES),
        );
        segment.aborted = self.aborted();
        segment
    }

    /// Entries in the transaction index, the last of which may not be whole.
    pub(crate) fn aborted(&self) -> u32 {
        transaction_index::entries_in(self.transaction_index_bytes)
    }
}

/// The segments and snapshots of a partition, in the order of their offsets.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    pub(crate) segments: Vec<FoundSegment>,
    pub(crate) snapshots: Vec<i64>,
}

/// Names and lengths of the files of each segment.
type Live = BTreeMap<(i64, FileKind), u64>;

impl Inventory {
    /// Lists the directory. Removed on the way: files that were waiting for it, replacements and compactions that were
    /// not finished, indexes without a log. A compaction that was finished is put in the place of its input.
    pub(crate) fn take(files: &PartitionFiles) -> Result<Inventory, LogError> {
        let (mut live, mut swaps, mut cleaned) = (Live::new(), BTreeSet::new(), BTreeSet::new());
        for entry in list(files)? {
            let Some(name) = SegmentFileName::parse(&entry.name) else {
                if entry.name.ends_with(".tmp") && !entry.is_dir {
                    files.remove_path(&files.dir.join(&entry.name))?;
                }
                continue;
            };
            match name.state {
                FileState::Live => {
                    live.insert((name.base_offset, name.kind), entry.len);
                    continue;
                }
                FileState::Swap if name.kind == FileKind::Log => {
                    swaps.insert(name.base_offset);
                    continue;
                }
                FileState::Cleaned => {
                    cleaned.insert(name.base_offset);
                }
                FileState::Swap | FileState::Deleted => {}
            }
            files.remove_path(&files.dir.join(&entry.name))?;
        }
        let swapped = !swaps.is_empty();
        for base_offset in swaps {
            finish_swap(files, base_offset, cleaned.first().copied(), &mut live)?;
        }
        if swapped {
            // Before another compaction begins, whose unfinished output would call this one in question.
            files.sync_dir()?;
        }
        remove_orphans(files, &mut live)?;
        Ok(Inventory::of(&live))
    }

    fn of(live: &Live) -> Inventory {
        let of_kind = |wanted| live.keys().filter(move |(_, kind)| *kind == wanted).map(|(base, _)| *base);
        let len = |base, kind| live.get(&(base, kind)).copied();
        let segments = of_kind(FileKind::Log)
            .map(|base_offset| FoundSegment {
                base_offset,
                log_bytes: len(base_offset, FileKind::Log).unwrap_or_default(),
                index_bytes: len(base_offset, FileKind::Index),
                time_index_bytes: len(base_offset, FileKind::TimeIndex),
                transaction_index_bytes: len(base_offset, FileKind::TransactionIndex).unwrap_or_default(),
            })
            .collect();
        Inventory { segments, snapshots: of_kind(FileKind::Snapshot).collect() }
    }
}

fn list(files: &PartitionFiles) -> Result<Vec<crate::storage::DirEntry>, LogError> {
    files.storage.list(&files.dir).map_err(LogError::io("list", &*files.dir))
}

/// The offsets of all snapshots that are there now, ascending.
pub(crate) fn list_snapshots(files: &PartitionFiles) -> Result<Vec<i64>, LogError> {
    let names = list(files)?;
    let mut offsets: Vec<i64> = names
        .iter()
        .filter_map(|entry| SegmentFileName::parse(&entry.name))
        .filter(|name| name.kind == FileKind::Snapshot && name.state == FileState::Live)
        .map(|name| name.base_offset)
        .collect();
    offsets.sort_unstable();
    Ok(offsets)
}

/// Puts the output of a compaction in the place of the segments that it was made from. Its indexes are rebuilt.
/// Where later output was not finished (`cleaned`), the input is still whole and the output goes.
fn finish_swap(
    files: &PartitionFiles,
    base_offset: i64,
    cleaned: Option<i64>,
    live: &mut Live,
) -> Result<(), LogError> {
    let path = files.path(base_offset, FileKind::Log);
    let mut swap = path.clone().into_os_string();
    swap.push(".swap");
    let swap = std::path::PathBuf::from(swap);
    if cleaned.is_some_and(|first| first <= base_offset) {
        return files.remove_path(&swap);
    }
    let (end, len) = end_of(files, &swap, base_offset)?;
    let replaced: Vec<_> = live
        .keys()
        .filter(|(base, kind)| (base_offset..end).contains(base) && *kind != FileKind::Snapshot)
        .copied()
        .collect();
    for (base, kind) in replaced {
        live.remove(&(base, kind));
        if (base, kind) != (base_offset, FileKind::Log) {
            files.remove(base, kind)?;
        }
    }
    live.insert((base_offset, FileKind::TransactionIndex), leave_unfit_index(files, base_offset)?);
    // A power cut must not keep the new name and bring back what it covers.
    files.sync_dir()?;
    files.storage.rename(&swap, &path).map_err(LogError::io("rename", swap))?;
    live.insert((base_offset, FileKind::Log), len);
    Ok(())
}

/// Leaves an invalid transaction index, durably, so that it is rebuilt. That holds even if this start breaks off and the
/// next one finds the other indexes complete. Returns its length.
fn leave_unfit_index(files: &PartitionFiles, base_offset: i64) -> Result<u64, LogError> {
    let file = files.open(base_offset, FileKind::TransactionIndex)?;
    let written =
        file.set_len(0).and_then(|()| write_all_at(&*file, &[0], 0)).and_then(|()| file.sync_data());
    written.map_err(LogError::io("write", files.path(base_offset, FileKind::TransactionIndex)))?;
    Ok(1)
}

/// The offset behind the last batch of a file, and its length.
fn end_of(files: &PartitionFiles, path: &std::path::Path, base_offset: i64) -> Result<(i64, u64), LogError> {
    let read = || {
        let file = files.storage.open(path, OpenMode::Read)?;
        let len = file.len()?;
        let mut batches =
            BatchScan::new(&*file, ReadMode::Blocking, 0..len, base_offset, RECOVERY_CHUNK_BYTES);
        while let Scanned::Batch(_) = blocking(batches.next(false))? {}
        Ok((batches.next_offset(), len))
    };
    read().map_err(LogError::io("read", path))
}

fn remove_orphans(files: &PartitionFiles, live: &mut Live) -> Result<(), LogError> {
    let orphans: Vec<_> = live
        .keys()
        .filter(|(_, kind)| !matches!(kind, FileKind::Log | FileKind::Snapshot))
        .filter(|(base, _)| !live.contains_key(&(*base, FileKind::Log)))
        .copied()
        .collect();
    for (base, kind) in orphans {
        files.remove(base, kind)?;
        live.remove(&(base, kind));
    }
    Ok(())
}
