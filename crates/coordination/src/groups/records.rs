//! The records of `__consumer_offsets` that groups write and read, in Kafka's schemas.
//!
//! A key is the record's type and the key's fields; a value is the version of its schema and its fields. This writes the versions that
//! Kafka 4.3 writes: OffsetCommitValue v4 (v1 for an offset with its own time to expire, which later versions cannot express) and
//! GroupMetadataValue v3. It reads all versions that Kafka 4.3 reads.

use std::sync::Arc;

use mainstem_wire::coordinator::{
    CoordinatorKey, decode_key, decode_with_version, encode_key, encode_with_version, record_type,
};
use mainstem_wire::messages::group_metadata_key::GroupMetadataKey;
use mainstem_wire::messages::group_metadata_value::{GroupMetadataValue, MemberMetadata};
use mainstem_wire::messages::legacy_offset_commit_key::LegacyOffsetCommitKey;
use mainstem_wire::messages::legacy_offset_commit_value::LegacyOffsetCommitValue;
use mainstem_wire::messages::offset_commit_key::OffsetCommitKey;
use mainstem_wire::messages::offset_commit_value::OffsetCommitValue;
use mainstem_wire::{DecodeError, EncodeError, Uuid};

use super::classic::ClassicGroup;
use super::committed_offset::CommittedOffset;
use super::consumer::change::Change;
use super::log::CoordinatorRecord;
use super::member::Member;

const OFFSET_VALUE_VERSION: i16 = 4;
const EXPIRING_OFFSET_VALUE_VERSION: i16 = 1;
const GROUP_VALUE_VERSION: i16 = 3;

/// A record that groups read, decoded.
#[derive(Debug, PartialEq)]
pub(crate) enum Record<'a> {
    /// An offset; None is its tombstone.
    Offset { key: OffsetCommitKey<'a>, value: Option<CommittedOffset> },
    /// A group; None is its tombstone.
    Group { key: GroupMetadataKey<'a>, value: Option<GroupMetadataValue<'a>> },
    /// A change of a consumer group.
    Consumer { group: String, change: Change },
    /// A record of another feature, or of a later version than this one.
    Other,
}

/// Decodes a record of `__consumer_offsets`.
pub(crate) fn decode<'a>(key: &'a [u8], value: Option<&'a [u8]>) -> Result<Record<'a>, DecodeError> {
    const OFFSET: i16 = OffsetCommitKey::RECORD_TYPE;
    const LEGACY_OFFSET: i16 = LegacyOffsetCommitKey::RECORD_TYPE;
    const GROUP: i16 = GroupMetadataKey::RECORD_TYPE;
    Ok(match record_type(key)? {
        OFFSET => Record::Offset { key: decode_key(key)?, value: value.map(offset).transpose()? },
        LEGACY_OFFSET => {
            let LegacyOffsetCommitKey { group, topic, partition, .. } = decode_key(key)?;
            let key = OffsetCommitKey { group, topic, partition };
            Record::Offset { key, value: value.map(legacy_offset).transpose()? }
        }
        GROUP => {
            let value = value.map(decode_with_version).transpose()?;
            Record::Group { key: decode_key(key)?, value: value.map(|(value, _)| value) }
        }
        _ => match Change::decode(key, value)? {
            Some((group, change)) => Record::Consumer { group, change },
            None => Record::Other,
        },
    })
}

