//! The task that sends the batches that are ready, and reports their outcomes to the queues.
//!
//! It owns everything under way: connections being made, requests, questions for metadata and for the producer id. Each
//! is a task of its [`JoinSet`], whose end is an [`Event`]. The queues decide about batches, not the sender.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use mainstem_records::BuildError;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::init_producer_id_request::InitProducerIdRequest;
use mainstem_wire::messages::produce_request::ProduceRequest;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::accumulator::{Accumulator, Due};
use super::config::Acks;
use super::queue::{Unsent, Written};
use super::request::{self, Load};
use super::transaction::{Name, Transactions, name_of};
use super::{Shared, State};
use crate::backoff::Backoff;
use crate::cluster::{Cluster, Topic};
use crate::connection::{Connection, Pending, PendingWrite};
use crate::error::Error;
use crate::questions::{Answer, Questions};
use crate::retry::retrying;
use crate::topic_partition::TopicPartition;

/// The sender looks for work at least this often.
const IDLE_LOOK: Duration = Duration::from_secs(60);

/// The sender of a producer.
pub(crate) struct Sender {
    shared: Arc<Shared>,
    tasks: JoinSet<Event>,
    nodes: HashMap<i32, Node>,
    producer: ProducerIdentity,
    questions: Questions,
    /// Topics that the cluster refused at the last question.
    refused: HashMap<Arc<str>, Error>,
    /// The error of the last question to the cluster, if it failed.
    unasked: Option<Error>,
    /// The newest version of Produce that may be used.
    newest: i16,
    /// The queue at which the next look begins, so that none is always the last.
    turn: usize,
}

/// A broker as the sender sees it.
struct Node {
    state: Link,
    in_flight: usize,
    /// The error of the last attempt to connect, if it failed.
    failed: Option<Error>,
    /// No attempt to connect is made before this time.
    retry_at: Instant,
    backoff: Backoff,
}

enum Link {
    Down,
    Connecting,
    Up(Connection),
}

/// The producer id and epoch under which batches are numbered.
enum ProducerIdentity {
    NotIdempotent,
    Unknown,
    Asked,
    Known(Name),
}

/// A request that is not built yet.
struct Order {
    node: i32,
    connection: Connection,
    parts: Vec<Part>,
}

/// A batch of an [`Order`].
struct Part {
    queue: usize,
    topic: Arc<Topic>,
    batch: Unsent,
}

impl Part {
    /// The queue, the topic, the batch's id, and its bytes.
    fn build(self) -> (usize, Arc<Topic>, u64, Result<Bytes, BuildError>) {
        (self.queue, self.topic, self.batch.id, self.batch.contents.build())
    }
}

/// The end of a task.
enum Event {
    Connected(i32, Result<Connection, Error>),
    Answered(i32, Vec<Load>, Result<Vec<Result<Written, Error>>, Error>),
    Refreshed(Answer),
    Named(Result<Name, Error>),
    /// A transaction's coordinator was asked to add partitions.
    Added,
}

impl Sender {
    pub(crate) fn new(shared: Arc<Shared>) -> Sender {
        let producer = if shared.config.idempotence {
            ProducerIdentity::Unknown
        } else {
            ProducerIdentity::NotIdempotent
        };
        let questions = Questions::new(&shared.cluster);
        Sender {
            shared,
            tasks: JoinSet::new(),
            nodes: HashMap::new(),
            producer,
            questions,
            refused: HashMap::new(),
            unasked: None,
            newest: i16::MAX,
            turn: 0,
        }
    }

    /// Sends until the producer is closed.
    pub(crate) async fn run(mut self) {
        while !self.shared.state.lock().is_closed {
            let next_look = self.work();
            tokio::select! {
                () = self.shared.work.notified() => {}
                Some(ended) = self.tasks.join_next() => {
                    let event = ended.expect("no task is cancelled before the set, and a panic is passed on here");
                    self.handle(event);
                }
                () = tokio::time::sleep_until(next_look) => {}
            }
        }
    }

    /// Sends the batches that are ready. Returns when to look again if nothing happens before.
    fn work(&mut self) -> Instant {
        let shared = self.shared.clone();
        shared.settled.notify_waiters();
        let next_look = loop {
            let mut next_look = Instant::now() + IDLE_LOOK;
            let orders = self.orders(&mut shared.state.lock(), &mut next_look);
            if orders.is_empty() {
                break next_look;
            }
            // Outside of the lock: compression takes long, and callers continue meanwhile.
            orders.into_iter().for_each(|order| self.send(order));
        };
        let mut state = shared.state.lock();
        if let Some(adding) = state.transactions.as_mut().and_then(|one| shared.add_partitions(one)) {
            self.tasks.spawn(async move {
                adding.await;
                Event::Added
            });
        }
        next_look
    }

