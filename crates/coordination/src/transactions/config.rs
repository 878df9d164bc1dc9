//! Settings of the transaction coordinator, and the limits that bound its memory.

/// The settings of [`TransactionCoordinator`](super::TransactionCoordinator). Kafka's keys keep Kafka's names and
/// defaults; the others are ours.
#[derive(Debug, Clone)]
pub struct TransactionConfig {
    /// `transaction.state.log.num.partitions`: the number of partitions of `__transaction_state`. If the topic exists already, the driver
    /// sets the topic's own count.
    pub transaction_state_log_num_partitions: i32,
    /// The number of partitions of `__consumer_offsets`: AddOffsetsToTxn adds the one of its group.
    pub offsets_topic_num_partitions: i32,
    /// The cluster's level of the feature `transaction.version` (KIP-890): 0 writes records of version 0, 1 and 2 those
    /// of version 1; with 2 a transaction that is aborted by the coordinator raises the producer's epoch.
    pub transaction_version: i16,
    /// `transaction.max.timeout.ms`: the longest time-out that a producer may ask for.
    pub transaction_max_timeout_ms: i32,
    /// `transaction.abort.timed.out.transaction.cleanup.interval.ms`: the interval of searches for transactions that have timed out.
    pub abort_timed_out_interval_ms: u64,
    /// `transactional.id.expiration.ms`: the time for which a transactional id without a transaction is kept after its last change, by the
    /// wall clock.
    pub transactional_id_expiration_ms: i64,
    /// `transaction.remove.expired.transaction.cleanup.interval.ms`: the interval of searches for expired transactional ids.
    pub remove_expired_interval_ms: u64,
    /// The longest wait of an AddPartitionsToTxn or AddOffsetsToTxn while the markers of the producer's last transaction are written. Then
    /// it is answered with CONCURRENT_TRANSACTIONS. One request per transactional id may wait. With 0 the answer is immediate, as in Kafka.
    /// Ours.
    pub ending_wait_ms: u64,
    /// The time after an error until the markers of a transaction, or the record of its end, are written again. Ours.
    pub retry_backoff_ms: u64,
    /// Bytes that clients may make the coordinator keep: transactional ids with a fixed amount for each, partitions of transactions,
    /// waiting requests and records in flight. Beyond it a new transactional id and more partitions are refused with
    /// COORDINATOR_NOT_AVAILABLE, on which clients try again until their own time limit. A request for a producer id alone gets
    /// COORDINATOR_LOAD_IN_PROGRESS, on which idempotent producers try again. The end of a transaction is never refused. A log is loaded
    /// whatever its size. Ours.
    pub memory_bytes_max: usize,
    /// Tombstones in one append of the search for expired transactional ids. Ours.
    pub tombstones_per_append_max: usize,
}

impl Default for TransactionConfig {
    fn default() -> Self {
        Self {
            transaction_state_log_num_partitions: 50,
            offsets_topic_num_partitions: 50,
            transaction_version: 2,
            transaction_max_timeout_ms: 900_000,
            abort_timed_out_interval_ms: 10_000,
            transactional_id_expiration_ms: 7 * 24 * 60 * 60 * 1_000,
            remove_expired_interval_ms: 3_600_000,
            ending_wait_ms: 1_000,
            retry_backoff_ms: 100,
            memory_bytes_max: 64 << 20,
            tombstones_per_append_max: 1_000,
        }
    }
}
