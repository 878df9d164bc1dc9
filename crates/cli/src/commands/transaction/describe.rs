//! `mainstem transaction describe`.

use anyhow::{Result, bail};
use clap::Args;
use mainstem_client::{TopicPartition, TransactionDescription};
use serde_json::{Value, json};

use crate::output::{print, print_json, shown, table};
use crate::target::Target;
use crate::timestamp;

/// Arguments of `transaction describe`.
#[derive(Debug, Args)]
pub(crate) struct Describe {
    /// The transactional id.
    transactional_id: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Describes the transactional id.
pub(crate) async fn run(describe: &Describe) -> Result<()> {
    let admin = describe.target.connect().await?;
    let id = &describe.transactional_id;
    let Some(found) = admin.describe_transaction(id).await? else {
        bail!("there is no transactional id {id}; `mainstem transaction list` shows those that are");
    };
    match describe.json {
        true => print_json(&to_json(id, &found)),
        false => print(&to_text(id, &found)),
    }
}

fn to_json(id: &str, found: &TransactionDescription) -> Value {
    let partition = |key: &TopicPartition| json!({"topic": &*key.topic, "partition": key.partition});
    json!({
        "transactional_id": id,
        "coordinator": found.coordinator,
        "state": found.state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.timeout_ms,
        "start_time": found.start_time_ms,
        "partitions": found.partitions.iter().map(partition).collect::<Value>(),
    })
}

fn to_text(id: &str, found: &TransactionDescription) -> String {
    let since = match found.start_time_ms {
        Some(ms) => format!(", open since {}", timestamp::format(ms)),
        None => String::new(),
    };
    let mut text = format!(
        "transactional id {}, state {}, coordinator node {}, producer id {}, epoch {}, timeout {} ms{since}",
        shown(id),
        shown(&found.state),
        found.coordinator,
        found.producer_id,
        found.producer_epoch,
        found.timeout_ms
    );
    if !found.partitions.is_empty() {
        let row = |key: &TopicPartition| vec![key.topic.to_string(), key.partition.to_string()];
        let rows = table(&["TOPIC", ">PARTITION"], found.partitions.iter().map(row).collect());
        text = format!("{text}\n\n{rows}");
    }
    text
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn text() {
        let description = |state: &str, start_time_ms, partitions: &[i32]| TransactionDescription {
            coordinator: 2,
            state: state.into(),
            producer_id: 4000,
            producer_epoch: 3,
            timeout_ms: 60_000,
            start_time_ms,
            partitions: partitions.iter().map(|index| TopicPartition::new("orders", *index)).collect(),
        };
        expect![[r#"
            transactional id billing, state Ongoing, coordinator node 2, producer id 4000, epoch 3, timeout 60000 ms, open since 2023-11-14T22:13:20.000Z

            TOPIC   PARTITION
            orders          0
            orders          4"#]]
        .assert_eq(&to_text("billing", &description("Ongoing", Some(1_700_000_000_000), &[4, 0])));
        expect!["transactional id billing, state Empty, coordinator node 2, producer id 4000, epoch 3, timeout 60000 ms"]
            .assert_eq(&to_text("billing", &description("Empty", None, &[])));
    }
}
