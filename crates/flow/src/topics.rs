//! The topics that an application declares, and what the brokers have instead.
//!
//! A plan is made by comparison alone. Carrying it out deletes nothing. It adds partitions to a topic only if that was asked for: a key's
//! next messages would go to another partition than its last ones.

use std::fmt;

use mainstem_client::{Admin, ConfigChange, ConfigEntry, ConfigResource, NewTopic, Position, TopicPartition};

use crate::error::{Error, Result};

/// One way in which the brokers differ from what is declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicChange {
    /// There is no such topic.
    Create(NewTopic),
    /// It has fewer partitions.
    AddPartitions {
        /// The topic's name.
        topic: String,
        /// The number that it has.
        from: i32,
        /// The number that is declared.
        to: i32,
    },
    /// A setting has another value.
    SetConfig {
        /// The topic's name.
        topic: String,
        /// Kafka's name of the setting.
        name: String,
        /// Its value; none: the broker does not know the setting.
        from: Option<String>,
        /// The value that is declared.
        to: String,
    },
    /// A difference that no plan can remove: fewer partitions, or another number of copies.
    Impossible {
        /// The topic's name.
        topic: String,
        /// The difference, and what to do about it.
        reason: String,
    },
}

impl fmt::Display for TopicChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TopicChange::Create(topic) => {
                write!(f, "+ {}", topic.name)?;
                match topic.partitions {
                    Some(partitions) => write!(f, " with {partitions} partitions")?,
                    None => write!(f, " with as many partitions as the brokers choose")?,
                }
                topic.configs.iter().try_for_each(|(name, value)| write!(f, ", {name}={value}"))
            }
            TopicChange::AddPartitions { topic, from, to } => {
                write!(f, "~ {topic}: {from} -> {to} partitions (keys go to other partitions then)")
            }
            TopicChange::SetConfig { topic, name, from, to } => {
                write!(f, "~ {topic}: {name} {} -> {to}", from.as_deref().unwrap_or("(unknown)"))
            }
            TopicChange::Impossible { topic, reason } => write!(f, "! {topic}: {reason}"),
        }
    }
}

/// The state of a topic at the brokers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) partitions: i32,
    pub(crate) copies: i32,
    pub(crate) configs: Vec<ConfigEntry>,
}

/// Compares the state of a topic with its declaration. Returns the differences.
pub(crate) fn differences(declared: &NewTopic, found: Option<&Found>) -> Vec<TopicChange> {
    let Some(found) = found else { return vec![TopicChange::Create(declared.clone())] };
    let topic = || declared.name.to_string();
    let impossible = |reason| TopicChange::Impossible { topic: topic(), reason };
    let mut changes = Vec::new();
    match declared.partitions {
        Some(to) if to > found.partitions => {
            changes.push(TopicChange::AddPartitions { topic: topic(), from: found.partitions, to });
        }
        Some(to) if to < found.partitions => changes.push(impossible(format!(
            "it has {} partitions, and {to} are declared; partitions cannot be taken away",
            found.partitions
        ))),
        _ => {}
    }
    if let Some(copies) = declared.replication_factor.filter(|copies| i32::from(*copies) != found.copies) {
        let has = found.copies;
        changes.push(impossible(format!(
            "its partitions have {has} copies, and {copies} are declared; reassign them (kafka-reassign-partitions)"
        )));
    }
    for (name, to) in &declared.configs {
        let entry = found.configs.iter().find(|entry| entry.name == *name);
        let from = entry.and_then(|entry| entry.value.clone());
        if from.as_deref() != Some(to) {
            changes.push(TopicChange::SetConfig { topic: topic(), name: name.clone(), from, to: to.clone() });
        }
    }
    changes
}

/// The differences between the brokers and what an application declares, and the way to remove them.
#[derive(Debug)]
pub struct TopicPlan {
    admin: Admin,
    changes: Vec<TopicChange>,
}

impl TopicPlan {
    /// Asks the brokers about the declared topics.
    pub(crate) async fn make(admin: Admin, declared: &[NewTopic]) -> Result<TopicPlan> {
        let mut changes = Vec::new();
        for topic in declared {
            changes.extend(differences(topic, find(&admin, topic).await?.as_ref()));
        }
        Ok(TopicPlan { admin, changes })
    }

    /// The differences, topic by topic in the order of declaration.
    pub fn changes(&self) -> &[TopicChange] {
        &self.changes
    }