    /// Requests that can be sent now, at most one to each node. `next_look` becomes the time at which that may change by itself.
    /// Both are of one reading of the clock: a batch that becomes ready between two readings would be forgotten.
    fn orders(&mut self, state: &mut State, next_look: &mut Instant) -> Vec<Order> {
        let now_ms = self.shared.now().mono_ms;
        self.shared.memory.add_permits(state.queues.expire(now_ms, |key| self.trouble(key)));
        self.shared.memory.add_permits(state.note_failures());
        let State { queues, transactions, .. } = state;
        queues.forget_idle(now_ms, transactions.as_ref().and_then(Transactions::name));
        let mut due = queues.due(now_ms, self.turn);
        if let Some(at) = due.next_ms {
            *next_look = (self.shared.started + Duration::from_millis(at)).min(*next_look);
        }
        if !self.has_producer_id(queues, transactions.as_ref()) {
            return Vec::new();
        }
        if let Some(transactions) = transactions {
            due.ready.retain(|place| transactions.may_send(&queues.queue(*place).key()));
        }
        let (by_node, unknown) = self.by_node(queues, &due);
        self.refresh(unknown, next_look);
        let order = |(node, places): (i32, Vec<usize>)| self.order(node, &places, queues, next_look);
        by_node.into_iter().filter_map(order).collect()
    }

    /// The reason why nothing can be sent to a partition at present, if there is one.
    fn trouble(&self, key: &TopicPartition) -> Option<Error> {
        let of_leader = || {
            let topic = self.shared.cluster.remembered_topic(&key.topic)?;
            let leader = topic.partition(key.partition).ok()?.leader?;
            self.nodes.get(&leader)?.failed.clone()
        };
        self.refused.get(&key.topic).cloned().or_else(of_leader).or_else(|| self.unasked.clone())
    }

    /// Returns true if batches can be numbered, or need not be; otherwise asks for a producer id.
    fn has_producer_id(&mut self, queues: &Accumulator, transactions: Option<&Transactions>) -> bool {
        if let Some(transactions) = transactions {
            let Some(name) = transactions.name() else { return false };
            self.producer = ProducerIdentity::Known(name);
            self.newest = if transactions.is_v2() { i16::MAX } else { request::TRANSACTIONS_V1_UNTIL };
            return true;
        }
        if matches!(self.producer, ProducerIdentity::Known((id, _)) if queues.has_used_up(id)) {
            self.producer = ProducerIdentity::Unknown;
        }
        if matches!(self.producer, ProducerIdentity::Unknown) {
            self.producer = ProducerIdentity::Asked;
            let cluster = self.shared.cluster.clone();
            self.tasks.spawn(async move { Event::Named(init_producer_id(&cluster).await) });
        }
        matches!(self.producer, ProducerIdentity::Known(..) | ProducerIdentity::NotIdempotent)
    }

    /// The ready queues by the node that leads them, and topics for which the cluster has to be asked.
    fn by_node(&self, queues: &Accumulator, due: &Due) -> (HashMap<i32, Vec<usize>>, BTreeSet<Arc<str>>) {
        let mut by_node: HashMap<i32, Vec<usize>> = HashMap::new();
        let mut unknown = BTreeSet::new();
        for place in &due.ready {
            let key = queues.queue(*place).key();
            let (lead, is_to_be_asked) = self.shared.cluster.lead(&key);
            if let Some(lead) = lead {
                by_node.entry(lead.node).or_default().push(*place);
            }
            if is_to_be_asked {
                unknown.insert(key.topic);
            }
        }
        (by_node, unknown)
    }

    /// Asks for topics, unless a question is under way or it was asked just now.
    fn refresh(&mut self, topics: BTreeSet<Arc<str>>, next_look: &mut Instant) {
        if let Some(question) = self.questions.ask(topics, next_look) {
            self.tasks.spawn(async move { Event::Refreshed(question.await) });
        }
    }

    /// The next request to a node, if it can take one.
    fn order(
        &mut self,
        node: i32,
        places: &[usize],
        queues: &mut Accumulator,
        next_look: &mut Instant,
    ) -> Option<Order> {
        let connection = self.connection(node, next_look)?;
        let parts = self.load(places, queues);
        self.turn = parts.last()?.queue + 1;
        Some(Order { node, connection, parts })
    }

