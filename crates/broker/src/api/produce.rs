//! Produce (0), v3-13: append record batches; answer when they are as durable as `acks` asks.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstem_coordination::groups::Producer;
use mainstem_log::{Origin, VerificationGuard, VerificationRequest};
use mainstem_records::{Batch, Compression, LeaderEpoch, ProducerEpoch, ProducerId};
use mainstem_wire::messages::produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};
use mainstem_wire::messages::produce_response::{
    BatchIndexAndErrorMessage, LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, ProduceResponse,
    TopicProduceResponse,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode, Records};
use tokio::sync::oneshot;

use crate::background::OwnedBody;
use crate::broker::Broker;
use crate::respond::body;
use crate::respond::{respond_throttled, respond_throttled_before};
use crate::turns::in_background;
use mainstem_net::connection::CloseReason;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_node::current_leader::CurrentLeaders;
use mainstem_node::verification::{Refusals, Terms, Verification, Wanted};
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};
use mainstem_runtime::clock::machine_now;
use mainstem_store::attached::{Attached, PendingAppend, UNANSWERED_TIME_MAX};
use mainstem_store::errors::record_errors;
use mainstem_store::partition::{AppendOutcome, Durable, Partition, Refused};
use mainstem_store::scratch::with_scratch;
use mainstem_store::settings::TopicSettings;
use mainstem_store::signal::DurableWait;
use mainstem_store::topics::Topic;

/// Client id with which Kafka's own tools may write to internal topics.
const ADMIN_CLIENT_ID: &str = "__admin_client";

/// Version from which batches may be compressed by zstd (KIP-110).
const ZSTD_SINCE: i16 = 7;

/// Version from which an answer names another node as the leader (KIP-951).
const CURRENT_LEADER_SINCE: i16 = 10;

/// Acks that wait for the partition's durability, not only for the append.
const ACKS_ALL: i16 = -1;

/// The most verifications by the coordinator for one request, while the producer's last transaction is ending.
const VERIFICATIONS_MAX: usize = 10;

/// The longest that records wait for a partition whose leadership is handed over.
const PARKED_TIME_MAX: Duration = Duration::from_secs(1);

/// Time after which the appends of a request continue in the background; the current append is completed first.
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
    match transactional(broker, &context, &request) {
        None => {}
        Some(verified) if verified.asked.is_none() => progress.verified = verified.known,
        Some(verified) => {
            let body = OwnedBody::copy(broker, &behind);
            let response = finish_verified(broker.clone(), context, (body, bytes), verified);
            return Ok(Handled::Later { response: Box::pin(response), holds: true });
        }
    }
    let is_done = progress.append(broker, &context, &request, Some(INLINE_TIME_MAX));
    // The client is throttled from now on, also while the answer waits for the disk.
    let held = broker.quotas.produced(&context, bytes);
    out.mute = out.mute.max(held);
    if !is_done {
        let body = OwnedBody::copy(broker, &behind);
        let rest = finish_in_background(broker.clone(), context, body, (progress, Vec::new()), held);
        return Ok(Handled::Later { response: Box::pin(rest), holds: true });
    }
    if let Some(parked) = progress.park(broker, &request) {
        let body = OwnedBody::copy(broker, &behind);
        let response = finish_parked(broker.clone(), context, body, (progress, parked), held);
        return Ok(Handled::Later { response: Box::pin(response), holds: true });
    }
    if request.acks == 0 {
        return Ok(match progress.failure() {
            None => Handled::Silent,
            Some(failure) => Handled::Close(CloseReason::Refused(failure)),
        });
    }
    if progress.waits.is_empty() {
        let mut responses = answers(&request, progress.responses, Cow::clone);
        let node_endpoints = name_leaders(broker, &context, &mut responses);
        let response = ProduceResponse { responses, node_endpoints, ..Default::default() };
        return Ok(respond_throttled(&context, response, held, out));
    }
    let (responses, limit) = (answers(&request, progress.responses, owned), wait_limit(&request));
    let response = Box::pin(finish(broker.clone(), context, responses, progress.waits, limit, held));
    Ok(Handled::Later { response, holds: false })
}

/// Keeps the last entry for each partition, as Kafka does for partitions that a request names more than once.
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

