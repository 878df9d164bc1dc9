//! The target assignment: the partitions that each member of an epoch is to have in the end.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use mainstem_config::Assignor;
use mainstem_wire::Uuid;

use super::super::member::MemberId;
use super::assignor::{GroupSpec, Marks, MemberSpec, Topics, assign};
use super::change::{Change, GroupEpoch, TargetEpoch};
use super::group::ConsumerGroup;
use super::member::Profile;
use super::partitions::Assignment;
use super::reconcile::subscribed_topics;
use super::topics::ClusterTopics;
use super::turn::Turn;

/// Raises the group's epoch if `bump` is true, or if the subscribed topics have changed.
pub(crate) fn update_epoch(turn: &mut Turn<'_>, bump: bool) {
    if !bump && !turn.group.topics_changed {
        return;
    }
    let hash = turn.topics.group_hash(turn.group.counts().topics.keys().map(|name| &**name));
    if bump || hash != turn.group.metadata_hash() {
        let epoch = turn.group.epoch().saturating_add(1);
        turn.put(Change::Group(Some(GroupEpoch { epoch, metadata_hash: hash })));
    }
    turn.group.topics_changed = false;
    if turn.group.has_partition_metadata() {
        turn.put(Change::PartitionMetadata(false));
    }
}

/// Computes the target of the group's epoch, unless it exists or the last one is too young.
pub(crate) fn update_target(turn: &mut Turn<'_>) {
    let now_ms = turn.now.mono_ms;
    let interval_ms = turn.config.consumer.of(&turn.group.id).assignment_interval_ms;
    let interval_ms = u64::try_from(interval_ms).unwrap_or(0);
    let too_young = turn.group.assigned_at_ms.is_some_and(|at| now_ms < at.saturating_add(interval_ms));
    if turn.group.assignment_epoch() >= turn.group.epoch() || too_young {
        return;
    }
    for (id, target) in new_targets(turn) {
        turn.put(Change::Target(id, Some(target)));
    }
    let (epoch, timestamp_ms) = (turn.group.epoch(), turn.now.wall_ms);
    turn.put(Change::TargetEpoch(Some(TargetEpoch { epoch, timestamp_ms })));
    turn.group.assigned_at_ms = Some(now_ms);
}

/// The new targets of members, as far as they differ from the old ones.
fn new_targets(turn: &Turn<'_>) -> Vec<(MemberId, Assignment)> {
    let group = &*turn.group;
    let assignor = group.counts().preferred_assignor().and_then(Assignor::named);
    let assignor = assignor.unwrap_or_else(|| turn.config.consumer.default_assignor());
    let subscriptions = subscriptions(group, turn.topics);
    let known = |id: &Uuid| turn.topics.name(id).and_then(|name| turn.topics.get(name));
    let lists = subscriptions.chunk_by(Rc::ptr_eq).flat_map(|alike| alike[0].iter());
    let topics: Topics = lists.filter_map(known).map(|topic| (topic.id, topic.partitions)).collect();
    // The log may hold assignments that no coordinator writes: a partition that does not exist, or one that two members have.
    let mut free = Marks::of(&topics);
    let members = group.members().iter().zip(subscriptions).map(|((id, member), topics)| MemberSpec {
        id,
        instance_id: member.profile.instance_id.as_deref(),
        topics,
        assigned: group.target(id).map_or_else(Cow::default, |target| free.claim(target)),
    });
    let members: Vec<MemberSpec<'_>> = members.collect();
    let homogeneous = group.counts().is_homogeneous(members.len());
    let spec = GroupSpec { members, topics, homogeneous };
    let targets = group.members().keys().zip(assign(assignor, &spec));
    let new = targets.filter(|(id, target)| group.target(id) != Some(target));
    new.map(|(id, target)| (Arc::clone(id), target.into_owned())).collect()
}

/// The existing topics that each member subscribes to. Neighbours that subscribe alike share one list: most groups have one in all.
fn subscriptions(group: &ConsumerGroup, topics: &ClusterTopics) -> Vec<Rc<[Uuid]>> {
    let mut lists: Vec<Rc<[Uuid]>> = Vec::with_capacity(group.members().len());
    let mut before: Option<&Profile> = None;
    for member in group.members().values() {
        let profile = &member.profile;
        let is_alike = before.is_some_and(|before| before.subscribes_like(profile));
        let shared = lists.last().filter(|_| is_alike).cloned();
        let list = || subscribed_topics(group, topics, member).into_iter().collect();
        lists.push(shared.unwrap_or_else(list));
        before = Some(profile);
    }
    lists
}