    /// Builds the batches of a request and sends it.
    fn send(&mut self, order: Order) {
        let Order { node, connection, parts } = order;
        let built: Vec<_> = parts.into_iter().map(Part::build).collect();
        let shared = self.shared.clone();
        let queues = &mut shared.state.lock().queues;
        let mut loads = Vec::new();
        for (place, topic, id, bytes) in built {
            let (queue, config, _) = queues.queue_mut(place);
            let partition = queue.place().1;
            match bytes {
                Ok(bytes) => loads.extend(queue.built(id, bytes).map(|batch| Load {
                    queue: place,
                    topic,
                    partition,
                    batch,
                })),
                Err(error) => {
                    shared.memory.add_permits(queue.unbuildable(id, &error, config));
                    queues.settle(place);
                }
            }
        }
        if !loads.is_empty() {
            self.dispatch(node, &connection, loads, queues);
        }
    }

    /// A node's connection if it is open and can take a request; otherwise one is opened if that may help.
    fn connection(&mut self, id: i32, next_look: &mut Instant) -> Option<Connection> {
        let shared = &self.shared;
        let node = self.nodes.entry(id).or_insert_with(|| Node {
            state: Link::Down,
            in_flight: 0,
            failed: None,
            retry_at: Instant::now(),
            backoff: backoff(shared),
        });
        match &node.state {
            Link::Up(connection) if !connection.is_lost() => {
                let most = shared.config.in_flight_max;
                (node.in_flight < most).then(|| connection.clone())
            }
            Link::Connecting => None,
            _ if node.retry_at > Instant::now() => {
                *next_look = node.retry_at.min(*next_look);
                None
            }
            _ => {
                node.state = Link::Connecting;
                let cluster = shared.cluster.clone();
                self.tasks.spawn(async move { Event::Connected(id, cluster.node(id).await) });
                None
            }
        }
    }

    /// Takes one batch of each queue, up to the size of a request.
    fn load(&self, places: &[usize], queues: &mut Accumulator) -> Vec<Part> {
        let named = match self.producer {
            ProducerIdentity::Known(name) => Some(name),
            _ => None,
        };
        let mut parts = Vec::new();
        let mut free_bytes = self.shared.config.request_bytes_max;
        for place in places {
            let (name, _) = queues.queue(*place).place();
            let Some((topic, _)) = self.shared.cluster.known_topic(name) else { continue };
            let (queue, config, _) = queues.queue_mut(*place);
            let bytes = queue.next_bytes();
            // A batch that is too large for any request is sent alone.
            if bytes > free_bytes && !parts.is_empty() {
                break;
            }
            free_bytes = free_bytes.saturating_sub(bytes);
            parts.push(Part { queue: *place, topic, batch: queue.take(named, config) });
        }
        parts
    }

    fn dispatch(&mut self, node: i32, connection: &Connection, loads: Vec<Load>, queues: &mut Accumulator) {
        let shared = &self.shared;
        let limit = shared.config.client.request_timeout;
        let timeout_ms = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
        let mut request = request::request(&loads, shared.config.acks.code(), timeout_ms);
        request.transactional_id = shared.config.transactional_id.as_deref().map(Into::into);
        let version = request::version(connection, &loads, self.newest);
        let begun = version.and_then(|version| match shared.config.acks {
            Acks::None => connection.send_unanswered(&request, version).map(UnderWay::Writing),
            _ => connection.ask(&request, version, limit).map(UnderWay::Asked),
        });
        match begun {
            Ok(under_way) => {
                self.nodes.get_mut(&node).expect("it has a connection").in_flight += 1;
                self.tasks.spawn(async move {
                    let outcomes = under_way.outcomes(&loads, limit).await;
                    Event::Answered(node, loads, outcomes)
                });
            }
            Err(error) => self.settle(loads, Err(error), queues),
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Connected(id, connected) => self.connected(id, connected),
            Event::Answered(id, loads, outcomes) => {
                self.nodes.get_mut(&id).expect("a request was sent there").in_flight -= 1;
                let shared = self.shared.clone();
                self.settle(loads, outcomes, &mut shared.state.lock().queues);
            }
            Event::Added => {}
            Event::Refreshed(answer) => self.refreshed(answer),
            Event::Named(Ok(name)) => self.producer = ProducerIdentity::Known(name),
            // Waiting batches have their own time limit; until then another attempt is made.
            Event::Named(Err(error @ (Error::TimedOut { .. } | Error::Closed))) => {
                tracing::warn!("no producer id yet: {error}");
                self.producer = ProducerIdentity::Unknown;
            }
            // Another question would be answered alike.
            Event::Named(Err(error)) => {
                self.shared.fail(&error);
                self.shared.end();
            }
        }
    }

    /// Takes an answer about topics. Batches of a refused topic wait: the cause may be repaired before their time is over. Each
    /// question includes all topics without a known leader, so that an answer without a refusal clears the older ones.
    fn refreshed(&mut self, answer: Answer) {
        self.unasked = answer.as_ref().err().cloned();
        let is_answered = self.unasked.is_none();
        let refused = self.questions.answered(answer).into_iter().map(|one| (one.topic, one.error));
        if is_answered {
            self.refused = refused.collect();
        }
    }