/// The progress of a request's appends.
#[derive(Default)]
struct Progress {
    /// By index of the topic, and of the partition in it.
    responses: Vec<Vec<PartitionProduceResponse<'static>>>,
    waits: Vec<Wait>,
    verified: Verified,
}

/// Guards with which batches may begin a transaction in their partitions, or the errors why they may not, by index of
/// the topic and of the partition in it.
type Verified = HashMap<Place, Result<VerificationGuard, ErrorCode>>;

/// Index of the topic in the request, and of the partition in it.
type Place = (usize, usize);

/// A partition whose records were refused because its leadership is being handed over.
struct Parked {
    place: Place,
    handed_over: oneshot::Receiver<()>,
}

impl Progress {
    /// Appends to partitions that were not served yet: to one of them, and to more for as long as is allowed. Returns
    /// true if all are served.
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
            let topic = permitted(broker, context, data);
            for partition in data.partition_data.iter().skip(self.responses[rank].len()) {
                if !std::mem::take(&mut is_first)
                    && let Some(time_max) = time_max
                {
                    // Most requests have one partition: these need no look at the clock.
                    let now = machine_now();
                    if *until.get_or_insert(now + time_max) < now {
                        return false;
                    }
                }
                let asked = (context.version, request.acks, wait_limit(request));
                let place = (rank, self.responses[rank].len());
                let response = self.append_partition(broker, asked, place, &topic, partition);
                self.responses[rank].push(response);
            }
        }
        true
    }

    fn append_partition(
        &mut self,
        broker: &Broker,
        asked: (i16, i16, Duration),
        place: Place,
        topic: &Result<Arc<Topic>, Refusal>,
        data: &PartitionProduceData<'_>,
    ) -> PartitionProduceResponse<'static> {
        let verified = match self.verified.is_empty() {
            true => Ok(VerificationGuard::NONE),
            false => self.verified.get(&place).copied().unwrap_or(Ok(VerificationGuard::NONE)),
        };
        let appended = match topic {
            // Kafka checks the transactional id first, and topics only if that is allowed.
            _ if verified == Err(ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED) => {
                Err(ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED.into())
            }
            Ok(topic) => append(broker, asked, topic, data, verified),
            Err(refusal) => Err(Refusal { message: refusal.message.clone(), ..refusal.error.into() }),
        };
        match appended {
            Ok((response, wait)) => {
                let (topic, partition) = place;
                self.waits.extend(wait.map(|(log, upto)| Wait { topic, partition, log, upto }));
                PartitionProduceResponse { index: data.index, ..response }
            }
            Err(refusal) => {
                broker.counters.produce_failed();
                refused(data.index, refusal)
            }
        }
    }

    /// The partitions that wait until their leadership is handed over; `None` if there are none.
    fn park(&self, broker: &Broker, request: &ProduceRequest<'_>) -> Option<Vec<Parked>> {
        broker.cluster.as_ref()?;
        let mut parked = Vec::new();
        for (rank, responses) in self.responses.iter().enumerate() {
            for (at, response) in responses.iter().enumerate() {
                if response.error_code != ErrorCode::NOT_LEADER_OR_FOLLOWER.code() {
                    continue;
                }
                let data = &request.topic_data[rank];
                let by_id = broker.store.topics.by_id(&data.topic_id);
                let topic = by_id.or_else(|| broker.store.topics.by_name(&data.name));
                let handed_over = topic.and_then(|topic| topic.partition(response.index)?.hand_over());
                parked.extend(handed_over.map(|handed_over| Parked { place: (rank, at), handed_over }));
            }
        }
        (!parked.is_empty()).then_some(parked)
    }

    /// Appends the records that were refused at first.
    fn append_again(
        &mut self,
        broker: &Broker,
        context: &RequestContext,
        request: &ProduceRequest<'_>,
        (rank, at): Place,
    ) {
        let data = &request.topic_data[rank];
        let topic = permitted(broker, context, data);
        let asked = (context.version, request.acks, wait_limit(request));
        let response = self.append_partition(broker, asked, (rank, at), &topic, &data.partition_data[at]);
        self.responses[rank][at] = response;
    }

    /// The reason to close the connection of a client without acks: that is how it learns of a failure, as in Kafka.
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
    /// Index of the topic in the request.
    topic: usize,
    /// Index of the partition in the topic.
    partition: usize,
    log: Arc<Partition>,
    upto: Upto,
}

