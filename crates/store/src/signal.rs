//! One event that one task waits for, raised by the task that makes it happen.

use std::sync::atomic::{AtomicBool, AtomicI16, AtomicI64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use mainstem_wire::ErrorCode;
use parking_lot::Mutex;

use mainstem_runtime::wake::TaskWaker;

/// A flag with the task that waits for it.
#[derive(Default)]
pub struct Signal {
    raised: AtomicBool,
    task: Mutex<Option<TaskWaker>>,
}

impl Signal {
    /// Raises the flag and wakes the task, if it waits already.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        if let Some(task) = self.task.lock().take() {
            task.wake();
        }
    }

    /// Lowers the flag: the task found that it has to wait on.
    pub fn lower(&self) {
        self.raised.store(false, Ordering::Release);
    }

    /// Returns true if the flag is up.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    /// Ready when the flag is up; otherwise the task is woken when it goes up.
    pub fn poll(&self, context: &Context<'_>) -> Poll<()> {
        if self.is_raised() {
            return Poll::Ready(());
        }
        *self.task.lock() = Some(TaskWaker::of(context));
        // Raised between the look and the registration: the raiser may have found no task.
        if self.is_raised() { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// A fetch that waits for bytes to become readable in any of several partitions.
#[derive(Default)]
pub struct FetchWaiter {
    is_of_read_committed: bool,
    /// Bytes still missing up to `min_bytes`.
    missing: AtomicI64,
    signal: Signal,
}

/// Stands for the bytes that a wait is short of until it is known how many those are.
const UNKNOWN_MISSING: i64 = i64::MAX / 2;

impl FetchWaiter {
    /// That of a fetch by read_committed. Others read whatever is committed to the log.
    pub fn of_read_committed() -> Self {
        FetchWaiter { is_of_read_committed: true, ..Self::default() }
    }

    /// Returns true for a fetch by read_committed.
    pub fn is_of_read_committed(&self) -> bool {
        self.is_of_read_committed
    }

    /// Starts a wait, before the partitions are looked at: what becomes readable behind a look is counted.
    pub fn begin(&self) {
        self.signal.lower();
        self.missing.store(UNKNOWN_MISSING, Ordering::Release);
    }

    /// After the looks: so many bytes are still missing, less those that became readable meanwhile.
    pub fn arm(&self, missing: usize) {
        let missing = i64::try_from(missing).unwrap_or(i64::MAX).min(UNKNOWN_MISSING);
        let excess = UNKNOWN_MISSING - missing;
        if self.missing.fetch_sub(excess, Ordering::AcqRel) <= excess {
            self.signal.raise();
        }
    }

    /// `bytes` became readable in a partition that is waited for. Whether the wait is over.
    pub fn readable(&self, bytes: usize) -> bool {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let over = self.missing.fetch_sub(bytes, Ordering::AcqRel) <= bytes;
        if over {
            self.signal.raise();
        }
        over
    }

    /// Something else changed (truncation, deletion): the fetch has to look again.
    pub fn look_again(&self) {
        self.signal.raise();
    }

    /// Ready when there is reason to look again.
    pub fn poll(&self, context: &Context<'_>) -> Poll<()> {
        self.signal.poll(context)
    }
}

/// A request that waits until its appends to several partitions are durable.
pub struct DurableWait {
    remaining: AtomicUsize,
    /// The last failure's code; 0: none has failed.
    failed: AtomicI16,
    signal: Signal,
}

impl DurableWait {
    /// A wait that is over after `parts` calls of [`DurableWait::done`].
    pub fn new(parts: usize) -> Self {
        let signal = Signal::default();
        if parts == 0 {
            signal.raise();
        }
        DurableWait { remaining: AtomicUsize::new(parts), failed: AtomicI16::new(0), signal }
    }

    /// One part is durable, or failed.
    pub fn done(&self, result: Result<(), ErrorCode>) {
        if let Err(error) = result {
            self.failed.store(error.code(), Ordering::Release);
        }
        if self.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.signal.raise();
        }
    }

    /// Ready when every part is done.
    pub fn poll(&self, context: &Context<'_>) -> Poll<()> {
        self.signal.poll(context)
    }

    /// Returns true if any part failed. The caller asks each partition how far it is durable.
    pub fn has_failed(&self) -> bool {
        self.failure().is_some()
    }

    /// Why a part failed, if any did.
    pub fn failure(&self) -> Option<ErrorCode> {
        Some(self.failed.load(Ordering::Acquire)).filter(|code| *code != 0).map(ErrorCode::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn min_bytes_is_remembered_over_several_appends() {
        let waiter = FetchWaiter::default();
        let context = Context::from_waker(std::task::Waker::noop());
        waiter.begin();
        waiter.arm(100);
        assert!(!waiter.readable(60));
        assert!(waiter.poll(&context).is_pending());
        assert!(waiter.readable(40));
        assert!(waiter.poll(&context).is_ready());
        waiter.begin();
        assert!(!waiter.readable(5));
        waiter.arm(5);
        assert!(waiter.poll(&context).is_ready(), "what came between look and arming counts");
    }

    #[test]
    fn a_wait_is_over_when_every_part_is_done() {
        let wait = DurableWait::new(2);
        let context = Context::from_waker(std::task::Waker::noop());
        wait.done(Ok(()));
        assert!(wait.poll(&context).is_pending());
        wait.done(Err(ErrorCode::KAFKA_STORAGE_ERROR));
        assert!(wait.poll(&context).is_ready() && wait.has_failed());
    }
}
