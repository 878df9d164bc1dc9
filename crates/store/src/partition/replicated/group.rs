//! A partition's replica as links and the ticker drive it.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use mainstem_log::{ReadBound, ReadError, ReadPlan};
use mainstem_records::Batch;
use mainstem_replication::eraftpb::Message;
use mainstem_replication::{MessageError, ReplicaId, StepError};

use super::super::stored::Stored;
use super::super::{Locked, Partition};
use super::Member;
use mainstem_links::{DiskStep, Group, ReplicaStatus};

/// No node has this id.
const NO_NODE: i32 = -1;
/// Time for which a replica tries to be elected in the place of a leader that is known to be gone.
const SUCCESSION_MS: u64 = 1_000;
/// Bytes of one read of batches for a link.
const READ_BYTES: usize = 256 << 10;

impl Member {
    /// Notes what is known without the lock.
    pub(super) fn note_status(&self, status: &ReplicaStatus) {
        let leads_in = self.leads().then(|| self.replica.role().term);
        status.set_terms(leads_in, self.replica.coalesced_term());
        // Who waits for something that only time brings has every tick.
        let is_waiting = self.succession.is_some() || !self.commit_waits.is_empty();
        status.set_next_tick_ms(if is_waiting { 0 } else { self.replica.next_tick_ms() });
    }
}

impl Group for Partition {
    fn topic_partition(&self) -> (Arc<str>, i32) {
        (self.topic.clone(), self.index)
    }

    /// The first replica of a new group does not wait for others to miss a leader: where there is one, they refuse it.
    fn take_part(&self, now_ms: u64) {
        if let Ok(Stored::Replicated(member)) = &mut self.lock().log
            && member.replica.configuration().voters.first() == Some(&member.replica.own())
        {
            member.succession = Some((NO_NODE, now_ms + SUCCESSION_MS));
            if let Some(replication) = &self.replication {
                member.note_status(&replication.handle.status);
            }
        }
    }

    fn tick(&self, now_ms: u64) {
        let Some(replication) = &self.replication else { return };
        let status = &replication.handle.status;
        let Some(mut state) = self.try_lock() else { return };
        let Ok(Stored::Replicated(member)) = &mut state.log else { return };
        if !member.is_running() {
            // If it has failed while nothing drove it, this ends the waits.
            return self.drive(state);
        }
        let answered = status.take_answered();
        if answered != 0 {
            member.replica.note_answers(&replication.links.nodes(answered));
        }
        member.replica.note_contact(status.last_contact_ms());
        member.replica.tick(now_ms);
        status.set_ticked(now_ms);
        if let Some((gone, until_ms)) = member.succession {
            let is_over = until_ms < now_ms || member.leader().is_some_and(|leader| leader != gone);
            match is_over {
                true => member.succession = None,
                false => member.replica.succeed(),
            }
        }
        let mut deferred = self.drive_locked(replication, &mut state);
        if let Ok(Stored::Replicated(member)) = &mut state.log {
            member.end_short_waits(&replication.links, self.min_insync(), &mut deferred);
        }
        drop(state);
        self.finish(replication, deferred);
    }

    fn step_unless_it_waits(
        &self,
        message: Message,
        offset: i64,
        batches: &[u8],
    ) -> Result<Option<DiskStep>, MessageError> {
        let Some(replication) = &self.replication else { return Ok(None) };
        let Some(state) = self.lock_without_disk_step() else { return Ok(None) };
        let dir = match &state.log {
            Ok(Stored::Replicated(member))
                if member.is_running() && member.replica.waits_for_disk(&message) =>
            {
                member.replica.log().dir().path().to_owned()
            }
            _ => return self.step_locked(state, message, offset, batches).map(|()| None),
        };
        replication.disk_waits.begin_step();
        Ok(Some(DiskStep { message, dir }))
    }

    fn carry_out_disk_step(&self, step: DiskStep, offset: i64, batches: &[u8]) -> Result<(), MessageError> {
        let stepped = self.step_locked(self.lock(), step.message, offset, batches);
        if let Some(replication) = &self.replication {
            replication.disk_waits.end_step();
        }
        stepped
    }

    fn accept_coalesced(&self, from: ReplicaId, term: u64) {
        let Some(replication) = &self.replication else { return };
        let Some(mut state) = self.lock_without_disk_step() else { return };
        if let Ok(Stored::Replicated(member)) = &mut state.log
            && member.is_running()
            && member.replica.accept_coalesced(from, term)
        {
            member.note_status(&replication.handle.status);
        }
    }

