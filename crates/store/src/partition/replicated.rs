//! A partition that is one replica of a Raft group: the decisions of its group, and the waits for them.
//!
//! The holder of the lock drives the replica. What follows from it is put where it goes in the order in which it was
//! decided: messages into the outboxes of links while the lock is held, notices into a queue; what wakes or calls others is
//! done when the lock is free again.

use std::collections::VecDeque;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, OnceLock, Weak};

use mainstem_log::dir::LogDir;
use mainstem_log::storage::StorageFault;
use mainstem_log::{AppendError, Appended, Log};
use mainstem_records::LeaderEpoch;
use mainstem_replication::journal::Journal;
use mainstem_replication::snapshots::SnapshotOffer;
use mainstem_replication::{
    Effects, GroupId, LeaderAppendError, Lost, Replica, ReplicaError, ReplicaId, Role, RoleState,
};
use mainstem_wire::ErrorCode;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::stored::Stored;
use super::{Durable, Locked, NoLog, Partition, Refused, State};
use crate::settings::TopicSettings;
use mainstem_links::{GroupHandle, Links, Throttled, Wakes};

mod compaction;
mod copies;
mod disk_waits;
mod group;
mod leadership;
mod members;
mod proposals;
mod waits;

pub(crate) use copies::{BegunCopy, CopyTarget};
pub use leadership::{Leadership, RoleChange};
pub(crate) use members::{OwnReplica, Progress};

use compaction::Floors;
use disk_waits::DiskWaits;
use members::Wanted;
use proposals::ENTRY_LOG_START;
use waits::{CommitWait, Confirmations};

/// Replication state of a partition, for metrics.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReplicationHealth {
    /// True if this node leads. Otherwise the other fields are 0.
    pub is_leader: bool,
    /// Number of replicas in the group.
    pub replicas: usize,
    /// Number of in-sync replicas.
    pub in_sync: usize,
    /// In-sync replicas that acks=all needs: `min.insync.replicas`, or a majority of the replicas if that is more.
    pub needed: usize,
}

impl ReplicationHealth {
    /// Returns true if this node leads and some replica is not in sync.
    pub fn is_under_replicated(&self) -> bool {
        self.in_sync < self.replicas
    }
}

/// Events of a group's replica. Called without any lock of the partition, in the order of the events, on the thread that drove the
/// replica: implementations must not block.
pub trait ReplicaEvents: Send + Sync {
    /// The replica leads from now on, follows another one, or does not know who leads.
    fn role_changed(&self, partition: &Arc<Partition>, role: Role);

    /// The high watermark has moved. Only called where [`ReplicaEvents::wants_commits`] says so.
    fn committed(&self, _partition: &Arc<Partition>, _high_watermark: i64) {}

    /// Committed records are gone, as the replica has found.
    fn lost(&self, _partition: &Arc<Partition>, _lost: Lost) {}

    /// The replica leads, and another one needs entries that are not here any more. Called again for as long as that is so.
    fn behind(&self, _partition: &Arc<Partition>) {}

    /// The leader has a snapshot for the replica in the place of entries that it has not any more. Where nothing is done about
    /// it, the replica stays as it is.
    fn offered(&self, _partition: &Arc<Partition>, _offer: SnapshotOffer) {}

    /// Returns true if [`ReplicaEvents::committed`] is to be called.
    fn wants_commits(&self) -> bool {
        false
    }
}

/// The replica of a group, with the waits for it.
pub(super) struct Member {
    pub(super) replica: Replica,
    /// In the order of offsets.
    commit_waits: VecDeque<CommitWait>,
    /// End offset and bytes of each uncommitted batch, of a leader.
    uncommitted: VecDeque<(i64, usize)>,
    /// End of the journal's range that the current sync covers.
    journal_upto: Option<u64>,
    /// Replicas that need records which are removed here, and were reported.
    behind: Vec<ReplicaId>,
    /// Node that this replica should succeed as leader, and the time in ms until which it tries, unless there is another leader.
    succession: Option<(i32, u64)>,
    /// Waits for the log start to reach an offset.
    log_start_waits: Vec<(i64, Durable)>,
    floors: Floors,
    wanted: Wanted,
    confirmations: Confirmations,
    /// Waits until the leader after this replica is known.
    hand_over_waits: Vec<oneshot::Sender<()>>,
    /// It takes part in nothing any more: its log is being closed.
    is_closing: bool,
    /// It is out of service, and its waits have ended.
    has_ended: bool,
}

