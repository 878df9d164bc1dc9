//! Features: abilities beyond the versions of APIs (KIP-584), and UpdateFeatures (57), v0-2, which raises and lowers their levels. Only
//! real abilities are advertised.

use std::borrow::Cow;
use std::collections::HashSet;

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::feature_level_record::FeatureLevelRecord;
use mainstem_wire::messages::update_features_request::{FeatureUpdateKey, UpdateFeaturesRequest};
use mainstem_wire::messages::update_features_response::{UpdatableFeatureResult, UpdateFeaturesResponse};
use mainstem_wire::metadata_frame::MetadataRecord;

use super::error::ApiError;
use super::image::MetadataImage;
use super::node_view::NodeView;
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
    pub fn unsupported_feature(&self) -> Option<(&str, i16)> {
        self.features().find(|(name, level)| {
            let lowest = |known: &Feature| match known.name == METADATA_VERSION.name {
                true => METADATA_VERSION_RAISED_FROM,
                false => known.min,
            };
            let mut known = FEATURES.iter().chain(KEPT);
            !known.any(|known| known.name == *name && (lowest(known)..=known.max).contains(level))
        })
    }

    /// The finalised features that are served, with their levels: those that clients see.
    pub fn served_features(&self) -> impl Iterator<Item = (&str, i16)> {
        self.features().filter(|(name, _)| FEATURES.iter().any(|known| known.name == *name))
    }
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
        if level < 0 {
            return Err("A feature version cannot be less than 0.".to_string());
        }
        match FEATURES.iter().find(|known| known.name == update.feature) {
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
            _ => Ok(()),
        }
    }

    /// Returns the finalised level of a feature; 0 if it is not finalised.
    fn finalised_level(&self, name: &str) -> i16 {
        self.ahead().feature(name).unwrap_or(0)
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
