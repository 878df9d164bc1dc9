//! The steps of a leader from the members that its group has to those that are wanted.
//!
//! | the group has | the leader |
//! |---|---|
//! | a learner that is not wanted | removes it |
//! | not all that are wanted | adds a learner for each |
//! | learners that are to vote | waits until each has caught up for a second, and enters a joint configuration |
//! | a joint configuration, and the leader stays | leaves it |
//! | a joint configuration, and the leader goes | gives leadership to a voter that stays |
//! | those that are wanted | is done |
//!
//! Other members may be wanted at any time. A joint configuration is always left forwards first. A new leader continues from
//! the members that it finds.

use crate::change::MemberChange;
use crate::group::{Configuration, ReplicaId};

/// A replica has caught up that lacks less than this.
const LACKING_BYTES_MAX: u64 = 1 << 20;
/// It has to have caught up for so long before it votes.
const CAUGHT_UP_FOR_MS: u64 = 1_000;
/// One voter has so long to take leadership over; then the next one is asked. The leader leads meanwhile.
const TRANSFER_EVERY_MS: u64 = 10_000;

/// The knowledge of a leader of another replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerView {
    /// The replica.
    pub(crate) id: ReplicaId,
    /// It has acknowledged something in this term, and had all that there was a moment ago.
    pub(crate) is_active: bool,
    /// Bytes of the log that it lacks, or more than is looked at.
    pub(crate) lacking_bytes: u64,
}

/// The view of a leader of its group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaderView<'a> {
    /// The leader.
    pub(crate) own: ReplicaId,
    /// The members.
    pub(crate) configuration: &'a Configuration,
    /// The other members.
    pub(crate) peers: &'a [PeerView],
}

/// The members that a group is to have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WantedMembers {
    /// The replicas that are to vote; none: that is not known.
    pub voters: Vec<ReplicaId>,
    /// The replicas that are to get the log, and not to vote.
    pub learners: Vec<ReplicaId>,
}

impl WantedMembers {
    /// Voters, and no learners.
    pub fn of_voters(voters: &[ReplicaId]) -> WantedMembers {
        WantedMembers { voters: voters.to_vec(), learners: Vec::new() }
    }

    fn contains(&self, id: &ReplicaId) -> bool {
        self.voters.contains(id) || self.learners.contains(id)
    }
}

/// The next step of a leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing now: a replica has to catch up, or to answer.
    Wait,
    /// Members change.
    Change(MemberChange),
    /// Leadership goes to this voter.
    Transfer(ReplicaId),
    /// The group has the members that are wanted.
    Done,
}

/// The progress of a leader towards the members that are wanted, in one term.
#[derive(Debug, Default)]
pub(crate) struct Reconciler {
    /// The replicas that have caught up, and the time since which they have.
    caught_up: Vec<(ReplicaId, u64)>,
    /// The last voter that was asked to take leadership over, and when.
    asked: Option<(ReplicaId, u64)>,
}

impl Reconciler {
    /// The next step of a leader that has applied all earlier changes, and does not give leadership away now.
    pub(crate) fn next(&mut self, wanted: &WantedMembers, view: LeaderView<'_>, now_ms: u64) -> Step {
        self.note_caught_up(view.peers, now_ms);
        let Configuration { voters, learners, voters_outgoing, .. } = view.configuration;
        if !voters_outgoing.is_empty() {
            return match voters.contains(&view.own) {
                true => Step::Change(MemberChange::LeaveJoint),
                false => self.hand_over(view, now_ms),
            };
        }
        if wanted.voters.is_empty() {
            return Step::Wait;
        }
        if let Some(left) = learners.iter().find(|learner| !wanted.contains(learner)) {
            return Step::Change(MemberChange::RemoveLearner(*left));
        }
        let is_member = |id: &ReplicaId| voters.contains(id) || learners.contains(id);
        // One that votes and is to be a learner leaves first.
        if let Some(new) = wanted.voters.iter().chain(&wanted.learners).find(|id| !is_member(id)) {
            return Step::Change(MemberChange::AddLearner(*new));
        }
        self.change_voters(&wanted.voters, view, now_ms)
    }

    /// The step to the voters that are wanted, each of which is a member.
    fn change_voters(&self, wanted: &[ReplicaId], view: LeaderView<'_>, now_ms: u64) -> Step {
        let voters = &view.configuration.voters;
        let is_ready = |id: &ReplicaId| self.has_caught_up(*id, now_ms);
        let add: Vec<_> = wanted.iter().copied().filter(|id| !voters.contains(id)).collect();
        if !add.iter().all(is_ready) {
            return Step::Wait;
        }
        let remove: Vec<_> = voters.iter().copied().filter(|voter| !wanted.contains(voter)).collect();
        if add.is_empty() && remove.is_empty() {
            return Step::Done;
        }
        // The new voters have to be able to decide without those that go.
        let able = wanted.iter().filter(|id| **id == view.own || is_ready(id)).count();
        if able <= wanted.len() / 2 {
            return Step::Wait;
        }
        Step::Change(MemberChange::EnterJoint { add, remove })
    }

