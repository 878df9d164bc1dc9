//! The messages of one partition between arrival and commit.
//!
//! Messages are admitted by offset, started as their slice allows, and finished in any order:
//!
//! ```text
//!                  ┌──────────── retry, when its time has come ──────────┐
//!                  ▼                                                     │
//! admit ──▶ queued ──▶ ready ──▶ running ──▶ finished              delayed
//!             │ behind others of its slice     │                        ▲
//!             │                                └──── retry(at) ─────────┘
//! ```
//!
//! Unfinished messages are slots of a slab, linked twice: by offset, and by offset within their slice. All offsets between
//! two neighbours of the first list are finished, so the list is all that a commit has to know:
//!
//! ```text
//! offsets    40  41  42  43  44  45  46 │ 47
//!            ▲   finished    ▲   fin.   │ next: not admitted yet
//!            frontier        unfinished
//! commit: resume at 40; finished behind it: 41..44, 45..47
//! ```
//!
//! A message whose handler is done when it is polled first needs no slot: it is passed, with all others since the last one that has a slot
//! ([`Window::may_run_inline`]).
//!
//! It promises the following. [`Window::check`] asserts it, and the model in the tests compares it after every step:
//!
//! 1. The position is the first unfinished offset, and never goes back.
//! 2. One message of a slice runs at a time, by offset, retries included. One that waits holds up no other slice.
//! 3. There are never more unfinished messages, unfinished bytes and finished offsets ahead than [`Limits`] say.
//! 4. After [`Window::revoke`] nothing starts.
//!
//! Not thread-safe, no clock: a driver asks it before and after all it does. Times are milliseconds of any clock that does
//! not go back.

#[cfg(test)]
mod model;
mod slots;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use slots::{NONE, Slots, State};

use mainstem_records::SLICES;

/// Unfinished messages of a partition at most. Their ranges fit into the metadata of a commit, but for the worst orders.
pub const MESSAGES_MAX: usize = 1_024;
/// Bytes of unfinished messages of a partition at most; a larger message is alone.
pub const BYTES_MAX: u64 = 8 << 20;
/// A message that is so many offsets behind the first unfinished one has to wait.
pub const AHEAD_MAX: i64 = 262_144;

/// A message is long before another that is so many offsets behind it. Where all take about as long, those of a slice are a few
/// thousand offsets apart at most, and none is copied.
const LONG_BEFORE: i64 = 8 * MESSAGES_MAX as i64;

/// The bounds of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Unfinished messages at most; 1 to [`MESSAGES_MAX`].
    pub messages: usize,
    /// Bytes of unfinished messages at most; a message that is larger is admitted when there is no other.
    pub bytes: u64,
    /// No message is admitted so many offsets behind the first unfinished one.
    pub ahead: i64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { messages: MESSAGES_MAX, bytes: BYTES_MAX, ahead: AHEAD_MAX }
    }
}

/// The result of [`Window::admit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admitted {
    /// It is unfinished, and has this slot until it is finished.
    Slot(u16),
    /// It was finished before a crash or a move of the partition: there is nothing to do.
    AlreadyFinished,
}

/// The window of one partition; the module's page says how it works.
///
/// ```
/// use mainstem_flow::{Admitted, Limits, Window, slice_of};
///
/// let mut window = Window::new(40, [], Limits::default());
/// for (offset, key) in [(40, "a"), (41, "b"), (42, "a")] {
///     assert!(window.fits(offset, 100));
///     window.admit(offset, slice_of(Some(key.as_bytes()), offset), 100);
/// }
/// let (first, second) = (window.start().unwrap(), window.start().unwrap());
/// assert_eq!((window.offset(first), window.offset(second)), (40, 41));
/// assert_eq!(window.start(), None, "42 has the key of 40");
/// window.finish(second, 0);
/// assert_eq!((window.frontier(), window.finished().collect::<Vec<_>>()), (40, vec![41..42]));
/// ```
#[derive(Debug)]
pub struct Window {
    limits: Limits,
    slots: Slots,
    /// The unfinished messages of each slice.
    chains: Box<[Chain]>,
    /// Those that may start, in the order in which they came to.
    ready: VecDeque<u16>,
    /// Those that wait for their time: when, and which.
    delayed: BinaryHeap<Reverse<(u64, i64, u16)>>,
    running: usize,
    bytes: u64,
    /// The offset behind all that was admitted, or finished without that.
    next: i64,
    /// The offset behind all that has arrived.
    arrived: i64,
    /// Finished before this assignment, and not reached by `next` yet.
    restored: VecDeque<Range<i64>>,
    is_revoked: bool,
}

