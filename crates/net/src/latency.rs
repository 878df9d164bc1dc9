//! Sizes and times of requests, by API: counts in buckets, from which quantiles of the last minutes are read.
//!
//! A request that is answered by the turn that reads it costs one count of its size and one of its time, which is all
//! local. The other parts are counted only for requests that have them. The others follow from the totals.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mainstem_wire::ApiKey;
use parking_lot::Mutex;

use mainstem_runtime::clock::machine_now;

/// Keys that requests are counted by: all of the protocol's, 0 to 92.
pub(crate) const API_KEYS: usize = 93;

/// Four buckets to each power of two of microseconds (or bytes), up to 2^32 of them, above an hour.
const BUCKETS: usize = 124;

/// Quantiles are those since a look that is between once and twice this old: Prometheus looks more often.
const WINDOW: Duration = Duration::from_secs(60);

/// The quantiles of the JMX exporter's common configuration.
const QUANTILES: [(&str, f64); 6] =
    [("0.50", 0.5), ("0.75", 0.75), ("0.95", 0.95), ("0.98", 0.98), ("0.99", 0.99), ("0.999", 0.999)];

type Counts = [u64; BUCKETS];

/// Counts of values, 1 KiB from the first one on.
#[derive(Default)]
struct Histogram(OnceLock<Box<[AtomicU64; BUCKETS]>>);

impl Histogram {
    fn record(&self, value: u64) {
        let buckets = self.0.get_or_init(|| Box::new([const { AtomicU64::new(0) }; BUCKETS]));
        buckets[bucket_of(value)].fetch_add(1, Ordering::Relaxed);
    }

    fn record_time(&self, time: Duration) {
        self.record(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    fn counts(&self) -> Counts {
        let counts = |buckets: &[AtomicU64; BUCKETS]| {
            std::array::from_fn(|bucket| buckets[bucket].load(Ordering::Relaxed))
        };
        self.0.get().map_or([0; BUCKETS], |buckets| counts(buckets))
    }

    fn total(&self) -> u64 {
        self.counts().iter().sum()
    }
}

/// Counts of the requests of one API.
#[derive(Default)]
struct Requests {
    bytes: Histogram,
    /// Time from the last byte to the answer, if the turn that read the request also answered it.
    inline: Histogram,
    /// The same if the answer came later.
    later: Histogram,
    /// For requests that are answered later: time that threads worked on them.
    later_local: Histogram,
    /// For requests that are answered later: the rest of the time, in which they waited.
    later_remote: Histogram,
    /// Time for which clients were throttled.
    throttled: Histogram,
}

/// A part of what is known of requests, with Kafka's name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// RequestBytes.
    Bytes,
    /// TotalTimeMs.
    Total,
    /// LocalTimeMs.
    Local,
    /// RemoteTimeMs.
    Remote,
    /// ThrottleTimeMs.
    Throttle,
}

impl Part {
    /// All of them.
    pub const ALL: [Part; 5] = [Part::Bytes, Part::Total, Part::Local, Part::Remote, Part::Throttle];

