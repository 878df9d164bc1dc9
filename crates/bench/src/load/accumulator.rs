//! Records on their way into requests: batches that fill, then wait for their turn. No clock, no socket.
//!
//! It works as the Java producer: a batch goes out when it is full or has lingered. Until a request takes it, further records join it. A
//! request takes at most one batch of each partition, and the batches of a partition in order.

use std::collections::VecDeque;

use crate::batch::BatchBuilder;

/// `batch.size` of the Java producer.
const BATCH_BYTES_MAX: usize = 16 << 10;
/// `max.request.size` of the Java producer.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// A batch, and the time when each of its records was sent.
#[derive(Debug, Default)]
pub(crate) struct PendingBatch {
    pub(crate) partition: usize,
    pub(crate) builder: BatchBuilder,
    pub(crate) sent_ns: Vec<u64>,
    /// The time of its first record.
    opened_ns: u64,
}

#[derive(Debug)]
pub(crate) struct Accumulator {
    linger_ns: u64,
    batch_bytes_max: usize,
    /// The bytes of a record within a batch, at most.
    record_bytes: usize,
    /// Batches that may grow, at most one for each partition, oldest first.
    open: VecDeque<PendingBatch>,
    /// Full batches, oldest first.
    full: VecDeque<PendingBatch>,
    /// Acknowledged batches, whose buffers are used again.
    spare: Vec<PendingBatch>,
    bytes: usize,
}

/// Bytes of a record around its value, at most: the varints of lengths and deltas.
const RECORD_FRAME_BYTES_MAX: usize = 24;

impl Accumulator {
    pub(crate) fn new(linger_ns: u64, value_bytes: usize) -> Self {
        Self {
            linger_ns,
            batch_bytes_max: BATCH_BYTES_MAX,
            record_bytes: value_bytes + RECORD_FRAME_BYTES_MAX,
            open: VecDeque::new(),
            full: VecDeque::new(),
            spare: Vec::new(),
            bytes: 0,
        }
    }

    /// With batches of another size than the Java producer's.
    pub(crate) fn with_batches_of(mut self, bytes: usize) -> Self {
        self.batch_bytes_max = bytes;
        self
    }

