//! The part of a log that a compaction may touch, and the gain from it. The rules are Kafka's (LogCleanerManager).

/// A closed segment, as far as the choice needs it. Times in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClosedSegment {
    pub(crate) base_offset: i64,
    pub(crate) bytes: u64,
    /// The largest timestamp of its first batch. Read only for `max.compaction.lag.ms`.
    pub(crate) first_timestamp: Option<i64>,
    /// Read only for `min.compaction.lag.ms`.
    pub(crate) largest_timestamp: Option<i64>,
}

/// Offsets and closed segments of a log, from which its dirty part follows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts<'a> {
    /// In their order.
    pub(crate) closed: &'a [ClosedSegment],
    /// Base offset of the segment that is written to.
    pub(crate) active_base_offset: i64,
    pub(crate) log_start: i64,
    pub(crate) log_end: i64,
    /// Compaction touches nothing at or behind this offset: it is not stable, or not on disk.
    pub(crate) stable_end: i64,
    /// The end offset of the last compaction.
    pub(crate) checkpoint: Option<i64>,
}

/// `min.compaction.lag.ms` and `max.compaction.lag.ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lag {
    pub(crate) min_ms: i64,
    pub(crate) max_ms: i64,
}

/// The dirty part of a log.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dirty {
    /// Offset of the first record that no compaction has read.
    pub first_dirty: i64,
    /// The base offset of a segment. Compaction touches nothing from here on.
    pub first_uncleanable: i64,
    /// Bytes that were compacted before.
    pub clean_bytes: u64,
    /// Bytes that were not, and may be now.
    pub cleanable_bytes: u64,
    /// Time in ms by which `max.compaction.lag.ms` is exceeded; 0: it is not.
    pub delay_ms: i64,
    /// The checkpoint was of offsets that the log does not have.
    pub reset: bool,
}

impl Dirty {
    /// The dirty ratio: from 0 to 1.
    pub fn ratio(&self) -> f64 {
        match self.clean_bytes + self.cleanable_bytes {
            0 => 0.0,
            all => self.cleanable_bytes as f64 / all as f64,
        }
    }

    /// Returns true if a compaction is due under this `min.cleanable.dirty.ratio`.
    pub fn is_due(&self, ratio_min: f64) -> bool {
        (self.delay_ms > 0 && self.cleanable_bytes > 0) || self.ratio() > ratio_min
    }
}

/// Finds the part that may be compacted.
pub(crate) fn assess(facts: &Facts<'_>, lag: Lag, now_ms: i64) -> Dirty {
    let within = |offset: &i64| (facts.log_start..=facts.log_end).contains(offset);
    let first_dirty = facts.checkpoint.filter(within).unwrap_or(facts.log_start);
    let reset = facts.checkpoint.is_some_and(|offset| offset != first_dirty);
    let bound =
        facts.stable_end.min(facts.active_base_offset).min(young_from(facts, lag, first_dirty, now_ms));
    let first_uncleanable = floor(facts, bound.max(first_dirty));
    let bytes = |from: i64, to: i64| -> u64 {
        let from = floor(facts, from);
        let segments = facts.closed.iter().filter(|segment| (from..to).contains(&segment.base_offset));
        segments.map(|segment| segment.bytes).sum()
    };
    Dirty {
        first_dirty,
        first_uncleanable,
        clean_bytes: bytes(i64::MIN, first_dirty),
        cleanable_bytes: bytes(first_dirty.min(first_uncleanable), first_uncleanable),
        delay_ms: delay(facts, lag, first_dirty, now_ms),
        reset,
    }
}

/// Base offset of the segment that holds an offset; of the first one for what is before it.
fn floor(facts: &Facts<'_>, offset: i64) -> i64 {
    if offset >= facts.active_base_offset {
        return facts.active_base_offset;
    }
    let count = facts.closed.partition_point(|segment| segment.base_offset <= offset);
    facts.closed.get(count.saturating_sub(1)).map_or(facts.active_base_offset, |segment| segment.base_offset)
}

fn dirty_segments<'a>(facts: &Facts<'a>, first_dirty: i64) -> impl Iterator<Item = &'a ClosedSegment> {
    let from = floor(facts, first_dirty);
    facts.closed.iter().filter(move |segment| segment.base_offset >= from)
}

/// The base offset of the first dirty segment that `min.compaction.lag.ms` protects; `i64::MAX`: there is none.
fn young_from(facts: &Facts<'_>, lag: Lag, first_dirty: i64, now_ms: i64) -> i64 {
    let young = |segment: &&ClosedSegment| {
        lag.min_ms > 0
            && segment.largest_timestamp.is_some_and(|largest| largest > now_ms.saturating_sub(lag.min_ms))
    };
    dirty_segments(facts, first_dirty).find(young).map_or(i64::MAX, |segment| segment.base_offset)
}

