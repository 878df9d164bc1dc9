//! DescribeGroups (15), v0-6: members and assignments of classic groups.

use std::sync::Arc;

use mainstem_coordination::groups::{Reply, Request};
use mainstem_wire::messages::describe_groups_request::DescribeGroupsRequest;
use mainstem_wire::messages::describe_groups_response::DescribedGroup;
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::coordinators::driver::Keys;
use crate::coordinators::groups::Groups;
use crate::coordinators::tailers;
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
            refused.push(refuse(id, error));
            false
        }
    });
    let mut memory = broker.answers.begin();
    let with_operations = request.include_authorized_operations;
    let behind = broker.clone();
    let keys = Keys::These(request.groups.iter().map(ToString::to_string).collect());
    let request = (Request::DescribeGroups(request), keys);
    Ok(Groups::answer_confirmed(broker, context, request, out, move |context, reply, overtaken, out| {
        let Reply::DescribeGroups(mut response) = reply else {
            unreachable!("the coordinator answers in kind, not {reply:?}")
        };
        for group in &mut response.groups {
            if overtaken.has(&behind.groups, &group.group_id) {
                *group = refuse(&group.group_id, ErrorCode::NOT_COORDINATOR);
            }
            tailers::describe(&behind, group);
            if !memory.take(memory_of(group)) {
                *group = refuse(&group.group_id, ErrorCode::COORDINATOR_NOT_AVAILABLE);
            }
        }
        response.groups.extend(refused);
        for group in response.groups.iter_mut().filter(|group| with_operations && group.error_code == 0) {
            group.authorized_operations = authorized_operations(context, Resource::Group(&group.group_id));
        }
        respond(context, response, out)
    }))
}

fn refuse(id: &str, error: ErrorCode) -> DescribedGroup<'static> {
    DescribedGroup { group_id: id.to_owned().into(), error_code: error.code(), ..Default::default() }
}

/// Bytes that a group takes until it is encoded.
fn memory_of(group: &DescribedGroup<'_>) -> usize {
    let members = group.members.iter().map(|member| {
        let texts = member.member_id.len() + member.client_id.len() + member.client_host.len();
        size_of_val(member) + texts + member.member_metadata.len() + member.member_assignment.len()
    });
    members.sum()
}
