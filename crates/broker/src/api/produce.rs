//! Produce (0), v3-13: append record batches; answer when they are as safe as `acks` asks.

use std::borrow::Cow;
use std::collections::HashSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstem_log::Origin;
use mainstem_records::{Batch, Compression};
use mainstem_wire::messages::produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};
use mainstem_wire::messages::produce_response::{
    BatchIndexAndErrorMessage, PartitionProduceResponse, ProduceResponse, TopicProduceResponse,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode, Records};
use tokio::time::timeout;

use crate::background::{OwnedBody, in_background};
use crate::broker::Broker;
use crate::coordinators::transactions;
use crate::errors::record_errors;
use crate::net::connection::CloseReason;
use crate::net::context::{Operation, RequestContext, Resource, authorize};
use crate::net::dispatch::{Handled, body};
use crate::net::output::ResponseBuffer;
use crate::net::respond::{respond_held, respond_told};
use crate::scratch::with_scratch;
use crate::signal::DurableWait;
use crate::storage::partition::{Durable, Partition, Refused};
use crate::storage::topics::Topic;

/// Client id with which Kafka's own tools may write to internal topics.
const ADMIN_CLIENT_ID: &str = "__admin_client";

/// Version from which batches may be compressed by zstd (KIP-110).
const ZSTD_SINCE: i16 = 7;

/// Wait for the partition's durability, not only for the append.
const ACKS_ALL: i16 = -1;

/// Replicas that are in sync: this node's, as long as there are no others.
const IN_SYNC_REPLICAS: i32 = 1;

/// Time after which the appends of one request go on in the background; the one that is being made is finished.
const INLINE_TIME_MAX: Duration = Duration::from_millis(5);

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let behind = decoder.clone();
    let bytes = behind.rest().len();
    let request = last_of_each(body(decoder, context.version)?);
    let mut progress = Progress::default();
    let is_done = progress.append(broker, &context, &request, Some(INLINE_TIME_MAX));
    // Held back from now on, also while the answer waits for the disk.
    let held = broker.quotas.produced(&context, bytes);
    out.mute = out.mute.max(held);
    if !is_done {
        let body = OwnedBody::copy(broker, &behind);
        let response = Box::pin(finish_in_background(broker.clone(), context, body, progress, held));
        return Ok(Handled::Later { response, holds: true });
    }
    if request.acks == 0 {
        return Ok(match progress.failure() {
            None => Handled::Silent,
            Some(failure) => Handled::Close(CloseReason::Refused(failure)),
        });
    }
    if progress.waits.is_empty() {
        let responses = answers(&request, progress.responses, Cow::clone);
        let response = ProduceResponse { responses, ..Default::default() };
        return Ok(respond_held(&context, response, held, out));
    }
    let (responses, limit) = (answers(&request, progress.responses, owned), wait_limit(&request));
    let response = Box::pin(finish(context, responses, progress.waits, limit, held));
    Ok(Handled::Later { response, holds: false })
}

