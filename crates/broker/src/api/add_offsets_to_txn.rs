//! AddOffsetsToTxn (25), v0-4: a producer's transaction is to commit offsets of a group.

use std::sync::Arc;

use mainstem_coordination::transactions::{Reply, Request};
use mainstem_wire::messages::add_offsets_to_txn_request::AddOffsetsToTxnRequest;
use mainstem_wire::messages::add_offsets_to_txn_response::AddOffsetsToTxnResponse;
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
    let request: AddOffsetsToTxnRequest<'_> = body(decoder, context.version)?;
    let id = Resource::TransactionalId(&request.transactional_id);
    let allowed = authorize(&context, Operation::Write, id)
        .and_then(|()| authorize(&context, Operation::Read, Resource::Group(&request.group_id)));
    if let Err(error) = allowed {
        let response = AddOffsetsToTxnResponse { error_code: error.code(), ..Default::default() };
        return Ok(respond(&context, response, out));
    }
    // The answer that the group's partition is in the transaction comes from memory. Another coordinator may have ended that transaction.
    let error_code = ErrorCode::NOT_COORDINATOR.code();
    let refusal = Reply::AddOffsets(AddOffsetsToTxnResponse { error_code, ..Default::default() });
    let key = request.transactional_id.to_string();
    let asked = (Request::AddOffsets(request), &*key);
    Ok(coordinated::answer_confirmed(
        &broker.transactions,
        context,
        asked,
        refusal,
        out,
        |context, reply, out| {
            let Reply::AddOffsets(mut response) = reply else {
                unreachable!("the coordinator answers in kind, not {reply:?}")
            };
            response.error_code = fenced_error(response.error_code, context.version, FENCED_SINCE);
            respond(context, response, out)
        },
    ))
}