/// The unfinished messages of a slice, by offset.
#[derive(Debug, Clone, Copy)]
struct Chain {
    first: u16,
    last: u16,
    running: u16,
}

const EMPTY: Chain = Chain { first: NONE, last: NONE, running: 0 };

/// A batch that could be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextBatch {
    /// The slot of its first message.
    pub first: u16,
    /// Messages that it has by now.
    pub count: usize,
    /// Messages that come may join it.
    pub may_grow: bool,
}

impl Window {
    /// The window of a partition that is read from `next` on, where the ranges `finished`, ascending and apart, are done.
    ///
    /// # Panics
    /// If the limits are out of their ranges, or `finished` is not ascending.
    pub fn new(next: i64, finished: impl IntoIterator<Item = Range<i64>>, limits: Limits) -> Window {
        assert!((1..=MESSAGES_MAX).contains(&limits.messages), "1 to {MESSAGES_MAX} messages: {limits:?}");
        assert!(limits.ahead > 0, "a window reaches one offset ahead at least: {limits:?}");
        let restored: VecDeque<_> = finished.into_iter().collect();
        assert!(
            restored.iter().zip(restored.iter().skip(1)).all(|(one, other)| one.end <= other.start),
            "finished ranges are ascending: {restored:?}"
        );
        let mut window = Window {
            limits,
            slots: Slots::default(),
            chains: vec![EMPTY; SLICES].into(),
            ready: VecDeque::new(),
            delayed: BinaryHeap::new(),
            running: 0,
            bytes: 0,
            next,
            arrived: next,
            restored,
            is_revoked: false,
        };
        window.pass_restored();
        window
    }

    /// Returns false if a message of this size has to wait, and its partition to be held: something has to be finished first.
    #[inline]
    pub fn fits(&self, offset: i64, bytes: u32) -> bool {
        self.is_finished(offset)
            || self.slots.is_empty()
            || (self.slots.len() < self.limits.messages
                && self.bytes + u64::from(bytes) <= self.limits.bytes
                && offset.saturating_sub(self.frontier()) < self.limits.ahead)
    }

    /// Returns true if the next message, at `offset`, may run before it has a slot: none of its slice is unfinished, and no other
    /// is ready. If it is done at once, [`Window::pass`] is all that it needs; if not, it is admitted and started, and will
    /// have the slot [`Window::next_slot`].
    ///
    /// `slice` is asked only where there are unfinished messages.
    #[inline]
    pub fn may_run_inline(&self, offset: i64, bytes: u32, slice: impl FnOnce() -> u16) -> bool {
        if self.is_revoked || offset < self.arrived.max(self.next) || !self.restored.is_empty() {
            return false;
        }
        self.slots.is_empty()
            || (self.ready.is_empty()
                && self.fits(offset, bytes)
                && self.chains[usize::from(slice())].first == NONE)
    }

    /// The slot that the next message gets which is admitted.
    #[inline]
    pub fn next_slot(&self) -> u16 {
        self.slots.next()
    }

    #[inline]
    fn is_finished(&self, offset: i64) -> bool {
        let near = self.restored.iter().take_while(|range| range.start <= offset);
        offset < self.next || near.last().is_some_and(|range| range.contains(&offset))
    }

