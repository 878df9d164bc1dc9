//! Replicas of a compacted partition. Each compacts its own log, so that they need not have the same records at the same time: they agree
//! on the last value of each key, and are equal batch by batch where none may have been compacted.

use std::collections::BTreeMap;

use mainstem_records::EndTransactionMarker;

use super::last_values::LastValues;
use super::replica::{ReplicaBatch, ReplicaLog};

/// The last committed record of each key: its offset, and its value; `None` is a tombstone.
pub type Last = BTreeMap<Vec<u8>, (i64, Option<Vec<u8>>)>;

/// The last committed record of each key.
///
/// # Panics
/// When a record has no key.
pub fn last_values(batches: &[ReplicaBatch]) -> Last {
    let mut last = LastValues::default();
    for replica_batch in batches {
        let batch = replica_batch.batch();
        if let Some(marker) = EndTransactionMarker::of_batch(&batch) {
            last.end_transaction(batch.producer_id(), marker.committed);
        }
        let transaction = batch.attributes().is_transactional().then(|| batch.producer_id());
        for record in replica_batch.keyed_records() {
            last.note(transaction, record.key.expect("a key"), record.offset, record.value);
        }
    }
    last.into_last()
}

/// The same without tombstones: one replica may have removed a tombstone that another one has.
pub fn values(batches: &[ReplicaBatch]) -> Last {
    let mut last = last_values(batches);
    last.retain(|_, (_, value)| value.is_some());
    last
}

/// The first difference between replicas with these node ids; `None` if there is none.
pub fn difference(replicas: &[(i32, ReplicaLog)]) -> Option<String> {
    let (first_node, first) = replicas.first()?;
    // A segment that is written to is not compacted.
    let equal_from = replicas.iter().map(|(_, log)| log.active_base).max()?;
    let (tail, last) = (tail(first, equal_from), values(&first.batches));
    replicas[1..].iter().find_map(|(node, log)| {
        let found = difference_of_tails(tail, self::tail(log, equal_from))
            .or_else(|| {
                (log.end() != first.end()).then(|| format!("ends: {} and {}", first.end(), log.end()))
            })
            .or_else(|| difference_of_values(&last, &values(&log.batches)));
        found.map(|found| format!("nodes {first_node} and {node}: {found}"))
    })
}

/// The batches from an offset on.
fn tail(log: &ReplicaLog, from: i64) -> &[ReplicaBatch] {
    &log.batches[log.batches.partition_point(|batch| batch.last_offset < from)..]
}

fn difference_of_tails(one: &[ReplicaBatch], other: &[ReplicaBatch]) -> Option<String> {
    let at = std::iter::zip(one, other).position(|(one, other)| one != other);
    let at = at.or_else(|| (one.len() != other.len()).then(|| one.len().min(other.len())))?;
    let batch = one.get(at).or_else(|| other.get(at))?;
    Some(format!("the batches at offset {}, in a segment that is written to", batch.base_offset))
}

