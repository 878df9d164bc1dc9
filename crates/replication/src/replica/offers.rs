//! Snapshots in the place of a log's beginning: which one a leader offers, who is at it, how a follower begins behind it, and
//! what can be given up for it.

use super::messages::check_offer;
use super::{Replica, RoleState};
use crate::error::{MessageError, ReplicaError};
use crate::group::{Configuration, GroupId, ReplicaId};
use crate::index::EntryIndex;
use crate::journal::{Frame, Journal, Start};
use crate::snapshots::{SnapshotContent, SnapshotOffer};
use crate::store::{offer_of, snapshot_of};
use mainstem_log::Log;
use parking_lot::Mutex;
use raft::eraftpb::{Message, MessageType, Snapshot};
use raft::{ProgressState, SnapshotStatus, StateRole};
use std::sync::Arc;

/// A replica that was offered a snapshot and asks for none of it for so long is offered one again, in ms.
const SNAPSHOT_PATIENCE_MS: u64 = 10_000;

impl Replica {
    /// Notes the snapshot that a leader has for this replica.
    pub(super) fn note_offer(&mut self, message: &Message) -> Result<(), MessageError> {
        let offer = offer_of(message.get_snapshot()).ok_or(MessageError::Snapshot)?;
        check_offer(&offer, message.term, &self.configuration)?;
        let is_wanted = message.term >= self.node.raft.term
            && self.role.state != RoleState::Leader
            && offer.start.index > self.node.raft.raft_log.committed
            && offer.configuration.replicas().any(|replica| replica == self.own)
            && offer.configuration.voters_outgoing.is_empty();
        if is_wanted {
            self.effects.offered = Some(offer);
        }
        Ok(())
    }

    /// Takes a snapshot over that was offered ([`Effects::offered`](super::Effects::offered)), and is on disk under its name:
    /// the log begins anew behind it, or does when there is room, and needs the file from then on. Returns false where the file is
    /// not needed: no leader is known now, the log has reached its end without, or the disk is full. Blocks on the disk. To be
    /// followed by [`Replica::drive`]. After an error it is not known whether the file is needed.
    pub fn restore(&mut self, offer: &SnapshotOffer) -> Result<bool, ReplicaError> {
        self.check_running()?;
        self.drive_into()?;
        let RoleState::Follower { leader: Some(leader) } = self.role.state else { return Ok(false) };
        // The library's election may be further than the role that was noted.
        let follows = self.is_taking_part()
            && !self.log.dir().is_full()
            && self.node.raft.state == StateRole::Follower
            && self.node.raft.term == self.role.term;
        if !follows || offer.start.index <= self.node.raft.raft_log.committed {
            return Ok(false);
        }
        // All that is in a snapshot is committed. So it does not matter who had it: the present leader has it, too.
        let mut message = Message { msg_type: MessageType::MsgSnapshot, ..Message::default() };
        (message.from, message.to, message.term) = (leader.0, self.own.0, self.role.term);
        message.set_snapshot(snapshot_of(offer));
        self.node.step(message).map_err(|error| self.fail(error.into()))?;
        self.drive_into()?;
        let is_begun = self.journal.lock().group(self.group).is_some_and(|state| state.restoring);
        Ok(is_begun || self.effects.restored.is_some())
    }

    /// The snapshot that replicas get which need entries that are not here any more; `None`: there is none.
    pub fn offer_snapshot(&mut self, content: Option<SnapshotContent>) {
        let since = self.journal.lock().group(self.group).map_or(0, |state| state.configuration_index);
        // Of who was in the group earlier nothing is known here, and a change under way ends first.
        let is_known = |content: &SnapshotContent| content.start.index >= since;
        let is_settled = self.configuration.voters_outgoing.is_empty();
        let content = content.filter(is_known).filter(|_| is_settled);
        let configuration = self.configuration.clone();
        self.node.mut_store().offer = content.map(|SnapshotContent { start, len, crc }| SnapshotOffer {
            start,
            configuration,
            len,
            crc,
        });
    }

    /// Whether there is a snapshot for replicas that need entries which are not here any more.
    pub fn has_offer(&self) -> bool {
        self.node.store().has_offer()
    }

    /// A replica of a node has asked for a range of a snapshot: it is at it.
    pub fn note_fetch(&mut self, node: i32) {
        let of_node = |id: &&mut u64| ReplicaId(**id).node() == node;
        let mut ids: Vec<u64> = self.fetching.keys().copied().collect();
        ids.iter_mut().filter(of_node).for_each(|id| _ = self.fetching.insert(*id, self.now_ms));
    }

    /// A replica of a node cannot have the snapshot that it was offered: it is offered another one.
    pub fn note_failed_fetch(&mut self, node: i32) {
        let ids: Vec<u64> =
            self.fetching.keys().copied().filter(|id| ReplicaId(*id).node() == node).collect();
        ids.into_iter().for_each(|id| self.offer_again(id));
    }

    pub(super) fn offer_again(&mut self, id: u64) {
        self.fetching.remove(&id);
        if self.failed.is_none() {
            self.node.report_snapshot(id, SnapshotStatus::Failure);
        }
    }

