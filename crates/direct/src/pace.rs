//! How soon the past of a journal may be read further while other instances are sent new events.
//!
//! Who reads the past takes what there is of the processors: here for reading, evaluating and sending, and where the consumer runs for
//! two to three times as long. Those at the end need little, and need it at once. So reads of the past, all of one publisher together,
//! are charged time, and none begins before what was charged has passed:
//!
//! ```text
//! read, evaluate, send     rest                  read, evaluate, send     rest
//! ──┴────────────────┴──────────────────────────┴──┴────────────────┴─────────────▶
//!   └─ charged: the longer of what the bytes and what the work here may take ─┘
//! ```
//!
//! Pieces are small, so that a processor is free again before the scheduler would take it from one that is at work.
//!
//! Architecture invariant: no clock. Times go in, since some moment.

use std::time::Duration;

/// New events were sent: so long after that others may be due, and reads of the past take turns.
const LIVE_FOR: Duration = Duration::from_millis(500);
/// What is read of the past at once then: on one processor about 0.3 ms of a consumer with handlers.
pub(crate) const PIECE_BYTES: usize = 64 << 10;
/// Of the past so much is sent a second for each processor. A consumer with small events and handlers takes about four times that
/// on one of its own.
const BYTES_PER_S: u64 = 48 << 20;
/// Work here takes a processor for one part in so many of its time.
const WORK_PARTS: u32 = 4;
/// More than this was no work but a wait for the disk, which takes no processor.
const WORK_MAX: Duration = Duration::from_millis(2);
/// Who comes late, since a timer was, catches up on so much.
const LATE_MAX: Duration = Duration::from_millis(1);
/// No turn is waited for longer, however many readers there are: an instance hears something within 15 s.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The turns of all that read the past.
#[derive(Debug)]
pub(crate) struct Pace {
    processors: u32,
    /// What was charged has passed then.
    free_at: Duration,
}

impl Pace {
    /// For a machine with so many processors.
    pub(crate) fn new(processors: usize) -> Pace {
        let processors = u32::try_from(processors).unwrap_or(u32::MAX).max(1);
        Pace { processors, free_at: Duration::ZERO }
    }

    /// Takes a turn, which is for a piece, where new events were last sent at a time; returns when it begins. None is taken where that
    /// is long ago, or was never.
    pub(crate) fn take_turn(&mut self, now: Duration, sent_live: Option<Duration>) -> Option<Duration> {
        sent_live.filter(|at| now < *at + LIVE_FOR)?;
        let earliest = now.saturating_sub(LATE_MAX);
        let begins = self.free_at.clamp(earliest, now + WAIT_MAX);
        self.free_at = begins + self.time_of(PIECE_BYTES);
        Some(begins)
    }

    /// A turn has ended that took so long to read and to evaluate, and that so many bytes were sent of.
    pub(crate) fn end_turn(&mut self, work: Duration, sent: usize) {
        let of_work = work.min(WORK_MAX) * WORK_PARTS / self.processors;
        let charged = self.time_of(sent).max(of_work);
        // The turn was charged a piece when it was taken.
        self.free_at = (self.free_at + charged).saturating_sub(self.time_of(PIECE_BYTES));
    }

    /// The time in which so many bytes may be sent.
    fn time_of(&self, bytes: usize) -> Duration {
        let ns = (bytes as u64).saturating_mul(1_000_000_000) / BYTES_PER_S;
        Duration::from_nanos(ns) / self.processors
    }
}

/// How far a reader of the past is, and how far the journal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    pub(crate) position: i64,
    pub(crate) end: i64,
}

impl Progress {
    /// Returns true if the reader comes to the end like this: twice as much was read since `before` as was appended. One that does
    /// not must not be held back: it would lag for as long as others are at the end.
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

    /// A turn of a reader: how long it works, what is sent, and how long the reader then takes to ask for the next one.
    type Turn = (Duration, usize, Duration);

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Act {
        Take,
        End,
    }

    /// What readers do in virtual time, each one turn after another.
    struct Course {
        pace: Pace,
        /// When each turn was asked for, and began.
        turns: Vec<(Duration, Duration)>,
        work: Duration,
        sent: u64,
    }

    impl Course {
        /// From `start` on, until `end`; readers repeat their turns.
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

    /// A turn beside one that is sent new events all the time.
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
            // The last turn of each reader has begun and is charged for later, beside what is caught up on, and what is rounded.
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
        // After a pause nothing is left of it but that.
        assert_eq!(take(&mut pace, MS * 1_000), MS * 999);
    }

    #[test]
    fn what_is_evaluated_and_not_sent_is_charged_for_the_work_alone() {
        let mut pace = Pace::new(2);
        let first = take(&mut pace, MS * 100);
        pace.end_turn(MS / 10, 0);
        let second = take(&mut pace, first);
        assert_eq!(second, first + MS / 5);
        // A disk that hangs is waited for, and not rested for.
        pace.end_turn(MS * 500, 0);
        assert_eq!(take(&mut pace, second), second + WORK_MAX * 2);
    }

    #[test]
    fn turns_are_taken_while_new_events_are_sent() {
        let mut pace = Pace::new(2);
        assert_eq!(pace.take_turn(MS * 1_000, None), None);
        assert_eq!(pace.take_turn(MS * 1_500, Some(MS * 1_000)), None);
        assert_eq!(pace.take_turn(MS * 1_499, Some(MS * 1_000)), Some(MS * 1_498));
        // One that was sent some since this reader looked at the time.
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
