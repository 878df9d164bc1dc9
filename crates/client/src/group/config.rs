//! The configuration of a member of a group.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use regex::Regex;

use crate::consumer::{ConsumerConfig, Position};
use crate::error::Error;
use crate::topic_partition::TopicPartition;

/// The topics that a member reads.
///
/// ```
/// use mainstem_client::{ClientConfig, ConsumerConfig, GroupConfig, Subscription};
///
/// # fn main() -> Result<(), mainstem_client::Error> {
/// let consumer = ConsumerConfig::new(ClientConfig::new("127.0.0.1:9092")?);
/// let config = GroupConfig::new("billing", ["orders", "returns"], consumer);
/// assert_eq!(config.subscription, Subscription::Topics(vec!["orders".into(), "returns".into()]));
/// let config = GroupConfig { subscription: Subscription::Pattern("orders-.*".into()), ..config };
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subscription {
    /// These.
    Topics(Vec<Arc<str>>),
    /// All whose whole name matches this pattern, also those that come later. With the classic protocol the client matches names,
    /// by the syntax of the crate `regex`, and leaves out the brokers' own topics. With the consumer protocol the brokers do
    /// it, by that of RE2 (KIP-848).
    Pattern(Arc<str>),
}

/// The protocol by which the members of a group agree on an assignment.
///
/// ```
/// use mainstem_client::{ClientConfig, ConsumerConfig, GroupConfig, GroupProtocol, Subscription};
///
/// # fn main() -> Result<(), mainstem_client::Error> {
/// let consumer = ConsumerConfig::new(ClientConfig::new("127.0.0.1:9092")?);
/// let config = GroupConfig::new("billing", ["orders"], consumer)
///     .protocol(GroupProtocol::Consumer { assignor: Some("range".into()) });
/// let by_pattern = GroupConfig { subscription: Subscription::Pattern("orders-.*".into()), ..config };
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum GroupProtocol {
    /// A member assigns partitions, by cooperative-sticky (KIP-429). Every broker has it.
    #[default]
    Classic,
    /// The group's coordinator assigns partitions, and moves them one by one without holding up the others (KIP-848).
    /// Brokers have it since Kafka 4.0; those of 3.9 as a preview without patterns, which has to be turned on there.
    Consumer {
        /// The coordinator's assignor, such as `uniform` or `range`; the first of its list if there is none.
        assignor: Option<Arc<str>>,
    },
}

/// Settings of a [`GroupConsumer`](crate::GroupConsumer); the defaults are those of the Java client.
///
/// ```
/// use mainstem_client::{ClientConfig, ConsumerConfig, GroupConfig};
///
/// # fn main() -> Result<(), mainstem_client::Error> {
/// let consumer = ConsumerConfig::new(ClientConfig::new("127.0.0.1:9092")?);
/// let config = GroupConfig { auto_commit: None, ..GroupConfig::new("billing", ["orders"], consumer) };
/// assert_eq!(config.instance_id, None);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct GroupConfig {
    /// The settings for reading records.
    pub consumer: ConsumerConfig,
    /// Name of the group.
    pub group_id: Arc<str>,
    /// The topics that are read.
    pub subscription: Subscription,
    /// The protocol that assigns partitions. [`GroupProtocol::Classic`] by default.
    pub protocol: GroupProtocol,
    /// A static member (KIP-345): it keeps its partitions when it comes back under this name within the session
    /// time-out, and does not leave the group for good when it is closed.
    pub instance_id: Option<Arc<str>>,
    /// The position at which to read a partition without a committed offset. At the end by default.
    pub start: Position,
    /// Partitions with another such position than `start`. None by default.
    pub starts: BTreeMap<TopicPartition, Position>,
    /// Offsets are committed after this time, and before partitions are revoked; none: only by
    /// [`GroupConsumer::commit`](crate::GroupConsumer::commit). 5 s by default.
    pub auto_commit: Option<Duration>,
    /// The group removes a member that has sent no heartbeat for this time. 45 s by default. With the consumer protocol the
    /// brokers set it.
    pub session_timeout: Duration,
    /// The interval of heartbeats to the group's coordinator. 3 s by default. With the consumer protocol the brokers set
    /// it.
    pub heartbeat_interval: Duration,
    /// A member leaves the group if its [`GroupConsumer::next`](crate::GroupConsumer::next) is not called for this time. Others
    /// wait so long for it in a rebalance. 5 min by default.
    pub max_poll_interval: Duration,
}

impl GroupConfig {
    /// The usual settings.
    pub fn new<T: Into<Arc<str>>>(
        group_id: impl Into<Arc<str>>,
        topics: impl IntoIterator<Item = T>,
        consumer: ConsumerConfig,
    ) -> GroupConfig {
        GroupConfig {
            consumer,
            group_id: group_id.into(),
            subscription: Subscription::Topics(topics.into_iter().map(Into::into).collect()),
            protocol: GroupProtocol::default(),
            instance_id: None,
            start: Position::End,
            starts: BTreeMap::new(),
            auto_commit: Some(Duration::from_secs(5)),
            session_timeout: Duration::from_secs(45),
            heartbeat_interval: Duration::from_secs(3),
            max_poll_interval: Duration::from_secs(300),
        }
    }

    /// The same with another protocol.
    pub fn protocol(mut self, protocol: GroupProtocol) -> GroupConfig {
        self.protocol = protocol;
        self
    }

    /// The position at which to read a partition without a committed offset.
    pub(crate) fn start_of(&self, partition: &TopicPartition) -> Position {
        self.starts.get(partition).copied().unwrap_or(self.start)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let refused = |reason: &str| Err(Error::Invalid(reason.to_owned()));
        if self.group_id.is_empty() {
            return refused("a group has to have a name");
        }
        match &self.subscription {
            Subscription::Topics(topics) if topics.is_empty() => {
                return refused("a member of a group has to subscribe to a topic");
            }
            Subscription::Pattern(pattern) if self.protocol == GroupProtocol::Classic => {
                drop(whole_name(pattern)?);
            }
            _ => {}
        }
        if self.heartbeat_interval >= self.session_timeout {
            return refused("heartbeat_interval has to be less than session_timeout; a third of it is usual");
        }
        let fits = |time: Duration| i32::try_from(time.as_millis()).is_ok();
        if !fits(self.session_timeout) || !fits(self.max_poll_interval) {
            return refused("session_timeout and max_poll_interval are at most 24 days");
        }
        Ok(())
    }
}

/// A pattern that has to match a whole name, as in Kafka.
///
/// # Errors
/// [`Error::Invalid`] says at which place it is wrong.
pub(crate) fn whole_name(pattern: &str) -> Result<Regex, Error> {
    Regex::new(&format!("^(?:{pattern})$"))
        .map_err(|error| Error::Invalid(format!("the pattern of topics {pattern:?} is none: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ClientConfig;

    #[test]
    fn what_cannot_work_is_refused() {
        let config = || GroupConfig::new("g", ["t"], ConsumerConfig::new(ClientConfig::new("a:1").unwrap()));
        assert_eq!(config().check(), Ok(()));
        for wrong in [
            GroupConfig { group_id: "".into(), ..config() },
            GroupConfig { subscription: Subscription::Topics(vec![]), ..config() },
            GroupConfig { subscription: Subscription::Pattern("a(".into()), ..config() },
            GroupConfig { heartbeat_interval: Duration::from_secs(45), ..config() },
            GroupConfig { max_poll_interval: Duration::MAX, ..config() },
        ] {
            assert!(matches!(wrong.check(), Err(Error::Invalid(_))), "{wrong:?}");
        }
    }
}
