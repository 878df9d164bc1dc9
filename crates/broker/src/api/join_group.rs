//! JoinGroup (11), v0-9: become a member, and wait for the others.

use std::sync::Arc;

use mainstem_coordination::groups::{Reply, Request};
use mainstem_wire::messages::join_group_request::JoinGroupRequest;
use mainstem_wire::messages::join_group_response::JoinGroupResponse;
use mainstem_wire::{DecodeError, Decoder};

use crate::api::coordinated;
use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_coordinators::tailers;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};
use mainstem_runtime::random;

/// Version from which an answer without a protocol says null, and not an empty name (KIP-559).
const NULL_PROTOCOL_SINCE: i16 = 7;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: JoinGroupRequest<'_> = body(decoder, context.version)?;
    let allowed = authorize(&context, Operation::Read, Resource::Group(&request.group_id));
    if let Err(error) = allowed.and_then(|()| tailers::check_join(&broker.store, &request.group_id)) {
        let response = JoinGroupResponse { error_code: error.code(), ..Default::default() };
        return Ok(respond_joined(&context, response, out));
    }
    let request = Request::JoinGroup { request, random: random::bytes() };
    Ok(coordinated::answer(&broker.groups, context, request, out, |context, reply, out| match reply {
        Reply::JoinGroup(response) => respond_joined(context, response, out),
        other => unreachable!("the coordinator answers in kind, not {other:?}"),
    }))
}

/// Answers a join. Without a protocol its name is null or empty, by version.
fn respond_joined(
    context: &RequestContext,
    mut response: JoinGroupResponse<'_>,
    out: &mut ResponseBuffer,
) -> Handled {
    let name = response.protocol_name.take().filter(|name| !name.is_empty());
    response.protocol_name = match context.version {
        NULL_PROTOCOL_SINCE.. => name,
        _ => Some(name.unwrap_or_default()),
    };
    respond(context, response, out)
}
