//! Pace of copies of partitions between nodes: as fast as the acknowledgements of producers bear.
//!
//! A copy takes disks and bandwidth from producers. No fixed rate fits a disk of unknown speed under an unknown load, so each node looks
//! once a second at the p99 of its acknowledgements and keeps it below twice the p99 without copies. The rate rises by a
//! quarter and falls by half: it comes down from the highest to the lowest in six seconds, and back in twenty.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use mainstem_links::{CATCH_UP_RATE, Throttle};
use parking_lot::Mutex;

/// Bytes a second below which no disturbance brings copies: 1 TiB then takes 18 hours. At less, a replica would fall behind what is
/// produced meanwhile, and a second failure would meet it.
const RATE_MIN: u64 = 16 << 20;

/// Bytes a second above which no calm brings copies: about a link of 10 Gbit/s. From there it takes no more than six looks to the lowest.
const RATE_MAX: u64 = 1 << 30;

/// A copy begins in calm: neither limit is below or above the rate that it begins at.
const _: () = assert!(RATE_MIN <= CATCH_UP_RATE && CATCH_UP_RATE <= RATE_MAX);

/// Time without copies over which acknowledgements count as undisturbed.
const CALM_MS: u64 = 60_000;

/// The most looks that are kept, if they come more often than once a second.
const LOOKS_MAX: usize = 120;

/// A p99 that is higher by less than this counts as undisturbed: of two fast ones, one is easily twice the other.
const DIFFERENCE_MIN_US: u64 = 1_000;

/// Rate of copies in bytes per second, from 16 MiB to 1 GiB, which adapts to the acknowledgements of producers.
#[derive(Debug)]
pub(crate) struct Rate {
    bytes_per_second: u64,
    calm: Calm,
    was_copying: bool,
    looked_at_ms: Option<u64>,
}

/// The p99s of acknowledgements, in microseconds, of the last minute without copies, by the time on a clock that copies stop.
#[derive(Debug, Default)]
struct Calm {
    clock_ms: u64,
    looks: VecDeque<(u64, u64)>,
}

/// The disturbance of acknowledgements by copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disturbance {
    /// Copies may be faster.
    Low,
    /// Copies are fast enough, or too little is known.
    Bearable,
    /// Copies have to be slower.
    High,
}

impl Rate {
    /// Makes one that begins at [`CATCH_UP_RATE`].
    pub(crate) fn new() -> Rate {
        Rate {
            bytes_per_second: CATCH_UP_RATE,
            calm: Calm::default(),
            was_copying: false,
            looked_at_ms: None,
        }
    }

    /// Bytes a second.
    pub(crate) fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second
    }

    /// Adapts the rate. Called once a second with the p99 of the acknowledgements since the last call, in microseconds, or None if
    /// there were none. `is_copying` says that partitions were copied meanwhile, `now_ms` is of a monotonic clock.
    pub(crate) fn look(&mut self, p99_us: Option<u64>, is_copying: bool, now_ms: u64) {
        let passed_ms = self.looked_at_ms.map_or(0, |at| now_ms.saturating_sub(at));
        self.looked_at_ms = Some(now_ms);
        let was_copying = std::mem::replace(&mut self.was_copying, is_copying);
        match (is_copying, was_copying) {
            (true, _) => self.adapt(self.calm.disturbance(p99_us)),
            // A part of what was acknowledged met the end of the copy. The next copy meets another load: it begins no lower.
            (false, true) => self.bytes_per_second = self.bytes_per_second.max(CATCH_UP_RATE),
            (false, false) => self.calm.note(p99_us, passed_ms),
        }
    }

    fn adapt(&mut self, disturbance: Disturbance) {
        let rate = self.bytes_per_second;
        let adapted = match disturbance {
            Disturbance::Low => rate + rate / 4,
            Disturbance::Bearable => rate,
            Disturbance::High => rate / 2,
        };
        self.bytes_per_second = adapted.clamp(RATE_MIN, RATE_MAX);
    }
}