    fn connected(&mut self, id: i32, connected: Result<Connection, Error>) {
        let node = self.nodes.get_mut(&id).expect("it was connected to");
        match connected {
            Ok(connection) => {
                node.state = Link::Up(connection);
                node.failed = None;
                node.backoff.reset();
            }
            Err(error) => {
                tracing::debug!("cannot send to node {id}: {error}");
                node.state = Link::Down;
                node.failed = Some(error);
                node.retry_at = Instant::now() + node.backoff.next(rand::random());
                self.invalidate_partitions_of(id);
            }
        }
    }

    /// Marks the metadata of partitions as out of date whose leader cannot be reached: they may have another leader soon. Metadata
    /// that was asked for right after its death still named it.
    fn invalidate_partitions_of(&self, id: i32) {
        let cluster = &self.shared.cluster;
        let state = self.shared.state.lock();
        for name in state.queues.topics() {
            let Some((topic, _)) = cluster.known_topic(name) else { continue };
            for one in topic.partitions.iter().filter(|one| one.leader == Some(id)) {
                cluster.invalidate_partition(&TopicPartition { topic: name.clone(), partition: one.index });
            }
        }
    }

    /// Reports the outcomes of batches to their queues.
    fn settle(
        &mut self,
        loads: Vec<Load>,
        outcomes: Result<Vec<Result<Written, Error>>, Error>,
        queues: &mut Accumulator,
    ) {
        let outcomes = outcomes.unwrap_or_else(|error| loads.iter().map(|_| Err(error.clone())).collect());
        let now_ms = self.shared.now().mono_ms;
        let mut freed = 0;
        for (load, outcome) in loads.into_iter().zip(outcomes) {
            let (queue, config, ids) = queues.queue_mut(load.queue);
            freed += match outcome {
                Ok(written) => {
                    self.shared.written_bytes.fetch_add(load.batch.bytes.len() as u64, Ordering::Relaxed);
                    queue.succeeded(load.batch.id, written)
                }
                Err(error) => {
                    tracing::debug!("a batch was not written: {error}");
                    invalidate_if_moved(&self.shared.cluster, &queue.key(), &error);
                    queue.failed(load.batch.id, error, now_ms, config, ids)
                }
            };
            queues.settle(load.queue);
        }
        self.shared.memory.add_permits(freed);
    }
}

impl Drop for Sender {
    /// Fails all records that wait: the producer was closed, or this task has panicked, or its runtime ends.
    fn drop(&mut self) {
        self.shared.fail(&Error::of_ended_task("the sender of the producer"));
    }
}

/// A produce request that was sent.
enum UnderWay {
    Asked(Pending),
    /// With acks=0. It is under way until it is written: a broker that does not read holds records back, too.
    Writing(PendingWrite),
}

impl UnderWay {
    async fn outcomes(self, loads: &[Load], limit: Duration) -> Result<Vec<Result<Written, Error>>, Error> {
        match self {
            UnderWay::Asked(pending) => {
                let reply = pending.reply::<ProduceRequest<'static>>().await?;
                request::outcomes(loads, &reply)
            }
            UnderWay::Writing(write) => {
                write.written(limit).await?;
                Ok(loads.iter().map(|_| Ok(Written { base_offset: None, append_time_ms: None })).collect())
            }
        }
    }
}

fn backoff(shared: &Shared) -> Backoff {
    Backoff::new(shared.config.client.retry_backoff, shared.config.client.retry_backoff_max)
}

/// Marks the leader of a partition as out of date after an error, so that the cluster is asked before the batch is sent again.
fn invalidate_if_moved(cluster: &Cluster, key: &TopicPartition, error: &Error) {
    let is_throttle = error.code() == Some(ErrorCode::THROTTLING_QUOTA_EXCEEDED);
    if error.is_retriable() && !is_throttle {
        cluster.invalidate_partition(key);
    }
}

async fn init_producer_id(cluster: &Cluster) -> Result<Name, Error> {
    let config = cluster.config();
    retrying(config, config.operation_timeout, "getting a producer id", || async {
        let request = InitProducerIdRequest {
            transactional_id: None,
            // Without transactions brokers ignore it, but it has to be more than 0.
            transaction_timeout_ms: i32::MAX,
            ..Default::default()
        };
        let reply = cluster.call_any(&request).await?;
        let response = reply.read()?;
        reply.check(response.error_code, None, || "cannot get a producer id".to_owned())?;
        Ok(name_of(response.producer_id, response.producer_epoch))
    })
    .await
}

#[cfg(test)]
#[path = "sender/tests.rs"]
mod tests;
