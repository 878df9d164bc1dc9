//! A world: nodes with replicas of partitions, one thread at a time, with virtual clock, network and disks, producers, consumers and faults.
//!
//! All randomness comes from a seed, so that equal seeds give equal histories. A run has faults for most of its time. Then all nodes
//! come back: the groups have to acknowledge records again, and all replicas have to become equal. The verdict is that of
//! [`mainstem_replication::history::check`].

use crate::clients::{At, Consumer, Producer};
use crate::deletions::{Deletions, has_deletions};
use crate::faults::{FaultKind, FaultKinds};
use crate::knowledge::Forgotten;
use crate::links::Links;
use crate::node::{Node, NodeOptions, act_for};
use mainstem_log::PartitionIdentity;
use mainstem_log::sim::Random;
use mainstem_node::node::Node as BrokerNode;
use mainstem_replication::history::{Event, Operation, Outcome, Violation, check};
use mainstem_replication::{Lost, ReplicaId};
use mainstem_runtime::schedule::{Group, Schedule};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Virtual time between two turns of the world.
pub(crate) const TURN_MS: u64 = 5;
/// Longest delay of a message without faults, in ms.
pub(crate) const QUIET_DELAY_MS: u64 = 5;
/// Longest duration of a sync without faults, in ms.
pub(crate) const QUIET_SYNC_MS: u64 = 10;
/// Error of a follower that ends a link because its batches differ from the announced ones.
const BATCHES: &str = "the batches of an append are not those of its entries";
/// Percent of the runs with `write.caching`. It is rare: records without a sync do not survive a power cut.
const CACHING_PERCENT: u64 = 15;
/// Turns between two checks of a node: a violated invariant mostly stays violated.
const CHECK_TURNS: u64 = 4;
/// Percent of the thread turns after which all other threads wait until the next turn of the world.
const LATE_PERCENT: u64 = 1;
/// Virtual time after the faults until all replicas agree, at most, in ms.
const SETTLE_MS: u64 = 20_000;

/// Options of a run with one partition.
#[derive(Debug, Clone, Copy)]
pub struct SimulationOptions {
    /// Nodes, each with a replica.
    pub nodes: usize,
    /// Virtual time with faults, in ms.
    pub time_ms: u64,
    /// Kinds of faults that may happen.
    pub faults: FaultKinds,
    /// Acknowledges appends before they are committed: a mistake that the checker has to find.
    pub acknowledge_early: bool,
}

impl Default for SimulationOptions {
    fn default() -> Self {
        SimulationOptions { nodes: 3, time_ms: 20_000, faults: FaultKinds::ALL, acknowledge_early: false }
    }
}

/// Result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The seed.
    pub seed: u64,
    /// All events.
    pub history: Vec<Event>,
    /// Events that contradict a durable log.
    pub violations: Vec<Violation>,
    /// Acknowledged appends.
    pub acknowledged: usize,
    /// Faults by name, and how often each happened.
    pub faults: BTreeMap<&'static str, usize>,
    /// Number of actions of clients and coordinators, by their names; in a run with one partition only deletions.
    pub done: BTreeMap<&'static str, usize>,
    /// Time from the end of the faults until all clients were served again, in ms of virtual time; `None`: some client was not.
    pub resumed_after_ms: Option<u64>,
    /// True if all replicas of each partition had the same log in the end.
    pub agreed: bool,
    /// True with `write.caching`: after a power cut of all nodes, elections wait for the end of the vote hold.
    pub write_caching: bool,
}

impl Verdict {
    /// Returns true if there were no violations, and all clients and replicas recovered.
    pub fn is_good(&self) -> bool {
        self.violations.is_empty() && self.agreed && self.resumed_after_ms.is_some()
    }
}

/// A parcel on its way.
pub(crate) struct Packet {
    pub(crate) from: usize,
    to: usize,
    /// [`Led::changes`] of its sender when it was sent.
    led: u64,
    pub(crate) parcel: Parcel,
}