impl Calm {
    /// Keeps the p99 of a time without copies.
    fn note(&mut self, p99_us: Option<u64>, passed_ms: u64) {
        self.clock_ms = self.clock_ms.saturating_add(passed_ms);
        let now = self.clock_ms;
        self.looks.extend(p99_us.map(|p99_us| (now, p99_us)));
        while self.looks.front().is_some_and(|(at, _)| now - at >= CALM_MS) || self.looks.len() > LOOKS_MAX {
            self.looks.pop_front();
        }
    }

    /// The undisturbed p99 in microseconds, if anything was acknowledged. It is the median: a second in which the disk stalled, or in
    /// which so little was acknowledged that its p99 is a single one, would raise a mean, and the copies with it. Of two
    /// in the middle it is the lower one, which spares producers.
    fn p99_us(&self) -> Option<u64> {
        let mut sorted: Vec<u64> = self.looks.iter().map(|(_, p99_us)| *p99_us).collect();
        sorted.sort_unstable();
        sorted.get(sorted.len().saturating_sub(1) / 2).copied()
    }

    /// Compares the p99 of a time with copies.
    fn disturbance(&self, p99_us: Option<u64>) -> Disturbance {
        let Some(p99_us) = p99_us else { return Disturbance::Low };
        let Some(calm_us) = self.p99_us() else { return Disturbance::Bearable };
        let is_near = p99_us.saturating_sub(calm_us) < DIFFERENCE_MIN_US;
        if is_near || p99_us < calm_us.saturating_add(calm_us / 2) {
            Disturbance::Low
        } else if p99_us > calm_us.saturating_mul(2) {
            Disturbance::High
        } else {
            Disturbance::Bearable
        }
    }
}

/// Pace of the copies that a node sends and of those that it receives. Both have the same adaptive rate, each for itself.
#[derive(Debug)]
pub(crate) struct Pace {
    rate: Mutex<Rate>,
    sent: Side,
    received: Side,
}

/// Copies in one direction. Those that Kafka throttles do not keep the others waiting.
#[derive(Debug)]
struct Side {
    adaptive: Throttle,
    throttled: Throttle,
}

impl Side {
    fn new(now: Instant) -> Side {
        Side { adaptive: Throttle::new(now), throttled: Throttle::new(now) }
    }

    fn throttle(&self, is_throttled: bool) -> &Throttle {
        if is_throttled { &self.throttled } else { &self.adaptive }
    }
}

impl Pace {
    /// Makes one under which the first bytes may go at `now`, either way.
    pub(crate) fn new(now: Instant) -> Pace {
        Pace { rate: Mutex::new(Rate::new()), sent: Side::new(now), received: Side::new(now) }
    }

    /// Returns true if a source may send `bytes` at `now`, and counts them then. `throttled` is the rate of Kafka's throttles in bytes
    /// per second for the replica, if any counts: it overrides the adaptive rate.
    pub(crate) fn may_send(&self, now: Instant, bytes: u64, throttled: Option<u64>) -> bool {
        let throttle = self.sent.throttle(throttled.is_some());
        let may_send = throttle.pause(now).is_zero();
        if may_send {
            throttle.charge(now, bytes, self.bytes_per_second(throttled));
        }
        may_send
    }

    /// Counts `bytes` that came to a target: [`Pace::pause`] follows. `throttled` is as for [`Pace::may_send`].
    pub(crate) fn note_received(&self, now: Instant, bytes: u64, throttled: Option<u64>) {
        let throttle = self.received.throttle(throttled.is_some());
        throttle.charge(now, bytes, self.bytes_per_second(throttled));
    }

    /// Returns the pause from `now` before a target asks for more. It may become shorter: an operator may change a throttle.
    pub(crate) fn pause(&self, now: Instant, is_throttled: bool) -> Duration {
        self.received.throttle(is_throttled).pause(now)
    }

    /// Forgets what went at earlier rates of Kafka's throttles. Called when an operator has changed them: at a rate that was much too
    /// low, pauses are long.
    pub(crate) fn reset_throttled(&self, now: Instant) {
        self.sent.throttled.reset(now);
        self.received.throttled.reset(now);
    }

