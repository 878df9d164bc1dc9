//! Work for the driver of a replica.

use super::losses::Lost;
use super::role::Role;
use crate::error::ReplicaError;
use crate::group::{Configuration, ReplicaId};
use crate::index::EntryIndex;
use crate::journal::{InternalEntry, Start};
use crate::setback::Setback;
use crate::snapshots::SnapshotOffer;
use mainstem_log::Log;
use raft::eraftpb::{Message, MessageType};
use std::ops::Range;

/// A message for another replica. The batches of an append are in the log, from where a link sends them.
#[derive(Debug, Clone, PartialEq)]
pub struct Outgoing {
    /// The receiver.
    pub to: ReplicaId,
    /// The offset behind the entry that precedes the ones of an append.
    pub offset: i64,
    /// Offsets of its batches; empty: it has none.
    pub offsets: Range<i64>,
    /// About the bytes of its batches.
    pub bytes: u64,
    /// The message.
    pub message: Message,
    /// A heartbeat that is coalesced from now on: the sender's node repeats it with those of all other groups, and this replica
    /// does not ([`crate::CoalescedHeartbeats`]).
    pub begins_coalescing: bool,
}

impl Outgoing {
    /// A message without batches.
    pub(super) fn plain(message: Message) -> Outgoing {
        let to = ReplicaId(message.to);
        Outgoing { to, offset: 0, offsets: 0..0, bytes: 0, message, begins_coalescing: false }
    }

    /// A message with the place of its batches. `None`: the entries are not here any more.
    pub(super) fn of(
        message: Message,
        index: &EntryIndex,
        log: &Log,
    ) -> Result<Option<Outgoing>, ReplicaError> {
        if message.get_msg_type() != MessageType::MsgAppend {
            return Ok(Some(Outgoing::plain(message)));
        }
        let last = message.get_entries().last().map_or(message.index, |entry| entry.index);
        let offset = index.offset_behind(message.index, log)?;
        let end = index.offset_behind(last, log)?;
        let (Some(offset), Some(end)) = (offset, end) else { return Ok(None) };
        let bytes = message.get_entries().iter().map(|entry| index.size_of(entry.index)).sum();
        Ok(Some(Outgoing { offset, offsets: offset..end, bytes, ..Outgoing::plain(message) }))
    }
}

/// Work for the driver of a replica.
#[derive(Debug, Default)]
pub struct Effects {
    /// To be sent, in this order for each replica.
    pub messages: Vec<Outgoing>,
    /// The high watermark has moved to here.
    pub high_watermark: Option<i64>,
    /// The role has changed to this.
    pub role: Option<Role>,
    /// Internal entries with data that were committed, in order.
    pub applied: Vec<InternalEntry>,
    /// The members of the group have changed to these.
    pub configuration: Option<Configuration>,
    /// Something waits for a sync of log and journal.
    pub flush: bool,
    /// Replicas that need entries that are not here any more, and no snapshot is here that has them.
    pub too_far_behind: Vec<ReplicaId>,
    /// A leader has a snapshot in the place of entries that it has not any more. To be fetched, and then
    /// [`Replica::restore`](super::Replica::restore)d.
    pub offered: Option<SnapshotOffer>,
    /// The log begins behind a snapshot that was restored.
    pub restored: Option<Start>,
    /// Questions that were answered ([`Replica::confirm`](super::Replica::confirm)): it has led since they were asked.
    pub confirmed: Vec<u64>,
    /// Committed records that are gone, which this replica has known.
    pub lost: Vec<Lost>,
    /// Setbacks that it had, for the log of the node.
    pub setbacks: Vec<Setback>,
}

impl Effects {
    /// Returns true if the driver has nothing to do.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
            && self.high_watermark.is_none()
            && self.role.is_none()
            && self.applied.is_empty()
            && self.configuration.is_none()
            && !self.flush
            && self.too_far_behind.is_empty()
            && self.offered.is_none()
            && self.restored.is_none()
            && self.confirmed.is_empty()
            && self.lost.is_empty()
            && self.setbacks.is_empty()
    }

    /// Takes back what speaks of records from an offset on: they are about to be cut off.
    pub(super) fn cut(&mut self, offset: i64) {
        self.messages.retain(|outgoing| outgoing.offsets.end <= offset);
        self.high_watermark = self.high_watermark.map(|before| before.min(offset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(offsets: Range<i64>) -> Outgoing {
        Outgoing { offsets, ..Outgoing::plain(Message::default()) }
    }

    #[test]
    fn a_cut_takes_back_what_speaks_of_the_records_behind_it() {
        let messages = vec![append(0..0), append(0..10), append(5..11)];
        let mut effects = Effects { messages, high_watermark: Some(11), ..Effects::default() };
        effects.cut(10);
        let left: Vec<_> = effects.messages.iter().map(|outgoing| outgoing.offsets.end).collect();
        assert_eq!((left, effects.high_watermark), (vec![0, 10], Some(10)));
        effects.cut(12);
        assert_eq!((effects.messages.len(), effects.high_watermark), (2, Some(10)));
    }
}
