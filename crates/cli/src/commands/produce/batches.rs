//! Records on their way, gathered into a batch per partition.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use mainstem_client::partition_of_key;
use mainstem_records::{BatchBuilder, BatchOptions, Compression, Header};

use super::sender::Sender;
use crate::cluster::Topic;
use crate::record_json::NewRecord;

/// The batches that are being filled.
#[derive(Debug)]
pub(crate) struct Batches {
    topic: String,
    compression: Compression,
    bytes_max: usize,
    /// Where records go that do not say otherwise.
    partition: Option<i32>,
    partitions: Vec<i32>,
    /// Index of the partition for records without a key: one batch, then the next partition.
    turn: usize,
    builders: BTreeMap<i32, BatchBuilder>,
    bytes: usize,
}

impl Batches {
    /// No batches yet. They go out together when one or all of them have `bytes_max` bytes.
    pub(crate) fn new(
        topic: &Topic,
        compression: Compression,
        bytes_max: u32,
        partition: Option<i32>,
    ) -> Result<Self> {
        if let Some(index) = partition {
            topic.partition(index)?;
        }
        if topic.partitions.is_empty() {
            bail!("topic {} has no partitions", topic.name);
        }
        Ok(Batches {
            topic: topic.name.clone(),
            compression,
            bytes_max: bytes_max as usize,
            partition,
            partitions: topic.partitions.iter().map(|partition| partition.index).collect(),
            turn: 0,
            builders: BTreeMap::new(),
            bytes: 0,
        })
    }

    /// Whether they should go out.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes >= self.bytes_max
    }

    /// Adds the record of a line.
    pub(crate) fn add(&mut self, record: &NewRecord, line: u64) -> Result<()> {
        let partition = self.partition_of(record).with_context(|| format!("line {line} of the input"))?;
        let headers: Vec<Header<'_>> =
            record.headers.iter().map(|h| Header { key: &h.key, value: h.value.as_deref() }).collect();
        let timestamp = record.timestamp.unwrap_or_else(now_ms);
        let compression = self.compression;
        let builder = self
            .builders
            .entry(partition)
            .or_insert_with(|| BatchBuilder::new(BatchOptions { compression, ..BatchOptions::default() }));
        let before = builder.uncompressed_bytes();
        builder
            .append(timestamp, record.key.as_deref(), record.value.as_deref(), &headers)
            .with_context(|| format!("line {line} of the input"))?;
        self.bytes += builder.uncompressed_bytes() - before;
        Ok(())
    }

    fn partition_of(&self, record: &NewRecord) -> Result<i32> {
        let count = self.partitions.len();
        match (record.partition.or(self.partition), &record.key) {
            (Some(partition), _) if self.partitions.contains(&partition) => Ok(partition),
            (Some(partition), _) => {
                bail!("topic {} has no partition {partition}; it has 0 to {}", self.topic, count - 1)
            }
            (None, Some(key)) => Ok(self.partitions[partition_of_key(key, count)]),
            (None, None) => Ok(self.partitions[self.turn % count]),
        }
    }

    /// Sends all batches and waits for their acknowledgement.
    pub(crate) fn send_all(&mut self, sender: &mut Sender) -> Result<()> {
        let builders = std::mem::take(&mut self.builders);
        if builders.is_empty() {
            return Ok(());
        }
        self.bytes = 0;
        self.turn += 1;
        sender.send(builders)
    }
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

#[cfg(test)]
mod tests {
    use mainstem_wire::Uuid;

    use super::*;
    use crate::cluster::Partition;

    fn batches(count: i32, partition: Option<i32>) -> Result<Batches> {
        let line =
            |index| Partition { index, leader: Some(1), leader_epoch: 0, replicas: vec![1], isr: vec![1] };
        let partitions = (0..count).map(line).collect();
        let topic = Topic { name: "t".into(), id: Uuid::ZERO, is_internal: false, partitions };
        Batches::new(&topic, Compression::None, 100, partition)
    }

    fn record(partition: Option<i32>, key: Option<&str>) -> NewRecord {
        NewRecord { partition, key: key.map(|key| key.as_bytes().to_vec()), ..NewRecord::default() }
    }

    #[test]
    fn the_record_decides_then_the_command_then_the_key_then_the_turn() {
        let mut to = batches(4, None).unwrap();
        assert_eq!(to.partition_of(&record(Some(3), Some("21"))).unwrap(), 3);
        // (murmur2("21") & 0x7fffffff) % 4
        assert_eq!(to.partition_of(&record(None, Some("21"))).unwrap(), (-973_932_308 & 0x7fff_ffff) % 4);
        assert_eq!(to.partition_of(&record(None, None)).unwrap(), 0);
        to.turn = 6;
        assert_eq!(to.partition_of(&record(None, None)).unwrap(), 2);
        let to = batches(4, Some(1)).unwrap();
        assert_eq!(to.partition_of(&record(None, Some("21"))).unwrap(), 1);
        assert_eq!(to.partition_of(&record(Some(2), None)).unwrap(), 2);
    }

    #[test]
    fn partitions_must_exist() {
        assert!(batches(2, Some(2)).is_err());
        let mut to = batches(2, None).unwrap();
        let error = format!("{:#}", to.add(&record(Some(2), None), 7).unwrap_err());
        assert_eq!(error, "line 7 of the input: topic t has no partition 2; it has 0 to 1");
    }

    #[test]
    fn full_when_the_bytes_of_all_are_enough() {
        let mut to = batches(2, None).unwrap();
        let big = NewRecord { value: Some(vec![b'x'; 60]), ..NewRecord::default() };
        to.add(&big, 1).unwrap();
        assert!(!to.is_full());
        to.add(&NewRecord { partition: Some(1), ..big }, 2).unwrap();
        assert!(to.is_full());
    }
}
