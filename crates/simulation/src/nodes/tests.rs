use super::*;
use crate::tests::seeds_of;
use std::collections::BTreeMap;

/// Environment variable for the number of seeds of whole nodes.
const SEEDS_VARIABLE: &str = "TEST_SIMULATED_NODES";
const SEEDS: u64 = 60;

fn assert_good(verdict: &Verdict) {
    let Verdict { seed, violations, faults, resumed_after_ms, agreed, done, .. } = verdict;
    assert!(
        verdict.is_good(),
        "seed {seed}: {violations:?}, agreed {agreed}, resumed {resumed_after_ms:?}, {faults:?}, {done:?}"
    );
}

#[test]
fn without_faults_nodes_agree_on_their_metadata() {
    for seed in 0..3 {
        let options = NodesOptions { faults: FaultKinds::NONE, ..NodesOptions::default() };
        let verdict = simulate_nodes(seed, options);
        assert_good(&verdict);
        assert!(verdict.acknowledged > 500 && verdict.done["topic created"] > 5, "{:?}", verdict.done);
    }
}

#[test]
fn no_acknowledged_change_of_the_metadata_is_lost() {
    let (mut done, mut faults) = (BTreeMap::<_, usize>::new(), BTreeMap::<_, usize>::new());
    for seed in seeds_of(SEEDS_VARIABLE, SEEDS) {
        println!("MAINSTEM_SIM_SEED={seed}");
        let verdict = simulate_nodes(seed, NodesOptions::default());
        assert_good(&verdict);
        verdict.done.iter().for_each(|(name, count)| *done.entry(*name).or_default() += count);
        verdict.faults.iter().for_each(|(name, count)| *faults.entry(*name).or_default() += count);
    }
    println!("{done:?}; {faults:?}");
    let happens = ["topic deleted", "metadata leader elected", "node fenced", "snapshot loaded"];
    assert!(
        seeds_of(SEEDS_VARIABLE, SEEDS).count() == 1 || happens.iter().all(|name| done.contains_key(name))
    );
}

#[test]
fn equal_seeds_give_equal_histories_of_whole_nodes() {
    for seed in 0..3 {
        let run = || simulate_nodes(seed, NodesOptions { time_ms: 8_000, ..NodesOptions::default() });
        assert_eq!(run(), run(), "seed {seed}");
    }
}
