//! The pace of reads of older events while other instances are sent new ones.
//!
//! A reader of older events uses all the processor time that it gets: here for reading, evaluating and sending, and at the consumer
//! two to three times as much. Instances at the end need little, and need it at once. So reads of older events, all of one publisher
//! together, are charged time. None begins before the charged time has passed:
//!
//! ```text
//! read, evaluate, send     pause                 read, evaluate, send     pause
//! ──┴────────────────┴──────────────────────────┴──┴────────────────┴─────────────▶
//!   └─ charged: the longer of what the bytes and what the work here may take ─┘
//! ```
//!
//! Pieces are small, so that a processor is free again before the scheduler would preempt another thread for it.
//!
//! Architecture invariant: no clock. Times go in, since some moment.

use std::time::Duration;

/// The time after new events were sent during which reads of older events take turns, since more may be due.
const LIVE_FOR: Duration = Duration::from_millis(500);
/// The bytes of a read in a turn: about 0.3 ms of one processor for a consumer with handlers.
pub(crate) const PIECE_BYTES: usize = 64 << 10;
/// The bytes of older events that are sent per second and processor. A consumer with small events and handlers could take about
/// four times that on a processor of its own.
const BYTES_PER_S: u64 = 48 << 20;
/// Work here takes at most one part in so many of a processor's time.
const WORK_PARTS: u32 = 4;
/// Anything longer was no work but a wait for the disk, which takes no processor.
const WORK_MAX: Duration = Duration::from_millis(2);
/// The delay of a timer that a reader may catch up on.
const LATE_MAX: Duration = Duration::from_millis(1);
/// The longest wait for a turn, however many readers there are: an instance has to receive a frame within 15 s.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The turns of all readers of older events.
#[derive(Debug)]
pub(crate) struct Pace {
    processors: u32,
    /// The time at which everything charged has passed.
    free_at: Duration,
}

impl Pace {
    /// Begins with the number of processors.
    pub(crate) fn new(processors: usize) -> Pace {
        let processors = u32::try_from(processors).unwrap_or(u32::MAX).max(1);
        Pace { processors, free_at: Duration::ZERO }
    }

    /// Takes a turn of one piece; returns when it begins. `sent_live` is the time when new events were sent last. Returns `None` if
    /// that is longer ago than [`LIVE_FOR`], or never was: the reader need not wait.
    pub(crate) fn take_turn(&mut self, now: Duration, sent_live: Option<Duration>) -> Option<Duration> {
        sent_live.filter(|at| now < *at + LIVE_FOR)?;
        let earliest = now.saturating_sub(LATE_MAX);
        let begins = self.free_at.clamp(earliest, now + WAIT_MAX);
        self.free_at = begins + self.time_of(PIECE_BYTES);
        Some(begins)
    }

    /// Ends a turn: the time to read and to evaluate, and the bytes that were sent of it.
    pub(crate) fn end_turn(&mut self, work: Duration, sent: usize) {
        let of_work = work.min(WORK_MAX) * WORK_PARTS / self.processors;
        let charged = self.time_of(sent).max(of_work);
        // The turn was charged a piece when it was taken.
        self.free_at = (self.free_at + charged).saturating_sub(self.time_of(PIECE_BYTES));
    }

    /// Returns the time in which so many bytes may be sent.
    fn time_of(&self, bytes: usize) -> Duration {
        let ns = (bytes as u64).saturating_mul(1_000_000_000) / BYTES_PER_S;
        Duration::from_nanos(ns) / self.processors
    }
}

/// The position of a reader, and the end of the journal then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    pub(crate) position: i64,
    pub(crate) end: i64,
}

