//! One replica of a partition: a log, and the Raft group that decides what is in it.
//!
//! The holder of the partition's lock drives it. Events go in ([`Replica::append`], [`Replica::step`],
//! [`Replica::tick`], [`Replica::persisted`], [`Replica::transfer`]); [`Replica::drive`] carries out what the Raft
//! library wants written, and returns the work for the driver: messages, and a sync.
//!
//! Durability: a leader's appends leave at once, beside its own sync, which is off the path of an
//! acknowledgement. All that promises something (votes, answers to appends) leaves when what it promises is on disk. An
//! internal entry that is no no-op is synced before a batch follows it: a lost no-op shows at the next start, since its
//! term has no beginning; another lost entry would not, and all indexes behind it would be wrong.
//!
//! A replica that fails to write is out of service until it is opened again. Nothing of it leaves any more. A disk without
//! free space is no failure: what was half done is taken back, as at a start, and the replica stays in its group. It votes and
//! follows, and takes no batches until there is space; a leader gives leadership away. Where not even that can be written
//! which it has to promise, it waits for space and says nothing.
//!
//! A replica is its parts, each with fields of its own: [`EntryLog`], [`GroupJournal`], [`RaftGroup`], [`PeerFlow`], [`Losses`],
//! [`Promises`], [`FreeSpace`]. What concerns several of them is in `impl Replica`, in the order in which it has to happen:
//! here, and for one subject each in [`readys`], [`timing`], [`lost_entries`], [`shortage`], [`offers`], [`copies`], [`members`], [`upkeep`] and [`queries`].

use crate::error::{LeaderAppendError, MessageError, ReplicaError};
use crate::group::{Configuration, GroupId, ReplicaId};
use crate::incoming::Incoming;
use crate::index::EntryIndex;
use crate::journal::{Journal, JournalSync, Start};
use crate::reconcile::Reconciler;
use crate::store::stub;
use effects::Effects;
use entry_log::EntryLog;
use free_space::FreeSpace;
use group_journal::GroupJournal;
use losses::Losses;
use lost_files::Comparison;
use mainstem_log::storage::StorageFault;
use mainstem_log::{AppendError, Appended, ImportedLog, Log, Prepared};
use mainstem_records::LeaderEpoch;
use parking_lot::Mutex;
use peer_flow::PeerFlow;
use promises::Promises;
use raft::eraftpb::{Entry, Message, MessageType};
use raft_group::{GroupOptions, RaftGroup};
use role::Role;
use std::sync::Arc;

pub(crate) mod copies;
pub(crate) mod effects;
mod entry_log;
mod free_space;
pub(crate) mod group_journal;
mod leader_contact;
pub(crate) mod losses;
mod lost_entries;
mod lost_files;
mod members;
mod messages;
mod offers;
mod peer_flow;
mod promises;
mod queries;
mod raft_group;
mod raft_node;
mod readys;
pub(crate) mod role;
mod shortage;
pub(crate) mod ticks;
mod timing;
#[cfg(test)]
mod traps;
mod upkeep;
mod vote_hold;

/// Settings of a replica.
#[derive(Debug, Clone, Copy)]
pub struct ReplicaOptions {
    /// Batches count as persisted when they are written (`write.caching`); terms and votes never do. It can be changed
    /// ([`Replica::set_write_caching`]).
    pub write_caching: bool,
    /// Spreads elections; equal seeds and equal events give equal replicas.
    pub seed: u64,
    /// The offset up to which the partition is known to be committed, from the replication checkpoint; the high watermark begins there.
    pub high_watermark: i64,
    /// A leader sends what it commits at once, not with its next append or heartbeat: followers act upon it.
    pub broadcast_commit: bool,
}

