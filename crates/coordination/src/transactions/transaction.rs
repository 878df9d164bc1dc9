//! A transactional id as the coordinator holds it: its durable state, and changes in flight.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_records::ProducerId;

use super::adding::Adding;
use super::image::{End, Image, Partitions};
use super::waiter::Waiter;

/// The transactional ids of one partition of `__transaction_state`, in an order that makes effects the same in every
/// run.
pub(crate) type Transactions = BTreeMap<Arc<str>, Transaction>;

/// A transactional id with its transaction, if it has one.
#[derive(Debug)]
pub(crate) struct Transaction {
    pub(crate) id: Arc<str>,
    /// The state of the last durable record. While markers are written, partitions that have theirs are left out.
    pub(crate) image: Image,
    /// A durable record says that the transactional id exists.
    pub(crate) stored: bool,
    /// The change in flight.
    pub(crate) pending: Option<Pending>,
    /// Markers that were asked for.
    pub(crate) sending: Option<Sending>,
    /// The request that waits for the end of the last transaction.
    pub(crate) waiting: Option<Waiting>,
    /// The time at which the transaction times out, monotonic milliseconds.
    pub(crate) times_out_ms: Option<u64>,
    /// The time at which markers, or the record of the end, are tried again, monotonic milliseconds; its entry is in the deadlines.
    pub(crate) retry_ms: Option<u64>,
    /// Accounted bytes, as they are included in the total.
    pub(crate) counted: usize,
}

/// A change that waits for the driver.
#[derive(Debug)]
pub(crate) enum Pending {
    /// It waits for a producer id, with which `plan` is carried out.
    ProducerId { number: u64, plan: Plan, waiter: Waiter },
    /// The record that says `target`.
    Record { target: Box<Image>, waiter: Waiter },
    /// The tombstone with which it expires.
    Tombstone,
}

/// The act that waits for a producer id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plan {
    /// The transactional id gets its first producer.
    Create { timeout_ms: i32 },
    /// The producer's epochs are used up.
    Rotate { timeout_ms: i32, keeps_epoch: bool },
    /// The same, at the end of a transaction.
    End(End),
    /// The same, when the producer is fenced.
    Fence { client_version: i16 },
}

impl Plan {
    /// The next image.
    pub(crate) fn target(self, image: &Image, producer_id: ProducerId, wall_ms: i64) -> Image {
        match self {
            Plan::Create { timeout_ms } => image.created(producer_id, timeout_ms, wall_ms),
            Plan::Rotate { timeout_ms, keeps_epoch } => {
                image.rotated(producer_id, keeps_epoch, timeout_ms, wall_ms)
            }
            Plan::End(end) => image.ended(end, producer_id, wall_ms),
            Plan::Fence { client_version } => image.fenced(client_version, producer_id, wall_ms),
        }
    }
}

/// Markers of a transaction that are being written.
#[derive(Debug)]
pub(crate) struct Sending {
    /// Their ticket.
    pub(crate) number: u64,
    /// Partitions to ask for again.
    pub(crate) again: Partitions,
}

/// A request that waits until the last transaction has ended.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) adding: Adding,
    /// The end of its wait, monotonic milliseconds; its entry is in the deadlines.
    pub(crate) due_ms: Option<u64>,
}

impl Transaction {
    /// A transactional id without a record.
    pub(crate) fn new(id: Arc<str>) -> Self {
        Self {
            id,
            image: Image::unwritten(),
            stored: false,
            pending: None,
            sending: None,
            waiting: None,
            times_out_ms: None,
            retry_ms: None,
            counted: 0,
        }
    }

    /// Returns true if another change must be tried again later: one is in flight, or the transaction is ending.
    pub(crate) fn is_busy(&self) -> bool {
        self.pending.is_some() || self.image.state.is_ending()
    }
}
