//! The `cachestat` call of Linux 6.5 and later, for which no safe wrapper exists. It counts the pages of a file in the page
//! cache.

#![allow(unsafe_code, reason = "a system call that rustix does not have")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// The call's number, the same on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range`: bytes.
#[repr(C)]
struct Range {
    off: u64,
    len: u64,
}

/// `struct cachestat`: pages.
#[repr(C)]
#[derive(Default)]
struct Stat {
    cache: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Set when the kernel has said that it does not know the call, so that it is not asked again.
static UNKNOWN: AtomicBool = AtomicBool::new(false);

/// Returns true if every page of a range is in the page cache; `None`: the kernel cannot tell.
pub(super) fn resident(file: &File, position: u64, len: u64) -> Option<bool> {
    if len == 0 || UNKNOWN.load(Ordering::Relaxed) {
        return None;
    }
    let range = Range { off: position, len };
    let mut stat = Stat::default();
    // SAFETY: both structures have the kernel's layout and live across the call, which writes to `stat` alone; the
    // descriptor is open for as long as `file` is borrowed. Tested by `tests::a_range_that_was_written_is_resident`.
    let result =
        unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut stat, 0u32) };
    if result != 0 {
        UNKNOWN.store(true, Ordering::Relaxed);
        return None;
    }
    let page = rustix::param::page_size() as u64;
    let pages = (position + len).div_ceil(page) - position / page;
    Some(stat.cache >= pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_range_that_was_written_is_resident() {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(&[7; 100_000]).expect("room for it");
        // An older kernel cannot tell, which is an answer too.
        assert!(matches!(resident(&file, 10, 90_000), Some(true) | None));
        assert!(
            matches!(resident(&file, 90_000, 1 << 20), Some(false) | None),
            "there is nothing behind the end"
        );
    }
}
