//! What a cluster is for its clients: partitions of data, groups and transactions, and everybody who uses them.
//!
//! Each node has a replica of two partitions of data and of one partition of each internal topic, on one disk. The leader
//! of an internal partition coordinates: the driver of a broker runs the state machine ([`coordinators`]). Clients speak to
//! whom they take for the leader.

mod calls;
mod coordinators;
mod loading;
mod members;
mod nodes;
mod producers;
mod reading;
#[cfg(test)]
mod tests;

use crate::clients::{At, Producer};
use crate::deletions::has_deletions;
use crate::faults::FaultKinds;
use crate::world::{SimulationOptions, Verdict, World};
use calls::Calls;
use mainstem_log::PartitionIdentity;
use mainstem_replication::history::{NO_PARTITION, Operation, Outcome};
use members::Member;
use nodes::Nodes;
use producers::Producers;
use std::collections::{BTreeMap, BTreeSet};

/// The topic of data, its partitions, and its id.
pub(crate) const TOPIC: &str = "t";
pub(crate) const DATA_PARTITIONS: usize = 2;
pub(crate) const TOPIC_ID: [u8; 16] = [7; 16];
/// The partition of `__consumer_offsets` in the world.
pub(crate) const OFFSETS: usize = 2;
/// That of `__transaction_state`.
pub(crate) const TRANSACTIONS: usize = 3;
/// The topic of committed offsets.
pub(crate) const OFFSETS_TOPIC: &str = "__consumer_offsets";
/// The topic of transactional ids.
pub(crate) const TRANSACTIONS_TOPIC: &str = "__transaction_state";

/// The first fault comes after so long.
const FIRST_FAULT_MS: u64 = 3_000;
/// After the faults, so long at most until everybody is served and all replicas agree.
const SETTLE_MS: u64 = 40_000;

/// Wall clocks differ by less, where none has jumped.
const SKEW_MS: u64 = 2_000;
/// So many faults are leadership that goes there and back.
const THERE_AND_BACK_PERCENT: u64 = 25;
/// In so many runs `min.insync.replicas` is the number of replicas.
const ALL_IN_SYNC_PERCENT: u64 = 15;

/// How a run with coordinators goes.
#[derive(Debug, Clone, Copy)]
pub struct ClusterOptions {
    /// Nodes, each with a replica of each partition.
    pub nodes: usize,
    /// Virtual time with faults, in ms.
    pub time_ms: u64,
    /// The kinds of faults that there may be; leadership goes there and back if there are any.
    pub faults: FaultKinds,
    /// The mistake in a run that has to be found bad.
    pub defect: Option<Defect>,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        ClusterOptions { nodes: 3, time_ms: 20_000, faults: FaultKinds::ALL, defect: None }
    }
}

/// A mistake of those who are around the coordinators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// Markers are written again, later and with the newest epochs.
    RepeatsMarkers,
    /// A commit in a classic group counts as one of a member of its newest generation, whichever member asks for it.
    CommitsForAnyGeneration,
}

/// What was done, by name, and how often.
#[derive(Debug, Default)]
pub(crate) struct Done(BTreeMap<&'static str, usize>);

impl Done {
    pub(crate) fn add(&mut self, name: &'static str) {
        self.add_many(name, 1);
    }

    pub(crate) fn add_many(&mut self, name: &'static str, count: usize) {
        if count > 0 {
            *self.0.entry(name).or_default() += count;
        }
    }

    pub(crate) fn into_counts(self) -> BTreeMap<&'static str, usize> {
        self.0
    }
}

/// A world with coordinators and their clients.
pub(crate) struct Cluster {
    pub(crate) world: World,
    pub(crate) calls: Calls,
    pub(crate) done: Done,
    nodes: Nodes,
    members: Vec<Member>,
    producers: Producers,
    /// When a partition's leadership goes back to a node.
    returns: Vec<(u64, usize, usize)>,
    /// Who has been served since the faults ended: groups by number, transactional ids and partitions by name.
    served: BTreeSet<(&'static str, u64)>,
}

/// Runs one seed with coordinators.
pub fn simulate_cluster(seed: u64, options: ClusterOptions) -> Verdict {
    let mut cluster = Cluster::new(seed, options);
    if has_deletions(seed) && options.defect.is_none() {
        cluster.world.begin_deletions(seed, options.time_ms);
    }
    let mut next_fault_ms = FIRST_FAULT_MS;
    while cluster.world.now_ms < options.time_ms {
        if !options.faults.is_empty() && cluster.world.now_ms >= next_fault_ms {
            cluster.inject();
            next_fault_ms = cluster.world.now_ms + 100 + cluster.world.random.below(2_500);
        }
        cluster.turn();
    }
    cluster.world.heal();
    let resumed_after_ms = cluster.settle();
    cluster.finish(seed, resumed_after_ms)
}

fn partitions() -> Vec<PartitionIdentity> {
    let partition = |topic: &str, topic_id, partition: usize| PartitionIdentity {
        topic: topic.into(),
        topic_id,
        partition: partition as i32,
    };
    let data = (0..DATA_PARTITIONS).map(|index| partition(TOPIC, TOPIC_ID, index));
    let internal = [partition(OFFSETS_TOPIC, [8; 16], 0), partition(TRANSACTIONS_TOPIC, [9; 16], 0)];
    data.chain(internal).collect()
}

/// The partition in the world that has an index in a topic.
pub(crate) fn partition_of(topic: &str, index: i32) -> usize {
    match topic {
        OFFSETS_TOPIC => OFFSETS,
        TRANSACTIONS_TOPIC => TRANSACTIONS,
        _ => index as usize,
    }
}

impl Cluster {
    pub(crate) fn new(seed: u64, options: ClusterOptions) -> Cluster {
        let ClusterOptions { nodes, time_ms, faults, defect } = options;
        let of_world = SimulationOptions { nodes, time_ms, faults, ..SimulationOptions::default() };
        let mut world = World::with_partitions(seed, of_world, partitions(), DATA_PARTITIONS);
        if world.random.chance(ALL_IN_SYNC_PERCENT) {
            world.set_min_insync(nodes);
        }
        for node in 0..nodes {
            let skew_ms = world.random.below(SKEW_MS) as i64;
            world.nodes[node].set_skew(skew_ms);
        }
        let nodes = Nodes::new(nodes, defect);
        Cluster {
            world,
            calls: Calls::new(),
            done: Done::default(),
            nodes,
            members: members::all(),
            producers: Producers::new(),
            returns: Vec::new(),
            served: BTreeSet::new(),
        }
    }

