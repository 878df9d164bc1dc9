//! Waiting for a condition, with a deadline.

use std::time::{Duration, Instant};

/// What a test waits for at most, unless it is about time: far more than a healthy broker needs on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How often a condition is looked at that is not announced.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Looks until there is a value, and gives it.
///
/// # Panics
/// When there is none after [`PATIENCE`]; `what` says what was waited for.
pub fn eventually<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within(PATIENCE, what, look)
}

/// The same with a time of its own.
///
/// # Panics
/// When there is no value in time.
pub fn within<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {limit:?} for: {what}");
        std::thread::sleep(LOOK_AGAIN);
    }
}
