//! DescribeConfigs: values with their sources and synonyms (KIP-226).

use std::collections::BTreeMap;

use super::broker_values::{BrokerValues, chain_of};
use super::key::{ConfigKey, ConfigType, Scope, Status, UpdateMode};
use super::origin::ConfigSource;
use super::table;
use super::topic::effective;

/// One entry of a DescribeConfigs answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedConfig {
    /// The key.
    pub name: String,
    /// The value in effect; `None` if there is none or if it is not to be shown.
    pub value: Option<String>,
    /// True if it cannot be changed while the node runs.
    pub read_only: bool,
    /// The source of the value.
    pub source: ConfigSource,
    /// True if the value is not shown.
    pub is_sensitive: bool,
    /// All values that were set for it, and the defaults behind them, most precedent first.
    pub synonyms: Vec<DescribedSynonym>,
    /// The type; `None` for a name that the table does not know.
    pub kind: Option<ConfigType>,
    /// Its documentation.
    pub documentation: Option<&'static str>,
}

/// A value that would be in effect without the ones before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedSynonym {
    /// The name under which it was set.
    pub name: String,
    /// Its value, in that name's unit; `None` if it is not to be shown.
    pub value: Option<String>,
    /// The layer in which it was set.
    pub source: ConfigSource,
}

/// All keys of a topic with this topic's values, by name.
pub fn describe_topic(own: &BTreeMap<String, String>, broker: &BrokerValues) -> Vec<DescribedConfig> {
    describe_resource(Scope::Topic, ConfigSource::Topic, own, broker)
}

/// All keys of a group with this group's values, by name.
pub fn describe_group(own: &BTreeMap<String, String>, broker: &BrokerValues) -> Vec<DescribedConfig> {
    describe_resource(Scope::Group, ConfigSource::Group, own, broker)
}

/// All keys of a subscription to client metrics with its values, by name.
pub fn describe_client_metrics(
    own: &BTreeMap<String, String>,
    broker: &BrokerValues,
) -> Vec<DescribedConfig> {
    describe_resource(Scope::ClientMetrics, ConfigSource::ClientMetrics, own, broker)
}