/// Parts of a replicated partition outside of its locked state.
pub(super) struct Replication {
    handle: Arc<GroupHandle>,
    links: Arc<Links>,
    events: Arc<dyn ReplicaEvents>,
    notices: Mutex<Notices>,
    /// Why the replica is out of service.
    failure: OnceLock<String>,
    disk_waits: DiskWaits,
    /// The version of the members that are wanted; -1: none are.
    wanted_version: AtomicI64,
}

/// A replica's group, links and events, of which a partition's [`Replication`] is made.
pub(super) struct ReplicationParts {
    group: GroupId,
    own: ReplicaId,
    links: Arc<Links>,
    events: Arc<dyn ReplicaEvents>,
}

impl Replication {
    pub(super) fn new(parts: ReplicationParts, partition: &Weak<Partition>) -> Replication {
        let ReplicationParts { group, own, links, events } = parts;
        Replication {
            handle: GroupHandle::new(group, own, links.earlier_ticks.clone(), partition.clone()),
            links,
            events,
            notices: Mutex::default(),
            failure: OnceLock::new(),
            disk_waits: DiskWaits::default(),
            wanted_version: AtomicI64::new(-1),
        }
    }
}

/// Notices that are not delivered yet, in order.
#[derive(Default)]
struct Notices {
    queue: VecDeque<Notice>,
    /// A thread is at it.
    is_delivering: bool,
}

enum Notice {
    Role(Role),
    Committed(i64),
    Lost(Lost),
    Offered(SnapshotOffer),
    Behind,
}

/// Work for when the lock is free.
#[derive(Default)]
struct DeferredEffects {
    wakes: Wakes,
    ended: Vec<(Durable, Result<(), ErrorCode>)>,
    flush: bool,
    notices: bool,
    /// The log start has moved: it is to be made durable.
    log_start: Option<Arc<LogDir>>,
}

impl DeferredEffects {
    fn join(&mut self, later: DeferredEffects) {
        let DeferredEffects { wakes, ended, flush, notices, log_start } = later;
        self.wakes = self.wakes.and(wakes);
        self.ended.extend(ended);
        self.flush |= flush;
        self.notices |= notices;
        self.log_start = log_start.or_else(|| self.log_start.take());
    }
}

impl Member {
    fn new(replica: Replica) -> Member {
        Member {
            floors: Floors::of(&replica),
            replica,
            commit_waits: VecDeque::new(),
            uncommitted: VecDeque::new(),
            journal_upto: None,
            behind: Vec::new(),
            succession: None,
            log_start_waits: Vec::new(),
            wanted: Wanted::default(),
            confirmations: Confirmations::default(),
            hand_over_waits: Vec::new(),
            is_closing: false,
            has_ended: false,
        }
    }

    pub(super) fn into_log(self) -> Log {
        if let Err(error) = self.replica.journal().lock().sync() {
            tracing::error!(partition = %self.replica.log().partition(), "{error}");
        }
        self.replica.into_log()
    }

    pub(super) fn is_running(&self) -> bool {
        !self.is_closing && self.replica.failed().is_none()
    }

    /// Returns true if it leads and is in service.
    pub(super) fn leads(&self) -> bool {
        self.replica.role().state == RoleState::Leader && self.is_running()
    }

    fn epoch(&self) -> LeaderEpoch {
        epoch_of(self.replica.role())
    }

    fn leader(&self) -> Option<i32> {
        self.replica.role().leader(self.replica.own()).map(ReplicaId::node).filter(|_| self.is_running())
    }

