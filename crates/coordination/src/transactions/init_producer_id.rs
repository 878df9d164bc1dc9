//! InitProducerId (22), v0-5: a producer gets an id and an epoch, and fences those before it.

use std::sync::Arc;

use mainstem_records::{ProducerEpoch, ProducerId};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::init_producer_id_request::InitProducerIdRequest;

use super::config::TransactionConfig;
use super::image::Image;
use super::io::Io;
use super::records::fits;
use super::replies::not_initialised;
use super::state::State;
use super::transaction::{Plan, Transaction, Transactions};
use super::waiter::Waiter;
use super::{Token, memory, time_outs};

/// A valid request of a transactional producer.
#[derive(Debug)]
pub(crate) struct Init<'a> {
    pub(crate) token: Token,
    pub(crate) id: &'a str,
    pub(crate) timeout_ms: i32,
    /// KIP-360: the id and epoch that the producer has and wants to keep using.
    pub(crate) expected: Option<(ProducerId, ProducerEpoch)>,
}

impl<'a> Init<'a> {
    /// Validates a request, in Kafka's order.
    pub(crate) fn validate(
        token: Token,
        id: &'a str,
        request: &InitProducerIdRequest<'_>,
        two_phase: (bool, bool),
        config: &TransactionConfig,
    ) -> Result<Self, ErrorCode> {
        let expected = expected(request)?;
        let (enable_2pc, keep_prepared_txn) = two_phase;
        let timeout_ms = request.transaction_timeout_ms;
        if id.is_empty() || !fits(id) {
            Err(ErrorCode::INVALID_REQUEST)
        } else if enable_2pc {
            // KIP-939: a feature that is off gets the error of one that no client may use.
            Err(ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        } else if keep_prepared_txn {
            Err(ErrorCode::UNSUPPORTED_VERSION)
        } else if timeout_ms <= 0 || timeout_ms > config.transaction_max_timeout_ms {
            Err(ErrorCode::INVALID_TRANSACTION_TIMEOUT)
        } else {
            Ok(Self { token, id, timeout_ms, expected })
        }
    }
}

/// The id and epoch that a producer says it has: both or none.
pub(crate) fn expected(
    request: &InitProducerIdRequest<'_>,
) -> Result<Option<(ProducerId, ProducerEpoch)>, ErrorCode> {
    match (ProducerId::new(request.producer_id), ProducerEpoch::new(request.producer_epoch)) {
        (ProducerId::NONE, ProducerEpoch::NONE) => Ok(None),
        (ProducerId::NONE, _) | (_, ProducerEpoch::NONE) => Err(ErrorCode::INVALID_REQUEST),
        identity => Ok(Some(identity)),
    }
}

/// Initialises the producer of a transactional id, which is created if there is none.
pub(crate) fn serve(transactions: &mut Transactions, io: &mut Io<'_>, init: &Init<'_>) {
    match transactions.get_mut(init.id) {
        Some(transaction) => again(transaction, io, init),
        None if io.has_memory_for(memory::created(init.id)) => {
            let id: Arc<str> = init.id.into();
            let mut transaction = Transaction::new(id.clone());
            io.usage.transactions += 1;
            let plan = Plan::Create { timeout_ms: init.timeout_ms };
            io.ask(&mut transaction, plan, Waiter::Init(init.token));
            transactions.insert(id, transaction);
        }
        None => io.reply(init.token, not_initialised(ErrorCode::COORDINATOR_NOT_AVAILABLE)),
    }
}

/// Serves a known transactional id.
fn again(transaction: &mut Transaction, io: &mut Io<'_>, init: &Init<'_>) {
    let (image, timeout_ms) = (&transaction.image, init.timeout_ms);
    if transaction.is_busy() {
        return io.reply(init.token, not_initialised(ErrorCode::CONCURRENT_TRANSACTIONS));
    }
    if init.expected.is_some_and(|identity| !is_known(image, identity)) {
        return io.reply(init.token, not_initialised(ErrorCode::PRODUCER_FENCED));
    }
    if image.state == State::Ongoing {
        // The risen epoch of the fence belongs to no producer: the client tries again for its own.
        return time_outs::fence(transaction, io, Waiter::Fence(init.token));
    }
    let epoch = init.expected.map(|(_, epoch)| epoch);
    if image.producer_epoch.is_exhausted() && epoch.is_none_or(|epoch| epoch == image.producer_epoch) {
        let plan = Plan::Rotate { timeout_ms, keeps_epoch: epoch.is_some() };
        return io.ask(transaction, plan, Waiter::Init(init.token));
    }
    match epochs(image, epoch) {
        Some((epoch, last_epoch)) => {
            let target = image.initialised(epoch, last_epoch, timeout_ms, io.now.wall_ms);
            io.write(transaction, target, Waiter::Init(init.token));
        }
        None => io.reply(init.token, not_initialised(ErrorCode::PRODUCER_FENCED)),
    }
}

/// Returns true if a producer that names its identity may be the current one. It has the current id; or it has the id before it with the
/// last epoch, so that the answer with the new id may have been lost.
fn is_known(image: &Image, (producer_id, epoch): (ProducerId, ProducerEpoch)) -> bool {
    let is_late = producer_id == image.previous_producer_id && epoch.is_exhausted();
    producer_id == image.producer_id || is_late
}

/// The next epoch and the last one; None if the producer is fenced. The last one is kept only if its producer may try again: a producer
/// that does not name its identity fences all others.
fn epochs(image: &Image, expected: Option<ProducerEpoch>) -> Option<(ProducerEpoch, ProducerEpoch)> {
    let (current, last) = (image.producer_epoch, image.last_producer_epoch);
    match expected {
        None => Some((current.saturating_next(), ProducerEpoch::NONE)),
        Some(expected) if expected == current => Some((current.saturating_next(), current)),
        Some(expected) if expected == last => Some((current, last)),
        Some(_) => None,
    }
}
