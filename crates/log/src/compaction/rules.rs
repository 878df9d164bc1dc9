//! Rules for the records and batches that a compaction keeps. They are Kafka's (Cleaner, MemoryRecords.RecordFilter).

use super::offset_map::OffsetMap;
use crate::producer_state::ProducerState;
use mainstem_records::{BatchHeader, KeyedRecord, ProducerEpoch, ProducerId};
use std::collections::HashMap;

/// The last offsets of a producer that is still remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastOfProducer {
    /// Offset of its last record; `None`: only a marker is known.
    pub(crate) data_offset: Option<i64>,
    /// The last of them that is on disk: a power cut may make it the last one.
    pub(crate) durable_offset: Option<i64>,
    /// Its epoch.
    pub(crate) epoch: ProducerEpoch,
}

/// The last offsets of producers, by producer id.
pub(crate) type LastOfProducers = HashMap<ProducerId, LastOfProducer>;

/// Returns the last offsets of a log's producers. Records before `durable_end` are on disk.
pub(crate) fn last_of_producers(producers: &ProducerState, durable_end: i64) -> LastOfProducers {
    let last = |(id, entry): (ProducerId, &crate::ProducerEntry)| {
        let mut offsets = entry.batches().iter().rev().map(|batch| batch.last_offset);
        let data_offset = offsets.clone().next();
        let durable_offset = offsets.find(|offset| *offset < durable_end);
        (id, LastOfProducer { data_offset, durable_offset, epoch: entry.epoch })
    };
    producers.iter().map(last).collect()
}

/// The rules of one round.
#[derive(Debug)]
pub(crate) struct Rules<'a> {
    /// The last offset of each key in the part of the log that was read for it.
    pub(crate) map: &'a OffsetMap,
    /// Wall time in ms.
    pub(crate) now_ms: i64,
    /// `delete.retention.ms`.
    pub(crate) delete_retention_ms: i64,
    pub(crate) last_of_producers: &'a LastOfProducers,
}

/// Facts about a batch that are not in its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Circumstances {
    /// It is data of an aborted transaction, or the marker of a transaction without any data left.
    pub(crate) can_go: bool,
    /// It is the last batch of the segment that is being written: its last offset shows where that segment ends.
    pub(crate) is_last: bool,
}

/// The fate of a batch without records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenEmpty {
    /// Its header stays.
    Stays,
    /// It goes.
    Goes,
}

/// The decision about a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// None of its records stays.
    pub(crate) discard_records: bool,
    pub(crate) when_empty: WhenEmpty,
    /// It is the marker of a transaction without any data left: it gets a delete horizon.
    pub(crate) outlived: bool,
}

