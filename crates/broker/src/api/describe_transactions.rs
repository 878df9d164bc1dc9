//! DescribeTransactions (65), v0: where transactions stand (KIP-664).

use std::collections::HashSet;
use std::sync::Arc;

use mainstem_coordination::transactions::{Reply, Request};
use mainstem_wire::messages::describe_transactions_request::DescribeTransactionsRequest;
use mainstem_wire::messages::describe_transactions_response::TransactionState;
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::coordinators::driver::Keys;
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
    let keys = Keys::These(request.transactional_ids.iter().map(ToString::to_string).collect());
    let request = (Request::DescribeTransactions(request), keys);
    let behind = broker.clone();
    Ok(Transactions::answer_confirmed(
        broker,
        context,
        request,
        out,
        move |context, reply, overtaken, out| {
            let Reply::DescribeTransactions(mut response) = reply else {
                unreachable!("the coordinator answers in kind, not {reply:?}")
            };
            let may = |topic: &str| permits(context, Operation::Describe, Resource::Topic(topic));
            for state in &mut response.transaction_states {
                if overtaken.has(&behind.transactions, &state.transactional_id) {
                    *state = TransactionState {
                        transactional_id: state.transactional_id.clone(),
                        error_code: ErrorCode::NOT_COORDINATOR.code(),
                        ..Default::default()
                    };
                }
                state.topics.retain(|topic| may(&topic.topic));
            }
            response.transaction_states.extend(refused);
            respond(context, response, out)
        },
    ))
}
