//! Nodes that join the group of the metadata log, and their votes (KIP-853). The metadata say which nodes are wanted and which of them vote; the
//! leader of the group makes it so. A replica is a node and an incarnation: a node with another directory is another member, since as the one
//! that it was it would vote without knowing what it has acknowledged.

use mainstem_wire::metadata_frame::MetadataRecord;
use mainstem_wire::{ErrorCode, Uuid};

use super::image::{ControllerImage, Controllers, FIRST_INCARNATION};
use super::node_view::NodeView;
use super::reassignments::MOVES_FROM_LEVEL;
use super::state_machine::{Decision, MetadataStateMachine};

/// Nodes that one cluster may have: as many as `controller.quorum.voters` may name.
pub const CONTROLLERS_MAX: usize = 15;

/// Longest name of a host, in bytes: DNS has none that is longer.
const HOST_BYTES_MAX: usize = 255;

/// A node that wants to take part in the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerJoin {
    /// The node.
    pub node: i32,
    /// The host of its listener for controllers.
    pub host: String,
    /// The port of that listener.
    pub port: u16,
    /// The code of that listener's security protocol.
    pub security_protocol: i16,
    /// The directory that has its metadata log.
    pub directory: Uuid,
    /// The lowest and the highest level of `mainstem.version` that it can work at.
    pub levels: (i16, i16),
}

/// A node that has founded the cluster, as its record of founding and `controller.quorum.voters` name it. Its replica has incarnation 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstController {
    /// The node.
    pub node: i32,
    /// The host of its listener for controllers.
    pub host: String,
    /// The port of that listener.
    pub port: u16,
    /// The code of that listener's security protocol.
    pub security_protocol: i16,
    /// The directory that has its metadata log.
    pub directory: Uuid,
}

/// A reason for which no controller of the cluster can change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControllersFixed {
    /// This node is a cluster by itself.
    #[error(
        "This node is no cluster: no other node can join it. Name the nodes of a cluster in controller.quorum.voters."
    )]
    OneNode,
    /// The cluster works at a lower level.
    #[error(
        "Nodes join, and votes change, from level {MOVES_FROM_LEVEL} of mainstem.version on, and the cluster works at level {0}: upgrade \
         all nodes, then run `mainstem cluster finalize --execute`."
    )]
    Level(i16),
    /// The metadata name no controllers, and the caller names none.
    #[error(
        "It is not known which nodes have founded the cluster: start this node with the controller.quorum.voters of the cluster."
    )]
    NoFounders,
    /// A counter has reached its end.
    #[error(
        "The nodes of the cluster have changed so often that there is no number for another change: create a cluster in its place, and \
         copy the topics."
    )]
    UsedUp,
}

/// A refusal of a node that wants to join.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinRefused {
    /// No controller can change.
    #[error(transparent)]
    Fixed(#[from] ControllersFixed),
    /// The node cannot work at the level of the cluster.
    #[error(
        "Node {node} works at levels {lowest} to {highest} of mainstem.version, and the cluster works at level {level}: start a release on \
         it that works at level {level}."
    )]
    Release {
        /// The node.
        node: i32,
        /// The lowest level of the node.
        lowest: i16,
        /// The highest level of the node.
        highest: i16,
        /// The level of the cluster.
        level: i16,
    },
    /// Its id is negative.
    #[error("Node {0} cannot join: the ids of nodes begin at 0. Correct node.id.")]
    Id(i32),
    /// Its address is none that other nodes can reach.
    #[error(
        "Node {node} names {host}:{port} as the address of its listener for controllers: name a host of 1 to {HOST_BYTES_MAX} bytes, and a \
         port above 0."
    )]
    Address {
        /// The node.
        node: i32,
        /// The host that it names.
        host: String,
        /// The port that it names.
        port: u16,
    },
    /// It names no directory.
    #[error(
        "Node {0} does not name the directory of its metadata log: start it with a directory that has an id."
    )]
    NoDirectory(i32),
    /// Another process with this id is alive.
    #[error(
        "Node {0} is running, and another process with this id wants to join: give it another node.id, or stop the running one and wait \
         until it is fenced."
    )]
    Running(i32),
    /// It has a vote with another directory.
    #[error(
        "Node {node} has a vote with directory {known}, and joins with directory {directory}: bring the disk with directory {known} back."
    )]
    Votes {
        /// The node.
        node: i32,
        /// The directory with the vote.
        known: Uuid,
        /// The directory that it joins with.
        directory: Uuid,
    },
    /// Another node has its address.
    #[error(
        "Node {node} names {host}:{port} as the address of its listener for controllers, which is that of node {other}: correct the \
         address, or unregister node {other} if it will not return (kafka-cluster unregister --id {other})."
    )]
    AddressTaken {
        /// The node.
        node: i32,
        /// The host that it names.
        host: String,
        /// The port that it names.
        port: u16,
        /// The node that has the address.
        other: i32,
    },
    /// The cluster has as many nodes as it may have.
    #[error(
        "Node {0} cannot join: a cluster has at most {CONTROLLERS_MAX} nodes. Unregister one that will not return (kafka-cluster \
         unregister)."
    )]
    TooMany(i32),
}

