//! Clients that change the metadata through any node, and checks of the metadata of all nodes.

use crate::done::Done;
use crate::world::World;
use mainstem_controller::{ConfigResource, MetadataImage, ResourceKind};
use mainstem_log::sim::Random;
use mainstem_node::node::Node as BrokerNode;
use mainstem_replication::ReplicaId;
use mainstem_runtime::schedule::Group;
use mainstem_store::partition::Partition;
use mainstem_store::topics::Topic;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::delete_topics_request::{DeleteTopicState, DeleteTopicsRequest};
use mainstem_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Turns between two requests of an idle client, on average.
const ASK_TURNS: u64 = 120;
/// Timeout of a request, in ms.
const ANSWER_MAX_MS: u64 = 6_000;
/// Number of concurrent clients.
const CLIENTS: usize = 2;
/// Topics of a client at the same time, at most.
const TOPICS_MAX: usize = 2;
/// The topic configuration that clients alter. Its values rise.
const SETTING: &str = "segment.ms";
/// The first value of the setting.
const FIRST_VALUE: i64 = 1_000_000;
/// Version of DeleteTopics with topics by name in their own structure.
const DELETE_VERSION: i16 = 6;

/// The outcome of a request; `None`: not known yet, or never if its node ends before.
type Outcome = Arc<Mutex<Option<ErrorCode>>>;

/// Clients that change the metadata, and the checks of the metadata.
pub(crate) struct Metadata {
    random: Random,
    clients: Vec<Client>,
    is_stopped: bool,
    /// Digest of the metadata by offset, equal on all nodes.
    digests: BTreeMap<i64, u64>,
    /// The last look at each node's metadata.
    looked: Vec<Looked>,
    /// Nodes that have decided, by the epoch in which they did.
    deciders: BTreeMap<i32, usize>,
    /// Offset of the newest metadata seen, and the nodes that are fenced in them.
    newest: (i64, BTreeSet<i32>),
    /// Number of events, by their names.
    pub(crate) done: Done,
}

/// A look at the metadata of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Looked {
    /// Number of its start.
    start: u64,
    next_offset: i64,
    snapshots_loaded: u64,
}

/// A client that makes one change after another, of topics that no other one changes.
struct Client {
    number: usize,
    /// Topics that it has asked for, by name.
    topics: BTreeMap<String, Expected>,
    last_topic: usize,
    asked: Option<Asked>,
}

/// Expected state of a topic.
#[derive(Debug, Clone, Copy, Default)]
struct Expected {
    is_created: bool,
    /// A request to create it was not answered: it may be created late, even after its deletion.
    has_unanswered: bool,
    /// Its deletion was requested.
    may_be_deleted: bool,
    is_deleted: bool,
    /// Values of its setting: the last acknowledged one, and the last requested one.
    acknowledged: i64,
    asked: i64,
}

/// A request on its way.
struct Asked {
    change: Change,
    topic: String,
    until_ms: u64,
    outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Create,
    Delete,
    Alter(i64),
}

impl Change {
    fn name(self) -> &'static str {
        match self {
            Change::Create => "topic created",
            Change::Delete => "topic deleted",
            Change::Alter(_) => "topic altered",
        }
    }
}

impl Metadata {
    /// Creates clients that draw from a seed. The first topic that they create is `first`.
    pub(crate) fn new(seed: u64, nodes: usize, first: &str) -> Metadata {
        let client = |number| Client { number, topics: BTreeMap::new(), last_topic: 0, asked: None };
        let mut clients: Vec<_> = (0..CLIENTS).map(client).collect();
        clients[0].topics.insert(first.to_owned(), Expected::default());
        Metadata {
            random: Random::new(seed),
            clients,
            is_stopped: false,
            digests: BTreeMap::new(),
            looked: vec![Looked::default(); nodes],
            deciders: BTreeMap::new(),
            newest: (0, BTreeSet::new()),
            done: Done::default(),
        }
    }

    /// Stops the clients: they send no more requests.
    pub(crate) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Lets clients send requests, or learn the outcomes of theirs.
    pub(crate) fn turn(&mut self, world: &World) {
        self.look(world);
        for client in &mut self.clients {
            match client.asked.take() {
                Some(asked) => client.wait(world, asked, &mut self.done),
                None if !self.is_stopped && self.random.below(ASK_TURNS) == 0 => {
                    client.ask(world, &mut self.random)
                }
                None => {}
            }
        }
    }

