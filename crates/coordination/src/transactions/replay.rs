//! Rebuilds the transactional ids of a partition from its records, when this node becomes their coordinator.

use std::sync::Arc;

use super::Replayed;
use super::image::Image;
use super::io::Io;
use super::records::{self, Record};
use super::state::State;
use super::transaction::{Transaction, Transactions};
use super::{markers, time_outs};

/// Replays one record.
pub(crate) fn replay(
    transactions: &mut Transactions,
    io: &mut Io<'_>,
    key: &[u8],
    value: Option<&[u8]>,
    replayed: &mut Replayed,
) {
    match records::decode(key, value) {
        Record::Transaction { id, image: Some(image) } => put(transactions, io, &id, image),
        Record::Transaction { id, image: None } => io.remove(transactions, &id),
        Record::Other => {
            replayed.skipped += 1;
            return;
        }
        Record::Malformed => {
            replayed.malformed += 1;
            return;
        }
    }
    replayed.applied += 1;
}

fn put(transactions: &mut Transactions, io: &mut Io<'_>, id: &str, image: Image) {
    if !transactions.contains_key(id) {
        let id: Arc<str> = id.into();
        transactions.insert(id.clone(), Transaction { stored: true, ..Transaction::new(id) });
        io.usage.transactions += 1;
    }
    let transaction = transactions.get_mut(id).expect("it was there or put there");
    transaction.image = image;
    io.recount(transaction);
}

/// Resumes transactions after the last record. Those that are decided get their markers again.
pub(crate) fn loaded(transactions: &mut Transactions, io: &mut Io<'_>) {
    for transaction in transactions.values_mut() {
        match transaction.image.state {
            State::Ongoing => time_outs::resume(transaction, io),
            State::PrepareCommit | State::PrepareAbort => markers::send(transaction, io),
            _ => {}
        }
    }
}
