//! A compacted topic of clients: each key keeps its last value on every replica, and a key that was deleted does not come back.
//!
//! One idempotent producer writes the values and tombstones of a few keys. At any time the records that a node has committed have to show,
//! for each key, what was acknowledged last, or something later.

use super::reading::{Last, last_values};
use super::{Cluster, KEYED, OFFSETS, TRANSACTIONS};
use crate::node::{Accepted, Fate};
use mainstem_log::{Origin, VerificationGuard};
use mainstem_records::{BatchBuilder, BatchOptions, ProducerFields};
use mainstem_store::partition::Refused;
use std::collections::BTreeMap;

const KEYS: u64 = 12;
/// Percent of the records that are tombstones.
const TOMBSTONES_PERCENT: u64 = 20;
/// Percent of the turns in which a producer without a batch begins one.
const BEGIN_PERCENT: u64 = 4;
/// Time after which a batch without an answer is sent again, in ms.
const ANSWER_MAX_MS: u64 = 1_500;
/// Refusals after which the producer begins again under another id. A leader that has lost records does not know its sequence.
const REFUSALS_MAX: usize = 100;
/// The first producer id, of which no node has given out so many.
const FIRST_ID: i64 = 1 << 41;
/// Bytes of a value, so that segments fill.
const VALUE_BYTES: usize = 60;
/// Turns between two looks at the same node.
const LOOK_TURNS: u64 = 200;

/// A key with its value; `None`: a tombstone.
type Change = (Vec<u8>, Option<Vec<u8>>);

/// The producer, and what was acknowledged to it.
pub(crate) struct Keyed {
    next_value: u64,
    sequence: i32,
    /// Number of producer ids before this one.
    lives: i64,
    refusals: usize,
    current: Option<Sending>,
    is_stopped: bool,
    /// The last acknowledged change of each key.
    acknowledged: BTreeMap<Vec<u8>, Last>,
    /// Number of all acknowledged changes.
    written: usize,
}

/// A batch whose outcome is not known yet.
struct Sending {
    changes: Vec<Change>,
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

impl Keyed {
    pub(crate) fn new() -> Keyed {
        Keyed {
            next_value: 0,
            sequence: 0,
            lives: 0,
            refusals: 0,
            current: None,
            is_stopped: false,
            acknowledged: BTreeMap::new(),
            written: 0,
        }
    }

    /// Lets it finish its batch and begin no other.
    pub(crate) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Returns true if nothing is on its way any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_stopped && self.current.is_none()
    }

    fn batch(&self, changes: &[Change]) -> Vec<u8> {
        let producer = ProducerFields {
            producer_id: FIRST_ID + self.lives,
            producer_epoch: 0,
            base_sequence: self.sequence,
        };
        let mut builder = BatchBuilder::new(BatchOptions { producer, ..BatchOptions::default() });
        for (key, value) in changes {
            builder.append(0, Some(key), value.as_deref(), &[]).expect("a small record");
        }
        builder.build().expect("a small batch")
    }

    fn note_refusal(&mut self) {
        self.refusals += 1;
        if self.refusals >= REFUSALS_MAX {
            (self.sequence, self.current, self.refusals) = (0, None, 0);
            self.lives += 1;
        }
    }

    fn acknowledge(&mut self, base_offset: i64) {
        let Some(sending) = self.current.take() else { return };
        self.sequence += sending.changes.len() as i32;
        self.written += sending.changes.len();
        for (offset, (key, value)) in (base_offset..).zip(sending.changes) {
            self.acknowledged.insert(key, Last { offset, value });
        }
    }

    /// Compares the last values of keys among committed records before `end` with what was acknowledged.
    ///
    /// # Panics
    /// If a value is missing, or one is there that was replaced or deleted.
    fn judge(&self, found: &BTreeMap<Vec<u8>, Last>, end: i64, node: usize) {
        for (key, wanted) in self.acknowledged.iter().filter(|(_, wanted)| wanted.offset < end) {
            let is_good = match found.get(key) {
                Some(last) => last.offset > wanted.offset || last == wanted,
                None => wanted.value.is_none(),
            };
            assert!(is_good, "node {node}: key {key:?} has {:?} and not {wanted:?}", found.get(key));
        }
    }
}

