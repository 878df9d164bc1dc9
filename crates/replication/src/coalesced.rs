//! Coalesced heartbeats: one frame repeats the heartbeats of all groups of a node to another one that have nothing new to say.
//!
//! A leader whose follower has everything says so once, in a heartbeat that is coalesced from then on: the sender repeats all of them
//! on a link by one number, and the receiver answers all by one frame. A heartbeat is withdrawn where the sender does not lead any more,
//! or does not get to say so in time; the receiver refuses it where it does not follow that leader any more, and then it is sent in full
//! again.
//!
//! Both ends of a link see its frames in order, so that they agree on which heartbeats are coalesced. Those of a link end with it.

use std::collections::BTreeMap;

/// A repeat of all heartbeats that are coalesced.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repeat {
    /// Ascends, also from one link to the next one.
    pub number: u64,
    /// The numbers of groups whose heartbeats are coalesced no more.
    pub withdrawn: Vec<u32>,
}

/// The answer to a [`Repeat`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepeatAnswer {
    /// The number of the repeat.
    pub number: u64,
    /// The groups for which it was nothing: their replicas do not follow that leader.
    pub refused: Vec<u32>,
}

/// Heartbeats that are coalesced, at the sender. `G` is what it knows of each.
#[derive(Debug)]
pub struct CoalescedHeartbeats<G> {
    /// By the group's number on the link, with the number of the first repeat that covers it.
    groups: BTreeMap<u32, (u64, G)>,
    number: u64,
    /// Repeats up to this one were of earlier links.
    begun_behind: u64,
}

impl<G> Default for CoalescedHeartbeats<G> {
    fn default() -> Self {
        CoalescedHeartbeats { groups: BTreeMap::new(), number: 0, begun_behind: 0 }
    }
}

impl<G> CoalescedHeartbeats<G> {
    /// Begins a new link: none is coalesced on it.
    pub fn begin(&mut self) {
        self.groups.clear();
        self.begun_behind = self.number;
    }

    /// Coalesces a heartbeat that was sent in full, in the place of an earlier one of its group.
    pub fn insert(&mut self, alias: u32, group: G) {
        self.groups.insert(alias, (self.number + 1, group));
    }

    /// Returns true if none is coalesced.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The next repeat, which withdraws what `holds` does not confirm; `None`: none is coalesced.
    pub fn repeat(&mut self, mut holds: impl FnMut(&G) -> bool) -> Option<Repeat> {
        if self.groups.is_empty() {
            return None;
        }
        let withdrawn =
            self.groups.extract_if(.., |_, (_, group)| !holds(group)).map(|(alias, _)| alias).collect();
        self.number += 1;
        Some(Repeat { number: self.number, withdrawn })
    }

    /// Takes the answer to a repeat: `on_accepted` is called for each group that it was of. Returns the groups that were refused,
    /// whose heartbeats are coalesced no more.
    pub fn answered(&mut self, answer: &RepeatAnswer, mut on_accepted: impl FnMut(&G)) -> Vec<G> {
        let RepeatAnswer { number, refused } = answer;
        if !(self.begun_behind + 1..=self.number).contains(number) {
            return Vec::new();
        }
        // A heartbeat that is coalesced since a later repeat was not refused by this answer.
        let is_of = |since: u64| since <= *number;
        let mut gone = Vec::new();
        for alias in refused {
            if self.groups.get(alias).is_some_and(|(since, _)| is_of(*since)) {
                gone.extend(self.groups.remove(alias).map(|(_, group)| group));
            }
        }
        self.groups.values().filter(|(since, _)| is_of(*since)).for_each(|(_, group)| on_accepted(group));
        gone
    }
}

/// Heartbeats that are coalesced, at the receiver.
#[derive(Debug, Default)]
pub struct AcceptedHeartbeats {
    /// The term of each, by the group's number on the link.
    groups: BTreeMap<u32, u64>,
}

impl AcceptedHeartbeats {
    /// Notes that the heartbeat of a term came in full, and is coalesced from now on.
    pub fn insert(&mut self, alias: u32, term: u64) {
        self.groups.insert(alias, term);
    }

    /// Takes a repeat; `accepts` returns true if a group follows the leader of the term.
    pub fn take(&mut self, repeat: &Repeat, mut accepts: impl FnMut(u32, u64) -> bool) -> RepeatAnswer {
        repeat.withdrawn.iter().for_each(|alias| _ = self.groups.remove(alias));
        let refused = self.groups.extract_if(.., |alias, term| !accepts(*alias, *term));
        let refused = refused.map(|(alias, _)| alias).collect();
        RepeatAnswer { number: repeat.number, refused }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_is_repeated_until_it_is_withdrawn_or_refused() {
        let (mut sender, mut receiver) = (CoalescedHeartbeats::default(), AcceptedHeartbeats::default());
        assert_eq!(sender.repeat(|_: &char| true), None);
        for (alias, name) in ['a', 'b', 'c'].into_iter().enumerate() {
            sender.insert(alias as u32, name);
            receiver.insert(alias as u32, 5);
        }
        let repeat = sender.repeat(|name| *name != 'a').expect("some are coalesced");
        assert_eq!(repeat.withdrawn, [0]);
        let answer = receiver.take(&repeat, |alias, term| {
            assert!(alias != 0 && term == 5, "it was withdrawn");
            alias != 1
        });
        assert_eq!(answer.refused, [1]);
        let mut accepted = Vec::new();
        assert_eq!(sender.answered(&answer, |name| accepted.push(*name)), ['b']);
        assert_eq!(accepted, ['c']);
        let repeat = sender.repeat(|_| true).expect("one is coalesced");
        assert!(receiver.take(&repeat, |alias, _| alias == 2).refused.is_empty());
    }

    #[test]
    fn an_answer_is_of_those_that_were_coalesced_when_it_was_asked_for() {
        let mut sender = CoalescedHeartbeats::default();
        sender.insert(0, 'a');
        let number = sender.repeat(|_| true).expect("one is coalesced").number;
        // Sent in full again meanwhile: the refusal was of the one before.
        sender.insert(0, 'b');
        let answer = RepeatAnswer { number, refused: vec![0] };
        assert_eq!(sender.answered(&answer, |_| panic!("it was not asked for")), []);
        sender.begin();
        sender.insert(0, 'c');
        assert_eq!(sender.answered(&answer, |_| panic!("another link")), []);
        let ahead = RepeatAnswer { number: number + 1, refused: vec![0] };
        assert_eq!(sender.answered(&ahead, |_| panic!("it was not sent yet")), []);
        assert!(!sender.is_empty());
    }
}
