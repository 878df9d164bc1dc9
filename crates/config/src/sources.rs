//! The sources of a broker's values, and their precedence.
//!
//! Known at start, most precedent first: `--set`, environment, file. Values that were set while the node runs take precedence over
//! them: those of this node, then the cluster's defaults (KIP-226). The table's defaults come last.

use std::collections::BTreeMap;
use std::fmt;

use super::key::{ConfigKey, Fallback, Scope};
use super::properties::Properties;
use super::protection;
use super::spelling;
use super::table;
use super::value::ConfigValue;

/// The source of an effective value. The discriminants are the codes of DescribeConfigs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i8)]
pub enum ConfigSource {
    /// Set for the topic.
    Topic = 1,
    /// Set for this node while it runs.
    DynamicBroker = 2,
    /// Set for all nodes while they run.
    DynamicDefaultBroker = 3,
    /// Set at start: file, environment or `--set`.
    StaticBroker = 4,
    /// The table's default.
    Default = 5,
    /// Set for a logger of this process.
    BrokerLogger = 6,
    /// Set for the subscription to client metrics.
    ClientMetrics = 7,
    /// Set for the group.
    Group = 8,
}

impl ConfigSource {
    /// The code of DescribeConfigs.
    pub fn code(self) -> i8 {
        self as i8
    }
}

/// The source of a value that was known at start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StaticOrigin {
    /// On this line of the properties file.
    File {
        /// From 1.
        line: usize,
    },
    /// In an environment variable, see [`environment_name`].
    Environment,
    /// In `--set KEY=VALUE`.
    Override,
}

impl fmt::Display for StaticOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StaticOrigin::File { line } => write!(f, "file line {line}"),
            StaticOrigin::Environment => f.write_str("environment"),
            StaticOrigin::Override => f.write_str("--set"),
        }
    }
}

/// The values that are known at start. Absent parts are empty.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sources<'a> {
    /// The properties file.
    pub file: Option<&'a Properties>,
    /// The process's environment. Variables that begin with `MAINSTEM_` set keys. Variables that set keys of Kafka's images only
    /// cause warnings.
    pub environment: &'a [(String, String)],
    /// Pairs given by `--set`.
    pub overrides: &'a [(String, String)],
}

/// The environment variable that sets a key: `MAINSTEM_` and the key in capitals, dots as underscores.
pub fn environment_name(key: &str) -> String {
    format!("MAINSTEM_{}", key.to_ascii_uppercase().replace('.', "_"))
}

/// A mistake that keeps the node from starting, or a change from being made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The source of the value, if it is known.
    pub origin: Option<StaticOrigin>,
    /// Key, value, and the values that are allowed.
    pub message: String,
}

