//! Counters of the data path: what was appended, read and refused.

use std::sync::atomic::{AtomicU64, Ordering};

use mainstem_store::traffic::Traffic;

/// Counters of the data path. They are relaxed: each is exact, and none orders other memory.
#[derive(Default)]
pub(crate) struct DataCounters {
    /// Record batches appended.
    pub(crate) batches_in: AtomicU64,
    /// Records appended.
    pub(crate) messages_in: AtomicU64,
    /// Bytes of records appended.
    pub(crate) bytes_in: AtomicU64,
    /// Bytes of records read by clients.
    pub(crate) bytes_out: AtomicU64,
    /// Partitions of produce requests that were refused.
    pub(crate) failed_produces: AtomicU64,
    /// Partitions of fetch requests that were answered with an error.
    pub(crate) failed_fetches: AtomicU64,
}

impl DataCounters {
    /// Counts the records and bytes of a batch that was appended to a partition.
    pub(crate) fn appended(&self, traffic: &Traffic, messages: u64, bytes: usize) {
        self.batches_in.fetch_add(1, Ordering::Relaxed);
        for (total, own, by) in [
            (&self.messages_in, &traffic.messages_in, messages),
            (&self.bytes_in, &traffic.bytes_in, bytes as u64),
        ] {
            total.fetch_add(by, Ordering::Relaxed);
            own.fetch_add(by, Ordering::Relaxed);
        }
    }

    /// Counts bytes of a partition's records that were put into an answer.
    pub(crate) fn fetched(&self, traffic: &Traffic, bytes: usize) {
        self.bytes_out.fetch_add(bytes as u64, Ordering::Relaxed);
        traffic.bytes_out.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts a refused partition of a produce request.
    pub(crate) fn produce_failed(&self) {
        self.failed_produces.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a partition of a fetch request that was answered with an error.
    pub(crate) fn fetch_failed(&self) {
        self.failed_fetches.fetch_add(1, Ordering::Relaxed);
    }
}
