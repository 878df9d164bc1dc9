//! The fetches that wait for records of a partition.
//!
//! Each counts the bytes that become readable to it. With the high watermark all bytes below it do. A reader of read_committed
//! reads up to the last stable offset, which stays behind while a transaction is open, and jumps when one ends.

use std::sync::Arc;

use mainstem_log::Ends;

use crate::signal::FetchWaiter;

/// Bytes that may become readable when a transaction ends: more than any fetch asks for, since how many they are is not known
/// here. Who waits looks again.
const UNKNOWN_BYTES: usize = 1 << 40;

/// The waiters of one partition.
#[derive(Default)]
pub(super) struct FetchWaiters {
    waiting: Vec<Arc<FetchWaiter>>,
    /// End for readers of read_committed when one of them was last notified or registered.
    stable: StableEnd,
}

/// The end for readers of read_committed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct StableEnd {
    offset: i64,
    /// A transaction is open, and keeps it below the high watermark.
    is_held_back: bool,
}

impl StableEnd {
    fn of(ends: &Ends) -> Self {
        StableEnd { offset: ends.last_stable, is_held_back: ends.last_stable < ends.high_watermark }
    }

    /// Bytes that became readable since `before`, where the high watermark has moved over `bytes`.
    fn readable_since(self, before: StableEnd, bytes: usize) -> usize {
        match self.offset == before.offset {
            true => 0,
            false if self.is_held_back || before.is_held_back => UNKNOWN_BYTES,
            false => bytes,
        }
    }
}

impl FetchWaiters {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Registers a waiter, for which the partition was read with these ends.
    pub(super) fn add(&mut self, waiter: &Arc<FetchWaiter>, ends: &Ends) {
        if waiter.is_of_read_committed() {
            self.stable = StableEnd::of(ends);
        }
        self.waiting.push(waiter.clone());
    }

    /// Takes a waiter's registrations back.
    pub(super) fn remove(&mut self, waiter: &Arc<FetchWaiter>) {
        self.waiting.retain(|other| !Arc::ptr_eq(other, waiter));
    }

    /// Takes a move of the high watermark over `bytes`. Wakes the fetches that waited for no more than that, and forgets them.
    pub(super) fn moved_on(&mut self, bytes: usize, ends: impl Fn() -> Ends) {
        let before = self.stable;
        let stable = &mut self.stable;
        self.waiting.retain(|waiter| {
            let readable = match waiter.is_of_read_committed() {
                false => bytes,
                true => {
                    *stable = StableEnd::of(&ends());
                    stable.readable_since(before, bytes)
                }
            };
            !waiter.readable(readable)
        });
    }

    /// Wakes all fetches, and forgets them: the leader or the log start has changed.
    pub(super) fn look_again(&mut self) {
        self.waiting.drain(..).for_each(|waiter| waiter.look_again());
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    fn ends(last_stable: i64, high_watermark: i64) -> Ends {
        Ends {
            log_start: 0,
            local_log_start: 0,
            log_end: high_watermark,
            durable_end: high_watermark,
            high_watermark,
            last_stable,
        }
    }

    /// Number of the move of the ends, each by 60 bytes, that wakes a fetch for 100 bytes: with read_uncommitted, and with read_committed.
    fn woken_by(moves: &[(i64, i64)]) -> (Option<usize>, Option<usize>) {
        let wait = |waiter: FetchWaiter| {
            let waiter = Arc::new(waiter);
            waiter.begin();
            waiter.arm(100);
            waiter
        };
        let (all, committed) = (wait(FetchWaiter::default()), wait(FetchWaiter::of_read_committed()));
        let mut waiters = FetchWaiters::default();
        let (first, rest) = moves.split_first().expect("where they begin");
        waiters.add(&all, &ends(first.0, first.1));
        waiters.add(&committed, &ends(first.0, first.1));
        let context = Context::from_waker(Waker::noop());
        let (mut all_by, mut committed_by) = (None, None);
        for (number, (last_stable, high_watermark)) in (1..).zip(rest) {
            waiters.moved_on(60, || ends(*last_stable, *high_watermark));
            let by = |waiter: &FetchWaiter| waiter.poll(&context).is_ready().then_some(number);
            all_by = all_by.or_else(|| by(&all));
            committed_by = committed_by.or_else(|| by(&committed));
        }
        (all_by, committed_by)
    }

    #[test]
    fn bytes_count_for_a_reader_when_it_can_read_them() {
        // No transactions: 60 bytes do not suffice, twice as many do.
        assert_eq!(woken_by(&[(5, 5), (6, 6), (7, 7), (8, 8)]), (Some(2), Some(2)));
        // One is open all the time.
        assert_eq!(woken_by(&[(5, 5), (5, 6), (5, 7), (5, 8)]), (Some(2), None));
        // It was open before, and ends: how many bytes that makes readable is looked up.
        assert_eq!(woken_by(&[(3, 5), (3, 6), (3, 7), (8, 8)]), (Some(2), Some(3)));
        // It ends, and another one is open.
        assert_eq!(woken_by(&[(3, 5), (4, 6)]), (None, Some(1)));
        // One begins behind what became readable.
        assert_eq!(woken_by(&[(5, 5), (6, 6), (6, 7), (6, 8)]), (Some(2), None));
    }
}
