//! Removal of offsets and groups: by expiry, by DeleteGroups (42) and OffsetDelete (47), and with their topic.
//!
//! A tombstone takes effect when it is durable, like any record. Until then a group that is being deleted is Dead: members are asked to
//! find their coordinator again, so nothing is lost between the decision and its record.

use std::collections::HashSet;
use std::sync::Arc;

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::offset_delete_request::OffsetDeleteRequest;
use mainstem_wire::messages::offset_delete_response::{
    OffsetDeleteResponse, OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};

use super::api::Reply;
use super::classic::{ClassicGroup, State};
use super::committed_offset::{CommittedOffset, TopicPartition};
use super::completion::{Completion, Held};
use super::group::{Group, Groups, Occupancy, Protocol};
use super::io::Io;
use super::lifetime::drop_if_nothing;
use super::log::CoordinatorRecord;
use super::token::Token;
use super::{memory, rebalance, records, refused, transaction_offsets};

/// The offsets and tombstones to write for one group.
struct Removal {
    group: Arc<str>,
    offsets: Vec<TopicPartition>,
    /// The tombstones of the group itself; none if it stays.
    own: Vec<CoordinatorRecord>,
}

/// Removes offsets that have expired by their age, and groups that have neither members nor offsets.
pub(crate) fn expire(groups: &mut Groups, io: &mut Io<'_>) {
    let committing: HashSet<Arc<str>> = io.appends.committing_groups().cloned().collect();
    let removals: Vec<Removal> = groups
        .values_mut()
        .filter(|group| !group.converting && !committing.contains(group.id()))
        .filter_map(|group| expired(group, io))
        .collect();
    for removal in removals {
        write(io, removal, None);
    }
}

/// Returns the offsets of a group that have expired now, by the wall clock. As in Kafka, an offset stays while an open transaction may
/// change it.
fn expired(group: &mut Group, io: &Io<'_>) -> Option<Removal> {
    let mut offsets = Vec::new();
    for (topic, partitions) in group.offsets.iter() {
        if group.is_subscribed_to(topic) {
            continue;
        }
        let old = partitions.iter().filter(|(partition, offset)| {
            has_expired(&group.protocol, offset, io) && !group.open_offsets.contains(topic, **partition)
        });
        offsets
            .extend(old.map(|(partition, _)| TopicPartition { topic: topic.clone(), partition: *partition }));
    }
    let all = offsets.len() == group.offsets.len() && group.open_offsets.is_empty();
    let group_too = all && is_idle(&group.protocol);
    let own = if group_too { mark_dead(group) } else { Vec::new() };
    (group_too || !offsets.is_empty()).then(|| Removal { group: group.id().clone(), offsets, own })
}

/// Marks a group as being deleted; returns its tombstones.
fn mark_dead(group: &mut Group) -> Vec<CoordinatorRecord> {
    group.set_dead(true);
    match &group.protocol {
        Protocol::Classic(group) => vec![records::group_tombstone(&group.id)],
        Protocol::Consumer(group) => {
            group.tombstones().iter().map(|tombstone| tombstone.record(&group.id)).collect()
        }
    }
}

/// Returns true if a group has no member, and none is joining.
fn is_idle(protocol: &Protocol) -> bool {
    match protocol {
        Protocol::Classic(group) => {
            group.state == State::Empty && group.pending_joins.is_empty() && group.pending_writes == 0
        }
        Protocol::Consumer(group) => group.members().is_empty() && group.pending_writes == 0 && !group.dead,
    }
}

/// KIP-211: a group that only stores offsets keeps each for the retention time after its commit; a group that has
/// had members keeps all of them for that time after the last one left; consumers keep what they subscribe to.
fn has_expired(protocol: &Protocol, offset: &CommittedOffset, io: &Io<'_>) -> bool {
    let Some(since) = keeps_since(protocol, offset.commit_timestamp_ms) else { return false };
    match offset.expire_timestamp_ms() {
        Some(at) => io.now.wall_ms >= at,
        None => io.now.wall_ms.saturating_sub(since) >= io.config.offsets_retention_ms,
    }
}

/// The time at which the retention of an offset began that was committed at `committed`, wall clock milliseconds; None if it has not begun.
fn keeps_since(protocol: &Protocol, committed: i64) -> Option<i64> {
    let Protocol::Classic(group) = protocol else { return Some(committed) };
    match group.state {
        _ if group.protocol_type.is_none() => Some(committed),
        State::Empty => Some(group.state_timestamp_ms.unwrap_or(committed)),
        State::Stable if group.uses_consumer_protocol() && group.subscribed_topics.is_some() => {
            Some(committed)
        }
        _ => None,
    }
}