/// One replica of a partition.
pub struct Replica {
    log: EntryLog,
    journal: GroupJournal,
    group: RaftGroup,
    peers: PeerFlow,
    losses: Losses,
    promises: Promises,
    space: FreeSpace,
    effects: Effects,
    /// A copy that is about to take the place of the log, and the time from which the old files may go.
    copy: Option<(ImportedLog, u64)>,
    /// Members may change, as far as is known: once they may, they always may.
    members_may_change: bool,
    /// See [`Replica::believe_changes`].
    believes_changes: bool,
    /// The progress of a leader towards the members that are wanted, and its term.
    reconciler: (u64, Reconciler),
    now_ms: u64,
    failed: Option<String>,
}

impl std::fmt::Debug for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Replica");
        out.field("log", self.log()).field("own", &self.own()).field("role", &self.role());
        out.finish_non_exhaustive()
    }
}

/// Why a message was not taken.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// It is at fault: the link is to be ended.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// This replica is out of service.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
}

impl Replica {
    /// Opens the replica of a log that was just recovered. All of the log counts as persisted, so it is synced.
    /// Blocks on the disk.
    pub fn open(
        mut log: Log,
        group: GroupId,
        journal: Arc<Mutex<Journal>>,
        options: ReplicaOptions,
        now_ms: u64,
    ) -> Result<Replica, ReplicaError> {
        let mut state = journal.lock().group(group).cloned().ok_or(ReplicaError::Unknown)?;
        let own = state.own.ok_or(ReplicaError::Unknown)?;
        let journal = GroupJournal::new(journal, group, own);
        let promised = journal.promised()?;
        lost_files::make_up_for_votes(&journal, own, &mut state, promised)?;
        if state.restoring {
            offers::begin_log_again(&mut log, &journal, state.start, now_ms)?;
        }
        if state.replacing.is_some() {
            return Err(ReplicaError::Damaged("a copy has to take the place of the log first".into()));
        }
        log.hold_high_watermark(options.high_watermark)?;
        let promised = lost_files::allow_for_deletions(&log, &state, promised);
        let index = EntryIndex::open(&state, promised, &mut log, now_ms)?;
        log.sync_now()?;
        let Comparison { lacking, lost } = lost_files::compare(&log, &index, &state, promised)?;
        let (losses, hold) = Losses::of(&log, &state, &options, lacking.is_some());
        let promises = Promises::new(journal.promise_slot()?, lacking);
        let ReplicaOptions { seed, broadcast_commit, .. } = options;
        let place = (index, log.ends().log_start);
        let group =
            RaftGroup::open((own, &state), place, GroupOptions { seed, broadcast_commit }, hold, now_ms)?;
        let mut replica = Replica {
            log: EntryLog::new(log),
            journal,
            group,
            peers: PeerFlow::default(),
            losses,
            promises,
            space: FreeSpace::default(),
            effects: Effects::default(),
            copy: None,
            members_may_change: false,
            believes_changes: false,
            reconciler: Default::default(),
            now_ms,
            failed: None,
        };
        replica.effects.lost.extend(lost);
        replica.note_committed()?;
        replica.note_tail();
        replica.begin_promising()?;
        if let Err(error) = replica.note_found_marks() {
            replica.handle_write_error(error)?;
        }
        Ok(replica)
    }

    /// Its log, for reads.
    pub fn log(&self) -> &Log {
        self.log.log()
    }

    /// The log, for what the group does not decide: configuration, retention, flushing. Not to be appended to or cut.
    pub fn log_mut(&mut self) -> &mut Log {
        self.log.log_mut()
    }

    /// The id of this replica.
    pub fn own(&self) -> ReplicaId {
        self.group.own()
    }

    /// The id of the group that it is a replica of.
    pub fn group(&self) -> GroupId {
        self.journal.group()
    }

    /// Its role in the group.
    pub fn role(&self) -> Role {
        self.group.role()
    }

    /// The members of the group.
    pub fn configuration(&self) -> &Configuration {
        self.group.configuration()
    }

    /// The start of the group's entries.
    pub fn start(&self) -> Start {
        self.group.start()
    }

    /// Returns true if it leads and may be asked where the partition ends: what leaders before it have committed is known to be
    /// committed (KIP-207).
    pub fn leads_settled(&self) -> bool {
        self.group.leads_settled()
    }

