//! IncrementalAlterConfigs (44), v0-1: set, delete, append to and subtract from configuration values (KIP-339).

use std::sync::Arc;

use mainstem_controller::{ApiError, changes_of};
use mainstem_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, IncrementalAlterConfigsRequest,
};
use mainstem_wire::messages::incremental_alter_configs_response::{
    AlterConfigsResourceResponse, IncrementalAlterConfigsResponse,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::resources::{
    Alteration, BROKER, BROKER_LOGGER, Changes, refuse_unusable, refuse_what_is_not_permitted,
};
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::RequestContext;
use mainstem_requests::refused::Refused;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let mut request: IncrementalAlterConfigsRequest<'_> = body(decoder, context.version)?;
    let refused = refuse_what_is_not_permitted((&**broker, context), &mut request);
    let loggers: Vec<_> =
        request.resources.extract_if(.., |resource| resource.resource_type == BROKER_LOGGER).collect();
    let unusable = refuse_unusable(broker, &mut request);
    let altered = broker.controller.alter_configs(&request);
    // As in Kafka, setting a store to its current value makes the broker read it again.
    if !request.validate_only && request.resources.iter().any(|resource| resource.resource_type == BROKER) {
        broker.security.read_stores_again();
    }
    let mut responses = altered.unwrap_or_else(|error| {
        let refuse = |resource| IncrementalAlterConfigsRequest::refuse(resource, &error.into());
        request.resources.iter().map(refuse).collect()
    });
    responses.extend(alter_loggers(broker, &loggers, request.validate_only));
    responses.extend(unusable);
    responses.extend(refused);
    Ok(respond(context, IncrementalAlterConfigsRequest::response(responses), out))
}

impl<'a> Alteration<'a> for IncrementalAlterConfigsRequest<'a> {
    type Resource = AlterConfigsResource<'a>;
    type Answer = AlterConfigsResourceResponse<'static>;

    fn resources(&mut self) -> &mut Vec<Self::Resource> {
        &mut self.resources
    }

    fn named(resource: &Self::Resource) -> (i8, &str) {
        (resource.resource_type, &resource.resource_name)
    }

    /// The changes of a resource. Unknown operations are found later.
    fn changes(resource: &Self::Resource) -> Changes<'_> {
        (changes_of(resource).unwrap_or_default(), false)
    }

    fn refuse(resource: &Self::Resource, why: &Refused) -> Self::Answer {
        answer(resource, why.error.code(), Some(why.message.clone()))
    }

    fn response(responses: Vec<Self::Answer>) -> IncrementalAlterConfigsResponse<'static> {
        IncrementalAlterConfigsResponse { responses, ..Default::default() }
    }
}

/// Alters levels of loggers. They are not metadata, and last until the process ends.
fn alter_loggers(
    broker: &Broker,
    resources: &[AlterConfigsResource<'_>],
    validate_only: bool,
) -> Vec<AlterConfigsResourceResponse<'static>> {
    let alter = |resource: &AlterConfigsResource<'_>| {
        if resources.len() > 1 {
            let message = "Each resource must appear at most once.";
            return Err(ApiError { code: ErrorCode::INVALID_REQUEST, message: message.to_owned() });
        }
        Ok(broker.loggers.alter(&changes_of(resource)?, validate_only)?)
    };
    let answers = resources.iter().map(|resource| match alter(resource) {
        Ok(()) => answer(resource, 0, None),
        Err(error) => answer(resource, error.code.code(), Some(error.message)),
    });
    answers.collect()
}

fn answer(
    resource: &AlterConfigsResource<'_>,
    error_code: i16,
    error_message: Option<String>,
) -> AlterConfigsResourceResponse<'static> {
    AlterConfigsResourceResponse {
        error_code,
        error_message: error_message.map(Into::into),
        resource_type: resource.resource_type,
        resource_name: resource.resource_name.to_string().into(),
        ..Default::default()
    }
}
