//! The values of a broker, layer over layer, and their precedence.
//!
//! Known at start, most precedent first: `--set`, environment, file. Values that were set while the node runs take precedence over
//! them: those of this node, then the cluster's defaults (KIP-226). The table's defaults come last.

use std::collections::BTreeMap;
use std::fmt;

use super::key::{ConfigKey, Fallback, Scope};
use super::origin::{ConfigSource, StaticOrigin};
use super::table;
use super::value::ConfigValue;

/// A value set at start.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct StaticValue {
    pub(super) text: String,
    pub(super) origin: StaticOrigin,
}

/// All values of a broker, layer over layer. They are not printed: some are secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct BrokerValues {
    pub(super) fixed: BTreeMap<String, StaticValue>,
    pub(super) cluster: BTreeMap<String, String>,
    pub(super) node: BTreeMap<String, String>,
}

impl fmt::Debug for BrokerValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerValues")
            .field("fixed", &self.fixed.keys())
            .field("cluster", &self.cluster.keys())
            .field("node", &self.node.keys())
            .finish()
    }
}

impl BrokerValues {
    /// These values with other dynamic values, which were set while the cluster runs.
    pub fn with_dynamic(
        &self,
        cluster: BTreeMap<String, String>,
        node: BTreeMap<String, String>,
    ) -> BrokerValues {
        BrokerValues { fixed: self.fixed.clone(), cluster, node }
    }

    /// The text and the layer of a name, without its fallbacks and its default.
    pub fn lookup(&self, name: &str) -> Option<(&str, ConfigSource)> {
        let node = self.node.get(name).map(|text| (text.as_str(), ConfigSource::DynamicBroker));
        let cluster =
            || self.cluster.get(name).map(|text| (text.as_str(), ConfigSource::DynamicDefaultBroker));
        let fixed = || self.fixed.get(name).map(|value| (value.text.as_str(), ConfigSource::StaticBroker));
        node.or_else(cluster).or_else(fixed)
    }

    /// The effective value of a broker key: its own, that of the first fallback that has one, or a default.
    pub fn effective(&self, key: &ConfigKey) -> Option<ConfigValue> {
        let chain = chain_of(key);
        let set = chain.iter().find_map(|(key, factor)| Some((self.own(key)?, *factor)));
        let default = || chain.iter().find_map(|(key, factor)| Some((key.default_value()?, *factor)));
        set.or_else(default).map(|(value, factor)| scale(value, factor))
    }

    /// The source of a value that was known at start.
    pub fn origin(&self, name: &str) -> Option<StaticOrigin> {
        self.fixed.get(name).map(|value| value.origin)
    }

    /// Every name that was set at start, with its text and source, by name.
    pub fn set_at_start(&self) -> impl Iterator<Item = (&str, &str, StaticOrigin)> {
        self.fixed.iter().map(|(name, value)| (name.as_str(), value.text.as_str(), value.origin))
    }

    fn own(&self, key: &ConfigKey) -> Option<ConfigValue> {
        // Values are validated before they get here; a value that an older release accepted counts as unset.
        self.lookup(key.name).and_then(|(text, _)| key.parse(text).ok())
    }
}

/// A key and its fallbacks, most precedent first, with the factor to the first one's unit.
pub(super) fn chain_of(key: &ConfigKey) -> Vec<(ConfigKey, i64)> {
    let mut chain = vec![(*key, 1)];
    for Fallback { key, factor } in key.fallbacks {
        let behind = table::find(Scope::Broker, key).expect("a test finds every fallback in the table");
        chain.extend(chain_of(behind).into_iter().map(|(key, further)| (key, factor * further)));
    }
    chain
}

/// Converts hours to milliseconds and the like; a negative value is without limit, -1, in every unit.
pub(super) fn scale(value: ConfigValue, factor: i64) -> ConfigValue {
    match value {
        ConfigValue::Int(number) if factor != 1 && number < 0 => ConfigValue::Int(-1),
        ConfigValue::Int(number) => ConfigValue::Int(number.saturating_mul(factor)),
        other => other,
    }
}
