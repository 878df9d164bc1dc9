//! The task that asks brokers for what the assignment wants, one request at a time to each.
//!
//! It owns all that is under way; each question is a task of its [`JoinSet`], whose end is an [`Event`]. What an answer
//! means is decided by the assignment and the sessions.

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
use super::assignment::{Assignment, Doubt, Locate, Wish};
use super::chunk::Arrived;
use super::config::{ConsumerConfig, Isolation};
use super::session::{Session, Wanted};
use crate::backoff::Backoff;
use crate::cluster::{Cluster, Freshness};
use crate::epochs::{EpochEnds, epoch_ends};
use crate::error::Error;
use crate::offsets::{LATEST, list_offsets};
use crate::questions::{Answer, Questions};
use crate::reply::Reply;
use crate::topic_partition::TopicPartition;

/// A look is due at least this often, whatever else happens.
const IDLE_LOOK: Duration = Duration::from_secs(60);
/// The first version that names topics by id (KIP-516).
const BY_ID_SINCE: i16 = 13;

/// What is wanted of one broker.
type Wishes = BTreeMap<TopicPartition, Wanted>;
type Fetched = Reply<FetchRequest<'static>>;

/// The fetcher of a consumer.
pub(crate) struct Fetcher {
    shared: Arc<Shared>,
    tasks: JoinSet<Event>,
    nodes: HashMap<i32, Node>,
    questions: Questions,
    /// Offsets are not asked for again before.
    locate_at: Instant,
    locate_backoff: Backoff,
}

/// A broker as the fetcher sees it.
struct Node {
    session: Session,
    is_asked: bool,
    /// Not to be asked again before.
    retry_at: Instant,
    backoff: Backoff,
}

/// Something that was under way has ended.
enum Event {
    Fetched(i32, Result<Fetched, Error>),
    Refreshed(Answer),
    Located(Vec<Locate>, Result<Vec<i64>, Error>),
    Checked(Vec<Doubt>, Result<EpochEnds, Error>),
}

impl Fetcher {
    pub(crate) fn new(shared: Arc<Shared>) -> Fetcher {
        let questions = Questions::new(&shared.cluster);
        let locate_backoff = backoff(&shared.config);
        let tasks = JoinSet::new();
        Fetcher { shared, tasks, nodes: HashMap::new(), questions, locate_at: Instant::now(), locate_backoff }
    }

    /// Asks until the consumer is closed.
    pub(crate) async fn run(mut self) {
        while !self.shared.state.lock().is_closed {
            let next_look = self.work();
            tokio::select! {
                () = self.shared.work.notified() => {}
                Some(ended) = self.tasks.join_next() => {
                    let event = ended.expect("no task is cancelled before the set, and a panic goes on here");
                    self.handle(event);
                    self.shared.arrived.notify_one();
                }
                () = tokio::time::sleep_until(next_look) => {}
            }
        }
    }

    /// Asks for what can be asked for. When to look again if nothing happens before.
    fn work(&mut self) -> Instant {
        let shared = self.shared.clone();
        let mut state = shared.state.lock();
        let mut next_look = Instant::now() + IDLE_LOOK;
        self.locate(&mut state.assignment, &mut next_look);
        self.check(&mut state.assignment, &mut next_look);
        let (by_node, unknown) = self.by_node(&state.assignment);
        if let Some(question) = self.questions.ask(unknown, &mut next_look) {
            self.tasks.spawn(async move { Event::Refreshed(question.await) });
        }
        for (node, wanted) in by_node {
            self.fetch(node, wanted, &mut next_look);
        }
        next_look
    }

    /// Asks for the offsets of positions that are none.
    fn locate(&mut self, assignment: &mut Assignment, next_look: &mut Instant) {
        if self.locate_at > Instant::now() {
            *next_look = self.locate_at.min(*next_look);
            return;
        }
        let sought = assignment.locate();
        if sought.is_empty() {
            return;
        }
        let (cluster, isolation) = (self.shared.cluster.clone(), self.shared.config.isolation);
        self.tasks.spawn(async move {
            let found = find(&cluster, isolation, &sought).await;
            Event::Located(sought, found)
        });
    }

    /// Asks whether offsets hold under new leaders.
    fn check(&mut self, assignment: &mut Assignment, next_look: &mut Instant) {
        let cluster = self.shared.cluster.clone();
        assignment.lead(|key| {
            let (topic, freshness) = cluster.known_topic(&key.topic)?;
            let partition = topic.partition(key.partition).ok().filter(|_| freshness != Freshness::Wrong)?;
            partition.leader.map(|_| partition.leader_epoch)
        });
        if self.locate_at > Instant::now() {
            *next_look = self.locate_at.min(*next_look);
            return;
        }
        let doubts = assignment.doubts();
        if !doubts.is_empty() {
            self.tasks.spawn(async move {
                let ends = epoch_ends(&cluster, &doubts).await;
                Event::Checked(doubts, ends)
            });
        }
    }

