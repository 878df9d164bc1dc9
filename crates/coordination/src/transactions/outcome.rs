//! Outcomes of requests to the driver: records are durable or cannot be written, a producer id was found or not.

use mainstem_records::ProducerId;
use mainstem_wire::ErrorCode;

use super::image::Image;
use super::io::Io;
use super::state::State;
use super::transaction::{Pending, Transaction, Transactions};
use super::waiter::Waiter;
use super::{add_partitions, markers, time_outs};

/// Handles the outcome of a transactional id's record.
pub(crate) fn written(
    transactions: &mut Transactions,
    io: &mut Io<'_>,
    id: &str,
    outcome: Result<(), ErrorCode>,
) {
    let transaction = transactions.get_mut(id).expect("its record is on its way");
    let pending = transaction.pending.take();
    let Some(Pending::Record { target, waiter }) = pending else {
        unreachable!("{id} waits for {pending:?}, not for a record")
    };
    match outcome {
        Ok(()) => take_effect(transaction, io, *target, waiter),
        Err(error) => not_changed(transactions, io, id, waiter, error),
    }
}

/// Handles a producer id for a transactional id, or the error.
pub(crate) fn producer_id(
    transactions: &mut Transactions,
    io: &mut Io<'_>,
    id: &str,
    outcome: Result<ProducerId, ErrorCode>,
) {
    let transaction = transactions.get_mut(id).expect("it waits for a producer id");
    let pending = transaction.pending.take();
    let Some(Pending::ProducerId { plan, waiter, .. }) = pending else {
        unreachable!("{id} waits for {pending:?}, not for a producer id")
    };
    match outcome {
        Ok(producer_id) => {
            let target = plan.target(&transaction.image, producer_id, io.now.wall_ms);
            io.write(transaction, target, waiter);
        }
        Err(error) => not_changed(transactions, io, id, waiter, error),
    }
}

/// Makes the state of a record current, now that the record is durable.
fn take_effect(transaction: &mut Transaction, io: &mut Io<'_>, target: Image, waiter: Waiter) {
    let before = std::mem::replace(&mut transaction.image, target);
    transaction.stored = true;
    io.answer(&transaction.id, waiter, Ok(&transaction.image));
    match transaction.image.state {
        State::Ongoing if before.state != State::Ongoing => time_outs::start(transaction, io),
        State::PrepareCommit | State::PrepareAbort => {
            transaction.times_out_ms = None;
            markers::send(transaction, io);
        }
        State::CompleteCommit | State::CompleteAbort => add_partitions::serve_waiting(transaction, io),
        _ => {}
    }
    io.recount(transaction);
}

/// Handles a change that cannot be made. A transactional id without any record is removed; the end of a transaction is tried again.
fn not_changed(transactions: &mut Transactions, io: &mut Io<'_>, id: &str, waiter: Waiter, error: ErrorCode) {
    io.answer(id, waiter, Err(error));
    let transaction = transactions.get_mut(id).expect("it was just there");
    if !transaction.stored {
        return io.remove(transactions, id);
    }
    if transaction.image.state.is_ending() {
        io.retry_later(transaction);
    }
    io.recount(transaction);
}
