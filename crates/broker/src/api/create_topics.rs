//! CreateTopics (19), v2-7: answered when the topics are durable and served.

use std::sync::Arc;

use mainstem_wire::messages::create_topics_request::CreateTopicsRequest;
use mainstem_wire::messages::create_topics_response::{CreatableTopicResult, CreateTopicsResponse};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond_throttled;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize, permits};

/// The first version whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599).
const STRICT_SINCE: i16 = 6;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let mut request: CreateTopicsRequest<'_> = body(decoder, context.version)?;
    let mut refused = Vec::new();
    let may_create_all = permits(context, Operation::Create, Resource::Cluster);
    request.topics.retain(|topic| {
        let allowed = match may_create_all {
            true => Ok(()),
            false => authorize(context, Operation::Create, Resource::Topic(&topic.name)),
        };
        refused.extend(allowed.err().map(|error| CreatableTopicResult {
            name: topic.name.clone().into_owned().into(),
            error_code: error.code(),
            error_message: Some(error.message().into()),
            ..Default::default()
        }));
        allowed.is_ok()
    });
    let mut mutations = broker.quotas.mutations(context, STRICT_SINCE);
    let mut permit = |count| mutations.permit(count);
    let mut topics = broker.controller.create_topics(&request, &mut permit);
    topics.iter_mut().for_each(|topic| hide_configs(context, topic));
    topics.extend(refused);
    let response = CreateTopicsResponse { topics, ..Default::default() };
    Ok(respond_throttled(context, response, mutations.throttle(), out))
}

/// Removes the configuration from the answer to a principal that may not describe it (KIP-525).
fn hide_configs(context: &RequestContext, topic: &mut CreatableTopicResult<'_>) {
    let is_created = topic.error_code == ErrorCode::NONE.code();
    if is_created && !permits(context, Operation::DescribeConfigs, Resource::Topic(&topic.name)) {
        topic.topic_config_error_code = ErrorCode::TOPIC_AUTHORIZATION_FAILED.code();
        (topic.num_partitions, topic.replication_factor) = (-1, -1);
        topic.configs = Some(Vec::new());
    }
}
