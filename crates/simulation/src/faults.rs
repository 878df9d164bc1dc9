//! Faults: their kinds, the choice of kinds for a run, and the injection of each into a world.
//!
//! A run draws from a mixture: a kind, the first node, and the longest duration. Sometimes it repairs everything instead, and moves
//! leadership.

use crate::node::{Node, Release};
use crate::world::{QUIET_DELAY_MS, QUIET_SYNC_MS, Stop, World};
use mainstem_log::sim::Random;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Turns between two stalls of a thread, on average, and the longest stall, in ms.
const STALL_TURNS: u64 = 200;
const STALL_MAX_MS: u64 = 1_500;
/// The thread that follows changes of leadership.
const ROLES_THREAD: &str = "cluster-roles";

/// A kind of fault. Each begins at a node. The next nodes are those after it, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum FaultKind {
    /// A node's process dies, and is started again later.
    Kill,
    /// A node stops in order, and is started again later.
    CleanStop,
    /// A node stops in order, and is started again with the other release, in a cluster that is being upgraded.
    Upgrade,
    /// A node's machine loses its power: writes that were not synced are lost or torn.
    PowerCutOne,
    /// The machines of a node and of the next one lose their power at the same time.
    PowerCutTwo,
    /// All machines lose their power at the same time.
    PowerCutAll,
    /// Nothing gets from a node to others, or from them to it.
    PartitionOne,
    /// Nothing gets from one half of the nodes to the other half. The smaller half is a node and the next ones.
    PartitionHalf,
    /// Each node reaches only its two neighbours. With three nodes, which are all neighbours, a node and the next one do not reach each
    /// other.
    PartitionRing,
    /// Nothing gets from a node to others.
    PartitionOutwards,
    /// Nothing gets from others to a node.
    PartitionInwards,
    /// Messages between a node and the others take up to 305 ms.
    DelayOne,
    /// All messages take up to 305 ms, also those of clients.
    DelayAll,
    /// The syncs of a node's disk take up to 610 ms.
    SlowDiskOne,
    /// The syncs of all disks take up to 610 ms.
    SlowDiskAll,
    /// The syncs of a node's disk do not end.
    HangingSync,
    /// The next sync of a node's disk fails, and the node ends.
    FailingSync,
    /// A node's disk has at most 8 KB of free space.
    FullDisk,
    /// A node's wall clock jumps by up to ten minutes.
    ClockForwards,
    /// It jumps back as far.
    ClockBackwards,
    /// A node that fetches a copy of a partition next, or that offers it, dies or loses its power meanwhile.
    SnapshotInterrupted,
    /// A partition gets replicas on all nodes, in a cluster with metadata.
    MemberAdd,
    /// A partition loses its replica on a node, or that moves to another node.
    MemberRemove,
    /// A node's replica of a partition is gone, and another one takes its place.
    MemberReplace,
}

use FaultKind::*;

impl FaultKind {
    /// All kinds.
    pub const ALL: [FaultKind; 24] = [
        Kill,
        CleanStop,
        Upgrade,
        PowerCutOne,
        PowerCutTwo,
        PowerCutAll,
        PartitionOne,
        PartitionHalf,
        PartitionRing,
        PartitionOutwards,
        PartitionInwards,
        DelayOne,
        DelayAll,
        SlowDiskOne,
        SlowDiskAll,
        HangingSync,
        FailingSync,
        FullDisk,
        ClockForwards,
        ClockBackwards,
        SnapshotInterrupted,
        MemberAdd,
        MemberRemove,
        MemberReplace,
    ];

