//! What a power cut takes from a log whose batches count as persisted when they are written (`write.caching`).
//!
//! A replica then starts with less than it has acknowledged. To the first leader that it hears it says where its log ends; the
//! leader takes back what it has counted on, and sends the rest again. Until the replica has caught up, or for [`DOUBT_MS`], it
//! gives no vote and asks for none: those that have lost nothing elect one of them, if they are a majority. That a log has such a
//! tail, and that a replica is in doubt, stands in the journal ([`Tail`]): it counts whatever the setting is at the next start, and how
//! often it starts until then.
//!
//! Where too many have lost the same committed records, a leader is elected that does not have them, and others come in their
//! place. A replica that has them cuts them off; one whose log begins behind them, since what precedes was deleted, begins anew where
//! its log and the leader's were the same. Each that has known them to be committed says so in the log and to its
//! driver ([`Lost`]) when it takes what is in their place. What was committed after the last checkpoint of the high watermark,
//! and is known to no replica that ran on, is not counted.

use super::offers::begin_log_anew;
use super::promises::Lacking;
use super::{ELECTION_TICKS, Replica, ReplicaOptions, TICK_MS};
use crate::error::ReplicaError;
use crate::group::ReplicaId;
use crate::journal::{EntryKind, Frame, GroupState, InternalEntry, Journal, Start, Tail};
use bytes::Bytes;
use mainstem_log::Log;
use mainstem_log::dir::LastStop;
use raft::StateRole;
use raft::eraftpb::{Message, MessageType};
use std::cmp::Ordering;

/// So long a replica that may have lost what it has acknowledged leaves elections to the others: twice the longest time-out, 4 s.
pub(super) const DOUBT_MS: u64 = 4 * ELECTION_TICKS as u64 * TICK_MS;

/// The context of a heartbeat that says what a leader has counted on; questions have eight bytes ([`Replica::confirm`]).
const COUNTED_ON: &[u8] = &[0];

/// Committed records that are in no log of the group any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// The offset of the first one.
    pub offset: i64,
    /// How many offsets are gone that this replica has known to be committed.
    pub records: i64,
}

/// What a replica knows that may be lost.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Batches count as persisted when they are written, or have: a power cut may have taken some, here or elsewhere.
    is_possible: bool,
    /// What was committed, until it is certain that it is here, or gone.
    known: Option<Known>,
    /// A leader is to be told where the log ends.
    is_to_say_end: bool,
    /// It may lack what it has acknowledged, also where it leaves elections to the others no more.
    may_lack: bool,
    /// It takes no part in elections before; [`DOUBT_BEGINS`]: no time has passed yet.
    doubts_until_ms: u64,
    /// What the journal says of it for the next start.
    noted: Tail,
    /// The journal has that when it is durable so far.
    noted_upto: u64,
    /// Batches before this offset may have counted as persisted when they were written, where they do no more.
    cached_end: i64,
    /// Where terms begin that the journal may not have durably.
    undurable: Option<Undurable>,
    /// The part of its promise that its log has lost with files.
    pub(super) lacking: Option<Lacking>,
    /// That is here again, and was not noted yet.
    pub(super) is_regained: bool,
}

/// Of the records from an offset on, the journal does not have durably of which terms they are: entries were written that terms begin
/// with, or cut off.
#[derive(Debug, Clone, Copy)]
struct Undurable {
    offset: i64,
    /// Until it is durable up to here; `None`: the frames are not written yet.
    upto: Option<u64>,
}

/// No time of a doubt has passed: it does from the first tick on, when the replica takes part. Its node may open others for long before.
const DOUBT_BEGINS: u64 = u64::MAX;

/// What was committed: the records before an offset, and the entries that their terms begin with, which say what came in the
/// place of records that are gone.
#[derive(Debug)]
struct Known {
    offset: i64,
    /// Where the entries began: which terms begin before is not known.
    start: Start,
    begins: Vec<Begin>,
}

/// The first entry of a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Begin {
    index: u64,
    term: u64,
    offset: i64,
}

