//! Offsets and groups that go: by expiry, by DeleteGroups (42) and OffsetDelete (47), and with their topic.
//!
//! A tombstone takes effect when it is durable, like any record. Until then a group that goes is Dead: members are
//! told to look for their coordinator again, so nothing is lost between the decision and its record.

use std::collections::HashSet;
use std::sync::Arc;

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::offset_delete_request::OffsetDeleteRequest;
use mainstem_wire::messages::offset_delete_response::{
    OffsetDeleteResponse, OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};

use super::api::{Reply, Token};
use super::appends::Completion;
use super::classic::{ClassicGroup, State};
use super::group::{Group, Groups, Protocol};
use super::io::Io;
use super::offsets::{CommittedOffset, TopicPartition};
use super::rebalance::{self, Held};
use super::{memory, records};

/// What is to go, of one group.
struct Removal {
    group: Arc<str>,
    offsets: Vec<TopicPartition>,
    group_too: bool,
}

/// Looks for what has expired: offsets by their age, groups that have neither members nor offsets.
pub(crate) fn expire(groups: &mut Groups, io: &mut Io<'_>) {
    let committing: HashSet<Arc<str>> = io.appends.committing_groups().cloned().collect();
    let removals: Vec<Removal> = groups
        .values_mut()
        .filter_map(|group| {
            let Protocol::Classic(classic) = &group.protocol;
            if committing.contains(&classic.id) { None } else { expired(group, io) }
        })
        .collect();
    for removal in removals {
        write(io, removal, None);
    }
}

/// What of a group has expired now, by the wall clock.
fn expired(group: &mut Group, io: &Io<'_>) -> Option<Removal> {
    let Protocol::Classic(classic) = &mut group.protocol;
    let mut offsets = Vec::new();
    for (topic, partitions) in group.offsets.iter() {
        if classic.is_subscribed_to(topic) {
            continue;
        }
        let old = partitions.iter().filter(|(_, offset)| has_expired(classic, offset, io));
        offsets
            .extend(old.map(|(partition, _)| TopicPartition { topic: topic.clone(), partition: *partition }));
    }
    let group_too = offsets.len() == group.offsets.len()
        && classic.state == State::Empty
        && classic.pending_joins.is_empty()
        && classic.pending_writes == 0;
    if group_too {
        classic.state = State::Dead;
    }
    (group_too || !offsets.is_empty()).then(|| Removal { group: classic.id.clone(), offsets, group_too })
}

/// KIP-211: a group that only stores offsets keeps each for the retention time after its commit; a group that has
/// had members keeps all of them for that time after the last one left; consumers keep what they subscribe to.
fn has_expired(group: &ClassicGroup, offset: &CommittedOffset, io: &Io<'_>) -> bool {
    let committed = offset.commit_timestamp_ms;
    let since = match group.state {
        _ if group.protocol_type.is_none() => committed,
        State::Empty => group.state_timestamp_ms.unwrap_or(committed),
        State::Stable if group.uses_consumer_protocol() && group.subscribed_topics.is_some() => committed,
        _ => return false,
    };
    match offset.expire_timestamp_ms() {
        Some(at) => io.now.wall_ms >= at,
        None => io.now.wall_ms.saturating_sub(since) >= io.config.offsets_retention_ms,
    }
}

/// Serves one group of a DeleteGroups.
pub(crate) fn delete_group(groups: &mut Groups, io: &mut Io<'_>, token: Token, id: &str) {
    match deletable(groups, id) {
        Err(error) => io.reply(token, Reply::DeleteGroup(error)),
        Ok(group) => {
            let mut offsets: Vec<TopicPartition> = partitions_of(group);
            offsets.extend(io.appends.pending_offsets(id).cloned());
            let Protocol::Classic(classic) = &mut group.protocol;
            classic.state = State::Dead;
            let removal = Removal { group: classic.id.clone(), offsets, group_too: true };
            write(io, removal, Some((token, Reply::DeleteGroup(ErrorCode::NONE))));
        }
    }
}

fn deletable<'a>(groups: &'a mut Groups, id: &str) -> Result<&'a mut Group, ErrorCode> {
    let group = groups.get_mut(id).ok_or(ErrorCode::GROUP_ID_NOT_FOUND)?;
    let Protocol::Classic(classic) = &group.protocol;
    match classic.state {
        State::Dead => Err(ErrorCode::GROUP_ID_NOT_FOUND),
        State::Empty => Ok(group),
        _ => Err(ErrorCode::NON_EMPTY_GROUP),
    }
}

fn partitions_of(group: &Group) -> Vec<TopicPartition> {
    let all = group.offsets.iter().flat_map(|(topic, partitions)| {
        partitions.iter().map(|(partition, _)| TopicPartition { topic: topic.clone(), partition: *partition })
    });
    all.collect()
}

