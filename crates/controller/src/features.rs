//! Features: abilities beyond the versions of APIs (KIP-584), and UpdateFeatures (57), v0-2, which raises and lowers their levels. Only
//! real abilities are advertised.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::RangeInclusive;

use mainstem_config::Quorum;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::feature_level_record::FeatureLevelRecord;
use mainstem_wire::messages::update_features_request::{FeatureUpdateKey, UpdateFeaturesRequest};
use mainstem_wire::messages::update_features_response::{UpdatableFeatureResult, UpdateFeaturesResponse};
use mainstem_wire::metadata_frame::MetadataRecord;

use super::error::ApiError;
use super::image::{BrokerImage, FeatureRanges, MetadataImage};
use super::node_view::NodeView;
use super::registration::registration_record;
use super::state_machine::{Decision, MetadataStateMachine};

/// A feature and the levels at which this program can work. A new cluster starts with the highest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// Kafka's name.
    pub name: &'static str,
    /// The lowest level.
    pub min: i16,
    /// The highest level.
    pub max: i16,
}

/// `metadata.version` of Kafka 4.3 (4.3-IV0): the versions of metadata records that are written here.
pub const METADATA_VERSION: Feature = Feature { name: "metadata.version", min: 30, max: 30 };

/// `group.version` 1: the consumer group protocol (KIP-848) is served, whatever the level of the cluster.
pub const GROUP_VERSION: Feature = Feature { name: "group.version", min: 1, max: 1 };

/// `transaction.version` (KIP-890, KIP-1228): from 2 on the epoch of a producer rises with each of its transactions. At 0
/// the records of the coordinator are those of Kafka before 4.0.
pub const TRANSACTION_VERSION: Feature = Feature { name: "transaction.version", min: 0, max: 2 };

/// Every feature. Those of share and streams groups are added when they work: clients choose their protocol by them.
pub const FEATURES: &[Feature] = &[METADATA_VERSION, GROUP_VERSION, TRANSACTION_VERSION];

/// `mainstem.version`: the level up to which the nodes of a cluster write what an older release does not know, on their disks and to each
/// other. Level 1 is Mainstem 0.1, level 2 is 0.2. A cluster whose metadata do not name it works at level 1.
///
/// It is raised when all nodes run a release that knows the level, and never lowered. Only clusters of several nodes have it: the
/// directory of a single node can go back to Kafka, which starts with no feature that it does not know.
pub const MAINSTEM_VERSION: Feature = Feature { name: "mainstem.version", min: 1, max: 2 };

/// Features of Kafka 4.3 that are kept for it and not served: a directory of Kafka's has them finalised, and Kafka finds
/// them again. Clients do not see them.
const KEPT: &[Feature] = &[
    Feature { name: "eligible.leader.replicas.version", min: 0, max: 1 },
    Feature { name: "share.version", min: 0, max: 1 },
    Feature { name: "streams.version", min: 0, max: 1 },
];

/// `metadata.version` of Kafka 3.9 (3.9-IV0): the lowest from which a directory is raised to [`METADATA_VERSION`].
pub const METADATA_VERSION_RAISED_FROM: i16 = 21;

/// `UpgradeType` of a request (KIP-778): what the client allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UpgradeType {
    Upgrade,
    /// Safe and unsafe downgrades are alike: no feature here loses anything by one.
    Downgrade,
}

impl MetadataImage {
    /// Returns a finalised feature, with its level, that this program does not support: a newer program has written the directory, and the
    /// start must be refused. To be called when the log is replayed.
    ///
    /// A `metadata.version` from [`METADATA_VERSION_RAISED_FROM`] on is none: the node's registration raises it.
    pub fn unsupported_feature(&self, view: &NodeView) -> Option<(&str, i16)> {
        self.features().find(|(name, level)| {
            let lowest = |known: &Feature| match known.name == METADATA_VERSION.name {
                true => METADATA_VERSION_RAISED_FROM,
                false => known.min,
            };
            let mut known = view.features().chain(KEPT);
            !known.any(|known| known.name == *name && (lowest(known)..=known.max).contains(level))
        })
    }

    /// The finalised features that are served, with their levels: those that clients see.
    pub fn served_features(&self, view: &NodeView) -> impl Iterator<Item = (&str, i16)> {
        let known = FEATURES.iter().filter_map(|known| Some((known.name, self.feature(known.name)?)));
        let level = view.has_several_nodes().then(|| (MAINSTEM_VERSION.name, self.mainstem_version()));
        known.chain(level)
    }

    /// The level of [`MAINSTEM_VERSION`] at which the cluster works.
    pub fn mainstem_version(&self) -> i16 {
        self.feature(MAINSTEM_VERSION.name).unwrap_or(MAINSTEM_VERSION.min)
    }
}