/// What a leader gets as an answer that has sent entries behind `index`: what both have is at `hint` or before, where terms are no higher
/// than `term`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    index: u64,
    hint: u64,
    term: u64,
}

impl Known {
    /// All records before an offset, of a group that begins at `start` and has these internal entries.
    fn of(offset: i64, start: Start, entries: &[InternalEntry]) -> Known {
        Known { offset, start, begins: begins_before(offset, entries).collect() }
    }

    /// Where records are gone from, as far as these internal entries say, in a group with entries from the `first` to the `last`
    /// index; `None`: nowhere.
    fn gone_from(&self, entries: &[InternalEntry], (first, last): (u64, u64)) -> Option<i64> {
        let here: Vec<_> = begins_before(self.offset, entries).collect();
        let is_here = |begin: &&Begin| (first..=last).contains(&begin.index);
        let missing = self.begins.iter().filter(is_here).filter(|begin| !here.contains(begin));
        let may_precede = |begin: &Begin| begin.index <= self.start.index && begin.term <= self.start.term;
        let others = here.iter().filter(|begin| !self.begins.contains(begin) && !may_precede(begin));
        missing.chain(others).map(|begin| begin.offset).min()
    }
}

/// The beginnings of terms of which there are records before an offset.
fn begins_before(offset: i64, entries: &[InternalEntry]) -> impl Iterator<Item = Begin> {
    let is_before = move |entry: &&InternalEntry| entry.kind == EntryKind::NoOp && entry.offset < offset;
    entries.iter().filter(is_before).map(|entry| Begin {
        index: entry.index,
        term: entry.term,
        offset: entry.offset,
    })
}

/// Index and term of what an append says of its leader's log: of the entry that precedes its own ones, and of these.
fn places(message: &Message) -> impl Iterator<Item = (u64, u64)> {
    let entries = message.get_entries().iter().map(|entry| (entry.index, entry.term));
    std::iter::once((message.index, message.log_term)).chain(entries)
}

impl Losses {
    /// Returns true if it is allowed for that less is here than was acknowledged.
    pub(super) fn may_be_short(&self) -> bool {
        self.is_possible
    }

    /// Files are gone with what was acknowledged.
    pub(super) fn begin_lacking(&mut self, lacking: Lacking) {
        (self.lacking, self.is_possible, self.is_to_say_end) = (Some(lacking), true, true);
    }

    /// Returns true if batches count as persisted, or have, that are not durable.
    pub(super) fn is_cached(&self) -> bool {
        self.noted.is_cached
    }

    /// What a log that was just opened may have lost.
    pub(super) fn of(
        log: &Log,
        state: &GroupState,
        options: &ReplicaOptions,
        lacking: Option<Lacking>,
    ) -> Losses {
        let (end, offset) = (log.ends().log_end, options.high_watermark);
        // What was committed may be gone from the others as well.
        let known = || (offset > 0).then(|| Known::of(offset, state.start, &state.entries));
        // Directories of earlier releases do not remember it.
        let is_cached = options.write_caching || state.tail != Tail::default();
        let is_possible = is_cached || lacking.is_some();
        let losses =
            Losses { is_possible, noted: state.tail, is_to_say_end: lacking.is_some(), ..Losses::default() };
        let losses = Losses { lacking, ..losses };
        // A group that has had no leader yet has nothing to lose.
        if state.vote.term == 0 {
            return losses;
        }
        if !is_cached {
            return Losses { known: known(), ..losses };
        }
        if end < offset {
            let (partition, records) = (log.partition(), offset - end);
            tracing::warn!(
                %partition,
                offset = end,
                records,
                "{records} committed records from {end} on are not here any more (write.caching): they come from the other \
                 replicas, if those have them"
            );
        }
        let is_cut = log.dir().last_stop() == LastStop::UncleanOtherBoot || state.tail.is_doubtful;
        let has_others = state.configuration.voters.len() > 1;
        let is_doubtful = is_cut && has_others;
        if is_cut {
            let partition = log.partition();
            tracing::warn!(
                %partition,
                known_to_be_committed = offset,
                "the power was cut while records counted as persisted from the page cache (write.caching): of those from {offset} on \
                 it is not known here which had been committed: what no replica has any more cannot be counted"
            );
        }
        Losses {
            known: known(),
            is_to_say_end: is_doubtful || losses.is_to_say_end,
            // A doubt may have ended with its time, before a leader was heard.
            may_lack: has_others && (is_cut || state.tail.is_cached),
            doubts_until_ms: if is_doubtful { DOUBT_BEGINS } else { 0 },
            ..losses
        }
    }
}

