//! IncrementalAlterConfigs: the effect of a list of changes on a resource's values, and changes that are refused (KIP-339). The
//! messages are Kafka's, since tools show them to people.

use std::collections::{BTreeMap, BTreeSet};

use super::broker::BrokerConfig;
use super::broker_values::BrokerValues;
use super::group;
use super::key::{ConfigKey, ConfigType, Scope, UpdateMode};
use super::protection;
use super::table;
use super::topic::TopicConfigValues;
use super::value::{ConfigValue, split_list};

/// The operation on a key. The discriminants are the codes of IncrementalAlterConfigs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i8)]
pub enum Operation {
    /// Set the value.
    Set = 0,
    /// Remove the value, so that the default is used.
    Delete = 1,
    /// Add items to a list.
    Append = 2,
    /// Remove items from a list.
    Subtract = 3,
}

impl Operation {
    /// The operation of a code, if there is one.
    pub fn from_code(code: i8) -> Option<Operation> {
        let all = [Operation::Set, Operation::Delete, Operation::Append, Operation::Subtract];
        all.into_iter().find(|operation| *operation as i8 == code)
    }
}

/// One change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change<'a> {
    /// The key.
    pub name: &'a str,
    /// The operation on it.
    pub operation: Operation,
    /// The value or the items; ignored by [`Operation::Delete`].
    pub value: Option<&'a str>,
}

/// A refused change, by the error code that Kafka answers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AlterError {
    /// INVALID_CONFIG.
    #[error("{0}")]
    InvalidConfig(String),
    /// INVALID_REQUEST.
    #[error("{0}")]
    InvalidRequest(String),
}

/// Values to store for the keys that change; `None` removes the value.
pub type Changed = BTreeMap<String, Option<String>>;

/// The layer of a broker's values that is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerLayer {
    /// The values of this node.
    Node,
    /// The defaults of the cluster.
    ClusterDefault,
}