    fn note_caught_up(&mut self, peers: &[PeerView], now_ms: u64) {
        let is_there = |id: &ReplicaId| {
            peers
                .iter()
                .any(|peer| peer.id == *id && peer.is_active && peer.lacking_bytes < LACKING_BYTES_MAX)
        };
        self.caught_up.retain(|(id, _)| is_there(id));
        for peer in peers {
            let is_known = self.caught_up.iter().any(|(id, _)| *id == peer.id);
            if !is_known && is_there(&peer.id) {
                self.caught_up.push((peer.id, now_ms));
            }
        }
    }

    fn has_caught_up(&self, id: ReplicaId, now_ms: u64) -> bool {
        let since = self.caught_up.iter().find(|(other, _)| *other == id);
        since.is_some_and(|(_, since_ms)| now_ms.saturating_sub(*since_ms) >= CAUGHT_UP_FOR_MS)
    }

    /// Gives leadership to a voter that stays and answers: to each of them in turn.
    fn hand_over(&mut self, view: LeaderView<'_>, now_ms: u64) -> Step {
        if self.asked.is_some_and(|(_, at_ms)| now_ms.saturating_sub(at_ms) < TRANSFER_EVERY_MS) {
            return Step::Wait;
        }
        let stays = |peer: &&PeerView| peer.is_active && view.configuration.voters.contains(&peer.id);
        let mut able: Vec<_> =
            view.peers.iter().filter(stays).map(|peer| (peer.lacking_bytes, peer.id)).collect();
        able.sort_unstable();
        // The one that lacks least at first, and then the one behind the one that was asked last.
        let last = self.asked.and_then(|(last, _)| able.iter().position(|(_, id)| *id == last));
        let next = last.map_or(0, |at| at + 1) % able.len().max(1);
        let Some((_, to)) = able.get(next) else { return Step::Wait };
        self.asked = Some((*to, now_ms));
        Step::Transfer(*to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(node: i32) -> ReplicaId {
        ReplicaId::new(node, 1)
    }

    fn ids(nodes: &[i32]) -> Vec<ReplicaId> {
        nodes.iter().copied().map(id).collect()
    }

    /// A leader, node 1, whose peers answer, unless they are away, and lack these bytes.
    struct Group {
        configuration: Configuration,
        lacking: Vec<(i32, u64)>,
        away: Vec<i32>,
        own: ReplicaId,
        /// The replicas that are to get the log, and not to vote.
        observers: Vec<ReplicaId>,
        reconciler: Reconciler,
        now_ms: u64,
    }

    impl Group {
        fn of(voters: &[i32]) -> Group {
            Group {
                configuration: Configuration::of_voters(&ids(voters)),
                lacking: Vec::new(),
                away: Vec::new(),
                own: id(1),
                observers: Vec::new(),
                reconciler: Reconciler::default(),
                now_ms: 0,
            }
        }

        /// Nodes 1 to 3, one of which leaves while another one comes.
        fn in_joint(comes: i32, leaves: i32) -> Group {
            let mut group = Group::of(&[1, 2, 3]);
            group.configuration.learners = ids(&[comes]);
            group.apply(&MemberChange::EnterJoint { add: ids(&[comes]), remove: ids(&[leaves]) });
            group
        }

        fn next(&mut self, wanted: &[ReplicaId]) -> Step {
            let others = self.configuration.replicas().filter(|id| *id != self.own);
            let lacks =
                |node| self.lacking.iter().find(|(one, _)| *one == node).map_or(0, |(_, bytes)| *bytes);
            let mut peers: Vec<_> = others
                .map(|id| PeerView {
                    id,
                    is_active: !self.away.contains(&id.node()),
                    lacking_bytes: lacks(id.node()),
                })
                .collect();
            peers.dedup();
            let view = LeaderView { own: self.own, configuration: &self.configuration, peers: &peers };
            self.reconciler.next(
                &WantedMembers { voters: wanted.to_vec(), learners: self.observers.clone() },
                view,
                self.now_ms,
            )
        }

        /// Carries a change out as the library does.
        fn apply(&mut self, change: &MemberChange) {
            let Configuration { voters, learners, voters_outgoing, .. } = &mut self.configuration;
            match change {
                MemberChange::AddLearner(id) => learners.push(*id),
                MemberChange::RemoveLearner(id) => learners.retain(|other| other != id),
                MemberChange::EnterJoint { add, remove } => {
                    voters_outgoing.clone_from(voters);
                    voters.extend(add);
                    voters.retain(|voter| !remove.contains(voter));
                    learners.retain(|learner| !add.contains(learner));
                }
                MemberChange::LeaveJoint => voters_outgoing.clear(),
            }
        }

        /// The steps until it is done, or waits for more than three seconds.
        fn run(&mut self, wanted: &[ReplicaId]) -> Vec<Step> {
            let (mut steps, mut waited) = (Vec::new(), 0);
            while waited < 30 {
                match self.next(wanted) {
                    Step::Wait => {
                        self.now_ms += 100;
                        waited += 1;
                        continue;
                    }
                    Step::Done => {
                        steps.push(Step::Done);
                        return steps;
                    }
                    Step::Change(change) => {
                        self.apply(&change);
                        steps.push(Step::Change(change));
                    }
                    Step::Transfer(to) => {
                        steps.push(Step::Transfer(to));
                        (self.own, self.reconciler) = (to, Reconciler::default());
                    }
                }
                waited = 0;
            }
            steps
        }
    }

    #[test]
    fn a_replica_moves_by_learner_joint_configuration_and_leave() {
        let mut group = Group::of(&[1, 2, 3]);
        let wanted = ids(&[1, 3, 4]);
        let steps = group.run(&wanted);
        let expected = [
            Step::Change(MemberChange::AddLearner(id(4))),
            Step::Change(MemberChange::EnterJoint { add: ids(&[4]), remove: ids(&[2]) }),
            Step::Change(MemberChange::LeaveJoint),
            Step::Done,
        ];
        assert_eq!(steps, expected);
        assert!(group.now_ms >= CAUGHT_UP_FOR_MS);
        assert_eq!(group.configuration.in_order(), Configuration::of_voters(&wanted));
    }

    #[test]
    fn a_learner_votes_when_it_has_caught_up_for_a_second_without_a_break() {
        let mut group = Group::of(&[1, 2, 3]);
        let wanted = ids(&[1, 2, 4]);
        group.lacking = vec![(4, LACKING_BYTES_MAX)];
        assert_eq!(group.run(&wanted).len(), 1, "it is far behind");
        let since_ms = group.now_ms;
        group.lacking.clear();
        assert_eq!(group.next(&wanted), Step::Wait);
        group.now_ms += 900;
        group.away = vec![4];
        assert_eq!(group.next(&wanted), Step::Wait, "a break");
        group.away.clear();
        let steps = group.run(&wanted);
        assert!(matches!(steps[0], Step::Change(MemberChange::EnterJoint { .. })), "{steps:?}");
        assert!(group.now_ms >= since_ms + 900 + CAUGHT_UP_FOR_MS);
    }

    /// Trap: a learner that is wanted no more stays for ever (CockroachDB #106294).
    #[test]
    fn a_learner_that_is_not_wanted_any_more_is_removed() {
        let mut group = Group::of(&[1, 2, 3]);
        group.lacking = vec![(4, u64::MAX)];
        group.run(&ids(&[1, 2, 4]));
        assert_eq!(group.configuration.learners, ids(&[4]));
        let steps = group.run(&ids(&[1, 2, 3]));
        assert_eq!(steps, [Step::Change(MemberChange::RemoveLearner(id(4))), Step::Done]);
        assert_eq!(group.configuration, Configuration::of_voters(&ids(&[1, 2, 3])));
    }

    /// Trap: a leader that is removed leads on, or the group has none.
    #[test]
    fn a_leader_that_goes_gives_leadership_to_a_voter_that_stays() {
        let mut group = Group::of(&[1, 2, 3]);
        let steps = group.run(&ids(&[2, 3, 4]));
        let expected = [
            Step::Change(MemberChange::AddLearner(id(4))),
            Step::Change(MemberChange::EnterJoint { add: ids(&[4]), remove: ids(&[1]) }),
            Step::Transfer(id(2)),
            Step::Change(MemberChange::LeaveJoint),
            Step::Done,
        ];
        assert_eq!(steps, expected);
    }

    /// Trap: leadership is given out of a joint configuration to a voter that is dead (CockroachDB #83687).
    #[test]
    fn leadership_goes_to_one_that_answers_and_to_the_next_after_ten_seconds() {
        let mut group = Group::of(&[1, 2, 3]);
        let enter = MemberChange::EnterJoint { add: ids(&[4, 5, 6]), remove: ids(&[1, 2, 3]) };
        group.configuration.learners = ids(&[4, 5, 6]);
        group.apply(&enter);
        let wanted = ids(&[4, 5, 6]);
        group.away = vec![4];
        assert_eq!(group.next(&wanted), Step::Transfer(id(5)));
        group.now_ms += 9_999;
        assert_eq!(group.next(&wanted), Step::Wait, "it leads meanwhile");
        group.now_ms += 1;
        assert_eq!(group.next(&wanted), Step::Transfer(id(6)));
        group.now_ms += 10_000;
        assert_eq!(group.next(&wanted), Step::Transfer(id(5)));
        group.away = vec![4, 5, 6];
        group.now_ms += 10_000;
        assert_eq!(group.next(&wanted), Step::Wait, "none answers");
    }

    /// Trap: a joint configuration is left by the leader that has entered it alone, which may be gone.
    #[test]
    fn the_next_leader_leaves_a_joint_configuration() {
        let mut group = Group::in_joint(4, 2);
        group.own = id(3);
        // It does not know yet who is wanted.
        assert_eq!(group.next(&[]), Step::Change(MemberChange::LeaveJoint));
        group.apply(&MemberChange::LeaveJoint);
        assert_eq!(group.next(&[]), Step::Wait);
    }

    /// Trap: a move is cancelled in a joint configuration, and that again (Redpanda #8322); and a node is down.
    #[test]
    fn a_joint_configuration_is_left_forwards_before_members_move_back() {
        let mut group = Group::in_joint(4, 2);
        group.away = vec![2];
        let back = ids(&[1, 2, 3]);
        let steps = group.run(&back);
        let left = [Step::Change(MemberChange::LeaveJoint), Step::Change(MemberChange::AddLearner(id(2)))];
        assert_eq!(steps, left, "node 2 is down: it has to be there before node 4 goes");
        let steps = group.run(&ids(&[1, 3, 4]));
        assert_eq!(steps, [Step::Change(MemberChange::RemoveLearner(id(2))), Step::Done]);
        group.away.clear();
        let steps = group.run(&back);
        assert_eq!(steps.last(), Some(&Step::Done));
        assert_eq!(group.configuration.in_order(), Configuration::of_voters(&back));
    }

    #[test]
    fn voters_are_not_removed_where_those_that_stay_could_not_decide() {
        let mut group = Group::of(&[1, 2, 3]);
        group.away = vec![2];
        let wanted = ids(&[1, 2]);
        assert_eq!(group.run(&wanted), [], "node 1 alone is no majority of both");
        group.away.clear();
        let enter = Step::Change(MemberChange::EnterJoint { add: vec![], remove: ids(&[3]) });
        assert_eq!(group.run(&wanted), [enter, Step::Change(MemberChange::LeaveJoint), Step::Done]);
    }

    /// A lost disk: the node has another replica from then on.
    #[test]
    fn a_replica_is_replaced_by_the_next_one_of_its_node() {
        let mut group = Group::of(&[1, 2, 3]);
        let next = ReplicaId::new(2, 2);
        group.lacking = vec![];
        let wanted = [id(1), next, id(3)];
        let steps = group.run(&wanted);
        let enter = MemberChange::EnterJoint { add: vec![next], remove: vec![id(2)] };
        assert_eq!(steps[..2], [Step::Change(MemberChange::AddLearner(next)), Step::Change(enter)]);
        assert_eq!(steps.last(), Some(&Step::Done));
    }

    #[test]
    fn learners_that_are_wanted_stay_and_a_voter_that_is_to_be_one_leaves_first() {
        let mut group = Group::of(&[1, 2, 3]);
        group.observers = ids(&[4]);
        group.lacking = vec![(4, u64::MAX)];
        let voters = ids(&[1, 2, 3]);
        assert_eq!(group.run(&voters), [Step::Change(MemberChange::AddLearner(id(4))), Step::Done]);
        assert_eq!(group.next(&voters), Step::Done, "it may be as far behind as it likes");
        group.observers = ids(&[3, 4]);
        let steps = group.run(&ids(&[1, 2]));
        let expected = [
            Step::Change(MemberChange::EnterJoint { add: vec![], remove: ids(&[3]) }),
            Step::Change(MemberChange::LeaveJoint),
            Step::Change(MemberChange::AddLearner(id(3))),
            Step::Done,
        ];
        assert_eq!(steps, expected);
        group.observers = ids(&[3]);
        group.lacking.clear();
        let steps = group.run(&ids(&[1, 2, 4]));
        let enter = Step::Change(MemberChange::EnterJoint { add: ids(&[4]), remove: vec![] });
        assert_eq!(steps, [enter, Step::Change(MemberChange::LeaveJoint), Step::Done]);
        assert_eq!(group.configuration.learners, ids(&[3]));
    }
}