    /// Its name in [`FaultKinds`] and in counts.
    pub fn name(self) -> &'static str {
        match self {
            Kill => "kill",
            CleanStop => "clean-stop",
            Upgrade => "upgrade",
            PowerCutOne => "power-cut-one",
            PowerCutTwo => "power-cut-two",
            PowerCutAll => "power-cut-all",
            PartitionOne => "partition-one",
            PartitionHalf => "partition-half",
            PartitionRing => "partition-ring",
            PartitionOutwards => "partition-outwards",
            PartitionInwards => "partition-inwards",
            DelayOne => "delay-one",
            DelayAll => "delay-all",
            SlowDiskOne => "slow-disk-one",
            SlowDiskAll => "slow-disk-all",
            HangingSync => "hanging-sync",
            FailingSync => "failing-sync",
            FullDisk => "full-disk",
            ClockForwards => "clock-forwards",
            ClockBackwards => "clock-backwards",
            SnapshotInterrupted => "snapshot-interrupted",
            MemberAdd => "member-add",
            MemberRemove => "member-remove",
            MemberReplace => "member-replace",
        }
    }

    /// Returns true if it alone may destroy acknowledged records of three nodes with `write.caching`.
    #[cfg(test)]
    pub(crate) fn takes_acknowledged(self) -> bool {
        matches!(self, PowerCutTwo | PowerCutAll | FailingSync)
    }

    /// Returns true if the fault, beginning at `node` of `count`, stops `other` or its disk.
    fn stops(self, node: usize, other: usize, count: usize) -> bool {
        match self {
            Kill | CleanStop | Upgrade | PowerCutOne | HangingSync | FailingSync | FullDisk => other == node,
            PowerCutTwo => (other + count - node) % count < 2,
            PowerCutAll => true,
            _ => false,
        }
    }

    fn is_power_cut(self) -> bool {
        matches!(self, PowerCutOne | PowerCutTwo | PowerCutAll)
    }
}

/// A choice of kinds of faults.
///
/// As text: names separated by commas, `all`, or `none`. A name without its last word means all kinds that begin with it:
/// `partition` means the five kinds of network partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultKinds(u32);

impl FaultKinds {
    /// Every kind.
    pub const ALL: FaultKinds = FaultKinds::of(&FaultKind::ALL);
    /// No faults.
    pub const NONE: FaultKinds = FaultKinds(0);

    /// These kinds.
    pub const fn of(kinds: &[FaultKind]) -> FaultKinds {
        let (mut bits, mut index) = (0u32, 0);
        while index < kinds.len() {
            bits |= 1u32 << kinds[index] as u8;
            index += 1;
        }
        FaultKinds(bits)
    }

    /// Returns true if there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns true if a kind is among them.
    pub fn contains(self, kind: FaultKind) -> bool {
        self.0 & (1 << kind as u8) != 0
    }

    /// Returns true if wall clocks may jump.
    pub(crate) fn has_clocks(self) -> bool {
        self.contains(ClockForwards) || self.contains(ClockBackwards)
    }

    /// Draws the next fault; `None`: a repair.
    fn draw(self, random: &mut Random) -> Option<FaultKind> {
        let chosen = |slot: &&Slot| slot.kinds.iter().any(|(kind, _)| self.contains(*kind));
        let faults: u64 = MIXTURE.iter().filter(chosen).map(|slot| slot.parts).sum();
        let repairs = (faults * REPAIRS.0).div_ceil(REPAIRS.1);
        let mut part = random.below(faults + repairs);
        let slot = MIXTURE.iter().filter(chosen).find(|slot| {
            let is_it = part < slot.parts;
            part = part.saturating_sub(slot.parts);
            is_it
        })?;
        let kinds: Vec<_> = slot.kinds.iter().filter(|(kind, _)| self.contains(*kind)).collect();
        if let [(kind, _)] = kinds[..] {
            return Some(*kind);
        }
        let mut percent = random.below(kinds.iter().map(|(_, percent)| percent).sum());
        let drawn = kinds.iter().find(|(_, of_kind)| {
            let is_it = percent < *of_kind;
            percent = percent.saturating_sub(*of_kind);
            is_it
        });
        drawn.map(|(kind, _)| *kind)
    }
}

/// An entry of the mixture.
struct Slot {
    parts: u64,
    /// The kinds that share it, and the weight of each.
    kinds: &'static [(FaultKind, u64)],
}

const fn slot(parts: u64, kinds: &'static [(FaultKind, u64)]) -> Slot {
    Slot { parts, kinds }
}

/// Weight of each kind in the choice of the next fault.
const MIXTURE: [Slot; 21] = [
    slot(2, &[(Kill, 100)]),
    slot(2, &[(PowerCutOne, 100)]),
    slot(1, &[(PowerCutAll, 100)]),
    slot(1, &[(CleanStop, 100)]),
    slot(1, &[(Upgrade, 100)]),
    slot(1, &[(PartitionOutwards, 40), (PartitionOne, 60)]),
    slot(1, &[(DelayAll, 100)]),
    slot(1, &[(SlowDiskAll, 100)]),
    slot(2, &[(FullDisk, 100)]),
    slot(1, &[(FailingSync, 100)]),
    slot(1, &[(HangingSync, 100)]),
    slot(1, &[(PowerCutTwo, 100)]),
    slot(1, &[(PartitionHalf, 100)]),
    slot(1, &[(PartitionRing, 100)]),
    slot(1, &[(PartitionInwards, 100)]),
    slot(1, &[(DelayOne, 100)]),
    slot(1, &[(SlowDiskOne, 100)]),
    slot(1, &[(ClockForwards, 100)]),
    slot(1, &[(ClockBackwards, 100)]),
    slot(1, &[(SnapshotInterrupted, 100)]),
    slot(3, &[(MemberAdd, 20), (MemberRemove, 50), (MemberReplace, 30)]),
];
/// Number of repairs, on this number of faults.
const REPAIRS: (u64, u64) = (2, 13);

