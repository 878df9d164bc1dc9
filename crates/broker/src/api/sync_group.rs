//! SyncGroup (14), v0-5: give or get the assignment of a generation.

use std::sync::Arc;

use mainstem_coordination::groups::{Reply, Request};
use mainstem_wire::messages::sync_group_request::SyncGroupRequest;
use mainstem_wire::messages::sync_group_response::SyncGroupResponse;
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::api::coordinated;
use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};

/// The first version in which members name their protocol (KIP-559).
const PROTOCOL_SINCE: i16 = 5;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: SyncGroupRequest<'_> = body(decoder, context.version)?;
    // This is checked first, as in Kafka.
    if context.version >= PROTOCOL_SINCE
        && (request.protocol_type.is_none() || request.protocol_name.is_none())
    {
        let error_code = ErrorCode::INCONSISTENT_GROUP_PROTOCOL.code();
        return Ok(respond(&context, SyncGroupResponse { error_code, ..Default::default() }, out));
    }
    if let Err(error) = authorize(&context, Operation::Read, Resource::Group(&request.group_id)) {
        let response = SyncGroupResponse { error_code: error.code(), ..Default::default() };
        return Ok(respond(&context, response, out));
    }
    let request = Request::SyncGroup(request);
    Ok(coordinated::answer(&broker.groups, context, request, out, |context, reply, out| match reply {
        Reply::SyncGroup(response) => respond(context, response, out),
        other => unreachable!("the coordinator answers in kind, not {other:?}"),
    }))
}