/// The condition that an answer waits for.
enum Upto {
    /// The durability of acks=all up to this offset, in this epoch; `None` is this replica's disk.
    Durable(i64, Option<LeaderEpoch>),
    /// The batch has to be in an attached queue and, with `synced`, on disk.
    Placed { pending: Arc<PendingAppend>, synced: bool, bytes: usize },
}

impl Wait {
    /// Notifies `durable` when this part is over.
    fn begin(&self, durable: &Arc<DurableWait>) {
        let durable = durable.clone();
        match &self.upto {
            Upto::Durable(upto, Some(epoch)) => {
                self.log.when_committed(*upto, *epoch, Durable::Request(durable));
            }
            Upto::Durable(upto, None) => self.log.when_durable(*upto, Durable::Request(durable)),
            Upto::Placed { pending, synced, .. } => {
                let (log, synced) = (self.log.clone(), *synced);
                pending.when_known(Box::new(move |end| match end {
                    Ok(upto) if synced => log.when_durable(upto, Durable::Request(durable)),
                    end => durable.done(end.map(|_| ())),
                }));
            }
        }
    }

    /// Fills in the outcome. `is_whole`: all conditions have come true.
    fn end(&self, broker: &Broker, response: &mut PartitionProduceResponse<'static>, is_whole: bool) {
        let mut waited = None;
        match &self.upto {
            Upto::Durable(upto, epoch) => waited = Some((*upto, *epoch)),
            Upto::Placed { pending, synced, bytes } => match pending.take() {
                Some(Ok(outcome)) => {
                    broker.counters.appended(&self.log.traffic, outcome.messages(), *bytes);
                    *response = PartitionProduceResponse { index: response.index, ..placed(&outcome) };
                    waited = synced.then_some((outcome.appended.last_offset + 1, None));
                }
                Some(Err(error)) => {
                    broker.counters.produce_failed();
                    *response = refused(response.index, error.into());
                }
                None => *response = refused(response.index, ErrorCode::REQUEST_TIMED_OUT.into()),
            },
        }
        let Some((upto, epoch)) = waited.filter(|_| !is_whole) else { return };
        let fate = match epoch {
            Some(epoch) => self.log.commit_fate(upto, epoch),
            None => self.log.durability(upto),
        };
        if let Err(error) = fate {
            *response = refused(response.index, error.into());
        }
    }
}

/// The answer to a batch that was appended.
fn placed(outcome: &AppendOutcome) -> PartitionProduceResponse<'static> {
    PartitionProduceResponse {
        base_offset: outcome.appended.base_offset,
        log_append_time_ms: outcome.appended.log_append_time.unwrap_or(-1),
        log_start_offset: outcome.appended.log_start_offset,
        ..Default::default()
    }
}

/// The reason why a partition's records were not appended.
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
            Refused::NoLog(_) | Refused::NotLeader | Refused::Queue(_) | Refused::Blocked => Vec::new(),
        };
        Refusal { error: refused.code(), message: Some(refused.to_string()), records }
    }
}

/// The topic, if it exists and this client may write to it.
fn permitted(
    broker: &Broker,
    context: &RequestContext,
    data: &TopicProduceData<'_>,
) -> Result<Arc<Topic>, Refusal> {
    let topic = match context.version {
        13.. => broker.store.topics.by_id(&data.topic_id).ok_or(ErrorCode::UNKNOWN_TOPIC_ID)?,
        _ => {
            // It is authorized before the lookup: a client that may not write does not learn which topics exist.
            authorize(context, Operation::Write, Resource::Topic(&data.name))?;
            broker.store.topics.by_name(&data.name).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?
        }
    };
    if context.version >= 13 {
        authorize(context, Operation::Write, Resource::Topic(&topic.name))?;
    }
    if topic.is_internal() && context.client_id.as_deref() != Some(ADMIN_CLIENT_ID) {
        return Err(ErrorCode::INVALID_TOPIC_EXCEPTION.into());
    }
    Ok(topic)
}

