//! The choice of the log that is compacted next: the dirtiest of the logs that are due.

use super::range::Dirty;

/// A log with its state and its `min.cleanable.dirty.ratio`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate<L> {
    /// The log.
    pub log: L,
    /// The part of the log that a compaction would read.
    pub dirty: Dirty,
    /// Below it, unless `max.compaction.lag.ms` presses, the log is left alone.
    pub ratio_min: f64,
}

/// The inputs of a choice, for the metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Choice {
    /// The largest dirty ratio of any log that has closed segments.
    pub ratio_max: f64,
    /// Logs that are due.
    pub due: usize,
    /// The longest time in ms for which `max.compaction.lag.ms` is exceeded.
    pub delay_ms_max: i64,
}

/// The dirtiest of the logs that are due, and what else there is.
pub fn choose<L>(candidates: impl IntoIterator<Item = Candidate<L>>) -> (Option<Candidate<L>>, Choice) {
    let (mut best, mut choice) = (None::<Candidate<L>>, Choice::default());
    for candidate in candidates {
        choice.delay_ms_max = choice.delay_ms_max.max(candidate.dirty.delay_ms);
        let ratio = candidate.dirty.ratio();
        choice.ratio_max = choice.ratio_max.max(ratio);
        if candidate.dirty.is_due(candidate.ratio_min) {
            choice.due += 1;
            if best.as_ref().is_none_or(|best| ratio > best.dirty.ratio()) {
                best = Some(candidate);
            }
        }
    }
    (best, choice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(log: &'static str, percent: u64, ratio_min: f64, delay_ms: i64) -> Candidate<&'static str> {
        let dirty = Dirty {
            first_dirty: 0,
            first_uncleanable: 0,
            clean_bytes: 100 - percent,
            cleanable_bytes: percent,
            delay_ms,
            reset: false,
        };
        Candidate { log, dirty, ratio_min }
    }

    fn check(candidates: &[Candidate<&'static str>], expected: Option<&str>, due: usize) -> Choice {
        let (best, choice) = choose(candidates.iter().copied());
        assert_eq!((best.map(|best| best.log), choice.due), (expected, due));
        choice
    }

    #[test]
    fn the_dirtiest_log_that_is_due_comes_first() {
        check(&[], None, 0);
        check(&[candidate("a", 50, 0.5, 0)], None, 0);
        check(
            &[candidate("a", 60, 0.5, 0), candidate("b", 70, 0.5, 0), candidate("c", 65, 0.5, 0)],
            Some("b"),
            3,
        );
        check(&[candidate("a", 60, 0.5, 0), candidate("b", 90, 0.95, 0)], Some("a"), 1);
    }

    #[test]
    fn a_log_that_waits_for_too_long_is_due_whatever_its_ratio() {
        let choice = check(&[candidate("a", 10, 0.5, 7), candidate("b", 0, 0.5, 9)], Some("a"), 1);
        assert_eq!((choice.ratio_max, choice.delay_ms_max), (0.1, 9));
        check(&[candidate("a", 10, 0.5, 7), candidate("b", 51, 0.5, 0)], Some("b"), 2);
    }
}
