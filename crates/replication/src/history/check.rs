//! The checker: reads a history once for what is known of transactions, then each partition for itself.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::{CONTROL, Event, Fault, NO_PARTITION, Operation, Outcome, Violation};

/// Everything that durable logs cannot have done, sorted.
pub fn check(events: &[Event]) -> Vec<Violation> {
    let events = without_what_was_lost(events);
    let events = &*events;
    let transactions = Transactions::of(events);
    let mut by_partition: BTreeMap<i32, Vec<&Event>> = BTreeMap::new();
    for event in events.iter().filter(|event| event.partition != NO_PARTITION) {
        by_partition.entry(event.partition).or_default().push(event);
    }
    let mut violations = BTreeSet::new();
    for (partition, events) in by_partition {
        let mut partition = Partition { number: partition, events, transactions: &transactions, violations };
        partition.check();
        violations = partition.violations;
    }
    check_cycles(&transactions, &mut violations);
    check_commits(events, &transactions, &mut violations);
    violations.into_iter().collect()
}

/// The events without what replicas have said to be lost since, or could not say, and is: the fate of such an append is not known, and
/// who has read such a record resumes anywhere. What is lost otherwise stays.
fn without_what_was_lost(events: &[Event]) -> Cow<'_, [Event]> {
    let reports: Vec<_> = events.iter().enumerate().filter(|(_, event)| is_report(event)).collect();
    if reports.is_empty() {
        return Cow::Borrowed(events);
    }
    let finals = events.iter().filter(|event| event.operation == Operation::Final);
    let kept: BTreeSet<_> = finals.map(|event| (event.partition, event.offset, event.value)).collect();
    let is_lost = |rank: usize, event: &Event| {
        let covers = |(at, report): &(usize, &Event)| {
            let end = report.offset.saturating_add_unsigned(report.value);
            *at > rank && report.partition == event.partition && (report.offset..end).contains(&event.offset)
        };
        !kept.contains(&(event.partition, event.offset, event.value)) && reports.iter().any(covers)
    };
    let known = |(rank, event): (usize, &Event)| match event.operation {
        Operation::Append if is_placed(&&event) && is_lost(rank, event) => {
            Event { outcome: Outcome::Info, offset: -1, ..*event }
        }
        Operation::Read | Operation::ReadCommitted if is_placed(&&event) && is_lost(rank, event) => {
            Event { operation: Operation::Assign, offset: -1, value: 0, ..*event }
        }
        _ => *event,
    };
    Cow::Owned(events.iter().enumerate().map(known).collect())
}

fn is_report(event: &Event) -> bool {
    matches!(event.operation, Operation::Lost | Operation::Uncounted)
}

fn is_placed(event: &&&Event) -> bool {
    use Operation::{Append, Final, Read, ReadCommitted};
    let is_of_a_value = matches!(event.operation, Append | Read | ReadCommitted | Final);
    is_of_a_value && event.outcome == Outcome::Ok && event.offset >= 0
}

fn is_read(event: &&&Event) -> bool {
    is_placed(event) && matches!(event.operation, Operation::Read | Operation::ReadCommitted)
}

/// The end of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Unknown,
    Committed,
    Aborted,
}

/// All that is known of transactions.
#[derive(Debug, Default)]
struct Transactions {
    fates: BTreeMap<u64, Fate>,
    /// The transaction of each value that was appended in one.
    of_value: BTreeMap<u64, u64>,
    /// The reads of each: (partition, offset, value).
    reads: BTreeMap<u64, Vec<(i32, i64, u64)>>,
    /// The transaction of each commit of an offset, by the event's rank.
    of_commit: BTreeMap<usize, u64>,
    /// The group for which each has processed what it has read: that whose offsets it commits.
    groups: BTreeMap<u64, u64>,
}

