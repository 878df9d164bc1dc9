//! OffsetDelete (47), v0: delete offsets of topics that no member reads; answered when their tombstones are durable.

use std::sync::Arc;

use mainstem_coordination::groups::{Reply, Request};
use mainstem_wire::messages::offset_delete_request::{OffsetDeleteRequest, OffsetDeleteRequestTopic};
use mainstem_wire::messages::offset_delete_response::{
    OffsetDeleteResponse, OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_coordinators::tailers;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_node::coordinators::origin;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};
use mainstem_store::topics::Topic;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let mut request: OffsetDeleteRequest<'_> = body(decoder, context.version)?;
    let response = match authorize(context, Operation::Delete, Resource::Group(&request.group_id)) {
        Ok(()) => {
            // The coordinator is always asked about the group, unless it may know nothing about a tailer's.
            let is_tailer = !broker.store.attached.is_empty()
                && !tailers::find(&broker.store, &request.group_id).is_empty();
            let refused = take_refused(broker, context, &mut request);
            if is_tailer && request.topics.is_empty() && !refused.is_empty() {
                OffsetDeleteResponse { topics: refused, ..Default::default() }
            } else {
                delete(broker, context, request, refused)
            }
        }
        Err(error) => OffsetDeleteResponse { error_code: error.code(), ..Default::default() },
    };
    Ok(respond(context, response, out))
}

fn delete(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: OffsetDeleteRequest<'_>,
    refused: Vec<OffsetDeleteResponseTopic<'static>>,
) -> OffsetDeleteResponse<'static> {
    match broker.groups.ask(&origin(context), Request::OffsetDelete(request)).wait() {
        // An error of the group is the whole answer, without topics.
        Ok(Reply::OffsetDelete(mut response)) if response.error_code == 0 => {
            response.topics.extend(refused);
            response
        }
        Ok(Reply::OffsetDelete(response)) => response,
        Ok(other) => unreachable!("the coordinator answers in kind, not {other:?}"),
        Err(error) => OffsetDeleteResponse { error_code: error.code(), ..Default::default() },
    }
}

/// Removes topics that the coordinator need not be asked about, and answers them.
fn take_refused(
    broker: &Broker,
    context: &RequestContext,
    request: &mut OffsetDeleteRequest<'_>,
) -> Vec<OffsetDeleteResponseTopic<'static>> {
    let mut refused = Vec::new();
    request.topics.retain_mut(|topic| {
        match readable(broker, context, &topic.name) {
            Ok(known) => {
                refused.extend(take_unknown_partitions(topic, &known));
                refused.extend(take_tailer(broker, &request.group_id, topic));
            }
            Err(error) => refused.push(refuse(std::mem::take(topic), error)),
        }
        !topic.partitions.is_empty()
    });
    refused
}

/// Removes the partition of an attached queue in which the group is a named tailer, and deletes that tailer.
fn take_tailer(
    broker: &Broker,
    group: &str,
    topic: &mut OffsetDeleteRequestTopic<'_>,
) -> Option<OffsetDeleteResponseTopic<'static>> {
    let tailer = tailers::find_in(&broker.store, group, &topic.name)?;
    let taken = std::mem::take(topic);
    let error = tailer.remove().map_err(|error| match error {
        ErrorCode::NON_EMPTY_GROUP => ErrorCode::GROUP_SUBSCRIBED_TO_TOPIC,
        other => other,
    });
    (!taken.partitions.is_empty()).then(|| refuse(taken, error.err().unwrap_or(ErrorCode::NONE)))
}

fn readable(broker: &Broker, context: &RequestContext, name: &str) -> Result<Arc<Topic>, ErrorCode> {
    authorize(context, Operation::Read, Resource::Topic(name))?;
    broker.store.topics.by_name(name).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)
}

/// Removes the partitions that the topic does not have, and answers them.
fn take_unknown_partitions(
    topic: &mut OffsetDeleteRequestTopic<'_>,
    known: &Topic,
) -> Option<OffsetDeleteResponseTopic<'static>> {
    let is_unknown = |index: i32| known.partition(index).is_none();
    let unknown: Vec<_> =
        topic.partitions.extract_if(.., |partition| is_unknown(partition.partition_index)).collect();
    let named = OffsetDeleteRequestTopic { name: topic.name.clone(), partitions: unknown };
    (!named.partitions.is_empty()).then(|| refuse(named, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION))
}

fn refuse(topic: OffsetDeleteRequestTopic<'_>, error: ErrorCode) -> OffsetDeleteResponseTopic<'static> {
    let partitions = topic.partitions.iter().map(|partition| OffsetDeleteResponsePartition {
        partition_index: partition.partition_index,
        error_code: error.code(),
    });
    OffsetDeleteResponseTopic { partitions: partitions.collect(), name: topic.name.into_owned().into() }
}
