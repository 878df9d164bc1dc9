//! The decision after a failure: another attempt, a dead letter, or waiting.
//!
//! A message that fails by its own fault must not hold its key up for ever. A message that fails because a database is away must wait,
//! however long that takes, and must not become a dead letter. They differ in the attempts of others of the same route beside each failed
//! attempt:
//!
//! ```text
//!            ┌── while it ran: at most a tenth of others' attempts failed ──┐
//! attempt ───┤                                                              ├──▶ it failed alone
//!            └── of the ten that ended next: at most one failed ────────────┘
//! ```
//!
//! After [`Retry::attempts`] attempts a message is a dead letter if it is known to have failed alone: in each attempt but the last, which
//! must not be known to have failed with others. If too few others were tried to say so, it is one after [`Retry::give_up_after_ms`]. If
//! others fail too, it is an outage: the attempts before it no longer count, and the message waits.
//!
//! Attempts are judged one by one, and not as shares of a long time. While a database comes and goes, most attempts of a busy route
//! succeed, but not beside those that fail.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use twox_hash::XxHash3_64;

/// Number of attempts of others, after a failed one, that decide whether it failed alone.
const WITNESSES: u64 = 10;
/// One in so many may fail, of those and of the attempts beside it.
const TOLERATED: u64 = 10;

/// The class of a failure, which decides the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultClass {
    /// Any error, a panic, a time limit: tried again some times, then a dead letter or an outage.
    Failed,
    /// Something that the message needs is away: tried again for as long as it takes, never a dead letter.
    Transient,
    /// No attempt will ever succeed: a dead letter at once.
    Poison,
    /// The application cannot continue.
    Stop,
}

/// Settings of the retries of failed messages.
///
/// ```
/// use mainstem_flow::Retry;
///
/// let retry = Retry::exponential(200, 30_000).attempts(8);
/// assert_eq!((retry.attempts, retry.give_up_after_ms), (8, 900_000));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// The wait after the first failure in milliseconds; it doubles with each further one.
    pub initial_ms: u64,
    /// The longest wait in milliseconds.
    pub max_ms: u64,
    /// After so many attempts a message that fails alone becomes a dead letter; 1 or more.
    pub attempts: u32,
    /// A message becomes a dead letter after this time in milliseconds, if too few others were tried to compare with.
    pub give_up_after_ms: u64,
}

impl Default for Retry {
    fn default() -> Retry {
        Retry::exponential(200, 30_000)
    }
}

impl Retry {
    /// Waits from `initial_ms` to `max_ms`, 5 attempts, 15 minutes.
    pub fn exponential(initial_ms: u64, max_ms: u64) -> Retry {
        Retry { initial_ms, max_ms, attempts: 5, give_up_after_ms: 15 * 60 * 1_000 }
    }

    /// The same with another number of attempts; 0 counts as 1.
    pub fn attempts(self, attempts: u32) -> Retry {
        Retry { attempts: attempts.max(1), ..self }
    }

    /// The same with another time after which a message becomes a dead letter if there are no others to compare with.
    pub fn give_up_after_ms(self, give_up_after_ms: u64) -> Retry {
        Retry { give_up_after_ms, ..self }
    }

    /// The wait after a number of failures, 1 or more: up to a fifth shorter or longer, so that what failed together is not
    /// tried again together.
    fn wait_ms(&self, failures: u32, seed: u64) -> u64 {
        let doubled = 1u64.checked_shl(failures - 1).unwrap_or(u64::MAX);
        let full = self.initial_ms.saturating_mul(doubled).min(self.max_ms);
        let dice = XxHash3_64::oneshot_with_seed(seed, &failures.to_le_bytes()) % 401;
        full.saturating_mul(800 + dice) / 1_000
    }
}

/// The next step for a message whose attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is tried again, not before this time.
    Retry {
        /// Milliseconds of the judge's clock.
        at_ms: u64,
    },
    /// It becomes a dead letter.
    Letter,
    /// The application stops.
    Stop,
}

/// Record of the attempts of one message; it stays with the message.
#[derive(Debug, Clone, Default)]
pub struct Tries {
    /// Attempts that failed, of any class.
    pub failures: u32,
    /// Those that count: of class [`FaultClass::Failed`].
    pub attempts: u32,
    /// When the first one failed.
    pub first_failed_ms: u64,
    /// Attempts that are known to have failed alone, since one that did not.
    alone: u32,
    /// Since when no attempt is known to have failed with others.
    since_ms: u64,
    /// The outcome of the attempts of others after the last one, once known.
    witness: Option<Arc<AtomicU8>>,
}

const UNKNOWN: u8 = 0;
const ALONE: u8 = 1;
const WITH_OTHERS: u8 = 2;

/// The counts of a route when an attempt started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mark {
    ended: u64,
    failed: u64,
}

