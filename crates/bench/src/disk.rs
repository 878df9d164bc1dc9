//! The cost of a sync on the disk that is measured, which is the floor of every latency with fsync; and files without cached pages.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use rustix::fs::{Advice, fadvise};

use crate::latency::new_histogram;

const SYNCS: usize = 500;
/// The size of a record of the loads with fsync.
const APPEND_BYTES: usize = 1_024;

/// Nanoseconds of fdatasync after an append of 1 KiB, 500 times on a new file of the folder.
pub(crate) fn fdatasync_costs(folder: &Path) -> Result<Histogram<u64>> {
    let path = folder.join(format!("fdatasync-{}", std::process::id()));
    let costs = File::create(&path).and_then(append_and_sync);
    // A file of half a megabyte left behind cannot be reported from here.
    let _ = fs::remove_file(&path);
    costs.with_context(|| {
        format!("{} cannot be written: choose another folder by --data-root", path.display())
    })
}

fn append_and_sync(mut file: File) -> std::io::Result<Histogram<u64>> {
    let mut costs = new_histogram();
    for _ in 0..SYNCS {
        file.write_all(&[7; APPEND_BYTES])?;
        let begin = Instant::now();
        file.sync_data()?;
        costs.saturating_record(begin.elapsed().as_nanos() as u64);
    }
    Ok(costs)
}

/// Waits until all that was written to the file system of a folder, or removed from it, has reached the disk. So the files of one system do
/// not slow down the next one. The removal of a file of gigabytes takes the disk hundreds of milliseconds if the file system passes it on
/// (`discard`).
pub(crate) fn settle(folder: &Path) -> Result<()> {
    let sync = || rustix::fs::syncfs(File::open(folder)?).map_err(std::io::Error::from);
    sync().with_context(|| format!("{} cannot be synced", folder.display()))
}

/// Writes the segments of a folder (`.log`) to the disk and makes the kernel forget their pages. Other files come and go while the broker
/// runs.
pub(crate) fn make_cold(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        let file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
        file.sync_all()?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_sync_is_counted_and_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let costs = super::fdatasync_costs(folder.path()).unwrap();
        assert_eq!(costs.len(), 500);
        // A system call takes longer than this, whatever the disk.
        assert!(costs.max() > 100, "{} ns", costs.max());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(super::fdatasync_costs(&folder.path().join("none")).is_err());
    }
}
