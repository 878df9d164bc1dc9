//! The throttle of a reassignment, as Kafka's tool sets it: a rate for each node that takes part, and in each topic the replicas for
//! which it counts.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use mainstem_client::{Admin, ConfigChange, ConfigEntry, ConfigResource, ConfigSource, TopicPartition};

use super::Assignment;

/// Settings of nodes: what they send and what they take, in bytes a second.
const RATES: [&str; 2] = ["leader.replication.throttled.rate", "follower.replication.throttled.rate"];
/// Settings of topics: the replicas that send, and those that take.
const REPLICAS: [&str; 2] =
    ["leader.replication.throttled.replicas", "follower.replication.throttled.replicas"];

/// Changes of settings, by what they are of.
type Changes = Vec<(ConfigResource, Vec<ConfigChange>)>;

/// A throttle that was set, and the way back to what was before.
pub(super) struct Throttle(Changes);

/// Sets the throttle of a reassignment that is about to begin. Nothing is set where no replica gets another node, and nothing in a topic all
/// of whose replicas are throttled already (`*`).
///
/// # Errors
/// The cluster's. It is as it was before then, as far as the cluster takes that.
pub(super) async fn set(
    admin: &Admin,
    current: &Assignment,
    wanted: &Assignment,
    rate: u64,
) -> Result<Throttle> {
    let (mut changes, mut before) = (changes(current, wanted, rate), Changes::new());
    for (resource, changes) in &mut changes {
        let entries = admin.configs(resource).await?;
        changes.retain(|change| !is_for_all(&entries, change));
        before.push((resource.clone(), changes.iter().map(|change| undo(&entries, change)).collect()));
    }
    changes.retain(|(_, changes)| !changes.is_empty());
    before.retain(|(_, changes)| !changes.is_empty());
    let throttle = Throttle(before);
    let set = carry_out(admin, changes).await;
    if let Err(error) = set {
        throttle.take_back(admin).await;
        return Err(error.context("the throttle could not be set; nothing moves"));
    }
    Ok(throttle)
}

impl Throttle {
    /// Puts back what was before. The caller has a refusal to show, which counts more than one of this.
    pub(super) async fn take_back(self, admin: &Admin) {
        for change in self.0 {
            let _ = carry_out(admin, vec![change]).await;
        }
    }
}

async fn carry_out(admin: &Admin, changes: Changes) -> Result<()> {
    for (resource, changes) in changes {
        admin.alter_configs(&resource, &changes, false).await?;
    }
    Ok(())
}

/// The setting that a change is of, with the value that the topic or the node has of its own.
fn own_value<'e>(entries: &'e [ConfigEntry], change: &ConfigChange) -> Option<&'e str> {
    let (ConfigChange::Set(name, _)
    | ConfigChange::Delete(name)
    | ConfigChange::Append(name, _)
    | ConfigChange::Subtract(name, _)) = change;
    let is_own = |entry: &&ConfigEntry| {
        entry.name == *name && matches!(entry.source, ConfigSource::Topic | ConfigSource::DynamicBroker)
    };
    entries.iter().find(is_own)?.value.as_deref()
}

/// Returns true if a list that a change adds to names all replicas.
fn is_for_all(entries: &[ConfigEntry], change: &ConfigChange) -> bool {
    let names_all = || own_value(entries, change).is_some_and(|list| list.trim() == "*");
    matches!(change, ConfigChange::Append(..)) && names_all()
}

/// The change that takes a change back.
fn undo(entries: &[ConfigEntry], change: &ConfigChange) -> ConfigChange {
    let (ConfigChange::Set(name, _)
    | ConfigChange::Delete(name)
    | ConfigChange::Append(name, _)
    | ConfigChange::Subtract(name, _)) = change;
    match own_value(entries, change).filter(|value| !value.is_empty()) {
        Some(value) => ConfigChange::Set(name.clone(), value.to_owned()),
        None => ConfigChange::Delete(name.clone()),
    }
}

fn changes(current: &Assignment, wanted: &Assignment, rate: u64) -> Changes {
    let mut nodes = BTreeSet::new();
    let mut topics: BTreeMap<&str, [Vec<String>; 2]> = BTreeMap::new();
    for (key, replicas) in wanted {
        let senders = current.get(key).map_or(&[][..], Vec::as_slice);
        let takers: Vec<i32> = replicas.iter().copied().filter(|node| !senders.contains(node)).collect();
        if takers.is_empty() {
            continue;
        }
        nodes.extend(senders.iter().chain(&takers).copied());
        let lists = topics.entry(&key.topic).or_default();
        let item = |node: &i32| format!("{}:{node}", key.partition);
        lists[0].extend(senders.iter().map(item));
        lists[1].extend(takers.iter().map(item));
    }
    let of_node = |node| {
        let set = |key: &str| ConfigChange::Set(key.to_owned(), rate.to_string());
        (ConfigResource::Broker(node), RATES.map(set).to_vec())
    };
    let of_topic = |(topic, lists): (&str, [Vec<String>; 2])| {
        let append = |(key, list): (&str, Vec<String>)| ConfigChange::Append(key.to_owned(), list.join(","));
        let changes = REPLICAS.into_iter().zip(lists).map(append).collect();
        (ConfigResource::Topic(topic.to_owned()), changes)
    };
    // The rates come first: replicas that are named without one are not throttled.
    nodes.into_iter().map(of_node).chain(topics.into_iter().map(of_topic)).collect()
}