/// Serves one group of a DeleteGroups. Open transactions do not keep a group without members; their offsets go with it.
pub(crate) fn delete_group(groups: &mut Groups, io: &mut Io<'_>, token: Token, id: &str) {
    match deletable(groups, id) {
        Err(error) => io.reply(token, Reply::DeleteGroup(error)),
        Ok(group) => {
            let mut offsets: Vec<TopicPartition> = partitions_of(group);
            offsets.extend(io.appends.pending_offsets(id).cloned());
            let removal = Removal { group: group.id().clone(), offsets, own: mark_dead(group) };
            write(io, removal, Some((token, Reply::DeleteGroup(ErrorCode::NONE))));
        }
    }
}

fn deletable<'a>(groups: &'a mut Groups, id: &str) -> Result<&'a mut Group, ErrorCode> {
    let group = groups.get_mut(id).ok_or(ErrorCode::GROUP_ID_NOT_FOUND)?;
    match group.occupancy() {
        Occupancy::Dead => Err(ErrorCode::GROUP_ID_NOT_FOUND),
        Occupancy::Changing => Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS),
        // The outcome of that record would meet the next group of this name. The client tries again.
        Occupancy::Empty if group.has_pending_writes() => Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS),
        Occupancy::Empty => Ok(group),
        Occupancy::Consumers | Occupancy::Others => Err(ErrorCode::NON_EMPTY_GROUP),
    }
}

/// Partitions with an offset, be it committed or that of an open transaction, each once.
fn partitions_of(group: &Group) -> Vec<TopicPartition> {
    let committed = group.offsets.iter().flat_map(|(topic, partitions)| {
        partitions.iter().map(|(partition, _)| TopicPartition { topic: topic.clone(), partition: *partition })
    });
    let open = group.open_offsets.partitions();
    let only_open = open.filter(|(topic, partition)| group.offsets.get(topic, *partition).is_none());
    committed
        .chain(only_open.map(|(topic, partition)| TopicPartition { topic: topic.clone(), partition }))
        .collect()
}

/// Serves an OffsetDelete.
pub(crate) fn delete_offsets(
    groups: &mut Groups,
    io: &mut Io<'_>,
    token: Token,
    request: &OffsetDeleteRequest<'_>,
) {
    let Some(group) = groups.get(&*request.group_id) else {
        return io.reply(token, refused::offset_delete(ErrorCode::GROUP_ID_NOT_FOUND));
    };
    match group.occupancy() {
        Occupancy::Dead => return io.reply(token, refused::offset_delete(ErrorCode::GROUP_ID_NOT_FOUND)),
        Occupancy::Changing => {
            return io.reply(token, refused::offset_delete(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS));
        }
        Occupancy::Empty | Occupancy::Consumers => {}
        Occupancy::Others => return io.reply(token, refused::offset_delete(ErrorCode::NON_EMPTY_GROUP)),
    }
    let pending: HashSet<TopicPartition> = io.appends.pending_offsets(&request.group_id).cloned().collect();
    let (reply, offsets) = pick(group, io, &pending, request);
    if offsets.is_empty() {
        return io.reply(token, reply);
    }
    let removal = Removal { group: group.id().clone(), offsets, own: Vec::new() };
    write(io, removal, Some((token, reply)));
}

/// The offsets that an OffsetDelete may remove, each once, and its answer. Offsets of topics that members read stay.
fn pick(
    group: &Group,
    io: &mut Io<'_>,
    pending: &HashSet<TopicPartition>,
    request: &OffsetDeleteRequest<'_>,
) -> (Reply, Vec<TopicPartition>) {
    let (mut offsets, mut picked) = (Vec::new(), HashSet::new());
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in &request.topics {
        let in_use = group.is_subscribed_to(&topic.name);
        let error = if in_use { ErrorCode::GROUP_SUBSCRIBED_TO_TOPIC } else { ErrorCode::NONE };
        let indexes = topic.partitions.iter().map(|partition| partition.partition_index);
        for partition in indexes.clone().filter(|_| !in_use) {
            let at = TopicPartition { topic: io.topics.intern(&topic.name), partition };
            let exists = pending.contains(&at)
                || group.offsets.get(&topic.name, partition).is_some()
                || group.open_offsets.contains(&topic.name, partition);
            if exists && picked.insert(at.clone()) {
                offsets.push(at);
            } else {
                io.topics.release(at.topic);
            }
        }
        let partitions = indexes
            .map(|partition_index| OffsetDeleteResponsePartition { partition_index, error_code: error.0 });
        topics.push(OffsetDeleteResponseTopic {
            name: topic.name.to_string().into(),
            partitions: partitions.collect(),
        });
    }
    (Reply::OffsetDelete(OffsetDeleteResponse { topics, ..Default::default() }), offsets)
}

