//! `mainstem topic describe`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use mainstem_client::{Admin, ConfigEntry, Error, ErrorCode, Partition, Position, Topic, TopicPartition};
use serde_json::{Value, json};

use crate::configs::{self, Resource};
use crate::offsets;
use crate::output::{bytes, joined, print, print_json, shown, table};
use crate::target::Target;
use crate::topic;

/// Arguments of `topic describe`.
#[derive(Debug, Args)]
pub(crate) struct Describe {
    /// Names of the topics. [default: all but the brokers' own]
    topics: Vec<String>,
    /// Show every setting and where it comes from, not only those that were set for the topic.
    #[arg(long)]
    all_configs: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// The facts shown of a topic.
struct Description {
    topic: Arc<Topic>,
    configs: Vec<ConfigEntry>,
    partitions: Vec<PartitionLine>,
}

struct PartitionLine {
    partition: Partition,
    /// None while the partition has no leader.
    earliest: Option<i64>,
    latest: Option<i64>,
    /// Bytes on the leader's disk, if the broker reports them.
    size: Option<i64>,
}

/// Bytes of partitions on a node.
type Sizes = BTreeMap<(i32, TopicPartition), i64>;

/// Describes the topics.
pub(crate) async fn run(describe: &Describe) -> Result<()> {
    let admin = describe.target.connect().await?;
    let mut topics = Vec::new();
    for name in &describe.topics {
        topics.push(topic::find(&admin, name).await?);
    }
    if describe.topics.is_empty() {
        topics.extend(admin.topics().await?.into_iter().filter(|topic| !topic.is_internal));
    }
    let sizes = sizes(&admin, &topics).await?;
    let mut descriptions = Vec::new();
    for topic in topics {
        descriptions.push(collect(&admin, topic, &sizes, describe.all_configs).await?);
    }
    if describe.json {
        return print_json(&descriptions.iter().map(Description::to_json).collect());
    }
    let texts: Vec<String> = descriptions.iter().map(Description::to_text).collect();
    print(&texts.join("\n\n"))
}

async fn collect(admin: &Admin, topic: Arc<Topic>, sizes: &Sizes, all_configs: bool) -> Result<Description> {
    let resource = Resource::topic(&topic.name);
    let mut configs = configs::describe(admin, &resource).await?;
    configs.retain(|config| all_configs || resource.owns(config));
    let led = topic::led(&topic);
    let earliest = offsets::find(admin, &led, Position::Beginning).await?;
    let latest = offsets::find(admin, &led, Position::End).await?;
    let line = |partition: &Partition| {
        let key = TopicPartition::new(topic.name.clone(), partition.index);
        PartitionLine {
            earliest: earliest.get(&key).copied(),
            latest: latest.get(&key).copied(),
            size: partition.leader.and_then(|leader| sizes.get(&(leader, key)).copied()),
            partition: partition.clone(),
        }
    };
    let partitions = topic.partitions.iter().map(line).collect();
    Ok(Description { topic, configs, partitions })
}

/// Bytes of all partitions on the leaders of the topics. Empty where brokers do not report them, or this user may not ask.
async fn sizes(admin: &Admin, topics: &[Arc<Topic>]) -> Result<Sizes> {
    let leaders = topics.iter().flat_map(|topic| &topic.partitions).filter_map(|partition| partition.leader);
    let mut sizes = Sizes::new();
    for node in leaders.collect::<BTreeSet<_>>() {
        let dirs = match admin.log_dirs(node).await {
            Err(Error::Unsupported { .. }) => continue,
            Err(error) if error.code() == Some(ErrorCode::CLUSTER_AUTHORIZATION_FAILED) => continue,
            dirs => dirs?,
        };
        let replicas = dirs.into_iter().flat_map(|dir| dir.replicas).filter(|replica| !replica.is_future);
        sizes.extend(replicas.map(|replica| ((node, replica.partition), replica.size_bytes)));
    }
    Ok(sizes)
}

impl Description {
    fn to_json(&self) -> Value {
        let configs: Value = self.configs.iter().map(configs::to_json).collect();
        let partitions: Value = self.partitions.iter().map(PartitionLine::to_json).collect();
        json!({
            "name": &*self.topic.name,
            "id": self.topic.id.to_string(),
            "internal": self.topic.is_internal,
            "configs": configs,
            "partitions": partitions,
        })
    }

