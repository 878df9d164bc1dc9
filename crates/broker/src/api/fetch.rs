//! Fetch (1), v4-18: read record batches, or wait until there are some.
//!
//! Consumers only: a fetch of another node (`replica_id` 0 or above) is answered with NOT_LEADER_OR_FOLLOWER, as by a
//! leader that does not know the replica.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use mainstem_log::placement::DirectoryId;
use mainstem_log::{FileRange, PendingRead, ReadBound, ReadError, ReadPlan};
use mainstem_wire::messages::fetch_request::FetchRequest;
use mainstem_wire::messages::fetch_response::{
    AbortedTransaction, EpochEndOffset, FetchResponse, FetchableTopicResponse, LeaderIdAndEpoch,
    NodeEndpoint, PartitionData,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode, Records, Uuid};

use crate::broker::Broker;
use crate::fetch_sessions::{Answer, Key, NO_SESSION, Plan, TopicKey};
use crate::respond::body;
use crate::respond::{respond, respond_throttled, respond_with_files};
use crate::turns::in_background;
use mainstem_net::buffers;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_node::current_leader::{CurrentLeaders, LeaderEndpoint};
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};
use mainstem_requests::quotas::Fetched;
use mainstem_runtime::wake;
use mainstem_store::errors::read_error_code;
use mainstem_store::partition::{self, Partition, PartitionRead};
use mainstem_store::signal::FetchWaiter;
use mainstem_store::topics::Topic;

/// Reads up to this size are copied into the response, larger ones are sent from the file.
const COPY_BYTES_MAX: usize = 32 * 1024;

/// The most bytes copied into one response; the rest is sent from files.
const COPY_BYTES_TOTAL_MAX: usize = 256 * 1024;

/// The most partitions of a fetch for its event loop: a millisecond's work.
const INLINE_PARTITIONS_MAX: usize = 5000;

/// Version from which clients know KAFKA_STORAGE_ERROR (KIP-112).
const STORAGE_ERROR_SINCE: i16 = 6;

/// Version from which an answer names another node as the leader, with its address (KIP-951).
const CURRENT_LEADER_SINCE: i16 = 16;

/// Bytes of an answer besides records, for each partition with records, as a quota counts them.
const PARTITION_BYTES: usize = 50;

/// `isolation_level` of a consumer that reads no open transactions.
const READ_COMMITTED: i8 = 1;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: FetchRequest<'_> = body(decoder, context.version)?;
    let by_id = context.version >= 13;
    let plan = broker.fetch_sessions.lock().plan(
        &request,
        &context.connection.principal,
        by_id,
        broker.clock.mono_ms(),
    );
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => {
            let response = FetchResponse { error_code: error.code(), ..Default::default() };
            return Ok(respond(&context, response, out));
        }
    };
    let wait = Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0));
    let fetch = Fetch::new(broker.clone(), context, &request, plan);
    if fetch.targets.len() > INLINE_PARTITIONS_MAX {
        return Ok(Handled::Later {
            response: Box::pin(fetch.serve_large(broker.clock.instant() + wait)),
            holds: true,
        });
    }
    let reads = fetch.read(None);
    if reads.is_cold {
        return Ok(Handled::Later { response: Box::pin(fetch.answer_cold(reads)), holds: true });
    }
    if fetch.is_satisfied(&reads) {
        return Ok(fetch.answer(reads, out));
    }
    let deadline = broker.clock.instant() + wait;
    Ok(Handled::Later { response: Box::pin(fetch.wait(reads, deadline)), holds: true })
}

/// One fetch request while it is served.
struct Fetch {
    broker: Arc<Broker>,
    context: RequestContext,
    plan: Plan,
    targets: Vec<Result<Arc<Partition>, ErrorCode>>,
    bound: ReadBound,
    bytes_min: usize,
    bytes_max: usize,
    may_wait: bool,
    /// The version of the rules under which the targets were found; none without an authorizer.
    rules: Option<u64>,
}

/// A waiter's registration in partitions. It is removed when the wait ends in any way, also with the connection: an
/// idle partition would keep the waiter, and the connection's memory, for ever.
struct Registration<'a> {
    fetch: &'a Fetch,
    waiter: Arc<FetchWaiter>,
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.fetch.forget(&self.waiter);
    }
}