    /// Looks at the metadata of all nodes.
    ///
    /// # Panics
    /// If the metadata of two nodes differ at an offset, or two nodes decide in one epoch.
    fn look(&mut self, world: &World) {
        for (number, node) in world.nodes.iter().enumerate() {
            let (Some(start), Some(controller)) = (node.started(), node.controller()) else { continue };
            if let Some(epoch) = controller.decides_in() {
                self.note_decider(epoch, number);
            }
            let (image, (.., snapshots_loaded)) = (controller.image(), controller.snapshot_counts.get());
            let looked = Looked { start, next_offset: image.next_offset(), snapshots_loaded };
            let before = std::mem::replace(&mut self.looked[number], looked);
            if before == looked {
                continue;
            }
            let loaded_before = if before.start == start { before.snapshots_loaded } else { 0 };
            self.done.add_many("snapshot loaded", (snapshots_loaded - loaded_before) as usize);
            controller.check();
            self.note_image(&image, node.id());
        }
    }

    fn note_decider(&mut self, epoch: i32, node: usize) {
        match self.deciders.insert(epoch, node) {
            None => self.done.add("metadata leader elected"),
            Some(known) => assert_eq!(known, node, "two nodes decide in epoch {epoch}"),
        }
    }

    fn note_image(&mut self, image: &MetadataImage, node: ReplicaId) {
        let digest = digest(image);
        let known = *self.digests.entry(image.next_offset()).or_insert(digest);
        assert_eq!(digest, known, "{node}: other metadata at {}", image.next_offset());
        if image.next_offset() > self.newest.0 {
            let fenced: BTreeSet<_> =
                image.brokers().filter(|broker| broker.fenced).map(|broker| broker.id).collect();
            self.done.add_many("node fenced", fenced.difference(&self.newest.1).count());
            self.done.add_many("node takes part again", self.newest.1.difference(&fenced).count());
            self.newest = (image.next_offset(), fenced);
        }
    }

    /// Returns true if all nodes have the same metadata, serve the partitions in it, and count as live.
    pub(crate) fn agree(&self, world: &World) -> bool {
        let Some((first, _)) = world.nodes[0].in_service() else { return false };
        let image = first.controller.image();
        let agrees = |node: &crate::node::Node| {
            let Some((node, _)) = node.in_service() else { return false };
            let served: Vec<_> = node.local.store.topics.all();
            let is_live = image.broker(node.local.id).is_some_and(|broker| !broker.fenced);
            node.controller.image().next_offset() == image.next_offset()
                && is_live
                && served.len() == image.topics().count()
                && served.iter().all(|topic| is_as_in(&image, node.local.id, topic))
        };
        self.clients.iter().all(|client| client.asked.is_none()) && world.nodes.iter().all(agrees)
    }

    /// Judges the metadata of a world whose nodes agree.
    ///
    /// # Panics
    /// If an acknowledged change is missing.
    pub(crate) fn judge(&self, world: &World) {
        let (node, _) = world.nodes[0].in_service().expect("it agrees, so it serves");
        let image = node.controller.image();
        for (name, expected) in self.clients.iter().flat_map(|client| &client.topics) {
            let is_there = image.topic(name).is_some();
            assert!(
                is_there || !expected.is_created || expected.may_be_deleted,
                "topic {name} was created and is gone: {expected:?}"
            );
            assert!(!is_there || !expected.is_deleted, "topic {name} was deleted and is there: {expected:?}");
            let value = value_of(&image, name);
            let values = expected.acknowledged..=expected.asked;
            assert!(!is_there || values.contains(&value), "topic {name} has {value}: {expected:?}");
        }
    }
}

impl Client {
    fn wait(&mut self, world: &World, asked: Asked, done: &mut Done) {
        let outcome = *asked.outcome.lock();
        match outcome {
            None if world.now_ms < asked.until_ms => self.asked = Some(asked),
            Some(ErrorCode::NONE) => {
                let expected = self.expected(&asked.topic);
                match asked.change {
                    Change::Create => expected.is_created = true,
                    Change::Delete => expected.is_deleted = true,
                    Change::Alter(value) => expected.acknowledged = value,
                }
                done.add(asked.change.name());
            }
            // The change may be carried out now or later.
            Some(_) | None => self.expected(&asked.topic).has_unanswered |= asked.change == Change::Create,
        }
    }

    fn ask(&mut self, world: &World, random: &mut Random) {
        let (topic, change) = self.draw(random);
        let Some((node, group)) = draw_node(world, change, random) else { return };
        self.note_asked(&topic, change);
        let outcome = Outcome::default();
        let (own, name, answer) = (node.clone(), topic.clone(), outcome.clone());
        let run = move || *answer.lock() = Some(make(&own, &name, change));
        group.spawn("client-of-metadata", run).expect("a thread");
        let until_ms = world.now_ms + ANSWER_MAX_MS;
        self.asked = Some(Asked { change, topic, until_ms, outcome });
    }

