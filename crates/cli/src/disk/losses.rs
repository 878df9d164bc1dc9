//! Records that are missing since the last orderly stop, and partitions that are compacted.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use mainstem_log::checkpoint::CLEANER_CHECKPOINT;
use mainstem_log::segment_record::SegmentRecord;
use mainstem_log::storage::RealStorage;

/// Directories of partitions that differ from the record of the last orderly stop, with their losses in words. `dir`
/// is a data directory, or the directory of one partition, which may be gone.
pub(crate) fn losses_of(dir: &Path) -> Result<Vec<(PathBuf, String)>> {
    let unreadable = || format!("cannot compare {} with what the last stop left", dir.display());
    let dir = std::path::absolute(dir).with_context(unreadable)?;
    let mut losses = losses_in(&dir).with_context(unreadable)?;
    losses.iter_mut().for_each(|(path, _)| *path = dir.join(&*path));
    if let Some(parent) = dir.parent() {
        let beside = losses_in(parent).with_context(unreadable)?.into_iter();
        losses.extend(
            beside
                .filter(|(name, _)| Some(name.as_os_str()) == dir.file_name())
                .map(|(_, what)| (dir.clone(), what)),
        );
    }
    Ok(losses)
}

/// Names of directories, and their losses.
fn losses_in(data: &Path) -> std::io::Result<Vec<(PathBuf, String)>> {
    let losses = SegmentRecord::read(&RealStorage, data)?.losses(&RealStorage, data)?;
    Ok(losses.into_iter().map(|(partition, what)| (PathBuf::from(partition.to_string()), what)).collect())
}

/// Returns true if compaction may have removed offsets in the directory of a partition: it has, or the checkpoint of
/// the cleaner cannot be read.
pub(crate) fn is_compacted(dir: &Path) -> bool {
    let name = std::path::absolute(dir).unwrap_or_default();
    let (Some(parent), Some((topic, partition))) = (
        name.parent(),
        name.file_name().and_then(|name| name.to_str()).and_then(|name| name.rsplit_once('-')),
    ) else {
        return true;
    };
    match std::fs::read_to_string(parent.join(CLEANER_CHECKPOINT)) {
        Ok(text) => text.lines().any(|line| line.starts_with(&format!("{topic} {partition} "))),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}