/// The result of one pass over all partitions, in the order of the plan.
struct Reads {
    found: Vec<Result<partition::PartitionData, ErrorCode>>,
    bytes: usize,
    /// True if the answer cannot wait: it has an error, or the client's log has diverged.
    is_final: bool,
    /// True if some partition's position is only known when its index is read from disk.
    is_cold: bool,
}

impl Fetch {
    fn new(broker: Arc<Broker>, context: RequestContext, request: &FetchRequest<'_>, plan: Plan) -> Self {
        let rules = version_of_rules(&context);
        let mut finder = Finder::new(&broker, &context, request);
        let targets = plan.partitions.iter().map(|(key, _)| finder.find(key)).collect();
        let bound = match request.isolation_level {
            READ_COMMITTED => ReadBound::LastStable,
            _ => ReadBound::HighWatermark,
        };
        let mut bytes_max =
            usize::try_from(request.max_bytes).unwrap_or(0).min(broker.limits.fetch_bytes_max);
        if let Some(most) = broker.quotas.fetch_bytes_max(&context) {
            // More bytes would never leave: the answer is empty while its client is over its quota.
            bytes_max = bytes_max.min(most);
        }
        let bytes_min = usize::try_from(request.min_bytes).unwrap_or(0).min(bytes_max);
        let may_wait = request.max_wait_ms > 0;
        Fetch { targets, bound, bytes_min, bytes_max, may_wait, rules, broker, context, plan }
    }

    /// Reads every partition once. A waiter is registered in each partition at the instant of its read.
    fn read(&self, waiter: Option<&Arc<FetchWaiter>>) -> Reads {
        let found = Vec::with_capacity(self.targets.len());
        let mut reads = Reads { found, bytes: 0, is_final: false, is_cold: false };
        for (target, (_, wanted)) in self.targets.iter().zip(&self.plan.partitions) {
            let left = self.bytes_max.saturating_sub(reads.bytes);
            let read = PartitionRead {
                offset: wanted.offset,
                bound: self.bound,
                bytes_max: left.min(usize::try_from(wanted.bytes_max).unwrap_or(0)),
                at_least_one: reads.bytes == 0,
                current_leader_epoch: wanted.current_leader_epoch,
                last_fetched_epoch: wanted.last_fetched_epoch,
            };
            match target {
                Ok(partition) => {
                    reads.found.push(partition.read(&read, waiter));
                    reads.note_last(read.bytes_max);
                }
                // As in Kafka, an unknown partition does not end the wait for the others. Its client would otherwise
                // repeat the request until its metadata is new.
                Err(error) => reads.found.push(Err(*error)),
            }
        }
        reads
    }

    /// Returns true if the answer leaves now: enough bytes, an error, no partition to wait for, or no time to wait.
    fn is_satisfied(&self, reads: &Reads) -> bool {
        let nothing_to_wait_for = self.targets.iter().all(Result::is_err);
        reads.is_final || !self.may_wait || nothing_to_wait_for || reads.bytes >= self.bytes_min
    }

    /// Serves a large fetch, whose many partitions would delay other connections.
    async fn serve_large(self, deadline: Instant) -> Result<ResponseBuffer, String> {
        let context = self.context.clone();
        let work = move || {
            let reads = self.read(None);
            if reads.is_cold || !self.is_satisfied(&reads) {
                return Err((Box::new(self), reads));
            }
            let mut out = ResponseBuffer::default();
            self.answer(reads, &mut out);
            Ok(out)
        };
        let (served, took) = in_background(&context, work).await;
        let response = match served {
            Ok(response) => Ok(response),
            Err((fetch, reads)) if reads.is_cold => fetch.answer_large_cold(reads).await,
            Err((fetch, reads)) => fetch.wait(reads, deadline).await,
        };
        response.map(|out| out.worked_for(took))
    }

    /// As [`answer_cold`](Self::answer_cold), for an answer that would hold up an event loop.
    async fn answer_large_cold(self: Box<Self>, reads: Reads) -> Result<ResponseBuffer, String> {
        let (reads, read_for) = self.resolve(reads).await;
        let context = self.context.clone();
        let answer = move || {
            let mut out = ResponseBuffer::default();
            self.answer(reads, &mut out);
            out
        };
        let (out, answered_for) = in_background(&context, answer).await;
        Ok(out.worked_for(read_for + answered_for))
    }

    /// Waits for records, as the first pass has not found enough.
    async fn wait(self, first: Reads, deadline: Instant) -> Result<ResponseBuffer, String> {
        let mut reads = self.wait_for_reads(first, deadline).await;
        self.refuse_denied(&mut reads);
        self.answer_cold(reads).await
    }

