//! Lines of the log that a client can cause again and again: equal ones are one line, and within a minute how often it was
//! repeated.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Between two lines that say the same.
const SAID_EVERY: Duration = Duration::from_secs(60);
/// So many lines are remembered; others are not folded.
const REMEMBERED_MAX: usize = 256;
/// Of a longer line nothing is said again: it is not remembered.
const REMEMBERED_BYTES_MAX: usize = 4 << 10;

/// What was said of late.
#[derive(Default)]
pub struct FoldedLines {
    hashing: RandomState,
    /// By the hash of what makes lines equal, under a key that no client knows.
    said: Mutex<HashMap<u64, Said>>,
}

struct Said {
    line: String,
    at: Instant,
    /// Lines like it since then.
    repeated: u64,
}

/// Says what makes a line equal to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineKey(u64);

impl FoldedLines {
    /// The key of a line: that of what distinguishes it from others.
    pub fn key(&self, distinct: impl Hash) -> LineKey {
        LineKey(self.hashing.hash_one(distinct))
    }

    /// Counts a line. Returns false if it was not said of late: then it is to be said, and [`Self::remember`]ed.
    pub fn is_repeated(&self, key: LineKey) -> bool {
        let mut said = self.said.lock();
        said.get_mut(&key.0).map(|said| said.repeated += 1).is_some()
    }

    /// A line was said. If too many are remembered already, it is not folded.
    pub fn remember(&self, key: LineKey, line: String, now: Instant) {
        let mut said = self.said.lock();
        if said.len() < REMEMBERED_MAX && line.len() <= REMEMBERED_BYTES_MAX {
            said.insert(key.0, Said { line, at: now, repeated: 0 });
        }
    }

    /// What is to be said now: the lines that were repeated since they were said a minute ago, and how often. The others of
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
