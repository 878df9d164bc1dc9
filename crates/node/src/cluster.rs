//! This node among others: what it asks of them and answers, who leads which partition, and who is there.
//!
//! Threads: `cluster-roles` (roles of this node's replicas: coordinators are loaded and unloaded, leaders made known) and
//! `cluster-members` (heartbeats, fencing). A node without others has none of this.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use mainstem_config::Voter;
use mainstem_controller::{
    ConfigResource, FirstController, LeaderNote, MetadataStateMachine, NodeStart, ResourceKind,
};
use mainstem_records::LeaderEpoch;
use mainstem_wire::{ErrorCode, Uuid};
use parking_lot::Mutex;

use crate::controller::{Controller, MetadataEvents};
use crate::coordinators;
use crate::local::Local;
use mainstem_links::{CallKind, Links, Rates};
use mainstem_runtime::supervised::{self, Role as ThreadRole};
use mainstem_runtime::sync;
use mainstem_runtime::worker::Worker;
use mainstem_store::partition::Partition;
use mainstem_store::topics::Topic;

mod asking;
pub mod calls;
mod clocks;
pub mod decisions;
pub mod elections;
pub(crate) mod forwarding;
pub mod leaders;
mod leaving;
mod lost;
mod members;
mod nodes;
mod out_of_sync;
mod registration;
mod roles;
mod settled;

use calls::{Answered, Ask, Led};
use clocks::Clocks;
use leaders::{Leader, LeaderTable, PartitionKey, Unnoted};
use members::{HeartbeatSchedule, LeaderlessLooks, Members};
use nodes::Nodes;
pub use roles::{RoleNews, RoleReceiver};

/// A small question, as JSON.
pub(crate) const ASK: CallKind = CallKind(2);
/// A client's request for the metadata leader.
pub(crate) const FORWARD: CallKind = CallKind(3);
/// The time that a node's clock shows: milliseconds since 1970, as a big-endian i64. Nodes of earlier releases refuse it.
pub(crate) const CLOCK: CallKind = CallKind(5);

/// Time for which the metadata leader is looked for, before a client gets the answer that there is none.
pub(crate) const LEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time in which one node must answer.
const ANSWER_TIME: Duration = Duration::from_secs(12);
/// Between two attempts.
const RETRY: Duration = Duration::from_millis(50);
/// Interval at which leaders are written to the metadata.
const NOTED_EVERY: Duration = Duration::from_secs(1);
/// Leaders that one record batch notes.
const NOTED_MAX: usize = 1_000;

/// This node among others.
pub struct Cluster {
    own: i32,
    local: Arc<Local>,
    controller: Arc<Controller>,
    nodes: Nodes,
    /// The connections to the other nodes.
    pub links: Arc<Links>,
    /// Leaders of the partitions.
    pub(crate) leaders: LeaderTable,
    /// The epoch of this node's registration, and what it says.
    registered: Mutex<Option<(i64, NodeStart)>>,
    members: Mutex<Members>,
    /// Held while this node registers again, since the metadata leader did not know its registration.
    registering_again: Mutex<()>,
    /// See [`Self::is_cut_off`].
    is_cut_off: AtomicBool,
    roles: Arc<RoleNews>,
    news: Mutex<Option<RoleReceiver>>,
    unnoted: Unnoted,
    threads: Mutex<Vec<sync::Thread>>,
    /// Tells the metadata leader what nothing here waits for.
    reporting: Worker,
    /// Asks the metadata leader for what this node lacks. Reports that are repeated do not hold it up.
    asking: Worker,
    /// Those who wait until this node knows what the metadata leader knows.
    catching_up: Mutex<Vec<OnCurrent>>,
    /// Counters of events at partitions that this node leads.
    pub led: LedCounters,
    /// The differences between their clocks and this node's.
    pub clocks: Arc<Clocks>,
}

/// Counters of events, since the start, at partitions that this node leads or led.
#[derive(Debug, Default)]
pub struct LedCounters {
    /// Replicas were found out of sync, once for each look at a partition that found any.
    pub isr_shrinks: AtomicU64,
    /// Replicas were found in sync again, likewise.
    pub isr_expands: AtomicU64,
    /// This node was elected.
    pub elections: AtomicU64,
}

impl LedCounters {
    /// Takes note of who is in sync now, and who was; none, before the first look.
    fn in_sync(&self, before: &[i32], now: &[i32]) {
        if before.is_empty() {
            return;
        }
        let lacks = |nodes: &[i32], of: &[i32]| of.iter().any(|node| !nodes.contains(node));
        self.isr_shrinks.fetch_add(u64::from(lacks(now, before)), Ordering::Relaxed);
        self.isr_expands.fetch_add(u64::from(lacks(before, now)), Ordering::Relaxed);
    }
}

