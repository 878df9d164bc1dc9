//! Tests of one replicated partition: no fault loses an acknowledged record.

use crate::clients::Producer;
use crate::faults::{FaultKind, FaultKinds};
use crate::world::{Parcel, SimulationOptions, Stop, TURN_MS, Verdict, World, run, simulate};
use mainstem_replication::history::{Fault, Operation};
use mainstem_replication::link::{self, Frame};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

mod caching;
mod files;
mod planted;

/// Environment variable for the number of seeds of a whole cluster.
pub(crate) const SEEDS_VARIABLE: &str = "TEST_SIMULATED_CLUSTERS";
pub(crate) const SEEDS: u64 = 120;

/// The seeds of a test: `MAINSTEM_SIM_SEED` alone, or `MAINSTEM_SIM_RUNS` of them.
fn seeds(runs: u64) -> Range<u64> {
    seeds_of("MAINSTEM_SIM_RUNS", runs)
}

/// The same, with another variable for their number.
pub(crate) fn seeds_of(variable: &str, runs: u64) -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    match number("MAINSTEM_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number(variable).unwrap_or(runs),
    }
}

/// Runs each seed on one thread, with a thread for each processor. The threads of a seed take turns, which costs less on one processor.
pub(crate) fn on_all_processors(seeds: impl IntoIterator<Item = u64>, run: impl Fn(u64) + Sync) {
    let (seeds, next) = (seeds.into_iter().collect::<Vec<_>>(), AtomicUsize::new(0));
    let work = |processor: usize| {
        stay_on(processor);
        let numbers = std::iter::repeat_with(|| seeds.get(next.fetch_add(1, Ordering::Relaxed)));
        numbers.map_while(|seed| seed).for_each(|seed| run(*seed));
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let work = &work;
    std::thread::scope(|scope| (0..threads).for_each(|processor| _ = scope.spawn(move || work(processor))));
}

/// Has this thread, and those that it starts, run on one of the processors that it may use.
fn stay_on(number: usize) {
    let Ok(usable) = sched_getaffinity(None) else { return };
    if let Some(processor) = (0..CpuSet::MAX_CPU).filter(|processor| usable.is_set(*processor)).nth(number) {
        let mut only = CpuSet::new();
        only.set(processor);
        // Without it the run is slower.
        let _ = sched_setaffinity(None, &only);
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
        let verdict =
            simulate(seed, SimulationOptions { faults: FaultKinds::NONE, ..SimulationOptions::default() });
        assert_good(&verdict);
        assert!(verdict.acknowledged > 1_000, "{}", verdict.acknowledged);
    }
}

#[test]
fn nothing_acknowledged_is_lost() {
    let (mut acknowledged, mut faults) = (0, BTreeMap::<_, usize>::new());
    let (mut longest_ms, mut lost, mut deleted) = (0, 0, 0);
    for seed in seeds_of("TEST_SIMULATED_GROUPS", 200) {
        println!("MAINSTEM_SIM_SEED={seed}");
        let verdict = simulate(seed, SimulationOptions::default());
        assert_good(&verdict);
        // A replica that may have lost something votes after 4 s, and asks for votes after 8 s.
        let vote_hold_ms = if verdict.write_caching { 8_000 } else { 0 };
        let resumed_after_ms = verdict.resumed_after_ms.unwrap_or(u64::MAX);
        longest_ms = longest_ms.max(resumed_after_ms.saturating_sub(vote_hold_ms));
        lost += verdict.history.iter().filter(|event| event.operation == Operation::Lost).count();
        acknowledged += verdict.acknowledged;
        deleted += verdict.done.get("records deleted").copied().unwrap_or(0);
        verdict.faults.iter().for_each(|(name, count)| *faults.entry(*name).or_default() += count);
    }
    println!(
        "{acknowledged} acknowledged; {deleted} deletions; resumed within {longest_ms} ms; {faults:?}; {lost} reports of losses"
    );
    assert!(seeds(200).count() == 1 || deleted > 0);
    assert!(seeds(200).count() == 1 || FaultKind::ALL.iter().all(|kind| faults.contains_key(kind.name())));
    assert!(longest_ms <= PAUSE_MAX_MS, "after {longest_ms} ms");
}

/// The kinds of faults from which the named seeds were drawn.
const KINDS_OF_NAMED_SEEDS: FaultKinds = FaultKinds::of(&[
    FaultKind::Kill,
    FaultKind::CleanStop,
    FaultKind::PowerCutOne,
    FaultKind::PowerCutAll,
    FaultKind::PartitionOne,
    FaultKind::PartitionOutwards,
    FaultKind::DelayAll,
    FaultKind::SlowDiskAll,
    FaultKind::HangingSync,
    FaultKind::FailingSync,
    FaultKind::FullDisk,
]);

/// A follower without free space takes the entries later, although the leader's heartbeat was coalesced while it had everything.
#[test]
fn what_a_follower_dropped_is_sent_again() {
    let options = SimulationOptions { faults: KINDS_OF_NAMED_SEEDS, ..SimulationOptions::default() };
    assert_good(&run(World::new(775, options), 775, options));
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

/// The checker finds a real mistake of a broker, in addition to the made-up ones of its own tests.
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

/// A replica removes more records than a client has deleted.
#[test]
fn a_log_start_that_nobody_has_asked_for_is_found() {
    for seed in seeds(4) {
        let options = SimulationOptions { faults: FaultKinds::NONE, ..SimulationOptions::default() };
        let mut world = World::new(seed, options);
        world.begin_deletions(seed, 16_000, false);
        run_until(&mut world, 18_000);
        world.producers.iter_mut().for_each(Producer::stop);
        run_until(&mut world, 20_000);
        let asked = world.history.iter().filter(|event| event.operation == Operation::Delete);
        let asked = asked.map(|event| event.offset).max().expect("something was deleted");
        let offset = world.nodes[1].ends(0).expect("it runs").high_watermark;
        assert!(offset > asked, "seed {seed}: nothing was acknowledged since");
        world.nodes[1].delete_by_mistake(0, offset);
        let verdict = world.finish(seed, Some(0));
        let found: Vec<_> = verdict.violations.into_iter().map(|violation| violation.fault).collect();
        assert_eq!(found, [Fault::NotDeleted { process: 2, offset, asked }], "seed {seed}");
    }
}

/// Number of messages of groups in bytes of a link. Coalesced heartbeats contain none.
fn messages_in(parcel: &Parcel) -> usize {
    let Parcel::Bytes(bytes) = parcel else { return 0 };
    let (mut rest, mut messages) = (&bytes[..], 0);
    while let Some((frame, len)) = link::decode(rest, bytes.len()).expect("frames of ours") {
        messages += match frame {
            Frame::Heartbeats(heartbeats) | Frame::Coalesced(heartbeats) => heartbeats.len(),
            Frame::Message { .. } | Frame::Append { .. } => 1,
            _ => 0,
        };
        rest = &rest[len..];
    }
    messages
}

/// The node repeats coalesced heartbeats. The group itself sends nothing, and still notices that its leader is gone.
#[test]
fn a_group_at_rest_says_nothing_and_elects_when_its_leader_is_gone() {
    for seed in seeds(8) {
        let mut world = World::new(seed, SimulationOptions::default());
        world.producers.iter_mut().for_each(Producer::stop);
        while world.now_ms < 8_000 {
            world.turn();
        }
        let (leader, mut said) = (world.leader(0).expect("a leader"), 0);
        let term = world.nodes[leader].leads(0);
        while world.now_ms < 20_000 {
            world.turn();
            said += world.packets.values().map(|packet| messages_in(&packet.parcel)).sum::<usize>();
        }
        assert_eq!((said, world.nodes[leader].leads(0)), (0, term), "seed {seed}");
        let others = [(leader + 1) % 3, (leader + 2) % 3];
        others.iter().for_each(|other| _ = world.cut.insert((leader, *other)));
        let cut_ms = world.now_ms;
        while world.leader(0) == Some(leader) {
            assert!(world.now_ms < cut_ms + 3_000, "seed {seed}: no other leader");
            world.turn();
        }
        assert!(world.now_ms > cut_ms + 800, "seed {seed}: within the lease of the last one");
    }
}

/// A follower that is down is out of sync although it lacks no record, and in sync again when it is back.
#[test]
fn a_follower_that_is_gone_is_not_in_sync_in_a_group_at_rest() {
    const LAG_MAX_MS: u64 = 1_500;
    for seed in seeds(8) {
        let mut world = World::new(seed, SimulationOptions::default());
        world.producers.iter_mut().for_each(Producer::stop);
        while world.now_ms < 8_000 {
            world.turn();
        }
        let leader = world.leader(0).expect("a leader");
        let (gone, other) = ((leader + 1) % 3, (leader + 2) % 3);
        let in_sync = |world: &World| world.nodes[leader].in_sync(0);
        assert_eq!(in_sync(&world), 3, "seed {seed}");
        let cuts = [(leader, gone), (gone, leader), (other, gone), (gone, other)];
        world.cut.extend(cuts);
        let mut cut_ms = world.now_ms;
        while world.now_ms < cut_ms + 12_000 {
            world.turn();
            let count = in_sync(&world);
            let since_ms = world.now_ms - cut_ms;
            assert!(
                count == 3 || since_ms > LAG_MAX_MS - 1_000,
                "seed {seed}: too early, after {since_ms} ms"
            );
            assert!(count == 2 || since_ms < LAG_MAX_MS + 3_000, "seed {seed}: still after {since_ms} ms");
        }
        world.cut.clear();
        cut_ms = world.now_ms;
        while world.nodes[world.leader(0).unwrap_or(leader)].in_sync(0) < 3 {
            assert!(world.now_ms < cut_ms + 5_000, "seed {seed}: it does not come back");
            world.turn();
        }
    }
}

/// A fault of one disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DiskFault {
    Full,
    FailingSync,
    HangingSync,
}

/// Longest time without an acknowledgement in a partition since `since_ms`.
fn longest_pause_ms(world: &World, partition: usize, since_ms: u64) -> u64 {
    let mut last_ms = since_ms;
    let of_partition = world.acknowledged().filter(|event| event.partition == partition as i32);
    let at = of_partition.map(|event| event.at_ms).filter(|at_ms| *at_ms >= since_ms);
    at.chain([world.now_ms]).map(|at_ms| at_ms - std::mem::replace(&mut last_ms, at_ms)).max().unwrap_or(0)
}

/// Longest pause of acknowledgements after one fault while a majority lives, in ms of virtual time.
const PAUSE_MAX_MS: u64 = 3_000;
/// Number of mixture seeds of a whole cluster for each seed that is tried with each kind of fault alone.
const SEEDS_A_SEED: u64 = 24;

/// One fault, and the node at which it begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OneFault {
    pub(crate) kind: FaultKind,
    pub(crate) nodes: usize,
    /// True: the leader's node; false: that of a follower.
    is_leader: bool,
}

