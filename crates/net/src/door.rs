//! The connections that are not authenticated yet: how many there may be, and which of them has to go for another.
//!
//! They are served by an event loop of their own, the door, whose thread has a lower priority than those of data. Their
//! number is bounded, and so is the share of one peer. For a newcomer beyond a bound goes a connection that was refused and is
//! about to end, or else the one that has made no progress for the longest time: of its peer, or of all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use mainstem_lines::{Line, LineBudget};
use mainstem_peers::{Peer, Shares};

/// One peer may have this part of the seats, and at least one.
const PEER_SHARE: usize = 10;

/// Refused strangers that are logged in a second; of others there is a number.
const LINES_PER_SECOND: u32 = 20;

/// The seats of connections that are not authenticated yet.
pub struct Door {
    seats: Mutex<Seats<oneshot::Sender<()>>>,
    refusals: LineBudget,
    closings: LineBudget,
}

/// A connection's seat, given back when it is dropped.
pub struct Seat {
    door: Arc<Door>,
    connection: u64,
    given_up: oneshot::Receiver<()>,
}

impl Door {
    /// With so many seats, at least one.
    pub fn new(most: usize) -> Arc<Door> {
        let seats = Mutex::new(Seats::new(most));
        Arc::new(Door {
            seats,
            refusals: LineBudget::new(LINES_PER_SECOND),
            closings: LineBudget::new(LINES_PER_SECOND),
        })
    }

    /// A seat for a connection, by its id. Another one may lose its own for it.
    pub fn enter(self: &Arc<Self>, connection: u64, address: IpAddr, now_ms: u64) -> Seat {
        let (give_up, given_up) = oneshot::channel();
        let leaves = self.seats.lock().enter(connection, address, now_ms, give_up);
        if let Some(give_up) = leaves {
            // A connection that has just ended does not listen any more.
            let _ = give_up.send(());
        }
        Seat { door: self.clone(), connection, given_up }
    }

    /// The connection that has been without progress for the longest time, of those that count.
    pub fn slowest(&self, counts: impl Fn(u64) -> bool) -> Option<u64> {
        self.seats.lock().slowest(|connection, _| counts(connection))
    }

    /// Whether the log says of a stranger that it was refused: they come, and are refused, as often as they like. How many were
    /// left out before, it says now.
    pub fn may_log_refusal(&self, now: Instant) -> bool {
        let Line::Write { left_out } = self.refusals.next(now) else { return false };
        if left_out > 0 {
            tracing::warn!(left_out, "further connections were not authenticated, and are not shown");
        }
        true
    }

    /// Returns true if the log says why a connection was refused or closed whose client is no stranger, or need not
    /// prove who it is. These come as often as they like, too.
    pub fn may_log_closing(&self, now: Instant) -> bool {
        let Line::Write { left_out } = self.closings.next(now) else { return false };
        if left_out > 0 {
            tracing::warn!(left_out, "further connections were refused or closed, and are not shown");
        }
        true
    }

    /// Seats that are taken.
    pub fn taken(&self) -> usize {
        self.seats.lock().by_connection.len()
    }
}

impl Seat {
    /// The connection was refused, and ends once it has read so: its seat is the first to be given to another one.
    pub fn refused(&self) {
        self.door.seats.lock().refused(self.connection);
    }

    /// The connection has sent a whole frame.
    pub fn progressed(&self, now_ms: u64) {
        self.door.seats.lock().progressed(self.connection, now_ms);
    }

    /// Resolves when the seat is given to another connection.
    pub fn given_up(&mut self) -> &mut oneshot::Receiver<()> {
        &mut self.given_up
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.door.seats.lock().leave(self.connection);
    }
}

/// Who has a seat, with the way to take it away.
pub struct Seats<T> {
    most: usize,
    by_connection: HashMap<u64, Taken<T>>,
    by_peer: Shares,
}

struct Taken<T> {
    /// It only has to read that it was refused.
    is_refused: bool,
    peer: Peer,
    progressed_at_ms: u64,
    give_up: T,
}

impl<T> Seats<T> {
    /// With so many seats, at least one.
    pub fn new(most: usize) -> Self {
        let most = most.max(1);
        Seats { most, by_connection: HashMap::new(), by_peer: Shares::new((most / PEER_SHARE).max(1)) }
    }

