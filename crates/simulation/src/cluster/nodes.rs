//! What nodes have beside their replicas: the coordinators, and the markers that they write for others.

use super::calls::{Answer, MarkerCall, Parcel, Request};
use super::driver::{Context, Driver, Work};
use super::{Cluster, Defect, OFFSETS, OFFSETS_TOPIC, TOPIC, TOPIC_ID, TRANSACTIONS, members, partition_of};
use crate::node::{Accepted, Fate};
use mainstem_coordination::groups::{
    self, ConsumerGroupConfig, GroupConfig, GroupCoordinator, GroupTimes, Reply, Token,
};
use mainstem_coordination::transactions::{
    self, MarkerOutcome, Markers, TransactionConfig, TransactionCoordinator,
};
use mainstem_log::sim::Random;
use mainstem_log::{TransactionMarker, VerificationGuard};
use mainstem_records::{CoordinatorEpoch, ProducerId};
use mainstem_wire::{ErrorCode, Uuid};

/// Of a member that says nothing; clients rely on it ([`super::members`]).
pub(crate) const SESSION_TIMEOUT_MS: i32 = 1_500;
/// How often members are to be heard.
pub(crate) const HEARTBEAT_INTERVAL_MS: i32 = 200;
/// A classic group that was empty waits so long for more members.
const INITIAL_REBALANCE_DELAY_MS: i32 = 100;
/// How often the coordinator looks for transactions that have timed out.
const LOOK_FOR_TIMED_OUT_MS: u64 = 500;
/// Wall clocks differ by less, where none has jumped.
const SKEW_MS: u64 = 2_000;
/// A marker that is written again comes so much later at most.
const REPEATED_AFTER_MS: u64 = 1_500;

/// A marker in a partition of data whose fate is not known.
struct MarkerWait {
    fate: Fate,
    call: MarkerCall,
}

/// What one node coordinates.
struct NodeCoordinators {
    /// The start of the node that has these; `None`: it is down.
    start: Option<u64>,
    groups: Driver<GroupCoordinator>,
    transactions: Driver<TransactionCoordinator>,
    markers: Vec<MarkerWait>,
    work: Vec<Work>,
    skew_ms: i64,
}

/// What all nodes coordinate.
pub(crate) struct Nodes {
    nodes: Vec<NodeCoordinators>,
    defect: Option<Defect>,
    /// Markers that a defect writes again, and when.
    repeated: Vec<(u64, MarkerCall)>,
    /// The newest generation of the classic group that a member was told, and that member.
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

impl NodeCoordinators {
    fn new(start: Option<u64>, skew_ms: i64) -> NodeCoordinators {
        NodeCoordinators {
            start,
            groups: Driver::new(group_coordinator(), OFFSETS),
            transactions: Driver::new(transaction_coordinator(), TRANSACTIONS),
            markers: Vec::new(),
            work: Vec::new(),
            skew_ms,
        }
    }
}

impl Nodes {
    pub(crate) fn new(nodes: usize, defect: Option<Defect>, random: &mut Random) -> Nodes {
        let new = |_| NodeCoordinators::new(None, random.below(SKEW_MS) as i64);
        Nodes { nodes: (0..nodes).map(new).collect(), defect, repeated: Vec::new(), newest: None }
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
    /// What has arrived is taken, and nodes do what is due.
    pub(crate) fn turn_nodes(&mut self) {
        for node in 0..self.nodes.nodes.len() {
            self.begin_anew_where_started(node);
        }
        while let Some(parcel) = self.calls.arrived(self.world.now_ms) {
            self.deliver(parcel);
        }
        for node in 0..self.nodes.nodes.len() {
            if self.nodes.nodes[node].start.is_none() {
                continue;
            }
            self.with(node, |own, context| {
                context.is_busy = own.transactions.is_loading();
                own.groups.turn(context);
                context.is_busy = own.groups.is_loading();
                own.transactions.turn(context);
                own.look_for_markers(context);
            });
            self.do_work(node);
        }
        self.repeat_markers();
    }

    /// What a node had in memory is gone when it is started again; connections end when it stops.
    fn begin_anew_where_started(&mut self, node: usize) {
        let start = self.world.nodes[node].started();
        let own = &mut self.nodes.nodes[node];
        if own.start == start {
            return;
        }
        let new = NodeCoordinators::new(start, own.skew_ms);
        let before = std::mem::replace(own, new);
        let (of_groups, markers) = before.groups.into_waiting();
        let (of_transactions, _) = before.transactions.into_waiting();
        for token in of_groups.into_iter().chain(of_transactions) {
            self.calls.send(self.world.transit(), Parcel::Answer { token, answer: Answer::Gone });
        }
        for call in before.markers.into_iter().map(|wait| wait.call).chain(markers) {
            let outcome = MarkerOutcome::Failed(ErrorCode::NOT_LEADER_OR_FOLLOWER);
            self.calls.send(self.world.transit(), Parcel::Marked { by: node, call, outcome });
        }
    }

    /// Has a node's coordinators do something.
    fn with<T>(&mut self, node: usize, act: impl FnOnce(&mut NodeCoordinators, &mut Context<'_>) -> T) -> T {
        let own = &mut self.nodes.nodes[node];
        let mut work = std::mem::take(&mut own.work);
        let mut context = Context {
            now_ms: self.world.now_ms,
            wall_ms: self.world.nodes[node].wall_ms() + own.skew_ms,
            delay_max_ms: self.world.delay_max_ms,
            defect: self.nodes.defect,
            is_busy: false,
            random: &mut self.world.random,
            node: &mut self.world.nodes[node],
            calls: &mut self.calls,
            done: &mut self.done,
            work: &mut work,
        };
        let value = act(own, &mut context);
        own.work = work;
        value
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
                if self.nodes.nodes[node].start == Some(start) {
                    self.with(node, |own, context| {
                        own.transactions.change(context, |machine, now| {
                            machine.producer_id(now, ticket, Ok(ProducerId::new(id)));
                        });
                    });
                }
            }
        }
    }

