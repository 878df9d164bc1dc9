//! Decisions about a message before it is decoded. Pure: the time is a parameter.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use crate::attempt::{Failure, words_of};
use crate::fault::Fault;
use crate::letter::Stage;
use crate::message::Received;

/// The decision about a message.
pub(crate) enum Passage {
    Pass,
    /// It is left out.
    Drop,
    /// Its partition waits so long.
    WaitMs(u64),
    /// The filter has failed: the message is a dead letter.
    Refuse(Box<Failure>),
}

/// A rule of a route.
pub(crate) enum Filter {
    ExpireAfterMs(i64),
    MinimumAgeMs(i64),
    Own(Box<dyn Fn(&Received) -> bool + Send + Sync>),
}

impl Filter {
    pub(crate) fn expire_after(age: Duration) -> Filter {
        Filter::ExpireAfterMs(ms(age))
    }

    pub(crate) fn minimum_age(age: Duration) -> Filter {
        Filter::MinimumAgeMs(ms(age))
    }

    pub(crate) fn own(passes: impl Fn(&Received) -> bool + Send + Sync + 'static) -> Filter {
        Filter::Own(Box::new(passes))
    }

    /// `wall_ms`: milliseconds since 1970.
    pub(crate) fn passage(&self, message: &Received, wall_ms: i64) -> Passage {
        let age = wall_ms.saturating_sub(message.timestamp_ms());
        match self {
            Filter::ExpireAfterMs(max) if age > *max => Passage::Drop,
            Filter::MinimumAgeMs(min) if age < *min => {
                Passage::WaitMs(u64::try_from(min.saturating_sub(age)).unwrap_or(0))
            }
            Filter::Own(passes) => own_passage(passes, message),
            _ => Passage::Pass,
        }
    }
}

/// Asks a user's filter. A panic in it is a fault of the message.
fn own_passage(passes: &(dyn Fn(&Received) -> bool + Send + Sync), message: &Received) -> Passage {
    match std::panic::catch_unwind(AssertUnwindSafe(|| passes(message))) {
        Ok(true) => Passage::Pass,
        Ok(false) => Passage::Drop,
        Err(panic) => {
            let fault = Fault::poison(format_args!("a filter panicked: {}", words_of(&*panic)));
            Passage::Refuse(Box::new(Failure::new(Stage::Filter, &fault)))
        }
    }
}

fn ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Filter::ExpireAfterMs(ms) => write!(f, "expire after {ms} ms"),
            Filter::MinimumAgeMs(ms) => write!(f, "wait until {ms} ms old"),
            Filter::Own(_) => f.write_str("own filter"),
        }
    }
}

/// Lets a number of messages pass each second. A tenth of a second's may pass together.
#[derive(Debug)]
pub(crate) struct Throttle {
    per_second: u64,
    /// When the next message may pass, in nanoseconds, if none had been saved up.
    next_ns: u64,
}

/// The most that can be saved up, as time: what was not used for longer is lost.
const SAVED_NS: u64 = 100_000_000;
const SECOND_NS: u64 = 1_000_000_000;

impl Throttle {
    pub(crate) fn new(per_second: u32) -> Throttle {
        Throttle { per_second: u64::from(per_second.max(1)), next_ns: 0 }
    }

    /// Lets a message pass, or says how many milliseconds it has to wait.
    pub(crate) fn take(&mut self, now_ms: u64) -> Result<(), u64> {
        let now_ns = now_ms.saturating_mul(1_000_000);
        let next = self.next_ns.max(now_ns.saturating_sub(SAVED_NS));
        if next > now_ns {
            return Err((next - now_ns).div_ceil(1_000_000));
        }
        // By rounding up a rate of a million a second and more is kept to a thousandth.
        self.next_ns = next + SECOND_NS.div_ceil(self.per_second);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throttle_keeps_its_rate() {
        let mut throttle = Throttle::new(100);
        let mut passed = 0;
        for now_ms in 0..10_000 {
            passed += u32::from(throttle.take(now_ms).is_ok());
        }
        assert!((1_000..=1_011).contains(&passed), "{passed} in 10 s");
        assert_eq!(Throttle::new(100).take(0), Ok(()));
        let mut throttle = Throttle::new(1);
        assert_eq!((throttle.take(0), throttle.take(0)), (Ok(()), Err(1_000)));
    }

    #[test]
    fn a_throttle_keeps_rates_that_are_no_whole_number_of_microseconds() {
        for per_second in [700_000, 3_000_000] {
            let mut throttle = Throttle::new(per_second);
            let mut passed = 0;
            for now_ms in 0..1_000 {
                while throttle.take(now_ms).is_ok() {
                    passed += 1;
                }
            }
            // At most the messages of a tenth of a second, saved up, come on top.
            let most = u64::from(per_second) * 11 / 10;
            assert!((u64::from(per_second) * 99 / 100..=most).contains(&passed), "{passed} of {per_second}");
        }
    }
}
