//! Rate at which replicas that were away catch up: what they lack is read from disks and takes bandwidth from others.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Bytes a second that a node sends to all replicas together that catch up, where partitions can do without them.
pub const CATCH_UP_RATE: u64 = 64 << 20;

/// One send keeps others waiting for no longer, however low the rate is.
const COST_MAX: Duration = Duration::from_secs(24 * 3_600);

/// Rates that an operator has set, in bytes per second, for the replicas that their topics name as throttled.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Rates {
    /// `leader.replication.throttled.rate` of this node.
    pub leader: Option<u64>,
    /// `follower.replication.throttled.rate` of the others.
    pub followers: BTreeMap<i32, u64>,
}

/// The rates that count for a replica which its topic may name as throttled.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Throttled {
    /// That of this node, as the leader's.
    pub is_led: bool,
    /// That of the node which follows.
    pub follower: Option<i32>,
}

impl Rates {
    /// The lower one of those that count, if any does.
    pub(super) fn of(&self, throttled: Throttled) -> Option<u64> {
        let led = self.leader.filter(|_| throttled.is_led);
        let following = throttled.follower.and_then(|node| self.followers.get(&node).copied());
        led.into_iter().chain(following).min()
    }
}

/// Spacing of sends that gives them a rate. There is no burst: each send is followed by the pause that it costs.
///
/// Senders that look at the same time may all send: each pays, and the next pause is that much longer.
#[derive(Debug)]
pub struct Throttle {
    free_at: Mutex<Instant>,
}

impl Throttle {
    /// Makes one under which the first send may go at `now`.
    pub fn new(now: Instant) -> Throttle {
        Throttle { free_at: Mutex::new(now) }
    }

    /// Forgets what was sent at earlier rates: the next send may go at `now`.
    pub fn reset(&self, now: Instant) {
        *self.free_at.lock() = now;
    }

    /// Time from `now` until the next send may go: zero if it may go now.
    pub fn pause(&self, now: Instant) -> Duration {
        self.free_at.lock().saturating_duration_since(now)
    }

    /// Counts bytes that are sent, at a rate of `bytes_per_second` (0 counts as 1). They cost a day at most.
    pub fn charge(&self, now: Instant, bytes: u64, bytes_per_second: u64) {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second.max(1));
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(COST_MAX);
        let mut free_at = self.free_at.lock();
        *free_at = now.max(*free_at) + cost;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_costs_its_time_and_rest_earns_nothing() {
        let begin = Instant::now();
        let throttle = Throttle::new(begin);
        let at = |ms: u64| begin + Duration::from_millis(ms);
        assert_eq!(throttle.pause(at(0)), Duration::ZERO);
        throttle.charge(at(0), 500, 1_000);
        // Another writer that has looked at the same time.
        throttle.charge(at(0), 100, 1_000);
        assert_eq!(throttle.pause(at(200)), Duration::from_millis(400));
        assert_eq!(throttle.pause(at(5_000)), Duration::ZERO);
        throttle.charge(at(5_000), 10, 1_000);
        assert_eq!(throttle.pause(at(5_000)), Duration::from_millis(10));
        // Another rate is not waited for.
        throttle.charge(at(5_010), u64::MAX, 0);
        assert_eq!(throttle.pause(at(5_010)), COST_MAX);
        throttle.reset(at(5_020));
        assert_eq!(throttle.pause(at(5_020)), Duration::ZERO);
    }

    #[test]
    fn the_lower_rate_counts_of_those_that_name_a_replica() {
        let rates = Rates { leader: Some(10), followers: BTreeMap::from([(2, 5), (3, 20)]) };
        let of = |is_led, follower| rates.of(Throttled { is_led, follower });
        assert_eq!((of(false, None), of(true, None)), (None, Some(10)));
        assert_eq!((of(true, Some(2)), of(true, Some(3))), (Some(5), Some(10)));
        assert_eq!((of(false, Some(3)), of(false, Some(4))), (Some(20), None));
    }
}