    fn take_request(&mut self, node: usize, token: Token, mut request: Request) {
        if self.nodes.nodes[node].start.is_none() {
            return self.calls.keep(token, Answer::Gone);
        }
        if let Request::Groups { request, .. } = &mut request {
            self.draw_member_id(request);
            if self.nodes.defect == Some(Defect::CommitsForAnyGeneration) {
                self.nodes.commit_as_newest(request);
            }
        }
        self.with(node, |own, context| match request {
            Request::Groups { request, version, guard } => {
                let confirms = matches!(request, groups::Request::OffsetFetch { .. });
                own.groups.ask(context, token, (request, version), guard, confirms);
            }
            Request::Transactions { request, version } => {
                // What it says of a transaction may be of the one before that which another coordinator has begun.
                let confirms = !matches!(request, transactions::Request::InitProducerId { .. });
                own.transactions.ask(context, token, (request, version), VerificationGuard::NONE, confirms);
            }
        });
    }

    /// Draws the tail of the member id that a JoinGroup may be given.
    fn draw_member_id(&mut self, request: &mut groups::Request<'static>) {
        if let groups::Request::JoinGroup { random, .. } = request {
            let mut draw = || self.world.random.next_u64().to_be_bytes();
            *random = [draw(), draw()].concat().try_into().expect("16 bytes");
        }
    }

    /// Carries out what coordinators ask for besides appends and replies.
    fn do_work(&mut self, node: usize) {
        let Some(start) = self.nodes.nodes[node].start else { return };
        for work in std::mem::take(&mut self.nodes.nodes[node].work) {
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

    /// Each marker goes to the node that leads its partition.
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
        if is_cut || self.nodes.nodes[to].start.is_none() {
            // The link has ended.
            let outcome = MarkerOutcome::Failed(ErrorCode::NOT_LEADER_OR_FOLLOWER);
            return self.calls.send(self.world.transit(), Parcel::Marked { by: call.from.0, call, outcome });
        }
        if self.nodes.defect == Some(Defect::RepeatsMarkers) && call.topic == TOPIC {
            let again_ms = self.world.now_ms + 100 + self.world.random.below(REPEATED_AFTER_MS);
            self.nodes.repeated.push((again_ms, call.clone()));
        }
        self.done.add("marker written");
        self.with(to, |own, context| own.write_marker(context, call));
    }

    fn take_outcome(&mut self, by: usize, call: MarkerCall, outcome: MarkerOutcome) {
        let MarkerCall { from: (node, start), ticket, topic, index, .. } = call;
        if self.nodes.nodes[node].start != Some(start) {
            return;
        }
        let is_cut = by != node && self.world.cut.contains(&(by, node));
        let unknown = MarkerOutcome::Failed(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        let outcome = if is_cut { unknown } else { outcome };
        self.with(node, |own, context| {
            own.transactions.change(context, |machine, now| {
                machine.marked(now, ticket, &topic, index, outcome);
            });
        });
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
            self.with(leader, |_, context| _ = context.append_marker(partition, &call.marker, None));
        }
    }
}

impl NodeCoordinators {
    /// Writes a marker into a partition that this node leads, as far as others know.
    fn write_marker(&mut self, context: &mut Context<'_>, call: MarkerCall) {
        if call.topic == OFFSETS_TOPIC {
            return self.groups.write_marker(context, call, |machine, now, end| {
                machine.may_end_transaction(0)?;
                machine.transaction_ended(now, 0, end).ok_or(ErrorCode::NOT_COORDINATOR)
            });
        }
        let partition = partition_of(&call.topic, call.index);
        match context.append_marker(partition, &call.marker, None) {
            Ok(Accepted { fate, .. }) => self.markers.push(MarkerWait { fate, call }),
            Err(error) => context.send_outcome(call, MarkerOutcome::Failed(error)),
        }
    }

    fn look_for_markers(&mut self, context: &mut Context<'_>) {
        for wait in std::mem::take(&mut self.markers) {
            match wait.fate.outcome() {
                None => self.markers.push(wait),
                Some(Ok(())) => context.send_outcome(wait.call, MarkerOutcome::Written),
                Some(Err(error)) => context.send_outcome(wait.call, MarkerOutcome::Failed(error)),
            }
        }
    }
}

impl Context<'_> {
    fn send_outcome(&mut self, call: MarkerCall, outcome: MarkerOutcome) {
        let by = (self.node.id().node() - 1) as usize;
        self.send(Parcel::Marked { by, call, outcome });
    }
}