    /// What is wanted by the node that leads it, and topics of which has to be asked.
    fn by_node(&self, assignment: &Assignment) -> (HashMap<i32, Wishes>, BTreeSet<Arc<str>>) {
        let mut by_node: HashMap<i32, Wishes> = HashMap::new();
        let mut unknown = BTreeSet::new();
        for Wish { key, offset, generation } in assignment.wanted(&self.shared.config) {
            let known = self.shared.cluster.known_topic(&key.topic);
            let usable = known.as_ref().filter(|(_, freshness)| *freshness != Freshness::Wrong);
            let partition =
                usable.and_then(|(topic, _)| Some((topic.id, topic.partition(key.partition).ok()?)));
            let leader = partition.and_then(|(id, partition)| Some((id, partition, partition.leader?)));
            if leader.is_none() || known.as_ref().is_some_and(|(_, freshness)| *freshness != Freshness::Fresh)
            {
                unknown.insert(key.topic.clone());
            }
            if let Some((topic_id, partition, leader)) = leader {
                let leader_epoch = partition.leader_epoch;
                let wanted = Wanted { topic_id, offset, leader_epoch, generation };
                by_node.entry(leader).or_default().insert(key.clone(), wanted);
            }
        }
        (by_node, unknown)
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
            Event::Located(sought, found) => self.located(&sought, found, assignment),
            Event::Checked(doubts, ends) => self.checked(&doubts, ends, assignment),
            Event::Fetched(id, fetched) => {
                let node = self.nodes.get_mut(&id).expect("it was asked");
                node.is_asked = false;
                let received = fetched.and_then(|reply| node.receive(&reply, &shared, assignment));
                if let Err(error) = received {
                    tracing::debug!("cannot fetch from node {id}: {error}");
                    node.fail(&error, &shared.cluster);
                }
            }
        }
    }

    fn located(&mut self, sought: &[Locate], found: Result<Vec<i64>, Error>, assignment: &mut Assignment) {
        match found {
            Ok(offsets) => {
                self.locate_backoff.reset();
                sought.iter().zip(offsets).for_each(|(one, offset)| assignment.located(one, Some(offset)));
            }
            Err(error) if error.is_retriable() => {
                tracing::debug!("{error}");
                self.locate_at = Instant::now() + self.locate_backoff.next(rand::random());
                sought.iter().for_each(|one| assignment.located(one, None));
            }
            Err(error) => {
                sought.iter().for_each(|one| assignment.fail(&one.key, one.generation, error.clone()));
            }
        }
    }

    fn checked(&mut self, doubts: &[Doubt], ends: Result<EpochEnds, Error>, assignment: &mut Assignment) {
        let then = self.shared.config.out_of_range;
        let ends = match ends {
            Ok(ends) => {
                self.locate_backoff.reset();
                ends
            }
            Err(error) => {
                tracing::debug!("{error}");
                doubts.iter().for_each(|doubt| self.shared.cluster.doubt_topic(&doubt.key.topic));
                self.locate_at = Instant::now() + self.locate_backoff.next(rand::random());
                EpochEnds::new()
            }
        };
        doubts.iter().for_each(|doubt| assignment.settled(doubt, ends.get(&doubt.key).copied(), then));
    }
}

impl Node {
    /// Gives what was fetched to the assignment.
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

    /// A request failed; the next one waits a little, unless it is only that the broker has forgotten the session.
    fn fail(&mut self, error: &Error, cluster: &Cluster) {
        let code = error.code();
        if let Error::Connect { .. } | Error::ConnectionLost { .. } | Error::RequestTimedOut { .. } = error {
            self.session.topics().for_each(|topic| cluster.doubt_topic(topic));
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
            // Nothing is fetched before the cluster was asked, at most a few times in a second.
            self.shared.cluster.doubt_topic(&key.topic);
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

/// The offsets of positions, in their order.
async fn find(cluster: &Cluster, isolation: Isolation, sought: &[Locate]) -> Result<Vec<i64>, Error> {
    // An offset needs no search, and the end is where a time behind all records leads.
    let times: Vec<_> =
        sought.iter().map(|one| (one.key.clone(), one.position.timestamp().unwrap_or(LATEST))).collect();
    let mut found = list_offsets(cluster, isolation, &times).await?;
    let is_missing = |key: &TopicPartition| found.get(key).copied().flatten().is_none();
    let at_end: Vec<_> =
        times.into_iter().filter(|(key, _)| is_missing(key)).map(|(key, _)| (key, LATEST)).collect();
    if !at_end.is_empty() {
        found.extend(list_offsets(cluster, isolation, &at_end).await?);
    }
    let offset = |one: &Locate| {
        let found = found.get(&one.key).copied().flatten();
        found.ok_or_else(|| Error::Unknown(format!("the broker says nothing of the offsets of {}", one.key)))
    };
    sought.iter().map(offset).collect()
}