impl Replica {
    /// The high watermark, where it is to be noted for the next start ([`ReplicaOptions::high_watermark`]). `None`: what was noted
    /// before stays. With `write.caching` it is what a power cut leaves of what this replica has known: that has to be resolved
    /// first, and it is noted as far as the journal has the terms of the records durably. What else waits for the journal is of no account.
    pub fn high_watermark_to_note(&self) -> Option<i64> {
        let high_watermark = self.log.ends().high_watermark;
        if !self.losses.is_possible {
            return Some(high_watermark);
        }
        let terms_end = self.undurable().map_or(i64::MAX, |undurable| undurable.offset);
        self.losses.known.is_none().then(|| high_watermark.min(terms_end))
    }

    fn undurable(&self) -> Option<Undurable> {
        let is_durable = |upto: u64| upto <= self.journal.lock().durable();
        self.losses.undurable.filter(|undurable| !undurable.upto.is_some_and(is_durable))
    }

    /// The frames that are written next say of which terms the records from an offset on are.
    pub(super) fn note_terms(&mut self, offset: i64) {
        let offset = self.undurable().map_or(offset, |before| before.offset.min(offset));
        self.losses.undurable = Some(Undurable { offset, upto: None });
    }

    /// What the journal is to have of terms is written.
    pub(super) fn note_terms_written(&mut self, upto: u64) {
        if let Some(undurable) = &mut self.losses.undurable {
            undurable.upto.get_or_insert(upto);
        }
    }

    /// Returns true if it may lack what it has acknowledged: it was started with a log that has less, or from which a power cut may have taken
    /// that (`write.caching`), and has not caught up since.
    pub fn may_lack_acknowledged(&self) -> bool {
        self.losses.may_lack || self.lacks_promised()
    }

    /// Has batches count as persisted when they are written (`write.caching`), or when they are durable. What has counted until then
    /// is to be synced: [`Replica::drive`] follows, and asks for it.
    pub fn set_write_caching(&mut self, write_caching: bool) {
        if std::mem::replace(&mut self.options.write_caching, write_caching) == write_caching {
            return;
        }
        self.losses.is_possible |= write_caching;
        if !write_caching {
            self.losses.cached_end = self.log.ends().log_end;
        }
        self.note_tail();
    }

    /// The offset before which batches count as persisted. Of those that are not durable, none does before the journal says so
    /// durably: the next start has to know what a power cut may have taken, also if caching is switched off by then.
    pub(super) fn persisted_end(&self) -> i64 {
        let (ends, losses) = (self.log.ends(), &self.losses);
        let may_count = self.options.write_caching && losses.noted.is_cached;
        match may_count && losses.noted_upto <= self.journal.lock().durable() {
            true => ends.log_end,
            false => ends.durable_end,
        }
    }

    /// Up to where the journal has to be durable for batches to count as persisted when they are written.
    pub(super) fn caching_upto(&self) -> u64 {
        if self.options.write_caching { self.losses.noted_upto } else { 0 }
    }

    /// Whether batches have counted as persisted that are not durable, where such batches do no more.
    pub(super) fn has_cached_tail(&self) -> bool {
        if !self.losses.noted.is_cached || self.options.write_caching {
            return false;
        }
        let ends = self.log.ends();
        ends.durable_end < self.losses.cached_end.min(ends.log_end)
    }