/// Leaderships of a node, as they were last looked at.
#[derive(Default)]
struct Led {
    /// Terms in which it leads, by partition.
    terms: Vec<Option<u64>>,
    /// Number of changes of them.
    changes: u64,
    /// Time of the last change.
    changed_at_ms: u64,
}

/// A message between nodes.
pub(crate) enum Parcel {
    /// Bytes of a link.
    Bytes(Vec<u8>),
    /// Bytes of answers, on the way back to the node that has dialled.
    Answers(Vec<u8>),
}

/// Nodes, network, clients and history of a run.
pub(crate) struct World {
    pub(crate) now_ms: u64,
    pub(crate) random: Random,
    pub(crate) nodes: Vec<Node>,
    /// Number of partitions. Producers and consumers use the first ones.
    partitions: usize,
    data_partitions: usize,
    /// Packets by arrival time, and a number that keeps their order.
    pub(crate) packets: BTreeMap<(u64, u64), Packet>,
    sent: u64,
    links: Links,
    /// Leaderships by node.
    led: Vec<Led>,
    /// Arrival time of the last message of each pair, since a link keeps the order.
    last_arrival: BTreeMap<(usize, usize), u64>,
    /// Pairs of nodes; messages from the first to the second are dropped.
    pub(crate) cut: BTreeSet<(usize, usize)>,
    pub(crate) delay_max_ms: u64,
    pub(crate) sync_max_ms: u64,
    /// The faults that may be drawn.
    pub(crate) kinds: FaultKinds,
    pub(crate) producers: Vec<Producer>,
    pub(crate) consumers: Vec<Consumer>,
    pub(crate) history: Vec<Event>,
    pub(crate) faults: BTreeMap<&'static str, usize>,
    pub(crate) min_insync: usize,
    pub(crate) acknowledge_early: bool,
    pub(crate) next_value: u64,
    /// Clients that delete records, if there are any.
    pub(crate) deletions: Option<Deletions>,
    /// The next copy of a partition is interrupted.
    pub(crate) interrupts_copy: bool,
    /// The members of a group are to change because of this fault at a node.
    pub(crate) member_fault: Option<(FaultKind, usize)>,
    /// A partition is not on all nodes, in a cluster with `write.caching`.
    pub(crate) moves_replicas: bool,
    /// Records whose commit no node knows any more, in a world with one partition.
    pub(crate) forgotten: Forgotten,
    /// Somebody has asked to raise the level of `mainstem.version`, and it may have been raised.
    pub(crate) is_finalising: bool,
    /// Schedule of the threads of whole nodes.
    pub(crate) schedule: Option<Schedule>,
}

/// Runs one seed with one partition.
pub fn simulate(seed: u64, options: SimulationOptions) -> Verdict {
    let mut world = World::new(seed, options);
    if has_deletions(seed) && !options.acknowledge_early {
        world.begin_deletions(seed, options.time_ms, false);
    }
    run(world, seed, options)
}

/// Runs a world of one partition to its end.
pub(crate) fn run(mut world: World, seed: u64, options: SimulationOptions) -> Verdict {
    let mut next_fault_ms = 2_000;
    while world.now_ms < options.time_ms {
        if !options.faults.is_empty() && world.now_ms >= next_fault_ms {
            world.inject();
            next_fault_ms = world.now_ms + 100 + world.random.below(2_500);
        }
        world.turn();
    }
    world.heal();
    let healed_ms = world.now_ms;
    let healed = world.history.len();
    let mut resumed_after_ms = None;
    while world.now_ms < healed_ms + SETTLE_MS {
        world.turn();
        if resumed_after_ms.is_none() && world.acknowledged_since(healed).next().is_some() {
            resumed_after_ms = Some(world.now_ms - healed_ms);
            world.producers.iter_mut().for_each(Producer::stop);
        }
        if resumed_after_ms.is_some() && world.agrees() {
            world.finish_deletions();
            break;
        }
    }
    world.finish(seed, resumed_after_ms)
}

/// Returns true if the nodes in a run of this seed have `write.caching`.
#[cfg(test)]
pub(crate) fn has_caching(seed: u64) -> bool {
    Random::new(seed).chance(CACHING_PERCENT)
}

