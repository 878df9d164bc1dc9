//! Memory accounting: bytes of the state that clients make the coordinator keep, against
//! [`memory_bytes_max`](super::GroupConfig::memory_bytes_max).
//!
//! Each item is charged with its strings and buffers, and with a fixed amount for its entries in maps. The heap's own overhead is not
//! counted. The charge depends on nothing but the item itself, so the same amount is added and subtracted.

use super::committed_offset::CommittedOffset;
use super::member::{Member, Protocol};

/// A group beside its name and its members.
pub(crate) const GROUP: usize = 512;
/// A member beside its strings, its protocols and its assignment; its time-out is in here.
pub(crate) const MEMBER: usize = 512;
/// A pending join beside its member id.
const PENDING_JOIN: usize = 256;
/// A protocol of a member beside its name and metadata.
const PROTOCOL: usize = 128;
/// An offset beside its metadata.
const OFFSET: usize = 64;
/// An offset of an open transaction beside its metadata, with its entry in the producer's list.
const OPEN_OFFSET: usize = 192;
/// A name in a list or a set, beside its letters.
pub(crate) const NAME: usize = 64;
/// A partition that a member of a consumer group has, or is to have; the group knows who holds it.
pub(crate) const PARTITION: usize = 64;
/// A name that is held by itself, such as a topic's.
pub(crate) fn name(name: &str) -> usize {
    NAME + name.len()
}

/// Bytes of a pending join.
pub(crate) fn pending_join(id: &str) -> usize {
    PENDING_JOIN + id.len()
}

/// Bytes of the protocols that a member offers. A name is charged three times: the group counts offers by name, and may choose this one.
pub(crate) fn protocols(protocols: &[Protocol]) -> usize {
    protocols.iter().map(|protocol| PROTOCOL + 3 * protocol.name.len() + protocol.metadata.len()).sum()
}

/// Bytes of a member with its strings, protocols and assignment.
pub(crate) fn member(member: &Member) -> usize {
    let names = [&*member.id, member.instance_id.as_deref().unwrap_or_default()];
    let client = member.client_id.len() + member.client_host.len();
    MEMBER
        + names.iter().map(|name| name.len()).sum::<usize>()
        + client
        + member.assignment.len()
        + protocols(&member.protocols)
}

/// Bytes of a committed offset.
pub(crate) fn offset(offset: &CommittedOffset) -> usize {
    OFFSET + offset.metadata().len()
}

/// Bytes of an offset of an open transaction: more than those of the committed one that it may become.
pub(crate) fn open_offset(offset: &CommittedOffset) -> usize {
    OPEN_OFFSET + offset.metadata().len()
}
