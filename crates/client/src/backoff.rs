//! Waits between attempts.

use std::time::Duration;

/// Waits that double up to a bound, spread by a fifth so that clients do not come back together (KIP-580).
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    first: Duration,
    next: Duration,
    longest: Duration,
}

impl Backoff {
    /// The first wait and the longest one.
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Backoff { first, next: first, longest }
    }

    /// An attempt succeeded: the next wait is the first one again.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }

    /// The next wait. `spread` is a random number in 0..1.
    pub(crate) fn next(&mut self, spread: f64) -> Duration {
        let wait = self.next;
        self.next = (self.next * 2).min(self.longest);
        wait.mul_f64(0.8 + 0.4 * spread.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(500));
        let waits: Vec<u128> = (0..4).map(|_| backoff.next(0.5).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 500]);
        backoff.reset();
        assert_eq!(backoff.next(0.5).as_millis(), 100);
    }

    #[test]
    fn waits_are_spread_by_a_fifth() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(1));
        assert_eq!(backoff.next(0.0), Duration::from_millis(800));
        assert_eq!(backoff.next(1.0), Duration::from_millis(1200));
    }
}