    /// Adapts the rate: see [`Rate::look`].
    pub(crate) fn look(&self, p99_us: Option<u64>, is_copying: bool, now_ms: u64) {
        self.rate.lock().look(p99_us, is_copying, now_ms);
    }

    fn bytes_per_second(&self, throttled: Option<u64>) -> u64 {
        throttled.unwrap_or_else(|| self.rate.lock().bytes_per_second())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn pause_behind(pace: &Pace, now: Instant, bytes: u64, throttled: Option<u64>) -> Duration {
        pace.note_received(now, bytes, throttled);
        pace.pause(now, throttled.is_some())
    }

    /// Looks at a rate once a second.
    struct Looks {
        rate: Rate,
        now_ms: u64,
    }

    impl Looks {
        fn new() -> Looks {
            Looks { rate: Rate::new(), now_ms: 5_000 }
        }

        fn look(&mut self, p99_us: Option<u64>, is_copying: bool) -> u64 {
            self.now_ms += 1_000;
            self.rate.look(p99_us, is_copying, self.now_ms);
            self.rate.bytes_per_second()
        }

        fn calm(&mut self, p99_us: impl IntoIterator<Item = Option<u64>>) -> &mut Looks {
            for p99_us in p99_us {
                self.look(p99_us, false);
            }
            self
        }

        /// Rates in MiB a second during a copy.
        fn copy(&mut self, p99_us: impl IntoIterator<Item = Option<u64>>) -> Vec<u64> {
            p99_us.into_iter().map(|p99_us| self.look(p99_us, true) / MIB).collect()
        }
    }

    #[test]
    fn the_rate_follows_the_disturbance_between_its_limits() {
        let mut looks = Looks::new();
        looks.calm([Some(10_000); 10]);
        let of = [14_999, 15_000, 20_000, 20_001, 1_000_000, 1_000_000, 14_000].map(Some);
        assert_eq!(looks.copy(of), [80, 80, 80, 40, 20, 16, 20]);
        assert_eq!(looks.copy([Some(10_000); 60]).last(), Some(&1024));
        let down = looks.copy([Some(u64::MAX); 7]);
        assert_eq!(down, [512, 256, 128, 64, 32, 16, 16]);
    }

    #[test]
    fn the_median_of_the_last_minute_is_undisturbed() {
        let mut looks = Looks::new();
        // An older load, then stalls in less than half of the looks.
        looks.calm([Some(900_000); 100]).calm([Some(10_000); 40]).calm([Some(900_000); 20]);
        assert_eq!(looks.rate.calm.p99_us(), Some(10_000));
        assert_eq!(looks.copy([Some(25_000)]), [32]);
        // Two in the middle.
        assert_eq!(Looks::new().calm([4, 1, 3, 2].map(Some)).rate.calm.p99_us(), Some(2));
    }

    #[test]
    fn a_copy_does_not_count_as_undisturbed_however_long_it_is() {
        let mut looks = Looks::new();
        looks.calm([Some(10_000); 60]);
        for _ in 0..10 {
            looks.copy([Some(18_000); 300]);
            // The second in which it ends is not calm, and one calm second is no minute.
            looks.calm([Some(800_000), Some(12_000)]);
            assert_eq!(looks.rate.calm.p99_us(), Some(10_000));
        }
        looks.calm([Some(12_000); 60]);
        assert_eq!(looks.rate.calm.p99_us(), Some(12_000));
    }

    #[test]
    fn without_acknowledgements_copies_are_faster_and_without_a_measure_they_stay() {
        let mut looks = Looks::new();
        assert_eq!(looks.copy([None, Some(5_000), Some(u64::MAX), None]), [80, 80, 80, 100]);
        let mut looks = Looks::new();
        looks.calm([Some(10_000); 3]).calm([None; 60]);
        assert_eq!(looks.copy([Some(900_000)]), [64], "nothing was acknowledged in the minute before");
        let mut looks = Looks::new();
        looks.calm([Some(10_000); 3]).calm([None; 50]);
        assert_eq!(looks.copy([Some(900_000)]), [32]);
    }

    #[test]
    fn differences_below_a_millisecond_are_none() {
        for calm_us in [0, 1, 100, 300] {
            let mut looks = Looks::new();
            looks.calm([Some(calm_us); 5]);
            assert_eq!(looks.copy([calm_us + 999, calm_us + 1_000].map(Some)), [80, 40], "{calm_us}");
        }
        let mut looks = Looks::new();
        looks.calm([Some(u64::MAX); 5]);
        assert_eq!(looks.copy([Some(u64::MAX), Some(0)]), [80, 100]);
    }

    #[test]
    fn the_next_copy_begins_at_the_rate_of_the_last_but_no_lower_than_the_first() {
        let mut looks = Looks::new();
        looks.calm([Some(10_000); 10]).copy([Some(10_000); 2]);
        assert_eq!(looks.calm([Some(10_000); 10]).copy([Some(17_000)]), [100]);
        looks.copy([Some(90_000); 4]);
        assert_eq!(looks.calm([Some(10_000)]).copy([Some(17_000)]), [64]);
    }

    #[test]
    fn a_clock_that_stands_still_or_leaps_does_no_harm() {
        let mut rate = Rate::new();
        (0..1_000).for_each(|_| rate.look(Some(10_000), false, 7));
        assert_eq!(rate.calm.looks.len(), LOOKS_MAX);
        rate.look(Some(10_000), false, 0);
        rate.look(Some(20_000), false, u64::MAX);
        assert_eq!(rate.calm.p99_us(), Some(20_000), "all others are older than a minute");
    }

    #[test]
    fn a_source_sends_no_more_than_the_rate() {
        let begin = Instant::now();
        let pace = Pace::new(begin);
        let sent = |pace: &Pace, from_ms: u64, throttled| {
            let at = |ms| begin + Duration::from_millis(ms);
            (from_ms..from_ms + 1_000).filter(|ms| pace.may_send(at(*ms), MIB, throttled)).count()
        };
        // 16 ms each.
        assert_eq!(sent(&pace, 0, None), 63);
        pace.look(None, true, 1_000);
        // 13 ms each, since nothing was acknowledged: 12.5 ms, at looks of a millisecond.
        assert_eq!(sent(&pace, 2_000, None), 77);
        assert_eq!(sent(&pace, 3_000, Some(2 * MIB)), 2);
    }

    #[test]
    fn a_target_pauses_for_what_came() {
        let begin = Instant::now();
        let pace = Pace::new(begin);
        let ms = Duration::from_millis;
        assert_eq!(pause_behind(&pace, begin, 64 * MIB, None), ms(1_000));
        assert_eq!(pause_behind(&pace, begin + ms(500), 32 * MIB, None), ms(1_000), "from two leaders");
        assert_eq!(pause_behind(&pace, begin + ms(9_000), MIB, None), Duration::from_micros(15_625));
        assert!(pace.may_send(begin, MIB, None), "this node as a source has a rate of its own");
    }

    #[test]
    fn throttles_of_kafka_override_the_rate_and_do_not_hold_up_other_copies() {
        let begin = Instant::now();
        let pace = Pace::new(begin);
        let ms = Duration::from_millis;
        assert_eq!(pause_behind(&pace, begin, MIB, Some(MIB / 2)), ms(2_000));
        assert_eq!(pause_behind(&pace, begin, 64 * MIB, None), ms(1_000));
        assert!(pace.may_send(begin, MIB, Some(1)) && !pace.may_send(begin + ms(60_000), MIB, Some(1)));
        assert!(pace.may_send(begin, MIB, None));
        // The operator has raised it.
        pace.reset_throttled(begin + ms(60_000));
        assert!(pace.may_send(begin + ms(60_000), MIB, Some(4 * MIB)));
        assert_eq!(pause_behind(&pace, begin + ms(60_000), MIB, Some(4 * MIB)), ms(250));
    }
}
