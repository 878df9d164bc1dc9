//! The Raft group of a replica: the library's node with the index of entries, the members, the role, and the time that passes for them.
//!
//! The library decides who leads and what is committed. Beside it are a replica's own rules: when it asks for votes ([`elections`]), which
//! messages contradict what it has ([`contradictions`]), and what a leader knows of the others ([`peers`]).

use super::leader_contact::LeaderContact;
use super::messages::Receiver;
use super::raft_node::raft_node;
use super::role::{Role, RoleState};
use super::ticks::Ticks;
use super::vote_hold::VoteHold;
use crate::change::{self, DecodedChange, MemberChange};
use crate::error::ReplicaError;
use crate::group::{Configuration, ReplicaId};
use crate::index::EntryIndex;
use crate::journal::{GroupState, Start};
use crate::snapshots::SnapshotOffer;
use crate::store::Store;
use crate::unsynced::Settled;
use elections::Election;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};
use raft::{Raft, RawNode, Ready, StateRole};
use std::collections::BTreeSet;

mod contradictions;
mod elections;
mod peers;

/// The last entry of a replica, and its commit index.
#[derive(Debug, Clone, Copy)]
pub(super) struct LastEntry {
    pub(super) index: u64,
    pub(super) term: u64,
    pub(super) committed: u64,
}

/// The answer to a leader that has sent entries behind `index`: what both have is at `hint` or before, where terms are no higher than
/// `term`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) index: u64,
    pub(super) hint: u64,
    pub(super) term: u64,
}

/// The settings of a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupOptions {
    /// Spreads elections.
    pub(super) seed: u64,
    /// A leader sends what it commits at once.
    pub(super) broadcast_commit: bool,
}

/// The Raft group of a replica.
pub(super) struct RaftGroup {
    node: RawNode<Store>,
    own: ReplicaId,
    configuration: Configuration,
    /// Index of the last change that the journal has noted: earlier ones are not applied again.
    noted_change: u64,
    role: Role,
    broadcast_commit: bool,
    election: Election,
    hold: VoteHold,
    ticks: Ticks,
    contact: LeaderContact,
}

impl RaftGroup {
    /// A group with the entries of a log that begins at `log_start`.
    pub(super) fn open(
        (own, state): (ReplicaId, &GroupState),
        (index, log_start): (EntryIndex, i64),
        options: GroupOptions,
        hold: VoteHold,
        now_ms: u64,
    ) -> Result<RaftGroup, ReplicaError> {
        let mut node = raft_node(own, state, index, log_start)?;
        node.skip_bcast_commit(!options.broadcast_commit);
        let role = Role { term: node.raft.term, state: RoleState::Follower { leader: None } };
        let mut group = RaftGroup {
            node,
            own,
            configuration: state.configuration.clone(),
            noted_change: state.configuration_index,
            role,
            broadcast_commit: options.broadcast_commit,
            election: Election::new(options.seed),
            hold,
            ticks: Ticks::new(now_ms),
            contact: LeaderContact::default(),
        };
        group.draw_election_timeout();
        Ok(group)
    }

    /// Begins with the entries that are in the log, as at a start. Returns index and term of the last one.
    pub(super) fn restart(
        &mut self,
        state: &GroupState,
        index: EntryIndex,
        log_start: i64,
    ) -> Result<(u64, u64), ReplicaError> {
        let last = index.last();
        let last_entry = (last, index.term(last).unwrap_or(0));
        let persisted = self.persisted();
        let offer = self.node.mut_store().offer.take();
        self.node = raft_node(self.own, state, index, log_start)?;
        self.node.mut_store().offer = offer;
        self.node.skip_bcast_commit(!self.broadcast_commit);
        let log = &mut self.node.raft.raft_log;
        log.persisted = persisted.clamp(log.applied, last);
        self.configuration = state.configuration.clone();
        self.noted_change = state.configuration_index;
        self.contact.end();
        self.ticks.restart();
        self.election.restart();
        Ok(last_entry)
    }

    pub(super) fn own(&self) -> ReplicaId {
        self.own
    }

    pub(super) fn role(&self) -> Role {
        self.role
    }

    pub(super) fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    pub(super) fn set_configuration(&mut self, configuration: Configuration) {
        self.configuration = configuration;
    }

    pub(super) fn raft(&self) -> &Raft<Store> {
        &self.node.raft
    }

    /// The places of entries in the log.
    pub(super) fn index(&self) -> &EntryIndex {
        &self.node.store().index
    }

    pub(super) fn index_mut(&mut self) -> &mut EntryIndex {
        &mut self.node.mut_store().index
    }

    /// The start of the group's entries.
    pub(super) fn start(&self) -> Start {
        self.index().start()
    }

    pub(super) fn term(&self) -> u64 {
        self.node.raft.term
    }

