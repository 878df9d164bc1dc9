//! EndTxn (26), v0-5: a producer commits or aborts its transaction.

use std::sync::Arc;

use mainstem_coordination::transactions::{Reply, Request};
use mainstem_wire::messages::end_txn_request::EndTxnRequest;
use mainstem_wire::messages::end_txn_response::EndTxnResponse;
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::api::coordinated;
use crate::api::fenced_error;
use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};

/// Version from which clients know PRODUCER_FENCED (KIP-588).
const FENCED_SINCE: i16 = 2;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: EndTxnRequest<'_> = body(decoder, context.version)?;
    let id = Resource::TransactionalId(&request.transactional_id);
    if let Err(error) = authorize(&context, Operation::Write, id) {
        let response = EndTxnResponse { error_code: error.code(), ..Default::default() };
        return Ok(respond(&context, response, out));
    }
    // The answer that a transaction has ended comes from memory, and may be about the last one: another coordinator may have begun the
    // next.
    let error_code = ErrorCode::NOT_COORDINATOR.code();
    let refusal = Reply::EndTxn(EndTxnResponse { error_code, ..Default::default() });
    let key = request.transactional_id.to_string();
    let asked = (Request::EndTxn(request), &*key);
    Ok(coordinated::answer_confirmed(
        &broker.transactions,
        context,
        asked,
        refusal,
        out,
        |context, reply, out| {
            let Reply::EndTxn(mut response) = reply else {
                unreachable!("the coordinator answers in kind, not {reply:?}")
            };
            response.error_code = fenced_error(response.error_code, context.version, FENCED_SINCE);
            respond(context, response, out)
        },
    ))
}
