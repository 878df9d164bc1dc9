//! ListPartitionReassignments (46), v0: none is ever running, since replicas do not move between nodes yet.

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
    _broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let _: ListPartitionReassignmentsRequest<'_> = body(decoder, context.version)?;
    let refused = authorize(&context, Operation::Describe, Resource::Cluster).err();
    let response = ListPartitionReassignmentsResponse {
        error_code: refused.map_or(0, |error| error.code()),
        error_message: refused.map(|error| error.message().into()),
        ..Default::default()
    };
    Ok(respond(&context, response, out))
}
