//! What hostile clients need: a broker to attack, raw connections, and a probe that notices when neighbours suffer.

pub mod batches;
pub mod client;
pub mod probe;
pub mod victim;

use std::time::{Duration, Instant};

/// Whether depth is asked for (`TEST_SOAK_SECONDS` above its default): full sizes instead of those that fit a short run.
pub fn is_long() -> bool {
    let seconds = std::env::var("TEST_SOAK_SECONDS").ok().and_then(|value| value.parse::<u64>().ok());
    seconds.is_some_and(|seconds| seconds > 10)
}

/// Waits until `condition` holds.
///
/// # Panics
/// When it does not within `limit`.
pub fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
