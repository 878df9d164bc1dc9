//! Sums over the members of a consumer group. They follow from the members alone and are kept beside them, so that no heartbeat has to look
//! at all of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::change::Resolved;
use super::member::{Member, MemberState};
use super::partitions::Partition;

/// The number of subscriptions to a topic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Subscribers {
    /// Members that name the topic.
    pub(crate) by_name: usize,
    /// Patterns that match it.
    pub(crate) by_regex: usize,
}

/// Sums over the members of a group.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Topics that any member subscribes to.
    pub(crate) topics: BTreeMap<Box<str>, Subscribers>,
    /// Members of each pattern.
    pub(crate) regexes: BTreeMap<Arc<str>, usize>,
    /// Members that ask for each assignor.
    pub(crate) assignors: BTreeMap<Box<str>, usize>,
    /// Members of the classic protocol.
    pub(crate) classic: usize,
    /// The number of those members that offer each protocol, by its name.
    pub(crate) classic_protocols: BTreeMap<Box<str>, usize>,
    /// The number of members that hold each partition. It is 1, except between two records of a log that is being read.
    pub(crate) owners: BTreeMap<Partition, usize>,
    /// Members that have all of their target, by their epoch.
    pub(crate) stable: BTreeMap<i32, usize>,
    /// Accounted bytes of the members, see [`memory`](super::super::memory).
    pub(crate) bytes: usize,
}

impl Counts {
    /// Adds a member to the sums.
    pub(crate) fn add(&mut self, member: &Member) {
        self.bytes += member.bytes();
        let profile = &member.profile;
        for topic in &profile.topics {
            self.topics.entry(topic.clone()).or_default().by_name += 1;
        }
        if let Some(regex) = &profile.regex {
            *self.regexes.entry(regex.clone()).or_insert(0) += 1;
        }
        if let Some(assignor) = &profile.server_assignor {
            *self.assignors.entry(assignor.clone()).or_insert(0) += 1;
        }
        if let Some(classic) = &profile.classic {
            self.classic += 1;
            for protocol in &classic.protocols {
                *self.classic_protocols.entry(protocol.name.clone()).or_insert(0) += 1;
            }
        }
        for partition in member.current.held() {
            *self.owners.entry(*partition).or_insert(0) += 1;
        }
        if member.current.state == MemberState::Stable {
            *self.stable.entry(member.current.epoch).or_insert(0) += 1;
        }
    }

    /// Subtracts a member that was removed, or that will be added again as it is now.
    pub(crate) fn subtract(&mut self, member: &Member) {
        self.bytes -= member.bytes();
        let profile = &member.profile;
        for topic in &profile.topics {
            self.count_topic(topic, |subscribers| subscribers.by_name -= 1);
        }
        if let Some(regex) = &profile.regex {
            decrement(&mut self.regexes, regex);
        }
        if let Some(assignor) = &profile.server_assignor {
            decrement(&mut self.assignors, assignor);
        }
        if let Some(classic) = &profile.classic {
            self.classic -= 1;
            for protocol in &classic.protocols {
                decrement(&mut self.classic_protocols, &protocol.name);
            }
        }
        for partition in member.current.held() {
            decrement(&mut self.owners, partition);
        }
        if member.current.state == MemberState::Stable {
            decrement(&mut self.stable, &member.current.epoch);
        }
    }

    /// Adds the topics of a pattern.
    pub(crate) fn add_resolved(&mut self, resolved: &Resolved) {
        for topic in &resolved.topics {
            self.topics.entry(topic.clone()).or_default().by_regex += 1;
        }
    }

    /// Subtracts the former topics of a pattern.
    pub(crate) fn subtract_resolved(&mut self, resolved: &Resolved) {
        for topic in &resolved.topics {
            self.count_topic(topic, |subscribers| subscribers.by_regex -= 1);
        }
    }

    fn count_topic(&mut self, topic: &str, count: impl FnOnce(&mut Subscribers)) {
        let subscribers = self.topics.get_mut(topic).expect("what is subtracted was added");
        count(subscribers);
        if *subscribers == Subscribers::default() {
            self.topics.remove(topic);
        }
    }

    /// Returns true if all of `members` subscribe to the same topics. As in Kafka only counts are compared: members which name topics that
    /// others match by a pattern count as different.
    pub(crate) fn is_homogeneous(&self, members: usize) -> bool {
        match self.regexes.values().next() {
            None => self.topics.values().all(|topic| topic.by_name == members),
            Some(count) if *count == members => {
                self.topics.values().all(|topic| topic.by_regex == 1 && topic.by_name == 0)
            }
            Some(_) => false,
        }
    }

    /// The assignor that most members ask for; in a tie the first by name.
    pub(crate) fn preferred_assignor(&self) -> Option<&str> {
        let most = self.assignors.values().max()?;
        self.assignors.iter().find(|(_, count)| *count == most).map(|(name, _)| &**name)
    }
}

fn decrement<K: Ord + Clone>(counts: &mut BTreeMap<K, usize>, key: &K) {
    let count = counts.get_mut(key).expect("what is subtracted was added");
    *count -= 1;
    if *count == 0 {
        counts.remove(key);
    }
}
