//! The leadership of a partition, and its changes as a node follows them.

use mainstem_records::LeaderEpoch;

/// The leadership of a partition, as its replica knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leadership {
    /// The leader's node. Of a partition that is not replicated: `None`, which is this node.
    pub leader: Option<i32>,
    /// The epoch in which it leads.
    pub epoch: LeaderEpoch,
    /// True if this node leads.
    pub is_leader: bool,
    /// True if what leaders before it have committed is known to be committed (KIP-207): only then is it known where the
    /// partition ends, and what coordinators find in it is all there is.
    pub is_settled: bool,
    /// A replica is here that takes part, and does not know who leads in its epoch.
    pub is_searching: bool,
}

/// A change of a partition's leadership, as a node follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleChange {
    /// Nothing is new.
    None,
    /// This node leads in a new epoch, and cannot say yet where the partition ends: it is looked at again soon.
    Unsettled,
    /// This node leads no more.
    Lost,
    /// This node leads in a new epoch.
    Gained {
        /// The epoch.
        epoch: LeaderEpoch,
        /// It led in another epoch before. Others may have led in between.
        had_before: bool,
    },
}

impl Leadership {
    /// The change since this node was seen to lead in an epoch, if it was.
    pub fn change_from(&self, led: Option<LeaderEpoch>) -> RoleChange {
        match (self.is_leader, led) {
            (false, None) => RoleChange::None,
            (false, Some(_)) => RoleChange::Lost,
            (true, _) if !self.is_settled => RoleChange::Unsettled,
            (true, Some(epoch)) if epoch == self.epoch => RoleChange::None,
            (true, led) => RoleChange::Gained { epoch: self.epoch, had_before: led.is_some() },
        }
    }
}
