//! Those who wait for what a group decides: that appends are committed, where the log starts, that this replica leads, who
//! leads after it.

use mainstem_records::LeaderEpoch;
use mainstem_wire::ErrorCode;
use tokio::sync::oneshot;

use super::super::stored::Stored;
use super::super::{Durable, Partition};
use super::{DeferredEffects, Member};
use mainstem_links::Links;

/// Those who have to know that this replica leads, and did when they asked.
#[derive(Default)]
pub(super) struct Confirmations {
    pub(super) number: u64,
    /// They wait for the answer to the last question.
    pub(super) asked: Vec<Durable>,
    /// They came later: the next question is theirs.
    next: Vec<Durable>,
}

impl Confirmations {
    fn drain(&mut self) -> impl Iterator<Item = Durable> {
        std::mem::take(&mut self.asked).into_iter().chain(std::mem::take(&mut self.next))
    }
}

/// A wait for records appended up to an offset in this epoch. All waits end with the epoch.
pub(super) struct CommitWait {
    upto: i64,
    durable: Durable,
}

impl Member {
    /// Result of a wait for the commit of records appended up to `upto` in `epoch`; `None`: not committed yet.
    fn fate(&self, upto: i64, epoch: LeaderEpoch, min_insync: usize) -> Option<Result<(), ErrorCode>> {
        if !self.is_running() {
            return Some(Err(ErrorCode::KAFKA_STORAGE_ERROR));
        }
        if !self.leads() || self.epoch() != epoch {
            return Some(Err(ErrorCode::NOT_LEADER_OR_FOLLOWER));
        }
        (self.replica.acknowledged_offset(min_insync) >= upto).then_some(Ok(()))
    }

    /// Returns true if it transfers leadership, or has just done so and does not know the next leader.
    pub(super) fn is_between_leaders(&self) -> bool {
        self.is_running() && (self.replica.hands_over() || (!self.leads() && self.leader().is_none()))
    }

    fn push_wait(&mut self, wait: CommitWait) {
        let at = self.commit_waits.iter().rposition(|other| other.upto <= wait.upto).map_or(0, |at| at + 1);
        self.commit_waits.insert(at, wait);
    }

    /// Takes the waits that end with the acknowledged offset.
    pub(super) fn take_acknowledged(
        &mut self,
        min_insync: usize,
        ended: &mut Vec<(Durable, Result<(), ErrorCode>)>,
    ) {
        if self.commit_waits.is_empty() {
            return;
        }
        let acknowledged = self.replica.acknowledged_offset(min_insync);
        while self.commit_waits.front().is_some_and(|wait| wait.upto <= acknowledged)
            && let Some(wait) = self.commit_waits.pop_front()
        {
            ended.push((wait.durable, Ok(())));
        }
    }

    pub(in crate::partition) fn end_waits(
        &mut self,
        error: ErrorCode,
    ) -> Vec<(Durable, Result<(), ErrorCode>)> {
        let commit = self.commit_waits.drain(..).map(|wait| wait.durable);
        let log_start = self.log_start_waits.drain(..).map(|(_, wait)| wait);
        let confirmations = self.confirmations.drain();
        commit.chain(log_start).chain(confirmations).map(|wait| (wait, Err(error))).collect()
    }

    /// Ends the waits for what is committed, but on fewer replicas than `min.insync.replicas` wants, where those are not in
    /// sync any more.
    pub(super) fn end_short_waits(
        &mut self,
        links: &Links,
        min_insync: usize,
        deferred: &mut DeferredEffects,
    ) {
        if self.commit_waits.is_empty() || !self.leads() || self.in_sync_count(links) >= min_insync {
            return;
        }
        let committed = self.replica.log().ends().high_watermark;
        while self.commit_waits.front().is_some_and(|wait| wait.upto <= committed)
            && let Some(wait) = self.commit_waits.pop_front()
        {
            deferred.ended.push((wait.durable, Err(ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND)));
        }
    }