impl Progress {
    /// Returns true if the reader approaches the end: since `before` it has read at least twice what was appended. A reader that
    /// does not approach it must not be held back: it would lag for as long as others are at the end.
    pub(crate) fn gains_since(self, before: Progress) -> bool {
        let appended = self.end.saturating_sub(before.end);
        let read = self.position.saturating_sub(before.position);
        appended.saturating_mul(2) <= read
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A turn of a reader: the time of its work, the bytes sent, and the pause before the reader asks for the next one.
    type Turn = (Duration, usize, Duration);

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Act {
        Take,
        End,
    }

    /// The course of readers in virtual time, each with one turn after another.
    struct Course {
        pace: Pace,
        /// For each turn the time at which it was asked for, and at which it began.
        turns: Vec<(Duration, Duration)>,
        work: Duration,
        sent: u64,
    }

    impl Course {
        /// Runs from `start` until `end`; readers repeat their turns.
        fn run(processors: usize, readers: &[Vec<Turn>], start: Duration, end: Duration) -> Course {
            let pace = Pace::new(processors);
            let mut course = Course { pace, turns: Vec::new(), work: Duration::ZERO, sent: 0 };
            let mut next: Vec<(Duration, usize, Act)> =
                readers.iter().map(|_| (start, 0, Act::Take)).collect();
            while let Some(reader) = (0..readers.len()).min_by_key(|reader| next[*reader].0) {
                let (now, number, act) = next[reader];
                if now >= end {
                    break;
                }
                let (work, sent, pause) = readers[reader][number % readers[reader].len()];
                next[reader] = match act {
                    Act::Take => {
                        let begins = take(&mut course.pace, now).max(now);
                        course.turns.push((now, begins));
                        (begins + work, number, Act::End)
                    }
                    Act::End => {
                        course.pace.end_turn(work, sent);
                        course.work += work;
                        course.sent += sent as u64;
                        (now + pause, number + 1, Act::Take)
                    }
                };
            }
            course
        }
    }

    /// Takes a turn while an instance is sent new events all the time.
    fn take(pace: &mut Pace, now: Duration) -> Duration {
        pace.take_turn(now, Some(now)).expect("turns are taken")
    }

    fn turns() -> impl Strategy<Value = Vec<Turn>> {
        let us = Duration::from_micros;
        let turn = (50u64..2_000, 0usize..1 << 20, 0u64..3_000);
        prop::collection::vec(turn.prop_map(move |(work, sent, pause)| (us(work), sent, us(pause))), 1..20)
    }

    proptest! {
        #[test]
        fn all_readers_together_have_a_share_of_processors_and_of_bytes(
            processors in 1usize..9,
            readers in prop::collection::vec(turns(), 1..7),
            start_ms in 0u64..10_000,
        ) {
            let start = Duration::from_millis(start_ms);
            let time = Duration::from_secs(2);
            let course = Course::run(processors, &readers, start, start + time);
            // The last turn of each reader has begun and is charged later. Delayed timers and rounding add to that.
            let largest = readers.iter().flatten().map(|(_, sent, _)| *sent).max().unwrap_or(0);
            let charge = course.pace.time_of(largest).max(WORK_MAX * WORK_PARTS / processors as u32);
            let elapsed = (time + LATE_MAX + charge * readers.len() as u32 + MS).as_secs_f64();
            let of_work = course.work.as_secs_f64() / elapsed;
            prop_assert!(of_work <= processors as f64 / f64::from(WORK_PARTS), "{of_work} processors");
            let bytes = course.sent as f64 / elapsed;
            prop_assert!(bytes <= (BYTES_PER_S * processors as u64) as f64, "{bytes} bytes a second");
        }

        #[test]
        fn no_reader_waits_without_a_bound(
            processors in 1usize..9,
            readers in prop::collection::vec(turns(), 1..40),
        ) {
            let course = Course::run(processors, &readers, Duration::ZERO, Duration::from_secs(2));
            for (asked, begins) in course.turns {
                prop_assert!(begins <= asked + WAIT_MAX, "asked at {asked:?}, and begins at {begins:?}");
            }
        }
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn one_that_is_late_once_keeps_its_rate() {
        let mut pace = Pace::new(2);
        let piece = pace.time_of(PIECE_BYTES);
        assert!(piece < MS && piece > MS / 2, "{piece:?}");
        let first = take(&mut pace, MS * 100);
        pace.end_turn(MS / 10, PIECE_BYTES);
        let second = take(&mut pace, first);
        assert_eq!(second, first + piece);
        pace.end_turn(MS / 10, PIECE_BYTES);
        // A timer ran late by less than LATE_MAX.
        assert_eq!(take(&mut pace, second + piece + MS / 2), second + piece);
        // After a pause only LATE_MAX is caught up on.
        assert_eq!(take(&mut pace, MS * 1_000), MS * 999);
    }

    #[test]
    fn what_is_evaluated_and_not_sent_is_charged_for_the_work_alone() {
        let mut pace = Pace::new(2);
        let first = take(&mut pace, MS * 100);
        pace.end_turn(MS / 10, 0);
        let second = take(&mut pace, first);
        assert_eq!(second, first + MS / 5);
        // A disk that hangs is waited for, and not charged.
        pace.end_turn(MS * 500, 0);
        assert_eq!(take(&mut pace, second), second + WORK_MAX * 2);
    }

    #[test]
    fn turns_are_taken_while_new_events_are_sent() {
        let mut pace = Pace::new(2);
        assert_eq!(pace.take_turn(MS * 1_000, None), None);
        assert_eq!(pace.take_turn(MS * 1_500, Some(MS * 1_000)), None);
        assert_eq!(pace.take_turn(MS * 1_499, Some(MS * 1_000)), Some(MS * 1_498));
        // An instance was sent new events after this reader looked at the time.
        assert!(pace.take_turn(MS * 1_499, Some(MS * 1_501)).is_some());
    }

    #[test]
    fn one_that_would_never_come_to_the_end_is_not_held_back() {
        let at = |position, end| Progress { position, end };
        assert!(at(1_000, 90_000).gains_since(at(0, 90_000)));
        assert!(at(1_000, 90_500).gains_since(at(0, 90_000)));
        assert!(!at(1_000, 90_501).gains_since(at(0, 90_000)));
        assert!(!at(0, 90_001).gains_since(at(0, 90_000)));
    }
}
