//! Produce (0), v3-13: append record batches; answer when they are as safe as `acks` asks.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use mainstem_log::Origin;
use mainstem_records::Batch;
use mainstem_wire::messages::produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};
use mainstem_wire::messages::produce_response::{
    BatchIndexAndErrorMessage, PartitionProduceResponse, ProduceResponse, TopicProduceResponse,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode, Records};
use tokio::time::timeout;

use crate::broker::Broker;
use crate::connection::CloseReason;
use crate::context::{Operation, RequestContext, Resource, authorize};
use crate::dispatch::{Handled, body};
use crate::errors::record_errors;
use crate::output::ResponseBuffer;
use crate::partition::{Durable, Partition, Refused};
use crate::respond::respond;
use crate::scratch::with_scratch;
use crate::signal::DurableWait;
use crate::topics::Topic;
use crate::transactions;

/// Client id with which Kafka's own tools may write to internal topics.
const ADMIN_CLIENT_ID: &str = "__admin_client";

/// Wait for the partition's durability, not only for the append.
const ACKS_ALL: i16 = -1;

/// Replicas that are in sync: this node's, as long as there are no others.
const IN_SYNC_REPLICAS: i32 = 1;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: ProduceRequest<'_> = body(decoder, context.version)?;
    let mut waits = Vec::new();
    let mut responses = Vec::with_capacity(request.topic_data.len());
    for (rank, data) in request.topic_data.iter().enumerate() {
        let partition_responses = serve_topic(broker, &context, &request, rank, data, &mut waits);
        responses.push((data, partition_responses));
    }
    if request.acks == 0 {
        return Ok(without_response(responses.iter().flat_map(|(_, partitions)| partitions)));
    }
    if waits.is_empty() {
        let responses = responses.into_iter().map(|(data, partition_responses)| TopicProduceResponse {
            name: data.name.clone(),
            topic_id: data.topic_id,
            partition_responses,
            ..Default::default()
        });
        let response = ProduceResponse { responses: responses.collect(), ..Default::default() };
        return Ok(respond(&context, response, out));
    }
    let responses = responses.into_iter().map(|(data, partition_responses)| TopicProduceResponse {
        name: data.name.clone().into_owned().into(),
        topic_id: data.topic_id,
        partition_responses,
        ..Default::default()
    });
    let limit = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
    let response = Box::pin(finish(context, responses.collect(), waits, limit));
    Ok(Handled::Later { response, holds: false })
}

/// A client that wants no answer learns of a failure by losing its connection, as in Kafka.
fn without_response<'a>(
    mut responses: impl Iterator<Item = &'a PartitionProduceResponse<'static>>,
) -> Handled {
    match responses.find(|response| response.error_code != 0) {
        None => Handled::Silent,
        Some(failed) => {
            let error = ErrorCode::from(failed.error_code);
            Handled::Close(CloseReason::Refused(format!("a produce with acks=0 failed: {}", error.name())))
        }
    }
}

/// An append whose answer waits for the disk.
struct Wait {
    /// Rank of the topic in the request.
    topic: usize,
    /// Rank of the partition in the topic.
    partition: usize,
    log: Arc<Partition>,
    upto: i64,
}

/// Why a partition's records were not appended.
struct Refusal {
    error: ErrorCode,
    message: Option<String>,
    records: Vec<(i32, String)>,
}

impl From<ErrorCode> for Refusal {
    fn from(error: ErrorCode) -> Self {
        Refusal { error, message: None, records: Vec::new() }
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        let records = match &refused {
            Refused::Log(error) => record_errors(error),
            Refused::Gone => Vec::new(),
        };
        Refusal { error: refused.code(), message: Some(refused.to_string()), records }
    }
}

fn serve_topic(
    broker: &Broker,
    context: &RequestContext,
    request: &ProduceRequest<'_>,
    rank: usize,
    data: &TopicProduceData<'_>,
    waits: &mut Vec<Wait>,
) -> Vec<PartitionProduceResponse<'static>> {
    let topic = permitted(broker, context, request, data);
    let serve = |(partition, data): (usize, &PartitionProduceData<'_>)| {
        let appended = match &topic {
            Ok(topic) => append(broker, request.acks, topic, data),
            Err(refusal) => Err(Refusal { message: refusal.message.clone(), ..refusal.error.into() }),
        };
        match appended {
            Ok((response, wait)) => {
                waits.extend(wait.map(|(log, upto)| Wait { topic: rank, partition, log, upto }));
                PartitionProduceResponse { index: data.index, ..response }
            }
            Err(refusal) => refused(data.index, refusal),
        }
    };
    data.partition_data.iter().enumerate().map(serve).collect()
}