/// Called once with whether this node knows what the metadata leader knows.
type OnCurrent = Box<dyn FnOnce(bool) + Send>;

impl Cluster {
    /// This node among others, with nothing known yet but the nodes that have founded the cluster, and all nodes as they were known last.
    pub fn new(
        (local, controller): (Arc<Local>, Arc<Controller>),
        (first, known): (Vec<FirstController>, Vec<Voter>),
        links: Arc<Links>,
        (roles, news): (Arc<RoleNews>, RoleReceiver),
    ) -> Arc<Cluster> {
        let cluster = Arc::new(Cluster {
            own: local.id,
            nodes: Nodes::new(first, known),
            links,
            leaders: LeaderTable::default(),
            registered: Mutex::default(),
            members: Mutex::default(),
            registering_again: Mutex::default(),
            is_cut_off: AtomicBool::new(false),
            roles,
            news: Mutex::new(Some(news)),
            unnoted: Unnoted::default(),
            threads: Mutex::default(),
            reporting: Worker::new("cluster-reports"),
            asking: Worker::new("cluster-asks"),
            catching_up: Mutex::default(),
            led: LedCounters::default(),
            clocks: Arc::default(),
            local,
            controller,
        });
        let events: Arc<dyn MetadataEvents> = cluster.clone();
        cluster.controller.set_events(Arc::downgrade(&events));
        cluster
    }

