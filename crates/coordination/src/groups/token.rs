//! Names that the driver and the coordinator give each other: of requests, and of appends.

/// The driver's name for one request; its one reply has it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// The coordinator's name for one append; the driver gives it back with the append's outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    /// The partition of `__consumer_offsets` that the records belong to.
    pub partition: i32,
    /// Ascending over the coordinator's life.
    pub(crate) number: u64,
}
