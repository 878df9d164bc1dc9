//! Snapshots of a replica's applied state, as far as its partition is concerned: where a snapshot may end, its offer to the group, and
//! the removal of the log before it. The owner of the partition defines their content.

use mainstem_log::LogError;
use mainstem_replication::journal::{Journal, JournalError, Start};
use mainstem_replication::snapshots::{SnapshotContent, SnapshotOffer, log_kept_from};
use mainstem_replication::{Replica, ReplicaError, RoleState};
use mainstem_wire::ErrorCode;

use super::stored::Stored;
use super::{Durable, Locked, Partition, commit_log_start};
use crate::errors::delete_records_error_code;
use mainstem_runtime::clock::Clock;

/// Why a step of a snapshot was not done. What was done before it stays.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotStepError {
    /// There is no replica here, or its log takes nothing.
    #[error("the log before it cannot be removed: {0}")]
    Log(ErrorCode),
    /// The replica is out of service, or its journal cannot be written.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// The journal cannot be synced.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Segments cannot be closed or removed.
    #[error("segments cannot be closed, or old ones removed: {0}")]
    Maintain(#[from] LogError),
}

impl Partition {
    fn with_replica<T>(&self, act: impl FnOnce(&mut Replica) -> T) -> Option<T> {
        replica(&mut self.lock()).map(act)
    }

    /// The entry that precedes an offset, where the replica knows it.
    pub fn entry_before(&self, offset: i64) -> Option<Start> {
        self.with_replica(|replica| replica.entry_before(offset)).flatten()
    }

    /// The entry with which a snapshot ends that holds what is below an offset; the journal remembers it from then on, durably.
    /// Blocks on the disk. `None`: the entry is not one of the last, and was not remembered.
    ///
    /// # Errors
    /// Those of replica and journal.
    pub fn remember_entry_before(&self, offset: i64) -> Result<Option<Start>, SnapshotStepError> {
        let remembered = self.with_replica(|replica| {
            let Some(at) = replica.entry_before(offset) else { return Ok(None) };
            let is_new = replica.remember(at)?;
            Ok::<_, ReplicaError>(Some((at, is_new.then(|| replica.journal().clone()))))
        });
        let Some((at, journal)) = remembered.transpose()?.flatten() else { return Ok(None) };
        if let Some(journal) = journal {
            Journal::sync_beside_others(&journal)?;
        }
        Ok(Some(at))
    }

    /// Returns true if a snapshot may end with an entry ([`Self::remember_entry_before`]): the log is durable up to it, and was not
    /// restarted behind another snapshot since.
    pub fn may_end_snapshot(&self, at: Start) -> bool {
        self.with_replica(|replica| replica.snapshot_end(at.offset)).flatten() == Some(at)
    }

    /// Offers a snapshot to replicas that need removed entries. Ignores a snapshot if the log was restarted behind a later one.
    pub fn offer_snapshot(&self, content: SnapshotContent) {
        self.with_replica(|replica| {
            if content.start.index >= replica.start().index {
                replica.offer_snapshot(Some(content));
            }
        });
    }

    /// Takes it from now on from a leader's change of members that members may change: of the metadata log.
    pub fn believe_changes(&self) {
        self.with_replica(Replica::believe_changes);
    }

    /// Returns true if this replica leads, has removed entries, and offers no snapshot to replicas that need them: a member has come
    /// since the last one.
    pub fn lacks_offer(&self) -> bool {
        let lacks = |replica: &mut Replica| {
            replica.role().state == RoleState::Leader && replica.start().index > 0 && !replica.has_offer()
        };
        self.with_replica(lacks).unwrap_or(false)
    }

    /// Returns true if all members were in the group behind the last entry that precedes an offset.
    pub fn had_all_members_at(&self, offset: i64) -> bool {
        let had = |replica: &mut Replica| {
            replica.entry_before(offset).is_some_and(|at| replica.are_all_at(at.index))
        };
        self.with_replica(had).unwrap_or(false)
    }

    /// Restarts the log behind an offered snapshot, which is on disk under its name. Blocks on the disk. Returns false if the file is not
    /// needed. After an error the file may be needed or not.
    ///
    /// # Errors
    /// The replica's, which is out of service then.
    pub fn begin_behind_snapshot(&self, offer: &SnapshotOffer) -> Result<bool, SnapshotStepError> {
        let mut state = self.lock();
        let Some(replica) = replica(&mut state) else {
            return Err(SnapshotStepError::Log(ErrorCode::KAFKA_STORAGE_ERROR));
        };
        let restored = replica.restore(offer);
        if matches!(restored, Ok(true)) {
            let SnapshotOffer { start, len, crc, .. } = *offer;
            replica.offer_snapshot(Some(SnapshotContent { start, len, crc }));
        }
        // After an error this ends who waits.
        self.drive(state);
        Ok(restored?)
    }

    /// Gives up what the log has before its snapshots, of which `ends` says where they end ([`log_kept_from`]); of a leader what
    /// slower replicas need only where it is more than `log_bytes_max` bytes. What the newest one holds is in closed segments then,
    /// which go with a later one. Returns where the log starts. Blocks on the disk.
    ///
    /// # Errors
    /// See [`SnapshotStepError`]; what is left goes the next time.
    pub fn give_up_log(
        &self,
        ends: &[i64],
        log_bytes_max: u64,
        clock: &Clock,
    ) -> Result<i64, SnapshotStepError> {
        let begins = self.with_replica(|replica| {
            let (slowest, bytes) = (replica.slowest_offset(), replica.log().size());
            let before = replica.log().ends().log_start;
            let kept = log_kept_from(ends, slowest, bytes, log_bytes_max).unwrap_or(before);
            let target = kept.min(replica.removable_end()).max(before);
            let log = replica.log_mut();
            log.close_segment(clock.mono_ms())?;
            let log_start = log.delete_records_before(target);
            let log_start =
                log_start.map_err(|error| SnapshotStepError::Log(delete_records_error_code(&error)))?;
            Ok((log.dir().clone(), log_start, log_start > before))
        });
        let gone = Err(SnapshotStepError::Log(ErrorCode::KAFKA_STORAGE_ERROR));
        let (dir, log_start, has_moved) = begins.unwrap_or(gone)?;
        if has_moved {
            let (sender, durable) = mainstem_runtime::sync::channel();
            // The receiver waits below for as long as it takes.
            let tell = move |result| _ = sender.send(result);
            commit_log_start(&dir, Durable::Call(Box::new(tell)));
            let written = durable.recv().unwrap_or(Err(ErrorCode::KAFKA_STORAGE_ERROR));
            written.map_err(SnapshotStepError::Log)?;
        }
        self.maintain(clock)?;
        Ok(log_start)
    }

    /// A node is at the snapshot that its replica was offered, or cannot have it: then it is offered another one.
    pub fn note_snapshot_fetch(&self, node: i32, is_served: bool) {
        let mut state = self.lock();
        match (replica(&mut state), is_served) {
            (None, _) => {}
            (Some(replica), true) => replica.note_fetch(node),
            (Some(replica), false) => {
                replica.note_failed_fetch(node);
                self.drive(state);
            }
        }
    }
}

/// The replica, where there is one that takes part.
fn replica<'a>(state: &'a mut Locked<'_>) -> Option<&'a mut Replica> {
    match &mut state.log {
        Ok(Stored::Replicated(member)) if member.is_running() => Some(&mut member.replica),
        _ => None,
    }
}
