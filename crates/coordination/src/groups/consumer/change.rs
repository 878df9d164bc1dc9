//! Changes of a consumer group: one record of `__consumer_offsets` each.
//!
//! A change is applied to the group and written to the log as the same thing, so a group that is rebuilt from its records is the group that
//! wrote them. Applying a change returns the one that undoes it.

use std::sync::Arc;

use mainstem_wire::coordinator::{CoordinatorKey, record_type};
use mainstem_wire::coordinator::{decode_key, decode_with_version, encode_key, encode_with_version};
use mainstem_wire::messages::consumer_group_current_member_assignment_key::ConsumerGroupCurrentMemberAssignmentKey as CurrentKey;
use mainstem_wire::messages::consumer_group_current_member_assignment_value::{
    ConsumerGroupCurrentMemberAssignmentValue as CurrentValue, TopicPartitions,
};
use mainstem_wire::messages::consumer_group_member_metadata_key::ConsumerGroupMemberMetadataKey as MemberKey;
use mainstem_wire::messages::consumer_group_member_metadata_value::{
    ClassicMemberMetadata, ClassicProtocol, ConsumerGroupMemberMetadataValue as MemberValue,
};
use mainstem_wire::messages::consumer_group_metadata_key::ConsumerGroupMetadataKey as GroupKey;
use mainstem_wire::messages::consumer_group_metadata_value::ConsumerGroupMetadataValue as GroupValue;
use mainstem_wire::messages::consumer_group_partition_metadata_key::ConsumerGroupPartitionMetadataKey as PartitionsKey;
use mainstem_wire::messages::consumer_group_regular_expression_key::ConsumerGroupRegularExpressionKey as RegexKey;
use mainstem_wire::messages::consumer_group_regular_expression_value::ConsumerGroupRegularExpressionValue as RegexValue;
use mainstem_wire::messages::consumer_group_target_assignment_member_key::ConsumerGroupTargetAssignmentMemberKey as TargetKey;
use mainstem_wire::messages::consumer_group_target_assignment_member_value::{
    ConsumerGroupTargetAssignmentMemberValue as TargetValue, TopicPartition,
};
use mainstem_wire::messages::consumer_group_target_assignment_metadata_key::ConsumerGroupTargetAssignmentMetadataKey as TargetEpochKey;
use mainstem_wire::messages::consumer_group_target_assignment_metadata_value::ConsumerGroupTargetAssignmentMetadataValue as TargetEpochValue;
use mainstem_wire::{DecodeError, EncodeError, Message};

use super::super::log::CoordinatorRecord;
use super::super::member::{MemberId, Protocol};
use super::member::{ClassicMember, Current, MemberState, Profile, topic_names};
use super::partitions::{Assignment, Owned};

/// All values are of the one version that Kafka 4.3 knows.
const VALUE_VERSION: i16 = 0;

/// The group's epoch, and the hash of the topics that it was computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupEpoch {
    pub(crate) epoch: i32,
    pub(crate) metadata_hash: i64,
}

/// The epoch of the target assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TargetEpoch {
    pub(crate) epoch: i32,
    /// The time of its computation, wall clock milliseconds; 0 if it was taken over from a classic group.
    pub(crate) timestamp_ms: i64,
}

/// The topics that a regular expression matched.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Resolved {
    /// Sorted, each once.
    pub(crate) topics: Vec<Box<str>>,
    /// The version of the topics that the pattern was matched against.
    pub(crate) version: i64,
    /// Wall clock milliseconds.
    pub(crate) timestamp_ms: i64,
}

/// A change; None is the record's tombstone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// ConsumerGroupMetadata (3).
    Group(Option<GroupEpoch>),
    /// ConsumerGroupPartitionMetadata (4), which Kafka wrote before 4.1: only its tombstone is written.
    PartitionMetadata(bool),
    /// ConsumerGroupMemberMetadata (5).
    Profile(MemberId, Option<Profile>),
    /// ConsumerGroupTargetAssignmentMetadata (6).
    TargetEpoch(Option<TargetEpoch>),
    /// ConsumerGroupTargetAssignmentMember (7).
    Target(MemberId, Option<Assignment>),
    /// ConsumerGroupCurrentMemberAssignment (8).
    Current(MemberId, Option<Current>),
    /// ConsumerGroupRegularExpression (16).
    Regex(Arc<str>, Option<Resolved>),
}