/// Decides about the failures of one route, in all of its partitions.
///
/// ```
/// use mainstem_flow::{FaultClass, Judge, Retry, Tries, Verdict};
///
/// let mut judge = Judge::new(Retry::default());
/// let mut tries = Tries::default();
/// let started = judge.started();
/// let verdict = judge.failed(&mut tries, started, FaultClass::Poison, 0, 1_000);
/// assert_eq!(verdict, Verdict::Letter);
/// ```
#[derive(Debug)]
pub struct Judge {
    retry: Retry,
    /// Attempts that have ended, and those of them that failed.
    total: Mark,
    /// Attempts that failed and about which the next ones are still to say: how far the route was, oldest first.
    open: VecDeque<(Mark, Arc<AtomicU8>)>,
    outage_since_ms: Option<u64>,
}

impl Judge {
    /// A judge before the first attempt.
    pub fn new(retry: Retry) -> Judge {
        Judge { retry, total: Mark::default(), open: VecDeque::new(), outage_since_ms: None }
    }

    /// Returns the counts to be kept while an attempt runs.
    pub fn started(&self) -> Mark {
        self.total
    }

    /// An attempt succeeded.
    pub fn succeeded(&mut self) {
        self.succeeded_times(1);
    }

    /// Counts attempts that succeeded, one after another.
    pub fn succeeded_times(&mut self, attempts: u64) {
        if attempts > 0 {
            self.outage_since_ms = None;
            self.ended(attempts, 0);
        }
    }

    /// An attempt failed. `seed` spreads waits: the message's offset, say.
    pub fn failed(
        &mut self,
        tries: &mut Tries,
        started: Mark,
        class: FaultClass,
        seed: u64,
        now_ms: u64,
    ) -> Verdict {
        match class {
            FaultClass::Stop => return Verdict::Stop,
            // A fault of the message itself says nothing about others.
            FaultClass::Poison => return Verdict::Letter,
            FaultClass::Failed | FaultClass::Transient => {}
        }
        let beside =
            Mark { ended: self.total.ended - started.ended, failed: self.total.failed - started.failed };
        if tries.failures == 0 {
            (tries.first_failed_ms, tries.since_ms) = (now_ms, now_ms);
        }
        tries.failures += 1;
        tries.count_witness(now_ms);
        self.ended(1, 1);
        if is_with_others(beside) || class == FaultClass::Transient {
            tries.start_over(now_ms);
        }
        if class == FaultClass::Failed {
            tries.attempts += 1;
            if self.is_by_own_fault(tries, beside, now_ms) {
                return Verdict::Letter;
            }
            let witness = Arc::new(AtomicU8::new(UNKNOWN));
            let with_others = is_with_others(beside);
            tries.witness = (!with_others).then(|| witness.clone());
            self.open.push_back((self.total, witness));
        }
        if tries.attempts >= self.retry.attempts || class == FaultClass::Transient {
            self.outage_since_ms.get_or_insert(now_ms);
        }
        Verdict::Retry { at_ms: now_ms.saturating_add(self.retry.wait_ms(tries.failures, seed)) }
    }

    /// Returns true if a message that failed as often as it may did so alone, or too few others were tried for too long.
    fn is_by_own_fault(&self, tries: &Tries, beside: Mark, now_ms: u64) -> bool {
        if is_with_others(beside) || tries.attempts < self.retry.attempts {
            return false;
        }
        let is_known = tries.alone + 1 >= self.retry.attempts;
        is_known || now_ms.saturating_sub(tries.since_ms) >= self.retry.give_up_after_ms
    }

    /// Counts attempts that have ended, and decides about failed ones whose last witness is among them.
    fn ended(&mut self, attempts: u64, failed: u64) {
        self.total.ended += attempts;
        self.total.failed += failed;
        while let Some((mark, witness)) = self.open.front()
            && self.total.ended - mark.ended >= WITNESSES
        {
            let failed = self.total.failed - mark.failed;
            let known = if failed * TOLERATED <= WITNESSES { ALONE } else { WITH_OTHERS };
            witness.store(known, Ordering::Relaxed);
            self.open.pop_front();
        }
    }

    /// Since when messages wait for something that is away; none once an attempt has succeeded.
    pub fn outage_since_ms(&self) -> Option<u64> {
        self.outage_since_ms
    }
}

fn is_with_others(beside: Mark) -> bool {
    beside.failed * TOLERATED > beside.ended
}

impl Tries {
    /// Counts the last attempt as alone or with others, if its witnesses have decided that.
    fn count_witness(&mut self, now_ms: u64) {
        match self.witness.take().map(|witness| witness.load(Ordering::Relaxed)) {
            Some(ALONE) => self.alone += 1,
            Some(WITH_OTHERS) => self.start_over(now_ms),
            _ => {}
        }
    }

    /// An attempt failed with others: the attempts before it no longer count.
    fn start_over(&mut self, now_ms: u64) {
        (self.alone, self.since_ms) = (0, now_ms);
        self.witness = None;
    }
}