    /// Asserts that each wait can still end.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn check_waits(&self, min_insync: usize) {
        let uptos = self.commit_waits.iter().map(|wait| wait.upto);
        assert!(uptos.clone().is_sorted(), "{:?}", uptos.collect::<Vec<_>>());
        let acknowledged = self.replica.acknowledged_offset(min_insync);
        let role = self.replica.role();
        assert!(self.commit_waits.is_empty() || self.leads(), "a wait for another leader's commit: {role:?}");
        let first = uptos.min();
        let ends = self.replica.log().ends();
        assert!(
            first.is_none_or(|upto| upto > acknowledged),
            "a wait for {first:?}, and {acknowledged} is acknowledged: {ends:?}, {min_insync} replicas"
        );
        let Confirmations { asked, next, .. } = &self.confirmations;
        assert!(self.leads() || (asked.is_empty() && next.is_empty()), "a confirmation that never ends");
    }

    /// Asks whether it leads, where a caller has to know and no question is under way. Returns true if it did: the replica is
    /// to be driven.
    pub(super) fn ask_confirmation(&mut self) -> bool {
        let Confirmations { number, asked, next } = &mut self.confirmations;
        if !asked.is_empty() || next.is_empty() || !self.replica.confirm(*number + 1) {
            return false;
        }
        *number += 1;
        *asked = std::mem::take(next);
        true
    }
}

impl Partition {
    /// Has somebody notified when what was appended up to `upto` in `epoch` is acknowledged by as many replicas as
    /// acks=all waits for; with an error when it is known that it never will be, or not in this epoch. Of a partition
    /// that is not replicated: when it is durable.
    pub fn when_committed(&self, upto: i64, epoch: LeaderEpoch, wait: Durable) {
        let Some(replication) = &self.replication else { return self.when_durable(upto, wait) };
        let mut state = self.lock();
        let min_insync = self.min_insync();
        let member = match &mut state.log {
            Ok(Stored::Replicated(member)) => member,
            Ok(Stored::Alone(_)) => unreachable!("a replicated partition has a replica"),
            Err(no_log) => {
                let code = no_log.code();
                drop(state);
                return wait.done(Err(code));
            }
        };
        match member.fate(upto, epoch, min_insync) {
            Some(result) => {
                drop(state);
                wait.done(result);
            }
            None => {
                member.push_wait(CommitWait { upto, durable: wait });
                member.note_status(&replication.handle.status);
            }
        }
    }

    /// Result of a wait of [`Self::when_committed`]. A wait that has not ended is a time-out.
    pub fn commit_fate(&self, upto: i64, epoch: LeaderEpoch) -> Result<(), ErrorCode> {
        if self.replication.is_none() {
            return self.durability(upto);
        }
        match &self.lock().log {
            Ok(Stored::Replicated(member)) => {
                member.fate(upto, epoch, self.min_insync()).unwrap_or(Err(ErrorCode::REQUEST_TIMED_OUT))
            }
            Ok(Stored::Alone(_)) => unreachable!("a replicated partition has a replica"),
            Err(no_log) => Err(no_log.code()),
        }
    }

    /// Has somebody notified when it is known that this node leads in `epoch`, and did when this was called: a majority of the
    /// replicas has said so since. No clock is trusted: a process that was stopped, or is cut off, cannot know by itself.
    /// Of a partition that is not replicated: at once.
    pub fn when_confirmed(&self, epoch: LeaderEpoch, wait: Durable) {
        if self.replication.is_none() {
            return wait.done(Ok(()));
        }
        let mut state = self.lock();
        match &mut state.log {
            Ok(Stored::Replicated(member)) if member.leads() && member.epoch() == epoch => {
                member.confirmations.next.push(wait);
            }
            _ => {
                drop(state);
                return wait.done(Err(ErrorCode::NOT_LEADER_OR_FOLLOWER));
            }
        }
        self.drive(state);
    }

    /// Receiver for the end of a transfer of leadership: the next leader is known, or this replica stays the leader. A refused append may
    /// be retried then. `None`: there is no transfer.
    pub fn hand_over(&self) -> Option<oneshot::Receiver<()>> {
        self.replication.as_ref()?;
        let mut state = self.lock();
        let Ok(Stored::Replicated(member)) = &mut state.log else { return None };
        let is_parked = member.replica.hands_over() || !member.hand_over_waits.is_empty();
        if !is_parked || !member.is_between_leaders() {
            return None;
        }
        let (sender, handed_over) = oneshot::channel();
        member.hand_over_waits.push(sender);
        Some(handed_over)
    }
}
