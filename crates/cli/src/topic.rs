//! A topic that a command needs.

use std::sync::Arc;

use anyhow::{Context, Result};
use mainstem_client::{Admin, Topic, TopicPartition};

/// A topic that must exist.
pub(crate) async fn find(admin: &Admin, name: &str) -> Result<Arc<Topic>> {
    admin.find_topic(name).await?.with_context(|| {
        format!(
            "there is no topic {name}; create it with `mainstem topic create {name}`, or see `mainstem topic list`"
        )
    })
}

/// The names of its partitions that have a leader.
pub(crate) fn led(topic: &Topic) -> Vec<TopicPartition> {
    let led = topic.partitions.iter().filter(|partition| partition.leader.is_some());
    led.map(|partition| TopicPartition::new(topic.name.clone(), partition.index)).collect()
}
