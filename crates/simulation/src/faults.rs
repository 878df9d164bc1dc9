//! What fails: the kinds of faults, which of them a run may have, and how each one happens to a world.
//!
//! A run draws from a mixture: a kind, the node that it begins at, and how long it is at most. Now and then everything is
//! repaired instead, and leadership moves.

use crate::node::Node;
use crate::world::{Added, QUIET_DELAY_MS, QUIET_SYNC_MS, Stop, World};
use mainstem_log::sim::Random;
use std::fmt;
use std::str::FromStr;

/// A kind of fault. Each happens to a node; the next nodes are those behind it, in the order of their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum FaultKind {
    /// A node's process dies, and is started again later.
    Kill,
    /// A node is stopped in order, and started again later.
    CleanStop,
    /// A node's machine loses its power: what was not synced is gone, or there in parts.
    PowerCutOne,
    /// The machines of a node and of the next one do, at the same time.
    PowerCutTwo,
    /// All do.
    PowerCutAll,
    /// Nothing gets from a node to others, or from them to it.
    PartitionOne,
    /// Nothing gets from one half of the nodes to the other half. The smaller half is a node and the next ones.
    PartitionHalf,
    /// Each node reaches its two neighbours alone. Of three nodes, which are neighbours all, a node and the next one do not
    /// reach each other.
    PartitionRing,
    /// Nothing gets from a node to others.
    PartitionOutwards,
    /// Nothing gets from others to a node.
    PartitionInwards,
    /// What goes between a node and others takes up to 305 ms.
    DelayOne,
    /// What goes between any nodes does, and what goes between clients and nodes.
    DelayAll,
    /// The syncs of a node's disk take up to 610 ms.
    SlowDiskOne,
    /// Those of all disks do.
    SlowDiskAll,
    /// The syncs of a node's disk do not end.
    HangingSync,
    /// The next sync of a node's disk fails, and the node ends.
    FailingSync,
    /// A node's disk has room for 8 KB at most.
    FullDisk,
    /// A node's wall clock jumps by up to ten minutes.
    ClockForwards,
    /// It jumps back as far.
    ClockBackwards,
}

use FaultKind::*;

impl FaultKind {
    /// All kinds.
    pub const ALL: [FaultKind; 19] = [
        Kill,
        CleanStop,
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
    ];

