//! Which group, which replica, and who votes.

use raft::eraftpb::ConfState;
use std::fmt;

/// A Raft group: the partition that it replicates, by its topic's id, so that a topic that was deleted and created
/// again is another group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId {
    /// The topic's id.
    pub topic_id: [u8; 16],
    /// The partition's number.
    pub partition: i32,
}

/// A replica of a group: `node << 32 | incarnation`. Never used again: a replica that has lost its disk is another one,
/// because the votes that it gave are gone. Not 0, which Raft takes for "none".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u64);

impl ReplicaId {
    /// The replica of a node, which is not negative, in its `incarnation`, from 1 on.
    pub fn new(node: i32, incarnation: u32) -> ReplicaId {
        ReplicaId(u64::from(node.cast_unsigned()) << 32 | u64::from(incarnation))
    }

    /// The node's id.
    pub fn node(self) -> i32 {
        ((self.0 >> 32) as u32).cast_signed()
    }

    /// The count of the group's replicas that the node has had, this one included, or another number that only ascends.
    pub fn incarnation(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.node(), self.incarnation())
    }
}

/// The members of a group: those that vote, and those that only learn, also while members change by joint consensus.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Configuration {
    /// Replicas whose majority decides.
    pub voters: Vec<ReplicaId>,
    /// Replicas that get the log and do not vote.
    pub learners: Vec<ReplicaId>,
    /// Replicas whose majority decides too, while a change is under way.
    pub voters_outgoing: Vec<ReplicaId>,
    /// Voters that become learners when the change is complete.
    pub learners_next: Vec<ReplicaId>,
    /// The leader ends the change by itself.
    pub auto_leave: bool,
}

impl Configuration {
    /// A configuration of voters alone.
    pub fn of_voters(voters: &[ReplicaId]) -> Configuration {
        Configuration { voters: voters.to_vec(), ..Configuration::default() }
    }

    /// The same members with each list in ascending order, as the library gives them; a founder may name them in any order.
    pub fn in_order(&self) -> Configuration {
        let sorted = |list: &[ReplicaId]| {
            let mut list = list.to_vec();
            list.sort_unstable();
            list
        };
        Configuration {
            voters: sorted(&self.voters),
            learners: sorted(&self.learners),
            voters_outgoing: sorted(&self.voters_outgoing),
            learners_next: sorted(&self.learners_next),
            auto_leave: self.auto_leave,
        }
    }

    /// Returns true if `has` says so of a majority of the voters: of those before a change under way as well as of those after it. Of no
    /// voters none is a majority.
    pub fn is_majority(&self, has: impl Fn(ReplicaId) -> bool) -> bool {
        let of = |voters: &[ReplicaId]| voters.iter().filter(|id| has(**id)).count() > voters.len() / 2;
        of(&self.voters) && (self.voters_outgoing.is_empty() || of(&self.voters_outgoing))
    }

    /// The replicas that vote, those included that do until the change under way is complete; each once.
    pub fn all_voters(&self) -> impl Iterator<Item = ReplicaId> {
        let outgoing = self.voters_outgoing.iter().filter(|id| !self.voters.contains(id));
        self.voters.iter().chain(outgoing).copied()
    }

    /// Returns true if a replica decides by itself.
    pub(crate) fn is_alone(&self, own: ReplicaId) -> bool {
        self.voters == [own] && self.voters_outgoing.is_empty()
    }

    /// All replicas, each list after the other.
    pub fn replicas(&self) -> impl Iterator<Item = ReplicaId> {
        self.lists().into_iter().flatten().copied()
    }

    /// Its lists, in the order in which they are written.
    pub(crate) fn lists(&self) -> [&[ReplicaId]; 4] {
        [&self.voters, &self.learners, &self.voters_outgoing, &self.learners_next]
    }

    /// Returns true if it is as the library gives it, so that another node may have sent it: each list ascends, none names
    /// the replica 0, there are voters, and none of them is a learner.
    pub(crate) fn is_sound(&self) -> bool {
        let ascends = |list: &[ReplicaId]| {
            list.is_sorted_by(|a, b| a < b) && list.first().is_none_or(|first| first.0 > 0)
        };
        self.lists().into_iter().all(ascends)
            && !self.voters.is_empty()
            && self.voters.iter().all(|voter| !self.learners.contains(voter))
    }
}

impl From<&Configuration> for ConfState {
    fn from(configuration: &Configuration) -> ConfState {
        let ids = |list: &[ReplicaId]| list.iter().map(|replica| replica.0).collect();
        let mut state = ConfState::default();
        state.set_voters(ids(&configuration.voters));
        state.set_learners(ids(&configuration.learners));
        state.set_voters_outgoing(ids(&configuration.voters_outgoing));
        state.set_learners_next(ids(&configuration.learners_next));
        state.set_auto_leave(configuration.auto_leave);
        state
    }
}

impl From<&ConfState> for Configuration {
    fn from(state: &ConfState) -> Configuration {
        let ids = |list: &[u64]| {
            let mut list: Vec<_> = list.iter().copied().map(ReplicaId).collect();
            list.sort_unstable();
            list
        };
        Configuration {
            voters: ids(state.get_voters()),
            learners: ids(state.get_learners()),
            voters_outgoing: ids(state.get_voters_outgoing()),
            learners_next: ids(state.get_learners_next()),
            auto_leave: state.get_auto_leave(),
        }
    }
}
