//! AlterPartitionReassignments (45), v0-1: moves replicas between nodes (KIP-455, KIP-860).

use std::sync::Arc;

use mainstem_wire::messages::alter_partition_reassignments_request::{
    AlterPartitionReassignmentsRequest, ReassignablePartition,
};
use mainstem_wire::messages::alter_partition_reassignments_response::{
    AlterPartitionReassignmentsResponse, ReassignablePartitionResponse, ReassignableTopicResponse,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

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
    let request: AlterPartitionReassignmentsRequest<'_> = body(decoder, context.version)?;
    let controller = &broker.controller;
    let altered = authorize(context, Operation::Alter, Resource::Cluster).and_then(|()| {
        controller.decide(|machine| machine.alter_partition_reassignments(controller.view(), &request))
    });
    let response = altered.unwrap_or_else(|error| refuse_all(&request, error));
    Ok(respond(context, response, out))
}

/// The refusal of a request, for each of its partitions too.
fn refuse_all(
    request: &AlterPartitionReassignmentsRequest<'_>,
    error: ErrorCode,
) -> AlterPartitionReassignmentsResponse<'static> {
    let refuse = |partition: &ReassignablePartition<'_>| ReassignablePartitionResponse {
        partition_index: partition.partition_index,
        error_code: error.code(),
        error_message: Some(error.message().into()),
        ..Default::default()
    };
    let topics = request.topics.iter().map(|topic| ReassignableTopicResponse {
        name: topic.name.to_string().into(),
        partitions: topic.partitions.iter().map(refuse).collect(),
        ..Default::default()
    });
    AlterPartitionReassignmentsResponse {
        error_code: error.code(),
        error_message: Some(error.message().into()),
        responses: topics.collect(),
        ..Default::default()
    }
}
