//! The promise of a replica, and a look whether its disk still keeps it.
//!
//! All that it answers for is noted beside the journal before the answer leaves ([`Promised`]). A start that finds less in the log
//! than was noted has lost files, or a part of one: then the replica asks for no vote, and gives one only to who has all that it had. So
//! who leads has all that was acknowledged, and sends it again; when that is durable here, the replica is one as any other. An operator
//! who knows that no one has it any more says so by an empty file `accept-loss` in the partition's directory.

use super::losses::Lost;
use super::{ELECTION_TICKS, Replica};
use crate::error::ReplicaError;
use crate::group::{GroupId, ReplicaId};
use crate::index::EntryIndex;
use crate::journal::{Frame, GroupState, Journal, Promised, Start, Vote};
use mainstem_log::Log;
use mainstem_log::dir::LastStop;
use mainstem_log::storage::StorageFault;
use parking_lot::Mutex;
use raft::eraftpb::{Message, MessageType};

/// The part of its promise that a replica lacks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lacking {
    /// All that it had: no one with less may lead by its vote.
    promised: Promised,
    /// All is here once this entry is durable.
    regained_at: Option<u64>,
}

/// The findings of a start.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// The part that the replica lacks, and others may have.
    pub(super) lacking: Option<Lacking>,
    /// The records that are gone for good, of a replica that is alone in its group.
    pub(super) lost: Option<Lost>,
}

/// Makes up for votes that the journal has lost: for whom they were is not known, so no other one is given in their terms. Blocks on
/// the disk.
pub(super) fn make_up_for_votes(
    journal: &Mutex<Journal>,
    group: GroupId,
    own: ReplicaId,
    state: &mut GroupState,
    promised: Option<Promised>,
) -> Result<(), ReplicaError> {
    let Some(term) = promised.map(|promised| promised.vote_term).filter(|term| *term > state.vote.term)
    else {
        return Ok(());
    };
    tracing::error!(
        partition = group.partition,
        noted = state.vote.term,
        term,
        "the journal of groups has lost votes that it had: the replica gives none up to term {term}"
    );
    state.vote = Vote { term, candidate: Some(own) };
    journal.lock().append(group, &[Frame::Vote(state.vote)])?;
    Ok(Journal::sync_beside_others(journal)?)
}

/// The promise of a replica. A log that ends before its entries begin has lost files, whatever was noted: a note may be older than the
/// start, where a power cut came after a deletion, or an earlier release ran meanwhile. Nothing of the terms that there were is enough then.
pub(super) fn allow_for_deletions(
    log: &Log,
    state: &GroupState,
    promised: Option<Promised>,
) -> Option<Promised> {
    let start = state.start;
    let older = promised.filter(|promised| promised.is_kept_by(start.term, start.index));
    match older {
        Some(older) if log.ends().log_end < start.offset => {
            let term = older.term.max(state.vote.term).max(start.term);
            Some(Promised { term, index: u64::MAX, offset: start.offset, ..older })
        }
        _ => promised,
    }
}

/// Compares the entries of a log that was just opened with what its replica had promised.
pub(super) fn compare(
    log: &Log,
    index: &EntryIndex,
    state: &GroupState,
    promised: Option<Promised>,
) -> Result<Comparison, ReplicaError> {
    let last = index.last();
    let is_kept = |promised: &Promised| promised.is_kept_by(index.term(last).unwrap_or(0), last);
    let Some(promised) = promised.filter(|promised| !is_kept(promised)) else {
        return Ok(Comparison::default());
    };
    let (partition, end, had) = (log.partition(), log.ends().log_end, promised.offset);
    let records = (had - end).max(0);
    if state.configuration.voters.len() == 1 {
        tracing::error!(
            %partition,
            offset = end,
            records,
            "{records} records from {end} on are lost: files are gone, cut or damaged, and there is no other replica"
        );
        return Ok(Comparison {
            lost: (records > 0).then_some(Lost { offset: end, records }),
            ..Comparison::default()
        });
    }
    if log.takes_accepted_loss()? {
        tracing::warn!(
            %partition,
            offset = end,
            records,
            "the replica takes part without the {records} records from {end} on that it had, as accept-loss said"
        );
        return Ok(Comparison::default());
    }
    tracing::error!(
        %partition,
        offset = end,
        records,
        "this replica has lost what it had acknowledged, {records} records from {end} on: files are gone, cut or damaged. Until it has \
         them again from a leader it does not lead, and votes for none that lacks them. Start the other replicas; where \
         none has them any more, an empty file accept-loss in {}, on a majority of the replicas, and another start have them take \
         part without",
        log.path().display()
    );
    Ok(Comparison { lacking: Some(Lacking { promised, regained_at: None }), lost: None })
}

