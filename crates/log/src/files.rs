//! The files of one partition directory: their names, and how they are opened, created and put away.
//!
//! A file name is the base offset in twenty digits and a suffix, as in Kafka. A name that ends in `.deleted` is
//! waiting for its removal, in `.cleaned` or `.swap` belongs to a compaction, in `.tmp` to a replacement.

use crate::descriptors::DescriptorCache;
use crate::error::LogError;
use crate::storage::{OpenMode, Storage, StorageFile};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The kind of a segment's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FileKind {
    /// Record batches.
    Log,
    /// Offset index.
    Index,
    /// Time index.
    TimeIndex,
    /// Aborted transactions.
    TransactionIndex,
    /// Producer state before the offset in the name.
    Snapshot,
}

impl FileKind {
    pub(crate) const ALL: [FileKind; 5] =
        [FileKind::Log, FileKind::Index, FileKind::TimeIndex, FileKind::TransactionIndex, FileKind::Snapshot];

    pub(crate) fn suffix(self) -> &'static str {
        match self {
            FileKind::Log => ".log",
            FileKind::Index => ".index",
            FileKind::TimeIndex => ".timeindex",
            FileKind::TransactionIndex => ".txnindex",
            FileKind::Snapshot => ".snapshot",
        }
    }
}

/// The state of a file, by the suffix of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileState {
    /// In use.
    Live,
    /// Waiting for its removal.
    Deleted,
    /// Output of a compaction that was not finished.
    Cleaned,
    /// Output of a compaction that was finished, not yet in the place of its input.
    Swap,
}

/// A file of a segment, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentFileName {
    pub(crate) base_offset: i64,
    pub(crate) kind: FileKind,
    pub(crate) state: FileState,
}

impl SegmentFileName {
    /// Parses a name; `None` for any other file.
    pub(crate) fn parse(name: &str) -> Option<SegmentFileName> {
        let (stem, state) =
            [(".deleted", FileState::Deleted), (".cleaned", FileState::Cleaned), (".swap", FileState::Swap)]
                .into_iter()
                .find_map(|(suffix, state)| name.strip_suffix(suffix).map(|stem| (stem, state)))
                .unwrap_or((name, FileState::Live));
        let (digits, kind) =
            FileKind::ALL.into_iter().find_map(|kind| stem.strip_suffix(kind.suffix()).map(|s| (s, kind)))?;
        let plain = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
        let base_offset = plain.then(|| digits.parse().ok()).flatten()?;
        Some(SegmentFileName { base_offset, kind, state })
    }
}

/// The name of a live file.
pub(crate) fn file_name(base_offset: i64, kind: FileKind) -> String {
    format!("{base_offset:020}{}", kind.suffix())
}

/// The directory of a partition and how its files are reached.
#[derive(Debug, Clone)]
pub(crate) struct PartitionFiles {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) descriptors: Arc<DescriptorCache>,
    pub(crate) dir: Arc<Path>,
}

impl PartitionFiles {
    pub(crate) fn path(&self, base_offset: i64, kind: FileKind) -> PathBuf {
        self.dir.join(file_name(base_offset, kind))
    }

    /// A handle for reading and writing; the file is created when it does not exist.
    pub(crate) fn open(&self, base_offset: i64, kind: FileKind) -> Result<Arc<dyn StorageFile>, LogError> {
        let path = self.path(base_offset, kind);
        self.storage.open(&path, OpenMode::Create).map_err(LogError::io("open", path))
    }

    /// Gives a file the name of one that waits for its removal; `None` when it does not exist.
    pub(crate) fn mark_deleted(&self, base_offset: i64, kind: FileKind) -> Result<Option<PathBuf>, LogError> {
        let path = self.path(base_offset, kind);
        let mut marked = path.clone().into_os_string();
        marked.push(".deleted");
        let marked = PathBuf::from(marked);
        match self.storage.rename(&path, &marked) {
            Ok(()) => Ok(Some(marked)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(LogError::io("rename", path)(error)),
        }
    }

    /// Removes a file at once; one that does not exist is fine.
    pub(crate) fn remove(&self, base_offset: i64, kind: FileKind) -> Result<(), LogError> {
        self.remove_path(&self.path(base_offset, kind))
    }

    /// Removes a file at once; one that does not exist is fine.
    pub(crate) fn remove_path(&self, path: &Path) -> Result<(), LogError> {
        match self.storage.remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(LogError::io("remove", path)(error)),
            _ => Ok(()),
        }
    }

    /// Makes the names in the directory durable.
    pub(crate) fn sync_dir(&self) -> Result<(), LogError> {
        self.storage.sync_dir(&self.dir).map_err(LogError::io("sync", &*self.dir))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back_and_others_do_not() {
        let name = SegmentFileName::parse(&file_name(42, FileKind::TimeIndex)).expect("our own name");
        assert_eq!((name.base_offset, name.kind, name.state), (42, FileKind::TimeIndex, FileState::Live));
        let swap = SegmentFileName::parse("00000000000000000007.log.swap").expect("a swap file");
        assert_eq!((swap.base_offset, swap.kind, swap.state), (7, FileKind::Log, FileState::Swap));
        for other in
            ["7.log", "leader-epoch-checkpoint", "99999999999999999999.log", "+0000000000000000007.log"]
        {
            assert_eq!(SegmentFileName::parse(other), None, "{other}");
        }
    }
}
