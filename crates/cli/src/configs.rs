//! Settings of topics, brokers, groups and more: as the command line names them, and as they are shown.

use std::fmt;

use anyhow::{Result, bail, ensure};
use mainstem_broker::config::Scope;
use mainstem_broker::config::table;
use mainstem_client::{Admin, ConfigChange, ConfigEntry, ConfigResource, ConfigSource};
use serde_json::{Map, Value, json};

use crate::secrets;

/// A resource with settings of its own, written KIND/NAME; `broker` alone is the defaults of all brokers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resource(ConfigResource);

impl Resource {
    /// A topic's settings.
    pub(crate) fn topic(name: &str) -> Resource {
        Resource(ConfigResource::Topic(name.to_owned()))
    }

    /// Reads KIND/NAME; the name may have further slashes.
    pub(crate) fn parse(text: &str) -> Result<Resource, String> {
        let (kind, name) = text.split_once('/').unwrap_or((text, ""));
        let id = || name.parse().map_err(|_| format!("a broker goes by its number, such as {kind}/1"));
        let resource = match (kind, name) {
            ("broker", "") => ConfigResource::AllBrokers,
            ("topic" | "group" | "logger" | "client-metrics", "") => {
                return Err(format!("expected {kind}/NAME"));
            }
            ("topic", name) => ConfigResource::Topic(name.to_owned()),
            ("group", name) => ConfigResource::Group(name.to_owned()),
            ("client-metrics", name) => ConfigResource::ClientMetrics(name.to_owned()),
            ("broker", _) => ConfigResource::Broker(id()?),
            ("logger", _) => ConfigResource::Loggers(id()?),
            _ => {
                return Err(
                    "expected topic/NAME, group/NAME, broker/ID, broker (the defaults of all brokers), \
                     logger/ID or client-metrics/NAME"
                        .to_owned(),
                );
            }
        };
        Ok(Resource(resource))
    }

    /// Returns true if a setting belongs to the resource itself, rather than to a wider default.
    pub(crate) fn owns(&self, config: &ConfigEntry) -> bool {
        matches!(
            (&self.0, config.source),
            (ConfigResource::Topic(_), ConfigSource::Topic)
                | (ConfigResource::Broker(_), ConfigSource::DynamicBroker | ConfigSource::StaticBroker)
                | (ConfigResource::AllBrokers, ConfigSource::DynamicDefaultBroker)
                | (ConfigResource::Loggers(_), ConfigSource::Logger)
                | (ConfigResource::ClientMetrics(_), ConfigSource::ClientMetrics)
                | (ConfigResource::Group(_), ConfigSource::Group)
        )
    }

    /// Returns true if a setting of the resource is a secret.
    fn hides(&self, key: &str) -> bool {
        matches!(self.0, ConfigResource::Broker(_) | ConfigResource::AllBrokers) && secrets::is_sensitive(key)
    }

    /// Refuses settings of brokers with an unknown name: brokers keep them without a word for a plug-in that may use
    /// them. Brokers themselves refuse unknown names of all other resources.
    ///
    /// The first unknown name, with the known one that is most like it.
    pub(crate) fn check_keys(&self, settings: &[Setting]) -> Result<()> {
        if !matches!(self.0, ConfigResource::Broker(_) | ConfigResource::AllBrokers) {
            return Ok(());
        }
        let Some(Setting { key, .. }) = settings.iter().find(|one| table::find_broker(&one.key).is_none())
        else {
            return Ok(());
        };
        let known = table::without_listener_prefix(key);
        match table::nearest(Scope::Broker, known) {
            Some(near) => bail!(
                "brokers have no setting {key}; did you mean {near}? Nothing was changed; --force sets it all the same"
            ),
            None => bail!(
                "brokers have no setting {key}; nothing was changed; see `mainstem config get {self} --all`, or use --force \
                 if it is one of a plug-in"
            ),
        }
    }

    /// Fails if the broker of the resource does not exist.
    async fn check(&self, admin: &Admin) -> Result<()> {
        if let ConfigResource::Broker(id) | ConfigResource::Loggers(id) = &self.0 {
            let nodes = admin.nodes().await?;
            ensure!(
                nodes.contains(id),
                "the cluster has no node {id}; `mainstem cluster` shows those that are"
            );
        }
        Ok(())
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ConfigResource::Topic(name) => write!(f, "topic/{name}"),
            ConfigResource::Broker(id) => write!(f, "broker/{id}"),
            ConfigResource::AllBrokers => f.write_str("broker"),
            ConfigResource::Loggers(id) => write!(f, "logger/{id}"),
            ConfigResource::ClientMetrics(name) => write!(f, "client-metrics/{name}"),
            ConfigResource::Group(name) => write!(f, "group/{name}"),
        }
    }
}

/// A setting with its new value.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) key: String,
    pub(crate) value: String,
}

/// Without the value, which may be a secret.
impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=...", self.key)
    }
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

    /// Its value as it may be printed.
    fn shown(&self, resource: &Resource) -> &str {
        if resource.hides(&self.key) { secrets::HIDDEN } else { &self.value }
    }

    /// For people, without secrets.
    pub(crate) fn to_text(&self, resource: &Resource) -> String {
        format!("{}={}", self.key, self.shown(resource))
    }

    /// The settings of a resource as an object, without secrets.
    pub(crate) fn to_json(settings: &[Setting], resource: &Resource) -> Map<String, Value> {
        settings.iter().map(|setting| (setting.key.clone(), setting.shown(resource).into())).collect()
    }
}

/// A setting for programs.
pub(crate) fn to_json(config: &ConfigEntry) -> Value {
    json!({"name": config.name, "value": config.value, "source": config.source.name()})
}

/// Its value for people.
pub(crate) fn shown(config: &ConfigEntry) -> &str {
    config.value.as_deref().unwrap_or("(hidden)")
}

/// Every setting of a resource, by name.
pub(crate) async fn describe(admin: &Admin, resource: &Resource) -> Result<Vec<ConfigEntry>> {
    resource.check(admin).await?;
    let mut configs = admin.configs(&resource.0).await?;
    configs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(configs)
}

/// Sets settings and resets others to their defaults, all or none.
pub(crate) async fn alter(
    admin: &Admin,
    resource: &Resource,
    set: &[Setting],
    delete: &[String],
) -> Result<()> {
    resource.check(admin).await?;
    let sets = set.iter().map(|setting| ConfigChange::Set(setting.key.clone(), setting.value.clone()));
    let deletes = delete.iter().cloned().map(ConfigChange::Delete);
    Ok(admin.alter_configs(&resource.0, &sets.chain(deletes).collect::<Vec<_>>(), false).await?)
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
        for (text, expected) in [
            ("topic/a/b", ConfigResource::Topic("a/b".into())),
            ("broker", ConfigResource::AllBrokers),
            ("broker/1", ConfigResource::Broker(1)),
            ("logger/1", ConfigResource::Loggers(1)),
            ("group/g", ConfigResource::Group("g".into())),
            ("client-metrics/m", ConfigResource::ClientMetrics("m".into())),
        ] {
            let resource = Resource::parse(text).unwrap();
            assert_eq!(resource.0, expected, "{text}");
            assert_eq!(resource.to_string(), text);
        }
        for wrong in ["topic", "topic/", "broker/one", "logger", "user/u", ""] {
            assert!(Resource::parse(wrong).is_err(), "{wrong}");
        }
    }
}
