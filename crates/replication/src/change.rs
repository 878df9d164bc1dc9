//! Changes of the members of a group, as its log has them.
//!
//! A learner is added or removed by itself. Voters change by joint consensus: one entry enters the joint configuration, in which a
//! majority of the voters before and of those after is needed, and another one leaves it. Each entry has the members that it changes,
//! so that a replica which was founded without any gets to know them from its log, and one that would change others is noticed.

use crate::encoding::{Fields, put_configuration};
use crate::error::ReplicaError;
use crate::group::{Configuration, ReplicaId};
use crate::journal::REPLICAS_MAX;
use protobuf::Message as _;
use raft::eraftpb::{ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2};

/// A change of the members of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberChange {
    /// A replica gets the log and does not vote.
    AddLearner(ReplicaId),
    /// A learner gets the log no more.
    RemoveLearner(ReplicaId),
    /// The group enters a joint configuration.
    EnterJoint {
        /// Learners that vote from then on.
        add: Vec<ReplicaId>,
        /// Voters that leave the group with the joint configuration.
        remove: Vec<ReplicaId>,
    },
    /// The group leaves the joint configuration.
    LeaveJoint,
}

impl MemberChange {
    /// The content of an entry that makes this change of `base`.
    pub(crate) fn encode(&self, base: &Configuration) -> Vec<u8> {
        let mut change = ConfChangeV2::default();
        let mut add = |kind, id: &ReplicaId| {
            let mut single = ConfChangeSingle { node_id: id.0, ..ConfChangeSingle::default() };
            single.set_change_type(kind);
            change.mut_changes().push(single);
        };
        match self {
            MemberChange::AddLearner(id) => add(ConfChangeType::AddLearnerNode, id),
            MemberChange::RemoveLearner(id) => add(ConfChangeType::RemoveNode, id),
            MemberChange::EnterJoint { add: added, remove } => {
                added.iter().for_each(|id| add(ConfChangeType::AddNode, id));
                remove.iter().for_each(|id| add(ConfChangeType::RemoveNode, id));
                change.set_transition(ConfChangeTransition::Explicit);
            }
            MemberChange::LeaveJoint => {}
        }
        let mut context = Vec::new();
        put_configuration(&mut context, base);
        change.set_context(context.into());
        change.write_to_bytes().expect("a small message is encoded")
    }
}

/// The change of an entry, and the members that it changes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DecodedChange {
    /// As the library applies it.
    pub(crate) change: ConfChangeV2,
    /// The members before.
    pub(crate) base: Configuration,
}

/// Decodes the content of an entry that changes members; `None`: no leader writes it.
pub(crate) fn decode(data: &[u8]) -> Option<DecodedChange> {
    let change = ConfChangeV2::parse_from_bytes(data).ok()?;
    let mut fields = Fields(change.get_context());
    let base = fields.configuration().filter(Configuration::is_sound)?;
    if !fields.0.is_empty() || base.auto_leave {
        return None;
    }
    let changes = change.get_changes();
    let kinds: Vec<_> = changes.iter().map(ConfChangeSingle::get_change_type).collect();
    let has_ids = changes.iter().all(|one| one.node_id != 0);
    let is_sound = match change.get_transition() {
        // A learner, or the end of a joint configuration.
        ConfChangeTransition::Auto => kinds.len() <= 1 && !kinds.contains(&ConfChangeType::AddNode),
        ConfChangeTransition::Explicit => {
            (1..=REPLICAS_MAX).contains(&kinds.len()) && !kinds.contains(&ConfChangeType::AddLearnerNode)
        }
        ConfChangeTransition::Implicit => false,
    };
    (is_sound && has_ids).then_some(DecodedChange { change, base })
}

/// Decodes the content of an entry of the log.
///
/// # Errors
/// The log is damaged, or of a release that knows more changes.
pub(crate) fn decode_own(data: &[u8]) -> Result<DecodedChange, ReplicaError> {
    decode(data).ok_or_else(|| ReplicaError::Damaged("a change of members that makes no sense".into()))
}

/// The steps by which a group without members comes to those of a configuration that is not joint.
pub(crate) fn steps_to(base: &Configuration) -> impl Iterator<Item = ConfChangeV2> {
    let voters = base.voters.iter().map(|id| (ConfChangeType::AddNode, id));
    let learners = base.learners.iter().map(|id| (ConfChangeType::AddLearnerNode, id));
    voters.chain(learners).map(|(kind, id)| {
        let mut single = ConfChangeSingle { node_id: id.0, ..ConfChangeSingle::default() };
        single.set_change_type(kind);
        let mut step = ConfChangeV2::default();
        step.mut_changes().push(single);
        step
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(node: i32) -> ReplicaId {
        ReplicaId::new(node, 1)
    }

    fn base() -> Configuration {
        Configuration::of_voters(&[id(1), id(2), id(3)])
    }

    #[test]
    fn changes_come_back_with_the_members_that_they_change() {
        let changes = [
            MemberChange::AddLearner(id(4)),
            MemberChange::RemoveLearner(id(4)),
            MemberChange::EnterJoint { add: vec![id(4)], remove: vec![id(2)] },
            MemberChange::EnterJoint { add: vec![], remove: vec![id(2)] },
            MemberChange::LeaveJoint,
        ];
        for change in changes {
            let decoded = decode(&change.encode(&base())).expect("a change");
            assert_eq!(decoded.base, base());
            let is_joint = matches!(change, MemberChange::EnterJoint { .. });
            assert_eq!(
                decoded.change.enter_joint(),
                is_joint.then_some(false),
                "{change:?}: it is left explicitly"
            );
            assert_eq!(decoded.change.leave_joint(), change == MemberChange::LeaveJoint, "{change:?}");
        }
    }

    #[test]
    fn what_no_leader_writes_is_refused() {
        let good = MemberChange::AddLearner(id(4)).encode(&base());
        assert!((0..good.len()).all(|len| decode(&good[..len]).is_none()), "cut off");
        let refused = |change: &dyn Fn(&mut ConfChangeV2)| {
            let mut message = ConfChangeV2::parse_from_bytes(&good).expect("a change");
            change(&mut message);
            assert_eq!(decode(&message.write_to_bytes().expect("bytes")), None, "{message:?}");
        };
        refused(&|message| message.mut_changes()[0].node_id = 0);
        refused(&|message| message.mut_changes()[0].set_change_type(ConfChangeType::AddNode));
        refused(&|message| message.set_transition(ConfChangeTransition::Implicit));
        refused(&|message| message.set_transition(ConfChangeTransition::Explicit));
        refused(&|message| {
            let again = message.get_changes()[0].clone();
            message.mut_changes().push(again);
        });
        refused(&|message| message.set_context(Vec::new().into()));
        refused(&|message| message.set_context([message.get_context(), &[0]].concat().into()));
        let nobody = MemberChange::AddLearner(id(4)).encode(&Configuration::default());
        assert_eq!(decode(&nobody), None, "a group has voters");
    }
}
