//! Counters of a route.

use std::sync::atomic::{AtomicU64, Ordering};

/// What has become of messages of a route, as counters.
#[derive(Debug, Default)]
pub(crate) struct RouteMetrics {
    pub(crate) handled: Counter,
    pub(crate) failed: Counter,
    pub(crate) filtered: Counter,
    pub(crate) retries: Counter,
    pub(crate) letters: Counter,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