/// A name that no kind of fault has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no fault `{name}`; there are all, none, {}", names())]
pub struct UnknownFault {
    /// The name.
    pub name: String,
}

/// The names of all kinds.
fn names() -> String {
    FaultKind::ALL.map(FaultKind::name).join(", ")
}

impl FromStr for FaultKinds {
    type Err = UnknownFault;

    fn from_str(text: &str) -> Result<FaultKinds, UnknownFault> {
        let mut chosen = text.split(',').map(|name| kinds_named(name.trim()));
        chosen.try_fold(FaultKinds::NONE, |chosen, kinds| Ok(FaultKinds(chosen.0 | kinds?.0)))
    }
}

/// The kinds that a name means.
fn kinds_named(name: &str) -> Result<FaultKinds, UnknownFault> {
    match name {
        "all" => return Ok(FaultKinds::ALL),
        "none" => return Ok(FaultKinds::NONE),
        _ => {}
    }
    let is_named = |kind: &FaultKind| {
        let rest = kind.name().strip_prefix(name);
        !name.is_empty() && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let kinds: Vec<_> = FaultKind::ALL.into_iter().filter(is_named).collect();
    if kinds.is_empty() {
        return Err(UnknownFault { name: name.to_owned() });
    }
    Ok(FaultKinds::of(&kinds))
}

impl fmt::Display for FaultKinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = FaultKind::ALL.into_iter().filter(|kind| self.contains(*kind)).collect();
        match *self {
            FaultKinds::ALL => f.write_str("all"),
            FaultKinds::NONE => f.write_str("none"),
            _ => f.write_str(&names.into_iter().map(FaultKind::name).collect::<Vec<_>>().join(",")),
        }
    }
}

impl World {
    /// Injects a fault of the mixture, or repairs everything.
    pub(crate) fn inject(&mut self) {
        let node = self.random.below(self.nodes.len() as u64) as usize;
        let until_ms = self.now_ms + 50 + self.random.below(4_000);
        let kind = self.kinds.draw(&mut self.random);
        match kind.filter(|kind| self.may_happen(*kind, node)) {
            Some(kind) => self.begin_fault(kind, node, until_ms),
            None => self.repair_and_move(node),
        }
    }

    /// Returns true if the run may have this fault at a node.
    pub(crate) fn may_happen(&self, kind: FaultKind, node: usize) -> bool {
        !self.nodes[node].write_caching() || self.may_happen_with_caching(kind, node)
    }

    /// Has the next start of a node run the other release, if its cluster is being upgraded.
    fn change_release(&mut self, node: usize) {
        let other = match self.nodes[node].release() {
            Release::OLD => Release::UPGRADED,
            Release::UPGRADED => Release::OLD,
            same => same,
        };
        self.nodes[node].set_release(other);
    }

    /// Has the next start of a node run the new release, since the old one was refused.
    ///
    /// # Panics
    /// If there is no reason to refuse it.
    pub(crate) fn upgrade_refused(&mut self, node: usize) {
        assert_eq!(self.nodes[node].release(), Release::OLD, "the new release is refused");
        assert!(self.is_finalising, "refused at the old level");
        self.nodes[node].set_release(Release::UPGRADED);
        self.count_fault("old release refused");
    }

    /// Now and then has a thread of a whole node wait for the processor.
    pub(crate) fn stall_a_thread(&mut self) {
        if self.random.below(STALL_TURNS) == 0 {
            self.stall(|threads, random| Some(random.below(threads.len() as u64) as usize));
        }
    }

    /// Has the thread of a node wait for the processor that follows changes of leadership.
    pub(crate) fn stall_roles_of(&mut self, node: usize) {
        let Some(group) = self.nodes[node].group() else { return };
        self.stall(|threads, _| {
            threads.iter().position(|(of, name)| *of == group.number() && *name == ROLES_THREAD)
        });
    }