/// Changes a topic's own values.
pub fn alter_topic(
    own: &BTreeMap<String, String>,
    changes: &[Change<'_>],
    broker: &BrokerValues,
) -> Result<Changed, AlterError> {
    check_shape(changes)?;
    let after = apply(Scope::Topic, own, changes)?;
    validate_topic(&after, broker)?;
    Ok(difference(own, after))
}

/// Changes a group's own values.
pub fn alter_group(
    own: &BTreeMap<String, String>,
    changes: &[Change<'_>],
    broker: &BrokerValues,
) -> Result<Changed, AlterError> {
    check_shape(changes)?;
    let after = apply(Scope::Group, own, changes)?;
    validate_names(Scope::Group, "group", &after)?;
    validate_group_limits(&after, broker)?;
    Ok(difference(own, after))
}

/// Changes values of another kind, judged by `validate`.
pub(super) fn alter_values(
    scope: Scope,
    own: &BTreeMap<String, String>,
    changes: &[Change<'_>],
    validate: impl FnOnce(&BTreeMap<String, String>) -> Result<(), AlterError>,
) -> Result<Changed, AlterError> {
    check_shape(changes)?;
    let after = apply(scope, own, changes)?;
    validate(&after)?;
    Ok(difference(own, after))
}

/// Changes a node's own values, or the cluster's defaults: `own` has those of the layer. `current` is the configuration of the node
/// that decides, which may be another node than the one whose values they are.
pub fn alter_broker(
    layer: BrokerLayer,
    own: &BTreeMap<String, String>,
    changes: &[Change<'_>],
    current: &BrokerConfig,
) -> Result<Changed, AlterError> {
    check_shape(changes)?;
    let values = &current.values;
    let after = apply(Scope::Broker, own, changes)?;
    validate_broker(layer, &after)?;
    check_protections(changes)?;
    let (cluster, node) = match layer {
        BrokerLayer::Node => (values.cluster.clone(), after.clone()),
        BrokerLayer::ClusterDefault => (after.clone(), values.node.clone()),
    };
    let changed = current.with_dynamic(cluster, node);
    let changed = changed.map_err(|error| AlterError::InvalidRequest(error.to_string()))?;
    check_nodes(current, &changed)?;
    check_threads(
        "num.network.threads",
        current.network.num_network_threads,
        changed.network.num_network_threads,
    )?;
    check_threads(
        "num.recovery.threads.per.data.dir",
        current.logs.recovery_threads_per_dir,
        changed.logs.recovery_threads_per_dir,
    )?;
    Ok(difference(own, after))
}

/// Checks the values with which a topic is to be created.
pub fn validate_new_topic(
    configs: &[(&str, Option<&str>)],
    broker: &BrokerValues,
) -> Result<BTreeMap<String, String>, AlterError> {
    let nulls: Vec<_> = configs.iter().filter(|(_, value)| value.is_none()).map(|(name, _)| *name).collect();
    if !nulls.is_empty() {
        let names = nulls.join(",");
        return Err(AlterError::InvalidConfig(format!(
            "Null value not supported for topic configs: {names}"
        )));
    }
    let own =
        configs.iter().filter_map(|(name, value)| Some((name.to_string(), (*value)?.to_string()))).collect();
    validate_topic(&own, broker)?;
    Ok(own)
}

pub(super) fn check_shape(changes: &[Change<'_>]) -> Result<(), AlterError> {
    let mut names = BTreeSet::new();
    if !changes.iter().all(|change| names.insert(change.name)) {
        return Err(AlterError::InvalidRequest("Error due to duplicate config keys".to_string()));
    }
    let is_null = |change: &&Change<'_>| change.value.is_none() && change.operation != Operation::Delete;
    let nulls: Vec<_> = changes.iter().filter(is_null).map(|change| change.name).collect();
    if nulls.is_empty() {
        return Ok(());
    }
    Err(AlterError::InvalidRequest(format!("Null value not supported for : {}", nulls.join(","))))
}

fn apply(
    scope: Scope,
    own: &BTreeMap<String, String>,
    changes: &[Change<'_>],
) -> Result<BTreeMap<String, String>, AlterError> {
    let mut after = own.clone();
    for change in changes {
        let value = change.value.unwrap_or_default();
        let new = match change.operation {
            Operation::Set => Some(value.to_string()),
            Operation::Delete => None,
            Operation::Append | Operation::Subtract => Some(edit_list(scope, own, change, value)?),
        };
        match new {
            Some(value) => after.insert(change.name.to_string(), value),
            None => after.remove(change.name),
        };
    }
    Ok(after)
}

/// Edits a list. It starts from the resource's own value, or from the key's default, and not from the broker's value: as in
/// Kafka.
fn edit_list(
    scope: Scope,
    own: &BTreeMap<String, String>,
    change: &Change<'_>,
    value: &str,
) -> Result<String, AlterError> {
    let key = table::find(scope, change.name).filter(|key| key.kind == ConfigType::List);
    let Some(key) = key else { return Err(not_a_list(scope, change)) };
    let current = own.get(change.name).map_or(key.default.unwrap_or_default(), String::as_str);
    let mut items = split_list(current.trim());
    for item in split_list(value.trim()) {
        match change.operation {
            Operation::Subtract => items.retain(|known| *known != item),
            _ if items.contains(&item) => {}
            _ => items.push(item),
        }
    }
    Ok(items.join(","))
}

fn not_a_list(scope: Scope, change: &Change<'_>) -> AlterError {
    let (name, appends) = (change.name, change.operation == Operation::Append);
    AlterError::InvalidConfig(match (scope, appends) {
        (Scope::Broker, true) => format!("Config value append is not allowed for config key: {name}"),
        (Scope::Broker, false) => format!("Config value subtract is not allowed for config key: {name}"),
        (_, true) => format!("Can't APPEND to key {name} because its type is not LIST."),
        (_, false) => format!("Can't SUBTRACT to key {name} because its type is not LIST."),
    })
}

fn validate_topic(own: &BTreeMap<String, String>, broker: &BrokerValues) -> Result<(), AlterError> {
    validate_names(Scope::Topic, "topic", own)?;
    match TopicConfigValues::resolve(own, broker).conflict() {
        Some(conflict) => Err(AlterError::InvalidConfig(conflict)),
        None => Ok(()),
    }
}

/// All names are looked at before the first value, as in Kafka.
fn validate_names(scope: Scope, what: &str, own: &BTreeMap<String, String>) -> Result<(), AlterError> {
    if let Some(unknown) = own.keys().find(|name| table::find(scope, name).is_none()) {
        return Err(AlterError::InvalidConfig(format!("Unknown {what} config name: {unknown}")));
    }
    for (name, value) in own {
        let key = table::find(scope, name).expect("all names are known by now");
        key.parse(value).map_err(|error| AlterError::InvalidConfig(error.message))?;
    }
    Ok(())
}

/// Checks a group's values against the broker's minimum and maximum, if it has them (KIP-848).
fn validate_group_limits(own: &BTreeMap<String, String>, broker: &BrokerValues) -> Result<(), AlterError> {
    let refuse = |message: String| Err(AlterError::InvalidConfig(message));
    for (name, text) in own {
        let key = table::find(Scope::Group, name).expect("names are validated first");
        let Ok(ConfigValue::Int(value)) = key.parse(text) else { continue };
        match group::limit(key, "min", broker) {
            Some((min, bound)) if value < bound => {
                return refuse(format!("{name} must be greater than or equal to {min}"));
            }
            _ => {}
        }
        match group::limit(key, "max", broker) {
            Some((max, bound)) if value > bound => {
                return refuse(format!("{name} must be less than or equal to {max}"));
            }
            _ => {}
        }
    }
    let effective = |name: &str| {
        let key = table::find(Scope::Group, name).expect("the three kinds have both keys");
        group::int(key, own, broker)
    };
    for kind in ["consumer", "share", "streams"] {
        let (session, heartbeat) =
            (format!("{kind}.session.timeout.ms"), format!("{kind}.heartbeat.interval.ms"));
        if effective(&session) <= effective(&heartbeat) {
            return refuse(format!("{session} must be greater than {heartbeat}"));
        }
    }
    Ok(())
}

/// Checks a broker's values. Unknown names are accepted: in Kafka they belong to plug-ins.
fn validate_broker(layer: BrokerLayer, own: &BTreeMap<String, String>) -> Result<(), AlterError> {
    let refuse = |why: &str, names: Vec<&str>| match names.as_slice() {
        [] => Ok(()),
        names => Err(AlterError::InvalidRequest(format!("{why}: [{}]", names.join(", ")))),
    };
    let named = |is: &dyn Fn(&str, &ConfigKey) -> bool| -> Vec<&str> {
        let known = own.keys().filter_map(|name| Some((name.as_str(), table::find_broker(name)?)));
        known.filter(|(name, key)| is(name, key)).map(|(name, _)| name).collect()
    };
    let is_prefixed = |name: &str| table::without_listener_prefix(name) != name;
    let is_security = |key: &ConfigKey| key.name.starts_with("ssl.") || key.name.starts_with("sasl.");
    refuse(
        "Cannot update these configs dynamically",
        named(&|name, key| !is_prefixed(name) && key.update == UpdateMode::ReadOnly),
    )?;
    refuse(
        "These security configs can be dynamically updated only per-listener using the listener prefix",
        named(&|name, key| {
            !is_prefixed(name) && key.name.starts_with("ssl.") && key.update == UpdateMode::PerBroker
        }),
    )?;
    for (name, value) in own {
        if let Some(key) = table::find_broker(name) {
            key.parse(value).map_err(|error| AlterError::InvalidRequest(error.message))?;
        }
    }
    if layer == BrokerLayer::Node {
        return Ok(());
    }
    refuse(
        "Cannot update these configs at default cluster level, broker id must be specified",
        named(&|name, key| key.update == UpdateMode::PerBroker || is_prefixed(name) && is_security(key)),
    )
}

/// Refuses keys that would keep a node from starting: no code would apply them while it runs either.
fn check_protections(changes: &[Change<'_>]) -> Result<(), AlterError> {
    let set = changes.iter().filter(|change| change.operation != Operation::Delete);
    let missing = set.filter_map(|change| protection::refusal(change.name, change.value.unwrap_or_default()));
    missing.map(AlterError::InvalidRequest).next().map_or(Ok(()), Err)
}

/// Keeps the mechanisms and users of links between nodes as they were when the node started.
fn check_nodes(current: &BrokerConfig, changed: &BrokerConfig) -> Result<(), AlterError> {
    let Some(nodes) = &changed.nodes else { return Ok(()) };
    let started = current.with_dynamic(BTreeMap::new(), BTreeMap::new());
    let started = started.map_err(|error| AlterError::InvalidRequest(error.to_string()))?;
    if started.nodes.is_none_or(|started| started.sasl == nodes.sasl) {
        return Ok(());
    }
    Err(AlterError::InvalidRequest(format!(
        "SASL of the controllers' listener {} cannot be changed dynamically: change the properties of each node, and \
         restart it",
        nodes.endpoint.listener
    )))
}

/// Refuses a change of the number of threads by more than a factor of two, as Kafka does: it is taken for a mistake.
fn check_threads(name: &str, current: usize, wanted: usize) -> Result<(), AlterError> {
    let why = match wanted {
        _ if wanted < current / 2 => "should be at least half",
        _ if wanted > current * 2 => "should not be greater than double",
        _ => return Ok(()),
    };
    Err(AlterError::InvalidRequest(format!(
        "Dynamic thread count update validation failed for {name}={wanted}, value {why} the current value {current}"
    )))
}

fn difference(own: &BTreeMap<String, String>, after: BTreeMap<String, String>) -> Changed {
    let gone = own.keys().filter(|name| !after.contains_key(*name)).map(|name| (name.clone(), None));
    let mut changed: Changed = gone.collect();
    let new = after.into_iter().filter(|(name, value)| own.get(name) != Some(value));
    changed.extend(new.map(|(name, value)| (name, Some(value))));
    changed
}

#[cfg(test)]
mod tests {
    use super::super::properties::Properties;
    use super::super::sources::Sources;
    use super::Operation::*;
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    fn broker() -> BrokerConfig {
        BrokerConfig::from_sources(Sources::default()).expect("defaults are valid")
    }

    fn show(result: Result<Changed, AlterError>) -> String {
        match result {
            Ok(changed) => {
                let shown = changed.iter().map(|(name, value)| match value {
                    Some(value) => format!("{name}={value}"),
                    None => format!("-{name}"),
                });
                shown.collect::<Vec<_>>().join(" ")
            }
            Err(AlterError::InvalidConfig(message)) => format!("INVALID_CONFIG {message}"),
            Err(AlterError::InvalidRequest(message)) => format!("INVALID_REQUEST {message}"),
        }
    }

    fn topic(own: &[(&str, &str)], changes: &[(&str, Operation, Option<&str>)], expect: &str) {
        let changes: Vec<_> =
            changes.iter().map(|&(name, operation, value)| Change { name, operation, value }).collect();
        assert_eq!(show(alter_topic(&map(own), &changes, &broker().values)), expect, "{changes:?}");
    }

    fn node(layer: BrokerLayer, changes: &[(&str, Operation, Option<&str>)], expect: &str) {
        let changes: Vec<_> =
            changes.iter().map(|&(name, operation, value)| Change { name, operation, value }).collect();
        assert_eq!(show(alter_broker(layer, &BTreeMap::new(), &changes, &broker())), expect, "{changes:?}");
    }

    #[test]
    fn values_are_set_and_forgotten() {
        topic(&[], &[("retention.ms", Set, Some("5000"))], "retention.ms=5000");
        topic(&[("retention.ms", "5000")], &[("retention.ms", Set, Some("5000"))], "");
        topic(&[("retention.ms", "5000")], &[("retention.ms", Delete, None)], "-retention.ms");
        topic(&[], &[("retention.ms", Delete, None)], "");
        topic(&[], &[("foo", Delete, Some("x"))], "");
        topic(&[], &[("write.caching", Set, Some("true"))], "write.caching=true");
    }

    #[test]
    fn lists_grow_and_shrink_from_their_default() {
        topic(&[], &[("cleanup.policy", Append, Some("compact"))], "cleanup.policy=delete,compact");
        let both = [("cleanup.policy", "delete,compact")];
        topic(&both, &[("cleanup.policy", Append, Some("compact"))], "");
        topic(&both, &[("cleanup.policy", Subtract, Some("delete"))], "cleanup.policy=compact");
        topic(&both, &[("cleanup.policy", Subtract, Some("delete,compact"))], "cleanup.policy=");
        topic(&[("cleanup.policy", "")], &[("cleanup.policy", Subtract, Some("foo"))], "");
        topic(&[("cleanup.policy", "")], &[("cleanup.policy", Append, Some(""))], "");
    }

    /// Each text was answered by Kafka 4.3.0.
    #[test]
    fn topics_refuse_what_kafka_refuses() {
        topic(
            &[],
            &[("retention.ms", Set, Some("x"))],
            "INVALID_CONFIG Invalid value x for configuration retention.ms: Not a number of type LONG",
        );
        topic(&[], &[("foo", Set, Some("x"))], "INVALID_CONFIG Unknown topic config name: foo");
        topic(
            &[],
            &[("foo", Append, Some("1"))],
            "INVALID_CONFIG Can't APPEND to key foo because its type is not LIST.",
        );
        topic(
            &[],
            &[("retention.ms", Subtract, Some("1"))],
            "INVALID_CONFIG Can't SUBTRACT to key retention.ms because its type is not LIST.",
        );
        topic(
            &[],
            &[("cleanup.policy", Append, Some("foo"))],
            "INVALID_CONFIG Invalid value foo for configuration cleanup.policy: \
             String must be one of: compact, delete",
        );
        topic(
            &[],
            &[("cleanup.policy", Append, None)],
            "INVALID_REQUEST Null value not supported for : cleanup.policy",
        );
        topic(
            &[],
            &[("retention.ms", Set, Some("5")), ("retention.ms", Set, Some("6"))],
            "INVALID_REQUEST Error due to duplicate config keys",
        );
        topic(
            &[("min.compaction.lag.ms", "10")],
            &[("max.compaction.lag.ms", Set, Some("5"))],
            "INVALID_CONFIG conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
        );
        topic(
            &[],
            &[("remote.storage.enable", Set, Some("true"))],
            "INVALID_CONFIG Tiered Storage functionality is disabled in the broker. \
             Topic cannot be configured with remote log storage.",
        );
    }

    #[test]
    fn new_topics_refuse_what_kafka_refuses() {
        let values = broker().values;
        let check = |configs: &[(&str, Option<&str>)], expect: &str| {
            let error = validate_new_topic(configs, &values).expect_err("the test's values are wrong");
            assert_eq!(error, AlterError::InvalidConfig(expect.to_string()));
        };
        check(&[("retention.ms", None)], "Null value not supported for topic configs: retention.ms");
        check(&[("foo", Some("1")), ("retention.ms", Some("x"))], "Unknown topic config name: foo");
    }

    #[test]
    fn brokers_change_only_what_is_dynamic() {
        let (one, all) = (BrokerLayer::Node, BrokerLayer::ClusterDefault);
        node(one, &[("log.retention.ms", Set, Some("5000"))], "log.retention.ms=5000");
        node(all, &[("max.connections", Set, Some("10"))], "max.connections=10");
        node(one, &[("foo", Set, Some("5"))], "foo=5");
        node(one, &[("log.cleanup.policy", Append, Some("compact"))], "log.cleanup.policy=delete,compact");
        node(
            one,
            &[("listener.name.plaintext.ssl.keystore.location", Set, Some("x"))],
            "listener.name.plaintext.ssl.keystore.location=x",
        );
        node(
            one,
            &[("log.retention.hours", Set, Some("5"))],
            "INVALID_REQUEST Cannot update these configs dynamically: [log.retention.hours]",
        );
        node(
            one,
            &[("listeners", Set, Some("PLAINTEXT://:1"))],
            "INVALID_REQUEST Cannot update these configs dynamically: [listeners]",
        );
        node(
            one,
            &[("ssl.keystore.location", Set, Some("x"))],
            "INVALID_REQUEST These security configs can be dynamically updated only per-listener \
             using the listener prefix: [ssl.keystore.location]",
        );
        node(
            all,
            &[("sasl.jaas.config", Set, Some("x"))],
            "INVALID_REQUEST Cannot update these configs at default cluster level, \
             broker id must be specified: [sasl.jaas.config]",
        );
        node(
            one,
            &[("message.max.bytes", Set, Some("-1"))],
            "INVALID_REQUEST Invalid value -1 for configuration message.max.bytes: Value must be at least 0",
        );
        node(
            one,
            &[("log.retention.ms", Set, Some("0"))],
            "INVALID_REQUEST log.retention.ms must be unlimited (-1) or, greater than or equal to 1",
        );
        node(all, &[("num.network.threads", Set, Some("1"))], "num.network.threads=1");
        node(one, &[("num.network.threads", Set, Some("6"))], "num.network.threads=6");
        node(
            one,
            &[("num.network.threads", Set, Some("7"))],
            "INVALID_REQUEST Dynamic thread count update validation failed for num.network.threads=7, \
             value should not be greater than double the current value 3",
        );
        node(
            one,
            &[("max.connections", Append, Some("0"))],
            "INVALID_CONFIG Config value append is not allowed for config key: max.connections",
        );
    }

    /// A key that no code applies must not be taken for protection.
    #[test]
    fn what_would_keep_clients_out_is_not_accepted_in_vain() {
        const JAAS: &str = "users or a login that belong to no known mechanism of a listener, which this version does not have: \
                            no mechanism would use them, as in Kafka";
        const CLASS: &str = "a class of its own for SASL, which this version does not have: no class of Java is loaded here, \
                             and what it decides would not be";
        let text = "org.apache.kafka.common.security.plain.PlainLoginModule required;";
        for (name, missing) in [
            ("sasl.jaas.config", JAAS),
            ("listener.name.in.sasl.jaas.config", JAAS),
            ("listener.name.in.gssapi.sasl.jaas.config", JAAS),
            ("listener.name.in.plain.sasl.server.callback.handler.class", CLASS),
        ] {
            let expect = format!("INVALID_REQUEST {name} asks for {missing}");
            node(BrokerLayer::Node, &[(name, Set, Some(text))], &expect);
            node(BrokerLayer::Node, &[(name, Delete, None)], "");
        }
        let name = "listener.name.in.plain.sasl.jaas.config";
        node(BrokerLayer::Node, &[(name, Set, Some(text))], &format!("{name}={text}"));
    }

    /// The metadata leader decides for all nodes, whose values are not its own.
    #[test]
    fn the_values_of_another_node_are_changed() {
        let decides = broker().with_dynamic(BTreeMap::new(), map(&[("max.connections", "10")]));
        let decides = decides.expect("it is valid");
        let change = |own: &[(&str, &str)], change| {
            show(alter_broker(BrokerLayer::Node, &map(own), &[change], &decides))
        };
        let set = |value| Change { name: "max.connections", operation: Set, value: Some(value) };
        let delete = Change { name: "max.connections", operation: Delete, value: None };
        assert_eq!(change(&[], set("10")), "max.connections=10");
        assert_eq!(change(&[("max.connections", "20")], set("20")), "");
        assert_eq!(change(&[("max.connections", "20")], delete), "-max.connections");
        assert_eq!(change(&[], delete), "");
    }

    #[test]
    fn links_between_nodes_keep_the_mechanisms_and_users_of_the_start() {
        const JAAS: &str = "org.apache.kafka.common.security.plain.PlainLoginModule required \
                            username=\"node\" password=\"a\" user_node=\"a\";";
        let lines = format!(
            "process.roles=broker,controller\nnode.id=2\ncontroller.listener.names=CONTROLLER\n\
             controller.quorum.voters=1@a:1,2@b:2\nlisteners=IN://:9092,CONTROLLER://:9093\n\
             listener.security.protocol.map=IN:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT\n\
             sasl.enabled.mechanisms=PLAIN\nsasl.mechanism.controller.protocol=PLAIN\n\
             listener.name.in.plain.sasl.jaas.config={JAAS}\n\
             listener.name.controller.plain.sasl.jaas.config={JAAS}\n"
        );
        let file = Properties::parse(lines.as_bytes()).expect("it is well formed");
        let current = BrokerConfig::from_sources(Sources { file: Some(&file), ..Sources::default() });
        let current = current.expect("it is valid");
        let change = |name, value| {
            let change = Change { name, operation: Set, value: Some(value) };
            alter_broker(BrokerLayer::Node, &BTreeMap::new(), &[change], &current).map(drop)
        };
        let other = JAAS.replace("\"a\"", "\"b\"");
        for (name, value) in [
            ("listener.name.controller.plain.sasl.jaas.config", other.as_str()),
            ("listener.name.controller.sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-512"),
            ("listener.name.controller.connections.max.reauth.ms", "1000"),
            ("sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-512"),
        ] {
            let Err(AlterError::InvalidRequest(why)) = change(name, value) else {
                panic!("{name} is accepted")
            };
            assert!(why.contains("controllers' listener CONTROLLER cannot be changed"), "{name}: {why}");
        }
        for (name, value) in [
            ("listener.name.in.plain.sasl.jaas.config", other.as_str()),
            ("listener.name.in.sasl.enabled.mechanisms", "SCRAM-SHA-512"),
            ("listener.name.controller.plain.sasl.jaas.config", JAAS),
        ] {
            assert_eq!(change(name, value), Ok(()), "{name}");
        }
    }

    #[test]
    fn groups_stay_within_the_brokers_limits() {
        let values = broker().values;
        let check = |name: &str, value: &str, expect: &str| {
            let change = Change { name, operation: Set, value: Some(value) };
            assert_eq!(show(alter_group(&BTreeMap::new(), &[change], &values)), expect);
        };
        check("consumer.session.timeout.ms", "46000", "consumer.session.timeout.ms=46000");
        check(
            "consumer.session.timeout.ms",
            "1",
            "INVALID_CONFIG consumer.session.timeout.ms must be greater than or equal to \
             group.consumer.min.session.timeout.ms",
        );
        check(
            "streams.num.standby.replicas",
            "3",
            "INVALID_CONFIG streams.num.standby.replicas must be less than or equal to \
             group.streams.max.standby.replicas",
        );
        check("foo", "1", "INVALID_CONFIG Unknown group config name: foo");
    }
}
