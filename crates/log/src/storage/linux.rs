//! The system calls that only Linux has, each with what is done elsewhere.

use super::Advice;
use std::fs::File;
use std::io::{self, IoSlice};

#[cfg(target_os = "linux")]
mod system {
    use super::*;
    use rustix::fs::FallocateFlags;
    use rustix::io::{Errno, ReadWriteFlags};
    use std::io::IoSliceMut;
    use std::num::NonZeroU64;

    pub(in crate::storage) fn write_vectored_at(
        file: &File,
        bufs: &[IoSlice<'_>],
        position: u64,
    ) -> io::Result<usize> {
        Ok(rustix::io::pwritev(file, bufs, position)?)
    }

    pub(in crate::storage) fn read_at_nowait(
        file: &File,
        buf: &mut [u8],
        position: u64,
    ) -> io::Result<Option<usize>> {
        let mut bufs = [IoSliceMut::new(buf)];
        match rustix::io::preadv2(file, &mut bufs, position, ReadWriteFlags::NOWAIT) {
            Ok(read) => Ok(Some(read)),
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(in crate::storage) fn allocate(file: &File, position: u64, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, position, len) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(in crate::storage) fn sync_fs(file: &File) -> io::Result<()> {
        Ok(rustix::fs::syncfs(file)?)
    }

    pub(in crate::storage) fn advise(file: &File, advice: Advice, position: u64, len: u64) {
        let advice = match advice {
            Advice::WillNeed => rustix::fs::Advice::WillNeed,
            Advice::DontNeed => rustix::fs::Advice::DontNeed,
            Advice::Random => rustix::fs::Advice::Random,
        };
        // A hint that the kernel does not take changes nothing.
        let _ = rustix::fs::fadvise(file, position, NonZeroU64::new(len), advice);
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::*;
    use std::os::unix::fs::FileExt;

    pub(in crate::storage) fn write_vectored_at(
        file: &File,
        bufs: &[IoSlice<'_>],
        position: u64,
    ) -> io::Result<usize> {
        let mut written = 0;
        for buf in bufs {
            let count = file.write_at(buf, position + written as u64)?;
            written += count;
            if count < buf.len() {
                break;
            }
        }
        Ok(written)
    }

    pub(in crate::storage) fn read_at_nowait(_: &File, _: &mut [u8], _: u64) -> io::Result<Option<usize>> {
        Ok(None)
    }

    pub(in crate::storage) fn allocate(_: &File, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    pub(in crate::storage) fn sync_fs(file: &File) -> io::Result<()> {
        file.sync_all()
    }

    pub(in crate::storage) fn advise(_: &File, _: Advice, _: u64, _: u64) {}
}

pub(in crate::storage) use system::{advise, allocate, read_at_nowait, sync_fs, write_vectored_at};

/// Returns true if a range is in the page cache. The kernel also counts pages that are still being read from the disk, so
/// this reads both ends without waiting. On a kernel without the call only a short range is tried: a range of at most two
/// pages has no middle.
pub(in crate::storage) fn resident(file: &File, position: u64, len: u64) -> Option<bool> {
    const TRIED_LEN_MAX: u64 = 4096;
    #[cfg(target_os = "linux")]
    let counted = super::cachestat::resident(file, position, len);
    #[cfg(not(target_os = "linux"))]
    let counted = None;
    match counted {
        Some(false) => return Some(false),
        None if len > TRIED_LEN_MAX => return None,
        _ => {}
    }
    let mut byte = [0u8; 1];
    for at in [position, position + len.saturating_sub(1)] {
        if read_at_nowait(file, &mut byte, at).ok()?.is_none() {
            return Some(false);
        }
    }
    Some(true)
}
