//! ListTransactions (66), v0-2: transactional ids, by state, producer, duration and name (KIP-664, KIP-994, KIP-1152).

use std::sync::Arc;

use mainstem_coordination::transactions::{Reply, Request};
use mainstem_wire::messages::list_transactions_request::ListTransactionsRequest;
use mainstem_wire::{DecodeError, Decoder};

use crate::api::coordinated;
use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_coordinators::driver::Keys;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, permits};

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: ListTransactionsRequest<'_> = body(decoder, context.version)?;
    let request = (Request::ListTransactions(request), Keys::All);
    let behind = broker.clone();
    Ok(coordinated::answer_confirmed_here(
        &broker.transactions,
        context,
        request,
        out,
        move |context, reply, overtaken, out| {
            let Reply::ListTransactions(mut response) = reply else {
                unreachable!("the coordinator answers in kind, not {reply:?}")
            };
            let may = |id: &str| permits(context, Operation::Describe, Resource::TransactionalId(id));
            // Another node lists those that are not confirmed.
            let is_here = |id: &str| !overtaken.has(&behind.transactions, id);
            response
                .transaction_states
                .retain(|state| may(&state.transactional_id) && is_here(&state.transactional_id));
            respond(context, response, out)
        },
    ))
}
