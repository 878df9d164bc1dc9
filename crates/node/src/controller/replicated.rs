//! The metadata of a cluster: what the metadata leader decides goes into a replicated log, and every node applies what is
//! committed, in order, on one thread; the publisher carries it out.
//!
//! ```text
//!  change ─▶ decide (ahead) ─▶ append in the leader's epoch ─▶ wait ─────────────┐
//!                                      │ commit                                  │ applied, same epoch: the reply
//!                                      ▼                                         │
//!                        metadata-applier: image ─▶ publisher: carry out ────────┘
//! ```
//!
//! A node decides once everything in its log is committed and applied. When it loses leadership, its decisions that are not
//! committed are rolled back. Their outcome is unknown then: the next leader may have them.
//!
//! A node whose log restarts at the end of a leader's snapshot takes over that snapshot in one step.

use std::sync::Arc;
use std::time::Duration;

use mainstem_controller::{Decision, MetadataChange, MetadataStateMachine};
use mainstem_log::Origin;
use mainstem_records::LeaderEpoch;
use mainstem_replication::Role;
use mainstem_replication::snapshots::SnapshotOffer;
use mainstem_wire::ErrorCode;
use parking_lot::Mutex;

use super::bootstrap::random_secret;
use super::node_snapshots::{NodeSnapshots, Offers};
use super::{Controller, RollbackOnPanic, batch_of};
use mainstem_links::Links;
use mainstem_runtime::clock::Clock;
use mainstem_runtime::supervised::{self, Role as ThreadRole};
use mainstem_runtime::sync;
use mainstem_store::partition::{Partition, ReplicaEvents};
use mainstem_store::replay::{Checksums, Entry};
use mainstem_store::scratch::with_scratch;

/// Time for which a decision waits until it is committed and carried out.
pub(crate) const COMMIT_TIME: Duration = Duration::from_secs(10);

/// Interval at which the applier checks without being woken.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Interval of its checks while it waits to decide.
const SETTLE_EVERY: Duration = Duration::from_millis(20);

/// Reasons for which the applier was woken, and the snapshots that the leader offers.
#[derive(Default)]
pub(crate) struct News {
    state: Mutex<NewsState>,
    woken: sync::Condvar,
    pub(crate) offers: Offers,
}

#[derive(Default)]
struct NewsState {
    any: bool,
    ends: bool,
}

impl News {
    pub(crate) fn tell(&self) {
        self.state.lock().any = true;
        self.woken.notify_one();
    }

    fn end(&self) {
        self.state.lock().ends = true;
        self.woken.notify_one();
    }

    /// Waits for news, or until the time is over. Returns false at the end.
    fn wait(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.any && !state.ends {
            self.woken.wait_for(&mut state, time);
        }
        state.any = false;
        !state.ends
    }
}

impl ReplicaEvents for News {
    fn role_changed(&self, _partition: &Arc<Partition>, _role: Role) {
        self.tell();
    }

    fn committed(&self, _partition: &Arc<Partition>, _high_watermark: i64) {
        self.tell();
    }

    fn offered(&self, _partition: &Arc<Partition>, offer: SnapshotOffer) {
        self.offers.put(offer);
    }

    fn wants_commits(&self) -> bool {
        true
    }
}

/// Parts of a controller in a cluster, beside its state machine.
pub(crate) struct Replicated {
    clock: Clock,
    pub(crate) links: Arc<Links>,
    pub(crate) news: Arc<News>,
    pub(crate) snapshots: NodeSnapshots,
    progress: Mutex<Progress>,
    moved: sync::Condvar,
    /// Held while changes are applied.
    gate: Mutex<()>,
    applier: Mutex<Option<sync::Thread>>,
}

#[derive(Default)]
struct Progress {
    /// Everything below is applied.
    applied: i64,
    /// The epoch in which this node decides.
    deciding: Option<LeaderEpoch>,
}

impl Replicated {
    /// Nothing is applied yet but what a snapshot holds.
    pub(crate) fn new(
        news: Arc<News>,
        snapshots: NodeSnapshots,
        links: Arc<Links>,
        clock: Clock,
    ) -> Replicated {
        Replicated {
            clock,
            links,
            news,
            snapshots,
            progress: Mutex::default(),
            moved: sync::Condvar::new(),
            gate: Mutex::new(()),
            applier: Mutex::new(None),
        }
    }