    pub(super) fn committed(&self) -> u64 {
        self.node.raft.raft_log.committed
    }

    pub(super) fn applied(&self) -> u64 {
        self.node.raft.raft_log.applied
    }

    pub(super) fn persisted(&self) -> u64 {
        self.node.raft.raft_log.persisted
    }

    /// The last entry that the library has, written or not, and its commit index.
    pub(super) fn last_entry(&self) -> LastEntry {
        let log = &self.node.raft.raft_log;
        LastEntry { index: log.last_index(), term: log.last_term(), committed: log.committed }
    }

    /// Returns true if this replica leads, as far as its driver knows.
    pub(super) fn is_leader(&self) -> bool {
        self.role.state == RoleState::Leader
    }

    /// Returns true if it leads, and all that leaders before it have committed is known to be committed.
    pub(super) fn leads_settled(&self) -> bool {
        self.is_leader() && self.node.raft.commit_to_current_term()
    }

    /// Returns true if it leads in the term of its role, as the library has it too, and does not give leadership away.
    pub(super) fn may_append(&self) -> bool {
        let raft = &self.node.raft;
        self.is_leader()
            && raft.state == StateRole::Leader
            && raft.term == self.role.term
            && raft.lead_transferee.is_none()
    }

    /// This replica as one that gets a message. `has_unsynced_vote`: its own vote may not be durable.
    pub(super) fn receiver(&self, may_change: bool, has_unsynced_vote: bool) -> Receiver<'_> {
        let raft = &self.node.raft;
        Receiver {
            own: self.own,
            configuration: &self.configuration,
            term: raft.term,
            state: raft.state,
            may_change,
            is_to_ask: raft.state == StateRole::Candidate && has_unsynced_vote,
        }
    }

    /// Takes a message, of a replica of the group and of a type for which the library has no refusal.
    pub(super) fn step(&mut self, message: Message) -> raft::Result<()> {
        self.node.step(message)
    }

    /// Proposes an entry, if this replica leads.
    pub(super) fn propose(&mut self, entry: Entry) -> raft::Result<()> {
        let mut message =
            Message { msg_type: MessageType::MsgPropose, from: self.own.0, ..Message::default() };
        message.set_entries(vec![entry].into());
        self.node.raft.step(message)
    }

    /// The next work of the library; `None`: there is none.
    pub(super) fn next_ready(&mut self) -> Option<Ready> {
        self.node.has_ready().then(|| self.node.ready())
    }

    /// Notes that a work is written, and not durable yet.
    pub(super) fn note_written(&mut self, ready: Ready) {
        self.node.advance_append_async(ready);
    }

    /// Notes what is durable.
    pub(super) fn note_durable(&mut self, settled: &Settled) {
        if let Some((index, term)) = settled.entry {
            self.node.raft.on_persist_entries(index, term);
        }
        if let Some(number) = settled.number {
            self.node.on_persist_ready(number);
        }
    }

    /// Notes that entries up to an index are applied.
    pub(super) fn note_applied(&mut self, index: u64) {
        self.node.advance_apply_to(index);
    }

    /// Index of the last change of members that the journal has noted: those of now are the ones behind it, or behind a later one.
    pub(super) fn noted_change(&self) -> u64 {
        self.noted_change
    }

    /// Applies a committed entry to the group. Returns its new members, if it has changed them.
    pub(super) fn apply(&mut self, entry: &Entry) -> Result<Option<Configuration>, ReplicaError> {
        match entry.get_entry_type() {
            EntryType::EntryNormal => return Ok(None),
            EntryType::EntryConfChangeV2 => {}
            EntryType::EntryConfChange => {
                return Err(ReplicaError::Damaged("a change of members of an older kind".into()));
            }
        }
        if entry.index <= self.noted_change {
            return Ok(None);
        }
        let DecodedChange { change, base } = change::decode_own(&entry.data)?;
        match self.configuration.voters.is_empty() {
            // It was founded without knowing them.
            true => {
                change::steps_to(&base).try_for_each(|step| self.node.apply_conf_change(&step).map(|_| ()))?
            }
            false if self.configuration.in_order() == base => {}
            false => {
                return Err(ReplicaError::Damaged("a change of other members than this group has".into()));
            }
        }
        let state = self.node.apply_conf_change(&change)?;
        self.step_down_if_removed();
        Ok(Some(Configuration::from(&state)))
    }

    /// A leader without a vote leads no more: the library lets it, and fails with the next entry that is committed.
    fn step_down_if_removed(&mut self) {
        let raft = &mut self.node.raft;
        if raft.state == StateRole::Leader && !raft.promotable() {
            raft.become_follower(raft.term, 0);
        }
    }

    /// Returns true if a leader may change the members: it has applied all earlier changes, knows what is committed, and gives leadership
    /// to nobody. The library makes an empty entry of a change that it refuses.
    pub(super) fn may_change_members(&self) -> bool {
        self.leads_settled() && self.may_append() && !self.node.raft.has_pending_conf()
    }

    /// Proposes a change of the members, if it may.
    pub(super) fn propose_change(&mut self, change: &MemberChange) -> raft::Result<()> {
        let data = change.encode(&self.configuration.in_order()).into();
        self.propose(Entry { entry_type: EntryType::EntryConfChangeV2, data, ..Entry::default() })
    }

    /// Takes the role over that the library has. Returns it if it is another one.
    pub(super) fn follow_role(&mut self) -> Option<Role> {
        let role = Role::of(&self.node.raft);
        let is_new = role != self.role;
        if is_new {
            self.role = role;
            self.contact.end();
        }
        is_new.then_some(role)
    }

    /// Neither leads nor follows from now on. Returns its role if that is another one.
    pub(super) fn withdraw(&mut self) -> Option<Role> {
        self.contact.end();
        let role = self.role.without_leader();
        (std::mem::replace(&mut self.role, role) != role).then_some(role)
    }

    /// Begins a new log behind a snapshot.
    pub(super) fn begin_at(&mut self, start: Start) {
        let store = self.node.mut_store();
        (store.index, store.offer) = (EntryIndex::begin(start), None);
    }

    /// Has replicas that need entries which are not here any more get a snapshot; `None`: there is none.
    pub(super) fn set_offer(&mut self, offer: Option<SnapshotOffer>) {
        self.node.mut_store().offer = offer;
    }

    /// Returns true if there is a snapshot behind which the entries follow.
    pub(super) fn has_offer(&self) -> bool {
        self.node.store().has_offer()
    }

    /// The replicas that need entries which are not here any more, nor in a snapshot, since this was asked last.
    pub(super) fn take_behind(&mut self) -> BTreeSet<u64> {
        self.node.mut_store().take_behind()
    }

    /// Asks the others whether this replica still leads.
    pub(super) fn confirm(&mut self, number: u64) {
        self.node.read_index(number.to_be_bytes().to_vec());
    }

    /// Gives leadership to a voter.
    pub(super) fn transfer(&mut self, to: u64) {
        self.node.transfer_leader(to);
    }

    /// Returns true if leadership is being given away.
    pub(super) fn hands_over(&self) -> bool {
        self.node.raft.lead_transferee.is_some()
    }

    /// Asserts what holds between any two calls.
    pub(super) fn check(&self) {
        let (persisted, last) = (self.persisted(), self.index().last());
        assert!(persisted <= last, "{persisted} > {last}");
        let raft = &self.node.raft;
        assert_eq!(Configuration::from(&raft.prs().conf().to_conf_state()), self.configuration.in_order());
        assert!(raft.state != StateRole::Leader || raft.promotable(), "a leader without a vote");
        let term = self.term();
        assert!(self.role.term <= term, "a role of a later term than {term}: {:?}", self.role);
        if let Some((leader, term)) = self.contact.leader() {
            let follows = Role { term, state: RoleState::Follower { leader: Some(leader) } };
            assert_eq!(self.role, follows, "heartbeats of another leader are coalesced");
        }
        self.ticks.check();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{EntryKind, InternalEntry, Vote};

    pub(super) fn noop(index: u64, term: u64) -> InternalEntry {
        InternalEntry { index, term, offset: 0, kind: EntryKind::NoOp, data: Vec::new() }
    }

    /// The replica of node 1 of three, in the term of its last entry, with these entries behind one of this index and term.
    pub(super) fn group((index, term): (u64, u64), entries: &[InternalEntry], committed: u64) -> RaftGroup {
        let start = Start { index, term, offset: 0 };
        let mut index = EntryIndex::begin(start);
        entries.iter().for_each(|entry| index.push_internal(entry.clone()));
        let voters: Vec<_> = (1..=3).map(|node| ReplicaId::new(node, 1)).collect();
        let vote = Vote { term: entries.last().map_or(term, |last| last.term), candidate: None };
        let (own, configuration) = (voters[0], Configuration::of_voters(&voters));
        let state = GroupState { vote, start, configuration, committed, ..GroupState::default() };
        let options = GroupOptions { seed: 1, broadcast_commit: true };
        let opened = RaftGroup::open((own, &state), (index, 0), options, VoteHold::new(false), 0);
        opened.expect("a group")
    }

    /// Carries out the work of the library as if all of it were durable at once. Returns the messages.
    fn work(group: &mut RaftGroup) -> Vec<Message> {
        let mut sent = Vec::new();
        while let Some(mut ready) = group.next_ready() {
            for entry in ready.take_entries() {
                group.index_mut().push_internal(noop(entry.index, entry.term));
            }
            let number = Some(ready.number());
            sent.extend(ready.take_messages());
            sent.extend(ready.take_persisted_messages());
            group.note_written(ready);
            group.note_durable(&Settled { number, entry: None });
            group.follow_role();
            group.check();
        }
        sent
    }

    /// The effect of an entry before a change may not be durable, and the change is noted.
    #[test]
    fn entries_before_a_noted_change_are_applied_again_and_the_change_is_not() {
        let voters: Vec<_> = (1..=3).map(|node| ReplicaId::new(node, 1)).collect();
        let base = Configuration::of_voters(&voters);
        let learner = ReplicaId::new(4, 1);
        let data = MemberChange::AddLearner(learner).encode(&base);
        let entries = [
            noop(1, 1),
            InternalEntry { kind: EntryKind::Data, data: vec![1], ..noop(2, 1) },
            InternalEntry { kind: EntryKind::ConfigurationChangeV2, data, ..noop(3, 1) },
        ];
        let mut index = EntryIndex::begin(Start::default());
        entries.iter().for_each(|entry| index.push_internal(entry.clone()));
        let state = GroupState {
            vote: Vote { term: 1, candidate: None },
            configuration: Configuration { learners: vec![learner], ..base },
            configuration_index: 3,
            applied: 1,
            ..GroupState::default()
        };
        let options = GroupOptions { seed: 1, broadcast_commit: true };
        let opened = RaftGroup::open((voters[0], &state), (index, 0), options, VoteHold::new(false), 0);
        let mut group = opened.expect("a group");
        assert_eq!((group.applied(), group.committed()), (1, 3));
        let mut ready = group.next_ready().expect("entries to apply");
        let committed = ready.take_committed_entries();
        assert_eq!(committed.iter().map(|entry| entry.index).collect::<Vec<_>>(), [2, 3]);
        assert!(committed.iter().all(|entry| matches!(group.apply(entry), Ok(None))));
        group.check();
    }

    #[test]
    fn a_group_elects_without_log_or_disk() {
        let mut group = group((0, 0), &[], 0);
        group.campaign();
        for (asked, answer) in [
            (MessageType::MsgRequestPreVote, MessageType::MsgRequestPreVoteResponse),
            (MessageType::MsgRequestVote, MessageType::MsgRequestVoteResponse),
        ] {
            let requests = work(&mut group);
            assert_eq!(requests.len(), 2, "{requests:?}");
            assert!(requests.iter().all(|request| request.get_msg_type() == asked), "{requests:?}");
            let request = &requests[0];
            let mut vote = Message { msg_type: answer, term: request.term, ..Message::default() };
            (vote.from, vote.to) = (request.to, request.from);
            group.step(vote).expect("a vote");
        }
        let appends = work(&mut group);
        assert!(appends.iter().all(|append| append.get_entries().len() == 1), "a no-op: {appends:?}");
        assert_eq!(group.role(), Role { term: 1, state: RoleState::Leader });
        assert!(!group.leads_settled() && group.may_append());
        // Leadership goes to one that has what is committed, and not to the one that it was offered to.
        let others: Vec<u64> = (2..=3).map(|node| ReplicaId::new(node, 1).0).collect();
        others.iter().for_each(|peer| group.note_answer(ReplicaId(*peer)));
        assert_eq!(group.best_successor(0), Some(others[1]));
        assert_eq!(group.best_successor(others[1]), Some(others[0]));
        let withdrawn = group.withdraw().expect("it has led");
        assert_eq!(withdrawn, Role { term: 1, state: RoleState::Follower { leader: None } });
    }

    #[test]
    fn heartbeats_are_accepted_of_the_leader_that_it_follows_alone() {
        let mut group = group((0, 0), &[], 0);
        let leader = ReplicaId::new(2, 1);
        assert!(!group.accept_coalesced(leader, 1, 0), "it follows nobody");
        let mut heartbeat = Message { msg_type: MessageType::MsgHeartbeat, term: 1, ..Message::default() };
        (heartbeat.from, heartbeat.to) = (leader.0, group.own().0);
        group.step(heartbeat.clone()).expect("a heartbeat");
        work(&mut group);
        assert!(!group.accept_coalesced(leader, 2, 0) && !group.accept_coalesced(ReplicaId::new(3, 1), 1, 0));
        assert!(group.accept_coalesced(leader, 1, 0));
        assert_eq!(group.coalesced_term(), Some(1));
        // Another leader: the heartbeats of the first one count no more.
        (heartbeat.from, heartbeat.term) = (ReplicaId::new(3, 1).0, 2);
        group.step(heartbeat).expect("a heartbeat");
        work(&mut group);
        assert_eq!(group.coalesced_term(), None);
    }
}
