//! A group of replicas on one thread: virtual clock, network and disks, clients, faults.
//!
//! Everything random comes from a seed, so that equal seeds give equal histories. A run has faults for most of its
//! time; then all nodes come back, and the group has to acknowledge again and all replicas to agree. The verdict is that
//! of [`crate::history::check`].

mod applier;
mod clients;
mod node;

use crate::group::ReplicaId;
use crate::history::{Event, Operation, Outcome, Violation, check};
use crate::replica::Outgoing;
use crate::standing::{Repeat, RepeatAnswer, Repeated, Standing};
use applier::{Asked, Range};
use clients::{Consumer, Producer};
use mainstem_log::sim::Random;
use node::Node;
use raft::eraftpb::Message;
use std::collections::{BTreeMap, BTreeSet};

/// Virtual time between two turns of the world.
const TURN_MS: u64 = 5;
/// Between two repeats of what stands.
const REPEAT_MS: u64 = 150;
/// After the faults, so long at most until all replicas agree.
const SETTLE_MS: u64 = 20_000;

/// How a run goes.
#[derive(Debug, Clone, Copy)]
pub struct SimulationOptions {
    /// Nodes, each with a replica.
    pub nodes: usize,
    /// Virtual time with faults, in ms.
    pub time_ms: u64,
    /// Whether there are any faults.
    pub faults: bool,
    /// Acknowledges what is appended before it is committed: a run that has to be found bad.
    pub acknowledge_early: bool,
    /// Whether nodes write snapshots of what they have applied and give up the log before them, as those of metadata do.
    pub snapshots: bool,
}

impl Default for SimulationOptions {
    fn default() -> Self {
        SimulationOptions {
            nodes: 3,
            time_ms: 20_000,
            faults: true,
            acknowledge_early: false,
            snapshots: false,
        }
    }
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The seed.
    pub seed: u64,
    /// All events.
    pub history: Vec<Event>,
    /// What a durable log cannot have done.
    pub violations: Vec<Violation>,
    /// Acknowledged appends.
    pub acknowledged: usize,
    /// Faults by name, and how often each happened.
    pub faults: BTreeMap<&'static str, usize>,
    /// From the end of the faults to the first acknowledgement after it, in ms of virtual time; `None`: there was none.
    pub resumed_after_ms: Option<u64>,
    /// Whether all replicas had the same log in the end.
    pub agreed: bool,
    /// Snapshots of the leader that took the place of a replica's log.
    pub restored: usize,
}

impl Verdict {
    /// Whether the run went as it should.
    pub fn is_good(&self) -> bool {
        self.violations.is_empty() && self.agreed && self.resumed_after_ms.is_some()
    }
}

/// A frame on its way.
struct Packet {
    from: usize,
    to: usize,
    frame: Frame,
}

/// What goes over links.
enum Frame {
    Message { message: Message, offset: i64, batches: Vec<u8>, stands: bool },
    Repeat(Repeat),
    RepeatAnswer(RepeatAnswer),
    Ask(Asked),
    Range(Range),
}

/// What both ends of a link from one node to another know of heartbeats that stand, by their terms.
#[derive(Default)]
struct Link {
    standing: Standing<u64>,
    repeated: Repeated,
}

impl Link {
    fn begin(&mut self) {
        self.standing.begin();
        self.repeated = Repeated::default();
    }
}

/// All that there is.
struct World {
    now_ms: u64,
    random: Random,
    nodes: Vec<Node>,
    /// By the time of arrival, and a number that keeps the order.
    packets: BTreeMap<(u64, u64), Packet>,
    sent: u64,
    links: BTreeMap<(usize, usize), Link>,
    next_repeat_ms: u64,
    /// When the last message of each pair arrives: a link keeps the order.
    last_arrival: BTreeMap<(usize, usize), u64>,
    /// Pairs between which nothing arrives, one way.
    cut: BTreeSet<(usize, usize)>,
    delay_max_ms: u64,
    sync_max_ms: u64,
    producers: Vec<Producer>,
    consumers: Vec<Consumer>,
    history: Vec<Event>,
    faults: BTreeMap<&'static str, usize>,
    min_insync: usize,
    acknowledge_early: bool,
    next_value: u64,
    restored: usize,
}