impl Change {
    /// Returns the record of the change.
    pub(crate) fn record(&self, group: &str) -> CoordinatorRecord {
        let group_id = || group.to_owned().into();
        match self {
            Change::Group(epoch) => of(&GroupKey { group_id: group_id() }, epoch.map(group_value)),
            Change::PartitionMetadata(_) => {
                of::<_, GroupValue<'_>>(&PartitionsKey { group_id: group_id() }, None)
            }
            Change::Profile(id, profile) => {
                let key = MemberKey { group_id: group_id(), member_id: (&**id).into() };
                of(&key, profile.as_ref().map(member_value))
            }
            Change::TargetEpoch(epoch) => {
                of(&TargetEpochKey { group_id: group_id() }, epoch.map(target_epoch_value))
            }
            Change::Target(id, target) => {
                let key = TargetKey { group_id: group_id(), member_id: (&**id).into() };
                of(&key, target.as_ref().map(target_value))
            }
            Change::Current(id, current) => {
                let key = CurrentKey { group_id: group_id(), member_id: (&**id).into() };
                of(&key, current.as_ref().map(current_value))
            }
            Change::Regex(regex, resolved) => {
                let key = RegexKey { group_id: group_id(), regular_expression: (&**regex).into() };
                of(&key, resolved.as_ref().map(regex_value))
            }
        }
    }

    /// The group and the change of a record; None if the record is of another kind.
    ///
    /// # Errors
    /// When the record is of a kind above and does not decode.
    pub(crate) fn decode(key: &[u8], value: Option<&[u8]>) -> Result<Option<(String, Change)>, DecodeError> {
        const GROUP: i16 = GroupKey::RECORD_TYPE;
        const PARTITIONS: i16 = PartitionsKey::RECORD_TYPE;
        const MEMBER: i16 = MemberKey::RECORD_TYPE;
        const TARGET_EPOCH: i16 = TargetEpochKey::RECORD_TYPE;
        const TARGET: i16 = TargetKey::RECORD_TYPE;
        const CURRENT: i16 = CurrentKey::RECORD_TYPE;
        const REGEX: i16 = RegexKey::RECORD_TYPE;
        let (group, change) = match record_type(key)? {
            GROUP => {
                let GroupKey { group_id } = decode_key(key)?;
                (group_id, Change::Group(read(value, group_epoch)?))
            }
            PARTITIONS => {
                let PartitionsKey { group_id } = decode_key(key)?;
                (group_id, Change::PartitionMetadata(value.is_some()))
            }
            MEMBER => {
                let MemberKey { group_id, member_id } = decode_key(key)?;
                (group_id, Change::Profile(member_id.into(), read(value, profile)?))
            }
            TARGET_EPOCH => {
                let TargetEpochKey { group_id } = decode_key(key)?;
                (group_id, Change::TargetEpoch(read(value, target_epoch)?))
            }
            TARGET => {
                let TargetKey { group_id, member_id } = decode_key(key)?;
                (group_id, Change::Target(member_id.into(), read(value, target)?))
            }
            CURRENT => {
                let CurrentKey { group_id, member_id } = decode_key(key)?;
                (group_id, Change::Current(member_id.into(), read(value, current)?))
            }
            REGEX => {
                let RegexKey { group_id, regular_expression } = decode_key(key)?;
                (group_id, Change::Regex(regular_expression.into(), read(value, resolved)?))
            }
            _ => return Ok(None),
        };
        Ok(Some((group.into_owned(), change)))
    }

