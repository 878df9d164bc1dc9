//! The task that asks brokers for what the assignment wants, one request at a time to each.
//!
//! It owns all requests under way: each is a task of its [`JoinSet`], whose end is an [`Event`]. The assignment and the
//! sessions decide what an answer means.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mainstem_wire::messages::fetch_request::FetchRequest;
use mainstem_wire::messages::fetch_response::{FetchResponse, PartitionData};
use mainstem_wire::{ErrorCode, Records};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Shared;
use super::assignment::{Assignment, EpochValidation, FetchPosition, OffsetLookup, WantedFetch};
use super::chunk::Arrived;
use super::config::{ConsumerConfig, Isolation, OutOfRange};
use super::session::{Session, Wanted};
use crate::backoff::Backoff;
use crate::cluster::{Cluster, Lead};
use crate::epochs::epoch_ends;
use crate::error::Error;
use crate::offsets::{LATEST, Sought, leader_offsets, left_out};
use crate::questions::{Answer, Questions};
use crate::reply::Reply;
use crate::topic_partition::TopicPartition;

/// The fetcher looks for work at least this often.
const IDLE_LOOK: Duration = Duration::from_secs(60);
/// The first version that names topics by id (KIP-516).
const BY_ID_SINCE: i16 = 13;

/// The partitions that are wanted of one broker.
type Wishes = BTreeMap<TopicPartition, Wanted>;
type Fetched = Reply<FetchRequest<'static>>;

/// The fetcher of a consumer.
pub(crate) struct Fetcher {
    shared: Arc<Shared>,
    tasks: JoinSet<Event>,
    nodes: HashMap<i32, Node>,
    questions: Questions,
}

/// A broker as the fetcher sees it.
struct Node {
    session: Session,
    is_asked: bool,
    /// The broker is not asked again before this time.
    retry_at: Instant,
    backoff: Backoff,
}

/// The end of a request that was under way.
enum Event {
    Fetched(i32, Result<Fetched, Error>),
    Refreshed(Answer),
    Located(Vec<(OffsetLookup, Result<i64, Error>)>),
    Checked(Vec<(EpochValidation, Result<FetchPosition, Error>)>),
}

impl Fetcher {
    pub(crate) fn new(shared: Arc<Shared>) -> Fetcher {
        let questions = Questions::new(&shared.cluster);
        Fetcher { shared, tasks: JoinSet::new(), nodes: HashMap::new(), questions }
    }

    /// Asks until the consumer is closed.
    pub(crate) async fn run(mut self) {
        while !self.shared.state.lock().is_closed {
            let next_look = self.work();
            tokio::select! {
                () = self.shared.work.notified() => {}
                Some(ended) = self.tasks.join_next() => {
                    let event = ended.expect("no task is cancelled before the set, and a panic is passed on here");
                    self.handle(event);
                    self.shared.arrived.notify_one();
                }
                () = tokio::time::sleep_until(next_look) => {}
            }
        }
    }

    /// Sends the requests that are due. Returns when to look again if nothing happens before.
    fn work(&mut self) -> Instant {
        let shared = self.shared.clone();
        let mut state = shared.state.lock();
        let mut next_look = Instant::now() + IDLE_LOOK;
        let mut unknown = BTreeSet::new();
        // First the requests that may make a lookup necessary.
        self.check(&mut state.assignment, &mut unknown);
        self.locate(&mut state.assignment, &mut unknown);
        let by_node = self.by_node(&state.assignment, &mut unknown);
        if let Some(question) = self.questions.ask(unknown, &mut next_look) {
            self.tasks.spawn(async move { Event::Refreshed(question.await) });
        }
        for (node, wanted) in by_node {
            self.fetch(node, wanted, &mut next_look);
        }
        next_look
    }

    /// The leader of a partition. Adds its topic to `unknown` if the cluster has to be asked for it.
    fn lead(&self, key: &TopicPartition, unknown: &mut BTreeSet<Arc<str>>) -> Option<Lead> {
        let (lead, is_to_be_asked) = self.shared.cluster.lead(key);
        if is_to_be_asked {
            unknown.insert(key.topic.clone());
        }
        lead
    }

