//! Lines of the log that peers cause, as often as they like and with names that they choose. A limited number of lines a second
//! is written, and the others are counted. Names of peers go through [`OneLine`], or [`Sentence`].
//!
//! Architecture invariant: no I/O, no clock.

mod one_line;

use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use one_line::{OneLine, Sentence, is_hidden};

/// Lines of one kind.
#[derive(Debug)]
pub struct LineBudget {
    per_second: u32,
    second: Mutex<Second>,
}

/// The second that began then; none before the first line.
#[derive(Debug, Default)]
struct Second {
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

/// The decision about a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// Write the line, after a note of how many were left out before, if any.
    Write {
        /// Lines that were left out in the seconds before.
        left_out: u64,
    },
    /// Leave it out. It is counted.
    LeaveOut,
}

impl LineBudget {
    /// Creates a budget of this many lines in each second.
    pub fn new(per_second: u32) -> LineBudget {
        LineBudget { per_second, second: Mutex::default() }
    }

    /// There is something to be said at a time.
    pub fn next(&self, now: Instant) -> Line {
        let mut second = self.second.lock();
        let is_over = |since: Instant| now.saturating_duration_since(since) >= Duration::from_secs(1);
        if second.since.is_none_or(is_over) {
            (second.since, second.written) = (Some(now), 0);
        }
        if second.written >= self.per_second {
            second.left_out += 1;
            return Line::LeaveOut;
        }
        second.written += 1;
        Line::Write { left_out: std::mem::take(&mut second.left_out) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_budget_of_a_second_are_a_number() {
        let budget = LineBudget::new(2);
        let begin = Instant::now();
        let lines = [0, 1, 2, 999].map(|ms| budget.next(begin + Duration::from_millis(ms)));
        let write = Line::Write { left_out: 0 };
        assert_eq!(lines, [write, write, Line::LeaveOut, Line::LeaveOut]);
        assert_eq!(budget.next(begin + Duration::from_secs(2)), Line::Write { left_out: 2 });
        assert_eq!(budget.next(begin + Duration::from_secs(2)), write);
    }
}
