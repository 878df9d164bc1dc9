//! One replica of a partition: a log, and the Raft group that decides what is in it.
//!
//! Whoever has the partition's lock drives it. Events go in ([`Replica::append`], [`Replica::step`],
//! [`Replica::tick`], [`Replica::persisted`], [`Replica::transfer`]); [`Replica::drive`] carries out what the Raft
//! library wants written, and returns what is to be done outside: messages, and a sync.
//!
//! What is durable when: a leader's appends leave at once, beside its own sync, which is off the path of an
//! acknowledgement. All that promises something (votes, answers to appends) leaves when what it promises is on disk. An
//! internal entry that is no no-op is synced before a batch follows it: a lost no-op shows at the next start, since its
//! term has no beginning; another lost entry would not, and all indexes behind it would be wrong.
//!
//! A replica that fails to write is out of service until it is opened anew. Nothing of it leaves any more. A disk without
//! room is no failure: what was half done is taken back, as at a start, and the replica stays in its group. It votes and
//! follows, and takes no batches until there is room; a leader gives leadership away. Where not even that can be written
//! which it has to promise, it waits for room and says nothing.

use crate::error::{LeaderAppendError, MessageError, ReplicaError};
use crate::group::{Configuration, GroupId, ReplicaId};
use crate::incoming::Incoming;
use crate::index::{EntryIndex, Position, term_of};
use crate::journal::{
    EntryKind, Frame, GroupState, InternalEntry, Journal, JournalSync, Mark, Promise, Start, Vote,
};
use crate::lag::Lag;
use crate::logger::logger;
use crate::setback::Setback;
use crate::snapshots::SnapshotOffer;
use crate::store::{Store, from_raft, is_stub, stub};
use crate::unsynced::{Durable, Unsynced, Writes};
use losses::Losses;
use mainstem_log::storage::StorageFault;
use mainstem_log::{AppendError, Appended, Log, Origin, Prepared, prepare};
use mainstem_records::{LeaderEpoch, Scratch};
use messages::Receiver;
use offers::begin_log_anew;
use parking_lot::Mutex;
use promises::Comparison;
use raft::eraftpb::{ConfChange, ConfChangeV2, Entry, EntryType, HardState, Message, MessageType};
use raft::{Config, RaftState, RawNode, StateRole};
use room::SHORT_MS;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

mod elections;
mod losses;
mod messages;
mod offers;
mod promises;
mod rest;
mod room;
#[cfg(test)]
mod traps;

pub use losses::Lost;

/// The library's clock: milliseconds between two ticks.
pub const TICK_MS: u64 = 50;
/// Ticks between two heartbeats: 150 ms.
const HEARTBEAT_TICKS: u64 = 3;
/// Ticks without a leader before a replica may campaign: 1 s, and up to as many more by chance.
const ELECTION_TICKS: usize = 20;
/// Where a vote is split between candidates, one of them asks again after so many ticks: 200 ms, and not another time-out.
const SPLIT_VOTE_TICKS: usize = 4;
/// The library's own heartbeats are rarer: the replica decides when one is due, and to whom.
const OWN_HEARTBEAT_TICKS: usize = ELECTION_TICKS - 1;
/// A replica for which nothing is due gets its ticks in lots of so many: 500 ms.
const REST_TICKS: u64 = 10;
/// Messages on their way to one replica: with 256 KiB each, 8 MiB.
const INFLIGHT_MAX: usize = 32;
/// What a replica has left without an answer, because it has no room, is not sent again before.
const ASK_AGAIN_MS: u64 = 1_000;

/// A replica that had all that its leader had, so long ago at most, is there: a second and a half of silence ends a leader's term.
const SEEN_MS: u64 = 3_000;
/// Committed entries are listed in lots of so many bytes.
const COMMITTED_BYTES_PER_READY: u64 = 64 << 10;

/// What a replica is in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Role {
    /// The term, which is the leader epoch.
    pub term: u64,
    /// What it does in it.
    pub state: RoleState,
}

/// What a replica does in a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleState {
    /// It leads.
    Leader,
    /// It follows, if it knows whom.
    Follower {
        /// Who leads.
        leader: Option<ReplicaId>,
    },
    /// It asks for votes.
    Candidate,
}

impl Role {
    /// Who leads, if that is known.
    pub fn leader(&self, own: ReplicaId) -> Option<ReplicaId> {
        match self.state {
            RoleState::Leader => Some(own),
            RoleState::Follower { leader } => leader,
            RoleState::Candidate => None,
        }
    }
}

/// A message for another replica. The batches of an append are in the log, from where a link sends them.
#[derive(Debug, Clone, PartialEq)]
pub struct Outgoing {
    /// For whom.
    pub to: ReplicaId,
    /// Of an append: the offset behind the entry that precedes its own ones.
    pub offset: i64,
    /// Offsets of its batches; empty: it has none.
    pub offsets: Range<i64>,
    /// About the bytes of its batches.
    pub bytes: u64,
    /// What is said.
    pub message: Message,
    /// A heartbeat that stands from now on: the sender's node repeats it with those of all other groups, and this replica
    /// does not ([`crate::Standing`]).
    pub stands: bool,
}

/// What is to be done outside of the replica.
#[derive(Debug, Default)]
pub struct Effects {
    /// To be sent, in this order for each replica.
    pub messages: Vec<Outgoing>,
    /// The high watermark has moved to here.
    pub high_watermark: Option<i64>,
    /// The role has changed to this.
    pub role: Option<Role>,
    /// Internal entries with data that were committed, in order.
    pub applied: Vec<InternalEntry>,
    /// Who is in the group has changed.
    pub configuration: Option<Configuration>,
    /// Something waits for a sync of log and journal.
    pub flush: bool,
    /// Replicas that need entries that are not here any more, and no snapshot is here that has them.
    pub too_far_behind: Vec<ReplicaId>,
    /// A leader has a snapshot in the place of entries that it has not any more. To be fetched, and then
    /// [`Replica::restore`]d.
    pub offered: Option<SnapshotOffer>,
    /// The log begins anew here: a snapshot was restored.
    pub restored: Option<Start>,
    /// Questions that were answered ([`Replica::confirm`]): it has led since they were asked.
    pub confirmed: Vec<u64>,
    /// Committed records that are gone, which this replica has known.
    pub lost: Vec<Lost>,
    /// Setbacks that it had, to be said.
    pub setbacks: Vec<Setback>,
}

