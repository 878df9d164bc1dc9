//! AlterConfigs (33), v0-2: replaces all values of topics, groups or this node. Clients before KIP-339 use it.

use std::sync::Arc;

use mainstem_config::alter::{Change, Operation};
use mainstem_wire::messages::alter_configs_request::{AlterConfigsRequest, AlterConfigsResource};
use mainstem_wire::messages::alter_configs_response::{AlterConfigsResourceResponse, AlterConfigsResponse};
use mainstem_wire::{DecodeError, Decoder};

use crate::broker::Broker;
use crate::resources::{Alteration, Changes, refuse_unusable, refuse_what_is_not_permitted};
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
    let mut request: AlterConfigsRequest<'_> = body(decoder, context.version)?;
    let refused = refuse_what_is_not_permitted((&**broker, context), &mut request);
    let unusable = refuse_unusable(broker, &mut request);
    let controller = &broker.controller;
    let altered = controller.decide(|machine| machine.replace_configs(controller.view(), &request));
    let mut responses = match altered {
        Ok(response) => response.responses,
        Err(error) => {
            let refuse = |resource| AlterConfigsRequest::refuse(resource, &error.into());
            request.resources.iter().map(refuse).collect()
        }
    };
    responses.extend(unusable);
    responses.extend(refused);
    Ok(respond(context, AlterConfigsRequest::response(responses), out))
}

impl<'a> Alteration<'a> for AlterConfigsRequest<'a> {
    type Resource = AlterConfigsResource<'a>;
    type Answer = AlterConfigsResourceResponse<'static>;

    fn resources(&mut self) -> &mut Vec<Self::Resource> {
        &mut self.resources
    }

    fn named(resource: &Self::Resource) -> (i8, &str) {
        (resource.resource_type, &resource.resource_name)
    }

    /// The new values of a resource, which replace all others.
    fn changes(resource: &Self::Resource) -> Changes<'_> {
        let set = resource.configs.iter().map(|config| Change {
            name: &config.name,
            operation: Operation::Set,
            value: config.value.as_deref(),
        });
        (set.collect(), true)
    }

    fn refuse(resource: &Self::Resource, why: &Refused) -> Self::Answer {
        AlterConfigsResourceResponse {
            error_code: why.error.code(),
            error_message: Some(why.message.clone().into()),
            resource_type: resource.resource_type,
            resource_name: resource.resource_name.to_string().into(),
            ..Default::default()
        }
    }

    fn response(responses: Vec<Self::Answer>) -> AlterConfigsResponse<'static> {
        AlterConfigsResponse { responses, ..Default::default() }
    }
}