    /// Starts to follow roles and to send heartbeats.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn start(self: &Arc<Self>) -> std::io::Result<()> {
        let news = self.news.lock().take().expect("a cluster is started once");
        let own = self.clone();
        let role = ThreadRole::Vital("leaders would not be made known any more");
        let roles =
            supervised::spawn(&self.local.panics, "cluster-roles", role, move || own.follow_roles(&news))?;
        let own = self.clone();
        let role = ThreadRole::Vital("the node would give no sign of life any more");
        let members =
            supervised::spawn(&self.local.panics, "cluster-members", role, move || own.follow_members())?;
        self.threads.lock().extend([roles, members]);
        Ok(())
    }

    /// Ends its threads. The links stay.
    pub fn stop(&self) {
        self.roles.end();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            let _ = thread.join();
        }
        self.local.loads.stop();
        self.reporting.stop();
        self.asking.stop();
        self.forget_waiting();
    }

    /// Drops the waits for the knowledge of the metadata leader, which this node does not ask for any more.
    pub fn forget_waiting(&self) {
        let waiting = std::mem::take(&mut *self.catching_up.lock());
        // Without the lock: they may hold the last reference to what they belong to.
        drop(waiting);
    }

    // Members.

    /// Takes note of a heartbeat of a node in its epoch. Returns false if it has to register again.
    fn seen(&self, node: i32, broker_epoch: i64) -> bool {
        let known = self.controller.image().broker(node).map(|known| (known.epoch, known.fenced));
        let Some((_, is_fenced)) = known.filter(|(epoch, _)| *epoch == broker_epoch) else { return false };
        self.members.lock().seen(node, self.local.clock.mono_ms());
        if is_fenced {
            self.set_fenced(node, broker_epoch, false);
        }
        true
    }

    fn left(&self, node: i32, broker_epoch: i64) {
        self.members.lock().left(node);
        self.set_fenced(node, broker_epoch, true);
    }

    fn set_fenced(&self, node: i32, broker_epoch: i64, fenced: bool) {
        match self.controller.commit(|machine| machine.set_fenced(node, broker_epoch, fenced)) {
            Ok(()) if fenced => {
                tracing::warn!(node, "the node is fenced: it gives no sign of life, or stops")
            }
            Ok(()) => tracing::info!(node, "the node takes part again"),
            Err(error) => tracing::warn!(node, "it could not be noted whether the node takes part: {error}"),
        }
    }

    fn follow_members(self: &Arc<Self>) {
        let clock = &self.local.clock;
        let (mut noted, mut balanced) = (clock.instant(), clock.instant());
        let mut lost = lost::LostReports::default();
        let (mut schedule, mut alone) = (HeartbeatSchedule::default(), LeaderlessLooks::default());
        while !self.local.stopping.is_stopping() {
            let times = self.local.config().replication.clone();
            let registered = self.registered.lock().as_ref().map(|(epoch, _)| *epoch);
            let leader = self.controller.leader();
            self.note_cut_off(alone.look(leader.is_some()));
            if let Some((epoch, leader)) = registered.zip(leader)
                && schedule.is_due(leader, self.local.clock.mono_ms(), times.heartbeat_interval_ms)
            {
                self.send_heartbeat(leader, epoch);
            }
            if self.controller.decides() {
                self.fence_the_silent(times.session_timeout_ms);
                if clock.elapsed(noted) >= NOTED_EVERY {
                    noted = clock.instant();
                    self.note_leaders();
                }
                let is_due = |ms| clock.elapsed(balanced) >= Duration::from_millis(ms);
                if times.rebalance_interval_ms.is_some_and(is_due) {
                    balanced = clock.instant();
                    self.prefer_replicas();
                }
            }
            self.unnoted.end_unless(|| self.controller.decides());
            self.report_lost_replicas(&mut lost);
            self.retry_links();
            sync::sleep(Duration::from_millis(100));
        }
    }

    fn note_cut_off(&self, is_cut_off: bool) {
        if self.is_cut_off.swap(is_cut_off, Ordering::Relaxed) != is_cut_off {
            match is_cut_off {
                true => tracing::warn!(
                    "this node knows of no metadata leader: it may be cut off from the others, and sends clients to them"
                ),
                false => tracing::info!("this node knows of a metadata leader again"),
            }
        }
    }

    /// Sends a heartbeat to the metadata leader, without waiting for the answer. A leader that is paused or cut off does not answer
    /// while its link stays connected, and the next leader would take this node for silent meanwhile.
    fn send_heartbeat(self: &Arc<Self>, leader: i32, broker_epoch: i64) {
        let features = self.controller.view().feature_ranges();
        let ask = Ask::Alive { node: self.own, broker_epoch, features };
        let own = self.clone();
        let then = move |answered| {
            if answered == Answered::Refused(ErrorCode::STALE_BROKER_EPOCH.code()) {
                own.register_again(broker_epoch);
            }
        };
        match leader == self.own {
            true => then(self.ask(leader, &ask)),
            false => self.ask_then(leader, &ask, then),
        }
    }

    /// Registers this node once more, unless it has been done since it had that broker epoch.
    fn register_again(&self, broker_epoch: i64) {
        // Another thread registers it already; a later call sees the new epoch.
        let Some(_one_at_a_time) = self.registering_again.try_lock() else { return };
        let registered = self.registered.lock().clone().filter(|(epoch, _)| *epoch == broker_epoch);
        let Some((_, mut start)) = registered else { return };
        tracing::warn!("the metadata leader does not know this node's registration; it registers again");
        start.unclean_dirs.clear();
        match self.register(&start) {
            Ok(epoch) => self.local.store.dirs.all().for_each(|dir| dir.set_broker_epoch(epoch)),
            Err(error) => tracing::error!("this node is not registered: {error}"),
        }
    }

    fn fence_the_silent(&self, timeout_ms: u64) {
        let now_ms = self.local.clock.mono_ms();
        {
            let mut members = self.members.lock();
            members.look(now_ms);
            members.seen(self.own, now_ms);
        }
        let image = self.controller.image();
        let members = self.members.lock();
        let is_silent = |node: i32| members.is_silent(node, now_ms, timeout_ms);
        let silent = image.brokers().filter(|node| !node.fenced && is_silent(node.id));
        let silent: Vec<_> = silent.map(|node| (node.id, node.epoch)).collect();
        drop((members, image));
        silent.into_iter().for_each(|(node, epoch)| self.set_fenced(node, epoch, true));
    }

    fn note_leaders(&self) {
        let keys = self.unnoted.take(NOTED_MAX);
        let note = |key: &PartitionKey| {
            let Leader { node, epoch, isr } = self.leaders.get(*key)?;
            let (topic_id, partition) = *key;
            Some(LeaderNote { topic_id, partition, leader: node, leader_epoch: epoch, isr })
        };
        let notes: Vec<_> = keys.iter().filter_map(note).collect();
        let controller = &self.controller;
        let note = |machine: &mut MetadataStateMachine| machine.note_leaders(controller.view(), &notes);
        if !notes.is_empty() && controller.commit(note).is_err() {
            self.unnoted.put_back(&keys);
        }
    }

    // Leaders.

    /// Returns the leader of a partition with several replicas, from the replica on this node or else from the table. While the
    /// replica looks for a leader, the leader before (perhaps this node) does not count. So a node that is cut off names no
    /// leader, and clients ask other nodes.
    pub(crate) fn leader_of(&self, key: PartitionKey, partition: Option<&Partition>) -> Option<Leader> {
        let known = self.leaders.get(key);
        let led = partition.map(|partition| partition.leadership());
        if let Some(led) = led.filter(|led| led.is_searching) {
            return known.filter(|known| known.epoch > led.epoch);
        }
        match (led.filter(|led| led.leader.is_some()), known) {
            (Some(led), known) if known.as_ref().is_none_or(|known| known.epoch <= led.epoch) => {
                let node = led.leader?;
                let isr = known.map(|known| known.isr).unwrap_or_default();
                Some(Leader { node, epoch: led.epoch, isr })
            }
            (_, known) => known,
        }
    }

    /// Returns the leader of any partition. A partition with a single replica is led by the node of that replica.
    pub fn leader_of_partition(&self, topic: Uuid, index: i32, partition: &Partition) -> Option<Leader> {
        let image = self.controller.image();
        let known = usize::try_from(index).ok();
        let known =
            image.topic_by_id(topic).zip(known).and_then(|(topic, index)| topic.partitions.get(index))?;
        match known.replicas.as_slice() {
            [only] if !known.has_group() => {
                let epoch = LeaderEpoch::new(known.leader_epoch);
                Some(Leader { node: *only, epoch, isr: vec![*only] })
            }
            _ => {
                drop(image);
                self.leader_of((topic, index), Some(partition))
            }
        }
    }

    /// Returns true if this node has known no metadata leader for longer than an election takes, so that what it knows of
    /// others may be outdated.
    pub fn is_cut_off(&self) -> bool {
        self.is_cut_off.load(Ordering::Relaxed)
    }

    /// Returns true if a node can be reached from this one.
    pub fn is_reachable(&self, node: i32) -> bool {
        node == self.own || self.links.connected().contains(&node)
    }

    /// Milliseconds since something came over a link of a node; 0 of this one, and none where nothing has since the start.
    pub fn silent_ms(&self, node: i32, now_ms: u64) -> Option<u64> {
        match node == self.own {
            true => Some(0),
            false => self.links.last_heard_ms(node).map(|ms| now_ms.saturating_sub(ms)),
        }
    }

    /// Another node says that it leads partitions.
    fn note_led(&self, from: i32, led: &[Led]) {
        for note in led.iter().map(|led| led.note(from)) {
            if self.leaders.note(&note) {
                self.unnoted.insert((note.topic_id, note.partition));
            }
        }
    }
}