impl Effects {
    /// Returns true if the driver has nothing to do.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
            && self.high_watermark.is_none()
            && self.role.is_none()
            && self.applied.is_empty()
            && self.configuration.is_none()
            && !self.flush
            && self.too_far_behind.is_empty()
            && self.offered.is_none()
            && self.restored.is_none()
            && self.confirmed.is_empty()
            && self.lost.is_empty()
            && self.setbacks.is_empty()
    }
}

/// How a replica works.
#[derive(Debug, Clone, Copy)]
pub struct ReplicaOptions {
    /// Batches count as persisted when they are written (`write.caching`); terms and votes never do. It can be changed
    /// ([`Replica::set_write_caching`]).
    pub write_caching: bool,
    /// Spreads elections; equal seeds and equal events give equal replicas.
    pub seed: u64,
    /// What the partition is known to have committed, from the replication checkpoint; the high watermark begins there.
    pub high_watermark: i64,
    /// A leader sends what it commits at once, not with its next append or heartbeat: followers act upon it.
    pub broadcast_commit: bool,
}

/// A batch that a leader has appended and the library has not listed yet.
#[derive(Debug, Clone, Copy)]
struct Appending {
    position: Position,
    /// The segment that it began, if it did.
    begins_segment: bool,
}

/// One replica of a partition.
pub struct Replica {
    log: Log,
    group: GroupId,
    own: ReplicaId,
    journal: Arc<Mutex<Journal>>,
    node: RawNode<Store>,
    options: ReplicaOptions,
    role: Role,
    appending: VecDeque<Appending>,
    incoming: Incoming,
    unsynced: Unsynced,
    lag: Lag,
    effects: Effects,
    configuration: Configuration,
    committed_offset: (u64, i64),
    /// Of a leader: when replicas that were offered a snapshot asked for a range of it last.
    fetching: BTreeMap<u64, u64>,
    /// Up to here the time has passed for the library.
    ticked_ms: u64,
    /// Nothing was due when it had passed: the next ticks may come late, and all of them count.
    rested: bool,
    heartbeat_ticks: u64,
    /// Of a leader: whose heartbeats stand in this term, and up to which commit.
    standing: Vec<(u64, u64)>,
    /// Of a leader: who was asked last what it has, by the append behind which entry, and when.
    asked: Vec<(u64, u64, u64)>,
    /// Of a leader: who was asked for the entry that precedes its own ones, which is all that it can ask some for, and its index.
    asked_for_start: Vec<(u64, u64)>,
    /// Of a follower: whose heartbeat stands.
    stands_from: Option<(ReplicaId, u64)>,
    /// When that was heard last.
    heard_ms: u64,
    /// It was heard since the last tick.
    is_heard: bool,
    /// The library's state when the election time-out was chosen, and the state of what chooses it.
    election: (u64, StateRole),
    random: u64,
    now_ms: u64,
    scratch: Scratch,
    failed: Option<String>,
    /// It could not write what it has to promise, and takes part in nothing until there is room.
    waits_for_room: bool,
    /// It does not look for room before then.
    retry_ms: u64,
    /// It was short of handles for an append; another leader may have some.
    short_until_ms: u64,
    /// When a leader without room looks for another one again, and whom it has tried last.
    make_way: (u64, u64),
    /// The term in which this replica's vote was split with that of another candidate, for as long as it may ask again early; 0: none.
    split_term: u64,
    losses: Losses,
    /// The slot for its promise; `None`: there was no room for one.
    promise: Option<Promise>,
}

impl std::fmt::Debug for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Replica");
        out.field("log", &self.log).field("own", &self.own).field("role", &self.role);
        out.finish_non_exhaustive()
    }
}

/// Writes durably that this replica is in a group, before the group begins. Blocks on the disk.
pub fn found(
    journal: &mut Journal,
    group: GroupId,
    own: ReplicaId,
    configuration: &Configuration,
    start: Start,
) -> Result<(), ReplicaError> {
    let configuration =
        Frame::Configuration { own, index: start.index, configuration: configuration.clone() };
    let vote = Vote { term: start.term, candidate: None };
    journal.append(group, &[Frame::Removed, Frame::Vote(vote), Frame::Start(start), configuration])?;
    Ok(journal.sync()?)
}