    /// Takes a message that has arrived. Offsets may be left out: those without a message are finished.
    ///
    /// # Panics
    /// If it does not fit, offsets go back, or the partition was revoked.
    pub fn admit(&mut self, offset: i64, slice: u16, bytes: u32) -> Admitted {
        assert!(!self.is_revoked, "offset {offset} is admitted to a partition that was revoked");
        assert!(offset >= self.arrived, "offset {offset} arrives behind {}", self.arrived);
        assert!(self.fits(offset, bytes), "offset {offset} does not fit into the window: {self:?}");
        self.arrived = offset + 1;
        if self.is_finished(offset) {
            self.pass(offset + 1);
            return Admitted::AlreadyFinished;
        }
        let slot = self.slots.append(offset, slice, bytes);
        self.bytes += u64::from(bytes);
        self.next = offset + 1;
        self.pass_restored();
        let chain = &mut self.chains[usize::from(slice)];
        self.slots.link_to_chain(slot, chain.last);
        chain.last = slot;
        if chain.first == NONE {
            chain.first = slot;
            self.make_ready(slot);
        }
        Admitted::Slot(slot)
    }

    /// Marks all before `offset` that was not admitted as finished: it was filtered out, or has nothing for readers.
    pub fn pass(&mut self, offset: i64) {
        self.arrived = self.arrived.max(offset);
        self.next = self.next.max(offset);
        self.pass_restored();
    }

    /// Passes restored ranges that adjoin or precede `next`.
    fn pass_restored(&mut self) {
        while let Some(range) = self.restored.front().filter(|range| range.start <= self.next) {
            self.next = self.next.max(range.end);
            self.restored.pop_front();
        }
    }

    /// Returns true if something is finished of which no message has arrived.
    pub fn has_restored(&self) -> bool {
        !self.restored.is_empty() || self.next > self.arrived
    }

    /// Forgets restored ranges of which no message has arrived: the messages there are others. Ranges that adjoin the frontier are
    /// forgotten as well, and their first offset is the first unfinished one again.
    pub fn void_restored(&mut self) {
        self.restored.clear();
        self.next = self.arrived;
    }

    /// The next message that may run; it is running from now on.
    #[inline]
    pub fn start(&mut self) -> Option<u16> {
        if self.is_revoked {
            return None;
        }
        let slot = self.ready.pop_front()?;
        self.run(slot);
        Some(slot)
    }

    /// The next message that may run, and behind it as many of its slice as may run together with it, `max` at most; they are
    /// running from now on. What was tried before runs alone. Returns how many were pushed to `out`.
    pub fn start_batch(&mut self, max: usize, out: &mut Vec<u16>) -> usize {
        let Some(batch) = self.next_batch(max) else { return 0 };
        let mut next = self.start().expect("a batch has a first message");
        out.push(next);
        for _ in 1..batch.count {
            next = self.slots.get(next).chain_next;
            self.run(next);
            out.push(next);
        }
        batch.count
    }

    /// The batch that [`Window::start_batch`] would start now; none if nothing may run.
    pub fn next_batch(&self, max: usize) -> Option<NextBatch> {
        let first = self.ready.front().copied().filter(|_| !self.is_revoked)?;
        let (mut count, mut last) = (1, first);
        let is_tried = |slot: u16| self.slots.get(slot).is_tried;
        let may_grow = loop {
            if is_tried(first) || count >= max {
                break false;
            }
            let next = self.slots.get(last).chain_next;
            if next == NONE {
                break true;
            }
            if is_tried(next) {
                break false;
            }
            (count, last) = (count + 1, next);
        };
        Some(NextBatch { first, count, may_grow })
    }

    #[inline]
    fn run(&mut self, slot: u16) {
        let one = self.slots.get_mut(slot);
        one.state = State::Running;
        self.chains[usize::from(one.slice)].running += 1;
        self.running += 1;
    }

    /// A running message is done: with its handler, or as a dead letter.
    ///
    /// # Panics
    /// If it is not running.
    #[inline]
    pub fn finish(&mut self, slot: u16, now_ms: u64) {
        let slice = self.stop(slot);
        let chain = &mut self.chains[usize::from(slice)];
        let one = self.slots.get(slot);
        if chain.first == slot {
            chain.first = one.chain_next;
        }
        if chain.last == slot {
            chain.last = one.chain_previous;
        }
        self.bytes -= u64::from(one.bytes);
        self.slots.remove(slot);
        self.go_on(slice, now_ms);
    }