    fn deciding(&self) -> Option<LeaderEpoch> {
        self.progress.lock().deciding
    }

    /// Waits until everything below `offset` is applied. With an epoch, this node has to decide in it all the time.
    fn wait(&self, offset: i64, epoch: Option<LeaderEpoch>, time: Duration) -> Result<(), ErrorCode> {
        let deadline = self.clock.instant() + time;
        let mut progress = self.progress.lock();
        loop {
            if epoch.is_some() && progress.deciding != epoch {
                return Err(ErrorCode::NOT_CONTROLLER);
            }
            if progress.applied >= offset {
                return Ok(());
            }
            if self.clock.wait_until(&self.moved, &mut progress, deadline) {
                return Err(ErrorCode::REQUEST_TIMED_OUT);
            }
        }
    }

    fn set(&self, set: impl FnOnce(&mut Progress)) {
        set(&mut self.progress.lock());
        self.moved.notify_all();
    }
}

impl Controller {
    /// Returns true if this node is one of several.
    pub(crate) fn is_replicated(&self) -> bool {
        self.replicated.is_some()
    }

    /// Returns true if this node decides changes of metadata. A node without others always does.
    pub fn decides(&self) -> bool {
        self.replicated.as_ref().is_none_or(|replicated| replicated.deciding().is_some())
    }

    /// The epoch in which this node decides; `None`: it does not, or has no other nodes. The epoch of its log may be later, until
    /// it has noticed that another node leads.
    pub fn decides_in(&self) -> Option<i32> {
        Some(self.replicated.as_ref()?.deciding()?.get())
    }

    /// The node that decides, as far as it is known.
    pub fn leader(&self) -> Option<i32> {
        match &self.replicated {
            None => Some(self.local.id),
            Some(_) => self.log.leadership().leader,
        }
    }

    /// Waits until the metadata below an offset are applied and carried out here.
    ///
    /// # Errors
    /// REQUEST_TIMED_OUT.
    pub(crate) fn wait_for_image(&self, offset: i64, time: Duration) -> Result<(), ErrorCode> {
        let Some(replicated) = &self.replicated else { return Ok(()) };
        let deadline = self.clock.instant() + time;
        replicated.wait(offset, None, time)?;
        self.publisher.wait(offset, Some(deadline))
    }

    /// Begins to apply, and to write and fetch snapshots. Changes are carried out when the publisher has begun.
    ///
    /// # Errors
    /// When no thread can be made.
    pub(crate) fn begin_to_apply(self: &Arc<Self>) -> std::io::Result<()> {
        let Some(replicated) = &self.replicated else { return Ok(()) };
        let own = self.clone();
        let run = move || own.apply_until_the_end();
        let role = ThreadRole::Vital("this node would go on with old metadata");
        let thread = supervised::spawn(&self.local.panics, "metadata-applier", role, run)?;
        *replicated.applier.lock() = Some(thread);
        self.begin_snapshots()
    }

