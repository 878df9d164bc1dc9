//! `mainstem topic describe`.

use std::collections::BTreeMap;

use anyhow::Result;
use clap::Args;
use mainstem_wire::messages::describe_log_dirs_request::{DescribableLogDirTopic, DescribeLogDirsRequest};
use serde_json::{Value, json};

use crate::cluster::{Cluster, Partition, Topic};
use crate::configs::{self, Config, Resource};
use crate::offsets::{EARLIEST, LATEST, list_offsets};
use crate::output::{bytes, joined, print, print_json, table};
use crate::target::Target;

/// What `topic describe` takes.
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

/// All that is told of a topic.
struct Description {
    topic: Topic,
    configs: Vec<Config>,
    partitions: Vec<PartitionLine>,
}

struct PartitionLine {
    partition: Partition,
    /// None while the partition has no leader.
    earliest: Option<i64>,
    latest: Option<i64>,
    /// Bytes on the leader's disk, if the broker tells.
    size: Option<i64>,
}

/// Describes the topics.
pub(crate) fn run(describe: &Describe) -> Result<()> {
    let mut cluster = describe.target.connect()?;
    let topics = match describe.topics.as_slice() {
        [] => cluster.topics()?.into_iter().filter(|topic| !topic.is_internal).collect(),
        names => names.iter().map(|name| cluster.topic(name)).collect::<Result<Vec<_>>>()?,
    };
    let mut descriptions = Vec::new();
    for topic in topics {
        descriptions.push(collect(&mut cluster, topic, describe.all_configs)?);
    }
    if describe.json {
        return print_json(&descriptions.iter().map(Description::to_json).collect());
    }
    let texts: Vec<String> = descriptions.iter().map(Description::to_text).collect();
    print(&texts.join("\n\n"))
}

fn collect(cluster: &mut Cluster, topic: Topic, all_configs: bool) -> Result<Description> {
    let resource = Resource::topic(&topic.name);
    let mut configs = configs::describe(cluster, &resource)?;
    configs.retain(|config| all_configs || config.source.is_own(&resource));
    let led: Vec<i32> = topic.partitions.iter().filter(|p| p.leader.is_some()).map(|p| p.index).collect();
    let earliest = list_offsets(cluster, &topic.name, &led, EARLIEST)?;
    let latest = list_offsets(cluster, &topic.name, &led, LATEST)?;
    let sizes = sizes(cluster, &topic)?;
    let line = |partition: &Partition| PartitionLine {
        earliest: earliest.get(&partition.index).copied(),
        latest: latest.get(&partition.index).copied(),
        size: sizes.get(&partition.index).copied(),
        partition: partition.clone(),
    };
    let partitions = topic.partitions.iter().map(line).collect();
    Ok(Description { topic, configs, partitions })
}

/// Bytes of each partition on its leader; empty where brokers do not tell.
fn sizes(cluster: &mut Cluster, topic: &Topic) -> Result<BTreeMap<i32, i64>> {
    let request = DescribeLogDirsRequest {
        topics: Some(vec![DescribableLogDirTopic {
            topic: topic.name.as_str().into(),
            partitions: topic.partitions.iter().map(|partition| partition.index).collect(),
            ..Default::default()
        }]),
        ..Default::default()
    };
    let mut sizes = BTreeMap::new();
    let mut leaders: Vec<i32> = topic.partitions.iter().filter_map(|partition| partition.leader).collect();
    leaders.sort_unstable();
    leaders.dedup();
    for node in leaders {
        let client = cluster.node(node)?;
        if !client.serves::<DescribeLogDirsRequest<'_>>() {
            continue;
        }
        let response = client.call(&request)?;
        let reported =
            response.results.iter().flat_map(|dir| &dir.topics).flat_map(|topic| &topic.partitions);
        for partition in reported.filter(|partition| !partition.is_future_key) {
            let led = topic.partition(partition.partition_index).is_ok_and(|p| p.leader == Some(node));
            if led {
                sizes.insert(partition.partition_index, partition.partition_size);
            }
        }
    }
    Ok(sizes)
}

impl Description {
    fn to_json(&self) -> Value {
        let configs: Value = self.configs.iter().map(Config::to_json).collect();
        let partitions: Value = self.partitions.iter().map(PartitionLine::to_json).collect();
        json!({
            "name": self.topic.name,
            "id": self.topic.id.to_string(),
            "internal": self.topic.is_internal,
            "configs": configs,
            "partitions": partitions,
        })
    }

    fn to_text(&self) -> String {
        let topic = &self.topic;
        let mut lines = vec![format!("topic {}, id {}", topic.name, topic.id)];
        let resource = Resource::topic(&topic.name);
        for config in &self.configs {
            let source = match config.source.is_own(&resource) {
                true => String::new(),
                false => format!("  ({})", config.source.name()),
            };
            lines.push(format!("  {}={}{source}", config.name, config.shown()));
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
    use mainstem_wire::Uuid;

    use super::*;
    use crate::configs::Source;

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
        let config = |name: &str, value: Option<&str>, source| Config {
            name: name.into(),
            value: value.map(str::to_owned),
            source: Source(source),
        };
        Description {
            topic: Topic {
                name: "orders".into(),
                id: Uuid::from_u128(1),
                is_internal: false,
                partitions: Vec::new(),
            },
            configs: vec![config("retention.ms", Some("1000"), 1), config("segment.bytes", None, 5)],
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
