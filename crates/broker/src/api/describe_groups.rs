//! DescribeGroups (15), v0-6: members and assignments of classic groups.

use std::collections::HashSet;
use std::sync::Arc;

use mainstem_coordination::groups::{Reply, Request};
use mainstem_wire::messages::describe_groups_request::DescribeGroupsRequest;
use mainstem_wire::messages::describe_groups_response::{DescribeGroupsResponse, DescribedGroup};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::coordinators::driver::Keys;
use crate::coordinators::groups::Groups;
use crate::coordinators::tailers;
use crate::net::answers::AnswerShare;
use crate::net::context::{Operation, RequestContext, Resource, authorize, authorized_operations};
use crate::net::dispatch::{Handled, body};
use crate::net::output::ResponseBuffer;
use crate::net::respond::respond;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let mut request: DescribeGroupsRequest<'_> = body(decoder, context.version)?;
    let mut refused = Vec::new();
    // What is named twice is described once: an answer is no larger than what is stored.
    let mut seen = HashSet::new();
    request.groups.retain(|id| match authorize(context, Operation::Describe, Resource::Group(id)) {
        Ok(()) => seen.insert(id.clone()),
        Err(error) => {
            refused.push(refuse(id, error));
            false
        }
    });
    let mut memory = broker.answers.begin();
    let keys = Keys::These(request.groups.iter().map(ToString::to_string).collect());
    let (mut groups, overtaken) = Groups::confirmed_here(broker, keys, |coordinator| {
        let ids = request.groups.iter();
        ids.map(|id| describe(coordinator, broker, context, id, &mut memory)).collect::<Vec<_>>()
    });
    for group in &mut groups {
        if overtaken.has(&broker.groups, &group.group_id) {
            *group = refuse(&group.group_id, ErrorCode::NOT_COORDINATOR);
        }
        tailers::describe(broker, group);
        if request.include_authorized_operations && group.error_code == 0 {
            group.authorized_operations = authorized_operations(context, Resource::Group(&group.group_id));
        }
    }
    groups.extend(refused);
    Ok(respond(context, DescribeGroupsResponse { groups, ..Default::default() }, out))
}

/// Describes a group, if there is memory for it.
fn describe(
    coordinator: &Groups,
    broker: &Arc<Broker>,
    context: &RequestContext,
    id: &str,
    memory: &mut AnswerShare,
) -> DescribedGroup<'static> {
    let request = DescribeGroupsRequest { groups: vec![id.into()], ..Default::default() };
    let reply = coordinator.ask_here(broker, context, Request::DescribeGroups(request));
    let Reply::DescribeGroups(mut response) = reply else {
        unreachable!("the coordinator answers in kind, not {reply:?}")
    };
    let group = response.groups.pop().expect("one was asked for");
    match memory.take(memory_of(&group)) {
        true => group,
        false => refuse(id, ErrorCode::COORDINATOR_NOT_AVAILABLE),
    }
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
    size_of_val(group) + group.group_id.len() + members.sum::<usize>()
}
