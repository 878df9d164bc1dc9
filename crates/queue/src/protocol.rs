//! What the processes of a queue do with the words that they share: publication, sleep and wake-up, the writer lock.
//!
//! No file, no mapping, no clock: [`Shared`] has the memory of the machine and the kernel's futex, and the tests have a model in
//! their place that tries what the memory model of the language allows, in all orders.

use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};
use std::time::Duration;

use rustix::thread::{MembarrierCommand, MembarrierQuery, futex, membarrier, membarrier_query};

use crate::control::{End, sleeper};

/// A process sleeps until the lock is free.
pub(crate) const CONTENDED: u32 = 1 << 31;

/// A word that several threads or processes use.
pub(crate) trait Word<T> {
    fn load(&self, order: Ordering) -> T;
    fn store(&self, value: T, order: Ordering);
    fn swap(&self, value: T, order: Ordering) -> T;
    fn fetch_add(&self, value: T, order: Ordering) -> T;
    fn fetch_or(&self, value: T, order: Ordering) -> T;
    /// Returns true if the word was `from` and is `to` now.
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

/// Memory that is shared, and a kernel that puts to sleep.
pub(crate) trait Memory {
    type U32: Word<u32>;
    type U64: Word<u64>;
    type I64: Word<i64>;
    /// Looks at the lock before it sleeps.
    const SPINS: usize;

    fn fence();
    /// Stores a value for those who acquire it, and is a fence for what follows.
    fn store_and_fence(word: &Self::I64, value: i64);
    /// Keeps the order of what is stored before and loaded behind it as far as the compiler goes; the rest is [`Memory::fence_appenders`].
    fn keep_order();
    /// Has the kernel fence the threads of this process whenever another one asks for [`Memory::fence_appenders`]; false if it does not.
    fn register_appender() -> bool;
    /// A fence of this thread, and of all threads of registered processes between two of their instructions. Returns false if the
    /// kernel does not do that, or not for this process.
    fn fence_appenders() -> bool;
    fn spin();
    /// Sleeps unless the word is another by now. Returns false if the time is over.
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
            // There an exchange is a fence for all stores and loads around it, which `mfence` takes longer for.
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
        // Miri has no such call.
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

/// Publishes what was written: readers that do not sleep see it at once. [`wake`] is for the others.
#[inline]
pub(crate) fn publish<M: Memory>(end: &M::U64, next: &M::I64, to: End, next_offset: i64) {
    end.store(to.pack(), Release);
    M::store_and_fence(next, next_offset);
}

/// The same without a fence, for a process that is registered ([`Memory::register_appender`]) while all who are about to sleep ask for
/// one ([`order_sleep`]): the look at the sleepers that follows may otherwise come before the stores are seen.
#[inline]
pub(crate) fn publish_unfenced<M: Memory>(end: &M::U64, next: &M::I64, to: End, next_offset: i64) {
    end.store(to.pack(), Release);
    next.store(next_offset, Release);
    M::keep_order();
}

/// Publishes the first byte of another segment. Its base is where that of the segment before the open one was.
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

/// The base offset of the open segment, and what is published of it.
#[inline]
pub(crate) fn open_segment<M: Memory>(end: &M::U64, bases: [&M::I64; 2]) -> (i64, End) {
    loop {
        let seen = End::unpack(end.load(Acquire));
        let base = bases[seen.roll as usize & 1].load(Acquire);
        // The other place is written on the way to the next segment, this one on the way to the one after it; a reader that sees that
        // sees that there was a next one.
        if End::unpack(end.load(Acquire)).roll == seen.roll {
            return (base, seen);
        }
    }
}

/// Wakes those who sleep; without one it is a load. What they wait for was stored before, and a fence lies between, of this thread
/// or of those who sleep.
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

/// Says that a reader is about to sleep; returns what it is to sleep on. What it waits for has to be looked at after this: if it is
/// not there by then, the one that publishes it with a fence sees that a reader sleeps. For one that publishes without,
/// [`order_sleep`] comes between.
pub(crate) fn announce_sleep<M: Memory>(sleepers: &M::U32, readers: &M::U32) -> u32 {
    let seen = readers.load(Acquire);
    sleepers.fetch_or(sleeper::READER, SeqCst);
    M::fence();
    seen
}

/// Has those who publish without a fence see what this thread has said of its sleep before this, unless it sees behind this what they
/// have published. Returns false where it cannot: then appenders have been asked for a fence of their own, and one that has not seen
/// that yet may miss the sleep.
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

/// How the lock was had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// It was free, or was given back.
    InOrder,
    /// Its holder had died with it.
    FromTheDead,
}

/// Takes the lock if it is free within about the time of an append; returns whether it has it now.
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

/// Takes the lock; sleeps while another one has it. `is_dead` is asked of the word in it whenever `probe` has passed.
///
/// # Errors
/// What `is_dead` has.
#[cold]
pub(crate) fn wait_for_lock<M: Memory, E>(
    lock: &M::U32,
    mine: u32,
    probe: Duration,
    mut is_dead: impl FnMut(u32) -> Result<bool, E>,
) -> Result<Acquired, E> {
    // Others may sleep too, of whom the word that is exchanged does not tell.
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
            return Ok(Acquired::FromTheDead);
        }
    }
}

/// Gives the lock back.
#[inline]
pub(crate) fn release<M: Memory>(lock: &M::U32) {
    if lock.swap(0, Release) & CONTENDED != 0 {
        M::wake(lock, 1);
    }
}

#[cfg(test)]
mod tests;
