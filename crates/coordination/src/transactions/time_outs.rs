//! Transactions that take too long: they are aborted, and their producers are fenced.

use mainstem_records::ProducerId;

use super::image::EPOCH_BUMP_VERSION;
use super::io::Io;
use super::state::State;
use super::transaction::{Plan, Transaction, Transactions};
use super::waiter::Waiter;

/// Sets the deadline of a transaction that has begun.
pub(crate) fn start(transaction: &mut Transaction, io: &Io<'_>) {
    let time_ms = transaction.image.time_ms();
    transaction.times_out_ms = time_ms.map(|time_ms| io.now.mono_ms.saturating_add(time_ms));
}

/// Sets the deadline of a transaction that began under another coordinator.
pub(crate) fn resume(transaction: &mut Transaction, io: &Io<'_>) {
    let left_ms = transaction.image.time_left_ms(io.now.wall_ms);
    transaction.times_out_ms = left_ms.map(|left_ms| io.now.mono_ms.saturating_add(left_ms));
}

/// Aborts the transactions that have timed out. One with a change in flight is checked again the next time.
pub(crate) fn abort_overdue(transactions: &mut Transactions, io: &mut Io<'_>) {
    let now_ms = io.now.mono_ms;
    for transaction in transactions.values_mut() {
        let is_ongoing = transaction.image.state == State::Ongoing && !transaction.is_busy();
        if is_ongoing && transaction.times_out_ms.is_some_and(|at| at < now_ms) {
            fence(transaction, io, Waiter::None);
        }
    }
}

/// Fences the producer of an ongoing transaction: aborts it with an epoch that the producer does not have.
pub(crate) fn fence(transaction: &mut Transaction, io: &mut Io<'_>, waiter: Waiter) {
    let client_version = io.config.transaction_version;
    let image = &transaction.image;
    // KIP-890: the end raises the epoch, also that of a fence, so a further epoch must be left.
    if client_version >= EPOCH_BUMP_VERSION && image.producer_epoch.is_exhausted() {
        return io.ask(transaction, Plan::Fence { client_version }, waiter);
    }
    let target = image.fenced(client_version, ProducerId::NONE, io.now.wall_ms);
    io.write(transaction, target, waiter);
}
