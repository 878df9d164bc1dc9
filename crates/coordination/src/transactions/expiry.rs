//! Expiry of transactional ids that have not been used for long: tombstones are written, then the ids are removed.

use std::sync::Arc;

use mainstem_wire::ErrorCode;

use super::api::{Effect, Ticket};
use super::io::{Io, Written};
use super::records;
use super::state::State;
use super::transaction::{Pending, Transaction, Transactions};

/// Writes tombstones for the transactional ids that have expired (`transactional.id.expiration.ms`).
pub(crate) fn expire(transactions: &mut Transactions, io: &mut Io<'_>) {
    let latest_ms = io.now.wall_ms.saturating_sub(io.config.transactional_id_expiration_ms);
    let has_expired = |transaction: &&Transaction| {
        let is_idle = transaction.image.state.is_idle() && !transaction.is_busy();
        is_idle && transaction.image.updated_ms <= latest_ms
    };
    let expired: Vec<Arc<str>> =
        transactions.values().filter(has_expired).map(|transaction| transaction.id.clone()).collect();
    for ids in expired.chunks(io.config.tombstones_per_append_max.max(1)) {
        write_tombstones(transactions, io, ids);
    }
}

fn write_tombstones(transactions: &mut Transactions, io: &mut Io<'_>, ids: &[Arc<str>]) {
    for id in ids {
        let transaction = transactions.get_mut(id).expect("it was just found");
        assert!(transaction.image.state.may_become(State::Dead), "{transaction:?} has expired");
        transaction.pending = Some(Pending::Tombstone);
    }
    let number = io.number();
    io.outstanding.appends.insert(number, Written::Tombstones(ids.to_vec()));
    io.effects.push_back(Effect::Append {
        ticket: Ticket { partition: io.partition, number },
        timestamp_ms: io.now.wall_ms,
        records: ids.iter().map(|id| records::tombstone(id)).collect(),
    });
}

/// Handles the outcome of tombstones. If they cannot be written, the transactional ids stay until the next search.
pub(crate) fn tombstones_written(
    transactions: &mut Transactions,
    io: &mut Io<'_>,
    ids: &[Arc<str>],
    outcome: Result<(), ErrorCode>,
) {
    for id in ids {
        if outcome.is_ok() {
            io.remove(transactions, id);
        } else {
            transactions.get_mut(id).expect("its tombstone was on its way").pending = None;
        }
    }
}