    /// Notes in the journal what the next start has to know. Where there is no room for that, it is tried again with whatever comes
    /// next, and caching does not count before.
    pub(super) fn note_tail(&mut self) {
        if !self.losses.is_possible {
            return;
        }
        // Who leads has all that is committed.
        self.losses.may_lack &= !self.leads_settled();
        let losses = &self.losses;
        let is_open = || self.has_cached_tail() || losses.known.is_some() || losses.may_lack || self.doubts();
        let is_cached = self.options.write_caching || (losses.noted.is_cached && is_open());
        let tail = Tail { is_cached, is_doubtful: self.doubts() };
        if tail != losses.noted && self.is_taking_part() && !self.log.dir().is_full() {
            let noted = self.journal.lock().append(self.group, &[Frame::Tail(tail)]);
            if let Ok(upto) = noted {
                (self.losses.noted, self.losses.noted_upto) = (tail, upto);
            }
        }
        self.end_losses();
    }

    /// Where caching is off, all that has counted under it is durable, and all is here that was acknowledged, no power cut takes anything
    /// any more: what is not there is on another disk.
    fn end_losses(&mut self) {
        let losses = &mut self.losses;
        let is_resolved = losses.known.is_none() && !losses.may_lack && losses.lacking.is_none();
        losses.is_possible = self.options.write_caching || losses.noted != Tail::default() || !is_resolved;
    }

    /// The time of a doubt begins with the first tick.
    pub(super) fn begin_doubt(&mut self) {
        if self.losses.doubts_until_ms == DOUBT_BEGINS {
            self.losses.doubts_until_ms = self.now_ms + DOUBT_MS;
        }
    }

    /// Whether it may lack what it has acknowledged, and so takes no part in elections.
    pub(super) fn doubts(&self) -> bool {
        self.now_ms < self.losses.doubts_until_ms
    }

    /// Whether a message asks for what a replica in doubt does not do.
    pub(super) fn is_for_one_without_doubt(&self, message: &Message) -> bool {
        self.doubts()
            && matches!(
                message.get_msg_type(),
                MessageType::MsgRequestPreVote | MessageType::MsgRequestVote | MessageType::MsgTimeoutNow
            )
    }

    /// An append of the leader was taken. A replica that has the beginning of the leader's term has all that was committed before
    /// it; with what the leader has committed since, there is no doubt any more.
    pub(super) fn end_doubt(&mut self, kind: MessageType, from: u64, committed: u64) {
        if !self.may_lack_acknowledged() {
            return;
        }
        let (raft, log) = (&self.node.raft, &self.node.raft.raft_log);
        let has_all = log.last_term() == raft.term && log.committed >= committed;
        if kind == MessageType::MsgAppend && raft.leader_id == from && has_all {
            (self.losses.doubts_until_ms, self.losses.may_lack) = (0, false);
            self.note_regained();
        }
    }

    /// Has the library hear nothing of entries that a power cut has taken from this replica or from another one. Returns the
    /// answer that the leader then gets ([`Replica::refuse`]), if it gets one. `offset` is that behind the entry that precedes those of an append.
    pub(super) fn allow_for_losses(
        &mut self,
        message: &mut Message,
        offset: i64,
    ) -> Result<Option<Refusal>, ReplicaError> {
        let is_of_group = || self.configuration.replicas().any(|replica| replica.0 == message.from);
        if message.term < self.node.raft.term || !is_of_group() {
            return Ok(None);
        }
        match message.get_msg_type() {
            // Whatever counts here: the other replica says what it has.
            MessageType::MsgAppendResponse => self.forget_what_was_matched(message),
            _ if !self.losses.is_possible => {}
            MessageType::MsgHeartbeat => return Ok(self.allow_for_own_loss(message)),
            MessageType::MsgAppend if self.denies_start(message) => {
                return self.begin_before_start(message, offset);
            }
            MessageType::MsgAppend => self.cut_what_the_leader_lacks(message)?,
            _ => {}
        }
        Ok(None)
    }