/// The topic, if it exists and may be written to by this request.
fn permitted(
    broker: &Broker,
    context: &RequestContext,
    request: &ProduceRequest<'_>,
    data: &TopicProduceData<'_>,
) -> Result<Arc<Topic>, Refusal> {
    if !matches!(request.acks, -1..=1) {
        return Err(ErrorCode::INVALID_REQUIRED_ACKS.into());
    }
    if request.transactional_id.is_some() {
        return Err(not_transactional());
    }
    let topic = match context.version {
        13.. => broker.topics.by_id(&data.topic_id).ok_or(ErrorCode::UNKNOWN_TOPIC_ID)?,
        _ => broker.topics.by_name(&data.name).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?,
    };
    authorize(context, Operation::Write, Resource::Topic(&topic.name))?;
    if topic.is_internal() && context.client_id.as_deref() != Some(ADMIN_CLIENT_ID) {
        return Err(ErrorCode::INVALID_TOPIC_EXCEPTION.into());
    }
    Ok(topic)
}

fn not_transactional() -> Refusal {
    let message = Some(transactions::NOT_SERVED.to_owned());
    Refusal { message, ..transactions::NOT_SERVED_ERROR.into() }
}

type AppendAnswer = (PartitionProduceResponse<'static>, Option<(Arc<Partition>, i64)>);

/// Appends one partition's records. With the answer comes what it has to wait for, if anything.
fn append(
    broker: &Broker,
    acks: i16,
    topic: &Topic,
    data: &PartitionProduceData<'_>,
) -> Result<AppendAnswer, Refusal> {
    let partition = topic.partition(data.index).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
    let settings = partition.settings();
    if acks == ACKS_ALL && IN_SYNC_REPLICAS < settings.min_insync_replicas {
        return Err(ErrorCode::NOT_ENOUGH_REPLICAS.into());
    }
    let records: &[u8] = match &data.records {
        Some(Records::Bytes(bytes)) => bytes,
        _ => &[],
    };
    // Kafka goes by the records too: nobody could ever end the transaction that such a batch begins.
    if Batch::split_first(records).is_ok_and(|(batch, _)| batch.attributes().is_transactional()) {
        return Err(not_transactional());
    }
    let outcome = with_scratch(|scratch| partition.append(records, Origin::Client, &broker.clock, scratch))?;
    broker.metrics.appended(records.len());
    let appended = outcome.appended;
    let waits = (acks == ACKS_ALL && !settings.write_caching) || (acks != 0 && outcome.must_sync);
    let response = PartitionProduceResponse {
        base_offset: appended.base_offset,
        log_append_time_ms: appended.log_append_time.unwrap_or(-1),
        log_start_offset: appended.log_start_offset,
        ..Default::default()
    };
    Ok((response, waits.then(|| (partition.clone(), appended.last_offset + 1))))
}

fn refused(index: i32, refusal: Refusal) -> PartitionProduceResponse<'static> {
    let record_errors = refusal.records.into_iter().map(|(batch_index, message)| BatchIndexAndErrorMessage {
        batch_index,
        batch_index_error_message: Some(message.into()),
        ..Default::default()
    });
    PartitionProduceResponse {
        index,
        error_code: refusal.error.code(),
        base_offset: -1,
        record_errors: record_errors.collect(),
        error_message: refusal.message.map(Into::into),
        ..Default::default()
    }
}

/// Stage two: waits for all partitions together, then answers.
async fn finish(
    context: RequestContext,
    mut responses: Vec<TopicProduceResponse<'static>>,
    waits: Vec<Wait>,
    limit: Duration,
) -> Result<ResponseBuffer, String> {
    let durable = Arc::new(DurableWait::new(waits.len()));
    for wait in &waits {
        wait.log.when_durable(wait.upto, Durable::Request(durable.clone()));
    }
    let in_time = timeout(limit, poll_fn(|context| durable.poll(context))).await.is_ok();
    if !in_time || durable.has_failed() {
        for wait in &waits {
            let response = &mut responses[wait.topic].partition_responses[wait.partition];
            if let Err(error) = wait.log.durability(wait.upto) {
                *response = refused(response.index, error.into());
            }
        }
    }
    let mut out = ResponseBuffer::pooled();
    respond(&context, ProduceResponse { responses, ..Default::default() }, &mut out);
    Ok(out)
}
