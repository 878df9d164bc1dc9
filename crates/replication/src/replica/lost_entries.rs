//! Entries that a replica has lost, or its leader: both find where their logs are the same, and say what is gone.

use super::Replica;
use super::offers::begin_log_again;
use super::promises::Answered;
use super::raft_group::Refusal;
use crate::error::ReplicaError;
use crate::group::ReplicaId;
use crate::journal::{Frame, Promised, Start};
use mainstem_log::storage::StorageFault;
use raft::eraftpb::{Message, MessageType};

impl Replica {
    /// The high watermark, where it is to be noted for the next start
    /// ([`ReplicaOptions::high_watermark`](super::ReplicaOptions::high_watermark)). `None`: what was noted before stays. With
    /// `write.caching` it is what a power cut leaves of what this replica has known: that has to be resolved first, and it is noted as far
    /// as the journal has the terms of the records durably. What else waits for the journal is of no account.
    pub fn high_watermark_to_note(&self) -> Option<i64> {
        let high_watermark = self.log.ends().high_watermark;
        self.losses.high_watermark_to_note(high_watermark, || self.journal.durable_terms_end())
    }

    /// Returns true if it may lack what it has acknowledged: it was started with a log that has less, or from which a power cut may have
    /// taken that (`write.caching`), and has not caught up since.
    pub fn may_lack_acknowledged(&self) -> bool {
        self.losses.may_lack() || self.lacks_promised()
    }

    /// Returns true if its log came back with less than it had promised, and a leader has not sent it all again. It does not lead,
    /// and votes for none that has less than it had.
    pub fn lacks_promised(&self) -> bool {
        self.promises.are_lacking()
    }

    /// Has batches count as persisted when they are written (`write.caching`), or when they are durable. What has counted until then
    /// is to be synced: [`Replica::drive`] follows, and asks for it.
    pub fn set_write_caching(&mut self, write_caching: bool) {
        if self.losses.set_write_caching(write_caching, self.log.ends().log_end) {
            self.note_tail();
        }
    }

    /// The offset before which batches count as persisted.
    pub(super) fn persisted_end(&self) -> i64 {
        self.losses.persisted_end(&self.log.ends(), self.journal.durable())
    }

    /// Returns true if batches have counted as persisted that are not durable, where such batches do no more.
    pub(super) fn has_cached_tail(&self) -> bool {
        self.losses.is_cached() && self.losses.has_cached_tail(&self.log.ends())
    }

    /// Notes in the journal what the next start has to know. Where there is no space for that, it is tried again with whatever comes
    /// next, and caching does not count before.
    pub(super) fn note_tail(&mut self) {
        if !self.losses.are_possible() {
            return;
        }
        // Who leads has all that is committed.
        let (leads_settled, holds_votes) = (self.leads_settled(), self.holds_campaign());
        let tail = self.losses.tail_to_note(&self.log.ends(), leads_settled, holds_votes);
        if let Some(tail) = tail
            && self.is_taking_part()
            && !self.log.is_full()
            && let Ok(upto) = self.journal.append(Frame::Tail(tail))
        {
            self.losses.note_tail(tail, upto);
        }
        self.losses.end_if_resolved(self.lacks_promised());
    }

    /// Ends the hold on votes where an append of the leader was taken. A replica that has the beginning of the leader's term has all that
    /// was committed before it; with what the leader has committed since, it lacks nothing any more.
    pub(super) fn end_vote_hold(&mut self, kind: MessageType, from: u64, committed: u64) {
        if !self.may_lack_acknowledged() {
            return;
        }
        let (raft, last) = (self.group.raft(), self.group.last_entry());
        let has_all = last.term == raft.term && last.committed >= committed;
        if kind == MessageType::MsgAppend && raft.leader_id == from && has_all {
            self.group.vote_hold_mut().end();
            self.losses.end_lack();
            self.promises.note_regained(last.term, last.index);
        }
    }

    /// Keeps from the library that this replica has lost entries, or another one has. Returns the answer that the leader then gets, if
    /// it gets one. `offset` is that behind the entry that precedes those of an append.
    pub(super) fn allow_for_losses(
        &mut self,
        message: &mut Message,
        offset: i64,
    ) -> Result<Option<Refusal>, ReplicaError> {
        self.note_what_a_leader_counts_on(message)?;
        let is_of_group = || self.configuration().replicas().any(|replica| replica.0 == message.from);
        if self.group.is_past(message) || !is_of_group() {
            return Ok(None);
        }
        match message.get_msg_type() {
            // Whatever counts here: the other replica says what it has.
            MessageType::MsgAppendResponse => self.take_back_match(message),
            _ if !self.losses.are_possible() => {}
            MessageType::MsgHeartbeat => {
                return Ok(self.losses.allow_for_own(message, self.group.last_entry()));
            }
            MessageType::MsgAppend if self.group.denies_start(message) => {
                return self.begin_before_start(message, offset);
            }
            MessageType::MsgAppend => self.cut_what_the_leader_lacks(message)?,
            _ => {}
        }
        Ok(None)
    }

    /// Notes that a leader counts on entries that are not here, and nothing was noted that would have shown it: after a power cut the note
    /// is older, and directories of earlier releases have none. Blocks on the disk.
    fn note_what_a_leader_counts_on(&mut self, message: &Message) -> Result<(), ReplicaError> {
        if !self.group.is_counted_on(message) || self.losses.are_possible() {
            return Ok(());
        }
        let (partition, offset) = (self.log().partition(), self.log.ends().log_end);
        tracing::error!(
            %partition,
            offset,
            "this replica has lost what it had acknowledged, from {offset} on: files are gone, cut or damaged. The leader sends it again"
        );
        let (term, vote_term) = (message.term, self.group.term());
        self.promises.begin_lacking(Promised { term, index: u64::MAX, vote_term, offset })?;
        self.losses.allow();
        Ok(())
    }

