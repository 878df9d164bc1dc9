//! Features: what this broker can do beyond the versions of its APIs (KIP-584), truthfully.

use super::image::MetadataImage;

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

/// Every feature. Those of transactions, share and streams groups are added when they work: clients choose
/// their protocol by them.
pub const FEATURES: &[Feature] = &[METADATA_VERSION, GROUP_VERSION];

impl MetadataImage {
    /// A finalised feature, with its level, at which this program cannot work: the directory was written by a newer
    /// one, and a start must be refused. To be asked when the log is replayed.
    pub fn unsupported_feature(&self) -> Option<(&str, i16)> {
        self.features().find(|(name, level)| {
            !FEATURES.iter().any(|known| known.name == *name && (known.min..=known.max).contains(level))
        })
    }
}