    /// A leader may count on entries that are not here.
    fn allow_for_own_loss(&self, message: &mut Message) -> Option<Refusal> {
        let log = &self.node.raft.raft_log;
        let (last, counted_on) = (log.last_index(), message.commit);
        if counted_on > last {
            message.commit = log.committed;
        }
        let index = counted_on.max(last);
        let is_to_say_end = counted_on > last || self.losses.is_to_say_end;
        is_to_say_end.then(|| Refusal { index, hint: last, term: log.last_term() })
    }

    /// Says to a leader where it may find what is here.
    pub(super) fn refuse(&mut self, to: u64, refusal: Refusal) {
        let raft = &mut self.node.raft;
        if raft.leader_id != to || raft.state != StateRole::Follower {
            return;
        }
        let Refusal { index, hint, term } = refusal;
        let mut message =
            Message { msg_type: MessageType::MsgAppendResponse, reject: true, index, ..Message::default() };
        (message.from, message.to, message.term) = (self.own.0, to, raft.term);
        (message.reject_hint, message.log_term) = (hint, term);
        message.commit = raft.raft_log.committed;
        raft.msgs.push(message);
        self.losses.is_to_say_end = false;
    }

    /// Of a leader: a replica refuses entries behind what it has acknowledged, which it does where it has lost that. It hears what has
    /// counted, before anything is sent again: where no power cut can have taken that, it stops. What it has is asked anew.
    fn forget_what_was_matched(&mut self, message: &mut Message) {
        let (own, raft) = (self.own.0, &mut self.node.raft);
        let is_refusal = message.reject && message.request_snapshot == 0;
        if !is_refusal || raft.state != StateRole::Leader || raft.term != message.term || message.from == own
        {
            return;
        }
        let (last, committed, term) = (raft.raft_log.last_index(), raft.raft_log.committed, raft.term);
        let Some(progress) = raft.mut_prs().get_mut(message.from) else { return };
        let (matched, end) = (progress.matched, message.reject_hint);
        if matched <= end {
            return;
        }
        // The library takes the refusal for an answer to what it has just asked.
        message.index = message.index.min(last);
        progress.matched = 0;
        progress.become_probe();
        progress.next_idx = message.index + 1;
        let (to, commit) = (message.from, matched.min(committed));
        if commit > end {
            let mut heartbeat =
                Message { msg_type: MessageType::MsgHeartbeat, term, commit, ..Message::default() };
            (heartbeat.from, heartbeat.to, heartbeat.context) = (own, to, Bytes::from_static(COUNTED_ON));
            raft.msgs.push(heartbeat);
        }
        self.standing.retain(|(id, _)| *id != message.from);
        self.asked.retain(|(id, ..)| *id != message.from);
        let (partition, node) = (self.log.partition(), ReplicaId(message.from).node());
        tracing::warn!(%partition, node, matched, end, "a replica has lost entries that it had acknowledged: they are sent again, unless it stops");
    }

    /// Whether a message says to a leader that entries are on another disk which it has not itself: by a replica that took it for one that
    /// has all that is committed. It is not counted; what the replica has shows when the leader asks again.
    pub(super) fn acknowledges_too_much(&self, message: &Message) -> bool {
        let raft = &self.node.raft;
        message.get_msg_type() == MessageType::MsgAppendResponse
            && !message.reject
            && raft.state == StateRole::Leader
            && message.term == raft.term
            && message.index > raft.raft_log.last_index()
    }

    /// A leader without entries that are committed here was elected by replicas that have lost them: they are gone.
    fn cut_what_the_leader_lacks(&mut self, message: &Message) -> Result<(), ReplicaError> {
        let Some(first) = self.first_denied(message) else { return Ok(()) };
        let index = &self.node.store().index;
        let offset = index.offset_behind(first - 1, &self.log)?;
        let offset = offset.ok_or_else(|| ReplicaError::Damaged(format!("no entry precedes {first}")))?;
        self.take_back(first - 1, offset);
        let mut frames = Vec::new();
        self.cut(first, &mut frames)?;
        self.write_frames(&mut frames)?;
        self.begin_anew()
    }