impl OneFault {
    /// Each kind, at the leader and at a follower. Rings and halves differ between three and five nodes, and two of five are no majority.
    pub(crate) fn all() -> Vec<OneFault> {
        let nodes_of = |kind| match kind {
            FaultKind::PowerCutTwo | FaultKind::PartitionHalf | FaultKind::PartitionRing => &[3, 5][..],
            _ => &[3],
        };
        let mut all = Vec::new();
        for kind in FaultKind::ALL {
            let nodes = nodes_of(kind).iter();
            let both = nodes.flat_map(|nodes| [(*nodes, true), (*nodes, false)]);
            all.extend(both.map(|(nodes, is_leader)| OneFault { kind, nodes, is_leader }));
        }
        all
    }

    /// Returns true if no majority lives until nodes come back.
    fn takes_majority(self) -> bool {
        match self.kind {
            FaultKind::PowerCutAll => true,
            FaultKind::PowerCutTwo => self.nodes < 5,
            _ => false,
        }
    }

    /// Returns true if another node has to lead when it happens to the leader.
    fn moves_leadership(self) -> bool {
        use FaultKind::*;
        let moves = matches!(
            self.kind,
            Kill | CleanStop
                | Upgrade
                | PowerCutOne
                | PartitionOne
                | PartitionHalf
                | PartitionOutwards
                | PartitionInwards
        );
        moves && self.is_leader
    }
}

