//! The places that a value of the configuration comes from.

use std::fmt;

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

/// The environment variable that sets a key: `MAINSTEM_` and the key in capitals, dots as underscores.
pub fn environment_name(key: &str) -> String {
    format!("MAINSTEM_{}", key.to_ascii_uppercase().replace('.', "_"))
}
