//! `mainstem topic list`.

use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use mainstem_client::Topic;
use serde_json::{Value, json};

use crate::output::{print, print_json, table};
use crate::target::Target;

/// Arguments of `topic list`.
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Also list the brokers' own topics, such as __consumer_offsets.
    #[arg(long)]
    internal: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Lists the topics.
pub(crate) async fn run(list: &List) -> Result<()> {
    let mut topics = list.target.connect().await?.topics().await?;
    topics.retain(|topic| list.internal || !topic.is_internal);
    if list.json {
        return print_json(&topics.iter().map(|topic| as_json(topic)).collect());
    }
    match topics.is_empty() {
        true => print("there are no topics; create one with `mainstem topic create NAME`"),
        false => print(&as_table(&topics)),
    }
}

fn replication_factor(topic: &Topic) -> usize {
    topic.partitions.first().map_or(0, |partition| partition.replicas.len())
}

fn as_json(topic: &Topic) -> Value {
    json!({
        "name": &*topic.name,
        "id": topic.id.to_string(),
        "internal": topic.is_internal,
        "partitions": topic.partitions.len(),
        "replication_factor": replication_factor(topic),
    })
}

fn as_table(topics: &[Arc<Topic>]) -> String {
    let row = |topic: &Arc<Topic>| {
        let partitions = topic.partitions.len().to_string();
        vec![topic.name.to_string(), partitions, replication_factor(topic).to_string(), topic.id.to_string()]
    };
    table(&["TOPIC", ">PARTITIONS", ">REPLICAS", "ID"], topics.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use mainstem_client::{Partition, Uuid};

    use super::*;

    #[test]
    fn a_line_per_topic() {
        let partition =
            |index| Partition { index, leader: Some(1), leader_epoch: 0, replicas: vec![1], isr: vec![1] };
        let topic = |name: &str, partitions: i32| {
            Arc::new(Topic {
                name: name.into(),
                id: Uuid::from_u128(7),
                is_internal: false,
                partitions: (0..partitions).map(partition).collect(),
            })
        };
        expect![[r#"
            TOPIC   PARTITIONS  REPLICAS  ID
            events          12         1  AAAAAAAAAAAAAAAAAAAABw
            orders           1         1  AAAAAAAAAAAAAAAAAAAABw"#]]
        .assert_eq(&as_table(&[topic("events", 12), topic("orders", 1)]));
        expect![[r#"{"id":"AAAAAAAAAAAAAAAAAAAABw","internal":false,"name":"events","partitions":2,"replication_factor":1}"#]]
            .assert_eq(&as_json(&topic("events", 2)).to_string());
    }
}
