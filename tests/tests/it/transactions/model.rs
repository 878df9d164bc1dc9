//! Invariants of transactions, whatever happened to the broker: the acknowledged records in the order of the log, and
//! the known end of each transaction.

use std::collections::BTreeMap;

/// The state of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It has not ended.
    Open,
    /// The broker has acknowledged the commit.
    Committed,
    /// The broker has acknowledged the abort, or its producer was fenced, or its timeout has passed.
    Aborted,
    /// Its commit got no answer: it is committed as a whole, or not at all.
    Unknown,
}

#[derive(Debug)]
struct Transaction {
    fate: Fate,
    /// The offset of its producer's group that it commits.
    offset: Option<i64>,
    group: usize,
}

#[derive(Debug)]
struct Appended {
    transaction: usize,
    key: u64,
    value: String,
}

/// The committed records that a reader must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retention {
    /// All of them.
    Everything,
    /// The last value of each key, and any of the earlier ones.
    LastOfKey,
}

#[derive(Debug)]
pub(crate) struct Model {
    retention: Retention,
    transactions: Vec<Transaction>,
    /// The records of each partition.
    logs: Vec<Vec<Appended>>,
}

impl Model {
    pub(crate) fn new(retention: Retention, partitions: usize) -> Model {
        Model { retention, transactions: Vec::new(), logs: (0..partitions).map(|_| Vec::new()).collect() }
    }

    /// Begins a transaction of the producer that commits the offsets of `group`. Returns its number.
    pub(crate) fn begin(&mut self, group: usize) -> usize {
        self.transactions.push(Transaction { fate: Fate::Open, offset: None, group });
        self.transactions.len() - 1
    }

    pub(crate) fn appended(&mut self, transaction: usize, partition: usize, records: Vec<(u64, String)>) {
        let records = records.into_iter().map(|(key, value)| Appended { transaction, key, value });
        self.logs[partition].extend(records);
    }

    pub(crate) fn offset(&mut self, transaction: usize, offset: i64) {
        self.transactions[transaction].offset = Some(offset);
    }

    /// # Panics
    /// When its end was known and was another one.
    pub(crate) fn ended(&mut self, transaction: usize, fate: Fate) {
        let known = &mut self.transactions[transaction].fate;
        assert!(
            matches!(known, Fate::Open | Fate::Unknown) || *known == fate,
            "transaction {transaction} was {known:?} and is {fate:?}"
        );
        *known = fate;
    }

    pub(crate) fn committed_count(&self) -> usize {
        self.transactions.iter().filter(|one| one.fate == Fate::Committed).count()
    }

    /// The number of committed records that a partition's reader has not found, because later ones have their keys.
    pub(crate) fn compacted_away(&self, partition: usize, seen: &[String]) -> usize {
        self.expected(partition).len().saturating_sub(seen.len())
    }

    /// Asserts that `seen` has only committed values, or values that may be, once and in the order of the log. Their transactions count
    /// as committed from then on.
    pub(crate) fn check_seen(&mut self, partition: usize, seen: &[String]) {
        let mut log = self.logs[partition].iter();
        for value in seen {
            let fates = &mut self.transactions;
            let found = log.find(|one| one.value == *value).map(|one| &mut fates[one.transaction].fate);
            match found {
                Some(Fate::Committed) => {}
                Some(fate @ Fate::Unknown) => *fate = Fate::Committed,
                Some(fate) => panic!("{} is seen in partition {partition}, and {fate:?}", short(value)),
                None => panic!("{} in partition {partition} is out of order, or twice there", short(value)),
            }
        }
    }

    /// Decides unknown ends by the values found, then compares all values. No transaction is open any more: `seen`
    /// are the committed values of each partition, `offsets` those of each group, -1 where there is none.
    pub(crate) fn check_all(&mut self, seen: &[Vec<String>], offsets: &[i64]) {
        for (partition, seen) in seen.iter().enumerate() {
            self.check_seen(partition, seen);
        }
        self.decide(offsets);
        for (partition, seen) in seen.iter().enumerate() {
            let expected = self.expected(partition);
            let missing = match self.retention {
                Retention::Everything => expected.into_iter().find(|one| !seen.contains(&one.value)),
                Retention::LastOfKey => {
                    let last: BTreeMap<u64, &Appended> =
                        expected.into_iter().map(|one| (one.key, one)).collect();
                    last.into_values().find(|one| !seen.contains(&one.value))
                }
            };
            let missing = missing.map(|one| short(&one.value));
            assert_eq!(missing, None, "is committed, and not seen in partition {partition}");
        }
        for (group, offset) in offsets.iter().enumerate() {
            let committed =
                self.transactions.iter().filter(|one| one.group == group && one.fate == Fate::Committed);
            let last = committed.filter_map(|one| one.offset).next_back().unwrap_or(-1);
            assert_eq!(*offset, last, "the offset of group {group}");
        }
    }

    /// Asserts that a reader that has followed the log to its end has seen the same as one that reads all of it.
    pub(crate) fn check_followed(&mut self, partition: usize, seen: &[String]) {
        self.check_seen(partition, seen);
        let last = |values: &mut dyn Iterator<Item = &Appended>| {
            values.map(|one| (one.key, one.value.clone())).collect::<BTreeMap<_, _>>()
        };
        let expected = last(&mut self.expected(partition).into_iter());
        let found = last(&mut self.logs[partition].iter().filter(|one| seen.contains(&one.value)));
        assert_eq!(found, expected, "a reader that went on with partition {partition}");
        if self.retention == Retention::Everything {
            assert_eq!(seen.len(), self.expected(partition).len(), "records of partition {partition}");
        }
    }

    fn expected(&self, partition: usize) -> Vec<&Appended> {
        let is_committed = |one: &&Appended| self.transactions[one.transaction].fate == Fate::Committed;
        self.logs[partition].iter().filter(is_committed).collect()
    }

    /// Decides transactions that are still unknown. None of their values was seen.
    fn decide(&mut self, offsets: &[i64]) {
        for (number, one) in self.transactions.iter_mut().enumerate() {
            assert_ne!(one.fate, Fate::Open, "transaction {number} is open");
            if one.fate == Fate::Unknown {
                let is_committed = one.offset.is_some_and(|offset| offsets[one.group] == offset);
                one.fate = if is_committed { Fate::Committed } else { Fate::Aborted };
            }
        }
    }
}

/// A value without its padding.
fn short(value: &str) -> &str {
    value.split('.').next().unwrap_or(value)
}
