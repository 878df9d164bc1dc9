//! CreatePartitions (37), v0-3: more partitions for topics.

use std::sync::Arc;

use mainstem_wire::messages::create_partitions_request::CreatePartitionsRequest;
use mainstem_wire::messages::create_partitions_response::{
    CreatePartitionsResponse, CreatePartitionsTopicResult,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond_throttled;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};

/// The first version whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599).
const STRICT_SINCE: i16 = 3;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let mut request: CreatePartitionsRequest<'_> = body(decoder, context.version)?;
    let mut refused = Vec::new();
    request.topics.retain(|topic| match authorize(context, Operation::Alter, Resource::Topic(&topic.name)) {
        Ok(()) => true,
        Err(error) => {
            refused.push(refuse(&topic.name, error));
            false
        }
    });
    let mut mutations = broker.quotas.mutations(context, STRICT_SINCE);
    let mut permit = |count| mutations.permit(count);
    let created = broker.controller.create_partitions(&request, &mut permit);
    let mut results = created
        .unwrap_or_else(|error| request.topics.iter().map(|topic| refuse(&topic.name, error)).collect());
    results.extend(refused);
    let response = CreatePartitionsResponse { results, ..Default::default() };
    Ok(respond_throttled(context, response, mutations.throttle(), out))
}

fn refuse(name: &str, error: ErrorCode) -> CreatePartitionsTopicResult<'static> {
    CreatePartitionsTopicResult {
        name: name.to_owned().into(),
        error_code: error.code(),
        error_message: Some(error.message().into()),
        ..Default::default()
    }
}
