//! The rule by which event loops share their connections: the loop that a new connection is placed on, and when one moves to another.
//!
//! Plain state. Callers say what time it is, and for how long each loop has been busy so far. A loop is looked at when a connection
//! comes or asks whether to move, and at most once in [`LOOK_INTERVAL`]; its share of busy time between two looks is what counts:
//!
//! | a loop is busy for | effect |
//! |---|---|
//! | less than [`FREE_BELOW`] | new connections are placed here, if no loop before it is free |
//! | [`READERS`]`.from` or more | connections that read move to a loop that is less busy by [`READERS`]`.margin` |
//! | [`OTHERS`]`.from` or more, for some looks | all connections move to a loop that is less busy by [`OTHERS`]`.margin` |
//!
//! The first loops come first, so that a small load stays on one of them and no wake goes from one core to another.

use std::time::{Duration, Instant};

/// Time between two looks at a loop, at least.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// A loop that is busy for less than this share of the time is free.
const FREE_BELOW: f64 = 0.4;

/// Conditions under which a connection leaves its loop for another.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Relief {
    /// The share of time for which its own loop is busy at least.
    from: f64,
    /// The difference by which the other is less busy at least, or the two would give the same connection to each other.
    margin: f64,
    /// Looks in a row at which its own loop was that busy, without its share of connections having left in between.
    looks: u32,
}

/// Readers leave first. On a loop apart from the writers, neither waits for the other, and both CPUs work without a pause. A pause
/// costs a CPU far more than a wake from one loop to the other.
const READERS: Relief = Relief { from: 0.45, margin: 0.25, looks: 1 };

/// Everybody else leaves an overloaded loop, after readers have had the time to.
const OTHERS: Relief = Relief { from: 0.85, margin: 0.3, looks: 4 };

/// The number of connections of a loop for each one that may leave it between two looks; one may in any case. If all connections
/// that see the loop busy left together, the other loop would be the busy one.
const CONNECTIONS_PER_MOVE: usize = 16;

const _: () = assert!(READERS.margin > 0.0 && OTHERS.margin > 0.0, "a loop gives no connection to itself");
const _: () = assert!(FREE_BELOW < READERS.from, "a loop that takes new connections gives none away");
const _: () = assert!(READERS.from < OTHERS.from && READERS.looks < OTHERS.looks, "readers leave first");

impl Relief {
    /// Returns true if a connection should leave, by the busy shares of its loop and of another.
    fn is_due(self, from: Share, to: Share) -> bool {
        let is_long_enough = from.looks >= self.looks && to.looks >= 1;
        is_long_enough && from.busy >= self.from && to.busy < from.busy - self.margin
    }
}

/// The share of time for which a loop was busy of late.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Share {
    /// The share of time, 0 to 1, between the last two looks.
    busy: f64,
    /// Looks since connections moved from or to it; those at which it was overloaded, if it was at the last.
    looks: u32,
}

impl Share {
    /// The share after another look.
    fn next(self, busy: f64) -> Share {
        let was_overloaded = self.busy >= OTHERS.from;
        let is_overloaded = busy >= OTHERS.from;
        let looks = if was_overloaded == is_overloaded { self.looks.saturating_add(1) } else { 1 };
        Share { busy, looks }
    }
}

/// One loop.
#[derive(Debug, Clone, Copy)]
struct Load {
    connections: usize,
    looked_at: Instant,
    /// Its busy time until then.
    busy: Duration,
    share: Share,
    /// Connections that moved from or to it since the last look.
    moved: usize,
}

impl Load {
    fn new(now: Instant) -> Load {
        Load { connections: 0, looked_at: now, busy: Duration::ZERO, share: Share::default(), moved: 0 }
    }

    /// Looks at the loop again, if it is time to.
    fn look(&mut self, now: Instant, busy: impl FnOnce() -> Duration) -> Share {
        let elapsed = now.duration_since(self.looked_at);
        if elapsed >= LOOK_INTERVAL {
            let busy = busy();
            let share = busy.saturating_sub(self.busy).as_secs_f64() / elapsed.as_secs_f64();
            *self = Load { looked_at: now, busy, share: self.share.next(share), moved: 0, ..*self };
        }
        self.share
    }