    /// Appends a produced batch, if this replica leads. To be followed by [`Replica::drive`], one for any number of
    /// appends.
    pub fn append(&mut self, batch: &Prepared<'_>, mono_ms: u64) -> Result<Appended, LeaderAppendError> {
        let size = u32::try_from(batch.size()).unwrap_or(u32::MAX);
        self.append_with(size, |log, epoch| log.append(batch, epoch, mono_ms))
    }

    /// As [`Replica::append`], of a batch that `append` makes under a leader epoch; `size` is its bytes, or about so
    /// many.
    pub fn append_with(
        &mut self,
        size: u32,
        append: impl FnOnce(&mut Log, LeaderEpoch) -> Result<Appended, AppendError>,
    ) -> Result<Appended, LeaderAppendError> {
        self.check_running()?;
        if self.space.is_awaited() || !self.group.may_append() {
            return Err(self.not_leader());
        }
        let epoch = leader_epoch(self.role().term)?;
        let (appended, has_entry) = match self.log.append(size, |log| append(log, epoch)) {
            Ok(appended) => appended,
            Err(error) => return Err(self.note_refused_append(error).into()),
        };
        if has_entry {
            self.group.propose(stub(0, 0)).map_err(|error| self.fail(error.into()))?;
        }
        Ok(appended)
    }

    /// Notes why the log of a leader has refused a batch.
    fn note_refused_append(&mut self, error: AppendError) -> AppendError {
        if matches!(&error, AppendError::Storage(source) if StorageFault::of(source).is_temporary()) {
            self.space.note_short(self.now_ms);
        }
        // A log that takes nothing any more has no leader.
        if let Some(reason) = self.log().stopped().map(str::to_owned) {
            self.fail(ReplicaError::Failed(reason));
        }
        error
    }

    fn not_leader(&self) -> LeaderAppendError {
        LeaderAppendError::NotLeader { leader: self.role().leader(self.own()) }
    }

    /// Proposes an entry without records, if this replica leads. It is in the journal, durably, when this returns.
    pub fn propose(&mut self, data: Vec<u8>) -> Result<(), LeaderAppendError> {
        self.check_running()?;
        assert!(!data.is_empty() && data.len() <= crate::journal::ENTRY_DATA_BYTES_MAX, "{}", data.len());
        self.drive_into()?;
        let term = self.role().term;
        let is_proposed =
            self.leads() && self.group.propose(Entry { data: data.into(), ..Entry::default() }).is_ok();
        if is_proposed {
            self.drive_into()?;
        }
        // Without space for it the replica has begun again, as a follower.
        match is_proposed && self.leads() && self.role().term == term {
            true => Ok(()),
            false => Err(self.not_leader()),
        }
    }

    fn leads(&self) -> bool {
        self.group.is_leader() && self.is_taking_part()
    }

    fn is_taking_part(&self) -> bool {
        self.failed.is_none() && !self.space.is_awaited()
    }

    /// Takes a message of another replica, with the bytes of its batches, and what follows from it is carried out:
    /// [`Replica::drive`] returns it. Where [`Replica::waits_for_disk`] says so, this waits for the disk; elsewhere it
    /// does where a replica finds that it has lost something, and notes that.
    pub fn step(&mut self, mut message: Message, offset: i64, batches: &[u8]) -> Result<(), StepError> {
        self.check_running()?;
        // What was appended has its place before anything else can take it.
        self.drive_into()?;
        if !self.can_take(&message, offset)? {
            return Ok(());
        }
        // What it speaks of has to be here before the library takes it.
        if message.get_msg_type() == MessageType::MsgSnapshot {
            self.note_offer(&message)?;
            if self.has_what_is_offered(&message) && !self.leaves_unanswered(&message) {
                self.step_group(message, None)?;
            }
            return Ok(());
        }
        if self.leaves_unanswered(&message) {
            return Ok(());
        }
        if self.group.acknowledges_too_much(&message) {
            self.group.note_answer(ReplicaId(message.from));
            return Ok(());
        }
        let incoming = Incoming::of(&message, offset, batches)?;
        let refusal = match self.allow_for_losses(&mut message, offset) {
            Ok(refusal) => refusal,
            Err(error) => return Ok(self.handle_write_error(error)?),
        };
        // Where `write.caching` counts, or has, a power cut is enough, and was allowed for.
        if self.group.is_denied(&message) {
            return Err(MessageError::LostPromise.into());
        }
        self.log.set_incoming(incoming);
        self.step_group(message, refusal)?;
        Ok(())
    }

