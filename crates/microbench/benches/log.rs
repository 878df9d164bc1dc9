//! Cost of an append to a log, from the client's batch on, and of a read of its tail. The system calls are timed and not counted: callgrind
//! sees no instruction of the kernel.

#![allow(clippy::unwrap_used, reason = "a bench may panic")]

use std::sync::Arc;

use mainstem_log::dir::{LogDir, NodeIdentity};
use mainstem_log::storage::RealStorage;
use mainstem_log::{Log, LogConfig, Origin, PartitionIdentity, ReadBound, ReadPlan, prepare};
use mainstem_microbench::{Case, Suite};
use mainstem_records::{BatchBuilder, BatchOptions, LeaderEpoch, ProducerFields, Scratch};

const NOW_MS: i64 = 1_700_000_000_000;

fn main() {
    let mut suite = Suite::from_args("log");
    for (name, records, value_bytes, calls) in
        [("append_100", 1, 100, 2_000), ("append_1024", 1, 1_024, 2_000), ("append_512x100", 512, 100, 200)]
    {
        let input = || Appending::new(batch(records, value_bytes, ProducerFields::default()));
        suite.measure(Case { name, calls }, input, Appending::append);
    }
    suite.measure(
        Case { name: "append_idempotent_100", calls: 2_000 },
        || Idempotent { appending: Appending::new(Vec::new()), batches: idempotent_batches() },
        Idempotent::append,
    );
    let input = || {
        let mut appending = Appending::new(batch(1, 1_024, ProducerFields::default()));
        (0..100).for_each(|_| _ = appending.append());
        appending
    };
    suite.measure(Case { name: "read_tail_1024", calls: 2_000 }, input, Appending::read_tail);
}

/// A log in a directory of its own, and the batch that is appended to it.
struct Appending {
    log: Log,
    batch: Vec<u8>,
    scratch: Scratch,
    rewritten: Vec<u8>,
    // Dropped after the log.
    _directory: tempfile::TempDir,
}

impl Appending {
    fn new(batch: Vec<u8>) -> Appending {
        let directory = tempfile::tempdir().unwrap();
        let identity = NodeIdentity { cluster_id: None, node_id: 1 };
        let path = directory.path().join("data");
        let dir = LogDir::open(Arc::new(RealStorage), &path, &identity, "boot").unwrap();
        let partition = PartitionIdentity { topic: "bench".into(), topic_id: [1; 16], partition: 0 };
        let log = Log::open(&dir, &partition, Arc::new(LogConfig::default()), 0).unwrap().0;
        Appending { log, batch, scratch: Scratch::new(), rewritten: Vec::new(), _directory: directory }
    }

    fn append(&mut self) -> i64 {
        let (scratch, rewritten) = (&mut self.scratch, &mut self.rewritten);
        let config = self.log.config().clone();
        let prepared = prepare(&self.batch, &config, NOW_MS, Origin::Client, scratch, rewritten).unwrap();
        self.log.append(&prepared, LeaderEpoch::ZERO, 0).unwrap().base_offset
    }

    /// Plans the read of the last record, as a consumer that keeps up asks for it.
    fn read_tail(&mut self) -> usize {
        let last = self.log.ends().log_end - 1;
        match self.log.read(last, ReadBound::HighWatermark, 1 << 20, true).unwrap() {
            ReadPlan::Range(range) => range.len,
            plan => panic!("the last record is not at hand: {plan:?}"),
        }
    }
}

/// An idempotent producer (KIP-98) whose batches were made beforehand: each has the next sequence number.
struct Idempotent {
    appending: Appending,
    batches: std::vec::IntoIter<Vec<u8>>,
}

impl Idempotent {
    fn append(&mut self) -> i64 {
        self.appending.batch = self.batches.next().unwrap();
        self.appending.append()
    }
}

fn idempotent_batches() -> std::vec::IntoIter<Vec<u8>> {
    let batches = (0..=2_000).map(|base_sequence| {
        let producer = ProducerFields { producer_id: 1, producer_epoch: 0, base_sequence };
        batch(1, 100, producer)
    });
    batches.collect::<Vec<_>>().into_iter()
}

fn batch(records: usize, value_bytes: usize, producer: ProducerFields) -> Vec<u8> {
    let mut builder = BatchBuilder::new(BatchOptions { producer, ..BatchOptions::default() });
    for _ in 0..records {
        builder.append(NOW_MS, None, Some(&vec![b'x'; value_bytes]), &[]).unwrap();
    }
    builder.build().unwrap()
}
