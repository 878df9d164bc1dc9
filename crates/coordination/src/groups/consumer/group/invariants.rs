//! Invariants of a consumer group, which hold between any two calls.

use std::collections::BTreeMap;

use super::super::super::memory;
use super::super::counts::Counts;
use super::super::member::Member;
use super::super::partitions::Partition;
use super::super::reconcile::subscribed_topics;
use super::super::topics::ClusterTopics;
use super::{ConsumerGroup, regex_bytes, target_bytes};

impl ConsumerGroup {
    /// Asserts what holds between any two calls.
    ///
    /// # Panics
    /// If something does not hold.
    pub(crate) fn check(&self) {
        let id = &self.id;
        let own_names = self.members.iter().all(|(name, member)| *name == member.id);
        assert!(own_names, "a member of {id} is found under another id than its own");
        for (instance, member) in &self.static_members {
            let known = self.member(member).and_then(|member| member.profile.instance_id.as_ref());
            assert_eq!(known, Some(instance), "who comes as {instance} of {id} is taken for {member}");
        }
        let unknown = self.members.values().find(|member| {
            let instance = member.profile.instance_id.as_ref();
            instance.is_some_and(|instance| !self.static_members.contains_key(instance))
        });
        assert!(unknown.is_none(), "{id} does not know the instance of {unknown:?}");
        self.check_sums();
        assert!(self.gone.is_empty(), "members of {id} that are gone have time-outs: {:?}", self.gone);
    }

    /// Asserts that each member has a session time-out. It holds for a group that is served.
    ///
    /// # Panics
    /// If one does.
    pub(crate) fn check_time_outs(&self) {
        // Its partitions would stay with it.
        let unwatched = self.members.values().find(|member| member.timers.session.is_none());
        assert!(unwatched.is_none(), "{} would not notice that {unwatched:?} is gone", self.id);
    }

    /// Asserts that no partition has two readers, now or under the target, and that members read existing topics that they subscribe to. It
    /// holds for a group whose records are all read.
    ///
    /// # Panics
    /// If something does not hold.
    pub(crate) fn check_assignments(&self, topics: &ClusterTopics) {
        let id = &self.id;
        for (partition, owners) in &self.counts.owners {
            assert_eq!(*owners, 1, "members of {id} that hold {partition:?}");
        }
        let mut targets: BTreeMap<&Partition, &str> = BTreeMap::new();
        for (member, target) in &self.targets {
            for partition in target.iter() {
                let other = targets.insert(partition, member);
                assert_eq!(other, None, "{partition:?} of {id} is to go to {member}, too");
            }
        }
        let epochs = (self.epoch(), self.assignment_epoch());
        assert!(epochs.1 <= epochs.0, "the target of {id} is of an epoch that is yet to come: {epochs:?}");
        for member in self.members.values() {
            self.check_member(member, topics);
        }
    }

    fn check_member(&self, member: &Member, topics: &ClusterTopics) {
        let (id, target_epoch) = (&self.id, self.assignment_epoch());
        let (name, current) = (&member.id, &member.current);
        assert!(current.epoch <= target_epoch, "{name} of {id} is ahead of the target: {current:?}");
        let Some(target) = self.target(name) else { return };
        if current.is_reconciled_to(target_epoch) {
            // Partitions outside of the member's target may be given to another member.
            let stray = current.assigned.partitions().find(|at| !target.contains(at));
            assert_eq!(stray, None, "{name} of {id} is reconciled and has what is not its own");
        }
        // The target follows with the next heartbeat if topics or subscriptions have changed since.
        if self.topics_changed || self.epoch() != target_epoch {
            return;
        }
        let subscribed = subscribed_topics(self, topics, member);
        let is_there = |at: &Partition| {
            let topic = topics.name(&at.0).and_then(|name| topics.get(name));
            topic.is_some_and(|topic| (0..topic.partitions).contains(&at.1))
        };
        let wrong = target.iter().find(|at| !subscribed.contains(&at.0) || !is_there(at));
        assert_eq!(wrong, None, "{name} of {id} is to read what it does not subscribe to, or is not there");
    }

    /// Checks the sums over members: heartbeats use them instead of looking at other members.
    fn check_sums(&self) {
        let mut counts = Counts::default();
        self.members.values().for_each(|member| counts.add(member));
        self.regexes.values().for_each(|resolved| counts.add_resolved(resolved));
        assert_eq!(self.counts, counts, "sums over the members of {}", self.id);
        assert_eq!(self.bytes(), self.summed_bytes(), "bytes of {}", self.id);
    }

    /// Accounted bytes of the group, summed up over its members, targets and patterns.
    pub(crate) fn summed_bytes(&self) -> usize {
        let members: usize = self.members.values().map(|member| member.bytes()).sum();
        let targets: usize = self.targets.iter().map(|(id, target)| target_bytes(id, target)).sum();
        let regexes: usize = self.regexes.iter().map(|(regex, resolved)| regex_bytes(regex, resolved)).sum();
        memory::GROUP + self.id.len() + members + targets + regexes
    }
}