    async fn wait_for_reads(&self, first: Reads, deadline: Instant) -> Reads {
        let waiter = match self.bound {
            ReadBound::LastStable => FetchWaiter::of_read_committed(),
            _ => FetchWaiter::default(),
        };
        let registration = Registration { fetch: self, waiter: Arc::new(waiter) };
        let waiter = &registration.waiter;
        let is_over =
            |reads: &Reads| self.is_satisfied(reads) || reads.is_cold || self.broker.stopping.is_stopping();
        let mut first = Some(first);
        loop {
            waiter.begin();
            let missing = match first.take().and_then(|first| self.watch(&first, waiter)) {
                Some(missing) => missing,
                None => {
                    let reads = self.read(Some(waiter));
                    if is_over(&reads) {
                        return reads;
                    }
                    self.bytes_min - reads.bytes
                }
            };
            waiter.arm(missing);
            let is_woken = poll_fn(|context| self.poll_woken(waiter, deadline, context)).await;
            let reads = self.read(None);
            if !is_woken || is_over(&reads) {
                return reads;
            }
            self.forget(waiter);
        }
    }

    /// Removes partitions that the client may no longer read: rules may have changed during a long wait.
    fn refuse_denied(&self, reads: &mut Reads) {
        if self.rules == version_of_rules(&self.context) {
            return;
        }
        let mut finder =
            Finder { broker: &self.broker, context: &self.context, is_follower: false, last: None };
        let keys = self.plan.partitions.iter().map(|(key, _)| key);
        for ((target, key), found) in self.targets.iter().zip(keys).zip(&mut reads.found) {
            // A follower has no authorized partitions.
            if target.is_ok()
                && let Err(error) = finder.find(key)
            {
                *found = Err(error);
            }
        }
    }

    /// Reads the indexes that have to come from the disk, then answers.
    async fn answer_cold(self, mut reads: Reads) -> Result<ResponseBuffer, String> {
        let mut out = ResponseBuffer::pooled();
        if reads.is_cold {
            (reads, out.in_background) = self.resolve(reads).await;
        }
        self.answer(reads, &mut out);
        Ok(out)
    }

    /// Reads from the disk, from one log directory after the other. Returns the time that it took, without the waits
    /// for a turn.
    async fn resolve(&self, mut reads: Reads) -> (Reads, Duration) {
        let mut took = Duration::ZERO;
        for (directory, pending) in reads.take_pending() {
            let work = move || {
                let resolve = |(at, read): (usize, PendingRead)| (at, read.resolve());
                pending.into_iter().map(resolve).collect::<Vec<_>>()
            };
            let (resolved, time) = self.broker.background.read(&self.context, directory, work).await;
            took += time;
            resolved.into_iter().for_each(|(at, plan)| reads.put(at, plan));
        }
        (reads, took)
    }

    /// Ready when there is a reason to look again, or at the deadline, which is no such reason. It is polled by a
    /// connection, and registers the wake-up of that.
    fn poll_woken(&self, waiter: &FetchWaiter, deadline: Instant, context: &Context<'_>) -> Poll<bool> {
        if self.broker.stopping.is_stopping() || waiter.poll(context).is_ready() {
            return Poll::Ready(true);
        }
        if deadline <= self.broker.clock.instant() {
            return Poll::Ready(false);
        }
        wake::look_again_at(deadline);
        Poll::Pending
    }

    /// Registers a waiter in every partition, if all are as they were read; that costs less than reading them again.
    /// Returns the bytes that the wait still needs. `None` if a partition has changed; then the waiter is registered
    /// nowhere.
    fn watch(&self, reads: &Reads, waiter: &Arc<FetchWaiter>) -> Option<usize> {
        let mut pairs = self.targets.iter().zip(&self.plan.partitions).zip(&reads.found);
        let is_registered = pairs.all(|((target, (_, wanted)), found)| match (target, found) {
            (Ok(partition), Ok(seen)) => partition.watch(seen, wanted.current_leader_epoch, waiter),
            _ => true,
        });
        if !is_registered {
            self.forget(waiter);
            return None;
        }
        Some(self.bytes_min - reads.bytes)
    }

    fn forget(&self, waiter: &Arc<FetchWaiter>) {
        for partition in self.targets.iter().flatten() {
            partition.forget(waiter);
        }
    }

