//! Setbacks of replicas, which are no faults of their own: whoever drives them says it of all replicas of a node at once.

/// A setback of a replica. One event, such as a network that is cut or a disk that is full, has it befall all that a node leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setback {
    /// A leader has got nothing from a majority for an election time-out, and leads no more.
    LostMajority,
    /// A leader has no space, descriptors or memory for an append, and gives leadership to another replica.
    HandedOffLeadership,
    /// A replica takes part in nothing until there are space, descriptors or memory again.
    WaitsForSpace,
}
