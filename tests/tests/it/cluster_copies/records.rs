//! A producer whose records are all acknowledged, and a reader of all records.

use std::collections::BTreeMap;

use mainstem_client::{
    Consumer, ConsumerConfig, Delivery, Position, Producer, ProducerConfig, Record, TopicPartition,
};
use mainstem_tests::cluster::Cluster;
use tokio::runtime::Runtime;

/// Bytes of a batch: a few small records, so that each segment has some batches.
const BATCH_BYTES: usize = 1_500;

/// Offsets and values of a partition.
pub(crate) type Records = Vec<(i64, Vec<u8>)>;

/// An idempotent producer, the same over all faults.
pub(crate) struct Writer<'a> {
    runtime: &'a Runtime,
    producer: Producer,
    value_bytes: usize,
    /// Number of records so far. Each one has its own value.
    count: u64,
    /// The numbers of acknowledged records, by their offsets.
    acknowledged: BTreeMap<TopicPartition, BTreeMap<i64, u64>>,
}

impl Writer<'_> {
    pub(crate) fn new<'a>(cluster: &Cluster, runtime: &'a Runtime, value_bytes: usize) -> Writer<'a> {
        let _context = runtime.enter();
        let config = ProducerConfig { batch_bytes: BATCH_BYTES, ..ProducerConfig::new(cluster.client()) };
        let producer = Producer::new(config).expect("the settings agree");
        Writer { runtime, producer, value_bytes, count: 0, acknowledged: BTreeMap::new() }
    }

    /// Writes so many records to each partition, which have to be acknowledged.
    pub(crate) fn write(&mut self, partitions: &[TopicPartition], records: usize) {
        self.write_over(partitions, records, || {});
    }

    /// The same, with a fault when the first half is acknowledged and the rest is under way.
    pub(crate) fn write_over(&mut self, partitions: &[TopicPartition], records: usize, fault: impl FnOnce()) {
        let mut sent = Vec::new();
        for _ in 0..records {
            sent.extend(partitions.iter().map(|partition| self.send_next(partition)));
        }
        let rest = sent.split_off(sent.len() / 2);
        self.acknowledge(sent);
        fault();
        self.acknowledge(rest);
    }

    fn send_next(&mut self, partition: &TopicPartition) -> (TopicPartition, u64, Delivery) {
        self.count += 1;
        let record = Record::new(&*partition.topic, self.value(self.count)).partition(partition.partition);
        let delivery = self.runtime.block_on(self.producer.send(record)).expect("it is taken");
        (partition.clone(), self.count, delivery)
    }

    fn acknowledge(&mut self, sent: Vec<(TopicPartition, u64, Delivery)>) {
        for (partition, number, delivery) in sent {
            let delivered = self.runtime.block_on(delivery.outcome()).expect("it is acknowledged");
            let offset = delivered.offset.expect("the offset of a new record is known");
            let before = self.acknowledged.entry(partition).or_default().insert(offset, number);
            assert_eq!(before, None, "two records with offset {offset}");
        }
    }

    fn value(&self, number: u64) -> Vec<u8> {
        let mut value = number.to_be_bytes().repeat(self.value_bytes.div_ceil(8));
        value.truncate(self.value_bytes);
        value
    }

    /// The offset behind the last acknowledged record.
    pub(crate) fn end(&self, partition: &TopicPartition) -> i64 {
        let last = self.acknowledged.get(partition).and_then(BTreeMap::last_key_value);
        last.map_or(0, |(offset, _)| offset + 1)
    }

    /// Asserts that these records of a partition are those that were acknowledged from the first one on, each once.
    #[track_caller]
    pub(crate) fn assert_acknowledged(&self, partition: &TopicPartition, found: &Records) {
        let (from, _) = *found.first().expect("a record");
        let wanted = self.acknowledged[partition].range(from..);
        assert_eq!(found.len(), wanted.clone().count(), "records of {partition} from offset {from} on");
        let differing = found
            .iter()
            .zip(wanted)
            .find(|((offset, value), (wanted, number))| offset != *wanted || *value != self.value(**number));
        let shown = differing.map(|((offset, _), (wanted, number))| (*offset, *wanted, *number));
        assert_eq!(
            shown, None,
            "{partition}: an offset, and the acknowledged one with the number of its record"
        );
    }
}

/// Reads partitions from their beginnings to these ends.
pub(crate) async fn read_from_the_beginning(
    cluster: &Cluster,
    ends: &BTreeMap<TopicPartition, i64>,
) -> BTreeMap<TopicPartition, Records> {
    let mut consumer = Consumer::new(ConsumerConfig::new(cluster.client())).expect("the settings agree");
    consumer.assign(ends.keys().map(|partition| (partition.clone(), Position::Beginning)));
    let mut found = BTreeMap::<TopicPartition, Records>::new();
    let mut left = ends.clone();
    while !left.is_empty() {
        let batch = consumer.next().await.expect("a batch");
        let records = batch.owned_records().map(|record| record.expect("a record"));
        let records = records.map(|record| (record.offset, record.value.expect("a value").to_vec()));
        found.entry(batch.partition().clone()).or_default().extend(records);
        left.retain(|partition, end| partition != batch.partition() || batch.next_offset() < *end);
    }
    consumer.close().await;
    found
}
