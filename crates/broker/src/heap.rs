//! Memory that the allocator keeps of what was freed.
//!
//! glibc gives back what is free at the end of an arena. After thousands of buffers of connections that have gone, or of handshakes
//! whose sessions stay, the last ones in use are anywhere, and what is free before them stays resident. Housekeeping has it given
//! back when such a burst is over.
#![allow(unsafe_code, reason = "a call of the C library that has no safe wrapper")]

use std::sync::atomic::{AtomicU64, Ordering};

/// Freed bytes for which it is worth looking: a look costs about a millisecond for each 100 MiB.
const WORTHWHILE_BYTES: u64 = 16 << 20;

/// What a handshake with a login has needed and freed when it is over, 30 KB by massif: key exchange, signature, transcript, names.
pub(crate) const LOGIN_BYTES: usize = 30_000;

/// Bytes of buffers and of handshakes that were freed since the start, beyond the buffers that loops keep.
static FREED: AtomicU64 = AtomicU64::new(0);

/// Counts what is freed.
pub(crate) fn freed(bytes: usize) {
    FREED.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// When to give memory back: much was freed, and little since the last look.
#[derive(Debug, Default)]
pub(crate) struct Trimming {
    /// What was freed at the last look.
    looked: u64,
    /// What was freed when memory was given back.
    trimmed: u64,
}

impl Trimming {
    /// Looks, which is to be done every few seconds.
    pub(crate) fn look(&mut self) {
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

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn give_back() {
    // SAFETY: the call takes a number and gives back only what is free, under the allocator's own locks.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators do so by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn give_back() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_once_when_a_burst_is_over() {
        let mut trimming = Trimming::default();
        let mib = |count: u64| count << 20;
        let looks = [0, 3, 60, 120, 121, 121, 130, 136, 137, 137];
        let due: Vec<_> = looks.into_iter().filter(|freed| trimming.is_due(mib(*freed))).collect();
        assert_eq!(due, [121, 137], "not within the burst, and again after as much");
    }
}