/// Injects each fault alone, without a repair. Acknowledgements resume within three seconds, or within three seconds after the return
/// of a majority.
#[test]
fn acknowledgements_resume_within_three_seconds_of_any_one_fault() {
    check_pauses(SEEDS_A_SEED, &OneFault::all(), pause_of_one_fault);
}

/// Checks each fault with a part of the mixture seeds. `pause` injects it and returns the longest pause in ms.
pub(crate) fn check_pauses(
    seeds_a_seed: u64,
    faults: &[OneFault],
    pause: impl Fn(u64, OneFault) -> Option<u64> + Sync,
) {
    let Range { start, end } = seeds_of(SEEDS_VARIABLE, SEEDS);
    let seeds = start..start + ((end - start) / seeds_a_seed).max(1);
    let pauses = Mutex::new((BTreeMap::<_, u64>::new(), Vec::new()));
    on_all_processors(seeds, |seed| {
        println!("MAINSTEM_SIM_SEED={seed}");
        for fault in faults.iter().copied() {
            let Some(pause_ms) = pause(seed, fault) else { continue };
            let mut pauses = pauses.lock().expect("no seed has failed");
            let (longest, too_long) = &mut *pauses;
            let longest_ms = longest.entry((fault.kind.name(), fault.nodes, fault.is_leader)).or_default();
            *longest_ms = pause_ms.max(*longest_ms);
            too_long.extend((pause_ms > PAUSE_MAX_MS).then_some((seed, fault, pause_ms)));
        }
    });
    let (longest, too_long) = pauses.into_inner().expect("no seed has failed");
    println!("{longest:?}");
    assert!(too_long.is_empty(), "{too_long:?}");
}