impl Rules<'_> {
    /// Judges a batch.
    pub(crate) fn judge(&self, batch: &BatchHeader, found: Circumstances) -> Verdict {
        let is_control = batch.attributes.is_control();
        let horizon = batch.attributes.has_delete_horizon().then_some(batch.base_timestamp);
        let due = horizon.is_some_and(|horizon| horizon <= self.now_ms);
        let stays = found.is_last || self.is_last_of_producer(batch);
        Verdict {
            discard_records: found.can_go && (!is_control || due),
            when_empty: if stays { WhenEmpty::Stays } else { WhenEmpty::Goes },
            outlived: found.can_go && is_control,
        }
    }

    /// Returns true if only this batch shows the producer's last sequence number or epoch once the snapshots are gone.
    fn is_last_of_producer(&self, batch: &BatchHeader) -> bool {
        let producer_id = ProducerId::new(batch.producer_id);
        if producer_id == ProducerId::NONE {
            return false;
        }
        match self.last_of_producers.get(&producer_id) {
            Some(LastOfProducer { data_offset: Some(offset), durable_offset, .. }) => {
                batch.last_offset() == *offset || Some(batch.last_offset()) == *durable_offset
            }
            Some(LastOfProducer { data_offset: None, epoch, .. }) => {
                batch.attributes.is_control() && batch.producer_epoch == epoch.get()
            }
            None => false,
        }
    }

    /// Returns true if the record stays. Its batch was not discarded.
    pub(crate) fn keeps(&self, batch: &BatchHeader, record: &KeyedRecord<'_>) -> bool {
        if batch.attributes.is_control() || record.offset > self.map.latest_offset() {
            return true;
        }
        // Without a key nothing says what the record is the last one of.
        let Some(key) = record.key else { return false };
        let is_last = self.map.get(key).is_none_or(|last| record.offset >= last);
        let tombstone_is_due = batch.attributes.has_delete_horizon() && self.now_ms >= batch.base_timestamp;
        is_last && (record.has_value || !tombstone_is_due)
    }

    /// The delete horizon that a batch gets of which records stay: once, when it is first seen with something that goes
    /// by time (KIP-534).
    pub(crate) fn new_horizon(
        &self,
        batch: &BatchHeader,
        has_tombstone: bool,
        outlived: bool,
    ) -> Option<i64> {
        let wanted = (has_tombstone || outlived) && !batch.attributes.has_delete_horizon();
        wanted.then(|| self.now_ms.saturating_add(self.delete_retention_ms.max(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::key_hash::KeyHasher;
    use crate::compaction::offset_map::{MapSize, OffsetMap};
    use mainstem_records::{Attributes, NO_SEQUENCE};

    const NOW: i64 = 1000;

    fn map(keys: &[(&str, i64)], latest: i64) -> OffsetMap {
        let size = MapSize { bytes_max: 4096, load_factor: 0.9, keys_possible: 100 };
        let mut map = OffsetMap::new(size, KeyHasher::new([1; 16]));
        keys.iter().for_each(|(key, offset)| assert!(map.put(key.as_bytes(), *offset)));
        map.raise_latest_offset(latest);
        map
    }

    fn batch(attributes: Attributes, base_timestamp: i64) -> BatchHeader {
        BatchHeader {
            base_offset: 10,
            size: 100,
            partition_leader_epoch: 0,
            crc: 0,
            attributes,
            last_offset_delta: 4,
            base_timestamp,
            max_timestamp: 5,
            producer_id: ProducerId::NONE.get(),
            producer_epoch: -1,
            base_sequence: NO_SEQUENCE,
            record_count: 5,
        }
    }

    fn plain() -> BatchHeader {
        batch(Attributes::default(), 5)
    }

    fn with_horizon(horizon: i64) -> BatchHeader {
        batch(Attributes::default().with_delete_horizon(true), horizon)
    }

    fn with_rules<T>(
        map: &OffsetMap,
        last: &[(ProducerId, LastOfProducer)],
        act: impl FnOnce(Rules<'_>) -> T,
    ) -> T {
        let last_of_producers = last.iter().copied().collect();
        act(Rules { map, now_ms: NOW, delete_retention_ms: 200, last_of_producers: &last_of_producers })
    }

    #[test]
    fn the_last_record_of_a_key_stays() {
        let check = |batch: BatchHeader, offset, key: Option<&str>, has_value, expected| {
            let record = KeyedRecord { offset, key: key.map(str::as_bytes), has_value };
            let map = map(&[("a", 11), ("b", 30)], 40);
            let keeps = with_rules(&map, &[], |rules| rules.keeps(&batch, &record));
            assert_eq!(keeps, expected, "{record:?}");
        };
        // The last one, one behind it in a second pass, one before.
        check(plain(), 11, Some("a"), true, true);
        check(plain(), 12, Some("a"), true, true);
        check(plain(), 10, Some("a"), true, false);
        check(plain(), 12, Some("b"), true, false);
        // Not written since.
        check(plain(), 12, Some("c"), true, true);
        // Behind what was read, whatever it is; and without a key.
        check(plain(), 41, None, true, true);
        check(plain(), 12, None, true, false);
        // Tombstones stay until their horizon; a value stays beyond it.
        check(plain(), 11, Some("a"), false, true);
        check(with_horizon(NOW + 1), 11, Some("a"), false, true);
        check(with_horizon(NOW), 11, Some("a"), false, false);
        check(with_horizon(NOW), 11, Some("a"), true, true);
        check(with_horizon(NOW), 12, Some("c"), false, false);
        check(with_horizon(NOW), 41, Some("c"), false, true);
        check(with_horizon(NOW + 1), 10, Some("a"), false, false);
    }

    #[test]
    fn a_horizon_is_given_once() {
        let map = map(&[], 0);
        with_rules(&map, &[], |rules| {
            assert_eq!(rules.new_horizon(&plain(), true, false), Some(NOW + 200));
            assert_eq!(rules.new_horizon(&plain(), false, true), Some(NOW + 200));
            assert_eq!(rules.new_horizon(&plain(), false, false), None);
            assert_eq!(rules.new_horizon(&with_horizon(7), true, true), None);
        });
    }

    #[test]
    fn the_last_batch_of_a_producer_stays() {
        let check = |last: LastOfProducer, batch: BatchHeader, expected| {
            let map = map(&[], 0);
            let found = Circumstances { can_go: false, is_last: false };
            let verdict = with_rules(&map, &[(ProducerId::new(7), last)], |rules| rules.judge(&batch, found));
            assert_eq!(verdict.when_empty, expected, "{last:?}");
        };
        let by =
            |producer_id, attributes| BatchHeader { producer_id, producer_epoch: 2, ..batch(attributes, 5) };
        let (data, control) = (Attributes::default(), Attributes::default().with_control(true));
        let last = |data_offset, epoch| {
            let epoch = ProducerEpoch::new(epoch);
            LastOfProducer { data_offset, durable_offset: None, epoch }
        };
        check(last(Some(14), 2), by(7, data), WhenEmpty::Stays);
        let on_disk = LastOfProducer { durable_offset: Some(14), ..last(Some(15), 2) };
        check(on_disk, by(7, data), WhenEmpty::Stays);
        check(last(Some(15), 2), by(7, data), WhenEmpty::Goes);
        check(last(Some(14), 2), by(8, data), WhenEmpty::Goes);
        check(last(None, 2), by(7, control), WhenEmpty::Stays);
        check(last(None, 3), by(7, control), WhenEmpty::Goes);
        check(last(None, 2), by(7, data), WhenEmpty::Goes);
    }

    #[test]
    fn markers_wait_and_aborted_data_does_not() {
        let check = |batch: BatchHeader, can_go, is_last, expected: (bool, WhenEmpty, bool)| {
            let map = map(&[], 0);
            let verdict =
                with_rules(&map, &[], |rules| rules.judge(&batch, Circumstances { can_go, is_last }));
            assert_eq!((verdict.discard_records, verdict.when_empty, verdict.outlived), expected);
        };
        let control =
            |header: BatchHeader| BatchHeader { attributes: header.attributes.with_control(true), ..header };
        check(plain(), false, false, (false, WhenEmpty::Goes, false));
        check(plain(), true, false, (true, WhenEmpty::Goes, false));
        check(plain(), true, true, (true, WhenEmpty::Stays, false));
        check(control(plain()), false, false, (false, WhenEmpty::Goes, false));
        check(control(plain()), true, false, (false, WhenEmpty::Goes, true));
        check(control(with_horizon(NOW + 1)), true, false, (false, WhenEmpty::Goes, true));
        check(control(with_horizon(NOW)), true, false, (true, WhenEmpty::Goes, true));
        check(control(with_horizon(NOW)), false, false, (false, WhenEmpty::Goes, false));
    }
}