impl NodeView {
    /// The features of this node, with the levels at which it can work.
    pub fn features(&self) -> impl Iterator<Item = &Feature> {
        FEATURES.iter().chain(self.has_several_nodes().then_some(&self.mainstem_version))
    }

    /// The levels of [`MAINSTEM_VERSION`] at which this node can work.
    pub fn mainstem_versions(&self) -> RangeInclusive<i16> {
        self.mainstem_version.min..=self.mainstem_version.max
    }

    /// The features of this node with the levels at which it can work, as its registration has them.
    pub fn feature_ranges(&self) -> FeatureRanges {
        self.features().map(|known| (known.name.to_owned(), (known.min, known.max))).collect()
    }
}

/// Most features that a node may name, and the longest name in bytes: more than any release has.
const FEATURES_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 249;

/// Returns true if a node may name these features. They come from another process.
pub(super) fn are_sound(features: &FeatureRanges) -> bool {
    let is_sound = |(name, (min, max)): (&String, &(i16, i16))| {
        (1..=NAME_BYTES_MAX).contains(&name.len()) && (0..=*max).contains(min)
    };
    features.len() <= FEATURES_MAX && features.iter().all(is_sound)
}

/// The features of Mainstem 0.1, which it does not name to the node that registers it.
const FEATURES_OF_0_1: [(&str, (i16, i16)); 3] =
    [("metadata.version", (30, 30)), ("group.version", (1, 1)), ("transaction.version", (0, 2))];

/// The features of a node whose registration names none. Mainstem 0.1 says none to the node that registers it, and leaves them out of
/// snapshots.
pub(super) fn ranges_of_unnamed() -> FeatureRanges {
    FEATURES_OF_0_1.iter().map(|(name, range)| ((*name).to_owned(), *range)).collect()
}

/// Returns the lowest and highest level of a feature that a node of these features can work at; `None` if it does not know the feature.
fn range_of(features: &FeatureRanges, name: &str) -> Option<(i16, i16)> {
    let is_mainstem = name == MAINSTEM_VERSION.name;
    let first = (MAINSTEM_VERSION.min, MAINSTEM_VERSION.min);
    match features.is_empty() {
        true => ranges_of_unnamed().get(name).copied(),
        false => features.get(name).copied(),
    }
    .or(is_mainstem.then_some(first))
}

/// Returns true if a node of these features can work at a level of [`MAINSTEM_VERSION`].
pub(super) fn works_at(features: &FeatureRanges, level: i16) -> bool {
    range_of(features, MAINSTEM_VERSION.name).is_some_and(|(min, max)| (min..=max).contains(&level))
}

/// Checks that nodes can work at a level of a feature; the errors have Kafka's messages.
fn check_nodes<'a>(
    mut nodes: impl Iterator<Item = &'a BrokerImage>,
    name: &str,
    level: i16,
) -> Result<(), String> {
    let refusal = |node: &BrokerImage| match range_of(&node.features, name) {
        None => Some(format!("Broker {} does not support this feature.", node.id)),
        Some((min, max)) if !(min..=max).contains(&level) => {
            Some(format!("Broker {} only supports versions {min}-{max}", node.id))
        }
        Some(_) => None,
    };
    nodes.find_map(refusal).map_or(Ok(()), Err)
}

