//! Settings: DescribeConfigs (32) and IncrementalAlterConfigs (44).

use std::fmt;

use mainstem_lines::OneLine;
use mainstem_wire::messages::describe_configs_request::{DescribeConfigsRequest, DescribeConfigsResource};
use mainstem_wire::messages::describe_configs_response::DescribeConfigsResourceResult;
use mainstem_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use mainstem_wire::messages::list_config_resources_request::ListConfigResourcesRequest;

use super::{Admin, left_out, settled};
use crate::connection::Connection;
use crate::error::Error;

/// The first version of ListConfigResources that lists other kinds than clients' metrics.
const ALL_KINDS_SINCE: i16 = 1;

/// A resource that has settings.
///
/// ```
/// use mainstem_client::{Admin, ClientConfig, ConfigResource, NewTopic};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// let admin = Admin::new(ClientConfig::new(address)?);
/// admin.create_topic(&NewTopic::new("orders").partitions(2)).await?;
/// let orders = ConfigResource::Topic("orders".into());
/// assert!(admin.config_resources().await?.contains(&orders));
/// assert!(!admin.configs(&ConfigResource::Broker(admin.nodes().await?[0])).await?.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigResource {
    /// A topic.
    Topic(String),
    /// A broker, by its node id.
    Broker(i32),
    /// The defaults of all brokers.
    AllBrokers,
    /// The levels of a broker's loggers, by its node id.
    Loggers(i32),
    /// A subscription to clients' metrics (KIP-714).
    ClientMetrics(String),
    /// A group.
    Group(String),
}

impl ConfigResource {
    /// Kafka's number of the kind, and the name.
    fn wire(&self) -> (i8, String) {
        match self {
            ConfigResource::Topic(name) => (2, name.clone()),
            ConfigResource::Broker(id) => (4, id.to_string()),
            ConfigResource::AllBrokers => (4, String::new()),
            ConfigResource::Loggers(id) => (8, id.to_string()),
            ConfigResource::ClientMetrics(name) => (16, name.clone()),
            ConfigResource::Group(name) => (32, name.clone()),
        }
    }

    /// The reverse of `wire`; none for a kind or a name that is not known here.
    fn from_wire(kind: i8, name: &str) -> Option<ConfigResource> {
        Some(match kind {
            2 => ConfigResource::Topic(name.to_owned()),
            4 if name.is_empty() => ConfigResource::AllBrokers,
            4 => ConfigResource::Broker(name.parse().ok()?),
            8 => ConfigResource::Loggers(name.parse().ok()?),
            16 => ConfigResource::ClientMetrics(name.to_owned()),
            32 => ConfigResource::Group(name.to_owned()),
            _ => return None,
        })
    }

    /// The one node that can be asked, if not any.
    fn node(&self) -> Option<i32> {
        match self {
            ConfigResource::Broker(id) | ConfigResource::Loggers(id) => Some(*id),
            _ => None,
        }
    }
}

impl fmt::Display for ConfigResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigResource::Topic(name) => write!(f, "topic {}", OneLine(name)),
            ConfigResource::Broker(id) => write!(f, "broker {id}"),
            ConfigResource::AllBrokers => write!(f, "all brokers"),
            ConfigResource::Loggers(id) => write!(f, "the loggers of broker {id}"),
            ConfigResource::ClientMetrics(name) => write!(f, "client metrics {}", OneLine(name)),
            ConfigResource::Group(name) => write!(f, "group {}", OneLine(name)),
        }
    }
}

/// The source of a value.
///
/// ```
/// use mainstem_client::{Admin, ClientConfig, ConfigResource, ConfigSource, NewTopic};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// let admin = Admin::new(ClientConfig::new(address)?);
/// admin.create_topic(&NewTopic::new("orders").partitions(2)).await?;
/// let orders = ConfigResource::Topic("orders".into());
/// let configs = admin.configs(&orders).await?;
/// assert!(configs.iter().all(|config| config.source != ConfigSource::Topic), "nothing was set");
/// assert_eq!(ConfigSource::Default.name(), "DEFAULT_CONFIG");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigSource {
    /// Set for the topic.
    Topic,
    /// Set for the broker while it runs.
    DynamicBroker,
    /// Set for all brokers while they run.
    DynamicDefaultBroker,
    /// The broker's file or command line.
    StaticBroker,
    /// The default.
    Default,
    /// Set for the logger.
    Logger,
    /// Set for the subscription to clients' metrics.
    ClientMetrics,
    /// Set for the group.
    Group,
    /// Another one, by Kafka's number.
    Other(i8),
}

