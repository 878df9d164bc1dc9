//! ListPartitionReassignments (46), v0: the partitions whose replicas move between nodes (KIP-455).

use std::sync::Arc;

use mainstem_wire::messages::list_partition_reassignments_request::ListPartitionReassignmentsRequest;
use mainstem_wire::messages::list_partition_reassignments_response::ListPartitionReassignmentsResponse;
use mainstem_wire::{DecodeError, Decoder};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: ListPartitionReassignmentsRequest<'_> = body(decoder, context.version)?;
    let response = match authorize(&context, Operation::Describe, Resource::Cluster) {
        Ok(()) => broker.controller.image().list_reassignments(&request),
        Err(error) => ListPartitionReassignmentsResponse {
            error_code: error.code(),
            error_message: Some(error.message().into()),
            ..Default::default()
        },
    };
    Ok(respond(&context, response, out))
}
