//! Invariants of a log between any two calls: [`Log::check`].

use super::Log;
use crate::leader_epochs::EpochEntry;
use crate::segment::Segment;

impl Log {
    /// Asserts the invariants after a call: the order of the ends, of the segments, and of the leader epochs. The batches that are
    /// remembered at the tail must end where the active segment does. It reads no file. It looks at every segment and every
    /// epoch, so tests and simulations call it, and no request does.
    ///
    /// Nothing is asserted of a stopped log: it stays as the failure left it, and neither appends nor becomes durable.
    ///
    /// # Panics
    /// If something does not hold.
    pub fn check(&self) {
        if self.refusal().is_some() {
            return;
        }
        self.check_ends();
        self.check_segments();
        self.check_epochs();
        let active = self.active_segment();
        self.recent.check(self.log_end, active.base_offset, active.len);
    }

    fn check_ends(&self) {
        let ends = self.ends();
        assert!(
            ends.log_start <= ends.high_watermark,
            "the high watermark is before the log start: {ends:?}"
        );
        assert!(ends.high_watermark <= ends.log_end, "the high watermark is behind the log end: {ends:?}");
        assert!(ends.durable_end <= ends.log_end, "the durable end is behind the log end: {ends:?}");
        assert!(
            !self.follow_log_end || ends.high_watermark == ends.log_end,
            "the high watermark does not follow the log end: {ends:?}"
        );
    }

    fn check_segments(&self) {
        let bases = || self.segments.iter().map(|segment: &Segment| segment.base_offset);
        let list: Vec<i64> = bases().collect();
        assert!(list.is_sorted_by(|one, next| one < next), "the segments' offsets do not ascend: {list:?}");
        let (first, last) = (bases().next(), bases().next_back());
        assert!(
            first.is_some_and(|first| first <= self.log_start),
            "no segment holds the log start {}: {list:?}",
            self.log_start
        );
        assert!(
            last.is_some_and(|last| last <= self.log_end),
            "the active segment begins behind the log end {}: {list:?}",
            self.log_end
        );
    }

    fn check_epochs(&self) {
        let entries = self.epochs.entries();
        let ascends = |one: &EpochEntry, next: &EpochEntry| {
            one.epoch < next.epoch && one.start_offset < next.start_offset
        };
        assert!(entries.is_sorted_by(ascends), "the leader epochs do not ascend: {entries:?}");
        assert!(
            entries.last().is_none_or(|last| last.start_offset <= self.log_end),
            "a leader epoch begins behind the log end {}: {entries:?}",
            self.log_end
        );
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::super::testing::{Bench, TestBatch, small_segments};
    use super::*;
    use mainstem_records::LeaderEpoch;

    /// A log of several segments and two leader epochs, broken by `break_it`. Returns what `check` says of it.
    fn verdict(break_it: impl FnOnce(&mut Log)) -> Option<String> {
        let bench = Bench::real(small_segments());
        let (mut log, _) = bench.open("a");
        bench.append_numbers(&mut log, 0..60);
        bench.append_under(&mut log, &TestBatch::of(&["one", "two"]), 3).expect("room for a batch");
        assert!(log.segment_count() > 2 && log.leader_epochs().entries().len() == 2);
        log.check();
        break_it(&mut log);
        let panic = catch_unwind(AssertUnwindSafe(|| log.check())).err()?;
        Some(*panic.downcast::<String>().expect("the message has values in it"))
    }

    fn assert_found(expect: &str, break_it: impl FnOnce(&mut Log)) {
        let found = verdict(break_it);
        assert!(found.as_ref().is_some_and(|found| found.contains(expect)), "{expect:?}: {found:?}");
    }

    #[test]
    fn ends_out_of_order_are_found() {
        assert_found("high watermark is before the log start", |log| log.high_watermark = log.log_start - 1);
        assert_found("high watermark is behind the log end", |log| log.high_watermark = log.log_end + 1);
        assert_found("durable end is behind the log end", |log| log.durable_end = log.log_end + 1);
        assert_found("does not follow the log end", |log| log.high_watermark = log.log_end - 1);
    }

    #[test]
    fn a_high_watermark_that_is_held_may_be_before_the_log_end() {
        assert_eq!(verdict(|log| log.hold_high_watermark(10).expect("it can be read")), None);
    }

    #[test]
    fn segments_out_of_order_are_found() {
        assert_found("segments' offsets do not ascend", |log| log.segments.swap(0, 1));
        assert_found("no segment holds the log start", |log| drop(log.segments.remove(0)));
        assert_found("active segment begins behind the log end", |log| {
            log.segments.push(Segment::empty(log.log_end + 1));
        });
    }

    #[test]
    fn epochs_behind_the_log_end_are_found() {
        assert_found("leader epoch begins behind the log end", |log| {
            assert!(log.epochs.assign(LeaderEpoch::new(4), log.log_end + 1));
        });
    }

    #[test]
    fn a_tail_that_ends_elsewhere_is_found() {
        assert_found("end at byte", |log| {
            log.segments.last_mut().expect("an active segment").len += 1;
        });
        assert_found("are not between", |log| {
            log.segments.last_mut().expect("an active segment").base_offset = log.log_end;
        });
    }

    #[test]
    fn nothing_is_asserted_of_a_stopped_log() {
        let stopped = verdict(|log| {
            log.durable_end = log.log_end + 1;
            log.stop(&"the disk is gone");
        });
        assert_eq!(stopped, None);
    }
}
