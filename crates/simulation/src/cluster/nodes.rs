//! Coordinators of the nodes, and the markers that nodes write for the coordinators of others.

use super::calls::{Answer, MarkerCall, Parcel, Request};
use super::coordinators::Coordinators;
use super::{Cluster, Defect, TOPIC, TOPIC_ID, members, partition_of};
use mainstem_coordination::groups::{
    self, ConsumerGroupConfig, GroupConfig, GroupCoordinator, GroupTimes, Reply, Token,
};
use mainstem_coordination::transactions::{
    MarkerOutcome, Markers, TransactionConfig, TransactionCoordinator,
};
use mainstem_coordinators::transactions::Work;
use mainstem_log::TransactionMarker;
use mainstem_records::CoordinatorEpoch;
use mainstem_wire::{ErrorCode, Uuid};

/// Session timeout of a member; clients rely on it ([`super::members`]).
pub(crate) const SESSION_TIMEOUT_MS: i32 = 1_500;
/// `heartbeat.interval.ms` of members.
pub(crate) const HEARTBEAT_INTERVAL_MS: i32 = 200;
/// `group.initial.rebalance.delay.ms`: the time that an empty classic group waits for more members.
const INITIAL_REBALANCE_DELAY_MS: i32 = 100;
/// Interval of the coordinator's check for transactions that have timed out, in ms.
const LOOK_FOR_TIMED_OUT_MS: u64 = 500;
/// Longest delay of a marker that a defect repeats, in ms.
const REPEATED_AFTER_MS: u64 = 1_500;

/// Coordinators of one node.
#[derive(Default)]
struct NodeCoordinators {
    /// Number of the node's start to which they belong; `None`: the node is down.
    start: Option<u64>,
    running: Option<Coordinators>,
}

/// Coordinators of all nodes.
pub(crate) struct Nodes {
    nodes: Vec<NodeCoordinators>,
    defect: Option<Defect>,
    /// Markers that a defect writes again, and when.
    repeated: Vec<(u64, MarkerCall)>,
    /// The newest generation of the classic group in an answer, and the member that got it.
    newest: Option<(i32, String)>,
}

fn group_coordinator() -> GroupCoordinator {
    let times = GroupTimes {
        session_timeout_ms: SESSION_TIMEOUT_MS,
        heartbeat_interval_ms: HEARTBEAT_INTERVAL_MS,
        assignment_interval_ms: 0,
    };
    let consumer = ConsumerGroupConfig { times, ..ConsumerGroupConfig::default() };
    let config = GroupConfig {
        offsets_topic_num_partitions: 1,
        group_min_session_timeout_ms: SESSION_TIMEOUT_MS,
        group_initial_rebalance_delay_ms: INITIAL_REBALANCE_DELAY_MS,
        consumer,
        ..GroupConfig::default()
    };
    let mut coordinator = GroupCoordinator::new(config);
    coordinator.topic_changed(TOPIC, Uuid(TOPIC_ID), super::DATA_PARTITIONS as i32);
    coordinator
}

fn transaction_coordinator() -> TransactionCoordinator {
    TransactionCoordinator::new(TransactionConfig {
        transaction_state_log_num_partitions: 1,
        offsets_topic_num_partitions: 1,
        abort_timed_out_interval_ms: LOOK_FOR_TIMED_OUT_MS,
        ..TransactionConfig::default()
    })
}

impl Nodes {
    pub(crate) fn new(nodes: usize, defect: Option<Defect>) -> Nodes {
        let nodes = (0..nodes).map(|_| NodeCoordinators::default()).collect();
        Nodes { nodes, defect, repeated: Vec::new(), newest: None }
    }

    fn note_generation(&mut self, answer: &Answer) {
        if let Answer::Groups(Reply::JoinGroup(response)) = answer
            && response.error_code == 0
        {
            self.newest = Some((response.generation_id, response.member_id.to_string()));
        }
    }

