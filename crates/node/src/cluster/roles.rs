//! The roles of this node's replicas: coordinators are loaded and unloaded, leaders made known to the other nodes. One thread,
//! `cluster-roles`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mainstem_controller::LeaderNote;
use mainstem_links::CallError;
use mainstem_records::LeaderEpoch;
use mainstem_replication::Role;
use mainstem_replication::snapshots::SnapshotOffer;
use mainstem_runtime::clock::Clock;
use mainstem_runtime::sync::{self, RecvTimeoutError};
use mainstem_store::partition::{Partition, ReplicaEvents, RoleChange};
use mainstem_store::topics::Topic;
use mainstem_wire::Uuid;
use parking_lot::Mutex;

use super::calls::{Ask, Led, encode};
use super::clocks::{self, Reading};
use super::leaders::PartitionKey;
use super::{ASK, CLOCK, Cluster, out_of_sync, settled};
use crate::coordinators;

/// Interval at which leaders check which replicas are in sync.
const IN_SYNC_EVERY: Duration = Duration::from_millis(500);
/// Interval at which all nodes get the whole table of leaders again.
const REFRESH_EVERY: Duration = Duration::from_secs(30);
/// Interval of the checks of a new leader until its first entry is committed.
const SETTLE_EVERY: Duration = Duration::from_millis(10);

enum News {
    Role(Arc<Partition>),
    /// This node leads, and another replica needs entries that are not here any more.
    Behind(Arc<Partition>),
    /// The leader offers a copy of its log.
    Offered(Arc<Partition>, SnapshotOffer),
    End,
}

/// Takes the roles of replicas from the threads that drive them.
pub struct RoleNews(sync::Sender<News>);

/// The other end of a [`RoleNews`].
pub struct RoleReceiver(sync::Receiver<News>);

impl RoleNews {
    /// Both ends. The first is a store's receiver of events; a cluster gets both.
    pub fn channel() -> (Arc<RoleNews>, RoleReceiver) {
        let (sender, receiver) = sync::channel();
        (Arc::new(RoleNews(sender)), RoleReceiver(receiver))
    }

    /// Has the thread check a partition's role.
    pub(super) fn send(&self, partition: &Arc<Partition>) {
        // Nothing listens at the end.
        let _ = self.0.send(News::Role(partition.clone()));
    }

    /// Ends the receiver.
    pub(super) fn end(&self) {
        let _ = self.0.send(News::End);
    }
}

impl ReplicaEvents for RoleNews {
    fn role_changed(&self, partition: &Arc<Partition>, _role: Role) {
        self.send(partition);
    }

    fn behind(&self, partition: &Arc<Partition>) {
        // Nothing listens at the end.
        let _ = self.0.send(News::Behind(partition.clone()));
    }

    fn offered(&self, partition: &Arc<Partition>, offer: SnapshotOffer) {
        let _ = self.0.send(News::Offered(partition.clone(), offer));
    }
}

/// State of the thread `cluster-roles`.
struct Roles {
    /// Partitions that this node leads, and can say where they end.
    led: BTreeMap<PartitionKey, LedHere>,
    /// Those that it leads and cannot yet.
    unsettled: BTreeMap<(Arc<str>, i32), Arc<Partition>>,
    /// Changes of leaders that are to be sent to the other nodes.
    news: Vec<Led>,
    /// Nodes that have got the whole table.
    notified: Arc<Mutex<BTreeSet<i32>>>,
    /// Time when all nodes were sent the whole table last.
    refreshed: Instant,
    /// Report on this node's own replicas, as sent to the other nodes.
    said: out_of_sync::Said,
    /// The last reports of groups that have the members that are wanted.
    settled: settled::Reports,
    /// When other nodes were asked for the time, if they were.
    clocks_asked: Option<Instant>,
}

impl Roles {
    fn new(now: Instant) -> Roles {
        Roles {
            led: BTreeMap::new(),
            unsettled: BTreeMap::new(),
            news: Vec::new(),
            notified: Arc::default(),
            refreshed: now,
            said: out_of_sync::Said::default(),
            settled: settled::Reports::default(),
            clocks_asked: None,
        }
    }
}

pub(super) struct LedHere {
    pub(super) partition: Arc<Partition>,
    pub(super) epoch: LeaderEpoch,
    isr: Vec<i32>,
}

impl LedHere {
    fn note(&self, (topic_id, partition): PartitionKey, own: i32) -> LeaderNote {
        LeaderNote { topic_id, partition, leader: own, leader_epoch: self.epoch, isr: self.isr.clone() }
    }
}

impl Cluster {
    /// Follows roles until the end.
    pub(super) fn follow_roles(self: &Arc<Self>, RoleReceiver(news): &RoleReceiver) {
        let mut state = Roles::new(self.local.clock.instant());
        let mut looked = self.local.clock.instant();
        loop {
            let pause = if state.unsettled.is_empty() { IN_SYNC_EVERY } else { SETTLE_EVERY };
            let mut changed: BTreeMap<(Arc<str>, i32), Arc<Partition>> = BTreeMap::new();
            let mut next = match news.recv_timeout(pause) {
                Ok(first) => Some(first),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => None,
            };
            // A node that is gone changes the roles of many at once.
            while let Some(news_of) = next {
                match news_of {
                    News::Role(partition) => _ = changed.insert(key_of(&partition), partition),
                    News::Behind(partition) => self.local.store.copies.offer(&self.local.store, &partition),
                    News::Offered(partition, offer) => {
                        self.local.store.copies.offered(&self.local.store, &partition, offer);
                    }
                    News::End => return,
                }
                next = news.try_recv().ok();
            }
            changed.extend(std::mem::take(&mut state.unsettled));
            for (key, partition) in changed {
                self.follow_role(&mut state, key, partition);
            }
            if self.local.clock.elapsed(looked) >= IN_SYNC_EVERY {
                looked = self.local.clock.instant();
                self.look_at_followers(&mut state);
            }
            self.make_known(&mut state, self.local.clock.instant());
            if state.clocks_asked.is_none_or(|asked| self.local.clock.elapsed(asked) >= clocks::ASKED_EVERY) {
                state.clocks_asked = Some(self.local.clock.instant());
                self.ask_clocks(&self.local.clock);
            }
        }
    }

