//! Heartbeats that stand: what all groups of a node say to another one as before goes as one frame.
//!
//! A leader whose follower has everything says so once, in a heartbeat that stands. From then on the sender repeats all
//! heartbeats that stand on a link at once, by a number alone, and the receiver answers all of them at once. A heartbeat
//! is withdrawn where the sender does not lead any more, or does not get to say so in time; the receiver refuses it where
//! it does not follow that leader any more, and then it is sent in full again.
//!
//! Both ends of a link see its frames in order, so that they agree on what stands. What stood on a link ends with it.

use std::collections::BTreeMap;

/// All that stands, once more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repeat {
    /// Ascends, also from one link to the next one.
    pub number: u64,
    /// The numbers of groups whose heartbeats stand no more.
    pub withdrawn: Vec<u32>,
}

/// What is answered to a [`Repeat`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepeatAnswer {
    /// The number of the repeat.
    pub number: u64,
    /// The groups for which it was nothing: their replicas do not follow that leader.
    pub refused: Vec<u32>,
}

/// Heartbeats that stand, at the sender. `G` is what it knows of each.
#[derive(Debug)]
pub struct Standing<G> {
    /// By the group's number on the link, with the number of the first repeat that covers it.
    groups: BTreeMap<u32, (u64, G)>,
    number: u64,
    /// Repeats up to this one were of earlier links.
    begun_behind: u64,
}

impl<G> Default for Standing<G> {
    fn default() -> Self {
        Standing { groups: BTreeMap::new(), number: 0, begun_behind: 0 }
    }
}

impl<G> Standing<G> {
    /// A new link begins: nothing stands on it.
    pub fn begin(&mut self) {
        self.groups.clear();
        self.begun_behind = self.number;
    }

    /// A heartbeat was sent that stands from now on, in the place of an earlier one of its group.
    pub fn insert(&mut self, alias: u32, group: G) {
        self.groups.insert(alias, (self.number + 1, group));
    }

    /// Whether nothing stands.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// What is to be sent so that all that stands is said again, without what `holds` does not confirm; `None` where
    /// nothing stands.
    pub fn repeat(&mut self, mut holds: impl FnMut(&G) -> bool) -> Option<Repeat> {
        if self.groups.is_empty() {
            return None;
        }
        let withdrawn =
            self.groups.extract_if(.., |_, (_, group)| !holds(group)).map(|(alias, _)| alias).collect();
        self.number += 1;
        Some(Repeat { number: self.number, withdrawn })
    }

    /// A repeat was answered: `heard` is called for each group that it was of. Returns the groups that were refused,
    /// whose heartbeats stand no more.
    pub fn answered(&mut self, answer: &RepeatAnswer, mut heard: impl FnMut(&G)) -> Vec<G> {
        let RepeatAnswer { number, refused } = answer;
        if !(self.begun_behind + 1..=self.number).contains(number) {
            return Vec::new();
        }
        // What stands since a later repeat was not refused by this answer.
        let is_of = |since: u64| since <= *number;
        let mut gone = Vec::new();
        for alias in refused {
            if self.groups.get(alias).is_some_and(|(since, _)| is_of(*since)) {
                gone.extend(self.groups.remove(alias).map(|(_, group)| group));
            }
        }
        self.groups.values().filter(|(since, _)| is_of(*since)).for_each(|(_, group)| heard(group));
        gone
    }
}

/// Heartbeats that stand, at the receiver.
#[derive(Debug, Default)]
pub struct Repeated {
    /// The term of each, by the group's number on the link.
    groups: BTreeMap<u32, u64>,
}

impl Repeated {
    /// A heartbeat of a term came that stands.
    pub fn insert(&mut self, alias: u32, term: u64) {
        self.groups.insert(alias, term);
    }

    /// Takes a repeat; `hears` says whether it counts for a group: whether that follows the leader of the term.
    pub fn take(&mut self, repeat: &Repeat, mut hears: impl FnMut(u32, u64) -> bool) -> RepeatAnswer {
        repeat.withdrawn.iter().for_each(|alias| _ = self.groups.remove(alias));
        let refused = self.groups.extract_if(.., |alias, term| !hears(*alias, *term));
        let refused = refused.map(|(alias, _)| alias).collect();
        RepeatAnswer { number: repeat.number, refused }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_is_heard_until_it_is_withdrawn_or_refused() {
        let (mut standing, mut repeated) = (Standing::default(), Repeated::default());
        assert_eq!(standing.repeat(|_: &char| true), None);
        for (alias, name) in ['a', 'b', 'c'].into_iter().enumerate() {
            standing.insert(alias as u32, name);
            repeated.insert(alias as u32, 5);
        }
        let repeat = standing.repeat(|name| *name != 'a').expect("some stand");
        assert_eq!(repeat.withdrawn, [0]);
        let answer = repeated.take(&repeat, |alias, term| {
            assert!(alias != 0 && term == 5, "it was withdrawn");
            alias != 1
        });
        assert_eq!(answer.refused, [1]);
        let mut heard = Vec::new();
        assert_eq!(standing.answered(&answer, |name| heard.push(*name)), ['b']);
        assert_eq!(heard, ['c']);
        let answer = repeated.take(&standing.repeat(|_| true).expect("one stands"), |alias, _| alias == 2);
        assert!(answer.refused.is_empty());
    }

    #[test]
    fn an_answer_is_of_what_stood_when_it_was_asked_for() {
        let mut standing = Standing::default();
        standing.insert(0, 'a');
        let number = standing.repeat(|_| true).expect("one stands").number;
        // Sent in full again meanwhile: the refusal was of the one before.
        standing.insert(0, 'b');
        let answer = RepeatAnswer { number, refused: vec![0] };
        assert_eq!(standing.answered(&answer, |_| panic!("it was not asked for")), []);
        standing.begin();
        standing.insert(0, 'c');
        assert_eq!(standing.answered(&answer, |_| panic!("another link")), []);
        let ahead = RepeatAnswer { number: number + 1, refused: vec![0] };
        assert_eq!(standing.answered(&ahead, |_| panic!("it was not sent yet")), []);
        assert!(!standing.is_empty());
    }
}