/// A simulation into which a fault is injected.
pub(crate) trait Subject {
    fn turn(&mut self);
    fn world(&mut self) -> &mut World;
}

impl Subject for World {
    fn turn(&mut self) {
        World::turn(self);
    }

    fn world(&mut self) -> &mut World {
        self
    }
}

fn run_until(subject: &mut impl Subject, at_ms: u64) {
    while subject.world().now_ms < at_ms {
        subject.turn();
    }
}

impl OneFault {
    /// Injects it without a repair. Returns the longest pause of any of the first `partitions`; `None`: the fault is not allowed with
    /// `write.caching`.
    pub(crate) fn longest_pause_ms(self, subject: &mut impl Subject, partitions: usize) -> Option<u64> {
        let begun_ms = subject.world().now_ms + 4_000 + subject.world().random.below(1_000);
        run_until(subject, begun_ms);
        let world = subject.world();
        let leader = world.leader(0).expect("a leader");
        let behind = 1 + world.random.below(self.nodes as u64 - 1) as usize;
        let node = if self.is_leader { leader } else { (leader + behind) % self.nodes };
        if self.kind.takes_acknowledged() && world.nodes[node].write_caching() {
            return None;
        }
        let (begun_ms, down_ms) = (world.now_ms, 500 + world.random.below(3_000));
        let until_ms = if self.takes_majority() { begun_ms + down_ms } else { u64::MAX };
        let since_ms = if self.takes_majority() { until_ms } else { begun_ms };
        world.begin_fault(self.kind, node, until_ms);
        run_until(subject, since_ms + 8_000);
        let world = subject.world();
        let now_leads = world.leader(0).expect("a leader");
        assert!(!self.moves_leadership() || now_leads != leader, "{self:?}: {leader} leads as before");
        (0..partitions).map(|partition| longest_pause_ms(world, partition, since_ms)).max()
    }
}

/// The longest pause of one partition with producers and consumers.
fn pause_of_one_fault(seed: u64, fault: OneFault) -> Option<u64> {
    let (nodes, faults) = (fault.nodes, FaultKinds::of(&[fault.kind]));
    let mut world = World::new(seed, SimulationOptions { nodes, faults, ..SimulationOptions::default() });
    let pause_ms = fault.longest_pause_ms(&mut world, 1)?;
    world.heal();
    world.producers.iter_mut().for_each(Producer::stop);
    let healed_ms = world.now_ms;
    run_until(&mut world, healed_ms + 1_000);
    while !world.agrees() {
        assert!(world.now_ms < healed_ms + 20_000, "seed {seed}, {fault:?}: no agreement");
        world.turn();
    }
    let verdict = world.finish(seed, Some(0));
    assert!(verdict.is_good(), "seed {seed}, {fault:?}: {:?}", verdict.violations);
    Some(pause_ms)
}

