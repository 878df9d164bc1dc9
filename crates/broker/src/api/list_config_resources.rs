//! ListConfigResources (74), v0-1: resources that have, or could have, configurations (KIP-1142).

use std::sync::Arc;

use mainstem_controller::{MetadataImage, ResourceKind};
use mainstem_wire::messages::list_config_resources_request::ListConfigResourcesRequest;
use mainstem_wire::messages::list_config_resources_response::{ConfigResource, ListConfigResourcesResponse};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::resources::BROKER_LOGGER;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};

/// Types that can be listed, in Kafka's order.
const LISTED: [i8; 5] =
    [GROUP, CLIENT_METRICS, BROKER_LOGGER, ResourceKind::Broker as i8, ResourceKind::Topic as i8];
const GROUP: i8 = ResourceKind::Group as i8;
/// Subscriptions to client metrics (KIP-714): all that version 0 lists.
const CLIENT_METRICS: i8 = ResourceKind::ClientMetrics as i8;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: ListConfigResourcesRequest = body(decoder, context.version)?;
    let listed = authorize(context, Operation::DescribeConfigs, Resource::Cluster)
        .and_then(|()| wanted(&request, context.version));
    let image = broker.controller.image();
    let response = match listed {
        Ok(kinds) => ListConfigResourcesResponse {
            config_resources: kinds.into_iter().flat_map(|kind| resources(&image, kind)).collect(),
            ..Default::default()
        },
        Err(error) => ListConfigResourcesResponse { error_code: error.code(), ..Default::default() },
    };
    Ok(respond(context, response, out))
}

/// The requested types, each once; all of them if none is named.
fn wanted(request: &ListConfigResourcesRequest, version: i16) -> Result<Vec<i8>, ErrorCode> {
    let asked = &request.resource_types;
    if version == 0 {
        return Ok(vec![CLIENT_METRICS]);
    }
    if asked.iter().any(|kind| !LISTED.contains(kind)) {
        return Err(ErrorCode::UNSUPPORTED_VERSION);
    }
    Ok(LISTED.into_iter().filter(|kind| asked.is_empty() || asked.contains(kind)).collect())
}

fn resources(image: &MetadataImage, kind: i8) -> Vec<ConfigResource<'static>> {
    let nodes = || image.brokers().map(|node| node.id.to_string()).collect();
    let names: Vec<String> = match ResourceKind::from_code(kind) {
        Some(ResourceKind::Topic) => image.topics().map(|topic| topic.name.clone()).collect(),
        Some(ResourceKind::Broker) => nodes(),
        Some(kind) => image.configured(kind).map(str::to_owned).collect(),
        None if kind == BROKER_LOGGER => nodes(),
        None => Vec::new(),
    };
    let resource = |name: String| ConfigResource {
        resource_name: name.into(),
        resource_type: kind,
        ..Default::default()
    };
    names.into_iter().map(resource).collect()
}