    /// Appends what `write` makes in the epoch that it is given; see [`State::write`].
    pub(super) fn write(
        &mut self,
        size: usize,
        write: impl FnOnce(&mut Log, LeaderEpoch) -> Result<Appended, AppendError>,
    ) -> Result<Appended, Refused> {
        if self.is_closing {
            return Err(NoLog::Gone.into());
        }
        let appended = self.replica.append_with(u32::try_from(size).unwrap_or(u32::MAX), write);
        let appended = appended.map_err(|error| match error {
            LeaderAppendError::NotLeader { .. } => Refused::NotLeader,
            LeaderAppendError::Append(error) => Refused::Log(error),
            LeaderAppendError::Replica(_) => Refused::NoLog(NoLog::Offline),
        })?;
        if !appended.duplicate {
            self.uncommitted.push_back((appended.last_offset + 1, size));
        }
        Ok(appended)
    }

    /// The group has decided that the log starts at an offset. It may be there already, or retention was faster.
    fn raise_log_start(&mut self, offset: i64, deferred: &mut DeferredEffects) {
        let log = self.replica.log_mut();
        if offset > log.ends().log_start && log.delete_records_before(offset).is_ok() {
            deferred.log_start = Some(log.dir().clone());
        }
        let waits = self.log_start_waits.extract_if(.., |(wanted, _)| *wanted <= offset);
        deferred.ended.extend(waits.map(|(_, wait)| (wait, Ok(()))));
    }

    /// Takes the number of bytes that became readable up to the high watermark.
    fn take_readable(&mut self, high_watermark: i64) -> usize {
        let mut bytes = 0_usize;
        while let Some((end, size)) = self.uncommitted.front().copied()
            && end <= high_watermark
        {
            bytes = bytes.saturating_add(size);
            self.uncommitted.pop_front();
        }
        bytes
    }
}

fn epoch_of(role: Role) -> LeaderEpoch {
    // Terms beyond are refused by the replica.
    LeaderEpoch::new(i32::try_from(role.term).unwrap_or(i32::MAX))
}

impl Partition {
    /// A partition that is one replica of a group. It takes part after [`Self::join_group`].
    pub fn replicated(
        topic: Arc<str>,
        index: i32,
        dir: Arc<LogDir>,
        settings: Arc<TopicSettings>,
        replica: Replica,
        events: Arc<dyn ReplicaEvents>,
        links: Arc<Links>,
    ) -> Arc<Partition> {
        let epoch = epoch_of(replica.role());
        let parts = ReplicationParts { group: replica.group(), own: replica.own(), links, events };
        let stored = Stored::Replicated(Box::new(Member::new(replica)));
        Self::with_log_or_not(topic, index, settings, Ok((dir, stored)), epoch, Some(parts))
    }

    /// Returns true if it is a replica of a group.
    pub fn is_replicated(&self) -> bool {
        self.replication.is_some()
    }

    /// Why its replica is out of service, if it is. Takes no lock.
    pub fn replica_failure(&self) -> Option<&str> {
        self.replication.as_ref()?.failure.get().map(String::as_str)
    }

    /// Leader and epoch, as this replica knows them.
    pub fn leadership(&self) -> Leadership {
        let state = self.lock();
        match &state.log {
            Ok(Stored::Replicated(member)) => Leadership {
                leader: member.leader(),
                epoch: member.epoch(),
                is_leader: member.leads(),
                is_settled: member.leads() && member.replica.leads_settled(),
                is_searching: member.is_running() && member.leader().is_none(),
            },
            other => {
                let is_leader = matches!(other, Ok(Stored::Alone(_)) | Err(NoLog::Attached));
                let epoch = state.leader_epoch;
                Leadership { leader: None, epoch, is_leader, is_settled: is_leader, is_searching: false }
            }
        }
    }

    /// Returns true if this node leads and its high watermark covers the commits of earlier leaders (KIP-207).
    pub fn is_settled(&self) -> bool {
        self.replication.is_none() || self.leadership().is_settled
    }

    /// Numbers of its replicas and in-sync replicas.
    pub fn replication_health(&self) -> ReplicationHealth {
        let state = self.lock();
        let (replicas, in_sync) = match (&state.log, &self.replication) {
            (Ok(Stored::Replicated(member)), Some(replication)) if member.leads() => {
                (member.replica.configuration().voters.len(), member.in_sync_count(&replication.links))
            }
            (Ok(Stored::Alone(_)), _) => (1, 1),
            _ => return ReplicationHealth::default(),
        };
        ReplicationHealth {
            is_leader: true,
            replicas,
            in_sync,
            needed: self.min_insync().max(replicas / 2 + 1),
        }
    }

