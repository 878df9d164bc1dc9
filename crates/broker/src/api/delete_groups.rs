//! DeleteGroups (42), v0-2: deletes empty groups with their offsets; answered when their tombstones are durable.

use std::collections::HashSet;
use std::sync::Arc;

use mainstem_coordination::groups::{Reply, Request};
use mainstem_wire::messages::delete_groups_request::DeleteGroupsRequest;
use mainstem_wire::messages::delete_groups_response::{DeletableGroupResult, DeleteGroupsResponse};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_coordinators::groups::Asked;
use mainstem_coordinators::tailers::{self, TailerGroup};
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_node::coordinators::origin;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let mut request: DeleteGroupsRequest<'_> = body(decoder, context.version)?;
    let mut seen = HashSet::new();
    request.groups_names.retain(|id| seen.insert(id.clone()));
    // All deletions are requested before the first is waited for, so that they share a sync of the disk.
    let asked: Vec<_> = request.groups_names.iter().map(|id| (id, delete(broker, context, id))).collect();
    let results = asked.into_iter().map(|(id, asked)| DeletableGroupResult {
        group_id: id.clone(),
        error_code: asked.map_or_else(|error| error, outcome).code(),
        ..Default::default()
    });
    let response = DeleteGroupsResponse { results: results.collect(), ..Default::default() };
    Ok(respond(context, response, out))
}

fn delete(broker: &Arc<Broker>, context: &RequestContext, id: &str) -> Result<Deletion, ErrorCode> {
    authorize(context, Operation::Delete, Resource::Group(id))?;
    let tailers = tailers::find(&broker.store, id);
    tailers.iter().try_for_each(TailerGroup::remove)?;
    let asked = broker.groups.ask(&origin(context), Request::DeleteGroup(id));
    Ok(Deletion { asked, was_tailer: !tailers.is_empty() })
}

/// A group's deletion in progress.
struct Deletion {
    asked: Asked,
    /// Named tailers of attached queues were deleted already; the coordinator need not know the group.
    was_tailer: bool,
}

fn outcome(deletion: Deletion) -> ErrorCode {
    match deletion.asked.wait() {
        Ok(Reply::DeleteGroup(ErrorCode::GROUP_ID_NOT_FOUND)) if deletion.was_tailer => ErrorCode::NONE,
        Ok(Reply::DeleteGroup(error)) => error,
        Ok(other) => unreachable!("the coordinator answers in kind, not {other:?}"),
        Err(error) => error,
    }
}
