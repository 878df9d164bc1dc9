//! The turns of the connections of one event loop, and what follows from them: when the loop looks for more before it sleeps, when a
//! connection lets others send before it reads on, and when it is polled again.
//!
//! Plain state, in [`Cell`]s: a loop reads and writes it at each turn and at each wake, and may be asked by a task that it wakes.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Times in a row that there has to be something to do within the time. One request can be several of them: it arrives,
/// is answered, and wakes who waits for it.
pub(crate) const CLOSE_IN_A_ROW: u32 = 32;

/// Turns of one loop's connections.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Turns so far.
    begun: Cell<u64>,
    /// When the last one began of those that were compared with the one before.
    last: Cell<Option<Instant>>,
    /// Turns in a row that followed closely, at most [`CLOSE_IN_A_ROW`].
    close: Cell<u32>,
    /// The first instant for which the connection whose turn it is has asked to be polled.
    look_again: Cell<Option<Instant>>,
    /// A task of this loop was woken by another one since this was asked last.
    woke_neighbour: Cell<bool>,
}

impl Turns {
    /// No turn so far.
    pub(crate) const fn new() -> Turns {
        Turns {
            begun: Cell::new(0),
            last: Cell::new(None),
            close: Cell::new(0),
            look_again: Cell::new(None),
            woke_neighbour: Cell::new(false),
        }
    }

    /// A connection begins a turn. Returns true if it should be compared with the one before ([`Turns::compare`]): a loop that looks
    /// for more already finds out by itself when to stop.
    #[inline]
    pub(crate) fn begin(&self) -> bool {
        self.begun.set(self.begun.get() + 1);
        self.look_again.set(None);
        !self.is_dense()
    }

    /// Compares the begin of a turn with that of the one before. Returns true if the loop should begin to look for more before it
    /// sleeps: turns are dense from now on. `window`: the time for which it would look.
    #[inline]
    pub(crate) fn compare(&self, now: Instant, window: Duration) -> bool {
        if window.is_zero() {
            return false;
        }
        let last = self.last.replace(Some(now));
        let is_close = last.is_none_or(|last| now.saturating_duration_since(last) < window);
        self.close.set(if is_close { self.close.get() + 1 } else { 0 });
        self.is_dense()
    }

    /// Returns true while turns follow each other so closely that the loop should look for more before it sleeps.
    #[inline]
    pub(crate) fn is_dense(&self) -> bool {
        self.close.get() >= CLOSE_IN_A_ROW
    }

    /// The loop has looked, and nothing has come for a while.
    pub(crate) fn end_density(&self) {
        self.close.set(0);
    }

    /// Turns so far.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.get()
    }

    /// Has the connection whose turn it is polled again at an instant, or before.
    #[inline]
    pub(crate) fn look_again_at(&self, instant: Instant) {
        let first = self.look_again.get().map_or(instant, |asked| asked.min(instant));
        self.look_again.set(Some(first));
    }

    /// The first instant at which the connection whose turn it is should be polled again.
    #[inline]
    pub(crate) fn look_again(&self) -> Option<Instant> {
        self.look_again.get()
    }

    /// A task of this loop is woken by another one.
    #[inline]
    pub(crate) fn wake_neighbour(&self) {
        self.woke_neighbour.set(true);
    }

    /// Returns true if a task was woken by another one since this was asked last.
    #[inline]
    pub(crate) fn woke_neighbour(&self) -> bool {
        self.woke_neighbour.replace(false)
    }

    /// Checks what holds between any two calls.
    ///
    /// # Panics
    /// If something does not hold.
    #[cfg(test)]
    fn check(&self) {
        let close = self.close.get();
        assert!(close <= CLOSE_IN_A_ROW, "{self:?}");
        assert!(u64::from(close) <= self.begun.get(), "{self:?}");
        assert!(self.last.get().is_some() || close == 0, "{self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_micros(100);
    const CLOSE: Duration = Duration::from_micros(99);

    /// Turns that begin one after the other, each so long after the one before; the numbers of those with which looking begins.
    fn begin_of_looking(turns: &Turns, now: &mut Instant, count: u32, apart: Duration) -> Vec<u32> {
        let begins = |number: &u32| {
            *now += apart;
            let begins = turns.begin() && turns.compare(*now, WINDOW);
            turns.check();
            assert!(!begins || turns.is_dense(), "turn {number}");
            begins
        };
        (1..=count).filter(begins).collect()
    }

    #[test]
    fn looking_begins_once_turns_follow_closely_for_a_while() {
        let (turns, mut now) = (Turns::new(), Instant::now());
        let begins = begin_of_looking(&turns, &mut now, 3 * CLOSE_IN_A_ROW, CLOSE);
        assert_eq!(begins, [CLOSE_IN_A_ROW], "and not again while they do");
        assert!(turns.is_dense());
        assert_eq!(turns.begun(), u64::from(3 * CLOSE_IN_A_ROW));
    }

    #[test]
    fn one_interval_that_is_too_long_begins_the_count_again() {
        let (turns, mut now) = (Turns::new(), Instant::now());
        assert!(begin_of_looking(&turns, &mut now, CLOSE_IN_A_ROW - 1, CLOSE).is_empty());
        assert!(begin_of_looking(&turns, &mut now, 1, WINDOW).is_empty(), "as long as the loop would look");
        assert_eq!(begin_of_looking(&turns, &mut now, CLOSE_IN_A_ROW, CLOSE), [CLOSE_IN_A_ROW]);
        turns.end_density();
        assert!(!turns.is_dense());
        assert!(begin_of_looking(&turns, &mut now, 1, WINDOW).is_empty());
        assert_eq!(begin_of_looking(&turns, &mut now, CLOSE_IN_A_ROW, CLOSE), [CLOSE_IN_A_ROW]);
    }

    #[test]
    fn a_loop_that_is_not_to_look_never_does() {
        let (turns, now) = (Turns::new(), Instant::now());
        for _ in 0..100 {
            assert!(turns.begin());
            assert!(!turns.compare(now, Duration::ZERO));
            turns.check();
        }
        assert_eq!(turns.begun(), 100);
    }

    #[test]
    fn the_first_instant_of_a_turn_counts_for_that_turn() {
        let (turns, now) = (Turns::new(), Instant::now());
        let [soon, later] = [1, 2].map(|seconds| now + Duration::from_secs(seconds));
        turns.begin();
        assert_eq!(turns.look_again(), None);
        turns.look_again_at(later);
        turns.look_again_at(soon);
        turns.look_again_at(later);
        assert_eq!(turns.look_again(), Some(soon));
        turns.begin();
        assert_eq!(turns.look_again(), None, "it was another connection's");
    }

    #[test]
    fn a_neighbour_that_was_woken_is_reported_once() {
        let turns = Turns::new();
        assert!(!turns.woke_neighbour());
        turns.wake_neighbour();
        turns.wake_neighbour();
        assert!(turns.woke_neighbour());
        assert!(!turns.woke_neighbour(), "asked once, answered once");
    }
}
