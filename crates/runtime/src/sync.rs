//! Waits of threads: for a condition, a message, a time, the end of another thread. In a broker they are those of the system; on a thread
//! of a simulation's schedule each gives the turn to another one.

mod channel;
mod condvar;
mod thread;

use std::time::{Duration, Instant};

use crate::clock::machine_now;

pub use channel::{Receiver, RecvError, RecvTimeoutError, SendError, Sender, TryRecvError, channel};
pub use condvar::Condvar;
pub use thread::Thread;

/// Blocks the thread for this time.
#[allow(clippy::disallowed_methods, reason = "the one place that sleeps")]
pub fn sleep(time: Duration) {
    #[cfg(feature = "sim")]
    if let Some(turn) = crate::schedule::current() {
        let until = turn.clock().instant() + time;
        while !turn.wait(Some(until), drop) {}
        return;
    }
    std::thread::sleep(time);
}

/// Lets a random time of at most `most` pass between two steps, as on a busy machine, on a thread of a simulation. In a broker no time
/// passes.
pub fn pass_time(most: Duration) {
    #[cfg(feature = "sim")]
    if let Some(turn) = crate::schedule::current() {
        let share = f64::from(crate::random::number()) / f64::from(u32::MAX);
        let until = turn.clock().instant() + most.mul_f64(share);
        while !turn.wait(Some(until), drop) {}
    }
    #[cfg(not(feature = "sim"))]
    let _ = most;
}

/// The time by which this thread waits.
fn now() -> Instant {
    #[cfg(feature = "sim")]
    if let Some(turn) = crate::schedule::current() {
        return turn.clock().instant();
    }
    machine_now()
}

/// Returns true on a thread whose waits are those of a simulation. On other threads a wait does not pass the turn.
pub fn is_simulated() -> bool {
    #[cfg(feature = "sim")]
    return crate::schedule::group().is_some();
    #[cfg(not(feature = "sim"))]
    false
}
