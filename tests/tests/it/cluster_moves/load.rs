//! A steady writer of each partition and a reader of all of them, over everything that happens to the cluster.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainstem_client::{
    ClientConfig, Consumer, ConsumerConfig, Delivery, Position, Producer, ProducerConfig, Record,
    TopicPartition,
};
use mainstem_tests::cluster::replica::ReplicaBatch;
use mainstem_tests::wait::{TIMEOUT, eventually};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use super::scene::Scene;

/// Time between two records of a partition.
const PAUSE: Duration = Duration::from_millis(3);

/// The numbers of records, by their offsets.
type Numbers = BTreeMap<i64, u64>;

/// The records that are written before the steady load begins, to each partition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fill {
    pub(super) records: usize,
    pub(super) value_bytes: usize,
}

impl Fill {
    /// More than a throttled replica gets: a leader sends a MiB at once to a replica that connects.
    pub(super) const LARGE: Fill = Fill { records: 1_200, value_bytes: 8_000 };
}

/// The acknowledged records of some partitions.
pub(super) struct Written {
    producer: Producer,
    value_bytes: usize,
    /// Number of records so far. Each one has its own value.
    count: AtomicU64,
    acknowledged: Mutex<BTreeMap<TopicPartition, Numbers>>,
}

impl Written {
    async fn fill(&self, partition: &TopicPartition, records: usize) {
        let mut sent = Vec::new();
        for _ in 0..records {
            sent.push(self.send(partition).await);
        }
        for (number, delivery) in sent {
            self.acknowledge(partition, number, delivery).await;
        }
    }

    async fn send(&self, partition: &TopicPartition) -> (u64, Delivery) {
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let mut value = number.to_be_bytes().repeat(self.value_bytes.div_ceil(8));
        value.truncate(self.value_bytes);
        let record = Record::new(&*partition.topic, value).partition(partition.partition);
        (number, self.producer.send(record).await.expect("it is taken"))
    }

    async fn acknowledge(&self, partition: &TopicPartition, number: u64, delivery: Delivery) {
        let delivered = delivery.outcome().await.expect("it is acknowledged");
        let offset = delivered.offset.expect("the offset of a new record is known");
        let mut acknowledged = self.acknowledged.lock().unwrap();
        let before = acknowledged.entry(partition.clone()).or_default().insert(offset, number);
        assert_eq!(before, None, "two records with offset {offset}");
    }

    /// The partitions.
    pub(super) fn partitions(&self) -> Vec<TopicPartition> {
        self.acknowledged.lock().unwrap().keys().cloned().collect()
    }

    /// The offsets behind the last acknowledged records.
    pub(super) fn ends(&self) -> BTreeMap<TopicPartition, i64> {
        let end = |numbers: &Numbers| numbers.last_key_value().map_or(0, |(offset, _)| offset + 1);
        let acknowledged = self.acknowledged.lock().unwrap();
        acknowledged.iter().map(|(partition, numbers)| (partition.clone(), end(numbers))).collect()
    }

    /// The offset behind the last acknowledged record of a partition.
    pub(super) fn end(&self, partition: &TopicPartition) -> i64 {
        self.ends()[partition]
    }

    /// Asserts that a replica has what was acknowledged, each record once.
    #[track_caller]
    pub(super) fn assert_has_all(&self, partition: &TopicPartition, batches: &[ReplicaBatch]) {
        let records = batches.iter().flat_map(ReplicaBatch::records);
        let found = records.map(|(offset, value)| (offset, self.number(&value))).collect();
        self.assert_same(partition, &found, "its replicas");
    }

    #[track_caller]
    fn assert_same(&self, partition: &TopicPartition, found: &Vec<(i64, u64)>, place: &str) {
        let acknowledged = self.acknowledged.lock().unwrap();
        let wanted: Vec<_> =
            acknowledged[partition].iter().map(|(offset, number)| (*offset, *number)).collect();
        let differing = std::iter::zip(found, &wanted).find(|(found, wanted)| found != wanted);
        assert_eq!(differing, None, "{partition}: a record of {place}, and the acknowledged one");
        assert_eq!(found.len(), wanted.len(), "{partition}: records of {place}, and acknowledged ones");
    }

    /// The number of the record with this value.
    #[track_caller]
    fn number(&self, value: &[u8]) -> u64 {
        assert_eq!(value.len(), self.value_bytes, "a value is whole");
        let (number, rest) = value.split_first_chunk::<8>().expect("a value has a number");
        assert!(rest.iter().zip(value).all(|(one, other)| one == other), "a value is what was written");
        u64::from_be_bytes(*number)
    }
}

/// The load while it runs.
pub(super) struct Load {
    runtime: Handle,
    written: Arc<Written>,
    has_to_stop: Arc<AtomicBool>,
    writers: JoinSet<()>,
    reader: JoinHandle<BTreeMap<TopicPartition, Vec<(i64, u64)>>>,
    ends: oneshot::Sender<BTreeMap<TopicPartition, i64>>,
}

