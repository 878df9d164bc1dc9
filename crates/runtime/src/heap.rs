//! Memory that the allocator keeps of what was freed.
//!
//! glibc gives back what is free at the end of an arena. After thousands of buffers of connections that have gone, or of handshakes
//! whose sessions stay, the last ones in use are anywhere, and what is free before them stays resident. Housekeeping has it given
//! back when such a burst is over. Large buffers have pages of their own, which go back with them.
#![allow(unsafe_code, reason = "calls of the C library that have no safe wrapper")]

use std::sync::atomic::{AtomicU64, Ordering};

/// Freed bytes for which it is worth looking: a look costs about a millisecond for each 100 MiB.
const WORTHWHILE_BYTES: u64 = 16 << 20;

/// Buffers from this size on have pages of their own, which go back to the system with them. Those of a request or an answer with a
/// batch of the default `max.message.bytes` (1 MiB) are below it: fresh pages for each would cost more than they are used for.
const LARGE_BUFFER_BYTES: usize = 4 << 20;

/// Free bytes that an arena keeps at its end.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const ARENA_REST_BYTES: i32 = 4 << 20;

/// Bytes that a handshake with a login allocates and frees, measured with massif: key exchange, signature, transcript, names.
pub const LOGIN_BYTES: usize = 30_000;

/// Bytes of buffers and of handshakes that were freed since the start, beyond the buffers that loops keep.
static FREED: AtomicU64 = AtomicU64::new(0);

/// Counts what is freed.
pub fn freed(bytes: usize) {
    FREED.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// An answer of so many bytes was put together, from as many in small pieces, which are free now. Other threads would not use what is
/// left of them in the arena of this one: it is given back if that is much.
pub fn put_together(bytes: usize) {
    if bytes >= LARGE_BUFFER_BYTES {
        give_back();
    }
}

/// When to give memory back: much was freed, and little since the last look.
#[derive(Debug, Default)]
pub struct Trimming {
    /// Value of [`FREED`] at the last look.
    looked: u64,
    /// Value of [`FREED`] when memory was last given back.
    trimmed: u64,
}

impl Trimming {
    /// Looks, which is to be done every few seconds.
    pub fn look(&mut self) {
        if self.is_due(FREED.load(Ordering::Relaxed)) {
            give_back();
        }
    }

    fn is_due(&mut self, freed: u64) -> bool {
        let is_over = freed - std::mem::replace(&mut self.looked, freed) < WORTHWHILE_BYTES / 4;
        let is_due = is_over && freed - self.trimmed >= WORTHWHILE_BYTES;
        if is_due {
            self.trimmed = freed;
        }
        is_due
    }
}

/// Has large buffers go back to the system as soon as they are freed. Unasked, glibc learns from each that is freed to keep the next
/// ones, up to 32 MiB, and twice as much behind them, in the arena of the thread: those of all threads for the background would keep
/// what only one at a time has needed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn give_back_large_buffers_at_once() {
    // SAFETY: the calls take two numbers each, under the allocator's own locks.
    let done = unsafe {
        [
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BUFFER_BYTES as i32),
            libc::mallopt(libc::M_TRIM_THRESHOLD, ARENA_REST_BYTES),
        ]
    };
    if done != [1, 1] {
        tracing::debug!("the allocator keeps its own limits");
    }
}

/// Other allocators have rules of their own.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn give_back_large_buffers_at_once() {}

/// Gives back what is free.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn give_back() {
    // SAFETY: the call takes a number and gives back only what is free, under the allocator's own locks.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators do so by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn give_back() {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffer that has pages of its own begins behind the allocator's 16 bytes on the first of them.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn large_buffers_have_pages_of_their_own_after_larger_ones_too() {
        give_back_large_buffers_at_once();
        drop(vec![7u8; 4 * LARGE_BUFFER_BYTES]);
        let buffers: Vec<_> = (0..5).map(|_| vec![7u8; 2 * LARGE_BUFFER_BYTES]).collect();
        let places: Vec<_> = buffers.iter().map(|buffer| buffer.as_ptr() as usize % 4096).collect();
        assert_eq!(places, [16; 5]);
    }

    #[test]
    fn memory_is_given_back_once_when_a_burst_is_over() {
        let mut trimming = Trimming::default();
        let mib = |count: u64| count << 20;
        let looks = [0, 3, 60, 120, 121, 121, 130, 136, 137, 137];
        let due: Vec<_> = looks.into_iter().filter(|freed| trimming.is_due(mib(*freed))).collect();
        assert_eq!(due, [121, 137], "not within the burst, and again after as much");
    }
}