impl Transactions {
    fn of(events: &[Event]) -> Transactions {
        let mut all = Transactions::default();
        let mut current: BTreeMap<i32, u64> = BTreeMap::new();
        for (rank, event) in events.iter().enumerate() {
            all.take(rank, event, &mut current);
        }
        // One value that was seen settles it for the others.
        let seen =
            events.iter().filter(|event| event.operation == Operation::ReadCommitted && is_read(&event));
        for transaction in seen.filter_map(|event| all.of_value.get(&event.value)) {
            let fate = all.fates.entry(*transaction).or_insert(Fate::Unknown);
            if *fate == Fate::Unknown {
                *fate = Fate::Committed;
            }
        }
        all.settle_unseen(events);
        all
    }

    /// Takes for not committed what those who see committed transactions alone have passed without seeing it, and what no replica has.
    fn settle_unseen(&mut self, events: &[Event]) {
        let passed = passed_by_committed_readers(events);
        let of = |operation| {
            let events = events.iter().filter(move |event| event.operation == operation);
            events.map(|event| event.partition).collect::<BTreeSet<_>>()
        };
        let (kept, deleted) = (of(Operation::Final), of(Operation::Delete));
        let places: BTreeMap<_, _> = events
            .iter()
            .filter(|event| is_placed(&event))
            .map(|event| (event.value, event.offset))
            .collect();
        let appends = events.iter().filter(|event| event.operation == Operation::Append);
        for &Event { partition, value, .. } in appends.filter(|event| event.outcome == Outcome::Invoke) {
            let Some(transaction) = self.of_value.get(&value) else { continue };
            let is_unseen = match places.get(&value) {
                Some(offset) => passed.iter().any(|(of, range)| *of == partition && range.contains(offset)),
                None => kept.contains(&partition) && !deleted.contains(&partition),
            };
            let fate = self.fates.entry(*transaction).or_insert(Fate::Unknown);
            if is_unseen && *fate == Fate::Unknown {
                *fate = Fate::Aborted;
            }
        }
    }

    fn take(&mut self, rank: usize, event: &Event, current: &mut BTreeMap<i32, u64>) {
        let &Event { process, operation, outcome, partition, offset, value, .. } = event;
        match operation {
            Operation::Begin => {
                current.insert(process, value);
                self.fates.insert(value, Fate::Unknown);
            }
            Operation::CommitTransaction | Operation::AbortTransaction => {
                // What comes after it was asked to end is in none.
                current.remove(&process);
                let fate = match (outcome, operation) {
                    (Outcome::Invoke | Outcome::Info, _) => return,
                    (Outcome::Ok, Operation::CommitTransaction) => Fate::Committed,
                    (Outcome::Fail, Operation::AbortTransaction) => return,
                    (Outcome::Ok | Outcome::Fail, _) => Fate::Aborted,
                };
                self.fates.insert(value, fate);
            }
            Operation::Append if outcome == Outcome::Invoke => {
                if let Some(transaction) = current.get(&process) {
                    self.of_value.insert(value, *transaction);
                }
            }
            Operation::Read | Operation::ReadCommitted if outcome == Outcome::Ok => {
                if let Some(transaction) = current.get(&process) {
                    self.reads.entry(*transaction).or_default().push((partition, offset, value));
                }
            }
            Operation::Commit => {
                if let Some(transaction) = current.get(&process) {
                    self.of_commit.insert(rank, *transaction);
                    self.groups.insert(*transaction, value);
                }
            }
            _ => {}
        }
    }

    fn fate(&self, transaction: u64) -> Fate {
        self.fates.get(&transaction).copied().unwrap_or(Fate::Unknown)
    }

    /// Returns true if a consumer has to see the value; `None`: it may.
    fn is_visible(&self, value: u64, reader: Operation) -> Option<bool> {
        if value == CONTROL {
            return Some(false);
        }
        match self.of_value.get(&value).map(|transaction| self.fate(*transaction)) {
            Some(Fate::Unknown) if reader == Operation::ReadCommitted => None,
            Some(Fate::Aborted) if reader == Operation::ReadCommitted => Some(false),
            _ => Some(true),
        }
    }
}

