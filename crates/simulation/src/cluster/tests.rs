//! A whole cluster: what it promises holds, whatever fails; and what its driver does wrong is found.

use super::{Cluster, ClusterOptions, DATA_PARTITIONS, Defect, simulate_cluster};
use crate::faults::FaultKinds;
use crate::tests::{OneFault, SEEDS, SEEDS_VARIABLE, Subject, check_pauses, on_all_processors, seeds_of};
use crate::world::{Verdict, World};
use mainstem_replication::history::{Fault, Violation};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// From the end of the faults until everybody has been served again, in ms of virtual time.
const RESUMED_MAX_MS: u64 = 20_000;

fn assert_good(verdict: &Verdict) {
    let Verdict { seed, violations, faults, done, resumed_after_ms, agreed, .. } = verdict;
    assert!(
        verdict.is_good() && resumed_after_ms.is_some_and(|ms| ms <= RESUMED_MAX_MS),
        "seed {seed}: {violations:?}, agreed {agreed}, resumed {resumed_after_ms:?}, {faults:?}, {done:?}"
    );
}

#[test]
fn without_faults_everybody_is_served() {
    for seed in 0..2 {
        let verdict =
            simulate_cluster(seed, ClusterOptions { faults: FaultKinds::NONE, ..ClusterOptions::default() });
        assert_good(&verdict);
        let done = |name: &str| verdict.done.get(name).copied().unwrap_or(0);
        assert!(verdict.acknowledged > 1_000, "seed {seed}: {} appends", verdict.acknowledged);
        for (name, least) in [
            ("offset committed", 50),
            ("generation joined", 10),
            ("transaction committed", 50),
            ("transaction aborted", 10),
            ("producer died", 1),
            ("producer fenced", 1),
        ] {
            assert!(done(name) >= least, "seed {seed}: {name}: {:?}", verdict.done);
        }
    }
}

#[test]
fn what_a_cluster_promises_holds_whatever_fails() {
    let done = Mutex::new(BTreeMap::<_, usize>::new());
    on_all_processors(seeds_of(SEEDS_VARIABLE, SEEDS), |seed| {
        println!("MAINSTEM_SIM_SEED={seed}");
        let verdict = simulate_cluster(seed, ClusterOptions::default());
        assert_good(&verdict);
        let mut done = done.lock().expect("no seed has failed");
        let both = verdict.done.iter().chain(&verdict.faults);
        both.for_each(|(name, count)| *done.entry(*name).or_default() += count);
    });
    println!("{:?}", done.into_inner());
}

/// Of so many seeds of mixtures, one is tried with each kind of fault alone.
const SEEDS_A_SEED: u64 = 100;

impl Subject for Cluster {
    fn turn(&mut self) {
        Cluster::turn(self);
    }

    fn world(&mut self) -> &mut World {
        &mut self.world
    }
}

/// Of a whole cluster, whose partitions have leaders of their own and disks in common.
#[test]
fn acknowledgements_of_a_cluster_resume_within_three_seconds_of_any_one_fault() {
    let faults: Vec<_> = OneFault::all().into_iter().filter(|fault| fault.nodes == 3).collect();
    check_pauses(SEEDS_A_SEED, &faults, |seed, fault| {
        let options = ClusterOptions { faults: FaultKinds::of(&[fault.kind]), ..ClusterOptions::default() };
        let mut cluster = Cluster::new(seed, options);
        // More than a majority is not there meanwhile.
        cluster.world.min_insync = cluster.world.min_insync.min(2);
        let pause_ms = fault.longest_pause_ms(&mut cluster, DATA_PARTITIONS)?;
        cluster.world.heal();
        let resumed_after_ms = cluster.settle();
        assert_good(&cluster.finish(seed, resumed_after_ms));
        Some(pause_ms)
    });
}

/// Those that stand still for longer than a session; what they then commit is not theirs any more.
#[test]
fn members_of_classic_groups_are_thrown_out_and_come_back() {
    let mut done = BTreeMap::<_, usize>::new();
    for seed in 0..12 {
        let verdict =
            simulate_cluster(seed, ClusterOptions { faults: FaultKinds::NONE, ..ClusterOptions::default() });
        assert_good(&verdict);
        verdict.done.iter().for_each(|(name, count)| *done.entry(*name).or_default() += count);
    }
    for name in ["member thrown out", "classic commit refused", "generation joined"] {
        assert!(done.get(name).is_some_and(|count| *count > 0), "{name}: {done:?}");
    }
}

#[test]
fn one_node_and_five_are_clusters_too() {
    for nodes in [1, 5] {
        let verdict = simulate_cluster(7, ClusterOptions { nodes, ..ClusterOptions::default() });
        assert_good(&verdict);
    }
}

#[test]
fn equal_seeds_give_equal_histories() {
    for seed in 0..2 {
        let run = || simulate_cluster(seed, ClusterOptions { time_ms: 8_000, ..ClusterOptions::default() });
        assert_eq!(run(), run(), "seed {seed}");
    }
}

#[test]
fn a_coordinator_that_gives_up_what_is_committed_is_found() {
    let options =
        ClusterOptions { defect: Some(Defect::GivesUpWhatIsCommitted), ..ClusterOptions::default() };
    let bad = (0..60).map(|seed| simulate_cluster(seed, options)).find(|verdict| !verdict.is_good());
    assert!(bad.is_some_and(|verdict| verdict.resumed_after_ms.is_none()));
}

/// The first violations that a defect leads to.
fn found(defect: Defect, seeds: u64) -> Vec<Violation> {
    let options = ClusterOptions { defect: Some(defect), ..ClusterOptions::default() };
    let violations = |seed| simulate_cluster(seed, options).violations;
    (0..seeds).map(violations).find(|violations| !violations.is_empty()).unwrap_or_default()
}

fn assert_finds(defect: Defect, seeds: u64, is_it: impl Fn(&Fault) -> bool) {
    let violations = found(defect, seeds);
    assert!(violations.iter().any(|violation| is_it(&violation.fault)), "{defect:?}: {violations:?}");
}

/// What was acknowledged of offsets and of transactions is not so any more.
fn is_lost(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::CommitWentBack { .. }
            | Fault::ProcessedTwice { .. }
            | Fault::Unseen { .. }
            | Fault::Skipped { .. }
            | Fault::AbortedRead { .. }
    )
}

#[test]
fn an_answer_before_the_commit_is_found() {
    assert_finds(Defect::AnswersBeforeCommit, 40, is_lost);
}

#[test]
fn a_coordinator_that_has_not_read_its_partition_is_found() {
    assert_finds(Defect::AnswersBeforeReplay, 10, is_lost);
}

#[test]
fn a_marker_that_is_written_again_into_the_next_transaction_is_found() {
    let is_torn = |fault: &Fault| {
        matches!(fault, Fault::Unseen { .. } | Fault::Skipped { .. } | Fault::AbortedRead { .. })
    };
    assert_finds(Defect::RepeatsMarkers, 10, is_torn);
}

/// Who was thrown out of a classic group commits as if it were still in it.
#[test]
fn a_commit_of_an_earlier_generation_is_found() {
    assert_finds(Defect::CommitsForAnyGeneration, 60, |fault| matches!(fault, Fault::CommitWentBack { .. }));
}

#[test]
fn a_write_that_was_decided_in_another_term_is_found() {
    assert_finds(Defect::WritesInAnotherTerm, 60, |_| true);
}
