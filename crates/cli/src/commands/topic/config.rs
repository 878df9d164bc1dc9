//! Settings of a topic: KEY=VALUE on the command line, and what DescribeConfigs tells.

use anyhow::{Context, Result};
use mainstem_wire::messages::describe_configs_request::{DescribeConfigsRequest, DescribeConfigsResource};
use mainstem_wire::messages::describe_configs_response::DescribeConfigsResourceResult;
use serde_json::{Value, json};

use crate::client::check_message;
use crate::cluster::Cluster;

/// `resource_type` of topics.
pub(crate) const TOPIC_RESOURCE: i8 = 2;
/// `config_source` of what was set for the topic itself.
const DYNAMIC_TOPIC_CONFIG: i8 = 1;

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
    pub(crate) source: i8,
}

impl Config {
    /// Whether it was set for this topic, so that it may differ from the defaults.
    pub(crate) fn is_own(&self) -> bool {
        self.source == DYNAMIC_TOPIC_CONFIG
    }

    /// Where the value comes from, in Kafka's words.
    pub(crate) fn source_name(&self) -> &'static str {
        match self.source {
            DYNAMIC_TOPIC_CONFIG => "DYNAMIC_TOPIC_CONFIG",
            2 => "DYNAMIC_BROKER_CONFIG",
            3 => "DYNAMIC_DEFAULT_BROKER_CONFIG",
            4 => "STATIC_BROKER_CONFIG",
            5 => "DEFAULT_CONFIG",
            6 => "DYNAMIC_BROKER_LOGGER_CONFIG",
            _ => "UNKNOWN",
        }
    }

    /// For programs.
    pub(crate) fn to_json(&self) -> Value {
        json!({"name": self.name, "value": self.value, "source": self.source_name()})
    }

    fn from_response(result: &DescribeConfigsResourceResult<'_>) -> Config {
        Config {
            name: result.name.to_string(),
            value: result.value.as_deref().map(str::to_owned),
            source: result.config_source,
        }
    }
}

/// Every setting of a topic, by name.
pub(crate) fn describe_configs(cluster: &mut Cluster, topic: &str) -> Result<Vec<Config>> {
    let request = DescribeConfigsRequest {
        resources: vec![DescribeConfigsResource {
            resource_type: TOPIC_RESOURCE,
            resource_name: topic.into(),
            configuration_keys: None,
            ..Default::default()
        }],
        ..Default::default()
    };
    cluster.retrying(|cluster| {
        let response = cluster.any()?.call(&request)?;
        let result = response.results.into_iter().next().context("the broker left out the settings")?;
        check_message(result.error_code, result.error_message.as_deref(), || format!("settings of {topic}"))?;
        let mut configs: Vec<Config> = result.configs.iter().map(Config::from_response).collect();
        configs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(configs)
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
}