    /// Notices which replicas were offered a snapshot, and which of them do nothing about it.
    pub(super) fn watch_offers(&mut self) {
        let is_offered = |progress: &raft::Progress| progress.state == ProgressState::Snapshot;
        let offered: Vec<u64> =
            self.node.raft.prs().iter().filter(|(_, one)| is_offered(one)).map(|(id, _)| *id).collect();
        self.fetching.retain(|id, _| offered.contains(id));
        for id in offered {
            let since_ms = *self.fetching.entry(id).or_insert(self.now_ms);
            if self.now_ms.saturating_sub(since_ms) >= SNAPSHOT_PATIENCE_MS {
                self.offer_again(id);
            }
        }
    }

    /// Has the log begin behind a snapshot, where the library has taken one over. All of it is durable when this returns.
    pub(super) fn begin_behind(
        &mut self,
        snapshot: &Snapshot,
        frames: &mut Vec<Frame>,
    ) -> Result<Option<Start>, ReplicaError> {
        if snapshot.get_metadata().index == 0 {
            return Ok(None);
        }
        let offer =
            offer_of(snapshot).ok_or_else(|| ReplicaError::Damaged("a snapshot without an end".into()))?;
        assert!(self.appending.is_empty(), "a leader's log does not begin anew");
        let SnapshotOffer { start, configuration, .. } = offer;
        self.lower_promise(start)?;
        frames.push(Frame::Restore { start, own: self.own, configuration: configuration.clone() });
        self.write_frames(frames)?;
        Journal::sync_beside_others(&self.journal)?;
        begin_log_anew(&mut self.log, self.group, &self.journal, start, self.now_ms)?;
        let store = self.node.mut_store();
        (store.index, store.offer) = (EntryIndex::begin(start), None);
        self.unsynced.cut(start.offset);
        self.note_restored(start, configuration);
        Ok(Some(start))
    }

    /// The log has begun behind a snapshot.
    pub(super) fn note_restored(&mut self, start: Start, configuration: Configuration) {
        self.configuration = configuration.clone();
        self.effects.configuration = Some(configuration);
        self.effects.high_watermark = Some(self.log.ends().high_watermark);
        self.effects.restored = Some(start);
    }

    /// The last entry that precedes `offset`, where that is known without a look at the log: of what was appended last, and
    /// where the journal remembers it ([`Replica::remember`]). It is committed if the offset is. `None` also where the replica
    /// waits for room.
    pub fn entry_before(&self, offset: i64) -> Option<Start> {
        self.node.store().index.entry_before(offset).filter(|_| self.is_taking_part())
    }

    /// The entry with which a snapshot may end that precedes `offset`, as [`Replica::entry_before`] knows it. `None` also where the
    /// log is not durable so far: after a power cut it would end before its snapshots, which have let what precedes them be given up.
    pub fn snapshot_end(&self, offset: i64) -> Option<Start> {
        if offset > self.log.ends().durable_end {
            return None;
        }
        self.entry_before(offset)
    }

    /// Has the journal remember which entry precedes an offset that is committed: a snapshot ends there. Returns true if the
    /// journal has to be synced before anything relies on it.
    pub fn remember(&mut self, at: Start) -> Result<bool, ReplicaError> {
        self.check_running()?;
        let marks = self.node.store().index.marks_for(at);
        let mut frames: Vec<_> = marks.iter().copied().map(Frame::Mark).collect();
        let is_noted = !frames.is_empty();
        self.write_frames(&mut frames)?;
        self.node.mut_store().index.add_marks(&marks);
        Ok(is_noted)
    }

    /// Up to where the log can be given up behind a snapshot: what precedes is applied, and durable here as well. What is
    /// committed need not be: a majority of others may have it. Without a snapshot to offer nothing more is given up.
    pub fn given_up_max(&self) -> i64 {
        let ends = self.log.ends();
        if !self.node.store().has_offer() {
            return ends.log_start;
        }
        let durable = self.persisted_end();
        let index = &self.node.store().index;
        let applied = index.offset_before(self.node.raft.raft_log.applied);
        applied.map_or(ends.log_start, |offset| offset.min(durable))
    }

    /// Of a leader: an offset that every other voter has reached which the log still serves; what is behind that gets a
    /// snapshot anyway.
    pub fn slowest_offset(&self) -> Option<i64> {
        if self.role.state != RoleState::Leader {
            return None;
        }
        let index = &self.node.store().index;
        let others = self.voters().filter(|(id, _)| *id != self.own.0);
        others.filter_map(|(_, progress)| index.offset_before(progress.matched)).min()
    }
}

/// Empties a log that begins anew behind a snapshot, and notes that it does. All of it is durable when this returns.
pub(super) fn begin_log_anew(
    log: &mut Log,
    group: GroupId,
    journal: &Arc<Mutex<Journal>>,
    start: Start,
    now_ms: u64,
) -> Result<(), ReplicaError> {
    log.truncate_fully_and_start_at(start.offset, now_ms)?;
    log.sync_now()?;
    journal.lock().append(group, &[Frame::Start(start)])?;
    Ok(Journal::sync_beside_others(journal)?)
}
