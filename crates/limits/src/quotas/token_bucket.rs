//! A token bucket, as Kafka's `TokenBucket` (KIP-599). It is refilled at the limit, holds the tokens of all windows, and may
//! be overdrawn once.

use mainstem_config::Windows;

/// The tokens that are left.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    tokens: f64,
    refilled_ms: u64,
}

impl TokenBucket {
    /// A full one.
    pub fn full(windows: Windows, limit: f64, now_ms: u64) -> TokenBucket {
        TokenBucket { tokens: burst(windows, limit), refilled_ms: now_ms }
    }

    /// The tokens that are left now; below zero it is overdrawn.
    pub fn tokens(&mut self, windows: Windows, limit: f64, now_ms: u64) -> f64 {
        let seconds = now_ms.saturating_sub(self.refilled_ms) as f64 / 1000.0;
        self.tokens = burst(windows, limit).min(self.tokens + limit * seconds);
        self.refilled_ms = self.refilled_ms.max(now_ms);
        self.tokens
    }

    /// Takes tokens, even more than are left.
    pub fn take(&mut self, windows: Windows, limit: f64, permits: f64, now_ms: u64) {
        let left = self.tokens(windows, limit, now_ms) - permits;
        self.tokens = left.min(burst(windows, limit));
    }

    /// Milliseconds until it is not overdrawn any more.
    pub fn throttle_ms(&mut self, windows: Windows, limit: f64, now_ms: u64) -> u64 {
        let tokens = self.tokens(windows, limit, now_ms);
        if tokens >= 0.0 { 0 } else { (-tokens / limit * 1000.0 + 0.5).floor() as u64 }
    }
}

fn burst(windows: Windows, limit: f64) -> f64 {
    windows.span_ms() as f64 / 1000.0 * limit
}
