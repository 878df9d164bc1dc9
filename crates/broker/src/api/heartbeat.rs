//! Heartbeat (12), v0-4: a member is alive, and learns of rebalances.

use std::sync::Arc;

use mainstem_coordination::groups::{Reply, Request};
use mainstem_wire::messages::heartbeat_request::HeartbeatRequest;
use mainstem_wire::messages::heartbeat_response::HeartbeatResponse;
use mainstem_wire::{DecodeError, Decoder};

use crate::api::coordinated;
use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: HeartbeatRequest<'_> = body(decoder, context.version)?;
    if let Err(error) = authorize(&context, Operation::Read, Resource::Group(&request.group_id)) {
        let response = HeartbeatResponse { error_code: error.code(), ..Default::default() };
        return Ok(respond(&context, response, out));
    }
    let request = Request::Heartbeat(request);
    Ok(coordinated::answer(&broker.groups, context, request, out, |context, reply, out| match reply {
        Reply::Heartbeat(response) => respond(context, response, out),
        other => unreachable!("the coordinator answers in kind, not {other:?}"),
    }))
}
