//! A limit of bytes per second: it computes how long to wait.

use std::time::{Duration, Instant};

/// Time after which an unused rate expires: an idle cleaner does not make up for it.
const WINDOW: Duration = Duration::from_secs(1);

/// The longest wait at once. A rate that was raised meanwhile counts from then on.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Bytes since the window began.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    since: Option<Instant>,
    bytes: u64,
}

impl Throttle {
    /// Counts bytes. Returns the wait before the next ones.
    pub(super) fn spend(&mut self, bytes: u64, per_second: f64, now: Instant) -> Duration {
        let since = *self.since.get_or_insert(now);
        self.bytes = self.bytes.saturating_add(bytes);
        let seconds = self.bytes as f64 / per_second.max(1.0);
        let needed = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let passed = now.saturating_duration_since(since);
        if passed >= WINDOW && passed >= needed {
            (self.since, self.bytes) = (Some(now), 0);
        }
        needed.saturating_sub(passed).min(WAIT_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes at milliseconds, at a rate of 1,000 a second, and the waits in milliseconds.
    fn check(spent: &[(u64, u64)], expected: &[u64]) {
        let (mut throttle, start) = (Throttle::default(), Instant::now());
        let waits: Vec<_> = spent
            .iter()
            .map(|(at, bytes)| {
                throttle.spend(*bytes, 1000.0, start + Duration::from_millis(*at)).as_millis() as u64
            })
            .collect();
        assert_eq!(waits, expected, "{spent:?}");
    }

    #[test]
    fn bytes_that_come_too_fast_wait() {
        check(&[(0, 100), (100, 100), (200, 500)], &[100, 100, 500]);
        check(&[(0, 60_000), (10_000, 0), (60_000, 0)], &[10_000, 10_000, 0]);
    }

    #[test]
    fn idle_time_is_not_made_up_for() {
        check(&[(0, 100), (5000, 100), (5000, 3000)], &[100, 0, 3000]);
    }

    #[test]
    fn without_a_limit_no_copy_waits() {
        let mut throttle = Throttle::default();
        assert_eq!(throttle.spend(u64::MAX, f64::MAX, Instant::now()), Duration::ZERO);
    }
}
