//! A file mapped into memory and shared with other processes.
//!
//! Every access to mapped memory of this crate goes through this module, which holds all its unsafe code. Two rules make it sound, as far
//! as memory that other processes write can be:
//!
//! - Words that several processes write are atomics.
//! - Bytes are written only by the holder of the writer lock, and only those that no reader was given yet. Published bytes are read and
//!   never written again.
//!
//! Processes that may write the directory are trusted to keep these rules. One that breaks them, or cuts a mapped file, can harm the
//! others, unless they are guarded ([`guard`](crate::guard)). A process that only reads needs no write permission and can harm no other.

#![allow(unsafe_code, reason = "memory that is shared between processes")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

use parking_lot::Mutex;
use rustix::mm::Advice;

use crate::guard::Guard;

#[cfg(all(target_arch = "x86_64", not(miri)))]
const CACHE_LINE: usize = 64;
/// Pages are made present and given back in whole pieces of this size: as many as the kernel maps at once on a read.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// A mapping of the first bytes of a file, shared.
#[derive(Debug)]
pub(crate) struct Map {
    start: NonNull<u8>,
    len: usize,
    is_writable: bool,
    pages: Pages,
    guard: Option<Guard>,
}

/// The pages of a mapping, for a thread that makes them present for others. It accesses no byte, and keeps no mapping
/// alive.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pages(Arc<Mutex<Option<(usize, usize)>>>);

impl Pages {
    fn new(start: NonNull<u8>, len: usize) -> Pages {
        Pages(Arc::new(Mutex::new(Some((start.as_ptr().expose_provenance(), len)))))
    }

    /// Returns false if the mapping is gone.
    pub(crate) fn is_mapped(&self) -> bool {
        self.0.lock().is_some()
    }

    /// As [`Map::populate`]; false if the mapping is gone or ends before the range.
    pub(crate) fn populate(&self, range: Range<usize>) -> bool {
        // It is held over the call: the mapping cannot go meanwhile.
        let mapped = self.0.lock();
        let Some((start, len)) = *mapped else { return false };
        if range.start >= len {
            return false;
        }
        populate(start, pages(range, len));
        true
    }

    /// As [`Map::forget`]; false if the mapping is gone, or another thread works on it, which is not waited for.
    pub(crate) fn forget(&self, range: Range<usize>) -> bool {
        let Some(mapped) = self.0.try_lock() else { return false };
        let Some((start, len)) = *mapped else { return false };
        let range = pages(range, len);
        if range.is_empty() {
            return true;
        }
        // SAFETY: the mapping is there while the lock is held, and the pages of a shared mapping of a file are read from it again
        // when they are next touched.
        let _ = unsafe {
            rustix::mm::madvise(
                ptr::with_exposed_provenance_mut(start + range.start),
                range.len(),
                Advice::LinuxDontNeed,
            )
        };
        true
    }
}

