//! This node among others: what it asks of them and answers, who leads which partition, and who is there.
//!
//! Threads: `cluster-roles` (roles of this node's replicas: coordinators are loaded and given up, leaders made known) and
//! `cluster-members` (signs of life, fencing). Without other nodes nothing of this is there.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mainstem_config::Quorum;
use mainstem_controller::{LeaderNote, MetadataStateMachine, NodeStart};
use mainstem_records::LeaderEpoch;
use mainstem_replication::Role;
use mainstem_wire::{ErrorCode, Uuid};
use parking_lot::Mutex;

use crate::broker::Broker;
use crate::coordinators;
use mainstem_links::{CallError, CallKind, Links};
use mainstem_runtime::clock::{Clock, machine_now};
use mainstem_runtime::supervised::{self, Role as ThreadRole};
use mainstem_runtime::worker::Worker;
use mainstem_store::partition::{Partition, ReplicaEvents};
use mainstem_store::topics::Topic;

pub(crate) mod answers;
mod asking;
pub(crate) mod calls;
mod clocks;
pub(crate) mod current_leader;
pub(crate) mod elections;
pub(crate) mod forward;
pub(crate) mod founding;
pub(crate) mod leaders;
mod members;
mod out_of_sync;
mod registration;

use calls::{Answered, Ask, Led, encode};
use clocks::{Clocks, Reading};
use leaders::{Leader, LeaderTable, PartitionKey, Unnoted};
use members::{LeaderlessLooks, Members, SignsOfLife};

/// A small question, as JSON.
pub(crate) const ASK: CallKind = CallKind(2);
/// A client's request for the metadata leader.
pub(crate) const FORWARD: CallKind = CallKind(3);
/// A range of a snapshot of the metadata.
pub(crate) const SNAPSHOT: CallKind = CallKind(4);
/// The time that a node's clock shows: milliseconds since 1970, as a big-endian i64. Nodes of earlier releases refuse it.
pub(crate) const CLOCK: CallKind = CallKind(5);

/// How long the metadata leader is looked for before a client gets the answer that there is none.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// How long one node may take to answer.
const ANSWER_TIME: Duration = Duration::from_secs(12);
/// Between two attempts.
const RETRY: Duration = Duration::from_millis(50);
/// How often leaders look at who is in sync.
const IN_SYNC_EVERY: Duration = Duration::from_millis(500);
/// How often all nodes get the whole table again.
const REFRESH_EVERY: Duration = Duration::from_secs(30);
/// How soon a leader is looked at again whose first entry is not committed yet.
const SETTLE_EVERY: Duration = Duration::from_millis(10);
/// How long a node that stops tries to hand over what it leads.
const HAND_OVER_TIME: Duration = Duration::from_secs(5);
/// Partitions that are handed over at the same time.
const HANDED_OVER_MAX: usize = 25;
/// How often it is looked whether they are.
const HAND_OVER_EVERY: Duration = Duration::from_millis(10);
/// How often the metadata note who leads.
const NOTED_EVERY: Duration = Duration::from_secs(1);
/// Leaders that one record batch notes.
const NOTED_MAX: usize = 1_000;

/// This node among others.
pub(crate) struct Cluster {
    own: i32,
    /// All nodes.
    pub(crate) quorum: Quorum,
    /// The directories of their metadata logs, by node.
    pub(crate) directories: BTreeMap<i32, Uuid>,
    /// The connections to them.
    pub(crate) links: Arc<Links>,
    /// Who leads what.
    pub(crate) leaders: LeaderTable,
    /// The epoch of this node's registration, and what it says.
    registered: Mutex<Option<(i64, NodeStart)>>,
    members: Mutex<Members>,
    /// Held while this node registers again, since the metadata leader did not know its registration.
    registering_again: Mutex<()>,
    /// See [`Self::is_cut_off`].
    is_cut_off: AtomicBool,
    roles: Arc<RoleNews>,
    news: Mutex<Option<mpsc::Receiver<News>>>,
    unnoted: Unnoted,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Loads coordinators, which takes as long as their partitions are.
    loading: Worker,
    /// Tells the metadata leader what nothing here waits for.
    reporting: Worker,
    /// Those who wait until this node knows what the metadata leader knows.
    catching_up: Mutex<Vec<OnCurrent>>,
    /// What has happened to the partitions that this node leads.
    pub(crate) led: LedCounters,
    /// The differences between their clocks and this node's.
    pub(crate) clocks: Arc<Clocks>,
}

