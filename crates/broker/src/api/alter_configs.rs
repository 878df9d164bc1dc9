//! AlterConfigs (33), v0-2: replaces all values of topics, groups or this node. Clients before KIP-339 use it.

use std::sync::Arc;

use mainstem_config::alter::{Change, Operation};
use mainstem_wire::messages::alter_configs_request::{AlterConfigsRequest, AlterConfigsResource};
use mainstem_wire::messages::alter_configs_response::{AlterConfigsResourceResponse, AlterConfigsResponse};
use mainstem_wire::{DecodeError, Decoder};

use crate::broker::Broker;
use crate::net::context::RequestContext;
use crate::net::dispatch::{Handled, body};
use crate::net::output::ResponseBuffer;
use crate::net::respond::respond;
use crate::resources::{
    Changes, Refused, refuse_all_with_unusable, refuse_unusable, refuse_what_is_not_permitted,
};

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let mut request: AlterConfigsRequest<'_> = body(decoder, context.version)?;
    let refused = refuse_what_is_not_permitted((&**broker, context), &mut request.resources, named, refuse);
    let unusable = refuse_unusable(broker, &mut request.resources, named, replacement, refuse);
    let controller = &broker.controller;
    let altered = controller.decide(|machine| machine.replace_configs(controller.view(), &request));
    let mut responses = match altered {
        Ok(response) => response.responses,
        Err(error) => request.resources.iter().map(|resource| refuse(resource, &error.into())).collect(),
    };
    responses.extend(unusable);
    responses.extend(refused);
    Ok(respond(context, AlterConfigsResponse { responses, ..Default::default() }, out))
}

/// Answers a request that is to be handed on, as IncrementalAlterConfigs does.
///
/// # Errors
/// When the body is malformed.
pub(crate) fn refuse_before_handing_on(
    broker: &Broker,
    context: &RequestContext,
    decoder: &Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Option<Handled>, DecodeError> {
    let request: AlterConfigsRequest<'_> = body(&mut decoder.clone(), context.version)?;
    let refused = refuse_all_with_unusable((broker, context), &request.resources, named, replacement, refuse);
    Ok(refused
        .map(|responses| respond(context, AlterConfigsResponse { responses, ..Default::default() }, out)))
}

/// What is set; all else goes.
fn replacement<'a>(resource: &'a AlterConfigsResource<'_>) -> Changes<'a> {
    let set = resource.configs.iter().map(|config| Change {
        name: &config.name,
        operation: Operation::Set,
        value: config.value.as_deref(),
    });
    (set.collect(), true)
}

fn named<'a>(resource: &'a AlterConfigsResource<'_>) -> (i8, &'a str) {
    (resource.resource_type, &resource.resource_name)
}

fn refuse(resource: &AlterConfigsResource<'_>, why: &Refused) -> AlterConfigsResourceResponse<'static> {
    AlterConfigsResourceResponse {
        error_code: why.error.code(),
        error_message: Some(why.message.clone().into()),
        resource_type: resource.resource_type,
        resource_name: resource.resource_name.to_string().into(),
        ..Default::default()
    }
}
