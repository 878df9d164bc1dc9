//! Waiting for a condition, with a deadline.

use std::time::{Duration, Instant};

/// The longest wait of a test, unless it is about time: far more than a healthy broker needs on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// The interval at which a condition is checked.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Calls `look` until there is a value, and returns it.
///
/// # Panics
/// When there is none after [`TIMEOUT`]; `what` names the condition.
pub fn eventually<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within(TIMEOUT, what, look)
}

/// The same with a time of its own.
///
/// # Panics
/// When there is no value in time.
pub fn within<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    explained(limit, || look().ok_or_else(|| format!("waited {limit:?} for: {what}")))
}

/// The same with the reason for which there is no value.
///
/// # Panics
/// When there is no value in time, with the last reason.
pub fn explained<T>(limit: Duration, mut look: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        match look() {
            Ok(found) => return found,
            Err(why) => assert!(Instant::now() < deadline, "{why}"),
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}
