//! Reads of a partition, and the fetches that wait for more of it.

use std::sync::Arc;

use mainstem_log::{Ends, EpochEnd, Log, ReadBound, ReadPlan};
use mainstem_records::LeaderEpoch;
use mainstem_wire::ErrorCode;

use super::{Partition, end_of_epoch};
use crate::attached::Attached;
use crate::errors::read_error_code;
use crate::signal::FetchWaiter;

/// The part of a fetch that is for one partition.
#[derive(Debug, Clone)]
pub struct PartitionRead {
    /// First offset wanted.
    pub offset: i64,
    /// The bound up to which this reader may see.
    pub bound: ReadBound,
    /// At most so many bytes.
    pub bytes_max: usize,
    /// Unless the first batch alone is larger.
    pub at_least_one: bool,
    /// The leader epoch that the client knows of, if any.
    pub current_leader_epoch: LeaderEpoch,
    /// The epoch of the record before `offset` at the client, if it says so (KIP-595).
    pub last_fetched_epoch: LeaderEpoch,
}

/// The answer of a partition to a fetch.
pub struct PartitionData {
    /// The ends of the log at that instant.
    pub ends: Ends,
    /// The epoch in which this node led.
    pub leader_epoch: LeaderEpoch,
    /// The place of the readable bytes, if there are any.
    pub plan: ReadPlan,
    /// The largest epoch up to the client's and its end, where the client's log has gone another way.
    pub diverging: Option<EpochEnd>,
}

impl Partition {
    /// Finds readable bytes. A waiter is registered at the same instant when there is nothing to read, so that no
    /// append can slip between.
    ///
    /// # Errors
    /// `OffsetOutOfRange`, or why the partition cannot be read.
    pub fn read(
        &self,
        request: &PartitionRead,
        waiter: Option<&Arc<FetchWaiter>>,
    ) -> Result<PartitionData, ErrorCode> {
        if let Some(queue) = &self.attached {
            return self.read_queue(queue, request, waiter);
        }
        let mut state = self.lock();
        let leader_epoch = state.lead(request.current_leader_epoch)?;
        let log = state.log()?;
        let ends = log.ends();
        if let Some(diverging) = diverging(log, leader_epoch, request)? {
            return Ok(PartitionData {
                ends,
                leader_epoch,
                plan: ReadPlan::Empty,
                diverging: Some(diverging),
            });
        }
        let plan = log.read(request.offset, request.bound, request.bytes_max, request.at_least_one);
        let plan = plan.map_err(|error| read_error_code(&error))?;
        if let Some(waiter) = waiter {
            state.fetches.add(waiter, &ends);
        }
        Ok(PartitionData { ends, leader_epoch, plan, diverging: None })
    }

    /// Registers a waiter if a read would find what `seen` has: nothing has been appended, removed or committed since, and this
    /// node leads in the same epoch. Returns false where that is not so, or not known: then nothing is registered, and the
    /// partition is to be read again.
    pub fn watch(
        &self,
        seen: &PartitionData,
        current_leader_epoch: LeaderEpoch,
        waiter: &Arc<FetchWaiter>,
    ) -> bool {
        if self.attached.is_some() {
            return false;
        }
        let mut state = self.lock();
        let is_same = state.lead(current_leader_epoch) == Ok(seen.leader_epoch)
            && state.log.as_ref().is_ok_and(|log| reads_alike(&log.ends(), &seen.ends));
        if is_same {
            state.fetches.add(waiter, &seen.ends);
        }
        is_same
    }

    /// Takes a waiter's registrations back.
    pub fn forget(&self, waiter: &Arc<FetchWaiter>) {
        if let Some(queue) = &self.attached {
            return queue.forget(waiter);
        }
        self.lock().fetches.remove(waiter);
    }

    fn read_queue(
        &self,
        queue: &Attached,
        request: &PartitionRead,
        waiter: Option<&Arc<FetchWaiter>>,
    ) -> Result<PartitionData, ErrorCode> {
        let leader_epoch = self.lead(request.current_leader_epoch)?;
        queue.check_served()?;
        if let Some(waiter) = waiter {
            queue.register(waiter);
        }
        let ends = queue.ends()?;
        let epoch = request.last_fetched_epoch;
        if epoch.is_known() {
            let end = queue.end_of_epoch(epoch)?;
            if !end.epoch.is_known() {
                return Err(ErrorCode::OFFSET_OUT_OF_RANGE);
            }
            if end.epoch < epoch || end.end_offset < request.offset {
                let (plan, diverging) = (ReadPlan::Empty, Some(end));
                return Ok(PartitionData { ends, leader_epoch, plan, diverging });
            }
        }
        Ok(PartitionData { ends, leader_epoch, plan: queue.read(request)?, diverging: None })
    }
}

/// The largest epoch up to the client's and its end, if the client has read beyond that end (KIP-595).
///
/// # Errors
/// `OFFSET_OUT_OF_RANGE` for an epoch whose end this log cannot tell, for example one that is ahead of it.
fn diverging(
    log: &Log,
    leader_epoch: LeaderEpoch,
    request: &PartitionRead,
) -> Result<Option<EpochEnd>, ErrorCode> {
    if !request.last_fetched_epoch.is_known() {
        return Ok(None);
    }
    let end = end_of_epoch(log, leader_epoch, request.last_fetched_epoch);
    if !end.epoch.is_known() || end.end_offset < 0 {
        return Err(ErrorCode::OFFSET_OUT_OF_RANGE);
    }
    let diverges = end.epoch < request.last_fetched_epoch || end.end_offset < request.offset;
    Ok(diverges.then_some(end))
}

/// Returns true if a reader finds the same between such ends: only how far the log is durable does not matter.
fn reads_alike(ends: &Ends, others: &Ends) -> bool {
    *others == Ends { durable_end: others.durable_end, ..*ends }
}

#[cfg(any(test, feature = "testing"))]
impl Partition {
    /// Returns true if a fetch waits for more of it.
    pub fn has_waiting_fetch(&self) -> bool {
        !self.lock().fetches.is_empty()
    }
}