impl Load {
    /// Fills these partitions. From then on all are written to and read.
    pub(super) fn start(scene: &Scene, partitions: &[TopicPartition], fill: Fill) -> Load {
        let _context = scene.runtime.enter();
        let producer =
            Producer::new(ProducerConfig::new(scene.cluster.client())).expect("the settings agree");
        let acknowledged = partitions.iter().map(|partition| (partition.clone(), Numbers::new())).collect();
        let written = Written {
            producer,
            value_bytes: fill.value_bytes,
            count: AtomicU64::new(0),
            acknowledged: Mutex::new(acknowledged),
        };
        for partition in partitions {
            scene.runtime.block_on(written.fill(partition, fill.records));
        }
        Load::continue_after(scene, written)
    }

    /// Continues after an earlier load, with the same producer.
    pub(super) fn continue_after(scene: &Scene, written: Written) -> Load {
        let _context = scene.runtime.enter();
        let (written, has_to_stop) = (Arc::new(written), Arc::new(AtomicBool::new(false)));
        let mut writers = JoinSet::new();
        for partition in written.partitions() {
            writers.spawn(write(written.clone(), partition, has_to_stop.clone()));
        }
        let (ends, awaited_ends) = oneshot::channel();
        let reader = tokio::spawn(read(scene.cluster.client(), written.clone(), awaited_ends));
        let load =
            Load { runtime: scene.runtime.handle().clone(), written, has_to_stop, writers, reader, ends };
        load.await_more();
        load
    }

    /// Waits until a record of each partition is acknowledged that was sent after this call.
    #[track_caller]
    pub(super) fn await_more(&self) {
        let before = self.written.ends();
        eventually("more acknowledged records of each partition", || {
            // One may be under way already.
            self.written.ends().iter().all(|(partition, end)| *end > before[partition] + 1).then_some(())
        });
    }

    /// The offsets behind the last acknowledged records.
    pub(super) fn ends(&self) -> BTreeMap<TopicPartition, i64> {
        self.written.ends()
    }

    /// Stops the writers, and waits until the reader has read all. It has to have read what was acknowledged, in order and once.
    pub(super) fn end(mut self) -> Written {
        self.has_to_stop.store(true, Ordering::SeqCst);
        self.runtime.block_on(async {
            tokio::time::timeout(TIMEOUT, async {
                while let Some(ended) = self.writers.join_next().await {
                    ended.expect("a writer does not fail");
                }
            })
            .await
            .expect("the last records are acknowledged in time");
            self.ends.send(self.written.ends()).expect("the reader does not fail");
            let read = tokio::time::timeout(TIMEOUT, self.reader).await.expect("all is read in time");
            for (partition, found) in read.expect("the reader does not fail") {
                self.written.assert_same(&partition, &found, "a reader");
            }
        });
        Arc::into_inner(self.written).expect("the writers and the reader have ended")
    }
}

/// Writes to a partition until it has to stop.
async fn write(written: Arc<Written>, partition: TopicPartition, has_to_stop: Arc<AtomicBool>) {
    let mut pace = tokio::time::interval(PAUSE);
    while !has_to_stop.load(Ordering::SeqCst) {
        let (number, delivery) = written.send(&partition).await;
        written.acknowledge(&partition, number, delivery).await;
        pace.tick().await;
    }
}

/// Reads all from the beginning to the ends, which come at last.
async fn read(
    client: ClientConfig,
    written: Arc<Written>,
    mut awaited_ends: oneshot::Receiver<BTreeMap<TopicPartition, i64>>,
) -> BTreeMap<TopicPartition, Vec<(i64, u64)>> {
    let partitions = written.partitions();
    let mut consumer = Consumer::new(ConsumerConfig::new(client)).expect("the settings agree");
    consumer.assign(partitions.iter().map(|partition| (partition.clone(), Position::Beginning)));
    let mut found: BTreeMap<_, Vec<(i64, u64)>> =
        partitions.into_iter().map(|one| (one, Vec::new())).collect();
    let mut ends = None;
    loop {
        let is_at = |(partition, end): (&TopicPartition, &i64)| {
            found[partition].last().is_some_and(|(offset, _)| offset + 1 >= *end)
        };
        if ends.as_ref().is_some_and(|ends: &BTreeMap<_, _>| ends.iter().all(is_at)) {
            consumer.close().await;
            return found;
        }
        tokio::select! {
            said = &mut awaited_ends, if ends.is_none() => match said {
                Ok(said) => ends = Some(said),
                // The test has failed, or is skipped.
                Err(_) => return found,
            },
            batch = consumer.next() => {
                let batch = batch.expect("a batch");
                let records = batch.owned_records().map(|record| record.expect("a record"));
                let records = records.map(|one| (one.offset, written.number(&one.value.expect("a value"))));
                found.get_mut(batch.partition()).expect("it is read").extend(records);
            }
        }
    }
}
