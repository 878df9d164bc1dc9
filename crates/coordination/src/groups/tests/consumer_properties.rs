//! Properties of consumer groups in every history: members come, go, crash and lose answers, topics change, appends fail, coordinators die.
//! No member reads what another may read, the log says what the coordinator knows, and when all is well again every partition has its
//! reader.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use mainstem_wire::messages::consumer_group_heartbeat_request::{
    ConsumerGroupHeartbeatRequest, TopicPartitions,
};
use mainstem_wire::messages::consumer_group_heartbeat_response::ConsumerGroupHeartbeatResponse;
use mainstem_wire::{ErrorCode, Uuid};
use proptest::collection::vec;
use proptest::prelude::*;

use super::cluster::{Cluster, PARTITION, replies};
use super::consumer::immediate_targets;
use crate::groups::consumer::group::{ConsumerGroup, State};
use crate::groups::group::Protocol;
use crate::groups::{
    ConsumerGroupConfig, CoordinatorRecord, GroupConfig, GroupCoordinator, Reply, Request, Token, fuzz,
};

/// One step; members are chosen by their index.
#[derive(Debug, Clone)]
enum Op {
    Join { member: usize, topics: u8, regex: bool, is_static: bool },
    Beat { member: usize, full: bool, loses_answer: bool },
    Subscribe { member: usize, topics: u8 },
    Leave { member: usize, for_good: bool },
    Crash { member: usize },
    Topic { topic: usize, partitions: i32 },
    Finish,
    Fail,
    Wait { ms: u64 },
    Reload,
}

const MEMBERS: usize = 4;
const TOPICS: [&str; 3] = ["t", "u", "v"];

fn op() -> impl Strategy<Value = Op> {
    let member = 0..MEMBERS;
    prop_oneof![
        6 => (member.clone(), 1..8_u8, proptest::bool::weighted(0.2), proptest::bool::weighted(0.3))
            .prop_map(|(member, topics, regex, is_static)| Op::Join { member, topics, regex, is_static }),
        24 => (member.clone(), proptest::bool::weighted(0.2), proptest::bool::weighted(0.1))
            .prop_map(|(member, full, loses_answer)| Op::Beat { member, full, loses_answer }),
        2 => (member.clone(), 0..8_u8).prop_map(|(member, topics)| Op::Subscribe { member, topics }),
        2 => (member.clone(), any::<bool>()).prop_map(|(member, for_good)| Op::Leave { member, for_good }),
        1 => member.prop_map(|member| Op::Crash { member }),
        3 => (0..TOPICS.len(), 0..6_i32).prop_map(|(topic, partitions)| Op::Topic { topic, partitions }),
        12 => Just(Op::Finish),
        1 => Just(Op::Fail),
        4 => prop_oneof![1..2_000_u64, Just(12_000), Just(46_000)].prop_map(|ms| Op::Wait { ms }),
        1 => Just(Op::Reload),
    ]
}

/// The state of a client.
#[derive(Debug, Clone, Default)]
struct Client {
    /// Empty while it is in no group.
    id: String,
    instance: Option<String>,
    epoch: i32,
    topics: Vec<String>,
    regex: Option<String>,
    /// The partitions that it reads.
    reads: BTreeSet<(Uuid, i32)>,
    /// The assignment of the last answer; the rest is revoked with the next heartbeat.
    assigned: Option<BTreeSet<(Uuid, i32)>>,
    /// An answer was lost, or was an error: the client sends everything again.
    unsure: bool,
}

struct World {
    cluster: Cluster,
    clients: Vec<Client>,
    asked: HashMap<Token, usize>,
    incarnations: usize,
    /// Requests that were lost with a coordinator.
    lost: usize,
}

impl World {
    fn new(config: GroupConfig) -> Self {
        Self {
            cluster: Cluster::new(config),
            clients: vec![Client::default(); MEMBERS],
            asked: HashMap::new(),
            incarnations: 0,
            lost: 0,
        }
    }

    fn play(&mut self, op: &Op) {
        match *op {
            Op::Join { member, topics, regex, is_static } => self.join(member, topics, regex, is_static),
            Op::Beat { member, full, loses_answer } => self.beat(member, full, loses_answer),
            Op::Subscribe { member, topics } => {
                self.clients[member].topics = names(topics);
                self.beat(member, true, false);
            }
            Op::Leave { member, for_good } => self.leave(member, for_good),
            Op::Crash { member } => self.clients[member] = Client::default(),
            Op::Topic { topic, partitions } => self.topic(TOPICS[topic], partitions),
            Op::Finish => self.finish(),
            Op::Fail => {
                let last = self.cluster.unfinished().last();
                if let Some(ticket) = last {
                    self.cluster.finish(ticket, Err(ErrorCode::NOT_ENOUGH_REPLICAS));
                }
            }
            Op::Wait { ms } => {
                self.cluster.advance(ms);
                self.cluster.coordinator.tick(self.cluster.now);
            }
            Op::Reload => {
                self.lose_answers();
                self.cluster.reload();
                self.lost = self.cluster.unanswered();
            }
        }
        self.settle();
    }