impl ConfigSource {
    fn from_code(code: i8) -> ConfigSource {
        match code {
            1 => ConfigSource::Topic,
            2 => ConfigSource::DynamicBroker,
            3 => ConfigSource::DynamicDefaultBroker,
            4 => ConfigSource::StaticBroker,
            5 => ConfigSource::Default,
            6 => ConfigSource::Logger,
            7 => ConfigSource::ClientMetrics,
            8 => ConfigSource::Group,
            other => ConfigSource::Other(other),
        }
    }

    /// In Kafka's words.
    ///
    /// ```
    /// assert_eq!(mainstem_client::ConfigSource::Topic.name(), "DYNAMIC_TOPIC_CONFIG");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            ConfigSource::Topic => "DYNAMIC_TOPIC_CONFIG",
            ConfigSource::DynamicBroker => "DYNAMIC_BROKER_CONFIG",
            ConfigSource::DynamicDefaultBroker => "DYNAMIC_DEFAULT_BROKER_CONFIG",
            ConfigSource::StaticBroker => "STATIC_BROKER_CONFIG",
            ConfigSource::Default => "DEFAULT_CONFIG",
            ConfigSource::Logger => "DYNAMIC_BROKER_LOGGER_CONFIG",
            ConfigSource::ClientMetrics => "DYNAMIC_CLIENT_METRICS_CONFIG",
            ConfigSource::Group => "DYNAMIC_GROUP_CONFIG",
            ConfigSource::Other(_) => "UNKNOWN",
        }
    }
}

/// A setting.
///
/// ```
/// use mainstem_client::{Admin, ClientConfig, ConfigResource, NewTopic};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// let admin = Admin::new(ClientConfig::new(address)?);
/// admin.create_topic(&NewTopic::new("orders").partitions(2)).await?;
/// let orders = ConfigResource::Topic("orders".into());
/// let configs = admin.configs(&orders).await?;
/// let size = configs.iter().find(|config| config.name == "segment.bytes").expect("every topic has it");
/// assert_eq!((size.value.as_deref(), size.is_sensitive), (Some("1073741824"), false));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigEntry {
    /// Kafka's name.
    pub name: String,
    /// The value in effect; none if it is null or a secret.
    pub value: Option<String>,
    /// The source of the value.
    pub source: ConfigSource,
    /// True if [`Admin::alter_configs`] cannot change it.
    pub is_read_only: bool,
    /// True for a secret; its value is never returned.
    pub is_sensitive: bool,
}

impl ConfigEntry {
    fn from_response(config: &DescribeConfigsResourceResult<'_>) -> ConfigEntry {
        ConfigEntry {
            name: config.name.clone().into_owned(),
            value: config.value.as_deref().map(str::to_owned),
            source: ConfigSource::from_code(config.config_source),
            is_read_only: config.read_only,
            is_sensitive: config.is_sensitive,
        }
    }
}

/// A change of a setting (KIP-339).
///
/// ```
/// use mainstem_client::{Admin, ClientConfig, ConfigChange, ConfigResource, NewTopic};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// let admin = Admin::new(ClientConfig::new(address)?);
/// admin.create_topic(&NewTopic::new("orders").partitions(2)).await?;
/// let orders = ConfigResource::Topic("orders".into());
/// let changes = [
///     ConfigChange::Set("retention.ms".into(), "3600000".into()),
///     ConfigChange::Append("cleanup.policy".into(), "compact".into()),
///     ConfigChange::Delete("segment.bytes".into()),
/// ];
/// admin.alter_configs(&orders, &changes, false).await?;
/// let configs = admin.configs(&orders).await?;
/// let policy = configs.iter().find(|one| one.name == "cleanup.policy").and_then(|one| one.value.as_deref());
/// assert_eq!(policy, Some("delete,compact"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigChange {
    /// Gives it a value.
    Set(String, String),
    /// Takes its own value away: the next source counts.
    Delete(String),
    /// Adds to a list.
    Append(String, String),
    /// Takes from a list.
    Subtract(String, String),
}