    /// The first committed entry that a leader has not, or has another one for.
    fn first_denied(&self, message: &Message) -> Option<u64> {
        let (index, committed) = (&self.node.store().index, self.node.raft.raft_log.committed);
        let is_gone = |(at, term): &(u64, u64)| {
            let is_committed = *at > index.start().index && *at <= committed;
            is_committed && index.term(*at) != Some(*term)
        };
        places(message).find(is_gone).map(|(first, _)| first)
    }

    /// Returns true if a message has this replica give up committed entries that its leader has lost.
    pub(super) fn loses_by(&self, message: &Message) -> bool {
        self.losses.is_possible && (self.denies_start(message) || self.first_denied(message).is_some())
    }

    /// Whether a leader cannot have the entry that precedes those of this log, which is committed: terms ascend.
    pub(super) fn denies_start(&self, message: &Message) -> bool {
        let start = self.start();
        places(message).any(|(index, term)| match index.cmp(&start.index) {
            Ordering::Less => term > start.term,
            Ordering::Equal => term != start.term,
            Ordering::Greater => term < start.term,
        })
    }

    /// A leader lacks what precedes the entries here. Of that it is not remembered which entries they were, so where the leader's log
    /// is the same has to be found: a term has one leader, so it is where an entry has the term of the one that precedes the start.
    /// The log begins anew there. Where the leader has none of that term, it begins without any entry.
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
        let (partition, begins_at) = (self.log.partition(), begin.offset);
        let before = start.offset;
        tracing::warn!(
            %partition,
            before,
            begins_at,
            "the leader lacks what precedes this log, which begins anew at {begins_at} (write.caching)"
        );
        self.take_back(begin.index, begin.offset);
        self.forget_regained(begin.index + 1);
        self.lower_promise(begin)?;
        // Of the entries that come, none is known to be committed.
        let cut = Frame::Cut { index: begin.index + 1 };
        let configuration = self.configuration.clone();
        let restore = Frame::Restore { start: begin, own: self.own, configuration };
        self.write_frames(&mut vec![cut, restore])?;
        Journal::sync_beside_others(&self.journal)?;
        begin_log_anew(&mut self.log, self.group, &self.journal, begin, self.now_ms)?;
        self.unsynced.cut(begin.offset);
        self.begin_anew()?;
        Ok(None)
    }

    /// What is behind an entry, and an offset, is committed no more. Remembers what was known to be.
    fn take_back(&mut self, index: u64, offset: i64) {
        let (entries, known) = (&self.node.store().index, self.committed_offset.1);
        if self.losses.known.as_ref().is_none_or(|before| before.offset < known) {
            self.losses.known = Some(Known::of(known, entries.start(), entries.internal_entries()));
        }
        self.committed_offset = self.committed_offset.min((index, offset));
        // Of what was to be sent, that is not here any more.
        self.effects.messages.retain(|outgoing| outgoing.offsets.end <= offset);
        self.effects.high_watermark = self.effects.high_watermark.map(|before| before.min(offset));
    }

    /// Entries were written, or more is committed: says what is gone of that which was known to be committed.
    pub(super) fn note_what_is_lost(&mut self) {
        let Some(known) = &self.losses.known else { return };
        let known_to = known.offset;
        let index = &self.node.store().index;
        let Some(offset) = known.gone_from(index.internal_entries(), (index.first(), index.last())) else {
            if self.committed_offset.1 >= known_to {
                self.losses.known = None;
            }
            return;
        };
        self.losses.known = None;
        let (partition, records) = (self.log.partition(), known_to - offset);
        tracing::warn!(
            %partition,
            offset,
            records,
            "{records} committed records from {offset} on are lost: power cuts (write.caching), or files that are gone, have taken \
             them from the replicas that elect"
        );
        self.effects.lost.push(Lost { offset, records });
    }
}

#[cfg(test)]
mod tests;
