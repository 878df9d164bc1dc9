//! Settings of topics, brokers, groups and more: KEY=VALUE on the command line, DescribeConfigs and
//! IncrementalAlterConfigs.

use std::fmt;

use anyhow::{Context, Result};
use mainstem_wire::messages::describe_configs_request::{DescribeConfigsRequest, DescribeConfigsResource};
use mainstem_wire::messages::describe_configs_response::DescribeConfigsResourceResult;
use mainstem_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use serde_json::{Value, json};

use crate::client::{Client, check_message};
use crate::cluster::Cluster;

/// `config_operation` of IncrementalAlterConfigs.
const SET: i8 = 0;
const DELETE: i8 = 1;

/// Kinds of what has settings; the number is Kafka's `resource_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Topic = 2,
    Broker = 4,
    Logger = 8,
    ClientMetrics = 16,
    Group = 32,
}

impl Kind {
    /// All of them.
    pub(crate) const ALL: [Kind; 5] =
        [Kind::Topic, Kind::Broker, Kind::Logger, Kind::ClientMetrics, Kind::Group];

    /// As it stands on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Topic => "topic",
            Kind::Broker => "broker",
            Kind::Logger => "logger",
            Kind::ClientMetrics => "client-metrics",
            Kind::Group => "group",
        }
    }
}

/// What has settings of its own, written KIND/NAME; `broker` alone stands for the defaults of all brokers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) kind: Kind,
    pub(crate) name: String,
}

impl Resource {
    /// A topic's settings.
    pub(crate) fn topic(name: &str) -> Resource {
        Resource { kind: Kind::Topic, name: name.to_owned() }
    }

    /// Reads KIND/NAME; the name may have further slashes.
    pub(crate) fn parse(text: &str) -> Result<Resource, String> {
        let (kind, name) = text.split_once('/').unwrap_or((text, ""));
        let kind = Kind::ALL.into_iter().find(|known| known.name() == kind).ok_or(
            "expected topic/NAME, group/NAME, broker/ID, broker (the defaults of all brokers), logger/ID or \
             client-metrics/NAME",
        )?;
        match (kind, name) {
            (Kind::Broker, "") => {}
            (_, "") => return Err(format!("expected {}/NAME", kind.name())),
            (Kind::Broker | Kind::Logger, id) if id.parse::<i32>().is_err() => {
                return Err(format!("a broker goes by its number, such as {}/1", kind.name()));
            }
            _ => {}
        }
        Ok(Resource { kind, name: name.to_owned() })
    }

    /// A connection to who knows the settings: the broker itself for its own, any for the rest.
    fn client<'c>(&self, cluster: &'c mut Cluster) -> Result<&'c mut Client> {
        match (self.kind, self.name.parse()) {
            (Kind::Broker | Kind::Logger, Ok(id)) => cluster.node(id),
            _ => cluster.any(),
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            "" => f.write_str(self.kind.name()),
            name => write!(f, "{}/{name}", self.kind.name()),
        }
    }
}

/// One setting as it is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) key: String,
    pub(crate) value: String,
}

impl Setting {
    /// Reads KEY=VALUE; the value may have further equals signs.
    pub(crate) fn parse(text: &str) -> Result<Setting, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => {
                Ok(Setting { key: key.trim().to_owned(), value: value.trim().to_owned() })
            }
            _ => Err("expected KEY=VALUE, such as retention.ms=86400000".to_owned()),
        }
    }
}

/// One setting as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) name: String,
    /// None where the broker keeps it to itself.
    pub(crate) value: Option<String>,
    pub(crate) source: Source,
}

/// Where a value comes from; the number is Kafka's `config_source`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Source(pub(crate) i8);

impl Source {
    /// Whether it was set for the resource itself, rather than for more than that.
    pub(crate) fn is_own(self, resource: &Resource) -> bool {
        match (resource.kind, self.0) {
            (Kind::Topic, 1) | (Kind::Logger, 6) | (Kind::ClientMetrics, 7) | (Kind::Group, 8) => true,
            (Kind::Broker, 2 | 4) => !resource.name.is_empty(),
            (Kind::Broker, 3) => resource.name.is_empty(),
            _ => false,
        }
    }

