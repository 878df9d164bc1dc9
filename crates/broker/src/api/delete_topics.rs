//! DeleteTopics (20), v1-6: by name or id; answered when the deletion is committed and carried out.

use std::sync::Arc;

use mainstem_wire::messages::delete_topics_request::{DeleteTopicState, DeleteTopicsRequest};
use mainstem_wire::messages::delete_topics_response::{DeletableTopicResult, DeleteTopicsResponse};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond_throttled;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize, permits};

/// The first version whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599).
const STRICT_SINCE: i16 = 5;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let mut request: DeleteTopicsRequest<'_> = body(decoder, context.version)?;
    let mut refused = Vec::new();
    request.topics.retain(|topic| keep(broker, context, topic, &mut refused));
    request.topic_names.retain(|name| {
        let named = DeleteTopicState { name: Some(name.clone()), ..Default::default() };
        keep(broker, context, &named, &mut refused)
    });
    let mut mutations = broker.quotas.mutations(context, STRICT_SINCE);
    let mut permit = |count| mutations.permit(count);
    let deleted = broker.controller.delete_topics(&request, context.version, &mut permit);
    let mut responses = deleted.unwrap_or_else(|error| {
        let names = request.topic_names.iter().map(|name| refuse(Some(name.to_string()), error));
        let topics = request.topics.iter().map(|topic| DeletableTopicResult {
            topic_id: topic.topic_id,
            ..refuse(topic.name.as_ref().map(ToString::to_string), error)
        });
        names.chain(topics).collect()
    });
    responses.extend(refused);
    let response = DeleteTopicsResponse { responses, ..Default::default() };
    Ok(respond_throttled(context, response, mutations.throttle(), out))
}

fn keep(
    broker: &Broker,
    context: &RequestContext,
    topic: &DeleteTopicState<'_>,
    refused: &mut Vec<DeletableTopicResult<'static>>,
) -> bool {
    let name = match &topic.name {
        Some(name) => Some(name.to_string()),
        None => broker.store.topics.by_id(&topic.topic_id).map(|topic| topic.name.to_string()),
    };
    // An id without a name is unknown, which the state machine answers.
    let Some(name) = name else { return true };
    if permits(context, Operation::Delete, Resource::Cluster) {
        return true;
    }
    let is_missing = topic.name.is_some() && broker.store.topics.by_name(&name).is_none();
    if is_missing && permits(context, Operation::Describe, Resource::Topic(&name)) {
        // A principal that may describe the topic learns that it does not exist. The state machine answers so, too.
        return true;
    }
    match authorize(context, Operation::Delete, Resource::Topic(&name)) {
        Ok(()) => true,
        Err(error) => {
            // A principal that may not describe the topic does not learn the name for an id.
            let is_known =
                topic.name.is_some() || permits(context, Operation::Describe, Resource::Topic(&name));
            let name = is_known.then_some(name);
            refused.push(DeletableTopicResult { topic_id: topic.topic_id, ..refuse(name, error) });
            false
        }
    }
}

fn refuse(name: Option<String>, error: ErrorCode) -> DeletableTopicResult<'static> {
    DeletableTopicResult {
        name: name.map(Into::into),
        error_code: error.code(),
        error_message: Some(error.message().into()),
        ..Default::default()
    }
}
