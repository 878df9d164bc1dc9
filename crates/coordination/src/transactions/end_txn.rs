//! EndTxn (26), v0-5: a producer commits or aborts its transaction.

use mainstem_records::{ProducerEpoch, ProducerId};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::end_txn_request::EndTxnRequest;

use super::Token;
use super::image::{EPOCH_BUMP_VERSION, End, Image};
use super::io::Io;
use super::replies::{ended, not_ended};
use super::state::State;
use super::transaction::{Plan, Transaction, Transactions};
use super::waiter::Waiter;

/// Since this version the client's transactions have version 2 (KIP-890).
const EPOCH_BUMP_SINCE: i16 = 5;

/// The next step for a request.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Refuse(ErrorCode),
    /// The transaction has ended in this way already.
    Done,
    End,
}

/// Ends the transaction of a producer.
pub(crate) fn serve(
    transactions: &mut Transactions,
    io: &mut Io<'_>,
    token: Token,
    api_version: i16,
    request: &EndTxnRequest<'_>,
) {
    let transaction = transactions.get_mut(&*request.transactional_id);
    let Some(transaction) = transaction.filter(|transaction| transaction.stored) else {
        return io.reply(token, not_ended(ErrorCode::INVALID_PRODUCER_ID_MAPPING));
    };
    let tells_identity = api_version >= EPOCH_BUMP_SINCE;
    let decision =
        if tells_identity { decide(transaction, request) } else { decide_v1(transaction, request) };
    let image = &transaction.image;
    match decision {
        Decision::Refuse(error) => io.reply(token, not_ended(error)),
        Decision::Done => {
            let nothing = (ProducerId::NONE, ProducerEpoch::NONE);
            let identity = (image.producer_id, image.producer_epoch);
            io.reply(token, ended(if tells_identity { identity } else { nothing }));
        }
        Decision::End => {
            let client_version = if tells_identity { EPOCH_BUMP_VERSION } else { 0 };
            let end = End { committed: request.committed, client_version };
            let waiter = Waiter::End { token, tells_identity };
            if tells_identity && image.producer_epoch.is_exhausted() {
                return io.ask(transaction, Plan::End(end), waiter);
            }
            let target = image.ended(end, ProducerId::NONE, io.now.wall_ms);
            io.write(transaction, target, waiter);
        }
    }
}

/// Decides in version 1: the epoch stays, and the end can be requested again until the next transaction begins.
fn decide_v1(transaction: &Transaction, request: &EndTxnRequest<'_>) -> Decision {
    let image = &transaction.image;
    if image.producer_id.get() != request.producer_id {
        return Decision::Refuse(ErrorCode::INVALID_PRODUCER_ID_MAPPING);
    }
    if image.producer_epoch.get() != request.producer_epoch {
        return Decision::Refuse(ErrorCode::PRODUCER_FENCED);
    }
    if transaction.is_busy() {
        return Decision::Refuse(ErrorCode::CONCURRENT_TRANSACTIONS);
    }
    match (image.state, request.committed) {
        (State::Ongoing, _) => Decision::End,
        (State::CompleteCommit, true) | (State::CompleteAbort, false) => Decision::Done,
        _ => Decision::Refuse(ErrorCode::INVALID_TXN_STATE),
    }
}

/// Decides in version 2: an epoch has one transaction, so that a request with the epoch before is a retry. A client that does not know its
/// progress may abort a transaction that has not begun.
///
/// ```text
///                    abort                  commit
///                    retry     current      retry     current
///    Empty           fenced    end          fenced    invalid
///    CompleteAbort   done      end          invalid   invalid
///    CompleteCommit  invalid   end          done      invalid
/// ```
fn decide(transaction: &Transaction, request: &EndTxnRequest<'_>) -> Decision {
    let image = &transaction.image;
    let said = (ProducerId::new(request.producer_id), ProducerEpoch::new(request.producer_epoch));
    let is_current = (image.producer_id, image.producer_epoch) == said;
    let is_retry = is_retry(image, request);
    if image.state.is_ending() && image.identity_afterwards() == said {
        // The request is about the producer's next transaction.
        return Decision::Refuse(ErrorCode::CONCURRENT_TRANSACTIONS);
    }
    if image.producer_id != said.0 && !is_overflow_retry(image, request) {
        return Decision::Refuse(ErrorCode::INVALID_PRODUCER_ID_MAPPING);
    }
    let is_valid = match image.state {
        State::PrepareCommit | State::PrepareAbort => is_retry,
        State::CompleteCommit | State::CompleteAbort => is_retry || is_current,
        _ => is_current,
    };
    if !is_valid {
        return Decision::Refuse(ErrorCode::PRODUCER_FENCED);
    }
    if transaction.is_busy() {
        return Decision::Refuse(ErrorCode::CONCURRENT_TRANSACTIONS);
    }
    match (image.state, request.committed) {
        (State::Ongoing, _) | (State::Empty, false) => Decision::End,
        (State::CompleteCommit, true) | (State::CompleteAbort, false) if is_retry => Decision::Done,
        (State::CompleteCommit | State::CompleteAbort, false) if !is_retry => Decision::End,
        _ => Decision::Refuse(ErrorCode::INVALID_TXN_STATE),
    }
}

/// Returns true if the request repeats one whose answer was lost. The epoch or the id has changed with the end of the transaction, and the
/// producer does not know that. In version 1 neither changes; there the epoch before is that of a producer which was fenced.
fn is_retry(image: &Image, request: &EndTxnRequest<'_>) -> bool {
    let has_risen = ProducerEpoch::new(request.producer_epoch).checked_next() == Some(image.producer_epoch);
    let bumps = image.client_version >= EPOCH_BUMP_VERSION;
    bumps && (has_risen || is_overflow_retry(image, request))
}

/// Returns true if the transaction used up the last epoch, so that the producer has another id now.
fn is_overflow_retry(image: &Image, request: &EndTxnRequest<'_>) -> bool {
    image.previous_producer_id.get() == request.producer_id
        && request.producer_epoch == ProducerEpoch::LAST.get()
        && image.producer_epoch == ProducerEpoch::ZERO
}
