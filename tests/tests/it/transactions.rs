//! Transactions over the raw protocol: their state after `kill -9`, and refusals of hostile or late clients.
//!
//! `TEST_KILLS` is the number of rounds, `TEST_SEED` repeats a run's choices (not its timing).

mod expiry;
mod hanging;
mod held_up;
mod kills;
mod late;
mod levels;
mod members;
mod model;
mod producer;
mod reader;
mod simulated;

use std::time::{Duration, Instant};

/// Waits until there is a value.
fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within 60 s: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
