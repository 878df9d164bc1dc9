//! IncrementalAlterConfigs (44), v0-1: set, delete, append to and subtract from configuration values (KIP-339).

use std::sync::Arc;

use mainstem_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, IncrementalAlterConfigsRequest,
};
use mainstem_wire::messages::incremental_alter_configs_response::{
    AlterConfigsResourceResponse, IncrementalAlterConfigsResponse,
};
use mainstem_wire::{DecodeError, Decoder};

use crate::broker::Broker;
use crate::context::RequestContext;
use crate::dispatch::{Handled, body};
use crate::output::ResponseBuffer;
use crate::resources::{Refused, permit_alteration};
use crate::respond::respond;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let mut request: IncrementalAlterConfigsRequest<'_> = body(decoder, context.version)?;
    let mut refused = Vec::new();
    request.resources.retain(|resource| {
        let permitted = permit_alteration(broker, context, (resource.resource_type, &resource.resource_name));
        permitted.map_err(|why| refused.push(refuse(resource, &why))).is_ok()
    });
    let altered = broker.controller.alter_configs(broker, &request);
    let mut responses = altered.unwrap_or_else(|error| {
        request.resources.iter().map(|resource| refuse(resource, &error.into())).collect()
    });
    responses.extend(refused);
    Ok(respond(context, IncrementalAlterConfigsResponse { responses, ..Default::default() }, out))
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
