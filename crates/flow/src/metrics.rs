//! Counters of a route.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a route's messages, by outcome.
#[derive(Debug, Default)]
pub(crate) struct RouteMetrics {
    pub(crate) handled: Counter,
    pub(crate) failed: Counter,
    pub(crate) filtered: Counter,
    pub(crate) retries: Counter,
    pub(crate) letters: Counter,
    /// Letters that have less than their message, as they are too large for their topic.
    pub(crate) cut_letters: Counter,
    pub(crate) attempts: Durations,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper bounds of the buckets of [`Durations`], in milliseconds.
pub(crate) const BOUNDS_MS: [u64; 12] = [1, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 10_000, 60_000];

/// Durations of attempts, to the millisecond: the clock is read once for many of them.
#[derive(Debug, Default)]
pub(crate) struct Durations {
    /// Those up to each bound and above the one before; last, those above all.
    buckets: [Counter; BOUNDS_MS.len() + 1],
    sum_ms: Counter,
}

impl Durations {
    /// Counts durations in milliseconds.
    pub(crate) fn add(&self, durations_ms: impl Iterator<Item = u64>) {
        let mut quick = 0;
        for duration_ms in durations_ms {
            // Most are shorter than the clock's resolution.
            if duration_ms <= BOUNDS_MS[0] {
                quick += 1;
            } else {
                let bucket = BOUNDS_MS.partition_point(|bound| *bound < duration_ms);
                self.buckets[bucket].add(1);
            }
            if duration_ms > 0 {
                self.sum_ms.add(duration_ms);
            }
        }
        if quick > 0 {
            self.buckets[0].add(quick);
        }
    }

    /// Counts a number of attempts of the same duration.
    pub(crate) fn add_many(&self, count: u64, duration_ms: u64) {
        if count > 0 {
            let bucket = BOUNDS_MS.partition_point(|bound| *bound < duration_ms);
            self.buckets[bucket].add(count);
            self.sum_ms.add(count.saturating_mul(duration_ms));
        }
    }

    /// Returns for each bound how many took at most that long; last, the number of all.
    pub(crate) fn cumulative(&self) -> [u64; BOUNDS_MS.len() + 1] {
        let mut sum = 0;
        std::array::from_fn(|bucket| {
            sum += self.buckets[bucket].get();
            sum
        })
    }

    /// The sum, in milliseconds.
    pub(crate) fn sum_ms(&self) -> u64 {
        self.sum_ms.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_the_smallest_bucket_that_covers_them() {
        let durations = Durations::default();
        durations.add([0, 1, 2, 6, 60_000, 60_001].into_iter());
        durations.add_many(1, 5);
        durations.add_many(0, 7);
        let cumulative = durations.cumulative();
        assert_eq!((cumulative[0], cumulative[1], cumulative[2]), (2, 4, 5));
        assert_eq!((cumulative[11], cumulative[12], durations.sum_ms()), (6, 7, 120_015));
    }
}
