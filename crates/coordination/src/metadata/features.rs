//! Features: what this broker can do beyond the versions of its APIs (KIP-584), truthfully.

/// A feature, the levels that this program can work at, and the one that a new node starts with.
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

/// Every feature. Those of groups, transactions, share and streams groups are added when they work: clients choose
/// their protocol by them.
pub const FEATURES: &[Feature] = &[METADATA_VERSION];
