//! The settings of one group: its own values over the broker's, within the broker's limits.

use std::collections::BTreeMap;

use super::broker_values::BrokerValues;
use super::key::{ConfigKey, Scope};
use super::table;
use super::topic::effective;
use super::value::ConfigValue;

/// Typed values of a consumer group (KIP-848). Each field is named after its key, which documents it; milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupConfigValues {
    /// `consumer.assignment.interval.ms`.
    pub consumer_assignment_interval_ms: i32,
    /// `consumer.heartbeat.interval.ms`.
    pub consumer_heartbeat_interval_ms: i32,
    /// `consumer.session.timeout.ms`.
    pub consumer_session_timeout_ms: i32,
}

impl GroupConfigValues {
    /// Types the group's own values over the broker's. A value that is outside of the broker's present limits counts as the
    /// nearest allowed one, as in Kafka. Names that are no group keys and values that are not valid count as unset: both are
    /// refused before they are stored.
    pub fn resolve(own: &BTreeMap<String, String>, broker: &BrokerValues) -> GroupConfigValues {
        let value = |name: &str| {
            let key = table::find(Scope::Group, name).expect("this file names keys of the table");
            let value = int(key, own, broker).expect("the key is an integer with a default");
            let value = if own.contains_key(name) { within_limits(key, value, broker) } else { value };
            i32::try_from(value).expect("the key's type is INT")
        };
        GroupConfigValues {
            consumer_assignment_interval_ms: value("consumer.assignment.interval.ms"),
            consumer_heartbeat_interval_ms: value("consumer.heartbeat.interval.ms"),
            consumer_session_timeout_ms: value("consumer.session.timeout.ms"),
        }
    }
}

/// The effective value of a group key that is an integer, before the limits.
pub(super) fn int(key: &ConfigKey, own: &BTreeMap<String, String>, broker: &BrokerValues) -> Option<i64> {
    match effective(key, own, broker) {
        Some(ConfigValue::Int(value)) => Some(value),
        _ => None,
    }
}

/// A limit that the broker sets for a group key, by the name of the limit's key.
pub(super) fn limit(key: &ConfigKey, bound: &str, broker: &BrokerValues) -> Option<(&'static str, i64)> {
    let limit = limit_key(key, bound)?;
    match broker.effective(limit) {
        Some(ConfigValue::Int(value)) => Some((limit.name, value)),
        _ => None,
    }
}

/// `group.share.min.session.timeout.ms` for `share.session.timeout.ms` and `min`.
fn limit_key(key: &ConfigKey, bound: &str) -> Option<&'static ConfigKey> {
    let (kind, rest) = key.name.split_once('.')?;
    let rest = rest.strip_prefix("num.").unwrap_or(rest);
    table::find(Scope::Broker, &format!("group.{kind}.{bound}.{rest}"))
}

/// Returns true if a broker key limits settings of groups.
#[cfg(test)]
pub(super) fn is_limit(name: &str) -> bool {
    let limits = |key: &'static ConfigKey| ["min", "max"].map(|bound| limit_key(key, bound));
    table::keys(Scope::Group).flat_map(limits).flatten().any(|limit| limit.name == name)
}

fn within_limits(key: &ConfigKey, value: i64, broker: &BrokerValues) -> i64 {
    let at_least = limit(key, "min", broker).map_or(value, |(_, min)| value.max(min));
    limit(key, "max", broker).map_or(at_least, |(_, max)| at_least.min(max))
}

#[cfg(test)]
mod tests {
    use super::super::broker::BrokerConfig;
    use super::super::properties::Properties;
    use super::super::sources::Sources;
    use super::*;

    #[track_caller]
    fn check(own: &[(&str, &str)], broker: &str, session_and_heartbeat: (i32, i32)) {
        let file = Properties::parse(broker.as_bytes()).expect("the test's file is well formed");
        let config = BrokerConfig::from_sources(Sources { file: Some(&file), ..Sources::default() })
            .expect("the test's file is valid");
        let own = own.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let values = GroupConfigValues::resolve(&own, &config.values);
        let found = (values.consumer_session_timeout_ms, values.consumer_heartbeat_interval_ms);
        assert_eq!(found, session_and_heartbeat, "{own:?} over {broker}");
    }

    #[test]
    fn the_nearest_value_counts_within_the_brokers_limits() {
        let session = "consumer.session.timeout.ms";
        check(&[], "", (45_000, 5_000));
        check(&[], "group.consumer.session.timeout.ms=46000", (46_000, 5_000));
        check(&[(session, "50000")], "group.consumer.session.timeout.ms=46000", (50_000, 5_000));
        check(&[(session, "50000")], "group.consumer.max.session.timeout.ms=48000", (48_000, 5_000));
        let heartbeat = [("consumer.heartbeat.interval.ms", "5000")];
        let raised =
            "group.consumer.min.heartbeat.interval.ms=6000\ngroup.consumer.heartbeat.interval.ms=7000";
        check(&heartbeat, raised, (45_000, 6_000));
        check(&[(session, "junk"), ("no.such.key", "1")], "", (45_000, 5_000));
    }
}
