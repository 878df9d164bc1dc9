//! The part of a replica's log that may be compacted: what precedes the start of its group.
//!
//! A group counts batches from its start on, so these stay as they are. The leader proposes a floor, an offset that all replicas have
//! reached. When that is committed, each replica begins its group at the last place before the floor that its journal knows, and
//! compacts what precedes it by itself.

use mainstem_links::AbsenceLimits;
use mainstem_log::compaction::note_recovery_point;
use mainstem_records::LeaderEpoch;
use mainstem_replication::journal::Journal;
use mainstem_replication::{Replica, ReplicaId};

use super::{Member, Replication};
use crate::partition::Partition;
use crate::partition::stored::Stored;

/// Internal entries that say which offset all replicas have reached, with all records before it readable: this, and the offset.
/// Earlier releases take no note of them.
const ENTRY_FLOOR: u8 = 2;

/// The floors that a replica knows.
#[derive(Debug, Default)]
pub(super) struct Floors {
    /// Offset that all replicas have reached, as the group has agreed.
    agreed: i64,
    /// Floor that this replica has proposed as leader, and the epoch in which it did.
    proposed: Option<(LeaderEpoch, i64)>,
    laggards: Laggards,
}

/// The other replicas of a leader, each with its last progress in the epoch of the leader.
#[derive(Debug, Default)]
struct Laggards {
    epoch: Option<LeaderEpoch>,
    replicas: Vec<Progress>,
}

#[derive(Debug, Clone, Copy)]
struct Progress {
    replica: ReplicaId,
    /// The index up to which it had the log when that was seen to be new; 0: it has not said so in this epoch.
    matched: u64,
    since_ms: u64,
}

impl Laggards {
    /// Begins an epoch: what was known of others in an earlier one is of no account.
    fn begin(&mut self, epoch: LeaderEpoch) {
        if self.epoch != Some(epoch) {
            *self = Laggards { epoch: Some(epoch), replicas: Vec::new() };
        }
    }

    /// Returns true if a floor waits for a replica that has the log up to an index, and for which `held_bytes` bytes are kept; `None`:
    /// there are none. One that makes no progress for long, or none since the last look while it holds back too much, gets a copy when
    /// it comes back.
    fn are_awaited(
        &mut self,
        (replica, matched): (ReplicaId, u64),
        held_bytes: Option<u64>,
        limits: AbsenceLimits,
        now_ms: u64,
    ) -> bool {
        let known = self.replicas.iter().position(|known| known.replica == replica);
        let Some(at) = known else {
            self.replicas.push(Progress { replica, matched, since_ms: now_ms });
            return true;
        };
        let progress = &mut self.replicas[at];
        // What has everything has made all the progress that there is.
        let Some(held_bytes) = held_bytes.filter(|_| progress.matched == matched) else {
            *progress = Progress { replica, matched, since_ms: now_ms };
            return true;
        };
        now_ms.saturating_sub(progress.since_ms) < limits.time_ms && held_bytes <= limits.bytes
    }
}

impl Floors {
    /// The floors in what a replica that was just opened has applied.
    pub(super) fn of(replica: &Replica) -> Floors {
        let mut floors = Floors::default();
        replica.applied_data().for_each(|data| floors.apply(data));
        floors
    }

    /// Notes the floor in the data of an internal entry that is committed, if it is one.
    pub(super) fn apply(&mut self, data: &[u8]) {
        if let [ENTRY_FLOOR, offset @ ..] = data
            && let Ok(offset) = offset.try_into().map(i64::from_be_bytes)
        {
            self.agreed = self.agreed.max(offset);
        }
    }
}

impl Member {
    /// The floor that a leader should propose now.
    fn due_floor(&mut self, limits: AbsenceLimits, now_ms: u64) -> Option<i64> {
        // A floor that moved while a copy is on its way would make it stale at other replicas.
        if !self.leads() || !self.replica.leads_settled() || self.replica.log().is_exported() {
            return None;
        }
        let epoch = self.epoch();
        let (log, laggards) = (self.replica.log(), &mut self.floors.laggards);
        laggards.begin(epoch);
        let end = log.ends().log_end;
        let everywhere = self.replica.offset_everywhere(|replica, matched, offset| {
            let held_bytes = match offset {
                // It has said nothing yet.
                None if matched == 0 => Some(0),
                // One that needs what precedes the entries here gets a copy.
                None => return false,
                Some(offset) => (offset < end).then(|| log.closed_bytes_from(offset)),
            };
            laggards.are_awaited((replica, matched), held_bytes, limits, now_ms)
        })?;
        let floor = self.replica.log().compactable_base(everywhere)?;
        let known = self.floors.agreed.max(self.replica.start_offset());
        let proposed = self.floors.proposed.filter(|(epoch, _)| *epoch == self.epoch());
        let is_new = floor > known && proposed.is_none_or(|(_, proposed)| proposed < floor);
        is_new.then_some(floor)
    }

