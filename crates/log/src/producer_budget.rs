//! The limit on the producers that the logs of a process remember together.
//!
//! A producer that is forgotten before `producer.id.expiration.ms` has its retries appended a second time. So none is
//! forgotten to free a place: a new one is refused instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One partition takes at most this part of the budget, so that its clients do not lock out those of all others.
const PARTITION_PART: usize = 4;

/// Producers of a process without a configuration.
const PRODUCERS_DEFAULT: usize = 1_000_000;

/// Shared by all logs of a process. What a log holds when it is opened is remembered whatever the budget says.
#[derive(Debug)]
pub struct ProducerBudget {
    max: usize,
    held: AtomicUsize,
}

impl Default for ProducerBudget {
    fn default() -> ProducerBudget {
        ProducerBudget::new(PRODUCERS_DEFAULT)
    }
}

impl ProducerBudget {
    /// Creates a budget of this many producers, of about 250 bytes each.
    pub fn new(max: usize) -> ProducerBudget {
        ProducerBudget { max, held: AtomicUsize::new(0) }
    }

    /// The number of producers that are remembered.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

/// The part of the budget that one log takes.
#[derive(Debug)]
pub(crate) struct ProducerShare {
    budget: Arc<ProducerBudget>,
    held: usize,
}

impl ProducerShare {
    pub(crate) fn new(budget: Arc<ProducerBudget>) -> ProducerShare {
        ProducerShare { budget, held: 0 }
    }

    /// The most producers that one log may remember.
    pub(crate) fn partition_max(&self) -> usize {
        (self.budget.max / PARTITION_PART).max(1)
    }

    /// Returns true if the log may remember one more.
    pub(crate) fn has_capacity(&self) -> bool {
        self.held < self.partition_max() && self.budget.held() < self.budget.max
    }

    /// Sets the number of producers that the log remembers.
    pub(crate) fn set(&mut self, count: usize) {
        let before = std::mem::replace(&mut self.held, count);
        if count > before {
            self.budget.held.fetch_add(count - before, Ordering::Relaxed);
        } else if count < before {
            self.budget.held.fetch_sub(before - count, Ordering::Relaxed);
        }
    }
}

impl Drop for ProducerShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_are_given_back() {
        let budget = Arc::new(ProducerBudget::new(8));
        let mut shares: Vec<_> = (0..5).map(|_| ProducerShare::new(budget.clone())).collect();
        shares[0].set(1);
        assert!(shares[0].has_capacity());
        shares[0].set(2);
        assert!(!shares[0].has_capacity() && shares[1].has_capacity(), "a quarter is one log's most");
        shares[1..4].iter_mut().for_each(|share| share.set(2));
        assert_eq!(budget.held(), 8);
        assert!(!shares[4].has_capacity());
        drop(shares.remove(0));
        assert!(budget.held() == 6 && shares.last().is_some_and(ProducerShare::has_capacity));
        shares.clear();
        assert_eq!(budget.held(), 0);
    }
}