/// What has happened to the partitions that this node leads or led, since its start.
#[derive(Debug, Default)]
pub(crate) struct LedCounters {
    /// Replicas were found out of sync, once for each look at a partition that found any.
    pub(crate) isr_shrinks: AtomicU64,
    /// Replicas were found in sync again, likewise.
    pub(crate) isr_expands: AtomicU64,
    /// This node was elected.
    pub(crate) elections: AtomicU64,
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

enum News {
    Role(Arc<Partition>),
    End,
}

/// Takes the roles of replicas from the threads that drive them.
pub(crate) struct RoleNews(mpsc::Sender<News>);

impl ReplicaEvents for RoleNews {
    fn role_changed(&self, partition: &Arc<Partition>, _role: Role) {
        // Nothing listens at the end.
        let _ = self.0.send(News::Role(partition.clone()));
    }
}

impl Cluster {
    /// This node among others, with nothing known yet.
    pub(crate) fn new(
        own: i32,
        quorum: Quorum,
        directories: BTreeMap<i32, Uuid>,
        links: Arc<Links>,
    ) -> Arc<Cluster> {
        let (sender, news) = mpsc::channel();
        Arc::new(Cluster {
            own,
            quorum,
            directories,
            links,
            leaders: LeaderTable::default(),
            registered: Mutex::default(),
            members: Mutex::default(),
            registering_again: Mutex::default(),
            is_cut_off: AtomicBool::new(false),
            roles: Arc::new(RoleNews(sender)),
            news: Mutex::new(Some(news)),
            unnoted: Unnoted::default(),
            threads: Mutex::default(),
            loading: Worker::new("coordinator-loading"),
            reporting: Worker::new("cluster-reports"),
            catching_up: Mutex::default(),
            led: LedCounters::default(),
            clocks: Arc::default(),
        })
    }

    /// Receives the roles of this node's replicas.
    pub(crate) fn role_events(&self) -> Arc<dyn ReplicaEvents> {
        self.roles.clone()
    }

    /// Begins to follow roles and to give signs of life.
    ///
    /// # Errors
    /// When no thread can be made.
    pub(crate) fn start(self: &Arc<Self>, broker: &Arc<Broker>) -> std::io::Result<()> {
        let news = self.news.lock().take().expect("a cluster is started once");
        let (own, of) = (self.clone(), broker.clone());
        let role = ThreadRole::Vital("leaders would not be made known any more");
        let roles =
            supervised::spawn(&broker.panics, "cluster-roles", role, move || own.follow_roles(&of, &news))?;
        let (own, of) = (self.clone(), broker.clone());
        let role = ThreadRole::Vital("the node would give no sign of life any more");
        let members =
            supervised::spawn(&broker.panics, "cluster-members", role, move || own.follow_members(&of))?;
        self.threads.lock().extend([roles, members]);
        Ok(())
    }

    /// Ends its threads. The links go on.
    pub(crate) fn stop(&self) {
        let _ = self.roles.0.send(News::End);
        for thread in std::mem::take(&mut *self.threads.lock()) {
            let _ = thread.join();
        }
        self.loading.stop();
        self.reporting.stop();
    }

    /// Has other nodes lead what this one leads, and says that it leaves: before it stops, so that clients wait for no
    /// election (`controlled.shutdown.enable`).
    pub(crate) fn hand_over(&self, broker: &Arc<Broker>) {
        let deadline = machine_now() + HAND_OVER_TIME;
        let mut partitions = broker.store.partitions();
        partitions.retain(|partition| partition.is_replicated());
        self.hand_over_all(partitions, deadline);
        // From here it gives no sign of life: the next leader would take it for one that is back.
        let registered = self.registered.lock().take();
        if let Some(((broker_epoch, _), leader)) = registered.zip(broker.controller.leader(self.own)) {
            let ask = Ask::Leaving { node: self.own, broker_epoch };
            match leader == self.own {
                true => self.ask(broker, leader, &ask),
                false => self.ask_while(leader, &ask, || machine_now() < deadline),
            };
        }
        self.hand_over_all(vec![broker.controller.log().clone()], deadline);
    }

