//! The partition of a record, where its key does not decide.

use anyhow::{Result, bail};
use mainstem_client::{Record, Topic};

/// The partitions of a topic. Records without a key go to one partition until it has a batch, then to the next.
#[derive(Debug)]
pub(crate) struct Partitions {
    topic: String,
    count: i32,
    /// The partition of the command line, for records that do not name their own.
    chosen: Option<i32>,
    /// The partition for records without a key.
    turn: i32,
    /// Bytes of records that `turn` has got.
    bytes: usize,
    bytes_max: usize,
}

impl Partitions {
    /// The partitions of a topic; `bytes_max` is the size of a batch.
    pub(crate) fn new(topic: &Topic, chosen: Option<i32>, bytes_max: usize) -> Result<Self> {
        if let Some(index) = chosen {
            topic.partition(index)?;
        }
        if topic.partitions.is_empty() {
            bail!("topic {} has no partitions", topic.name);
        }
        let count = i32::try_from(topic.partitions.len())?;
        Ok(Partitions { topic: topic.name.to_string(), count, chosen, turn: 0, bytes: 0, bytes_max })
    }

    /// Chooses the partition of a record, unless its key does.
    pub(crate) fn choose(&mut self, record: &mut Record) -> Result<()> {
        record.partition = record.partition.or(self.chosen);
        match (record.partition, &record.key) {
            (Some(index), _) if !(0..self.count).contains(&index) => {
                bail!("topic {} has no partition {index}; it has 0 to {}", self.topic, self.count - 1)
            }
            (Some(_), _) | (None, Some(_)) => {}
            (None, None) => {
                record.partition = Some(self.turn);
                self.bytes += record.value.as_ref().map_or(0, bytes::Bytes::len);
                if self.bytes >= self.bytes_max {
                    self.next();
                }
            }
        }
        Ok(())
    }

    /// Ends the batch, as the input pauses.
    pub(crate) fn pause(&mut self) {
        if self.bytes > 0 {
            self.next();
        }
    }

    fn next(&mut self) {
        self.turn = (self.turn + 1) % self.count;
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use mainstem_client::{Partition, Uuid};

    use super::*;

    fn partitions(count: i32, chosen: Option<i32>) -> Result<Partitions> {
        let line =
            |index| Partition { index, leader: Some(1), leader_epoch: 0, replicas: vec![1], isr: vec![1] };
        let partitions = (0..count).map(line).collect();
        let topic = Topic { name: "t".into(), id: Uuid::ZERO, is_internal: false, partitions };
        Partitions::new(&topic, chosen, 100)
    }

    fn record(partition: Option<i32>, key: Option<&'static str>) -> Record {
        Record { partition, key: key.map(Into::into), ..Record::new("t", "x") }
    }

    fn chosen(partitions: &mut Partitions, mut record: Record) -> Option<i32> {
        partitions.choose(&mut record).unwrap();
        record.partition
    }

    #[test]
    fn the_record_decides_then_the_command_then_the_key_then_the_turn() {
        let mut to = partitions(4, None).unwrap();
        assert_eq!(chosen(&mut to, record(Some(3), Some("21"))), Some(3));
        assert_eq!(chosen(&mut to, record(None, Some("21"))), None, "the client knows");
        assert_eq!(chosen(&mut to, record(None, None)), Some(0));
        let mut to = partitions(4, Some(1)).unwrap();
        assert_eq!(chosen(&mut to, record(None, Some("21"))), Some(1));
        assert_eq!(chosen(&mut to, record(Some(2), None)), Some(2));
    }

    #[test]
    fn the_turn_is_the_next_ones_after_a_batch_or_a_pause() {
        let mut to = partitions(2, None).unwrap();
        let mut take = |bytes: usize| {
            let taken = chosen(&mut to, Record::new("t", vec![b'x'; bytes]));
            if bytes == 1 {
                to.pause();
            }
            taken
        };
        assert_eq!(
            [60, 60, 50, 1, 1, 5].map(&mut take),
            [Some(0), Some(0), Some(1), Some(1), Some(0), Some(1)]
        );
    }

    #[test]
    fn partitions_must_exist() {
        assert!(partitions(2, Some(2)).is_err());
        assert!(partitions(0, None).is_err());
        let error = partitions(2, None).unwrap().choose(&mut record(Some(2), None)).unwrap_err();
        assert_eq!(error.to_string(), "topic t has no partition 2; it has 0 to 1");
    }
}