    /// A running message has to run again, not before a time; its slice waits for it.
    ///
    /// # Panics
    /// If it is not running.
    pub fn retry(&mut self, slot: u16, at_ms: u64, now_ms: u64) {
        let slice = self.stop(slot);
        let one = self.slots.get_mut(slot);
        one.not_before_ms = at_ms;
        one.is_tried = true;
        one.state = State::Queued;
        self.go_on(slice, now_ms);
    }

    #[inline]
    fn stop(&mut self, slot: u16) -> u16 {
        let one = self.slots.get(slot);
        assert_eq!(one.state, State::Running, "the message in slot {slot} is not running: {one:?}");
        self.running -= 1;
        self.chains[usize::from(one.slice)].running -= 1;
        one.slice
    }

    /// The first message of a slice is next when none of the slice is running.
    #[inline]
    fn go_on(&mut self, slice: u16, now_ms: u64) {
        let chain = self.chains[usize::from(slice)];
        if chain.running > 0 || chain.first == NONE {
            return;
        }
        let one = self.slots.get_mut(chain.first);
        if one.not_before_ms <= now_ms {
            self.make_ready(chain.first);
        } else {
            one.state = State::Delayed;
            self.delayed.push(Reverse((one.not_before_ms, one.offset, chain.first)));
        }
    }

    #[inline]
    fn make_ready(&mut self, slot: u16) {
        self.slots.get_mut(slot).state = State::Ready;
        self.ready.push_back(slot);
    }

    /// An unfinished message is started in no batch.
    pub fn run_alone(&mut self, slot: u16) {
        self.slots.get_mut(slot).is_tried = true;
    }

    /// Messages whose time has come may start.
    pub fn tick(&mut self, now_ms: u64) {
        while let Some(Reverse((at, _, slot))) = self.delayed.peek().copied()
            && at <= now_ms
        {
            self.delayed.pop();
            self.make_ready(slot);
        }
    }

    /// When [`Window::tick`] has something to do next.
    pub fn next_due_ms(&self) -> Option<u64> {
        self.delayed.peek().map(|Reverse((at, ..))| *at)
    }

    /// Nothing is admitted or started any more. Running messages are awaited, or stopped; in both cases all is done when
    /// [`Window::running`] is 0.
    pub fn revoke(&mut self) {
        self.is_revoked = true;
    }

    /// A running message was stopped before its end: it stays unfinished. Only after [`Window::revoke`].
    ///
    /// # Panics
    /// If it is not running, or the partition was not revoked.
    pub fn abandon(&mut self, slot: u16) {
        assert!(self.is_revoked, "slot {slot} is abandoned in a partition that was not revoked");
        self.stop(slot);
        self.slots.get_mut(slot).state = State::Queued;
    }

    /// Returns the first unfinished offset, at which to resume after a crash; [`Window::finished`] has what to skip.
    #[inline]
    pub fn frontier(&self) -> i64 {
        self.slots.first().map_or(self.next, |first| first.offset)
    }

    /// Returns the time when the present or next attempt of the first unfinished message was due, in the driver's milliseconds; none if all
    /// is finished. It is 0 for a first attempt, and `u64::MAX` while the message waits for something else than an attempt.
    pub fn frontier_due_ms(&self) -> Option<u64> {
        self.slots.first().map(|first| first.not_before_ms)
    }

    /// Notes that the attempt of a running message has ended, and that its outputs or its dead letter are being written.
    /// [`Window::frontier_due_ms`] expects nothing of it until it is finished or runs again.
    ///
    /// # Panics
    /// If it is not running.
    pub fn await_write(&mut self, slot: u16) {
        let one = self.slots.get_mut(slot);
        assert_eq!(one.state, State::Running, "the message in slot {slot} is not running: {one:?}");
        one.not_before_ms = u64::MAX;
    }