    /// In Kafka's words.
    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            1 => "DYNAMIC_TOPIC_CONFIG",
            2 => "DYNAMIC_BROKER_CONFIG",
            3 => "DYNAMIC_DEFAULT_BROKER_CONFIG",
            4 => "STATIC_BROKER_CONFIG",
            5 => "DEFAULT_CONFIG",
            6 => "DYNAMIC_BROKER_LOGGER_CONFIG",
            7 => "DYNAMIC_CLIENT_METRICS_CONFIG",
            8 => "DYNAMIC_GROUP_CONFIG",
            _ => "UNKNOWN",
        }
    }
}

impl Config {
    /// For programs.
    pub(crate) fn to_json(&self) -> Value {
        json!({"name": self.name, "value": self.value, "source": self.source.name()})
    }

    /// The value for people.
    pub(crate) fn shown(&self) -> &str {
        self.value.as_deref().unwrap_or("(hidden)")
    }

    fn from_response(result: &DescribeConfigsResourceResult<'_>) -> Config {
        Config {
            name: result.name.to_string(),
            value: result.value.as_deref().map(str::to_owned),
            source: Source(result.config_source),
        }
    }
}

/// Every setting of a resource, by name.
pub(crate) fn describe(cluster: &mut Cluster, resource: &Resource) -> Result<Vec<Config>> {
    let request = DescribeConfigsRequest {
        resources: vec![DescribeConfigsResource {
            resource_type: resource.kind as i8,
            resource_name: resource.name.as_str().into(),
            configuration_keys: None,
            ..Default::default()
        }],
        ..Default::default()
    };
    cluster.retrying(|cluster| {
        let response = resource.client(cluster)?.call(&request)?;
        let result = response.results.into_iter().next().context("the broker left out the settings")?;
        check_message(result.error_code, result.error_message.as_deref(), || {
            format!("cannot read the settings of {resource}")
        })?;
        let mut configs: Vec<Config> = result.configs.iter().map(Config::from_response).collect();
        configs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(configs)
    })
}

/// Sets some settings and lets others go back to their defaults, all or none of it.
pub(crate) fn alter(
    cluster: &mut Cluster,
    resource: &Resource,
    set: &[Setting],
    delete: &[String],
) -> Result<()> {
    let config = |(key, operation, value): (&String, i8, Option<&str>)| AlterableConfig {
        name: key.clone().into(),
        config_operation: operation,
        value: value.map(|value| value.to_owned().into()),
        ..Default::default()
    };
    let sets = set.iter().map(|setting| (&setting.key, SET, Some(setting.value.as_str())));
    let deletes = delete.iter().map(|key| (key, DELETE, None));
    let request = IncrementalAlterConfigsRequest {
        resources: vec![AlterConfigsResource {
            resource_type: resource.kind as i8,
            resource_name: resource.name.as_str().into(),
            configs: sets.chain(deletes).map(config).collect(),
            ..Default::default()
        }],
        ..Default::default()
    };
    cluster.retrying(|cluster| {
        let response = resource.client(cluster)?.call(&request)?;
        let result = response.responses.first().context("the broker left out the result")?;
        check_message(result.error_code, result.error_message.as_deref(), || {
            format!("cannot change the settings of {resource}")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_a_key() {
        let setting = |key: &str, value: &str| Ok(Setting { key: key.into(), value: value.into() });
        assert_eq!(Setting::parse("retention.ms=1"), setting("retention.ms", "1"));
        assert_eq!(Setting::parse(" a = b=c"), setting("a", "b=c"));
        assert_eq!(Setting::parse("a="), setting("a", ""));
        assert!(Setting::parse("retention.ms").is_err());
        assert!(Setting::parse("=1").is_err());
    }

    #[test]
    fn resources_have_a_kind_and_a_name() {
        for (text, kind, name) in [
            ("topic/a/b", Kind::Topic, "a/b"),
            ("broker", Kind::Broker, ""),
            ("broker/1", Kind::Broker, "1"),
            ("group/g", Kind::Group, "g"),
            ("client-metrics/m", Kind::ClientMetrics, "m"),
        ] {
            let resource = Resource::parse(text).unwrap();
            assert_eq!((resource.kind, resource.name.as_str()), (kind, name), "{text}");
            assert_eq!(resource.to_string(), text);
        }
        for wrong in ["topic", "topic/", "broker/one", "logger", "user/u", ""] {
            assert!(Resource::parse(wrong).is_err(), "{wrong}");
        }
    }
}
