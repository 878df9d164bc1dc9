//! AddPartitionsToTxn (24), v0-5, and AddOffsetsToTxn (25), v0-4: the partitions of a transaction.
//!
//! The coordinator serves one transaction at a time. [`transactions_of`] and [`response`] are for the driver, which
//! authorises, and looks for topics and partitions in between.

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnTransaction,
};
use mainstem_wire::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnResponse, AddPartitionsToTxnResult,
};

use super::adding::{Adding, FROM_LEADERS_SINCE, partitions_of, result};
use super::io::Io;
use super::memory;
use super::records::fits;
use super::state::State;
use super::transaction::{Transaction, Transactions, Waiting};
use super::waiter::Waiter;

/// The transactions of a request of any version, in the form that v4 and later have.
pub fn transactions_of<'a>(
    request: AddPartitionsToTxnRequest<'a>,
    api_version: i16,
) -> Vec<AddPartitionsToTxnTransaction<'a>> {
    if api_version >= FROM_LEADERS_SINCE {
        return request.transactions;
    }
    vec![AddPartitionsToTxnTransaction {
        transactional_id: request.v3_and_below_transactional_id,
        producer_id: request.v3_and_below_producer_id,
        producer_epoch: request.v3_and_below_producer_epoch,
        topics: request.v3_and_below_topics,
        ..Default::default()
    }]
}

/// The response of any version to a request whose transactions got these answers.
pub fn response<'a>(
    mut results: Vec<AddPartitionsToTxnResult<'a>>,
    api_version: i16,
) -> AddPartitionsToTxnResponse<'a> {
    if api_version >= FROM_LEADERS_SINCE {
        return AddPartitionsToTxnResponse { results_by_transaction: results, ..Default::default() };
    }
    let topics = results.pop().map(|result| result.topic_results).unwrap_or_default();
    AddPartitionsToTxnResponse { results_by_topic_v3_and_below: topics, ..Default::default() }
}

/// The answer with an error for every partition of a transaction.
pub fn refused(
    request: &AddPartitionsToTxnTransaction<'_>,
    error: ErrorCode,
) -> AddPartitionsToTxnResult<'static> {
    result(&request.transactional_id, &partitions_of(&request.topics), |_, _| error)
}

/// Adds partitions to the transaction of `id`.
pub(crate) fn serve(transactions: &mut Transactions, io: &mut Io<'_>, id: &str, adding: Adding) {
    let error = match transactions.get_mut(id) {
        Some(_) if !adding.partitions.keys().all(|topic| fits(topic)) => ErrorCode::INVALID_REQUEST,
        Some(transaction) => return add(transaction, io, adding),
        None => ErrorCode::INVALID_PRODUCER_ID_MAPPING,
    };
    let (token, reply) = adding.reply(id, error);
    io.reply(token, reply);
}

/// The next step for a request.
enum Decision {
    Answer(ErrorCode),
    Wait,
    Write,
}

/// Adds partitions, or lets the request wait for the end of the last transaction.
pub(crate) fn add(transaction: &mut Transaction, io: &mut Io<'_>, adding: Adding) {
    match decide(transaction, io, &adding) {
        Decision::Answer(error) => {
            let (token, reply) = adding.reply(&transaction.id, error);
            io.reply(token, reply);
        }
        Decision::Wait => wait(transaction, io, adding),
        Decision::Write => {
            let wall_ms = io.now.wall_ms;
            let target = transaction.image.added(&adding.partitions, adding.client_version, wall_ms);
            if io.has_memory_for(memory::change(&target) + memory::adding(&adding)) {
                io.write(transaction, target, Waiter::Add(adding));
            } else {
                let (token, reply) = adding.reply(&transaction.id, ErrorCode::COORDINATOR_NOT_AVAILABLE);
                io.reply(token, reply);
            }
        }
    }
}