fn difference_of_values(one: &Last, other: &Last) -> Option<String> {
    let key = std::iter::chain(one.keys(), other.keys()).find(|key| one.get(*key) != other.get(*key))?;
    let shown = |last: &Last| last.get(key).map(|(offset, value)| (*offset, value.as_ref().map(Vec::len)));
    let (one, other) = (shown(one), shown(other));
    Some(format!("the last value of key {:?}: {one:?} and {other:?}", String::from_utf8_lossy(key)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use mainstem_records::{
        BatchBuilder, BatchOptions, CoordinatorEpoch, ProducerFields, end_transaction_batch,
    };

    use super::*;
    use crate::cluster::replica;

    const PRODUCER_ID: i64 = 7;

    fn read(bytes: &[u8]) -> ReplicaBatch {
        replica::batches(bytes, Path::new("a test's batch")).swap_remove(0)
    }

    /// A batch of one record.
    fn batch(base_offset: i64, is_transactional: bool, key: &str, value: Option<&str>) -> ReplicaBatch {
        let producer = match is_transactional {
            true => ProducerFields { producer_id: PRODUCER_ID, producer_epoch: 0, base_sequence: 0 },
            false => ProducerFields::default(),
        };
        let options = BatchOptions { base_offset, producer, is_transactional, ..BatchOptions::default() };
        let mut builder = BatchBuilder::new(options);
        builder.append(0, Some(key.as_bytes()), value.map(str::as_bytes), &[]).unwrap();
        read(&builder.build().unwrap())
    }

    fn record(base_offset: i64, key: &str, value: &str) -> ReplicaBatch {
        batch(base_offset, false, key, Some(value))
    }

    fn marker(base_offset: i64, committed: bool) -> ReplicaBatch {
        let marker = EndTransactionMarker { committed, coordinator_epoch: CoordinatorEpoch::ZERO };
        let mut bytes = end_transaction_batch(PRODUCER_ID, 0, marker, 0);
        bytes[..8].copy_from_slice(&base_offset.to_be_bytes());
        read(&bytes)
    }

    /// The difference between a replica that is not compacted, whose active segment begins at offset 3, and another one.
    fn compare(others: Vec<ReplicaBatch>, active_base: i64) -> Option<String> {
        let whole = ReplicaLog {
            batches: vec![
                record(0, "a", "old"),
                record(1, "b", "gone"),
                batch(2, false, "b", None),
                record(3, "a", "new"),
                record(4, "c", "last"),
            ],
            active_base: 3,
        };
        difference(&[(1, whole), (2, ReplicaLog { batches: others, active_base })])
    }

    #[test]
    fn one_replica_may_be_compacted_further_and_have_other_segments() {
        assert_eq!(compare(vec![record(3, "a", "new"), record(4, "c", "last")], 3), None);
        let of_one_segment = vec![
            record(0, "a", "old"),
            batch(2, false, "b", None),
            record(3, "a", "new"),
            record(4, "c", "last"),
        ];
        assert_eq!(compare(of_one_segment, 0), None);
        assert_eq!(compare(vec![record(3, "a", "new"), record(4, "c", "last")], 5), None);
    }

    #[track_caller]
    fn assert_found(others: Vec<ReplicaBatch>, active_base: i64, wanted: &str) {
        let found = compare(others, active_base).expect("a difference");
        assert!(found.starts_with("nodes 1 and 2: ") && found.contains(wanted), "{found}");
    }

    #[test]
    fn a_last_value_that_differs_is_found() {
        let other = |value: &str| vec![record(3, "a", value), record(4, "c", "last")];
        assert_found(
            other("old"),
            4,
            "the last value of key \"a\": Some((3, Some(3))) and Some((3, Some(3)))",
        );
        assert_found(vec![record(0, "a", "new"), record(4, "c", "last")], 4, "key \"a\"");
        assert_found(
            vec![record(4, "c", "last")],
            4,
            "the last value of key \"a\": Some((3, Some(3))) and None",
        );
    }

    #[test]
    fn a_key_that_comes_back_is_found() {
        let others = vec![record(1, "b", "gone"), record(3, "a", "new"), record(4, "c", "last")];
        assert_found(others, 3, "the last value of key \"b\": None and Some((1, Some(4)))");
    }

    #[test]
    fn a_batch_of_the_active_segment_that_differs_or_lacks_is_found() {
        assert_found(vec![record(3, "a", "new"), record(4, "c", "lost")], 3, "the batches at offset 4");
        assert_found(vec![record(4, "c", "last")], 3, "the batches at offset 3");
        assert_found(vec![record(3, "a", "new")], 3, "the batches at offset 4");
    }

    #[test]
    fn another_end_is_found() {
        let behind = vec![record(3, "a", "new")];
        assert_found(behind, 9, "ends: 5 and 4");
    }

    #[test]
    fn aborted_records_and_markers_do_not_count() {
        let log = |batches| ReplicaLog { batches, active_base: 9 };
        let whole = log(vec![
            record(0, "a", "kept"),
            batch(1, true, "a", Some("aborted")),
            marker(2, false),
            batch(3, true, "b", Some("committed")),
            marker(4, true),
            batch(5, true, "c", Some("open")),
            record(8, "d", "last"),
        ]);
        let compacted = log(vec![
            record(0, "a", "kept"),
            batch(3, true, "b", Some("committed")),
            marker(4, true),
            record(8, "d", "last"),
        ]);
        let keys: Vec<_> =
            values(&whole.batches).into_iter().map(|(key, (offset, _))| (key, offset)).collect();
        assert_eq!(keys, [(b"a".to_vec(), 0), (b"b".to_vec(), 3), (b"d".to_vec(), 8)]);
        assert_eq!(difference(&[(1, whole), (2, compacted)]), None);
    }
}