    fn note_refusal(&self, node: i32) {
        let Some(replication) = &self.replication else { return };
        let Some(mut state) = self.lock_without_disk_step() else { return };
        if let Ok(Stored::Replicated(member)) = &mut state.log {
            let replicas: Vec<_> = member.replica.configuration().replicas().collect();
            let refusing = replicas.into_iter().filter(|replica| replica.node() == node);
            refusing.for_each(|replica| member.replica.note_refusal(replica));
            member.note_status(&replication.handle.status);
        }
    }

    fn node_gone(&self, node: i32, is_alive: &dyn Fn(i32) -> bool, now_ms: u64) {
        let Some(mut state) = self.lock_without_disk_step() else { return };
        let Ok(Stored::Replicated(member)) = &mut state.log else { return };
        if !member.is_running() || member.leader() != Some(node) {
            return;
        }
        let own = member.replica.own();
        let mut voters = member.replica.configuration().voters.iter();
        let first = voters.find(|voter| **voter == own || (voter.node() != node && is_alive(voter.node())));
        let succeeds = first == Some(&own);
        member.succession = succeeds.then_some((node, now_ms + SUCCESSION_MS));
        // The others have to know of it, too, before they are asked: the first request goes out with the next tick.
        member.replica.expect_no_leader();
        self.drive(state);
    }

    fn report_unreachable(&self, node: i32) {
        let Some(mut state) = self.lock_without_disk_step() else { return };
        let Ok(Stored::Replicated(member)) = &mut state.log else { return };
        let replicas: Vec<_> = member.replica.configuration().replicas().collect();
        for replica in replicas.into_iter().filter(|replica| replica.node() == node) {
            member.replica.report_unreachable(replica);
        }
        self.drive(state);
    }

    fn read_batches(&self, offsets: &Range<i64>, out: &mut Vec<u8>) -> io::Result<()> {
        self.batches(offsets, out).map_err(io::Error::other)
    }
}

impl Partition {
    /// The lock of a partition, unless it is held while a disk is waited for ([`DiskWaits`](super::disk_waits::DiskWaits)). Until that is
    /// done, messages for the partition are dropped, as in the network: they are sent again.
    fn lock_without_disk_step(&self) -> Option<Locked<'_>> {
        let replication = self.replication.as_ref()?;
        self.lock_unless(replication.disk_waits.gives_up())
    }

    fn step_locked(
        &self,
        mut state: Locked<'_>,
        message: Message,
        offset: i64,
        batches: &[u8],
    ) -> Result<(), MessageError> {
        let Ok(Stored::Replicated(member)) = &mut state.log else { return Ok(()) };
        if !member.is_running() {
            return Ok(());
        }
        match member.replica.step(message, offset, batches) {
            Ok(()) => {}
            Err(StepError::Message(MessageError::LostPromise)) => {
                let error = MessageError::LostPromise;
                tracing::error!(topic = %self.topic, partition = self.index, "{error}");
                member.replica.stop(error.to_string());
            }
            Err(StepError::Message(error)) => return Err(error),
            // It says so itself; driving it ends the waits.
            Err(StepError::Replica(_)) => {}
        }
        self.drive(state);
        Ok(())
    }

    fn batches(&self, offsets: &Range<i64>, out: &mut Vec<u8>) -> Result<(), ReadBatchesError> {
        let mut next = offsets.start;
        while next < offsets.end {
            let plan = self.with_log(|log| log.read(next, ReadBound::LogEnd, READ_BYTES, true));
            let plan = match plan.map_err(|_| ReadBatchesError::Gone)?? {
                ReadPlan::Later(pending) => pending.resolve()?,
                known => known,
            };
            let ReadPlan::Range(range) = plan else { return Err(ReadBatchesError::Gone) };
            let start = out.len();
            out.resize(start + range.len, 0);
            let read = mainstem_log::storage::read_exact_at(&*range.file, &mut out[start..], range.position);
            // A disk that cannot be read takes its directory offline, wherever that is noticed.
            read.map_err(|error| {
                let _ = self.with_log(|log| log.dir().note_error(&error));
                ReadError::Storage(error)
            })?;
            let (mut end, before) = (start, next);
            while next < offsets.end
                && let Ok((batch, _)) = Batch::split_first(&out[end..])
            {
                if batch.base_offset() != next {
                    return Err(ReadBatchesError::Gone);
                }
                (next, end) = (batch.next_offset(), end + batch.size());
            }
            out.truncate(end);
            if next == before {
                return Err(ReadBatchesError::Gone);
            }
        }
        match next == offsets.end {
            true => Ok(()),
            false => Err(ReadBatchesError::Gone),
        }
    }
}

/// Why batches that were to be sent are not.
#[derive(Debug, thiserror::Error)]
enum ReadBatchesError {
    /// They are not in the log as they were.
    #[error("what was to be sent was cut off, or removed by retention")]
    Gone,
    /// The log cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}
