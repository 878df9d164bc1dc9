//! UnregisterBroker (64), v0: remove a node that will not return.

use std::sync::Arc;

use mainstem_wire::messages::unregister_broker_request::UnregisterBrokerRequest;
use mainstem_wire::messages::unregister_broker_response::UnregisterBrokerResponse;
use mainstem_wire::{DecodeError, Decoder};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};
use mainstem_requests::refused::Refused;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: UnregisterBrokerRequest = body(decoder, context.version)?;
    let refused = unregister(broker, context, request.broker_id).err();
    let response = UnregisterBrokerResponse {
        error_code: refused.as_ref().map_or(0, |refused| refused.error.code()),
        error_message: refused.map(|refused| refused.message.into()),
        ..Default::default()
    };
    Ok(respond(context, response, out))
}

fn unregister(broker: &Arc<Broker>, context: &RequestContext, id: i32) -> Result<(), Refused> {
    authorize(context, Operation::Alter, Resource::Cluster)?;
    let controller = &broker.controller;
    let decided = controller.decide(|machine| machine.unregister_broker(controller.view(), id))?;
    decided.map_err(|error| Refused { error: error.code, message: error.message })
}