    /// Returns true if the record of the change has no value.
    pub(crate) fn is_tombstone(&self) -> bool {
        match self {
            Change::Group(value) => value.is_none(),
            Change::PartitionMetadata(there) => !there,
            Change::Profile(_, value) => value.is_none(),
            Change::TargetEpoch(value) => value.is_none(),
            Change::Target(_, value) => value.is_none(),
            Change::Current(_, value) => value.is_none(),
            Change::Regex(_, value) => value.is_none(),
        }
    }

    /// Returns the accounted bytes of the change while its append is in flight.
    pub(crate) fn bytes(&self) -> usize {
        use super::super::memory::{NAME, PARTITION, name};
        NAME + match self {
            Change::Group(_) | Change::PartitionMetadata(_) | Change::TargetEpoch(_) => 0,
            Change::Profile(id, profile) => {
                profile.as_ref().map_or(id.len(), |profile| super::member::profile_bytes(id, profile))
            }
            Change::Target(id, target) => id.len() + PARTITION * target.as_ref().map_or(0, Assignment::len),
            Change::Current(id, current) => {
                let held = current.as_ref().map_or(0, |current| current.held().count());
                id.len() + PARTITION * held
            }
            Change::Regex(regex, resolved) => {
                regex.len()
                    + resolved
                        .iter()
                        .flat_map(|resolved| &resolved.topics)
                        .map(|topic| name(topic))
                        .sum::<usize>()
            }
        }
    }
}

fn of<'a, K: CoordinatorKey<'a>, V: Message<'a>>(key: &K, value: Option<V>) -> CoordinatorRecord {
    CoordinatorRecord {
        key: encoded(encode_key(key)),
        value: value.map(|value| encoded(encode_with_version(&value, VALUE_VERSION))),
    }
}

fn encoded(bytes: Result<Vec<u8>, EncodeError>) -> Vec<u8> {
    bytes.expect("requests are checked for what a record can hold, and a record holds what a record held")
}

fn read<'a, V: Message<'a>, T>(
    value: Option<&'a [u8]>,
    take: impl FnOnce(V) -> T,
) -> Result<Option<T>, DecodeError> {
    let Some(value) = value else { return Ok(None) };
    let (value, _) = decode_with_version(value)?;
    Ok(Some(take(value)))
}

fn group_value(epoch: GroupEpoch) -> GroupValue<'static> {
    GroupValue { epoch: epoch.epoch, metadata_hash: epoch.metadata_hash, ..Default::default() }
}

fn group_epoch(value: GroupValue<'_>) -> GroupEpoch {
    GroupEpoch { epoch: value.epoch, metadata_hash: value.metadata_hash }
}

fn target_epoch_value(epoch: TargetEpoch) -> TargetEpochValue<'static> {
    TargetEpochValue {
        assignment_epoch: epoch.epoch,
        assignment_timestamp: epoch.timestamp_ms,
        ..Default::default()
    }
}

fn target_epoch(value: TargetEpochValue<'_>) -> TargetEpoch {
    TargetEpoch { epoch: value.assignment_epoch, timestamp_ms: value.assignment_timestamp }
}

fn member_value(profile: &Profile) -> MemberValue<'_> {
    let protocol = |protocol: &Protocol| ClassicProtocol {
        name: protocol.name.to_string().into(),
        metadata: protocol.metadata.to_vec().into(),
        ..Default::default()
    };
    let classic = profile.classic.as_ref().map(|classic| {
        Box::new(ClassicMemberMetadata {
            session_timeout_ms: classic.session_timeout_ms,
            supported_protocols: classic.protocols.iter().map(protocol).collect(),
            ..Default::default()
        })
    });
    MemberValue {
        instance_id: profile.instance_id.as_deref().map(Into::into),
        rack_id: profile.rack_id.as_deref().map(Into::into),
        client_id: (&*profile.client_id).into(),
        client_host: (&*profile.client_host).into(),
        subscribed_topic_names: profile.topics.iter().map(|topic| (&**topic).into()).collect(),
        // Kafka writes an empty pattern if there is none.
        subscribed_topic_regex: Some(profile.regex.as_deref().unwrap_or_default().into()),
        rebalance_timeout_ms: profile.rebalance_timeout_ms,
        server_assignor: profile.server_assignor.as_deref().map(Into::into),
        classic_member_metadata: classic,
        ..Default::default()
    }
}

