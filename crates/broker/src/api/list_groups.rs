//! ListGroups (16), v0-5: the groups of this node, by state and type.

use std::sync::Arc;

use mainstem_coordination::groups::{ListFilter, Reply, Request};
use mainstem_wire::messages::list_groups_request::ListGroupsRequest;
use mainstem_wire::messages::list_groups_response::ListGroupsResponse;
use mainstem_wire::{DecodeError, Decoder};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_coordinators::driver::Keys;
use mainstem_coordinators::groups::Groups;
use mainstem_coordinators::tailers;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_node::coordinators::origin;
use mainstem_requests::context::{Operation, RequestContext, Resource, permits};

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: ListGroupsRequest<'_> = body(decoder, context.version)?;
    let owned = |texts: &[std::borrow::Cow<'_, str>]| -> Vec<String> {
        texts.iter().map(ToString::to_string).collect()
    };
    let filters = (owned(&request.states_filter), owned(&request.types_filter));
    let filter = ListFilter::of(&request);
    let (mut response, overtaken) =
        broker.groups.confirmed_here(Keys::All, |coordinator| list(coordinator, context, &filter));
    // The other node lists these groups.
    response.groups.retain(|group| !overtaken.has(&broker.groups, &group.group_id));
    if response.error_code == 0 {
        tailers::list(&broker.store, &mut response.groups, (&filters.0, &filters.1));
    }
    // A principal that may describe the cluster sees all groups, others those that they may describe.
    if !permits(context, Operation::Describe, Resource::Cluster) {
        let may = |id: &str| permits(context, Operation::Describe, Resource::Group(id));
        response.groups.retain(|group| may(&group.group_id));
    }
    Ok(respond(context, response, out))
}

/// The groups of this node, one partition after the other, so that the coordinator serves others in between.
fn list(coordinator: &Groups, context: &RequestContext, filter: &ListFilter) -> ListGroupsResponse<'static> {
    let mut listed = ListGroupsResponse::default();
    let mut after = None;
    loop {
        let request = Request::ListGroups { filter: filter.clone(), after };
        let reply = coordinator.ask_here(&origin(context), request);
        let Reply::ListGroups(part) = reply else {
            unreachable!("the coordinator answers in kind, not {reply:?}")
        };
        if part.response.error_code != 0 {
            return part.response;
        }
        listed.groups.extend(part.response.groups);
        after = part.next;
        if after.is_none() {
            return listed;
        }
    }
}
