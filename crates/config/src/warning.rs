//! Warnings of a configuration with which a node starts all the same.

use std::fmt;

use super::origin::StaticOrigin;

/// A warning for the user at start; the node starts all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigWarning {
    /// An unknown name. Kafka ignores such names too, since plug-ins have keys of their own.
    UnknownKey {
        /// The name.
        name: String,
        /// The source of the value.
        origin: StaticOrigin,
        /// A key that may have been meant.
        nearest: Option<&'static str>,
    },
    /// A key that is known and valid, and has no effect here.
    NoEffect {
        /// The name.
        name: String,
        /// The source of the value.
        origin: StaticOrigin,
        /// The reason.
        reason: &'static str,
    },
    /// A key in the spelling of an image of Kafka.
    OtherSpelling {
        /// The name as it was written.
        name: String,
        /// The source of the value.
        origin: StaticOrigin,
        /// The key, and the variable that sets it.
        right: String,
    },
    /// A value that so few nodes cannot meet.
    FewNodes {
        /// The key.
        name: &'static str,
        /// Its value.
        value: i64,
        /// The number of nodes.
        nodes: usize,
    },
    /// A value that has no effect beside the others.
    Futile {
        /// The key, with its value if that matters.
        name: String,
        /// The reason.
        because: String,
    },
}

impl ConfigWarning {
    /// Returns true for a warning about several values together, which is found again whenever one of them changes.
    pub(super) fn is_of_values_together(&self) -> bool {
        matches!(self, ConfigWarning::FewNodes { .. } | ConfigWarning::Futile { .. })
    }
}

impl fmt::Display for ConfigWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigWarning::UnknownKey { name, origin, nearest: Some(nearest) } => {
                write!(f, "{origin}: unknown key {name} is ignored; did you mean {nearest}?")
            }
            ConfigWarning::UnknownKey { name, origin, nearest: None } => {
                write!(f, "{origin}: unknown key {name} is ignored")
            }
            ConfigWarning::OtherSpelling { name, origin, right } => {
                write!(f, "{origin}: {name} is ignored: the key is {right}")
            }
            ConfigWarning::NoEffect { name, origin, reason } => {
                write!(f, "{origin}: {name} has no effect here: {reason}")
            }
            ConfigWarning::FewNodes { name, value, nodes } => {
                let there = match nodes {
                    1 => "there is one node".to_string(),
                    nodes => format!("there are {nodes} nodes"),
                };
                let refused = match name.ends_with(".replication.factor") {
                    true => "topics that need it are refused",
                    false => "what is written with acks=all is refused",
                };
                write!(f, "{name}={value} cannot be met: {there}, so {refused}")
            }
            ConfigWarning::Futile { name, because } => write!(f, "{name} has no effect: {because}"),
        }
    }
}
