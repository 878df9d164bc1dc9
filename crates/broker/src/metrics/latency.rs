//! How long requests take, by API: counts in buckets, from which quantiles of the last minutes are read.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mainstem_wire::ApiKey;
use parking_lot::Mutex;

use super::API_KEYS;

/// Four buckets to each power of two of microseconds, up to 2^32 of them, above an hour.
const BUCKETS: usize = 124;

/// Quantiles are those since a look that is between once and twice this old: Prometheus looks more often.
const WINDOW: Duration = Duration::from_secs(60);

/// As the common configuration of the JMX exporter has them.
const QUANTILES: [(&str, f64); 6] =
    [("0.50", 0.5), ("0.75", 0.75), ("0.95", 0.95), ("0.98", 0.98), ("0.99", 0.99), ("0.999", 0.999)];

type Counts = [u64; BUCKETS];

/// The times of all APIs. An API costs 1 KiB from its first request on.
pub(crate) struct Latencies {
    by_api: [OnceLock<Box<[AtomicU64; BUCKETS]>>; API_KEYS],
    looks: Mutex<Looks>,
}

/// What was counted when somebody looked.
struct Looks {
    at: Instant,
    last: HashMap<u16, Box<Counts>>,
    before: HashMap<u16, Box<Counts>>,
}

/// Quantiles in milliseconds, and how many requests there were since the start.
pub(crate) struct Summary {
    pub(crate) api: ApiKey,
    pub(crate) count: u64,
    pub(crate) quantiles_ms: [(&'static str, f64); 6],
}

impl Default for Latencies {
    fn default() -> Self {
        let looks = Looks { at: Instant::now(), last: HashMap::new(), before: HashMap::new() };
        Latencies { by_api: std::array::from_fn(|_| OnceLock::new()), looks: Mutex::new(looks) }
    }
}

impl Latencies {
    /// A request took so long.
    pub(crate) fn record(&self, api: ApiKey, took: Duration) {
        let buckets =
            self.by_api[api as usize].get_or_init(|| Box::new([const { AtomicU64::new(0) }; BUCKETS]));
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        buckets[bucket_of(micros)].fetch_add(1, Ordering::Relaxed);
    }

    /// Of every API that was asked for.
    pub(crate) fn summaries(&self, apis: impl Iterator<Item = ApiKey>) -> Vec<Summary> {
        let mut looks = self.looks.lock();
        if looks.at.elapsed() >= WINDOW {
            looks.at = Instant::now();
            looks.before = std::mem::take(&mut looks.last);
            looks.last = self.counts();
        }
        let summary = |api: ApiKey| {
            let now = self.counts_of(api)?;
            let recent = match looks.before.get(&(api as u16)) {
                Some(before) => std::array::from_fn(|at| now[at] - before[at]),
                None => *now,
            };
            let quantiles_ms = QUANTILES.map(|(name, quantile)| (name, quantile_ms(&recent, quantile)));
            Some(Summary { api, count: now.iter().sum(), quantiles_ms })
        };
        apis.filter_map(summary).collect()
    }

    fn counts(&self) -> HashMap<u16, Box<Counts>> {
        let apis = ApiKey::ALL.iter().filter_map(|api| Some((*api as u16, self.counts_of(*api)?)));
        apis.collect()
    }

    fn counts_of(&self, api: ApiKey) -> Option<Box<Counts>> {
        let buckets = self.by_api[api as usize].get()?;
        Some(Box::new(std::array::from_fn(|at| buckets[at].load(Ordering::Relaxed))))
    }
}

/// Below four microseconds each has its bucket.
fn bucket_of(micros: u64) -> usize {
    if micros < 4 {
        return micros as usize;
    }
    let exponent = 63 - micros.leading_zeros() as usize;
    let quarter = (micros >> (exponent - 2)) as usize & 3;
    ((exponent - 1) * 4 + quarter).min(BUCKETS - 1)
}

/// The first microsecond that is above the bucket.
fn bound_of(bucket: usize) -> u64 {
    if bucket < 4 {
        return bucket as u64 + 1;
    }
    let (exponent, quarter) = (bucket / 4 + 1, bucket as u64 % 4);
    (1 << exponent) + ((quarter + 1) << (exponent - 2))
}

/// NaN where there was no request: Prometheus takes it for no value.
fn quantile_ms(counts: &Counts, quantile: f64) -> f64 {
    let total: u64 = counts.iter().sum();
    let wanted = (total as f64 * quantile).ceil() as u64;
    let mut seen = 0;
    for (bucket, count) in counts.iter().enumerate() {
        seen += count;
        if seen >= wanted && seen > 0 {
            return bound_of(bucket) as f64 / 1000.0;
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
            latencies.record(ApiKey::Fetch, Duration::from_micros(micros));
        }
        let all = latencies.summaries([ApiKey::Produce, ApiKey::Fetch].into_iter());
        assert_eq!((all.len(), all[0].api, all[0].count), (1, ApiKey::Fetch, 1000), "nobody produced");
        for (name, value) in all[0].quantiles_ms {
            let exact = name.parse::<f64>().expect("a number");
            assert!((exact..=exact * 1.26).contains(&value), "{name}: {value}");
        }
    }

    #[test]
    fn without_requests_there_is_no_quantile() {
        assert!(quantile_ms(&[0; BUCKETS], 0.5).is_nan());
    }
}
