//! Configuration: one table of keys, and everything that is made from it.
//!
//! [`table`] holds the keys of topics, brokers and groups. [`BrokerConfig`] is the configuration of a node, from a properties
//! file, the environment and overrides. [`TopicConfigValues`] has the settings of one topic, [`GroupConfigValues`] those of one
//! group. [`describe`] answers DescribeConfigs; [`alter`] is the rule of IncrementalAlterConfigs; [`docs`] writes the reference
//! page.
//!
//! Architecture invariant: nothing here but [`files`] reads a file, and nothing the environment or a clock.

pub mod alter;
mod broker;
mod broker_values;
pub mod client_match;
mod client_metrics;
pub mod describe;
pub mod docs;
pub use mainstem_files as files;
mod futile;
#[doc(hidden)]
pub mod fuzz;
mod group;
mod group_settings;
#[cfg(test)]
mod honesty;
mod key;
mod listeners;
pub mod loggers;
mod nodes;
mod origin;
mod others;
mod problem;
mod properties;
mod protection;
mod providers;
mod quorum;
mod quota_windows;
mod sasl;
mod settings;
mod sources;
mod spelling;
pub mod table;
mod tls;
mod topic;
mod value;
mod warning;

pub use broker::BrokerConfig;
pub use broker_values::BrokerValues;
pub use client_metrics::alter_client_metrics;
pub use group::GroupConfigValues;
pub use group_settings::{Assignor, ConsumerGroupConfig, GroupTimes, MigrationPolicy};
pub use key::{ConfigKey, ConfigType, Fallback, Importance, Origin, Scope, Status, UpdateMode, Valid};
pub use listeners::{Endpoint, Listeners, SecurityProtocol};
pub use nodes::NodeListener;
pub use origin::{ConfigSource, StaticOrigin, environment_name};
pub use problem::{ConfigError, Problem};
pub use properties::{Properties, PropertiesError, Property};
pub use providers::{ProviderError, Surroundings};
pub use quorum::{Joining, Quorum, QuorumServer, Voter};
pub use quota_windows::Windows;
pub use sasl::{SaslListener, SaslMechanism, SecretText};
pub use settings::{
    AuthenticationConfig, AuthorizerConfig, CleanerConfig, GroupLimits, LogMaintenance, MetadataLogConfig,
    NetworkConfig, OffsetsConfig, QuotaConfig, ReplicationConfig, TopicDefaults, TransactionLogConfig,
};
pub use sources::Sources;
pub use tls::{HttpAuthentication, TlsListener};
pub use topic::{CompressionType, ThrottledReplicas, TimestampType, TopicConfigValues};
pub use value::{ConfigValue, InvalidValue};
pub use warning::ConfigWarning;
