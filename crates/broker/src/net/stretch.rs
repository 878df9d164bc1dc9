//! A bound on the time that one answer takes of its event loop at a stretch.

use std::time::{Duration, Instant};

use tokio::task::yield_now;

use crate::net::context::RequestContext;
use crate::quotas::ThreadTime;

/// For so long a large answer is put together before the loop serves others.
pub(crate) const STRETCH: Duration = Duration::from_millis(2);

/// The work at one answer, in stretches. All of them are time of the request's client.
pub(crate) struct Stretch<'c> {
    time: Option<&'c ThreadTime>,
    began: Instant,
    /// The stretches before.
    worked: Duration,
}

impl<'c> Stretch<'c> {
    /// The first one begins.
    pub(crate) fn begin(context: &'c RequestContext) -> Self {
        let time = context.time.as_deref();
        if let Some(time) = time {
            time.resume();
        }
        Stretch { time, began: Instant::now(), worked: Duration::ZERO }
    }

    /// Lets the loop serve others, if this stretch has taken its time.
    pub(crate) async fn pause(&mut self) {
        if self.began.elapsed() < STRETCH {
            return;
        }
        self.worked += self.began.elapsed();
        if let Some(time) = self.time {
            time.pause();
        }
        // Not woken before the loop has looked at its sockets.
        yield_now().await;
        if let Some(time) = self.time {
            time.resume();
        }
        self.began = Instant::now();
    }

    /// How long all of them took. What the caller still does is no part of it.
    pub(crate) fn end(self) -> Duration {
        if let Some(time) = self.time {
            time.pause();
        }
        self.worked + self.began.elapsed()
    }
}