/// Removes the offsets of a topic that was deleted.
pub(crate) fn forget_topic(groups: &Groups, io: &mut Io<'_>, topic: &str) {
    for group in groups.values() {
        let mut offsets = partitions_of(group);
        offsets.extend(io.appends.pending_offsets(group.id()).cloned());
        offsets.retain(|at| *at.topic == *topic);
        if !offsets.is_empty() {
            write(io, Removal { group: group.id().clone(), offsets, own: Vec::new() }, None);
        }
    }
}

/// Writes the tombstones, not too many at a time; the last append carries the group's own and the answer.
fn write(io: &mut Io<'_>, removal: Removal, held: Held) {
    let Removal { group, mut offsets, own } = removal;
    let max = io.config.tombstones_per_append_max.max(1);
    while offsets.len() > max {
        let rest = offsets.split_off(max);
        append(io, Removal { group: group.clone(), offsets, own: Vec::new() }, None);
        offsets = rest;
    }
    append(io, Removal { group, offsets, own }, held);
}

fn append(io: &mut Io<'_>, removal: Removal, held: Held) {
    let Removal { group, offsets, own } = removal;
    let group_too = !own.is_empty();
    let mut tombstones: Vec<_> =
        offsets.iter().map(|at| records::offset_tombstone(&group, &at.topic, at.partition)).collect();
    tombstones.extend(own);
    io.append(tombstones, Completion::Removed { group, offsets, group_too, held });
}

/// Removes the offsets and groups whose tombstones are durable.
pub(crate) fn removed(
    groups: &mut Groups,
    io: &mut Io<'_>,
    id: &Arc<str>,
    offsets: Vec<TopicPartition>,
    group_too: bool,
) {
    for TopicPartition { topic, partition } in offsets {
        remove_offset(groups, io, id, &topic, partition);
        io.topics.release(topic);
    }
    if group_too {
        remove_group(groups, io, id);
    }
}

/// Removes one offset, also of open transactions, and its group if nothing else is left of it.
pub(crate) fn remove_offset(groups: &mut Groups, io: &mut Io<'_>, id: &str, topic: &str, partition: i32) {
    let Some(group) = groups.get_mut(id) else { return };
    if let Some(removed) = group.offsets.remove(topic, partition, io.topics) {
        io.usage.offsets -= 1;
        io.usage.bytes -= memory::offset(&removed);
    }
    transaction_offsets::forget(group, io, topic, partition);
    drop_if_nothing(groups, io, id);
}

/// Removes a group whose tombstone is durable. If offsets were committed behind it, they stay as a group that only stores offsets.
fn remove_group(groups: &mut Groups, io: &mut Io<'_>, id: &Arc<str>) {
    let Some(group) = groups.get_mut(id) else { return };
    match &mut group.protocol {
        Protocol::Classic(classic) => {
            if classic.state == State::Dead {
                // Only pending joins can be left.
                rebalance::end_waits(classic, io, ErrorCode::UNKNOWN_MEMBER_ID);
                classic.reset(io.now.wall_ms);
                io.recount(classic);
            }
            classic.stored = false;
        }
        Protocol::Consumer(_) => {
            io.exchange(group, Protocol::Classic(ClassicGroup::new(id.clone(), io.now.wall_ms)));
        }
    }
    drop_if_nothing(groups, io, id);
}

/// Handles tombstones that could not be written: everything stays, and a group that was to be deleted is Empty as before.
pub(crate) fn not_removed(
    groups: &mut Groups,
    io: &mut Io<'_>,
    id: &str,
    offsets: Vec<TopicPartition>,
    group_too: bool,
) {
    for at in offsets {
        io.topics.release(at.topic);
    }
    if group_too && let Some(group) = groups.get_mut(id) {
        group.set_dead(false);
    }
}
