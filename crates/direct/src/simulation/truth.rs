//! The true history of events, independent of either end: their order, the filters that they go through, and which were handled.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use mainstem_records::{Batch, BatchBuilder, BatchOptions, Scratch, slice_of};

use crate::filter::criteria;
use crate::proto;

/// A violated property, which ends a run.
pub(super) type Violation = String;

/// Fails with a violation if a condition is false.
macro_rules! ensure {
    ($holds:expr, $($violation:tt)*) => {
        if !$holds {
            return Err(format!($($violation)*));
        }
    };
}
pub(super) use ensure;

/// The number of an event, over all histories.
pub(super) type EventId = usize;

const KEYS: usize = 9;

/// An event. Histories that were copied from each other share those before the copy.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) offset: i64,
    /// None for an event without a key.
    key: Option<usize>,
    pub(super) slice: u16,
    /// It was appended while no publisher had the directory open.
    pub(super) is_of_others: bool,
    /// The event before it in its history.
    pub(super) before: Option<EventId>,
    /// The event before it in its slice.
    pub(super) before_in_slice: Option<EventId>,
}

/// All events of all histories.
#[derive(Debug, Default)]
pub(super) struct Events(Vec<Event>);

impl Events {
    pub(super) fn get(&self, id: EventId) -> &Event {
        &self.0[id]
    }

    /// Appends an event to a history. A key of [`KEYS`] or more is none.
    pub(super) fn append(&mut self, history: &mut Vec<EventId>, key: usize, is_of_others: bool) -> EventId {
        let offset = history.len() as i64;
        let key = Some(key).filter(|key| *key < KEYS);
        let slice = slice_of(key.map(name_of).as_deref().map(str::as_bytes), offset);
        let before_in_slice = history.iter().rev().find(|id| self.0[**id].slice == slice).copied();
        let before = history.last().copied();
        self.0.push(Event { offset, key, slice, is_of_others, before, before_in_slice });
        history.push(self.0.len() - 1);
        self.0.len() - 1
    }

    /// Makes one record batch of consecutive events.
    pub(super) fn batch(&self, ids: &[EventId]) -> Bytes {
        let base_offset = self.0[ids[0]].offset;
        let mut builder = BatchBuilder::new(BatchOptions { base_offset, ..BatchOptions::default() });
        for id in ids {
            let key = self.0[*id].key.map(name_of);
            let value = id.to_le_bytes();
            builder.append(1, key.as_deref().map(str::as_bytes), Some(&value), &[]).expect("it is small");
        }
        builder.build().expect("it has a record").into()
    }

    /// Reads received batches, and compares their events with those that were appended.
    pub(super) fn read(&self, mut batches: &[u8]) -> Result<Vec<EventId>, Violation> {
        let (mut ids, mut buffer, mut scratch) = (Vec::new(), Vec::new(), Scratch::default());
        while !batches.is_empty() {
            let (batch, rest) = Batch::split_first(batches).map_err(|error| error.to_string())?;
            ensure!(batch.verify_crc(), "a batch has another CRC");
            let records = batch.records(&mut buffer, 1 << 20, &mut scratch);
            for record in records.map_err(|error| error.to_string())? {
                let record = record.map_err(|error| error.to_string())?;
                let value = record.value.and_then(|value| value.try_into().ok());
                let id = value.map_or(usize::MAX, usize::from_le_bytes);
                let is_same = self.0.get(id).is_some_and(|event| event.offset == record.offset);
                ensure!(is_same, "offset {} has another event than was appended", record.offset);
                ids.push(id);
            }
            batches = rest;
        }
        Ok(ids)
    }

    /// Returns the offset up to which a history has the events of the one that ends with `tip`.
    pub(super) fn common_end(&self, history: &[EventId], tip: EventId) -> i64 {
        let mut id = Some(tip);
        while let Some(one) = id {
            let event = &self.0[one];
            if history.get(event.offset as usize) == Some(&one) {
                return event.offset + 1;
            }
            id = event.before;
        }
        0
    }
}

fn name_of(key: usize) -> String {
    format!("key {key}")
}

/// A filter in the protocol's form and as a predicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sieve {
    Everything,
    EvenKeys,
    WithoutKey(usize),
    LowerSlices,
}

impl Sieve {
    pub(super) fn of_number(number: usize) -> Sieve {
        match number % 5 {
            0 => Sieve::Everything,
            1 => Sieve::EvenKeys,
            2 => Sieve::LowerSlices,
            other => Sieve::WithoutKey(other),
        }
    }

    pub(super) fn to_proto(self) -> Option<proto::Filter> {
        let even = || (0..KEYS).step_by(2).map(|key| criteria::key(name_of(key)));
        Some(match self {
            Sieve::Everything => return None,
            Sieve::EvenKeys => criteria::only(even()),
            Sieve::WithoutKey(key) => {
                proto::Filter { exclude: vec![criteria::key(name_of(key))], include: Vec::new() }
            }
            Sieve::LowerSlices => {
                proto::Filter { exclude: vec![criteria::slices(512, 1_024)], include: Vec::new() }
            }
        })
    }

    pub(super) fn of_proto(filter: Option<&proto::Filter>) -> Sieve {
        let mut all = (0..5).map(Sieve::of_number);
        all.find(|one| one.to_proto().as_ref() == filter).expect("it was made of one")
    }

    pub(super) fn passes(self, event: &Event) -> bool {
        match self {
            Sieve::Everything => true,
            Sieve::EvenKeys => event.key.is_some_and(|key| key % 2 == 0),
            Sieve::WithoutKey(key) => event.key != Some(key),
            Sieve::LowerSlices => event.slice < 512,
        }
    }
}

/// The handled events of a consumer since it began, or since a reset.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) handled: BTreeMap<EventId, u32>,
    /// Events that need not be handled: they were before the consumer's start.
    pub(super) waived: BTreeSet<EventId>,
}

impl Ledger {
    pub(super) fn is_settled(&self, id: EventId) -> bool {
        self.handled.contains_key(&id) || self.waived.contains(&id)
    }
}