impl Replica {
    /// Opens the replica of a log that was just recovered. All that is there counts as persisted, so it is synced.
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
        let promised = journal.lock().promised(group)?;
        promises::make_up_for_votes(&journal, group, own, &mut state, promised)?;
        if state.restoring {
            begin_log_anew(&mut log, group, &journal, state.start, now_ms)?;
        }
        log.hold_high_watermark(options.high_watermark)?;
        let promised = promises::allow_for_deletions(&log, &state, promised);
        let index = EntryIndex::open(&state, promised, &mut log, now_ms)?;
        log.sync_now()?;
        let Comparison { lacking, lost } = promises::compare(&log, &index, &state, promised)?;
        let losses = Losses::of(&log, &state, &options, lacking);
        let promise = journal.lock().promise(group)?;
        let mut node = new_node(own, &state, index, &log)?;
        node.skip_bcast_commit(!options.broadcast_commit);
        let configuration = state.configuration;
        let role = Role { term: node.raft.term, state: RoleState::Follower { leader: None } };
        let mut replica = Replica {
            log,
            group,
            own,
            journal,
            node,
            options,
            role,
            appending: VecDeque::new(),
            incoming: Incoming::default(),
            unsynced: Unsynced::default(),
            lag: Lag::default(),
            effects: Effects::default(),
            configuration,
            committed_offset: (0, 0),
            fetching: BTreeMap::new(),
            ticked_ms: now_ms,
            rested: false,
            heartbeat_ticks: 0,
            standing: Vec::new(),
            asked: Vec::new(),
            asked_for_start: Vec::new(),
            stands_from: None,
            heard_ms: 0,
            is_heard: false,
            election: (u64::MAX, StateRole::Follower),
            random: options.seed,
            now_ms,
            scratch: Scratch::new(),
            failed: None,
            waits_for_room: false,
            retry_ms: 0,
            short_until_ms: 0,
            make_way: (0, 0),
            split_term: 0,
            losses,
            promise,
        };
        replica.effects.lost.extend(lost);
        replica.choose_election_timeout();
        replica.note_committed()?;
        replica.note_tail();
        replica.begin_promising()?;
        Ok(replica)
    }

    /// Its log, to be read.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// The log, for what the group does not decide: configuration, retention, flushing. Not to be appended to or cut.
    pub fn log_mut(&mut self) -> &mut Log {
        &mut self.log
    }

    /// Which replica this is.
    pub fn own(&self) -> ReplicaId {
        self.own
    }

    /// The id of the group that it is a replica of.
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// What it is in its group.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Who is in the group.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Whether it leads and may be asked where the partition ends: what leaders before it have committed is known to be
    /// committed (KIP-207).
    pub fn leads_settled(&self) -> bool {
        self.role.state == RoleState::Leader && self.node.raft.commit_to_current_term()
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
        let raft = &self.node.raft;
        let leads = self.role.state == RoleState::Leader
            && !self.waits_for_room
            && raft.state == StateRole::Leader
            && raft.term == self.role.term
            && raft.lead_transferee.is_none();
        if !leads {
            return Err(LeaderAppendError::NotLeader { leader: self.role.leader(self.own) });
        }
        let appended = match append(&mut self.log, leader_epoch(self.role.term)?) {
            Ok(appended) => appended,
            Err(error) => {
                if matches!(&error, AppendError::Storage(source) if StorageFault::of(source).is_temporary()) {
                    self.short_until_ms = self.now_ms + SHORT_MS;
                }
                // A log that takes nothing any more has no leader.
                if let Some(reason) = self.log.stopped().map(str::to_owned) {
                    self.fail(ReplicaError::Failed(reason));
                }
                return Err(error.into());
            }
        };
        if appended.duplicate {
            return Ok(appended);
        }
        let begins_segment = self.log.active_base_offset() == appended.base_offset;
        let next_offset = appended.last_offset + 1;
        let position = Position { offset: appended.base_offset, next_offset, size };
        self.appending.push_back(Appending { position, begins_segment });
        let proposed = self.propose_entry(stub(0, 0));
        match proposed {
            Ok(()) => Ok(appended),
            Err(error) => Err(self.fail(error.into()).into()),
        }
    }

    fn propose_entry(&mut self, entry: Entry) -> raft::Result<()> {
        let mut message =
            Message { msg_type: MessageType::MsgPropose, from: self.own.0, ..Message::default() };
        message.set_entries(vec![entry].into());
        self.node.raft.step(message)
    }

    /// Proposes an entry without records, if this replica leads. It is in the journal, durably, when this returns.
    pub fn propose(&mut self, data: Vec<u8>) -> Result<(), LeaderAppendError> {
        self.check_running()?;
        assert!(!data.is_empty() && data.len() <= crate::journal::ENTRY_DATA_BYTES_MAX, "{}", data.len());
        self.drive_into()?;
        let term = self.role.term;
        let is_proposed =
            self.leads() && self.propose_entry(Entry { data: data.into(), ..Entry::default() }).is_ok();
        if is_proposed {
            self.drive_into()?;
        }
        // Without room for it the replica has begun anew, as a follower.
        match is_proposed && self.leads() && self.role.term == term {
            true => Ok(()),
            false => Err(LeaderAppendError::NotLeader { leader: self.role.leader(self.own) }),
        }
    }

    fn leads(&self) -> bool {
        self.role.state == RoleState::Leader && self.is_taking_part()
    }

    fn is_taking_part(&self) -> bool {
        self.failed.is_none() && !self.waits_for_room
    }

    /// Takes a message of another replica, with the bytes of its batches, and what follows from it is carried out:
    /// [`Replica::drive`] returns it. Where [`Replica::waits_for_disk`] says so, this waits for the disk; elsewhere it
    /// does where a replica finds that it has lost something, and notes that.
    pub fn step(&mut self, mut message: Message, offset: i64, batches: &[u8]) -> Result<(), StepError> {
        self.check_running()?;
        // What was appended has its place before anything else can take it.
        self.drive_into()?;
        messages::check(&message, offset, &self.receiver())?;
        // What it speaks of has to be here before the library takes it.
        if message.get_msg_type() == MessageType::MsgSnapshot {
            return Ok(self.note_offer(&message)?);
        }
        let is_for_another = self.is_for_one_without_doubt(&message) || self.is_for_one_with_all(&message);
        if self.waits_for_room || self.has_no_room_for(&message) || is_for_another {
            return Ok(());
        }
        if self.acknowledges_too_much(&message) {
            self.note_answer(ReplicaId(message.from));
            return Ok(());
        }
        let incoming = Incoming::of(&message, offset, batches)?;
        if let Err(error) = self.note_what_a_leader_counts_on(&message) {
            return Ok(self.make_do(error)?);
        }
        let refusal = match self.allow_for_losses(&mut message, offset) {
            Ok(refusal) => refusal,
            Err(error) => return Ok(self.make_do(error)?),
        };
        self.check_promises(&message)?;
        self.incoming = incoming;
        let is_for_us_to_win = self.could_win_instead_of(&message);
        let (is_split, message_term) = (self.has_the_same_term_as_candidate(&message), message.term);
        let (kind, from, committed) = (message.get_msg_type(), message.from, message.commit);
        // It is of a replica of the group, and of a type for which the library has no refusal.
        let _ = self.node.step(message);
        if let Some(refusal) = refusal {
            self.refuse(from, refusal);
        }
        self.end_doubt(kind, from, committed);
        if is_for_us_to_win {
            self.succeed();
        }
        self.drive_into()?;
        if is_split {
            self.split_term = message_term;
            self.ask_again_soon();
        }
        Ok(())
    }

    /// This replica as one that gets a message.
    fn receiver(&self) -> Receiver<'_> {
        let raft = &self.node.raft;
        Receiver {
            own: self.own,
            configuration: &self.configuration,
            term: raft.term,
            state: raft.state,
            is_to_ask: raft.state == StateRole::Candidate && self.unsynced.has_vote(),
        }
    }

    /// Where the group's entries begin.
    pub fn start(&self) -> Start {
        self.node.store().index.start()
    }

    /// A leader that denies committed entries was elected by replicas that have lost them. The library would end the process. Where
    /// `write.caching` counts, or has, a power cut is enough, and is allowed for ([`Replica::allow_for_losses`]).
    fn check_promises(&self, message: &Message) -> Result<(), MessageError> {
        let (store, committed) = (self.node.store(), self.node.raft.raft_log.committed);
        let last = store.index.last();
        let is_lost = match message.get_msg_type() {
            _ if message.term < self.node.raft.term => false,
            MessageType::MsgHeartbeat => message.commit > last,
            MessageType::MsgAppend => {
                let differs = |entry: &Entry| {
                    let term = store.index.term(entry.index);
                    entry.index <= committed && term.is_some_and(|term| term != entry.term)
                };
                self.denies_start(message) || message.get_entries().iter().any(differs)
            }
            _ => false,
        };
        if is_lost { Err(MessageError::LostPromise) } else { Ok(()) }
    }

    /// Returns true if taking a message waits for the disk: it may have the log cut, since an entry of it is not the one that is here, or
    /// brings an entry with data, which is synced before anything else.
    pub fn waits_for_disk(&self, message: &Message) -> bool {
        if message.get_msg_type() != MessageType::MsgAppend || message.term < self.node.raft.term {
            return false;
        }
        let index = &self.node.store().index;
        let waits = |entry: &Entry| match entry.index <= index.last() {
            true => index.term(entry.index) != Some(entry.term),
            false => !entry.data.is_empty() && !is_stub(entry),
        };
        message.get_entries().iter().any(waits) || self.loses_by(message)
    }

    /// Gives leadership to a voter, once that has all entries. Appends are refused meanwhile, at most an election
    /// time-out long.
    pub fn transfer(&mut self, to: ReplicaId) {
        if self.leads() {
            self.node.transfer_leader(to.0);
        }
    }

    /// Whether it gives leadership away, and appends nothing meanwhile.
    pub fn hands_over(&self) -> bool {
        self.leads() && self.node.raft.lead_transferee.is_some()
    }

    /// Asks the others whether this replica still leads, under a number that is not used twice in a term; the answer is one of
    /// the [`Effects`]. Without one there is another leader by now, or it asks again with each heartbeat. Returns false
    /// where it does not lead, or is not settled yet ([`Replica::leads_settled`]): the question would get lost.
    pub fn confirm(&mut self, number: u64) -> bool {
        let may_ask = self.is_taking_part() && self.leads_settled();
        if may_ask {
            self.node.read_index(number.to_be_bytes().to_vec());
        }
        may_ask
    }

    /// Messages to a replica may not have arrived: what it has is asked again.
    pub fn report_unreachable(&mut self, replica: ReplicaId) {
        if self.is_taking_part() {
            self.asked.retain(|(id, ..)| *id != replica.0);
            self.note_refusal(replica);
            self.node.report_unreachable(replica.0);
            // An offer may be among what was lost.
            self.offer_again(replica.0);
        }
    }

    /// The sync of the journal that something of this replica waits for; `None`: nothing does.
    pub fn journal_sync(&self) -> Option<JournalSync> {
        let journal = self.journal.lock();
        let upto = self.unsynced.journal_upto().max(self.caching_upto());
        journal.sync_work().filter(|_| upto > journal.durable())
    }

    /// The journal of its log directory, which it has in common with others.
    pub fn journal(&self) -> &Arc<Mutex<Journal>> {
        &self.journal
    }

    /// Puts it out of service, because of `reason`: a sync failed, or the log cannot be used for another cause.
    pub fn stop(&mut self, reason: String) {
        self.fail(ReplicaError::Failed(reason));
    }

    /// Log or journal were synced ([`Log::flushed`], [`Journal::synced`]).
    pub fn persisted(&mut self) {
        if self.is_taking_part() {
            self.settle();
        }
    }

    /// Carries out what the Raft library wants, and returns what is to be done outside. After an error nothing is.
    pub fn drive(&mut self) -> Result<Effects, ReplicaError> {
        self.drive_into()?;
        // What waits for a journal that has failed, on behalf of whichever group, waits for ever.
        let journal = self.journal.lock().check_running();
        journal.map_err(|error| self.fail(error.into()))?;
        if !self.waits_for_room {
            self.lag.note(self.now_ms, &self.node);
            self.effects.too_far_behind = self.find_too_far_behind()?;
            self.effects.flush = !self.unsynced.is_empty() || self.has_cached_tail();
        }
        Ok(std::mem::take(&mut self.effects))
    }

    /// The replicas that need entries which are not here any more. A leader's knowledge may be older than what a replica has: each is asked
    /// first for the entry that precedes those here.
    fn find_too_far_behind(&mut self) -> Result<Vec<ReplicaId>, ReplicaError> {
        let behind = self.node.mut_store().take_behind();
        let (asked, behind): (Vec<u64>, Vec<u64>) =
            behind.into_iter().partition(|id| self.ask_for_start(*id));
        if !asked.is_empty() {
            self.drive_into()?;
        }
        Ok(behind.into_iter().map(ReplicaId).collect())
    }

    /// Asks a replica whether it has the entry that precedes those here; `false`: it was asked already.
    fn ask_for_start(&mut self, id: u64) -> bool {
        let start = self.start().index;
        let raft = &mut self.node.raft;
        if raft.state != StateRole::Leader || self.asked_for_start.contains(&(id, start)) {
            return false;
        }
        let Some(progress) = raft.mut_prs().get_mut(id) else { return false };
        progress.become_probe();
        progress.next_idx = start + 1;
        raft.send_append(id);
        self.asked_for_start.retain(|(other, _)| *other != id);
        self.asked_for_start.push((id, start));
        true
    }

    fn drive_into(&mut self) -> Result<(), ReplicaError> {
        self.check_running()?;
        if self.waits_for_room {
            return Ok(());
        }
        let driven = self.take_readys();
        self.choose_election_timeout();
        driven.or_else(|error| self.make_do(error))
    }

    fn take_readys(&mut self) -> Result<(), ReplicaError> {
        while self.node.has_ready() {
            let mut ready = self.node.ready();
            let number = ready.number();
            let mut frames = Vec::new();
            let vote = ready.hs().filter(|_| ready.must_sync()).map(vote_of);
            if let Some(vote) = &vote {
                // Before it is written: in a term without an epoch nothing could be appended.
                leader_epoch(vote.term)?;
            }
            frames.extend(vote.filter(|vote| *vote != self.known_vote()).map(Frame::Vote));
            let has_vote = !frames.is_empty();
            let restored = self.begin_behind(ready.snapshot(), &mut frames)?;
            let log_upto = self.write_entries(&ready.take_entries(), &mut frames)?;
            let journal_upto = self.write_frames(&mut frames)?;
            let now = ready.take_messages();
            let later = ready.take_persisted_messages();
            let committed = ready.take_committed_entries();
            let numbers = ready.take_read_states().into_iter().map(|state| state.request_ctx.try_into());
            self.effects.confirmed.extend(numbers.flatten().map(u64::from_be_bytes));
            let soft = ready.ss().is_some() || ready.hs().is_some();
            self.node.advance_append_async(ready);
            self.send(now)?;
            let writes = Writes { number, has_vote, journal_upto, log_upto };
            let mut out = Vec::new();
            self.unsynced.push(writes, later, &mut out);
            self.send(out)?;
            if soft {
                self.note_role();
            }
            self.apply(committed)?;
            self.note_committed()?;
            self.note_what_is_lost();
            self.settle();
            if let Some(start) = restored {
                // The library has just heard that all of it is on disk.
                self.node.advance_apply_to(start.index);
            }
        }
        Ok(())
    }

    fn known_vote(&self) -> Vote {
        self.journal.lock().group(self.group).map(|state| state.vote).unwrap_or_default()
    }

    /// Writes entries behind those that stay; returns up to where the log has to be durable for them.
    fn write_entries(&mut self, entries: &[Entry], frames: &mut Vec<Frame>) -> Result<i64, ReplicaError> {
        let Some(first) = entries.first() else { return Ok(0) };
        if first.index <= self.node.store().index.last() {
            self.cut(first.index, frames)?;
        }
        for entry in entries {
            if is_stub(entry) {
                self.write_batch(entry, frames)?;
                continue;
            }
            let index = &mut self.node.mut_store().index;
            let internal = from_raft(entry, index.end_offset());
            let (is_noop, offset) = (internal.kind == EntryKind::NoOp, internal.offset);
            frames.push(Frame::Entry(internal.clone()));
            index.push_internal(internal);
            if is_noop {
                self.note_terms(offset);
            } else {
                self.write_frames(frames)?;
                Journal::sync_beside_others(&self.journal)?;
            }
        }
        self.incoming = Incoming::default();
        Ok(self.node.store().index.end_offset())
    }

    /// Removes the entries from `index` on: another leader has others. Durable when this returns, so that a power cut
    /// brings nothing back.
    fn cut(&mut self, index: u64, frames: &mut Vec<Frame>) -> Result<(), ReplicaError> {
        let entries = &self.node.store().index;
        let offset = entries.offset_behind(index - 1, &self.log)?;
        let offset = offset.ok_or_else(|| ReplicaError::Damaged(format!("no entry precedes {index}")))?;
        assert!(self.appending.is_empty(), "a leader's log is not cut");
        let term = entries.term(index - 1).unwrap_or(0);
        self.forget_regained(index);
        self.lower_promise(Start { index: index - 1, term, offset })?;
        let end = self.log.truncate_suffix(offset, self.now_ms)?;
        assert_eq!(end, offset, "a cut falls between batches");
        frames.push(Frame::Cut { index });
        self.note_terms(offset);
        self.unsynced.cut(offset);
        self.node.mut_store().index.cut(index, offset);
        Ok(())
    }

    /// Writes a follower's batch; a leader has written it.
    fn write_batch(&mut self, entry: &Entry, frames: &mut Vec<Frame>) -> Result<(), ReplicaError> {
        let appending = match self.appending.pop_front() {
            Some(appending) => appending,
            None => self.append_incoming(entry.index)?,
        };
        let Appending { position, begins_segment } = appending;
        let index = &mut self.node.mut_store().index;
        if begins_segment {
            let mark = Mark { index: entry.index, offset: position.offset };
            frames.extend(index.mark(mark).map(Frame::Mark));
        }
        let pushed = index.push_batch(position);
        assert_eq!(pushed, entry.index, "entries are listed in order");
        Ok(())
    }

    fn append_incoming(&mut self, index: u64) -> Result<Appending, ReplicaError> {
        let Some(bytes) = self.incoming.batch(index) else {
            return Err(ReplicaError::Damaged(format!("the batch of entry {index} did not come with it")));
        };
        let (config, mut out) = (self.log.config().clone(), Vec::new());
        let prepared = prepare(bytes, &config, 0, Origin::Replication, &mut self.scratch, &mut out)?;
        let end = self.log.ends().log_end;
        let appended = self.log.append(&prepared, LeaderEpoch::NONE, self.now_ms)?;
        if appended.base_offset != end {
            let offset = appended.base_offset;
            return Err(ReplicaError::Damaged(format!(
                "the batch at {offset} does not follow the log end {end}"
            )));
        }
        let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let position = Position { offset: appended.base_offset, next_offset: appended.last_offset + 1, size };
        Ok(Appending { position, begins_segment: self.log.active_base_offset() == position.offset })
    }

    /// Writes frames to the journal; returns up to where that has to be durable.
    fn write_frames(&mut self, frames: &mut Vec<Frame>) -> Result<u64, ReplicaError> {
        if frames.is_empty() {
            return Ok(0);
        }
        let upto = self.journal.lock().append(self.group, frames)?;
        frames.clear();
        self.note_terms_written(upto);
        Ok(upto)
    }

    fn send(&mut self, messages: Vec<Message>) -> Result<(), ReplicaError> {
        for message in messages {
            if self.was_just_asked(&message) {
                continue;
            }
            let mut stands = false;
            if message.get_msg_type() == MessageType::MsgHeartbeat && message.context.is_empty() {
                let Some(begins) = self.stand(&message) else { continue };
                stands = begins;
            }
            let outgoing = self.outgoing(message)?;
            self.effects.messages.extend(outgoing.map(|outgoing| Outgoing { stands, ..outgoing }));
        }
        Ok(())
    }

    /// Whether the library wants an append sent again that its replica was sent a moment ago, over the same link: it answers
    /// heartbeats, and has no room. The library asks with each heartbeat.
    fn was_just_asked(&mut self, message: &Message) -> bool {
        if message.get_msg_type() != MessageType::MsgAppend || message.get_entries().is_empty() {
            return false;
        }
        let (to, index, now_ms) = (message.to, message.index, self.now_ms);
        let progress = self.node.raft.prs().get(to);
        let asks = progress.is_some_and(|progress| progress.state == raft::ProgressState::Probe);
        let was_asked = |asked: &(u64, u64, u64)| {
            asks && (asked.0, asked.1) == (to, index) && now_ms < asked.2 + ASK_AGAIN_MS
        };
        if self.asked.iter().any(was_asked) {
            return true;
        }
        self.asked.retain(|(id, ..)| *id != to);
        if asks {
            self.asked.push((to, index, now_ms));
        }
        false
    }

    /// Adds to a message where its batches are. `None`: the entries are not here any more.
    fn outgoing(&self, message: Message) -> Result<Option<Outgoing>, ReplicaError> {
        let to = ReplicaId(message.to);
        if message.get_msg_type() != MessageType::MsgAppend {
            return Ok(Some(Outgoing { to, offset: 0, offsets: 0..0, bytes: 0, message, stands: false }));
        }
        let index = &self.node.store().index;
        let last = message.get_entries().last().map_or(message.index, |entry| entry.index);
        let offset = index.offset_behind(message.index, &self.log)?;
        let end = index.offset_behind(last, &self.log)?;
        let (Some(offset), Some(end)) = (offset, end) else { return Ok(None) };
        let bytes = message.get_entries().iter().map(|entry| index.size_of(entry.index)).sum();
        Ok(Some(Outgoing { to, offset, offsets: offset..end, bytes, message, stands: false }))
    }

    fn note_role(&mut self) {
        let raft = &self.node.raft;
        let state = match raft.state {
            StateRole::Leader => RoleState::Leader,
            StateRole::Follower => {
                RoleState::Follower { leader: (raft.leader_id != 0).then_some(ReplicaId(raft.leader_id)) }
            }
            StateRole::Candidate | StateRole::PreCandidate => RoleState::Candidate,
        };
        let role = Role { term: raft.term, state };
        if role != self.role {
            self.role = role;
            self.standing.clear();
            self.asked.clear();
            self.asked_for_start.clear();
            (self.stands_from, self.is_heard) = (None, false);
            self.effects.role = Some(role);
        }
    }

    /// Applies what was committed: changes of members here, all other internal entries outside.
    fn apply(&mut self, committed: Vec<Entry>) -> Result<(), ReplicaError> {
        let Some(last) = committed.last().map(|entry| entry.index) else { return Ok(()) };
        for entry in committed.iter().filter(|entry| !is_stub(entry)) {
            let changed = match entry.get_entry_type() {
                EntryType::EntryNormal => None,
                EntryType::EntryConfChange => {
                    let change = protobuf_of::<ConfChange>(&entry.data)?;
                    Some(self.node.apply_conf_change(&change)?)
                }
                EntryType::EntryConfChangeV2 => {
                    let change = protobuf_of::<ConfChangeV2>(&entry.data)?;
                    Some(self.node.apply_conf_change(&change)?)
                }
            };
            match changed {
                Some(state) => self.note_configuration(entry.index, Configuration::from(&state))?,
                None if entry.data.is_empty() => {}
                None => self.effects.applied.extend(self.node.store().index.internal(entry.index).cloned()),
            }
        }
        self.node.advance_apply_to(last);
        Ok(())
    }

    fn note_configuration(&mut self, index: u64, configuration: Configuration) -> Result<(), ReplicaError> {
        let own = self.own;
        let frame = Frame::Configuration { own, index, configuration: configuration.clone() };
        self.journal.lock().append(self.group, &[frame])?;
        self.configuration = configuration.clone();
        self.effects.configuration = Some(configuration);
        Ok(())
    }

    /// Moves the high watermark to what is committed.
    fn note_committed(&mut self) -> Result<(), ReplicaError> {
        let index = &self.node.store().index;
        let committed = self.node.raft.raft_log.committed.min(index.last());
        if committed <= self.committed_offset.0 {
            return Ok(());
        }
        let Some(offset) = index.offset_behind(committed, &self.log)? else { return Ok(()) };
        self.committed_offset = (committed, offset);
        self.node.mut_store().index.forget_committed(committed);
        if self.log.set_high_watermark(offset) {
            self.effects.high_watermark = Some(self.log.ends().high_watermark);
        }
        Ok(())
    }

    /// Notifies the library of what is durable, and lets the messages leave that waited for it.
    fn settle(&mut self) {
        self.note_tail();
        let log = self.persisted_end();
        let durable = Durable { journal: self.journal.lock().durable(), log };
        let mut out = Vec::new();
        let settled = self.unsynced.settle(durable, &mut out);
        if let Some((index, term)) = settled.entry {
            self.node.raft.on_persist_entries(index, term);
        }
        if let Some(number) = settled.number {
            self.node.on_persist_ready(number);
        }
        // Answers have no batches, so that nothing is looked up.
        let plain = |message: Message| Outgoing {
            to: ReplicaId(message.to),
            offset: 0,
            offsets: 0..0,
            bytes: 0,
            message,
            stands: false,
        };
        self.effects.messages.extend(out.into_iter().map(plain));
        if let Err(error) = self.note_promise() {
            self.make_do_without_promise(error);
        }
    }

    /// The offset up to which a record is acknowledged to a producer that waits for all: it is committed, and durable
    /// on `min_insync` replicas at least (`min.insync.replicas`). Of a leader.
    pub fn acknowledged_offset(&self, min_insync: usize) -> i64 {
        let mut matched: Vec<_> = self.voters().map(|(_, progress)| progress.matched).collect();
        matched.sort_unstable_by(|a, b| b.cmp(a));
        let (committed, offset) = self.committed_offset;
        let least = min_insync.max(1).checked_sub(1).and_then(|at| matched.get(at)).copied().unwrap_or(0);
        if least >= committed {
            return offset;
        }
        // Behind what a majority has: where that is not remembered, the start is a bound.
        let index = &self.node.store().index;
        index.recent(least).map_or(index.start().offset, |position| position.next_offset)
    }

    /// The voters that have caught up within `lag_max_ms` (`replica.lag.time.max.ms`), this one included. Of a leader.
    pub fn in_sync(&self, now_ms: u64, lag_max_ms: u64) -> Vec<ReplicaId> {
        let mut in_sync: Vec<_> = self
            .voters()
            .map(|(id, _)| id)
            .filter(|id| *id == self.own.0 || self.lag.is_in_sync(*id, now_ms, lag_max_ms))
            .map(ReplicaId)
            .collect();
        in_sync.sort_unstable();
        in_sync
    }

    /// Returns true if another replica is known to have all that is committed. Of a leader.
    pub fn has_what_is_committed(&self, id: ReplicaId) -> bool {
        let committed = self.node.raft.raft_log.committed;
        self.voters().any(|(voter, progress)| voter == id.0 && progress.matched >= committed)
    }

    /// Returns true if a leader can have what it appends now acknowledged by a majority: by itself, by replicas that have caught up
    /// within `lag_max_ms` and are not out of sync for another reason (`is_out`), and by those that had everything a moment ago,
    /// whatever is known of their nodes.
    pub fn has_majority(&self, now_ms: u64, lag_max_ms: u64, is_out: impl Fn(ReplicaId) -> bool) -> bool {
        let is_there = |id: u64| {
            id == self.own.0
                || self.lag.is_in_sync(id, now_ms, SEEN_MS)
                || (self.lag.is_in_sync(id, now_ms, lag_max_ms) && !is_out(ReplicaId(id)))
        };
        let there = self.voters().filter(|(id, _)| is_there(*id)).count();
        there > self.configuration.voters.len() / 2
    }

    /// Whether a replica has fallen out of sync, and the others are enough to go on without it: what it is sent may take its
    /// time. Of a leader.
    pub fn is_catching_up(&self, id: ReplicaId, now_ms: u64, lag_max_ms: u64) -> bool {
        if self.role.state != RoleState::Leader || self.lag.is_in_sync(id.0, now_ms, lag_max_ms) {
            return false;
        }
        let in_sync = self.in_sync(now_ms, lag_max_ms).len();
        in_sync > self.configuration.voters.len() / 2
    }

    fn voters(&self) -> impl Iterator<Item = (u64, &raft::Progress)> {
        let voters = |id: u64| self.configuration.voters.contains(&ReplicaId(id));
        self.node.raft.prs().iter().map(|(id, progress)| (*id, progress)).filter(move |(id, _)| voters(*id))
    }

    /// How far each replica is known to have the log, as an index, in the order of ids. Of a leader.
    pub fn matched(&self) -> Vec<(ReplicaId, u64)> {
        let mut matched: Vec<_> =
            self.node.raft.prs().iter().map(|(id, progress)| (ReplicaId(*id), progress.matched)).collect();
        matched.sort_unstable();
        matched
    }

    /// How many offsets of the log each other voter lacks, of a leader: exactly, or about where that is many. One that has
    /// said nothing since this replica leads is left out.
    pub fn lacking(&self) -> impl Iterator<Item = (ReplicaId, i64)> {
        let (index, own) = (&self.node.store().index, self.own.0);
        let others = self.voters().filter(move |(id, progress)| *id != own && progress.matched > 0);
        let end = index.end_offset();
        others.map(move |(id, progress)| (ReplicaId(id), end - index.offset_about(progress.matched)))
    }

    /// Index and term of the last entry, and the index up to which entries are committed.
    pub fn last_and_committed(&self) -> (u64, u64, u64) {
        let index = &self.node.store().index;
        (index.last(), index.term(index.last()).unwrap_or(0), self.node.raft.raft_log.committed)
    }

    /// The log may have begun a segment for its age, and not for a batch: the journal notes its place, since a start can count entries
    /// from there alone once retention has removed what precedes it. Returns true if the journal has to be synced before that.
    pub fn follow_roll(&mut self) -> Result<bool, ReplicaError> {
        self.check_running()?;
        if self.waits_for_room {
            return Ok(false);
        }
        let end = self.log.ends().log_end;
        if self.log.active_base_offset() != end {
            return Ok(false);
        }
        self.drive_into()?;
        let index = &mut self.node.mut_store().index;
        if index.end_offset() != end {
            return Ok(false);
        }
        let Some(mark) = index.mark(Mark { index: index.last() + 1, offset: end }) else { return Ok(false) };
        if let Err(error) = self.write_frames(&mut vec![Frame::Mark(mark)]) {
            // It is noted when there is room.
            self.node.mut_store().index.forget_mark(mark);
            return Err(error);
        }
        Ok(true)
    }

    /// Retention has removed segments: the group begins behind them, as far as the log lasts. It must not begin behind what a power
    /// cut leaves.
    pub fn follow_log_start(&mut self) -> Result<(), ReplicaError> {
        self.check_running()?;
        if self.waits_for_room {
            return Ok(());
        }
        let log_start = self.log.lasting_log_start();
        let Some(start) = self.node.mut_store().index.follow_log_start(log_start) else { return Ok(()) };
        self.journal.lock().append(self.group, &[Frame::Start(start)])?;
        if start.index > self.node.raft.raft_log.applied {
            // Retention goes by the high watermark that was noted, which may be further than what this replica has heard to be committed
            // since it was opened. The library must not find entries given up that it takes for uncommitted.
            self.begin_anew()?;
        }
        Ok(())
    }

    /// Notes in the journal what the next start begins with. The log is closed after it, the journal synced.
    pub fn prepare_close(&mut self) -> Result<(), ReplicaError> {
        self.drive_into()?;
        if self.waits_for_room {
            return Ok(());
        }
        let committed = self.node.raft.raft_log.committed.min(self.node.store().index.last());
        let applied = self.applied_to_note();
        let index = &mut self.node.mut_store().index;
        let mark = index.mark(Mark { index: index.last() + 1, offset: index.end_offset() });
        let mut frames: Vec<_> = mark.map(Frame::Mark).into_iter().collect();
        frames.push(Frame::Commit { committed, applied });
        self.write_frames(&mut frames)?;
        Ok(())
    }

    /// Up to where the next start need not apply entries again. Where only this process knows the log start, what was noted before stays:
    /// the entry that has moved it is behind that.
    fn applied_to_note(&self) -> u64 {
        let applied = self.node.raft.raft_log.applied;
        match self.log.is_log_start_durable() {
            true => applied,
            false => self.journal.lock().group(self.group).map_or(0, |state| state.applied.min(applied)),
        }
    }

    /// The log alone, after [`Replica::prepare_close`].
    pub fn into_log(self) -> Log {
        self.log
    }

    /// Why it is out of service.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    fn fail(&mut self, error: ReplicaError) -> ReplicaError {
        if self.failed.is_none() {
            tracing::error!(partition = %self.log.partition(), %error, "the replica is out of service");
            self.failed = Some(error.to_string());
            // A disk that fails is not only this one's concern.
            if let Some(source) = error.medium() {
                self.log.dir().note_error(source);
            }
            if let Some(source) = error.failed_sync() {
                self.journal.lock().fail(source);
                self.log.dir().note_failed_sync(source);
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
        if !self.is_taking_part() {
            return;
        }
        let (raft, index) = (&self.node.raft, &self.node.store().index);
        index.check(&self.log);
        let appending = self.appending.back().map_or(index.end_offset(), |last| last.position.next_offset);
        assert_eq!(self.log.ends().log_end, appending, "every batch has an entry");
        assert!(self.committed_offset.1 <= self.log.ends().log_end, "{:?}", self.committed_offset);
        assert!(raft.raft_log.persisted <= index.last(), "{} > {}", raft.raft_log.persisted, index.last());
        assert_eq!(index.term(index.last()), index_term(&self.log, index), "the last batch has another term");
        let journal = self.journal.lock();
        let state = journal.group(self.group);
        assert_eq!(state.and_then(|state| state.own), Some(self.own));
        assert!(
            state.is_some_and(|state| state.vote.term >= self.role.term),
            "a role of a term that was not written"
        );
    }
}

