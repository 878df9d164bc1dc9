//! DeleteRecords (21), v0-2: raise the log start; answered when the new one survives a restart.

use std::collections::HashSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use mainstem_wire::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic,
};
use mainstem_wire::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsResponse, DeleteRecordsTopicResult,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};
use mainstem_store::partition::Durable;
use mainstem_store::signal::DurableWait;

/// Low watermark of an answer that has none.
const INVALID_LOW_WATERMARK: i64 = -1;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    _out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request = last_of_each(body(decoder, context.version)?);
    let parts = request.topics.iter().map(|topic| topic.partitions.len()).sum();
    let durable = Arc::new(DurableWait::new(parts));
    let topics = request.topics.iter().map(|topic| delete_in_topic(broker, &context, topic, &durable));
    let mut topics: Vec<_> = topics.collect();
    let limit = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
    let clock = broker.clock.clone();
    let response = Box::pin(async move {
        let in_time = clock.timeout(limit, poll_fn(|context| durable.poll(context))).await.is_ok();
        if !in_time || durable.has_failed() {
            let error = durable.failure().filter(|_| in_time).unwrap_or(ErrorCode::REQUEST_TIMED_OUT);
            let partitions = topics.iter_mut().flat_map(|topic| &mut topic.partitions);
            partitions.filter(|one| one.error_code == 0).for_each(|one| one.error_code = error.code());
        }
        let mut out = ResponseBuffer::pooled();
        respond(&context, DeleteRecordsResponse { topics, ..Default::default() }, &mut out);
        Ok(out)
    });
    Ok(Handled::Later { response, holds: true })
}

/// Keeps the last entry for each partition, as Kafka does for partitions that a request names more than once.
fn last_of_each(mut request: DeleteRecordsRequest<'_>) -> DeleteRecordsRequest<'_> {
    let mut seen = HashSet::new();
    for topic in request.topics.iter_mut().rev() {
        let name = topic.name.clone();
        let named = std::mem::take(&mut topic.partitions).into_iter().rev();
        let mut kept: Vec<_> =
            named.filter(|partition| seen.insert((name.clone(), partition.partition_index))).collect();
        kept.reverse();
        topic.partitions = kept;
    }
    request.topics.retain(|topic| !topic.partitions.is_empty());
    request
}

fn delete_in_topic(
    broker: &Broker,
    context: &RequestContext,
    topic: &DeleteRecordsTopic<'_>,
    durable: &Arc<DurableWait>,
) -> DeleteRecordsTopicResult<'static> {
    let allowed = authorize(context, Operation::Delete, Resource::Topic(&topic.name));
    let partitions = topic.partitions.iter().map(|wanted| {
        let deleted = allowed.and_then(|()| delete_in_partition(broker, &topic.name, wanted, durable));
        // A refused deletion is not waited for.
        if deleted.is_err() {
            durable.done(Ok(()));
        }
        DeleteRecordsPartitionResult {
            partition_index: wanted.partition_index,
            low_watermark: *deleted.as_ref().unwrap_or(&INVALID_LOW_WATERMARK),
            error_code: deleted.err().map_or(0, ErrorCode::code),
            ..Default::default()
        }
    });
    let partitions = partitions.collect();
    DeleteRecordsTopicResult {
        name: topic.name.clone().into_owned().into(),
        partitions,
        ..Default::default()
    }
}

fn delete_in_partition(
    broker: &Broker,
    topic: &str,
    wanted: &DeleteRecordsPartition<'_>,
    durable: &Arc<DurableWait>,
) -> Result<i64, ErrorCode> {
    let topic = broker.store.topics.by_name(topic).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
    if topic.is_internal() {
        return Err(ErrorCode::INVALID_TOPIC_EXCEPTION);
    }
    let partition = topic.partition(wanted.partition_index).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
    // An empty cleanup.policy removes nothing by itself, and forbids no removal.
    let settings = partition.settings();
    if settings.log.compact && !settings.log.delete {
        return Err(ErrorCode::POLICY_VIOLATION);
    }
    partition.delete_records_before(wanted.offset, Durable::Request(durable.clone()))
}
