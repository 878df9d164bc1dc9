//! LeaveGroup (13), v0-5: members leave, so that the others need not wait for a timeout.

use std::sync::Arc;

use mainstem_coordination::groups::{Reply, Request};
use mainstem_wire::messages::leave_group_request::LeaveGroupRequest;
use mainstem_wire::messages::leave_group_response::LeaveGroupResponse;
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
    let request: LeaveGroupRequest<'_> = body(decoder, context.version)?;
    if let Err(error) = authorize(&context, Operation::Read, Resource::Group(&request.group_id)) {
        let response = LeaveGroupResponse { error_code: error.code(), ..Default::default() };
        return Ok(respond(&context, response, out));
    }
    let request = Request::LeaveGroup(request);
    Ok(coordinated::answer(&broker.groups, context, request, out, |context, reply, out| match reply {
        Reply::LeaveGroup(response) => respond(context, response, out),
        other => unreachable!("the coordinator answers in kind, not {other:?}"),
    }))
}