impl ConfigChange {
    fn wire(&self) -> AlterableConfig<'_> {
        let (operation, name, value) = match self {
            ConfigChange::Set(name, value) => (0, name, Some(value)),
            ConfigChange::Delete(name) => (1, name, None),
            ConfigChange::Append(name, value) => (2, name, Some(value)),
            ConfigChange::Subtract(name, value) => (3, name, Some(value)),
        };
        AlterableConfig {
            name: name.into(),
            config_operation: operation,
            value: value.map(Into::into),
            ..Default::default()
        }
    }
}

impl Admin {
    /// All settings of something, also those that have their defaults. The broker that is asked may not know of a topic yet
    /// that was created just now.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses, such as UNKNOWN_TOPIC_OR_PARTITION.
    pub async fn configs(&self, resource: &ConfigResource) -> Result<Vec<ConfigEntry>, Error> {
        let what = format!("reading the settings of {resource}");
        self.retried(&what, || async { settled(self.try_to_read(resource).await) }).await?
    }

    async fn try_to_read(&self, resource: &ConfigResource) -> Result<Vec<ConfigEntry>, Error> {
        let (resource_type, name) = resource.wire();
        let wanted = DescribeConfigsResource {
            resource_type,
            resource_name: name.into(),
            configuration_keys: None,
            ..Default::default()
        };
        let request = DescribeConfigsRequest { resources: vec![wanted], ..Default::default() };
        let reply = self.connection_for(resource).await?.call(&request).await?;
        let response = reply.read()?;
        let result = response.results.first().ok_or_else(|| left_out(&reply, &resource.to_string()))?;
        let refused = || format!("cannot read the settings of {resource}");
        reply.check(result.error_code, result.error_message.as_deref(), refused)?;
        Ok(result.configs.iter().map(ConfigEntry::from_response).collect())
    }

    /// All resources that have settings of their own or could have them: topics, brokers, groups, subscriptions to clients'
    /// metrics (KIP-1142).
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::Unsupported`] before Kafka 4.1, or why the cluster refuses.
    pub async fn config_resources(&self) -> Result<Vec<ConfigResource>, Error> {
        self.retried("listing what has settings", || async {
            let connection = self.cluster.any().await?;
            let what = "listing all kinds (KIP-1142)";
            connection.needs::<ListConfigResourcesRequest<'_>>(ALL_KINDS_SINCE, what)?;
            let reply = connection.call(&ListConfigResourcesRequest::default()).await?;
            let response = reply.read()?;
            reply.check(response.error_code, None, || "cannot list what has settings".to_owned())?;
            let resources = response.config_resources.iter();
            Ok(resources
                .filter_map(|one| ConfigResource::from_wire(one.resource_type, &one.resource_name))
                .collect())
        })
        .await
    }

    /// Makes changes, all or none; with `validate_only` it only checks if they could be made.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses, such as INVALID_CONFIG or UNKNOWN_TOPIC_OR_PARTITION.
    pub async fn alter_configs(
        &self,
        resource: &ConfigResource,
        changes: &[ConfigChange],
        validate_only: bool,
    ) -> Result<(), Error> {
        let what = format!("changing the settings of {resource}");
        let attempt = || async { settled(self.try_to_alter(resource, changes, validate_only).await) };
        self.retried(&what, attempt).await?
    }

    async fn try_to_alter(
        &self,
        resource: &ConfigResource,
        changes: &[ConfigChange],
        validate_only: bool,
    ) -> Result<(), Error> {
        let (resource_type, name) = resource.wire();
        let configs = changes.iter().map(ConfigChange::wire).collect();
        let altered =
            AlterConfigsResource { resource_type, resource_name: name.into(), configs, ..Default::default() };
        let request =
            IncrementalAlterConfigsRequest { resources: vec![altered], validate_only, ..Default::default() };
        let reply = self.connection_for(resource).await?.call(&request).await?;
        let response = reply.read()?;
        let result = response.responses.first().ok_or_else(|| left_out(&reply, &resource.to_string()))?;
        let refused = || format!("cannot change the settings of {resource}");
        reply.check(result.error_code, result.error_message.as_deref(), refused)
    }

    /// A connection to a broker that knows the settings.
    async fn connection_for(&self, resource: &ConfigResource) -> Result<Connection, Error> {
        match resource.node() {
            Some(node) => self.cluster.node(node).await,
            None => self.cluster.any().await,
        }
    }
}
