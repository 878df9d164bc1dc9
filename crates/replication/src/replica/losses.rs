//! The losses of a replica by a power cut, where batches count as persisted when they are written (`write.caching`).
//!
//! Such a replica starts with less than it has acknowledged. It says to the first leader that sends it anything where its log ends; the
//! leader takes back what it has counted on, and sends the rest again. Until the replica has caught up, or for
//! [`VOTE_HOLD_MS`](super::vote_hold::VOTE_HOLD_MS), it gives no vote and asks for none: those that have lost nothing elect one of
//! them, if they are a majority. For as long again it gives its vote and asks for none, so that one that has lost nothing is elected
//! where it is not a majority. The journal notes that a log has such a tail, and that a replica holds its votes ([`Tail`]). That
//! counts whatever the setting is at the next start, and however often the replica starts until then.
//!
//! When too many have lost the same committed records, a leader is elected that does not have them, and others come in their
//! place. A replica that has them cuts them off; one whose log begins behind them, since what precedes was deleted, begins again where
//! its log and the leader's were the same. Each that has known them to be committed says so in the log and to its
//! driver ([`Lost`]) when it takes what is in their place. What was committed after the last checkpoint of the high watermark,
//! and is known to no replica that ran on, is not counted.

use super::ReplicaOptions;
use super::raft_group::{LastEntry, Refusal};
use super::vote_hold::VoteHold;
use crate::index::EntryIndex;
use crate::journal::{GroupState, InternalEntry, Start, Tail};
use known::Known;
use mainstem_log::dir::LastStop;
use mainstem_log::{Ends, Log};
use raft::eraftpb::Message;

mod known;

/// Committed records that are in no log of the group any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// The offset of the first one.
    pub offset: i64,
    /// Offsets that are gone, of records that this replica has known to be committed.
    pub records: i64,
}

/// Records of a replica that may be lost.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Batches count as persisted when they are written.
    write_caching: bool,
    /// They do, or have: a power cut may have taken some, here or elsewhere.
    is_possible: bool,
    /// The records that were committed, until it is certain that they are here, or gone.
    known: Option<Known>,
    /// It has to say to the next leader where the log ends.
    is_to_say_end: bool,
    /// It may lack what it has acknowledged, also where it leaves elections to the others no more.
    may_lack: bool,
    /// The content of the journal about it, for the next start.
    noted: Tail,
    /// The journal has that when it is durable so far.
    noted_upto: u64,
    /// Batches before this offset may have counted as persisted when they were written, where they do no more.
    cached_end: i64,
}

impl Losses {
    /// The losses that a log may have which was just opened, and the hold on votes that follows from them. `is_lacking`: it has lost files.
    pub(super) fn of(
        log: &Log,
        state: &GroupState,
        options: &ReplicaOptions,
        is_lacking: bool,
    ) -> (Losses, VoteHold) {
        let (end, offset) = (log.ends().log_end, options.high_watermark);
        // Directories of earlier releases do not remember it.
        let is_cached = options.write_caching || state.tail != Tail::default();
        let mut losses = Losses {
            write_caching: options.write_caching,
            is_possible: is_cached || is_lacking,
            is_to_say_end: is_lacking,
            noted: state.tail,
            ..Losses::default()
        };
        // A group that has had no leader yet has nothing to lose.
        if state.vote.term == 0 {
            return (losses, VoteHold::new(false));
        }
        // What was committed may be gone from the others as well.
        losses.known = (offset > 0).then(|| Known::of(offset, state.start, &state.entries));
        if !is_cached {
            return (losses, VoteHold::new(false));
        }
        let is_cut = log.dir().last_stop() == LastStop::UncleanOtherBoot || state.tail.holds_votes;
        warn_of_cut(log, end, offset, is_cut);
        let has_others = state.has_others();
        let is_held = is_cut && has_others;
        losses.is_to_say_end |= is_held;
        // A hold may have ended with its time, before a leader has sent anything.
        losses.may_lack = has_others && (is_cut || state.tail.is_cached);
        (losses, VoteHold::new(is_held))
    }

    /// Returns true if it is allowed for that less is here than was acknowledged.
    pub(super) fn are_possible(&self) -> bool {
        self.is_possible
    }

    /// Allows for it from now on: files are gone with what was acknowledged.
    pub(super) fn allow(&mut self) {
        (self.is_possible, self.is_to_say_end) = (true, true);
    }

    /// Returns true if batches count as persisted, or have, that are not durable.
    pub(super) fn is_cached(&self) -> bool {
        self.noted.is_cached
    }

    /// Returns true if the replica may lack what it has acknowledged.
    pub(super) fn may_lack(&self) -> bool {
        self.may_lack
    }

    /// Notes that the replica has all that was acknowledged.
    pub(super) fn end_lack(&mut self) {
        self.may_lack = false;
    }

    /// Has batches count as persisted when they are written, or when they are durable. Returns true if that is new.
    pub(super) fn set_write_caching(&mut self, write_caching: bool, log_end: i64) -> bool {
        if std::mem::replace(&mut self.write_caching, write_caching) == write_caching {
            return false;
        }
        self.is_possible |= write_caching;
        if !write_caching {
            self.cached_end = log_end;
        }
        true
    }