fn profile(value: MemberValue<'_>) -> Profile {
    let protocol = |protocol: &ClassicProtocol<'_>| Protocol {
        name: (&*protocol.name).into(),
        metadata: (&*protocol.metadata).into(),
    };
    // A classic member without a protocol could not be answered: it has to rejoin as what it is.
    let classic = value.classic_member_metadata.filter(|classic| !classic.supported_protocols.is_empty());
    Profile {
        instance_id: value.instance_id.as_deref().map(Into::into),
        rack_id: value.rack_id.as_deref().map(Into::into),
        client_id: (&*value.client_id).into(),
        client_host: (&*value.client_host).into(),
        topics: topic_names(value.subscribed_topic_names.iter().map(|name| &**name)),
        regex: value.subscribed_topic_regex.as_deref().filter(|regex| !regex.is_empty()).map(Into::into),
        rebalance_timeout_ms: value.rebalance_timeout_ms,
        server_assignor: value.server_assignor.as_deref().map(Into::into),
        classic: classic.map(|classic| {
            Box::new(ClassicMember {
                session_timeout_ms: classic.session_timeout_ms,
                protocols: classic.supported_protocols.iter().map(protocol).collect(),
            })
        }),
    }
}

fn target_value(target: &Assignment) -> TargetValue<'static> {
    let topic = |(topic_id, partitions)| TopicPartition { topic_id, partitions, ..Default::default() };
    TargetValue { topic_partitions: target.by_topic().map(topic).collect(), ..Default::default() }
}

fn target(value: TargetValue<'_>) -> Assignment {
    let topics = value.topic_partitions.iter();
    topics.flat_map(|topic| topic.partitions.iter().map(|index| (topic.topic_id, *index))).collect()
}

fn current_value(current: &Current) -> CurrentValue<'static> {
    let topics = |owned: &Owned| {
        let topic = |(topic_id, partitions, epochs)| TopicPartitions {
            topic_id,
            partitions,
            assignment_epochs: Some(epochs),
            ..Default::default()
        };
        owned.by_topic().map(topic).collect()
    };
    CurrentValue {
        member_epoch: current.epoch,
        previous_member_epoch: current.previous_epoch,
        state: current.state.value(),
        assigned_partitions: topics(&current.assigned),
        partitions_pending_revocation: topics(&current.revoking),
        ..Default::default()
    }
}

fn current(value: CurrentValue<'_>) -> Current {
    // Records from before KIP-1251 have no epochs for partitions: the member's own is used instead.
    let default = value.member_epoch.max(0);
    let owned = |topics: &[TopicPartitions]| {
        let partitions = topics.iter().flat_map(|topic| {
            let epochs =
                topic.assignment_epochs.as_ref().filter(|epochs| epochs.len() == topic.partitions.len());
            topic.partitions.iter().enumerate().map(move |(at, index)| {
                ((topic.topic_id, *index), epochs.map_or(default, |epochs| epochs[at]))
            })
        });
        partitions.collect::<Owned>()
    };
    Current {
        epoch: value.member_epoch,
        previous_epoch: value.previous_member_epoch,
        state: MemberState::from_value(value.state),
        assigned: owned(&value.assigned_partitions),
        revoking: owned(&value.partitions_pending_revocation),
    }
}

fn regex_value(resolved: &Resolved) -> RegexValue<'_> {
    RegexValue {
        topics: resolved.topics.iter().map(|topic| (&**topic).into()).collect(),
        version: resolved.version,
        timestamp: resolved.timestamp_ms,
        ..Default::default()
    }
}

fn resolved(value: RegexValue<'_>) -> Resolved {
    Resolved {
        topics: topic_names(value.topics.iter().map(|topic| &**topic)),
        version: value.version,
        timestamp_ms: value.timestamp,
    }
}
