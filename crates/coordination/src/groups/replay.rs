//! Rebuilds the groups of a partition from its records, when this node becomes their coordinator.

use std::collections::BTreeSet;
use std::sync::Arc;

use mainstem_records::Producer;
use mainstem_wire::messages::group_metadata_value::{GroupMetadataValue, MemberMetadata};

use super::classic::{ClassicGroup, State};
use super::committed_offset::{PendingOffset, TopicPartition};
use super::consumer::change::Change;
use super::consumer::group::ConsumerGroup;
use super::consumer::timers;
use super::consumer::turn::settle;
use super::group::{Group, Groups, Protocol};
use super::io::Io;
use super::log::LogEntry;
use super::member::{Member, Protocol as Offered};
use super::records::{self, Record};
use super::{durable_offsets, lifetime, rebalance, removal, transaction_offsets};

/// The result of a replay, in numbers of records.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Replayed {
    /// Records, and ends of transactions, that were understood.
    pub applied: u64,
    /// Records of features or versions that this version does not read; they are left alone.
    pub skipped: u64,
    /// Records that do not decode. They are left out, and the operator of the node should know.
    pub malformed: u64,
}

/// Replays one entry of the log.
pub(crate) fn replay(groups: &mut Groups, io: &mut Io<'_>, entry: LogEntry<'_>, replayed: &mut Replayed) {
    let (key, value, producer) = match entry {
        LogEntry::Record { key, value, producer } => (key, value, producer),
        LogEntry::End(end) => {
            transaction_offsets::end(groups, io, end);
            replayed.applied += 1;
            return;
        }
    };
    // In a transaction only offsets wait for its end, as in Kafka; no other records are written in one.
    match records::decode(key, value) {
        Ok(Record::Offset { key, value: Some(offset) }) => {
            let at = TopicPartition { topic: io.topics.intern(&key.topic), partition: key.partition };
            replay_offset(groups, io, &key.group, PendingOffset { at, offset }, producer);
        }
        Ok(Record::Offset { key, value: None }) => {
            removal::remove_offset(groups, io, &key.group, &key.topic, key.partition);
        }
        Ok(Record::Group { key, value }) => replay_group(groups, io, &key.group, value.as_ref()),
        Ok(Record::Consumer { group, change }) => replay_consumer(groups, io, &group, change),
        Ok(Record::Other) => {
            replayed.skipped += 1;
            return;
        }
        Err(_) => {
            replayed.malformed += 1;
            return;
        }
    }
    replayed.applied += 1;
}

fn replay_offset(
    groups: &mut Groups,
    io: &mut Io<'_>,
    group: &str,
    offset: PendingOffset,
    producer: Option<Producer>,
) {
    let group = id_of(groups, group);
    match producer {
        Some(producer) => {
            let group = lifetime::group_of(groups, io, &group);
            transaction_offsets::add_one(group, io, producer.id, offset);
        }
        None => durable_offsets::insert(groups, io, &group, offset.at, offset.offset),
    }
}

/// The shared id of an existing group, or a new one.
fn id_of(groups: &Groups, id: &str) -> Arc<str> {
    groups.get_key_value(id).map_or_else(|| Arc::from(id), |(id, _)| id.clone())
}

fn replay_group(groups: &mut Groups, io: &mut Io<'_>, id: &str, value: Option<&GroupMetadataValue<'_>>) {
    let id = id_of(groups, id);
    let mut classic = match value {
        Some(value) => from_record(id.clone(), value, io.free_bytes()),
        None => ClassicGroup::new(id.clone(), io.now.wall_ms),
    };
    if !groups.contains_key(&id) {
        if value.is_none() {
            return;
        }
        groups.insert(id.clone(), Group::new(id.clone(), io.now.wall_ms));
        io.usage.groups += 1;
    }
    let group = groups.get_mut(&id).expect("it was there or put there");
    let Protocol::Classic(old) = &mut group.protocol else {
        // The record of a classic group is behind the tombstones of the consumer group that it was.
        if value.is_some() {
            io.exchange(group, Protocol::Classic(classic));
        }
        return;
    };
    io.usage.members = io.usage.members - old.members.len() + classic.members.len();
    classic.counted = old.counted;
    *old = classic;
    io.recount(old);
    lifetime::drop_if_nothing(groups, io, &id);
}