    /// Ends the applier, and what writes and fetches snapshots.
    pub fn end_applying(&self) {
        let Some(replicated) = &self.replicated else { return };
        self.end_snapshots(replicated);
        replicated.news.end();
        let thread = replicated.applier.lock().take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    /// Calls a function while nothing is applied.
    pub(crate) fn while_nothing_is_applied<T>(&self, work: impl FnOnce() -> T) -> T {
        let _gate = self.replicated.as_ref().map(|replicated| replicated.gate.lock());
        work()
    }

    fn apply_until_the_end(&self) {
        let Some(replicated) = &self.replicated else { return };
        let mut pause = LOOK_EVERY;
        while replicated.news.wait(pause) {
            let is_settled = self.apply_committed(replicated);
            pause = if is_settled { LOOK_EVERY } else { SETTLE_EVERY };
        }
    }

    /// Applies what is committed. Returns false if this node leads and does not decide yet.
    fn apply_committed(&self, replicated: &Replicated) -> bool {
        let _gate = replicated.gate.lock();
        let leadership = self.log.leadership();
        let leads_in = |epoch: LeaderEpoch| leadership.is_leader && leadership.epoch == epoch;
        if replicated.deciding().is_some_and(|epoch| !leads_in(epoch)) {
            self.give_up_deciding(replicated);
            tracing::info!(leader = ?leadership.leader, "this node is not the metadata leader any more");
        }
        let Ok(ends) = self.log.ends() else { return true };
        let is_behind = ends.log_start > self.image().next_offset();
        let changes = match replicated.deciding() {
            Some(_) if is_behind => {
                // It has lost leadership just now.
                replicated.news.tell();
                return true;
            }
            None if is_behind => self.go_on_behind_snapshot(),
            Some(epoch) if self.machine.read().has_pending() => {
                // Still the same epoch: so what was committed is what was decided here.
                let now = self.log.leadership();
                if !now.is_leader || now.epoch != epoch {
                    replicated.news.tell();
                    return true;
                }
                self.machine.apply(|machine| {
                    let upto = ends.high_watermark.min(machine.ahead_offset());
                    machine.committed(upto)
                })
            }
            _ => self.replay_committed(ends.high_watermark),
        };
        let image = self.image();
        // Also before this node is registered: what it needs for that may come behind a change of members.
        self.local.store.raise_to_level(image.mainstem_version());
        let applied = image.next_offset();
        self.publisher.publish(changes, applied);
        replicated.set(|progress| progress.applied = applied);
        match leadership.is_leader && replicated.deciding().is_none() {
            true => self.begin_to_decide(replicated),
            false => true,
        }
    }

    /// Rolls back what this node has decided and is not committed; its outcome is unknown.
    fn give_up_deciding(&self, replicated: &Replicated) {
        let _turn = self.turn.lock();
        self.machine.decide(MetadataStateMachine::rollback);
        replicated.set(|progress| progress.deciding = None);
    }

    /// Decides from now on, if everything in the log is committed and applied.
    fn begin_to_decide(&self, replicated: &Replicated) -> bool {
        let _turn = self.turn.lock();
        let leadership = self.log.leadership();
        let Ok(ends) = self.log.ends() else { return true };
        let machine = self.machine.read();
        let is_applied = machine.image().next_offset() == ends.log_end && !machine.has_pending();
        if !(leadership.is_leader && leadership.is_settled && is_applied) {
            return !leadership.is_leader;
        }
        let is_empty = machine.image().next_offset() == 0;
        drop(machine);
        if is_empty && !self.append_first_users(leadership.epoch) {
            return false;
        }
        if !self.append_decoy_secret(leadership.epoch) {
            return false;
        }
        if let Some(events) = self.events() {
            events.begins_to_decide();
        }
        self.want_quorum();
        replicated.set(|progress| progress.deciding = Some(leadership.epoch));
        if let Some(events) = self.events() {
            events.decides();
        }
        tracing::info!(epoch = leadership.epoch.get(), "this node is the metadata leader");
        true
    }

    /// A cluster that begins has the users of its first metadata leader's `bootstrap.checkpoint`. Nothing is decided before
    /// they are committed. Returns false if they had to be appended.
    fn append_first_users(&self, epoch: LeaderEpoch) -> bool {
        let values = self.bootstrap.lock().clone();
        if values.is_empty() {
            return true;
        }
        let decision = self.machine.decide(|machine| machine.bootstrap(&values));
        // They are applied like all other records.
        self.machine.decide(MetadataStateMachine::rollback);
        match &decision.reply {
            Err(error) => end_process(&format!("bootstrap.checkpoint cannot be used: {error}")),
            Ok(0) => return true,
            Ok(users) => tracing::info!(users, "the cluster begins with the users of bootstrap.checkpoint"),
        }
        if self.append_in(epoch, &decision.records).is_err() {
            tracing::warn!("the users of bootstrap.checkpoint could not be written; this is tried again");
        }
        false
    }

    /// The same for what unknown users are shown.
    fn append_decoy_secret(&self, epoch: LeaderEpoch) -> bool {
        let decision = self.machine.decide(|machine| machine.draw_decoy_secret(&self.view, random_secret));
        self.machine.decide(MetadataStateMachine::rollback);
        if decision.records.is_empty() {
            return true;
        }
        if self.append_in(epoch, &decision.records).is_err() {
            tracing::warn!("mainstem.scram.decoy.secret could not be written; this is tried again");
        }
        false
    }

    /// Applies records of the log up to the high watermark. What cannot be applied ends the process: this node would see
    /// another cluster than the others.
    fn replay_committed(&self, high_watermark: i64) -> Vec<MetadataChange> {
        let next = self.image().next_offset();
        let mut changes = Vec::new();
        if high_watermark <= next {
            return changes;
        }
        let mut records: Vec<(i64, Vec<u8>)> = Vec::new();
        let (mut bytes, mut timestamp) = (0, None);
        let read = self.log.replay_range(next..high_watermark, Checksums::Verified, |entry| {
            if let Entry::Record { record, .. } = entry
                && let Some(value) = record.value
            {
                records.push((record.offset, value.to_vec()));
                (bytes, timestamp) = (bytes + value.len(), Some(record.timestamp));
            }
        });
        match read {
            Ok(Ok(())) => {}
            // It has restarted just now.
            Ok(Err(_)) if self.log.ends().is_ok_and(|ends| ends.log_start > next) => {
                self.tell_applier();
                return changes;
            }
            Ok(Err(error)) => end_process(&format!("the metadata log cannot be read: {error}")),
            // It is closed, or will be.
            Err(_) => return changes,
        }
        self.machine.apply(|machine| {
            for (offset, value) in records {
                match machine.replay(offset, &value) {
                    Ok(change) => changes.push(change),
                    Err(error) => end_process(&error.to_string()),
                }
            }
            machine.skip_to(high_watermark);
        });
        if let Some(timestamp) = timestamp {
            self.since_snapshot.lock().count(bytes, timestamp);
        }
        changes
    }

    /// Has the applier look again.
    fn tell_applier(&self) {
        if let Some(replicated) = &self.replicated {
            replicated.news.tell();
        }
    }

    /// Decides a change on the metadata leader and waits until it is applied here. With the reply comes the offset up to
    /// which the image has to be for it.
    pub(crate) fn change_replicated<R>(
        &self,
        replicated: &Replicated,
        decide: impl FnOnce(&mut MetadataStateMachine) -> Decision<R>,
    ) -> Result<(R, i64), ErrorCode> {
        let (decision, epoch) = self.append_decided(replicated, decide)?;
        replicated.wait(decision.reply_at, Some(epoch), COMMIT_TIME)?;
        Ok((decision.reply, decision.reply_at))
    }

    /// Decides a change, and waits for nothing. It may not be committed.
    ///
    /// # Errors
    /// NOT_CONTROLLER where this node does not decide; that of the log.
    pub(crate) fn propose(
        &self,
        decide: impl FnOnce(&mut MetadataStateMachine) -> Decision<()>,
    ) -> Result<(), ErrorCode> {
        let replicated = self.replicated.as_ref().ok_or(ErrorCode::NOT_CONTROLLER)?;
        self.append_decided(replicated, decide).map(drop)
    }

    /// Decides a change, and appends it to the log. Returns it, and the epoch in which this node has decided.
    fn append_decided<R>(
        &self,
        replicated: &Replicated,
        decide: impl FnOnce(&mut MetadataStateMachine) -> Decision<R>,
    ) -> Result<(Decision<R>, LeaderEpoch), ErrorCode> {
        let _turn = self.turn.lock();
        let epoch = replicated.deciding().ok_or(ErrorCode::NOT_CONTROLLER)?;
        let decision = {
            let _undo = RollbackOnPanic::new(self);
            self.machine.decide(decide)
        };
        if let Err(error) = self.append_in(epoch, &decision.records) {
            self.stop_deciding(replicated);
            return Err(error);
        }
        Ok((decision, epoch))
    }

    /// Forgets what was decided and is not committed. Everything that is in the log is applied before the next decision.
    pub(crate) fn stop_deciding(&self, replicated: &Replicated) {
        self.machine.decide(MetadataStateMachine::rollback);
        replicated.set(|progress| progress.deciding = None);
        replicated.news.tell();
    }

    fn append_in(&self, epoch: LeaderEpoch, records: &[Vec<u8>]) -> Result<(), ErrorCode> {
        if records.is_empty() {
            return Ok(());
        }
        let wall_ms = self.clock.wall_ms();
        let bytes = batch_of(records, wall_ms)?;
        let append = |scratch: &mut _| {
            self.log.append_in_epoch(&bytes, Origin::Coordinator, epoch, &self.clock, scratch)
        };
        with_scratch(append).map_err(|refused| match refused.code() {
            ErrorCode::NOT_LEADER_OR_FOLLOWER => ErrorCode::NOT_CONTROLLER,
            other => other,
        })?;
        self.since_snapshot.lock().count(bytes.len(), wall_ms);
        Ok(())
    }
}

pub(crate) fn end_process(why: &str) -> ! {
    supervised::end_process(&format!("it would see other metadata than the other nodes: {why}"))
}
