//! Memory accounting: bytes of the state that clients make the coordinator keep, against
//! [`memory_bytes_max`](super::TransactionConfig::memory_bytes_max).
//!
//! Each item is charged with its names, and with a fixed amount for its entries in maps. The heap's own overhead is not counted. The charge
//! depends on nothing but the item itself.

use super::adding::Adding;
use super::image::{Image, Partitions};
use super::transaction::{Pending, Transaction};
use super::waiter::Waiter;

/// A transactional id beside its name and its partitions; its deadlines and tickets are in here.
const TRANSACTION: usize = 640;
/// A topic of a transaction beside its name.
const TOPIC: usize = 96;
/// A partition of a topic.
const PARTITION: usize = 16;
/// A record in flight beside its partitions, or a waiting request beside its partitions.
const CHANGE: usize = 160;
/// A request for a producer id that belongs to no transactional id.
pub(crate) const PRODUCER_ID: usize = 64;

/// Bytes of a new transactional id.
pub(crate) fn created(id: &str) -> usize {
    TRANSACTION + id.len() + CHANGE
}

/// Bytes of a transactional id with its partitions, its change in flight and its waiting request.
pub(crate) fn transaction(transaction: &Transaction) -> usize {
    let pending = transaction.pending.as_ref().map_or(0, pending);
    let again = transaction.sending.as_ref().map_or(0, |sending| partitions(&sending.again));
    let waiting = transaction.waiting.as_ref().map_or(0, |waiting| adding(&waiting.adding));
    let own = TRANSACTION + transaction.id.len() + partitions(&transaction.image.partitions);
    own + pending + again + waiting
}

fn pending(pending: &Pending) -> usize {
    match pending {
        Pending::ProducerId { waiter, .. } => CHANGE + waiting(waiter),
        Pending::Record { target, waiter } => change(target) + waiting(waiter),
        Pending::Tombstone => 0,
    }
}

/// Bytes of a change in flight.
pub(crate) fn change(target: &Image) -> usize {
    CHANGE + partitions(&target.partitions)
}

fn waiting(waiter: &Waiter) -> usize {
    match waiter {
        Waiter::Add(request) => adding(request),
        Waiter::None | Waiter::Init(_) | Waiter::Fence(_) | Waiter::End { .. } => 0,
    }
}

/// Bytes of a request that waits with its partitions.
pub(crate) fn adding(adding: &Adding) -> usize {
    CHANGE + partitions(&adding.partitions)
}

fn partitions(partitions: &Partitions) -> usize {
    partitions.iter().map(|(topic, indexes)| TOPIC + topic.len() + PARTITION * indexes.len()).sum()
}