    /// Encodes the records read, or none if the client is over its quota.
    fn answer(&self, mut reads: Reads, out: &mut ResponseBuffer) -> Handled {
        let held_after = match self.broker.quotas.fetched(&self.context, || reads.answer_bytes()) {
            Fetched::Held(held) => return self.answer_held(held, out),
            Fetched::Sent(held_after) => held_after,
        };
        let mut copies = Copies { bytes: buffers::take(), files: Vec::new() };
        let mut slots = Vec::new();
        let mut leaders = CurrentLeaders::begin(&self.broker.node, &self.context)
            .filter(|_| self.context.version >= CURRENT_LEADER_SINCE);
        let partitions = self.plan.partitions.iter().zip(&self.targets).zip(&mut reads.found);
        for (rank, (((key, _), target), found)) in partitions.enumerate() {
            self.count(target, found);
            if !self.plan.note_answer(rank, answer_of(found)) {
                continue;
            }
            let mut data = describe(self.context.version, key.1, found);
            if let (Some(leaders), Err(error), Ok(partition)) = (&mut leaders, &*found, target) {
                self.name_leader(leaders, *error, key, partition, &mut data);
            }
            // As in Kafka: null unless aborted transactions were looked for, or the partition cannot be read.
            if target.is_ok() && matches!(self.bound, ReadBound::HighWatermark) {
                data.aborted_transactions = None;
            }
            let place = found.as_mut().map_or(Place::NOWHERE, |found| copies.place(&mut found.plan));
            slots.push((&key.0, data, place));
        }
        let mut responses: Vec<FetchableTopicResponse<'_>> = Vec::new();
        for (topic, mut data, place) in slots {
            data.records = Some(place.records(&copies.bytes));
            let same = responses.last_mut().filter(|last| is_topic(last, topic));
            match same {
                Some(last) => last.partitions.push(data),
                None => responses.push(topic_response(topic, data)),
            }
        }
        let session_id = self.plan.session_id();
        let leaders = leaders.map(CurrentLeaders::endpoints).unwrap_or_default();
        let node_endpoints = leaders.into_iter().map(endpoint).collect();
        let response = FetchResponse { session_id, responses, node_endpoints, ..Default::default() };
        let files = std::mem::take(&mut copies.files);
        let handled = respond_with_files(&self.context, response, (files, held_after), out);
        buffers::give(copies.bytes);
        handled
    }

    /// Adds the leader to an answer, if the error says that another node leads.
    fn name_leader(
        &self,
        leaders: &mut CurrentLeaders<'_>,
        error: ErrorCode,
        (topic, index): &Key,
        partition: &Partition,
        data: &mut PartitionData<'_>,
    ) {
        let topics = &self.broker.store.topics;
        let id = match topic {
            TopicKey::Id(id) => Some(*id),
            TopicKey::Name(name) => topics.by_name(name).map(|topic| topic.id),
        };
        let named = id.and_then(|id| leaders.name(error, id, *index, partition));
        if let Some((leader_id, leader_epoch)) = named {
            data.current_leader = LeaderIdAndEpoch { leader_id, leader_epoch, ..Default::default() };
        }
    }

    /// The answer to a client over its quota (KIP-219). The client repeats the request: a session stays as it was,
    /// and one that this request would have opened is closed.
    fn answer_held(&self, held: Duration, out: &mut ResponseBuffer) -> Handled {
        let session_id = match (&self.plan.session, self.plan.incremental) {
            (Some(_), true) => self.plan.session_id(),
            (Some(_), false) => {
                self.broker.fetch_sessions.lock().close(self.plan.session_id());
                NO_SESSION
            }
            (None, _) => NO_SESSION,
        };
        let response = FetchResponse { session_id, ..Default::default() };
        respond_throttled(&self.context, response, Some(held), out)
    }

    fn count(
        &self,
        target: &Result<Arc<Partition>, ErrorCode>,
        found: &Result<partition::PartitionData, ErrorCode>,
    ) {
        match (target, found) {
            (Ok(partition), Ok(data)) => {
                if let ReadPlan::Range(range) = &data.plan {
                    self.broker.counters.fetched(&partition.traffic, range.len);
                }
            }
            _ => self.broker.counters.fetch_failed(),
        }
    }
}