    /// Creates topics, changes settings, and adds partitions if `add_partitions` says so. Nothing is deleted. Changes that are impossible,
    /// or were not asked for, are left and returned.
    ///
    /// # Errors
    /// What the cluster refuses; what came before it is done.
    pub async fn apply(self, add_partitions: bool) -> Result<Vec<TopicChange>> {
        let mut left = Vec::new();
        for change in self.changes {
            match change {
                TopicChange::Create(topic) => {
                    self.admin.create_topic(&topic).await?;
                }
                TopicChange::AddPartitions { topic, to, .. } if add_partitions => {
                    self.admin.create_partitions(&topic, to).await?;
                }
                TopicChange::SetConfig { topic, name, to, .. } => {
                    let resource = ConfigResource::Topic(topic.clone());
                    self.admin.alter_configs(&resource, &[ConfigChange::Set(name, to)], false).await?;
                }
                other => left.push(other),
            }
        }
        Ok(left)
    }
}

async fn find(admin: &Admin, topic: &NewTopic) -> Result<Option<Found>> {
    let Some(found) = admin.find_topic(&topic.name).await? else { return Ok(None) };
    let configs = match topic.configs.is_empty() {
        true => Vec::new(),
        false => admin.configs(&ConfigResource::Topic(topic.name.to_string())).await?,
    };
    let copies = found.partitions.first().map_or(0, |partition| partition.replicas.len());
    let count = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    Ok(Some(Found { partitions: count(found.partitions.len()), copies: count(copies), configs }))
}

/// Refuses topics that are declared twice.
pub(crate) fn check(declared: &[NewTopic]) -> Result {
    for (index, topic) in declared.iter().enumerate() {
        if declared[..index].iter().any(|other| other.name == topic.name) {
            return Err(Error::Invalid(format!("topic {} is declared twice", topic.name)));
        }
    }
    Ok(())
}

/// The lag of a group in a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionLag {
    /// The partition.
    pub partition: TopicPartition,
    /// The committed offset; none if the group has committed nothing.
    pub committed: Option<i64>,
    /// The end of the partition for readers.
    pub end: i64,
}

impl PartitionLag {
    /// Offsets from the committed one, or from 0, to the end.
    pub fn lag(&self) -> i64 {
        self.end.saturating_sub(self.committed.unwrap_or(0)).max(0)
    }
}

/// The lag of a group in all partitions of some topics. Topics that do not exist are left out.
pub(crate) async fn lag(admin: &Admin, group: &str, topics: &[String]) -> Result<Vec<PartitionLag>> {
    let committed = admin.group_offsets(group).await?;
    let mut partitions: Vec<_> = committed.keys().cloned().collect();
    for topic in topics {
        let found = admin.find_topic(topic).await?;
        let all = found.iter().flat_map(|topic| topic.partitions.iter().map(|one| (&topic.name, one.index)));
        partitions.extend(all.map(|(topic, index)| TopicPartition::new(topic.clone(), index)));
    }
    partitions.sort();
    partitions.dedup();
    let ends = partitions.iter().map(|partition| (partition.clone(), Position::End));
    let ends = admin.offsets(ends, mainstem_client::Isolation::ReadUncommitted).await?;
    let lag = |(partition, end): (TopicPartition, Option<i64>)| PartitionLag {
        committed: committed.get(&partition).copied(),
        end: end.unwrap_or(0),
        partition,
    };
    Ok(ends.into_iter().map(lag).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstem_client::ConfigSource;

    fn found(partitions: i32, retention_ms: &str) -> Found {
        let entry = ConfigEntry {
            name: "retention.ms".to_owned(),
            value: Some(retention_ms.to_owned()),
            source: ConfigSource::Topic,
            is_read_only: false,
            is_sensitive: false,
        };
        Found { partitions, copies: 1, configs: vec![entry] }
    }

    #[test]
    fn a_plan_says_what_differs_and_what_cannot_be_done() {
        let declared = NewTopic::new("orders").partitions(12).config("retention.ms", "1000");
        let said = |found: Option<&Found>| {
            differences(&declared, found).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(said(None), ["+ orders with 12 partitions, retention.ms=1000"]);
        assert_eq!(said(Some(&found(12, "1000"))), [""; 0]);
        assert_eq!(
            said(Some(&found(6, "2000"))),
            [
                "~ orders: 6 -> 12 partitions (keys go to other partitions then)",
                "~ orders: retention.ms 2000 -> 1000"
            ]
        );
        assert_eq!(
            said(Some(&found(13, "1000"))),
            ["! orders: it has 13 partitions, and 12 are declared; partitions cannot be taken away"]
        );
    }
}
