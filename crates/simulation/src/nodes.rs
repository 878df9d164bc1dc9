//! Whole nodes with their metadata: registration, heartbeats, fencing, elections of the metadata leader, snapshots, created and deleted
//! topics, and records in the partitions of one topic.

use crate::clients::Producer;
use crate::cluster::{DATA_PARTITIONS, TOPIC};
use crate::faults::FaultKinds;
use crate::metadata::Metadata;
use crate::world::{SimulationOptions, Verdict, World};
use mainstem_log::PartitionIdentity;
use mainstem_runtime::schedule::Schedule;

/// Virtual time before the first fault, in ms.
const FIRST_FAULT_MS: u64 = 3_000;
/// Virtual time after the faults until all nodes serve and agree, at most, in ms.
const SETTLE_MS: u64 = 40_000;
/// Sets the generator of clients of the metadata apart from that of the world.
const SEED_OF_METADATA: u64 = 0x6d65_7461_6461_7461;

/// Options of a run with whole nodes.
#[derive(Debug, Clone, Copy)]
pub struct NodesOptions {
    /// Nodes, each a broker and a controller.
    pub nodes: usize,
    /// Virtual time with faults, in ms.
    pub time_ms: u64,
    /// Kinds of faults that may happen.
    pub faults: FaultKinds,
}

impl Default for NodesOptions {
    fn default() -> Self {
        NodesOptions { nodes: 3, time_ms: 20_000, faults: FaultKinds::ALL }
    }
}

/// The partitions of the topic of records; its id is drawn when it is created.
fn partitions() -> Vec<PartitionIdentity> {
    let of_index = |partition| PartitionIdentity { topic: TOPIC.into(), topic_id: [0; 16], partition };
    (0..DATA_PARTITIONS as i32).map(of_index).collect()
}

/// Runs one seed with whole nodes.
///
/// # Panics
/// If nodes have different metadata, an acknowledged change of the metadata is lost, or a thread panics.
pub fn simulate_nodes(seed: u64, options: NodesOptions) -> Verdict {
    let NodesOptions { nodes, time_ms, faults } = options;
    let of_world = SimulationOptions { nodes, time_ms, faults, ..SimulationOptions::default() };
    let schedule = Schedule::new();
    let mut world = World::with_schedule(seed, of_world, (partitions(), DATA_PARTITIONS), Some(schedule));
    let mut metadata = Metadata::new(seed ^ SEED_OF_METADATA, nodes, TOPIC);
    let mut next_fault_ms = FIRST_FAULT_MS;
    while world.now_ms < time_ms {
        if !faults.is_empty() && world.now_ms >= next_fault_ms {
            world.inject();
            next_fault_ms = world.now_ms + 100 + world.random.below(2_500);
        }
        world.turn();
        metadata.turn(&world);
    }
    world.heal();
    world.restart_with_offline_partitions();
    let resumed_after_ms = settle(&mut world, &mut metadata);
    if resumed_after_ms.is_some() {
        metadata.judge(&world);
    }
    let mut verdict = world.finish(seed, resumed_after_ms);
    verdict.done.extend(metadata.done.into_counts());
    verdict
}

/// Runs until all nodes serve and agree. Returns the time in ms until records were acknowledged again; `None`: not in time, or the
/// nodes do not agree.
fn settle(world: &mut World, metadata: &mut Metadata) -> Option<u64> {
    let (healed_ms, healed) = (world.now_ms, world.history.len());
    let mut resumed_after_ms = None;
    while world.now_ms < healed_ms + SETTLE_MS {
        world.turn();
        metadata.turn(world);
        if resumed_after_ms.is_none() && world.acknowledged_since(healed).next().is_some() {
            resumed_after_ms = Some(world.now_ms - healed_ms);
            world.producers.iter_mut().for_each(Producer::stop);
            metadata.stop();
        }
        if resumed_after_ms.is_some() && world.agrees() && metadata.agree(world) {
            return resumed_after_ms;
        }
    }
    None
}

#[cfg(test)]
mod tests;
