//! The prepared files of the next segment: `log.spare`, `index.spare` and `timeindex.spare`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::segment;

/// The files of the next segment, the log first.
pub(crate) fn spares(directory: &Path) -> [PathBuf; 3] {
    ["log", "index", "timeindex"].map(|extension| directory.join(format!("{extension}.spare")))
}

/// Renames the prepared files. Returns false if there are none, or not of the right size; then no file is left that could be
/// taken for one of a segment. For the holder of the lock.
pub(crate) fn take_spare(directory: &Path, base: i64, segment_bytes: u64) -> bool {
    let paths = spares(directory);
    // It is made last.
    if !paths[0].exists() {
        return false;
    }
    let sized = paths.iter().zip(segment::sizes(segment_bytes));
    // The log last: a segment exists once its log does.
    let is_taken = sized.rev().all(|(spare, (extension, bytes))| {
        fs::metadata(spare).is_ok_and(|file| file.len() == bytes)
            && fs::rename(spare, segment::path(directory, base, extension)).is_ok()
    });
    if !is_taken {
        // A process may have died between two renames. The thread makes the files again.
        paths.iter().for_each(|path| drop(fs::remove_file(path)));
    }
    is_taken
}