    /// A fault of the world; or coordination goes to another node and comes back, sooner than its first node may have noticed.
    fn inject(&mut self) {
        if !self.world.random.chance(THERE_AND_BACK_PERCENT) {
            return self.world.inject();
        }
        self.world.count_fault("leadership there and back");
        let other = self.world.random.below(self.world.nodes.len() as u64) as usize;
        for partition in [OFFSETS, TRANSACTIONS] {
            let Some(leader) = self.world.leader(partition) else { continue };
            self.world.transfer(partition, other);
            let back_ms = self.world.now_ms + 200 + self.world.random.below(800);
            self.returns.push((back_ms, partition, leader));
        }
    }

    fn return_leadership(&mut self) {
        let now_ms = self.world.now_ms;
        let due: Vec<_> = self.returns.extract_if(.., |(at_ms, ..)| *at_ms <= now_ms).collect();
        due.into_iter().for_each(|(_, partition, node)| self.world.transfer(partition, node));
    }

    pub(crate) fn turn(&mut self) {
        self.world.turn();
        self.return_leadership();
        self.turn_nodes();
        self.turn_members();
        self.turn_producers();
    }

    /// Something was done for a client: a group, a transactional id.
    pub(crate) fn serve(&mut self, name: &'static str, whom: u64) {
        self.done.add(name);
        self.served.insert((name, whom));
    }

    /// Waits until everybody has been served again, then until everything is read, ended, and everywhere. Returns how long it
    /// took until the last one was served.
    fn settle(&mut self) -> Option<u64> {
        let healed_ms = self.world.now_ms;
        self.served.clear();
        let healed = self.world.history.len();
        let mut resumed_after_ms = None;
        while self.world.now_ms < healed_ms + SETTLE_MS {
            self.turn();
            let since_ms = self.world.now_ms - healed_ms;
            if resumed_after_ms.is_none() && self.is_everybody_served(healed) {
                resumed_after_ms = Some(since_ms);
                self.world.producers.iter_mut().for_each(Producer::stop);
                self.producers.stop();
            }
            if resumed_after_ms.is_some() && self.is_all_read() {
                self.members.iter_mut().for_each(Member::stop);
                if self.world.agrees() {
                    self.world.finish_deletions();
                    self.note_ends();
                    break;
                }
            }
        }
        resumed_after_ms
    }

    /// Whether everybody has been served since an event.
    fn is_everybody_served(&self, rank: usize) -> bool {
        let of_partition = |partition| {
            let mut appends = self.world.acknowledged_since(rank);
            appends.any(|append| append.partition == partition as i32)
        };
        let groups =
            members::GROUPS.iter().all(|group| self.served.contains(&("offset committed", group.number)));
        groups && self.producers.are_served(&self.served) && (0..DATA_PARTITIONS).all(of_partition)
    }

    /// Whether groups have read to the ends, and nothing of a transaction is left open.
    fn is_all_read(&self) -> bool {
        let is_read = |partition| {
            let Some(end) = self.stable_end(partition) else { return false };
            members::GROUPS.iter().all(|group| {
                let mut members = self.members.iter().filter(|member| member.group.number == group.number);
                members.any(|member| member.has_committed(partition, end))
            })
        };
        self.producers.have_ended() && (0..DATA_PARTITIONS).all(is_read)
    }

    /// Where a partition ends, if consumers of committed transactions see all of it.
    fn stable_end(&self, partition: usize) -> Option<i64> {
        let leader = self.world.leader(partition)?;
        let ends = self.world.nodes[leader].ends(partition)?;
        (ends.last_stable == ends.log_end).then_some(ends.log_end)
    }

    /// Groups have read to the ends.
    fn note_ends(&mut self) {
        for partition in 0..DATA_PARTITIONS {
            let Some(end) = self.stable_end(partition) else { continue };
            for group in members::GROUPS {
                let at = At::new(partition, end, group.number);
                self.world.note(NO_PARTITION, Operation::End, Outcome::Ok, at);
            }
        }
    }

    fn finish(mut self, seed: u64, resumed_after_ms: Option<u64>) -> Verdict {
        for node in 0..self.world.nodes.len() {
            for partition in 0..DATA_PARTITIONS {
                let Some(ends) = self.world.nodes[node].ends(partition) else {
                    continue;
                };
                let at = At::new(partition, ends.last_stable, ends.high_watermark as u64);
                self.world.note(node as i32 + 1, Operation::LastStable, Outcome::Ok, at);
            }
        }
        let verdict = self.world.finish(seed, resumed_after_ms);
        let done = self.done.into_counts().into_iter().chain(verdict.done).collect();
        Verdict { done, ..verdict }
    }
}
