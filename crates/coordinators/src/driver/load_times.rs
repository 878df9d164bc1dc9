//! The longest loads of the last time, as Kafka counts `partition-load-time-max`: over two windows of 30 s.

/// Length of a window.
const WINDOW_MS: u64 = 30_000;

/// The longest loads of two windows, in ms.
#[derive(Debug, Default)]
pub(super) struct LoadTimes {
    /// Number of the window of `newer`.
    window: u64,
    newer: u64,
    older: u64,
}

impl LoadTimes {
    /// Adds a load that has just ended.
    pub(super) fn add(&mut self, now_ms: u64, load_ms: u64) {
        self.pass_to(now_ms);
        self.newer = self.newer.max(load_ms);
    }

    /// The longest load of this window and the one before, in ms; 0: there was none.
    pub(super) fn max_ms(&mut self, now_ms: u64) -> u64 {
        self.pass_to(now_ms);
        self.newer.max(self.older)
    }

    fn pass_to(&mut self, now_ms: u64) {
        let window = now_ms / WINDOW_MS;
        let older = match window.saturating_sub(self.window) {
            0 => return,
            1 => self.newer,
            _ => 0,
        };
        (self.window, self.newer, self.older) = (window, 0, older);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_counts_in_its_window_and_the_next() {
        let mut times = LoadTimes::default();
        assert_eq!(times.max_ms(1), 0);
        times.add(40_000, 7);
        times.add(41_000, 5);
        times.add(61_000, 6);
        assert_eq!([59_999, 89_999].map(|now_ms| times.max_ms(now_ms)), [7, 7]);
        assert_eq!([90_000, 119_999, 120_000].map(|now_ms| times.max_ms(now_ms)), [6, 6, 0]);
        times.add(1_000_000, 9);
        assert_eq!([1_000_000, 2_000_000].map(|now_ms| times.max_ms(now_ms)), [9, 0]);
    }
}
