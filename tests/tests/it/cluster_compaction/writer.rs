//! A producer that changes and deletes keys, and notes what was acknowledged last.

use std::collections::BTreeMap;

use mainstem_client::{Delivery, Producer, ProducerConfig, Record};
use mainstem_tests::cluster::Cluster;
use tokio::runtime::Runtime;

const KEYS: usize = 40;
/// Every so many changes one deletes its key. No divisor of the number of keys: all are deleted at times.
const CHANGES_FOR_A_DELETION: usize = 7;
const VALUE_BYTES: usize = 200;
/// Bytes of a batch: a few records, so that each segment has some batches.
const BATCH_BYTES: usize = 1_500;

/// Values by key.
pub(crate) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// An idempotent producer. All that it writes is acknowledged by all replicas in sync.
pub(crate) struct Writer {
    topic: &'static str,
    producer: Producer,
    /// Number of changes so far.
    count: usize,
    /// The last acknowledged offset and value of each key; no value where it was deleted.
    acknowledged: BTreeMap<Vec<u8>, (i64, Option<Vec<u8>>)>,
}

impl Writer {
    pub(crate) fn new(cluster: &Cluster, runtime: &Runtime, topic: &'static str) -> Writer {
        let _context = runtime.enter();
        let config = ProducerConfig { batch_bytes: BATCH_BYTES, ..ProducerConfig::new(cluster.client()) };
        let producer = Producer::new(config).expect("the settings agree");
        Writer { topic, producer, count: 0, acknowledged: BTreeMap::new() }
    }

    /// Writes so many changes, which have to be acknowledged.
    pub(crate) fn write(&mut self, runtime: &Runtime, changes: usize) {
        self.write_over(runtime, changes, || {});
    }

    /// The same, with a fault when the first half is acknowledged and the rest is under way.
    pub(crate) fn write_over(&mut self, runtime: &Runtime, changes: usize, fault: impl FnOnce()) {
        let mut sent = Vec::new();
        for _ in 0..changes {
            sent.push(runtime.block_on(self.send_next()));
        }
        let rest = sent.split_off(changes / 2);
        self.acknowledge(runtime, sent);
        fault();
        self.acknowledge(runtime, rest);
    }

    async fn send_next(&mut self) -> (Vec<u8>, Option<Vec<u8>>, Delivery) {
        self.count += 1;
        let key = format!("key-{}", self.count % KEYS).into_bytes();
        let value = (!self.count.is_multiple_of(CHANGES_FOR_A_DELETION)).then(|| {
            let mut value = format!("value-{}-", self.count).into_bytes();
            value.resize(VALUE_BYTES, b'.');
            value
        });
        let record = match &value {
            Some(value) => Record::new(self.topic, value.clone()).key(key.clone()),
            None => Record::tombstone(self.topic, key.clone()),
        };
        let delivery = self.producer.send(record.partition(0)).await.expect("it is taken");
        (key, value, delivery)
    }

    fn acknowledge(&mut self, runtime: &Runtime, sent: Vec<(Vec<u8>, Option<Vec<u8>>, Delivery)>) {
        for (key, value, delivery) in sent {
            let delivered = runtime.block_on(delivery.outcome()).expect("it is acknowledged");
            let offset = delivered.offset.expect("the offset of a new record is known");
            self.acknowledged.insert(key, (offset, value));
        }
    }

    /// The offset behind the last acknowledged record.
    pub(crate) fn end(&self) -> i64 {
        self.acknowledged.values().map(|(offset, _)| offset + 1).max().unwrap_or(0)
    }

    /// The last acknowledged values of keys that are not deleted.
    pub(crate) fn values(&self) -> Model {
        let value =
            |(key, (_, value)): (&Vec<u8>, &(i64, Option<Vec<u8>>))| Some((key.clone(), value.clone()?));
        self.acknowledged.iter().filter_map(value).collect()
    }
}
