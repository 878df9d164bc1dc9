//! Lines of the log that a client can cause again and again: equal lines are logged once, and within a minute how often they were
//! repeated.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The time between two equal lines.
const SAID_EVERY: Duration = Duration::from_secs(60);
/// The most lines that are remembered; further ones are not folded.
const REMEMBERED_MAX: usize = 256;
/// The most bytes of a line that is remembered; a longer one is not folded.
const REMEMBERED_BYTES_MAX: usize = 4 << 10;

/// The lines that were logged in the last minute.
#[derive(Default)]
pub struct FoldedLines {
    hashing: RandomState,
    /// By a hash that decides which lines are equal, under a key that no client knows.
    said: Mutex<HashMap<u64, Said>>,
}

struct Said {
    line: String,
    at: Instant,
    /// The number of equal lines since then.
    repeated: u64,
}

/// Decides which lines are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineKey(u64);

impl FoldedLines {
    /// The key of a line, from the parts that distinguish it from others.
    pub fn key(&self, distinct: impl Hash) -> LineKey {
        LineKey(self.hashing.hash_one(distinct))
    }

    /// Counts a line. Returns false if it was not logged lately: then it is to be logged, and [`Self::remember`]ed.
    pub fn is_repeated(&self, key: LineKey) -> bool {
        let mut said = self.said.lock();
        said.get_mut(&key.0).map(|said| said.repeated += 1).is_some()
    }

    /// Remembers a line that was logged. If too many are remembered already, it is not folded.
    pub fn remember(&self, key: LineKey, line: String, now: Instant) {
        let mut said = self.said.lock();
        if said.len() < REMEMBERED_MAX && line.len() <= REMEMBERED_BYTES_MAX {
            said.insert(key.0, Said { line, at: now, repeated: 0 });
        }
    }

    /// The lines to log now: those that were repeated since they were logged a minute ago, with their number. The other lines of
    /// that time are forgotten.
    pub fn due(&self, now: Instant) -> Vec<(String, u64)> {
        let mut due = Vec::new();
        self.said.lock().retain(|_, said| {
            if now.saturating_duration_since(said.at) < SAID_EVERY {
                return true;
            }
            let repeated = std::mem::take(&mut said.repeated);
            if repeated > 0 {
                due.push((said.line.clone(), repeated));
                said.at = now;
            }
            repeated > 0
        });
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_lines_are_one_and_a_count() {
        let (lines, begin) = (FoldedLines::default(), Instant::now());
        let after = |seconds| begin + Duration::from_secs(seconds);
        let (one, other) = (lines.key(("a", "bc")), lines.key(("ab", "c")));
        assert_ne!(one, other);
        for key in [one, other] {
            assert!(!lines.is_repeated(key));
            lines.remember(key, format!("{key:?}"), begin);
        }
        assert!((0..60).all(|_| lines.is_repeated(one)));
        assert_eq!(lines.due(after(59)), []);
        assert_eq!(lines.due(after(60)), [(format!("{one:?}"), 60)]);
        assert!(!lines.is_repeated(other), "it was not repeated, and is forgotten");
        assert!(lines.is_repeated(one));
        assert_eq!(lines.due(after(100)), []);
        assert_eq!(lines.due(after(120)), [(format!("{one:?}"), 1)]);
        assert_eq!(lines.due(after(180)), []);
        assert!(!lines.is_repeated(one));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (lines, now) = (FoldedLines::default(), Instant::now());
        for number in 0..2 * REMEMBERED_MAX {
            lines.remember(lines.key(number), String::new(), now);
        }
        assert_eq!(lines.said.lock().len(), REMEMBERED_MAX);
        assert!(lines.is_repeated(lines.key(0_usize)) && !lines.is_repeated(lines.key(REMEMBERED_MAX)));
        let lines = FoldedLines::default();
        lines.remember(lines.key(0), "x".repeat(REMEMBERED_BYTES_MAX + 1), now);
        assert!(!lines.is_repeated(lines.key(0)));
    }
}
