//! The integration tests of this crate, one module for each subject.
#![allow(clippy::unwrap_used, reason = "a test that fails says so by a panic")]

mod back;
mod fuzz;
mod processes;
mod queue;
mod serving;
mod tasks;

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// The longest wait of a test for something that has to come.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A thread of this process as the system knows it.
#[derive(Debug, Clone, Copy)]
struct Tid(u32);

impl Tid {
    /// The calling thread.
    fn own() -> Tid {
        let link = fs::read_link("/proc/thread-self").unwrap();
        Tid(link.file_name().unwrap().to_str().unwrap().parse().unwrap())
    }

    /// Waits until the thread sleeps.
    fn until_asleep(self) {
        let deadline = Instant::now() + TIMEOUT;
        let stat = || fs::read_to_string(format!("/proc/self/task/{}/stat", self.0)).unwrap();
        // Its state is behind its name, which is in parentheses.
        while !stat().rsplit(')').next().unwrap().starts_with(" S") {
            assert!(Instant::now() < deadline, "the thread does not sleep");
            thread::yield_now();
        }
    }
}
