//! ConsumerGroupDescribe (69), v0-1: members, epochs and assignments of consumer groups.

use std::collections::HashSet;
use std::sync::Arc;

use mainstem_coordination::groups::{Reply, Request};
use mainstem_wire::messages::consumer_group_describe_request::ConsumerGroupDescribeRequest;
use mainstem_wire::messages::consumer_group_describe_response::{
    Assignment, ConsumerGroupDescribeResponse, DescribedGroup, Member,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::coordinators::driver::Keys;
use crate::coordinators::groups::Groups;
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
    let mut request: ConsumerGroupDescribeRequest<'_> = body(decoder, context.version)?;
    let mut refused = Vec::new();
    // What is named twice is described once: an answer is no larger than what is stored.
    let mut seen = HashSet::new();
    request.group_ids.retain(|id| match authorize(context, Operation::Describe, Resource::Group(id)) {
        Ok(()) => seen.insert(id.clone()),
        Err(error) => {
            refused.push(refuse(id, error));
            false
        }
    });
    let mut memory = broker.answers.begin();
    let keys = Keys::These(request.group_ids.iter().map(ToString::to_string).collect());
    let (mut groups, overtaken) = Groups::confirmed_here(broker, keys, |coordinator| {
        let ids = request.group_ids.iter();
        ids.map(|id| describe(coordinator, broker, context, id, &mut memory)).collect::<Vec<_>>()
    });
    for group in &mut groups {
        if overtaken.has(&broker.groups, &group.group_id) {
            *group = refuse(&group.group_id, ErrorCode::NOT_COORDINATOR);
        } else if group.error_code != 0 {
            continue;
        } else if let Err(error) = may_describe_topics(context, group) {
            *group = refuse(&group.group_id, error);
        } else if request.include_authorized_operations {
            group.authorized_operations = authorized_operations(context, Resource::Group(&group.group_id));
        }
    }
    groups.extend(refused);
    Ok(respond(context, ConsumerGroupDescribeResponse { groups, ..Default::default() }, out))
}

/// Describes a group, if there is memory for it.
fn describe(
    coordinator: &Groups,
    broker: &Arc<Broker>,
    context: &RequestContext,
    id: &str,
    memory: &mut AnswerShare,
) -> DescribedGroup<'static> {
    let request = ConsumerGroupDescribeRequest { group_ids: vec![id.into()], ..Default::default() };
    let reply = coordinator.ask_here(broker, context, Request::ConsumerGroupDescribe(request));
    let Reply::ConsumerGroupDescribe(mut response) = reply else {
        unreachable!("the coordinator answers in kind, not {reply:?}")
    };
    let group = response.groups.pop().expect("one was asked for");
    match memory.take(memory_of(&group)) {
        true => group,
        false => refuse(id, ErrorCode::COORDINATOR_NOT_AVAILABLE),
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

fn refuse(id: &str, error: ErrorCode) -> DescribedGroup<'static> {
    DescribedGroup {
        group_id: id.to_owned().into(),
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
    size_of_val(group) + group.group_id.len() + members.sum::<usize>()
}
