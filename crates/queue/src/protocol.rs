//! The protocol of a queue's processes on the words that they share: publication, sleep and wake-up, the writer lock.
//!
//! It has no file, no mapping, no clock. [`Shared`] is the memory of the machine and the kernel's futex. Tests replace it by a
//! model that tries all orders that the language's memory model allows.

use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};
use std::time::Duration;

use rustix::thread::{MembarrierCommand, MembarrierQuery, futex, membarrier, membarrier_query};

use crate::words::{End, sleeper};

/// Set while a process sleeps until the lock is free.
pub(crate) const CONTENDED: u32 = 1 << 31;

/// A word that several threads or processes use.
pub(crate) trait Word<T> {
    fn load(&self, order: Ordering) -> T;
    fn store(&self, value: T, order: Ordering);
    fn swap(&self, value: T, order: Ordering) -> T;
    fn fetch_add(&self, value: T, order: Ordering) -> T;
    fn fetch_or(&self, value: T, order: Ordering) -> T;
    /// Exchanges the word if it is `from`; returns true if it did.
    fn exchange(&self, from: T, to: T, success: Ordering) -> bool;
}

macro_rules! words {
    ($($word:ty: $value:ty),*) => {$(
        impl Word<$value> for $word {
            fn load(&self, order: Ordering) -> $value {
                <$word>::load(self, order)
            }

            fn store(&self, value: $value, order: Ordering) {
                <$word>::store(self, value, order);
            }

            fn swap(&self, value: $value, order: Ordering) -> $value {
                <$word>::swap(self, value, order)
            }

            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                <$word>::fetch_add(self, value, order)
            }

            fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                <$word>::fetch_or(self, value, order)
            }

            fn exchange(&self, from: $value, to: $value, success: Ordering) -> bool {
                self.compare_exchange(from, to, success, Relaxed).is_ok()
            }
        }
    )*};
}

words!(AtomicU32: u32, AtomicU64: u64, AtomicI64: i64);

/// Shared memory, and the kernel's sleep and wake-up.
pub(crate) trait Memory {
    type U32: Word<u32>;
    type U64: Word<u64>;
    type I64: Word<i64>;
    /// The number of looks at the lock before a sleep.
    const SPINS: usize;

    fn fence();
    /// Stores a value with release order, followed by a full fence.
    fn store_and_fence(word: &Self::I64, value: i64);
    /// A compiler fence between earlier stores and later loads; [`Memory::fence_appenders`] does the rest.
    fn keep_order();
    /// Registers this process for fences that others ask for by [`Memory::fence_appenders`]; false if the kernel has none.
    fn register_appender() -> bool;
    /// A fence of this thread, and of all threads of registered processes between two of their instructions. Returns false if the
    /// kernel does not do that, or not for this process.
    fn fence_appenders() -> bool;
    fn spin();
    /// Sleeps unless the word has changed since `seen`. Returns false after the timeout.
    fn wait(word: &Self::U32, seen: u32, timeout: Option<Duration>) -> bool;
    fn wake(word: &Self::U32, count: u32);
}

/// Memory that processes share by mapping a file.
pub(crate) enum Shared {}

impl Memory for Shared {
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    type I64 = AtomicI64;
    // About as long as an append takes.
    const SPINS: usize = 200;

    fn fence() {
        std::sync::atomic::fence(SeqCst);
    }

    fn store_and_fence(word: &AtomicI64, value: i64) {
        if cfg!(target_arch = "x86_64") {
            // An exchange is a full fence on this CPU, and faster than `mfence`.
            word.swap(value, SeqCst);
        } else {
            word.store(value, Release);
            Self::fence();
        }
    }

    fn keep_order() {
        std::sync::atomic::compiler_fence(SeqCst);
    }

    fn register_appender() -> bool {
        let wanted = MembarrierQuery::GLOBAL_EXPEDITED | MembarrierQuery::REGISTER_GLOBAL_EXPEDITED;
        // Miri does not have this call.
        !cfg!(miri)
            && membarrier_query().contains(wanted)
            && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
    }

    fn fence_appenders() -> bool {
        !cfg!(miri) && membarrier(MembarrierCommand::GlobalExpedited).is_ok()
    }

    fn spin() {
        std::hint::spin_loop();
    }

    fn wait(word: &AtomicU32, seen: u32, timeout: Option<Duration>) -> bool {
        let timeout = timeout.map(timespec);
        let waited = futex::wait(word, futex::Flags::empty(), seen, timeout.as_ref());
        waited != Err(rustix::io::Errno::TIMEDOUT)
    }

    fn wake(word: &AtomicU32, count: u32) {
        let _ = futex::wake(word, futex::Flags::empty(), count);
    }
}