/// The state of a partition for the fetch session.
fn answer_of(found: &Result<partition::PartitionData, ErrorCode>) -> Answer {
    match found {
        Ok(data) => Answer {
            has_records: !matches!(data.plan, ReadPlan::Empty),
            is_error: data.diverging.is_some(),
            high_watermark: data.ends.high_watermark,
            log_start_offset: data.ends.log_start,
        },
        Err(_) => Answer { has_records: false, is_error: true, high_watermark: -1, log_start_offset: -1 },
    }
}

impl Reads {
    /// Bytes of the answer, as a quota counts them.
    fn answer_bytes(&self) -> usize {
        let has_records = |found: &&Result<partition::PartitionData, ErrorCode>| {
            found.as_ref().is_ok_and(|data| !matches!(data.plan, ReadPlan::Empty))
        };
        self.bytes + self.found.iter().filter(has_records).count() * PARTITION_BYTES
    }

    /// Notes the last partition's result, and the bytes that were asked for it.
    fn note_last(&mut self, asked: usize) {
        let Some(found) = self.found.last() else { return };
        match found {
            Ok(data) => {
                self.is_final |= data.diverging.is_some();
                self.is_cold |= matches!(data.plan, ReadPlan::Later(_));
                self.bytes += match &data.plan {
                    ReadPlan::Empty => 0,
                    ReadPlan::Range(range) => range.len,
                    // The size is not known yet: later partitions get only the bytes that are certainly left.
                    ReadPlan::Later(_) => asked,
                };
            }
            Err(_) => self.is_final = true,
        }
    }

    /// Removes the reads that have to come from the disk, by log directory, each with its place in the plan.
    fn take_pending(&mut self) -> BTreeMap<Option<DirectoryId>, Vec<(usize, PendingRead)>> {
        let mut pending = BTreeMap::<_, Vec<_>>::new();
        for (at, found) in self.found.iter_mut().enumerate() {
            let Ok(data) = found else { continue };
            match std::mem::replace(&mut data.plan, ReadPlan::Empty) {
                ReadPlan::Later(read) => pending.entry(read.directory()).or_default().push((at, read)),
                known => data.plan = known,
            }
        }
        pending
    }

    /// Inserts the result of a read at its place in the plan.
    fn put(&mut self, at: usize, plan: Result<ReadPlan, ReadError>) {
        let found = &mut self.found[at];
        match plan {
            Ok(plan) => found.as_mut().expect("it was read from there").plan = plan,
            Err(error) => *found = Err(read_error_code(&error)),
        }
    }
}

/// The version of the rules that a request is checked against; none without an authorizer.
fn version_of_rules(context: &RequestContext) -> Option<u64> {
    context.connection.authorization.as_ref().map(|authorization| authorization.version())
}

/// Finds partitions, remembering the topic of the last one: requests are grouped by topic.
struct Finder<'a> {
    broker: &'a Broker,
    context: &'a RequestContext,
    /// True if the request comes from another node, which no partition has as a replica.
    is_follower: bool,
    last: Option<(TopicKey, Result<Arc<Topic>, ErrorCode>)>,
}

impl<'a> Finder<'a> {
    fn new(broker: &'a Broker, context: &'a RequestContext, request: &FetchRequest<'_>) -> Self {
        let replica_id = request.replica_id.max(request.replica_state.replica_id);
        Finder { broker, context, is_follower: replica_id >= 0, last: None }
    }

    fn find(&mut self, (topic, partition): &Key) -> Result<Arc<Partition>, ErrorCode> {
        if self.last.as_ref().is_none_or(|(key, _)| key != topic) {
            self.last = Some((topic.clone(), self.topic(topic)));
        }
        let (_, found) = self.last.as_ref().expect("it was just set");
        let topic = found.as_ref().map_err(|error| *error)?;
        let partition = topic.partition(*partition).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
        if self.is_follower {
            return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        }
        Ok(partition.clone())
    }

    fn topic(&self, key: &TopicKey) -> Result<Arc<Topic>, ErrorCode> {
        if self.is_follower {
            authorize(self.context, Operation::ClusterAction, Resource::Cluster)
                .map_err(|_| ErrorCode::TOPIC_AUTHORIZATION_FAILED)?;
        }
        let topic = match key {
            TopicKey::Name(name) if self.is_follower => {
                return self.broker.store.topics.by_name(name).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
            }
            TopicKey::Name(name) => {
                // It is authorized before the lookup: a client that may not read does not learn which topics exist.
                authorize(self.context, Operation::Read, Resource::Topic(name))?;
                return self.broker.store.topics.by_name(name).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
            }
            TopicKey::Id(id) => self.broker.store.topics.by_id(id).ok_or(ErrorCode::UNKNOWN_TOPIC_ID)?,
        };
        if !self.is_follower {
            authorize(self.context, Operation::Read, Resource::Topic(&topic.name))?;
        }
        Ok(topic)
    }
}