/// Replays a record of a consumer group. The first one that is no tombstone makes the group one.
fn replay_consumer(groups: &mut Groups, io: &mut Io<'_>, id: &str, change: Change) {
    let id = id_of(groups, id);
    if !groups.contains_key(&id) {
        if change.is_tombstone() {
            return;
        }
        groups.insert(id.clone(), Group::consumer(id.clone()));
        io.usage.groups += 1;
    }
    let group = groups.get_mut(&id).expect("it was there or put there");
    if matches!(group.protocol, Protocol::Classic(_)) {
        if change.is_tombstone() {
            return;
        }
        io.exchange(group, Protocol::Consumer(ConsumerGroup::new(id.clone())));
    }
    let Protocol::Consumer(consumer) = &mut group.protocol else { return };
    let members_before = consumer.members().len();
    consumer.apply(change);
    consumer.stored = consumer.has_records();
    settle(consumer, io, members_before);
    if !consumer.stored {
        io.exchange(group, Protocol::Classic(ClassicGroup::new(id.clone(), io.now.wall_ms)));
        lifetime::drop_if_nothing(groups, io, &id);
    }
}

/// The group of a record: with members it is stable, and each of them offers the one protocol that was chosen.
fn from_record(id: Arc<str>, value: &GroupMetadataValue<'_>, free_bytes: usize) -> ClassicGroup {
    let mut group = ClassicGroup::new(id, 0);
    let protocol = value.protocol.as_deref().unwrap_or_default();
    let (mut ids, mut instances) = (BTreeSet::new(), BTreeSet::new());
    for member in &value.members {
        let instance = member.group_instance_id.as_deref();
        // No coordinator writes a member twice. Should a record say so, the first one stays.
        if ids.insert(&*member.member_id) && instance.is_none_or(|instance| instances.insert(instance)) {
            group.add(&value.protocol_type, loaded_member(protocol, member));
        }
    }
    group.state = if group.members.is_empty() { State::Empty } else { State::Stable };
    group.generation = value.generation;
    group.protocol_type = (!value.protocol_type.is_empty()).then(|| (&*value.protocol_type).into());
    group.protocol_name = value.protocol.as_deref().map(Into::into);
    group.state_timestamp_ms = (value.current_state_timestamp != -1).then_some(value.current_state_timestamp);
    if let Some(leader) = value.leader.as_deref().and_then(|leader| group.members.get_key_value(leader)) {
        group.leader = Some(leader.0.clone());
    }
    group.subscribe(free_bytes);
    group.stored = true;
    group
}

fn loaded_member(protocol: &str, member: &MemberMetadata<'_>) -> Member {
    let rebalance_timeout_ms =
        if member.rebalance_timeout == -1 { member.session_timeout } else { member.rebalance_timeout };
    Member {
        id: (&*member.member_id).into(),
        instance_id: member.group_instance_id.as_deref().map(Into::into),
        client_id: (&*member.client_id).into(),
        client_host: (&*member.client_host).into(),
        rebalance_timeout_ms,
        session_timeout_ms: member.session_timeout,
        protocols: vec![Offered { name: protocol.into(), metadata: (&*member.subscription).into() }],
        assignment: (&*member.assignment).into(),
        awaiting_join: None,
        awaiting_sync: None,
        is_new: false,
        session: None,
    }
}

/// Starts sessions after the last record, and rebalances groups that are larger than is allowed now.
pub(crate) fn loaded(groups: &mut Groups, io: &mut Io<'_>) {
    for group in groups.values_mut() {
        let group = match &mut group.protocol {
            Protocol::Classic(group) => group,
            Protocol::Consumer(group) => {
                timers::start(group, io);
                continue;
            }
        };
        for member in group.members.values_mut() {
            io.restart_session(&group.id, member, None);
        }
        if group.members.len() > usize::try_from(io.config.group_max_size).unwrap_or(0) {
            rebalance::prepare(group, io);
            io.recount(group);
        }
    }
}
