//! The part of a replica's log that may be compacted: what precedes the start of its group.
//!
//! A group counts batches from its start on, so these stay as they are. The leader proposes a floor, an offset that all replicas have
//! reached. When that is committed, each replica begins its group at the last place before the floor that its journal knows, and
//! compacts what precedes it by itself.

use mainstem_records::LeaderEpoch;
use mainstem_replication::Replica;
use mainstem_replication::journal::Journal;

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
    fn due_floor(&self) -> Option<i64> {
        if !self.leads() {
            return None;
        }
        let everywhere = self.replica.offset_everywhere()?;
        let floor = self.replica.log().compactable_base(everywhere)?;
        let known = self.floors.agreed.max(self.replica.start_offset());
        let proposed = self.floors.proposed.filter(|(epoch, _)| *epoch == self.epoch());
        let is_new = floor > known && proposed.is_none_or(|(_, proposed)| proposed < floor);
        is_new.then_some(floor)
    }

    fn propose_floor(&mut self, replication: &Replication) {
        let Some(floor) = self.due_floor() else { return };
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
        let mut state = self.lock();
        let Ok(Stored::Replicated(member)) = &mut state.log else { return None };
        if !member.is_running() {
            return None;
        }
        let moved = member.replica.follow_floor(member.floors.agreed);
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
}
