//! DescribeTransactions (65), v0: the states of transactions (KIP-664).

use std::collections::HashSet;
use std::sync::Arc;

use mainstem_coordination::transactions::{Reply, Request};
use mainstem_wire::messages::describe_transactions_request::DescribeTransactionsRequest;
use mainstem_wire::messages::describe_transactions_response::{
    DescribeTransactionsResponse, TransactionState,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_coordinators::driver::Keys;
use mainstem_coordinators::transactions::Transactions;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_node::coordinators::origin;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize, permits};

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let mut request: DescribeTransactionsRequest<'_> = body(decoder, context.version)?;
    let mut refused = Vec::new();
    // An id that is named twice is described once: an answer is no larger than the stored data.
    let mut seen = HashSet::new();
    request.transactional_ids.retain(|id| {
        let allowed = authorize(context, Operation::Describe, Resource::TransactionalId(id));
        match allowed {
            _ if !seen.insert(id.clone()) => false,
            Ok(()) => true,
            Err(error) => {
                refused.push(refuse(id, error));
                false
            }
        }
    });
    let keys = Keys::These(request.transactional_ids.iter().map(ToString::to_string).collect());
    let (mut states, overtaken) = broker.transactions.confirmed_here(keys, |coordinator| {
        let ids = request.transactional_ids.iter();
        ids.map(|id| describe(coordinator, context, id)).collect::<Vec<_>>()
    });
    let may = |topic: &str| permits(context, Operation::Describe, Resource::Topic(topic));
    for state in &mut states {
        if overtaken.has(&broker.transactions, &state.transactional_id) {
            *state = refuse(&state.transactional_id, ErrorCode::NOT_COORDINATOR);
        }
        state.topics.retain(|topic| may(&topic.topic));
    }
    states.extend(refused);
    let response = DescribeTransactionsResponse { transaction_states: states, ..Default::default() };
    Ok(respond(context, response, out))
}

fn describe(coordinator: &Transactions, context: &RequestContext, id: &str) -> TransactionState<'static> {
    let request = DescribeTransactionsRequest { transactional_ids: vec![id.into()], ..Default::default() };
    let reply = coordinator.ask_here(&origin(context), Request::DescribeTransactions(request));
    let Reply::DescribeTransactions(mut response) = reply else {
        unreachable!("the coordinator answers in kind, not {reply:?}")
    };
    response.transaction_states.pop().expect("one was asked for")
}

fn refuse(id: &str, error: ErrorCode) -> TransactionState<'static> {
    let (transactional_id, error_code) = (id.to_owned().into(), error.code());
    TransactionState { transactional_id, error_code, ..Default::default() }
}