/// Breaks the disk of the leader or of a follower. Producers notice nothing for a follower, and only a short pause for the leader. The
/// replica is out of sync until the disk works again.
#[test]
fn a_group_serves_without_the_disk_of_one_replica() {
    seeds(12).for_each(|seed| drop(check_without_the_disk_of_one(seed)));
}

/// Returns the rise of the leader's term, for each failure of a leader's disk.
fn check_without_the_disk_of_one(seed: u64) -> Vec<u64> {
    let mut risen = Vec::new();
    for fault in [DiskFault::Full, DiskFault::FailingSync, DiskFault::HangingSync] {
        for is_leader in [true, false] {
            let case = format!("seed {seed}, {fault:?}, leader {is_leader}");
            let options = SimulationOptions { faults: FaultKinds::NONE, ..SimulationOptions::default() };
            let mut world = World::new(seed, options);
            let run = |world: &mut World, ms: u64| (0..ms / TURN_MS).for_each(|_| world.turn());
            run(&mut world, 4_000);
            let leader = world.leader(0).expect("a leader");
            let node = if is_leader { leader } else { (leader + 1) % 3 };
            if fault == DiskFault::FailingSync && world.nodes[node].write_caching() {
                continue;
            }
            let term = world.nodes[leader].leads(0).expect("it leads");
            let (begun_ms, until_ms) = (world.now_ms, world.now_ms + 8_000);
            match fault {
                DiskFault::Full => world.nodes[node].fill_disk(2_000, until_ms),
                DiskFault::FailingSync => world.nodes[node].fail_sync(),
                DiskFault::HangingSync => world.nodes[node].hang_disk(until_ms),
            }
            run(&mut world, 6_000);
            let pause_ms = longest_pause_ms(&world, 0, begun_ms);
            let no_election = !is_leader || fault == DiskFault::HangingSync;
            let pause_max_ms = if no_election { 300 } else { 3_000 };
            assert!(pause_ms <= pause_max_ms, "{case}: a pause of {pause_ms} ms");
            let now_leads = world.leader(0).expect("a leader");
            assert!(no_election == (now_leads == leader), "{case}: {leader}, then {now_leads}");
            if is_leader {
                risen.push(world.nodes[now_leads].leads(0).expect("it leads") - term);
            }
            let in_sync = |world: &World| {
                let leader = world.leader(0).unwrap_or(leader);
                world.nodes[leader].in_sync(0)
            };
            if fault == DiskFault::Full {
                assert_eq!(in_sync(&world), 2, "{case}");
            }
            while world.now_ms < until_ms || in_sync(&world) < 3 {
                assert!(world.now_ms < until_ms + 6_000, "{case}: it does not come back");
                world.turn();
            }
            world.heal();
            world.producers.iter_mut().for_each(Producer::stop);
            run(&mut world, 2_000);
            let verdict = world.finish(seed, Some(0));
            assert!(verdict.is_good(), "{case}: {:?}, agreed {}", verdict.violations, verdict.agreed);
        }
    }
    risen
}

/// The leader's disk fails, and the first vote of the others elects no leader.
#[test]
fn a_vote_without_a_winner_is_held_again_soon() {
    let risen = check_without_the_disk_of_one(88);
    assert!(risen.iter().any(|terms| *terms >= 2), "no vote was split: {risen:?}");
}

/// Retention may leave only a segment that it has just rolled, and a kill may come before the group's log start has followed. The
/// replica then counts its entries from the mark of that segment.
#[test]
fn a_replica_starts_behind_what_retention_removed() {
    for seed in seeds(4) {
        let mut world = World::new(seed, SimulationOptions::default());
        while world.now_ms < 6_000 {
            world.turn();
        }
        world.producers.iter_mut().for_each(Producer::stop);
        while world.now_ms < 9_000 {
            world.turn();
        }
        let leader = world.leader(0).expect("a leader");
        let node = (leader + 1) % 3;
        for _ in 0..3 {
            world.nodes[node].retain_nothing();
            (0..40).for_each(|_| world.turn());
        }
        let extent = world.nodes[node].extent();
        assert!(extent.is_some_and(|(start, end, _)| start == end && end > 0), "seed {seed}: {extent:?}");
        world.take_down(node, Stop::Kill, world.now_ms + 100);
        world.nodes[node].come_back();
        assert_eq!(world.nodes[node].extent(), extent, "seed {seed}");
    }
}

