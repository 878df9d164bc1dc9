//! The name of a partition.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use mainstem_lines::OneLine;

/// A partition of a topic.
///
/// ```
/// use mainstem_client::TopicPartition;
///
/// assert_eq!(TopicPartition::new("orders", 3).to_string(), "orders-3");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// Name of the topic.
    pub topic: Arc<str>,
    /// Number of the partition.
    pub partition: i32,
}

impl TopicPartition {
    /// A partition by the name of its topic and its number.
    pub fn new(topic: impl Into<Arc<str>>, partition: i32) -> TopicPartition {
        TopicPartition { topic: topic.into(), partition }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", OneLine(&self.topic), self.partition)
    }
}

/// The partitions of each topic, as most requests have them.
pub(crate) fn by_topic<'a>(
    keys: impl IntoIterator<Item = &'a TopicPartition>,
) -> BTreeMap<&'a str, Vec<i32>> {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for key in keys {
        topics.entry(&key.topic).or_default().push(key.partition);
    }
    topics
}
