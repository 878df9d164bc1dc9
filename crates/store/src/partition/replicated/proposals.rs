//! Entries without records that a leader proposes: where the log of all replicas starts, and how far they may compact it.

use mainstem_replication::{LeaderAppendError, Replica};
use mainstem_wire::ErrorCode;

use super::super::stored::Stored;
use super::super::{Durable, Partition};
use super::Replication;

/// Internal entries that say where the log starts: this, and the offset.
pub(super) const ENTRY_LOG_START: u8 = 1;

impl Replication {
    /// Has a leader propose an entry. It is in the journal, durably, when this returns: the partition is locked meanwhile, and links do not
    /// wait for long.
    pub(super) fn propose(&self, replica: &mut Replica, data: Vec<u8>) -> Result<(), LeaderAppendError> {
        let _wait = self.disk_waits.begin_proposal();
        replica.propose(data)
    }
}

impl Partition {
    /// Has the group give up what retention does not keep by this clock, if this replica leads. What others see as the age of
    /// their segments counts for nothing: their clocks may differ, and what is there would depend on who leads.
    pub(in crate::partition) fn propose_retention(&self, wall_ms: i64) {
        if self.replication.is_none() {
            return;
        }
        let unwanted = match &self.lock().log {
            Ok(Stored::Replicated(member)) if member.leads() => {
                let unwanted = member.replica.log().unwanted_before(wall_ms);
                let is_under_way =
                    |offset| member.log_start_waits.iter().any(|(wanted, _)| *wanted >= offset);
                unwanted.map(|offset| offset.filter(|offset| !is_under_way(*offset)))
            }
            _ => return,
        };
        match unwanted {
            // There is no waiter. If it fails, the next maintenance proposes it again.
            Ok(Some(offset)) => drop(self.propose_log_start(offset, Durable::Call(Box::new(|_| {})))),
            Ok(None) => {}
            Err(error) => {
                tracing::error!(topic = %self.topic, partition = self.index, "retention removes no records: {error}");
            }
        }
    }

    /// Moves the log start of all replicas. The leader proposes it; each replica does it when it is committed.
    pub(in crate::partition) fn propose_log_start(
        &self,
        offset: i64,
        on_done: Durable,
    ) -> Result<i64, ErrorCode> {
        let mut state = self.lock();
        let (Ok(Stored::Replicated(member)), Some(replication)) = (&mut state.log, &self.replication) else {
            return Err(ErrorCode::KAFKA_STORAGE_ERROR);
        };
        if !member.leads() {
            return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        }
        let ends = member.replica.log().ends();
        let target = if offset == -1 { ends.high_watermark } else { offset };
        if target < 0 || target > ends.high_watermark {
            return Err(ErrorCode::OFFSET_OUT_OF_RANGE);
        }
        let mut data = vec![ENTRY_LOG_START];
        data.extend_from_slice(&target.to_be_bytes());
        let proposed = match replication.propose(&mut member.replica, data) {
            Ok(()) => {
                member.log_start_waits.push((target, on_done));
                Ok(target.max(ends.log_start))
            }
            Err(LeaderAppendError::NotLeader { .. }) => Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
            Err(_) => Err(ErrorCode::KAFKA_STORAGE_ERROR),
        };
        self.drive(state);
        proposed
    }
}
