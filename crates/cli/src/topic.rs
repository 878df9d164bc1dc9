//! Topics and partitions that a command needs.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use mainstem_client::{Admin, Topic, TopicPartition};

/// The topic of a name, which must exist.
pub(crate) async fn find(admin: &Admin, name: &str) -> Result<Arc<Topic>> {
    admin.find_topic(name).await?.with_context(|| {
        format!(
            "there is no topic {name}; create it with `mainstem topic create {name}`, or see `mainstem topic list`"
        )
    })
}

/// The partitions of a topic that have a leader.
pub(crate) fn led(topic: &Topic) -> Vec<TopicPartition> {
    let led = topic.partitions.iter().filter(|partition| partition.leader.is_some());
    led.map(|partition| TopicPartition::new(topic.name.clone(), partition.index)).collect()
}

/// The chosen partitions of topics, or all.
///
/// # Errors
/// When a topic does not have one of them.
pub(crate) fn partitions(topics: &[Arc<Topic>], chosen: &[i32]) -> Result<Vec<TopicPartition>> {
    let mut found = Vec::new();
    for topic in topics {
        if let Some(unknown) = chosen.iter().find(|index| topic.partition(**index).is_err()) {
            return Err(missing(topic, *unknown));
        }
        let all = topic.partitions.iter().map(|partition| partition.index);
        let indexes: Vec<i32> = if chosen.is_empty() { all.collect() } else { chosen.to_vec() };
        found.extend(indexes.into_iter().map(|index| TopicPartition::new(topic.name.clone(), index)));
    }
    Ok(found)
}

fn missing(topic: &Topic, partition: i32) -> anyhow::Error {
    let last = topic.partitions.len().saturating_sub(1);
    anyhow!("topic {} has no partition {partition}; it has 0 to {last}", topic.name)
}
