//! Invariants of a classic group, which hold between any two calls.

use std::collections::HashMap;

use super::super::memory;
use super::{ClassicGroup, State};

impl ClassicGroup {
    /// Asserts what holds between any two calls.
    ///
    /// # Panics
    /// If something does not hold.
    pub(crate) fn check(&self) {
        self.check_members();
        self.check_state();
        self.check_sums();
    }

    /// Asserts that nothing waits for ever. It holds for a group that is served.
    ///
    /// # Panics
    /// If something does.
    pub(crate) fn check_time_outs(&self) {
        let id = &self.id;
        let is_preparing = self.state == State::PreparingRebalance;
        assert!(!is_preparing || self.join_timer.is_some(), "{id} lets members wait for others for ever");
        assert!(
            self.pending_syncs.is_empty() || self.sync_timer.is_some(),
            "{id} waits for ever for members to sync: {:?}",
            self.pending_syncs
        );
        for member in self.members.values() {
            // Its partitions would stay with it.
            let is_watched = member.session.is_some() || member.is_excused();
            assert!(is_watched, "{id} would not notice that {} is gone", member.id);
        }
        let endless = self.pending_joins.iter().find(|(_, timer)| timer.is_none());
        assert!(endless.is_none(), "{id} waits for ever for {endless:?} to come back");
    }

    /// Checks the indexes by which requests find members: leader, instance ids, pending joins and syncs.
    fn check_members(&self) {
        let id = &self.id;
        let own_names = self.members.iter().all(|(name, member)| *name == member.id);
        assert!(own_names, "a member of {id} is found under another id than its own");
        assert_eq!(
            self.members.is_empty(),
            self.leader.is_none(),
            "without a leader no generation of {id} ends: {:?}",
            self.leader
        );
        if let Some(leader) = &self.leader {
            assert!(self.members.contains_key(leader), "{leader} leads {id} and is no member");
        }
        let instances = self.members.values().filter_map(|member| {
            let instance = member.instance_id.as_ref()?;
            Some((instance.clone(), member.id.clone()))
        });
        let instances: HashMap<_, _> = instances.collect();
        assert_eq!(self.static_members, instances, "instances of {id}, and the members that have them");
        let in_both = self.pending_joins.keys().find(|pending| self.members.contains_key(pending));
        assert_eq!(in_both, None, "a member of {id} is waited for although it has come");
        let unknown = self.pending_syncs.iter().find(|member| !self.members.contains_key(member));
        assert_eq!(unknown, None, "{id} waits for the sync of one that is no member");
    }

    /// Checks that the group has what requests in its state rely on.
    fn check_state(&self) {
        let (id, state) = (&self.id, self.state);
        match state {
            State::Empty | State::Dead => {
                assert!(self.members.is_empty(), "{id} is {state:?} and has members")
            }
            State::Stable | State::CompletingRebalance => {
                assert!(!self.members.is_empty(), "{id} is {state:?} and has no members");
                assert!(self.protocol_name.is_some(), "{id} is {state:?} and has no protocol");
            }
            State::PreparingRebalance => {}
        }
        assert!(self.generation >= 0, "the generation of {id} is {}", self.generation);
        let is_completing = state == State::CompletingRebalance;
        assert!(!self.assignment_pending || is_completing, "{id} is {state:?} and writes an assignment");
        let syncing = self.members.values().find(|member| member.awaiting_sync.is_some());
        assert!(syncing.is_none() || is_completing, "{id} is {state:?} and lets {syncing:?} wait for it");
        // In a stable group: until the new id of a static member is written.
        let may_join = matches!(state, State::PreparingRebalance | State::Stable);
        let joining = self.members.values().find(|member| member.awaiting_join.is_some());
        assert!(joining.is_none() || may_join, "{id} is {state:?} and lets {joining:?} wait for it");
    }

    /// Checks the sums over members: the protocol is chosen by the offers, and the limits count the bytes.
    fn check_sums(&self) {
        let mut offered: HashMap<Box<str>, usize> = HashMap::new();
        for protocol in self.members.values().flat_map(|member| &member.protocols) {
            *offered.entry(protocol.name.clone()).or_default() += 1;
        }
        assert_eq!(self.offered, offered, "protocols that members of {} offer", self.id);
        assert_eq!(self.bytes(), self.summed_bytes(), "bytes of {}", self.id);
    }

    /// Accounted bytes of the group, summed up over all its members and topics.
    pub(crate) fn summed_bytes(&self) -> usize {
        let members = self.members.values().map(memory::member).sum::<usize>();
        let pending = self.pending_joins.keys().map(|id| memory::pending_join(id)).sum::<usize>();
        let topics = self.subscribed_topics.iter().flatten().map(|topic| memory::name(topic)).sum::<usize>();
        self.bytes() - self.member_bytes - self.topic_bytes + members + pending + topics
    }
}
