//! How long to wait before the next attempt, and when to give up.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(1);

/// Waits that double, until their sum has used up what was allowed.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    next: Duration,
    left: Duration,
}

impl Backoff {
    /// Waits that together take at most `total`.
    pub(crate) fn new(total: Duration) -> Self {
        Backoff { next: FIRST, left: total }
    }
}

impl Iterator for Backoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        if self.left.is_zero() {
            return None;
        }
        let wait = self.next.min(self.left);
        self.left -= wait;
        self.next = (self.next * 2).min(LONGEST);
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_a_second_and_ends() {
        let millis = |total| Backoff::new(total).map(|wait| wait.as_millis()).collect::<Vec<_>>();
        assert_eq!(millis(Duration::from_secs(4)), [50, 100, 200, 400, 800, 1000, 1000, 450]);
        assert!(millis(Duration::ZERO).is_empty());
    }
}
