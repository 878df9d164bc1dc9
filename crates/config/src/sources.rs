//! The sources of the values that are known at start: file, environment and `--set`, each validated and all gathered.

use std::collections::BTreeMap;

use super::broker_values::{BrokerValues, StaticValue};
use super::key::Scope;
use super::origin::{StaticOrigin, environment_name};
use super::problem::{ConfigError, Problem};
use super::properties::Properties;
use super::protection;
use super::spelling;
use super::table;
use super::warning::ConfigWarning;

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