    /// Returns false where this replica cannot take a message yet: the level was raised, its journal has no frames for changes of members
    /// so far, and its leader has made one, or it was founded without members. The message is left unanswered, and comes again.
    ///
    /// # Errors
    /// No replica can have sent it to this one.
    fn can_take(&mut self, message: &Message, offset: i64) -> Result<bool, MessageError> {
        let has_vote = self.log.unsynced().has_vote();
        let receiver = self.group.receiver(self.members_may_change, has_vote);
        let checked = messages::check(message, offset, &receiver);
        if checked.is_ok() || self.members_may_change {
            return checked.map(|()| true);
        }
        let may_now = self.may_change_members();
        let checked_later = messages::check(message, offset, &self.group.receiver(true, has_vote));
        match checked {
            _ if may_now => checked_later.map(|()| true),
            Err(MessageError::Sender(_)) if !self.configuration().voters.is_empty() => checked.map(|()| true),
            _ if checked_later.is_ok() && self.believes_changes => {
                self.let_members_change();
                Ok(true)
            }
            _ if checked_later.is_ok() => Ok(false),
            _ => checked.map(|()| true),
        }
    }

    /// Has the library take a message that was looked at, and carries out what follows.
    fn step_group(
        &mut self,
        message: Message,
        refusal: Option<raft_group::Refusal>,
    ) -> Result<(), ReplicaError> {
        let is_for_us_to_win = self.group.could_win_instead_of(&message);
        let split_term = self.group.splits_vote(&message).then_some(message.term);
        let (kind, from, committed) = (message.get_msg_type(), message.from, message.commit);
        // It is of a replica of the group, and of a type for which the library has no refusal.
        let _ = self.group.step(message);
        if let Some(refusal) = refusal
            && self.group.refuse(from, refusal)
        {
            self.losses.note_end_said();
        }
        self.end_vote_hold(kind, from, committed);
        if is_for_us_to_win {
            self.succeed();
        }
        self.drive_into()?;
        if let Some(term) = split_term {
            self.group.note_split_vote(term);
        }
        Ok(())
    }

    /// Returns true if a message asks for what this replica cannot do or must not do now.
    fn leaves_unanswered(&self, message: &Message) -> bool {
        self.space.is_awaited()
            || self.has_no_space_for(message)
            || self.group.vote_hold().refuses(message, self.now_ms)
            || self.promises.refuse(message)
    }

    /// Returns true if taking a message waits for the disk: it may have the log cut, since an entry of it is not the one that is here, or
    /// brings an entry with data, which is synced before anything else.
    pub fn waits_for_disk(&self, message: &Message) -> bool {
        let is_append = message.get_msg_type() == MessageType::MsgAppend && !self.group.is_past(message);
        is_append && (self.group.waits_for_disk(message) || self.loses_by(message))
    }

    /// Gives leadership to a voter, once that has all entries. Appends are refused meanwhile, at most an election
    /// time-out long.
    pub fn transfer(&mut self, to: ReplicaId) {
        if self.leads() {
            self.group.transfer(to.0);
        }
    }

    /// Returns true if it gives leadership away, and appends nothing meanwhile.
    pub fn hands_over(&self) -> bool {
        self.leads() && self.group.hands_over()
    }