impl Cluster {
    pub(crate) fn turn_keyed(&mut self) {
        match self.keyed.current.as_ref().map(|sending| sending.waits.clone()) {
            None => self.begin_keyed(),
            Some(None) => self.send_keyed(),
            Some(Some(waits)) => self.look_for_keyed(&waits),
        }
        for node in 0..self.world.nodes.len() {
            if self.world.is_turn_of(node, LOOK_TURNS) {
                self.look_at_keys(node);
            }
        }
    }

    fn begin_keyed(&mut self) {
        if self.keyed.is_stopped || !self.world.random.chance(BEGIN_PERCENT) {
            return;
        }
        let count = 1 + self.world.random.below(3);
        let changes: Vec<_> = (0..count).map(|_| self.next_change()).collect();
        let bytes = self.keyed.batch(&changes);
        self.keyed.current = Some(Sending { changes, bytes, waits: None });
    }

    fn next_change(&mut self) -> Change {
        let key = self.world.random.below(KEYS).to_be_bytes().to_vec();
        if self.world.random.chance(TOMBSTONES_PERCENT) {
            return (key, None);
        }
        self.keyed.next_value += 1;
        let mut value = self.keyed.next_value.to_be_bytes().to_vec();
        value.resize(VALUE_BYTES, 0);
        (key, Some(value))
    }

    fn send_keyed(&mut self) {
        let Some(node) = self.world.leader(KEYED) else { return };
        let Some(sending) = &mut self.keyed.current else { return };
        let appended =
            self.world.nodes[node].append(KEYED, &sending.bytes, Origin::Client, VerificationGuard::NONE);
        match appended {
            Ok(Accepted { appended, term, fate }) => {
                let (base_offset, until_ms) = (appended.base_offset, self.world.now_ms + ANSWER_MAX_MS);
                sending.waits = Some(Waits { node, term, base_offset, until_ms, fate });
                self.keyed.refusals = 0;
            }
            Err(Refused::Log(_)) if self.world.nodes[node].write_caching() => self.keyed.note_refusal(),
            Err(_) => {}
        }
    }

    fn look_for_keyed(&mut self, waits: &Waits) {
        let leads = self.world.nodes[waits.node].leads(KEYED) == Some(waits.term);
        if waits.fate.is_good() {
            let before = self.keyed.written;
            self.keyed.acknowledge(waits.base_offset);
            self.done.add_many("key changed", self.keyed.written - before);
        } else if (!leads || waits.fate.outcome().is_some() || self.world.now_ms >= waits.until_ms)
            && let Some(sending) = &mut self.keyed.current
        {
            sending.waits = None;
        }
    }

    fn look_at_keys(&self, node: usize) {
        let looked = self.world.nodes[node].with_log(KEYED, |log| {
            let end = log.ends().last_stable;
            (last_values(log), end)
        });
        if let Some((found, end)) = looked {
            self.keyed.judge(&found, end, node);
        }
    }

    /// Compares the last values of all replicas of the compacted topics, and notes how many records compaction has removed.
    ///
    /// # Panics
    /// If they differ.
    pub(crate) fn judge_compacted(&mut self) {
        for partition in [KEYED, OFFSETS, TRANSACTIONS] {
            let of_node = |node: usize| {
                let mut found = self.world.nodes[node].with_log(partition, last_values)?;
                // One replica may have removed a tombstone that another one has.
                found.retain(|_, last| last.value.is_some());
                Some(found)
            };
            let first = of_node(0);
            for node in 1..self.world.nodes.len() {
                assert_eq!(of_node(node), first, "partition {partition}, nodes 0 and {node}");
            }
        }
        for node in 0..self.world.nodes.len() {
            self.look_at_keys(node);
            let kept = self.world.nodes[node].records_count(KEYED);
            self.done.add_many("keyed record removed", self.keyed.written.saturating_sub(kept));
        }
    }
}