/// The partition of a run with one partition.
fn one_partition() -> Vec<PartitionIdentity> {
    vec![PartitionIdentity { topic: "t".into(), topic_id: [7; 16], partition: 0 }]
}

impl World {
    pub(crate) fn new(seed: u64, options: SimulationOptions) -> World {
        World::with_partitions(seed, options, one_partition(), 1)
    }

    /// Creates a world with these partitions. Clients write to the first ones.
    pub(crate) fn with_partitions(
        seed: u64,
        options: SimulationOptions,
        partitions: Vec<PartitionIdentity>,
        data_partitions: usize,
    ) -> World {
        World::with_schedule(seed, options, (partitions, data_partitions), None)
    }

    /// The same with whole nodes, if there is a schedule for their threads. They start with [`World::start_nodes`].
    pub(crate) fn with_schedule(
        seed: u64,
        options: SimulationOptions,
        (partitions, data_partitions): (Vec<PartitionIdentity>, usize),
        schedule: Option<Schedule>,
    ) -> World {
        let mut random = Random::new(seed);
        let write_caching = random.chance(CACHING_PERCENT);
        let ids: Vec<_> = (0..options.nodes).map(|node| ReplicaId::new(node as i32 + 1, 1)).collect();
        let count = partitions.len();
        let log_append_time = options.faults.has_clocks();
        let partitions: Arc<[PartitionIdentity]> = partitions.into();
        let found = |id: &ReplicaId| {
            let (id, partitions, seed) = (*id, partitions.clone(), random.next_u64());
            let schedule = schedule.clone();
            let options = NodeOptions { id, partitions, write_caching, log_append_time, seed, schedule };
            Node::found(options, &ids)
        };
        let nodes = ids.iter().map(found).collect();
        let majority = options.nodes / 2 + 1;
        let mut world = World {
            now_ms: 0,
            nodes,
            partitions: count,
            data_partitions,
            packets: BTreeMap::new(),
            sent: 0,
            links: Links::default(),
            led: (0..options.nodes).map(|_| Led::default()).collect(),
            last_arrival: BTreeMap::new(),
            cut: BTreeSet::new(),
            delay_max_ms: QUIET_DELAY_MS,
            sync_max_ms: QUIET_SYNC_MS,
            kinds: options.faults,
            producers: (0..3)
                .map(|process| Producer::new(process, process as usize % data_partitions))
                .collect(),
            consumers: (10..12)
                .map(|process| Consumer::new(process, process as usize % data_partitions))
                .collect(),
            history: Vec::new(),
            faults: BTreeMap::new(),
            min_insync: 1,
            acknowledge_early: options.acknowledge_early,
            next_value: 1,
            deletions: None,
            interrupts_copy: false,
            member_fault: None,
            moves_replicas: false,
            forgotten: Forgotten::default(),
            is_finalising: false,
            schedule,
            random,
        };
        let min_insync = 1 + world.random.below(majority as u64) as usize;
        world.set_min_insync(min_insync);
        world
    }

    /// Formats the disks of whole nodes, and starts them.
    pub(crate) fn start_nodes(&mut self) {
        let directories = self.nodes.iter_mut().map(|node| (node.id().node(), node.format())).collect();
        self.nodes.iter_mut().for_each(|node| node.begin(&directories));
    }

    /// Sets `min.insync.replicas` of all partitions.
    pub(crate) fn set_min_insync(&mut self, min_insync: usize) {
        self.min_insync = min_insync;
        self.nodes.iter_mut().for_each(|node| node.set_min_insync(min_insync));
    }

    pub(crate) fn turn(&mut self) {
        self.now_ms += TURN_MS;
        self.nodes.iter_mut().for_each(|node| node.advance(TURN_MS));
        self.dial();
        while let Some(entry) = self.packets.first_entry()
            && entry.key().0 <= self.now_ms
        {
            let packet = entry.remove();
            self.deliver(packet);
        }
        for number in 0..self.nodes.len() {
            let (node, random) = (&mut self.nodes[number], &mut self.random);
            act_for(node.group().as_ref(), || node.pass_time(random));
            self.settle(number);
        }
        self.run_threads();
        self.find_uncounted();
        self.produce();
        self.consume();
        self.delete_records();
        for number in 0..self.nodes.len() {
            self.settle(number);
            if self.is_turn_of(number, CHECK_TURNS) {
                self.nodes[number].check();
            }
        }
        self.answer_deletions();
        self.end_failed();
    }

