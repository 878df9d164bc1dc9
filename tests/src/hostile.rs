//! Helpers for hostile clients: a broker to attack, raw connections, and a probe that measures what neighbours notice.

pub mod batches;
pub mod client;
pub mod probe;
pub mod victim;

use std::time::{Duration, Instant};

/// Returns true if `TEST_SOAK_SECONDS` is above its default: tests use full sizes instead of those of a short run.
pub fn is_long() -> bool {
    let seconds = std::env::var("TEST_SOAK_SECONDS").ok().and_then(|value| value.parse::<u64>().ok());
    seconds.is_some_and(|seconds| seconds > 10)
}

/// Waits until `condition` holds.
///
/// # Panics
/// When it does not hold within `limit`.
pub fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
