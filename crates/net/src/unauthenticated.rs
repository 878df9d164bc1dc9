//! A limiter of connections that are not authenticated yet. It bounds their number, and chooses the one that is closed for
//! another.
//!
//! These connections have an event loop of their own, whose thread has a lower priority than those for data. Their number is
//! bounded, and so is the share of one peer. Beyond a bound, a new connection takes the permit of a connection that was
//! refused and is about to end. If there is none, it takes the permit of the one without progress for the longest time: of
//! its peer, or of all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use mainstem_lines::{Line, LineBudget};
use mainstem_peers::{Peer, Shares};

/// One peer may have this part of the permits, and at least one.
const PEER_SHARE: usize = 10;

/// Refused peers that are logged in a second. The others are counted.
const LINES_PER_SECOND: u32 = 20;

/// The permits of connections that are not authenticated yet.
pub struct UnauthenticatedLimiter {
    permits: Mutex<Permits<oneshot::Sender<()>>>,
    refusals: LineBudget,
    closings: LineBudget,
}

/// A connection's permit, given back when it is dropped.
pub struct Permit {
    limiter: Arc<UnauthenticatedLimiter>,
    connection: u64,
    revoked: oneshot::Receiver<()>,
}

impl UnauthenticatedLimiter {
    /// Creates a limiter with `most` permits, at least one.
    pub fn new(most: usize) -> Arc<UnauthenticatedLimiter> {
        let permits = Mutex::new(Permits::new(most));
        Arc::new(UnauthenticatedLimiter {
            permits,
            refusals: LineBudget::new(LINES_PER_SECOND),
            closings: LineBudget::new(LINES_PER_SECOND),
        })
    }

    /// Returns a permit for a connection, by its id. Another connection may lose its own for it.
    pub fn enter(self: &Arc<Self>, connection: u64, address: IpAddr, now_ms: u64) -> Permit {
        let (revoke, revoked) = oneshot::channel();
        let leaves = self.permits.lock().enter(connection, address, now_ms, revoke);
        if let Some(revoke) = leaves {
            // A connection that has just ended does not listen any more.
            let _ = revoke.send(());
        }
        Permit { limiter: self.clone(), connection, revoked }
    }

    /// The connection that has been without progress for the longest time, of those that count.
    pub fn slowest(&self, counts: impl Fn(u64) -> bool) -> Option<u64> {
        self.permits.lock().slowest(|connection, _| counts(connection))
    }

    /// Returns true if the refusal of an unauthenticated peer may be logged, and logs the number of lines left out before.
    /// Such peers may connect, and be refused, very often.
    pub fn may_log_refusal(&self, now: Instant) -> bool {
        let Line::Write { left_out } = self.refusals.next(now) else { return false };
        if left_out > 0 {
            tracing::warn!(left_out, "further connections were not authenticated, and are not shown");
        }
        true
    }

    /// Returns true if the refusal or the end of any other connection may be logged: its client is authenticated, or need not
    /// be. These may come very often, too.
    pub fn may_log_closing(&self, now: Instant) -> bool {
        let Line::Write { left_out } = self.closings.next(now) else { return false };
        if left_out > 0 {
            tracing::warn!(left_out, "further connections were refused or closed, and are not shown");
        }
        true
    }

    /// Permits that are taken.
    pub fn taken(&self) -> usize {
        self.permits.lock().by_connection.len()
    }
}

impl Permit {
    /// Notes that the connection was refused. It ends once its client has read that, and is the first to lose its permit.
    pub fn refused(&self) {
        self.limiter.permits.lock().refused(self.connection);
    }

    /// Notes that the connection has sent a whole frame.
    pub fn progressed(&self, now_ms: u64) {
        self.limiter.permits.lock().progressed(self.connection, now_ms);
    }

    /// Resolves when the permit is given to another connection.
    pub fn revoked(&mut self) -> &mut oneshot::Receiver<()> {
        &mut self.revoked
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limiter.permits.lock().leave(self.connection);
    }
}

/// The connections with a permit, each with the way to revoke it.
pub struct Permits<T> {
    most: usize,
    by_connection: HashMap<u64, Taken<T>>,
    by_peer: Shares,
}