    /// A defect: each member that commits in the classic group does so as a member of its newest generation.
    fn commit_as_newest(&self, request: &mut groups::Request<'static>) {
        if let groups::Request::OffsetCommit(commit) = request
            && let Some((generation, member)) = &self.newest
            && members::is_classic(&commit.group_id)
        {
            commit.generation_id_or_member_epoch = *generation;
            (commit.member_id, commit.group_instance_id) = (member.clone().into(), None);
        }
    }
}

impl Cluster {
    /// Delivers the messages that have arrived, and lets each node do its due work.
    pub(crate) fn turn_nodes(&mut self) {
        for node in 0..self.nodes.nodes.len() {
            self.replace_restarted(node);
        }
        while let Some(parcel) = self.calls.arrived(self.world.now_ms) {
            self.deliver(parcel);
        }
        for node in 0..self.nodes.nodes.len() {
            self.turn_node(node);
        }
        self.repeat_markers();
    }

    fn turn_node(&mut self, node: usize) {
        let Some(running) = &mut self.nodes.nodes[node].running else { return };
        for (token, answer) in running.turn(self.world.now_ms, &mut self.world.random) {
            self.calls.send(self.world.transit(), Parcel::Answer { token, answer });
        }
        self.done.add_many("coordinator loaded", running.take_loaded());
        for (call, outcome) in running.take_marked() {
            self.calls.send(self.world.transit(), Parcel::Marked { by: node, call, outcome });
        }
        self.do_work(node);
    }

    /// Replaces the coordinators of nodes that were started again. Connections end when a node stops.
    fn replace_restarted(&mut self, node: usize) {
        let start = self.world.nodes[node].started();
        let own = &mut self.nodes.nodes[node];
        if own.start == start {
            return;
        }
        let new = self.world.nodes[node].clock_and_topics().map(|(clock, topics)| {
            Coordinators::new((group_coordinator(), transaction_coordinator()), clock, topics)
        });
        let before = std::mem::replace(own, NodeCoordinators { start, running: new });
        let Some(before) = before.running else { return };
        let (clients, markers) = before.into_waiting();
        for token in clients {
            self.calls.send(self.world.transit(), Parcel::Answer { token, answer: Answer::Gone });
        }
        for call in markers {
            let outcome = MarkerOutcome::Failed(ErrorCode::NOT_LEADER_OR_FOLLOWER);
            self.calls.send(self.world.transit(), Parcel::Marked { by: node, call, outcome });
        }
    }

    fn deliver(&mut self, parcel: Parcel) {
        match parcel {
            Parcel::Ask { node, token, request } => self.take_request(node, token, request),
            Parcel::Answer { token, answer } => {
                self.nodes.note_generation(&answer);
                self.calls.keep(token, answer);
            }
            Parcel::Marker { to, call } => self.take_marker(to, call),
            Parcel::Marked { by, call, outcome } => self.take_outcome(by, call, outcome),
            Parcel::ProducerId { node: (node, start), ticket, id } => {
                if self.nodes.nodes[node].start == Some(start)
                    && let Some(running) = &self.nodes.nodes[node].running
                {
                    running.transactions.driver.give_producer_id(ticket, Ok(id));
                }
            }
        }
    }

    fn take_request(&mut self, node: usize, token: Token, mut request: Request) {
        if self.nodes.nodes[node].running.is_none() {
            return self.calls.keep(token, Answer::Gone);
        }
        if let Request::Groups { request, .. } = &mut request {
            self.draw_member_id(request);
            if self.nodes.defect == Some(Defect::CommitsForAnyGeneration) {
                self.nodes.commit_as_newest(request);
            }
        }
        let Some(running) = &mut self.nodes.nodes[node].running else { return };
        match request {
            Request::Groups { request, version, guard } => {
                running.ask_groups(token, (request, version), guard);
            }
            Request::Transactions { request, version } => {
                running.ask_transactions(token, (request, version));
            }
        }
    }

    /// Draws the random tail of the member id that a JoinGroup may get.
    fn draw_member_id(&mut self, request: &mut groups::Request<'static>) {
        if let groups::Request::JoinGroup { random, .. } = request {
            let mut draw = || self.world.random.next_u64().to_be_bytes();
            *random = [draw(), draw()].concat().try_into().expect("16 bytes");
        }
    }

