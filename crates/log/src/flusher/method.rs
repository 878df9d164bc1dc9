//! The method by which a round of the flusher is synced.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// The method by which the files of one round are synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// One after another on the flusher's thread.
    Sequential,
    /// On the flusher's thread and the helpers: concurrent calls share a commit of the file system's journal.
    Parallel,
    /// One `syncfs`, which also writes whatever else is dirty.
    SyncFs,
}

/// Tells how many bytes of the page cache are dirty, on any file system; `None` where that is not known.
pub type DirtyProbe = Arc<dyn Fn() -> Option<u64> + Send + Sync>;

/// Thresholds of a flusher. The defaults were measured (docs/format.md, "Flushing").
#[derive(Clone)]
pub struct FlushOptions {
    /// Threads beside the flusher's own that sync in parallel.
    pub helpers: usize,
    /// From this many files on a round is done by `syncfs`, if [`Self::sync_fs_dirty_max`] allows it.
    pub sync_fs_files_min: usize,
    /// `syncfs` only while at most this many bytes are dirty per file of the round: it writes all of them, whatever
    /// they belong to.
    pub sync_fs_dirty_max: u64,
    /// The source for the dirty bytes.
    pub dirty: DirtyProbe,
    /// No thread syncs: the owner of the flusher begins and ends each round ([`Flusher::begin_round`](super::Flusher::begin_round)).
    #[cfg(any(test, feature = "sim"))]
    pub by_hand: bool,
}

impl FlushOptions {
    /// The measured thresholds, with the kernel's count of dirty pages.
    pub fn measured() -> FlushOptions {
        FlushOptions {
            helpers: 3,
            sync_fs_files_min: 4,
            sync_fs_dirty_max: 64 << 10,
            dirty: kernel_dirty_probe(),
            #[cfg(any(test, feature = "sim"))]
            by_hand: false,
        }
    }

    /// The method for a round of `files` files and directories.
    pub fn method(&self, files: usize) -> Method {
        if files <= 1 {
            return Method::Sequential;
        }
        if files >= self.sync_fs_files_min {
            let dirty_max = self.sync_fs_dirty_max.saturating_mul(files as u64);
            if (self.dirty)().is_some_and(|dirty| dirty <= dirty_max) {
                return Method::SyncFs;
            }
        }
        Method::Parallel
    }
}

impl Default for FlushOptions {
    fn default() -> FlushOptions {
        FlushOptions::measured()
    }
}

/// Dirty bytes as `/proc/meminfo` counts them. The file stays open: a read of it costs about 2 us.
fn kernel_dirty_probe() -> DirtyProbe {
    let Ok(meminfo) = File::open("/proc/meminfo") else {
        return Arc::new(|| None);
    };
    Arc::new(move || read_dirty(&meminfo).ok().flatten())
}

fn read_dirty(meminfo: &File) -> io::Result<Option<u64>> {
    let mut buf = [0; 1024];
    let len = meminfo.read_at(&mut buf, 0)?;
    Ok(parse_dirty(&buf[..len]))
}

/// The value of the line `Dirty:   123 kB`, in bytes.
fn parse_dirty(meminfo: &[u8]) -> Option<u64> {
    let line = meminfo.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Dirty:"))?;
    let line = std::str::from_utf8(line).ok()?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dirty_bytes_are_read_from_meminfo() {
        let check = |text: &str, expected| assert_eq!(parse_dirty(text.as_bytes()), expected, "{text:?}");
        check("MemTotal: 1 kB\nDirty:               508 kB\nWriteback: 7 kB\n", Some(508 << 10));
        check("Dirty: 0 kB\n", Some(0));
        check("Dirty: 1 MB\n", None);
        check("Dirty: 99999999999999999999 kB\n", None);
        check("Writeback: 7 kB\n", None);
        check("", None);
    }

    #[test]
    fn the_method_follows_the_number_of_files_and_the_dirty_bytes() {
        let check = |files, dirty: Option<u64>, expected| {
            let options = FlushOptions {
                sync_fs_files_min: 4,
                sync_fs_dirty_max: 1000,
                dirty: Arc::new(move || dirty),
                ..FlushOptions::measured()
            };
            assert_eq!(options.method(files), expected, "{files} files, {dirty:?} dirty");
        };
        check(0, Some(0), Method::Sequential);
        check(1, Some(0), Method::Sequential);
        check(2, Some(0), Method::Parallel);
        check(3, Some(0), Method::Parallel);
        check(4, Some(0), Method::SyncFs);
        check(4, Some(4000), Method::SyncFs);
        check(4, Some(4001), Method::Parallel);
        check(100, Some(50_000), Method::SyncFs);
        check(100, None, Method::Parallel);
    }
}
