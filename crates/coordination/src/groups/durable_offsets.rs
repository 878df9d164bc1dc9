//! Offsets become readable when their records are durable.

use std::sync::Arc;

use super::committed_offset::{CommittedOffset, PendingOffset, TopicPartition};
use super::group::{Group, Groups};
use super::io::Io;
use super::lifetime::group_of;
use super::memory;

/// The outcome of a commit's append.
pub(crate) fn committed_offsets(
    groups: &mut Groups,
    io: &mut Io<'_>,
    group: &Arc<str>,
    offsets: Vec<PendingOffset>,
) {
    for PendingOffset { at, offset } in offsets {
        insert(groups, io, group, at, offset);
    }
}

/// Makes a durable offset readable that belongs to no transaction. Offsets of open transactions before it will not replace it.
pub(crate) fn insert(
    groups: &mut Groups,
    io: &mut Io<'_>,
    group: &Arc<str>,
    at: TopicPartition,
    offset: CommittedOffset,
) {
    let group = group_of(groups, io, group);
    group.open_offsets.overtake(&at, u64::MAX);
    put(group, io, at, offset);
}

/// Makes an offset readable, in place of the former one.
pub(crate) fn put(group: &mut Group, io: &mut Io<'_>, at: TopicPartition, offset: CommittedOffset) {
    io.usage.bytes += memory::offset(&offset);
    match group.offsets.insert(&at.topic, at.partition, offset) {
        Some(replaced) => io.usage.bytes -= memory::offset(&replaced),
        None => io.usage.offsets += 1,
    }
    io.topics.release(at.topic);
}

/// Releases offsets that will not be written.
pub(crate) fn release(io: &mut Io<'_>, offsets: Vec<PendingOffset>) {
    for pending in offsets {
        io.topics.release(pending.at.topic);
    }
}