    fn propose_floor(&mut self, replication: &Replication) {
        let (limits, now_ms) = (replication.links.absence_limits(), replication.links.now_ms());
        let Some(floor) = self.due_floor(limits, now_ms) else { return };
        let mut data = vec![ENTRY_FLOOR];
        data.extend_from_slice(&floor.to_be_bytes());
        // If it is not proposed or not committed, the next look proposes it again.
        if replication.propose(&mut self.replica, data).is_ok() {
            self.floors.proposed = Some((self.epoch(), floor));
        }
    }
}

impl Partition {
    /// Returns true if the group agrees on what may be compacted. With `write.caching` it does not: a power cut takes from a replica what
    /// its leader knows it to have.
    fn has_floor(&self) -> bool {
        let settings = self.settings();
        settings.log.compact && !settings.write_caching
    }

    /// Has the group agree on how far all replicas have the log, if this one leads. Blocks on the disk.
    pub(crate) fn propose_floor(&self) {
        let Some(replication) = self.replication.as_ref().filter(|_| self.has_floor()) else { return };
        let mut state = self.lock();
        if let Ok(Stored::Replicated(member)) = &mut state.log
            && member.is_running()
        {
            member.propose_floor(replication);
            self.drive(state);
        }
    }

    /// The offset before which a replica of a group may compact its log; `None`: nothing yet. Blocks on the disk.
    pub(crate) fn compaction_bound(&self) -> Option<i64> {
        if !self.has_floor() {
            return None;
        }
        let recovery_point = self.recovery_point_for_floor();
        let mut state = self.lock();
        let Ok(Stored::Replicated(member)) = &mut state.log else { return None };
        if !member.is_running() {
            return None;
        }
        if member.replica.log().is_exported() {
            // The entries behind a copy that is offered stay.
            return None;
        }
        let moved = match recovery_point {
            Some(recovery_point) => member.replica.follow_floor(member.floors.agreed.min(recovery_point)),
            None => Ok(()),
        };
        let (journal, start) = (member.replica.journal().clone(), member.replica.start_offset());
        self.drive(state);
        let synced = moved.map_err(|error| error.to_string()).and_then(|()| {
            // A start that counts from an earlier place would count what is compacted.
            Journal::sync_beside_others(&journal).map_err(|error| error.to_string())
        });
        match synced {
            Ok(()) => (start > 0).then_some(start),
            Err(error) => {
                tracing::error!(topic = %self.topic, partition = self.index, "not compacted: {error}");
                None
            }
        }
    }

    /// Notes the recovery point before the group begins at a later place, which it must not be behind; `None`: it begins where it did.
    fn recovery_point_for_floor(&self) -> Option<i64> {
        {
            let mut state = self.lock();
            let Ok(Stored::Replicated(member)) = &mut state.log else { return None };
            member.replica.start_at_floor(member.floors.agreed)?;
        }
        let noted = note_recovery_point(self);
        noted.inspect_err(|error| tracing::debug!(topic = %self.topic, partition = self.index, "no recovery point: {error}")).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_waits_for_a_replica_that_makes_progress_and_holds_back_little() {
        let limits = AbsenceLimits { time_ms: 1_000, bytes: 500 };
        let (one, other) = (ReplicaId::new(1, 1), ReplicaId::new(2, 1));
        let mut laggards = Laggards::default();
        laggards.begin(LeaderEpoch::new(1));
        let mut waits = |replica, matched, held_bytes, now_ms| {
            laggards.are_awaited((replica, matched), held_bytes, limits, now_ms)
        };
        assert!(waits(one, 5, Some(100), 0) && waits(other, 5, Some(100), 0));
        assert!(waits(one, 5, Some(100), 999));
        assert!(!waits(one, 5, Some(100), 1_000), "no progress");
        assert!(waits(one, 6, Some(100), 1_001), "it comes on");
        assert!(waits(one, 7, Some(501), 1_002), "it comes on, whatever it holds back");
        assert!(!waits(one, 7, Some(501), 1_003), "it holds back too much");
        // One that has everything may be at rest for long.
        assert!(waits(other, 5, None, 5_000));
        assert!(waits(other, 5, Some(10), 5_999) && !waits(other, 5, Some(10), 6_000));
        // Of a new leader the others are not known, and have as long again.
        laggards.begin(LeaderEpoch::new(2));
        assert!(laggards.are_awaited((other, 0), Some(0), limits, 6_001));
        assert!(!laggards.are_awaited((other, 0), Some(0), limits, 7_001));
    }
}
