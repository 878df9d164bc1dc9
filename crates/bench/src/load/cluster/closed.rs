//! The closed loop on several nodes: one record, its acknowledgement by its leader, the next one.

use anyhow::{Context, Result, ensure};

use super::Producer;
use crate::batch::{BatchBuilder, ProducerFields};
use crate::clock;
use crate::load::phases::Phases;
use crate::load::producer::ProducerTotals;
use crate::payload::Payload;
use crate::protocol::data;
use crate::workload::{Acks, LoadShape};

#[derive(Debug)]
pub(super) struct ClosedLoop {
    producer: Producer,
    acks: Acks,
    /// The sequence number of the next record in each partition.
    sequences: Vec<u64>,
    last_offsets: Vec<i64>,
    batch: BatchBuilder,
}

impl ClosedLoop {
    pub(super) fn new(producer: Producer, shape: &LoadShape) -> Self {
        let partitions = shape.partitions as usize;
        let (sequences, last_offsets) = (vec![0; partitions], vec![-1; partitions]);
        Self { producer, acks: shape.acks, sequences, last_offsets, batch: BatchBuilder::default() }
    }

    pub(super) fn run(mut self, phases: &Phases) -> Result<ProducerTotals> {
        let mut totals = ProducerTotals::new();
        while !phases.is_stopped() {
            let sent_ns = clock::now_ns();
            // Producers begin five apart, so that they do not follow each other.
            let turn = totals.produced as usize + self.producer.number as usize * 5;
            let partition = self.producer.partitions[turn % self.producer.partitions.len()];
            self.send(partition as usize, sent_ns)?;
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

    fn send(&mut self, partition: usize, sent_ns: u64) -> Result<()> {
        let Producer { connections, topic, codec, number, identity, .. } = &mut self.producer;
        let connection =
            connections.get_mut(&topic.leaders[partition]).context("each leader has a connection")?;
        let sequence = self.sequences[partition];
        self.sequences[partition] += 1;
        let payload = Payload { sequence, sent_ns, producer: *number, partition: partition as u32 };
        self.batch.clear();
        self.batch.append(clock::wall_ms(), codec.value_bytes(), |writer| codec.write(writer, payload));
        let batch = self.batch.finish(ProducerFields::of(*identity, sequence));
        let offset = data::produce(connection, self.acks, &topic.id, partition as i32, batch)?;
        let last_offset = &mut self.last_offsets[partition];
        ensure!(offset > *last_offset, "offset {offset} was acknowledged after offset {last_offset}");
        *last_offset = offset;
        Ok(())
    }
}
