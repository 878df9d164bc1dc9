//! Snapshots in the place of a log's beginning: the one that a leader offers, its peers that fetch it, and the log of a follower that
//! begins behind it.

use super::Replica;
use super::group_journal::GroupJournal;
use super::messages::check_offer;
use super::role::RoleState;
use crate::error::{MessageError, ReplicaError};
use crate::group::Configuration;
use crate::journal::{Frame, Start};
use crate::snapshots::{SnapshotContent, SnapshotOffer};
use crate::store::{offer_of, snapshot_of};
use mainstem_log::Log;
use raft::StateRole;
use raft::eraftpb::{Message, MessageType, Snapshot};
use std::cmp::Ordering;

impl Replica {
    /// Notes the snapshot that a leader has for this replica.
    pub(super) fn note_offer(&mut self, message: &Message) -> Result<(), MessageError> {
        let offer = offer_of(message.get_snapshot()).ok_or(MessageError::Snapshot)?;
        let mut may_change = self.may_change_members();
        let check = |may_change| check_offer(&offer, message.term, self.configuration(), may_change);
        if !may_change && check(true).is_ok() && check(false).is_err() {
            if !self.believes_changes {
                // Members have changed, and it is not known here yet that they may. It is offered again.
                return Ok(());
            }
            self.let_members_change();
            may_change = true;
        }
        check_offer(&offer, message.term, self.configuration(), may_change)?;
        let is_wanted = !self.group.is_past(message)
            && !self.group.is_leader()
            && offer.start.index > self.group.committed()
            && offer.configuration.replicas().any(|replica| replica == self.own());
        if is_wanted {
            self.effects.offered = Some(offer);
        }
        Ok(())
    }

    /// Returns true if a leader offers what is here already: it has not got the answer to an earlier offer. The library answers, and
    /// takes nothing over.
    pub(super) fn has_what_is_offered(&self, message: &Message) -> bool {
        let metadata = message.get_snapshot().get_metadata();
        let committed = self.group.committed();
        let is_here = match metadata.index.cmp(&committed) {
            Ordering::Less => true,
            Ordering::Equal => self.group.index().term(committed) == Some(metadata.term),
            Ordering::Greater => false,
        };
        is_here && !self.group.is_past(message) && !self.group.is_leader()
    }

    /// Takes a snapshot over that was offered ([`Effects::offered`](super::Effects::offered)), and is on disk under its name:
    /// the log begins again behind it, or does when there is space, and needs the file from then on. Returns false where the file is
    /// not needed: no leader is known now, the log has reached its end without, or the disk is full. Blocks on the disk. To be
    /// followed by [`Replica::drive`]. After an error it is not known whether the file is needed.
    pub fn restore(&mut self, offer: &SnapshotOffer) -> Result<bool, ReplicaError> {
        self.check_running()?;
        self.drive_into()?;
        let Some(message) = self.wanted_snapshot(offer) else { return Ok(false) };
        self.take_snapshot(message)?;
        Ok(self.journal.is_restoring() || self.effects.restored.is_some())
    }

    /// The message by which the library takes over a snapshot that was offered; `None`: it is not needed, or cannot be taken now.
    pub(super) fn wanted_snapshot(&self, offer: &SnapshotOffer) -> Option<Message> {
        let role = self.role();
        let RoleState::Follower { leader: Some(leader) } = role.state else { return None };
        // The library's election may be further than the role that was noted.
        let raft = self.group.raft();
        let follows = self.is_taking_part()
            && !self.log.is_full()
            && raft.state == StateRole::Follower
            && raft.term == role.term;
        if !follows || offer.start.index <= self.group.committed() {
            return None;
        }
        // All that is in a snapshot is committed. So it does not matter who had it: the present leader has it, too.
        let mut message = Message { msg_type: MessageType::MsgSnapshot, ..Message::default() };
        (message.from, message.to, message.term) = (leader.0, self.own().0, role.term);
        message.set_snapshot(snapshot_of(offer));
        Some(message)
    }

    /// Has the library take a snapshot over, and carries out what follows.
    pub(super) fn take_snapshot(&mut self, message: Message) -> Result<(), ReplicaError> {
        self.group.step(message).map_err(|error| self.fail(error.into()))?;
        self.drive_into()
    }

    /// Sets the snapshot that replicas get which need entries that are not here any more; `None`: there is none.
    pub fn offer_snapshot(&mut self, content: Option<SnapshotContent>) {
        let content = content.filter(|content| self.are_all_at(content.start.index));
        let offer = content.map(|SnapshotContent { start, len, crc }| SnapshotOffer {
            start,
            configuration: self.configuration_at(start.index),
            len,
            crc,
        });
        self.group.set_offer(offer);
    }

    /// Returns true if there is a snapshot for replicas that need entries which are not here any more.
    pub fn has_offer(&self) -> bool {
        self.group.has_offer()
    }

    /// Notes that a replica of a node has asked for a range of a snapshot: it is at it.
    pub fn note_fetch(&mut self, node: i32) {
        self.peers.note_fetch(node, self.now_ms);
    }

    /// Offers a replica of a node another snapshot: it cannot have the one that it was offered.
    pub fn note_failed_fetch(&mut self, node: i32) {
        self.peers.fetching_at(node).into_iter().for_each(|id| self.offer_again(id));
    }

    pub(super) fn offer_again(&mut self, id: u64) {
        self.peers.end_fetch(id);
        if self.failed.is_none() {
            self.group.end_offer(id);
        }
    }

    /// Offers a snapshot again to replicas that were offered one and do nothing about it.
    pub(super) fn offer_idle_again(&mut self) {
        let idle = self.peers.idle_fetches(self.group.offered(), self.now_ms);
        idle.into_iter().for_each(|id| self.offer_again(id));
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
        assert!(!self.log.is_appending(), "a leader's log does not begin again");
        let SnapshotOffer { start, configuration, .. } = offer;
        self.promises.lower(start)?;
        match self.copy.take() {
            Some(copy) => self.begin_with_copy(copy, start, &configuration, frames)?,
            None => {
                frames.push(self.journal.restore_frame(start, configuration.clone()));
                self.journal.write(frames)?;
                self.journal.sync_now()?;
                begin_log_again(self.log.log_mut(), &self.journal, start, self.now_ms)?;
            }
        }
        self.group.begin_at(start);
        self.log.wait_no_further_than(start.offset);
        self.note_restored(start, configuration);
        Ok(Some(start))
    }

    /// Notes that the log has begun behind a snapshot.
    pub(super) fn note_restored(&mut self, start: Start, configuration: Configuration) {
        self.group.set_configuration(configuration.clone());
        self.effects.configuration = Some(configuration);
        self.effects.high_watermark = Some(self.log.ends().high_watermark);
        self.effects.restored = Some(start);
    }
}

/// Empties a log that begins again behind an entry, and notes that it does. All of it is durable when this returns.
pub(super) fn begin_log_again(
    log: &mut Log,
    journal: &GroupJournal,
    start: Start,
    now_ms: u64,
) -> Result<(), ReplicaError> {
    log.truncate_fully_and_start_at(start.offset, now_ms)?;
    log.sync_now()?;
    journal.append(Frame::Start(start))?;
    Ok(journal.sync_now()?)
}