impl Lacking {
    /// After a power cut the note may be older than what was acknowledged last: nothing of the terms that there were is enough then.
    fn allow_for_power_cut(&mut self, log: &Log, term: u64) {
        if log.dir().last_stop() == LastStop::UncleanOtherBoot && self.promised.index < u64::MAX {
            (self.promised.term, self.promised.index) = (term.max(self.promised.term), u64::MAX);
        }
    }
}

impl Replica {
    /// Returns true if its log came back with less than it had promised, and a leader has not sent it all again. It does not lead, and votes for
    /// none that has less than it had.
    pub fn lacks_promised(&self) -> bool {
        self.losses.lacking.is_some()
    }

    /// Returns true if a message asks for what a replica does not do that lacks something: to lead, or to vote for one that lacks it too.
    pub(super) fn is_for_one_with_all(&self, message: &Message) -> bool {
        let Some(lacking) = &self.losses.lacking else { return false };
        match message.get_msg_type() {
            MessageType::MsgTimeoutNow => true,
            MessageType::MsgRequestPreVote | MessageType::MsgRequestVote => {
                !lacking.promised.is_kept_by(message.log_term, message.index)
            }
            _ => false,
        }
    }

    /// It has all that there was, up to its last entry, as soon as that is durable, if that is no less than it had. A leader that does not
    /// know yet what this replica had acknowledged may call less committed.
    pub(super) fn note_regained(&mut self) {
        let (last, term) = (self.node.raft.raft_log.last_index(), self.node.raft.raft_log.last_term());
        if let Some(lacking) = &mut self.losses.lacking
            && (lacking.promised.index == u64::MAX || lacking.promised.is_kept_by(term, last))
        {
            lacking.regained_at.get_or_insert(last);
        }
    }

    /// Entries from an index on are gone.
    pub(super) fn forget_regained(&mut self, index: u64) {
        if let Some(lacking) = &mut self.losses.lacking {
            lacking.regained_at.take_if(|at| *at >= index);
        }
    }

    fn end_lacking(&mut self) {
        let Some(lacking) = &self.losses.lacking else { return };
        if lacking.regained_at.is_some_and(|at| at <= self.node.raft.raft_log.persisted) {
            let partition = self.log.partition();
            tracing::info!(%partition, end = self.log.ends().log_end, "the replica has again all that it had acknowledged");
            self.losses.lacking = None;
            self.losses.is_regained = true;
        }
    }

    /// A leader counts on entries that are not here, and nothing was noted that would have shown it: after a power cut the note is older, and
    /// directories of earlier releases have none. Blocks on the disk.
    pub(super) fn note_what_a_leader_counts_on(&mut self, message: &Message) -> Result<(), ReplicaError> {
        let raft = &self.node.raft;
        let is_counted_on = message.get_msg_type() == MessageType::MsgHeartbeat
            && message.term >= raft.term
            && message.commit > raft.raft_log.last_index();
        if !is_counted_on || self.losses.may_be_short() {
            return Ok(());
        }
        let (partition, offset) = (self.log.partition(), self.log.ends().log_end);
        tracing::error!(
            %partition,
            offset,
            "this replica has lost what it had acknowledged, from {offset} on: files are gone, cut or damaged. The leader sends it again"
        );
        let promised = Promised { term: message.term, index: u64::MAX, vote_term: raft.term, offset };
        // Where it cannot be noted, the next message has it noted.
        if let Some(promise) = &mut self.promise {
            promise.write_durably(promised)?;
        }
        self.losses.begin_lacking(Lacking { promised, regained_at: None });
        Ok(())
    }

