//! A rate over sampled windows, as in Kafka's `Rate` over a `SampledStat`.

use mainstem_config::Windows;

/// A rate per second over the last windows.
#[derive(Debug, Clone, Default)]
pub struct Rate {
    /// At most one more than the windows, reused in a circle.
    samples: Vec<Sample>,
    current: usize,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    start_ms: u64,
    last_ms: u64,
    value: f64,
}

impl Sample {
    fn new(now_ms: u64) -> Sample {
        Sample { start_ms: now_ms, last_ms: now_ms, value: 0.0 }
    }
}

impl Rate {
    /// Adds a value that was measured now; negative values take back.
    pub fn record(&mut self, windows: Windows, value: f64, now_ms: u64) {
        if self.samples.is_empty() {
            self.samples.push(Sample::new(now_ms));
        }
        if now_ms.saturating_sub(self.samples[self.current].start_ms) >= windows.size_ms {
            self.advance(windows, now_ms);
        }
        let sample = &mut self.samples[self.current];
        sample.value += value;
        sample.last_ms = now_ms;
    }

    /// The rate per second.
    pub fn per_second(&mut self, windows: Windows, now_ms: u64) -> f64 {
        self.measure(windows, now_ms).0
    }

    /// Milliseconds after which the rate is down to the limit if nothing more happens; 0 within the limit. With an
    /// observed rate O over W, a delay X makes it O * W / (W + X).
    pub fn throttle_ms(&mut self, windows: Windows, limit: f64, now_ms: u64) -> u64 {
        let (rate, window_ms) = self.measure(windows, now_ms);
        if rate <= limit {
            return 0;
        }
        // A float becomes an integer by saturation.
        ((rate - limit) / limit * window_ms as f64 + 0.5).floor() as u64
    }

    fn advance(&mut self, windows: Windows, now_ms: u64) {
        // One more than the windows: the oldest overlaps the time that is looked at.
        let most = windows.count as usize + 1;
        self.current = (self.current + 1) % most;
        match self.samples.get_mut(self.current) {
            Some(oldest) => *oldest = Sample::new(now_ms),
            None => {
                self.current = self.samples.len();
                self.samples.push(Sample::new(now_ms));
            }
        }
    }

    /// The rate per second, and the milliseconds over which it is taken. Windows that there were not yet count as
    /// empty ones, so that a first burst is not taken for the rate.
    fn measure(&mut self, windows: Windows, now_ms: u64) -> (f64, u64) {
        for sample in &mut self.samples {
            if now_ms.saturating_sub(sample.last_ms) >= windows.span_ms() {
                *sample = Sample::new(now_ms);
            }
        }
        let oldest = self.samples.iter().map(|sample| sample.start_ms).min().unwrap_or(now_ms);
        let elapsed_ms = now_ms.saturating_sub(oldest);
        let full = elapsed_ms / windows.size_ms;
        let missing = u64::from(windows.count - 1).saturating_sub(full);
        let window_ms = elapsed_ms.saturating_add(missing.saturating_mul(windows.size_ms)).max(1);
        let total: f64 = self.samples.iter().map(|sample| sample.value).sum();
        (total / (window_ms as f64 / 1000.0), window_ms)
    }
}
