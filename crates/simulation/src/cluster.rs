//! A cluster as clients see it: partitions of data, groups and transactions, and the clients that use them.
//!
//! Its nodes are whole nodes. Each has a replica of two partitions of data, of one partition of a compacted topic, and of one of
//! each internal topic, on one disk.
//! The leader of an internal partition is the coordinator. Clients send requests to the node that they believe to be the leader. Other
//! clients change the metadata ([`Metadata`]).

mod calls;
mod coordinators;
mod copies;
mod keyed;
mod members;
mod nodes;
mod producers;
mod reading;
mod replicas;
#[cfg(test)]
mod tests;
mod topics;
mod upgrade;

use crate::clients::{At, Producer};
use crate::deletions::has_deletions;
use crate::done::Done;
use crate::faults::FaultKinds;
use crate::metadata::Metadata;
use crate::world::{SimulationOptions, Verdict, World};
use calls::Calls;
use coordinators::Waiting;
use copies::Copies;
use keyed::Keyed;
use mainstem_log::PartitionIdentity;
use mainstem_replication::history::{NO_PARTITION, Operation, Outcome};
use mainstem_runtime::schedule::Schedule;
use members::Member;
use nodes::Nodes;
use producers::Producers;
use replicas::Replicas;
use std::collections::BTreeSet;
use upgrade::Upgrade;

/// The topic of data, and its partitions.
pub(crate) const TOPIC: &str = "t";
pub(crate) const DATA_PARTITIONS: usize = 2;
/// Index of the partition of `__consumer_offsets` in the world.
pub(crate) const OFFSETS: usize = 2;
/// Index of the partition of `__transaction_state` in the world.
pub(crate) const TRANSACTIONS: usize = 3;
/// The compacted topic of clients, and the index of its partition in the world.
pub(crate) const KEYED_TOPIC: &str = "keyed";
pub(crate) const KEYED: usize = 4;
/// The topic of committed offsets.
pub(crate) const OFFSETS_TOPIC: &str = "__consumer_offsets";
/// The topic of transactional ids.
pub(crate) const TRANSACTIONS_TOPIC: &str = "__transaction_state";

/// Virtual time before the first fault, in ms.
const FIRST_FAULT_MS: u64 = 3_000;
/// Virtual time after the faults until all clients are served and all replicas agree, at most, in ms.
const SETTLE_MS: u64 = 40_000;

/// Difference between wall clocks without faults, in ms (exclusive).
const SKEW_MS: u64 = 2_000;
/// Percent of the faults in which leadership moves to another node and back.
const THERE_AND_BACK_PERCENT: u64 = 25;
/// Sets the generator of clients of the metadata apart from that of the world.
const SEED_OF_METADATA: u64 = 0x6d65_7461_6461_7461;
/// Percent of the runs in which `min.insync.replicas` is the number of replicas.
const ALL_IN_SYNC_PERCENT: u64 = 15;

/// Options of a run with coordinators.
#[derive(Debug, Clone, Copy)]
pub struct ClusterOptions {
    /// Nodes, two at least, each with a replica of each partition.
    pub nodes: usize,
    /// Virtual time with faults, in ms.
    pub time_ms: u64,
    /// Kinds of faults that may happen. If there are any, leadership also moves to another node and back.
    pub faults: FaultKinds,
    /// The mistake that the run makes, and the checker has to find.
    pub defect: Option<Defect>,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        ClusterOptions { nodes: 3, time_ms: 20_000, faults: FaultKinds::ALL, defect: None }
    }
}

/// A mistake that a run makes on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// Writes markers a second time, later and with the newest epochs.
    RepeatsMarkers,
    /// Treats each commit in a classic group as one of a member of its newest generation.
    CommitsForAnyGeneration,
}