/// Runs one seed.
pub fn simulate(seed: u64, options: SimulationOptions) -> Verdict {
    let mut world = World::new(seed, options);
    let mut next_fault_ms = 2_000;
    while world.now_ms < options.time_ms {
        if options.faults && world.now_ms >= next_fault_ms {
            world.inject();
            next_fault_ms = world.now_ms + 100 + world.random.below(2_500);
        }
        world.turn();
    }
    world.heal();
    let healed_ms = world.now_ms;
    let acknowledged = |world: &World| world.acknowledged().count();
    let before = acknowledged(&world);
    let mut resumed_after_ms = None;
    while world.now_ms < healed_ms + SETTLE_MS {
        world.turn();
        if resumed_after_ms.is_none() && acknowledged(&world) > before {
            resumed_after_ms = Some(world.now_ms - healed_ms);
            world.producers.iter_mut().for_each(Producer::stop);
        }
        if resumed_after_ms.is_some() && world.agrees() {
            break;
        }
    }
    world.finish(seed, resumed_after_ms)
}

impl World {
    fn new(seed: u64, options: SimulationOptions) -> World {
        let mut random = Random::new(seed);
        // Without a sync nothing survives a power cut: only then it is left out.
        let write_caching = random.chance(15);
        let ids: Vec<_> = (0..options.nodes).map(|node| ReplicaId::new(node as i32 + 1, 1)).collect();
        let snapshots = options.snapshots;
        let found = |id: &ReplicaId| Node::found(*id, &ids, write_caching, snapshots, random.next_u64());
        let nodes = ids.iter().map(found).collect();
        let majority = options.nodes / 2 + 1;
        World {
            now_ms: 0,
            nodes,
            packets: BTreeMap::new(),
            sent: 0,
            links: BTreeMap::new(),
            next_repeat_ms: 0,
            last_arrival: BTreeMap::new(),
            cut: BTreeSet::new(),
            delay_max_ms: 5,
            sync_max_ms: 10,
            producers: (0..3).map(Producer::new).collect(),
            consumers: (10..12).map(Consumer::new).collect(),
            history: Vec::new(),
            faults: BTreeMap::new(),
            min_insync: 1 + random.below(majority as u64) as usize,
            acknowledge_early: options.acknowledge_early,
            next_value: 1,
            restored: 0,
            random,
        }
    }

    fn turn(&mut self) {
        self.now_ms += TURN_MS;
        while let Some(entry) = self.packets.first_entry()
            && entry.key().0 <= self.now_ms
        {
            let packet = entry.remove();
            self.deliver(packet);
        }
        for number in 0..self.nodes.len() {
            self.nodes[number].pass_time(self.now_ms);
            self.drive(number);
            if let Some((leader, asked)) = self.nodes[number].ask(self.now_ms) {
                self.post(number, (leader - 1) as usize, Frame::Ask(asked));
            }
        }
        if self.now_ms >= self.next_repeat_ms {
            self.next_repeat_ms = self.now_ms + REPEAT_MS;
            self.repeat();
        }
        self.produce();
        self.consume();
        for number in 0..self.nodes.len() {
            self.drive(number);
        }
        self.end_failed();
    }

    /// Each node says again what stands.
    fn repeat(&mut self) {
        let leads: Vec<_> = self.nodes.iter().map(Node::leads).collect();
        let repeats: Vec<_> = self
            .links
            .iter_mut()
            .filter_map(|(pair, link)| {
                Some((*pair, link.standing.repeat(|term| leads[pair.0] == Some(*term))?))
            })
            .collect();
        for ((from, to), repeat) in repeats {
            self.post(from, to, Frame::Repeat(repeat));
        }
    }