/// The keys of this node, by name. Keys without meaning here are left out unless they are set, so that the answer does not
/// promise more than the broker does.
pub fn describe_broker(broker: &BrokerValues) -> Vec<DescribedConfig> {
    let shown = |key: &&ConfigKey| {
        let meant = !matches!(key.status, Status::WithoutMeaningHere(_)) && !key.internal;
        meant || broker.lookup(key.name).is_some()
    };
    let mut entries: Vec<_> =
        table::keys(Scope::Broker).filter(shown).map(|key| describe_broker_key(key, broker)).collect();
    let names = broker.fixed.keys().chain(broker.cluster.keys()).chain(broker.node.keys());
    for name in names.filter(|name| table::find(Scope::Broker, name).is_none()) {
        if !entries.iter().any(|entry| entry.name == *name) {
            entries.push(describe_unknown(name, broker));
        }
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    entries
}

/// The cluster's defaults: only those that were set, by name.
pub fn describe_cluster_default(cluster: &BTreeMap<String, String>) -> Vec<DescribedConfig> {
    let values = BrokerValues { cluster: cluster.clone(), ..BrokerValues::default() };
    let names = cluster.keys();
    names
        .map(|name| match table::find(Scope::Broker, name) {
            Some(key) => {
                let mut entry = describe_broker_key(key, &values);
                entry.synonyms.retain(|synonym| synonym.source == ConfigSource::DynamicDefaultBroker);
                entry
            }
            None => describe_unknown(name, &values),
        })
        .collect()
}

fn describe_resource(
    scope: Scope,
    source: ConfigSource,
    own: &BTreeMap<String, String>,
    broker: &BrokerValues,
) -> Vec<DescribedConfig> {
    let shown = |key: &&ConfigKey| !key.internal || own.contains_key(key.name);
    table::keys(scope)
        .filter(shown)
        .map(|key| {
            let value = effective(key, own, broker).map(|value| value.to_string());
            let set = own.contains_key(key.name).then(|| DescribedSynonym {
                name: key.name.to_string(),
                value: value.clone(),
                source,
            });
            let behind = key.fallbacks.iter().flat_map(|fallback| {
                let key = table::find(Scope::Broker, fallback.key).expect("a test finds every fallback");
                synonyms_of(key, broker)
            });
            let synonyms = set.into_iter().chain(behind).chain(own_default(key)).collect();
            entry(key, value, synonyms, false)
        })
        .collect()
}

/// The default of a group's key that has no broker key behind it, as Kafka shows it.
fn own_default(key: &ConfigKey) -> Option<DescribedSynonym> {
    let is_its_own = key.scope == Scope::Group && key.fallbacks.is_empty();
    let value = key.default.filter(|_| is_its_own)?.to_owned();
    Some(DescribedSynonym { name: key.name.to_owned(), value: Some(value), source: ConfigSource::Default })
}

fn describe_broker_key(key: &ConfigKey, broker: &BrokerValues) -> DescribedConfig {
    let value = broker.effective(key).map(|value| value.to_string());
    entry(key, value, synonyms_of(key, broker), key.update == UpdateMode::ReadOnly)
}

/// The first synonym is the value in effect; without any it is a default that has no broker key.
fn entry(
    key: &ConfigKey,
    value: Option<String>,
    synonyms: Vec<DescribedSynonym>,
    read_only: bool,
) -> DescribedConfig {
    DescribedConfig {
        name: key.name.to_string(),
        value: value.filter(|_| !key.is_sensitive()),
        read_only,
        source: synonyms.first().map_or(ConfigSource::Default, |synonym| synonym.source),
        is_sensitive: key.is_sensitive(),
        synonyms,
        kind: Some(key.kind),
        documentation: Some(key.doc),
    }
}

/// A name that no key has may belong to a plug-in, so its value may be a secret.
fn describe_unknown(name: &str, broker: &BrokerValues) -> DescribedConfig {
    let known = table::find_broker(name);
    let (text, source) = broker.lookup(name).expect("the name came from these values");
    let is_sensitive = known.is_none_or(ConfigKey::is_sensitive);
    let value = Some(text.to_string()).filter(|_| !is_sensitive);
    DescribedConfig {
        name: name.to_string(),
        value: value.clone(),
        read_only: true,
        source,
        is_sensitive,
        synonyms: vec![DescribedSynonym { name: name.to_string(), value, source }],
        kind: known.map(|key| key.kind),
        documentation: known.map(|key| key.doc),
    }
}

/// The values of a broker key and of its fallbacks, then their defaults, in the order of their precedence: the first one is in
/// effect.
fn synonyms_of(key: &ConfigKey, broker: &BrokerValues) -> Vec<DescribedSynonym> {
    let chain = chain_of(key);
    let mut synonyms = Vec::new();
    for (key, _) in &chain {
        let mut push = |text: Option<&str>, source| {
            if let Some(text) = text {
                let value = key.parse(text).map_or_else(|_| text.to_string(), |value| value.to_string());
                let value = Some(value).filter(|_| !key.is_sensitive());
                synonyms.push(DescribedSynonym { name: key.name.to_string(), value, source });
            }
        };
        push(broker.node.get(key.name).map(String::as_str), ConfigSource::DynamicBroker);
        push(broker.cluster.get(key.name).map(String::as_str), ConfigSource::DynamicDefaultBroker);
        push(broker.fixed.get(key.name).map(|value| value.text.as_str()), ConfigSource::StaticBroker);
    }
    for (key, _) in &chain {
        if let Some(default) = key.default {
            let value = Some(default.to_string()).filter(|_| !key.is_sensitive());
            synonyms.push(DescribedSynonym {
                name: key.name.to_string(),
                value,
                source: ConfigSource::Default,
            });
        }
    }
    synonyms
}

#[cfg(test)]
mod tests {
    use super::super::properties::Properties;
    use super::super::sources::Sources;
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    fn broker(file: &str, cluster: &[(&str, &str)], node: &[(&str, &str)]) -> BrokerValues {
        let file = Properties::parse(file.as_bytes()).expect("the test's file is well formed");
        // Not by way of `BrokerConfig`, which refuses what only a broker with protection may have.
        let read = BrokerValues::from_sources(Sources { file: Some(&file), ..Sources::default() });
        read.expect("the test's file is valid").0.with_dynamic(map(cluster), map(node))
    }

    fn line(entries: &[DescribedConfig], name: &str) -> String {
        let entry = entries.iter().find(|entry| entry.name == name).expect("the key is described");
        let synonyms = entry.synonyms.iter().map(|synonym| {
            format!(
                " {}={}@{}",
                synonym.name,
                synonym.value.as_deref().unwrap_or("null"),
                synonym.source.code()
            )
        });
        let value = entry.value.as_deref().unwrap_or("null");
        let flags = if entry.read_only { " read-only" } else { "" };
        format!("{value}@{}{flags}:{}", entry.source.code(), synonyms.collect::<String>())
    }

    #[test]
    fn topics_name_what_stands_behind_each_value() {
        let broker = broker("log.retention.hours=1", &[("log.segment.bytes", "3000000")], &[]);
        let entries = describe_topic(&map(&[("flush.ms", "5")]), &broker);
        assert_eq!(entries.len(), 34, "33 keys of Kafka that are not internal, and ours");
        assert_eq!(
            line(&entries, "flush.ms"),
            "5@1: flush.ms=5@1 log.flush.scheduler.interval.ms=9223372036854775807@5"
        );
        assert_eq!(
            line(&entries, "segment.bytes"),
            "3000000@3: log.segment.bytes=3000000@3 log.segment.bytes=1073741824@5"
        );
        assert_eq!(
            line(&entries, "retention.ms"),
            "3600000@4: log.retention.hours=1@4 log.retention.hours=168@5"
        );
        assert_eq!(line(&entries, "remote.storage.enable"), "false@5:");
    }

    #[test]
    fn brokers_show_their_layers() {
        let broker = broker(
            "ssl.key.password=s3cret\nsome.plugin.key=x\nnum.io.threads=4",
            &[("max.connections", "5")],
            &[("max.connections", "6")],
        );
        let entries = describe_broker(&broker);
        assert_eq!(
            line(&entries, "max.connections"),
            "6@2: max.connections=6@2 max.connections=5@3 max.connections=2147483647@5"
        );
        assert_eq!(line(&entries, "node.id"), "1@5 read-only: node.id=1@5");
        assert_eq!(line(&entries, "ssl.key.password"), "null@4: ssl.key.password=null@4");
        assert_eq!(line(&entries, "some.plugin.key"), "null@4 read-only: some.plugin.key=null@4");
        assert_eq!(line(&entries, "num.io.threads"), "4@4: num.io.threads=4@4 num.io.threads=8@5");
        assert!(entries.iter().all(|entry| entry.name != "background.threads"), "it has no meaning here");
        assert!(entries.is_sorted_by(|a, b| a.name < b.name));
    }

    #[test]
    fn the_clusters_defaults_are_what_was_set_as_such() {
        let entries = describe_cluster_default(&map(&[("max.connections", "5")]));
        assert_eq!(entries.len(), 1);
        assert_eq!(line(&entries, "max.connections"), "5@3: max.connections=5@3");
    }

    #[test]
    fn groups_fall_back_to_the_broker() {
        let entries = describe_group(&map(&[("share.session.timeout.ms", "46000")]), &broker("", &[], &[]));
        assert_eq!(
            line(&entries, "share.session.timeout.ms"),
            "46000@8: share.session.timeout.ms=46000@8 group.share.session.timeout.ms=45000@5"
        );
        assert_eq!(
            line(&entries, "consumer.session.timeout.ms"),
            "45000@5: group.consumer.session.timeout.ms=45000@5"
        );
    }
}