    fn hand_over_all(&self, mut partitions: Vec<Arc<Partition>>, deadline: Instant) {
        partitions.retain(|partition| partition.leadership().is_leader);
        while !partitions.is_empty() && machine_now() < deadline {
            let connected = self.links.connected();
            for partition in partitions.iter().take(HANDED_OVER_MAX) {
                let heirs = partition.in_sync();
                if let Some(heir) = heirs.iter().find(|node| connected.contains(node)) {
                    partition.transfer(*heir);
                }
            }
            std::thread::sleep(HAND_OVER_EVERY);
            partitions.retain(|partition| partition.leadership().is_leader);
        }
        if !partitions.is_empty() {
            tracing::warn!(
                partitions = partitions.len(),
                "not handed over: no other replica is in sync in time"
            );
        }
    }

    /// Looks whether this node may stop: the metadata and each partition that has other replicas can go on without it.
    ///
    /// # Errors
    /// Why not, for a person.
    pub(crate) fn may_stop(&self, broker: &Broker) -> Result<(), String> {
        if broker.controller.leader(self.own).is_none() {
            return Err(self.missing_majority());
        }
        let is_there =
            |node: i32| node != self.own && self.is_reachable(node) && !self.links.out_of_sync.has_node(node);
        let others = self.quorum.ids().filter(|id| is_there(*id)).count();
        if !suffice(others, self.quorum.voters.len(), 1) {
            return Err(format!("the metadata have only {others} other nodes that can be reached"));
        }
        let image = broker.controller.image();
        for topic in broker.store.topics.all() {
            let known = image.topic_by_id(topic.id).map_or(&[][..], |known| &known.partitions);
            // Also where this node's own replica is not in use: of those that are, most have to stay.
            let own = topic.partitions.iter().zip(known);
            let own = own.filter(|(_, known)| known.replicas.len() > 1 && known.replicas.contains(&self.own));
            for (partition, known) in own {
                let (name, key) =
                    (format!("{}-{}", topic.name, partition.index), (topic.id, partition.index));
                let Some(leader) = self.leader_of(key, Some(partition)) else {
                    return Err(format!("partition {name} has no leader"));
                };
                let is_in_sync = |node: &&i32| is_there(**node) && self.may_be_in_sync(key, **node);
                let others = leader.isr.iter().filter(is_in_sync).count();
                let wanted = usize::try_from(partition.settings().min_insync_replicas).unwrap_or(1);
                let replicas = known.replicas.len();
                if !suffice(others, replicas, wanted) {
                    return Err(format!("partition {name} has only {others} other replicas in sync"));
                }
            }
        }
        Ok(())
    }

    // Members.

    /// This node decides on the metadata in a moment: who is silent then has been silent for long.
    pub(crate) fn begin_to_lead(&self, now_ms: u64) {
        self.members.lock().begin(now_ms);
    }

    /// This node has begun to decide: it notes who leads partitions.
    pub(crate) fn begin_to_note_leaders(&self) {
        self.unnoted.begin(&self.leaders);
    }

    /// A node has given a sign of life in its epoch. Returns false if it has to register again.
    fn heard(&self, broker: &Arc<Broker>, node: i32, broker_epoch: i64) -> bool {
        let known = broker.controller.image().broker(node).map(|known| (known.epoch, known.fenced));
        let Some((_, is_fenced)) = known.filter(|(epoch, _)| *epoch == broker_epoch) else { return false };
        self.members.lock().heard(node, broker.clock.mono_ms());
        if is_fenced {
            self.set_fenced(broker, node, broker_epoch, false);
        }
        true
    }

    fn left(&self, broker: &Arc<Broker>, node: i32, broker_epoch: i64) {
        self.members.lock().left(node);
        self.set_fenced(broker, node, broker_epoch, true);
    }

    fn set_fenced(&self, broker: &Arc<Broker>, node: i32, broker_epoch: i64, fenced: bool) {
        match broker.controller.commit(|machine| machine.set_fenced(node, broker_epoch, fenced)) {
            Ok(()) if fenced => {
                tracing::warn!(node, "the node is fenced: it gives no sign of life, or stops")
            }
            Ok(()) => tracing::info!(node, "the node takes part again"),
            Err(error) => tracing::warn!(node, "it could not be noted whether the node takes part: {error}"),
        }
    }

