//! Faults that durable logs cannot have.

/// A fault, and where it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// The partition; [`super::NO_PARTITION`] for what concerns several.
    pub partition: i32,
    /// The fault.
    pub fault: Fault,
}

/// A fault that durable logs cannot have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A replica does not have an acknowledged value.
    Lost {
        /// The replica's node.
        process: i32,
        /// The offset at which the value was acknowledged.
        offset: i64,
        /// The value.
        value: u64,
    },
    /// A value is at two offsets.
    Duplicate {
        /// The value.
        value: u64,
        /// The one offset.
        offset: i64,
        /// The other.
        other: i64,
    },
    /// An offset has two values.
    Inconsistent {
        /// The offset.
        offset: i64,
        /// The one value.
        value: u64,
        /// The other.
        other: u64,
    },
    /// A value that no process appended.
    Invented {
        /// Its offset.
        offset: i64,
        /// The value.
        value: u64,
    },
    /// A value whose append had failed for certain.
    Failed {
        /// Its offset.
        offset: i64,
        /// The value.
        value: u64,
    },
    /// A group has read to an end and never seen a value before it that it had to see.
    Unseen {
        /// The group.
        group: u64,
        /// The offset of the value.
        offset: i64,
        /// The value.
        value: u64,
    },
    /// A group that commits in transactions has come to an end, and all transactions that have read a value before it were aborted.
    Unprocessed {
        /// The group.
        group: u64,
        /// The offset of the value.
        offset: i64,
        /// The value.
        value: u64,
    },
    /// A consumer jumped over an offset that it had to read; for a replica: it has a hole.
    Skipped {
        /// The consumer.
        process: i32,
        /// The offset that it got.
        offset: i64,
        /// The first one that it should have got before.
        expected: i64,
    },
    /// A consumer went back.
    WentBack {
        /// The consumer.
        process: i32,
        /// The offset that it got.
        offset: i64,
        /// The one that was to come at the earliest.
        expected: i64,
    },
    /// A producer's later value is before an earlier one, both acknowledged.
    Reordered {
        /// The producer.
        process: i32,
        /// The later value's offset.
        offset: i64,
        /// The earlier value's.
        before: i64,
    },
    /// A consumer of committed transactions got a value of an aborted one (G1a).
    AbortedRead {
        /// The consumer.
        process: i32,
        /// The offset of the value.
        offset: i64,
        /// The value.
        value: u64,
        /// Its transaction.
        transaction: u64,
    },
    /// Transactions that have read each other's values in a circle (G1c).
    Cycle {
        /// The transactions, each of which has read a value of the next one, the last one of the first.
        transactions: Vec<u64>,
    },
    /// Two committed transactions have processed the same record for the same group.
    ProcessedTwice {
        /// The offset of the record.
        offset: i64,
        /// The one transaction.
        transaction: u64,
        /// The other.
        other: u64,
    },
    /// A replica's last stable offset stands still although no transaction is open any more: consumers of committed transactions
    /// see nothing of what is behind it.
    StandsStill {
        /// The replica's node.
        process: i32,
        /// The last stable offset.
        offset: i64,
        /// The high watermark.
        high_watermark: i64,
    },
    /// A log starts behind everything that was to be deleted, or a consumer was sent there.
    NotDeleted {
        /// The replica's node, or the consumer.
        process: i32,
        /// The start of the log.
        offset: i64,
        /// The records before this offset were to be deleted.
        asked: i64,
    },
    /// A replica's log starts before what was acknowledged to be deleted.
    DeletionUndone {
        /// The replica's node.
        process: i32,
        /// The start of its log.
        offset: i64,
        /// The records before this offset were deleted.
        deleted: i64,
    },
    /// A group's committed offset is behind one that was acknowledged before it was asked for.
    CommitWentBack {
        /// The group.
        group: u64,
        /// The committed offset that was found.
        offset: i64,
        /// The one that was acknowledged.
        acknowledged: i64,
    },
    /// A group's committed offset is beyond all that was ever to be committed.
    CommitInvented {
        /// The group.
        group: u64,
        /// The committed offset that was found.
        offset: i64,
    },
}
