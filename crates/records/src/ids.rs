//! Numbers that are easily taken for others: the id of a producer, and the epoch of a partition's leader.
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

/// The epoch in which a partition's leader leads (KIP-101): neither the number of a partition nor the epoch of a coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct LeaderEpoch(i32);

impl LeaderEpoch {
    /// Of a batch that no leader has stamped, of a client that knows none, and where none is known.
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
