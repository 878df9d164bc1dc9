//! The role of a replica in its group.

use crate::group::ReplicaId;
use raft::{Raft, StateRole, Storage};

/// The role of a replica in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Role {
    /// The term, which is the leader epoch.
    pub term: u64,
    /// Its part in that term.
    pub state: RoleState,
}

/// The part of a replica in a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleState {
    /// It leads.
    Leader,
    /// It follows, if it knows whom.
    Follower {
        /// The leader.
        leader: Option<ReplicaId>,
    },
    /// It asks for votes.
    Candidate,
}

impl Role {
    /// The leader, if that is known.
    pub fn leader(&self, own: ReplicaId) -> Option<ReplicaId> {
        match self.state {
            RoleState::Leader => Some(own),
            RoleState::Follower { leader } => leader,
            RoleState::Candidate => None,
        }
    }

    /// A follower of this term that knows no leader.
    pub(super) fn without_leader(self) -> Role {
        Role { state: RoleState::Follower { leader: None }, ..self }
    }

    /// The role that the Raft library has now.
    pub(super) fn of<T: Storage>(raft: &Raft<T>) -> Role {
        let state = match raft.state {
            StateRole::Leader => RoleState::Leader,
            StateRole::Follower => {
                RoleState::Follower { leader: (raft.leader_id != 0).then_some(ReplicaId(raft.leader_id)) }
            }
            StateRole::Candidate | StateRole::PreCandidate => RoleState::Candidate,
        };
        Role { term: raft.term, state }
    }
}