/// The answer of one partition, without its records.
fn describe(
    version: i16,
    partition_index: i32,
    found: &Result<partition::PartitionData, ErrorCode>,
) -> PartitionData<'static> {
    match found {
        Ok(data) => PartitionData {
            partition_index,
            high_watermark: data.ends.high_watermark,
            last_stable_offset: data.ends.last_stable,
            log_start_offset: data.ends.log_start,
            diverging_epoch: data.diverging.map_or_else(EpochEndOffset::default, |end| EpochEndOffset {
                epoch: end.epoch.get(),
                end_offset: end.end_offset,
                ..Default::default()
            }),
            aborted_transactions: Some(aborted(&data.plan)),
            ..Default::default()
        },
        Err(error) => PartitionData {
            partition_index,
            error_code: known_error(version, *error).code(),
            high_watermark: -1,
            last_stable_offset: -1,
            log_start_offset: -1,
            ..Default::default()
        },
    }
}

/// The aborted transactions that may have records in this read: consumers leave those out.
fn aborted(plan: &ReadPlan) -> Vec<AbortedTransaction<'static>> {
    let ReadPlan::Range(range) = plan else { return Vec::new() };
    let aborted = range.aborted.iter().map(|aborted| AbortedTransaction {
        producer_id: aborted.producer_id.get(),
        first_offset: aborted.first_offset,
        ..Default::default()
    });
    aborted.collect()
}

/// The error for a version: old clients do not know KAFKA_STORAGE_ERROR. This one makes them look for the leader again.
fn known_error(version: i16, error: ErrorCode) -> ErrorCode {
    match error {
        ErrorCode::KAFKA_STORAGE_ERROR if version < STORAGE_ERROR_SINCE => ErrorCode::NOT_LEADER_OR_FOLLOWER,
        known => known,
    }
}

fn endpoint(leader: LeaderEndpoint) -> NodeEndpoint<'static> {
    NodeEndpoint {
        node_id: leader.node,
        host: leader.host.into(),
        port: leader.port,
        rack: leader.rack.map(Into::into),
        ..Default::default()
    }
}

fn is_topic(response: &FetchableTopicResponse<'_>, topic: &TopicKey) -> bool {
    match topic {
        TopicKey::Name(name) => *response.topic == **name,
        TopicKey::Id(id) => response.topic_id == *id,
    }
}

fn topic_response<'a>(topic: &'a TopicKey, data: PartitionData<'a>) -> FetchableTopicResponse<'a> {
    let (name, topic_id) = match topic {
        TopicKey::Name(name) => (&**name, Uuid::ZERO),
        TopicKey::Id(id) => ("", *id),
    };
    FetchableTopicResponse { topic: name.into(), topic_id, partitions: vec![data], ..Default::default() }
}

/// Records on their way into a response: small ones copied, others left in their files.
struct Copies {
    bytes: Vec<u8>,
    files: Vec<FileRange>,
}

/// The place of a partition's records.
enum Place {
    Copied(std::ops::Range<usize>),
    InFile(usize),
}

impl Copies {
    /// Takes over the records of a plan.
    fn place(&mut self, plan: &mut ReadPlan) -> Place {
        let start = self.bytes.len();
        let ReadPlan::Range(range) = std::mem::replace(plan, ReadPlan::Empty) else { return Place::NOWHERE };
        let length = range.len;
        if length <= COPY_BYTES_MAX && start + length <= COPY_BYTES_TOTAL_MAX {
            self.bytes.resize(start + length, 0);
            let read = range.file.read_at_nowait(&mut self.bytes[start..], range.position);
            if matches!(read, Ok(Some(read)) if read == length) {
                return Place::Copied(start..start + length);
            }
            self.bytes.truncate(start);
        }
        self.files.push(range);
        Place::InFile(length)
    }
}

impl Place {
    /// The place of no records.
    const NOWHERE: Place = Place::Copied(0..0);

    fn records<'a>(&self, copied: &'a [u8]) -> Records<'a> {
        match self {
            Place::Copied(range) => Records::Bytes(copied[range.clone()].into()),
            Place::InFile(length) => Records::Hole(*length),
        }
    }
}