/// A world with coordinators and their clients.
pub(crate) struct Cluster {
    pub(crate) world: World,
    pub(crate) calls: Calls,
    pub(crate) done: Done,
    nodes: Nodes,
    members: Vec<Member>,
    producers: Producers,
    keyed: Keyed,
    copies: Copies,
    metadata: Metadata,
    replicas: Replicas,
    /// The operator of an upgrade, if there is one.
    upgrade: Option<Upgrade>,
    /// Leaderships that return to a node: time in ms, partition, node.
    returns: Vec<(u64, usize, usize)>,
    /// Clients that were served since the faults ended: name of the action, and number of the group or transactional id.
    served: BTreeSet<(&'static str, u64)>,
}

/// Runs one seed with coordinators.
pub fn simulate_cluster(seed: u64, options: ClusterOptions) -> Verdict {
    let mut cluster = Cluster::new(seed, options);
    if has_deletions(seed) && options.defect.is_none() {
        // Copies need the level of this release from the beginning.
        cluster.world.begin_deletions(seed, options.time_ms, !upgrade::is_upgraded(seed, &options));
    }
    cluster.upgrade = Upgrade::new(seed, &options);
    let mut next_fault_ms = FIRST_FAULT_MS;
    while cluster.world.now_ms < options.time_ms {
        if !options.faults.is_empty() && cluster.world.now_ms >= next_fault_ms {
            cluster.inject();
            next_fault_ms = cluster.world.now_ms + 100 + cluster.world.random.below(2_500);
        }
        if !options.faults.is_empty() {
            cluster.world.stall_a_thread();
        }
        cluster.turn();
    }
    cluster.heal();
    let resumed_after_ms = cluster.settle();
    cluster.finish(seed, resumed_after_ms)
}

/// The partitions; their topics get their ids when they are created.
fn partitions() -> Vec<PartitionIdentity> {
    let partition = |topic: &str, partition: usize| PartitionIdentity {
        topic: topic.into(),
        topic_id: [0; 16],
        partition: partition as i32,
    };
    let data = (0..DATA_PARTITIONS).map(|index| partition(TOPIC, index));
    let further = [OFFSETS_TOPIC, TRANSACTIONS_TOPIC, KEYED_TOPIC];
    data.chain(further.map(|topic| partition(topic, 0))).collect()
}

impl Cluster {
    /// Creates the cluster, and runs until its topics are served.
    pub(crate) fn new(seed: u64, options: ClusterOptions) -> Cluster {
        Cluster::with_min_insync(seed, options, options.nodes)
    }

    /// The same, with `min.insync.replicas` of at most `min_insync_max`.
    pub(crate) fn with_min_insync(seed: u64, options: ClusterOptions, min_insync_max: usize) -> Cluster {
        let ClusterOptions { nodes, time_ms, faults, defect } = options;
        let of_world = SimulationOptions { nodes, time_ms, faults, ..SimulationOptions::default() };
        let layout = (partitions(), DATA_PARTITIONS);
        let mut world = World::with_schedule(seed, of_world, layout, Some(Schedule::new()));
        let all = if world.random.chance(ALL_IN_SYNC_PERCENT) { nodes } else { world.min_insync };
        world.set_min_insync(all.min(min_insync_max));
        for node in 0..nodes {
            let skew_ms = world.random.below(SKEW_MS) as i64;
            world.nodes[node].set_skew(skew_ms);
        }
        upgrade::set_first_releases(&mut world, seed, &options);
        world.start_nodes();
        let topic_id = topics::create(&mut world, faults.has_clocks());
        Cluster {
            world,
            calls: Calls::new(),
            done: Done::default(),
            nodes: Nodes::new(nodes, defect),
            members: members::all(topic_id),
            producers: Producers::new(),
            keyed: Keyed::new(),
            copies: Copies::new(nodes),
            metadata: Metadata::new(seed ^ SEED_OF_METADATA, nodes, TOPIC),
            replicas: Replicas::new(seed, nodes, partitions()),
            upgrade: None,
            returns: Vec::new(),
            served: BTreeSet::new(),
        }
    }