    /// Returns true in one of so many turns, which is not the same one for all nodes.
    pub(crate) fn is_turn_of(&self, node: usize, turns: u64) -> bool {
        (self.now_ms / TURN_MS + node as u64).is_multiple_of(turns)
    }

    fn deliver(&mut self, packet: Packet) {
        let Packet { from, to, led, parcel } = packet;
        if self.cut.contains(&(from, to)) {
            match parcel {
                Parcel::Answers(_) => self.lose(to, from),
                _ => self.lose(from, to),
            }
            return;
        }
        match parcel {
            Parcel::Bytes(bytes) => {
                if let Err(error) = self.links.read((from, to), &bytes) {
                    // The leader has truncated the announced batches since. The link ends.
                    self.note_led(from);
                    let leads_on = led == self.led[from].changes;
                    assert!(error.to_string().contains(BATCHES) && !leads_on, "from {from} to {to}: {error}");
                    self.lose(from, to);
                }
            }
            Parcel::Answers(bytes) => {
                if self.links.read_answers((to, from), &bytes).is_err() {
                    self.lose(to, from);
                }
            }
        }
        self.settle(to);
    }

    /// Runs nearly all threads that are ready.
    fn run_threads(&mut self) {
        let Some(schedule) = self.schedule.clone() else { return };
        self.nodes.iter().for_each(|node| node.set_jobs_inline(true));
        let random = &mut self.random;
        schedule.run(|ready| (!random.chance(LATE_PERCENT)).then(|| random.below(ready as u64) as usize));
        self.nodes.iter().for_each(|node| node.set_jobs_inline(false));
        for node in 0..self.nodes.len() {
            if let Some(until_ms) = self.nodes[node].stopped_until() {
                self.take_down(node, Stop::Clean, until_ms);
            }
        }
    }

    /// Takes note of what a node leads now. Returns true if that has changed in this turn.
    fn note_led(&mut self, node: usize) -> bool {
        let (terms, led) = (self.nodes[node].led(), &mut self.led[node]);
        if terms != led.terms {
            *led = Led { terms, changes: led.changes + 1, changed_at_ms: self.now_ms };
        }
        self.now_ms == led.changed_at_ms
    }

    /// Ends the link of a lost packet: drops the other packets on it, and notifies the sender.
    pub(crate) fn lose(&mut self, from: usize, to: usize) {
        let is_of_link = |packet: &Packet| match packet.parcel {
            Parcel::Answers(_) => (packet.to, packet.from) == (from, to),
            _ => (packet.from, packet.to) == (from, to),
        };
        self.packets.retain(|_, packet| !is_of_link(packet));
        self.links.end((from, to), self.now_ms);
    }

    /// Lets nodes dial the nodes to which they have no link.
    fn dial(&mut self) {
        for from in 0..self.nodes.len() {
            for to in 0..self.nodes.len() {
                let is_cut = self.cut.contains(&(from, to)) || self.cut.contains(&(to, from));
                if self.links.notices_loss((from, to), &self.nodes, is_cut, self.now_ms) {
                    self.lose(from, to);
                }
                self.links.dial((from, to), &self.nodes, is_cut, self.now_ms);
            }
        }
    }