    /// The name by which it is chosen and counted.
    pub fn name(self) -> &'static str {
        match self {
            Kill => "kill",
            CleanStop => "clean-stop",
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
        }
    }

    /// Whether it alone may take acknowledged records for good from three nodes, where writes count as persisted (`write.caching`).
    #[cfg(test)]
    pub(crate) fn takes_acknowledged(self) -> bool {
        matches!(self, PowerCutTwo | PowerCutAll | FailingSync)
    }

    /// Whether it stops another node, or its disk, where it begins at `node` of `count`.
    fn stops(self, node: usize, other: usize, count: usize) -> bool {
        match self {
            Kill | CleanStop | PowerCutOne | HangingSync | FailingSync | FullDisk => other == node,
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
/// As text: names with commas between them, `all`, or `none`. A name without its last word is all kinds that begin so:
/// `partition` stands for the five partitions.
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

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether a kind is among them.
    pub fn contains(self, kind: FaultKind) -> bool {
        self.0 & (1 << kind as u8) != 0
    }

    /// Whether wall clocks jump.
    pub(crate) fn has_clocks(self) -> bool {
        self.contains(ClockForwards) || self.contains(ClockBackwards)
    }

    /// What happens next; `None`: a repair.
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

/// A part of the mixture.
struct Slot {
    parts: u64,
    /// The kinds that share it, and what each gets of it.
    kinds: &'static [(FaultKind, u64)],
}

const fn slot(parts: u64, kinds: &'static [(FaultKind, u64)]) -> Slot {
    Slot { parts, kinds }
}

/// How often each kind happens.
const MIXTURE: [Slot; 18] = [
    slot(2, &[(Kill, 100)]),
    slot(2, &[(PowerCutOne, 100)]),
    slot(1, &[(PowerCutAll, 100)]),
    slot(1, &[(CleanStop, 100)]),
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
];
/// So many repairs come on so many faults.
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

/// The kinds that a name stands for.
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
    /// A fault of the mixture, or a repair.
    pub(crate) fn inject(&mut self) {
        let node = self.random.below(self.nodes.len() as u64) as usize;
        let until_ms = self.now_ms + 50 + self.random.below(4_000);
        let kind = self.kinds.draw(&mut self.random);
        let may_happen =
            |kind: &FaultKind| !self.nodes[node].write_caching() || self.may_happen_with_caching(*kind, node);
        match kind.filter(may_happen) {
            Some(kind) => self.begin_fault(kind, node, until_ms),
            None => self.repair_and_move(node),
        }
    }

    /// Where writes count as persisted (`write.caching`), power cuts take what was acknowledged. Of records alone it is known what
    /// was lost; what coordinators and snapshots have made of it is not.
    fn may_happen_with_caching(&self, kind: FaultKind, node: usize) -> bool {
        let takes_records = match self.adds_up() {
            Added::Nothing => false,
            Added::ByCoordinators => self.would_take_acknowledged(kind, node),
            Added::InSnapshots => kind.is_power_cut(),
        };
        kind != FailingSync && !takes_records
    }

    /// Whether acknowledged records may be gone for good with a fault at a node: one that takes the ends of logs, or one that comes
    /// while a node has not caught up since it has lost its own. They are not while a majority reaches each other and has all that it has
    /// acknowledged: it elects one of its nodes, before those that lack something vote.
    fn would_take_acknowledged(&self, kind: FaultKind, node: usize) -> bool {
        if !kind.is_power_cut() && !self.nodes.iter().any(Node::may_lack) {
            return false;
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

    /// A fault happens to a node. What stops a node ends then, and so does what hangs or is full; partitions, delays, slow disks and
    /// wrong clocks last until a repair.
    pub(crate) fn begin_fault(&mut self, kind: FaultKind, node: usize, until_ms: u64) {
        self.count_fault(kind.name());
        let count = self.nodes.len();
        match kind {
            Kill => self.take_down(node, Stop::Kill, until_ms),
            CleanStop => self.take_down(node, Stop::Clean, until_ms),
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
                let room = self.random.below(8_000);
                self.nodes[node].fill_disk(room, until_ms);
            }
            ClockForwards => {
                let by_ms = self.draw_jump();
                self.nodes[node].set_clock(by_ms);
            }
            ClockBackwards => {
                let by_ms = self.draw_jump();
                self.nodes[node].set_clock(-by_ms);
            }
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

/// All choices of nodes.
fn subsets(nodes: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    let is_chosen = |bits: u32, place: usize| bits & (1 << place) != 0;
    let chosen = move |bits| (0..nodes.len()).filter(move |place| is_chosen(bits, *place));
    (0..1u32 << nodes.len()).map(move |bits| chosen(bits).map(|place| nodes[place]).collect())
}

/// Whether nothing gets from the first node of a pair to the second one, in a partition of this kind that begins at a node.
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

    /// All kinds that are chosen are drawn, and no others; some repairs come between.
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
        let mut worlds = (0..100).map(|seed| Cluster::new(seed, options).world);
        worlds.find(|world| world.nodes.iter().all(Node::write_caching)).expect("one of some seven")
    }

    /// At which nodes a fault would take acknowledged records.
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
        // One that is of no use to the others may lose its power.
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
        check_takes(&world, PowerCutOne, &[]);
        // The others are needed until it has caught up, not only until it is back.
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

    /// Who reaches whom, both ways: a line for each node, `x` where it reaches another one or itself.
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
