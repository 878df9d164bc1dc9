//! The part of a replica's log that may be compacted: what precedes the start of its group.
//!
//! A group counts batches from its start on, so these stay as they are. The leader proposes a floor, an offset that all replicas have
//! reached. When that is committed, each replica begins its group at the last place before the floor that its journal knows, and
//! compacts what precedes it by itself.

use mainstem_replication::journal::Journal;

use super::{ENTRY_FLOOR, Member};
use crate::partition::Partition;
use crate::partition::stored::Stored;

impl Member {
    /// The floor that a leader should propose now.
    fn due_floor(&self) -> Option<i64> {
        if !self.leads() {
            return None;
        }
        let everywhere = self.replica.offset_everywhere()?;
        let floor = self.replica.log().compactable_base(everywhere)?;
        let known = self.floor.max(self.replica.start_offset());
        let proposed = self.proposed_floor.filter(|(epoch, _)| *epoch == self.epoch());
        let is_new = floor > known && proposed.is_none_or(|(_, proposed)| proposed < floor);
        is_new.then_some(floor)
    }

    fn propose_floor(&mut self) {
        let Some(floor) = self.due_floor() else { return };
        let mut data = vec![ENTRY_FLOOR];
        data.extend_from_slice(&floor.to_be_bytes());
        // If it is not proposed or not committed, the next look proposes it again.
        if self.replica.propose(data).is_ok() {
            self.proposed_floor = Some((self.epoch(), floor));
        }
    }
}

impl Partition {
    /// The offset before which a replica of a group may compact its log; `None`: nothing yet. Has the group move it on. Blocks on the disk.
    pub fn advance_floor(&self) -> Option<i64> {
        // With `write.caching` a power cut takes from a replica what its leader knows it to have.
        if self.settings().write_caching || !self.settings().log.compact {
            return None;
        }
        let mut state = self.lock();
        let Ok(Stored::Replicated(member)) = &mut state.log else { return None };
        if !member.is_running() {
            return None;
        }
        member.propose_floor();
        let moved = member.replica.follow_floor(member.floor);
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