    /// Has a node do the work that follows from its inputs.
    fn settle(&mut self, number: usize) {
        let (node, random, sync_max_ms) = (&mut self.nodes[number], &mut self.random, self.sync_max_ms);
        act_for(node.group().as_ref(), || node.settle(sync_max_ms, random));
        for (partition, Lost { offset, records }) in self.nodes[number].take_lost() {
            let at = At::new(partition, offset, records.unsigned_abs());
            self.note(number as i32 + 1, Operation::Lost, Outcome::Ok, at);
        }
        for to in 0..self.nodes.len() {
            match self.links.write((number, to)) {
                Ok(bytes) if bytes.is_empty() => {}
                Ok(bytes) => self.post(number, to, Parcel::Bytes(bytes)),
                // The batches to send are not in the log any more: the node has lost its leadership, stops, or its disk has failed.
                Err(error) => {
                    let has_changed = self.note_led(number);
                    let node = &self.nodes[number];
                    let ends = has_changed || node.is_stopping() || node.has_failed();
                    assert!(ends, "{number} to {to}: {error}");
                    self.lose(number, to);
                }
            }
            let answers = self.links.write_answers((to, number));
            if !answers.is_empty() {
                self.post(number, to, Parcel::Answers(answers));
            }
        }
    }

    fn post(&mut self, from: usize, to: usize, parcel: Parcel) {
        self.note_led(from);
        let of_nodes = self.nodes[from].delay_max_ms().max(self.nodes[to].delay_max_ms());
        let arrival = self.now_ms + 1 + self.random.below(self.delay_max_ms.max(of_nodes));
        let last = self.last_arrival.entry((from, to)).or_default();
        *last = arrival.max(*last);
        self.sent += 1;
        let (at, led) = ((*last, self.sent), self.led[from].changes);
        self.packets.insert(at, Packet { from, to, led, parcel });
    }

    /// Returns true if coordinators keep groups and transactions in partitions.
    pub(crate) fn has_coordinators(&self) -> bool {
        self.partitions > self.data_partitions
    }

    /// Number of partitions to which clients write.
    pub(crate) fn data_partitions(&self) -> usize {
        self.data_partitions
    }

    pub(crate) fn count_fault(&mut self, name: &'static str) {
        *self.faults.entry(name).or_default() += 1;
    }

    /// Repairs networks, disks and clocks, and moves leadership.
    pub(crate) fn repair_and_move(&mut self, node: usize) {
        self.count_fault("repair");
        self.repair();
        self.transfer(0, node);
        for partition in 1..self.partitions {
            let to = self.random.below(self.nodes.len() as u64) as usize;
            self.transfer(partition, to);
        }
    }

    pub(crate) fn transfer(&mut self, partition: usize, to: usize) {
        if let Some(leader) = self.leader(partition) {
            let to = self.nodes[to].id();
            self.nodes[leader].transfer(partition, to);
        }
    }

    pub(crate) fn take_down(&mut self, node: usize, stop: Stop, until_ms: u64) {
        let is_begun = self.nodes[node].stopped_until().is_some();
        if stop == Stop::Clean && !is_begun && self.nodes[node].begin_stop(until_ms) {
            return;
        }
        self.forget_with(node, |world| world.nodes[node].stop(stop, until_ms, &mut world.random));
        self.packets.retain(|_, packet| packet.from != node && packet.to != node);
        self.links.take_down(node, stop == Stop::PowerCut, self.now_ms);
    }