/// Of a partition that a request names more than once, what comes last counts, as in Kafka.
fn last_of_each(mut request: ProduceRequest<'_>) -> ProduceRequest<'_> {
    if let [topic] = request.topic_data.as_slice()
        && topic.partition_data.len() < 2
    {
        return request;
    }
    let mut seen = HashSet::new();
    for topic in request.topic_data.iter_mut().rev() {
        let mut keep: Vec<bool> = Vec::with_capacity(topic.partition_data.len());
        for partition in topic.partition_data.iter().rev() {
            keep.push(seen.insert((topic.topic_id, topic.name.clone(), partition.index)));
        }
        topic.partition_data.retain(|_| keep.pop().expect("there is one for each partition"));
    }
    request.topic_data.retain(|topic| !topic.partition_data.is_empty());
    request
}

/// How far a request's appends have come.
#[derive(Default)]
struct Progress {
    /// By rank of the topic and rank of the partition in it.
    responses: Vec<Vec<PartitionProduceResponse<'static>>>,
    waits: Vec<Wait>,
}

impl Progress {
    /// Appends what the request has for partitions that were not served yet: one of them, and then more for as long
    /// as is allowed. Whether all are served.
    fn append(
        &mut self,
        broker: &Broker,
        context: &RequestContext,
        request: &ProduceRequest<'_>,
        time_max: Option<Duration>,
    ) -> bool {
        let mut is_first = true;
        let mut until = None;
        let unserved = self.responses.len().saturating_sub(1);
        for (rank, data) in request.topic_data.iter().enumerate().skip(unserved) {
            if self.responses.len() == rank {
                self.responses.push(Vec::with_capacity(data.partition_data.len()));
            }
            let topic = permitted(broker, context, request, data);
            for partition in data.partition_data.iter().skip(self.responses[rank].len()) {
                if !std::mem::take(&mut is_first)
                    && let Some(time_max) = time_max
                {
                    // Most requests have one partition: they cost no look at the clock.
                    let now = Instant::now();
                    if *until.get_or_insert(now + time_max) < now {
                        return false;
                    }
                }
                self.append_partition(broker, (context.version, request.acks), rank, &topic, partition);
            }
        }
        true
    }

    fn append_partition(
        &mut self,
        broker: &Broker,
        asked: (i16, i16),
        rank: usize,
        topic: &Result<Arc<Topic>, Refusal>,
        data: &PartitionProduceData<'_>,
    ) {
        let appended = match topic {
            Ok(topic) => append(broker, asked, topic, data),
            Err(refusal) => Err(Refusal { message: refusal.message.clone(), ..refusal.error.into() }),
        };
        let responses = &mut self.responses[rank];
        let response = match appended {
            Ok((response, wait)) => {
                let partition = responses.len();
                self.waits.extend(wait.map(|(log, upto)| Wait { topic: rank, partition, log, upto }));
                PartitionProduceResponse { index: data.index, ..response }
            }
            Err(refusal) => {
                broker.metrics.produce_failed();
                refused(data.index, refusal)
            }
        };
        responses.push(response);
    }

    /// Why a client that wants no answer loses its connection: that is how it learns of a failure, as in Kafka.
    fn failure(&self) -> Option<String> {
        let failed = self.responses.iter().flatten().find(|response| response.error_code != 0)?;
        let error = ErrorCode::from(failed.error_code);
        Some(format!("a produce with acks=0 failed: {}", error.name()))
    }
}

fn answers<'a, 'b>(
    request: &ProduceRequest<'a>,
    responses: Vec<Vec<PartitionProduceResponse<'static>>>,
    name: fn(&Cow<'a, str>) -> Cow<'b, str>,
) -> Vec<TopicProduceResponse<'b>> {
    let answer = |(data, partition_responses): (&TopicProduceData<'a>, _)| TopicProduceResponse {
        name: name(&data.name),
        topic_id: data.topic_id,
        partition_responses,
        ..Default::default()
    };
    request.topic_data.iter().zip(responses).map(answer).collect()
}

/// A name that outlives the request.
#[allow(clippy::ptr_arg, reason = "it stands where `Cow::clone` does")]
fn owned(name: &Cow<'_, str>) -> Cow<'static, str> {
    name.clone().into_owned().into()
}

fn wait_limit(request: &ProduceRequest<'_>) -> Duration {
    Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0))
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
            Refused::NoLog(_) => Vec::new(),
        };
        Refusal { error: refused.code(), message: Some(refused.to_string()), records }
    }
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
    (version, acks): (i16, i16),
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
    if let Ok((batch, _)) = Batch::split_first(records) {
        // Kafka goes by the records too: nothing could ever end the transaction that such a batch begins.
        if batch.attributes().is_transactional() {
            return Err(not_transactional());
        }
        if version < ZSTD_SINCE && matches!(batch.attributes().compression(), Ok(Compression::Zstd)) {
            let message = format!("Produce before version {ZSTD_SINCE} may not compress by zstd (KIP-110)");
            let error = ErrorCode::UNSUPPORTED_COMPRESSION_TYPE;
            return Err(Refusal { message: Some(message), ..error.into() });
        }
    }
    let outcome = with_scratch(|scratch| partition.append(records, Origin::Client, &broker.clock, scratch))?;
    let appended = outcome.appended;
    let messages = u64::try_from(appended.last_offset + 1 - appended.base_offset).unwrap_or(0);
    broker.metrics.appended(&partition.traffic, messages, records.len());
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

/// Appends the rest of a request that takes long, which compressed batches can, where nobody is held up by it; then
/// waits and answers. The connection's next request waits until then.
async fn finish_in_background(
    broker: Arc<Broker>,
    context: RequestContext,
    body: OwnedBody,
    mut progress: Progress,
    held: Option<Duration>,
) -> Result<ResponseBuffer, String> {
    let behind = context.clone();
    let append = move || {
        let request = crate::net::dispatch::body(&mut body.decoder(), behind.version);
        let request = last_of_each(request.expect("it was decoded before"));
        progress.append(&broker, &behind, &request, None);
        let outcome = progress.failure().map_or_else(|| Ok(ResponseBuffer::default()), Err);
        let silent = (request.acks == 0).then_some(outcome);
        let limit = wait_limit(&request);
        (answers(&request, progress.responses, owned), progress.waits, limit, silent)
    };
    let ((responses, waits, limit, silent), took) = in_background(&context, append).await;
    let response = match silent {
        Some(outcome) => outcome,
        None => finish(context, responses, waits, limit, held).await,
    };
    response.map(|out| out.worked_for(took))
}

/// Stage two: waits for all partitions together, then answers.
async fn finish(
    context: RequestContext,
    mut responses: Vec<TopicProduceResponse<'static>>,
    waits: Vec<Wait>,
    limit: Duration,
    held: Option<Duration>,
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
    respond_told(&context, ProduceResponse { responses, ..Default::default() }, held, &mut out);
    Ok(out)
}
