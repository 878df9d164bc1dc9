//! The nodes of a cluster as clients see them: requests to their coordinators, and the answers.

use super::calls::{Answer, Parcel, Request};
use super::coordinators::Waiting;
use super::{Cluster, DATA_PARTITIONS, Defect, members};
use mainstem_coordination::groups::{self, Reply, Token};
use mainstem_log::TransactionMarker;
use mainstem_records::{CoordinatorEpoch, ProducerEpoch, ProducerId};

/// Longest delay of a marker that a defect repeats, in ms.
const REPEATED_AFTER_MS: u64 = 1_500;

/// Turns between two checks of the coordinators of a node, which check their state machines themselves at each change.
const CHECK_TURNS: u64 = 20;

/// Requests to one node that have no answer yet.
#[derive(Default)]
struct NodeRequests {
    /// Number of the node's start at which it was in service; `None`: it is not.
    start: Option<u64>,
    waiting: Waiting,
    /// Number of compactions since the node's start.
    compactions: u64,
}

/// A marker that a defect writes again.
struct Repeated {
    at_ms: u64,
    partition: usize,
    producer_id: i64,
    committed: bool,
}

/// Requests to all nodes.
pub(crate) struct Nodes {
    nodes: Vec<NodeRequests>,
    defect: Option<Defect>,
    repeated: Vec<Repeated>,
    /// The newest generation of the classic group in an answer, and the member that got it.
    newest: Option<(i32, String)>,
}

impl Nodes {
    pub(crate) fn new(nodes: usize, defect: Option<Defect>) -> Nodes {
        let nodes = (0..nodes).map(|_| NodeRequests::default()).collect();
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
            self.end_connections(node);
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
        let waiting = &mut self.nodes.nodes[node].waiting;
        for (token, answer) in waiting.turn(&self.world.nodes[node], &mut self.world.random) {
            self.calls.send(self.world.transit(), Parcel::Answer { token, answer });
        }
        if self.world.is_turn_of(node, CHECK_TURNS) {
            Waiting::check(&self.world.nodes[node]);
            self.count_compactions(node);
        }
    }

    fn count_compactions(&mut self, node: usize) {
        let Some((of_broker, _)) = self.world.nodes[node].in_service() else { return };
        let (count, own) = (of_broker.local.store.cleaning.count(), &mut self.nodes.nodes[node]);
        self.done.add_many("log compacted", count.saturating_sub(own.compactions) as usize);
        own.compactions = count;
    }

    /// Ends the connections to a node that does not serve any more, or was started again.
    fn end_connections(&mut self, node: usize) {
        let of_world = &self.world.nodes[node];
        let start = of_world.in_service().and_then(|_| of_world.started());
        let own = &mut self.nodes.nodes[node];
        if own.start == start {
            return;
        }
        own.start = start;
        Waiting::check(&self.world.nodes[node]);
        for token in own.waiting.take_all() {
            self.calls.send(self.world.transit(), Parcel::Answer { token, answer: Answer::Gone });
        }
    }

    fn deliver(&mut self, parcel: Parcel) {
        match parcel {
            Parcel::Ask { node, token, request } => self.take_request(node, token, request),
            Parcel::Answer { token, answer } => {
                self.nodes.note_generation(&answer);
                self.calls.keep(token, answer);
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
        let (waiting, of_world) = (&mut self.nodes.nodes[node].waiting, &self.world.nodes[node]);
        match request {
            Request::Groups { request, version, guard } => {
                waiting.ask_groups((of_world, token), (request, version), guard);
            }
            Request::Transactions { request, version } => {
                waiting.ask_transactions((of_world, token), (request, version));
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

    /// Takes note of a transaction that has ended, for the defect that writes markers again.
    pub(crate) fn note_ended_transaction(&mut self, producer_id: i64, committed: bool) {
        if self.nodes.defect != Some(Defect::RepeatsMarkers) {
            return;
        }
        for partition in 0..DATA_PARTITIONS {
            let at_ms = self.world.now_ms + 100 + self.world.random.below(REPEATED_AFTER_MS);
            self.nodes.repeated.push(Repeated { at_ms, partition, producer_id, committed });
        }
    }

    /// A defect: a marker that was written is written again, as if it were the last coordinator's for the newest epoch.
    fn repeat_markers(&mut self) {
        let now_ms = self.world.now_ms;
        let due: Vec<_> = self.nodes.repeated.extract_if(.., |repeated| repeated.at_ms <= now_ms).collect();
        for Repeated { partition, producer_id, committed, .. } in due {
            let Some(leader) = self.world.leader(partition) else { continue };
            let producer_id = ProducerId::new(producer_id);
            let known: Option<Option<(ProducerEpoch, CoordinatorEpoch)>> =
                self.world.nodes[leader].with_log(partition, |log| {
                    let known = log.producer_state().get(producer_id);
                    known.map(|known| (known.epoch, known.coordinator_epoch))
                });
            let Some((producer_epoch, coordinator_epoch)) = known.flatten() else { continue };
            let marker = TransactionMarker {
                producer_id,
                producer_epoch,
                coordinator_epoch: coordinator_epoch.max(CoordinatorEpoch::ZERO),
                committed,
                transaction_version: 0,
            };
            _ = self.world.nodes[leader].append_marker(partition, &marker);
        }
    }
}