    /// Looks up the offsets of other positions. Each leader is asked by itself, so that one that does not answer holds up no
    /// other.
    fn locate(&mut self, assignment: &mut Assignment, unknown: &mut BTreeSet<Arc<str>>) {
        let sought = assignment.locate(|key| self.lead(key, unknown));
        for (node, sought) in by_leader(sought) {
            let (cluster, isolation) = (self.shared.cluster.clone(), self.shared.config.isolation);
            self.tasks.spawn(async move { Event::Located(find(&cluster, node, isolation, sought).await) });
        }
    }

    /// Asks whether offsets hold under new leaders.
    fn check(&mut self, assignment: &mut Assignment, unknown: &mut BTreeSet<Arc<str>>) {
        let lead = |key: &TopicPartition| {
            let lead = self.shared.cluster.lead(key).0?;
            Some((lead.topic_id, lead.leader_epoch))
        };
        if assignment.lead(lead, self.shared.config.out_of_range) {
            self.shared.arrived.notify_one();
        }
        let validations = assignment.due_validations(|key| self.lead(key, unknown));
        for (node, validations) in by_leader(validations) {
            let cluster = self.shared.cluster.clone();
            self.tasks.spawn(async move {
                let validations = validations.into_iter().map(|(_, validation)| validation).collect();
                Event::Checked(epoch_ends(&cluster, node, validations).await)
            });
        }
    }

    /// The partitions to fetch, by the node that leads them.
    fn by_node(&self, assignment: &Assignment, unknown: &mut BTreeSet<Arc<str>>) -> HashMap<i32, Wishes> {
        let mut by_node: HashMap<i32, Wishes> = HashMap::new();
        for WantedFetch { key, offset, generation } in assignment.wanted(&self.shared.config) {
            if let Some(Lead { topic_id, node, leader_epoch }) = self.lead(key, unknown) {
                let wanted = Wanted { topic_id, offset, leader_epoch, generation };
                by_node.entry(node).or_default().insert(key.clone(), wanted);
            }
        }
        by_node
    }

    /// Asks a node, unless it is being asked.
    fn fetch(&mut self, id: i32, wanted: Wishes, next_look: &mut Instant) {
        let config = &self.shared.config;
        let node = self.nodes.entry(id).or_insert_with(|| Node {
            session: Session::default(),
            is_asked: false,
            retry_at: Instant::now(),
            backoff: backoff(config),
        });
        if node.is_asked {
            return;
        }
        if node.retry_at > Instant::now() {
            *next_look = node.retry_at.min(*next_look);
            return;
        }
        let newest = match wanted.values().all(|wanted| !wanted.topic_id.is_zero()) {
            true => i16::MAX,
            false => BY_ID_SINCE - 1,
        };
        let mut request = FetchRequest {
            max_wait_ms: i32::try_from(config.max_wait.as_millis()).expect("the configuration was checked"),
            min_bytes: config.min_bytes,
            max_bytes: config.fetch_bytes_max,
            isolation_level: config.isolation.code(),
            ..Default::default()
        };
        node.session.request(wanted, config.partition_bytes_max, &mut request);
        node.is_asked = true;
        let limit = config.client.request_timeout + config.max_wait;
        let cluster = self.shared.cluster.clone();
        self.tasks.spawn(async move { Event::Fetched(id, ask(&cluster, id, request, newest, limit).await) });
    }

    fn handle(&mut self, event: Event) {
        let shared = self.shared.clone();
        let assignment = &mut shared.state.lock().assignment;
        match event {
            Event::Refreshed(answer) => {
                let refused = self.questions.answered(answer);
                for refused in refused.into_iter().filter(|refused| !refused.error.is_retriable()) {
                    assignment.fail_topic(&refused.topic, &refused.error);
                }
            }
            Event::Located(found) => found.into_iter().for_each(|one| located(one, assignment)),
            Event::Checked(ends) => {
                let then = shared.config.out_of_range;
                ends.into_iter().for_each(|one| checked(one, then, assignment));
            }
            Event::Fetched(id, fetched) => {
                let node = self.nodes.get_mut(&id).expect("it was asked");
                node.is_asked = false;
                let received = fetched.and_then(|reply| node.receive(&reply, &shared, assignment));
                if let Err(error) = received {
                    tracing::debug!("cannot fetch from node {id}: {error}");
                    node.fail(&error, &shared.cluster, assignment);
                }
            }
        }
    }
}