struct Taken<T> {
    /// The client only has to read that it was refused.
    is_refused: bool,
    peer: Peer,
    progressed_at_ms: u64,
    revoke: T,
}

impl<T> Permits<T> {
    /// Creates `most` permits, at least one.
    pub fn new(most: usize) -> Self {
        let most = most.max(1);
        Permits { most, by_connection: HashMap::new(), by_peer: Shares::new((most / PEER_SHARE).max(1)) }
    }

    /// Gives a permit to a connection. Returns the way to revoke the permit of another one, if none was free.
    pub fn enter(&mut self, connection: u64, address: IpAddr, now_ms: u64, revoke: T) -> Option<T> {
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
            .insert(connection, Taken { peer, progressed_at_ms: now_ms, is_refused: false, revoke });
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

    /// Takes a permit back, and returns the way to revoke it.
    pub fn leave(&mut self, connection: u64) -> Option<T> {
        let taken = self.by_connection.remove(&connection)?;
        self.by_peer.leave(taken.peer);
        Some(taken.revoke)
    }

    /// Asserts the invariants.
    fn check(&self) {
        assert!(self.by_connection.len() <= self.most, "no more than there are permits");
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
        let mut permits = Permits::new(20);
        assert_eq!(permits.enter(1, address(1), 0, 'a'), None);
        assert_eq!(permits.enter(2, address(1), 1, 'b'), None);
        permits.progressed(1, 2);
        assert_eq!(permits.enter(3, address(1), 3, 'c'), Some('b'), "an address has a tenth");
        for other in 0..18 {
            assert_eq!(permits.enter(10 + u64::from(other), address(10 + other), 4, 'x'), None);
        }
        assert_eq!(permits.enter(50, address(50), 5, 'y'), Some('a'), "all permits are taken");
        assert_eq!(permits.leave(1), None, "it has gone already");
        assert_eq!(permits.leave(50), Some('y'));
        assert_eq!(permits.enter(51, address(51), 6, 'z'), None);
    }

    #[test]
    fn addresses_of_one_network_share_its_permits() {
        let mut permits = Permits::new(20);
        let of = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last]);
        assert_eq!(permits.enter(1, of(1), 0, 'a'), None);
        assert_eq!(permits.enter(2, of(2), 1, 'b'), None);
        assert_eq!(permits.enter(3, of(3), 2, 'c'), Some('a'), "a network has a tenth");
        assert_eq!(permits.enter(4, address(1), 3, 'd'), None, "another peer has its own");
    }

    #[test]
    fn a_connection_that_was_refused_goes_first() {
        let mut permits = Permits::new(20);
        assert_eq!(permits.enter(1, address(1), 0, 'a'), None);
        assert_eq!(permits.enter(2, address(1), 1, 'b'), None);
        permits.refused(2);
        assert_eq!(permits.enter(3, address(1), 3, 'c'), Some('b'), "though the other one is slower");
        assert_eq!(permits.enter(4, address(1), 4, 'd'), Some('a'));
        permits.refused(2);
        permits.check();
    }

    proptest! {
        #[test]
        fn the_bounds_hold_whatever_comes_and_goes(
            steps in prop::collection::vec((0u8..3, 0u64..40, 0u8..6), 0..200),
        ) {
            let mut permits = Permits::new(12);
            let mut next = 100;
            for (now, (kind, connection, last)) in (0..).zip(steps) {
                match kind {
                    0 => {
                        permits.enter(next, address(last), now, ());
                        next += 1;
                    }
                    1 => permits.progressed(next - connection.min(next), now),
                    _ => _ = permits.leave(next - connection.min(next)),
                }
                permits.check();
                prop_assert!((0..6).all(|last| permits.by_peer.of(Peer::of(address(last))) <= 1));
            }
        }
    }

    #[tokio::test]
    async fn a_connection_that_loses_its_permit_is_notified() {
        let limiter = UnauthenticatedLimiter::new(1);
        let mut first = limiter.enter(1, address(1), 0);
        let second = limiter.enter(2, address(2), 1);
        first.revoked().await.expect("it was revoked");
        drop(first);
        assert_eq!(limiter.taken(), 1, "a permit is not left twice");
        drop(second);
        assert_eq!(limiter.taken(), 0);
    }
}
