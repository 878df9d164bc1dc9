//! A cluster seen from outside: its nodes, one connection to each, and the leaders of partitions.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mainstem_wire::messages::find_coordinator_request::FindCoordinatorRequest;
use mainstem_wire::messages::metadata_request::{MetadataRequest, MetadataRequestTopic};
use mainstem_wire::messages::metadata_response::{
    MetadataResponse, MetadataResponsePartition, MetadataResponseTopic,
};
use mainstem_wire::{ErrorCode, Request, Uuid};
use parking_lot::Mutex;

use crate::config::ClientConfig;
use crate::connection::Connection;
use crate::error::Error;
use crate::reply::Reply;
use crate::topic_partition::TopicPartition;

/// The type of a group's key in FindCoordinator.
const GROUP_KEY: i8 = 0;
/// The type of a transactional id there.
const TRANSACTION_KEY: i8 = 1;

/// A topic as the cluster describes it.
///
/// ```
/// use mainstem_client::{Admin, ClientConfig, NewTopic};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// let admin = Admin::new(ClientConfig::new(address)?);
/// admin.create_topic(&NewTopic::new("orders").partitions(2)).await?;
/// let topic = admin.topic("orders").await?;
/// assert_eq!((&*topic.name, topic.partitions.len()), ("orders", 2));
/// assert!(topic.partition(2).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// Its name.
    pub name: Arc<str>,
    /// The id that it has had since it was created; zero where brokers are too old to know.
    pub id: Uuid,
    /// True for a topic of the brokers themselves, such as `__consumer_offsets`.
    pub is_internal: bool,
    /// Its partitions, by number.
    pub partitions: Vec<Partition>,
}

/// A partition as the cluster describes it.
///
/// ```
/// use mainstem_client::{Admin, ClientConfig, NewTopic};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// let admin = Admin::new(ClientConfig::new(address)?);
/// admin.create_topic(&NewTopic::new("orders").partitions(2)).await?;
/// let topic = admin.topic("orders").await?;
/// let partition = topic.partition(1)?;
/// assert_eq!(partition.index, 1);
/// assert_eq!(partition.leader, partition.replicas.first().copied());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Its number in the topic.
    pub index: i32,
    /// The node that serves it; none while there is none.
    pub leader: Option<i32>,
    /// Counts the changes of the leader; -1 where brokers are too old to know.
    pub leader_epoch: i32,
    /// Nodes that have a copy.
    pub replicas: Vec<i32>,
    /// Those of them that are in sync.
    pub isr: Vec<i32>,
}

/// Topics by id and by name.
pub(crate) type Names = Vec<(Uuid, Arc<str>)>;

/// The error for a topic that is not known.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) topic: Arc<str>,
    pub(crate) error: Error,
}

/// The state of what is known of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// Up to date, as far as is known.
    Fresh,
    /// Older than `metadata_max_age`: it is used, and the cluster is asked for it again.
    Old,
    /// Its leaders are out of date: the cluster is asked before anything is sent. The number of partitions is still used.
    Wrong,
}

/// The cluster; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: ClientConfig,
    known: Mutex<Known>,
    /// Counts the requests to any broker, so that brokers take turns.
    turn: AtomicUsize,
    slots: Mutex<HashMap<Arc<str>, Slot>>,
}

/// The lock is held while a connection is made, so that there is never a second one to an address.
type Slot = Arc<tokio::sync::Mutex<Link>>;

/// The connection to an address.
#[derive(Debug, Default)]
struct Link {
    open: Option<Connection>,
    /// When the last attempt to make one failed, if it did.
    failed: Option<(Instant, Error)>,
}

#[derive(Debug, Default)]
struct Known {
    nodes: BTreeMap<i32, Arc<str>>,
    /// The node that takes requests for the controller; none while none is known.
    controller: Option<i32>,
    topics: HashMap<Arc<str>, KnownTopic>,
    /// Nodes by type and key.
    coordinators: HashMap<(i8, Arc<str>), i32>,
}

#[derive(Debug)]
struct KnownTopic {
    topic: Arc<Topic>,
    /// The time of the answer; none since something proved its leaders out of date.
    at: Option<Instant>,
    /// The time of the answer, whatever was found out since.
    answered: Instant,
    /// Partitions whose leader alone was found to be out of date.
    invalidated: BTreeSet<i32>,
}

impl Known {
    /// Forgets topics whose last answer is so old that they cannot be in use: topics in use are asked for again at `age_max`.
    fn forget_unused(&mut self, age_max: Duration) {
        self.topics.retain(|_, known| known.answered.elapsed() < age_max.saturating_mul(2));
    }
}

