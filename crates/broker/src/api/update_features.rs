//! UpdateFeatures (57), v0-2: finalize levels of features (KIP-584).

use std::sync::Arc;

use mainstem_wire::messages::update_features_request::UpdateFeaturesRequest;
use mainstem_wire::messages::update_features_response::UpdateFeaturesResponse;
use mainstem_wire::{DecodeError, Decoder};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: UpdateFeaturesRequest<'_> = body(decoder, context.version)?;
    let controller = &broker.controller;
    let updated = authorize(context, Operation::Alter, Resource::Cluster).and_then(|()| {
        controller.decide(|machine| machine.update_features(controller.view(), &request, context.version))
    });
    let response = updated.unwrap_or_else(|error| UpdateFeaturesResponse {
        error_code: error.code(),
        error_message: Some(error.message().into()),
        ..Default::default()
    });
    Ok(respond(context, response, out))
}