    fn follow_role(&self, state: &mut Roles, key: (Arc<str>, i32), partition: Arc<Partition>) {
        let Some(topic) = self.local.store.topics.by_name(&partition.topic) else { return };
        if !topic.partition(partition.index).is_some_and(|served| Arc::ptr_eq(served, &partition)) {
            // It is served in a moment, and checked then; or it was deleted.
            return;
        }
        let id = (topic.id, partition.index);
        let is_alone = !partition.is_replicated();
        if is_alone && !coordinators::is_coordinators(&partition.topic) {
            return;
        }
        match partition.leadership().change_from(state.led.get(&id).map(|led| led.epoch)) {
            RoleChange::None => {}
            RoleChange::Unsettled => _ = state.unsettled.insert(key, partition),
            RoleChange::Lost => {
                state.led.remove(&id);
                self.give_up_coordination(&partition);
            }
            RoleChange::Gained { epoch, had_before } => {
                self.led.elections.fetch_add(u64::from(!is_alone), Ordering::Relaxed);
                self.local.store.members.look_after(&self.local.store, &partition);
                state.led.insert(id, LedHere { partition: partition.clone(), epoch, isr: Vec::new() });
                if had_before {
                    self.give_up_coordination(&partition);
                }
                self.take_coordination(&topic, &partition);
                self.look_at(state, id);
            }
        }
    }

    fn take_coordination(&self, topic: &Topic, partition: &Arc<Partition>) {
        // The thread that serves a new topic may not have said it yet.
        coordinators::set_partition_count(&self.local, &topic.name, topic.partitions.len());
        coordinators::take_over(&self.local, partition);
    }

    fn give_up_coordination(&self, partition: &Arc<Partition>) {
        coordinators::unload(&self.local, &partition.topic, std::slice::from_ref(partition));
    }

    fn look_at_followers(self: &Arc<Self>, state: &mut Roles) {
        let is_served = |id: &Uuid| self.local.store.topics.by_id(id).is_some();
        state.led.retain(|(topic, _), led| is_served(topic) && !led.partition.is_elsewhere());
        self.report_new_members(&mut state.settled, &state.led);
        self.look_at_nodes();
        self.tell_out_of_sync(&mut state.said);
        self.leaders.retain(is_served);
        self.unnoted.retain(is_served);
        let ids: Vec<_> = state.led.keys().copied().collect();
        ids.into_iter().for_each(|id| self.look_at(state, id));
    }

    /// Looks at who is in sync in a partition that this node leads.
    fn look_at(&self, state: &mut Roles, id: PartitionKey) {
        let Some(led) = state.led.get_mut(&id) else { return };
        let isr = led.partition.in_sync();
        if isr.is_empty() || (isr == led.isr) {
            return;
        }
        self.led.in_sync(&led.isr, &isr);
        led.isr = isr;
        let note = led.note(id, self.own);
        if self.leaders.note(&note) {
            self.unnoted.insert(id);
            state.news.push(Led::of(&note));
        }
    }

    /// Tells the other nodes what this one leads: what is new, and all of it to those that were not there.
    fn make_known(&self, state: &mut Roles, now: Instant) {
        let connected: BTreeSet<i32> = self.links.connected().into_iter().collect();
        let new = std::mem::take(&mut state.news);
        if now.saturating_duration_since(state.refreshed) >= REFRESH_EVERY {
            // Reports may have arrived in another order than they were sent.
            state.refreshed = now;
            state.notified.lock().clear();
            state.said.say_again();
        }
        state.notified.lock().retain(|node| connected.contains(node));
        for node in connected {
            let is_notified = !state.notified.lock().insert(node);
            let said = match is_notified {
                true => new.clone(),
                false => state.led.iter().map(|(id, led)| Led::of(&led.note(*id, self.own))).collect(),
            };
            if said.is_empty() {
                continue;
            }
            let notified = state.notified.clone();
            // One that has just started may not listen yet: it gets the whole table again.
            let on_answer = move |answer: Result<Vec<u8>, _>| {
                if answer.is_err() {
                    notified.lock().remove(&node);
                }
            };
            self.links.call_then(node, ASK, encode(&Ask::Leaders(said)), Box::new(on_answer));
        }
    }

    /// Asks the other nodes for the time.
    fn ask_clocks(&self, clock: &Clock) {
        for node in self.links.connected() {
            let (clocks, clock, asked_ms) = (self.clocks.clone(), clock.clone(), clock.wall_ms());
            let on_answer = move |answer: Result<Vec<u8>, CallError>| {
                let shown = answer.ok().and_then(|bytes| Some(i64::from_be_bytes(bytes.try_into().ok()?)));
                if let Some(shown_ms) = shown {
                    clocks.note(node, Reading { asked_ms, shown_ms, answered_ms: clock.wall_ms() });
                }
            };
            self.links.call_then(node, CLOCK, Vec::new(), Box::new(on_answer));
        }
    }
}

fn key_of(partition: &Partition) -> (Arc<str>, i32) {
    (partition.topic.clone(), partition.index)
}
