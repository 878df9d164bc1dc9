//! A group as an assignor sees it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;

use mainstem_wire::Uuid;

use super::super::partitions::{Assignment, Partition};

/// One member, as an assignor sees it.
#[derive(Debug)]
pub(crate) struct MemberSpec<'a> {
    pub(crate) id: &'a str,
    /// KIP-345: set for a static member.
    pub(crate) instance_id: Option<&'a str>,
    /// The topics that it subscribes to and that exist, in the order of [`Topics`]. Members that subscribe alike may
    /// share the list.
    pub(crate) topics: Rc<[Uuid]>,
    /// The member's part of the last target. No partition is given to two members, and all of them exist.
    pub(crate) assigned: Cow<'a, Assignment>,
}

impl MemberSpec<'_> {
    pub(super) fn is_subscribed_to(&self, topic: &Uuid) -> bool {
        self.topics.binary_search(topic).is_ok()
    }
}

/// The topics that any member subscribes to and that exist, with their numbers of partitions.
pub(crate) type Topics = BTreeMap<Uuid, i32>;

/// A mark for each partition of some topics.
pub(crate) struct Marks(BTreeMap<Uuid, Vec<bool>>);

impl Marks {
    /// No partition is marked.
    pub(crate) fn of(topics: &Topics) -> Self {
        let marks = |count: &i32| vec![false; usize::try_from(*count).unwrap_or(0)];
        Self(topics.iter().map(|(topic, count)| (*topic, marks(count))).collect())
    }

    /// Marks the partitions of a set. Returns the set without those that do not exist or were marked before.
    pub(crate) fn claim<'s>(&mut self, set: &'s Assignment) -> Cow<'s, Assignment> {
        let mut refused = Vec::new();
        for (topic, partitions) in set.topics() {
            let mut marks = self.0.get_mut(&topic);
            let mut set = |index: i32| {
                let mark = marks.as_mut().and_then(|marks| marks.get_mut(usize::try_from(index).ok()?));
                mark.is_some_and(|mark| !std::mem::replace(mark, true))
            };
            refused.extend(partitions.iter().filter(|(_, index)| !set(*index)));
        }
        match refused.is_empty() {
            true => Cow::Borrowed(set),
            false => {
                Cow::Owned(set.iter().filter(|at| refused.binary_search(at).is_err()).copied().collect())
            }
        }
    }

    /// The partitions without a mark, in order.
    pub(super) fn unmarked(&self) -> impl Iterator<Item = Partition> {
        self.0.iter().flat_map(|(topic, marks)| {
            let indexes = (0..).zip(marks).filter(|(_, mark)| !**mark);
            indexes.map(move |(index, _)| (*topic, index))
        })
    }
}

/// A group as an assignor sees it.
#[derive(Debug)]
pub(crate) struct GroupSpec<'a> {
    /// In the order of their ids.
    pub(crate) members: Vec<MemberSpec<'a>>,
    pub(crate) topics: Topics,
    /// All members subscribe to the same topics.
    pub(crate) homogeneous: bool,
}