    fn deliver(&mut self, packet: Packet) {
        let Packet { from, to, frame } = packet;
        if self.cut.contains(&(from, to)) {
            self.lose(from, to);
            return;
        }
        match frame {
            Frame::Message { message, offset, batches, stands } => {
                let term = message.term;
                self.nodes[to].step(message, offset, &batches);
                if stands {
                    let link = self.links.entry((from, to)).or_default();
                    link.repeated.insert(0, term);
                    let from = self.nodes[from].id();
                    self.nodes[to].let_stand(from, term);
                }
            }
            Frame::Repeat(repeat) => {
                let (now_ms, node) = (self.now_ms, &mut self.nodes[to]);
                let link = self.links.entry((from, to)).or_default();
                let answer = link.repeated.take(&repeat, |_, term| node.hear(term, now_ms));
                self.post(to, from, Frame::RepeatAnswer(answer));
            }
            Frame::RepeatAnswer(answer) => {
                let id = self.nodes[from].id();
                let link = self.links.entry((to, from)).or_default();
                let leads = self.nodes[to].leads();
                let node = &mut self.nodes[to];
                let mut is_heard = false;
                let refused = link.standing.answered(&answer, |term| is_heard |= leads == Some(*term));
                if is_heard {
                    node.note_answer(id);
                }
                if !refused.is_empty() {
                    node.note_refusal(id);
                }
            }
            Frame::Ask(asked) => {
                let id = self.nodes[from].id();
                if let Some(range) = self.nodes[to].answer(asked, id) {
                    self.post(to, from, Frame::Range(range));
                }
            }
            Frame::Range(range) => self.nodes[to].take(range, self.now_ms),
        }
        self.drive(to);
    }

    /// A message was lost, and with it its link: what is on it goes, and the sender hears of it.
    fn lose(&mut self, from: usize, to: usize) {
        self.packets.retain(|_, packet| (packet.from, packet.to) != (from, to));
        self.links.entry((from, to)).or_default().begin();
        let id = self.nodes[to].id();
        self.nodes[from].report_unreachable(id);
    }

    fn drive(&mut self, number: usize) {
        let outgoing = self.nodes[number].drive(self.now_ms, self.sync_max_ms, &mut self.random);
        self.restored += self.nodes[number].take_restored();
        for outgoing in outgoing {
            self.send(number, outgoing);
        }
    }

    fn send(&mut self, from: usize, outgoing: Outgoing) {
        let Outgoing { to, offset, offsets, message, stands, .. } = outgoing;
        let to = (to.node() - 1) as usize;
        let batches = self.nodes[from].read(offsets);
        if stands {
            self.links.entry((from, to)).or_default().standing.insert(0, message.term);
        }
        self.post(from, to, Frame::Message { message, offset, batches, stands });
    }

    fn post(&mut self, from: usize, to: usize, frame: Frame) {
        let arrival = self.now_ms + 1 + self.random.below(self.delay_max_ms);
        let last = self.last_arrival.entry((from, to)).or_default();
        *last = arrival.max(*last);
        self.sent += 1;
        self.packets.insert((*last, self.sent), Packet { from, to, frame });
    }

    fn count_fault(&mut self, name: &'static str) {
        *self.faults.entry(name).or_default() += 1;
    }