    /// The finished ranges behind the frontier, ascending.
    pub fn finished(&self) -> impl Iterator<Item = Range<i64>> + '_ {
        let mut unfinished = self.slots.iter().map(|(_, one)| one.offset).peekable();
        let between = std::iter::from_fn(move || {
            let before = unfinished.next()?;
            let end = unfinished.peek().copied().unwrap_or(self.next);
            Some(before + 1..end)
        });
        between.filter(|range| !range.is_empty()).chain(self.restored.iter().cloned())
    }

    /// The messages of its slice that are behind an unfinished one.
    pub(crate) fn behind(&self, slot: u16) -> impl Iterator<Item = u16> + '_ {
        let next = move |slot: u16| Some(self.slots.get(slot).chain_next).filter(|next| *next != NONE);
        std::iter::successors(next(slot), move |slot| next(*slot))
    }

    /// The messages from an offset on that wait for another one of their slice which came long before: when they may run is not
    /// known.
    pub(crate) fn stranded_from(&self, offset: i64) -> impl Iterator<Item = u16> + '_ {
        let is_stranded = move |one: &slots::Slot| {
            let first = self.slots.get(self.chains[usize::from(one.slice)].first);
            one.state == State::Queued && one.offset - first.offset > LONG_BEFORE
        };
        let from = self.slots.iter_back().take_while(move |(_, one)| one.offset >= offset);
        from.filter(move |(_, one)| is_stranded(one)).map(|(slot, _)| slot)
    }

    /// Returns true if [`Window::stranded_from`] may have something of what arrived last.
    #[inline]
    pub(crate) fn may_strand(&self) -> bool {
        self.arrived - self.frontier() > LONG_BEFORE
    }

    /// Returns the offset behind all that has arrived: a message before it cannot be admitted.
    pub fn arrived(&self) -> i64 {
        self.arrived
    }

    /// The offset of an unfinished message.
    pub fn offset(&self, slot: u16) -> i64 {
        self.slots.get(slot).offset
    }

    /// Returns the number of unfinished messages.
    pub fn unfinished(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of running messages.
    pub fn running(&self) -> usize {
        self.running
    }

    /// Returns the number of messages that may start now.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Returns true if [`Window::revoke`] was called.
    pub fn is_revoked(&self) -> bool {
        self.is_revoked
    }

    /// Asserts what holds after every step; it looks at everything, so tests call it.
    ///
    /// # Panics
    /// If something does not hold.
    pub fn check(&self) {
        self.slots.check();
        let bytes: u64 = self.slots.iter().map(|(_, one)| u64::from(one.bytes)).sum();
        assert_eq!(bytes, self.bytes, "the bytes of unfinished messages are counted");
        assert!(self.slots.len() <= self.limits.messages, "{} messages", self.slots.len());
        assert!(bytes <= self.limits.bytes || self.slots.len() == 1, "{bytes} bytes");
        let last = self.slots.iter().map(|(_, one)| one.offset).last().unwrap_or(self.frontier());
        assert!(last - self.frontier() < self.limits.ahead, "{} is far behind {}", last, self.frontier());
        let running = self.slots.iter().filter(|(_, one)| one.state == State::Running).count();
        assert_eq!(running, self.running, "what runs is counted");
        (0..SLICES).for_each(|slice| self.check_chain(slice));
        assert!(self.restored.front().is_none_or(|range| range.start > self.next), "{:?}", self.restored);
    }

    /// A slice waits for nothing but its first message, and that one is where it says to be.
    fn check_chain(&self, slice: usize) {
        let chain = self.chains[slice];
        let mut states = Vec::new();
        let (mut slot, mut offset) = (chain.first, i64::MIN);
        while slot != NONE {
            let one = self.slots.get(slot);
            assert!(usize::from(one.slice) == slice && one.offset > offset, "slice {slice}: {one:?}");
            states.push(one.state);
            (slot, offset) = (one.chain_next, one.offset);
        }
        let running = states.iter().filter(|state| **state == State::Running).count();
        assert_eq!(running, usize::from(chain.running), "slice {slice}: {states:?}");
        assert!(
            states.iter().skip(1).all(|state| matches!(state, State::Queued | State::Running)),
            "{states:?}"
        );
        let is_idle = running == 0 && !self.is_revoked;
        if let (true, Some(first)) = (is_idle, states.first()) {
            assert!(
                matches!(first, State::Ready | State::Delayed),
                "slice {slice} waits for nothing: {states:?}"
            );
        }
    }
}
