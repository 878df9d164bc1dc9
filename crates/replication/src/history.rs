//! What clients of a partition have done and seen, and whether a durable log explains it.
//!
//! One format for simulated and for real runs: a line `at_ms process operation outcome partition offset value` for each
//! event. Values are unique among all appends of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// A producer appends a value with acks=all.
    Append,
    /// A consumer gets the value at an offset.
    Read,
    /// After the run, a replica has the value at an offset.
    Final,
}

/// What comes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It begins.
    Invoke,
    /// It was done.
    Ok,
    /// It was not done, for certain.
    Fail,
    /// Its fate is unknown.
    Info,
}

/// One event of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Time since the run began, in ms.
    pub at_ms: u64,
    /// Who: a client, or for [`Operation::Final`] a replica's node.
    pub process: i32,
    /// What.
    pub operation: Operation,
    /// What came of it.
    pub outcome: Outcome,
    /// The partition.
    pub partition: i32,
    /// The offset; -1: not known.
    pub offset: i64,
    /// The value.
    pub value: u64,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operation = match self.operation {
            Operation::Append => "append",
            Operation::Read => "read",
            Operation::Final => "final",
        };
        let outcome = match self.outcome {
            Outcome::Invoke => "invoke",
            Outcome::Ok => "ok",
            Outcome::Fail => "fail",
            Outcome::Info => "info",
        };
        let Event { at_ms, process, partition, offset, value, .. } = self;
        write!(f, "{at_ms} {process} {operation} {outcome} {partition} {offset} {value}")
    }
}

/// What a durable log cannot have done.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Violation {
    /// A replica does not have an acknowledged value.
    Lost {
        /// The replica's node.
        process: i32,
        /// Where the value was acknowledged.
        offset: i64,
        /// The value.
        value: u64,
    },
    /// A value is at two offsets.
    Duplicate {
        /// The value.
        value: u64,
        /// The one offset.
        offset: i64,
        /// The other.
        other: i64,
    },
    /// An offset has two values.
    Inconsistent {
        /// The offset.
        offset: i64,
        /// The one value.
        value: u64,
        /// The other.
        other: u64,
    },
    /// A value that nobody appended.
    Unseen {
        /// Where it is.
        offset: i64,
        /// The value.
        value: u64,
    },
    /// A value whose append had failed for certain.
    Failed {
        /// Where it is.
        offset: i64,
        /// The value.
        value: u64,
    },
    /// A consumer missed an offset, or went back.
    Skipped {
        /// The consumer.
        process: i32,
        /// The offset that it got.
        offset: i64,
        /// The one that it should have got.
        expected: i64,
    },
    /// A producer's later value was acknowledged before an earlier one.
    Reordered {
        /// The producer.
        process: i32,
        /// The later value's offset.
        offset: i64,
        /// The earlier value's.
        before: i64,
    },
}

/// Everything that a durable log cannot have done, sorted.
pub fn check(events: &[Event]) -> Vec<Violation> {
    let partitions: BTreeSet<_> = events.iter().map(|event| event.partition).collect();
    let mut violations = BTreeSet::new();
    for partition in partitions {
        let events = || events.iter().filter(|event| event.partition == partition);
        check_places(events(), &mut violations);
        check_lost(events(), &mut violations);
        check_order(events(), &mut violations);
    }
    violations.into_iter().collect()
}

fn is_placed(event: &&Event) -> bool {
    event.outcome == Outcome::Ok && event.offset >= 0
}

/// Each value at one offset, each offset with one value, and none that was not appended.
fn check_places<'a>(events: impl Iterator<Item = &'a Event> + Clone, violations: &mut BTreeSet<Violation>) {
    let (mut by_offset, mut by_value) = (BTreeMap::new(), BTreeMap::new());
    let appends = || events.clone().filter(|event| event.operation == Operation::Append);
    let of = |outcome| {
        appends().filter(move |event| event.outcome == outcome).map(|e| e.value).collect::<BTreeSet<_>>()
    };
    let (invoked, failed) = (of(Outcome::Invoke), of(Outcome::Fail));
    for &Event { offset, value, .. } in events.clone().filter(is_placed) {
        let other = *by_offset.entry(offset).or_insert(value);
        if other != value {
            violations.insert(Violation::Inconsistent {
                offset,
                value: value.min(other),
                other: value.max(other),
            });
        }
        let other = *by_value.entry(value).or_insert(offset);
        if other != offset {
            let (offset, other) = (offset.min(other), offset.max(other));
            violations.insert(Violation::Duplicate { value, offset, other });
        }
        if !invoked.contains(&value) {
            violations.insert(Violation::Unseen { offset, value });
        }
        if failed.contains(&value) {
            violations.insert(Violation::Failed { offset, value });
        }
    }
}