    fn inject(&mut self) {
        let node = self.random.below(self.nodes.len() as u64) as usize;
        let down_ms = self.now_ms + 50 + self.random.below(4_000);
        match self.random.below(15) {
            0 | 1 => self.stop_node(node, Stop::Kill, down_ms, "kill"),
            2 | 3 if !self.nodes[node].write_caching() => {
                self.stop_node(node, Stop::PowerCut, down_ms, "power cut")
            }
            4 if !self.nodes[node].write_caching() => {
                for each in 0..self.nodes.len() {
                    self.stop_node(each, Stop::PowerCut, down_ms, "power cut of all");
                }
            }
            5 => self.stop_node(node, Stop::Clean, down_ms, "clean stop"),
            6 => {
                self.count_fault("partition");
                let one_way = self.random.chance(40);
                for other in (0..self.nodes.len()).filter(|other| *other != node) {
                    self.cut.insert((node, other));
                    if !one_way {
                        self.cut.insert((other, node));
                    }
                }
            }
            7 => {
                self.count_fault("delay");
                self.delay_max_ms = 5 + self.random.below(300);
            }
            8 => {
                self.count_fault("slow disk");
                self.sync_max_ms = 10 + self.random.below(600);
            }
            9 | 10 => {
                self.count_fault("full disk");
                let room = self.random.below(8_000);
                self.nodes[node].fill_disk(room, down_ms);
            }
            11 if !self.nodes[node].write_caching() => {
                self.count_fault("failing sync");
                self.nodes[node].fail_sync();
            }
            12 => {
                self.count_fault("hanging sync");
                self.nodes[node].hang_disk(down_ms);
            }
            _ => {
                self.count_fault("repair");
                self.repair();
                let leader = self.leader();
                if let Some(leader) = leader {
                    let to = self.nodes[node].id();
                    self.nodes[leader].transfer(to);
                }
            }
        }
    }

    fn stop_node(&mut self, node: usize, stop: Stop, until_ms: u64, name: &'static str) {
        self.count_fault(name);
        self.take_down(node, stop, until_ms);
    }

    fn take_down(&mut self, node: usize, stop: Stop, until_ms: u64) {
        self.nodes[node].stop(stop, until_ms, &mut self.random);
        self.packets.retain(|_, packet| packet.from != node && packet.to != node);
        let of_node = self.links.iter_mut().filter(|((from, to), _)| *from == node || *to == node);
        of_node.for_each(|(_, link)| link.begin());
        let id = self.nodes[node].id();
        self.nodes.iter_mut().for_each(|other| other.report_unreachable(id));
    }

    /// A node whose sync has failed is gone, as a broker that has lost its log directory, until it is started again.
    fn end_failed(&mut self) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].has_failed() {
                let until_ms = self.now_ms + 500 + self.random.below(3_000);
                self.take_down(node, Stop::Kill, until_ms);
            }
        }
    }

    /// Networks and disks work.
    fn repair(&mut self) {
        self.cut.clear();
        (self.delay_max_ms, self.sync_max_ms) = (5, 10);
        self.nodes.iter_mut().for_each(|node| node.repair_disk(self.now_ms));
    }

    /// All faults end.
    fn heal(&mut self) {
        self.end_failed();
        self.repair();
        self.nodes.iter_mut().for_each(|node| node.come_back(self.now_ms));
    }

    /// The node that leads in the newest term.
    fn leader(&self) -> Option<usize> {
        let leading = (0..self.nodes.len()).filter_map(|node| Some((self.nodes[node].leads()?, node)));
        leading.max().map(|(_, node)| node)
    }

    fn agrees(&self) -> bool {
        let first = self.nodes[0].content_end();
        first.is_some() && self.nodes.iter().all(|node| node.content_end() == first)
    }

    fn acknowledged(&self) -> impl Iterator<Item = &Event> {
        let is_acknowledged =
            |event: &&Event| event.operation == Operation::Append && event.outcome == Outcome::Ok;
        self.history.iter().filter(is_acknowledged)
    }

    fn finish(mut self, seed: u64, resumed_after_ms: Option<u64>) -> Verdict {
        let agreed = self.agrees();
        for (number, node) in self.nodes.iter().enumerate() {
            for (offset, value) in node.records(0, true) {
                let (operation, outcome) = (Operation::Final, Outcome::Ok);
                let process = number as i32 + 1;
                let event =
                    Event { at_ms: self.now_ms, process, operation, outcome, partition: 0, offset, value };
                self.history.push(event);
            }
        }
        let violations = check(&self.history);
        let acknowledged = self.acknowledged().count();
        let World { history, faults, restored, .. } = self;
        Verdict { seed, history, violations, acknowledged, faults, resumed_after_ms, agreed, restored }
    }
}

/// How a node goes down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// The process dies.
    Kill,
    /// The machine does, with what was not synced.
    PowerCut,
    /// In order.
    Clean,
}

#[cfg(test)]
mod tests;