impl KnownTopic {
    fn freshness(&self, age_max: Duration) -> Freshness {
        match self.at {
            None => Freshness::Wrong,
            Some(at) if at.elapsed() >= age_max => Freshness::Old,
            Some(_) => Freshness::Fresh,
        }
    }
}

/// The leader of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lead {
    /// Id of the topic.
    pub(crate) topic_id: Uuid,
    /// The leader.
    pub(crate) node: i32,
    /// Its epoch.
    pub(crate) leader_epoch: i32,
}

impl Cluster {
    /// A cluster of which nothing is known yet but the bootstrap addresses.
    pub(crate) fn new(config: ClientConfig) -> Self {
        Cluster {
            inner: Arc::new(Inner {
                config,
                known: Mutex::default(),
                turn: AtomicUsize::new(0),
                slots: Mutex::default(),
            }),
        }
    }

    /// The configuration of the client.
    pub(crate) fn config(&self) -> &ClientConfig {
        &self.inner.config
    }

    /// A connection to any broker: an open one, or else the first that can be made. The open ones take turns, since a broker that
    /// is cut off from the others still answers with its old metadata. The bootstrap brokers take turns as well, since a broker
    /// that is cut off may name no other.
    ///
    /// # Errors
    /// The first broker's, or the first one that another attempt may repair.
    pub(crate) async fn any(&self) -> Result<Connection, Error> {
        let mut addresses: Vec<Arc<str>> = self.inner.known.lock().nodes.values().cloned().collect();
        let named = addresses.len();
        for one in &self.inner.config.bootstrap {
            if !addresses.iter().any(|known| **known == **one) {
                addresses.push(Arc::from(one.as_str()));
            }
        }
        let turn = self.inner.turn.fetch_add(1, Ordering::Relaxed);
        let by_turn = addresses.iter().cycle().skip(turn % addresses.len().max(1)).take(addresses.len());
        if let Some(open) = by_turn.into_iter().find_map(|address| self.open_already(address)) {
            return Ok(open);
        }
        // Brokers that the cluster names are more likely to be up.
        addresses[..named].rotate_left(turn.checked_rem(named).unwrap_or(0));
        let mut errors = Vec::new();
        for address in &addresses {
            match self.connect(address).await {
                Ok(connection) => return Ok(connection),
                Err(error) => errors.push(error),
            }
        }
        let first = errors.iter().position(Error::is_retriable).unwrap_or(0);
        match errors.is_empty() {
            true => Err(Error::Invalid("no broker is named".to_owned())),
            false => Err(errors.swap_remove(first)),
        }
    }

    fn open_already(&self, address: &Arc<str>) -> Option<Connection> {
        let slot = self.inner.slots.lock().get(address).cloned()?;
        let link = slot.try_lock().ok()?;
        link.open.as_ref().filter(|connection| !connection.is_lost()).cloned()
    }

    /// The connection to a node that some metadata named.
    pub(crate) async fn node(&self, id: i32) -> Result<Connection, Error> {
        if !self.inner.known.lock().nodes.contains_key(&id) {
            self.refresh(&[], false).await?;
        }
        let address = self.inner.known.lock().nodes.get(&id).cloned();
        // It may be restarting, or another node may have its role by now: another attempt may succeed.
        let address = address.ok_or_else(|| Error::Connect {
            broker: format!("node {id}"),
            reason: "the cluster does not name it at present".to_owned(),
        })?;
        self.connect(&address).await
    }