impl MetadataStateMachine {
    /// Sets the levels of all features of a request, or of none: the first error is that of the whole request.
    pub fn update_features(
        &mut self,
        view: &NodeView,
        request: &UpdateFeaturesRequest<'_>,
        version: i16,
    ) -> Decision<UpdateFeaturesResponse<'static>> {
        match self.feature_records(view, request, version) {
            Ok(records) => {
                let results = request.feature_updates.iter().map(|update| UpdatableFeatureResult {
                    feature: Cow::Owned(update.feature.to_string()),
                    // Kafka's word for success.
                    error_message: Some(Cow::Borrowed("NONE")),
                    ..UpdatableFeatureResult::default()
                });
                let results = if version < 2 { results.collect() } else { Vec::new() };
                let response = UpdateFeaturesResponse {
                    error_message: None,
                    results,
                    ..UpdateFeaturesResponse::default()
                };
                self.decide(if request.validate_only { vec![] } else { records }, response)
            }
            Err(error) => {
                let response = UpdateFeaturesResponse {
                    error_code: error.code.0,
                    error_message: Some(Cow::Owned(error.message)),
                    ..UpdateFeaturesResponse::default()
                };
                self.decide(vec![], response)
            }
        }
    }

    /// Has the registration of a node name its features. The node was registered by an older release, which passes them over. Nothing
    /// changes for another start of the node.
    pub fn note_features(&mut self, node: i32, broker_epoch: i64, features: &FeatureRanges) -> Decision<()> {
        let registered = self.ahead().broker(node).filter(|broker| broker.epoch == broker_epoch);
        let is_news = |broker: &&BrokerImage| {
            broker.features != *features
                && are_sound(features)
                && works_at(features, self.ahead().mainstem_version())
        };
        let record = registered
            .filter(is_news)
            .map(|broker| registration_record(&BrokerImage { features: features.clone(), ..broker.clone() }));
        self.decide(record.into_iter().collect(), ())
    }

    fn feature_records(
        &self,
        view: &NodeView,
        request: &UpdateFeaturesRequest<'_>,
        version: i16,
    ) -> Result<Vec<MetadataRecord<'static>>, ApiError> {
        let mut named = HashSet::new();
        let mut records = Vec::new();
        for update in &request.feature_updates {
            let level = update.max_version_level;
            if !named.insert(update.feature.as_ref()) {
                let message = format!("Feature {} must appear at most once.", update.feature);
                return Err(ApiError::new(ErrorCode::INVALID_REQUEST, message));
            }
            self.check_update(view, update, version).map_err(|why| {
                ApiError::new(
                    ErrorCode::INVALID_UPDATE_VERSION,
                    format!(
                        "The update failed for all features since the following feature had an error: \
                         Invalid update version {level} for feature {}. {why}",
                        update.feature
                    ),
                )
            })?;
            if level != self.finalised_level(&update.feature) {
                records.push(MetadataRecord::FeatureLevelRecord(Box::new(FeatureLevelRecord {
                    name: Cow::Owned(update.feature.to_string()),
                    feature_level: level,
                    ..FeatureLevelRecord::default()
                })));
            }
        }
        Ok(records)
    }

    /// Checks that a level is possible; the errors have Kafka's messages.
    fn check_update(
        &self,
        view: &NodeView,
        update: &FeatureUpdateKey<'_>,
        version: i16,
    ) -> Result<(), String> {
        let upgrade_type = upgrade_type(update, version)
            .ok_or_else(|| "The controller does not support the given upgrade type.".to_string())?;
        let (level, node) = (update.max_version_level, view.node_id());
        let is_mainstem = update.feature == MAINSTEM_VERSION.name;
        if level < 0 {
            return Err("A feature version cannot be less than 0.".to_string());
        }
        match view.features().find(|known| known.name == update.feature) {
            None if level == 0 => return Err(format!("Feature {} not found.", update.feature)),
            None => return Err(format!("Local controller {node} does not support this feature.")),
            Some(known) if !(known.min..=known.max).contains(&level) => {
                return Err(format!(
                    "Local controller {node} only supports versions {}-{}",
                    known.min, known.max
                ));
            }
            Some(_) => {}
        }
        let current = self.finalised_level(&update.feature);
        match upgrade_type {
            UpgradeType::Upgrade if level < current => {
                Err("Can't downgrade the version of this feature without setting the upgrade type to either \
                     safe or unsafe downgrade."
                    .to_string())
            }
            UpgradeType::Downgrade if level > current => {
                Err("Can't downgrade to a newer version.".to_string())
            }
            UpgradeType::Downgrade if is_mainstem && level < current => {
                Err("Nodes may have written what the lower level does not have: it is never lowered."
                    .to_string())
            }
            UpgradeType::Upgrade if is_mainstem && level > current => {
                self.check_voters(view)?;
                check_nodes(self.ahead().brokers(), &update.feature, level)
            }
            _ => check_nodes(self.ahead().brokers(), &update.feature, level),
        }
    }

    /// Checks that all voters are registered, those of the configuration until the metadata name them: of another one it is not known at which levels it can work.
    fn check_voters(&self, view: &NodeView) -> Result<(), String> {
        let image = self.ahead();
        let named = image.controllers().filter(|(_, controller)| controller.votes).map(|(id, _)| id);
        let configured = view.start().quorum.iter().filter(|_| image.controllers_version() == 0);
        let mut voters = named.chain(configured.flat_map(Quorum::ids));
        match voters.find(|voter| image.broker(*voter).is_none()) {
            Some(voter) => Err(format!("Broker {voter} is not registered: start it first.")),
            None => Ok(()),
        }
    }

    /// Returns the finalised level of a feature; the lowest if it is not finalised.
    fn finalised_level(&self, name: &str) -> i16 {
        let lowest = if name == MAINSTEM_VERSION.name { MAINSTEM_VERSION.min } else { 0 };
        self.ahead().feature(name).unwrap_or(lowest)
    }
}

/// Returns the upgrade type; version 0 has a flag instead.
fn upgrade_type(update: &FeatureUpdateKey<'_>, version: i16) -> Option<UpgradeType> {
    match update.upgrade_type {
        _ if version == 0 && update.allow_downgrade => Some(UpgradeType::Downgrade),
        _ if version == 0 => Some(UpgradeType::Upgrade),
        1 => Some(UpgradeType::Upgrade),
        2 | 3 => Some(UpgradeType::Downgrade),
        _ => None,
    }
}
