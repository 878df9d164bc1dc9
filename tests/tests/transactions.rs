//! Transactions over the raw protocol: what `kill -9` leaves of them, and what a hostile or late client may not do.
//!
//! `TEST_KILLS` is the number of rounds, `TEST_SEED` repeats a run's choices (not its timing).

#[path = "transactions/expiry.rs"]
mod expiry;
#[path = "transactions/hanging.rs"]
mod hanging;
#[path = "transactions/held_up.rs"]
mod held_up;
#[path = "transactions/kills.rs"]
mod kills;
#[path = "transactions/late.rs"]
mod late;
#[path = "transactions/levels.rs"]
mod levels;
#[path = "transactions/machine.rs"]
mod machine;
#[path = "transactions/members.rs"]
mod members;
#[path = "transactions/model.rs"]
mod model;
#[path = "transactions/producer.rs"]
mod producer;
#[path = "transactions/reader.rs"]
mod reader;
#[path = "transactions/simulated.rs"]
mod simulated;

use std::time::{Duration, Instant};

/// Waits until something is there.
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
