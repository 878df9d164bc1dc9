//! ConsumerGroupDescribe (69), v0-1: members, epochs and assignments of consumer groups.

use std::sync::Arc;

use mainstem_coordination::groups::{Reply, Request};
use mainstem_wire::messages::consumer_group_describe_request::ConsumerGroupDescribeRequest;
use mainstem_wire::messages::consumer_group_describe_response::{Assignment, DescribedGroup, Member};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::coordinators::driver::Keys;
use crate::coordinators::groups::Groups;
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
    let mut request: ConsumerGroupDescribeRequest<'_> = body(decoder, context.version)?;
    let mut refused = Vec::new();
    request.group_ids.retain(|id| match authorize(&context, Operation::Describe, Resource::Group(id)) {
        Ok(()) => true,
        Err(error) => {
            refused.push(refuse(id.clone().into_owned(), error));
            false
        }
    });
    let mut memory = broker.answers.begin();
    let with_operations = request.include_authorized_operations;
    let keys = Keys::These(request.group_ids.iter().map(ToString::to_string).collect());
    let request = (Request::ConsumerGroupDescribe(request), keys);
    let behind = broker.clone();
    Ok(Groups::answer_confirmed(broker, context, request, out, move |context, reply, overtaken, out| {
        let Reply::ConsumerGroupDescribe(mut response) = reply else {
            unreachable!("the coordinator answers in kind, not {reply:?}")
        };
        let is_overtaken = |group: &&mut DescribedGroup<'_>| overtaken.has(&behind.groups, &group.group_id);
        for group in response.groups.iter_mut().filter(is_overtaken) {
            *group = refuse(group.group_id.clone().into_owned(), ErrorCode::NOT_COORDINATOR);
        }
        for group in response.groups.iter_mut().filter(|group| group.error_code == 0) {
            if !memory.take(memory_of(group)) {
                *group = refuse(group.group_id.clone().into_owned(), ErrorCode::COORDINATOR_NOT_AVAILABLE);
            } else if let Err(error) = may_describe_topics(context, group) {
                *group = refuse(group.group_id.clone().into_owned(), error);
            } else if with_operations {
                group.authorized_operations =
                    authorized_operations(context, Resource::Group(&group.group_id));
            }
        }
        response.groups.extend(refused);
        respond(context, response, out)
    }))
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

fn refuse(group_id: String, error: ErrorCode) -> DescribedGroup<'static> {
    DescribedGroup {
        group_id: group_id.into(),
        error_code: error.code(),
        error_message: Some(error.message().into()),
        ..Default::default()
    }
}

/// Bytes that a group takes until it is encoded.
fn memory_of(group: &DescribedGroup<'_>) -> usize {
    let assigned = |assignment: &Assignment<'_>| -> usize {
        let topics = assignment.topic_partitions.iter();
        topics.map(|topic| size_of_val(topic) + topic.topic_name.len() + 4 * topic.partitions.len()).sum()
    };
    let members = group.members.iter().map(|member| {
        let names: usize =
            member.subscribed_topic_names.iter().map(|name| size_of_val(name) + name.len()).sum();
        let texts = member.member_id.len() + member.client_id.len() + member.client_host.len();
        size_of_val(member)
            + texts
            + names
            + assigned(&member.assignment)
            + assigned(&member.target_assignment)
    });
    members.sum()
}