    async fn connect(&self, address: &Arc<str>) -> Result<Connection, Error> {
        let slot = self.inner.slots.lock().entry(address.clone()).or_default().clone();
        let asked_at = Instant::now();
        let mut link = slot.lock().await;
        if let Some(connection) = link.open.as_ref().filter(|connection| !connection.is_lost()) {
            return Ok(connection.clone());
        }
        // A caller that has waited for another's attempt does not repeat it: one after the other they would wait for a broker
        // that does not answer.
        if let Some((_, error)) = link.failed.as_ref().filter(|(at, _)| *at >= asked_at) {
            return Err(error.clone());
        }
        match Connection::open(address, self.inner.config.connection()).await {
            Ok(connection) => {
                *link = Link { open: Some(connection.clone()), failed: None };
                Ok(connection)
            }
            Err(error) => {
                link.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// A topic as it was last described, however old that is.
    pub(crate) fn remembered_topic(&self, name: &str) -> Option<Arc<Topic>> {
        self.inner.known.lock().topics.get(name).map(|known| known.topic.clone())
    }

    /// A topic if it is known, and how fresh that is.
    pub(crate) fn known_topic(&self, name: &str) -> Option<(Arc<Topic>, Freshness)> {
        let known = self.inner.known.lock();
        let known = known.topics.get(name)?;
        Some((known.topic.clone(), known.freshness(self.inner.config.metadata_max_age)))
    }

    /// The leader of a partition, if known and not found to be out of date; true if the cluster has to be asked for its topic.
    pub(crate) fn lead(&self, key: &TopicPartition) -> (Option<Lead>, bool) {
        let known = self.inner.known.lock();
        let Some(known) = known.topics.get(&key.topic) else { return (None, true) };
        let freshness = known.freshness(self.inner.config.metadata_max_age);
        let is_invalidated = freshness == Freshness::Wrong || known.invalidated.contains(&key.partition);
        let lead = if is_invalidated { None } else { known.topic.lead(key.partition) };
        (lead, lead.is_none() || freshness != Freshness::Fresh)
    }

    /// Marks the leaders of a topic as out of date, after an answer, or none, that proves it.
    pub(crate) fn invalidate_topic(&self, name: &str) {
        if let Some(known) = self.inner.known.lock().topics.get_mut(name) {
            known.at = None;
        }
    }

    /// Marks the leader of one partition as out of date: nothing more is sent to it before the cluster was asked for the topic.
    /// Other partitions are not held up.
    pub(crate) fn invalidate_partition(&self, key: &TopicPartition) {
        if let Some(known) = self.inner.known.lock().topics.get_mut(&key.topic) {
            known.invalidated.insert(key.partition);
        }
    }

    /// A topic, as known or asked for now. `create`: brokers may create it if their configuration has it so.
    pub(crate) async fn topic(&self, name: &str, create: bool) -> Result<Arc<Topic>, Error> {
        match self.known_topic(name) {
            Some((topic, Freshness::Fresh)) => Ok(topic),
            _ => self.ask_topic(name, create).await,
        }
    }

    async fn ask_topic(&self, name: &str, create: bool) -> Result<Arc<Topic>, Error> {
        let found = self.refresh(&[name], create).await?.pop();
        found
            .unwrap_or_else(|| Err(Refused { topic: name.into(), error: left_out(name) }))
            .map_err(|refused| refused.error)
    }

    /// The node that leads a partition, as known or asked for now.
    pub(crate) async fn leader(&self, key: &TopicPartition) -> Result<i32, Error> {
        Ok(self.find_lead(key).await?.node)
    }

    /// The leader of a partition with its epoch, as known or asked for now.
    pub(crate) async fn find_lead(&self, key: &TopicPartition) -> Result<Lead, Error> {
        if let (Some(lead), _) = self.lead(key) {
            return Ok(lead);
        }
        let topic = self.ask_topic(&key.topic, false).await?;
        topic.partition(key.partition)?;
        topic.lead(key.partition).ok_or_else(|| Error::NoLeader { partition: key.clone() })
    }

    /// The ids of all nodes, asked for now.
    pub(crate) async fn node_ids(&self) -> Result<Vec<i32>, Error> {
        self.refresh(&[], false).await?;
        Ok(self.inner.known.lock().nodes.keys().copied().collect())
    }

    /// All topics, by name, asked for now.
    pub(crate) async fn topics(&self) -> Result<Vec<Arc<Topic>>, Error> {
        let found = self.ask(None, false).await?.into_iter();
        let mut topics: Vec<_> = found.collect::<Result<_, Refused>>().map_err(|refused| refused.error)?;
        topics.sort_by(|a: &Arc<Topic>, b| a.name.cmp(&b.name));
        Ok(topics)
    }

    /// Asks for some topics; each has its own error. `create`: brokers may create what does not exist if their
    /// configuration has it so.
    pub(crate) async fn refresh(
        &self,
        names: &[&str],
        create: bool,
    ) -> Result<Vec<Result<Arc<Topic>, Refused>>, Error> {
        let named = |name: &&str| MetadataRequestTopic {
            name: Some(Cow::Owned((*name).to_owned())),
            ..Default::default()
        };
        self.ask(Some(names.iter().map(named).collect()), create).await
    }

    /// The names of topics by their ids, asked for now. Topics that the broker does not know, yet or any more, are left out.
    pub(crate) async fn names(&self, ids: &BTreeSet<Uuid>) -> Result<Names, Error> {
        let by_id = |id: &Uuid| MetadataRequestTopic { topic_id: *id, name: None, ..Default::default() };
        let connection = self.any().await?;
        let topics = Some(ids.iter().map(by_id).collect());
        let request = MetadataRequest { topics, ..Default::default() };
        let reply = connection.call(&request).await?;
        let response = reply.read()?;
        let found = self.learn(&reply, &response);
        Ok(found.into_iter().flatten().map(|topic| (topic.id, topic.name.clone())).collect())
    }

    async fn ask(
        &self,
        topics: Option<Vec<MetadataRequestTopic<'static>>>,
        allow_auto_topic_creation: bool,
    ) -> Result<Vec<Result<Arc<Topic>, Refused>>, Error> {
        let request = MetadataRequest { topics, allow_auto_topic_creation, ..Default::default() };
        let reply = self.any().await?.call(&request).await?;
        let response = reply.read()?;
        Ok(self.learn(&reply, &response))
    }

    fn learn(
        &self,
        reply: &Reply<MetadataRequest<'_>>,
        response: &MetadataResponse<'_>,
    ) -> Vec<Result<Arc<Topic>, Refused>> {
        let address = |host: &str, port: i32| match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        let nodes = response.brokers.iter();
        let nodes = nodes.map(|node| (node.node_id, address(&node.host, node.port).into())).collect();
        let topics: Vec<_> = response.topics.iter().map(|topic| Topic::from_response(reply, topic)).collect();
        let mut known = self.inner.known.lock();
        known.nodes = nodes;
        known.controller = (response.controller_id >= 0).then_some(response.controller_id);
        let topics: Vec<_> = topics
            .into_iter()
            .map(|topic| {
                topic.map(|found| match known.topics.get(&found.name) {
                    Some(before) => found.with_newer_leaders(&before.topic),
                    None => found,
                })
            })
            .collect();
        for name in response.topics.iter().filter_map(|topic| topic.name.as_deref()) {
            known.topics.remove(name);
        }
        known.forget_unused(self.inner.config.metadata_max_age);
        let answered = Instant::now();
        for topic in topics.iter().flatten() {
            let (name, topic, at) = (topic.name.clone(), topic.clone(), Some(answered));
            let fresh = KnownTopic { topic, at, answered, invalidated: BTreeSet::new() };
            known.topics.insert(name, fresh);
        }
        topics
    }

    /// The node that coordinates a group.
    pub(crate) async fn coordinator(&self, group: &str) -> Result<Connection, Error> {
        self.coordinator_of(GROUP_KEY, group).await
    }

    /// Forgets the coordinator of a group, after a broker said that it is not the coordinator, or could not be reached.
    pub(crate) fn forget_coordinator(&self, group: &str) {
        self.inner.known.lock().coordinators.remove(&(GROUP_KEY, group.into()));
    }

    /// The node that coordinates the transactions of a transactional id.
    pub(crate) async fn transaction_coordinator(&self, id: &str) -> Result<Connection, Error> {
        self.coordinator_of(TRANSACTION_KEY, id).await
    }

    /// The id of the node that coordinates the transactions of a transactional id.
    pub(crate) async fn transaction_coordinator_id(&self, id: &str) -> Result<i32, Error> {
        self.coordinator_id_of(TRANSACTION_KEY, id).await
    }

    /// As [`Cluster::forget_coordinator`].
    pub(crate) fn forget_transaction_coordinator(&self, id: &str) {
        self.inner.known.lock().coordinators.remove(&(TRANSACTION_KEY, id.into()));
    }

    /// The id of the node that coordinates a group.
    pub(crate) async fn coordinator_id(&self, group: &str) -> Result<i32, Error> {
        self.coordinator_id_of(GROUP_KEY, group).await
    }

    async fn coordinator_id_of(&self, key_type: i8, key: &str) -> Result<i32, Error> {
        let known = self.inner.known.lock().coordinators.get(&(key_type, key.into())).copied();
        match known {
            Some(node) => Ok(node),
            None => self.find_coordinator(key_type, key).await,
        }
    }

    async fn coordinator_of(&self, key_type: i8, key: &str) -> Result<Connection, Error> {
        let node = self.coordinator_id_of(key_type, key).await?;
        self.node(node).await.inspect_err(|_| {
            self.inner.known.lock().coordinators.remove(&(key_type, key.into()));
        })
    }

    async fn find_coordinator(&self, key_type: i8, key: &str) -> Result<i32, Error> {
        let connection = self.any().await?;
        let mut request = FindCoordinatorRequest { key_type, ..Default::default() };
        // Version 4 asks for several at once.
        if connection.version::<FindCoordinatorRequest<'_>>()? >= 4 {
            request.coordinator_keys = vec![key.into()];
        } else {
            request.key = key.into();
        }
        let reply = connection.call(&request).await?;
        let response = reply.read()?;
        let (code, message, node) = match response.coordinators.first() {
            Some(found) => (found.error_code, &found.error_message, found.node_id),
            None => (response.error_code, &response.error_message, response.node_id),
        };
        let of = if key_type == GROUP_KEY { "group" } else { "the transactions of" };
        reply.check(code, message.as_deref(), || format!("no coordinator of {of} {key}"))?;
        self.inner.known.lock().coordinators.insert((key_type, key.into()), node);
        Ok(node)
    }

    /// Calls the controller, or a broker that forwards the request to it. The controller is asked for each time: it may have
    /// changed.
    pub(crate) async fn call_controller<'q, R: Request<'q>>(&self, request: &R) -> Result<Reply<R>, Error> {
        self.controller().await?.call(request).await
    }

    /// A connection to the controller, or to a broker that forwards requests to it.
    pub(crate) async fn controller(&self) -> Result<Connection, Error> {
        self.refresh(&[], false).await?;
        let controller = self.inner.known.lock().controller;
        match controller {
            Some(node) => self.node(node).await,
            None => self.any().await,
        }
    }

    /// Calls any broker.
    pub(crate) async fn call_any<'q, R: Request<'q>>(&self, request: &R) -> Result<Reply<R>, Error> {
        self.any().await?.call(request).await
    }
}

fn left_out(name: &str) -> Error {
    Error::Unknown(format!("the broker left out topic {name}"))
}

impl Topic {
    fn from_response(
        reply: &Reply<MetadataRequest<'_>>,
        topic: &MetadataResponseTopic<'_>,
    ) -> Result<Arc<Topic>, Refused> {
        let name = topic.name.as_deref().unwrap_or_default();
        reply
            .check(topic.error_code, None, || format!("no topic {name}"))
            .map_err(|error| Refused { topic: name.into(), error })?;
        let mut partitions: Vec<Partition> = topic.partitions.iter().map(Partition::from_response).collect();
        partitions.sort_by_key(|partition| partition.index);
        Ok(Arc::new(Topic {
            name: name.into(),
            id: topic.topic_id,
            is_internal: topic.is_internal,
            partitions,
        }))
    }

    /// A partition by its number.
    ///
    /// # Errors
    /// [`Error::Unknown`] says how many there are.
    pub fn partition(&self, index: i32) -> Result<&Partition, Error> {
        let found = usize::try_from(index).ok().and_then(|index| self.partitions.get(index));
        found.filter(|partition| partition.index == index).ok_or_else(|| {
            let count = self.partitions.len();
            Error::Unknown(format!("topic {} has no partition {index}; it has {count}", self.name))
        })
    }

    /// The same with each leader that was known by a newer epoch: the broker that answers may not know of it yet (KIP-320).
    /// Without topic ids, a topic that was deleted and created again looks like its predecessor.
    fn with_newer_leaders(self: Arc<Self>, before: &Topic) -> Arc<Topic> {
        let is_newer = |before: &Partition, found: &Partition| before.leader_epoch > found.leader_epoch;
        let mut pairs = before.partitions.iter().zip(&self.partitions);
        if self.id.is_zero() || self.id != before.id || !pairs.any(|(before, found)| is_newer(before, found))
        {
            return self;
        }
        let mut topic = Topic::clone(&self);
        for (before, found) in before.partitions.iter().zip(&mut topic.partitions) {
            if is_newer(before, found) && before.index == found.index {
                found.clone_from(before);
            }
        }
        Arc::new(topic)
    }

    fn lead(&self, index: i32) -> Option<Lead> {
        let partition = self.partition(index).ok()?;
        let (topic_id, leader_epoch) = (self.id, partition.leader_epoch);
        Some(Lead { topic_id, node: partition.leader?, leader_epoch })
    }
}

impl Partition {
    fn from_response(partition: &MetadataResponsePartition<'_>) -> Partition {
        let has_leader = partition.leader_id >= 0 && partition.error_code == ErrorCode::NONE.code();
        Partition {
            index: partition.partition_index,
            leader: has_leader.then_some(partition.leader_id),
            leader_epoch: partition.leader_epoch,
            replicas: partition.replica_nodes.clone(),
            isr: partition.isr_nodes.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
