//! The sampled windows of quotas (`quota.window.*`), typed.

/// The windows over which a rate is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Windows that are remembered, at least 1 (`quota.window.num`).
    pub count: u32,
    /// Length of one in milliseconds, at least 1 (`quota.window.size.seconds`).
    pub size_ms: u64,
}

impl Windows {
    /// Milliseconds that all windows cover: older samples do not count.
    pub fn span_ms(&self) -> u64 {
        u64::from(self.count).saturating_mul(self.size_ms)
    }

    /// Seconds of the windows before the current one, which a burst may fill at the full rate.
    pub fn full_seconds(&self) -> f64 {
        f64::from(self.count.saturating_sub(1)) * self.size_ms as f64 / 1000.0
    }
}
