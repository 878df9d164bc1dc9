//! Power cuts with `write.caching`. A cut of one node loses no acknowledged record. A cut of a majority loses only the records that
//! the replicas report.

use super::seeds;
use crate::clients::Producer;
use crate::faults::{FaultKind, FaultKinds};
use crate::node::Node;
use crate::world::{SimulationOptions, Stop, TURN_MS, World};
use mainstem_replication::history::{Event, Operation};

/// Longest time until all replicas agree, in ms. It contains the time of 8 s in which a replica asks for no votes.
const AGREE_MAX_MS: u64 = 20_000;

/// Worlds with `write.caching`, which about one in seven seeds has.
fn worlds(runs: u64) -> impl Iterator<Item = (u64, World)> {
    let options = SimulationOptions { faults: FaultKinds::NONE, ..SimulationOptions::default() };
    let worlds = seeds(runs).map(move |seed| (seed, World::new(seed, options)));
    worlds.filter(|(_, world)| world.nodes.iter().all(Node::write_caching))
}

pub(super) fn run(world: &mut World, ms: u64) {
    (0..ms / TURN_MS).for_each(|_| world.turn());
}

pub(super) fn end(world: &World, node: usize) -> i64 {
    world.nodes[node].extent().expect("it runs").1
}

/// Losses that replicas have reported.
pub(super) fn reports(world: &World) -> impl Iterator<Item = &Event> {
    world.history.iter().filter(|event| event.operation == Operation::Lost)
}

/// Runs until records are acknowledged again and all replicas are equal.
pub(super) fn recover(world: &mut World, case: &str) {
    world.heal();
    let (since, healed_ms) = (world.history.len(), world.now_ms);
    while world.acknowledged_since(since).next().is_none() {
        assert!(world.now_ms < healed_ms + AGREE_MAX_MS, "{case}: nothing is acknowledged");
        world.turn();
    }
    world.producers.iter_mut().for_each(Producer::stop);
    let stopped_ms = world.now_ms;
    while !world.agrees() {
        assert!(world.now_ms < stopped_ms + AGREE_MAX_MS, "{case}: no agreement");
        world.turn();
    }
}

pub(super) fn assert_good(world: World, seed: u64, case: &str) {
    let verdict = world.finish(seed, Some(0));
    assert!(verdict.is_good(), "{case}: {:?}", verdict.violations);
}

/// A follower loses records that the leader has counted for commits. The leader sends them again, and stays the leader.
#[test]
fn a_follower_that_has_lost_what_it_acknowledged_is_caught_up() {
    let (mut cases, mut lost) = (0, 0);
    for (seed, mut world) in worlds(160) {
        let case = format!("seed {seed}");
        run(&mut world, 4_000);
        // No new append shows the loss: the follower has to report it to the leader.
        let producers = std::mem::take(&mut world.producers);
        while !world.agrees() {
            assert!(world.now_ms < AGREE_MAX_MS, "{case}: no agreement");
            world.turn();
        }
        let leader = world.leader(0).expect("a leader");
        let term = world.nodes[leader].leads(0);
        let node = (leader + 1 + seed as usize % 2) % 3;
        let before = end(&world, node);
        world.take_down(node, Stop::PowerCut, u64::MAX);
        run(&mut world, 300);
        world.nodes[node].come_back();
        cases += 1;
        lost += usize::from(end(&world, node) < before);
        let back_ms = world.now_ms;
        while end(&world, node) < before {
            assert!(world.now_ms < back_ms + 2_000, "{case}: it is not caught up");
            world.turn();
        }
        world.producers = producers;
        recover(&mut world, &case);
        assert_eq!(world.nodes[leader].leads(0), term, "{case}: it leads on");
        assert_eq!(reports(&world).count(), 0, "{case}: nothing was lost");
        assert_good(world, seed, &case);
    }
    let is_one_seed = seeds(2).count() == 1;
    assert!(lost > 0 || is_one_seed, "of {cases} power cuts none took anything");
}