    /// Injects a fault of the world, or moves the coordinators to another node and back, half of the time before their first node notices.
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
            if self.world.random.chance(50) {
                self.world.stall_roles_of(leader);
            }
        }
    }

    fn return_leadership(&mut self) {
        let now_ms = self.world.now_ms;
        let due: Vec<_> = self.returns.extract_if(.., |(at_ms, ..)| *at_ms <= now_ms).collect();
        due.into_iter().for_each(|(_, partition, node)| self.world.transfer(partition, node));
    }

    pub(crate) fn turn(&mut self) {
        self.world.turn();
        self.metadata.turn(&self.world);
        self.return_leadership();
        self.turn_upgrade();
        self.turn_nodes();
        self.turn_copies();
        self.turn_replicas();
        self.turn_members();
        self.turn_producers();
        self.turn_keyed();
    }

    /// Counts an action for a group or a transactional id.
    pub(crate) fn serve(&mut self, name: &'static str, whom: u64) {
        self.done.add(name);
        self.served.insert((name, whom));
    }

    /// Ends all faults.
    pub(crate) fn heal(&mut self) {
        self.upgrade.iter_mut().for_each(Upgrade::stop);
        self.replicas.restore();
        self.world.heal();
        self.world.restart_with_offline_partitions();
    }

    /// Runs until all clients are served again, then until all records are read, all transactions ended, each node has a replica of each
    /// partition, all replicas are equal, and all nodes have the same metadata. Returns the time in ms until the last client was served;
    /// `None`: not all of it happened in time.
    ///
    /// # Panics
    /// If an acknowledged change of the metadata is missing, or replicas do not move to where they belong.
    fn settle(&mut self) -> Option<u64> {
        let healed_ms = self.world.now_ms;
        self.served.clear();
        let healed = self.world.history.len();
        let mut resumed_after_ms = None;
        while self.world.now_ms < healed_ms + SETTLE_MS {
            self.turn();
            let since_ms = self.world.now_ms - healed_ms;
            let are_all_due = self.are_replicas_due(healed_ms) && self.has_all_replicas(healed_ms);
            if resumed_after_ms.is_none() && self.is_everybody_served(healed) {
                resumed_after_ms = Some(since_ms);
                self.world.producers.iter_mut().for_each(Producer::stop);
                self.producers.stop();
                self.keyed.stop();
                self.metadata.stop();
            }
            if resumed_after_ms.is_some() && self.is_all_read() {
                self.members.iter_mut().for_each(Member::stop);
                let is_quiet = self.world.agrees() && self.metadata.agree(&self.world);
                let has_all = || are_all_due || self.has_all_replicas(healed_ms);
                if is_quiet && self.has_ended_upgrade() && has_all() {
                    self.metadata.judge(&self.world);
                    self.world.finish_deletions();
                    // Leaders may have proposed something meanwhile.
                    while !self.world.agrees() && self.world.now_ms < healed_ms + SETTLE_MS {
                        self.turn();
                    }
                    self.judge_compacted();
                    self.note_ends();
                    return resumed_after_ms;
                }
            }
        }
        None
    }

    /// Returns true if all clients were served since the event of this rank.
    fn is_everybody_served(&self, rank: usize) -> bool {
        let of_partition = |partition| {
            let mut appends = self.world.acknowledged_since(rank);
            appends.any(|append| append.partition == partition as i32)
        };
        let groups =
            members::GROUPS.iter().all(|group| self.served.contains(&("offset committed", group.number)));
        groups && self.producers.are_served(&self.served) && (0..DATA_PARTITIONS).all(of_partition)
    }

    /// Returns true if groups have read all partitions to their ends, and no transaction is open.
    fn is_all_read(&self) -> bool {
        let is_read = |partition| {
            let Some(end) = self.stable_end(partition) else { return false };
            members::GROUPS.iter().all(|group| {
                let mut members = self.members.iter().filter(|member| member.group.number == group.number);
                members.any(|member| member.has_committed(partition, end))
            })
        };
        self.producers.have_ended() && self.keyed.has_ended() && (0..DATA_PARTITIONS).all(is_read)
    }

    /// Log end of a partition, if its last stable offset is the same.
    fn stable_end(&self, partition: usize) -> Option<i64> {
        let leader = self.world.leader(partition)?;
        let ends = self.world.nodes[leader].ends(partition)?;
        (ends.last_stable == ends.log_end).then_some(ends.log_end)
    }

    /// Notes in the history that groups have read to the ends.
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
        self.world.nodes.iter().for_each(Waiting::check);
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
        let of_clients = self.done.into_counts().into_iter().chain(self.metadata.done.into_counts());
        let done = of_clients.chain(verdict.done).collect();
        Verdict { done, ..verdict }
    }
}