/// The offsets that groups which see committed transactions alone have read to an end, by partition.
fn passed_by_committed_readers(events: &[Event]) -> Vec<(i32, Range<i64>)> {
    let readers = events.iter().filter(|event| event.operation == Operation::ReadCommitted);
    let readers: BTreeSet<_> = readers.map(|event| (event.process, event.partition)).collect();
    let mut begins: BTreeMap<Key, i64> = BTreeMap::new();
    let mut passed = Vec::new();
    for &Event { process, operation, outcome, partition, offset, value: group, .. } in events {
        match (operation, outcome) {
            (Operation::Assign, Outcome::Ok) if group != 0 && readers.contains(&(process, partition)) => {
                let begin = begins.entry((group, partition)).or_insert(offset.max(0));
                *begin = offset.max(0).min(*begin);
            }
            (Operation::End, Outcome::Ok) => {
                passed.extend(begins.get(&(group, partition)).map(|begin| (partition, *begin..offset)));
            }
            _ => {}
        }
    }
    passed
}

/// One partition's part of the history.
struct Partition<'a> {
    number: i32,
    events: Vec<&'a Event>,
    transactions: &'a Transactions,
    violations: BTreeSet<Violation>,
}

impl Partition<'_> {
    fn add(&mut self, fault: Fault) {
        self.violations.insert(Violation { partition: self.number, fault });
    }

    fn check(&mut self) {
        let values = self.check_places();
        self.check_starts();
        self.check_lost();
        self.check_sends();
        self.check_replicas();
        self.check_reads(&values);
        self.check_unseen(&values);
        self.check_aborted_reads();
        self.check_processed();
        self.check_stable();
    }

    /// Each value at one offset, each offset with one value, and none that was not appended: returns them by their offset.
    fn check_places(&mut self) -> BTreeMap<i64, u64> {
        let (mut by_offset, mut by_value) = (BTreeMap::new(), BTreeMap::new());
        let of = |outcome| {
            let appends = self.events.iter().filter(|event| event.operation == Operation::Append);
            appends.filter(|event| event.outcome == outcome).map(|e| e.value).collect::<BTreeSet<_>>()
        };
        let (invoked, failed) = (of(Outcome::Invoke), of(Outcome::Fail));
        let mut faults = Vec::new();
        for &&Event { offset, value, .. } in self.events.iter().filter(is_placed) {
            let other = *by_offset.entry(offset).or_insert(value);
            if other != value {
                let (value, other) = (value.min(other), value.max(other));
                faults.push(Fault::Inconsistent { offset, value, other });
            }
            if value == CONTROL {
                continue;
            }
            let other = *by_value.entry(value).or_insert(offset);
            if other != offset {
                let (offset, other) = (offset.min(other), offset.max(other));
                faults.push(Fault::Duplicate { value, offset, other });
            }
            if !invoked.contains(&value) {
                faults.push(Fault::Invented { offset, value });
            }
            if failed.contains(&value) {
                faults.push(Fault::Failed { offset, value });
            }
        }
        faults.into_iter().for_each(|fault| self.add(fault));
        by_offset
    }

    /// No log starts behind what was to be deleted, and in the end none before what was acknowledged to be, unless that was lost with
    /// records which it followed: a deletion takes its place among them.
    fn check_starts(&mut self) {
        let is_lost = |rank: usize, log_end: u64| {
            let end = i64::try_from(log_end).unwrap_or(i64::MAX);
            let later = self.events[rank..].iter();
            later.filter(|event| is_report(event)).any(|event| event.offset < end)
        };
        let (mut asked, mut deleted, mut faults) = (0, 0, Vec::new());
        for (rank, event) in self.events.iter().enumerate() {
            let &&Event { process, operation, outcome, offset, value, .. } = event;
            match (operation, outcome) {
                (Operation::Delete, Outcome::Invoke) => asked = offset.max(asked),
                (Operation::Delete, Outcome::Ok) if !is_lost(rank, value) => deleted = offset.max(deleted),
                (Operation::Reset | Operation::LogStart, Outcome::Ok) if offset > asked => {
                    faults.push(Fault::NotDeleted { process, offset, asked });
                }
                (Operation::LogStart, Outcome::Ok) if offset < deleted => {
                    faults.push(Fault::DeletionUndone { process, offset, deleted });
                }
                _ => {}
            }
        }
        faults.into_iter().for_each(|fault| self.add(fault));
    }

    /// The start of the log of each replica after the run, of those that were asked.
    fn starts(&self) -> BTreeMap<i32, i64> {
        let starts = self.events.iter().filter(|event| event.operation == Operation::LogStart);
        starts.map(|event| (event.process, event.offset)).collect()
    }

    /// Each replica has all that was acknowledged, where it was acknowledged; at any offset where that was not said. What precedes its
    /// log start it need not have.
    fn check_lost(&mut self) {
        let starts = self.starts();
        let mut replicas: BTreeMap<i32, BTreeMap<u64, i64>> =
            starts.keys().map(|process| (*process, BTreeMap::new())).collect();
        for event in self.events.iter().filter(|event| event.operation == Operation::Final) {
            replicas.entry(event.process).or_default().insert(event.value, event.offset);
        }
        let is_acknowledged =
            |event: &&&Event| event.operation == Operation::Append && event.outcome == Outcome::Ok;
        let mut faults = Vec::new();
        for &&Event { offset, value, .. } in self.events.iter().filter(is_acknowledged) {
            for (&process, values) in &replicas {
                let may_be_deleted = || starts.get(&process).is_some_and(|start| offset < *start);
                let is_lost = match values.get(&value) {
                    Some(found) => offset >= 0 && *found != offset,
                    None => !may_be_deleted(),
                };
                if is_lost {
                    faults.push(Fault::Lost { process, offset, value });
                }
            }
        }
        faults.into_iter().for_each(|fault| self.add(fault));
    }

    /// Checks that the records of one producer are in its order.
    fn check_sends(&mut self) {
        let appends = || self.events.iter().filter(|event| event.operation == Operation::Append);
        let acknowledged: BTreeMap<u64, i64> =
            appends().filter(is_placed).map(|event| (event.value, event.offset)).collect();
        let mut last: BTreeMap<i32, i64> = BTreeMap::new();
        let mut faults = Vec::new();
        let mut begun = BTreeSet::new();
        for event in appends().filter(|event| event.outcome == Outcome::Invoke) {
            let Some(&offset) = acknowledged.get(&event.value) else { continue };
            // One that is sent again keeps its place.
            if !begun.insert(event.value) {
                continue;
            }
            let process = event.process;
            match last.insert(process, offset) {
                Some(before) if offset <= before => faults.push(Fault::Reordered { process, offset, before }),
                _ => {}
            }
        }
        faults.into_iter().for_each(|fault| self.add(fault));
    }

    /// A replica has each offset from its log start on once, in order.
    fn check_replicas(&mut self) {
        let before_starts = self.starts().into_iter().map(|(process, start)| (process, start - 1));
        let mut last: BTreeMap<i32, i64> = before_starts.collect();
        let mut faults = Vec::new();
        let finals = self.events.iter().filter(|event| event.operation == Operation::Final);
        for &&Event { process, offset, .. } in finals.filter(is_placed) {
            if let Some(before) = last.insert(process, offset) {
                faults.extend(jump(process, before + 1, offset));
            }
        }
        faults.into_iter().for_each(|fault| self.add(fault));
    }

    /// Consumers read on, and leave out only what they may not or need not see.
    fn check_reads(&mut self, values: &BTreeMap<i64, u64>) {
        let kept_from = self.starts().into_values().min().unwrap_or(0);
        let mut next: BTreeMap<i32, i64> = BTreeMap::new();
        let mut faults = Vec::new();
        for event in &self.events {
            let &&Event { process, operation, outcome, offset, .. } = event;
            if operation == Operation::Reset && outcome == Outcome::Ok {
                next.insert(process, offset);
            }
            if operation == Operation::Assign && outcome == Outcome::Ok {
                // Without a position the first record says where it begins.
                match offset {
                    0.. => next.insert(process, offset),
                    _ => next.remove(&process),
                };
            }
            if !is_read(&event) {
                continue;
            }
            if let Some(expected) = next.insert(process, offset + 1) {
                if offset < expected {
                    faults.push(Fault::WentBack { process, offset, expected });
                }
                let has_to_be_read = |offset: &i64| match values.get(offset) {
                    Some(value) => self.transactions.is_visible(*value, operation) == Some(true),
                    // What no client and no replica has anything at is a hole, unless consumers are all there is to ask, or it was deleted.
                    None => *offset >= kept_from && !self.has_transactions(),
                };
                let missed = (expected..offset).find(has_to_be_read);
                faults.extend(missed.map(|expected| Fault::Skipped { process, offset, expected }));
            }
        }
        faults.into_iter().for_each(|fault| self.add(fault));
    }

    /// Returns true if there are markers, which no consumer sees, and no replica was asked where.
    fn has_transactions(&self) -> bool {
        let is_in_one = |event: &&Event| self.transactions.of_value.contains_key(&event.value);
        let is_final = |event: &&Event| event.operation == Operation::Final;
        self.events.iter().any(is_in_one) && !self.events.iter().any(is_final)
    }

    /// The offsets that members of a group found deleted before they had read them.
    fn deleted_for(&self, members: &BTreeSet<i32>) -> BTreeSet<i64> {
        let (mut next, mut deleted) = (BTreeMap::new(), BTreeSet::new());
        for event in self.events.iter().filter(|event| members.contains(&event.process)) {
            let &&Event { process, operation, outcome, offset, .. } = event;
            match operation {
                Operation::Reset if outcome == Outcome::Ok => {
                    deleted.extend(next.insert(process, offset).unwrap_or(0)..offset);
                }
                Operation::Assign if outcome == Outcome::Ok => {
                    next.insert(process, offset.max(0));
                }
                _ if is_read(&event) => {
                    next.insert(process, offset + 1);
                }
                _ => {}
            }
        }
        deleted
    }

    /// A group that has read to an end has seen everything before it, but for what was deleted; and one that commits in transactions
    /// has seen it in one that was not aborted.
    fn check_unseen(&mut self, values: &BTreeMap<i64, u64>) {
        let of = |operation| {
            let events = self.events.iter().filter(move |event| event.operation == operation);
            events.filter(|event| event.outcome == Outcome::Ok)
        };
        let mut ends: BTreeMap<u64, i64> = BTreeMap::new();
        for event in of(Operation::End) {
            let end = ends.entry(event.value).or_default();
            *end = event.offset.max(*end);
        }
        let mut faults = Vec::new();
        for (group, end) in ends {
            let assigned = || of(Operation::Assign).filter(|event| event.value == group);
            let members: BTreeSet<_> = assigned().map(|event| event.process).collect();
            let begin = assigned().map(|event| event.offset.max(0)).min().unwrap_or(0);
            let reads = self.events.iter().filter(is_read).filter(|event| members.contains(&event.process));
            let Some(reader) = reads.clone().next().map(|event| event.operation) else { continue };
            let mut seen: BTreeSet<_> = reads.map(|event| event.offset).collect();
            let deleted = self.deleted_for(&members);
            seen.extend(&deleted);
            let processed = self.processed_for(group);
            let visible = values.range(begin..end.max(begin));
            for (&offset, &value) in visible {
                if self.transactions.is_visible(value, reader) != Some(true) {
                    continue;
                }
                if !seen.contains(&offset) {
                    faults.push(Fault::Unseen { group, offset, value });
                } else if processed.as_ref().is_some_and(|processed| !processed.contains(&offset))
                    && !deleted.contains(&offset)
                {
                    faults.push(Fault::Unprocessed { group, offset, value });
                }
            }
        }
        faults.into_iter().for_each(|fault| self.add(fault));
    }

    /// The offsets that transactions of a group have read and that may be committed; `None`: it commits outside of transactions.
    fn processed_for(&self, group: u64) -> Option<BTreeSet<i64>> {
        let of_group = || self.transactions.groups.iter().filter(|(_, of)| **of == group);
        of_group().next()?;
        let kept =
            of_group().filter(|(transaction, _)| self.transactions.fate(**transaction) != Fate::Aborted);
        let reads = kept.filter_map(|(transaction, _)| self.transactions.reads.get(transaction)).flatten();
        Some(reads.filter(|(of, ..)| *of == self.number).map(|(_, offset, _)| *offset).collect())
    }

    fn check_aborted_reads(&mut self) {
        let mut faults = Vec::new();
        let reads = self.events.iter().filter(|event| event.operation == Operation::ReadCommitted);
        for &&Event { process, offset, value, .. } in reads.filter(is_read) {
            let Some(&transaction) = self.transactions.of_value.get(&value) else { continue };
            if self.transactions.fate(transaction) == Fate::Aborted {
                faults.push(Fault::AbortedRead { process, offset, value, transaction });
            }
        }
        faults.into_iter().for_each(|fault| self.add(fault));
    }

    /// Nothing of a transaction is left open.
    fn check_stable(&mut self) {
        let ends = self.events.iter().filter(|event| event.operation == Operation::LastStable);
        let faults = ends.filter_map(|&&Event { process, offset, value, .. }| {
            let high_watermark = i64::try_from(value).unwrap_or(i64::MAX);
            (offset < high_watermark).then_some(Fault::StandsStill { process, offset, high_watermark })
        });
        let faults: Vec<_> = faults.collect();
        faults.into_iter().for_each(|fault| self.add(fault));
    }

    /// Checks that no other transaction of a group has read what a committed one has.
    fn check_processed(&mut self) {
        let mut by_offset = BTreeMap::new();
        for (&transaction, reads) in &self.transactions.reads {
            if self.transactions.fate(transaction) != Fate::Committed {
                continue;
            }
            let group = self.transactions.groups.get(&transaction);
            for &(_, offset, _) in reads.iter().filter(|(partition, ..)| *partition == self.number) {
                let other = *by_offset.entry((group, offset)).or_insert(transaction);
                if other != transaction {
                    let (transaction, other) = (transaction.min(other), transaction.max(other));
                    let fault = Fault::ProcessedTwice { offset, transaction, other };
                    self.violations.insert(Violation { partition: self.number, fault });
                }
            }
        }
    }
}