    fn follow_members(self: &Arc<Self>, broker: &Arc<Broker>) {
        let clock = &broker.clock;
        let (mut noted, mut balanced) = (clock.instant(), clock.instant());
        let (mut signs, mut alone) = (SignsOfLife::default(), LeaderlessLooks::default());
        while !broker.stopping.is_stopping() {
            let times = broker.config().replication.clone();
            let registered = self.registered.lock().as_ref().map(|(epoch, _)| *epoch);
            let leader = broker.controller.leader(self.own);
            self.note_cut_off(alone.look(leader.is_some()));
            if let Some((epoch, leader)) = registered.zip(leader)
                && signs.is_due(leader, broker.clock.mono_ms(), times.heartbeat_interval_ms)
            {
                self.give_sign_of_life(broker, leader, epoch);
            }
            if broker.controller.decides() {
                self.fence_the_silent(broker, times.session_timeout_ms);
                if clock.elapsed(noted) >= NOTED_EVERY {
                    noted = clock.instant();
                    self.note_leaders(broker);
                }
                let is_due = |ms| clock.elapsed(balanced) >= Duration::from_millis(ms);
                if times.rebalance_interval_ms.is_some_and(is_due) {
                    balanced = clock.instant();
                    elections::prefer(broker, self);
                }
            }
            self.unnoted.end_unless(|| broker.controller.decides());
            std::thread::sleep(Duration::from_millis(100));
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

    /// Gives the metadata leader a sign of life, without waiting for the answer: a leader that is paused or cut off gives none
    /// for as long as its link stands, and the next leader would take this node for silent meanwhile.
    fn give_sign_of_life(self: &Arc<Self>, broker: &Arc<Broker>, leader: i32, broker_epoch: i64) {
        let ask = Ask::Alive { node: self.own, broker_epoch };
        let (own, of) = (self.clone(), broker.clone());
        let then = move |answered| {
            if answered == Answered::Refused(ErrorCode::STALE_BROKER_EPOCH.code()) {
                own.register_again(&of, broker_epoch);
            }
        };
        match leader == self.own {
            true => then(self.ask(broker, leader, &ask)),
            false => self.ask_then(leader, &ask, then),
        }
    }

    /// Registers this node once more, unless it has been done since it had that broker epoch.
    fn register_again(&self, broker: &Arc<Broker>, broker_epoch: i64) {
        // Who comes while it is being made finds the next one later.
        let Some(_one_at_a_time) = self.registering_again.try_lock() else { return };
        let registered = self.registered.lock().clone().filter(|(epoch, _)| *epoch == broker_epoch);
        let Some((_, mut start)) = registered else { return };
        tracing::warn!("the metadata leader does not know this node's registration; it registers again");
        start.unclean_dirs.clear();
        if let Ok(epoch) = self.register(broker, &start) {
            broker.store.dirs.all().for_each(|dir| dir.set_broker_epoch(epoch));
        }
    }

    fn fence_the_silent(&self, broker: &Arc<Broker>, timeout_ms: u64) {
        let now_ms = broker.clock.mono_ms();
        {
            let mut members = self.members.lock();
            members.look(now_ms);
            members.heard(self.own, now_ms);
        }
        let image = broker.controller.image();
        let members = self.members.lock();
        let is_silent = |node: i32| members.is_silent(node, now_ms, timeout_ms);
        let silent = image.brokers().filter(|node| !node.fenced && is_silent(node.id));
        let silent: Vec<_> = silent.map(|node| (node.id, node.epoch)).collect();
        drop((members, image));
        silent.into_iter().for_each(|(node, epoch)| self.set_fenced(broker, node, epoch, true));
    }

    fn note_leaders(&self, broker: &Arc<Broker>) {
        let keys = self.unnoted.take(NOTED_MAX);
        let note = |key: &PartitionKey| {
            let Leader { node, epoch, isr } = self.leaders.get(*key)?;
            let (topic_id, partition) = *key;
            Some(LeaderNote { topic_id, partition, leader: node, leader_epoch: epoch, isr })
        };
        let notes: Vec<_> = keys.iter().filter_map(note).collect();
        let controller = &broker.controller;
        let note = |machine: &mut MetadataStateMachine| machine.note_leaders(controller.view(), &notes);
        if !notes.is_empty() && controller.commit(note).is_err() {
            self.unnoted.put_back(&keys);
        }
    }

    // Leaders.

    /// Who leads a partition with several replicas: the replica here knows it, or the table does. A replica that looks for a
    /// leader knows that the last one is none any more, this node included: a node that is cut off names none, so that
    /// clients ask others.
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

    /// Who leads any partition: one with a single replica is led where that is.
    pub(crate) fn leader_of_partition(
        &self,
        broker: &Broker,
        topic: Uuid,
        index: i32,
        partition: &Partition,
    ) -> Option<Leader> {
        let image = broker.controller.image();
        let known = usize::try_from(index).ok();
        let known =
            image.topic_by_id(topic).zip(known).and_then(|(topic, index)| topic.partitions.get(index))?;
        match known.replicas.as_slice() {
            [only] => {
                let epoch = LeaderEpoch::new(known.leader_epoch);
                Some(Leader { node: *only, epoch, isr: vec![*only] })
            }
            _ => {
                drop(image);
                self.leader_of((topic, index), Some(partition))
            }
        }
    }

    /// Whether this node has known of no metadata leader for longer than an election takes: what it says of others is of the past.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.is_cut_off.load(Ordering::Relaxed)
    }

    /// Whether a node can be reached from here.
    pub(crate) fn is_reachable(&self, node: i32) -> bool {
        node == self.own || self.links.connected().contains(&node)
    }

    /// Milliseconds since something came over a link of a node; 0 of this one, and none where nothing has since the start.
    pub(crate) fn silent_ms(&self, node: i32, now_ms: u64) -> Option<u64> {
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

    /// Topics are served from now on: their coordinators know how many partitions there are, and whatever role their
    /// replicas have got meanwhile is looked at.
    pub(crate) fn topics_served(&self, broker: &Arc<Broker>, topics: &[Arc<Topic>]) {
        for topic in topics {
            coordinators::set_partition_count(broker, &topic.name, topic.partitions.len());
            for partition in &topic.partitions {
                let _ = self.roles.0.send(News::Role(partition.clone()));
            }
        }
    }

    fn follow_roles(self: &Arc<Self>, broker: &Arc<Broker>, news: &mpsc::Receiver<News>) {
        let mut state = Roles::new(broker.clock.instant());
        let mut looked = broker.clock.instant();
        loop {
            let pause = if state.unsettled.is_empty() { IN_SYNC_EVERY } else { SETTLE_EVERY };
            let mut changed: HashMap<(Arc<str>, i32), Arc<Partition>> = HashMap::new();
            match news.recv_timeout(pause) {
                Ok(News::Role(partition)) => _ = changed.insert(key_of(&partition), partition),
                Ok(News::End) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            // A node that is gone changes the roles of many at once.
            while let Ok(more) = news.try_recv() {
                match more {
                    News::Role(partition) => _ = changed.insert(key_of(&partition), partition),
                    News::End => return,
                }
            }
            changed.extend(std::mem::take(&mut state.unsettled));
            for (key, partition) in changed {
                self.follow_role(broker, &mut state, key, partition);
            }
            if broker.clock.elapsed(looked) >= IN_SYNC_EVERY {
                looked = broker.clock.instant();
                self.look_at_followers(broker, &mut state);
            }
            self.make_known(&mut state, broker.clock.instant());
            if state.clocks_asked.is_none_or(|asked| broker.clock.elapsed(asked) >= clocks::ASKED_EVERY) {
                state.clocks_asked = Some(broker.clock.instant());
                self.ask_clocks(&broker.clock);
            }
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

    fn follow_role(
        &self,
        broker: &Arc<Broker>,
        state: &mut Roles,
        key: (Arc<str>, i32),
        partition: Arc<Partition>,
    ) {
        let Some(topic) = broker.store.topics.by_name(&partition.topic) else { return };
        if !topic.partition(partition.index).is_some_and(|served| Arc::ptr_eq(served, &partition)) {
            // It is served in a moment, and looked at then; or was deleted.
            return;
        }
        let leadership = partition.leadership();
        let id = (topic.id, partition.index);
        let is_alone = !partition.is_replicated();
        if is_alone && !coordinators::is_coordinators(&partition.topic) {
            return;
        }
        if !leadership.is_leader {
            if state.led.remove(&id).is_some() {
                self.give_up_coordination(broker, &partition);
            }
            return;
        }
        if !leadership.is_settled {
            state.unsettled.insert(key, partition);
            return;
        }
        let is_new = state.led.get(&id).is_none_or(|led| led.epoch != leadership.epoch);
        if is_new {
            self.led.elections.fetch_add(u64::from(!is_alone), Ordering::Relaxed);
            let led = LedHere { partition: partition.clone(), epoch: leadership.epoch, isr: Vec::new() };
            if state.led.insert(id, led).is_some() {
                self.give_up_coordination(broker, &partition);
            }
            self.take_coordination(broker, &partition);
            self.look_at(state, id);
        }
    }

    fn take_coordination(&self, broker: &Arc<Broker>, partition: &Arc<Partition>) {
        if coordinators::is_coordinators(&partition.topic) {
            let (own, partition) = (broker.clone(), partition.clone());
            self.loading.run(Box::new(move || coordinators::load_one(&own, &partition)));
        }
    }

    fn give_up_coordination(&self, broker: &Arc<Broker>, partition: &Arc<Partition>) {
        if coordinators::is_coordinators(&partition.topic) {
            let (own, partition) = (broker.clone(), partition.clone());
            self.loading.run(Box::new(move || {
                let topic = partition.topic.clone();
                coordinators::unload(&own, &topic, &[partition]);
            }));
        }
    }

    fn look_at_followers(&self, broker: &Arc<Broker>, state: &mut Roles) {
        let is_served = |id: &Uuid| broker.store.topics.by_id(id).is_some();
        state.led.retain(|(topic, _), _| is_served(topic));
        self.look_at_nodes(broker);
        self.tell_out_of_sync(broker, &mut state.said);
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
            // What was said last may have been heard before what was said first.
            state.refreshed = now;
            state.told.lock().clear();
            state.said.say_again();
        }
        state.told.lock().retain(|node| connected.contains(node));
        for node in connected {
            let is_told = !state.told.lock().insert(node);
            let said = match is_told {
                true => new.clone(),
                false => state.led.iter().map(|(id, led)| Led::of(&led.note(*id, self.own))).collect(),
            };
            if said.is_empty() {
                continue;
            }
            let told = state.told.clone();
            // One that has just started may not listen yet: it gets the whole table again.
            let on_answer = move |answer: Result<Vec<u8>, _>| {
                if answer.is_err() {
                    told.lock().remove(&node);
                }
            };
            self.links.call_then(node, ASK, encode(&Ask::Leaders(said)), Box::new(on_answer));
        }
    }
}

/// Whether so many replicas of a partition can go on by themselves: a majority elects and commits, and acks=all may want
/// more (`min.insync.replicas`).
fn suffice(live: usize, replicas: usize, min_insync: usize) -> bool {
    live > replicas / 2 && live >= min_insync
}

fn key_of(partition: &Partition) -> (Arc<str>, i32) {
    (partition.topic.clone(), partition.index)
}

/// Whether another attempt may bring another answer.
fn is_transient(error: ErrorCode) -> bool {
    matches!(error, ErrorCode::NOT_CONTROLLER | ErrorCode::REQUEST_TIMED_OUT)
}

/// What `cluster-roles` knows.
struct Roles {
    /// Partitions that this node leads, and can say where they end.
    led: BTreeMap<PartitionKey, LedHere>,
    /// Those that it leads and cannot yet.
    unsettled: HashMap<(Arc<str>, i32), Arc<Partition>>,
    /// What the other nodes are to be told.
    news: Vec<Led>,
    /// The nodes that were told everything.
    told: Arc<Mutex<BTreeSet<i32>>>,
    /// When all were told everything again.
    refreshed: Instant,
    /// The statement about this node's own replicas that they were told.
    said: out_of_sync::Said,
    /// When other nodes were asked for the time, if they were.
    clocks_asked: Option<Instant>,
}

impl Roles {
    fn new(now: Instant) -> Roles {
        Roles {
            led: BTreeMap::new(),
            unsettled: HashMap::new(),
            news: Vec::new(),
            told: Arc::default(),
            refreshed: now,
            said: out_of_sync::Said::default(),
            clocks_asked: None,
        }
    }
}

struct LedHere {
    partition: Arc<Partition>,
    epoch: LeaderEpoch,
    isr: Vec<i32>,
}

impl LedHere {
    fn note(&self, (topic_id, partition): PartitionKey, own: i32) -> LeaderNote {
        LeaderNote { topic_id, partition, leader: own, leader_epoch: self.epoch, isr: self.isr.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_goes_on_if_acks_all_wants_no_more() {
        for (live, replicas, min_insync, expected) in [
            (2, 3, 1, true),
            (2, 3, 2, true),
            (2, 3, 3, false),
            (1, 3, 1, false),
            (1, 2, 1, false),
            (2, 4, 1, false),
            (3, 5, 2, true),
            (2, 5, 1, false),
        ] {
            assert_eq!(suffice(live, replicas, min_insync), expected, "{live} of {replicas}, {min_insync}");
        }
    }

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
