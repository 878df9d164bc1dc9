//! Verification by the coordinator before a producer's first batch of a transaction is written (KIP-890). It keeps a late
//! batch from opening a transaction that would never end.
//!
//! The writer of the first batch asks for a guard, has the coordinator confirm the partition, and appends with the guard.
//! A marker that comes in between voids the guard, and so does the first batch. So a late answer of the coordinator opens
//! nothing. Nothing of this is on disk.

use mainstem_records::{ProducerEpoch, ProducerId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Permission for one producer to begin a transaction in one log. Each one in a process is different.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct VerificationGuard(u64);

impl VerificationGuard {
    /// It allows nothing.
    pub const NONE: VerificationGuard = VerificationGuard(0);

    fn next() -> VerificationGuard {
        static LAST: AtomicU64 = AtomicU64::new(0);
        VerificationGuard(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// The producer's fields in the first batch of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerificationRequest {
    /// The producer.
    pub producer_id: ProducerId,
    /// Its epoch.
    pub producer_epoch: ProducerEpoch,
    /// First sequence number of the batch; `NO_SEQUENCE` for a batch that a coordinator writes.
    pub base_sequence: i32,
    /// The producer's epoch grows with every transaction (`transaction.version` 2). An unknown producer then has to begin with
    /// sequence number 0.
    pub supports_epoch_bump: bool,
}

/// A verification that has begun and not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verification {
    pub(crate) guard: VerificationGuard,
    /// The lowest sequence number of the epoch that asked. A batch behind it has to wait: when it came first, the lower
    /// one would be out of order for ever.
    pub(crate) lowest_sequence: i32,
    pub(crate) supports_epoch_bump: bool,
    epoch: ProducerEpoch,
    begun_ms: u64,
}

/// Verifications that a log remembers. If one is removed early, its producer's retry begins it again.
pub(crate) const VERIFICATIONS_MAX: usize = 10_000;

/// The verifications of one log that have begun and not ended.
#[derive(Debug, Default)]
pub(crate) struct Verifications {
    by_producer: HashMap<ProducerId, Verification>,
}

impl Verifications {
    /// Returns the guard for a producer: the one it has, or a new one. The log keeps at most `max` guards, and removes the oldest
    /// beyond that.
    pub(crate) fn begin(
        &mut self,
        request: &VerificationRequest,
        mono_ms: u64,
        max: usize,
    ) -> VerificationGuard {
        if self.by_producer.len() >= max && !self.by_producer.contains_key(&request.producer_id) {
            self.remove_oldest(max);
        }
        let begun = self.by_producer.entry(request.producer_id).or_insert_with(|| Verification {
            guard: VerificationGuard::next(),
            lowest_sequence: request.base_sequence,
            supports_epoch_bump: request.supports_epoch_bump,
            epoch: request.producer_epoch,
            begun_ms: mono_ms,
        });
        let is_newer = request.producer_epoch > begun.epoch;
        let is_lower = request.producer_epoch == begun.epoch && request.base_sequence < begun.lowest_sequence;
        if is_newer || is_lower {
            (begun.epoch, begun.lowest_sequence) = (request.producer_epoch, request.base_sequence);
        }
        begun.guard
    }

    /// The verification of a producer, if one has begun.
    pub(crate) fn of(&self, producer_id: ProducerId) -> Option<&Verification> {
        match self.by_producer.is_empty() {
            true => None,
            false => self.by_producer.get(&producer_id),
        }
    }

    /// The producer's transaction has begun or ended.
    pub(crate) fn end(&mut self, producer_id: ProducerId) {
        if !self.by_producer.is_empty() {
            self.by_producer.remove(&producer_id);
        }
    }

    /// Forgets those that were begun `expiration_ms` ago: no producer comes back to them.
    pub(crate) fn expire(&mut self, mono_ms: u64, expiration_ms: u64) {
        self.by_producer.retain(|_, begun| mono_ms.saturating_sub(begun.begun_ms) < expiration_ms);
        if self.by_producer.is_empty() {
            self.by_producer = HashMap::new();
        }
    }

    fn remove_oldest(&mut self, max: usize) {
        let ages = self.by_producer.iter().map(|(id, begun)| (begun.begun_ms, *id)).collect();
        for id in longest_idle(ages, 1 + max / 16) {
            self.by_producer.remove(&id);
        }
    }
}

/// Returns the `count` producers whose times are the earliest.
fn longest_idle(mut ages: Vec<(u64, ProducerId)>, count: usize) -> impl Iterator<Item = ProducerId> {
    if count > 0 && count < ages.len() {
        ages.select_nth_unstable(count - 1);
    }
    ages.truncate(count);
    ages.into_iter().map(|(_, id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(epoch: i16, base_sequence: i32) -> VerificationRequest {
        let (producer_id, producer_epoch) = (ProducerId::new(7), ProducerEpoch::new(epoch));
        VerificationRequest { producer_id, producer_epoch, base_sequence, supports_epoch_bump: false }
    }

    #[test]
    fn a_guard_lasts_until_the_transaction_begins_or_ends() {
        let mut verifications = Verifications::default();
        let first = verifications.begin(&request(0, 0), 0, 10);
        assert_ne!(first, VerificationGuard::NONE);
        assert_eq!(verifications.begin(&request(0, 3), 5, 10), first, "it is one transaction");
        verifications.end(ProducerId::new(7));
        assert_eq!(verifications.of(ProducerId::new(7)), None);
        assert_ne!(verifications.begin(&request(0, 0), 9, 10), first, "an old answer opens nothing");
    }

    #[test]
    fn the_lowest_sequence_number_of_the_newest_epoch_comes_first() {
        let check = |asked: &[(i16, i32)], expected| {
            let mut verifications = Verifications::default();
            for (epoch, sequence) in asked {
                verifications.begin(&request(*epoch, *sequence), 0, 10);
            }
            assert_eq!(verifications.of(ProducerId::new(7)).unwrap().lowest_sequence, expected, "{asked:?}");
        };
        check(&[(0, 5)], 5);
        check(&[(0, 5), (0, 3), (0, 4)], 3);
        check(&[(0, 3), (1, 9)], 9);
        check(&[(1, 9), (0, 3)], 9);
    }

    #[test]
    fn they_expire_and_are_bounded() {
        let mut verifications = Verifications::default();
        for id in 0..1000 {
            let producer_id = ProducerId::new(id);
            verifications.begin(&VerificationRequest { producer_id, ..request(0, 0) }, id as u64, 100);
            assert!(verifications.by_producer.len() <= 100);
        }
        assert!(
            verifications.of(ProducerId::new(999)).is_some()
                && verifications.of(ProducerId::new(0)).is_none()
        );
        verifications.expire(1098, 100);
        assert!(
            verifications.of(ProducerId::new(998)).is_none()
                && verifications.of(ProducerId::new(999)).is_some()
        );
    }
}