    /// Returns about the number of bytes of all batches that no request has taken.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.full.is_empty()
    }

    /// Adds a record by `append` to the partition's batch; returns true if that batch is full now.
    pub(crate) fn add(
        &mut self,
        partition: usize,
        now_ns: u64,
        sent_ns: u64,
        append: impl FnOnce(&mut BatchBuilder),
    ) -> bool {
        let index = self.open_index(partition, now_ns);
        let batch = &mut self.open[index];
        append(&mut batch.builder);
        batch.sent_ns.push(sent_ns);
        self.bytes += self.record_bytes;
        let is_full = batch.builder.len() + self.record_bytes > self.batch_bytes_max;
        if is_full {
            let batch = self.open.remove(index).expect("the index was just used");
            self.full.push_back(batch);
        }
        is_full
    }

    fn open_index(&mut self, partition: usize, now_ns: u64) -> usize {
        if let Some(index) = self.open.iter().position(|batch| batch.partition == partition) {
            return index;
        }
        let mut batch = self.spare.pop().unwrap_or_default();
        batch.builder.clear();
        batch.sent_ns.clear();
        (batch.partition, batch.opened_ns) = (partition, now_ns);
        self.open.push_back(batch);
        self.open.len() - 1
    }

    /// Takes the batches of the next request: full ones, and those that have lingered (or `flush`: all). Empty if
    /// nothing is to be sent yet.
    pub(crate) fn take_request(&mut self, now_ns: u64, flush: bool) -> Vec<PendingBatch> {
        let mut request: Vec<PendingBatch> = Vec::new();
        let mut bytes = 0;
        let linger_ns = self.linger_ns;
        let fits = |request: &[PendingBatch], bytes: usize, batch: &PendingBatch| {
            bytes + batch.builder.len() <= REQUEST_BYTES_MAX
                && request.iter().all(|other| other.partition != batch.partition)
        };
        let mut take = |queue: &mut VecDeque<PendingBatch>, only_lingered: bool| {
            let mut index = 0;
            while let Some(batch) = queue.get(index) {
                let is_due = !only_lingered || flush || now_ns >= batch.opened_ns + linger_ns;
                if is_due && fits(&request, bytes, batch) {
                    bytes += batch.builder.len();
                    request.extend(queue.remove(index));
                } else {
                    index += 1;
                }
            }
        };
        take(&mut self.full, false);
        // An open batch is younger than the full ones of its partition, which `fits` lets go first.
        take(&mut self.open, true);
        let records: usize = request.iter().map(|batch| batch.sent_ns.len()).sum();
        self.bytes -= records * self.record_bytes;
        request
    }

    /// Returns the time when the oldest open batch will have lingered.
    pub(crate) fn linger_ends_ns(&self) -> Option<u64> {
        self.open.front().map(|batch| batch.opened_ns + self.linger_ns)
    }

    /// Takes back a batch that was acknowledged, for its buffers.
    pub(crate) fn recycle(&mut self, batch: PendingBatch) {
        self.spare.push(batch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(accumulator: &mut Accumulator, partition: usize, now_ns: u64) -> bool {
        let append = |builder: &mut BatchBuilder| builder.append(0, 1_000, |writer| writer.raw(&[0; 1_000]));
        accumulator.add(partition, now_ns, now_ns, append)
    }

    fn taken(accumulator: &mut Accumulator, now_ns: u64) -> Vec<(usize, i32)> {
        let request = accumulator.take_request(now_ns, false);
        request.iter().map(|batch| (batch.partition, batch.builder.count())).collect()
    }

    #[test]
    fn a_batch_leaves_when_it_has_lingered() {
        let mut accumulator = Accumulator::new(5, 1_000);
        assert!(!add(&mut accumulator, 2, 10));
        assert!(!add(&mut accumulator, 2, 12));
        assert_eq!(accumulator.linger_ends_ns(), Some(15));
        assert_eq!(taken(&mut accumulator, 14), []);
        assert_eq!(taken(&mut accumulator, 15), [(2, 2)]);
        assert!(accumulator.is_empty());
        assert_eq!(accumulator.bytes(), 0);
    }

    #[test]
    fn a_full_batch_leaves_at_once_and_no_two_of_a_partition_share_a_request() {
        let mut accumulator = Accumulator::new(1_000, 1_000);
        let filled: Vec<bool> = (0..33).map(|_| add(&mut accumulator, 1, 0)).collect();
        assert_eq!(filled.iter().filter(|full| **full).count(), 2);
        add(&mut accumulator, 0, 0);
        let first = filled.iter().position(|full| *full).unwrap() as i32 + 1;
        assert_eq!(taken(&mut accumulator, 1), [(1, first)]);
        // The open batch of partition 1 has to wait for the full one before it.
        assert_eq!(taken(&mut accumulator, 1_000), [(1, first), (0, 1)]);
        assert_eq!(taken(&mut accumulator, 1_000), [(1, 33 - 2 * first)]);
        assert!(accumulator.is_empty());
    }

    #[test]
    fn without_linger_records_share_a_batch_only_until_it_is_taken() {
        let mut accumulator = Accumulator::new(0, 1_000);
        add(&mut accumulator, 0, 7);
        assert_eq!(taken(&mut accumulator, 7), [(0, 1)]);
        for partition in [1, 2, 1] {
            add(&mut accumulator, partition, 8);
        }
        assert_eq!(taken(&mut accumulator, 9), [(1, 2), (2, 1)]);
    }

    #[test]
    fn flushing_takes_what_has_not_lingered() {
        let mut accumulator = Accumulator::new(5, 1_000);
        add(&mut accumulator, 0, 10);
        let request = accumulator.take_request(11, true);
        assert_eq!(request.len(), 1);
        request.into_iter().for_each(|batch| accumulator.recycle(batch));
        add(&mut accumulator, 3, 20);
        assert_eq!(taken(&mut accumulator, 25), [(3, 1)]);
    }
}