fn offset(value: &[u8]) -> Result<CommittedOffset, DecodeError> {
    let (value, _): (OffsetCommitValue<'_>, _) = decode_with_version(value)?;
    let expire = (value.expire_timestamp != -1).then_some(value.expire_timestamp);
    let offset =
        CommittedOffset::new(value.offset, value.leader_epoch, value.commit_timestamp, value.topic_id);
    Ok(offset.with(&value.metadata, expire))
}

fn legacy_offset(value: &[u8]) -> Result<CommittedOffset, DecodeError> {
    let (value, _): (LegacyOffsetCommitValue<'_>, _) = decode_with_version(value)?;
    let offset = CommittedOffset::new(value.offset, -1, value.commit_timestamp, Uuid::ZERO);
    Ok(offset.with(&value.metadata, None))
}

/// The record of a committed offset.
pub(crate) fn offset_commit(
    group: &str,
    topic: &str,
    partition: i32,
    offset: &CommittedOffset,
) -> CoordinatorRecord {
    let expire = offset.expire_timestamp_ms();
    let version = if expire.is_some() { EXPIRING_OFFSET_VALUE_VERSION } else { OFFSET_VALUE_VERSION };
    let value = OffsetCommitValue {
        offset: offset.offset,
        leader_epoch: offset.leader_epoch,
        metadata: offset.metadata().into(),
        commit_timestamp: offset.commit_timestamp_ms,
        expire_timestamp: expire.unwrap_or(-1),
        topic_id: offset.topic_id,
        ..Default::default()
    };
    CoordinatorRecord {
        key: offset_key(group, topic, partition),
        value: Some(encode(encode_with_version(&value, version))),
    }
}

/// The tombstone of an offset.
pub(crate) fn offset_tombstone(group: &str, topic: &str, partition: i32) -> CoordinatorRecord {
    CoordinatorRecord { key: offset_key(group, topic, partition), value: None }
}

/// The record of a group as it is now, with the assignment that `assignment` gives each member.
pub(crate) fn group_metadata(
    group: &ClassicGroup,
    assignment: impl Fn(&Member) -> Arc<[u8]>,
) -> CoordinatorRecord {
    let protocol = group.protocol_name.as_deref();
    let member = |member: &Member| MemberMetadata {
        member_id: member.id.to_string().into(),
        group_instance_id: member.instance_id.as_ref().map(|id| id.to_string().into()),
        client_id: member.client_id.to_string().into(),
        client_host: member.client_host.to_string().into(),
        rebalance_timeout: member.rebalance_timeout_ms,
        session_timeout: member.session_timeout_ms,
        subscription: member.metadata(protocol.unwrap_or_default()).to_vec().into(),
        assignment: assignment(member).to_vec().into(),
        ..Default::default()
    };
    let value = GroupMetadataValue {
        protocol_type: group.protocol_type.as_deref().unwrap_or_default().into(),
        generation: group.generation,
        protocol: protocol.map(Into::into),
        leader: group.leader.as_deref().map(Into::into),
        current_state_timestamp: group.state_timestamp_ms.unwrap_or(-1),
        members: group.members.values().map(member).collect(),
        ..Default::default()
    };
    CoordinatorRecord {
        key: group_key(&group.id),
        value: Some(encode(encode_with_version(&value, GROUP_VALUE_VERSION))),
    }
}

/// The record of a group that has no generation yet.
pub(crate) fn created_group(group: &ClassicGroup) -> CoordinatorRecord {
    let value = GroupMetadataValue {
        protocol: None,
        leader: None,
        current_state_timestamp: group.state_timestamp_ms.unwrap_or(-1),
        ..Default::default()
    };
    CoordinatorRecord {
        key: group_key(&group.id),
        value: Some(encode(encode_with_version(&value, GROUP_VALUE_VERSION))),
    }
}

/// The tombstone of a group.
pub(crate) fn group_tombstone(group: &str) -> CoordinatorRecord {
    CoordinatorRecord { key: group_key(group), value: None }
}

fn offset_key(group: &str, topic: &str, partition: i32) -> Vec<u8> {
    encode(encode_key(&OffsetCommitKey { group: group.into(), topic: topic.into(), partition }))
}

fn group_key(group: &str) -> Vec<u8> {
    encode(encode_key(&GroupMetadataKey { group: group.into() }))
}

fn encode(bytes: Result<Vec<u8>, EncodeError>) -> Vec<u8> {
    bytes.expect("no request or replay brings names that are longer than `fits` says")
}

/// Returns true if a name can be written. In versions that are not flexible lengths have 16 bits, and a member id adds a hyphen and a UUID
/// to its name.
pub(crate) fn fits(name: &str) -> bool {
    name.len() <= NAME_BYTES_MAX
}

/// The length of the longest name in bytes; see [`fits`].
const NAME_BYTES_MAX: usize = i16::MAX as usize - "-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx".len();
