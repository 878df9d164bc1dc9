//! Entries of a partition of `__consumer_offsets`, as the coordinator reads and writes them.

use mainstem_records::{Producer, TransactionEnd};

/// One entry of a partition of `__consumer_offsets`, for [`load`](super::GroupCoordinator::load).
#[derive(Debug, Clone, Copy)]
pub enum LogEntry<'r> {
    /// A record that has a key.
    Record {
        /// The key.
        key: &'r [u8],
        /// The value; none is a tombstone.
        value: Option<&'r [u8]>,
        /// The producer of the record's batch, if that is transactional.
        producer: Option<Producer>,
    },
    /// A control record that ends a transaction.
    End(TransactionEnd),
}

/// One record for `__consumer_offsets` or `__transaction_state`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoordinatorRecord {
    /// The record's key: the type, then the key's fields.
    pub key: Vec<u8>,
    /// The value: the version, then the value's fields; none is a tombstone.
    pub value: Option<Vec<u8>>,
}