    /// The divisor for values in buckets: they have times in microseconds, and summaries in milliseconds.
    fn unit(self) -> f64 {
        if self == Part::Bytes { 1.0 } else { 1000.0 }
    }
}

impl Requests {
    fn counts(&self, part: Part) -> Counts {
        match part {
            Part::Bytes => self.bytes.counts(),
            Part::Total => sum(self.inline.counts(), self.later.counts()),
            Part::Local => sum(self.inline.counts(), self.later_local.counts()),
            Part::Remote => with_zeros(self.later_remote.counts(), self.inline.total()),
            Part::Throttle => {
                let throttled = self.throttled.counts();
                let answered = self.inline.total() + self.later.total();
                with_zeros(throttled, answered.saturating_sub(throttled.iter().sum()))
            }
        }
    }
}

fn sum(a: Counts, b: Counts) -> Counts {
    std::array::from_fn(|bucket| a[bucket] + b[bucket])
}

/// Counts since those of before. What follows from two counts may be one behind for an instant.
fn difference(now: &Counts, before: &Counts) -> Counts {
    std::array::from_fn(|bucket| now[bucket].saturating_sub(before[bucket]))
}

/// Adds this many requests without time to the counts.
fn with_zeros(mut counts: Counts, zeros: u64) -> Counts {
    counts[0] += zeros;
    counts
}

/// The requests of all APIs.
pub struct Latencies {
    by_api: [Requests; API_KEYS],
    looks: Mutex<Looks>,
}

/// The counts at the last look.
struct Looks {
    at: Instant,
    last: HashMap<(u16, Part), Box<Counts>>,
    before: HashMap<(u16, Part), Box<Counts>>,
}

/// The counts at the last look of one reader, for one part of one API. By default nothing was looked at yet.
#[derive(Default)]
pub struct Since(Option<Box<Counts>>);

/// Quantiles in milliseconds (or bytes), and how many requests there were since the start.
pub struct Summary {
    /// The API.
    pub api: ApiKey,
    /// Requests since the start.
    pub count: u64,
    /// Each with its share.
    pub quantiles: [(&'static str, f64); 6],
}

impl Default for Latencies {
    fn default() -> Self {
        let looks = Looks { at: machine_now(), last: HashMap::new(), before: HashMap::new() };
        Latencies { by_api: std::array::from_fn(|_| Requests::default()), looks: Mutex::new(looks) }
    }
}

impl Latencies {
    /// Counts a request of this many bytes.
    pub fn received(&self, api: ApiKey, bytes: usize) {
        self.by_api[api as usize].bytes.record(bytes as u64);
    }

    /// Requests of an API so far.
    pub fn received_of(&self, api: ApiKey) -> u64 {
        self.by_api[api as usize].bytes.total()
    }

    /// Counts a request that was answered after `took` by the turn that read it.
    pub fn answered_at_once(&self, api: ApiKey, took: Duration) {
        self.by_api[api as usize].inline.record_time(took);
    }

    /// Counts a request that was answered after `took`, of which threads worked on it for `local`.
    pub fn answered_later(&self, api: ApiKey, took: Duration, local: Duration) {
        let requests = &self.by_api[api as usize];
        requests.later.record_time(took);
        requests.later_local.record_time(local.min(took));
        requests.later_remote.record_time(took.saturating_sub(local));
    }

    /// Counts the time for which a request's client is throttled.
    pub fn throttled(&self, api: ApiKey, time: Duration) {
        self.by_api[api as usize].throttled.record_time(time);
    }

    /// Summarizes each of the APIs that has had requests.
    pub fn summaries(&self, part: Part, apis: impl Iterator<Item = ApiKey>) -> Vec<Summary> {
        let mut looks = self.looks.lock();
        let now = machine_now();
        if now.duration_since(looks.at) >= WINDOW {
            looks.at = now;
            looks.before = std::mem::take(&mut looks.last);
            looks.last = self.counts();
        }
        let summary = |api: ApiKey| {
            let now = self.by_api[api as usize].counts(part);
            let count = now.iter().sum();
            let recent: Counts = match looks.before.get(&(api as u16, part)) {
                Some(before) => difference(&now, before),
                None => now,
            };
            let quantiles = QUANTILES.map(|(name, rank)| (name, quantile(&recent, rank) / part.unit()));
            (count > 0).then_some(Summary { api, count, quantiles })
        };
        apis.filter_map(summary).collect()
    }

    /// A quantile (from 0 to 1) of what was recorded since the last look of a reader, in milliseconds (or bytes). It is the upper
    /// bound of a bucket, so up to a quarter too high. None if nothing was recorded since.
    pub fn quantile_since(&self, since: &mut Since, api: ApiKey, part: Part, rank: f64) -> Option<f64> {
        let now = self.by_api[api as usize].counts(part);
        let recent = since.0.as_deref().map_or(now, |before| difference(&now, before));
        since.0 = Some(Box::new(now));
        let value = quantile(&recent, rank) / part.unit();
        (!value.is_nan()).then_some(value)
    }

    fn counts(&self) -> HashMap<(u16, Part), Box<Counts>> {
        let parts = ApiKey::ALL.iter().flat_map(|api| Part::ALL.map(|part| (*api, part)));
        let counted = parts.map(|(api, part)| ((api as u16, part), self.by_api[api as usize].counts(part)));
        let some = counted.filter(|(_, counts)| counts.iter().any(|count| *count > 0));
        some.map(|(key, counts)| (key, Box::new(counts))).collect()
    }
}

/// Below four each value has its bucket.
fn bucket_of(value: u64) -> usize {
    if value < 4 {
        return value as usize;
    }
    let exponent = 63 - value.leading_zeros() as usize;
    let quarter = (value >> (exponent - 2)) as usize & 3;
    ((exponent - 1) * 4 + quarter).min(BUCKETS - 1)
}

/// The first value that is above the bucket.
fn bound_of(bucket: usize) -> u64 {
    if bucket < 4 {
        return bucket as u64 + 1;
    }
    let (exponent, quarter) = (bucket / 4 + 1, bucket as u64 % 4);
    (1 << exponent) + ((quarter + 1) << (exponent - 2))
}

/// NaN where there was no request: Prometheus takes it for no value.
fn quantile(counts: &Counts, quantile: f64) -> f64 {
    let total: u64 = counts.iter().sum();
    let wanted = (total as f64 * quantile).ceil() as u64;
    let mut seen = 0;
    for (bucket, count) in counts.iter().enumerate() {
        seen += count;
        if seen >= wanted && seen > 0 {
            return bound_of(bucket) as f64;
        }
    }
    f64::NAN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_one_another_and_are_at_most_a_quarter_wide() {
        let mut last = 0;
        for micros in 0..100_000u64 {
            let bucket = bucket_of(micros);
            assert!(bucket == last || bucket == last + 1, "{micros}");
            assert!(micros < bound_of(bucket), "{micros} in {bucket}");
            assert!(bound_of(bucket) as f64 <= (micros as f64 + 1.0) * 1.25, "{micros} in {bucket}");
            last = bucket;
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_those_of_what_was_recorded() {
        let latencies = Latencies::default();
        for micros in 1..=1000u64 {
            latencies.answered_at_once(ApiKey::Fetch, Duration::from_micros(micros));
        }
        let all = latencies.summaries(Part::Total, [ApiKey::Produce, ApiKey::Fetch].into_iter());
        assert_eq!((all.len(), all[0].api, all[0].count), (1, ApiKey::Fetch, 1000), "no client produced");
        for (name, value) in all[0].quantiles {
            let exact = name.parse::<f64>().expect("a number");
            assert!((exact..=exact * 1.26).contains(&value), "{name}: {value}");
        }
    }

    #[test]
    fn a_reader_sees_the_quantile_of_what_was_recorded_since_its_last_look() {
        let latencies = Latencies::default();
        let (mut since, mut other) = (Since::default(), Since::default());
        let p99 = |since: &mut Since| latencies.quantile_since(since, ApiKey::Produce, Part::Total, 0.99);
        let produced = |count: u64, ms: u64| {
            (0..count).for_each(|_| latencies.answered_at_once(ApiKey::Produce, Duration::from_millis(ms)));
        };
        let about =
            |found: Option<f64>, ms: f64| found.is_some_and(|found| (ms..=ms * 1.25).contains(&found));
        assert_eq!(p99(&mut since), None, "nothing was recorded");
        produced(1_000, 5);
        assert!(about(p99(&mut since), 5.0));
        assert_eq!(p99(&mut since), None, "nothing was recorded since");
        produced(90, 2);
        latencies.answered_later(ApiKey::Produce, Duration::from_millis(40), Duration::ZERO);
        latencies.answered_at_once(ApiKey::Fetch, Duration::from_secs(1));
        assert!(about(p99(&mut since), 40.0), "one of 91 is above a hundredth, and a Fetch is none");
        produced(1_000, 2);
        assert!(about(p99(&mut since), 2.0));
        assert!(about(p99(&mut other), 5.0), "another reader has its own looks");
    }

    #[test]
    fn the_time_of_a_request_is_local_or_remote() {
        let latencies = Latencies::default();
        let ms = Duration::from_millis;
        for _ in 0..3 {
            latencies.received(ApiKey::Fetch, 100);
        }
        latencies.answered_at_once(ApiKey::Fetch, ms(1));
        latencies.answered_later(ApiKey::Fetch, ms(80), ms(10));
        latencies.answered_later(ApiKey::Fetch, ms(90), ms(20));
        latencies.throttled(ApiKey::Fetch, ms(500));
        let median_and_most = |part| {
            let all = latencies.summaries(part, std::iter::once(ApiKey::Fetch));
            assert_eq!(all[0].count, 3, "{part:?} is known of all requests");
            [all[0].quantiles[0].1, all[0].quantiles[5].1]
        };
        let about = |found: [f64; 2], exact: [f64; 2]| {
            let is_near = |(found, exact): (f64, f64)| (exact..=exact * 1.26 + 0.002).contains(&found);
            found.into_iter().zip(exact).all(is_near)
        };
        let expected = [
            (Part::Bytes, [100.0, 100.0]),
            (Part::Total, [80.0, 90.0]),
            (Part::Local, [10.0, 20.0]),
            (Part::Remote, [70.0, 70.0]),
            (Part::Throttle, [0.0, 500.0]),
        ];
        for (part, exact) in expected {
            let found = median_and_most(part);
            assert!(about(found, exact), "{part:?}: {found:?} and not {exact:?}");
        }
    }

    #[test]
    fn without_requests_there_is_no_quantile() {
        assert!(quantile(&[0; BUCKETS], 0.5).is_nan());
    }
}