    fn stall(&mut self, pick: impl FnOnce(&[(u64, &str)], &mut Random) -> Option<usize>) {
        let Some(schedule) = self.schedule.clone() else { return };
        let time = Duration::from_millis(1 + self.random.below(STALL_MAX_MS));
        let random = &mut self.random;
        if schedule.stall(time, |threads| pick(threads, random)) {
            self.count_fault("busy processor");
        }
    }

    /// Returns true if the run may have this fault. With `write.caching`, power cuts destroy acknowledged records. The checker can account
    /// for lost records, but not for coordinators that were built from them.
    fn may_happen_with_caching(&self, kind: FaultKind, node: usize) -> bool {
        let takes_records = self.has_coordinators() && self.would_take_acknowledged(kind, node);
        kind != FailingSync && !takes_records
    }

    /// Returns true if a fault at a node may destroy acknowledged records: if it truncates logs, or comes before a node has caught up
    /// after its own loss. They survive if a majority stays connected and has all that it has acknowledged: it elects one of its nodes
    /// before nodes with losses vote.
    fn would_take_acknowledged(&self, kind: FaultKind, node: usize) -> bool {
        if !kind.is_power_cut() && !self.nodes.iter().any(Node::may_lack) {
            return false;
        }
        // Not all nodes vote on everything now.
        if self.moves_replicas {
            return true;
        }
        let count = self.nodes.len();
        let stays = |each: &usize| !kind.stops(node, *each, count) && self.nodes[*each].is_sound(self.now_ms);
        let sound: Vec<_> = (0..count).filter(stays).collect();
        let is_apart = |pair| self.cut.contains(&pair) || is_cut(kind, node, count, pair);
        let reach_each_other = |nodes: &[usize]| {
            let mut pairs = nodes.iter().flat_map(|from| nodes.iter().map(move |to| (*from, *to)));
            pairs.all(|pair| !is_apart(pair))
        };
        let is_there = subsets(&sound).any(|nodes| nodes.len() > count / 2 && reach_each_other(&nodes));
        !is_there
    }

    /// Begins a fault at a node. Stops, hanging syncs and full disks end at `until_ms`. Partitions, delays, slow disks and wrong clocks
    /// last until a repair.
    pub(crate) fn begin_fault(&mut self, kind: FaultKind, node: usize, until_ms: u64) {
        self.count_fault(kind.name());
        let count = self.nodes.len();
        match kind {
            Kill => self.take_down(node, Stop::Kill, until_ms),
            CleanStop => self.take_down(node, Stop::Clean, until_ms),
            Upgrade => {
                self.change_release(node);
                self.take_down(node, Stop::Clean, until_ms);
            }
            PowerCutOne => self.take_down(node, Stop::PowerCut, until_ms),
            PowerCutTwo => {
                let both = (node..node + count.min(2)).map(|each| each % count);
                both.for_each(|each| self.take_down(each, Stop::PowerCut, until_ms));
            }
            PowerCutAll => (0..count).for_each(|each| self.take_down(each, Stop::PowerCut, until_ms)),
            PartitionOne | PartitionHalf | PartitionRing | PartitionOutwards | PartitionInwards => {
                let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
                self.cut.extend(pairs.filter(|pair| is_cut(kind, node, count, *pair)));
            }
            DelayOne => {
                let delay_max_ms = self.draw_delay();
                self.nodes[node].delay_links(delay_max_ms);
            }
            DelayAll => self.delay_max_ms = self.draw_delay(),
            SlowDiskOne => {
                let sync_max_ms = self.draw_sync();
                self.nodes[node].slow_disk(sync_max_ms);
            }
            SlowDiskAll => self.sync_max_ms = self.draw_sync(),
            HangingSync => self.nodes[node].hang_disk(until_ms),
            FailingSync => self.nodes[node].fail_sync(),
            FullDisk => {
                let free_bytes = self.random.below(8_000);
                self.nodes[node].fill_disk(free_bytes, until_ms);
            }
            ClockForwards => {
                let by_ms = self.draw_jump();
                self.nodes[node].set_clock(by_ms);
            }
            ClockBackwards => {
                let by_ms = self.draw_jump();
                self.nodes[node].set_clock(-by_ms);
            }
            SnapshotInterrupted => self.interrupts_copy = true,
            MemberAdd | MemberRemove | MemberReplace => self.member_fault = Some((kind, node)),
        }
    }

