//! Numbers that are easily taken for others: id and epoch of a producer, and the epochs of partitions' leaders and of coordinators.
//!
//! Batches and messages hold them as plain integers; the reader of one makes it what it is.

use std::fmt;

/// The id of a producer (KIP-98), which the controller gives out: not an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ProducerId(i64);

impl ProducerId {
    /// That of a batch without idempotence.
    pub const NONE: ProducerId = ProducerId(-1);

    /// As it is on the wire and on disk.
    pub const fn new(id: i64) -> ProducerId {
        ProducerId(id)
    }

    /// As it is on the wire and on disk.
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for ProducerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The epoch of a producer (KIP-98): what comes with an older one of the same id is refused. Neither a version nor the
/// epoch of a partition's leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ProducerEpoch(i16);

impl ProducerEpoch {
    /// That of a batch without idempotence, of a client that has none yet, and where none is known.
    pub const NONE: ProducerEpoch = ProducerEpoch(-1);

    /// The first one.
    pub const ZERO: ProducerEpoch = ProducerEpoch(0);

    /// The last one that a coordinator gives to a producer: the one above it only fences.
    pub const LAST: ProducerEpoch = ProducerEpoch(i16::MAX - 1);

    /// As it is on the wire and on disk.
    pub const fn new(epoch: i16) -> ProducerEpoch {
        ProducerEpoch(epoch)
    }

    /// As it is on the wire and on disk.
    pub const fn get(self) -> i16 {
        self.0
    }

    /// Returns true if no producer gets an epoch above this one, so that it needs another id: from [`LAST`](Self::LAST) on.
    pub const fn is_exhausted(self) -> bool {
        self.0 >= ProducerEpoch::LAST.0
    }

    /// The next one. `None`: there is no number above it.
    pub const fn checked_next(self) -> Option<ProducerEpoch> {
        match self.0.checked_add(1) {
            Some(next) => Some(ProducerEpoch(next)),
            None => None,
        }
    }

    /// The next one, or the same where there is no number above it.
    pub const fn saturating_next(self) -> ProducerEpoch {
        ProducerEpoch(self.0.saturating_add(1))
    }
}

impl fmt::Display for ProducerEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The epoch in which a partition's leader leads (KIP-101): neither the number of a partition nor the epoch of a coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct LeaderEpoch(i32);

impl LeaderEpoch {
    /// The epoch of a batch that no leader has stamped, of a client that knows none, and the unknown epoch.
    pub const NONE: LeaderEpoch = LeaderEpoch(-1);

    /// The first one.
    pub const ZERO: LeaderEpoch = LeaderEpoch(0);

    /// As it is on the wire and on disk.
    pub const fn new(epoch: i32) -> LeaderEpoch {
        LeaderEpoch(epoch)
    }

    /// As it is on the wire and on disk.
    pub const fn get(self) -> i32 {
        self.0
    }

    /// Returns true unless it is [`NONE`](Self::NONE), or a number that no leader has.
    pub const fn is_known(self) -> bool {
        self.0 >= 0
    }
}

impl fmt::Display for LeaderEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The epoch of a coordinator of transactions, which its markers carry (KIP-98): a partition refuses those of an older one. It is
/// the leader epoch of the partition of `__transaction_state` that the coordinator serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct CoordinatorEpoch(i32);

impl CoordinatorEpoch {
    /// The epoch of a producer for which no coordinator has written a marker.
    pub const NONE: CoordinatorEpoch = CoordinatorEpoch(-1);

    /// The first one.
    pub const ZERO: CoordinatorEpoch = CoordinatorEpoch(0);

    /// As it is on the wire and on disk.
    pub const fn new(epoch: i32) -> CoordinatorEpoch {
        CoordinatorEpoch(epoch)
    }

    /// As it is on the wire and on disk.
    pub const fn get(self) -> i32 {
        self.0
    }
}

impl From<LeaderEpoch> for CoordinatorEpoch {
    fn from(epoch: LeaderEpoch) -> CoordinatorEpoch {
        CoordinatorEpoch(epoch.0)
    }
}

impl fmt::Display for CoordinatorEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_producers_epochs_end_below_the_one_that_fences() {
        let next = |epoch: i16| ProducerEpoch::new(epoch).checked_next().map(ProducerEpoch::get);
        assert_eq!(
            [next(-1), next(0), next(i16::MAX - 1), next(i16::MAX)],
            [Some(0), Some(1), Some(i16::MAX), None]
        );
        assert_eq!(ProducerEpoch::NONE.saturating_next(), ProducerEpoch::ZERO);
        assert_eq!(ProducerEpoch::new(i16::MAX).saturating_next().get(), i16::MAX);
        let exhausted = [-1, 0, i16::MAX - 2, i16::MAX - 1, i16::MAX]
            .map(|epoch| ProducerEpoch::new(epoch).is_exhausted());
        assert_eq!(exhausted, [false, false, false, true, true]);
    }
}