    fn to_text(&self) -> String {
        let topic = &self.topic;
        let mut lines = vec![format!("topic {}, id {}", shown(&topic.name), topic.id)];
        let resource = Resource::topic(&topic.name);
        for config in &self.configs {
            let source = match resource.owns(config) {
                true => String::new(),
                false => format!("  ({})", config.source.name()),
            };
            lines.push(format!("  {}={}{source}", shown(&config.name), shown(configs::shown(config))));
        }
        let columns = [">PARTITION", ">LEADER", "REPLICAS", "IN SYNC", ">EARLIEST", ">LATEST", ">SIZE"];
        lines.push(table(&columns, self.partitions.iter().map(PartitionLine::to_row).collect()));
        lines.join("\n")
    }
}

impl PartitionLine {
    fn to_json(&self) -> Value {
        let partition = &self.partition;
        json!({
            "partition": partition.index,
            "leader": partition.leader,
            "leader_epoch": partition.leader_epoch,
            "replicas": partition.replicas,
            "isr": partition.isr,
            "earliest_offset": self.earliest,
            "latest_offset": self.latest,
            "size_bytes": self.size,
        })
    }

    fn to_row(&self) -> Vec<String> {
        let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        vec![
            self.partition.index.to_string(),
            self.partition.leader.map_or("none".to_owned(), |leader| leader.to_string()),
            joined(&self.partition.replicas),
            joined(&self.partition.isr),
            or_none(self.earliest.map(|offset| offset.to_string())),
            or_none(self.latest.map(|offset| offset.to_string())),
            or_none(self.size.and_then(|size| u64::try_from(size).ok()).map(bytes)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use mainstem_client::{ConfigSource, Uuid};

    use super::*;

    fn sample() -> Description {
        let partition =
            |index, leader| Partition { index, leader, leader_epoch: 3, replicas: vec![1, 2], isr: vec![1] };
        let lines = vec![
            PartitionLine {
                partition: partition(0, Some(1)),
                earliest: Some(5),
                latest: Some(1200),
                size: Some(4096),
            },
            PartitionLine { partition: partition(1, None), earliest: None, latest: None, size: None },
        ];
        let config = |name: &str, value: Option<&str>, source| ConfigEntry {
            name: name.into(),
            value: value.map(str::to_owned),
            source,
            is_read_only: false,
            is_sensitive: value.is_none(),
        };
        Description {
            topic: Arc::new(Topic {
                name: "orders".into(),
                id: Uuid::from_u128(1),
                is_internal: false,
                partitions: Vec::new(),
            }),
            configs: vec![
                config("retention.ms", Some("1000"), ConfigSource::Topic),
                config("segment.bytes", None, ConfigSource::Default),
            ],
            partitions: lines,
        }
    }

    #[test]
    fn text() {
        expect![[r#"
            topic orders, id AAAAAAAAAAAAAAAAAAAAAQ
              retention.ms=1000
              segment.bytes=(hidden)  (DEFAULT_CONFIG)
            PARTITION  LEADER  REPLICAS  IN SYNC  EARLIEST  LATEST      SIZE
                    0       1  1,2       1               5    1200  4.00 KiB
                    1    none  1,2       1               -       -         -"#]]
        .assert_eq(&sample().to_text());
    }

    #[test]
    fn json() {
        let json = sample().to_json();
        assert_eq!(json["partitions"][0]["latest_offset"], 1200);
        assert_eq!(json["partitions"][1]["leader"], Value::Null);
        assert_eq!(json["configs"][0]["source"], "DYNAMIC_TOPIC_CONFIG");
    }
}