// SAFETY: the mapping belongs to no thread, and the rules above hold for threads as for processes.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `len` bytes. The file has to have them for as long as they are used.
    ///
    /// # Errors
    /// The kernel's error: ENODEV for a file system without shared mappings.
    pub(crate) fn new(file: &File, len: usize, is_writable: bool) -> io::Result<Map> {
        let protection = if is_writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        if len == 0 {
            let (start, pages) = (NonNull::dangling(), Pages::default());
            return Ok(Map { start, len, is_writable, pages, guard: None });
        }
        let descriptor = file.as_raw_fd();
        // By the C library, as in `std::fs`, so that a test can replace it.
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory that is in use.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, descriptor, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start: NonNull<u8> = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let guard = Guard::new(start.as_ptr().expose_provenance(), len);
        Ok(Map { start, len, is_writable, pages: Pages::new(start, len), guard })
    }

    /// Returns true once the file was found to be cut, in a guarded process ([`guard`](crate::guard)). What was read from it or
    /// written to it before this call is then not to be trusted.
    pub(crate) fn is_lost(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_lost)
    }

    /// The mapped bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Published bytes, or bytes that are not written meanwhile.
    ///
    /// # Panics
    /// If they are not mapped.
    pub(crate) fn published(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: the range is mapped for as long as `self` lives, and by the rules above no process writes to it.
        unsafe { slice::from_raw_parts(self.start.as_ptr().add(range.start), range.len()) }
    }

    /// Bytes that no reader was given yet, for the holder of the writer lock.
    ///
    /// # Panics
    /// If they are not mapped, or not for writing.
    pub(crate) fn unpublished(&mut self, range: Range<usize>) -> &mut [u8] {
        assert!(self.is_writable, "the file is mapped for reading");
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: as above; the caller holds the writer lock and this is its only mapping for writing, borrowed uniquely, so
        // that there is no other reference to these bytes.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr().add(range.start), range.len()) }
    }

    /// A word that several processes read and write. A read-only mapping must not be stored to.
    ///
    /// # Panics
    /// If it is not mapped, or not aligned.
    pub(crate) fn u64(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `word` checks that it is mapped and aligned; memory that is accessed by atomics alone may be shared.
        unsafe { AtomicU64::from_ptr(self.word(at)) }
    }

    /// The same for a signed one.
    pub(crate) fn i64(&self, at: usize) -> &AtomicI64 {
        // SAFETY: as for `u64`.
        unsafe { AtomicI64::from_ptr(self.word(at)) }
    }

    /// The same for one of 32 bits.
    pub(crate) fn u32(&self, at: usize) -> &AtomicU32 {
        // SAFETY: as for `u64`.
        unsafe { AtomicU32::from_ptr(self.word(at)) }
    }

    fn word<T>(&self, at: usize) -> *mut T {
        assert!(at.is_multiple_of(align_of::<T>()) && at + size_of::<T>() <= self.len, "word at {at}");
        // SAFETY: the address is within the mapping, which is aligned to a page.
        unsafe { self.start.as_ptr().add(at).cast() }
    }

    /// Makes pages present for writing, so that the first store to each does not wait for the kernel. After a failure the
    /// stores themselves do it.
    pub(crate) fn populate(&self, range: Range<usize>) {
        populate(self.start.as_ptr().expose_provenance(), pages(range, self.len));
    }

    /// The pages, for another thread.
    pub(crate) fn pages(&self) -> Pages {
        self.pages.clone()
    }

    /// Asks the CPU for the cache lines of bytes that are about to be written, without waiting, also where another CPU has them.
    #[inline]
    pub(crate) fn prefetch(&self, from: usize, bytes: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        for at in (from..from.saturating_add(bytes).min(self.len)).step_by(CACHE_LINE) {
            // SAFETY: the address is within the mapping, and this instruction, which CPUs that do not know it pass over, reads and
            // writes nothing that can be seen.
            unsafe {
                let address = self.start.as_ptr().add(at);
                std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
            };
        }
        #[cfg(any(not(target_arch = "x86_64"), miri))]
        let _ = (from, bytes);
    }

    /// Gives resident pages back; their contents stay in the file.
    pub(crate) fn forget(&self, range: Range<usize>) {
        let _ = self.pages.forget(range);
    }
}

/// The whole pages of a range, within a mapping of `len` bytes.
fn pages(range: Range<usize>, len: usize) -> Range<usize> {
    let page = rustix::param::page_size();
    let end = range.end.min(len);
    range.start.next_multiple_of(page)..end - end % page
}

/// Makes pages of the mapping that begins at `start` present.
fn populate(start: usize, range: Range<usize>) {
    if range.is_empty() {
        return;
    }
    // SAFETY: the caller has the mapping for as long as this takes; populating changes no byte, and after a cut of the file it is
    // an error.
    let _ = unsafe {
        rustix::mm::madvise(
            ptr::with_exposed_provenance_mut(start + range.start),
            range.len(),
            Advice::LinuxPopulateWrite,
        )
    };
}