/// A refusal to change a vote or the address of a voter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VoterRefused {
    /// No controller can change.
    #[error(transparent)]
    Fixed(#[from] ControllersFixed),
    /// The node has a vote.
    #[error(
        "Node {node} has a vote already, with directory {directory}: nothing is to be done, or remove that vote first."
    )]
    Duplicate {
        /// The node.
        node: i32,
        /// The directory with the vote.
        directory: Uuid,
    },
    /// The node has not joined with this directory.
    #[error(
        "Node {node} has not joined the cluster with directory {directory}: start it with this directory, and try again when it follows."
    )]
    NotJoined {
        /// The node.
        node: i32,
        /// The directory that was named.
        directory: Uuid,
    },
    /// The node has no vote with this directory.
    #[error(
        "Node {node} has no vote with directory {directory}: see node and directory of each voter with kafka-metadata-quorum describe \
         --status."
    )]
    NotFound {
        /// The node.
        node: i32,
        /// The directory that was named.
        directory: Uuid,
    },
    /// No other node has a vote.
    #[error(
        "Node {0} has the last vote: add the vote of another node first (kafka-metadata-quorum add-controller)."
    )]
    Last(i32),
    /// The new address of the voter cannot be.
    #[error(transparent)]
    Update(JoinRefused),
}

impl ControllersFixed {
    /// Kafka's code.
    pub fn code(&self) -> ErrorCode {
        match self {
            ControllersFixed::OneNode | ControllersFixed::Level(_) => ErrorCode::UNSUPPORTED_VERSION,
            ControllersFixed::NoFounders | ControllersFixed::UsedUp => ErrorCode::INVALID_REQUEST,
        }
    }
}

impl JoinRefused {
    /// Kafka's code.
    pub fn code(&self) -> ErrorCode {
        match self {
            JoinRefused::Fixed(fixed) => fixed.code(),
            JoinRefused::Release { .. } => ErrorCode::UNSUPPORTED_VERSION,
            JoinRefused::Running(_) => ErrorCode::DUPLICATE_BROKER_REGISTRATION,
            JoinRefused::Votes { .. } => ErrorCode::DUPLICATE_VOTER,
            JoinRefused::TooMany(_) => ErrorCode::POLICY_VIOLATION,
            JoinRefused::Id(_)
            | JoinRefused::Address { .. }
            | JoinRefused::NoDirectory(_)
            | JoinRefused::AddressTaken { .. } => ErrorCode::INVALID_REQUEST,
        }
    }
}

impl VoterRefused {
    /// Kafka's code.
    pub fn code(&self) -> ErrorCode {
        match self {
            VoterRefused::Fixed(fixed) => fixed.code(),
            VoterRefused::Duplicate { .. } => ErrorCode::DUPLICATE_VOTER,
            // Kafka takes a replica that it does not know for one that lags behind.
            VoterRefused::NotJoined { .. } => ErrorCode::REQUEST_TIMED_OUT,
            VoterRefused::NotFound { .. } => ErrorCode::VOTER_NOT_FOUND,
            VoterRefused::Last(_) => ErrorCode::INVALID_REQUEST,
            VoterRefused::Update(refused) => refused.code(),
        }
    }
}