impl Drop for Fetcher {
    /// Lets callers that wait for records know of a panic, or of the end of the runtime.
    fn drop(&mut self) {
        self.shared.state.lock().ended = Some(Error::of_ended_task("the fetcher of a consumer"));
        self.shared.arrived.notify_one();
    }
}

/// Requests about partitions, by the node that leads them.
fn by_leader<T>(asked: Vec<(Lead, T)>) -> BTreeMap<i32, Vec<(Lead, T)>> {
    let mut by_leader: BTreeMap<i32, Vec<(Lead, T)>> = BTreeMap::new();
    for (lead, one) in asked {
        by_leader.entry(lead.node).or_default().push((lead, one));
    }
    by_leader
}

fn located((asked, found): (OffsetLookup, Result<i64, Error>), assignment: &mut Assignment) {
    match found {
        Ok(offset) => assignment.located(&asked, Some(offset)),
        Err(error) if error.is_retriable() => {
            tracing::debug!("{error}");
            assignment.located(&asked, None);
        }
        Err(error) => assignment.fail(&asked.key, asked.generation, error),
    }
}

fn checked(
    (validation, end): (EpochValidation, Result<FetchPosition, Error>),
    then: OutOfRange,
    assignment: &mut Assignment,
) {
    match end {
        Ok(end) => assignment.settled(&validation, Some(end), then),
        Err(error) if error.is_retriable() => {
            tracing::debug!("{error}");
            assignment.settled(&validation, None, then);
        }
        Err(error) => assignment.fail(&validation.key, validation.generation, error),
    }
}

impl Node {
    /// Hands the fetched partitions to the assignment.
    ///
    /// # Errors
    /// When the answer as a whole is of no use.
    fn receive(
        &mut self,
        reply: &Fetched,
        shared: &Shared,
        assignment: &mut Assignment,
    ) -> Result<(), Error> {
        let response = reply.read()?;
        reply.check(response.error_code, None, || "cannot fetch".to_owned())?;
        self.session.answered(response.session_id);
        self.backoff.reset();
        let receiver = Receiver { reply, shared };
        for (key, asked, partition) in self.partitions(reply.version(), &response) {
            receiver.receive(&key, asked, partition, assignment);
        }
        Ok(())
    }

    /// The partitions of an answer, with what was asked of each.
    fn partitions<'a, 'r>(
        &'a self,
        version: i16,
        response: &'a FetchResponse<'r>,
    ) -> impl Iterator<Item = (TopicPartition, &'a Wanted, &'a PartitionData<'r>)> {
        let names = if version >= BY_ID_SINCE { self.session.names() } else { HashMap::new() };
        let topics = response.responses.iter().filter_map(move |topic| {
            let name = match version >= BY_ID_SINCE {
                true => names.get(&topic.topic_id)?.clone(),
                false => Arc::from(&*topic.topic),
            };
            Some((name, topic))
        });
        topics.flat_map(move |(name, topic)| {
            topic.partitions.iter().filter_map(move |partition| {
                let key = TopicPartition { topic: name.clone(), partition: partition.partition_index };
                let asked = self.session.asked(&key)?;
                Some((key, asked, partition))
            })
        })
    }

    /// Handles a failed request. The next one waits a little, unless the broker has only forgotten the session. An error that
    /// would come again is returned for each partition of the request.
    fn fail(&mut self, error: &Error, cluster: &Cluster, assignment: &mut Assignment) {
        let code = error.code();
        if error.would_repeat() {
            for (key, asked) in self.session.all_asked() {
                assignment.fail(key, asked.generation, error.clone());
            }
        }
        if let Error::Connect { .. } | Error::ConnectionLost { .. } | Error::RequestTimedOut { .. } = error {
            self.session.all_asked().for_each(|(key, _)| cluster.invalidate_partition(key));
        }
        self.session.failed(code);
        if code != Some(ErrorCode::FETCH_SESSION_ID_NOT_FOUND) {
            self.retry_at = Instant::now() + self.backoff.next(rand::random());
        }
    }
}

