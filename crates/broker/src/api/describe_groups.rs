//! DescribeGroups (15), v0-6: members and assignments of classic groups.

use std::sync::Arc;

use mainstem_coordination::groups::{Reply, Request};
use mainstem_wire::messages::describe_groups_request::DescribeGroupsRequest;
use mainstem_wire::messages::describe_groups_response::DescribedGroup;
use mainstem_wire::{DecodeError, Decoder};

use crate::broker::Broker;
use crate::coordinators::groups;
use crate::net::context::{Operation, RequestContext, Resource, authorize, authorized_operations};
use crate::net::dispatch::{Handled, body};
use crate::net::output::ResponseBuffer;
use crate::net::respond::respond;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let mut request: DescribeGroupsRequest<'_> = body(decoder, context.version)?;
    let mut refused = Vec::new();
    request.groups.retain(|id| match authorize(&context, Operation::Describe, Resource::Group(id)) {
        Ok(()) => true,
        Err(error) => {
            let group_id = id.clone().into_owned().into();
            refused.push(DescribedGroup { group_id, error_code: error.code(), ..Default::default() });
            false
        }
    });
    let with_operations = request.include_authorized_operations;
    let request = Request::DescribeGroups(request);
    Ok(groups::answer(broker, context, request, out, move |context, reply, out| {
        let Reply::DescribeGroups(mut response) = reply else {
            unreachable!("the coordinator answers in kind, not {reply:?}")
        };
        response.groups.extend(refused);
        for group in response.groups.iter_mut().filter(|group| with_operations && group.error_code == 0) {
            group.authorized_operations = authorized_operations(context, Resource::Group(&group.group_id));
        }
        respond(context, response, out)
    }))
}
