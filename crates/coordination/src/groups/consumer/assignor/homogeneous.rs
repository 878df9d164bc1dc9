//! `uniform` if all members subscribe to the same topics: no member has two partitions more than another, and members keep their partitions
//! up to their share.

use std::borrow::Cow;

use mainstem_wire::Uuid;

use super::super::partitions::{Assignment, Partition};
use super::spec::{GroupSpec, Marks, MemberSpec};

/// Assigns all partitions of the topics.
pub(super) fn assign<'g>(group: &'g GroupSpec<'_>) -> Vec<Cow<'g, Assignment>> {
    let mut spare = unassigned(group);
    let mut shares = Shares::of(group);
    let mut kept: Vec<(Cow<'g, Assignment>, usize)> = Vec::with_capacity(group.members.len());
    for (index, member) in group.members.iter().enumerate() {
        let quota = shares.quota();
        let keeps = keep(group, member, quota, &mut spare);
        let missing = shares.take(quota, keeps.len(), group.members.len() - index);
        kept.push((keeps, missing));
    }
    let mut spare = spare.into_iter();
    let assignments = kept.into_iter().map(|(keeps, missing)| match missing {
        0 => keeps,
        missing => Cow::Owned(keeps.with(spare.by_ref().take(missing))),
    });
    let assignments = assignments.collect();
    assert_eq!(spare.next(), None, "the shares of members add up to all partitions");
    assignments
}

/// Partitions that no member has, topic by topic.
fn unassigned(group: &GroupSpec<'_>) -> Vec<Partition> {
    let mut assigned = Marks::of(&group.topics);
    for member in &group.members {
        assigned.claim(&member.assigned);
    }
    assigned.unmarked().collect()
}

/// Returns the partitions that a member keeps under a quota, and pushes those beyond it to `spare`. Partitions of topics that the group
/// does not read any more are dropped.
fn keep<'g>(
    group: &'g GroupSpec<'_>,
    member: &'g MemberSpec<'_>,
    quota: usize,
    spare: &mut Vec<Partition>,
) -> Cow<'g, Assignment> {
    let is_read = |topic: &Uuid| group.topics.contains_key(topic);
    let has: Cow<'g, Assignment> = match member.assigned.topics().all(|(topic, _)| is_read(&topic)) {
        true => Cow::Borrowed(&*member.assigned),
        false => Cow::Owned(member.assigned.iter().filter(|(topic, _)| is_read(topic)).copied().collect()),
    };
    if has.len() <= quota {
        return has;
    }
    let (keeps, surplus) = has.split_at(quota);
    spare.extend_from_slice(surplus);
    Cow::Owned(keeps.iter().copied().collect())
}

/// The number of partitions that each of the remaining members may have.
struct Shares {
    least: usize,
    /// Members that may have one more than `least`.
    extra: usize,
}

impl Shares {
    fn of(group: &GroupSpec<'_>) -> Self {
        let partitions: usize = group.topics.values().map(|count| usize::try_from(*count).unwrap_or(0)).sum();
        Self { least: partitions / group.members.len(), extra: partitions % group.members.len() }
    }

    /// The quota of the next member: one more than the least while such larger shares remain.
    fn quota(&self) -> usize {
        self.least + usize::from(self.extra > 0)
    }

    /// Returns the number of partitions that a member still gets, which keeps `kept` of `quota`. It takes one of the larger shares in two
    /// cases: it fills the share already, or the `left` members (itself included) are no more than there are such shares. So later members
    /// that have more need not lose any.
    fn take(&mut self, quota: usize, kept: usize, left: usize) -> usize {
        let larger = quota > self.least;
        if larger && kept < quota && left > self.extra {
            return quota - 1 - kept;
        }
        self.extra -= usize::from(larger);
        quota - kept
    }
}