impl MetadataStateMachine {
    /// Decides on a node that wants to join; the reply is the incarnation of its replica. It follows as a learner. A node that is known with
    /// its directory keeps incarnation and vote, and has its new address. The first decision names the nodes `first`, too, which have founded the
    /// cluster: each has a vote.
    pub fn join_controller(
        &mut self,
        view: &NodeView,
        join: &ControllerJoin,
        first: &[FirstController],
    ) -> Decision<Result<u32, JoinRefused>> {
        let joined = self.joined(view, join, first);
        self.decide_on(joined)
    }

    /// Gives a node that has joined with this directory a vote. The caller makes one change at a time, and only of a node that has caught up.
    pub fn add_voter(
        &mut self,
        view: &NodeView,
        node: i32,
        directory: Uuid,
        first: &[FirstController],
    ) -> Decision<Result<(), VoterRefused>> {
        self.change_vote(view, first, |draft| draft.with_vote(node, directory))
    }

    /// Takes the vote of a node with this directory. The node stays, and follows as a learner. The caller makes one change at a time.
    pub fn remove_voter(
        &mut self,
        view: &NodeView,
        node: i32,
        directory: Uuid,
        first: &[FirstController],
    ) -> Decision<Result<(), VoterRefused>> {
        self.change_vote(view, first, |draft| draft.without_vote(node, directory))
    }

    /// Notes another address of a node that has joined with its directory (UpdateRaftVoter); it need not vote.
    pub fn update_voter(
        &mut self,
        view: &NodeView,
        update: &ControllerJoin,
        first: &[FirstController],
    ) -> Decision<Result<(), VoterRefused>> {
        let updated = self.with_address(view, update, first);
        self.decide_on(updated)
    }

    fn change_vote(
        &mut self,
        view: &NodeView,
        first: &[FirstController],
        change: impl FnOnce(Draft) -> Result<(Draft, ()), VoterRefused>,
    ) -> Decision<Result<(), VoterRefused>> {
        let changed = self.draft(view, first).map_err(VoterRefused::from).and_then(change);
        self.decide_on(changed)
    }

    /// Decides records, or none if the reply is a refusal.
    fn decide_on<R, E>(&mut self, decided: Result<(Draft, R), E>) -> Decision<Result<R, E>> {
        match decided {
            Ok((draft, reply)) => self.decide(draft.records, Ok(reply)),
            Err(refused) => self.decide(vec![], Err(refused)),
        }
    }

    /// The controllers before a change: those of the metadata, or the founders, with their records.
    fn draft(&self, view: &NodeView, first: &[FirstController]) -> Result<Draft, ControllersFixed> {
        let level = self.ahead().mainstem_version();
        if !view.has_several_nodes() {
            return Err(ControllersFixed::OneNode);
        }
        if level < MOVES_FROM_LEVEL {
            return Err(ControllersFixed::Level(level));
        }
        let mut draft = Draft { controllers: self.ahead().controllers.clone(), records: Vec::new() };
        if draft.controllers.version > 0 {
            return Ok(draft);
        }
        if first.is_empty() {
            return Err(ControllersFixed::NoFounders);
        }
        for founder in first {
            draft.set(founder.node, founder.image())?;
        }
        Ok(draft)
    }

    fn joined(
        &self,
        view: &NodeView,
        join: &ControllerJoin,
        first: &[FirstController],
    ) -> Result<(Draft, u32), JoinRefused> {
        let mut draft = self.draft(view, first)?;
        join.check(self.ahead().mainstem_version())?;
        let node = join.node;
        let known = draft.controllers.nodes.get(&node);
        let (incarnation, votes) = match known {
            Some(known) if known.directory == join.directory => (known.incarnation, known.votes),
            _ if self.ahead().broker(node).is_some_and(|broker| !broker.fenced) => {
                return Err(JoinRefused::Running(node));
            }
            Some(known) if known.votes => {
                return Err(JoinRefused::Votes { node, known: known.directory, directory: join.directory });
            }
            None if draft.controllers.nodes.len() >= CONTROLLERS_MAX => {
                return Err(JoinRefused::TooMany(node));
            }
            _ => (draft.controllers.next_incarnation().ok_or(ControllersFixed::UsedUp)?, false),
        };
        let is_same =
            |known: &ControllerImage| known.incarnation == incarnation && join.has_address_of(known);
        if !known.is_some_and(is_same) {
            join.check_address_is_free(&draft.controllers)?;
            draft.set(node, join.image(incarnation, votes))?;
        }
        Ok((draft, incarnation))
    }