    /// All requests that wait lose their answers.
    fn lose_answers(&mut self) {
        for (_, member) in self.asked.drain() {
            self.clients[member].unsure = true;
        }
    }

    fn finish(&mut self) {
        let first = self.cluster.unfinished().next();
        if let Some(ticket) = first {
            self.cluster.finish(ticket, Ok(()));
        }
    }

    /// Changes a topic: partitions are only added, and none at all deletes it.
    fn topic(&mut self, name: &str, partitions: i32) {
        let known = self.cluster.topics.get(name).map_or(0, |(_, known)| *known);
        if partitions == 0 || partitions > known {
            self.cluster.set_topic(name, partitions);
        }
    }

    fn join(&mut self, member: usize, topics: u8, regex: bool, is_static: bool) {
        self.incarnations += 1;
        self.clients[member] = Client {
            id: format!("m{}", self.incarnations),
            instance: is_static.then(|| format!("i{member}")),
            topics: if regex { Vec::new() } else { names(topics) },
            regex: regex.then(|| ["t|u", ".*", "v"][usize::from(topics) % 3].to_owned()),
            ..Client::default()
        };
        self.beat(member, true, false);
    }

    fn beat(&mut self, member: usize, full: bool, loses_answer: bool) {
        let client = &mut self.clients[member];
        if client.id.is_empty() || client.epoch < 0 || self.asked.values().any(|asked| *asked == member) {
            return;
        }
        if let Some(assigned) = client.assigned.take() {
            client.reads = assigned;
        }
        let full = full || client.epoch == 0 || std::mem::take(&mut client.unsure);
        let request = request(client, full);
        let token = self.send(request);
        if loses_answer {
            self.clients[member].unsure = true;
        } else {
            self.asked.insert(token, member);
        }
    }

    fn leave(&mut self, member: usize, for_good: bool) {
        let client = self.clients[member].clone();
        self.clients[member] = Client::default();
        if client.id.is_empty() || (!for_good && client.instance.is_none()) {
            return;
        }
        let epoch = if for_good { -1 } else { -2 };
        let request = ConsumerGroupHeartbeatRequest {
            group_id: "g".into(),
            member_id: client.id.into(),
            instance_id: client.instance.map(Into::into),
            member_epoch: epoch,
            ..Default::default()
        };
        self.send(request);
    }

    fn send(&mut self, request: ConsumerGroupHeartbeatRequest<'static>) -> Token {
        let patterns = self.cluster.matched(&request);
        self.cluster.send(1, "c", Request::ConsumerGroupHeartbeat { request, random: [0; 16], patterns })
    }

    /// Takes answers, and checks what must hold at every moment.
    fn settle(&mut self) {
        let effects = self.cluster.effects();
        for (token, reply) in replies(&effects) {
            let Reply::ConsumerGroupHeartbeat(response) = reply else { panic!("{reply:?}") };
            if let Some(member) = self.asked.remove(&token) {
                self.take_answer(member, response);
            }
        }
        self.check();
    }

    fn take_answer(&mut self, member: usize, response: &ConsumerGroupHeartbeatResponse<'_>) {
        let client = &mut self.clients[member];
        // The client may have joined again since.
        if response.error_code == 0 && response.member_id.as_deref() != Some(&*client.id) {
            return;
        }
        match ErrorCode(response.error_code) {
            ErrorCode::NONE => {
                client.epoch = response.member_epoch;
                if let Some(assignment) = &response.assignment {
                    let topics = assignment.topic_partitions.iter();
                    let all = topics
                        .flat_map(|topic| topic.partitions.iter().map(|index| (topic.topic_id, *index)));
                    let assigned: BTreeSet<_> = all.collect();
                    // It stops reading with the answer, and reports that with the next heartbeat.
                    client.reads.retain(|at| assigned.contains(at));
                    client.assigned = Some(assigned);
                }
            }
            ErrorCode::NOT_ENOUGH_REPLICAS | ErrorCode::COORDINATOR_NOT_AVAILABLE => client.unsure = true,
            _ => *client = Client::default(),
        }
    }

    fn group(&self) -> Option<&ConsumerGroup> {
        match &self.cluster.coordinator.groups(PARTITION).get("g")?.protocol {
            Protocol::Consumer(group) => Some(group),
            Protocol::Classic(_) => None,
        }
    }

    fn check(&self) {
        self.cluster.coordinator.check();
        let Some(group) = self.group() else { return };
        let mut readers: BTreeMap<(Uuid, i32), &str> = BTreeMap::new();
        for client in &self.clients {
            let Some(member) = group.member(&client.id) else { continue };
            for at in &client.reads {
                assert!(
                    member.current.held().any(|held| held == at),
                    "{} reads {at:?} without having it: {:?}",
                    client.id,
                    member.current
                );
                let other = readers.insert(*at, &client.id);
                assert_eq!(other, None, "{} reads {at:?} too", client.id);
            }
        }
        if self.cluster.pending.is_empty() {
            let rebuilt = self.cluster.rebuilt();
            assert_eq!(image(&self.cluster.coordinator), image(&rebuilt));
        }
    }

