//! Copies of a replica's log: where one begins at a leader, and ends at a follower.

use std::sync::Arc;

use mainstem_log::dir::LogDir;
use mainstem_log::{Export, ImportedLog, LogConfig};
use mainstem_replication::copies::manifest::{CopyFile, CopyFileKind, Manifest};
use mainstem_replication::journal::{Journal, Start};
use mainstem_replication::snapshots::{SnapshotContent, SnapshotOffer};
use mainstem_replication::{GroupId, Replica, ReplicaError, RoleState};

use super::super::stored::Stored;
use super::super::{Flush, Locked, Partition};
use mainstem_runtime::clock::Clock;

/// The begin of a copy at a leader.
pub(crate) enum BegunCopy {
    /// It can be offered to the replicas that need it.
    Begun(Box<Manifest>, Export),
    /// It cannot begin at this moment: no segment ends where one could, or a compaction is under way.
    NotYet,
    /// This replica does not lead.
    NotWanted,
}

/// A follower that may take a copy over.
pub(crate) struct CopyTarget {
    /// The log directory of its replica.
    pub(crate) dir: Arc<LogDir>,
    /// The configuration of its log.
    pub(crate) config: Arc<LogConfig>,
    /// The node that leads, if that is known.
    pub(crate) leader: Option<i32>,
    /// Everything before this offset is committed, as it knows.
    pub(crate) high_watermark: i64,
}

impl Partition {
    /// The id of its group; `None`: it has no other replicas.
    pub(crate) fn group_id(&self) -> Option<GroupId> {
        Some(self.replication.as_ref()?.handle.id)
    }

    /// Begins a copy of what the log of a leader has before one of its segments. With `rolls` the last segment is closed
    /// where no copy can begin: the next call finds another one. Blocks on the disk.
    ///
    /// # Errors
    /// The replica's, or the journal's.
    pub(crate) fn begin_copy(&self, clock: &Clock, rolls: bool) -> Result<BegunCopy, ReplicaError> {
        let mut state = self.lock();
        let Some(replica) = leading(&mut state) else { return Ok(BegunCopy::NotWanted) };
        let places: Vec<Start> = replica.copy_ends().collect();
        for start in places {
            if let Some(export) = replica.log_mut().export(start.offset)? {
                let manifest = manifest_of(replica, start, &export);
                self.drive(state);
                return Ok(BegunCopy::Begun(Box::new(manifest), export));
            }
        }
        if rolls && !replica.log().is_exported() {
            replica.log_mut().close_segment(clock.mono_ms())?;
            let journal = replica.follow_roll()?.then(|| replica.journal().clone());
            self.drive(state);
            if let Some(journal) = journal {
                Journal::sync_beside_others(&journal)?;
            }
            self.request_flush();
        }
        Ok(BegunCopy::NotYet)
    }

    /// Offers a copy; `None`: there is none any more. Returns true if it is offered: no member has come since its end.
    pub(crate) fn offer_copy(&self, content: Option<SnapshotContent>) -> bool {
        let mut state = self.lock();
        let mut is_offered = false;
        if let Ok(Stored::Replicated(member)) = &mut state.log
            && member.is_running()
        {
            member.replica.offer_snapshot(content);
            is_offered = member.replica.has_offer();
            self.drive(state);
        }
        is_offered
    }

    /// Returns true if a node has a replica of the group.
    pub(crate) fn has_replica_at(&self, node: i32) -> bool {
        match &self.lock().log {
            Ok(Stored::Replicated(member)) => {
                member.replica.configuration().replicas().any(|replica| replica.node() == node)
            }
            _ => false,
        }
    }

    /// The state of a follower that may take a copy over; `None`: no replica is here that follows.
    pub(crate) fn copy_target(&self) -> Option<CopyTarget> {
        let state = self.lock();
        let Ok(Stored::Replicated(member)) = &state.log else { return None };
        let follows = member.is_running() && member.replica.role().state != RoleState::Leader;
        follows.then(|| CopyTarget {
            dir: member.replica.log().dir().clone(),
            config: member.replica.log().config().clone(),
            leader: member.leader(),
            high_watermark: member.replica.log().ends().high_watermark,
        })
    }

    /// Puts a copy that is whole in the place of a follower's log. Returns false where it is not needed any more. Blocks on the disk, and
    /// links do not wait for that.
    ///
    /// # Errors
    /// The replica's, which is out of service then.
    pub(crate) fn install_copy(
        &self,
        offer: &SnapshotOffer,
        copy: ImportedLog,
        clock: &Clock,
    ) -> Result<bool, ReplicaError> {
        let Some(replication) = &self.replication else { return Ok(false) };
        let mut state = self.lock();
        let installed = match &mut state.log {
            Ok(Stored::Replicated(member)) if member.is_running() => {
                let _wait = replication.disk_waits.begin_proposal();
                let delay_ms = member.replica.log().config().file_delete_delay_ms;
                let installed = member.replica.install(offer, copy, clock.mono_ms().saturating_add(delay_ms));
                member.journal_upto = None;
                installed
            }
            _ => return Ok(false),
        };
        if matches!(installed, Ok(true)) {
            // What is synced of the old log says nothing of the new one.
            state.moves += 1;
            let dir = state.log.as_ref().ok().map(|log| log.dir().clone());
            *self.flush.write() = dir.map(|dir| Flush::new(&self.own, dir, state.moves));
        }
        // After an error this ends the waits.
        self.drive(state);
        installed
    }

    /// Bytes of closed segments that the log keeps for the entries of its group; 0 without other replicas.
    pub fn kept_bytes(&self) -> u64 {
        match &self.lock().log {
            Ok(Stored::Replicated(member)) => {
                member.replica.log().closed_bytes_from(member.replica.start_offset())
            }
            _ => 0,
        }
    }
}

/// The replica, where it leads.
fn leading<'a>(state: &'a mut Locked<'_>) -> Option<&'a mut Replica> {
    match &mut state.log {
        Ok(Stored::Replicated(member)) if member.leads() => Some(&mut member.replica),
        _ => None,
    }
}

fn manifest_of(replica: &Replica, start: Start, export: &Export) -> Manifest {
    let files = export.files().iter().map(|file| CopyFile {
        base_offset: file.base_offset,
        kind: if file.is_snapshot { CopyFileKind::Snapshot } else { CopyFileKind::Log },
        len: file.len,
    });
    Manifest {
        group: replica.group(),
        start,
        log_start: export.log_start(),
        compacted_to: export.compacted_to(),
        configuration: replica.configuration_at(start.index).in_order(),
        epochs: export.epochs().to_vec(),
        files: files.collect(),
    }
}