type AppendAnswer = (PartitionProduceResponse<'static>, Option<(Arc<Partition>, Upto)>);

/// Appends one partition's records. Returns the answer with the condition that it waits for, if there is one.
fn append(
    broker: &Broker,
    (version, acks, limit): (i16, i16, Duration),
    topic: &Topic,
    data: &PartitionProduceData<'_>,
    verified: Result<VerificationGuard, ErrorCode>,
) -> Result<AppendAnswer, Refusal> {
    let partition = topic.partition(data.index).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
    // Checked when the partition is known to exist, as in Kafka.
    if !matches!(acks, -1..=1) {
        return Err(ErrorCode::INVALID_REQUIRED_ACKS.into());
    }
    let settings = partition.settings();
    if acks == ACKS_ALL && !partition.has_min_insync(settings.min_insync_replicas) {
        return Err(ErrorCode::NOT_ENOUGH_REPLICAS.into());
    }
    let records: &[u8] = match &data.records {
        Some(Records::Bytes(bytes)) => bytes,
        _ => &[],
    };
    if version < ZSTD_SINCE
        && let Ok((batch, _)) = Batch::split_first(records)
        && matches!(batch.attributes().compression(), Ok(Compression::Zstd))
    {
        let message = format!("Produce before version {ZSTD_SINCE} may not compress by zstd (KIP-110)");
        let error = ErrorCode::UNSUPPORTED_COMPRESSION_TYPE;
        return Err(Refusal { message: Some(message), ..error.into() });
    }
    let guard = verified?;
    let append =
        |scratch: &mut _| partition.append_verified(records, Origin::Client, guard, &broker.clock, scratch);
    let outcome = match (with_scratch(append), partition.queue()) {
        (Err(Refused::Blocked), Some(queue)) => {
            let synced = acks == ACKS_ALL && !settings.write_caching;
            let limit = if acks == 0 { UNANSWERED_TIME_MAX } else { limit };
            let deadline = broker.clock.instant() + limit;
            let pending = append_later(queue, records, &settings, deadline);
            let upto = Upto::Placed { pending, synced, bytes: records.len() };
            return Ok((PartitionProduceResponse::default(), Some((partition.clone(), upto))));
        }
        (outcome, _) => outcome?,
    };
    broker.counters.appended(&partition.traffic, outcome.messages(), records.len());
    let waits_for_all = acks == ACKS_ALL && (!settings.write_caching || partition.is_replicated());
    let waits = waits_for_all || (acks != 0 && outcome.must_sync);
    let epoch = waits_for_all.then_some(outcome.epoch);
    let upto = Upto::Durable(outcome.appended.last_offset + 1, epoch);
    Ok((placed(&outcome), waits.then(|| (partition.clone(), upto))))
}

/// Appends a batch to an attached queue when the local writer with its lock is done.
fn append_later(
    queue: &Arc<Attached>,
    records: &[u8],
    settings: &Arc<TopicSettings>,
    deadline: Instant,
) -> Arc<PendingAppend> {
    let pending: Arc<PendingAppend> = Arc::default();
    let placed = pending.clone();
    let done = Box::new(move |outcome| placed.set(outcome));
    queue.append_later(records, settings.clone(), deadline, done);
    pending
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

/// A transactional request: the permissions of its batches, and the coordinator's pending answer.
struct Transactional {
    known: Verified,
    asked: Option<Verification>,
    /// The partitions that the coordinator is asked about.
    waiting: Vec<Waiting>,
    /// True if a guard was void before the coordinator had confirmed its partition.
    is_stale: bool,
}

/// A partition that the transaction does not have yet.
struct Waiting {
    /// The indexes of topic and partition in the request.
    place: (usize, usize),
    log: Arc<Partition>,
    producer_id: ProducerId,
    guard: VerificationGuard,
}

impl Transactional {
    /// Applies the coordinator's answer.
    fn judge(&mut self, refusals: &Refusals) {
        for Waiting { place, log, producer_id, guard } in self.waiting.drain(..) {
            self.is_stale |= !log.is_verification(producer_id, guard);
            self.known.insert(place, refusals.of(&log.topic, log.index).map(|()| guard));
        }
    }

    /// Refuses all partitions that have no answer yet.
    fn refuse_all(request: &ProduceRequest<'_>, error: ErrorCode) -> Self {
        let mut known = Verified::new();
        for (rank, topic) in request.topic_data.iter().enumerate() {
            known.extend((0..topic.partition_data.len()).map(|partition| ((rank, partition), Err(error))));
        }
        Transactional { known, asked: None, waiting: Vec::new(), is_stale: false }
    }
}

/// Asks the coordinator whether the transaction may have the partitions that it does not have yet (KIP-890). `None`
/// if the request has no transactional batch.
fn transactional(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: &ProduceRequest<'_>,
) -> Option<Transactional> {
    for _ in 1..VERIFICATIONS_MAX {
        let verified = verify(broker, context, request)?;
        // Otherwise the producer's last transaction ended here between the guard and the coordinator's answer.
        if !verified.is_stale {
            return Some(verified);
        }
    }
    verify(broker, context, request)
}

/// The producer that the header of a batch names.
fn producer_of(batch: &Batch<'_>) -> Producer {
    Producer { id: ProducerId::new(batch.producer_id()), epoch: ProducerEpoch::new(batch.producer_epoch()) }
}

fn verify(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: &ProduceRequest<'_>,
) -> Option<Transactional> {
    let mut batches = Vec::new();
    for (rank, topic) in request.topic_data.iter().enumerate() {
        for (partition, data) in topic.partition_data.iter().enumerate() {
            let Some(Records::Bytes(records)) = &data.records else { continue };
            if let Ok((batch, _)) = Batch::split_first(records)
                && batch.attributes().is_transactional()
            {
                batches.push((rank, partition, data.index, batch));
            }
        }
    }
    let (.., first) = batches.first()?;
    let producer = producer_of(first);
    // Kafka checks by the records too, and authorizes the transactional id for all of them.
    let error = ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
    let Some(id) = request.transactional_id.as_deref() else {
        return Some(Transactional::refuse_all(request, error));
    };
    if authorize(context, Operation::Write, Resource::TransactionalId(id)).is_err() {
        return Some(Transactional::refuse_all(request, error));
    }
    if !batches.iter().all(|(.., batch)| producer_of(batch) == producer) {
        return Some(Transactional::refuse_all(request, ErrorCode::INVALID_PRODUCER_ID_MAPPING));
    }
    let terms = Terms::of_produce(context.version);
    let (mut known, mut waiting, mut wanted) = (Verified::new(), Vec::new(), Wanted::new());
    for (rank, partition, index, batch) in batches {
        // Partitions that do not exist, or may not be written to, are refused by the append.
        let Ok(topic) = permitted(broker, context, &request.topic_data[rank]) else { continue };
        let Some(log) = topic.partition(index) else { continue };
        let first = VerificationRequest {
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            base_sequence: batch.base_sequence(),
            supports_epoch_bump: terms.adds,
        };
        match log.begin_verification(&first, &broker.clock) {
            Ok(None) => {}
            Ok(Some(guard)) => {
                wanted.entry(topic.name.clone()).or_default().push(index);
                let (log, producer_id) = (log.clone(), producer.id);
                waiting.push(Waiting { place: (rank, partition), log, producer_id, guard });
            }
            Err(refused) => _ = known.insert((rank, partition), Err(refused.code())),
        }
    }
    let mut verified = Transactional { known, asked: None, waiting, is_stale: false };
    if !wanted.is_empty() {
        match Verification::ask(&broker.node, context, terms, (id, producer), &wanted).now() {
            Ok(refusals) => verified.judge(&refusals),
            Err(asked) => verified.asked = Some(asked),
        }
    }
    Some(verified)
}

/// Continues with a transactional request when the coordinator has answered.
async fn finish_verified(
    broker: Arc<Broker>,
    context: RequestContext,
    (body, bytes): (OwnedBody, usize),
    mut verified: Transactional,
) -> Result<ResponseBuffer, String> {
    for _ in 0..VERIFICATIONS_MAX {
        let Some(asked) = verified.asked.take() else { break };
        let refusals = asked.later().await.map_err(|_| "the coordinator ended".to_owned())?;
        verified.judge(&refusals);
        if refusals.is_empty() && verified.is_stale {
            // The producer's last transaction has ended here meanwhile, and its guard with it.
            let request = crate::respond::body(&mut body.decoder(), context.version);
            let request = last_of_each(request.expect("it was decoded before"));
            verified = transactional(&broker, &context, &request).expect("it is transactional");
        }
    }
    let progress = Progress { verified: verified.known, ..Progress::default() };
    let held = broker.quotas.produced(&context, bytes);
    finish_in_background(broker, context, body, (progress, Vec::new()), held).await
}

/// Continues when leadership is handed over, or the longest wait is over. Then the answer can name the new leader.
async fn finish_parked(
    broker: Arc<Broker>,
    context: RequestContext,
    body: OwnedBody,
    (progress, parked): (Progress, Vec<Parked>),
    held: Option<Duration>,
) -> Result<ResponseBuffer, String> {
    let places = parked.iter().map(|parked| parked.place).collect();
    let handed_over = async {
        for parked in parked {
            // A partition that is closed hands over no leadership.
            let _ = parked.handed_over.await;
        }
    };
    let _ = broker.clock.timeout(PARKED_TIME_MAX, handed_over).await;
    finish_in_background(broker, context, body, (progress, places), held).await
}

/// Appends the parked records, and the rest of a request that takes long (as compressed batches can), off the network
/// threads. Then it waits and answers. The connection's next request waits until then.
async fn finish_in_background(
    broker: Arc<Broker>,
    context: RequestContext,
    body: OwnedBody,
    (mut progress, parked): (Progress, Vec<Place>),
    held: Option<Duration>,
) -> Result<ResponseBuffer, String> {
    let behind = context.clone();
    let own = broker.clone();
    let append = move || {
        let request = crate::respond::body(&mut body.decoder(), behind.version);
        let request = last_of_each(request.expect("it was decoded before"));
        for place in parked {
            progress.append_again(&broker, &behind, &request, place);
        }
        progress.append(&broker, &behind, &request, None);
        let outcome = progress.failure().map_or_else(|| Ok(ResponseBuffer::default()), Err);
        let silent = (request.acks == 0).then_some(outcome);
        let limit = wait_limit(&request);
        (answers(&request, progress.responses, owned), progress.waits, limit, silent)
    };
    let ((responses, waits, limit, silent), took) = in_background(&context, append).await;
    let response = match silent {
        Some(outcome) => outcome,
        None => finish(own, context, responses, waits, limit, held).await,
    };
    response.map(|out| out.worked_for(took))
}

/// Waits for all partitions together, then answers.
async fn finish(
    broker: Arc<Broker>,
    context: RequestContext,
    mut responses: Vec<TopicProduceResponse<'static>>,
    waits: Vec<Wait>,
    limit: Duration,
    held: Option<Duration>,
) -> Result<ResponseBuffer, String> {
    let durable = Arc::new(DurableWait::new(waits.len()));
    waits.iter().for_each(|wait| wait.begin(&durable));
    let in_time = broker.clock.timeout(limit, poll_fn(|context| durable.poll(context))).await.is_ok();
    let is_whole = in_time && !durable.has_failed();
    for wait in &waits {
        let response = &mut responses[wait.topic].partition_responses[wait.partition];
        wait.end(&broker, response, is_whole);
    }
    let node_endpoints = name_leaders(&broker, &context, &mut responses);
    let mut out = ResponseBuffer::pooled();
    let response = ProduceResponse { responses, node_endpoints, ..Default::default() };
    respond_throttled_before(&context, response, held, &mut out);
    Ok(out)
}

/// Adds the leaders to partitions that were refused because another node leads them. Returns the leaders' addresses.
fn name_leaders(
    broker: &Broker,
    context: &RequestContext,
    responses: &mut [TopicProduceResponse<'_>],
) -> Vec<NodeEndpoint<'static>> {
    let leaders =
        CurrentLeaders::begin(&broker.node, context).filter(|_| context.version >= CURRENT_LEADER_SINCE);
    let Some(mut leaders) = leaders else { return Vec::new() };
    for response in responses {
        let refused = response.partition_responses.iter_mut().filter(|one| one.error_code != 0);
        let by_name = || broker.store.topics.by_name(&response.name);
        for one in refused {
            let Some(topic) = broker.store.topics.by_id(&response.topic_id).or_else(by_name) else {
                continue;
            };
            let Some(partition) = topic.partition(one.index) else { continue };
            let error = ErrorCode::from(one.error_code);
            if let Some((leader_id, leader_epoch)) = leaders.name(error, topic.id, one.index, partition) {
                one.current_leader = LeaderIdAndEpoch { leader_id, leader_epoch, ..Default::default() };
            }
        }
    }
    let endpoint = |leader: mainstem_node::current_leader::LeaderEndpoint| NodeEndpoint {
        node_id: leader.node,
        host: leader.host.into(),
        port: leader.port,
        rack: leader.rack.map(Into::into),
        ..Default::default()
    };
    leaders.endpoints().into_iter().map(endpoint).collect()
}
