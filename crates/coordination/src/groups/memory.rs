//! Memory accounting: bytes of the state that clients make the coordinator keep, against
//! [`memory_bytes_max`](super::GroupConfig::memory_bytes_max).
//!
//! Each item is charged with its strings and buffers, and with a fixed amount for its entries in maps. The heap's own overhead is not
//! counted. The charge depends on nothing but the item itself, so the same amount is added and subtracted.

use super::api::Reply;
use super::appends::Completion;
use super::committed_offset::{CommittedOffset, PendingOffset};
use super::member::{Member, Protocol};
use super::offset_fetch::Fetch;
use super::rebalance::Held;

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
/// An element of a list that has no letters of its own.
const ELEMENT: usize = 40;

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

/// Bytes of an entry in the queue of appends.
pub(crate) fn completion(completion: &Completion) -> usize {
    let own = match completion {
        Completion::Commit { group, producer_id, offsets, held } => {
            let kept = if producer_id.is_some() { open_offset } else { offset };
            let pending = |pending: &PendingOffset| ELEMENT + kept(&pending.offset);
            group.len() + answer(held) + offsets.iter().map(pending).sum::<usize>()
        }
        Completion::Assignment { assignments, .. } => {
            assignments.iter().map(|(_, assignment)| ELEMENT + assignment.len()).sum()
        }
        Completion::Replaced { replacement, .. } => replacement.as_ref().map_or(0, |replacement| {
            replacement.old.len() + replacement.new.len() + protocols(&replacement.old_protocols)
        }),
        Completion::Emptied { held, .. } => answer(held),
        Completion::Removed { offsets, held, .. } => ELEMENT * offsets.len() + answer(held),
        Completion::Fetch { waiting } => waiting.as_ref().map_or(0, |(_, fetch)| request(fetch)),
        Completion::Consumer(write) => write.bytes() + answer(&write.answer),
        Completion::Created { .. } | Completion::Ended(_) => 0,
    };
    NAME + own
}

/// Bytes of a read that waits.
fn request(fetch: &Fetch) -> usize {
    let topics = fetch.topics.iter().flatten();
    let indexes = |count: usize| count * size_of::<i32>();
    let bytes = topics.map(|topic| name(&topic.name) + indexes(topic.partition_indexes.len()));
    fetch.group_id.len() + bytes.sum::<usize>()
}

/// Bytes of an answer that waits.
fn answer(held: &Held) -> usize {
    match held {
        Some((_, Reply::LeaveGroup(response))) => {
            let members = response.members.iter();
            let instance = |id: Option<&str>| id.map_or(0, str::len);
            members
                .map(|member| name(&member.member_id) + instance(member.group_instance_id.as_deref()))
                .sum()
        }
        Some((_, Reply::OffsetCommit(response))) => {
            response.topics.iter().map(|topic| answered(&topic.name, topic.partitions.len())).sum()
        }
        Some((_, Reply::TxnOffsetCommit(response))) => {
            response.topics.iter().map(|topic| answered(&topic.name, topic.partitions.len())).sum()
        }
        Some((_, Reply::OffsetDelete(response))) => {
            response.topics.iter().map(|topic| answered(&topic.name, topic.partitions.len())).sum()
        }
        _ => 0,
    }
}

/// Bytes of a topic of an answer that waits.
fn answered(topic: &str, partitions: usize) -> usize {
    name(topic) + ELEMENT * partitions
}
