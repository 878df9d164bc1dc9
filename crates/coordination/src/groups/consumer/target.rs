//! The target assignment: what every member of an epoch is to have in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainstem_wire::Uuid;

use super::super::member::MemberId;
use super::assignor::{Assignor, GroupSpec, MemberSpec};
use super::change::{Change, GroupEpoch, TargetEpoch};
use super::partitions::{Assignment, Partition};
use super::reconcile::subscribed_topics;
use super::turn::Turn;

/// Moves the group's epoch if `bump` says so, or if the topics that members subscribe to are not those of the last
/// time.
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

/// Computes the target of the group's epoch, unless it is there or the last one is too young.
pub(crate) fn update_target(turn: &mut Turn<'_>) {
    let now_ms = turn.now.mono_ms;
    let interval_ms = turn.config.consumer.of(&turn.group.id).assignment_interval_ms;
    let interval_ms = u64::try_from(interval_ms).unwrap_or(0);
    let too_young = turn.group.assigned_at_ms.is_some_and(|at| now_ms < at.saturating_add(interval_ms));
    if turn.group.assignment_epoch() >= turn.group.epoch() || too_young {
        return;
    }
    for (id, target) in targets(turn) {
        if turn.group.target(&id) != Some(&target) {
            turn.put(Change::Target(id, Some(target)));
        }
    }
    let (epoch, timestamp_ms) = (turn.group.epoch(), turn.now.wall_ms);
    turn.put(Change::TargetEpoch(Some(TargetEpoch { epoch, timestamp_ms })));
    turn.group.assigned_at_ms = Some(now_ms);
}

/// The assignor's answer for every member.
fn targets(turn: &Turn<'_>) -> Vec<(MemberId, Assignment)> {
    let group = &*turn.group;
    let assignor = group.counts().preferred_assignor().and_then(Assignor::named);
    let assignor = assignor.unwrap_or_else(|| turn.config.consumer.default_assignor());
    let mut counts: BTreeMap<Uuid, i32> = BTreeMap::new();
    let mut taken: BTreeSet<Partition> = BTreeSet::new();
    let mut members = Vec::with_capacity(group.members().len());
    for (id, member) in group.members() {
        let topics: Vec<Uuid> = subscribed_topics(group, turn.topics, member).into_iter().collect();
        let count = |topic: &Uuid| {
            let topic = turn.topics.name(topic).and_then(|name| turn.topics.get(name))?;
            Some((topic.id, topic.partitions))
        };
        counts.extend(topics.iter().filter_map(count));
        // The log may hold what no coordinator writes: a partition that is not there, or one that two members have.
        let exists = |at: &Partition| match turn.topics.name(&at.0).and_then(|name| turn.topics.get(name)) {
            Some(topic) => (0..topic.partitions).contains(&at.1),
            None => false,
        };
        let last = group.target(id).into_iter().flat_map(Assignment::iter);
        let assigned = last.filter(|at| exists(at) && taken.insert(**at)).copied().collect();
        members.push(MemberSpec { id, instance_id: member.profile.instance_id.as_deref(), topics, assigned });
    }
    let homogeneous = group.counts().is_homogeneous(members.len());
    let ids: Vec<MemberId> = group.members().keys().map(Arc::clone).collect();
    let spec = GroupSpec { members, topics: counts, homogeneous };
    ids.into_iter().zip(assignor.assign(&spec)).collect()
}