    /// Asks the others whether this replica still leads, under a number that is not used twice in a term; the answer is one of
    /// the [`Effects`]. Without one there is another leader by now, or it asks again with each heartbeat. Returns false
    /// where it does not lead, or is not settled yet ([`Replica::leads_settled`]): the question would get lost.
    pub fn confirm(&mut self, number: u64) -> bool {
        let may_ask = self.is_taking_part() && self.leads_settled();
        if may_ask {
            self.group.confirm(number);
        }
        may_ask
    }

    /// Asks a replica again for what it has: messages to it may not have arrived.
    pub fn report_unreachable(&mut self, replica: ReplicaId) {
        if self.is_taking_part() {
            self.peers.forget_asked(replica.0);
            self.note_refusal(replica);
            self.group.report_unreachable(replica.0);
            // An offer may be among what was lost.
            self.offer_again(replica.0);
        }
    }

    /// The sync of the journal that something of this replica waits for; `None`: nothing does.
    pub fn journal_sync(&self) -> Option<JournalSync> {
        self.journal.sync_work(self.log.unsynced().journal_upto().max(self.losses.caching_upto()))
    }

    /// The journal of its log directory, which it has in common with others.
    pub fn journal(&self) -> &Arc<Mutex<Journal>> {
        self.journal.shared()
    }

    /// Puts it out of service, because of `reason`: a sync failed, or the log cannot be used for another cause.
    pub fn stop(&mut self, reason: String) {
        self.fail(ReplicaError::Failed(reason));
    }

    /// Notes that log or journal were synced ([`Log::flushed`], [`Journal::synced`]).
    pub fn persisted(&mut self) {
        if self.is_taking_part() {
            self.settle();
        }
    }

    /// Carries out what the Raft library wants, and returns the work for the driver. After an error there is none.
    pub fn drive(&mut self) -> Result<Effects, ReplicaError> {
        self.drive_into()?;
        // What waits for a journal that has failed, on behalf of whichever group, waits for ever.
        self.journal.check_running().map_err(|error| self.fail(error))?;
        if !self.space.is_awaited() {
            self.peers.note_lag(self.now_ms, self.group.raft());
            self.effects.too_far_behind = self.find_too_far_behind()?;
            self.effects.flush = !self.log.unsynced().is_empty() || self.has_cached_tail();
        }
        Ok(std::mem::take(&mut self.effects))
    }

    /// The log alone, after [`Replica::prepare_close`].
    pub fn into_log(self) -> Log {
        self.log.into_log()
    }

    /// The reason for which it is out of service.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    fn fail(&mut self, error: ReplicaError) -> ReplicaError {
        if self.failed.is_none() {
            tracing::error!(partition = %self.log().partition(), %error, "the replica is out of service");
            self.failed = Some(error.to_string());
            // A disk that fails is not only this one's concern.
            if let Some(source) = error.medium() {
                self.log().dir().note_error(source);
            }
            if let Some(source) = error.failed_sync() {
                self.journal.fail(source);
                self.log().dir().note_failed_sync(source);
            }
            self.effects = Effects::default();
        }
        error
    }

    fn check_running(&self) -> Result<(), ReplicaError> {
        self.failed.as_ref().map_or(Ok(()), |reason| Err(ReplicaError::Failed(reason.clone())))
    }

    /// Asserts what holds between any two calls.
    pub fn check(&self) {
        self.space.check();
        if !self.is_taking_part() {
            return;
        }
        self.log.check(self.group.index());
        self.journal.check(self.role().term);
        self.group.check();
        self.peers.check(self.group.is_leader());
        self.losses.check();
        self.promises.check(self.group.term());
        assert!(self.losses.are_possible() || !self.promises.are_lacking(), "a loss that is not allowed for");
    }
}

/// The term as Kafka's leader epoch, which has 31 bits.
fn leader_epoch(term: u64) -> Result<LeaderEpoch, ReplicaError> {
    let epoch = i32::try_from(term).map(LeaderEpoch::new);
    epoch.map_err(|_| ReplicaError::Damaged(format!("term {term} is beyond all leader epochs")))
}