/// The fault of an offset that comes where another one was to come.
fn jump(process: i32, expected: i64, offset: i64) -> Option<Fault> {
    match offset.cmp(&expected) {
        std::cmp::Ordering::Less => Some(Fault::WentBack { process, offset, expected }),
        std::cmp::Ordering::Greater => Some(Fault::Skipped { process, offset, expected }),
        std::cmp::Ordering::Equal => None,
    }
}

/// No transactions have read each other's values in a circle. Their writes may lie in any order: Kafka's transactions
/// append while others do.
fn check_cycles(transactions: &Transactions, violations: &mut BTreeSet<Violation>) {
    let mut reads_from: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for (&reader, reads) in &transactions.reads {
        let writers = reads.iter().filter_map(|(_, _, value)| transactions.of_value.get(value).copied());
        reads_from.entry(reader).or_default().extend(writers.filter(|writer| *writer != reader));
    }
    let mut done = BTreeSet::new();
    for &begin in reads_from.keys() {
        find_cycle(begin, &reads_from, &mut done, violations);
    }
}

/// Walks all that a transaction depends on, without recursion; a transaction that is met on its own path closes a cycle.
fn find_cycle(
    begin: u64,
    reads_from: &BTreeMap<u64, BTreeSet<u64>>,
    done: &mut BTreeSet<u64>,
    violations: &mut BTreeSet<Violation>,
) {
    let writers = |of: u64| reads_from.get(&of).into_iter().flatten().copied().collect::<Vec<_>>();
    let mut path = vec![(begin, writers(begin))];
    while let Some((transaction, left)) = path.last_mut() {
        let transaction = *transaction;
        match left.pop() {
            None => {
                done.insert(transaction);
                path.pop();
            }
            Some(next) => {
                if let Some(at) = path.iter().position(|(each, _)| *each == next) {
                    let mut transactions: Vec<_> = path[at..].iter().map(|(each, _)| *each).collect();
                    let least = transactions.iter().enumerate().min_by_key(|(_, each)| **each);
                    let least = least.map_or(0, |(rank, _)| rank);
                    transactions.rotate_left(least);
                    let fault = Fault::Cycle { transactions };
                    violations.insert(Violation { partition: NO_PARTITION, fault });
                } else if !done.contains(&next) {
                    path.push((next, writers(next)));
                }
            }
        }
    }
}

