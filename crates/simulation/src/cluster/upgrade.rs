//! The upgrade of a cluster to a new release: an operator restarts one node after the other with it, and raises the level of
//! `mainstem.version` in the end. Until then a node may go back to the release before.
//!
//! The operator draws from a generator of its own, so that it does not change the rest of a run.

use super::{Cluster, ClusterOptions};
use crate::faults::FaultKind;
use crate::node::{Release, formats_of};
use crate::world::World;
use mainstem_controller::features::MAINSTEM_VERSION;
use mainstem_log::meta_properties::LEVEL_2_FORMAT_VERSION;
use mainstem_log::sim::Random;
use mainstem_node::node::Node as BrokerNode;
use mainstem_replication::journal::JournalFormat;
use mainstem_wire::messages::update_features_request::{FeatureUpdateKey, UpdateFeaturesRequest};
use parking_lot::Mutex;
use std::sync::Arc;

/// Percent of the runs in which the cluster is upgraded.
const RUNS_PERCENT: u64 = 50;
/// Sets the generator apart from that of the world.
const SEED_OF_UPGRADES: u64 = 0x7570_6772_6164_6573;
/// Percent of the nodes that run the new release from the start, in a cluster that is upgraded.
const NEW_NODES_PERCENT: u64 = 20;
/// Time of the operator's first act, in ms.
const FIRST_MS: u64 = 2_000;
/// Longest time between two acts, in ms.
const PAUSE_MAX_MS: u64 = 1_800;
/// Percent of the acts that come before their time: a node goes back, or the level is to be raised while a node runs the old release.
const EARLY_PERCENT: u64 = 20;
/// Longest time until a node is started again, in ms.
const DOWN_MAX_MS: u64 = 1_000;
/// Timeout of a request, in ms.
const ANSWER_MAX_MS: u64 = 6_000;
/// Turns between two checks of the formats of a node.
const CHECK_TURNS: u64 = 20;
/// The level to which the operator raises.
const LEVEL: i16 = MAINSTEM_VERSION.max;

/// The result of a request to raise the level: it was raised, or refused. `None`: not known.
type Answer = Arc<Mutex<Option<bool>>>;

/// The operator.
pub(crate) struct Upgrade {
    random: Random,
    next_ms: u64,
    asked: Option<Asked>,
    /// It was raised, or a request to do so had no answer.
    may_be_raised: bool,
    is_stopped: bool,
}

/// A request to raise the level.
struct Asked {
    until_ms: u64,
    answer: Answer,
}

/// Returns true if the cluster of a run begins with the old release.
pub(super) fn is_upgraded(seed: u64, options: &ClusterOptions) -> bool {
    options.faults.contains(FaultKind::Upgrade) && generator(seed).chance(RUNS_PERCENT)
}

fn generator(seed: u64) -> Random {
    Random::new(seed ^ SEED_OF_UPGRADES)
}

/// Sets the releases that nodes run at first.
pub(super) fn set_first_releases(world: &mut World, seed: u64, options: &ClusterOptions) {
    if !is_upgraded(seed, options) {
        return;
    }
    let mut random = generator(!seed);
    for node in &mut world.nodes {
        let is_new = random.chance(NEW_NODES_PERCENT);
        node.set_release(if is_new { Release::UPGRADED } else { Release::OLD });
    }
}

impl Upgrade {
    /// The operator of a run, if its cluster is upgraded.
    pub(super) fn new(seed: u64, options: &ClusterOptions) -> Option<Upgrade> {
        let next_ms = FIRST_MS;
        is_upgraded(seed, options).then(|| Upgrade {
            random: generator(seed.rotate_left(32)),
            next_ms,
            asked: None,
            may_be_raised: false,
            is_stopped: false,
        })
    }

    /// Has it restart no more nodes.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
    }
}

impl Cluster {
    /// Lets the operator act, and checks the formats of nodes.
    pub(super) fn turn_upgrade(&mut self) {
        for node in 0..self.world.nodes.len() {
            if self.world.is_turn_of(node, CHECK_TURNS) {
                self.check_formats(node);
            }
        }
        let Some(mut upgrade) = self.upgrade.take() else { return };
        self.take_answer(&mut upgrade);
        if upgrade.asked.is_none() && self.world.now_ms >= upgrade.next_ms {
            upgrade.next_ms = self.world.now_ms + 1 + upgrade.random.below(PAUSE_MAX_MS);
            match upgrade.is_stopped {
                false => self.act(&mut upgrade),
                true if self.run_new_release() => self.raise(&mut upgrade),
                true => {}
            }
        }
        self.upgrade = Some(upgrade);
    }

