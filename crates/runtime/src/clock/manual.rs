//! A clock that only moves when a test advances it.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{machine_now, machine_wall_ms};

/// A thread that waits for a time of a manual clock looks so often whether it has come.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The time of a broker within a test. Only [`ManualClock::advance`] moves it. Clones are the same clock.
///
/// Tasks that wait for a time are woken by the advance that reaches it, threads see it within a few milliseconds.
#[derive(Clone)]
pub struct ManualClock(Arc<Held>);

struct Held {
    origin: Instant,
    /// Wall time at the start of the clock, in ms since 1970.
    wall_origin_ms: AtomicI64,
    advanced_ns: AtomicU64,
    timers: Mutex<Timers>,
}

#[derive(Default)]
struct Timers {
    next_id: u64,
    /// Those that were polled and have not ended.
    waiting: HashMap<u64, (Instant, Waker)>,
}

impl ManualClock {
    /// A clock that shows the machine's current time.
    pub fn new() -> ManualClock {
        ManualClock(Arc::new(Held {
            origin: machine_now(),
            wall_origin_ms: AtomicI64::new(machine_wall_ms()),
            advanced_ns: AtomicU64::new(0),
            timers: Mutex::default(),
        }))
    }

    /// Has the clock of the wall show another time, in milliseconds since 1970; the monotonic one keeps its time.
    pub fn set_wall_ms(&self, wall_ms: i64) {
        self.0.wall_origin_ms.fetch_add(wall_ms - self.wall_ms(), Ordering::AcqRel);
    }

    /// Lets time pass, of both clocks: the monotonic one and that of the wall.
    ///
    /// # Panics
    /// When more than 500 years have passed.
    pub fn advance(&self, time: Duration) {
        let time_ns = u64::try_from(time.as_nanos()).expect("a test does not take centuries");
        let mut timers = self.0.timers.lock();
        let before_ns = self.0.advanced_ns.fetch_add(time_ns, Ordering::AcqRel);
        assert!(before_ns.checked_add(time_ns).is_some(), "a test does not take centuries");
        let now = self.instant();
        let due: Vec<_> = timers.waiting.extract_if(|_, (deadline, _)| *deadline <= now).collect();
        drop(timers);
        due.into_iter().for_each(|(_, (_, waker))| waker.wake());
    }

    /// Lets time pass in steps until a condition holds, which is looked at before each: where it cannot be known from outside
    /// when the broker has begun to wait.
    ///
    /// # Panics
    /// When it does not hold after a minute of the machine's time.
    pub fn advance_until(&self, step: Duration, mut holds: impl FnMut() -> bool) {
        let begin = machine_now();
        while !holds() {
            let waited = machine_now().duration_since(begin);
            assert!(
                waited < Duration::from_secs(60),
                "it does not come, though {:?} have passed",
                self.passed()
            );
            self.advance(step);
            // The broker's threads take it up meanwhile.
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// The time that has passed since the clock was made.
    pub fn passed(&self) -> Duration {
        Duration::from_nanos(self.0.advanced_ns.load(Ordering::Acquire))
    }

    /// The instant at which it was made.
    pub(super) fn origin(&self) -> Instant {
        self.0.origin
    }

    pub(super) fn instant(&self) -> Instant {
        self.0.origin + self.passed()
    }

    pub(super) fn wall_ms(&self) -> i64 {
        let passed_ms = i64::try_from(self.passed().as_millis()).unwrap_or(i64::MAX);
        self.0.wall_origin_ms.load(Ordering::Acquire).saturating_add(passed_ms)
    }

    pub(super) fn timer(&self, deadline: Instant) -> ManualTimer {
        let mut timers = self.0.timers.lock();
        timers.next_id += 1;
        ManualTimer { id: timers.next_id, clock: self.clone(), deadline }
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        ManualClock::new()
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualClock").field("passed", &self.passed()).finish_non_exhaustive()
    }
}

/// Resolves when its clock has come to an instant.
pub struct ManualTimer {
    id: u64,
    clock: ManualClock,
    deadline: Instant,
}

impl ManualTimer {
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(super) fn reset(&mut self, deadline: Instant) {
        self.deadline = deadline;
        let mut timers = self.clock.0.timers.lock();
        let is_due = deadline <= self.clock.instant();
        if is_due {
            let waiting = timers.waiting.remove(&self.id);
            drop(timers);
            waiting.into_iter().for_each(|(_, waker)| waker.wake());
        } else if let Some((waits_for, _)) = timers.waiting.get_mut(&self.id) {
            *waits_for = deadline;
        }
    }
}

impl Future for ManualTimer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut timers = self.clock.0.timers.lock();
        // Under the lock: an advance comes before this reading, or finds the waker.
        if self.deadline <= self.clock.instant() {
            timers.waiting.remove(&self.id);
            return Poll::Ready(());
        }
        timers.waiting.insert(self.id, (self.deadline, context.waker().clone()));
        Poll::Pending
    }
}