/// Time in ms by which the oldest dirty segment exceeds `max.compaction.lag.ms`.
fn delay(facts: &Facts<'_>, lag: Lag, first_dirty: i64, now_ms: i64) -> i64 {
    let timestamps = dirty_segments(facts, first_dirty).filter_map(|segment| segment.first_timestamp);
    let earliest = timestamps.filter(|timestamp| *timestamp > 0).min().unwrap_or(i64::MAX);
    now_ms.saturating_sub(lag.max_ms.max(0)).saturating_sub(earliest).max(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Segments of 100 bytes at 0, 100, 200, and the active one at 300; the log ends at 350.
    fn assess_with(change: impl FnOnce(&mut Facts<'_>), lag: Lag, times: [(i64, i64); 3]) -> Dirty {
        let closed = [0, 1, 2].map(|number| ClosedSegment {
            base_offset: 100 * number as i64,
            bytes: 100,
            first_timestamp: Some(times[number].0),
            largest_timestamp: Some(times[number].1),
        });
        let mut facts = Facts {
            closed: &closed,
            active_base_offset: 300,
            log_start: 0,
            log_end: 350,
            stable_end: 350,
            checkpoint: None,
        };
        change(&mut facts);
        assess(&facts, lag, 10_000)
    }

    const NO_LAG: Lag = Lag { min_ms: 0, max_ms: i64::MAX };
    const TIMES: [(i64, i64); 3] = [(1000, 2000), (3000, 4000), (5000, 6000)];

    fn check(change: impl FnOnce(&mut Facts<'_>), expected: (i64, i64, u64, u64)) {
        let dirty = assess_with(change, NO_LAG, TIMES);
        let found = (dirty.first_dirty, dirty.first_uncleanable, dirty.clean_bytes, dirty.cleanable_bytes);
        assert_eq!(found, expected);
    }

    #[test]
    fn what_lies_between_the_checkpoint_and_the_active_segment_is_dirty() {
        check(|_| {}, (0, 300, 0, 300));
        check(|facts| facts.checkpoint = Some(100), (100, 300, 100, 200));
        check(|facts| facts.checkpoint = Some(300), (300, 300, 300, 0));
        // Within a segment both counts have it, as in Kafka.
        check(|facts| facts.checkpoint = Some(150), (150, 300, 200, 200));
        check(|facts| facts.checkpoint = Some(320), (320, 300, 300, 0));
        check(|facts| facts.stable_end = 250, (0, 200, 0, 200));
        check(|facts| (facts.stable_end, facts.checkpoint) = (150, Some(250)), (250, 200, 300, 0));
        check(|facts| facts.stable_end = 0, (0, 0, 0, 0));
        check(|facts| facts.closed = &[], (0, 300, 0, 0));
    }

    #[test]
    fn a_checkpoint_that_the_log_does_not_have_is_reset() {
        let reset = |checkpoint, log_start| {
            let change = |facts: &mut Facts<'_>| {
                (facts.checkpoint, facts.log_start) = (checkpoint, log_start);
            };
            let dirty = assess_with(change, NO_LAG, TIMES);
            (dirty.first_dirty, dirty.reset)
        };
        assert_eq!(reset(None, 40), (40, false));
        assert_eq!(reset(Some(30), 40), (40, true));
        assert_eq!(reset(Some(351), 40), (40, true));
        assert_eq!(reset(Some(350), 40), (350, false));
    }

    #[test]
    fn the_lag_keys_hold_back_and_press_on() {
        let with = |min_ms, max_ms, checkpoint| {
            let lag = Lag { min_ms, max_ms };
            let dirty = assess_with(|facts| facts.checkpoint = checkpoint, lag, TIMES);
            (dirty.first_uncleanable, dirty.delay_ms)
        };
        assert_eq!(with(0, i64::MAX, None), (300, 0));
        assert_eq!(with(5000, i64::MAX, None), (200, 0), "6000 is younger than 5 s");
        assert_eq!(with(4000, i64::MAX, None), (300, 0), "6000 is just 4 s old");
        assert_eq!(with(9000, i64::MAX, None), (0, 0));
        assert_eq!(with(0, 9000, None), (300, 0));
        assert_eq!(with(0, 8999, None), (300, 1));
        assert_eq!(with(0, 1000, Some(200)), (300, 4000));
        let untimed = assess_with(|_| {}, Lag { min_ms: 1, max_ms: 1 }, [(-1, -1); 3]);
        assert_eq!((untimed.first_uncleanable, untimed.delay_ms), (300, 0));
    }

    #[test]
    fn a_log_is_due_by_its_ratio_or_its_age() {
        let dirty = |clean_bytes, cleanable_bytes, delay_ms| Dirty {
            first_dirty: 0,
            first_uncleanable: 0,
            clean_bytes,
            cleanable_bytes,
            delay_ms,
            reset: false,
        };
        let check = |dirty: Dirty, ratio, due| assert_eq!((dirty.ratio(), dirty.is_due(0.5)), (ratio, due));
        check(dirty(0, 0, 0), 0.0, false);
        check(dirty(50, 50, 0), 0.5, false);
        check(dirty(40, 60, 0), 0.6, true);
        check(dirty(90, 10, 1), 0.1, true);
        check(dirty(90, 0, 1), 0.0, false);
    }
}
