//! The two clocks, read by the driver and handed to the state machines.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub(crate) use mainstem_coordination::time::Now;

/// Where the process reads the time. Time-outs count monotonic time, records carry wall time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    /// Monotonic time starts now.
    pub(crate) fn start() -> Self {
        Clock { start: Instant::now() }
    }

    /// Both readings.
    pub(crate) fn now(&self) -> Now {
        Now { mono_ms: self.mono_ms(), wall_ms: wall_ms() }
    }

    /// The monotonic reading alone, for what happens often and needs no more.
    pub(crate) fn mono_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// The instant of a monotonic reading.
    pub(crate) fn instant(&self, mono_ms: u64) -> Instant {
        self.start + std::time::Duration::from_millis(mono_ms)
    }
}

/// Milliseconds since the epoch; 0 before it.
pub(crate) fn wall_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}