/// Cuts the power of any node under load, for any time. The two others have all acknowledged records, and elect one of them.
#[test]
fn a_power_cut_of_one_node_with_caching_loses_nothing() {
    for (seed, mut world) in worlds(320) {
        let case = format!("seed {seed}");
        let before_ms = 3_000 + world.random.below(2_000);
        run(&mut world, before_ms);
        let leader = world.leader(0).expect("a leader");
        let node = (leader + seed as usize % 3) % 3;
        let back_ms = world.now_ms + 5 + world.random.below(3_000);
        world.take_down(node, Stop::PowerCut, back_ms);
        run(&mut world, 8_000);
        recover(&mut world, &case);
        assert_eq!(reports(&world).count(), 0, "{case}: nothing was lost");
        assert_good(world, seed, &case);
    }
}

/// Elections take longer with slow links and disks, and still end within the vote hold.
#[test]
fn a_power_cut_of_one_node_over_slow_links_and_disks_loses_nothing() {
    for (seed, mut world) in worlds(320) {
        let case = format!("seed {seed}");
        run(&mut world, 3_000);
        for kind in [FaultKind::DelayAll, FaultKind::SlowDiskAll] {
            world.begin_fault(kind, 0, 0);
        }
        let before_ms = 1_000 + world.random.below(2_000);
        run(&mut world, before_ms);
        let leader = world.leader(0).unwrap_or(0);
        let node = (leader + (seed as usize % 4) / 2) % 3;
        let back_ms = world.now_ms + 5 + world.random.below(300);
        world.take_down(node, Stop::PowerCut, back_ms);
        run(&mut world, 10_000);
        recover(&mut world, &case);
        assert_eq!(reports(&world).count(), 0, "{case}: nothing was lost");
        assert_good(world, seed, &case);
    }
}

/// The setting is altered during writes, on each node at its own time, and one node loses its power around then. The others have the
/// records that it has acknowledged under either value.
#[test]
fn a_power_cut_of_one_node_loses_nothing_while_the_setting_is_altered() {
    for (seed, mut world) in worlds(320) {
        let case = format!("seed {seed}");
        run(&mut world, 3_000);
        let node = seed as usize % 3;
        let cut_in_ms = world.random.below(600);
        let alter_in_ms: Vec<_> = (0..3).map(|_| world.random.below(600)).collect();
        let since_ms = world.now_ms;
        let mut is_cut = false;
        while world.now_ms < since_ms + 600 {
            let passed_ms = world.now_ms - since_ms;
            for (node, at_ms) in alter_in_ms.iter().enumerate() {
                // And back, on a node that gets the change late.
                let caches = passed_ms < *at_ms || (seed.is_multiple_of(3) && passed_ms > at_ms + 200);
                world.nodes[node].alter_write_caching(caches);
            }
            if !is_cut && passed_ms >= cut_in_ms {
                is_cut = true;
                let back_ms = world.now_ms + 5 + world.random.below(3_000);
                world.take_down(node, Stop::PowerCut, back_ms);
            }
            world.turn();
        }
        run(&mut world, 8_000);
        recover(&mut world, &case);
        assert_eq!(reports(&world).count(), 0, "{case}: nothing was lost");
        assert_good(world, seed, &case);
    }
}

/// When the setting is switched off, earlier acknowledged records are synced, and later ones are synced before their acknowledgement.
#[test]
fn without_the_setting_power_cuts_of_all_nodes_lose_nothing_any_more() {
    for (seed, mut world) in worlds(240) {
        let case = format!("seed {seed}");
        run(&mut world, 3_000);
        world.nodes.iter_mut().for_each(|node| node.alter_write_caching(false));
        // Time for the longest sync, and for one that was under way.
        run(&mut world, 2_000);
        let back_ms = world.now_ms + 5 + world.random.below(3_000);
        (0..3).for_each(|node| world.take_down(node, Stop::PowerCut, back_ms));
        run(&mut world, 8_000);
        recover(&mut world, &case);
        assert_eq!(reports(&world).count(), 0, "{case}: nothing was lost");
        assert_good(world, seed, &case);
    }
}

/// Nodes that lose their power at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// All but the leader, which keeps running, but is cut off until the others have elected a leader.
    Followers,
    LeaderAndOne,
    All,
}

