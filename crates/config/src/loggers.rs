//! The levels of loggers, which resources of type BROKER_LOGGER show and change (KIP-412). They last until the process
//! ends, as in Kafka.

use std::collections::BTreeMap;

use super::alter::{AlterError, Change, Operation, check_shape};
use super::describe::DescribedConfig;
use super::origin::ConfigSource;

/// The name of the logger whose level is used for loggers without a level of their own.
pub const ROOT: &str = "root";

/// The parts of the program that can have a level of their own: its crates.
pub const LOGGERS: [&str; 18] = [
    "mainstem",
    "mainstem_broker",
    "mainstem_config",
    "mainstem_controller",
    "mainstem_coordination",
    "mainstem_coordinators",
    "mainstem_limits",
    "mainstem_links",
    "mainstem_listener_security",
    "mainstem_log",
    "mainstem_net",
    "mainstem_node",
    "mainstem_records",
    "mainstem_replication",
    "mainstem_requests",
    "mainstem_runtime",
    "mainstem_store",
    "mainstem_wire",
];

/// The level of a logger. It logs the messages of its level and of all levels before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Nothing: no message here is fatal.
    Fatal,
    /// Failures that an operator has to look after.
    Error,
    /// Events that an operator may want to look after.
    Warn,
    /// Actions of the node.
    Info,
    /// Details that are needed to find a fault.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// The levels that can be set, by name as Kafka lists them.
    const ALL: [LogLevel; 6] =
        [LogLevel::Debug, LogLevel::Error, LogLevel::Fatal, LogLevel::Info, LogLevel::Trace, LogLevel::Warn];

    /// Its name, as the protocol has it.
    pub fn name(self) -> &'static str {
        match self {
            LogLevel::Fatal => "FATAL",
            LogLevel::Error => "ERROR",
            LogLevel::Warn => "WARN",
            LogLevel::Info => "INFO",
            LogLevel::Debug => "DEBUG",
            LogLevel::Trace => "TRACE",
        }
    }
}

/// The levels of all loggers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggerLevels {
    root: LogLevel,
    /// Levels of loggers that differ from the root's, or may.
    own: BTreeMap<String, LogLevel>,
}

impl LoggerLevels {
    /// The level of the root, and of those loggers that have their own. They may have any names here; by
    /// [`LoggerLevels::altered`] only these and [`LOGGERS`] can be changed.
    pub fn new(root: LogLevel, own: BTreeMap<String, LogLevel>) -> LoggerLevels {
        LoggerLevels { root, own }
    }

    /// The level of the root.
    pub fn root(&self) -> LogLevel {
        self.root
    }

    /// The loggers that have a level of their own.
    pub fn own(&self) -> impl Iterator<Item = (&str, LogLevel)> {
        self.own.iter().map(|(name, level)| (name.as_str(), *level))
    }

    /// The levels after these changes, all or none of them.
    pub fn altered(&self, changes: &[Change<'_>]) -> Result<LoggerLevels, AlterError> {
        check_shape(changes)?;
        let mut after = self.clone();
        for change in changes {
            let name = change.name;
            if name != ROOT && !LOGGERS.contains(&name) && !self.own.contains_key(name) {
                return Err(AlterError::InvalidConfig(format!("Logger {name} does not exist!")));
            }
            match change.operation {
                Operation::Set => after.set(name, level(change)?),
                Operation::Delete if name == ROOT => {
                    let message = "Removing the log level of the root logger is not allowed";
                    return Err(AlterError::InvalidRequest(message.to_string()));
                }
                Operation::Delete => drop(after.own.remove(name)),
                Operation::Append => return Err(not_for_loggers("APPEND")),
                Operation::Subtract => return Err(not_for_loggers("SUBTRACT")),
            }
        }
        Ok(after)
    }

    fn set(&mut self, name: &str, level: LogLevel) {
        match name {
            ROOT => self.root = level,
            name => drop(self.own.insert(name.to_string(), level)),
        }
    }

    /// The answer of DescribeConfigs, by name: the effective level of each logger.
    pub fn describe(&self) -> Vec<DescribedConfig> {
        let mut levels: BTreeMap<&str, LogLevel> = LOGGERS.iter().map(|name| (*name, self.root)).collect();
        levels.extend(self.own());
        levels.insert(ROOT, self.root);
        let entries = levels.into_iter().map(|(name, level)| DescribedConfig {
            name: name.to_string(),
            value: Some(level.name().to_string()),
            read_only: false,
            source: ConfigSource::BrokerLogger,
            is_sensitive: false,
            synonyms: Vec::new(),
            kind: None,
            documentation: None,
        });
        entries.collect()
    }
}

fn level(change: &Change<'_>) -> Result<LogLevel, AlterError> {
    let name = change.value.unwrap_or_default();
    let found = LogLevel::ALL.into_iter().find(|level| level.name() == name);
    found.ok_or_else(|| {
        let valid: Vec<_> = LogLevel::ALL.iter().map(|level| level.name()).collect();
        AlterError::InvalidConfig(format!(
            "Cannot set the log level of {} to {name} as it is not a supported log level. Valid log levels are {}",
            change.name,
            valid.join(", ")
        ))
    })
}

fn not_for_loggers(operation: &str) -> AlterError {
    AlterError::InvalidRequest(format!("{operation} operation is not allowed for the BROKER_LOGGER resource"))
}

#[cfg(test)]
mod tests {
    use super::Operation::*;
    use super::*;