    /// Has a leader count on nothing that another replica has lost, as it says.
    fn take_back_match(&mut self, message: &mut Message) {
        let Some(matched) = self.group.take_back_match(message) else { return };
        self.peers.end_coalesced(message.from);
        self.peers.forget_asked(message.from);
        let (partition, node, end) =
            (self.log().partition(), ReplicaId(message.from).node(), message.reject_hint);
        tracing::warn!(%partition, node, matched, end, "a replica has lost entries that it had acknowledged: they are sent again, unless it stops");
    }

    /// Returns true if a message has this replica give up committed entries that its leader has lost.
    pub(super) fn loses_by(&self, message: &Message) -> bool {
        self.losses.are_possible()
            && (self.group.denies_start(message) || self.group.first_denied(message).is_some())
    }

    /// Cuts committed entries off that a leader lacks: it was elected by replicas that have lost them.
    fn cut_what_the_leader_lacks(&mut self, message: &Message) -> Result<(), ReplicaError> {
        let Some(first) = self.group.first_denied(message) else { return Ok(()) };
        let end = self.end_of_entry(first - 1)?;
        self.take_back(end);
        let mut frames = Vec::new();
        self.cut(first, &mut frames)?;
        self.journal.write(&mut frames)?;
        self.begin_again()
    }

    /// Has the log begin again before its start, where a leader lacks what precedes the entries here. Of that it is not remembered which
    /// entries they were, so where the leader's log is the same has to be found: a term has one leader, so it is where an entry has the
    /// term of the one that precedes the start. Where the leader has none of that term, the log begins without any entry.
    fn begin_before_start(
        &mut self,
        message: &mut Message,
        offset: i64,
    ) -> Result<Option<Refusal>, ReplicaError> {
        let (start, index, term) = (self.start(), message.index, message.log_term);
        if index >= start.index || term > start.term {
            // What precedes is not here either: the leader looks for it further in front.
            let hint = index.min(start.index).saturating_sub(1);
            let (from, to, term) = (message.from, message.to, message.term);
            *message = Message { msg_type: MessageType::MsgHeartbeat, from, to, term, ..Message::default() };
            return Ok(Some(Refusal { index, hint, term: start.term }));
        }
        let begin = if term == start.term { Start { index, term, offset } } else { Start::default() };
        let (partition, begins_at, before) = (self.log().partition(), begin.offset, start.offset);
        tracing::warn!(
            %partition,
            before,
            begins_at,
            "the leader lacks what precedes this log, which begins again at {begins_at} (write.caching)"
        );
        self.take_back(begin);
        self.promises.forget_regained(begin.index + 1);
        self.promises.lower(begin)?;
        // Of the entries that come, none is known to be committed.
        let cut = Frame::Cut { index: begin.index + 1 };
        let restore = self.journal.restore_frame(begin, self.configuration().clone());
        self.journal.write(&mut vec![cut, restore])?;
        self.journal.sync_now()?;
        begin_log_again(self.log.log_mut(), &self.journal, begin, self.now_ms)?;
        self.log.wait_no_further_than(begin.offset);
        self.begin_again()?;
        Ok(None)
    }

    /// Takes back that what is behind a place is committed. Remembers what was known to be.
    fn take_back(&mut self, to: Start) {
        let index = self.group.index();
        self.losses.remember(self.log.committed().1, index.start(), index.internal_entries());
        self.log.uncommit(to.index, to.offset);
        self.effects.cut(to.offset);
    }

    /// Says what is gone of the records that were known to be committed, where entries that were just written or committed show it.
    pub(super) fn note_lost(&mut self) {
        let Some(lost) = self.losses.find_lost(self.group.index(), self.log.committed().1) else { return };
        let (partition, offset, records) = (self.log().partition(), lost.offset, lost.records);
        tracing::warn!(
            %partition,
            offset,
            records,
            "{records} committed records from {offset} on are lost: power cuts (write.caching), or files that are gone, have taken \
             them from the replicas that elect"
        );
        self.effects.lost.push(lost);
    }

    /// Notes what is promised from the start on: all that is here, or what is lacking.
    pub(super) fn begin_promising(&mut self) -> Result<(), ReplicaError> {
        let noted = match self.promises.begin(self.log.log(), self.group.term()) {
            Ok(true) => self.note_promise(),
            noted => noted.map(drop),
        };
        // Where there is no space it is noted with what is durable next.
        noted.or_else(|error| match error.fault() {
            Some(fault) if StorageFault::is_temporary(fault) => Ok(()),
            _ => Err(error),
        })
    }

    /// Notes what is durable, before anything leaves that answers for it.
    pub(super) fn note_promise(&mut self) -> Result<(), ReplicaError> {
        let (persisted, term) = (self.group.persisted(), self.group.term());
        if self.promises.end_lacking(persisted) {
            let (partition, end) = (self.log().partition(), self.log.ends().log_end);
            tracing::info!(%partition, end, "the replica has again all that it had acknowledged");
        }
        if self.promises.are_noted(persisted, term) {
            return Ok(());
        }
        self.promises.note(&Answered {
            persisted,
            term,
            has_unsynced_vote: self.log.unsynced().has_vote(),
            is_cached: self.losses.is_cached(),
            entries: self.group.index(),
            ends: self.log.ends(),
        })
    }
}