impl Drop for Map {
    fn drop(&mut self) {
        if self.len > 0 {
            // Another thread that populates it has ended, and none begins.
            *self.pages.0.lock() = None;
            self.guard = None;
            // SAFETY: the mapping is ours, and every reference into it borrows `self`.
            let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::{Deref, DerefMut};
    use std::sync::atomic::Ordering::{Acquire, Relaxed};
    use std::thread;

    use super::*;
    use crate::protocol::{self, Shared};
    use crate::words::End;

    const BYTES: usize = 4096;
    const WORDS: usize = 64;

    /// A mapping of memory instead of a file's, so that miri can run this, which has no mapped files. `cargo +nightly
    /// miri test -p mainstem-queue map::`
    struct Mapping(Map);

    impl Deref for Mapping {
        type Target = Map;

        fn deref(&self) -> &Map {
            &self.0
        }
    }

    impl DerefMut for Mapping {
        fn deref_mut(&mut self) -> &mut Map {
            &mut self.0
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // The kernel has no mapping to unmap.
            self.0.len = 0;
        }
    }

    fn mappings<const N: usize>(memory: &mut [u64; BYTES / 8], are_writable: [bool; N]) -> [Mapping; N] {
        let start = NonNull::from(memory).cast();
        are_writable.map(|is_writable| {
            Mapping(Map { start, len: BYTES, is_writable, pages: Pages::default(), guard: None })
        })
    }

    #[test]
    fn one_writes_behind_what_others_read() {
        let mut memory = [0; BYTES / 8];
        let [mut writing, reading] = mappings(&mut memory, [true, false]);
        let messages = (BYTES - WORDS) / 100;
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..messages {
                    let at = WORDS + number * 100;
                    writing.unpublished(at..at + 100).fill(number as u8);
                    let end = End { roll: 0, bytes: (at + 100) as u32 };
                    protocol::publish::<Shared>(writing.u64(0), writing.i64(8), end, number as i64 + 1);
                    // The writer reads published bytes too, while others do.
                    assert_eq!(writing.published(at..at + 1), [number as u8]);
                }
            });
            scope.spawn(|| {
                let mut kept: Vec<&[u8]> = Vec::new();
                while kept.len() < messages {
                    let next = reading.i64(8).load(Acquire) as usize;
                    for number in kept.len()..next {
                        let at = WORDS + number * 100;
                        kept.push(reading.published(at..at + 100));
                    }
                    thread::yield_now();
                }
                for (number, message) in kept.iter().enumerate() {
                    assert!(message.iter().all(|byte| *byte == number as u8));
                }
            });
        });
    }

    #[test]
    fn the_lock_keeps_writers_apart_and_readers_that_sleep_are_woken() {
        const EACH: i64 = if cfg!(miri) { 20 } else { 2_000 };
        let [next_at, lock_at, sleepers_at, wake_at, broker_at] = [8, 16, 20, 24, 28];
        let mut memory = [0; BYTES / 8];
        let [one, other, reading] = mappings(&mut memory, [true, true, false]);
        let write = |mut map: Mapping, slot: u32| {
            for _ in 0..EACH {
                if !protocol::try_acquire::<Shared>(map.u32(lock_at), slot) {
                    let probe = std::time::Duration::from_millis(5);
                    let lives = |_| Ok::<_, std::convert::Infallible>(false);
                    let Ok(acquired) =
                        protocol::wait_for_lock::<Shared, _>(map.u32(lock_at), slot, probe, lives);
                    assert_eq!(acquired, protocol::Acquired::InOrder);
                }
                // For the holder of the lock only.
                let count = map.unpublished(WORDS..WORDS + 2);
                let next = u16::from_ne_bytes([count[0], count[1]]) + 1;
                count.copy_from_slice(&next.to_ne_bytes());
                let end = End { roll: 0, bytes: u32::from(next) };
                protocol::publish::<Shared>(map.u64(0), map.i64(next_at), end, i64::from(next));
                protocol::wake::<Shared>(map.u32(sleepers_at), map.u32(wake_at), map.u32(broker_at));
                protocol::release::<Shared>(map.u32(lock_at));
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| write(one, 1));
            scope.spawn(|| write(other, 2));
            scope.spawn(|| {
                let mut seen = 0;
                while seen < 2 * EACH {
                    let word =
                        protocol::announce_sleep::<Shared>(reading.u32(sleepers_at), reading.u32(wake_at));
                    if reading.i64(next_at).load(Acquire) == seen {
                        <Shared as protocol::Memory>::wait(reading.u32(wake_at), word, None);
                    }
                    seen = reading.i64(next_at).load(Acquire);
                }
            });
        });
    }

    #[test]
    fn what_is_not_mapped_is_not_reached() {
        let mut memory = [0; BYTES / 8];
        let [mut writing, mut reading] = mappings(&mut memory, [true, false]);
        let refused = |reach: &mut dyn FnMut()| {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(reach)).unwrap_err();
        };
        refused(&mut || reading.published(BYTES - 1..BYTES + 1).iter().for_each(drop));
        refused(&mut || reading.u64(BYTES - 4).store(1, Relaxed));
        refused(&mut || reading.u32(2).store(1, Relaxed));
        refused(&mut || reading.unpublished(0..1).fill(1));
        refused(&mut || writing.unpublished(BYTES..BYTES + 1).fill(1));
    }
}