    /// Notes that a connection moves from or to the loop. With a new number of connections, earlier measurements do not show any
    /// more which others should move.
    fn note_move(&mut self, at_most: usize, now: Instant, busy: impl FnOnce() -> Duration) {
        self.moved += 1;
        if self.moved >= at_most {
            let share = Share { looks: 0, ..self.share };
            *self = Load { looked_at: now, busy: busy(), share, moved: 0, ..*self };
        }
    }

    fn check(&self) {
        let Share { busy, looks } = self.share;
        assert!(busy.is_finite() && busy >= 0.0, "{busy} is no share of time");
        assert!(self.moved == 0 || looks > 0, "{} moved by what was seen before: {self:?}", self.moved);
    }
}

/// The loops of a broker, as far as it decides where connections are served. A loop is known by its number.
#[derive(Debug, Clone)]
pub(crate) struct Balance {
    loops: Vec<Load>,
    /// The number of loops that take connections. The others serve their connections until these have left.
    in_use: usize,
}

impl Balance {
    /// One loop, which is in use.
    pub(crate) fn new(now: Instant) -> Balance {
        Balance { loops: vec![Load::new(now)], in_use: 1 }
    }

    /// Adds a loop, which is not in use yet.
    pub(crate) fn add(&mut self, now: Instant) {
        self.loops.push(Load::new(now));
    }

    /// Sets the number of loops that take connections: at least one, and at most all.
    pub(crate) fn set_in_use(&mut self, count: usize) {
        self.in_use = count.clamp(1, self.loops.len());
        self.check();
    }

    /// Connections of each loop in use.
    pub(crate) fn connections(&self) -> impl Iterator<Item = usize> {
        self.loops[..self.in_use].iter().map(|load| load.connections)
    }

    /// Places a new connection: on the first loop that is free, or on the least busy one. `busy`: the busy time of a loop so far.
    pub(crate) fn place(&mut self, now: Instant, busy: impl Fn(usize) -> Duration) -> usize {
        let mut least = (0, f64::MAX);
        for number in 0..self.in_use {
            let share = self.loops[number].look(now, || busy(number)).busy;
            if share < least.1 {
                least = (number, share);
            }
            if share < FREE_BELOW {
                break;
            }
        }
        self.loops[least.0].connections += 1;
        self.check();
        least.0
    }

    /// Moves a connection of a loop to another, and returns that one: the first that is less busy by enough. If its own loop is not
    /// in use, it is the loop for a new connection. `None`: it stays. `reads`: its last request asked for records.
    pub(crate) fn relieve(
        &mut self,
        from: usize,
        reads: bool,
        now: Instant,
        busy: impl Fn(usize) -> Duration,
    ) -> Option<usize> {
        if from >= self.in_use {
            self.leave(from);
            return Some(self.place(now, busy));
        }
        let connections = self.loops[from].connections;
        // A connection that is alone takes its load with it.
        if self.in_use < 2 || connections < 2 {
            return None;
        }
        let relief = if reads { READERS } else { OTHERS };
        let mut look = |number: usize| self.loops[number].look(now, || busy(number));
        let share = look(from);
        let to = (0..self.in_use).find(|other| relief.is_due(share, look(*other)))?;
        let at_most = (connections / CONNECTIONS_PER_MOVE).max(1);
        for number in [from, to] {
            self.loops[number].note_move(at_most, now, || busy(number));
        }
        self.loops[from].connections -= 1;
        self.loops[to].connections += 1;
        self.check();
        Some(to)
    }

    /// A connection of a loop has ended.
    pub(crate) fn leave(&mut self, number: usize) {
        self.loops[number].connections -= 1;
        self.check();
    }

    /// Checks what holds between any two calls.
    ///
    /// # Panics
    /// If something does not hold.
    pub(crate) fn check(&self) {
        assert!((1..=self.loops.len()).contains(&self.in_use), "{} of {}", self.in_use, self.loops.len());
        self.loops.iter().for_each(Load::check);
    }
}

#[cfg(test)]
mod tests;