    fn with_address(
        &self,
        view: &NodeView,
        update: &ControllerJoin,
        first: &[FirstController],
    ) -> Result<(Draft, ()), VoterRefused> {
        let (node, directory) = (update.node, update.directory);
        let draft = self.draft(view, first)?;
        let known = draft.controllers.nodes.get(&node);
        if known.is_none_or(|known| known.directory != directory) {
            return Err(VoterRefused::NotFound { node, directory });
        }
        let (draft, _) = self.joined(view, update, first).map_err(VoterRefused::Update)?;
        Ok((draft, ()))
    }
}

/// Controllers with changes, and the records of these.
struct Draft {
    controllers: Controllers,
    records: Vec<MetadataRecord<'static>>,
}

impl Draft {
    fn set(&mut self, node: i32, controller: ControllerImage) -> Result<(), ControllersFixed> {
        self.records.push(self.controllers.set(node, controller).ok_or(ControllersFixed::UsedUp)?);
        Ok(())
    }

    fn with_vote(mut self, node: i32, directory: Uuid) -> Result<(Draft, ()), VoterRefused> {
        let known = match self.controllers.nodes.get(&node) {
            // As in Kafka, whatever directory is named.
            Some(known) if known.votes => {
                return Err(VoterRefused::Duplicate { node, directory: known.directory });
            }
            Some(known) if known.directory == directory => known.clone(),
            _ => return Err(VoterRefused::NotJoined { node, directory }),
        };
        self.set(node, ControllerImage { votes: true, ..known })?;
        Ok((self, ()))
    }

    fn without_vote(mut self, node: i32, directory: Uuid) -> Result<(Draft, ()), VoterRefused> {
        let known = self.controllers.nodes.get(&node);
        let known = known.filter(|known| known.votes && known.directory == directory).cloned();
        let known = known.ok_or(VoterRefused::NotFound { node, directory })?;
        if self.controllers.voters() == 1 {
            return Err(VoterRefused::Last(node));
        }
        self.set(node, ControllerImage { votes: false, ..known })?;
        Ok((self, ()))
    }
}

impl FirstController {
    fn image(&self) -> ControllerImage {
        ControllerImage {
            host: self.host.clone(),
            port: self.port,
            security_protocol: self.security_protocol,
            directory: self.directory,
            incarnation: FIRST_INCARNATION,
            votes: true,
            levels: None,
        }
    }
}

impl ControllerJoin {
    fn image(&self, incarnation: u32, votes: bool) -> ControllerImage {
        ControllerImage {
            host: self.host.clone(),
            port: self.port,
            security_protocol: self.security_protocol,
            directory: self.directory,
            incarnation,
            votes,
            levels: Some(self.levels),
        }
    }

    fn has_address_of(&self, known: &ControllerImage) -> bool {
        (&known.host, known.port, known.security_protocol) == (&self.host, self.port, self.security_protocol)
    }

    /// Checks what the node says of itself. It comes from another process.
    fn check(&self, level: i16) -> Result<(), JoinRefused> {
        let (node, (lowest, highest)) = (self.node, self.levels);
        if node < 0 {
            return Err(JoinRefused::Id(node));
        }
        if !(lowest..=highest).contains(&level) {
            return Err(JoinRefused::Release { node, lowest, highest, level });
        }
        if !(1..=HOST_BYTES_MAX).contains(&self.host.len()) || self.port == 0 {
            return Err(JoinRefused::Address { node, host: self.host.clone(), port: self.port });
        }
        match self.directory {
            Uuid::ZERO => Err(JoinRefused::NoDirectory(node)),
            _ => Ok(()),
        }
    }

    fn check_address_is_free(&self, controllers: &Controllers) -> Result<(), JoinRefused> {
        let (node, host, port) = (self.node, &self.host, self.port);
        let has_it = |(other, known): &(&i32, &ControllerImage)| {
            **other != node && (&known.host, known.port) == (host, port)
        };
        match controllers.nodes.iter().find(has_it) {
            Some((other, _)) => {
                Err(JoinRefused::AddressTaken { node, host: host.clone(), port, other: *other })
            }
            None => Ok(()),
        }
    }
}