    /// Notes what is promised from the start on: all that is here, or what is lacking.
    pub(super) fn begin_promising(&mut self) -> Result<(), ReplicaError> {
        let (term, log) = (self.node.raft.term, &self.log);
        let noted = match (&mut self.losses.lacking, &mut self.promise) {
            (Some(lacking), Some(promise)) => {
                lacking.allow_for_power_cut(log, term);
                match lacking.promised == *promise.written() {
                    true => Ok(()),
                    false => promise.write_durably(lacking.promised).map_err(ReplicaError::from),
                }
            }
            _ => self.note_promise(),
        };
        // Where there is no room it is noted with what is durable next.
        noted.or_else(|error| match error.fault() {
            Some(fault) if fault.is_temporary() => Ok(()),
            _ => Err(error),
        })
    }

    /// Notes what is durable, before anything leaves that answers for it.
    pub(super) fn note_promise(&mut self) -> Result<(), ReplicaError> {
        self.end_lacking();
        let raft = &self.node.raft;
        let (index, term) = (raft.raft_log.persisted, raft.term);
        let Some(promise) = self.promise.as_mut().filter(|_| self.losses.lacking.is_none()) else {
            return Ok(());
        };
        let written = *promise.written();
        if (written.index, written.vote_term) == (index, term) {
            return Ok(());
        }
        let mut promised = written;
        if !self.unsynced.has_vote() {
            promised.vote_term = term.max(written.vote_term);
        }
        let entries = &self.node.store().index;
        // What counts as persisted and is not (write.caching) a power cut may take.
        let ends = self.log.ends();
        if index != written.index && (!self.losses.is_cached() || ends.durable_end == ends.log_end) {
            promised.offset = entries.offset_before(index).unwrap_or(written.offset);
            (promised.term, promised.index) = (entries.term(index).unwrap_or(0), index);
        } else if self.losses.is_regained {
            // What was lacking is here, and no more than that is known.
            let known = entries.last_known_at(ends.durable_end);
            (promised.term, promised.index, promised.offset) = (known.term, known.index, known.offset);
        }
        self.losses.is_regained = false;
        if promised == written {
            return Ok(());
        }
        // A power cut must not bring back what is not promised any more: it would be lacking.
        match written.is_kept_by(promised.term, promised.index) {
            true => promise.write(promised)?,
            false => promise.write_durably(promised)?,
        }
        Ok(())
    }

    /// Nothing behind an entry is promised any more, durably: the log is about to be cut there. What is lacking stays noted.
    pub(super) fn lower_promise(&mut self, to: Start) -> Result<(), ReplicaError> {
        let Some(promise) = self.promise.as_mut().filter(|_| self.losses.lacking.is_none()) else {
            return Ok(());
        };
        let written = *promise.written();
        if !written.is_kept_by(to.term, to.index) {
            let lowered = Promised { term: to.term, index: to.index, offset: to.offset, ..written };
            promise.write_durably(lowered)?;
        }
        Ok(())
    }

    /// Durable entries could not be noted: nothing that answers for them leaves.
    pub(super) fn make_do_without_promise(&mut self, error: ReplicaError) {
        if !error.fault().is_some_and(StorageFault::is_temporary) {
            self.fail(error);
            return;
        }
        self.effects.messages.clear();
        self.note_shortage(&error);
        self.wait_for_room();
    }

    /// Lets the time pass for a replica that does not ask for votes, and gives them: a leader that it hears no more has its lease no more.
    pub(super) fn pass_lease(&mut self, ticks: u64) {
        let raft = &mut self.node.raft;
        match std::mem::take(&mut self.is_heard) {
            true => raft.election_elapsed = 0,
            false => raft.election_elapsed = raft.election_elapsed.saturating_add(ticks as usize),
        }
        if raft.leader_id != 0 && raft.election_elapsed >= raft.randomized_election_timeout() {
            // Nobody is told of a leader that is not heard any more.
            raft.become_follower(raft.term, 0);
            raft.election_elapsed = ELECTION_TICKS;
        }
    }
}
