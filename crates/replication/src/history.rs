//! A history of what clients of a cluster have done and seen, and a check whether durable logs explain it.
//!
//! One format for simulated and for real runs: a line `at_ms process operation outcome partition offset value` for each
//! event, in the order in which they happened. Values are unique among all appends of a run, and not [`CONTROL`]. What is
//! in a transaction follows from the order: a process is in the transaction that it has begun until it asks to end it
//! or begins another one.

mod check;
mod faults;
#[cfg(test)]
mod tests;

pub use check::check;
pub use faults::{Fault, Violation};

use std::fmt;
use std::str::FromStr;

/// The value of an offset that has no record of a client, such as the marker of a transaction.
pub const CONTROL: u64 = 0;
/// The partition of an event that concerns none.
pub const NO_PARTITION: i32 = -1;

/// An operation of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// A producer appends a value with acks=all.
    Append,
    /// A consumer gets the value at an offset.
    Read,
    /// A consumer that sees committed transactions alone gets the value at an offset.
    ReadCommitted,
    /// After the run, a replica has the value at an offset; of all offsets that it has, in their order.
    Final,
    /// A consumer resumes at an offset, for the group that is the value; 0 where it has none.
    Assign,
    /// A consumer has read all that is before the offset, for the group that is the value.
    End,
    /// A consumer commits an offset for the group that is the value; within a transaction it counts with it.
    Commit,
    /// The committed offset of the group that is the value is read.
    Committed,
    /// A producer begins the transaction that is the value.
    Begin,
    /// It commits the transaction that is the value.
    CommitTransaction,
    /// It aborts the transaction that is the value.
    AbortTransaction,
    /// After the run, when no transaction is open, a replica has its last stable offset at the offset and its high watermark at the value.
    LastStable,
    /// A replica says that committed records are gone, from the offset on, so many as the value (`write.caching`).
    Lost,
    /// Committed records are gone, from the offset on, so many as the value, and nothing that is left knows that they were committed
    /// (`write.caching`).
    Uncounted,
    /// A client deletes the records before the offset. Of what was done, the value is where the leader's log ended when it was asked.
    Delete,
    /// A consumer finds its next record deleted, and resumes at the offset, where the log of whom it asks starts.
    Reset,
    /// After the run, the log of a replica starts at the offset.
    LogStart,
}

/// The names of operations in a line.
const OPERATIONS: [(Operation, &str); 17] = [
    (Operation::Append, "append"),
    (Operation::Read, "read"),
    (Operation::ReadCommitted, "read-committed"),
    (Operation::Final, "final"),
    (Operation::Assign, "assign"),
    (Operation::End, "end"),
    (Operation::Commit, "commit"),
    (Operation::Committed, "committed"),
    (Operation::Begin, "begin"),
    (Operation::CommitTransaction, "commit-transaction"),
    (Operation::AbortTransaction, "abort-transaction"),
    (Operation::LastStable, "last-stable"),
    (Operation::Lost, "lost"),
    (Operation::Uncounted, "uncounted"),
    (Operation::Delete, "delete"),
    (Operation::Reset, "reset"),
    (Operation::LogStart, "log-start"),
];

/// The outcome of an operation.
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

/// The names of outcomes in a line.
const OUTCOMES: [(Outcome, &str); 4] =
    [(Outcome::Invoke, "invoke"), (Outcome::Ok, "ok"), (Outcome::Fail, "fail"), (Outcome::Info, "info")];

/// One event of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Time since the run began, in ms.
    pub at_ms: u64,
    /// The client; for [`Operation::Final`] and [`Operation::LogStart`] a replica's node.
    pub process: i32,
    /// The operation that was done, or tried.
    pub operation: Operation,
    /// Its outcome.
    pub outcome: Outcome,
    /// The partition, numbered over all topics of the run; [`NO_PARTITION`] for transactions.
    pub partition: i32,
    /// The offset; -1: not known.
    pub offset: i64,
    /// The value, the group or the transaction.
    pub value: u64,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { at_ms, process, operation, outcome, partition, offset, value } = self;
        let operation = OPERATIONS.iter().find(|(each, _)| each == operation).map_or("", |(_, name)| name);
        let outcome = OUTCOMES.iter().find(|(each, _)| each == outcome).map_or("", |(_, name)| name);
        write!(f, "{at_ms} {process} {operation} {outcome} {partition} {offset} {value}")
    }
}

/// A line that is no event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no event: it has to be AT_MS PROCESS OPERATION OUTCOME PARTITION OFFSET VALUE")]
pub struct NoEvent(String);

impl FromStr for Event {
    type Err = NoEvent;

    fn from_str(line: &str) -> Result<Event, NoEvent> {
        parse(line).ok_or_else(|| NoEvent(line.to_owned()))
    }
}

fn parse(line: &str) -> Option<Event> {
    let fields: Vec<_> = line.split(' ').collect();
    let [at_ms, process, operation, outcome, partition, offset, value] = fields[..] else { return None };
    Some(Event {
        at_ms: at_ms.parse().ok()?,
        process: process.parse().ok()?,
        operation: OPERATIONS.iter().find(|(_, name)| *name == operation)?.0,
        outcome: OUTCOMES.iter().find(|(_, name)| *name == outcome)?.0,
        partition: partition.parse().ok()?,
        offset: offset.parse().ok()?,
        value: value.parse().ok()?,
    })
}

/// The lines of a node's log that say that the node itself was wrong: a panic, a failed assertion.
pub fn assertions(log: &str) -> Vec<&str> {
    let is_one =
        |line: &&str| ["panicked at", "assertion failed", "BUG:"].iter().any(|mark| line.contains(mark));
    log.lines().filter(is_one).collect()
}