/// Checks that exactly the reported records are lost. Returns the largest number of lost records that a node has counted.
fn check_cut_of_majority(seed: u64, mut world: World, cut: Cut) -> u64 {
    let case = format!("seed {seed}, {cut:?}");
    let before_ms = 3_000 + world.random.below(2_000);
    run(&mut world, before_ms);
    let leader = world.leader(0).expect("a leader");
    let (one, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let nodes = match cut {
        Cut::Followers => vec![one, other],
        Cut::LeaderAndOne => vec![leader, one],
        Cut::All => vec![leader, one, other],
    };
    let back_ms = world.now_ms + 5 + world.random.below(3_000);
    nodes.iter().for_each(|node| world.take_down(*node, Stop::PowerCut, back_ms));
    if cut == Cut::Followers {
        world.cut.extend(nodes.iter().flat_map(|node| [(leader, *node), (*node, leader)]));
    }
    run(&mut world, 14_000);
    recover(&mut world, &case);
    let of_node =
        |node: i32| reports(&world).filter(|report| report.process == node).map(|report| report.value).sum();
    let counted = (1..=3).map(of_node).max().unwrap_or(0);
    assert_good(world, seed, &case);
    counted
}

#[test]
fn what_power_cuts_of_a_majority_with_caching_take_is_counted() {
    for cut in [Cut::Followers, Cut::LeaderAndOne, Cut::All] {
        let counted: u64 = worlds(240).map(|(seed, world)| check_cut_of_majority(seed, world, cut)).sum();
        println!("{cut:?}: {counted} counted");
        // The node that runs on has most of it, and is elected by the two others.
        let may_lose_nothing = cut == Cut::LeaderAndOne || seeds(2).count() == 1;
        assert!(counted > 0 || may_lose_nothing, "{cut:?}: nothing was lost in any run");
    }
}

/// Number of lost records that no replica can count.
fn uncounted(world: &World) -> u64 {
    let of_history = world.history.iter().filter(|event| event.operation == Operation::Uncounted);
    of_history.map(|event| event.value).sum()
}

/// The leader's disk and journal hang before all nodes lose their power. The leader knows the last commit and counts all that is lost
/// before it: no uncounted loss remains.
#[test]
fn what_power_cuts_take_while_the_journal_of_the_leader_hangs_is_counted() {
    let mut counted = 0;
    for (seed, mut world) in worlds(480) {
        let case = format!("seed {seed}");
        run(&mut world, 4_000);
        let leader = world.leader(0).expect("a leader");
        world.nodes[leader].hang_disk(u64::MAX);
        let before_ms = 500 + world.random.below(1_000);
        run(&mut world, before_ms);
        assert_eq!(world.leader(0), Some(leader), "{case}: it leads on");
        let back_ms = world.now_ms + 5 + world.random.below(3_000);
        (0..3).for_each(|node| world.take_down(node, Stop::PowerCut, back_ms));
        world.nodes[leader].hang_disk(0);
        run(&mut world, 14_000);
        recover(&mut world, &case);
        assert_eq!(uncounted(&world), 0, "{case}");
        let of_leader = reports(&world).filter(|report| report.process == leader as i32 + 1);
        counted += of_leader.map(|report| report.value).sum::<u64>();
        assert_good(world, seed, &case);
    }
    let is_one_seed = seeds(2).count() == 1;
    assert!(counted > 0 || is_one_seed, "nothing was lost in any run");
}

/// The leader's log begins within the range that the others have lost. It must not replace its acknowledged records by their entries,
/// unless they send them.
#[test]
fn a_log_that_begins_within_a_lost_range_is_reset() {
    let (mut cases, mut begun) = (0, 0);
    for (seed, mut world) in worlds(240) {
        let case = format!("seed {seed}");
        let before_ms = 3_000 + world.random.below(2_000);
        run(&mut world, before_ms);
        let leader = world.leader(0).expect("a leader");
        let others = [(leader + 1) % 3, (leader + 2) % 3];
        let back_ms = world.now_ms + 5 + world.random.below(3_000);
        others.iter().for_each(|node| world.take_down(*node, Stop::PowerCut, back_ms));
        world.cut.extend(others.iter().flat_map(|node| [(leader, *node), (*node, leader)]));
        // No client reads from it once it is not the leader any more.
        run(&mut world, 2_500);
        let before = world.nodes[leader].begin_at_high_watermark();
        run(&mut world, 12_000);
        recover(&mut world, &case);
        let (start, ..) = world.nodes[leader].extent().expect("it runs");
        cases += 1;
        begun += usize::from(start < before);
        assert_good(world, seed, &case);
    }
    let is_one_seed = seeds(2).count() == 1;
    assert!(begun > 0 || is_one_seed, "none of {cases} logs was reset");
}
