//! The closed loop: one record, its acknowledgement, the next one, over all partitions in turn.

use anyhow::{Result, ensure};

use super::phases::Phases;
use super::producer::{Producer, ProducerTotals};
use crate::batch::{BatchBuilder, ProducerFields};
use crate::clock;
use crate::payload::Payload;
use crate::protocol::data;
use crate::workload::{Acks, LoadShape};

#[derive(Debug)]
pub(crate) struct ClosedLoop {
    producer: Producer,
    acks: Acks,
    /// The sequence number of the next record in each partition.
    sequences: Vec<u64>,
    last_offsets: Vec<i64>,
    batch: BatchBuilder,
}

impl ClosedLoop {
    pub(crate) fn new(producer: Producer, shape: &LoadShape) -> Self {
        let partitions = shape.partitions as usize;
        Self {
            producer,
            acks: shape.acks,
            sequences: vec![0; partitions],
            last_offsets: vec![-1; partitions],
            batch: BatchBuilder::default(),
        }
    }

    pub(crate) fn run(mut self, phases: &Phases) -> Result<ProducerTotals> {
        let mut totals = ProducerTotals::new();
        while !phases.is_stopped() {
            let sent_ns = clock::now_ns();
            let partition = partition_of(self.producer.number, totals.produced, self.sequences.len());
            self.send(partition, sent_ns)?;
            let acked_ns = clock::now_ns();
            totals.produced += 1;
            phases.add_acked(1);
            totals.acked_in_window += u64::from(phases.window_contains(acked_ns));
            if phases.window_contains(sent_ns) {
                totals.ack_ns.record(acked_ns - sent_ns)?;
            }
        }
        Ok(totals)
    }

    /// Sends one record and waits for its acknowledgement.
    fn send(&mut self, partition: usize, sent_ns: u64) -> Result<()> {
        let Producer { connection, topic, codec, number, identity } = &mut self.producer;
        let sequence = self.sequences[partition];
        self.sequences[partition] += 1;
        let payload = Payload { sequence, sent_ns, producer: *number, partition: partition as u32 };
        self.batch.clear();
        self.batch.append(clock::wall_ms(), codec.value_bytes(), |writer| codec.write(writer, payload));
        let batch = self.batch.finish(ProducerFields::of(*identity, sequence));
        let offset = data::produce(connection, self.acks, topic, partition as i32, batch)?;
        let last_offset = &mut self.last_offsets[partition];
        ensure!(offset > *last_offset, "offset {offset} was acknowledged after offset {last_offset}");
        *last_offset = offset;
        Ok(())
    }
}

/// The partition of a producer's record: producers begin three apart, so that two do not follow each other.
fn partition_of(producer: u32, count: u64, partitions: usize) -> usize {
    ((count + u64::from(producer) * 3) % partitions as u64) as usize
}