pub(crate) fn timespec(duration: Duration) -> rustix::thread::Timespec {
    rustix::thread::Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Publishes written bytes. Readers that do not sleep see them at once; [`wake`] is for the others.
#[inline]
pub(crate) fn publish<M: Memory>(end: &M::U64, next: &M::I64, to: End, next_offset: i64) {
    end.store(to.pack(), Release);
    M::store_and_fence(next, next_offset);
}

/// The same without a fence, for a registered process ([`Memory::register_appender`]). It relies on sleepers that ask for a fence
/// ([`order_sleep`]): the look at the sleepers that follows may otherwise be done before the stores are visible.
#[inline]
pub(crate) fn publish_unfenced<M: Memory>(end: &M::U64, next: &M::I64, to: End, next_offset: i64) {
    end.store(to.pack(), Release);
    next.store(next_offset, Release);
    M::keep_order();
}

/// Publishes the beginning of another segment. Its base replaces that of the segment before the open one.
pub(crate) fn publish_segment<M: Memory>(
    end: &M::U64,
    next: &M::I64,
    bases: [&M::I64; 2],
    roll: u32,
    base: i64,
) {
    bases[roll as usize & 1].store(base, Release);
    publish::<M>(end, next, End { roll, bytes: 0 }, base);
}

/// The base offset of the open segment, and its published end.
#[inline]
pub(crate) fn open_segment<M: Memory>(end: &M::U64, bases: [&M::I64; 2]) -> (i64, End) {
    loop {
        let seen = End::unpack(end.load(Acquire));
        let base = bases[seen.roll as usize & 1].load(Acquire);
        // The other place is overwritten by the next roll, this one by the roll after it. A reader that sees that also sees that the
        // word has changed.
        if End::unpack(end.load(Acquire)).roll == seen.roll {
            return (base, seen);
        }
    }
}

/// Wakes the sleepers; without any it is a load. The publication that they wait for was stored before, with a fence in between: of
/// this thread or of the sleepers.
#[inline]
pub(crate) fn wake<M: Memory>(sleepers: &M::U32, readers: &M::U32, broker: &M::U32) {
    if sleepers.load(Relaxed) != 0 {
        wake_sleepers::<M>(sleepers, readers, broker);
    }
}

#[cold]
fn wake_sleepers<M: Memory>(sleepers: &M::U32, readers: &M::U32, broker: &M::U32) {
    let asleep = sleepers.swap(0, SeqCst);
    for (bit, word) in [(sleeper::READER, readers), (sleeper::BROKER, broker)] {
        if asleep & bit != 0 {
            word.fetch_add(1, SeqCst);
            M::wake(word, i32::MAX as u32);
        }
    }
}

/// Announces that a reader is about to sleep; returns the word to sleep on. The reader has to look after this for what it waits
/// for: if it is not there, the appender that publishes it with a fence sees that a reader sleeps. For appenders without fences,
/// [`order_sleep`] comes in between.
pub(crate) fn announce_sleep<M: Memory>(sleepers: &M::U32, readers: &M::U32) -> u32 {
    let seen = readers.load(Acquire);
    sleepers.fetch_or(sleeper::READER, SeqCst);
    M::fence();
    seen
}

/// Makes appenders without fences see this thread's announcement, or this thread see their publications after this. Returns false if
/// it cannot: then appenders have been asked for fences of their own, and one that has not seen that yet may miss the sleep.
pub(crate) fn order_sleep<M: Memory>(fences_wanted: &M::U32) -> bool {
    if M::fence_appenders() {
        return true;
    }
    if fences_wanted.load(Relaxed) == 0 {
        fences_wanted.store(1, SeqCst);
    }
    M::fence();
    false
}

/// The way in which the lock was acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// It was free, or was released.
    InOrder,
    /// Its holder had died with it.
    FromDeadHolder,
}

/// Takes the lock if it is free within about the time of an append; returns true if it has it now.
#[inline]
pub(crate) fn try_acquire<M: Memory>(lock: &M::U32, mine: u32) -> bool {
    for _ in 0..M::SPINS {
        if lock.exchange(0, mine, Acquire) {
            return true;
        }
        M::spin();
    }
    false
}

/// Takes the lock; sleeps while another process has it. Whenever `probe` has passed, `is_dead` is asked about the word
/// in it.
///
/// # Errors
/// The error of `is_dead`.
#[cold]
pub(crate) fn wait_for_lock<M: Memory, E>(
    lock: &M::U32,
    mine: u32,
    probe: Duration,
    mut is_dead: impl FnMut(u32) -> Result<bool, E>,
) -> Result<Acquired, E> {
    // Others may sleep too, which the replaced word does not show.
    let mine = mine | CONTENDED;
    loop {
        let seen = lock.load(Relaxed);
        if seen == 0 {
            if lock.exchange(0, mine, Acquire) {
                return Ok(Acquired::InOrder);
            }
            continue;
        }
        let contended = seen | CONTENDED;
        if seen != contended && !lock.exchange(seen, contended, Acquire) {
            continue;
        }
        if !M::wait(lock, contended, Some(probe))
            && is_dead(contended)?
            && lock.exchange(contended, mine, Acquire)
        {
            return Ok(Acquired::FromDeadHolder);
        }
    }
}

/// Releases the lock.
#[inline]
pub(crate) fn release<M: Memory>(lock: &M::U32) {
    if lock.swap(0, Release) & CONTENDED != 0 {
        M::wake(lock, 1);
    }
}

#[cfg(test)]
mod tests;
