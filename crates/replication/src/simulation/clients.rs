//! Simulated clients: idempotent producers that retry until they know, and consumers that read on.

use super::World;
use super::node::Produced;
use crate::history::{Event, Operation, Outcome};
use mainstem_records::{BatchBuilder, BatchOptions, ProducerFields};

/// A producer gives up waiting for an answer after so long, and asks again.
const ANSWER_MAX_MS: u64 = 1_500;
/// Bytes of a record's value, so that segments fill.
const VALUE_BYTES: usize = 60;

/// A producer with acks=all and one batch on its way.
pub(super) struct Producer {
    process: i32,
    sequence: i32,
    current: Option<Sending>,
    stopped: bool,
}

/// A batch whose fate is not known.
struct Sending {
    values: Vec<u64>,
    bytes: Vec<u8>,
    /// Where, in which term and until when its commit is waited for.
    waits: Option<Waits>,
}

#[derive(Clone, Copy)]
struct Waits {
    node: usize,
    term: u64,
    base_offset: i64,
    next_offset: i64,
    until_ms: u64,
}

impl Producer {
    pub(super) fn new(process: i32) -> Producer {
        Producer { process, sequence: 0, current: None, stopped: false }
    }

    /// It sends what it has begun, and no more.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }

    fn batch(&self, values: &[u64]) -> Vec<u8> {
        let producer_id = i64::from(self.process) + 1;
        let producer = ProducerFields { producer_id, producer_epoch: 0, base_sequence: self.sequence };
        let mut builder = BatchBuilder::new(BatchOptions { producer, ..BatchOptions::default() });
        for value in values {
            let mut bytes = value.to_be_bytes().to_vec();
            bytes.resize(VALUE_BYTES, 0);
            builder.append(0, None, Some(&bytes), &[]).expect("a small record");
        }
        builder.build().expect("a small batch")
    }
}

/// A consumer at the leader.
pub(super) struct Consumer {
    process: i32,
    next: i64,
}

impl Consumer {
    pub(super) fn new(process: i32) -> Consumer {
        Consumer { process, next: 0 }
    }
}

impl World {
    fn note(&mut self, process: i32, operation: Operation, outcome: Outcome, offset: i64, value: u64) {
        let at_ms = self.now_ms;
        self.history.push(Event { at_ms, process, operation, outcome, partition: 0, offset, value });
    }

    /// Every producer begins, asks again, or learns its batch's fate.
    pub(super) fn produce(&mut self) {
        for number in 0..self.producers.len() {
            if self.producers[number].current.is_none() && !self.begin(number) {
                continue;
            }
            match self.producers[number].current.as_ref().and_then(|sending| sending.waits) {
                Some(waits) => self.look_for_commit(number, waits),
                None => self.send_batch(number),
            }
        }
    }

    fn begin(&mut self, number: usize) -> bool {
        if self.producers[number].stopped || !self.random.chance(30) {
            return false;
        }
        let count = 1 + self.random.below(3);
        let values: Vec<_> = (self.next_value..self.next_value + count).collect();
        self.next_value += count;
        let producer = &mut self.producers[number];
        let bytes = producer.batch(&values);
        producer.current = Some(Sending { values: values.clone(), bytes, waits: None });
        let process = producer.process;
        values.iter().for_each(|value| self.note(process, Operation::Append, Outcome::Invoke, -1, *value));
        true
    }

    fn send_batch(&mut self, number: usize) {
        // Mostly to who leads by the newest term; now and then to whom an old leader still is.
        let node = match self.random.chance(90) {
            true => self.leader(),
            false => Some(self.random.below(self.nodes.len() as u64) as usize),
        };
        let Some(node) = node else { return };
        let Some(sending) = &mut self.producers[number].current else { return };
        let Some(term) = self.nodes[node].leads() else { return };
        match self.nodes[node].produce(&sending.bytes, self.now_ms) {
            Produced::Appended(appended) => {
                sending.waits = Some(Waits {
                    node,
                    term,
                    base_offset: appended.base_offset,
                    next_offset: appended.last_offset + 1,
                    until_ms: self.now_ms + ANSWER_MAX_MS,
                });
            }
            Produced::NotLeader | Produced::Failed => {}
        }
    }

    fn look_for_commit(&mut self, number: usize, waits: Waits) {
        let leads = self.nodes[waits.node].leads() == Some(waits.term);
        let acknowledged = self.nodes[waits.node].acknowledged_offset(self.min_insync);
        let is_committed = acknowledged.is_some_and(|offset| offset >= waits.next_offset);
        let is_done = self.acknowledge_early || (leads && is_committed);
        let producer = &mut self.producers[number];
        let process = producer.process;
        if is_done {
            let Some(sending) = producer.current.take() else { return };
            producer.sequence += sending.values.len() as i32;
            for (offset, value) in (waits.base_offset..).zip(sending.values) {
                self.note(process, Operation::Append, Outcome::Ok, offset, value);
            }
            return;
        }
        if !leads || self.now_ms >= waits.until_ms {
            let Some(sending) = &mut producer.current else { return };
            sending.waits = None;
            let values = sending.values.clone();
            values.iter().for_each(|value| self.note(process, Operation::Append, Outcome::Info, -1, *value));
        }
    }

    pub(super) fn consume(&mut self) {
        for number in 0..self.consumers.len() {
            // From any node that serves: what followers know to be committed is as good.
            let node = self.random.below(self.nodes.len() as u64) as usize;
            if !self.random.chance(20) {
                continue;
            }
            let (process, next) = (self.consumers[number].process, self.consumers[number].next);
            for (offset, value) in self.nodes[node].records(next, false) {
                self.note(process, Operation::Read, Outcome::Ok, offset, value);
                self.consumers[number].next = offset + 1;
            }
        }
    }
}
