//! Simulated clients: idempotent producers that retry until they know the outcome, and consumers that read to the end.

use crate::node::{Accepted, Fate};
use crate::world::World;
use mainstem_log::{Origin, VerificationGuard};
use mainstem_records::{BatchBuilder, BatchOptions, ProducerFields};
use mainstem_replication::history::{CONTROL, Event, Operation, Outcome};
use mainstem_store::partition::Refused;

/// Time after which a producer without an answer retries, in ms.
const ANSWER_MAX_MS: u64 = 1_500;
/// Refusals after which a producer restarts with another producer id and without the batch. Only used where records may be lost: the
/// leader may then no longer know the producer's sequence.
const REFUSALS_MAX: usize = 100;
/// Producer ids of these producers are above it. No node has given out so many.
const IDS_ABOVE: i64 = 1 << 40;
/// Difference between the producer ids of two lives of a producer.
const LIFE_IDS: i64 = 1_000_000;
/// Bytes of a record's value, so that segments fill.
const VALUE_BYTES: usize = 60;

/// A producer with acks=all and one batch on its way.
pub(crate) struct Producer {
    process: i32,
    partition: usize,
    sequence: i32,
    current: Option<Sending>,
    stopped: bool,
    /// Number of restarts under another producer id.
    lives: i64,
    refusals: usize,
}

/// A batch whose outcome is not known yet.
struct Sending {
    values: Vec<u64>,
    bytes: Vec<u8>,
    /// The wait for its commit; `None` before it is appended.
    waits: Option<Waits>,
}

#[derive(Clone)]
struct Waits {
    node: usize,
    term: u64,
    base_offset: i64,
    until_ms: u64,
    fate: Fate,
}

impl Producer {
    pub(crate) fn new(process: i32, partition: usize) -> Producer {
        Producer { process, partition, sequence: 0, current: None, stopped: false, lives: 0, refusals: 0 }
    }

    /// Lets it finish its batch and begin no other.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    fn note_refusal(&mut self) {
        self.refusals += 1;
        if self.refusals >= REFUSALS_MAX {
            (self.sequence, self.current, self.refusals) = (0, None, 0);
            self.lives += 1;
        }
    }

    fn batch(&self, values: &[u64]) -> Vec<u8> {
        let producer_id = IDS_ABOVE + i64::from(self.process) + 1 + LIFE_IDS * self.lives;
        let producer = ProducerFields { producer_id, producer_epoch: 0, base_sequence: self.sequence };
        batch_of(BatchOptions { producer, ..BatchOptions::default() }, values)
    }
}

/// A batch with a record for each value.
pub(crate) fn batch_of(options: BatchOptions, values: &[u64]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(options);
    for value in values {
        let mut bytes = value.to_be_bytes().to_vec();
        bytes.resize(VALUE_BYTES, 0);
        builder.append(0, None, Some(&bytes), &[]).expect("a small record");
    }
    builder.build().expect("a small batch")
}

/// A consumer at any node.
pub(crate) struct Consumer {
    process: i32,
    partition: usize,
    next: i64,
}

impl Consumer {
    pub(crate) fn new(process: i32, partition: usize) -> Consumer {
        Consumer { process, partition, next: 0 }
    }
}

/// Partition, offset and value of an event in the history.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) value: u64,
}

impl At {
    pub(crate) fn new(partition: usize, offset: i64, value: u64) -> At {
        At { partition: partition as i32, offset, value }
    }
}

impl World {
    pub(crate) fn note(&mut self, process: i32, operation: Operation, outcome: Outcome, at: At) {
        let At { partition, offset, value } = at;
        let at_ms = self.now_ms;
        self.history.push(Event { at_ms, process, operation, outcome, partition, offset, value });
    }

    /// Each producer begins a batch, retries it, or learns its outcome.
    pub(crate) fn produce(&mut self) {
        for number in 0..self.producers.len() {
            if self.producers[number].current.is_none() && !self.begin(number) {
                continue;
            }
            match self.producers[number].current.as_ref().and_then(|sending| sending.waits.clone()) {
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
        let (process, partition) = (producer.process, producer.partition);
        for value in values {
            self.note(process, Operation::Append, Outcome::Invoke, At::new(partition, -1, value));
        }
        true
    }

    fn send_batch(&mut self, number: usize) {
        // Mostly to the leader of the newest term, sometimes to a node that only believes that it leads.
        let partition = self.producers[number].partition;
        let node = match self.random.chance(90) {
            true => self.leader(partition),
            false => Some(self.random.below(self.nodes.len() as u64) as usize),
        };
        let Some(node) = node else { return };
        let Some(sending) = &mut self.producers[number].current else { return };
        match self.nodes[node].append(partition, &sending.bytes, Origin::Client, VerificationGuard::NONE) {
            Ok(Accepted { appended, term, fate }) => {
                let (base_offset, until_ms) = (appended.base_offset, self.now_ms + ANSWER_MAX_MS);
                sending.waits = Some(Waits { node, term, base_offset, until_ms, fate });
                self.producers[number].refusals = 0;
            }
            // A retry may reach a leader that lacks the batches before it. Its outcome is as unknown as before.
            Err(Refused::Log(_)) if self.nodes[node].write_caching() => self.producers[number].note_refusal(),
            Err(_) => {}
        }
    }

    fn look_for_commit(&mut self, number: usize, waits: Waits) {
        let partition = self.producers[number].partition;
        let leads = self.nodes[waits.node].leads(partition) == Some(waits.term);
        let is_done = self.acknowledge_early || waits.fate.is_good();
        let producer = &mut self.producers[number];
        let process = producer.process;
        if is_done {
            let Some(sending) = producer.current.take() else { return };
            producer.sequence += sending.values.len() as i32;
            for (offset, value) in (waits.base_offset..).zip(sending.values) {
                self.note(process, Operation::Append, Outcome::Ok, At::new(partition, offset, value));
            }
            return;
        }
        if !leads || waits.fate.outcome().is_some() || self.now_ms >= waits.until_ms {
            let Some(sending) = &mut producer.current else { return };
            sending.waits = None;
            let values = sending.values.clone();
            for value in values {
                self.note(process, Operation::Append, Outcome::Info, At::new(partition, -1, value));
            }
        }
    }

    pub(crate) fn consume(&mut self) {
        for number in 0..self.consumers.len() {
            // Any node may serve it: committed records of followers are as good.
            let node = self.random.below(self.nodes.len() as u64) as usize;
            if !self.random.chance(20) {
                continue;
            }
            let Consumer { process, partition, next } = self.consumers[number];
            let next = self.position_at(node, process, partition, next);
            self.consumers[number].next = next;
            for (offset, value) in self.nodes[node].records(partition, next, false) {
                if value != CONTROL {
                    self.note(process, Operation::Read, Outcome::Ok, At::new(partition, offset, value));
                }
                self.consumers[number].next = offset + 1;
            }
        }
    }
}