    /// Takes down the nodes whose sync has failed, until they are started again, as a broker ends that has lost its only log directory.
    fn end_failed(&mut self) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].is_refused() {
                self.upgrade_refused(node);
            }
            if self.nodes[node].has_failed() {
                let until_ms = self.now_ms + 500 + self.random.below(3_000);
                self.take_down(node, Stop::Kill, until_ms);
            }
        }
    }

    /// Repairs networks, disks and clocks.
    fn repair(&mut self) {
        self.cut.clear();
        (self.delay_max_ms, self.sync_max_ms) = (QUIET_DELAY_MS, QUIET_SYNC_MS);
        self.nodes.iter_mut().for_each(Node::repair);
    }

    /// Ends all faults.
    pub(crate) fn heal(&mut self) {
        self.interrupts_copy = false;
        self.end_failed();
        self.repair();
        self.schedule.iter().for_each(Schedule::end_stalls);
        self.nodes.iter_mut().for_each(Node::come_back);
    }

    /// Restarts nodes in order that could not open a partition because their disk was full: it is offline until the next start.
    pub(crate) fn restart_with_offline_partitions(&mut self) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].has_offline_partitions() {
                self.take_down(node, Stop::Clean, self.now_ms);
            }
        }
    }

    /// The node that decides changes of the metadata, with its threads.
    pub(crate) fn deciding(&self) -> Option<(&Arc<BrokerNode>, &Group)> {
        let mut serving = self.nodes.iter().filter_map(Node::in_service);
        serving.find(|(node, _)| node.controller.decides())
    }

    /// The node that leads a partition in the newest term.
    pub(crate) fn leader(&self, partition: usize) -> Option<usize> {
        let leading =
            (0..self.nodes.len()).filter_map(|node| Some((self.nodes[node].leads(partition)?, node)));
        leading.max().map(|(_, node)| node)
    }

    /// Returns true if all nodes are in service, and have all partitions.
    pub(crate) fn serves_all(&self) -> bool {
        let serves = |node: &Node| {
            node.in_service().is_some()
                && (0..self.partitions).all(|partition| node.partition(partition).is_some())
        };
        self.nodes.iter().all(serves)
            && (0..self.partitions).all(|partition| self.leader(partition).is_some())
    }

    pub(crate) fn agrees(&self) -> bool {
        let agrees = |partition| {
            let first = self.nodes[0].content_end(partition);
            first.is_some() && self.nodes.iter().all(|node| node.content_end(partition) == first)
        };
        (0..self.partitions).all(agrees)
    }

    pub(crate) fn acknowledged(&self) -> impl Iterator<Item = &Event> {
        self.acknowledged_since(0)
    }

    /// The same, since the event of a rank.
    pub(crate) fn acknowledged_since(&self, rank: usize) -> impl Iterator<Item = &Event> {
        let is_acknowledged =
            |event: &&Event| event.operation == Operation::Append && event.outcome == Outcome::Ok;
        self.history[rank..].iter().filter(is_acknowledged)
    }

    /// All records of a replica. Records before its log start are taken from other replicas, unless clients delete records.
    fn records_of(&self, node: &Node, partition: usize) -> Vec<(i64, u64)> {
        let records = node.records(partition, 0, true);
        if self.deletions.is_some() {
            return records;
        }
        let log_start = node.ends(partition).map_or(0, |ends| ends.log_start);
        let first = records.first().map_or(log_start, |(offset, _)| log_start.min(*offset));
        let others = self.nodes.iter().map(|other| other.records(partition, 0, true));
        let deleted = if first > 0 { others.max_by_key(Vec::len).unwrap_or_default() } else { Vec::new() };
        deleted.into_iter().take_while(|(offset, _)| *offset < first).chain(records).collect()
    }

    pub(crate) fn finish(mut self, seed: u64, resumed_after_ms: Option<u64>) -> Verdict {
        let agreed = self.agrees();
        let mut finals = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            for partition in 0..self.data_partitions {
                let event = |operation, offset, value| {
                    let (at_ms, process, outcome) = (self.now_ms, number as i32 + 1, Outcome::Ok);
                    Event { at_ms, process, operation, outcome, partition: partition as i32, offset, value }
                };
                let log_start = node.ends(partition).map(|ends| ends.log_start);
                let log_start = log_start.filter(|_| self.deletions.is_some());
                finals.extend(log_start.map(|offset| event(Operation::LogStart, offset, 0)));
                let records = self.records_of(node, partition).into_iter();
                finals.extend(records.map(|(offset, value)| event(Operation::Final, offset, value)));
            }
        }
        self.history.extend(finals);
        let violations = check(&self.history);
        let acknowledged = self.acknowledged().count();
        let write_caching = self.nodes.iter().any(Node::write_caching);
        let World { history, faults, deletions, .. } = self;
        let deleted = deletions.map(|deletions| ("records deleted", deletions.acknowledged));
        let done = deleted.into_iter().filter(|(_, count)| *count > 0).collect();
        Verdict {
            seed,
            history,
            violations,
            acknowledged,
            faults,
            done,
            resumed_after_ms,
            agreed,
            write_caching,
        }
    }
}

/// Kind of a node's stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The process dies.
    Kill,
    /// The machine loses its power, with all unsynced writes.
    PowerCut,
    /// The node stops in order.
    Clean,
}
