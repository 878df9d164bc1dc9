//! DescribeTransactions (65), v0: where transactions stand (KIP-664).

use std::collections::HashSet;
use std::sync::Arc;

use mainstem_coordination::transactions::{Reply, Request};
use mainstem_wire::messages::describe_transactions_request::DescribeTransactionsRequest;
use mainstem_wire::messages::describe_transactions_response::TransactionState;
use mainstem_wire::{DecodeError, Decoder};

use crate::broker::Broker;
use crate::coordinators::transactions::Transactions;
use crate::net::context::{Operation, RequestContext, Resource, authorize, permits};
use crate::net::dispatch::{Handled, body};
use crate::net::output::ResponseBuffer;
use crate::net::respond::respond;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let mut request: DescribeTransactionsRequest<'_> = body(decoder, context.version)?;
    let mut refused = Vec::new();
    // What is named twice is described once: an answer is no larger than what is stored.
    let mut seen = HashSet::new();
    request.transactional_ids.retain(|id| {
        let allowed = authorize(&context, Operation::Describe, Resource::TransactionalId(id));
        match allowed {
            _ if !seen.insert(id.clone()) => false,
            Ok(()) => true,
            Err(error) => {
                let transactional_id = id.clone().into_owned().into();
                let error_code = error.code();
                refused.push(TransactionState { transactional_id, error_code, ..Default::default() });
                false
            }
        }
    });
    let request = Request::DescribeTransactions(request);
    Ok(Transactions::answer(broker, context, request, out, |context, reply, out| {
        let Reply::DescribeTransactions(mut response) = reply else {
            unreachable!("the coordinator answers in kind, not {reply:?}")
        };
        let may = |topic: &str| permits(context, Operation::Describe, Resource::Topic(topic));
        for state in &mut response.transaction_states {
            state.topics.retain(|topic| may(&topic.topic));
        }
        response.transaction_states.extend(refused);
        respond(context, response, out)
    }))
}