    /// Nodes of the other replicas and the number of offsets that each lacks, as far as known. Empty if this node does not lead.
    pub fn lacking(&self) -> Vec<(i32, i64)> {
        match &self.lock().log {
            Ok(Stored::Replicated(member)) if member.leads() => {
                member.replica.lacking().map(|(id, count)| (id.node(), count)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns true if the replica cannot be in sync with any leader: it is offline, its disk is full, or it lacks records that it had.
    /// `None`: another thread has it now, which may wait for a disk that hangs.
    pub fn is_out_of_sync(&self) -> Option<bool> {
        Some(match &self.try_lock()?.log {
            Ok(Stored::Replicated(member)) => {
                !member.is_running()
                    || member.replica.lacks_promised()
                    || member.replica.log().dir().is_full()
            }
            Ok(Stored::Alone(_)) => false,
            Err(no_log) => matches!(no_log, NoLog::Offline),
        })
    }

    /// Returns true if all its replicas are on other nodes.
    pub fn is_elsewhere(&self) -> bool {
        matches!(self.lock().log, Err(NoLog::Elsewhere))
    }

    /// The nodes whose replicas are in sync, if this node leads; otherwise none.
    pub fn in_sync(&self) -> Vec<i32> {
        let state = self.lock();
        match (&state.log, &self.replication) {
            (Ok(Stored::Replicated(member)), Some(replication)) if member.leads() => {
                let mut nodes: Vec<_> =
                    member.in_sync(&replication.links).into_iter().map(ReplicaId::node).collect();
                // A node may have two replicas for a moment, one in the place of the other.
                nodes.dedup();
                nodes
            }
            _ => Vec::new(),
        }
    }

    /// Index up to which each replica of the group has the log, and the index of the last entry, if this node leads.
    pub fn matched(&self) -> Option<(Vec<(i32, u64)>, u64)> {
        let state = self.lock();
        let Ok(Stored::Replicated(member)) = &state.log else { return None };
        let matched = member.replica.matched().into_iter().map(|(id, index)| (id.node(), index)).collect();
        let (last, ..) = member.replica.last_and_committed();
        member.leads().then_some((matched, last))
    }

    /// Returns true if a produce with acks=all may be appended: as many replicas are in sync as `min.insync.replicas` wants, and a majority
    /// can acknowledge it. Without one it would wait for its time-out.
    pub fn has_min_insync(&self, wanted: i32) -> bool {
        let Some(replication) = &self.replication else { return wanted <= 1 };
        let state = self.lock();
        match &state.log {
            // Who leads says so, and others are refused for another cause.
            Ok(Stored::Replicated(member)) if member.leads() => {
                let links = &replication.links;
                let has_wanted =
                    || i32::try_from(member.in_sync_count(links)).is_ok_and(|count| count >= wanted);
                member.has_majority(links) && (wanted <= 1 || has_wanted())
            }
            _ => true,
        }
    }

    /// The rate of Kafka's throttles for a copy from a leader to a follower, of which this node is one, in bytes per second; `None`: none
    /// counts.
    pub(crate) fn throttled_rate(&self, leader: i32, follower: i32) -> Option<u64> {
        let replication = self.replication.as_ref()?;
        let settings = self.settings.read();
        let own = replication.handle.own.node();
        let is_led = leader == own && settings.leader_throttled.contains(self.index, leader);
        let follows = settings.follower_throttled.contains(self.index, follower);
        replication.links.throttled_rate(Throttled { is_led, follower: follows.then_some(follower) })
    }

    /// The rates that count for a replica which catches up.
    fn throttled(&self, replication: &Replication, to: ReplicaId) -> Throttled {
        let settings = self.settings.read();
        let is_led = settings.leader_throttled.contains(self.index, replication.handle.own.node());
        let follows = settings.follower_throttled.contains(self.index, to.node());
        Throttled { is_led, follower: follows.then(|| to.node()) }
    }

    fn min_insync(&self) -> usize {
        usize::try_from(self.settings.read().min_insync_replicas).unwrap_or(1)
    }

    /// Gives leadership to another node's replica. Returns false where this node does not lead, or that one has none.
    pub fn transfer(&self, to_node: i32) -> bool {
        let mut state = self.lock();
        let Ok(Stored::Replicated(member)) = &mut state.log else { return false };
        let voters = &member.replica.configuration().voters;
        let target = voters.iter().find(|voter| voter.node() == to_node).copied();
        let (true, Some(target)) = (member.leads(), target) else { return false };
        member.replica.transfer(target);
        self.drive(state);
        true
    }

    /// Notes the high watermark where a restart begins with it.
    pub fn note_high_watermark(&self) {
        if self.replication.is_none() {
            return;
        }
        if let Ok(Stored::Replicated(member)) = &self.lock().log {
            member.note_high_watermark();
        }
    }

    /// Carries out what the replica has decided, and gives the lock back.
    pub(super) fn drive(&self, mut state: Locked<'_>) {
        let Some(replication) = &self.replication else { return };
        let deferred = self.drive_locked(replication, &mut state);
        drop(state);
        self.finish(replication, deferred);
    }

    fn drive_locked(&self, replication: &Replication, state: &mut State) -> DeferredEffects {
        let mut deferred = self.carry_out(replication, state);
        // Also where a leader was not settled when it was asked for.
        while let Ok(Stored::Replicated(member)) = &mut state.log
            && member.ask_confirmation()
        {
            deferred.join(self.carry_out(replication, state));
        }
        if let Ok(Stored::Replicated(member)) = &mut state.log {
            if !member.hand_over_waits.is_empty() && !member.is_between_leaders() {
                // A send fails if the waiter has timed out.
                member.hand_over_waits.drain(..).for_each(|wait| _ = wait.send(()));
            }
            member.note_status(&replication.handle.status);
        }
        deferred
    }

    fn carry_out(&self, replication: &Replication, state: &mut State) -> DeferredEffects {
        let State { log: Ok(Stored::Replicated(member)), fetches, leader_epoch, durable_waits, .. } = state
        else {
            return DeferredEffects::default();
        };
        if member.is_closing {
            return DeferredEffects::default();
        }
        let mut deferred = DeferredEffects::default();
        if member.has_ended {
            return deferred;
        }
        let effects = match member.replica.drive() {
            Ok(effects) => effects,
            Err(_) => {
                self.end_failed(replication, state, &mut deferred);
                return deferred;
            }
        };
        let Effects {
            messages,
            high_watermark,
            role,
            applied,
            configuration,
            flush,
            too_far_behind,
            offered,
            restored,
            confirmed,
            lost,
            setbacks,
        } = effects;
        for lost in lost {
            replication.links.note_lost(lost.records);
            replication.notices.lock().queue.push_back(Notice::Lost(lost));
            deferred.notices = true;
        }
        setbacks.into_iter().for_each(|setback| replication.links.note_setback(setback, self));
        if let Some(members) = configuration
            && let Some(said) = member.wanted.note_members(&members, replication.links.now_ms())
            && member.replica.role().state == RoleState::Leader
        {
            tracing::info!("{}-{}: {said}", self.topic, self.index);
        }
        deferred.flush = flush;
        if !messages.is_empty() {
            let links = &replication.links;
            let (now_ms, lag_max_ms) = (links.now_ms(), links.replica_lag_max_ms());
            let catches_up = |to: ReplicaId| {
                let is_behind = member.replica.is_catching_up(to, now_ms, lag_max_ms);
                is_behind.then(|| self.throttled(replication, to))
            };
            let (wakes, lost) = links.send(&replication.handle, messages, catches_up);
            deferred.wakes = wakes;
            lost.into_iter().for_each(|replica| member.replica.report_unreachable(replica));
        }
        if let Some(high_watermark) = high_watermark {
            let bytes = member.take_readable(high_watermark);
            if bytes > 0 && !fetches.is_empty() {
                fetches.moved_on(bytes, || member.replica.log().ends());
            }
            if replication.events.wants_commits() {
                replication.notices.lock().queue.push_back(Notice::Committed(high_watermark));
                deferred.notices = true;
            }
        }
        if let Some(role) = role {
            *leader_epoch = epoch_of(role);
            member.uncommitted.clear();
            member.behind.clear();
            deferred.ended = member.end_waits(ErrorCode::NOT_LEADER_OR_FOLLOWER);
            if role.state != RoleState::Leader {
                let waits = std::mem::take(durable_waits).into_iter();
                deferred.ended.extend(waits.map(|(_, wait)| (wait, Err(ErrorCode::NOT_LEADER_OR_FOLLOWER))));
            }
            // They look again, and find the new leader.
            fetches.look_again();
            replication.notices.lock().queue.push_back(Notice::Role(role));
            deferred.notices = true;
        }
        member.take_acknowledged(self.min_insync(), &mut deferred.ended);
        if confirmed.contains(&member.confirmations.number) {
            let asked = std::mem::take(&mut member.confirmations.asked).into_iter();
            deferred.ended.extend(asked.map(|wait| (wait, Ok(()))));
        }
        for entry in applied {
            if let [ENTRY_LOG_START, offset @ ..] = &entry.data[..]
                && let Ok(offset) = offset.try_into().map(i64::from_be_bytes)
            {
                member.raise_log_start(offset, &mut deferred);
            }
            member.floors.apply(&entry.data);
        }
        if restored.is_some() {
            // They look again, and find another log start.
            fetches.look_again();
        }
        if let Some(offer) = offered {
            replication.notices.lock().queue.push_back(Notice::Offered(offer));
            deferred.notices = true;
        }
        if !too_far_behind.is_empty() {
            replication.notices.lock().queue.push_back(Notice::Behind);
            deferred.notices = true;
        }
        self.report_behind(replication, member, &too_far_behind);
        if !member.behind.is_empty() {
            let replica = &member.replica;
            member.behind.retain(|id| !replica.has_what_is_committed(*id));
        }
        deferred
    }

    /// Takes its replica out of service: ends the waits, and lets the group continue without it.
    fn end_failed(&self, replication: &Replication, state: &mut State, deferred: &mut DeferredEffects) {
        let State { log: Ok(Stored::Replicated(member)), fetches, durable_waits, .. } = state else { return };
        member.has_ended = true;
        // The first reason is the one.
        let _ = replication.failure.set(member.replica.failed().unwrap_or("its log is closed").to_owned());
        deferred.ended.extend(member.end_waits(ErrorCode::KAFKA_STORAGE_ERROR));
        let waits = std::mem::take(durable_waits).into_iter();
        deferred.ended.extend(waits.map(|(_, wait)| (wait, Err(ErrorCode::KAFKA_STORAGE_ERROR))));
        fetches.look_again();
        let role = Role { term: member.replica.role().term, state: RoleState::Follower { leader: None } };
        replication.notices.lock().queue.push_back(Notice::Role(role));
        deferred.notices = true;
    }

    fn report_behind(&self, replication: &Replication, member: &mut Member, behind: &[ReplicaId]) {
        for replica in behind {
            if member.behind.contains(replica) {
                continue;
            }
            member.behind.push(*replica);
            replication.links.note_too_far_behind();
            let (topic, partition, node) = (&self.topic, self.index, replica.node());
            tracing::warn!(
                %topic, partition, node,
                "the replica of node {node} needs records that retention or compaction has removed here: it is out of sync until it has a copy of what is here"
            );
        }
    }

    /// Carries out effects that need the lock to be released.
    fn finish(&self, replication: &Replication, deferred: DeferredEffects) {
        let DeferredEffects { wakes, ended, flush, notices, log_start } = deferred;
        replication.links.wake(wakes);
        if flush {
            self.request_flush();
        }
        ended.into_iter().for_each(|(durable, result)| durable.done(result));
        if let Some(dir) = log_start {
            dir.commit(&dir.checkpoints().log_start, Box::new(|_| {}));
        }
        if notices {
            self.deliver(replication);
        }
    }

    /// Delivers notices in their order, unless another thread is at it: that one delivers these, too.
    fn deliver(&self, replication: &Replication) {
        let Some(own) = self.own.upgrade() else { return };
        let mut notices = replication.notices.lock();
        if std::mem::replace(&mut notices.is_delivering, true) {
            return;
        }
        while let Some(notice) = notices.queue.pop_front() {
            drop(notices);
            match notice {
                Notice::Role(role) => replication.events.role_changed(&own, role),
                Notice::Committed(high_watermark) => replication.events.committed(&own, high_watermark),
                Notice::Lost(lost) => replication.events.lost(&own, lost),
                Notice::Offered(offer) => replication.events.offered(&own, offer),
                Notice::Behind => replication.events.behind(&own),
            }
            notices = replication.notices.lock();
        }
        notices.is_delivering = false;
    }

    /// Work for the flusher, for a replica. Drives the replica first, so that no entry misses the sync that covers it, and adds the
    /// journal of its directory if something waits for that.
    pub(super) fn begin_replica_flush(&self, mut state: Locked<'_>) -> mainstem_log::flusher::FlushWork {
        let Some(replication) = &self.replication else { return Default::default() };
        let mut deferred = self.drive_locked(replication, &mut state);
        // What it wants synced is in this round.
        deferred.flush = false;
        let mut work = mainstem_log::flusher::FlushWork::default();
        if let Ok(Stored::Replicated(member)) = &mut state.log {
            work = member.replica.log_mut().flush_work();
            if let Some(sync) = member.replica.journal_sync() {
                member.journal_upto = Some(sync.upto);
                work.shared = Some(sync.file);
            }
        }
        drop(state);
        self.finish(replication, deferred);
        work
    }

    /// Takes the result of a sync: records up to `upto` are durable, or no more records become durable.
    pub(super) fn end_replica_flush(&self, mut state: Locked<'_>, upto: i64, result: &std::io::Result<()>) {
        let Some(replication) = &self.replication else { return };
        let State { log: Ok(Stored::Replicated(member)), .. } = &mut *state else { return };
        let journal_upto = member.journal_upto.take();
        let mut deferred = match result {
            Ok(()) => {
                let log = member.replica.log_mut();
                let moved = log.flushed(upto).then(|| log.dir().clone());
                if let Some(upto) = journal_upto {
                    member.replica.journal().lock().synced(upto);
                }
                member.replica.persisted();
                let mut deferred = self.drive_locked(replication, &mut state);
                deferred.log_start = deferred.log_start.or(moved);
                deferred
            }
            Err(error) => {
                member.replica.log_mut().failed(error);
                if journal_upto.is_some() {
                    member.replica.journal().lock().fail(error);
                }
                member.replica.stop(format!("a sync failed: {error}"));
                let mut deferred = DeferredEffects::default();
                self.end_failed(replication, &mut state, &mut deferred);
                deferred
            }
        };
        if let Ok(log) = &state.log {
            let durable = log.ends().durable_end;
            deferred.ended.extend(state.waits_until(durable).into_iter().map(|(_, wait)| (wait, Ok(()))));
        }
        drop(state);
        self.finish(replication, deferred);
    }

    /// Takes part in its group from now on.
    pub fn join_group(&self) {
        if let Some(replication) = &self.replication {
            replication.links.register(&replication.handle);
        }
    }

    /// Takes part in its group no more.
    pub(super) fn leave_group(&self) {
        if let Some(replication) = &self.replication {
            replication.links.unregister(replication.handle.id);
        }
    }

    /// A segment may have begun for its age: the journal notes where, durably. Blocks on the disk. Returns false where it could not: then
    /// nothing that precedes the segment may go.
    pub(super) fn follow_roll(&self) -> bool {
        if self.replication.is_none() {
            return true;
        }
        let mut state = self.lock();
        let noted = match &mut state.log {
            Ok(Stored::Replicated(member)) if member.is_running() => {
                let noted = member.replica.follow_roll();
                noted.map(|is_new| is_new.then(|| member.replica.journal().clone()))
            }
            _ => return true,
        };
        self.drive(state);
        let synced = noted
            .and_then(|journal| journal.map_or(Ok(()), |journal| Ok(Journal::sync_beside_others(&journal)?)));
        if let Err(error) = &synced {
            tracing::error!(topic = %self.topic, partition = self.index, "{error}");
        }
        synced.is_ok()
    }

    /// Retention may have removed segments: the group begins behind them.
    pub(super) fn follow_log_start(&self) {
        if self.replication.is_none() {
            return;
        }
        let mut state = self.lock();
        if let Ok(Stored::Replicated(member)) = &mut state.log
            && member.is_running()
            // The entries behind a copy that is offered stay.
            && !member.replica.log().is_exported()
            && let Err(error) = member.replica.follow_log_start()
        {
            tracing::error!(topic = %self.topic, partition = self.index, "{error}");
        }
        // Before the start of the group all counts as acknowledged; and one that has failed ends those who wait.
        self.drive(state);
    }
}

#[cfg(any(test, feature = "sim"))]
impl Partition {
    /// Acts like a process that dies: all waits end.
    pub fn forget_waits(&self) {
        let mut state = self.lock();
        let durable_waits = std::mem::take(&mut state.durable_waits);
        let of_group = match &mut state.log {
            Ok(Stored::Replicated(member)) => Some((
                std::mem::take(&mut member.commit_waits),
                std::mem::take(&mut member.log_start_waits),
                std::mem::take(&mut member.confirmations.asked),
            )),
            _ => None,
        };
        drop(state);
        // Without the lock: they may hold what looks at the partition when it is dropped.
        drop((durable_waits, of_group));
    }

    /// Looks at the replica, or does to it what nothing but a test does; `None` where none takes part.
    pub fn with_replica_by_hand<T>(&self, act: impl FnOnce(&mut Replica) -> T) -> Option<T> {
        match &mut self.lock().log {
            Ok(Stored::Replicated(member)) if member.is_running() => Some(act(&mut member.replica)),
            _ => None,
        }
    }

    /// Returns true if its replica has failed, and those who wait for it do not know yet.
    pub fn has_failed_silently(&self) -> bool {
        let state = self.lock();
        let Ok(Stored::Replicated(member)) = &state.log else { return false };
        member.replica.failed().is_some() && !member.has_ended
    }

    /// Asserts what holds between any two calls.
    ///
    /// # Panics
    /// When it does not.
    pub fn check(&self) {
        if let Ok(Stored::Replicated(member)) = &self.lock().log {
            member.check(self.min_insync());
        }
    }
}

#[cfg(any(test, feature = "sim"))]
impl Member {
    fn check(&self, min_insync: usize) {
        let is_running = self.is_running();
        assert!(!self.has_ended || self.commit_waits.is_empty(), "a wait that nothing ends");
        if !is_running {
            return;
        }
        self.replica.check();
        self.check_waits(min_insync);
        assert!(self.uncommitted.iter().is_sorted(), "{:?}", self.uncommitted);
        let committed = self.replica.log().ends().high_watermark;
        assert!(
            self.uncommitted.iter().all(|(end, _)| *end > committed),
            "{:?}, {committed}",
            self.uncommitted
        );
    }
}

impl Member {
    fn in_sync(&self, links: &Links) -> Vec<ReplicaId> {
        let mut in_sync = self.replica.in_sync(links.now_ms(), links.replica_lag_max_ms());
        in_sync.retain(|id| *id == self.replica.own() || !self.is_out_of_sync(links, *id));
        in_sync
    }

    /// Returns true if another replica is known to be out of sync, however long ago it had everything.
    fn is_out_of_sync(&self, links: &Links, id: ReplicaId) -> bool {
        self.behind.contains(&id) || links.out_of_sync.has(self.replica.group(), id.node())
    }

    fn has_majority(&self, links: &Links) -> bool {
        let (now_ms, lag_max_ms) = (links.now_ms(), links.replica_lag_max_ms());
        self.replica.has_majority(now_ms, lag_max_ms, |id| self.is_out_of_sync(links, id))
    }

    /// A sync failed that may have been the journal's, too.
    pub(super) fn fail_journal(&self, error: &std::io::Error) {
        if StorageFault::of(error) == StorageFault::Medium {
            self.replica.journal().lock().fail(error);
        }
    }

    /// Writes what the next start begins with. Nothing happens to it any more.
    pub(super) fn prepare_close(&mut self) -> Result<(), ReplicaError> {
        if self.is_running() {
            self.is_closing = true;
            self.note_high_watermark();
            self.replica.prepare_close()?;
        }
        Ok(())
    }

    /// Notes the high watermark where a restart begins with it.
    fn note_high_watermark(&self) {
        if let Some(offset) = self.replica.high_watermark_to_note() {
            let log = self.replica.log();
            log.dir().checkpoints().replication.set(log.partition(), offset);
        }
    }
}
