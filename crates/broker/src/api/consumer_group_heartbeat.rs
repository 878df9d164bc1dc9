//! ConsumerGroupHeartbeat (68), v0-1: join, stay in or leave a consumer group (KIP-848).

use std::sync::Arc;

use mainstem_coordination::groups::{Reply, Request};
use mainstem_wire::messages::consumer_group_heartbeat_request::ConsumerGroupHeartbeatRequest;
use mainstem_wire::messages::consumer_group_heartbeat_response::ConsumerGroupHeartbeatResponse;
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::coordinators::{groups, tailers};
use crate::net::context::{Operation, RequestContext, Resource, authorize};
use crate::net::dispatch::{Handled, body};
use crate::net::output::ResponseBuffer;
use crate::net::respond::respond;
use crate::random;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: ConsumerGroupHeartbeatRequest<'_> = body(decoder, context.version)?;
    if let Err(error) = may_read(&context, &request) {
        let response = ConsumerGroupHeartbeatResponse {
            error_code: error.code(),
            error_message: Some(error.message().into()),
            ..Default::default()
        };
        return Ok(respond(&context, response, out));
    }
    if let Err(error) = tailers::check_join(broker, &request.group_id) {
        return Ok(respond(&context, tailers::refused_heartbeat(error), out));
    }
    let request = Request::ConsumerGroupHeartbeat { request, random: random::bytes() };
    Ok(groups::answer(broker, context, request, out, |context, reply, out| match reply {
        Reply::ConsumerGroupHeartbeat(response) => respond(context, response, out),
        other => unreachable!("the coordinator answers in kind, not {other:?}"),
    }))
}

/// The group must be readable, and every topic that is named must be visible.
fn may_read(context: &RequestContext, request: &ConsumerGroupHeartbeatRequest<'_>) -> Result<(), ErrorCode> {
    authorize(context, Operation::Read, Resource::Group(&request.group_id))?;
    for topic in request.subscribed_topic_names.iter().flatten() {
        authorize(context, Operation::Describe, Resource::Topic(topic))?;
    }
    Ok(())
}