impl MetadataEvents for Cluster {
    fn controllers_changed(&self) {
        self.follow_nodes();
    }

    /// Nodes that are silent when this one decides have been silent for long.
    fn begins_to_decide(&self) {
        self.members.lock().begin(self.local.clock.mono_ms());
    }

    /// This node notes who leads partitions.
    fn decides(&self) {
        self.unnoted.begin(&self.leaders);
    }

    /// Sets the number of partitions of the topics' coordinators, and has the roles checked that their replicas have got
    /// meanwhile.
    fn topics_served(&self, topics: &[Arc<Topic>]) {
        for topic in topics {
            coordinators::set_partition_count(&self.local, &topic.name, topic.partitions.len());
            topic.partitions.iter().for_each(|partition| self.roles.send(partition));
        }
    }

    /// Links keep to the rates that were set for this node and for others.
    fn rates_changed(&self) {
        let (image, replication) = (self.controller.image(), self.local.config().replication.clone());
        let set_for = |name: String| {
            let configs = image.configs(&ConfigResource::new(ResourceKind::Broker, name));
            configs
                .get("follower.replication.throttled.rate")
                .and_then(|text| text.trim().parse::<u64>().ok())
        };
        // A rate in this node's file is for all nodes that have none of their own.
        let own = self.own.to_string();
        let in_file = replication.follower_throttled_rate.filter(|_| set_for(own).is_none());
        let rate_of = |node: i32| set_for(node.to_string()).or_else(|| set_for(String::new())).or(in_file);
        let followers = self.node_ids().into_iter().filter_map(|node| Some((node, rate_of(node)?))).collect();
        if self.links.set_rates(Rates { leader: replication.leader_throttled_rate, followers }) {
            self.local.store.copies.note_rates(self.local.clock.instant());
        }
    }
}

/// Runs a function that may wait, without anything that waits for it.
pub(crate) fn in_own_thread(work: impl FnOnce() + Send + 'static) {
    if let Err(error) = supervised::spawn_apart("cluster-answer", work) {
        tracing::error!("no thread can be made for a question or an answer of another node: {error}");
    }
}

/// Returns true if another attempt may bring another answer: another node may lead the metadata by then, or the disk of the one that does
/// may have free space again.
fn is_transient(error: ErrorCode) -> bool {
    matches!(error, ErrorCode::NOT_CONTROLLER | ErrorCode::REQUEST_TIMED_OUT | ErrorCode::KAFKA_STORAGE_ERROR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_leaves_and_one_that_comes_back_count_once_each() {
        let led = LedCounters::default();
        let counts = || (led.isr_shrinks.load(Ordering::Relaxed), led.isr_expands.load(Ordering::Relaxed));
        led.in_sync(&[], &[1, 2, 3]);
        assert_eq!(counts(), (0, 0), "it leads from now on");
        led.in_sync(&[1, 2, 3], &[1]);
        assert_eq!(counts(), (1, 0));
        led.in_sync(&[1], &[1, 2]);
        assert_eq!(counts(), (1, 1));
        led.in_sync(&[1, 2], &[1, 3]);
        assert_eq!(counts(), (2, 2));
    }
}