/// The term that the log says its last entry has, unless that is internal, or retention has removed it.
fn index_term(log: &Log, index: &EntryIndex) -> Option<u64> {
    let last = index.last();
    match index.internal(last) {
        None if last > index.start().index && index.end_offset() > log.ends().log_start => {
            log.leader_epochs().epoch_of(index.end_offset() - 1).map(term_of)
        }
        _ => index.term(last),
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

fn vote_of(state: &HardState) -> Vote {
    Vote { term: state.term, candidate: (state.vote != 0).then_some(ReplicaId(state.vote)) }
}

/// The term as Kafka's leader epoch, which has 31 bits.
fn leader_epoch(term: u64) -> Result<LeaderEpoch, ReplicaError> {
    let epoch = i32::try_from(term).map(LeaderEpoch::new);
    epoch.map_err(|_| ReplicaError::Damaged(format!("term {term} is beyond all leader epochs")))
}

fn protobuf_of<M: protobuf::Message>(bytes: &[u8]) -> Result<M, ReplicaError> {
    M::parse_from_bytes(bytes).map_err(|error| ReplicaError::Damaged(format!("a change of members: {error}")))
}

/// The finaliser of splitmix64.
fn mix(state: u64) -> u64 {
    let mut x = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

fn new_node(
    own: ReplicaId,
    state: &GroupState,
    index: EntryIndex,
    log: &Log,
) -> Result<RawNode<Store>, ReplicaError> {
    let last = index.last();
    // What precedes the log start is committed, and may be given up at any time. A commit that was noted may be of entries that the
    // disk has lost.
    let deleted = index.last_known_at(log.ends().log_start).index;
    let applied = state.applied.max(state.configuration_index).clamp(deleted, last);
    let commit = state.committed.clamp(applied, last);
    let term = state.vote.term.max(index.term(last).unwrap_or(0));
    let vote = state.vote.candidate.filter(|_| state.vote.term == term).map_or(0, |candidate| candidate.0);
    let mut hard_state = HardState::default();
    (hard_state.term, hard_state.vote, hard_state.commit) = (term, vote, commit);
    let store = Store::new(index, RaftState::new(hard_state, (&state.configuration).into()));
    let config = Config {
        id: own.0,
        election_tick: ELECTION_TICKS,
        min_election_tick: ELECTION_TICKS,
        max_election_tick: 2 * ELECTION_TICKS,
        heartbeat_tick: OWN_HEARTBEAT_TICKS,
        applied,
        max_size_per_msg: raft::NO_LIMIT,
        max_inflight_msgs: INFLIGHT_MAX,
        max_uncommitted_size: raft::NO_LIMIT,
        max_committed_size_per_ready: COMMITTED_BYTES_PER_READY,
        check_quorum: true,
        pre_vote: true,
        skip_bcast_commit: true,
        batch_append: true,
        ..Config::default()
    };
    Ok(RawNode::new(&config, store, &logger())?)
}