    /// The offset before which batches count as persisted, with a journal that is durable up to a position. Of those that are not
    /// durable, none does before the journal says so durably: the next start has to know what a power cut may have taken, also if caching
    /// is switched off by then.
    pub(super) fn persisted_end(&self, ends: &Ends, journal_durable: u64) -> i64 {
        let may_count = self.write_caching && self.noted.is_cached && self.noted_upto <= journal_durable;
        if may_count { ends.log_end } else { ends.durable_end }
    }

    /// The position up to which the journal has to be durable for batches to count as persisted when they are written.
    pub(super) fn caching_upto(&self) -> u64 {
        if self.write_caching { self.noted_upto } else { 0 }
    }

    /// Returns true if batches have counted as persisted that are not durable, where such batches do no more.
    pub(super) fn has_cached_tail(&self, ends: &Ends) -> bool {
        let has_counted = self.noted.is_cached && !self.write_caching;
        has_counted && ends.durable_end < self.cached_end.min(ends.log_end)
    }

    /// The high watermark to be noted for the next start, where the journal has the terms of the records before an offset durably
    /// (`None`: of all). `None`: what was noted before stays, since it is not resolved yet what a power cut has left of it.
    pub(super) fn high_watermark_to_note(
        &self,
        high_watermark: i64,
        terms_end: impl FnOnce() -> Option<i64>,
    ) -> Option<i64> {
        if !self.is_possible {
            return Some(high_watermark);
        }
        let terms_end = terms_end().unwrap_or(i64::MAX);
        self.known.is_none().then(|| high_watermark.min(terms_end))
    }

    /// Returns the content that the journal has to get for the next start, if it has another one. `leads_settled`: the replica leads, and
    /// has all that is committed.
    pub(super) fn tail_to_note(
        &mut self,
        ends: &Ends,
        leads_settled: bool,
        holds_votes: bool,
    ) -> Option<Tail> {
        self.may_lack &= !leads_settled;
        let is_open = self.has_cached_tail(ends) || self.known.is_some() || self.may_lack || holds_votes;
        let is_cached = self.write_caching || (self.noted.is_cached && is_open);
        let tail = Tail { is_cached, holds_votes };
        (tail != self.noted).then_some(tail)
    }

    /// Notes that the journal has that content when it is durable up to a position.
    pub(super) fn note_tail(&mut self, tail: Tail, upto: u64) {
        (self.noted, self.noted_upto) = (tail, upto);
    }

    /// Ends the allowance for losses where caching is off, all that has counted under it is durable, and all is here that was acknowledged:
    /// no power cut takes anything any more, and what is not there is on another disk.
    pub(super) fn end_if_resolved(&mut self, is_lacking: bool) {
        let is_resolved = self.known.is_none() && !self.may_lack && !is_lacking;
        self.is_possible = self.write_caching || self.noted != Tail::default() || !is_resolved;
    }

    /// Lowers the commit index of a heartbeat by a leader that counts on entries which are not here. Returns the answer that it gets, if
    /// that has to say where the log ends.
    pub(super) fn allow_for_own(&self, message: &mut Message, last: LastEntry) -> Option<Refusal> {
        let counted_on = message.commit;
        if counted_on > last.index {
            message.commit = last.committed;
        }
        let index = counted_on.max(last.index);
        let has_to_say_end = counted_on > last.index || self.is_to_say_end;
        has_to_say_end.then_some(Refusal { index, hint: last.index, term: last.term })
    }

    /// Notes that it was said to a leader where the log ends.
    pub(super) fn note_end_said(&mut self) {
        self.is_to_say_end = false;
    }

    /// Remembers that the records before an offset were committed, of a group with these entries: some of them are taken back.
    pub(super) fn remember(&mut self, offset: i64, start: Start, entries: &[InternalEntry]) {
        if self.known.as_ref().is_none_or(|before| before.offset < offset) {
            self.known = Some(Known::of(offset, start, entries));
        }
    }

    /// Returns what is gone of the records that were known to be committed, where the entries say it, now that the records before
    /// `committed_end` are committed.
    pub(super) fn find_lost(&mut self, index: &EntryIndex, committed_end: i64) -> Option<Lost> {
        let known = self.known.as_ref()?;
        let known_to = known.offset;
        let gone_from = known.gone_from(index.internal_entries(), (index.first(), index.last()));
        if gone_from.is_some() || committed_end >= known_to {
            self.known = None;
        }
        gone_from.map(|offset| Lost { offset, records: known_to - offset })
    }

    /// Asserts what holds between any two calls.
    pub(super) fn check(&self) {
        let is_open = self.write_caching || self.noted != Tail::default() || self.may_lack;
        assert!(self.is_possible || !is_open, "a loss that is not allowed for: {self:?}");
    }
}

/// Says what a power cut has taken of a log, or may have.
fn warn_of_cut(log: &Log, end: i64, offset: i64, is_cut: bool) {
    let partition = log.partition();
    if end < offset {
        let records = offset - end;
        tracing::warn!(
            %partition,
            offset = end,
            records,
            "{records} committed records from {end} on are not here any more (write.caching): they come from the other \
             replicas, if those have them"
        );
    }
    if is_cut {
        tracing::warn!(
            %partition,
            known_to_be_committed = offset,
            "the power was cut while records counted as persisted from the page cache (write.caching): of those from {offset} on \
             it is not known here which had been committed: what no replica has any more cannot be counted"
        );
    }
}

#[cfg(test)]
mod tests;