impl Problem {
    pub(super) fn new(message: impl Into<String>) -> Problem {
        Problem { origin: None, message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.origin {
            Some(origin) => write!(f, "{origin}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// All mistakes of a configuration, so that they can be corrected at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// At least one problem.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.problems.iter().enumerate() {
            write!(f, "{}{problem}", if at == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// A warning for the user at start; the node starts all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigWarning {
    /// An unknown name. Kafka ignores such names too, since plug-ins have keys of their own.
    UnknownKey {
        /// The name.
        name: String,
        /// The source of the value.
        origin: StaticOrigin,
        /// A key that may have been meant.
        nearest: Option<&'static str>,
    },
    /// A key that is known and valid, and has no effect here.
    NoEffect {
        /// The name.
        name: String,
        /// The source of the value.
        origin: StaticOrigin,
        /// The reason.
        reason: &'static str,
    },
    /// A key in the spelling of an image of Kafka.
    OtherSpelling {
        /// The name as it was written.
        name: String,
        /// The source of the value.
        origin: StaticOrigin,
        /// The key, and the variable that sets it.
        right: String,
    },
    /// A value that so few nodes cannot meet.
    FewNodes {
        /// The key.
        name: &'static str,
        /// Its value.
        value: i64,
        /// The number of nodes.
        nodes: usize,
    },
    /// A value that has no effect beside the others.
    Futile {
        /// The key, with its value if that matters.
        name: String,
        /// The reason.
        because: String,
    },
}

impl ConfigWarning {
    /// Returns true for a warning about several values together, which is found again whenever one of them changes.
    pub(super) fn is_of_values_together(&self) -> bool {
        matches!(self, ConfigWarning::FewNodes { .. } | ConfigWarning::Futile { .. })
    }
}

impl fmt::Display for ConfigWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigWarning::UnknownKey { name, origin, nearest: Some(nearest) } => {
                write!(f, "{origin}: unknown key {name} is ignored; did you mean {nearest}?")
            }
            ConfigWarning::UnknownKey { name, origin, nearest: None } => {
                write!(f, "{origin}: unknown key {name} is ignored")
            }
            ConfigWarning::OtherSpelling { name, origin, right } => {
                write!(f, "{origin}: {name} is ignored: the key is {right}")
            }
            ConfigWarning::NoEffect { name, origin, reason } => {
                write!(f, "{origin}: {name} has no effect here: {reason}")
            }
            ConfigWarning::FewNodes { name, value, nodes } => {
                let there = match nodes {
                    1 => "there is one node".to_string(),
                    nodes => format!("there are {nodes} nodes"),
                };
                let refused = match name.ends_with(".replication.factor") {
                    true => "topics that need it are refused",
                    false => "what is written with acks=all is refused",
                };
                write!(f, "{name}={value} cannot be met: {there}, so {refused}")
            }
            ConfigWarning::Futile { name, because } => write!(f, "{name} has no effect: {because}"),
        }
    }
}

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
    /// Reads and validates the values that are known at start. Unknown keys cause warnings, except those given by `--set`: a key
    /// that was typed was meant, so that it is a problem.
    pub fn from_sources(sources: Sources<'_>) -> Result<(BrokerValues, Vec<ConfigWarning>), ConfigError> {
        let mut gathered = Gathered::default();
        gathered.problems.extend(sources.file.and_then(spelling::of_another_form));
        for entry in sources.file.iter().flat_map(|file| file.iter()) {
            gathered.add(&entry.key, &entry.value, StaticOrigin::File { line: entry.line });
        }
        for (variable, value) in sources.environment {
            if spelling::key_of(variable).is_some() {
                gathered.add(variable, value, StaticOrigin::Environment);
            }
            if variable.starts_with("MAINSTEM_") {
                let key = table::keys(Scope::Broker).find(|key| environment_name(key.name) == *variable);
                gathered.add(key.map_or(variable, |key| key.name), value, StaticOrigin::Environment);
            }
        }
        for (name, value) in sources.overrides {
            gathered.add(name, value, StaticOrigin::Override);
        }
        gathered.finish()
    }

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

#[derive(Default)]
struct Gathered {
    values: BTreeMap<String, StaticValue>,
    problems: Vec<Problem>,
}

impl Gathered {
    fn add(&mut self, name: &str, text: &str, origin: StaticOrigin) {
        let known = table::find_broker(name);
        // A missing protection is reported as such, also under a name that is no key.
        let is_typed_in = origin == StaticOrigin::Override && protection::of_name(name).is_none();
        if known.is_none() && is_typed_in {
            let hint = table::nearest(Scope::Broker, name).map(|near| format!("; did you mean {near}?"));
            let message = format!("Unknown broker config name: {name}{}", hint.unwrap_or_default());
            self.problems.push(Problem { origin: Some(origin), message });
        }
        self.problems.extend(spelling::of_consequence(name, text, origin));
        if let Some(Err(error)) = known.map(|key| key.parse(text)) {
            self.problems.push(Problem { origin: Some(origin), message: error.message });
        }
        self.values.insert(name.to_string(), StaticValue { text: text.trim().to_string(), origin });
    }

    fn finish(mut self) -> Result<(BrokerValues, Vec<ConfigWarning>), ConfigError> {
        if !self.problems.is_empty() {
            return Err(ConfigError { problems: self.problems });
        }
        let warnings = self.values.iter().filter_map(|(name, value)| warning(name, value.origin)).collect();
        // Both are the node's number: if one was set by the other, both have it, as in Kafka.
        for (set, same) in [("node.id", "broker.id"), ("broker.id", "node.id")] {
            if let Some(value) = self.values.get(set).cloned() {
                self.values.entry(same.to_owned()).or_insert(value);
            }
        }
        Ok((BrokerValues { fixed: self.values, ..BrokerValues::default() }, warnings))
    }
}

fn warning(name: &str, origin: StaticOrigin) -> Option<ConfigWarning> {
    let name = name.to_string();
    if let Some(key) = spelling::key_of(&name) {
        return Some(ConfigWarning::OtherSpelling { name, origin, right: spelling::spellings(&key) });
    }
    match table::find_broker(&name) {
        None => {
            Some(ConfigWarning::UnknownKey { nearest: table::nearest(Scope::Broker, &name), name, origin })
        }
        Some(key) => key.status.reason().map(|reason| ConfigWarning::NoEffect { name, origin, reason }),
    }
}
