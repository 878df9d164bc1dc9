//! Offsets of open transactions (KIP-98): durable, and not readable until a marker commits them.
//!
//! Of two commits for a partition the one with the later record counts, whenever its transaction ends: it is the one that compaction keeps.
//! Everything takes effect in the order of the log here. So it is enough to number the offsets of open transactions as they come, and to
//! mark each when a later commit has taken effect.

use std::sync::Arc;

use mainstem_records::{ProducerId, TransactionEnd};

use super::committed_offset::{PendingOffset, TopicPartition};
use super::durable_offsets::put;
use super::group::{Group, Groups};
use super::io::Io;
use super::lifetime::{drop_if_nothing, group_of};
use super::memory;
use super::open_offsets::OpenOffset;
use super::open_transactions::Place;

/// Adds durable offsets of a producer, which wait for the end of its transaction.
pub(crate) fn add(
    groups: &mut Groups,
    io: &mut Io<'_>,
    group: &Arc<str>,
    producer_id: ProducerId,
    offsets: Vec<PendingOffset>,
) {
    for pending in offsets {
        add_one(group_of(groups, io, group), io, producer_id, pending);
    }
}

/// Adds one durable offset of a producer, which waits for the end of its transaction.
pub(crate) fn add_one(group: &mut Group, io: &mut Io<'_>, producer_id: ProducerId, pending: PendingOffset) {
    let PendingOffset { at, offset } = pending;
    io.transactions.number += 1;
    io.usage.bytes += memory::open_offset(&offset);
    let open = OpenOffset { producer_id, number: io.transactions.number, overtaken: false, offset };
    if let Some(replaced) = group.open_offsets.put(&at, open) {
        io.usage.bytes -= memory::open_offset(&replaced.offset);
        io.topics.release(at.topic);
    } else {
        io.usage.pending_offsets += 1;
        let place = Place { group: group.id().clone(), at };
        io.transactions.producers.entry(producer_id).or_default().insert(place);
    }
}

/// Handles a durable marker: the offsets of its producer become readable unless a later commit has replaced them, or are dropped.
pub(crate) fn end(groups: &mut Groups, io: &mut Io<'_>, how: TransactionEnd) {
    let producer_id = how.producer.id;
    for Place { group: id, at } in io.transactions.producers.remove(&producer_id).unwrap_or_default() {
        let group = groups.get_mut(&id).expect("a group stays for as long as it has offsets");
        let open = group.open_offsets.take(&at, producer_id).expect("each place has its offset");
        io.usage.pending_offsets -= 1;
        io.usage.bytes -= memory::open_offset(&open.offset);
        if how.committed && !open.overtaken {
            group.open_offsets.overtake(&at, open.number);
            put(group, io, at, open.offset);
        } else {
            io.topics.release(at.topic);
        }
        drop_if_nothing(groups, io, &id);
    }
}

/// Handles a durable tombstone, which also removes the offsets of open transactions.
pub(crate) fn forget(group: &mut Group, io: &mut Io<'_>, topic: &str, partition: i32) {
    let Some((topic, all)) = group.open_offsets.take_all(topic, partition) else { return };
    let place = Place { group: group.id().clone(), at: TopicPartition { topic, partition } };
    for open in all {
        io.usage.pending_offsets -= 1;
        io.usage.bytes -= memory::open_offset(&open.offset);
        io.transactions.leave(open.producer_id, &place);
    }
    io.topics.release(place.at.topic);
}

/// Drops the places of all offsets when the partition is unloaded with its groups.
pub(crate) fn clear(io: &mut Io<'_>) {
    for place in std::mem::take(io.transactions).producers.into_values().flatten() {
        io.usage.pending_offsets -= 1;
        io.topics.release(place.at.topic);
    }
}