/// An answer on its way into the assignment.
struct Receiver<'a> {
    reply: &'a Fetched,
    shared: &'a Shared,
}

impl Receiver<'_> {
    fn receive(
        &self,
        key: &TopicPartition,
        asked: &Wanted,
        partition: &PartitionData<'_>,
        assignment: &mut Assignment,
    ) {
        let config = &self.shared.config;
        let checked = self
            .reply
            .check(partition.error_code, None, || format!("cannot read {key} at offset {}", asked.offset));
        let Err(error) = checked else {
            let arrived = self.arrived(partition);
            return assignment.arrived(key, asked, arrived, config.isolation);
        };
        if error.code() == Some(ErrorCode::OFFSET_OUT_OF_RANGE) {
            let (partition, offset) = (key.clone(), asked.offset);
            let error = Error::OutOfRange { partition, offset, broker: self.reply.broker().to_string() };
            assignment.out_of_range(key, asked, error, config.out_of_range);
        } else if error.is_retriable() {
            tracing::debug!("{error}");
            // Nothing is fetched of this partition before the cluster was asked, at most a few times in a second.
            self.shared.cluster.invalidate_partition(key);
        } else {
            assignment.fail(key, asked.generation, error);
        }
    }

    fn arrived(&self, partition: &PartitionData<'_>) -> Arrived {
        let bytes = match &partition.records {
            // A part of the answer, not a copy.
            Some(Records::Bytes(bytes)) => self.reply.bytes().slice_ref(bytes),
            _ => Bytes::new(),
        };
        let aborted = partition.aborted_transactions.iter().flatten();
        let end_offset = match self.shared.config.isolation {
            Isolation::ReadCommitted => partition.last_stable_offset,
            Isolation::ReadUncommitted => partition.high_watermark,
        };
        Arrived {
            bytes,
            aborted: aborted.map(|one| (one.first_offset, one.producer_id)).collect(),
            end_offset,
        }
    }
}

fn backoff(config: &ConsumerConfig) -> Backoff {
    Backoff::new(config.client.retry_backoff, config.client.retry_backoff_max)
}

async fn ask(
    cluster: &Cluster,
    node: i32,
    request: FetchRequest<'static>,
    newest: i16,
    limit: Duration,
) -> Result<Fetched, Error> {
    let connection = cluster.node(node).await?;
    let version = connection.version_up_to::<FetchRequest<'_>>(newest)?;
    connection.call_within(&request, version, limit).await
}

/// The offsets of positions in partitions of one leader.
async fn find(
    cluster: &Cluster,
    node: i32,
    isolation: Isolation,
    sought: Vec<(Lead, OffsetLookup)>,
) -> Vec<(OffsetLookup, Result<i64, Error>)> {
    // An offset needs no search.
    let by_time = |(lead, one): &(Lead, OffsetLookup)| Sought {
        key: one.key.clone(),
        timestamp: one.position.timestamp().unwrap_or(LATEST),
        leader_epoch: lead.leader_epoch,
    };
    let times: Vec<Sought> = sought.iter().map(by_time).collect();
    let mut found = leader_offsets(cluster, node, isolation, &times).await;
    // A time after all records leads to the end.
    let is_behind = |one: &Sought| matches!(found.get(&one.key), Some(Ok(None)));
    let at_end: Vec<Sought> = times.into_iter().filter(is_behind).map(Sought::at_end).collect();
    if !at_end.is_empty() {
        found.extend(leader_offsets(cluster, node, isolation, &at_end).await);
    }
    let offset = |(_, one): (Lead, OffsetLookup)| {
        let offset = found.remove(&one.key).unwrap_or(Ok(None));
        let offset = offset.and_then(|offset| offset.ok_or_else(|| left_out(&one.key)));
        (one, offset)
    };
    sought.into_iter().map(offset).collect()
}
