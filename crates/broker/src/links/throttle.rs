//! How fast replicas catch up that were away: what they miss is read from disks and goes over the network that others need.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Bytes a second that a node sends to all replicas together that catch up, where partitions can do without them.
pub(crate) const CATCH_UP_RATE: u64 = 64 << 20;

/// Spaces appends so that they have a rate. There is no burst: each is followed by the pause that it costs.
#[derive(Debug)]
pub(super) struct Throttle {
    bytes_per_second: u64,
    free_at: Mutex<Instant>,
}

impl Throttle {
    /// At most so many bytes a second, which are not 0.
    pub(super) fn new(bytes_per_second: u64) -> Throttle {
        Throttle { bytes_per_second, free_at: Mutex::new(Instant::now()) }
    }

    /// How long nothing may be sent.
    pub(super) fn pause(&self, now: Instant) -> Duration {
        self.free_at.lock().saturating_duration_since(now)
    }

    /// So many bytes are sent.
    pub(super) fn charge(&self, now: Instant, bytes: u64) {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let mut free_at = self.free_at.lock();
        *free_at = now.max(*free_at) + cost;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_costs_its_time_and_rest_earns_nothing() {
        let throttle = Throttle::new(1_000);
        let begin = Instant::now();
        let at = |ms: u64| begin + Duration::from_millis(ms);
        assert_eq!(throttle.pause(at(0)), Duration::ZERO);
        throttle.charge(at(0), 500);
        // Another writer that has looked at the same time.
        throttle.charge(at(0), 100);
        assert_eq!(throttle.pause(at(200)), Duration::from_millis(400));
        assert_eq!(throttle.pause(at(5_000)), Duration::ZERO);
        throttle.charge(at(5_000), 10);
        assert_eq!(throttle.pause(at(5_000)), Duration::from_millis(10));
    }
}
