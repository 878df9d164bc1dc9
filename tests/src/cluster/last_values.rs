//! The last committed record of each key.

use std::collections::BTreeMap;

/// Changed keys, each with the offset and the value of its record.
type Changes<K, V> = Vec<(K, (i64, V))>;

/// The last committed record of each key, with its offset, from records and markers that are noted in the order of their offsets. Keys
/// and values are bytes, or the texts of a dump.
#[derive(Debug)]
pub struct LastValues<K, V> {
    last: BTreeMap<K, (i64, V)>,
    /// Records of transactions without a marker yet, by producer id.
    open: BTreeMap<i64, Changes<K, V>>,
}

impl<K, V> Default for LastValues<K, V> {
    fn default() -> LastValues<K, V> {
        LastValues { last: BTreeMap::new(), open: BTreeMap::new() }
    }
}

impl<K: Ord, V> LastValues<K, V> {
    /// Notes a record; `transaction` is the producer id if it is part of a transaction.
    pub fn note(&mut self, transaction: Option<i64>, key: K, offset: i64, value: V) {
        match transaction {
            Some(producer_id) => self.open.entry(producer_id).or_default().push((key, (offset, value))),
            None => self.apply(key, (offset, value)),
        }
    }

    /// Notes a marker. The records of an aborted transaction do not count.
    pub fn end_transaction(&mut self, producer_id: i64, is_committed: bool) {
        let ended = self.open.remove(&producer_id).unwrap_or_default();
        for (key, record) in ended.into_iter().filter(|_| is_committed) {
            self.apply(key, record);
        }
    }

    /// A record that became visible late does not replace a later one.
    fn apply(&mut self, key: K, record: (i64, V)) {
        if self.last.get(&key).is_none_or(|(offset, _)| *offset < record.0) {
            self.last.insert(key, record);
        }
    }

    /// Offset and value by key. Records of open transactions do not count.
    pub fn into_last(self) -> BTreeMap<K, (i64, V)> {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(note: impl Fn(&mut LastValues<&'static str, u32>)) -> Vec<(&'static str, i64, u32)> {
        let mut values = LastValues::default();
        note(&mut values);
        values.into_last().into_iter().map(|(key, (offset, value))| (key, offset, value)).collect()
    }

    #[test]
    fn the_last_record_of_a_key_counts() {
        let found = last(|values| {
            values.note(None, "a", 0, 10);
            values.note(None, "b", 1, 11);
            values.note(None, "a", 2, 12);
        });
        assert_eq!(found, [("a", 2, 12), ("b", 1, 11)]);
    }

    #[test]
    fn records_of_transactions_count_when_these_are_committed() {
        let found = last(|values| {
            values.note(None, "a", 0, 10);
            values.note(Some(7), "a", 1, 11);
            values.note(Some(8), "b", 2, 12);
            values.note(Some(9), "c", 3, 13);
            values.end_transaction(7, false);
            values.end_transaction(8, true);
        });
        assert_eq!(found, [("a", 0, 10), ("b", 2, 12)]);
    }

    #[test]
    fn a_record_counts_at_its_own_offset_and_not_at_that_of_its_marker() {
        let found = last(|values| {
            values.note(Some(7), "a", 0, 10);
            values.note(None, "a", 1, 11);
            values.end_transaction(7, true);
        });
        assert_eq!(found, [("a", 1, 11)]);
    }
}
