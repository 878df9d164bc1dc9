//! ListGroups (16), v0-5: the groups of this node, by state and type.

use std::sync::Arc;

use mainstem_coordination::groups::{Reply, Request};
use mainstem_wire::messages::list_groups_request::ListGroupsRequest;
use mainstem_wire::{DecodeError, Decoder};

use crate::broker::Broker;
use crate::coordinators::driver::Keys;
use crate::coordinators::groups::Groups;
use crate::coordinators::tailers;
use crate::net::context::{Operation, RequestContext, Resource, permits};
use crate::net::dispatch::{Handled, body};
use crate::net::output::ResponseBuffer;
use crate::net::respond::respond;

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
    let behind = broker.clone();
    let request = (Request::ListGroups(request), Keys::All);
    Ok(Groups::answer_confirmed_here(broker, context, request, out, move |context, reply, overtaken, out| {
        let Reply::ListGroups(mut response) = reply else {
            unreachable!("the coordinator answers in kind, not {reply:?}")
        };
        // Another node lists those.
        response.groups.retain(|group| !overtaken.has(&behind.groups, &group.group_id));
        if response.error_code == 0 {
            tailers::list(&behind, &mut response.groups, (&filters.0, &filters.1));
        }
        // A principal that may describe the cluster sees all groups, others those that they may describe.
        if !permits(context, Operation::Describe, Resource::Cluster) {
            let may = |id: &str| permits(context, Operation::Describe, Resource::Group(id));
            response.groups.retain(|group| may(&group.group_id));
        }
        respond(context, response, out)
    }))
}
