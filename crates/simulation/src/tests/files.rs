//! Nodes that come back without some files: no acknowledged record is lost as long as another node has it.

use super::caching::{assert_good, end, recover, reports, run};
use super::seeds;
use crate::faults::FaultKinds;
use crate::node::{FileLoss, Node};
use crate::world::{SimulationOptions, Stop, World};

const LOSSES: [FileLoss; 4] = [FileLoss::Tail, FileLoss::Segment, FileLoss::Record, FileLoss::Directory];

/// Worlds in which acknowledged records are durable, without `write.caching`.
fn worlds(runs: u64) -> impl Iterator<Item = (u64, World)> {
    let options = SimulationOptions { faults: FaultKinds::NONE, ..SimulationOptions::default() };
    let worlds = seeds(runs).map(move |seed| (seed, World::new(seed, options)));
    worlds.filter(|(_, world)| !world.nodes.iter().any(Node::write_caching))
}

/// One node is cut off while the two others acknowledge. Both die, and one comes back with a part of its files lost. It does not lead
/// with the vote of the node that was cut off, and does not elect that node.
#[test]
fn a_node_that_has_lost_files_waits_for_one_that_has_all() {
    let (mut cases, mut lost) = (0, 0);
    for (seed, mut world) in worlds(48) {
        let loss = LOSSES[seed as usize % 4];
        let case = format!("seed {seed}, {loss:?}");
        run(&mut world, 3_000);
        let behind = (seed as usize / 4) % 3;
        let others = [(behind + 1) % 3, (behind + 2) % 3];
        world.cut.extend(others.iter().flat_map(|other| [(behind, *other), (*other, behind)]));
        // If it was the leader, there is another one by then.
        let before_ms = 6_000 + world.random.below(2_000);
        run(&mut world, before_ms);
        let [whole, harmed] = if seed % 2 == 0 { others } else { [others[1], others[0]] };
        let before = world.nodes[harmed].known_end(0);
        assert!(before > end(&world, behind) || seeds(2).count() == 1, "{case}: nothing was acknowledged");
        let stop = if seed % 5 == 0 { Stop::PowerCut } else { Stop::Kill };
        others.iter().for_each(|node| world.take_down(*node, stop, u64::MAX));
        world.nodes[harmed].lose_files(loss);
        world.cut.clear();
        world.nodes[harmed].come_back();
        cases += 1;
        if world.nodes[harmed].lacks_promised() {
            lost += 1;
            let since = world.history.len();
            run(&mut world, 8_000);
            assert_eq!(world.acknowledged_since(since).count(), 0, "{case}");
            assert_eq!(world.leader(0), None, "{case}: acknowledged records would be gone");
        }
        world.nodes[whole].come_back();
        run(&mut world, 6_000);
        recover(&mut world, &case);
        assert!(end(&world, harmed) >= before && !world.nodes[harmed].lacks_promised(), "{case}");
        assert_eq!(reports(&world).count(), 0, "{case}: nothing was lost");
        assert_good(world, seed, &case);
    }
    println!("{lost} of {cases} nodes lacked something");
    assert!(lost * 4 > cases * 3 || seeds(2).count() == 1, "{lost} of {cases} lacked something");
}

/// Each node in turn loses files under load and faults, and recovers all records before the next one loses its files.
#[test]
fn nodes_that_lose_files_one_after_another_lose_nothing_together() {
    for (seed, mut world) in worlds(48) {
        let case = format!("seed {seed}");
        run(&mut world, 2_000);
        for round in 0..3 {
            let node = (seed as usize + round) % 3;
            let loss = LOSSES[world.random.below(4) as usize];
            world.take_down(node, Stop::Kill, u64::MAX);
            world.nodes[node].lose_files(loss);
            let away_ms = world.random.below(3_000);
            run(&mut world, away_ms);
            world.nodes[node].come_back();
            // The leader dies too, before or while the node catches up.
            if world.random.chance(50) {
                let soon_ms = world.random.below(400);
                run(&mut world, soon_ms);
                let leader = world.leader(0).filter(|leader| *leader != node);
                if let Some(leader) = leader {
                    let back_ms = world.now_ms + 200 + world.random.below(4_000);
                    world.take_down(leader, Stop::Kill, back_ms);
                }
            }
            run(&mut world, 8_000);
            assert!(!world.nodes[node].lacks_promised(), "{case}: {loss:?} of node {node} in round {round}");
        }
        recover(&mut world, &case);
        assert_eq!(reports(&world).count(), 0, "{case}: nothing was lost");
        assert_good(world, seed, &case);
    }
}
