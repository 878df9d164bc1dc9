//! Peers, as what they take is counted: which addresses are one peer, and how much of something one peer may have.
//!
//! Architecture invariant: no I/O, no clock.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bits of an IPv6 address that name a network: each host has all addresses of its own, and takes as many of them as it likes.
const NETWORK_BITS: u32 = 64;
/// The prefix of IPv4 addresses that were translated (RFC 6052); the last 32 bits are such an address.
const TRANSLATED: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];

/// The peer at an address: an IPv4 address, or the network of 64 bits of an IPv6 address.
///
/// ```
/// use mainstem_peers::Peer;
///
/// let of = |text: &str| Peer::of(text.parse().unwrap());
/// assert_eq!(of("2001:db8::1"), of("2001:db8::2"));
/// assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
/// assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
/// assert_eq!(of("2001:db8::1").to_string(), "2001:db8::/64");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer(IpAddr);

impl Peer {
    /// The peer at an address. One of IPv4 is the same in each of its forms within IPv6.
    pub fn of(address: IpAddr) -> Peer {
        match address.to_canonical() {
            IpAddr::V4(address) => Peer(address.into()),
            IpAddr::V6(address) => match address.segments() {
                [prefix @ .., high, low] if prefix == TRANSLATED => {
                    let [[a, b], [c, d]] = [high.to_be_bytes(), low.to_be_bytes()];
                    Peer(Ipv4Addr::new(a, b, c, d).into())
                }
                _ => {
                    let network = address.to_bits() & (u128::MAX << (u128::BITS - NETWORK_BITS));
                    Peer(Ipv6Addr::from_bits(network).into())
                }
            },
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => address.fmt(f),
            IpAddr::V6(network) => write!(f, "{network}/{NETWORK_BITS}"),
        }
    }
}

/// Half of so much, and one at least: what one peer may have, so that it keeps no other one out.
pub fn half(most: usize) -> usize {
    (most / 2).max(1)
}

/// Counts of something by peer, with a bound for each.
#[derive(Debug)]
pub struct Shares {
    most_of_one: usize,
    by_peer: HashMap<Peer, usize>,
}

impl Shares {
    /// One peer may have so much.
    pub fn new(most_of_one: usize) -> Shares {
        Shares { most_of_one, by_peer: HashMap::new() }
    }

    /// The bound of each peer.
    pub fn most_of_one(&self) -> usize {
        self.most_of_one
    }

    /// Returns true if a peer has as much as it may.
    pub fn is_full(&self, peer: Peer) -> bool {
        self.of(peer) >= self.most_of_one
    }

    /// The count of a peer.
    pub fn of(&self, peer: Peer) -> usize {
        self.by_peer.get(&peer).copied().unwrap_or(0)
    }

    /// Counts one more for a peer, to be given back by [`Shares::leave`]. Returns false, and counts nothing, if it has as much as it may.
    pub fn take(&mut self, peer: Peer) -> bool {
        let is_free = !self.is_full(peer);
        if is_free {
            *self.by_peer.entry(peer).or_default() += 1;
        }
        is_free
    }

    /// Counts one less for a peer. Nothing is kept of a peer that has none.
    ///
    /// # Panics
    /// If it has none.
    pub fn leave(&mut self, peer: Peer) {
        let own = self.by_peer.get_mut(&peer).expect("what is given back was taken");
        *own -= 1;
        if *own == 0 {
            self.by_peer.remove(&peer);
        }
    }

    /// Peers that have any.
    pub fn len(&self) -> usize {
        self.by_peer.len()
    }

    /// Returns true if no peer has any.
    pub fn is_empty(&self) -> bool {
        self.by_peer.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> Peer {
        Peer::of(text.parse().unwrap())
    }

    #[test]
    fn addresses_of_one_network_of_ipv6_are_one_peer() {
        for (one, other, are_one) in [
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("192.0.2.1", "::ffff:192.0.2.1", true),
            ("192.0.2.1", "64:ff9b::192.0.2.1", true),
            ("64:ff9b::192.0.2.1", "64:ff9b::192.0.2.2", false),
            ("2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", true),
            ("2001:db8:0:1::1", "2001:db8:0:2::1", false),
            ("::1", "127.0.0.1", false),
        ] {
            assert_eq!(peer(one) == peer(other), are_one, "{one} and {other}");
        }
        assert_eq!(peer("64:ff9b::192.0.2.1").to_string(), "192.0.2.1");
        assert_eq!(peer("2001:db8:1:2:3::4").to_string(), "2001:db8:1:2::/64");
    }

    #[test]
    fn a_peer_has_its_share_and_no_more() {
        let (one, other) = (peer("192.0.2.1"), peer("2001:db8::1"));
        let mut shares = Shares::new(half(5));
        assert!(shares.take(one) && shares.take(one) && !shares.take(one));
        assert!(shares.take(other), "another one has its own");
        assert!(!shares.is_full(other) && shares.is_full(one));
        shares.leave(one);
        assert!(shares.take(one) && !shares.take(one));
        (0..2).for_each(|_| shares.leave(one));
        shares.leave(other);
        assert!(shares.is_empty(), "nothing is kept of a peer that has none");
        assert_eq!((half(1), half(0), half(7)), (1, 1, 3));
    }
}
