//! ConsumerGroupDescribe (69), v0-1: members, epochs and assignments of consumer groups.

use std::sync::Arc;

use mainstem_coordination::groups::{Reply, Request};
use mainstem_wire::messages::consumer_group_describe_request::ConsumerGroupDescribeRequest;
use mainstem_wire::messages::consumer_group_describe_response::{
    Assignment, ConsumerGroupDescribeResponse, DescribedGroup, Member,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::api::described::{self, Described};
use crate::broker::Broker;
use crate::respond::body;
use crate::respond::{ListElement, respond_in_elements};
use mainstem_coordinators::groups::Groups;
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
    let request: ConsumerGroupDescribeRequest<'_> = body(decoder, context.version)?;
    let mut memory = broker.net.answers.begin();
    let with_operations = request.include_authorized_operations;
    let groups: Vec<DescribedGroup<'_>> =
        described::describe(broker, context, request.group_ids, with_operations, &mut memory);
    out.absorb(Some(memory));
    Ok(respond_in_elements(context, ConsumerGroupDescribeResponse::default(), groups.into_iter(), out))
}

impl Described for DescribedGroup<'static> {
    fn ask(coordinator: &Groups, context: &RequestContext, id: &str) -> Self {
        let request = ConsumerGroupDescribeRequest { group_ids: vec![id.into()], ..Default::default() };
        let reply = coordinator.ask_here(&origin(context), Request::ConsumerGroupDescribe(request));
        let Reply::ConsumerGroupDescribe(groups) = reply else {
            unreachable!("the coordinator answers in kind, not {reply:?}")
        };
        groups.first().expect("one was asked for").response()
    }

    fn refused(id: &str, error: ErrorCode) -> Self {
        DescribedGroup {
            group_id: id.to_owned().into(),
            error_code: error.code(),
            error_message: Some(error.message().into()),
            ..Default::default()
        }
    }

    fn complete(&mut self, _broker: &Broker, context: &RequestContext) {
        if self.error_code == 0
            && let Err(error) = may_describe_topics(context, self)
        {
            *self = Self::refused(&self.group_id, error);
        }
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

/// A principal that may not see one of the topics sees nothing of the group, as in Kafka.
fn may_describe_topics(context: &RequestContext, group: &DescribedGroup<'_>) -> Result<(), ErrorCode> {
    for topic in group.members.iter().flat_map(topics) {
        authorize(context, Operation::Describe, Resource::Topic(topic))?;
    }
    Ok(())
}

fn topics<'m>(member: &'m Member<'_>) -> impl Iterator<Item = &'m str> {
    let assigned = [&member.assignment, &member.target_assignment];
    let assigned = assigned.into_iter().flat_map(|assignment| &assignment.topic_partitions);
    member.subscribed_topic_names.iter().map(|name| &**name).chain(assigned.map(|topic| &*topic.topic_name))
}

impl ListElement for DescribedGroup<'static> {
    fn without_memory(self) -> Self {
        Self::refused(&self.group_id, ErrorCode::COORDINATOR_NOT_AVAILABLE)
    }
}

/// Bytes of memory for a member until it is encoded.
fn memory_of(member: &Member<'_>) -> usize {
    let assigned = |assignment: &Assignment<'_>| -> usize {
        let topics = assignment.topic_partitions.iter();
        topics.map(|topic| size_of_val(topic) + topic.topic_name.len() + 4 * topic.partitions.len()).sum()
    };
    let names: usize = member.subscribed_topic_names.iter().map(|name| size_of_val(name) + name.len()).sum();
    let texts = member.member_id.len() + member.client_id.len() + member.client_host.len();
    let partitions = assigned(&member.assignment) + assigned(&member.target_assignment);
    size_of_val(member) + texts + names + partitions
}
