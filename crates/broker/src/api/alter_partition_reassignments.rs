//! AlterPartitionReassignments (45), v0-1: move replicas between nodes (KIP-455), of which there is one.

use std::sync::Arc;

use mainstem_wire::messages::alter_partition_reassignments_request::AlterPartitionReassignmentsRequest;
use mainstem_wire::messages::alter_partition_reassignments_response::AlterPartitionReassignmentsResponse;
use mainstem_wire::{DecodeError, Decoder};

use crate::broker::Broker;
use crate::net::context::{Operation, RequestContext, Resource, authorize};
use crate::net::dispatch::{Handled, body};
use crate::net::output::ResponseBuffer;
use crate::net::respond::respond;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: AlterPartitionReassignmentsRequest<'_> = body(decoder, context.version)?;
    let altered = authorize(context, Operation::Alter, Resource::Cluster).and_then(|()| {
        broker.controller.decide(broker, |heart| heart.alter_partition_reassignments(&request))
    });
    let response = altered.unwrap_or_else(|error| AlterPartitionReassignmentsResponse {
        error_code: error.code(),
        error_message: Some(error.message().into()),
        ..Default::default()
    });
    Ok(respond(context, response, out))
}