    fn levels(own: &[(&str, LogLevel)]) -> LoggerLevels {
        let own = own.iter().map(|(name, level)| (name.to_string(), *level));
        LoggerLevels::new(LogLevel::Info, own.collect())
    }

    fn check(changes: &[(&str, Operation, Option<&str>)], expect: &str) {
        let changes: Vec<_> =
            changes.iter().map(|&(name, operation, value)| Change { name, operation, value }).collect();
        let before = levels(&[("mainstem_log", LogLevel::Debug), ("hyper", LogLevel::Error)]);
        let got = match before.altered(&changes) {
            Ok(after) => {
                let own: Vec<_> =
                    after.own().map(|(name, level)| format!("{name}={}", level.name())).collect();
                format!("{} {}", after.root().name(), own.join(" "))
            }
            Err(error) => error.to_string(),
        };
        assert_eq!(got, expect, "{changes:?}");
    }

    #[test]
    fn levels_are_set_and_forgotten() {
        check(&[("root", Set, Some("WARN"))], "WARN hyper=ERROR mainstem_log=DEBUG");
        check(
            &[("mainstem_broker", Set, Some("TRACE"))],
            "INFO hyper=ERROR mainstem_broker=TRACE mainstem_log=DEBUG",
        );
        check(&[("mainstem_log", Delete, None), ("hyper", Set, Some("FATAL"))], "INFO hyper=FATAL");
        check(&[("mainstem_wire", Delete, None)], "INFO hyper=ERROR mainstem_log=DEBUG");
    }

    /// Each text was answered by Kafka 4.3.0.
    #[test]
    fn loggers_refuse_what_kafka_refuses() {
        check(&[("nope", Set, Some("DEBUG"))], "Logger nope does not exist!");
        check(
            &[("root", Set, Some("nope"))],
            "Cannot set the log level of root to nope as it is not a supported log level. \
             Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN",
        );
        check(&[("root", Delete, None)], "Removing the log level of the root logger is not allowed");
        check(
            &[("root", Append, Some("DEBUG"))],
            "APPEND operation is not allowed for the BROKER_LOGGER resource",
        );
        check(
            &[("root", Subtract, Some("DEBUG"))],
            "SUBTRACT operation is not allowed for the BROKER_LOGGER resource",
        );
        check(
            &[("root", Set, Some("DEBUG")), ("root", Set, Some("DEBUG"))],
            "Error due to duplicate config keys",
        );
        check(&[("root", Set, Some("DEBUG")), ("nope", Set, Some("DEBUG"))], "Logger nope does not exist!");
    }

    #[test]
    fn every_logger_is_described() {
        let described = levels(&[("mainstem_log", LogLevel::Debug)]).describe();
        let shown: Vec<_> = described
            .iter()
            .map(|entry| format!("{}={}", entry.name, entry.value.as_deref().unwrap_or_default()))
            .collect();
        assert_eq!(
            shown,
            [
                "mainstem=INFO",
                "mainstem_broker=INFO",
                "mainstem_config=INFO",
                "mainstem_controller=INFO",
                "mainstem_coordination=INFO",
                "mainstem_coordinators=INFO",
                "mainstem_limits=INFO",
                "mainstem_links=INFO",
                "mainstem_listener_security=INFO",
                "mainstem_log=DEBUG",
                "mainstem_net=INFO",
                "mainstem_node=INFO",
                "mainstem_records=INFO",
                "mainstem_replication=INFO",
                "mainstem_requests=INFO",
                "mainstem_runtime=INFO",
                "mainstem_store=INFO",
                "mainstem_wire=INFO",
                "root=INFO",
            ]
        );
        assert!(described.iter().all(|entry| entry.source.code() == 6 && !entry.read_only));
    }
}