    /// Draws a change.
    fn draw(&mut self, random: &mut Random) -> (String, Change) {
        let mut open = self.topics.iter().filter(|(_, expected)| !expected.is_created);
        if let Some((name, _)) = open.next() {
            return (name.clone(), Change::Create);
        }
        let there = self.topics.iter().filter(|(_, expected)| !expected.may_be_deleted);
        let there: Vec<_> = there.collect();
        let new = (format!("m{}-{}", self.number, self.last_topic + 1), Change::Create);
        let Some((name, expected)) = there.get(random.below(there.len().max(1) as u64) as usize) else {
            return new;
        };
        match random.below(3) {
            0 if there.len() < TOPICS_MAX => new,
            // The first topic is the one for records, which stays.
            1 if name.starts_with('m') && !expected.has_unanswered => ((*name).clone(), Change::Delete),
            _ => ((*name).clone(), Change::Alter(expected.asked + 1)),
        }
    }

    fn note_asked(&mut self, topic: &str, change: Change) {
        match change {
            Change::Create => {
                if !self.topics.contains_key(topic) {
                    self.topics.insert(topic.to_owned(), Expected::default());
                    self.last_topic += 1;
                }
            }
            Change::Delete => self.expected(topic).may_be_deleted = true,
            Change::Alter(value) => self.expected(topic).asked = value,
        }
    }

    fn expected(&mut self, name: &str) -> &mut Expected {
        self.topics.get_mut(name).expect("a topic that was asked for")
    }
}

/// Draws a node for a change: any node creates topics, only the metadata leader makes the other changes.
fn draw_node<'w>(
    world: &'w World,
    change: Change,
    random: &mut Random,
) -> Option<(&'w Arc<BrokerNode>, &'w Group)> {
    let serving = world.nodes.iter().filter_map(|node| node.in_service());
    let takes =
        |(node, _): &(&Arc<BrokerNode>, &Group)| change == Change::Create || node.controller.decides();
    let nodes: Vec<_> = serving.filter(takes).collect();
    nodes.get(random.below(nodes.len().max(1) as u64) as usize).copied()
}

/// Returns true if a node serves a topic with the settings of the metadata, and these name it as the leader of what it leads.
fn is_as_in(image: &MetadataImage, node: i32, topic: &Topic) -> bool {
    let Some(known) = image.topic_by_id(topic.id) else { return false };
    let number = value_of(image, &topic.name);
    let has_settings =
        |partition: &Partition| number == 0 || partition.settings().log.segment_ms == FIRST_VALUE + number;
    topic.partitions.iter().zip(&known.partitions).all(|(partition, known)| {
        let led = partition.leadership();
        let is_noted = (known.leader, known.leader_epoch) == (node, led.epoch.get());
        has_settings(partition) && (is_noted || !led.is_leader)
    })
}

/// The number of the last value of a topic's setting.
fn value_of(image: &MetadataImage, topic: &str) -> i64 {
    let configs = image.configs(&ConfigResource::new(ResourceKind::Topic, topic));
    let value = configs.get(SETTING).and_then(|text| text.parse::<i64>().ok());
    value.map_or(0, |value| value - FIRST_VALUE)
}

fn digest(image: &MetadataImage) -> u64 {
    let mut hasher = DefaultHasher::new();
    image.snapshot().for_each(|value| value.hash(&mut hasher));
    hasher.finish()
}

/// Makes a change at a node, as its APIs do.
fn make(node: &BrokerNode, topic: &str, change: Change) -> ErrorCode {
    let cluster = node.cluster.as_ref().expect("it has other nodes");
    match change {
        Change::Create => {
            let created = cluster.create_missing_topics(&[topic], None);
            match created.first().map(|result| ErrorCode(result.error_code)) {
                // An unanswered request has created it.
                Some(ErrorCode::TOPIC_ALREADY_EXISTS) => ErrorCode::NONE,
                code => code.unwrap_or(ErrorCode::UNKNOWN_SERVER_ERROR),
            }
        }
        Change::Delete => {
            let state = DeleteTopicState { name: Some(topic.into()), ..DeleteTopicState::default() };
            let request = DeleteTopicsRequest { topics: vec![state], ..DeleteTopicsRequest::default() };
            let deleted = node.controller.delete_topics(&request, DELETE_VERSION, &mut |_| true);
            deleted.map_or_else(|error| error, |results| ErrorCode(results[0].error_code))
        }
        Change::Alter(number) => {
            let value = (FIRST_VALUE + number).to_string();
            let config =
                AlterableConfig { name: SETTING.into(), value: Some(value.into()), ..Default::default() };
            let resource = AlterConfigsResource {
                resource_type: 2,
                resource_name: topic.into(),
                configs: vec![config],
                ..AlterConfigsResource::default()
            };
            let request = IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
            let altered = node.controller.alter_configs(&request);
            altered.map_or_else(|error| error, |results| ErrorCode(results[0].error_code))
        }
    }
}
