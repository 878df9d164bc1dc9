use super::*;
use crate::history::Fault;

/// The seeds of a test: `MAINSTEM_SIM_SEED` alone, or `MAINSTEM_SIM_RUNS` of them.
fn seeds(runs: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    match number("MAINSTEM_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("MAINSTEM_SIM_RUNS").unwrap_or(runs),
    }
}

fn assert_good(verdict: &Verdict) {
    let Verdict { seed, violations, faults, resumed_after_ms, agreed, .. } = verdict;
    assert!(
        verdict.is_good(),
        "seed {seed}: {violations:?}, agreed {agreed}, resumed {resumed_after_ms:?}, {faults:?}"
    );
}

#[test]
fn without_faults_everything_is_acknowledged() {
    for seed in 0..3 {
        let verdict = simulate(seed, SimulationOptions { faults: false, ..SimulationOptions::default() });
        assert_good(&verdict);
        assert!(verdict.acknowledged > 1_000, "{}", verdict.acknowledged);
    }
}

#[test]
fn nothing_acknowledged_is_lost() {
    let (mut acknowledged, mut faults) = (0, BTreeMap::<_, usize>::new());
    for seed in seeds(200) {
        println!("MAINSTEM_SIM_SEED={seed}");
        let verdict = simulate(seed, SimulationOptions::default());
        assert_good(&verdict);
        acknowledged += verdict.acknowledged;
        verdict.faults.iter().for_each(|(name, count)| *faults.entry(*name).or_default() += count);
    }
    println!("{acknowledged} acknowledged; {faults:?}");
}

#[test]
fn five_nodes_and_one_survive_too() {
    for nodes in [1, 2, 5] {
        for seed in 0..8 {
            let verdict = simulate(seed, SimulationOptions { nodes, ..SimulationOptions::default() });
            assert_good(&verdict);
        }
    }
}

#[test]
fn equal_seeds_give_equal_histories() {
    for seed in 0..4 {
        let run = || simulate(seed, SimulationOptions { time_ms: 8_000, ..SimulationOptions::default() });
        assert_eq!(run(), run(), "seed {seed}");
    }
    let histories: BTreeSet<_> = (0..4)
        .map(|seed| {
            simulate(seed, SimulationOptions { time_ms: 3_000, ..SimulationOptions::default() }).acknowledged
        })
        .collect();
    assert!(histories.len() > 1, "different seeds give different histories");
}

/// The checker sees what a broker does wrong, not only what tests of it make up.
#[test]
fn an_acknowledgement_before_the_commit_is_found() {
    let options = SimulationOptions { acknowledge_early: true, ..SimulationOptions::default() };
    let bad = (0..12).map(|seed| simulate(seed, options)).filter(|verdict| !verdict.violations.is_empty());
    let violations: Vec<_> = bad.flat_map(|verdict| verdict.violations).collect();
    assert!(
        violations.iter().any(|violation| matches!(violation.fault, Fault::Lost { .. })),
        "{violations:?}"
    );
}

/// What stands is repeated by the node; the group itself says nothing, and notices all the same that its leader is gone.
#[test]
fn a_group_at_rest_says_nothing_and_elects_when_its_leader_is_gone() {
    for seed in seeds(8) {
        let mut world = World::new(seed, SimulationOptions::default());
        world.producers.iter_mut().for_each(Producer::stop);
        while world.now_ms < 8_000 {
            world.turn();
        }
        let (leader, mut said) = (world.leader().expect("a leader"), 0);
        let term = world.nodes[leader].leads();
        while world.now_ms < 20_000 {
            world.turn();
            let messages =
                world.packets.values().filter(|packet| matches!(packet.frame, Frame::Message { .. }));
            said += messages.count();
        }
        assert_eq!((said, world.nodes[leader].leads()), (0, term), "seed {seed}");
        let others = [(leader + 1) % 3, (leader + 2) % 3];
        others.iter().for_each(|other| _ = world.cut.insert((leader, *other)));
        let cut_ms = world.now_ms;
        while world.leader() == Some(leader) {
            assert!(world.now_ms < cut_ms + 3_000, "seed {seed}: no other leader");
            world.turn();
        }
        assert!(world.now_ms > cut_ms + 800, "seed {seed}: within the lease of the last one");
    }
}

/// A follower that is gone is out of sync although nothing was appended that it lacks, and in sync when it is back.
#[test]
fn a_follower_that_is_gone_is_not_in_sync_in_a_group_at_rest() {
    const LAG_MAX_MS: u64 = 3_000;
    for seed in seeds(8) {
        let mut world = World::new(seed, SimulationOptions::default());
        world.producers.iter_mut().for_each(Producer::stop);
        while world.now_ms < 8_000 {
            world.turn();
        }
        let leader = world.leader().expect("a leader");
        let (gone, other) = ((leader + 1) % 3, (leader + 2) % 3);
        let in_sync = |world: &World| world.nodes[leader].in_sync(world.now_ms, LAG_MAX_MS);
        assert_eq!(in_sync(&world).len(), 3, "seed {seed}");
        let cuts = [(leader, gone), (gone, leader), (other, gone), (gone, other)];
        world.cut.extend(cuts);
        let mut cut_ms = world.now_ms;
        while world.now_ms < cut_ms + 12_000 {
            world.turn();
            let count = in_sync(&world).len();
            let since_ms = world.now_ms - cut_ms;
            assert!(
                count == 3 || since_ms > LAG_MAX_MS - 1_000,
                "seed {seed}: too early, after {since_ms} ms"
            );
            assert!(count == 2 || since_ms < LAG_MAX_MS + 3_000, "seed {seed}: still after {since_ms} ms");
        }
        world.cut.clear();
        cut_ms = world.now_ms;
        while world.nodes[world.leader().unwrap_or(leader)].in_sync(world.now_ms, LAG_MAX_MS).len() < 3 {
            assert!(world.now_ms < cut_ms + 5_000, "seed {seed}: it does not come back");
            world.turn();
        }
    }
}
