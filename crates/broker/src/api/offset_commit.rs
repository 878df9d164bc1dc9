//! OffsetCommit (8), v2-10: store the positions of a group.

use std::borrow::Cow;
use std::sync::Arc;

use mainstem_coordination::groups::{Reply, Request};
use mainstem_wire::messages::offset_commit_request::{OffsetCommitRequest, OffsetCommitRequestTopic};
use mainstem_wire::messages::offset_commit_response::{
    OffsetCommitResponse, OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::api::coordinated;
use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_coordinators::tailers;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};
use mainstem_store::topics::Topic;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let mut request: OffsetCommitRequest<'_> = body(decoder, context.version)?;
    let group = authorize(&context, Operation::Read, Resource::Group(&request.group_id));
    let mut refused = Vec::new();
    request.topics.retain_mut(|topic| match group.and_then(|()| resolve(broker, &context, topic)) {
        Ok(known) => {
            refused.extend(take_unknown_partitions(topic, known.partitions.len()));
            refused.extend(take_tailer(broker, &request.group_id, topic));
            !topic.partitions.is_empty()
        }
        Err(error) => {
            refused.push(refuse(topic, error));
            false
        }
    });
    if request.topics.is_empty() && !refused.is_empty() {
        let response = OffsetCommitResponse { topics: refused, ..Default::default() };
        return Ok(respond(&context, response, out));
    }
    let request = Request::OffsetCommit(request);
    Ok(coordinated::answer(&broker.groups, context, request, out, |context, reply, out| {
        let Reply::OffsetCommit(mut response) = reply else {
            unreachable!("the coordinator answers in kind, not {reply:?}")
        };
        response.topics.extend(refused);
        respond(context, response, out)
    }))
}

/// Finds the topic, adds its name if the client gave its id (v10), and authorizes Read.
fn resolve(
    broker: &Broker,
    context: &RequestContext,
    topic: &mut OffsetCommitRequestTopic<'_>,
) -> Result<Arc<Topic>, ErrorCode> {
    if context.version < 10 {
        // It is authorized before the lookup: a principal that may not read does not learn which topics exist.
        authorize(context, Operation::Read, Resource::Topic(&topic.name))?;
        return broker.store.topics.by_name(&topic.name).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    }
    let known = broker.store.topics.by_id(&topic.topic_id).ok_or(ErrorCode::UNKNOWN_TOPIC_ID)?;
    topic.name = Cow::Owned(known.name.to_string());
    authorize(context, Operation::Read, Resource::Topic(&topic.name))?;
    Ok(known)
}

/// Removes the partition of an attached queue in which the group is a named tailer, and moves that tailer.
fn take_tailer(
    broker: &Broker,
    group: &str,
    topic: &mut OffsetCommitRequestTopic<'_>,
) -> Option<OffsetCommitResponseTopic<'static>> {
    let tailer = tailers::find_in(&broker.store, group, &topic.name)?;
    let partitions = topic.partitions.drain(..).map(|partition| OffsetCommitResponsePartition {
        partition_index: partition.partition_index,
        error_code: tailer.reset(partition.committed_offset).err().map_or(0, ErrorCode::code),
        ..Default::default()
    });
    let partitions = partitions.collect::<Vec<_>>();
    (!partitions.is_empty()).then(|| OffsetCommitResponseTopic {
        name: topic.name.clone().into_owned().into(),
        topic_id: topic.topic_id,
        partitions,
        ..Default::default()
    })
}

/// Removes the partitions that a topic of `count` partitions does not have, and answers them.
fn take_unknown_partitions(
    topic: &mut OffsetCommitRequestTopic<'_>,
    count: usize,
) -> Option<OffsetCommitResponseTopic<'static>> {
    let exists = |index: i32| usize::try_from(index).is_ok_and(|index| index < count);
    let unknown: Vec<_> =
        topic.partitions.extract_if(.., |partition| !exists(partition.partition_index)).collect();
    let named = OffsetCommitRequestTopic { partitions: unknown, ..topic.clone() };
    (!named.partitions.is_empty()).then(|| refuse(&named, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION))
}

fn refuse(topic: &OffsetCommitRequestTopic<'_>, error: ErrorCode) -> OffsetCommitResponseTopic<'static> {
    let partitions = topic.partitions.iter().map(|partition| OffsetCommitResponsePartition {
        partition_index: partition.partition_index,
        error_code: error.code(),
        ..Default::default()
    });
    OffsetCommitResponseTopic {
        name: topic.name.clone().into_owned().into(),
        topic_id: topic.topic_id,
        partitions: partitions.collect(),
        ..Default::default()
    }
}