/// The changes that take partitions out of what is throttled, and where some were in it the rates of all nodes with `rates`. Nodes whose topics
/// throttle others keep theirs.
///
/// # Errors
/// The cluster's.
pub(super) async fn removal(
    admin: &Admin,
    partitions: &BTreeSet<&TopicPartition>,
    rates: bool,
) -> Result<Changes> {
    let mut changes = Changes::new();
    for topic in partitions.iter().map(|key| &*key.topic).collect::<BTreeSet<_>>() {
        let of_topic =
            partitions.iter().filter(|key| *key.topic == *topic).map(|key| key.partition).collect();
        let resource = ConfigResource::Topic(topic.to_owned());
        let entries = admin.configs(&resource).await?;
        let left = entries.iter().filter_map(|entry| without(entry, &of_topic)).collect();
        changes.push((resource, left));
    }
    changes.retain(|(_, changes)| !changes.is_empty());
    for node in if rates && !changes.is_empty() { admin.nodes().await? } else { Vec::new() } {
        let resource = ConfigResource::Broker(node);
        let entries = admin.configs(&resource).await?;
        let is_set = |entry: &&ConfigEntry| {
            RATES.contains(&entry.name.as_str()) && entry.source == ConfigSource::DynamicBroker
        };
        let deleted = entries.iter().filter(is_set).map(|entry| ConfigChange::Delete(entry.name.clone()));
        changes.push((resource, deleted.collect()));
    }
    changes.retain(|(_, changes)| !changes.is_empty());
    Ok(changes)
}

/// Takes a throttle away.
///
/// # Errors
/// The cluster's. What was removed before stays removed.
pub(super) async fn remove(admin: &Admin, changes: Changes) -> Result<()> {
    carry_out(admin, changes).await.context("the throttle could not be removed; try again")
}

/// The change of a topic's setting that takes partitions out of it; none where it does not name them.
fn without(entry: &ConfigEntry, partitions: &BTreeSet<i32>) -> Option<ConfigChange> {
    if !REPLICAS.contains(&entry.name.as_str()) || entry.source != ConfigSource::Topic {
        return None;
    }
    let items: Vec<&str> = entry.value.as_deref()?.split(',').map(str::trim).collect();
    let is_of = |item: &&&str| {
        let partition = item.split(':').next().and_then(|number| number.parse().ok());
        partition.is_some_and(|partition: i32| partitions.contains(&partition))
    };
    let left: Vec<&str> = items.iter().filter(|item| !is_of(item)).copied().collect();
    match left.len() {
        count if count == items.len() => None,
        0 => Some(ConfigChange::Delete(entry.name.clone())),
        _ => Some(ConfigChange::Set(entry.name.clone(), left.join(","))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sends_and_who_takes_is_throttled() {
        let key = |index| TopicPartition::new("t", index);
        let current = Assignment::from([(key(0), vec![1, 2]), (key(1), vec![1, 2])]);
        let wanted = Assignment::from([(key(0), vec![2, 3]), (key(1), vec![2, 1])]);
        let set = |key: &str, value: &str| ConfigChange::Set(key.to_owned(), value.to_owned());
        let append = |key: &str, value: &str| ConfigChange::Append(key.to_owned(), value.to_owned());
        let rates = RATES.map(|key| set(key, "1000")).to_vec();
        let lists = vec![append(REPLICAS[0], "0:1,0:2"), append(REPLICAS[1], "0:3")];
        let nodes = [1, 2, 3].map(|node| (ConfigResource::Broker(node), rates.clone()));
        let mut expected = nodes.to_vec();
        expected.push((ConfigResource::Topic("t".to_owned()), lists));
        assert_eq!(changes(&current, &wanted, 1_000), expected);
        assert!(changes(&current, &current, 1_000).is_empty(), "nothing moves");
    }

    fn entry(value: &str, source: ConfigSource) -> ConfigEntry {
        ConfigEntry {
            name: REPLICAS[0].to_owned(),
            value: Some(value.to_owned()),
            source,
            is_read_only: false,
            is_sensitive: false,
        }
    }

    #[test]
    fn what_was_set_is_put_back() {
        let change = ConfigChange::Append(REPLICAS[0].to_owned(), "0:1".to_owned());
        let back = |value: &str, source| undo(&[entry(value, source)], &change);
        let before = ConfigChange::Set(REPLICAS[0].to_owned(), "3:1".to_owned());
        let none = ConfigChange::Delete(REPLICAS[0].to_owned());
        assert_eq!(back("3:1", ConfigSource::Topic), before);
        assert_eq!([back("", ConfigSource::Topic), back("", ConfigSource::Default)], [none.clone(), none]);
        let is_left_out = |value: &str| is_for_all(&[entry(value, ConfigSource::Topic)], &change);
        assert_eq!([is_left_out("*"), is_left_out("0:2")], [true, false]);
    }

    #[test]
    fn what_others_throttle_stays() {
        let taken = |value, source| without(&entry(value, source), &BTreeSet::from([0, 2]));
        let own = ConfigSource::Topic;
        assert_eq!(taken("0:1,0:2", own), Some(ConfigChange::Delete(REPLICAS[0].to_owned())));
        let left = ConfigChange::Set(REPLICAS[0].to_owned(), "1:1,3:1".to_owned());
        assert_eq!(taken("1:1, 0:1,3:1,2:7", own), Some(left));
        assert_eq!(
            [taken("1:1", own), taken("*", own), taken("0:1", ConfigSource::Default)],
            [None, None, None]
        );
    }
}