    fn act(&mut self, upgrade: &mut Upgrade) {
        let is_early = upgrade.random.chance(EARLY_PERCENT);
        let is_old = |node: &usize| self.world.nodes[*node].release() == Release::OLD;
        let (old, new): (Vec<_>, Vec<_>) = (0..self.world.nodes.len()).partition(is_old);
        let draw = |of: &[usize], random: &mut Random| {
            of.get(random.below(of.len().max(1) as u64) as usize).copied()
        };
        let goes_back = is_early && upgrade.random.chance(50);
        match draw(if goes_back { &new } else { &old }, &mut upgrade.random) {
            Some(node) if goes_back || !is_early => {
                self.restart_with_other_release(node, &mut upgrade.random)
            }
            _ => self.raise(upgrade),
        }
    }

    fn restart_with_other_release(&mut self, node: usize, random: &mut Random) {
        let until_ms = self.world.now_ms + 1 + random.below(DOWN_MAX_MS);
        if self.world.may_happen(FaultKind::Upgrade, node) {
            self.world.begin_fault(FaultKind::Upgrade, node, until_ms);
        }
    }

    /// Asks the metadata leader to raise the level, whatever the nodes run.
    fn raise(&mut self, upgrade: &mut Upgrade) {
        let Some((node, group)) = self.world.deciding() else { return };
        if node.controller.image().mainstem_version() >= LEVEL {
            return;
        }
        let (own, answer) = (node.clone(), Answer::default());
        let given = answer.clone();
        group.spawn("operator", move || *given.lock() = ask(&own)).expect("a thread");
        upgrade.asked = Some(Asked { until_ms: self.world.now_ms + ANSWER_MAX_MS, answer });
        self.world.is_finalising = true;
    }

    fn take_answer(&mut self, upgrade: &mut Upgrade) {
        let Some(Asked { until_ms, answer }) = &upgrade.asked else { return };
        let answer = *answer.lock();
        match answer {
            None if self.world.now_ms < *until_ms => return,
            // It may be raised now or later.
            None => upgrade.may_be_raised = true,
            Some(true) => {
                upgrade.may_be_raised = true;
                self.done.add("level raised");
            }
            Some(false) => {
                self.done.add("level refused");
                self.world.is_finalising = upgrade.may_be_raised;
            }
        }
        upgrade.asked = None;
    }

    /// Checks that a node has written nothing of a level that was not raised.
    ///
    /// # Panics
    /// If it has.
    fn check_formats(&self, node: usize) {
        let node = &self.world.nodes[node];
        let Some((of_broker, _)) = node.in_service() else { return };
        let level = of_broker.controller.image().mainstem_version();
        let is_begun = node.release().first_mainstem_version >= LEVEL;
        let may_be = is_begun || (self.world.is_finalising && node.release() != Release::OLD);
        assert!(level < LEVEL || may_be, "{}: level {level}", node.id());
        let is_new = |format: &JournalFormat| *format > JournalFormat::V1;
        let has_new = formats_of(of_broker).iter().any(is_new);
        assert!(level >= LEVEL || !has_new, "{}: at level {level}", node.id());
        let is_refused_by_older = node.format_version() >= LEVEL_2_FORMAT_VERSION;
        assert!(is_refused_by_older || !has_new, "{}: a journal before its directory", node.id());
    }

    /// Returns true if no node runs the old release.
    fn run_new_release(&self) -> bool {
        self.world.nodes.iter().all(|node| node.release() != Release::OLD)
    }

    /// Returns true if the level is raised, where all nodes run the new release, and each node has the formats of the level.
    pub(super) fn has_ended_upgrade(&self) -> bool {
        let has_level = |node: &BrokerNode| node.controller.image().mainstem_version() >= LEVEL;
        let is_due = self.run_new_release();
        self.world.nodes.iter().all(|node| {
            let Some((node, _)) = node.in_service() else { return false };
            let expected = if has_level(node) { JournalFormat::V2 } else { JournalFormat::V1 };
            (has_level(node) || !is_due) && formats_of(node).iter().all(|format| *format == expected)
        })
    }
}

/// Raises the level at a node that decides.
fn ask(node: &BrokerNode) -> Option<bool> {
    let update = FeatureUpdateKey {
        feature: MAINSTEM_VERSION.name.into(),
        max_version_level: LEVEL,
        upgrade_type: 1,
        ..FeatureUpdateKey::default()
    };
    let request = UpdateFeaturesRequest { feature_updates: vec![update], ..UpdateFeaturesRequest::default() };
    let controller = &node.controller;
    let answer = controller.decide(|machine| machine.update_features(controller.view(), &request, 1));
    answer.ok().map(|response| response.error_code == 0)
}