fn decide(transaction: &Transaction, io: &Io<'_>, adding: &Adding) -> Decision {
    let image = &transaction.image;
    // KIP-890: the producer may already have an id that is valid only after the change in flight.
    if transaction.is_busy() {
        let may_wait = may_wait(transaction, adding) && io.config.ending_wait_ms > 0;
        let has_memory = io.has_memory_for(memory::adding(adding));
        let busy = Decision::Answer(ErrorCode::CONCURRENT_TRANSACTIONS);
        return if may_wait && has_memory { Decision::Wait } else { busy };
    }
    if image.producer_id != adding.producer_id {
        Decision::Answer(ErrorCode::INVALID_PRODUCER_ID_MAPPING)
    } else if image.producer_epoch != adding.producer_epoch {
        Decision::Answer(ErrorCode::PRODUCER_FENCED)
    } else if image.state == State::Ongoing && image.has(&adding.partitions) {
        Decision::Answer(ErrorCode::NONE)
    } else {
        Decision::Write
    }
}

/// Returns true if a request that comes while a transaction is ending would be served afterwards, and none waits yet.
fn may_wait(transaction: &Transaction, adding: &Adding) -> bool {
    let image = &transaction.image;
    let identity = (adding.producer_id, adding.producer_epoch);
    image.state.is_ending() && transaction.waiting.is_none() && image.identity_afterwards() == identity
}

fn wait(transaction: &mut Transaction, io: &mut Io<'_>, adding: Adding) {
    let due_ms = io.now.mono_ms.saturating_add(io.config.ending_wait_ms);
    let mut waiting = Waiting { adding, due_ms: None };
    let due = io.wait_of(transaction);
    io.deadlines.set(&mut waiting.due_ms, due_ms, due);
    transaction.waiting = Some(waiting);
    io.recount(transaction);
}

/// Serves the request that has waited for the end of the transaction.
pub(crate) fn serve_waiting(transaction: &mut Transaction, io: &mut Io<'_>) {
    let due = io.wait_of(transaction);
    if let Some(mut waiting) = transaction.waiting.take() {
        io.deadlines.cancel(&mut waiting.due_ms, due);
        io.recount(transaction);
        add(transaction, io, waiting.adding);
    }
}

/// Answers the waiting request, whose deadline has come up.
pub(crate) fn time_out(transaction: &mut Transaction, io: &mut Io<'_>) {
    if let Some(waiting) = transaction.waiting.take() {
        let (token, reply) = waiting.adding.reply(&transaction.id, ErrorCode::CONCURRENT_TRANSACTIONS);
        io.reply(token, reply);
        io.recount(transaction);
    }
}

/// Answers whether partitions are in the transaction (KIP-890, part 1), and changes nothing.
pub(crate) fn verify(
    transactions: &Transactions,
    request: &AddPartitionsToTxnTransaction<'_>,
) -> AddPartitionsToTxnResult<'static> {
    let transaction = transactions.get(&*request.transactional_id).filter(|transaction| transaction.stored);
    let Some(Transaction { image, .. }) = transaction else {
        return refused(request, ErrorCode::INVALID_PRODUCER_ID_MAPPING);
    };
    if image.producer_id.get() != request.producer_id {
        return refused(request, ErrorCode::INVALID_PRODUCER_ID_MAPPING);
    }
    if image.producer_epoch.get() != request.producer_epoch {
        return refused(request, ErrorCode::PRODUCER_FENCED);
    }
    // A change in flight does not matter: the leader looks at its own state again when it appends.
    if image.state.is_ending() {
        return refused(request, ErrorCode::CONCURRENT_TRANSACTIONS);
    }
    result(&request.transactional_id, &partitions_of(&request.topics), |topic, index| {
        let is_in = image.partitions.get(topic).is_some_and(|indexes| indexes.contains(&index));
        if is_in { ErrorCode::NONE } else { ErrorCode::TRANSACTION_ABORTABLE }
    })
}