/// Committed offsets never go back, nor beyond what was committed.
fn check_commits(events: &[Event], transactions: &Transactions, violations: &mut BTreeSet<Violation>) {
    let mut commits = Commits::default();
    for (rank, event) in events.iter().enumerate() {
        let &Event { process, operation, outcome, partition, offset, value: group, .. } = event;
        let key = (group, partition);
        match (operation, outcome) {
            (Operation::Commit, Outcome::Invoke) => {
                let invoked = commits.invoked.entry(key).or_insert(offset);
                *invoked = offset.max(*invoked);
            }
            (Operation::Commit, Outcome::Ok) => match transactions.of_commit.get(&rank) {
                Some(transaction) => commits.pending.entry(*transaction).or_default().push((key, offset)),
                None => commits.acknowledge(key, offset),
            },
            (Operation::CommitTransaction, Outcome::Ok) => {
                let pending = commits.pending.remove(&group).unwrap_or_default();
                pending.into_iter().for_each(|(key, offset)| commits.acknowledge(key, offset));
            }
            (Operation::Committed, Outcome::Invoke) => {
                let acknowledged = commits.acknowledged.get(&key).copied().unwrap_or(-1);
                commits.asked.insert((process, key), acknowledged);
            }
            (Operation::Committed, Outcome::Ok) => {
                let acknowledged = commits.asked.get(&(process, key)).copied().unwrap_or(-1);
                violations.extend(commits.judge(key, offset, acknowledged));
            }
            // Who gets a partition asks after the others have lost it, and what they have committed (KIP-848, JoinGroup).
            (Operation::Assign, Outcome::Ok) if group != 0 && offset >= 0 => {
                let acknowledged = commits.acknowledged.get(&key).copied().unwrap_or(-1);
                let found = if acknowledged < 0 && offset == 0 { -1 } else { offset };
                violations.extend(commits.judge(key, found, acknowledged));
            }
            _ => {}
        }
    }
}

/// A group and a partition.
type Key = (u64, i32);

#[derive(Debug, Default)]
struct Commits {
    /// The greatest that was tried.
    invoked: BTreeMap<Key, i64>,
    /// The greatest that was acknowledged.
    acknowledged: BTreeMap<Key, i64>,
    /// The offsets that count when their transaction is committed.
    pending: BTreeMap<u64, Vec<(Key, i64)>>,
    /// The offset that was acknowledged when a process asked.
    asked: BTreeMap<(i32, Key), i64>,
}

impl Commits {
    fn acknowledge(&mut self, key: Key, offset: i64) {
        let acknowledged = self.acknowledged.entry(key).or_insert(offset);
        *acknowledged = offset.max(*acknowledged);
    }

    fn judge(&self, (group, partition): Key, offset: i64, acknowledged: i64) -> Option<Violation> {
        let fault = if offset < acknowledged {
            Fault::CommitWentBack { group, offset, acknowledged }
        } else if offset > self.invoked.get(&(group, partition)).copied().unwrap_or(-1) {
            Fault::CommitInvented { group, offset }
        } else {
            return None;
        };
        Some(Violation { partition, fault })
    }
}