    /// Gives a seat; the way to the one who lost it for that, if there was none left.
    pub fn enter(&mut self, connection: u64, address: IpAddr, now_ms: u64, give_up: T) -> Option<T> {
        let peer = Peer::of(address);
        let leaves = if self.by_peer.is_full(peer) {
            self.slowest(|_, taken| taken.peer == peer)
        } else if self.by_connection.len() >= self.most {
            self.slowest(|_, _| true)
        } else {
            None
        };
        let left = leaves.and_then(|connection| self.leave(connection));
        self.by_connection
            .insert(connection, Taken { peer, progressed_at_ms: now_ms, is_refused: false, give_up });
        assert!(self.by_peer.take(peer), "one of its peer has gone for it");
        self.check();
        left
    }

    fn slowest(&self, counts: impl Fn(u64, &Taken<T>) -> bool) -> Option<u64> {
        let counted = self.by_connection.iter().filter(|(id, taken)| counts(**id, taken));
        counted.min_by_key(|(id, taken)| (!taken.is_refused, taken.progressed_at_ms, **id)).map(|(id, _)| *id)
    }

    fn refused(&mut self, connection: u64) {
        if let Some(taken) = self.by_connection.get_mut(&connection) {
            taken.is_refused = true;
        }
    }

    fn progressed(&mut self, connection: u64, now_ms: u64) {
        if let Some(taken) = self.by_connection.get_mut(&connection) {
            taken.progressed_at_ms = now_ms;
        }
    }

    /// Gives a seat back; the way to take it away.
    pub fn leave(&mut self, connection: u64) -> Option<T> {
        let taken = self.by_connection.remove(&connection)?;
        self.by_peer.leave(taken.peer);
        Some(taken.give_up)
    }

    /// What always holds.
    fn check(&self) {
        assert!(self.by_connection.len() <= self.most, "no more than there are seats");
        assert!(self.by_peer.len() <= self.by_connection.len(), "each peer has a connection");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn the_connection_without_progress_for_the_longest_time_goes() {
        let mut seats = Seats::new(20);
        assert_eq!(seats.enter(1, address(1), 0, 'a'), None);
        assert_eq!(seats.enter(2, address(1), 1, 'b'), None);
        seats.progressed(1, 2);
        assert_eq!(seats.enter(3, address(1), 3, 'c'), Some('b'), "an address has a tenth");
        for other in 0..18 {
            assert_eq!(seats.enter(10 + u64::from(other), address(10 + other), 4, 'x'), None);
        }
        assert_eq!(seats.enter(50, address(50), 5, 'y'), Some('a'), "all seats are taken");
        assert_eq!(seats.leave(1), None, "it has gone already");
        assert_eq!(seats.leave(50), Some('y'));
        assert_eq!(seats.enter(51, address(51), 6, 'z'), None);
    }

    #[test]
    fn addresses_of_one_network_share_its_seats() {
        let mut seats = Seats::new(20);
        let of = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last]);
        assert_eq!(seats.enter(1, of(1), 0, 'a'), None);
        assert_eq!(seats.enter(2, of(2), 1, 'b'), None);
        assert_eq!(seats.enter(3, of(3), 2, 'c'), Some('a'), "a network has a tenth");
        assert_eq!(seats.enter(4, address(1), 3, 'd'), None, "another peer has its own");
    }

    #[test]
    fn a_connection_that_was_refused_goes_first() {
        let mut seats = Seats::new(20);
        assert_eq!(seats.enter(1, address(1), 0, 'a'), None);
        assert_eq!(seats.enter(2, address(1), 1, 'b'), None);
        seats.refused(2);
        assert_eq!(seats.enter(3, address(1), 3, 'c'), Some('b'), "though the other one is slower");
        assert_eq!(seats.enter(4, address(1), 4, 'd'), Some('a'));
        seats.refused(2);
        seats.check();
    }

    proptest! {
        #[test]
        fn the_bounds_hold_whatever_comes_and_goes(
            steps in prop::collection::vec((0u8..3, 0u64..40, 0u8..6), 0..200),
        ) {
            let mut seats = Seats::new(12);
            let mut next = 100;
            for (now, (kind, connection, last)) in (0..).zip(steps) {
                match kind {
                    0 => {
                        seats.enter(next, address(last), now, ());
                        next += 1;
                    }
                    1 => seats.progressed(next - connection.min(next), now),
                    _ => _ = seats.leave(next - connection.min(next)),
                }
                seats.check();
                prop_assert!((0..6).all(|last| seats.by_peer.of(Peer::of(address(last))) <= 1));
            }
        }
    }

    #[tokio::test]
    async fn who_loses_the_seat_is_notified() {
        let door = Door::new(1);
        let mut first = door.enter(1, address(1), 0);
        let second = door.enter(2, address(2), 1);
        first.given_up().await.expect("it was given up");
        drop(first);
        assert_eq!(door.taken(), 1, "a seat is not left twice");
        drop(second);
        assert_eq!(door.taken(), 0);
    }
}