/// The leader is down, and the replica that should replace it lacks a record. It cannot win, and the replica that refuses its vote
/// becomes a candidate immediately.
#[test]
fn the_replica_that_has_more_asks_for_votes_when_it_refuses_its_own() {
    for seed in seeds(40) {
        let mut world =
            World::new(seed, SimulationOptions { faults: FaultKinds::NONE, ..SimulationOptions::default() });
        run_until(&mut world, 4_000);
        let leader = world.leader(0).expect("a leader");
        // In the order of the voters.
        let (first, other) = if leader == 0 { (1, 2) } else { (0, 3 - leader) };
        let end = |world: &World, node: usize| world.nodes[node].extent().expect("it runs").1;
        // The other follower gets the records that the first one does not.
        world.cut.insert((leader, first));
        let before = end(&world, first);
        while end(&world, other) <= before || end(&world, first) >= end(&world, other) {
            assert!(world.now_ms < 6_000, "seed {seed}: the follower that is cut off lacks nothing");
            world.turn();
        }
        let term = world.nodes[leader].leads(0).expect("it leads");
        // Both get refused connections to the leader, and the first of them in the order of the voters should replace it.
        world.cut.clear();
        world.take_down(leader, Stop::Kill, u64::MAX);
        let gone_ms = world.now_ms;
        while world.leader(0) != Some(other) {
            assert_ne!(world.leader(0), Some(first), "seed {seed}: it lacks a record");
            let waited_ms = world.now_ms - gone_ms;
            assert!(waited_ms < 400, "seed {seed}: no leader after {waited_ms} ms");
            world.turn();
        }
        assert_eq!(world.nodes[other].leads(0), Some(term + 1), "seed {seed}: one election");
    }
}

/// Both followers become candidates at the same time and vote for themselves. One of them asks again before its timeout.
#[test]
fn a_vote_that_is_split_is_held_again_soon() {
    let mut splits = 0;
    for seed in seeds(40) {
        let mut world =
            World::new(seed, SimulationOptions { faults: FaultKinds::NONE, ..SimulationOptions::default() });
        (0..4_000 / TURN_MS).for_each(|_| world.turn());
        let leader = world.leader(0).expect("a leader");
        let term = world.nodes[leader].leads(0).expect("it leads");
        // They have lost each other at that moment, so that each believes to be the only one left.
        let (one, other) = ((leader + 1) % 3, (leader + 2) % 3);
        world.lose(one, other);
        world.lose(other, one);
        world.take_down(leader, Stop::Kill, u64::MAX);
        let gone_ms = world.now_ms;
        while world.leader(0).is_none() {
            let waited_ms = world.now_ms - gone_ms;
            assert!(waited_ms < 600, "seed {seed}: no leader after {waited_ms} ms");
            world.turn();
        }
        let elected = world.leader(0).and_then(|leader| world.nodes[leader].leads(0)).expect("it leads");
        assert!(elected <= term + 2, "seed {seed}: {term}, then {elected}");
        splits += elected - term - 1;
    }
    assert!(splits > 0 || seeds(40).count() == 1, "no vote was split");
}

/// Without faults the first leader leads to the end.
#[test]
fn without_faults_there_is_one_election() {
    for seed in seeds(20) {
        let mut world =
            World::new(seed, SimulationOptions { faults: FaultKinds::NONE, ..SimulationOptions::default() });
        let mut terms = BTreeSet::new();
        while world.now_ms < 20_000 {
            world.turn();
            terms.extend(world.nodes.iter().filter_map(|node| node.leads(0)));
        }
        assert_eq!(terms.len(), 1, "seed {seed}: {terms:?}");
    }
}
