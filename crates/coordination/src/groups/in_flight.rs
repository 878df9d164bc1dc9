//! Memory accounting of appends in flight, and of the requests that wait for them; see [`memory`](super::memory).

use super::api::Reply;
use super::committed_offset::PendingOffset;
use super::completion::{Completion, Held};
use super::memory::{NAME, name, offset, open_offset, protocols};
use super::offset_fetch::Fetch;

/// An element of a list that has no letters of its own.
const ELEMENT: usize = 40;

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