    /// Does the work of coordinators besides appends and replies.
    fn do_work(&mut self, node: usize) {
        let NodeCoordinators { start: Some(start), running: Some(running) } = &self.nodes.nodes[node] else {
            return;
        };
        let start = *start;
        for work in running.take_work() {
            match work {
                Work::ProducerId(ticket) => {
                    let id = self.calls.new_producer_id();
                    let parcel = Parcel::ProducerId { node: (node, start), ticket, id };
                    self.calls.send(self.world.transit(), parcel);
                }
                Work::Markers(markers) => self.send_markers((node, start), &markers),
            }
        }
    }

    /// Sends each marker to the node that leads its partition.
    fn send_markers(&mut self, from: (usize, u64), markers: &Markers) {
        let marker = TransactionMarker {
            producer_id: markers.producer_id,
            producer_epoch: markers.producer_epoch,
            coordinator_epoch: markers.coordinator_epoch,
            committed: markers.committed,
            transaction_version: markers.transaction_version.into(),
        };
        for topic in &markers.topics {
            for index in topic.partitions.iter().copied() {
                let ticket = markers.ticket;
                let call = MarkerCall { from, ticket, marker, topic: topic.name.to_string(), index };
                let to = self.world.leader(partition_of(&call.topic, index)).unwrap_or(from.0);
                self.calls.send(self.world.transit(), Parcel::Marker { to, call });
            }
        }
    }

    fn take_marker(&mut self, to: usize, call: MarkerCall) {
        let is_cut = to != call.from.0 && self.world.cut.contains(&(call.from.0, to));
        if is_cut || self.nodes.nodes[to].running.is_none() {
            // The link has ended.
            let outcome = MarkerOutcome::Failed(ErrorCode::NOT_LEADER_OR_FOLLOWER);
            return self.calls.send(self.world.transit(), Parcel::Marked { by: call.from.0, call, outcome });
        }
        if self.nodes.defect == Some(Defect::RepeatsMarkers) && call.topic == TOPIC {
            let again_ms = self.world.now_ms + 100 + self.world.random.below(REPEATED_AFTER_MS);
            self.nodes.repeated.push((again_ms, call.clone()));
        }
        self.done.add("marker written");
        self.nodes.nodes[to].running.iter_mut().for_each(|running| running.write_marker(call.clone()));
    }

    fn take_outcome(&mut self, by: usize, call: MarkerCall, outcome: MarkerOutcome) {
        let MarkerCall { from: (node, start), ticket, topic, index, .. } = call;
        if self.nodes.nodes[node].start != Some(start) {
            return;
        }
        let is_cut = by != node && self.world.cut.contains(&(by, node));
        let unknown = MarkerOutcome::Failed(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        let outcome = if is_cut { unknown } else { outcome };
        let Some(running) = &self.nodes.nodes[node].running else { return };
        running
            .transactions
            .driver
            .change(|machine, now| machine.marked(now, ticket, &topic, index, outcome));
    }

    /// A defect: a marker that was written is written again, as if it were the last coordinator's for the newest epoch.
    fn repeat_markers(&mut self) {
        let now_ms = self.world.now_ms;
        let due: Vec<_> = self.nodes.repeated.extract_if(.., |(at_ms, _)| *at_ms <= now_ms).collect();
        for (_, mut call) in due {
            let partition = partition_of(&call.topic, call.index);
            let Some(leader) = self.world.leader(partition) else { continue };
            let known = self.world.nodes[leader].with_log(partition, |log| {
                log.producer_state()
                    .get(call.marker.producer_id)
                    .map(|known| (known.epoch, known.coordinator_epoch))
            });
            let Some((epoch, coordinator_epoch)) = known.flatten() else { continue };
            (call.marker.producer_epoch, call.marker.transaction_version) = (epoch, 0);
            call.marker.coordinator_epoch = coordinator_epoch.max(CoordinatorEpoch::ZERO);
            _ = self.world.nodes[leader].append_marker(partition, &call.marker);
        }
    }
}
