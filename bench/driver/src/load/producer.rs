//! A producer: one record, its acknowledgement, the next one, over all partitions in turn.

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;

use super::phases::Phases;
use super::{PARTITIONS, Plan, new_histogram};
use crate::clock;
use crate::connection::Connection;
use crate::payload::{Payload, PayloadCodec};
use crate::protocol::{TopicId, data};

#[derive(Debug)]
pub(crate) struct Producer {
    connection: Connection,
    topic: TopicId,
    codec: PayloadCodec,
    id: u32,
}

#[derive(Debug)]
pub(crate) struct ProducerTotals {
    pub(crate) produced: u64,
    pub(crate) acked_in_window: u64,
    pub(crate) ack_ns: Histogram<u64>,
}

/// The partition of a producer's record: producers begin three apart, so that two do not follow each other.
pub(crate) fn partition_of(producer: u32, sequence: u64) -> u32 {
    ((sequence + u64::from(producer) * 3) % PARTITIONS as u64) as u32
}

impl Producer {
    pub(crate) fn new(plan: &Plan, topic: TopicId, id: u32) -> Result<Self> {
        let connection = Connection::open(plan.target.address)?;
        Ok(Self { connection, topic, codec: PayloadCodec::new(plan.workload.value_bytes), id })
    }

    pub(crate) fn run(mut self, phases: &Phases) -> Result<ProducerTotals> {
        let mut totals = ProducerTotals { produced: 0, acked_in_window: 0, ack_ns: new_histogram() };
        let mut last_offsets = [-1; PARTITIONS as usize];
        while !phases.is_stopped() {
            let sent_ns = clock::now_ns();
            let sequence = totals.produced;
            let partition = partition_of(self.id, sequence);
            let payload = Payload { sequence, sent_ns, producer: self.id, partition };
            let offset = data::produce(&mut self.connection, &self.topic, &self.codec, payload)?;
            let acked_ns = clock::now_ns();
            let last_offset = &mut last_offsets[partition as usize];
            ensure!(offset > *last_offset, "offset {offset} was acknowledged after offset {last_offset}");
            *last_offset = offset;
            totals.produced += 1;
            totals.acked_in_window += u64::from(phases.window_contains(acked_ns));
            if phases.window_contains(sent_ns) {
                totals.ack_ns.record(acked_ns - sent_ns)?;
            }
        }
        Ok(totals)
    }
}
