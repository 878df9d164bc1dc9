//! DescribeGroups (15), v0-6: members and assignments of classic groups.

use std::sync::Arc;

use mainstem_coordination::groups::{Reply, Request};
use mainstem_wire::messages::describe_groups_request::DescribeGroupsRequest;
use mainstem_wire::messages::describe_groups_response::{
    DescribeGroupsResponse, DescribedGroup, DescribedGroupMember,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::api::described::{self, Described};
use crate::broker::Broker;
use crate::respond::body;
use crate::respond::{ListElement, respond_in_elements};
use mainstem_coordinators::groups::Groups;
use mainstem_coordinators::tailers;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_node::coordinators::origin;
use mainstem_requests::context::RequestContext;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: DescribeGroupsRequest<'_> = body(decoder, context.version)?;
    let mut memory = broker.net.answers.begin();
    let with_operations = request.include_authorized_operations;
    let groups: Vec<DescribedGroup<'_>> =
        described::describe(broker, context, request.groups, with_operations, &mut memory);
    out.absorb(Some(memory));
    Ok(respond_in_elements(context, DescribeGroupsResponse::default(), groups.into_iter(), out))
}

impl Described for DescribedGroup<'static> {
    fn ask(coordinator: &Groups, context: &RequestContext, id: &str) -> Self {
        let request = DescribeGroupsRequest { groups: vec![id.into()], ..Default::default() };
        let reply = coordinator.ask_here(&origin(context), Request::DescribeGroups(request));
        let Reply::DescribeGroups(groups) = reply else {
            unreachable!("the coordinator answers in kind, not {reply:?}")
        };
        groups.first().expect("one was asked for").response()
    }

    fn refused(id: &str, error: ErrorCode) -> Self {
        DescribedGroup { group_id: id.to_owned().into(), error_code: error.code(), ..Default::default() }
    }

    fn complete(&mut self, broker: &Broker, _context: &RequestContext) {
        tailers::describe(&broker.store, self);
    }

    fn id(&self) -> &str {
        &self.group_id
    }

    fn error_code(&self) -> i16 {
        self.error_code
    }

    fn set_authorized_operations(&mut self, operations: i32) {
        self.authorized_operations = operations;
    }

    fn memory(&self) -> usize {
        size_of_val(self) + self.group_id.len() + self.members.iter().map(memory_of).sum::<usize>()
    }
}

impl ListElement for DescribedGroup<'static> {
    fn without_memory(self) -> Self {
        Self::refused(&self.group_id, ErrorCode::COORDINATOR_NOT_AVAILABLE)
    }
}

/// Bytes of memory for a member until it is encoded.
fn memory_of(member: &DescribedGroupMember<'_>) -> usize {
    let texts = member.member_id.len() + member.client_id.len() + member.client_host.len();
    size_of_val(member) + texts + member.member_metadata.len() + member.member_assignment.len()
}