/// Serves an OffsetDelete.
pub(crate) fn delete_offsets(
    groups: &mut Groups,
    io: &mut Io<'_>,
    token: Token,
    request: &OffsetDeleteRequest<'_>,
) {
    let (group, classic) = match groups.get(&*request.group_id) {
        Some(group) => {
            let Protocol::Classic(classic) = &group.protocol;
            (group, classic)
        }
        None => return io.reply(token, offsets_refused(ErrorCode::GROUP_ID_NOT_FOUND)),
    };
    match classic.state {
        State::Dead => return io.reply(token, offsets_refused(ErrorCode::GROUP_ID_NOT_FOUND)),
        State::Empty => {}
        _ if classic.uses_consumer_protocol() => {}
        _ => return io.reply(token, offsets_refused(ErrorCode::NON_EMPTY_GROUP)),
    }
    let pending: HashSet<TopicPartition> = io.appends.pending_offsets(&request.group_id).cloned().collect();
    let (reply, offsets) = pick(group, classic, io, &pending, request);
    if offsets.is_empty() {
        return io.reply(token, reply);
    }
    let removal = Removal { group: classic.id.clone(), offsets, group_too: false };
    write(io, removal, Some((token, reply)));
}

/// The offsets that an OffsetDelete may take, each once, and its answer. Those of topics that members read stay.
fn pick(
    group: &Group,
    classic: &ClassicGroup,
    io: &mut Io<'_>,
    pending: &HashSet<TopicPartition>,
    request: &OffsetDeleteRequest<'_>,
) -> (Reply, Vec<TopicPartition>) {
    let (mut offsets, mut picked) = (Vec::new(), HashSet::new());
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in &request.topics {
        let in_use = classic.is_subscribed_to(&topic.name);
        let error = if in_use { ErrorCode::GROUP_SUBSCRIBED_TO_TOPIC } else { ErrorCode::NONE };
        let indexes = topic.partitions.iter().map(|partition| partition.partition_index);
        for partition in indexes.clone().filter(|_| !in_use) {
            let at = TopicPartition { topic: io.topics.intern(&topic.name), partition };
            let exists = pending.contains(&at) || group.offsets.get(&topic.name, partition).is_some();
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

/// The answer to OffsetDelete with an error for the whole request.
pub(crate) fn offsets_refused(error: ErrorCode) -> Reply {
    Reply::OffsetDelete(OffsetDeleteResponse { error_code: error.0, ..Default::default() })
}

/// A topic is gone, and the offsets in it with it.
pub(crate) fn forget_topic(groups: &Groups, io: &mut Io<'_>, topic: &str) {
    for group in groups.values() {
        let Protocol::Classic(classic) = &group.protocol;
        let mut offsets = partitions_of(group);
        offsets.extend(io.appends.pending_offsets(&classic.id).cloned());
        offsets.retain(|at| *at.topic == *topic);
        if !offsets.is_empty() {
            write(io, Removal { group: classic.id.clone(), offsets, group_too: false }, None);
        }
    }
}

/// Writes the tombstones, not too many at a time; the last append carries the group's own and the answer.
fn write(io: &mut Io<'_>, removal: Removal, held: Held) {
    let Removal { group, mut offsets, group_too } = removal;
    let max = io.config.tombstones_per_append_max.max(1);
    while offsets.len() > max {
        let rest = offsets.split_off(max);
        append(io, Removal { group: group.clone(), offsets, group_too: false }, None);
        offsets = rest;
    }
    append(io, Removal { group, offsets, group_too }, held);
}

fn append(io: &mut Io<'_>, removal: Removal, held: Held) {
    let Removal { group, offsets, group_too } = removal;
    let mut tombstones: Vec<_> =
        offsets.iter().map(|at| records::offset_tombstone(&group, &at.topic, at.partition)).collect();
    if group_too {
        tombstones.push(records::group_tombstone(&group));
    }
    io.append(tombstones, Completion::Removed { group, offsets, group_too, held });
}

/// Tombstones are durable: what they name is gone.
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

/// Takes one offset out, and its group if that was all there was of it.
pub(crate) fn remove_offset(groups: &mut Groups, io: &mut Io<'_>, id: &str, topic: &str, partition: i32) {
    let Some(group) = groups.get_mut(id) else { return };
    if let Some(removed) = group.offsets.remove(topic, partition, io.topics) {
        io.usage.offsets -= 1;
        io.usage.bytes -= memory::offset(&removed);
    }
    drop_if_nothing(groups, io, id);
}

/// Forgets a group that nothing says exists.
pub(crate) fn drop_if_nothing(groups: &mut Groups, io: &mut Io<'_>, id: &str) {
    if groups.get(id).is_some_and(Group::is_nothing) {
        if let Some(Group { protocol: Protocol::Classic(classic), .. }) = groups.remove(id) {
            io.uncount(&classic);
        }
        io.usage.groups -= 1;
    }
}

/// Takes a group out whose tombstone is durable. Offsets that came behind it keep it as a group that only stores
/// offsets.
fn remove_group(groups: &mut Groups, io: &mut Io<'_>, id: &Arc<str>) {
    let Some(group) = groups.get_mut(id) else { return };
    let Protocol::Classic(classic) = &mut group.protocol;
    if classic.state == State::Dead {
        // Only members that were told their id can still be there.
        rebalance::give_up(classic, io, ErrorCode::UNKNOWN_MEMBER_ID);
        classic.reset(io.now.wall_ms);
        io.recount(classic);
    }
    classic.stored = false;
    drop_if_nothing(groups, io, id);
}

/// Tombstones could not be written: everything stays, and a group that was to go is Empty as before.
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
        let Protocol::Classic(classic) = &mut group.protocol;
        if classic.state == State::Dead {
            classic.state = State::Empty;
        }
    }
}