/// Each replica has all that was acknowledged.
fn check_lost<'a>(events: impl Iterator<Item = &'a Event> + Clone, violations: &mut BTreeSet<Violation>) {
    let mut replicas: BTreeMap<i32, BTreeSet<(i64, u64)>> = BTreeMap::new();
    for event in events.clone().filter(|event| event.operation == Operation::Final) {
        replicas.entry(event.process).or_default().insert((event.offset, event.value));
    }
    let acknowledged = events.filter(|event| event.operation == Operation::Append).filter(is_placed);
    for &Event { offset, value, .. } in acknowledged {
        let without = replicas.iter().filter(|(_, has)| !has.contains(&(offset, value)));
        violations.extend(without.map(|(process, _)| Violation::Lost { process: *process, offset, value }));
    }
}

/// Consumers read on, and what one producer sends is in its order.
fn check_order<'a>(events: impl Iterator<Item = &'a Event>, violations: &mut BTreeSet<Violation>) {
    let mut last: BTreeMap<(i32, Operation), i64> = BTreeMap::new();
    for &Event { process, operation, offset, .. } in events.filter(is_placed) {
        let before = last.insert((process, operation), offset);
        match (operation, before) {
            (Operation::Append, Some(before)) if offset <= before => {
                violations.insert(Violation::Reordered { process, offset, before });
            }
            (Operation::Read | Operation::Final, Some(before)) if offset != before + 1 => {
                violations.insert(Violation::Skipped { process, offset, expected: before + 1 });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Operation::{Append, Final, Read};
    use Outcome::{Fail, Info, Invoke, Ok};

    type Line = (i32, Operation, Outcome, i64, u64);

    fn violations(lines: &[Line]) -> Vec<Violation> {
        let event = |(at, &(process, operation, outcome, offset, value)): (usize, &Line)| Event {
            at_ms: at as u64,
            process,
            operation,
            outcome,
            partition: 0,
            offset,
            value,
        };
        check(&lines.iter().enumerate().map(event).collect::<Vec<_>>())
    }

    const TWO: [Line; 4] = [
        (1, Append, Invoke, -1, 7),
        (1, Append, Ok, 0, 7),
        (1, Append, Invoke, -1, 8),
        (1, Append, Ok, 1, 8),
    ];

    fn after_two(lines: &[Line]) -> Vec<Violation> {
        violations(&[&TWO[..], lines].concat())
    }

    #[test]
    fn a_history_without_a_fault_has_no_violation() {
        let lines = [
            (2, Append, Invoke, -1, 9),
            (2, Append, Info, -1, 9),
            (5, Read, Ok, 0, 7),
            (5, Read, Ok, 1, 8),
            (5, Read, Ok, 2, 9),
            (1, Final, Ok, 0, 7),
            (1, Final, Ok, 1, 8),
            (1, Final, Ok, 2, 9),
        ];
        assert_eq!(after_two(&lines), []);
    }

    #[test]
    fn each_fault_is_found() {
        let lost = Violation::Lost { process: 3, offset: 1, value: 8 };
        assert_eq!(after_two(&[(3, Final, Ok, 0, 7)]), [lost]);
        let duplicate = Violation::Duplicate { value: 8, offset: 1, other: 2 };
        assert_eq!(after_two(&[(5, Read, Ok, 2, 8)]), [duplicate]);
        let inconsistent = Violation::Inconsistent { offset: 0, value: 7, other: 9 };
        assert_eq!(after_two(&[(2, Append, Invoke, -1, 9), (5, Read, Ok, 0, 9)]), [inconsistent]);
        assert_eq!(after_two(&[(5, Read, Ok, 2, 99)]), [Violation::Unseen { offset: 2, value: 99 }]);
        let failed = [(2, Append, Invoke, -1, 9), (2, Append, Fail, -1, 9), (5, Read, Ok, 2, 9)];
        assert_eq!(after_two(&failed), [Violation::Failed { offset: 2, value: 9 }]);
        let skipped = [(2, Append, Invoke, -1, 9), (5, Read, Ok, 0, 7), (5, Read, Ok, 2, 9)];
        assert_eq!(after_two(&skipped), [Violation::Skipped { process: 5, offset: 2, expected: 1 }]);
        let back = [(5, Read, Ok, 1, 8), (5, Read, Ok, 0, 7)];
        assert_eq!(after_two(&back), [Violation::Skipped { process: 5, offset: 0, expected: 2 }]);
        let lines = [
            (1, Append, Invoke, -1, 7),
            (1, Append, Ok, 1, 7),
            (1, Append, Invoke, -1, 8),
            (1, Append, Ok, 0, 8),
        ];
        assert_eq!(violations(&lines), [Violation::Reordered { process: 1, offset: 0, before: 1 }]);
    }
}