    fn draw_delay(&mut self) -> u64 {
        QUIET_DELAY_MS + self.random.below(300)
    }

    fn draw_sync(&mut self) -> u64 {
        QUIET_SYNC_MS + self.random.below(600)
    }

    fn draw_jump(&mut self) -> i64 {
        1_000 + self.random.below(599_000) as i64
    }
}

/// All subsets of nodes.
fn subsets(nodes: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    let is_chosen = |bits: u32, place: usize| bits & (1 << place) != 0;
    let chosen = move |bits| (0..nodes.len()).filter(move |place| is_chosen(bits, *place));
    (0..1u32 << nodes.len()).map(move |bits| chosen(bits).map(|place| nodes[place]).collect())
}

/// Returns true if a network partition of this kind that begins at `node` drops all messages from the first node of the pair to the
/// second one.
fn is_cut(kind: FaultKind, node: usize, count: usize, (from, to): (usize, usize)) -> bool {
    // Places in the order that begins at the node.
    let place = |each: usize| (each + count - node) % count;
    let (from, to) = (place(from), place(to));
    let apart = from.abs_diff(to);
    match kind {
        _ if from == to => false,
        PartitionOne => from == 0 || to == 0,
        PartitionOutwards => from == 0,
        PartitionInwards => to == 0,
        PartitionHalf => (from < count / 2) != (to < count / 2),
        PartitionRing if count == 3 => from.max(to) == 1,
        PartitionRing => apart != 1 && apart != count - 1,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Cluster, ClusterOptions};
    use crate::world::has_caching;
    use std::collections::BTreeSet;

    fn check_choice(text: &str, expected: &[FaultKind]) {
        assert_eq!(text.parse(), Ok(FaultKinds::of(expected)), "{text}");
    }

    #[test]
    fn kinds_are_chosen_by_name() {
        check_choice("all", &FaultKind::ALL);
        check_choice("none", &[]);
        check_choice("kill, full-disk", &[Kill, FullDisk]);
        check_choice("power-cut,clock-backwards", &[PowerCutOne, PowerCutTwo, PowerCutAll, ClockBackwards]);
        let partitions = [PartitionOne, PartitionHalf, PartitionRing, PartitionOutwards, PartitionInwards];
        check_choice("partition", &partitions);
        for kind in FaultKind::ALL {
            check_choice(kind.name(), &[kind]);
            assert_eq!(FaultKinds::of(&[kind]).to_string(), kind.name());
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_list() {
        for (text, name) in [("kil", "kil"), ("kill,", ""), ("", ""), ("true", "true")] {
            let error = text.parse::<FaultKinds>().expect_err(text);
            assert_eq!(error.name, name);
            let said = error.to_string();
            assert!(FaultKind::ALL.iter().all(|kind| said.contains(kind.name())), "{said}");
        }
    }

    /// Draws all chosen kinds and no others, with some repairs between them.
    #[test]
    fn the_mixture_has_what_is_chosen() {
        let mut random = Random::new(1);
        let alone = FaultKind::ALL.map(|kind| vec![kind]);
        let some = vec![Kill, PartitionOne, PartitionOutwards, ClockForwards];
        for kinds in alone.into_iter().chain([some, FaultKind::ALL.to_vec()]) {
            let chosen = FaultKinds::of(&kinds);
            let drawn: BTreeSet<_> = (0..2_000).map(|_| chosen.draw(&mut random)).collect();
            let expected = kinds.iter().copied().map(Some).chain([None]).collect();
            assert_eq!(drawn, expected, "{chosen}");
        }
    }

    /// A whole cluster with caching, which is drawn from the seed.
    fn with_caching(nodes: usize) -> World {
        let options = ClusterOptions { nodes, ..ClusterOptions::default() };
        let seed = (0..100).find(|seed| has_caching(*seed)).expect("one of some seven");
        let world = Cluster::new(seed, options).world;
        assert!(world.nodes.iter().all(Node::write_caching));
        world
    }

    fn run_until_all_serve(world: &mut World) {
        let since_ms = world.now_ms;
        while !world.serves_all() {
            assert!(world.now_ms < since_ms + 5_000, "a node does not serve");
            world.turn();
        }
    }

    /// Checks at which nodes a fault would destroy acknowledged records.
    fn check_takes(world: &World, kind: FaultKind, expected: &[usize]) {
        let takes = |node: &usize| world.would_take_acknowledged(kind, *node);
        let taken: Vec<_> = (0..world.nodes.len()).filter(takes).collect();
        assert_eq!(taken, expected, "{kind:?}");
    }

    #[test]
    fn records_may_be_lost_where_no_majority_is_left_without_what_power_cuts_took() {
        let mut world = with_caching(3);
        check_takes(&world, PowerCutOne, &[]);
        check_takes(&world, PowerCutTwo, &[0, 1, 2]);
        check_takes(&world, PowerCutAll, &[0, 1, 2]);
        [Kill, HangingSync, PartitionHalf].iter().for_each(|kind| check_takes(&world, *kind, &[]));
        // A node that the others do not need may lose its power.
        world.begin_fault(PartitionOne, 1, 0);
        check_takes(&world, PowerCutOne, &[0, 2]);
        world.cut.clear();
        world.begin_fault(PartitionRing, 1, 0);
        check_takes(&world, PowerCutOne, &[0]);
        world.cut.clear();
        world.nodes[1].hang_disk(1_000);
        check_takes(&world, PowerCutOne, &[0, 2]);
        world.nodes[1].hang_disk(0);
        world.nodes[1].fill_disk(0, 1_000);
        check_takes(&world, PowerCutOne, &[0, 2]);
        world.nodes[1].repair();
        world.take_down(1, Stop::Kill, u64::MAX);
        check_takes(&world, PowerCutOne, &[0, 2]);
        world.nodes[1].come_back();
        // Until it serves, it has not opened its partitions.
        check_takes(&world, PowerCutOne, &[0, 2]);
        run_until_all_serve(&mut world);
        check_takes(&world, PowerCutOne, &[]);
        // The others are needed until it has caught up, which is later than its return.
        world.take_down(1, Stop::PowerCut, u64::MAX);
        for is_back in [false, true] {
            if is_back {
                world.nodes[1].come_back();
            }
            for kind in [Kill, CleanStop, PowerCutOne, HangingSync, FullDisk, PartitionOne, PartitionInwards]
            {
                check_takes(&world, kind, &[0, 2]);
            }
            check_takes(&world, PartitionRing, &[2]);
            [ClockForwards, SlowDiskAll].iter().for_each(|kind| check_takes(&world, *kind, &[]));
        }
        while world.nodes[1].may_lack() {
            assert!(world.now_ms < 20_000, "it does not catch up");
            world.turn();
        }
        check_takes(&world, Kill, &[]);
    }

    #[test]
    fn of_five_nodes_two_may_lose_their_power() {
        let mut world = with_caching(5);
        check_takes(&world, PowerCutTwo, &[]);
        check_takes(&world, PowerCutAll, &[0, 1, 2, 3, 4]);
        world.begin_fault(PowerCutTwo, 4, u64::MAX);
        check_takes(&world, Kill, &[1, 2, 3]);
        check_takes(&world, PowerCutTwo, &[0, 1, 2, 3]);
    }

    /// Checks which nodes reach each other, both ways: a line for each node, with `x` for each node that it reaches.
    fn check_reach(kind: FaultKind, node: usize, expected: &[&str]) {
        let count = expected.len();
        let reaches = |from, to| if is_cut(kind, node, count, (from, to)) { '.' } else { 'x' };
        let line = |from| (0..count).map(|to| reaches(from, to)).collect::<String>();
        assert_eq!((0..count).map(line).collect::<Vec<_>>(), expected, "{kind:?} at {node}");
    }

    #[test]
    fn partitions_cut_what_they_say() {
        check_reach(PartitionOne, 1, &["x.x", ".x.", "x.x"]);
        check_reach(PartitionOutwards, 1, &["xxx", ".x.", "xxx"]);
        check_reach(PartitionInwards, 1, &["x.x", "xxx", "x.x"]);
        check_reach(PartitionHalf, 2, &["xx.", "xx.", "..x"]);
        check_reach(PartitionHalf, 4, &["x...x", ".xxx.", ".xxx.", ".xxx.", "x...x"]);
        check_reach(PartitionRing, 2, &["xx.", "xxx", ".xx"]);
        check_reach(PartitionRing, 0, &["xx..x", "xxx..", ".xxx.", "..xxx", "x..xx"]);
        check_reach(PartitionHalf, 0, &["x"]);
    }
}