    /// Without faults, all members send heartbeats until nothing changes.
    fn converge(&mut self) {
        for _ in 0..12 {
            while self.cluster.unfinished().next().is_some() {
                self.finish();
                self.settle();
            }
            self.lose_answers();
            // Members whose clients are gone time out; new topics are matched.
            self.cluster.advance(11_000);
            self.cluster.coordinator.tick(self.cluster.now);
            self.settle();
            for member in 0..MEMBERS {
                self.beat(member, false, false);
                self.settle();
            }
        }
        while self.cluster.unfinished().next().is_some() {
            self.finish();
            self.settle();
        }
        assert_eq!(self.cluster.unanswered(), self.lost);
        self.check_converged();
    }

    fn check_converged(&self) {
        let Some(group) = self.group() else { return };
        let there = self.clients.iter().filter(|client| group.member(&client.id).is_some()).count();
        assert_eq!(group.members().len(), there, "no other member is there");
        if there == 0 {
            assert_eq!(group.state(), State::Empty);
            return;
        }
        assert_eq!(group.state(), State::Stable, "{group:?}");
        let mut read = BTreeSet::new();
        for client in self.clients.iter().filter(|client| group.member(&client.id).is_some()) {
            let reads = client.assigned.as_ref().unwrap_or(&client.reads);
            let target: BTreeSet<_> =
                group.target(&client.id).into_iter().flat_map(|target| target.iter()).copied().collect();
            assert_eq!(*reads, target, "{} has its target", client.id);
            read.extend(reads.iter().copied());
        }
        let subscribed = group.counts().topics.keys().filter_map(|name| self.cluster.topics.get(&**name));
        let all: BTreeSet<_> =
            subscribed.flat_map(|(id, count)| (0..*count).map(move |index| (*id, index))).collect();
        assert_eq!(read, all, "every partition has its reader");
    }
}

fn names(topics: u8) -> Vec<String> {
    let chosen = TOPICS.iter().enumerate().filter(|(at, _)| topics & (1 << at) != 0);
    chosen.map(|(_, name)| (*name).to_owned()).collect()
}

fn request(client: &Client, full: bool) -> ConsumerGroupHeartbeatRequest<'static> {
    let mut by_topic: BTreeMap<Uuid, Vec<i32>> = BTreeMap::new();
    for (topic, index) in &client.reads {
        by_topic.entry(*topic).or_default().push(*index);
    }
    let topics = by_topic.into_iter().map(|(topic_id, partitions)| TopicPartitions {
        topic_id,
        partitions,
        ..Default::default()
    });
    ConsumerGroupHeartbeatRequest {
        group_id: "g".into(),
        member_id: client.id.clone().into(),
        member_epoch: client.epoch,
        instance_id: client.instance.clone().map(Into::into),
        rebalance_timeout_ms: if full { 20_000 } else { -1 },
        subscribed_topic_names: full.then(|| client.topics.iter().map(|name| name.clone().into()).collect()),
        subscribed_topic_regex: client.regex.clone().filter(|_| full).map(Into::into),
        topic_partitions: Some(topics.collect()),
        ..Default::default()
    }
}

/// All records of a coordinator's groups, as it would write them now.
fn image(coordinator: &GroupCoordinator) -> Vec<CoordinatorRecord> {
    let groups = coordinator.groups(PARTITION).values();
    let consumers = groups.filter_map(|group| match &group.protocol {
        Protocol::Consumer(group) => Some(group),
        Protocol::Classic(_) => None,
    });
    let records = consumers.flat_map(|group| {
        group.tombstones().into_iter().map(|of| group.statement(&of).record(&group.id)).collect::<Vec<_>>()
    });
    records.collect()
}

fn run(config: GroupConfig, ops: &[Op]) {
    let mut world = World::new(config);
    world.topic("t", 3);
    for op in ops {
        world.play(op);
    }
    world.converge();
}

#[test]
fn the_corpus_of_requests_can_be_served() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/consumer_groups");
    let files = std::fs::read_dir(dir).expect("the corpus").map(|entry| entry.expect("a file").path());
    let inputs: Vec<Vec<u8>> = files.map(|path| std::fs::read(path).expect("a file")).collect();
    assert!(!inputs.is_empty());
    inputs.iter().for_each(|data| fuzz::consumer_groups(data));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: mainstem_testkit::cases(192), ..ProptestConfig::default() })]

    #[test]
    fn no_member_reads_what_another_may_and_everything_is_read_in_the_end(ops in vec(op(), 1..120)) {
        run(immediate_targets(), &ops);
    }

    #[test]
    fn any_requests_can_be_served(data in vec(any::<u8>(), 0..360)) {
        fuzz::consumer_groups(&data);
    }

    #[test]
    fn the_same_with_targets_at_intervals(ops in vec(op(), 1..80)) {
        run(GroupConfig { consumer: ConsumerGroupConfig::default(), ..immediate_targets() }, &ops);
    }
}