impl Drop for ManualTimer {
    fn drop(&mut self) {
        self.clock.0.timers.lock().waiting.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use crate::sync::Condvar;

    use super::*;
    use crate::clock::{Clock, TimedOut};

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn both_readings_stand_until_they_are_advanced() {
        let manual = ManualClock::new();
        let clock = Clock::held_by(&manual);
        let before = clock.now();
        assert_eq!((before.mono_ms, clock.now()), (0, before));
        manual.advance(HOUR);
        let after = clock.now();
        assert_eq!((after.mono_ms, after.wall_ms - before.wall_ms), (3_600_000, 3_600_000));
        assert_eq!(clock.instant(), clock.instant_of(3_600_000));
    }

    #[test]
    fn a_thread_that_waits_sees_the_advance() {
        let manual = ManualClock::new();
        let clock = Clock::held_by(&manual);
        let has_begun = Arc::new(AtomicBool::new(false));
        let begun = has_begun.clone();
        let waiting = std::thread::spawn(move || {
            let (lock, condvar) = (Mutex::new(()), Condvar::new());
            let mut guard = lock.lock();
            let deadline = clock.instant() + HOUR;
            begun.store(true, Ordering::Release);
            while !clock.wait_until(&condvar, &mut guard, deadline) {}
        });
        while !has_begun.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        manual.advance(HOUR - Duration::from_millis(1));
        assert!(!waiting.is_finished(), "its time has not come");
        manual.advance(Duration::from_millis(1));
        waiting.join().expect("nothing panics");
    }

    /// A notification that comes as a short wait ends reaches no thread: the caller has to look at what it waits for.
    #[test]
    fn a_wait_returns_to_its_caller_while_the_clock_stands() {
        let clock = Clock::held_by(&ManualClock::new());
        let (lock, condvar) = (Mutex::new(()), Condvar::new());
        let deadline = clock.instant() + HOUR;
        assert!(!clock.wait_until(&condvar, &mut lock.lock(), deadline), "the hour is not over");
    }

    #[tokio::test]
    async fn tasks_are_woken_by_the_advance_that_reaches_their_time() {
        let manual = ManualClock::new();
        let clock = Clock::held_by(&manual);
        let sleeping = clock.clone();
        let asleep = tokio::spawn(async move { sleeping.sleep(HOUR).await });
        let limited = clock.clone();
        let limited = tokio::spawn(async move { limited.timeout(HOUR, std::future::pending::<()>()).await });
        assert_eq!(clock.timeout(HOUR, async { 7 }).await, Ok(7));
        // Both have run up to where they wait.
        tokio::task::yield_now().await;
        assert_eq!(manual.0.timers.lock().waiting.len(), 2);
        manual.advance(HOUR / 2);
        tokio::task::yield_now().await;
        assert!(!asleep.is_finished() && !limited.is_finished());
        manual.advance(HOUR / 2);
        asleep.await.expect("nothing panics");
        assert_eq!(limited.await.expect("nothing panics"), Err(TimedOut));
        assert!(manual.0.timers.lock().waiting.is_empty());
    }

    #[test]
    fn a_timer_that_is_reset_wakes_who_polled_it_before() {
        let manual = ManualClock::new();
        let clock = Clock::held_by(&manual);
        let mut timer = clock.timer(clock.instant() + HOUR);
        let mut context = Context::from_waker(Waker::noop());
        assert!(timer.poll(&mut context).is_pending());
        timer.reset(clock.instant() + 2 * HOUR);
        manual.advance(HOUR);
        assert_eq!(manual.0.timers.lock().waiting.len(), 1, "it waits on");
        assert!(timer.poll(&mut context).is_pending());
        timer.reset(clock.instant());
        assert!(manual.0.timers.lock().waiting.is_empty(), "who waits is woken");
        assert!(timer.poll(&mut context).is_ready());
    }
}
