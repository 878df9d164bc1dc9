//! Partition directories, and the files of segments by their names.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Digits of the base offset in a file name.
const DIGITS: usize = 20;

/// The kind of a file of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FileKind {
    Log,
    Index,
    TimeIndex,
    Snapshot,
}

impl FileKind {
    /// The end of the file's name.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            FileKind::Log => ".log",
            FileKind::Index => ".index",
            FileKind::TimeIndex => ".timeindex",
            FileKind::Snapshot => ".snapshot",
        }
    }
}

/// A file of a segment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SegmentFile {
    /// The offset in the name.
    pub(crate) base_offset: i64,
    pub(crate) kind: FileKind,
    pub(crate) path: PathBuf,
}

impl SegmentFile {
    /// The file with this name; none if it is no file of a segment, or one that is being replaced or removed.
    pub(crate) fn parse(path: &Path) -> Option<SegmentFile> {
        let name = path.file_name()?.to_str()?;
        let (digits, suffix) = name.split_at_checked(DIGITS)?;
        let kinds = [FileKind::Log, FileKind::Index, FileKind::TimeIndex, FileKind::Snapshot];
        let kind = kinds.into_iter().find(|kind| kind.suffix() == suffix)?;
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
        let base_offset = plain.then(|| digits.parse().ok()).flatten()?;
        Some(SegmentFile { base_offset, kind, path: path.to_path_buf() })
    }

    /// The file of another kind of the same segment.
    pub(crate) fn sibling(&self, kind: FileKind) -> PathBuf {
        self.path.with_file_name(format!("{:0DIGITS$}{}", self.base_offset, kind.suffix()))
    }
}

/// A directory with the files of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartitionDir {
    pub(crate) path: PathBuf,
    /// By base offset.
    pub(crate) logs: Vec<SegmentFile>,
    pub(crate) snapshots: Vec<SegmentFile>,
}

impl PartitionDir {
    /// The files of a directory; none if it has no log.
    pub(crate) fn read(path: &Path) -> Result<Option<PartitionDir>> {
        let mut files: Vec<SegmentFile> =
            entries(path)?.iter().filter_map(|path| SegmentFile::parse(path)).collect();
        files.sort();
        files.iter().try_for_each(|file| check_regular(&file.path))?;
        let of_kind = |kind| files.iter().filter(|file| file.kind == kind).cloned().collect::<Vec<_>>();
        let partition = PartitionDir {
            path: path.to_path_buf(),
            logs: of_kind(FileKind::Log),
            snapshots: of_kind(FileKind::Snapshot),
        };
        Ok((!partition.logs.is_empty()).then_some(partition))
    }
}

/// Refuses a file that is not regular: a read of a pipe could hang, and a device has no end.
pub(crate) fn check_regular(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Ok(data) if !data.is_file() => bail!("{} is no regular file; move it away", path.display()),
        // Other faults are errors of the read that follows.
        _ => Ok(()),
    }
}

/// The partition in `dir`, or those directly below it. Directories of deleted topics are left out.
pub(crate) fn find_partitions(dir: &Path) -> Result<Vec<PartitionDir>> {
    if !dir.is_dir() {
        bail!("{} is no directory", dir.display());
    }
    if let Some(partition) = PartitionDir::read(dir)? {
        return Ok(vec![partition]);
    }
    let mut below = entries(dir)?;
    below.retain(|path| path.is_dir() && path.extension().is_none_or(|suffix| !is_doomed(suffix)));
    below.sort();
    let mut partitions = Vec::new();
    for path in below {
        partitions.extend(PartitionDir::read(&path)?);
    }
    if partitions.is_empty() {
        bail!(
            "{} holds no partition; name a data directory, such as ./mainstem-data, or a directory TOPIC-N in it",
            dir.display()
        );
    }
    Ok(partitions)
}

/// True for `topic-0.<id>-delete`, whose files may disappear at any time.
fn is_doomed(suffix: &std::ffi::OsStr) -> bool {
    suffix.to_str().is_some_and(|suffix| suffix.ends_with("-delete"))
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let read = || fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>();
    read().with_context(|| format!("cannot read the directory {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let parse =
            |name: &str| SegmentFile::parse(Path::new(name)).map(|file| (file.base_offset, file.kind));
        assert_eq!(parse("a/00000000000000000042.log"), Some((42, FileKind::Log)));
        assert_eq!(parse("00000000000000000000.timeindex"), Some((0, FileKind::TimeIndex)));
        for other in [
            "00000000000000000042.log.deleted",
            "42.log",
            "99999999999999999999.log",
            "+0000000000000000042.log",
            "00000000000000000042.txnindex",
            "leader-epoch-checkpoint",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
        let log = SegmentFile::parse(Path::new("a/00000000000000000042.log")).unwrap();
        assert_eq!(log.sibling(FileKind::Index), Path::new("a/00000000000000000042.index"));
    }

    #[test]
    fn a_partition_or_those_below() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for topic in ["b-0", "a-1", "gone-0.5f-delete", "empty-0"] {
            fs::create_dir(path(topic)).unwrap();
            if topic != "empty-0" {
                fs::write(path(topic).join("00000000000000000007.log"), b"").unwrap();
            }
        }
        let found =
            |dir: &Path| find_partitions(dir).unwrap().into_iter().map(|p| p.path).collect::<Vec<_>>();
        assert_eq!(found(dir.path()), [path("a-1"), path("b-0")]);
        assert_eq!(found(&path("b-0")), [path("b-0")]);
        let error = find_partitions(&path("empty-0")).unwrap_err().to_string();
        assert!(error.contains("holds no partition"), "{error}");
        assert!(find_partitions(&path("missing")).is_err());
    }
}
