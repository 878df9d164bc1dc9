//! The two clocks, read by the driver and handed to the state machines.
//!
//! All that decides by time asks the [`Clock`] of its broker: time-outs, quotas, retention, deadlines of waits. A test gives the
//! broker a [`ManualClock`] and lets the time pass itself. [`machine_now`] says what goes past it; `clippy.toml` of this
//! crate refuses other readings.

mod manual;

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::MutexGuard;
use tokio::time::Sleep;

pub use mainstem_coordination::time::Now;
pub use manual::ManualClock;

use crate::sync::{self, Condvar};

/// The source of the broker's time. Time-outs count monotonic time, records carry wall time.
#[derive(Debug, Clone)]
pub struct Clock {
    /// The origin of monotonic milliseconds.
    start: Instant,
    source: Source,
}

/// Source of the time: the machine, or a test.
#[derive(Debug, Clone)]
enum Source {
    Real,
    Manual(ManualClock),
}

/// A wait of [`Clock::timeout`] has come to its end before its future.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimedOut;

impl Clock {
    /// The machine's time. Monotonic time starts now.
    pub fn start() -> Self {
        Clock { start: machine_now(), source: Source::Real }
    }

    /// The time that a test lets pass.
    pub fn held_by(manual: &ManualClock) -> Self {
        Clock { start: manual.origin(), source: Source::Manual(manual.clone()) }
    }

    /// Both readings.
    #[inline]
    pub fn now(&self) -> Now {
        Now { mono_ms: self.mono_ms(), wall_ms: self.wall_ms() }
    }

    /// The monotonic reading alone, for what happens often and needs no more.
    #[inline]
    pub fn mono_ms(&self) -> u64 {
        self.elapsed(self.start).as_millis() as u64
    }

    /// Milliseconds since the epoch; 0 before it.
    #[inline]
    pub fn wall_ms(&self) -> i64 {
        match &self.source {
            Source::Real => machine_wall_ms(),
            Source::Manual(manual) => manual.wall_ms(),
        }
    }

    /// The wall clock's reading to be compared with times of files.
    pub fn system_time(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(u64::try_from(self.wall_ms()).unwrap_or(0))
    }

    /// The monotonic reading as an instant.
    #[inline]
    pub fn instant(&self) -> Instant {
        match &self.source {
            Source::Real => machine_now(),
            Source::Manual(manual) => manual.instant(),
        }
    }

    /// The instant of a monotonic reading.
    pub fn instant_of(&self, mono_ms: u64) -> Instant {
        self.start + Duration::from_millis(mono_ms)
    }

    /// The time since an instant of this clock.
    #[inline]
    pub fn elapsed(&self, since: Instant) -> Duration {
        self.instant().saturating_duration_since(since)
    }

    /// Waits on this thread for a notification, or until an instant. Returns true when that has come. It may return false
    /// without a notification: the caller looks at what it waits for before it waits again.
    pub fn wait_until<T>(&self, condvar: &Condvar, guard: &mut MutexGuard<'_, T>, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(self.instant());
        if left.is_zero() {
            return true;
        }
        if sync::is_simulated() {
            return condvar.wait_for(guard, left) && deadline <= self.instant();
        }
        // A notification may come between the end of this wait and the lock, and then no second one does. So the wait is not
        // begun again here, where a manual clock has it end early.
        condvar.wait_for(guard, self.machine_wait(left)) && deadline <= self.instant()
    }

    /// The time of the machine after which a thread looks at this clock again that waits for so much of its time: of a manual
    /// one it does so every few milliseconds.
    pub fn machine_wait(&self, left: Duration) -> Duration {
        match &self.source {
            Source::Real => left,
            Source::Manual(_) => left.min(manual::LOOK_EVERY),
        }
    }

    /// A timer that ends at an instant.
    pub fn timer(&self, deadline: Instant) -> Timer {
        match &self.source {
            Source::Real => Timer::Real(Box::pin(machine_sleep_until(deadline))),
            Source::Manual(manual) => Timer::Manual(Box::new(manual.timer(deadline))),
        }
    }

    /// Resolves at an instant.
    pub async fn sleep_until(&self, deadline: Instant) {
        match &self.source {
            Source::Real => machine_sleep_until(deadline).await,
            Source::Manual(manual) => manual.timer(deadline).await,
        }
    }

    /// Resolves after this time.
    pub async fn sleep(&self, time: Duration) {
        self.sleep_until(self.instant() + time).await;
    }

    /// Awaits a future with a timeout.
    ///
    /// # Errors
    /// [`TimedOut`] when it is not ready by then.
    pub async fn timeout<F: Future>(&self, limit: Duration, future: F) -> Result<F::Output, TimedOut> {
        let mut future = pin!(future);
        match &self.source {
            Source::Real => machine_timeout(limit, future).await,
            Source::Manual(manual) => {
                let over = manual.timer(manual.instant() + limit);
                tokio::select! {
                    biased;
                    output = future.as_mut() => Ok(output),
                    () = over => Err(TimedOut),
                }
            }
        }
    }
}

/// A timer of a clock. Polled again after it was ready, it is ready again, unless it was reset.
pub enum Timer {
    /// By the machine's time.
    Real(Pin<Box<Sleep>>),
    /// By a test's time. Boxed, so that it does not make each connection larger.
    Manual(Box<manual::ManualTimer>),
}

impl Timer {
    /// The instant at which it ends.
    pub fn deadline(&self) -> Instant {
        match self {
            Timer::Real(sleep) => sleep.deadline().into_std(),
            Timer::Manual(timer) => timer.deadline(),
        }
    }

    /// Ends at another instant. The task that polled it last is woken then.
    pub fn reset(&mut self, deadline: Instant) {
        match self {
            Timer::Real(sleep) => sleep.as_mut().reset(deadline.into()),
            Timer::Manual(timer) => timer.reset(deadline),
        }
    }

    /// Ready when it has ended. Otherwise the task is woken then.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self {
            Timer::Real(sleep) => sleep.as_mut().poll(context),
            Timer::Manual(timer) => Pin::new(&mut **timer).poll(context),
        }
    }
}

/// The machine's monotonic time, past the clock that a test may hold. For what is of the machine and not of a rule: how long a
/// piece of work took (latencies, the load of a loop, the length of a connection's turn), deadlines that are kept by a socket of the kernel
/// or by the other end of one, pauses of microseconds, and the stop of the process, for which a supervisor waits.
#[inline]
#[allow(clippy::disallowed_methods, reason = "the one place that reads it")]
pub fn machine_now() -> Instant {
    Instant::now()
}

/// Milliseconds since the epoch by the machine's clock, past one that a test may hold; 0 before it. For what is compared with
/// other processes: dates of certificates, which TLS reads by itself, and the order of two starts of a node.
#[inline]
#[allow(clippy::disallowed_methods, reason = "the one place that reads it")]
pub fn machine_wall_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

/// Awaits a future with a timeout in the machine's time, for callers of [`machine_now`].
///
/// # Errors
/// [`TimedOut`] when it is not ready by then.
#[allow(clippy::disallowed_methods, reason = "the one place that waits by it")]
pub async fn machine_timeout<F: Future>(limit: Duration, future: F) -> Result<F::Output, TimedOut> {
    tokio::time::timeout(limit, future).await.map_err(|_| TimedOut)
}

#[allow(clippy::disallowed_methods, reason = "the one place that waits by it")]
fn machine_sleep_until(deadline: Instant) -> Sleep {
    tokio::time::sleep_until(deadline.into())
}
